//! Table functions: what the GPU layer knows, as SQL tables. [`register_gpu`](crate::register_gpu) and
//! [`with_gpu`](crate::GpuSessionStateBuilderExt::with_gpu) register them.
//!
//! | function | a row for each | columns |
//! |---|---|---|
//! | `gpu_devices()` | adapter | `index`, `name`, `kind`, `backend`, `driver`, `driver_info`, `int64`, `float64`, `memory_bytes` (NULL where the backend does not tell), `selected` (the one that `gpu.adapter` and `gpu.allow_software_adapter` choose), `usable`, `why_not` (NULL when usable) |
//! | `gpu_options()` | `gpu.*` option | `name`, `value`, `default`, `description` |
//! | `gpu_explain('SELECT ...')` | node of the query's CPU plan, the root first | `depth`, `node`, `placement` (`gpu`, `part_of_gpu`, `transparent`, `cpu`), `code`, `sentence`, `expression`; several reasons are joined with `; ` |
//! | `gpu_memory()` | holder of memory on a device that is open, who was promised more or waits for it, and the buffers that wait for reuse | `adapter`, `holder` (NULL for those buffers), `state` (`held`, `promised`, `waiting`, `idle`), `bytes` |
//! | `gpu_fallbacks()` | remembered run-time fallback of this process, the latest first | `time`, `session_id`, `query_id`, `query`, `node`, `scope`, `code`, `message`, `forbidden` |
//!
//! Each scan is a snapshot, taken when the query is planned. Only the selected adapter is opened, and none while the GPU is
//! switched off.

mod devices;
mod explain;
mod fallbacks;
mod memory;
mod options;

use std::fmt;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{Field, Schema, SchemaRef};
use async_trait::async_trait;
use datafusion::catalog::memory::MemorySourceConfig;
use datafusion::catalog::{Session, TableFunction, TableFunctionArgs, TableFunctionImpl, TableProvider};
use datafusion::common::{Result, plan_datafusion_err, plan_err};
use datafusion::logical_expr::{Expr, TableType};
use datafusion::physical_plan::ExecutionPlan;

use crate::memory::GpuRuntime;

/// The functions, for a session that is put together by hand.
pub fn table_functions() -> Vec<Arc<TableFunction>> {
    let functions: [(&str, Arc<dyn TableFunctionImpl>); 5] = [
        (devices::NAME, Arc::new(NoArguments(devices::NAME, devices::table))),
        (options::NAME, Arc::new(NoArguments(options::NAME, options::table))),
        (explain::NAME, Arc::new(explain::ExplainFunction)),
        (memory::NAME, Arc::new(NoArguments(memory::NAME, memory::table))),
        (fallbacks::NAME, Arc::new(NoArguments(fallbacks::NAME, fallbacks::table))),
    ];
    functions.into_iter().map(|(name, f)| Arc::new(TableFunction::new(name.to_owned(), f))).collect()
}

/// A function without arguments: its name, and what makes its table.
#[derive(Debug)]
struct NoArguments(&'static str, fn() -> Snapshot);

impl TableFunctionImpl for NoArguments {
    fn call_with_args(&self, args: TableFunctionArgs) -> Result<Arc<dyn TableProvider>> {
        let NoArguments(name, table) = self;
        match args.exprs().len() {
            0 => Ok(Arc::new(table())),
            given => plan_err!("{name}() takes no arguments, {given} were given"),
        }
    }
}

/// Where the rows of a [`Snapshot`] come from.
#[async_trait]
trait Source: fmt::Debug + Send + Sync {
    /// All rows as of now, with the snapshot's schema.
    async fn rows(&self, schema: SchemaRef, session: &dyn Session) -> Result<RecordBatch>;
}

/// A table whose rows are made anew by each scan.
#[derive(Debug)]
struct Snapshot {
    schema: SchemaRef,
    source: Box<dyn Source>,
}

impl Snapshot {
    fn new(fields: Vec<Field>, source: impl Source + 'static) -> Self {
        Self { schema: Arc::new(Schema::new(fields)), source: Box::new(source) }
    }
}

#[async_trait]
impl TableProvider for Snapshot {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::Temporary
    }

    async fn scan(
        &self,
        session: &dyn Session,
        projection: Option<&Vec<usize>>,
        _filters: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let all = self.source.rows(self.schema(), session).await?;
        let rows = all.slice(0, limit.unwrap_or(usize::MAX).min(all.num_rows()));
        Ok(MemorySourceConfig::try_new_exec(&[vec![rows]], self.schema(), projection.cloned())?)
    }
}

/// The session's runtime.
fn runtime(function: &str, session: &dyn Session) -> Result<Arc<GpuRuntime>> {
    let runtime = session.config().get_extension::<GpuRuntime>();
    runtime
        .ok_or_else(|| plan_datafusion_err!("{function}(): the session has no GPU: call register_gpu first"))
}
