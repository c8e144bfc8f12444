//! One exact sum a group.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, BooleanArray, Float64Array};
use datafusion::common::Result;
use datafusion::logical_expr::{EmitTo, GroupsAccumulator};

use crate::kernels::ExactSum;

use super::{Finish, doubles, each_state, state_arrays};

/// Counts and sums by group: 32 bytes a group, and the heap of those sums that need one.
pub(super) struct ExactGroups {
    finish: Finish,
    counts: Vec<u64>,
    sums: Vec<ExactSum>,
    /// Bytes of all sums on the heap.
    heap: usize,
}

impl ExactGroups {
    pub fn new(finish: Finish) -> Self {
        ExactGroups { finish, counts: vec![], sums: vec![], heap: 0 }
    }

    fn resize(&mut self, groups: usize) {
        self.counts.resize(groups, 0);
        self.sums.resize_with(groups, ExactSum::new);
    }

    #[cfg(test)]
    pub fn counts_capacity(&self) -> usize {
        self.counts.capacity()
    }

    fn take(&mut self, emit: EmitTo) -> (Vec<u64>, Vec<ExactSum>) {
        let taken = (emit.take_needed(&mut self.counts), emit.take_needed(&mut self.sums));
        self.heap -= taken.1.iter().map(ExactSum::heap_bytes).sum::<usize>();
        taken
    }
}

/// Calls `each` with every row whose value counts, and the value.
fn each_value(values: &Float64Array, filter: Option<&BooleanArray>, mut each: impl FnMut(usize, f64)) {
    for (row, value) in values.values().iter().enumerate() {
        let passes = filter.is_none_or(|filter| filter.is_valid(row) && filter.value(row));
        if passes && values.is_valid(row) {
            each(row, *value);
        }
    }
}

impl GroupsAccumulator for ExactGroups {
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        group_indices: &[usize],
        opt_filter: Option<&BooleanArray>,
        total_num_groups: usize,
    ) -> Result<()> {
        self.resize(total_num_groups);
        let Self { counts, sums, heap, .. } = self;
        each_value(doubles(values)?, opt_filter, |row, value| {
            let group = group_indices[row];
            counts[group] += 1;
            let sum = &mut sums[group];
            *heap -= sum.heap_bytes();
            sum.add_f64(value);
            *heap += sum.heap_bytes();
        });
        Ok(())
    }

    fn merge_batch(
        &mut self,
        values: &[ArrayRef],
        group_indices: &[usize],
        total_num_groups: usize,
    ) -> Result<()> {
        self.resize(total_num_groups);
        each_state(values, |row, count, bytes| {
            let group = group_indices[row];
            self.counts[group] += count;
            let sum = &mut self.sums[group];
            self.heap -= sum.heap_bytes();
            let merged = sum.merge_bytes(bytes);
            self.heap += sum.heap_bytes();
            Ok(merged?)
        })
    }

    fn evaluate(&mut self, emit_to: EmitTo) -> Result<ArrayRef> {
        let (counts, sums) = self.take(emit_to);
        let values = counts.iter().zip(&sums).map(|(count, sum)| self.finish.value(*count, sum));
        Ok(Arc::new(values.collect::<Float64Array>()))
    }

    fn state(&mut self, emit_to: EmitTo) -> Result<Vec<ArrayRef>> {
        let (counts, sums) = self.take(emit_to);
        Ok(state_arrays(counts, sums.iter()))
    }

    fn convert_to_state(
        &self,
        values: &[ArrayRef],
        opt_filter: Option<&BooleanArray>,
    ) -> Result<Vec<ArrayRef>> {
        let values = doubles(values)?;
        let mut counts = vec![0; values.len()];
        let mut sums = vec![ExactSum::new(); values.len()];
        each_value(values, opt_filter, |row, value| {
            counts[row] = 1;
            sums[row].add_f64(value);
        });
        Ok(state_arrays(counts, sums.iter()))
    }

    fn size(&self) -> usize {
        self.counts.capacity() * size_of::<u64>() + self.sums.capacity() * size_of::<ExactSum>() + self.heap
    }
}
