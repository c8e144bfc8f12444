//! One file: its records, run and compared.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use datafusion::error::Result;
use datafusion_sqllogictest::{DFColumnType, TestContext, setup_scratch_dir, value_normalizer};
use datafusion_wgpu::QueryStats;
use futures::FutureExt;
use serde::{Deserialize, Serialize};
use sqllogictest::{
    ExpectedError, MakeConnection, QueryExpect, Record, RecordOutput, Runner, StatementExpect, TestErrorKind,
    parse_file, strict_column_validator,
};

use crate::error::problem;

use super::compare;
use super::engine::{Engine, Ran};
use super::log::Line;
use super::shape::{Shape, is_query};
use super::worker::Setup;

/// What became of one file.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct FileResult {
    /// Path below `test_files`.
    pub file: String,
    /// Why nothing of it ran.
    pub not_run: Option<String>,
    /// Statements and queries that ran.
    pub statements: usize,
    /// Those that the file itself leaves out: conditions on the engine, and what lies behind a halt.
    pub skipped_by_file: usize,
    /// Those behind a statement that ended the process.
    pub statements_not_run: usize,
    /// Of those that ran, those of which the rule saw nothing: plans, settings.
    pub without_rule: usize,
    /// Those in which a GPU node ran.
    pub gpu: usize,
    /// Those for which a kernel ran, and of which not every batch fell back.
    pub launched: usize,
    /// Statements with a fallback, by its code.
    pub fallbacks: BTreeMap<String, usize>,
    /// Those that failed.
    pub failures: Vec<Failure>,
    /// Time for the file, in seconds.
    pub seconds: f64,
}

/// Where a statement stands.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// File that holds it, below `test_files`: the test file, or one that it includes.
    pub file: String,
    /// Its line there; 0 where it is not known.
    pub line: u32,
    /// Its text.
    pub sql: String,
}

/// A statement whose answer is not the file's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The statement.
    #[serde(flatten)]
    pub place: Place,
    /// What is different.
    pub message: String,
    /// It fails without the rule too.
    pub without_rule: bool,
    /// A GPU node ran in it.
    pub gpu: bool,
}

/// What became of a statement.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Outcome {
    /// The file itself leaves it out.
    Skipped,
    /// It ran, and may have failed.
    Ran(Option<Failure>),
}

/// Longest text of a difference that is kept.
const MESSAGE_BYTES: usize = 6000;

/// Runs a file with the rule forced, and once more without the GPU when something fails.
pub async fn run(file: String, setup: Arc<Setup>) -> FileResult {
    let started = Instant::now();
    let mut result = match pass(&file, &setup, setup.settings.gpu).await {
        Ok(Some(pass)) => {
            let mut result = pass.result;
            let plain = match setup.settings.gpu && !pass.failed.is_empty() {
                true => failing_without_gpu(&file, &setup).await,
                false => pass.failed.clone(),
            };
            for (failure, record) in result.failures.iter_mut().zip(&pass.failed) {
                failure.without_rule = plain.contains(record);
            }
            result
        }
        Ok(None) => FileResult {
            not_run: Some("needs a feature of datafusion-sqllogictest that is not on".to_owned()),
            ..FileResult::default()
        },
        Err(error) => {
            let failures = vec![Failure::of_file(&file, error.to_string())];
            FileResult { failures, ..FileResult::default() }
        }
    };
    result.file = file;
    result.seconds = started.elapsed().as_secs_f64();
    result
}

/// Numbers of the records that fail without the GPU.
async fn failing_without_gpu(file: &str, setup: &Setup) -> Vec<usize> {
    match pass(file, setup, false).await {
        Ok(Some(pass)) => pass.failed,
        _ => vec![],
    }
}

/// The records of a file, run once.
#[derive(Default)]
struct Pass {
    result: FileResult,
    /// Number of the record of each failure.
    failed: Vec<usize>,
    ran: Vec<Statement>,
}

/// A statement that ran.
struct Statement {
    /// Just before it.
    started: SystemTime,
    /// Number of its failure.
    failure: Option<usize>,
}

/// What a statement did on the GPU.
#[derive(Default)]
struct Work {
    nodes: bool,
    kernels: u64,
    batches: u64,
    fallbacks: BTreeSet<&'static str>,
}

async fn pass(file: &str, setup: &Setup, forced: bool) -> Result<Option<Pass>> {
    let path = Path::new(file);
    // It panics when a table cannot be made.
    let context = AssertUnwindSafe(TestContext::try_new_for_test_file(path)).catch_unwind().await;
    let Ok(context) = context else {
        return Err(problem(format!("DataFusion's test context cannot be made for {file}")));
    };
    let Some(context) = context else { return Ok(None) };
    setup_scratch_dir(path)?;
    let ctx = context.session_ctx().clone();
    let engine = match forced {
        true => Engine::forced(ctx, file, setup)?,
        false => Engine::plain(ctx, file, setup),
    };
    let records: Vec<Record<DFColumnType>> = parse_file(Path::new("test_files").join(path))
        .map_err(|error| problem(format!("{file} cannot be parsed: {error}")))?;
    let connection = engine.clone();
    let mut runner = Runner::new(move || std::future::ready(Ok(connection.clone())));
    runner.add_label("Datafusion");
    runner.with_column_validator(strict_column_validator);
    runner.with_normalizer(value_normalizer);
    // What the process dies of is known from the log; the second pass, without the GPU, has nothing new to tell.
    let log = |line: &dyn Fn(String) -> Line| match forced == setup.settings.gpu {
        true => setup.log.write(&line(file.to_owned())),
        false => Ok(()),
    };
    let statements = records.iter().filter(|record| place(record).is_some()).count();
    log(&|file| Line::Planned { file, statements })?;
    let mut pass = Pass::default();
    let mut halted = false;
    for (number, record) in records.into_iter().enumerate() {
        halted |= matches!(record, Record::Halt { .. });
        match place(&record) {
            _ if halted => pass.result.skipped_by_file += usize::from(place(&record).is_some()),
            // Comments, and what steers the runner.
            None => drop(runner.run_async(record).await),
            Some(place) => {
                log(&|file| Line::Begun { file, place: place.clone() })?;
                let started = SystemTime::now();
                let (under_rule, outcome) = apply(&mut runner, &engine, record, place).await;
                log(&|file| Line::Done { file, outcome: outcome.clone() })?;
                pass.add(number, started, under_rule, outcome);
            }
        }
    }
    let (statistics, missing) = engine.statistics().await;
    pass.attribute(&statistics);
    if missing > 0 {
        let message = format!("{missing} queries on the GPU have ended and gave no statistics");
        pass.result.failures.push(Failure::of_file(file, message));
        pass.failed.push(usize::MAX);
    }
    runner.shutdown_async().await;
    Ok(Some(pass))
}

/// The statement that a record holds.
fn place(record: &Record<DFColumnType>) -> Option<Place> {
    let (loc, sql) = match record {
        Record::Statement { loc, sql, .. }
        | Record::Query { loc, sql, .. }
        | Record::Let { loc, sql, .. } => (loc, sql),
        Record::System { loc, command, .. } => (loc, command),
        _ => return None,
    };
    let file = Path::new(loc.file());
    let file = file.strip_prefix("test_files").unwrap_or(file).to_string_lossy().into_owned();
    Some(Place { file, line: loc.line(), sql: sql.clone() })
}

/// Whether the file takes any error for the right one.
fn takes_any_error(record: &Record<DFColumnType>) -> bool {
    matches!(
        record,
        Record::Statement { expected: StatementExpect::Error(ExpectedError::Empty), .. }
            | Record::Query { expected: QueryExpect::Error(ExpectedError::Empty), .. }
    )
}

/// Runs one record; tells whether the rule saw it.
async fn apply<M: MakeConnection<Conn = Engine>>(
    runner: &mut Runner<Engine, M>,
    engine: &Engine,
    record: Record<DFColumnType>,
    place: Place,
) -> (bool, Outcome) {
    let shape = Shape::of(&place.sql);
    let any_error = takes_any_error(&record);
    runner.with_validator(match shape {
        Shape::Unordered | Shape::SomeRows { .. } => compare::in_any_order,
        Shape::Plan | Shape::Listing | Shape::Ordered => compare::in_order,
    });
    let outcome = runner.run_async(record).await;
    let ran = engine.take_last();
    let message = match (&ran.incident, outcome) {
        (_, Ok(RecordOutput::Nothing)) => return (false, Outcome::Skipped),
        (Some(incident), _) => Some(incident.clone()),
        (None, Ok(_)) if any_error => another_error(engine, &ran).await,
        (None, Ok(_)) => None,
        (None, Err(error)) => match accepted(engine, &shape, &error.kind()).await {
            true => None,
            false => Some(error.kind().to_string()),
        },
    };
    let failure = message.map(|message| Failure::new(place, shorten(message)));
    (ran.under_rule, Outcome::Ran(failure))
}

/// Other rows than the file's are right too where LIMIT may choose: as many, and all from the query without LIMIT.
async fn accepted(engine: &Engine, shape: &Shape, error: &TestErrorKind) -> bool {
    let (Shape::SomeRows { all }, TestErrorKind::QueryResultMismatch { expected, actual, .. }) =
        (shape, error)
    else {
        return false;
    };
    if expected.lines().count() != actual.lines().count() {
        return false;
    }
    match engine.rows_without_rule(all).await {
        Ok(rows) => compare::is_part(actual.lines(), rows.iter().map(String::as_str)),
        Err(_) => false,
    }
}

/// What is wrong with the error of a query where the file takes any: it has to be DataFusion's.
async fn another_error(engine: &Engine, ran: &Ran) -> Option<String> {
    let error = ran.error.as_ref().filter(|_| ran.under_rule && is_query(&ran.sql))?;
    let other = engine.differs_without_rule(&ran.sql, error).await?;
    Some(format!("another error than without the rule\nwith: {error}\nwithout: {other}"))
}

impl Pass {
    fn add(&mut self, record: usize, started: SystemTime, under_rule: bool, outcome: Outcome) {
        let Outcome::Ran(failure) = outcome else {
            self.result.skipped_by_file += 1;
            return;
        };
        self.result.statements += 1;
        self.result.without_rule += usize::from(!under_rule);
        let at = failure.is_some().then_some(self.failed.len());
        self.failed.extend(failure.is_some().then_some(record));
        self.result.failures.extend(failure);
        self.ran.push(Statement { started, failure: at });
    }

    /// Counts what the statements did on the GPU. Statistics belong to the statement that was the last to start before them,
    /// whenever they arrive.
    fn attribute(&mut self, statistics: &[QueryStats]) {
        let mut works: Vec<Work> = self.ran.iter().map(|_| Work::default()).collect();
        for stats in statistics {
            let after = self.ran.partition_point(|statement| statement.started <= stats.started);
            let Some(work) = after.checked_sub(1).and_then(|at| works.get_mut(at)) else { continue };
            work.nodes = true;
            work.kernels += stats.dispatches;
            work.batches += stats.gpu_batches;
            work.fallbacks.extend(stats.fallbacks.iter().map(|(code, _)| *code));
        }
        for (statement, work) in self.ran.iter().zip(&works) {
            self.result.gpu += usize::from(work.nodes);
            self.result.launched += usize::from(work.kernels > 0 && work.batches > 0);
            for code in &work.fallbacks {
                *self.result.fallbacks.entry((*code).to_owned()).or_default() += 1;
            }
            if let Some(failure) = statement.failure.and_then(|at| self.result.failures.get_mut(at)) {
                failure.gpu = work.nodes;
            }
        }
    }
}

impl Failure {
    /// One of a statement.
    pub fn new(place: Place, message: String) -> Self {
        Self { place, message, without_rule: false, gpu: false }
    }

    /// One of a file as a whole.
    pub fn of_file(file: &str, message: String) -> Self {
        Self::new(Place { file: file.to_owned(), ..Place::default() }, message)
    }
}

impl FileResult {
    /// Statements of the file, whatever became of them.
    pub fn all_statements(&self) -> usize {
        self.statements + self.skipped_by_file + self.statements_not_run
    }

    /// Nothing is in the file.
    pub fn is_empty(&self) -> bool {
        self.not_run.is_none() && self.failures.is_empty() && self.all_statements() == 0
    }
}

fn shorten(mut text: String) -> String {
    if text.len() > MESSAGE_BYTES {
        let end = text.floor_char_boundary(MESSAGE_BYTES);
        text.truncate(end);
        text.push_str("\n[cut]");
    }
    text
}
