//! One query as seen from its GPU nodes: its number, its text, and the sum of what they did.

use std::fmt;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use datafusion::execution::TaskContext;
use parking_lot::Mutex;

use crate::memory::budget::PeakMeter;
use crate::memory::stats::{LaunchSnapshot, LaunchStats};
use crate::observe::{Observers, QueryStats};

/// Numbers queries within the process.
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// How a query's text is made when somebody asks for it.
type Describe = Box<dyn Fn() -> String + Send + Sync>;

/// A query, shared by the GPU nodes of one plan and by their streams. When the last of them is gone, the query has ended
/// and its statistics go to the hooks.
pub struct Query {
    describe: Describe,
    text: OnceLock<Arc<str>>,
    started: OnceLock<Started>,
    totals: Mutex<Totals>,
    memory: Arc<PeakMeter>,
}

/// Set when the first GPU node is executed.
struct Started {
    id: u64,
    session_id: String,
    at: Instant,
    time: SystemTime,
    span: tracing::Span,
    observers: Arc<Observers>,
}

#[derive(Default)]
struct Totals {
    partitions: u64,
    /// When the last partition ended so far.
    ended: Option<Instant>,
    gpu_batches: u64,
    cpu_batches: u64,
    timestamps: bool,
    launches: LaunchSnapshot,
    fallbacks: Vec<(&'static str, u64)>,
    /// Device generations that were lost under the query's work.
    lost: Vec<u64>,
}

impl Query {
    /// A query whose text `describe` gives; it is called at most once.
    pub fn new(describe: impl Fn() -> String + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self {
            describe: Box::new(describe),
            text: OnceLock::new(),
            started: OnceLock::new(),
            totals: Mutex::default(),
            memory: Arc::default(),
        })
    }

    /// The query in words; empty where its planner is not known.
    pub fn text(&self) -> Arc<str> {
        Arc::clone(self.text.get_or_init(|| (self.describe)().into()))
    }

    /// Notes that a node is executed.
    pub(crate) fn begin(&self, task: &TaskContext, observers: &Arc<Observers>) {
        self.started.get_or_init(|| {
            let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
            let span = tracing::debug_span!(
                target: "datafusion_wgpu::query",
                parent: None,
                "gpu_query",
                query_id = id,
                query = tracing::field::Empty
            );
            if !span.is_disabled() {
                span.record("query", &*self.text());
            }
            Started {
                id,
                session_id: task.session_id(),
                at: Instant::now(),
                time: SystemTime::now(),
                span,
                observers: Arc::clone(observers),
            }
        });
    }

    /// The number of the query; 0 before its first node is executed.
    pub fn id(&self) -> u64 {
        self.started.get().map_or(0, |started| started.id)
    }

    /// The span that the spans of the query's nodes are children of.
    pub(crate) fn span(&self) -> tracing::Span {
        self.started.get().map_or_else(tracing::Span::none, |started| started.span.clone())
    }

    /// Measures the device memory that all nodes of the query hold together.
    pub(crate) fn memory(&self) -> &Arc<PeakMeter> {
        &self.memory
    }

    /// Counts a fallback; true for the query's first of its kind.
    pub(crate) fn fell_back(&self, code: &'static str) -> bool {
        let mut totals = self.totals.lock();
        if let Some((_, count)) = totals.fallbacks.iter_mut().find(|(known, _)| *known == code) {
            *count += 1;
            return false;
        }
        totals.fallbacks.push((code, 1));
        true
    }

    /// Notes that device generation `generation` was lost under the query's work.
    pub(crate) fn lost(&self, generation: u64) {
        let mut totals = self.totals.lock();
        if !totals.lost.contains(&generation) {
            totals.lost.push(generation);
        }
    }

    /// How many device generations were lost under the query's work.
    pub(crate) fn losses(&self) -> usize {
        self.totals.lock().lost.len()
    }

    /// Adds what a partition of a node did.
    pub(crate) fn add(&self, gpu_batches: u64, cpu_batches: u64, stats: &LaunchStats, timestamps: bool) {
        let mut totals = self.totals.lock();
        totals.partitions += 1;
        totals.ended = Some(Instant::now());
        totals.gpu_batches += gpu_batches;
        totals.cpu_batches += cpu_batches;
        totals.timestamps |= timestamps;
        totals.launches.add(&stats.snapshot());
    }
}

impl fmt::Debug for Query {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Query").field("id", &self.id()).finish_non_exhaustive()
    }
}

impl Drop for Query {
    fn drop(&mut self) {
        let Some(started) = self.started.get() else { return };
        let totals = std::mem::take(self.totals.get_mut());
        let elapsed = totals.ended.map_or_else(|| started.at.elapsed(), |at| at.duration_since(started.at));
        let launches = &totals.launches;
        started.observers.query_ended(|| QueryStats {
            query_id: started.id,
            session_id: started.session_id.clone(),
            query: self.text(),
            started: started.time,
            elapsed,
            partitions: totals.partitions,
            gpu_batches: totals.gpu_batches,
            cpu_batches: totals.cpu_batches,
            uploaded_bytes: launches.uploaded_bytes,
            upload_time: Duration::from_nanos(launches.upload_ns),
            downloaded_bytes: launches.downloaded_bytes,
            read_back_time: Duration::from_nanos(launches.readback_ns),
            kernel_time: totals.timestamps.then(|| Duration::from_nanos(launches.kernel_ns)),
            dispatches: launches.dispatches,
            waits: launches.waits,
            pipelines_compiled: launches.pipelines_compiled,
            compile_time: Duration::from_nanos(launches.compile_ns),
            peak_device_bytes: self.memory.peak(),
            fallbacks: totals.fallbacks,
        });
    }
}
