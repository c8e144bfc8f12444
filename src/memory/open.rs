//! wgpu's side of finding and opening adapters.

use std::sync::OnceLock;

use crate::error::{GpuError, GpuResult};

use super::caps::{AdapterKind, DeviceCaps, Numerics, ShaderChecks};

const BACKENDS: wgpu::Backends =
    wgpu::Backends::VULKAN.union(wgpu::Backends::METAL).union(wgpu::Backends::DX12);
/// Bindings are kept to this even where more is allowed: 32-bit byte offsets and every driver cope with it.
const MAX_BINDING: u64 = 1 << 30;
/// Mesa's software rasteriser ends an invocation's loops after this many iterations in all.
const LLVMPIPE_LOOP_BUDGET: u32 = 65_535;

/// All adapters of the backends we use; none when there is no loader or driver.
pub(crate) fn enumerate() -> Vec<wgpu::Adapter> {
    let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
    descriptor.backends = BACKENDS;
    // WGPU_VALIDATION=1 and the like still work.
    descriptor.flags = wgpu::InstanceFlags::empty().with_env();
    let instance = wgpu::Instance::new(descriptor);
    KEPT.get_or_init(|| instance.clone());
    pollster::block_on(instance.enumerate_adapters(BACKENDS))
}

/// The first instance, for as long as the process lives. With the last one the loader would unload the drivers, and NVIDIA's
/// leaves destructors of thread-local data behind that crash every thread which ends after that.
static KEPT: OnceLock<wgpu::Instance> = OnceLock::new();

/// Sort key: the kind, then the backend that offers most (one GPU may appear under two).
pub(crate) fn preference(adapter: &wgpu::Adapter) -> (AdapterKind, u8) {
    let info = adapter.get_info();
    let backend = match info.backend {
        wgpu::Backend::Vulkan => 0,
        wgpu::Backend::Metal => 1,
        wgpu::Backend::Dx12 => 2,
        _ => 3,
    };
    (info.device_type.into(), backend)
}

fn wanted_features() -> wgpu::Features {
    wgpu::Features::SHADER_INT64
        | wgpu::Features::SHADER_F64
        | wgpu::Features::SHADER_INT64_ATOMIC_ALL_OPS
        | wgpu::Features::SHADER_INT64_ATOMIC_MIN_MAX
        | wgpu::Features::SUBGROUP
        | wgpu::Features::TIMESTAMP_QUERY
}

/// What the adapter can do; `numerics` is still to be probed.
pub(crate) fn capabilities(adapter: &wgpu::Adapter) -> DeviceCaps {
    let info = adapter.get_info();
    let limits = adapter.limits();
    let has = |feature| adapter.features().contains(feature);
    let kind = AdapterKind::from(info.device_type);
    let software = kind == AdapterKind::Software;
    let llvmpipe =
        info.name.to_lowercase().contains("llvmpipe") || info.driver.to_lowercase().contains("llvmpipe");
    // A Metal pipeline that needs many registers takes fewer than the device, and wgpu does not tell how many.
    let most_invocations = if info.backend == wgpu::Backend::Metal { 256 } else { u32::MAX };
    DeviceCaps {
        backend: info.backend.to_string().to_lowercase(),
        driver: info.driver,
        driver_info: info.driver_info,
        vendor: info.vendor,
        device: info.device,
        device_type: kind,
        int64: has(wgpu::Features::SHADER_INT64),
        float64: has(wgpu::Features::SHADER_F64),
        int64_atomics: has(wgpu::Features::SHADER_INT64_ATOMIC_ALL_OPS),
        subgroup: has(wgpu::Features::SUBGROUP),
        timestamps: has(wgpu::Features::TIMESTAMP_QUERY),
        max_buffer_bytes: limits.max_buffer_size,
        max_binding_bytes: limits
            .max_storage_buffer_binding_size
            .min(limits.max_buffer_size)
            .min(MAX_BINDING),
        max_storage_buffers: limits
            .max_storage_buffers_per_shader_stage
            .min(limits.max_bindings_per_bind_group),
        offset_alignment: limits.min_storage_buffer_offset_alignment,
        max_workgroups_per_dimension: limits.max_compute_workgroups_per_dimension,
        max_workgroup_invocations: limits
            .max_compute_invocations_per_workgroup
            .min(limits.max_compute_workgroup_size_x)
            .min(most_invocations),
        workgroup_bytes: limits.max_compute_workgroup_storage_size,
        loop_budget: if llvmpipe { LLVMPIPE_LOOP_BUDGET } else { u32::MAX },
        reduce_workgroups: match kind {
            AdapterKind::Software => 16,
            AdapterKind::Discrete | AdapterKind::Virtual => 2_112,
            AdapterKind::Integrated | AdapterKind::Other => 1_056,
        },
        unroll: if software { 2 } else { 4 },
        memory_bytes: device_memory(adapter),
        name: info.name,
        shader_checks: ShaderChecks::default(),
        numerics: Numerics::default(),
    }
}

/// Bytes of free buffers that a device's pool may keep: a quarter of the memory, 1 GiB where it is unknown.
pub(crate) fn idle_cap(memory_bytes: Option<u64>) -> u64 {
    memory_bytes.map_or(1 << 30, |bytes| bytes / 4)
}

/// Bytes in the device-local heaps, the largest of them; only Vulkan tells.
#[cfg(any(target_os = "linux", target_os = "android", target_os = "windows"))]
fn device_memory(adapter: &wgpu::Adapter) -> Option<u64> {
    /// VK_MEMORY_HEAP_DEVICE_LOCAL_BIT
    const DEVICE_LOCAL: u32 = 1;
    // SAFETY: the handles are only used for a query while the adapter, and with it the instance, is alive.
    let properties = unsafe {
        let raw = adapter.as_hal::<wgpu::hal::api::Vulkan>()?;
        let instance = raw.shared_instance().raw_instance();
        instance.get_physical_device_memory_properties(raw.raw_physical_device())
    };
    let heaps = properties.memory_heaps_as_slice().iter();
    heaps.filter(|heap| heap.flags.as_raw() & DEVICE_LOCAL != 0).map(|heap| heap.size).max()
}

#[cfg(not(any(target_os = "linux", target_os = "android", target_os = "windows")))]
fn device_memory(_adapter: &wgpu::Adapter) -> Option<u64> {
    None
}

/// Opens a device with all the adapter's limits and the features we know how to use. An adapter that no longer
/// answers is looked up again in a new instance, and replaced.
pub(crate) fn open(adapter: &mut wgpu::Adapter) -> GpuResult<(wgpu::Device, wgpu::Queue)> {
    let first = match request(adapter) {
        Ok(device) => return Ok(device),
        Err(message) => message,
    };
    let known = adapter.get_info();
    let again = enumerate().into_iter().find(|candidate| {
        let info = candidate.get_info();
        (&info.name, info.vendor, info.device, info.backend, &info.device_pci_bus_id)
            == (&known.name, known.vendor, known.device, known.backend, &known.device_pci_bus_id)
    });
    let refused =
        |message: String| GpuError::NoAdapter(format!("{} could not be opened: {message}", known.name));
    let found = again.ok_or_else(|| refused(first))?;
    let device = request(&found).map_err(refused)?;
    *adapter = found;
    Ok(device)
}

fn request(adapter: &wgpu::Adapter) -> Result<(wgpu::Device, wgpu::Queue), String> {
    let discrete = adapter.get_info().device_type == wgpu::DeviceType::DiscreteGpu;
    // Columns are large: few big blocks for what is suballocated, the rest gets memory of its own.
    let block = if discrete { (64 << 20)..(256 << 20) } else { (16 << 20)..(64 << 20) };
    let descriptor = wgpu::DeviceDescriptor {
        label: Some("datafusion-wgpu"),
        required_features: wanted_features() & adapter.features(),
        required_limits: adapter.limits(),
        memory_hints: wgpu::MemoryHints::Manual { suballocated_device_memory_block_size: block },
        ..Default::default()
    };
    pollster::block_on(adapter.request_device(&descriptor)).map_err(|error| error.to_string())
}
