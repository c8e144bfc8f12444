//! Generated tables as Parquet files. The same rows come out whatever the number of threads.

use std::fs::{self, File, TryLockError};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use datafusion::arrow::array::{ArrayRef, RecordBatch};
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::error::Result;
use datafusion::parquet::arrow::ArrowWriter;
use datafusion::parquet::basic::Compression;
use datafusion::parquet::errors::ParquetError;
use datafusion::parquet::file::properties::WriterProperties;
use datafusion::parquet::file::reader::SerializedFileReader;
use indicatif::ProgressBar;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use crate::error::problem;
use crate::output::unwritable;

/// Gives the same numbers on every machine and in every version.
pub type Random = ChaCha8Rng;

/// Rows of one table from its random numbers.
pub type Make = Box<dyn Fn(&mut Random, Range<u64>) -> Result<RecordBatch> + Send + Sync>;

/// A table to be made.
pub struct Table {
    pub name: &'static str,
    pub schema: SchemaRef,
    pub rows: u64,
    /// Makes the rows of a range.
    pub make: Make,
}

/// Rows that have random numbers of their own.
const CHUNK_ROWS: u64 = 65_536;
/// Rows from which a file more is made, and files at least where there are as many chunks.
const ROWS_OF_A_FILE: u64 = 2_000_000;
const FEWEST_FILES: u64 = 4;
const ROW_GROUP_ROWS: usize = 262_144;
/// Where a folder says what is in it.
const RECORD: &str = "bench-data.json";

/// What a folder holds; another version of the data has another number.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Record {
    version: u32,
    tables: Vec<(String, u64)>,
}

struct FileJob<'a> {
    table: &'a Table,
    /// Tells the table's random numbers from those of others.
    seed: u64,
    chunks: Range<u64>,
    path: PathBuf,
}

/// Makes the files that are not in `folder`. A file has its name only when it is complete.
///
/// # Errors
/// A folder that holds other data, one that can't be written, and one that another run is writing to.
pub fn prepare(folder: &Path, tables: &[Table], progress: &ProgressBar) -> Result<()> {
    let record = Record {
        version: 1,
        tables: tables.iter().map(|table| (table.name.to_owned(), table.rows)).collect(),
    };
    check(folder, &record)?;
    let mut jobs = vec![];
    for (table, seed) in tables.iter().zip(0..) {
        let chunks = table.rows.div_ceil(CHUNK_ROWS);
        let files = table.rows.div_ceil(ROWS_OF_A_FILE).max(FEWEST_FILES).min(chunks);
        for file in 0..files {
            let path = folder.join(table.name).join(format!("part-{}.parquet", file + 1));
            if !path.exists() {
                let chunks = file * chunks / files..(file + 1) * chunks / files;
                jobs.push(FileJob { table, seed, chunks, path });
            }
        }
    }
    progress.set_length(jobs.iter().map(|job| (job.chunks.end - job.chunks.start) * CHUNK_ROWS).sum());
    let next = AtomicUsize::new(0);
    let work = || -> Result<()> {
        while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
            job.write(progress)?;
        }
        Ok(())
    };
    let threads = thread::available_parallelism().map_or(1, |n| n.get()).min(jobs.len());
    let results: Vec<Result<()>> = thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let panicked = |_| Err(problem("a thread that makes data panicked"));
        workers.into_iter().map(|worker| worker.join().unwrap_or_else(panicked)).collect()
    });
    results.into_iter().collect()
}

/// Records what the folder will hold, or finds it recorded.
fn check(folder: &Path, record: &Record) -> Result<()> {
    let path = folder.join(RECORD);
    match fs::read(&path) {
        Ok(text) => match serde_json::from_slice::<Record>(&text) {
            Ok(found) if found == *record => Ok(()),
            _ => Err(problem(format!(
                "'{}' holds data of another version; remove it, or choose another --data",
                folder.display()
            ))),
        },
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            if fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_some()) {
                return Err(problem(format!(
                    "'{}' was not made by bench; choose another --data",
                    folder.display()
                )));
            }
            fs::create_dir_all(folder).map_err(|e| unwritable(folder, &e))?;
            let text = serde_json::to_vec(record).map_err(|e| problem(e.to_string()))?;
            fs::write(&path, text).map_err(|e| unwritable(&path, &e))
        }
        Err(e) => Err(problem(format!("cannot read '{}': {e}", path.display()))),
    }
}

impl FileJob<'_> {
    fn write(&self, progress: &ProgressBar) -> Result<()> {
        let unfinished = self.path.with_extension("unfinished");
        if let Some(folder) = self.path.parent() {
            fs::create_dir_all(folder).map_err(|e| unwritable(folder, &e))?;
        }
        // What a stopped run left is written over, and a run that still writes is not disturbed.
        let file = File::options().write(true).create(true).truncate(false).open(&unfinished);
        let file = file.map_err(|e| unwritable(&unfinished, &e))?;
        if matches!(file.try_lock(), Err(TryLockError::WouldBlock)) {
            return Err(problem(format!("another run is writing '{}'", self.path.display())));
        }
        file.set_len(0).map_err(|e| unwritable(&unfinished, &e))?;
        let properties = WriterProperties::builder()
            .set_compression(Compression::SNAPPY)
            .set_max_row_group_row_count(Some(ROW_GROUP_ROWS))
            .build();
        let failed = |e: ParquetError| unwritable(&self.path, &e);
        let table = self.table;
        let mut writer =
            ArrowWriter::try_new(file, SchemaRef::clone(&table.schema), Some(properties)).map_err(failed)?;
        for chunk in self.chunks.clone() {
            let mut random = Random::seed_from_u64(self.seed);
            random.set_stream(chunk);
            let rows = chunk * CHUNK_ROWS..((chunk + 1) * CHUNK_ROWS).min(table.rows);
            writer.write(&(table.make)(&mut random, rows)?).map_err(failed)?;
            progress.inc(CHUNK_ROWS);
        }
        writer.close().map_err(failed)?;
        fs::rename(&unfinished, &self.path).map_err(|e| unwritable(&self.path, &e))
    }
}

/// Reads the footers of the Parquet files in the tables' folders, since readers do not say which file is broken.
///
/// # Errors
/// Files that are not readable, or no Parquet.
pub fn check_all(folder: &Path, tables: &[&str]) -> Result<()> {
    for folder in tables.iter().map(|table| folder.join(table)) {
        let unreadable = |path: &Path, e: &dyn std::fmt::Display| {
            problem(format!("cannot read '{}': {e}; remove it, and it is made again", path.display()))
        };
        for entry in fs::read_dir(&folder).map_err(|e| unreadable(&folder, &e))? {
            let path = entry.map_err(|e| unreadable(&folder, &e))?.path();
            if path.extension().is_some_and(|extension| extension == "parquet") {
                let file = File::open(&path).map_err(|e| unreadable(&path, &e))?;
                SerializedFileReader::new(file).map_err(|e| unreadable(&path, &e))?;
            }
        }
    }
    Ok(())
}

/// Rows of a range.
pub fn row_count(range: &Range<u64>) -> usize {
    usize::try_from(range.end - range.start).unwrap_or(0)
}

/// Columns as a batch.
///
/// # Errors
/// Columns that the schema does not have.
pub fn batch(schema: &SchemaRef, columns: Vec<ArrayRef>) -> Result<RecordBatch> {
    Ok(RecordBatch::try_new(SchemaRef::clone(schema), columns)?)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use datafusion::arrow::array::Int64Array;
    use datafusion::arrow::datatypes::{DataType, Field, Schema};
    use rand::Rng;

    use super::*;

    fn table(rows: u64) -> Table {
        let schema = Arc::new(Schema::new(vec![Field::new("a", DataType::Int64, false)]));
        let columns = Arc::clone(&schema);
        let make = move |random: &mut Random, range: Range<u64>| {
            let values = Int64Array::from_iter_values(range.map(|_| random.random_range(0..1000)));
            batch(&columns, vec![Arc::new(values)])
        };
        Table { name: "t", schema, rows, make: Box::new(make) }
    }

    #[test]
    fn files_are_made_once_and_the_same_again() {
        let dir = tempfile::tempdir().unwrap();
        let bar = ProgressBar::hidden();
        prepare(dir.path(), &[table(200_000)], &bar).unwrap();
        let paths: Vec<_> = (1..=4).map(|n| dir.path().join(format!("t/part-{n}.parquet"))).collect();
        let before: Vec<_> = paths.iter().map(|path| fs::read(path).unwrap()).collect();
        let made = fs::metadata(&paths[0]).unwrap().modified().unwrap();
        fs::remove_file(&paths[2]).unwrap();
        prepare(dir.path(), &[table(200_000)], &bar).unwrap();
        assert_eq!(fs::metadata(&paths[0]).unwrap().modified().unwrap(), made);
        assert_eq!(fs::read(&paths[2]).unwrap(), before[2]);
        assert_eq!(fs::read_dir(dir.path().join("t")).unwrap().count(), 4, "nothing unfinished is left");

        check_all(dir.path(), &["t"]).unwrap();
        fs::write(&paths[1], "PAR1 no more").unwrap();
        let broken = check_all(dir.path(), &["t"]).unwrap_err().to_string();
        assert!(broken.contains("t/part-2.parquet': ") && broken.contains("remove it"), "{broken}");

        let other = prepare(dir.path(), &[table(300_000)], &bar).unwrap_err().to_string();
        assert!(other.contains("of another version; remove it"), "{other}");
    }

    #[test]
    fn a_folder_of_others_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("mine"), "").unwrap();
        let error = prepare(dir.path(), &[table(100)], &ProgressBar::hidden()).unwrap_err().to_string();
        assert!(error.contains("was not made by bench"), "{error}");
    }
}
