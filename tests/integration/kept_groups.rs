//! Groups that stay on the device and are merged there: the same groups as DataFusion's own, whatever becomes of the device and of memory.

use std::sync::Arc;
use std::time::Duration;

use datafusion::physical_plan::ExecutionPlan;
use datafusion_wgpu::memory::MemoryScope;
use datafusion_wgpu::memory::faults::{Choke, Fault};

use crate::harness::{Gpu, Ran, TestResult, cpu, expected, register_files, run, run_plan, write_files};
use crate::sources;

/// Keys and states that are merged on the device.
const QUERIES: [&str; 14] = [
    "SELECT id, count(*), sum(v) FROM t GROUP BY id",
    "SELECT k, count(*), count(f), sum(v), min(d), max(id), sum(d), avg(d), min(day) FROM t GROUP BY k",
    "SELECT id % 5000, k, avg(v), sum(id) FROM t WHERE v > 2000 GROUP BY id % 5000, k",
    "SELECT f, count(*), max(v) FROM t GROUP BY f",
    "SELECT d, day, v > 50000, count(*) FROM t GROUP BY d, day, v > 50000",
    "SELECT DISTINCT k, v FROM t",
    "SELECT v % 900, bit_xor(id), bit_and(v), bit_or(k), bool_and(v > 10), bool_or(f IS NULL) FROM t GROUP BY v % 900",
    "SELECT k, sum(v) FILTER (WHERE id % 2 = 0), min(id) FILTER (WHERE v > 90000), count(*) FILTER (WHERE f IS NULL) \
     FROM t GROUP BY k",
    "SELECT 'c' AS c, v, count(*) FROM t GROUP BY c, v",
    "SELECT length(s), id % 700, max(day), count(s) FROM t GROUP BY length(s), id % 700",
    "SELECT k, count(DISTINCT v) FROM t GROUP BY k",
    "SELECT n, count(*) FROM (SELECT id % 4000, count(*) AS n FROM t GROUP BY id % 4000) GROUP BY n",
    "SELECT arrow_cast(k % 100, 'Int8'), arrow_cast(id % 300, 'UInt16'), min(arrow_cast(v % 100, 'Int8')) FROM t \
     GROUP BY 1, 2",
    "SELECT id, v, sum(d * d) AS x FROM t GROUP BY id, v ORDER BY x DESC, id LIMIT 20",
];

/// Those that the host merges.
const OTHERS: [&str; 6] = [
    "SELECT s, id, count(*) FROM t GROUP BY s, id",
    "SELECT id, min(f) FROM t GROUP BY id",
    "SELECT id, sum(f) FROM t GROUP BY id",
    "SELECT id, max(s) FROM t GROUP BY id",
    "SELECT id, k, count(*) FROM t GROUP BY ROLLUP (id, k)",
    "SELECT id, first_value(v ORDER BY id) FROM t GROUP BY id",
];

/// A metric of all GPU nodes.
fn counted(plan: &Arc<dyn ExecutionPlan>, name: &str) -> usize {
    let own = plan.metrics().and_then(|metrics| metrics.sum_by_name(name));
    let below: usize = plan.children().into_iter().map(|child| counted(child, name)).sum();
    own.map_or(0, |value| value.as_usize()) + below
}

async fn ran(gpu: &Gpu, sql: &str) -> TestResult<(Arc<dyn ExecutionPlan>, Ran)> {
    let plan = gpu.ctx.sql(sql).await?.create_physical_plan().await?;
    let ran = run_plan(&gpu.ctx, Arc::clone(&plan)).await?;
    Ok((plan, ran))
}

/// What a query did, without its rows.
fn told(ran: &Ran) -> String {
    format!(
        "{:?}, {} by the GPU, {} by the CPU, {} + {} again, {:?}\n{}",
        ran.nodes, ran.gpu_batches, ran.cpu_batches, ran.splits, ran.retries, ran.fallbacks, ran.plan
    )
}

/// A session that keeps all groups it may.
async fn keeping(partitions: usize) -> TestResult<Gpu> {
    let gpu = Gpu::guarded(partitions).await?;
    gpu.set("merge_groups", "1").await?;
    Ok(gpu)
}

/// All groups are merged on the device, and none is sent to the host before.
#[tokio::test(flavor = "multi_thread")]
async fn the_same_groups() -> TestResult {
    let dir = tempfile::tempdir()?;
    write_files(dir.path(), 4, 3_001)?;
    for (partitions, exchanges, rows) in
        [(1, "collapse", "3000"), (3, "collapse", "2000"), (2, "keep", "1500")]
    {
        let gpu = keeping(partitions).await?;
        gpu.set("exchanges", &format!("'{exchanges}'")).await?;
        gpu.set("batch_rows", rows).await?;
        register_files(&gpu.ctx, "t", dir.path()).await?;
        let mut aggregated = 0;
        for sql in QUERIES {
            let want = expected(dir.path(), sql).await?;
            let (plan, ran) = ran(&gpu, sql).await?;
            assert_eq!(ran.rows, want, "{sql}\n{}", ran.plan);
            assert!(
                ran.gpu_batches > 0 && ran.cpu_batches == 0 && ran.fallbacks.is_empty(),
                "{sql}: {}",
                told(&ran)
            );
            if exchanges == "keep" && !ran.nodes.iter().any(|node| node == "GpuAggregateExec") {
                continue;
            }
            aggregated += 1;
            let count = |name| counted(&plan, name);
            assert!(count("kept_groups") > 0, "{sql}: {}", ran.plan);
            assert!(count("device_merges") > 0 && count("merged_groups") > 0, "{sql}");
            assert_eq!((count("batches_regrouped"), count("piles_unmerged")), (0, 0), "{sql}");
            gpu.settled().await?;
        }
        assert!(aggregated >= QUERIES.len() - 3, "{aggregated} queries, {exchanges}");
        for sql in OTHERS {
            let want = expected(dir.path(), sql).await?;
            let (plan, ran) = ran(&gpu, sql).await?;
            assert_eq!(ran.rows, want, "{sql}\n{}", ran.plan);
            // Steps over states alone have one grouping set.
            assert!(exchanges == "keep" || counted(&plan, "kept_groups") == 0, "{sql}");
        }
        gpu.device.guards().ok_or("no guards")?.check().await?;
    }
    Ok(())
}

/// By default few groups go to the host, whose merge is cheap; and `gpu.merge_groups = 0` sends it all.
#[tokio::test(flavor = "multi_thread")]
async fn few_groups_go_to_the_host() -> TestResult {
    let gpu = Gpu::new(1).await?;
    gpu.set("batch_rows", "30000").await?;
    let off = cpu(1);
    for ctx in [&gpu.ctx, &off] {
        ctx.register_table("t", sources::memory(&[(0, 90_000)])?)?;
    }
    let many = "SELECT id, count(*) FROM t GROUP BY id";
    for (sql, merge_groups, kept) in [
        (many, "16384", 90_000),
        (many, "30001", 0),
        (many, "0", 0),
        ("SELECT id % 600, count(*) FROM t GROUP BY id % 600", "16384", 0),
    ] {
        gpu.set("merge_groups", merge_groups).await?;
        let want = run(&off, sql).await?.rows;
        let (plan, ran) = ran(&gpu, sql).await?;
        assert!(ran.rows == want && ran.cpu_batches == 0, "{sql}");
        assert_eq!(counted(&plan, "kept_groups"), kept, "{sql}, {merge_groups}");
        assert_eq!(counted(&plan, "device_merges"), usize::from(kept > 0));
        assert_eq!(counted(&plan, "piles_sent"), 0);
        assert_eq!(plan.metrics().and_then(|m| m.output_rows()), Some(want.len()), "{}", ran.plan);
    }
    gpu.settled().await
}

/// A batch that is shorter than `gpu.merge_groups` keeps its groups as well, and NULLs among the values of some batches only change nothing.
#[tokio::test(flavor = "multi_thread")]
async fn short_batches_and_nulls_in_some() -> TestResult {
    let gpu = Gpu::new(1).await?;
    let off = cpu(1);
    for ctx in [&gpu.ctx, &off] {
        ctx.register_table("t", sources::memory(&[(0, 95_000)])?)?;
        run(ctx, "CREATE TABLE n AS SELECT id, CASE WHEN id < 30000 OR id > 70000 THEN v END AS v, d FROM t")
            .await?;
    }
    gpu.set("batch_rows", "30000").await?;
    for sql in [
        "SELECT id, sum(v), min(v), count(*) FROM n GROUP BY id",
        "SELECT id, avg(v), avg(d), max(d), sum(v) FILTER (WHERE v % 2 = 0) FROM n GROUP BY id",
        "SELECT id % 50000, count(v), bit_or(v), sum(v), avg(v), avg(id) FROM n GROUP BY id % 50000",
    ] {
        let want = run(&off, sql).await?.rows;
        let (plan, ran) = ran(&gpu, sql).await?;
        assert!(ran.rows == want && ran.cpu_batches == 0, "{sql}: {}", told(&ran));
        assert_eq!(counted(&plan, "kept_groups"), 95_000, "{sql}");
        assert_eq!((counted(&plan, "device_merges"), counted(&plan, "piles_sent")), (1, 0), "{sql}");
    }
    gpu.settled().await
}

/// What raises when a group's value is made raises whatever LIMIT stands above, as in DataFusion, which makes all values first.
#[tokio::test(flavor = "multi_thread")]
async fn averages_that_overflow_under_a_limit() -> TestResult {
    let (gpu, off) = (keeping(1).await?, cpu(1));
    let table = "CREATE TABLE t AS SELECT id AS k, arrow_cast(CASE WHEN id = 70000 THEN 1000000000000000 ELSE id END, \
                 'Decimal64(18, 0)') AS d FROM (SELECT unnest(range(0, 90000)) AS id)";
    for ctx in [&gpu.ctx, &off] {
        run(ctx, table).await?;
    }
    gpu.set("batch_rows", "30000").await?;
    let raises = "SELECT k, avg(d) FROM t GROUP BY k LIMIT 5";
    let want = run(&off, raises).await.expect_err("DataFusion raises").to_string();
    let got = run(&gpu.ctx, raises).await.expect_err("the values are all made").to_string();
    assert_eq!(got, want);
    let sql = "SELECT k, avg(d) FROM t WHERE k <> 70000 GROUP BY k";
    let (plan, ran) = ran(&gpu, sql).await?;
    assert!(ran.rows == run(&off, sql).await?.rows, "{}", told(&ran));
    assert!(counted(&plan, "device_merges") > 0 && counted(&plan, "piles_sent") == 0, "{}", told(&ran));
    gpu.settled().await
}

/// EXPLAIN ANALYZE tells of it.
#[tokio::test(flavor = "multi_thread")]
async fn explain_analyze() -> TestResult {
    let gpu = keeping(1).await?;
    gpu.ctx.register_table("t", sources::memory(&[(0, 9_000)])?)?;
    let shown = gpu.run("EXPLAIN ANALYZE SELECT id, count(*) FROM t GROUP BY id").await?.rows.concat();
    for metric in ["device_merges=1", "kept_groups=9.00 K", "merged_groups=9.00 K"] {
        assert!(shown.contains(metric), "{metric}: {shown}");
    }
    Ok(())
}

/// Memory of the device that holds all groups, some, and hardly a batch; and a pool of the host that has no room for the rows behind them, or
/// for the groups.
#[tokio::test(flavor = "multi_thread")]
async fn little_memory() -> TestResult {
    let off = cpu(2);
    off.register_table("t", sources::memory(&[(0, 60_000), (30_000, 60_000)])?)?;
    let mut sent = 0;
    for (device, pool) in [
        ("64MiB", None),
        ("8MiB", None),
        ("3MiB", None),
        ("1MiB", None),
        ("64MiB", Some(16 << 20)),
        ("64MiB", Some(5 << 20)),
    ] {
        let gpu = match pool {
            None => Gpu::new(2).await?,
            Some(bytes) => Gpu::within(1, bytes).await?,
        };
        gpu.ctx.register_table("t", sources::memory(&[(0, 60_000), (30_000, 60_000)])?)?;
        gpu.set("merge_groups", "100").await?;
        gpu.set("batch_rows", "8000").await?;
        gpu.set("memory_limit", &format!("'{device}'")).await?;
        for sql in
            ["SELECT id, count(*), sum(v), max(v) FROM t GROUP BY id", "SELECT DISTINCT id, v, d FROM t"]
        {
            let want = run(&off, sql).await?.rows;
            let (plan, ran) = ran(&gpu, sql).await?;
            assert!(ran.rows == want, "{device}, {pool:?}: {sql}");
            assert!(ran.gpu_batches > 0 && ran.cpu_batches == 0, "{device}, {pool:?}: {}", told(&ran));
            // The smallest pool has no room for the rows behind groups of three columns.
            let kept = counted(&plan, "kept_groups") > 0;
            assert!(kept || pool == Some(5 << 20) && sql.contains("DISTINCT"), "{device}, {pool:?}: {sql}");
            sent += counted(&plan, "piles_sent") + counted(&plan, "batches_regrouped");
            gpu.settled().await?;
            let (peak, limit) = (gpu.device.ledger().peak(), if device == "64MiB" { 64 } else { 8 } << 20);
            assert!(peak <= limit, "{device}: {peak} bytes were held");
        }
    }
    assert!(sent > 0, "there was always room");
    Ok(())
}

/// Somebody else needs the memory: the groups are dropped, and found again from their rows.
#[tokio::test(flavor = "multi_thread")]
async fn groups_are_dropped_for_others() -> TestResult {
    let off = cpu(1);
    off.register_table("t", sources::once(1, 12_000)?)?;
    let sql = "SELECT id, count(*), sum(v) FROM t GROUP BY id";
    let want = run(&off, sql).await?.rows;
    let mut again = 0;
    for n in [8, 14, 20, 26, 32] {
        let gpu = Gpu::new(1).await?;
        gpu.set("merge_groups", "1").await?;
        gpu.ctx.register_table("t", sources::once(1, 12_000)?)?;
        let ledger = Arc::clone(gpu.device.ledger());
        let reserve = move || {
            // More than there is beside what is held.
            let scope = MemoryScope::new(&ledger, "somebody else", ledger.reserved().max(1));
            drop(scope.reserve(1 << 10));
        };
        gpu.device.faults().order(Choke::Submit, n, Fault::Call(Arc::new(reserve)));
        let (plan, ran) = ran(&gpu, sql).await?;
        assert!(ran.rows == want && ran.cpu_batches == 0, "{n}: {}", told(&ran));
        again += counted(&plan, "batches_regrouped");
        gpu.settled().await?;
    }
    assert!(again > 0, "the groups were never dropped");
    Ok(())
}

/// Several queries that keep groups at once, in memory that has no room for the groups of all.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn queries_at_once() -> TestResult {
    const LIMIT: u64 = 6 << 20;
    let sql = "SELECT id, count(*), sum(v), max(v) FROM t GROUP BY id";
    let off = cpu(1);
    off.register_table("t", sources::memory(&[(0, 30_000), (15_000, 30_000)])?)?;
    let want = run(&off, sql).await?.rows;
    let gpu = Gpu::new(2).await?;
    gpu.ctx.register_table("t", sources::memory(&[(0, 30_000), (15_000, 30_000)])?)?;
    gpu.set("merge_groups", "1").await?;
    gpu.set("batch_rows", "6000").await?;
    gpu.set("memory_limit", "'6MiB'").await?;
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let (ctx, want) = (gpu.ctx.clone(), want.clone());
        tasks.spawn(async move {
            let plan = ctx.sql(sql).await?.create_physical_plan().await?;
            let ran = run_plan(&ctx, Arc::clone(&plan)).await?;
            assert!(ran.rows == want && ran.cpu_batches == 0, "{}", told(&ran));
            TestResult::Ok(counted(&plan, "kept_groups"))
        });
    }
    let mut kept = 0;
    while let Some(done) = tokio::time::timeout(Duration::from_secs(120), tasks.join_next()).await? {
        kept += done??;
    }
    assert!(kept > 0, "no groups stayed on the device");
    gpu.settled().await?;
    let peak = gpu.device.ledger().peak();
    assert!(peak <= LIMIT, "{peak} bytes were held");
    Ok(())
}

/// Failures and losses at every call: the rows are DataFusion's, whatever is run again, and nothing stays on the device.
async fn broken(fault: Fault, step: usize) -> TestResult {
    let sql = "SELECT id % 2500, k, count(*), sum(v), min(d) FROM t GROUP BY id % 2500, k";
    let off = cpu(2);
    off.register_table("t", sources::once(2, 3_000)?)?;
    let want = run(&off, sql).await?.rows;
    let gpu = Gpu::new(2).await?;
    gpu.set("merge_groups", "1").await?;
    gpu.set("batch_rows", "2100").await?;
    // The input is kept for another run, or read again.
    for (scope, once) in [("batch", true), ("island", true), ("island", false)] {
        let table =
            || if once { sources::once(2, 3_000) } else { sources::memory(&[(0, 3_000), (3_000, 3_000)]) };
        gpu.set("fallback_scope", &format!("'{scope}'")).await?;
        for choke in Choke::ALL {
            gpu.device.faults().count();
            gpu.ctx.register_table("t", table()?)?;
            let (plan, clean) = ran(&gpu, sql).await?;
            assert!(clean.rows == want && counted(&plan, "device_merges") == 1, "{}", told(&clean));
            gpu.settled().await?;
            gpu.ctx.deregister_table("t")?;
            let calls = gpu.device.faults().calls(choke);
            for n in (1..=calls).step_by(step) {
                gpu.device.faults().clear();
                gpu.device.faults().order(choke, n, fault.clone());
                gpu.ctx.register_table("t", table()?)?;
                let what = format!("{fault:?} at {choke:?} {n} of {calls}, {scope}");
                let ran = tokio::time::timeout(Duration::from_secs(60), gpu.run(sql)).await;
                let ran =
                    ran.map_err(|_| format!("{what} hangs"))?.map_err(|error| format!("{what}: {error}"))?;
                let met = gpu.device.faults().pending(choke) == 0;
                gpu.device.faults().clear();
                gpu.ctx.deregister_table("t")?;
                assert!(ran.rows == want, "{what}: {}", told(&ran));
                let noted: usize = ran.fallbacks.iter().map(|(_, count)| count).sum();
                assert!(!met || noted + ran.retries + ran.splits > 0, "{what}: {}", told(&ran));
                assert_eq!(noted > 0, ran.cpu_batches > 0, "{what}: {}", told(&ran));
                gpu.settled().await?;
            }
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn every_call_fails_once() -> TestResult {
    broken(Fault::Fail, 1).await
}

/// At every fifth call: shaders are compiled anew after a loss.
#[tokio::test(flavor = "multi_thread")]
async fn the_device_is_lost() -> TestResult {
    broken(Fault::Lose, 5).await
}

/// A consumer that goes away in the middle leaves nothing behind.
#[tokio::test(flavor = "multi_thread")]
async fn cancelled() -> TestResult {
    let gpu = keeping(2).await?;
    gpu.ctx.register_table("t", sources::memory(&[(0, 9_000), (9_000, 9_000)])?)?;
    for (number, sql) in QUERIES.iter().take(3).enumerate() {
        for polls in 0..6 {
            let plan = gpu.ctx.sql(sql).await?.create_physical_plan().await?;
            let mut rows = datafusion::physical_plan::execute_stream(plan, gpu.ctx.task_ctx())?;
            for _ in 0..polls {
                let next = futures::StreamExt::next(&mut rows);
                let wait = Duration::from_millis(10 << (number + polls));
                let _ = tokio::time::timeout(wait, next).await;
            }
            drop(rows);
            gpu.settled().await?;
        }
    }
    Ok(())
}
