//! Options of one run: settings of the session, withheld features of the adapter, and an injected failure.

use std::collections::BTreeMap;
use std::sync::Arc;

use datafusion::error::Result;
use datafusion::execution::memory_pool::{FairSpillPool, GreedyMemoryPool, MemoryPool};
use datafusion::execution::runtime_env::{RuntimeEnv, RuntimeEnvBuilder};
use datafusion::prelude::SessionConfig;
use datafusion_wgpu::GpuOptions;
use datafusion_wgpu::memory::DeviceCaps;
use datafusion_wgpu::memory::faults::{Choke, FaultPlan};

use super::rng::Rng;

/// A feature or limit of the adapter that the run does without.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Withheld {
    /// 64-bit atomics.
    Int64Atomics,
    /// Subgroup operations.
    Subgroups,
    /// 64-bit floats in shaders.
    Float64,
    /// Timestamp queries.
    Timestamps,
    /// All but so many storage buffers of a shader.
    StorageBuffers(u32),
    /// All but so many bytes of a binding.
    BindingBytes(u64),
    /// All but so many workgroups in a dimension of a dispatch.
    Workgroups(u32),
    /// All but so many loop iterations of an invocation.
    LoopBudget(u32),
}

impl Withheld {
    fn random(rng: &mut Rng) -> Self {
        match rng.below(8) {
            0 => Withheld::Int64Atomics,
            1 => Withheld::Subgroups,
            2 => Withheld::Float64,
            3 => Withheld::Timestamps,
            // 8 is what WebGPU promises.
            4 => Withheld::StorageBuffers(rng.choose(&[8, 10, 16, 31])),
            5 => Withheld::BindingBytes(rng.choose(&[4 << 10, 64 << 10, 1 << 20])),
            6 => Withheld::Workgroups(rng.choose(&[2, 3, 64])),
            _ => Withheld::LoopBudget(rng.choose(&[300, 1_000])),
        }
    }

    fn take_from(self, caps: &mut DeviceCaps) {
        match self {
            Withheld::Int64Atomics => caps.int64_atomics = false,
            Withheld::Subgroups => caps.subgroup = false,
            Withheld::Float64 => caps.float64 = false,
            Withheld::Timestamps => caps.timestamps = false,
            Withheld::StorageBuffers(most) => caps.max_storage_buffers = caps.max_storage_buffers.min(most),
            Withheld::BindingBytes(most) => caps.max_binding_bytes = caps.max_binding_bytes.min(most),
            Withheld::Workgroups(most) => {
                caps.max_workgroups_per_dimension = caps.max_workgroups_per_dimension.min(most);
            }
            Withheld::LoopBudget(most) => caps.loop_budget = caps.loop_budget.min(most),
        }
    }
}

/// Where a failure of the device is injected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultPoint {
    /// An allocation.
    Allocate,
    /// A submission.
    Submit,
    /// A read-back.
    Map,
    /// A compilation.
    Compile,
}

/// An injected failure: the `call`-th call at `point` fails, and the query must not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Fault {
    /// Where.
    pub point: FaultPoint,
    /// At which call, from 1.
    pub call: u64,
}

/// A limit of DataFusion's own memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pool {
    /// First come, first served.
    Greedy(usize),
    /// Even shares for what can spill.
    FairSpill(usize),
}

/// Options of one run.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct RunOptions {
    /// Settings, as SET takes them.
    pub settings: BTreeMap<String, String>,
    /// What the adapter does without.
    pub withheld: Vec<Withheld>,
    /// A failure to inject.
    pub fault: Option<Fault>,
    /// A limit of DataFusion's memory, for the forced run only.
    #[serde(default)]
    pub pool: Option<Pool>,
}

const PARTITIONS: &str = "datafusion.execution.target_partitions";
const SPILL_FILE: &str = "datafusion.execution.max_spill_file_size_bytes";
const BATCH_SIZE: &str = "datafusion.execution.batch_size";
const GPU_ROWS: &str = "gpu.batch_rows";

impl RunOptions {
    /// Random options for a run over about `rows` rows.
    pub fn random(rng: &mut Rng, rows: usize) -> Self {
        let mut options = RunOptions::default();
        let mut set = |key: &str, value: String| {
            options.settings.insert(key.to_string(), value);
        };
        set(PARTITIONS, rng.choose(&[1, 2, 3, 4, 8]).to_string());
        // Tiny batches over many rows take long without showing more.
        let least = 1 + rows / 200;
        set(BATCH_SIZE, rng.choose(&[least, least + 6, 64 + least, 1_000, 8_192, 8_192]).to_string());
        let gpu_rows = [least, least + 2, least + 32, 1_000, 8_192, 100_000, 524_288];
        set(GPU_ROWS, rng.choose(&gpu_rows).to_string());
        if rng.chance(15) {
            set("gpu.batch_bytes", rng.choose(&[64 * least, 4_096, 100_000]).to_string());
        }
        set("gpu.exchanges", rng.pick(&["collapse", "collapse", "keep"]).to_string());
        set("gpu.float_sum", rng.pick(&["exact", "exact", "exact", "exact", "exact", "cpu"]).to_string());
        set("gpu.fallback_scope", rng.pick(&["batch", "island"]).to_string());
        if rng.chance(20) {
            set(
                "gpu.memory_limit",
                rng.choose(&[1 << 10, 64 << 10, 192 << 10, 1 << 20, 16 << 20]).to_string(),
            );
        }
        for (key, value, percent) in [
            // Nearly all groups that may stay on the device do.
            ("gpu.merge_groups", "2", 40),
            ("datafusion.execution.parquet.pushdown_filters", "true", 30),
            ("datafusion.optimizer.prefer_hash_join", "false", 15),
            ("datafusion.optimizer.repartition_file_min_size", "1", 50),
            ("datafusion.execution.coalesce_batches", "false", 20),
            ("datafusion.optimizer.enable_round_robin_repartition", "false", 10),
        ] {
            if rng.chance(percent) {
                set(key, value.to_string());
            }
        }
        if rng.chance(35) {
            options.withheld = (0..rng.between(1, 2)).map(|_| Withheld::random(rng)).collect();
        }
        if rng.chance(12) {
            let points = [FaultPoint::Allocate, FaultPoint::Submit, FaultPoint::Map, FaultPoint::Compile];
            options.fault = Some(Fault { point: rng.choose(&points), call: rng.between(1, 6) as u64 });
        }
        if rng.chance(10) {
            let bytes = rng.choose(&[100 << 10, 1 << 20, 4 << 20, 32 << 20]);
            options.pool = Some(if rng.chance(50) { Pool::Greedy(bytes) } else { Pool::FairSpill(bytes) });
            // A repartition that spills into files of several batches can hang (apache/datafusion#24883).
            options.settings.insert(SPILL_FILE.to_string(), "1".to_string());
        }
        options
    }

    /// A runtime with the limit of memory.
    ///
    /// # Errors
    /// DataFusion's.
    pub fn runtime(&self) -> Result<Arc<RuntimeEnv>> {
        let pool: Arc<dyn MemoryPool> = match self.pool {
            None => return Ok(Arc::default()),
            Some(Pool::Greedy(bytes)) => Arc::new(GreedyMemoryPool::new(bytes)),
            Some(Pool::FairSpill(bytes)) => Arc::new(FairSpillPool::new(bytes)),
        };
        RuntimeEnvBuilder::new().with_memory_pool(pool).build_arc()
    }

    /// Partitions that DataFusion aims at.
    pub fn partitions(&self) -> usize {
        self.number(PARTITIONS, 4)
    }

    /// Rows of a batch.
    pub fn batch_size(&self) -> usize {
        self.number(BATCH_SIZE, 8_192)
    }

    /// A setting that is a number.
    pub fn number(&self, key: &str, default: usize) -> usize {
        self.settings.get(key).and_then(|text| text.parse().ok()).unwrap_or(default)
    }

    /// The same with other batches and partitions, and no GPU settings: for another verdict of the CPU.
    pub fn cpu(&self, partitions: usize, batch_size: usize) -> Self {
        let mut settings = self.settings.clone();
        settings.retain(|key, _| !key.starts_with("gpu."));
        settings.insert(PARTITIONS.to_string(), partitions.to_string());
        settings.insert(BATCH_SIZE.to_string(), batch_size.to_string());
        RunOptions { settings, ..RunOptions::default() }
    }

    /// The same without filters that operators pass to scans while they run: those compare floats without their NaNs, so
    /// answers over such depend on what was read first.
    pub fn without_dynamic_filters(mut self) -> Self {
        for kind in ["aggregate", "topk", "join"] {
            let key = format!("datafusion.optimizer.enable_{kind}_dynamic_filter_pushdown");
            self.settings.insert(key, "false".to_string());
        }
        self
    }

    /// The same with batches on the device that hold whole host batches; `None` where they did already. `rows` are those of
    /// all tables.
    pub fn with_whole_batches(&self, rows: usize) -> Option<Self> {
        let whole = self.batch_size().max(rows).max(8_192);
        let mut options = self.clone();
        let limits = ["gpu.batch_bytes", "gpu.memory_limit"];
        let limited = limits.into_iter().filter(|key| options.settings.remove(*key).is_some()).count() > 0;
        if !limited && self.number(GPU_ROWS, whole) >= whole {
            return None;
        }
        options.settings.insert(GPU_ROWS.to_string(), whole.to_string());
        Some(options)
    }

    /// The same within the memory that `other` has.
    pub fn within(mut self, other: &RunOptions) -> Self {
        self.pool = other.pool;
        self
    }

    /// Statements that set the options; those of the adapter are not among them.
    pub fn statements(&self) -> Vec<String> {
        self.settings.iter().map(|(key, value)| format!("SET {key} = '{value}'")).collect()
    }

    /// A configuration with these options; unless `forced`, one that knows nothing of this crate.
    ///
    /// # Errors
    /// An unknown option or value.
    pub fn config(&self, forced: bool, adapter: &str) -> Result<SessionConfig> {
        let mut config = SessionConfig::new();
        if forced {
            config = config.with_option_extension(GpuOptions::default());
            let options = config.options_mut();
            options.set("gpu.placement", "force")?;
            options.set("gpu.allow_software_adapter", "true")?;
            options.set("gpu.fallback", "silent")?;
            options.set("gpu.adapter", adapter)?;
        }
        for (key, value) in self.settings.iter().filter(|(key, _)| forced || !key.starts_with("gpu.")) {
            config.options_mut().set(key, value)?;
        }
        Ok(config)
    }

    /// Capabilities without what is withheld.
    pub fn lower(&self, caps: &DeviceCaps) -> DeviceCaps {
        let mut caps = caps.clone();
        self.withheld.iter().for_each(|withheld| withheld.take_from(&mut caps));
        caps
    }

    /// Orders the failure that is to be injected.
    pub fn arm(&self, faults: &FaultPlan) {
        if let Some(fault) = self.fault {
            let point = match fault.point {
                FaultPoint::Allocate => Choke::Allocate,
                FaultPoint::Submit => Choke::Submit,
                FaultPoint::Map => Choke::Map,
                FaultPoint::Compile => Choke::Compile,
            };
            faults.fail(point, fault.call);
        }
    }
}
