//! Projections on top of one another, each of which reads a column of the one below twice. DataFusion keeps them apart, since
//! it would compute the column twice otherwise, and one kernel computes them all.

use std::time::{Duration, Instant};

use datafusion::arrow::datatypes::DataType;
use datafusion::common::DataFusionError;
use datafusion::dataframe::DataFrame;
use datafusion::functions::math::expr_fn::abs;
use datafusion::functions_aggregate::expr_fn::{count, max, sum};
use datafusion::logical_expr::{Expr, ExprFunctionExt, cast, col, lit};
use datafusion::prelude::SessionContext;

use crate::harness::{Gpu, Ran, TestResult, cpu, run_plan};

const TABLE: &str = "CREATE TABLE t AS SELECT value AS id, nullif(value * 7919 % 10007, 5) AS a0, value % 13 + 1 AS b0, \
     CAST(value AS DOUBLE) AS f0, CAST(value % 1000 AS DECIMAL(38, 2)) AS d0 FROM generate_series(1, 4000)";

/// The columns of a level over those of the one below, whose names end in its number: of the same projection over and over,
/// DataFusion 55.2 leaves two.
type Level<'a> = &'a dyn Fn(usize) -> Vec<Expr>;
type Top<'a> = &'a dyn Fn(DataFrame) -> Result<DataFrame, DataFusionError>;

/// A column of level `number`.
fn at(name: &str, number: usize) -> Expr {
    col(format!("{name}{number}"))
}

fn as_next(expr: Expr, name: &str, number: usize) -> Expr {
    expr.alias(format!("{name}{}", number + 1))
}

fn twice(name: &str, number: usize) -> Expr {
    as_next(at(name, number) + at(name, number), name, number)
}

async fn stacked(ctx: &SessionContext, levels: usize, level: Level<'_>, top: Top<'_>) -> TestResult<Ran> {
    let mut rows = ctx.table("t").await?;
    for number in 0..levels {
        rows = rows.select(level(number))?;
    }
    let plan = top(rows)?.create_physical_plan().await?;
    run_plan(ctx, plan).await
}

struct Sessions {
    gpu: Gpu,
    cpu: SessionContext,
}

impl Sessions {
    async fn new() -> TestResult<Self> {
        let (gpu, cpu) = (Gpu::new(1).await?, cpu(1));
        gpu.set("fallback", "'error'").await?;
        cpu.sql(TABLE).await?.collect().await?;
        gpu.ctx.register_table("t", cpu.table_provider("t").await?)?;
        Ok(Self { gpu, cpu })
    }

    /// Holds that both give the same rows, the GPU without any of the CPU's nodes; the GPU's plan.
    async fn same(&self, levels: usize, level: Level<'_>, top: Top<'_>) -> TestResult<String> {
        let want = stacked(&self.cpu, levels, level, top).await?;
        let kept = want.plan.matches("ProjectionExec").count();
        assert!(kept + 1 >= levels, "{}", want.plan);
        let start = Instant::now();
        let ran = stacked(&self.gpu.ctx, levels, level, top).await?;
        let took = start.elapsed();
        assert_eq!(ran.rows, want.rows, "{}", ran.plan);
        assert_eq!(ran.plan.matches("GpuProjectionExec").count(), kept, "{}", ran.plan);
        assert!(ran.cpu_batches == 0 && ran.gpu_batches > 0, "{ran:?}");
        // As a tree, what is computed has 2^levels nodes.
        assert!(took < Duration::from_secs(20), "{took:?}");
        Ok(ran.plan)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn forty_projections_are_one_kernel() -> TestResult {
    let sessions = Sessions::new().await?;
    let plan = sessions.same(40, &|n| vec![col("id"), twice("a", n), twice("b", n)], &Ok).await?;
    assert_eq!(plan.matches("output=host").count(), 1, "{plan}");
    // What may fault is guarded, and told apart from what is computed.
    let checked = |n: usize| {
        let a = abs(at("a", n)) + abs(at("a", n)) - at("a", n);
        vec![as_next(a, "a", n), col("id")]
    };
    sessions.same(40, &checked, &|rows| rows.filter(col("id").gt(lit(9)))).await?;
    let decimal = |n: usize| {
        let sum = cast(at("d", n) + at("d", n), DataType::Decimal128(38, 2));
        vec![as_next(sum, "d", n), col("id")]
    };
    sessions.same(40, &decimal, &|rows| rows.filter(col("id").lt(lit(9)))).await?;
    let all = |n: usize| vec![twice("a", n), twice("b", n), twice("f", n), col("id")];
    // DataFusion would put a filter below all projections, with 2^40 terms.
    let few = || (at("a", 40) + at("a", 40)).gt(at("b", 40) + at("b", 40));
    let aggregates = || {
        let floats = sum(at("f", 40) + at("f", 40));
        let few = count(at("a", 40)).filter(few()).build()?;
        Ok::<_, DataFusionError>(vec![floats, sum(at("a", 40)), max(at("b", 40) + at("a", 40)), few])
    };
    sessions.same(40, &all, &|rows| rows.aggregate(vec![], aggregates()?)).await?;
    let by = || vec![(at("b", 40) + at("b", 40)).alias("k")];
    sessions.same(40, &all, &|rows| rows.aggregate(by(), aggregates()?)).await?;
    Ok(())
}

/// Beyond a bound, operators get kernels of their own, and the rows go through the host between them.
#[tokio::test(flavor = "multi_thread")]
async fn kernels_stay_of_a_bounded_size() -> TestResult {
    let sessions = Sessions::new().await?;
    // About a hundred nodes each.
    let long = |n: usize| {
        let terms = (0..25i64).map(|k| (at("a", n) + lit(k)) * (at("a", n) - lit(k + 1)));
        let all = terms.reduce(|all, next| all - next);
        all.into_iter().map(|all| as_next(all, "a", n)).chain([col("id")]).collect()
    };
    let plan = sessions.same(30, &long, &Ok).await?;
    let apart = plan.matches("input=host").count();
    assert!((2..8).contains(&apart) && plan.matches("output=host").count() == apart, "{plan}");
    // An aggregate is fused with the uppermost.
    let sums = |rows: DataFrame| rows.aggregate(vec![], vec![sum(at("a", 30)), max(col("id"))]);
    let plan = sessions.same(30, &long, &sums).await?;
    let border = |text: &str| plan.matches(text).count();
    assert_eq!((border("input=host"), border("output=host")), (apart, apart), "{plan}");
    Ok(())
}
