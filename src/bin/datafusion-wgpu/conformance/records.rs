//! One file: its records, run and compared.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use datafusion::error::Result;
use datafusion_sqllogictest::{DFColumnType, TestContext, setup_scratch_dir, value_normalizer};
use futures::FutureExt;
use serde::{Deserialize, Serialize};
use sqllogictest::{
    MakeConnection, Record, RecordOutput, Runner, TestErrorKind, parse_file, strict_column_validator,
};

use crate::error::problem;

use super::compare;
use super::engine::{Engine, Ran};
use super::shape::Shape;
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
    /// Those of which the rule saw nothing: plans, settings.
    pub without_rule: usize,
    /// Those in which a GPU node ran.
    pub gpu: usize,
    /// Those for which a kernel was launched.
    pub launched: usize,
    /// Statements with a fallback, by its code.
    pub fallbacks: BTreeMap<String, usize>,
    /// Those that failed.
    pub failures: Vec<Failure>,
    /// Time for the file, in seconds.
    pub seconds: f64,
}

/// A statement whose answer is not the file's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// File that holds it, below `test_files`: the test file, or one that it includes.
    pub file: String,
    /// Its line there; 0 where it is not known.
    pub line: u32,
    /// Its text.
    pub sql: String,
    /// What is different.
    pub message: String,
    /// It fails without the rule too.
    pub without_rule: bool,
    /// A GPU node ran in it.
    pub gpu: bool,
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
            FileResult { file, ..result }
        }
        Ok(None) => FileResult {
            file,
            not_run: Some("needs a feature of datafusion-sqllogictest that is not on".to_owned()),
            ..FileResult::default()
        },
        Err(error) => FileResult::failed(&file, "", error.to_string()),
    };
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

struct Pass {
    result: FileResult,
    /// Number of the record of each failure.
    failed: Vec<usize>,
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
    let mut pass = Pass { result: FileResult::default(), failed: vec![] };
    for (number, record) in records.into_iter().enumerate() {
        if matches!(record, Record::Halt { .. }) {
            break;
        }
        if let Some(failure) = apply(&mut runner, &engine, record, &mut pass.result).await {
            pass.result.failures.push(failure);
            pass.failed.push(number);
        }
    }
    runner.shutdown_async().await;
    Ok(Some(pass))
}

/// Runs one record; gives its failure.
async fn apply<M: MakeConnection<Conn = Engine>>(
    runner: &mut Runner<Engine, M>,
    engine: &Engine,
    record: Record<DFColumnType>,
    result: &mut FileResult,
) -> Option<Failure> {
    let (loc, sql) = match &record {
        Record::Statement { loc, sql, .. }
        | Record::Query { loc, sql, .. }
        | Record::Let { loc, sql, .. } => (Some(loc.clone()), sql.clone()),
        Record::System { loc, command, .. } => (Some(loc.clone()), command.clone()),
        _ => (None, String::new()),
    };
    let shape = Shape::of(&sql);
    runner.with_validator(match shape {
        Shape::Unordered | Shape::SomeRows { .. } => compare::in_any_order,
        Shape::Plan | Shape::Listing | Shape::Ordered => compare::in_order,
    });
    let outcome = runner.run_async(record).await;
    let ran = engine.take_last();
    let loc = loc?;
    if matches!(outcome, Ok(RecordOutput::Nothing)) {
        return None;
    }
    result.count(&ran);
    let message = match (&ran.incident, outcome) {
        (Some(incident), _) => incident.clone(),
        (None, Ok(_)) => return None,
        (None, Err(error)) => {
            if accepted(engine, &shape, &error.kind()).await {
                return None;
            }
            shorten(error.kind().to_string())
        }
    };
    let file = Path::new(loc.file());
    let file = file.strip_prefix("test_files").unwrap_or(file).to_string_lossy().into_owned();
    Some(Failure { file, line: loc.line(), sql, message, without_rule: false, gpu: ran.gpu })
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

impl FileResult {
    /// A file that cannot be run as a whole, because of `sql` where that is known.
    pub fn failed(file: &str, sql: &str, message: String) -> Self {
        let failure = Failure {
            file: file.to_owned(),
            line: 0,
            sql: sql.to_owned(),
            message,
            without_rule: false,
            gpu: false,
        };
        Self { file: file.to_owned(), failures: vec![failure], ..Self::default() }
    }

    fn count(&mut self, ran: &Ran) {
        self.statements += 1;
        self.without_rule += usize::from(!ran.under_rule);
        self.gpu += usize::from(ran.gpu);
        self.launched += usize::from(ran.launches > 0);
        for code in &ran.fallbacks {
            *self.fallbacks.entry(code.clone()).or_default() += 1;
        }
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
