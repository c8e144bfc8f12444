//! Devices, buffers and the batches in them.

pub mod column;
pub mod pool;
