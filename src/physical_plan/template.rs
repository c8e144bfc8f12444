//! The CPU plan that a GPU node stands for, with holes where its children go.

use std::fmt;
use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::common::{Result, internal_datafusion_err, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::execution_plan::replace_children_if_necessary;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};

/// A CPU node, or a chain of nodes with one child each, that one GPU node replaces.
///
/// The children are cut out, so that a fallback is always built from the GPU node's own current children.
#[derive(Debug, Clone)]
pub struct Template {
    root: Arc<dyn ExecutionPlan>,
    nodes: usize,
}

impl Template {
    /// The template of one CPU node.
    ///
    /// # Errors
    /// Those of the node's `replace_children`.
    pub fn node(node: &Arc<dyn ExecutionPlan>) -> Result<Self> {
        Self::chain(node, 1)
    }

    /// The template of `nodes` CPU nodes from `root` downwards, of which all but the last have one child.
    ///
    /// # Errors
    /// An internal error when the plan is not such a chain.
    pub fn chain(root: &Arc<dyn ExecutionPlan>, nodes: usize) -> Result<Self> {
        fn cut(node: &Arc<dyn ExecutionPlan>, nodes: usize) -> Result<Arc<dyn ExecutionPlan>> {
            let children = node.children();
            let children = if nodes <= 1 {
                children.iter().enumerate().map(|(index, child)| HoleExec::over(index, child)).collect()
            } else {
                let [child] = children.as_slice() else {
                    return internal_err!("{} is not part of a chain", node.name());
                };
                vec![cut(child, nodes - 1)?]
            };
            replace_children_if_necessary(Arc::clone(node), children)
        }
        Ok(Self { root: cut(root, nodes)?, nodes })
    }

    /// The topmost CPU node.
    pub fn root(&self) -> &Arc<dyn ExecutionPlan> {
        &self.root
    }

    /// The same chain with other state in its nodes, e.g. after a reset.
    pub(crate) fn with_root(&self, root: Arc<dyn ExecutionPlan>) -> Self {
        Self { root, nodes: self.nodes }
    }

    /// How many CPU nodes the template has.
    #[expect(clippy::len_without_is_empty, reason = "a template has at least one node")]
    pub fn len(&self) -> usize {
        self.nodes
    }

    /// The CPU nodes from the top downwards.
    pub fn nodes(&self) -> impl Iterator<Item = &Arc<dyn ExecutionPlan>> {
        let mut next = Some(&self.root);
        (0..self.nodes).map_while(move |_| {
            let node = next?;
            next = node.children().first().copied();
            Some(node)
        })
    }

    /// The node whose children are the holes.
    pub fn bottom(&self) -> &Arc<dyn ExecutionPlan> {
        self.nodes().last().unwrap_or(&self.root)
    }

    /// The CPU plan over `children`.
    ///
    /// # Errors
    /// Those of `replace_children`, e.g. children with another schema.
    pub fn instantiate(&self, children: &[Arc<dyn ExecutionPlan>]) -> Result<Arc<dyn ExecutionPlan>> {
        Arc::clone(&self.root)
            .transform_up(|node| match node.downcast_ref::<HoleExec>() {
                None => Ok(Transformed::no(node)),
                Some(hole) => {
                    let child = children.get(hole.index).ok_or_else(|| {
                        internal_datafusion_err!(
                            "template needs child {}, has {}",
                            hole.index,
                            children.len()
                        )
                    })?;
                    Ok(Transformed::yes(Arc::clone(child)))
                }
            })
            .data()
    }
}

/// Stands for child `index` in a template. It is never executed.
///
/// It has the child's own properties, and no statistics: so the nodes above keep what they know of their output, such as a column
/// that statistics show to have one value, and which could not be found out again.
#[derive(Debug)]
pub(crate) struct HoleExec {
    index: usize,
    properties: Arc<PlanProperties>,
}

impl HoleExec {
    fn over(index: usize, child: &Arc<dyn ExecutionPlan>) -> Arc<dyn ExecutionPlan> {
        Arc::new(Self { index, properties: Arc::clone(child.properties()) })
    }
}

impl DisplayAs for HoleExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HoleExec: child={}", self.index)
    }
}

impl ExecutionPlan for HoleExec {
    fn name(&self) -> &'static str {
        "HoleExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![]
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(self: Arc<Self>, _: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(self)
    }

    fn execute(&self, _: usize, _: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        internal_err!("the template of a GPU node was executed without its children")
    }
}
