//! Rows visited in the order of their keys' hashes: for more groups than caches hold, or a binding.
//!
//! [`partition`] orders the rows. A slot of the table is the top bits of a hash, so workgroups that take rows next to each other write slots
//! next to each other, which stay in the cache. Where groups have several rows, each workgroup gathers a window of rows in a
//! table of its own first, and only what that holds goes to the table. Tables that no binding holds are made one after the other, each
//! for a part of the hashes.
//!
//! Floor in bytes a row, with k bytes of keys and a of arguments: k read and 4 written for the hash, 24 read and 12 written for the order
//! (8 and 4 where one byte of the hash is enough), then 4 for its number, and a sector of memory (32 bytes on most GPUs) for each
//! column, since neighbours in the order lie apart. A group costs its record, cleared, written, and read twice. In an unordered
//! table every row costs a sector read and one written, anywhere, and some atomics that wait for it.

use arrow::array::ArrayRef;
use arrow::compute::concat;

use crate::error::{GpuError, GpuResult};
use crate::kernels::partition::{self, PARTS, Partitions};
use crate::memory::DeviceCaps;

use super::attempt::{Attempt, Attempted, Surprise};
use super::kept::{Grouped, KeptGroups};
use super::launch::{DEFAULT_GROUPS, GROWTH, Launch, slots_for};
use super::{GroupHint, GroupResult, GroupStates, StateValues, SummedFloats};

/// Table bytes that caches hold on the largest devices.
pub(super) const CACHED_BYTES: u64 = 48 << 20;
/// Rows a group from which on ordering pays where the table could be bound.
const FEWEST_ROWS: usize = 4;
/// Rows a group from which on a workgroup gathers rows before they go to the table.
const ROWS_TO_GATHER: usize = 2;

/// The ordered rows that one attempt groups.
#[derive(Debug, Clone, Copy)]
pub(super) struct View {
    /// First place in the order, and the one after the last.
    pub first: u32,
    pub end: u32,
    /// Bits that the hashes of all of them begin with alike.
    pub bits: u32,
    /// Rows that a workgroup takes at a time.
    pub window: u32,
}

/// Whether rows can be ordered, and nobody forbids it.
pub(super) fn can(rows: usize, hint: &GroupHint, caps: &DeviceCaps) -> bool {
    let bound = caps.max_storage_buffers >= partition::BINDINGS && rows as u64 * 4 <= caps.max_binding_bytes;
    bound && caps.workgroup_bytes >= partition::WORKGROUP_BYTES && hint.partitioned != Some(false)
}

/// Whether rows are to be ordered.
pub(super) fn pays(record_bytes: u64, rows: usize, hint: &GroupHint, caps: &DeviceCaps) -> bool {
    if !can(rows, hint, caps) || hint.partitioned == Some(true) {
        return can(rows, hint, caps);
    }
    let Some(groups) = hint.groups.map(|groups| groups.min(rows).max(1)) else { return false };
    let table = slots_for(groups).saturating_mul(record_bytes);
    table > caps.max_binding_bytes || (table > CACHED_BYTES && rows / groups >= FEWEST_ROWS)
}

/// Whether workgroups gather rows before they go to the table.
pub(super) fn gathers(rows: usize, hint: &GroupHint) -> bool {
    hint.groups.is_none_or(|groups| rows / groups.max(1) >= ROWS_TO_GATHER)
}

/// Bytes of a hash by which rows are ordered: only where workgroups gather rows, few groups are to lie between neighbours.
pub(super) fn bytes(gathers: bool) -> u32 {
    if gathers { 2 } else { 1 }
}

/// Rows of a window, in whole `threads`: as many as have groups for three quarters of `slots`, of `rows` rows in `groups` groups.
pub(super) fn window(rows: usize, groups: usize, slots: u32, threads: u32, most: u32) -> u32 {
    let rows_a_group = rows / groups.max(1);
    // A window begins and ends within a part of the order, whose groups it has as well.
    let part = rows / (PARTS * PARTS);
    let rows = (slots as usize * 3 / 4).saturating_mul(rows_a_group.max(1)).saturating_sub(part);
    let steps = u32::try_from(rows).unwrap_or(u32::MAX) / threads;
    steps.clamp(1, (most / threads).max(1)) * threads
}

impl Launch<'_> {
    /// Groups the ordered rows, in as few tables as hold all groups; they grow in size, then in number.
    pub async fn run_ordered(
        &self,
        order: &Partitions,
        hint: &GroupHint,
    ) -> GpuResult<Result<Grouped, Surprise>> {
        if order.fault {
            return Ok(Ok(Grouped::Host(GroupResult::empty(self.by, true)?)));
        }
        let selected = order.selected();
        let largest = self.largest()?;
        let groups = hint.groups.unwrap_or(DEFAULT_GROUPS).min(selected);
        let mut tables = slots_for(groups).div_ceil(largest).next_power_of_two().min(PARTS as u64);
        let mut slots = (slots_for(groups) / tables).max(slots_for(0)).min(largest);
        let mut reruns = 0;
        loop {
            let views = views(&order.offsets, tables as usize, self.window(selected, groups));
            let most = views.iter().map(|view| (view.end - view.first) as usize).max().unwrap_or(0);
            let most = slots_for(most).min(largest);
            slots = slots.min(most);
            let last = slots == most;
            match self.tables(&views, slots, last).await? {
                Attempt::Done(groups) => return Ok(Ok(groups.after(reruns))),
                Attempt::Again(surprise) => return Ok(Err(surprise)),
                Attempt::Full if last && tables == PARTS as u64 => return Err(self.too_many(most)),
                Attempt::Full if last => tables *= 2,
                Attempt::Full => slots = slots.saturating_mul(GROWTH),
            }
            reruns += 1;
        }
    }

    /// One attempt with a table of `slots` slots for each of `views`.
    async fn tables(&self, views: &[View], slots: u64, last: bool) -> GpuResult<Attempt> {
        let mut results: Vec<GroupResult> = vec![];
        let mut kept: Option<KeptGroups> = None;
        // What the floats of all tables are like, where those of one do not fit their windows.
        let mut floats: Option<(usize, SummedFloats)> = None;
        for view in views.iter().filter(|view| view.end > view.first) {
            match self.attempt(Attempted { slots, last, seed: SEED, view: Some(*view) }).await? {
                Attempt::Done(Grouped::Host(result)) if !result.fault => results.push(result),
                Attempt::Done(Grouped::Kept(groups)) => {
                    kept = Some(match kept {
                        None => groups,
                        Some(kept) => kept.beside(groups),
                    });
                }
                Attempt::Again(Surprise::Floats { groups, met }) => {
                    let (all, sums) = floats.get_or_insert_default();
                    *all += groups;
                    sums.union(&met);
                }
                end => return Ok(end),
            }
        }
        if let Some((mut groups, mut met)) = floats {
            for result in &results {
                groups += result.groups;
                met.union(&result.sums);
            }
            return Ok(Attempt::Again(Surprise::Floats { groups, met }));
        }
        let groups = match (results.len(), kept) {
            (0, Some(kept)) => Grouped::Kept(kept),
            (0, None) => Grouped::Host(GroupResult::empty(self.by, false)?),
            (_, None) => Grouped::Host(joined(results)?),
            (_, Some(_)) => {
                return Err(GpuError::Internal("some tables' groups were kept, others not".to_owned()));
            }
        };
        Ok(Attempt::Done(groups))
    }
}

/// What hashes begin with, so that rows are ordered by the hashes that slots are made of.
pub(super) const SEED: u32 = 0;

/// The order in so many parts, a power of two.
fn views(offsets: &[u32], parts: usize, window: u32) -> Vec<View> {
    let at = |part: usize| offsets.get(part * PARTS / parts).copied().unwrap_or(0);
    let bits = parts.ilog2();
    (0..parts).map(|part| View { first: at(part), end: at(part + 1), bits, window }).collect()
}

/// The groups of all results, which have none in common.
fn joined(results: Vec<GroupResult>) -> GpuResult<GroupResult> {
    let mut results = results.into_iter();
    let Some(mut all) = results.next() else {
        return Err(GpuError::Internal("no groups to put together".to_owned()));
    };
    let rest: Vec<GroupResult> = results.collect();
    if rest.is_empty() {
        return Ok(all);
    }
    for (at, key) in all.keys.iter_mut().enumerate() {
        *key = end_to_end(key, rest.iter().filter_map(|result| result.keys.get(at)))?;
    }
    for (at, states) in all.states.iter_mut().enumerate() {
        let others: Vec<&GroupStates> = rest.iter().filter_map(|result| result.states.get(at)).collect();
        others.iter().for_each(|other| states.counts.extend_from_slice(&other.counts));
        match &mut states.values {
            StateValues::None => {}
            StateValues::Array(values) => {
                let others = others.iter().filter_map(|other| match &other.values {
                    StateValues::Array(values) => Some(values),
                    _ => None,
                });
                *values = end_to_end(values, others)?;
            }
            StateValues::Exact(sums) => others.iter().for_each(|other| {
                if let StateValues::Exact(others) = &other.values {
                    sums.extend_from_slice(others);
                }
            }),
        }
    }
    for result in &rest {
        all.groups += result.groups;
        all.floats.nan |= result.floats.nan;
        all.floats.negative_zero |= result.floats.negative_zero;
        all.floats.positive_zero |= result.floats.positive_zero;
        all.sums.union(&result.sums);
    }
    Ok(all)
}

fn end_to_end<'a>(first: &'a ArrayRef, rest: impl Iterator<Item = &'a ArrayRef>) -> GpuResult<ArrayRef> {
    let arrays: Vec<&dyn arrow::array::Array> =
        std::iter::once(first).chain(rest).map(AsRef::as_ref).collect();
    concat(&arrays).map_err(|error| GpuError::Internal(error.to_string()))
}
