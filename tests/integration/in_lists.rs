//! Long IN lists in whole queries, and other values in them.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, Decimal128Array, Int32Array, Int64Array, RecordBatch, StringArray};

use crate::both::Both;
use crate::harness::TestResult;

/// `id`, `v` of 50,000 values with NULLs, `d` a decimal, `s` a text of 3,000 values with NULLs.
fn table() -> TestResult<RecordBatch> {
    let ids = || 0..9_000i64;
    let decimals = ids().map(|id| Some(i128::from(id * 101 % 40_000)));
    let decimals = Decimal128Array::from_iter(decimals);
    let columns: Vec<(&str, ArrayRef, bool)> = vec![
        ("id", Arc::new(Int64Array::from_iter_values(ids())), false),
        (
            "v",
            Arc::new(Int64Array::from_iter(ids().map(|id| (id % 13 != 5).then_some(id * 7_919 % 50_000)))),
            true,
        ),
        ("n", Arc::new(Int32Array::from_iter_values(ids().map(|id| (id % 2_000) as i32 - 1_000))), false),
        ("d", Arc::new(decimals.with_precision_and_scale(20, 2)?), false),
        (
            "s",
            Arc::new(StringArray::from_iter(
                ids().map(|id| (id % 11 != 3).then(|| format!("text {}", id * 31 % 3_000))),
            )),
            true,
        ),
    ];
    Ok(RecordBatch::try_from_iter_with_nullable(columns)?)
}

/// `count` candidates, in no order, some of them twice; `shift` gives others.
fn list(count: i64, shift: i64, item: impl Fn(i64) -> String) -> String {
    let items = (0..count).map(|at| item((at * 7_907 + shift) % 60_000));
    items.collect::<Vec<_>>().join(", ")
}

const COUNTS: [i64; 3] = [200, 5_000, 20_000];

#[tokio::test(flavor = "multi_thread")]
async fn long_lists_of_numbers() -> TestResult {
    let both = Both::with_table(table()?).await?;
    for count in COUNTS {
        let integers = |shift| list(count, shift, |v| v.to_string());
        let decimals = list(count, 1, |v| format!("{}.{:02}", v / 100, v % 100));
        for sql in [
            format!("SELECT id, v FROM t WHERE v IN ({})", integers(0)),
            format!("SELECT id, v FROM t WHERE v NOT IN ({})", integers(0)),
            format!("SELECT id FROM t WHERE v IN ({}, NULL) OR id < 3", integers(5)),
            format!(
                "SELECT id, v NOT IN ({}, NULL) AS out, v IN (NULL, {}) AS within FROM t",
                integers(5),
                integers(5)
            ),
            format!(
                "SELECT count(*), sum(id) FROM t WHERE n IN ({})",
                list(count, 3, |v| (v - 30_000).to_string())
            ),
            format!("SELECT count(*), count(*) FILTER (WHERE d IN ({decimals})) FROM t WHERE id > 10"),
        ] {
            both.same(&sql).await?;
        }
        // A NULL in the list leaves nothing that is not in it.
        let none = both.gpu.run(&format!("SELECT id FROM t WHERE v NOT IN ({}, NULL)", integers(0))).await?;
        assert!(none.rows.is_empty() && none.gpu_batches > 0, "{:?}", none.rows.len());
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn long_lists_of_texts() -> TestResult {
    let both = Both::with_table(table()?).await?;
    for count in COUNTS {
        let texts = |shift| list(count, shift, |v| format!("'text {}'", v % 23_000));
        for sql in [
            format!("SELECT id, s FROM t WHERE s IN ({})", texts(0)),
            format!("SELECT id, s FROM t WHERE s NOT IN ({})", texts(0)),
            format!(
                "SELECT id, s NOT IN ({}, NULL) AS out, s IN (NULL, {}) AS within FROM t",
                texts(5),
                texts(5)
            ),
            format!(
                "SELECT count(*), sum(id) FROM t WHERE upper(s) IN ({}) OR s IN ({})",
                texts(1),
                texts(2)
            ),
        ] {
            both.same(&sql).await?;
        }
    }
    Ok(())
}

/// Other values in a list, and a few more or fewer of them, are data.
#[tokio::test(flavor = "multi_thread")]
async fn other_candidates_make_no_new_pipeline() -> TestResult {
    let both = Both::with_table(table()?).await?;
    for count in [3, 150, 5_000] {
        let integers = |count, shift| list(count, shift, |v| v.to_string());
        let texts = |shift| list(count, shift, |v| format!("'text {}'", v % 23_000));
        let with = |integers: &str, texts: &str| {
            format!(
                "SELECT id FROM t WHERE v IN ({integers}) AND s NOT IN ({texts}) AND n NOT IN (0, {count})"
            )
        };
        both.same(&with(&integers(count, 0), &texts(0))).await?;
        assert_eq!(both.same(&with(&integers(count, 9), &texts(7))).await?, 0, "{count} others");
        if count > 100 {
            let fewer = integers(count - 20, 4);
            assert_eq!(both.same(&with(&fewer, &texts(1))).await?, 0, "fewer than {count}");
            let with_null = format!("{}, NULL", integers(count - 1, 4));
            assert_eq!(both.same(&with(&with_null, &texts(1))).await?, 0, "{count} with NULL");
        }
    }
    // As a parameter and from a subquery.
    for ctx in [&both.gpu.ctx, &both.cpu] {
        ctx.sql("PREPARE p AS SELECT id FROM t WHERE v IN ($1, $2, 5) AND id > $3").await?;
    }
    both.same("EXECUTE p(7919, 15838, 0)").await?;
    assert_eq!(both.same("EXECUTE p(1, 31676, 1)").await?, 0, "other parameters in a list");
    let subquery = |id: i64| {
        format!("SELECT id FROM t WHERE v IN (7919, (SELECT max(v) FROM t WHERE id < {id}), 3) OR id = {id}")
    };
    both.same(&subquery(50)).await?;
    assert_eq!(both.same(&subquery(60)).await?, 0, "another subquery's value in a list");
    Ok(())
}
