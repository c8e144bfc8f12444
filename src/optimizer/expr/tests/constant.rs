//! What has no columns: DataFusion computes it, where that cannot raise.

use super::*;

/// A literal behind an operator that the simplifier does not see.
fn constant(op: Operator, value: impl Into<ScalarValue>) -> Arc<dyn PhysicalExpr> {
    let value: ScalarValue = value.into();
    Arc::new(BinaryExpr::new(lit(value.clone()), op, lit(value)))
}

#[test]
fn constants_that_cannot_raise_are_evaluated_by_datafusion() {
    let (expr, params) = lower_expr(&constant(Operator::Plus, i64::MAX)).unwrap();
    assert_eq!(*expr, Expr::Param { slot: 0, ty: ValueType::Int64 });
    assert_eq!(params.resolve().unwrap().values, vec![(ValueType::Int64, Some(-2))]);
    let (_, params) = lower_expr(&constant(Operator::Divide, 0.5f64)).unwrap();
    assert_eq!(
        params.resolve().unwrap().values,
        vec![(ValueType::Float64, Some(i128::from(1f64.to_bits())))]
    );
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
fn untyped_nulls_are_parameters() {
    let null: Arc<dyn PhysicalExpr> = lit(ScalarValue::Null);
    let (expr, params) = lower_expr(&null).unwrap();
    assert_eq!(*expr, Expr::Param { slot: 0, ty: ValueType::Null });
    assert_eq!(params.resolve().unwrap().values, vec![(ValueType::Null, None)]);
}
