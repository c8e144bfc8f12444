//! Sums and averages of decimals of 32 and 64 bits and of durations, which wrap at the width of their type.

use std::sync::Arc;

use datafusion::arrow::array::{
    ArrayRef, Decimal32Array, Decimal64Array, DurationMillisecondArray, Int64Array,
};

use crate::group_by::both;
use crate::harness::{TestResult, run};

const ROWS: i64 = 5_000;

/// Every eleventh is NULL.
fn values(of: impl Fn(i64) -> i64) -> Vec<Option<i64>> {
    (0..ROWS).map(|row| (row % 11 != 0).then(|| of(row))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn sums_wrap_at_the_width_of_their_type() -> TestResult {
    let large =
        |row: i64| if row % 3 == 0 { i64::MAX - row } else { (row - 900).wrapping_mul(0x0123_4567_89ab) };
    let small = |row: i64| (row * 7_919 % 100_003) - 40_000;
    for (of, overflows) in [(&large as &dyn Fn(i64) -> i64, true), (&small, false)] {
        let wide = values(of);
        let narrow: Vec<_> = wide.iter().map(|value| value.map(|value| value as i32)).collect();
        let columns: [(&str, ArrayRef); 4] = [
            ("k", Arc::new(Int64Array::from_iter_values((0..ROWS).map(|row| row % 7)))),
            ("a", Arc::new(Decimal32Array::from(narrow).with_precision_and_scale(7, 2)?)),
            ("b", Arc::new(Decimal64Array::from(wide.clone()).with_precision_and_scale(15, 3)?)),
            ("c", Arc::new(DurationMillisecondArray::from(wide))),
        ];
        let averages = if overflows { "" } else { ", avg(a), avg(b)" };
        for sql in [
            format!("SELECT k, sum(a), sum(b), sum(c), min(c){averages} FROM f GROUP BY k"),
            format!("SELECT sum(a), sum(b), sum(c) FILTER (WHERE k > 2){averages} FROM f"),
            format!("SELECT k, sum(a), sum(b), sum(c){averages} FROM f WHERE a IS NULL GROUP BY k"),
        ] {
            for exchanges in ["keep", "collapse"] {
                let (gpu, off) = both(3, &columns).await?;
                gpu.set("exchanges", &format!("'{exchanges}'")).await?;
                gpu.set("batch_rows", "700").await?;
                let want = run(&off, &sql).await?;
                let ran = gpu.run(&sql).await.map_err(|error| format!("{sql}: {error}"))?;
                assert_eq!(ran.rows, want.rows, "{sql}");
                assert!(ran.nodes.iter().any(|node| node == "GpuAggregateExec"), "{sql}: {}", ran.plan);
                assert!(ran.gpu_batches > 0 && ran.cpu_batches == 0, "{sql}: {ran:?}");
            }
        }
    }
    Ok(())
}

/// An average of decimals whose sum has left its type is what DataFusion makes of it: a value or an error.
#[tokio::test(flavor = "multi_thread")]
async fn averages_of_wrapped_sums() -> TestResult {
    let values = Decimal64Array::from_iter_values((0..300).map(|row| 999_999_999_999_999_999 - row));
    let columns: [(&str, ArrayRef); 2] = [
        ("k", Arc::new(Int64Array::from_iter_values((0..300).map(|row| row % 2)))),
        ("b", Arc::new(values.with_precision_and_scale(18, 0)?)),
    ];
    for sql in ["SELECT avg(b), sum(b) FROM f", "SELECT k, avg(b) FROM f GROUP BY k"] {
        let (gpu, off) = both(1, &columns).await?;
        match (run(&off, sql).await, gpu.run(sql).await) {
            (Ok(want), Ok(ran)) => {
                assert_eq!(ran.rows, want.rows, "{sql}");
                assert!(ran.gpu_batches > 0, "{sql}: {ran:?}");
            }
            (Err(want), Err(ran)) => assert_eq!(ran.to_string(), want.to_string(), "{sql}"),
            (want, ran) => panic!("{sql}: {want:?} {ran:?}"),
        }
    }
    Ok(())
}
