//! Expressions on the device: the IR, and its translation to WGSL.

mod arith;
mod compare;
pub mod ir;
mod load;
mod wgsl;
pub mod widths;

pub use ir::{ArithOp, CompareOp, Expr, Scalar, ValueType};
pub use wgsl::check;

pub(crate) use arith::sign_extended;
pub(crate) use load::{element, fetch_index};
pub(crate) use wgsl::{Emitter, Node, PARAM_WORDS, arg_load};
