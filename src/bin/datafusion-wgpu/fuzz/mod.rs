//! `fuzz`: random queries over random tables, each with the rule off and forced, compared by the contract's tiers.
//!
//! No maintained crate generates SQL for DataFusion (SQLancer is a Java program, DataFusion's own fuzz tests are not published), and proptest
//! shrinks values, not a query together with its tables; so queries are a small tree of our own, which prints itself as SQL.
//!
//! Queries come in worlds: three tables whose columns are fixed, four datasets of different sizes and layouts for them, and eight
//! queries. Each query runs over several datasets and options, since a shader is compiled once a shape. Query N of a
//! seed is the same whatever the number of jobs.

mod ast;
mod cells;
mod compare;
mod data;
pub mod errors;
mod generate;
mod judge;
mod options;
mod plant;
mod print;
mod reduce;
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

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use datafusion::common::runtime::SpawnedTask;
use datafusion::error::{DataFusionError, Result};
use indicatif::{ProgressBar, ProgressStyle};
use parking_lot::Mutex;

use crate::panics;

use ast::Query;
use compare::Answer;
use data::{Dataset, Size, Stored};
use judge::{Care, Judgement, Question, Wrong};
use options::RunOptions;
use plant::{Bug, Plant};
use report::{Failure, Summary};
use rng::Rng;
use runner::{Engine, Verdict};
use shrink::{Case, Shrinker};
use watchdog::{NUMBER, Running};

/// Flags of `fuzz`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// The seed: the same one gives the same queries, tables and options
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Ends after this many queries; 200 unless --minutes is given
    #[arg(long, value_name = "N")]
    pub queries: Option<u64>,
    /// Ends after this many minutes
    #[arg(long, value_name = "T")]
    pub minutes: Option<f64>,
    /// Number of the first query
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub from: u64,
    /// Forced runs of each query, over several datasets and options
    #[arg(long, value_name = "N", default_value_t = 6)]
    pub runs: usize,
    /// Queries that run at a time
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub jobs: usize,
    /// Where scripts of failures are written
    #[arg(long, value_name = "DIR", default_value = "fuzz-failures")]
    pub out: PathBuf,
    /// Writes the numbers as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Runs a script of a failure again, with the rule off and forced
    #[arg(long, value_name = "FILE", conflicts_with_all = ["queries", "minutes", "from"])]
    pub replay: Option<PathBuf>,
    /// Seconds that a query may take
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    pub timeout: u64,
    /// Seconds that making a failure smaller may take
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    pub shrink: u64,
    /// Ends after this many failures
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub failures: usize,
    /// The adapter: its number or a part of its name
    #[arg(long, value_name = "ADAPTER", default_value = "")]
    pub adapter: String,
    /// Changes forced answers to queries that hold this text: a planted bug, to see that it is found
    #[arg(long, value_name = "TEXT", hide = true)]
    pub plant: Option<String>,
    /// What --plant changes
    #[arg(long, value_enum, default_value = "row", hide = true)]
    pub bug: Bug,
}

/// Queries over the tables of one world.
const QUERIES_A_WORLD: u64 = 8;
/// Streams of a seed: worlds, queries and options do not disturb each other.
const WORLDS: u64 = 0;
const QUERIES: u64 = 1 << 40;
const OPTIONS: u64 = 2 << 40;

/// Runs `fuzz`.
///
/// # Errors
/// No adapter, or a script or folder that cannot be read or written.
pub async fn run(args: Args) -> Result<ExitCode> {
    let engine = Engine::new(&args.adapter, Duration::from_secs(args.timeout))?;
    if let Some(path) = &args.replay {
        return replay(&engine, path, &Plant { text: args.plant.clone(), bug: args.bug }).await;
    }
    panics::watch();
    let json = args.json.clone();
    let summary = Fuzzer::new(engine, args).run().await?;
    show(&summary, json.as_deref())?;
    let sound = summary.failures.is_empty() && summary.own_panics().is_empty() && !summary.proves_little();
    Ok(if sound { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Prints the numbers, and writes them as JSON.
fn show(summary: &Summary, json: Option<&std::path::Path>) -> Result<()> {
    print!("{summary}");
    if let Some(path) = json {
        let text =
            serde_json::to_string_pretty(summary).map_err(|e| DataFusionError::External(Box::new(e)))?;
        std::fs::write(path, text + "\n")?;
    }
    Ok(())
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
            bar,
            told: Mutex::new(now),
        }
    }

    async fn run(self) -> Result<Summary> {
        let fuzzer = Arc::new(self);
        let last = Arc::downgrade(&fuzzer);
        fuzzer.engine.on_deadlock(move |running| {
            if let Some(fuzzer) = last.upgrade() {
                fuzzer.stuck(running);
            }
        });
        let jobs: Vec<_> = (0..fuzzer.args.jobs.max(1))
            .map(|_| {
                let fuzzer = Arc::clone(&fuzzer);
                SpawnedTask::spawn(async move { fuzzer.work().await })
            })
            .collect();
        for job in jobs {
            job.await.map_err(|error| DataFusionError::External(Box::new(error)))??;
        }
        fuzzer.bar.finish_and_clear();
        let summary = fuzzer.summary.lock().clone();
        Ok(fuzzer.finished(summary))
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
            eprintln!("{error}");
        }
    }

    /// Numbers of the queries that are asked for: the first, and the one after the last.
    fn range(&self) -> (u64, u64) {
        let count = match (self.args.queries, self.args.minutes) {
            (Some(count), _) => count,
            (None, Some(_)) => u64::MAX / 2,
            (None, None) => 200,
        };
        (self.args.from, self.args.from.saturating_add(count))
    }

    fn is_over(&self) -> bool {
        let late =
            self.args.minutes.is_some_and(|minutes| self.start.elapsed().as_secs_f64() > minutes * 60.0);
        late || self.summary.lock().failures.len() >= self.args.failures
    }

    async fn work(&self) -> Result<()> {
        let (first, end) = self.range();
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
        let runs = self.args.runs.max(1);
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
        self.bar.suspend(|| eprintln!("query {number}: {kind:?}: {}\n  {}", wrong.1, case.query));
        // One run alone does not show that another one has other bits.
        let budget = if kind == Wrong::Bits { 0 } else { self.args.shrink };
        let budget = Duration::from_secs(budget);
        let shrunk = Shrinker::new(&self.engine, &self.plant, case, wrong, budget).run().await?;
        let sql = shrunk.case.query.to_string();
        let script = {
            let mut summary = self.summary.lock();
            let place = summary.failures.len() + 1;
            let script = script::write(&self.args.out, place, self.args.seed, number, kind, &shrunk)?;
            let detail = shrunk.detail.clone();
            let failure = Failure { query: number, wrong: kind, detail, sql, script: Some(script.clone()) };
            summary.failures.push(failure);
            script
        };
        self.bar.suspend(|| eprintln!("  {} ({} steps tried)", script.display(), shrunk.tries));
        Ok(())
    }

    fn tell(&self) {
        let line = self.summary.lock().progress(self.start.elapsed());
        if self.bar.is_hidden() {
            let mut told = self.told.lock();
            if told.elapsed() > Duration::from_secs(10) {
                *told = Instant::now();
                eprintln!("{line}");
            }
        } else {
            self.bar.set_message(line);
            self.bar.tick();
        }
    }
}

/// Tables, and datasets for them.
struct World {
    seed: u64,
    tables: Vec<types::Table>,
    datasets: Vec<Dataset>,
}

impl World {
    /// World `number` of a seed.
    fn new(seed: u64, number: u64) -> Result<Self> {
        let mut rng = Rng::new(seed, WORLDS + number);
        let mut tables = types::tables(&mut rng);
        let sizes = [Size::Tiny, Size::Tiny, Size::Medium, Size::Large];
        let datasets = sizes.map(|size| Dataset::random(&mut rng, &tables, size));
        let datasets = datasets.into_iter().collect::<Result<Vec<_>>>()?;
        for (number, table) in tables.iter_mut().enumerate() {
            for (index, column) in table.columns.iter_mut().enumerate() {
                let samples = datasets.iter().flat_map(|dataset| dataset.samples(&mut rng, number, index));
                column.samples = samples.collect();
            }
        }
        Ok(World { seed, tables, datasets })
    }

    /// Query `number` of the seed, which must belong to this world.
    fn query(&self, number: u64) -> Query {
        generate::query(&mut Rng::new(self.seed, QUERIES + number), &self.tables)
    }

    /// Datasets that the query can be run over in reasonable time, the one that tells most first.
    fn suitable(&self, query: &Query) -> &'static [usize] {
        match query.joins() {
            0 => &[2, 3, 0],
            1 => &[2, 1, 0],
            _ => &[1, 0],
        }
    }

    async fn store(&self) -> Result<Vec<Stored>> {
        let mut stored = vec![];
        for dataset in &self.datasets {
            stored.push(dataset.store().await?);
        }
        Ok(stored)
    }
}

/// Runs a script again and shows both answers.
async fn replay(engine: &Engine, path: &std::path::Path, plant: &Plant) -> Result<ExitCode> {
    let script = script::read(path).await?;
    let stored = script.dataset.store().await?;
    let header = script.header;
    let question = Question::of_sql(engine, &stored, script.sql, header.reference, header.spec).await;
    println!("{}\noff:    {}", question.sql, shown(&question.oracle.verdict));
    let (run, judgement) = question.run(engine, &header.options, plant, Care::Thorough).await;
    println!("forced: {}", shown(&run.verdict));
    println!("GPU nodes: {:?}, fallbacks: {:?}", run.gpu.nodes, run.gpu.fallbacks);
    Ok(match judgement {
        Judgement::Wrong(wrong, detail) => {
            println!("{wrong:?}: {detail}");
            ExitCode::FAILURE
        }
        other => {
            println!("{other:?}");
            ExitCode::SUCCESS
        }
    })
}

/// A verdict for people, with the first rows.
fn shown(verdict: &Verdict) -> String {
    const SHOWN: usize = 40;
    let Verdict::Rows(Answer { batches, .. }) = verdict else { return format!("{verdict:?}") };
    let mut lines = vec![];
    for batch in batches {
        for row in 0..batch.num_rows() {
            let cells = batch.columns().iter().map(|column| cells::show(column.as_ref(), row));
            lines.push(format!("  ({})", cells.collect::<Vec<_>>().join(", ")));
        }
    }
    let count = lines.len();
    lines.truncate(SHOWN);
    format!("{count} rows\n{}", lines.join("\n"))
}
