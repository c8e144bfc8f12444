//! What a suite is: tables in a folder, and numbered queries over them.

use std::ops::RangeInclusive;
use std::path::PathBuf;

use datafusion::error::Result;
use indicatif::ProgressBar;

/// How large a suite's data is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Size {
    /// TPC-H's scale factor.
    Scale(f64),
    /// Rows of the largest table.
    Rows(u64),
}

/// Writes the data, and tells how far it is.
pub type Make = Box<dyn Fn(&ProgressBar) -> Result<()> + Send>;

/// A suite of queries.
pub struct Suite {
    /// Name, as in the command.
    pub name: &'static str,
    pub size: Size,
    /// Holds one folder of Parquet files a table.
    pub folder: PathBuf,
    pub tables: Vec<&'static str>,
    pub queries: Vec<Query>,
    /// Makes the files that are not there.
    pub make: Make,
}

/// One query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Query {
    /// From 1.
    pub number: usize,
    pub title: String,
    pub sql: String,
}

impl Suite {
    /// Makes the files that are not there.
    ///
    /// # Errors
    /// A folder that holds something else or can't be written.
    pub fn make_data(&self, progress: &ProgressBar) -> Result<()> {
        (self.make)(progress)
    }

    /// Keeps the queries of these numbers, in the suite's order; all when there is no number.
    ///
    /// # Errors
    /// A number without a query.
    pub fn keep(&mut self, numbers: &[RangeInclusive<usize>]) -> std::result::Result<(), String> {
        let last = self.queries.len();
        if let Some(range) = numbers.iter().find(|range| *range.start() == 0 || *range.end() > last) {
            let number = if *range.end() > last { range.end() } else { range.start() };
            return Err(format!("there is no query {number} in {}: it has 1 to {last}", self.name));
        }
        if !numbers.is_empty() {
            self.queries.retain(|query| numbers.iter().any(|range| range.contains(&query.number)));
        }
        Ok(())
    }
}

/// The queries of a text: statements that end with `;`, numbered from 1, each below a comment with its title.
pub fn queries(text: &str) -> Vec<Query> {
    let statements = text.split(';').map(str::trim).filter(|statement| !statement.is_empty());
    statements.zip(1..).map(|(statement, number)| query(number, statement)).collect()
}

/// A query below a comment with its title.
pub fn query(number: usize, text: &str) -> Query {
    let (title, sql): (Vec<&str>, Vec<&str>) =
        text.trim().lines().partition(|line| line.trim_start().starts_with("--"));
    let title = title.iter().map(|line| line.trim_start_matches(['-', ' '])).collect::<Vec<_>>().join(" ");
    Query { number, title, sql: sql.join("\n") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn suite() -> Suite {
        Suite {
            name: "some",
            size: Size::Rows(1),
            folder: PathBuf::new(),
            tables: vec![],
            queries: queries("-- One\nSELECT 1;\n\n-- Two\nSELECT\n  2;\n-- Three\nSELECT 3;\n"),
            make: Box::new(|_| Ok(())),
        }
    }

    #[test]
    fn queries_have_numbers_titles_and_no_comments() {
        let suite = suite();
        assert_eq!(suite.queries.len(), 3);
        let two = Query { number: 2, title: "Two".to_owned(), sql: "SELECT\n  2".to_owned() };
        assert_eq!(suite.queries[1], two);
    }

    #[test]
    fn only_queries_that_exist_can_be_kept() {
        let mut kept = suite();
        kept.keep(&[3..=3, 1..=1]).unwrap();
        assert_eq!(kept.queries.iter().map(|query| query.number).collect::<Vec<_>>(), [1, 3]);
        for (range, number) in [(4..=4, "4"), (2..=9, "9"), (0..=2, "0")] {
            let error = suite().keep(&[range]).unwrap_err();
            assert!(error.contains(&format!("no query {number} in some: it has 1 to 3")), "{error}");
        }
    }
}
