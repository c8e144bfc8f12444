//! Buffers of a selection, and what the host knows of them.

use arrow::buffer::BooleanBuffer;

use crate::error::GpuResult;
use crate::kernels::expr::widths::Class;
use crate::kernels::launch::allocate;
use crate::kernels::program::Segment;
use crate::memory::{BufferSlice, LaunchScope};

use super::plan::{GatherPlan, SCAN_BLOCK, TILE, TILE_WORDS};

/// Buffers and arguments of one non-empty segment.
pub(super) struct Work<'a> {
    pub segment: &'a Segment,
    pub rows: u32,
    pub tiles: u32,
    pub blocks: u32,
    /// Word 0: fault flag, word 1: selected rows.
    pub status: BufferSlice,
    pub scan: Option<ScanBuffers>,
}

/// What the selection leaves on the device.
pub(super) struct ScanBuffers {
    pub mask: BufferSlice,
    pub counts: BufferSlice,
    pub offsets: BufferSlice,
    pub block_totals: BufferSlice,
    pub block_offsets: BufferSlice,
}

/// What the host knows of a segment after the wait(s).
#[derive(Default)]
pub(super) struct Known {
    pub fault: bool,
    pub selected: usize,
    pub mask: Option<BooleanBuffer>,
}

/// Words of a bit region for `rows` rows; whole 16-byte units.
pub(super) fn region_words(rows: usize) -> u32 {
    (rows.div_ceil(32).max(1).next_multiple_of(4)) as u32
}

/// Buffers that one gathering kernel writes for one segment.
pub(super) struct Placed {
    pub bits: Option<BufferSlice>,
    /// One an output; none for booleans.
    pub values: Vec<Option<BufferSlice>>,
    /// Bytes of each that are read back.
    pub bytes: Vec<u64>,
}

impl Placed {
    pub fn allocate(scope: &LaunchScope, plan: &GatherPlan, rows: usize) -> GpuResult<Placed> {
        let bits = match plan.regions {
            0 => None,
            regions => {
                Some(allocate(scope, "bit regions", regions as u64 * u64::from(region_words(rows)) * 4)?)
            }
        };
        let mut placed = Placed { bits, values: vec![], bytes: vec![] };
        for output in &plan.outputs {
            let bytes = rows as u64 * 4 * output.class.words() as u64;
            let value =
                (output.class != Class::Bool).then(|| allocate(scope, "output values", bytes)).transpose()?;
            placed.values.push(value);
            placed.bytes.push(bytes);
        }
        Ok(placed)
    }

    pub fn ranges(&self) -> impl Iterator<Item = (&BufferSlice, u64)> {
        let values = self.values.iter().zip(&self.bytes);
        let values = values.filter_map(|(slice, bytes)| slice.as_ref().map(|slice| (slice, *bytes)));
        self.bits.iter().map(|slice| (slice, slice.len)).chain(values)
    }
}

impl<'a> Work<'a> {
    pub fn new(scope: &LaunchScope, segment: &'a Segment, selected: bool) -> GpuResult<Work<'a>> {
        let rows = segment.rows as u32;
        let tiles = rows.div_ceil(TILE);
        let blocks = tiles.div_ceil(SCAN_BLOCK);
        let words = |name, count: u32| allocate(scope, name, u64::from(count) * 4);
        let scan = if selected {
            Some(ScanBuffers {
                mask: words("mask", tiles * TILE_WORDS)?,
                counts: words("counts", tiles)?,
                offsets: words("offsets", tiles)?,
                block_totals: words("block totals", blocks)?,
                block_offsets: words("block offsets", blocks)?,
            })
        } else {
            None
        };
        Ok(Work { segment, rows, tiles, blocks, status: allocate(scope, "status", 16)?, scan })
    }

    /// Zeroes what the kernels add to, and the block offsets, which one block leaves as they are.
    pub fn clear(&self, encoder: &mut wgpu::CommandEncoder) {
        let offsets = self.scan.as_ref().map(|scan| &scan.block_offsets);
        for slice in std::iter::once(&self.status).chain(offsets) {
            encoder.clear_buffer(slice.buffer.raw(), slice.offset, Some(slice.len));
        }
    }
}
