//! AggregateExec, and here what has no GROUP BY.

mod call;
mod first;
mod group;
mod states;

use std::sync::Arc;

use datafusion::common::DataFusionError;
use datafusion::functions_aggregate::min_max::{Max, Min};
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateInputMode, AggregateMode};
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::repartition::RepartitionExec;

use crate::config::{Exchanges, FloatSum};
use crate::kernels::reduce::AggregateSpec;
use crate::optimizer::expr::{Declined, Lowering};
use crate::optimizer::reason::{Reason, shorten};
use crate::optimizer::registry::{Proposal, RuleContext};
use crate::optimizer::types::device_type;
use crate::physical_plan::aggregate::AggregateOp;
use crate::physical_plan::op::DeviceOp;
use crate::physical_plan::params::ParamTable;

use call::{Call, Spec};
use first::is_first_or_last;

/// What one operator stands for.
struct Step<'a> {
    /// The node that reads raw rows.
    raw: &'a AggregateExec,
    /// The final node above it, where one operator is made of both.
    last: Option<&'a AggregateExec>,
    /// Nodes from the topmost down to `raw`.
    nodes: usize,
}

impl<'a> Step<'a> {
    /// A final step is replaced together with the partial step below it; with `gpu.exchanges = 'keep'` each is replaced alone, if its
    /// state is exact.
    fn of(exec: &'a AggregateExec, context: &RuleContext<'_>) -> Result<Self, Vec<Reason>> {
        match exec.mode() {
            AggregateMode::Single | AggregateMode::SinglePartitioned | AggregateMode::Partial => {
                Ok(Step { raw: exec, last: None, nodes: 1 })
            }
            AggregateMode::Final | AggregateMode::FinalPartitioned => {
                if context.options.exchanges == Exchanges::Keep {
                    return Err(vec![Reason::ExchangesKept]);
                }
                let (raw, nodes) = partial_below(exec)?;
                Ok(Step { raw, last: Some(exec), nodes })
            }
            AggregateMode::PartialReduce => Err(vec![Reason::FinalWithoutPartial]),
        }
    }

    /// Every aggregate whose state would be rounded in each partition: of a partial step alone.
    fn check_states<'b>(
        &self,
        aggregates: impl IntoIterator<Item = &'b AggregateSpec>,
    ) -> Result<(), Vec<Reason>> {
        if *self.raw.mode() != AggregateMode::Partial || self.last.is_some() {
            return Ok(());
        }
        let named = self.raw.aggr_expr().iter().zip(aggregates);
        let rounded: Vec<_> = named
            .filter(|(_, spec)| spec.kind.is_rounded())
            .map(|(aggregate, _)| Reason::RoundedState { aggregate: shorten(&name(aggregate)) })
            .collect();
        if rounded.is_empty() { Ok(()) } else { Err(rounded) }
    }

    /// The proposal of the operator that was made for the step.
    fn proposal<O: DeviceOp + 'static>(
        &self,
        op: Result<O, DataFusionError>,
    ) -> Result<Proposal, Vec<Reason>> {
        match op {
            Ok(op) => Ok(Proposal::breaker(Arc::new(op), self.nodes)),
            Err(error) => Err(vec![Reason::ConversionFailed { message: error.to_string() }]),
        }
    }
}

/// The GPU aggregate for `exec`, or every reason against it.
pub(crate) fn check(exec: &AggregateExec, context: &RuleContext<'_>) -> Result<Proposal, Vec<Reason>> {
    let proposal = of_rows(exec, context);
    match exec.mode().input_mode() {
        AggregateInputMode::Raw => proposal,
        AggregateInputMode::Partial => proposal.or_else(|reasons| states::check(exec, reasons, context)),
    }
}

/// The GPU aggregate that reads raw rows.
fn of_rows(exec: &AggregateExec, context: &RuleContext<'_>) -> Result<Proposal, Vec<Reason>> {
    if !exec.group_expr().is_true_no_grouping() || merges_rows(exec) {
        return group::check(exec, context);
    }
    check_shape(exec)?;
    let step = Step::of(exec, context)?;
    check_shape(step.raw)?;
    let (aggregates, params) = lower(step.raw, context)?;
    step.check_states(&aggregates)?;
    step.proposal(AggregateOp::try_new(step.raw, step.last, aggregates, params))
}

/// The partial step below a final one, and how many nodes there are from the final to the partial step.
fn partial_below(exec: &AggregateExec) -> Result<(&AggregateExec, usize), Vec<Reason>> {
    let mut plan: &Arc<dyn ExecutionPlan> = exec.input();
    let mut nodes = 2;
    loop {
        if let Some(partial) = plan.downcast_ref::<AggregateExec>() {
            let matches = *partial.mode() == AggregateMode::Partial && same_functions(exec, partial);
            return if matches { Ok((partial, nodes)) } else { Err(vec![Reason::FinalWithoutPartial]) };
        }
        plan = if let Some(exchange) = plan.downcast_ref::<RepartitionExec>() {
            if exchange.preserve_order() {
                return Err(vec![Reason::OrderedGrouping]);
            }
            exchange.input()
        } else if let Some(coalesce) = plan.downcast_ref::<CoalescePartitionsExec>() {
            if coalesce.fetch().is_some() {
                return Err(vec![Reason::Fetch { operator: coalesce.name().to_string() }]);
            }
            coalesce.input()
        } else if let Some(cooperative) = plan.downcast_ref::<CooperativeExec>() {
            cooperative.input()
        } else {
            return Err(vec![Reason::FinalWithoutPartial]);
        };
        nodes += 1;
    }
}

fn same_functions(a: &AggregateExec, b: &AggregateExec) -> bool {
    a.aggr_expr().len() == b.aggr_expr().len()
        && a.aggr_expr().iter().zip(b.aggr_expr()).all(|(a, b)| a.fun() == b.fun() && a.field() == b.field())
}

/// Whether states are asked for that are merged as those of groups are: the least or the greatest of strings, or values of the first
/// or the last row.
fn merges_rows(exec: &AggregateExec) -> bool {
    exec.aggr_expr().iter().any(|aggregate| {
        let function = aggregate.fun().inner();
        let extreme = function.is::<Min>() || function.is::<Max>();
        is_first_or_last(aggregate) || (extreme && device_type(&"", aggregate.field().data_type()).is_err())
    })
}

/// What holds for every mode: no groups, no limit, at least one aggregate.
fn check_shape(exec: &AggregateExec) -> Result<(), Vec<Reason>> {
    if exec.limit_options().is_some() || exec.fetch().is_some() {
        return Err(vec![Reason::Fetch { operator: exec.name().to_string() }]);
    }
    if exec.aggr_expr().is_empty() {
        return Err(vec![Reason::unsupported_aggregate(&exec.name(), "it has no aggregate functions")]);
    }
    Ok(())
}

/// Lowers the aggregates of a node that reads raw rows.
fn lower(
    exec: &AggregateExec,
    context: &RuleContext<'_>,
) -> Result<(Vec<AggregateSpec>, ParamTable), Vec<Reason>> {
    let mut lowering = Lowering::new(exec.input().schema());
    let specs = lower_functions(exec, &mut lowering, context.options.float_sum);
    let specs = specs.map(|specs| specs.into_iter().map(|spec| spec.0).collect());
    lowering.finish(context.caps, specs)
}

/// Lowers the functions of a node that reads raw rows, in order.
fn lower_functions(
    exec: &AggregateExec,
    lowering: &mut Lowering,
    float_sum: FloatSum,
) -> Result<Vec<Spec>, Declined> {
    let schema = exec.input().schema();
    let grouped = !exec.group_expr().is_true_no_grouping();
    let specs: Vec<_> = exec
        .aggr_expr()
        .iter()
        .zip(exec.filter_expr())
        .map(|(aggregate, filter)| {
            let call = Call { aggregate, name: name(aggregate), schema: &schema, float_sum, grouped };
            // Both parts, so that every reason is found.
            let filter = filter.as_ref().map(|filter| lowering.boolean(filter)).transpose();
            let spec = call.lower(lowering);
            spec.and_then(|spec| Ok(spec.filtered_by(filter?)))
        })
        .collect();
    specs.into_iter().collect()
}

fn name(aggregate: &AggregateFunctionExpr) -> &str {
    aggregate.human_display().unwrap_or_else(|| aggregate.name())
}
