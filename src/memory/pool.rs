//! Size-class pool of device buffers.
/// What a buffer is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BufferKind {
    /// Bound to shaders (storage, uniform), source and target of copies.
    Storage,
    /// Target of copies, mapped for reading.
    ReadBack,
    /// Mapped for writing, source of copies.
    Staging,
}
/// A pooled device buffer. Keep it until the work that uses it was submitted.
#[derive(Debug)]
pub struct DeviceBuffer {}
impl DeviceBuffer {
    pub fn raw(&self) -> &wgpu::Buffer {
        todo!()
    }
    pub fn size(&self) -> u64 {
        todo!()
    }
}
