//! Grouping keys: what a kernel groups by, and how the columns of its groups come from that.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, UInt64Array, new_null_array};
use arrow::compute::{cast, take};
use arrow::datatypes::{FieldRef, UInt32Type};
use datafusion::common::{Result, ScalarValue, internal_datafusion_err};
use datafusion::physical_expr::PhysicalExpr;

use crate::error::{GpuError, GpuResult};
use crate::kernels::expr::Expr;
use crate::kernels::group_by::GroupKey;
use crate::memory::batch::GpuBatch;

use super::super::super::params::{Bound, rebase};
use super::states::take_chunks;

/// One key of GROUP BY, over the operator's input.
#[derive(Debug, Clone)]
pub enum Key {
    /// An expression whose values live on the device.
    Value(Arc<Expr>),
    /// A column that has a dictionary, or a function of one whose results only the host holds: kernels group by the codes.
    Host(Arc<Expr>),
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
    /// The values of a source column's dictionary, by the kernel's codes.
    Dictionary { key: usize, column: usize },
    /// The results of a look-up table, by the kernel's codes.
    Table { key: usize, table: usize },
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
            Key::Host(expr) => match over(expr)?.as_ref() {
                Expr::Column { index, .. } => {
                    Some(Source::Dictionary { key: self.key(GroupKey::Codes(*index)), column: *index })
                }
                Expr::Lookup { codes, table, .. } => match codes.as_ref() {
                    Expr::Column { index, .. } => {
                        Some(Source::Table { key: self.key(GroupKey::Codes(*index)), table: *table })
                    }
                    _ => None,
                },
                _ => None,
            },
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

    /// Source columns whose codes are keys.
    pub(super) fn coded(&self) -> impl Iterator<Item = usize> {
        self.kernel.iter().filter_map(|key| match key {
            GroupKey::Codes(column) => Some(*column),
            GroupKey::Value(_) => None,
        })
    }

    /// Tables whose results the host takes.
    pub(super) fn host_tables(&self) -> BTreeSet<usize> {
        let tables = self.sources.iter().filter_map(|source| match source {
            Source::Table { table, .. } => Some(*table),
            _ => None,
        });
        tables.collect()
    }

    /// Whether a group has a value for which a function that only the host holds raised.
    pub(super) fn meet_poison(&self, batch: &GpuBatch, arrays: &[ArrayRef]) -> bool {
        self.sources.iter().any(|source| {
            let Source::Table { key, table } = source else { return false };
            let Some((table, _)) = batch.table(*table) else { return false };
            table.results.poison.is_some()
                && arrays.get(*key).and_then(|codes| codes.as_primitive_opt::<UInt32Type>()).is_some_and(
                    |codes| codes.values().iter().any(|code| table.results.is_poisoned(*code as usize)),
                )
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
                Source::Dictionary { key, column } => {
                    let dictionary = batch.source().dictionary(*column);
                    let dictionary =
                        dictionary.ok_or_else(|| internal(format!("column {column} has no dictionary")))?;
                    take_chunks(dictionary.values(), array(*key)?)
                        .map_err(|error| internal(error.to_string()))?
                }
                Source::Table { key, table } => {
                    let table = batch.table(*table);
                    let (table, _) =
                        table.ok_or_else(|| internal("a look-up table was not computed".to_owned()))?;
                    take(&table.results.values, array(*key)?, None)
                        .map_err(|error| internal(error.to_string()))?
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
