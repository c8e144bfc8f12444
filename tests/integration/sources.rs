//! Table sources that the tests need.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use datafusion::arrow::array::{ArrayRef, Int64Array, RecordBatch};
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::catalog::streaming::StreamingTable;
use datafusion::catalog::{MemTable, TableProvider};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::streaming::PartitionStream;
use futures::StreamExt;

use crate::harness::{TestResult, table};

/// A partition that can be read once; a second read gives an error.
#[derive(Debug)]
struct Once {
    /// The rows end in an error.
    fails: bool,
    schema: SchemaRef,
    batches: std::sync::Mutex<Option<Vec<RecordBatch>>>,
}

impl PartitionStream for Once {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, _: Arc<TaskContext>) -> SendableRecordBatchStream {
        let taken = self.batches.lock().ok().and_then(|mut batches| batches.take());
        let items: Vec<datafusion::error::Result<RecordBatch>> = match taken {
            Some(batches) => {
                let end = self.fails.then(|| datafusion::common::exec_err!("the source broke"));
                batches.into_iter().map(Ok).chain(end).collect()
            }
            None => vec![datafusion::common::exec_err!("this source was read before")],
        };
        Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&self.schema), futures::stream::iter(items)))
    }
}

/// A table of `partitions` partitions of `rows` rows in batches of 700, each of which can be read once.
pub fn once(partitions: i64, rows: i64) -> TestResult<Arc<dyn TableProvider>> {
    partitioned(partitions, rows, false)
}

/// The same, but each partition ends in an error.
pub fn failing(partitions: i64, rows: i64) -> TestResult<Arc<dyn TableProvider>> {
    partitioned(partitions, rows, true)
}

fn partitioned(partitions: i64, rows: i64, fails: bool) -> TestResult<Arc<dyn TableProvider>> {
    let schema = table(0, 1)?.schema();
    let parts = (0..partitions)
        .map(|p| {
            let batches = batches((p * rows, rows))?;
            let part: Arc<dyn PartitionStream> = Arc::new(Once {
                fails,
                schema: Arc::clone(&schema),
                batches: std::sync::Mutex::new(Some(batches)),
            });
            Ok(part)
        })
        .collect::<TestResult<Vec<_>>>()?;
    Ok(Arc::new(StreamingTable::try_new(schema, parts)?))
}

/// How a source breaks.
#[derive(Debug, Clone, Copy)]
pub enum Break {
    Error,
    Panic,
}

/// A partition that can be read again and again, though nobody knows.
#[derive(Debug)]
struct Again {
    schema: SchemaRef,
    batches: Vec<RecordBatch>,
    /// What comes in the place of which batch, counted from 1.
    breaks: Option<(usize, Break)>,
}

impl PartitionStream for Again {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, _: Arc<TaskContext>) -> SendableRecordBatchStream {
        let breaks = self.breaks;
        let items = self.batches.clone().into_iter().zip(1..).map(move |(batch, number)| match breaks {
            Some((at, Break::Error)) if at == number => datafusion::common::exec_err!("the source broke"),
            // Like `panic!`, but nothing is printed.
            Some((at, Break::Panic)) if at == number => {
                std::panic::resume_unwind(Box::new("the source panicked"))
            }
            _ => Ok(batch),
        });
        Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&self.schema), futures::stream::iter(items)))
    }
}

/// Rows of each source batch of [`unknown`] and [`breaking`].
pub const BATCH_ROWS: i64 = 700;

/// A partition for each range (first id, rows), of a kind that is not known to be repeatable.
pub fn unknown(ranges: &[(i64, i64)]) -> TestResult<Arc<dyn TableProvider>> {
    again(ranges, None)
}

/// The same, but the first partition breaks at its `at`-th batch, counted from 1.
pub fn breaking(ranges: &[(i64, i64)], at: usize, how: Break) -> TestResult<Arc<dyn TableProvider>> {
    again(ranges, Some((at, how)))
}

fn again(ranges: &[(i64, i64)], breaks: Option<(usize, Break)>) -> TestResult<Arc<dyn TableProvider>> {
    let schema = table(0, 1)?.schema();
    let parts = ranges.iter().enumerate().map(|(part, range)| {
        let (batches, breaks) = (batches(*range)?, breaks.filter(|_| part == 0));
        let part: Arc<dyn PartitionStream> = Arc::new(Again { schema: Arc::clone(&schema), batches, breaks });
        Ok(part)
    });
    Ok(Arc::new(StreamingTable::try_new(Arc::clone(&schema), parts.collect::<TestResult<_>>()?)?))
}

/// The rows of a range (first id, rows) in batches of [`BATCH_ROWS`].
fn batches((first, rows): (i64, i64)) -> TestResult<Vec<RecordBatch>> {
    let (all, each) = (table(first, rows)?, BATCH_ROWS as usize);
    Ok((0..all.num_rows()).step_by(each).map(|at| all.slice(at, each.min(all.num_rows() - at))).collect())
}

/// The same rows as [`unknown`], in memory.
pub fn memory(ranges: &[(i64, i64)]) -> TestResult<Arc<dyn TableProvider>> {
    let parts = ranges.iter().map(|range| batches(*range)).collect::<TestResult<_>>()?;
    Ok(Arc::new(MemTable::try_new(table(0, 1)?.schema(), parts)?))
}

/// One partition that counts how often it was asked for a batch.
#[derive(Debug)]
struct Watched {
    rows: RecordBatch,
    asked: Arc<AtomicUsize>,
}

impl PartitionStream for Watched {
    fn schema(&self) -> &SchemaRef {
        self.rows.schema_ref()
    }

    fn execute(&self, _: Arc<TaskContext>) -> SendableRecordBatchStream {
        let asked = Arc::clone(&self.asked);
        let rows = futures::stream::iter([Ok(self.rows.clone())]).inspect(move |_| {
            asked.fetch_add(1, Ordering::SeqCst);
        });
        Box::pin(RecordBatchStreamAdapter::new(self.rows.schema(), rows))
    }
}

/// A table of one partition and one batch; `asked` counts the batches that were taken from it.
pub fn watched(rows: i64, asked: &Arc<AtomicUsize>) -> TestResult<Arc<dyn TableProvider>> {
    let part = Watched { rows: table(0, rows)?, asked: Arc::clone(asked) };
    Ok(Arc::new(StreamingTable::try_new(part.rows.schema(), vec![Arc::new(part)])?))
}

/// A partition that gives the same batch again and again.
#[derive(Debug)]
struct Repeated {
    batch: RecordBatch,
    times: usize,
}

impl PartitionStream for Repeated {
    fn schema(&self) -> &SchemaRef {
        self.batch.schema_ref()
    }

    fn execute(&self, _: Arc<TaskContext>) -> SendableRecordBatchStream {
        let (batch, times) = (self.batch.clone(), self.times);
        let rows = futures::stream::iter((0..times).map(move |_| Ok(batch.clone())));
        Box::pin(RecordBatchStreamAdapter::new(self.batch.schema(), rows))
    }
}

/// A table of int64 columns a to h: each partition has `rows` rows `times` times over.
pub fn repeated(partitions: i64, times: usize, rows: i64) -> TestResult<Arc<dyn TableProvider>> {
    let column = |factor: i64| -> ArrayRef {
        Arc::new(Int64Array::from_iter((0..rows).map(|row| {
            let value = row.wrapping_mul(factor) % 1_000_003;
            (value % 11 != 4).then_some(value)
        })))
    };
    let columns = ["a", "b", "c", "d", "e", "f", "g", "h"]
        .into_iter()
        .zip(1..)
        .map(|(name, n)| (name, column(7_919 * n)));
    let batch = RecordBatch::try_from_iter(columns)?;
    let parts = (0..partitions)
        .map(|_| -> Arc<dyn PartitionStream> { Arc::new(Repeated { batch: batch.clone(), times }) });
    Ok(Arc::new(StreamingTable::try_new(batch.schema(), parts.collect())?))
}
