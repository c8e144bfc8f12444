//! What a selection needs of an adapter and of its memory, and its shaders, without a device.

use std::sync::Arc;

use crate::error::GpuResult;
use crate::kernels::expr::Expr;
use crate::kernels::expr::widths::type_bits;
use crate::kernels::program::{ColumnShape, Program, columns_of, tables_of};
use crate::kernels::shader::{argument_words, fitted};
use crate::memory::download::MAX_READBACK;
use crate::memory::pool::size_class;
use crate::memory::{DeviceCaps, ShaderSource};

use super::buffers::region_words;
use super::plan::{
    MaskPlan, SCAN_BLOCK, TILE, TILE_WORDS, bindings_of, gather_plans, mask_bindings, packed_bytes,
    scan_shader,
};

/// The most storage buffers that a kernel of [`select`](super::select()) cannot do without: more outputs than fit are spread over several
/// kernels, and more columns than fit share a buffer. Compare with `DeviceCaps::max_storage_buffers`.
pub fn select_bindings(program: &Program, outputs: &[Arc<Expr>], columns: &[ColumnShape]) -> u32 {
    let columns = &fitted(columns.to_vec(), 0, 0);
    let mask = program.selection.as_ref().map_or(0, |selection| mask_bindings(selection, columns));
    let gather = outputs.iter().map(|expr| bindings_of(program, std::slice::from_ref(expr), columns));
    gather.fold(mask, u32::max)
}

/// The most device bytes that [`select`](super::select()) holds beside its columns for a segment of `rows` rows: mask and counts, outputs,
/// arguments, copies of columns where a kernel binds at most `limit` storage buffers, and what is read back, each rounded as
/// buffers are.
pub fn select_bytes(
    limit: u32,
    program: &Program,
    outputs: &[Arc<Expr>],
    columns: &[ColumnShape],
    rows: usize,
) -> u64 {
    /// What the passes' timestamps take.
    const TIMESTAMPS: u64 = 512;
    let class = |bytes: u64| size_class(bytes.max(16).next_multiple_of(16));
    // A sum that is spread over up to so many buffers.
    let spread = |bytes: u64, buffers: u64| bytes.saturating_add(bytes / 4).saturating_add(256 * buffers);
    let mut kernels = (outputs.len() as u64).max(1);
    let (mut held, mut read) = (class(16) + class(TIMESTAMPS), 16 + TIMESTAMPS);
    if program.selection.is_some() {
        let tiles = (rows as u64).div_ceil(u64::from(TILE));
        let mask = 4 * tiles * u64::from(TILE_WORDS);
        let blocks = tiles.div_ceil(u64::from(SCAN_BLOCK));
        held += class(mask) + 2 * class(4 * tiles) + 2 * class(4 * blocks);
        read += mask;
        kernels += 3;
    }
    let mut regions = 0;
    for output in outputs {
        let words = match type_bits(output.value_type()) {
            1 => 0,
            bits => u64::from(bits).div_ceil(32),
        };
        regions += if words == 0 { 2 } else { 1 };
        let bytes = (rows as u64).saturating_mul(4 * words);
        held = held.saturating_add(if words == 0 { 0 } else { class(bytes) });
        read = read.saturating_add(bytes.next_multiple_of(16));
    }
    let bits = regions * 4 * u64::from(region_words(rows));
    let packed: u64 = packed_bytes(limit, program, outputs, columns, rows).map(class).sum();
    let columns = columns_of(outputs.iter().chain(&program.selection)).len();
    let tables = tables_of(outputs.iter().chain(&program.selection));
    let tables = tables.last_key_value().map_or(0, |(table, _)| table + 1);
    let words = argument_words(columns, program.params.len(), tables) as u64;
    let arguments = class((4 * words).next_multiple_of(256));
    held.saturating_add(packed)
        .saturating_add(spread(bits, outputs.len() as u64))
        .saturating_add(spread(read.saturating_add(bits), 1 + read / MAX_READBACK))
        .saturating_add(2 * kernels * arguments)
}

/// The shaders that [`select`](super::select()) runs. Pure: needs no device.
///
/// # Errors
/// [`GpuError::Internal`](crate::error::GpuError::Internal) for expressions that [`check`](crate::kernels::expr::check) rejects.
pub fn select_shaders(
    caps: &DeviceCaps,
    program: &Program,
    outputs: &[Arc<Expr>],
    columns: &[ColumnShape],
) -> GpuResult<Vec<ShaderSource>> {
    let mut shaders = vec![];
    if let Some(selection) = &program.selection {
        shaders.push(MaskPlan::build(caps, program, selection, columns)?.shader);
        shaders.push(scan_shader());
    }
    shaders.extend(gather_plans(caps, program, outputs, columns)?.into_iter().map(|plan| plan.shader));
    Ok(shaders)
}
