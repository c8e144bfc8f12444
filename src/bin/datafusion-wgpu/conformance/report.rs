//! What a run found, for people and for programs.

use std::collections::BTreeMap;
use std::fmt::Write;

use datafusion::error::Result;
use serde::Serialize;

use crate::error::problem;

use super::records::{Failure, FileResult};
use super::skips::{Skip, Skips};

/// The results of all files, held against the list of known failures.
#[derive(Debug, Serialize)]
pub struct Report {
    suite_version: Option<String>,
    totals: Totals,
    /// Entries of the list that no failure of these files needs.
    stale: Vec<String>,
    files: Vec<FileReport>,
    #[serde(skip)]
    known: Vec<(Skip, usize)>,
}

/// Sums over files.
#[derive(Debug, Default, Clone, PartialEq, Serialize)]
struct Totals {
    files: usize,
    files_not_run: usize,
    statements: usize,
    passed: usize,
    /// Failed with the rule, and not in the list.
    failed: usize,
    /// Failed with and without the rule, and not in the list.
    failed_everywhere: usize,
    /// Failed as the list says.
    skipped: usize,
    without_rule: usize,
    gpu: usize,
    launched: usize,
    fallbacks: BTreeMap<String, usize>,
    seconds: f64,
}

#[derive(Debug, Serialize)]
struct FileReport {
    #[serde(flatten)]
    result: FileResult,
    totals: Totals,
    /// For each failure the reason that the list gives.
    reasons: Vec<Option<String>>,
}

impl Report {
    /// Counts the results; `suite_version` is that of datafusion-sqllogictest.
    pub fn new(results: Vec<FileResult>, skips: &Skips, suite_version: Option<String>) -> Self {
        let mut used = vec![0; skips.entries.len()];
        let mut totals = Totals::default();
        let mut files = vec![];
        for result in results {
            let found: Vec<Option<usize>> =
                result.failures.iter().map(|failure| skips.find(failure)).collect();
            for entry in found.iter().flatten() {
                used[*entry] += 1;
            }
            let file = Totals::of(&result, &found);
            totals.add(&file);
            let reason = |entry: &Option<usize>| entry.map(|entry| skips.entries[entry].reason.clone());
            let reasons = found.iter().map(reason).collect();
            files.push(FileReport { result, totals: file, reasons });
        }
        let ran = |skip: &Skip| {
            files.iter().any(|file| file.result.not_run.is_none() && belongs(&skip.file, &file.result.file))
        };
        let entries = || skips.entries.iter().zip(&used);
        let stale = entries()
            .filter(|(skip, used)| **used == 0 && ran(skip))
            .map(|(skip, _)| describe(skip))
            .collect();
        let known =
            entries().filter(|(_, used)| **used > 0).map(|(skip, used)| (skip.clone(), *used)).collect();
        Self { suite_version, totals, stale, files, known }
    }

    /// No failure that the list does not know, and no entry without a failure.
    pub fn is_good(&self) -> bool {
        self.totals.failed == 0 && self.totals.failed_everywhere == 0 && self.stale.is_empty()
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
        for file in &self.files {
            for (failure, reason) in file.result.failures.iter().zip(&file.reasons) {
                if reason.is_none() {
                    let heading = if failure.without_rule { "fails without the rule too" } else { "FAILED" };
                    let place = place(failure, &file.result.file);
                    text.push_str(&format!("\n{heading}: {place}\n{}\n", failure.message));
                }
            }
        }
        for entry in &self.stale {
            text.push_str(&format!("\nSTALE entry in the list of known failures: {entry}\n"));
        }
        let totals = &self.totals;
        text.push_str(&format!(
            "\n{} files, {} not run; {} statements: {} passed, {} failed, {} failed without the rule too, {} skipped\n\
             {} ran without the rule; a GPU node in {}, with a kernel in {}; fallbacks: {}\n\
             {:.0} s over all files\n",
            totals.files,
            totals.files_not_run,
            totals.statements,
            totals.passed,
            totals.failed,
            totals.failed_everywhere,
            totals.skipped,
            totals.without_rule,
            totals.gpu,
            totals.launched,
            fallbacks(&totals.fallbacks, "none"),
            totals.seconds,
        ));
        text
    }

    /// The document. Nothing in it changes from run to run: no times, no machine.
    pub fn markdown(&self) -> String {
        let mut text = String::new();
        // Writing to a String does not fail.
        self.write_markdown(&mut text).ok();
        text
    }

    fn write_markdown(&self, out: &mut String) -> std::fmt::Result {
        let totals = &self.totals;
        let version = self.suite_version.as_deref().unwrap_or("of unknown version");
        writeln!(out, "# Conformance\n")?;
        writeln!(
            out,
            "Made by `make conformance`, which runs the test files of datafusion-sqllogictest {version} with the rule forced \
             (see [CONTRIBUTING.md](../CONTRIBUTING.md#conformance)). Do not edit.\n"
        )?;
        writeln!(out, "| | |\n|---|---|")?;
        let rows: [(&str, usize); 9] = [
            ("files", totals.files),
            ("of them not run", totals.files_not_run),
            ("statements", totals.statements),
            ("passed", totals.passed),
            ("failed with the rule", totals.failed),
            ("failed without the rule too", totals.failed_everywhere),
            ("skipped: failed as listed below", totals.skipped),
            ("run without the rule: plans, settings", totals.without_rule),
            ("with a GPU node", totals.gpu),
        ];
        for (name, count) in rows {
            writeln!(out, "| {name} | {count} |")?;
        }
        writeln!(out, "| with a kernel launched | {} |", totals.launched)?;
        for (code, count) in &totals.fallbacks {
            writeln!(out, "| with the fallback `{code}` | {count} |")?;
        }
        self.write_failures(out)?;
        self.write_files(out)
    }

    fn write_failures(&self, out: &mut String) -> std::fmt::Result {
        if !self.known.is_empty() {
            writeln!(out, "\n## Skipped\n\nFrom `tests/conformance/skips.txt`.\n")?;
            writeln!(out, "| file | statement | times | fails | reason |\n|---|---|---|---|---|")?;
            for (skip, times) in &self.known {
                let fails = if skip.everywhere { "without the rule too" } else { "with the rule" };
                let statement = match skip.line {
                    Some(line) => format!("line {line}"),
                    None => format!("`{}`", skip.sql.replace('|', "\\|")),
                };
                writeln!(out, "| {} | {statement} | {times} | {fails} | {} |", skip.file, skip.reason)?;
            }
        }
        let unknown: Vec<String> = self.files.iter().flat_map(FileReport::unknown).collect();
        if !unknown.is_empty() {
            writeln!(out, "\n## Failed\n")?;
            for line in unknown {
                writeln!(out, "- {line}")?;
            }
        }
        Ok(())
    }

    fn write_files(&self, out: &mut String) -> std::fmt::Result {
        writeln!(out, "\n## Files\n")?;
        writeln!(
            out,
            "| file | statements | passed | failed | skipped | without rule | GPU node | kernel | fallbacks |"
        )?;
        writeln!(out, "|---|---|---|---|---|---|---|---|---|")?;
        for file in &self.files {
            let totals = &file.totals;
            if let Some(reason) = &file.result.not_run {
                writeln!(out, "| {} | not run: {reason} | | | | | | | |", file.result.file)?;
                continue;
            }
            writeln!(
                out,
                "| {} | {} | {} | {} | {} | {} | {} | {} | {} |",
                file.result.file,
                totals.statements,
                totals.passed,
                totals.failed + totals.failed_everywhere,
                totals.skipped,
                totals.without_rule,
                totals.gpu,
                totals.launched,
                fallbacks(&totals.fallbacks, ""),
            )?;
        }
        Ok(())
    }
}

impl FileReport {
    /// Failures that the list does not know, a line each.
    fn unknown(&self) -> Vec<String> {
        let failures = self.result.failures.iter().zip(&self.reasons).filter(|(_, reason)| reason.is_none());
        let line = |failure: &Failure| {
            let too = if failure.without_rule { " (without the rule too)" } else { "" };
            format!("{}{too}", place(failure, &self.result.file))
        };
        failures.map(|(failure, _)| line(failure)).collect()
    }
}

impl Totals {
    fn of(result: &FileResult, found: &[Option<usize>]) -> Self {
        let unknown = |without_rule: bool| {
            let failures = result.failures.iter().zip(found);
            failures
                .filter(|(failure, entry)| entry.is_none() && failure.without_rule == without_rule)
                .count()
        };
        Totals {
            files: 1,
            files_not_run: usize::from(result.not_run.is_some()),
            statements: result.statements,
            passed: result.statements.saturating_sub(result.failures.len()),
            failed: unknown(false),
            failed_everywhere: unknown(true),
            skipped: found.iter().flatten().count(),
            without_rule: result.without_rule,
            gpu: result.gpu,
            launched: result.launched,
            fallbacks: result.fallbacks.clone(),
            seconds: result.seconds,
        }
    }

    fn add(&mut self, other: &Totals) {
        self.files += other.files;
        self.files_not_run += other.files_not_run;
        self.statements += other.statements;
        self.passed += other.passed;
        self.failed += other.failed;
        self.failed_everywhere += other.failed_everywhere;
        self.skipped += other.skipped;
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

fn place(failure: &Failure, file: &str) -> String {
    let part = format!("{}:{}", failure.file, failure.line);
    if failure.file == file { part } else { format!("{part}, included by {file}") }
}

fn describe(skip: &Skip) -> String {
    match skip.line {
        Some(line) => format!("{}:{line}", skip.file),
        None => format!("{}: {}", skip.file, skip.sql),
    }
}

fn fallbacks(counts: &BTreeMap<String, usize>, none: &str) -> String {
    if counts.is_empty() {
        return none.to_owned();
    }
    counts.iter().map(|(code, count)| format!("{code} {count}")).collect::<Vec<_>>().join(", ")
}
