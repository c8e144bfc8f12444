//! What the process that runs the files tells the one that waits for it, line by line, so that a crash takes only the last.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;

use datafusion::error::Result;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::error::problem;

use super::records::{Failure, FileResult, Outcome, Place};

/// A line.
#[derive(Debug, Serialize, Deserialize)]
pub enum Line {
    /// A file begins.
    Started { file: String },
    /// It was read, and holds so many statements.
    Planned { file: String, statements: usize },
    /// One of them begins.
    Begun { file: String, place: Place },
    /// It has ended.
    Done { file: String, outcome: Outcome },
    /// The file has ended.
    Finished(FileResult),
    /// A statement hangs, and the process ends itself.
    Hung { file: String, sql: String, message: String },
    /// All panics, at the end.
    Panics(BTreeMap<String, u64>),
}

/// The file that the lines go to.
#[derive(Debug)]
pub struct Log(Mutex<File>);

impl Log {
    /// Goes on with a file.
    ///
    /// # Errors
    /// Those of opening it.
    pub fn open(path: &Path) -> Result<Self> {
        Ok(Self(Mutex::new(OpenOptions::new().append(true).open(path)?)))
    }

    /// Writes a line at once.
    ///
    /// # Errors
    /// Those of writing.
    pub fn write(&self, line: &Line) -> Result<()> {
        let mut json = serde_json::to_vec(line).map_err(|error| problem(error.to_string()))?;
        json.push(b'\n');
        Ok(self.0.lock().write_all(&json)?)
    }
}

/// What a process wrote.
#[derive(Debug, Default)]
pub struct Told {
    /// Files that have ended.
    pub finished: Vec<FileResult>,
    /// Files that were begun only, in the order in which they were.
    pub open: Vec<Open>,
    /// Statements that hung, or waited for a thread that another held.
    pub hung: Vec<Hung>,
    /// Panics with their number.
    pub panics: BTreeMap<String, u64>,
}

/// A file that has not ended.
#[derive(Debug, Default)]
pub struct Open {
    pub file: String,
    statements: usize,
    result: FileResult,
    running: Option<Place>,
}

/// A statement that hung.
#[derive(Debug)]
pub struct Hung {
    pub file: String,
    pub sql: String,
    pub message: String,
}

impl Told {
    /// Reads the lines.
    ///
    /// # Errors
    /// Those of reading.
    pub fn read(path: &Path) -> Result<Self> {
        let mut told = Told::default();
        for line in BufReader::new(File::open(path)?).lines() {
            // A crash may cut the last line.
            if let Ok(line) = serde_json::from_str(&line?) {
                told.add(line);
            }
        }
        Ok(told)
    }

    fn add(&mut self, line: Line) {
        match line {
            Line::Started { file } => self.open.push(Open { file, ..Open::default() }),
            Line::Planned { file, statements } => self.with(&file, |open| open.statements = statements),
            Line::Begun { file, place } => self.with(&file, |open| open.running = Some(place)),
            Line::Done { file, outcome } => self.with(&file, |open| open.done(outcome)),
            Line::Finished(result) => {
                self.open.retain(|open| open.file != result.file);
                self.finished.push(result);
            }
            Line::Hung { file, sql, message } => self.hung.push(Hung { file, sql, message }),
            Line::Panics(panics) => self.panics = panics,
        }
    }

    fn with(&mut self, file: &str, change: impl FnOnce(&mut Open)) {
        if let Some(open) = self.open.iter_mut().find(|open| open.file == file) {
            change(open);
        }
    }
}

impl Open {
    fn done(&mut self, outcome: Outcome) {
        self.running = None;
        match outcome {
            Outcome::Skipped => self.result.skipped_by_file += 1,
            Outcome::Ran(failure) => {
                self.result.statements += 1;
                self.result.failures.extend(failure);
            }
        }
    }

    /// The result of a file with which the process ended: what ran of it, the statement that was to blame, and the number of
    /// those that were left. What its statements did on the GPU is not known.
    pub fn cut_off(self, sql: Option<&str>, message: String) -> FileResult {
        let mut result = FileResult { file: self.file.clone(), ..self.result };
        result.statements += usize::from(self.running.is_some());
        result.statements_not_run =
            self.statements.saturating_sub(result.statements + result.skipped_by_file);
        let unknown = Place { file: self.file, line: 0, sql: sql.unwrap_or_default().to_owned() };
        result.failures.push(Failure::new(self.running.unwrap_or(unknown), message));
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(lines: Vec<Line>) -> Told {
        let mut told = Told::default();
        lines.into_iter().for_each(|line| told.add(line));
        told
    }

    #[test]
    fn what_ran_before_the_end_is_kept() {
        let file = || "a.slt".to_owned();
        let place = |line| Place { file: "b.part".to_owned(), line, sql: "SELECT 1".to_owned() };
        let failure = Failure::new(place(3), "wrong".to_owned());
        let told = told(vec![
            Line::Started { file: file() },
            Line::Planned { file: file(), statements: 7 },
            Line::Begun { file: file(), place: place(1) },
            Line::Done { file: file(), outcome: Outcome::Ran(None) },
            Line::Begun { file: file(), place: place(2) },
            Line::Done { file: file(), outcome: Outcome::Skipped },
            Line::Begun { file: file(), place: place(3) },
            Line::Done { file: file(), outcome: Outcome::Ran(Some(failure.clone())) },
            Line::Begun { file: file(), place: place(4) },
        ]);
        let result = told.open.into_iter().next().unwrap().cut_off(None, "gone".to_owned());
        assert_eq!((result.statements, result.skipped_by_file, result.statements_not_run), (3, 1, 3));
        assert_eq!(result.failures, [failure, Failure::new(place(4), "gone".to_owned())]);
    }

    #[test]
    fn files_that_have_ended_are_not_open() {
        let told = told(vec![
            Line::Started { file: "a".to_owned() },
            Line::Started { file: "b".to_owned() },
            Line::Finished(FileResult { file: "a".to_owned(), ..FileResult::default() }),
            Line::Hung { file: "a".to_owned(), sql: String::new(), message: String::new() },
        ]);
        assert_eq!(told.open.iter().map(|open| open.file.as_str()).collect::<Vec<_>>(), ["b"]);
        assert_eq!((told.finished.len(), told.hung.len()), (1, 1));
    }
}
