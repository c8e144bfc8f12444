//! Float arithmetic, casts from and to floats, and functions of floats.

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::common::ScalarValue;
use datafusion::functions::math::ceil::CeilFunc;
use datafusion::functions::math::floor::FloorFunc;
use datafusion::functions::math::iszero::IsZeroFunc;
use datafusion::functions::math::nans::IsNanFunc;
use datafusion::functions::math::nanvl::NanvlFunc;
use datafusion::functions::math::round::RoundFunc;
use datafusion::functions::math::signum::SignumFunc;
use datafusion::functions::math::trunc::TruncFunc;
use datafusion::functions::math::{self, abs::AbsFunc};
use datafusion::logical_expr::{Operator, ScalarUDF};
use datafusion::physical_expr::expressions::BinaryExpr;
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};

use crate::kernels::expr::float::is_castable;
use crate::kernels::expr::{Expr, FloatFn, Function, ValueType};
use crate::optimizer::reason::{Reason, shorten};
use crate::optimizer::types::{is_float, is_integer};

use super::cast::Conversion;
use super::function::{is, tells_scalars_apart};
use super::{Declined, Lowered, Lowering, constant};

/// DataFusion's functions whose last digits differ from one implementation to the next.
const INEXACT: [fn() -> Arc<ScalarUDF>; 23] = [
    math::acos,
    math::acosh,
    math::asin,
    math::asinh,
    math::atan,
    math::atan2,
    math::atanh,
    math::cbrt,
    math::cos,
    math::cosh,
    math::cot,
    math::degrees,
    math::exp,
    math::ln,
    math::log,
    math::log10,
    math::log2,
    math::power,
    math::radians,
    math::sin,
    math::sinh,
    math::tan,
    math::tanh,
];

/// A function of floats over operands of these types.
fn call(function: FloatFn, args: Vec<Arc<Expr>>, ty: ValueType) -> Arc<Expr> {
    Arc::new(Expr::Call { function: Function::Float(function), args, ty })
}

impl Lowering {
    /// A cast from or to a float; `None` for other casts.
    pub(super) fn float_cast(&mut self, cast: &Conversion<'_>) -> Option<Lowered> {
        let (from, to) = (cast.from, cast.to);
        // Other casts than these can't fail, so that CAST and TRY_CAST are one.
        let safe = cast.safe && is_float(from) && is_integer(to);
        let function = FloatFn::Cast { safe };
        is_castable(from, to).then(|| Ok(call(function, vec![Arc::clone(&cast.operand)], to)))
    }

    /// `+ - * / %` with a float result.
    pub(super) fn float_arithmetic(&mut self, expr: &Arc<dyn PhysicalExpr>, binary: &BinaryExpr) -> Lowered {
        let data_type = self.arrow_type(expr)?;
        let function = match binary.op() {
            Operator::Plus => FloatFn::Add,
            Operator::Minus => FloatFn::Sub,
            Operator::Multiply => FloatFn::Mul,
            Operator::Divide => FloatFn::Div,
            _ => FloatFn::Rem,
        };
        let ty = self.device_type(expr, &data_type)?;
        let (left, right) = self.sides(binary)?;
        let (l, r) = (left.value_type(), right.value_type());
        if !is_float(ty) || l != ty || r != ty {
            return Err(self.unsupported(expr, &format!("arithmetic on {l} and {r}")));
        }
        Ok(call(function, vec![left, right], ty))
    }

    /// A function whose first operand is a float; `None` for other functions.
    pub(super) fn float_function(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        function: &ScalarFunctionExpr,
    ) -> Option<Lowered> {
        let first = function.args().first()?;
        let single_or_double = |ty: DataType| matches!(ty, DataType::Float32 | DataType::Float64);
        if !first.data_type(&self.schema).is_ok_and(single_or_double) {
            return None;
        }
        let same = |f: FloatFn| Some((f, false));
        let (plain, boolean) = if is::<AbsFunc>(function) {
            same(FloatFn::Abs)
        } else if is::<SignumFunc>(function) {
            same(FloatFn::Signum)
        } else if is::<FloorFunc>(function) {
            same(FloatFn::Floor)
        } else if is::<CeilFunc>(function) {
            same(FloatFn::Ceil)
        } else if function.fun() == math::sqrt().as_ref() {
            // Its type has no public name.
            same(FloatFn::Sqrt)
        } else if is::<IsNanFunc>(function) {
            Some((FloatFn::IsNan, true))
        } else if is::<IsZeroFunc>(function) {
            Some((FloatFn::IsZero, true))
        } else if is::<NanvlFunc>(function) {
            return Some(self.nanvl(expr, function));
        } else if is::<RoundFunc>(function) || is::<TruncFunc>(function) {
            return Some(self.rounded(expr, function));
        } else if INEXACT.iter().any(|own| own().as_ref() == function.fun()) {
            return Some(Err(self.decline(Reason::FloatArithmetic { expression: shorten(expr) })));
        } else {
            None
        }?;
        Some(self.lower(first).map(|arg| {
            let ty = if boolean { ValueType::Boolean } else { arg.value_type() };
            call(plain, vec![arg], ty)
        }))
    }

    fn nanvl(&mut self, expr: &Arc<dyn PhysicalExpr>, function: &ScalarFunctionExpr) -> Lowered {
        let [x, y] = function.args() else { return Err(self.unsupported(expr, "it takes two operands")) };
        let (x, y) = (self.lower(x), self.lower(y));
        let (x, y) = (x?, y?);
        let ty = x.value_type();
        if y.value_type() != ty {
            return Err(self.unsupported(expr, &format!("it is of {ty} and {}", y.value_type())));
        }
        Ok(call(FloatFn::Nanvl, vec![x, y], ty))
    }

    /// `round` and `trunc`, with or without decimal places.
    fn rounded(&mut self, expr: &Arc<dyn PhysicalExpr>, function: &ScalarFunctionExpr) -> Lowered {
        let rounds = is::<RoundFunc>(function);
        match function.args() {
            [x] => {
                let x = self.lower(x)?;
                let ty = x.value_type();
                if tells_scalars_apart(expr) && x.may_be_scalar() {
                    return Err(self.unsupported(expr, "its operand may be one value for all rows"));
                }
                Ok(call(if rounds { FloatFn::Round } else { FloatFn::Trunc }, vec![x], ty))
            }
            [x, places] => {
                let x = self.lower(x)?;
                let ty = x.value_type();
                let factor = self.factor(expr, places, ty, rounds)?;
                let factor = self.literal(factor, ty);
                let function = if rounds { FloatFn::RoundBy } else { FloatFn::TruncBy };
                Ok(call(function, vec![x, factor], ty))
            }
            _ => Err(self.unsupported(expr, "it takes one or two operands")),
        }
    }

    /// The power of ten that DataFusion multiplies with and divides by, in its own way of computing it.
    fn factor(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        places: &Arc<dyn PhysicalExpr>,
        ty: ValueType,
        rounds: bool,
    ) -> Result<ScalarValue, Declined> {
        let places = match constant::value(places, &self.schema) {
            Some(ScalarValue::Int32(places)) => places,
            Some(ScalarValue::Int64(places)) => places.and_then(|places| i32::try_from(places).ok()),
            _ => None,
        };
        let Some(places) = places else {
            return Err(self.unsupported(expr, "the decimal places are not a literal"));
        };
        let double = 10f64.powi(places);
        let factor = match ty {
            ValueType::Float32 => {
                ScalarValue::Float32(Some(if rounds { double as f32 } else { 10f32.powi(places) }))
            }
            _ => ScalarValue::Float64(Some(double)),
        };
        let usable = match factor {
            ScalarValue::Float32(Some(factor)) => factor.is_finite() && factor > 0.0,
            ScalarValue::Float64(Some(factor)) => factor.is_finite() && factor > 0.0,
            _ => false,
        };
        if usable { Ok(factor) } else { Err(self.unsupported(expr, "so many decimal places")) }
    }
}
