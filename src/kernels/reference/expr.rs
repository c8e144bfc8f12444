//! Row-wise interpreter of the IR over Arrow arrays.

use arrow::array::{Array, ArrayRef, AsArray};

use crate::kernels::expr::widths::{is_signed, type_bits};
use crate::kernels::expr::{ArithOp, CompareOp, Expr, ExtremeFn, Function, Scalar, ValueType};
use crate::kernels::native::{Canonical, with_arrow_type};
use crate::kernels::reduce::order_key;

use super::decimal::decimal;
use super::float::float;
use super::integer::integer;
use super::temporal::temporal;

/// An arithmetic fault: the CPU operator would raise an error here, or might. Also what has no value at all: an array
/// of another type than the expression says, a row or slot that does not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault;

/// Value of `expr` at `row`; AND/OR evaluate both sides, as the device does, CASE what the row takes.
///
/// # Errors
/// [`Fault`] where a checked decimal step overflows or a cast's result exceeds its precision.
pub fn eval(
    expr: &Expr,
    params: &[(ValueType, Scalar)],
    columns: &[ArrayRef],
    row: usize,
) -> Result<Scalar, Fault> {
    let go = |e: &Expr| eval(e, params, columns, row);
    Ok(match expr {
        Expr::Column { index, ty } => columns.get(*index).and_then(|c| value_at(c, *ty, row)).ok_or(Fault)?,
        Expr::Param { slot, .. } => params.get(*slot).ok_or(Fault)?.1,
        Expr::Compare { op, left, right } => {
            let ty = left.value_type();
            match (go(left)?, go(right)?) {
                (Some(a), Some(b)) => Some(compare(*op, comparison_key(ty, a), comparison_key(ty, b)).into()),
                _ => None,
            }
        }
        Expr::Distinct { negated, left, right } => {
            let ty = left.value_type();
            let key = |v: Scalar| v.map(|v| comparison_key(ty, v));
            Some(((key(go(left)?) == key(go(right)?)) == *negated).into())
        }
        Expr::And(left, right) => kleene(go(left)?, go(right)?, 0),
        Expr::Or(left, right) => kleene(go(left)?, go(right)?, 1),
        Expr::Not(e) => go(e)?.map(|v| 1 - v),
        Expr::IsNull(e) => Some(go(e)?.is_none().into()),
        Expr::IsNotNull(e) => Some(go(e)?.is_some().into()),
        Expr::InList { expr, list, negated } => {
            let needle = go(expr)?;
            let list = list.iter().map(|e| go(e)).collect::<Result<Vec<_>, _>>()?;
            match needle {
                None => None,
                Some(_) if list.contains(&needle) => Some((!*negated).into()),
                Some(_) if list.contains(&None) => None,
                Some(_) => Some((*negated).into()),
            }
        }
        Expr::Arith { op, left, right, ty } => match (go(left)?, go(right)?) {
            (Some(a), Some(b)) => Some(arith(*op, a, b, *ty)),
            _ => None,
        },
        Expr::Negate(e) => go(e)?.map(|v| negate(v, e)).transpose()?,
        Expr::Required(e) => Some(go(e)?.ok_or(Fault)?),
        // What is exact keeps the value.
        Expr::Cast { expr, .. } => go(expr)?,
        Expr::Case { branches, otherwise, .. } => {
            for (when, then) in branches {
                if go(when)? == Some(1) {
                    return go(then);
                }
            }
            otherwise.as_ref().map_or(Ok(None), |e| go(e))?
        }
        // Tables are made of values that only DataFusion computes, and tests compare with those; lists are compared with
        // Expr::InList.
        Expr::Lookup { .. } | Expr::InSorted { .. } => return Err(Fault),
        Expr::Call { function, args, ty } => {
            let args = args.iter().map(|arg| Ok((go(arg)?, arg.value_type())));
            let args = args.collect::<Result<Vec<_>, Fault>>()?;
            match *function {
                Function::Integer(f) => integer(f, &args, *ty)?,
                Function::Float(f) => float(f, &args, *ty)?,
                Function::Decimal(f) => decimal(f, &args, *ty)?,
                Function::Temporal(f) => temporal(f, &args, *ty)?,
                Function::Extreme(f) => extreme(f, &args, *ty),
            }
        }
    })
}

/// The canonical value in an array; `None` when the array is not of the type or has no such row.
pub fn value_at(array: &ArrayRef, ty: ValueType, row: usize) -> Option<Scalar> {
    if row >= array.len() {
        return None;
    }
    if array.data_type() != &ty.to_arrow() {
        return None;
    }
    let value = match ty {
        ValueType::Null => 0,
        ValueType::Boolean => array.as_boolean().value(row).into(),
        _ => {
            with_arrow_type!(ty, T => <T as Canonical>::to_canonical(array.as_primitive::<T>().value(row)), else => return None)
        }
    };
    let nulls = array.logical_nulls();
    Some(nulls.is_none_or(|nulls| nulls.is_valid(row)).then_some(value))
}

/// Key by which DataFusion's comparison operators see a value: floats in total order with -0 taken as +0.
fn comparison_key(ty: ValueType, value: i128) -> i128 {
    let folded = match ty {
        ValueType::Float16 if value == 1 << 15 => 0,
        ValueType::Float32 if value == i128::from((-0.0f32).to_bits()) => 0,
        ValueType::Float64 if value == i128::from((-0.0f64).to_bits()) => 0,
        _ => value,
    };
    order_key(ty, folded)
}

fn compare(op: CompareOp, a: i128, b: i128) -> bool {
    match op {
        CompareOp::Eq => a == b,
        CompareOp::NotEq => a != b,
        CompareOp::Lt => a < b,
        CompareOp::LtEq => a <= b,
        CompareOp::Gt => a > b,
        CompareOp::GtEq => a >= b,
    }
}

/// The greatest or the least of what is not NULL.
fn extreme(function: ExtremeFn, args: &[(Scalar, ValueType)], ty: ValueType) -> Scalar {
    let values = args.iter().filter_map(|(value, _)| *value);
    match function {
        ExtremeFn::Greatest => values.max_by_key(|value| order_key(ty, *value)),
        ExtremeFn::Least => values.min_by_key(|value| order_key(ty, *value)),
    }
}

/// AND (`decides` = 0) or OR (`decides` = 1): a side that decides does so whatever the other is.
fn kleene(a: Scalar, b: Scalar, decides: i128) -> Scalar {
    if a == Some(decides) || b == Some(decides) { Some(decides) } else { a.and(b) }
}

/// An integer as its type holds it after wrapping.
pub(super) fn wrap(ty: ValueType, value: i128) -> i128 {
    let spare = 128 - u32::from(type_bits(ty));
    if is_signed(ty) { (value << spare) >> spare } else { ((value as u128) << spare >> spare) as i128 }
}

fn arith(op: ArithOp, a: i128, b: i128, ty: ValueType) -> i128 {
    let result = match op {
        ArithOp::Add => a.wrapping_add(b),
        ArithOp::Sub => a.wrapping_sub(b),
        ArithOp::Mul => a.wrapping_mul(b),
    };
    wrap(ty, result)
}

fn negate(value: i128, operand: &Expr) -> Result<i128, Fault> {
    let ty = operand.value_type();
    match ty {
        ValueType::Float32 => Ok(value ^ (1 << 31)),
        ValueType::Float64 => Ok(value ^ (1 << 63)),
        _ => {
            let negated = wrap(ty, value.wrapping_neg());
            // DataFusion negates arrays wrapping, but scalars checked.
            if operand.may_be_scalar() && is_signed(ty) && negated == value && value != 0 {
                return Err(Fault);
            }
            Ok(negated)
        }
    }
}
