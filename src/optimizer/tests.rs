//! Whole plans: what converts, what stays on the CPU and for which reason. No device is needed.

use std::sync::Arc;

use arrow::array::{ArrayRef, Decimal128Array, Float64Array, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::SchemaRef;
use arrow::util::pretty::pretty_format_batches;
use datafusion::datasource::MemTable;
use datafusion::parquet::arrow::ArrowWriter;
use datafusion::physical_plan::displayable;
use datafusion::physical_plan::execution_plan::reset_plan_states;
use datafusion::prelude::{ParquetReadOptions, SessionConfig, SessionContext};
use tempfile::TempDir;

use super::*;
use crate::config::{Exchanges, FloatSum};
use crate::error::GpuError;
use crate::physical_plan::GpuExec;

mod group_by;
mod inputs;
mod placement;

/// Rows of each of the four batches of table `t`.
const ROWS: i64 = 1_000;

fn batch(start: i64) -> RecordBatch {
    let values = || start..start + ROWS;
    let decimals =
        Decimal128Array::from_iter_values(values().map(i128::from)).with_precision_and_scale(15, 2);
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("a", Arc::new(Int64Array::from_iter_values(values()))),
        ("b", Arc::new(Int64Array::from_iter(values().map(|v| (v % 7 != 0).then_some(v % 100))))),
        ("f", Arc::new(Float64Array::from_iter(values().map(|v| (v % 5 != 0).then_some(v as f64))))),
        ("d", Arc::new(decimals.unwrap())),
        ("s", Arc::new(StringArray::from_iter_values(values().map(|v| format!("s{}", v % 3))))),
        ("\" ; -- x\ny", Arc::new(Int64Array::from_iter_values(values()))),
    ];
    RecordBatch::try_from_iter(columns).unwrap()
}

fn session(partitions: usize) -> SessionContext {
    let config = SessionConfig::new().with_target_partitions(partitions);
    let ctx = SessionContext::new_with_config(config);
    let parts = (0..4).map(|i| vec![batch(i * ROWS)]).collect();
    let table = MemTable::try_new(batch(0).schema(), parts).unwrap();
    ctx.register_table("t", Arc::new(table)).unwrap();
    ctx
}

async fn parquet_session(partitions: usize) -> (SessionContext, TempDir) {
    let dir = TempDir::new().unwrap();
    for i in 0..4 {
        let file = std::fs::File::create(dir.path().join(format!("{i}.parquet"))).unwrap();
        let mut writer = ArrowWriter::try_new(file, batch(0).schema(), None).unwrap();
        writer.write(&batch(i * ROWS)).unwrap();
        writer.close().unwrap();
    }
    let config = SessionConfig::new().with_target_partitions(partitions);
    let ctx = SessionContext::new_with_config(config);
    let path = dir.path().to_str().unwrap();
    ctx.register_parquet("t", path, ParquetReadOptions::default()).await.unwrap();
    (ctx, dir)
}

/// Options with a row threshold that table `t` reaches.
fn auto() -> GpuOptions {
    GpuOptions { min_rows: 4_000, ..GpuOptions::default() }
}

fn force() -> GpuOptions {
    GpuOptions { placement: Placement::Force, ..GpuOptions::default() }
}

async fn place(ctx: &SessionContext, sql: &str, options: &GpuOptions) -> (Arc<dyn ExecutionPlan>, Outcome) {
    let plan = ctx.sql(sql).await.unwrap().create_physical_plan().await.unwrap();
    // A software adapter has no estimates, which cost::tests looks at.
    let caps = DeviceCaps { device_type: AdapterKind::Software, ..DeviceCaps::for_tests() };
    let outcome = offload(&plan, &caps, options, ctx.state().config_options());
    (plan, outcome)
}

async fn report(ctx: &SessionContext, sql: &str, options: &GpuOptions) -> PlacementReport {
    place(ctx, sql, options).await.1.report
}

/// Names of the plan's nodes, from the root down the first child.
fn chain(plan: &Arc<dyn ExecutionPlan>) -> Vec<String> {
    let mut names = vec![plan.name().to_string()];
    let mut node = Arc::clone(plan);
    while let Some(child) = plan_child(&node) {
        names.push(child.name().to_string());
        node = child;
    }
    names
}

fn plan_child(plan: &Arc<dyn ExecutionPlan>) -> Option<Arc<dyn ExecutionPlan>> {
    let children = plan.children();
    children.first().copied().cloned()
}

fn text(plan: &Arc<dyn ExecutionPlan>) -> String {
    displayable(plan.as_ref()).indent(true).to_string()
}

const Q: &str =
    "SELECT sum(a), count(*), min(b), max(f), avg(d), avg(a) FROM t WHERE b < 50 AND f IS NOT NULL";

#[tokio::test]
async fn a_pair_with_its_exchange_becomes_one_node() {
    for ctx in [session(4), parquet_session(4).await.0] {
        let (plan, outcome) = place(&ctx, Q, &force()).await;
        let cpu = chain(&plan);
        assert!(cpu.contains(&"CoalescePartitionsExec".to_string()), "{cpu:?}");
        let gpu = chain(&outcome.plan);
        let below: Vec<_> = gpu.iter().skip_while(|name| *name != "GpuAggregateExec").collect();
        assert_eq!(below[..2], ["GpuAggregateExec", "GpuFilterExec"], "{gpu:?}");
        assert!(
            !gpu.iter().any(|name| name == "AggregateExec" || name == "CoalescePartitionsExec"),
            "{gpu:?}"
        );
        assert_eq!(outcome.plan.schema(), plan.schema());
        let report = outcome.report;
        let covered: Vec<_> =
            report.nodes.iter().filter(|n| n.placement == NodePlacement::PartOfGpu).collect();
        assert_eq!(covered.len(), 2, "{report}");
        assert!(covered.iter().all(|n| n.gpu_name.as_deref() == Some("GpuAggregateExec")));
        assert_eq!(report.codes("DataSourceExec"), ["UnsupportedOperator"]);
    }
}

#[tokio::test]
async fn rows_stay_on_the_device_only_below_a_gpu_node() {
    let ctx = session(1);
    for (sql, output) in [
        (Q, "device"),
        ("SELECT a FROM t WHERE b > 3", "host"),
        ("SELECT a FROM t WHERE b > 3 ORDER BY a", "host"),
    ] {
        let plan = place(&ctx, sql, &force()).await.1.plan;
        // What later rules do with the children of nodes.
        let shown = text(&reset_plan_states(plan).unwrap());
        let filter = shown.lines().find(|line| line.contains("GpuFilterExec")).unwrap();
        assert!(filter.ends_with(&format!("input=host, output={output}")), "{shown}");
    }
}

#[tokio::test]
async fn a_single_aggregate_converts() {
    let ctx = session(1);
    let (plan, outcome) = place(&ctx, Q, &force()).await;
    // A memory table keeps its four partitions; a file scan has the one that was asked for.
    assert!(chain(&plan).contains(&"AggregateExec".to_string()));
    let (ctx, _dir) = parquet_session(1).await;
    let (plan, single) = place(&ctx, Q, &force()).await;
    assert!(text(&plan).contains("mode=Single"), "{}", text(&plan));
    for outcome in [outcome, single] {
        let names = chain(&outcome.plan);
        assert!(names.contains(&"GpuAggregateExec".to_string()), "{names:?}");
        assert!(!names.contains(&"AggregateExec".to_string()), "{names:?}");
    }
}

#[tokio::test]
async fn kept_exchanges_part_the_steps_and_leave_rounded_states_on_the_cpu() {
    let ctx = session(4);
    let mut options = force();
    options.exchanges = Exchanges::Keep;
    let exact = "SELECT sum(a), count(b), min(f), avg(d) FROM t WHERE b < 50";
    let (plan, outcome) = place(&ctx, exact, &options).await;
    let names = chain(&outcome.plan);
    assert_eq!(names.len(), chain(&plan).len(), "one node each: {names:?}");
    let wanted = ["GpuAggregateExec", "CoalescePartitionsExec", "GpuAggregateExec", "GpuFilterExec"];
    let below: Vec<_> = names.iter().skip_while(|name| *name != "GpuAggregateExec").take(4).collect();
    assert_eq!(below, wanted, "{names:?}");
    assert!(text(&outcome.plan).contains("mode=Final"), "{}", text(&outcome.plan));
    assert!(outcome.report.codes("AggregateExec").is_empty(), "{}", outcome.report);

    let (_, outcome) = place(&ctx, "SELECT avg(a) FROM t WHERE b < 50", &options).await;
    assert_eq!(outcome.report.codes("AggregateExec"), ["RoundedState", "RoundedState"]);
    let (_, outcome) = place(&ctx, "SELECT sum(f) FROM t WHERE b < 50", &options).await;
    assert_eq!(outcome.report.codes("AggregateExec"), ["RoundedState", "RoundedState"]);
}

#[tokio::test]
async fn filters_keep_projection_and_fetch() {
    let ctx = session(4);
    let (plan, outcome) = place(&ctx, "SELECT s FROM t WHERE b > 3 LIMIT 7", &force()).await;
    assert!(text(&plan).contains("projection="), "{}", text(&plan));
    let shown = text(&outcome.plan);
    assert!(shown.contains("GpuFilterExec: predicate=b@0 > 3, projection=[1], fetch=7"), "{shown}");
    assert_eq!(outcome.plan.schema(), plan.schema());
}

#[tokio::test]
async fn aggregates_decline_with_their_reasons() {
    let ctx = session(4);
    for (call, code) in [
        ("max(ln(f))", "FloatArithmetic"),
        ("sum(DISTINCT a), count(DISTINCT b)", "Distinct"),
        ("array_agg(a ORDER BY b)", "OrderSensitive"),
        ("first_value(a)", "OrderSensitive"),
        ("first_value(a ORDER BY f)", "UnsupportedAggregate"),
        ("first_value(a ORDER BY b, a)", "UnsupportedAggregate"),
        ("last_value(a ORDER BY b) IGNORE NULLS", "UnsupportedAggregate"),
        ("last_value(a ORDER BY b)", "UnsupportedAggregate"),
        ("first_value(s || CAST(b AS VARCHAR) ORDER BY b)", "UnsupportedExpression"),
        ("stddev(a)", "UnsupportedAggregate"),
        ("median(a)", "UnsupportedAggregate"),
        ("min(s || CAST(b AS VARCHAR))", "UnsupportedExpression"),
        ("avg(d * d)", "UnsupportedAggregate"),
        ("sum(a) FILTER (WHERE s = s || 'x' AND s = CAST(b AS VARCHAR))", "UnsupportedExpression"),
    ] {
        let report = report(&ctx, &format!("SELECT {call} FROM t WHERE b < 50"), &force()).await;
        let codes = report.codes("AggregateExec");
        assert!(codes.contains(&code), "{call}: {report}");
        let stays = report.nodes.iter().filter(|n| n.cpu_name == "AggregateExec");
        assert!(stays.into_iter().all(|n| n.placement == NodePlacement::Cpu), "{call}: {report}");
    }
}

#[tokio::test]
async fn aggregates_convert() {
    let ctx = session(4);
    for call in [
        "count(*)",
        "count(1)",
        "count(a, b, f)",
        // Never NULL: there is nothing to look at, whatever the type.
        "count(s)",
        "count(b) FILTER (WHERE a > 3)",
        "sum(a) FILTER (WHERE b IS NULL), sum(d)",
        "min(a), max(b), min(d), max(f)",
        "min(b > 3), max(b > 3), count(b > 3)",
        "bool_and(b > 3), bool_or(f IS NULL)",
        "bit_and(a), bit_or(b), bit_xor(a + b)",
        "min(s), max(upper(s)), count(*), avg(a)",
        "first_value(s ORDER BY a), last_value(d ORDER BY d DESC NULLS LAST) FILTER (WHERE b > 3), max(a)",
        "first_value(a / b ORDER BY s)",
        "avg(a), avg(b), avg(d)",
        "sum(f), avg(f), sum(f) FILTER (WHERE a > 3), avg(-f)",
        "sum(arrow_cast(f, 'Float32')), avg(arrow_cast(f, 'Float32'))",
        "avg(a + b)",
        "sum(d * d)",
        "min(date '1994-01-01'), max(7)",
    ] {
        let sql = format!("SELECT {call} FROM t WHERE b < 50");
        let report = report(&ctx, &sql, &force()).await;
        let gpu = report.nodes.iter().any(|n| n.gpu_name.as_deref() == Some("GpuAggregateExec"));
        assert!(gpu, "{call}: {report}");
    }
}

/// Sums of floats are exact, and need no float instruction, or are left alone.
#[tokio::test]
async fn sums_of_floats_say_how_they_are_computed() {
    let ctx = session(4);
    let without = DeviceCaps { float64: false, ..DeviceCaps::for_tests() };
    for (call, exact) in [("sum(f)", true), ("avg(f)", true), ("avg(a)", true), ("sum(a)", false)] {
        let sql = format!("SELECT {call} FROM t WHERE b < 50");
        let (_, outcome) = place(&ctx, &sql, &force()).await;
        let shown = text(&outcome.plan);
        assert!(shown.contains("GpuAggregateExec"), "{shown}");
        assert_eq!(shown.contains("float_sum=exact"), exact, "{shown}");
        let mut options = force();
        options.float_sum = FloatSum::Cpu;
        let (_, outcome) = place(&ctx, &sql, &options).await;
        let codes = outcome.report.codes("AggregateExec");
        assert_eq!(codes.contains(&"FloatSumOnCpu"), exact, "{}", outcome.report);
        assert_eq!(text(&outcome.plan).contains("GpuAggregateExec"), !exact);
        let plan = ctx.sql(&sql).await.unwrap().create_physical_plan().await.unwrap();
        let report = offload(&plan, &without, &force(), ctx.state().config_options()).report;
        assert!(report.codes("AggregateExec").is_empty(), "{report}");
    }
}

#[tokio::test]
async fn a_function_of_the_same_name_is_another_function() {
    use datafusion::arrow::datatypes::DataType;
    use datafusion::functions_aggregate::sum::sum_udaf;
    use datafusion::logical_expr::{Volatility, create_udaf};
    let ctx = session(4);
    let udaf = create_udaf(
        "sum",
        vec![DataType::Int64],
        Arc::new(DataType::Int64),
        Volatility::Immutable,
        Arc::new(|args| sum_udaf().accumulator(args)),
        Arc::new(vec![DataType::Int64]),
    );
    ctx.register_udaf(udaf);
    let report = report(&ctx, "SELECT sum(a) FROM t WHERE b < 50", &force()).await;
    assert!(report.codes("AggregateExec").contains(&"UnsupportedAggregate"), "{report}");
}

#[tokio::test]
async fn projections_inside_an_island_convert_and_lone_renames_do_not() {
    let ctx = session(4);
    let sql =
        "SELECT sum(x), min(y) FROM (SELECT a * 2 + b AS x, b - 1 AS y, s FROM t WHERE b < 50) WHERE x > 10";
    let (_, outcome) = place(&ctx, sql, &auto()).await;
    let names = chain(&outcome.plan);
    assert!(names.contains(&"GpuAggregateExec".to_string()), "{names:?}");
    assert!(!names.contains(&"FilterExec".to_string()), "{names:?}");

    let rename = report(&ctx, "SELECT a AS z FROM t LIMIT 3", &force()).await;
    assert!(!rename.uses_gpu(), "{rename}");
    let above = report(&ctx, "SELECT count(*) FROM t WHERE b < 50", &force()).await;
    assert_eq!(above.codes("ProjectionExec"), ["NothingToCompute"], "{above}");
    assert!(above.uses_gpu());
    let sql = "SELECT count(*), min(a) FROM (SELECT a, b FROM t WHERE b > 3 LIMIT 40 OFFSET 7)";
    let below = report(&ctx, sql, &force()).await;
    assert_eq!(below.codes("ProjectionExec"), ["NothingToCompute", "NothingToCompute"], "{below}");
    let computed = report(&ctx, "SELECT a * 2 AS z, s FROM t", &force()).await;
    assert!(computed.nodes.iter().any(|n| n.gpu_name.as_deref() == Some("GpuProjectionExec")), "{computed}");
}

#[tokio::test]
async fn scalar_subqueries_become_parameters() {
    let ctx = session(4);
    let sql = "SELECT sum(a) FROM t WHERE a > (SELECT min(b) FROM t WHERE a > 5)";
    let (plan, outcome) = place(&ctx, sql, &force()).await;
    assert!(text(&plan).contains("ScalarSubqueryExec"), "{}", text(&plan));
    let shown = text(&outcome.plan);
    assert_eq!(shown.matches("GpuAggregateExec").count(), 2, "{shown}");
    assert!(shown.contains("scalar_subquery(<pending>)"), "{shown}");
    // What is computed from a subquery and may raise is computed in the kernel, for the rows that there are.
    let raising = "SELECT sum(a) FROM t WHERE a > (SELECT min(b) FROM t WHERE a > 5) / 2";
    assert_eq!(report(&ctx, raising, &force()).await.codes("FilterExec"), Vec::<&str>::new());
    let widened = "SELECT sum(a) FROM t WHERE d > (SELECT avg(d) FROM t WHERE a > 5)";
    assert_eq!(report(&ctx, widened, &force()).await.codes("FilterExec"), Vec::<&str>::new());
}

#[tokio::test]
async fn hostile_names_change_nothing() {
    let ctx = session(4);
    let sql = "SELECT sum(\"\"\" ; -- x\ny\") AS \"a\nb\" FROM t WHERE \"\"\" ; -- x\ny\" > 5";
    let (plan, outcome) = place(&ctx, sql, &force()).await;
    assert!(outcome.report.uses_gpu(), "{}", outcome.report);
    assert_eq!(outcome.plan.schema(), plan.schema());
    let lines = outcome.report.to_string().lines().count();
    assert_eq!(lines, outcome.report.nodes.len(), "one line a node");
}

#[tokio::test]
async fn nodes_survive_a_rebuild_by_other_rules() {
    let ctx = session(4);
    let (_, outcome) = place(&ctx, Q, &force()).await;
    let rebuilt = reset_plan_states(Arc::clone(&outcome.plan)).unwrap();
    assert_eq!(text(&rebuilt), text(&outcome.plan));
    assert!(text(&rebuilt).contains("GpuAggregateExec"));
}

#[tokio::test]
async fn a_limit_below_an_aggregate_is_not_dropped() {
    let ctx = session(4);
    let (plan, outcome) =
        place(&ctx, "SELECT sum(a) FROM (SELECT a FROM t WHERE b > 3 LIMIT 10)", &force()).await;
    let limits = |plan: &Arc<dyn ExecutionPlan>| text(plan).matches("fetch=10").count();
    assert_eq!(limits(&outcome.plan), limits(&plan), "{}\n{}", text(&plan), text(&outcome.plan));
    assert!(limits(&plan) > 0);
}

#[tokio::test]
async fn a_conversion_that_fails_keeps_the_cpu_plan() {
    let ctx = session(4);
    let plan = ctx.sql(Q).await.unwrap().create_physical_plan().await.unwrap();
    let (caps, options) = (DeviceCaps::for_tests(), force());
    let mut tagged = Tagged::new(&plan, &RuleContext { caps: &caps, options: &options });
    let islands = review::review(&mut tagged, &options, None);
    for node in &mut tagged.nodes {
        if let tag::Verdict::Gpu(proposal) = &mut node.verdict {
            proposal.nodes = 99;
        }
    }
    let outcome = finish(&plan, tagged, &islands, ctx.state().config_options());
    assert!(Arc::ptr_eq(&outcome.plan, &plan));
    assert_eq!(outcome.report.codes("FilterExec"), ["ConversionFailed"]);
}
