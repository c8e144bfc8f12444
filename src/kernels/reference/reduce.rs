//! Twin of the reduction.

use arrow::array::{ArrayRef, BooleanArray};

use crate::kernels::expr::ValueType;
use crate::kernels::program::Program;
use crate::kernels::reduce::{AggregateKind, AggregateSpec, AggregateState, ReduceResult};

/// What the device must answer for one segment of `rows` rows.
pub fn reduce(
    _program: &Program,
    _aggregates: &[AggregateSpec],
    _columns: &[ArrayRef],
    _rows: usize,
) -> ReduceResult {
    todo!()
}

/// Adds an array of argument values to a state: `ty` is the argument's type, `filter` counts where true.
///
/// `array` is `None` for [`AggregateKind::CountRows`]. Arrays of another type than `ty` add nothing.
pub fn update_from_array(
    _kind: AggregateKind,
    _ty: ValueType,
    _state: &mut AggregateState,
    _array: Option<&ArrayRef>,
    _rows: usize,
    _filter: Option<&BooleanArray>,
) {
    todo!()
}
