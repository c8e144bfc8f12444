//! Float arithmetic, casts and functions: what is lowered, as what, and what is declined.

use datafusion::logical_expr::{ColumnarValue, Volatility, create_udf};
use datafusion::physical_expr::ScalarFunctionExpr;

use crate::kernels::expr::{FloatFn, Function};

use super::*;

fn function(sql: &str) -> (FloatFn, Vec<Arc<Expr>>, ValueType, ParamTable) {
    let (expr, params) = taken(sql);
    match expr.as_ref() {
        Expr::Call { function: Function::Float(f), args, ty } => (*f, args.clone(), *ty, params),
        other => panic!("{sql} is {other:?}"),
    }
}

fn cast(name: &str, to: ValueType) -> Arc<Expr> {
    let function = Function::Float(FloatFn::Cast { safe: false });
    Arc::new(Expr::Call { function, args: vec![column(name)], ty: to })
}

#[test]
fn arithmetic() {
    for (sql, wanted) in [
        ("f64 + f64", FloatFn::Add),
        ("f64 - f64", FloatFn::Sub),
        ("f64 * f64", FloatFn::Mul),
        ("f64 / f64", FloatFn::Div),
        ("f64 % f64", FloatFn::Rem),
    ] {
        let (f, args, ty, _) = function(sql);
        assert_eq!((f, args, ty), (wanted, vec![column("f64"), column("f64")], ValueType::Float64), "{sql}");
        let (f, args, ty, _) = function(&sql.replace("64", "32"));
        assert_eq!((f, args, ty), (wanted, vec![column("f32"), column("f32")], ValueType::Float32), "{sql}");
    }
    let (minus, _) = taken("-f32");
    assert_eq!(*minus, Expr::Negate(column("f32")));
    // Whether it may fault is about DataFusion raising, which float arithmetic never does.
    assert!(!taken("f64 / f64 + f64 % 2").0.may_fault());
}

#[test]
fn mixed_operands_are_coerced_by_casts() {
    let (f, args, ty, _) = function("f32 + f64");
    assert_eq!((f, ty), (FloatFn::Add, ValueType::Float64));
    assert_eq!(args, [cast("f32", ValueType::Float64), column("f64")]);
    let (_, args, ty, params) = function("i64 * 1.5");
    assert_eq!((&args[0], ty), (&cast("i64", ValueType::Float64), ValueType::Float64));
    assert_eq!(
        params.resolve().unwrap().values,
        vec![(ValueType::Float64, Some(i128::from(1.5f64.to_bits())))]
    );
    let (compared, _) = taken("f32 > f64");
    let left = cast("f32", ValueType::Float64);
    assert_eq!(*compared, Expr::Compare { op: CompareOp::Gt, left, right: column("f64") });
    let (compared, _) = taken("i32 = f64");
    let left = cast("i32", ValueType::Float64);
    assert_eq!(*compared, Expr::Compare { op: CompareOp::Eq, left, right: column("f64") });
}

#[test]
fn casts() {
    for (sql, safe, from, to) in [
        ("CAST(f64 AS BIGINT)", false, "f64", ValueType::Int64),
        ("TRY_CAST(f32 AS SMALLINT)", true, "f32", ValueType::Int16),
        ("CAST(f64 AS INT UNSIGNED)", false, "f64", ValueType::UInt32),
        ("CAST(f64 AS BOOLEAN)", false, "f64", ValueType::Boolean),
        ("TRY_CAST(f64 AS BOOLEAN)", false, "f64", ValueType::Boolean),
        ("CAST(b AS DOUBLE)", false, "b", ValueType::Float64),
        ("CAST(u64 AS REAL)", false, "u64", ValueType::Float32),
        ("TRY_CAST(i8 AS DOUBLE)", false, "i8", ValueType::Float64),
        ("CAST(f64 AS REAL)", false, "f64", ValueType::Float32),
        ("TRY_CAST(f32 AS DOUBLE)", false, "f32", ValueType::Float64),
    ] {
        let (f, args, ty, _) = function(sql);
        assert_eq!((f, args, ty), (FloatFn::Cast { safe }, vec![column(from)], to), "{sql}");
    }
    assert!(taken("CAST(f64 AS BIGINT)").0.may_fault());
    assert!(!taken("TRY_CAST(f64 AS BIGINT)").0.may_fault());
    assert!(!taken("CAST(i64 AS DOUBLE)").0.may_fault());
}

#[test]
fn functions() {
    for (sql, wanted, ty) in [
        ("abs(f32)", FloatFn::Abs, ValueType::Float32),
        ("signum(f64)", FloatFn::Signum, ValueType::Float64),
        ("floor(f32)", FloatFn::Floor, ValueType::Float32),
        ("ceil(f64)", FloatFn::Ceil, ValueType::Float64),
        ("trunc(f64)", FloatFn::Trunc, ValueType::Float64),
        ("round(f32)", FloatFn::Round, ValueType::Float32),
        ("isnan(f64)", FloatFn::IsNan, ValueType::Boolean),
        ("iszero(f32)", FloatFn::IsZero, ValueType::Boolean),
        ("nanvl(f64, f64)", FloatFn::Nanvl, ValueType::Float64),
    ] {
        let (f, args, result, _) = function(sql);
        assert_eq!((f, result), (wanted, ty), "{sql}");
        assert_eq!(args[0], column(if sql.contains("32") { "f32" } else { "f64" }), "{sql}");
    }
    let (f, args, ..) = function("floor(i32)");
    assert_eq!((f, args), (FloatFn::Floor, vec![cast("i32", ValueType::Float64)]));
}

/// Decimal places become a factor, which is data: other places reuse the kernel.
#[test]
fn decimal_places_are_a_parameter() {
    let factor = |sql: &str| {
        let (f, args, ty, params) = function(sql);
        assert_eq!(args[1], Arc::new(Expr::Param { slot: 0, ty }), "{sql}");
        (f, params.resolve().unwrap().values[0].1.unwrap())
    };
    assert_eq!(factor("round(f64, 2)"), (FloatFn::RoundBy, 100f64.to_bits().into()));
    assert_eq!(factor("round(f64, -2)"), (FloatFn::RoundBy, 0.01f64.to_bits().into()));
    assert_eq!(factor("round(f32, 3)"), (FloatFn::RoundBy, 1000f32.to_bits().into()));
    assert_eq!(factor("trunc(f32, 1)"), (FloatFn::TruncBy, 10f32.to_bits().into()));
    assert_eq!(factor("trunc(f64, 0)"), (FloatFn::TruncBy, 1f64.to_bits().into()));
    assert_eq!(declined("round(f64, i32)"), ["UnsupportedExpression"]);
    assert_eq!(declined("trunc(f64, i64)"), ["UnsupportedExpression"]);
    assert_eq!(declined("round(f64, 400)"), ["UnsupportedExpression"]);
    assert_eq!(declined("round(f32, 40)"), ["UnsupportedExpression"]);
    assert_eq!(declined("round(f64, -400)"), ["UnsupportedExpression"]);
}

#[test]
fn what_has_no_exact_counterpart() {
    for sql in ["cbrt(f64)", "ln(f32)", "exp(f64)", "power(f64, 2)", "sin(f64)", "log10(f64)", "radians(f32)"]
    {
        assert_eq!(declined(sql), ["FloatArithmetic"], "{sql}");
    }
    let reasons = lower("ln(f64) > 1").unwrap_err();
    assert_eq!(reasons[0].to_string(), "ln(f64@6): devices round this function in other ways than the CPU");
    // DataFusion gives one value for all rows there, and treats it in another way.
    // A single value that is not NaN is that for all rows, and DataFusion's trunc tells -0 from +0 then.
    for (sql, single) in [
        ("nanvl(CASE WHEN b THEN -0.0 END, f64)", true),
        ("nanvl(1.5, f64)", true),
        ("nanvl(f64, CASE WHEN b THEN -0.0 END)", false),
    ] {
        assert_eq!(taken(sql).0.may_be_scalar(), single, "{sql}");
        assert_eq!(lower(&format!("trunc({sql})")).is_err(), single, "{sql}");
    }
    assert_eq!(declined("trunc(CASE WHEN b THEN -0.0 ELSE f64 END)"), ["UnsupportedExpression"]);
}

/// A function of the same name that somebody else registered.
#[test]
fn functions_are_known_by_their_implementation() {
    let other = create_udf(
        "abs",
        vec![DataType::Float64],
        DataType::Float64,
        Volatility::Immutable,
        Arc::new(|args: &[ColumnarValue]| Ok(args[0].clone())),
    );
    let args = vec![col("f64", &schema()).unwrap()];
    let options = Arc::new(datafusion::config::ConfigOptions::default());
    let call = ScalarFunctionExpr::try_new(Arc::new(other), args, &schema(), options).unwrap();
    let reasons = lower_expr(&(Arc::new(call) as Arc<dyn PhysicalExpr>)).unwrap_err();
    assert_eq!(reasons[0].code(), "UnsupportedExpression");
}

/// The kernels compute in integers, so that an adapter without doubles, or with wrong ones, does as well as any.
#[test]
fn adapters_without_doubles() {
    let mut caps = DeviceCaps::for_tests();
    caps.float64 = false;
    caps.numerics.float64_exact = false;
    for sql in
        ["f64 * f64 + f32", "f64 > 0.5", "CAST(f64 AS REAL) % 3", "round(f64, 2)", "CAST(i64 AS DOUBLE)"]
    {
        let mut lowering = Lowering::new(schema());
        let lowered = lowering.lower(&plan(sql));
        assert!(lowering.finish(&caps, lowered).is_ok(), "{sql}");
    }
}
