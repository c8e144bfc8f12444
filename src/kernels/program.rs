//! What every row kernel shares: a selection, parameters, and the columns it runs over.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::error::{GpuError, GpuResult};
use crate::memory::column::{ColumnRepr, DeviceColumn, DeviceTables, MagnitudeBits};

use super::expr::widths::{pow10_bits, round_bits, type_bits};
use super::expr::{Expr, Scalar, ValueType};

/// Rows that one segment may have; linear row numbers, and a step past the last, are 32-bit on the device.
pub const MAX_ROWS: usize = (1 << 31) - (1 << 22);

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
    /// Tables of [`Expr::Lookup`] and [`Expr::InSorted`].
    pub tables: DeviceTables,
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
    /// Whether there is a validity bitmap (in any segment: others bind a word of ones).
    pub nullable: bool,
    /// Bound on the magnitudes, rounded up so that few distinct shaders arise.
    pub magnitude: MagnitudeBits,
    /// Whether the kernel's columns lie in one buffer, since the adapter binds too few; for all of them or none.
    pub packed: bool,
}

impl ColumnShape {
    /// Shape of one device column.
    pub fn of(index: usize, column: &DeviceColumn) -> Self {
        let mut shape = ColumnShape {
            index,
            ty: column.ty,
            repr: column.repr,
            nullable: column.validity.is_some(),
            magnitude: column.magnitude,
            packed: false,
        };
        shape.magnitude = MagnitudeBits(shape.bits());
        shape
    }

    /// Device bytes of the column, its validity included, for so many rows.
    pub fn bytes(&self, rows: usize) -> u64 {
        let bits = match self.repr {
            ColumnRepr::Bits | ColumnRepr::Presence => 1,
            ColumnRepr::Codes => 32,
            ColumnRepr::DecimalNarrow => 64,
            ColumnRepr::DecimalWide => 128,
            ColumnRepr::Arrow => u64::from(type_bits(self.ty)),
        };
        let padded = |bits: u64| (rows as u64).saturating_mul(bits).div_ceil(8).next_multiple_of(16).max(16);
        padded(bits).saturating_add(if self.nullable { padded(1) } else { 0 })
    }

    /// The bound in use: never above the type's own, and not below 16 bits, which cost no more than fewer.
    pub fn bits(&self) -> u8 {
        let limit = match self.repr {
            // Every value was checked to have at most 18 digits.
            ColumnRepr::DecimalNarrow => pow10_bits(18),
            _ => type_bits(self.ty),
        };
        round_bits(self.magnitude.0.max(16), 8).min(limit)
    }

    fn unify(&mut self, other: &ColumnShape) -> GpuResult<()> {
        if (self.ty, self.repr) != (other.ty, other.repr) {
            return Err(GpuError::Internal(format!(
                "column {} is {:?} as {:?} in one segment and {:?} as {:?} in another",
                self.index, self.ty, self.repr, other.ty, other.repr
            )));
        }
        self.nullable |= other.nullable;
        self.magnitude = self.magnitude.max(other.magnitude);
        Ok(())
    }
}

/// Columns that the expressions read.
pub fn columns_of<'a>(exprs: impl IntoIterator<Item = &'a Arc<Expr>>) -> BTreeSet<usize> {
    let mut columns = BTreeSet::new();
    for expr in exprs {
        expr.collect_columns(&mut columns);
    }
    columns
}

/// Tables that the expressions read, each with the source column whose codes index it; lists have none.
pub fn tables_of<'a>(exprs: impl IntoIterator<Item = &'a Arc<Expr>>) -> BTreeMap<usize, Option<usize>> {
    let mut tables = BTreeMap::new();
    for expr in exprs {
        expr.collect_tables(&mut tables);
    }
    tables
}

/// Holds that every segment has the tables that the expressions read.
///
/// # Errors
/// [`GpuError::Internal`] for one that lacks some.
pub(crate) fn check_tables<'a, 'b>(
    exprs: impl IntoIterator<Item = &'a Arc<Expr>>,
    segments: impl IntoIterator<Item = &'b Segment>,
) -> GpuResult<()> {
    let Some(last) = tables_of(exprs).last_key_value().map(|(table, _)| *table) else { return Ok(()) };
    let complete = |segment: &Segment| segment.tables.words.is_some() && segment.tables.places.len() > last;
    if segments.into_iter().filter(|segment| segment.rows > 0).all(complete) {
        return Ok(());
    }
    Err(GpuError::Internal(format!("table {last} is not on the device")))
}

/// One shape for each of `columns` that fits all non-empty segments, so that they share one kernel.
///
/// # Errors
/// [`GpuError::Limit`] for a segment of too many rows, [`GpuError::Internal`] for a column that is missing, too short,
/// or of different layouts.
pub fn column_shapes<'a>(
    columns: &BTreeSet<usize>,
    segments: impl IntoIterator<Item = &'a Segment>,
) -> GpuResult<Vec<ColumnShape>> {
    let mut shapes: Vec<ColumnShape> = Vec::with_capacity(columns.len());
    for (number, segment) in segments.into_iter().filter(|s| s.rows > 0).enumerate() {
        if segment.rows > MAX_ROWS {
            let (need, limit) = (segment.rows as u64, MAX_ROWS as u64);
            return Err(GpuError::Limit { what: "rows of one segment", need, limit, by_rows: true });
        }
        for (at, &index) in columns.iter().enumerate() {
            let column = segment.column(index)?;
            let shape = ColumnShape::of(index, column);
            if number == 0 {
                shapes.push(shape);
            } else {
                shapes[at].unify(&shape)?;
            }
        }
    }
    Ok(shapes)
}

impl Segment {
    /// The column of a source index.
    ///
    /// # Errors
    /// [`GpuError::Internal`] when it was not uploaded or has fewer rows than the segment.
    pub fn column(&self, index: usize) -> GpuResult<&DeviceColumn> {
        match self.columns.get(index) {
            Some(Some(column)) if column.rows >= self.rows => Ok(column),
            Some(Some(column)) => {
                Err(GpuError::Internal(format!("column {index} has {} of {} rows", column.rows, self.rows)))
            }
            _ => Err(GpuError::Internal(format!("column {index} is not on the device"))),
        }
    }
}
