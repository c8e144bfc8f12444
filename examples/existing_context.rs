//! The GPU behind a session that exists already: its tables, functions and settings stay, and its clones see the GPU too.
//! Run it with `cargo run --example existing_context`.

use std::sync::Arc;

use datafusion::arrow::array::{AsArray, Int64Array, RecordBatch};
use datafusion::arrow::datatypes::Int64Type;
use datafusion::error::Result;
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::physical_plan::displayable;
use datafusion::prelude::{SessionConfig, SessionContext};
use datafusion_wgpu::{GpuOptions, GpuSessionStateBuilderExt, Placement, register_gpu, shared_runtime};

const QUERY: &str = "SELECT sum(amount) AS total FROM payments WHERE amount > 10";

#[tokio::main]
async fn main() -> Result<()> {
    extend_a_context().await?;
    build_a_context().await
}

/// An application's context, set up without a thought of GPUs, gets one afterwards.
async fn extend_a_context() -> Result<()> {
    let ctx = SessionContext::new_with_config(SessionConfig::new().with_batch_size(1000));
    ctx.register_batch("payments", payments()?)?;
    let handler = ctx.clone();
    let id = ctx.session_id();

    register_gpu(&ctx)?;
    // Twice does no harm.
    register_gpu(&ctx)?;

    assert_eq!(ctx.session_id(), id);
    assert_eq!(ctx.copied_config().batch_size(), 1000);
    // Clones share the session, so the option set on one holds for the other.
    take_any_adapter(&ctx).await?;
    assert_eq!(total(&handler).await?, 49_995_000 - 55);
    check_plan(&handler).await
}

/// A context that is being built: the options may be given in code.
async fn build_a_context() -> Result<()> {
    let mut options = GpuOptions::default();
    options.placement = Placement::Force;
    options.allow_software_adapter = true;
    let config = SessionConfig::new().with_option_extension(options);
    // After `with_config`, which would replace the options.
    let state = SessionStateBuilder::new().with_default_features().with_config(config).with_gpu().build();
    let ctx = SessionContext::new_with_state(state);
    ctx.register_batch("payments", payments()?)?;
    assert_eq!(total(&ctx).await?, 49_995_000 - 55);
    check_plan(&ctx).await
}

async fn take_any_adapter(ctx: &SessionContext) -> Result<()> {
    for option in ["gpu.placement = 'force'", "gpu.allow_software_adapter = true"] {
        ctx.sql(&format!("SET {option}")).await?;
    }
    Ok(())
}

/// The amounts 0 to 9,999.
fn payments() -> Result<RecordBatch> {
    let amounts = Arc::new(Int64Array::from_iter_values(0..10_000));
    Ok(RecordBatch::try_from_iter([("amount", amounts as _)])?)
}

async fn total(ctx: &SessionContext) -> Result<i64> {
    let rows = ctx.sql(QUERY).await?.collect().await?;
    Ok(rows[0].column(0).as_primitive::<Int64Type>().value(0))
}

async fn check_plan(ctx: &SessionContext) -> Result<()> {
    let plan = ctx.sql(QUERY).await?.create_physical_plan().await?;
    let plan = displayable(plan.as_ref()).indent(false).to_string();
    println!("{plan}");
    let has_adapter = shared_runtime().adapters().iter().any(|adapter| adapter.int64);
    assert_eq!(
        plan.contains("GpuAggregateExec"),
        has_adapter,
        "without an adapter the plan is DataFusion's own"
    );
    Ok(())
}
