//! One generation of an open device.
use super::budget::MemoryScope;
use super::caps::DeviceCaps;
pub use super::pipeline::{BindingKind, Pipeline, ShaderSource};
pub use super::pool::{BufferKind, DeviceBuffer};
use super::stats::LaunchStats;
use crate::error::GpuResult;
use std::sync::Arc;
/// One generation of an open device.
#[derive(Debug)]
pub struct DeviceContext {}
impl DeviceContext {
    pub fn caps(&self) -> &Arc<DeviceCaps> {
        todo!()
    }
    pub fn generation(&self) -> u64 {
        todo!()
    }
    /// For encoders and bind groups only.
    pub fn device(&self) -> &wgpu::Device {
        todo!()
    }
    pub fn is_lost(&self) -> bool {
        todo!()
    }
    pub fn allocate(
        self: &Arc<Self>,
        _memory: &MemoryScope,
        _bytes: u64,
        _kind: BufferKind,
    ) -> GpuResult<Arc<DeviceBuffer>> {
        todo!()
    }
    pub fn submit(self: &Arc<Self>, _encoder: wgpu::CommandEncoder) -> GpuResult<Submission> {
        todo!()
    }
    pub async fn map_read(self: &Arc<Self>, _buffer: &Arc<DeviceBuffer>, _bytes: u64) -> GpuResult<Vec<u8>> {
        todo!()
    }
    pub fn pipeline(self: &Arc<Self>, _source: &ShaderSource) -> GpuResult<Arc<Pipeline>> {
        todo!()
    }
    pub async fn compile(
        self: &Arc<Self>,
        _source: ShaderSource,
        _stats: &LaunchStats,
    ) -> GpuResult<Arc<Pipeline>> {
        todo!()
    }
}
/// Submitted work. Dropping it is fine.
#[derive(Debug)]
pub struct Submission {}
impl Submission {
    pub async fn wait(self) -> GpuResult<()> {
        todo!()
    }
}
