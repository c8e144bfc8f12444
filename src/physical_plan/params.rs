//! Parameters of an operator's expressions: values that are known only when the plan is executed.

use std::sync::Arc;

use arrow::array::{RecordBatch, RecordBatchOptions};
use arrow::datatypes::Schema;
use datafusion::common::{Result, ScalarValue, internal_datafusion_err};
use datafusion::logical_expr::ColumnarValue;
use datafusion::physical_expr::PhysicalExpr;

use crate::kernels::expr::{Expr, Scalar, ValueType};

use super::scalar::to_scalar;

/// Where one parameter's value comes from.
#[derive(Debug, Clone)]
pub struct ParamSource {
    /// An expression without columns: a literal, a placeholder, a scalar subquery. Evaluated once per execution.
    pub expr: Arc<dyn PhysicalExpr>,
    /// Type of the value.
    pub ty: ValueType,
}

/// The parameters of one operator; [`Expr::Param`] slots index into it.
#[derive(Debug, Clone, Default)]
pub struct ParamTable {
    /// Sources by slot.
    pub sources: Vec<ParamSource>,
}

/// Parameter values of a program, by slot.
pub type ParamValues = Vec<(ValueType, Scalar)>;

impl ParamTable {
    /// Adds a source and returns the expression that reads it.
    pub fn push(&mut self, expr: Arc<dyn PhysicalExpr>, ty: ValueType) -> Arc<Expr> {
        let slot = self.sources.len();
        self.sources.push(ParamSource { expr, ty });
        Arc::new(Expr::Param { slot, ty })
    }

    /// Evaluates every source. Errors are DataFusion's own (e.g. a scalar subquery that returned two rows), or an
    /// internal error when a value does not have the type it was planned with.
    pub fn resolve(&self) -> Result<ParamValues> {
        let one_row = RecordBatch::try_new_with_options(
            Arc::new(Schema::empty()),
            vec![],
            &RecordBatchOptions::new().with_row_count(Some(1)),
        )?;
        self.sources
            .iter()
            .map(|source| {
                let value = match source.expr.evaluate(&one_row)? {
                    ColumnarValue::Scalar(value) => value,
                    ColumnarValue::Array(array) => ScalarValue::try_from_array(&array, 0)?,
                };
                let scalar = to_scalar(&value, source.ty).ok_or_else(|| {
                    internal_datafusion_err!(
                        "parameter {} was planned as {:?} and is {}",
                        source.expr,
                        source.ty,
                        value.data_type()
                    )
                })?;
                Ok((source.ty, scalar))
            })
            .collect()
    }
}

/// Rewrites an operator's expression onto its input's expressions: columns become `columns[i]`, parameter slots move up
/// by `param_base` (the slots that the input's expressions use already).
pub fn rebase(
    expr: &Arc<Expr>,
    columns: &dyn Fn(usize) -> Option<Arc<Expr>>,
    param_base: usize,
) -> Option<Arc<Expr>> {
    let mut read = std::collections::BTreeSet::new();
    expr.collect_columns(&mut read);
    if read.iter().any(|index| columns(*index).is_none()) {
        return None;
    }
    Some(expr.map_leaves(&|leaf| match leaf.as_ref() {
        Expr::Column { index, .. } => columns(*index).unwrap_or_else(|| Arc::clone(leaf)),
        Expr::Param { slot, ty } => Arc::new(Expr::Param { slot: slot + param_base, ty: *ty }),
        _ => Arc::clone(leaf),
    }))
}
