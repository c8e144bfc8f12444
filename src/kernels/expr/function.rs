//! Functions of the IR, by family. A family is an enum here, its WGSL in a file of the same name, its CPU twin in
//! `reference`, and its lowering in the optimizer.

use std::fmt;

use crate::error::GpuResult;

use super::decimal::DecimalFn;
use super::extreme::ExtremeFn;
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
    /// Over values of any type that compares.
    Extreme(ExtremeFn),
}

impl Function {
    /// Whether a value may meet a fault, for all that is known before the data is.
    pub fn may_fault(self, args: &[ValueType], ty: ValueType) -> bool {
        match self {
            Function::Integer(f) => f.may_fault(args, ty),
            Function::Float(f) => f.may_fault(args, ty),
            Function::Decimal(f) => f.may_fault(args, ty),
            Function::Temporal(f) => f.may_fault(args, ty),
            Function::Extreme(_) => false,
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
            Function::Extreme(f) => f.check(args, ty),
        }
    }
}

/// Named as the Arrow type is.
impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ValueType::Opaque => f.write_str("a type of the host"),
            ty => ty.to_arrow().fmt(f),
        }
    }
}

/// What is said of operands and a result for which a function is not there.
pub(super) fn unknown_types(args: &[ValueType], ty: ValueType) -> String {
    let args: Vec<String> = args.iter().map(ToString::to_string).collect();
    format!("no GPU counterpart for {} as {ty}", args.join(", "))
}

impl Emitter<'_> {
    pub(super) fn call(&mut self, function: Function, args: &[Node], ty: ValueType) -> GpuResult<Node> {
        match function {
            Function::Integer(f) => self.integer_fn(f, args, ty),
            Function::Float(f) => self.float_fn(f, args, ty),
            Function::Decimal(f) => self.decimal_fn(f, args, ty),
            Function::Temporal(f) => self.temporal_fn(f, args, ty),
            Function::Extreme(f) => self.extreme(f, args),
        }
    }
}
