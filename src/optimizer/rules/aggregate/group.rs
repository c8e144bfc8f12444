//! AggregateExec with GROUP BY.

use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::{ExecutionPlan, InputOrderMode};

use crate::config::Placement;
use crate::kernels::expr::ValueType;
use crate::kernels::reduce::AggregateKind;
use crate::optimizer::expr::{Declined, Lowering};
use crate::optimizer::reason::Reason;
use crate::optimizer::registry::{Proposal, RuleContext};
use crate::physical_plan::aggregate::group::{GroupOp, Key};
use crate::physical_plan::params::ParamTable;

use super::call::Spec;
use super::{Step, lower_functions};

/// Keys and functions, in order.
type Lowered = (Vec<Key>, Vec<Spec>);

/// The GPU aggregate for `exec`, or every reason against it.
pub(super) fn check(exec: &AggregateExec, context: &RuleContext<'_>) -> Result<Proposal, Vec<Reason>> {
    check_order(exec)?;
    let step = Step::of(exec, context)?;
    check_order(step.raw)?;
    if let Some(last) = step.last {
        let keys = step.raw.group_expr().num_group_exprs();
        if last.group_expr().expr().len() != keys || !last.group_expr().is_single() {
            return Err(vec![Reason::FinalWithoutPartial]);
        }
    }
    let ((keys, aggregates), params) = lower(step.raw, context)?;
    step.check_states(aggregates.iter().map(|Spec(spec, _)| spec))?;
    let aggregates = aggregates.into_iter().map(|Spec(spec, text)| (spec, text)).collect();
    step.proposal(GroupOp::try_new(step.raw, step.last, keys, aggregates, params))
}

pub(super) fn check_order(exec: &AggregateExec) -> Result<(), Vec<Reason>> {
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
fn lower(exec: &AggregateExec, context: &RuleContext<'_>) -> Result<(Lowered, ParamTable), Vec<Reason>> {
    let mut lowering = Lowering::new(exec.input().schema());
    let keys: Vec<_> = exec.group_expr().expr().iter().map(|(expr, _)| lowering.key(expr)).collect();
    let keys = keys.into_iter().collect::<Result<Vec<_>, Declined>>();
    let functions = lower_functions(exec, &mut lowering, context.options.float_sum);
    let outcome = keys.and_then(|keys| {
        let aggregates = functions?;
        check_limit(exec, &keys, &aggregates, context, &mut lowering)?;
        Ok((keys, aggregates))
    });
    lowering.finish(context.caps, outcome)
}

/// A limit only says how many groups are asked for, so that all of them are right; but the CPU may be through after a few rows.
/// Where it keeps the best groups by MIN or MAX, it does not compare floats as an aggregate without a limit does.
pub(super) fn check_limit(
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
