//! Functions of the IR, by family. A family is an enum here, its WGSL in a file of the same name, its CPU twin in
//! `reference`, and its lowering in the optimizer.

use crate::error::GpuResult;

use super::decimal::DecimalFn;
use super::float::FloatFn;
use super::integer::IntegerFn;
use super::ir::ValueType;
use super::temporal::TemporalFn;
use super::wgsl::{Emitter, Node};

/// A function with the constants that shape its code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Function {
    /// Over integers and booleans.
    Integer(IntegerFn),
    /// Over floats.
    Float(FloatFn),
    /// Over decimals.
    Decimal(DecimalFn),
    /// Over dates, times, timestamps and durations.
    Temporal(TemporalFn),
}

impl Function {
    /// Whether a value may meet a fault, for all that is known before the data is.
    pub fn may_fault(self, args: &[ValueType], ty: ValueType) -> bool {
        match self {
            Function::Integer(f) => f.may_fault(args, ty),
            Function::Float(f) => f.may_fault(args, ty),
            Function::Decimal(f) => f.may_fault(args, ty),
            Function::Temporal(f) => f.may_fault(args, ty),
        }
    }

    /// Whether the kernels have the function for these types.
    ///
    /// # Errors
    /// A phrase that names the function and the types.
    pub fn check(self, args: &[ValueType], ty: ValueType) -> Result<(), String> {
        match self {
            Function::Integer(f) => f.check(args, ty),
            Function::Float(f) => f.check(args, ty),
            Function::Decimal(f) => f.check(args, ty),
            Function::Temporal(f) => f.check(args, ty),
        }
    }
}

impl Emitter<'_> {
    pub(super) fn call(&mut self, function: Function, args: &[Node], ty: ValueType) -> GpuResult<Node> {
        match function {
            Function::Integer(f) => self.integer_fn(f, args, ty),
            Function::Float(f) => self.float_fn(f, args, ty),
            Function::Decimal(f) => self.decimal_fn(f, args, ty),
            Function::Temporal(f) => self.temporal_fn(f, args, ty),
        }
    }
}
