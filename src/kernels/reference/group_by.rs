//! Twin of the grouping.

use std::collections::HashMap;

use arrow::array::{ArrayRef, AsArray, UInt32Array};
use arrow::datatypes::UInt32Type;

use crate::error::GpuResult;
use crate::kernels::expr::{Scalar, ValueType};
use crate::kernels::group_by::{
    FloatFlags, GroupBy, GroupKey, GroupResult, GroupStates, StateValues, Strategy, SummedFloats, state_type,
};
use crate::kernels::program::Program;
use crate::kernels::reduce::{AggregateKind, AggregateState, RowOrder, order_key};
use crate::kernels::select::array_of;

use super::expr::{Fault, eval};
use super::reduce::reduce_row;

/// What the device must answer for one segment of `rows` rows; groups come in the order in which they are met. A column whose codes
/// are a key is a UInt32Array of codes.
///
/// # Errors
/// [`crate::error::GpuError::Internal`] for aggregates that do not exist.
pub fn group_by(
    program: &Program,
    by: &GroupBy,
    columns: &[ArrayRef],
    rows: usize,
) -> GpuResult<GroupResult> {
    let mut groups: HashMap<Vec<Scalar>, usize> = HashMap::new();
    let mut keys: Vec<Vec<Scalar>> = vec![];
    let mut states: Vec<Vec<AggregateState>> = vec![];
    let mut firsts: Vec<Vec<Option<(Scalar, usize)>>> = vec![];
    let (mut fault, mut floats) = (false, FloatFlags::default());
    let mut sums = SummedFloats { limbs: vec![None; by.aggregates.len()], special: false };
    for row in 0..rows {
        match key_of(program, by, columns, row) {
            Err(Fault) => fault = true,
            Ok(None) => {}
            Ok(Some(key)) => {
                let group = *groups.entry(key).or_insert_with_key(|key| {
                    keys.push(key.clone());
                    states.push(by.aggregates.iter().map(|spec| spec.kind.init()).collect());
                    firsts.push(vec![None; by.aggregates.len()]);
                    keys.len() - 1
                });
                fault |= reduce_row(program, &by.aggregates, columns, row, &mut states[group]).is_err();
                note_firsts(program, by, columns, row, &mut firsts[group]);
                see_floats(program, by, columns, row, &mut floats);
                see_summed(program, by, columns, row, &mut sums);
            }
        }
    }
    let key_arrays = by.keys.iter().enumerate().map(|(at, key)| match key {
        GroupKey::Value(expr) => {
            array_of(expr.value_type(), &keys.iter().map(|key| key[at]).collect::<Vec<_>>())
        }
        GroupKey::Codes(_) => {
            let codes = keys.iter().map(|key| key[at].unwrap_or(0) as u32);
            Ok(std::sync::Arc::new(UInt32Array::from_iter_values(codes)) as ArrayRef)
        }
    });
    let state_arrays = by.aggregates.iter().enumerate().map(|(at, spec)| {
        let of = |group: &Vec<AggregateState>| group[at].clone();
        let values = match state_type(spec)? {
            _ if spec.kind == AggregateKind::SumFloat => {
                StateValues::Exact(states.iter().map(|group| of(group).exact).collect())
            }
            None => StateValues::None,
            Some(ty) if matches!(spec.kind, AggregateKind::FirstRow(_)) => {
                let rows = firsts.iter().map(|group| group[at].map(|(_, row)| row as i128).or(Some(0)));
                StateValues::Array(array_of(ty, &rows.collect::<Vec<_>>())?)
            }
            Some(ty) => {
                let values: Vec<Scalar> = states.iter().map(|group| Some(of(group).value)).collect();
                StateValues::Array(array_of(ty, &values)?)
            }
        };
        let most = if by.needs_number(at) { u64::MAX } else { 1 };
        Ok(GroupStates { counts: states.iter().map(|group| of(group).count.min(most)).collect(), values })
    });
    Ok(GroupResult {
        groups: keys.len(),
        keys: key_arrays.collect::<GpuResult<_>>()?,
        states: state_arrays.collect::<GpuResult<_>>()?,
        fault,
        floats,
        sums,
        strategy: Strategy::Global,
        reruns: 0,
    })
}

/// The key of a selected row.
fn key_of(
    program: &Program,
    by: &GroupBy,
    columns: &[ArrayRef],
    row: usize,
) -> Result<Option<Vec<Scalar>>, Fault> {
    let value = |expr| eval(expr, &program.params, columns, row);
    if let Some(selection) = &program.selection
        && value(selection)? != Some(1)
    {
        return Ok(None);
    }
    let keys = by.keys.iter().map(|key| match key {
        GroupKey::Value(expr) => Ok(value(expr)?.map(|v| folded(expr.value_type(), v))),
        GroupKey::Codes(index) => {
            let codes = columns.get(*index).and_then(|c| c.as_primitive_opt::<UInt32Type>()).ok_or(Fault)?;
            Ok(Some(i128::from(codes.value(row))))
        }
    });
    keys.collect::<Result<Vec<_>, _>>().map(Some)
}

/// -0 as +0.
fn folded(ty: ValueType, value: i128) -> i128 {
    match ty {
        ValueType::Float16 if value == 1 << 15 => 0,
        ValueType::Float32 if value == 1 << 31 => 0,
        ValueType::Float64 if value == 1 << 63 => 0,
        _ => value,
    }
}

/// Notes a row where it comes before those so far; rows come by their numbers.
fn note_firsts(
    program: &Program,
    by: &GroupBy,
    columns: &[ArrayRef],
    row: usize,
    firsts: &mut [Option<(Scalar, usize)>],
) {
    let value = |expr| eval(expr, &program.params, columns, row);
    for (spec, first) in by.aggregates.iter().zip(firsts) {
        if let AggregateKind::FirstRow(order) = spec.kind
            && spec.filter.as_ref().is_none_or(|filter| value(filter) == Ok(Some(1)))
            && let Some(arg) = &spec.arg
            && let Ok(own) = value(arg)
            && first.is_none_or(|(best, _)| precedes(order, arg.value_type(), own, best))
        {
            *first = Some((own, row));
        }
    }
}

fn precedes(order: RowOrder, ty: ValueType, a: Scalar, b: Scalar) -> bool {
    match (a, b) {
        (None, None) => false,
        (None, Some(_)) => order.nulls_first,
        (Some(_), None) => !order.nulls_first,
        (Some(a), Some(b)) if order.descending => order_key(ty, a) > order_key(ty, b),
        (Some(a), Some(b)) => order_key(ty, a) < order_key(ty, b),
    }
}

fn see_summed(program: &Program, by: &GroupBy, columns: &[ArrayRef], row: usize, sums: &mut SummedFloats) {
    let value = |expr| eval(expr, &program.params, columns, row);
    for (at, spec) in by.aggregates.iter().enumerate() {
        if spec.kind == AggregateKind::SumFloat
            && spec.filter.as_ref().is_none_or(|filter| value(filter) == Ok(Some(1)))
            && let Some(arg) = &spec.arg
            && let Ok(Some(bits)) = value(arg)
        {
            sums.note(at, arg.value_type(), bits as u64);
        }
    }
}

fn see_floats(program: &Program, by: &GroupBy, columns: &[ArrayRef], row: usize, flags: &mut FloatFlags) {
    let value = |expr| eval(expr, &program.params, columns, row);
    for spec in &by.aggregates {
        let Some(arg) = spec.arg.as_ref().filter(|_| {
            matches!(spec.kind, AggregateKind::Min | AggregateKind::Max)
                && spec.filter.as_ref().is_none_or(|filter| value(filter) == Ok(Some(1)))
        }) else {
            continue;
        };
        let (sign, infinity) = match arg.value_type() {
            ValueType::Float16 => (1i128 << 15, 0x7c00i128),
            ValueType::Float32 => (1 << 31, 0x7f80_0000),
            ValueType::Float64 => (1 << 63, 0x7ff0_0000_0000_0000),
            _ => continue,
        };
        if let Ok(Some(bits)) = value(arg) {
            flags.nan |= bits & !sign > infinity;
            flags.negative_zero |= bits == sign;
            flags.positive_zero |= bits == 0;
        }
    }
}
