//! The grouping's kernels: one that finds each row's group and accumulates, one that gathers the groups.

use crate::error::GpuResult;
use crate::kernels::program::{ColumnShape, Program};
use crate::kernels::select::scan_shader;
use crate::kernels::shader::{Slot, fitted};
use crate::memory::{AdapterKind, DeviceCaps, ShaderSource};

use super::accumulate::{Accumulator, Memory};
use super::builder::Builder;
use super::columns::Columns;
use super::finish::count_shader;
use super::float::Window;
use super::kernel::head;
use super::keys::Keys;
use super::ordered;
use super::strategy::{Choice, Local, choose, choose_ordered};
use super::{GroupBy, GroupHint};

/// Buffers that a kernel binds beside arguments, columns and look-up tables, at most.
pub(super) const OWN_BINDINGS: u32 = 4;
/// Columns up to which four rows are in flight, and distinct nodes from which on fewer rows are in flight, for registers' and compilers' sake.
const FEW_COLUMNS: usize = 4;
const LARGE_PROGRAM: usize = 96;

/// Bits of the status word.
pub(super) mod status {
    /// A live row met an arithmetic fault.
    pub const FAULT: u32 = 1;
    /// A row found neither its group nor a free slot.
    pub const FULL: u32 = 2;
    /// Too many rows fought for the best of a group.
    pub const CONTENDED: u32 = 4;
    /// A contributing float was NaN, -0 or +0.
    pub const NAN: u32 = 8;
    pub const NEGATIVE_ZERO: u32 = 16;
    pub const POSITIVE_ZERO: u32 = 32;
    /// A key lay outside of the range that it was said to have.
    pub const OUTSIDE: u32 = 64;
    /// A float that was summed was NaN or infinite.
    pub const SPECIAL: u32 = 128;
    /// First of the words of bits of limbs that sums of floats met, two a sum.
    pub const LIMBS_AT: usize = 4;
    /// What makes an attempt vain.
    pub const FAILED: u32 = FULL | CONTENDED | OUTSIDE;
}

/// Where an aggregate's state is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    /// What tells the contributing rows.
    pub rows: Rows,
    /// Accumulator of the value.
    pub value: Option<usize>,
}

/// What tells how many rows contribute to an aggregate or, where nobody needs their number, whether there is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rows {
    /// An accumulator of their number.
    Number(usize),
    /// The same, though there being one is all that matters.
    SomeOf(usize),
    /// A bit of the accumulator.
    Bit(usize, u32),
    /// The group, which has none but such rows.
    Group,
}

/// A row kernel.
#[derive(Debug)]
pub(super) struct Kernel {
    pub shader: ShaderSource,
    pub slots: Vec<Slot>,
    pub columns: Vec<ColumnShape>,
    /// Whether it reads look-up tables or lists.
    pub tables: bool,
}

/// A planned grouping.
#[derive(Debug)]
pub(super) struct Plan {
    pub choice: Choice,
    /// Its own buffers: table, status, and the order of the rows, where they have one.
    pub accumulate: Kernel,
    /// Its own buffers: table, tile offsets, block offsets, result.
    pub gather: Kernel,
    pub keys: Keys,
    pub accumulators: Vec<Accumulator>,
    /// One an aggregate.
    pub places: Vec<Place>,
    /// What goes to the host, or stays on the device.
    pub results: Columns,
    /// Words of a slot's record.
    pub stride: u32,
    /// Rows that an invocation has in flight.
    pub unroll: u32,
    /// Accumulators that rows may fight for in a loop.
    pub bests: u32,
    /// Windows of sums of floats.
    pub sums: Vec<Window>,
    /// Loop iterations that the additions of a row, or of a record, to them take.
    pub additions: u32,
}

/// What rows are, and how they come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Form {
    /// In the order of their hashes, instead of as they lie.
    pub ordered: bool,
    /// They are groups already, whose counts are added.
    pub merging: bool,
    /// Their groups may stay on the device, to be merged with those of other segments.
    pub kept: bool,
}

impl Form {
    /// Plain rows as they lie.
    pub const PLAIN: Form = Form { ordered: false, merging: false, kept: false };
    /// Plain rows in the order of their hashes.
    pub const ORDERED: Form = Form { ordered: true, merging: false, kept: false };
}

impl Plan {
    /// The plan for rows of such a form.
    pub fn build(
        caps: &DeviceCaps,
        program: &Program,
        by: &GroupBy,
        columns: &[ColumnShape],
        rows: usize,
        hint: &GroupHint,
        Form { ordered, merging, kept }: Form,
    ) -> GpuResult<Plan> {
        let own = if ordered { 3 } else { 2 };
        let all = fitted(columns.to_vec(), own, caps.max_storage_buffers);
        let mut builder = Builder::new(program, &all, &hint.sums, merging);
        let parts = builder.parts(program, by)?;
        let choose = if ordered { choose_ordered } else { choose };
        let choice = choose(&parts.keys, builder.words, rows, hint, caps);
        let table = Memory::Table { head: head(choice.mode, &parts.keys) };
        let stride = stride(head(choice.mode, &parts.keys) + builder.words);
        let unroll = match (caps.device_type, builder.emitter.size()) {
            (AdapterKind::Software, _) => 1,
            (_, 0..LARGE_PROGRAM) if columns.len() <= FEW_COLUMNS => caps.unroll.clamp(1, 4),
            _ => (caps.unroll / 2).clamp(1, 2),
        };
        let accumulate = builder.accumulate(program, by, &parts, &choice, stride, unroll)?;
        let fixed = if kept { Columns::fixed(by, &builder.accumulators, &parts.places) } else { None };
        let results = fixed.unwrap_or_else(|| Columns::of(&builder.accumulators, &parts.places));
        let gather = builder.gather(caps, program, by, columns, (&parts.keys, &results), (table, stride))?;
        let (accumulators, sums) = (builder.accumulators, builder.sums);
        let bests = accumulators.iter().filter(|acc| acc.fold.best().is_some()).count() as u32;
        let additions = accumulators.iter().map(|acc| acc.fold.iterations()).sum();
        Ok(Plan {
            choice,
            accumulate,
            gather,
            keys: parts.keys,
            accumulators,
            places: parts.places,
            results,
            stride,
            unroll,
            bests,
            sums,
            additions,
        })
    }

    /// Whether rows are to be visited in the order of their hashes.
    pub fn wants_order(&self, rows: usize, hint: &GroupHint, caps: &DeviceCaps) -> bool {
        !self.choice.mode.direct
            && self.choice.mode.local != Local::Direct
            && ordered::pays(u64::from(self.stride) * 4, rows, hint, caps)
    }

    /// Bytes of their hashes by which they are ordered.
    pub fn ordered_bytes(&self) -> u32 {
        ordered::bytes(self.choice.shared.is_some())
    }

    /// Every shader of the launch.
    pub fn shaders(self) -> Vec<ShaderSource> {
        vec![self.accumulate.shader, count_shader(), scan_shader(), self.gather.shader]
    }
}

/// Words of a record, such that few lie across memory sectors.
fn stride(words: u32) -> u32 {
    if words <= 8 { words.next_power_of_two() } else { words.next_multiple_of(8) }
}
