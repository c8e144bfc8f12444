//! Options, estimates, and what is told of them.

use super::*;

#[tokio::test]
async fn automatic_placement_wants_rows_and_a_consumer() {
    let ctx = session(4);
    let report_of = async |sql: &str, options: &GpuOptions| report(&ctx, sql, options).await;
    let yes = report_of(Q, &auto()).await;
    assert!(yes.uses_gpu(), "{yes}");
    let mut options = auto();
    options.min_rows += 1;
    let no = report_of(Q, &options).await;
    assert!(!no.uses_gpu(), "{no}");
    assert_eq!(no.codes("FilterExec"), ["TooFewRows"]);
    assert_eq!(no.codes("CoalescePartitionsExec"), ["TooFewRows"]);
    assert!(no.to_string().contains("about 4000 input rows are fewer than gpu.min_rows = 4001"), "{no}");

    let lone = report_of("SELECT a FROM t WHERE b > 3", &auto()).await;
    assert_eq!(lone.codes("FilterExec"), ["LoneRowLocal"], "{lone}");
    // What is computed from the one row of the aggregate stays on the CPU too.
    let above = report_of("SELECT sum(a) + 1 FROM t WHERE b > 3", &auto()).await;
    assert!(above.uses_gpu());
    assert_eq!(above.codes("ProjectionExec"), ["LoneRowLocal"], "{above}");
}

#[tokio::test]
async fn row_counts_of_files_are_known() {
    let (ctx, _dir) = parquet_session(4).await;
    assert!(report(&ctx, Q, &auto()).await.uses_gpu());
    let mut options = auto();
    options.min_rows = 1_000_000;
    assert_eq!(report(&ctx, Q, &options).await.codes("FilterExec"), ["TooFewRows"]);
}

#[tokio::test]
async fn switched_off_or_without_device_the_plan_is_the_same() {
    let ctx = session(4);
    let (mut disabled, mut off) = (force(), force());
    disabled.enabled = false;
    off.placement = Placement::Off;
    for options in [disabled, off] {
        let (plan, outcome) = place(&ctx, Q, &options).await;
        assert!(Arc::ptr_eq(&plan, &outcome.plan));
        assert_eq!(outcome.report.codes("FilterExec"), ["Disabled"]);
    }
    let plan = ctx.sql(Q).await.unwrap().create_physical_plan().await.unwrap();
    let with = |change: fn(&mut DeviceCaps)| {
        let mut caps = DeviceCaps::for_tests();
        change(&mut caps);
        offload(&plan, &caps, &force(), ctx.state().config_options())
    };
    for (outcome, code) in [
        (with(|caps| caps.int64 = false), "NoInt64"),
        (with(|caps| caps.numerics.int64_exact = false), "NumericsProbe"),
    ] {
        assert!(Arc::ptr_eq(&plan, &outcome.plan));
        assert_eq!(outcome.report.codes("FilterExec"), [code]);
    }
    let few = with(|caps| caps.max_storage_buffers = 6).report;
    assert_eq!(few.codes("AggregateExec"), ["BindingLimit", "BindingLimit"], "{few}");
}

/// An adapter of WebGPU's default limits runs them however many columns they read.
#[tokio::test]
async fn eight_storage_buffers_are_enough() {
    let ctx = SessionContext::new();
    ctx.sql("CREATE TABLE w (a INT, b INT, c INT, d INT, e INT, f INT)").await.unwrap();
    let sql = "SELECT sum(d), sum(e), sum(f) FROM w WHERE a > 1 AND b > 2 AND c > 3";
    let plan = ctx.sql(sql).await.unwrap().create_physical_plan().await.unwrap();
    let caps = DeviceCaps { max_storage_buffers: 8, ..DeviceCaps::for_tests() };
    let report = offload(&plan, &caps, &force(), ctx.state().config_options()).report;
    assert!(report.uses_gpu() && report.codes("FilterExec").is_empty(), "{report}");
}

/// Capabilities of the adapter `Test`, the only one.
struct OneAdapter;

impl CapsSource for OneAdapter {
    fn caps(&self, options: &GpuOptions) -> GpuResult<Arc<DeviceCaps>> {
        if options.adapter == "Test" {
            Ok(Arc::new(DeviceCaps::for_tests()))
        } else {
            Err(GpuError::NoAdapter(options.adapter.clone()))
        }
    }
}

#[tokio::test]
async fn the_rule_reads_its_options_from_the_session() {
    let ctx = session(4);
    let mut config = ctx.state().config_options().as_ref().clone();
    let plan = ctx.sql(Q).await.unwrap().create_physical_plan().await.unwrap();
    config.extensions.insert(GpuOptions::default());
    config.set("gpu.placement", "off").unwrap();
    let rule = GpuOffload::new(Arc::new(OneAdapter));
    let same = rule.optimize(Arc::clone(&plan), &config).unwrap();
    assert!(Arc::ptr_eq(&plan, &same));
    config.set("gpu.placement", "force").unwrap();
    // Without an adapter the plan stays as it is; a name that no adapter has is an error.
    let report = rule.explain(&plan, &config);
    assert_eq!(report.codes("FilterExec"), ["NoAdapter"], "{report}");
    assert!(Arc::ptr_eq(&plan, &rule.optimize(Arc::clone(&plan), &config).unwrap()));
    config.set("gpu.adapter", "no such adapter").unwrap();
    assert!(rule.optimize(Arc::clone(&plan), &config).unwrap_err().to_string().contains("no such adapter"));
    assert_eq!(rule.explain(&plan, &config).codes("FilterExec"), ["NoAdapter"]);
    config.set("gpu.adapter", "Test").unwrap();
    assert!(rule.explain(&plan, &config).uses_gpu());
    assert!(text(&rule.optimize(Arc::clone(&plan), &config).unwrap()).contains("GpuAggregateExec"));
    // Plans without a candidate are not worth opening a device for.
    config.set("gpu.adapter", "no such adapter").unwrap();
    let plan = ctx.sql("SELECT * FROM t ORDER BY a").await.unwrap().create_physical_plan().await.unwrap();
    assert_eq!(rule.explain(&plan, &config).codes("SortExec"), ["UnsupportedOperator"]);
}

#[tokio::test]
async fn explain_shows_gpu_nodes() {
    let ctx = session(4);
    let (plan, outcome) = place(&ctx, Q, &force()).await;
    let shown = outcome.report.to_string();
    assert!(shown.contains("AggregateExec -> GpuAggregateExec"), "{shown}");
    assert!(shown.contains("CoalescePartitionsExec (part of GpuAggregateExec)"), "{shown}");
    assert!(shown.contains("[CPU] UnsupportedOperator: DataSourceExec has no GPU counterpart"), "{shown}");
    assert!(GpuExec::find(&plan).is_none());
    // The CPU plan was not touched by being converted.
    let batches = datafusion::physical_plan::collect(plan, ctx.task_ctx()).await.unwrap();
    let table = pretty_format_batches(&batches).unwrap().to_string();
    assert!(table.contains("sum(t.a)"), "{table}");
}
