//! Composition of row kernels: bindings, the argument block, and the function that evaluates one row.
//!
//! Binding 0 is the argument block of the segment, then come each column's values and, where some segment has one, its
//! validity bitmap, then what the kernel adds. Where an adapter binds too few buffers, the columns are copied into one, which
//! is then the first that the kernel adds. Words of the argument block: 0 is all ones (it stands in for the
//! validity of columns without nulls), 1..8 are the kernel's own (1 = rows), then one index mask for each nullable
//! column (0 makes every read hit word 0), then the parameters, then where each table begins: look-up tables and lists, a copy of
//! which lies behind the words of those kernels that read some. So they need no binding of their own.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::ops::Range;

use crate::error::GpuResult;
use crate::memory::pool::size_class;
use crate::memory::{BindingKind, BufferSlice, ShaderSource};

use super::expr::{Emitter, INVALID_NAN, PARAM_WORDS, Scalar, ValueType, arg_load, element, fetch_index};
use super::program::{ColumnShape, Program, Segment};

/// Invocations of a workgroup.
pub(crate) const WORKGROUP: u32 = 256;

/// First word of the validity index masks.
const MASKS_AT: usize = 8;

const WIDE: &str = include_str!("../../shaders/common/wide.wgsl");
const FLOATS: &str = include_str!("../../shaders/common/floats.wgsl");
const DECIMAL: &str = include_str!("../../shaders/common/decimal.wgsl");
const ROUND53: &str = include_str!("../../shaders/common/round53.wgsl");
const FLOAT_BITS: &str = include_str!("../../shaders/common/float_bits.wgsl");
const FLOAT_ARITH: &str = include_str!("../../shaders/common/float_arith.wgsl");
const FLOAT_ROUND: &str = include_str!("../../shaders/common/float_round.wgsl");
const TEMPORAL: &str = include_str!("../../shaders/common/temporal.wgsl");

/// What is bound at a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Slot {
    /// The segment's argument block.
    Args,
    /// Values of a source column.
    Values(usize),
    /// Validity of a source column.
    Validity(usize),
    /// The n-th buffer that the kernel adds.
    Own(usize),
}

/// Bindings of a row kernel, in order, and their declarations.
#[derive(Debug, Clone)]
pub(crate) struct Bindings {
    /// What is bound, by binding number.
    pub slots: Vec<Slot>,
    kinds: Vec<BindingKind>,
    text: String,
    own: usize,
}

impl Bindings {
    /// Arguments and columns.
    pub fn new(columns: &[ColumnShape]) -> GpuResult<Self> {
        let mut bindings = Bindings { slots: vec![], kinds: vec![], text: String::new(), own: 0 };
        bindings.add(Slot::Args, BindingKind::ReadOnlyStorage, "args", "u32");
        if is_packed(columns) {
            bindings.own(BindingKind::ReadOnlyStorage, "pack", "u32");
        }
        let columns_apart = if is_packed(columns) { &[] } else { columns };
        for (at, shape) in columns_apart.iter().enumerate() {
            let read = BindingKind::ReadOnlyStorage;
            bindings.add(Slot::Values(shape.index), read, &format!("c{at}"), element(shape)?);
            if shape.nullable {
                bindings.add(Slot::Validity(shape.index), read, &format!("m{at}"), "u32");
            }
        }
        Ok(bindings)
    }

    /// Adds a buffer of the kernel's own.
    pub fn own(&mut self, kind: BindingKind, name: &str, element: &str) {
        self.add(Slot::Own(self.own), kind, name, element);
        self.own += 1;
    }

    fn add(&mut self, slot: Slot, kind: BindingKind, name: &str, element: &str) {
        let access = match kind {
            BindingKind::Storage => "read_write",
            _ => "read",
        };
        let number = self.slots.len();
        let _ = writeln!(
            self.text,
            "@group(0) @binding({number}) var<storage, {access}> {name}: array<{element}>;"
        );
        self.slots.push(slot);
        self.kinds.push(kind);
    }

    /// The finished shader: declarations, the library parts that `body` names, and `body`.
    pub fn shader(&self, name: &str, body: &str) -> ShaderSource {
        let mut wgsl = self.text.clone();
        let rounds = body.contains("round53");
        let decimal = body.contains("dec_");
        let (arith, whole) = (body.contains("fa_"), body.contains("fr_"));
        if rounds || decimal || arith || body.contains("w_") {
            wgsl.push_str(WIDE);
        }
        if decimal {
            wgsl.push_str(DECIMAL);
        }
        if body.contains("f_key") || body.contains("f_fold") {
            wgsl.push_str(FLOATS);
        }
        if rounds {
            wgsl.push_str(ROUND53);
        }
        if arith || whole || decimal || body.contains("fb_") {
            wgsl.push_str(FLOAT_BITS);
        }
        if arith {
            let _ = writeln!(wgsl, "const FA_INVALID: u64 = {INVALID_NAN:#x}lu;");
            wgsl.push_str(FLOAT_ARITH);
        }
        if whole {
            wgsl.push_str(FLOAT_ROUND);
        }
        if body.contains("tm_") {
            wgsl.push_str(TEMPORAL);
        }
        wgsl.push_str(body);
        ShaderSource { name: name.to_owned(), wgsl, bindings: self.kinds.clone() }
    }
}

/// Whether the columns lie in one buffer.
pub(crate) fn is_packed(columns: &[ColumnShape]) -> bool {
    columns.iter().any(|shape| shape.packed)
}

/// The shapes for a kernel that binds `others` buffers beside arguments and columns: packed where they would be too many.
pub(crate) fn fitted(columns: Vec<ColumnShape>, others: u32, limit: u32) -> Vec<ColumnShape> {
    let packed = columns.len() > 1 || columns.iter().any(|shape| shape.nullable);
    let packed = packed && column_bindings(&columns) + others > limit;
    columns.into_iter().map(|shape| ColumnShape { packed, ..shape }).collect()
}

/// Where a column's values, and its validity if it has one, begin in the segment's packed buffer, in words of 32 bits; and the
/// words of the whole.
pub(crate) fn places(columns: &[ColumnShape], segment: &Segment) -> GpuResult<(Vec<[u32; 2]>, u64)> {
    let (mut places, mut end) = (vec![], 0u64);
    for shape in columns {
        let column = segment.column(shape.index)?;
        let mut place = [0; 2];
        for (place, slice) in place.iter_mut().zip([Some(&column.values), column.validity.as_ref()]) {
            if let Some(slice) = slice {
                *place = u32::try_from(end).unwrap_or(u32::MAX);
                end += slice.len / 4;
            }
        }
        places.push(place);
    }
    Ok((places, end))
}

/// Storage buffers of the arguments and the columns.
pub(crate) fn column_bindings(columns: &[ColumnShape]) -> u32 {
    let buffers: u32 = match is_packed(columns) {
        true => 1,
        false => columns.iter().map(|shape| 1 + u32::from(shape.nullable)).sum(),
    };
    1 + buffers
}

/// Words of an argument block at most, for so many columns, parameters and tables, without the tables themselves.
pub(crate) fn argument_words(columns: usize, params: usize, tables: usize) -> usize {
    MASKS_AT + 3 * columns + 5 * params + 2 * tables
}

/// Device bytes that a kernel's argument block takes with a copy of its tables, of `bytes` bytes together, behind it; 0 without tables, since
/// blocks then share a buffer.
pub(crate) fn table_copy_bytes(
    program: &Program,
    columns: usize,
    tables: &BTreeSet<usize>,
    bytes: u64,
) -> u64 {
    /// What kernels put behind the parameters, such as the digits of computed slots.
    const OWN_WORDS: usize = 64;
    if bytes == 0 {
        return 0;
    }
    let places = tables.last().map_or(0, |table| table + 1);
    let words = (argument_words(columns, program.params.len(), places) + OWN_WORDS) as u64;
    size_class((4 * words).saturating_add(bytes).checked_next_multiple_of(16).unwrap_or(u64::MAX))
}

/// First word of the places of packed columns.
fn places_at(columns: &[ColumnShape]) -> usize {
    MASKS_AT + columns.iter().filter(|shape| shape.nullable).count()
}

/// First word of the parameters.
pub(crate) fn params_at(columns: &[ColumnShape]) -> usize {
    let places = if is_packed(columns) { 2 * columns.len() } else { 0 };
    places_at(columns) + places
}

/// The arguments of a kernel over one segment.
pub(crate) struct ArgumentBlock {
    words: Vec<u32>,
    /// Where among them the places of the tables are.
    places: Range<usize>,
    /// Tables that a copy of is put behind them.
    pub tables: Option<BufferSlice>,
}

impl ArgumentBlock {
    /// A block of nothing but words, the first one that of ones included.
    #[cfg(test)]
    pub fn of(words: Vec<u32>) -> Self {
        ArgumentBlock { words, places: 0..0, tables: None }
    }

    /// The block of a kernel that reads no columns: `own` are words 1 and following.
    pub fn own(own: &[u32]) -> Self {
        ArgumentBlock { words: head(own), places: 0..0, tables: None }
    }

    /// Words so far, without the tables.
    pub fn len(&self) -> usize {
        self.words.len()
    }

    /// Puts words at its end, before the tables.
    pub fn extend(&mut self, words: &[u32]) {
        self.words.extend_from_slice(words);
    }

    /// The block, cut to whole 16-byte units; the tables come right after it.
    pub fn bytes(&self) -> Vec<u8> {
        let mut words = self.words.clone();
        words.resize(words.len().next_multiple_of(4), 0);
        let base = words.len() as u32;
        if self.tables.is_some() {
            // Buffers are too short for an overflow.
            words[self.places.clone()].iter_mut().for_each(|place| *place = place.wrapping_add(base));
        }
        bytemuck::cast_slice(&words).to_vec()
    }
}

/// The words before the validity index masks.
fn head(own: &[u32]) -> Vec<u32> {
    let mut words = vec![0u32; MASKS_AT];
    words[0] = u32::MAX;
    for (at, word) in own.iter().enumerate().take(MASKS_AT - 1) {
        words[at + 1] = *word;
    }
    words
}

/// The argument block of one segment: `own` are words 1 and following. The tables come along where the kernel reads some, as
/// [`reads_tables`] tells.
pub(crate) fn argument_block(
    own: &[u32],
    columns: &[ColumnShape],
    tables: bool,
    segment: &Segment,
    params: &[(ValueType, Scalar)],
) -> GpuResult<ArgumentBlock> {
    let mut words = head(own);
    let nullable = columns.iter().filter(|shape| shape.nullable);
    let has_nulls = |index: usize| segment.column(index).is_ok_and(|column| column.validity.is_some());
    words.extend(nullable.map(|shape| if has_nulls(shape.index) { u32::MAX } else { 0 }));
    if is_packed(columns) {
        words.extend(places(columns, segment)?.0.into_iter().flatten());
    }
    for (_, value) in params {
        let bits = value.unwrap_or(0) as u128;
        words.extend((0..4).map(|k| (bits >> (32 * k)) as u32));
        words.push(u32::from(value.is_some()));
    }
    let first = words.len();
    words.extend(segment.tables.places.iter().flatten());
    let tables = segment.tables.words.as_ref().filter(|_| tables).cloned();
    Ok(ArgumentBlock { places: first..words.len(), words, tables })
}

/// How a row's elements come into the row function.
pub(crate) struct Loads<'a> {
    columns: &'a [ColumnShape],
    /// Source columns that are loaded; all without.
    only: Option<&'a BTreeSet<usize>>,
}

impl<'a> Loads<'a> {
    pub fn new(columns: &'a [ColumnShape]) -> Self {
        Loads { columns, only: None }
    }

    /// Loads of some of a kernel's columns.
    pub fn of(columns: &'a [ColumnShape], only: &'a BTreeSet<usize>) -> Self {
        Loads { columns, only: Some(only) }
    }

    fn loads(&self, shape: &ColumnShape) -> bool {
        self.only.is_none_or(|only| only.contains(&shape.index))
    }

    /// The columns that are loaded, with their numbers.
    fn numbered(&self) -> impl Iterator<Item = (usize, &'a ColumnShape)> {
        self.columns.iter().enumerate().filter(|(_, shape)| self.loads(shape))
    }

    /// Parameters of the row function after its first ones, each with a leading comma.
    pub fn parameters(&self) -> GpuResult<String> {
        let mut text = String::new();
        for (at, shape) in self.numbered() {
            let _ = write!(text, ", r{at}: {}", element(shape)?);
            if shape.nullable {
                let _ = write!(text, ", v{at}: u32");
            }
        }
        Ok(text)
    }

    /// Statements that load the elements of row `index` into names ending in `suffix`.
    pub fn statements(&self, index: &str, suffix: &str, indent: &str) -> String {
        let mut text = String::new();
        for (at, shape) in self.numbered() {
            if shape.packed {
                let value = packed_element(shape, at, &fetch_index(shape, index));
                let _ = writeln!(text, "{indent}let r{at}{suffix} = {value};");
                if shape.nullable {
                    let word = format!("pack[y{at} + (({index} >> 5u) & x{at})]");
                    let _ = writeln!(
                        text,
                        "{indent}let v{at}{suffix} = select(0xffffffffu, {word}, x{at} != 0u);"
                    );
                }
                continue;
            }
            let _ = writeln!(text, "{indent}let r{at}{suffix} = c{at}[{}];", fetch_index(shape, index));
            if shape.nullable {
                let _ = writeln!(text, "{indent}let v{at}{suffix} = m{at}[({index} >> 5u) & x{at}];");
            }
        }
        text
    }

    /// Arguments for [`Loads::parameters`], each with a leading comma.
    pub fn arguments(&self, suffix: &str) -> String {
        let mut text = String::new();
        for (at, shape) in self.numbered() {
            let _ = write!(text, ", r{at}{suffix}");
            if shape.nullable {
                let _ = write!(text, ", v{at}{suffix}");
            }
        }
        text
    }

    /// Statements of the entry point that read the validity index masks.
    pub fn masks(&self) -> String {
        let mut text = String::new();
        let nullable = self.columns.iter().enumerate().filter(|(_, shape)| shape.nullable);
        for (word, (at, shape)) in nullable.enumerate() {
            if self.loads(shape) {
                let _ = writeln!(text, "    let x{at} = args[{}];", MASKS_AT + word);
            }
        }
        for (at, shape) in self.numbered().filter(|(_, shape)| shape.packed) {
            let word = places_at(self.columns) + 2 * at;
            let _ = writeln!(text, "    let q{at} = args[{word}];");
            if shape.nullable {
                let _ = writeln!(text, "    let y{at} = args[{}];", word + 1);
            }
        }
        text
    }
}

/// An element of a column in the packed buffer, as its own array would give it.
fn packed_element(shape: &ColumnShape, at: usize, index: &str) -> String {
    let word = |scale: u32, offset: u32| format!("pack[q{at} + ({index}) * {scale}u + {offset}u]");
    let pair =
        |scale, offset| format!("((u64({}) << 32u) | u64({}))", word(scale, offset + 1), word(scale, offset));
    match element(shape) {
        Ok("i32") => format!("bitcast<i32>({})", word(1, 0)),
        Ok("i64") => format!("bitcast<i64>({})", pair(2, 0)),
        Ok("u64") => pair(2, 0),
        Ok("vec2<u64>") => format!("vec2<u64>({}, {})", pair(4, 0), pair(4, 2)),
        _ => word(1, 0),
    }
}

/// Whether the kernel of an emitter that has emitted all of it reads look-up tables or lists.
pub(crate) fn reads_tables(emitter: &Emitter<'_>) -> bool {
    !emitter.tables.is_empty()
}

/// Module-scope variables of the parameters, and of the tables' places, that the row function reads from registers.
pub(crate) fn param_variables(emitter: &Emitter<'_>) -> String {
    let mut text = String::new();
    for (slot, class) in &emitter.held {
        let _ = writeln!(text, "var<private> p{slot}: {};\nvar<private> p{slot}v: bool;", class.wgsl());
    }
    for table in &emitter.tables {
        let _ = writeln!(text, "var<private> tf{table}: u32;\nvar<private> tv{table}: u32;");
    }
    text
}

/// Statements of the entry point that fill them.
pub(crate) fn param_loads(emitter: &Emitter<'_>, params_at: usize) -> String {
    let mut text = String::new();
    for (slot, class) in &emitter.held {
        let (value, valid) = arg_load(*class, params_at + slot * PARAM_WORDS);
        let _ = writeln!(text, "    p{slot} = {value};\n    p{slot}v = {valid};");
    }
    for table in &emitter.tables {
        let at = emitter.tables_at + 2 * table;
        let _ = writeln!(text, "    tf{table} = args[{at}];\n    tv{table} = args[{}];", at + 1);
    }
    text
}

/// Head of an entry point: `l` is the invocation in the workgroup, `group` the workgroup, `groups` their number.
pub(crate) const ENTRY: &str = "
@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(num_workgroups) nwg: vec3<u32>,
    @builtin(local_invocation_index) l: u32,
) {
    let group = (wid.z * nwg.y + wid.y) * nwg.x + wid.x;
    let groups = nwg.x * nwg.y * nwg.z;
    let rows = args[1];
";
