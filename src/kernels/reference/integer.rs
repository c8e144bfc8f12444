//! Functions over integers and booleans.

use crate::kernels::expr::widths::type_bits;
use crate::kernels::expr::{IntegerFn, Scalar, ValueType};

use super::expr::{Fault, wrap};

/// The function's value.
///
/// # Errors
/// [`Fault`] where the CPU operator would raise, or might.
pub fn integer(function: IntegerFn, args: &[(Scalar, ValueType)], ty: ValueType) -> Result<Scalar, Fault> {
    match (function, args) {
        (IntegerFn::Convert { safe }, [(Some(value), _)]) => match ty {
            ValueType::Boolean => Ok(Some(i128::from(*value != 0))),
            _ if wrap(ty, *value) == *value => Ok(Some(*value)),
            _ if safe => Ok(None),
            _ => Err(Fault),
        },
        (_, [(Some(value), _)]) => fitting(ty, value.checked_abs()),
        (_, [(Some(a), _), (Some(b), _)]) => binary(function, *a, *b, ty),
        _ => Ok(None),
    }
}

fn binary(function: IntegerFn, a: i128, b: i128, ty: ValueType) -> Result<Scalar, Fault> {
    let count = b.rem_euclid(i128::from(type_bits(ty))) as u32;
    match function {
        IntegerFn::Divide => fitting(ty, a.checked_div(b)),
        IntegerFn::Remainder => fitting(ty, a.checked_rem(b)),
        IntegerFn::Round if b == 0 => Ok(Some(0)),
        // Halves of 1 are none.
        IntegerFn::Round => fitting(ty, Some((a.abs() * 2 + b) / (2 * b) * b * a.signum())),
        IntegerFn::BitAnd => Ok(Some(a & b)),
        IntegerFn::BitOr => Ok(Some(a | b)),
        IntegerFn::BitXor => Ok(Some(a ^ b)),
        IntegerFn::ShiftLeft => Ok(Some(wrap(ty, a << count))),
        IntegerFn::ShiftRight => Ok(Some(a >> count)),
        _ => Err(Fault),
    }
}

/// A result that must be a value of its type.
fn fitting(ty: ValueType, value: Option<i128>) -> Result<Scalar, Fault> {
    let value = value.ok_or(Fault)?;
    if wrap(ty, value) == value { Ok(Some(value)) } else { Err(Fault) }
}
