//! Which CPU node type has which rule, and what a rule proposes.

use std::sync::Arc;

use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::projection::ProjectionExec;

use crate::config::GpuOptions;
use crate::memory::caps::DeviceCaps;
use crate::physical_plan::DeviceOp;

use super::reason::Reason;
use super::rules::{aggregate, filter, projection};

/// What a rule may look at besides the node.
pub(crate) struct RuleContext<'a> {
    /// The adapter's capabilities.
    pub caps: &'a DeviceCaps,
    /// The session's options.
    pub options: &'a GpuOptions,
}

/// A GPU operator that can replace a CPU node, complete: converting it cannot find a new reason.
#[derive(Debug, Clone)]
pub(crate) struct Proposal {
    /// The operator.
    pub op: Arc<dyn DeviceOp>,
    /// CPU nodes that it stands for, from the checked node downwards.
    pub nodes: usize,
    /// It reads all of its input before it gives rows: worth moving an input to the device for.
    pub breaker: bool,
    /// It computes something; false for projections that only rename.
    pub works: bool,
}

impl Proposal {
    /// An operator that handles rows one by one and replaces one node.
    pub(crate) fn row_local(op: Arc<dyn DeviceOp>) -> Self {
        Self { op, nodes: 1, breaker: false, works: true }
    }

    /// An operator that reads all of its input first and replaces a chain of `nodes` nodes.
    pub(crate) fn breaker(op: Arc<dyn DeviceOp>, nodes: usize) -> Self {
        Self { op, nodes, breaker: true, works: true }
    }

    /// The same operator, with nothing to compute.
    pub(crate) fn without_work(self) -> Self {
        Self { works: false, ..self }
    }
}

/// Looks for the type of a node among the registered ones.
macro_rules! rules {
    ($($exec:ty => $check:path,)+) => {
        /// The proposal of the rule for this node's type, or the reasons against it.
        pub(crate) fn check(
            plan: &Arc<dyn ExecutionPlan>,
            context: &RuleContext<'_>,
        ) -> Result<Proposal, Vec<Reason>> {
            $(if let Some(exec) = plan.downcast_ref::<$exec>() {
                return $check(exec, context);
            })+
            Err(vec![no_rule(plan.as_ref())])
        }

        /// True when a rule is registered for this node's type.
        pub(crate) fn is_registered(plan: &dyn ExecutionPlan) -> bool {
            $(plan.is::<$exec>())||+
        }
    };
}

/// The reason for nodes of which no rule is registered.
pub(crate) fn no_rule(plan: &dyn ExecutionPlan) -> Reason {
    Reason::UnsupportedOperator { operator: plan.name().to_string() }
}

rules! {
    FilterExec => filter::check,
    ProjectionExec => projection::check,
    AggregateExec => aggregate::check,
}
