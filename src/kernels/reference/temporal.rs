//! Functions over dates, times, timestamps and durations.

use crate::kernels::expr::{Scalar, TemporalFn, ValueType};

use super::expr::Fault;

/// The function's value.
///
/// # Errors
/// [`Fault`] where the CPU operator would raise, or might.
pub fn temporal(
    function: TemporalFn,
    _args: &[(Scalar, ValueType)],
    _ty: ValueType,
) -> Result<Scalar, Fault> {
    match function {}
}
