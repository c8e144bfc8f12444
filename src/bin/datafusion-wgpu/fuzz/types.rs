//! Types of columns, what is known of their values, and the shapes of the tables.

use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, Field, Schema, TimeUnit};

use super::rng::Rng;

/// Types that compare with each other and stand in for each other in generated expressions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// The type of NULL.
    Null,
    /// Booleans.
    Bool,
    /// The eight integer types.
    Int,
    /// Singles and doubles.
    Float,
    /// Floats of 16 bits, which are compared and carried only.
    Half,
    /// Decimals of 32, 64 and 128 bits.
    Decimal,
    /// Days.
    Date,
    /// Times of the day, of any unit.
    Time,
    /// Timestamps of any unit.
    Timestamp,
    /// Spans of time, of any unit.
    Duration,
    /// Strings of any layout.
    Text,
    /// Bytes of any layout.
    Binary,
}

/// The class of a type.
pub fn class(data_type: &DataType) -> Class {
    match data_type {
        DataType::Boolean => Class::Bool,
        DataType::Float32 | DataType::Float64 => Class::Float,
        DataType::Float16 => Class::Half,
        DataType::Decimal32(..) | DataType::Decimal64(..) | DataType::Decimal128(..) => Class::Decimal,
        DataType::Date32 | DataType::Date64 => Class::Date,
        DataType::Time32(_) | DataType::Time64(_) => Class::Time,
        DataType::Duration(_) => Class::Duration,
        DataType::Timestamp(..) => Class::Timestamp,
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View | DataType::Dictionary(..) => Class::Text,
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView | DataType::FixedSizeBinary(_) => {
            Class::Binary
        }
        ty if ty.is_integer() => Class::Int,
        _ => Class::Null,
    }
}

/// What the values of a column are like.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Flavour {
    /// Edges of the type, small values and random ones.
    Edge,
    /// Few distinct values, for keys.
    Small,
    /// Within a million.
    Middle,
    /// Floats k * 2^-10 within 1024: their sums are exact in any order.
    Dyadic,
    /// Dyadic ones with NaNs, infinities and both zeros among them.
    Special,
    /// Finite floats of any mantissa, most near 1 and some of any exponent, down to denormals and up to the largest: their sums round.
    Far,
}

/// A column of a table.
#[derive(Debug, Clone)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// Its type.
    pub data_type: DataType,
    /// Its values.
    pub flavour: Flavour,
    /// Whether it may hold NULL.
    pub nullable: bool,
    /// Some of its values, as literals: comparisons with them meet equal values.
    pub samples: Arc<[String]>,
}

/// A table.
#[derive(Debug, Clone)]
pub struct Table {
    /// Its name.
    pub name: String,
    /// Its columns.
    pub columns: Vec<Column>,
}

impl Table {
    /// Its Arrow schema.
    pub fn schema(&self) -> Schema {
        let field = |column: &Column| Field::new(&column.name, column.data_type.clone(), column.nullable);
        Schema::new(self.columns.iter().map(field).collect::<Vec<_>>())
    }
}

/// The largest magnitude of the values of an integer column; infinite for other types.
pub fn bound(data_type: &DataType, flavour: Flavour) -> f64 {
    let bits = match data_type {
        DataType::Int8 => 7,
        DataType::UInt8 => 8,
        DataType::Int16 => 15,
        DataType::UInt16 => 16,
        DataType::Int32 => 31,
        DataType::UInt32 => 32,
        DataType::Int64 => 63,
        DataType::UInt64 => 64,
        _ => return f64::INFINITY,
    };
    let most = 2f64.powi(bits);
    match flavour {
        Flavour::Small => most.min(64.0),
        Flavour::Middle => most.min(1e6),
        _ => most,
    }
}

/// The decimals that are generated: precision and scale.
const DECIMALS: [(u8, i8); 10] =
    [(5, 5), (9, 2), (12, 2), (15, 4), (18, 0), (18, 6), (19, 3), (30, 10), (38, 0), (38, 10)];

const INTEGERS: [DataType; 8] = [
    DataType::Int8,
    DataType::Int16,
    DataType::Int32,
    DataType::Int64,
    DataType::UInt8,
    DataType::UInt16,
    DataType::UInt32,
    DataType::UInt64,
];

/// A random type of a class.
pub fn random_type(rng: &mut Rng, class: Class) -> DataType {
    match class {
        Class::Null => DataType::Null,
        Class::Bool => DataType::Boolean,
        Class::Int => INTEGERS[rng.below(INTEGERS.len())].clone(),
        Class::Float if rng.chance(40) => DataType::Float32,
        Class::Float => DataType::Float64,
        Class::Half => DataType::Float16,
        Class::Decimal => {
            let (precision, scale) = rng.choose(&DECIMALS);
            match precision {
                ..=9 if rng.chance(35) => DataType::Decimal32(precision, scale),
                ..=18 if rng.chance(35) => DataType::Decimal64(precision, scale),
                _ => DataType::Decimal128(precision, scale),
            }
        }
        Class::Date if rng.chance(20) => DataType::Date64,
        Class::Date => DataType::Date32,
        Class::Time => rng.choose(&TIMES).clone(),
        Class::Timestamp => {
            let unit = random_unit(rng);
            DataType::Timestamp(unit, rng.chance(20).then(|| "+00:00".into()))
        }
        Class::Duration => DataType::Duration(random_unit(rng)),
        Class::Text => match rng.below(6) {
            0 => DataType::Utf8View,
            1 => DataType::LargeUtf8,
            2 | 3 => random_dictionary(rng),
            _ => DataType::Utf8,
        },
        Class::Binary => match rng.below(5) {
            0 => DataType::BinaryView,
            1 => DataType::LargeBinary,
            2 => DataType::FixedSizeBinary(3),
            _ => DataType::Binary,
        },
    }
}

/// Times of the day as Arrow has them.
const TIMES: [&DataType; 4] = [
    &DataType::Time32(TimeUnit::Second),
    &DataType::Time32(TimeUnit::Millisecond),
    &DataType::Time64(TimeUnit::Microsecond),
    &DataType::Time64(TimeUnit::Nanosecond),
];

/// Nanoseconds, which SQL's own types have, more often.
fn random_unit(rng: &mut Rng) -> TimeUnit {
    use TimeUnit::*;
    rng.choose(&[Second, Millisecond, Microsecond, Nanosecond, Nanosecond])
}

/// Keys of 32 bits mostly, or of another width.
fn random_dictionary(rng: &mut Rng) -> DataType {
    let keys = rng.weighted(&[
        (5, &DataType::Int32),
        (1, &DataType::Int8),
        (1, &DataType::UInt8),
        (1, &DataType::Int16),
        (1, &DataType::UInt32),
        (1, &DataType::Int64),
    ]);
    let values = rng.weighted(&[(4, &DataType::Utf8), (1, &DataType::LargeUtf8)]);
    DataType::Dictionary(Box::new(keys.clone()), Box::new(values.clone()))
}

/// Whether columns of the type may hold only so few distinct values that its keys have room for them.
pub fn has_few_values(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Dictionary(keys, _) if matches!(**keys, DataType::Int8 | DataType::UInt8))
}

/// A random flavour for a type.
fn random_flavour(rng: &mut Rng, class: Class) -> Flavour {
    match class {
        Class::Float => rng.weighted(&[
            (4, Flavour::Edge),
            (3, Flavour::Dyadic),
            (2, Flavour::Special),
            (2, Flavour::Far),
        ]),
        Class::Int | Class::Decimal => {
            rng.weighted(&[(4, Flavour::Edge), (3, Flavour::Small), (3, Flavour::Middle)])
        }
        _ => rng.weighted(&[(2, Flavour::Edge), (2, Flavour::Small)]),
    }
}

/// The classes of a table's columns after its key: what runs on the device today is frequent.
const CLASSES: [(u32, Class); 12] = [
    (14, Class::Int),
    (8, Class::Decimal),
    (7, Class::Float),
    (6, Class::Text),
    (5, Class::Date),
    (4, Class::Bool),
    (3, Class::Timestamp),
    (2, Class::Time),
    (2, Class::Binary),
    (1, Class::Half),
    (1, Class::Duration),
    (1, Class::Null),
];

/// Three tables: a large one, a medium one and a small one. Each has a key column `k` of few values, so that they join.
pub fn tables(rng: &mut Rng) -> Vec<Table> {
    let key = rng.choose(&[Class::Int, Class::Int, Class::Int, Class::Text, Class::Date]);
    let sizes = [rng.between(6, 12), rng.between(4, 8), rng.between(2, 5)];
    let table = |(number, columns): (usize, usize)| {
        let mut all = vec![];
        for index in 0..columns {
            let class = if index == 0 { key } else { rng.weighted(&CLASSES) };
            let data_type = random_type(rng, class);
            let mut flavour = if index == 0 { Flavour::Small } else { random_flavour(rng, class) };
            if index == 1 && class == Class::Int {
                flavour = Flavour::Edge;
            }
            if has_few_values(&data_type) {
                flavour = Flavour::Small;
            }
            let nullable = class == Class::Null || rng.chance(85);
            let name = if index == 0 { "k".to_string() } else { format!("c{index}") };
            all.push(Column { name, data_type, flavour, nullable, samples: Arc::default() });
        }
        Table { name: format!("t{number}"), columns: all }
    };
    sizes.into_iter().enumerate().map(table).collect()
}
