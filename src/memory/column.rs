//! Columns on the device.

use std::sync::Arc;

use crate::kernels::expr::ValueType;

use super::pool::DeviceBuffer;

/// How a column's values lie in device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ColumnRepr {
    /// Arrow's own fixed-width values (1, 2, 4 or 8 bytes each), little endian.
    Arrow,
    /// Arrow's boolean bitmap, starting at bit 0.
    Bits,
    /// Decimal128 of precision <= 18 as one i64; every non-null value was checked to lie within the precision.
    DecimalNarrow,
    /// Decimal128 as {lo, hi}: 16 bytes, any i128.
    DecimalWide,
    /// Codes of the batch's dictionary, a u32 each; 0 is NULL.
    Codes,
    /// A bitmap from bit 0 that tells which rows are not NULL, and nothing of their values.
    Presence,
}

/// Magnitude of a column's non-null values: every |v| < 2^bits. Bounds only choose among exact kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MagnitudeBits(pub u8);

/// A range of a device buffer.
#[derive(Debug, Clone)]
pub struct BufferSlice {
    /// The buffer; it goes back to its pool when the last slice is dropped.
    pub buffer: Arc<DeviceBuffer>,
    /// First byte; a multiple of the adapter's storage offset alignment.
    pub offset: u64,
    /// Bytes, a multiple of 16, including padding. Padding bytes are undefined.
    pub len: u64,
}

impl BufferSlice {
    /// Bytes to bind: in tests the guard band after it too.
    pub(crate) fn bound_len(&self) -> u64 {
        self.buffer.guard().map_or(self.len, |guard| guard.bound_len(self.offset, self.len))
    }
}

/// One column of one batch on the device.
#[derive(Debug, Clone)]
pub struct DeviceColumn {
    /// Logical type.
    pub ty: ValueType,
    /// Layout of `values`.
    pub repr: ColumnRepr,
    /// Values. Payload under null slots is undefined.
    pub values: BufferSlice,
    /// Validity bitmap from bit 0, one bit a row, set = valid; absent when no row is null. Bits past the last row are 0.
    pub validity: Option<BufferSlice>,
    /// Rows.
    pub rows: usize,
    /// Bound on the magnitudes (decimals and integers), from the values when they were seen at upload, else from the type.
    pub magnitude: MagnitudeBits,
}

/// Look-up tables and lists of one batch on the device, all in one buffer.
#[derive(Debug, Clone, Default)]
pub struct DeviceTables {
    /// The tables' words; absent where no kernel reads any.
    pub words: Option<BufferSlice>,
    /// By table: its first word of flags, and its first word of values. Tables that were not asked for have zeros.
    pub places: Vec<[u32; 2]>,
}
