//! What a run found, for people and for programs.

use std::collections::BTreeMap;

use datafusion::error::Result;
use serde::Serialize;

use crate::error::problem;
use crate::panics;

use super::records::{Failure, FileResult};
use super::skips::{Skip, Skips};
use super::worker::{End, Results};

/// What a pass over the files gave.
#[derive(Debug)]
pub struct PassResult {
    /// Its options, in words.
    pub options: String,
    /// The results.
    pub results: Results,
}

/// The results of all files, held against the list of known failures.
#[derive(Debug, Serialize)]
pub struct Report {
    pub(super) suite_version: Option<String>,
    /// Entries of the list that no failure of these files needs.
    stale: Vec<String>,
    pub(super) passes: Vec<Pass>,
    #[serde(skip)]
    pub(super) known: Vec<(Skip, usize)>,
}

/// One pass.
#[derive(Debug, Serialize)]
pub(super) struct Pass {
    pub options: String,
    pub totals: Totals,
    /// Ends of the process for which no file is to blame.
    pub ends: Vec<End>,
    /// Panics of all threads, caught or not.
    pub panics: BTreeMap<String, u64>,
    pub files: Vec<FileReport>,
}

/// Sums over files.
#[derive(Debug, Default, Clone, PartialEq, Serialize)]
pub(super) struct Totals {
    pub files: usize,
    /// Without a statement.
    pub files_empty: usize,
    pub files_not_run: usize,
    /// Those of them that the list does not know.
    pub files_not_listed: usize,
    pub statements: usize,
    pub passed: usize,
    /// Failed with the rule, and not in the list.
    pub failed: usize,
    /// Failed with and without the rule, and not in the list.
    pub failed_everywhere: usize,
    /// Failed as the list says.
    pub skipped: usize,
    pub skipped_by_file: usize,
    pub statements_not_run: usize,
    pub without_rule: usize,
    pub gpu: usize,
    pub launched: usize,
    pub fallbacks: BTreeMap<String, usize>,
    pub seconds: f64,
}

#[derive(Debug, Serialize)]
pub(super) struct FileReport {
    #[serde(flatten)]
    pub result: FileResult,
    pub totals: Totals,
    /// For each failure the reason that the list gives.
    reasons: Vec<Option<String>>,
}

/// Files that are named with their times.
const SLOWEST: usize = 10;

impl Report {
    /// Counts the results; `suite_version` is that of datafusion-sqllogictest.
    pub fn new(results: Vec<PassResult>, skips: &Skips, suite_version: Option<String>) -> Self {
        let mut used = vec![0; skips.entries.len()];
        let passes: Vec<Pass> =
            results.into_iter().map(|result| Pass::new(result, skips, &mut used)).collect();
        let ran = |skip: &Skip| {
            let mut files = passes.iter().flat_map(|pass| &pass.files);
            files.any(|file| file.result.not_run.is_none() && belongs(&skip.file, &file.result.file))
        };
        let entries = || skips.entries.iter().zip(&used);
        let stale = entries()
            .filter(|(skip, used)| **used == 0 && ran(skip))
            .map(|(skip, _)| describe(skip))
            .collect();
        let known =
            entries().filter(|(_, used)| **used > 0).map(|(skip, used)| (skip.clone(), *used)).collect();
        Self { suite_version, stale, passes, known }
    }

    /// Nothing failed, stopped or panicked that the list does not know, and it has no entry without a failure.
    pub fn is_good(&self) -> bool {
        self.stale.is_empty() && self.passes.iter().all(Pass::is_good)
    }

    /// Everything, as JSON.
    ///
    /// # Errors
    /// None in practice.
    pub fn json(&self) -> Result<String> {
        serde_json::to_string_pretty(self).map_err(|error| problem(error.to_string()))
    }

    /// What a person reads at the end of a run.
    pub fn summary(&self) -> String {
        let mut text = String::new();
        for pass in &self.passes {
            if self.passes.len() > 1 {
                text.push_str(&format!("\nPass with {}\n", pass.options));
            }
            pass.summarize(&mut text);
        }
        for entry in &self.stale {
            text.push_str(&format!("\nSTALE entry in the list of known failures: {entry}\n"));
        }
        text
    }
}

impl Pass {
    fn new(result: PassResult, skips: &Skips, used: &mut [usize]) -> Self {
        let Results { files: results, ends, panics } = result.results;
        let mut totals = Totals::default();
        let mut files = vec![];
        for result in results {
            let found: Vec<Option<usize>> =
                result.failures.iter().map(|failure| skips.find(failure)).collect();
            let whole = result.not_run.as_ref().and_then(|_| skips.find_file(&result.file));
            for entry in found.iter().flatten().chain(&whole) {
                used[*entry] += 1;
            }
            let file = Totals::of(&result, &found, whole.is_some());
            totals.add(&file);
            let reason = |entry: &Option<usize>| entry.map(|entry| skips.entries[entry].reason.clone());
            let reasons = found.iter().map(reason).collect();
            files.push(FileReport { result, totals: file, reasons });
        }
        Self { options: result.options, totals, ends, panics, files }
    }

    fn is_good(&self) -> bool {
        let totals = &self.totals;
        [totals.failed, totals.failed_everywhere, totals.files_not_listed, self.ends.len()] == [0; 4]
            && !self.panics.keys().any(|text| panics::is_own(text))
    }

    fn summarize(&self, text: &mut String) {
        for file in &self.files {
            for failure in file.unknown() {
                let heading = if failure.without_rule { "fails without the rule too" } else { "FAILED" };
                let place = place(failure, &file.result.file);
                text.push_str(&format!("\n{heading}: {place}\n{}\n", failure.message));
            }
            if let (Some(why), true) = (&file.result.not_run, file.totals.files_not_listed > 0) {
                text.push_str(&format!("\nNOT RUN: {}\n{why}\n", file.result.file));
            }
        }
        for end in &self.ends {
            text.push_str(&format!("\nENDED: {end}\n"));
        }
        for (panic, count) in &self.panics {
            let heading = if panics::is_own(panic) { "PANIC" } else { "panic of DataFusion's" };
            text.push_str(&format!("\n{heading}, {count} times: {panic}\n"));
        }
        let totals = &self.totals;
        text.push_str(&format!(
            "\n{} files, {} not run, {} empty; {} statements: {} passed, {} failed, {} failed without the rule too, {} skipped\n\
             not among them: {} skipped by their files, {} not run\n\
             {} ran without the rule; a GPU node in {}, with a kernel in {}; fallbacks: {}\n\
             {:.0} s over all files, the slowest:\n",
            totals.files,
            totals.files_not_run,
            totals.files_empty,
            totals.statements,
            totals.passed,
            totals.failed,
            totals.failed_everywhere,
            totals.skipped,
            totals.skipped_by_file,
            totals.statements_not_run,
            totals.without_rule,
            totals.gpu,
            totals.launched,
            fallbacks(&totals.fallbacks, "none"),
            totals.seconds,
        ));
        let mut slowest: Vec<&FileResult> = self.files.iter().map(|file| &file.result).collect();
        slowest.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
        for file in slowest.into_iter().take(SLOWEST) {
            text.push_str(&format!("{:>7.1} s  {}\n", file.seconds, file.file));
        }
    }
}

impl FileReport {
    /// Failures that the list does not know.
    pub fn unknown(&self) -> impl Iterator<Item = &Failure> {
        let failures = self.result.failures.iter().zip(&self.reasons);
        failures.filter(|(_, reason)| reason.is_none()).map(|(failure, _)| failure)
    }
}

impl Totals {
    fn of(result: &FileResult, found: &[Option<usize>], listed: bool) -> Self {
        let unknown = |without_rule: bool| {
            let failures = result.failures.iter().zip(found);
            failures
                .filter(|(failure, entry)| entry.is_none() && failure.without_rule == without_rule)
                .count()
        };
        // What has no line is the failure of a file.
        let failed = result.failures.iter().filter(|failure| failure.place.line > 0).count();
        let not_run = result.not_run.is_some();
        Totals {
            files: 1,
            files_empty: usize::from(result.is_empty()),
            files_not_run: usize::from(not_run),
            files_not_listed: usize::from(not_run && !listed),
            statements: result.statements,
            passed: result.statements.saturating_sub(failed),
            failed: unknown(false),
            failed_everywhere: unknown(true),
            skipped: found.iter().flatten().count(),
            skipped_by_file: result.skipped_by_file,
            statements_not_run: result.statements_not_run,
            without_rule: result.without_rule,
            gpu: result.gpu,
            launched: result.launched,
            fallbacks: result.fallbacks.clone(),
            seconds: result.seconds,
        }
    }

    fn add(&mut self, other: &Totals) {
        self.files += other.files;
        self.files_empty += other.files_empty;
        self.files_not_run += other.files_not_run;
        self.files_not_listed += other.files_not_listed;
        self.statements += other.statements;
        self.passed += other.passed;
        self.failed += other.failed;
        self.failed_everywhere += other.failed_everywhere;
        self.skipped += other.skipped;
        self.skipped_by_file += other.skipped_by_file;
        self.statements_not_run += other.statements_not_run;
        self.without_rule += other.without_rule;
        self.gpu += other.gpu;
        self.launched += other.launched;
        for (code, count) in &other.fallbacks {
            *self.fallbacks.entry(code.clone()).or_default() += count;
        }
        self.seconds += other.seconds;
    }
}

/// Whether `part` is `file`, or lies in its folder and may be included by it.
fn belongs(part: &str, file: &str) -> bool {
    let folder = |path: &str| path.rsplit_once('/').map(|(folder, _)| folder.to_owned()).unwrap_or_default();
    part == file || (part.ends_with(".part") && folder(part).starts_with(&folder(file)))
}

/// Where a failure stands, in words.
pub(super) fn place(failure: &Failure, file: &str) -> String {
    let part = format!("{}:{}", failure.place.file, failure.place.line);
    if failure.place.file == file { part } else { format!("{part}, included by {file}") }
}

fn describe(skip: &Skip) -> String {
    match skip.line {
        _ if skip.whole_file => skip.file.clone(),
        Some(line) => format!("{}:{line}", skip.file),
        None => format!("{}: {}", skip.file, skip.sql),
    }
}

/// Counts by code, or `none`.
pub(super) fn fallbacks(counts: &BTreeMap<String, usize>, none: &str) -> String {
    if counts.is_empty() {
        return none.to_owned();
    }
    counts.iter().map(|(code, count)| format!("{code} {count}")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(file: FileResult, ends: Vec<End>, panics: &[&str], skips: &str) -> Report {
        let panics = panics.iter().map(|text| ((*text).to_owned(), 1)).collect();
        let results = Results { files: vec![file], ends, panics };
        let skips = Skips::parse(skips).unwrap();
        Report::new(vec![PassResult { options: "exchanges keep".to_owned(), results }], &skips, None)
    }

    #[test]
    fn what_does_not_run_needs_a_reason() {
        let file = || FileResult {
            file: "a.slt".to_owned(),
            not_run: Some("no feature".to_owned()),
            ..FileResult::default()
        };
        let listed = "file: a.slt\nfails: to run\nreason: avro";
        assert!(!report(file(), vec![], &[], "").is_good());
        let good = report(file(), vec![], &[], listed);
        assert!(good.is_good());
        assert!(
            good.markdown().contains("| a.slt | whole file | 1 | to run | avro |"),
            "{}",
            good.markdown()
        );
        let ran = FileResult { not_run: None, statements: 1, ..file() };
        assert!(!report(ran, vec![], &[], listed).is_good());
    }

    #[test]
    fn ends_and_own_panics_are_failures() {
        let file = || FileResult { file: "a.slt".to_owned(), statements: 1, ..FileResult::default() };
        assert!(report(file(), vec![], &["arrow-array-59.0.0/src/x.rs:1 of another's"], "").is_good());
        let panic = report(file(), vec![], &["src/memory/poll.rs:1 ours"], "");
        assert!(!panic.is_good() && panic.summary().contains("PANIC, 1 times: src/memory/poll.rs:1 ours"));
        let end = End { how: "signal: 11".to_owned(), files: vec!["a.slt".to_owned()] };
        let ended = report(file(), vec![end], &[], "");
        assert!(!ended.is_good() && ended.summary().contains("ENDED: signal: 11, while a.slt ran"));
    }

    #[test]
    fn empty_files_are_named() {
        let text = report(FileResult { file: "a.slt".to_owned(), ..FileResult::default() }, vec![], &[], "")
            .markdown();
        assert!(
            text.contains("| of them without a statement | 1 |") && text.contains("| a.slt | empty |"),
            "{text}"
        );
    }
}
