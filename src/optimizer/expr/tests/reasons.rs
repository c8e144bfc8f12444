//! What is said of expressions that are declined: the operator, the type, and where it stands.

use arrow::array::AsArray;
use arrow::datatypes::Float64Type;
use datafusion::logical_expr::{ColumnarValue, Volatility, create_udf};

use super::*;

fn texts(lowering: Lowering, lowered: Lowered) -> Vec<String> {
    let reasons = lowering.finish(&DeviceCaps::for_tests(), lowered).unwrap_err();
    reasons.iter().map(ToString::to_string).collect()
}

/// The reasons against an expression over columns `h` and `n` of types that arithmetic on the device does not take.
fn reasons(ctx: &SessionContext, sql: &str) -> Vec<String> {
    let fields = [("h", DataType::Float16), ("n", DataType::Decimal256(50, 2)), ("f64", DataType::Float64)];
    let schema = Schema::new(fields.map(|(name, ty)| Field::new(name, ty, true)).to_vec());
    let columns = DFSchema::try_from(schema.clone()).unwrap();
    let expr = ctx.parse_sql_expr(sql, &columns).unwrap();
    let expr = ctx.create_physical_expr(expr, &columns).unwrap();
    let mut lowering = Lowering::new(Arc::new(schema));
    let lowered = lowering.lower(&expr);
    texts(lowering, lowered)
}

#[test]
fn the_type_at_fault_is_named() {
    let ctx = SessionContext::new();
    for (sql, part) in [
        ("abs(h)", "abs(Float16) has no GPU counterpart"),
        ("h + h", "arithmetic on Float16 and Float16"),
        ("n / n", "is of type Decimal256("),
        ("n % n", "is of type Decimal256("),
    ] {
        let reasons = reasons(&ctx, sql);
        assert!(reasons.len() == 1 && reasons[0].contains(part), "{sql}: {reasons:?}");
    }
}

#[test]
fn a_function_is_not_known_by_its_name() {
    let ctx = SessionContext::new();
    assert!(reasons(&ctx, "ln(f64)")[0].contains("devices round this function"));
    let own = |args: &[ColumnarValue]| {
        let values = args[0].to_array(1)?;
        let squares = values.as_primitive::<Float64Type>().unary::<_, Float64Type>(|x| x * x);
        Ok(ColumnarValue::Array(Arc::new(squares)))
    };
    let types = || vec![DataType::Float64];
    let udf = create_udf("ln", types(), DataType::Float64, Volatility::Immutable, Arc::new(own));
    ctx.register_udf(udf);
    assert!(reasons(&ctx, "ln(f64)")[0].contains("ln(Float64) has no GPU counterpart"));
}

/// `b` below so many levels of NOT.
fn nested(levels: usize) -> Arc<dyn PhysicalExpr> {
    (0..levels).fold(plan("b"), |expr, _| Arc::new(NotExpr::new(expr)))
}

#[test]
fn what_is_too_large_is_named() {
    let wide = (0..600).map(|i| format!("i64 <> i32 + {i}")).collect::<Vec<_>>().join(" OR ");
    for (expr, name) in [(plan(&wide), "i64@2 != "), (nested(1_500), "column x: more than")] {
        let mut lowering = Lowering::new(schema());
        lowering.name("column x".to_owned());
        let lowered = lowering.output(&expr);
        let reasons = texts(lowering, lowered);
        assert!(reasons.len() == 1 && reasons[0].contains(name), "{reasons:?}");
    }
}

/// DataFusion tells one value from an array of it in these, and CASE over all values of a batch may give either.
#[test]
fn what_tells_scalars_apart_is_not_looked_up_over_case() {
    for (sql, looked_up) in [
        ("trunc(CASE WHEN s = 'a' THEN -0.0 END)", false),
        ("- CASE WHEN s = 'a' THEN 1 END", false),
        ("date_trunc('day', CASE WHEN s = 'a' THEN TIMESTAMP '1969-12-31T23:59:59' END)", false),
        ("round(CASE WHEN s = 'a' THEN -0.0 END)", true),
        ("trunc(CAST(s AS DOUBLE))", true),
    ] {
        let lowered = lower(sql);
        let whole = lowered.as_ref().is_ok_and(|(expr, _)| matches!(expr.as_ref(), Expr::Lookup { .. }));
        assert_eq!(whole, looked_up, "{sql}: {lowered:?}");
    }
    assert_eq!(declined("trunc(CASE WHEN s = 'a' THEN -0.0 END)"), ["UnsupportedExpression"]);
}
