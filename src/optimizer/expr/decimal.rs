//! Decimals: operators, casts, and the functions that round.

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
    /// Casts from and to decimals.
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

    /// `+ - * / %` of decimals. All are checked, whatever the flag for integers says.
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
        DecimalType::of(ty)?;
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
            Known::Round
        } else if is::<TruncFunc>(function) {
            Known::Truncate
        } else if is::<IsZeroFunc>(function) {
            return Some(self.is_zero(expr, operand));
        } else if is::<IsNanFunc>(function) {
            return Some(self.never(operand));
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
            Known::Round | Known::Truncate => match self.places(function) {
                Some(places) => return self.cut_to_places(expr, known, value, places, ty),
                None => return Err(self.unsupported(expr, "the decimal places are not a literal")),
            },
        };
        self.call(expr, Function::Decimal(called), vec![value], ty)
    }

    /// Whether a number that is no float is 0.
    pub(super) fn is_zero(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        operand: &Arc<dyn PhysicalExpr>,
    ) -> Lowered {
        let zero = ScalarValue::new_zero(&self.arrow_type(operand)?);
        let Ok(zero) = zero else { return Err(self.unsupported(expr, "a zero of its type")) };
        let left = self.lower(operand)?;
        let right = self.literal(zero, left.value_type());
        Ok(Arc::new(Expr::Compare { op: CompareOp::Eq, left, right }))
    }

    /// False, but NULL for NULL: whether a number that is no float is NaN.
    pub(super) fn never(&mut self, operand: &Arc<dyn PhysicalExpr>) -> Lowered {
        let left = self.lower(operand)?;
        let right = Arc::clone(&left);
        Ok(Arc::new(Expr::Compare { op: CompareOp::NotEq, left, right }))
    }

    /// `round` and `trunc` to so many places, or NULL: what shapes a kernel is only on which side of the point they lie.
    fn cut_to_places(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        known: Known,
        value: Arc<Expr>,
        places: Option<i32>,
        ty: ValueType,
    ) -> Lowered {
        let types = DecimalType::of(value.value_type()).zip(DecimalType::of(ty));
        let numbers = types.and_then(|(from, to)| {
            let places = places.unwrap_or(0);
            match known {
                Known::Truncate => Some((truncated_unit(from, places)?, None)),
                _ => rounded_unit(from, to, places),
            }
        });
        let Some((unit, factor)) = numbers else {
            return Err(self.unsupported(expr, "so many decimal places"));
        };
        let scaled = factor.is_some();
        let mut args = vec![value];
        for number in [Some(unit), factor].into_iter().flatten() {
            for half in [number as u64, (number >> 64) as u64] {
                let half = ScalarValue::UInt64(places.map(|_| half));
                args.push(self.literal(half, ValueType::UInt64));
            }
        }
        let function =
            if known == Known::Truncate { DecimalFn::Truncate } else { DecimalFn::Round { scaled } };
        self.call(expr, Function::Decimal(function), args, ty)
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
#[derive(Clone, Copy, PartialEq, Eq)]
enum Known {
    Function(DecimalFn),
    Round,
    Truncate,
}

/// The unit that `trunc` goes down to; where nothing remains, one that no value reaches.
fn truncated_unit(ty: DecimalType, places: i32) -> Option<u128> {
    let off = i32::from(ty.scale).saturating_sub(places).max(0).unsigned_abs();
    if off < ty.max_digits() { 10u128.checked_pow(off) } else { Some(u128::MAX) }
}

/// The unit that `round` counts, and the factor of the count where places lie before the point; 0 where nothing remains.
fn rounded_unit(from: DecimalType, to: DecimalType, places: i32) -> Option<(u128, Option<u128>)> {
    let whole = i32::from(from.precision) - i32::from(from.scale);
    if places < 0 && (whole <= 0 || places.unsigned_abs() > whole.unsigned_abs()) {
        return Some((1, Some(0)));
    }
    let power = |digits: i32| 10u128.checked_pow(digits.max(0).unsigned_abs());
    let off = i32::from(from.scale).saturating_sub(places);
    let factor = if off > 0 { power(i32::from(to.scale).saturating_sub(places))? } else { 1 };
    Some((power(off)?, Some(factor).filter(|factor| places < 0 || *factor != 1)))
}
