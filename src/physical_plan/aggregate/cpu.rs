//! Aggregating a batch on the CPU into the same kind of state as the kernel's.

use std::borrow::Cow;
use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::common::{Result, internal_datafusion_err};
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
    arg: Option<Arc<dyn PhysicalExpr>>,
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
        let arg = match spec.kind {
            AggregateKind::CountRows => None,
            AggregateKind::SumAsFloat64 => {
                // avg(CAST(x AS Float64)): the state is made of x itself.
                let expr = function.expressions().into_iter().next().ok_or_else(missing)?;
                let cast = expr.downcast_ref::<CastExpr>().ok_or_else(missing)?;
                Some(Arc::clone(cast.expr()))
            }
            _ => Some(function.expressions().into_iter().next().ok_or_else(missing)?),
        };
        Ok(Self { kind: spec.kind, ty: value_type(spec), arg, filter })
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
                let array = match &aggregate.arg {
                    Some(arg) => Some(arg.evaluate(&rows)?.into_array(rows.num_rows())?),
                    None => None,
                };
                update_from_array(
                    aggregate.kind,
                    aggregate.ty,
                    &mut state,
                    array.as_ref(),
                    rows.num_rows(),
                    None,
                );
            }
            Ok(state)
        })
        .collect()
}
