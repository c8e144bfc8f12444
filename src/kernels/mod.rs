//! Typed launch functions over device columns; one file a kernel. Knows Arrow and wgpu, never DataFusion's plans.

pub mod exact;
pub mod expr;
pub mod group_by;
mod launch;
pub(crate) mod native;
pub mod partition;
pub mod program;
pub mod reduce;
pub mod reference;
pub mod select;
mod shader;
pub mod table;
#[cfg(test)]
pub(crate) mod testkit;

pub use exact::ExactSum;
pub use group_by::{GroupBy, GroupHint, GroupKey, GroupResult, group_by};
pub use program::{ColumnShape, Program, Segment};
pub use reduce::{
    AggregateKind, AggregateSpec, AggregateState, FloatWindows, ReduceResult, RowOrder, reduce,
};
pub use select::{SelectResult, select};
pub(crate) use shader::table_copy_bytes;
