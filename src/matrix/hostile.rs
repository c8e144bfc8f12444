//! Queries whose names and constants are hostile, on the device.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int32Array, Int64Array, RecordBatch, StringViewArray};
use arrow::compute::concat_batches;
use datafusion::datasource::MemTable;
use datafusion::prelude::SessionContext;

use crate::memory::faults::{Choke, Fault};

use super::shapes::{hostile, named, quoted};
use super::table::{Bench, batches};

async fn rows(ctx: &SessionContext, sql: &str) -> RecordBatch {
    let frame = ctx.sql(sql).await.unwrap_or_else(|error| panic!("{sql:.300}: {error}"));
    let plan = frame.create_physical_plan().await.expect("plan");
    let answer = datafusion::physical_plan::collect(Arc::clone(&plan), ctx.task_ctx()).await.expect("rows");
    concat_batches(&plan.schema(), &answer).expect("batches of one schema")
}

/// A table, an alias, columns and constants of that kind: the same rows as without the GPU, and those from the device.
#[tokio::test(flavor = "multi_thread")]
async fn hostile_names_and_constants_are_data() {
    let bench = Bench::new().await;
    let off = SessionContext::new();
    for (number, text) in hostile().into_iter().enumerate() {
        let names = [text.clone(), format!("{text}2"), format!("{text}3")];
        let [a, b, s] = [&names[0], &names[1], &names[2]];
        let (schema, predicates) = named([a, b, s], &text, 5);
        let texts = [Some(text.as_str()), None, Some("b"), Some("")];
        let columns: Vec<ArrayRef> = vec![
            Arc::new(Int64Array::from_iter((0..100i64).map(|v| (v % 7 != 0).then_some(v % 11)))),
            Arc::new(Int32Array::from_iter((0..100i32).map(|v| (v % 5 != 0).then_some(v % 9)))),
            Arc::new(StringViewArray::from_iter((0..100).map(|v| texts[v % texts.len()]))),
        ];
        let batch = RecordBatch::try_new(schema, columns).expect("batch");
        let table = format!("t{number}{text}");
        for ctx in [&bench.ctx, &off] {
            let source = MemTable::try_new(batch.schema(), vec![vec![batch.clone()]]).expect("table");
            ctx.register_table(datafusion::common::TableReference::bare(table.clone()), Arc::new(source))
                .expect("table");
        }
        let (table, alias) = (quoted(&table, '"'), quoted(&format!("{text} alias"), '"'));
        let list = predicates
            .iter()
            .enumerate()
            .map(|(at, sql)| format!("{sql} AS {}", quoted(&format!("{text}{at}"), '"')));
        let list = list.collect::<Vec<_>>().join(", ");
        let columns = [a, b, s].map(|name| quoted(name, '"'));
        for sql in [
            format!("SELECT {list} FROM {table} AS {alias}"),
            format!("SELECT {}, {} AS {alias} FROM {table} WHERE {}", columns[0], columns[2], predicates[0]),
            format!(
                "SELECT {} FROM {table} WHERE {} AND NOT {}",
                columns[1],
                predicates[3],
                predicates[2].replace("CASE", "1 < CASE")
            ),
            format!("SELECT count(*) AS {alias}, max({}) FROM {table} WHERE {}", columns[1], predicates[0]),
        ] {
            let (want, got) = (rows(&off, &sql).await, rows(&bench.ctx, &sql).await);
            assert_eq!(want, got, "{sql:.400}");
        }
        // The second query's filter is one that the device takes.
        let sql = format!("SELECT {} FROM {table} WHERE {}", columns[0], predicates[0]);
        let plan = bench.ctx.sql(&sql).await.expect("query").create_physical_plan().await.expect("plan");
        datafusion::physical_plan::collect(Arc::clone(&plan), bench.ctx.task_ctx()).await.expect("rows");
        assert_eq!((plan.name(), batches(&plan)), ("GpuFilterExec", (1, 0)), "{sql:.400}");
    }
}

/// What a shader computes is told when it is refused, and the CPU answers.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_shader_is_told_with_its_expressions() {
    let bench = Bench::new().await;
    let off = SessionContext::new();
    for ctx in [&bench.ctx, &off] {
        ctx.sql("CREATE TABLE t AS VALUES (1, 5), (2, NULL), (3, 7)")
            .await
            .expect("table")
            .collect()
            .await
            .expect("table");
    }
    let told = Arc::new(parking_lot::Mutex::new(vec![]));
    let into = Arc::clone(&told);
    bench.runtime.on_fallback(move |event| into.lock().push((event.code, event.message.clone()))).forever();
    for fault in [Fault::Fail, Fault::Panic, Fault::Misspell] {
        for (sql, expressions) in [
            ("SELECT column1 * column2 AS x FROM t WHERE column1 > 1", ["GpuFilterExec", "column1@0 > 1"]),
            ("SELECT count(*), max(column1) FROM t WHERE column2 < 7", ["GpuFilterExec", "column2@1 < 7"]),
        ] {
            told.lock().clear();
            bench.device.faults().order(Choke::Compile, 1, fault.clone());
            assert_eq!(rows(&bench.ctx, sql).await, rows(&off, sql).await, "{sql}");
            let told = told.lock().clone();
            assert!(!told.is_empty() && told.iter().all(|(code, _)| *code == "ShaderRejected"), "{told:?}");
            assert!(expressions.iter().all(|text| told[0].1.contains(text)), "{sql}: {told:?}");
            // Where the text is wrong, the line is named and shown.
            let parts: &[&str] =
                if matches!(fault, Fault::Misspell) { &["wgsl:", "injected fault"] } else { &[] };
            assert!(parts.iter().all(|part| told[0].1.contains(part)), "{sql}: {told:?}");
        }
    }
}
