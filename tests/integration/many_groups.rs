//! GROUP BY by the number of groups, in little memory, and over partial states.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, Int64Array};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode};
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::prelude::SessionContext;
use datafusion_wgpu::optimizer::GpuOffload;

use crate::group_by::{both, in_memory, on_the_device};
use crate::harness::{Gpu, TestResult, cpu, register_files, run, run_plan, write_files};

/// Numbers of groups around the sizes of tables, few and many rows a group, and one group that has nearly all rows.
#[tokio::test(flavor = "multi_thread")]
async fn cardinalities() -> TestResult {
    const ROWS: i64 = 70_000;
    let gpu = Gpu::new(2).await?;
    gpu.set("batch_rows", "30000").await?;
    let off = cpu(2);
    for groups in [1, 2, 255, 256, 257, 4_096, 65_535, 65_537, ROWS] {
        let scramble = |row: i64| row.wrapping_mul(2_654_435_761).rem_euclid(1 << 32);
        let key = Int64Array::from_iter_values((0..ROWS).map(|row| scramble(row % groups) - (1 << 31)));
        let hot = Int64Array::from_iter((0..ROWS).map(|row| (row % 97 == 0).then(|| scramble(row % groups))));
        let value = Int64Array::from_iter((0..ROWS).map(|row| (row % 5 != 0).then(|| scramble(row))));
        let columns: [(&str, ArrayRef); 3] =
            [("k", Arc::new(key)), ("h", Arc::new(hot)), ("v", Arc::new(value))];
        for ctx in [&gpu.ctx, &off] {
            let _ = ctx.deregister_table("f")?;
            in_memory(ctx, &columns)?;
        }
        for sql in [
            "SELECT k, count(*), sum(v), min(v), max(v) FROM f GROUP BY k",
            "SELECT h, count(v), sum(k) FROM f GROUP BY h",
        ] {
            let (want, ran) = (run(&off, sql).await?, gpu.run(sql).await?);
            assert!(ran.rows == want.rows, "{groups} groups: {sql}");
            on_the_device(sql, &ran);
        }
    }
    gpu.settled().await
}

/// A million groups, of which most have a row in several batches.
#[tokio::test(flavor = "multi_thread")]
async fn a_million_groups() -> TestResult {
    const GROUPS: i64 = 1_000_000;
    const ROWS: i64 = 1_100_000;
    let key = |row: i64| (row * 7_919 % GROUPS).wrapping_mul(0x9e37_79b9_7f4a_7c15_u64.cast_signed());
    let keys = Int64Array::from_iter_values((0..ROWS).map(key));
    let values = Int64Array::from_iter((0..ROWS).map(|row| (row % 11 != 0).then_some(row * 31 - ROWS)));
    let (gpu, off) = both(2, &[("k", Arc::new(keys)), ("v", Arc::new(values))]).await?;
    // Sums over the groups, since a million rows of text take longer than they.
    let sql = "SELECT count(*), sum(c), sum(s), max(s), bit_xor(k + 3 * s), sum(c * (k % 1009)) FROM \
               (SELECT k, count(*) AS c, sum(v) AS s FROM f GROUP BY k)";
    let (want, ran) = (run(&off, sql).await?, gpu.run(sql).await?);
    assert_eq!(ran.rows, want.rows, "{}", ran.plan);
    assert!(ran.rows[0].contains("1000000"), "{:?}", ran.rows);
    on_the_device(sql, &ran);
    gpu.settled().await
}

/// Nearly as many groups as rows, where the device has too little memory for their tables, and where the host's merge has a small pool:
/// batches are cut or fall back, and no group is lost, whether groups stay on the device or not.
#[tokio::test(flavor = "multi_thread")]
async fn many_groups_in_little_memory() -> TestResult {
    const ROWS: i64 = 200_000;
    let scramble = |row: i64| row.wrapping_mul(0x9e37_79b9_7f4a_7c15_u64.cast_signed()) >> 3;
    // Beside the many groups, one with most of the rows.
    let key = |row: i64| if row % 10 < 3 { scramble(row) } else { 42 };
    let skewed = Int64Array::from_iter_values((0..ROWS).map(key));
    let keys = Int64Array::from_iter_values((0..ROWS).map(|row| scramble(row % 150_000)));
    let values = Int64Array::from_iter((0..ROWS).map(|row| (row % 7 != 0).then_some(row)));
    let columns: [(&str, ArrayRef); 3] =
        [("k", Arc::new(keys)), ("h", Arc::new(skewed)), ("v", Arc::new(values))];
    let off = cpu(2);
    in_memory(&off, &columns)?;
    // Bytes of the device and of DataFusion's pool, and whether every batch fits.
    for (device, pool, fits) in
        [("'1MiB'", None, false), ("'16MiB'", None, true), ("'1GiB'", Some(6 << 20), true)]
    {
        let gpu = match pool {
            None => Gpu::new(2).await?,
            // With one partition the merge needs no exchange.
            Some(bytes) => Gpu::within(1, bytes).await?,
        };
        in_memory(&gpu.ctx, &columns)?;
        gpu.set("memory_limit", device).await?;
        gpu.set("batch_rows", "50000").await?;
        let queries = [
            "SELECT k, count(*), sum(v), max(v) FROM f GROUP BY k",
            "SELECT h, count(v), sum(k) FROM f GROUP BY h",
            "SELECT DISTINCT k, v FROM f",
        ];
        for (merged, sql) in ["16384", "0"].into_iter().flat_map(|least| queries.map(|sql| (least, sql))) {
            gpu.set("merge_groups", merged).await?;
            let (want, ran) = (run(&off, sql).await?, gpu.run(sql).await?);
            assert!(ran.rows == want.rows, "{device}: {sql}");
            assert!(ran.nodes.iter().any(|node| node == "GpuAggregateExec"), "{sql}: {}", ran.plan);
            assert!(!fits || (ran.gpu_batches > 0 && ran.cpu_batches == 0), "{device}: {sql}: {ran:?}");
            assert!(fits || ran.splits + ran.cpu_batches > 0, "{device}: {sql}: {ran:?}");
        }
        gpu.settled().await?;
    }
    Ok(())
}

/// The query's partial step, its states reduced and, by [`AggregateMode::Final`], made to values.
async fn over_states(
    ctx: &SessionContext,
    sql: &str,
    mode: AggregateMode,
) -> TestResult<Arc<dyn ExecutionPlan>> {
    let mut node = ctx.sql(sql).await?.create_physical_plan().await?;
    let rows = loop {
        match node.downcast_ref::<AggregateExec>() {
            Some(partial) if *partial.mode() == AggregateMode::Partial => break partial.clone(),
            _ => node = Arc::clone(node.children().first().ok_or("no partial step")?),
        }
    };
    let step = |mode, input| {
        let (group, functions) = (rows.group_expr().as_final(), rows.aggr_expr().to_vec());
        let filters = vec![None; functions.len()];
        AggregateExec::try_new(mode, group, functions, filters, input, rows.input_schema())
    };
    let reduced = Arc::new(step(AggregateMode::PartialReduce, Arc::new(CoalescePartitionsExec::new(node)))?);
    Ok(if mode == AggregateMode::PartialReduce { reduced } else { Arc::new(step(mode, reduced)?) })
}

/// Steps over partial states alone: those of engines that spread an aggregate over machines. Every state field is DataFusion's.
#[tokio::test(flavor = "multi_thread")]
async fn steps_over_states() -> TestResult {
    let dir = tempfile::tempdir()?;
    write_files(dir.path(), 5, 3_001)?;
    let gpu = Gpu::guarded(4).await?;
    gpu.set("batch_rows", "500").await?;
    gpu.set("exchanges", "'keep'").await?;
    let plain = cpu(4);
    register_files(&plain, "t", dir.path()).await?;
    for aggregates in [
        "count(*), count(f), sum(v), sum(d), avg(d), sum(id)",
        "min(v), max(d), min(s), max(s), min(day), bool_or(v > 10), bit_xor(id), bit_and(v), min(f > 1)",
    ] {
        for keys in ["", "k % 100", "s, k % 3", "f"] {
            let sql = match keys {
                "" => format!("SELECT {aggregates} FROM t"),
                keys => format!("SELECT {keys}, {aggregates} FROM t GROUP BY {keys}"),
            };
            for mode in [AggregateMode::PartialReduce, AggregateMode::Final] {
                let want = run_plan(&plain, over_states(&plain, &sql, mode).await?).await?;
                let state = gpu.ctx.state();
                let rule = state.physical_optimizers().iter().find(|rule| rule.name() == GpuOffload::NAME);
                let plan = over_states(&plain, &sql, mode).await?;
                let plan = rule.ok_or("no rule")?.optimize(plan, state.config_options())?;
                let ran = run_plan(&gpu.ctx, plan).await?;
                assert_eq!(ran.rows, want.rows, "{sql}\n{}", ran.plan);
                let nodes = ran.nodes.iter().filter(|node| *node == "GpuAggregateExec").count();
                assert!(nodes >= 2 && ran.cpu_batches == 0, "{sql}: {ran:?}");
            }
        }
    }
    gpu.settled().await
}
