//! DataFusion's DataFrame API on the GPU: nothing in it changes.
//! Run it with `cargo run --example dataframe_api`.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, Date32Array, Int32Array, RecordBatch};
use datafusion::assert_batches_eq;
use datafusion::dataframe::DataFrameWriteOptions;
use datafusion::error::Result;
use datafusion::functions_aggregate::expr_fn::{count, max, min, sum};
use datafusion::physical_plan::{ExecutionPlan, collect};
use datafusion::prelude::{ParquetReadOptions, SessionConfig, SessionContext, col, lit};
use datafusion_wgpu::{GpuOptions, Placement, register_gpu, shared_runtime};

#[tokio::main]
async fn main() -> Result<()> {
    // Whatever is supported goes to the GPU, or to a software adapter where there is none.
    let mut options = GpuOptions::default();
    options.placement = Placement::Force;
    options.allow_software_adapter = true;
    let ctx = SessionContext::new_with_config(SessionConfig::new().with_option_extension(options));
    register_gpu(&ctx)?;

    let folder = tempfile::tempdir()?;
    let path = folder.path().join("readings.parquet").display().to_string();
    ctx.read_batch(readings()?)?.write_parquet(&path, DataFrameWriteOptions::new(), None).await?;

    let warm = ctx
        .read_parquet(&path, ParquetReadOptions::default())
        .await?
        .filter(col("celsius").gt(lit(20)))?
        .with_column("tenths", col("celsius") * lit(10))?
        .aggregate(
            vec![],
            vec![
                count(col("tenths")).alias("readings"),
                max(col("tenths")).alias("warmest"),
                min(col("day")).alias("first"),
                sum(col("celsius")).alias("sum"),
            ],
        )?;

    let plan = warm.create_physical_plan().await?;
    let rows = collect(Arc::clone(&plan), ctx.task_ctx()).await?;
    assert_batches_eq!(
        [
            "+----------+---------+------------+---------+",
            "| readings | warmest | first      | sum     |",
            "+----------+---------+------------+---------+",
            "| 48780    | 400     | 1970-01-22 | 1487790 |",
            "+----------+---------+------------+---------+",
        ],
        &rows
    );
    let has_adapter = shared_runtime().adapters().iter().any(|adapter| adapter.int64);
    assert_eq!(gpu_batches(&plan) > 0, has_adapter, "what ran on the GPU");
    println!("{} batches were answered by the GPU.", gpu_batches(&plan));
    Ok(())
}

/// Batches that the device answered, by the metrics of the plan that ran.
fn gpu_batches(plan: &Arc<dyn ExecutionPlan>) -> usize {
    let own = plan.metrics().and_then(|metrics| metrics.sum_by_name("gpu_batches"));
    own.map_or(0, |sum| sum.as_usize()) + plan.children().into_iter().map(gpu_batches).sum::<usize>()
}

/// A hundred thousand readings from 0 to 40 degrees, one a day.
fn readings() -> Result<RecordBatch> {
    let days: ArrayRef = Arc::new(Date32Array::from_iter_values(0..100_000));
    let celsius: ArrayRef = Arc::new(Int32Array::from_iter_values((0..100_000).map(|day| day % 41)));
    Ok(RecordBatch::try_from_iter([("day", days), ("celsius", celsius)])?)
}
