//! The adapter's read bandwidth, measured by a sum over columns that are on the device already.

use std::sync::Arc;
use std::time::Duration;

use datafusion::arrow::array::{ArrayRef, Int64Array, RecordBatch};
use datafusion::datasource::MemTable;
use datafusion::error::Result;
use datafusion::prelude::{SessionConfig, SessionContext};
use datafusion_wgpu::memory::AdapterKind;
use datafusion_wgpu::physical_plan::aggregate::ResidentAggregate;
use datafusion_wgpu::{GpuOptions, GpuRuntime, Placement, register_gpu_runtime};
use serde::Serialize;

use super::machine::open;

/// Rows of a batch.
const BATCH_ROWS: usize = 1 << 16;
/// Launches in one submission, so that the device's clocks are those of work; and submissions.
const REPEATS: u32 = 10;
const SUBMISSIONS: usize = 10;

/// A read bandwidth.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Bandwidth {
    /// Gigabytes (10^9) a second.
    pub gb_s: f64,
    /// `given` by a flag, measured by the device's `timestamps`, or as `wall` time.
    pub how: &'static str,
}

impl Bandwidth {
    pub fn given(gb_s: f64) -> Bandwidth {
        Bandwidth { gb_s, how: "given" }
    }
}

/// Sums two columns of 64-bit integers, larger than the caches of a GPU, and takes the fastest of some launches. The device is opened for
/// this and closed again, so that it holds no memory while queries are measured.
///
/// # Errors
/// Those of the device.
pub async fn measure(config: &SessionConfig) -> Result<Bandwidth> {
    let runtime = GpuRuntime::new();
    let caps = Arc::clone(open(&runtime, config).await?.caps());
    let rows: usize = if caps.device_type == AdapterKind::Software { 1 << 20 } else { 1 << 25 };
    let mut options = GpuOptions::from_config(config.options());
    options.placement = Placement::Force;
    let ctx = SessionContext::new_with_config(config.clone().with_option_extension(options));
    register_gpu_runtime(&ctx, runtime)?;
    ctx.register_table("resident", Arc::new(table(rows)?))?;
    let plan = ctx.sql("SELECT sum(a), sum(b) FROM resident").await?.create_physical_plan().await?;
    let resident = ResidentAggregate::load(&plan, &ctx.task_ctx()).await?;
    let (mut kernel, mut wall) = (Duration::MAX, Duration::MAX);
    for _ in 0..SUBMISSIONS {
        let run = resident.launch(REPEATS).await?;
        kernel = kernel.min(run.kernel);
        wall = wall.min(run.wall);
    }
    let (time, how) = if kernel.is_zero() { (wall, "wall") } else { (kernel, "timestamps") };
    Ok(Bandwidth { gb_s: resident.bytes() as f64 / time.as_secs_f64() / 1e9, how })
}

fn table(rows: usize) -> Result<MemTable> {
    let column = |factor: i64| -> ArrayRef {
        Arc::new(Int64Array::from_iter_values((0..BATCH_ROWS as i64).map(|row| row.wrapping_mul(factor))))
    };
    let batch = RecordBatch::try_from_iter([("a", column(7_919)), ("b", column(-104_729))])?;
    // The same batch again and again: it is copied to the device each time.
    MemTable::try_new(batch.schema(), vec![vec![batch; rows / BATCH_ROWS]])
}
