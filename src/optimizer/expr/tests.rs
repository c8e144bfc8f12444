//! SQL text through DataFusion's planner into the IR: what is taken, as what, and what is declined with which reason.

use arrow::datatypes::{Field, Schema};
use datafusion::common::{DFSchema, ScalarValue};
use datafusion::physical_expr::expressions::{col, in_list, lit};
use datafusion::prelude::SessionContext;

use super::*;
use crate::kernels::expr::{ArithOp, CompareOp, DecimalFn, Function};

mod constant;
mod float;
mod function;
mod lookups;
mod reasons;
mod single;
mod strings;

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
        ("t", DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8))),
        ("y", DataType::Binary),
        ("z", DataType::Binary),
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
        assert_eq!(params.resolve().unwrap().values, vec![(ValueType::Int64, Some(5))]);
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
    assert_eq!(params.resolve().unwrap().values, vec![(ValueType::Date32, Some(8766))]);
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
    let values: Vec<_> = params.resolve().unwrap().values.into_iter().map(|(_, v)| v).collect();
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
    assert!(params.resolve().unwrap().values.contains(&(ValueType::Int64, None)));
    let untyped =
        in_list(col("i32", &schema()).unwrap(), vec![lit(1i32), lit(ScalarValue::Null)], &false, &schema());
    let (_, params) = lower_expr(&untyped.unwrap()).unwrap();
    assert_eq!(params.resolve().unwrap().values, vec![(ValueType::Int32, Some(1)), (ValueType::Int32, None)]);

    let many = |count: i32, item: &dyn Fn(i32) -> String| (0..count).map(item).collect::<Vec<_>>().join(",");
    let (expr, params) = taken(&format!("i64 IN ({}, NULL)", many(300, &|i| (i * 7 % 300 - 9).to_string())));
    let Expr::InSorted { len: 512, negated: false, .. } = expr.as_ref() else { panic!("{expr:?}") };
    let values = params.resolve().unwrap();
    assert!(values.values.is_empty(), "{values:?}");
    let [list] = values.lists.as_slice() else { panic!("{values:?}") };
    assert_eq!(list.values()[..4], [300, 1, -9i32 as u32, u32::MAX], "300 values and NULL, from -9 on");
    let low: Vec<i32> = list.values()[2..].iter().step_by(2).map(|word| *word as i32).collect();
    assert!(low.len() == 512 && low.is_sorted(), "lists of about one length share a kernel: {low:?}");
    taken(&format!("i64 IN ({})", many(20_000, &|i| i.to_string())));
    assert_eq!(declined(&format!("i64 IN ({})", many(70_000, &|i| i.to_string()))), ["ExpressionTooLarge"]);
    assert_eq!(
        declined(&format!("i64 IN ({})", many(300, &|i| format!("i64 + {i}")))),
        ["ExpressionTooLarge"]
    );
}

/// A function of a decimal column with a result of its type.
fn decimal(function: DecimalFn, name: &str) -> Expr {
    let arg = column(name);
    Expr::Call { ty: arg.value_type(), function: Function::Decimal(function), args: vec![arg] }
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
    let product = Function::Decimal(DecimalFn::Arith(ArithOp::Mul));
    let Expr::Call { function, ty, .. } = expr.as_ref() else { panic!("{expr:?}") };
    assert_eq!(*function, product);
    let wanted = plan("price * (1 - rate)").data_type(&schema()).unwrap();
    assert_eq!(device_type(&"", &wanted).unwrap(), *ty);
    let (expr, _) = taken("-price");
    assert_eq!(*expr, decimal(DecimalFn::Negate, "price"));
    let (expr, _) = taken("-i64");
    assert_eq!(*expr, Expr::Negate(column("i64")));
}

#[test]
fn what_can_raise_or_round_is_declined() {
    assert_eq!(declined("ln(f64) > 1"), ["FloatArithmetic"]);
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
    // Arrow checks decimals always.
    let price = col("price", &schema()).unwrap();
    let sum = BinaryExpr::new(Arc::clone(&price), Operator::Plus, price).with_fail_on_overflow(true);
    assert!(lower_expr(&(Arc::new(sum) as Arc<dyn PhysicalExpr>)).is_ok());
}

#[test]
fn casts_that_keep_every_value() {
    let (expr, _) = taken("CAST(u32 AS BIGINT)");
    assert_eq!(*expr, Expr::Cast { expr: column("u32"), to: ValueType::Int64 });
    let (expr, _) = taken("CAST(i8 AS DECIMAL(10, 2))");
    let cast = |column, precision, scale| Expr::Call {
        ty: ValueType::Decimal { precision, scale },
        function: Function::Decimal(DecimalFn::Cast { safe: false }),
        args: vec![column],
    };
    assert_eq!(*expr, cast(column("i8"), 10, 2));
    let (expr, _) = taken("CAST(rate AS DECIMAL(4, 4))");
    assert_eq!(*expr, cast(column("rate"), 4, 4));
    let (expr, _) = taken("CAST(rate AS DECIMAL(10, 2))");
    assert_eq!(*expr, cast(column("rate"), 10, 2));
    taken("TRY_CAST(i8 AS BIGINT) > i64");
}

#[test]
fn all_reasons_are_collected_once() {
    let reasons =
        lower("CAST(i64 AS VARCHAR) = 'x' AND ln(f64) > 2 AND s LIKE CAST(i8 AS VARCHAR) AND upper(s) = CAST(i64 AS VARCHAR)")
            .unwrap_err();
    let codes: BTreeSet<_> = reasons.iter().map(Reason::code).collect();
    assert_eq!(codes, BTreeSet::from(["FloatArithmetic", "UnsupportedExpression", "UnsupportedType"]));
    assert!(reasons.iter().any(|r| r.to_string().contains("upper")), "{reasons:?}");
    assert!(reasons[0].to_string().contains("is of type Utf8View"), "{}", reasons[0]);
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
