//! How a row of a column is read: which array element holds it, and how its value comes out of that element.

use crate::error::{GpuError, GpuResult};
use crate::kernels::program::ColumnShape;
use crate::memory::column::ColumnRepr;

use super::ir::ValueType;
use super::widths::Class;

/// Element type of the storage array that a column's values are bound as.
pub(crate) fn element(shape: &ColumnShape) -> GpuResult<&'static str> {
    use ValueType::*;
    Ok(match (shape.repr, shape.ty) {
        (ColumnRepr::Bits, Boolean) | (ColumnRepr::Codes | ColumnRepr::Presence, Opaque) => "u32",
        (ColumnRepr::Arrow, Int8 | UInt8 | Int16 | UInt16 | UInt32 | Float16 | Float32) => "u32",
        (ColumnRepr::Arrow, Int32 | Date32 | Time32(_) | Decimal32 { .. }) => "i32",
        (
            ColumnRepr::Arrow,
            Int64 | Date64 | Time64(_) | Timestamp { .. } | Duration(_) | Decimal64 { .. },
        )
        | (ColumnRepr::DecimalNarrow, Decimal { .. }) => "i64",
        (ColumnRepr::Arrow, UInt64 | Float64) => "u64",
        (ColumnRepr::DecimalWide, Decimal { .. }) => "vec2<u64>",
        (repr, ty) => {
            return Err(GpuError::Internal(format!("column {} of {ty:?} lies as {repr:?}", shape.index)));
        }
    })
}

/// Index of the element that holds row `i`.
pub(crate) fn fetch_index(shape: &ColumnShape, i: &str) -> String {
    match shape.ty {
        _ if shape.repr == ColumnRepr::Presence => format!("{i} >> 5u"),
        ValueType::Boolean => format!("{i} >> 5u"),
        ValueType::Int8 | ValueType::UInt8 => format!("{i} >> 2u"),
        ValueType::Int16 | ValueType::UInt16 | ValueType::Float16 => format!("{i} >> 1u"),
        _ => i.to_owned(),
    }
}

/// The value of row `i` from its element `raw`, in the column's register class.
pub(crate) fn decode(shape: &ColumnShape, raw: &str) -> String {
    match shape.ty {
        ValueType::Boolean => format!("(({raw} >> (i & 31u)) & 1u) != 0u"),
        ValueType::Int8 => format!("bitcast<i32>({raw} << (24u - ((i & 3u) << 3u))) >> 24u"),
        ValueType::Int16 => format!("bitcast<i32>({raw} << (16u - ((i & 1u) << 4u))) >> 16u"),
        ValueType::UInt8 => format!("({raw} >> ((i & 3u) << 3u)) & 0xffu"),
        ValueType::UInt16 | ValueType::Float16 => format!("({raw} >> ((i & 1u) << 4u)) & 0xffffu"),
        ValueType::Decimal { .. }
            if shape.repr == ColumnRepr::DecimalWide && Class::of_bits(shape.bits()) == Class::I64 =>
        {
            format!("w_narrow({raw})")
        }
        _ => raw.to_owned(),
    }
}
