//! The planning that the rule is called from: which query it is for, and where the report goes.
//!
//! A physical optimizer rule sees a plan and options, no more. The session's query planner (`session::GpuQueryPlanner`)
//! opens a scope around its work; the rule, which runs inside on the same task, finds it here.

use std::future::Future;
use std::sync::Arc;

use datafusion::logical_expr::LogicalPlan;
use datafusion::sql::unparser::plan_to_sql;
use parking_lot::Mutex;

use crate::error::GpuError;
use crate::physical_plan::Query;

use super::report::PlacementReport;

/// Characters of a query's text that are kept.
const MAX_TEXT: usize = 4_000;
/// Stack for writing a plan as SQL; only what is used of it becomes memory.
const STACK_BYTES: usize = 256 << 20;

tokio::task_local! {
    static PLANNING: Arc<Planning>;
}

/// The planning of one logical plan.
pub(crate) struct Planning {
    logical: Arc<LogicalPlan>,
    report: Mutex<Option<PlacementReport>>,
    failure: Mutex<Option<GpuError>>,
}

impl Planning {
    /// The planning of `logical`, or of the plan that it explains.
    pub(crate) fn of(logical: &LogicalPlan) -> Arc<Self> {
        let logical = match logical {
            LogicalPlan::Explain(explain) => Arc::clone(&explain.plan),
            LogicalPlan::Analyze(analyze) => Arc::clone(&analyze.input),
            plan => Arc::new(plan.clone()),
        };
        Arc::new(Self { logical, report: Mutex::new(None), failure: Mutex::new(None) })
    }

    /// Runs `work`; the rule reports to this planning in the meantime.
    pub(crate) async fn scope<F: Future>(self: &Arc<Self>, work: F) -> F::Output {
        PLANNING.scope(Arc::clone(self), work).await
    }

    /// What the rule decided, if it was called; of several calls the last.
    pub(crate) fn take_report(&self) -> Option<PlacementReport> {
        self.report.lock().take()
    }

    /// Why the rule failed, if it did: EXPLAIN shows a plan without what comes after.
    pub(crate) fn take_failure(&self) -> Option<GpuError> {
        self.failure.lock().take()
    }
}

/// Tells the planning that the rule is called from, if that is known, that it has failed.
pub(crate) fn failed(error: &GpuError) {
    let _ = PLANNING.try_with(|planning| *planning.failure.lock() = Some(error.clone()));
}

/// Hands the rule's report to the planning it is called from, if that is known.
pub(crate) fn reported(report: &PlacementReport) {
    let _ = PLANNING.try_with(|planning| *planning.report.lock() = Some(report.clone()));
}

/// The query that is being planned.
pub(crate) fn query() -> Arc<Query> {
    match PLANNING.try_with(|planning| Arc::clone(&planning.logical)) {
        Ok(logical) => Query::new(move || describe(&logical)),
        Err(_) => Query::new(String::new),
    }
}

/// A plan as SQL, or its first line where it can't be written as SQL.
fn describe(plan: &LogicalPlan) -> String {
    let mut text = unparse(plan).unwrap_or_else(|| plan.display().to_string());
    if let Some((end, _)) = text.char_indices().nth(MAX_TEXT) {
        text.truncate(end);
        text.push_str(" ...");
    }
    text
}

/// A plan as SQL, on a thread of its own: the unparser recurses through plans, with frames of many kilobytes in a debug
/// build, and a worker's 2 MiB of stack ended within ten nested subqueries. A panic is the unparser's way of saying no.
fn unparse(plan: &LogicalPlan) -> Option<String> {
    std::thread::scope(|scope| {
        let thread =
            std::thread::Builder::new().name("datafusion-wgpu sql".to_string()).stack_size(STACK_BYTES);
        let sql = thread.spawn_scoped(scope, || plan_to_sql(plan).map(|sql| sql.to_string())).ok()?;
        sql.join().ok()?.ok()
    })
}

#[cfg(test)]
mod tests {
    use arrow::datatypes::{DataType, Field, Schema};
    use datafusion::logical_expr::logical_plan::table_scan;
    use datafusion::logical_expr::{LogicalPlanBuilder, col, lit};

    use super::*;

    /// `SELECT * FROM t WHERE a IN (0, 1, ...)`.
    fn plan(values: i64) -> LogicalPlan {
        let schema = Schema::new(vec![Field::new("a", DataType::Int64, true)]);
        let list = (0..values).map(lit).collect();
        let scan = table_scan(Some("t"), &schema, None).and_then(|t| t.filter(col("a").in_list(list, false)));
        scan.and_then(LogicalPlanBuilder::build).unwrap()
    }

    #[test]
    fn a_query_is_described_as_sql() {
        assert_eq!(describe(&plan(2)), "SELECT * FROM t WHERE t.a IN (0, 1)");
    }

    #[test]
    fn a_plan_that_is_no_sql_is_described_by_its_first_line() {
        let rows =
            LogicalPlanBuilder::values(vec![vec![lit(1)]]).and_then(|p| p.filter(col("column1").gt(lit(0))));
        let plan = rows.and_then(LogicalPlanBuilder::build).unwrap();
        assert_eq!(describe(&plan), "Filter: column1 > Int32(0)");
    }

    /// Threads of tests have 2 MiB of stack, as tokio's workers have.
    #[test]
    fn nested_plans_need_more_stack_than_a_worker_has() {
        let mut plan = plan(2);
        for level in 0..100 {
            let outer = LogicalPlanBuilder::from(plan).alias(format!("a{level}"));
            let outer = outer.and_then(|plan| plan.limit(0, Some(5))).and_then(LogicalPlanBuilder::build);
            plan = outer.unwrap();
        }
        assert!(describe(&plan).matches("SELECT").count() >= 100);
    }

    #[test]
    fn a_long_text_is_cut() {
        assert_eq!(describe(&plan(2_000)).chars().count(), MAX_TEXT + 4);
    }

    #[tokio::test]
    async fn the_rule_reports_to_its_planning_only() {
        reported(&PlacementReport::default());
        let planning = Planning::of(&plan(1));
        assert_eq!(planning.take_report(), None);
        planning.scope(async { reported(&PlacementReport::default()) }).await;
        assert_eq!(planning.take_report(), Some(PlacementReport::default()));
        assert_eq!(&*query().text(), "");
    }
}
