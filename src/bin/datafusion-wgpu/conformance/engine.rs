//! DataFusion as sqllogictest sees it, with the rule forced or without it.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use datafusion::common::runtime::SpawnedTask;
use datafusion::execution::SessionStateBuilder;
use datafusion::execution::session_state::SessionState;
use datafusion::physical_plan::{ExecutionPlan, collect};
use datafusion::prelude::SessionContext;
use datafusion_sqllogictest::{
    DFOutput, DFSqlLogicTestError, convert_batches, convert_schema_to_types, is_spark_path,
};
use datafusion_wgpu::physical_plan::GpuExec;
use datafusion_wgpu::{
    FallbackPolicy, GpuOptions, Placement, QueryStats, Subscription, register_gpu, shared_runtime,
};
use parking_lot::Mutex;
use sqllogictest::{AsyncDB, DBOutput};
use tokio::sync::Notify;

use super::folder::is_tpch;
use super::shape::Shape;
use super::watch::{Entry, Watch};
use super::worker::{Settings, Setup};

type Answer<T> = Result<T, DFSqlLogicTestError>;

/// One session of the suite. Clones share it.
#[derive(Clone)]
pub struct Engine {
    shared: Arc<Shared>,
}

struct Shared {
    ctx: SessionContext,
    gpu: Option<Gpu>,
    spark: bool,
    /// Scratch folder as DataFusion prints it in plans.
    root: String,
    limit_seconds: u64,
    file: String,
    watch: Arc<Watch>,
    last: Mutex<Ran>,
}

/// What a session with the GPU has more.
struct Gpu {
    /// The state before the GPU was registered.
    plain: SessionState,
    queries: Arc<Queries>,
    _subscription: Subscription,
}

/// Queries with GPU nodes that ended since the last statement.
#[derive(Default)]
struct Queries {
    ended: Mutex<Vec<QueryStats>>,
    changed: Notify,
}

/// How a statement ran.
#[derive(Debug, Clone, Default)]
pub struct Ran {
    /// The rule saw it.
    pub under_rule: bool,
    /// A GPU node ran.
    pub gpu: bool,
    /// Kernels launched.
    pub launches: u64,
    /// Codes of the fallbacks.
    pub fallbacks: BTreeSet<String>,
    /// It panicked or took too long: a failure, whatever the file expects.
    pub incident: Option<String>,
}

/// How long to wait for the statistics of a query that has ended: its tasks may take a moment to go.
const STATISTICS: Duration = Duration::from_millis(500);

/// Rows of an upload for TPC-H, whose tables are large.
const TPCH_BATCH_ROWS: usize = 16_384;

impl Engine {
    /// A session without the GPU.
    pub fn plain(ctx: SessionContext, file: &str, setup: &Setup) -> Self {
        Self::new(ctx, None, file, setup)
    }

    /// The session with the rule registered and forced.
    ///
    /// # Errors
    /// Those of `register_gpu` and of the settings.
    pub fn forced(ctx: SessionContext, file: &str, setup: &Setup) -> datafusion::error::Result<Self> {
        let plain = ctx.state();
        register_gpu(&ctx)?;
        let options = forced_options(&setup.settings, file)?;
        ctx.state_ref().write().config_mut().options_mut().extensions.insert(options);
        let queries = Arc::<Queries>::default();
        let (hook, session) = (Arc::clone(&queries), ctx.session_id());
        let subscription = shared_runtime().on_query(move |stats| {
            if stats.session_id == session {
                hook.ended.lock().push(stats.clone());
                hook.changed.notify_one();
            }
        });
        Ok(Self::new(ctx, Some(Gpu { plain, queries, _subscription: subscription }), file, setup))
    }

    fn new(ctx: SessionContext, gpu: Option<Gpu>, file: &str, setup: &Setup) -> Self {
        let shared = Shared {
            ctx,
            gpu,
            spark: is_spark_path(Path::new(file)),
            // As in the paths of object stores.
            root: setup.root.to_string_lossy().trim_start_matches('/').to_owned(),
            limit_seconds: setup.settings.timeout_seconds,
            file: file.to_owned(),
            watch: Arc::clone(&setup.watch),
            last: Mutex::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// How the last statement ran; the default when none did since the last call.
    pub fn take_last(&self) -> Ran {
        std::mem::take(&mut self.shared.last.lock())
    }

    /// Rows of a query, run without the rule, as lines of text.
    ///
    /// # Errors
    /// Those of the query; a panic and a time-out too.
    pub async fn rows_without_rule(&self, sql: &str) -> Answer<Vec<String>> {
        match self.guarded(self.shared.without_gpu(), sql).await.1? {
            DBOutput::Rows { rows, .. } => Ok(rows.iter().map(|row| row.join(" ")).collect()),
            _ => Ok(vec![]),
        }
    }

    /// Runs `sql` in a task of its own, so that a panic or a hang ends there.
    async fn guarded(&self, ctx: SessionContext, sql: &str) -> (Ran, Answer<DFOutput>) {
        let (entry, late) = self.shared.watch.start(&self.shared.file, sql);
        let mut task = SpawnedTask::spawn(query(ctx, sql.to_owned(), self.shared.spark, entry));
        let incident = tokio::select! {
            done = &mut task => match done {
                Ok((planned, answer)) => return (self.shared.statistics(planned).await, answer),
                Err(error) => format!("panicked: {error}"),
            },
            () = late.notified() => format!("took longer than {} s", self.shared.limit_seconds),
        };
        // Aborts what was too late.
        drop(task);
        let ran = Ran { incident: Some(incident.clone()), ..self.shared.statistics(true).await };
        (ran, Err(DFSqlLogicTestError::Other(incident)))
    }
}

impl Shared {
    /// What the GPU nodes did since the last call; `expected` tells that a plan with some was executed.
    async fn statistics(&self, expected: bool) -> Ran {
        let mut ran = Ran::default();
        let Some(gpu) = &self.gpu else { return ran };
        if expected {
            let ended = async {
                while gpu.queries.ended.lock().is_empty() {
                    gpu.queries.changed.notified().await;
                }
            };
            // A node that no partition of was asked for gives no statistics.
            tokio::time::timeout(STATISTICS, ended).await.ok();
        }
        for stats in gpu.queries.ended.lock().drain(..) {
            ran.gpu = true;
            ran.launches += stats.dispatches;
            ran.fallbacks.extend(stats.fallbacks.iter().map(|(code, _)| (*code).to_owned()));
        }
        ran
    }

    /// Switches the rule.
    fn enable(&self, enabled: bool) {
        let state = self.ctx.state_ref();
        let mut state = state.write();
        if let Some(options) = state.config_mut().options_mut().extensions.get_mut::<GpuOptions>() {
            options.enabled = enabled;
        }
    }

    /// A session over the same tables, functions and settings, as it would be had the GPU not been registered. Prepared
    /// statements are not in it.
    fn without_gpu(&self) -> SessionContext {
        let Some(Gpu { plain, .. }) = &self.gpu else { return self.ctx.clone() };
        let state = self.ctx.state();
        let session_id = state.session_id().to_owned();
        let create_default_catalog = state.config_options().catalog.create_default_catalog_and_schema;
        let mut twin = SessionStateBuilder::new_from_existing(state)
            .with_session_id(session_id)
            .with_query_planner(Arc::clone(plain.query_planner()))
            .with_physical_optimizer_rules(plain.physical_optimizers().to_vec())
            .with_table_functions(plain.table_functions().clone())
            .build();
        let options = twin.config_mut().options_mut();
        options.catalog.create_default_catalog_and_schema = create_default_catalog;
        options.extensions = plain.config_options().extensions.clone();
        SessionContext::new_with_state(twin)
    }
}

fn forced_options(settings: &Settings, file: &str) -> datafusion::error::Result<GpuOptions> {
    let mut options = GpuOptions::default();
    options.placement = Placement::Force;
    options.allow_software_adapter = true;
    options.fallback = FallbackPolicy::Silent;
    options.batch_rows = match is_tpch(file) {
        true => settings.batch_rows.max(TPCH_BATCH_ROWS),
        false => settings.batch_rows,
    };
    options.exchanges =
        settings.exchanges.parse().map_err(datafusion::error::DataFusionError::Configuration)?;
    options.adapter.clone_from(&settings.adapter);
    Ok(options)
}

/// Plans and runs one statement; tells whether GPU nodes were in its plan, where it failed too.
async fn query(ctx: SessionContext, sql: String, spark: bool, _entry: Entry) -> (bool, Answer<DFOutput>) {
    let mut gpu = false;
    let output = planned(&ctx, &sql, spark, &mut gpu).await;
    (gpu, output)
}

async fn planned(ctx: &SessionContext, sql: &str, spark: bool, gpu: &mut bool) -> Answer<DFOutput> {
    let frame = ctx.sql(sql).await?;
    let task = Arc::new(frame.task_ctx());
    let plan = frame.create_physical_plan().await?;
    *gpu = has_gpu_node(&plan);
    let schema = plan.schema();
    let types = convert_schema_to_types(schema.fields());
    let batches = Box::pin(collect(plan, task)).await?;
    let rows = convert_batches(&schema, batches, spark)?;
    if rows.is_empty() && types.is_empty() {
        Ok(DBOutput::StatementComplete(0))
    } else {
        Ok(DBOutput::Rows { types, rows })
    }
}

fn has_gpu_node(plan: &Arc<dyn ExecutionPlan>) -> bool {
    plan.is::<GpuExec>() || plan.children().into_iter().any(has_gpu_node)
}

#[async_trait]
impl AsyncDB for Engine {
    type Error = DFSqlLogicTestError;
    type ColumnType = datafusion_sqllogictest::DFColumnType;

    async fn run(&mut self, sql: &str) -> Answer<DFOutput> {
        let shared = &self.shared;
        let shape = Shape::of(sql);
        let (mut ran, output) = match shape {
            Shape::Plan => {
                shared.enable(false);
                let done = self.guarded(shared.ctx.clone(), sql).await;
                shared.enable(true);
                done
            }
            Shape::Listing => self.guarded(shared.without_gpu(), sql).await,
            _ => self.guarded(shared.ctx.clone(), sql).await,
        };
        ran.under_rule = shared.gpu.is_some() && !matches!(shape, Shape::Plan | Shape::Listing);
        *shared.last.lock() = ran;
        let mut output = output?;
        if let DBOutput::Rows { rows, .. } = &mut output {
            for cell in rows.iter_mut().flatten().filter(|cell| cell.contains(&shared.root)) {
                *cell = cell.replace(&shared.root, "WORKSPACE_ROOT");
            }
        }
        Ok(output)
    }

    fn engine_name(&self) -> &str {
        "DataFusion"
    }

    async fn sleep(duration: Duration) {
        tokio::time::sleep(duration).await;
    }

    async fn shutdown(&mut self) {}
}
