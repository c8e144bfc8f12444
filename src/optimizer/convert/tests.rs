//! What the CPU nodes know about their output survives the conversion.

use std::fmt;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, plan_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::parquet::arrow::ArrowWriter;
use datafusion::physical_expr::expressions::col;
use datafusion::physical_expr::{LexOrdering, PhysicalExpr, PhysicalSortExpr};
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::union::UnionExec;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};
use datafusion::prelude::{ParquetReadOptions, SessionConfig, SessionContext};
use tempfile::TempDir;

use crate::config::{GpuOptions, Placement};
use crate::memory::caps::DeviceCaps;
use crate::optimizer::{Outcome, offload};

/// Table `p` of two files in which `k` is 7 throughout, as their statistics tell.
async fn session() -> (SessionContext, TempDir) {
    let folder = TempDir::new().unwrap();
    for file in 0..2 {
        let values = Int64Array::from_iter_values(file * 100..file * 100 + 100);
        let columns: Vec<(&str, ArrayRef)> =
            vec![("k", Arc::new(Int64Array::from(vec![7; 100]))), ("v", Arc::new(values))];
        let batch = RecordBatch::try_from_iter(columns).unwrap();
        let file = std::fs::File::create(folder.path().join(format!("{file}.parquet"))).unwrap();
        let mut writer = ArrowWriter::try_new(file, batch.schema(), None).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
    }
    let config = SessionConfig::new()
        .with_target_partitions(2)
        .set_bool("datafusion.optimizer.prefer_hash_join", false);
    let ctx = SessionContext::new_with_config(config);
    ctx.register_parquet("p", folder.path().to_str().unwrap(), ParquetReadOptions::default()).await.unwrap();
    (ctx, folder)
}

async fn cpu_plan(ctx: &SessionContext, sql: &str) -> Arc<dyn ExecutionPlan> {
    ctx.sql(sql).await.unwrap().create_physical_plan().await.unwrap()
}

fn forced(ctx: &SessionContext, plan: &Arc<dyn ExecutionPlan>) -> Outcome {
    let options = GpuOptions { placement: Placement::Force, ..GpuOptions::default() };
    offload(plan, &DeviceCaps::for_tests(), &options, ctx.state().config_options())
}

async fn place(ctx: &SessionContext, sql: &str) -> (Arc<dyn ExecutionPlan>, Outcome) {
    let plan = cpu_plan(ctx, sql).await;
    let outcome = forced(ctx, &plan);
    (plan, outcome)
}

/// Nodes of the plan by name.
fn named<'a>(plan: &'a Arc<dyn ExecutionPlan>, name: &str, found: &mut Vec<&'a Arc<dyn ExecutionPlan>>) {
    if plan.name() == name {
        found.push(plan);
    }
    plan.children().into_iter().for_each(|child| named(child, name, found));
}

fn all<'a>(plan: &'a Arc<dyn ExecutionPlan>, name: &str) -> Vec<&'a Arc<dyn ExecutionPlan>> {
    let mut found = vec![];
    named(plan, name, &mut found);
    found
}

#[tokio::test]
async fn properties_are_those_of_the_cpu_node() {
    let (ctx, _folder) = session().await;
    let (plan, outcome) = place(&ctx, "SELECT v + 1 AS w FROM p WHERE k > 0 AND v > 3").await;
    for (cpu, gpu) in [("FilterExec", "GpuFilterExec"), ("ProjectionExec", "GpuProjectionExec")] {
        let (cpu, gpu) = (all(&plan, cpu), all(&outcome.plan, gpu));
        assert!(cpu.len() == 1 && gpu.len() == 1, "{}", outcome.report);
        assert!(Arc::ptr_eq(cpu[0].properties(), gpu[0].properties()), "{}", gpu[0].name());
    }
}

/// Since `k` has one value, DataFusion sorts neither side of the merge join.
#[tokio::test]
async fn constants_from_statistics_spare_a_sort_on_the_gpu_too() {
    let (ctx, _folder) = session().await;
    let sql = "SELECT a.v FROM p a JOIN p b ON a.k = b.k WHERE a.k > 0 AND b.k > 0";
    let (plan, outcome) = place(&ctx, sql).await;
    assert_eq!(all(&plan, "SortMergeJoinExec").len(), 1);
    assert_eq!(all(&plan, "SortExec").len(), 0, "the test shows nothing");
    assert_eq!(all(&outcome.plan, "GpuFilterExec").len(), 2, "{}", outcome.report);
    let rows = datafusion::physical_plan::collect(plan, ctx.task_ctx()).await.unwrap();
    assert_eq!(rows.iter().map(RecordBatch::num_rows).sum::<usize>(), 200 * 200);
}

/// A node that takes no child but the one it was made with.
#[derive(Debug)]
struct Picky(Arc<dyn ExecutionPlan>);

impl DisplayAs for Picky {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Picky")
    }
}

impl ExecutionPlan for Picky {
    fn name(&self) -> &'static str {
        "Picky"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.0.properties()
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.0]
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(self: Arc<Self>, _: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        plan_err!("it takes no other child")
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        self.0.execute(partition, context)
    }
}

/// Partitions are restored below a CPU node that stands between two GPU nodes.
#[tokio::test]
async fn exchanges_are_restored_between_islands() {
    let (ctx, _dir) = session().await;
    for setting in ["hash_join_single_partition_threshold", "hash_join_single_partition_threshold_rows"] {
        ctx.sql(&format!("SET datafusion.optimizer.{setting} = 0")).await.unwrap();
    }
    ctx.sql("SET datafusion.optimizer.prefer_hash_join = true").await.unwrap();
    ctx.sql("SET datafusion.execution.target_partitions = 4").await.unwrap();
    let table = "(SELECT value AS k, value % 7 AS v FROM generate_series(1, 100))";
    for name in ["x", "y"] {
        ctx.sql(&format!("CREATE TABLE {name} AS SELECT * FROM {table}")).await.unwrap();
    }
    let sql = "SELECT x.k, sum(y.v) FROM x JOIN y ON x.k = y.k \
               WHERE x.k IN (SELECT k FROM y GROUP BY k HAVING sum(v) > 3) GROUP BY x.k";
    let (_, outcome) = place(&ctx, sql).await;
    assert!(all(&outcome.plan, "GpuAggregateExec").len() >= 2, "{}", outcome.report);
    assert!(all(&outcome.plan, "HashJoinExec").len() == 2, "{}", outcome.report);
}

#[tokio::test]
async fn an_island_that_cannot_be_converted_leaves_the_others_alone() {
    let (ctx, _folder) = session().await;
    let filtered = || cpu_plan(&ctx, "SELECT v FROM p WHERE v > 3");
    let picky: Arc<dyn ExecutionPlan> = Arc::new(Picky(filtered().await));
    let outcome = forced(&ctx, &picky);
    assert_eq!(outcome.report.codes("FilterExec"), ["ConversionFailed"], "{}", outcome.report);
    assert!(outcome.report.to_string().contains("Picky: it takes no other child"), "{}", outcome.report);
    let both = UnionExec::try_new(vec![picky, filtered().await]).unwrap();
    let outcome = forced(&ctx, &both);
    assert_eq!(outcome.report.codes("FilterExec"), ["ConversionFailed"], "{}", outcome.report);
    assert_eq!(all(&outcome.plan, "GpuFilterExec").len(), 1, "{}", outcome.report);
    assert_eq!(all(&outcome.plan, "FilterExec").len(), 1, "{}", outcome.report);
}

/// DataFusion's own text is the whole plan, once for each node of the report.
#[tokio::test]
async fn what_fails_the_check_is_told_in_short() {
    let (ctx, _folder) = session().await;
    let filtered = cpu_plan(&ctx, "SELECT v FROM p WHERE v > 3").await;
    let by = PhysicalSortExpr::new_default(col("v", &filtered.schema()).unwrap());
    let unsorted: Arc<dyn ExecutionPlan> =
        Arc::new(SortPreservingMergeExec::new(LexOrdering::new([by]).unwrap(), filtered));
    let report = forced(&ctx, &unsorted).report;
    let [reason] = report.nodes[0].reasons.as_slice() else { panic!("{report}") };
    let text = reason.to_string();
    assert!(
        text.contains("SortPreservingMergeExec: does not satisfy order requirements: [v@0 ASC"),
        "{text}"
    );
    assert!(!text.contains("DataSourceExec") && text.len() < 250, "{text}");
}
