//! What one execution of a GPU node's partition needs: options, device, budget, metrics, and the fallback policy.

use std::sync::Arc;
use std::time::SystemTime;

use datafusion::common::Result;
use datafusion::common::runtime::SpawnedTask;
use datafusion::execution::TaskContext;

use crate::config::{FallbackPolicy, FallbackScope, GpuOptions};
use crate::error::{GpuError, GpuResult};
use crate::memory::budget::MemoryScope;
use crate::memory::caps::DeviceCaps;
use crate::memory::launch::LaunchScope;
use crate::memory::runtime::{AdapterSelector, GpuDevice, GpuRuntime};
use crate::observe::{FallbackEvent, Observers};
use datafusion::physical_plan::ExecutionPlan;

use super::exec::GpuExec;
use super::metrics::GpuMetrics;
use super::query::Query;

/// Why a batch or an island went to the CPU although it was placed on the GPU.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum FallbackReason {
    /// A live row met an arithmetic fault: the CPU decides between error and result.
    #[error("an expression met a value that may raise; the CPU decides")]
    ArithmeticFault,
    /// The device could not do the work.
    #[error(transparent)]
    Device(#[from] GpuError),
}

impl FallbackReason {
    fn code(&self) -> &'static str {
        match self {
            FallbackReason::ArithmeticFault => "ArithmeticFault",
            FallbackReason::Device(error) => error.code(),
        }
    }
}

/// One execution of one partition of a GPU node.
pub(crate) struct RunContext {
    node: String,
    options: GpuOptions,
    device: GpuResult<Arc<GpuDevice>>,
    memory: Option<MemoryScope>,
    task: Arc<TaskContext>,
    query: Arc<Query>,
    observers: Arc<Observers>,
    span: tracing::Span,
    pub(crate) metrics: GpuMetrics,
}

impl RunContext {
    /// The context of partition `partition` of `node`. Without a device (none registered, or lost for good) every batch
    /// will fall back.
    pub(crate) fn open(node: &GpuExec, partition: usize, task: &Arc<TaskContext>) -> Arc<Self> {
        let config = task.session_config();
        let options = config.options().extensions.get::<GpuOptions>().cloned().unwrap_or_default();
        let runtime = config.get_extension::<GpuRuntime>();
        let observers = runtime.as_ref().map(|runtime| Arc::clone(runtime.observers())).unwrap_or_default();
        let query = Arc::clone(node.query());
        query.begin(task, &observers);
        let device = runtime
            .ok_or_else(|| GpuError::NoAdapter("the session has no GpuRuntime".to_owned()))
            .and_then(|runtime| runtime.select(&selector(&options)));
        let name = format!("{}[{partition}]", node.name());
        let memory = match &device {
            Ok(device) => {
                let limit =
                    options.memory_limit.bytes().unwrap_or_else(|| default_memory_limit(device.caps()));
                Some(MemoryScope::new(device.ledger(), name.clone(), limit))
            }
            Err(_) => None,
        };
        let timestamps = device.as_ref().is_ok_and(|device| device.caps().timestamps);
        let metrics = GpuMetrics::new(node.metrics_set(), partition, Arc::clone(&query), timestamps);
        let memory = memory.map(|scope| scope.with_meters(metrics.memory_meters()));
        let span = tracing::debug_span!(
            target: "datafusion_wgpu::island",
            parent: &query.span(),
            "gpu_island",
            node = name
        );
        let task = Arc::clone(task);
        Arc::new(Self { node: name, options, device, memory, task, query, observers, span, metrics })
    }

    pub(crate) fn task(&self) -> &Arc<TaskContext> {
        &self.task
    }

    pub(crate) fn batch_rows(&self) -> usize {
        self.options.batch_rows
    }

    pub(crate) fn batch_bytes(&self) -> usize {
        usize::try_from(self.options.batch_bytes.0).unwrap_or(usize::MAX)
    }

    /// Whether a failure re-runs the whole island rather than the batch that failed.
    pub(crate) fn island_scope(&self) -> bool {
        self.options.fallback_scope == FallbackScope::Island
    }

    /// The device as it is now; a lost one is recreated.
    ///
    /// # Errors
    /// [`GpuError::NoAdapter`] or [`GpuError::DeviceLost`].
    pub(crate) async fn launch(&self) -> GpuResult<LaunchScope> {
        let device = self.device.as_ref().map_err(Clone::clone)?;
        let context = match device.current() {
            Some(context) => context,
            None => {
                // Opening a device takes tens of milliseconds: not on a worker of the runtime.
                let device = Arc::clone(device);
                let opened = SpawnedTask::spawn_blocking(move || device.context()).await;
                opened
                    .map_err(|error| GpuError::Internal(format!("the device was not opened: {error}")))??
            }
        };
        let memory = self
            .memory
            .clone()
            .ok_or_else(|| GpuError::Internal("no memory scope for an open device".to_owned()))?;
        Ok(LaunchScope { context, memory, stats: Arc::clone(&self.metrics.stats) })
    }

    /// The span of this partition's work.
    pub(crate) fn span(&self) -> &tracing::Span {
        &self.span
    }

    /// Counts and reports a fallback; `scope` is what the CPU runs again.
    ///
    /// # Errors
    /// [`GpuError::FallbackForbidden`] under `gpu.fallback = 'error'`; for a device failure, that failure.
    pub(crate) fn fall_back(&self, reason: &FallbackReason, scope: FallbackScope) -> Result<()> {
        self.metrics.fallback(reason.code());
        let first = self.query.fell_back(reason.code());
        self.observers.fell_back(FallbackEvent {
            time: SystemTime::now(),
            session_id: self.task.session_id(),
            query_id: self.query.id(),
            query: self.query.text(),
            node: self.node.clone(),
            scope: match scope {
                FallbackScope::Batch => "batch",
                FallbackScope::Island => "island",
            },
            code: reason.code(),
            message: reason.to_string(),
            forbidden: self.options.fallback == FallbackPolicy::Error,
        });
        match self.options.fallback {
            // One warning a query and kind; the metrics count them all.
            FallbackPolicy::Warn if first => {
                tracing::warn!(node = self.node, %reason, "fell back to the CPU")
            }
            FallbackPolicy::Warn | FallbackPolicy::Silent => {
                tracing::debug!(node = self.node, %reason, "fell back to the CPU");
            }
            FallbackPolicy::Error => {
                let error = match reason {
                    FallbackReason::Device(error) => error.clone(),
                    FallbackReason::ArithmeticFault => {
                        GpuError::FallbackForbidden { node: self.node.clone(), reason: reason.to_string() }
                    }
                };
                return Err(error.into());
            }
        }
        Ok(())
    }
}

/// The adapter that the session asks for.
pub(crate) fn selector(options: &GpuOptions) -> AdapterSelector {
    AdapterSelector { adapter: options.adapter.clone(), allow_software: options.allow_software_adapter }
}

/// The limit without `gpu.memory_limit`: three quarters of the device's memory, or 2 GiB where the adapter does not tell how
/// much it has.
pub fn default_memory_limit(caps: &DeviceCaps) -> u64 {
    caps.memory_bytes.map_or(2 << 30, |bytes| bytes / 4 * 3)
}

/// Whether fewer rows at a time could help against `error`.
pub(crate) fn is_memory_pressure(error: &GpuError) -> bool {
    match error {
        GpuError::OutOfDeviceMemory { .. } | GpuError::AllocationRefused { .. } => true,
        GpuError::Limit { by_rows, .. } => *by_rows,
        _ => false,
    }
}
