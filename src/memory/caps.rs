//! What an adapter can do, as plain data: the only source of limits and features for planning and kernels.

/// Kind of an adapter, in order of preference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AdapterKind {
    /// A GPU with its own memory.
    Discrete,
    /// A GPU that shares the host's memory.
    Integrated,
    /// A GPU lent by a hypervisor.
    Virtual,
    /// Unknown.
    Other,
    /// A CPU that poses as a GPU.
    Software,
}

impl AdapterKind {
    /// Lower-case name for messages and SQL.
    pub fn name(self) -> &'static str {
        match self {
            AdapterKind::Discrete => "discrete",
            AdapterKind::Integrated => "integrated",
            AdapterKind::Virtual => "virtual",
            AdapterKind::Other => "other",
            AdapterKind::Software => "software",
        }
    }
}

impl From<wgpu::DeviceType> for AdapterKind {
    fn from(kind: wgpu::DeviceType) -> Self {
        match kind {
            wgpu::DeviceType::DiscreteGpu => AdapterKind::Discrete,
            wgpu::DeviceType::IntegratedGpu => AdapterKind::Integrated,
            wgpu::DeviceType::VirtualGpu => AdapterKind::Virtual,
            wgpu::DeviceType::Cpu => AdapterKind::Software,
            wgpu::DeviceType::Other => AdapterKind::Other,
        }
    }
}

/// What the numerics probe found by running shaders and comparing with the CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Numerics {
    /// 64-bit integer + - * shifts and comparisons agree with the CPU bit for bit.
    pub int64_exact: bool,
    /// f64 + - * / agree with the CPU bit for bit, denormals included (NaN payloads aside).
    pub float64_exact: bool,
    /// `a * b + c` may be computed with one rounding.
    pub float_contraction: bool,
    /// f32 division is correctly rounded.
    pub float32_division_exact: bool,
    /// f32 denormals survive arithmetic.
    pub float32_denormals: bool,
}

/// Checks that the shader compiler adds to a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ShaderChecks {
    /// Bounds of buffers and arrays, and a counter in every loop, so that it ends.
    All,
    /// Bounds. Adapters are opened so: the kernels' loops end by themselves, and the counter costs time in inner loops.
    #[default]
    Bounds,
    /// None, for tests: no kernel may depend on a check.
    None,
}

/// Limits, features and measured behaviour of an adapter. Tests lower them with `GpuDevice::with_caps`.
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceCaps {
    /// Adapter name, e.g. `NVIDIA H200`.
    pub name: String,
    /// Lower-case backend, e.g. `vulkan`.
    pub backend: String,
    /// Driver name.
    pub driver: String,
    /// Driver version text.
    pub driver_info: String,
    /// PCI vendor id, or what the backend has in its place.
    pub vendor: u32,
    /// PCI device id, or what the backend has in its place.
    pub device: u32,
    /// Kind of adapter.
    pub device_type: AdapterKind,
    /// 64-bit integers in shaders. Without them nothing runs.
    pub int64: bool,
    /// 64-bit floats in shaders.
    pub float64: bool,
    /// All 64-bit atomics in storage and workgroup memory.
    pub int64_atomics: bool,
    /// Subgroup operations.
    pub subgroup: bool,
    /// Timestamp queries around passes.
    pub timestamps: bool,
    /// Largest buffer, in bytes.
    pub max_buffer_bytes: u64,
    /// Largest storage binding that is used, in bytes: the adapter's limit, at most 1 GiB.
    pub max_binding_bytes: u64,
    /// Storage buffers that one shader may bind.
    pub max_storage_buffers: u32,
    /// Alignment of a storage binding's offset, in bytes.
    pub offset_alignment: u32,
    /// Workgroups in one dimension of a dispatch.
    pub max_workgroups_per_dimension: u32,
    /// Invocations in a workgroup, that any kernel may have.
    pub max_workgroup_invocations: u32,
    /// Workgroup memory, in bytes.
    pub workgroup_bytes: u32,
    /// Iterations that one invocation may do over all its loops.
    pub loop_budget: u32,
    /// Workgroups of 256 that fill the chip.
    pub reduce_workgroups: u32,
    /// Independent elements a thread should have in flight.
    pub unroll: u32,
    /// What the shader compiler checks.
    pub shader_checks: ShaderChecks,
    /// Device memory in bytes, where the backend tells.
    pub memory_bytes: Option<u64>,
    /// What the probe found.
    pub numerics: Numerics,
}

impl DeviceCaps {
    /// Capabilities like those of an H200 under Vulkan, for tests that need no device.
    pub fn for_tests() -> Self {
        DeviceCaps {
            name: "Test GPU".to_string(),
            backend: "vulkan".to_string(),
            driver: "test".to_string(),
            driver_info: "1.0".to_string(),
            vendor: 0x10de,
            device: 0x2335,
            device_type: AdapterKind::Discrete,
            int64: true,
            float64: true,
            int64_atomics: true,
            subgroup: true,
            timestamps: true,
            max_buffer_bytes: 4_292_870_144,
            max_binding_bytes: 1 << 30,
            max_storage_buffers: 524_288,
            offset_alignment: 32,
            max_workgroups_per_dimension: 65_535,
            max_workgroup_invocations: 1_024,
            workgroup_bytes: 49_152,
            loop_budget: u32::MAX,
            reduce_workgroups: 2_112,
            unroll: 4,
            shader_checks: ShaderChecks::default(),
            memory_bytes: Some(140 << 30),
            numerics: Numerics {
                int64_exact: true,
                float64_exact: true,
                float_contraction: true,
                float32_division_exact: false,
                float32_denormals: false,
            },
        }
    }
}
