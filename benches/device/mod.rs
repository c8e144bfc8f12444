//! The device that benchmarks run on, the rows on it, and how they are timed there.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use arrow::array::{ArrayRef, RecordBatch};
use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion, Throughput};
use datafusion_wgpu::error::GpuResult;
use datafusion_wgpu::memory::column::DeviceColumn;
use datafusion_wgpu::memory::{AdapterSelector, GpuRuntime, LaunchScope, LaunchStats, MemoryScope, upload};

/// Rows that are made by a thread at a time.
const PART: usize = 1 << 22;

pub type Outcome<T> = Result<T, Box<dyn Error>>;

/// A number that depends on the row and looks random.
pub fn scramble(row: usize, salt: u64) -> u64 {
    let z = (row as u64 ^ salt).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z ^ (z >> 32)
}

/// The device, and who waits for it.
pub struct Device {
    pub scope: LaunchScope,
    pub tokio: tokio::runtime::Runtime,
    pub name: String,
    /// Whether it has times of its own.
    timed: bool,
}

impl Device {
    /// That of the variable `ADAPTER`, or the best.
    pub fn open() -> Outcome<Self> {
        let adapter = std::env::var("ADAPTER").unwrap_or_default();
        let device = GpuRuntime::new().select(&AdapterSelector { adapter, allow_software: true })?;
        let scope = LaunchScope {
            context: device.context()?,
            memory: MemoryScope::new(device.ledger(), "bench", u64::MAX),
            stats: Arc::new(LaunchStats::default()),
        };
        let tokio = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        let (name, timed) = (device.caps().name.clone(), device.caps().timestamps);
        Ok(Self { scope, tokio, name, timed })
    }

    /// So many rows of a column on the device. Parts are made by several threads.
    pub fn upload(
        &self,
        rows: usize,
        column: &(dyn Fn(usize, usize) -> Result<ArrayRef, arrow::error::ArrowError> + Sync),
    ) -> Outcome<DeviceColumn> {
        let starts: Vec<usize> = (0..rows).step_by(PART).collect();
        let parts: Result<Vec<RecordBatch>, String> = std::thread::scope(|scope| {
            let make = |from: usize| {
                scope.spawn(move || {
                    let array = column(from, (from + PART).min(rows)).map_err(|e| e.to_string())?;
                    RecordBatch::try_from_iter([("column", array)]).map_err(|e| e.to_string())
                })
            };
            let parts: Vec<_> = starts.into_iter().map(make).collect();
            parts.into_iter().map(|part| part.join().map_err(|_| "a thread died".to_owned())?).collect()
        });
        let columns = self.tokio.block_on(upload(&self.scope, &parts?, &[0]))?;
        Ok(columns.into_iter().next().ok_or("nothing was uploaded")?)
    }

    /// Times `work` over `rows` rows, of each of which it cannot do without `floor` bytes: on the device's clock where it has one, else
    /// with its waits.
    pub fn time(
        &self,
        group: &mut BenchmarkGroup<'_, WallTime>,
        name: &str,
        (rows, floor): (usize, u64),
        work: impl Fn() -> GpuResult<()>,
    ) -> Outcome<()> {
        let (mut failed, mut times) = (None, vec![]);
        let once = || -> GpuResult<Duration> {
            let kernel = || self.scope.stats.kernel_ns.load(Ordering::Relaxed);
            let (before, started) = (kernel(), Instant::now());
            work()?;
            let wall = started.elapsed();
            Ok(if self.timed { Duration::from_nanos(kernel() - before) } else { wall })
        };
        let unit = if self.timed { "kernel" } else { "wall" };
        let elements = rows as u64;
        group.throughput(Throughput::ElementsAndBytes { elements, bytes: elements * floor });
        group.bench_function(BenchmarkId::new(format!("{name}, {unit}"), rows), |b| {
            b.iter_custom(|count| {
                let runs = (0..count).map(|_| once());
                let sum = runs.filter_map(|run| run.map_err(|error| failed = Some(error)).ok());
                // Criterion divides by it.
                sum.inspect(|time| times.push(*time)).sum::<Duration>().max(Duration::from_nanos(1))
            });
        });
        times.sort();
        if let Some(median) = times.get(times.len() / 2) {
            let rate = rows as f64 / median.as_secs_f64() / 1e9;
            eprintln!("{name}: {rate:.3} Grows/s, {:.1} GB/s", rate * floor as f64);
        }
        failed.map_or(Ok(()), |error| Err(error.into()))
    }
}

/// Rows of a case: those of the variable `ROWS`, or 2^20.
pub fn rows_asked_for() -> Outcome<usize> {
    Ok(std::env::var("ROWS").ok().map_or(Ok(1 << 20), |rows| rows.parse())?)
}

/// Runs those of `cases` whose names contain every argument, so that rows are made only for what is asked for.
pub fn run_cases<C>(
    device: &Device,
    cases: &[C],
    name: impl Fn(&C) -> &str,
    run: impl Fn(&mut BenchmarkGroup<'_, WallTime>, &C) -> Outcome<()>,
) -> Outcome<()> {
    let wanted: Vec<String> =
        std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let mut criterion = Criterion::default().sample_size(10).configure_from_args();
    let mut group = criterion.benchmark_group(device.name.clone());
    for case in cases.iter().filter(|case| wanted.iter().all(|wanted| name(case).contains(wanted.as_str()))) {
        run(&mut group, case)?;
    }
    group.finish();
    criterion.final_summary();
    Ok(())
}
