//! Where host batches become lazy device batches.

use std::collections::VecDeque;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::datatypes::{DataType, SchemaRef};
use datafusion::common::{DataFusionError, Result};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::StreamExt;

use crate::memory::batch::{GpuBatch, SourceBatch};
use crate::memory::upload::{device_bytes, value_type};

use super::exec::GpuExec;
use super::op::{DeviceOp, OpKind};
use super::params::ParamValues;
use super::replay::{ReplaySlot, RowLocalChain};
use super::retry::MIN_SPLIT_ROWS;
use super::run::RunContext;

/// Gathers the small batches of a host stream into big ones.
struct Border {
    input: Option<SendableRecordBatchStream>,
    schema: SchemaRef,
    /// Batches, and the bytes of what of them stays on the host.
    pending: VecDeque<(RecordBatch, u64)>,
    rows: usize,
    bytes: u64,
    target_rows: usize,
    /// Bytes that stay on the host, beyond which a device batch gets no more rows.
    target_bytes: u64,
    /// The columns that stay on the host.
    host_columns: Vec<usize>,
    /// The input's error, given out after the rows that came before it: a LIMIT above may never reach it.
    failed: Option<DataFusionError>,
}

impl Border {
    fn new(input: SendableRecordBatchStream, run: &RunContext) -> Self {
        let schema = input.schema();
        let target_rows = target_rows(&schema, run);
        let fields = schema.fields().iter().enumerate();
        let host_columns =
            fields.filter(|(_, field)| value_type(field.data_type()).is_none()).map(|(at, _)| at).collect();
        Self {
            input: Some(input),
            schema,
            pending: VecDeque::new(),
            rows: 0,
            bytes: 0,
            target_rows,
            target_bytes: run.batch_bytes().max(1),
            host_columns,
            failed: None,
        }
    }

    /// The next source batch; `None` at the end of the input. Cancel safe: what was read stays in `pending`.
    async fn next(&mut self) -> Option<Result<SourceBatch>> {
        while self.rows < self.target_rows
            && self.bytes < self.target_bytes
            && let Some(input) = self.input.as_mut()
        {
            match input.next().await {
                Some(Ok(batch)) => {
                    self.rows += batch.num_rows();
                    if batch.num_rows() > 0 {
                        let bytes = self.host_columns.iter().map(|at| slice_bytes(batch.column(*at))).sum();
                        self.bytes += bytes;
                        self.pending.push_back((batch, bytes));
                    }
                }
                Some(Err(error)) => {
                    self.input = None;
                    self.failed = Some(error);
                }
                None => self.input = None,
            }
        }
        if self.rows == 0 {
            return self.failed.take().map(Err);
        }
        Some(Ok(SourceBatch::new(Arc::clone(&self.schema), self.take())))
    }

    /// At most `target_rows` of the pending rows, and about `target_bytes`; a batch that is too long is sliced.
    fn take(&mut self) -> Vec<RecordBatch> {
        let mut taken = vec![];
        let (mut room, mut taken_bytes) = (self.target_rows, 0);
        while room > 0
            && taken_bytes < self.target_bytes
            && let Some((batch, bytes)) = self.pending.pop_front()
        {
            let rows = batch.num_rows();
            if rows <= room {
                room -= rows;
                taken_bytes += bytes;
                self.rows -= rows;
                self.bytes -= bytes;
                taken.push(batch);
            } else if taken.is_empty() {
                let part = bytes / rows as u64 * room as u64;
                self.rows -= room;
                self.bytes -= part;
                taken.push(batch.slice(0, room));
                self.pending.push_front((batch.slice(room, rows - room), bytes - part));
                break;
            } else {
                self.pending.push_front((batch, bytes));
                break;
            }
        }
        taken
    }
}

/// Bytes that the rows of `array` take, without those of other slices of the same memory.
fn slice_bytes(array: &ArrayRef) -> u64 {
    let long = match array.data_type() {
        DataType::Utf8View => array.as_string_view().total_buffer_bytes_used(),
        DataType::BinaryView => array.as_binary_view().total_buffer_bytes_used(),
        _ => 0,
    };
    let bytes = array.to_data().get_slice_memory_size();
    bytes.unwrap_or_else(|_| array.get_array_memory_size()).saturating_add(long) as u64
}

/// Rows of a device batch: the configured number, fewer when the columns that can live on the device are wide, or the memory
/// is so little that not even four batches fit.
fn target_rows(schema: &SchemaRef, run: &RunContext) -> usize {
    const SAMPLE: usize = 1024;
    let bytes: u64 = schema
        .fields()
        .iter()
        .map(|field| device_bytes(field.data_type(), SAMPLE, field.is_nullable()))
        .sum();
    let rows = |limit: u64| {
        let rows = limit.saturating_mul(SAMPLE as u64).checked_div(bytes).unwrap_or(u64::MAX);
        usize::try_from(rows).unwrap_or(usize::MAX)
    };
    let by_memory = rows(run.memory_limit() / 4).max(MIN_SPLIT_ROWS);
    run.batch_rows().min(rows(run.batch_bytes())).min(by_memory).max(1)
}

/// The lazy batches of one partition of a GPU subtree: a host border, and the row-local operators over it.
pub(crate) struct DeviceStream {
    border: Border,
    /// Operators with their parameter values; `None` where those could not be computed.
    steps: Vec<(Arc<dyn DeviceOp>, Option<ParamValues>)>,
    chain: Arc<RowLocalChain>,
}

impl DeviceStream {
    /// Opens partition `partition` of `plan`: its row-local GPU nodes down to the first node whose input are host batches, which
    /// is executed.
    ///
    /// # Errors
    /// Those of executing the host plan and of evaluating parameters.
    pub(crate) fn open(plan: &Arc<dyn ExecutionPlan>, partition: usize, run: &RunContext) -> Result<Self> {
        if let Some(exec) = GpuExec::find(plan)
            && exec.has_device_output()
        {
            return Self::through(exec, partition, run);
        }
        Self::of_host(plan, partition, run)
    }

    /// Executes partition `partition` of `plan`, whatever it is.
    fn of_host(plan: &Arc<dyn ExecutionPlan>, partition: usize, run: &RunContext) -> Result<Self> {
        let input = plan.execute(partition, Arc::clone(run.task()))?;
        Ok(Self {
            border: Border::new(input, run),
            steps: vec![],
            chain: Arc::new(RowLocalChain::new(Arc::clone(plan), partition)),
        })
    }

    /// Opens the input of `exec`, a row-local node, and applies it.
    pub(crate) fn through(exec: &GpuExec, partition: usize, run: &RunContext) -> Result<Self> {
        let children = exec.children();
        let [child] = children.as_slice() else {
            return datafusion::common::internal_err!("{} must have one child", exec.name());
        };
        let mut stream = match exec.has_device_input() {
            true => Self::open(child, partition, run)?,
            false => Self::of_host(child, partition, run)?,
        };
        stream.steps.push((Arc::clone(exec.op()), exec.op().params().resolve().ok()));
        let mut chain = stream.chain.as_ref().clone();
        chain.push(exec.template().clone());
        stream.chain = Arc::new(chain);
        Ok(stream)
    }

    /// The CPU nodes that the lazy batches stand for.
    pub(crate) fn chain(&self) -> &Arc<RowLocalChain> {
        &self.chain
    }

    /// The next batch; `None` at the end. Cancel safe.
    ///
    /// # Errors
    /// The input's own, and internal errors of the operators.
    pub(crate) async fn next(&mut self) -> Option<Result<GpuBatch>> {
        let source = match self.border.next().await? {
            Ok(source) => source,
            Err(error) => return Some(Err(error)),
        };
        Some(self.lazy(source))
    }

    /// Puts an error back that [`Self::next`] gave.
    pub(crate) fn fail(&mut self, error: DataFusionError) {
        self.border.failed = Some(error);
    }

    /// What a replay needs to go on from here: host batches that were read but not given out, and the live input, or the
    /// error with which it ended.
    pub(crate) fn into_rest(self) -> ReplaySlot {
        let border = self.border;
        let tail = match border.failed {
            Some(error) => {
                let end = futures::stream::once(std::future::ready(Err(error)));
                let end: SendableRecordBatchStream =
                    Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&border.schema), end));
                Some(end)
            }
            None => border.input,
        };
        ReplaySlot {
            batches: border.pending.into_iter().map(|(batch, _)| batch).collect(),
            tail,
            memory: None,
        }
    }

    /// The row-local operators applied to a source batch.
    fn lazy(&self, source: SourceBatch) -> Result<GpuBatch> {
        let mut batch = GpuBatch::new(Arc::new(source));
        for (op, params) in &self.steps {
            match (op.kind(), params) {
                (OpKind::RowLocal(op), Some(params)) => batch = op.apply(batch, params)?,
                _ => {
                    batch.leave_undecided();
                    break;
                }
            }
        }
        Ok(batch)
    }
}
