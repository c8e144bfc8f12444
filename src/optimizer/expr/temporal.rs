//! Dates, times, timestamps and durations: casts, arithmetic and functions.

use std::sync::Arc;

use arrow::compute::kernels::cast_utils::IntervalUnit;
use arrow::datatypes::{DataType, TimeUnit};
use datafusion::common::ScalarValue;
use datafusion::functions::datetime::date_bin::DateBinFunc;
use datafusion::functions::datetime::date_part::DatePartFunc;
use datafusion::functions::datetime::date_trunc::DateTruncFunc;
use datafusion::functions::datetime::from_unixtime::FromUnixtimeFunc;
use datafusion::functions::datetime::to_date::ToDateFunc;
use datafusion::functions::datetime::to_timestamp::{
    ToTimestampFunc, ToTimestampMicrosFunc, ToTimestampMillisFunc, ToTimestampNanosFunc,
    ToTimestampSecondsFunc,
};
use datafusion::functions::datetime::to_unixtime::ToUnixtimeFunc;
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::expressions::{BinaryExpr, Literal};
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};

use crate::kernels::expr::decimal::DecimalType;
use crate::kernels::expr::temporal::{Granularity, MOST_STRIDE, NANOS_PER_DAY, Part};
use crate::kernels::expr::{Expr, FloatFn, Function, TemporalFn, ValueType, Zone};
use crate::optimizer::types::{holds_all_values, is_float, is_integer};

use super::cast::Conversion;
use super::{Lowered, Lowering, constant};

#[cfg(test)]
mod tests;

/// Whether a type is a date, time, timestamp or duration.
fn is_temporal(ty: ValueType) -> bool {
    use ValueType::*;
    matches!(ty, Date32 | Date64 | Time32(_) | Time64(_) | Timestamp { .. } | Duration(_))
}

fn call(function: TemporalFn, args: Vec<Arc<Expr>>, ty: ValueType) -> Option<Arc<Expr>> {
    let types: Vec<_> = args.iter().map(|arg| arg.value_type()).collect();
    function.check(&types, ty).ok()?;
    Some(Arc::new(Expr::Call { function: Function::Temporal(function), args, ty }))
}

/// A value through several types; integers of less than 64 bits are widened where the cast takes only `Int64`.
fn converted(value: Arc<Expr>, through: &[ValueType], safe: bool) -> Option<Arc<Expr>> {
    through.iter().try_fold(value, |value, &to| {
        let from = value.value_type();
        if from == to {
            return Some(value);
        }
        if is_integer(from) && holds_all_values(from, to) {
            return Some(Arc::new(Expr::Cast { expr: value, to }));
        }
        call(TemporalFn::Cast { safe }, vec![Arc::clone(&value)], to).or_else(|| {
            let wide = holds_all_values(from, ValueType::Int64) && from != ValueType::Int64;
            let wide = wide.then(|| Arc::new(Expr::Cast { expr: value, to: ValueType::Int64 }))?;
            match to {
                ValueType::Timestamp { .. } | ValueType::Duration(_) => {
                    call(TemporalFn::Cast { safe }, vec![wide], to)
                }
                _ => None,
            }
        })
    })
}

/// A float from or to an integer.
fn float_cast(value: Arc<Expr>, to: ValueType, safe: bool) -> Option<Arc<Expr>> {
    let from = value.value_type();
    let function = FloatFn::Cast { safe: safe && is_float(from) };
    function.check(&[from], to).ok()?;
    Some(Arc::new(Expr::Call { function: Function::Float(function), args: vec![value], ty: to }))
}

pub(super) fn cast(lowering: &mut Lowering, cast: &Conversion<'_>) -> Option<Lowered> {
    if !is_temporal(cast.from) && !is_temporal(cast.to) {
        return None;
    }
    if let Some(lowered) = converted(Arc::clone(&cast.operand), &[cast.to], cast.safe) {
        return Some(Ok(lowered));
    }
    // Arrow takes other numbers for timestamps and durations, and the other way round, through Int64.
    let counted = |ty| matches!(ty, ValueType::Timestamp { .. } | ValueType::Duration(_));
    let number = |ty| is_integer(ty) || is_float(ty) || DecimalType::of(ty).is_some();
    if cast.from == WHOLE || cast.to == WHOLE {
        return None;
    }
    let whole = match (cast.from, cast.to) {
        (from, to) if number(from) && counted(to) => {
            let operand = Arc::clone(&cast.operand);
            lowering.convert(&Conversion { operand, to: WHOLE, ..*cast })
        }
        (from, to) if counted(from) && number(to) => {
            converted(Arc::clone(&cast.operand), &[WHOLE], cast.safe).map(Ok)?
        }
        _ => return None,
    };
    Some(whole.and_then(|operand| lowering.convert(&Conversion { operand, from: WHOLE, ..*cast })))
}

/// Months, days and nanoseconds of a literal.
fn interval(expr: &Arc<dyn PhysicalExpr>) -> Option<(i32, i32, i64)> {
    match expr.downcast_ref::<Literal>()?.value() {
        ScalarValue::IntervalYearMonth(Some(months)) => Some((*months, 0, 0)),
        ScalarValue::IntervalDayTime(Some(v)) => Some((0, v.days, i64::from(v.milliseconds) * 1_000_000)),
        ScalarValue::IntervalMonthDayNano(Some(v)) => Some((v.months, v.days, v.nanoseconds)),
        _ => None,
    }
}

pub(super) fn operator(
    lowering: &mut Lowering,
    expr: &Arc<dyn PhysicalExpr>,
    binary: &BinaryExpr,
) -> Option<Lowered> {
    let negated = match binary.op() {
        Operator::Plus => false,
        Operator::Minus => true,
        _ => return None,
    };
    let left = binary.left().data_type(&lowering.schema).ok()?;
    let right = binary.right().data_type(&lowering.schema).ok()?;
    if !left.is_temporal() && !right.is_temporal() {
        return None;
    }
    Some(match (&left, &right) {
        (_, DataType::Interval(_)) => lowering.moved(expr, binary.left(), binary.right(), negated),
        (DataType::Interval(_), _) if !negated => lowering.moved(expr, binary.right(), binary.left(), false),
        (DataType::Duration(_), DataType::Timestamp(..)) if !negated => {
            lowering.spans(expr, binary.right(), binary.left(), false)
        }
        _ => lowering.spans(expr, binary.left(), binary.right(), negated),
    })
}

impl Lowering {
    /// A date, timestamp or time plus or minus an interval.
    fn moved(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        value: &Arc<dyn PhysicalExpr>,
        by: &Arc<dyn PhysicalExpr>,
        negated: bool,
    ) -> Lowered {
        let value = self.lower(value)?;
        let Some((months, days, nanos)) = interval(by) else {
            return Err(self.unsupported(expr, "only intervals that are literals have a GPU counterpart"));
        };
        let data_type = self.arrow_type(expr)?;
        let (from, ty) = (value.value_type(), self.device_type(expr, &data_type)?);
        let lowered = match from {
            ValueType::Time32(_) | ValueType::Time64(_) => {
                let nanos = self.literal(ScalarValue::Int64(Some(nanos)), ValueType::Int64);
                call(TemporalFn::ShiftTime { negated }, vec![value, nanos], ty)
            }
            _ => {
                let months = self.literal(ScalarValue::Int32(Some(months)), ValueType::Int32);
                let days = self.literal(ScalarValue::Int32(Some(days)), ValueType::Int32);
                let nanos = self.literal(ScalarValue::Int64(Some(nanos)), ValueType::Int64);
                call(TemporalFn::AddInterval { negated }, vec![value, months, days, nanos], ty)
            }
        };
        lowered.ok_or_else(|| self.unsupported(expr, &format!("an interval beside {from} as {ty}")))
    }

    /// Sums and differences of timestamps, durations and dates.
    fn spans(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        left: &Arc<dyn PhysicalExpr>,
        right: &Arc<dyn PhysicalExpr>,
        negated: bool,
    ) -> Lowered {
        let data_type = self.arrow_type(expr)?;
        let (left, right) = (self.lower(left), self.lower(right));
        let (left, right) = (left?, right?);
        let ty = self.device_type(expr, &data_type)?;
        let (l, r) = (left.value_type(), right.value_type());
        let function = match l {
            ValueType::Date32 | ValueType::Date64 if negated => TemporalFn::DaysBetween,
            _ => TemporalFn::AddSpan { negated },
        };
        call(function, vec![left, right], ty)
            .ok_or_else(|| self.unsupported(expr, &format!("arithmetic on {l} and {r}")))
    }

    /// A temporal function of one value, by what it makes of it.
    fn of_value(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        function: &ScalarFunctionExpr,
        value: &Arc<dyn PhysicalExpr>,
        make: impl FnOnce(Arc<Expr>, ValueType) -> Option<Arc<Expr>>,
    ) -> Lowered {
        let value = self.lower(value)?;
        let data_type = self.arrow_type(expr)?;
        let ty = self.device_type(expr, &data_type)?;
        let from = value.value_type();
        make(value, ty).ok_or_else(|| {
            let why = format!("{} of {from} with these arguments has no GPU counterpart", function.name());
            self.unsupported(expr, &why)
        })
    }

    /// Seconds since the epoch, or since midnight, as DataFusion computes them: the count as a double, times or divided by
    /// a constant.
    fn epoch(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        function: &ScalarFunctionExpr,
        value: &Arc<dyn PhysicalExpr>,
    ) -> Lowered {
        let from = self.arrow_type(value)?;
        let (operation, factor) = match from {
            DataType::Date32 => (FloatFn::Mul, 86_400.0),
            DataType::Date64 => (FloatFn::Div, 1e3),
            DataType::Timestamp(unit, _) | DataType::Time32(unit) | DataType::Time64(unit) => match unit {
                TimeUnit::Second => (FloatFn::Div, 1.0),
                TimeUnit::Millisecond => (FloatFn::Div, 1e3),
                TimeUnit::Microsecond => (FloatFn::Div, 1e6),
                TimeUnit::Nanosecond => (FloatFn::Div, 1e9),
            },
            _ => return Err(self.unsupported(expr, "the epoch of a span has no GPU counterpart")),
        };
        let factor = self.literal(ScalarValue::Float64(Some(factor)), ValueType::Float64);
        self.of_value(expr, function, value, |value, ty| {
            let count = float_cast(converted(value, &[ValueType::Int64], false)?, ValueType::Float64, false)?;
            operation.check(&[count.value_type(), factor.value_type()], ty).ok()?;
            let args = vec![count, factor];
            Some(Arc::new(Expr::Call { function: Function::Float(operation), args, ty }))
        })
    }

    fn date_bin(&mut self, expr: &Arc<dyn PhysicalExpr>, function: &ScalarFunctionExpr) -> Lowered {
        let (stride, value, origin) = match function.args() {
            [stride, value] => (stride, value, None),
            [stride, value, origin] => (stride, value, Some(origin)),
            _ => return Err(self.unsupported(expr, "it has another number of arguments")),
        };
        let from = self.arrow_type(value)?;
        let months = stride_months(stride);
        let stride = stride_nanos(stride);
        let origin = match origin {
            None => Some(0),
            Some(origin) => origin_nanos(origin, &from),
        };
        let bad = "only strides that are positive literals, from an origin that is a literal of the fitting type, have a \
                   GPU counterpart";
        let Some(origin) = origin else { return Err(self.unsupported(expr, bad)) };
        if let Some(months) = months {
            let stride = self.literal(ScalarValue::Int32(Some(months)), ValueType::Int32);
            let origin = self.literal(ScalarValue::Int64(Some(origin)), ValueType::Int64);
            return self.of_value(expr, function, value, |value, ty| {
                call(TemporalFn::BinMonths, vec![value, stride, origin], ty)
            });
        }
        let Some(stride) = stride else { return Err(self.unsupported(expr, bad)) };
        let time = matches!(from, DataType::Time32(_) | DataType::Time64(_));
        if time && stride >= NANOS_PER_DAY {
            return Err(self.unsupported(expr, "a stride of a day or more raises for times"));
        }
        let stride = self.literal(ScalarValue::Int64(Some(stride)), ValueType::Int64);
        let origin = self.literal(ScalarValue::Int64(Some(origin)), ValueType::Int64);
        self.of_value(expr, function, value, |value, ty| {
            call(TemporalFn::Bin, vec![value, stride, origin], ty)
        })
    }
}

/// Months of a stride of nothing else, if positive and not beyond all use.
fn stride_months(expr: &Arc<dyn PhysicalExpr>) -> Option<i32> {
    match interval(expr)? {
        (months @ 1..=MOST_STRIDE, 0, 0) => Some(months),
        _ => None,
    }
}

/// Nanoseconds of a stride without months, if positive.
fn stride_nanos(expr: &Arc<dyn PhysicalExpr>) -> Option<i64> {
    let (months, days, nanos) = interval(expr)?;
    let days = i64::from(days).checked_mul(NANOS_PER_DAY)?;
    let nanos = days.checked_add(nanos)?;
    (months == 0 && nanos > 0).then_some(nanos)
}

/// Nanoseconds of an origin that fits values of type `from`.
fn origin_nanos(expr: &Arc<dyn PhysicalExpr>, from: &DataType) -> Option<i64> {
    let literal = expr.downcast_ref::<Literal>()?.value();
    match (literal, from) {
        (ScalarValue::TimestampNanosecond(Some(v), _), DataType::Timestamp(..)) => Some(*v),
        (ScalarValue::Time32Second(Some(v)), DataType::Time32(_)) => Some(i64::from(*v) * 1_000_000_000),
        (ScalarValue::Time32Millisecond(Some(v)), DataType::Time32(_)) => Some(i64::from(*v) * 1_000_000),
        (ScalarValue::Time64Microsecond(Some(v)), DataType::Time64(_)) => v.checked_mul(1_000),
        (ScalarValue::Time64Nanosecond(Some(v)), DataType::Time64(_)) => Some(*v),
        _ => None,
    }
}

/// A string literal.
fn text(expr: &Arc<dyn PhysicalExpr>) -> Option<&str> {
    expr.downcast_ref::<Literal>()?.value().try_as_str().flatten()
}

/// A string literal of the types of which `date_part` takes its first argument.
fn short_text(expr: &Arc<dyn PhysicalExpr>) -> Option<&str> {
    match expr.downcast_ref::<Literal>()?.value() {
        ScalarValue::Utf8(text) | ScalarValue::Utf8View(text) => text.as_deref(),
        _ => None,
    }
}

/// The name of a part without the quotes that DataFusion takes off.
fn unquoted(name: &str) -> &str {
    let quoted = name.strip_prefix(['\'', '"']).and_then(|name| name.strip_suffix(['\'', '"']));
    quoted.unwrap_or(name)
}

fn is_epoch(name: &str) -> bool {
    unquoted(name).eq_ignore_ascii_case("epoch")
}

/// A part as DataFusion reads its name; `None` for names that raise.
fn part(name: &str) -> Option<Part> {
    let name = unquoted(name);
    if let Ok(unit) = name.parse::<IntervalUnit>() {
        return match unit {
            IntervalUnit::Year => Some(Part::Year),
            IntervalUnit::Month => Some(Part::Month),
            IntervalUnit::Week => Some(Part::Week),
            IntervalUnit::Day => Some(Part::Day),
            IntervalUnit::Hour => Some(Part::Hour),
            IntervalUnit::Minute => Some(Part::Minute),
            IntervalUnit::Second => Some(Part::Second),
            IntervalUnit::Millisecond => Some(Part::Millisecond),
            IntervalUnit::Microsecond => Some(Part::Microsecond),
            IntervalUnit::Nanosecond => Some(Part::Nanosecond),
            _ => None,
        };
    }
    match name.to_lowercase().as_str() {
        "isoyear" => Some(Part::IsoYear),
        "qtr" | "quarter" => Some(Part::Quarter),
        "doy" => Some(Part::DayOfYear),
        "dow" => Some(Part::DayOfWeek),
        "isodow" => Some(Part::IsoDayOfWeek),
        _ => None,
    }
}

fn granularity(name: &str) -> Option<Granularity> {
    Some(match name.to_lowercase().as_str() {
        "microsecond" => Granularity::Microsecond,
        "millisecond" => Granularity::Millisecond,
        "second" => Granularity::Second,
        "minute" => Granularity::Minute,
        "hour" => Granularity::Hour,
        "day" => Granularity::Day,
        "week" => Granularity::Week,
        "month" => Granularity::Month,
        "quarter" => Granularity::Quarter,
        "year" => Granularity::Year,
        _ => return None,
    })
}

/// Through which numbers become counts of a unit.
const WHOLE: ValueType = ValueType::Int64;
const SECONDS: ValueType = ValueType::Timestamp { unit: TimeUnit::Second, zone: Zone::None };

pub(super) fn function(
    lowering: &mut Lowering,
    expr: &Arc<dyn PhysicalExpr>,
    function: &ScalarFunctionExpr,
) -> Option<Lowered> {
    let inner = function.fun().inner();
    if inner.is::<DateBinFunc>() {
        return Some(lowering.date_bin(expr, function));
    }
    Some(match function.args() {
        [name, value] if inner.is::<DatePartFunc>() && short_text(name).is_some_and(is_epoch) => {
            lowering.epoch(expr, function, value)
        }
        [name, value] if inner.is::<DatePartFunc>() => {
            let part = short_text(name).and_then(part);
            lowering
                .of_value(expr, function, value, |value, ty| call(TemporalFn::Part(part?), vec![value], ty))
        }
        [_, _] if inner.is::<DateTruncFunc>() && constant::is_invariant(expr) => lowering.parameter(expr),
        [name, value] if inner.is::<DateTruncFunc>() => {
            let to = text(name).and_then(granularity);
            lowering.of_value(expr, function, value, |value, ty| {
                let trunc = TemporalFn::Trunc { to: to?, single: value.may_be_scalar() };
                call(trunc, vec![value], ty)
            })
        }
        [value] if inner.is::<ToTimestampFunc>() => {
            lowering.of_value(expr, function, value, |value, ty| match value.value_type() {
                from if is_integer(from) => converted(value, &[SECONDS, ty], false),
                ValueType::Timestamp { .. } => converted(value, &[ty], false),
                _ => None,
            })
        }
        [value]
            if inner.is::<ToTimestampSecondsFunc>()
                || inner.is::<ToTimestampMillisFunc>()
                || inner.is::<ToTimestampMicrosFunc>()
                || inner.is::<ToTimestampNanosFunc>()
                || inner.is::<FromUnixtimeFunc>() =>
        {
            lowering.of_value(expr, function, value, |value, ty| match value.value_type() {
                from if is_integer(from) || matches!(from, ValueType::Timestamp { .. }) => {
                    converted(value, &[ty], false)
                }
                _ => None,
            })
        }
        [value] if inner.is::<ToUnixtimeFunc>() => {
            lowering.of_value(expr, function, value, |value, ty| match value.value_type() {
                ValueType::Date32 | ValueType::Date64 => converted(value, &[SECONDS, ty], false),
                ValueType::Timestamp { zone, .. } => {
                    converted(value, &[ValueType::Timestamp { unit: TimeUnit::Second, zone }, ty], false)
                }
                from if is_integer(from) => converted(value, &[ty], false),
                _ => None,
            })
        }
        [value] if inner.is::<ToDateFunc>() => {
            lowering.of_value(expr, function, value, |value, ty| match value.value_type() {
                from if is_temporal(from) => converted(value, &[ty], false),
                ValueType::Int32 | ValueType::Int64 => converted(value, &[ty], false),
                ValueType::Int8 | ValueType::Int16 | ValueType::UInt8 | ValueType::UInt16 => {
                    converted(value, &[ValueType::Int32, ty], false)
                }
                _ => None,
            })
        }
        _ => return None,
    })
}
