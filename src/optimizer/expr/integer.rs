//! Operators, functions and casts of integers and booleans; GREATEST, LEAST and NULLIF of all types.

use std::sync::Arc;

use datafusion::functions::core::greatest::GreatestFunc;
use datafusion::functions::core::least::LeastFunc;
use datafusion::functions::core::nullif::NullIfFunc;
use datafusion::functions::math::abs::AbsFunc;
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::expressions::BinaryExpr;
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};

use crate::kernels::expr::{Expr, Function, IntegerFn, ValueType};
use crate::optimizer::types::{integer_bits, is_integer};

use super::case::same_bits;
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

    /// ABS of integers, and what is planned as functions of any type.
    pub(super) fn integer_function(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        function: &ScalarFunctionExpr,
    ) -> Option<Lowered> {
        if is::<GreatestFunc>(function) {
            Some(self.extreme(expr, function, IntegerFn::Greatest))
        } else if is::<LeastFunc>(function) {
            Some(self.extreme(expr, function, IntegerFn::Least))
        } else if is::<NullIfFunc>(function) {
            Some(self.null_if(expr, function))
        } else if is::<AbsFunc>(function) {
            let [operand] = function.args() else { return None };
            let integer = operand.data_type(&self.schema).is_ok_and(|ty| ty.is_integer());
            integer.then(|| self.absolute(expr, operand))
        } else {
            None
        }
    }

    fn absolute(&mut self, expr: &Arc<dyn PhysicalExpr>, operand: &Arc<dyn PhysicalExpr>) -> Lowered {
        let operand = self.lower(operand)?;
        let ty = operand.value_type();
        match integer_bits(ty) {
            Some((_, false)) => Ok(operand),
            _ => self.call(expr, Function::Integer(IntegerFn::Abs), vec![operand], ty),
        }
    }

    fn extreme(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        function: &ScalarFunctionExpr,
        which: IntegerFn,
    ) -> Lowered {
        let data_type = self.arrow_type(expr)?;
        let ty = self.device_type(expr, &data_type)?;
        let args: Vec<Lowered> =
            function.args().iter().map(|arg| self.branch(expr, arg, &data_type, ty)).collect();
        let mut args = args.into_iter().collect::<Result<Vec<_>, _>>()?;
        match args.len() {
            1 => args.pop().ok_or(super::Declined),
            _ => self.call(expr, Function::Integer(which), args, ty),
        }
    }

    /// NULLIF compares with Arrow's equality, as the form of CASE with an operand does. It evaluates both sides for all
    /// rows, and so does the condition here.
    fn null_if(&mut self, expr: &Arc<dyn PhysicalExpr>, function: &ScalarFunctionExpr) -> Lowered {
        let data_type = self.arrow_type(expr)?;
        let ty = self.device_type(expr, &data_type)?;
        let [left, right] = function.args() else {
            return Err(self.unsupported(expr, "NULLIF takes two operands"));
        };
        let (left, right) =
            (self.branch(expr, left, &data_type, ty), self.branch(expr, right, &data_type, ty));
        let (left, right) = (left?, right?);
        let null = self.null(&data_type, ty);
        let branches = vec![(same_bits(Arc::clone(&left), right), null)];
        Ok(Arc::new(Expr::Case { branches, otherwise: Some(left), ty }))
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
