//! docs/conformance.md. Nothing in it changes from run to run: no times, no machine.

use std::fmt::Write;

use super::report::{FileReport, Pass, Report, Totals, fallbacks, place};

/// One of the totals.
type Count = fn(&Totals) -> usize;

impl Report {
    /// The document.
    pub fn markdown(&self) -> String {
        let mut text = String::new();
        // Writing to a String does not fail.
        self.write_markdown(&mut text).ok();
        text
    }

    fn write_markdown(&self, out: &mut String) -> std::fmt::Result {
        let version = self.suite_version.as_deref().unwrap_or("of unknown version");
        writeln!(out, "# Conformance\n")?;
        writeln!(
            out,
            "Made by `make conformance`, which runs the test files of datafusion-sqllogictest {version} with the rule forced \
             (see [CONTRIBUTING.md](../CONTRIBUTING.md#conformance)). Do not edit. Times change from run to run: they are \
             in `--json`, and a run ends with its slowest files.\n"
        )?;
        writeln!(out, "Passes, each over all files:\n")?;
        for (pass, number) in self.passes.iter().zip(1..) {
            writeln!(out, "{number}. {}", pass.options)?;
        }
        self.write_totals(out)?;
        self.write_known(out)?;
        self.write_unknown(out)?;
        self.write_files(out)
    }

    fn write_totals(&self, out: &mut String) -> std::fmt::Result {
        let rows: [(&str, Count); 14] = [
            ("files", |totals| totals.files),
            ("of them without a statement", |totals| totals.files_empty),
            ("of them not run", |totals| totals.files_not_run),
            ("statements", |totals| totals.statements),
            ("passed", |totals| totals.passed),
            ("failed with the rule", |totals| totals.failed),
            ("failed without the rule too", |totals| totals.failed_everywhere),
            ("skipped: failed as listed below", |totals| totals.skipped),
            ("run without the rule: plans, settings", |totals| totals.without_rule),
            ("with a GPU node", |totals| totals.gpu),
            ("with a kernel whose answer counted", |totals| totals.launched),
            ("with a fallback, once a code", |totals| totals.fallbacks.values().sum()),
            ("not run: their files leave them out", |totals| totals.skipped_by_file),
            ("not run: behind one that ended the process", |totals| totals.statements_not_run),
        ];
        let cells = |cells: Vec<String>| format!("| {} |", cells.join(" | "));
        let passes = || self.passes.iter();
        let head = passes().zip(1..).map(|(_, number)| format!("pass {number}"));
        writeln!(out, "\n{}", cells(std::iter::once(String::new()).chain(head).collect()))?;
        writeln!(out, "|{}", "---|".repeat(self.passes.len() + 1))?;
        for (name, count) in rows {
            let counts = passes().map(|pass| count(&pass.totals).to_string());
            writeln!(out, "{}", cells(std::iter::once(name.to_owned()).chain(counts).collect()))?;
        }
        let mut codes: Vec<&String> = passes().flat_map(|pass| pass.totals.fallbacks.keys()).collect();
        codes.sort_unstable();
        codes.dedup();
        for code in codes {
            let counts = passes()
                .map(|pass| pass.totals.fallbacks.get(code).map_or_else(|| "0".to_owned(), usize::to_string));
            writeln!(out, "{}", cells(std::iter::once(format!("`{code}`")).chain(counts).collect()))?;
        }
        Ok(())
    }

    /// Failures that the list knows.
    fn write_known(&self, out: &mut String) -> std::fmt::Result {
        if self.known.is_empty() {
            return Ok(());
        }
        writeln!(out, "\n## Skipped\n\nFrom `tests/conformance/skips.txt`.\n")?;
        writeln!(out, "| file | statement | times | fails | reason |\n|---|---|---|---|---|")?;
        for (skip, times) in &self.known {
            let fails = match (skip.whole_file, skip.everywhere) {
                (true, _) => "to run",
                (false, true) => "without the rule too",
                (false, false) => "with the rule",
            };
            let statement = match skip.line {
                _ if skip.whole_file => "whole file".to_owned(),
                Some(line) => format!("line {line}"),
                None => format!("`{}`", skip.sql.replace('|', "\\|")),
            };
            writeln!(out, "| {} | {statement} | {times} | {fails} | {} |", skip.file, skip.reason)?;
        }
        Ok(())
    }

    /// What makes the run fail.
    fn write_unknown(&self, out: &mut String) -> std::fmt::Result {
        let mut lines: Vec<String> = vec![];
        for (pass, number) in self.passes.iter().zip(1..) {
            let found = pass.files.iter().flat_map(FileReport::unknown_lines);
            let ends = pass.ends.iter().map(|end| format!("the process ended: {end}"));
            let panics = pass.panics.keys().filter(|text| crate::panics::is_own(text));
            let panics = panics.map(|text| format!("panic: {text}"));
            lines.extend(found.chain(ends).chain(panics).map(|line| format!("pass {number}: {line}")));
        }
        if lines.is_empty() {
            return Ok(());
        }
        writeln!(out, "\n## Failed\n")?;
        lines.iter().try_for_each(|line| writeln!(out, "- {line}"))
    }

    fn write_files(&self, out: &mut String) -> std::fmt::Result {
        let Some((first, others)) = self.passes.split_first() else { return Ok(()) };
        writeln!(out, "\n## Files\n")?;
        first.write_table(out, &|_| true)?;
        for (pass, number) in others.iter().zip(2..) {
            let figures = |totals: &Totals| Totals { seconds: 0.0, ..totals.clone() };
            let differs = |file: &FileReport| {
                let same = first.files.iter().find(|other| other.result.file == file.result.file);
                same.is_none_or(|same| figures(&same.totals) != figures(&file.totals))
            };
            writeln!(out, "\n## Files with other figures in pass {number}: {}\n", pass.options)?;
            pass.write_table(out, &differs)?;
        }
        Ok(())
    }
}

impl Pass {
    fn write_table(&self, out: &mut String, wanted: &dyn Fn(&FileReport) -> bool) -> std::fmt::Result {
        writeln!(
            out,
            "| file | statements | passed | failed | skipped | not run | without rule | GPU node | kernel | fallbacks |"
        )?;
        writeln!(out, "|---|---|---|---|---|---|---|---|---|---|")?;
        for file in self.files.iter().filter(|file| wanted(file)) {
            file.write_row(out)?;
        }
        Ok(())
    }
}

impl FileReport {
    fn write_row(&self, out: &mut String) -> std::fmt::Result {
        let totals = &self.totals;
        let name = &self.result.file;
        if let Some(reason) = &self.result.not_run {
            return writeln!(out, "| {name} | not run: {reason} | | | | | | | | |");
        }
        if self.result.is_empty() {
            return writeln!(out, "| {name} | empty | | | | | | | | |");
        }
        writeln!(
            out,
            "| {name} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
            totals.statements,
            totals.passed,
            totals.failed + totals.failed_everywhere,
            totals.skipped,
            totals.skipped_by_file + totals.statements_not_run,
            totals.without_rule,
            totals.gpu,
            totals.launched,
            fallbacks(&totals.fallbacks, ""),
        )
    }

    /// What the list does not know, a line each.
    fn unknown_lines(&self) -> Vec<String> {
        let name = &self.result.file;
        let not_run = (self.totals.files_not_listed > 0).then(|| format!("{name} does not run"));
        let failures = self.unknown().map(|failure| {
            let too = if failure.without_rule { " (without the rule too)" } else { "" };
            format!("{}{too}", place(failure, name))
        });
        failures.chain(not_run).collect()
    }
}
