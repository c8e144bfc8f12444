//! Twin of the reduction.

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, PrimitiveArray};
use arrow::datatypes::DataType;

use crate::error::{GpuError, GpuResult};
use crate::kernels::expr::ValueType;
use crate::kernels::native::{Canonical, with_arrow_type};
use crate::kernels::program::Program;
use crate::kernels::reduce::{AggregateKind, AggregateSpec, AggregateState, ReduceResult, wrap64};

use super::expr::{Fault, eval};

/// What the device must answer for one segment of `rows` rows.
pub fn reduce(
    program: &Program,
    aggregates: &[AggregateSpec],
    columns: &[ArrayRef],
    rows: usize,
) -> ReduceResult {
    let mut states: Vec<AggregateState> = aggregates.iter().map(|spec| spec.kind.init()).collect();
    let mut fault = false;
    for row in 0..rows {
        fault |= reduce_row(program, aggregates, columns, row, &mut states).is_err();
    }
    ReduceResult { states, fault }
}

pub(super) fn reduce_row(
    program: &Program,
    aggregates: &[AggregateSpec],
    columns: &[ArrayRef],
    row: usize,
    states: &mut [AggregateState],
) -> Result<(), Fault> {
    let value = |expr| eval(expr, &program.params, columns, row);
    if let Some(selection) = &program.selection
        && value(selection)? != Some(1)
    {
        return Ok(());
    }
    let mut result = Ok(());
    for (spec, state) in aggregates.iter().zip(states) {
        let mut one = || {
            if let Some(filter) = &spec.filter
                && value(filter)? != Some(1)
            {
                return Ok(());
            }
            match &spec.arg {
                Some(arg) if matches!(spec.kind, AggregateKind::FirstRow(_)) => {
                    value(arg)?;
                    state.count += 1;
                }
                Some(arg) if spec.kind != AggregateKind::CountRows => {
                    if let Some(v) = value(arg)? {
                        update(spec.kind, arg.value_type(), state, v);
                    }
                }
                _ => state.count += 1,
            }
            Ok(())
        };
        result = result.and(one());
    }
    result
}

/// Adds one non-NULL value.
fn update(kind: AggregateKind, ty: ValueType, state: &mut AggregateState, value: i128) {
    let value = match kind {
        AggregateKind::CountRows | AggregateKind::Count | AggregateKind::FirstRow(_) => 0,
        AggregateKind::SumFloat => {
            state.count += 1;
            match ty {
                ValueType::Float32 => state.exact.add_f32(f32::from_bits(value as u32)),
                _ => state.exact.add_f64(f64::from_bits(value as u64)),
            }
            return;
        }
        AggregateKind::SumInt => wrap64(ty, value),
        // Casts of integers to floats round to nearest, ties to even; the result is an integer below 2^65.
        AggregateKind::SumAsFloat64 => value as f64 as i128,
        AggregateKind::SumDecimal
        | AggregateKind::Min
        | AggregateKind::Max
        | AggregateKind::BitAnd
        | AggregateKind::BitOr
        | AggregateKind::BitXor => value,
    };
    kind.merge(ty, state, &AggregateState::new(1, value));
}

/// Adds an array of argument values to a state: `ty` is the argument's type, `filter` counts where true.
///
/// `array` is `None` for [`AggregateKind::CountRows`]. [`AggregateKind::Count`] takes arrays of any type.
///
/// # Errors
/// [`GpuError::Internal`] when the array is missing or not of type `ty`.
pub fn update_from_array(
    kind: AggregateKind,
    ty: ValueType,
    state: &mut AggregateState,
    array: Option<&ArrayRef>,
    rows: usize,
    filter: Option<&BooleanArray>,
) -> GpuResult<()> {
    let passes = |row: usize| filter.is_none_or(|f| row < f.len() && f.is_valid(row) && f.value(row));
    let array = match (kind, array) {
        (AggregateKind::CountRows, _) => {
            state.count += (0..rows).filter(|&row| passes(row)).count() as u64;
            return Ok(());
        }
        (_, Some(array)) => array,
        (_, None) => return Err(GpuError::Internal(format!("{kind:?} without an argument"))),
    };
    let rows = rows.min(array.len());
    if kind == AggregateKind::Count {
        let nulls = array.logical_nulls();
        let valid = |row: usize| nulls.as_ref().is_none_or(|n| n.is_valid(row));
        state.count += (0..rows).filter(|&row| passes(row) && valid(row)).count() as u64;
        return Ok(());
    }
    let mut add = |row: usize, value: i128| {
        if passes(row) {
            update(kind, ty, state, value);
        }
    };
    let unfit = |found: &DataType| GpuError::Internal(format!("{kind:?} of {ty:?} over {found}"));
    match (ty, array.data_type()) {
        (ValueType::Boolean, DataType::Boolean) => {
            let array = array.as_boolean();
            for row in (0..rows).filter(|&row| array.is_valid(row)) {
                add(row, array.value(row).into());
            }
        }
        (_, found) if same_kind(ty, found) => {
            with_arrow_type!(ty, T => each::<T>(array, rows, &mut add), else => return Err(unfit(found)));
        }
        (_, found) => return Err(unfit(found)),
    }
    Ok(())
}

/// Whether arrays of `found` hold the values of `ty`; sums of decimals have another precision than what is summed.
fn same_kind(ty: ValueType, found: &DataType) -> bool {
    matches!((ty, found), (ValueType::Decimal { .. }, DataType::Decimal128(..))) || ty.to_arrow() == *found
}

fn each<T: Canonical>(array: &ArrayRef, rows: usize, add: &mut impl FnMut(usize, i128)) {
    let array: &PrimitiveArray<T> = array.as_primitive();
    let nulls = array.nulls();
    for (row, value) in array.values().iter().enumerate().take(rows) {
        if nulls.is_none_or(|n| n.is_valid(row)) {
            add(row, T::to_canonical(*value));
        }
    }
}
