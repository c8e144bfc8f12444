//! Arrow arrays from device words and from canonical scalars.

use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, PrimitiveArray};
use arrow::buffer::{BooleanBuffer, Buffer, NullBuffer, ScalarBuffer};
use arrow::datatypes::{
    ArrowPrimitiveType, Date32Type, Decimal128Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type,
    Int64Type, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};

use crate::error::{GpuError, GpuResult};
use crate::kernels::expr::widths::Class;
use crate::kernels::expr::{Scalar, ValueType};

/// The first `len` bits of little-endian words.
pub(super) fn bits(bytes: Vec<u8>, len: usize) -> GpuResult<BooleanBuffer> {
    if bytes.len() < len.div_ceil(8) {
        return Err(GpuError::Internal(format!("{} bytes for {len} bits", bytes.len())));
    }
    Ok(BooleanBuffer::new(Buffer::from_vec(bytes), 0, len))
}

/// An array of `len` values that a kernel wrote in a register class; narrow types and decimals come from wider words.
pub(super) fn from_device(
    ty: ValueType,
    class: Class,
    bytes: &[u8],
    len: usize,
    nulls: Option<NullBuffer>,
) -> GpuResult<ArrayRef> {
    let width = class.words() * 4;
    let Some(bytes) = bytes.get(..len * width) else {
        return Err(GpuError::Internal(format!("{} bytes for {len} values of {width}", bytes.len())));
    };
    let words32 = || bytemuck::pod_collect_to_vec::<u8, i32>(bytes);
    Ok(match ty {
        ValueType::Boolean => return Err(GpuError::Internal("booleans are bit regions".to_owned())),
        ValueType::Int8 => array::<Int8Type>(words32().into_iter().map(|v| v as i8).collect(), nulls)?,
        ValueType::Int16 => array::<Int16Type>(words32().into_iter().map(|v| v as i16).collect(), nulls)?,
        ValueType::UInt8 => array::<UInt8Type>(words32().into_iter().map(|v| v as u8).collect(), nulls)?,
        ValueType::UInt16 => array::<UInt16Type>(words32().into_iter().map(|v| v as u16).collect(), nulls)?,
        ValueType::Int32 => array::<Int32Type>(words32(), nulls)?,
        ValueType::Date32 => array::<Date32Type>(words32(), nulls)?,
        ValueType::UInt32 => array::<UInt32Type>(bytemuck::pod_collect_to_vec(bytes), nulls)?,
        ValueType::Float32 => array::<Float32Type>(bytemuck::pod_collect_to_vec(bytes), nulls)?,
        ValueType::Int64 => array::<Int64Type>(bytemuck::pod_collect_to_vec(bytes), nulls)?,
        ValueType::UInt64 => array::<UInt64Type>(bytemuck::pod_collect_to_vec(bytes), nulls)?,
        ValueType::Float64 => array::<Float64Type>(bytemuck::pod_collect_to_vec(bytes), nulls)?,
        ValueType::Decimal { precision, scale } => {
            let values: Vec<i128> = match class {
                Class::Wide => bytemuck::pod_collect_to_vec(bytes),
                _ => bytemuck::pod_collect_to_vec::<u8, i64>(bytes).into_iter().map(i128::from).collect(),
            };
            decimals(values, nulls, precision, scale)?
        }
    })
}

fn array<T: ArrowPrimitiveType>(values: Vec<T::Native>, nulls: Option<NullBuffer>) -> GpuResult<ArrayRef> {
    let array = PrimitiveArray::<T>::try_new(ScalarBuffer::from(values), nulls);
    Ok(Arc::new(array.map_err(|e| GpuError::Internal(e.to_string()))?))
}

fn decimals(values: Vec<i128>, nulls: Option<NullBuffer>, precision: u8, scale: i8) -> GpuResult<ArrayRef> {
    PrimitiveArray::<Decimal128Type>::try_new(ScalarBuffer::from(values), nulls)
        .and_then(|array| array.with_precision_and_scale(precision, scale))
        .map(|array| Arc::new(array) as ArrayRef)
        .map_err(|e| GpuError::Internal(e.to_string()))
}

/// A boolean array from bit regions.
pub(super) fn booleans(values: BooleanBuffer, nulls: Option<NullBuffer>) -> ArrayRef {
    Arc::new(BooleanArray::new(values, nulls))
}

/// An array of canonical scalars.
///
/// # Errors
/// [`GpuError::Internal`] for a decimal type that Arrow does not have.
pub(crate) fn array_of(ty: ValueType, values: &[Scalar]) -> GpuResult<ArrayRef> {
    fn of<T: ArrowPrimitiveType>(values: &[Scalar], native: impl Fn(i128) -> T::Native) -> ArrayRef {
        Arc::new(PrimitiveArray::<T>::from_iter(values.iter().map(|v| v.map(&native))))
    }
    Ok(match ty {
        ValueType::Boolean => Arc::new(BooleanArray::from_iter(values.iter().map(|v| v.map(|v| v != 0)))),
        ValueType::Int8 => of::<Int8Type>(values, |v| v as i8),
        ValueType::Int16 => of::<Int16Type>(values, |v| v as i16),
        ValueType::Int32 => of::<Int32Type>(values, |v| v as i32),
        ValueType::Int64 => of::<Int64Type>(values, |v| v as i64),
        ValueType::UInt8 => of::<UInt8Type>(values, |v| v as u8),
        ValueType::UInt16 => of::<UInt16Type>(values, |v| v as u16),
        ValueType::UInt32 => of::<UInt32Type>(values, |v| v as u32),
        ValueType::UInt64 => of::<UInt64Type>(values, |v| v as u64),
        ValueType::Float32 => of::<Float32Type>(values, |v| f32::from_bits(v as u32)),
        ValueType::Float64 => of::<Float64Type>(values, |v| f64::from_bits(v as u64)),
        ValueType::Date32 => of::<Date32Type>(values, |v| v as i32),
        ValueType::Decimal { precision, scale } => {
            let nulls = values.iter().map(Option::is_some).collect::<NullBuffer>();
            let nulls = (nulls.null_count() > 0).then_some(nulls);
            decimals(values.iter().map(|v| v.unwrap_or(0)).collect(), nulls, precision, scale)?
        }
    })
}
