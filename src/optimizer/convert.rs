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
    let plan = rebuild(tagged, 0, query, false)?;
    let plan = SanityCheckPlan::new().optimize(plan, config)?;
    let original = &tagged.nodes[0].plan;
    if plan.schema() != original.schema() {
        return internal_err!("the schema changed from {:?} to {:?}", original.schema(), plan.schema());
    }
    Ok(plan)
}

/// The node and what is below it; `below_gpu` if the node above runs on the GPU.
fn rebuild(
    tagged: &Tagged,
    id: usize,
    query: &Arc<Query>,
    below_gpu: bool,
) -> Result<Arc<dyn ExecutionPlan>> {
    let inputs = |ids: &[usize], below_gpu: bool| {
        ids.iter().map(|id| rebuild(tagged, *id, query, below_gpu)).collect::<Result<Vec<_>>>()
    };
    let node = &tagged.nodes[id];
    let Verdict::Gpu(proposal) = &node.verdict else {
        let children = inputs(&node.children, below_gpu && GpuExec::passes_on(&node.plan))?;
        return replace_children_if_necessary(Arc::clone(&node.plan), children);
    };
    let children = inputs(tagged.inputs(id), true)?;
    let template = Template::chain(&node.plan, proposal.nodes)?;
    let plan: Arc<dyn ExecutionPlan> = Arc::new(
        GpuExec::try_new(Arc::clone(&proposal.op), template, children, Arc::clone(query))?
            .below_gpu(below_gpu),
    );
    // Parents were planned on these partitions. Row-local operators keep their input's, and an aggregate without
    // groups has one either way, so that no exchange is ever needed to restore them.
    let (ours, theirs) = (plan.output_partitioning(), node.plan.output_partitioning());
    if ours.partition_count() != theirs.partition_count() {
        return internal_err!("{} has {ours} where {} had {theirs}", plan.name(), node.plan.name());
    }
    Ok(plan)
}
