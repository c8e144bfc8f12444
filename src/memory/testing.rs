//! The device that unit tests share. There must be one: a missing adapter fails the tests.

use std::sync::{Arc, LazyLock};

use super::budget::MemoryScope;
use super::launch::LaunchScope;
use super::runtime::{AdapterSelector, GpuDevice, GpuRuntime};
use super::stats::LaunchStats;

static RUNTIME: LazyLock<Arc<GpuRuntime>> = LazyLock::new(GpuRuntime::new);

fn any_adapter() -> AdapterSelector {
    AdapterSelector { adapter: String::new(), allow_software: true }
}

/// The shared device with a ledger and a fault plan of the caller's own.
pub(crate) fn device() -> Arc<GpuDevice> {
    let device = RUNTIME.select(&any_adapter()).expect("tests need a Vulkan, Metal or DX12 adapter");
    let caps = device.caps().as_ref().clone();
    device.with_caps(caps)
}

/// A device of the caller's own, which may be lost without harm to other tests.
pub(crate) fn own_device() -> Arc<GpuDevice> {
    GpuRuntime::new().select(&any_adapter()).expect("tests need a Vulkan, Metal or DX12 adapter")
}

/// A launch scope on `device` without a limit of its own.
pub(crate) fn scope(device: &Arc<GpuDevice>) -> LaunchScope {
    LaunchScope {
        context: device.context().expect("device context"),
        memory: MemoryScope::new(device.ledger(), "test", u64::MAX),
        stats: Arc::new(LaunchStats::default()),
    }
}
