//! What of a query runs on the GPU, and why the rest does not: in Rust and in SQL.
//! Run it with `cargo run --example explain_placement`.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use datafusion::arrow::datatypes::DataType;
use datafusion::error::Result;
use datafusion::logical_expr::{ColumnarValue, Volatility, create_udf};
use datafusion::prelude::SessionContext;
use datafusion_wgpu::optimizer::NodePlacement;
use datafusion_wgpu::{placement_report, register_gpu, shared_runtime};

#[tokio::main]
async fn main() -> Result<()> {
    let ctx = SessionContext::new();
    register_gpu(&ctx)?;
    ctx.sql("SET gpu.allow_software_adapter = true").await?;
    ctx.register_batch("visits", visits()?)?;
    // A function that the GPU can't know.
    let itself = |values: &[ColumnarValue]| Ok(values[0].clone());
    ctx.register_udf(create_udf(
        "itself",
        vec![DataType::Int64],
        DataType::Int64,
        Volatility::Immutable,
        Arc::new(itself),
    ));
    let has_adapter = shared_runtime().adapters().iter().any(|adapter| adapter.int64);

    // By default small inputs stay where they are: moving them costs more than it saves.
    let seconds = "SELECT sum(seconds) FROM visits WHERE seconds > 30";
    let report = placement_report(&ctx, seconds).await?;
    println!("{seconds}\n{report}");
    let reason = if has_adapter { "TooFewRows" } else { "NoAdapter" };
    assert!(report.codes("AggregateExec").contains(&reason), "{report}");

    // Forced, the aggregate and its filter move.
    ctx.sql("SET gpu.placement = 'force'").await?;
    let report = placement_report(&ctx, seconds).await?;
    println!("{seconds}\n{report}");
    assert_eq!(report.uses_gpu(), has_adapter, "{report}");

    // Whatever the placement, an operator that the GPU can't do exactly stays, and the report names the reason. The rest of
    // the query is not held back by it.
    let mixed = "SELECT sum(seconds) FROM visits WHERE itself(seconds) > 30";
    let report = placement_report(&ctx, mixed).await?;
    println!("{mixed}\n{report}");
    let filter = report.nodes.iter().find(|node| node.cpu_name == "FilterExec");
    assert!(
        filter.is_some_and(|node| node.placement == NodePlacement::Cpu && !node.reasons.is_empty()),
        "{report}"
    );
    assert_eq!(report.uses_gpu(), has_adapter, "{report}");

    // The same in SQL, for any client; EXPLAIN VERBOSE has it too.
    let explain = format!("SELECT node, placement, code, expression FROM gpu_explain('{mixed}')");
    let explained = ctx.sql(&explain).await?;
    assert_eq!(explained.clone().count().await?, report.nodes.len());
    explained.show().await
}

/// A thousand visits of two pages.
fn visits() -> Result<RecordBatch> {
    let pages: ArrayRef = Arc::new(StringArray::from_iter_values((0..1000).map(|i| ["home", "help"][i % 2])));
    let seconds: ArrayRef = Arc::new(Int64Array::from_iter_values((0..1000).map(|i| i % 97)));
    Ok(RecordBatch::try_from_iter([("page", pages), ("seconds", seconds)])?)
}
