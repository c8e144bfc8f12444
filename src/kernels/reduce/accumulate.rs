//! Accumulators: how they update, join over a workgroup, and lie in its record.

use std::fmt::Write;

use crate::error::{GpuError, GpuResult};
use crate::kernels::expr::widths::Class;
use crate::kernels::shader::WORKGROUP;
use crate::memory::DeviceCaps;

use super::float::Width;

/// Planes (one 32-bit word for each invocation) of workgroup memory that a tree uses at most.
const MAX_PLANES: u32 = 16;
/// How two values of an accumulator join.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Join {
    Add,
    Min,
    Max,
    And,
    Or,
    Xor,
}

/// What an invocation accumulates in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Registers {
    /// One variable `a<number>` of a class.
    One(Class),
    /// The window of a sum of floats.
    Window(Width),
}

/// One value that is accumulated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Accumulator {
    pub join: Join,
    /// An invocation's registers.
    pub thread: Registers,
    /// Class in the tree and in the record.
    pub tree: Class,
    /// First word in the record.
    pub at: usize,
}

impl Accumulator {
    /// The variable's declaration at module scope, and its first value.
    pub fn declaration(&self, number: usize) -> (String, String) {
        let class = match self.thread {
            Registers::One(class) => class,
            Registers::Window(width) => return width.declaration(number),
        };
        let (ty, first) = (class.wgsl(), identity(self.join, class));
        (format!("var<private> a{number}: {ty};"), format!("a{number} = {first};"))
    }

    /// The accumulated value in a workgroup's record, as an integer.
    pub fn read(&self, record: &[u32]) -> i128 {
        let word = |k: usize| u128::from(record.get(self.at + k).copied().unwrap_or(0));
        match self.tree {
            Class::Bool | Class::U32 => word(0) as i128,
            Class::I32 => i128::from(word(0) as u32 as i32),
            Class::U64 => (word(0) | word(1) << 32) as i128,
            Class::I64 => i128::from((word(0) | word(1) << 32) as u64 as i64),
            Class::Wide => (word(0) | word(1) << 32 | word(2) << 64 | word(3) << 96) as i128,
        }
    }

    /// Joins two values as integers; sums wrap at 128 bits.
    pub fn join(&self, a: i128, b: i128) -> i128 {
        match self.join {
            Join::Add => a.wrapping_add(b),
            Join::Min => a.min(b),
            Join::Max => a.max(b),
            Join::And => a & b,
            Join::Or => a | b,
            Join::Xor => a ^ b,
        }
    }
}

/// Accumulators that go through the tree together.
#[derive(Debug)]
pub(super) struct Batch {
    first: usize,
    len: usize,
    /// Planes of workgroup memory.
    pub planes: u32,
}

/// Cuts the accumulators into batches that fit workgroup memory, of which `taken_bytes` are in use.
pub(super) fn batches(
    accumulators: &[Accumulator],
    caps: &DeviceCaps,
    taken_bytes: u32,
) -> GpuResult<Vec<Batch>> {
    let most = (caps.workgroup_bytes.saturating_sub(taken_bytes) / (4 * WORKGROUP)).min(MAX_PLANES);
    let mut batches: Vec<Batch> = vec![];
    for (number, acc) in accumulators.iter().enumerate() {
        let words = acc.tree.words() as u32;
        if words > most {
            let need = u64::from(words * 4 * WORKGROUP);
            return Err(GpuError::Limit {
                what: "bytes of workgroup memory",
                need,
                limit: caps.workgroup_bytes.into(),
                by_rows: false,
            });
        }
        match batches.last_mut() {
            Some(batch) if batch.planes + words <= most => {
                batch.len += 1;
                batch.planes += words;
            }
            _ => batches.push(Batch { first: number, len: 1, planes: words }),
        }
    }
    Ok(batches)
}

/// Workgroup memory in planes of one word an invocation, so that neighbours use neighbouring banks.
pub(super) const PLANES: &str = "
fn s_get64(at: u32) -> u64 {
    return (u64(s[at + 256u]) << 32u) | u64(s[at]);
}

fn s_put64(at: u32, x: u64) {
    s[at] = u32(x & 0xfffffffflu);
    s[at + 256u] = u32(x >> 32u);
}
";

fn get(acc: &Accumulator, plane: u32) -> String {
    let at = format!("{}u + l + d", plane * WORKGROUP);
    match acc.tree {
        Class::I32 => format!("bitcast<i32>(s[{at}])"),
        Class::Bool | Class::U32 => format!("s[{at}]"),
        Class::I64 => format!("bitcast<i64>(s_get64({at}))"),
        Class::U64 => format!("s_get64({at})"),
        Class::Wide => format!("vec2<u64>(s_get64({at}), s_get64({at} + 512u))"),
    }
}

fn put(acc: &Accumulator, plane: u32, value: &str) -> String {
    let at = format!("{}u + l", plane * WORKGROUP);
    match acc.tree {
        Class::I32 => format!("s[{at}] = bitcast<u32>({value});"),
        Class::Bool | Class::U32 => format!("s[{at}] = {value};"),
        Class::I64 => format!("s_put64({at}, bitcast<u64>({value}));"),
        Class::U64 => format!("s_put64({at}, {value});"),
        Class::Wide => format!("s_put64({at}, {value}.x); s_put64({at} + 512u, {value}.y);"),
    }
}

impl Batch {
    /// Joins one batch of accumulators over the workgroup and writes its words of the record.
    pub fn text(&self, accumulators: &[Accumulator], record: usize) -> String {
        let mut text = String::new();
        let members = || accumulators.iter().enumerate().skip(self.first).take(self.len);
        let first = members().next().map_or(0, |(_, acc)| acc.at as u32);
        for (number, acc) in members() {
            let value = match (acc.thread, acc.tree) {
                (Registers::Window(width), _) => width.total(number),
                (Registers::One(Class::I64), Class::Wide) => format!("w_from(a{number})"),
                _ => format!("a{number}"),
            };
            let _ = writeln!(text, "    var t{number} = {value};");
            let put = put(acc, acc.at as u32 - first, &format!("t{number}"));
            let _ = writeln!(text, "    {put}");
        }
        text.push_str(
            "    workgroupBarrier();\n    for (var d = 128u; d > 0u; d >>= 1u) {\n        if (l < d) {\n",
        );
        for (number, acc) in members() {
            let plane = acc.at as u32 - first;
            let (mine, other) = (format!("t{number}"), format!("o{number}"));
            let _ = writeln!(text, "            let {other} = {};", get(acc, plane));
            let _ = writeln!(text, "            {mine} = {};", joined(acc.join, acc.tree, &mine, &other));
            let _ = writeln!(text, "            {}", put(acc, plane, &mine));
        }
        text.push_str("        }\n        workgroupBarrier();\n    }\n");
        let _ = writeln!(
            text,
            "    if (l < {}u) {{\n        partials[group * {}u + {first}u + l] = s[l * 256u];\n    }}\n    workgroupBarrier();",
            self.planes, record
        );
        text
    }
}

/// The statement that adds `value` where `counted`.
pub(super) fn update(number: usize, join: Join, class: Class, value: &str, counted: &str) -> String {
    let acc = format!("a{number}");
    match join {
        Join::Add | Join::And | Join::Or | Join::Xor => {
            let value = format!("select({}, {value}, {counted})", identity(join, class));
            format!("{acc} = {};", joined(join, class, &acc, &value))
        }
        Join::Min | Join::Max => {
            let better = better(join, class, value, &acc);
            format!("{acc} = select({acc}, {value}, {counted} & {better});")
        }
    }
}

fn joined(join: Join, class: Class, a: &str, b: &str) -> String {
    match join {
        Join::And => format!("{a} & {b}"),
        Join::Or => format!("{a} | {b}"),
        Join::Xor => format!("{a} ^ {b}"),
        Join::Add if class == Class::Wide => format!("w_add({a}, {b})"),
        Join::Add => format!("{a} + {b}"),
        Join::Min | Join::Max => format!("select({a}, {b}, {})", better(join, class, b, a)),
    }
}

/// Whether `value` takes the place of `best`.
fn better(join: Join, class: Class, value: &str, best: &str) -> String {
    let (small, large) = if join == Join::Min { (value, best) } else { (best, value) };
    match class {
        Class::Wide => format!("w_lt({small}, {large})"),
        _ => format!("(({small}) < ({large}))"),
    }
}

/// The value that changes nothing.
fn identity(join: Join, class: Class) -> &'static str {
    match (join, class) {
        (Join::And, Class::I32) => "(-1i)",
        (Join::And, Class::I64) => "(-1li)",
        (Join::And, Class::U32) => "0xffffffffu",
        (Join::And, Class::U64) => "0xfffffffffffffffflu",
        (Join::Min, Class::I32) => "2147483647i",
        (Join::Min, Class::I64) => "9223372036854775807li",
        (Join::Min, Class::U32) => "0xffffffffu",
        (Join::Min, Class::U64) => "0xfffffffffffffffflu",
        (Join::Min, Class::Wide) => "vec2<u64>(0xfffffffffffffffflu, 0x7ffffffffffffffflu)",
        (Join::Max, Class::I32) => "(-2147483647i - 1i)",
        (Join::Max, Class::I64) => "(-9223372036854775807li - 1li)",
        (Join::Max, Class::Wide) => "vec2<u64>(0lu, 0x8000000000000000lu)",
        _ => class.zero(),
    }
}
