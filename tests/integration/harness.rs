//! Sessions, tables and checks that the tests share.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use datafusion::arrow::array::{
    ArrayRef, Date32Array, Decimal128Array, Float64Array, Int32Array, Int64Array, RecordBatch, StringArray,
};
use datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::execution::memory_pool::GreedyMemoryPool;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::parquet::arrow::ArrowWriter;
use datafusion::parquet::file::properties::WriterProperties;
use datafusion::physical_plan::{ExecutionPlan, collect, displayable};
use datafusion::prelude::{ParquetReadOptions, SessionConfig, SessionContext};
use datafusion_wgpu::memory::{AdapterSelector, DeviceCaps, GpuDevice, GpuRuntime};
use datafusion_wgpu::register_gpu_runtime;

pub type TestResult<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

/// A session with the rule forced, over a runtime of its own: its device can be broken without disturbing other tests.
pub struct Gpu {
    pub ctx: SessionContext,
    pub runtime: Arc<GpuRuntime>,
    pub device: Arc<GpuDevice>,
}

/// What a query did.
#[derive(Debug)]
pub struct Ran {
    /// Cells as text, a row a string, sorted.
    pub rows: Vec<String>,
    /// Names of the Gpu nodes.
    pub nodes: Vec<String>,
    /// Batches that the device answered.
    pub gpu_batches: usize,
    /// Batches or islands that the CPU answered.
    pub cpu_batches: usize,
    /// Batches that were worked on in halves, and again as they were.
    pub splits: usize,
    pub retries: usize,
    /// Fallback metrics, `code=count`.
    pub fallbacks: Vec<(String, usize)>,
    pub plan: String,
}

impl Gpu {
    pub async fn new(partitions: usize) -> TestResult<Self> {
        Self::over(GpuRuntime::new(), partitions).await
    }

    /// The same with guard bands around what kernels write: `gpu.device.guards()` checks them.
    pub async fn guarded(partitions: usize) -> TestResult<Self> {
        let device = GpuRuntime::new().select(&any_adapter())?;
        Self::over(GpuRuntime::over(device.with_guards()), partitions).await
    }

    /// The same over an adapter that can do less.
    pub async fn lowered(partitions: usize, lower: impl FnOnce(&mut DeviceCaps)) -> TestResult<Self> {
        let device = GpuRuntime::new().select(&any_adapter())?;
        let mut caps = device.caps().as_ref().clone();
        lower(&mut caps);
        Self::over(GpuRuntime::over(device.with_caps(caps)), partitions).await
    }

    /// The same in a session whose memory pool has so many bytes.
    pub async fn within(partitions: usize, bytes: usize) -> TestResult<Self> {
        let pool = Arc::new(GreedyMemoryPool::new(bytes));
        let env = RuntimeEnvBuilder::new().with_memory_pool(pool).build_arc()?;
        let config = SessionConfig::new().with_target_partitions(partitions);
        Self::with(GpuRuntime::new(), SessionContext::new_with_config_rt(config, env)).await
    }

    async fn over(runtime: Arc<GpuRuntime>, partitions: usize) -> TestResult<Self> {
        Self::with(runtime, cpu(partitions)).await
    }

    async fn with(runtime: Arc<GpuRuntime>, ctx: SessionContext) -> TestResult<Self> {
        let device = runtime.select(&any_adapter())?;
        register_gpu_runtime(&ctx, Arc::clone(&runtime))?;
        let gpu = Gpu { ctx, runtime, device };
        for (option, value) in [
            ("allow_software_adapter", "true"),
            ("placement", "'force'"),
            ("batch_rows", "3000"),
            ("fallback", "'silent'"),
        ] {
            gpu.set(option, value).await?;
        }
        Ok(gpu)
    }

    pub async fn set(&self, option: &str, value: &str) -> TestResult {
        self.ctx.sql(&format!("SET gpu.{option} = {value}")).await?.collect().await?;
        Ok(())
    }

    pub async fn run(&self, sql: &str) -> TestResult<Ran> {
        run(&self.ctx, sql).await
    }

    /// Waits until nothing is held and nothing runs on the device: tasks may end a little after their query, and staging
    /// memory is held until its copies are done.
    pub async fn settled(&self) -> TestResult {
        let ledger = self.device.ledger();
        let settled = async {
            while ledger.reserved() > 0 || ledger.works() != (0, 0) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let waited = tokio::time::timeout(Duration::from_secs(60), settled).await;
        Ok(waited.map_err(|_| format!("still on the device: {}, {:?}", ledger.report(), ledger.works()))?)
    }

    /// Bytes reserved on the device.
    pub fn reserved(&self) -> u64 {
        self.device.ledger().reserved()
    }
}

fn any_adapter() -> AdapterSelector {
    AdapterSelector { adapter: String::new(), allow_software: true }
}

/// A session without the GPU.
pub fn cpu(partitions: usize) -> SessionContext {
    let config = SessionConfig::new()
        .with_target_partitions(partitions)
        .with_batch_size(1000)
        .set_usize("datafusion.optimizer.repartition_file_min_size", 1);
    SessionContext::new_with_config(config)
}

pub async fn run(ctx: &SessionContext, sql: &str) -> TestResult<Ran> {
    let plan = ctx.sql(sql).await?.create_physical_plan().await?;
    run_plan(ctx, plan).await
}

pub async fn run_plan(ctx: &SessionContext, plan: Arc<dyn ExecutionPlan>) -> TestResult<Ran> {
    let batches = collect(Arc::clone(&plan), ctx.task_ctx()).await?;
    let mut ran = Ran {
        rows: rows(&batches)?,
        nodes: vec![],
        gpu_batches: 0,
        cpu_batches: 0,
        splits: 0,
        retries: 0,
        fallbacks: vec![],
        plan: displayable(plan.as_ref()).indent(false).to_string(),
    };
    visit(&plan, &mut ran);
    Ok(ran)
}

fn visit(plan: &Arc<dyn ExecutionPlan>, ran: &mut Ran) {
    if plan.name().starts_with("Gpu") {
        ran.nodes.push(plan.name().to_string());
        if let Some(metrics) = plan.metrics() {
            let count = |name: &str| metrics.sum_by_name(name).map_or(0, |value| value.as_usize());
            ran.gpu_batches += count("gpu_batches");
            ran.cpu_batches += count("cpu_batches");
            ran.splits += count("batch_splits");
            ran.retries += count("batch_retries");
            for metric in metrics.iter() {
                let name = metric.value().name();
                if let Some(code) = name.strip_prefix("fallback.") {
                    ran.fallbacks.push((code.to_string(), metric.value().as_usize()));
                }
            }
        }
    }
    for child in plan.children() {
        visit(child, ran);
    }
}

/// Every row as text, sorted: row order is not compared.
pub fn rows(batches: &[RecordBatch]) -> TestResult<Vec<String>> {
    let options = FormatOptions::default().with_null("NULL");
    let mut rows = vec![];
    for batch in batches {
        let columns = batch
            .columns()
            .iter()
            .map(|c| ArrayFormatter::try_new(c, &options))
            .collect::<Result<Vec<_>, _>>()?;
        for row in 0..batch.num_rows() {
            let cells: Vec<String> = columns.iter().map(|c| c.value(row).to_string()).collect();
            rows.push(cells.join("|"));
        }
    }
    rows.sort();
    Ok(rows)
}

/// `rows` rows: id int64, v int64 (id scrambled), k int32 with NULLs, d decimal(15,2), f float64, day date32, s string.
pub fn table(from: i64, rows: i64) -> TestResult<RecordBatch> {
    let ids = || from..from + rows;
    let scramble = |id: i64| (id.wrapping_mul(7_919) + 13) % 100_003;
    let d = Decimal128Array::from_iter_values(ids().map(|id| i128::from(scramble(id) * 100 + id % 100)));
    let columns: Vec<(&str, ArrayRef, bool)> = vec![
        ("id", Arc::new(Int64Array::from_iter_values(ids())), false),
        ("v", Arc::new(Int64Array::from_iter_values(ids().map(scramble))), false),
        (
            "k",
            Arc::new(Int32Array::from_iter(ids().map(|id| (id % 7 != 3).then_some((id % 1000) as i32)))),
            true,
        ),
        ("d", Arc::new(d.with_precision_and_scale(15, 2)?), false),
        (
            "f",
            Arc::new(Float64Array::from_iter(ids().map(|id| (id % 5 != 0).then_some(id as f64 / 8.0)))),
            true,
        ),
        ("day", Arc::new(Date32Array::from_iter_values(ids().map(|id| (id % 3650) as i32))), false),
        ("s", Arc::new(StringArray::from_iter_values(ids().map(|id| format!("name {}", id % 97)))), false),
    ];
    Ok(RecordBatch::try_from_iter_with_nullable(columns)?)
}

/// Writes `files` Parquet files of `rows` rows each, in row groups of 2,000 rows.
pub fn write_files(dir: &Path, files: i64, rows: i64) -> TestResult {
    for file in 0..files {
        let batch = table(file * rows, rows)?;
        let properties = WriterProperties::builder().set_max_row_group_row_count(Some(2000)).build();
        let out = std::fs::File::create(dir.join(format!("part-{file}.parquet")))?;
        let mut writer = ArrowWriter::try_new(out, batch.schema(), Some(properties))?;
        writer.write(&batch)?;
        writer.close()?;
    }
    Ok(())
}

pub async fn register_files(ctx: &SessionContext, name: &str, dir: &Path) -> TestResult {
    ctx.register_parquet(name, dir.to_string_lossy(), ParquetReadOptions::default()).await?;
    Ok(())
}

/// The rows of `sql` by DataFusion alone.
pub async fn expected(dir: &Path, sql: &str) -> TestResult<Vec<String>> {
    let ctx = cpu(4);
    register_files(&ctx, "t", dir).await?;
    Ok(run(&ctx, sql).await?.rows)
}
