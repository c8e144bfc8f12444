//! Results back to the host.
use super::column::BufferSlice;
use super::launch::{LaunchScope, PassTimer};
use crate::error::GpuResult;
/// Appends copies of `ranges` (slice, bytes from its start) to `encoder`, submits it, waits, and gives the bytes.
pub async fn download(
    _scope: &LaunchScope,
    _encoder: wgpu::CommandEncoder,
    _ranges: &[(&BufferSlice, u64)],
) -> GpuResult<Vec<Vec<u8>>> {
    todo!()
}
/// [`download`], and adds the timer's kernel times to the counters, at no further wait.
pub async fn download_timed(
    _scope: &LaunchScope,
    _encoder: wgpu::CommandEncoder,
    _ranges: &[(&BufferSlice, u64)],
    _timer: PassTimer,
) -> GpuResult<Vec<Vec<u8>>> {
    todo!()
}
