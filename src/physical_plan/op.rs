//! What a GPU operator is: a description without device handles.

use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

use datafusion::common::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;

use crate::memory::batch::GpuBatch;

use super::exec::GpuExec;
use super::params::{ParamTable, ParamValues};

/// One SQL operator on the device. A [`GpuExec`] wraps it; one file holds one operator.
pub trait DeviceOp: Any + Debug + Send + Sync {
    /// Name of the plan node, e.g. `GpuFilterExec`.
    fn name(&self) -> &'static str;

    /// What EXPLAIN shows of the operator, e.g. `predicate` and `a@0 > 5`.
    fn details(&self) -> Vec<(&'static str, String)>;

    /// Sources of the operator's parameters.
    fn params(&self) -> &ParamTable;

    /// How the operator runs.
    fn kind(&self) -> OpKind<'_>;

    /// Whether the operator reads all input partitions and gives one, because an exchange below it was dropped.
    fn merges_partitions(&self) -> bool {
        false
    }

    /// Dynamic filters that the operator updates while it runs.
    fn dynamic_expressions(&self) -> Vec<Arc<dyn PhysicalExpr>> {
        vec![]
    }
}

/// The two ways in which operators run.
pub enum OpKind<'a> {
    /// Rows go through one by one: nothing is launched, the batch's expressions are rewritten.
    RowLocal(&'a dyn RowLocalOp),
    /// The operator consumes its input before it gives rows.
    Breaker(&'a dyn BreakerOp),
}

/// An operator whose output for a batch depends on that batch alone.
pub trait RowLocalOp: Send + Sync {
    /// The operator applied to a lazy batch. `params` are the values of [`DeviceOp::params`].
    ///
    /// # Errors
    /// An internal error when the batch does not have the columns that the operator was planned on.
    fn apply(&self, batch: GpuBatch, params: &ParamValues) -> Result<GpuBatch>;

    /// Rows after which the operator stops; such an operator gives its rows to the host, where they are counted.
    fn fetch(&self) -> Option<usize> {
        None
    }
}

/// An operator that reads all of its input first.
pub trait BreakerOp: Send + Sync {
    /// Runs output partition `partition` of `node`, which wraps this operator.
    fn run(
        &self,
        node: Arc<GpuExec>,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream>;
}
