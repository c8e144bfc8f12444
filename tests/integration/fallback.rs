//! Falling back to the CPU: in both scopes, with right row counts. `faults` does so at every call of the device.

use datafusion::physical_plan::ExecutionPlan;
use datafusion::prelude::SessionContext;
use datafusion_wgpu::memory::faults::{Choke, Fault};
use datafusion_wgpu::physical_plan::replay;

use crate::harness::{Gpu, TestResult, cpu, expected, register_files, run, run_plan, write_files};

const AGGREGATE: &str = "SELECT count(*), count(k), sum(v), min(d), max(f), avg(id), sum(d * d) FILTER (WHERE k > 500), \
     count(id, k), count(k, f) FILTER (WHERE v > 30000) FROM t WHERE v > 20000";
const ROWS: &str = "SELECT id, s, v + id AS w, d * d AS dd FROM t WHERE v > 50000 AND (k IS NULL OR k < 900)";

async fn files(gpu: &Gpu, dir: &tempfile::TempDir) -> TestResult {
    write_files(dir.path(), 5, 7_001)?;
    register_files(&gpu.ctx, "t", dir.path()).await
}

/// The device is lost in the middle of a query: its work is done again on a new device, unless that is lost again and again.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_device() -> TestResult {
    let dir = tempfile::tempdir()?;
    let gpu = Gpu::new(4).await?;
    files(&gpu, &dir).await?;
    for sql in [AGGREGATE, ROWS] {
        let want = expected(dir.path(), sql).await?;
        for scope in ["batch", "island"] {
            gpu.set("fallback_scope", &format!("'{scope}'")).await?;
            // Once, and at every call: what kills the device is not tried for ever.
            for once in [true, false] {
                if once {
                    gpu.device.faults().lose_at(Choke::Submit, 3);
                } else {
                    gpu.device.faults().order_always(Choke::Submit, Fault::Lose);
                }
                let before = gpu.device.context()?.generation();
                let ran = gpu.run(sql).await?;
                gpu.device.faults().clear();
                assert_eq!(ran.rows, want, "{scope} {once}");
                let lost: usize =
                    ran.fallbacks.iter().filter(|(code, _)| code == "DeviceLost").map(|(_, n)| *n).sum();
                let generations = gpu.device.context()?.generation() - before;
                assert_eq!((lost == 0, ran.gpu_batches == 0), (once, !once), "{ran:?}");
                assert!(
                    ran.retries > 0 && (1..=if once { 1 } else { 6 }).contains(&generations),
                    "{generations}"
                );
                let next = gpu.run(sql).await?;
                assert_eq!(next.rows, want);
                assert!(next.gpu_batches > 0 && next.fallbacks.is_empty(), "{next:?}");
            }
        }
    }
    Ok(())
}

/// `gpu.fallback = 'error'` gives the failure itself, typed.
#[tokio::test(flavor = "multi_thread")]
async fn forbidden() -> TestResult {
    let dir = tempfile::tempdir()?;
    let gpu = Gpu::new(2).await?;
    files(&gpu, &dir).await?;
    gpu.set("fallback", "'error'").await?;
    let (sender, mut ended) = tokio::sync::mpsc::unbounded_channel();
    let _told = gpu.runtime.on_query(move |_| sender.send(()).unwrap_or_default());
    for scope in ["batch", "island"] {
        gpu.set("fallback_scope", &format!("'{scope}'")).await?;
        for sql in [AGGREGATE, ROWS] {
            gpu.device.faults().fail(Choke::Submit, 2);
            let error = gpu.run(sql).await.err().ok_or("the query must fail")?;
            gpu.device.faults().clear();
            let error =
                error.downcast_ref::<datafusion::error::DataFusionError>().ok_or("a DataFusion error")?;
            assert!(datafusion_wgpu::error::GpuError::find(error).is_some(), "{error}");
            // Another partition may still be at work when the query has failed, and would meet the next query's fault.
            ended.recv().await.ok_or("the hook is gone")?;
            settle(&gpu).await?;
        }
    }
    Ok(())
}

/// A limit that no batch fits under: CPU answers, counted; with 'error' the message names need, limit and option.
#[tokio::test(flavor = "multi_thread")]
async fn too_little_device_memory() -> TestResult {
    let dir = tempfile::tempdir()?;
    let gpu = Gpu::new(2).await?;
    files(&gpu, &dir).await?;
    gpu.set("memory_limit", "'1KiB'").await?;
    for sql in [AGGREGATE, ROWS] {
        let ran = gpu.run(sql).await?;
        assert_eq!(ran.rows, expected(dir.path(), sql).await?);
        // The last batch of a partition may be so small that it fits.
        assert!(ran.cpu_batches > 4 && ran.gpu_batches <= 2, "{ran:?}");
        assert!(ran.fallbacks.iter().any(|(code, _)| code == "OutOfDeviceMemory"), "{ran:?}");
    }
    // Room for a part of a batch: split, no fallback.
    gpu.set("memory_limit", "'192KiB'").await?;
    let ran = gpu.run(AGGREGATE).await?;
    assert_eq!(ran.rows, expected(dir.path(), AGGREGATE).await?);
    // 12 uploads in all: what the device answered beyond them were parts of batches.
    assert!(ran.gpu_batches > 0 && ran.gpu_batches + ran.cpu_batches > 14, "{ran:?}");
    gpu.set("memory_limit", "'1KiB'").await?;
    gpu.set("fallback", "'error'").await?;
    let error = gpu.run(AGGREGATE).await.err().ok_or("the query must fail")?.to_string();
    assert!(
        error.contains("gpu.memory_limit") && error.contains("1024") && error.contains("GpuAggregateExec"),
        "{error}"
    );
    Ok(())
}

/// The queries whose dynamic filters make a careless second run wrong: after a full run, a fresh copy gives the same rows.
#[tokio::test(flavor = "multi_thread")]
async fn fresh_copies_of_plans_that_ran() -> TestResult {
    let dir = tempfile::tempdir()?;
    write_files(dir.path(), 5, 7_001)?;
    let gpu = Gpu::new(4).await?;
    register_files(&gpu.ctx, "t", dir.path()).await?;
    let off = cpu(4);
    register_files(&off, "t", dir.path()).await?;
    for sql in [
        "SELECT v FROM t WHERE k > 10 ORDER BY v LIMIT 5",
        "SELECT min(v), max(v) FROM t",
        "SELECT min(v) FROM t WHERE v > 1000",
        "SELECT count(*) FROM t WHERE v > 1000",
        "SELECT k, count(*) FROM t GROUP BY k",
        "SELECT a.id FROM t a JOIN t b ON a.id = b.v WHERE b.k < 3",
    ] {
        let want = run(&off, sql).await?.rows;
        for ctx in [&off, &gpu.ctx] {
            let plan = ctx.sql(sql).await?.create_physical_plan().await?;
            assert!(replay::is_repeatable(&plan));
            assert_eq!(run_plan(ctx, std::sync::Arc::clone(&plan)).await?.rows, want);
            for _ in 0..2 {
                let again = replay::fresh(std::sync::Arc::clone(&plan))?;
                assert_eq!(run_plan(ctx, again).await?.rows, want, "{sql}");
            }
        }
    }
    Ok(())
}

/// The same queries while batches fall back under them.
#[tokio::test(flavor = "multi_thread")]
async fn dynamic_filters_stay_fed() -> TestResult {
    let dir = tempfile::tempdir()?;
    let gpu = Gpu::new(4).await?;
    files(&gpu, &dir).await?;
    for sql in [
        "SELECT v FROM t WHERE k > 10 ORDER BY v LIMIT 5",
        "SELECT min(v), max(v) FROM t",
        "SELECT min(id), max(id) FROM t WHERE v > 1000",
    ] {
        let want = expected(dir.path(), sql).await?;
        for scope in ["batch", "island"] {
            gpu.set("fallback_scope", &format!("'{scope}'")).await?;
            for n in [1, 2, 3] {
                gpu.device.faults().fail(Choke::Submit, n);
                let ran = gpu.run(sql).await?;
                gpu.device.faults().clear();
                assert_eq!(ran.rows, want, "{sql} {scope} {n}");
                assert!(!ran.nodes.is_empty(), "{}", ran.plan);
            }
        }
    }
    Ok(())
}

/// Sorted input in small row groups: once the minimum is known, the scan prunes what comes later.
#[tokio::test(flavor = "multi_thread")]
async fn scans_are_pruned_by_what_was_aggregated() -> TestResult {
    let dir = tempfile::tempdir()?;
    write_files(dir.path(), 20, 7_001)?;
    // The filter comes with a partial aggregate, so two partitions; each reads its files in order.
    let gpu = Gpu::new(2).await?;
    register_files(&gpu.ctx, "t", dir.path()).await?;
    let plan = gpu.ctx.sql("SELECT min(id) FROM t WHERE v >= 0").await?.create_physical_plan().await?;
    let ran = run_plan(&gpu.ctx, std::sync::Arc::clone(&plan)).await?;
    assert_eq!(ran.rows, ["0"]);
    assert!(ran.nodes.iter().any(|node| node == "GpuAggregateExec"), "{}", ran.plan);
    let read = scanned_rows(&plan);
    assert!(read > 0 && read < 20 * 7_001, "the scan gave {read} rows, nothing was pruned\n{}", ran.plan);
    Ok(())
}

/// MIN tells -0 from +0 and MAX sees NaN; a filter by what was aggregated would not, so scans get none over floats.
#[tokio::test(flavor = "multi_thread")]
async fn floats_are_not_pruned() -> TestResult {
    let dir = tempfile::tempdir()?;
    let gpu = Gpu::new(2).await?;
    for option in ["execution.collect_statistics = false", "execution.parquet.pushdown_filters = true"] {
        gpu.ctx.sql(&format!("SET datafusion.{option}")).await?;
    }
    for (file, value) in
        [("1", "CASE WHEN value < 5000 THEN 0.0 ELSE -0.0 END"), ("2", "'NaN'::double"), ("3", "5.0")]
    {
        let path = dir.path().join(format!("{file}.parquet"));
        let sql = format!("COPY (SELECT {value} AS f FROM generate_series(1, 5000)) TO '{}'", path.display());
        gpu.ctx.sql(&sql).await?.collect().await?;
    }
    register_files(&gpu.ctx, "t", dir.path()).await?;
    for _ in 0..5 {
        let ran = gpu.run("SELECT min(f), max(f) FROM t").await?;
        assert_eq!(ran.rows, ["-0.0|NaN"], "{}", ran.plan);
        assert!(ran.gpu_batches > 0 && ran.cpu_batches == 0, "{ran:?}");
    }
    Ok(())
}

/// Rows that the leaves of a plan gave.
fn scanned_rows(plan: &std::sync::Arc<dyn ExecutionPlan>) -> usize {
    let children = plan.children();
    if children.is_empty() {
        return plan.metrics().and_then(|metrics| metrics.output_rows()).unwrap_or(0);
    }
    children.into_iter().map(scanned_rows).sum()
}

/// A leaf that cannot be read again: the island is replayed from what was read and the live rest.
#[tokio::test(flavor = "multi_thread")]
async fn retained_batches_and_live_rest() -> TestResult {
    let gpu = Gpu::new(2).await?;
    gpu.ctx.register_table("t", crate::sources::once(3, 4_000)?)?;
    gpu.set("fallback_scope", "'island'").await?;
    let off = cpu(2);
    off.register_table("t", crate::sources::once(3, 4_000)?)?;
    let want = run(&off, AGGREGATE).await?.rows;
    for n in 1..6 {
        gpu.ctx.deregister_table("t")?;
        gpu.ctx.register_table("t", crate::sources::once(3, 4_000)?)?;
        gpu.device.faults().fail(Choke::Submit, n);
        let ran = gpu.run(AGGREGATE).await?;
        gpu.device.faults().clear();
        assert_eq!(ran.rows, want, "{n}");
        assert!(ran.fallbacks.iter().any(|(code, _)| code == "KernelFault"), "{ran:?}");
    }
    Ok(())
}

/// A source that ends in an error: the error is the answer, also where a failure on the device came before it.
#[tokio::test(flavor = "multi_thread")]
async fn an_input_that_fails_under_a_fallback() -> TestResult {
    let gpu = Gpu::new(2).await?;
    for scope in ["batch", "island"] {
        gpu.set("fallback_scope", &format!("'{scope}'")).await?;
        for sql in [AGGREGATE, ROWS] {
            for n in 1..5 {
                gpu.ctx.register_table("t", crate::sources::failing(3, 4_000)?)?;
                gpu.device.faults().fail(Choke::Submit, n);
                let error = gpu.run(sql).await.err().ok_or("the query must fail")?.to_string();
                gpu.device.faults().clear();
                assert!(error.contains("the source broke"), "{scope} {n}: {error}");
                gpu.ctx.deregister_table("t")?;
            }
        }
    }
    settle(&gpu).await
}

/// Two sessions, with the rule forced and without it, over 2,900 rows of which one overflows when it is cubed.
async fn overflowing(partitions: usize) -> TestResult<(Gpu, SessionContext)> {
    let (gpu, off) = (Gpu::new(partitions).await?, cpu(partitions));
    for ctx in [&gpu.ctx, &off] {
        ctx.sql(
            "CREATE TABLE t AS SELECT value AS id, \
             CAST(CASE WHEN value = 2500 THEN '10000000000000000000000000000' ELSE '1' END AS DECIMAL(31, 2)) AS z \
             FROM generate_series(1, 2900)",
        )
        .await?;
    }
    Ok((gpu, off))
}

/// Of several rows that raise in one partition, the first one's error, although their batches are worked on at once.
#[tokio::test(flavor = "multi_thread")]
async fn the_first_of_several_errors() -> TestResult {
    let (gpu, off) = (Gpu::new(1).await?, cpu(1));
    gpu.set("batch_rows", "500").await?;
    for ctx in [&gpu.ctx, &off] {
        ctx.sql(
            "CREATE TABLE t AS SELECT CAST(CASE WHEN value % 500 = 400 \
             THEN concat(CAST(value AS VARCHAR), '0000000000000000000000000') ELSE '1' END AS DECIMAL(31, 2)) AS z \
             FROM generate_series(1, 5000)",
        )
        .await?;
    }
    let text = |error: Option<Box<dyn std::error::Error + Send + Sync>>| error.map(|error| error.to_string());
    for sql in ["SELECT sum(z * z * z) FROM t", "SELECT z * z * z FROM t"] {
        let want = text(run(&off, sql).await.err());
        assert!(want.as_ref().is_some_and(|error| error.contains("400000")), "{want:?}");
        for _ in 0..10 {
            assert_eq!(text(gpu.run(sql).await.err()), want, "{sql}");
        }
    }
    Ok(())
}

/// Rows before the row that raises go out, for a parent that needs no more than those: as on the CPU.
#[tokio::test(flavor = "multi_thread")]
async fn rows_before_an_error() -> TestResult {
    let (gpu, off) = overflowing(1).await?;
    let sql = "SELECT unnest(make_array(id)) AS u FROM t WHERE z * z * z > 0 LIMIT 3";
    let (want, got) = (run(&off, sql).await?, gpu.run(sql).await?);
    assert_eq!(got.rows, want.rows);
    assert!(got.nodes.iter().any(|node| node == "GpuFilterExec") && got.cpu_batches > 0, "{got:?}");
    let all = "SELECT id FROM t WHERE z * z * z > 0";
    let (want, got) = (run(&off, all).await, gpu.run(all).await);
    let text = |error: Option<Box<dyn std::error::Error + Send + Sync>>| error.map(|error| error.to_string());
    let (want, got) = (text(want.err()), text(got.err()));
    assert!(want.is_some() && want == got, "{want:?} and {got:?}");
    Ok(())
}

/// A LIMIT that is reached before the source breaks: no error, as on the CPU.
#[tokio::test(flavor = "multi_thread")]
async fn a_limit_before_the_end_of_a_broken_source() -> TestResult {
    for limit in [1, 2, 699, 2000] {
        let sql = format!("SELECT id FROM t WHERE v >= 0 LIMIT {limit}");
        let (gpu, off) = (Gpu::new(1).await?, cpu(1));
        gpu.set("batch_rows", "100000").await?;
        for ctx in [&gpu.ctx, &off] {
            ctx.register_table("t", crate::sources::failing(1, 4_000)?)?;
        }
        assert_eq!(run(&off, &sql).await?.rows.len(), limit);
        let ran = gpu.run(&sql).await?;
        assert_eq!(ran.rows.len(), limit);
        assert!(ran.gpu_batches > 0, "{}", ran.plan);
    }
    Ok(())
}

/// A column of a projection is computed for every row on the CPU, also for rows that an aggregate's FILTER passes over: so
/// its error is an error here too. In the aggregate's own argument the FILTER guards.
#[tokio::test(flavor = "multi_thread")]
async fn errors_of_columns_that_are_filtered_later() -> TestResult {
    let (gpu, off) = overflowing(2).await?;
    for (sql, raises) in [
        (
            "SELECT sum(y) FILTER (WHERE id < 10), max(y) FILTER (WHERE id < 20) FROM (SELECT id, z * z * z AS y FROM t)",
            true,
        ),
        ("SELECT sum(z * z * z) FILTER (WHERE id < 10) FROM t", false),
        ("SELECT count(*) FROM t WHERE id < 10 AND z * z * z > 0", false),
        ("SELECT id, z * z * z AS y FROM t WHERE id < 10", false),
    ] {
        let (want, got) = (run(&off, sql).await, gpu.run(sql).await);
        assert_eq!(want.is_err(), raises, "{sql}: {want:?}");
        match (want, got) {
            (Ok(want), Ok(got)) => {
                assert_eq!(want.rows, got.rows, "{sql}");
                assert!(!got.nodes.is_empty(), "{}", got.plan);
            }
            (Err(want), Err(got)) => assert_eq!(want.to_string(), got.to_string()),
            (want, got) => return Err(format!("{sql}: {want:?} and {got:?}").into()),
        }
    }
    Ok(())
}

/// Streams dropped half way give everything back, whenever that is.
#[tokio::test(flavor = "multi_thread")]
async fn cancelled() -> TestResult {
    use futures::StreamExt;
    let dir = tempfile::tempdir()?;
    let gpu = Gpu::new(4).await?;
    files(&gpu, &dir).await?;
    for sql in [AGGREGATE, ROWS] {
        for delay in [0u64, 1, 3, 10, 30] {
            let plan = gpu.ctx.sql(sql).await?.create_physical_plan().await?;
            let mut streams: Vec<_> = (0..plan.properties().partitioning.partition_count())
                .map(|p| plan.execute(p, gpu.ctx.task_ctx()))
                .collect::<Result<_, _>>()?;
            for stream in &mut streams {
                let wait = std::time::Duration::from_millis(delay);
                let _ = tokio::time::timeout(wait, stream.next()).await;
            }
            drop(streams);
            settle(&gpu).await?;
        }
        assert_eq!(gpu.run(sql).await?.rows, expected(dir.path(), sql).await?);
    }
    Ok(())
}

/// Aborted tasks end at their next await, and fills that run end by themselves: waits for that, not longer than 10 s.
async fn settle(gpu: &Gpu) -> TestResult {
    for _ in 0..1000 {
        if gpu.reserved() == 0 {
            return Ok(());
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    Err(format!("device memory is still reserved: {}", gpu.device.ledger().report()).into())
}

/// Queries at once, some of which meet failures.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent() -> TestResult {
    let dir = tempfile::tempdir()?;
    let gpu = std::sync::Arc::new(Gpu::new(3).await?);
    files(&gpu, &dir).await?;
    let want = [expected(dir.path(), AGGREGATE).await?, expected(dir.path(), ROWS).await?];
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..8 {
        let gpu = std::sync::Arc::clone(&gpu);
        tasks.spawn(async move {
            let mut all = vec![];
            for round in 0..3u64 {
                let which = (task + round as usize) % 2;
                if round == 1 {
                    gpu.device.faults().fail(Choke::Submit, 2);
                }
                let sql = [AGGREGATE, ROWS][which];
                all.push((which, gpu.run(sql).await.map(|ran| ran.rows).map_err(|e| e.to_string())));
            }
            all
        });
    }
    while let Some(joined) = tasks.join_next().await {
        for (which, rows) in joined? {
            assert_eq!(rows?, want[which]);
        }
    }
    gpu.device.faults().clear();
    settle(&gpu).await
}
