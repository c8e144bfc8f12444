//! Functions over integers and booleans.

use crate::kernels::expr::{IntegerFn, Scalar, ValueType};

use super::expr::Fault;

/// The function's value.
///
/// # Errors
/// [`Fault`] where the CPU operator would raise, or might.
pub fn integer(function: IntegerFn, _args: &[(Scalar, ValueType)], _ty: ValueType) -> Result<Scalar, Fault> {
    match function {}
}
