//! SQL text through DataFusion's planner into the IR: what is taken, as what, and what is declined with which reason.

use arrow::array::{ArrayRef, Float32Array, RecordBatch};
use arrow::datatypes::{Field, Schema};
use datafusion::common::{DFSchema, ScalarValue};
use datafusion::physical_expr::expressions::{col, in_list, lit};
use datafusion::prelude::SessionContext;

use super::compare::single_bound;
use super::*;
use crate::kernels::expr::{ArithOp, CompareOp, Function, IntegerFn};

mod float;
mod lookups;

fn schema() -> SchemaRef {
    let fields = [
        ("i8", DataType::Int8),
        ("i32", DataType::Int32),
        ("i64", DataType::Int64),
        ("u32", DataType::UInt32),
        ("u64", DataType::UInt64),
        ("f32", DataType::Float32),
        ("f64", DataType::Float64),
        ("b", DataType::Boolean),
        ("day", DataType::Date32),
        ("price", DataType::Decimal128(15, 2)),
        ("rate", DataType::Decimal128(5, 4)),
        ("s", DataType::Utf8View),
        ("\"; DROP", DataType::Int64),
    ];
    Arc::new(Schema::new(fields.map(|(name, ty)| Field::new(name, ty, true)).to_vec()))
}

/// The physical expression that DataFusion plans for `sql`.
fn plan(sql: &str) -> Arc<dyn PhysicalExpr> {
    let schema = DFSchema::try_from(schema().as_ref().clone()).unwrap();
    let ctx = SessionContext::new();
    let expr = ctx.parse_sql_expr(sql, &schema).unwrap();
    ctx.create_physical_expr(expr, &schema).unwrap()
}

fn lower_expr(expr: &Arc<dyn PhysicalExpr>) -> Result<(Arc<Expr>, ParamTable), Vec<Reason>> {
    let mut lowering = Lowering::new(schema());
    let lowered = lowering.lower(expr);
    lowering.finish(&DeviceCaps::for_tests(), lowered)
}

fn lower(sql: &str) -> Result<(Arc<Expr>, ParamTable), Vec<Reason>> {
    lower_expr(&plan(sql))
}

fn taken(sql: &str) -> (Arc<Expr>, ParamTable) {
    lower(sql).unwrap_or_else(|reasons| panic!("{sql} was declined: {reasons:?}"))
}

fn declined(sql: &str) -> Vec<&'static str> {
    match lower(sql) {
        Ok((expr, _)) => panic!("{sql} was taken as {expr:?}"),
        Err(reasons) => reasons.iter().map(Reason::code).collect(),
    }
}

fn column(name: &str) -> Arc<Expr> {
    let schema = schema();
    let index = schema.index_of(name).unwrap();
    let ty = device_type(&name, schema.field(index).data_type()).unwrap();
    Arc::new(Expr::Column { index, ty })
}

#[test]
fn comparisons_keep_operator_and_sides() {
    for (sql, op) in [
        ("i64 = 5", CompareOp::Eq),
        ("i64 <> 5", CompareOp::NotEq),
        ("i64 < 5", CompareOp::Lt),
        ("i64 <= 5", CompareOp::LtEq),
        ("i64 > 5", CompareOp::Gt),
        ("i64 >= 5", CompareOp::GtEq),
    ] {
        let (expr, params) = taken(sql);
        let right = Arc::new(Expr::Param { slot: 0, ty: ValueType::Int64 });
        assert_eq!(*expr, Expr::Compare { op, left: column("i64"), right }, "{sql}");
        assert_eq!(params.resolve().unwrap(), vec![(ValueType::Int64, Some(5))]);
    }
}

#[test]
fn every_type_that_lives_on_the_device_compares() {
    for name in ["i8", "i32", "i64", "u32", "u64", "f32", "f64", "day", "price"] {
        let (expr, _) = taken(&format!("{name} < {name}"));
        assert_eq!(*expr, Expr::Compare { op: CompareOp::Lt, left: column(name), right: column(name) });
        let (expr, _) = taken(&format!("{name} IS DISTINCT FROM {name}"));
        assert_eq!(*expr, Expr::Distinct { negated: false, left: column(name), right: column(name) });
    }
    let (expr, params) = taken("day >= date '1994-01-01'");
    assert!(matches!(*expr, Expr::Compare { op: CompareOp::GtEq, .. }));
    assert_eq!(params.resolve().unwrap(), vec![(ValueType::Date32, Some(8766))]);
}

#[test]
fn decimals_of_two_scales_are_brought_to_one_type() {
    let (expr, _) = taken("price > rate");
    let Expr::Compare { left, right, .. } = expr.as_ref() else { panic!("{expr:?}") };
    assert_eq!(left.value_type(), right.value_type());
    let ValueType::Decimal { scale, .. } = left.value_type() else { panic!("{left:?}") };
    assert_eq!(scale, 4);
}

#[test]
fn logic_is_three_valued_and_balanced() {
    let (expr, params) = taken("i64 > 1 AND i32 > 2 AND u32 > 3 AND u64 > 4 AND (b OR NOT b IS NULL)");
    let Expr::And(left, right) = expr.as_ref() else { panic!("{expr:?}") };
    assert!(matches!(left.as_ref(), Expr::And(..)), "{left:?}");
    assert!(matches!(right.as_ref(), Expr::Or(..)), "{right:?}");
    let values: Vec<_> = params.resolve().unwrap().into_iter().map(|(_, v)| v).collect();
    assert_eq!(values, [1, 2, 3, 4].map(Some), "operands keep their order");

    let many = (0..600).map(|i| format!("i64 <> i32 + {i}")).collect::<Vec<_>>();
    assert_eq!(declined(&many.join(" OR ")), ["ExpressionTooLarge"], "beyond the limit of nodes");
    let chain = (0..200).map(|_| "b".to_string()).chain((0..200).map(|i| format!("i64 > {i}")));
    let chain = chain.reduce(|all, next| format!("{all} AND {next}")).unwrap();
    let exprs = plan(&chain);
    let (expr, _) = lower_expr(&exprs).unwrap();
    fn depth(expr: &Expr) -> usize {
        1 + expr.children().into_iter().map(|e| depth(e)).max().unwrap_or(0)
    }
    assert!(depth(&expr) < 15, "{}", depth(&expr));
}

#[test]
fn between_and_in() {
    let (expr, params) = taken("i64 BETWEEN 3 AND 9");
    assert!(matches!(expr.as_ref(), Expr::And(..)), "{expr:?}");
    assert_eq!(params.sources.len(), 2);

    let (expr, params) = taken("i64 NOT IN (1, 2, 3, 4, 5, NULL)");
    let Expr::InList { list, negated: true, .. } = expr.as_ref() else { panic!("{expr:?}") };
    assert_eq!(list.len(), 6);
    assert!(list.iter().all(|e| e.value_type() == ValueType::Int64));
    assert!(params.resolve().unwrap().contains(&(ValueType::Int64, None)));
    let untyped =
        in_list(col("i32", &schema()).unwrap(), vec![lit(1i32), lit(ScalarValue::Null)], &false, &schema());
    let (_, params) = lower_expr(&untyped.unwrap()).unwrap();
    assert_eq!(params.resolve().unwrap(), vec![(ValueType::Int32, Some(1)), (ValueType::Int32, None)]);

    let many = |count: i32, item: &dyn Fn(i32) -> String| (0..count).map(item).collect::<Vec<_>>().join(",");
    let (expr, params) = taken(&format!("i64 IN ({}, NULL)", many(300, &|i| (i * 7 % 300 - 9).to_string())));
    let Expr::InSorted { list, negated: false, .. } = expr.as_ref() else { panic!("{expr:?}") };
    assert_eq!(list.len(), 512, "lists of about one length share a kernel");
    let values: Vec<_> = params.resolve().unwrap().into_iter().map(|(_, value)| value).collect();
    assert!(values[..300].is_sorted() && values[..300].iter().all(Option::is_some), "{values:?}");
    assert!(values[300..].iter().all(Option::is_none), "{values:?}");
    taken(&format!("i64 IN ({})", many(5_000, &|i| i.to_string())));
    assert_eq!(declined(&format!("i64 IN ({})", many(20_000, &|i| i.to_string()))), ["ExpressionTooLarge"]);
    assert_eq!(
        declined(&format!("i64 IN ({})", many(300, &|i| format!("i64 + {i}")))),
        ["ExpressionTooLarge"]
    );
}

#[test]
fn integer_and_decimal_arithmetic() {
    let (expr, _) = taken("i64 * 2 + i64");
    let Expr::Arith { op: ArithOp::Add, ty: ValueType::Int64, .. } = expr.as_ref() else {
        panic!("{expr:?}")
    };
    let (expr, _) = taken("i32 + i64");
    let Expr::Arith { left, .. } = expr.as_ref() else { panic!("{expr:?}") };
    assert_eq!(**left, Expr::Cast { expr: column("i32"), to: ValueType::Int64 });
    let (expr, _) = taken("price * (1 - rate)");
    let Expr::Arith { op: ArithOp::Mul, ty, .. } = expr.as_ref() else { panic!("{expr:?}") };
    let wanted = plan("price * (1 - rate)").data_type(&schema()).unwrap();
    assert_eq!(device_type(&"", &wanted).unwrap(), *ty);
    let (expr, _) = taken("-price");
    assert_eq!(*expr, Expr::Negate(column("price")));
}

#[test]
fn what_can_raise_or_round_is_declined() {
    assert_eq!(declined("sqrt(f64) > 1"), ["FloatArithmetic"]);
}

#[test]
fn checked_arithmetic_is_declined() {
    let binary = |checked| {
        let i64 = col("i64", &schema()).unwrap();
        let sum = BinaryExpr::new(i64, Operator::Plus, lit(1i64)).with_fail_on_overflow(checked);
        lower_expr(&(Arc::new(sum) as Arc<dyn PhysicalExpr>))
    };
    assert!(binary(false).is_ok());
    assert_eq!(binary(true).unwrap_err()[0].code(), "UnsupportedExpression");
}

#[test]
fn casts_that_keep_every_value() {
    let (expr, _) = taken("CAST(u32 AS BIGINT)");
    assert_eq!(*expr, Expr::Cast { expr: column("u32"), to: ValueType::Int64 });
    let (expr, _) = taken("CAST(i8 AS DECIMAL(10, 2))");
    assert_eq!(*expr, Expr::Cast { expr: column("i8"), to: ValueType::Decimal { precision: 10, scale: 2 } });
    let (expr, _) = taken("CAST(rate AS DECIMAL(4, 4))");
    assert_eq!(*expr, Expr::Cast { expr: column("rate"), to: ValueType::Decimal { precision: 4, scale: 4 } });
    let (expr, _) = taken("CAST(rate AS DECIMAL(10, 2))");
    assert!(matches!(*expr, Expr::Call { .. }), "what rounds is a function: {expr:?}");
    taken("TRY_CAST(i8 AS BIGINT) > i64");
}

#[test]
fn all_reasons_are_collected_once() {
    let reasons =
        lower("s = CAST(i64 AS VARCHAR) AND ln(f64) > 2 AND s LIKE CAST(i8 AS VARCHAR) AND upper(s) = CAST(i64 AS VARCHAR)")
            .unwrap_err();
    let codes: BTreeSet<_> = reasons.iter().map(Reason::code).collect();
    assert_eq!(codes, BTreeSet::from(["FloatArithmetic", "UnsupportedExpression", "UnsupportedType"]));
    assert!(reasons.iter().any(|r| r.to_string().contains("upper")), "{reasons:?}");
    assert!(reasons[0].to_string().contains("s@11 is of type Utf8View"), "{}", reasons[0]);
}

/// A tree is cut at its largest parts over one string column.
#[test]
fn functions_of_one_string_column_become_tables() {
    let lookup = |table, ty, fallible| {
        Arc::new(Expr::Lookup {
            codes: Arc::new(Expr::Column { index: 11, ty: ValueType::Opaque }),
            table,
            ty,
            fallible,
        })
    };
    for sql in [
        "s = 'x'",
        "s LIKE 'a%'",
        "s NOT ILIKE '%b'",
        "s ~ '^a'",
        "s IN ('a', 'b', NULL)",
        "upper(s) = 'X'",
        "starts_with(s, 'a')",
        "s < 'b' OR length(s) > 3",
        "CASE s WHEN 'a' THEN true ELSE s > 'c' END",
        "s IS NULL OR s = ''",
        "s || '!' = 'a!'",
        "NOT (s = 'a')",
    ] {
        let (expr, params) = taken(sql);
        assert_eq!(expr, lookup(0, ValueType::Boolean, false), "{sql}");
        assert_eq!((params.tables.len(), params.tables[0].column, params.sources.len()), (1, 11, 0), "{sql}");
    }
    let (expr, _) = taken("CAST(s AS INT)");
    assert_eq!(expr, lookup(0, ValueType::Int32, true));
    let (expr, params) = taken("s LIKE 'a%' AND i32 > length(s) AND s LIKE 'a%'");
    assert_eq!(params.tables.len(), 2, "{expr:?}");
    assert_eq!(taken("s IS NULL").1.tables.len(), 0);
    // A changed literal is another table of the same expression.
    assert_eq!(taken("s = 'x' AND i64 > 1").0, taken("s = 'another' AND i64 > 2").0);
    for sql in ["s = CAST(i64 AS VARCHAR)", "s LIKE CAST(i8 AS VARCHAR)", "s = CAST(random() AS VARCHAR)"] {
        declined(sql);
    }
}

#[test]
fn names_are_only_text() {
    let (expr, _) = taken("\"\"\"; DROP\" > 3");
    assert_eq!(expr.children()[0], &column("\"; DROP"));
}

#[test]
fn equal_subexpressions_share_their_parameters_and_literals_do_not() {
    let (expr, params) = taken("i64 * 3 > i32 OR i64 * 3 < u32");
    assert_eq!(params.sources.len(), 1, "{expr:?}");
    let (_, params) = taken("i64 = 7 OR u64 = 7 AND u32 = 9 OR i32 = 9");
    assert_eq!(params.sources.len(), 4);
}

/// A literal behind an operator that the simplifier does not see.
fn constant(op: Operator, value: impl Into<ScalarValue>) -> Arc<dyn PhysicalExpr> {
    let value: ScalarValue = value.into();
    Arc::new(BinaryExpr::new(lit(value.clone()), op, lit(value)))
}

#[test]
fn constants_that_cannot_raise_are_evaluated_by_datafusion() {
    let (expr, params) = lower_expr(&constant(Operator::Plus, i64::MAX)).unwrap();
    assert_eq!(*expr, Expr::Param { slot: 0, ty: ValueType::Int64 });
    assert_eq!(params.resolve().unwrap(), vec![(ValueType::Int64, Some(-2))]);
    let (_, params) = lower_expr(&constant(Operator::Divide, 0.5f64)).unwrap();
    assert_eq!(params.resolve().unwrap(), vec![(ValueType::Float64, Some(i128::from(1f64.to_bits())))]);
    let cast = CastExpr::new(constant(Operator::Multiply, 0.5f64), DataType::Float64, None);
    assert_eq!(lower_expr(&(Arc::new(cast) as Arc<dyn PhysicalExpr>)).unwrap().1.sources.len(), 1);
}

/// DataFusion would not compute them at all behind `false AND`, so computing them up front could raise wrongly.
#[test]
fn constants_that_can_raise_are_not_computed_up_front() {
    let division = lower_expr(&constant(Operator::Divide, 0i64)).unwrap_err();
    assert_eq!(division[0].code(), "UnsupportedExpression");
    let minus: Arc<dyn PhysicalExpr> = Arc::new(NegativeExpr::new(lit(i64::MIN)));
    assert_eq!(lower_expr(&minus).unwrap_err()[0].code(), "UnsupportedExpression");
    let decimal = ScalarValue::Decimal128(Some(i128::MAX), 38, 0);
    let product = lower_expr(&constant(Operator::Plus, decimal)).unwrap_err();
    assert_eq!(product[0].code(), "UnsupportedExpression");
}

#[test]
fn volatile_functions_are_not_constants() {
    assert_eq!(declined("random() < 0.5"), ["UnsupportedExpression"]);
}

#[test]
fn dynamic_filters_are_declined_even_while_they_are_true() {
    let filter = DynamicFilterPhysicalExpr::new(vec![], lit(true));
    let reasons = lower_expr(&(Arc::new(filter) as Arc<dyn PhysicalExpr>)).unwrap_err();
    assert_eq!(reasons[0].code(), "DynamicFilter");
}

#[test]
fn binding_limits_come_from_the_adapter() {
    let mut caps = DeviceCaps::for_tests();
    caps.max_storage_buffers = 8;
    let with = |sql: &str| {
        let mut lowering = Lowering::new(schema());
        let lowered = lowering.output(&plan(sql));
        lowering.finish(&caps, lowered)
    };
    // However many columns: they are packed.
    assert!(with("i64 > i32 AND u32 > 1 AND u64 < 5 OR day IS NULL").is_ok());
    caps.max_storage_buffers = 7;
    let mut lowering = Lowering::new(schema());
    let lowered = lowering.output(&plan("i64 > i32"));
    let reasons = lowering.finish(&caps, lowered).unwrap_err();
    assert_eq!(reasons, [Reason::BindingLimit { need: 8, limit: 7 }]);
}

/// Singles at the edges: zeros, denormals, infinities, NaNs of both signs, and neighbours of the bounds below.
fn singles() -> Vec<f32> {
    let tenth = 0.1f32;
    vec![
        0.0,
        -0.0,
        f32::from_bits(1),
        -f32::from_bits(1),
        f32::MIN_POSITIVE,
        tenth,
        tenth.next_up(),
        tenth.next_down(),
        -tenth,
        1.0,
        f32::MAX,
        f32::MIN,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        -f32::NAN,
        16_777_216.0,
        16_777_218.0,
    ]
}

#[test]
fn single_against_double_agrees_with_datafusion() {
    let array: ArrayRef = Arc::new(Float32Array::from(singles()));
    let batch = RecordBatch::try_from_iter([("x", array)]).unwrap();
    let x = || col("x", &batch.schema()).unwrap();
    let evaluate = |left, op, right| {
        let expr = BinaryExpr::new(left, op, right);
        expr.evaluate(&batch).unwrap().into_array(batch.num_rows()).unwrap()
    };
    let bounds =
        [0.1, -0.1, 0.0, -0.0, 1.0, 1e-60, -1e-60, 1e300, -1e300, f64::INFINITY, 16_777_217.0, 3.5e38];
    let operators = [
        (Operator::Eq, CompareOp::Eq),
        (Operator::NotEq, CompareOp::NotEq),
        (Operator::Lt, CompareOp::Lt),
        (Operator::LtEq, CompareOp::LtEq),
        (Operator::Gt, CompareOp::Gt),
        (Operator::GtEq, CompareOp::GtEq),
    ];
    for bound in bounds {
        for (operator, op) in operators {
            let cast = Arc::new(CastExpr::new(x(), DataType::Float64, None));
            let wanted = evaluate(cast, operator, lit(bound));
            let got = match single_bound(op, bound) {
                Some((op, bound)) => {
                    let operator = operators.iter().find(|(_, o)| *o == op).unwrap().0;
                    evaluate(x(), operator, lit(bound))
                }
                None if op == CompareOp::Eq => evaluate(x(), Operator::NotEq, x()),
                None => evaluate(x(), Operator::Eq, x()),
            };
            assert_eq!(&got, &wanted, "x {operator} {bound:e}");
        }
    }
}

#[test]
fn single_against_double_is_lowered_on_singles() {
    let (expr, params) = taken("f32 > 0.1");
    let Expr::Compare { op: CompareOp::GtEq, left, right } = expr.as_ref() else { panic!("{expr:?}") };
    assert_eq!(*left, column("f32"));
    assert_eq!(right.value_type(), ValueType::Float32);
    // 0.1 lies between two singles; the nearest lies above it.
    assert_eq!(params.resolve().unwrap(), vec![(ValueType::Float32, Some(i128::from(0.1f32.to_bits())))]);
    let (mirrored, _) = taken("0.1 < f32");
    assert_eq!(mirrored, expr);
    let (never, params) = taken("f32 = 0.1");
    assert_eq!(*never, Expr::Compare { op: CompareOp::NotEq, left: column("f32"), right: column("f32") });
    assert!(params.sources.is_empty());
}

#[test]
fn untyped_nulls_are_parameters() {
    let null: Arc<dyn PhysicalExpr> = lit(ScalarValue::Null);
    let (expr, params) = lower_expr(&null).unwrap();
    assert_eq!(*expr, Expr::Param { slot: 0, ty: ValueType::Null });
    assert_eq!(params.resolve().unwrap(), vec![(ValueType::Null, None)]);
}

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
    let (expr, _) = taken("greatest(f64, f64, 1.5)");
    assert!(
        matches!(expr.as_ref(), Expr::Call { function: Function::Integer(IntegerFn::Greatest), args, ty: Float64 } if args.len() == 3),
        "{expr:?}"
    );
    let least = integer_call(IntegerFn::Least, vec![column("day"), column("day")], Date32);
    assert_eq!(*taken("least(day, day)").0, least);
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
