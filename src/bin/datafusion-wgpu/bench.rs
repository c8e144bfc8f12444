//! `bench`: suites of queries on DataFusion's own operators and on the GPU, side by side and compared.

mod answer;
mod bandwidth;
mod clickbench_like;
mod files;
mod flags;
mod groupby;
mod joins;
mod machine;
mod measure;
mod plot;
mod report;
mod sessions;
mod suite;
mod table;
mod tpch;

use std::fs;
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use clap::Subcommand;
use datafusion::error::Result;
use indicatif::{ProgressBar, ProgressStyle};

use crate::error::problem;
use crate::output::{print, unwritable, writable};
use flags::{Common, RowsArgs, TpchArgs};
use report::Report;
use suite::Suite;

/// Flags of `bench`.
#[derive(Debug, Clone, clap::Args)]
#[group(id = "bench_flags")]
pub struct Args {
    #[command(subcommand)]
    suite: SuiteArgs,
}

#[derive(Debug, Clone, Subcommand)]
enum SuiteArgs {
    /// The 22 queries of TPC-H
    Tpch(TpchArgs),
    /// Ten questions with GROUP BY, those of the h2o.ai benchmark, on one table
    Groupby(RowsArgs),
    /// Five joins, those of the h2o.ai benchmark, of a large table with a small, a medium and a big one
    Joins(RowsArgs),
    /// Queries in the manner of ClickBench: a wide table, keys of many values, predicates on strings
    ClickbenchLike(RowsArgs),
}

impl SuiteArgs {
    fn common(&self) -> &Common {
        match self {
            SuiteArgs::Tpch(args) => &args.common,
            SuiteArgs::Groupby(args) | SuiteArgs::Joins(args) | SuiteArgs::ClickbenchLike(args) => {
                &args.common
            }
        }
    }

    fn suite(&self) -> Suite {
        match self {
            SuiteArgs::Tpch(args) => tpch::suite(args),
            SuiteArgs::Groupby(args) => groupby::suite(args),
            SuiteArgs::Joins(args) => joins::suite(args),
            SuiteArgs::ClickbenchLike(args) => clickbench_like::suite(args),
        }
    }
}

/// Makes the suite's data unless it is there, runs the queries, and prints what came out; exit code 1 when an answer of
/// the GPU differs from the CPU's or a query fails, 2 for queries that don't exist.
///
/// # Errors
/// Data or reports that can't be written, an adapter that was asked for and can't be used.
pub async fn run(args: Args) -> Result<ExitCode> {
    let common = args.suite.common().clone();
    let mut suite = args.suite.suite();
    if let Err(wrong) = suite.keep(&common.queries) {
        drop(writeln!(io::stderr(), "error: {wrong}; see --help"));
        return Ok(ExitCode::from(2));
    }
    for path in [&common.json, &common.plot].into_iter().flatten() {
        writable(path)?;
    }
    let config = common.config()?;
    common.gpu.check(&config).await?;

    let suite = make_data(suite).await?;
    let report = measure::run(&common, config, &suite).await?;
    if let Some(path) = &common.json {
        let mut text = serde_json::to_vec_pretty(&report).map_err(|e| problem(e.to_string()))?;
        text.push(b'\n');
        fs::write(path, text).map_err(|e| unwritable(path, &e))?;
    }
    if let Some(path) = &common.plot {
        fs::write(path, plot::svg(&report)?).map_err(|e| unwritable(path, &e))?;
    }
    print(&table::text(&report))?;
    Ok(exit_code(&report))
}

fn exit_code(report: &Report) -> ExitCode {
    if report.is_sound() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

async fn make_data(suite: Suite) -> Result<Suite> {
    let progress = bar("{bar:40} {percent:>3} %  {msg} {human_pos} of about {human_len} rows, {eta} left");
    progress.set_message("writing data:");
    let made = tokio::task::spawn_blocking({
        let progress = progress.clone();
        move || {
            suite.make_data(&progress)?;
            files::check_all(&suite.folder, &suite.tables)?;
            Ok(suite)
        }
    });
    let made = made.await.map_err(|e| problem(format!("writing the data failed: {e}")))?;
    progress.finish_and_clear();
    made
}

/// A progress bar on stderr, where that is a terminal.
fn bar(template: &str) -> ProgressBar {
    let bar = ProgressBar::new(0);
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}
