//! What the figures were measured on and with.

use std::fmt;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use datafusion::arrow::array::TimestampSecondArray;
use datafusion::arrow::util::display::array_value_to_string;
use datafusion::error::Result;
use datafusion::prelude::SessionConfig;
use datafusion_wgpu::memory::{AdapterInfo, AdapterSelector, GpuDevice};
use datafusion_wgpu::{GpuOptions, GpuRuntime, Placement, shared_runtime};
use serde::Serialize;

use crate::error::problem;

/// The machine, the adapter and the versions.
#[derive(Debug, Clone, Serialize)]
pub struct Machine {
    pub adapter: Option<Adapter>,
    /// The processor's own name, where the system tells it.
    pub cpu: Option<String>,
    /// Cores that this process may use.
    pub cores: usize,
    pub os: &'static str,
    pub architecture: &'static str,
    pub version: &'static str,
    pub datafusion: &'static str,
    /// `release`, or `debug`, whose times mean nothing.
    pub build: &'static str,
    /// UTC.
    pub date: String,
}

/// An adapter.
#[derive(Debug, Clone, Serialize)]
pub struct Adapter {
    pub name: String,
    pub kind: &'static str,
    pub backend: String,
    pub driver: String,
}

impl Machine {
    /// This machine, with the adapter that sessions with these options would use. Blocks while adapters are enumerated.
    pub fn new(options: &GpuOptions) -> Machine {
        let off = !options.enabled || options.placement == Placement::Off;
        let adapter = if off { None } else { Adapter::selected(options) };
        Machine {
            adapter,
            cpu: cpu_name(),
            cores: std::thread::available_parallelism().map_or(1, |cores| cores.get()),
            os: std::env::consts::OS,
            architecture: std::env::consts::ARCH,
            version: env!("CARGO_PKG_VERSION"),
            datafusion: datafusion::DATAFUSION_VERSION,
            build: if cfg!(debug_assertions) { "debug" } else { "release" },
            date: date(SystemTime::now()),
        }
    }
}

impl Adapter {
    fn selected(options: &GpuOptions) -> Option<Adapter> {
        let runtime = shared_runtime();
        let index = runtime.find(&selector(options)).ok()?;
        runtime.adapters().get(index).map(Adapter::of)
    }

    fn of(info: &AdapterInfo) -> Adapter {
        let driver = format!("{} {}", info.driver, info.driver_info);
        Adapter {
            name: info.name.clone(),
            kind: info.kind.name(),
            backend: info.backend.clone(),
            driver: driver.trim().to_owned(),
        }
    }
}

fn selector(options: &GpuOptions) -> AdapterSelector {
    AdapterSelector { adapter: options.adapter.clone(), allow_software: options.allow_software_adapter }
}

/// Opens the adapter that sessions of this configuration use.
///
/// # Errors
/// No such adapter, or one that can't be used.
pub async fn open(runtime: &Arc<GpuRuntime>, config: &SessionConfig) -> Result<Arc<GpuDevice>> {
    let selector = selector(&GpuOptions::from_config(config.options()));
    let runtime = Arc::clone(runtime);
    Ok(blocking(move || runtime.select(&selector)).await??)
}

/// Runs what waits for a driver where it may wait.
///
/// # Errors
/// When the work panics.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|e| problem(format!("opening the adapter failed: {e}")))
}

fn cpu_name() -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    line.split_once(':').map(|(_, name)| name.trim().to_owned())
}

/// As `2026-01-31T12:00:00Z`.
fn date(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let array = TimestampSecondArray::from(vec![i64::try_from(seconds).unwrap_or(0)]);
    array_value_to_string(&array, 0).map_or(String::new(), |text| format!("{text}Z"))
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.adapter {
            Some(adapter) => {
                write!(f, "{} ({}, {}, {})", adapter.name, adapter.kind, adapter.backend, adapter.driver)?;
            }
            None => write!(f, "without a GPU")?,
        }
        let cpu = self.cpu.as_ref().map_or(String::new(), |name| format!(" ({name})"));
        write!(
            f,
            "; {} cores{cpu}; datafusion-wgpu {}, DataFusion {}; {} {}, {} build; {}",
            self.cores, self.version, self.datafusion, self.os, self.architecture, self.build, self.date
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_utc() {
        assert_eq!(date(UNIX_EPOCH), "1970-01-01T00:00:00Z");
        let time = UNIX_EPOCH + std::time::Duration::from_secs(951_868_799);
        assert_eq!(date(time), "2000-02-29T23:59:59Z");
    }
}
