//! Packing the results of a function into the words of its look-up table, and the constants of a list.

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::buffer::{BooleanBuffer, NullBuffer};

use crate::error::{GpuError, GpuResult};

use super::expr::lookup::{POISON, TRUE, VALID, value_words};
use super::expr::search::{LIST_HEAD, list_class};
use super::expr::{Scalar, ValueType};
use super::native::{Canonical, with_arrow_type};

/// The table of `results`, one an entry, of Arrow's form of `ty` (any for [`ValueType::Opaque`]); `poison` marks the entries
/// for which the function raised. Gives its words, and the first word of its values.
///
/// # Errors
/// [`GpuError::Internal`] for results of another type, [`GpuError::Representation`] for a decimal beyond its precision, and
/// [`GpuError::Limit`] for too many entries.
pub fn pack(
    ty: ValueType,
    results: &ArrayRef,
    poison: Option<&BooleanBuffer>,
) -> GpuResult<(Vec<u32>, usize)> {
    if ty != ValueType::Opaque && results.data_type() != &ty.to_arrow() {
        return Err(GpuError::Internal(format!("a look-up table of {ty:?} of {}", results.data_type())));
    }
    let nulls = results.logical_nulls();
    let values_at = results.len().div_ceil(8);
    let mut words = vec![0u32; values_at];
    for entry in 0..results.len() {
        let mut flags = 0;
        if nulls.as_ref().is_none_or(|nulls| nulls.is_valid(entry)) {
            flags |= VALID;
        }
        if poison.is_some_and(|poison| poison.value(entry)) {
            flags |= POISON;
        }
        words[entry >> 3] |= flags << ((entry & 7) * 4);
    }
    if ty == ValueType::Boolean {
        for (entry, value) in results.as_boolean().values().iter().enumerate() {
            words[entry >> 3] |= if value { TRUE << ((entry & 7) * 4) } else { 0 };
        }
    } else if value_words(ty) > 0 {
        values(ty, results, nulls.as_ref(), &mut words)?;
    }
    if u32::try_from(words.len()).is_err() {
        let (need, limit) = (words.len() as u64, u32::MAX.into());
        return Err(GpuError::Limit { what: "words of a look-up table", need, limit, by_rows: false });
    }
    Ok((words, values_at))
}

/// The table of a list whose `values`, of type `ty`, are searched as `len` values: a power of two, and at least as many as there
/// are. Its first two words tell how many values there are and whether NULL is in the list. The values follow, ascending in their
/// canonical encoding, each in as many words as its register class has; the last is repeated.
pub fn pack_list(ty: ValueType, values: &[Scalar], len: usize) -> Vec<u32> {
    let mut sorted: Vec<i128> = values.iter().copied().flatten().collect();
    sorted.sort_unstable();
    let class_words = list_class(ty).words();
    let mut words = Vec::with_capacity(LIST_HEAD + len * class_words);
    words.extend([sorted.len() as u32, u32::from(sorted.len() < values.len())]);
    sorted.resize(len, sorted.last().copied().unwrap_or(0));
    for value in sorted {
        words.extend((0..class_words).map(|word| (value >> (32 * word)) as u32));
    }
    words
}

/// Appends the values.
fn values(
    ty: ValueType,
    results: &ArrayRef,
    nulls: Option<&NullBuffer>,
    words: &mut Vec<u32>,
) -> GpuResult<()> {
    let count = value_words(ty);
    let bound = match ty {
        ValueType::Decimal { precision, .. } if precision <= 18 => 10i128.pow(precision.into()),
        _ => i128::MAX,
    };
    words.reserve(results.len() * count);
    let mut beyond = false;
    with_arrow_type!(ty, T => {
        for (entry, value) in results.as_primitive::<T>().values().iter().enumerate() {
            let value = <T as Canonical>::to_canonical(*value);
            let valid = nulls.is_none_or(|nulls| nulls.is_valid(entry));
            beyond |= valid && bound != i128::MAX && (value <= -bound || value >= bound);
            words.extend((0..count).map(|word| (value >> (32 * word)) as u32));
        }
    }, else => return Err(GpuError::Internal(format!("a look-up table of {ty:?}"))));
    if beyond {
        let data_type = results.data_type().to_string();
        return Err(GpuError::Representation { column: "a function of strings".to_owned(), data_type });
    }
    Ok(())
}

#[cfg(test)]
mod tests;
