//! CASE, and operators, functions and casts of integers.

use crate::kernels::expr::{ExtremeFn, Function, IntegerFn, check, dag};

use super::*;

#[test]
fn case_is_a_chain_of_conditions() {
    let (expr, _) = taken("CASE WHEN i64 > 1 THEN i64 WHEN b THEN 7 END");
    let Expr::Case { branches, otherwise: None, ty: ValueType::Int64 } = expr.as_ref() else {
        panic!("{expr:?}")
    };
    assert_eq!(branches.len(), 2);
    assert_eq!(branches[0].1, column("i64"));
    assert_eq!(branches[1].0, column("b"));

    let (expr, _) = taken("CASE i64 WHEN 1 THEN i64 WHEN 2 THEN u32 ELSE NULL END");
    let Expr::Case { branches, otherwise: Some(_), .. } = expr.as_ref() else { panic!("{expr:?}") };
    assert!(matches!(branches[0].0.as_ref(), Expr::Compare { op: CompareOp::Eq, .. }), "{branches:?}");
    assert_eq!(*branches[1].1, Expr::Cast { expr: column("u32"), to: ValueType::Int64 });

    // Arrow's equality, with which this form compares, tells the zeros apart, as IN does.
    let (expr, _) = taken("CASE f64 WHEN 0.0 THEN 1 WHEN 2.0 THEN i64 END");
    let Expr::Case { branches, .. } = expr.as_ref() else { panic!("{expr:?}") };
    assert!(matches!(branches[0].0.as_ref(), Expr::InList { .. }), "{branches:?}");

    // Rows without an operand evaluate no candidate that may raise.
    let (expr, _) = taken("CASE price WHEN price * price THEN 1 ELSE 2 END");
    let Expr::Case { branches, .. } = expr.as_ref() else { panic!("{expr:?}") };
    assert!(matches!(branches[0].0.as_ref(), Expr::IsNull(_)), "{branches:?}");
    assert_eq!(declined("CASE WHEN sin(f64) > 1 THEN ln(f64) ELSE exp(f64) END").len(), 3);
}

#[test]
fn tests_of_truth_are_never_null() {
    for truth in ["TRUE", "FALSE", "UNKNOWN"] {
        for (sql, negated) in [(format!("b IS {truth}"), true), (format!("b IS NOT {truth}"), false)] {
            let (expr, _) = taken(&sql);
            assert!(matches!(expr.as_ref(), Expr::Distinct { negated: n, .. } if *n == negated), "{expr:?}");
        }
    }
}

fn integer_call(function: IntegerFn, args: Vec<Arc<Expr>>, ty: ValueType) -> Expr {
    Expr::Call { function: Function::Integer(function), args, ty }
}

#[test]
fn integer_operators_and_functions() {
    use ValueType::*;
    for (sql, function) in [
        ("i64 / i64", IntegerFn::Divide),
        ("i64 % i64", IntegerFn::Remainder),
        ("i64 & i64", IntegerFn::BitAnd),
        ("i64 | i64", IntegerFn::BitOr),
        ("i64 ^ i64", IntegerFn::BitXor),
        ("i64 << i64", IntegerFn::ShiftLeft),
        ("i64 >> i64", IntegerFn::ShiftRight),
    ] {
        let wanted = integer_call(function, vec![column("i64"), column("i64")], Int64);
        assert_eq!(*taken(sql).0, wanted, "{sql}");
    }
    let (expr, _) = taken("i64 % 10");
    assert_eq!(
        *expr,
        integer_call(IntegerFn::Remainder, vec![column("i64"), Arc::clone(expr.children()[1])], Int64)
    );
    assert_eq!(*taken("abs(i32)").0, integer_call(IntegerFn::Abs, vec![column("i32")], Int32));
    assert_eq!(*taken("abs(u32)").0, *column("u32"));
    for (sql, factor) in [
        ("round(i32, 2)", Some(1)),
        ("round(i32, -2)", Some(100)),
        ("round(i32, -10)", Some(0)),
        ("round(i32, NULL)", None),
    ] {
        let (expr, params) = taken(sql);
        let places = Arc::new(Expr::Param { slot: 0, ty: Int32 });
        assert_eq!(*expr, integer_call(IntegerFn::Round, vec![column("i32"), places], Int32), "{sql}");
        assert_eq!(params.resolve().unwrap().values, [(Int32, factor)], "{sql}");
    }
    assert_eq!(*taken("round(u64)").0, *column("u64"));
    let same = Expr::Compare { op: CompareOp::NotEq, left: column("u32"), right: column("u32") };
    assert_eq!(*taken("isnan(u32)").0, same, "false, but for NULL");
    let (zero, params) = taken("iszero(i64)");
    assert!(matches!(zero.as_ref(), Expr::Compare { op: CompareOp::Eq, .. }), "{zero:?}");
    assert_eq!(params.resolve().unwrap().values, [(Int64, Some(0))]);
    assert_eq!(declined("round(i32, i32)"), ["UnsupportedExpression"]);
    let (expr, _) = taken("greatest(f64, f64, 1.5)");
    assert!(
        matches!(expr.as_ref(), Expr::Call { function: Function::Extreme(ExtremeFn::Greatest), args, ty: Float64 } if args.len() == 3),
        "{expr:?}"
    );
    let args = vec![column("day"), column("day")];
    let least = Expr::Call { function: Function::Extreme(ExtremeFn::Least), args, ty: Date32 };
    assert_eq!(*taken("least(day, day)").0, least);
    let (expr, params) = taken("greatest(NULL, NULL)");
    assert!(matches!(expr.as_ref(), Expr::Param { ty: Null, .. }), "{expr:?}");
    assert_eq!(params.resolve().unwrap().values, [(Null, None)]);
    let (expr, _) = taken("nullif(f64, f64)");
    let Expr::Case { branches, otherwise: Some(value), .. } = expr.as_ref() else { panic!("{expr:?}") };
    assert!(matches!(branches[0].0.as_ref(), Expr::InList { .. }), "{branches:?}");
    assert_eq!(*value, column("f64"));
}

#[test]
fn casts_among_integers_and_booleans() {
    use ValueType::*;
    for (sql, name, safe, ty) in [
        ("CAST(i64 AS INT)", "i64", false, Int32),
        ("TRY_CAST(i64 AS INT)", "i64", true, Int32),
        ("CAST(u64 AS BIGINT)", "u64", false, Int64),
        ("CAST(i32 AS BOOLEAN)", "i32", false, Boolean),
        ("CAST(b AS BIGINT)", "b", false, Int64),
    ] {
        let wanted = integer_call(IntegerFn::Convert { safe }, vec![column(name)], ty);
        assert_eq!(*taken(sql).0, wanted, "{sql}");
    }
}

/// What has the name of a built-in function need not be it.
#[test]
fn functions_are_known_by_their_implementation() {
    let identity = datafusion::logical_expr::create_udf(
        "abs",
        vec![DataType::Int32],
        DataType::Int32,
        datafusion::logical_expr::Volatility::Immutable,
        Arc::new(|args: &[datafusion::logical_expr::ColumnarValue]| Ok(args[0].clone())),
    );
    let function = ScalarFunctionExpr::try_new(
        Arc::new(identity),
        vec![col("i32", &schema()).unwrap()],
        &schema(),
        Arc::new(datafusion::config::ConfigOptions::default()),
    );
    let reasons = lower_expr(&(Arc::new(function.unwrap()) as Arc<dyn PhysicalExpr>)).unwrap_err();
    assert_eq!(reasons[0].code(), "UnsupportedExpression");
}

/// NULLIF reads its first operand twice: of forty in one another there are 2^40 ways down, and a node or few each.
#[test]
fn nested_nullif_stays_small() {
    let nested = (0..40).fold("i64".to_owned(), |inner, at| format!("nullif({inner}, {at})"));
    let (expr, params) = taken(&nested);
    assert_eq!(params.sources.len(), 80, "constants, and NULL of its type");
    let (nodes, _) = dag::extent([expr.as_ref()]);
    assert!(nodes < 400 && expr.unshared() > 1 << 40, "{nodes}");
    assert!(!expr.may_fault());
    assert_eq!(check(&expr), Ok(()));
}
