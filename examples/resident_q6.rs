//! TPC-H Q6 with its columns already on the device: the fused kernel against the device's read bandwidth, beside
//! DataFusion's own operators from Parquet and from memory and the GPU from Parquet and from memory.
//!
//! `cargo run --release --example resident_q6 -- --scale 1 --runs 20 [--data DIR] [--adapter NAME] [--peak GB/s]`

use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::util::display::array_value_to_string;
use datafusion::execution::context::SessionContext;
use datafusion::physical_plan::{ExecutionPlan, collect, displayable};
use datafusion::prelude::ParquetReadOptions;
use datafusion_wgpu::physical_plan::aggregate::ResidentAggregate;
use datafusion_wgpu::register_gpu;

#[path = "../tests/support/tpch.rs"]
mod tpch;

type BoxError = Box<dyn Error + Send + Sync>;

const Q6: &str = "SELECT sum(l_extendedprice * l_discount) AS revenue FROM lineitem \
    WHERE l_shipdate >= DATE '1994-01-01' AND l_shipdate < DATE '1995-01-01' \
    AND l_discount BETWEEN 0.05 AND 0.07 AND l_quantity < 24";

struct Options {
    scale: f64,
    runs: usize,
    data: PathBuf,
    adapter: String,
    /// Read bandwidth to compare with, in GB/s; none prints rates only.
    peak: Option<f64>,
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let mut options =
        Options { scale: 0.1, runs: 20, data: "data/tpch".into(), adapter: String::new(), peak: None };
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let value = arguments.next().ok_or_else(|| format!("{name} needs a value"))?;
        match name.as_str() {
            "--scale" => options.scale = value.parse()?,
            "--runs" => options.runs = value.parse()?,
            "--data" => options.data = value.into(),
            "--adapter" => options.adapter = value,
            "--peak" => options.peak = Some(value.parse()?),
            _ => return Err(format!("unknown option {name}").into()),
        }
    }
    run(&options).await
}

async fn run(options: &Options) -> Result<(), BoxError> {
    let (data, scale) = (options.data.clone(), options.scale);
    let files = std::thread::available_parallelism()?.get().max(4);
    let root =
        tokio::task::spawn_blocking(move || tpch::write_tpch(&data, scale, files, &["lineitem"])).await??;
    let ctx = SessionContext::new();
    register_gpu(&ctx)?;
    ctx.sql("SET gpu.allow_software_adapter = true").await?;
    ctx.sql(&format!("SET gpu.adapter = '{}'", options.adapter)).await?;
    let path = root.join("lineitem");
    ctx.register_parquet("lineitem", path.to_string_lossy(), ParquetReadOptions::default()).await?;

    let want = measure(&ctx, "Parquet, CPU", "off", options.runs.min(5)).await?;
    let got = measure(&ctx, "Parquet, GPU", "force", options.runs.min(5)).await?;
    same(&want, &got)?;

    let columns = "SELECT l_shipdate, l_discount, l_quantity, l_extendedprice FROM lineitem";
    ctx.sql("SET gpu.placement = 'off'").await?;
    let memory = ctx.sql(columns).await?.cache().await?;
    ctx.deregister_table("lineitem")?;
    ctx.register_table("lineitem", memory.into_view())?;
    same(&want, &measure(&ctx, "memory, CPU", "off", options.runs.min(5)).await?)?;
    same(&want, &measure(&ctx, "memory, GPU", "force", options.runs.min(5)).await?)?;

    let plan = ctx.sql(Q6).await?.create_physical_plan().await?;
    let resident = ResidentAggregate::load(&plan, &ctx.task_ctx()).await?;
    println!(
        "resident: {} rows in {} batches, {} bytes to read, loaded in {:?}",
        resident.rows(),
        resident.segments(),
        resident.bytes(),
        resident.load
    );
    for repeats in [1, 10, 50] {
        let mut kernels = vec![];
        let mut walls = vec![];
        for _ in 0..options.runs.max(1) {
            let run = resident.launch(repeats).await?;
            same(&want, &[run.row])?;
            kernels.push(run.kernel);
            walls.push(run.wall);
        }
        kernels.sort();
        walls.sort();
        let what = format!("resident, {repeats} a submission");
        report(&format!("{what}, kernel (timestamps)"), &kernels, &resident, options.peak);
        report(&format!("{what}, wall"), &walls, &resident, options.peak);
    }
    Ok(())
}

fn report(what: &str, times: &[Duration], resident: &ResidentAggregate, peak: Option<f64>) {
    for (name, time) in [("best", times[0]), ("median", times[times.len() / 2])] {
        if time.is_zero() {
            continue;
        }
        let rate = resident.bytes() as f64 / time.as_secs_f64() / 1e9;
        let share =
            peak.map_or(String::new(), |peak| format!(", {:.1} % of {peak} GB/s", 100.0 * rate / peak));
        let rows = resident.rows() as f64 / time.as_secs_f64() / 1e9;
        println!("{what} {name}: {time:?}, {rows:.1} Grows/s, {rate:.0} GB/s{share}");
    }
}

/// Runs Q6 `runs` times, prints times and the last run's GPU metrics, and gives its rows.
async fn measure(
    ctx: &SessionContext,
    title: &str,
    placement: &str,
    runs: usize,
) -> Result<Vec<RecordBatch>, BoxError> {
    ctx.sql(&format!("SET gpu.placement = '{placement}'")).await?;
    let mut times = vec![];
    let mut rows = vec![];
    for run in 0..runs.max(1) {
        let plan = ctx.sql(Q6).await?.create_physical_plan().await?;
        if run == 0 && placement == "force" {
            println!("{}", displayable(plan.as_ref()).indent(false));
        }
        let start = Instant::now();
        rows = collect(Arc::clone(&plan), ctx.task_ctx()).await?;
        times.push(start.elapsed());
        if placement == "force" && (run == 0 || run + 1 == runs) {
            println!("  {}: {}", if run == 0 { "cold" } else { "warm" }, metrics(&plan));
        }
    }
    let shown: Vec<String> = times.iter().map(|time| format!("{:.1}", time.as_secs_f64() * 1e3)).collect();
    let answer = array_value_to_string(rows[0].column(0), 0)?;
    println!("{title}: {} ms, revenue {answer}", shown.join(" "));
    Ok(rows)
}

fn metrics(plan: &Arc<dyn ExecutionPlan>) -> String {
    let mut text = String::new();
    if plan.name().starts_with("Gpu")
        && let Some(metrics) = plan.metrics()
    {
        text = format!("{}: {}", plan.name(), metrics.aggregate_by_name());
    }
    plan.children().into_iter().fold(text, |text, child| text + &metrics(child))
}

/// Compares values; the names of columns may differ.
fn same(want: &[RecordBatch], got: &[RecordBatch]) -> Result<(), BoxError> {
    let values =
        |rows: &[RecordBatch]| rows.iter().flat_map(|batch| batch.columns().to_vec()).collect::<Vec<_>>();
    if values(want) != values(got) {
        return Err(format!("the answers differ: {want:?} and {got:?}").into());
    }
    Ok(())
}
