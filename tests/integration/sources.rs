//! Table sources that the tests need.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use datafusion::arrow::array::{ArrayRef, Int64Array, RecordBatch};
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::catalog::TableProvider;
use datafusion::catalog::streaming::StreamingTable;
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
            let all = table(p * rows, rows)?;
            let batches = (0..rows as usize)
                .step_by(700)
                .map(|at| all.slice(at, 700.min(rows as usize - at)))
                .collect();
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
