//! What kernels are told of the keys before they see the rows: it decides about speed only.

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::compute::{max, min};

use crate::kernels::expr::{Expr, ValueType};
use crate::kernels::group_by::{GroupHint, GroupKey, GroupResult, KeyRange, SummedFloats};
use crate::kernels::native::{Canonical, with_arrow_type};
use crate::memory::batch::GpuBatch;

/// Batches with values that those before did not have, after which ranges are not learned any more.
const MOST_SURPRISES: u32 = 3;

/// What the batches so far have taught about one grouping set.
#[derive(Debug, Clone, Default)]
pub(super) struct Learned {
    groups: Option<usize>,
    /// By key of the kernel.
    keys: Vec<LearnedKey>,
    sums: SummedFloats,
}

#[derive(Debug, Clone, Copy, Default)]
struct LearnedKey {
    range: Option<KeyRange>,
    surprises: u32,
}

impl Learned {
    /// Notes what a kernel found.
    pub(super) fn note(&mut self, result: &GroupResult) {
        self.groups = self.groups.max(Some(result.groups));
        self.sums.union(&result.sums);
        self.keys.resize(result.keys.len().max(self.keys.len()), LearnedKey::default());
        for (key, array) in self.keys.iter_mut().zip(&result.keys) {
            let Some(met) = range_of([array]) else { continue };
            key.range = Some(match key.range {
                None => met,
                Some(known) if known.min <= met.min && met.max <= known.max => known,
                Some(known) => {
                    key.surprises += 1;
                    KeyRange { min: known.min.min(met.min), max: known.max.max(met.max) }
                }
            });
        }
    }

    /// Notes a number of groups that stayed on the device.
    pub(super) fn note_kept(&mut self, groups: usize) {
        self.groups = self.groups.max(Some(groups));
    }

    /// Whether no batch was grouped so far.
    pub(super) fn is_nothing(&self) -> bool {
        self.groups.is_none()
    }

    /// The hint for a kernel that groups a batch by `keys`; `sums` is what a sample tells of it.
    pub(super) fn hint(&self, keys: &[GroupKey], batch: &GpuBatch, sums: &SummedFloats) -> GroupHint {
        let ranges = keys.iter().enumerate().map(|(at, key)| {
            let learned = || self.keys.get(at).filter(|key| key.surprises <= MOST_SURPRISES)?.range;
            known(key, batch).or_else(learned)
        });
        let sums = if self.is_nothing() { sums } else { &self.sums };
        GroupHint { groups: self.groups, ranges: ranges.collect(), sums: sums.clone(), partitioned: None }
    }
}

/// The range of a key's values in a batch where the host has them.
fn known(key: &GroupKey, batch: &GpuBatch) -> Option<KeyRange> {
    let expr = match key {
        GroupKey::Codes(column) => {
            let dictionary = batch.source().dictionary(*column)?;
            let values: usize = dictionary.values().iter().map(|chunk| chunk.len()).sum();
            return Some(KeyRange { min: 0, max: i128::try_from(values).ok()? - 1 });
        }
        GroupKey::Value(expr) => expr,
    };
    match expr.as_ref() {
        Expr::Column { index, .. } => {
            range_of(batch.source().host().iter().filter_map(|host| host.columns().get(*index)))
        }
        Expr::Lookup { table, .. } => range_of([&batch.table(*table)?.0.results.values]),
        _ => None,
    }
}

/// The range of the arrays' values; `None` for floats and for types that are no numbers.
fn range_of<'a>(arrays: impl IntoIterator<Item = &'a ArrayRef>) -> Option<KeyRange> {
    let mut range = KeyRange { min: 0, max: -1 };
    for array in arrays {
        let ty = ValueType::from_arrow(array.data_type())?;
        if ty.to_arrow().is_floating() {
            return None;
        }
        let (least, greatest) = with_arrow_type!(ty, T => {
            let array = array.as_primitive_opt::<T>()?;
            (min(array).map(<T as Canonical>::to_canonical), max(array).map(<T as Canonical>::to_canonical))
        }, else => return None);
        if let (Some(least), Some(greatest)) = (least, greatest) {
            let empty = range.max < range.min;
            range.min = if empty { least } else { range.min.min(least) };
            range.max = if empty { greatest } else { range.max.max(greatest) };
        }
    }
    Some(range)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{Date32Array, Float64Array, Int64Array, UInt64Array};

    use super::*;

    #[test]
    fn ranges_of_values() {
        let of = |arrays: &[ArrayRef]| range_of(arrays).map(|range| (range.min, range.max));
        let ints = |values: &[Option<i64>]| -> ArrayRef { Arc::new(Int64Array::from(values.to_vec())) };
        assert_eq!(of(&[ints(&[Some(3), None, Some(-7)]), ints(&[Some(5)])]), Some((-7, 5)));
        assert_eq!(of(&[ints(&[None]), ints(&[Some(9)]), ints(&[])]), Some((9, 9)));
        assert_eq!(of(&[ints(&[None])]), Some((0, -1)));
        assert_eq!(of(&[Arc::new(UInt64Array::from(vec![u64::MAX, 1]))]), Some((1, u64::MAX.into())));
        assert_eq!(of(&[Arc::new(Date32Array::from(vec![-1]))]), Some((-1, -1)));
        assert_eq!(of(&[Arc::new(Float64Array::from(vec![1.0]))]), None);
    }
}
