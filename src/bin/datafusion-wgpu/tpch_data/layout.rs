//! Which files a table has, what is there already, and whether it may be kept or replaced.
//!
//! The folder's `tpch-data.json` says how each table in it was made. A file has its final name only when it is complete,
//! so a table that is recorded with the same layout is continued, and any other is left alone unless it may be replaced.

use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use datafusion::error::Result;
use datafusion::parquet::basic::{BrotliLevel, Compression, GzipLevel, ZstdLevel};
use datafusion::parquet::file::reader::{FileReader, SerializedFileReader};
use serde::{Deserialize, Serialize};

use super::tables::Table;
use crate::error::problem;
use crate::output::unwritable;

/// Rows from which a file more is made, unless the number of files is given.
const ROWS_OF_A_FILE: u64 = 2_000_000;
/// Files at least, unless their number is given: several, so that readers work in parallel.
const FEWEST_FILES: u64 = 4;
/// How the tables of a folder were made.
const RECORD: &str = "tpch-data.json";
/// Ends the names of files that are being written.
pub const UNFINISHED: &str = "unfinished";

/// How columns are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Codec {
    None,
    Snappy,
    Zstd,
    Lz4,
    Gzip,
    Brotli,
}

impl From<Codec> for Compression {
    fn from(codec: Codec) -> Self {
        match codec {
            Codec::None => Compression::UNCOMPRESSED,
            Codec::Snappy => Compression::SNAPPY,
            Codec::Zstd => Compression::ZSTD(ZstdLevel::default()),
            // The codec that Parquet calls LZ4 has two incompatible forms; this one is defined.
            Codec::Lz4 => Compression::LZ4_RAW,
            Codec::Gzip => Compression::GZIP(GzipLevel::default()),
            Codec::Brotli => Compression::BROTLI(BrotliLevel::default()),
        }
    }
}

/// What errors advise, in the flags of the command that makes the data.
#[derive(Debug, Clone, Copy)]
pub struct Remedy {
    /// Another folder.
    pub choose: &'static str,
    /// To make the table anew.
    pub replace: &'static str,
}

/// What the flags ask for.
#[derive(Debug, Clone, Copy)]
pub struct Request {
    pub scale: f64,
    pub parts: Option<u32>,
    pub row_group_rows: u32,
    pub compression: Codec,
}

/// Everything that decides a table's bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Layout {
    /// Version of this program, which fixes those of the generator and of the Parquet writer.
    version: String,
    scale: f64,
    files: i32,
    /// Row groups of a file.
    row_groups: i32,
    compression: Codec,
}

impl Layout {
    /// The files of `table`; never more than it has rows.
    pub fn new(table: Table, request: &Request) -> Layout {
        let &Request { scale, parts, row_group_rows, compression } = request;
        let (mut files, mut row_groups) = (1, 1);
        if table.is_divisible() {
            let rows = table.expected_rows(scale);
            let most = table.units(scale).max(1);
            files = parts.map_or(rows.div_ceil(ROWS_OF_A_FILE).max(FEWEST_FILES), u64::from).min(most);
            row_groups = rows.div_ceil(files * u64::from(row_group_rows)).clamp(1, (most / files).max(1));
        }
        let number = |count: u64| i32::try_from(count).unwrap_or(i32::MAX);
        let version = env!("CARGO_PKG_VERSION").to_owned();
        Layout { version, scale, files: number(files), row_groups: number(row_groups), compression }
    }

    fn describe(&self) -> String {
        let Layout { version, scale, files, row_groups, compression } = self;
        let codec =
            compression.to_possible_value().map_or(String::new(), |value| value.get_name().to_owned());
        format!(
            "scale {scale}, {files} files of {row_groups} row groups, compression {codec}, by version {version}"
        )
    }
}

/// A table in the folder.
#[derive(Debug)]
pub struct TableLayout {
    pub table: Table,
    layout: Layout,
    folder: PathBuf,
}

/// What a table's files hold.
#[derive(Debug, Default)]
pub struct Contents {
    pub files: usize,
    pub rows: u64,
    pub bytes: u64,
}

/// A file to make: row groups `first_piece` to `first_piece + row_groups - 1` of the table's `pieces`.
#[derive(Debug, Clone)]
pub struct FileLayout {
    pub table: Table,
    pub scale: f64,
    pub path: PathBuf,
    pub first_piece: i32,
    pub row_groups: i32,
    pub pieces: i32,
    pub compression: Codec,
}

impl FileLayout {
    /// Rows, about.
    pub fn expected_rows(&self) -> u64 {
        let share = f64::from(self.row_groups) / f64::from(self.pieces);
        (self.table.expected_rows(self.scale) as f64 * share) as u64
    }
}

impl TableLayout {
    fn paths(&self) -> impl Iterator<Item = PathBuf> {
        let files = self.layout.files;
        let width = files.to_string().len();
        (1..=files).map(move |file| self.folder.join(format!("part-{file:0width$}.parquet")))
    }

    fn missing(&self) -> impl Iterator<Item = FileLayout> {
        let Layout { scale, files, row_groups, compression, .. } = self.layout;
        let file = move |(index, path)| FileLayout {
            table: self.table,
            scale,
            path,
            first_piece: index * row_groups + 1,
            row_groups,
            pieces: files * row_groups,
            compression,
        };
        (0..files).zip(self.paths()).filter(|(_, path)| !path.exists()).map(file)
    }

    /// Reads back what the files hold.
    ///
    /// # Errors
    /// A file that can't be read, or that is no Parquet file.
    pub fn contents(&self) -> Result<Contents> {
        let mut contents = Contents::default();
        for path in self.paths() {
            let broken = |e: &dyn std::fmt::Display| {
                problem(format!("'{}' is damaged: {e}; --overwrite makes it anew", path.display()))
            };
            let file = File::open(&path).map_err(|e| broken(&e))?;
            contents.bytes += file.metadata().map_err(|e| broken(&e))?.len();
            let reader = SerializedFileReader::new(file).map_err(|e| broken(&e))?;
            contents.rows += u64::try_from(reader.metadata().file_metadata().num_rows()).unwrap_or(0);
            contents.files += 1;
        }
        Ok(contents)
    }
}

/// The folder, with the tables that are to be in it. Nobody else writes to it meanwhile.
#[derive(Debug)]
pub struct Folder {
    pub tables: Vec<TableLayout>,
    _lock: Option<File>,
}

impl Folder {
    /// Files that are to be there.
    pub fn files(&self) -> usize {
        self.tables.iter().map(|table| table.paths().count()).sum()
    }

    /// Files that are to be made, those of the largest tables first: they take longest.
    pub fn missing(&self) -> Vec<FileLayout> {
        let mut files: Vec<_> = self.tables.iter().flat_map(TableLayout::missing).collect();
        files.sort_by_key(|file| std::cmp::Reverse(file.table.expected_rows(file.scale)));
        files
    }
}

/// Makes the folders, removes what is to be replaced and what an earlier run left unfinished, and records the layouts.
///
/// # Errors
/// A table that is there already in another layout, unless `overwrite`; files that this program did not make; a folder
/// that another run is writing to, or that can't be written.
pub fn prepare(out: &Path, wanted: Vec<(Table, Layout)>, overwrite: bool, remedy: Remedy) -> Result<Folder> {
    if out.exists() && !out.is_dir() {
        return Err(problem(format!("'{}' is not a folder; {}", out.display(), remedy.choose)));
    }
    fs::create_dir_all(out).map_err(|e| unwritable(out, &e))?;
    let lock = lock(out)?;
    let record_path = out.join(RECORD);
    let mut record = read_record(&record_path, remedy)?;
    let mut tables = vec![];
    let mut doomed = vec![];
    for (table, layout) in wanted {
        let table = TableLayout { table, layout, folder: out.join(table.name()) };
        let found = Found::read(&table.folder, remedy)?;
        let recorded = record.get(table.table.name());
        if overwrite {
            doomed.extend(found.complete);
        } else if !found.complete.is_empty() {
            table.check(recorded, &found.complete, remedy)?;
        }
        doomed.extend(found.unfinished);
        tables.push(table);
    }
    for path in doomed {
        fs::remove_file(&path).map_err(|e| unwritable(&path, &e))?;
    }
    for table in &tables {
        fs::create_dir_all(&table.folder).map_err(|e| unwritable(&table.folder, &e))?;
        record.insert(table.table.name().to_owned(), table.layout.clone());
    }
    write_record(&record_path, &record)?;
    Ok(Folder { tables, _lock: lock })
}

impl TableLayout {
    /// Whether files that are there can be kept.
    fn check(&self, recorded: Option<&Layout>, complete: &[PathBuf], remedy: Remedy) -> Result<()> {
        let folder = self.folder.display();
        let remedy = format!("{}, or {}", remedy.choose, remedy.replace);
        match recorded {
            Some(recorded) if *recorded == self.layout => {
                let expected: Vec<_> = self.paths().collect();
                match complete.iter().find(|path| !expected.contains(path)) {
                    Some(path) => {
                        Err(problem(format!("'{}' does not belong there; {remedy}", path.display())))
                    }
                    None => Ok(()),
                }
            }
            Some(recorded) => Err(problem(format!(
                "'{folder}' was made with {}, not with {}; {remedy}",
                recorded.describe(),
                self.layout.describe()
            ))),
            None => Err(problem(format!("'{folder}' is there already; {remedy}"))),
        }
    }
}

/// What lies in a table's folder.
#[derive(Debug, Default)]
struct Found {
    complete: Vec<PathBuf>,
    unfinished: Vec<PathBuf>,
}

impl Found {
    /// # Errors
    /// Parquet files with names that this program does not give, and folders: they would be read as rows of the table,
    /// and are not ours to remove.
    fn read(folder: &Path, remedy: Remedy) -> Result<Found> {
        let mut found = Found::default();
        let entries = match fs::read_dir(folder) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(found),
            entries => entries.map_err(|e| unwritable(folder, &e))?,
        };
        for entry in entries {
            let entry = entry.map_err(|e| unwritable(folder, &e))?;
            let path = entry.path();
            let name = entry.file_name().to_string_lossy().into_owned();
            let number = name.strip_prefix("part-").and_then(|rest| rest.split('.').next());
            let ours = number.is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()));
            if path.is_dir() || (!ours && name.ends_with(".parquet")) {
                return Err(problem(format!(
                    "'{}' was not made by tpch-data; {}",
                    path.display(),
                    remedy.choose
                )));
            }
            match name.rsplit('.').next() {
                Some("parquet") => found.complete.push(path),
                Some(UNFINISHED) if ours => found.unfinished.push(path),
                _ => {}
            }
        }
        Ok(found)
    }
}

/// Keeps other runs out until it is dropped. Where folders can't be locked, as on Windows, nothing does.
fn lock(out: &Path) -> Result<Option<File>> {
    let Ok(folder) = File::open(out) else { return Ok(None) };
    match folder.try_lock() {
        Ok(()) => Ok(Some(folder)),
        Err(TryLockError::WouldBlock) => {
            Err(problem(format!("another tpch-data is writing to '{}'", out.display())))
        }
        Err(TryLockError::Error(_)) => Ok(None),
    }
}

fn read_record(path: &Path, remedy: Remedy) -> Result<BTreeMap<String, Layout>> {
    match fs::read(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(BTreeMap::new()),
        Err(e) => Err(problem(format!("cannot read '{}': {e}", path.display()))),
        Ok(text) => serde_json::from_slice(&text).map_err(|e| {
            problem(format!("'{}' is no record of tpch-data: {e}; {}", path.display(), remedy.choose))
        }),
    }
}

fn write_record(path: &Path, record: &BTreeMap<String, Layout>) -> Result<()> {
    let mut text = serde_json::to_vec_pretty(record).map_err(|e| problem(e.to_string()))?;
    text.push(b'\n');
    let unfinished = path.with_extension(UNFINISHED);
    fs::write(&unfinished, text).map_err(|e| unwritable(&unfinished, &e))?;
    fs::rename(&unfinished, path).map_err(|e| unwritable(path, &e))
}

#[cfg(test)]
mod tests;
