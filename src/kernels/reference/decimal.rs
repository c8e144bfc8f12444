//! Functions over decimals, in 128-bit integers and in the host's doubles.

use crate::kernels::expr::decimal::DecimalType;
use crate::kernels::expr::widths::{is_signed, pow10, type_bits};
use crate::kernels::expr::{ArithOp, DecimalFn, Scalar, ValueType};

use super::expr::Fault;

/// The function's value.
///
/// # Errors
/// [`Fault`] where the CPU operator would raise, or might.
pub fn decimal(function: DecimalFn, args: &[(Scalar, ValueType)], ty: ValueType) -> Result<Scalar, Fault> {
    match (function, args) {
        (_, []) => Err(Fault),
        (_, args) if args.iter().any(|(value, _)| value.is_none()) => Ok(None),
        (DecimalFn::Cast { safe }, [(Some(value), from)]) => {
            failed(cast(*value, *from, DecimalType::of(ty).ok_or(Fault)?)?, safe)
        }
        (DecimalFn::ToInteger { safe }, [(Some(value), from)]) => {
            failed(to_integer(*value, DecimalType::of(*from).ok_or(Fault)?, ty), safe)
        }
        (DecimalFn::ToFloat, [(Some(value), from)]) => {
            let scale = DecimalType::of(*from).ok_or(Fault)?.scale;
            let double = *value as f64 / power_of_ten(scale);
            Ok(Some(match ty {
                ValueType::Float32 => (double as f32).to_bits().into(),
                _ => double.to_bits().into(),
            }))
        }
        (DecimalFn::Round { .. } | DecimalFn::Truncate, [(Some(value), from), numbers @ ..]) => {
            let numbers: Vec<u128> = numbers.chunks_exact(2).filter_map(number).collect();
            let types = (DecimalType::of(*from).ok_or(Fault)?, DecimalType::of(ty).ok_or(Fault)?);
            match (function, numbers.as_slice()) {
                (DecimalFn::Truncate, [unit]) => Ok(Some(truncated(*value, *unit))),
                (_, [unit]) => round(*value, *unit, None, types).map(Some),
                (_, [unit, factor]) => round(*value, *unit, Some(*factor), types).map(Some),
                _ => Err(Fault),
            }
        }
        (_, [(Some(value), from)]) => {
            let types = (DecimalType::of(*from).ok_or(Fault)?, DecimalType::of(ty).ok_or(Fault)?);
            unary(function, *value, types.0, types.1).map(Some)
        }
        (_, [(Some(a), left), (Some(b), right)]) => {
            let l = DecimalType::of(*left).ok_or(Fault)?;
            let r = DecimalType::of(*right).ok_or(Fault)?;
            binary(function, (*a, l), (*b, r), DecimalType::of(ty).ok_or(Fault)?).map(Some)
        }
        _ => Err(Fault),
    }
}

/// A cast that does not fit.
fn failed(value: Option<i128>, safe: bool) -> Result<Scalar, Fault> {
    match value {
        None if !safe => Err(Fault),
        value => Ok(value),
    }
}

/// Digits by which the result's scale exceeds the operand's.
fn steps(from: DecimalType, to: DecimalType) -> i32 {
    i32::from(to.scale) - i32::from(from.scale)
}

/// 10^scale by squaring, as the processor's library has it for doubles.
fn power_of_ten(scale: i8) -> f64 {
    let (mut power, mut square, mut left) = (1.0, 10.0, scale.unsigned_abs());
    loop {
        if left % 2 == 1 {
            power *= square;
        }
        left /= 2;
        if left == 0 {
            return if scale < 0 { 1.0 / power } else { power };
        }
        square *= square;
    }
}

/// Whether Arrow takes every value of `from` to fit `to` by the declared digits before the point. A value that loses digits may be
/// rounded up to one more.
fn has_room(from: DecimalType, to: DecimalType) -> bool {
    let whole = |ty: DecimalType| i32::from(ty.precision) - i32::from(ty.scale);
    if to.scale < from.scale { whole(from) < whole(to) } else { whole(from) <= whole(to) }
}

/// A product with a power of ten that the native type holds.
fn times(ty: DecimalType, value: i128, digits: u32) -> Option<i128> {
    pow10(digits).and_then(|factor| value.checked_mul(factor)).filter(|v| ty.holds(*v))
}

fn binary(
    function: DecimalFn,
    (a, l): (i128, DecimalType),
    (b, r): (i128, DecimalType),
    to: DecimalType,
) -> Result<i128, Fault> {
    let digits = |steps: i32| steps.max(0).unsigned_abs();
    // Digits that the operands get before they meet.
    let (left, right) = match function {
        DecimalFn::Divide => {
            let missing = i32::from(to.scale) - (i32::from(l.scale) - i32::from(r.scale));
            (digits(missing), digits(-missing))
        }
        DecimalFn::Arith(ArithOp::Mul) => (0, 0),
        _ => (digits(steps(l, to)), digits(steps(r, to))),
    };
    let (a, b) = (times(to, a, left).ok_or(Fault)?, times(to, b, right).ok_or(Fault)?);
    let overflows = a == -1 << (to.width - 1) && b == -1;
    let result = match function {
        DecimalFn::Arith(ArithOp::Add) => a.checked_add(b),
        DecimalFn::Arith(ArithOp::Sub) => a.checked_sub(b),
        DecimalFn::Arith(ArithOp::Mul) => a.checked_mul(b),
        DecimalFn::Divide => a.checked_div(b),
        DecimalFn::Remainder if overflows => None,
        DecimalFn::Remainder => a.checked_rem(b),
        _ => None,
    };
    result.filter(|v| to.holds(*v)).ok_or(Fault)
}

fn unary(function: DecimalFn, value: i128, from: DecimalType, to: DecimalType) -> Result<i128, Fault> {
    let minimum = value < 0 && value.checked_neg().is_none_or(|v| !from.holds(v));
    let digits = |v: i128| to.has_digits(v).then_some(v).ok_or(Fault);
    match function {
        DecimalFn::Negate if minimum => Err(Fault),
        DecimalFn::Negate => Ok(-value),
        DecimalFn::Absolute if minimum => Ok(value),
        DecimalFn::Absolute => Ok(value.abs()),
        DecimalFn::Floor | DecimalFn::Ceil if from.scale <= 0 => Ok(value),
        DecimalFn::Floor | DecimalFn::Ceil => {
            let unit = pow10(u32::from(from.scale.unsigned_abs())).ok_or(Fault)?;
            let below = value.checked_sub(value.rem_euclid(unit));
            let above = below.and_then(|v| if v == value { Some(v) } else { v.checked_add(unit) });
            // What leaves 128 bits has more than 38 digits.
            digits(if function == DecimalFn::Floor { below } else { above }.ok_or(Fault)?)
        }
        _ => Err(Fault),
    }
}

/// A number of two halves.
fn number(halves: &[(Scalar, ValueType)]) -> Option<u128> {
    match halves {
        [(Some(low), _), (Some(high), _)] => Some((*high as u128) << 64 | *low as u128),
        _ => None,
    }
}

/// The value without what exceeds a multiple of the unit.
fn truncated(value: i128, unit: u128) -> i128 {
    let whole = (value.unsigned_abs() - value.unsigned_abs() % unit) as i128;
    if value < 0 { whole.wrapping_neg() } else { whole }
}

/// The nearest number of units, half away from zero, or that times a factor.
fn round(
    value: i128,
    unit: u128,
    factor: Option<u128>,
    (from, to): (DecimalType, DecimalType),
) -> Result<i128, Fault> {
    let (whole, rest) = (value.unsigned_abs() / unit, value.unsigned_abs() % unit);
    let units = whole + u128::from(rest >= unit - rest);
    let units = units.checked_mul(factor.unwrap_or(1)).ok_or(Fault)?;
    let result = if value < 0 { 0i128.checked_sub_unsigned(units) } else { units.try_into().ok() };
    // One digit more may not fit a type that has no more.
    let full = factor.is_some() && from.scale == 0 && u32::from(to.precision) == to.max_digits();
    result.filter(|v| to.holds(*v) && (!full || to.has_digits(*v))).ok_or(Fault)
}

/// Divided by 10^digits, half away from zero.
fn rounded(value: i128, digits: u32) -> i128 {
    let Some(unit) = pow10(digits) else { return 0 };
    let (quotient, rest) = (value / unit, value % unit);
    if digits > 0 && rest.abs() >= unit / 2 { quotient + value.signum() } else { quotient }
}

/// `None` where the value does not fit.
fn cast(value: i128, from: ValueType, to: DecimalType) -> Result<Option<i128>, Fault> {
    if let Some(from) = DecimalType::of(from) {
        return decimal_to_decimal(value, from, to);
    }
    let double = match from {
        ValueType::Float32 => Some(f64::from(f32::from_bits(value as u32))),
        ValueType::Float64 => Some(f64::from_bits(value as u64)),
        _ => None,
    };
    if let Some(double) = double {
        let scaled = (power_of_ten(to.scale) * double).round();
        let limit = 2f64.powi(127);
        let inside = (-limit..limit).contains(&scaled);
        return Ok(inside.then_some(scaled as i128).filter(|v| to.has_digits(*v)));
    }
    if !to.holds(value) {
        return Err(Fault);
    }
    let digits = u32::from(to.scale.unsigned_abs());
    let scaled = if to.scale < 0 { pow10(digits).map(|unit| value / unit) } else { times(to, value, digits) };
    Ok(scaled.filter(|v| to.has_digits(*v)))
}

fn decimal_to_decimal(value: i128, from: DecimalType, to: DecimalType) -> Result<Option<i128>, Fault> {
    let steps = steps(from, to);
    let digits = steps.unsigned_abs();
    let held = |v: i128| to.holds(v).then_some(Some(v)).ok_or(Fault);
    if steps >= 0 && has_room(from, to) {
        let factor = pow10(digits).ok_or(Fault)?;
        return match to.width {
            128 => Ok(Some(value.wrapping_mul(factor))),
            _ => held(value.checked_mul(factor).ok_or(Fault)?),
        };
    }
    if steps < 0 {
        let scaled = if digits > from.max_digits() { 0 } else { rounded(value, digits) };
        if has_room(from, to) {
            return held(scaled);
        }
        return Ok(Some(scaled).filter(|v| to.has_digits(*v)));
    }
    Ok(times(to, value, digits).filter(|v| to.has_digits(*v)))
}

/// `None` where the value does not fit.
fn to_integer(value: i128, from: DecimalType, ty: ValueType) -> Option<i128> {
    let digits = u32::from(from.scale.unsigned_abs());
    let whole = if from.scale < 0 { times(from, value, digits)? } else { value / pow10(digits)? };
    let width = u32::from(type_bits(ty));
    let (min, max) = if is_signed(ty) {
        (-1i128 << (width - 1), (1i128 << (width - 1)) - 1)
    } else {
        (0, (1i128 << width) - 1)
    };
    (min..=max).contains(&whole).then_some(whole)
}
