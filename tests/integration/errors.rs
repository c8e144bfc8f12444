//! Errors that depend on the data: the device never has the last word, so that a query with the GPU raises where DataFusion
//! does, with its text, and gives its rows where it does not. Over many batches, in one partition and in several.

use datafusion::physical_plan::displayable;
use datafusion::prelude::SessionContext;

use crate::harness::{Gpu, Ran, TestResult, cpu, run};

/// What DataFusion gives, and whether the device gives it without help.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Want {
    /// Rows, all of them from the device.
    Device,
    /// Rows; the device may see faults that DataFusion does not evaluate.
    Rows,
    /// An error with this in its text.
    Raises(&'static str),
}

use Want::*;

const ZERO: Want = Raises("Divide by zero");

/// 9,000 rows in batches of 1,000. `y10` and `y50` are not 0 for so many percent of the rows; `late`, `big` and `low` each
/// have one row that raises.
async fn sessions(partitions: usize) -> TestResult<(Gpu, SessionContext)> {
    let (gpu, off) = (Gpu::new(partitions).await?, cpu(partitions));
    for ctx in [&gpu.ctx, &off] {
        ctx.sql(
            "CREATE TABLE t AS SELECT value AS id, CAST(value % 100 AS INT) AS x, \
             CAST(CASE WHEN value % 10 = 0 THEN 2 ELSE 0 END AS INT) AS y10, \
             CAST(CASE WHEN value % 2 = 0 THEN 2 ELSE 0 END AS INT) AS y50, \
             CAST(CASE WHEN value % 3 = 0 THEN NULL ELSE 4 END AS INT) AS n, \
             CAST(CASE WHEN value = 2500 THEN 0 ELSE 1 END AS INT) AS late, \
             CASE WHEN value = 2500 THEN 3000000000 ELSE value END AS big, \
             CAST(CASE WHEN value = 2500 THEN -2147483648 ELSE -value END AS INT) AS low, \
             value % 2 = 0 AS even \
             FROM generate_series(1, 9000)",
        )
        .await?;
    }
    Ok((gpu, off))
}

fn text(outcome: &TestResult<Ran>) -> Option<String> {
    outcome.as_ref().err().map(|error| error.to_string())
}

async fn check(queries: &[(&str, Want)]) -> TestResult {
    for partitions in [1, 4] {
        let (gpu, off) = sessions(partitions).await?;
        for (sql, want) in queries {
            let plan = gpu.ctx.sql(sql).await?.create_physical_plan().await?;
            let plan = displayable(plan.as_ref()).indent(false).to_string();
            assert!(plan.contains("Gpu"), "{sql}\n{plan}");
            let (oracle, got) = (run(&off, sql).await, gpu.run(sql).await);
            let what = format!("{sql}, {partitions} partitions, DataFusion: {:?}", text(&oracle));
            match want {
                Raises(part) => {
                    assert!(text(&oracle).is_some_and(|text| text.contains(part)), "{what}");
                    assert_eq!(text(&got), text(&oracle), "{what}");
                }
                Rows | Device => {
                    let (Ok(oracle), Ok(got)) = (&oracle, &got) else {
                        return Err(format!("{what}, the GPU: {:?}", text(&got)).into());
                    };
                    assert_eq!(got.rows, oracle.rows, "{what}");
                    assert!(*want == Rows || got.cpu_batches == 0, "{what}: {got:?}");
                }
            }
        }
    }
    Ok(())
}

/// DataFusion evaluates the right side of AND for the rows that the left selects when they are few, and else for all.
#[tokio::test(flavor = "multi_thread")]
async fn division_guarded_by_and() -> TestResult {
    check(&[
        ("SELECT id FROM t WHERE y10 <> 0 AND x / y10 = 2", Rows),
        ("SELECT id FROM t WHERE y50 <> 0 AND x / y50 = 2", ZERO),
        ("SELECT id FROM t WHERE y10 <> 0 AND x % y10 = 1", Rows),
        ("SELECT count(*), sum(x) FROM t WHERE y10 <> 0 AND x / y10 = 2", Rows),
        ("SELECT count(*), sum(x) FROM t WHERE y50 <> 0 AND x / y50 = 2", ZERO),
        ("SELECT id, y10 <> 0 AND x / y10 = 2 AS r FROM t", Rows),
        ("SELECT id, y50 <> 0 AND x / y50 = 2 AS r FROM t", ZERO),
        ("SELECT id FROM t WHERE y50 = 0 OR x / y50 = 2", ZERO),
    ])
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn division_guarded_by_case_and_its_kin() -> TestResult {
    check(&[
        ("SELECT id, CASE WHEN y50 <> 0 THEN x / y50 ELSE -1 END AS r FROM t", Device),
        ("SELECT id, CASE WHEN y10 <> 0 THEN x / y10 END AS r FROM t", Device),
        ("SELECT id, CASE y50 WHEN 0 THEN -1 ELSE x / y50 END AS r FROM t", Device),
        ("SELECT id, CASE WHEN y50 = 0 THEN 0 WHEN x / y50 > 20 THEN 1 ELSE x % y50 END AS r FROM t", Device),
        ("SELECT id, CASE WHEN x / y50 > 1 THEN 1 ELSE 0 END AS r FROM t", ZERO),
        ("SELECT id, CASE WHEN x > 200 THEN x / y50 ELSE 0 END AS r FROM t", Device),
        ("SELECT id, CASE WHEN even THEN 0 ELSE x / y50 END AS r FROM t", ZERO),
        ("SELECT id, CASE n WHEN x / y50 THEN 1 ELSE 2 END AS r FROM t", ZERO),
        ("SELECT id, CASE WHEN n = 4 THEN NULL ELSE n END / y50 AS r FROM t", Device),
        ("SELECT id, x / NULLIF(y50, 0) AS r, x % NULLIF(y10, 0) AS s FROM t", Device),
        ("SELECT id, COALESCE(x / NULLIF(y50, 0), 7) AS r FROM t", Device),
        ("SELECT id, COALESCE(n, x / late + 1) AS r FROM t", Device),
        ("SELECT id, COALESCE(n, x / y50) AS r FROM t", ZERO),
        ("SELECT id, NULLIF(x / y50, 1) AS r FROM t", ZERO),
        ("SELECT id, NVL2(n, 1, x / y50) AS r FROM t", ZERO),
        ("SELECT id, greatest(x, x / y50) AS r FROM t", ZERO),
    ])
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn division_in_projections_and_aggregates() -> TestResult {
    check(&[
        ("SELECT id, x / late AS r FROM t", ZERO),
        // DataFusion moves the projection below the filter, so that it is computed for all rows.
        ("SELECT id, x % late AS r FROM t WHERE id < 2000", ZERO),
        ("SELECT id, x / n AS r FROM t", Device),
        ("SELECT sum(x / late) FROM t", ZERO),
        ("SELECT sum(x / late) FROM t WHERE id > 2500", Device),
        ("SELECT sum(x / late) FILTER (WHERE id <> 2500) FROM t", Rows),
        ("SELECT count(*) FILTER (WHERE x / late = 1) FROM t", ZERO),
        ("SELECT sum(CASE WHEN y50 <> 0 THEN x / y50 END), min(x % NULLIF(y10, 0)) FROM t", Device),
        ("SELECT sum(r), count(*) FROM (SELECT CASE WHEN even THEN x / y50 ELSE x END AS r FROM t) WHERE r > 3", Device),
        // The column is computed for all rows, whatever looks at it above.
        ("SELECT max(CASE WHEN id <> 2500 THEN r END) FROM (SELECT id, x / late AS r FROM t) WHERE r >= 0", ZERO),
        ("SELECT id FROM t WHERE x / y50 IN (1, 2)", ZERO),
    ])
    .await
}

/// What has been given before the row that raises is enough.
#[tokio::test(flavor = "multi_thread")]
async fn below_a_limit() -> TestResult {
    let (gpu, off) = sessions(1).await?;
    for (sql, raises) in [
        ("SELECT id FROM t WHERE x / late >= 0 LIMIT 3", false),
        ("SELECT id FROM t WHERE x / late >= 0 LIMIT 999", false),
        ("SELECT id FROM t WHERE x / late >= 0 LIMIT 2600", true),
        ("SELECT unnest(make_array(id)) AS u FROM t WHERE x / late >= 0 LIMIT 1500", false),
        ("SELECT id FROM t WHERE abs(low) >= 0 LIMIT 2000", false),
        ("SELECT id FROM t WHERE abs(CAST(big AS INT)) >= 0 LIMIT 2600", true),
    ] {
        let (oracle, got) = (run(&off, sql).await, gpu.run(sql).await);
        assert_eq!(oracle.is_err(), raises, "{sql}: {:?}", text(&oracle));
        assert_eq!(text(&got), text(&oracle), "{sql}");
        if let (Ok(oracle), Ok(got)) = (oracle, got) {
            assert_eq!(got.rows, oracle.rows, "{sql}");
            assert!(!got.nodes.is_empty(), "{}", got.plan);
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn values_out_of_range() -> TestResult {
    const CAST: Want = Raises("Can't cast value 3000000000 to type Int32");
    check(&[
        ("SELECT id, CAST(big AS INT) AS r FROM t", CAST),
        ("SELECT sum(CAST(big AS INT)) FROM t", CAST),
        ("SELECT sum(CAST(big AS INT)) FROM t WHERE id <> 2500", Device),
        ("SELECT id, TRY_CAST(big AS INT) AS r, TRY_CAST(big AS SMALLINT) AS s FROM t", Device),
        ("SELECT count(*) FROM t WHERE id < 100 AND abs(CAST(big AS INT)) > 5", Rows),
        ("SELECT id, CASE WHEN big < 2147483648 THEN CAST(big AS INT) END AS r FROM t", Device),
        ("SELECT id, CAST(late - 1 AS INT UNSIGNED) AS r FROM t", Raises("Can't cast value -1 to type UInt32")),
        ("SELECT id, abs(low) AS r FROM t", Raises("overflow on abs(-2147483648)")),
        ("SELECT max(abs(low)) FROM t", Raises("overflow on abs(-2147483648)")),
        ("SELECT id, CASE WHEN low > -2147483648 THEN abs(low) ELSE 0 END AS r FROM t", Device),
        ("SELECT id, low / -late AS r FROM t WHERE id < 2000", ZERO),
        ("SELECT id, low / arrow_cast(-1, 'Int32') AS r FROM t", Raises("-2147483648")),
        ("SELECT id, low % arrow_cast(-1, 'Int32') AS r FROM t", Device),
        // What only some batches hold as a scalar is negated with a check there.
        ("SELECT id, -(CASE WHEN late >= 0 THEN arrow_cast(-128, 'Int8') ELSE CAST(x AS TINYINT) END) AS r FROM t", Raises("")),
    ])
    .await
}
