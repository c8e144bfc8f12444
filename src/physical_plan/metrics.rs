//! Metrics of GPU nodes, as EXPLAIN ANALYZE shows them.

use std::sync::Arc;
use std::time::Duration;

use datafusion::physical_plan::metrics::{
    BaselineMetrics, Count, ExecutionPlanMetricsSet, Gauge, MetricBuilder, MetricCategory, Time,
};
use parking_lot::Mutex;

use crate::memory::budget::PeakMeter;
use crate::memory::stats::LaunchStats;

use super::query::Query;

/// Metrics of one partition of a GPU node.
///
/// `gpu_batches` counts batches whose answer came from the device, `cpu_batches` those that the CPU replayed; each
/// fallback is counted under `fallback.<reason>` too; `batch_splits` counts batches that were worked on in halves because
/// memory was short, and `batch_retries` those that were worked on again as they were: alone, or on a new device. `kernel_time` is there where the adapter has timestamp queries;
/// `peak_device_bytes` is the most device memory that the partition held at a time, summed over partitions by EXPLAIN
/// ANALYZE.
pub(crate) struct GpuMetrics {
    /// DataFusion's usual metrics.
    pub baseline: BaselineMetrics,
    /// Work that the kernels and transfers of this partition did.
    pub stats: Arc<LaunchStats>,
    set: ExecutionPlanMetricsSet,
    partition: usize,
    gpu_batches: Count,
    cpu_batches: Count,
    batch_splits: Count,
    batch_retries: Count,
    /// Waiting until the device's memory had room beside other work.
    pub admission_time: Time,
    fallbacks: Mutex<Vec<(&'static str, Count)>>,
    /// What only some operators count.
    others: Mutex<Vec<(&'static str, Count)>>,
    memory: Arc<PeakMeter>,
    peak: Gauge,
    query: Arc<Query>,
    timestamps: bool,
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
    /// Metrics of `partition` in `set`, which are added to those of `query`; `timestamps` tells whether kernels are timed.
    pub(crate) fn new(
        set: &ExecutionPlanMetricsSet,
        partition: usize,
        query: Arc<Query>,
        timestamps: bool,
    ) -> Self {
        let count = |name: &'static str| MetricBuilder::new(set).counter(name, partition);
        let bytes = |name: &'static str| {
            MetricBuilder::new(set).with_category(MetricCategory::Bytes).counter(name, partition)
        };
        let time = |name: &'static str| MetricBuilder::new(set).subset_time(name, partition);
        let counters: Vec<(Count, Statistic)> = vec![
            (bytes("bytes_uploaded"), |s| s.snapshot().uploaded_bytes),
            (bytes("bytes_downloaded"), |s| s.snapshot().downloaded_bytes),
            (count("dispatches"), |s| s.snapshot().dispatches),
            (count("waits"), |s| s.snapshot().waits),
            (count("pipelines_compiled"), |s| s.snapshot().pipelines_compiled),
        ];
        let mut times: Vec<(Time, Statistic)> = vec![
            (time("upload_time"), |s| s.snapshot().upload_ns),
            (time("compile_time"), |s| s.snapshot().compile_ns),
            (time("read_back_time"), |s| s.snapshot().readback_ns),
        ];
        if timestamps {
            times.push((time("kernel_time"), |s| s.snapshot().kernel_ns));
        }
        Self {
            baseline: BaselineMetrics::new(set, partition),
            stats: Arc::new(LaunchStats::default()),
            gpu_batches: count("gpu_batches"),
            cpu_batches: count("cpu_batches"),
            batch_splits: count("batch_splits"),
            batch_retries: count("batch_retries"),
            admission_time: time("admission_time"),
            fallbacks: Mutex::new(vec![]),
            others: Mutex::new(vec![]),
            memory: Arc::default(),
            peak: MetricBuilder::new(set).peak_memory_usage("peak_device_bytes", partition),
            query,
            timestamps,
            set: set.clone(),
            partition,
            published: Published { counters, times },
        }
    }

    /// Meters of the device memory that this partition and its query hold.
    pub(crate) fn memory_meters(&self) -> Vec<Arc<PeakMeter>> {
        vec![Arc::clone(&self.memory), Arc::clone(self.query.memory())]
    }

    /// Counts a batch that the device answered.
    pub(crate) fn gpu_batch(&self) {
        self.gpu_batches.add(1);
    }

    /// Counts a batch that the CPU answered.
    pub(crate) fn cpu_batch(&self) {
        self.cpu_batches.add(1);
    }

    /// Counts a batch that is worked on in halves.
    pub(crate) fn batch_split(&self) {
        self.batch_splits.add(1);
    }

    /// Counts a batch that is worked on again.
    pub(crate) fn batch_retry(&self) {
        self.batch_retries.add(1);
    }

    /// Counts a fallback.
    pub(crate) fn fallback(&self, code: &'static str) {
        self.count(&self.fallbacks, code, 1, || format!("fallback.{code}"));
    }

    /// Adds to a counter of the operator's own.
    pub(crate) fn add(&self, name: &'static str, number: usize) {
        self.count(&self.others, name, number, || name.to_owned());
    }

    fn count(
        &self,
        counts: &Mutex<Vec<(&'static str, Count)>>,
        key: &'static str,
        number: usize,
        name: impl Fn() -> String,
    ) {
        let mut counts = counts.lock();
        if let Some((_, count)) = counts.iter().find(|(known, _)| *known == key) {
            count.add(number);
            return;
        }
        let count = MetricBuilder::new(&self.set).counter(name(), self.partition);
        count.add(number);
        counts.push((key, count));
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
        // The operator's own time as seen from the host: what it waited for its input is not in it.
        let work = self.stats.snapshot();
        let busy = work.upload_ns + work.compile_ns + work.readback_ns;
        self.baseline.elapsed_compute().add_duration(Duration::from_nanos(busy));
        self.peak.set(usize::try_from(self.memory.peak()).unwrap_or(usize::MAX));
        let batches = |count: &Count| count.value() as u64;
        self.query.add(batches(&self.gpu_batches), batches(&self.cpu_batches), &self.stats, self.timestamps);
    }
}
