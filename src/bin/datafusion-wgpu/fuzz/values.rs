//! Random arrays full of edge values.

use std::sync::Arc;

use datafusion::arrow::array::{
    ArrayRef, ArrowPrimitiveType, BinaryArray, BooleanArray, FixedSizeBinaryArray, NullArray, PrimitiveArray,
    StringArray,
};
use datafusion::arrow::buffer::{BooleanBuffer, Buffer, NullBuffer, ScalarBuffer};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{
    DataType, Date32Type, Date64Type, Decimal32Type, Decimal64Type, Decimal128Type, DurationMicrosecondType,
    DurationMillisecondType, DurationNanosecondType, DurationSecondType, Float16Type, Float32Type,
    Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, Time32MillisecondType, Time32SecondType,
    Time64MicrosecondType, Time64NanosecondType, TimeUnit, TimestampMicrosecondType,
    TimestampMillisecondType, TimestampNanosecondType, TimestampSecondType, UInt8Type, UInt16Type,
    UInt32Type, UInt64Type,
};
use datafusion::error::Result;

use super::rng::Rng;
use super::types::{Class, Flavour, class, has_few_values};

/// How a column is filled.
#[derive(Debug, Clone, Copy)]
pub struct Fill {
    /// NULLs, in percent.
    pub nulls: u32,
    /// Rows that hold one and the same value, in percent.
    pub hot: u32,
}

/// `rows` values of a type. Under NULLs lie values too: nothing may trust them.
pub fn array(
    rng: &mut Rng,
    data_type: &DataType,
    flavour: Flavour,
    fill: Fill,
    rows: usize,
) -> Result<ArrayRef> {
    let valid: Vec<bool> = (0..rows).map(|_| !rng.chance(fill.nulls)).collect();
    let nulls = (fill.nulls > 0).then(|| NullBuffer::from(valid));
    Ok(match class(data_type) {
        Class::Null => Arc::new(NullArray::new(rows)),
        Class::Text => {
            let flavour = if has_few_values(data_type) { Flavour::Small } else { flavour };
            let values = filled(rng, fill, rows, |rng| text(rng, flavour));
            let offsets = StringArray::from_iter_values(values);
            let (offsets, bytes, _) = offsets.into_parts();
            cast(&StringArray::new(offsets, bytes, nulls), data_type)?
        }
        Class::Binary if let DataType::FixedSizeBinary(size) = data_type => {
            let padded = |mut bytes: Vec<u8>| {
                bytes.resize(*size as usize, 0);
                bytes
            };
            let values = filled(rng, fill, rows, |rng| padded(bytes(rng, flavour)));
            Arc::new(FixedSizeBinaryArray::try_new(*size, Buffer::from_vec(values.concat()), nulls)?)
        }
        Class::Binary => {
            let values = filled(rng, fill, rows, |rng| bytes(rng, flavour));
            let (offsets, bytes, _) = BinaryArray::from_iter_values(values).into_parts();
            cast(&BinaryArray::new(offsets, bytes, nulls), data_type)?
        }
        Class::Float => {
            let single = *data_type == DataType::Float32;
            floats(filled(rng, fill, rows, |rng| float_bits(rng, flavour, single)), single, nulls)
        }
        Class::Half => {
            let bits = filled(rng, fill, rows, |rng| half_bits(rng, flavour));
            let values =
                bits.into_iter().map(<Float16Type as ArrowPrimitiveType>::Native::from_bits).collect();
            Arc::new(primitive::<Float16Type>(values, nulls))
        }
        _ => integers(data_type, filled(rng, fill, rows, |rng| integer(rng, data_type, flavour)), nulls)?,
    })
}

fn filled<T: Clone>(rng: &mut Rng, fill: Fill, rows: usize, mut value: impl FnMut(&mut Rng) -> T) -> Vec<T> {
    let hot = value(rng);
    (0..rows).map(|_| if rng.chance(fill.hot) { hot.clone() } else { value(rng) }).collect()
}

fn primitive<T: ArrowPrimitiveType>(values: Vec<T::Native>, nulls: Option<NullBuffer>) -> PrimitiveArray<T> {
    PrimitiveArray::new(ScalarBuffer::from(values), nulls)
}

fn floats(bits: Vec<u64>, single: bool, nulls: Option<NullBuffer>) -> ArrayRef {
    if single {
        let values = bits.into_iter().map(|bits| f32::from_bits(bits as u32)).collect();
        Arc::new(primitive::<Float32Type>(values, nulls))
    } else {
        Arc::new(primitive::<Float64Type>(bits.into_iter().map(f64::from_bits).collect(), nulls))
    }
}

/// Arrays of all types that are integers inside; values wrap into the type.
pub fn integers(data_type: &DataType, values: Vec<i128>, nulls: Option<NullBuffer>) -> Result<ArrayRef> {
    macro_rules! of {
        ($type:ty, $native:ty) => {
            primitive::<$type>(values.into_iter().map(|value| value as $native).collect(), nulls)
        };
    }
    Ok(match data_type {
        DataType::Boolean => {
            let values: BooleanBuffer = values.into_iter().map(|value| value & 1 == 1).collect();
            Arc::new(BooleanArray::new(values, nulls))
        }
        DataType::Int8 => Arc::new(of!(Int8Type, i8)),
        DataType::Int16 => Arc::new(of!(Int16Type, i16)),
        DataType::Int32 => Arc::new(of!(Int32Type, i32)),
        DataType::UInt8 => Arc::new(of!(UInt8Type, u8)),
        DataType::UInt16 => Arc::new(of!(UInt16Type, u16)),
        DataType::UInt32 => Arc::new(of!(UInt32Type, u32)),
        DataType::UInt64 => Arc::new(of!(UInt64Type, u64)),
        DataType::Date32 => Arc::new(of!(Date32Type, i32)),
        DataType::Date64 => Arc::new(of!(Date64Type, i64)),
        DataType::Time32(TimeUnit::Second) => Arc::new(of!(Time32SecondType, i32)),
        DataType::Time32(_) => Arc::new(of!(Time32MillisecondType, i32)),
        DataType::Time64(TimeUnit::Microsecond) => Arc::new(of!(Time64MicrosecondType, i64)),
        DataType::Time64(_) => Arc::new(of!(Time64NanosecondType, i64)),
        DataType::Duration(TimeUnit::Second) => Arc::new(of!(DurationSecondType, i64)),
        DataType::Duration(TimeUnit::Millisecond) => Arc::new(of!(DurationMillisecondType, i64)),
        DataType::Duration(TimeUnit::Microsecond) => Arc::new(of!(DurationMicrosecondType, i64)),
        DataType::Duration(TimeUnit::Nanosecond) => Arc::new(of!(DurationNanosecondType, i64)),
        DataType::Decimal32(precision, scale) => {
            Arc::new(of!(Decimal32Type, i32).with_precision_and_scale(*precision, *scale)?)
        }
        DataType::Decimal64(precision, scale) => {
            Arc::new(of!(Decimal64Type, i64).with_precision_and_scale(*precision, *scale)?)
        }
        DataType::Decimal128(precision, scale) => {
            Arc::new(primitive::<Decimal128Type>(values, nulls).with_precision_and_scale(*precision, *scale)?)
        }
        DataType::Timestamp(unit, zone) => match unit {
            TimeUnit::Second => {
                Arc::new(of!(TimestampSecondType, i64).with_timezone_opt(zone.as_ref().map(Arc::clone)))
            }
            TimeUnit::Millisecond => {
                Arc::new(of!(TimestampMillisecondType, i64).with_timezone_opt(zone.as_ref().map(Arc::clone)))
            }
            TimeUnit::Microsecond => {
                Arc::new(of!(TimestampMicrosecondType, i64).with_timezone_opt(zone.as_ref().map(Arc::clone)))
            }
            TimeUnit::Nanosecond => {
                Arc::new(of!(TimestampNanosecondType, i64).with_timezone_opt(zone.as_ref().map(Arc::clone)))
            }
        },
        _ => Arc::new(of!(Int64Type, i64)),
    })
}

/// The smallest and the largest value of a type that is an integer inside.
fn range(data_type: &DataType) -> (i128, i128) {
    match data_type {
        DataType::Boolean => (0, 1),
        DataType::Int8 => (i8::MIN.into(), i8::MAX.into()),
        DataType::Int16 => (i16::MIN.into(), i16::MAX.into()),
        DataType::Int32 => (i32::MIN.into(), i32::MAX.into()),
        DataType::UInt8 => (0, u8::MAX.into()),
        DataType::UInt16 => (0, u16::MAX.into()),
        DataType::UInt32 => (0, u32::MAX.into()),
        DataType::UInt64 => (0, u64::MAX.into()),
        DataType::Date32 => (i32::MIN.into(), i32::MAX.into()),
        DataType::Time32(unit) | DataType::Time64(unit) => (0, 86_400 * per_second(*unit) - 1),
        DataType::Decimal32(precision, _)
        | DataType::Decimal64(precision, _)
        | DataType::Decimal128(precision, _) => {
            let most = 10i128.pow(u32::from(*precision)) - 1;
            (-most, most)
        }
        DataType::Timestamp(TimeUnit::Second, _) => (-62_135_596_800, 253_402_300_799),
        DataType::Timestamp(TimeUnit::Millisecond, _) => (-62_135_596_800_000, 253_402_300_799_999),
        DataType::Timestamp(TimeUnit::Microsecond, _) => (-62_135_596_800_000_000, 253_402_300_799_999_999),
        _ => (i64::MIN.into(), i64::MAX.into()),
    }
}

/// Ticks of a unit in a second.
fn per_second(unit: TimeUnit) -> i128 {
    match unit {
        TimeUnit::Second => 1,
        TimeUnit::Millisecond => 1_000,
        TimeUnit::Microsecond => 1_000_000,
        TimeUnit::Nanosecond => 1_000_000_000,
    }
}

/// Values around which code goes wrong.
const EDGES: [i128; 19] = [
    0,
    1,
    -1,
    i128::MIN,
    i128::MIN + 1,
    i128::MAX,
    i128::MAX - 1,
    (1 << 53) - 1,
    1 << 53,
    (1 << 53) + 1,
    -(1 << 53) - 1,
    0xffff_ffff,
    0x1_0000_0000,
    0x7fff_ffff,
    0x8000_0000,
    -0x8000_0000,
    0x7fff_ffff_ffff_ffff,
    -0x8000_0000_0000_0000,
    10_000_000_000_000_000_000,
];

/// 1969-12-31, 1970-01-01, leap days, the ends of years, 0001-01-01 and 9999-12-31.
const DAYS: [i128; 10] = [-1, 0, 789, 11_016, 18_321, 18_262, 18_261, -719_162, 2_932_896, -25_509];

fn integer(rng: &mut Rng, data_type: &DataType, flavour: Flavour) -> i128 {
    const DAY: i128 = 86_400_000;
    let (low, high) = range(data_type);
    if *data_type == DataType::Date64 && rng.chance(98) {
        // Days are what it should hold; a time of the day is not forbidden.
        let time = if rng.chance(10) { rng.below(DAY as usize) as i128 } else { 0 };
        return integer(rng, &DataType::Date32, flavour) * DAY + time;
    }
    let value = match (class(data_type), flavour) {
        (Class::Bool, _) => rng.below(2) as i128,
        (Class::Date, Flavour::Small) => 18_261 + rng.below(12) as i128,
        (Class::Date, _) if rng.chance(2) => rng.choose(&[low, high]),
        (Class::Date, _) if rng.chance(50) => rng.choose(&DAYS),
        (Class::Date, _) => rng.below(40_000) as i128 - 20_000,
        (Class::Timestamp, Flavour::Small) => rng.below(8) as i128 * 1_000_000_000,
        (_, Flavour::Small) => rng.below(20) as i128 - if low < 0 { 8 } else { 0 },
        (_, Flavour::Middle) => rng.below(2_000_000) as i128 - if low < 0 { 1_000_000 } else { 0 },
        _ => match rng.below(10) {
            0..=2 => rng.choose(&EDGES),
            3 => i128::from(rng.bits()) << 64 | i128::from(rng.bits()),
            4 => i128::from(rng.bits() as i32),
            5 => i128::from(rng.bits() as i64),
            _ => rng.below(200) as i128 - 100,
        },
    };
    let small = low.checked_neg().is_none_or(|most| most < i128::MAX / 4);
    // What is far outside becomes an edge or wraps inside, half and half.
    if (low..=high).contains(&value) {
        value
    } else if small && rng.chance(50) {
        low + value.rem_euclid(high - low + 1)
    } else {
        value.clamp(low, high)
    }
}

/// Zeros, NaNs of both signs, quiet and signalling, with payloads, infinities, denormals, the largest and neighbours of 2^53.
const DOUBLES: [u64; 20] = [
    0,
    0x8000_0000_0000_0000,
    0x7ff8_0000_0000_0000,
    0xfff8_0000_0000_0000,
    0x7ff8_0000_0000_0001,
    0xfff8_dead_beef_0001,
    0x7ff0_0000_0000_0001,
    0x7ff0_0000_0000_0000,
    0xfff0_0000_0000_0000,
    0x0000_0000_0000_0001,
    0x8000_0000_0000_0001,
    0x000f_ffff_ffff_ffff,
    0x0010_0000_0000_0000,
    0x7fef_ffff_ffff_ffff,
    0xffef_ffff_ffff_ffff,
    0x433f_ffff_ffff_ffff,
    0x4340_0000_0000_0000,
    0x4340_0000_0000_0001,
    0x3fb9_9999_9999_999a,
    0x3ff0_0000_0000_0000,
];

const SINGLES: [u32; 16] = [
    0,
    0x8000_0000,
    0x7fc0_0000,
    0xffc0_0000,
    0x7fc0_0001,
    0xffc0_dead,
    0x7f80_0001,
    0x7f80_0000,
    0xff80_0000,
    1,
    0x8000_0001,
    0x007f_ffff,
    0x0080_0000,
    0x7f7f_ffff,
    0xff7f_ffff,
    0x3dcc_cccd,
];

fn float_bits(rng: &mut Rng, flavour: Flavour, single: bool) -> u64 {
    let bits = |value: f64| if single { u64::from((value as f32).to_bits()) } else { value.to_bits() };
    match flavour {
        // Both zeros often: whether they are equal depends on the operator.
        Flavour::Edge if rng.chance(12) => bits(rng.choose(&[0.0, -0.0])),
        Flavour::Edge => match rng.below(6) {
            0 | 1 if single => u64::from(rng.choose(&SINGLES)),
            0 | 1 => rng.choose(&DOUBLES),
            2 => rng.bits(),
            3 => bits(rng.below(2_000) as f64 / 100.0 - 10.0),
            _ => bits(rng.below(64) as f64 / 4.0 - 8.0),
        },
        Flavour::Special if rng.chance(15) => {
            bits(rng.choose(&[f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.0, 0.0]))
        }
        Flavour::Small => bits(rng.below(8) as f64 / 2.0 - 2.0),
        Flavour::Far => {
            // The exponent field of infinity, and the bits below it.
            let (last, shift) = if single { (0xff, 23) } else { (0x7ff, 52) };
            let field = match rng.below(20) {
                0 | 1 => rng.below(last),
                2 => last - 1 - rng.below(3),
                3 => rng.below(2),
                _ => last / 2 - 12 + rng.below(20),
            };
            let random = rng.bits() >> if single { 32 } else { 0 };
            random & !((last as u64) << shift) | (field as u64) << shift
        }
        _ => bits((rng.below(2 << 20) as f64 - f64::from(1 << 20)) / 1024.0),
    }
}

/// Zeros, NaNs of both signs, infinities, denormals, the largest ones, and some others.
const HALVES: [u16; 16] = [
    0, 0x8000, 0x7e00, 0xfe00, 0x7e01, 0x7d01, 0x7c00, 0xfc00, 1, 0x8001, 0x03ff, 0x0400, 0x7bff, 0xfbff,
    0x3c00, 0x2e66,
];

fn half_bits(rng: &mut Rng, flavour: Flavour) -> u16 {
    match flavour {
        Flavour::Edge if rng.chance(40) => rng.choose(&HALVES),
        Flavour::Edge if rng.chance(20) => rng.bits() as u16,
        // From 1 to 4 in steps, of both signs.
        _ => 0x3c00 + 0x100 * rng.below(8) as u16 + if rng.chance(30) { 0x8000 } else { 0 },
    }
}

/// Empty, non-ASCII, with quotes and wildcards, a prefix of another, longer than the 12 bytes that views hold inline.
const TEXTS: [&str; 18] = [
    "",
    "a",
    "A",
    "ab",
    "abc",
    "b",
    "%",
    "_",
    "a_c",
    "'",
    "ä",
    "ß",
    "日本語",
    "🦀",
    " ",
    "0",
    "twelve bytes",
    "thirteen byte",
];

fn text(rng: &mut Rng, flavour: Flavour) -> String {
    match flavour {
        Flavour::Small => ["", "a", "b", "ab", "ä", "k5"][rng.below(6)].to_string(),
        _ if rng.chance(60) => rng.choose(&TEXTS).to_string(),
        _ => (0..rng.below(24)).map(|_| rng.choose(&['a', 'b', 'c', 'Z', 'é', '_', '7'])).collect(),
    }
}

fn bytes(rng: &mut Rng, flavour: Flavour) -> Vec<u8> {
    match flavour {
        Flavour::Small => vec![rng.below(3) as u8],
        _ => (0..rng.below(16)).map(|_| rng.choose(&[0, 1, b'a', 0x7f, 0x80, 0xff])).collect(),
    }
}
