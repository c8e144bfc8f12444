//! Predicate, expressions and all aggregates of a query in one pass over the rows.

use std::sync::Arc;

use crate::error::GpuResult;
use crate::memory::{DeviceCaps, LaunchScope, ShaderSource};

use super::expr::{Expr, ValueType};
use super::program::{ColumnShape, Program, Segment};

/// Aggregate functions that are exact in integers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AggregateKind {
    /// `count(*)`: rows that pass selection and filter.
    CountRows,
    /// `count(x)`: those whose argument is not NULL.
    Count,
    /// Sum of integers of any type, wrapping at 64 bits.
    SumInt,
    /// Sum of decimals, wrapping at 128 bits.
    SumDecimal,
    /// Exact sum of the integers after each was rounded to a double: the numerator of `avg(CAST(x AS DOUBLE))`.
    SumAsFloat64,
    /// Minimum (integers, dates, booleans, decimals; floats in total order).
    Min,
    /// Maximum, likewise.
    Max,
}

/// One aggregate. A row contributes when selection and filter are true and the argument is not NULL.
#[derive(Debug, Clone)]
pub struct AggregateSpec {
    /// Function.
    pub kind: AggregateKind,
    /// Argument; none for [`AggregateKind::CountRows`].
    pub arg: Option<Arc<Expr>>,
    /// FILTER clause.
    pub filter: Option<Arc<Expr>>,
}

/// Mergeable state of one aggregate.
#[derive(Debug, Clone, PartialEq)]
pub struct AggregateState {
    /// Contributing rows.
    pub count: u64,
    /// Sum, or minimum/maximum in the canonical encoding of a scalar; meaningful when `count > 0`.
    pub value: i128,
}

impl AggregateKind {
    /// State of no rows.
    pub fn init(&self) -> AggregateState {
        AggregateState { count: 0, value: 0 }
    }

    /// Adds the rows of `from` to `into`; `ty` is the argument's type.
    pub fn merge(&self, _ty: ValueType, _into: &mut AggregateState, _from: &AggregateState) {
        todo!()
    }
}

/// Answer for one segment.
#[derive(Debug, Clone, PartialEq)]
pub struct ReduceResult {
    /// One state an aggregate.
    pub states: Vec<AggregateState>,
    /// A live row met an arithmetic fault: the states are void and the CPU decides.
    pub fault: bool,
}

/// Reduces every segment; one result each, in order. All dispatches go in one submission with one wait.
pub async fn reduce(
    _scope: &LaunchScope,
    _program: &Program,
    _aggregates: &[AggregateSpec],
    _segments: &[Segment],
) -> GpuResult<Vec<ReduceResult>> {
    todo!()
}

/// Storage buffers that [`reduce`] binds; compare with `DeviceCaps::max_storage_buffers`.
pub fn reduce_bindings(_program: &Program, _aggregates: &[AggregateSpec], _columns: &[ColumnShape]) -> u32 {
    todo!()
}

/// The shader that [`reduce`] runs. Pure: needs no device.
pub fn reduce_shader(
    _caps: &DeviceCaps,
    _program: &Program,
    _aggregates: &[AggregateSpec],
    _columns: &[ColumnShape],
) -> GpuResult<ShaderSource> {
    todo!()
}
