//! From merged states to DataFusion's values.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::{DataType, SchemaRef};
use datafusion::common::{Result, ScalarValue, internal_err};
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;
use datafusion::physical_plan::aggregates::AggregateOutputMode;

use crate::kernels::expr::ValueType;
use crate::kernels::reduce::{AggregateKind, AggregateSpec, AggregateState};
use crate::memory::upload::value_type;

use super::super::scalar::from_scalar;
use super::exact::Finish;

/// The one row of an aggregation: final values, or DataFusion's state columns for a partial one.
pub(super) fn finish(
    aggregates: &[AggregateSpec],
    functions: &[Arc<AggregateFunctionExpr>],
    output: AggregateOutputMode,
    states: &[AggregateState],
    schema: &SchemaRef,
) -> Result<RecordBatch> {
    let mut columns: Vec<ArrayRef> = vec![];
    for ((spec, function), state) in aggregates.iter().zip(functions).zip(states) {
        match output {
            AggregateOutputMode::Final => columns.push(final_value(spec, function, state)?.to_array()?),
            AggregateOutputMode::Partial => {
                for value in state_values(spec, function, state)? {
                    columns.push(value.to_array()?);
                }
            }
        }
    }
    Ok(RecordBatch::try_new(Arc::clone(schema), columns)?)
}

/// The final value, by DataFusion's own accumulator: it merges our state as if another partition had made it.
fn final_value(
    spec: &AggregateSpec,
    function: &AggregateFunctionExpr,
    state: &AggregateState,
) -> Result<ScalarValue> {
    match spec.kind {
        AggregateKind::SumAsFloat64 => return Ok(ScalarValue::Float64(average_of_integers(state))),
        AggregateKind::SumFloat => {
            return Ok(ScalarValue::Float64(Finish::of(function).value(state.count, &state.exact)));
        }
        _ => {}
    }
    let mut accumulator = function.create_accumulator()?;
    let columns =
        state_values(spec, function, state)?.iter().map(ScalarValue::to_array).collect::<Result<Vec<_>>>()?;
    accumulator.merge_batch(&columns)?;
    accumulator.evaluate()
}

/// The exact sum rounded once to f64 (ties to even), divided by the count; NULL without rows.
#[expect(
    clippy::cast_precision_loss,
    reason = "rounding the exact sum once is the definition; counts stay below 2^53"
)]
fn average_of_integers(state: &AggregateState) -> Option<f64> {
    (state.count > 0).then(|| state.value as f64 / state.count as f64)
}

/// The state in the layout of the function's state fields.
fn state_values(
    spec: &AggregateSpec,
    function: &AggregateFunctionExpr,
    state: &AggregateState,
) -> Result<Vec<ScalarValue>> {
    let value = (state.count > 0).then_some(state.value);
    let fields = function.state_fields()?;
    match (spec.kind, fields.as_slice()) {
        (AggregateKind::CountRows | AggregateKind::Count, [_]) => {
            Ok(vec![from_scalar(Some(i128::from(state.count)), ValueType::Int64)])
        }
        (
            AggregateKind::SumInt
            | AggregateKind::SumDecimal
            | AggregateKind::Min
            | AggregateKind::Max
            | AggregateKind::BitAnd
            | AggregateKind::BitOr
            | AggregateKind::BitXor,
            [field],
        ) => match value_type(field.data_type()) {
            Some(ty) => Ok(vec![from_scalar(value, ty)]),
            None => internal_err!("{}: state of type {}", function.name(), field.data_type()),
        },
        // avg: the count, then the sum.
        (AggregateKind::SumDecimal, [count, sum]) if count.data_type() == &DataType::UInt64 => {
            match value_type(sum.data_type()) {
                Some(ty) => Ok(vec![
                    from_scalar(Some(i128::from(state.count)), ValueType::UInt64),
                    from_scalar(value, ty),
                ]),
                None => internal_err!("{}: sum of type {}", function.name(), sum.data_type()),
            }
        }
        (kind, _) => {
            internal_err!("{}: {kind} does not have {} state columns", function.name(), fields.len())
        }
    }
}
