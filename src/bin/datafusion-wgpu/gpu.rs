//! Flags that every command with queries shares: where they run and what a fallback does.

use std::collections::BTreeSet;
use std::sync::Arc;

use clap::ValueEnum;
use datafusion::common::config::ExtensionOptions;
use datafusion::error::Result;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::prelude::SessionConfig;
use datafusion_wgpu::memory::AdapterSelector;
use datafusion_wgpu::physical_plan::GpuExec;
use datafusion_wgpu::{FallbackPolicy, GpuOptions, Placement, shared_runtime};

use crate::error::problem;

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
// Groups are named after their type by default, and each module here has an `Args`.
#[group(id = "gpu_flags")]
pub struct Args {
    /// Where supported operators run [default: as DATAFUSION_GPU_PLACEMENT says, else auto]
    #[arg(long, value_name = "WHERE", value_enum, ignore_case = true)]
    pub gpu: Option<Gpu>,
    /// The adapter: its number or a part of its name, as `datafusion-wgpu devices` lists them
    #[arg(long, value_name = "ADAPTER")]
    pub adapter: Option<String>,
    /// What happens when a running query needs the CPU after all
    #[arg(long, value_name = "POLICY", value_enum, ignore_case = true)]
    pub gpu_fallback: Option<Fallback>,
}

impl Args {
    /// Puts the environment's `DATAFUSION_GPU_*` variables, named as DataFusion names those of its own options, and then
    /// the flags over the session's options. `--gpu force` and a named adapter allow a software adapter too: who asks for
    /// it means it.
    pub fn apply(&self, config: SessionConfig) -> Result<SessionConfig> {
        let mut options = GpuOptions::from_config(config.options());
        from_environment(&mut options)?;
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
        Ok(config.with_option_extension(options))
    }

    /// Opens the adapter if a flag asks for one, so that its absence is said at once and not by the first query.
    ///
    /// # Errors
    /// No such adapter, or one that can't be used.
    pub async fn check(&self, config: &SessionConfig) -> Result<()> {
        let options = GpuOptions::from_config(config.options());
        let wanted = self.gpu == Some(Gpu::Force) || self.adapter.is_some();
        if !wanted || !options.enabled || options.placement == Placement::Off {
            return Ok(());
        }
        let selector =
            AdapterSelector { adapter: options.adapter, allow_software: options.allow_software_adapter };
        let opened = tokio::task::spawn_blocking(move || shared_runtime().select(&selector).map(|_| ()));
        opened
            .await
            .map_err(|e| problem(format!("opening the adapter failed: {e}")))?
            .map_err(|e| problem(format!("{e}; `datafusion-wgpu doctor` says why")))
    }
}

/// Variables that name no option are an error: a misspelt one would change nothing without a word.
fn from_environment(options: &mut GpuOptions) -> Result<()> {
    const PREFIX: &str = "DATAFUSION_GPU_";
    for (variable, value) in std::env::vars_os() {
        let variable = variable.to_string_lossy();
        if let Some(name) = variable.strip_prefix(PREFIX).map(str::to_lowercase)
            && !GpuOptions::NAMES.contains(&name.as_str())
        {
            let value = value.to_string_lossy();
            return Err(problem(format!(
                "environment variable {variable}={value}: there is no option gpu.{name}"
            )));
        }
    }
    for name in GpuOptions::NAMES {
        let variable = format!("{PREFIX}{}", name.to_uppercase());
        if let Some(value) = std::env::var_os(&variable) {
            let value = value.to_string_lossy();
            options.set(name, &value).map_err(|e| e.context(format!("environment variable {variable}")))?;
        }
    }
    Ok(())
}

/// Numbers of the queries whose GPU nodes ran in a plan, known once it was executed: each subquery has one of its own. The
/// statistics of every one of them arrive when the plan and its streams are gone.
pub fn queries_of(plan: &Arc<dyn ExecutionPlan>) -> BTreeSet<u64> {
    let mut queries: BTreeSet<u64> = plan.children().into_iter().flat_map(queries_of).collect();
    // 0 stands for a node of which no partition was asked.
    queries.extend(plan.downcast_ref::<GpuExec>().map(|node| node.query().id()).filter(|&id| id > 0));
    queries
}
