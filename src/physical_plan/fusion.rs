//! What the operators of an island read once they are fused, for checks at planning.

use std::any::Any;
use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use datafusion::common::Result;

use crate::memory::batch::{GpuBatch, LazyColumn, SourceBatch};
use crate::memory::upload::value_type;

use super::aggregate::AggregateOp;
use super::op::{DeviceOp, OpKind};
use super::params::ParamValues;

/// The most buffers that the source columns of one kernel take when `ops`, from the border of `input` rows upwards, are
/// fused: one for a column's values, one for its validity if it may be NULL, and one for the look-up tables if there are some.
///
/// # Errors
/// An internal error when the operators do not fit their input.
pub(crate) fn most_column_buffers(input: &SchemaRef, ops: &[&Arc<dyn DeviceOp>]) -> Result<usize> {
    let mut batch = GpuBatch::new(Arc::new(SourceBatch::new(Arc::clone(input), vec![])));
    let mut most = 0;
    for op in ops {
        let params: ParamValues = op.params().sources.iter().map(|source| (source.ty, None)).collect();
        match op.kind() {
            OpKind::RowLocal(op) => batch = op.apply(batch, &params)?,
            OpKind::Breaker(_) => {
                let any: &dyn Any = op.as_ref();
                if let Some(aggregate) = any.downcast_ref::<AggregateOp>() {
                    most = most.max(buffers(input, &aggregate.fused(&mut batch, &params)?.2));
                }
                // Its rows go on from the host; nothing of an island is fused across it.
                return Ok(most);
            }
        }
    }
    let mut read = BTreeSet::new();
    let computed = batch.columns().iter().filter_map(|column| match column {
        LazyColumn::Computed(expr) => Some(expr),
        LazyColumn::Source(_) => None,
    });
    // The outputs may be spread over several kernels; the selection is one.
    if let Some(selection) = batch.guarded_selection(&computed.collect::<Vec<_>>()) {
        selection.collect_columns(&mut read);
    }
    Ok(most.max(buffers(input, &read)))
}

fn buffers(input: &SchemaRef, columns: &BTreeSet<usize>) -> usize {
    let fields = columns.iter().filter_map(|index| input.fields().get(*index));
    let (coded, plain): (Vec<_>, Vec<_>) = fields.partition(|field| value_type(field.data_type()).is_none());
    // Codes tell which rows are NULL; all look-up tables lie in one buffer.
    let tables = usize::from(!coded.is_empty());
    coded.len() + tables + plain.iter().map(|field| 1 + usize::from(field.is_nullable())).sum::<usize>()
}
