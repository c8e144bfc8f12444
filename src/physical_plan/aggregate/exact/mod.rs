//! SUM and AVG of doubles as exact sums: stand-ins for DataFusion's functions wherever a grouped aggregation leaves the device,
//! in its partial step, its merge and its fallback alike.
//!
//! Their state is the count of summands and the sum's exact bytes, so nothing is rounded between the steps.

mod groups;
#[cfg(test)]
mod tests;

use std::sync::{Arc, LazyLock};

use arrow::array::{Array, ArrayRef, AsArray, LargeBinaryBuilder, UInt64Array};
use arrow::datatypes::{DataType, Field, FieldRef, Float64Type, SchemaRef, UInt64Type};
use datafusion::common::{Result, ScalarValue, internal_err};
use datafusion::functions_aggregate::average::Avg;
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::{AggregateOrderSensitivity, format_state_name};
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, GroupsAccumulator, ReversedUDAF, Signature, Volatility,
};
use datafusion::physical_expr::aggregate::{AggregateExprBuilder, AggregateFunctionExpr};

use crate::kernels::ExactSum;

use groups::ExactGroups;

/// What becomes of the exact sum in the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Finish {
    /// It is rounded.
    Sum,
    /// It is rounded, and divided by the count.
    Average,
}

impl Finish {
    /// That of DataFusion's SUM or AVG.
    pub(crate) fn of(function: &AggregateFunctionExpr) -> Self {
        if function.fun().inner().is::<Avg>() { Finish::Average } else { Finish::Sum }
    }

    /// The value over `count` summands; NULL without any.
    pub(crate) fn value(self, count: u64, sum: &ExactSum) -> Option<f64> {
        (count > 0).then(|| match self {
            Finish::Sum => sum.to_f64(),
            Finish::Average => sum.average(count),
        })
    }
}

/// SUM or AVG of Float64, exact until the end.
#[derive(Debug, PartialEq, Eq, Hash)]
struct ExactFunction {
    finish: Finish,
    signature: Signature,
}

static FUNCTIONS: LazyLock<[Arc<AggregateUDF>; 2]> = LazyLock::new(|| {
    [Finish::Sum, Finish::Average].map(|finish| {
        let signature = Signature::exact(vec![DataType::Float64], Volatility::Immutable);
        Arc::new(AggregateUDF::from(ExactFunction { finish, signature }))
    })
});

/// The aggregate function that finishes so.
pub(crate) fn exact_function(finish: Finish) -> Arc<AggregateUDF> {
    let [sum, average] = &*FUNCTIONS;
    Arc::clone(if finish == Finish::Sum { sum } else { average })
}

/// The exact function in place of `function`, DataFusion's SUM or AVG of a Float64 over `schema`: the same argument and name.
///
/// # Errors
/// An internal error when its argument is something else.
pub(crate) fn exact_in_place_of(
    function: &AggregateFunctionExpr,
    finish: Finish,
    schema: &SchemaRef,
) -> Result<Arc<AggregateFunctionExpr>> {
    let args = function.expressions();
    if args.len() != 1 || args[0].data_type(schema)? != DataType::Float64 {
        return internal_err!("{}: an exact sum of something else than a Float64", function.name());
    }
    let builder = AggregateExprBuilder::new(exact_function(finish), args);
    Ok(Arc::new(builder.schema(Arc::clone(schema)).alias(function.name()).build()?))
}

/// Types of the state's columns.
pub(crate) const STATE_TYPES: [DataType; 2] = [DataType::UInt64, DataType::LargeBinary];

/// The state's columns: counts, then sums.
///
/// # Errors
/// Never for slices of one length.
pub(crate) fn state_arrays<'a>(
    counts: Vec<u64>,
    sums: impl ExactSizeIterator<Item = &'a ExactSum>,
) -> Vec<ArrayRef> {
    let mut bytes = vec![];
    let mut builder = LargeBinaryBuilder::with_capacity(sums.len(), 12 * sums.len());
    for sum in sums {
        bytes.clear();
        sum.write(&mut bytes);
        builder.append_value(&bytes);
    }
    vec![Arc::new(UInt64Array::from(counts)), Arc::new(builder.finish())]
}

/// Calls `each` with row, count and bytes of every state of at least one summand.
fn each_state(states: &[ArrayRef], mut each: impl FnMut(usize, u64, &[u8]) -> Result<()>) -> Result<()> {
    let [counts, sums] = states else {
        return internal_err!("an exact sum's state has two columns, not {}", states.len());
    };
    let (counts, sums) = (counts.as_primitive_opt::<UInt64Type>(), sums.as_binary_opt::<i64>());
    let (Some(counts), Some(sums)) = (counts, sums) else {
        return internal_err!("an exact sum's state has other types: {states:?}");
    };
    for row in 0..counts.len() {
        // NULL is nothing too: an outer operator may have made the row.
        if counts.is_valid(row) && counts.value(row) > 0 {
            each(row, counts.value(row), sums.value(row))?;
        }
    }
    Ok(())
}

impl AggregateUDFImpl for ExactFunction {
    fn name(&self) -> &str {
        match self.finish {
            Finish::Sum => "exact_sum",
            Finish::Average => "exact_avg",
        }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Float64)
    }

    fn accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        if args.is_distinct {
            return internal_err!("{} of distinct values", self.name());
        }
        Ok(Box::new(ExactAccumulator { finish: self.finish, count: 0, sum: ExactSum::new() }))
    }

    fn state_fields(&self, args: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        let fields = ["count", "sum"].into_iter().zip(STATE_TYPES);
        Ok(fields
            .map(|(name, ty)| Arc::new(Field::new(format_state_name(args.name, name), ty, true)))
            .collect())
    }

    fn groups_accumulator_supported(&self, args: AccumulatorArgs) -> bool {
        !args.is_distinct
    }

    fn create_groups_accumulator(&self, _: AccumulatorArgs) -> Result<Box<dyn GroupsAccumulator>> {
        Ok(Box::new(ExactGroups::new(self.finish)))
    }

    fn order_sensitivity(&self) -> AggregateOrderSensitivity {
        AggregateOrderSensitivity::Insensitive
    }

    fn reverse_expr(&self) -> ReversedUDAF {
        ReversedUDAF::Identical
    }
}

/// One sum.
#[derive(Debug)]
struct ExactAccumulator {
    finish: Finish,
    count: u64,
    sum: ExactSum,
}

impl Accumulator for ExactAccumulator {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        for value in doubles(values)?.iter().flatten() {
            self.sum.add_f64(value);
            self.count += 1;
        }
        Ok(())
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        each_state(states, |_, count, bytes| {
            self.count += count;
            Ok(self.sum.merge_bytes(bytes)?)
        })
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        let sum = ScalarValue::LargeBinary(Some(self.sum.to_bytes()));
        Ok(vec![ScalarValue::UInt64(Some(self.count)), sum])
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        Ok(ScalarValue::Float64(self.finish.value(self.count, &self.sum)))
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.sum.heap_bytes()
    }
}

/// The one argument.
fn doubles(values: &[ArrayRef]) -> Result<&arrow::array::Float64Array> {
    match values {
        [values] if values.data_type() == &DataType::Float64 => Ok(values.as_primitive::<Float64Type>()),
        _ => internal_err!("an exact sum has one argument of type Float64"),
    }
}
