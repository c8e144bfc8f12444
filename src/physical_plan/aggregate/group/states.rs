//! From a kernel's groups to the columns of DataFusion's partial states.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int64Array, RecordBatch, UInt64Array, make_array};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{DataType, FieldRef, Schema};
use datafusion::common::{Result, internal_err};
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;

use crate::kernels::group_by::{GroupStates, StateValues};
use crate::kernels::reduce::{AggregateKind, AggregateSpec};

/// The state columns of one aggregate, in the layout of the function's state fields.
pub(super) fn columns(
    spec: &AggregateSpec,
    function: &AggregateFunctionExpr,
    states: &GroupStates,
) -> Result<Vec<ArrayRef>> {
    let fields = function.state_fields()?;
    match (spec.kind, fields.as_slice(), &states.values) {
        (AggregateKind::CountRows | AggregateKind::Count, [field], _)
            if *field.data_type() == DataType::Int64 =>
        {
            let counts = states.counts.iter().map(|count| count.cast_signed());
            Ok(vec![Arc::new(Int64Array::from_iter_values(counts))])
        }
        (_, [field], StateValues::Array(values)) => Ok(vec![typed(function, values, field, seen(states))?]),
        // avg: the count, then the sum; both are NULL where no row contributed.
        (AggregateKind::SumDecimal, [count, sum], StateValues::Array(values))
            if *count.data_type() == DataType::UInt64 =>
        {
            let nulls = seen(states);
            let counts = UInt64Array::new(states.counts.clone().into(), nulls.clone());
            Ok(vec![Arc::new(counts), typed(function, values, sum, nulls)?])
        }
        (kind, _, values) => {
            internal_err!("{}: {kind:?} with {} state columns of {values:?}", function.name(), fields.len())
        }
    }
}

/// Which groups have contributing rows; absent where all do.
fn seen(states: &GroupStates) -> Option<NullBuffer> {
    let nulls: NullBuffer = states.counts.iter().map(|count| *count > 0).collect();
    (nulls.null_count() > 0).then_some(nulls)
}

/// `values` as an array of the field's type, which may be a decimal of another precision.
fn typed(
    function: &AggregateFunctionExpr,
    values: &ArrayRef,
    field: &FieldRef,
    nulls: Option<NullBuffer>,
) -> Result<ArrayRef> {
    let (from, to) = (values.data_type(), field.data_type());
    let same = match (from, to) {
        (DataType::Decimal128(_, a), DataType::Decimal128(_, b)) => a == b,
        _ => from == to,
    };
    if !same {
        return internal_err!("{}: a state of {to} from values of {from}", function.name());
    }
    let data = values.to_data().into_builder().data_type(to.clone()).nulls(nulls);
    Ok(make_array(data.build()?))
}

/// A batch of the state schema.
pub(super) fn batch(schema: &Arc<Schema>, columns: Vec<ArrayRef>) -> Result<RecordBatch> {
    Ok(RecordBatch::try_new(Arc::clone(schema), columns)?)
}

/// The values of `chunks`, one after another, at `codes`.
pub(super) fn take_chunks(chunks: &[ArrayRef], codes: &ArrayRef) -> Result<ArrayRef> {
    let Some(codes) = codes.as_primitive_opt::<arrow::datatypes::UInt32Type>() else {
        return internal_err!("codes of type {}", codes.data_type());
    };
    let mut ends = Vec::with_capacity(chunks.len());
    let mut end = 0;
    for chunk in chunks {
        end += chunk.len();
        ends.push(end);
    }
    let place = |code: &u32| {
        let code = *code as usize;
        let chunk = ends.partition_point(|end| *end <= code);
        (chunk, code - chunk.checked_sub(1).map_or(0, |before| ends[before]))
    };
    let places: Vec<_> = codes.values().iter().map(place).collect();
    if places.iter().any(|(chunk, _)| *chunk >= chunks.len()) {
        return internal_err!("a code beyond the {end} values of its dictionary");
    }
    let sources: Vec<&dyn Array> = chunks.iter().map(AsRef::as_ref).collect();
    Ok(arrow::compute::interleave(&sources, &places)?)
}
