//! Twin of filter and projection.

use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::buffer::BooleanBuffer;

use crate::error::GpuResult;
use crate::kernels::expr::{Expr, Scalar};
use crate::kernels::program::Program;
use crate::kernels::select::{SelectResult, array_of};

use super::expr::eval;

/// What the device must answer for one segment of `rows` rows.
///
/// # Errors
/// [`crate::error::GpuError::Internal`] for an output of a decimal type that Arrow does not have.
pub fn select(
    program: &Program,
    outputs: &[Arc<Expr>],
    columns: &[ArrayRef],
    rows: usize,
) -> GpuResult<SelectResult> {
    let mut fault = false;
    let mut value = |expr: &Expr, row: usize| {
        let result = eval(expr, &program.params, columns, row);
        fault |= result.is_err();
        result.unwrap_or(None)
    };
    let mask = program
        .selection
        .as_ref()
        .map(|selection| (0..rows).map(|row| value(selection, row) == Some(1)).collect::<BooleanBuffer>());
    let chosen: Vec<usize> = (0..rows).filter(|&row| mask.as_ref().is_none_or(|m| m.value(row))).collect();
    let outputs = outputs
        .iter()
        .map(|expr| {
            let values: Vec<Scalar> = chosen.iter().map(|&row| value(expr, row)).collect();
            array_of(expr.value_type(), &values)
        })
        .collect::<GpuResult<Vec<_>>>()?;
    Ok(SelectResult { mask, selected: chosen.len(), outputs, fault })
}
