//! Runs one query once: on the CPU, or forced onto a view of the device.

use std::any::Any;
use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use datafusion::common::runtime::SpawnedTask;
use datafusion::common::{DataFusionError, exec_err};
use datafusion::error::Result;
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, displayable, execute_stream};
use datafusion::prelude::SessionContext;
use datafusion_wgpu::memory::{AdapterSelector, GpuDevice, GpuRuntime};
use datafusion_wgpu::{placement_report, register_gpu_runtime};
use futures::{FutureExt, StreamExt};

use super::compare::Answer;
use super::data::Stored;
use super::options::RunOptions;
use super::watchdog::{NUMBER, Running, Watchdog};

/// Results larger than this are not compared: such a query is counted as of no use.
const MOST_ROWS: usize = 100_000;
/// How long the device's ledger may take to come back to zero after a query.
const LEDGER_PATIENCE: Duration = Duration::from_secs(5);

/// How a run ended.
#[derive(Debug, Clone)]
pub enum Verdict {
    /// With rows.
    Rows(Answer),
    /// With an error.
    Error(String),
    /// With a panic.
    Panic(String),
    /// Not within the time allowed.
    Hang,
    /// With more rows than are compared.
    TooLarge,
}

/// What a run did.
#[derive(Debug, Clone)]
pub struct Run {
    /// How it ended.
    pub verdict: Verdict,
    /// What its GPU nodes did.
    pub gpu: GpuWork,
    /// The plan as it was made; empty where there was none.
    pub plan: String,
}

impl Run {
    fn of_error(error: &DataFusionError) -> Self {
        Run { verdict: Verdict::Error(error.to_string()), gpu: GpuWork::default(), plan: String::new() }
    }
}

/// What the GPU nodes of runs did.
#[derive(Debug, Clone, Default)]
pub struct GpuWork {
    /// Nodes by name.
    pub nodes: BTreeMap<String, u64>,
    /// Uploads, or islands, that the device answered.
    pub gpu_batches: u64,
    /// Those that the CPU answered.
    pub cpu_batches: u64,
    /// Fallbacks by reason.
    pub fallbacks: BTreeMap<String, u64>,
    /// Most partitions that a node of the plan has.
    pub partitions: usize,
    /// Aggregates that stayed on the CPU.
    pub cpu_aggregates: u64,
    /// Bytes that were still reserved on the device after the run.
    pub leaked: u64,
}

/// What runs queries.
#[derive(Debug)]
pub struct Engine {
    device: Arc<GpuDevice>,
    adapter: String,
    timeout: Duration,
    watchdog: Watchdog,
}

impl Engine {
    /// An engine on the adapter that `gpu.adapter` would name.
    ///
    /// # Errors
    /// No such adapter.
    pub fn new(adapter: &str, timeout: Duration) -> Result<Self> {
        let selector = AdapterSelector { adapter: adapter.to_string(), allow_software: true };
        let device = GpuRuntime::new().select(&selector)?;
        let watchdog = Watchdog::guard(timeout + Duration::from_secs(60));
        Ok(Engine { device, adapter: adapter.to_string(), timeout, watchdog })
    }

    /// Name of the adapter.
    pub fn adapter(&self) -> &str {
        &self.device.caps().name
    }

    /// How long a query may take.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Runs a query on the CPU.
    pub async fn cpu(&self, stored: &Stored, sql: &str, options: &RunOptions) -> Verdict {
        match self.session(stored, options, None) {
            Ok(context) => self.run(context, sql, options, self.timeout).await.verdict,
            Err(error) => Verdict::Error(error.to_string()),
        }
    }

    /// The plan that DataFusion makes of a query without this crate, under the same options.
    pub async fn cpu_plan(&self, stored: &Stored, sql: &str, options: &RunOptions) -> Result<String> {
        let context = self.session(stored, options, None)?;
        let plan = unpanicked(async { context.sql(sql).await?.create_physical_plan().await }).await?;
        Ok(text_of(&plan))
    }

    /// The query as DataFusion's optimizer leaves it: with its casts, and with filters that became one.
    pub async fn optimized(&self, stored: &Stored, sql: &str, options: &RunOptions) -> Result<LogicalPlan> {
        let context = self.session(stored, options, None)?;
        unpanicked(async { context.sql(sql).await?.into_optimized_plan() }).await
    }

    /// Runs a query with the rule forced.
    pub async fn forced(&self, stored: &Stored, sql: &str, options: &RunOptions) -> Run {
        self.forced_within(stored, sql, options, self.timeout).await
    }

    /// The same for a query that may take as long as `limit`.
    pub async fn forced_within(
        &self,
        stored: &Stored,
        sql: &str,
        options: &RunOptions,
        limit: Duration,
    ) -> Run {
        let view = self.device.with_caps(options.lower(self.device.caps()));
        options.arm(view.faults());
        let mut run = match self.session(stored, options, Some(&view)) {
            Ok(context) => self.run(context, sql, options, limit).await,
            Err(error) => Run::of_error(&error),
        };
        if !matches!(run.verdict, Verdict::Hang) {
            run.gpu.leaked = settled(&view).await;
        }
        run
    }

    /// Codes of the reasons for which nodes of the query's plan stay on the CPU, each with the node's name.
    pub async fn declined(&self, stored: &Stored, sql: &str, options: &RunOptions) -> Vec<String> {
        let view = self.device.with_caps(options.lower(self.device.caps()));
        let Ok(context) = self.session(stored, options, Some(&view)) else { return vec![] };
        let Ok(report) = unpanicked(placement_report(&context, sql)).await else { return vec![] };
        let nodes = report.nodes.iter();
        nodes
            .flat_map(|node| node.reasons.iter().map(|reason| format!("{} {}", node.cpu_name, reason.code())))
            .collect()
    }

    /// A session over the tables; with a view of the device, the crate is registered and the rule forced.
    fn session(
        &self,
        stored: &Stored,
        options: &RunOptions,
        view: Option<&Arc<GpuDevice>>,
    ) -> Result<SessionContext> {
        let config = options.config(view.is_some(), &self.adapter)?;
        let context = SessionContext::new_with_config_rt(config, options.runtime()?);
        // The oracle is DataFusion without this crate.
        if let Some(view) = view {
            register_gpu_runtime(&context, GpuRuntime::over(Arc::clone(view)))?;
        }
        for (name, table) in &stored.tables {
            context.register_table(name.as_str(), Arc::clone(table))?;
        }
        Ok(context)
    }

    /// What is to be done before the process ends because all of its threads are blocked; it gets the running queries.
    pub fn on_deadlock(&self, act: impl Fn(&[Running]) + Send + 'static) {
        self.watchdog.on_deadlock(act);
    }

    async fn run(&self, context: SessionContext, sql: &str, options: &RunOptions, limit: Duration) -> Run {
        let (seed, number) = NUMBER.try_with(|number| *number).unwrap_or_default();
        let running = Running { seed, number, sql: sql.to_string(), options: options.clone() };
        let sql = sql.to_string();
        // A task of its own, so that neither a panic nor a loop without a wait takes the fuzzer along.
        let planned = Arc::new(OnceLock::new());
        let inside = Arc::clone(&planned);
        let task = SpawnedTask::spawn(async move { answer(&context, &sql, &inside).await });
        let verdict = match self.watchdog.wait(running, task, limit).await {
            Some(Ok(verdict)) => verdict,
            Some(Err(error)) => panicked(error),
            None => Verdict::Hang,
        };
        let mut gpu = GpuWork::default();
        let mut text = String::new();
        if let Some((plan, as_made)) = planned.get() {
            gpu.add_plan(plan);
            text.clone_from(as_made);
        }
        Run { verdict, gpu, plan: text }
    }
}

fn panicked(error: tokio::task::JoinError) -> Verdict {
    Verdict::Panic(match error.try_into_panic() {
        Ok(payload) => panic_text(payload.as_ref()),
        Err(error) => error.to_string(),
    })
}

fn panic_text(payload: &(dyn Any + Send)) -> String {
    match (payload.downcast_ref::<String>(), payload.downcast_ref::<&str>()) {
        (Some(text), _) => text.clone(),
        (_, Some(text)) => (*text).to_string(),
        _ => "a panic without a text".to_string(),
    }
}

/// The outcome of planning, in which DataFusion computes with constants and may panic as it does over rows.
async fn unpanicked<T>(planning: impl Future<Output = Result<T>>) -> Result<T> {
    AssertUnwindSafe(planning)
        .catch_unwind()
        .await
        .unwrap_or_else(|payload| exec_err!("a panic: {}", panic_text(payload.as_ref())))
}

/// A plan, and its text, as soon as it is made, so that it is known for a query that does not end as well.
type Planned = OnceLock<(Arc<dyn ExecutionPlan>, String)>;

/// A plan in words; dynamic filters change while it runs.
fn text_of(plan: &Arc<dyn ExecutionPlan>) -> String {
    displayable(plan.as_ref()).indent(true).to_string()
}

/// Runs the query; its streams are gone afterwards.
async fn answer(context: &SessionContext, sql: &str, planned: &Planned) -> Verdict {
    match rows(context, sql, planned).await {
        Ok(Some(answer)) => Verdict::Rows(answer),
        Ok(None) => Verdict::TooLarge,
        Err(error) => Verdict::Error(error.to_string()),
    }
}

async fn rows(
    context: &SessionContext,
    sql: &str,
    planned: &Planned,
) -> Result<Option<Answer>, DataFusionError> {
    let plan = context.sql(sql).await?.create_physical_plan().await?;
    let text = text_of(&plan);
    let (plan, _) = planned.get_or_init(|| (plan, text));
    let mut stream = execute_stream(Arc::clone(plan), context.task_ctx())?;
    let mut answer = Answer { schema: plan.schema(), batches: vec![] };
    let mut rows = 0;
    let mut outcome = Ok(true);
    while let Some(batch) = stream.next().await {
        match batch {
            Ok(batch) => {
                rows += batch.num_rows();
                answer.batches.push(batch);
            }
            Err(error) => {
                outcome = Err(error);
                break;
            }
        }
        if rows > MOST_ROWS {
            outcome = Ok(false);
            break;
        }
    }
    drop(stream);
    outcome.map(|complete| complete.then_some(answer))
}

/// Bytes reserved on the device once its streams had time to end.
async fn settled(device: &GpuDevice) -> u64 {
    let start = Instant::now();
    loop {
        let reserved = device.ledger().reserved();
        if reserved == 0 || start.elapsed() > LEDGER_PATIENCE {
            return reserved;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

impl GpuWork {
    /// Whether the device did all that its nodes had to do, and all aggregates are among them.
    pub fn is_whole(&self) -> bool {
        !self.nodes.is_empty()
            && self.cpu_batches == 0
            && self.fallbacks.values().all(|count| *count == 0)
            && self.cpu_aggregates == 0
    }

    fn add_plan(&mut self, plan: &Arc<dyn ExecutionPlan>) {
        if plan.name().starts_with("Gpu") {
            *self.nodes.entry(plan.name().to_string()).or_default() += 1;
            let metrics = plan.metrics().unwrap_or_default();
            for metric in metrics.iter() {
                let value = metric.value();
                let count = value.as_usize() as u64;
                match value.name() {
                    "gpu_batches" => self.gpu_batches += count,
                    "cpu_batches" => self.cpu_batches += count,
                    name => {
                        if let Some(code) = name.strip_prefix("fallback.") {
                            *self.fallbacks.entry(code.to_string()).or_default() += count;
                        }
                    }
                }
            }
        }
        self.partitions = self.partitions.max(plan.output_partitioning().partition_count());
        self.cpu_aggregates += u64::from(plan.name() == "AggregateExec");
        plan.children().into_iter().for_each(|child| self.add_plan(child));
    }
}
