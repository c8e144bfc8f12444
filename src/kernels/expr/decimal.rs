//! Functions over decimals.

use crate::error::GpuResult;

use super::ir::ValueType;
use super::wgsl::{Emitter, Node};

/// Functions over decimals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DecimalFn {}

impl DecimalFn {
    /// Whether a value may meet a fault, for all that is known before the data is.
    pub fn may_fault(self, _args: &[ValueType], _ty: ValueType) -> bool {
        match self {}
    }

    /// Whether the kernels have the function for these types.
    ///
    /// # Errors
    /// A phrase that names the function and the types.
    pub fn check(self, _args: &[ValueType], _ty: ValueType) -> Result<(), String> {
        match self {}
    }
}

impl Emitter<'_> {
    pub(super) fn decimal_fn(
        &mut self,
        function: DecimalFn,
        _args: &[Node],
        _ty: ValueType,
    ) -> GpuResult<Node> {
        match function {}
    }
}
