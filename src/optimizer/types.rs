//! Which Arrow type an operator may read or produce in which position.

use std::fmt::Display;

use arrow::datatypes::DataType;

use crate::kernels::expr::ValueType;
pub(crate) use crate::kernels::expr::widths::{is_decimal, is_float, is_integer};
use crate::memory::upload::value_type;

use super::reason::Reason;

/// The device's type for an expression of `data_type`; `expression` is named in the reason.
///
/// # Errors
/// `UnsupportedType` for types that cannot live on the device.
pub(crate) fn device_type(expression: &dyn Display, data_type: &DataType) -> Result<ValueType, Reason> {
    value_type(data_type).ok_or_else(|| Reason::unsupported_type(expression, data_type))
}

/// Width in bits and signedness of an integer type.
pub(crate) fn integer_bits(ty: ValueType) -> Option<(u8, bool)> {
    match ty {
        ValueType::Int8 => Some((8, true)),
        ValueType::Int16 => Some((16, true)),
        ValueType::Int32 => Some((32, true)),
        ValueType::Int64 => Some((64, true)),
        ValueType::UInt8 => Some((8, false)),
        ValueType::UInt16 => Some((16, false)),
        ValueType::UInt32 => Some((32, false)),
        ValueType::UInt64 => Some((64, false)),
        _ => None,
    }
}

/// True when every value of integer type `from` is a value of integer type `to`.
pub(crate) fn holds_all_values(from: ValueType, to: ValueType) -> bool {
    match (integer_bits(from), integer_bits(to)) {
        (Some((from_bits, from_signed)), Some((to_bits, to_signed))) if from_signed == to_signed => {
            from_bits <= to_bits
        }
        (Some((from_bits, false)), Some((to_bits, true))) => from_bits < to_bits,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn widening() {
        assert!(holds_all_values(ValueType::Int8, ValueType::Int64));
        assert!(holds_all_values(ValueType::UInt32, ValueType::Int64));
        assert!(holds_all_values(ValueType::UInt64, ValueType::UInt64));
        assert!(!holds_all_values(ValueType::UInt64, ValueType::Int64));
        assert!(!holds_all_values(ValueType::Int8, ValueType::UInt64));
        assert!(!holds_all_values(ValueType::Int32, ValueType::Int16));
        assert!(!holds_all_values(ValueType::Int32, ValueType::Float64));
    }

    #[test]
    fn strings_do_not_live_on_the_device() {
        let reason = device_type(&"name@0", &DataType::Utf8View).unwrap_err();
        assert_eq!(reason.code(), "UnsupportedType");
        assert_eq!(reason.to_string(), "name@0 is of type Utf8View, which is not supported here");
        let decimal = device_type(&"d", &DataType::Decimal128(15, 2)).unwrap();
        assert_eq!(decimal, ValueType::Decimal { precision: 15, scale: 2 });
    }
}
