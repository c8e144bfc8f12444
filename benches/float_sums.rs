//! Exact sums of floats over resident rows, beside other reductions of the same bytes. Criterion divides the bytes that each cannot do without
//! reading by the time; compare the rate with the adapter's bandwidth.
//!
//! `cargo bench --bench float_sums`; `ROWS` (default 2^20) sets the rows, at most 2^26, `ADAPTER` the adapter, and an argument which cases run.
//! Times are the device's own where it has timestamps (`kernel` in the name), else wall times of a launch and its wait. Before it is
//! timed, each case reduces its first rows, and the answer is compared with that of the CPU twin.
//!
//! | case | floor, bytes a row |
//! |---|---|
//! | sum and average of f64: prices; with 10 % NULL; below a predicate on the same column | 8, and a bit for NULL |
//! | the same with 5 % of the values, or all of them, outside of the window | 8 |
//! | sum of f32 | 4 |
//! | sum of i64, minimum of f64, for comparison | 8 |

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use arrow::array::{ArrayRef, Float32Array, Float64Array, Int64Array, RecordBatch};
use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion, Throughput};
use datafusion_wgpu::error::{GpuError, GpuResult};
use datafusion_wgpu::kernels::expr::{CompareOp, Expr, ValueType};
use datafusion_wgpu::kernels::program::{Program, Segment};
use datafusion_wgpu::kernels::reduce::{AggregateKind, AggregateSpec, FloatWindows, reduce_in};
use datafusion_wgpu::kernels::reference;
use datafusion_wgpu::memory::{AdapterSelector, GpuRuntime, LaunchScope, LaunchStats, MemoryScope, upload};

/// Rows whose answer is compared with the twin's.
const CHECKED: usize = 1 << 14;
/// Rows that are made by a thread at a time.
const PART: usize = 1 << 22;
/// One binding holds no more of them.
const MOST_ROWS: usize = 1 << 26;

/// A number that depends on the row and looks random.
fn scramble(row: usize, salt: u64) -> u64 {
    let z = (row as u64 ^ salt).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z ^ (z >> 32)
}

/// A price of up to 100,000.
fn price(row: usize) -> f64 {
    (scramble(row, 3) % 10_000_000) as f64 / 100.0
}

type Column = Box<dyn Fn(usize, usize) -> ArrayRef + Send + Sync>;

fn doubles(make: impl Fn(usize) -> Option<f64> + Send + Sync + 'static) -> Column {
    Box::new(move |from, to| Arc::new((from..to).map(&make).collect::<Float64Array>()))
}

/// One column, and what is done with it.
struct Case {
    name: &'static str,
    /// Bytes a row.
    floor: u64,
    ty: ValueType,
    column: Column,
    program: Program,
    kinds: Vec<AggregateKind>,
}

impl Case {
    fn of(name: &'static str, ty: ValueType, column: Column, kinds: Vec<AggregateKind>) -> Self {
        let floor = if ty == ValueType::Float32 { 4 } else { 8 };
        Case { name, floor, ty, column, program: Program::default(), kinds }
    }

    fn all() -> Vec<Case> {
        let (double, sum) = (ValueType::Float64, AggregateKind::SumFloat);
        let any = |row: usize| f64::from_bits(scramble(row, 5) & !(1 << 62));
        let x = || Arc::new(Expr::Column { index: 0, ty: double });
        let more = Arc::new(Expr::Param { slot: 0, ty: double });
        let selection = Some(Arc::new(Expr::Compare { op: CompareOp::Gt, left: x(), right: more }));
        let params = vec![(double, Some(i128::from(5e4f64.to_bits())))];
        let filtered = Case::of("f64, half of them", double, doubles(|row| Some(price(row))), vec![sum]);
        vec![
            Case::of("f64", double, doubles(|row| Some(price(row))), vec![sum, sum]),
            Case::of("f64, 10 % NULL", double, doubles(|row| (row % 10 != 3).then(|| price(row))), vec![sum]),
            Case { program: Program { selection, params }, ..filtered },
            Case::of(
                "f64, 5 % outside",
                double,
                doubles(move |row| Some(if row % 20 == 7 { any(row) } else { price(row) })),
                vec![sum],
            ),
            Case::of("f64, all exponents", double, doubles(move |row| Some(any(row))), vec![sum]),
            Case::of(
                "f32",
                ValueType::Float32,
                Box::new(|from, to| {
                    Arc::new((from..to).map(|row| Some(price(row) as f32)).collect::<Float32Array>())
                }),
                vec![sum],
            ),
            Case::of(
                "i64",
                ValueType::Int64,
                Box::new(|from, to| {
                    Arc::new(Int64Array::from_iter_values((from..to).map(|row| scramble(row, 3) as i64)))
                }),
                vec![AggregateKind::SumInt],
            ),
            Case::of("minimum of f64", double, doubles(|row| Some(price(row))), vec![AggregateKind::Min]),
        ]
    }

    fn specs(&self) -> Vec<AggregateSpec> {
        let arg = Some(Arc::new(Expr::Column { index: 0, ty: self.ty }));
        self.kinds.iter().map(|kind| AggregateSpec { kind: *kind, arg: arg.clone(), filter: None }).collect()
    }
}

/// The device, and who waits for it.
struct Bench {
    scope: LaunchScope,
    tokio: tokio::runtime::Runtime,
    timed: bool,
    rows: usize,
}

impl Bench {
    fn new(rows: usize) -> Result<(Bench, String), Box<dyn Error>> {
        let adapter = std::env::var("ADAPTER").unwrap_or_default();
        let device = GpuRuntime::new().select(&AdapterSelector { adapter, allow_software: true })?;
        let scope = LaunchScope {
            context: device.context()?,
            memory: MemoryScope::new(device.ledger(), "bench", u64::MAX),
            stats: Arc::new(LaunchStats::default()),
        };
        let tokio = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        Ok((Bench { scope, tokio, timed: device.caps().timestamps, rows }, device.caps().name.clone()))
    }

    /// All rows on the device. Parts are made by several threads.
    fn upload(&self, case: &Case) -> Result<Segment, Box<dyn Error>> {
        let starts: Vec<usize> = (0..self.rows).step_by(PART).collect();
        let parts: Result<Vec<RecordBatch>, Box<dyn Error>> = std::thread::scope(|scope| {
            let make = |from: usize| scope.spawn(move || (case.column)(from, (from + PART).min(self.rows)));
            let parts: Vec<_> = starts.into_iter().map(make).collect();
            let batch = |array: ArrayRef| Ok(RecordBatch::try_from_iter([("x", array)])?);
            parts.into_iter().map(|part| batch(part.join().map_err(|_| "a thread died")?)).collect()
        });
        let columns = self.tokio.block_on(upload(&self.scope, &parts?, &[0]))?;
        Ok(Segment {
            columns: columns.into_iter().map(Some).collect(),
            rows: self.rows,
            tables: Default::default(),
        })
    }

    /// Times a case whose answer is right.
    fn run(&self, group: &mut BenchmarkGroup<'_, WallTime>, case: &Case) -> Result<(), Box<dyn Error>> {
        let specs = case.specs();
        let head = (case.column)(0, CHECKED.min(self.rows));
        let windows = FloatWindows::new(&specs);
        windows.sample(&case.program, &specs, &[Arc::clone(&head)], head.len());
        let segments = [self.upload(case)?];
        let work = |segments: &[Segment]| {
            self.tokio.block_on(reduce_in(&self.scope, &case.program, &specs, segments, &windows))
        };
        let first = [Segment { rows: head.len(), ..segments[0].clone() }];
        let twin = reference::reduce(&case.program, &specs, &[Arc::clone(&head)], head.len());
        if work(&first)? != [twin] {
            return Err(GpuError::Internal(format!("'{}' gives a wrong answer", case.name)).into());
        }
        let (mut failed, mut times) = (None, vec![]);
        let once = || -> GpuResult<Duration> {
            let kernel = || self.scope.stats.kernel_ns.load(Ordering::Relaxed);
            let (before, started) = (kernel(), Instant::now());
            work(&segments)?;
            let wall = started.elapsed();
            Ok(if self.timed { Duration::from_nanos(kernel() - before) } else { wall })
        };
        let unit = if self.timed { "kernel" } else { "wall" };
        group.throughput(Throughput::Bytes(self.rows as u64 * case.floor));
        group.bench_function(BenchmarkId::new(format!("{}, {unit}", case.name), self.rows), |b| {
            b.iter_custom(|count| {
                let runs = (0..count).map(|_| once());
                let sum = runs.filter_map(|run| run.map_err(|error| failed = Some(error)).ok());
                // Criterion divides by it.
                sum.inspect(|time| times.push(*time)).sum::<Duration>().max(Duration::from_nanos(1))
            });
        });
        times.sort();
        if let Some(median) = times.get(times.len() / 2) {
            let rate = self.rows as f64 / median.as_secs_f64() / 1e9;
            eprintln!("{}: {rate:.3} Grows/s, {:.1} GB/s", case.name, rate * case.floor as f64);
        }
        failed.map_or(Ok(()), |error| Err(error.into()))
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let rows: usize = std::env::var("ROWS").ok().map_or(Ok(1 << 20), |rows| rows.parse())?;
    let wanted: Vec<String> =
        std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let (bench, adapter) = Bench::new(rows.min(MOST_ROWS))?;
    let mut criterion = Criterion::default().sample_size(10).configure_from_args();
    let mut group = criterion.benchmark_group(adapter);
    let cases = Case::all();
    // Rows are made only for what is asked for.
    for case in cases.iter().filter(|case| wanted.iter().all(|wanted| case.name.contains(wanted.as_str()))) {
        bench.run(&mut group, case)?;
    }
    group.finish();
    criterion.final_summary();
    Ok(())
}
