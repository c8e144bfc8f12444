//! What a grouping takes of the device's memory.

use crate::kernels::partition::partition_bytes;
use crate::kernels::program::{Program, tables_of};
use crate::kernels::shader::argument_words;
use crate::memory::pool::size_class;

use super::finish::TILE;
use super::float::Window;
use super::launch::{GROWTH, MIN_SLOTS, slots_for};
use super::plan::status;
use super::{GroupBy, GroupHint, columns_used, exprs, ordered};

/// The most device bytes that [`super::group_by`] holds beside its columns for a segment of `rows` rows, if it is as `hint` says: in at
/// most so many groups (as many as rows where that is not known), with such floats to sum. Table, counts, result, arguments, and
/// what is read back, each rounded as buffers are.
pub fn group_by_bytes(program: &Program, by: &GroupBy, rows: usize, hint: &GroupHint) -> u64 {
    /// What the passes' timestamps take.
    const TIMESTAMPS: u64 = 512;
    let class = |bytes: u64| size_class(bytes.max(16).next_multiple_of(16));
    let groups = hint.groups.unwrap_or(rows).min(rows);
    // Per aggregate a count and four words at most, or the limbs of a sum of floats.
    let special = if hint.sums.special { 3 } else { 0 };
    let states = by.aggregates.iter().enumerate().map(|(at, spec)| {
        let window = Window::of(spec, hint.sums.limbs.get(at).copied().flatten());
        window.map_or(5, |window| 1 + u64::from(window.limbs) + special)
    });
    let states: u64 = states.sum();
    // Owner, and up to eight words of keys; a record is rounded up.
    let words = 1 + (5 * by.keys.len() as u64 + 1).min(8) + states;
    let record = if words <= 8 { words.next_power_of_two() } else { words.next_multiple_of(8) };
    // A table that was too small is followed by one that is up to `GROWTH` times larger, never beyond what the rows need.
    let slots = slots_for(groups).saturating_mul(GROWTH / 2).min(slots_for(rows)).max(MIN_SLOTS);
    let tiles = slots.div_ceil(u64::from(TILE));
    let result = 5 * by.keys.len() as u64 + states + 1;
    let result = 4 * result.saturating_mul((groups as u64).max(slots.min(1 << 16)));
    let columns = columns_used(program, by).len();
    let tables = tables_of(exprs(program, by));
    let tables = tables.last_key_value().map_or(0, |(table, _)| table + 1);
    let arguments = argument_words(columns, program.params.len(), tables) as u64;
    let arguments = arguments + (4 * by.keys.len() + by.aggregates.len()) as u64;
    let status = 4 * (status::LIMBS_AT + 2 * by.aggregates.len()) as u64;
    let order = match hint.partitioned {
        Some(false) => 0,
        None if slots_for(groups).saturating_mul(4 * record) <= ordered::CACHED_BYTES => 0,
        _ => partition_bytes(rows, 2),
    };
    class(slots.saturating_mul(4 * record))
        .saturating_add(order)
        .saturating_add(4 * class(4 * tiles))
        .saturating_add(class(result).saturating_mul(2))
        .saturating_add(class(TIMESTAMPS) * 2 + 2 * class(status))
        .saturating_add(8 * class((4 * arguments).next_multiple_of(256)))
}
