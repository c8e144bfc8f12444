//! The list of statements that are known to fail.
//!
//! Entries are separated by empty lines; a line that starts with `#` is a comment:
//!
//! ```text
//! file: order.slt
//! sql: ORDER BY column1 LIMIT 3
//! fails: with the rule
//! reason: which of the rows with equal keys come first is not defined
//! ```
//!
//! `sql` is a part of the statement, spaces aside; `line` its line in the file, instead. `fails` is `with the rule` or
//! `everywhere`: the second for statements that fail without the GPU too. An entry for a whole file that cannot be run has
//! neither `sql` nor `line`, and `fails: to run`.

use std::path::Path;

use datafusion::error::Result;

use crate::error::problem;

use super::records::Failure;

/// The list.
#[derive(Debug, Default)]
pub struct Skips {
    /// Its entries, in the order of the file.
    pub entries: Vec<Skip>,
}

/// One entry.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Skip {
    /// The test file, or the included one, below `test_files`.
    pub file: String,
    /// A part of the statement.
    pub sql: String,
    /// Its line.
    pub line: Option<u32>,
    /// It fails without the GPU too.
    pub everywhere: bool,
    /// The file as a whole does not run.
    pub whole_file: bool,
    /// Why.
    pub reason: String,
}

impl Skips {
    /// Reads the list.
    ///
    /// # Errors
    /// A missing file, and entries that are not complete.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| problem(format!("the list of known failures {}: {error}", path.display())))?;
        Self::parse(&text).map_err(|error| problem(format!("{}: {error}", path.display())))
    }

    /// Reads the text of a list.
    ///
    /// # Errors
    /// Entries that are not complete.
    pub fn parse(text: &str) -> Result<Self> {
        let mut entries = vec![];
        let mut block: Vec<&str> = vec![];
        for line in text.lines().map(str::trim).chain([""]) {
            if line.starts_with('#') {
                continue;
            }
            if !line.is_empty() {
                block.push(line);
            } else if !block.is_empty() {
                entries.push(Skip::parse(&block)?);
                block.clear();
            }
        }
        Ok(Self { entries })
    }

    /// Number of the entry that covers a failure.
    pub fn find(&self, failure: &Failure) -> Option<usize> {
        self.entries.iter().position(|entry| entry.covers(failure))
    }

    /// Number of the entry for a file that does not run.
    pub fn find_file(&self, file: &str) -> Option<usize> {
        self.entries.iter().position(|entry| entry.whole_file && entry.file == file)
    }
}

impl Skip {
    fn parse(block: &[&str]) -> Result<Self> {
        let mut skip = Skip::default();
        let mut fails = None;
        for line in block {
            let Some((key, value)) = line.split_once(':') else {
                return Err(problem(format!("no key in '{line}'")));
            };
            let value = value.trim();
            match key {
                "file" => value.clone_into(&mut skip.file),
                "sql" => skip.sql = words(value),
                "line" => {
                    let number =
                        value.parse().map_err(|_| problem(format!("'{value}' is no line number")))?;
                    skip.line = Some(number);
                }
                "fails" => fails = Some(value),
                "reason" => value.clone_into(&mut skip.reason),
                _ => return Err(problem(format!("unknown key '{key}'"))),
            }
        }
        (skip.everywhere, skip.whole_file) = match fails {
            Some("with the rule") => (false, false),
            Some("everywhere") => (true, false),
            Some("to run") => (false, true),
            _ => {
                return Err(problem(format!(
                    "'fails' has to be 'with the rule', 'everywhere' or 'to run' in {block:?}"
                )));
            }
        };
        let named = match skip.whole_file {
            true => skip.sql.is_empty() && skip.line.is_none(),
            false => skip.sql.is_empty() == skip.line.is_some(),
        };
        if skip.file.is_empty() || skip.reason.is_empty() || !named {
            return Err(problem(format!(
                "an entry needs file, reason, and either sql or line, neither for a whole file: {block:?}"
            )));
        }
        Ok(skip)
    }

    fn covers(&self, failure: &Failure) -> bool {
        !self.whole_file
            && self.file == failure.place.file
            && self.everywhere == failure.without_rule
            && self.line.is_none_or(|line| line == failure.place.line)
            && (self.sql.is_empty() || words(&failure.place.sql).contains(&self.sql))
    }
}

/// The text with single spaces.
fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::super::records::Place;
    use super::*;

    fn failure(file: &str, line: u32, sql: &str, without_rule: bool) -> Failure {
        let place = Place { file: file.to_owned(), line, sql: sql.to_owned() };
        Failure { place, message: String::new(), without_rule, gpu: true }
    }

    #[test]
    fn finds_entries() {
        let text = "# c\nfile: a.slt\nsql: SELECT  b\nfails: with the rule\nreason: r\n\n\nfile: a.slt\nline: 7\nfails: everywhere\nreason: s\n";
        let skips = Skips::parse(text).unwrap();
        assert_eq!(skips.entries.len(), 2);
        assert_eq!(skips.find(&failure("a.slt", 1, "EXPLAIN SELECT\n b", false)), Some(0));
        assert_eq!(skips.find(&failure("a.slt", 1, "SELECT b", true)), None);
        assert_eq!(skips.find(&failure("b.slt", 1, "SELECT b", false)), None);
        assert_eq!(skips.find(&failure("a.slt", 7, "x", true)), Some(1));
        assert_eq!(skips.find(&failure("a.slt", 8, "x", true)), None);
        let skips = Skips::parse("file: a.slt\nfails: to run\nreason: r").unwrap();
        assert_eq!((skips.find_file("a.slt"), skips.find_file("b.slt")), (Some(0), None));
        assert_eq!(skips.find(&failure("a.slt", 0, "", false)), None);
    }

    #[test]
    fn refuses_incomplete_entries() {
        for text in [
            "file: a",
            "file: a\nsql: b\nfails: with the rule",
            "file: a\nfails: everywhere\nreason: r",
            "file: a\nsql: b\nline: 3\nfails: everywhere\nreason: r",
            "file: a\nsql: b\nfails: sometimes\nreason: r",
            "file: a\nsql: b\nfails: to run\nreason: r",
            "file: a\nsql: b\nwhy: c\nfails: everywhere\nreason: r",
        ] {
            assert!(Skips::parse(text).is_err(), "{text}");
        }
    }
}
