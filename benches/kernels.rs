//! Kernels and transfers, each with its floor: the bytes that it cannot do without reading or writing. Criterion divides
//! them by the time; compare the rate with the adapter's bandwidth (device memory for kernels, the bus for transfers).
//!
//! `cargo bench --bench kernels`; `ROWS` (default 2^22) sets the rows, `ADAPTER` the adapter, and an argument which
//! benchmarks run. Times are wall times of one launch and its wait, so small inputs show the cost of a wait rather than that
//! of the kernel. The rows lie in batches of 2^19, as uploads have them. Before it is timed, each is run once and its answer
//! compared: a kernel's first batch with that of its CPU twin, of transfers and the scan some values.
//!
//! | benchmark | floor, bytes a row |
//! |---|---|
//! | reduce: sum of i64 | 8 |
//! | reduce: sum of decimals, of 15 digits | 8 |
//! | reduce: min and max of f64 | 8 |
//! | reduce: TPC-H Q6, predicate over three columns, sum of a product | 28 |
//! | select: mask of Q6's predicate | 20, and a bit |
//! | select: 1, 50, 99 % of the rows, four outputs | 4 for the predicate; of a selected row 32 read, 48 written and sent to the host |
//! | scan: prefix sums of u32 within blocks of 2,048: the first of the two steps of a selection's scan | 4 read, 4 written |
//! | upload of i64, of 15-digit decimals | 8 on the bus (the host reads 16 a decimal) |
//! | download of i64 | 8 on the bus |
//!
//! `benches/peers/cuda_primitives.py` times CUDA's own primitives at the same sizes.

#[allow(dead_code, reason = "each benchmark uses a part of it")]
mod device;

use std::error::Error;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, AsArray, Date32Array, Decimal128Array, Float64Array, Int32Array, Int64Array, RecordBatch,
    UInt32Array,
};
use arrow::datatypes::{Decimal128Type, Int64Type};
use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion, Throughput};
use datafusion_wgpu::error::{GpuError, GpuResult};
use datafusion_wgpu::kernels::expr::{ArithOp, CompareOp, DecimalFn, Expr, Function, Scalar, ValueType};
use datafusion_wgpu::kernels::program::{ColumnShape, Program, Segment};
use datafusion_wgpu::kernels::reduce::{AggregateKind, AggregateSpec, reduce};
use datafusion_wgpu::kernels::reference;
use datafusion_wgpu::kernels::select::{SelectResult, select, select_shaders};
use datafusion_wgpu::memory::{
    BufferKind, BufferSlice, DeviceBuffer, LaunchScope, Pipeline, download, upload,
};

use device::Device;

const MONEY: ValueType = ValueType::Decimal { precision: 15, scale: 2 };
const PRODUCT: ValueType = ValueType::Decimal { precision: 31, scale: 4 };
/// Rows of a batch: those that uploads have.
const BATCH: usize = 1 << 19;
/// Counts that a workgroup of the scan takes.
const SCAN_BLOCK: u32 = 2048;

/// Columns of the table.
const DAY: usize = 0;
const DISCOUNT: usize = 1;
const QUANTITY: usize = 2;
const PRICE: usize = 3;
const PLAIN: usize = 4;
const FLOAT: usize = 5;
const SHARE: usize = 6;
const COLUMNS: usize = 7;

fn column(index: usize, ty: ValueType) -> Arc<Expr> {
    Arc::new(Expr::Column { index, ty })
}

fn compare(op: CompareOp, left: &Arc<Expr>, slot: usize) -> Arc<Expr> {
    let right = Arc::new(Expr::Param { slot, ty: left.value_type() });
    Arc::new(Expr::Compare { op, left: Arc::clone(left), right })
}

/// Rows like TPC-H's lineitem: shipdate, discount, quantity, extendedprice; a 64-bit integer, a float, and a number below
/// 1,000.
fn rows(rows: i64) -> Result<RecordBatch, Box<dyn Error>> {
    let scramble = |row: i64, span: i64| (row.wrapping_mul(2_654_435_761) >> 7).rem_euclid(span);
    let money = |span: i64| -> Result<ArrayRef, Box<dyn Error>> {
        let values = Decimal128Array::from_iter_values((0..rows).map(|row| i128::from(scramble(row, span))));
        Ok(Arc::new(values.with_precision_and_scale(15, 2)?))
    };
    let days = Date32Array::from_iter_values((0..rows).map(|row| scramble(row, 2526) as i32));
    let plain = Int64Array::from_iter_values((0..rows).map(|row| scramble(row, i64::MAX)));
    let floats = Float64Array::from_iter_values((0..rows).map(|row| scramble(row, 1_000_003) as f64 / 7.0));
    let shares = Int32Array::from_iter_values((0..rows).map(|row| scramble(row, 1000) as i32));
    let columns: [(&str, ArrayRef); COLUMNS] = [
        ("shipdate", Arc::new(days)),
        ("discount", money(11)?),
        ("quantity", money(5000)?),
        ("extendedprice", money(10_500_000)?),
        ("plain", Arc::new(plain)),
        ("float", Arc::new(floats)),
        ("share", Arc::new(shares)),
    ];
    Ok(RecordBatch::try_from_iter(columns)?)
}

/// TPC-H Q6's predicate with its parameters.
fn q6() -> Program {
    let (day, discount, quantity) =
        (column(DAY, ValueType::Date32), column(DISCOUNT, MONEY), column(QUANTITY, MONEY));
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

fn product() -> Arc<Expr> {
    let (left, right) = (column(PRICE, MONEY), column(DISCOUNT, MONEY));
    let function = Function::Decimal(DecimalFn::Arith(ArithOp::Mul));
    Arc::new(Expr::Call { function, args: vec![left, right], ty: PRODUCT })
}

fn aggregate(kind: AggregateKind, arg: Arc<Expr>) -> AggregateSpec {
    AggregateSpec { kind, arg: Some(arg), filter: None }
}

/// The device, the rows on it, and who waits for it.
struct Bench {
    scope: LaunchScope,
    tokio: tokio::runtime::Runtime,
    table: RecordBatch,
    segments: Vec<Segment>,
    count: u64,
}

type Group<'a> = BenchmarkGroup<'a, WallTime>;

impl Bench {
    fn new(count: i64) -> Result<(Bench, String), Box<dyn Error>> {
        let Device { scope, tokio, name, .. } = Device::open()?;
        let table = rows(count)?;
        let all: Vec<usize> = (0..COLUMNS).collect();
        let mut segments = vec![];
        for part in batches(&table) {
            let columns = tokio.block_on(upload(&scope, std::slice::from_ref(&part), &all))?;
            segments.push(Segment {
                columns: columns.into_iter().map(Some).collect(),
                rows: part.num_rows(),
                tables: Default::default(),
            });
        }
        let count = table.num_rows() as u64;
        Ok((Bench { scope, tokio, table, segments, count }, name))
    }

    /// Times `work`, whose floor is `bytes` a row, if `right` says that its answer is right.
    ///
    /// # Errors
    /// Those of the work, and a wrong answer: neither has a time.
    fn time<T>(
        &self,
        group: &mut Group<'_>,
        name: &str,
        bytes: f64,
        work: impl AsyncFn() -> GpuResult<T>,
        right: impl FnOnce(&T) -> GpuResult<bool>,
    ) -> GpuResult<()> {
        if !right(&self.tokio.block_on(work())?)? {
            return Err(GpuError::Internal(format!("'{name}' gives a wrong answer")));
        }
        group.throughput(Throughput::Bytes((self.count as f64 * bytes) as u64));
        let mut failed = None;
        group.bench_function(BenchmarkId::new(name, self.count), |b| {
            b.iter(|| match self.tokio.block_on(work()) {
                Ok(value) => Some(value),
                Err(error) => {
                    failed = Some(error);
                    None
                }
            });
        });
        failed.map_or(Ok(()), Err)
    }

    fn reductions(&self, group: &mut Group<'_>) -> GpuResult<()> {
        let (all, q6) = (Program::default(), q6());
        let float = column(FLOAT, ValueType::Float64);
        let extremes =
            [aggregate(AggregateKind::Min, Arc::clone(&float)), aggregate(AggregateKind::Max, float)];
        let plain = [aggregate(AggregateKind::SumInt, column(PLAIN, ValueType::Int64))];
        let money = [aggregate(AggregateKind::SumDecimal, column(PRICE, MONEY))];
        let revenue = [aggregate(AggregateKind::SumDecimal, product())];
        let cases: [(&str, &Program, &[AggregateSpec], f64); 4] = [
            ("reduce: sum of i64", &all, &plain, 8.0),
            ("reduce: sum of decimals", &all, &money, 8.0),
            ("reduce: min and max of f64", &all, &extremes, 8.0),
            ("reduce: TPC-H Q6", &q6, &revenue, 28.0),
        ];
        for (name, program, aggregates, bytes) in cases {
            let work = async || reduce(&self.scope, program, aggregates, &self.segments).await;
            self.time(group, name, bytes, work, |got| {
                let (columns, rows) = self.first();
                Ok(got.first() == Some(&reference::reduce(program, aggregates, &columns, rows)))
            })?;
        }
        Ok(())
    }

    fn selections(&self, group: &mut Group<'_>) -> GpuResult<()> {
        let program = q6();
        let work = async || select(&self.scope, &program, &[], &self.segments).await;
        self.time(group, "select: mask of Q6", 20.0 + 1.0 / 8.0, work, |got| {
            self.selects(got, &program, &[])
        })?;
        let share = column(SHARE, ValueType::Int32);
        // Four columns of 8 bytes are read; outputs have Arrow's widths, 16 bytes a decimal.
        let outputs = [
            product(),
            column(PRICE, MONEY),
            column(PLAIN, ValueType::Int64),
            column(FLOAT, ValueType::Float64),
        ];
        let (read, written) = (32.0, 48.0);
        for percent in [1, 50, 99] {
            let program = Program {
                selection: Some(compare(CompareOp::Lt, &share, 0)),
                params: vec![(ValueType::Int32, Some(percent * 10))],
            };
            let bytes = 4.0 + percent as f64 / 100.0 * (read + written);
            let work = async || select(&self.scope, &program, &outputs, &self.segments).await;
            let name = format!("select: {percent} % and four outputs");
            self.time(group, &name, bytes, work, |got| self.selects(got, &program, &outputs))?;
        }
        Ok(())
    }

    /// Whether the first batch's answer is that of the CPU twin.
    fn selects(&self, got: &[SelectResult], program: &Program, outputs: &[Arc<Expr>]) -> GpuResult<bool> {
        let (columns, rows) = self.first();
        let want = reference::select(program, outputs, &columns, rows)?;
        Ok(got.first().is_some_and(|got| {
            (&got.mask, got.selected, got.fault) == (&want.mask, want.selected, want.fault)
                && got.outputs == want.outputs
        }))
    }

    /// Columns and rows of the first batch.
    fn first(&self) -> (Vec<ArrayRef>, usize) {
        let first = self.table.slice(0, BATCH.min(self.table.num_rows()));
        (first.columns().to_vec(), first.num_rows())
    }

    /// The first bytes of a slice.
    fn read(&self, slice: &BufferSlice, bytes: u64) -> GpuResult<Vec<u8>> {
        let read = self.tokio.block_on(download(&self.scope, self.encoder(), &[(slice, bytes)]))?;
        Ok(read.into_iter().next().unwrap_or_default())
    }

    fn transfers(&self, group: &mut Group<'_>) -> GpuResult<()> {
        let parts = batches(&self.table);
        for (name, index) in [("upload: i64", PLAIN), ("upload: decimals", PRICE)] {
            let work = async || {
                let mut columns = vec![];
                for part in &parts {
                    columns.push(upload(&self.scope, std::slice::from_ref(part), &[index]).await?);
                }
                // The uploads are submitted; what is submitted after them is done after them.
                self.scope.context.submit(self.encoder())?.wait().await?;
                Ok(columns)
            };
            self.time(group, name, 8.0, work, |columns| {
                let (host, rows) = self.first();
                let Some(device) = columns.first().and_then(|part| part.first()) else { return Ok(false) };
                Ok(self.read(&device.values, rows as u64 * 8)?.ends_with(&last_words(&host[index])))
            })?;
        }
        let mut slices: Vec<(&BufferSlice, u64)> = vec![];
        for segment in &self.segments {
            slices.push((&segment.column(PLAIN)?.values, segment.rows as u64 * 8));
        }
        let work = async || download(&self.scope, self.encoder(), &slices).await;
        self.time(group, "download: i64", 8.0, work, |got| {
            let (host, _) = self.first();
            Ok(got.first().is_some_and(|got| got.ends_with(&last_words(&host[PLAIN]))))
        })
    }

    /// The first step of the scan that [`select`] runs over the counts of its tiles, over as many counts as there are rows:
    /// sums within blocks. The second is the same kernel over the blocks' totals, which are few there.
    fn scan(&self, group: &mut Group<'_>) -> GpuResult<()> {
        let counts = UInt32Array::from_iter_values((0..self.table.num_rows()).map(|row| row as u32 % 7));
        let counts = RecordBatch::try_from_iter([("counts", Arc::new(counts) as ArrayRef)]);
        let counts = counts.map_err(|error| GpuError::Internal(error.to_string()))?;
        let columns = self.tokio.block_on(upload(&self.scope, &[counts], &[0]))?;
        let Some(counts) = columns.first() else { return Ok(()) };
        let number = counts.rows as u32;
        let blocks = number.div_ceil(SCAN_BLOCK);
        let storage = |words: u32| {
            self.scope.context.allocate(&self.scope.memory, u64::from(words) * 4, BufferKind::Storage)
        };
        let (offsets, totals) = (storage(number)?, storage(blocks)?);
        let args = self.scope.params(bytemuck::cast_slice(&[0, number, blocks, 0]))?;
        let pipeline = self.scan_pipeline()?;
        let work = async || {
            let mut encoder = self.encoder();
            {
                let mut pass = encoder.begin_compute_pass(&Default::default());
                let buffers = [&args, &counts.values.buffer, &offsets, &totals];
                self.scan_blocks(&mut pass, &pipeline, buffers, blocks);
            }
            self.scope.context.submit(encoder)?.wait().await
        };
        self.time(group, "scan: prefix sums of u32 within blocks", 8.0, work, |_| {
            // Two blocks, the second of which starts from 0 again.
            let words = u64::from(number.min(2 * SCAN_BLOCK));
            let slice = BufferSlice { buffer: Arc::clone(&offsets), offset: 0, len: words * 4 };
            let read = self.read(&slice, words * 4)?;
            let got =
                read.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]));
            let sum = |to: u32| (to / SCAN_BLOCK * SCAN_BLOCK..to).map(|row| row % 7).sum::<u32>();
            Ok(got.eq((0..words as u32).map(sum)))
        })
    }

    /// The second of the shaders of a selection.
    fn scan_pipeline(&self) -> GpuResult<Arc<Pipeline>> {
        let share = column(SHARE, ValueType::Int32);
        let program = Program {
            selection: Some(compare(CompareOp::Lt, &share, 0)),
            params: vec![(ValueType::Int32, Some(1))],
        };
        let Some(segment) = self.segments.first() else {
            return Err(GpuError::Internal("there are no rows".to_owned()));
        };
        let columns = [ColumnShape::of(SHARE, segment.column(SHARE)?)];
        let shaders = select_shaders(self.scope.context.caps(), &program, &[], &columns)?;
        let scan = shaders.into_iter().find(|shader| shader.name == "select_scan");
        let missing = || GpuError::Internal("select has no scan any more".to_owned());
        self.tokio.block_on(self.scope.context.compile(scan.ok_or_else(missing)?, &self.scope.stats))
    }

    fn scan_blocks(
        &self,
        pass: &mut wgpu::ComputePass<'_>,
        pipeline: &Pipeline,
        buffers: [&Arc<DeviceBuffer>; 4],
        blocks: u32,
    ) {
        let entries: Vec<wgpu::BindGroupEntry<'_>> = buffers
            .iter()
            .zip(0..)
            .map(|(buffer, binding)| wgpu::BindGroupEntry {
                binding,
                resource: buffer.raw().as_entire_binding(),
            })
            .collect();
        let group = self.scope.context.device().create_bind_group(&wgpu::BindGroupDescriptor {
            label: None,
            layout: &pipeline.layout,
            entries: &entries,
        });
        pass.set_pipeline(&pipeline.pipeline);
        pass.set_bind_group(0, &group, &[]);
        let limit = self.scope.context.caps().max_workgroups_per_dimension;
        pass.dispatch_workgroups(blocks.min(limit), 1, 1);
    }

    fn encoder(&self) -> wgpu::CommandEncoder {
        self.scope.context.device().create_command_encoder(&Default::default())
    }
}

/// The lower 8 bytes of the last value, which is what the device holds of it.
fn last_words(column: &ArrayRef) -> [u8; 8] {
    let last = column.len().saturating_sub(1);
    match column.as_primitive_opt::<Decimal128Type>() {
        Some(decimals) => (decimals.value(last) as i64).to_le_bytes(),
        None => column.as_primitive::<Int64Type>().value(last).to_le_bytes(),
    }
}

fn batches(table: &RecordBatch) -> Vec<RecordBatch> {
    let starts = (0..table.num_rows()).step_by(BATCH);
    starts.map(|at| table.slice(at, BATCH.min(table.num_rows() - at))).collect()
}

fn main() -> Result<(), Box<dyn Error>> {
    let count: i64 = std::env::var("ROWS").ok().map_or(Ok(1 << 22), |rows| rows.parse())?;
    let (bench, adapter) = Bench::new(count)?;
    let mut criterion = Criterion::default().sample_size(20).configure_from_args();
    let mut group = criterion.benchmark_group(adapter);
    bench.reductions(&mut group)?;
    bench.selections(&mut group)?;
    bench.scan(&mut group)?;
    bench.transfers(&mut group)?;
    group.finish();
    criterion.final_summary();
    Ok(())
}
