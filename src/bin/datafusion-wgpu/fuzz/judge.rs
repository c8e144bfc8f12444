//! Whether a forced run's verdict is one that DataFusion could give.
//!
//! Only what no run on the CPU gives is a failure: where the verdicts differ, the CPU is asked again under other batch
//! sizes and partition counts, since errors and the order of rows depend on them.

mod doubts;

use std::time::Instant;

use datafusion::error::Result;

use super::ast::Query;
use super::compare::{self, Answer, Outcome, Spec, Wanted};
use super::data::Stored;
use super::errors::{is_exhausted, is_of_a_value, is_second_execution, same_error, same_kind};
use super::guards::is_guarded;
use super::options::RunOptions;
use super::plant::Plant;
use super::runner::{Engine, Run, Verdict};

/// A query with the CPU's answers over one dataset.
pub struct Question<'a> {
    /// The tables.
    pub stored: &'a Stored,
    /// Its SQL.
    pub sql: String,
    /// What is compared.
    pub spec: Spec,
    reference_sql: Option<String>,
    /// The CPU's verdict.
    pub oracle: Oracle,
}

/// The CPU's verdict, with a reference for its rows where one is needed.
pub struct Oracle {
    /// The verdict.
    pub verdict: Verdict,
    reference: Option<Answer>,
}

impl Oracle {
    fn wanted(&self) -> Option<Wanted<'_>> {
        match &self.verdict {
            Verdict::Rows(answer) => Some(Wanted { answer, reference: self.reference.as_ref() }),
            _ => None,
        }
    }
}

/// What is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wrong {
    /// Other rows.
    Rows,
    /// Other bits than in an earlier run.
    Bits,
    /// Another error, or an error on one side.
    Error,
    /// No answer in time.
    Hang,
    /// A panic.
    Panic,
    /// Device memory that is still reserved.
    Leak,
}

/// Time that a run without an answer is given before it counts as hung, in times of what a query may take.
const MORE_TIME: u32 = 5;

/// How often the CPU is asked once more under the forced run's own sizes.
const REPEATS: usize = 20;

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
    /// The CPU's answers differ among themselves, and each row is in one of them; or DataFusion's memory pool had no more to give.
    Undetermined,
    /// One side raised for a value that AND or OR may guard: which of them does depends on the rows that share a batch.
    Guarded,
    /// The CPU could not say which rows are right.
    Unchecked,
    /// Too many rows to compare.
    TooLarge,
    /// No answer in time from a plan without GPU nodes, for which the CPU needs long as well.
    SlowOnCpu,
    /// The right answer, but not in time, such as of tiny batches over the many rows of a join.
    Slow,
    /// A failure, in words.
    Wrong(Wrong, String),
}

impl<'a> Question<'a> {
    /// Asks the CPU.
    pub async fn new(engine: &Engine, stored: &'a Stored, query: &Query) -> Self {
        let reference_sql = query.reference().map(|reference| reference.to_string());
        Question::of_sql(engine, stored, query.to_string(), reference_sql, Spec::of(query)).await
    }

    /// The same for SQL.
    pub async fn of_sql(
        engine: &Engine,
        stored: &'a Stored,
        sql: String,
        reference_sql: Option<String>,
        spec: Spec,
    ) -> Self {
        let oracle = Oracle { verdict: Verdict::Hang, reference: None };
        let mut question = Question { stored, sql, spec, reference_sql, oracle };
        question.oracle = question.ask(engine, &RunOptions::default().cpu(4, 8_192)).await;
        question
    }

    async fn ask(&self, engine: &Engine, options: &RunOptions) -> Oracle {
        self.ask_over(self.stored, engine, options).await
    }

    async fn ask_over(&self, stored: &Stored, engine: &Engine, options: &RunOptions) -> Oracle {
        let verdict = engine.cpu(stored, &self.sql, options).await;
        let reference = match (&self.reference_sql, &verdict) {
            (Some(sql), Verdict::Rows(_)) => match engine.cpu(stored, sql, options).await {
                Verdict::Rows(answer) => Some(answer),
                _ => None,
            },
            _ => None,
        };
        Oracle { verdict, reference }
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
        plant.apply(&self.sql, &self.spec, &mut run);
        let judgement = self.judge(engine, options, &run, care).await;
        (run, judgement)
    }

    /// Judges a forced run.
    pub async fn judge(&self, engine: &Engine, options: &RunOptions, run: &Run, care: Care) -> Judgement {
        if !matches!(run.verdict, Verdict::Hang) {
            return self.judge_ended(engine, options, run, care).await;
        }
        if run.gpu.nodes.is_empty() && self.is_slow_on_cpu(engine, options).await {
            return Judgement::SlowOnCpu;
        }
        if care == Care::Thorough {
            let limit = engine.timeout() * MORE_TIME;
            let again = engine.forced_within(self.stored, &self.sql, options, limit).await;
            if !matches!(again.verdict, Verdict::Hang) {
                return match self.judge_ended(engine, options, &again, care).await {
                    Judgement::Same | Judgement::SameError => Judgement::Slow,
                    judgement => judgement,
                };
            }
        }
        Judgement::Wrong(Wrong::Hang, "no answer in time".to_string())
    }

    /// Judges a forced run that came to an end.
    async fn judge_ended(&self, engine: &Engine, options: &RunOptions, run: &Run, care: Care) -> Judgement {
        // How much memory a plan needs is its own business: either side alone may run out of it.
        if let (Some(_), Verdict::Error(text)) = (&options.pool, &run.verdict)
            && (is_exhausted(text) || is_second_execution(text))
        {
            return leak_or(Judgement::Undetermined, run.gpu.leaked);
        }
        let difference = match self.agreement(&self.oracle, run, options) {
            Judgement::Wrong(wrong, text) => (wrong, text),
            judgement => return leak_or(judgement, run.gpu.leaked),
        };
        let mut others = vec![];
        let mut variations = variations(options, self.stored.rows, care);
        if care == Care::Thorough {
            // Which row raises first, and in what order groups come, differs from run to run.
            let same = variations[0].clone();
            variations.extend(std::iter::repeat_n(same, REPEATS));
        }
        for cpu in variations {
            let oracle = self.ask(engine, &cpu).await;
            if matches!(self.agreement(&oracle, run, options), Judgement::Same | Judgement::SameError) {
                return leak_or(Judgement::OtherCpu, run.gpu.leaked);
            }
            // A panic of DataFusion's own, which it has without the crate as well.
            if matches!((&oracle.verdict, &run.verdict), (Verdict::Panic(a), Verdict::Panic(b)) if a == b) {
                return leak_or(Judgement::Undetermined, run.gpu.leaked);
            }
            others.push(oracle);
        }
        if care == Care::Thorough
            && (self.is_filters_doing(engine, options, run).await
                || self.is_of_slices(engine, options, run).await
                || self.is_of_empty_batches(engine, options, run).await
                || self.is_of_another_partition(engine, run).await
                || self.is_of_remainders(engine, options, run).await)
        {
            return leak_or(Judgement::Undetermined, run.gpu.leaked);
        }
        if self.is_undetermined(&others, run) || self.is_datafusions_own(engine, options, run).await {
            return leak_or(Judgement::Undetermined, run.gpu.leaked);
        }
        if self.is_guarded(engine, options, run).await {
            return leak_or(Judgement::Guarded, run.gpu.leaked);
        }
        Judgement::Wrong(difference.0, difference.1)
    }

    /// Whether the run had the plan that DataFusion makes without this crate, to the letter: what it gave is DataFusion's
    /// own, however seldom.
    async fn is_datafusions_own(&self, engine: &Engine, options: &RunOptions, run: &Run) -> bool {
        run.gpu.nodes.is_empty()
            && engine.cpu_plan(self.stored, &self.sql, options).await.is_ok_and(|plan| plan == run.plan)
    }

    /// Whether the CPU alone takes more than half of the time that a query may take, with the same batches and partitions.
    async fn is_slow_on_cpu(&self, engine: &Engine, options: &RunOptions) -> bool {
        let start = Instant::now();
        let options = options.cpu(options.partitions(), options.batch_size());
        engine.cpu(self.stored, &self.sql, &options).await;
        start.elapsed() > engine.timeout() / 2
    }

    /// Compares a run with one of the CPU's verdicts. A CPU that hangs, panics or gives too many rows agrees with nothing.
    fn agreement(&self, oracle: &Oracle, run: &Run, options: &RunOptions) -> Judgement {
        let wrong = |text: String| Judgement::Wrong(Wrong::Error, text);
        match (&oracle.verdict, &run.verdict) {
            (_, Verdict::Hang) => Judgement::Wrong(Wrong::Hang, "no answer in time".to_string()),
            (_, Verdict::Panic(text)) => Judgement::Wrong(Wrong::Panic, format!("a panic: {text}")),
            (Verdict::Rows(want), Verdict::TooLarge) => {
                let text = format!("too many rows to compare instead of {}", want.rows());
                Judgement::Wrong(Wrong::Rows, text)
            }
            // Before an error any number of rows may come.
            (Verdict::Error(_), Verdict::TooLarge) => Judgement::TooLarge,
            (Verdict::TooLarge | Verdict::Hang | Verdict::Panic(_), _) => {
                wrong("the CPU gives no answer".to_string())
            }
            (Verdict::Rows(answer), Verdict::Rows(got)) => {
                let wanted = Wanted { answer, reference: oracle.reference.as_ref() };
                match compare::compare(&self.spec, wanted, got, run.gpu.is_whole()) {
                    Ok(Outcome::Same) => Judgement::Same,
                    Ok(Outcome::Unchecked) => Judgement::Unchecked,
                    Ok(Outcome::Differs(text)) => Judgement::Wrong(Wrong::Rows, text),
                    Err(error) => {
                        Judgement::Wrong(Wrong::Rows, format!("answers cannot be compared: {error}"))
                    }
                }
            }
            (Verdict::Error(want), Verdict::Error(got)) if same_error(want, got) => Judgement::SameError,
            // Partitions and sides of a UNION run at once: which of them names its value first is open.
            (Verdict::Error(want), Verdict::Error(got))
                if (options.partitions() > 1 || run.gpu.partitions > 1) && same_kind(want, got) =>
            {
                Judgement::SameError
            }
            (Verdict::Error(want), Verdict::Error(got)) => {
                wrong(format!("another error\n  off:    {want}\n  forced: {got}"))
            }
            (Verdict::Rows(want), Verdict::Error(got)) => {
                wrong(format!("an error instead of {} rows: {got}", want.rows()))
            }
            (Verdict::Error(want), Verdict::Rows(got)) => {
                wrong(format!("{} rows instead of an error: {want}", got.rows()))
            }
        }
    }

    /// Whether the CPU's verdicts differ among themselves as the run's differs from them.
    fn is_undetermined(&self, others: &[Oracle], run: &Run) -> bool {
        match (&self.oracle.verdict, &run.verdict) {
            (Verdict::Rows(_), Verdict::Rows(got)) => {
                self.is_pieced_together(others, got, run.gpu.is_whole()).unwrap_or(false)
            }
            // Which row's value an error names depends on the row that is met first.
            (Verdict::Error(first), Verdict::Error(got)) => {
                same_kind(first, got)
                    && others.iter().any(|other| match &other.verdict {
                        Verdict::Error(text) => !same_error(first, text) && same_kind(first, text),
                        _ => false,
                    })
            }
            _ => false,
        }
    }

    /// Whether one side raised for a value that AND or OR may guard: whether they do depends on the rows that share its batch, and
    /// batches after a join are like no batches of a scan.
    async fn is_guarded(&self, engine: &Engine, options: &RunOptions, run: &Run) -> bool {
        let text = match (&self.oracle.verdict, &run.verdict) {
            (Verdict::Error(text), Verdict::Rows(_)) | (Verdict::Rows(_), Verdict::Error(text)) => text,
            _ => return false,
        };
        is_of_a_value(text)
            && engine
                .optimized(self.stored, &self.sql, options)
                .await
                .is_ok_and(|plan| is_guarded(&plan, text))
    }

    fn is_pieced_together(&self, others: &[Oracle], got: &Answer, strict: bool) -> Result<bool> {
        let Some(first) = self.oracle.wanted() else { return Ok(false) };
        let mut all: Vec<Wanted<'_>> = others.iter().filter_map(Oracle::wanted).collect();
        let mut differ = false;
        for other in &all {
            let outcome = compare::compare(&self.spec, first, other.answer, false)?;
            differ |= matches!(outcome, Outcome::Differs(_));
        }
        all.push(first);
        Ok(differ && compare::pieced_together(&self.spec, &all, got, strict)?)
    }
}

/// How a run that the device answered alone differs from the first such run of the same question.
pub fn repeated(spec: &Spec, first: &mut Option<Answer>, run: &Run) -> Result<Option<String>> {
    let Verdict::Rows(answer) = &run.verdict else { return Ok(None) };
    if !run.gpu.is_whole() {
        return Ok(None);
    }
    match first {
        Some(first) => compare::repeated(spec, first, answer),
        None => {
            *first = Some(answer.clone());
            Ok(None)
        }
    }
}

fn leak_or(judgement: Judgement, leaked: u64) -> Judgement {
    if leaked == 0 {
        judgement
    } else {
        Judgement::Wrong(Wrong::Leak, format!("{leaked} bytes of device memory are still reserved"))
    }
}

/// Options of the runs that the CPU is asked for again; those of the forced run first.
fn variations(options: &RunOptions, rows: usize, care: Care) -> Vec<RunOptions> {
    let (partitions, batch_size) = (options.partitions(), options.batch_size());
    let gpu_rows = options.number("gpu.batch_rows", 8_192).max(1);
    let mut all = vec![(partitions, batch_size), (partitions, gpu_rows)];
    all.extend([(1, 8_192), (4, 100), (3, 1_000), (1, 7), (2, 100_000), (8, 2)]);
    if care == Care::Quick {
        all.truncate(3);
    }
    // Tiny batches over many rows take long without showing more.
    let least = 1 + rows / 200;
    let mut all: Vec<_> =
        all.into_iter().map(|(partitions, size)| options.cpu(partitions, size.max(least))).collect();
    all.insert(1, all[0].clone().without_dynamic_filters());
    if options.pool.is_some() {
        // What spills takes other ways through the operators.
        all.insert(0, all[0].clone().within(options));
    }
    all
}
