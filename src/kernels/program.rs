//! What every row kernel shares: a selection, parameters, and the columns it runs over.

use std::sync::Arc;

use crate::memory::column::{ColumnRepr, DeviceColumn, MagnitudeBits};

use super::expr::{Expr, Scalar, ValueType};

/// Predicate and parameters of a row kernel.
#[derive(Debug, Clone, Default)]
pub struct Program {
    /// Rows that count: those for which it is true. `None` selects every row.
    pub selection: Option<Arc<Expr>>,
    /// Values of [`Expr::Param`] by slot. They are data: other values reuse the compiled kernel.
    pub params: Vec<(ValueType, Scalar)>,
}

/// One batch on the device.
#[derive(Debug, Clone)]
pub struct Segment {
    /// Columns by source index ([`Expr::Column`]); `None` where a column was not uploaded.
    pub columns: Vec<Option<DeviceColumn>>,
    /// Rows.
    pub rows: usize,
}

/// What a generated shader depends on of a column: everything but the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ColumnShape {
    /// Source column index.
    pub index: usize,
    /// Logical type.
    pub ty: ValueType,
    /// Layout of the values.
    pub repr: ColumnRepr,
    /// Whether there is a validity bitmap.
    pub nullable: bool,
    /// Bound on the magnitudes.
    pub magnitude: MagnitudeBits,
}
