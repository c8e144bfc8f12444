//! The reduction's accumulators and shader.
//!
//! Each invocation keeps its accumulators in registers over its rows, a tree in workgroup memory joins those of a
//! workgroup, and one record a workgroup goes to memory. Sums are narrow (64 bits) where bound and row count keep them
//! exact, else 128 bits wide.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Write;

use crate::error::{GpuError, GpuResult};
use crate::kernels::expr::widths::{Class, is_integer};
use crate::kernels::expr::{Emitter, Node, ValueType};
use crate::kernels::program::{ColumnShape, Program};
use crate::kernels::shader::{
    Bindings, ENTRY, Loads, Slot, WORKGROUP, param_loads, param_variables, params_at,
};
use crate::memory::{BindingKind, DeviceCaps, ShaderSource};

use super::{AggregateKind, AggregateSpec};

/// log2 of the rows that one invocation may add up; the grid is planned for it.
pub(super) const THREAD_ROWS_LOG2: u8 = 14;
/// log2 of the rows of a workgroup.
const GROUP_ROWS_LOG2: u8 = THREAD_ROWS_LOG2 + 8;
/// Planes (one 32-bit word for each invocation) of workgroup memory that a tree uses at most.
const MAX_PLANES: u32 = 16;
/// Distinct nodes from which on fewer rows are in flight, for registers' and compilers' sake.
const LARGE_PROGRAM: usize = 96;

/// How two values of an accumulator join.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Join {
    Add,
    Min,
    Max,
    Or,
}

/// One value that is accumulated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Accumulator {
    pub join: Join,
    /// Class in an invocation's registers.
    pub thread: Class,
    /// Class in the tree and in the record.
    pub tree: Class,
    /// First word in the record.
    pub at: usize,
}

/// Where an aggregate's state is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    /// Accumulator of the contributing rows.
    pub count: usize,
    /// Accumulator of the value.
    pub value: Option<usize>,
}

/// A planned reduction.
#[derive(Debug)]
pub(super) struct Plan {
    pub shader: ShaderSource,
    pub slots: Vec<Slot>,
    pub accumulators: Vec<Accumulator>,
    /// Words of a workgroup's record.
    pub record: usize,
    /// One an aggregate.
    pub places: Vec<Place>,
    /// Accumulator of the fault flag, where something can fault.
    pub fault: Option<usize>,
    /// Rows that an invocation has in flight.
    pub unroll: u32,
    /// Loop iterations of an invocation outside the loop over rows.
    pub tail: u32,
}

/// Gathers accumulators and their update statements.
struct Builder<'a> {
    emitter: Emitter<'a>,
    accumulators: Vec<Accumulator>,
    memo: HashMap<(Join, Class, String, String), usize>,
    conditions: HashMap<(String, String), String>,
    updates: String,
    /// (condition, fault flags that matter under it)
    faults: Vec<(String, BTreeSet<String>)>,
    words: usize,
}

impl Plan {
    pub fn build(
        caps: &DeviceCaps,
        program: &Program,
        aggregates: &[AggregateSpec],
        columns: &[ColumnShape],
    ) -> GpuResult<Plan> {
        let params_at = params_at(columns);
        let mut builder = Builder {
            emitter: Emitter::new(columns, &program.params, params_at),
            accumulators: vec![],
            memo: HashMap::new(),
            conditions: HashMap::new(),
            updates: String::new(),
            faults: vec![],
            words: 0,
        };
        let mut selected = "live".to_owned();
        if let Some(selection) = &program.selection {
            let node = builder.emitter.emit(selection)?;
            builder.faults.push((selected.clone(), node.faults.clone()));
            selected = builder.condition(&selected, &node)?;
        }
        let places = aggregates
            .iter()
            .map(|spec| builder.aggregate(spec, &selected))
            .collect::<GpuResult<Vec<_>>>()?;
        let fault = builder.fault();

        let mut bindings = Bindings::new(columns)?;
        bindings.own(BindingKind::Storage, "partials", "u32");
        let unroll = match builder.emitter.size() {
            0..LARGE_PROGRAM => caps.unroll.clamp(1, 8),
            _ => (caps.unroll / 2).clamp(1, 4),
        };
        let batches = batches(&builder.accumulators, caps)?;
        let loads = Loads::new(columns);
        let body = builder.text(&loads, &batches, params_at, unroll)?;
        Ok(Plan {
            shader: bindings.shader("reduce", &body),
            slots: bindings.slots,
            record: builder.words,
            accumulators: builder.accumulators,
            places,
            fault,
            unroll,
            tail: 8 * batches.len() as u32 + 8,
        })
    }
}

impl Builder<'_> {
    /// Names `base` and the node being true.
    fn condition(&mut self, base: &str, node: &Node) -> GpuResult<String> {
        if node.ty != ValueType::Boolean {
            return Err(GpuError::Internal(format!("a predicate has type {:?}", node.ty)));
        }
        let text = match &node.valid {
            Some(valid) => format!("{} & {valid}", node.value),
            None => node.value.clone(),
        };
        Ok(self.both(base, &text))
    }

    fn both(&mut self, base: &str, flag: &str) -> String {
        let key = (base.to_owned(), flag.to_owned());
        if let Some(name) = self.conditions.get(&key) {
            return name.clone();
        }
        let name = self.emitter.name(&format!("{base} & ({flag})"));
        self.conditions.insert(key, name.clone());
        name
    }

    fn aggregate(&mut self, spec: &AggregateSpec, selected: &str) -> GpuResult<Place> {
        let mut counted = selected.to_owned();
        if let Some(filter) = &spec.filter {
            let node = self.emitter.emit(filter)?;
            self.faults.push((counted.clone(), node.faults.clone()));
            counted = self.condition(&counted, &node)?;
        }
        let arg = match (&spec.arg, spec.kind) {
            (_, AggregateKind::CountRows) => None,
            (Some(arg), _) => Some(self.emitter.emit(arg)?),
            (None, kind) => return Err(GpuError::Internal(format!("{kind:?} without an argument"))),
        };
        if let Some(arg) = &arg {
            self.faults.push((counted.clone(), arg.faults.clone()));
            if let Some(valid) = &arg.valid {
                counted = self.both(&counted, valid);
            }
        }
        let count = self.add(Join::Add, Class::U32, Class::U32, "1u", &counted);
        let value = match arg {
            Some(arg) => self.value(spec.kind, &arg, &counted)?,
            None => None,
        };
        Ok(Place { count, value })
    }

    fn value(&mut self, kind: AggregateKind, arg: &Node, counted: &str) -> GpuResult<Option<usize>> {
        let unfit = || GpuError::Internal(format!("{kind:?} of {:?}", arg.ty));
        Ok(match kind {
            AggregateKind::CountRows | AggregateKind::Count => None,
            AggregateKind::SumInt => {
                if !is_integer(arg.ty) {
                    return Err(unfit());
                }
                let text = match arg.class {
                    Class::I32 => format!("bitcast<u64>(i64({}))", arg.value),
                    Class::U32 => format!("u64({})", arg.value),
                    Class::I64 => format!("bitcast<u64>({})", arg.value),
                    _ => arg.value.clone(),
                };
                Some(self.add(Join::Add, Class::U64, Class::U64, &text, counted))
            }
            AggregateKind::SumDecimal => match arg.ty {
                ValueType::Decimal { .. } => Some(self.sum(&arg.value, arg.class, arg.bits, counted)),
                _ => return Err(unfit()),
            },
            AggregateKind::SumAsFloat64 => {
                if !is_integer(arg.ty) {
                    return Err(unfit());
                }
                Some(self.rounded_sum(arg, counted))
            }
            AggregateKind::Min | AggregateKind::Max => {
                let (text, class) = match arg.ty {
                    ValueType::Float32 => (self.emitter.key(arg, false), Class::I32),
                    ValueType::Float64 => (self.emitter.key(arg, false), Class::I64),
                    ValueType::Boolean => (format!("select(0u, 1u, {})", arg.value), Class::U32),
                    _ => (arg.value.clone(), arg.class),
                };
                let join = if kind == AggregateKind::Min { Join::Min } else { Join::Max };
                Some(self.add(join, class, class, &text, counted))
            }
        })
    }

    /// Sum of decimals or of integers as such, in as few bits as stay exact.
    fn sum(&mut self, value: &str, class: Class, bits: u8, counted: &str) -> usize {
        let width = |rows: u8| Class::of_bits(bits.saturating_add(rows));
        let thread = if class == Class::Wide { Class::Wide } else { width(THREAD_ROWS_LOG2) };
        let tree = if thread == Class::Wide { Class::Wide } else { width(GROUP_ROWS_LOG2) };
        let text = match (class, thread) {
            (Class::I64, Class::Wide) => format!("w_from({value})"),
            _ => value.to_owned(),
        };
        self.add(Join::Add, thread, tree, &text, counted)
    }

    fn rounded_sum(&mut self, arg: &Node, counted: &str) -> usize {
        if arg.bits > 53 {
            let text = match arg.class {
                Class::U64 => format!("round53({})", arg.value),
                _ => format!("round53_signed({})", arg.value),
            };
            return self.add(Join::Add, Class::Wide, Class::Wide, &text, counted);
        }
        let text = match arg.class {
            Class::I32 => format!("i64({})", arg.value),
            Class::U32 => format!("bitcast<i64>(u64({}))", arg.value),
            Class::U64 => format!("bitcast<i64>({})", arg.value),
            _ => arg.value.clone(),
        };
        let value = self.emitter.name(&text);
        self.sum(&value, Class::I64, arg.bits, counted)
    }

    fn add(&mut self, join: Join, thread: Class, tree: Class, value: &str, counted: &str) -> usize {
        let key = (join, thread, value.to_owned(), counted.to_owned());
        if let Some(&known) = self.memo.get(&key) {
            return known;
        }
        let number = self.accumulators.len();
        let _ = writeln!(self.updates, "    {}", update(number, join, thread, value, counted));
        self.accumulators.push(Accumulator { join, thread, tree, at: self.words });
        self.words += tree.words();
        self.memo.insert(key, number);
        number
    }

    /// The accumulator of the fault flag: flags count under the condition that the value they belong to is used.
    fn fault(&mut self) -> Option<usize> {
        let mut terms = vec![];
        let mut seen = BTreeSet::new();
        for (condition, flags) in std::mem::take(&mut self.faults) {
            for flag in flags {
                if seen.insert((condition.clone(), flag.clone())) {
                    terms.push(format!("({condition} & {flag})"));
                }
            }
        }
        if terms.is_empty() {
            return None;
        }
        Some(self.add(Join::Or, Class::U32, Class::U32, "1u", &terms.join(" | ")))
    }

    /// Everything after the bindings.
    fn text(&self, loads: &Loads<'_>, batches: &[Batch], params_at: usize, unroll: u32) -> GpuResult<String> {
        let mut text = param_variables(&self.emitter);
        for (number, acc) in self.accumulators.iter().enumerate() {
            let _ = writeln!(text, "var<private> a{number}: {};", acc.thread.wgsl());
        }
        let planes = batches.iter().map(|batch| batch.planes).max().unwrap_or(1);
        let _ = writeln!(text, "var<workgroup> s: array<u32, {}>;", planes * WORKGROUP);
        text.push_str(PLANES);
        let _ = writeln!(
            text,
            "\nfn row(i: u32, live: bool{}) {{\n{}{}}}",
            loads.parameters()?,
            self.emitter.body,
            self.updates
        );
        text.push_str(ENTRY);
        text.push_str(&loads.masks());
        text.push_str(&param_loads(&self.emitter.held, params_at));
        for (number, acc) in self.accumulators.iter().enumerate() {
            let _ = writeln!(text, "    a{number} = {};", identity(acc.join, acc.thread));
        }
        let tile = WORKGROUP * unroll;
        let _ = writeln!(
            text,
            "    let last = rows - 1u;\n    for (var base = group * {tile}u; base < rows; base += groups * {tile}u) {{"
        );
        // All loads of an iteration come first, so that they are in flight together.
        for u in 0..unroll {
            let _ = writeln!(
                text,
                "        let i{u} = base + l + {}u;\n        let j{u} = min(i{u}, last);",
                u * WORKGROUP
            );
            text.push_str(&loads.statements(&format!("j{u}"), &format!("_{u}"), "        "));
        }
        for u in 0..unroll {
            let arguments = loads.arguments(&format!("_{u}"));
            let _ = writeln!(text, "        row(j{u}, i{u} < rows{arguments});");
        }
        text.push_str("    }\n");
        for batch in batches {
            self.tree(&mut text, batch);
        }
        text.push_str("}\n");
        Ok(text)
    }

    /// Joins one batch of accumulators over the workgroup and writes its words of the record.
    fn tree(&self, text: &mut String, batch: &Batch) {
        let first = self.accumulators[batch.first].at as u32;
        let members = || self.accumulators.iter().enumerate().skip(batch.first).take(batch.len);
        for (number, acc) in members() {
            let value = match (acc.thread, acc.tree) {
                (Class::I64, Class::Wide) => format!("w_from(a{number})"),
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
            batch.planes, self.words
        );
    }
}

/// Accumulators that go through the tree together.
#[derive(Debug)]
struct Batch {
    first: usize,
    len: usize,
    planes: u32,
}

fn batches(accumulators: &[Accumulator], caps: &DeviceCaps) -> GpuResult<Vec<Batch>> {
    let most = (caps.workgroup_bytes / (4 * WORKGROUP)).min(MAX_PLANES);
    let mut batches: Vec<Batch> = vec![];
    for (number, acc) in accumulators.iter().enumerate() {
        let words = acc.tree.words() as u32;
        if words > most {
            let need = u64::from(words * 4 * WORKGROUP);
            return Err(GpuError::Limit {
                what: "bytes of workgroup memory",
                need,
                limit: caps.workgroup_bytes.into(),
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
const PLANES: &str = "
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

fn update(number: usize, join: Join, class: Class, value: &str, counted: &str) -> String {
    let acc = format!("a{number}");
    match join {
        Join::Or => format!("{acc} = {acc} | select(0u, {value}, {counted});"),
        Join::Add => {
            let value = format!("select({}, {value}, {counted})", class.zero());
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
        Join::Or => format!("{a} | {b}"),
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

impl Accumulator {
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
            Join::Or => a | b,
        }
    }
}
