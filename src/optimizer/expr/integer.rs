//! Operators, functions and casts of integers and booleans.

use std::sync::Arc;

use datafusion::functions::math::abs::AbsFunc;
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::expressions::BinaryExpr;
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};

use crate::kernels::expr::{Function, IntegerFn, ValueType};
use crate::optimizer::types::{integer_bits, is_integer};

use super::cast::Conversion;
use super::function::is;
use super::{Lowered, Lowering};

impl Lowering {
    /// Division, remainder, bits and shifts. DataFusion brings both sides to one type first.
    pub(super) fn integer_operator(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        binary: &BinaryExpr,
    ) -> Option<Lowered> {
        let function = match binary.op() {
            Operator::Divide => IntegerFn::Divide,
            Operator::Modulo => IntegerFn::Remainder,
            Operator::BitwiseAnd => IntegerFn::BitAnd,
            Operator::BitwiseOr => IntegerFn::BitOr,
            Operator::BitwiseXor => IntegerFn::BitXor,
            Operator::BitwiseShiftLeft => IntegerFn::ShiftLeft,
            Operator::BitwiseShiftRight => IntegerFn::ShiftRight,
            _ => return None,
        };
        let types = binary.left().data_type(&self.schema).and_then(|left| {
            let right = binary.right().data_type(&self.schema)?;
            Ok((left, right))
        });
        match types {
            Ok((left, right)) if left.is_integer() && left == right => {}
            _ => return None,
        }
        Some(self.integer_sides(expr, binary, function))
    }

    fn integer_sides(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        binary: &BinaryExpr,
        function: IntegerFn,
    ) -> Lowered {
        let data_type = self.arrow_type(expr)?;
        let ty = self.device_type(expr, &data_type)?;
        let (left, right) = self.sides(binary)?;
        self.call(expr, Function::Integer(function), vec![left, right], ty)
    }

    /// ABS of integers.
    pub(super) fn integer_function(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        function: &ScalarFunctionExpr,
    ) -> Option<Lowered> {
        let [operand] = function.args() else { return None };
        let integer = operand.data_type(&self.schema).is_ok_and(|ty| ty.is_integer());
        (integer && is::<AbsFunc>(function)).then(|| self.absolute(expr, operand))
    }

    fn absolute(&mut self, expr: &Arc<dyn PhysicalExpr>, operand: &Arc<dyn PhysicalExpr>) -> Lowered {
        let operand = self.lower(operand)?;
        let ty = operand.value_type();
        match integer_bits(ty) {
            Some((_, false)) => Ok(operand),
            _ => self.call(expr, Function::Integer(IntegerFn::Abs), vec![operand], ty),
        }
    }

    /// Casts among integers and booleans.
    pub(super) fn integer_cast(&mut self, cast: &Conversion<'_>) -> Option<Lowered> {
        let either = |ty| is_integer(ty) || ty == ValueType::Boolean;
        if !either(cast.from) || !either(cast.to) {
            return None;
        }
        let function = IntegerFn::Convert { safe: cast.safe };
        Some(self.call(cast.expr, Function::Integer(function), vec![Arc::clone(&cast.operand)], cast.to))
    }
}
