//! Aggregating a batch on the CPU into the same kind of state as the kernel's.

use std::borrow::Cow;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, RecordBatch};
use arrow::buffer::NullBuffer;
use datafusion::common::{Result, internal_datafusion_err, internal_err};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;
use datafusion::physical_expr::expressions::CastExpr;
use datafusion::physical_plan::filter::batch_filter;

use crate::kernels::expr::ValueType;
use crate::kernels::reduce::{AggregateKind, AggregateSpec, AggregateState};
use crate::kernels::reference::update_from_array;

use super::value_type;

/// One aggregate in DataFusion's own expressions.
#[derive(Debug)]
pub(super) struct CpuAggregate {
    kind: AggregateKind,
    ty: ValueType,
    args: Vec<Arc<dyn PhysicalExpr>>,
    filter: Option<Arc<dyn PhysicalExpr>>,
}

impl CpuAggregate {
    /// The CPU form of `spec`, which was lowered from `function`.
    pub(super) fn try_new(
        spec: &AggregateSpec,
        function: &AggregateFunctionExpr,
        filter: Option<Arc<dyn PhysicalExpr>>,
    ) -> Result<Self> {
        let missing = || internal_datafusion_err!("GpuAggregateExec: {} has no argument", function.name());
        let args = match spec.kind {
            // A count may have several arguments, of which none may be NULL; that of count(*) is a literal.
            AggregateKind::CountRows | AggregateKind::Count => function.expressions(),
            _ if takes_cast_value(spec) => {
                // avg(CAST(x AS Float64)): the state is made of x itself.
                let expr = function.expressions().into_iter().next().ok_or_else(missing)?;
                let cast = expr.downcast_ref::<CastExpr>().ok_or_else(missing)?;
                vec![Arc::clone(cast.expr())]
            }
            _ => vec![function.expressions().into_iter().next().ok_or_else(missing)?],
        };
        Ok(Self { kind: spec.kind, ty: value_type(spec), args, filter })
    }
}

/// Whether the aggregate was lowered without the cast to Float64 around its argument.
fn takes_cast_value(spec: &AggregateSpec) -> bool {
    match spec.kind {
        AggregateKind::SumAsFloat64 => true,
        AggregateKind::SumFloat => value_type(spec) == ValueType::Float32,
        _ => false,
    }
}

/// States of `aggregates` over `batches`. Each argument is evaluated on the rows that pass the aggregate's filter, as
/// DataFusion does.
///
/// # Errors
/// The expressions' own errors: this is where the CPU gives its verdict.
pub(super) fn reduce(aggregates: &[CpuAggregate], batches: &[RecordBatch]) -> Result<Vec<AggregateState>> {
    aggregates
        .iter()
        .map(|aggregate| {
            let mut state = aggregate.kind.init();
            for batch in batches {
                let rows = match &aggregate.filter {
                    Some(filter) => Cow::Owned(batch_filter(batch, filter)?),
                    None => Cow::Borrowed(batch),
                };
                let arrays = aggregate
                    .args
                    .iter()
                    .map(|arg| arg.evaluate(&rows)?.into_array(rows.num_rows()))
                    .collect::<Result<Vec<_>>>()?;
                match (aggregate.kind, arrays.as_slice()) {
                    (AggregateKind::CountRows | AggregateKind::Count, arrays) => {
                        state.count += without_nulls(arrays, rows.num_rows());
                    }
                    (kind, [array]) => {
                        update_from_array(
                            kind,
                            aggregate.ty,
                            &mut state,
                            Some(array),
                            rows.num_rows(),
                            None,
                        )?;
                    }
                    (kind, arrays) => return internal_err!("{kind} of {} arguments", arrays.len()),
                }
            }
            Ok(state)
        })
        .collect()
}

/// Rows in which no array is NULL.
fn without_nulls(arrays: &[ArrayRef], rows: usize) -> u64 {
    let valid = arrays
        .iter()
        .fold(None, |all, array| NullBuffer::union(all.as_ref(), array.logical_nulls().as_ref()));
    (rows - valid.map_or(0, |valid| valid.null_count())) as u64
}
