//! Expressions on the device: the IR, and its translation to WGSL.

pub mod ir;

pub use ir::{ArithOp, CompareOp, Expr, Scalar, ValueType};
