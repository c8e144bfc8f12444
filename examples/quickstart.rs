//! Runs three queries over TPC-H data in Parquet, on DataFusion's own operators and on the GPU, and compares the answers.
//!
//! `cargo run --release --example quickstart -- --help` lists the options.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::util::display::array_value_to_string;
use datafusion::common::{ScalarValue, exec_err, plan_datafusion_err, plan_err};
use datafusion::error::Result;
use datafusion::execution::context::SessionContext;
use datafusion::physical_plan::{ExecutionPlan, collect, displayable};
use datafusion::prelude::ParquetReadOptions;
use datafusion_wgpu::memory::AdapterSelector;
use datafusion_wgpu::{placement_report, register_gpu, shared_runtime};

#[path = "../tests/support/tpch.rs"]
mod tpch;

/// Runs of each query whose fastest is shown, after a first one that warms the file cache up or compiles the shaders.
const REPEATS: usize = 3;
/// Files a table: several, so that DataFusion reads in parallel.
const FILES: usize = 4;

const USAGE: &str = "\
Runs three queries over TPC-H data on the CPU and on the GPU and compares the answers.

Usage: quickstart [--scale N] [--data DIR] [--adapter NAME]

  --scale N       TPC-H scale factor, default 0.1 (600,000 rows in lineitem)
  --data DIR      where the Parquet files are, or are made; default data/tpch
  --adapter NAME  GPU adapter, by a part of its name or by its number; default: the first
";

const QUERIES: [(&str, &str); 3] = [
    (
        "TPC-H Q6",
        "SELECT sum(l_extendedprice * l_discount) AS revenue
FROM lineitem
WHERE l_shipdate >= DATE '1994-01-01' AND l_shipdate < DATE '1995-01-01'
  AND l_discount BETWEEN 0.05 AND 0.07 AND l_quantity < 24",
    ),
    (
        "Late deliveries",
        "SELECT count(*) AS late, sum(l_quantity) AS quantity, avg(l_discount) AS discount,
       min(l_extendedprice) AS cheapest, max(l_extendedprice) AS dearest,
       min(l_shipdate) AS first_shipped, max(l_receiptdate) AS last_received, sum(l_linenumber) AS line_numbers
FROM lineitem
WHERE l_receiptdate > l_commitdate",
    ),
    (
        "Two halves",
        "SELECT count(*) FILTER (WHERE l_shipdate < DATE '1995-06-17') AS earlier,
       count(*) FILTER (WHERE l_shipdate >= DATE '1995-06-17') AS later,
       sum(l_extendedprice * (1 - l_discount)) FILTER (WHERE l_shipdate < DATE '1995-06-17') AS earlier_revenue,
       sum(l_extendedprice * (1 - l_discount)) FILTER (WHERE l_shipdate >= DATE '1995-06-17') AS later_revenue
FROM lineitem
WHERE l_tax > 0.02 AND l_linenumber IN (1, 2, 3)",
    ),
];

#[tokio::main]
async fn main() -> ExitCode {
    let options = match Options::parse(std::env::args().skip(1)) {
        Ok(Some(options)) => options,
        Ok(None) => {
            print!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Err(message) => {
            eprintln!("{message}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match run(&options).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("quickstart: {}", error.strip_backtrace());
            ExitCode::FAILURE
        }
    }
}

/// The command line.
struct Options {
    scale: f64,
    data: PathBuf,
    adapter: String,
}

impl Options {
    /// `None` when help is asked for.
    fn parse(mut arguments: impl Iterator<Item = String>) -> std::result::Result<Option<Self>, String> {
        let mut options = Options { scale: 0.1, data: PathBuf::from("data/tpch"), adapter: String::new() };
        while let Some(name) = arguments.next() {
            if name == "--help" || name == "-h" {
                return Ok(None);
            }
            if !["--scale", "--data", "--adapter"].contains(&name.as_str()) {
                return Err(format!("unknown option {name}"));
            }
            let value = arguments.next().ok_or_else(|| format!("{name} needs a value"))?;
            match name.as_str() {
                "--scale" => {
                    options.scale = value
                        .parse()
                        .ok()
                        .filter(|scale| (0.001..=1000.0).contains(scale))
                        .ok_or_else(|| format!("--scale is a number from 0.001 to 1000, not {value}"))?;
                }
                "--data" => options.data = value.into(),
                _ => options.adapter = value,
            }
        }
        Ok(Some(options))
    }
}

async fn run(options: &Options) -> Result<()> {
    let ctx = SessionContext::new();
    register_gpu(&ctx)?;
    choose_adapter(&ctx, &options.adapter).await?;

    println!("\nTPC-H lineitem at scale {} under {}", options.scale, options.data.display());
    let start = Instant::now();
    let (data, scale) = (options.data.clone(), options.scale);
    let root = tokio::task::spawn_blocking(move || tpch::write_tpch(&data, scale, FILES, &["lineitem"]))
        .await
        .map_err(|e| plan_datafusion_err!("the data generator stopped: {e}"))??;
    register_table(&ctx, &root, "lineitem").await?;
    println!("ready after {}", milliseconds(start.elapsed()));

    for (title, sql) in QUERIES {
        compare(&ctx, title, sql).await?;
    }
    println!("\nAll answers are equal, to the last bit.");
    Ok(())
}

/// Lists the adapters and sets the session to the wanted one. Software adapters are allowed: this is a demonstration.
async fn choose_adapter(ctx: &SessionContext, adapter: &str) -> Result<()> {
    let runtime = shared_runtime();
    if runtime.adapters().is_empty() {
        return plan_err!(
            "no GPU adapter: there is no Vulkan, Metal or DirectX 12 driver (on Debian and Ubuntu, \
             ./scripts/setup.sh installs a software one)"
        );
    }
    println!("Adapters:");
    for adapter in runtime.adapters() {
        println!("  {}  {} ({:?}, {})", adapter.index, adapter.name, adapter.kind, adapter.backend);
    }
    let wanted = AdapterSelector { adapter: adapter.to_string(), allow_software: true };
    println!("taken: {}", runtime.select(&wanted)?.caps().name);
    set(ctx, "gpu.allow_software_adapter", "true").await?;
    if !adapter.is_empty() {
        set(ctx, "gpu.adapter", &format!("'{}'", adapter.replace('\'', "''"))).await?;
    }
    Ok(())
}

async fn set(ctx: &SessionContext, option: &str, value: &str) -> Result<()> {
    ctx.sql(&format!("SET {option} = {value}")).await?.collect().await.map(|_| ())
}

async fn register_table(ctx: &SessionContext, root: &Path, table: &str) -> Result<()> {
    let folder = root.join(table);
    let Some(path) = folder.to_str() else {
        return plan_err!("{} is not valid UTF-8", folder.display());
    };
    ctx.register_parquet(table, path, ParquetReadOptions::default()).await.map_err(|e| {
        e.context(format!(
            "cannot read the Parquet files in {path}; remove the folder to have them made again"
        ))
    })
}

/// Runs one query with the rule off and forced, and prints plan, answers and times.
async fn compare(ctx: &SessionContext, title: &str, sql: &str) -> Result<()> {
    println!("\n{}\n{title}\n\n{sql}\n", "-".repeat(100));
    set(ctx, "gpu.placement", "'off'").await?;
    let cpu = Measured::run(ctx, sql).await?;

    set(ctx, "gpu.placement", "'force'").await?;
    let gpu = Measured::run(ctx, sql).await?;
    print_plan(gpu.last.plan.as_ref());
    if gpu_metrics(gpu.last.plan.as_ref()).is_empty() {
        return plan_err!("nothing of this query runs on the GPU:\n{}", placement_report(ctx, sql).await?);
    }
    print_answer(&gpu.last.answer)?;
    if let Some(difference) = first_difference(&cpu.last.answer, &gpu.last.answer)? {
        return exec_err!("the answers of {title} differ: {difference}");
    }
    println!("  equal to DataFusion's answer\n");
    println!("  {:<26} {:>14} {:>14}", "", "first run", "best run");
    println!("  {:<26} {:>14} {:>14}", "CPU", milliseconds(cpu.first.time), milliseconds(cpu.best));
    println!("  {:<26} {:>14} {:>14}", "GPU", milliseconds(gpu.first.time), milliseconds(gpu.best));
    println!("  {:<26} {:>14} {:>14}", "  of which, over all tasks", "first run", "last run");
    let first = gpu_metrics(gpu.first.plan.as_ref());
    for (name, value) in gpu_metrics(gpu.last.plan.as_ref()) {
        let before = first.iter().find(|(known, _)| *known == name).map_or("", |(_, value)| value);
        println!("    {name:<24} {before:>14} {value:>14}");
    }
    Ok(())
}

/// The plan as EXPLAIN shows it, long lines cut.
fn print_plan(plan: &dyn ExecutionPlan) {
    const WIDTH: usize = 140;
    for line in displayable(plan).indent(false).to_string().lines() {
        let more = if line.chars().count() > WIDTH { " ..." } else { "" };
        println!("{}{more}", line.chars().take(WIDTH).collect::<String>());
    }
    println!();
}

/// A query run several times: how long it took, planning included, and what it answered.
struct Measured {
    first: Run,
    last: Run,
    best: Duration,
}

struct Run {
    time: Duration,
    answer: Vec<RecordBatch>,
    /// With the metrics of this run.
    plan: Arc<dyn ExecutionPlan>,
}

impl Measured {
    async fn run(ctx: &SessionContext, sql: &str) -> Result<Self> {
        let first = Run::once(ctx, sql).await?;
        let mut last = Run::once(ctx, sql).await?;
        let mut best = last.time;
        for _ in 1..REPEATS {
            last = Run::once(ctx, sql).await?;
            best = best.min(last.time);
            if let Some(difference) = first_difference(&first.answer, &last.answer)? {
                return exec_err!("two runs of one query gave different answers: {difference}");
            }
        }
        Ok(Measured { first, last, best })
    }
}

impl Run {
    async fn once(ctx: &SessionContext, sql: &str) -> Result<Self> {
        let start = Instant::now();
        let plan = ctx.sql(sql).await?.create_physical_plan().await?;
        let answer = collect(Arc::clone(&plan), ctx.task_ctx()).await?;
        Ok(Run { time: start.elapsed(), answer, plan })
    }
}

/// The GPU nodes' own metrics as text, in the order of first appearance, summed over nodes and partitions.
fn gpu_metrics(plan: &dyn ExecutionPlan) -> Vec<(String, String)> {
    let mut sums: Vec<(String, usize)> = vec![];
    add_metrics(plan, &mut sums);
    sums.into_iter()
        .map(|(name, value)| {
            let text = if name.starts_with("bytes_") {
                bytes(value)
            } else if name.ends_with("_time") {
                milliseconds(Duration::from_nanos(value as u64))
            } else {
                value.to_string()
            };
            (name, text)
        })
        .collect()
}

fn add_metrics(plan: &dyn ExecutionPlan, sums: &mut Vec<(String, usize)>) {
    if plan.name().starts_with("Gpu")
        && let Some(metrics) = plan.metrics()
    {
        for metric in metrics.iter() {
            let name = metric.value().name();
            let general = ["output_", "elapsed_compute", "start_timestamp", "end_timestamp"];
            if general.iter().any(|prefix| name.starts_with(prefix)) {
                continue;
            }
            match sums.iter_mut().find(|(known, _)| known == name) {
                Some((_, sum)) => *sum += metric.value().as_usize(),
                None => sums.push((name.to_string(), metric.value().as_usize())),
            }
        }
    }
    for child in plan.children() {
        add_metrics(child.as_ref(), sums);
    }
}

fn print_answer(answer: &[RecordBatch]) -> Result<()> {
    for batch in answer {
        for row in 0..batch.num_rows() {
            for (field, column) in batch.schema_ref().fields().iter().zip(batch.columns()) {
                println!("  {:<22} {}", field.name(), array_value_to_string(column, row)?);
            }
        }
    }
    Ok(())
}

/// Where two answers differ, in type, row count or any bit of a value; batch boundaries don't matter.
fn first_difference(left: &[RecordBatch], right: &[RecordBatch]) -> Result<Option<String>> {
    let (left, right) = (rows(left)?, rows(right)?);
    if left.len() != right.len() {
        return Ok(Some(format!("{} rows and {} rows", left.len(), right.len())));
    }
    for (row, (a, b)) in left.iter().zip(&right).enumerate() {
        if a != b {
            return Ok(Some(format!("row {row} is {a:?} and {b:?}")));
        }
    }
    Ok(None)
}

fn rows(batches: &[RecordBatch]) -> Result<Vec<Vec<(String, ScalarValue)>>> {
    let mut rows = vec![];
    for batch in batches {
        for row in 0..batch.num_rows() {
            let mut cells = vec![];
            for (field, column) in batch.schema_ref().fields().iter().zip(batch.columns()) {
                cells.push((field.name().clone(), ScalarValue::try_from_array(column, row)?));
            }
            rows.push(cells);
        }
    }
    Ok(rows)
}

fn bytes(count: usize) -> String {
    match count {
        0..10_000 => format!("{count} B"),
        10_000..10_000_000 => format!("{:.1} kB", count as f64 / 1e3),
        _ => format!("{:.1} MB", count as f64 / 1e6),
    }
}

fn milliseconds(time: Duration) -> String {
    format!("{:.3} ms", time.as_secs_f64() * 1e3)
}
