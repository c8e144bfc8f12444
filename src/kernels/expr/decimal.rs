//! Functions over decimals, and casts from and to them, with the semantics of Arrow's kernels. All of it is integer work:
//! casts from and to floats compute the same roundings as the double arithmetic that Arrow does.

mod convert;
mod emit;
mod scaled;
#[cfg(test)]
mod tests;

use super::function::unknown_types;
use super::ir::{ArithOp, ValueType};
use super::widths::{is_integer, pow10};

/// Functions over decimals. All are NULL where an operand is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DecimalFn {
    /// Sum, difference or product; faults where Arrow's type is too narrow for a step.
    Arith(ArithOp),
    /// Quotient towards zero, in Arrow's result scale; faults on division by zero and on overflow.
    Divide,
    /// Remainder with the dividend's sign; faults on division by zero and on overflow.
    Remainder,
    /// Unary minus; faults on the minimum.
    Negate,
    /// Cast of a decimal (digits that are lost round half away from zero), an integer or a float. What does not fit
    /// faults, or is NULL when `safe`.
    Cast {
        /// Whether it is TRY_CAST.
        safe: bool,
    },
    /// Cast to an integer, towards zero. What does not fit faults, or is NULL when `safe`.
    ToInteger {
        /// Whether it is TRY_CAST.
        safe: bool,
    },
    /// Cast to a float: the unscaled value as a double, divided by a power of ten, and rounded once more for singles.
    ToFloat,
    /// Absolute value; the minimum stays, as it does in Arrow.
    Absolute,
    /// Largest whole number that is not above; faults beyond the type's precision.
    Floor,
    /// Smallest whole number that is not below; faults beyond the type's precision.
    Ceil,
    /// DataFusion's `round`: how many units the first operand has, half away from zero. The unit is 1 or an even number, of
    /// 128 bits: two operands of type UInt64, the low half first.
    Round {
        /// Whether two more operands are a factor that the number of units is multiplied with; the product is not much greater
        /// than the operand or the unit. Faults where it does not fit.
        scaled: bool,
    },
    /// DataFusion's `trunc`: the multiple of a unit towards zero, 0 for units greater than the operand. The unit lies in operands
    /// as that of `Round` does.
    Truncate,
}

/// A decimal type of Arrow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecimalType {
    /// Bits of Arrow's native type: 32, 64 or 128.
    pub width: u8,
    /// Total digits.
    pub precision: u8,
    /// Digits after the point.
    pub scale: i8,
}

impl DecimalType {
    /// The decimal type, if it is one.
    pub fn of(ty: ValueType) -> Option<DecimalType> {
        match ty {
            ValueType::Decimal32 { precision, scale } => Some(DecimalType { width: 32, precision, scale }),
            ValueType::Decimal64 { precision, scale } => Some(DecimalType { width: 64, precision, scale }),
            ValueType::Decimal { precision, scale } => Some(DecimalType { width: 128, precision, scale }),
            _ => None,
        }
    }

    /// Digits that every value of the native type may have.
    pub fn max_digits(self) -> u32 {
        match self.width {
            32 => 9,
            64 => 18,
            _ => 38,
        }
    }

    /// Whether the native type holds the value.
    pub fn holds(self, value: i128) -> bool {
        let spare = 128 - u32::from(self.width);
        (value << spare) >> spare == value
    }

    /// Whether the declared types leave so much room that Arrow's cast looks at no value.
    pub fn fits(self, to: DecimalType) -> bool {
        let steps = steps(self, to);
        let (p, q) = (i16::from(self.precision), i16::from(to.precision));
        if steps < 0 { p + steps < q } else { p + steps <= q }
    }

    /// Whether the value has at most the declared digits.
    pub fn has_digits(self, value: i128) -> bool {
        pow10(self.precision.into()).is_some_and(|limit| -limit < value && value < limit)
    }
}

/// Powers of ten by which the operands of a division are multiplied first.
pub(crate) fn division_steps(l: DecimalType, r: DecimalType, to: DecimalType) -> (u32, u32) {
    let power = i16::from(to.scale) - i16::from(l.scale) + i16::from(r.scale);
    (power.max(0).unsigned_abs().into(), (-power).max(0).unsigned_abs().into())
}

/// 10^scale as Arrow computes it: at run time, by repeated multiplication of doubles.
pub(crate) fn power_of_ten(scale: i8) -> f64 {
    std::hint::black_box(10f64).powi(std::hint::black_box(i32::from(scale)))
}

/// Powers of ten between an operand's scale and the result's.
pub(crate) fn steps(from: DecimalType, to: DecimalType) -> i16 {
    i16::from(to.scale) - i16::from(from.scale)
}

impl DecimalFn {
    /// Whether a value may meet a fault, for all that is known before the data is.
    pub fn may_fault(self, args: &[ValueType], ty: ValueType) -> bool {
        match self {
            DecimalFn::Cast { safe } => {
                let from = args.first().and_then(|ty| DecimalType::of(*ty));
                DecimalType::of(ty)
                    .is_none_or(|to| to.width < 128 || !(safe || from.is_some_and(|from| from.fits(to))))
            }
            DecimalFn::ToInteger { safe } => !safe,
            DecimalFn::Floor | DecimalFn::Ceil => {
                args.first().and_then(|ty| DecimalType::of(*ty)).is_some_and(|ty| ty.scale > 0)
            }
            DecimalFn::Round { scaled } => scaled,
            DecimalFn::ToFloat | DecimalFn::Absolute | DecimalFn::Truncate => false,
            _ => true,
        }
    }

    /// Whether the kernels have the function for these types.
    ///
    /// # Errors
    /// A phrase that names the function and the types.
    pub fn check(self, args: &[ValueType], ty: ValueType) -> Result<(), String> {
        if matches!(self, DecimalFn::Round { .. } | DecimalFn::Truncate) {
            return self.check_units(args, ty);
        }
        let from: Vec<Option<DecimalType>> = args.iter().map(|arg| DecimalType::of(*arg)).collect();
        let to = DecimalType::of(ty);
        let known = match (self, from.as_slice(), to) {
            (DecimalFn::Arith(op), [Some(l), Some(r)], Some(to)) => arithmetic_known(op, *l, *r, to),
            (DecimalFn::Divide, [Some(l), Some(r)], Some(to)) => {
                let (left, right) = division_steps(*l, *r, to);
                same_width(&[*l, *r, to]) && left.max(right) <= to.max_digits()
            }
            (DecimalFn::Remainder, [Some(l), Some(r)], Some(to)) => {
                let aligned = |from| (0..=to.max_digits().cast_signed()).contains(&steps(from, to).into());
                same_width(&[*l, *r, to]) && to.scale == l.scale.max(r.scale) && aligned(*l) && aligned(*r)
            }
            (DecimalFn::Cast { .. }, [Some(from)], Some(to)) => {
                i32::from(steps(*from, to)) <= to.max_digits().cast_signed()
            }
            (DecimalFn::Cast { .. }, [None], Some(to)) => match args.first() {
                Some(ValueType::Float32 | ValueType::Float64) => true,
                Some(from) => is_integer(*from) && u32::from(to.scale.unsigned_abs()) <= to.max_digits(),
                None => false,
            },
            (DecimalFn::ToInteger { .. }, [Some(from)], None) => {
                is_integer(ty) && u32::from(from.scale.unsigned_abs()) <= from.max_digits()
            }
            (DecimalFn::ToFloat, [Some(_)], None) => matches!(ty, ValueType::Float32 | ValueType::Float64),
            (
                DecimalFn::Negate | DecimalFn::Absolute | DecimalFn::Floor | DecimalFn::Ceil,
                [Some(from)],
                Some(to),
            ) => *from == to,
            _ => false,
        };
        if known { Ok(()) } else { Err(unknown_types(args, ty)) }
    }

    fn check_units(self, args: &[ValueType], ty: ValueType) -> Result<(), String> {
        let halves = if self == (DecimalFn::Round { scaled: true }) { 4 } else { 2 };
        let known = match args {
            [value, numbers @ ..] => {
                let types = (DecimalType::of(*value), DecimalType::of(ty));
                let same = match (self, types) {
                    (DecimalFn::Truncate, (Some(from), Some(to))) => from == to,
                    (_, (Some(from), Some(to))) => from.width == to.width,
                    _ => false,
                };
                same && numbers.len() == halves && numbers.iter().all(|half| *half == ValueType::UInt64)
            }
            [] => false,
        };
        if known { Ok(()) } else { Err(unknown_types(args, ty)) }
    }
}

fn same_width(types: &[DecimalType]) -> bool {
    types.windows(2).all(|pair| pair[0].width == pair[1].width)
}

fn arithmetic_known(op: ArithOp, l: DecimalType, r: DecimalType, to: DecimalType) -> bool {
    let scale = match op {
        ArithOp::Mul => l.scale.checked_add(r.scale),
        _ => Some(l.scale.max(r.scale)),
    };
    let aligned = |from| op == ArithOp::Mul || i32::from(steps(from, to)) <= to.max_digits().cast_signed();
    same_width(&[l, r, to]) && scale == Some(to.scale) && aligned(l) && aligned(r)
}
