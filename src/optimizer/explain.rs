//! The placement of a query that is given as text, planned but not executed.

use std::any::Any;
use std::sync::Arc;

use datafusion::common::runtime::SpawnedTask;
use datafusion::common::{Result, exec_datafusion_err, plan_err};
use datafusion::execution::context::SQLOptions;
use datafusion::execution::session_state::{SessionState, SessionStateBuilder};
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::prelude::SessionConfig;
use tokio::runtime::Handle;

use super::{GpuOffload, PlacementReport};

/// In the configuration of a session that only plans for [`explain`].
struct Explaining;

/// Where each node of `sql`'s plan would run in a session with this state, and why those on the CPU stay there.
///
/// # Errors
/// DataFusion's own errors in parsing and planning `sql`; a plan error when the state has no [`GpuOffload`] rule, or when
/// `sql` is no query, such as `SET`, `CREATE TABLE`, `DELETE` or `COPY`: some table providers change their rows while such
/// statements are planned.
pub async fn explain(state: &SessionState, sql: &str) -> Result<PlacementReport> {
    let Some(rule) = state.physical_optimizers().iter().find(|rule| is_offload(rule)).cloned() else {
        return plan_err!("the session has no GPU: call register_gpu first");
    };
    let logical = match state.create_logical_plan(sql).await? {
        LogicalPlan::Explain(explain) => Arc::unwrap_or_clone(explain.plan),
        LogicalPlan::Analyze(analyze) => Arc::unwrap_or_clone(analyze.input),
        plan => plan,
    };
    // Looks into EXPLAIN, CTEs and subqueries too.
    let queries_only =
        SQLOptions::new().with_allow_ddl(false).with_allow_dml(false).with_allow_statements(false);
    if let Err(error) = queries_only.verify_plan(&logical) {
        return plan_err!("only a query has a placement: {}", error.message());
    }
    let cpu_plan = without_gpu(state).create_physical_plan(&logical).await?;
    let config = Arc::clone(state.config_options());
    off_the_workers(move || {
        let rule: &dyn Any = rule.as_ref();
        rule.downcast_ref::<GpuOffload>().map(|offload| offload.explain(&cpu_plan, &config))
    })
    .await?
    .ok_or_else(|| exec_datafusion_err!("the rule {} is another than ours", GpuOffload::NAME))
}

/// True within a session that only plans for [`explain`]. Table functions that explain queries give no rows there: the plan
/// is never executed, and a view may explain itself.
pub(crate) fn is_explaining(config: &SessionConfig) -> bool {
    config.get_extension::<Explaining>().is_some()
}

/// Whether a rule is ours.
pub(crate) fn is_offload(rule: &Arc<dyn PhysicalOptimizerRule + Send + Sync>) -> bool {
    rule.name() == GpuOffload::NAME
}

/// Runs work that may wait for a driver, on a thread that may block; without a tokio runtime, here.
pub(crate) async fn off_the_workers<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T> {
    if Handle::try_current().is_err() {
        return Ok(work());
    }
    SpawnedTask::spawn_blocking(work)
        .await
        .map_err(|error| exec_datafusion_err!("the work was lost: {error}"))
}

/// The same session without our rule: what DataFusion plans by itself.
fn without_gpu(state: &SessionState) -> SessionState {
    let rules = state.physical_optimizers().iter().filter(|rule| !is_offload(rule)).cloned().collect();
    let mut state =
        SessionStateBuilder::new_from_existing(state.clone()).with_physical_optimizer_rules(rules).build();
    state.config_mut().set_extension(Arc::new(Explaining));
    state
}
