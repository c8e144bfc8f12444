//! GROUP BY: which nodes become one, which partitions and reasons there are.

use super::*;

/// Lines of the plan's text, from the root down.
fn lines(plan: &Arc<dyn ExecutionPlan>) -> Vec<String> {
    text(plan).lines().map(|line| line.trim().to_string()).collect()
}

#[tokio::test]
async fn a_pair_with_its_hash_exchange_becomes_one_node() {
    for ctx in [session(4), parquet_session(4).await.0] {
        let sql = "SELECT b, sum(a), count(*) FROM t WHERE a > 5 GROUP BY b";
        let (plan, outcome) = place(&ctx, sql, &force()).await;
        let cpu = chain(&plan);
        assert!(cpu.contains(&"RepartitionExec".to_string()), "{cpu:?}");
        let gpu = chain(&outcome.plan);
        let below: Vec<_> = gpu.iter().skip_while(|name| *name != "GpuAggregateExec").collect();
        assert_eq!(below[..2], ["GpuAggregateExec", "GpuFilterExec"], "{gpu:?}");
        assert!(!gpu.contains(&"AggregateExec".to_string()), "{gpu:?}");
        assert_eq!(outcome.plan.schema(), plan.schema());
        let shown = text(&outcome.plan);
        assert!(shown.contains("mode=Collapsed, gby=[b@"), "{shown}");
        let covered = outcome.report.nodes.iter().filter(|n| n.placement == NodePlacement::PartOfGpu);
        assert!(covered.count() >= 2, "{}", outcome.report);
    }
}

/// CPU nodes above get the partitions that they were planned on; one that takes them together needs no exchange before it.
#[tokio::test]
async fn partitions_come_back_where_they_are_relied_on() {
    let ctx = session(4);
    let joined = "SELECT x.b, x.n, y.m FROM (SELECT b, count(*) AS n FROM t GROUP BY b) x \
                  JOIN (SELECT b, max(a) AS m FROM t GROUP BY b) y ON x.b = y.b";
    let (plan, outcome) = place(&ctx, joined, &force()).await;
    let (cpu, gpu) = (text(&plan), text(&outcome.plan));
    assert!(outcome.report.uses_gpu() && gpu.matches("GpuAggregateExec").count() == 2, "{gpu}");
    if cpu.contains("mode=Partitioned") {
        assert_eq!(gpu.matches("RepartitionExec: partitioning=Hash([b@0], 4)").count(), 2, "{gpu}");
    }
    let sorted = place(&ctx, "SELECT b, count(*) FROM t GROUP BY b ORDER BY b", &force()).await.1;
    let shown = lines(&sorted.plan);
    let at = shown.iter().position(|line| line.starts_with("GpuAggregateExec")).unwrap();
    // Who sorts does not ask for keys.
    assert!(shown[at - 1].contains("partitioning=RoundRobinBatch(4), input_partitions=1"), "{shown:?}");
    // The distinct values are counted by a GPU node, which takes one partition as well as several.
    let counted = place(&ctx, "SELECT count(DISTINCT b) FROM t", &force()).await.1;
    let shown = lines(&counted.plan);
    assert_eq!(shown.iter().filter(|line| line.starts_with("GpuAggregateExec")).count(), 2, "{shown:?}");
    assert!(!shown.iter().any(|line| line.contains("partitioning=Hash")), "{shown:?}");
    let union = "SELECT b, count(*) FROM t GROUP BY b UNION ALL SELECT a, count(*) FROM t GROUP BY a";
    for sql in [union, &format!("SELECT b, count(*) FROM ({union}) GROUP BY b")] {
        let outcome = place(&ctx, sql, &force()).await.1;
        assert!(outcome.report.uses_gpu(), "{}", outcome.report);
        assert!(outcome.report.codes("AggregateExec").is_empty(), "{}", outcome.report);
    }
}

#[tokio::test]
async fn kept_exchanges_part_the_steps() {
    let ctx = session(4);
    let mut options = force();
    options.exchanges = Exchanges::Keep;
    let (plan, outcome) = place(&ctx, "SELECT b, sum(a), avg(d) FROM t GROUP BY b", &options).await;
    let names = chain(&outcome.plan);
    assert_eq!(names.len(), chain(&plan).len(), "one node each: {names:?}");
    let below: Vec<_> = names.iter().skip_while(|name| *name != "GpuAggregateExec").take(3).collect();
    assert_eq!(below, ["GpuAggregateExec", "RepartitionExec", "GpuAggregateExec"], "{names:?}");
    assert!(text(&outcome.plan).contains("mode=Final, gby=[b@0]"), "{}", text(&outcome.plan));
    let (_, outcome) = place(&ctx, "SELECT b, avg(a) FROM t GROUP BY b", &options).await;
    assert_eq!(outcome.report.codes("AggregateExec"), ["RoundedState", "RoundedState"]);
    let first = "SELECT b, first_value(a ORDER BY d) FROM t GROUP BY b";
    let (_, outcome) = place(&ctx, first, &options).await;
    assert_eq!(outcome.report.codes("AggregateExec"), ["OrderSensitive"]);

    // Where the estimate decides, few states are not worth their way.
    options.placement = Placement::Auto;
    options.min_rows = 0;
    let (_, outcome) = place(&ctx, "SELECT b, sum(a) FROM t GROUP BY b", &options).await;
    assert!(outcome.report.codes("AggregateExec").contains(&"ExchangesKept"), "{}", outcome.report);
}

#[tokio::test]
async fn keys_of_all_kinds_convert() {
    let ctx = session(4);
    for keys in [
        "b",
        "a % 10, b",
        "f",
        "d",
        "s",
        "upper(s)",
        "length(s), b",
        "s, substr(s, 1, 1), s IS NULL",
        "b > 3",
        "CASE WHEN b > 3 THEN 'many' ELSE 'few' END = 'few'",
        "ROLLUP (b, s)",
        "CUBE (b, a % 2)",
        "GROUPING SETS ((b), (s), ())",
    ] {
        let sql = format!("SELECT count(*), max(a) FROM t WHERE a > 5 GROUP BY {keys}");
        let report = report(&ctx, &sql, &force()).await;
        assert!(report.codes("AggregateExec").is_empty(), "{keys}: {report}");
        let sql = format!("SELECT DISTINCT {keys} FROM t");
        if !keys.contains("ROLLUP") && !keys.contains("CUBE") && !keys.contains("SETS") {
            let report = self::report(&ctx, &sql, &force()).await;
            assert!(report.codes("AggregateExec").is_empty(), "{keys}: {report}");
        }
    }
}

/// Sums of floats are exact in groups too, and need no float instruction, or are left alone; a partial step alone would round.
#[tokio::test]
async fn sums_of_floats() {
    let ctx = session(4);
    let without = DeviceCaps { float64: false, ..DeviceCaps::for_tests() };
    let calls = [
        ("sum(f)", true),
        ("avg(f) FILTER (WHERE a > 3)", true),
        ("sum(CAST(f AS REAL))", true),
        ("avg(a)", true),
        ("sum(DISTINCT f)", true),
        ("max(f)", false),
    ];
    for ((call, exact), by) in calls.into_iter().zip(["b", "s", "b % 3, s", "b", "b", "ROLLUP (b, s)"]) {
        let sql = format!("SELECT {call}, count(*) FROM t WHERE b < 50 GROUP BY {by}");
        let sql = if call.contains("DISTINCT") { sql.replace(", count(*)", "") } else { sql };
        let (_, outcome) = place(&ctx, &sql, &force()).await;
        let shown = text(&outcome.plan);
        assert!(outcome.report.codes("AggregateExec").is_empty(), "{sql}: {}", outcome.report);
        assert_eq!(shown.contains("float_sum=exact"), exact, "{shown}");
        let mut options = force();
        options.float_sum = FloatSum::Cpu;
        let (_, outcome) = place(&ctx, &sql, &options).await;
        let codes = outcome.report.codes("AggregateExec");
        assert_eq!(codes.contains(&"FloatSumOnCpu"), exact, "{}", outcome.report);
        let mut options = force();
        options.exchanges = Exchanges::Keep;
        let (_, outcome) = place(&ctx, &sql, &options).await;
        let codes = outcome.report.codes("AggregateExec");
        assert_eq!(codes.contains(&"RoundedState"), exact, "{}", outcome.report);
        let plan = ctx.sql(&sql).await.unwrap().create_physical_plan().await.unwrap();
        let report = offload(&plan, &without, &force(), ctx.state().config_options()).report;
        let casts = call.contains("CAST");
        assert!(casts || report.codes("AggregateExec").is_empty(), "{report}");
    }
}

#[tokio::test]
async fn groups_decline_with_their_reasons() {
    let ctx = session(4);
    for (select, rest, code) in [
        ("count(*)", "GROUP BY s || CAST(b AS VARCHAR)", "UnsupportedType"),
        ("count(*)", "GROUP BY [b]", "UnsupportedType"),
        ("count(*)", "GROUP BY ln(f)", "FloatArithmetic"),
        ("b, stddev(a)", "GROUP BY b", "UnsupportedAggregate"),
        ("b, array_agg(a ORDER BY f)", "GROUP BY b", "OrderSensitive"),
        ("b, sum(DISTINCT a), count(DISTINCT f)", "GROUP BY b", "Distinct"),
        ("a, count(*)", "GROUP BY a ORDER BY a LIMIT 0", ""),
    ] {
        let report = report(&ctx, &format!("SELECT {select} FROM t {rest}"), &force()).await;
        let codes = report.codes("AggregateExec");
        assert!(code.is_empty() || codes.contains(&code), "{select} {rest}: {report}");
    }
    let ordered = "SELECT a, count(*) FROM (SELECT a, b FROM t ORDER BY a LIMIT 100) GROUP BY a";
    let report = report(&ctx, ordered, &force()).await;
    assert!(report.codes("AggregateExec").contains(&"OrderedGrouping"), "{report}");
}

/// The CPU stops at the limit, so that only 'force' takes the work away from it.
#[tokio::test]
async fn soft_limits() {
    let ctx = session(4);
    for sql in [
        "SELECT DISTINCT b FROM t LIMIT 3",
        "SELECT b, max(a) AS m FROM t GROUP BY b ORDER BY m DESC LIMIT 3",
    ] {
        let plan = place(&ctx, sql, &force()).await.0;
        assert!(text(&plan).contains("lim=["), "{}", text(&plan));
        let auto = report(&ctx, sql, &auto()).await;
        assert!(auto.codes("AggregateExec").contains(&"SoftLimit"), "{auto}");
        let forced = report(&ctx, sql, &force()).await;
        assert!(forced.uses_gpu() && forced.codes("AggregateExec").is_empty(), "{forced}");
    }
    // The CPU's search for the best groups compares floats in its own way.
    let best = "SELECT b, max(f) AS m FROM t GROUP BY b ORDER BY m DESC NULLS LAST LIMIT 3";
    let report = report(&ctx, best, &force()).await;
    assert!(report.codes("AggregateExec").contains(&"SoftLimit"), "{report}");
}
