//! What the jobs of a soak run do: queries whose answers are known.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::Arc;
use std::time::{Duration, Instant};

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::row::{RowConverter, SortField};
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::{ExecutionPlan, execute_stream};
use datafusion::prelude::{SessionConfig, SessionContext};
use datafusion_wgpu::config::{FallbackPolicy, MemoryLimit, Placement};
use datafusion_wgpu::memory::{GpuDevice, GpuRuntime};
use datafusion_wgpu::{GpuOptions, register_gpu_runtime};
use futures::StreamExt;
use parking_lot::Mutex;

use crate::error::problem;
use crate::fuzz::rng::Rng;

use super::Args;
use super::operators::{OPERATORS, Operator};
use super::tables::Tables;

/// More queries: CPU operators that drive GPU operators in different ways.
const QUERIES: [&str; 10] = [
    "SELECT count(*), sum(v), min(d), max(f), avg(id), sum(d * d) FILTER (WHERE k > 500) FROM t WHERE v > 20000",
    "SELECT min(day), max(day), count(k), sum(v * 3) FROM t",
    "SELECT k, count(*), sum(w) FROM (SELECT k, v + 1 AS w FROM t WHERE v < 60000) GROUP BY k",
    "SELECT id, v FROM t WHERE v > 1000 ORDER BY v, id LIMIT 20",
    "SELECT count(*) FROM t a JOIN t b ON a.id = b.v WHERE a.k < 3 AND b.day > DATE '1970-02-01'",
    "SELECT id FROM t WHERE v > (SELECT avg(v) FROM t WHERE k < 10) AND id < 150000",
    "SELECT sum(x) FROM (SELECT v AS x FROM t WHERE k = 5 UNION ALL SELECT id FROM t WHERE k = 6)",
    "SELECT id, rank() OVER (PARTITION BY k ORDER BY v, id) AS r FROM t WHERE v < 3000",
    "SELECT count(*) FROM t WHERE s LIKE '%7' AND id < 5000",
    // Raises.
    "SELECT sum(d * d * d * d * d) FROM t WHERE v > 10",
];

/// All queries. Their answers do not depend on the order of rows.
fn queries() -> Vec<&'static str> {
    OPERATORS.iter().map(|operator| operator.sql).chain(QUERIES).collect()
}

/// Rows of a result and the sum of their hashes, or the text of the error without the value that it names: which of several
/// rows raises first is not determined.
type Answer = std::result::Result<(usize, u64), String>;

/// The tables that all sessions read, and the right answers.
pub struct Known {
    tables: Tables,
    queries: Vec<(&'static str, Answer)>,
}

impl Known {
    /// Makes the rows, and asks DataFusion alone for the answers.
    pub async fn new(rows: u32) -> Result<Self> {
        let tables = Tables::new(rows).await?;
        let ctx = SessionContext::new();
        tables.register(&ctx)?;
        let mut queries = vec![];
        for sql in self::queries() {
            queries.push((sql, answer(&ctx, sql).await));
        }
        Ok(Self { tables, queries })
    }
}

async fn answer(ctx: &SessionContext, sql: &str) -> Answer {
    let run = async {
        let plan = ctx.sql(sql).await?.create_physical_plan().await?;
        fingerprint(execute_stream(plan, ctx.task_ctx())?, None).await
    };
    run.await.map_err(|error| text(&error))
}

fn text(error: &DataFusionError) -> String {
    error.to_string().replace(|c: char| c.is_ascii_digit() || c == '-', "")
}

/// Rows and the sum of their hashes; with `pause`, rows are taken slowly.
async fn fingerprint(mut stream: SendableRecordBatchStream, pause: Option<Duration>) -> Result<(usize, u64)> {
    let fields =
        stream.schema().fields().iter().map(|field| SortField::new(field.data_type().clone())).collect();
    let converter = RowConverter::new(fields)?;
    let (mut rows, mut sum) = (0, 0u64);
    while let Some(batch) = stream.next().await {
        let batch: RecordBatch = batch?;
        rows += batch.num_rows();
        let hasher = BuildHasherDefault::<DefaultHasher>::default();
        for row in &converter.convert_columns(batch.columns())? {
            sum = sum.wrapping_add(hasher.hash_one(row.as_ref()));
        }
        if let Some(pause) = pause {
            tokio::time::sleep(pause).await;
        }
    }
    Ok((rows, sum))
}

/// What all jobs use.
pub struct Shared {
    /// The device; its ledger is that of all queries.
    pub device: Arc<GpuDevice>,
    /// Failures and losses that were ordered.
    pub injected: Mutex<(u64, u64)>,
    sessions: Vec<SessionContext>,
    known: Known,
}

impl Shared {
    /// Sessions over one device and the same tables.
    pub fn new(args: &Args, device: &Arc<GpuDevice>, known: Known) -> Result<Self> {
        let runtime = GpuRuntime::over(Arc::clone(device));
        let mut sessions = vec![];
        for number in 0..args.sessions {
            let mut options = GpuOptions::default();
            options.placement = Placement::Force;
            options.allow_software_adapter = true;
            options.adapter.clone_from(&args.adapter);
            options.fallback = FallbackPolicy::Silent;
            options.memory_limit = MemoryLimit::Bytes(args.memory_limit);
            options.batch_rows = [16_384, 50_000, 262_144][number as usize % 3];
            // Groups stay on the device where there are many, wherever they may, and never.
            options.merge_groups = [16_384, 1, 0][number as usize / 3 % 3];
            let config = SessionConfig::new()
                .with_target_partitions(1 + number as usize % 4)
                .with_option_extension(options);
            let ctx = SessionContext::new_with_config(config);
            register_gpu_runtime(&ctx, Arc::clone(&runtime))?;
            known.tables.register(&ctx)?;
            sessions.push(ctx);
        }
        Ok(Self { device: Arc::clone(device), injected: Mutex::default(), sessions, known })
    }
}

impl Shared {
    /// Checks that the plan of each operator's query has its node.
    pub async fn check_plans(&self) -> Result<()> {
        let Some(ctx) = self.sessions.first() else { return Ok(()) };
        for Operator { node, sql, .. } in OPERATORS {
            let plan = ctx.sql(sql).await?.create_physical_plan().await?;
            if !has_node(&plan, node) {
                return Err(problem(format!("there is no {node} in the plan of {sql}")));
            }
        }
        Ok(())
    }
}

fn has_node(plan: &Arc<dyn ExecutionPlan>, node: &str) -> bool {
    plan.name() == node || plan.children().into_iter().any(|child| has_node(child, node))
}

/// What a job did.
#[derive(Debug, Default)]
pub struct Done {
    /// Queries that ended by themselves.
    pub queries: u64,
    /// Queries that were cancelled.
    pub cancelled: u64,
    /// The longest query that was not slowed down.
    pub longest: Duration,
    /// Batches that the device answered.
    pub gpu_batches: u64,
    /// Those that the CPU answered.
    pub cpu_batches: u64,
    /// Batches that were worked on in halves.
    pub splits: u64,
    /// Fallbacks by reason.
    pub fallbacks: BTreeMap<String, u64>,
    /// Wrong answers.
    pub wrong: Vec<String>,
}

/// One of the queries at a time.
pub struct Job {
    shared: Arc<Shared>,
    rng: Rng,
    cancel: u32,
    done: Done,
}

impl Job {
    /// Job `number`.
    pub fn new(shared: Arc<Shared>, number: u32, args: &Args) -> Self {
        Self {
            shared,
            rng: Rng::new(args.seed, u64::from(number)),
            cancel: args.cancel,
            done: Done::default(),
        }
    }

    /// One query after the other until `end`.
    pub async fn run(mut self, end: Instant) -> Done {
        while Instant::now() < end {
            if let Err(error) = self.query().await {
                self.done.wrong.push(error.to_string());
            }
        }
        self.done
    }

    async fn query(&mut self) -> Result<()> {
        let number = self.rng.below(self.shared.known.queries.len());
        let (sql, want) = self.shared.known.queries[number].clone();
        let ctx = self.shared.sessions[self.rng.below(self.shared.sessions.len())].clone();
        let cancel =
            self.rng.chance(self.cancel).then(|| Duration::from_micros(self.rng.below(60_000) as u64));
        let pause = self.rng.chance(5).then(|| Duration::from_millis(5));
        let start = Instant::now();
        let plan = ctx.sql(sql).await?.create_physical_plan().await?;
        let run = async { fingerprint(execute_stream(Arc::clone(&plan), ctx.task_ctx())?, pause).await };
        let got = match cancel {
            Some(time) => match tokio::time::timeout(time, run).await {
                Ok(got) => got,
                Err(_) => {
                    self.done.cancelled += 1;
                    return Ok(());
                }
            },
            None => run.await,
        };
        self.done.queries += 1;
        if pause.is_none() {
            self.done.longest = self.done.longest.max(start.elapsed());
        }
        self.add_plan(&plan);
        let got = got.map_err(|error| text(&error));
        if got != want {
            self.done.wrong.push(format!("{sql}\n  want {want:?}\n  got  {got:?}"));
        }
        Ok(())
    }

    fn add_plan(&mut self, plan: &Arc<dyn ExecutionPlan>) {
        if plan.name().starts_with("Gpu") {
            for metric in plan.metrics().unwrap_or_default().iter() {
                let (name, count) = (metric.value().name(), metric.value().as_usize() as u64);
                match name {
                    "gpu_batches" => self.done.gpu_batches += count,
                    "cpu_batches" => self.done.cpu_batches += count,
                    "batch_splits" => self.done.splits += count,
                    _ => {
                        if let Some(code) = name.strip_prefix("fallback.") {
                            *self.done.fallbacks.entry(code.to_owned()).or_default() += count;
                        }
                    }
                }
            }
        }
        for child in plan.children() {
            self.add_plan(child);
        }
    }
}
