//! Groups that were all merged on the device: no key is there twice, so each state is made a value on its own.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use datafusion::common::runtime::SpawnedTask;
use datafusion::common::{DataFusionError, Result, internal_err};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::execution::memory_pool::MemoryReservation;
use datafusion::logical_expr::EmitTo;
use datafusion::physical_plan::metrics::RecordOutput;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::stream::{self, StreamExt, TryStreamExt};

use crate::error::{GpuError, GpuResult};
use crate::kernels::group_by::{FetchedGroups, GroupResult};

use super::super::super::exec::GpuExec;
use super::super::super::run::RunContext;
use super::GroupOp;
use super::keys::FixedKeys;
use super::states;

/// Groups on the host.
pub(super) struct HostGroups {
    pub parts: Vec<FetchedGroups>,
    /// What they take of the query's memory pool.
    pub memory: MemoryReservation,
}

/// All groups of a run, each once.
pub(super) struct Finished {
    groups: HostGroups,
    keys: FixedKeys,
}

impl Finished {
    /// Whether DataFusion's functions make values of the operator's states a batch at a time.
    pub(super) fn can_be_of(op: &GroupOp) -> bool {
        !op.is_final() || op.functions.iter().all(|function| function.groups_accumulator_supported())
    }

    /// The groups, unless a key is NULL where the schema knows of none.
    pub(super) fn new(op: &GroupOp, groups: HostGroups, keys: &FixedKeys) -> Option<Finished> {
        let fields = op.state_schema.fields().iter().take(op.merged_group.expr().len());
        let required: Vec<usize> = keys
            .arrays()
            .zip(fields)
            .filter(|(_, field)| !field.is_nullable())
            .filter_map(|(key, _)| key)
            .collect();
        let valid = |part: &FetchedGroups| required.iter().all(|key| !part.has_null(*key));
        groups.parts.iter().all(valid).then(|| Finished { groups, keys: keys.clone() })
    }

    /// The values, or of a partial step the states, in batches of the session's size.
    pub(super) fn stream(
        self,
        node: Arc<GpuExec>,
        run: Arc<RunContext>,
    ) -> Result<SendableRecordBatchStream> {
        let op = GroupOp::of(&node)?;
        let (schema, raises) = (Arc::clone(&op.schema), op.values_may_raise()?);
        let config = run.task().session_config();
        let (rows, tasks) = (config.batch_size().max(1), config.target_partitions().max(1));
        let parts = self.groups.parts.iter().enumerate();
        let pieces = parts.flat_map(|(part, groups)| {
            let groups = groups.groups();
            (0..groups).step_by(rows).map(move |first| (part, first, rows.min(groups - first)))
        });
        let pieces: Vec<_> = pieces.collect();
        let groups = Arc::new(self);
        let batches = stream::iter(pieces).map(move |piece| {
            let (groups, node) = (Arc::clone(&groups), Arc::clone(&node));
            let work = SpawnedTask::spawn(async move { groups.batch(GroupOp::of(&node)?, piece) });
            async move {
                work.join_unwind().await.map_err(|error| DataFusionError::ExecutionJoin(Box::new(error)))?
            }
        });
        let batches = batches.buffered(tasks);
        // DataFusion makes all values before it gives some: what raises is met under any LIMIT.
        let batches = match raises {
            false => batches.left_stream(),
            true => stream::once(batches.try_collect::<Vec<RecordBatch>>())
                .map_ok(|batches| stream::iter(batches.into_iter().map(Ok)))
                .try_flatten()
                .right_stream(),
        };
        let batches = batches.map(move |batch| Ok(batch?.record_output(&run.metrics.baseline)));
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, batches)))
    }

    /// Some groups of a part, by number of the first.
    fn batch(&self, op: &GroupOp, (part, first, groups): (usize, usize, usize)) -> Result<RecordBatch> {
        let Some(part) = self.groups.parts.get(part) else {
            return internal_err!("GpuAggregateExec: groups of a part that does not exist");
        };
        let states = op.kept_states(&self.keys, &part.result(first, groups)?)?;
        let columns = if op.is_final() { op.values(&states)? } else { states.columns().to_vec() };
        Ok(RecordBatch::try_new(Arc::clone(&op.schema), columns)?)
    }
}

impl GroupOp {
    /// Rows of DataFusion's partial aggregate out of groups whose keys and states do not need their batch.
    ///
    /// # Errors
    /// [`GpuError::Internal`] where groups and schema do not fit.
    pub(super) fn kept_states(&self, keys: &FixedKeys, result: &GroupResult) -> GpuResult<RecordBatch> {
        let internal = |error: DataFusionError| GpuError::Internal(error.to_string());
        let mut columns = keys.columns(&result.keys, result.groups)?;
        if self.of_states {
            let fields = self.state_schema.fields().iter().skip(columns.len());
            for (state, field) in result.states.iter().zip(fields) {
                columns.push(states::merged(state, None, field).map_err(internal)?);
            }
        } else {
            let functions = self.aggregates.iter().zip(&self.functions);
            for ((spec, function), state) in functions.zip(&result.states) {
                columns.extend(states::columns(spec, function, state, None).map_err(internal)?);
            }
        }
        states::batch(&self.state_schema, columns).map_err(internal)
    }

    /// Whether some function may raise when it makes a value of a state: averages of decimals, whose digits are checked.
    fn values_may_raise(&self) -> Result<bool> {
        let mut raises = false;
        for function in self.functions.iter().filter(|_| self.is_final()) {
            raises |= function.field().data_type().is_decimal() && function.state_fields()?.len() > 1;
        }
        Ok(raises)
    }

    /// Keys and values of states whose keys are there once each, by DataFusion's accumulators.
    fn values(&self, states: &RecordBatch) -> Result<Vec<ArrayRef>> {
        let rows = states.num_rows();
        let groups: Vec<usize> = (0..rows).collect();
        let keys = self.merged_group.expr().len();
        let mut columns = states.columns().iter().take(keys).cloned().collect::<Vec<_>>();
        let mut next = keys;
        for function in &self.functions {
            let end = next + function.state_fields()?.len();
            let Some(own) = states.columns().get(next..end) else {
                return internal_err!("GpuAggregateExec: {} has no states", function.name());
            };
            let mut accumulator = function.create_groups_accumulator()?;
            accumulator.merge_batch(own, &groups, rows)?;
            columns.push(accumulator.evaluate(EmitTo::All)?);
            next = end;
        }
        Ok(columns)
    }
}
