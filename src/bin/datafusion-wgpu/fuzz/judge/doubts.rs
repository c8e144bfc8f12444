//! Whether DataFusion's own answer is one of several that it could give.

use std::time::Instant;

use super::super::compare::{self, Answer};
use super::super::errors::{is_of_a_value, same_error};
use super::super::options::RunOptions;
use super::super::runner::{Engine, Run, Verdict};
use super::{Judgement, Question};

/// Rows that the CPU is asked about one by one, at most.
const MOST_ROWS_ALONE: usize = 2_000;

impl Question<'_> {
    /// Whether a query with LIMIT is right once no operator narrows the scans below it: TopK's filter over several NaNs keeps what was
    /// read first, on the CPU as well.
    pub(super) async fn is_filters_doing(&self, engine: &Engine, options: &RunOptions, run: &Run) -> bool {
        let Verdict::Rows(got) = &run.verdict else { return false };
        if !self.spec.limited || !got.has_nan() {
            return false;
        }
        let options = options.clone().without_dynamic_filters();
        let bare = engine.forced(self.stored, &self.sql, &options).await;
        matches!(self.agreement(&self.oracle, &bare, &options), Judgement::Same)
    }

    /// Whether both sides raised for a value, and for the same one once batches on the device hold whole host batches: what the
    /// CPU replays of a batch that was cut is a batch that it would not have seen, and which of several expressions of a batch raises
    /// first depends on its rows.
    pub(super) async fn is_of_slices(&self, engine: &Engine, options: &RunOptions, run: &Run) -> bool {
        let (Verdict::Error(want), Verdict::Error(got)) = (&self.oracle.verdict, &run.verdict) else {
            return false;
        };
        let Some(whole) = options.with_whole_batches(self.stored.rows) else { return false };
        if !is_of_a_value(want) || !is_of_a_value(got) {
            return false;
        }
        let again = engine.forced(self.stored, &self.sql, &whole).await;
        matches!(self.agreement(&self.oracle, &again, &whole), Judgement::Same | Judgement::SameError)
    }

    /// Whether the CPU raised for a batch without rows, as expressions without columns do, and gives the run's rows where there is none.
    pub(super) async fn is_of_empty_batches(&self, engine: &Engine, options: &RunOptions, run: &Run) -> bool {
        let (Verdict::Error(_), Verdict::Rows(_)) = (&self.oracle.verdict, &run.verdict) else {
            return false;
        };
        let Ok(stored) = self.stored.without_empty_batches() else { return false };
        let oracle = self.ask_over(&stored, engine, &RunOptions::default().cpu(1, 8_192)).await;
        matches!(self.agreement(&oracle, run, options), Judgement::Same)
    }

    /// Whether the CPU's rows depend on how many share a batch, and the run's are between them: which of two NaNs comes out of an addition
    /// is another one where vector instructions end, and a comparison sees which.
    pub(super) async fn is_of_remainders(&self, engine: &Engine, options: &RunOptions, run: &Run) -> bool {
        let (Verdict::Rows(want), Verdict::Rows(got)) = (&self.oracle.verdict, &run.verdict) else {
            return false;
        };
        if !self.stored.has_nan() {
            return false;
        }
        let mut answers = vec![want.clone()];
        for size in [1, 3, 17] {
            if let Verdict::Rows(answer) = engine.cpu(self.stored, &self.sql, &options.cpu(1, size)).await {
                answers.push(answer);
            }
        }
        let answers: Vec<&Answer> = answers.iter().collect();
        compare::within(&self.spec, &answers, got).unwrap_or(false)
    }

    /// Whether both sides raised for a value where several partitions or sides of a UNION run at once, and the CPU raises the run's
    /// error when that value's row is alone in its table. The one that fails first is reported.
    pub(super) async fn is_of_another_partition(&self, engine: &Engine, run: &Run) -> bool {
        let (Verdict::Error(want), Verdict::Error(got)) = (&self.oracle.verdict, &run.verdict) else {
            return false;
        };
        if run.gpu.partitions <= 1 || !is_of_a_value(want) || !is_of_a_value(got) {
            return false;
        }
        let one = RunOptions::default().cpu(1, 8_192);
        let start = Instant::now();
        for stored in self.stored.single_rows().take(MOST_ROWS_ALONE) {
            let Ok(stored) = stored else { return false };
            match engine.cpu(&stored, &self.sql, &one).await {
                Verdict::Error(text) if same_error(&text, got) => return true,
                Verdict::Hang => return false,
                _ if start.elapsed() > engine.timeout() => return false,
                _ => {}
            }
        }
        false
    }
}
