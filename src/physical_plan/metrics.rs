//! Metrics of GPU nodes, as EXPLAIN ANALYZE shows them.

use std::sync::Arc;
use std::time::Duration;

use datafusion::physical_plan::metrics::{
    BaselineMetrics, Count, ExecutionPlanMetricsSet, MetricBuilder, Time,
};
use parking_lot::Mutex;

use crate::memory::stats::LaunchStats;

/// Metrics of one partition of a GPU node.
///
/// `gpu_batches` counts batches whose answer came from the device, `cpu_batches` those that the CPU replayed; each
/// fallback is counted under `fallback.<reason>` too.
pub(crate) struct GpuMetrics {
    /// DataFusion's usual metrics.
    pub baseline: BaselineMetrics,
    /// Work that the kernels and transfers of this partition did.
    pub stats: Arc<LaunchStats>,
    set: ExecutionPlanMetricsSet,
    partition: usize,
    gpu_batches: Count,
    cpu_batches: Count,
    fallbacks: Mutex<Vec<(&'static str, Count)>>,
    published: Published,
}

/// One of the launch statistics.
type Statistic = fn(&LaunchStats) -> u64;

/// Where the launch statistics go when the partition ends.
struct Published {
    counters: Vec<(Count, Statistic)>,
    times: Vec<(Time, Statistic)>,
}

impl GpuMetrics {
    pub(crate) fn new(set: &ExecutionPlanMetricsSet, partition: usize) -> Self {
        let count = |name: &'static str| MetricBuilder::new(set).counter(name, partition);
        let time = |name: &'static str| MetricBuilder::new(set).subset_time(name, partition);
        let counters: Vec<(Count, Statistic)> = vec![
            (count("bytes_uploaded"), |s| s.snapshot().uploaded_bytes),
            (count("bytes_downloaded"), |s| s.snapshot().downloaded_bytes),
            (count("dispatches"), |s| s.snapshot().dispatches),
            (count("waits"), |s| s.snapshot().waits),
            (count("pipelines_compiled"), |s| s.snapshot().pipelines_compiled),
        ];
        let times: Vec<(Time, Statistic)> = vec![
            (time("upload_time"), |s| s.snapshot().upload_ns),
            (time("compile_time"), |s| s.snapshot().compile_ns),
            (time("kernel_time"), |s| s.snapshot().kernel_ns),
            (time("read_back_time"), |s| s.snapshot().readback_ns),
        ];
        Self {
            baseline: BaselineMetrics::new(set, partition),
            stats: Arc::new(LaunchStats::default()),
            gpu_batches: count("gpu_batches"),
            cpu_batches: count("cpu_batches"),
            fallbacks: Mutex::new(vec![]),
            set: set.clone(),
            partition,
            published: Published { counters, times },
        }
    }

    /// Counts a batch that the device answered.
    pub(crate) fn gpu_batch(&self) {
        self.gpu_batches.add(1);
    }

    /// Counts a batch that the CPU answered.
    pub(crate) fn cpu_batch(&self) {
        self.cpu_batches.add(1);
    }

    /// Counts a fallback; true for the first of its kind.
    pub(crate) fn fallback(&self, code: &'static str) -> bool {
        let mut fallbacks = self.fallbacks.lock();
        if let Some((_, count)) = fallbacks.iter().find(|(known, _)| *known == code) {
            count.add(1);
            return false;
        }
        let count = MetricBuilder::new(&self.set).counter(format!("fallback.{code}"), self.partition);
        count.add(1);
        fallbacks.push((code, count));
        true
    }
}

impl Drop for GpuMetrics {
    fn drop(&mut self) {
        for (count, value) in &self.published.counters {
            count.add(usize::try_from(value(&self.stats)).unwrap_or(usize::MAX));
        }
        for (time, value) in &self.published.times {
            time.add_duration(Duration::from_nanos(value(&self.stats)));
        }
    }
}
