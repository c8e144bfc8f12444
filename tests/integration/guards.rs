//! Whole queries with guard bands around every buffer that their kernels write.

use std::sync::Arc;

use datafusion::catalog::MemTable;

use crate::faults::TABLES;
use crate::harness::{Gpu, TestResult, cpu, run, table};
use crate::operators::OPERATORS;

/// More than the queries of [`OPERATORS`]: the operator that has to be in the plan, and a query over `t`.
const QUERIES: &[(&str, &str)] = &[
    ("GpuFilterExec", "SELECT id FROM t WHERE v + id < 0"),
    ("GpuProjectionExec", "SELECT id, v + id AS w, d * d AS dd, f > 3 AS b, k IS NULL AS n FROM t"),
    ("GpuAggregateExec", "SELECT count(k), sum(d * d), sum(d) FILTER (WHERE k > 500) FROM t WHERE v > 2000"),
];

/// Those that need the whole aggregate, whose exchange can't be kept.
const WHOLE: &[(&str, &str)] = &[("GpuAggregateExec", "SELECT avg(id), avg(d) FROM t WHERE k > 10")];

/// Every operator, with one partition and with several, with exchanges and without.
#[tokio::test(flavor = "multi_thread")]
async fn operators_write_inside_of_their_buffers() -> TestResult {
    // In memory, since scans of files compute projections themselves.
    let parts = (0..3).map(|part| Ok(vec![table(part * 7_001, 7_001)?])).collect::<TestResult<Vec<_>>>()?;
    let rows = Arc::new(MemTable::try_new(parts[0][0].schema(), parts)?);
    let off = cpu(4);
    for name in TABLES {
        off.register_table(name, Arc::clone(&rows) as _)?;
    }
    for (partitions, exchanges) in [(1, "'collapse'"), (4, "'collapse'"), (4, "'keep'")] {
        let gpu = Gpu::guarded(partitions).await?;
        for name in TABLES {
            gpu.ctx.register_table(name, Arc::clone(&rows) as _)?;
        }
        gpu.set("exchanges", exchanges).await?;
        // All groups that may stay on the device, or only many.
        gpu.set("merge_groups", if partitions == 1 { "1" } else { "16384" }).await?;
        let keeps = exchanges == "'keep'";
        let operators = OPERATORS.iter().filter(|operator| operator.keeps_exchanges == keeps);
        let whole = if keeps { &[] } else { WHOLE };
        let queries = operators.map(|operator| (operator.node, operator.sql));
        for (node, sql) in queries.chain(QUERIES.iter().chain(whole).copied()) {
            let ran = gpu.run(sql).await?;
            assert_eq!(ran.rows, run(&off, sql).await?.rows, "{sql}");
            assert!(ran.nodes.iter().any(|name| *name == node), "{node}\n{}", ran.plan);
            assert!(ran.gpu_batches > 0 && ran.cpu_batches == 0, "{ran:?}");
            gpu.settled().await?;
            let guards = gpu.device.guards().ok_or("no guard bands")?;
            let checked = guards.check().await.map_err(|error| format!("{sql}: {error}"))?;
            assert!(checked >= ran.gpu_batches, "{checked} buffers of {} batches", ran.gpu_batches);
        }
    }
    Ok(())
}
