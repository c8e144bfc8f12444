//! Whether AND or OR decides if a value raises: DataFusion evaluates the right side for the rows that the left one leaves, or for
//! all rows, depending on how many those are.

use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::error::Result;
use datafusion::logical_expr::{BinaryExpr, Expr, LogicalPlan, Operator};

/// Whether an operator that may have raised the error lies below AND or OR somewhere in the plan, which must be optimized.
pub fn is_guarded(plan: &LogicalPlan, error: &str) -> bool {
    let raises = |expr: &Expr| may_raise(expr, error);
    let mut guarded = false;
    let walked = plan.apply_with_subqueries(|node| {
        // The conditions of a scan are one, in all but form.
        if let LogicalPlan::TableScan(scan) = node
            && scan.filters.len() > 1
        {
            guarded |= scan.filters.iter().any(|filter| holds(filter, &raises));
        }
        node.apply_expressions(|expr| {
            guarded |= holds(expr, &|inner| {
                matches!(inner, Expr::BinaryExpr(BinaryExpr { left, op: Operator::And | Operator::Or, right })
                    if holds(left, &raises) || holds(right, &raises))
            });
            Ok(TreeNodeRecursion::Continue)
        })?;
        Ok(if guarded { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    });
    walked.is_ok() && guarded
}

/// Whether the expression or one below it is such.
fn holds(expr: &Expr, wanted: &dyn Fn(&Expr) -> bool) -> bool {
    let found: Result<bool> = expr.exists(|inner| Ok(wanted(inner)));
    found.unwrap_or(false)
}

/// Whether the topmost operator is of a kind that raises this error for some value.
fn may_raise(expr: &Expr, error: &str) -> bool {
    match expr {
        Expr::BinaryExpr(BinaryExpr { op: Operator::Divide | Operator::Modulo, .. }) => {
            error.contains("Divide by zero") || error.contains("Overflow")
        }
        Expr::BinaryExpr(BinaryExpr {
            op: Operator::Plus | Operator::Minus | Operator::Multiply, ..
        })
        | Expr::Negative(_) => error.contains("Overflow"),
        Expr::Cast(_) => ["Cast error", "Overflow", "Cannot cast ", "is out of range"]
            .iter()
            .any(|part| error.contains(part)),
        Expr::ScalarFunction(_) => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use datafusion::prelude::SessionContext;

    use super::*;

    #[tokio::test]
    async fn only_what_lies_below_and_or_or_is_guarded() {
        let context = SessionContext::new();
        let table = "CREATE TABLE t (a BIGINT, b BIGINT, s VARCHAR) AS VALUES (1, 2, '3'), (4, 5, '6')";
        context.sql(table).await.unwrap().collect().await.unwrap();
        let (zero, cast) =
            ("Arrow error: Divide by zero error", "Arrow error: Cast error: Cannot cast string 'x'");
        for (sql, error, wanted) in [
            ("SELECT a / b FROM t WHERE a BETWEEN 1 AND 3", zero, false),
            ("SELECT a / b FROM t WHERE a > 1 AND s <> ' AND '", zero, false),
            ("SELECT ' OR ' FROM t WHERE a / b > 1", zero, false),
            ("SELECT a FROM t WHERE b <> 0 AND a / b > 1", zero, true),
            ("SELECT a FROM t WHERE b <> 0 AND a / b > 1", cast, false),
            ("SELECT b = 0 OR a % b > 1 FROM t", zero, true),
            ("SELECT a FROM t WHERE a BETWEEN 1 AND 10 / b", zero, true),
            ("SELECT a FROM (SELECT * FROM t WHERE b <> 0) WHERE a / b > 1", zero, true),
            ("SELECT count(*) FILTER (WHERE b <> 0 AND CAST(s AS INT) > 1) FROM t", cast, true),
            ("SELECT CAST(s AS INT) FROM t WHERE a > 1 AND b > 1", cast, false),
            ("SELECT (SELECT max(b) FROM t WHERE a > 0 OR CAST(s AS INT) > 1) FROM t", cast, true),
        ] {
            let plan = context.sql(sql).await.unwrap().into_optimized_plan().unwrap();
            assert_eq!(is_guarded(&plan, error), wanted, "{sql}: {error}\n{}", plan.display_indent());
        }
    }
}
