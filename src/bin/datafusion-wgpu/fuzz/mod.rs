//! `fuzz`: random queries over random tables, each with the rule off and forced, compared by the contract's tiers.
//!
//! No maintained crate generates SQL for DataFusion (SQLancer is a Java program, DataFusion's own fuzz tests are not published), and proptest
//! shrinks values, not a query together with its tables; so queries are a small tree of our own, which prints itself as SQL.
//!
//! Queries come in worlds: three tables whose columns are fixed, four datasets of different sizes and layouts for them, and eight
//! queries. Each query runs over several datasets and options, since a shader is compiled once a shape. Query N of a
//! seed is the same whatever the number of jobs.

mod args;
mod ast;
mod cells;
mod compare;
mod data;
pub mod errors;
mod generate;
mod guards;
mod judge;
mod options;
mod plant;
mod print;
mod reduce;
mod replay;
mod report;
pub mod rng;
mod rounded;
mod rows;
mod runner;
mod script;
mod shrink;
#[cfg(test)]
mod tests;
mod types;
mod values;
mod watchdog;
mod world;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::pin::pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use datafusion::error::{DataFusionError, Result};
use indicatif::{ProgressBar, ProgressStyle};
use parking_lot::Mutex;
use tokio::task::JoinSet;

use crate::output::print;
use crate::{panics, signals};

pub use args::Args;
use args::unwritable;
use data::Stored;
use judge::{Care, Judgement, Question, Wrong};
use options::RunOptions;
use plant::Plant;
use replay::replay;
use report::{Failure, Summary};
use rng::Rng;
use runner::Engine;
use shrink::{Case, Shrinker, Shrunk};
use watchdog::{NUMBER, Running};
use world::World;

/// Queries over the tables of one world.
const QUERIES_A_WORLD: u64 = 8;
/// Streams of a seed: worlds, queries and options do not disturb each other.
const WORLDS: u64 = 0;
const QUERIES: u64 = 1 << 40;
const OPTIONS: u64 = 2 << 40;
/// How long jobs may take to let go of what they hold after an interruption.
const PATIENCE: Duration = Duration::from_secs(10);

/// Runs `fuzz`.
///
/// # Errors
/// No adapter, or a script or folder that cannot be read or written.
pub async fn run(args: Args) -> Result<ExitCode> {
    let interruption = signals::interruption()?;
    let plant = Plant { text: args.plant.clone(), bug: args.bug };
    let engine = || Engine::new(&args.adapter, Duration::from_secs(args.timeout));
    if let Some(path) = &args.replay {
        let engine = engine()?;
        return tokio::select! {
            code = interruption => Ok(ExitCode::from(code)),
            outcome = replay(&engine, path, &plant) => outcome,
        };
    }
    args.range()?;
    args.check_outputs()?;
    let engine = engine()?;
    panics::watch();
    let json = args.json.clone();
    let (summary, interrupted) = Fuzzer::new(engine, args).run(interruption).await?;
    show(&summary, json.as_deref())?;
    if let Some(code) = interrupted {
        say("interrupted: these are the numbers so far");
        return Ok(ExitCode::from(code));
    }
    let sound = summary.failures.is_empty() && summary.own_panics().is_empty() && !summary.proves_little();
    Ok(if sound { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Writes the numbers as JSON, and prints them.
fn show(summary: &Summary, json: Option<&std::path::Path>) -> Result<()> {
    if let Some(path) = json {
        let text =
            serde_json::to_string_pretty(summary).map_err(|e| DataFusionError::External(Box::new(e)))?;
        std::fs::write(path, text + "\n").map_err(|error| unwritable(path, &error))?;
    }
    print(&summary.to_string())
}

/// Tells what happens. Where stderr can't be written, nobody is there to be told.
fn say(text: &str) {
    drop(writeln!(io::stderr(), "{text}"));
}

/// The state that the jobs share.
struct Fuzzer {
    engine: Engine,
    args: Args,
    plant: Plant,
    start: Instant,
    /// The next world.
    next: AtomicU64,
    summary: Mutex<Summary>,
    /// Failures that are being made smaller, by the number of the query.
    open: Mutex<BTreeMap<u64, (Case, Wrong, String)>>,
    bar: ProgressBar,
    /// When the last line of progress was written, where there is no terminal for a bar.
    told: Mutex<Instant>,
}

impl Fuzzer {
    fn new(engine: Engine, args: Args) -> Self {
        let summary =
            Summary { adapter: engine.adapter().to_string(), seed: args.seed, ..Summary::default() };
        let bar = ProgressBar::new_spinner().with_style(ProgressStyle::default_spinner());
        let next = AtomicU64::new(args.from / QUERIES_A_WORLD);
        let plant = Plant { text: args.plant.clone(), bug: args.bug };
        let now = Instant::now();
        Fuzzer {
            engine,
            args,
            plant,
            start: now,
            next,
            summary: Mutex::new(summary),
            open: Mutex::default(),
            bar,
            told: Mutex::new(now),
        }
    }

    /// Runs until the queries, the time or the failures are used up, or until `interruption` gives an exit code, which comes back.
    async fn run(self, interruption: impl Future<Output = u8>) -> Result<(Summary, Option<u8>)> {
        let fuzzer = Arc::new(self);
        let last = Arc::downgrade(&fuzzer);
        fuzzer.engine.on_deadlock(move |running| {
            if let Some(fuzzer) = last.upgrade() {
                fuzzer.stuck(running);
            }
        });
        let mut jobs = JoinSet::new();
        for _ in 0..fuzzer.args.jobs {
            let fuzzer = Arc::clone(&fuzzer);
            jobs.spawn(async move { fuzzer.work().await });
        }
        let mut interruption = pin!(interruption);
        let interrupted = loop {
            tokio::select! {
                code = &mut interruption => break Some(code),
                job = jobs.join_next() => match job {
                    Some(job) => job.map_err(|error| DataFusionError::External(Box::new(error)))??,
                    None => break None,
                },
            }
        };
        if interrupted.is_some() {
            // What jobs hold goes with them, temporary folders among it.
            drop(tokio::time::timeout(PATIENCE, jobs.shutdown()).await);
            fuzzer.write_open()?;
        }
        fuzzer.bar.finish_and_clear();
        let summary = fuzzer.summary.lock().clone();
        Ok((fuzzer.finished(Summary { interrupted: interrupted.is_some(), ..summary }), interrupted))
    }

    /// Writes down the failures that were to be made smaller, as they are.
    fn write_open(&self) -> Result<()> {
        for (number, (case, wrong, detail)) in std::mem::take(&mut *self.open.lock()) {
            self.write(number, wrong, Shrunk { case, detail, tries: 0 })?;
        }
        Ok(())
    }

    fn finished(&self, mut summary: Summary) -> Summary {
        summary.panics = panics::seen();
        summary.seconds = self.start.elapsed().as_secs_f64();
        summary.failures.sort_by_key(|failure| failure.query);
        summary
    }

    /// Shows the numbers so far, the running queries among the failures, since nothing else will happen any more.
    fn stuck(&self, running: &[Running]) {
        // A blocked worker may hold it.
        let summary = self.summary.try_lock_for(Duration::from_secs(5)).map(|summary| summary.clone());
        let mut summary = summary.unwrap_or_default();
        summary.failures.extend(running.iter().map(|running| Failure {
            query: running.number,
            wrong: Wrong::Hang,
            detail: format!("all threads are blocked\n{running}"),
            sql: running.sql.clone(),
            script: None,
        }));
        if let Err(error) = show(&self.finished(summary), self.args.json.as_deref()) {
            say(&error.to_string());
        }
    }

    fn is_over(&self) -> bool {
        let late =
            self.args.minutes.is_some_and(|minutes| self.start.elapsed().as_secs_f64() > minutes * 60.0);
        late || self.summary.lock().failures.len() >= self.args.failures
    }

    async fn work(&self) -> Result<()> {
        let (first, end) = self.args.range()?;
        loop {
            let world = self.next.fetch_add(1, Ordering::Relaxed);
            let queries = world * QUERIES_A_WORLD..(world + 1) * QUERIES_A_WORLD;
            if queries.start >= end || self.is_over() {
                return Ok(());
            }
            let world = World::new(self.args.seed, world)?;
            let stored = world.store().await?;
            for number in queries.filter(|number| (first..end).contains(number)) {
                if self.is_over() {
                    return Ok(());
                }
                let query = Box::pin(self.query(&world, &stored, number));
                NUMBER.scope((self.args.seed, number), query).await?;
                self.tell();
            }
        }
    }

    /// Runs one query over several datasets and options.
    async fn query(&self, world: &World, stored: &[Stored], number: u64) -> Result<()> {
        let query = world.query(number);
        query.count_kinds(&mut self.summary.lock().kinds);
        let mut options_rng = Rng::new(self.args.seed, OPTIONS + number);
        let suitable = world.suitable(&query);
        let runs = self.args.runs;
        let mut counted = false;
        for (index, dataset) in suitable.iter().enumerate() {
            let shares =
                runs.div_ceil(suitable.len()).min(runs.saturating_sub(index * runs.div_ceil(suitable.len())));
            if shares == 0 {
                break;
            }
            let question = Question::new(&self.engine, &stored[*dataset], &query).await;
            let rows = world.datasets[*dataset].rows();
            if !counted {
                let options = RunOptions::default();
                let declined = self.engine.declined(&stored[*dataset], &question.sql, &options).await;
                self.summary.lock().add_query(&question.oracle.verdict, &declined);
                counted = true;
            }
            if !question.is_useful() {
                continue;
            }
            let mut first = None;
            for _ in 0..shares {
                let options = RunOptions::random(&mut options_rng, rows);
                let (run, mut judgement) =
                    question.run(&self.engine, &options, &self.plant, Care::Thorough).await;
                if !matches!(judgement, Judgement::Wrong(..))
                    && let Some(text) = judge::repeated(&question.spec, &mut first, &run)?
                {
                    judgement = Judgement::Wrong(Wrong::Bits, text);
                }
                self.summary.lock().add_run(&run.gpu, &judgement);
                if let Judgement::Wrong(wrong, detail) = judgement {
                    let case = Case { query, dataset: world.datasets[*dataset].clone(), options };
                    return self.failed(number, case, (wrong, detail)).await;
                }
            }
        }
        Ok(())
    }

    /// Makes a failure smaller and writes it down.
    async fn failed(&self, number: u64, case: Case, wrong: (Wrong, String)) -> Result<()> {
        let kind = wrong.0;
        let found = format!("query {number}: {kind:?}: {}\n  {}", wrong.1, case.query);
        self.bar.suspend(|| say(&found));
        self.open.lock().insert(number, (case.clone(), kind, wrong.1.clone()));
        // One run alone does not show that another one has other bits.
        let budget = if kind == Wrong::Bits { 0 } else { self.args.shrink };
        let budget = Duration::from_secs(budget);
        let shrunk = Shrinker::new(&self.engine, &self.plant, case, wrong, budget).run().await?;
        self.write(number, kind, shrunk)?;
        self.open.lock().remove(&number);
        Ok(())
    }

    /// Writes a failure down.
    fn write(&self, number: u64, wrong: Wrong, shrunk: Shrunk) -> Result<()> {
        let script = script::write(&self.args.out, self.args.seed, number, wrong, &shrunk)?;
        let told = format!("  {} ({} steps tried)", script.display(), shrunk.tries);
        let sql = shrunk.case.query.to_string();
        let failure = Failure { query: number, wrong, detail: shrunk.detail, sql, script: Some(script) };
        self.summary.lock().failures.push(failure);
        self.bar.suspend(|| say(&told));
        Ok(())
    }

    fn tell(&self) {
        let line = self.summary.lock().progress(self.start.elapsed());
        if self.bar.is_hidden() {
            let mut told = self.told.lock();
            if told.elapsed() > Duration::from_secs(10) {
                *told = Instant::now();
                say(&line);
            }
        } else {
            self.bar.set_message(line);
            self.bar.tick();
        }
    }
}
