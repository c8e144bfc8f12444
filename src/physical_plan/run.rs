//! What one execution of a GPU node's partition needs: options, device, budget, metrics, and the fallback policy.

use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::SystemTime;

use datafusion::common::Result;
use datafusion::common::runtime::SpawnedTask;
use datafusion::execution::TaskContext;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryLimit, MemoryReservation};

use crate::config::{FallbackPolicy, FallbackScope, GpuOptions};
use crate::error::{GpuError, GpuResult};
use crate::memory::admission::Need;
use crate::memory::budget::{DeviceCache, MemoryScope};
use crate::memory::caps::DeviceCaps;
use crate::memory::launch::LaunchScope;
use crate::memory::runtime::{AdapterSelector, GpuDevice, GpuRuntime};
use crate::observe::{FallbackEvent, Observers};
use datafusion::physical_plan::ExecutionPlan;
use tokio::sync::OnceCell;

use super::exec::GpuExec;
use super::metrics::GpuMetrics;
use super::op::DeviceOp;
use super::query::Query;
use super::retry::is_admitted;

/// Why a batch or an island went to the CPU although it was placed on the GPU.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum FallbackReason {
    /// A live row met an arithmetic fault: the CPU decides between error and result.
    #[error("an expression met a value that may raise, or that kernels leave to the CPU; the CPU decides")]
    ArithmeticFault,
    /// A parameter has no value: whether that is an error depends on whether the CPU asks for it.
    #[error("a constant or subquery could not be computed; the CPU decides")]
    NoParameter,
    /// A function of strings that was not expected to raise did for some value.
    #[error("a function of strings raised, or gave NULL where none may be; the CPU decides")]
    TableRaised,
    /// A string column has so many distinct values that a dictionary does not pay.
    #[error(
        "{distinct} of the first {rows} values of column {column} are distinct, too many to look them up by dictionary"
    )]
    TooManyDistinct {
        /// Name of the column.
        column: String,
        /// Distinct values of the sample.
        distinct: usize,
        /// Rows of the sample.
        rows: usize,
    },
    /// MIN or MAX with GROUP BY over floats of which DataFusion's comparison makes no order.
    #[error("MIN or MAX with GROUP BY met NaN, or both zeros: the answer depends on the order of the rows")]
    FloatOrder,
    /// The rows do not fit the node's schema, such as a NULL where none may be.
    #[error("the rows could not be put together ({message}); the CPU decides")]
    NotAssembled {
        /// Arrow's words.
        message: String,
    },
    /// The query's memory pool has no room for dictionaries and look-up tables.
    #[error("no host memory for look-up tables: {message}")]
    HostMemory {
        /// The pool's words.
        message: String,
    },
    /// The device could not do the work.
    #[error(transparent)]
    Device(#[from] GpuError),
}

impl FallbackReason {
    fn code(&self) -> &'static str {
        match self {
            FallbackReason::ArithmeticFault => "ArithmeticFault",
            FallbackReason::NoParameter => "NoParameter",
            FallbackReason::TableRaised => "TableRaised",
            FallbackReason::TooManyDistinct { .. } => "TooManyDistinct",
            FallbackReason::FloatOrder => "FloatOrder",
            FallbackReason::NotAssembled { .. } => "NotAssembled",
            FallbackReason::HostMemory { .. } => "HostMemory",
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
    replay: AtomicU8,
    /// Host bytes that were kept for a replay.
    kept: AtomicUsize,
    /// Why strings are not looked up by dictionary, once that was decided.
    no_dictionaries: OnceCell<Option<FallbackReason>>,
    /// Operators whose expressions share the node's kernels.
    fused: Vec<Arc<dyn DeviceOp>>,
    pub(crate) metrics: GpuMetrics,
}

/// Values of `RunContext::replay`: nothing decided, the island is not run again, it is.
const UNDECIDED: u8 = 0;
const GIVEN_UP: u8 = 1;
const BEGUN: u8 = 2;

/// Devices that may be lost under a query before the CPU does the rest of it.
const MOST_LOSSES: usize = 3;

/// Host bytes that are held to compute again what the device holds, at most, in a pool without a limit.
const MOST_HELD: usize = 4 << 30;

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
                Some(MemoryScope::new(device.ledger(), format!("{name} of query {}", query.id()), limit))
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
        let fused = fused(node);
        Arc::new(Self {
            node: name,
            options,
            device,
            memory,
            task,
            query,
            observers,
            span,
            replay: AtomicU8::new(UNDECIDED),
            kept: AtomicUsize::new(0),
            no_dictionaries: OnceCell::new(),
            fused,
            metrics,
        })
    }

    /// A context over `device` without a node, for tests.
    #[cfg(test)]
    pub(crate) fn over(device: Arc<GpuDevice>, limit: u64) -> Arc<Self> {
        let query = Query::new(String::new);
        let set = datafusion::physical_plan::metrics::ExecutionPlanMetricsSet::new();
        let metrics = GpuMetrics::new(&set, 0, Arc::clone(&query), false);
        Arc::new(Self {
            node: "test".to_owned(),
            options: GpuOptions::default(),
            memory: Some(MemoryScope::new(device.ledger(), "test", limit)),
            device: Ok(device),
            task: Arc::default(),
            query,
            observers: Arc::default(),
            span: tracing::Span::none(),
            replay: AtomicU8::new(UNDECIDED),
            kept: AtomicUsize::new(0),
            no_dictionaries: OnceCell::new(),
            fused: vec![],
            metrics,
        })
    }

    /// Why strings are not looked up by dictionary, if they are not: decided by whoever comes first, for all batches.
    pub(crate) async fn no_dictionaries(
        &self,
        decide: impl Future<Output = Option<FallbackReason>>,
    ) -> Option<FallbackReason> {
        self.no_dictionaries.get_or_init(|| decide).await.clone()
    }

    pub(crate) fn task(&self) -> &Arc<TaskContext> {
        &self.task
    }

    pub(crate) fn batch_rows(&self) -> usize {
        self.options.batch_rows
    }

    pub(crate) fn batch_bytes(&self) -> u64 {
        self.options.batch_bytes.0
    }

    /// Whether a failure re-runs the whole island rather than the batch that failed.
    pub(crate) fn island_scope(&self) -> bool {
        self.options.fallback_scope == FallbackScope::Island
    }

    /// Decides that a failure re-runs the whole island; false where only the batch that failed can be run again.
    pub(crate) fn begin_replay(&self) -> bool {
        self.island_scope() && self.decide(BEGUN)
    }

    /// Decides the same whatever `gpu.fallback_scope` says, for an island that can always be run again.
    pub(crate) fn begin_again(&self) -> bool {
        self.decide(BEGUN)
    }

    /// Decides that the island is not run again, since there is no memory for what that takes; false when it has begun.
    pub(crate) fn give_up_replay(&self) -> bool {
        self.decide(GIVEN_UP)
    }

    /// The first decision stands; true if it was this one.
    fn decide(&self, decision: u8) -> bool {
        let decided = self.replay.compare_exchange(UNDECIDED, decision, Ordering::AcqRel, Ordering::Acquire);
        decided.is_ok() || decided == Err(decision)
    }

    /// Whether host batches are still of use to a replay.
    pub(crate) fn may_replay(&self) -> bool {
        self.replay.load(Ordering::Acquire) != GIVEN_UP
    }

    /// Whether `bytes` more host memory may be kept for a replay. That is for the rare failure; what the pool has is first of
    /// all for operators that cannot do without.
    pub(crate) fn may_keep(&self, bytes: usize) -> bool {
        let pool = self.task.memory_pool();
        let MemoryLimit::Finite(limit) = pool.memory_limit() else { return true };
        let kept = self.kept.fetch_add(bytes, Ordering::AcqRel).saturating_add(bytes);
        kept <= limit / 4 && pool.reserved().saturating_add(bytes) <= limit / 4 * 3
    }

    /// Whether `bytes` more host memory may be kept beside the `held` that are kept for the same purpose: no more than a share of the
    /// pool, or, where that has no limit, of [`MOST_HELD`].
    pub(crate) fn may_hold(&self, held: usize, bytes: usize) -> bool {
        let pool = self.task.memory_pool();
        let held = held.saturating_add(bytes);
        match pool.memory_limit() {
            MemoryLimit::Finite(limit) => {
                held <= limit / 4 && pool.reserved().saturating_add(bytes) <= limit / 4 * 3
            }
            _ => held <= MOST_HELD,
        }
    }

    /// A reservation for host memory in the query's own pool.
    pub(crate) fn host_memory(&self, what: &str) -> MemoryReservation {
        MemoryConsumer::new(format!("{} {what}", self.node)).register(self.task.memory_pool())
    }

    /// Bytes that all who reserve on the device may hold together.
    pub(crate) fn memory_limit(&self) -> u64 {
        self.memory.as_ref().map_or(u64::MAX, |memory| memory.limit().min(memory.ledger().capacity()))
    }

    /// Lets the device's memory be taken back from `cache` when it is short.
    pub(crate) fn register_cache(&self, cache: Weak<dyn DeviceCache>) {
        if let Some(memory) = &self.memory {
            memory.ledger().register_cache(cache);
        }
    }

    /// Bytes that one kernel may bind at a place; without a device no kernel runs.
    pub(crate) fn max_binding_bytes(&self) -> u64 {
        self.device.as_ref().map_or(u64::MAX, |device| device.caps().max_binding_bytes)
    }

    /// Fewest groups of a batch that are merged on the device; `None` where none are.
    pub(crate) fn merge_groups(&self) -> Option<u64> {
        let groups = u64::try_from(self.options.merge_groups).unwrap_or(u64::MAX);
        (groups > 0).then_some(groups)
    }

    /// Storage buffers that one kernel may bind; without a device no kernel runs.
    pub(crate) fn max_storage_buffers(&self) -> u32 {
        self.device.as_ref().map_or(u32::MAX, |device| device.caps().max_storage_buffers)
    }

    /// Whether other work runs on the device now.
    pub(crate) fn others_run(&self) -> bool {
        self.memory.as_ref().is_some_and(|memory| memory.ledger().works().0 > 0)
    }

    /// Notes that the driver refused memory to a work that was alone on the device.
    pub(crate) fn refused_alone(&self) {
        self.memory.iter().for_each(|memory| memory.ledger().refused_alone());
    }

    /// Whether a work was refused although it was alone, not long ago: that others make room does not help.
    pub(crate) fn alone_is_vain(&self) -> bool {
        self.memory.as_ref().is_some_and(|memory| memory.ledger().alone_is_vain())
    }

    /// Notes that the device of `generation` was lost under the query's work.
    pub(crate) fn lost(&self, generation: u64) {
        self.query.lost(generation);
    }

    /// Why the query's work is left to the CPU from now on, if it is: it may well be what kills the device.
    pub(crate) fn given_up(&self) -> Option<GpuError> {
        let losses = self.query.losses();
        (losses >= MOST_LOSSES).then(|| {
            GpuError::DeviceLost(format!("{losses} times during this query, which does not use it any more"))
        })
    }

    /// The device, once a work with this need is let in; it ends with the last copy of the scope.
    ///
    /// # Errors
    /// Those of [`Self::launch`].
    pub(crate) async fn admit(&self, need: Need) -> GpuResult<LaunchScope> {
        debug_assert!(!is_admitted(), "a work waits for another admission: both could wait forever");
        let memory = match &self.memory {
            None => None,
            Some(memory) => {
                let waited = self.metrics.admission_time.timer();
                let memory = memory.admit(need).await;
                waited.done();
                Some(memory)
            }
        };
        self.launch_in(memory).await
    }

    /// The device as it is now; a lost one is recreated.
    ///
    /// # Errors
    /// [`GpuError::NoAdapter`] or [`GpuError::DeviceLost`].
    pub(crate) async fn launch(&self) -> GpuResult<LaunchScope> {
        self.launch_in(self.memory.clone()).await
    }

    async fn launch_in(&self, memory: Option<MemoryScope>) -> GpuResult<LaunchScope> {
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
        let memory =
            memory.ok_or_else(|| GpuError::Internal("no memory scope for an open device".to_owned()))?;
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
        let (reason, message) = self.explained(reason);
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
            message: message.clone(),
            forbidden: self.options.fallback == FallbackPolicy::Error,
        });
        match self.options.fallback {
            // One warning a query and kind; the metrics count them all.
            FallbackPolicy::Warn if first => {
                tracing::warn!(node = self.node, reason = message, "fell back to the CPU")
            }
            FallbackPolicy::Warn | FallbackPolicy::Silent => {
                tracing::debug!(node = self.node, reason = message, "fell back to the CPU");
            }
            FallbackPolicy::Error => {
                let error = match reason {
                    FallbackReason::Device(error) => error,
                    _ => GpuError::FallbackForbidden { node: self.node.clone(), reason: message },
                };
                return Err(error.into());
            }
        }
        Ok(())
    }
}

impl RunContext {
    /// The reason and its sentence, with the expressions that are computed where one of them is at fault.
    fn explained(&self, reason: &FallbackReason) -> (FallbackReason, String) {
        match reason {
            FallbackReason::Device(GpuError::ShaderRejected { kernel, message }) => {
                let message = format!("{message}; it computes {}", self.computed());
                let reason =
                    FallbackReason::from(GpuError::ShaderRejected { kernel: kernel.clone(), message });
                let sentence = reason.to_string();
                (reason, sentence)
            }
            FallbackReason::ArithmeticFault | FallbackReason::NoParameter | FallbackReason::TableRaised => {
                (reason.clone(), format!("{reason} ({})", self.computed()))
            }
            _ => (reason.clone(), reason.to_string()),
        }
    }

    /// The expressions of the operators that share the node's kernels.
    fn computed(&self) -> String {
        let details = self.fused.iter().map(|op| {
            let details: Vec<_> =
                op.details().iter().map(|(name, value)| format!("{name}={value:.400}")).collect();
            format!("{}: {}", op.name(), details.join(", "))
        });
        details.collect::<Vec<_>>().join("; ")
    }
}

/// The node's operator, and those of the GPU nodes below it that give it lazy batches.
fn fused(node: &GpuExec) -> Vec<Arc<dyn DeviceOp>> {
    let (mut ops, mut node) = (vec![Arc::clone(node.op())], node);
    while node.has_device_input()
        && let [child] = node.children()[..]
        && let Some(below) = GpuExec::find(child)
    {
        ops.push(Arc::clone(below.op()));
        node = below;
    }
    ops
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
