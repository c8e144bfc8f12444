//! Whole queries with guard bands around every buffer that their kernels write.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use datafusion::catalog::MemTable;

use crate::harness::{Gpu, TestResult, cpu, run, table};

/// The operator that has to be in the plan, and a query over `t`. At least one query an operator.
const QUERIES: &[(&str, &str)] = &[
    ("GpuFilterExec", "SELECT id, k, s FROM t WHERE v > 50000"),
    ("GpuFilterExec", "SELECT id FROM t WHERE v + id < 0"),
    ("GpuProjectionExec", "SELECT id, v + id AS w, d * d AS dd, f > 3 AS b, k IS NULL AS n FROM t"),
    ("GpuProjectionExec", "SELECT s, v + k AS w, day FROM t WHERE v > 50000 AND (k IS NULL OR k < 900)"),
    ("GpuAggregateExec", "SELECT count(*), sum(v), max(f), min(k) FROM t"),
    ("GpuAggregateExec", "SELECT count(k), sum(d * d), sum(d) FILTER (WHERE k > 500) FROM t WHERE v > 2000"),
];

/// Those that need the whole aggregate, whose exchange can't be kept.
const WHOLE: &[(&str, &str)] = &[("GpuAggregateExec", "SELECT avg(id), avg(d) FROM t WHERE k > 10")];

/// Names of the CPU nodes that have a rule.
fn registered() -> Vec<&'static str> {
    let registry = include_str!("../../src/optimizer/registry.rs");
    let rules = registry.split("\nrules! {").nth(1).unwrap_or_default();
    rules.lines().filter_map(|line| line.trim().split_once(" => ")).map(|(node, _)| node).collect()
}

/// Every operator, with one partition and with several, with exchanges and without.
#[tokio::test(flavor = "multi_thread")]
async fn operators_write_inside_of_their_buffers() -> TestResult {
    // In memory, since scans of files compute projections themselves.
    let parts = (0..3).map(|part| Ok(vec![table(part * 7_001, 7_001)?])).collect::<TestResult<Vec<_>>>()?;
    let rows = Arc::new(MemTable::try_new(parts[0][0].schema(), parts)?);
    let off = cpu(4);
    off.register_table("t", Arc::clone(&rows) as _)?;
    let mut seen = BTreeSet::new();
    for (partitions, exchanges) in [(1, "'collapse'"), (4, "'collapse'"), (4, "'keep'")] {
        let gpu = Gpu::guarded(partitions).await?;
        gpu.ctx.register_table("t", Arc::clone(&rows) as _)?;
        gpu.set("exchanges", exchanges).await?;
        let whole = if exchanges == "'keep'" { &[] } else { WHOLE };
        for (node, sql) in QUERIES.iter().chain(whole) {
            let ran = gpu.run(sql).await?;
            assert_eq!(ran.rows, run(&off, sql).await?.rows, "{sql}");
            assert!(ran.nodes.iter().any(|name| name == node), "{node}\n{}", ran.plan);
            assert!(ran.gpu_batches > 0 && ran.cpu_batches == 0, "{ran:?}");
            seen.extend(ran.nodes);
            // Tasks may end a little after the query.
            let deadline = std::time::Instant::now() + Duration::from_secs(60);
            while gpu.reserved() > 0 && std::time::Instant::now() < deadline {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            let guards = gpu.device.guards().ok_or("no guard bands")?;
            let checked = guards.check().await.map_err(|error| format!("{sql}: {error}"))?;
            assert!(checked >= ran.gpu_batches, "{checked} buffers of {} batches", ran.gpu_batches);
        }
    }
    let registered = registered();
    assert!(registered.contains(&"FilterExec"), "{registered:?}");
    let missing: Vec<_> = registered.iter().filter(|node| !seen.contains(&format!("Gpu{node}"))).collect();
    assert!(missing.is_empty(), "a query for {missing:?} has to be added");
    Ok(())
}
