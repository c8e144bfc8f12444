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

#[allow(dead_code, reason = "each benchmark uses a part of it")]
mod device;

use std::error::Error;
use std::sync::Arc;

use arrow::array::{ArrayRef, Float32Array, Float64Array, Int64Array};
use criterion::BenchmarkGroup;
use criterion::measurement::WallTime;
use datafusion_wgpu::error::GpuError;
use datafusion_wgpu::kernels::expr::{CompareOp, Expr, ValueType};
use datafusion_wgpu::kernels::program::{Program, Segment};
use datafusion_wgpu::kernels::reduce::{AggregateKind, AggregateSpec, FloatWindows, reduce_in};
use datafusion_wgpu::kernels::reference;

use device::{Device, rows_asked_for, run_cases, scramble};

/// Rows whose answer is compared with the twin's.
const CHECKED: usize = 1 << 14;
/// One binding holds no more of them.
const MOST_ROWS: usize = 1 << 26;

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

/// Times a case whose answer is right.
fn run(
    device: &Device,
    group: &mut BenchmarkGroup<'_, WallTime>,
    case: &Case,
    rows: usize,
) -> Result<(), Box<dyn Error>> {
    let specs = case.specs();
    let head = (case.column)(0, CHECKED.min(rows));
    let windows = FloatWindows::new(&specs);
    windows.sample(&case.program, &specs, &[Arc::clone(&head)], head.len());
    let column = device.upload(rows, &|from, to| Ok((case.column)(from, to)))?;
    let segments = [Segment { columns: vec![Some(column)], rows, tables: Default::default() }];
    let work = |segments: &[Segment]| {
        device.tokio.block_on(reduce_in(&device.scope, &case.program, &specs, segments, &windows))
    };
    let first = [Segment { rows: head.len(), ..segments[0].clone() }];
    let twin = reference::reduce(&case.program, &specs, &[Arc::clone(&head)], head.len());
    if work(&first)? != [twin] {
        return Err(GpuError::Internal(format!("'{}' gives a wrong answer", case.name)).into());
    }
    device.time(group, case.name, (rows, case.floor), || work(&segments).map(drop))
}

fn main() -> Result<(), Box<dyn Error>> {
    let (device, rows) = (Device::open()?, rows_asked_for()?.min(MOST_ROWS));
    run_cases(&device, &Case::all(), |case| case.name, |group, case| run(&device, group, case, rows))
}
