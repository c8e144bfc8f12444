//! AggregateExec with GROUP BY.

use std::sync::Arc;

use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode};
use datafusion::physical_plan::{ExecutionPlan, InputOrderMode};

use crate::config::{Exchanges, Placement};
use crate::kernels::expr::ValueType;
use crate::kernels::reduce::AggregateKind;
use crate::optimizer::expr::{Declined, Lowering};
use crate::optimizer::reason::Reason;
use crate::optimizer::registry::{Proposal, RuleContext};
use crate::physical_plan::aggregate::group::{GroupOp, Key};
use crate::physical_plan::params::ParamTable;

use super::call::Spec;
use super::{lower_functions, name, partial_below, rounded_states};

/// A lowered aggregate.
struct Lowered {
    keys: Vec<Key>,
    aggregates: Vec<Spec>,
    params: ParamTable,
}

/// The GPU aggregate for `exec`, or every reason against it.
pub(super) fn check(exec: &AggregateExec, context: &RuleContext<'_>) -> Result<Proposal, Vec<Reason>> {
    match exec.mode() {
        AggregateMode::Single | AggregateMode::SinglePartitioned => {
            propose(exec, None, 1, lower(exec, context)?)
        }
        AggregateMode::Partial => {
            let lowered = lower(exec, context)?;
            let specs: Vec<_> = lowered.aggregates.iter().map(|spec| spec.0.clone()).collect();
            let rounded = rounded_states(exec, &specs);
            if rounded.is_empty() { propose(exec, None, 1, lowered) } else { Err(rounded) }
        }
        AggregateMode::Final | AggregateMode::FinalPartitioned => {
            check_order(exec)?;
            if context.options.exchanges == Exchanges::Keep {
                return Err(vec![Reason::ExchangesKept]);
            }
            let (partial, nodes) = partial_below(exec)?;
            let keys = partial.group_expr().num_group_exprs();
            if exec.group_expr().expr().len() != keys || !exec.group_expr().is_single() {
                return Err(vec![Reason::FinalWithoutPartial]);
            }
            propose(partial, Some(exec), nodes, lower(partial, context)?)
        }
        AggregateMode::PartialReduce => Err(vec![Reason::UnsupportedOperator {
            operator: format!("AggregateExec in mode {:?}", exec.mode()),
        }]),
    }
}

fn propose(
    exec: &AggregateExec,
    last: Option<&AggregateExec>,
    nodes: usize,
    lowered: Lowered,
) -> Result<Proposal, Vec<Reason>> {
    let Lowered { keys, aggregates, params } = lowered;
    let aggregates = aggregates.into_iter().map(|spec| (spec.0, spec.1)).collect();
    let op = GroupOp::try_new(exec, last, keys, aggregates, params)
        .map_err(|error| vec![Reason::ConversionFailed { message: error.to_string() }])?;
    Ok(Proposal::breaker(Arc::new(op), nodes))
}

fn check_order(exec: &AggregateExec) -> Result<(), Vec<Reason>> {
    // Where only constants are in order, nobody can rely on it.
    if *exec.input_order_mode() != InputOrderMode::Linear && exec.properties().output_ordering().is_some() {
        return Err(vec![Reason::OrderedGrouping]);
    }
    if exec.fetch().is_some() {
        return Err(vec![Reason::Fetch { operator: exec.name().to_string() }]);
    }
    Ok(())
}

/// Lowers the keys and functions of a node that reads raw rows.
fn lower(exec: &AggregateExec, context: &RuleContext<'_>) -> Result<Lowered, Vec<Reason>> {
    check_order(exec)?;
    let mut lowering = Lowering::new(exec.input().schema());
    let keys: Vec<_> = exec.group_expr().expr().iter().map(|(expr, _)| lowering.key(expr)).collect();
    let keys = keys.into_iter().collect::<Result<Vec<_>, Declined>>();
    let functions = lower_functions(exec, &mut lowering, context.options.float_sum);
    let outcome = keys.and_then(|keys| {
        let aggregates = functions?;
        no_float_sums(exec, &aggregates, &mut lowering)?;
        check_limit(exec, &keys, &aggregates, context, &mut lowering)?;
        Ok((keys, aggregates))
    });
    let ((keys, aggregates), params) = lowering.finish(context.caps, outcome)?;
    Ok(Lowered { keys, aggregates, params })
}

/// The kernel for groups does not sum floats.
fn no_float_sums(exec: &AggregateExec, aggregates: &[Spec], lowering: &mut Lowering) -> Result<(), Declined> {
    let mut outcome = Ok(());
    for (aggregate, Spec(spec, _)) in exec.aggr_expr().iter().zip(aggregates) {
        if spec.kind == AggregateKind::SumFloat {
            let why = "sums of floats are not offered with GROUP BY";
            outcome = Err(lowering.decline(Reason::unsupported_aggregate(&name(aggregate), why)));
        }
    }
    outcome
}

/// A limit only says how many groups are asked for, so that all of them are right; but the CPU may be through after a few rows.
/// Where it keeps the best groups by MIN or MAX, it does not compare floats as an aggregate without a limit does.
fn check_limit(
    exec: &AggregateExec,
    keys: &[Key],
    aggregates: &[Spec],
    context: &RuleContext<'_>,
    lowering: &mut Lowering,
) -> Result<(), Declined> {
    let Some(limit) = exec.limit_options() else { return Ok(()) };
    let float = |ty: ValueType| ty.to_arrow().is_floating();
    let floats = keys.iter().any(|key| matches!(key, Key::Value(expr) if float(expr.value_type())))
        || aggregates.iter().any(|Spec(spec, _)| {
            matches!(spec.kind, AggregateKind::Min | AggregateKind::Max)
                && spec.arg.as_ref().is_some_and(|arg| float(arg.value_type()))
        });
    let best = !exec.is_unordered_unfiltered_group_by_distinct();
    if context.options.placement == Placement::Force && !(best && floats) {
        return Ok(());
    }
    Err(lowering.decline(Reason::SoftLimit { limit: limit.limit() }))
}
