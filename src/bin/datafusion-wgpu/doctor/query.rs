//! A small query on the adapter, compared with DataFusion alone.

use std::sync::Arc;
use std::time::{Duration, Instant};

use datafusion::arrow::util::pretty::pretty_format_batches;
use datafusion::error::Result;
use datafusion::physical_plan::{ExecutionPlan, collect, displayable};
use datafusion::prelude::{SessionConfig, SessionContext};
use datafusion_wgpu::{FallbackPolicy, GpuOptions, GpuRuntime, Placement, register_gpu_runtime};

use super::finding::{Check, Finding};

const ROWS: usize = 100_000;

/// Integers, NULLs, decimals and dates; every value follows from its row's number.
const TABLE: &str = "CREATE TABLE facts AS SELECT value AS id, (value * 7919) % 100003 AS v, \
    CASE WHEN value % 7 = 3 THEN NULL ELSE value % 1000 END AS k, \
    CAST(value % 100000 AS DECIMAL(15, 2)) AS d, \
    CAST(arrow_cast(value % 3650, 'Int32') AS DATE) AS day FROM generate_series(1, 100000)";

/// One statement for each kind of operator; each must use the GPU, and be the same on the CPU.
const QUERIES: [&str; 2] = [
    "SELECT count(*), count(k), sum(v), min(v), max(day), sum(d), avg(v) FROM facts WHERE v > 20000 AND (k IS NULL OR k < 900)",
    "SELECT id, v + id AS w, d FROM facts WHERE v < 300 AND d <> 7 ORDER BY id",
];

/// Runs the queries on the adapter and on the CPU.
pub async fn compare(runtime: Arc<GpuRuntime>, index: usize) -> Finding {
    match try_compare(runtime, index).await {
        Ok(finding) => finding,
        Err(error) => Finding::problem(Check::Query, format!("the query failed on the GPU: {error}"))
            .advise("update the driver; --gpu off keeps queries on the CPU"),
    }
}

async fn try_compare(runtime: Arc<GpuRuntime>, index: usize) -> Result<Finding> {
    let session = |placement| session(Arc::clone(&runtime), index, placement);
    let (cpu, gpu) = (session(Placement::Off)?, session(Placement::Force)?);
    cpu.sql(TABLE).await?.collect().await?;
    gpu.register_table("facts", cpu.table_provider("facts").await?)?;
    let mut nodes: Vec<String> = vec![];
    let (mut first, mut again, mut alone) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
    for sql in QUERIES {
        let expected = run(&cpu, sql).await?;
        let cold = run(&gpu, sql).await?;
        let warm = run(&gpu, sql).await?;
        if cold.nodes.is_empty() {
            let plan = displayable(cold.plan.as_ref()).one_line().to_string();
            return Ok(Finding::problem(Check::Query, format!("{sql} stayed on the CPU: {plan}"))
                .advise("please report it"));
        }
        for answer in [&cold, &warm] {
            if answer.rows != expected.rows {
                return Ok(wrong(sql, &expected.rows, &answer.rows));
            }
        }
        nodes.extend(cold.nodes);
        first += cold.time;
        again += warm.time;
        alone += expected.time;
    }
    nodes.sort();
    nodes.dedup();
    let millis = |time: Duration| time.as_secs_f64() * 1e3;
    Ok(Finding::ok(
        Check::Query,
        format!(
            "{} queries over {ROWS} rows gave the CPU's answers through {}; {:.0} ms at first, {:.0} ms again, CPU {:.0} ms",
            QUERIES.len(),
            nodes.join(", "),
            millis(first),
            millis(again),
            millis(alone)
        ),
    ))
}

fn wrong(sql: &str, expected: &str, got: &str) -> Finding {
    let (row, other) = expected
        .lines()
        .zip(got.lines())
        .find(|(expected, got)| expected != got)
        .unwrap_or(("another number of rows", ""));
    Finding::problem(
        Check::Query,
        format!("a wrong answer to {sql}: {} instead of {}", other.trim(), row.trim()),
    )
    .advise("do not use this adapter (--gpu off); update the driver, and please report it")
}

fn session(runtime: Arc<GpuRuntime>, index: usize, placement: Placement) -> Result<SessionContext> {
    let mut options = GpuOptions::default();
    options.placement = placement;
    options.adapter = index.to_string();
    options.allow_software_adapter = true;
    // A fallback would hide what the adapter can't do.
    options.fallback = FallbackPolicy::Error;
    let config = SessionConfig::new().with_target_partitions(2).with_option_extension(options);
    let context = SessionContext::new_with_config(config);
    register_gpu_runtime(&context, runtime)?;
    Ok(context)
}

struct Answer {
    plan: Arc<dyn ExecutionPlan>,
    nodes: Vec<String>,
    rows: String,
    time: Duration,
}

async fn run(context: &SessionContext, sql: &str) -> Result<Answer> {
    let plan = context.sql(sql).await?.create_physical_plan().await?;
    let started = Instant::now();
    let batches = collect(Arc::clone(&plan), context.task_ctx()).await?;
    let time = started.elapsed();
    let rows = pretty_format_batches(&batches)?.to_string();
    let mut nodes = vec![];
    gpu_nodes(plan.as_ref(), &mut nodes);
    Ok(Answer { plan, nodes, rows, time })
}

fn gpu_nodes(plan: &dyn ExecutionPlan, nodes: &mut Vec<String>) {
    if plan.name().starts_with("Gpu") {
        nodes.push(plan.name().to_owned());
    }
    plan.children().into_iter().for_each(|child| gpu_nodes(child.as_ref(), nodes));
}

#[cfg(test)]
mod tests {
    use datafusion_wgpu::memory::AdapterSelector;

    use super::super::finding::Status;
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn the_query_runs_on_the_adapter_at_hand() {
        let runtime = GpuRuntime::new();
        let any = AdapterSelector { adapter: String::new(), allow_software: true };
        let index = runtime.find(&any).unwrap();
        let finding = compare(Arc::clone(&runtime), index).await;
        assert_eq!(finding.status, Status::Ok, "{finding:?}");
        assert!(finding.detail.contains("GpuAggregateExec, GpuFilterExec, GpuProjectionExec"), "{finding:?}");
        // A device that fails is a problem, not a silent fallback.
        let device = runtime.select(&any).unwrap();
        device.faults().fail(datafusion_wgpu::memory::faults::Choke::Map, 1);
        let finding = compare(runtime, index).await;
        assert_eq!(finding.status, Status::Problem, "{finding:?}");
        assert!(finding.detail.contains("the query failed on the GPU"), "{finding:?}");
    }

    #[test]
    fn a_wrong_answer_names_the_first_difference() {
        let finding = wrong("SELECT 1", "| a |\n| 1 |\n| 2 |", "| a |\n| 1 |\n| 3 |");
        assert_eq!(finding.status, Status::Problem);
        assert!(finding.detail.contains("| 3 | instead of | 2 |"), "{}", finding.detail);
    }
}
