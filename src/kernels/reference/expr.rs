//! Row-wise interpreter of the IR over Arrow arrays.

use arrow::array::ArrayRef;

use crate::kernels::expr::{Expr, Scalar, ValueType};

/// An arithmetic fault: the CPU operator would raise an error here, or might.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault;

/// Value of `expr` at `row`; AND/OR evaluate both sides, as the device does.
pub fn eval(
    _expr: &Expr,
    _params: &[(ValueType, Scalar)],
    _columns: &[ArrayRef],
    _row: usize,
) -> Result<Scalar, Fault> {
    todo!()
}
