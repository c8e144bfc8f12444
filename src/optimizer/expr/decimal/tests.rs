//! Decimal expressions through DataFusion's planner: what is taken gives DataFusion's values and errors, row by row.

use arrow::array::{ArrayRef, RecordBatch};
use arrow::compute::CastOptions;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::common::DFSchema;
use datafusion::physical_expr::expressions::{CastExpr, col};
use datafusion::prelude::SessionContext;

use super::*;
use crate::kernels::expr::Scalar;
use crate::kernels::reference;
use crate::kernels::select::array_of;
use crate::kernels::testkit::{Rng, edges, value};
use crate::memory::caps::DeviceCaps;
use crate::optimizer::reason::Reason;
use crate::physical_plan::params::ParamTable;

fn fields() -> Vec<(&'static str, DataType)> {
    vec![
        ("a", DataType::Decimal128(15, 2)),
        ("b", DataType::Decimal128(38, 10)),
        ("c", DataType::Decimal128(38, 0)),
        ("n", DataType::Decimal128(9, -2)),
        ("t", DataType::Decimal128(38, 38)),
        ("d32", DataType::Decimal32(9, 3)),
        ("d64", DataType::Decimal64(18, 4)),
        ("low", DataType::Decimal128(5, -100)),
        ("i8", DataType::Int8),
        ("i64", DataType::Int64),
        ("u64", DataType::UInt64),
        ("f32", DataType::Float32),
        ("f64", DataType::Float64),
    ]
}

fn schema() -> SchemaRef {
    Arc::new(Schema::new(
        fields().into_iter().map(|(name, ty)| Field::new(name, ty, true)).collect::<Vec<_>>(),
    ))
}

type Outcome = Result<(Arc<Expr>, ParamTable), Vec<Reason>>;

fn lower(sql: &str) -> (Arc<dyn PhysicalExpr>, Outcome) {
    let df = DFSchema::try_from(schema().as_ref().clone()).unwrap();
    let ctx = SessionContext::new();
    let expr = ctx.parse_sql_expr(sql, &df).unwrap();
    let physical = ctx.create_physical_expr(expr, &df).unwrap_or_else(|e| panic!("{sql}: {e}"));
    let outcome = lower_expr(&physical);
    (physical, outcome)
}

fn lower_expr(physical: &Arc<dyn PhysicalExpr>) -> Outcome {
    let mut lowering = Lowering::new(schema());
    let lowered = lowering.lower(physical);
    lowering.finish(&DeviceCaps::for_tests(), lowered)
}

/// Values of a type: edges, powers of ten and of two with their neighbours and halves, random ones, and NULL.
fn values(ty: ValueType, rng: &mut Rng) -> Vec<Scalar> {
    let mut values = edges(ty);
    if let Some(decimal) = DecimalType::of(ty) {
        for k in 0..=decimal.max_digits() {
            let unit = 10i128.pow(k);
            values.extend([unit - 1, unit, unit / 2, unit / 2 - 1, 1 - unit, -unit, -unit / 2]);
        }
        values.extend([-1i128 << (decimal.width - 1), !(-1i128 << (decimal.width - 1))]);
        values.retain(|v| decimal.holds(*v));
    }
    values.extend((0..40).map(|_| value(ty, rng, 0)));
    match ty {
        ValueType::Float64 => values.extend(doubles().map(|v| i128::from(v.to_bits()))),
        ValueType::Float32 => values.extend(doubles().map(|v| i128::from((v as f32).to_bits()))),
        _ => {}
    }
    values.into_iter().map(Some).chain([None]).collect()
}

fn doubles() -> impl Iterator<Item = f64> {
    [0.5, -0.5, 1.005, 2.675, 0.125, 1e17, 1e37, 9.999e37, 1e38, 1.7e38, 1e-38, 123_456.785, 99.995, -99.995]
        .into_iter()
        .chain((-20..40).flat_map(|k| [1.234_567_89 * 10f64.powi(k), -5.5 * 10f64.powi(k)]))
}

/// Rows for the columns that an expression reads: every value of one, many pairs of several.
fn rows(columns: &[usize], rng: &mut Rng) -> Vec<Vec<Scalar>> {
    let schema = schema();
    let types = schema.fields().iter().map(|f| ValueType::from_arrow(f.data_type()).unwrap());
    let types: Vec<ValueType> = types.collect();
    let null_row = || vec![None; types.len()];
    let choices: Vec<Vec<Scalar>> = columns.iter().map(|&at| values(types[at], rng)).collect();
    let count = if columns.len() == 1 { choices[0].len() } else { 700 };
    let row = |number: usize| {
        let mut row = null_row();
        for (at, values) in columns.iter().zip(&choices) {
            let pick = if columns.len() == 1 { number } else { rng.below(values.len()) };
            row[*at] = values[pick];
        }
        row
    };
    (0..count).map(row).collect()
}

/// Compares the twin of the lowered expression with DataFusion on single rows; gives the numbers of values and errors.
fn agrees(sql: &str) -> (usize, usize) {
    let (physical, lowered) = lower(sql);
    agrees_with(&physical, lowered, sql, false)
}

/// `wraps`: the target is narrow, and Arrow wraps or panics on values that are too long for their own type or that no
/// native type of the target holds. Here they fault, so that the CPU decides; they are left out.
fn agrees_with(physical: &Arc<dyn PhysicalExpr>, lowered: Outcome, sql: &str, wraps: bool) -> (usize, usize) {
    let (expr, params) = lowered.unwrap_or_else(|reasons| panic!("{sql} was declined: {reasons:?}"));
    let params = params.resolve().unwrap().values;
    let mut columns = std::collections::BTreeSet::new();
    expr.collect_columns(&mut columns);
    let columns: Vec<usize> = columns.into_iter().collect();
    let schema = schema();
    assert_eq!(expr.value_type().to_arrow(), physical.data_type(&schema).unwrap(), "{sql}");
    let (mut good, mut errors) = (0, 0);
    for row in rows(&columns, &mut Rng::new(7)) {
        if wraps && beyond(&row, &columns) {
            continue;
        }
        let arrays: Vec<ArrayRef> = schema
            .fields()
            .iter()
            .zip(&row)
            .map(|(f, v)| array_of(ValueType::from_arrow(f.data_type()).unwrap(), &[*v]).unwrap())
            .collect();
        let batch = RecordBatch::try_new(Arc::clone(&schema), arrays).unwrap();
        let oracle = physical.evaluate(&batch).and_then(|value| value.into_array(1));
        let twin = reference::eval(&expr, &params, batch.columns(), 0);
        let shown: Vec<Scalar> = columns.iter().map(|&at| row[at]).collect();
        match (oracle, twin) {
            (Ok(array), Ok(value)) => {
                let twin = array_of(expr.value_type(), &[value]).unwrap();
                assert_eq!(&array, &twin, "{sql} of {shown:?}");
                good += 1;
            }
            (Err(_), Err(_)) => errors += 1,
            (oracle, twin) => panic!("{sql} of {shown:?}: DataFusion {oracle:?}, here {twin:?}"),
        }
    }
    (good, errors)
}

/// Whether a decimal has more digits than its type declares, or an integer more than 32 bits.
fn beyond(row: &[Scalar], columns: &[usize]) -> bool {
    let schema = schema();
    let long = |at: &usize| {
        let ty = ValueType::from_arrow(schema.field(*at).data_type()).unwrap();
        match DecimalType::of(ty) {
            Some(decimal) => row[*at].is_some_and(|v| !decimal.has_digits(v)),
            None => is_integer(ty) && row[*at].is_some_and(|v| i32::try_from(v).is_err()),
        }
    };
    columns.iter().any(long)
}

fn all_agree(expressions: &[&str]) -> (usize, usize) {
    let mut sums = (0, 0);
    for sql in expressions {
        let (good, errors) = agrees(sql);
        assert!(good > 0, "{sql} never had a value");
        sums = (sums.0 + good, sums.1 + errors);
    }
    sums
}

#[test]
fn division_and_remainder() {
    let (good, errors) = all_agree(&[
        "a / a",
        "a / b",
        "b / a",
        "c / a",
        "b / c",
        "a / n",
        "n / a",
        "a / 7",
        "c / 3",
        "a / i64",
        "i64 / a",
        "a % a",
        "a % b",
        "b % a",
        "c % a",
        "a % n",
        "c % 7",
        "a % i8",
        "d32 / d32",
        "d64 / d64",
        "d32 % d32",
        "d64 % d64",
        "d32 % d64",
        "d64 / d32",
        "d32 / a",
        "c / CAST(-1 AS DECIMAL(38, 0))",
        "c % CAST(-1 AS DECIMAL(38, 0))",
        "a / CASE WHEN a = 0 THEN NULL ELSE a END",
    ]);
    assert!(good > 5_000 && errors > 1_000, "{good} values, {errors} errors");
}

#[test]
fn arithmetic_of_narrow_decimals() {
    let (good, errors) = all_agree(&[
        "d32 + d32",
        "d32 - d32",
        "d32 * d32",
        "d64 + d64",
        "d64 - d64",
        "d64 * d64",
        "d32 + d64",
        "d32 * a",
        "-d32",
        "-d64",
        "d32 + 1",
        "d64 - i8",
        "-a",
        "-c",
        "d32 * CAST(1 AS DECIMAL(3, 0))",
    ]);
    assert!(good > 3_000 && errors > 100, "{good} values, {errors} errors");
}

#[test]
fn functions_of_decimals() {
    let mut expressions = vec![];
    for column in ["a", "b", "c", "n", "t", "d32", "d64"] {
        for function in
            ["abs({})", "floor({})", "ceil({})", "round({})", "trunc({})", "iszero({})", "isnan({})"]
        {
            expressions.push(function.replace("{}", column));
        }
        for places in [-40, -5, -2, -1, 1, 2, 3, 9, 40] {
            expressions.push(format!("round({column}, {places})"));
            expressions.push(format!("trunc({column}, {places})"));
        }
    }
    expressions.push("round(a + b, 3)".to_owned());
    for column in ["a", "c", "d64"] {
        expressions.extend([format!("round({column}, NULL)"), format!("trunc({column}, NULL)")]);
    }
    for places in [-99, -101, -103, -120, -400, 0, 400] {
        expressions.extend([format!("round(low, {places})"), format!("trunc(low, {places})")]);
    }
    let expressions: Vec<&str> = expressions.iter().map(String::as_str).collect();
    let (good, errors) = all_agree(&expressions);
    assert!(good > 10_000 && errors > 100, "{good} values, {errors} errors");
}

#[test]
fn casts_of_decimals() {
    let decimals = ["a", "b", "c", "n", "t", "d32", "d64"];
    let targets = [
        "DECIMAL(10, 0)",
        "DECIMAL(38, 2)",
        "DECIMAL(20, 12)",
        "DECIMAL(5, -3)",
        "BIGINT",
        "INT",
        "SMALLINT",
        "TINYINT",
        "BIGINT UNSIGNED",
        "INT UNSIGNED",
        "TINYINT UNSIGNED",
        "DOUBLE",
        "REAL",
    ];
    let mut expressions = vec![];
    for from in decimals {
        for to in targets {
            for cast in ["CAST", "TRY_CAST"] {
                expressions.push(format!("{cast}({from} AS {to})"));
            }
        }
    }
    for from in ["i8", "i64", "u64", "f32", "f64"] {
        for to in ["DECIMAL(10, 2)", "DECIMAL(38, 10)", "DECIMAL(3, 0)", "DECIMAL(5, -2)", "DECIMAL(38, 38)"]
        {
            for cast in ["CAST", "TRY_CAST"] {
                expressions.push(format!("{cast}({from} AS {to})"));
            }
        }
    }
    let expressions: Vec<&str> = expressions.iter().map(String::as_str).collect();
    let (good, errors) = all_agree(&expressions);
    assert!(good > 10_000 && errors > 1_000, "{good} values, {errors} errors");
}

/// SQL has no names for the narrower decimals.
#[test]
fn casts_to_narrow_decimals() {
    let targets = [DataType::Decimal32(7, 1), DataType::Decimal32(9, 6), DataType::Decimal64(16, 5)];
    let (mut good, mut errors) = (0, 0);
    for (name, _) in fields().into_iter().filter(|(name, _)| *name != "low") {
        for to in &targets {
            let column = col(name, &schema()).unwrap();
            let options = [Some(CastOptions { safe: true, ..Default::default() }), None];
            for cast in options.map(|options| CastExpr::new(Arc::clone(&column), to.clone(), options)) {
                let cast: Arc<dyn PhysicalExpr> = Arc::new(cast);
                let (values, raised) = agrees_with(&cast, lower_expr(&cast), &cast.to_string(), true);
                (good, errors) = (good + values, errors + raised);
            }
        }
    }
    assert!(good > 2_000 && errors > 500, "{good} values, {errors} errors");
}

#[test]
fn comparisons_with_other_types() {
    all_agree(&["a < b", "a = d32", "d32 < d64", "a > i64", "a >= 0.5", "n < a", "a < f64", "f32 = a"]);
}

#[test]
fn what_raises_for_every_batch_is_declined() {
    for sql in ["CAST(n AS DECIMAL(38, 38))", "round(a, i8)", "trunc(a, i64)"] {
        match lower(sql).1 {
            Ok((expr, _)) => panic!("{sql} was taken as {expr:?}"),
            Err(reasons) => assert_eq!(reasons[0].code(), "UnsupportedExpression", "{sql}: {reasons:?}"),
        }
    }
}
