//! Types of values, and their encoding on the host.

use std::sync::Arc;

use arrow::datatypes::{DataType, TimeUnit};

/// Logical type of an expression's value. Decimals carry precision and scale, since both shape arithmetic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ValueType {
    /// One bit a row on the device, `bool` in shaders.
    Boolean,
    /// Signed 8-bit integer; computed in 32 bits and wrapped.
    Int8,
    /// Signed 16-bit integer; computed in 32 bits and wrapped.
    Int16,
    /// Signed 32-bit integer.
    Int32,
    /// Signed 64-bit integer.
    Int64,
    /// Unsigned 8-bit integer; computed in 32 bits and wrapped.
    UInt8,
    /// Unsigned 16-bit integer; computed in 32 bits and wrapped.
    UInt16,
    /// Unsigned 32-bit integer.
    UInt32,
    /// Unsigned 64-bit integer.
    UInt64,
    /// Binary16, handled as bits; in shaders a `u32` below 2^16. Compared and carried, not computed with.
    Float16,
    /// Binary32, handled as bits.
    Float32,
    /// Binary64, handled as bits.
    Float64,
    /// Days since the epoch, 32 bits.
    Date32,
    /// Milliseconds since the epoch, 64 bits; any value, though whole days are meant.
    Date64,
    /// Time of day in seconds or milliseconds, 32 bits.
    Time32(TimeUnit),
    /// Time of day in microseconds or nanoseconds, 64 bits.
    Time64(TimeUnit),
    /// Units since the epoch, 64 bits.
    Timestamp {
        /// Unit.
        unit: TimeUnit,
        /// What the Arrow type says about the zone; never one that shifts the clock.
        zone: Zone,
    },
    /// A span of time, 64 bits.
    Duration(TimeUnit),
    /// Arrow's Decimal32 of a precision (1..=9) and a scale: an `i32` in Arrow and on the device.
    Decimal32 {
        /// Total digits.
        precision: u8,
        /// Digits after the point.
        scale: i8,
    },
    /// Arrow's Decimal64 of a precision (1..=18) and a scale: an `i64` in Arrow and on the device.
    Decimal64 {
        /// Total digits.
        precision: u8,
        /// Digits after the point.
        scale: i8,
    },
    /// Decimal128 of a precision (1..=38) and a scale.
    Decimal {
        /// Total digits.
        precision: u8,
        /// Digits after the point.
        scale: i8,
    },
    /// Any Arrow value of which a kernel sees no more than whether it is NULL and, of a string or binary column, its code
    /// in the batch's dictionary. Never a parameter, and never written out.
    Opaque,
    /// Always NULL: a parameter at most, never a column on the device. Its register is a `u32` that nobody looks at.
    Null,
}

/// How the type of a timestamp names its zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Zone {
    /// Not at all.
    None,
    /// `UTC`
    Utc,
    /// `+00:00`
    Zero,
}

impl Zone {
    /// The zone of an Arrow type; `None` for those that shift the clock and for other spellings.
    pub fn from_arrow(zone: Option<&str>) -> Option<Zone> {
        match zone {
            None => Some(Zone::None),
            Some("UTC") => Some(Zone::Utc),
            Some("+00:00") => Some(Zone::Zero),
            Some(_) => None,
        }
    }

    /// The zone as an Arrow type has it.
    pub fn to_arrow(self) -> Option<Arc<str>> {
        match self {
            Zone::None => None,
            Zone::Utc => Some("UTC".into()),
            Zone::Zero => Some("+00:00".into()),
        }
    }
}

impl ValueType {
    /// The type of an Arrow type that can live on the device, or `None`.
    pub fn from_arrow(data_type: &DataType) -> Option<ValueType> {
        Some(match data_type {
            DataType::Null => ValueType::Null,
            DataType::Boolean => ValueType::Boolean,
            DataType::Int8 => ValueType::Int8,
            DataType::Int16 => ValueType::Int16,
            DataType::Int32 => ValueType::Int32,
            DataType::Int64 => ValueType::Int64,
            DataType::UInt8 => ValueType::UInt8,
            DataType::UInt16 => ValueType::UInt16,
            DataType::UInt32 => ValueType::UInt32,
            DataType::UInt64 => ValueType::UInt64,
            DataType::Float16 => ValueType::Float16,
            DataType::Float32 => ValueType::Float32,
            DataType::Float64 => ValueType::Float64,
            DataType::Date32 => ValueType::Date32,
            DataType::Date64 => ValueType::Date64,
            DataType::Time32(unit) => ValueType::Time32(*unit),
            DataType::Time64(unit) => ValueType::Time64(*unit),
            DataType::Timestamp(unit, zone) => {
                ValueType::Timestamp { unit: *unit, zone: Zone::from_arrow(zone.as_deref())? }
            }
            DataType::Duration(unit) => ValueType::Duration(*unit),
            DataType::Decimal32(precision, scale) => {
                ValueType::Decimal32 { precision: *precision, scale: *scale }
            }
            DataType::Decimal64(precision, scale) => {
                ValueType::Decimal64 { precision: *precision, scale: *scale }
            }
            DataType::Decimal128(precision, scale) => {
                ValueType::Decimal { precision: *precision, scale: *scale }
            }
            _ => return None,
        })
    }

    /// The Arrow type.
    pub fn to_arrow(self) -> DataType {
        match self {
            // The Arrow type stays with the host's column.
            ValueType::Null | ValueType::Opaque => DataType::Null,
            ValueType::Boolean => DataType::Boolean,
            ValueType::Int8 => DataType::Int8,
            ValueType::Int16 => DataType::Int16,
            ValueType::Int32 => DataType::Int32,
            ValueType::Int64 => DataType::Int64,
            ValueType::UInt8 => DataType::UInt8,
            ValueType::UInt16 => DataType::UInt16,
            ValueType::UInt32 => DataType::UInt32,
            ValueType::UInt64 => DataType::UInt64,
            ValueType::Float16 => DataType::Float16,
            ValueType::Float32 => DataType::Float32,
            ValueType::Float64 => DataType::Float64,
            ValueType::Date32 => DataType::Date32,
            ValueType::Date64 => DataType::Date64,
            ValueType::Time32(unit) => DataType::Time32(unit),
            ValueType::Time64(unit) => DataType::Time64(unit),
            ValueType::Timestamp { unit, zone } => DataType::Timestamp(unit, zone.to_arrow()),
            ValueType::Duration(unit) => DataType::Duration(unit),
            ValueType::Decimal32 { precision, scale } => DataType::Decimal32(precision, scale),
            ValueType::Decimal64 { precision, scale } => DataType::Decimal64(precision, scale),
            ValueType::Decimal { precision, scale } => DataType::Decimal128(precision, scale),
        }
    }
}

/// A host-side value in the canonical encoding; `None` is NULL.
pub type Scalar = Option<i128>;
