//! Merging the states of batches by DataFusion's own aggregate, so that NULLs, types and spilling are DataFusion's.

use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::common::Result;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_expr::{EquivalenceProperties, Partitioning};
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode, AggregateOutputMode};
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{ExecutionPlan, PlanProperties};
use futures::stream::{self, StreamExt};
use tokio::sync::{Mutex, mpsc};

use super::super::super::replay::{ReplayExec, ReplaySlot};
use super::super::super::run::RunContext;
use super::GroupOp;

/// Rows of states up to which one task merges them; more are merged by as many tasks as the session has partitions.
const ROWS_OF_ONE_TASK: usize = 64 << 10;
/// Rows of states that are merged at a time at most, between which other tasks get their turn.
const ROWS_AT_A_TIME: usize = 8 << 10;

/// Merges all of `states`, and gives the groups; the first of them are there when this returns.
///
/// # Errors
/// Those of DataFusion's aggregate, such as a memory pool that is exhausted.
pub(super) async fn merge(
    op: &GroupOp,
    run: &Arc<RunContext>,
    mut states: mpsc::Receiver<RecordBatch>,
) -> Result<SendableRecordBatchStream> {
    let memory = run.host_memory("states");
    let (mut batches, mut rows, mut ended) = (vec![], 0, false);
    while rows <= ROWS_OF_ONE_TASK && !ended {
        match states.recv().await {
            None => ended = true,
            Some(batch) => {
                // What the pool has is first of all for the aggregate, which cannot do without.
                let bytes = batch.get_array_memory_size();
                let full = !run.may_keep(bytes) || memory.try_grow(bytes).is_err();
                rows += batch.num_rows();
                batches.push(batch);
                if full {
                    break;
                }
            }
        }
    }
    let all_at_once = !op.has_groups() || (ended && rows <= ROWS_OF_ONE_TASK);
    let partitions = if all_at_once { 1 } else { run.task().session_config().target_partitions().max(1) };
    let at_a_time = run.task().session_config().batch_size().clamp(1, ROWS_AT_A_TIME);
    let batches = batches.iter().flat_map(|batch| pieces(batch, at_a_time)).collect::<Result<Vec<_>>>()?;
    // Whoever merges hashes every row again: several tasks do that, where the order of states does not count.
    let readers = if op.is_final() && !op.finds_rows() { partitions } else { 1 };
    let states = Arc::new(Mutex::new(states));
    let mut slots: Vec<ReplaySlot> = (0..readers)
        .map(|_| {
            let tail = stream::unfold(Arc::clone(&states), |states| async {
                let batch = states.lock().await.recv().await?;
                Some((batch, states))
            });
            let tail = tail.flat_map(move |batch| stream::iter(pieces(&batch, at_a_time)));
            let tail = RecordBatchStreamAdapter::new(Arc::clone(&op.state_schema), tail);
            ReplaySlot { batches: vec![], tail: Some(Box::pin(tail)), memory: None }
        })
        .collect();
    if let Some(first) = slots.first_mut() {
        (first.batches, first.memory) = (batches, Some(memory));
    }
    let leaf = ReplayExec::over(partitions_of_states(op, readers), slots);
    let mut groups = op.merge_plan(Arc::new(leaf), partitions)?.execute(0, Arc::clone(run.task()))?;
    let first = groups.next().await;
    let schema = groups.schema();
    Ok(Box::pin(RecordBatchStreamAdapter::new(schema, stream::iter(first).chain(groups))))
}

fn pieces(batch: &RecordBatch, rows: usize) -> Vec<Result<RecordBatch>> {
    let starts = (0..batch.num_rows()).step_by(rows);
    starts.map(|at| Ok(batch.slice(at, rows.min(batch.num_rows() - at)))).collect()
}

fn partitions_of_states(op: &GroupOp, partitions: usize) -> Arc<PlanProperties> {
    Arc::new(PlanProperties::new(
        EquivalenceProperties::new(Arc::clone(&op.state_schema)),
        Partitioning::UnknownPartitioning(partitions),
        EmissionType::Incremental,
        Boundedness::Bounded,
    ))
}

impl GroupOp {
    /// DataFusion's aggregate over `states`, in one output partition.
    fn merge_plan(
        &self,
        states: Arc<dyn ExecutionPlan>,
        partitions: usize,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let merging = |mode, input| -> Result<Arc<dyn ExecutionPlan>> {
            let filters = vec![None; self.functions.len()];
            let (group, functions) = (self.merged_group.clone(), self.functions.clone());
            let schema = Arc::clone(&self.input_schema);
            Ok(Arc::new(AggregateExec::try_new(mode, group, functions, filters, input, schema)?))
        };
        match self.output {
            AggregateOutputMode::Partial => merging(AggregateMode::PartialReduce, states),
            AggregateOutputMode::Final if partitions == 1 => merging(AggregateMode::Final, states),
            AggregateOutputMode::Final => {
                let keys = Partitioning::Hash(self.merged_group.input_exprs(), partitions);
                let exchanged = Arc::new(RepartitionExec::try_new(states, keys)?);
                let merged = merging(AggregateMode::FinalPartitioned, exchanged)?;
                Ok(Arc::new(CoalescePartitionsExec::new(merged)))
            }
        }
    }
}
