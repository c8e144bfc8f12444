//! Gathers a grouping's keys and accumulators, and writes its two row kernels.

mod aggregates;

use std::collections::{BTreeSet, HashMap};
use std::fmt::Write;
use std::sync::Arc;

use crate::error::GpuResult;
use crate::kernels::expr::widths::Class;
use crate::kernels::expr::{Emitter, Expr, ValueType};
use crate::kernels::program::{ColumnShape, Program, columns_of};
use crate::kernels::reduce::Width;
use crate::kernels::shader::{
    Bindings, ENTRY, Loads, fitted, param_loads, param_variables, params_at, reads_tables,
};
use crate::memory::{BindingKind, DeviceCaps};

use super::accumulate::{Accumulator, Memory};
use super::columns::Columns;
use super::finish::{emit_function, gather_loop};
use super::float::{Window, nan_bits};
use super::kernel::{Body, Update};
use super::keys::{self, Keys, key_columns, row_function};
use super::plan::{Kernel, OWN_BINDINGS, Place, status};
use super::strategy::Choice;
use super::{GroupBy, GroupKey, SummedFloats};
use aggregates::{AccumulatorKey, Seen};

/// An argument that is computed again for other rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Function {
    expr: Arc<Expr>,
    /// Of its order key, or, of `nan`, of its bits as those of a double that is a NaN.
    pub class: Class,
    nan: bool,
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
    memo: HashMap<AccumulatorKey, usize>,
    names: HashMap<String, String>,
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
    /// Conditions of which groups keep a bit, and words that tell others.
    seen: Vec<Seen>,
    /// Rows are groups already, and a count's argument is the number of its rows.
    merging: bool,
    /// Words of a record's accumulators.
    pub words: u32,
}

impl<'a> Builder<'a> {
    pub fn new(
        program: &'a Program,
        columns: &'a [ColumnShape],
        known: &'a SummedFloats,
        merging: bool,
    ) -> Self {
        Builder {
            emitter: Emitter::new(columns, &program.params, params_at(columns)),
            columns,
            accumulators: vec![],
            memo: HashMap::new(),
            names: HashMap::new(),
            updates: vec![],
            floats: String::new(),
            faults: vec![],
            functions: vec![],
            sums: vec![],
            sum_memo: HashMap::new(),
            known,
            seen: vec![],
            merging,
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
        let added = by.aggregates.iter().enumerate();
        let merging = self.merging;
        let numbered = |at: usize| !merging && by.needs_number(at);
        let added = added.map(|(at, spec)| self.aggregate(at, spec, numbered(at), &selected));
        let added = added.collect::<GpuResult<Vec<_>>>()?;
        let places = added.iter().map(|added| self.place(added, &selected)).collect();
        self.keep_seen(&selected);
        let fault = self.fault();
        Ok(Parts { keys, key, places, selected, fault })
    }

    /// Names an expression, equal ones alike, so that equal accumulators are found to be equal.
    fn named(&mut self, value: &str) -> String {
        if let Some(name) = self.names.get(value) {
            return name.clone();
        }
        let name = self.emitter.name(value);
        self.names.insert(value.to_owned(), name.clone());
        name
    }

    /// Names the conjunction of two flags.
    fn both(&mut self, base: &str, flag: &str) -> String {
        self.named(&format!("{base} & {flag}"))
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
        (keys, results): (&Keys, &Columns),
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
        text.push_str(&emit_function(keys, &results.columns, &self.accumulators, table));
        text.push_str(ENTRY);
        text.push_str(&Loads::new(&columns).masks());
        text.push_str(&param_loads(&emitter, params_at(&columns)));
        text.push_str(&gather_loop(stride));
        let tables = reads_tables(&emitter);
        Ok(Kernel { shader: bindings.shader("group_gather", &text), slots: bindings.slots, columns, tables })
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
