//! What a query tells about itself: hooks, remembered fallbacks, EXPLAIN VERBOSE and EXPLAIN ANALYZE.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use datafusion::catalog::Session;
use datafusion::error::Result;
use datafusion::execution::context::QueryPlanner;
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_planner::{DefaultPhysicalPlanner, PhysicalPlanner};
use datafusion::prelude::SessionContext;
use datafusion_wgpu::memory::faults::Choke;
use datafusion_wgpu::{FallbackEvent, GpuSessionStateBuilderExt, QueryStats};
use futures::StreamExt;
use parking_lot::Mutex;

use crate::harness::{Gpu, TestResult, register_files, write_files};

const AGGREGATE: &str = "SELECT count(*), sum(v) FROM t WHERE v > 20000";
const ROWS: &str = "SELECT id, v + id AS w FROM t WHERE v > 50000";

type Log<E> = Arc<Mutex<Vec<E>>>;

async fn session(dir: &tempfile::TempDir) -> TestResult<Gpu> {
    let gpu = Gpu::new(2).await?;
    write_files(dir.path(), 3, 5_001)?;
    register_files(&gpu.ctx, "t", dir.path()).await?;
    Ok(gpu)
}

fn log_queries(gpu: &Gpu) -> Log<QueryStats> {
    let log: Log<QueryStats> = Arc::default();
    let into = Arc::clone(&log);
    gpu.runtime.on_query(move |stats| into.lock().push(stats.clone())).forever();
    log
}

fn log_fallbacks(gpu: &Gpu) -> Log<FallbackEvent> {
    let log: Log<FallbackEvent> = Arc::default();
    let into = Arc::clone(&log);
    gpu.runtime.on_fallback(move |event| into.lock().push(event.clone())).forever();
    log
}

/// The events so far, at least `count` of them: the tasks of a query that failed or was dropped end a little later.
async fn settled<E: Clone>(log: &Log<E>, count: usize) -> Vec<E> {
    for _ in 0..500 {
        if log.lock().len() >= count {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    log.lock().clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_finished_query_is_told_once() -> TestResult {
    let dir = tempfile::tempdir()?;
    let gpu = session(&dir).await?;
    let log = log_queries(&gpu);
    gpu.ctx.sql("SELECT s FROM t WHERE ln(v) < 0").await?.collect().await?;
    gpu.ctx.sql(&format!("EXPLAIN {AGGREGATE}")).await?.collect().await?;
    for sql in [AGGREGATE, ROWS] {
        gpu.ctx.sql(sql).await?.collect().await?;
    }
    let stats = settled(&log, 2).await;
    let [aggregate, rows] = &stats[..] else { panic!("{stats:?}") };
    assert!(rows.query_id > aggregate.query_id);
    assert_eq!(aggregate.session_id, gpu.ctx.session_id());
    assert!(aggregate.query.contains("sum(") && aggregate.query.contains("FROM t"), "{}", aggregate.query);
    assert!(rows.query.contains("AS w"), "{}", rows.query);
    for stats in [aggregate, rows] {
        assert!(stats.gpu_batches > 0 && stats.cpu_batches == 0 && stats.fallbacks.is_empty(), "{stats:?}");
        assert!(stats.uploaded_bytes > 8 * 15_000 && stats.downloaded_bytes > 0, "{stats:?}");
        assert!(stats.dispatches > 0 && stats.waits > 0 && stats.elapsed.as_nanos() > 0, "{stats:?}");
        assert!(stats.peak_device_bytes > 0 && stats.peak_device_bytes <= gpu.device.ledger().peak());
        assert_eq!(stats.kernel_time.is_some(), gpu.device.caps().timestamps);
    }
    assert!(aggregate.pipelines_compiled > 0 && aggregate.compile_time.as_nanos() > 0);
    Ok(())
}

/// Two islands of one query, one of them in a scalar subquery that runs first, are one event.
#[tokio::test(flavor = "multi_thread")]
async fn islands_of_a_query_are_added_up() -> TestResult {
    let dir = tempfile::tempdir()?;
    let gpu = session(&dir).await?;
    let log = log_queries(&gpu);
    let sql = "SELECT count(*) FROM t WHERE v > (SELECT min(v) + 10 FROM t WHERE id > 5)";
    let ran = gpu.run(sql).await?;
    assert!(ran.nodes.iter().filter(|node| *node == "GpuAggregateExec").count() == 2, "{}", ran.plan);
    let stats = settled(&log, 1).await;
    assert_eq!(stats.len(), 1);
    assert_eq!(stats[0].gpu_batches, ran.gpu_batches as u64);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_and_dropped_queries_are_told_too() -> TestResult {
    let dir = tempfile::tempdir()?;
    let gpu = session(&dir).await?;
    let log = log_queries(&gpu);
    gpu.set("fallback", "'error'").await?;
    gpu.device.faults().fail(Choke::Submit, 1);
    let failed = gpu.ctx.sql(AGGREGATE).await?.collect().await;
    gpu.device.faults().clear();
    assert!(failed.is_err());
    assert_eq!(settled(&log, 1).await[0].fallbacks, [("KernelFault", 1)]);
    let mut stream = gpu.ctx.sql(ROWS).await?.execute_stream().await?;
    assert!(stream.next().await.is_some());
    drop(stream);
    assert_eq!(settled(&log, 2).await.len(), 2);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fallback_is_told_and_remembered() -> TestResult {
    let dir = tempfile::tempdir()?;
    let gpu = session(&dir).await?;
    let log = log_fallbacks(&gpu);
    for (scope, policy, forbidden) in
        [("batch", "silent", false), ("island", "warn", false), ("batch", "error", true)]
    {
        gpu.set("fallback_scope", &format!("'{scope}'")).await?;
        gpu.set("fallback", &format!("'{policy}'")).await?;
        gpu.device.faults().fail(Choke::Submit, 1);
        let result = gpu.ctx.sql(AGGREGATE).await?.collect().await;
        gpu.device.faults().clear();
        assert_eq!(result.is_err(), forbidden);
        let event = log.lock().last().cloned().ok_or("no event")?;
        assert_eq!((event.scope, event.code, event.forbidden), (scope, "KernelFault", forbidden));
        assert!(event.node.starts_with("GpuAggregateExec[") && event.message.contains("injected fault"));
        assert!(event.query.contains("FROM t") && event.query_id > 0, "{event:?}");
        assert_eq!(event.session_id, gpu.ctx.session_id());
    }
    let recent = gpu.runtime.observers().recent_fallbacks();
    assert_eq!(recent, log.lock().iter().rev().cloned().collect::<Vec<_>>());
    Ok(())
}

/// A plan that is kept, as by those who read its metrics, does not make its query longer.
#[tokio::test(flavor = "multi_thread")]
async fn the_time_of_a_kept_plan_is_that_of_its_work() -> TestResult {
    let dir = tempfile::tempdir()?;
    let gpu = session(&dir).await?;
    let log = log_queries(&gpu);
    let plan = gpu.ctx.sql(AGGREGATE).await?.create_physical_plan().await?;
    let started = std::time::Instant::now();
    datafusion::physical_plan::collect(Arc::clone(&plan), gpu.ctx.task_ctx()).await?;
    let took = started.elapsed();
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    assert_eq!(log.lock().len(), 0);
    drop(plan);
    let stats = settled(&log, 1).await;
    assert!(stats[0].elapsed <= took + std::time::Duration::from_millis(200), "{:?} {took:?}", stats[0]);
    Ok(())
}

/// A planner that was set later is wrapped again.
#[tokio::test(flavor = "multi_thread")]
async fn registering_again_mends_what_was_replaced() -> TestResult {
    let builder = SessionStateBuilder::new_with_default_features().with_gpu();
    let planner: Arc<dyn QueryPlanner + Send + Sync> = Arc::new(CountingPlanner::default());
    let ctx = SessionContext::new_with_state(builder.with_query_planner(planner).build());
    let planned =
        |ctx: &SessionContext| datafusion_wgpu::session::GpuQueryPlanner::is(ctx.state().query_planner());
    assert!(!planned(&ctx));
    datafusion_wgpu::register_gpu(&ctx)?;
    assert!(planned(&ctx));
    let rules = ctx.state().physical_optimizers().iter().filter(|rule| rule.name() == "gpu_offload").count();
    assert_eq!(rules, 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn explain_verbose_has_the_reasons() -> TestResult {
    let dir = tempfile::tempdir()?;
    let gpu = session(&dir).await?;
    let sql = "SELECT sum(v) FROM t WHERE ln(v) > 2";
    let verbose = gpu.run(&format!("EXPLAIN VERBOSE {sql}")).await?.rows.join("\n");
    let wanted = "physical_plan after gpu_offload (placement and reasons)|";
    assert!(verbose.contains(wanted), "{verbose}");
    assert!(verbose.contains("AggregateExec -> GpuAggregateExec"), "{verbose}");
    assert!(verbose.contains("FilterExec [CPU] FloatArithmetic"), "{verbose}");
    let plain = gpu.run(&format!("EXPLAIN {sql}")).await?.rows.join("\n");
    assert!(!plain.contains("placement and reasons") && plain.contains("GpuAggregateExec"), "{plain}");
    gpu.set("placement", "'off'").await?;
    let off = gpu.run(&format!("EXPLAIN VERBOSE {sql}")).await?.rows.join("\n");
    assert!(off.contains("Disabled: ") && !off.contains("GpuAggregateExec"), "{off}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn explain_analyze_has_the_metrics() -> TestResult {
    let dir = tempfile::tempdir()?;
    let gpu = session(&dir).await?;
    gpu.device.faults().fail(Choke::Submit, 2);
    let text = gpu.run(&format!("EXPLAIN ANALYZE {AGGREGATE}")).await?.rows.join("\n");
    gpu.device.faults().clear();
    let node = text.lines().find(|line| line.contains("GpuAggregateExec")).ok_or("no GPU node")?;
    for metric in [
        "bytes_uploaded=",
        "bytes_downloaded=",
        "dispatches=",
        "waits=",
        "pipelines_compiled=",
        "upload_time=",
        "compile_time=",
        "read_back_time=",
        "peak_device_bytes=",
        "gpu_batches=",
        "cpu_batches=1",
        "fallback.KernelFault=1",
    ] {
        assert!(node.contains(metric), "{metric} is not in {node}");
    }
    assert_eq!(node.contains("kernel_time="), gpu.device.caps().timestamps, "{node}");
    assert!(!node.contains("peak_device_bytes=0"), "{node}");
    Ok(())
}

#[derive(Debug, Default)]
struct CountingPlanner {
    calls: AtomicUsize,
}

#[async_trait::async_trait]
impl QueryPlanner for CountingPlanner {
    async fn create_physical_plan(
        &self,
        plan: &LogicalPlan,
        session: &dyn Session,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        DefaultPhysicalPlanner::default().create_physical_plan(plan, session).await
    }
}

#[tokio::test]
async fn the_users_planner_goes_on_planning() -> TestResult {
    let planner = Arc::new(CountingPlanner::default());
    let inner: Arc<dyn QueryPlanner + Send + Sync> = Arc::<CountingPlanner>::clone(&planner);
    let builder = SessionStateBuilder::new_with_default_features().with_query_planner(Arc::clone(&inner));
    SessionContext::new_with_state(builder.with_gpu().build()).sql("SELECT 1").await?.collect().await?;
    assert_eq!(planner.calls.load(Ordering::Relaxed), 1);
    let state = SessionStateBuilder::new_with_default_features().with_query_planner(inner).build();
    let ctx = SessionContext::new_with_state(state);
    datafusion_wgpu::register_gpu(&ctx)?;
    datafusion_wgpu::register_gpu(&ctx)?;
    ctx.sql("SELECT 1").await?.collect().await?;
    assert_eq!(planner.calls.load(Ordering::Relaxed), 2);
    Ok(())
}
