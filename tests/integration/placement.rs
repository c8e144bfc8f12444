//! Placement by options, and the clear errors for what a user can get wrong.

use std::fs;
use std::sync::Arc;

use datafusion::arrow::datatypes::DataType;
use datafusion::prelude::{ParquetReadOptions, SessionContext};
use datafusion_wgpu::{GpuSessionStateBuilderExt, placement_report, register_gpu};

use crate::harness::{Gpu, TestResult, run};

const AGGREGATE: &str = "SELECT sum(id) FROM t WHERE v > 5";
const FILTER: &str = "SELECT id FROM t WHERE v > 5";

/// A session with a table of 100 rows, placement as in a fresh session but for the software adapter.
async fn session() -> TestResult<Gpu> {
    let gpu = Gpu::new(2).await?;
    gpu.ctx.sql("CREATE TABLE t AS SELECT value AS id, value % 10 AS v FROM generate_series(1, 100)").await?;
    gpu.set("placement", "'auto'").await?;
    Ok(gpu)
}

async fn codes(ctx: &SessionContext, sql: &str, node: &str) -> TestResult<Vec<&'static str>> {
    Ok(placement_report(ctx, sql).await?.codes(node))
}

#[tokio::test(flavor = "multi_thread")]
async fn auto_leaves_small_inputs_and_lone_filters() -> TestResult {
    let gpu = session().await?;
    assert_eq!(codes(&gpu.ctx, AGGREGATE, "FilterExec").await?, ["TooFewRows"]);
    assert_eq!(gpu.run(AGGREGATE).await?.nodes, Vec::<String>::new());
    gpu.set("min_rows", "0").await?;
    assert_eq!(gpu.run(AGGREGATE).await?.nodes, ["GpuAggregateExec", "GpuFilterExec"]);
    assert_eq!(codes(&gpu.ctx, FILTER, "FilterExec").await?, ["LoneRowLocal"]);
    assert_eq!(gpu.run(FILTER).await?.nodes, Vec::<String>::new());
    gpu.set("placement", "'force'").await?;
    assert_eq!(gpu.run(FILTER).await?.nodes, ["GpuFilterExec"]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn switched_off() -> TestResult {
    let gpu = session().await?;
    gpu.set("placement", "'off'").await?;
    assert_eq!(codes(&gpu.ctx, FILTER, "FilterExec").await?, ["Disabled"]);
    assert_eq!(gpu.run(FILTER).await?.nodes, Vec::<String>::new());
    gpu.set("placement", "'force'").await?;
    gpu.set("enabled", "false").await?;
    assert_eq!(codes(&gpu.ctx, FILTER, "FilterExec").await?, ["Disabled"]);
    assert_eq!(gpu.run(FILTER).await?.nodes, Vec::<String>::new());
    Ok(())
}

/// The adapter is chosen by each query, so that SET works after registration.
#[tokio::test(flavor = "multi_thread")]
async fn an_adapter_that_is_not_there() -> TestResult {
    let gpu = session().await?;
    gpu.set("placement", "'force'").await?;
    gpu.set("adapter", "'no such adapter'").await?;
    let report = placement_report(&gpu.ctx, FILTER).await?;
    assert_eq!(report.codes("FilterExec"), ["NoAdapter"]);
    assert!(report.to_string().contains("no such adapter"), "{report}");
    // A name that is wrong is an error, not a query that is silently slow.
    let error = gpu.run(FILTER).await.err().ok_or("the query must fail")?.to_string();
    assert!(error.contains("no such adapter"), "{error}");
    // DataFusion would show the logical plan alone.
    for explain in ["EXPLAIN", "EXPLAIN VERBOSE", "EXPLAIN FORMAT INDENT", "EXPLAIN FORMAT TREE"] {
        let error =
            gpu.run(&format!("{explain} {FILTER}")).await.err().ok_or("EXPLAIN must fail")?.to_string();
        assert!(error.contains("no such adapter"), "{explain}: {error}");
    }

    let name = gpu.device.caps().name.clone();
    gpu.set("adapter", &format!("'{}'", name.to_uppercase())).await?;
    assert_eq!(gpu.run(FILTER).await?.nodes, ["GpuFilterExec"]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn registered_in_every_way() -> TestResult {
    use datafusion::execution::session_state::SessionStateBuilder;
    let built = SessionContext::new_with_state(
        SessionStateBuilder::new().with_default_features().with_gpu().with_gpu().build(),
    );
    let existing = SessionContext::new();
    existing.sql("CREATE TABLE mine (a INT) AS VALUES (1)").await?;
    let (id, clone) = (existing.session_id(), existing.clone());
    register_gpu(&existing)?;
    register_gpu(&existing)?;
    assert_eq!(existing.session_id(), id);
    assert_eq!(run(&existing, "SELECT a FROM mine").await?.rows, ["1"]);
    for ctx in [built, existing, clone] {
        for set in ["gpu.allow_software_adapter = true", "gpu.placement = 'force'"] {
            ctx.sql(&format!("SET {set}")).await?;
        }
        ctx.sql(
            "CREATE OR REPLACE TABLE t AS SELECT value AS id, value % 10 AS v FROM generate_series(1, 100)",
        )
        .await?;
        let ran = run(&ctx, AGGREGATE).await?;
        assert_eq!(ran.nodes, ["GpuAggregateExec", "GpuFilterExec"], "{}", ran.plan);
        let rules =
            ctx.state().physical_optimizers().iter().filter(|rule| rule.name().contains("gpu")).count();
        assert_eq!(rules, 1);
    }
    Ok(())
}

/// A function of DataFusion's that was replaced is still there under its aliases, and must not take its name back.
#[tokio::test]
async fn registering_keeps_replaced_functions() -> TestResult {
    use datafusion::logical_expr::{ColumnarValue, Volatility, create_udf};
    use datafusion::scalar::ScalarValue;
    let ctx = SessionContext::new();
    // Each has an alias; which function wins by chance would be seen among so many.
    let names = ["date_trunc", "array_append", "character_length", "power", "position", "signum", "to_char"];
    let names: Vec<&str> = names
        .into_iter()
        .filter(|name| ctx.state().scalar_functions().get(*name).is_some_and(|f| !f.aliases().is_empty()))
        .collect();
    assert!(names.len() > 3, "{names:?}");
    for name in &names {
        let mine = |_: &[ColumnarValue]| Ok(ColumnarValue::Scalar(ScalarValue::Int64(Some(7))));
        ctx.register_udf(create_udf(name, vec![], DataType::Int64, Volatility::Immutable, Arc::new(mine)));
    }
    let before = ctx.state();
    register_gpu(&ctx)?;
    for name in names {
        assert_eq!(run(&ctx, &format!("SELECT {name}()")).await?.rows, ["7"], "{name}");
    }
    for (name, function) in before.scalar_functions() {
        assert_eq!(ctx.state().scalar_functions().get(name), Some(function), "{name}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn clear_errors() -> TestResult {
    let gpu = session().await?;
    for (sql, words) in [
        ("SET gpu.plcement = 'force'", "unknown option gpu.plcement"),
        ("SET gpu.placement = 'gpu'", "'auto', 'force', 'off'"),
        ("SET gpu.memory_limit = 'much'", "gpu.memory_limit"),
        ("SET gpu.min_rows = '-1'", "gpu.min_rows"),
    ] {
        let error = gpu.ctx.sql(sql).await.map(|_| ()).map_err(|e| e.to_string());
        assert!(error.as_ref().is_err_and(|e| e.contains(words)), "{sql}: {error:?}");
    }

    let dir = tempfile::tempdir()?;
    let missing = dir.path().join("missing.parquet");
    let register = async |name, path: &std::path::Path| {
        gpu.ctx.register_parquet(name, path.to_string_lossy(), ParquetReadOptions::default()).await
    };
    let error = register("missing", &missing).await.map_err(|e| e.to_string());
    assert!(error.as_ref().is_err_and(|e| e.contains("missing.parquet")), "{error:?}");

    // A file that is cut off in its footer, and one that is damaged in its data.
    let good = dir.path().join("good.parquet");
    gpu.ctx.sql(&format!("COPY t TO '{}'", good.display())).await?.collect().await?;
    let bytes = fs::read(&good)?;
    let cut = dir.path().join("cut.parquet");
    fs::write(&cut, &bytes[..bytes.len() / 2])?;
    let error = register("cut", &cut).await.map_err(|e| e.to_string());
    assert!(error.as_ref().is_err_and(|e| e.to_lowercase().contains("parquet")), "{error:?}");

    let damaged = dir.path().join("damaged.parquet");
    let mut holed = bytes.clone();
    // The header of the first page; the metadata is at the end.
    holed[4..40].fill(0xff);
    fs::write(&damaged, holed)?;
    register("damaged", &damaged).await?;
    gpu.set("placement", "'force'").await?;
    let plan = gpu.ctx.sql("SELECT sum(id) FROM damaged WHERE v > 5").await?.create_physical_plan().await?;
    let error = datafusion::physical_plan::collect(plan, gpu.ctx.task_ctx())
        .await
        .map(|_| ())
        .map_err(|e| e.to_string());
    assert!(error.as_ref().is_err_and(|e| e.to_lowercase().contains("parquet")), "{error:?}");
    Ok(())
}
