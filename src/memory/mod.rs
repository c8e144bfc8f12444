//! Devices, buffers and the batches in them.
//!
//! `runtime` finds adapters and opens devices, `device` is one generation of an open device with the four choke
//! points (allocate, submit, map, compile), `upload` and `download` move columns. Everything here knows Arrow and
//! wgpu, never DataFusion's plans.

pub mod admission;
pub mod batch;
pub mod budget;
pub mod caps;
pub mod column;
pub mod device;
pub mod dictionary;
pub mod download;
mod exit;
pub mod faults;
mod fill;
mod generation;
pub mod guards;
pub mod launch;
pub mod lookup;
mod open;
pub mod pipeline;
mod poll;
pub mod pool;
mod probe;
mod readback;
pub mod runtime;
pub mod stats;
pub mod upload;

#[cfg(test)]
mod speed;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

pub use admission::Need;
pub use budget::{DeviceCache, DeviceLedger, MemoryScope, Reservation};
pub use caps::{AdapterKind, DeviceCaps, Numerics, ShaderChecks};
pub use column::{BufferSlice, ColumnRepr, DeviceColumn, MagnitudeBits};
pub use device::{DeviceContext, Submission};
pub use download::{download, download_timed};
pub use launch::{LaunchScope, PassTimer};
pub use pipeline::{BindingKind, Pipeline, ShaderSource};
pub use pool::{BufferKind, DeviceBuffer};
pub use runtime::{AdapterInfo, AdapterSelector, GpuDevice, GpuRuntime};
pub use stats::{LaunchSnapshot, LaunchStats};
pub use upload::{device_bytes, upload, value_type};
