//! GPU nodes read nothing before they are asked for a batch, as DataFusion's own operators do.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use datafusion::catalog::TableProvider;
use futures::StreamExt;

use crate::harness::{Gpu, TestResult, cpu, run};
use crate::sources::watched;

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_read_before_the_first_poll() -> TestResult {
    let gpu = Gpu::new(1).await?;
    for sql in ["SELECT v + 1 AS w FROM t WHERE v > 5", "SELECT sum(v) FROM t WHERE v > 5"] {
        let asked = Arc::new(AtomicUsize::new(0));
        gpu.ctx.deregister_table("t")?;
        gpu.ctx.register_table("t", watched(500, &asked)?)?;
        let plan = gpu.ctx.sql(sql).await?.create_physical_plan().await?;
        assert!(plan.name().starts_with("Gpu"), "{}", plan.name());
        let mut stream = plan.execute(0, gpu.ctx.task_ctx())?;
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(asked.load(Ordering::SeqCst), 0, "{sql}");
        assert!(
            stream.next().await.is_some_and(|batch| batch.is_ok_and(|rows| rows.num_rows() > 0)),
            "{sql}"
        );
        assert_eq!(asked.load(Ordering::SeqCst), 1, "{sql}");
    }
    Ok(())
}

/// A join does not look at the probe side when the build side is empty, and so does not raise what lies there.
#[tokio::test(flavor = "multi_thread")]
async fn the_probe_side_of_an_empty_build_side_does_not_raise() -> TestResult {
    let sql = "SELECT a.v FROM t AS a JOIN (SELECT id + 1 AS w FROM t WHERE sqrt(v - 200000) > 1) AS b ON a.id = b.w WHERE a.v < 0";
    let gpu = Gpu::new(2).await?;
    let cpu = cpu(2);
    let asked = Arc::new(AtomicUsize::new(0));
    let source: Arc<dyn TableProvider> = watched(500, &asked)?;
    for ctx in [&gpu.ctx, &cpu] {
        ctx.register_table("t", Arc::clone(&source))?;
    }
    assert!(cpu.sql("SELECT sqrt(v - 200000) FROM t").await?.collect().await.is_err());
    let (want, got) = (run(&cpu, sql).await?, gpu.run(sql).await?);
    assert_eq!((want.rows.len(), got.rows.len()), (0, 0));
    assert!(got.nodes.iter().any(|node| node == "GpuProjectionExec"), "{}", got.plan);
    Ok(())
}
