//! What a kernel needs to launch: the device, whose memory, whose counters.
use super::budget::MemoryScope;
use super::device::DeviceContext;
use super::pool::DeviceBuffer;
use super::stats::LaunchStats;
use crate::error::GpuResult;
use std::sync::Arc;
/// What a kernel needs to launch.
#[derive(Debug, Clone)]
pub struct LaunchScope {
    /// The device.
    pub context: Arc<DeviceContext>,
    /// Who reserves.
    pub memory: MemoryScope,
    /// Counters.
    pub stats: Arc<LaunchStats>,
}
impl LaunchScope {
    /// A Storage buffer (bindable as storage or uniform) that holds `bytes` before any later submission runs. For
    /// parameter blocks up to 64 KiB; columns go through `upload`.
    pub fn params(&self, _bytes: &[u8]) -> GpuResult<Arc<DeviceBuffer>> {
        todo!()
    }
    /// A timer for this scope's passes; does nothing where the adapter has no timestamps.
    pub fn timer(&self) -> PassTimer {
        todo!()
    }
}
/// Times compute passes by timestamp queries; the times arrive with `download_timed`.
#[derive(Debug)]
pub struct PassTimer {}
impl PassTimer {
    /// Begins a compute pass with timestamps around it (the first 32 passes of a timer; later ones are not timed).
    pub fn pass<'e>(
        &mut self,
        _encoder: &'e mut wgpu::CommandEncoder,
        _label: &str,
    ) -> wgpu::ComputePass<'e> {
        todo!()
    }
}
