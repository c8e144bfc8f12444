//! Grids, argument buffers and bind groups of kernel launches.

use std::sync::Arc;

use crate::error::{GpuError, GpuResult};
use crate::memory::{BufferKind, BufferSlice, DeviceCaps, LaunchScope, Pipeline};

use super::program::{ColumnShape, Segment};
use super::shader::{ArgumentBlock, Slot, is_packed, places};

/// Workgroups of a dispatch in its three dimensions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Grid {
    /// Workgroups along x, y and z.
    pub size: [u32; 3],
}

impl Grid {
    /// At least `groups` workgroups, and few more, within the adapter's limit a dimension.
    ///
    /// # Errors
    /// [`GpuError::Limit`] when three dimensions do not hold them.
    pub fn of(groups: u32, caps: &DeviceCaps) -> GpuResult<Grid> {
        let limit = caps.max_workgroups_per_dimension.max(1);
        let groups = groups.max(1);
        let z = groups.div_ceil(limit.saturating_mul(limit));
        let y = groups.div_ceil(z).div_ceil(limit);
        let x = groups.div_ceil(z).div_ceil(y);
        if z > limit {
            return Err(GpuError::Limit {
                what: "workgroups of a dispatch",
                need: groups.into(),
                limit: u64::from(limit).pow(3),
                by_rows: true,
            });
        }
        Ok(Grid { size: [x, y, z] })
    }

    /// Workgroups in all.
    pub fn groups(&self) -> u32 {
        self.size.iter().product()
    }
}

/// The grid for `steps` independent steps (tiles, or a workgroup's share of rows in one iteration), of which a
/// workgroup does several in a loop: enough workgroups to fill the chip, more where the iterations of an invocation
/// would exceed the adapter's budget or `most`. Each step costs `cost` iterations, and `reserve` are spent outside.
pub(crate) fn plan_grid(
    steps: u32,
    fill: u32,
    cost: u32,
    reserve: u32,
    most: u32,
    caps: &DeviceCaps,
) -> GpuResult<Grid> {
    let budget = caps.loop_budget.saturating_sub(reserve) / cost.max(1);
    if budget == 0 {
        let (need, limit) = (u64::from(reserve) + u64::from(cost), caps.loop_budget.into());
        return Err(GpuError::Limit {
            what: "loop iterations of an invocation",
            need,
            limit,
            by_rows: false,
        });
    }
    let fewest = steps.div_ceil(budget.min(most.max(1)));
    let possible = caps.max_workgroups_per_dimension.saturating_pow(3);
    Grid::of(steps.min(fill.min(possible).max(fewest)), caps)
}

/// Bytes of argument blocks that share a buffer, at most; a longer block has one of its own.
const SHARED_ARGUMENT_BYTES: usize = 64 << 10;

/// Puts argument blocks into device buffers, with a copy of the tables behind those that have some; one slice each.
///
/// # Errors
/// Those of [`LaunchScope::params`], and of allocation and submission.
pub(crate) fn argument_slices(scope: &LaunchScope, blocks: &[ArgumentBlock]) -> GpuResult<Vec<BufferSlice>> {
    let bytes: Vec<Vec<u8>> = blocks.iter().map(ArgumentBlock::bytes).collect();
    let mut slices = short_slices(scope, &bytes)?;
    if blocks.iter().all(|block| block.tables.is_none()) {
        return Ok(slices);
    }
    let mut encoder = scope.context.device().create_command_encoder(&Default::default());
    let mut copied = vec![];
    for (slice, block) in slices.iter_mut().zip(blocks) {
        let Some(tables) = &block.tables else { continue };
        let limit = scope.context.caps().max_binding_bytes;
        if slice.len + tables.len > limit {
            // They are the whole dictionary's, however few rows there are.
            let need = slice.len + tables.len;
            return Err(GpuError::Limit { what: "bytes of look-up tables", need, limit, by_rows: false });
        }
        let whole = allocate(scope, "arguments and tables", slice.len + tables.len)?;
        let mut end = whole.offset;
        for part in [&*slice, tables] {
            encoder.copy_buffer_to_buffer(part.buffer.raw(), part.offset, whole.buffer.raw(), end, part.len);
            end += part.len;
        }
        copied.push(std::mem::replace(slice, whole));
    }
    scope.context.submit_ahead(encoder)?;
    // They go back to the pool only now: whoever takes them there submits later.
    drop(copied);
    Ok(slices)
}

fn short_slices(scope: &LaunchScope, blocks: &[Vec<u8>]) -> GpuResult<Vec<BufferSlice>> {
    let alignment = (scope.context.caps().offset_alignment as usize).max(16);
    let mut slices = Vec::with_capacity(blocks.len());
    let mut next = 0;
    while next < blocks.len() {
        let (mut bytes, mut places) = (Vec::new(), vec![]);
        while let Some(block) = blocks.get(next) {
            let len = block.len().next_multiple_of(16);
            if !bytes.is_empty() && bytes.len() + len > SHARED_ARGUMENT_BYTES {
                break;
            }
            places.push((bytes.len(), len));
            bytes.extend_from_slice(block);
            bytes.resize(bytes.len().next_multiple_of(alignment), 0);
            next += 1;
        }
        let buffer = scope.params(&bytes)?;
        slices.extend(places.into_iter().map(|(offset, len)| BufferSlice {
            buffer: Arc::clone(&buffer),
            offset: offset as u64,
            len: len as u64,
        }));
    }
    Ok(slices)
}

/// A storage buffer of at least `bytes`, whole 16-byte units, as a slice: every buffer that a kernel writes. Kernels take its
/// length from their arguments; in tests more is bound, and `name` says which buffer was written past its end.
pub(crate) fn allocate(scope: &LaunchScope, name: &'static str, bytes: u64) -> GpuResult<BufferSlice> {
    let len = bytes.max(16).next_multiple_of(16);
    let limit = scope.context.caps().max_binding_bytes;
    if len > limit {
        return Err(GpuError::Limit {
            what: "bytes of one storage binding",
            need: len,
            limit,
            by_rows: true,
        });
    }
    if let Some(guards) = scope.context.guards() {
        return guards.allocate(&scope.context, &scope.memory, name, len);
    }
    let buffer = scope.context.allocate(&scope.memory, len, BufferKind::Storage)?;
    Ok(BufferSlice { buffer, offset: 0, len })
}

/// Copies the segment's columns into one buffer where their shapes say so; `None` where they do not.
pub(crate) fn pack(
    scope: &LaunchScope,
    encoder: &mut wgpu::CommandEncoder,
    columns: &[ColumnShape],
    segment: &Segment,
) -> GpuResult<Option<BufferSlice>> {
    if !is_packed(columns) {
        return Ok(None);
    }
    let (places, words) = places(columns, segment)?;
    let target = allocate(scope, "packed columns", words * 4)?;
    for (shape, place) in columns.iter().zip(places) {
        let column = segment.column(shape.index)?;
        for (slice, at) in [Some(&column.values), column.validity.as_ref()].into_iter().zip(place) {
            let Some(slice) = slice else { continue };
            let (from, to) = (slice.buffer.raw(), target.buffer.raw());
            encoder.copy_buffer_to_buffer(
                from,
                slice.offset,
                to,
                target.offset + u64::from(at) * 4,
                slice.len,
            );
        }
    }
    Ok(Some(target))
}

/// Binds a row kernel's slots for one segment.
pub(crate) fn bind(
    scope: &LaunchScope,
    pipeline: &Pipeline,
    slots: &[Slot],
    segment: &Segment,
    args: &BufferSlice,
    own: &[&BufferSlice],
) -> GpuResult<wgpu::BindGroup> {
    let mut slices = Vec::with_capacity(slots.len());
    for slot in slots {
        slices.push(match slot {
            Slot::Args => args,
            Slot::Values(index) => &segment.column(*index)?.values,
            // Word 0 of the arguments is all ones, and the segment's index mask keeps every read there.
            Slot::Validity(index) => segment.column(*index)?.validity.as_ref().unwrap_or(args),
            Slot::Own(number) => own.get(*number).copied().ok_or_else(|| {
                GpuError::Internal(format!("kernel {} lacks its buffer {number}", pipeline.name))
            })?,
        });
    }
    Ok(bind_slices(scope, pipeline, &slices))
}

/// Binds slices in order.
pub(crate) fn bind_slices(
    scope: &LaunchScope,
    pipeline: &Pipeline,
    slices: &[&BufferSlice],
) -> wgpu::BindGroup {
    let entries: Vec<wgpu::BindGroupEntry<'_>> = slices
        .iter()
        .zip(0u32..)
        .map(|(slice, binding)| wgpu::BindGroupEntry {
            binding,
            resource: wgpu::BindingResource::Buffer(wgpu::BufferBinding {
                buffer: slice.buffer.raw(),
                offset: slice.offset,
                size: wgpu::BufferSize::new(slice.bound_len()),
            }),
        })
        .collect();
    scope.context.device().create_bind_group(&wgpu::BindGroupDescriptor {
        label: Some(&pipeline.name),
        layout: &pipeline.layout,
        entries: &entries,
    })
}

/// Records one dispatch.
pub(crate) fn dispatch(
    scope: &LaunchScope,
    pass: &mut wgpu::ComputePass<'_>,
    pipeline: &Pipeline,
    group: &wgpu::BindGroup,
    grid: Grid,
) {
    pass.set_pipeline(&pipeline.pipeline);
    pass.set_bind_group(0, group, &[]);
    let [x, y, z] = grid.size;
    pass.dispatch_workgroups(x, y, z);
    scope.stats.dispatches.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
}

/// The error of a kernel that binds too many storage buffers.
pub(crate) fn check_bindings(need: u32, caps: &DeviceCaps) -> GpuResult<()> {
    if need > caps.max_storage_buffers {
        let limit = caps.max_storage_buffers.into();
        return Err(GpuError::Limit {
            what: "storage buffers of one kernel",
            need: need.into(),
            limit,
            by_rows: false,
        });
    }
    Ok(())
}
