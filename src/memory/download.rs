//! Results back to the host.

use std::sync::Arc;
use std::time::Instant;

use crate::error::{GpuError, GpuResult};

use super::column::BufferSlice;
use super::device::{BufferKind, DeviceBuffer};
use super::launch::{LaunchScope, PassTimer};
use super::stats::LaunchStats;

/// Largest read-back buffer; more is spread over several, which keeps the pool's classes few.
pub(crate) const MAX_READBACK: u64 = 256 << 20;

/// Appends copies of `ranges` (slice, bytes from its start) to `encoder`, submits it, waits once, and gives the bytes
/// of each range.
pub async fn download(
    scope: &LaunchScope,
    encoder: wgpu::CommandEncoder,
    ranges: &[(&BufferSlice, u64)],
) -> GpuResult<Vec<Vec<u8>>> {
    download_parts(scope, encoder, ranges, None).await
}

/// [`download`], and adds the times of the timer's passes to `kernel_ns`, at no further wait.
pub async fn download_timed(
    scope: &LaunchScope,
    encoder: wgpu::CommandEncoder,
    ranges: &[(&BufferSlice, u64)],
    timer: PassTimer,
) -> GpuResult<Vec<Vec<u8>>> {
    download_parts(scope, encoder, ranges, Some(timer)).await
}

/// A piece of a range in one read-back buffer.
struct Piece {
    range: usize,
    source_offset: u64,
    bytes: u64,
}

/// Pieces that share a read-back buffer: (piece, offset in the buffer), and the bytes used.
#[derive(Default)]
struct Group {
    pieces: Vec<(Piece, u64)>,
    used: u64,
}

async fn download_parts(
    scope: &LaunchScope,
    mut encoder: wgpu::CommandEncoder,
    ranges: &[(&BufferSlice, u64)],
    timer: Option<PassTimer>,
) -> GpuResult<Vec<Vec<u8>>> {
    let started = Instant::now();
    let mut groups = group(ranges)?;
    let timer = timer.filter(|timer| timer.bytes() > 0);
    let timer_bytes = timer.as_ref().map_or(0, PassTimer::bytes);
    if groups.is_empty() {
        groups.push(Group::default());
    }
    let mut reads = Vec::with_capacity(groups.len());
    // Buffers that only the recorded commands use.
    let mut resolved = None;
    for (index, group) in groups.iter().enumerate() {
        let extra = if index == 0 { timer_bytes } else { 0 };
        let buffer =
            scope.context.allocate(&scope.memory, (group.used + extra).max(16), BufferKind::ReadBack)?;
        record_copies(&mut encoder, ranges, group, &buffer);
        let mut wanted: Vec<_> = group.pieces.iter().map(|(piece, offset)| (*offset, piece.bytes)).collect();
        if let (Some(timer), 0) = (&timer, index) {
            resolved = timer.resolve(&scope.memory, &mut encoder, &buffer, group.used)?;
            wanted.push((group.used, timer_bytes));
        }
        reads.push((buffer, wanted));
    }
    let mut parts = scope.context.submit_and_read(encoder, reads).await?;
    drop(resolved);
    LaunchStats::add(&scope.stats.waits, 1);
    if let Some(timer) = &timer {
        let stamps = parts.remove(groups[0].pieces.len());
        let nanoseconds = timer.nanoseconds(&stamps);
        LaunchStats::add(&scope.stats.kernel_ns, nanoseconds);
        tracing::Span::current().record("gpu_ns", nanoseconds);
    }
    let result = assemble(ranges.len(), &groups, parts);
    LaunchStats::add(&scope.stats.downloaded_bytes, ranges.iter().map(|(_, bytes)| bytes).sum());
    LaunchStats::add_time(&scope.stats.readback_ns, started);
    Ok(result)
}

/// Spreads the ranges over read-back buffers.
fn group(ranges: &[(&BufferSlice, u64)]) -> GpuResult<Vec<Group>> {
    let mut groups: Vec<Group> = Vec::new();
    for (index, (slice, bytes)) in ranges.iter().enumerate() {
        if *bytes > slice.len {
            return Err(GpuError::Internal(format!(
                "read-back of {bytes} bytes from a slice of {}",
                slice.len
            )));
        }
        let mut done = 0;
        while done < *bytes {
            let room = groups.last().map_or(0, |group| MAX_READBACK - group.used);
            if room == 0 {
                groups.push(Group::default());
                continue;
            }
            let piece = Piece { range: index, source_offset: done, bytes: (bytes - done).min(room) };
            done += piece.bytes;
            if let Some(group) = groups.last_mut() {
                let offset = group.used;
                // Keeps copies and the timestamps after them aligned.
                group.used += piece.bytes.next_multiple_of(16);
                group.pieces.push((piece, offset));
            }
        }
    }
    Ok(groups)
}

fn record_copies(
    encoder: &mut wgpu::CommandEncoder,
    ranges: &[(&BufferSlice, u64)],
    group: &Group,
    target: &Arc<DeviceBuffer>,
) {
    for (piece, offset) in &group.pieces {
        let slice = ranges[piece.range].0;
        // Copies move whole words; the slice is padded to 16 bytes.
        let bytes = piece.bytes.next_multiple_of(wgpu::COPY_BUFFER_ALIGNMENT);
        let source = slice.offset + piece.source_offset;
        encoder.copy_buffer_to_buffer(slice.buffer.raw(), source, target.raw(), *offset, bytes);
    }
}

/// Puts the pieces, read in the groups' order, together again.
fn assemble(ranges: usize, groups: &[Group], parts: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    let mut result = vec![Vec::new(); ranges];
    let pieces = groups.iter().flat_map(|group| &group.pieces);
    for ((piece, _), bytes) in pieces.zip(parts) {
        let whole: &mut Vec<u8> = &mut result[piece.range];
        if whole.is_empty() {
            *whole = bytes;
        } else {
            whole.extend_from_slice(&bytes);
        }
    }
    result
}
