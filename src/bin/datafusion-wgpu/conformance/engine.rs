//! DataFusion as sqllogictest sees it, with the rule forced or without it.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use datafusion::common::config::ExtensionOptions;
use datafusion::common::runtime::SpawnedTask;
use datafusion::execution::SessionStateBuilder;
use datafusion::execution::session_state::SessionState;
use datafusion::physical_plan::collect;
use datafusion::prelude::SessionContext;
use datafusion_sqllogictest::{
    DFOutput, DFSqlLogicTestError, convert_batches, convert_schema_to_types, is_spark_path,
};
use datafusion_wgpu::{
    FallbackPolicy, GpuOptions, Placement, QueryStats, Subscription, register_gpu, shared_runtime,
};
use parking_lot::Mutex;
use sqllogictest::{AsyncDB, DBOutput};
use tokio::sync::Notify;

use crate::fuzz::errors::same_kind;
use crate::gpu::queries_of;

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
    plant: Option<String>,
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

/// Queries with GPU nodes.
#[derive(Default)]
struct Queries {
    /// Names that the session had so far.
    sessions: Mutex<BTreeSet<String>>,
    known: Mutex<Known>,
    changed: Notify,
}

#[derive(Default)]
struct Known {
    ended: Vec<QueryStats>,
    /// Those that ran and were not heard of.
    open: BTreeSet<u64>,
}

/// How a statement ran.
#[derive(Debug, Clone, Default)]
pub struct Ran {
    /// The rule saw it.
    pub under_rule: bool,
    /// Its text, variables replaced.
    pub sql: String,
    /// The text of its error.
    pub error: Option<String>,
    /// It panicked or took too long: a failure, whatever the file expects.
    pub incident: Option<String>,
}

/// How long to wait for the statistics of queries that have ended: their tasks may take a moment to go.
const STATISTICS: Duration = Duration::from_secs(10);
/// The same for those that cannot be waited for by number: the queries within statements such as CREATE TABLE AS.
const SETTLE: Duration = Duration::from_millis(50);
/// Times that a statement is asked for its error without the rule: which of two errors comes first may change.
const ERROR_RUNS: usize = 3;

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
        let hook = Arc::clone(&queries);
        let subscription = shared_runtime().on_query(move |stats| {
            if hook.sessions.lock().contains(&stats.session_id) {
                hook.ended(stats);
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
            plant: setup.settings.plant.clone(),
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

    /// Whether a query fails without the rule as it did with it, but for the values in the text: which of several faulty rows
    /// is met first may change. The error that it gives without, or none, where it does not.
    pub async fn differs_without_rule(&self, sql: &str, error: &str) -> Option<String> {
        let mut other = String::new();
        for _ in 0..ERROR_RUNS {
            self.shared.enable(false);
            let (_, answer) = self.guarded(self.shared.ctx.clone(), sql).await;
            self.shared.enable(true);
            other = answer.err().map_or_else(|| "no error".to_owned(), |error| error.to_string());
            if same_kind(&other, error) {
                return None;
            }
        }
        Some(other)
    }

    /// What the statements so far did on the GPU, and the number of queries of which nothing was heard.
    pub async fn statistics(&self) -> (Vec<QueryStats>, usize) {
        let Some(Gpu { queries, .. }) = &self.shared.gpu else { return (vec![], 0) };
        let all = async {
            while !queries.known.lock().open.is_empty() {
                queries.changed.notified().await;
            }
        };
        tokio::time::timeout(STATISTICS, all).await.ok();
        tokio::time::sleep(SETTLE).await;
        let known = std::mem::take(&mut *queries.known.lock());
        (known.ended, known.open.len())
    }

    /// Runs `sql` in a task of its own, so that a panic or a hang ends there; tells of those.
    async fn guarded(&self, ctx: SessionContext, sql: &str) -> (Option<String>, Answer<DFOutput>) {
        if let Some(gpu) = &self.shared.gpu {
            // SET datafusion.runtime.* gives the session another name.
            gpu.queries.sessions.lock().insert(ctx.state().session_id().to_owned());
        }
        let (entry, late) = self.shared.watch.start(&self.shared.file, sql);
        let mut task = SpawnedTask::spawn(query(ctx, sql.to_owned(), self.shared.spark, entry));
        let incident = tokio::select! {
            done = &mut task => match done {
                Ok((queries, answer)) => {
                    if let Some(gpu) = &self.shared.gpu {
                        gpu.queries.ran(queries);
                    }
                    return (None, answer);
                }
                Err(error) => format!("panicked: {error}"),
            },
            () = late.notified() => format!("took longer than {} s", self.shared.limit_seconds),
        };
        // Aborts what was too late.
        drop(task);
        (Some(incident.clone()), Err(DFSqlLogicTestError::Other(incident)))
    }
}

impl Queries {
    /// A query ended.
    fn ended(&self, stats: &QueryStats) {
        let mut known = self.known.lock();
        known.open.remove(&stats.query_id);
        known.ended.push(stats.clone());
    }

    /// A statement ran these.
    fn ran(&self, mut queries: BTreeSet<u64>) {
        let mut known = self.known.lock();
        for stats in &known.ended {
            queries.remove(&stats.query_id);
        }
        known.open.append(&mut queries);
    }
}

impl Shared {
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

/// The options of the forced runs of a file.
///
/// # Errors
/// An option that does not exist, or a value that it does not take.
pub fn forced_options(settings: &Settings, file: &str) -> datafusion::error::Result<GpuOptions> {
    let mut options = GpuOptions::default();
    options.placement = Placement::Force;
    options.allow_software_adapter = true;
    options.fallback = FallbackPolicy::Silent;
    options.adapter.clone_from(&settings.adapter);
    for (name, value) in &settings.options {
        options.set(name, value)?;
    }
    if is_tpch(file) {
        options.batch_rows = options.batch_rows.max(TPCH_BATCH_ROWS);
    }
    Ok(options)
}

/// Plans and runs one statement; tells what ran on the GPU, where it failed too.
async fn query(
    ctx: SessionContext,
    sql: String,
    spark: bool,
    _entry: Entry,
) -> (BTreeSet<u64>, Answer<DFOutput>) {
    let mut queries = BTreeSet::new();
    let output = planned(&ctx, &sql, spark, &mut queries).await;
    (queries, output)
}

async fn planned(
    ctx: &SessionContext,
    sql: &str,
    spark: bool,
    queries: &mut BTreeSet<u64>,
) -> Answer<DFOutput> {
    let frame = ctx.sql(sql).await?;
    let task = Arc::new(frame.task_ctx());
    let plan = frame.create_physical_plan().await?;
    let schema = plan.schema();
    let types = convert_schema_to_types(schema.fields());
    let batches = Box::pin(collect(Arc::clone(&plan), task)).await;
    *queries = queries_of(&plan);
    drop(plan);
    let rows = convert_batches(&schema, batches?, spark)?;
    if rows.is_empty() && types.is_empty() {
        Ok(DBOutput::StatementComplete(0))
    } else {
        Ok(DBOutput::Rows { types, rows })
    }
}

/// A wrong answer: one row less, or another error.
fn plant(output: Answer<DFOutput>) -> Answer<DFOutput> {
    match output {
        Ok(DBOutput::Rows { types, mut rows }) => {
            rows.pop();
            Ok(DBOutput::Rows { types, rows })
        }
        Ok(done) => Ok(done),
        Err(_) => Err(DFSqlLogicTestError::Other("planted".to_owned())),
    }
}

#[async_trait]
impl AsyncDB for Engine {
    type Error = DFSqlLogicTestError;
    type ColumnType = datafusion_sqllogictest::DFColumnType;

    async fn run(&mut self, sql: &str) -> Answer<DFOutput> {
        let shared = &self.shared;
        let shape = Shape::of(sql);
        let (incident, output) = match shape {
            Shape::Plan => {
                shared.enable(false);
                let done = self.guarded(shared.ctx.clone(), sql).await;
                shared.enable(true);
                done
            }
            Shape::Listing => self.guarded(shared.without_gpu(), sql).await,
            _ => self.guarded(shared.ctx.clone(), sql).await,
        };
        let under_rule = shared.gpu.is_some() && !matches!(shape, Shape::Plan | Shape::Listing);
        let planted = under_rule && shared.plant.as_ref().is_some_and(|text| sql.contains(text));
        let output = if planted { plant(output) } else { output };
        let error = output.as_ref().err().map(ToString::to_string);
        *shared.last.lock() = Ran { under_rule, sql: sql.to_owned(), error, incident };
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
