//! What one attempt at grouping is to do, and how it ended.

use super::SummedFloats;
use super::kept::Grouped;
use super::ordered::View;

/// What an attempt is to do.
#[derive(Clone, Copy)]
pub(super) struct Attempted {
    /// Slots of the table.
    pub slots: u64,
    /// No larger table comes after it.
    pub last: bool,
    /// What hashes begin with.
    pub seed: u32,
    /// Which of the ordered rows; without an order, all rows.
    pub view: Option<View>,
}

/// How an attempt ended.
pub(super) enum Attempt {
    Done(Grouped),
    /// The table was too small.
    Full,
    /// The hint is not so.
    Again(Surprise),
}

/// What was said of the rows, and is not so.
pub(super) enum Surprise {
    /// A key lay outside of its range.
    Keys,
    /// No table that can be bound holds all groups.
    TooManyGroups,
    /// Floats lay outside of their windows: what they were like, and how many groups there are.
    Floats { groups: usize, met: SummedFloats },
}
