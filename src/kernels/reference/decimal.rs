//! Functions over decimals.

use crate::kernels::expr::{DecimalFn, Scalar, ValueType};

use super::expr::Fault;

/// The function's value.
///
/// # Errors
/// [`Fault`] where the CPU operator would raise, or might.
pub fn decimal(function: DecimalFn, _args: &[(Scalar, ValueType)], _ty: ValueType) -> Result<Scalar, Fault> {
    match function {}
}
