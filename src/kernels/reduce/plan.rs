//! The reduction's accumulators and shader.
//!
//! Each invocation keeps its accumulators in registers over its rows, a tree in workgroup memory joins those of a
//! workgroup, and one record a workgroup goes to memory. Sums are narrow (64 bits) where bound and row count keep them
//! exact, else 128 bits wide.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Write;

use crate::error::{GpuError, GpuResult};
use crate::kernels::expr::widths::{Class, is_decimal, is_integer};
use crate::kernels::expr::{Emitter, Node, ValueType, sign_extended};
use crate::kernels::program::{ColumnShape, Program};
use crate::kernels::shader::{
    Bindings, ENTRY, Loads, Slot, WORKGROUP, param_loads, param_variables, params_at, reads_tables,
};
use crate::memory::{BindingKind, DeviceCaps, ShaderSource};

use super::accumulate::{Accumulator, Batch, Join, PLANES, Registers, batches, update};
use super::float::{BASE_WORDS, FloatSum, Width, library};
use super::{AggregateKind, AggregateSpec, sums_as_integer};

/// log2 of the rows that one invocation may add up; the grid is planned for it.
pub(super) const THREAD_ROWS_LOG2: u8 = 14;
/// log2 of the rows of a workgroup.
const GROUP_ROWS_LOG2: u8 = THREAD_ROWS_LOG2 + 8;
/// Distinct nodes from which on fewer rows are in flight, for registers' and compilers' sake.
const LARGE_PROGRAM: usize = 96;

/// Windows' bases that an argument block holds; more sums of floats than that share them.
const MAX_BASES: usize = 2 * BASE_WORDS;

/// Where an aggregate's state is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    /// Accumulator of the contributing rows.
    pub count: usize,
    /// Accumulator of the value.
    pub value: Option<usize>,
    /// Number of the sum of floats.
    pub float: Option<usize>,
}

/// A planned reduction.
#[derive(Debug)]
pub(super) struct Plan {
    pub shader: ShaderSource,
    pub slots: Vec<Slot>,
    /// Whether it reads look-up tables or lists.
    pub tables: bool,
    pub accumulators: Vec<Accumulator>,
    /// Words of a workgroup's record.
    pub record: usize,
    /// One an aggregate.
    pub places: Vec<Place>,
    /// Accumulator of the fault flag, where something can fault.
    pub fault: Option<usize>,
    /// Sums of floats.
    pub floats: Vec<FloatSum>,
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
    floats: Vec<FloatSum>,
    float_memo: HashMap<(String, String), usize>,
}

impl Plan {
    /// Words of the segment's limbs, for sums of floats.
    pub fn limbs(&self) -> u32 {
        self.floats.iter().map(|float| float.width.words()).sum()
    }

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
            floats: vec![],
            float_memo: HashMap::new(),
        };
        let mut selected = "live".to_owned();
        if let Some(selection) = &program.selection {
            let truth = builder.emitter.truth(selection)?;
            builder.faults.push((selected.clone(), truth.faults));
            selected = builder.both(&selected, &truth.value);
        }
        let places = aggregates
            .iter()
            .enumerate()
            .map(|(number, spec)| builder.aggregate(number, spec, &selected))
            .collect::<GpuResult<Vec<_>>>()?;
        let fault = builder.fault();

        let mut bindings = Bindings::new(columns)?;
        bindings.own(BindingKind::Storage, "partials", "u32");
        let limbs: u32 = builder.floats.iter().map(|float| float.width.words()).sum();
        if limbs > 0 {
            bindings.own(BindingKind::Storage, "far", "atomic<u32>");
        }
        let unroll = match builder.emitter.size() {
            0..LARGE_PROGRAM => caps.unroll.clamp(1, 8),
            _ => (caps.unroll / 2).clamp(1, 4),
        };
        let batches = batches(&builder.accumulators, caps, 4 * limbs)?;
        let loads = Loads::new(columns);
        let body = builder.text(&loads, &batches, params_at, unroll)?;
        Ok(Plan {
            shader: bindings.shader("reduce", &body),
            slots: bindings.slots,
            tables: reads_tables(&builder.emitter),
            record: builder.words,
            accumulators: builder.accumulators,
            places,
            fault,
            unroll,
            // Carries of limbs come beside; there are few in thousands of rows.
            tail: 8 * batches.len() as u32 + 8 + 4 * limbs,
            floats: builder.floats,
        })
    }
}

impl Builder<'_> {
    /// Names the conjunction of two flags.
    fn both(&mut self, base: &str, flag: &str) -> String {
        let key = (base.to_owned(), flag.to_owned());
        if let Some(name) = self.conditions.get(&key) {
            return name.clone();
        }
        let name = self.emitter.name(&format!("{base} & {flag}"));
        self.conditions.insert(key, name.clone());
        name
    }

    fn aggregate(&mut self, number: usize, spec: &AggregateSpec, selected: &str) -> GpuResult<Place> {
        let mut counted = selected.to_owned();
        if let Some(filter) = &spec.filter {
            let truth = self.emitter.truth(filter)?;
            self.faults.push((counted.clone(), truth.faults));
            counted = self.both(&counted, &truth.value);
        }
        let arg = match (&spec.arg, spec.kind) {
            (_, AggregateKind::CountRows) => None,
            (Some(arg), _) => Some(self.emitter.emit(arg)?),
            (None, kind) => return Err(GpuError::Internal(format!("{kind} without an argument"))),
        };
        if let Some(arg) = &arg {
            self.faults.push((counted.clone(), arg.faults.clone()));
            if let Some(valid) = &arg.valid {
                counted = self.both(&counted, valid);
            }
        }
        let count = self.add(Join::Add, Class::U32, Class::U32, "1u", &counted);
        let mut place = Place { count, value: None, float: None };
        match arg {
            Some(arg) if spec.kind == AggregateKind::SumFloat => {
                place.float = Some(self.float(number, &arg, &counted)?);
            }
            Some(arg) => place.value = self.value(spec.kind, &arg, &counted)?,
            None => {}
        }
        Ok(place)
    }

    fn value(&mut self, kind: AggregateKind, arg: &Node, counted: &str) -> GpuResult<Option<usize>> {
        let unfit = || GpuError::Internal(format!("{kind} over {}", arg.ty));
        Ok(match kind {
            AggregateKind::CountRows | AggregateKind::Count => None,
            // Has more than one accumulator.
            AggregateKind::SumFloat | AggregateKind::FirstRow(_) => return Err(unfit()),
            AggregateKind::SumInt => {
                if !sums_as_integer(arg.ty) {
                    return Err(unfit());
                }
                let text = match arg.class {
                    Class::I32 => format!("bitcast<u64>({})", sign_extended(&arg.value)),
                    Class::U32 => format!("u64({})", arg.value),
                    Class::I64 => format!("bitcast<u64>({})", arg.value),
                    _ => arg.value.clone(),
                };
                Some(self.add(Join::Add, Class::U64, Class::U64, &text, counted))
            }
            AggregateKind::SumDecimal => match arg.ty {
                ty if is_decimal(ty) => {
                    let (value, class) = match arg.class {
                        Class::I32 => (sign_extended(&arg.value), Class::I64),
                        class => (arg.value.clone(), class),
                    };
                    Some(self.sum(&value, class, arg.bits, counted))
                }
                _ => return Err(unfit()),
            },
            AggregateKind::SumAsFloat64 => {
                if !is_integer(arg.ty) {
                    return Err(unfit());
                }
                Some(self.rounded_sum(arg, counted))
            }
            AggregateKind::BitAnd | AggregateKind::BitOr | AggregateKind::BitXor => {
                let (text, class) = match arg.ty {
                    ValueType::Boolean => (format!("select(0u, 1u, {})", arg.value), Class::U32),
                    ty if is_integer(ty) => (arg.value.clone(), arg.class),
                    _ => return Err(unfit()),
                };
                let join = match kind {
                    AggregateKind::BitAnd => Join::And,
                    AggregateKind::BitOr => Join::Or,
                    _ => Join::Xor,
                };
                Some(self.add(join, class, class, &text, counted))
            }
            AggregateKind::Min | AggregateKind::Max => {
                let (text, class) = match arg.ty {
                    ValueType::Float16 | ValueType::Float32 => (self.emitter.key(arg, false), Class::I32),
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

    /// Number of the sum of floats.
    fn float(&mut self, aggregate: usize, arg: &Node, counted: &str) -> GpuResult<usize> {
        let key = (arg.value.clone(), counted.to_owned());
        if let Some(known) = self.float_memo.get(&key) {
            return Ok(*known);
        }
        let unfit = || GpuError::Internal(format!("a sum of floats over {}", arg.ty));
        let width = Width::of(arg.ty).ok_or_else(unfit)?;
        let number = self.floats.len();
        let float = FloatSum {
            width,
            aggregate,
            window: self.accumulator(Join::Add, Registers::Window(width), Class::Wide),
            nan: self.accumulator(Join::Max, Registers::One(Class::U64), Class::U64),
            infinities: self.accumulator(Join::Or, Registers::One(Class::U32), Class::U32),
            limbs: self.floats.iter().map(|float| float.width.words()).sum(),
            base: number % MAX_BASES,
        };
        let _ = writeln!(self.updates, "    {}", float.update(&arg.value, counted));
        self.floats.push(float);
        self.float_memo.insert(key, number);
        Ok(number)
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
            Class::I32 => sign_extended(&arg.value),
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
        let number = self.accumulator(join, Registers::One(thread), tree);
        let _ = writeln!(self.updates, "    {}", update(number, join, thread, value, counted));
        self.memo.insert(key, number);
        number
    }

    fn accumulator(&mut self, join: Join, thread: Registers, tree: Class) -> usize {
        self.accumulators.push(Accumulator { join, thread, tree, at: self.words });
        self.words += tree.words();
        self.accumulators.len() - 1
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
        let declarations = || {
            let accumulators =
                self.accumulators.iter().enumerate().map(|(number, acc)| acc.declaration(number));
            accumulators.chain(self.floats.iter().map(FloatSum::base))
        };
        let mut text = param_variables(&self.emitter);
        for (variable, _) in declarations() {
            let _ = writeln!(text, "{variable}");
        }
        let planes = batches.iter().map(|batch| batch.planes).max().unwrap_or(1);
        let _ = writeln!(text, "var<workgroup> s: array<u32, {}>;{PLANES}", planes * WORKGROUP);
        if !self.floats.is_empty() {
            text.push_str(&library(self.floats.iter().map(|float| float.width.words()).sum()));
            self.floats.iter().for_each(|float| text.push_str(&float.functions()));
        }
        let _ = writeln!(
            text,
            "fn row(i: u32, live: bool{}) {{\n{}{}}}",
            loads.parameters()?,
            self.emitter.body,
            self.updates
        );
        text.push_str(ENTRY);
        text.push_str(&loads.masks());
        text.push_str(&param_loads(&self.emitter, params_at));
        for (_, first) in declarations() {
            let _ = writeln!(text, "    {first}");
        }
        text.push_str(&row_loop(loads, unroll));
        if !self.floats.is_empty() {
            text.push_str("    workgroupBarrier();\n");
            self.floats.iter().for_each(|float| text.push_str(&float.flush()));
        }
        for batch in batches {
            text.push_str(&batch.text(&self.accumulators, self.words));
        }
        text.push_str("}\n");
        Ok(text)
    }
}

/// The grid-stride loop over rows. All loads of an iteration come first, so that they are in flight together; rows past
/// the end read the last one again and are not live.
fn row_loop(loads: &Loads<'_>, unroll: u32) -> String {
    let tile = WORKGROUP * unroll;
    let mut text = format!(
        "    let last = rows - 1u;\n    for (var base = group * {tile}u; base < rows; base += groups * {tile}u) {{\n"
    );
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
    text
}
