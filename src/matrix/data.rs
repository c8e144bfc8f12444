//! Columns of edge values, of any Arrow type.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayData, ArrayRef, BinaryArray, BooleanArray, FixedSizeBinaryArray, ListArray, NullArray,
    StringArray, make_array, new_empty_array,
};
use arrow::buffer::{Buffer, NullBuffer, OffsetBuffer};
use arrow::compute::cast;
use arrow::datatypes::{DataType, TimeUnit};

use crate::kernels::testkit::Rng;

/// Which values a column has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Limits of the type, zeros, values around zero, NaNs.
    Edges,
    /// Small values on which next to nothing overflows or raises.
    Plain,
}

const TEXTS: [&str; 14] =
    ["", "a", "b", "abc", "ABC", "aéc", "b ", " b", "12", "-3.5", "2024-02-29", "true", "a%c", "日本語"];

/// Values as the type's own bits, sign-extended; text by number.
fn values(ty: &DataType, kind: Kind) -> Vec<i128> {
    use DataType::*;
    let plain = kind == Kind::Plain;
    let doubles = |of: &[f64]| of.iter().map(|v| i128::from(v.to_bits())).collect::<Vec<_>>();
    let singles = |of: &[f32]| of.iter().map(|v| i128::from(v.to_bits())).collect::<Vec<_>>();
    match ty {
        Boolean => vec![0, 1],
        ty if ty.is_integer() && plain => vec![1, 2, 3, 5, 7, 12, 40],
        ty if ty.is_integer() => integers(ty),
        Float16 if plain => vec![0x3c00, 0x4100, 0xc200, 0x4500],
        Float16 => vec![0, 0x8000, 0x3c00, 0xbc00, 0x7c00, 0xfc00, 0x7e00, 0xfe01, 0x7d01, 1, 0x7bff],
        Float32 if plain => singles(&[1.0, 2.5, -3.25, 5.75, 0.1, 100.0]),
        Float32 => [0x7fc0_0000u32, 0xffc0_0001, 0x7f80_0001, 1, 0x8000_0001, 0x007f_ffff, 0x4b80_0001]
            .map(i128::from)
            .into_iter()
            .chain(singles(&[
                0.0,
                -0.0,
                f32::INFINITY,
                f32::NEG_INFINITY,
                1.0,
                -1.5,
                f32::MAX,
                f32::MIN,
                0.1,
            ]))
            .collect(),
        Float64 if plain => doubles(&[1.0, 2.5, -3.25, 5.75, 0.1, 100.0]),
        Float64 => [0x7ff8_0000_0000_0000u64, 0xfff8_0000_0000_0001, 0x7ff0_0000_0000_0001, 1, (1 << 63) | 1]
            .map(i128::from)
            .into_iter()
            .chain(doubles(&[0.0, -0.0, f64::INFINITY, f64::NEG_INFINITY, 1.0, -1.5, f64::MAX, f64::MIN]))
            .chain(doubles(&[0.1, 9_007_199_254_740_993.0, 9.3e18, -2_147_483_648.5]))
            .collect(),
        ty if ty.is_decimal() && plain => vec![100, 250, -375, 1, 99_99],
        ty if ty.is_decimal() => decimals(ty),
        Date32 if plain => vec![0, 59, -1, 19_782, 11_016, -25_567],
        Date32 => vec![i32::MIN.into(), -1, 0, 1, i32::MAX.into(), 19_782, -719_529, 95_026_236],
        Time32(unit) | Time64(unit) => {
            let day = 86_400 * per_second(*unit);
            vec![0, 1, day / 2 + 1, day - 1]
        }
        Date64 | Timestamp(..) | Duration(_) => instants(ty, plain),
        Interval(_) => vec![0, 1, 1 << 32, 1 << 64, -1],
        _ => (0..TEXTS.len() as i128).collect(),
    }
}

fn integers(ty: &DataType) -> Vec<i128> {
    let bits = ty.primitive_width().unwrap_or(8) as u32 * 8;
    let (least, most) = match ty.is_signed_integer() {
        true => (-(1i128 << (bits - 1)), (1i128 << (bits - 1)) - 1),
        false => (0, (1i128 << bits) - 1),
    };
    let all = [least, least + 1, -1, 0, 1, 2, 3, 7, 64, 100, 1 << 16, (1 << 53) + 1, 1 << 31, most - 1, most];
    all.into_iter().filter(|v| (least..=most).contains(v)).collect()
}

fn decimals(ty: &DataType) -> Vec<i128> {
    let precision = match ty {
        DataType::Decimal32(p, _) | DataType::Decimal64(p, _) | DataType::Decimal128(p, _) => *p,
        _ => 38,
    };
    let most = 10i128.pow(precision.into()) - 1;
    vec![-most, -150, -50, -1, 0, 1, 49, 50, 150, 12_345, most / 7, most]
}

fn per_second(unit: TimeUnit) -> i128 {
    match unit {
        TimeUnit::Second => 1,
        TimeUnit::Millisecond => 1_000,
        TimeUnit::Microsecond => 1_000_000,
        TimeUnit::Nanosecond => 1_000_000_000,
    }
}

fn instants(ty: &DataType, plain: bool) -> Vec<i128> {
    let unit = match ty {
        DataType::Timestamp(unit, _) | DataType::Duration(unit) => per_second(*unit),
        _ => 1_000,
    };
    let day = 86_400 * unit;
    let mut all = vec![0, day, 19_782 * day + 45_296 * unit, -day, 11_016 * day, -25_567 * day + unit];
    if *ty == DataType::Date64 {
        all.iter_mut().for_each(|v| *v -= v.rem_euclid(day));
    }
    if !plain {
        all.extend([-1, 1, i64::MIN.into(), i64::MAX.into(), i64::MIN as i128 + 1, 1 << 53]);
    }
    all
}

/// The longest list of values of any type: as many rows, squared, hold all pairs.
pub(super) const ROWS: usize = 19 * 19;

/// A column of `rows` rows. `stride` 1 gives each value in turn, more repeats it so often: two columns with strides 1 and n
/// hold all pairs. So many of 100 values are NULL, with another value's payload below. It is a slice of a longer one.
pub(super) fn column(
    ty: &DataType,
    kind: Kind,
    rows: usize,
    second: bool,
    nulls: usize,
    rng: &mut Rng,
) -> ArrayRef {
    const BEFORE: usize = 3;
    let from = values(ty, kind);
    let stride = if second { from.len() } else { 1 };
    let picked: Vec<i128> = (0..rows + BEFORE).map(|row| from[row / stride % from.len()]).collect();
    let valid: Vec<bool> = picked.iter().map(|_| rng.below(100) >= nulls).collect();
    let nulls = (nulls > 0).then(|| NullBuffer::from(valid.clone()));
    array(ty, &picked, nulls).slice(BEFORE, rows)
}

fn array(ty: &DataType, values: &[i128], nulls: Option<NullBuffer>) -> ArrayRef {
    let text = |v: i128| TEXTS[v as usize % TEXTS.len()];
    let texts = || StringArray::new_from(values, text, nulls.clone());
    match ty {
        DataType::Boolean => {
            let bits: arrow::buffer::BooleanBuffer = values.iter().map(|v| *v != 0).collect();
            Arc::new(BooleanArray::new(bits, nulls))
        }
        DataType::Null => Arc::new(NullArray::new(values.len())),
        ty if ty.primitive_width().is_some() => {
            let width = ty.primitive_width().unwrap_or(16);
            let bytes = |v: &i128| {
                let mut bytes = v.to_le_bytes().to_vec();
                bytes.resize(width.max(16), if *v < 0 { 0xff } else { 0 });
                bytes.truncate(width);
                bytes
            };
            let buffer = Buffer::from_vec(values.iter().flat_map(bytes).collect::<Vec<u8>>());
            let data = ArrayData::builder(ty.clone()).len(values.len()).add_buffer(buffer).nulls(nulls);
            make_array(data.align_buffers(true).build().expect("array"))
        }
        DataType::FixedSizeBinary(size) => {
            let padded = |v: &i128| {
                let mut bytes = text(*v).as_bytes().to_vec();
                bytes.resize(*size as usize, 0);
                bytes
            };
            let bytes: Vec<u8> = values.iter().flat_map(padded).collect();
            Arc::new(FixedSizeBinaryArray::try_new(*size, Buffer::from_vec(bytes), nulls).expect("array"))
        }
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView => {
            let binary: BinaryArray = texts().into();
            cast(&binary, ty).expect("cast")
        }
        ty if ty.is_string() || matches!(ty, DataType::Dictionary(..)) => cast(&texts(), ty).expect("cast"),
        DataType::List(field) => {
            let (empty, offsets) =
                (new_empty_array(field.data_type()), OffsetBuffer::new_zeroed(values.len()));
            Arc::new(ListArray::new(Arc::clone(field), offsets, empty, nulls))
        }
        ty => panic!("no values of type {ty}"),
    }
}

trait FromNumbers {
    fn new_from(values: &[i128], text: impl Fn(i128) -> &'static str, nulls: Option<NullBuffer>) -> Self;
}

impl FromNumbers for StringArray {
    fn new_from(values: &[i128], text: impl Fn(i128) -> &'static str, nulls: Option<NullBuffer>) -> Self {
        let array = StringArray::from_iter_values(values.iter().map(|v| text(*v)));
        let (offsets, bytes, _) = array.into_parts();
        StringArray::new(offsets, bytes, nulls)
    }
}

/// Whether both have the same type, the same NULLs, and the same bits where they are not NULL.
pub(super) fn same_bits(left: &ArrayRef, right: &ArrayRef) -> bool {
    left.data_type() == right.data_type() && left.len() == right.len() && left.to_data() == right.to_data()
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::Float64Array;

    #[test]
    fn bits_are_told_apart() {
        let of = |bits: u64| Arc::new(Float64Array::from(vec![Some(f64::from_bits(bits)), None])) as ArrayRef;
        let (nan, other) = (0x7ff8_0000_0000_0000, 0x7ff8_0000_0000_0001);
        assert!(same_bits(&of(nan), &of(nan)));
        assert!(!same_bits(&of(nan), &of(other)));
        assert!(!same_bits(&of(0), &of(1 << 63)));
    }

    #[test]
    fn columns_hold_all_pairs() {
        for ty in super::super::subjects() {
            for kind in [Kind::Edges, Kind::Plain] {
                let count = values(&ty, kind).len();
                assert!(count * count <= ROWS, "{ty} has {count} values");
                let array = column(&ty, kind, ROWS, true, 1, &mut Rng::new(1));
                assert_eq!((array.len(), array.data_type()), (ROWS, &ty));
            }
        }
    }
}
