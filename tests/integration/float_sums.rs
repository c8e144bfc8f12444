//! Sums and averages of floats: the exact sum rounded once, in every run, however the rows are cut and whoever adds them.

use std::fmt::Debug;
use std::sync::Arc;

use datafusion::arrow::array::{
    Array, ArrayRef, AsArray, Float32Array, Float64Array, Int64Array, RecordBatch,
};
use datafusion::arrow::datatypes::Float64Type;
use datafusion::datasource::MemTable;
use datafusion::prelude::SessionContext;
use datafusion_wgpu::kernels::ExactSum;
use datafusion_wgpu::memory::faults::{Choke, Fault};

use crate::harness::{Gpu, TestResult};

const ROWS: usize = 9_000;
const SUMS: &str =
    "SELECT sum(x), avg(x), sum(y), avg(y), avg(i), sum(x) FILTER (WHERE i > 0), sum(w) FROM t WHERE id > 10";
const GROUPS: i64 = 23;
const GROUPED: &str = "SELECT id % 23 AS g, sum(x), avg(x), sum(y), avg(y), avg(i), sum(x) FILTER (WHERE i > 0), sum(w) \
     FROM t WHERE id > 10 GROUP BY GROUPING SETS ((g), ()) ORDER BY g";

/// Numbers that a seed gives again.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (z ^ (z >> 27)) ^ (z >> 40)
    }

    /// A double of any sign and mantissa within 2^-`spread` and 2^`spread`.
    fn double(&mut self, spread: u64) -> f64 {
        let exponent = 1023 + self.next() % (2 * spread + 1) - spread;
        f64::from_bits(self.next() & !(0x7ff << 52) | exponent << 52)
    }
}

/// Columns id, x (most within 20 binades, later ones far beyond them), y (singles), i (integers that doubles round), w (all exponents), with
/// NULLs.
struct Table {
    x: Vec<Option<f64>>,
    y: Vec<Option<f32>>,
    i: Vec<i64>,
    w: Vec<f64>,
}

impl Table {
    fn new() -> Self {
        let mut numbers = Numbers(5);
        let mut table = Table { x: vec![], y: vec![], i: vec![], w: vec![] };
        for row in 0..ROWS {
            // The window widens in the middle of the stream.
            let spread = if row < ROWS / 2 || row % 50 != 0 { 10 } else { 900 };
            let x = numbers.double(spread);
            table.x.push((row % 11 != 3).then_some(x));
            table
                .y
                .push((row % 7 != 3).then_some(numbers.double(if row % 90 == 0 { 120 } else { 8 }) as f32));
            table.i.push(numbers.next() as i64 >> (row % 8));
            // Near the largest double, and never beyond it in the end.
            let w = numbers.double(950);
            table.w.push(if row % 3 == 0 { w } else { f64::from_bits(w.to_bits() >> 12) });
        }
        let last = table.w.len() - 2;
        (table.w[20], table.w[30], table.w[last]) = (f64::MAX, f64::MAX, -f64::MAX);
        table
    }

    fn register(&self, ctx: &SessionContext, name: &str, partitions: usize, rows: usize) -> TestResult {
        let columns: Vec<(&str, ArrayRef)> = vec![
            ("id", Arc::new(Int64Array::from_iter_values(0..ROWS as i64))),
            ("x", Arc::new(Float64Array::from(self.x.clone()))),
            ("y", Arc::new(Float32Array::from(self.y.clone()))),
            ("i", Arc::new(Int64Array::from(self.i.clone()))),
            ("w", Arc::new(Float64Array::from(self.w.clone()))),
        ];
        let batch = RecordBatch::try_from_iter_with_nullable(
            columns.into_iter().map(|(name, array)| (name, array, true)),
        )?;
        let mut parts = vec![vec![]; partitions];
        for (at, start) in (0..ROWS).step_by(rows).enumerate() {
            parts[at % partitions].push(batch.slice(start, rows.min(ROWS - start)));
        }
        ctx.register_table(name, Arc::new(MemTable::try_new(batch.schema(), parts)?))?;
        Ok(())
    }

    /// Bits of the answer to [`SUMS`].
    fn wanted(&self) -> Vec<u64> {
        let wanted = self.wanted_of(&|_| true);
        let w = f64::from_bits(wanted[6].unwrap_or_default());
        assert!(w.is_finite() && w > 1e307);
        wanted.into_iter().flatten().collect()
    }

    /// Bits of the answer to [`GROUPED`], group after group.
    fn wanted_in_groups(&self) -> Vec<Option<u64>> {
        let groups = (0..GROUPS).map(|g| self.wanted_of(&|row| row as i64 % GROUPS == g));
        groups.chain([self.wanted_of(&|_| true)]).flatten().collect()
    }

    /// Bits of the answer for some of the rows.
    fn wanted_of(&self, of: &dyn Fn(usize) -> bool) -> Vec<Option<u64>> {
        let rows = || (11..ROWS).filter(|row| of(*row));
        let sum = |values: &mut dyn Iterator<Item = f64>| {
            let (mut sum, mut count) = (ExactSum::new(), 0u64);
            for value in values {
                sum.add_f64(value);
                count += 1;
            }
            (sum.to_f64(), count as f64)
        };
        let x = sum(&mut rows().filter_map(|row| self.x[row]));
        let y = sum(&mut rows().filter_map(|row| self.y[row]).map(f64::from));
        let i = sum(&mut rows().map(|row| self.i[row] as f64));
        let some = sum(&mut rows().filter(|row| self.i[*row] > 0).filter_map(|row| self.x[row]));
        let w = sum(&mut rows().map(|row| self.w[row]));
        let all = [(x.0, x.1), (x.0 / x.1, x.1), (y.0, y.1), (y.0 / y.1, y.1), (i.0 / i.1, i.1), some, w];
        all.map(|(value, count)| (count > 0.0).then_some(value.to_bits())).to_vec()
    }
}

/// Bits of all columns but the first, row after row.
async fn bits_in_groups(ctx: &SessionContext, sql: &str) -> TestResult<Vec<Option<u64>>> {
    let mut bits = vec![];
    for batch in ctx.sql(sql).await?.collect().await? {
        let columns: Vec<_> =
            batch.columns().iter().skip(1).map(|column| column.as_primitive::<Float64Type>()).collect();
        for row in 0..batch.num_rows() {
            bits.extend(
                columns.iter().map(|column| column.is_valid(row).then(|| column.value(row).to_bits())),
            );
        }
    }
    Ok(bits)
}

async fn bits(ctx: &SessionContext, sql: &str) -> TestResult<Vec<u64>> {
    let batches = ctx.sql(sql).await?.collect().await?;
    let [batch] = batches.as_slice() else { return Err("one batch".into()) };
    Ok(batch.columns().iter().map(|column| column.as_primitive::<Float64Type>().value(0).to_bits()).collect())
}

/// Fifty runs of `sql`: other partitions, other batches, with and without float instructions, and the CPU in the device's place for
/// some batches or all. `bits` gives an answer's bits, which are to be `want` each time.
async fn fifty_runs<B: PartialEq + Debug>(
    table: &Table,
    layouts: [(usize, usize); 5],
    sizes: [&str; 4],
    sql: &str,
    bits: impl AsyncFn(&SessionContext, &str) -> TestResult<B>,
    want: B,
) -> TestResult {
    let (mut runs, mut by_cpu) = (0, 0);
    for (at, (partitions, rows)) in layouts.into_iter().enumerate() {
        let gpu = match at % 2 {
            0 => Gpu::new(partitions).await?,
            _ => Gpu::lowered(partitions, |caps| caps.float64 = false).await?,
        };
        table.register(&gpu.ctx, "t", partitions, rows)?;
        for batch_rows in sizes {
            gpu.set("batch_rows", batch_rows).await?;
            for round in 0..3 {
                match round {
                    0 => {}
                    1 => gpu.device.faults().fail(Choke::Submit, 2),
                    _ => gpu.device.faults().order_always(Choke::Allocate, Fault::Fail),
                }
                let ran = gpu.run(sql).await?;
                if round == 2 {
                    by_cpu += ran.cpu_batches;
                    assert_eq!(ran.gpu_batches, 0, "{ran:?}");
                } else {
                    assert!(ran.gpu_batches > 0 || round == 1, "{ran:?}");
                }
                assert!(ran.plan.contains("float_sum=exact"), "{}", ran.plan);
                let got = bits(&gpu.ctx, sql).await?;
                assert_eq!(got, want, "{partitions} x {rows}, {batch_rows}, {round}");
                gpu.device.faults().clear();
                runs += 1;
            }
        }
    }
    assert!(runs >= 50 && by_cpu > 0, "{runs} runs, {by_cpu} batches by the CPU");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_bits_in_fifty_runs() -> TestResult {
    let table = Table::new();
    let layouts = [(1, 9_000), (1, 700), (2, 1_000), (3, 333), (5, 64)];
    let sizes = ["100000", "3000", "512", "150"];
    fifty_runs(&table, layouts, sizes, SUMS, bits, table.wanted()).await
}

/// The same in groups, of which one has nothing but NULL, with a grand total beside them.
#[tokio::test(flavor = "multi_thread")]
async fn the_same_bits_in_fifty_runs_with_groups() -> TestResult {
    let mut table = Table::new();
    (0..ROWS).step_by(GROUPS as usize).for_each(|row| (table.x[row], table.y[row]) = (None, None));
    let want = table.wanted_in_groups();
    assert_eq!(want[..5], [None, None, None, None, want[4]]);
    let layouts = [(1, 9_000), (2, 700), (3, 1_000), (4, 64), (1, 333)];
    let sizes = ["100000", "3000", "512", "1100"];
    fifty_runs(&table, layouts, sizes, GROUPED, bits_in_groups, want).await
}

/// DataFusion's own sums depend on the batches, and `gpu.float_sum = 'cpu'` leaves them as they are.
#[tokio::test(flavor = "multi_thread")]
async fn left_on_the_cpu() -> TestResult {
    let table = Table::new();
    let gpu = Gpu::new(1).await?;
    gpu.set("float_sum", "'cpu'").await?;
    let mut answers = std::collections::BTreeSet::new();
    for rows in [9_000, 700, 64] {
        let name = format!("t{rows}");
        table.register(&gpu.ctx, &name, 1, rows)?;
        let ran = gpu.run(&format!("SELECT sum(x) FILTER (WHERE abs(x) < 1000) FROM {name}")).await?;
        assert!(ran.nodes.is_empty(), "{}", ran.plan);
        answers.insert(ran.rows);
    }
    assert!(answers.len() > 1, "{answers:?}");
    Ok(())
}
