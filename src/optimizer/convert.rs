//! Third pass: the plan with GPU nodes, from final verdicts.

use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::common::{Result, internal_err};
use datafusion::physical_expr::expressions::UnKnownColumn;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_optimizer::sanity_checker::SanityCheckPlan;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::execution_plan::replace_children_if_necessary;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, Partitioning};

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
        let mut children = inputs(&node.children, below_gpu && GpuExec::passes_on(&node.plan))?;
        if !below_gpu && !node.plan.is::<CoalescePartitionsExec>() {
            let originals = node.children.iter().map(|child| &tagged.nodes[*child].plan);
            let restored = children.into_iter().zip(originals);
            children = restored.map(|(child, original)| restore(child, original)).collect::<Result<_>>()?;
        }
        return replace_children_if_necessary(Arc::clone(&node.plan), children);
    };
    let children = inputs(tagged.inputs(id), true)?;
    let template = Template::chain(&node.plan, proposal.nodes)?;
    let plan = GpuExec::try_new(Arc::clone(&proposal.op), template, children, Arc::clone(query))?;
    Ok(Arc::new(plan.below_gpu(below_gpu)))
}

/// `plan` in the partitions that `original` had: a GPU node gives one partition where it stands for an exchange too, and CPU nodes
/// above were planned on several.
fn restore(
    plan: Arc<dyn ExecutionPlan>,
    original: &Arc<dyn ExecutionPlan>,
) -> Result<Arc<dyn ExecutionPlan>> {
    let (ours, theirs) = (plan.output_partitioning(), original.output_partitioning());
    let partitions = theirs.partition_count();
    if ours.partition_count() == partitions {
        return Ok(plan);
    }
    if ours.partition_count() != 1 {
        return internal_err!("{} has {ours} where {} had {theirs}", plan.name(), original.name());
    }
    let partitioning = match theirs {
        Partitioning::UnknownPartitioning(_) => Partitioning::RoundRobinBatch(partitions),
        // A projection left a key out: nobody above can ask for it.
        Partitioning::Hash(keys, _) if keys.iter().any(|key| key.is::<UnKnownColumn>()) => {
            Partitioning::RoundRobinBatch(partitions)
        }
        theirs => theirs.clone(),
    };
    Ok(Arc::new(RepartitionExec::try_new(plan, partitioning)?))
}
