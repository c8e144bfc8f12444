//! The order of the values of a string column, or of a function of one, as numbers: kernels find the least and the greatest of them, and
//! tell results apart, without seeing a string.

use std::any::Any;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, UInt32Array, make_comparator};
use arrow::compute::{SortOptions, cast, concat, sort_to_indices};
use arrow::datatypes::{DataType, UInt32Type};
use arrow::error::ArrowError;

use crate::error::{GpuError, GpuResult};
use crate::kernels::expr::ValueType;
use crate::kernels::table;
use crate::memory::batch::GpuBatch;
use crate::memory::lookup::{Results, ValueFunction};

use super::lookup::ExprFunction;

/// Where a value stands among those of the batch, from 1 for the least; equal ones stand together, and NULL nowhere.
#[derive(Debug)]
pub struct RankFunction {
    /// The function whose results are ranked; the column's own values without one.
    pub of: Option<ExprFunction>,
}

impl RankFunction {
    fn rank(&self, chunks: &[ArrayRef]) -> GpuResult<Results> {
        let results = match &self.of {
            None => Results { values: joined(chunks)?, poison: None },
            Some(function) => function.evaluate_all(chunks)?,
        };
        let values = ranks(&results.values).map_err(|error| internal(&error))?;
        Ok(Results { values: Arc::new(values), poison: results.poison })
    }
}

fn internal(error: &ArrowError) -> GpuError {
    GpuError::Internal(format!("ranks of values: {error}"))
}

/// The chunks in one array; dictionaries, whose keys may be too few for all of them, as their values.
fn joined(chunks: &[ArrayRef]) -> GpuResult<ArrayRef> {
    let plain = chunks.iter().map(|chunk| match chunk.data_type() {
        DataType::Dictionary(_, values) => cast(chunk, values),
        _ => Ok(Arc::clone(chunk)),
    });
    let plain = plain.collect::<Result<Vec<_>, _>>().map_err(|error| internal(&error))?;
    concat(&plain.iter().map(AsRef::as_ref).collect::<Vec<_>>()).map_err(|error| internal(&error))
}

fn ranks(values: &ArrayRef) -> Result<UInt32Array, ArrowError> {
    let options = SortOptions { descending: false, nulls_first: true };
    let order = sort_to_indices(values, Some(options), None)?;
    let compare = make_comparator(values, values, options)?;
    let nulls = values.logical_nulls();
    let mut ranks = vec![0; values.len()];
    let (mut rank, mut before) = (0, None);
    for index in order.values() {
        let at = *index as usize;
        if nulls.as_ref().is_some_and(|nulls| nulls.is_null(at)) {
            continue;
        }
        if before.is_none_or(|before| compare(before, at).is_ne()) {
            rank += 1;
        }
        ranks[at] = rank;
        before = Some(at);
    }
    Ok(UInt32Array::new(ranks.into(), nulls))
}

impl ValueFunction for RankFunction {
    fn evaluate(&self, values: &ArrayRef) -> GpuResult<Results> {
        self.rank(std::slice::from_ref(values))
    }

    fn evaluate_all(&self, chunks: &[ArrayRef]) -> GpuResult<Results> {
        self.rank(chunks)
    }

    fn at_once(&self) -> bool {
        true
    }

    fn pack(&self, results: &Results) -> GpuResult<(Vec<u32>, usize)> {
        table::pack(ValueType::UInt32, &results.values, results.poison.as_ref())
    }

    fn may_raise(&self) -> bool {
        self.of.as_ref().is_some_and(|function| function.fallible)
    }

    fn same(&self, other: &dyn ValueFunction) -> bool {
        let other: &dyn Any = other;
        other.downcast_ref::<RankFunction>().is_some_and(|other| match (&self.of, &other.of) {
            (None, None) => true,
            (Some(own), Some(other)) => own.same(other),
            _ => false,
        })
    }
}

/// For each of `ranks`, which index table `table` of the batch, the code of a value that has it; NULL for NULL.
///
/// # Errors
/// [`GpuError::Internal`] for a table that is none of ranks, or was not computed.
pub(crate) fn codes_of_ranks(batch: &GpuBatch, table: usize, ranks: &ArrayRef) -> GpuResult<UInt32Array> {
    let wrong = || GpuError::Internal(format!("look-up table {table} has no ranks"));
    let (table, _) = batch.table(table).ok_or_else(wrong)?;
    let all = table.results.values.as_primitive_opt::<UInt32Type>().ok_or_else(wrong)?;
    let ranks = ranks.as_primitive_opt::<UInt32Type>().ok_or_else(wrong)?;
    let mut codes = vec![0; all.len() + 1];
    for (code, rank) in all.iter().enumerate() {
        if let Some(place) = rank.and_then(|rank| codes.get_mut(rank as usize)) {
            *place = u32::try_from(code).map_err(|_| wrong())?;
        }
    }
    // Not code 0, since a function need not give NULL for NULL.
    let code = |rank: Option<u32>| rank.map(|rank| codes.get(rank as usize).copied().ok_or_else(wrong));
    ranks.iter().map(|rank| code(rank).transpose()).collect()
}

#[cfg(test)]
mod tests {
    use arrow::array::{StringDictionaryBuilder, StringViewArray};
    use arrow::datatypes::Int8Type;

    use super::*;

    #[test]
    fn equal_values_stand_together() {
        let first: ArrayRef = Arc::new(StringViewArray::from(vec![None, Some("b"), Some("")]));
        let second: ArrayRef = Arc::new(StringViewArray::from(vec![Some("\u{e4}"), Some("b"), Some("B")]));
        let ranked = RankFunction { of: None }.rank(&[first, second]).unwrap();
        let ranks: ArrayRef =
            Arc::new(UInt32Array::from(vec![None, Some(3), Some(1), Some(4), Some(3), Some(2)]));
        assert_eq!(&ranked.values, &ranks);
    }

    #[test]
    fn more_values_than_keys() {
        let chunk = |from: usize| -> ArrayRef {
            let mut chunk = StringDictionaryBuilder::<Int8Type>::new();
            (from..from + 100).for_each(|at| chunk.append_value(format!("{at:05}")));
            Arc::new(chunk.finish())
        };
        let ranked = RankFunction { of: None }.rank(&[chunk(100), chunk(0)]).unwrap();
        let ranks = ranked.values.as_primitive::<UInt32Type>();
        assert_eq!((ranks.value(0), ranks.value(99), ranks.value(100), ranks.value(199)), (101, 200, 1, 100));
    }
}
