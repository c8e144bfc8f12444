//! DataFusion's own partial aggregate, for batches that fall back.

use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::common::Result;
use datafusion::execution::TaskContext;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode};
use datafusion::physical_plan::empty::EmptyExec;
use futures::TryStreamExt;

use super::super::super::replay::RowLocalChain;
use super::GroupOp;

impl GroupOp {
    /// DataFusion's states of the host batches under a lazy batch.
    ///
    /// # Errors
    /// The expressions' own errors: this is where the CPU gives its verdict.
    pub(super) async fn partial_states(
        &self,
        chain: &RowLocalChain,
        batches: &[RecordBatch],
        task: &Arc<TaskContext>,
    ) -> Result<Vec<RecordBatch>> {
        let (input, partition) = chain.plan(batches)?;
        self.partial(input)?.execute(partition, Arc::clone(task))?.try_collect().await
    }

    /// DataFusion's states of no rows: those of the grouping sets without keys, which have a group even then.
    pub(super) async fn states_of_nothing(&self, task: &Arc<TaskContext>) -> Result<Vec<RecordBatch>> {
        let input = Arc::new(EmptyExec::new(Arc::clone(&self.rows_schema)));
        self.partial(input)?.execute(0, Arc::clone(task))?.try_collect().await
    }

    fn partial(&self, input: Arc<dyn ExecutionPlan>) -> Result<AggregateExec> {
        let mode = if self.of_states { AggregateMode::PartialReduce } else { AggregateMode::Partial };
        let (functions, filters) = (self.functions.clone(), self.filters.clone());
        let schema = Arc::clone(&self.input_schema);
        AggregateExec::try_new(mode, self.group.clone(), functions, filters, input, schema)
    }
}
