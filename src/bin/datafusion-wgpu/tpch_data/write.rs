//! Makes files with all cores. Row groups are generated and encoded in parallel, whichever file they belong to; a file
//! takes its row groups in order and gets its name when it has them all.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use datafusion::error::Result;
use datafusion::parquet::arrow::ArrowWriter;
use datafusion::parquet::arrow::arrow_writer::{
    ArrowColumnChunk, ArrowRowGroupWriterFactory, compute_leaves,
};
use datafusion::parquet::errors::ParquetError;
use datafusion::parquet::file::properties::WriterProperties;
use datafusion::parquet::file::writer::SerializedFileWriter;
use indicatif::ProgressBar;
use parking_lot::Mutex;

use super::layout::{FileLayout, UNFINISHED};
use crate::error::problem;
use crate::output::unwritable;

/// Makes the files; false if `stop` ended it before all were complete. Unfinished files are removed either way.
///
/// # Errors
/// The first failure; it stops the other threads.
pub fn write_all(files: Vec<FileLayout>, stop: &AtomicBool, progress: &ProgressBar) -> Result<bool> {
    let outputs: Vec<Output> = files.into_iter().map(Output::new).collect::<Result<_>>()?;
    // Row groups of a file one after the other, so that few files are open and few row groups wait at a time.
    let jobs: Vec<(&Output, i32)> = outputs
        .iter()
        .flat_map(|output| (0..output.layout.row_groups).map(move |group| (output, group)))
        .collect();
    let next = AtomicUsize::new(0);
    let failed = AtomicBool::new(false);
    let stopped = || stop.load(Ordering::Relaxed) || failed.load(Ordering::Relaxed);
    let work = || -> Result<()> {
        while let Some((output, group)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
            let made = output.make(*group, &stopped, progress);
            if !made.inspect_err(|_| failed.store(true, Ordering::Relaxed))? {
                break;
            }
        }
        Ok(())
    };
    let threads = thread::available_parallelism().map_or(1, |n| n.get()).min(jobs.len());
    let results: Vec<Result<()>> = thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let panicked = |_| Err(problem("a thread that writes tables panicked"));
        workers.into_iter().map(|worker| worker.join().unwrap_or_else(panicked)).collect()
    });
    results.into_iter().collect::<Result<Vec<()>>>()?;
    Ok(outputs.iter().all(Output::is_complete))
}

/// A file that is being made.
struct Output {
    layout: FileLayout,
    properties: WriterProperties,
    columns: ArrowRowGroupWriterFactory,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    file: Option<Unfinished>,
    /// Row groups in the file.
    written: i32,
    /// Row groups that came before their turn.
    waiting: BTreeMap<i32, Vec<ArrowColumnChunk>>,
    complete: bool,
}

impl State {
    /// The row group whose turn it is, if it is there.
    fn take_next(&mut self) -> Option<Vec<ArrowColumnChunk>> {
        self.waiting.remove(&self.written)
    }
}

impl Output {
    fn new(layout: FileLayout) -> Result<Output> {
        let properties = WriterProperties::builder().set_compression(layout.compression.into()).build();
        // Only a writer can give the factory, and the one to the file does not exist before its turn.
        let writer = ArrowWriter::try_new(std::io::sink(), layout.table.schema(), Some(properties.clone()))?;
        let (_, columns) = writer.into_serialized_writer()?;
        Ok(Output { layout, properties, columns, state: Mutex::default() })
    }

    fn is_complete(&self) -> bool {
        self.state.lock().complete
    }

    /// Generates, encodes and writes a row group, or leaves it for who completes the one before; false if stopped.
    fn make(&self, group: i32, stopped: &impl Fn() -> bool, progress: &ProgressBar) -> Result<bool> {
        let path = &self.layout.path;
        let encoded = self.encode(group, stopped, progress).map_err(|e| unwritable(path, &e))?;
        let Some(encoded) = encoded else { return Ok(false) };
        let mut state = self.state.lock();
        state.waiting.insert(group, encoded);
        while let Some(chunks) = state.take_next() {
            if stopped() {
                return Ok(false);
            }
            let file = match &mut state.file {
                Some(file) => file,
                None => state.file.insert(Unfinished::create(self)?),
            };
            file.append(chunks).map_err(|e| unwritable(path, &reason(e)))?;
            state.written += 1;
        }
        if state.written == self.layout.row_groups
            && let Some(file) = state.file.take()
        {
            file.finish(path)?;
            state.complete = true;
        }
        Ok(true)
    }

    fn encode(
        &self,
        group: i32,
        stopped: &impl Fn() -> bool,
        progress: &ProgressBar,
    ) -> std::result::Result<Option<Vec<ArrowColumnChunk>>, ParquetError> {
        let FileLayout { table, scale, first_piece, pieces, .. } = self.layout;
        let mut writers = self.columns.create_column_writers(usize::try_from(group).unwrap_or(0))?;
        for batch in table.piece(scale, first_piece + group, pieces) {
            if stopped() {
                return Ok(None);
            }
            let batch = batch?;
            let mut leaves = writers.iter_mut();
            for (field, column) in batch.schema_ref().fields().iter().zip(batch.columns()) {
                for leaf in compute_leaves(field, column)? {
                    if let Some(writer) = leaves.next() {
                        writer.write(&leaf)?;
                    }
                }
            }
            progress.inc(batch.num_rows() as u64);
        }
        writers.into_iter().map(|writer| writer.close()).collect::<std::result::Result<_, _>>().map(Some)
    }
}

/// A file under its temporary name, which is removed unless the file is finished.
struct Unfinished {
    path: TemporaryPath,
    writer: SerializedFileWriter<File>,
}

struct TemporaryPath(PathBuf);

impl Drop for TemporaryPath {
    fn drop(&mut self) {
        // After a rename there is nothing of that name; what can't be removed the next run removes.
        drop(fs::remove_file(&self.0));
    }
}

impl Unfinished {
    fn create(output: &Output) -> Result<Unfinished> {
        let path = output.layout.path.with_extension(format!("{}.{UNFINISHED}", std::process::id()));
        let file = File::create(&path).map_err(|e| unwritable(&output.layout.path, &e))?;
        let path = TemporaryPath(path);
        let schema = output.layout.table.schema();
        let writer = ArrowWriter::try_new(file, schema, Some(output.properties.clone()))
            .and_then(ArrowWriter::into_serialized_writer);
        let (writer, _) = writer.map_err(|e| unwritable(&output.layout.path, &reason(e)))?;
        Ok(Unfinished { path, writer })
    }

    fn append(&mut self, chunks: Vec<ArrowColumnChunk>) -> std::result::Result<(), ParquetError> {
        let mut row_group = self.writer.next_row_group()?;
        for chunk in chunks {
            chunk.append_to_row_group(&mut row_group)?;
        }
        row_group.close().map(|_| ())
    }

    /// Completes the file and gives it its name, once its bytes are on the disk.
    fn finish(self, path: &Path) -> Result<()> {
        let file = self.writer.into_inner().map_err(|e| unwritable(path, &reason(e)))?;
        file.sync_all().and_then(|()| fs::rename(&self.path.0, path)).map_err(|e| unwritable(path, &e))
    }
}

/// What the operating system said, without the names of the layers that it came through.
fn reason(error: ParquetError) -> Box<dyn Display> {
    match error {
        ParquetError::External(cause) => Box::new(cause),
        other => Box::new(other),
    }
}
