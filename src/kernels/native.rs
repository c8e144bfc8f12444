//! Arrow's native values and the canonical encoding of the IR.

use arrow::datatypes::{
    ArrowPrimitiveType, Date32Type, Date64Type, Decimal32Type, Decimal64Type, Decimal128Type,
    DurationMicrosecondType, DurationMillisecondType, DurationNanosecondType, DurationSecondType,
    Float16Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, Time32MillisecondType,
    Time32SecondType, Time64MicrosecondType, Time64NanosecondType, TimestampMicrosecondType,
    TimestampMillisecondType, TimestampNanosecondType, TimestampSecondType, UInt8Type, UInt16Type,
    UInt32Type, UInt64Type,
};

/// A primitive type of Arrow whose values have a canonical encoding.
pub(crate) trait Canonical: ArrowPrimitiveType {
    /// A value in the canonical encoding.
    fn to_canonical(value: Self::Native) -> i128;
    /// The value of a canonical one; what does not fit is cut off.
    fn from_canonical(value: i128) -> Self::Native;
    /// The values that lie in memory as these bytes.
    fn from_bytes(bytes: &[u8]) -> Vec<Self::Native>;
}

macro_rules! integers {
    ($($arrow:ty),*) => {$(
        impl Canonical for $arrow {
            fn to_canonical(value: Self::Native) -> i128 {
                value as i128
            }
            fn from_canonical(value: i128) -> Self::Native {
                value as Self::Native
            }
            fn from_bytes(bytes: &[u8]) -> Vec<Self::Native> {
                bytemuck::pod_collect_to_vec(bytes)
            }
        }
    )*};
}
integers!(
    Int8Type,
    Int16Type,
    Int32Type,
    Int64Type,
    UInt8Type,
    UInt16Type,
    UInt32Type,
    UInt64Type,
    Date32Type,
    Date64Type,
    Time32SecondType,
    Time32MillisecondType,
    Time64MicrosecondType,
    Time64NanosecondType,
    TimestampSecondType,
    TimestampMillisecondType,
    TimestampMicrosecondType,
    TimestampNanosecondType,
    DurationSecondType,
    DurationMillisecondType,
    DurationMicrosecondType,
    DurationNanosecondType,
    Decimal32Type,
    Decimal64Type,
    Decimal128Type
);

macro_rules! floats {
    ($($arrow:ty as $bits:ty),*) => {$(
        impl Canonical for $arrow {
            fn to_canonical(value: Self::Native) -> i128 {
                i128::from(value.to_bits())
            }
            fn from_canonical(value: i128) -> Self::Native {
                <Self as ArrowPrimitiveType>::Native::from_bits(value as $bits)
            }
            fn from_bytes(bytes: &[u8]) -> Vec<Self::Native> {
                let bits = bytemuck::pod_collect_to_vec::<u8, $bits>(bytes);
                bits.into_iter().map(<Self as ArrowPrimitiveType>::Native::from_bits).collect()
            }
        }
    )*};
}
floats!(Float16Type as u16, Float32Type as u32, Float64Type as u64);

/// `with_arrow_type!(ty, T => one, else => other)`: evaluates `one` with `T` as Arrow's primitive type of a
/// [`ValueType`](crate::kernels::expr::ValueType), or `other` for a type that is not primitive in Arrow.
macro_rules! with_arrow_type {
    ($ty:expr, $T:ident => $body:expr, else => $other:expr) => {{
        use arrow::datatypes as arrow_types;
        use arrow::datatypes::TimeUnit;

        use $crate::kernels::expr::ValueType;
        macro_rules! with {
            ($arrow:ident) => {{
                type $T = arrow_types::$arrow;
                $body
            }};
        }
        match $ty {
            ValueType::Int8 => with!(Int8Type),
            ValueType::Int16 => with!(Int16Type),
            ValueType::Int32 => with!(Int32Type),
            ValueType::Int64 => with!(Int64Type),
            ValueType::UInt8 => with!(UInt8Type),
            ValueType::UInt16 => with!(UInt16Type),
            ValueType::UInt32 => with!(UInt32Type),
            ValueType::UInt64 => with!(UInt64Type),
            ValueType::Float16 => with!(Float16Type),
            ValueType::Float32 => with!(Float32Type),
            ValueType::Float64 => with!(Float64Type),
            ValueType::Date32 => with!(Date32Type),
            ValueType::Date64 => with!(Date64Type),
            ValueType::Time32(TimeUnit::Second) => with!(Time32SecondType),
            ValueType::Time32(TimeUnit::Millisecond) => with!(Time32MillisecondType),
            ValueType::Time64(TimeUnit::Microsecond) => with!(Time64MicrosecondType),
            ValueType::Time64(TimeUnit::Nanosecond) => with!(Time64NanosecondType),
            ValueType::Timestamp { unit: TimeUnit::Second, .. } => with!(TimestampSecondType),
            ValueType::Timestamp { unit: TimeUnit::Millisecond, .. } => with!(TimestampMillisecondType),
            ValueType::Timestamp { unit: TimeUnit::Microsecond, .. } => with!(TimestampMicrosecondType),
            ValueType::Timestamp { unit: TimeUnit::Nanosecond, .. } => with!(TimestampNanosecondType),
            ValueType::Duration(TimeUnit::Second) => with!(DurationSecondType),
            ValueType::Duration(TimeUnit::Millisecond) => with!(DurationMillisecondType),
            ValueType::Duration(TimeUnit::Microsecond) => with!(DurationMicrosecondType),
            ValueType::Duration(TimeUnit::Nanosecond) => with!(DurationNanosecondType),
            ValueType::Decimal32 { .. } => with!(Decimal32Type),
            ValueType::Decimal64 { .. } => with!(Decimal64Type),
            ValueType::Decimal { .. } => with!(Decimal128Type),
            _ => $other,
        }
    }};
}

pub(crate) use with_arrow_type;
