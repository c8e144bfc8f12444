//! GROUP BY on the device: the same groups as DataFusion's own, in every way that a plan and a fallback can take.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use datafusion::arrow::array::{
    ArrayRef, BooleanArray, Float32Array, Float64Array, Int64Array, RecordBatch, StringArray,
};
use datafusion::datasource::MemTable;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::prelude::SessionContext;
use datafusion_wgpu::memory::faults::Choke;

use crate::harness::{
    Gpu, Ran, TestResult, cpu, expected, register_files, run, run_plan, table, write_files,
};
use crate::tpch::write_tpch;

/// Keys and aggregates of all kinds over the shared table.
const QUERIES: [&str; 28] = [
    "SELECT k, count(*), sum(v) FROM t GROUP BY k",
    "SELECT k, count(*), sum(v), min(d), max(id), sum(d), avg(d), count(f) FROM t WHERE v > 20000 GROUP BY k",
    "SELECT k % 10 AS ten, day, count(k), max(day), min(v) FROM t WHERE id % 3 = 1 GROUP BY k % 10, day",
    "SELECT s, count(*), sum(v) FROM t WHERE v < 70000 GROUP BY s",
    "SELECT upper(s), substr(s, 6, 1), length(s), count(*), min(id) FROM t GROUP BY 1, 2, 3",
    "SELECT s, k % 3, max(d) FROM t GROUP BY s, k % 3 HAVING count(*) > 5",
    "SELECT f, count(*) FROM t GROUP BY f",
    "SELECT d, v > 50000, count(*) FROM t WHERE id < 9000 GROUP BY d, v > 50000",
    "SELECT DISTINCT k FROM t",
    "SELECT DISTINCT s, k % 2 FROM t WHERE v > 1000",
    "SELECT count(DISTINCT k) FROM t",
    "SELECT k % 5, count(DISTINCT s), sum(v) FROM t GROUP BY k % 5",
    "SELECT k, sum(v) FILTER (WHERE id % 2 = 0), count(*) FILTER (WHERE f IS NULL) FROM t GROUP BY k",
    "SELECT k % 7, s, count(*), sum(v) FROM t GROUP BY ROLLUP (k % 7, s)",
    "SELECT k % 7, v % 3, sum(d) FROM t GROUP BY CUBE (k % 7, v % 3)",
    "SELECT k % 7, s, count(*), grouping(s) FROM t GROUP BY GROUPING SETS ((k % 7), (s), (s), ())",
    "SELECT k % 3, min(f), max(f) FROM t WHERE id > 0 GROUP BY k % 3",
    "SELECT 'c' AS c, k % 4, count(*) FROM t GROUP BY c, k % 4",
    "SELECT k, id % 4, count(*) FROM t GROUP BY k, id % 4",
    "SELECT x.k, x.n, y.m FROM (SELECT k, count(*) AS n FROM t GROUP BY k) x \
     JOIN (SELECT k, max(id) AS m FROM t GROUP BY k) y ON x.k = y.k",
    "SELECT n, count(*) FROM (SELECT k, count(*) AS n FROM t GROUP BY k) GROUP BY n",
    "SELECT k % 3, count(*) FROM t GROUP BY k % 3 UNION ALL SELECT k % 5, sum(v) FROM t GROUP BY k % 5",
    "SELECT k, count(*) AS n FROM t GROUP BY k ORDER BY n DESC, k LIMIT 5",
    "SELECT id, v, count(*) FROM t GROUP BY id, v",
    "SELECT k % 3, min(s), max(s), min(upper(s)), max(substr(s, 6, 1)) FROM t WHERE v > 100 GROUP BY k % 3",
    "SELECT min(s), max(s), max(length(s)), sum(v) FROM t WHERE id > 10",
    "SELECT s, bool_and(v > 10), bool_or(f IS NULL) FROM t GROUP BY s",
    "SELECT substr(s, 6, 1) || '!', count(*) FROM t GROUP BY 1",
];

async fn files(gpu: &Gpu, dir: &tempfile::TempDir) -> TestResult {
    write_files(dir.path(), 5, 3_001)?;
    register_files(&gpu.ctx, "t", dir.path()).await
}

/// Holds that a node with groups ran, and that nothing fell back.
pub fn on_the_device(sql: &str, ran: &Ran) {
    assert!(ran.nodes.iter().any(|node| node == "GpuAggregateExec"), "{sql}: {}", ran.plan);
    assert!(ran.gpu_batches > 0 && ran.cpu_batches == 0, "{sql}: {ran:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_groups() -> TestResult {
    let dir = tempfile::tempdir()?;
    write_files(dir.path(), 5, 3_001)?;
    for partitions in [1, 4] {
        let gpu = Gpu::guarded(partitions).await?;
        register_files(&gpu.ctx, "t", dir.path()).await?;
        for exchanges in ["'collapse'", "'keep'"] {
            gpu.set("exchanges", exchanges).await?;
            for sql in QUERIES {
                let want = expected(dir.path(), sql).await?;
                let ran = gpu.run(sql).await?;
                assert_eq!(ran.rows, want, "{partitions} {exchanges} {sql}\n{}", ran.plan);
                on_the_device(sql, &ran);
            }
        }
        gpu.set("exchanges", "'collapse'").await?;
        let sql = "SELECT k, avg(v), avg(k), count(*), avg(id) FILTER (WHERE v > 500) FROM t GROUP BY k";
        let ran = gpu.run(sql).await?;
        assert_eq!(ran.rows, expected(dir.path(), sql).await?);
        on_the_device(sql, &ran);
        if let Some(guards) = gpu.device.guards() {
            guards.check().await.map_err(|message| message.to_string())?;
        }
        gpu.settled().await?;
    }
    Ok(())
}

/// What the kernels did shows in the metrics: groups of all batches, and how they were found.
#[tokio::test(flavor = "multi_thread")]
async fn metrics() -> TestResult {
    let dir = tempfile::tempdir()?;
    let gpu = Gpu::new(1).await?;
    files(&gpu, &dir).await?;
    for (sql, groups, found) in [
        ("SELECT k, count(*) FROM t GROUP BY k", 1001, ["direct", "dense", "local"].as_slice()),
        ("SELECT s, k % 2, count(*) FROM t GROUP BY s, k % 2", 97 * 3, &["direct", "dense", "local"]),
        ("SELECT f, count(*) FROM t GROUP BY f", 12_004, &["local", "global"]),
    ] {
        let plan = gpu.ctx.sql(sql).await?.create_physical_plan().await?;
        let ran = run_plan(&gpu.ctx, Arc::clone(&plan)).await?;
        on_the_device(sql, &ran);
        let mut node = plan;
        while node.name() != "GpuAggregateExec" {
            node = Arc::clone(node.children().first().ok_or("no aggregate")?);
        }
        let metrics = node.metrics().ok_or("no metrics")?;
        let count = |name: &str| metrics.sum_by_name(name).map_or(0, |value| value.as_usize());
        assert!(count("groups") >= groups, "{sql}: {metrics}");
        assert_eq!(metrics.output_rows(), Some(ran.rows.len()), "{sql}: {metrics}");
        let batches: usize = found.iter().map(|strategy| count(strategy)).sum();
        assert_eq!(batches, ran.gpu_batches, "{sql}: {metrics}");
    }
    Ok(())
}

/// Runs `queries` over the files in `dir` while a submission fails, with batches and with islands that fall back: the rows are
/// DataFusion's, and the CPU had a part in them.
pub async fn in_both_scopes(gpu: &Gpu, dir: &Path, queries: &[&str]) -> TestResult {
    for sql in queries {
        let want = expected(dir, sql).await?;
        for scope in ["batch", "island"] {
            gpu.set("fallback_scope", &format!("'{scope}'")).await?;
            gpu.device.faults().fail(Choke::Submit, 3);
            let ran = gpu.run(sql).await?;
            gpu.device.faults().clear();
            assert_eq!(ran.rows, want, "{scope} {sql}");
            assert!(ran.cpu_batches > 0, "{scope} {sql}: {ran:?}");
        }
    }
    Ok(())
}

/// Batches that fall back are DataFusion's own partial aggregates, whole islands DataFusion's plans.
#[tokio::test(flavor = "multi_thread")]
async fn batches_and_islands_that_fall_back() -> TestResult {
    let dir = tempfile::tempdir()?;
    let gpu = Gpu::new(4).await?;
    files(&gpu, &dir).await?;
    in_both_scopes(&gpu, dir.path(), &QUERIES).await?;
    gpu.settled().await
}

/// Too little memory for a batch: it is split, or the CPU has it.
#[tokio::test(flavor = "multi_thread")]
async fn little_device_memory() -> TestResult {
    let dir = tempfile::tempdir()?;
    let gpu = Gpu::new(2).await?;
    files(&gpu, &dir).await?;
    let sql = "SELECT k, s, count(*), sum(v), max(d) FROM t WHERE v > 100 GROUP BY k, s";
    let want = expected(dir.path(), sql).await?;
    for limit in ["'1KiB'", "'300KiB'", "'600KiB'"] {
        gpu.set("memory_limit", limit).await?;
        let ran = gpu.run(sql).await?;
        assert_eq!(ran.rows, want, "{limit}");
        assert!((limit == "'1KiB'") == (ran.gpu_batches == 0), "{limit} {ran:?}");
    }
    gpu.set("fallback", "'error'").await?;
    gpu.set("memory_limit", "'1KiB'").await?;
    let error = gpu.run(sql).await.err().ok_or("the query must fail")?.to_string();
    assert!(error.contains("gpu.memory_limit") && error.contains("GpuAggregateExec"), "{error}");
    Ok(())
}

/// A table in memory, in two partitions of batches of 500 rows.
pub fn in_memory(ctx: &SessionContext, columns: &[(&str, ArrayRef)]) -> TestResult {
    let batch = RecordBatch::try_from_iter_with_nullable(
        columns.iter().map(|(name, array)| (*name, Arc::clone(array), true)),
    )?;
    let mut partitions = vec![vec![], vec![]];
    for (at, from) in (0..batch.num_rows()).step_by(500).enumerate() {
        partitions[at % 2].push(batch.slice(from, 500.min(batch.num_rows() - from)));
    }
    ctx.register_table("f", Arc::new(MemTable::try_new(batch.schema(), partitions)?))?;
    Ok(())
}

/// A session with the GPU and one without, each with `columns` as table `f` in two partitions.
pub async fn both(partitions: usize, columns: &[(&str, ArrayRef)]) -> TestResult<(Gpu, SessionContext)> {
    let (gpu, off) = (Gpu::new(partitions).await?, cpu(partitions));
    in_memory(&gpu.ctx, columns)?;
    in_memory(&off, columns)?;
    Ok((gpu, off))
}

/// Floats as keys: -0 is +0, NaNs part by their bits.
#[tokio::test(flavor = "multi_thread")]
async fn float_keys() -> TestResult {
    let odd = [
        0.0,
        -0.0,
        f64::NAN,
        -f64::NAN,
        f64::from_bits(0x7ff8_0000_0000_0001),
        f64::INFINITY,
        5e-324,
        -5e-324,
        1.5,
    ];
    let wide = Float64Array::from_iter((0..3000).map(|at| (at % 11 != 7).then(|| odd[at % odd.len()])));
    let narrow =
        Float32Array::from_iter((0..3000).map(|at| (at % 13 != 7).then(|| odd[(at / 3) % odd.len()] as f32)));
    let columns: [(&str, ArrayRef); 2] = [("x", Arc::new(wide)), ("y", Arc::new(narrow))];
    let bits = "SELECT arrow_cast(x, 'Float64') AS x, count(*) AS n FROM f GROUP BY x";
    for partitions in [1, 2] {
        let (gpu, off) = both(partitions, &columns).await?;
        for sql in [bits, "SELECT x, y, count(*) FROM f GROUP BY x, y", "SELECT DISTINCT y FROM f"] {
            let (want, ran) = (run(&off, sql).await?, gpu.run(sql).await?);
            assert_eq!(ran.rows, want.rows, "{sql}");
            on_the_device(sql, &ran);
        }
    }
    Ok(())
}

/// MIN and MAX over floats with GROUP BY: where DataFusion's answer depends on the order of rows, it is DataFusion's.
#[tokio::test(flavor = "multi_thread")]
async fn grouped_float_extremes() -> TestResult {
    let at = |values: &[f64]| Float64Array::from_iter_values((0..4000).map(|row| values[row % values.len()]));
    let key: ArrayRef = Arc::new(Int64Array::from_iter_values((0..4000).map(|row| row % 3)));
    let plain = at(&[1.0, -2.5, f64::INFINITY, 7.0, 0.0]);
    let infinite = at(&[f64::INFINITY]);
    let below = at(&[f64::NEG_INFINITY]);
    let nan =
        Float64Array::from_iter_values((0..4000).map(|row| if row == 3700 { f64::NAN } else { row as f64 }));
    let zeros = Float64Array::from_iter_values((0..4000).map(|row| if row > 2000 { -0.0 } else { 0.0 }));
    let minus = at(&[-0.0, 4.0]);
    for (values, odd) in
        [(plain, false), (infinite, false), (below, false), (minus, false), (nan, true), (zeros, true)]
    {
        let columns: [(&str, ArrayRef); 2] = [("k", Arc::clone(&key)), ("x", Arc::new(values))];
        let sql = "SELECT k, min(x), max(x), count(*) FROM f GROUP BY k";
        for scope in ["batch", "island"] {
            // One partition, so that DataFusion has one answer.
            let (gpu, off) = both(1, &columns).await?;
            gpu.set("fallback_scope", &format!("'{scope}'")).await?;
            gpu.set("batch_rows", "700").await?;
            let (want, ran) = (run(&off, sql).await?, gpu.run(sql).await?);
            assert_eq!(ran.rows, want.rows, "{scope} {odd}");
            let orders = ran.fallbacks.iter().any(|(code, _)| code == "FloatOrder");
            assert_eq!(orders, odd, "{ran:?}");
        }
    }
    Ok(())
}

/// Without GROUP BY the order of floats is total, beside MIN and MAX of strings too, in every partition.
#[tokio::test(flavor = "multi_thread")]
async fn ungrouped_float_extremes_beside_strings() -> TestResult {
    let odd = [0.0, -0.0, f64::NAN, 3.5, -f64::NAN, f64::NEG_INFINITY];
    let x = Float64Array::from_iter_values((0..4000).map(|row| odd[row % odd.len()]));
    let s = StringArray::from_iter_values((0..4000).map(|row| format!("s{}", row % 91)));
    let columns: [(&str, ArrayRef); 2] = [("x", Arc::new(x)), ("s", Arc::new(s))];
    for exchanges in ["keep", "collapse"] {
        for filter in ["", " WHERE abs(x) < 3", " WHERE x < 9"] {
            let (gpu, off) = both(3, &columns).await?;
            gpu.set("exchanges", &format!("'{exchanges}'")).await?;
            gpu.set("batch_rows", "300").await?;
            let sql = format!("SELECT max(x), min(x), max(s), count(*) FROM f{filter}");
            let (want, ran) = (run(&off, &sql).await?, gpu.run(&sql).await?);
            assert_eq!(ran.rows, want.rows, "{exchanges}{filter}");
            on_the_device(&sql, &ran);
        }
    }
    Ok(())
}

/// A partial aggregate gives its first groups before its input ends where the memory pool is full.
#[tokio::test(flavor = "multi_thread")]
async fn groups_before_the_end_of_the_input() -> TestResult {
    let key = Int64Array::from_iter_values((0..200).map(|row| row * 7 % 211));
    let s = StringArray::from_iter_values((0..200).map(|row| format!("s{}", row % 91)));
    let columns: [(&str, ArrayRef); 2] = [("k", Arc::new(key)), ("s", Arc::new(s))];
    let sql = "SELECT k, s, count(*) FROM (SELECT * FROM f UNION ALL SELECT k + 1, s FROM f UNION ALL \
               SELECT k + 2, s FROM f UNION ALL SELECT k, s FROM f) GROUP BY k, s";
    let (mut answers, mut early) = (0, 0);
    for (scope, pool) in [("batch", 60), ("island", 60), ("batch", 400)] {
        let (gpu, off) = both(1, &columns).await?;
        gpu.set("exchanges", "'keep'").await?;
        gpu.set("fallback_scope", &format!("'{scope}'")).await?;
        gpu.set("batch_rows", "2").await?;
        gpu.ctx.sql("SET datafusion.execution.target_partitions = 4").await?;
        // One file a batch: apache/datafusion#24883.
        gpu.ctx.sql("SET datafusion.execution.max_spill_file_size_bytes = 1").await?;
        gpu.ctx.sql(&format!("SET datafusion.runtime.memory_limit = '{pool}K'")).await?;
        let want = run(&off, sql).await?;
        let plan = gpu.ctx.sql(sql).await?.create_physical_plan().await?;
        let ran = run_plan(&gpu.ctx, Arc::clone(&plan));
        // That the pool is too small may be said, but not waited for.
        let ran = tokio::time::timeout(Duration::from_secs(120), ran).await?;
        early += early_groups(&plan);
        match ran {
            Ok(ran) => {
                assert_eq!(ran.rows, want.rows, "{scope}");
                assert!(ran.gpu_batches > 0, "{ran:?}");
                answers += 1;
            }
            Err(error) => assert!(error.to_string().contains("Resources exhausted"), "{error}"),
        }
    }
    assert!(answers > 0 && early > 0, "{answers} {early}");
    Ok(())
}

/// How many partitions gave groups before the end of their input.
fn early_groups(plan: &Arc<dyn ExecutionPlan>) -> usize {
    let own = plan.metrics().and_then(|metrics| metrics.sum_by_name("early_groups"));
    let below: usize = plan.children().into_iter().map(early_groups).sum();
    own.map_or(0, |value| value.as_usize()) + below
}

/// What raises in a key, an argument or a filtered argument is what DataFusion raises.
#[tokio::test(flavor = "multi_thread")]
async fn errors_that_depend_on_rows() -> TestResult {
    let x = Int64Array::from_iter_values((0..3000).map(|at| if at == 2500 { 0 } else { at % 9 + 1 }));
    let s = StringArray::from_iter_values(
        (0..3000).map(|at| if at == 2700 { "x".to_string() } else { format!("{}", at % 4) }),
    );
    let flag = BooleanArray::from_iter((0..3000).map(|at| Some(at < 2400)));
    let columns: [(&str, ArrayRef); 3] = [("x", Arc::new(x)), ("s", Arc::new(s)), ("b", Arc::new(flag))];
    let (gpu, off) = both(1, &columns).await?;
    for sql in [
        "SELECT 10 / x, count(*) FROM f GROUP BY 10 / x",
        "SELECT s, sum(10 / x) FROM f GROUP BY s",
        // DataFusion computes arguments with GROUP BY for all rows, whatever the filter says.
        "SELECT s, sum(10 / x) FILTER (WHERE x <> 0) FROM f GROUP BY s",
        "SELECT CAST(s AS INT), count(*) FROM f GROUP BY CAST(s AS INT)",
        "SELECT arrow_cast(CAST(s AS INT), 'Utf8'), count(*) FROM f GROUP BY 1",
    ] {
        for (tail, fails) in [("", true), (" WHERE b", false)] {
            let sql = sql.replace("FROM f", &format!("FROM f{tail}"));
            let (want, ran) = (run(&off, &sql).await, gpu.run(&sql).await);
            match (want, ran) {
                (Ok(want), Ok(ran)) => {
                    assert_eq!(ran.rows, want.rows, "{sql}");
                    assert!(!fails && ran.gpu_batches > 0, "{sql} {ran:?}");
                }
                (Err(want), Err(ran)) => {
                    assert_eq!(ran.to_string(), want.to_string(), "{sql}");
                    assert!(fails, "{sql}: {ran}");
                }
                (want, ran) => panic!("{sql}: {want:?} but {ran:?}"),
            }
        }
    }
    Ok(())
}

/// No row, or none that counts: no group, but that of the empty grouping set.
#[tokio::test(flavor = "multi_thread")]
async fn without_rows() -> TestResult {
    for partitions in [1, 3] {
        let (gpu, off) = (Gpu::new(partitions).await?, cpu(partitions));
        for ctx in [&gpu.ctx, &off] {
            ctx.register_batch("t", table(0, 2000)?)?;
            ctx.register_batch("e", table(0, 0)?)?;
        }
        for from in ["e", "t WHERE v < 0"] {
            for groups in ["k", "k, s", "ROLLUP (k, s)", "GROUPING SETS ((k), (), ())", "GROUPING SETS (())"]
            {
                let sql = format!("SELECT count(*), sum(v), min(d), avg(d) FROM {from} GROUP BY {groups}");
                let (want, ran) = (run(&off, &sql).await?, gpu.run(&sql).await?);
                assert_eq!(ran.rows, want.rows, "{sql}\n{}", ran.plan);
                assert!(ran.plan.contains("gby=["), "{sql}: {}", ran.plan);
            }
        }
    }
    Ok(())
}

/// The queries of TPC-H that are about groups.
#[tokio::test(flavor = "multi_thread")]
async fn tpch() -> TestResult {
    const TABLES: [&str; 3] = ["lineitem", "orders", "customer"];
    let dir = tempfile::tempdir()?;
    let root = write_tpch(dir.path(), 0.01, 2, &TABLES)?;
    for partitions in [1, 3] {
        let (gpu, off) = (Gpu::new(partitions).await?, cpu(partitions));
        gpu.set("batch_rows", "40000").await?;
        for ctx in [&gpu.ctx, &off] {
            for table in TABLES {
                register_files(ctx, table, &root.join(table)).await?;
            }
        }
        for sql in [
            include_str!("../../src/bin/datafusion-wgpu/bench/tpch/01.sql"),
            include_str!("../../src/bin/datafusion-wgpu/bench/tpch/03.sql"),
            include_str!("../../src/bin/datafusion-wgpu/bench/tpch/04.sql"),
            include_str!("../../src/bin/datafusion-wgpu/bench/tpch/12.sql"),
            include_str!("../../src/bin/datafusion-wgpu/bench/tpch/13.sql"),
        ] {
            let (want, ran) = (run(&off, sql).await?, gpu.run(sql).await?);
            assert_eq!(ran.rows, want.rows, "{sql}\n{}", ran.plan);
            on_the_device(sql, &ran);
            assert!(ran.plan.contains("gby=["), "{}", ran.plan);
        }
    }
    Ok(())
}

/// A consumer that goes away in the middle leaves nothing behind.
#[tokio::test(flavor = "multi_thread")]
async fn cancelled() -> TestResult {
    let dir = tempfile::tempdir()?;
    let gpu = Gpu::new(4).await?;
    files(&gpu, &dir).await?;
    let sql = "SELECT id, v, count(*) FROM t GROUP BY id, v";
    for polls in 0..4 {
        let plan = gpu.ctx.sql(sql).await?.create_physical_plan().await?;
        let mut rows = datafusion::physical_plan::execute_stream(plan, gpu.ctx.task_ctx())?;
        for _ in 0..polls {
            let next = futures::StreamExt::next(&mut rows);
            let _ = tokio::time::timeout(Duration::from_millis(5), next).await;
        }
        drop(rows);
        gpu.settled().await?;
    }
    Ok(())
}
