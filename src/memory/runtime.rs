//! Adapters and opened devices.
use super::budget::DeviceLedger;
use super::caps::{AdapterKind, DeviceCaps};
use super::device::DeviceContext;
use super::faults::FaultPlan;
use crate::error::{GpuError, GpuResult};
use std::sync::Arc;
/// Adapters of the machine; shared by `Arc`, one a process is usual.
#[derive(Debug)]
pub struct GpuRuntime {}
/// One adapter, as enumerated.
#[derive(Debug, Clone, PartialEq)]
pub struct AdapterInfo {
    /// Index, for `gpu.adapter`.
    pub index: usize,
    /// Name.
    pub name: String,
    /// Kind.
    pub kind: AdapterKind,
    /// Lower-case backend.
    pub backend: String,
    /// Driver name.
    pub driver: String,
    /// Driver version text.
    pub driver_info: String,
    /// 64-bit integers in shaders.
    pub int64: bool,
    /// 64-bit floats in shaders.
    pub float64: bool,
}
/// Which adapter to use.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct AdapterSelector {
    /// Empty: the first allowed; a number: that index; else a case-insensitive part of the name.
    pub adapter: String,
    /// Whether a software adapter may be used, even when named.
    pub allow_software: bool,
}
impl GpuRuntime {
    pub fn new() -> Arc<Self> {
        todo!()
    }
    pub fn adapters(&self) -> &[AdapterInfo] {
        todo!()
    }
    pub fn select(&self, _selector: &AdapterSelector) -> Result<Arc<GpuDevice>, GpuError> {
        todo!()
    }
}
/// An adapter that was opened.
#[derive(Debug)]
pub struct GpuDevice {}
impl GpuDevice {
    pub fn caps(&self) -> &Arc<DeviceCaps> {
        todo!()
    }
    pub fn ledger(&self) -> &Arc<DeviceLedger> {
        todo!()
    }
    pub fn context(&self) -> GpuResult<Arc<DeviceContext>> {
        todo!()
    }
    /// Same device, lowered caps, its own ledger and fault plan: for tests.
    pub fn with_caps(self: &Arc<Self>, _caps: DeviceCaps) -> Arc<GpuDevice> {
        todo!()
    }
    #[doc(hidden)]
    pub fn faults(&self) -> &FaultPlan {
        todo!()
    }
    #[doc(hidden)]
    pub fn lose(&self) {
        todo!()
    }
}
