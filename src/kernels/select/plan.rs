//! Shaders of the selection: one that turns the predicate into mask words and counts a tile, and one that evaluates
//! output expressions at the selected rows and writes each at its rank.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::sync::Arc;

use crate::error::GpuResult;
use crate::kernels::expr::dag::nodes;
use crate::kernels::expr::widths::Class;
use crate::kernels::expr::{Emitter, Expr, Node, ValueType};
use crate::kernels::program::{ColumnShape, Program, columns_of};
use crate::kernels::shader::{
    Bindings, ENTRY, Loads, Slot, column_bindings, fitted, is_packed, param_loads, param_variables,
    params_at, reads_tables,
};
use crate::memory::{BindingKind, DeviceCaps, ShaderSource};

/// Rows of a tile: what a workgroup ranks at a time.
pub(super) const TILE: u32 = 1024;
/// Mask words of a tile.
pub(super) const TILE_WORDS: u32 = TILE / 32;
/// Tiles whose counts one workgroup of the scan takes.
pub(crate) const SCAN_BLOCK: u32 = 2048;
/// Loop iterations a tile costs an invocation of the gathering kernel.
pub(super) const GATHER_COST: u32 = 6;
/// Loop iterations a block costs an invocation of the scan.
pub(crate) const SCAN_COST: u32 = 10;
/// Bit regions (validity, boolean values) of one gathering kernel, for workgroup memory's sake: 33 words each.
const MAX_REGIONS: usize = 32;
/// Outputs of one gathering kernel.
const MAX_OUTPUTS: usize = 24;

/// The hand-written scan of tile counts.
pub(crate) fn scan_shader() -> ShaderSource {
    ShaderSource {
        name: "select_scan".to_owned(),
        wgsl: include_str!("../../../shaders/scan/blocks.wgsl").to_owned(),
        bindings: vec![
            BindingKind::ReadOnlyStorage,
            BindingKind::ReadOnlyStorage,
            BindingKind::Storage,
            BindingKind::Storage,
        ],
    }
}

/// The kernel that evaluates the selection. Its own buffers: mask, counts, status.
#[derive(Debug)]
pub(super) struct MaskPlan {
    pub shader: ShaderSource,
    pub slots: Vec<Slot>,
    pub columns: Vec<ColumnShape>,
    /// Whether it reads look-up tables or lists.
    pub tables: bool,
}

impl MaskPlan {
    pub fn build(
        caps: &DeviceCaps,
        program: &Program,
        selection: &Arc<Expr>,
        columns: &[ColumnShape],
    ) -> GpuResult<MaskPlan> {
        let columns = fitted(used(&[selection], columns), 3, caps.max_storage_buffers);
        let params_at = params_at(&columns);
        let mut emitter = Emitter::new(&columns, &program.params, params_at);
        let truth = emitter.truth(selection)?;
        let mut bindings = Bindings::new(&columns)?;
        bindings.own(BindingKind::Storage, "mask", "u32");
        bindings.own(BindingKind::Storage, "counts", "u32");
        bindings.own(BindingKind::Storage, "status", "atomic<u32>");
        let loads = Loads::new(&columns);
        let mut text = param_variables(&emitter);
        text.push_str("var<private> fault: u32;\nvar<workgroup> words: array<atomic<u32>, 32>;\n");
        text.push_str("var<workgroup> total: atomic<u32>;\n");
        let _ = writeln!(
            text,
            "fn row(i: u32, live: bool{}) -> bool {{\n{}{}    return live & {};\n}}",
            loads.parameters()?,
            emitter.body,
            fault_statement("live", &truth.faults),
            truth.value
        );
        text.push_str(ENTRY);
        text.push_str(&loads.masks());
        text.push_str(&param_loads(&emitter, params_at));
        text.push_str("    fault = 0u;\n    let last = rows - 1u;\n    let tiles = args[2];\n");
        text.push_str(MASK_HEAD);
        for k in 0..TILE / 256 {
            let _ = writeln!(
                text,
                "        let i{k} = t * 1024u + {}u + l;\n        let j{k} = min(i{k}, last);",
                k * 256
            );
            text.push_str(&loads.statements(&format!("j{k}"), &format!("_{k}"), "        "));
        }
        for k in 0..TILE / 256 {
            let arguments = loads.arguments(&format!("_{k}"));
            let _ = writeln!(
                text,
                "        if (row(j{k}, i{k} < rows{arguments})) {{\n            atomicOr(&words[{}u + (l >> 5u)], 1u << (l & 31u));\n        }}",
                k * 8
            );
        }
        text.push_str(MASK_TAIL);
        let tables = reads_tables(&emitter);
        Ok(MaskPlan { shader: bindings.shader("select_mask", &text), slots: bindings.slots, columns, tables })
    }
}

const MASK_HEAD: &str = "    for (var t = group; t < tiles; t += groups) {
        if (l < 32u) {
            atomicStore(&words[l], 0u);
        }
        if (l == 0u) {
            atomicStore(&total, 0u);
        }
        workgroupBarrier();
";

const MASK_TAIL: &str = "        workgroupBarrier();
        if (l < 32u) {
            let word = atomicLoad(&words[l]);
            mask[t * 32u + l] = word;
            atomicAdd(&total, countOneBits(word));
        }
        workgroupBarrier();
        if (l == 0u) {
            counts[t] = atomicLoad(&total);
        }
    }
    if (fault != 0u) {
        atomicOr(&status[0], 1u);
    }
}
";

/// Where one output lies.
#[derive(Debug, Clone)]
pub(super) struct Output {
    /// Position among the outputs asked for.
    pub index: usize,
    pub ty: ValueType,
    pub class: Class,
    /// Bit region of a boolean's values.
    pub value_region: Option<usize>,
    /// Bit region of the validity, where it may be NULL.
    pub valid_region: Option<usize>,
}

/// A kernel that writes some of the outputs. Its own buffers, in order: with a selection mask, tile offsets and block
/// offsets; the bit regions, where there are any; status, where something can fault; values of each output that is not
/// boolean.
#[derive(Debug)]
pub(super) struct GatherPlan {
    pub shader: ShaderSource,
    pub slots: Vec<Slot>,
    pub columns: Vec<ColumnShape>,
    /// Whether it reads look-up tables or lists.
    pub tables: bool,
    pub outputs: Vec<Output>,
    pub regions: usize,
    pub can_fault: bool,
}

/// Cuts the outputs into as few kernels as the adapter's binding limit allows.
pub(super) fn gather_plans(
    caps: &DeviceCaps,
    program: &Program,
    outputs: &[Arc<Expr>],
    columns: &[ColumnShape],
) -> GpuResult<Vec<GatherPlan>> {
    let mut plans = vec![];
    let mut first = 0;
    while first < outputs.len() {
        let mut len = 1;
        while first + len < outputs.len()
            && len < MAX_OUTPUTS
            && 2 * (len + 1) <= MAX_REGIONS
            && bindings_of(program, &outputs[first..=first + len], columns) <= caps.max_storage_buffers
        {
            len += 1;
        }
        let exprs = &outputs[first..first + len];
        plans.push(GatherPlan::build(caps, program, first, exprs, columns)?);
        first += len;
    }
    Ok(plans)
}

/// Storage buffers that a kernel with these outputs binds, at most: the bit regions are always counted.
pub(super) fn bindings_of(program: &Program, outputs: &[Arc<Expr>], columns: &[ColumnShape]) -> u32 {
    let exprs: Vec<&Arc<Expr>> = outputs.iter().collect();
    column_bindings(&used(&exprs, columns)) + other_bindings(program, outputs)
}

/// Bytes of the buffers into which the kernels over a segment of `rows` rows copy their columns, where the adapter binds too
/// few: `limit`. One a kernel.
pub(super) fn packed_bytes<'a>(
    limit: u32,
    program: &'a Program,
    outputs: &'a [Arc<Expr>],
    columns: &'a [ColumnShape],
    rows: usize,
) -> impl Iterator<Item = u64> + 'a {
    let mask = program.selection.iter().map(move |selection| fitted(used(&[selection], columns), 3, limit));
    // Outputs share a kernel only where it binds its columns as they are.
    let gathers = outputs.iter().map(move |expr| {
        let others = other_bindings(program, std::slice::from_ref(expr));
        fitted(used(&[expr], columns), others, limit)
    });
    let packed = mask.chain(gathers).filter(|columns| is_packed(columns));
    packed.map(move |columns| columns.iter().map(|shape| shape.bytes(rows)).sum())
}

/// The same without arguments and columns.
fn other_bindings(program: &Program, outputs: &[Arc<Expr>]) -> u32 {
    let scanned = if program.selection.is_some() { 3 } else { 0 };
    let status = u32::from(outputs.iter().any(|expr| may_fault(expr)));
    let values = outputs.iter().filter(|expr| expr.value_type() != ValueType::Boolean).count() as u32;
    scanned + 1 + status + values
}

fn may_fault(expr: &Expr) -> bool {
    nodes([expr]).into_iter().any(|node| match node {
        Expr::Arith { .. } | Expr::Negate(_) | Expr::Required(_) | Expr::Cast { .. } | Expr::Call { .. } => {
            true
        }
        Expr::Lookup { fallible, .. } => *fallible,
        _ => false,
    })
}

/// Storage buffers of the mask kernel.
pub(super) fn mask_bindings(selection: &Arc<Expr>, columns: &[ColumnShape]) -> u32 {
    column_bindings(&used(&[selection], columns)) + 3
}

fn used(exprs: &[&Arc<Expr>], columns: &[ColumnShape]) -> Vec<ColumnShape> {
    let needed = columns_of(exprs.iter().copied());
    columns.iter().filter(|shape| needed.contains(&shape.index)).copied().collect()
}

impl GatherPlan {
    fn build(
        caps: &DeviceCaps,
        program: &Program,
        first: usize,
        exprs: &[Arc<Expr>],
        columns: &[ColumnShape],
    ) -> GpuResult<GatherPlan> {
        let columns = used(&exprs.iter().collect::<Vec<_>>(), columns);
        let columns = fitted(columns, other_bindings(program, exprs), caps.max_storage_buffers);
        let params_at = params_at(&columns);
        let mut emitter = Emitter::new(&columns, &program.params, params_at);
        let nodes = exprs.iter().map(|expr| emitter.emit(expr)).collect::<GpuResult<Vec<_>>>()?;
        let faults: BTreeSet<String> = nodes.iter().flat_map(|node| node.faults.iter().cloned()).collect();
        let (outputs, regions) = places(first, &nodes);

        let selected = program.selection.is_some();
        let mut bindings = gather_bindings(&columns, selected, regions, !faults.is_empty())?;
        let stores = stores(&mut bindings, &outputs, &nodes);
        let loads = Loads::new(&columns);
        let mut text = param_variables(&emitter);
        text.push_str("var<private> fault: u32;\n");
        if selected {
            text.push_str("var<workgroup> mw: array<u32, 32>;\nvar<workgroup> mp: array<u32, 32>;\n");
        }
        if regions > 0 {
            let _ = writeln!(text, "var<workgroup> lb: array<atomic<u32>, {}>;", 33 * regions);
        }
        let _ = writeln!(
            text,
            "fn row(i: u32, at: u32, bit: u32{}) {{\n{}{}{stores}}}",
            loads.parameters()?,
            emitter.body,
            fault_statement("true", &faults)
        );
        text.push_str(ENTRY);
        text.push_str(&loads.masks());
        text.push_str(&param_loads(&emitter, params_at));
        text.push_str(&tile_loop(&loads, selected, regions));
        if !faults.is_empty() {
            text.push_str("    if (fault != 0u) {\n        atomicOr(&status[0], 1u);\n    }\n");
        }
        text.push_str("}\n");
        Ok(GatherPlan {
            shader: bindings.shader("select_gather", &text),
            slots: bindings.slots,
            outputs,
            regions,
            can_fault: !faults.is_empty(),
            tables: reads_tables(&emitter),
            columns,
        })
    }
}

/// Bindings of a gathering kernel but for its outputs.
fn gather_bindings(
    columns: &[ColumnShape],
    selected: bool,
    regions: usize,
    can_fault: bool,
) -> GpuResult<Bindings> {
    let mut bindings = Bindings::new(columns)?;
    if selected {
        bindings.own(BindingKind::ReadOnlyStorage, "mask", "u32");
        bindings.own(BindingKind::ReadOnlyStorage, "offs", "u32");
        bindings.own(BindingKind::ReadOnlyStorage, "blocks", "u32");
    }
    if regions > 0 {
        bindings.own(BindingKind::Storage, "bits", "atomic<u32>");
    }
    if can_fault {
        bindings.own(BindingKind::Storage, "status", "atomic<u32>");
    }
    Ok(bindings)
}

/// Binds the outputs and gives the statements that write a row to them.
fn stores(bindings: &mut Bindings, outputs: &[Output], nodes: &[Node]) -> String {
    let mut stores = String::new();
    for (number, (output, node)) in outputs.iter().zip(nodes).enumerate() {
        if output.value_region.is_none() {
            bindings.own(BindingKind::Storage, &format!("o{number}"), output.class.wgsl());
            let _ = writeln!(stores, "    o{number}[at] = {};", node.value);
        }
        store_bits(&mut stores, output, node);
    }
    stores
}

/// Bit regions of the outputs, and their number.
fn places(first: usize, nodes: &[Node]) -> (Vec<Output>, usize) {
    let mut regions = 0;
    let mut region = |wanted: bool| {
        wanted.then(|| {
            regions += 1;
            regions - 1
        })
    };
    let outputs = nodes
        .iter()
        .enumerate()
        .map(|(at, node)| Output {
            index: first + at,
            ty: node.ty,
            class: node.class,
            value_region: region(node.class == Class::Bool),
            valid_region: region(node.valid.is_some()),
        })
        .collect();
    (outputs, regions)
}

/// Statements that put a row's bits into the tile's words in workgroup memory.
fn store_bits(stores: &mut String, output: &Output, node: &Node) {
    let values = output.value_region.map(|region| (region, &node.value));
    let valid = output.valid_region.and_then(|region| node.valid.as_ref().map(|valid| (region, valid)));
    for (region, flag) in values.into_iter().chain(valid) {
        let _ = writeln!(
            stores,
            "    if ({flag}) {{\n        atomicOr(&lb[{}u + (bit >> 5u)], 1u << (bit & 31u));\n    }}",
            33 * region
        );
    }
}

fn fault_statement(condition: &str, faults: &BTreeSet<String>) -> String {
    if faults.is_empty() {
        return String::new();
    }
    let flags = faults.iter().cloned().collect::<Vec<_>>().join(" | ");
    format!("    fault = fault | select(0u, 1u, {condition} & ({flags}));\n")
}

/// The loop over tiles. A tile's bits are collected in workgroup memory and go to memory as at most 33 words a region,
/// of which the first and the last are shared with the neighbouring tiles.
fn tile_loop(loads: &Loads<'_>, selected: bool, regions: usize) -> String {
    let mut text = String::from("    fault = 0u;\n    let tiles = args[2];\n");
    text.push_str("    for (var t = group; t < tiles; t += groups) {\n");
    for start in (0..33 * regions).step_by(256) {
        let _ = writeln!(
            text,
            "        if (l + {start}u < {}u) {{\n            atomicStore(&lb[l + {start}u], 0u);\n        }}",
            33 * regions
        );
    }
    if selected {
        text.push_str(
            "        if (l < 32u) {\n            let word = mask[t * 32u + l];\n            mw[l] = word;\n            mp[l] = countOneBits(word);\n        }\n",
        );
    }
    text.push_str("        workgroupBarrier();\n");
    if selected {
        for d in [1, 2, 4, 8, 16] {
            let _ = writeln!(
                text,
                "        var s{d} = 0u;\n        if (l < 32u && l >= {d}u) {{\n            s{d} = mp[l - {d}u];\n        }}\n        workgroupBarrier();\n        if (l < 32u) {{\n            mp[l] += s{d};\n        }}\n        workgroupBarrier();"
            );
        }
        text.push_str("        let first = offs[t] + blocks[t >> 11u];\n");
    } else {
        text.push_str("        let first = t * 1024u;\n");
    }
    text.push_str(
        "        for (var k = 0u; k < 4u; k += 1u) {\n            let j = t * 1024u + k * 256u + l;\n",
    );
    if selected {
        text.push_str(
            "            let w = k * 8u + (l >> 5u);\n            let word = mw[w];\n            let below = word & ((1u << (l & 31u)) - 1u);\n            let rank = mp[w] - countOneBits(word) + countOneBits(below);\n            if (((word >> (l & 31u)) & 1u) != 0u) {\n",
        );
    } else {
        text.push_str("            let rank = k * 256u + l;\n            if (j < rows) {\n");
    }
    text.push_str(&loads.statements("j", "_0", "                "));
    let _ = writeln!(
        text,
        "                row(j, first + rank, (first & 31u) + rank{});\n            }}\n        }}\n        workgroupBarrier();",
        loads.arguments("_0")
    );
    if regions > 0 {
        text.push_str("        if (l < 33u) {\n");
        for region in 0..regions {
            let _ = writeln!(
                text,
                "            let w{region} = atomicLoad(&lb[{}u + l]);\n            if (w{region} != 0u) {{\n                atomicOr(&bits[{region}u * args[3] + (first >> 5u) + l], w{region});\n            }}",
                33 * region
            );
        }
        text.push_str("        }\n        workgroupBarrier();\n");
    }
    text.push_str("    }\n");
    text
}
