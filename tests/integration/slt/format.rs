//! Query results as text: one spelling for each value, floats to the last bit.

use datafusion::arrow::array::{Array, AsArray, RecordBatch};
use datafusion::arrow::datatypes::{DataType, Decimal128Type, Float32Type, Float64Type};
use datafusion::arrow::error::ArrowError;
use datafusion::arrow::util::display::array_value_to_string;
use sqllogictest::ColumnType;

/// Kind of a column: one letter after `query`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    Boolean,
    Date,
    Decimal,
    Float,
    Integer,
    Text,
    Timestamp,
    Other,
}

const LETTERS: [(char, Kind); 8] = [
    ('B', Kind::Boolean),
    ('D', Kind::Date),
    ('N', Kind::Decimal),
    ('R', Kind::Float),
    ('I', Kind::Integer),
    ('T', Kind::Text),
    ('P', Kind::Timestamp),
    ('?', Kind::Other),
];

impl ColumnType for Kind {
    fn from_char(letter: char) -> Option<Self> {
        LETTERS.iter().find(|(known, _)| *known == letter).map(|(_, kind)| kind.clone())
    }

    fn to_char(&self) -> char {
        LETTERS.iter().find(|(_, kind)| kind == self).map_or('?', |(letter, _)| *letter)
    }
}

/// Kind of an Arrow type.
pub fn kind(data_type: &DataType) -> Kind {
    match data_type {
        DataType::Boolean => Kind::Boolean,
        DataType::Date32 | DataType::Date64 => Kind::Date,
        DataType::Decimal32(..)
        | DataType::Decimal64(..)
        | DataType::Decimal128(..)
        | DataType::Decimal256(..) => Kind::Decimal,
        t if t.is_floating() => Kind::Float,
        t if t.is_integer() => Kind::Integer,
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => Kind::Text,
        DataType::Timestamp(..) => Kind::Timestamp,
        _ => Kind::Other,
    }
}

/// All rows of `batches`, as text.
pub fn rows(batches: &[RecordBatch]) -> Result<Vec<Vec<String>>, ArrowError> {
    let mut rows = vec![];
    for batch in batches {
        for row in 0..batch.num_rows() {
            rows.push(batch.columns().iter().map(|column| cell(column, row)).collect::<Result<_, _>>()?);
        }
    }
    Ok(rows)
}

fn cell(column: &dyn Array, row: usize) -> Result<String, ArrowError> {
    if column.is_null(row) {
        return Ok("NULL".to_string());
    }
    Ok(match column.data_type() {
        DataType::Float32 => {
            let value = column.as_primitive::<Float32Type>().value(row);
            float(
                value.is_nan(),
                value.is_sign_negative(),
                value.to_bits() & 0x007f_ffff == 0x0040_0000,
                format!("{value:?}"),
            )
        }
        DataType::Float64 => {
            let value = column.as_primitive::<Float64Type>().value(row);
            let plain = value.to_bits() & 0x000f_ffff_ffff_ffff == 0x0008_0000_0000_0000;
            float(value.is_nan(), value.is_sign_negative(), plain, format!("{value:?}"))
        }
        DataType::Decimal128(_, scale) => decimal(column.as_primitive::<Decimal128Type>().value(row), *scale),
        _ => match array_value_to_string(column, row)? {
            text if text.is_empty() => "(empty)".to_string(),
            text => text,
        },
    })
}

/// Rust's shortest text that reads back as the same float, and NaN with its sign; `plain` is the usual quiet NaN.
fn float(nan: bool, negative: bool, plain: bool, text: String) -> String {
    match (nan, negative, plain) {
        (false, ..) => text,
        (true, false, true) => "NaN".to_string(),
        (true, true, true) => "-NaN".to_string(),
        (true, _, false) => "NaN(other bits)".to_string(),
    }
}

/// All digits: Arrow's own text drops the last ones of a sum beyond the precision of its type.
fn decimal(value: i128, scale: i8) -> String {
    let places = usize::try_from(scale).unwrap_or(0);
    let digits = format!("{:0>width$}", value.unsigned_abs(), width = places + 1);
    let (whole, fraction) = digits.split_at(digits.len() - places);
    let zeros = "0".repeat(usize::try_from(-i16::from(scale)).unwrap_or(0));
    let sign = if value < 0 { "-" } else { "" };
    let point = if places > 0 { "." } else { "" };
    format!("{sign}{whole}{zeros}{point}{fraction}")
}

#[test]
fn decimals_keep_their_digits() {
    assert_eq!(decimal(-5, 2), "-0.05");
    assert_eq!(decimal(12345, 2), "123.45");
    assert_eq!(decimal(7, 0), "7");
    assert_eq!(decimal(7, -2), "700");
    assert_eq!(decimal(i128::MIN, 0), i128::MIN.to_string());
}

#[test]
fn floats_keep_their_bits() -> Result<(), ArrowError> {
    use datafusion::arrow::array::Float64Array;
    let values =
        [0.0, -0.0, 0.1, 1e300, f64::INFINITY, f64::NAN, -f64::NAN, f64::from_bits(0x7ff8_0000_0000_0001)];
    let array = Float64Array::from(values.to_vec());
    let texts = (0..array.len()).map(|row| cell(&array, row)).collect::<Result<Vec<_>, _>>()?;
    assert_eq!(texts, ["0.0", "-0.0", "0.1", "1e300", "inf", "NaN", "-NaN", "NaN(other bits)"]);
    Ok(())
}
