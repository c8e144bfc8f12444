//! first_value and last_value with ORDER BY: kernels find the rows, values of any type come from the host.

use std::sync::Arc;

use datafusion::arrow::array::{
    ArrayRef, BooleanArray, DictionaryArray, Int64Array, ListArray, RecordBatch, StringViewArray,
    StructArray, Time64NanosecondArray,
};
use datafusion::arrow::datatypes::{DataType, Field, Int32Type, Int64Type};
use datafusion::datasource::MemTable;

use crate::group_by::in_both_scopes;
use crate::harness::{Gpu, Ran, TestResult, cpu, expected, register_files, run, write_files};

/// Each order tells rows apart, or rows that tie have the same value.
const QUERIES: [&str; 13] = [
    "SELECT k, first_value(s ORDER BY id), last_value(s ORDER BY id) FROM t GROUP BY k",
    "SELECT k % 7, first_value(f ORDER BY id DESC), last_value(d ORDER BY id), count(*), sum(v) FROM t \
     WHERE v > 20000 GROUP BY k % 7",
    "SELECT k % 7, first_value(k ORDER BY k NULLS FIRST), first_value(k ORDER BY k NULLS LAST), \
     last_value(k ORDER BY k NULLS FIRST), last_value(k ORDER BY k DESC NULLS LAST) FROM t GROUP BY k % 7",
    "SELECT s, first_value(day ORDER BY day), last_value(d ORDER BY d), max(v) FROM t GROUP BY s",
    "SELECT k % 5, first_value(id ORDER BY id) FILTER (WHERE v > 99000), \
     last_value(s ORDER BY id) FILTER (WHERE f IS NULL), count(*) FROM t GROUP BY k % 5",
    "SELECT id % 900, last_value(id ORDER BY id) FILTER (WHERE v > 99900) FROM t GROUP BY id % 900",
    "SELECT k % 5, first_value(s ORDER BY s), last_value(s ORDER BY s DESC NULLS LAST), \
     first_value(upper(s) ORDER BY upper(s)) FROM t GROUP BY k % 5",
    "SELECT k % 3, first_value(v / (id + 1) ORDER BY id), first_value(v > 50000 ORDER BY v > 50000 DESC) FROM t \
     GROUP BY k % 3",
    "SELECT g, first_value(w ORDER BY id), last_value(s ORDER BY -id) FROM \
     (SELECT id, s, k % 3 AS g, v + id AS w FROM t WHERE v > 500) GROUP BY g",
    "SELECT k % 7, day, first_value(s ORDER BY id), count(*) FROM t GROUP BY ROLLUP (k % 7, day)",
    "SELECT first_value(s ORDER BY id), last_value(id ORDER BY id), min(s), count(*) FROM t WHERE v > 100",
    "SELECT first_value(d ORDER BY id DESC) FILTER (WHERE k IS NULL), last_value(s ORDER BY s) FROM t",
    "SELECT first_value(id ORDER BY id), last_value(id ORDER BY id) FROM t WHERE v + id < -5",
];

fn on_the_device(sql: &str, ran: &Ran) {
    assert!(ran.nodes.iter().any(|node| node == "GpuAggregateExec"), "{sql}: {}", ran.plan);
    assert!(ran.gpu_batches > 0 && ran.cpu_batches == 0, "{sql}: {ran:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_values() -> TestResult {
    let dir = tempfile::tempdir()?;
    write_files(dir.path(), 3, 3_001)?;
    let mut wants = vec![];
    for sql in QUERIES {
        wants.push(expected(dir.path(), sql).await.map_err(|error| format!("{sql}: {error}"))?);
    }
    for (partitions, batch_rows) in [(1, "500000"), (4, "1500")] {
        let gpu = Gpu::guarded(partitions).await?;
        register_files(&gpu.ctx, "t", dir.path()).await?;
        gpu.set("batch_rows", batch_rows).await?;
        for exchanges in ["'collapse'", "'keep'"] {
            gpu.set("exchanges", exchanges).await?;
            for (sql, want) in QUERIES.iter().zip(&wants) {
                let ran = gpu.run(sql).await.map_err(|error| format!("{sql}: {error}"))?;
                assert_eq!(&ran.rows, want, "{partitions} {exchanges} {sql}\n{}", ran.plan);
                on_the_device(sql, &ran);
            }
        }
        if let Some(guards) = gpu.device.guards() {
            guards.check().await.map_err(|message| message.to_string())?;
        }
        gpu.settled().await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_and_islands_that_fall_back() -> TestResult {
    let dir = tempfile::tempdir()?;
    write_files(dir.path(), 3, 3_001)?;
    let gpu = Gpu::new(4).await?;
    register_files(&gpu.ctx, "t", dir.path()).await?;
    gpu.set("batch_rows", "1500").await?;
    in_both_scopes(&gpu, dir.path(), &[QUERIES[0], QUERIES[1], QUERIES[10]]).await?;
    gpu.settled().await
}

/// A value whose expression raises for a row that is not taken: the CPU decides, and raises.
#[tokio::test(flavor = "multi_thread")]
async fn values_that_raise() -> TestResult {
    let dir = tempfile::tempdir()?;
    write_files(dir.path(), 1, 3_001)?;
    let gpu = Gpu::new(1).await?;
    register_files(&gpu.ctx, "t", dir.path()).await?;
    for sql in [
        "SELECT k % 3, first_value(v / (id - 1500) ORDER BY id) FROM t GROUP BY k % 3",
        "SELECT first_value(v / (id - 1500) ORDER BY id) FROM t",
    ] {
        let cpu = expected(dir.path(), sql).await.err().ok_or("a division by zero")?.to_string();
        let error = gpu.run(sql).await.err().ok_or("a division by zero")?.to_string();
        assert!(error.contains("Divide by zero") && cpu.contains("Divide by zero"), "{sql}: {error}; {cpu}");
    }
    // Which DataFusion does not evaluate for rows that the filter leaves out.
    let sql = "SELECT first_value(v / (id - 1500) ORDER BY id) FILTER (WHERE id <> 1500) FROM t";
    assert_eq!(gpu.run(sql).await?.rows, expected(dir.path(), sql).await?);
    Ok(())
}

const ROWS: usize = 6_000;

/// Values of types that kernels do not know, beside keys and orders.
fn columns() -> TestResult<Vec<(&'static str, ArrayRef)>> {
    let ids = || 0..ROWS as i64;
    let words: Vec<String> = (0..ROWS).map(|row| format!("word number {}", row * 7 % 1009)).collect();
    let dictionary: DictionaryArray<Int32Type> =
        (0..ROWS).map(|row| (row % 13 != 0).then(|| words[row % 40].as_str())).collect();
    let lists = ids().map(|id| (id % 9 != 0).then(|| vec![Some(id), None, Some(-id)]));
    let id: ArrayRef = Arc::new(Int64Array::from_iter_values(ids()));
    let fields = vec![(Arc::new(Field::new("a", DataType::Int64, false)), Arc::clone(&id))];
    Ok(vec![
        (
            "k",
            Arc::new(Int64Array::from_iter((0..ROWS as i64).map(|row| (row % 17 != 3).then_some(row % 5)))),
        ),
        (
            "y",
            Arc::new(Int64Array::from_iter(
                ids().map(|id| (id % 23 != 1).then_some(id * 7919 % ROWS as i64)),
            )),
        ),
        ("few", Arc::new(Int64Array::from_iter(ids().map(|id| (id % 19 != 2).then_some(id * 31 % 4))))),
        ("dict", Arc::new(dictionary)),
        ("list", Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(lists))),
        ("row", Arc::new(StructArray::from(fields))),
        ("view", Arc::new(StringViewArray::from_iter(words.iter().map(Some)))),
        ("time", Arc::new(Time64NanosecondArray::from_iter_values(ids()))),
        ("flag", Arc::new(BooleanArray::from_iter(ids().map(|id| (id % 3 > 0).then_some(id % 7 == 0))))),
        ("id", id),
    ])
}

/// The table in one partition of batches of 500 rows, on both sides.
async fn both() -> TestResult<(Gpu, datafusion::prelude::SessionContext)> {
    let (gpu, off) = (Gpu::new(1).await?, cpu(1));
    let batch =
        RecordBatch::try_from_iter_with_nullable(columns()?.into_iter().map(|(name, of)| (name, of, true)))?;
    let batches = (0..ROWS).step_by(500).map(|at| batch.slice(at, 500)).collect();
    let table = Arc::new(MemTable::try_new(batch.schema(), vec![batches])?);
    for ctx in [&gpu.ctx, &off] {
        ctx.register_table("f", Arc::clone(&table) as _)?;
    }
    Ok((gpu, off))
}

#[tokio::test(flavor = "multi_thread")]
async fn values_of_any_type() -> TestResult {
    let (gpu, off) = both().await?;
    for value in [
        "dict",
        "list",
        "\"row\"",
        "view",
        "\"time\"",
        "flag",
        "y",
        "NULL",
        "'text'",
        "arrow_cast(id, 'UInt8')",
    ] {
        // DataFusion's cast raises where the value does not fit: so must ours.
        for sql in [
            format!(
                "SELECT k, first_value({value} ORDER BY y NULLS LAST) FILTER (WHERE id < 200) FROM f GROUP BY k"
            ),
            format!(
                "SELECT first_value({value} ORDER BY y DESC NULLS LAST), first_value({value} ORDER BY y NULLS FIRST) FROM f"
            ),
        ] {
            let want = run(&off, &sql).await;
            let ran = gpu.run(&sql).await;
            match (want, ran) {
                (Ok(want), Ok(ran)) => {
                    assert_eq!(ran.rows, want.rows, "{sql}\n{}", ran.plan);
                    on_the_device(&sql, &ran);
                }
                (Err(_), Err(_)) => {}
                (want, ran) => return Err(format!("{sql}: {want:?} and {ran:?}").into()),
            }
        }
    }
    Ok(())
}

/// Of equal rows, those are taken that DataFusion takes: the first.
#[tokio::test(flavor = "multi_thread")]
async fn ties() -> TestResult {
    let (gpu, off) = both().await?;
    // One batch: of several, either may come to be merged first.
    gpu.set("batch_rows", "500000").await?;
    for order in ["few", "few DESC", "few NULLS FIRST", "few DESC NULLS LAST", "few * few"] {
        for sql in [
            format!(
                "SELECT k, first_value(id ORDER BY {order}), last_value(id ORDER BY {order}) FROM f GROUP BY k"
            ),
            format!("SELECT first_value(id ORDER BY {order}) FROM f"),
            format!(
                "SELECT first_value(flag ORDER BY {order}), first_value(id ORDER BY {order}) FILTER (WHERE flag) FROM f"
            ),
            format!("SELECT id % 2500, last_value(list ORDER BY {order}) FROM f GROUP BY id % 2500"),
        ] {
            let want = run(&off, &sql).await?;
            let ran = gpu.run(&sql).await?;
            assert_eq!(ran.rows, want.rows, "{sql}\n{}", ran.plan);
            on_the_device(&sql, &ran);
        }
    }
    Ok(())
}

/// An input that is in order, for which DataFusion turns one function into the other, or takes rows by their place.
#[tokio::test(flavor = "multi_thread")]
async fn inputs_in_order() -> TestResult {
    let (gpu, off) = both().await?;
    for order in ["few, id", "y", "y DESC", "id DESC"] {
        for call in ["first_value(id ORDER BY y)", "last_value(id ORDER BY y)", "last_value(id ORDER BY few)"]
        {
            for sql in [
                format!("SELECT {call} FROM (SELECT * FROM f ORDER BY {order} LIMIT 3000)"),
                format!("SELECT k, {call} FROM (SELECT * FROM f ORDER BY {order} LIMIT 3000) GROUP BY k"),
            ] {
                let want = run(&off, &sql).await?;
                let ran = gpu.run(&sql).await?;
                // By the declared order `few` alone, rows tie.
                assert!(ran.rows == want.rows || sql.contains("BY few)"), "{sql}\n{}", ran.plan);
            }
        }
    }
    Ok(())
}

/// Of rows that tie the first is taken, also where they lie in different batches: one partition's batches come in its order.
#[tokio::test(flavor = "multi_thread")]
async fn ties_of_one_partition() -> TestResult {
    let dir = tempfile::tempdir()?;
    write_files(dir.path(), 1, 9_001)?;
    let gpu = Gpu::new(1).await?;
    register_files(&gpu.ctx, "t", dir.path()).await?;
    gpu.set("batch_rows", "100").await?;
    let plain = cpu(1);
    register_files(&plain, "t", dir.path()).await?;
    for sql in [
        "SELECT k % 4, first_value(id ORDER BY v % 2), first_value(s ORDER BY k % 3 DESC) FROM t GROUP BY k % 4",
        "SELECT s, first_value(id ORDER BY d > 0 NULLS FIRST), count(*) FROM t GROUP BY s",
        "SELECT first_value(id ORDER BY v % 3), first_value(d ORDER BY s DESC) FROM t WHERE v > 100",
    ] {
        let want = run(&plain, sql).await?;
        for exchanges in ["'collapse'", "'keep'"] {
            gpu.set("exchanges", exchanges).await?;
            for _ in 0..5 {
                let ran = gpu.run(sql).await?;
                assert_eq!(ran.rows, want.rows, "{exchanges} {sql}\n{}", ran.plan);
                on_the_device(sql, &ran);
                assert!(ran.gpu_batches >= 80, "{sql}: {ran:?}");
            }
        }
    }
    gpu.settled().await
}

/// The same of last_value, which with GROUP BY takes the first of equal rows, too. Without, it takes the last of the first batch that has
/// one, and is left to DataFusion.
#[tokio::test(flavor = "multi_thread")]
async fn ties_across_batches() -> TestResult {
    let (gpu, off) = both().await?;
    let grouped = [
        "SELECT k, first_value(id ORDER BY few), last_value(id ORDER BY few), \
         last_value(id ORDER BY few DESC NULLS LAST), first_value(flag ORDER BY few) FROM f GROUP BY k",
        "SELECT id % 900, last_value(view ORDER BY few * few), first_value(dict ORDER BY few DESC) FROM f \
         GROUP BY id % 900",
        "SELECT first_value(id ORDER BY few), first_value(id ORDER BY few DESC) FROM f",
    ];
    let left = "SELECT last_value(id ORDER BY few), last_value(id ORDER BY few DESC) FROM f";
    for (batch_rows, batches) in [("100", 60), ("500", 12), ("700", 12), ("1000", 6)] {
        gpu.set("batch_rows", batch_rows).await?;
        let (want, ran) = (run(&off, left).await?, gpu.run(left).await?);
        assert!(ran.rows == want.rows && ran.nodes.is_empty(), "{}", ran.plan);
        for sql in grouped {
            let want = run(&off, sql).await?;
            for exchanges in ["'collapse'", "'keep'"] {
                gpu.set("exchanges", exchanges).await?;
                let ran = gpu.run(sql).await?;
                assert_eq!(ran.rows, want.rows, "{batch_rows} {exchanges} {sql}\n{}", ran.plan);
                on_the_device(sql, &ran);
                assert_eq!(ran.gpu_batches, batches, "{batch_rows} {sql}");
            }
        }
    }
    gpu.settled().await
}
