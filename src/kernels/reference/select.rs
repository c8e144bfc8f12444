//! Twin of filter and projection.

use std::sync::Arc;

use arrow::array::ArrayRef;

use crate::kernels::expr::Expr;
use crate::kernels::program::Program;
use crate::kernels::select::SelectResult;

/// What the device must answer for one segment of `rows` rows.
pub fn select(
    _program: &Program,
    _outputs: &[Arc<Expr>],
    _columns: &[ArrayRef],
    _rows: usize,
) -> SelectResult {
    todo!()
}
