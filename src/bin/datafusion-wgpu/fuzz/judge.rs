//! Whether a forced run's verdict is one that DataFusion could give.
//!
//! Only what no run on the CPU gives is a failure: where the verdicts differ, the CPU is asked again under other batch
//! sizes and partition counts, since errors and the order of rows depend on them.

use super::ast::Query;
use super::compare::{self, Answer, Spec};
use super::data::Stored;
use super::options::RunOptions;
use super::runner::{Engine, Run, Verdict};

/// A query with the CPU's answers over one dataset.
pub struct Question<'a> {
    /// The tables.
    pub stored: &'a Stored,
    /// Its SQL.
    pub sql: String,
    /// What is compared.
    pub spec: Spec,
    unlimited_sql: Option<String>,
    /// The CPU's verdict.
    pub oracle: Oracle,
}

/// The CPU's verdict, and that on the query without LIMIT where it is needed.
pub struct Oracle {
    /// The verdict.
    pub verdict: Verdict,
    unlimited: Option<Answer>,
}

/// What is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wrong {
    /// Other rows.
    Rows,
    /// Another error, or an error on one side.
    Error,
    /// No answer in time.
    Hang,
    /// A panic.
    Panic,
    /// Device memory that is still reserved.
    Leak,
}

/// How often the CPU is asked again before a difference counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Care {
    /// A few times: for the steps of the shrinker, whose last one is looked at thoroughly.
    Quick,
    /// Under all sizes.
    Thorough,
}

/// The outcome of comparing.
#[derive(Debug, Clone)]
pub enum Judgement {
    /// The same rows.
    Same,
    /// The same error.
    SameError,
    /// What the CPU gives with other batches.
    OtherCpu,
    /// The CPU's answers differ among themselves, and each row is in one of them.
    Undetermined,
    /// Too many rows to compare.
    TooLarge,
    /// A failure, in words.
    Wrong(Wrong, String),
}

/// A change that is made to forced answers, to see whether it is found.
#[derive(Debug, Clone, Default)]
pub struct Plant(pub Option<String>);

impl Plant {
    /// Drops the last row of an answer to a query whose SQL holds the planted text.
    fn apply(&self, sql: &str, verdict: Verdict) -> Verdict {
        let Some(text) = self.0.as_ref().filter(|text| sql.contains(text.as_str())) else { return verdict };
        match verdict {
            Verdict::Rows(mut answer) => {
                if let Some(last) = answer.batches.iter_mut().rev().find(|batch| batch.num_rows() > 0) {
                    tracing::debug!(text, "a row is dropped");
                    *last = last.slice(0, last.num_rows() - 1);
                }
                Verdict::Rows(answer)
            }
            other => other,
        }
    }
}

impl<'a> Question<'a> {
    /// Asks the CPU.
    pub async fn new(engine: &Engine, stored: &'a Stored, query: &Query) -> Self {
        let spec = Spec::of(query);
        let unlimited_sql = spec.limited.then(|| query.unlimited().to_string());
        Question::of_sql(engine, stored, query.to_string(), unlimited_sql, spec).await
    }

    /// The same for SQL.
    pub async fn of_sql(
        engine: &Engine,
        stored: &'a Stored,
        sql: String,
        unlimited_sql: Option<String>,
        spec: Spec,
    ) -> Self {
        let oracle = Oracle { verdict: Verdict::Hang, unlimited: None };
        let mut question = Question { stored, sql, spec, unlimited_sql, oracle };
        question.oracle = question.ask(engine, &RunOptions::default().cpu(4, 8_192)).await;
        question
    }

    async fn ask(&self, engine: &Engine, options: &RunOptions) -> Oracle {
        let verdict = engine.cpu(self.stored, &self.sql, options).await;
        let unlimited = match (&self.unlimited_sql, &verdict) {
            (Some(sql), Verdict::Rows(_)) => match engine.cpu(self.stored, sql, options).await {
                Verdict::Rows(answer) => Some(answer),
                _ => None,
            },
            _ => None,
        };
        Oracle { verdict, unlimited }
    }

    /// Whether the query can tell anything: the CPU answers it in time.
    pub fn is_useful(&self) -> bool {
        matches!(self.oracle.verdict, Verdict::Rows(_) | Verdict::Error(_))
    }

    /// Runs the query with the rule forced and judges what comes, with `care`.
    pub async fn run(
        &self,
        engine: &Engine,
        options: &RunOptions,
        plant: &Plant,
        care: Care,
    ) -> (Run, Judgement) {
        let mut run = engine.forced(self.stored, &self.sql, options).await;
        run.verdict = plant.apply(&self.sql, run.verdict);
        let judgement = self.judge(engine, options, &run, care).await;
        (run, judgement)
    }

    async fn judge(&self, engine: &Engine, options: &RunOptions, run: &Run, care: Care) -> Judgement {
        let difference = match self.agreement(&self.oracle, &run.verdict) {
            Ok(Judgement::Wrong(wrong, text)) => (wrong, text),
            Ok(judgement) => return leak_or(judgement, run.gpu.leaked),
            Err(error) => {
                return Judgement::Wrong(Wrong::Rows, format!("answers cannot be compared: {error}"));
            }
        };
        if difference.0 == Wrong::Hang {
            return Judgement::Wrong(difference.0, difference.1);
        }
        let mut answers = vec![];
        for (partitions, batch_size) in variations(options, self.stored.rows, care) {
            let oracle = self.ask(engine, &options.cpu(partitions, batch_size)).await;
            match self.agreement(&oracle, &run.verdict) {
                Ok(Judgement::Wrong(..)) | Err(_) => {}
                Ok(_) => return leak_or(Judgement::OtherCpu, run.gpu.leaked),
            }
            if let Verdict::Rows(answer) = oracle.verdict {
                answers.push(answer);
            }
        }
        if self.is_undetermined(&answers, &run.verdict) {
            return leak_or(Judgement::Undetermined, run.gpu.leaked);
        }
        Judgement::Wrong(difference.0, difference.1)
    }

    /// Compares a verdict with one of the CPU's.
    fn agreement(&self, oracle: &Oracle, got: &Verdict) -> datafusion::error::Result<Judgement> {
        let wrong = |text: String| Ok(Judgement::Wrong(Wrong::Error, text));
        match (&oracle.verdict, got) {
            (Verdict::Panic(_), Verdict::Panic(_)) => Ok(Judgement::SameError),
            (_, Verdict::Hang) => Ok(Judgement::Wrong(Wrong::Hang, "no answer in time".to_string())),
            (_, Verdict::Panic(text)) => Ok(Judgement::Wrong(Wrong::Panic, format!("a panic: {text}"))),
            (Verdict::Rows(want), Verdict::TooLarge) => {
                let text = format!("too many rows to compare instead of {}", want.rows());
                Ok(Judgement::Wrong(Wrong::Rows, text))
            }
            // Before an error any number of rows may come.
            (_, Verdict::TooLarge) | (Verdict::TooLarge | Verdict::Hang, _) => Ok(Judgement::TooLarge),
            (Verdict::Rows(want), Verdict::Rows(got)) => {
                let outcome = compare::compare(&self.spec, want, oracle.unlimited.as_ref(), got)?;
                Ok(outcome.map_or_else(|text| Judgement::Wrong(Wrong::Rows, text), |()| Judgement::Same))
            }
            (Verdict::Error(want), Verdict::Error(got)) if compare::same_error(want, got) => {
                Ok(Judgement::SameError)
            }
            (Verdict::Error(want), Verdict::Error(got)) => {
                wrong(format!("another error\n  off:    {want}\n  forced: {got}"))
            }
            (Verdict::Rows(want), Verdict::Error(got)) => {
                wrong(format!("an error instead of {} rows: {got}", want.rows()))
            }
            (Verdict::Error(want) | Verdict::Panic(want), Verdict::Rows(got)) => {
                wrong(format!("{} rows instead of an error: {want}", got.rows()))
            }
            (Verdict::Panic(_), Verdict::Error(_)) => Ok(Judgement::SameError),
        }
    }

    /// Whether the CPU's answers differ among themselves and the verdict could be pieced together from them.
    fn is_undetermined(&self, answers: &[Answer], got: &Verdict) -> bool {
        let (Verdict::Rows(first), Verdict::Rows(got)) = (&self.oracle.verdict, got) else { return false };
        let exact = Spec { limited: false, ..self.spec.clone() };
        let differs = |answer: &Answer| !matches!(compare::compare(&exact, first, None, answer), Ok(Ok(())));
        let all: Vec<&Answer> = answers.iter().chain([first]).collect();
        // A limited answer may well differ: there each row must be one of the unlimited answer, which was checked.
        !self.spec.limited
            && answers.iter().any(differs)
            && compare::pieced_together(&self.spec, &all, got).unwrap_or(false)
    }
}

fn leak_or(judgement: Judgement, leaked: u64) -> Judgement {
    if leaked == 0 {
        judgement
    } else {
        Judgement::Wrong(Wrong::Leak, format!("{leaked} bytes of device memory are still reserved"))
    }
}

/// Partitions and batch sizes of the runs that the CPU is asked for again; those of the forced run first.
fn variations(options: &RunOptions, rows: usize, care: Care) -> Vec<(usize, usize)> {
    let number = |key: &str, default: usize| {
        options.settings.get(key).and_then(|text| text.parse().ok()).unwrap_or(default)
    };
    let partitions = number("datafusion.execution.target_partitions", 4);
    let batch_size = number("datafusion.execution.batch_size", 8_192);
    let mut all = vec![(partitions, batch_size), (partitions, number("gpu.batch_rows", 8_192).max(1))];
    all.extend([(1, 8_192), (4, 100), (3, 1_000), (1, 7), (2, 100_000), (8, 2)]);
    if care == Care::Quick {
        all.truncate(3);
    }
    // Tiny batches over many rows take long without showing more.
    all.iter_mut().for_each(|(_, batch_size)| *batch_size = (*batch_size).max(1 + rows / 200));
    all
}
