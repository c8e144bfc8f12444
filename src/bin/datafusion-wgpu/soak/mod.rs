//! `soak`: many queries at once on one device, in little memory, for a while, with failures and cancellations among them.

mod operators;
mod report;
mod tables;
mod work;

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use datafusion::common::runtime::SpawnedTask;
use datafusion::error::{DataFusionError, Result};
use datafusion_wgpu::config::ByteSize;
use datafusion_wgpu::memory::faults::Choke;
use datafusion_wgpu::memory::{AdapterSelector, GpuDevice, GpuRuntime};
use parking_lot::Mutex;

use crate::error::problem;
use crate::fuzz::rng::Rng;

use report::{Health, Summary};
use work::{Job, Known, Shared};

/// Flags of `soak`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// How long it runs
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub seconds: u64,
    /// Queries that run at a time
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub queries: u32,
    /// Sessions that they belong to
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub sessions: u32,
    /// Rows of the table
    #[arg(long, value_name = "N", default_value_t = 300_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub rows: u32,
    /// The most device memory that all queries together may hold
    #[arg(long, value_name = "SIZE", default_value = "16MiB")]
    pub memory_limit: ByteSize,
    /// Seconds between failures that are injected into the device; 0 for none
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
    pub faults: f64,
    /// Percentage of queries that are cancelled
    #[arg(long, value_name = "PERCENT", default_value_t = 10, value_parser = clap::value_parser!(u32).range(0..=100))]
    pub cancel: u32,
    /// The seed of all choices
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// The adapter: its number or a part of its name
    #[arg(long, value_name = "ADAPTER", default_value = "")]
    pub adapter: String,
    /// Writes the numbers as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// How long work may take to end after the last query, and a query after the time is over.
const PATIENCE: Duration = Duration::from_secs(120);

/// Runs `soak`.
///
/// # Errors
/// No adapter, data that cannot be made, or a file that cannot be written.
pub async fn run(args: Args) -> Result<ExitCode> {
    if !args.faults.is_finite() || args.faults < 0.0 {
        return Err(problem("--faults must be 0 or more seconds"));
    }
    let selector = AdapterSelector { adapter: args.adapter.clone(), allow_software: true };
    let opened = SpawnedTask::spawn_blocking(move || GpuRuntime::new().select(&selector)).await;
    let device = opened.map_err(|e| problem(format!("opening the adapter failed: {e}")))??;
    let known = Known::new(args.rows).await?;
    let shared = Arc::new(Shared::new(&args, &device, known)?);
    shared.check_plans().await?;
    // Opening the device computes with probes, under no limit.
    device.ledger().restart_alive_peak();
    let start = Instant::now();
    let end = start + Duration::from_secs(args.seconds);
    let faults = SpawnedTask::spawn(inject(Arc::clone(&shared), args.clone()));
    let health = Arc::new(Mutex::new(Health::default()));
    let watcher = SpawnedTask::spawn(watch(Arc::clone(&health), start, args.seconds));
    let jobs: Vec<_> = (0..args.queries)
        .map(|number| {
            let job = Job::new(Arc::clone(&shared), number, &args);
            SpawnedTask::spawn(job.run(end))
        })
        .collect();
    let mut summary = Summary::new(&args, device.caps().name.clone());
    // One for all: many queries that hang are found as soon as one is.
    let deadline = (end + PATIENCE).into();
    for job in jobs {
        match tokio::time::timeout_at(deadline, job.join_unwind()).await {
            Ok(Ok(done)) => summary.add(done),
            Ok(Err(error)) => summary.wrong(format!("a job ended early: {error}")),
            Err(_) => summary.wrong("a query hangs".to_owned()),
        }
    }
    // Only now: the last queries were to meet failures too.
    drop((faults, watcher));
    device.faults().clear();
    let leaked = settle(&shared.device).await;
    summary.finish(start.elapsed(), &shared.device, *shared.injected.lock(), &health.lock(), leaked);
    write!(io::stdout(), "{summary}")?;
    if let Some(path) = &args.json {
        let text =
            serde_json::to_string_pretty(&summary).map_err(|e| DataFusionError::External(Box::new(e)))?;
        std::fs::write(path, text + "\n")?;
    }
    Ok(if summary.problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Lets calls fail and devices be lost, now and then.
async fn inject(shared: Arc<Shared>, args: Args) {
    if args.faults == 0.0 {
        return;
    }
    let mut rng = Rng::new(args.seed, u64::MAX);
    loop {
        tokio::time::sleep(Duration::from_secs_f64(args.faults)).await;
        let choke = rng.choose(&[Choke::Allocate, Choke::Submit, Choke::Map, Choke::Compile]);
        let n = rng.between(1, 20) as u64;
        let mut injected = shared.injected.lock();
        if rng.chance(20) {
            shared.device.faults().lose_at(choke, n);
            injected.1 += 1;
        } else {
            shared.device.faults().fail(choke, n);
            injected.0 += 1;
        }
    }
}

/// Samples the process.
async fn watch(health: Arc<Mutex<Health>>, start: Instant, seconds: u64) {
    loop {
        let quarter = start.elapsed().as_secs_f64() / (seconds.max(1) as f64 / 4.0);
        health.lock().sample(quarter as usize);
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// Waits until nothing is held or runs on the device; the bytes that still are.
async fn settle(device: &GpuDevice) -> u64 {
    let start = Instant::now();
    loop {
        let (held, works) = (device.ledger().reserved(), device.ledger().works());
        if (held == 0 && works == (0, 0)) || start.elapsed() > Duration::from_secs(20) {
            return held.max((works.0 + works.1) as u64);
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
