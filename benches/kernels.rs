//! Kernels over columns that are on the device already, each with its floor: the bytes that it has to read.
//!
//! `cargo bench --bench kernels`; `ROWS` (default 2^22) sets the rows, `ADAPTER` the adapter. Times are wall times of one
//! launch and its wait, so small inputs show the cost of a wait rather than of the kernel.

use std::error::Error;
use std::hint::black_box;
use std::sync::Arc;

use arrow::array::{ArrayRef, Date32Array, Decimal128Array, Int64Array, RecordBatch};
use criterion::{BenchmarkId, Criterion, Throughput};
use datafusion_wgpu::kernels::expr::{ArithOp, CompareOp, Expr, Scalar, ValueType};
use datafusion_wgpu::kernels::program::{Program, Segment};
use datafusion_wgpu::kernels::reduce::{AggregateKind, AggregateSpec, reduce};
use datafusion_wgpu::kernels::select::select;
use datafusion_wgpu::memory::{AdapterSelector, GpuRuntime, LaunchScope, LaunchStats, MemoryScope, upload};

const MONEY: ValueType = ValueType::Decimal { precision: 15, scale: 2 };
const PRODUCT: ValueType = ValueType::Decimal { precision: 31, scale: 4 };
/// Rows of a batch: those that uploads have.
const BATCH: usize = 1 << 19;

fn column(index: usize, ty: ValueType) -> Arc<Expr> {
    Arc::new(Expr::Column { index, ty })
}

fn compare(op: CompareOp, left: &Arc<Expr>, slot: usize) -> Arc<Expr> {
    let right = Arc::new(Expr::Param { slot, ty: left.value_type() });
    Arc::new(Expr::Compare { op, left: Arc::clone(left), right })
}

/// Rows like TPC-H's lineitem: shipdate, discount, quantity, extendedprice; and a plain 64-bit column.
fn rows(rows: i64) -> Result<RecordBatch, Box<dyn Error>> {
    let scramble = |row: i64, span: i64| (row.wrapping_mul(2_654_435_761) >> 7).rem_euclid(span);
    let money = |span: i64| -> Result<ArrayRef, Box<dyn Error>> {
        let values = Decimal128Array::from_iter_values((0..rows).map(|row| i128::from(scramble(row, span))));
        Ok(Arc::new(values.with_precision_and_scale(15, 2)?))
    };
    let days = Date32Array::from_iter_values((0..rows).map(|row| scramble(row, 2526) as i32));
    let plain = Int64Array::from_iter_values((0..rows).map(|row| scramble(row, i64::MAX)));
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("shipdate", Arc::new(days)),
        ("discount", money(11)?),
        ("quantity", money(5000)?),
        ("extendedprice", money(10_500_000)?),
        ("plain", Arc::new(plain)),
    ];
    Ok(RecordBatch::try_from_iter(columns)?)
}

/// TPC-H Q6's predicate with its parameters.
fn q6() -> Program {
    let (day, discount, quantity) = (column(0, ValueType::Date32), column(1, MONEY), column(2, MONEY));
    let selection = [
        compare(CompareOp::GtEq, &day, 0),
        compare(CompareOp::Lt, &day, 1),
        compare(CompareOp::GtEq, &discount, 2),
        compare(CompareOp::LtEq, &discount, 3),
        compare(CompareOp::Lt, &quantity, 4),
    ]
    .into_iter()
    .reduce(|left, right| Arc::new(Expr::And(left, right)));
    let params: Vec<(ValueType, Scalar)> = vec![
        (ValueType::Date32, Some(730)),
        (ValueType::Date32, Some(1095)),
        (MONEY, Some(5)),
        (MONEY, Some(7)),
        (MONEY, Some(2400)),
    ];
    Program { selection, params }
}

fn sum(kind: AggregateKind, arg: Arc<Expr>) -> [AggregateSpec; 1] {
    [AggregateSpec { kind, arg: Some(arg), filter: None }]
}

fn main() -> Result<(), Box<dyn Error>> {
    let count: i64 = std::env::var("ROWS").ok().map_or(Ok(1 << 22), |rows| rows.parse())?;
    let adapter = std::env::var("ADAPTER").unwrap_or_default();
    let device = GpuRuntime::new().select(&AdapterSelector { adapter, allow_software: true })?;
    let scope = LaunchScope {
        context: device.context()?,
        memory: MemoryScope::new(device.ledger(), "bench", u64::MAX),
        stats: Arc::new(LaunchStats::default()),
    };
    let tokio = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let table = rows(count)?;
    let mut segments = vec![];
    for at in (0..table.num_rows()).step_by(BATCH) {
        let part = table.slice(at, BATCH.min(table.num_rows() - at));
        let columns = tokio.block_on(upload(&scope, std::slice::from_ref(&part), &[0, 1, 2, 3, 4]))?;
        segments.push(Segment { columns: columns.into_iter().map(Some).collect(), rows: part.num_rows() });
    }

    let mut criterion = Criterion::default().sample_size(20).configure_from_args();
    let mut group = criterion.benchmark_group(device.caps().name.clone());
    let id = |name: &str| BenchmarkId::new(name, count);

    let (all, plain) = (Program::default(), sum(AggregateKind::SumInt, column(4, ValueType::Int64)));
    group.throughput(Throughput::Bytes(count as u64 * 8));
    group.bench_function(id("sum of i64, 8 B a row"), |b| {
        b.iter(|| black_box(tokio.block_on(reduce(&scope, &all, &plain, &segments))));
    });

    let program = q6();
    let (left, right) = (column(3, MONEY), column(1, MONEY));
    let product = Arc::new(Expr::Arith { op: ArithOp::Mul, left, right, ty: PRODUCT });
    let revenue = sum(AggregateKind::SumDecimal, Arc::clone(&product));
    group.throughput(Throughput::Bytes(count as u64 * 28));
    group.bench_function(id("TPC-H Q6, 28 B a row"), |b| {
        b.iter(|| black_box(tokio.block_on(reduce(&scope, &program, &revenue, &segments))));
    });

    group.throughput(Throughput::Bytes(count as u64 * 20));
    group.bench_function(id("mask of Q6's predicate, 20 B a row"), |b| {
        b.iter(|| black_box(tokio.block_on(select(&scope, &program, &[], &segments))));
    });
    let outputs = [product];
    group.throughput(Throughput::Bytes(count as u64 * 28));
    group.bench_function(id("Q6's rows and products, 28 B a row"), |b| {
        b.iter(|| black_box(tokio.block_on(select(&scope, &program, &outputs, &segments))));
    });
    group.finish();
    criterion.final_summary();
    Ok(())
}
