//! Lazy batches become host rows: the output of a row-local GPU node under a CPU parent.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, RecordBatch, RecordBatchOptions, UInt32Array};
use arrow::compute::{BatchCoalescer, FilterBuilder, filter};
use arrow::datatypes::{FieldRef, SchemaRef, UInt32Type};
use datafusion::common::runtime::SpawnedTask;
use datafusion::common::{DataFusionError, Result};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::metrics::RecordOutput;
use datafusion::physical_plan::stream::{RecordBatchReceiverStream, RecordBatchStreamAdapter};
use futures::stream::FuturesOrdered;
use futures::{FutureExt, StreamExt};
use tokio::sync::mpsc::Sender;
use tokio::task::JoinError;
use tracing::Instrument;

use crate::config::FallbackScope;
use crate::error::{GpuError, GpuResult};
use crate::kernels::expr::{Expr, ValueType};
use crate::kernels::program::{ColumnShape, Program, Segment, columns_of, tables_of};
use crate::kernels::select::{SelectResult, select, select_bytes};
use crate::kernels::table_copy_bytes;
use crate::memory::batch::{GpuBatch, LazyColumn};
use crate::memory::launch::LaunchScope;
use crate::memory::lookup::Table;
use crate::memory::upload::{representation, staging_bytes};
use crate::memory::{ColumnRepr, MagnitudeBits, value_type};

use super::border::DeviceStream;
use super::exec::GpuExec;
use super::lookup;
use super::replay::{Replayed, RowLocalChain};
use super::retry::{Part, with_retry};
use super::run::{FallbackReason, RunContext};

/// Batches whose device work is under way at a time: one computes while the next uploads.
const IN_FLIGHT: usize = 2;

/// Runs a row-local node for a host parent. The work is done by one task, which begins when the stream is asked for its first
/// batch and ends when it is dropped. Not before: a join asks its probe side only once the build side is complete and
/// not empty, and narrows the scans below by then.
pub(crate) fn execute(
    exec: &GpuExec,
    fetch: Option<usize>,
    partition: usize,
    context: &Arc<TaskContext>,
) -> Result<SendableRecordBatchStream> {
    let run = RunContext::open(exec, partition, context);
    let input = DeviceStream::through(exec, partition, &run)?;
    let schema = exec.schema();
    let rows = context.session_config().batch_size();
    let started = {
        let schema = Arc::clone(&schema);
        async move { start(input, run, schema, fetch, rows) }
    };
    Ok(Box::pin(RecordBatchStreamAdapter::new(schema, started.flatten_stream())))
}

/// Starts the task.
fn start(
    input: DeviceStream,
    run: Arc<RunContext>,
    schema: SchemaRef,
    fetch: Option<usize>,
    rows: usize,
) -> SendableRecordBatchStream {
    let mut builder = RecordBatchReceiverStream::builder(Arc::clone(&schema), 2);
    let sender = builder.tx();
    let output =
        Output { coalescer: BatchCoalescer::new(Arc::clone(&schema), rows), remaining: fetch, sender };
    let span = run.span().clone();
    let work = async move {
        let sender = output.sender.clone();
        if let Err(error) = drive(input, run, schema, output).await {
            // In line behind the rows: the error of a task would overtake them. Nobody may be listening any more.
            let _ = sender.send(Err(error)).await;
        }
        Ok(())
    };
    builder.spawn(work.instrument(span));
    builder.build()
}

/// Rows on their way out: cut to DataFusion's batch size, and to `fetch` rows.
struct Output {
    coalescer: BatchCoalescer,
    remaining: Option<usize>,
    sender: Sender<Result<RecordBatch>>,
}

impl Output {
    /// Sends `batches`; false when nobody wants more.
    async fn push(&mut self, batches: Vec<RecordBatch>, run: &RunContext) -> Result<bool> {
        for mut batch in batches {
            if let Some(remaining) = self.remaining.as_mut() {
                batch = batch.slice(0, batch.num_rows().min(*remaining));
                *remaining -= batch.num_rows();
            }
            self.coalescer.push_batch(batch)?;
            if !self.flush(run).await {
                return Ok(false);
            }
        }
        Ok(self.remaining != Some(0))
    }

    async fn flush(&mut self, run: &RunContext) -> bool {
        while let Some(batch) = self.coalescer.next_completed_batch() {
            let batch = batch.record_output(&run.metrics.baseline);
            if self.sender.send(Ok(batch)).await.is_err() {
                return false;
            }
        }
        true
    }

    async fn finish(&mut self, run: &RunContext) -> Result<()> {
        self.coalescer.finish_buffered_batch()?;
        self.flush(run).await;
        Ok(())
    }
}

async fn drive(
    mut input: DeviceStream,
    run: Arc<RunContext>,
    schema: SchemaRef,
    mut output: Output,
) -> Result<()> {
    let chain = Arc::clone(input.chain());
    let mut in_flight = FuturesOrdered::new();
    let (mut ended, mut failed) = (false, None);
    loop {
        tokio::select! {
            biased;
            Some(done) = in_flight.next(), if !in_flight.is_empty() => {
                let joined: std::result::Result<Result<Replayed>, JoinError> = done;
                let done = joined.map_err(|error| DataFusionError::ExecutionJoin(Box::new(error)))??;
                if !output.push(done.rows, &run).await? {
                    // Nobody asks for what comes after these rows, not even for the input's error.
                    failed = None;
                    break;
                }
                if let Some(error) = done.error {
                    failed = Some(error);
                    break;
                }
            }
            next = input.next(), if !ended && in_flight.len() < IN_FLIGHT => match next {
                None => ended = true,
                // Rows before the error go out first.
                Some(Err(error)) => {
                    failed = Some(error);
                    ended = true;
                }
                Some(Ok(batch)) => {
                    let (run, chain, schema) = (Arc::clone(&run), Arc::clone(&chain), Arc::clone(&schema));
                    let span = run.span().clone();
                    let work = async move { materialize(batch, &run, &chain, &schema).await };
                    // A task of its own: rows of one batch are put together while the next is read.
                    in_flight.push_back(SpawnedTask::spawn(work.instrument(span)).join_unwind());
                }
            },
            else => break,
        }
    }
    output.finish(&run).await?;
    failed.map_or(Ok(()), Err)
}

/// The rows of `batch`, from the device or, for parts where that cannot be, from the CPU.
async fn materialize(
    mut batch: GpuBatch,
    run: &Arc<RunContext>,
    chain: &RowLocalChain,
    schema: &SchemaRef,
) -> Result<Replayed> {
    if batch.is_undecided() {
        return on_cpu(&batch, run, chain, &FallbackReason::NoParameter).await;
    }
    let plan = Arc::new(SelectPlan::new(&batch));
    if let Err(reason) = lookup::prepare(run, &mut batch, &plan.all_tables()).await {
        return on_cpu(&batch, run, chain, &reason).await;
    }
    let (needs, limit) = (Arc::clone(&plan), run.max_storage_buffers());
    let mut parts = with_retry(
        run,
        batch,
        move |batch| needs.need(limit, batch),
        move |scope, batch| {
            let plan = Arc::clone(&plan);
            async move { plan.select(&scope, &batch).await }
        },
    );
    let mut done = Replayed::default();
    while let Some(Part { input, outcome }) = parts.next().await? {
        let part = match outcome {
            Ok(selected) if !selected.fault && !meets_poison(&input, &selected)? => {
                match assemble(&input, &selected, schema) {
                    Ok(rows) => {
                        run.metrics.gpu_batch();
                        Replayed { rows, error: None }
                    }
                    Err(error) => {
                        let reason = FallbackReason::NotAssembled { message: error.to_string() };
                        on_cpu(&input, run, chain, &reason).await?
                    }
                }
            }
            Ok(_) => on_cpu(&input, run, chain, &FallbackReason::ArithmeticFault).await?,
            Err(error) => on_cpu(&input, run, chain, &error.into()).await?,
        };
        done.rows.extend(part.rows);
        done.error = part.error;
        if done.error.is_some() {
            break;
        }
    }
    Ok(done)
}

async fn on_cpu(
    batch: &GpuBatch,
    run: &RunContext,
    chain: &RowLocalChain,
    reason: &FallbackReason,
) -> Result<Replayed> {
    run.fall_back(reason, FallbackScope::Batch)?;
    run.metrics.cpu_batch();
    chain.replay(batch.source().host(), run.task()).await
}

/// What is computed of a batch, and of each of its parts.
struct SelectPlan {
    program: Program,
    /// What the device computes. Results of functions of strings are taken on the host, which has codes and tables.
    outputs: Vec<Arc<Expr>>,
    needed: BTreeSet<usize>,
    /// Tables that the device looks up, and those that the host does.
    tables: BTreeSet<usize>,
    host_tables: BTreeSet<usize>,
}

impl SelectPlan {
    fn new(batch: &GpuBatch) -> Self {
        let computed = batch.columns().iter().filter_map(|column| match column {
            LazyColumn::Computed(expr) => Some(expr),
            LazyColumn::Source(_) => None,
        });
        let evaluated: Vec<_> = computed.collect();
        let selection = batch.guarded_selection(&evaluated);
        let (mut outputs, mut host_tables) = (vec![], BTreeSet::new());
        for expr in evaluated {
            match expr.as_ref() {
                Expr::Lookup { table, .. } => _ = host_tables.insert(*table),
                _ => outputs.push(Arc::clone(expr)),
            }
        }
        let program = Program { selection, params: batch.params().to_vec() };
        let exprs = || outputs.iter().chain(&program.selection);
        let (needed, tables) = (columns_of(exprs()), tables_of(exprs()).into_keys().collect());
        Self { program, outputs, needed, tables, host_tables }
    }

    fn all_tables(&self) -> BTreeSet<usize> {
        self.tables.union(&self.host_tables).copied().collect()
    }

    /// Device bytes held at a time where a kernel binds at most `limit` storage buffers: columns, look-up tables, staging memory, outputs and their read-back.
    fn need(&self, limit: u32, batch: &GpuBatch) -> u64 {
        let columns = batch.source().column_bytes(&self.needed);
        let tables = batch.table_bytes(&self.tables);
        let outputs =
            select_bytes(limit, &self.program, &self.outputs, &self.shapes(batch), batch.source().rows());
        let uploaded = |bytes: u64| bytes.saturating_add(staging_bytes(bytes));
        // Each kernel that reads some has a copy of the tables; outputs share kernels, or not.
        let copy =
            table_copy_bytes(&self.program, self.needed.len(), &self.tables, batch.table_len(&self.tables));
        let reading = self.program.selection.iter().chain(&self.outputs);
        let reading = reading.filter(|expr| !tables_of([*expr]).is_empty()).count();
        let copies = copy.saturating_mul(reading as u64);
        uploaded(columns).saturating_add(uploaded(tables)).saturating_add(copies).saturating_add(outputs)
    }

    /// The columns' shapes before they are uploaded: which of them have a bitmap is known only then.
    fn shapes(&self, batch: &GpuBatch) -> Vec<ColumnShape> {
        let source = batch.source();
        let fields = self.needed.iter().filter_map(|at| Some((*at, source.schema().fields().get(*at)?)));
        let shape = |(index, field): (usize, &FieldRef)| {
            let ty = value_type(field.data_type()).unwrap_or(ValueType::Opaque);
            let opaque = ty == ValueType::Opaque;
            let repr = match representation(ty) {
                ColumnRepr::Codes if source.dictionary(index).is_none() => ColumnRepr::Presence,
                repr => repr,
            };
            let nullable = !opaque && field.is_nullable();
            ColumnShape { index, ty, repr, nullable, magnitude: MagnitudeBits(128), packed: false }
        };
        fields.map(shape).collect()
    }

    async fn select(&self, scope: &LaunchScope, batch: &GpuBatch) -> GpuResult<SelectResult> {
        let rows = batch.source().rows();
        if self.program.selection.is_none() && self.outputs.is_empty() {
            // All columns come from the host.
            return Ok(SelectResult { mask: None, selected: rows, outputs: vec![], fault: false });
        }
        let segment = Segment {
            columns: batch.source().device_columns(scope, &self.needed).await?,
            rows,
            tables: batch.device_tables(scope, &self.tables).await?,
        };
        let mut results = select(scope, &self.program, &self.outputs, &[segment]).await?;
        results.pop().ok_or_else(|| GpuError::Internal("select gave no result for its segment".to_owned()))
    }
}

/// The codes of the selected rows of a column in host batch `at`, whose first row is `first`, and the table that they index.
fn codes_of<'a>(
    batch: &'a GpuBatch,
    selected: &SelectResult,
    table: usize,
    at: usize,
    first: usize,
) -> Result<(&'a Arc<Table>, UInt32Array)> {
    let missing = || GpuError::Internal(format!("look-up table {table} was not computed"));
    let (table, column) = batch.table(table).ok_or_else(missing)?;
    let dictionary = batch.source().dictionary(column).ok_or_else(missing)?;
    let codes = dictionary.codes().get(at).ok_or_else(missing)?;
    let codes = match &selected.mask {
        None => codes.clone(),
        Some(mask) => {
            let mask = BooleanArray::new(mask.slice(first, codes.len()), None);
            filter(codes, &mask)?.as_primitive::<UInt32Type>().clone()
        }
    };
    Ok((table, codes))
}

/// Whether a selected row has a value for which a function that the host looks up raised.
fn meets_poison(batch: &GpuBatch, selected: &SelectResult) -> Result<bool> {
    for column in batch.columns() {
        let LazyColumn::Computed(expr) = column else { continue };
        let Expr::Lookup { table, .. } = expr.as_ref() else { continue };
        if batch.table(*table).is_none_or(|(table, _)| table.results.poison.is_none()) {
            continue;
        }
        let mut first = 0;
        for (at, host) in batch.source().host().iter().enumerate() {
            let (table, codes) = codes_of(batch, selected, *table, at, first)?;
            if codes.values().iter().any(|code| table.results.is_poisoned(*code as usize)) {
                return Ok(true);
            }
            first += host.num_rows();
        }
    }
    Ok(false)
}

/// Host rows: columns of the source are filtered by the mask, functions of strings taken by the rows' codes, and other
/// computed columns come compacted from the device. The host batches keep their boundaries.
fn assemble(batch: &GpuBatch, selected: &SelectResult, schema: &SchemaRef) -> Result<Vec<RecordBatch>> {
    let mut result = Vec::with_capacity(batch.source().host().len());
    let (mut input_row, mut output_row) = (0, 0);
    for (at, host) in batch.source().host().iter().enumerate() {
        let first = input_row;
        let mask = selected
            .mask
            .as_ref()
            .map(|mask| BooleanArray::new(mask.slice(input_row, host.num_rows()), None));
        let rows = mask.as_ref().map_or(host.num_rows(), BooleanArray::true_count);
        input_row += host.num_rows();
        if rows == 0 {
            continue;
        }
        let predicate = mask.as_ref().map(|mask| {
            let builder = FilterBuilder::new(mask);
            if batch.columns().len() > 1 { builder.optimize().build() } else { builder.build() }
        });
        let mut computed = selected.outputs.iter();
        let columns = batch
            .columns()
            .iter()
            .zip(schema.fields())
            .map(|(column, field)| -> Result<ArrayRef> {
                match column {
                    LazyColumn::Source(index) => {
                        let array = host.column(*index);
                        Ok(match &predicate {
                            Some(predicate) => predicate.filter(array)?,
                            None => Arc::clone(array),
                        })
                    }
                    LazyColumn::Computed(expr) if let Expr::Lookup { table, .. } = expr.as_ref() => {
                        let (table, codes) = codes_of(batch, selected, *table, at, first)?;
                        Ok(table.take(&codes, field.data_type())?)
                    }
                    LazyColumn::Computed(_) => computed
                        .next()
                        .map(|array| array.slice(output_row, rows))
                        .ok_or_else(|| GpuError::Internal("a computed column is missing".to_owned()).into()),
                }
            })
            .collect::<Result<Vec<_>>>()?;
        output_row += rows;
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        result.push(RecordBatch::try_new_with_options(Arc::clone(schema), columns, &options)?);
    }
    Ok(result)
}
