//! How wide a value is on the device: register classes, and bounds on magnitudes that choose among exact kernels.
//!
//! A bound of `b` bits says that every value that matters (not NULL, no fault) has |v| < 2^b; 128 says nothing.

use super::ir::ValueType;

/// Bound that says nothing about a 128-bit value.
pub const ANY: u8 = 128;

/// How a value lies in registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Class {
    /// `bool`
    Bool,
    /// `i32`: Int8, Int16, Int32, Date32, Time32, Decimal32
    I32,
    /// `u32`: UInt8, UInt16, UInt32, bits of Float16 and Float32, Null
    U32,
    /// `i64`: Int64, Date64, Time64, timestamps, durations, Decimal64, decimals below 2^63
    I64,
    /// `u64`: UInt64, bits of Float64
    U64,
    /// `vec2<u64>`: any decimal
    Wide,
}

impl Class {
    /// Class of a type's values; decimals by their bound.
    pub fn of(ty: ValueType, bits: u8) -> Class {
        match ty {
            ValueType::Boolean => Class::Bool,
            ValueType::Int8
            | ValueType::Int16
            | ValueType::Int32
            | ValueType::Date32
            | ValueType::Time32(_)
            | ValueType::Decimal32 { .. } => Class::I32,
            ValueType::UInt8
            | ValueType::UInt16
            | ValueType::UInt32
            | ValueType::Float16
            | ValueType::Float32
            | ValueType::Opaque
            | ValueType::Null => Class::U32,
            ValueType::Int64
            | ValueType::Date64
            | ValueType::Time64(_)
            | ValueType::Timestamp { .. }
            | ValueType::Duration(_)
            | ValueType::Decimal64 { .. } => Class::I64,
            ValueType::UInt64 | ValueType::Float64 => Class::U64,
            ValueType::Decimal { .. } => Class::of_bits(bits),
        }
    }

    /// Class of a decimal or a sum with this bound.
    pub fn of_bits(bits: u8) -> Class {
        if bits <= 63 { Class::I64 } else { Class::Wide }
    }

    /// WGSL type.
    pub fn wgsl(self) -> &'static str {
        match self {
            Class::Bool => "bool",
            Class::I32 => "i32",
            Class::U32 => "u32",
            Class::I64 => "i64",
            Class::U64 => "u64",
            Class::Wide => "vec2<u64>",
        }
    }

    /// WGSL zero.
    pub fn zero(self) -> &'static str {
        match self {
            Class::Bool => "false",
            Class::I32 => "0i",
            Class::U32 => "0u",
            Class::I64 => "0li",
            Class::U64 => "0lu",
            Class::Wide => "vec2<u64>(0lu, 0lu)",
        }
    }

    /// 32-bit words of a value in memory; a bool takes one.
    pub fn words(self) -> usize {
        match self {
            Class::Bool | Class::I32 | Class::U32 => 1,
            Class::I64 | Class::U64 => 2,
            Class::Wide => 4,
        }
    }
}

/// Bits of a type's values whatever they are: signed n-bit integers have |MIN| = 2^(n-1) < 2^n. Floats and booleans have
/// no use for a bound.
pub fn type_bits(ty: ValueType) -> u8 {
    match ty {
        ValueType::Boolean | ValueType::Null => 1,
        ValueType::Int8 | ValueType::UInt8 => 8,
        ValueType::Int16 | ValueType::UInt16 | ValueType::Float16 => 16,
        ValueType::Int32
        | ValueType::UInt32
        | ValueType::Date32
        | ValueType::Time32(_)
        | ValueType::Decimal32 { .. }
        | ValueType::Opaque
        | ValueType::Float32 => 32,
        ValueType::Int64
        | ValueType::UInt64
        | ValueType::Date64
        | ValueType::Time64(_)
        | ValueType::Timestamp { .. }
        | ValueType::Duration(_)
        | ValueType::Decimal64 { .. }
        | ValueType::Float64 => 64,
        ValueType::Decimal { .. } => ANY,
    }
}

/// Whether the type is an integer (dates and decimals are not).
pub fn is_integer(ty: ValueType) -> bool {
    is_signed(ty) || is_unsigned(ty)
}

/// Whether the type is a decimal of any width.
pub fn is_decimal(ty: ValueType) -> bool {
    matches!(ty, ValueType::Decimal32 { .. } | ValueType::Decimal64 { .. } | ValueType::Decimal { .. })
}

/// Whether the type is a float that is computed with.
pub fn is_float(ty: ValueType) -> bool {
    matches!(ty, ValueType::Float32 | ValueType::Float64)
}

/// Whether the type is a signed integer.
pub fn is_signed(ty: ValueType) -> bool {
    matches!(ty, ValueType::Int8 | ValueType::Int16 | ValueType::Int32 | ValueType::Int64)
}

/// Whether the type is an unsigned integer.
pub fn is_unsigned(ty: ValueType) -> bool {
    matches!(ty, ValueType::UInt8 | ValueType::UInt16 | ValueType::UInt32 | ValueType::UInt64)
}

/// Rounds a bound up so that few distinct shaders arise, without crossing from one register class to the next.
pub fn round_bits(bits: u8, step: u8) -> u8 {
    let rounded = bits.max(1).div_ceil(step).saturating_mul(step);
    let ceiling = match bits {
        0..=63 => 63,
        64..=127 => 127,
        _ => ANY,
    };
    rounded.min(ceiling)
}

/// Smallest b with |v| < 2^b.
pub fn value_bits(v: i128) -> u8 {
    (128 - v.unsigned_abs().leading_zeros()) as u8
}

/// 10^k where it fits 127 bits.
pub fn pow10(k: u32) -> Option<i128> {
    10i128.checked_pow(k)
}

/// Smallest b with 10^k <= 2^b: multiplying by 10^k adds at most b bits, and values of k digits have at most b.
pub fn pow10_bits(k: u32) -> u8 {
    match pow10(k) {
        Some(p) => (128 - (p - 1).leading_zeros()) as u8,
        None => ANY,
    }
}

/// Largest b with 2^b <= 10^k: values below 2^b have at most k digits.
pub fn digits_bits(k: u32) -> u8 {
    match pow10(k) {
        Some(p) => (127 - p.leading_zeros()) as u8,
        None => ANY,
    }
}

/// Bound of a product.
pub fn mul_bits(a: u8, b: u8) -> u8 {
    (u16::from(a) + u16::from(b)).min(u16::from(ANY)) as u8
}

/// Bound of a sum or difference.
pub fn add_bits(a: u8, b: u8) -> u8 {
    (a.max(b) + 1).min(ANY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_of_ten() {
        assert_eq!(pow10_bits(0), 0);
        assert_eq!(pow10_bits(1), 4);
        assert_eq!(pow10_bits(18), 60);
        assert_eq!(pow10_bits(38), 127);
        assert_eq!(pow10_bits(39), ANY);
        assert_eq!(digits_bits(1), 3);
        assert_eq!(digits_bits(38), 126);
        for k in 1..=38 {
            let p = pow10(k).unwrap_or(0);
            assert!(value_bits(p - 1) <= pow10_bits(k));
            assert!(p >= 1i128 << digits_bits(k));
        }
    }

    #[test]
    fn rounding_keeps_the_register_class() {
        assert_eq!(round_bits(0, 8), 8);
        assert_eq!(round_bits(24, 8), 24);
        assert_eq!(round_bits(25, 8), 32);
        assert_eq!(round_bits(58, 8), 63);
        assert_eq!(round_bits(64, 16), 64);
        assert_eq!(round_bits(121, 16), 127);
        assert_eq!(round_bits(128, 8), 128);
        for bits in 0..=128 {
            assert!(round_bits(bits, 8) >= bits);
            assert_eq!(Class::of_bits(bits), Class::of_bits(round_bits(bits, 8)));
        }
    }

    #[test]
    fn value_magnitudes() {
        assert_eq!(value_bits(0), 0);
        assert_eq!(value_bits(-1), 1);
        assert_eq!(value_bits(255), 8);
        assert_eq!(value_bits(i128::MIN), 128);
        assert_eq!(value_bits(i64::MIN.into()), 64);
    }
}
