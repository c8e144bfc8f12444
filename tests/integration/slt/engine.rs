//! DataFusion as sqllogictest sees it, with the rule off or forced.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use datafusion::arrow::datatypes::{Schema, SchemaRef};
use datafusion::error::{DataFusionError, Result};
use datafusion::physical_plan::{ExecutionPlan, collect, displayable};
use datafusion::prelude::{SessionConfig, SessionContext};
use datafusion_wgpu::{placement_report, register_gpu};
use sqllogictest::{AsyncDB, DBOutput};

use super::format::{self, Kind};

/// Rows of a batch, so that a table of a dozen rows has several.
const BATCH_ROWS: usize = 4;
/// Rows of an upload: more than a batch, so that uploads coalesce, and fewer than most tables hold.
const UPLOAD_ROWS: usize = 8;

/// Whether the rule runs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Rule {
    /// DataFusion alone.
    Off,
    /// Everything supported goes to the GPU.
    Forced { exchanges: &'static str },
}

/// One session, and what its last query did.
pub struct Engine {
    pub rule: Rule,
    pub partitions: usize,
    ctx: SessionContext,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The current record is a query, which runs under the rule; statements make the tables, and never do.
    query: bool,
    last: Option<Ran>,
}

/// How a query was planned and run.
#[derive(Debug, Clone)]
pub struct Ran {
    pub schema: SchemaRef,
    /// Distinct names of the GPU nodes.
    pub gpu_nodes: BTreeSet<String>,
    /// Kernel launches of all nodes.
    pub dispatches: usize,
    /// Reasons for which batches were handed to the CPU while the query ran.
    pub fallbacks: BTreeSet<String>,
    /// The query gave rows, not an error; only then the two counts above mean something.
    pub finished: bool,
    /// For messages.
    pub plan: String,
}

impl Default for Ran {
    fn default() -> Self {
        Self {
            schema: Arc::new(Schema::empty()),
            gpu_nodes: BTreeSet::new(),
            dispatches: 0,
            fallbacks: BTreeSet::new(),
            finished: false,
            plan: String::new(),
        }
    }
}

impl Engine {
    pub async fn new(rule: Rule, partitions: usize) -> Result<Self> {
        let config = SessionConfig::new()
            .with_target_partitions(partitions)
            .with_batch_size(BATCH_ROWS)
            .with_information_schema(true)
            .set_usize("datafusion.optimizer.repartition_file_min_size", 1);
        let ctx = SessionContext::new_with_config(config);
        let engine = Engine { rule, partitions, ctx, state: Mutex::default() };
        if let Rule::Forced { exchanges } = rule {
            register_gpu(&engine.ctx)?;
            for (option, value) in [
                ("allow_software_adapter", "true".to_string()),
                ("batch_rows", UPLOAD_ROWS.to_string()),
                ("exchanges", format!("'{exchanges}'")),
                ("fallback", "'silent'".to_string()),
                ("placement", "'off'".to_string()),
            ] {
                engine.set(option, &value).await?;
            }
        }
        Ok(engine)
    }

    async fn set(&self, option: &str, value: &str) -> Result<()> {
        self.ctx.sql(&format!("SET gpu.{option} = {value}")).await?.collect().await.map(|_| ())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Call before each record.
    pub fn start_record(&self, query: bool) {
        *self.state() = State { query, last: None };
    }

    /// How the record's query ran; `None` when it was not planned.
    pub fn last_run(&self) -> Option<Ran> {
        self.state().last.clone()
    }

    /// Codes of all reasons in the placement report of `sql`.
    pub async fn reason_codes(&self, sql: &str) -> Result<BTreeSet<String>, String> {
        let report = async {
            self.set("placement", "'force'").await?;
            let report = placement_report(&self.ctx, sql).await;
            self.set("placement", "'off'").await?;
            report
        };
        let report = report.await.map_err(|e| e.to_string())?;
        Ok(report.nodes.iter().flat_map(|node| node.reasons.iter().map(|r| r.code().to_string())).collect())
    }

    async fn run(&self, sql: &str) -> Result<DBOutput<Kind>> {
        let forced = self.state().query && self.rule != Rule::Off;
        if forced {
            self.set("placement", "'force'").await?;
        }
        let output = self.run_as_set(sql).await;
        if forced {
            self.set("placement", "'off'").await?;
        }
        output
    }

    async fn run_as_set(&self, sql: &str) -> Result<DBOutput<Kind>> {
        let plan = self.ctx.sql(sql).await?.create_physical_plan().await?;
        let mut ran = Ran {
            schema: plan.schema(),
            plan: displayable(plan.as_ref()).indent(false).to_string(),
            ..Default::default()
        };
        visit(plan.as_ref(), &mut |node| {
            if node.name().starts_with("Gpu") {
                ran.gpu_nodes.insert(node.name().to_string());
            }
        });
        self.state().last = Some(ran.clone());
        let batches = collect(Arc::clone(&plan), self.ctx.task_ctx()).await?;
        visit(plan.as_ref(), &mut |node| ran.add_metrics(node));
        ran.finished = true;
        self.state().last = Some(ran);
        let types: Vec<Kind> =
            plan.schema().fields().iter().map(|field| format::kind(field.data_type())).collect();
        if types.is_empty() {
            return Ok(DBOutput::StatementComplete(0));
        }
        Ok(DBOutput::Rows { types, rows: format::rows(&batches)? })
    }
}

fn visit(plan: &dyn ExecutionPlan, f: &mut dyn FnMut(&dyn ExecutionPlan)) {
    f(plan);
    for child in plan.children() {
        visit(child.as_ref(), f);
    }
}

impl Ran {
    /// Adds what `node` counted while it ran: `dispatches`, and `fallback.<reason>` for each reason.
    fn add_metrics(&mut self, node: &dyn ExecutionPlan) {
        let Some(metrics) = node.metrics() else { return };
        for metric in metrics.iter() {
            let (name, value) = (metric.value().name(), metric.value().as_usize());
            if name == "dispatches" {
                self.dispatches += value;
            } else if let (Some(reason), true) = (name.strip_prefix("fallback."), value > 0) {
                self.fallbacks.insert(reason.to_string());
            }
        }
    }
}

/// A connection to an [`Engine`].
pub struct Session(Arc<Engine>);

impl Session {
    pub fn new(engine: &Arc<Engine>) -> Self {
        Self(Arc::clone(engine))
    }
}

#[async_trait]
impl AsyncDB for Session {
    type Error = DataFusionError;
    type ColumnType = Kind;

    async fn run(&mut self, sql: &str) -> Result<DBOutput<Kind>> {
        self.0.run(sql).await
    }

    async fn shutdown(&mut self) {}

    fn engine_name(&self) -> &str {
        "datafusion-wgpu"
    }
}
