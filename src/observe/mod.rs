//! What queries did on the device, for those who want to know: fallback events, statistics of finished queries, hooks for
//! both, and the last fallbacks for `gpu_fallbacks()`.

use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use parking_lot::{Mutex, RwLock};

#[cfg(test)]
mod tests;

/// Fallbacks that [`Observers::recent_fallbacks`] remembers.
pub const REMEMBERED_FALLBACKS: usize = 256;

/// A running query went to the CPU for a batch or for an island, although it was placed on the GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct FallbackEvent {
    /// When.
    pub time: SystemTime,
    /// Id of the DataFusion session.
    pub session_id: String,
    /// Number of the query within this process, from 1.
    pub query_id: u64,
    /// The query, as SQL made from its optimized plan where that can be written as SQL, else the plan's first line; empty
    /// where another planner was used.
    pub query: Arc<str>,
    /// Plan node and partition, e.g. `GpuAggregateExec[0]`.
    pub node: String,
    /// What runs again: `batch` or `island`.
    pub scope: &'static str,
    /// Code of the reason, e.g. `ArithmeticFault`; the metrics count it as `fallback.<code>`.
    pub code: &'static str,
    /// The reason in words.
    pub message: String,
    /// True when `gpu.fallback = 'error'` made an error of it.
    pub forbidden: bool,
}

/// What one query, the executions of one plan, did on the device.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct QueryStats {
    /// Number of the query within this process, from 1.
    pub query_id: u64,
    /// Id of the DataFusion session.
    pub session_id: String,
    /// The query; see [`FallbackEvent::query`].
    pub query: Arc<str>,
    /// When its first GPU node began.
    pub started: SystemTime,
    /// From then until the last partition of its GPU nodes ended.
    pub elapsed: Duration,
    /// Partitions of GPU nodes that ran.
    pub partitions: u64,
    /// Uploads that the device answered.
    pub gpu_batches: u64,
    /// Uploads, or islands, that the CPU answered.
    pub cpu_batches: u64,
    /// Bytes written to the device by uploads.
    pub uploaded_bytes: u64,
    /// Host time of the uploads, summed over partitions.
    pub upload_time: Duration,
    /// Bytes read back.
    pub downloaded_bytes: u64,
    /// Time from submission to the bytes, kernels included, summed over partitions.
    pub read_back_time: Duration,
    /// Device time of the kernels; `None` where the adapter has no timestamp queries.
    pub kernel_time: Option<Duration>,
    /// Dispatches recorded.
    pub dispatches: u64,
    /// Times the host waited for the device.
    pub waits: u64,
    /// Pipelines compiled for this query, not found in the cache.
    pub pipelines_compiled: u64,
    /// Host time of those compilations.
    pub compile_time: Duration,
    /// The most device memory that the query's nodes held at a time.
    pub peak_device_bytes: u64,
    /// Fallbacks by code.
    pub fallbacks: Vec<(&'static str, u64)>,
}

type Hook<E> = Arc<dyn Fn(&E) + Send + Sync>;

/// Hooks for one kind of event.
struct Hooks<E> {
    registered: RwLock<Vec<(u64, Hook<E>)>>,
}

impl<E> Default for Hooks<E> {
    fn default() -> Self {
        Self { registered: RwLock::new(vec![]) }
    }
}

impl<E> Hooks<E> {
    fn call(&self, event: &E) {
        // Called without the lock: a hook may register or drop hooks.
        let hooks: Vec<Hook<E>> = self.registered.read().iter().map(|(_, hook)| Arc::clone(hook)).collect();
        for hook in hooks {
            if catch_unwind(AssertUnwindSafe(|| hook(event))).is_err() {
                tracing::error!("a hook of datafusion-wgpu panicked; the query goes on");
            }
        }
    }
}

/// The hooks and the last fallbacks of a runtime.
#[derive(Default)]
pub struct Observers {
    next: AtomicU64,
    fallbacks: Hooks<FallbackEvent>,
    queries: Hooks<QueryStats>,
    recent: Mutex<VecDeque<FallbackEvent>>,
}

impl fmt::Debug for Observers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observers")
            .field("fallback_hooks", &self.fallbacks.registered.read().len())
            .field("query_hooks", &self.queries.registered.read().len())
            .finish_non_exhaustive()
    }
}

/// A registered hook. Dropping it takes the hook away; [`Subscription::forever`] leaves it.
#[must_use = "dropping a subscription takes its hook away; `forever` leaves it"]
pub struct Subscription {
    cancel: Option<Box<dyn FnOnce() + Send + Sync>>,
}

impl Subscription {
    /// Leaves the hook in place as long as the runtime lives.
    pub fn forever(mut self) {
        self.cancel = None;
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        if let Some(cancel) = self.cancel.take() {
            cancel();
        }
    }
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Subscription")
    }
}

impl Observers {
    /// Calls `hook` for each fallback, from the thread that meets it and before the CPU takes over: it should be quick. A
    /// panic in it is logged.
    pub fn on_fallback(
        self: &Arc<Self>,
        hook: impl Fn(&FallbackEvent) + Send + Sync + 'static,
    ) -> Subscription {
        self.subscribe(Arc::new(hook), |observers| &observers.fallbacks)
    }

    /// Calls `hook` once for each query that ran a GPU node, when its plan and its streams are gone, whether it ended,
    /// failed or was cancelled. A plan that is kept is told of when it is dropped, all its executions together. The hook runs
    /// while the last of them is dropped, often on a worker of the async runtime: it should be quick and must not block. A
    /// panic in it is logged.
    pub fn on_query(self: &Arc<Self>, hook: impl Fn(&QueryStats) + Send + Sync + 'static) -> Subscription {
        self.subscribe(Arc::new(hook), |observers| &observers.queries)
    }

    /// The last fallbacks, at most [`REMEMBERED_FALLBACKS`], the latest first.
    pub fn recent_fallbacks(&self) -> Vec<FallbackEvent> {
        let mut recent: Vec<FallbackEvent> = self.recent.lock().iter().rev().cloned().collect();
        // Several threads may have noted theirs in another order than they met them.
        recent.sort_by_key(|event| std::cmp::Reverse(event.time));
        recent
    }

    fn subscribe<E: 'static>(
        self: &Arc<Self>,
        hook: Hook<E>,
        hooks: fn(&Observers) -> &Hooks<E>,
    ) -> Subscription {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        hooks(self).registered.write().push((id, hook));
        let observers = Arc::downgrade(self);
        let cancel = move || {
            if let Some(observers) = observers.upgrade() {
                hooks(&observers).registered.write().retain(|(known, _)| *known != id);
            }
        };
        Subscription { cancel: Some(Box::new(cancel)) }
    }

    pub(crate) fn fell_back(&self, event: FallbackEvent) {
        self.fallbacks.call(&event);
        let mut recent = self.recent.lock();
        if recent.len() == REMEMBERED_FALLBACKS {
            recent.pop_front();
        }
        recent.push_back(event);
    }

    /// Tells the hooks of an ended query; its statistics are made only when there are hooks.
    pub(crate) fn query_ended(&self, stats: impl FnOnce() -> QueryStats) {
        if !self.queries.registered.read().is_empty() {
            self.queries.call(&stats());
        }
    }
}
