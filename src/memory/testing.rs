//! The device that unit tests share. There must be one: a missing adapter fails the tests.
use super::budget::MemoryScope;
use super::launch::LaunchScope;
use super::runtime::{AdapterSelector, GpuDevice, GpuRuntime};
use super::stats::LaunchStats;
use std::sync::{Arc, LazyLock};

static RUNTIME: LazyLock<Arc<GpuRuntime>> = LazyLock::new(GpuRuntime::new);

/// The shared adapter with a ledger and a fault plan of its own.
pub(crate) fn device() -> Arc<GpuDevice> {
    let selector = AdapterSelector { adapter: String::new(), allow_software: true };
    let device = RUNTIME.select(&selector).expect("tests need a Vulkan, Metal or DX12 adapter");
    let caps = device.caps().as_ref().clone();
    device.with_caps(caps)
}

/// A launch scope on `device` without a limit of its own.
pub(crate) fn scope(device: &Arc<GpuDevice>) -> LaunchScope {
    LaunchScope {
        context: device.context().expect("device context"),
        memory: MemoryScope::new(device.ledger(), "test", u64::MAX),
        stats: Arc::new(LaunchStats::default()),
    }
}
