//! Dictionaries of string columns while queries run: when they pay, in little memory, with other literals.

use std::sync::Arc;

use datafusion::arrow::array::{
    ArrayRef, DictionaryArray, Int16Array, Int64Array, RecordBatch, StringArray, StringDictionaryBuilder,
};
use datafusion::arrow::datatypes::{Int16Type, SchemaRef};
use datafusion::datasource::MemTable;
use datafusion::physical_plan::displayable;
use datafusion::prelude::SessionContext;

use crate::both::Both;
use crate::harness::{Gpu, TestResult, cpu, run};

/// Batches of 1,000 rows: `id`, `few` of 30 values and NULL, `many` of one value a row, `dict` with other keys and values in each.
fn batches(count: i64) -> TestResult<(SchemaRef, Vec<RecordBatch>)> {
    let mut batches = vec![];
    for batch in 0..count {
        let ids = || batch * 1000..(batch + 1) * 1000;
        let mut dict = StringDictionaryBuilder::<Int16Type>::new();
        for id in ids() {
            match id % 13 {
                5 => dict.append_null(),
                _ => dict.append_value(format!("v{}", (id * 7 + batch) % 40 + batch % 3)),
            }
        }
        let columns: Vec<(&str, ArrayRef, bool)> = vec![
            ("id", Arc::new(Int64Array::from_iter_values(ids())), false),
            (
                "few",
                Arc::new(StringArray::from_iter(
                    ids().map(|id| (id % 17 != 3).then(|| format!("value number {} of a few", id % 30))),
                )),
                true,
            ),
            ("many", Arc::new(StringArray::from_iter_values(ids().map(|id| format!("row {id}")))), true),
            ("dict", Arc::new(dict.finish()), true),
        ];
        batches.push(RecordBatch::try_from_iter_with_nullable(columns)?);
    }
    Ok((batches[0].schema(), batches))
}

fn register(ctx: &SessionContext, count: i64) -> TestResult {
    let (schema, batches) = batches(count)?;
    let mut partitions = vec![vec![], vec![]];
    for (at, batch) in batches.into_iter().enumerate() {
        partitions[at % 2].push(batch);
    }
    ctx.register_table("t", Arc::new(MemTable::try_new(schema, partitions)?))?;
    Ok(())
}

/// Filters, projections and aggregates over columns of few values.
const QUERIES: [&str; 5] = [
    "SELECT id, few, dict FROM t WHERE few LIKE '%2%' AND dict <> 'v7' AND id > 100",
    "SELECT id, upper(few) AS u, length(dict) AS l, concat(dict, few) IS NULL AS n FROM t WHERE dict IN ('v1', 'v2', 'v39')",
    "SELECT id, substr(few, 1, 14) AS s FROM t WHERE id % 3 = 1 OR few IS NULL",
    "SELECT count(*), sum(id), count(few), sum(length(few)) FROM t WHERE dict > 'v2' OR few ~ '1[0-9]'",
    "SELECT count(*) FILTER (WHERE few = 'value number 7 of a few'), max(id) FILTER (WHERE dict = 'v3') FROM t",
];

#[tokio::test(flavor = "multi_thread")]
async fn batches_with_their_own_dictionaries() -> TestResult {
    let gpu = Gpu::guarded(2).await?;
    register(&gpu.ctx, 20)?;
    let off = cpu(2);
    register(&off, 20)?;
    for sql in QUERIES {
        let want = run(&off, sql).await?.rows;
        let ran = gpu.run(sql).await?;
        assert_eq!(ran.rows, want, "{sql}");
        assert!(ran.gpu_batches > 5 && ran.cpu_batches == 0, "{sql}: {ran:?}");
    }
    if let Some(guards) = gpu.device.guards() {
        guards.check().await.map_err(|message| message.to_string())?;
    }
    Ok(())
}

/// Look-up tables and long lists lie behind the arguments of a kernel, so that WebGPU's default of eight storage buffers is enough
/// for them beside all that queries do otherwise.
#[tokio::test(flavor = "multi_thread")]
async fn eight_storage_buffers_are_enough() -> TestResult {
    let list: Vec<String> = (0..3000).map(|id| (id * 3).to_string()).collect();
    let listed =
        format!("CASE WHEN few LIKE '%2%' THEN id IN ({}) ELSE length(dict) > 2 END", list.join(", "));
    let queries = [
        "SELECT CASE WHEN few LIKE '%2%' THEN id ELSE 0 END FROM t".to_owned(),
        "SELECT id * length(few) FROM t".to_owned(),
        "SELECT id * length(few) AS a, upper(dict) AS u, id - 1 AS b, dict FROM t WHERE few LIKE '%1%' OR id > 700".to_owned(),
        format!("SELECT id, {listed} AS l FROM t WHERE {listed} IS NOT TRUE"),
        "SELECT sum(id * length(few)), count(CASE WHEN dict > 'v2' THEN id END), max(id), \
         avg(length(dict)) FROM t WHERE few LIKE '%1%' AND dict <> 'v7'"
            .to_owned(),
        format!("SELECT count(*), sum(id) FILTER (WHERE {listed}) FROM t WHERE few ~ '1[0-9]'"),
        "SELECT few, dict, sum(id * length(few)), count(CASE WHEN dict > 'v2' THEN id END) FROM t \
         WHERE few LIKE '%1%' GROUP BY few, dict"
            .to_owned(),
        format!("SELECT length(few) AS l, {listed} AS m, min(id), max(length(dict)) FROM t GROUP BY l, m"),
    ];
    let gpu = Gpu::lowered(2, |caps| caps.max_storage_buffers = 8).await?;
    register(&gpu.ctx, 6)?;
    gpu.set("fallback", "'error'").await?;
    let (unlimited, off) = (Gpu::new(2).await?, cpu(2));
    register(&unlimited.ctx, 6)?;
    register(&off, 6)?;
    for sql in &queries {
        let want = run(&off, sql).await?.rows;
        let ran = gpu.run(sql).await?;
        assert_eq!(ran.rows, want, "{sql}");
        assert!(ran.gpu_batches > 0 && ran.cpu_batches == 0, "{sql}: {ran:?}");
        let plan = unlimited.ctx.sql(sql).await?.create_physical_plan().await?;
        assert_eq!(ran.plan, displayable(plan.as_ref()).indent(false).to_string(), "{sql}");
    }
    Ok(())
}

/// Codes and tables count as device memory, and batches are halved until they fit.
#[tokio::test(flavor = "multi_thread")]
async fn strings_in_little_memory() -> TestResult {
    let gpu = Gpu::new(2).await?;
    gpu.set("batch_rows", "524288").await?;
    gpu.set("memory_limit", "'256KiB'").await?;
    gpu.set("fallback", "'error'").await?;
    register(&gpu.ctx, 60)?;
    let off = cpu(2);
    register(&off, 60)?;
    for sql in QUERIES {
        let want = run(&off, sql).await?.rows;
        let ran = gpu.run(sql).await?;
        assert_eq!(ran.rows, want, "{sql}");
        assert!(ran.gpu_batches > 2 && ran.cpu_batches == 0, "{sql}: {ran:?}");
        let ledger = gpu.device.ledger();
        assert!(ledger.peak() <= 256 << 10, "{sql}: {} bytes were held", ledger.peak());
        assert_eq!(ledger.reserved(), 0, "{sql}");
    }
    Ok(())
}

/// A column with as many values as rows: the sample says so, and the CPU answers for every batch.
#[tokio::test(flavor = "multi_thread")]
async fn too_many_distinct_values() -> TestResult {
    let gpu = Gpu::new(2).await?;
    gpu.set("batch_rows", "65536").await?;
    register(&gpu.ctx, 120)?;
    let off = cpu(2);
    register(&off, 120)?;
    for sql in [
        "SELECT id, few FROM t WHERE many LIKE '%99%' AND id > 5",
        "SELECT count(*), sum(id) FROM t WHERE many LIKE '%99%'",
    ] {
        let want = run(&off, sql).await?.rows;
        let ran = gpu.run(sql).await?;
        assert_eq!(ran.rows, want, "{sql}");
        assert!(ran.gpu_batches == 0 && ran.cpu_batches > 0, "{sql}: {ran:?}");
        assert!(ran.fallbacks.iter().any(|(code, count)| code == "TooManyDistinct" && *count > 0), "{ran:?}");
    }
    // Whether it is NULL needs no dictionary.
    let ran = gpu.run("SELECT count(many), count(*) FROM t WHERE many IS NOT NULL AND id > 10").await?;
    assert_eq!(ran.rows, ["119989|119989"]);
    assert!(ran.gpu_batches > 0 && ran.cpu_batches == 0, "{ran:?}");
    gpu.set("fallback", "'error'").await?;
    let failed = gpu.run("SELECT id FROM t WHERE many LIKE '%99%'").await;
    let message = failed.err().map(|error| error.to_string()).unwrap_or_default();
    assert!(message.contains("distinct") && message.contains("many"), "{message}");
    Ok(())
}

/// Another literal, parameter or subquery value is another table for the same pipelines.
#[tokio::test(flavor = "multi_thread")]
async fn changed_values_compile_nothing() -> TestResult {
    let both = Both::new(|ctx| register(ctx, 8)).await?;
    let prepare = "PREPARE p(VARCHAR) AS SELECT count(*), sum(id) FROM t WHERE few = $1 AND id > 3";
    for ctx in [&both.gpu.ctx, &both.cpu] {
        ctx.sql(prepare).await?.collect().await?;
    }
    let groups = [
        [
            "SELECT id FROM t WHERE few LIKE '%1%' AND id > 7",
            "SELECT id FROM t WHERE few LIKE 'none%' AND id > 900",
        ],
        ["EXECUTE p('value number 5 of a few')", "EXECUTE p('\"; drop')"],
        [
            "SELECT count(*) FROM t WHERE dict = (SELECT min(dict) FROM t WHERE id > 10)",
            "SELECT count(*) FROM t WHERE dict = (SELECT min(dict) FROM t WHERE id > 20)",
        ],
    ];
    for [first, changed] in groups {
        both.same(first).await?;
        assert_eq!(both.same(changed).await?, 0, "{changed}");
    }
    Ok(())
}

/// DataFusion casts all values of an Arrow dictionary, those that no row has among them, and so raises for one of those.
#[tokio::test(flavor = "multi_thread")]
async fn values_of_a_dictionary_that_no_row_has() -> TestResult {
    let gpu = Gpu::new(1).await?;
    let off = cpu(1);
    let keys = Int16Array::from(vec![Some(0), None, Some(1), Some(0), Some(3)]);
    for (table, last) in [("clean", "5"), ("odd", "five")] {
        // No row has the third value.
        let values = Arc::new(StringArray::from(vec!["1", "20", last, "6"]));
        let dict = DictionaryArray::<Int16Type>::try_new(keys.clone(), values)?;
        let ids = Int64Array::from_iter_values(0..5);
        let batch =
            RecordBatch::try_from_iter([("id", Arc::new(ids) as ArrayRef), ("d", Arc::new(dict) as _)])?;
        for ctx in [&gpu.ctx, &off] {
            ctx.register_batch(table, batch.clone())?;
        }
        for sql in [
            format!("SELECT id, CAST(d AS INT) AS n FROM {table} WHERE id < 4"),
            format!("SELECT id FROM {table} WHERE d IS NULL AND CAST(d AS INT) IS NULL"),
            format!("SELECT sum(CAST(d AS INT)) FROM {table} WHERE id < 4"),
            format!("SELECT id, TRY_CAST(d AS INT) AS n FROM {table} WHERE length(d) < 2"),
        ] {
            match (run(&off, &sql).await, gpu.run(&sql).await) {
                (Ok(want), Ok(got)) => {
                    assert_eq!(got.rows, want.rows, "{sql}");
                    assert!(table == "odd" || got.gpu_batches > 0 && got.cpu_batches == 0, "{sql}: {got:?}");
                }
                (Err(want), Err(got)) => assert_eq!(got.to_string(), want.to_string(), "{sql}"),
                (want, got) => return Err(format!("{sql}: {got:?} instead of {want:?}").into()),
            }
        }
        let raised = gpu.run(&format!("SELECT CAST(d AS INT) AS n FROM {table} WHERE id < 4")).await.is_err();
        assert_eq!(raised, table == "odd");
    }
    Ok(())
}
