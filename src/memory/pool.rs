//! Size-class pool of device buffers.

/// A pooled device buffer.
#[derive(Debug)]
pub struct DeviceBuffer {}
