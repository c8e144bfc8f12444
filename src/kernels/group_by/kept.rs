//! Groups that stay on the device, as dense columns of keys and states, to be grouped again with those of other segments.
//!
//! A column lies as the gathering kernel wrote it: each value in its register class, NULL flags of all keys in words of their own. So
//! columns of segments lie alike, and kernels see nothing but integers without NULLs when they merge them.

use std::sync::Arc;

use crate::error::GpuResult;
use crate::kernels::expr::ValueType;
use crate::kernels::expr::widths::{Class, is_float};
use crate::kernels::launch::allocate;
use crate::kernels::reduce::{AggregateKind, AggregateSpec};
use crate::memory::{BufferSlice, DeviceCaps};

use super::accumulate::{Bits, Fold};
use super::attempt::Attempt;
use super::columns::{Column, Columns};
use super::finish::result_words;
use super::launch::{Launch, Table};
use super::plan::{Place, Plan, Rows};
use super::{GroupBy, GroupKey, GroupResult, Strategy};

/// When the groups of a segment stay on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeepRule {
    /// Fewest groups of segments with `full` rows or more; of shorter ones, fewer in proportion.
    pub groups: u64,
    /// Rows of a segment that is not short.
    pub full: u64,
    /// Most rows a group, on the average.
    pub rows_each: u64,
}

/// Which groups stay on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Keep {
    Rule(KeepRule),
    All,
}

impl Keep {
    /// Whether up to `most` groups of so many rows may have to stay. Rows are ordered where there are many groups, and those of one table
    /// can't go another way than those of the next.
    pub fn may(self, most: u64, rows: u64, ordered: bool) -> bool {
        match self {
            Keep::Rule(rule) => ordered || most >= rule.groups || rows < rule.full,
            Keep::All => true,
        }
    }

    /// Whether so many groups of so many rows stay.
    pub fn wants(self, groups: u64, rows: u64, ordered: bool) -> bool {
        match self {
            Keep::Rule(rule) => {
                let dense = rows < rule.full
                    && u128::from(groups) * u128::from(rule.full)
                        >= u128::from(rule.groups) * u128::from(rows);
                let many = groups >= rule.groups || dense;
                ordered || (many && groups.saturating_mul(rule.rows_each) >= rows)
            }
            Keep::All => true,
        }
    }
}

/// Whether the groups can be merged on the device: they have keys, which are no codes of a segment's own dictionary, and states
/// that integer kernels merge.
pub fn can_keep(by: &GroupBy) -> bool {
    let merges = |spec: &AggregateSpec| match spec.kind {
        AggregateKind::CountRows
        | AggregateKind::Count
        | AggregateKind::SumInt
        | AggregateKind::SumDecimal
        | AggregateKind::SumAsFloat64
        | AggregateKind::BitAnd
        | AggregateKind::BitOr
        | AggregateKind::BitXor => true,
        AggregateKind::Min | AggregateKind::Max => {
            spec.arg.as_ref().is_some_and(|arg| !has_float_order(arg.value_type()))
        }
        AggregateKind::SumFloat | AggregateKind::FirstRow(_) => false,
    };
    let value = |key: &GroupKey| matches!(key, GroupKey::Value(_));
    !by.keys.is_empty() && by.keys.iter().all(value) && by.aggregates.iter().all(merges)
}

fn has_float_order(ty: ValueType) -> bool {
    is_float(ty) || ty == ValueType::Float16
}

/// Groups on the device, by segment of equal keys or not: each of them is a partial state.
#[derive(Debug, Clone)]
pub struct KeptGroups {
    pub(super) layout: Arc<Layout>,
    pub(super) pieces: Vec<Piece>,
    /// Rows that they stand for.
    rows: u64,
    generation: u64,
    strategy: Strategy,
    reruns: u32,
}

/// Some of the groups.
#[derive(Debug, Clone)]
pub(super) struct Piece {
    pub groups: usize,
    pub keys: Vec<BufferSlice>,
    /// Words of NULL flags, by key; none where no key is NULL.
    pub flags: Vec<BufferSlice>,
    pub states: Vec<BufferSlice>,
}

/// What the columns are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Layout {
    pub keys: Vec<(ValueType, Class)>,
    pub states: Vec<StateColumn>,
    /// One an aggregate: its columns.
    pub places: Vec<Place>,
}

/// A column of states.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StateColumn {
    pub merging: Merging,
    pub ty: ValueType,
    /// Class of the state, and that in which it lies.
    pub class: Class,
    pub stored: Class,
}

/// How the states of a group come together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Merging {
    /// Numbers of rows.
    Count,
    /// Bits that tell whether there are rows.
    Seen,
    Sum,
    /// `seen` tells whether there is a value.
    Extreme {
        min: bool,
        seen: Option<SeenIn>,
    },
    Bits(Bits),
}

/// What is not 0 where a group has contributing rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SeenIn {
    /// This column.
    Count(usize),
    /// This bit of a column.
    Bit(usize, u32),
}

impl SeenIn {
    fn of(rows: Rows) -> Option<SeenIn> {
        match rows {
            Rows::Number(column) | Rows::SomeOf(column) => Some(SeenIn::Count(column)),
            Rows::Bit(column, bit) => Some(SeenIn::Bit(column, bit)),
            Rows::Group => None,
        }
    }
}

impl Layout {
    /// The layout of a plan's result, where its groups can be merged.
    pub fn of(plan: &Plan) -> Option<Layout> {
        let Columns { columns, places } = &plan.results;
        let mut seen = vec![None; columns.len()];
        for place in places {
            if let Some(seen) = place.value.and_then(|value| seen.get_mut(value)) {
                *seen = SeenIn::of(place.rows);
            }
        }
        let keys: Vec<_> = plan.keys.fields.iter().map(|field| (field.ty, field.class)).collect();
        let states = columns.iter().zip(seen).map(|(column, seen)| {
            let Column::Of(acc) = column else {
                let (ty, class) = (ValueType::UInt32, Class::U32);
                return Some(StateColumn { merging: Merging::Seen, ty, class, stored: class });
            };
            let merging = match acc.fold {
                Fold::Count => Merging::Count,
                Fold::Seen { .. } => Merging::Seen,
                Fold::Sum { .. } => Merging::Sum,
                Fold::Extreme { min } | Fold::Best { min, .. } if !has_float_order(acc.ty) => {
                    Merging::Extreme { min, seen }
                }
                Fold::Bits { bits, .. } => Merging::Bits(bits),
                _ => return None,
            };
            Some(StateColumn { merging, ty: acc.ty, class: acc.class, stored: acc.result_class() })
        });
        let states = states.collect::<Option<Vec<_>>>()?;
        (!keys.is_empty()).then(|| Layout { keys, states, places: places.clone() })
    }

    /// Words of NULL flags, where a key may be NULL.
    pub fn flag_words(&self) -> usize {
        self.keys.len().div_ceil(32)
    }
}

impl Piece {
    /// Columns in the order in which results have them.
    pub fn columns(&self) -> impl Iterator<Item = &BufferSlice> {
        self.keys.iter().chain(&self.flags).chain(&self.states)
    }
}

impl KeptGroups {
    /// The groups that a plan's gathering kernel writes into a buffer with room for so many.
    pub(super) fn new(
        layout: &Arc<Layout>,
        plan: &Plan,
        (out, room): (BufferSlice, usize),
        groups: usize,
        generation: u64,
    ) -> Self {
        let mut offset = out.offset;
        let mut next = |words: usize| {
            let len = (words * room * 4) as u64;
            let slice = BufferSlice { buffer: Arc::clone(&out.buffer), offset, len };
            offset += len;
            slice
        };
        let keys = layout.keys.iter().map(|(_, class)| next(class.words())).collect();
        let flags = (0..plan.keys.flag_words).map(|_| next(1)).collect();
        let states = layout.states.iter().map(|state| next(state.stored.words())).collect();
        let pieces = if groups > 0 { vec![Piece { groups, keys, flags, states }] } else { vec![] };
        KeptGroups {
            layout: Arc::clone(layout),
            pieces,
            rows: 0,
            generation,
            strategy: Strategy::Global,
            reruns: 0,
        }
    }

    /// The same with how they were found, of so many rows.
    pub(super) fn found(self, strategy: Strategy, rows: usize) -> Self {
        KeptGroups { strategy, rows: rows as u64, ..self }
    }

    /// The same groups in other pieces.
    pub(super) fn with_pieces(&self, pieces: Vec<Piece>) -> Self {
        KeptGroups { pieces, ..self.clone() }
    }

    /// These and the others, of the same rows.
    pub(super) fn beside(mut self, other: KeptGroups) -> Self {
        self.pieces.extend(other.pieces);
        self
    }

    /// Whether the columns of both lie alike, so that they can be merged.
    pub fn fits(&self, other: &KeptGroups) -> bool {
        self.generation == other.generation && self.layout == other.layout
    }

    /// These and then those of `others`, which must fit.
    pub fn and(mut self, others: impl IntoIterator<Item = KeptGroups>) -> Self {
        self.extend(others);
        self
    }

    /// Adds those of `others`, which must fit.
    pub fn extend(&mut self, others: impl IntoIterator<Item = KeptGroups>) {
        for other in others {
            self.rows = self.rows.saturating_add(other.rows);
            self.pieces.extend(other.pieces);
        }
    }

    /// Groups; those with equal keys in several segments count as often.
    pub fn groups(&self) -> usize {
        self.pieces.iter().map(|piece| piece.groups).sum()
    }

    /// Rows that they stand for.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// The generation of the device that they are on.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// How they were found.
    pub fn strategy(&self) -> Strategy {
        self.strategy
    }

    /// Times that the rows were grouped again.
    pub fn reruns(&self) -> u32 {
        self.reruns
    }

    /// Device bytes that they hold, each buffer once.
    pub fn device_bytes(&self) -> u64 {
        let slices = self.pieces.iter().flat_map(Piece::columns);
        let mut buffers: Vec<_> =
            slices.map(|slice| (Arc::as_ptr(&slice.buffer), slice.buffer.size())).collect();
        buffers.sort_unstable();
        buffers.dedup();
        buffers.into_iter().map(|(_, bytes)| bytes).sum()
    }

    /// Bytes of a group in the widest column.
    pub fn widest(&self) -> u64 {
        let keys = self.layout.keys.iter().map(|(_, class)| class.words());
        let widest = keys.chain(self.layout.states.iter().map(|state| state.stored.words())).max();
        4 * widest.unwrap_or(1) as u64
    }

    /// Bytes of a group on the host and in a pile.
    pub fn group_bytes(&self) -> u64 {
        let words = self.layout.keys.iter().map(|(_, class)| class.words()).sum::<usize>()
            + self.layout.flag_words()
            + self.layout.states.iter().map(|state| state.stored.words()).sum::<usize>();
        4 * words as u64
    }
}

/// Groups for which a buffer has room, at least so many: as many that each column begins where it may be bound.
pub(super) fn room(groups: usize, caps: &DeviceCaps) -> usize {
    let alignment = (caps.offset_alignment as usize).max(16) / 4;
    groups.max(1).next_multiple_of(alignment)
}

impl Launch<'_> {
    /// Gathers so many groups, and leaves them on the device.
    pub fn kept(
        &self,
        table: &Table,
        groups: usize,
        layout: &Arc<Layout>,
        mut keep: Vec<BufferSlice>,
    ) -> GpuResult<Attempt> {
        let cap = room(groups, &self.caps);
        let words = result_words(&self.plan.keys, &self.plan.results.columns);
        let out = allocate(self.scope, "kept groups", cap as u64 * u64::from(words) * 4)?;
        let context = &self.scope.context;
        let mut encoder = context.device().create_command_encoder(&Default::default());
        let mut timer = self.scope.timer();
        self.gather(&mut encoder, &mut timer, table, &out, cap as u32, &mut keep)?;
        context.submit_ahead(encoder)?;
        // Only now do they go to others, who submit later.
        drop((timer, keep));
        let kept = KeptGroups::new(layout, &self.plan, (out, cap), groups, context.generation());
        let kept = kept.found(self.strategy(), self.segment.rows);
        Ok(Attempt::Done(Grouped::Kept(kept)))
    }
}

/// What a grouping gave.
#[derive(Debug)]
pub enum Grouped {
    /// Groups on the host.
    Host(GroupResult),
    /// Groups on the device.
    Kept(KeptGroups),
}

impl Grouped {
    /// The same after so many attempts more.
    pub(super) fn after(self, reruns: u32) -> Self {
        match self {
            Grouped::Host(result) => Grouped::Host(GroupResult { reruns: reruns + result.reruns, ..result }),
            Grouped::Kept(kept) => Grouped::Kept(KeptGroups { reruns: reruns + kept.reruns, ..kept }),
        }
    }
}
