//! Typed errors of the GPU layer and how they reach a DataFusion user.

use datafusion::error::DataFusionError;

/// Everything that can go wrong between a plan node and the device.
///
/// A `GpuError` travels inside [`DataFusionError::External`], so callers can get it back with
/// [`GpuError::find`]. Each message names what was wanted, the limit that was met, and, where there
/// is one, the option that changes it.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum GpuError {
    /// No usable adapter: none is installed, none matches `gpu.adapter`, or none has 64-bit integers.
    #[error("no usable GPU adapter: {0}")]
    NoAdapter(String),
    /// A reservation would exceed the device memory limit.
    #[error(
        "out of device memory: {consumer} needs {need} bytes, {used} of {limit} bytes are in use ({holders}); {advice}"
    )]
    OutOfDeviceMemory {
        /// Who asked, e.g. `GpuAggregateExec[0]`.
        consumer: String,
        /// Bytes asked for.
        need: u64,
        /// Bytes reserved at that moment, by everyone on this device.
        used: u64,
        /// The limit in force.
        limit: u64,
        /// The largest holders, as text.
        holders: String,
        /// What helps against it.
        advice: &'static str,
    },
    /// The driver refused an allocation although the ledger had room.
    #[error(
        "the driver refused {bytes} bytes of device memory for {consumer}: {message}; lower gpu.memory_limit"
    )]
    AllocationRefused {
        /// Who asked.
        consumer: String,
        /// Bytes asked for.
        bytes: u64,
        /// The driver's own words.
        message: String,
    },
    /// The device was lost; its buffers are gone. The next query gets a new device.
    #[error("the GPU device was lost: {0}")]
    DeviceLost(String),
    /// A shader did not compile or its pipeline was refused.
    #[error("the GPU driver or naga rejected the shader of {kernel}: {message}")]
    ShaderRejected {
        /// Name of the kernel.
        kernel: String,
        /// The compiler's words.
        message: String,
    },
    /// A submission or read-back failed.
    #[error("GPU work of {kernel} failed: {message}")]
    KernelFault {
        /// Name of the kernel or step.
        kernel: String,
        /// What happened.
        message: String,
    },
    /// A value does not fit the representation chosen for its column (e.g. a Decimal128 beyond its precision).
    #[error("column {column} holds a value outside its declared type {data_type}")]
    Representation {
        /// Column name.
        column: String,
        /// Declared Arrow type.
        data_type: String,
    },
    /// A device limit is too small for the work.
    #[error("{what} needs {need}, this adapter allows {limit}")]
    Limit {
        /// The limit's name.
        what: &'static str,
        /// What was needed.
        need: u64,
        /// What the adapter allows.
        limit: u64,
        /// Whether fewer rows at a time need less.
        by_rows: bool,
    },
    /// The answer needs a CPU fallback and `gpu.fallback = 'error'` forbids it.
    #[error("{node} would have to fall back to the CPU ({reason}) and gpu.fallback is 'error'")]
    FallbackForbidden {
        /// Plan node.
        node: String,
        /// Why.
        reason: String,
    },
    /// A broken invariant of this crate.
    #[error("internal error of datafusion-wgpu: {0}; please report it")]
    Internal(String),
}

impl GpuError {
    /// The `GpuError` inside a DataFusion error, if there is one.
    pub fn find(error: &DataFusionError) -> Option<&GpuError> {
        let mut source: Option<&(dyn std::error::Error + 'static)> = Some(error);
        while let Some(e) = source {
            if let Some(gpu) = e.downcast_ref::<GpuError>() {
                return Some(gpu);
            }
            if let Some(DataFusionError::Shared(inner)) = e.downcast_ref::<DataFusionError>() {
                return GpuError::find(inner);
            }
            source = e.source();
        }
        None
    }

    /// Short code of the variant, as counted in metrics and logs.
    pub fn code(&self) -> &'static str {
        match self {
            GpuError::NoAdapter(_) => "NoAdapter",
            GpuError::OutOfDeviceMemory { .. } => "OutOfDeviceMemory",
            GpuError::AllocationRefused { .. } => "AllocationRefused",
            GpuError::DeviceLost(_) => "DeviceLost",
            GpuError::ShaderRejected { .. } => "ShaderRejected",
            GpuError::KernelFault { .. } => "KernelFault",
            GpuError::Representation { .. } => "Representation",
            GpuError::Limit { .. } => "Limit",
            GpuError::FallbackForbidden { .. } => "FallbackForbidden",
            GpuError::Internal(_) => "Internal",
        }
    }
}

impl From<GpuError> for DataFusionError {
    fn from(error: GpuError) -> Self {
        DataFusionError::External(Box::new(error))
    }
}

/// Result of the GPU layer.
pub type GpuResult<T> = Result<T, GpuError>;
