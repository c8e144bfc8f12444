//! Third pass: the plan with GPU nodes, from final verdicts.

use std::fmt;
use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::common::{DataFusionError, Result, internal_datafusion_err, internal_err};
use datafusion::physical_expr::expressions::UnKnownColumn;
use datafusion::physical_optimizer::sanity_checker::check_plan_sanity;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::execution_plan::replace_children_if_necessary;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, Partitioning};

use crate::physical_plan::{GpuExec, Query, Template};

use super::reason::shorten;
use super::tag::{Tagged, Verdict};

/// Which node stood in the way of a conversion, and how.
#[derive(Debug)]
pub(crate) struct Failed {
    node: String,
    why: String,
}

impl Failed {
    fn at(node: &Arc<dyn ExecutionPlan>, error: &DataFusionError) -> Self {
        let text = error.message();
        // DataFusion's check puts the whole plan before what it found.
        let found = text.find(" does not satisfy ").map_or(&*text, |at| &text[at + 1..]);
        Self { node: node.name().to_string(), why: shorten(&found) }
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.node, self.why)
    }
}

type Converted = Result<Arc<dyn ExecutionPlan>, Failed>;

/// The converted plan, whose GPU nodes belong to `query`.
///
/// # Errors
/// Those of rebuilding nodes, of DataFusion's sanity check, and when schema or partitioning would change.
pub(crate) fn convert(tagged: &Tagged, config: &ConfigOptions, query: &Arc<Query>) -> Converted {
    let plan = rebuild(tagged, 0, query, Above { gpu: false, keyed: false })?;
    check(&plan, config)?;
    let original = &tagged.nodes[0].plan;
    if plan.schema() != original.schema() {
        let (before, after) = (original.schema(), plan.schema());
        let error = internal_datafusion_err!("the schema changed from {before:?} to {after:?}");
        return Err(Failed::at(&plan, &error));
    }
    Ok(plan)
}

/// DataFusion's sanity check, node by node from the bottom up, so that the node is known.
fn check(plan: &Arc<dyn ExecutionPlan>, config: &ConfigOptions) -> Result<(), Failed> {
    plan.children().into_iter().try_for_each(|child| check(child, config))?;
    check_plan_sanity(plan, &config.optimizer).map_err(|error| Failed::at(plan, &error))
}

/// What is known of the nodes above one.
#[derive(Debug, Clone, Copy)]
struct Above {
    /// The next runs on the GPU.
    gpu: bool,
    /// Some may rely on rows of equal keys being in one partition.
    keyed: bool,
}

impl Above {
    /// The same for the inputs of a CPU node.
    fn inputs_of(self, plan: &Arc<dyn ExecutionPlan>, gpu: bool) -> Self {
        let ends = plan.is::<SortPreservingMergeExec>() || plan.is::<CoalescePartitionsExec>();
        let passes_on = plan.is::<SortExec>() || plan.is::<ProjectionExec>() || plan.is::<FilterExec>();
        Above { gpu, keyed: !ends && (self.keyed || !passes_on) }
    }
}

/// The node and what is below it.
fn rebuild(tagged: &Tagged, id: usize, query: &Arc<Query>, above: Above) -> Converted {
    let inputs = |ids: &[usize], above: Above| {
        ids.iter().map(|id| rebuild(tagged, *id, query, above)).collect::<Result<Vec<_>, _>>()
    };
    let node = &tagged.nodes[id];
    let failed = |error: DataFusionError| Failed::at(&node.plan, &error);
    let Verdict::Gpu(proposal) = &node.verdict else {
        let seen_through = above.gpu && GpuExec::passes_on(&node.plan);
        let below = above.inputs_of(&node.plan, seen_through);
        let mut children = inputs(&node.children, below)?;
        if !seen_through && !node.plan.is::<CoalescePartitionsExec>() {
            let originals = node.children.iter().map(|child| &tagged.nodes[*child].plan);
            let restored = children.into_iter().zip(originals);
            let restored = restored.map(|(child, original)| restore(child, original, below.keyed));
            children = restored.collect::<Result<_>>().map_err(failed)?;
        }
        return replace_children_if_necessary(Arc::clone(&node.plan), children).map_err(failed);
    };
    let children = inputs(tagged.inputs(id), Above { gpu: true, keyed: true })?;
    let template = Template::chain(&node.plan, proposal.nodes).map_err(failed)?;
    let try_over = |children| {
        GpuExec::try_new(Arc::clone(&proposal.op), template.clone(), children, Arc::clone(query))
            .map_err(failed)
    };
    let mut plan = try_over(children)?;
    let reads_gpu = plan.children().into_iter().any(|child| GpuExec::find(child).is_some());
    if reads_gpu && !plan.has_device_input() {
        let children = plan.children().into_iter().map(to_host);
        plan = try_over(children.collect::<Result<_>>().map_err(failed)?)?;
    }
    Ok(Arc::new(plan.below_gpu(above.gpu)))
}

/// `plan`, whose rows the GPU node above takes from the host.
fn to_host(plan: &Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    match plan.downcast_ref::<GpuExec>() {
        Some(exec) => Ok(Arc::new(exec.clone().below_gpu(false))),
        None if GpuExec::passes_on(plan) => {
            let children = plan.children().into_iter().map(to_host).collect::<Result<_>>()?;
            replace_children_if_necessary(Arc::clone(plan), children)
        }
        None => Ok(Arc::clone(plan)),
    }
}

/// `plan` in the partitions that `original` had: a GPU node gives one partition where it stands for an exchange too, and CPU nodes
/// above were planned on several. Which rows come into which of them matters only where those rely on their keys; hashing
/// takes long where one task does it.
fn restore(
    plan: Arc<dyn ExecutionPlan>,
    original: &Arc<dyn ExecutionPlan>,
    keyed: bool,
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
        _ if !keyed => Partitioning::RoundRobinBatch(partitions),
        // A projection left a key out: nobody above can ask for it.
        Partitioning::Hash(keys, _) if keys.iter().any(|key| key.is::<UnKnownColumn>()) => {
            Partitioning::RoundRobinBatch(partitions)
        }
        theirs => theirs.clone(),
    };
    Ok(Arc::new(RepartitionExec::try_new(plan, partitioning)?))
}

#[cfg(test)]
mod tests;
