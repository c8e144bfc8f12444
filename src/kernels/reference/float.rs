//! Functions over floats, and casts from and to them.

use crate::kernels::expr::{FloatFn, Scalar, ValueType};

use super::expr::Fault;

/// The function's value.
///
/// # Errors
/// [`Fault`] where the CPU operator would raise, or might.
pub fn float(function: FloatFn, _args: &[(Scalar, ValueType)], _ty: ValueType) -> Result<Scalar, Fault> {
    match function {}
}
