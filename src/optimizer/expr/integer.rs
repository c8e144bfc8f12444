//! Operators, functions and casts of integers and booleans.

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::common::ScalarValue;
use datafusion::functions::math::abs::AbsFunc;
use datafusion::functions::math::iszero::IsZeroFunc;
use datafusion::functions::math::nans::IsNanFunc;
use datafusion::functions::math::round::RoundFunc;
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::expressions::BinaryExpr;
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};

use crate::kernels::expr::{Function, IntegerFn, ValueType};
use crate::optimizer::types::{integer_bits, is_integer};

use super::cast::Conversion;
use super::function::is;
use super::{Lowered, Lowering, constant};

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

    /// ABS, ROUND, ISZERO and ISNAN of integers.
    pub(super) fn integer_function(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        function: &ScalarFunctionExpr,
    ) -> Option<Lowered> {
        let (operand, more) = function.args().split_first()?;
        if !operand.data_type(&self.schema).is_ok_and(|ty| ty.is_integer()) {
            return None;
        }
        match more {
            [] if is::<AbsFunc>(function) => Some(self.absolute(expr, operand)),
            [] if is::<RoundFunc>(function) => Some(self.lower(operand)),
            [] if is::<IsZeroFunc>(function) => Some(self.is_zero(expr, operand)),
            [] if is::<IsNanFunc>(function) => Some(self.never(operand)),
            [places] if is::<RoundFunc>(function) => Some(self.round_integer(expr, operand, places)),
            _ => None,
        }
    }

    /// The power of ten is a parameter: 1 for places after the point, 0 where nothing remains.
    fn round_integer(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        operand: &Arc<dyn PhysicalExpr>,
        places: &Arc<dyn PhysicalExpr>,
    ) -> Lowered {
        let Some(ScalarValue::Int32(places)) = constant::value(places, &self.schema) else {
            return Err(self.unsupported(expr, "the decimal places are not a literal"));
        };
        let data_type = self.arrow_type(operand)?;
        let operand = self.lower(operand)?;
        let ty = operand.value_type();
        let factor = match places {
            Some(places) => power_of_ten(places, &data_type),
            None => ScalarValue::try_from(&data_type).ok(),
        };
        let Some(factor) = factor else { return Err(self.unsupported(expr, "a number of its type")) };
        let factor = self.literal(factor, ty);
        self.call(expr, Function::Integer(IntegerFn::Round), vec![operand, factor], ty)
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

/// 10^-places of an integer type: 1 for places after the point, 0 where the type has no such number.
fn power_of_ten(places: i32, ty: &DataType) -> Option<ScalarValue> {
    let power = 10u64.checked_pow(places.min(0).unsigned_abs());
    let number = power.and_then(|power| ScalarValue::UInt64(Some(power)).cast_to(ty).ok());
    number.or_else(|| ScalarValue::new_zero(ty).ok())
}
