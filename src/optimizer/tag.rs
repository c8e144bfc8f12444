//! First pass: every node of a plan gets a verdict of its own, bottom-up, without looking at its neighbours' use of it.

use std::sync::Arc;

use datafusion::physical_plan::buffer::BufferExec;
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::recursive_query::RecursiveQueryExec;
use datafusion::physical_plan::work_table::WorkTableExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};

use super::reason::Reason;
use super::registry::{self, Proposal, RuleContext};

/// What is to happen to one node.
#[derive(Debug, Clone)]
pub(crate) enum Verdict {
    /// A GPU operator replaces it, and the nodes below it that the proposal covers.
    Gpu(Proposal),
    /// A GPU operator further up stands for it too.
    Covered,
    /// It only passes batches on; GPU nodes see through it.
    Transparent,
    /// It stays as it is.
    Cpu(Vec<Reason>),
}

/// One node of a tagged plan.
#[derive(Debug)]
pub(crate) struct Node {
    /// The CPU node.
    pub plan: Arc<dyn ExecutionPlan>,
    /// Levels below the root.
    pub depth: usize,
    /// Its children in the plan.
    pub children: Vec<usize>,
    /// What is to happen to it.
    pub verdict: Verdict,
}

/// A plan with verdicts: its nodes in the order of EXPLAIN, the root first.
#[derive(Debug, Default)]
pub(crate) struct Tagged {
    /// All nodes; children come after their parents.
    pub nodes: Vec<Node>,
}

impl Tagged {
    /// A plan in which every node stays on the CPU.
    pub(crate) fn refused(
        plan: &Arc<dyn ExecutionPlan>,
        reason: &dyn Fn(&dyn ExecutionPlan) -> Reason,
    ) -> Self {
        let mut tagged = Self::default();
        tagged.add(plan, 0, &|node| Verdict::Cpu(vec![reason(node.as_ref())]));
        tagged
    }

    /// Tags `plan` with the registered rules.
    pub(crate) fn new(plan: &Arc<dyn ExecutionPlan>, context: &RuleContext<'_>) -> Self {
        let mut tagged = Self::default();
        tagged.add(plan, 0, &|plan| verdict(plan, context));
        tagged.decline_recursive_terms();
        tagged
    }

    fn add(
        &mut self,
        plan: &Arc<dyn ExecutionPlan>,
        depth: usize,
        verdict: &dyn Fn(&Arc<dyn ExecutionPlan>) -> Verdict,
    ) -> usize {
        let id = self.nodes.len();
        let placeholder = Verdict::Transparent;
        self.nodes.push(Node { plan: Arc::clone(plan), depth, children: vec![], verdict: placeholder });
        let children = plan.children().into_iter().map(|child| self.add(child, depth + 1, verdict)).collect();
        self.nodes[id].children = children;
        self.nodes[id].verdict = verdict(plan);
        id
    }

    /// Terms of recursive queries are executed again and again by re-setting them, which GPU nodes don't take part in.
    fn decline_recursive_terms(&mut self) {
        for id in 0..self.nodes.len() {
            if self.nodes[id].plan.is::<RecursiveQueryExec>() {
                for child in self.nodes[id].children.clone() {
                    self.decline_subtree(child);
                }
            }
        }
    }

    fn decline_subtree(&mut self, root: usize) {
        let mut open = vec![root];
        while let Some(id) = open.pop() {
            let node = &mut self.nodes[id];
            open.extend(&node.children);
            match &mut node.verdict {
                Verdict::Cpu(reasons) => reasons.push(Reason::RecursiveQuery),
                verdict => *verdict = Verdict::Cpu(vec![Reason::RecursiveQuery]),
            }
        }
    }

    /// The nodes that the operator proposed at `id` covers besides `id` itself.
    pub(crate) fn covered(&self, id: usize) -> Vec<usize> {
        let Verdict::Gpu(proposal) = &self.nodes[id].verdict else { return vec![] };
        let mut covered = vec![];
        let mut last = id;
        for _ in 1..proposal.nodes {
            let Some(child) = self.nodes[last].children.first() else { break };
            covered.push(*child);
            last = *child;
        }
        covered
    }

    /// The nodes that give the operator proposed at `id` its rows.
    pub(crate) fn inputs(&self, id: usize) -> &[usize] {
        let bottom = self.covered(id).last().copied().unwrap_or(id);
        &self.nodes[bottom].children
    }
}

fn verdict(plan: &Arc<dyn ExecutionPlan>, context: &RuleContext<'_>) -> Verdict {
    if plan.is::<CooperativeExec>() || plan.is::<BufferExec>() {
        return Verdict::Transparent;
    }
    if plan.is::<WorkTableExec>() || plan.is::<RecursiveQueryExec>() {
        return Verdict::Cpu(vec![Reason::RecursiveQuery]);
    }
    match registry::check(plan, context) {
        Ok(_) if plan.boundedness().is_unbounded() => Verdict::Cpu(vec![Reason::Unbounded]),
        Ok(proposal) => Verdict::Gpu(proposal),
        Err(reasons) => Verdict::Cpu(reasons),
    }
}
