//! A session, one call, and SQL over Parquet: the same answer from DataFusion's own operators and from the GPU.
//!
//! `cargo run --example quickstart` makes a small table of its own. `cargo run --release --example quickstart -- DIR` reads the
//! Parquet files in DIR, with the columns of TPC-H's lineitem, such as `datafusion-wgpu tpch-data` writes.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use datafusion::arrow::util::pretty::pretty_format_batches;
use datafusion::error::Result;
use datafusion::physical_plan::{ExecutionPlan, collect, displayable};
use datafusion::prelude::{ParquetReadOptions, SessionContext};
use datafusion_wgpu::{register_gpu, shared_runtime};

const QUERY: &str =
    "SELECT count(*) AS lines, sum(l_extendedprice * l_discount) AS revenue, max(l_shipdate) AS last
FROM lineitem
WHERE l_discount BETWEEN 0.05 AND 0.07 AND l_quantity < 24";

#[tokio::main]
async fn main() -> Result<()> {
    // A DataFusion session like any other, and the one line that puts the GPU behind it.
    let ctx = SessionContext::new();
    register_gpu(&ctx)?;

    let temporary = tempfile::tempdir()?;
    let folder = match std::env::args().nth(1) {
        Some(folder) => folder,
        None => make_lineitem(&ctx, temporary.path()).await?,
    };
    ctx.register_parquet("lineitem", folder, ParquetReadOptions::default()).await?;

    let on_cpu = run(&ctx, "off").await?;
    // `auto`, the default, leaves small inputs and machines without a GPU to the CPU. For trying out, take what there is.
    ctx.sql("SET gpu.allow_software_adapter = true").await?;
    let on_gpu = run(&ctx, "force").await?;

    println!("{on_gpu}");
    assert_eq!(on_cpu, on_gpu, "the GPU gives DataFusion's answer");
    println!("The answers are equal.");
    Ok(())
}

/// Runs the query with `gpu.placement` set, prints what ran, and gives the rows as text.
async fn run(ctx: &SessionContext, placement: &str) -> Result<String> {
    ctx.sql(&format!("SET gpu.placement = '{placement}'")).await?;
    let plan = ctx.sql(QUERY).await?.create_physical_plan().await?;
    let start = Instant::now();
    let rows = collect(Arc::clone(&plan), ctx.task_ctx()).await?;
    println!(
        "gpu.placement = '{placement}', {:?}:\n{}",
        start.elapsed(),
        displayable(plan.as_ref()).indent(false)
    );

    let has_adapter = shared_runtime().adapters().iter().any(|adapter| adapter.int64);
    let expected = placement == "force" && has_adapter;
    assert_eq!(gpu_batches(&plan) > 0, expected, "what ran on the GPU");
    Ok(pretty_format_batches(&rows)?.to_string())
}

/// Batches that the device answered, by the metrics of the plan that ran.
fn gpu_batches(plan: &Arc<dyn ExecutionPlan>) -> usize {
    let own = plan.metrics().and_then(|metrics| metrics.sum_by_name("gpu_batches"));
    own.map_or(0, |sum| sum.as_usize()) + plan.children().into_iter().map(gpu_batches).sum::<usize>()
}

/// Writes a million made-up lines to a Parquet file and gives its path.
async fn make_lineitem(ctx: &SessionContext, folder: &Path) -> Result<String> {
    let path = folder.join("lineitem.parquet").display().to_string();
    let lines = "SELECT arrow_cast(value % 50 + 1, 'Decimal128(15, 2)') AS l_quantity,
        arrow_cast(value % 90000 + 1000, 'Decimal128(15, 2)') AS l_extendedprice,
        arrow_cast(value % 11, 'Decimal128(15, 2)') / 100 AS l_discount,
        DATE '1992-01-01' + arrow_cast(value % 2500, 'Int32') AS l_shipdate
        FROM generate_series(1, 1000000)";
    ctx.sql(&format!("COPY ({lines}) TO '{path}'")).await?.collect().await?;
    Ok(path)
}
