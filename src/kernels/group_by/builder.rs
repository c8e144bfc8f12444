//! Gathers a grouping's keys and accumulators, and writes its two row kernels.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt::Write;
use std::sync::Arc;

use crate::error::{GpuError, GpuResult};
use crate::kernels::expr::widths::{Class, is_integer};
use crate::kernels::expr::{Emitter, Expr, Node, ValueType};
use crate::kernels::program::{ColumnShape, Program, columns_of};
use crate::kernels::reduce::{AggregateKind, AggregateSpec, RowOrder, Width};
use crate::kernels::shader::{
    Bindings, ENTRY, Loads, fitted, param_loads, param_variables, params_at, reads_tables,
};
use crate::memory::{BindingKind, DeviceCaps};

use super::accumulate::{Accumulator, Bits, Fold, Memory, sum_words};
use super::finish::{emit_function, gather_loop};
use super::float::{FloatFold, Window, nan_bits};
use super::kernel::{Body, Update};
use super::keys::{self, Keys, key_columns, row_function};
use super::plan::{Kernel, OWN_BINDINGS, Place, status};
use super::strategy::Choice;
use super::{GroupBy, GroupKey, SummedFloats, state_type};

/// An argument that is computed again for other rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Function {
    expr: Arc<Expr>,
    /// Of its order key, or, of `nan`, of its bits as those of a double that is a NaN.
    pub class: Class,
    nan: bool,
}

/// An aggregate's argument.
struct Argument<'a> {
    /// Type of the state.
    ty: Option<ValueType>,
    arg: Option<(&'a Arc<Expr>, Node)>,
    /// Condition of a contributing row.
    counted: String,
}

/// What [`Builder::parts`] finds beside the updates.
pub(super) struct Parts {
    pub keys: Keys,
    /// Expression of the row's key.
    key: String,
    pub places: Vec<Place>,
    /// Condition of a row that has a group.
    selected: String,
    /// Condition of a fault.
    fault: Option<String>,
}

/// Gathers accumulators and their update statements.
pub(super) struct Builder<'a> {
    pub emitter: Emitter<'a>,
    columns: &'a [ColumnShape],
    pub accumulators: Vec<Accumulator>,
    memo: HashMap<(Fold, String, String), usize>,
    conditions: HashMap<(String, String), String>,
    updates: Vec<Update>,
    /// Statements that see peculiar floats.
    floats: String,
    /// (condition, fault flags that matter under it)
    faults: Vec<(String, BTreeSet<String>)>,
    functions: Vec<Function>,
    /// Windows of sums of floats, and the accumulator of each by argument and condition.
    pub sums: Vec<Window>,
    sum_memo: HashMap<(String, String), usize>,
    /// What is known of their values.
    known: &'a SummedFloats,
    /// Words of a record's accumulators.
    pub words: u32,
}

impl<'a> Builder<'a> {
    pub fn new(program: &'a Program, columns: &'a [ColumnShape], known: &'a SummedFloats) -> Self {
        Builder {
            emitter: Emitter::new(columns, &program.params, params_at(columns)),
            columns,
            accumulators: vec![],
            memo: HashMap::new(),
            conditions: HashMap::new(),
            updates: vec![],
            floats: String::new(),
            faults: vec![],
            functions: vec![],
            sums: vec![],
            sum_memo: HashMap::new(),
            known,
            words: 0,
        }
    }

    pub fn parts(&mut self, program: &Program, by: &GroupBy) -> GpuResult<Parts> {
        let mut selected = "live".to_owned();
        if let Some(selection) = &program.selection {
            let truth = self.emitter.truth(selection)?;
            self.faults.push((selected.clone(), truth.faults));
            selected = self.both(&selected, &truth.value);
        }
        let (keys, key, faults) = keys::emit(&mut self.emitter, &by.keys, self.columns)?;
        self.faults.push((selected.clone(), faults));
        let prepared = by.aggregates.iter().map(|spec| self.prepare(spec, &selected));
        let prepared = prepared.collect::<GpuResult<Vec<_>>>()?;
        let numbered = by.aggregates.iter().zip(&prepared).filter(|(spec, _)| spec.kind.tells_rows());
        let numbered: HashSet<String> = numbered.map(|(_, argument)| argument.counted.clone()).collect();
        let places = by.aggregates.iter().zip(prepared).enumerate().map(|(number, (spec, argument))| {
            let count = self.count(&argument.counted, &selected, &numbered);
            let value = self.aggregate(number, spec, argument, count)?;
            Ok(Place { count, value, tells_rows: spec.kind.tells_rows() })
        });
        let places = places.collect::<GpuResult<Vec<_>>>()?;
        let fault = self.fault();
        Ok(Parts { keys, key, places, selected, fault })
    }

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

    /// Computes an aggregate's argument, and which rows contribute.
    fn prepare<'b>(&mut self, spec: &'b AggregateSpec, selected: &str) -> GpuResult<Argument<'b>> {
        let ty = state_type(spec)?;
        let mut counted = selected.to_owned();
        if let Some(filter) = &spec.filter {
            let truth = self.emitter.truth(filter)?;
            self.faults.push((counted.clone(), truth.faults));
            counted = self.both(&counted, &truth.value);
        }
        let arg = match (&spec.arg, spec.kind) {
            (_, AggregateKind::CountRows) | (None, _) => None,
            (Some(expr), _) => Some((expr, self.emitter.emit(expr)?)),
        };
        if let Some((_, node)) = &arg {
            self.faults.push((counted.clone(), node.faults.clone()));
            if let Some(valid) = &node.valid
                && !matches!(spec.kind, AggregateKind::FirstRow(_))
            {
                counted = self.both(&counted, valid);
            }
        }
        Ok(Argument { ty, arg, counted })
    }

    /// The accumulator that counts the rows of a condition, where some aggregate tells their number, or else notes that there are some;
    /// none where all rows of a group are meant.
    fn count(&mut self, counted: &str, selected: &str, numbered: &HashSet<String>) -> Option<usize> {
        let word = (ValueType::UInt32, Class::U32);
        match numbered.contains(counted) {
            true => Some(self.add(Fold::Count, word, None, &[], "", counted)),
            false if counted == selected => None,
            false => Some(self.add(Fold::Seen, word, None, &[], "", counted)),
        }
    }

    /// The accumulator of an aggregate's value, where it has one.
    fn aggregate(
        &mut self,
        number: usize,
        spec: &AggregateSpec,
        Argument { ty, arg, counted }: Argument<'_>,
        count: Option<usize>,
    ) -> GpuResult<Option<usize>> {
        let count =
            count.filter(|count| self.accumulators.get(*count).is_some_and(|acc| acc.fold == Fold::Count));
        match (arg, ty) {
            (Some((expr, node)), _) if spec.kind == AggregateKind::SumFloat => {
                self.float_sum(number, expr, &node, &counted).map(Some)
            }
            (Some((expr, node)), Some(ty)) => {
                self.value(spec.kind, expr, &node, ty, count, &counted).map(Some)
            }
            _ => Ok(None),
        }
    }

    fn value(
        &mut self,
        kind: AggregateKind,
        expr: &Arc<Expr>,
        arg: &Node,
        ty: ValueType,
        count: Option<usize>,
        counted: &str,
    ) -> GpuResult<usize> {
        if kind == AggregateKind::SumAsFloat64 && !is_integer(arg.ty) {
            return Err(GpuError::Internal(format!("{kind} over {}", arg.ty)));
        }
        Ok(match kind {
            AggregateKind::SumInt => {
                let (words, bias) = biased(arg, false, count.is_some());
                let fold = Fold::Sum { words: 2, bias, signed: true };
                self.add(fold, (ty, Class::I64), count, &words, "", counted)
            }
            AggregateKind::SumAsFloat64 => self.rounded_sum(arg, ty, count, counted),
            AggregateKind::Min | AggregateKind::Max => {
                self.see_floats(arg, counted);
                self.extreme(kind == AggregateKind::Min, expr, arg, counted)
            }
            AggregateKind::FirstRow(order) => self.first(order, expr, arg, counted),
            AggregateKind::BitAnd => self.bits(Bits::And, arg, counted),
            AggregateKind::BitOr => self.bits(Bits::Or, arg, counted),
            AggregateKind::BitXor => self.bits(Bits::Xor, arg, counted),
            _ => self.sum(arg, ty, count, counted),
        })
    }

    fn bits(&mut self, bits: Bits, arg: &Node, counted: &str) -> usize {
        let words = sum_words(arg.class, &arg.value).into_iter();
        let words = words.map(|word| if bits == Bits::And { format!("~({word})") } else { word });
        let words: Vec<String> = words.map(|word| self.emitter.name(&word)).collect();
        let fold = Fold::Bits { words: words.len() as u32, bits };
        self.add(fold, (arg.ty, arg.class), None, &words, "", counted)
    }

    /// Exact sum in as few words as 2^31 rows need.
    fn sum(&mut self, arg: &Node, ty: ValueType, count: Option<usize>, counted: &str) -> usize {
        let (words, bias) = biased(arg, true, count.is_some());
        let signed = matches!(arg.class, Class::I32 | Class::I64 | Class::Wide);
        let width = match arg.class {
            Class::Wide => 4,
            _ => {
                (u32::from(bias.map_or(arg.bits, |bias| bias + 1)) + 31 + u32::from(signed && bias.is_none()))
                    .div_ceil(32)
            }
        };
        let words: Vec<String> = words.into_iter().map(|word| self.emitter.name(&word)).collect();
        self.add(Fold::Sum { words: width, bias, signed }, (ty, Class::Wide), count, &words, "", counted)
    }

    fn rounded_sum(&mut self, arg: &Node, ty: ValueType, count: Option<usize>, counted: &str) -> usize {
        if arg.bits <= 53 {
            return self.sum(arg, ty, count, counted);
        }
        let text = match arg.class {
            Class::U64 => format!("round53({})", arg.value),
            _ => format!("round53_signed({})", arg.value),
        };
        let value = self.emitter.name(&text);
        self.sum(&Node { value, class: Class::Wide, bits: 66, ..arg.clone() }, ty, count, counted)
    }

    fn extreme(&mut self, min: bool, expr: &Arc<Expr>, arg: &Node, counted: &str) -> usize {
        let top = |text: &str| format!("({text}) ^ 0x80000000u");
        let key = match (arg.ty, arg.class) {
            (ValueType::Float16 | ValueType::Float32, _) => {
                let key = self.emitter.key(arg, false);
                Some(top(&format!("bitcast<u32>({key})")))
            }
            (_, Class::Bool | Class::U32) => sum_words(arg.class, &arg.value).into_iter().next(),
            (_, Class::I32) => Some(top(&format!("bitcast<u32>({})", arg.value))),
            (_, Class::I64) if arg.bits <= 31 => {
                sum_words(arg.class, &arg.value).into_iter().next().map(|low| top(&low))
            }
            _ => None,
        };
        if let Some(key) = key {
            let key = self.emitter.name(&if min { format!("~({key})") } else { key });
            return self.add(Fold::Extreme { min }, (arg.ty, arg.class), None, &[key], "", counted);
        }
        let (value, class) = match arg.ty {
            ValueType::Float64 => (self.emitter.key(arg, false), Class::I64),
            _ => (arg.value.clone(), arg.class),
        };
        let function = self.function(Function { expr: Arc::clone(expr), class, nan: false });
        self.add(Fold::Best { min, function }, (arg.ty, arg.class), None, &[], &value, counted)
    }

    fn first(&mut self, order: RowOrder, expr: &Arc<Expr>, arg: &Node, counted: &str) -> usize {
        let (value, class) = match arg.class {
            Class::Bool => (format!("select(0u, 1u, {})", arg.value), Class::U32),
            class => (arg.value.clone(), class),
        };
        let function = self.function(Function { expr: Arc::clone(expr), class, nan: false });
        let fold = Fold::First { order, function, nullable: arg.valid.is_some() };
        let valid: Vec<String> = arg.valid.iter().cloned().collect();
        self.add(fold, (ValueType::UInt32, Class::U32), None, &valid, &value, counted)
    }

    /// The number of an argument function.
    fn function(&mut self, function: Function) -> usize {
        let known = self.functions.iter().position(|known| *known == function);
        known.unwrap_or_else(|| {
            self.functions.push(function);
            self.functions.len() - 1
        })
    }

    /// The exact sum of floats in the window of aggregate `aggregate`.
    fn float_sum(
        &mut self,
        aggregate: usize,
        expr: &Arc<Expr>,
        arg: &Node,
        counted: &str,
    ) -> GpuResult<usize> {
        let key = (arg.value.clone(), counted.to_owned());
        if let Some(&known) = self.sum_memo.get(&key) {
            return Ok(known);
        }
        let unfit = || GpuError::Internal(format!("a sum of floats over {}", arg.ty));
        let width = Width::of(arg.ty).ok_or_else(unfit)?;
        let window = Window::around(width, self.known.limbs.get(aggregate).copied().flatten());
        let nan = Function { expr: Arc::clone(expr), class: Class::U64, nan: true };
        let nan = self.known.special.then(|| self.function(nan));
        let fold = FloatFold { number: self.sums.len(), width, limbs: window.limbs, nan };
        self.sums.push(window);
        let known = self.add(Fold::Float(fold), (arg.ty, arg.class), None, &[], &arg.value, counted);
        self.sum_memo.insert(key, known);
        Ok(known)
    }

    /// Notes NaN and zeros of a float.
    fn see_floats(&mut self, arg: &Node, counted: &str) {
        let (sign, infinity, suffix) = match arg.ty {
            ValueType::Float16 => (1u64 << 15, 0x7c00u64, "u"),
            ValueType::Float32 => (1 << 31, 0x7f80_0000, "u"),
            ValueType::Float64 => (1 << 63, 0x7ff0_0000_0000_0000, "lu"),
            _ => return,
        };
        let (value, rest) = (&arg.value, sign - 1);
        let cases = [
            (format!("({value} & {rest:#x}{suffix}) > {infinity:#x}{suffix}"), status::NAN),
            (format!("{value} == {sign:#x}{suffix}"), status::NEGATIVE_ZERO),
            (format!("{value} == 0{suffix}"), status::POSITIVE_ZERO),
        ];
        for (condition, bit) in cases {
            let _ = writeln!(self.floats, "    state |= select(0u, {bit}u, {counted} & ({condition}));");
        }
    }

    /// Adds an accumulator, or finds the same one.
    fn add(
        &mut self,
        fold: Fold,
        (ty, class): (ValueType, Class),
        count: Option<usize>,
        words: &[String],
        value: &str,
        counted: &str,
    ) -> usize {
        let key = (fold.clone(), words.join(",") + value, counted.to_owned());
        if let Some(&known) = self.memo.get(&key) {
            return known;
        }
        let number = self.accumulators.len();
        let acc = Accumulator { fold, at: self.words, count, ty, class };
        self.updates.push(Update {
            accumulator: number,
            words: words.to_vec(),
            value: value.to_owned(),
            condition: counted.to_owned(),
        });
        self.words += acc.fold.words();
        self.accumulators.push(acc);
        self.memo.insert(key, number);
        number
    }

    /// The condition of a fault: flags count under the condition that the value they belong to is used.
    fn fault(&mut self) -> Option<String> {
        let mut terms = BTreeSet::new();
        for (condition, flags) in std::mem::take(&mut self.faults) {
            terms.extend(flags.iter().map(|flag| format!("({condition} & {flag})")));
        }
        let terms: Vec<String> = terms.into_iter().collect();
        (!terms.is_empty()).then(|| terms.join(" | "))
    }

    /// The kernel that finds each row's group and adds the row.
    pub fn accumulate(
        &mut self,
        program: &Program,
        by: &GroupBy,
        parts: &Parts,
        choice: &Choice,
        stride: u32,
        unroll: u32,
    ) -> GpuResult<Kernel> {
        let (columns, params_at) = (self.columns, params_at(self.columns));
        let mut bindings = Bindings::new(columns)?;
        bindings.own(BindingKind::Storage, "table", "atomic<u32>");
        bindings.own(BindingKind::Storage, "status", "atomic<u32>");
        if choice.mode.ordered {
            bindings.own(BindingKind::ReadOnlyStorage, "ids", "u32");
        }
        let again = again(program, &by.keys, columns, &self.functions, &mut self.emitter)?;
        let loads = Loads::new(columns);
        let mut statements = self.emitter.body.clone();
        if let Some(fault) = &parts.fault {
            let _ = writeln!(statements, "    state |= select(0u, {}u, {fault});", status::FAULT);
        }
        statements.push_str(&self.floats);
        let body = Body {
            mode: choice.mode,
            keys: &parts.keys,
            key: &parts.key,
            statements,
            selected: &parts.selected,
            accumulators: &self.accumulators,
            updates: &self.updates,
            functions: &self.functions,
            sums: &self.sums,
            stride,
            local_slots: choice.local_slots(),
            threads: choice.threads(),
            unroll,
        };
        let mut text = param_variables(&self.emitter);
        let _ = writeln!(text, "const CONTENDED: u32 = {}u;\nvar<private> state: u32;", status::CONTENDED);
        text.push_str(&parts.keys.text());
        text.push_str(&again);
        text.push_str(&body.functions(&loads)?);
        text.push_str(&body.entry(&loads, &param_loads(&self.emitter, params_at)));
        Ok(Kernel {
            shader: bindings.shader("group_by", &text),
            slots: bindings.slots,
            columns: columns.to_vec(),
            tables: reads_tables(&self.emitter),
        })
    }

    /// The kernel that writes keys and states of the occupied slots of a table, whose records have so many words.
    pub fn gather(
        &self,
        caps: &DeviceCaps,
        program: &Program,
        by: &GroupBy,
        columns: &[ColumnShape],
        keys: &Keys,
        (table, stride): (Memory, u32),
    ) -> GpuResult<Kernel> {
        let mut used = key_columns(&by.keys);
        used.extend(columns_of(self.functions.iter().map(|function| &function.expr)));
        let columns: Vec<ColumnShape> = columns.iter().filter(|c| used.contains(&c.index)).copied().collect();
        let columns = fitted(columns, OWN_BINDINGS, caps.max_storage_buffers);
        let mut emitter = Emitter::new(&columns, &program.params, params_at(&columns));
        let again = again(program, &by.keys, &columns, &self.functions, &mut emitter)?;
        let mut bindings = Bindings::new(&columns)?;
        for name in ["table", "offsets", "block_offsets"] {
            bindings.own(BindingKind::ReadOnlyStorage, name, "u32");
        }
        bindings.own(BindingKind::Storage, "out", "u32");
        let mut text = param_variables(&emitter);
        text.push_str(
            "var<workgroup> words: array<atomic<u32>, 32>;\nvar<workgroup> ranks: array<u32, 32>;\n",
        );
        text.push_str(&keys.text());
        text.push_str(&again);
        text.push_str(&emit_function(keys, &self.accumulators, table));
        text.push_str(ENTRY);
        text.push_str(&Loads::new(&columns).masks());
        text.push_str(&param_loads(&emitter, params_at(&columns)));
        text.push_str(&gather_loop(stride));
        let tables = reads_tables(&emitter);
        Ok(Kernel { shader: bindings.shader("group_gather", &text), slots: bindings.slots, columns, tables })
    }
}

/// A value as the words that are added, and the exponent of the power of two that was added to make it positive. Without a number of
/// rows there is none, and the sign goes into the next word.
fn biased(arg: &Node, wide: bool, numbered: bool) -> (Vec<String>, Option<u8>) {
    if !numbered {
        let mut words = sum_words(arg.class, &arg.value);
        if arg.class == Class::I32 {
            words.push(format!("bitcast<u32>({} >> 31u)", arg.value));
        }
        return (words, None);
    }
    let top = |text: &str| vec![format!("({text}) ^ 0x80000000u")];
    match arg.class {
        Class::I32 => (top(&format!("bitcast<u32>({})", arg.value)), Some(31)),
        Class::I64 if arg.bits <= 31 => {
            let low = sum_words(arg.class, &arg.value).into_iter().next().unwrap_or_default();
            (top(&low), Some(31))
        }
        // Two words hold the sum with its sign.
        Class::I64 if wide && arg.bits > 32 && arg.bits <= 63 => {
            let positive = format!("bitcast<u64>({}) + {:#x}lu", arg.value, 1u64 << arg.bits);
            (sum_words(Class::U64, &positive), Some(arg.bits))
        }
        Class::I64 if wide && arg.bits > 63 => {
            let positive = format!("bitcast<u64>({}) ^ {:#x}lu", arg.value, 1u64 << 63);
            (sum_words(Class::U64, &positive), Some(63))
        }
        class => (sum_words(class, &arg.value), None),
    }
}

/// Functions that compute keys and arguments of any row; what they hold of parameters and tables, `emitter` then holds too.
fn again(
    program: &Program,
    keys: &[GroupKey],
    columns: &[ColumnShape],
    functions: &[Function],
    emitter: &mut Emitter<'_>,
) -> GpuResult<String> {
    let fresh = || Emitter::new(columns, &program.params, params_at(columns));
    let mut own = fresh();
    let (_, key, _) = keys::emit(&mut own, keys, columns)?;
    let mut text = row_function("keys", "Key", &own, columns, &key_columns(keys), &key);
    let mut used = vec![own];
    for (number, Function { expr, class, nan }) in functions.iter().enumerate() {
        let mut own = fresh();
        let node = own.emit(expr)?;
        let value = match (Width::of(node.ty), node.ty) {
            (Some(width), _) if *nan => nan_bits(width, &node.value),
            (_, ValueType::Float64) => own.key(&node, false),
            (_, ValueType::Boolean) => format!("select(0u, 1u, {})", node.value),
            _ => node.value,
        };
        let name = format!("arg{number}");
        text.push_str(&row_function(&name, class.wgsl(), &own, columns, &columns_of([expr]), &value));
        used.push(own);
    }
    for own in used {
        emitter.held.extend(own.held);
        emitter.tables.extend(own.tables);
    }
    Ok(text)
}
