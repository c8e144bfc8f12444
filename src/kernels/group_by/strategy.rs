//! How a segment's groups are found, by what is known of the keys.

use crate::kernels::expr::ValueType;
use crate::kernels::expr::widths::Class;
use crate::memory::DeviceCaps;

use super::keys::{KeyField, Keys};
use super::{GroupHint, KeyRange};

/// How a kernel finds a row's group. Shapes the shader.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Mode {
    /// The slot of the table is computed from the keys, whose ranges are known, instead of searched.
    pub direct: bool,
    /// What each workgroup gathers in first.
    pub local: Local,
}

/// A workgroup's own table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Local {
    /// None.
    None,
    /// Every slot of the table, computed.
    Direct,
    /// The first groups that it meets, searched; rows of others go to the table. What keeps many rows of one group from waiting for
    /// each other.
    Cache,
}

/// A key's place in a computed slot number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Digit {
    /// Smallest value, as 64 bits in two's complement.
    pub min: u64,
    /// Number of values; the next digit is NULL's, where the key may be NULL.
    pub extent: u32,
    /// Slots from one value to the next.
    pub stride: u32,
}

/// Slots computed from the keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Direct {
    pub digits: Vec<Digit>,
    /// Slots in all.
    pub slots: u32,
}

/// Bytes of a workgroup's table: what lets several workgroups share a multiprocessor.
const LOCAL_BYTES: u32 = 32 << 10;
/// Fewest slots for which a workgroup's table is worth its while.
const FEWEST_LOCAL: u32 = 64;
/// Loop iterations of an invocation from which on it can afford to write such a table out.
const FEWEST_ITERATIONS: u32 = 1 << 14;
/// Most slots of a workgroup's table: all are written out.
const MOST_LOCAL: u32 = 2048;
/// Most copies of a slot that are computed, and of one that is searched: each of those is written out.
const MOST_COPIES: u32 = 32;
const MOST_CACHE_COPIES: usize = 8;
/// Most slots that are computed from the keys.
const MOST_DIRECT: u64 = 1 << 28;

/// Slots, a power of two, of a workgroup's table whose records have so many words; `None` where they would be too few.
pub(super) fn local_slots(words: u32, caps: &DeviceCaps) -> Option<u32> {
    if caps.loop_budget < FEWEST_ITERATIONS {
        return None;
    }
    // What else the kernel keeps there is small.
    let bytes = caps.workgroup_bytes.saturating_sub(256).min(LOCAL_BYTES);
    let slots = (bytes / (4 * words)).min(MOST_LOCAL);
    (slots >= FEWEST_LOCAL).then(|| 1 << slots.ilog2())
}

impl Direct {
    /// The layout for these keys, where all ranges are known and few slots hold them.
    pub fn new(keys: &Keys, hint: &GroupHint) -> Option<Direct> {
        let mut slots = 1u64;
        let mut digits = vec![];
        for (at, field) in keys.fields.iter().enumerate() {
            let range = range_of(field, hint.ranges.get(at).copied().flatten())?;
            let extent = u64::try_from(range.max.checked_sub(range.min)?.checked_add(1)?).ok()?;
            let all = extent.checked_add(u64::from(field.flag.is_some()))?;
            digits.push(Digit {
                min: range.min as u64,
                extent: u32::try_from(extent).ok()?,
                stride: u32::try_from(slots).ok()?,
            });
            slots = slots.checked_mul(all).filter(|slots| *slots <= MOST_DIRECT)?;
        }
        // No slots at all: some key has no values, not even NULL, or so it is said.
        (slots > 0).then_some(Direct { digits, slots: slots as u32 })
    }

    /// Whether so many slots are worth their memory where so many rows and groups are expected.
    fn is_dense(&self, rows: usize, groups: Option<usize>) -> bool {
        let expected = groups.unwrap_or(rows).min(rows) as u64;
        u64::from(self.slots) <= expected.saturating_mul(4).max(1 << 12)
    }

    /// Arguments of the shader, four words a key.
    pub fn words(&self) -> Vec<u32> {
        let words = |digit: &Digit| [digit.min as u32, (digit.min >> 32) as u32, digit.extent, digit.stride];
        self.digits.iter().flat_map(words).collect()
    }
}

/// A mode, and what it takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Choice {
    pub mode: Mode,
    /// Where slots are computed.
    pub direct: Option<Direct>,
    /// Slots of a workgroup's table in all.
    pub local_slots: u32,
    /// Copies that a workgroup's table has of each slot, so that neighbours don't wait for each other.
    pub copies: u32,
}

/// The mode for keys of `keys` and accumulators of `words` words.
pub(super) fn choose(keys: &Keys, words: u32, rows: usize, hint: &GroupHint, caps: &DeviceCaps) -> Choice {
    let direct = Direct::new(keys, hint);
    let computed = local_slots(1 + words, caps);
    if let (Some(direct), Some(slots)) = (&direct, computed)
        && direct.slots <= slots
    {
        let copies = 1 << (slots / direct.slots.max(1)).min(MOST_COPIES).ilog2();
        let mode = Mode { direct: true, local: Local::Direct };
        return Choice { mode, direct: Some(direct.clone()), local_slots: slots, copies };
    }
    let searched = local_slots(2 + words, caps);
    let few = |groups: usize| searched.is_some_and(|slots| groups <= slots as usize / 2);
    let direct = direct.filter(|direct| direct.is_dense(rows, hint.groups) && !hint.groups.is_some_and(few));
    let (local, local_slots) = match searched {
        Some(slots) => (Local::Cache, slots),
        None => (Local::None, 0),
    };
    // Copies where the groups, with room to spare, fit several times.
    let groups = hint.groups.unwrap_or(usize::MAX).max(1);
    let copies = (local_slots as usize / 4 / groups).clamp(1, MOST_CACHE_COPIES);
    let mode = Mode { direct: direct.is_some(), local };
    Choice { mode, direct, local_slots, copies: 1 << copies.ilog2() }
}

/// Range of a key: what the type has, or what is said.
fn range_of(field: &KeyField, said: Option<KeyRange>) -> Option<KeyRange> {
    let whole = |min, max| Some(KeyRange { min, max });
    match (field.ty, said) {
        (ValueType::Boolean, _) => whole(0, 1),
        (ValueType::Float16 | ValueType::Float32 | ValueType::Float64, _) => None,
        _ if field.class == Class::Wide => None,
        (_, Some(range)) => Some(range),
        (ValueType::Int8, None) => whole(i8::MIN.into(), i8::MAX.into()),
        (ValueType::UInt8, None) => whole(0, u8::MAX.into()),
        _ => None,
    }
}
