//! `tpch-data`: TPC-H tables as Parquet files, one folder a table.

mod layout;
mod tables;
mod write;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use datafusion::error::Result;
use indicatif::{HumanBytes, HumanCount, ProgressBar, ProgressStyle};

use crate::error::problem;
use crate::signals;
pub use layout::Remedy;
use layout::{Codec, Folder, Layout, Request, TableLayout};
pub use tables::Table;

const ROW_GROUP_ROWS: u32 = 262_144;
const REMEDY: Remedy = Remedy { choose: "choose another --out", replace: "replace it by --overwrite" };

/// Flags of `tpch-data`.
#[derive(Debug, Clone, clap::Args)]
#[group(id = "tpch_data_flags")]
pub struct Args {
    /// TPC-H scale factor, from 0.001 to 1000; 1 gives 6 million rows in lineitem and 8.7 million in all
    #[arg(short, long, value_name = "FACTOR", value_parser = scale)]
    pub scale: f64,
    /// Folder for the tables; each gets a folder in it
    #[arg(short, long, value_name = "DIR")]
    pub out: PathBuf,
    /// Files a table, nation and region apart; without it 4, or one for each 2 million rows if those are more
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub parts: Option<u32>,
    /// Tables, with commas between them; all without it
    #[arg(long, value_name = "TABLES", value_enum, ignore_case = true, value_delimiter = ',')]
    pub tables: Vec<Table>,
    /// How the columns are compressed
    #[arg(long, value_name = "CODEC", value_enum, ignore_case = true, default_value_t = Codec::Snappy)]
    pub compression: Codec,
    /// Rows of a row group, about
    #[arg(long, value_name = "ROWS", default_value_t = ROW_GROUP_ROWS, value_parser = clap::value_parser!(u32).range(1_000..))]
    pub row_group_rows: u32,
    /// Replace tables that are there already
    #[arg(long)]
    pub overwrite: bool,
}

/// Reads a scale factor.
pub fn scale(text: &str) -> std::result::Result<f64, String> {
    match text.parse::<f64>() {
        Ok(scale) if (0.001..=1000.0).contains(&scale) => Ok(scale),
        _ => Err("expected a number from 0.001 to 1000".to_owned()),
    }
}

impl Args {
    /// All tables with the defaults.
    pub fn of(scale: f64, out: &Path) -> Args {
        Args {
            scale,
            out: out.to_owned(),
            parts: None,
            tables: vec![],
            compression: Codec::Snappy,
            row_group_rows: ROW_GROUP_ROWS,
            overwrite: false,
        }
    }

    fn tables(&self) -> Vec<Table> {
        let wanted = |table: &Table| self.tables.is_empty() || self.tables.contains(table);
        Table::value_variants().iter().copied().filter(wanted).collect()
    }

    fn layout(&self, table: Table) -> Layout {
        Layout::new(
            table,
            &Request {
                scale: self.scale,
                parts: self.parts,
                row_group_rows: self.row_group_rows,
                compression: self.compression,
            },
        )
    }
}

/// Writes the tables. Files that an earlier run with the same flags completed are kept.
///
/// # Errors
/// A folder that holds something else, and files that can't be written. Ctrl-C and the like leave complete files only,
/// and give the exit code that a shell gives for them.
pub async fn run(args: Args) -> Result<ExitCode> {
    // Before the work starts, so that a signal never finds temporary files and nobody who removes them.
    let mut interruption = std::pin::pin!(signals::interruption()?);
    let stop = Arc::new(AtomicBool::new(false));
    let progress = progress_bar();
    let mut work = tokio::task::spawn_blocking({
        let (stop, progress) = (Arc::clone(&stop), progress.clone());
        move || work(&args, &stop, &progress)
    });
    let (result, code) = tokio::select! {
        result = &mut work => (result, None),
        code = &mut interruption => {
            stop.store(true, Ordering::Relaxed);
            (work.await, Some(code))
        }
    };
    progress.finish_and_clear();
    let complete = result.map_err(|e| problem(format!("writing the tables failed: {e}")))??;
    match code {
        Some(code) if !complete => {
            drop(writeln!(
                io::stderr(),
                "Interrupted: complete files are kept, and the same command makes the others."
            ));
            Ok(ExitCode::from(code))
        }
        _ => Ok(ExitCode::SUCCESS),
    }
}

/// Drawn on stderr, where that is a terminal.
fn progress_bar() -> ProgressBar {
    let bar = ProgressBar::new(0);
    let style = "{bar:40} {percent:>3} %  {human_pos} of about {human_len} rows, {per_sec}, {eta} left";
    if let Ok(style) = ProgressStyle::with_template(style) {
        bar.set_style(style);
    }
    bar
}

/// Makes what is missing and prints what there is then; false if it was told to stop before that.
fn work(args: &Args, stop: &AtomicBool, progress: &ProgressBar) -> Result<bool> {
    let start = Instant::now();
    progress.enable_steady_tick(Duration::from_millis(200));
    let Some((folder, kept)) = make(args, stop, progress, REMEDY)? else { return Ok(false) };
    progress.finish_and_clear();
    report(&args.out, &folder.tables, kept, start.elapsed())?;
    Ok(true)
}

/// Makes what is missing. The folder, and how many files were there already; nothing if it was told to stop before it had
/// made them all.
///
/// # Errors
/// A folder that holds something else, and files that can't be written.
pub fn make(
    args: &Args,
    stop: &AtomicBool,
    progress: &ProgressBar,
    remedy: Remedy,
) -> Result<Option<(Folder, usize)>> {
    let wanted: Vec<(Table, Layout)> =
        args.tables().into_iter().map(|table| (table, args.layout(table))).collect();
    let folder = layout::prepare(&args.out, wanted, args.overwrite, remedy)?;
    let missing = folder.missing();
    progress.set_length(missing.iter().map(|file| file.expected_rows()).sum());
    let kept = folder.files() - missing.len();
    Ok(write::write_all(missing, stop, progress)?.then_some((folder, kept)))
}

/// Prints what the folder holds, read back from the files.
fn report(out: &Path, tables: &[TableLayout], kept: usize, time: Duration) -> Result<()> {
    let mut text = format!("{:<10}{:>7}{:>16}{:>14}\n", "table", "files", "rows", "bytes");
    let (mut files, mut rows, mut bytes) = (0, 0, 0);
    for table in tables {
        let contents = table.contents()?;
        text += &format!(
            "{:<10}{:>7}{:>16}{:>14}\n",
            table.table.name(),
            contents.files,
            HumanCount(contents.rows).to_string(),
            HumanBytes(contents.bytes).to_string()
        );
        files += contents.files;
        rows += contents.rows;
        bytes += contents.bytes;
    }
    text += &format!(
        "{:<10}{files:>7}{:>16}{:>14}\n",
        "all",
        HumanCount(rows).to_string(),
        HumanBytes(bytes).to_string()
    );
    let (out, time) = (out.display(), time.as_secs_f64());
    text += &match kept {
        0 => format!("Written to '{out}' in {time:.1} s.\n"),
        kept if kept == files => format!("All of it was in '{out}' already.\n"),
        kept => format!("Written to '{out}' in {time:.1} s, but for {kept} files that were there already.\n"),
    };
    io::stdout().write_all(text.as_bytes())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::scale;

    #[test]
    fn only_scales_within_the_bounds_are_taken() {
        assert_eq!(scale("0.001"), Ok(0.001));
        assert_eq!(scale("1e3"), Ok(1000.0));
        for text in ["0", "-1", "0.0009", "1000.1", "NaN", "inf", "", "1x"] {
            assert!(scale(text).is_err(), "{text}");
        }
    }
}
