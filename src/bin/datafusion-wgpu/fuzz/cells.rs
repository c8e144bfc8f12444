//! Cells of arrays as text and as SQL.

use datafusion::arrow::array::{Array, AsArray};
use datafusion::arrow::datatypes::{
    DataType, Date32Type, Date64Type, Decimal32Type, Decimal64Type, Decimal128Type, DurationMicrosecondType,
    DurationMillisecondType, DurationNanosecondType, DurationSecondType, Float16Type, Float32Type,
    Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, Time32MillisecondType, Time32SecondType,
    Time64MicrosecondType, Time64NanosecondType, TimeUnit, TimestampMicrosecondType,
    TimestampMillisecondType, TimestampNanosecondType, TimestampSecondType, UInt8Type, UInt16Type,
    UInt32Type, UInt64Type,
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
        DataType::Date64 => show!(Date64Type),
        DataType::Time32(TimeUnit::Second) => show!(Time32SecondType),
        DataType::Time32(_) => show!(Time32MillisecondType),
        DataType::Time64(TimeUnit::Microsecond) => show!(Time64MicrosecondType),
        DataType::Time64(_) => show!(Time64NanosecondType),
        DataType::Duration(TimeUnit::Second) => show!(DurationSecondType),
        DataType::Duration(TimeUnit::Millisecond) => show!(DurationMillisecondType),
        DataType::Duration(TimeUnit::Microsecond) => show!(DurationMicrosecondType),
        DataType::Duration(TimeUnit::Nanosecond) => show!(DurationNanosecondType),
        DataType::Float16 => format!("{:?}", array.as_primitive::<Float16Type>().value(row).to_f32()),
        DataType::Float32 => format!("{:?}", array.as_primitive::<Float32Type>().value(row)),
        DataType::Float64 => format!("{:?}", array.as_primitive::<Float64Type>().value(row)),
        DataType::Decimal32(..) => array.as_primitive::<Decimal32Type>().value_as_string(row),
        DataType::Decimal64(..) => array.as_primitive::<Decimal64Type>().value_as_string(row),
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
        DataType::FixedSizeBinary(_) => hex(array.as_fixed_size_binary().value(row)),
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

/// The NaN that a cast of 'NaN' gives.
const HALF_NAN: u16 = 0x7e00;

/// The bits of a NaN that is not the one that SQL can write, `CAST('NaN' AS DOUBLE)` or REAL.
pub fn odd_nan(array: &dyn Array, row: usize) -> Option<u64> {
    if array.is_null(row) {
        return None;
    }
    match array.data_type() {
        DataType::Float16 => {
            let value = array.as_primitive::<Float16Type>().value(row);
            (value.is_nan() && value.to_bits() != HALF_NAN).then(|| value.to_bits().into())
        }
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
        Class::Decimal | Class::Half => typed(&text, data_type),
        Class::Date if *data_type == DataType::Date32 => match array_value_to_string(array, row) {
            Ok(date) if date.len() == "2020-02-29".len() => format!("DATE '{date}'"),
            _ => format!("arrow_cast(arrow_cast({text}, 'Int32'), 'Date32')"),
        },
        Class::Date | Class::Time | Class::Timestamp | Class::Duration => {
            format!(
                "arrow_cast(arrow_cast({}, '{}'), '{}')",
                quoted(&text),
                inside(data_type),
                type_name(data_type)
            )
        }
        Class::Text => quoted(&text),
        Class::Binary if matches!(data_type, DataType::FixedSizeBinary(_)) => {
            format!("arrow_cast(X'{text}', '{}')", type_name(data_type))
        }
        Class::Binary => format!("X'{text}'"),
    }
}

/// The integers that a date, a time or a span of time is made of.
pub fn inside(data_type: &DataType) -> &'static str {
    match data_type {
        DataType::Date32 | DataType::Time32(_) => "Int32",
        _ => "Int64",
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
