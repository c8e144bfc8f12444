//! AggregateExec over partial states: a final step alone, or one that reduces states to fewer.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use datafusion::functions_aggregate::average::Avg;
use datafusion::functions_aggregate::bool_and_or::{BoolAnd, BoolOr};
use datafusion::functions_aggregate::count::Count;
use datafusion::functions_aggregate::min_max::{Max, Min};
use datafusion::functions_aggregate::sum::Sum;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::aggregates::AggregateExec;

use crate::config::{FloatSum, Placement};
use crate::kernels::expr::ValueType;
use crate::kernels::reduce::AggregateKind;
use crate::optimizer::expr::{Declined, Lowering};
use crate::optimizer::reason::{Reason, shorten};
use crate::optimizer::registry::{Proposal, RuleContext};
use crate::optimizer::types::is_decimal;
use crate::physical_plan::aggregate::group::GroupOp;

use super::call::{Call, Spec, bitwise};
use super::first::is_first_or_last;
use super::group::{check_limit, check_order};

/// The GPU aggregate for `exec` alone, which merges partial states, or every reason against it; `reasons` are those against one
/// operator of it and the partial step below.
///
/// There are few states as a rule, and they have to reach the device, so it is made where placement is forced only, and not of
/// states that the CPU makes below.
pub(super) fn check(
    exec: &AggregateExec,
    reasons: Vec<Reason>,
    context: &RuleContext<'_>,
) -> Result<Proposal, Vec<Reason>> {
    let of_plan = |reason: &Reason| matches!(reason, Reason::ExchangesKept | Reason::FinalWithoutPartial);
    if context.options.placement != Placement::Force || !reasons.iter().all(of_plan) {
        return Err(reasons);
    }
    if let Ok((partial, _)) = super::partial_below(exec) {
        super::of_rows(partial, context)?;
    }
    over_states(exec, context)
}

fn over_states(exec: &AggregateExec, context: &RuleContext<'_>) -> Result<Proposal, Vec<Reason>> {
    check_order(exec)?;
    let schema = exec.input().schema();
    let mut lowering = Lowering::new(Arc::clone(&schema));
    let group = exec.group_expr();
    let keys: Vec<_> = group.expr().iter().map(|(expr, _)| lowering.key(expr)).collect();
    let keys = keys.into_iter().collect::<Result<Vec<_>, Declined>>();
    let mut next = group.expr().len();
    let merged: Vec<_> = exec
        .aggr_expr()
        .iter()
        .map(|function| {
            let states = function.state_fields().map_or(0, |fields| fields.len());
            let columns: Vec<usize> = (next..next + states).collect();
            next += states;
            merged(function, &columns, &schema, &mut lowering)
        })
        .collect();
    let merged = merged.into_iter().collect::<Result<Vec<_>, Declined>>();
    let outcome = keys.and_then(|keys| {
        let merged: Vec<Spec> = merged?.into_iter().flatten().collect();
        check_limit(exec, &keys, &merged, context, &mut lowering)?;
        Ok((keys, merged))
    });
    let ((keys, merged), params) = lowering.finish(context.caps, outcome)?;
    let merged = merged.into_iter().map(|Spec(spec, text)| (spec, text)).collect();
    match GroupOp::try_over_states(exec, keys, merged, params) {
        Ok(op) => Ok(Proposal::breaker(Arc::new(op), 1)),
        Err(error) => Err(vec![Reason::ConversionFailed { message: error.to_string() }]),
    }
}

/// What merges the states of one function, which lie in `columns`: one aggregate a column.
fn merged(
    aggregate: &AggregateFunctionExpr,
    columns: &[usize],
    schema: &SchemaRef,
    lowering: &mut Lowering,
) -> Result<Vec<Spec>, Declined> {
    let name = super::name(aggregate);
    let call = Call { aggregate, name, schema, float_sum: FloatSum::Exact, grouped: true };
    if aggregate.is_distinct() {
        return Err(lowering.decline(Reason::Distinct { aggregate: shorten(&name) }));
    }
    if is_first_or_last(aggregate) || !aggregate.order_bys().is_empty() {
        return Err(lowering.decline(Reason::OrderSensitive { aggregate: shorten(&name) }));
    }
    let mut args: Vec<Arc<dyn PhysicalExpr>> = vec![];
    for index in columns {
        let Some(field) = schema.fields().get(*index) else {
            return Err(call.unsupported(lowering, "its states are not there"));
        };
        args.push(Arc::new(Column::new(field.name(), *index)));
    }
    let function = aggregate.fun().inner();
    match args.as_slice() {
        [state] if function.is::<Count>() || function.is::<Sum>() => Ok(vec![sum(&call, state, lowering)?]),
        [count, state] if function.is::<Avg>() => {
            Ok(vec![sum(&call, count, lowering)?, sum(&call, state, lowering)?])
        }
        [state] if function.is::<Min>() => Ok(vec![call.extreme(lowering, AggregateKind::Min, state)?]),
        [state] if function.is::<Max>() => Ok(vec![call.extreme(lowering, AggregateKind::Max, state)?]),
        [state] if function.is::<BoolAnd>() => {
            Ok(vec![Spec::of(AggregateKind::BitAnd, lowering.boolean(state)?)])
        }
        [state] if function.is::<BoolOr>() => {
            Ok(vec![Spec::of(AggregateKind::BitOr, lowering.boolean(state)?)])
        }
        [state] => match bitwise(aggregate) {
            Some(kind) => Ok(vec![Spec::of(kind, call.same_type(lowering, state)?)]),
            None => Err(unknown(&call, lowering)),
        },
        _ => Err(unknown(&call, lowering)),
    }
}

fn unknown(call: &Call<'_>, lowering: &mut Lowering) -> Declined {
    let why = format!("the aggregate function {} has no GPU counterpart", call.aggregate.fun().name());
    call.unsupported(lowering, &why)
}

/// The sum of counts or sums.
fn sum(call: &Call<'_>, state: &Arc<dyn PhysicalExpr>, lowering: &mut Lowering) -> Result<Spec, Declined> {
    let state = lowering.lower(state)?;
    match state.value_type() {
        ty if is_decimal(ty) => Ok(Spec::of(AggregateKind::SumDecimal, state)),
        ValueType::Int64 | ValueType::UInt64 | ValueType::Duration(_) => {
            Ok(Spec::of(AggregateKind::SumInt, state))
        }
        ty if ty.to_arrow().is_floating() => {
            Err(lowering.decline(Reason::RoundedState { aggregate: shorten(&call.name) }))
        }
        ty => Err(call.unsupported(lowering, &format!("states of {ty}"))),
    }
}
