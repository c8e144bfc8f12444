//! DataFusion's own test files, run with the rule forced.
//!
//! The files are those of the crate `datafusion-sqllogictest`, read from where cargo keeps its source. They are copied into a
//! scratch folder laid out as a checkout of DataFusion, and a second process runs them there: the files name their data
//! relative to the working directory, and a driver that crashes takes only that process with it.

mod compare;
mod engine;
mod folder;
mod log;
mod markdown;
mod records;
mod report;
mod shape;
mod skips;
mod watch;
mod worker;

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use datafusion::error::{DataFusionError, Result};
use datafusion_wgpu::memory::AdapterSelector;
use datafusion_wgpu::{Exchanges, MemoryLimit, shared_runtime};

use crate::error::problem;
use crate::output::{unwritable, writable};
use crate::signals;

use folder::{Scratch, Sources};
use report::{PassResult, Report};
use skips::Skips;
use worker::{Job, Settings};

/// Files that stand for the whole suite in `make test`, one a line.
const SUBSET: &str = "tests/conformance/subset.txt";
/// Every statement that is known to fail, with its reason.
const SKIPS: &str = "tests/conformance/skips.txt";

const ABOUT: &str = "\
It runs in a clone of the repository, whose dependencies hold the test files. With --test-files it runs anywhere, but for \
--subset, whose list is in the repository; nothing is known to fail then unless --skips says so. The whole suite needs \
--testing-data either way.";

/// Flags of the conformance runner.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = ABOUT)]
pub struct Args {
    /// Folder with the .slt files [default: that of the datafusion-sqllogictest in this repository's dependencies]
    #[arg(long, value_name = "DIR")]
    test_files: Option<PathBuf>,
    /// Folder with the data files, laid out as a checkout of DataFusion [default: $DATAFUSION_TESTING_DATA]
    #[arg(long, value_name = "DIR")]
    testing_data: Option<PathBuf>,
    /// Only files whose path contains one of these
    #[arg(long, value_name = "PART", value_delimiter = ',')]
    files: Vec<String>,
    /// Only the files of tests/conformance/subset.txt, which need no data
    #[arg(long)]
    subset: bool,
    /// The TPC-H files too, with generated data at scale 0.1
    #[arg(long)]
    tpch: bool,
    /// Print the files and stop
    #[arg(long)]
    list: bool,
    /// Files that run at the same time [default: the number of cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    jobs: Option<u32>,
    /// Rows of an upload, so that small inputs become several
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    batch_rows: u32,
    /// Whether exchanges within GPU islands are collapsed or kept
    #[arg(long, value_name = "collapse|keep", default_value_t = Exchanges::Collapse)]
    exchanges: Exchanges,
    /// The most device memory that queries may reserve, such as 1MiB [default: the runtime's share of the device's]
    #[arg(long, value_name = "SIZE")]
    memory_limit: Option<MemoryLimit>,
    /// A further pass over the files with other options, such as exchanges=keep,batch_rows=8192; may be given several times
    #[arg(long = "pass", value_name = "OPTION=VALUE,...")]
    passes: Vec<String>,
    /// The adapter: its number or a part of its name
    #[arg(long, value_name = "ADAPTER", default_value = "")]
    adapter: String,
    /// Seconds that one statement may take
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    timeout: u64,
    /// Leave the GPU away: what fails then fails in this environment anyway
    #[arg(long)]
    without_gpu: bool,
    /// List of statements that are known to fail [default: tests/conformance/skips.txt; none with --test-files]
    #[arg(long, value_name = "FILE")]
    skips: Option<PathBuf>,
    /// Write everything to FILE, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the report to FILE, as Markdown
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Makes forced answers to statements that hold this text wrong: a planted bug, to see that it is found
    #[arg(long, hide = true, value_name = "TEXT")]
    plant: Option<String>,
    /// Run the job in FILE; the runner calls itself so
    #[arg(long, hide = true, value_name = "FILE")]
    worker: Option<PathBuf>,
}

/// Runs the files; fails when a statement fails or a file does not run that the list does not know, when the list is stale, when
/// the process that runs them ends for no known reason, and when this crate panics.
pub async fn run(args: Args) -> Result<ExitCode> {
    if let Some(job) = &args.worker {
        return worker::run(job).await;
    }
    let passes = passes(&args)?;
    let sources = Sources::find(&args)?;
    let files = sources.files(&args)?;
    if files.is_empty() {
        return Err(problem("there is no test file"));
    }
    if args.list {
        for file in &files {
            writeln!(io::stdout(), "{file}")?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let skips = sources.skips.as_deref().map_or(Ok(Skips::default()), Skips::read)?;
    for path in [&args.json, &args.report].into_iter().flatten() {
        writable(path)?;
    }
    // Before the folder is made, so that a signal never finds one and nobody who removes it.
    let mut interruption = std::pin::pin!(signals::interruption()?);
    let stop = Arc::new(AtomicBool::new(false));
    let version = sources.version.clone();
    let stopped = Arc::clone(&stop);
    let mut results = tokio::task::spawn_blocking(move || {
        check_adapter(&passes)?;
        let folder = Scratch::create(&sources, files.iter().any(|file| folder::is_tpch(file)))?;
        let mut results = vec![];
        for settings in passes {
            let options = describe(&settings);
            let job = Job { files: files.clone(), root: folder.root().to_path_buf(), settings };
            results.push(PassResult { options, results: worker::run_in_process(&job, &folder, &stopped)? });
        }
        Ok::<_, DataFusionError>(results)
    });
    let results = tokio::select! {
        results = &mut results => results,
        code = &mut interruption => {
            stop.store(true, Ordering::Relaxed);
            // It ends the other process and removes the folder; what came out is of no use any more.
            drop(results.await);
            return Ok(ExitCode::from(code));
        }
    };
    let results = results.map_err(|error| problem(format!("the runner stopped: {error}")))??;
    let report = Report::new(results, &skips, version);
    if let Some(path) = &args.json {
        std::fs::write(path, report.json()?).map_err(|e| unwritable(path, &e))?;
    }
    if let Some(path) = &args.report {
        std::fs::write(path, report.markdown()).map_err(|e| unwritable(path, &e))?;
    }
    print!("{}", report.summary());
    Ok(if report.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The passes: one with the flags, and one more for each `--pass`.
///
/// # Errors
/// Options that do not exist, and values that they do not take.
fn passes(args: &Args) -> Result<Vec<Settings>> {
    let mut passes = vec![settings(args)];
    for text in &args.passes {
        let mut settings = settings(args);
        for pair in text.split(',') {
            let Some((name, value)) = pair.split_once('=') else {
                return Err(problem(format!("--pass {text}: expected OPTION=VALUE, not '{pair}'")));
            };
            settings.options.retain(|(known, _)| known != name);
            settings.options.push((name.to_owned(), value.to_owned()));
        }
        passes.push(settings);
    }
    for settings in &passes {
        engine::forced_options(settings, "")?;
    }
    Ok(passes)
}

/// Finds the adapter of each pass. Without it every statement that the GPU is asked for would fail.
///
/// # Errors
/// No such adapter.
fn check_adapter(passes: &[Settings]) -> Result<()> {
    for settings in passes.iter().filter(|settings| settings.gpu) {
        let options = engine::forced_options(settings, "")?;
        let selector =
            AdapterSelector { adapter: options.adapter, allow_software: options.allow_software_adapter };
        let found = shared_runtime().find(&selector);
        found.map_err(|e| problem(format!("{e}; `datafusion-wgpu doctor` says why")))?;
    }
    Ok(())
}

fn settings(args: &Args) -> Settings {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let mut options = vec![
        ("batch_rows".to_owned(), args.batch_rows.to_string()),
        ("exchanges".to_owned(), args.exchanges.to_string()),
    ];
    options.extend(args.memory_limit.map(|limit| ("memory_limit".to_owned(), limit.to_string())));
    Settings {
        options,
        adapter: args.adapter.clone(),
        timeout_seconds: args.timeout,
        gpu: !args.without_gpu,
        jobs: args.jobs.map_or(cores, |jobs| jobs as usize),
        plant: args.plant.clone(),
    }
}

/// The options of a pass in words.
fn describe(settings: &Settings) -> String {
    if !settings.gpu {
        return "without the GPU".to_owned();
    }
    settings.options.iter().map(|(name, value)| format!("{name} {value}")).collect::<Vec<_>>().join(", ")
}
