//! Flags of `fuzz`, and what is checked before the work.

use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};

use clap::builder::RangedU64ValueParser;
use clap::value_parser;
use datafusion::error::{DataFusionError, Result};

use crate::error::problem;

use super::QUERIES;
use super::plant::Bug;

/// Queries where neither their number nor a time is given.
const QUERIES_BY_DEFAULT: u64 = 200;
/// Seconds that can be asked for: some days.
const MOST_SECONDS: u64 = 1_000_000;

fn from_one() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..)
}

/// Minutes that come to an end.
fn minutes(text: &str) -> std::result::Result<f64, String> {
    match text.parse::<f64>() {
        Ok(minutes) if minutes.is_finite() && minutes > 0.0 => Ok(minutes),
        _ => Err("a number above 0 is needed".to_string()),
    }
}

/// Flags of `fuzz`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// The seed: the same one gives the same queries, tables and options
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Ends after this many queries; 200 unless --minutes is given
    #[arg(long, value_name = "N", value_parser = value_parser!(u64).range(1..))]
    pub queries: Option<u64>,
    /// Ends after this many minutes
    #[arg(long, value_name = "T", value_parser = minutes)]
    pub minutes: Option<f64>,
    /// Number of the first query
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = value_parser!(u64).range(..QUERIES))]
    pub from: u64,
    /// Forced runs of each query, over several datasets and options
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = from_one())]
    pub runs: usize,
    /// Queries that run at a time
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = from_one().range(..=1024))]
    pub jobs: usize,
    /// Where scripts of failures are written
    #[arg(long, value_name = "DIR", default_value = "fuzz-failures")]
    pub out: PathBuf,
    /// Writes the numbers as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Runs a script of a failure again, with the rule off and forced
    #[arg(long, value_name = "FILE", conflicts_with_all = ["queries", "minutes", "from"])]
    pub replay: Option<PathBuf>,
    /// Seconds that a query may take
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = value_parser!(u64).range(1..=MOST_SECONDS))]
    pub timeout: u64,
    /// Seconds that making a failure smaller may take
    #[arg(long, value_name = "SECONDS", default_value_t = 120, value_parser = value_parser!(u64).range(..=MOST_SECONDS))]
    pub shrink: u64,
    /// Ends after this many failures
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = from_one())]
    pub failures: usize,
    /// The adapter: its number or a part of its name
    #[arg(long, value_name = "ADAPTER", default_value = "")]
    pub adapter: String,
    /// Changes forced answers to queries that hold this text: a planted bug, to see that it is found
    #[arg(long, value_name = "TEXT", hide = true)]
    pub plant: Option<String>,
    /// What --plant changes
    #[arg(long, value_enum, default_value = "row", hide = true)]
    pub bug: Bug,
}

impl Args {
    /// Numbers of the queries that are asked for: the first, and the one after the last.
    ///
    /// # Errors
    /// Queries beyond the last that a seed has.
    pub fn range(&self) -> Result<(u64, u64)> {
        let count = match (self.queries, self.minutes) {
            (Some(count), _) => count,
            (None, Some(_)) => QUERIES.saturating_sub(self.from),
            (None, None) => QUERIES_BY_DEFAULT,
        };
        match self.from.checked_add(count) {
            Some(end) if end <= QUERIES => Ok((self.from, end)),
            _ => Err(problem(format!(
                "--from {} leaves no {count} queries: the last one of a seed is {}; give fewer --queries",
                self.from,
                QUERIES - 1
            ))),
        }
    }

    /// Says that failures or the report can't be written before the work, not after it.
    ///
    /// # Errors
    /// A folder or a file that can't be written, with its path.
    pub fn check_outputs(&self) -> Result<()> {
        let folder = &self.out;
        let is_new = !folder.exists();
        let probe = fs::create_dir_all(folder).and_then(|()| tempfile::tempfile_in(folder)).map(drop);
        if is_new {
            // It is made again when there is something to put into it.
            drop(fs::remove_dir(folder));
        }
        probe.map_err(|error| unwritable(folder, &error))?;
        let Some(path) = &self.json else { return Ok(()) };
        let opened = OpenOptions::new().create(true).append(true).open(path);
        opened.map(drop).map_err(|error| unwritable(path, &error))
    }
}

/// A file or folder that can't be written.
pub fn unwritable(path: &Path, error: &dyn std::fmt::Display) -> DataFusionError {
    problem(format!("cannot write '{}': {error}", path.display()))
}
