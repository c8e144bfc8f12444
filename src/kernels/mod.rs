//! Typed launch functions over device columns; one file a kernel. Knows Arrow and wgpu, never DataFusion's plans.

pub mod exact;
pub mod expr;
mod launch;
pub(crate) mod native;
pub mod program;
pub mod reduce;
pub mod reference;
pub mod select;
mod shader;
pub mod table;
#[cfg(test)]
pub(crate) mod testkit;

pub use exact::ExactSum;
pub use program::{ColumnShape, Program, Segment};
pub use reduce::{AggregateKind, AggregateSpec, AggregateState, ReduceResult, reduce};
pub use select::{SelectResult, select};
