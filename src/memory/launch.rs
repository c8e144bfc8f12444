//! What a kernel needs to launch: the device, whose memory, whose counters; and timers for its passes.

use std::sync::Arc;

use crate::error::{GpuError, GpuResult};

use super::budget::MemoryScope;
use super::device::DeviceContext;
use super::poll;
use super::pool::{BufferKind, DeviceBuffer};
use super::stats::LaunchStats;

/// Largest parameter block, in bytes: many operators, fused, may bring many constants.
pub(crate) const MAX_PARAMS: usize = 4 << 20;
/// Passes that one timer can time.
const MAX_PASSES: u32 = 32;

/// What a kernel needs to launch.
#[derive(Debug, Clone)]
pub struct LaunchScope {
    /// The device.
    pub context: Arc<DeviceContext>,
    /// In whose name memory is reserved.
    pub memory: MemoryScope,
    /// Counters of the plan node.
    pub stats: Arc<LaunchStats>,
}

impl LaunchScope {
    /// A `Storage` buffer, bindable as storage or uniform, that holds `bytes` (zero-padded to 16) before any later
    /// submission runs. For parameter blocks up to 4 MiB; columns go through `upload`.
    ///
    /// The bytes go through a pooled staging buffer: `write_buffer` would allocate one of its own, and lose the device where
    /// it cannot.
    pub fn params(&self, bytes: &[u8]) -> GpuResult<Arc<DeviceBuffer>> {
        if bytes.len() > MAX_PARAMS {
            let need = bytes.len() as u64;
            return Err(GpuError::Limit {
                what: "a parameter block",
                need,
                limit: MAX_PARAMS as u64,
                by_rows: false,
            });
        }
        let padded = bytes.len().next_multiple_of(16).max(16);
        let context = &self.context;
        let staging = context.allocate(&self.memory, padded as u64, BufferKind::Staging)?;
        let buffer = context.allocate(&self.memory, padded as u64, BufferKind::Storage)?;
        fill(&staging, bytes, padded as u64).map_err(|error| context.classify(error))?;
        staging.unmap();
        let mut encoder = context.device().create_command_encoder(&Default::default());
        encoder.copy_buffer_to_buffer(staging.raw(), 0, buffer.raw(), 0, padded as u64);
        context.submit_ahead(encoder)?;
        Ok(buffer)
    }

    /// A span for a kernel's launch and read-back; [`download_timed`](super::download_timed) within it records `gpu_ns`,
    /// the device's own time, where the adapter has timestamps.
    pub fn kernel_span(&self, kernel: &'static str, rows: usize) -> tracing::Span {
        tracing::debug_span!(
            target: "datafusion_wgpu::kernel",
            "gpu_kernel",
            kernel,
            rows,
            gpu_ns = tracing::field::Empty
        )
    }

    /// A timer for passes of this scope; it does nothing where the adapter has no timestamps, or none to spare.
    pub fn timer(&self) -> PassTimer {
        let timed = self.context.caps().timestamps;
        let queries = timed.then(|| self.context.take_query_set(2 * MAX_PASSES)).flatten();
        PassTimer { context: Arc::clone(&self.context), queries, passes: 0 }
    }
}

/// Writes `bytes`, zero-padded, into mapped staging memory.
fn fill(staging: &DeviceBuffer, bytes: &[u8], padded: u64) -> GpuResult<()> {
    let view = staging.raw().get_mapped_range_mut(..padded);
    let mut view = view.map_err(|error| poll::map_error(error.to_string()))?;
    view.slice(..bytes.len()).copy_from_slice(bytes);
    view.slice(bytes.len()..).fill(0);
    Ok(())
}

/// Times compute passes by timestamp queries. The times arrive with `download_timed`; a timer that is dropped
/// instead costs nothing more.
#[derive(Debug)]
pub struct PassTimer {
    context: Arc<DeviceContext>,
    queries: Option<wgpu::QuerySet>,
    passes: u32,
}

impl PassTimer {
    /// Begins a compute pass with timestamps around it. A timer times its first 32 passes.
    pub fn pass<'e>(&mut self, encoder: &'e mut wgpu::CommandEncoder, label: &str) -> wgpu::ComputePass<'e> {
        let queries = self.queries.as_ref().filter(|_| self.passes < MAX_PASSES);
        let first = 2 * self.passes;
        let timestamp_writes = queries.map(|query_set| wgpu::ComputePassTimestampWrites {
            query_set,
            beginning_of_pass_write_index: Some(first),
            end_of_pass_write_index: Some(first + 1),
        });
        self.passes += u32::from(timestamp_writes.is_some());
        encoder.begin_compute_pass(&wgpu::ComputePassDescriptor { label: Some(label), timestamp_writes })
    }

    /// Bytes that the timestamps take in a read-back.
    pub(crate) fn bytes(&self) -> u64 {
        u64::from(self.passes) * 16
    }

    /// Records the copy of the timestamps to `target`. The buffer in between must live until the submission.
    pub(crate) fn resolve(
        &self,
        memory: &MemoryScope,
        encoder: &mut wgpu::CommandEncoder,
        target: &DeviceBuffer,
        offset: u64,
    ) -> GpuResult<Option<Arc<DeviceBuffer>>> {
        let Some(queries) = self.queries.as_ref().filter(|_| self.passes > 0) else { return Ok(None) };
        let resolved = self.context.allocate(memory, self.bytes(), BufferKind::Queries)?;
        encoder.resolve_query_set(queries, 0..2 * self.passes, resolved.raw(), 0);
        encoder.copy_buffer_to_buffer(resolved.raw(), 0, target.raw(), offset, self.bytes());
        Ok(Some(resolved))
    }

    /// Nanoseconds in all passes, from the timestamps read back.
    pub(crate) fn nanoseconds(&self, timestamps: &[u8]) -> u64 {
        let period = f64::from(self.context.queue().get_timestamp_period());
        let ticks: u64 = timestamps.chunks_exact(16).map(pass_ticks).sum();
        (ticks as f64 * period) as u64
    }
}

/// Ticks between the two timestamps of a pass; 0 if the clock was reset in between.
fn pass_ticks(pair: &[u8]) -> u64 {
    let word = |bytes: &[u8]| bytes.iter().rev().fold(0u64, |value, byte| (value << 8) | u64::from(*byte));
    let (begin, end) = pair.split_at(8);
    word(end).saturating_sub(word(begin))
}

impl Drop for PassTimer {
    fn drop(&mut self) {
        if let Some(queries) = self.queries.take() {
            self.context.put_query_set(queries);
        }
    }
}
