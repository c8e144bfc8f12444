//! Cells of arrays as text and as SQL.

use datafusion::arrow::array::{Array, AsArray};
use datafusion::arrow::datatypes::{
    DataType, Date32Type, Decimal128Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type,
    Int64Type, TimeUnit, TimestampMicrosecondType, TimestampMillisecondType, TimestampNanosecondType,
    TimestampSecondType, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use datafusion::arrow::util::display::array_value_to_string;

use super::types::{Class, class};

/// The text of a cell, from which a cast to the array's type gives the same bits, except for a NaN's payload; `None` for NULL.
pub fn cell_text(array: &dyn Array, row: usize) -> Option<String> {
    if array.is_null(row) || *array.data_type() == DataType::Null {
        return None;
    }
    macro_rules! show {
        ($type:ty) => {
            array.as_primitive::<$type>().value(row).to_string()
        };
    }
    Some(match array.data_type() {
        DataType::Boolean => array.as_boolean().value(row).to_string(),
        DataType::Int8 => show!(Int8Type),
        DataType::Int16 => show!(Int16Type),
        DataType::Int32 => show!(Int32Type),
        DataType::Int64 => show!(Int64Type),
        DataType::UInt8 => show!(UInt8Type),
        DataType::UInt16 => show!(UInt16Type),
        DataType::UInt32 => show!(UInt32Type),
        DataType::UInt64 => show!(UInt64Type),
        DataType::Date32 => show!(Date32Type),
        DataType::Float32 => format!("{:?}", array.as_primitive::<Float32Type>().value(row)),
        DataType::Float64 => format!("{:?}", array.as_primitive::<Float64Type>().value(row)),
        DataType::Decimal128(..) => array.as_primitive::<Decimal128Type>().value_as_string(row),
        DataType::Timestamp(TimeUnit::Second, _) => show!(TimestampSecondType),
        DataType::Timestamp(TimeUnit::Millisecond, _) => show!(TimestampMillisecondType),
        DataType::Timestamp(TimeUnit::Microsecond, _) => show!(TimestampMicrosecondType),
        DataType::Timestamp(TimeUnit::Nanosecond, _) => show!(TimestampNanosecondType),
        DataType::Utf8 => array.as_string::<i32>().value(row).to_string(),
        DataType::LargeUtf8 => array.as_string::<i64>().value(row).to_string(),
        DataType::Utf8View => array.as_string_view().value(row).to_string(),
        DataType::Binary => hex(array.as_binary::<i32>().value(row)),
        DataType::LargeBinary => hex(array.as_binary::<i64>().value(row)),
        DataType::BinaryView => hex(array.as_binary_view().value(row)),
        DataType::Dictionary(..) => {
            let dictionary = array.as_any_dictionary();
            let key = dictionary.normalized_keys()[row];
            return cell_text(dictionary.values().as_ref(), key);
        }
        other => format!("a value of type {other}"),
    })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The bits of a NaN that is not the one that SQL can write, `CAST('NaN' AS DOUBLE)` or REAL.
pub fn odd_nan(array: &dyn Array, row: usize) -> Option<u64> {
    if array.is_null(row) {
        return None;
    }
    match array.data_type() {
        DataType::Float32 => {
            let value = array.as_primitive::<Float32Type>().value(row);
            (value.is_nan() && value.to_bits() != f32::NAN.to_bits()).then(|| value.to_bits().into())
        }
        DataType::Float64 => {
            let value = array.as_primitive::<Float64Type>().value(row);
            (value.is_nan() && value.to_bits() != f64::NAN.to_bits()).then(|| value.to_bits())
        }
        _ => None,
    }
}

/// A cell as people read it: NULL, or its text with the bits of odd NaNs.
pub fn show(array: &dyn Array, row: usize) -> String {
    match (cell_text(array, row), odd_nan(array, row)) {
        (None, _) => "NULL".to_string(),
        (Some(text), Some(bits)) => format!("{text}(0x{bits:x})"),
        (Some(text), None) => text,
    }
}

/// A string literal.
pub fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// A cell as a literal of a query; its type may be a wider one than the array's.
pub fn literal(array: &dyn Array, row: usize) -> String {
    let Some(text) = cell_text(array, row) else {
        return "NULL".to_string();
    };
    let data_type = array.data_type();
    match class(data_type) {
        Class::Null => "NULL".to_string(),
        Class::Bool => text.to_uppercase(),
        Class::Int if text.parse::<i64>().is_ok_and(|value| value > i64::MIN) => text,
        Class::Int => typed(&text, data_type),
        Class::Float
            if text.len() < 8 && text.parse::<f64>().is_ok_and(|v| v.is_finite() && v.is_sign_positive()) =>
        {
            text
        }
        Class::Float => format!("CAST('{text}' AS DOUBLE)"),
        Class::Decimal => typed(&text, data_type),
        Class::Date => match array_value_to_string(array, row) {
            Ok(date) if date.len() == "2020-02-29".len() => format!("DATE '{date}'"),
            _ => format!("arrow_cast(arrow_cast({text}, 'Int32'), 'Date32')"),
        },
        Class::Timestamp => format!("arrow_cast({text}, '{}')", type_name(data_type)),
        Class::Text => quoted(&text),
        Class::Binary => format!("X'{text}'"),
    }
}

/// A cast of a string to exactly a type.
fn typed(text: &str, data_type: &DataType) -> String {
    format!("arrow_cast({}, '{}')", quoted(text), type_name(data_type))
}

/// A type as `arrow_cast` reads it.
pub fn type_name(data_type: &DataType) -> String {
    data_type.to_string().replace('\'', "''")
}
