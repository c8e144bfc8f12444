//! What is told of a fallback: a code that says what happened, and the expressions among which the fault is.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, AsArray};
use datafusion::arrow::datatypes::DataType;
use datafusion::common::exec_err;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::logical_expr::{ColumnarValue, Volatility, create_udf};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::execution_plan::replace_children_if_necessary;
use datafusion_wgpu::memory::faults::{Choke, Fault};
use datafusion_wgpu::observe::Subscription;
use parking_lot::Mutex;

use crate::harness::{Gpu, TestResult, run_plan};
use crate::sources;

type Told = Arc<Mutex<Vec<(&'static str, String)>>>;

async fn session() -> TestResult<(Gpu, Told, Subscription)> {
    let gpu = Gpu::new(1).await?;
    gpu.ctx.register_table("t", sources::memory(&[(0, 700)])?)?;
    let told = Told::default();
    let into = Arc::clone(&told);
    let subscription =
        gpu.runtime.on_fallback(move |event| into.lock().push((event.code, event.message.clone())));
    Ok((gpu, told, subscription))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fault_is_told_with_the_expressions_that_were_computed() -> TestResult {
    let (gpu, told, _subscription) = session().await?;
    for (sql, parts) in [
        ("SELECT id FROM t WHERE id <> 5 AND 10 / (id - 5) > 1", ["GpuFilterExec: predicate=", "id@0 - 5"]),
        (
            "SELECT sum(10 / (id - 5)) FROM t WHERE v <> 1",
            ["GpuAggregateExec: mode=", "GpuFilterExec: predicate=v@1 != 1"],
        ),
    ] {
        told.lock().clear();
        assert!(gpu.run(sql).await.is_err(), "{sql}");
        let told = told.lock().clone();
        assert!(
            matches!(told.as_slice(), [("ArithmeticFault", text)] if parts.iter().all(|part| text.contains(part))),
            "{sql}: {told:?}"
        );
    }
    Ok(())
}

/// A function by the name of one that has a value for every string, and which has not.
#[tokio::test(flavor = "multi_thread")]
async fn a_function_that_raises_unexpectedly_has_a_code_of_its_own() -> TestResult {
    let (gpu, told, _subscription) = session().await?;
    let reverse = |args: &[ColumnarValue]| {
        let values: ArrayRef = args[0].to_array(1)?;
        if values.as_string::<i32>().iter().flatten().any(|value| value == "name 5") {
            return exec_err!("nothing in reverse");
        }
        Ok(ColumnarValue::Array(values))
    };
    let udf =
        create_udf("reverse", vec![DataType::Utf8], DataType::Utf8, Volatility::Immutable, Arc::new(reverse));
    gpu.ctx.register_udf(udf);
    let ran = gpu.run("SELECT id FROM t WHERE reverse(s) = 'name 7'").await;
    let text = ran.err().map(|error| error.to_string()).unwrap_or_default();
    assert!(text.contains("nothing in reverse"), "{text}");
    let told = told.lock().clone();
    assert!(matches!(told.as_slice(), [("TableRaised", text)] if text.contains("reverse(s@")), "{told:?}");
    Ok(())
}

/// Nodes that only pass batches on hide nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_shader_is_told_with_the_expressions_below_transparent_nodes() -> TestResult {
    let (gpu, told, _subscription) = session().await?;
    let sql = "SELECT sum(v) FROM t WHERE id > 4";
    let plan = gpu.ctx.sql(sql).await?.create_physical_plan().await?;
    let below = |node: Arc<dyn ExecutionPlan>| {
        let cooperative = |child: &Arc<dyn ExecutionPlan>| -> Arc<dyn ExecutionPlan> {
            Arc::new(CooperativeExec::new(Arc::clone(child)))
        };
        if node.name() == "GpuAggregateExec" {
            let children = node.children().into_iter().map(cooperative).collect();
            return replace_children_if_necessary(node, children).map(Transformed::yes);
        }
        Ok(Transformed::no(node))
    };
    let plan = plan.transform_up(below).data()?;
    gpu.device.faults().order(Choke::Compile, 1, Fault::Fail);
    let ran = run_plan(&gpu.ctx, plan).await?;
    assert!(
        ran.plan.contains("CooperativeExec") && ran.nodes == ["GpuAggregateExec", "GpuFilterExec"],
        "{ran:?}"
    );
    let told = told.lock().clone();
    assert!(
        matches!(told.as_slice(), [("ShaderRejected", text)] if text.contains("GpuFilterExec: predicate=id@0 > 4")),
        "{told:?}"
    );
    Ok(())
}
