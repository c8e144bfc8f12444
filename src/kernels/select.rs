//! Filter and computed projections with the result on the host, rows in order.

use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::buffer::BooleanBuffer;

use crate::error::GpuResult;
use crate::memory::LaunchScope;

use super::expr::Expr;
use super::program::{ColumnShape, Program, Segment};

/// Answer for one segment.
#[derive(Debug, Clone)]
pub struct SelectResult {
    /// Selected rows; `None` when the program has no selection (every row).
    pub mask: Option<BooleanBuffer>,
    /// Number of selected rows.
    pub selected: usize,
    /// Output expressions at the selected rows, in row order, in the expressions' Arrow types.
    pub outputs: Vec<ArrayRef>,
    /// A live row met an arithmetic fault: the rest is void and the CPU decides.
    pub fault: bool,
}

/// Filters every segment and evaluates `outputs` at the rows that remain; one result a segment, in order.
pub async fn select(
    _scope: &LaunchScope,
    _program: &Program,
    _outputs: &[Arc<Expr>],
    _segments: &[Segment],
) -> GpuResult<Vec<SelectResult>> {
    todo!()
}

/// The most storage buffers that one kernel of [`select`] binds; compare with `DeviceCaps::max_storage_buffers`.
pub fn select_bindings(_program: &Program, _outputs: &[Arc<Expr>], _columns: &[ColumnShape]) -> u32 {
    todo!()
}
