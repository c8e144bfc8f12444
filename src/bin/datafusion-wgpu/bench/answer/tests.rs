use std::sync::Arc;

use datafusion::arrow::array::{Float64Array, Int64Array, StringArray};
use datafusion::prelude::SessionContext;

use super::*;

fn rows(keys: &[i64], values: &[Option<f64>]) -> RecordBatch {
    let columns: Vec<(&str, ArrayRef, bool)> = vec![
        ("k", Arc::new(Int64Array::from(keys.to_vec())), false),
        ("v", Arc::new(Float64Array::from(values.to_vec())), true),
    ];
    RecordBatch::try_from_iter_with_nullable(columns).unwrap()
}

fn difference(want: &RecordBatch, got: &RecordBatch, rule: &Rule) -> Option<String> {
    let answer =
        |batch: &RecordBatch| Answer::new(&batch.schema(), std::slice::from_ref(batch), rule).unwrap();
    answer(want).difference(&answer(got), rule)
}

fn exact(order: &[usize]) -> Rule {
    Rule { tolerance: 0.0, order: order.to_vec() }
}

#[test]
fn rows_are_a_multiset_compared_bit_for_bit() {
    let want = rows(&[1, 2, 2], &[Some(0.0), None, Some(f64::NAN)]);
    let same = rows(&[2, 1, 2], &[Some(f64::NAN), Some(0.0), None]);
    assert_eq!(difference(&want, &same, &exact(&[])), None);
    let others = [
        rows(&[1, 2, 2], &[Some(-0.0), None, Some(f64::NAN)]),
        rows(&[1, 2, 2], &[Some(0.0), Some(0.0), Some(f64::NAN)]),
        rows(&[1, 1, 2], &[Some(0.0), None, Some(f64::NAN)]),
        rows(&[1, 2], &[Some(0.0), None]),
    ];
    for other in others {
        assert!(difference(&want, &other, &exact(&[])).is_some(), "{other:?}");
    }
    let text: ArrayRef = Arc::new(StringArray::from(vec!["1", "2", "2"]));
    let typed = RecordBatch::try_from_iter([("k", text), ("v", Arc::clone(want.column(1)))]).unwrap();
    assert!(difference(&want, &typed, &exact(&[])).is_some_and(|text| text.starts_with("columns of types")));
}

#[test]
fn order_counts_for_the_keys_only() {
    let want = rows(&[1, 2, 2], &[Some(1.0), Some(2.0), Some(3.0)]);
    let ties = rows(&[1, 2, 2], &[Some(1.0), Some(3.0), Some(2.0)]);
    let swapped = rows(&[2, 1, 2], &[Some(2.0), Some(1.0), Some(3.0)]);
    assert_eq!(difference(&want, &ties, &exact(&[0])), None);
    let text = difference(&want, &swapped, &exact(&[0])).unwrap();
    assert_eq!(text, "row 1 in order is (2, 2.0), expected (1, 1.0)");
    assert_eq!(difference(&want, &swapped, &exact(&[])), None);
}

#[test]
fn sums_of_floats_may_be_a_few_roundings_apart() {
    let rule = Rule { tolerance: 8.0 * f64::EPSILON, order: vec![] };
    let want = rows(&[1, 2], &[Some(1e6), Some(0.0)]);
    let near = rows(&[1, 2], &[Some(1e6 * (1.0 + 4.0 * f64::EPSILON)), Some(1e-10)]);
    assert_eq!(difference(&want, &near, &rule), None);
    assert!(difference(&want, &near, &exact(&[])).is_some());
    for far in [rows(&[1, 2], &[Some(1e6 + 1e-6), Some(0.0)]), rows(&[1, 2], &[Some(1e6), None])] {
        assert!(difference(&want, &far, &rule).is_some(), "{far:?}");
    }
    let wrong_key = rows(&[1, 3], &[Some(1e6), Some(0.0)]);
    assert!(difference(&want, &wrong_key, &rule).is_some());
}

#[test]
fn only_an_infinity_is_near_an_infinity() {
    let rule = Rule { tolerance: 8.0 * f64::EPSILON, order: vec![] };
    let one = |value: f64| rows(&[1], &[Some(value)]);
    for value in [f64::INFINITY, f64::NEG_INFINITY, f64::NAN] {
        assert_eq!(difference(&one(value), &one(value), &rule), None);
        for other in [5.0, f64::MAX, -value, f64::NAN] {
            if other.is_nan() && value.is_nan() {
                continue;
            }
            assert!(difference(&one(value), &one(other), &rule).is_some(), "{value} {other}");
            assert!(difference(&one(other), &one(value), &rule).is_some(), "{other} {value}");
        }
    }
    // An infinity beside it does not make a column's finite values equal.
    let column = |value: f64| rows(&[1, 2], &[Some(value), Some(f64::INFINITY)]);
    assert!(difference(&column(1.0), &column(2.0), &rule).is_some());
}

#[test]
fn sums_are_those_of_numeric_columns() {
    let batches = [rows(&[1, 2], &[Some(0.5), None]), rows(&[3], &[Some(2.0)])];
    assert_eq!(sums(&batches[0].schema(), &batches).unwrap(), [Some(6.0), Some(2.5)]);
    let text: ArrayRef = Arc::new(StringArray::from(vec!["1"]));
    let texts = RecordBatch::try_from_iter([("s", text)]).unwrap();
    assert_eq!(sums(&texts.schema(), &[texts]).unwrap(), [None]);
}

async fn rule(sql: &str) -> Rule {
    let ctx = SessionContext::new();
    let table = "CREATE TABLE t (i INT, d DECIMAL(10, 2), f DOUBLE, s TEXT)";
    ctx.sql(table).await.unwrap().collect().await.unwrap();
    let plan = ctx.state().create_logical_plan(sql).await.unwrap();
    Rule::of(&plan, &ctx.state().optimize(&plan).unwrap(), 10_000).unwrap()
}

#[tokio::test]
async fn only_arithmetic_on_floats_is_rounded() {
    let queries = [
        ("SELECT sum(i), sum(d), avg(d), min(f), max(f), count(f) FROM t", "exact"),
        ("SELECT f, count(*) FROM t GROUP BY f", "exact"),
        ("SELECT sum(f) FROM t", "rounded"),
        ("SELECT avg(i) FROM t", "rounded"),
        ("SELECT i FROM t WHERE f > (SELECT avg(f) FROM t)", "rounded"),
        ("SELECT sum(f) OVER (ORDER BY i) FROM t", "rounded"),
        ("SELECT row_number() OVER (ORDER BY f) FROM t", "exact"),
        ("SELECT s, corr(i, f) FROM t GROUP BY s", "rounded"),
    ];
    for (sql, tier) in queries {
        let rule = rule(sql).await;
        assert_eq!(rule.tier(), tier, "{sql}");
        assert!(rule.tolerance < 1e-12);
    }
}

#[tokio::test]
async fn the_keys_of_order_by_are_found_in_the_output() {
    let queries: [(&str, &[usize]); 6] = [
        ("SELECT i, s FROM t", &[]),
        ("SELECT i, s FROM t ORDER BY s DESC, i LIMIT 3", &[1, 0]),
        ("SELECT s, count(*) AS n FROM t GROUP BY s ORDER BY n DESC, s", &[1, 0]),
        ("SELECT s, sum(d) FROM t GROUP BY s ORDER BY sum(d) DESC", &[1]),
        ("SELECT s FROM t ORDER BY s, i", &[0]),
        ("SELECT s FROM t ORDER BY i, s", &[]),
    ];
    for (sql, keys) in queries {
        assert_eq!(rule(sql).await.order, keys, "{sql}");
    }
}
