//! Makes a failing case smaller while it still fails in the same way: options, layouts, rows, columns, and the query.

use std::time::{Duration, Instant};

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::compute::concat_batches;
use datafusion::error::Result;

use super::ast::Query;
use super::data::{Dataset, Layout};
use super::judge::{Care, Judgement, Question, Wrong};
use super::options::RunOptions;
use super::plant::Plant;
use super::reduce::reductions;
use super::runner::Engine;

/// Candidates that are tried before rows are cut: inner queries, sides of set operations, LIMIT, ORDER BY, conditions.
const LARGE_STEPS: usize = 12;

/// A query, its tables and the options under which it fails.
#[derive(Debug, Clone)]
pub struct Case {
    /// The query.
    pub query: Query,
    /// The tables.
    pub dataset: Dataset,
    /// The options.
    pub options: RunOptions,
}

/// Shrinks one case.
pub struct Shrinker<'a> {
    engine: &'a Engine,
    plant: &'a Plant,
    wrong: Wrong,
    best: Case,
    first: (Case, String),
    deadline: Instant,
    tries: usize,
}

/// What is left of a case.
#[derive(Debug, Clone)]
pub struct Shrunk {
    /// The case.
    pub case: Case,
    /// How it fails.
    pub detail: String,
    /// Candidates that were tried.
    pub tries: usize,
}

impl<'a> Shrinker<'a> {
    /// For a case that failed as `wrong` and `detail` say; ends after `budget` at the latest, with what it has.
    pub fn new(
        engine: &'a Engine,
        plant: &'a Plant,
        case: Case,
        (wrong, detail): (Wrong, String),
        budget: Duration,
    ) -> Self {
        let deadline = Instant::now() + budget;
        Shrinker { engine, plant, wrong, best: case.clone(), first: (case, detail), deadline, tries: 0 }
    }

    /// Shrinks until nothing smaller fails or the time is over.
    ///
    /// # Errors
    /// Arrow's, when rows are cut.
    pub async fn run(mut self) -> Result<Shrunk> {
        // The largest parts of the query while all rows are there, which they may need.
        self.query(LARGE_STEPS).await;
        loop {
            let before = self.size();
            // Then fewer rows: everything after is quicker.
            self.options().await;
            self.rows().await?;
            self.query(usize::MAX).await;
            self.columns().await?;
            self.rows().await?;
            if self.size() == before || self.is_over() {
                return Ok(self.confirmed().await);
            }
        }
    }

    /// The smallest case if it fails when looked at thoroughly, else the one that came in.
    async fn confirmed(self) -> Shrunk {
        let (case, detail) = match self.judge(&self.best, Care::Thorough).await {
            Some(detail) => (self.best, detail),
            None => self.first,
        };
        Shrunk { case, detail, tries: self.tries }
    }

    fn size(&self) -> (usize, usize, usize) {
        let columns = self.best.dataset.tables.iter().map(|table| table.rows.num_columns()).sum();
        (self.best.query.to_string().len(), self.best.dataset.rows(), columns)
    }

    fn is_over(&self) -> bool {
        Instant::now() >= self.deadline
    }

    /// Takes the candidate if it fails in the same way.
    async fn accept(&mut self, candidate: Case) -> bool {
        if self.is_over() {
            return false;
        }
        self.tries += 1;
        let fails = self.judge(&candidate, Care::Quick).await.is_some();
        if fails {
            self.best = candidate;
        }
        fails
    }

    /// How the case fails, if it fails in the way that is looked for.
    async fn judge(&self, case: &Case, care: Care) -> Option<String> {
        let stored = case.dataset.store().await.ok()?;
        let question = Question::new(self.engine, &stored, &case.query).await;
        if !question.is_useful() {
            return None;
        }
        match question.run(self.engine, &case.options, self.plant, care).await.1 {
            Judgement::Wrong(wrong, detail) if wrong == self.wrong => Some(detail),
            _ => None,
        }
    }

    async fn options(&mut self) {
        let keys: Vec<String> = self.best.options.settings.keys().cloned().collect();
        for key in keys {
            let mut candidate = self.best.clone();
            candidate.options.settings.remove(&key);
            self.accept(candidate).await;
        }
        while let Some(last) = self.best.options.withheld.len().checked_sub(1) {
            let mut candidate = self.best.clone();
            candidate.options.withheld.truncate(last);
            if !self.accept(candidate).await {
                break;
            }
        }
        if self.best.options.fault.is_some() {
            let mut candidate = self.best.clone();
            candidate.options.fault = None;
            self.accept(candidate).await;
        }
        if self.best.options.pool.is_some() {
            let mut candidate = self.best.clone();
            candidate.options.pool = None;
            self.accept(candidate).await;
        }
        for table in 0..self.best.dataset.tables.len() {
            if self.best.dataset.tables[table].layout != Layout::plain() {
                let mut candidate = self.best.clone();
                candidate.dataset.tables[table].layout = Layout::plain();
                self.accept(candidate).await;
            }
        }
    }

    /// Keeps the first or the last few rows of a table, if they are enough.
    async fn ends(&mut self, table: usize) {
        for count in [0, 1, 4, 16, 64, 256, 1_024] {
            let rows = self.best.dataset.tables[table].rows.num_rows();
            if count >= rows || self.is_over() {
                return;
            }
            for start in [0, rows - count] {
                let mut candidate = self.best.clone();
                candidate.dataset.tables[table].rows =
                    self.best.dataset.tables[table].rows.slice(start, count);
                if self.accept(candidate).await {
                    return;
                }
            }
        }
    }

    /// Takes away halves of the rows, quarters, and so on down to single rows.
    async fn rows(&mut self) -> Result<()> {
        for table in 0..self.best.dataset.tables.len() {
            self.ends(table).await;
        }
        for table in 0..self.best.dataset.tables.len() {
            let mut chunk = self.best.dataset.tables[table].rows.num_rows();
            while chunk > 0 && !self.is_over() {
                let mut start = 0;
                while start < self.best.dataset.tables[table].rows.num_rows() && !self.is_over() {
                    let mut candidate = self.best.clone();
                    let rows = &self.best.dataset.tables[table].rows;
                    candidate.dataset.tables[table].rows = without_rows(rows, start, chunk)?;
                    if !self.accept(candidate).await {
                        start += chunk;
                    }
                }
                chunk /= 2;
            }
        }
        Ok(())
    }

    async fn columns(&mut self) -> Result<()> {
        for table in 0..self.best.dataset.tables.len() {
            let columns = self.best.dataset.tables[table].rows.num_columns();
            for column in (0..columns).rev() {
                let mut candidate = self.best.clone();
                let rows = &self.best.dataset.tables[table].rows;
                let kept: Vec<usize> = (0..rows.num_columns()).filter(|index| *index != column).collect();
                if kept.is_empty() {
                    break;
                }
                candidate.dataset.tables[table].rows = rows.project(&kept)?;
                self.accept(candidate).await;
            }
        }
        for table in (0..self.best.dataset.tables.len()).rev() {
            let mut candidate = self.best.clone();
            candidate.dataset.tables.remove(table);
            self.accept(candidate).await;
        }
        Ok(())
    }

    /// Tries the first `most` candidates of each query that is taken.
    async fn query(&mut self, most: usize) {
        let mut next = 0;
        let mut untried = most;
        // Round and round through the candidates until all of them were tried without success.
        while untried > 0 && !self.is_over() {
            let candidates = reductions(&self.best.query);
            let count = candidates.len().min(most);
            if count == 0 {
                return;
            }
            untried = untried.min(count);
            let query = candidates[next % count].clone();
            if self.accept(Case { query, ..self.best.clone() }).await {
                untried = most;
            } else {
                next += 1;
                untried -= 1;
            }
        }
    }
}

fn without_rows(rows: &RecordBatch, start: usize, count: usize) -> Result<RecordBatch> {
    let end = (start + count).min(rows.num_rows());
    let parts = [rows.slice(0, start), rows.slice(end, rows.num_rows() - end)];
    Ok(concat_batches(&rows.schema(), &parts)?)
}
