//! DataFusion's `ScalarValue` and the kernels' canonical encoding.

use arrow::datatypes::{Float16Type, TimeUnit};
use datafusion::common::ScalarValue;

use crate::kernels::expr::{Scalar, ValueType, Zone};
use crate::kernels::native::Canonical;

/// The canonical encoding of `value`, or `None` when it is not of type `ty`. An untyped NULL fits every type.
pub(crate) fn to_scalar(value: &ScalarValue, ty: ValueType) -> Option<Scalar> {
    use ScalarValue as S;
    use ValueType as T;
    let scalar = match (value, ty) {
        (S::Null, _) => None,
        (S::Boolean(v), T::Boolean) => v.map(i128::from),
        (S::Int8(v), T::Int8) => v.map(i128::from),
        (S::Int16(v), T::Int16) => v.map(i128::from),
        (S::Int32(v), T::Int32) | (S::Date32(v), T::Date32) => v.map(i128::from),
        (S::Int64(v), T::Int64) | (S::Date64(v), T::Date64) => v.map(i128::from),
        (S::UInt8(v), T::UInt8) => v.map(i128::from),
        (S::UInt16(v), T::UInt16) => v.map(i128::from),
        (S::UInt32(v), T::UInt32) => v.map(i128::from),
        (S::UInt64(v), T::UInt64) => v.map(i128::from),
        (S::Float16(v), T::Float16) => v.map(|v| i128::from(v.to_bits())),
        (S::Float32(v), T::Float32) => v.map(|v| i128::from(v.to_bits())),
        (S::Float64(v), T::Float64) => v.map(|v| i128::from(v.to_bits())),
        (S::Time32Second(v), T::Time32(TimeUnit::Second))
        | (S::Time32Millisecond(v), T::Time32(TimeUnit::Millisecond)) => v.map(i128::from),
        (S::Time64Microsecond(v), T::Time64(TimeUnit::Microsecond))
        | (S::Time64Nanosecond(v), T::Time64(TimeUnit::Nanosecond))
        | (S::DurationSecond(v), T::Duration(TimeUnit::Second))
        | (S::DurationMillisecond(v), T::Duration(TimeUnit::Millisecond))
        | (S::DurationMicrosecond(v), T::Duration(TimeUnit::Microsecond))
        | (S::DurationNanosecond(v), T::Duration(TimeUnit::Nanosecond)) => v.map(i128::from),
        (S::TimestampSecond(v, z), T::Timestamp { unit: TimeUnit::Second, zone })
        | (S::TimestampMillisecond(v, z), T::Timestamp { unit: TimeUnit::Millisecond, zone })
        | (S::TimestampMicrosecond(v, z), T::Timestamp { unit: TimeUnit::Microsecond, zone })
        | (S::TimestampNanosecond(v, z), T::Timestamp { unit: TimeUnit::Nanosecond, zone })
            if Zone::from_arrow(z.as_deref()) == Some(zone) =>
        {
            v.map(i128::from)
        }
        (S::Decimal32(v, _, s), T::Decimal32 { scale, .. }) if *s == scale => v.map(i128::from),
        (S::Decimal64(v, _, s), T::Decimal64 { scale, .. }) if *s == scale => v.map(i128::from),
        (S::Decimal128(v, _, s), T::Decimal { scale, .. }) if *s == scale => *v,
        _ => return None,
    };
    Some(scalar)
}

/// The `ScalarValue` of type `ty` for a canonical value. Bits that do not fit the type are cut off, as wrapping sums want.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the canonical encoding holds each type in its low bits"
)]
pub(crate) fn from_scalar(scalar: Scalar, ty: ValueType) -> ScalarValue {
    use ScalarValue as S;
    match ty {
        ValueType::Boolean => S::Boolean(scalar.map(|v| v != 0)),
        ValueType::Int8 => S::Int8(scalar.map(|v| v as i8)),
        ValueType::Int16 => S::Int16(scalar.map(|v| v as i16)),
        ValueType::Int32 => S::Int32(scalar.map(|v| v as i32)),
        ValueType::Int64 => S::Int64(scalar.map(|v| v as i64)),
        ValueType::UInt8 => S::UInt8(scalar.map(|v| v as u8)),
        ValueType::UInt16 => S::UInt16(scalar.map(|v| v as u16)),
        ValueType::UInt32 => S::UInt32(scalar.map(|v| v as u32)),
        ValueType::UInt64 => S::UInt64(scalar.map(|v| v as u64)),
        ValueType::Float32 => S::Float32(scalar.map(|v| f32::from_bits(v as u32))),
        ValueType::Float64 => S::Float64(scalar.map(|v| f64::from_bits(v as u64))),
        ValueType::Float16 => match scalar {
            Some(bits) => S::Float16(Some(Float16Type::from_canonical(bits))),
            None => S::Float16(None),
        },
        ValueType::Date32 => S::Date32(scalar.map(|v| v as i32)),
        ValueType::Date64 => S::Date64(scalar.map(|v| v as i64)),
        ValueType::Time32(TimeUnit::Second) => S::Time32Second(scalar.map(|v| v as i32)),
        ValueType::Time32(_) => S::Time32Millisecond(scalar.map(|v| v as i32)),
        ValueType::Time64(TimeUnit::Microsecond) => S::Time64Microsecond(scalar.map(|v| v as i64)),
        ValueType::Time64(_) => S::Time64Nanosecond(scalar.map(|v| v as i64)),
        ValueType::Timestamp { unit, zone } => {
            let (value, zone) = (scalar.map(|v| v as i64), zone.to_arrow());
            match unit {
                TimeUnit::Second => S::TimestampSecond(value, zone),
                TimeUnit::Millisecond => S::TimestampMillisecond(value, zone),
                TimeUnit::Microsecond => S::TimestampMicrosecond(value, zone),
                TimeUnit::Nanosecond => S::TimestampNanosecond(value, zone),
            }
        }
        ValueType::Duration(unit) => {
            let value = scalar.map(|v| v as i64);
            match unit {
                TimeUnit::Second => S::DurationSecond(value),
                TimeUnit::Millisecond => S::DurationMillisecond(value),
                TimeUnit::Microsecond => S::DurationMicrosecond(value),
                TimeUnit::Nanosecond => S::DurationNanosecond(value),
            }
        }
        ValueType::Decimal32 { precision, scale } => S::Decimal32(scalar.map(|v| v as i32), precision, scale),
        ValueType::Decimal64 { precision, scale } => S::Decimal64(scalar.map(|v| v as i64), precision, scale),
        // An opaque value has no scalar.
        ValueType::Null | ValueType::Opaque => S::Null,
        ValueType::Decimal { precision, scale } => S::Decimal128(scalar, precision, scale),
    }
}
