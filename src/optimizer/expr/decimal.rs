//! Decimals: division and remainder, casts, and the functions that round.

#[cfg(test)]
mod tests;

use std::sync::Arc;

use datafusion::common::ScalarValue;
use datafusion::functions::math::abs::AbsFunc;
use datafusion::functions::math::ceil::CeilFunc;
use datafusion::functions::math::floor::FloorFunc;
use datafusion::functions::math::iszero::IsZeroFunc;
use datafusion::functions::math::nans::IsNanFunc;
use datafusion::functions::math::round::RoundFunc;
use datafusion::functions::math::trunc::TruncFunc;
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::expressions::BinaryExpr;
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};

use crate::kernels::expr::decimal::DecimalType;
use crate::kernels::expr::{ArithOp, CompareOp, DecimalFn, Expr, Function, ValueType};
use crate::optimizer::types::{is_float, is_integer};

use super::cast::Conversion;
use super::function::is;
use super::{Lowered, Lowering, constant};

impl Lowering {
    /// Casts from and to decimals that may lose digits or not fit.
    pub(super) fn decimal_cast(&mut self, cast: &Conversion<'_>) -> Option<Lowered> {
        let (from, to) = (DecimalType::of(cast.from), DecimalType::of(cast.to));
        let function = match (from, to) {
            (Some(_), Some(_)) => DecimalFn::Cast { safe: cast.safe },
            (None, Some(_)) if is_integer(cast.from) || is_float(cast.from) => {
                DecimalFn::Cast { safe: cast.safe }
            }
            (Some(_), None) if is_integer(cast.to) => DecimalFn::ToInteger { safe: cast.safe },
            (Some(_), None) if is_float(cast.to) => DecimalFn::ToFloat,
            _ => return None,
        };
        Some(self.call(cast.expr, Function::Decimal(function), vec![Arc::clone(&cast.operand)], cast.to))
    }

    /// `/` and `%` of decimals, and `+ - *` of Arrow's narrower ones.
    pub(super) fn decimal_operator(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        binary: &BinaryExpr,
    ) -> Option<Lowered> {
        let function = match binary.op() {
            Operator::Divide => DecimalFn::Divide,
            Operator::Modulo => DecimalFn::Remainder,
            Operator::Plus => DecimalFn::Arith(ArithOp::Add),
            Operator::Minus => DecimalFn::Arith(ArithOp::Sub),
            Operator::Multiply => DecimalFn::Arith(ArithOp::Mul),
            _ => return None,
        };
        let ty = ValueType::from_arrow(&expr.data_type(&self.schema).ok()?)?;
        if DecimalType::of(ty)?.width == 128 && matches!(function, DecimalFn::Arith(_)) {
            return None;
        }
        let (left, right) = match self.sides(binary) {
            Ok(sides) => sides,
            Err(declined) => return Some(Err(declined)),
        };
        Some(self.call(expr, Function::Decimal(function), vec![left, right], ty))
    }

    /// `abs`, `floor`, `ceil`, `round`, `trunc`, `iszero` and `isnan` of decimals.
    pub(super) fn decimal_function(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        function: &ScalarFunctionExpr,
    ) -> Option<Lowered> {
        let operand = function.args().first()?;
        if !operand.data_type(&self.schema).ok()?.is_decimal() {
            return None;
        }
        let known = if is::<AbsFunc>(function) {
            Known::Function(DecimalFn::Absolute)
        } else if is::<FloorFunc>(function) {
            Known::Function(DecimalFn::Floor)
        } else if is::<CeilFunc>(function) {
            Known::Function(DecimalFn::Ceil)
        } else if is::<RoundFunc>(function) {
            Known::Places(|places| DecimalFn::Round { places })
        } else if is::<TruncFunc>(function) {
            Known::Places(|places| DecimalFn::Truncate { places })
        } else if is::<IsZeroFunc>(function) {
            Known::IsZero
        } else if is::<IsNanFunc>(function) {
            Known::IsNan
        } else {
            return None;
        };
        Some(self.known_function(expr, function, operand, known))
    }

    fn known_function(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        function: &ScalarFunctionExpr,
        operand: &Arc<dyn PhysicalExpr>,
        known: Known,
    ) -> Lowered {
        let value = self.lower(operand)?;
        let data_type = self.arrow_type(expr)?;
        let ty = self.device_type(expr, &data_type)?;
        let called = match known {
            Known::Function(called) => called,
            Known::Places(of) => match self.places(function) {
                Some(Some(places)) => of(places),
                Some(None) => {
                    let null = ScalarValue::try_from(&data_type);
                    return match null {
                        Ok(null) => Ok(self.literal(null, ty)),
                        Err(_) => Err(self.unsupported(expr, "a NULL of its type")),
                    };
                }
                None => return Err(self.unsupported(expr, "the decimal places are not a literal")),
            },
            Known::IsZero => {
                let zero = ScalarValue::new_zero(&self.arrow_type(operand)?);
                let Ok(zero) = zero else { return Err(self.unsupported(expr, "a zero of its type")) };
                let right = self.literal(zero, value.value_type());
                return Ok(Arc::new(Expr::Compare { op: CompareOp::Eq, left: value, right }));
            }
            // Never, but NULL for NULL.
            Known::IsNan => {
                let right = Arc::clone(&value);
                return Ok(Arc::new(Expr::Compare { op: CompareOp::NotEq, left: value, right }));
            }
        };
        self.call(expr, Function::Decimal(called), vec![value], ty)
    }

    /// The constant second argument, 0 when there is none, or `Some(None)` for NULL. Scales reach from -128 to 127, of 38 digits
    /// at most: places beyond 300 round as 300 do.
    fn places(&self, function: &ScalarFunctionExpr) -> Option<Option<i32>> {
        let Some(places) = function.args().get(1) else { return Some(Some(0)) };
        match constant::value(places, &self.schema)? {
            ScalarValue::Int32(places) => Some(places.map(|places| places.clamp(-300, 300))),
            ScalarValue::Int64(places) => {
                Some(places.and_then(|places| i32::try_from(places.clamp(-300, 300)).ok()))
            }
            _ => None,
        }
    }
}

/// What a function of DataFusion becomes.
#[derive(Clone, Copy)]
enum Known {
    Function(DecimalFn),
    Places(fn(i32) -> DecimalFn),
    IsZero,
    IsNan,
}
