//! The process that runs the files in the scratch folder, and the one that waits for it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use datafusion::common::runtime::SpawnedTask;
use datafusion::error::{DataFusionError, Result};
use futures::StreamExt;
use indicatif::{ProgressBar, ProgressStyle};
use serde::{Deserialize, Serialize};

use crate::error::problem;
use crate::panics;

use super::folder::{SCRATCH, Scratch};
use super::log::{Line, Log, Told};
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
    /// Options of the forced runs, `gpu.` aside, with their values.
    pub options: Vec<(String, String)>,
    /// `gpu.adapter`.
    pub adapter: String,
    /// Seconds that one statement may take.
    pub timeout_seconds: u64,
    /// Whether the GPU is registered.
    pub gpu: bool,
    /// Files at the same time.
    pub jobs: usize,
    /// Answers under the rule to statements that hold this text are made wrong.
    pub plant: Option<String>,
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
    /// Tells the process that waits.
    pub log: Arc<Log>,
}

/// What the runs of all files gave.
#[derive(Debug, Default)]
pub struct Results {
    /// One result a file, by its name.
    pub files: Vec<FileResult>,
    /// Ends of the process that no result accounts for.
    pub ends: Vec<End>,
    /// Panics of all threads, with their number.
    pub panics: BTreeMap<String, u64>,
}

/// An end of the process that was none of success.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct End {
    /// How it ended.
    pub how: String,
    /// Files that ran then.
    pub files: Vec<String>,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.files.as_slice() {
            [] => write!(f, "{}, after the last file", self.how),
            files => write!(f, "{}, while {} ran", self.how, files.join(", ")),
        }
    }
}

const RESULTS: &str = "results.jsonl";
const JOB: &str = "job.json";
/// Time between two looks at the process.
const POLL: Duration = Duration::from_millis(20);
/// Bytes of a thread's stack.
const STACK: &str = "16777216";

/// Runs the job in other processes. When one ends early, because of a crash or a statement that hangs, the next goes on with
/// the other files: one at a time at first, so that the file which is to blame is known. It counts as failed. An end for
/// which no file turns out to be to blame is kept as such.
///
/// # Errors
/// Files that cannot be written, a process that does nothing, and `stop`, which ends the process.
pub fn run_in_process(job: &Job, scratch: &Scratch, stop: &AtomicBool) -> Result<Results> {
    let mut all = Results::default();
    let mut blamed: BTreeSet<String> = BTreeSet::new();
    let mut jobs = job.settings.jobs;
    loop {
        let done: BTreeSet<&str> = all.files.iter().map(|result| result.file.as_str()).collect();
        let files: Vec<String> =
            job.files.iter().filter(|file| !done.contains(file.as_str())).cloned().collect();
        if files.is_empty() {
            all.files.sort_by(|a, b| a.file.cmp(&b.file));
            all.ends.retain(|end| end.files.iter().all(|file| !blamed.contains(file)));
            return Ok(all);
        }
        let next = Job { files, root: job.root.clone(), settings: Settings { jobs, ..job.settings.clone() } };
        let status = run_once(&next, scratch, stop)?;
        let told = Told::read(&job.root.join(RESULTS))?;
        let progress = !told.finished.is_empty();
        all.files.extend(told.finished);
        for (panic, count) in told.panics {
            *all.panics.entry(panic).or_default() += count;
        }
        if status.success() && told.open.is_empty() {
            if progress {
                continue;
            }
            return Err(problem("the process that runs the files did nothing"));
        }
        let open: Vec<String> = told.open.iter().map(|open| open.file.clone()).collect();
        // What was cancelled, and went on when its file had ended, is a failure of that file already.
        let outlived: Vec<String> =
            told.hung.iter().map(|hung| hung.file.clone()).filter(|file| !open.contains(file)).collect();
        let hung = told.hung.iter().find(|hung| open.contains(&hung.file));
        let innocent = hung.is_none() && !outlived.is_empty();
        match told.open.into_iter().next() {
            None if !progress => {
                return Err(problem(format!("the process that runs the files ended at once: {status}")));
            }
            Some(first) if jobs == 1 && !innocent => {
                let message = match hung {
                    Some(hung) => hung.message.clone(),
                    None => format!("the process that ran the file ended: {status}"),
                };
                blamed.insert(first.file.clone());
                all.files.push(first.cut_off(hung.map(|hung| hung.sql.as_str()), message));
                jobs = job.settings.jobs;
            }
            first => {
                blamed.extend(outlived.iter().cloned());
                let files = open.into_iter().chain(outlived).collect();
                all.ends.push(End { how: status.to_string(), files });
                if first.is_some() {
                    jobs = 1;
                }
            }
        }
    }
}

/// Starts the process and waits for its end; tells how it ended.
fn run_once(job: &Job, scratch: &Scratch, stop: &AtomicBool) -> Result<ExitStatus> {
    let json = serde_json::to_vec(job).map_err(|error| problem(error.to_string()))?;
    let path = job.root.join(JOB);
    std::fs::write(&path, json)?;
    File::create(job.root.join(RESULTS))?;
    let mut child = Command::new(std::env::current_exe()?)
        .args(["conformance", "--worker"])
        .arg(&path)
        .current_dir(scratch.working_folder())
        .env("ARROW_TEST_DATA", "../../testing/data")
        // Unoptimised frames are large, and plans are deep.
        .env("RUST_MIN_STACK", std::env::var_os("RUST_MIN_STACK").unwrap_or_else(|| STACK.into()))
        // The files make DataFusion warn a lot.
        .env("RUST_LOG", std::env::var_os("RUST_LOG").unwrap_or_else(|| "error".into()))
        // Never written to: it closes when this process ends, however that comes, and the other one watches it.
        .stdin(Stdio::piped())
        .spawn()?;
    loop {
        if stop.load(Ordering::Relaxed) {
            child.kill()?;
            child.wait()?;
            return Err(problem("interrupted"));
        }
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        std::thread::sleep(POLL);
    }
}

/// Ends this process when the one that waits for it is gone, which then could not remove the scratch folder either.
fn end_with_the_other(root: PathBuf) -> std::io::Result<()> {
    let body = move || {
        // Nothing is ever written, so that this waits for the end.
        std::io::copy(&mut std::io::stdin(), &mut std::io::sink()).ok();
        if root.file_name().is_some_and(|name| name.to_string_lossy().starts_with(SCRATCH)) {
            std::fs::remove_dir_all(&root).ok();
        }
        std::process::exit(1);
    };
    std::thread::Builder::new().name("parent".to_owned()).spawn(body).map(drop)
}

/// Writes what hangs, and ends the process: a thread that is stuck cannot be stopped otherwise.
fn give_up(hung: &[Statement], log: &Log, limit: u64) {
    let message = format!("took longer than {limit} s and could not be cancelled");
    let lines = hung.iter().map(|statement| Line::Hung {
        file: statement.file.clone(),
        sql: statement.sql.clone(),
        message: message.clone(),
    });
    for line in lines.chain([Line::Panics(panics::seen())]) {
        if let Err(error) = log.write(&line) {
            eprintln!("{message}: {hung:?}; {}", crate::error::message(&error));
        }
    }
    std::process::exit(1);
}

/// The second process: runs the files of the job in the working directory.
pub async fn run(job: &Path) -> Result<ExitCode> {
    let job: Job =
        serde_json::from_slice(&std::fs::read(job)?).map_err(|error| problem(error.to_string()))?;
    panics::watch();
    end_with_the_other(job.root.clone())?;
    let bar = ProgressBar::new(job.files.len() as u64);
    let style = ProgressStyle::with_template("[{elapsed_precise}] {bar:40} {pos}/{len} files {msg}");
    bar.set_style(style.map_err(|error| problem(error.to_string()))?);
    let log = Arc::new(Log::open(&job.root.join(RESULTS))?);
    let setup = Arc::new(Setup {
        root: job.root,
        settings: job.settings,
        watch: Arc::default(),
        log: Arc::clone(&log),
    });
    let (jobs, limit) = (setup.settings.jobs, setup.settings.timeout_seconds);
    setup.watch.spawn(limit, {
        let log = Arc::clone(&log);
        move |hung| give_up(&hung, &log, limit)
    })?;
    let (sender, mut results) = tokio::sync::mpsc::unbounded_channel();
    let files = futures::stream::iter(job.files).map(move |file| {
        let (sender, setup) = (sender.clone(), Arc::clone(&setup));
        SpawnedTask::spawn(async move {
            setup.log.write(&Line::Started { file: file.clone() })?;
            let result = records::run(file, Arc::clone(&setup)).await;
            setup.log.write(&Line::Finished(result.clone()))?;
            // The receiver lives until all senders are gone.
            sender.send(result).ok();
            Ok::<_, DataFusionError>(())
        })
    });
    let ended = SpawnedTask::spawn(files.buffer_unordered(jobs).collect::<Vec<_>>());
    while let Some(result) = results.recv().await {
        show(&bar, &result);
    }
    for file in ended.await.map_err(|error| problem(error.to_string()))? {
        file.map_err(|error| problem(error.to_string()))??;
    }
    log.write(&Line::Panics(panics::seen()))?;
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
