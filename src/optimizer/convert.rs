//! Third pass: the plan with GPU nodes, from final verdicts.

use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::common::{Result, internal_err};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_optimizer::sanity_checker::SanityCheckPlan;
use datafusion::physical_plan::execution_plan::replace_children_if_necessary;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};

use crate::physical_plan::{GpuExec, Query, Template};

use super::tag::{Tagged, Verdict};

/// The converted plan, whose GPU nodes belong to `query`.
///
/// # Errors
/// Those of rebuilding nodes, of DataFusion's sanity check, and when schema or partitioning would change.
pub(crate) fn convert(
    tagged: &Tagged,
    config: &ConfigOptions,
    query: &Arc<Query>,
) -> Result<Arc<dyn ExecutionPlan>> {
    let plan = rebuild(tagged, 0, query)?;
    let plan = SanityCheckPlan::new().optimize(plan, config)?;
    let original = &tagged.nodes[0].plan;
    if plan.schema() != original.schema() {
        return internal_err!("the schema changed from {:?} to {:?}", original.schema(), plan.schema());
    }
    Ok(plan)
}

fn rebuild(tagged: &Tagged, id: usize, query: &Arc<Query>) -> Result<Arc<dyn ExecutionPlan>> {
    let node = &tagged.nodes[id];
    let Verdict::Gpu(proposal) = &node.verdict else {
        let children =
            node.children.iter().map(|child| rebuild(tagged, *child, query)).collect::<Result<Vec<_>>>()?;
        return replace_children_if_necessary(Arc::clone(&node.plan), children);
    };
    let children =
        tagged.inputs(id).iter().map(|input| rebuild(tagged, *input, query)).collect::<Result<Vec<_>>>()?;
    let template = Template::chain(&node.plan, proposal.nodes)?;
    let plan: Arc<dyn ExecutionPlan> =
        Arc::new(GpuExec::try_new(Arc::clone(&proposal.op), template, children, Arc::clone(query))?);
    // Parents were planned on these partitions. Row-local operators keep their input's, and an aggregate without
    // groups has one either way, so that no exchange is ever needed to restore them.
    let (ours, theirs) = (plan.output_partitioning(), node.plan.output_partitioning());
    if ours.partition_count() != theirs.partition_count() {
        return internal_err!("{} has {ours} where {} had {theirs}", plan.name(), node.plan.name());
    }
    Ok(plan)
}
