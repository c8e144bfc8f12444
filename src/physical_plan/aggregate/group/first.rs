//! first_value and last_value: kernels tell which rows, the host has the values.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, RecordBatch, RecordBatchOptions, UInt32Array};
use arrow::compute::{concat_batches, interleave, take};
use arrow::datatypes::UInt32Type;
use datafusion::common::{Result, internal_datafusion_err, internal_err};
use datafusion::execution::TaskContext;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;

use crate::kernels::group_by::{GroupResult, GroupStates, StateValues};
use crate::kernels::reduce::AggregateKind;

use super::super::super::replay::RowLocalChain;
use super::GroupOp;

/// By aggregate: its state columns, where they are made of rows.
pub(super) type RowStates = Vec<Option<Vec<ArrayRef>>>;

/// Where the rows are that kernels tell by number.
pub(super) struct Rows<'a> {
    pub op: &'a GroupOp,
    pub chain: &'a RowLocalChain,
    pub host: &'a [RecordBatch],
    pub task: &'a Arc<TaskContext>,
}

impl Rows<'_> {
    /// DataFusion's states of the rows that `result` has found: value, value of the order, and whether there is a row.
    ///
    /// # Errors
    /// Those of the expressions, though a kernel found that no row raises; the CPU decides then.
    pub(super) async fn states(&self, result: &GroupResult) -> Result<RowStates> {
        let mut all = vec![];
        // Functions of the same order share their rows.
        let mut taken: Vec<(UInt32Array, RecordBatch)> = vec![];
        for (number, (spec, states)) in self.op.aggregates.iter().zip(&result.states).enumerate() {
            if !matches!(spec.kind, AggregateKind::FirstRow(_)) {
                all.push(None);
                continue;
            }
            let found = found(states)?;
            let Some(function) = self.op.functions.get(number) else {
                return internal_err!("GpuAggregateExec: an aggregate has no function");
            };
            let rows: UInt32Array = found.iter().flatten().map(Some).collect();
            let known = taken.iter().position(|(known, _)| *known == rows);
            let known = match known {
                Some(known) => known,
                None => {
                    let batch = self.take(&rows).await?;
                    taken.push((rows, batch));
                    taken.len() - 1
                }
            };
            let batch = taken.get(known).map(|(_, batch)| batch);
            let batch = batch.ok_or_else(|| internal_datafusion_err!("GpuAggregateExec: rows were lost"))?;
            all.push(Some(columns(function, batch, &found)?));
        }
        Ok(all)
    }

    /// The rows of the operator's input that come from these rows of the source, in this order.
    async fn take(&self, rows: &UInt32Array) -> Result<RecordBatch> {
        let schema = Arc::clone(&self.op.rows_schema);
        let Some(first) = self.host.first().filter(|_| !rows.is_empty()) else {
            return Ok(RecordBatch::new_empty(schema));
        };
        let ends = self.ends();
        let places = rows.values().iter().map(|row| place(&ends, *row)).collect::<Result<Vec<_>>>()?;
        let columns = (0..first.num_columns()).map(|column| {
            let chunks: Vec<&dyn Array> =
                self.host.iter().map(|batch| batch.column(column).as_ref()).collect();
            interleave(&chunks, &places)
        });
        let columns = columns.collect::<Result<Vec<_>, _>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(rows.len()));
        let source = RecordBatch::try_new_with_options(first.schema(), columns, &options)?;
        let replayed = self.chain.replay(&[source], self.task).await?.complete()?;
        let batch = concat_batches(&schema, &replayed)?;
        if batch.num_rows() != rows.len() {
            return internal_err!(
                "GpuAggregateExec: of {} rows that were selected, {} are",
                rows.len(),
                batch.num_rows()
            );
        }
        Ok(batch)
    }

    /// By host batch, the rows of it and those before.
    fn ends(&self) -> Vec<usize> {
        let mut end = 0;
        let ends = self.host.iter().map(|batch| {
            end += batch.num_rows();
            end
        });
        ends.collect()
    }
}

/// Host batch, and row in it, of a row of the source.
fn place(ends: &[usize], row: u32) -> Result<(usize, usize)> {
    let row = row as usize;
    let batch = ends.partition_point(|end| *end <= row);
    if batch == ends.len() {
        return internal_err!("GpuAggregateExec: there is no row {row}");
    }
    Ok((batch, row - batch.checked_sub(1).and_then(|before| ends.get(before)).copied().unwrap_or(0)))
}

/// The row of each group; NULL where no row contributed.
fn found(states: &GroupStates) -> Result<UInt32Array> {
    let StateValues::Array(rows) = &states.values else {
        return internal_err!("GpuAggregateExec: no rows came back");
    };
    let rows = rows.as_primitive_opt::<UInt32Type>().filter(|rows| rows.len() == states.counts.len());
    let Some(rows) = rows else { return internal_err!("GpuAggregateExec: rows of another type came back") };
    Ok(rows.values().iter().zip(&states.counts).map(|(row, count)| (*count > 0).then_some(*row)).collect())
}

/// The state columns of `function`; `batch` has the rows of the groups that have one.
fn columns(
    function: &AggregateFunctionExpr,
    batch: &RecordBatch,
    found: &UInt32Array,
) -> Result<Vec<ArrayRef>> {
    let args = function.expressions();
    let order = function.order_bys().iter().map(|order| &order.expr);
    let mut next = 0;
    let at: UInt32Array = found
        .iter()
        .map(|row| {
            row.map(|_| {
                next += 1;
                next - 1
            })
        })
        .collect();
    let spread = |expr: &Arc<dyn PhysicalExpr>| -> Result<ArrayRef> {
        let values = expr.evaluate(batch)?.into_array(batch.num_rows())?;
        if at.null_count() == 0 { Ok(values) } else { Ok(take(&values, &at, None)?) }
    };
    let mut columns = args.iter().chain(order).map(spread).collect::<Result<Vec<_>>>()?;
    let set: BooleanArray = found.iter().map(|row| Some(row.is_some())).collect();
    columns.push(Arc::new(set));
    Ok(columns)
}
