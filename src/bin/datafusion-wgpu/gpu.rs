//! Flags that every command with queries shares: where they run and what a fallback does.

use clap::ValueEnum;
use datafusion::prelude::SessionConfig;
use datafusion_wgpu::{FallbackPolicy, GpuOptions, Placement};

/// Where supported operators run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Gpu {
    /// Nothing runs on the GPU
    Off,
    /// What the estimate says is faster there
    Auto,
    /// Whatever is supported, on a software adapter too
    Force,
}

/// What a run-time fallback to the CPU does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Fallback {
    /// Log it and count it
    Warn,
    /// Count it
    Silent,
    /// Fail the query
    Error,
}

/// The flags.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "GPU")]
pub struct Args {
    /// Where supported operators run; without it, as the environment and SET gpu.placement say
    #[arg(long, value_enum)]
    pub gpu: Option<Gpu>,
    /// The adapter: its number or a part of its name, as `datafusion-wgpu devices` lists them
    #[arg(long, value_name = "ADAPTER")]
    pub adapter: Option<String>,
    /// What happens when a running query needs the CPU after all
    #[arg(long, value_enum)]
    pub gpu_fallback: Option<Fallback>,
}

impl Args {
    /// Puts the flags over the session's options. `--gpu force` and a named adapter allow a software adapter too: who asks
    /// for it means it.
    pub fn apply(&self, config: SessionConfig) -> SessionConfig {
        let mut options = GpuOptions::from_config(config.options());
        if let Some(gpu) = self.gpu {
            options.placement = match gpu {
                Gpu::Off => Placement::Off,
                Gpu::Auto => Placement::Auto,
                Gpu::Force => Placement::Force,
            };
            options.allow_software_adapter |= gpu == Gpu::Force;
        }
        if let Some(adapter) = &self.adapter {
            options.adapter.clone_from(adapter);
            options.allow_software_adapter = true;
        }
        if let Some(fallback) = self.gpu_fallback {
            options.fallback = match fallback {
                Fallback::Warn => FallbackPolicy::Warn,
                Fallback::Silent => FallbackPolicy::Silent,
                Fallback::Error => FallbackPolicy::Error,
            };
        }
        config.with_option_extension(options)
    }
}
