//! The process that runs the files in the scratch folder, and the one that waits for it.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;

use datafusion::common::runtime::SpawnedTask;
use datafusion::error::Result;
use futures::StreamExt;
use indicatif::{ProgressBar, ProgressStyle};
use serde::{Deserialize, Serialize};

use crate::error::problem;

use super::folder::Scratch;
use super::records::{self, FileResult};
use super::watch::{Statement, Watch};

/// What the second process has to do.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Job {
    /// Paths below `test_files`.
    pub files: Vec<String>,
    /// Scratch folder, in the place of a checkout.
    pub root: PathBuf,
    /// How the files run.
    pub settings: Settings,
}

/// How the files run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Settings {
    /// Rows of an upload.
    pub batch_rows: usize,
    /// `gpu.exchanges`.
    pub exchanges: String,
    /// `gpu.adapter`.
    pub adapter: String,
    /// Seconds that one statement may take.
    pub timeout_seconds: u64,
    /// Whether the GPU is registered.
    pub gpu: bool,
    /// Files at the same time.
    pub jobs: usize,
}

/// What the runs of all files share.
#[derive(Debug)]
pub struct Setup {
    /// Scratch folder.
    pub root: PathBuf,
    /// How the files run.
    pub settings: Settings,
    /// Looks after statements that hang.
    pub watch: Arc<Watch>,
}

/// A line of the file through which the processes speak.
#[derive(Debug, Serialize, Deserialize)]
enum Line {
    Started(String),
    Finished(FileResult),
    /// A statement of the file hangs, and the process ended itself.
    Hung(FileResult),
}

const RESULTS: &str = "results.jsonl";
const JOB: &str = "job.json";
/// Bytes of a thread's stack.
const STACK: &str = "16777216";

/// Runs the job in other processes. When one ends early, because of a crash or a statement that hangs, the next goes on with
/// the other files: one at a time at first, so that the file which is to blame is known. It counts as failed.
pub fn run_in_process(job: &Job, scratch: &Scratch) -> Result<Vec<FileResult>> {
    let mut finished: Vec<FileResult> = vec![];
    let mut jobs = job.settings.jobs;
    loop {
        let done: BTreeSet<&str> = finished.iter().map(|result| result.file.as_str()).collect();
        let files: Vec<String> =
            job.files.iter().filter(|file| !done.contains(file.as_str())).cloned().collect();
        if files.is_empty() {
            finished.sort_by(|a, b| a.file.cmp(&b.file));
            return Ok(finished);
        }
        let next = Job { files, root: job.root.clone(), settings: Settings { jobs, ..job.settings.clone() } };
        let end = run_once(&next, scratch)?;
        let results = read_results(&job.root.join(RESULTS))?;
        let progress = !results.finished.is_empty();
        finished.extend(results.finished);
        match results.open.into_iter().next() {
            None if progress => {}
            None => return Err(problem(format!("the process that runs the files ended at once: {end}"))),
            Some(file) if jobs == 1 => {
                let crashed =
                    || FileResult::failed(&file, "", format!("the process that ran the file ended: {end}"));
                finished.push(results.hung.into_iter().next().unwrap_or_else(crashed));
                jobs = job.settings.jobs;
            }
            Some(_) => jobs = 1,
        }
    }
}

/// Starts the process and waits for its end; tells how it ended.
fn run_once(job: &Job, scratch: &Scratch) -> Result<String> {
    let json = serde_json::to_vec(job).map_err(|error| problem(error.to_string()))?;
    let path = job.root.join(JOB);
    std::fs::write(&path, json)?;
    File::create(job.root.join(RESULTS))?;
    let status = Command::new(std::env::current_exe()?)
        .args(["conformance", "--worker"])
        .arg(&path)
        .current_dir(scratch.working_folder())
        .env("ARROW_TEST_DATA", "../../testing/data")
        // Unoptimised frames are large, and plans are deep.
        .env("RUST_MIN_STACK", std::env::var_os("RUST_MIN_STACK").unwrap_or_else(|| STACK.into()))
        // The files make DataFusion warn a lot.
        .env("RUST_LOG", std::env::var_os("RUST_LOG").unwrap_or_else(|| "error".into()))
        .status()?;
    Ok(status.to_string())
}

/// What a process wrote.
#[derive(Default)]
struct Results {
    finished: Vec<FileResult>,
    /// Files that were started only.
    open: Vec<String>,
    /// Those in which a statement hung, or waited for a thread that another held.
    hung: Vec<FileResult>,
}

fn read_results(path: &Path) -> Result<Results> {
    let mut results = Results::default();
    for line in BufReader::new(File::open(path)?).lines() {
        // A crash may cut the last line.
        match serde_json::from_str(&line?) {
            Ok(Line::Started(file)) => results.open.push(file),
            Ok(Line::Finished(result)) => results.finished.push(result),
            Ok(Line::Hung(result)) => results.hung.push(result),
            Err(_) => {}
        }
    }
    let finished = &results.finished;
    results.open.retain(|file| finished.iter().all(|result| result.file != *file));
    Ok(results)
}

/// Writes what hangs, and ends the process: a thread that is stuck cannot be stopped otherwise.
fn give_up(hung: &[Statement], log: &Path, limit: u64) {
    let message = format!("took longer than {limit} s and could not be cancelled");
    let lines = hung
        .iter()
        .map(|statement| Line::Hung(FileResult::failed(&statement.file, &statement.sql, message.clone())));
    let written = OpenOptions::new().append(true).open(log).map_err(Into::into).and_then(|mut log| {
        for line in lines {
            write_line(&mut log, &line)?;
        }
        Ok(())
    });
    if let Err(error) = written {
        eprintln!("{message}: {hung:?}; {}", crate::error::message(&error));
    }
    std::process::exit(1);
}

fn write_line(log: &mut File, line: &Line) -> Result<()> {
    let mut json = serde_json::to_vec(line).map_err(|error| problem(error.to_string()))?;
    json.push(b'\n');
    Ok(log.write_all(&json)?)
}

/// The second process: runs the files of the job in the working directory.
pub async fn run(job: &Path) -> Result<ExitCode> {
    let job: Job =
        serde_json::from_slice(&std::fs::read(job)?).map_err(|error| problem(error.to_string()))?;
    let bar = ProgressBar::new(job.files.len() as u64);
    let style = ProgressStyle::with_template("[{elapsed_precise}] {bar:40} {pos}/{len} files {msg}");
    bar.set_style(style.map_err(|error| problem(error.to_string()))?);
    let path = job.root.join(RESULTS);
    let mut log = OpenOptions::new().append(true).open(&path)?;
    let setup = Arc::new(Setup { root: job.root, settings: job.settings, watch: Arc::default() });
    let (jobs, limit) = (setup.settings.jobs, setup.settings.timeout_seconds);
    setup.watch.spawn(limit, move |hung| give_up(&hung, &path, limit))?;
    let (sender, mut lines) = tokio::sync::mpsc::unbounded_channel();
    let files = futures::stream::iter(job.files).map(move |file| {
        let (sender, setup) = (sender.clone(), Arc::clone(&setup));
        SpawnedTask::spawn(async move {
            // The receiver lives until all senders are gone.
            sender.send(Line::Started(file.clone())).ok();
            let result = records::run(file, setup).await;
            sender.send(Line::Finished(result)).ok();
        })
    });
    let all = SpawnedTask::spawn(files.buffer_unordered(jobs).collect::<Vec<_>>());
    while let Some(line) = lines.recv().await {
        write_line(&mut log, &line)?;
        if let Line::Finished(result) = line {
            show(&bar, &result);
        }
    }
    all.await.map_err(|error| problem(error.to_string()))?;
    bar.finish_and_clear();
    Ok(ExitCode::SUCCESS)
}

fn show(bar: &ProgressBar, result: &FileResult) {
    bar.inc(1);
    bar.set_message(result.file.clone());
    if !result.failures.is_empty() {
        let ours = result.failures.iter().filter(|failure| !failure.without_rule).count();
        let text = format!(
            "{}: {} of {} failed, {} of them without the rule too ({:.1} s)",
            result.file,
            result.failures.len(),
            result.statements,
            result.failures.len() - ours,
            result.seconds
        );
        if bar.is_hidden() {
            eprintln!("{text}");
        } else {
            bar.println(text);
        }
    }
}
