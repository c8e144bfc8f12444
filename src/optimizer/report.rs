//! What runs where, and why not: the outcome of placing one plan, as data and as text.

use std::fmt;

use super::reason::Reason;
use super::tag::{Tagged, Verdict};

/// Where a node of the CPU plan ends up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum NodePlacement {
    /// A GPU node replaces it.
    Gpu,
    /// A GPU node further up replaces it together with others.
    PartOfGpu,
    /// It stays as it is, and only passes batches on.
    Transparent,
    /// It stays on the CPU.
    Cpu,
}

impl NodePlacement {
    /// Lower-case name, as `gpu_explain()` shows it.
    pub fn name(self) -> &'static str {
        match self {
            NodePlacement::Gpu => "gpu",
            NodePlacement::PartOfGpu => "part_of_gpu",
            NodePlacement::Transparent => "transparent",
            NodePlacement::Cpu => "cpu",
        }
    }
}

/// One node of the CPU plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlacementNode {
    /// Levels below the root.
    pub depth: usize,
    /// Name of the node in the CPU plan, e.g. `FilterExec`.
    pub cpu_name: String,
    /// Where it ends up.
    pub placement: NodePlacement,
    /// Name of the node that replaces it, e.g. `GpuFilterExec`.
    pub gpu_name: Option<String>,
    /// Why it stays on the CPU; empty when it does not.
    pub reasons: Vec<Reason>,
}

/// The placement of every node of one plan, in the order of EXPLAIN.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PlacementReport {
    /// The nodes, the root first.
    pub nodes: Vec<PlacementNode>,
}

impl PlacementReport {
    /// The report on a plan whose verdicts are final.
    pub(crate) fn new(tagged: &Tagged) -> Self {
        let mut nodes: Vec<PlacementNode> = vec![];
        let mut cover: Vec<(usize, String)> = vec![];
        for (id, node) in tagged.nodes.iter().enumerate() {
            let (placement, gpu_name, reasons) = match &node.verdict {
                Verdict::Gpu(proposal) => {
                    let name = proposal.op.name().to_string();
                    cover.extend(tagged.covered(id).into_iter().map(|covered| (covered, name.clone())));
                    (NodePlacement::Gpu, Some(name), vec![])
                }
                Verdict::Covered => {
                    let name = cover.iter().find(|(covered, _)| *covered == id).map(|(_, name)| name.clone());
                    (NodePlacement::PartOfGpu, name, vec![])
                }
                Verdict::Transparent => (NodePlacement::Transparent, None, vec![]),
                Verdict::Cpu(reasons) => (NodePlacement::Cpu, None, reasons.clone()),
            };
            let cpu_name = node.plan.name().to_string();
            nodes.push(PlacementNode { depth: node.depth, cpu_name, placement, gpu_name, reasons });
        }
        Self { nodes }
    }

    /// True when at least one node moves to the GPU.
    pub fn uses_gpu(&self) -> bool {
        self.nodes.iter().any(|node| node.placement == NodePlacement::Gpu)
    }

    /// Codes of the reasons of all nodes named `cpu_name`, in plan order.
    pub fn codes(&self, cpu_name: &str) -> Vec<&'static str> {
        let named = self.nodes.iter().filter(|node| node.cpu_name == cpu_name);
        named.flat_map(|node| &node.reasons).map(Reason::code).collect()
    }
}

impl fmt::Display for PlacementReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for node in &self.nodes {
            write!(f, "{:indent$}{}", "", node.cpu_name, indent = node.depth * 2)?;
            match (&node.placement, &node.gpu_name) {
                (NodePlacement::Gpu, Some(name)) => writeln!(f, " -> {name}")?,
                (NodePlacement::PartOfGpu, Some(name)) => writeln!(f, " (part of {name})")?,
                (NodePlacement::Transparent, _) => writeln!(f)?,
                _ => {
                    let reasons: Vec<_> = node.reasons.iter().map(|r| format!("{}: {r}", r.code())).collect();
                    writeln!(f, " [CPU] {}", reasons.join("; "))?;
                }
            }
        }
        Ok(())
    }
}
