//! Expressions whose value does not depend on the rows.

use std::sync::Arc;

use datafusion::logical_expr::Volatility;
use datafusion::physical_expr::expressions::{
    BinaryExpr, CaseExpr, CastExpr, IsNotNullExpr, IsNullExpr, Literal, NegativeExpr, NotExpr, TryCastExpr,
};
use datafusion::physical_expr::scalar_subquery::ScalarSubqueryExpr;
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};

/// True for expressions that have one value for the whole execution: literals (placeholders have become literals by
/// now), scalar subqueries, and what is computed from them by functions that are not volatile.
///
/// The kinds are listed one by one, since an expression without columns need not be constant: `random()` is not, and
/// a dynamic filter starts as `true`.
pub(super) fn is_constant(expr: &Arc<dyn PhysicalExpr>) -> bool {
    if expr.is::<Literal>() || expr.is::<ScalarSubqueryExpr>() {
        return true;
    }
    let composed = expr.is::<CastExpr>()
        || expr.is::<TryCastExpr>()
        || expr.is::<BinaryExpr>()
        || expr.is::<NegativeExpr>()
        || expr.is::<NotExpr>()
        || expr.is::<IsNullExpr>()
        || expr.is::<IsNotNullExpr>()
        || expr.is::<CaseExpr>()
        || expr.downcast_ref::<ScalarFunctionExpr>().is_some_and(|function| {
            function.fun().signature().volatility != Volatility::Volatile && !function.args().is_empty()
        });
    composed && expr.children().into_iter().all(is_constant)
}
