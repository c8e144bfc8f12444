//! The kernel that writes a hash a row.

use std::collections::BTreeSet;
use std::fmt::Write;

use crate::error::GpuResult;
use crate::kernels::expr::Emitter;
use crate::kernels::group_by::{GroupKey, keys};
use crate::kernels::program::{ColumnShape, Program};
use crate::kernels::shader::{
    Bindings, ENTRY, Loads, Slot, WORKGROUP, fitted, param_loads, param_variables, params_at, reads_tables,
};
use crate::memory::{AdapterKind, BindingKind, DeviceCaps, ShaderSource};

use super::SELECTED;

/// Columns up to which more than one row is in flight.
const FEW_COLUMNS: usize = 4;

/// The kernel's own arguments: 1 = rows, 2 = seed. Its own buffers: hashes, status, whose word 0 tells of faults.
pub(super) struct HashPlan {
    pub shader: ShaderSource,
    pub slots: Vec<Slot>,
    pub columns: Vec<ColumnShape>,
    /// Whether it reads look-up tables or lists.
    pub tables: bool,
    /// Rows that an invocation has in flight.
    pub unroll: u32,
}

impl HashPlan {
    pub fn build(
        caps: &DeviceCaps,
        program: &Program,
        keys: &[GroupKey],
        columns: &[ColumnShape],
    ) -> GpuResult<HashPlan> {
        let columns = fitted(columns.to_vec(), 2, caps.max_storage_buffers);
        let params_at = params_at(&columns);
        let mut emitter = Emitter::new(&columns, &program.params, params_at);
        let mut faults: Vec<String> = vec![];
        let mut note = |condition: &str, flags: &BTreeSet<String>| {
            faults.extend(flags.iter().map(|flag| format!("({condition} & {flag})")));
        };
        let mut selected = "live".to_owned();
        if let Some(selection) = &program.selection {
            let truth = emitter.truth(selection)?;
            note("live", &truth.faults);
            selected = emitter.name(&format!("live & {}", truth.value));
        }
        let (keys, key, flags) = keys::emit(&mut emitter, keys, &columns)?;
        note(&selected, &flags);
        let unroll = match caps.device_type {
            AdapterKind::Software => 1,
            _ if columns.len() <= FEW_COLUMNS => caps.unroll.clamp(1, 4),
            _ => (caps.unroll / 2).clamp(1, 2),
        };
        let mut bindings = Bindings::new(&columns)?;
        bindings.own(BindingKind::Storage, "hashes", "u32");
        bindings.own(BindingKind::Storage, "status", "atomic<u32>");
        let loads = Loads::new(&columns);
        let mut text = param_variables(&emitter);
        text.push_str("var<private> fault: u32;\n");
        text.push_str(&keys.text());
        let _ =
            writeln!(text, "fn row(i: u32, live: bool{}) -> u32 {{\n{}", loads.parameters()?, emitter.body);
        if !faults.is_empty() {
            let _ = writeln!(text, "    fault |= select(0u, 1u, {});", faults.join(" | "));
        }
        let _ = writeln!(
            text,
            "    let key = {key};\n    return select(0u, hash(key, args[2]) | {SELECTED}u, {selected});\n}}"
        );
        text.push_str(ENTRY);
        text.push_str(&loads.masks());
        text.push_str(&param_loads(&emitter, params_at));
        text.push_str("    fault = 0u;\n    let last = rows - 1u;\n");
        text.push_str(&tile_loop(&loads, unroll));
        text.push_str("    if (fault != 0u) {\n        atomicOr(&status[0], 1u);\n    }\n}\n");
        Ok(HashPlan {
            shader: bindings.shader("partition_hash", &text),
            slots: bindings.slots,
            tables: reads_tables(&emitter),
            columns: columns.clone(),
            unroll,
        })
    }
}

fn tile_loop(loads: &Loads<'_>, unroll: u32) -> String {
    let tile = WORKGROUP * unroll;
    let mut text =
        format!("    for (var base = group * {tile}u; base < rows; base += groups * {tile}u) {{\n");
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
        let _ = writeln!(
            text,
            "        let h{u} = row(j{u}, i{u} < rows{arguments});\n        if (i{u} < rows) {{\n            hashes[i{u}] = h{u};\n        }}"
        );
    }
    text.push_str("    }\n");
    text
}
