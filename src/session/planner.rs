//! The session's query planner: DataFusion's or the user's own, in a scope that tells our rule which query it works for.

use std::sync::Arc;

use async_trait::async_trait;
use datafusion::catalog::Session;
use datafusion::common::Result;
use datafusion::common::display::{PlanType, StringifiedPlan};
use datafusion::execution::context::QueryPlanner;
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::explain::ExplainExec;
use datafusion::physical_planner::{DefaultPhysicalPlanner, PhysicalPlanner};

use crate::optimizer::{PlacementReport, Planning};

/// Title of the placement in EXPLAIN VERBOSE, after `physical_plan after `.
const TITLE: &str = "gpu_offload (placement and reasons)";

/// Plans as the planner inside does, gives each query its text (for `gpu_fallbacks()`, hooks and traces), and adds the
/// placement with its reasons to EXPLAIN VERBOSE.
#[derive(Debug)]
pub struct GpuQueryPlanner {
    inner: Option<Arc<dyn QueryPlanner + Send + Sync>>,
}

impl GpuQueryPlanner {
    /// Around `inner`; `None` stands for DataFusion's default planner. One that is ours stays as it is.
    pub fn around(inner: Option<Arc<dyn QueryPlanner + Send + Sync>>) -> Arc<dyn QueryPlanner + Send + Sync> {
        match inner {
            Some(planner) if Self::is(&planner) => planner,
            inner => Arc::new(Self { inner }),
        }
    }

    /// Whether a planner is ours.
    pub fn is(planner: &Arc<dyn QueryPlanner + Send + Sync>) -> bool {
        let planner: &dyn std::any::Any = planner.as_ref();
        planner.is::<Self>()
    }

    /// The planner inside.
    pub fn inner(&self) -> Option<&Arc<dyn QueryPlanner + Send + Sync>> {
        self.inner.as_ref()
    }

    async fn plan_inside(&self, plan: &LogicalPlan, session: &dyn Session) -> Result<Arc<dyn ExecutionPlan>> {
        match &self.inner {
            Some(inner) => inner.create_physical_plan(plan, session).await,
            None => DefaultPhysicalPlanner::default().create_physical_plan(plan, session).await,
        }
    }
}

#[async_trait]
impl QueryPlanner for GpuQueryPlanner {
    async fn create_physical_plan(
        &self,
        logical_plan: &LogicalPlan,
        session: &dyn Session,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let planning = Planning::of(logical_plan);
        let plan = planning.scope(self.plan_inside(logical_plan, session)).await;
        if let Some(error) = planning.take_failure() {
            return Err(error.into());
        }
        let plan = plan?;
        Ok(match planning.take_report() {
            Some(report) => explained(plan, &report),
            None => plan,
        })
    }
}

/// `plan`; when it is a verbose EXPLAIN, with the placement behind the entry of our rule.
fn explained(plan: Arc<dyn ExecutionPlan>, report: &PlacementReport) -> Arc<dyn ExecutionPlan> {
    let Some(explain) = plan.downcast_ref::<ExplainExec>().filter(|explain| explain.verbose()) else {
        return plan;
    };
    let mut entries = explain.stringified_plans().to_vec();
    // DataFusion shows an entry as "SAME TEXT AS ABOVE" when it equals the one before: ours goes where it cannot part two.
    let at = entries.iter().position(|entry| entry.plan_type == PlanType::FinalPhysicalPlan);
    let title = PlanType::OptimizedPhysicalPlan { optimizer_name: TITLE.to_owned() };
    entries.insert(at.unwrap_or(entries.len()), StringifiedPlan::new(title, report.to_string().trim_end()));
    Arc::new(ExplainExec::new(explain.schema(), entries, true))
}
