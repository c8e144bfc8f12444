//! How a segment's groups are found, by what is known of the keys.

use crate::kernels::expr::ValueType;
use crate::kernels::expr::widths::Class;
use crate::kernels::shader::WORKGROUP;
use crate::memory::DeviceCaps;

use super::kernel::local_head;
use super::keys::{KeyField, Keys};
use super::ordered;
use super::{GroupHint, KeyRange};

/// How a kernel finds a row's group. Shapes the shader.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Mode {
    /// The slot of the table is computed from the keys, whose ranges are known, instead of searched.
    pub direct: bool,
    /// What each workgroup gathers in first.
    pub local: Local,
    /// Rows come in the order of their hashes, whose top bits are the slot.
    pub ordered: bool,
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

/// Sizes of workgroups' tables in bytes, and how many invocations share one. As many as an adapter has: each table is written out, in small
/// batches at as great a cost as the rows'. With the first, shared memory is not what limits the invocations that a multiprocessor holds: the
/// H200 gives about 64 KiB to workgroups, and holds 2,048 invocations. The second is for more groups, the others for adapters whose
/// workgroups are smaller.
const TIERS: [(u32, u32); 4] = [(24 << 10, 1024), (46 << 10, 1024), (12 << 10, 512), (6 << 10, 256)];
/// Tables among [`TIERS`], and how many eighths of the groups each must have slots for. Rather have a third of the slots free than half as
/// many invocations, and rather few free than rows that go to the table in device memory.
const FITS: [(usize, usize); 7] = [(0, 16), (0, 12), (1, 16), (1, 12), (1, 9), (2, 9), (3, 9)];
/// Fewest slots for which a workgroup's table is worth its while.
const FEWEST_LOCAL: u32 = 64;
/// Loop iterations of an invocation from which on it can afford to write such a table out.
const FEWEST_ITERATIONS: u32 = 1 << 14;
/// Most slots of a workgroup's table: all are written out.
const MOST_LOCAL: u32 = 3072;
/// Groups a slot of the largest table up to which it is worth its while, though they don't fit it.
const MOST_UNFIT: usize = 8;
/// Slots that a row tries in its workgroup's table: where the groups fit it, where some of them do or their number is not known, and where
/// few do.
const TRIES: [u32; 3] = [32, 8, 4];
/// Most copies of a slot that is computed.
const MOST_COPIES: u32 = 32;
/// Slots where the number of groups is not known.
const UNKNOWN_SLOTS: u32 = 512;
/// Most slots that are computed from the keys.
const MOST_DIRECT: u64 = 1 << 28;

/// A workgroup's table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shared {
    /// Slots in all.
    pub slots: u32,
    /// Copies of each slot, where they are computed, so that neighbours don't wait for each other.
    pub copies: u32,
    /// Invocations of the workgroup.
    pub threads: u32,
    /// Slots that a row tries.
    pub tries: u32,
}

impl Shared {
    /// The first table with records of so many words that holds `need` slots.
    fn holding(need: u32, words: u32, caps: &DeviceCaps) -> Option<Shared> {
        TIERS.iter().find_map(|tier| Self::of_tier(*tier, need, words, caps))
    }

    /// The table of the first of [`FITS`] that so many groups fit.
    fn fitting(groups: usize, words: u32, caps: &DeviceCaps) -> Option<Shared> {
        FITS.iter().find_map(|(tier, eighths)| {
            let need = u32::try_from(groups.saturating_mul(*eighths) / 8).unwrap_or(u32::MAX);
            Self::of_tier(*TIERS.get(*tier)?, need, words, caps)
        })
    }

    /// The largest of the tables.
    fn largest(words: u32, caps: &DeviceCaps) -> Option<Shared> {
        TIERS.iter().skip(1).find_map(|tier| Self::of_tier(*tier, 0, words, caps))
    }

    fn of_tier((bytes, threads): (u32, u32), need: u32, words: u32, caps: &DeviceCaps) -> Option<Shared> {
        if caps.loop_budget < FEWEST_ITERATIONS || threads > caps.max_workgroup_invocations {
            return None;
        }
        // What else the kernel keeps there is small.
        let bytes = caps.workgroup_bytes.saturating_sub(256).min(bytes);
        // Whole sets of copies.
        let slots = (bytes / (4 * words)).min(MOST_LOCAL) / MOST_COPIES * MOST_COPIES;
        (slots >= FEWEST_LOCAL.max(need)).then_some(Shared { slots, copies: 1, threads, tries: 0 })
    }

    /// The same with as many copies of `slots` slots as there is room for.
    fn copied(self, slots: u32) -> Shared {
        Shared { copies: 1 << (self.slots / slots.max(1)).clamp(1, MOST_COPIES).ilog2(), ..self }
    }
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
    /// Where workgroups have a table.
    pub shared: Option<Shared>,
}

impl Choice {
    /// Invocations of a workgroup.
    pub fn threads(&self) -> u32 {
        self.shared.map_or(WORKGROUP, |shared| shared.threads)
    }

    /// Slots of a workgroup's table.
    pub fn local_slots(&self) -> u32 {
        self.shared.map_or(0, |shared| shared.slots)
    }
}

/// The mode for rows that come in the order of their hashes.
pub(super) fn choose_ordered(
    keys: &Keys,
    words: u32,
    rows: usize,
    hint: &GroupHint,
    caps: &DeviceCaps,
) -> Choice {
    let words = local_head(Local::Cache, keys) + words;
    let shared = Shared::holding(0, words, caps).filter(|_| ordered::gathers(rows, hint));
    let local = if shared.is_some() { Local::Cache } else { Local::None };
    let mode = Mode { direct: false, local, ordered: true };
    Choice { mode, direct: None, shared: shared.map(|shared| Shared { tries: TRIES[0], ..shared }) }
}

/// The mode for keys of `keys` and accumulators of `words` words.
pub(super) fn choose(keys: &Keys, words: u32, rows: usize, hint: &GroupHint, caps: &DeviceCaps) -> Choice {
    let direct = Direct::new(keys, hint);
    if let Some(direct) = &direct
        && let Some(shared) = Shared::holding(direct.slots, local_head(Local::Direct, keys) + words, caps)
    {
        let mode = Mode { direct: true, local: Local::Direct, ordered: false };
        let shared = Some(shared.copied(direct.slots));
        return Choice { mode, direct: Some(direct.clone()), shared };
    }
    let words = local_head(Local::Cache, keys) + words;
    let holding = |need| Shared::holding(need, words, caps);
    let [fit, some, few] = TRIES;
    let fitting =
        hint.groups.and_then(|groups| Some(Shared { tries: fit, ..Shared::fitting(groups, words, caps)? }));
    let direct = direct.filter(|direct| direct.is_dense(rows, hint.groups) && fitting.is_none());
    let shared = fitting.or_else(|| match hint.groups {
        Some(groups) => {
            let largest = Shared::largest(words, caps)?;
            match groups <= largest.slots as usize * MOST_UNFIT {
                true => Some(Shared { tries: some, ..largest }),
                false => Some(Shared { tries: few, ..holding(0)? }),
            }
        }
        None => Some(Shared { tries: some, ..holding(UNKNOWN_SLOTS).or_else(|| holding(0))? }),
    });
    let local = if shared.is_some() { Local::Cache } else { Local::None };
    Choice { mode: Mode { direct: direct.is_some(), local, ordered: false }, direct, shared }
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
