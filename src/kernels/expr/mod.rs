//! Expressions on the device: the IR, and its translation to WGSL.

mod arith;
mod case;
mod compare;
pub mod dag;
pub mod decimal;
pub mod extreme;
pub mod float;
pub mod function;
pub mod integer;
pub mod ir;
mod load;
pub mod lookup;
mod required;
pub mod search;
pub mod temporal;
pub mod types;
mod wgsl;
pub mod widths;

pub use dag::Interner;
pub use decimal::DecimalFn;
pub use extreme::ExtremeFn;
pub use float::FloatFn;
pub use function::Function;
pub use integer::IntegerFn;
pub use ir::{ArithOp, CompareOp, Expr, Scalar, ValueType, Zone};
pub use temporal::TemporalFn;
pub use wgsl::check;

pub(crate) use arith::sign_extended;
pub(crate) use float::{INVALID_NAN, NAN_BITS_KNOWN};
pub(crate) use load::{element, fetch_index};
pub(crate) use wgsl::{Emitter, Node, PARAM_WORDS, arg_load};
