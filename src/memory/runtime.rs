//! Adapters, and the devices opened on them.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, LazyLock, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::error::{GpuError, GpuResult};
use crate::observe::{FallbackEvent, Observers, QueryStats, Subscription};

use super::budget::{DeviceLedger, PoolRegistry, Reclaim};
use super::caps::{AdapterKind, DeviceCaps, Numerics};
use super::device::DeviceContext;
use super::faults::{Choke, FaultPlan, INJECTED};
use super::generation::ContextCore;
use super::guards::Guards;
use super::{open, probe};

/// Adapters of the machine, enumerated once, when first asked for. Shared by `Arc`; one a process is usual, and each
/// has its own devices.
#[derive(Debug, Default)]
pub struct GpuRuntime {
    adapters: OnceLock<Adapters>,
    observers: Arc<Observers>,
    /// The one device of [`GpuRuntime::over`].
    fixed: Option<Arc<GpuDevice>>,
}

#[derive(Debug)]
struct Adapters {
    infos: Vec<AdapterInfo>,
    /// By the index of `infos`.
    slots: Vec<Slot>,
}

#[derive(Debug)]
struct Slot {
    adapter: wgpu::Adapter,
    opened: Mutex<Option<Arc<GpuDevice>>>,
}

/// One adapter, as enumerated.
#[derive(Debug, Clone, PartialEq)]
pub struct AdapterInfo {
    /// Index, for `gpu.adapter`.
    pub index: usize,
    /// Name, e.g. `NVIDIA H200`.
    pub name: String,
    /// Kind.
    pub kind: AdapterKind,
    /// Lower-case backend, e.g. `vulkan`.
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
    /// Empty: the first allowed one, those with 64-bit integers before the others; a number: that index; else a
    /// case-insensitive part of the name.
    pub adapter: String,
    /// Whether a software adapter may be used, even when named.
    pub allow_software: bool,
}

impl GpuRuntime {
    /// A runtime. Never fails: without a loader or a driver there are no adapters.
    pub fn new() -> Arc<Self> {
        Arc::new(GpuRuntime::default())
    }

    /// A runtime that selects `device`, whatever a session asks for: how sessions run over a view made by
    /// [`GpuDevice::with_caps`].
    #[doc(hidden)]
    pub fn over(device: Arc<GpuDevice>) -> Arc<Self> {
        Arc::new(GpuRuntime { fixed: Some(device), ..GpuRuntime::default() })
    }

    /// Hooks and the last fallbacks of queries that use this runtime.
    pub fn observers(&self) -> &Arc<Observers> {
        &self.observers
    }

    /// Calls `hook` for each run-time fallback, whatever `gpu.fallback` says; see [`Observers::on_fallback`].
    pub fn on_fallback(&self, hook: impl Fn(&FallbackEvent) + Send + Sync + 'static) -> Subscription {
        self.observers.on_fallback(hook)
    }

    /// Calls `hook` once for each query that ran a GPU node; see [`Observers::on_query`].
    pub fn on_query(&self, hook: impl Fn(&QueryStats) + Send + Sync + 'static) -> Subscription {
        self.observers.on_query(hook)
    }

    fn enumerated(&self) -> &Adapters {
        self.adapters.get_or_init(|| {
            let mut adapters = catch_unwind(AssertUnwindSafe(open::enumerate)).unwrap_or_else(|_| {
                tracing::error!("enumerating GPU adapters panicked; none is used");
                Vec::new()
            });
            adapters.sort_by_key(open::preference);
            let infos =
                adapters.iter().enumerate().map(|(index, adapter)| describe(index, adapter)).collect();
            let slots =
                adapters.into_iter().map(|adapter| Slot { adapter, opened: Mutex::new(None) }).collect();
            Adapters { infos, slots }
        })
    }

    /// All adapters: discrete, integrated, virtual, other, software; blocks for the enumeration the first time.
    pub fn adapters(&self) -> &[AdapterInfo] {
        &self.enumerated().infos
    }

    /// Index of the adapter that `selector` means, which is not opened. `NoAdapter` says what exists.
    pub fn find(&self, selector: &AdapterSelector) -> GpuResult<usize> {
        find(self.adapters(), selector)
    }

    /// What the adapter with that index offers, without opening it: its `numerics`, which only shaders can tell, are those
    /// of the device if it is open already, else all false.
    pub fn capabilities(&self, index: usize) -> Option<DeviceCaps> {
        let slot = self.enumerated().slots.get(index)?;
        Some(match self.opened(index) {
            Some(device) => DeviceCaps::clone(device.caps()),
            None => open::capabilities(&slot.adapter),
        })
    }

    /// The device of the adapter with that index, if somebody has opened it; waits for somebody who is opening it.
    pub fn opened(&self, index: usize) -> Option<Arc<GpuDevice>> {
        self.enumerated().slots.get(index)?.opened.lock().clone()
    }

    /// The devices that are open. Adapters are not enumerated for it, and one that somebody is opening is left out.
    pub fn devices(&self) -> Vec<Arc<GpuDevice>> {
        let slots = self.adapters.get().into_iter().flat_map(|adapters| &adapters.slots);
        let opened = slots.filter_map(|slot| slot.opened.try_lock()?.clone());
        self.fixed.iter().cloned().chain(opened).collect()
    }

    /// Opens the selected adapter, once for each runtime, and probes its numerics, once a process. Blocks for tens
    /// of milliseconds the first time. `NoAdapter` says what exists.
    pub fn select(&self, selector: &AdapterSelector) -> Result<Arc<GpuDevice>, GpuError> {
        if let Some(device) = &self.fixed {
            return Ok(Arc::clone(device));
        }
        let index = self.find(selector)?;
        let slot = &self.enumerated().slots[index];
        let mut opened = slot.opened.lock();
        if let Some(device) = opened.as_ref() {
            return Ok(Arc::clone(device));
        }
        let device = GpuDevice::open(&slot.adapter)?;
        *opened = Some(Arc::clone(&device));
        Ok(device)
    }
}

/// Index of the selected adapter.
fn find(infos: &[AdapterInfo], selector: &AdapterSelector) -> GpuResult<usize> {
    let allowed = |info: &&AdapterInfo| selector.allow_software || info.kind != AdapterKind::Software;
    let wanted = selector.adapter.trim();
    if infos.is_empty() {
        return Err(GpuError::NoAdapter("no Vulkan, Metal or DX12 adapter was found".to_string()));
    }
    if wanted.is_empty() {
        let exact = infos.iter().filter(allowed).find(|info| info.int64);
        return exact.or_else(|| infos.iter().find(allowed)).map(|info| info.index).ok_or_else(|| {
            GpuError::NoAdapter(format!("only software adapters exist ({}); {ALLOW_SOFTWARE}", list(infos)))
        });
    }
    let named = match wanted.parse::<usize>() {
        Ok(index) => infos.get(index),
        Err(_) => {
            let matches = |info: &&AdapterInfo| info.name.to_lowercase().contains(&wanted.to_lowercase());
            infos.iter().filter(matches).find(allowed).or_else(|| infos.iter().find(matches))
        }
    };
    match named {
        None => {
            Err(GpuError::NoAdapter(format!("none matches '{wanted}'; the adapters are {}", list(infos))))
        }
        Some(info) if !allowed(&info) => Err(GpuError::NoAdapter(format!(
            "'{wanted}' is the software adapter {}; {ALLOW_SOFTWARE}",
            info.name
        ))),
        Some(info) => Ok(info.index),
    }
}

/// Adapters in words, e.g. `[0] NVIDIA H200 (discrete, vulkan), [1] llvmpipe (software, vulkan)`.
fn list(infos: &[AdapterInfo]) -> String {
    let line = |info: &AdapterInfo| {
        format!("[{}] {} ({}, {})", info.index, info.name, info.kind.name(), info.backend)
    };
    infos.iter().map(line).collect::<Vec<_>>().join(", ")
}

const ALLOW_SOFTWARE: &str = "gpu.allow_software_adapter = true lets it be used";

fn describe(index: usize, adapter: &wgpu::Adapter) -> AdapterInfo {
    let info = adapter.get_info();
    let features = adapter.features();
    AdapterInfo {
        index,
        name: info.name,
        kind: info.device_type.into(),
        backend: info.backend.to_string().to_lowercase(),
        driver: info.driver,
        driver_info: info.driver_info,
        int64: features.contains(wgpu::Features::SHADER_INT64),
        float64: features.contains(wgpu::Features::SHADER_F64),
    }
}

/// What the views of an opened adapter share.
#[derive(Debug)]
struct DeviceShared {
    adapter: Mutex<wgpu::Adapter>,
    pools: Arc<PoolRegistry>,
    idle_cap: u64,
    current: Mutex<Current>,
}

#[derive(Debug, Default)]
struct Current {
    core: Option<Arc<ContextCore>>,
    generation: u64,
    failed: Option<Failed>,
}

/// An adapter that could not be opened again. Every batch of every query asks for that, and each attempt looks for adapters
/// anew: so it is not tried again before a pause is over, which doubles each time.
#[derive(Debug)]
struct Failed {
    error: GpuError,
    at: Instant,
    pause: Duration,
}

/// The first and the longest pause of [`Failed`].
const PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// An adapter that was opened. It survives the loss of its device: the next [`GpuDevice::context`] is a new generation.
#[derive(Debug)]
pub struct GpuDevice {
    shared: Arc<DeviceShared>,
    caps: Arc<DeviceCaps>,
    ledger: Arc<DeviceLedger>,
    faults: Arc<FaultPlan>,
    guards: Option<Arc<Guards>>,
}

/// Probe results of the process, by adapter, driver and version of this crate.
static PROBED: LazyLock<Mutex<HashMap<String, Numerics>>> = LazyLock::new(Mutex::default);

impl GpuDevice {
    fn open(adapter: &wgpu::Adapter) -> GpuResult<Arc<Self>> {
        let mut caps = open::capabilities(adapter);
        let shared = Arc::new(DeviceShared {
            adapter: Mutex::new(adapter.clone()),
            pools: Arc::default(),
            idle_cap: open::idle_cap(caps.memory_bytes),
            current: Mutex::default(),
        });
        let device = GpuDevice::view(&shared, caps.clone(), None);
        caps.numerics = device.probe()?;
        Ok(GpuDevice::view(&shared, caps, None))
    }

    fn view(shared: &Arc<DeviceShared>, caps: DeviceCaps, guards: Option<Arc<Guards>>) -> Arc<Self> {
        let capacity = caps.memory_bytes.unwrap_or(u64::MAX);
        Arc::new(GpuDevice {
            shared: Arc::clone(shared),
            caps: Arc::new(caps),
            ledger: DeviceLedger::new(capacity, Arc::clone(&shared.pools)),
            faults: Arc::default(),
            guards,
        })
    }

    /// Runs the numerics probe unless this process has done so for this adapter and driver. A probe that could not be run
    /// is not remembered.
    fn probe(self: &Arc<Self>) -> GpuResult<Numerics> {
        let caps = &self.caps;
        let key = format!(
            "{}|{}|{}|{}|{}|{}|{}",
            caps.name,
            caps.backend,
            caps.driver,
            caps.driver_info,
            caps.vendor,
            caps.device,
            env!("CARGO_PKG_VERSION")
        );
        let context = self.context()?;
        let mut probed = PROBED.lock();
        if let Some(numerics) = probed.get(&key) {
            return Ok(*numerics);
        }
        let numerics = probe::run(&context, &self.ledger)?;
        tracing::debug!(adapter = caps.name, ?numerics, "numerics probe");
        probed.insert(key, numerics);
        Ok(numerics)
    }

    /// Limits and features.
    pub fn caps(&self) -> &Arc<DeviceCaps> {
        &self.caps
    }

    /// The ledger of this device's memory.
    pub fn ledger(&self) -> &Arc<DeviceLedger> {
        &self.ledger
    }

    /// The current generation; a new one, with a device opened anew, after a loss. That takes tens of milliseconds. Where it
    /// fails, it fails again at once for a second, and for longer each time.
    pub fn context(&self) -> GpuResult<Arc<DeviceContext>> {
        let core = self.core()?;
        Ok(self.context_over(core))
    }

    /// The current generation, if one is open and not lost. Never waits for somebody who opens one: `None` meanwhile.
    pub fn current(&self) -> Option<Arc<DeviceContext>> {
        let core = self.shared.current.try_lock()?.core.as_ref().map(Arc::clone)?;
        (!core.check_lost()).then(|| self.context_over(core))
    }

    fn context_over(&self, core: Arc<ContextCore>) -> Arc<DeviceContext> {
        DeviceContext::new(core, Arc::clone(&self.caps), Arc::clone(&self.faults), self.guards.clone())
    }

    fn core(&self) -> GpuResult<Arc<ContextCore>> {
        let mut current = self.shared.current.lock();
        if let Some(core) = current.core.as_ref().filter(|core| !core.check_lost()) {
            return Ok(Arc::clone(core));
        }
        current.core = None;
        if let Some(failed) = current.failed.as_ref().filter(|failed| failed.at.elapsed() < failed.pause) {
            return Err(failed.error.clone());
        }
        match self.open_again(current.generation + 1) {
            Ok(core) => {
                current.generation += 1;
                current.failed = None;
                current.core = Some(Arc::clone(&core));
                Ok(core)
            }
            Err(error) => {
                let pause = current.failed.as_ref().map_or(PAUSE.0, |failed| (2 * failed.pause).min(PAUSE.1));
                current.failed = Some(Failed { error: error.clone(), at: Instant::now(), pause });
                Err(error)
            }
        }
    }

    /// A device of the adapter, as generation `generation`.
    fn open_again(&self, generation: u64) -> GpuResult<Arc<ContextCore>> {
        if self.faults.check(Choke::Open).is_some() {
            return Err(GpuError::NoAdapter(INJECTED.to_string()));
        }
        let (device, queue) = {
            let mut adapter = self.shared.adapter.lock();
            open::open(&mut adapter)?
        };
        let alive = self.shared.pools.alive();
        let core = ContextCore::new(device, queue, generation, self.shared.idle_cap, alive)
            .map_err(|error| GpuError::Internal(format!("the poll thread did not start: {error}")))?;
        let pool: Arc<dyn Reclaim> = Arc::clone(&core.pool) as _;
        self.shared.pools.add(Arc::downgrade(&pool));
        Ok(core)
    }

    /// The same device and pool under lowered caps, with a ledger and a fault plan of its own: for tests.
    pub fn with_caps(self: &Arc<Self>, caps: DeviceCaps) -> Arc<GpuDevice> {
        GpuDevice::view(&self.shared, caps, self.guards.clone())
    }

    /// The same device, with guard bands around what kernels write and a ledger and a fault plan of its own: for tests.
    #[doc(hidden)]
    pub fn with_guards(self: &Arc<Self>) -> Arc<GpuDevice> {
        GpuDevice::view(&self.shared, DeviceCaps::clone(&self.caps), Some(Arc::default()))
    }

    /// The guard bands of a device made by [`GpuDevice::with_guards`], or of a view of it.
    #[doc(hidden)]
    pub fn guards(&self) -> Option<&Arc<Guards>> {
        self.guards.as_ref()
    }

    /// Failures to inject into what runs on this device (this view of it).
    #[doc(hidden)]
    pub fn faults(&self) -> &FaultPlan {
        &self.faults
    }

    /// Destroys the current generation, for every view of the device.
    #[doc(hidden)]
    pub fn lose(&self) {
        let core = self.shared.current.lock().core.clone();
        if let Some(core) = core {
            core.lose();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(index: usize, name: &str, kind: AdapterKind, int64: bool) -> AdapterInfo {
        AdapterInfo {
            index,
            name: name.to_string(),
            kind,
            backend: "vulkan".to_string(),
            driver: String::new(),
            driver_info: String::new(),
            int64,
            float64: true,
        }
    }

    fn pick(infos: &[AdapterInfo], adapter: &str, allow_software: bool) -> Result<usize, String> {
        let selector = AdapterSelector { adapter: adapter.to_string(), allow_software };
        find(infos, &selector).map_err(|error| error.to_string())
    }

    #[test]
    fn selects_by_preference_index_and_name() {
        let infos = [
            info(0, "Radeon Old", AdapterKind::Discrete, false),
            info(1, "NVIDIA H200", AdapterKind::Discrete, true),
            info(2, "llvmpipe", AdapterKind::Software, true),
        ];
        assert_eq!(pick(&infos, "", false), Ok(1));
        assert_eq!(pick(&infos[..1], "", false), Ok(0));
        assert_eq!(pick(&infos, "0", false), Ok(0));
        assert_eq!(pick(&infos, " h200 ", false), Ok(1));
        assert_eq!(pick(&infos, "LLVM", true), Ok(2));
        let refused = pick(&infos, "2", false).unwrap_err();
        assert!(refused.contains("software adapter llvmpipe; gpu.allow_software_adapter"), "{refused}");
        let missing = pick(&infos, "Arc", true).unwrap_err();
        assert!(
            missing.contains("none matches 'Arc'; the adapters are [0] Radeon Old (discrete, vulkan), [1] "),
            "{missing}"
        );
        assert!(pick(&infos, "7", true).unwrap_err().contains("none matches '7'"));
        assert!(pick(&infos[2..], "", false).unwrap_err().contains("only software adapters exist"));
        assert!(pick(&[], "", true).unwrap_err().contains("no Vulkan, Metal or DX12 adapter"));
    }
}
