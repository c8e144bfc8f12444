//! Device memory: bounded footprints, many queries at once, consumers that do not take their rows.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use datafusion::arrow::array::{Array, AsArray};
use datafusion::arrow::datatypes::Int64Type;
use datafusion::execution::memory_pool::{GreedyMemoryPool, MemoryLimit, MemoryPool, MemoryReservation};
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::physical_plan::execute_stream;
use datafusion::prelude::{SessionConfig, SessionContext};
use datafusion_wgpu::memory::faults::{Choke, Fault};
use datafusion_wgpu::register_gpu_runtime;
use futures::StreamExt;
use parking_lot::Mutex;
use tokio::task::JoinSet;

use crate::harness::{Gpu, TestResult, cpu, expected, register_files, run, run_plan, write_files};

const AGGREGATE: &str = "SELECT count(*), sum(v), min(d), max(f), sum(d * d) FROM t WHERE v > 20000";
const ROWS: &str = "SELECT id, s, v + id AS w, d * d AS dd FROM t WHERE v > 50000";
const HANG: Duration = Duration::from_secs(120);

/// Options of a session whose device batches are as large as its limit allows.
async fn limited(gpu: &Gpu, limit: &str) -> TestResult {
    gpu.set("batch_rows", "524288").await?;
    gpu.set("memory_limit", &format!("'{limit}'")).await
}

/// Inputs of a hundred times the limit: everything runs on the device, within the limit, buffers that wait for reuse included.
#[tokio::test(flavor = "multi_thread")]
async fn large_inputs_in_little_memory() -> TestResult {
    const LIMIT: u64 = 2 << 20;
    let gpu = Gpu::new(2).await?;
    limited(&gpu, "2MiB").await?;
    // 65 bytes a row: 3.4 million of them are 211 MiB.
    gpu.ctx.register_table("big", crate::sources::repeated(2, 17, 100_000)?)?;
    let off = cpu(2);
    off.register_table("big", crate::sources::repeated(2, 17, 100_000)?)?;
    for sql in [
        "SELECT count(*), sum(a), min(b), max(c), sum(d + e), avg(f), max(g - h) FROM big WHERE a BETWEEN 1000 AND 700000",
        "SELECT k, max(x), min(y), count(z) FROM (SELECT h > 500000 AS k, a + b AS x, c * d AS y, e - f AS z FROM big \
         WHERE a > 200000) GROUP BY k",
    ] {
        let want = run(&off, sql).await?.rows;
        let ran = gpu.run(sql).await?;
        assert_eq!(ran.rows, want, "{}", ran.plan);
        assert!(ran.gpu_batches > 100 && ran.cpu_batches == 0, "{ran:?}");
        gpu.settled().await?;
        // Buffers from their creation to their end, in use or not.
        let peak = gpu.device.ledger().alive_peak();
        assert!(peak <= LIMIT && peak > LIMIT / 4, "there were {peak} bytes of buffers");
    }
    Ok(())
}

/// Many queries of several sessions on one device: right answers within the limit, on the device, and a short query does not
/// wait for the long ones to end.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_queries_at_once() -> TestResult {
    const LIMIT: u64 = 1 << 20;
    let dir = tempfile::tempdir()?;
    write_files(dir.path(), 4, 10_000)?;
    let want = [expected(dir.path(), AGGREGATE).await?, expected(dir.path(), ROWS).await?];
    let first = Gpu::new(3).await?;
    let mut sessions = vec![first.ctx.clone()];
    for _ in 1..4 {
        let ctx = cpu(3);
        register_gpu_runtime(&ctx, Arc::clone(&first.runtime))?;
        sessions.push(ctx);
    }
    for ctx in &sessions {
        register_files(ctx, "t", dir.path()).await?;
        for option in [
            "allow_software_adapter = true",
            "placement = 'force'",
            "batch_rows = 8000",
            "fallback = 'error'",
            "memory_limit = '1MiB'",
        ] {
            ctx.sql(&format!("SET gpu.{option}")).await?.collect().await?;
        }
    }
    let mut tasks = JoinSet::new();
    let ended = Arc::new(AtomicUsize::new(0));
    for query in 0..32usize {
        let ended = Arc::clone(&ended);
        let (ctx, want) = (sessions[query % sessions.len()].clone(), want[query / 4 % 2].clone());
        tasks.spawn(async move {
            for _ in 0..2 {
                let ran = run(&ctx, [AGGREGATE, ROWS][query / 4 % 2]).await?;
                assert_eq!(ran.rows, want);
                assert!(ran.gpu_batches > 0 && ran.cpu_batches == 0, "{ran:?}");
            }
            ended.fetch_add(1, Ordering::SeqCst);
            TestResult::Ok(())
        });
    }
    // The long ones are at work, and wait for one another.
    let waiting = async {
        while first.device.ledger().works().1 < 4 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(HANG, waiting).await?;
    let short =
        tokio::time::timeout(HANG, run(&sessions[0], "SELECT sum(id) FROM t WHERE id < 100")).await??;
    assert_eq!(short.rows, ["4950"]);
    let ended = ended.load(Ordering::SeqCst);
    assert!(ended < 32, "the short query waited for all of the long ones");
    while let Some(done) = tokio::time::timeout(HANG, tasks.join_next()).await? {
        done??;
    }
    first.settled().await?;
    let peak = first.device.ledger().alive_peak();
    assert!(peak <= LIMIT && peak > LIMIT / 4, "there were {peak} bytes of buffers");
    Ok(())
}

/// A stream whose rows nobody takes holds no memory that others wait for.
#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_that_stops_taking_rows() -> TestResult {
    let dir = tempfile::tempdir()?;
    write_files(dir.path(), 4, 30_000)?;
    let gpu = Gpu::new(1).await?;
    register_files(&gpu.ctx, "t", dir.path()).await?;
    // Room for hardly more than one batch.
    limited(&gpu, "400KiB").await?;
    let want = [expected(dir.path(), AGGREGATE).await?, expected(dir.path(), ROWS).await?];
    let mut stalled = vec![];
    for _ in 0..3 {
        let plan = gpu.ctx.sql(ROWS).await?.create_physical_plan().await?;
        let mut stream = execute_stream(plan, gpu.ctx.task_ctx())?;
        assert!(tokio::time::timeout(HANG, stream.next()).await?.is_some());
        stalled.push(stream);
    }
    for (sql, want) in [AGGREGATE, ROWS].iter().zip(&want) {
        let ran = tokio::time::timeout(HANG, gpu.run(sql)).await??;
        assert_eq!(&ran.rows, want);
        assert!(ran.gpu_batches > 0 && ran.cpu_batches == 0, "{ran:?}");
    }
    for stream in stalled {
        let rest: Vec<_> = tokio::time::timeout(HANG, stream.collect()).await?;
        let rows = rest.into_iter().map(|batch| batch.map(|b| b.num_rows())).sum::<Result<usize, _>>()?;
        assert!(rows > 0 && rows < want[1].len());
    }
    Ok(())
}

/// Refusals of a single allocation: the work is done again, alone or in halves, and the CPU is never asked.
#[tokio::test(flavor = "multi_thread")]
async fn refused_allocations_are_tried_again() -> TestResult {
    let dir = tempfile::tempdir()?;
    write_files(dir.path(), 4, 30_000)?;
    let gpu = Gpu::new(2).await?;
    register_files(&gpu.ctx, "t", dir.path()).await?;
    gpu.set("batch_rows", "20000").await?;
    gpu.set("fallback", "'error'").await?;
    for sql in [AGGREGATE, ROWS] {
        let want = expected(dir.path(), sql).await?;
        for n in [1, 2, 5, 9] {
            gpu.device.faults().fail(Choke::Allocate, n);
            let ran = gpu.run(sql).await?;
            assert_eq!(gpu.device.faults().pending(Choke::Allocate), 0);
            assert_eq!(ran.rows, want, "{n}");
            assert!(ran.cpu_batches == 0 && ran.fallbacks.is_empty(), "{ran:?}");
            assert!(ran.splits + ran.retries > 0, "{n}: nothing was tried again: {ran:?}");
        }
    }
    Ok(())
}

/// The driver has no memory at all, since somebody else took it: each batch is left to the CPU as a whole, and soon.
#[tokio::test(flavor = "multi_thread")]
async fn a_driver_that_refuses_everything() -> TestResult {
    let dir = tempfile::tempdir()?;
    write_files(dir.path(), 2, 50_000)?;
    let gpu = Gpu::new(2).await?;
    register_files(&gpu.ctx, "t", dir.path()).await?;
    gpu.set("batch_rows", "524288").await?;
    for sql in [AGGREGATE, ROWS] {
        let want = expected(dir.path(), sql).await?;
        gpu.device.faults().count();
        gpu.device.faults().order_always(Choke::Allocate, Fault::Fail);
        let ran = gpu.run(sql).await?;
        gpu.device.faults().clear();
        assert_eq!(ran.rows, want);
        let calls = gpu.device.faults().calls(Choke::Allocate);
        assert!(ran.gpu_batches == 0 && ran.cpu_batches <= 2 && calls <= 40, "{calls} calls: {ran:?}");
        let counted: usize = ran.fallbacks.iter().map(|(_, count)| count).sum();
        assert_eq!(counted, ran.cpu_batches, "{ran:?}");
    }
    Ok(())
}

/// Rows whose bytes stay on the host: they are not collected without bounds because they take none of the device's memory.
#[tokio::test(flavor = "multi_thread")]
async fn wide_rows_of_the_host_make_small_batches() -> TestResult {
    let gpu = Gpu::new(1).await?;
    gpu.set("batch_rows", "524288").await?;
    gpu.set("batch_bytes", "'1MiB'").await?;
    let source = "SELECT value AS v, repeat('x', 1000) AS s, arrow_cast(repeat('y', 1000), 'Utf8View') AS w \
         FROM generate_series(1, 10000)";
    gpu.ctx.sql(&format!("CREATE TABLE wide AS {source}")).await?.collect().await?;
    for column in ["s", "w"] {
        let ran = gpu.run(&format!("SELECT {column}, v + 1 FROM wide WHERE v > 1000")).await?;
        // 10 MB, and no batch takes more than one of DataFusion's too many.
        assert!((5..=11).contains(&ran.gpu_batches), "{ran:?}");
        assert_eq!(ran.rows.len(), 9000);
    }
    assert_eq!(gpu.run("SELECT v + 1 FROM wide WHERE v > 1000").await?.gpu_batches, 1);
    Ok(())
}

/// A pool that notes the most that one kind of consumers held.
#[derive(Debug)]
struct Watched {
    pool: GreedyMemoryPool,
    consumer: &'static str,
    kept: AtomicUsize,
    most_kept: AtomicUsize,
}

impl Watched {
    fn of(consumer: &'static str, bytes: usize) -> Arc<Self> {
        let pool = GreedyMemoryPool::new(bytes);
        Arc::new(Watched { pool, consumer, kept: AtomicUsize::default(), most_kept: AtomicUsize::default() })
    }

    fn note(&self, reservation: &MemoryReservation, bytes: usize) {
        if reservation.consumer().name().contains(self.consumer) {
            let kept = self.kept.fetch_add(bytes, Ordering::SeqCst) + bytes;
            self.most_kept.fetch_max(kept, Ordering::SeqCst);
        }
    }
}

impl fmt::Display for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watched")
    }
}

impl MemoryPool for Watched {
    fn name(&self) -> &str {
        "watched"
    }

    fn grow(&self, reservation: &MemoryReservation, bytes: usize) {
        self.pool.grow(reservation, bytes);
        self.note(reservation, bytes);
    }

    fn shrink(&self, reservation: &MemoryReservation, bytes: usize) {
        self.pool.shrink(reservation, bytes);
        if reservation.consumer().name().contains(self.consumer) {
            self.kept.fetch_sub(bytes, Ordering::SeqCst);
        }
    }

    fn try_grow(&self, reservation: &MemoryReservation, bytes: usize) -> datafusion::error::Result<()> {
        self.pool.try_grow(reservation, bytes)?;
        self.note(reservation, bytes);
        Ok(())
    }

    fn reserved(&self) -> usize {
        self.pool.reserved()
    }

    fn memory_limit(&self) -> MemoryLimit {
        self.pool.memory_limit()
    }
}

/// What is kept for a replay counts in the query's own pool, slices of the same memory once. When that takes a share of it,
/// failures are answered batch by batch.
#[tokio::test(flavor = "multi_thread")]
async fn kept_input_counts_in_the_pool() -> TestResult {
    let off = cpu(2);
    off.register_table("t", crate::sources::once(3, 4_000)?)?;
    let want = run(&off, AGGREGATE).await?.rows;
    let gpu = Gpu::new(2).await?;
    // 4,000 rows take some 300 KiB, which all batches of a partition are slices of.
    for (bytes, scope) in [(100 << 20, "island"), (5 << 20, "island"), (1 << 20, "batch")] {
        let pool = Watched::of("replay", bytes);
        let env = RuntimeEnvBuilder::new().with_memory_pool(Arc::clone(&pool) as _).build_arc()?;
        let config = SessionConfig::new().with_target_partitions(2).with_batch_size(1000);
        let ctx = SessionContext::new_with_config_rt(config, env);
        register_gpu_runtime(&ctx, Arc::clone(&gpu.runtime))?;
        for option in [
            "allow_software_adapter = true",
            "placement = 'force'",
            "batch_rows = 1000",
            "fallback = 'silent'",
            "fallback_scope = 'island'",
        ] {
            ctx.sql(&format!("SET gpu.{option}")).await?.collect().await?;
        }
        ctx.register_table("t", crate::sources::once(3, 4_000)?)?;
        // Late enough that the small pool is full by then.
        let plan = ctx.sql(AGGREGATE).await?.create_physical_plan().await?;
        gpu.device.faults().fail(Choke::Map, 14);
        let scopes = Arc::new(Mutex::new(vec![]));
        let told = Arc::clone(&scopes);
        let _hook = gpu.runtime.on_fallback(move |event| told.lock().push(event.scope));
        let ran = run_plan(&ctx, plan).await?;
        assert_eq!(gpu.device.faults().pending(Choke::Map), 0);
        assert_eq!(ran.rows, want);
        let counted: usize = ran.fallbacks.iter().map(|(_, count)| count).sum();
        assert_eq!((counted, ran.cpu_batches), (1, 1), "{ran:?}");
        assert_eq!(*scopes.lock(), [scope]);
        assert_eq!(pool.reserved(), 0);
        let kept = pool.most_kept.load(Ordering::SeqCst);
        assert!(kept <= bytes / 4 && (kept > 0 || scope == "batch"), "{kept} of {bytes} bytes were kept");
    }
    Ok(())
}

/// The rows of a stream, as they come, in a session with hardly any memory: none is lost, none is doubled.
#[tokio::test(flavor = "multi_thread")]
async fn halves_keep_their_order() -> TestResult {
    let dir = tempfile::tempdir()?;
    write_files(dir.path(), 1, 30_000)?;
    let gpu = Gpu::new(1).await?;
    register_files(&gpu.ctx, "t", dir.path()).await?;
    gpu.set("batch_rows", "30000").await?;
    for limit in ["90KiB", "160KiB", "300KiB", "1MiB"] {
        gpu.set("memory_limit", &format!("'{limit}'")).await?;
        let plan = gpu.ctx.sql("SELECT id, id + v AS w FROM t WHERE id % 2 = 0").await?;
        let plan = plan.create_physical_plan().await?;
        let ran = run_plan(&gpu.ctx, Arc::clone(&plan)).await?;
        let again = gpu.ctx.sql("SELECT id, id + v AS w FROM t WHERE id % 2 = 0").await?.collect().await?;
        let ids =
            again.iter().flat_map(|batch| batch.column(0).as_primitive::<Int64Type>().values().to_vec());
        assert!(ids.eq((0..15_000).map(|id| 2 * id)), "{limit}");
        assert!(again.iter().all(|batch| batch.column(1).null_count() == 0));
        assert!(ran.gpu_batches > 0, "{limit}: {ran:?}");
    }
    Ok(())
}

/// Dictionaries and look-up tables count in the query's pool as long as their batch is there; without room, the CPU answers.
#[tokio::test(flavor = "multi_thread")]
async fn look_up_tables_count_in_the_pool() -> TestResult {
    const TABLE: &str = "CREATE TABLE t AS SELECT value AS v, 'a text of some length, number ' || (value % 2000) AS s \
         FROM generate_series(1, 20000)";
    const SQL: &str = "SELECT count(*), sum(length(s)) FROM t WHERE upper(s) LIKE '%1%'";
    let off = cpu(1);
    off.sql(TABLE).await?.collect().await?;
    let want = run(&off, SQL).await?.rows;
    let gpu = Gpu::new(1).await?;
    // 4 bytes a row and what 2,000 values take, for two tables.
    for (bytes, fits) in [(64 << 20, true), (150 << 10, false), (40 << 10, false)] {
        let pool = Watched::of("look-up tables", bytes);
        let env = RuntimeEnvBuilder::new().with_memory_pool(Arc::clone(&pool) as _).build_arc()?;
        let config = SessionConfig::new().with_target_partitions(1);
        let ctx = SessionContext::new_with_config_rt(config, env);
        register_gpu_runtime(&ctx, Arc::clone(&gpu.runtime))?;
        for option in ["allow_software_adapter = true", "placement = 'force'", "fallback = 'silent'"] {
            ctx.sql(&format!("SET gpu.{option}")).await?.collect().await?;
        }
        let table = off.table_provider("t").await?;
        ctx.register_table("t", table)?;
        let ran = run(&ctx, SQL).await?;
        assert_eq!(ran.rows, want);
        let refused = ran.fallbacks.iter().any(|(code, count)| code == "HostMemory" && *count == 1);
        assert_eq!((ran.gpu_batches > 0, refused), (fits, !fits), "{bytes}: {ran:?}");
        assert_eq!((pool.reserved(), pool.kept.load(Ordering::SeqCst)), (0, 0));
        let most = pool.most_kept.load(Ordering::SeqCst);
        assert!(!fits || (150_000..1_000_000).contains(&most), "{most} bytes were reserved");
    }
    Ok(())
}
