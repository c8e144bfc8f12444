//! `+ - *` of integers, and unary minus.

use std::collections::BTreeSet;
use std::sync::Arc;

use datafusion::logical_expr::Operator;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{BinaryExpr, NegativeExpr};

use crate::kernels::expr::widths::is_decimal;
use crate::kernels::expr::{ArithOp, DecimalFn, Expr, Function};
use crate::optimizer::types::{integer_bits, is_float, is_integer};

use super::{Lowered, Lowering};

impl Lowering {
    pub(super) fn arithmetic(&mut self, expr: &Arc<dyn PhysicalExpr>, binary: &BinaryExpr) -> Lowered {
        let data_type = self.arrow_type(expr)?;
        if data_type.is_floating() {
            return self.float_arithmetic(expr, binary);
        }
        let ty = self.device_type(expr, &data_type)?;
        let op = match binary.op() {
            Operator::Plus => ArithOp::Add,
            Operator::Minus => ArithOp::Sub,
            Operator::Multiply => ArithOp::Mul,
            op => {
                return Err(self.unsupported(expr, &format!("{op} has no GPU counterpart for {data_type}")));
            }
        };
        if is_checked(binary) {
            return Err(self.unsupported(expr, "it raises on overflow"));
        }
        let (left, right) = self.sides(binary)?;
        let (l, r) = (left.value_type(), right.value_type());
        if !is_integer(ty) || l != ty || r != ty {
            return Err(self.unsupported(expr, &format!("arithmetic on {l} and {r}")));
        }
        Ok(Arc::new(Expr::Arith { op, left, right, ty }))
    }

    pub(super) fn negative(&mut self, expr: &Arc<dyn PhysicalExpr>, negative: &NegativeExpr) -> Lowered {
        let arg = self.lower(negative.arg())?;
        let mut columns = BTreeSet::new();
        arg.collect_columns(&mut columns);
        if columns.is_empty() {
            return Err(self.unsupported(expr, "unary minus of a constant raises on overflow"));
        }
        match arg.value_type() {
            ty if is_float(ty) => Ok(Arc::new(Expr::Negate(arg))),
            ty if is_decimal(ty) => self.call(expr, Function::Decimal(DecimalFn::Negate), vec![arg], ty),
            ty if integer_bits(ty).is_some_and(|(_, signed)| signed) => Ok(Arc::new(Expr::Negate(arg))),
            ty => Err(self.unsupported(expr, &format!("unary minus on {ty}"))),
        }
    }
}

/// True when the expression raises on overflow instead of wrapping. There is no accessor; equality compares the flag.
pub(super) fn is_checked(binary: &BinaryExpr) -> bool {
    let wrapping = BinaryExpr::new(Arc::clone(binary.left()), *binary.op(), Arc::clone(binary.right()));
    wrapping != *binary
}
