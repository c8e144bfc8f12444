//! Aggregate functions and keys of GROUP BY with every type, for docs/supported.md.

use std::sync::Arc;

use arrow::array::{RecordBatch, new_null_array};
use arrow::datatypes::DataType;
use datafusion::datasource::MemTable;
use datafusion::prelude::{SessionConfig, SessionContext};

use crate::config::{GpuOptions, Placement};
use crate::memory::DeviceCaps;
use crate::optimizer::offload;

use super::docs::Row;
use super::{Answer, schema_of, short, subjects};

/// Calls over column `a`, beside it `b` and `n`.
const CALLS: [&str; 24] = [
    "count(a)",
    "sum(a)",
    "avg(a)",
    "min(a)",
    "max(a)",
    "bool_and(a)",
    "bool_or(a)",
    "bit_and(a)",
    "bit_or(a)",
    "bit_xor(a)",
    "count(DISTINCT a)",
    "sum(DISTINCT a)",
    "median(a)",
    "stddev(a)",
    "var_pop(a)",
    "corr(a, b)",
    "first_value(a ORDER BY n)",
    "first_value(n ORDER BY a)",
    "last_value(a ORDER BY n)",
    "array_agg(a)",
    "string_agg(a, ',')",
    "approx_distinct(a)",
    "approx_median(a)",
    "approx_percentile_cont(0.5) WITHIN GROUP (ORDER BY a)",
];

/// Tables for the documentation: heading, and rows of what is asked and what was answered.
pub(super) async fn tables() -> Vec<(&'static str, Vec<(String, Row)>)> {
    let types = subjects();
    let sessions: Vec<_> = types.iter().map(session).collect();
    let (mut plain, mut grouped) = (vec![], vec![]);
    for call in CALLS {
        // Filtered, since DataFusion answers some of them from statistics.
        plain.push((call, row(&types, &sessions, &format!("SELECT {call} FROM t WHERE n > 0")).await));
        grouped.push((call, row(&types, &sessions, &format!("SELECT n, {call} FROM t GROUP BY n")).await));
    }
    let keys = [
        ("GROUP BY a", "SELECT a, count(*) FROM t GROUP BY a"),
        ("DISTINCT a", "SELECT DISTINCT a FROM t"),
        ("GROUP BY a, b", "SELECT a, b, max(n) FROM t GROUP BY a, b"),
        ("GROUP BY ROLLUP (a, n)", "SELECT a, n, count(*) FROM t GROUP BY ROLLUP (a, n)"),
        ("GROUP BY substr(a, 1, 2)", "SELECT count(*) FROM t GROUP BY substr(a, 1, 2)"),
    ];
    let mut by_key = vec![];
    for (shown, sql) in keys {
        by_key.push((shown, row(&types, &sessions, sql).await));
    }
    let named = |rows: Vec<(&str, Row)>| {
        rows.into_iter()
            .filter(|(_, row)| !row.is_empty())
            .map(|(name, row)| (name.to_owned(), row))
            .collect()
    };
    vec![
        ("Aggregates", named(plain)),
        ("Aggregates with GROUP BY", named(grouped)),
        ("Keys of GROUP BY", named(by_key)),
    ]
}

/// A session with table `t` of columns of the type.
fn session(ty: &DataType) -> SessionContext {
    let ctx = SessionContext::new_with_config(SessionConfig::new().with_target_partitions(1));
    let schema = schema_of(ty, true);
    let nulls = schema.fields().iter().map(|field| new_null_array(field.data_type(), 1)).collect();
    let row = RecordBatch::try_new(Arc::clone(&schema), nulls).expect("a row");
    let table = MemTable::try_new(schema, vec![vec![row]]).expect("a table");
    ctx.register_table("t", Arc::new(table)).expect("a table");
    ctx
}

async fn row(types: &[DataType], sessions: &[SessionContext], sql: &str) -> Row {
    let (mut row, caps) = (vec![], DeviceCaps::for_tests());
    for (ty, ctx) in types.iter().zip(sessions) {
        let answer = answer(ctx, sql, &caps).await;
        if answer != Answer::Unknown {
            row.push((ty.clone(), answer));
        }
    }
    row
}

/// What becomes of the aggregates of a query.
async fn answer(ctx: &SessionContext, sql: &str, caps: &DeviceCaps) -> Answer {
    let plan = match ctx.sql(sql).await {
        Ok(frame) => frame.create_physical_plan().await,
        Err(error) => Err(error),
    };
    let Ok(plan) = plan else { return Answer::Unknown };
    let options = GpuOptions { placement: Placement::Force, ..GpuOptions::default() };
    let report = offload(&plan, caps, &options, ctx.state().config_options()).report;
    let aggregates: Vec<_> = report.nodes.iter().filter(|node| node.cpu_name == "AggregateExec").collect();
    let mut reasons: Vec<_> = aggregates.iter().flat_map(|node| node.reasons.clone()).collect();
    reasons.dedup();
    match (aggregates.is_empty(), reasons.is_empty()) {
        (true, _) => Answer::Unknown,
        (false, true) => Answer::Gpu,
        (false, false) => Answer::Cpu(short(&reasons)),
    }
}
