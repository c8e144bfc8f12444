//! Arrow arrays from device words and from canonical scalars.

use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, NullArray, PrimitiveArray};
use arrow::buffer::{BooleanBuffer, Buffer, NullBuffer, ScalarBuffer};
use arrow::datatypes::{ArrowPrimitiveType, Decimal128Type};

use crate::error::{GpuError, GpuResult};
use crate::kernels::expr::widths::Class;
use crate::kernels::expr::{Scalar, ValueType};
use crate::kernels::native::{Canonical, with_arrow_type};

/// The first `len` bits of little-endian words.
pub(super) fn bits(bytes: Vec<u8>, len: usize) -> GpuResult<BooleanBuffer> {
    if bytes.len() < len.div_ceil(8) {
        return Err(GpuError::Internal(format!("{} bytes for {len} bits", bytes.len())));
    }
    Ok(BooleanBuffer::new(Buffer::from_vec(bytes), 0, len))
}

/// An array of `len` values that a kernel wrote in a register class; narrow types and decimals come from wider words.
pub(crate) fn from_device(
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
    let narrowed = || bytemuck::pod_collect_to_vec::<u8, i32>(bytes).into_iter().map(i128::from);
    match ty {
        ValueType::Boolean => Err(GpuError::Internal("booleans are bit regions".to_owned())),
        ValueType::Null => Ok(Arc::new(NullArray::new(len))),
        ValueType::Int8 | ValueType::Int16 | ValueType::UInt8 | ValueType::UInt16 | ValueType::Float16 => {
            with_arrow_type!(ty, T => array::<T>(ty, narrowed().map(<T as Canonical>::from_canonical).collect(), nulls),
                else => Err(unfit(ty)))
        }
        ValueType::Decimal { precision, scale } => {
            let values: Vec<i128> = match class {
                Class::Wide => bytemuck::pod_collect_to_vec(bytes),
                _ => bytemuck::pod_collect_to_vec::<u8, i64>(bytes).into_iter().map(i128::from).collect(),
            };
            decimals(values, nulls, precision, scale)
        }
        // The register is the native value.
        _ => {
            with_arrow_type!(ty, T => array::<T>(ty, <T as Canonical>::from_bytes(bytes), nulls), else => Err(unfit(ty)))
        }
    }
}

fn unfit(ty: ValueType) -> GpuError {
    GpuError::Internal(format!("{ty:?} has no arrays of fixed width"))
}

fn array<T: ArrowPrimitiveType>(
    ty: ValueType,
    values: Vec<T::Native>,
    nulls: Option<NullBuffer>,
) -> GpuResult<ArrayRef> {
    let array = PrimitiveArray::<T>::try_new(ScalarBuffer::from(values), nulls);
    // Of the same kind by construction: only a zone, or a decimal's precision and scale, are added.
    Ok(Arc::new(array.map_err(|e| GpuError::Internal(e.to_string()))?.with_data_type(ty.to_arrow())))
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
    let nulls = || {
        let nulls = values.iter().map(Option::is_some).collect::<NullBuffer>();
        (nulls.null_count() > 0).then_some(nulls)
    };
    let plain = || values.iter().map(|v| v.unwrap_or(0));
    match ty {
        ValueType::Boolean => Ok(Arc::new(BooleanArray::from_iter(values.iter().map(|v| v.map(|v| v != 0))))),
        ValueType::Null => Ok(Arc::new(NullArray::new(values.len()))),
        ValueType::Decimal { precision, scale } => decimals(plain().collect(), nulls(), precision, scale),
        _ => {
            with_arrow_type!(ty, T => array::<T>(ty, plain().map(<T as Canonical>::from_canonical).collect(), nulls()),
            else => Err(unfit(ty)))
        }
    }
}
