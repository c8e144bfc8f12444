//! Random trees in whole queries: below WHERE, in the SELECT list above it, and inside an aggregate without groups, with the
//! GPU and without. The trees are those of [`super::trees`].

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::compute::concat_batches;
use arrow::datatypes::DataType;
use datafusion::common::runtime::SpawnedTask;
use datafusion::datasource::MemTable;
use datafusion::error::Result;
use datafusion::physical_plan::{ExecutionPlan, collect};
use datafusion::prelude::SessionContext;

use crate::kernels::testkit::device;
use crate::memory::DeviceCaps;

use super::compare::on_cpu;
use super::data::same_bits;
use super::table::Bench;
use super::trees::{grown, number};

/// A tree in SQL.
struct Piece {
    sql: String,
    boolean: bool,
    raises: bool,
}

/// The rows of kernel `kernel`, and trees over them on which DataFusion does not panic.
fn pieces(kernel: u64, caps: &DeviceCaps) -> (RecordBatch, Vec<Piece>) {
    let (batch, trees) = grown(kernel, caps);
    let pieces = trees.into_iter().filter_map(|(sql, expr)| {
        let answer = on_cpu(&expr, &batch)?;
        let ty = expr.data_type(&batch.schema()).ok().filter(|ty| !ty.is_null())?;
        Some(Piece { sql, boolean: ty == DataType::Boolean, raises: answer.is_err() })
    });
    let pieces = pieces.collect();
    (batch, pieces)
}

/// Queries over trees; some of which may raise where `raising`.
fn queries(pieces: &[Piece], raising: bool) -> Vec<String> {
    let fits = |piece: &&Piece| raising || !piece.raises;
    let (conditions, values): (Vec<_>, Vec<_>) = pieces.iter().filter(fits).partition(|piece| piece.boolean);
    let condition = |at: usize| conditions.get(at).map_or("c0 IS NOT NULL", |piece| piece.sql.as_str());
    let lists: Vec<Vec<&str>> = values
        .chunks(5)
        .take(2)
        .map(|chunk| chunk.iter().map(|piece| piece.sql.as_str()).collect())
        .collect();
    let mut all = vec![];
    for (at, list) in lists.iter().enumerate() {
        let projected: Vec<String> =
            list.iter().enumerate().map(|(at, sql)| format!("{sql} AS x{at}")).collect();
        all.push(format!("SELECT {} FROM t WHERE {}", projected.join(", "), condition(3 * at)));
        let calls = list.iter().enumerate().map(|(at, sql)| match at % 3 {
            0 => format!("min({sql})"),
            1 => format!("max({sql})"),
            _ => format!("count({sql}) FILTER (WHERE {})", condition(at)),
        });
        let calls = calls.collect::<Vec<_>>().join(", ");
        all.push(format!("SELECT count(*), {calls} FROM t WHERE {}", condition(3 * at + 1)));
    }
    all
}

/// The answer as one batch, with what its nodes did on the device; `None` where DataFusion's code panics.
async fn run(ctx: &SessionContext, sql: &str) -> Option<Result<(RecordBatch, usize)>> {
    let (ctx, sql) = (ctx.clone(), sql.to_owned());
    let task = SpawnedTask::spawn(async move {
        let plan = ctx.sql(&sql).await?.create_physical_plan().await?;
        let rows = collect(Arc::clone(&plan), ctx.task_ctx()).await?;
        Ok((concat_batches(&plan.schema(), &rows)?, on_device(&plan)))
    });
    task.await.ok()
}

/// Batches that the device answered.
fn on_device(plan: &Arc<dyn ExecutionPlan>) -> usize {
    let own = plan.metrics().and_then(|metrics| metrics.sum_by_name("gpu_batches"));
    own.map_or(0, |own| own.as_usize()) + plan.children().into_iter().map(on_device).sum::<usize>()
}

#[derive(Debug, Default)]
struct Counts {
    answered: usize,
    raised: usize,
    on_device: usize,
    panicked: usize,
}

#[tokio::test(flavor = "multi_thread")]
async fn random_trees_in_queries() {
    let bench = Bench::new().await;
    let off = SessionContext::new();
    let mut caps = DeviceCaps::for_tests();
    (caps.float64, caps.numerics) = (device().caps().float64, device().caps().numerics);
    let (kernels, first) = (number("GPU_TREES", 2_000) / 160, number("GPU_TREES_SEED", 1) * 1_000_000);
    let (mut counts, mut failures) = (Counts::default(), vec![]);
    for kernel in first..first + kernels.max(2) {
        let (batch, pieces) = pieces(kernel, &caps);
        for ctx in [&bench.ctx, &off] {
            let table = MemTable::try_new(batch.schema(), vec![vec![batch.clone()]]).expect("table");
            ctx.deregister_table("t").expect("table");
            ctx.register_table("t", Arc::new(table)).expect("table");
        }
        for sql in queries(&pieces, kernel % 3 == 0) {
            let Some(want) = run(&off, &sql).await else {
                counts.panicked += 1;
                continue;
            };
            let wrong = match (want, run(&bench.ctx, &sql).await) {
                (_, None) => Some("a panic".to_owned()),
                (Ok((want, _)), Some(Ok((got, on_device)))) => {
                    counts.answered += 1;
                    counts.on_device += usize::from(on_device > 0);
                    let differs = |(want, got)| !same_bits(want, got);
                    let column = want.columns().iter().zip(got.columns()).position(differs);
                    column.map(|at| format!("column {at}\n{:?}\n{:?}", want.column(at), got.column(at)))
                }
                (Err(want), Some(Err(got))) => {
                    counts.raised += 1;
                    let (want, got) = (want.to_string(), got.to_string());
                    (want != got).then(|| format!("{got} instead of {want}"))
                }
                (Ok(_), Some(Err(got))) => Some(format!("an error: {got}")),
                (Err(want), Some(Ok(_))) => Some(format!("rows instead of {want}")),
            };
            failures.extend(wrong.map(|wrong| format!("kernel {kernel}: {sql}\n  {wrong}")));
        }
    }
    println!("{counts:?}");
    assert!(failures.is_empty(), "{counts:?}\n{}", failures.join("\n"));
    assert!(2 * counts.on_device > counts.answered && counts.raised > 0, "{counts:?}");
}
