//! Grouping keys: what a kernel groups by, and how the columns of its groups come from that.

use std::sync::Arc;

use arrow::array::{ArrayRef, UInt64Array, new_null_array};
use arrow::compute::cast;
use arrow::datatypes::FieldRef;
use datafusion::common::{Result, ScalarValue, internal_datafusion_err};
use datafusion::physical_expr::PhysicalExpr;

use crate::error::{GpuError, GpuResult};
use crate::kernels::expr::Expr;
use crate::kernels::group_by::GroupKey;
use crate::memory::batch::GpuBatch;

use super::super::super::params::{Bound, rebase};
use super::text::{BatchText, Text};

/// One key of GROUP BY, over the operator's input.
#[derive(Debug, Clone)]
pub enum Key {
    /// An expression whose values live on the device.
    Value(Arc<Expr>),
    /// Text.
    Text(Text),
    /// An expression without columns. It does not part rows.
    Constant(Arc<dyn PhysicalExpr>),
}

/// A grouping set: what tells its groups from those of other sets.
#[derive(Debug, Clone)]
pub(super) struct GroupingSet {
    /// Keys that are NULL in it.
    pub nulls: Vec<bool>,
    /// Value of `__grouping_id`, where the aggregate has such a column.
    pub id: Option<u64>,
}

impl GroupingSet {
    /// The sets of an aggregate; `None` where their ids do not fit 64 bits.
    pub(super) fn all(groups: &[Vec<bool>], has_id: bool) -> Option<Vec<GroupingSet>> {
        if !has_id {
            return Some(groups.iter().map(|nulls| GroupingSet { nulls: nulls.clone(), id: None }).collect());
        }
        let mut sets: Vec<GroupingSet> = vec![];
        for nulls in groups {
            // A set that occurs again counts up above the bits of its keys.
            let ordinal = sets.iter().filter(|set| set.nulls == *nulls).count() as u64;
            let bits = u32::try_from(nulls.len()).ok()?;
            let mask = nulls
                .iter()
                .try_fold(0u64, |mask, null| (mask >> 63 == 0).then_some(mask << 1 | u64::from(*null)))?;
            let above = ordinal.checked_shl(bits).filter(|above| above >> bits == ordinal);
            let above = if ordinal == 0 { 0 } else { above? };
            sets.push(GroupingSet { nulls: nulls.clone(), id: Some(mask | above) });
        }
        Some(sets)
    }
}

/// Where a key column of the groups comes from.
#[derive(Debug, Clone)]
enum Source {
    /// The kernel's own array of that key.
    Array(usize),
    /// Text by the kernel's codes or ranks.
    Text { key: usize, text: BatchText },
    /// One value.
    Constant(ScalarValue),
    /// NULL, because the key does not belong to the grouping set.
    Null,
}

/// The keys of one grouping set over a batch's source columns.
#[derive(Debug)]
pub(super) struct BatchKeys {
    /// What the kernel groups by, each once.
    pub kernel: Vec<GroupKey>,
    sources: Vec<Source>,
    id: Option<u64>,
}

impl BatchKeys {
    /// The keys of `set`; `constants` are the values of the constant ones.
    ///
    /// # Errors
    /// An internal error when a key reads a column that is not there.
    pub(super) fn new(
        keys: &[Key],
        constants: &[Option<ScalarValue>],
        set: &GroupingSet,
        batch: &GpuBatch,
        bound: &Bound,
    ) -> Result<Self> {
        let mut own = Self { kernel: vec![], sources: vec![], id: set.id };
        for ((key, constant), null) in keys.iter().zip(constants).zip(&set.nulls) {
            let source = if *null { Some(Source::Null) } else { own.source(key, constant, batch, bound) };
            own.sources.push(
                source.ok_or_else(|| internal_datafusion_err!("a key reads a column that is not there"))?,
            );
        }
        Ok(own)
    }

    fn source(
        &mut self,
        key: &Key,
        constant: &Option<ScalarValue>,
        batch: &GpuBatch,
        bound: &Bound,
    ) -> Option<Source> {
        let over = |expr: &Arc<Expr>| rebase(expr, &|index| batch.column_expr(index), bound);
        match key {
            Key::Constant(_) => constant.clone().map(Source::Constant),
            Key::Value(expr) => Some(Source::Array(self.key(GroupKey::Value(over(expr)?)))),
            Key::Text(text) => {
                let kernel = match &text.kernel {
                    Some(ranks) => Some(GroupKey::Value(over(ranks)?)),
                    None => None,
                };
                let text = text.over(&over)?;
                let key = self.key(kernel.unwrap_or(GroupKey::Codes(text.column)));
                Some(Source::Text { key, text })
            }
        }
    }

    /// The place of a kernel key, which is there once.
    fn key(&mut self, key: GroupKey) -> usize {
        self.kernel.iter().position(|known| *known == key).unwrap_or_else(|| {
            self.kernel.push(key);
            self.kernel.len() - 1
        })
    }

    /// Expressions that the kernel evaluates for every selected row.
    pub(super) fn exprs(&self) -> impl Iterator<Item = &Arc<Expr>> {
        self.kernel.iter().filter_map(|key| match key {
            GroupKey::Value(expr) => Some(expr),
            GroupKey::Codes(_) => None,
        })
    }

    /// The texts among the keys.
    pub(super) fn texts(&self) -> impl Iterator<Item = &BatchText> {
        self.sources.iter().filter_map(|source| match source {
            Source::Text { text, .. } => Some(text),
            _ => None,
        })
    }

    /// Source columns whose codes are keys.
    pub(super) fn coded(&self) -> impl Iterator<Item = usize> {
        self.kernel.iter().filter_map(|key| match key {
            GroupKey::Codes(column) => Some(*column),
            GroupKey::Value(_) => None,
        })
    }

    /// The same without the batch, where the columns do not need it.
    pub(super) fn fixed(&self) -> Option<FixedKeys> {
        let sources = self.sources.iter().map(|source| match source {
            Source::Array(key) => Some(FixedSource::Array(*key)),
            Source::Constant(value) => Some(FixedSource::Constant(value.clone())),
            Source::Text { .. } | Source::Null => None,
        });
        Some(FixedKeys(sources.collect::<Option<_>>()?)).filter(|_| self.id.is_none())
    }

    /// Whether a group has a value for which a function that only the host holds raised.
    pub(super) fn meet_poison(&self, batch: &GpuBatch, arrays: &[ArrayRef]) -> bool {
        self.sources.iter().any(|source| match source {
            Source::Text { key, text } => {
                arrays.get(*key).is_some_and(|kernel| text.meets_poison(batch, kernel))
            }
            _ => false,
        })
    }

    /// The key columns of `groups` groups, whose kernel keys are `arrays`, in the types of `fields`.
    ///
    /// # Errors
    /// [`GpuError::Internal`] where arrays or dictionaries do not fit.
    pub(super) fn columns(
        &self,
        batch: &GpuBatch,
        arrays: &[ArrayRef],
        groups: usize,
        fields: &[FieldRef],
    ) -> GpuResult<Vec<ArrayRef>> {
        let internal = |what: String| GpuError::Internal(what);
        let array = |key: usize| {
            arrays.get(key).ok_or_else(|| GpuError::Internal(format!("the kernel gave no key {key}")))
        };
        let mut columns = Vec::with_capacity(fields.len());
        for (source, field) in self.sources.iter().zip(fields) {
            columns.push(match source {
                Source::Array(key) => Arc::clone(array(*key)?),
                Source::Text { key, text } => {
                    let values = text.values(batch, array(*key)?)?;
                    match values.data_type() == field.data_type() {
                        true => values,
                        // A dictionary with too few keys for the values of a batch.
                        false => {
                            cast(&values, field.data_type()).map_err(|error| internal(error.to_string()))?
                        }
                    }
                }
                Source::Constant(value) => {
                    value.to_array_of_size(groups).map_err(|error| internal(error.to_string()))?
                }
                Source::Null => new_null_array(field.data_type(), groups),
            });
        }
        if let (Some(id), Some(field)) = (self.id, fields.get(columns.len())) {
            let ids = UInt64Array::from(vec![id; groups]);
            columns.push(cast(&ids, field.data_type()).map_err(|error| internal(error.to_string()))?);
        }
        Ok(columns)
    }
}

/// Where the key columns come from, the same for all batches.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct FixedKeys(Vec<FixedSource>);

#[derive(Debug, Clone, PartialEq)]
enum FixedSource {
    Array(usize),
    Constant(ScalarValue),
}

impl FixedKeys {
    /// By column, the kernel's key that it is, if it is one.
    pub(super) fn arrays(&self) -> impl Iterator<Item = Option<usize>> {
        self.0.iter().map(|source| match source {
            FixedSource::Array(key) => Some(*key),
            FixedSource::Constant(_) => None,
        })
    }

    /// The key columns of `groups` groups, whose kernel keys are `arrays`.
    ///
    /// # Errors
    /// [`GpuError::Internal`] where arrays do not fit.
    pub(super) fn columns(&self, arrays: &[ArrayRef], groups: usize) -> GpuResult<Vec<ArrayRef>> {
        let columns = self.0.iter().map(|source| match source {
            FixedSource::Array(key) => {
                let array = arrays.get(*key).cloned();
                array.ok_or_else(|| GpuError::Internal(format!("the kernel gave no key {key}")))
            }
            FixedSource::Constant(value) => {
                value.to_array_of_size(groups).map_err(|error| GpuError::Internal(error.to_string()))
            }
        });
        columns.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_masks_with_ordinals_above() {
        let ids = |groups: &[&[bool]]| -> Option<Vec<Option<u64>>> {
            let groups: Vec<Vec<bool>> = groups.iter().map(|set| set.to_vec()).collect();
            let sets = GroupingSet::all(&groups, true)?;
            Some(sets.iter().map(|set| set.id).collect())
        };
        let (a, b, none) = (&[false, true][..], &[true, false][..], &[true, true][..]);
        assert_eq!(ids(&[a, b, none]), Some(vec![Some(1), Some(2), Some(3)]));
        assert_eq!(ids(&[a, a, none, a]), Some(vec![Some(1), Some(5), Some(3), Some(9)]));
        let wide = vec![true; 64];
        assert_eq!(ids(&[&wide]), Some(vec![Some(u64::MAX)]));
        assert_eq!(ids(&[&wide, &wide]), None);
        assert_eq!(ids(&[&[true; 65]]), None);
    }

    #[test]
    fn sets_of_one_aggregate_without_ids() {
        let sets = GroupingSet::all(&[vec![false, false]], false);
        assert!(sets.is_some_and(|sets| sets.len() == 1 && sets[0].id.is_none()));
    }
}
