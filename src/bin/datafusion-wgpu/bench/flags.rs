//! Flags of the suites.

use std::ops::RangeInclusive;
use std::path::PathBuf;

use clap::ValueEnum;
use datafusion::error::Result;
use datafusion::prelude::SessionConfig;
use datafusion_wgpu::{FallbackPolicy, GpuOptions};

use crate::gpu;

/// Flags of `bench tpch`.
#[derive(Debug, Clone, clap::Args)]
#[group(id = "bench_tpch_flags")]
pub struct TpchArgs {
    /// TPC-H scale factor, from 0.001 to 1000; 1 gives 6 million rows in lineitem
    #[arg(short, long, value_name = "FACTOR", default_value = "1", value_parser = crate::tpch_data::scale)]
    pub scale: f64,
    #[command(flatten)]
    pub common: Common,
}

/// Flags of the suites that are sized by their rows.
#[derive(Debug, Clone, clap::Args)]
#[group(id = "bench_rows_flags")]
pub struct RowsArgs {
    /// Rows of the largest table, such as 10000000 or 1e7
    #[arg(short, long, value_name = "ROWS", default_value = "1e7", value_parser = rows)]
    pub rows: u64,
    #[command(flatten)]
    pub common: Common,
}

/// Flags of every suite.
#[derive(Debug, Clone, clap::Args)]
#[group(id = "bench_common_flags")]
pub struct Common {
    /// Queries to run, such as 1,6 or 1-5,14; all without it
    #[arg(short, long, value_name = "QUERIES", value_delimiter = ',', value_parser = numbers)]
    pub queries: Vec<RangeInclusive<usize>>,
    /// Measured runs of a query; one more comes before them
    #[arg(long, value_name = "NUMBER", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub runs: u32,
    /// Where the rows come from, one or both
    #[arg(
        long, value_name = "SOURCES", value_enum, ignore_case = true, value_delimiter = ',', num_args = 1..,
        default_values_t = [Source::Parquet, Source::Memory]
    )]
    pub sources: Vec<Source>,
    /// Folder for the data, which is made once
    #[arg(long, value_name = "DIR", default_value = "data/bench")]
    pub data: PathBuf,
    /// Partitions of a plan, on the CPU and on the GPU; one a core without it
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub partitions: Option<u32>,
    /// The adapter's read bandwidth in GB/s; measured without it
    #[arg(long, value_name = "GB/S", value_parser = positive)]
    pub peak: Option<f64>,
    /// Write everything that was measured to FILE
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Draw the ratios of the times into FILE, as SVG
    #[arg(long, value_name = "FILE.svg", value_parser = svg)]
    pub plot: Option<PathBuf>,
    #[command(flatten)]
    pub gpu: gpu::Args,
}

/// Where the rows of the tables come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Source {
    /// Parquet files
    Parquet,
    /// Arrow batches that were read before
    Memory,
}

impl Source {
    /// In a sentence.
    pub fn name(self) -> &'static str {
        match self {
            Source::Parquet => "parquet",
            Source::Memory => "memory",
        }
    }
}

impl Common {
    /// The configuration of the sessions. Fallbacks are counted and shown, so they are not logged unless asked for.
    ///
    /// # Errors
    /// An environment variable with a value that its option does not take.
    pub fn config(&self) -> Result<SessionConfig> {
        let options = datafusion::config::ConfigOptions::from_env()
            .map_err(|e| e.context("an environment variable DATAFUSION_*"))?;
        let mut config = SessionConfig::from(options);
        if let Some(partitions) = self.partitions {
            config = config.with_target_partitions(partitions as usize);
        }
        let mut options = GpuOptions::default();
        options.fallback = FallbackPolicy::Silent;
        self.gpu.apply(config.with_option_extension(options))
    }
}

fn numbers(text: &str) -> std::result::Result<RangeInclusive<usize>, String> {
    let wrong = || "expected numbers and ranges such as 1,6 or 1-5".to_owned();
    let number = |text: &str| text.trim().parse::<usize>().map_err(|_| wrong());
    let range = match text.split_once('-') {
        Some((first, last)) => number(first)?..=number(last)?,
        None => number(text)?..=number(text)?,
    };
    if range.is_empty() { Err(wrong()) } else { Ok(range) }
}

/// Keys are 32-bit integers, in the joins up to 1.1 times the rows.
const MOST_ROWS: f64 = 1e9;

fn rows(text: &str) -> std::result::Result<u64, String> {
    match text.parse::<f64>() {
        Ok(rows) if (100.0..=MOST_ROWS).contains(&rows) && rows.fract() == 0.0 => Ok(rows as u64),
        _ => Err(format!("expected a whole number from 100 to {MOST_ROWS:e}")),
    }
}

fn svg(text: &str) -> std::result::Result<PathBuf, String> {
    let path = PathBuf::from(text);
    match path.extension() {
        Some(extension) if extension.eq_ignore_ascii_case("svg") => Ok(path),
        _ => Err("the drawing is SVG: expected a file whose name ends with .svg".to_owned()),
    }
}

fn positive(text: &str) -> std::result::Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value > 0.0 && value.is_finite() => Ok(value),
        _ => Err("expected a number above 0".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_numbers_and_ranges() {
        assert_eq!(numbers("6"), Ok(6..=6));
        assert_eq!(numbers("2-5"), Ok(2..=5));
        for text in ["", "-", "5-2", "x", "1-", "1.5"] {
            assert!(numbers(text).is_err(), "{text}");
        }
    }

    #[test]
    fn rows_are_whole_and_may_have_an_exponent() {
        assert_eq!(rows("1e7"), Ok(10_000_000));
        assert_eq!(rows("1000"), Ok(1000));
        assert_eq!(rows("1e9"), Ok(1_000_000_000));
        for text in ["99", "1.5e2x", "100.5", "-1", "NaN", "1e10", "1000000001"] {
            assert!(rows(text).is_err(), "{text}");
        }
        assert!(positive("0").is_err() && positive("4500") == Ok(4500.0));
    }
}
