//! Expressions whose value does not depend on the rows.

use std::sync::Arc;

use arrow::datatypes::{DataType, Schema};
use datafusion::common::ScalarValue;
use datafusion::logical_expr::{Operator, Volatility};
use datafusion::physical_expr::expressions::{
    BinaryExpr, CaseExpr, CastExpr, InListExpr, IsNotNullExpr, IsNullExpr, Literal, NegativeExpr, NotExpr,
    TryCastExpr,
};
use datafusion::physical_expr::scalar_subquery::ScalarSubqueryExpr;
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};

use crate::physical_plan::params::constant as evaluated;

use super::arithmetic::is_checked;

/// True for expressions that have one value for the whole execution and do not raise: literals (placeholders have become
/// literals by now), scalar subqueries, and what is computed from them.
///
/// Such a value is computed before the first row is read, while DataFusion computes it for each batch, if at all: behind
/// `false AND` or for an empty input it does not, so that what raises must not be taken. Literals can be tried out; what
/// is computed from a subquery must be unable to raise. The kinds are listed one by one, since an expression without
/// columns need not be constant: `random()` is not, and a dynamic filter starts as `true`.
pub(super) fn is_constant(expr: &Arc<dyn PhysicalExpr>, schema: &Schema) -> bool {
    if expr.is::<Literal>() || expr.is::<ScalarSubqueryExpr>() {
        return true;
    }
    is_composed(expr)
        && expr.children().into_iter().all(|child| is_constant(child, schema))
        && (cannot_raise(expr, schema) || (!has_subquery(expr) && evaluates(expr)))
}

/// True for expressions that have one value for the whole execution, or raise: the CPU then decides for every batch.
pub(super) fn is_invariant(expr: &Arc<dyn PhysicalExpr>) -> bool {
    expr.is::<Literal>()
        || expr.is::<ScalarSubqueryExpr>()
        || is_composed(expr) && expr.children().into_iter().all(is_invariant)
}

/// True for an operation on constants that raises. DataFusion computes it once a batch, whichever of its rows count, and a kernel
/// for the rows that count.
pub(super) fn always_raises(expr: &Arc<dyn PhysicalExpr>, schema: &Schema) -> bool {
    is_composed(expr)
        && expr.children().into_iter().all(|child| is_constant(child, schema))
        && !has_subquery(expr)
        && !evaluates(expr)
}

/// Kinds of expressions whose value depends on that of their operands alone.
fn is_composed(expr: &Arc<dyn PhysicalExpr>) -> bool {
    let immutable =
        |function: &ScalarFunctionExpr| function.fun().signature().volatility == Volatility::Immutable;
    expr.is::<CastExpr>()
        || expr.is::<TryCastExpr>()
        || expr.is::<BinaryExpr>()
        || expr.is::<NegativeExpr>()
        || expr.is::<NotExpr>()
        || expr.is::<IsNullExpr>()
        || expr.is::<IsNotNullExpr>()
        || expr.is::<CaseExpr>()
        || expr.is::<InListExpr>()
        || expr.downcast_ref::<ScalarFunctionExpr>().is_some_and(immutable)
}

/// Value of an expression that is constant and known now, unlike that of a subquery.
pub(super) fn value(expr: &Arc<dyn PhysicalExpr>, schema: &Schema) -> Option<ScalarValue> {
    if !is_constant(expr, schema) || has_subquery(expr) {
        return None;
    }
    evaluated(expr).ok()
}

fn has_subquery(expr: &Arc<dyn PhysicalExpr>) -> bool {
    expr.is::<ScalarSubqueryExpr>() || expr.children().into_iter().any(has_subquery)
}

fn evaluates(expr: &Arc<dyn PhysicalExpr>) -> bool {
    evaluated(expr).is_ok()
}

/// True when the topmost operator has a value for all values of its operands.
fn cannot_raise(expr: &Arc<dyn PhysicalExpr>, schema: &Schema) -> bool {
    if let Some(cast) = expr.downcast_ref::<CastExpr>() {
        cast.expr().data_type(schema).is_ok_and(|from| cast_cannot_raise(&from, cast.cast_type()))
    } else if let Some(binary) = expr.downcast_ref::<BinaryExpr>() {
        binary.data_type(schema).is_ok_and(|ty| operator_cannot_raise(binary, &ty))
    } else if expr.is::<NegativeExpr>() {
        // Single integers raise on overflow, where columns of integers wrap.
        expr.data_type(schema).is_ok_and(|ty| ty.is_floating())
    } else {
        !expr.is::<ScalarFunctionExpr>()
    }
}

/// True for casts that have a value for every value of `from`.
pub(super) fn cast_cannot_raise(from: &DataType, to: &DataType) -> bool {
    match (from, to) {
        (from, to) if from == to => true,
        (from, to) if to.is_floating() => from.is_integer() || from.is_floating() || from.is_decimal(),
        (DataType::Decimal128(p1, s1), DataType::Decimal128(p2, s2)) => {
            let (p1, s1, p2, s2) = (i16::from(*p1), i16::from(*s1), i16::from(*p2), i16::from(*s2));
            s1 <= s2 && p1 + (s2 - s1) <= p2
        }
        (from, to) => CastExpr::check_bigger_cast(to, from),
    }
}

fn operator_cannot_raise(binary: &BinaryExpr, result: &DataType) -> bool {
    match binary.op() {
        Operator::Plus | Operator::Minus | Operator::Multiply => {
            (result.is_integer() || result.is_floating()) && !is_checked(binary)
        }
        Operator::Divide | Operator::Modulo => result.is_floating(),
        Operator::And
        | Operator::Or
        | Operator::Eq
        | Operator::NotEq
        | Operator::Lt
        | Operator::LtEq
        | Operator::Gt
        | Operator::GtEq
        | Operator::IsDistinctFrom
        | Operator::IsNotDistinctFrom => true,
        _ => false,
    }
}
