//! Casts that change no value.

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::physical_expr::PhysicalExpr;

use crate::kernels::expr::{Expr, ValueType};
use crate::optimizer::types::{holds_all_values, is_integer};

use super::{Lowered, Lowering};

impl Lowering {
    /// A cast of `operand` to `to`. `safe` casts give NULL where others raise, so that only those are taken that
    /// cannot raise.
    pub(super) fn cast(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        operand: &Arc<dyn PhysicalExpr>,
        to: &DataType,
        safe: bool,
    ) -> Lowered {
        let from = self.arrow_type(operand)?;
        if from == *to {
            return self.lower(operand);
        }
        // The reason of an operand that cannot live on the device says more than that of the cast.
        let operand = self.lower(operand)?;
        let to = self.device_type(expr, to)?;
        let from = operand.value_type();
        let exact = match (from, to) {
            (_, ValueType::Decimal { scale, .. }) if is_integer(from) => scale >= 0 && !safe,
            (ValueType::Decimal { scale: s1, .. }, ValueType::Decimal { scale: s2, .. }) => s1 <= s2 && !safe,
            _ => holds_all_values(from, to),
        };
        if exact {
            Ok(Arc::new(Expr::Cast { expr: operand, to }))
        } else {
            Err(self.unsupported(expr, "only casts that keep every value have a GPU counterpart"))
        }
    }
}
