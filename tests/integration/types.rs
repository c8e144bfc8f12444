//! Every fixed-width type as column, literal, query parameter and late-bound scalar subquery; a changed value makes no
//! new pipeline.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, Int64Array, NullArray, RecordBatch};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::DataType;

use crate::both::Both;
use crate::harness::TestResult;

/// Names, Arrow types as `arrow_cast` spells them, and two values as SQL numbers or strings.
const TYPES: [(&str, &str, &str, &str); 28] = [
    ("b", "Boolean", "1", "0"),
    ("i8", "Int8", "3", "-4"),
    ("i16", "Int16", "3", "-4"),
    ("i32", "Int32", "3", "-4"),
    ("i64", "Int64", "3", "-4"),
    ("u8", "UInt8", "3", "40"),
    ("u16", "UInt16", "3", "40"),
    ("u32", "UInt32", "3", "40"),
    ("u64", "UInt64", "3", "40"),
    ("f16", "Float16", "3", "-4"),
    ("f32", "Float32", "3", "-4"),
    ("f64", "Float64", "3", "-4"),
    ("d32", "Date32", "3", "-4"),
    ("d64", "Date64", "3", "-4"),
    ("t_s", "Time32(Second)", "3", "40"),
    ("t_ms", "Time32(Millisecond)", "3", "40"),
    ("t_us", "Time64(Microsecond)", "3", "40"),
    ("t_ns", "Time64(Nanosecond)", "3", "40"),
    ("ts_s", "Timestamp(Second, None)", "3", "-4"),
    ("ts_ms", "Timestamp(Millisecond, Some(\"UTC\"))", "3", "-4"),
    ("ts_us", "Timestamp(Microsecond, Some(\"+00:00\"))", "3", "-4"),
    ("ts_ns", "Timestamp(Nanosecond, None)", "3", "-4"),
    ("du_s", "Duration(Second)", "3", "-4"),
    ("du_ns", "Duration(Nanosecond)", "3", "-4"),
    ("dec32", "Decimal32(7, 2)", "3", "-4"),
    ("dec64", "Decimal64(15, 2)", "3", "-4"),
    ("dec", "Decimal128(15, 2)", "3", "-4"),
    ("wide", "Decimal128(30, 2)", "3", "-4"),
];

/// A value of a type. Times and narrow dates are cast from integers of their own width.
fn literal(ty: &str, value: &str) -> String {
    let from = match ty {
        "Date32" | "Time32(Second)" | "Time32(Millisecond)" => "Int32",
        _ => "Int64",
    };
    format!("arrow_cast(arrow_cast({value}, '{from}'), '{ty}')")
}

/// 700 rows: id, and a column of each type with some NULLs, its values within +-50 (0 and more for unsigned ones and times).
fn table() -> TestResult<RecordBatch> {
    const ROWS: i64 = 700;
    let mut columns: Vec<(&str, ArrayRef)> = vec![("id", Arc::new(Int64Array::from_iter_values(0..ROWS)))];
    for (at, (name, ty, ..)) in TYPES.iter().enumerate() {
        let data_type: DataType = ty.parse()?;
        let low = if ty.starts_with("UInt") || ty.starts_with("Time3") || ty.starts_with("Time6") {
            0
        } else {
            -50
        };
        let at = at as i64;
        let values = (0..ROWS).map(|row| ((row + at) % 11 != 0).then(|| low + (row * 37 + at) % (50 - low)));
        let values: ArrayRef = Arc::new(Int64Array::from_iter(values));
        let narrow = matches!(data_type, DataType::Date32 | DataType::Time32(_));
        let values = if narrow { cast(&values, &DataType::Int32)? } else { values };
        let values = if data_type == DataType::Float16 { cast(&values, &DataType::Float32)? } else { values };
        columns.push((name, cast(&values, &data_type)?));
    }
    columns.push(("n", Arc::new(NullArray::new(ROWS as usize))));
    Ok(RecordBatch::try_from_iter_with_nullable(
        columns.into_iter().map(|(name, array)| (name, array, name != "id")),
    )?)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_type_as_column_literal_and_case() -> TestResult {
    let both = Both::with_table(table()?).await?;
    for (name, ty, one, two) in TYPES {
        let (one, two) = (literal(ty, one), literal(ty, two));
        both.same(&format!("SELECT id, {name} FROM t WHERE {name} > {one}")).await?;
        both.same(&format!(
            "SELECT id, CASE WHEN id > 300 THEN {name} WHEN id < 9 THEN {one} END AS c, nullif({name}, {two}) AS d \
             FROM t WHERE {name} IN ({one}, {two}) OR {name} IS NULL OR {name} IS DISTINCT FROM {one}"
        ))
        .await?;
        if name != "b" {
            both.same(&format!(
                "SELECT count({name}), min({name}), max({name}) FROM t WHERE {name} <> {two}"
            ))
            .await?;
        }
    }
    both.same("SELECT id, n, n IS NULL AS m FROM t WHERE id > 10 AND n IS NULL").await?;
    both.same("SELECT count(n), count(*) FROM t WHERE id > 10").await?;
    Ok(())
}

/// What `round` and `trunc` are told is data too, as long as it lies on one side of the point.
#[tokio::test(flavor = "multi_thread")]
async fn other_decimal_places_make_no_new_pipeline() -> TestResult {
    let both = Both::with_table(table()?).await?;
    for name in ["i8", "i64", "u32", "f32", "f64", "dec32", "dec64", "dec", "wide"] {
        for function in ["round", "trunc"] {
            for sides in [["1", "2", "0", "7"], ["-1", "-2", "-3", "-30"]] {
                // Powers of ten that floats lack, and other types round to 0 by.
                let sides = if name.starts_with('f') { &sides[..3] } else { &sides[..] };
                for (at, places) in sides.iter().enumerate() {
                    let sql = format!("SELECT id, {function}({name}, {places}) AS r FROM t WHERE id > {at}");
                    let made = both.same(&sql).await?;
                    assert!(at == 0 || made == 0, "{made} pipelines of {sql}");
                }
            }
            let prepared = format!("{function}_{name}");
            for ctx in [&both.gpu.ctx, &both.cpu] {
                ctx.sql(&format!(
                    "PREPARE {prepared}(INT) AS SELECT id FROM t WHERE {function}({name}, $1) > 2"
                ))
                .await?;
            }
            both.same(&format!("EXECUTE {prepared}(1)")).await?;
            assert_eq!(both.same(&format!("EXECUTE {prepared}(2)")).await?, 0, "{prepared}");
        }
    }
    Ok(())
}

/// Literals are doubles, of which a column of fewer bits holds some.
#[tokio::test(flavor = "multi_thread")]
async fn other_bounds_of_narrow_floats_make_no_new_pipeline() -> TestResult {
    let both = Both::with_table(table()?).await?;
    for name in ["f16", "f32"] {
        for operator in ["<", "<=", ">", ">=", "=", "<>"] {
            for (at, bound) in ["0.5", "0.1", "-0.0", "0.0", "70000.0", "1e300"].iter().enumerate() {
                let sql = format!("SELECT id, {name} FROM t WHERE {name} {operator} {bound}");
                let made = both.same(&sql).await?;
                assert!(at == 0 || made == 0, "{made} pipelines of {sql}");
            }
        }
        both.same(&format!("SELECT id FROM t WHERE {name} BETWEEN -1.5 AND 2.25")).await?;
        both.same(&format!("SELECT id FROM t WHERE {name} IN (0.5, 1.0, 0.1, -2.5)")).await?;
        both.same(&format!("SELECT id, {name} * 2.5 AS p FROM t WHERE id > 3")).await?;
        both.same(&format!("SELECT id FROM t WHERE {name} IS DISTINCT FROM 1.0")).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_value_makes_no_new_pipeline() -> TestResult {
    let both = Both::with_table(table()?).await?;
    for (name, ty, one, two) in TYPES {
        let (one, two) = (literal(ty, one), literal(ty, two));
        let with = |value: &str| format!("SELECT id, {name} FROM t WHERE {name} >= {value}");
        both.same(&with(&one)).await?;
        assert_eq!(both.same(&with(&two)).await?, 0, "another literal of {ty}");

        for ctx in [&both.gpu.ctx, &both.cpu] {
            ctx.sql(&format!("PREPARE p_{name} AS SELECT id, {name} FROM t WHERE {name} < $1")).await?;
        }
        both.same(&format!("EXECUTE p_{name}({one})")).await?;
        assert_eq!(both.same(&format!("EXECUTE p_{name}({two})")).await?, 0, "another parameter of {ty}");

        let subquery = |id: usize| with(&format!("(SELECT {name} FROM t WHERE id = {id})"));
        both.same(&subquery(35)).await?;
        assert_eq!(both.same(&subquery(36)).await?, 0, "another scalar subquery of {ty}");
    }
    Ok(())
}
