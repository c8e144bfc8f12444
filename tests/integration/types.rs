//! Every fixed-width type as column, literal, query parameter and late-bound scalar subquery; a changed value makes no
//! new pipeline.

use std::sync::Arc;

use datafusion::arrow::array::{
    ArrayRef, AsArray, Float16Array, Float32Array, Int64Array, NullArray, RecordBatch,
};
use datafusion::arrow::buffer::{Buffer, NullBuffer};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, Float32Type};

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

/// Every half there is, and singles on and beside them, with some NULLs.
fn narrow_floats() -> TestResult<RecordBatch> {
    let halves: Vec<u16> = (0..=u16::MAX).collect();
    let rows = halves.len();
    let nulls = || Some(NullBuffer::from_iter((0..rows).map(|row| row % 97 != 5)));
    let halves = Float16Array::new(Buffer::from_vec(halves).into(), None);
    let singles = cast(&halves, &DataType::Float32)?;
    let singles = singles.as_primitive::<Float32Type>().values().iter().zip([0, 1, u32::MAX].iter().cycle());
    let singles = singles.map(|(single, step)| f32::from_bits(single.to_bits().wrapping_add(*step)));
    let columns: [(&str, ArrayRef); 3] = [
        ("id", Arc::new(Int64Array::from_iter_values(0..rows as i64))),
        ("f16", Arc::new(Float16Array::new(halves.values().clone(), nulls()))),
        ("f32", Arc::new(Float32Array::new(singles.collect(), nulls()))),
    ];
    Ok(RecordBatch::try_from_iter_with_nullable(
        columns.into_iter().map(|(name, array)| (name, array, name != "id")),
    )?)
}

/// Zeros, denormals, infinities and NaNs against bounds on and beside what the types hold, by one pipeline an operator.
#[tokio::test(flavor = "multi_thread")]
async fn narrow_floats_of_all_bits_against_literals() -> TestResult {
    const BOUNDS: [&str; 10] = [
        "0.5",
        "0.1",
        "-0.0",
        "-3e-8",
        "1e-45",
        "65504.0",
        "-65519.9",
        "1e300",
        "CAST('Infinity' AS DOUBLE)",
        "CAST('-Infinity' AS DOUBLE)",
    ];
    let both = Both::with_table(narrow_floats()?).await?;
    let counted = |conditions: &[String]| {
        let each =
            conditions.iter().map(|is| format!("count(*) FILTER (WHERE {is}), sum(id) FILTER (WHERE {is})"));
        format!("SELECT {} FROM t", each.collect::<Vec<_>>().join(", "))
    };
    for name in ["f16", "f32"] {
        for operator in ["<", "<=", ">", ">=", "=", "<>"] {
            let mut all = BOUNDS.map(|bound| format!("{name} {operator} {bound}"));
            both.same(&counted(&all)).await?;
            all.reverse();
            assert_eq!(both.same(&counted(&all)).await?, 0, "{all:?}");
        }
        for ctx in [&both.gpu.ctx, &both.cpu] {
            let prepared = counted(&[format!("$1 <= {name}")]);
            ctx.sql(&format!("PREPARE least_{name}(DOUBLE) AS {prepared}")).await?;
        }
        both.same(&format!("EXECUTE least_{name}(0.25)")).await?;
        assert_eq!(both.same(&format!("EXECUTE least_{name}(1.1)")).await?, 0, "another parameter of {name}");
        // A cast may change the bits of a NaN, so that it is done where one is compared.
        let others = [
            "BETWEEN -6e-8 AND 0.1",
            "NOT IN (0.5, 0.1, -0.0, 65504.0)",
            ">= CAST('NaN' AS DOUBLE)",
            "IS DISTINCT FROM 0.5",
            "IS DISTINCT FROM -0.0",
            "IS NOT DISTINCT FROM CAST('NaN' AS DOUBLE)",
        ];
        both.same(&counted(&others.map(|other| format!("{name} {other}")))).await?;
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
