//! From a kernel's groups to the columns of DataFusion's partial states.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, ArrowPrimitiveType, AsArray, Int64Array, PrimitiveArray, RecordBatch, UInt64Array,
    make_array,
};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{DataType, Decimal32Type, Decimal64Type, Decimal128Type, FieldRef, Schema};
use datafusion::common::{Result, internal_err};
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;

use crate::kernels::ExactSum;
use crate::kernels::group_by::{GroupStates, StateValues};
use crate::kernels::reduce::{AggregateKind, AggregateSpec};
use crate::memory::batch::GpuBatch;

use super::super::exact::state_arrays;
use super::text::BatchText;

/// The state columns of one aggregate, in the layout of the function's state fields; of strings, `text` tells where the batch has
/// them.
pub(super) fn columns(
    spec: &AggregateSpec,
    function: &AggregateFunctionExpr,
    states: &GroupStates,
    text: Option<(&BatchText, &GpuBatch)>,
) -> Result<Vec<ArrayRef>> {
    let fields = function.state_fields()?;
    if let ([field], StateValues::Array(ranks), Some((text, batch))) =
        (fields.as_slice(), &states.values, text)
    {
        let ranks = with_nulls(ranks, ranks.data_type(), seen(states))?;
        return Ok(vec![typed(function.name(), &text.values(batch, &ranks)?, field)?]);
    }
    match (spec.kind, fields.as_slice(), &states.values) {
        (AggregateKind::CountRows | AggregateKind::Count, [field], _)
            if *field.data_type() == DataType::Int64 =>
        {
            let counts = states.counts.iter().map(|count| count.cast_signed());
            Ok(vec![Arc::new(Int64Array::from_iter_values(counts))])
        }
        (_, [field], StateValues::Array(values)) => {
            let values = typed(function.name(), values, field)?;
            Ok(vec![with_nulls(&values, field.data_type(), seen(states))?])
        }
        // avg: the count, then the sum; both are NULL where no row contributed.
        (AggregateKind::SumDecimal, [count, sum], StateValues::Array(values))
            if *count.data_type() == DataType::UInt64 =>
        {
            let nulls = seen(states);
            let counts = UInt64Array::new(states.counts.clone().into(), nulls.clone());
            let sums = with_nulls(&typed(function.name(), values, sum)?, sum.data_type(), nulls)?;
            Ok(vec![Arc::new(counts), sums])
        }
        (AggregateKind::SumFloat, [_, _], StateValues::Exact(sums)) if sums.len() == states.counts.len() => {
            Ok(state_arrays(states.counts.clone(), sums.iter()))
        }
        (AggregateKind::SumAsFloat64, [_, _], StateValues::Array(values)) => {
            let Some(values) = values.as_primitive_opt::<Decimal128Type>() else {
                return internal_err!("{}: sums of {}", function.name(), values.data_type());
            };
            let sums: Vec<_> = values.values().iter().map(|sum| ExactSum::from_i128(*sum)).collect();
            Ok(state_arrays(states.counts.clone(), sums.iter()))
        }
        (kind, _, values) => {
            internal_err!("{}: {kind} with {} state columns of {values:?}", function.name(), fields.len())
        }
    }
}

/// One state column out of the merged ones; of strings, `text` tells where the batch has them.
pub(super) fn merged(
    states: &GroupStates,
    text: Option<(&BatchText, &GpuBatch)>,
    field: &FieldRef,
) -> Result<ArrayRef> {
    let StateValues::Array(values) = &states.values else {
        return internal_err!("{}: states without values", field.name());
    };
    if let Some((text, batch)) = text {
        let ranks = with_nulls(values, values.data_type(), seen(states))?;
        return typed(field.name(), &text.values(batch, &ranks)?, field);
    }
    with_nulls(&typed(field.name(), values, field)?, field.data_type(), seen(states))
}

/// Which groups have contributing rows; absent where all do.
fn seen(states: &GroupStates) -> Option<NullBuffer> {
    let nulls: NullBuffer = states.counts.iter().map(|count| *count > 0).collect();
    (nulls.null_count() > 0).then_some(nulls)
}

/// `values` as an array of the field's type, which may be a decimal of another precision or of fewer bits, in which DataFusion's
/// sums wrap, or a duration.
fn typed(name: &str, values: &ArrayRef, field: &FieldRef) -> Result<ArrayRef> {
    let (from, to) = (values.data_type(), field.data_type());
    let same = match (from, to) {
        (DataType::Decimal128(_, a), DataType::Decimal64(_, b)) if a == b => {
            return with_nulls(&cut::<Decimal64Type>(values, |sum| sum as i64), to, values.nulls().cloned());
        }
        (DataType::Decimal128(_, a), DataType::Decimal32(_, b)) if a == b => {
            return with_nulls(&cut::<Decimal32Type>(values, |sum| sum as i32), to, values.nulls().cloned());
        }
        (DataType::Decimal128(_, a), DataType::Decimal128(_, b)) => a == b,
        (DataType::Int64, DataType::Duration(_)) => true,
        _ => from == to,
    };
    if !same {
        return internal_err!("{name}: a state of {to} from values of {from}");
    }
    with_nulls(values, to, values.nulls().cloned())
}

/// The low bits of sums.
fn cut<T: ArrowPrimitiveType>(sums: &ArrayRef, low: impl Fn(i128) -> T::Native) -> ArrayRef {
    let sums = sums.as_primitive::<Decimal128Type>().values();
    Arc::new(PrimitiveArray::<T>::from_iter_values(sums.iter().map(|sum| low(*sum))))
}

fn with_nulls(values: &ArrayRef, ty: &DataType, nulls: Option<NullBuffer>) -> Result<ArrayRef> {
    let data = values.to_data().into_builder().data_type(ty.clone()).nulls(nulls);
    Ok(make_array(data.build()?))
}

/// A batch of the state schema.
pub(super) fn batch(schema: &Arc<Schema>, columns: Vec<ArrayRef>) -> Result<RecordBatch> {
    Ok(RecordBatch::try_new(Arc::clone(schema), columns)?)
}
