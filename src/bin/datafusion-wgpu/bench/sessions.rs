//! Sessions over the same tables, with and without the GPU, from Parquet and from memory.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use datafusion::catalog::TableProvider;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::datasource::MemTable;
use datafusion::error::Result;
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::prelude::{ParquetReadOptions, SessionConfig, SessionContext};
use datafusion_wgpu::{GpuRuntime, register_gpu_runtime};

use super::flags::Source;
use super::suite::Suite;

type Tables = Vec<(String, Arc<dyn TableProvider>)>;

/// Tables that sessions share, and what they have in common.
pub struct Sessions {
    config: SessionConfig,
    env: Arc<RuntimeEnv>,
    parquet: Tables,
    memory: Tables,
}

impl Sessions {
    /// Opens the suite's Parquet tables.
    ///
    /// # Errors
    /// Files that can't be read.
    pub async fn open(config: SessionConfig, suite: &Suite) -> Result<Sessions> {
        let mut sessions =
            Sessions { config, env: Arc::new(RuntimeEnv::default()), parquet: vec![], memory: vec![] };
        let ctx = sessions.cpu(Source::Parquet)?;
        for name in &suite.tables {
            let folder = folder(&suite.folder, name);
            ctx.register_parquet(*name, folder, ParquetReadOptions::default()).await?;
            sessions.parquet.push(((*name).to_owned(), ctx.table_provider(*name).await?));
        }
        Ok(sessions)
    }

    /// Reads the tables of these names into memory, in as many partitions as plans have.
    ///
    /// # Errors
    /// Files that can't be read.
    pub async fn load(&mut self, names: &BTreeSet<String>) -> Result<()> {
        let ctx = self.cpu(Source::Parquet)?;
        for (name, table) in self.parquet.iter().filter(|(name, _)| names.contains(name)) {
            let rows = ctx.table(name.as_str()).await?.collect_partitioned().await;
            let partitions = rows.map_err(|e| e.context(format!("reading table {name}")))?;
            let table: Arc<dyn TableProvider> = Arc::new(MemTable::try_new(table.schema(), partitions)?);
            self.memory.push((name.clone(), table));
        }
        Ok(())
    }

    /// A session without the GPU.
    ///
    /// # Errors
    /// None at present.
    pub fn cpu(&self, source: Source) -> Result<SessionContext> {
        let ctx = SessionContext::new_with_config_rt(self.config.clone(), Arc::clone(&self.env));
        let tables = match source {
            Source::Parquet => &self.parquet,
            Source::Memory => &self.memory,
        };
        for (name, table) in tables {
            ctx.register_table(name.as_str(), Arc::clone(table))?;
        }
        Ok(ctx)
    }

    /// A session with the GPU behind it.
    ///
    /// # Errors
    /// None at present.
    pub fn gpu(&self, source: Source, runtime: &Arc<GpuRuntime>) -> Result<SessionContext> {
        let ctx = self.cpu(source)?;
        register_gpu_runtime(&ctx, Arc::clone(runtime))?;
        Ok(ctx)
    }

    /// The configuration of all sessions.
    pub fn config(&self) -> &SessionConfig {
        &self.config
    }
}

/// A folder as a table's location: only a path that ends with a slash is taken for a folder whatever its name.
fn folder(root: &Path, table: &str) -> String {
    format!("{}/", root.join(table).display())
}

/// Names of the tables that a plan reads.
///
/// # Errors
/// None at present.
pub fn tables_of(plan: &LogicalPlan) -> Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    plan.apply_with_subqueries(|node| {
        if let LogicalPlan::TableScan(scan) = node {
            names.insert(scan.table_name.table().to_owned());
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(names)
}

/// Names of the nodes of a physical plan, in the order of EXPLAIN.
pub fn nodes_of(plan: &Arc<dyn ExecutionPlan>) -> Vec<String> {
    let below = plan.children().into_iter().flat_map(nodes_of);
    std::iter::once(plan.name().to_owned()).chain(below).collect()
}
