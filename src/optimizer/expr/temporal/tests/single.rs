//! Timestamps that DataFusion has as one value for all rows, which it truncates in another way than columns.

use datafusion::logical_expr::physical_planning_context::{ScalarSubqueryResults, SubqueryIndex};
use datafusion::physical_expr::scalar_subquery::ScalarSubqueryExpr;

use crate::kernels::expr::{Function, TemporalFn};
use crate::physical_plan::params::ParamTable;

use super::*;

const ALL: [&str; 10] =
    ["microsecond", "millisecond", "second", "minute", "hour", "day", "week", "month", "quarter", "year"];

/// A batch of one row takes one branch, which is such a value or a column. Columns are truncated as ever.
#[tokio::test]
async fn truncation_of_what_may_be_one_value() {
    let mut sqls = vec![];
    for to in ALL {
        // Half a microsecond before a second that is before 1970.
        let constant = "TIMESTAMP '1969-12-31T23:59:58.999999500'";
        sqls.push(format!("date_trunc('{to}', CASE WHEN i64 > 0 THEN {constant} ELSE ts_ns END)"));
    }
    for (to, digits, name) in [("millisecond", 6, "us"), ("day", 0, "s"), ("hour", 0, "s")] {
        for constant in [-1_500i64, 1_500, 32_503_680_000, -i64::MAX, i64::MAX] {
            let constant = format!("CAST({constant} AS TIMESTAMP({digits}))");
            sqls.push(format!("date_trunc('{to}', CASE WHEN i8 > 0 THEN {constant} ELSE ts_{name} END)"));
        }
    }
    sqls.push(
        "date_trunc('microsecond', CASE WHEN ts_ns > ts_nsr THEN ts_ns ELSE CAST(-1 AS TIMESTAMP) END)"
            .to_owned(),
    );
    sqls.push("date_trunc('second', CASE WHEN i8 > 0 THEN TIME '01:02:03.4' ELSE t_ns END)".to_owned());
    all_ways(&sqls, true).await;
}

fn truncated(table: &Table, sql: &str) -> (TemporalFn, Arc<Expr>) {
    let (lowered, _) = table.lower(&table.plan(sql)).unwrap();
    let Expr::Call { function: Function::Temporal(function), args, .. } = lowered.as_ref() else {
        panic!("{sql} is {lowered:?}")
    };
    (*function, Arc::clone(&args[0]))
}

#[test]
fn only_what_may_be_one_value_faults() {
    let table = table();
    for (sql, wanted) in [
        ("date_trunc('day', ts_s)", false),
        ("date_trunc('day', CASE WHEN i8 > 0 THEN ts_s ELSE ts_sr END)", false),
        ("date_trunc('day', CASE WHEN i8 > 0 THEN ts_s ELSE CAST(5 AS TIMESTAMP(0)) END)", true),
        ("date_trunc('day', CASE WHEN i8 > 0 THEN ts_s END)", true),
    ] {
        let (function, _) = truncated(&table, sql);
        assert!(
            matches!(function, TemporalFn::Trunc { single, .. } if single == wanted),
            "{sql}: {function:?}"
        );
        assert_eq!(
            function.may_fault(&[Timestamp { unit: TimeUnit::Second, zone: Zone::None }], Int64),
            wanted
        );
    }
}

/// DataFusion computes what reads no column, once; what raises there is left to it, batch by batch.
#[test]
fn a_truncated_subquery_is_a_parameter() {
    let (results, index) = (ScalarSubqueryResults::new(1), SubqueryIndex::new(0));
    let ty = DataType::Timestamp(TimeUnit::Nanosecond, None);
    let subquery = ScalarSubqueryExpr::new(ty, true, index, results.clone());
    let table = table();
    let trunc = table.plan("date_trunc('millisecond', ts_ns)");
    let literal = Arc::clone(trunc.children()[0]);
    let trunc = Arc::clone(&trunc).with_new_children(vec![literal, Arc::new(subquery)]).unwrap();
    let mut lowering = Lowering::new(Arc::clone(&table.schema));
    let lowered = lowering.lower(&trunc);
    let (lowered, params): (Arc<Expr>, ParamTable) =
        lowering.finish(&DeviceCaps::for_tests(), lowered).unwrap();
    assert!(matches!(lowered.as_ref(), Expr::Param { slot: 0, .. }), "{lowered:?}");
    assert!(params.resolve().is_err(), "it has no value yet");
    results.set(index, ScalarValue::TimestampNanosecond(Some(-500), None)).unwrap();
    assert_eq!(params.resolve().unwrap().values[0].1, Some(0), "toward zero");
}
