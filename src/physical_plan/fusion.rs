//! How far lazy batches go. Row-local operators put their expressions into one another and compute nothing, and one kernel does it
//! all in the end; but what one kernel computes is bounded, or shaders would grow with the number of operators. Where the
//! next operator would exceed the bound, the rows go through the host.

use std::sync::Arc;

use datafusion::physical_plan::ExecutionPlan;

use crate::memory::batch::{GpuBatch, SourceBatch};

use super::exec::GpuExec;
use super::op::{DeviceOp, OpKind};

/// Nodes that the expressions of fused operators may have together, what they share counted once. A single operator is bounded
/// when it is planned.
const MAX_NODES: usize = 2_000;
/// Depth of such expressions: shaders are made recursively.
const MAX_DEPTH: usize = 200;

/// What a node takes from the node below it, and what comes of it.
#[derive(Debug, Clone)]
pub(super) struct Fusion {
    /// Lazy batches come from the GPU node below.
    pub device_input: bool,
    /// A lazy batch of no rows that a row-local node gives, with parameters of no value.
    output: Option<GpuBatch>,
}

impl Fusion {
    /// Of a node that runs `op` over `children`.
    pub(super) fn of(op: &dyn DeviceOp, children: &[Arc<dyn ExecutionPlan>]) -> Self {
        let below = children.iter().find_map(|child| GpuExec::find(child));
        let below = below.filter(|below| below.has_device_output());
        let (OpKind::RowLocal(own), [child]) = (op.kind(), children) else {
            return Fusion { device_input: below.is_some(), output: None };
        };
        let values = op.params().without_values();
        let apply = |batch: GpuBatch| own.apply(batch, &values).ok();
        let fused = below.and_then(|below| apply(below.fusion().output.clone()?));
        let fits = |batch: &GpuBatch| {
            let (nodes, depth) = batch.extent();
            nodes <= MAX_NODES && depth <= MAX_DEPTH
        };
        if let Some(output) = fused.filter(fits) {
            return Fusion { device_input: true, output: Some(output) };
        }
        let source = SourceBatch::new(child.schema(), vec![]);
        Fusion { device_input: false, output: apply(GpuBatch::new(Arc::new(source))) }
    }
}
