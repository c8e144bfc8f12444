//! The tables of the operators' queries: one in memory, the same rows in Parquet files and in a source that is not known to be
//! repeatable, and fewer rows in one partition.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::catalog::TableProvider;
use datafusion::catalog::streaming::StreamingTable;
use datafusion::datasource::MemTable;
use datafusion::error::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::parquet::arrow::ArrowWriter;
use datafusion::parquet::file::properties::WriterProperties;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::streaming::PartitionStream;
use datafusion::prelude::{ParquetReadOptions, SessionContext};
use tempfile::TempDir;

use crate::error::problem;

/// Partitions, and Parquet files.
const PARTS: usize = 4;
/// Rows of a row group of the files.
const ROW_GROUP: usize = 50_000;

/// The tables by name; the files go with them.
pub struct Tables {
    tables: Vec<(&'static str, Arc<dyn TableProvider>)>,
    _folder: TempDir,
}

impl Tables {
    /// Makes the rows.
    pub async fn new(rows: u32) -> Result<Self> {
        let (schema, parts) = generate(rows).await?;
        let folder = TempDir::new()?;
        let sources = parts.iter().map(|batches| {
            Arc::new(Again { schema: Arc::clone(&schema), batches: batches.clone() })
                as Arc<dyn PartitionStream>
        });
        let again = StreamingTable::try_new(Arc::clone(&schema), sources.collect())?;
        let some = parts.first().cloned().unwrap_or_default();
        let tables: Vec<(&str, Arc<dyn TableProvider>)> = vec![
            ("p", files(folder.path(), &parts).await?),
            ("r", Arc::new(again)),
            ("u", Arc::new(MemTable::try_new(Arc::clone(&schema), vec![some])?)),
            ("t", Arc::new(MemTable::try_new(schema, parts)?)),
        ];
        Ok(Self { tables, _folder: folder })
    }

    /// Lets a session read them.
    pub fn register(&self, ctx: &SessionContext) -> Result<()> {
        for (name, table) in &self.tables {
            ctx.register_table(*name, Arc::clone(table))?;
        }
        Ok(())
    }
}

/// The rows in partitions of batches.
async fn generate(rows: u32) -> Result<(SchemaRef, Vec<Vec<RecordBatch>>)> {
    let ctx = SessionContext::new();
    let sql = format!(
        "SELECT id, v, CASE WHEN id % 7 <> 3 THEN CAST(id % 1000 AS INT) END AS k, \
         CAST(v * 100 + id % 100 AS DECIMAL(15, 0)) AS d, \
         CASE WHEN id % 5 <> 0 THEN CAST(id AS DOUBLE) / 8 END AS f, CAST(CAST(id % 3650 AS INT) AS DATE) AS day, \
         concat('name ', CAST(id % 97 AS VARCHAR)) AS s \
         FROM (SELECT value AS id, (value * 7919 + 13) % 100003 AS v FROM generate_series(0, {}))",
        u64::from(rows) - 1
    );
    let frame = ctx.sql(&sql).await?;
    let schema = Arc::new(frame.schema().as_arrow().clone());
    let mut parts = vec![vec![]; PARTS];
    for (number, batch) in frame.collect().await?.into_iter().enumerate() {
        parts[number % PARTS].push(batch.with_schema(Arc::clone(&schema))?);
    }
    Ok((schema, parts))
}

/// A file a partition that has rows.
async fn files(folder: &Path, parts: &[Vec<RecordBatch>]) -> Result<Arc<dyn TableProvider>> {
    let properties = WriterProperties::builder().set_max_row_group_row_count(Some(ROW_GROUP)).build();
    for (number, batches) in parts.iter().enumerate() {
        let Some(first) = batches.first() else { continue };
        let file = File::create(folder.join(format!("{number}.parquet")))?;
        let mut writer = ArrowWriter::try_new(file, first.schema(), Some(properties.clone()))?;
        for batch in batches {
            writer.write(batch)?;
        }
        writer.close()?;
    }
    let ctx = SessionContext::new();
    let path = folder.to_str().ok_or_else(|| problem("the temporary folder's name is not Unicode"))?;
    ctx.register_parquet("p", path, ParquetReadOptions::default()).await?;
    ctx.table_provider("p").await
}

/// A partition that can be read again, though nobody knows.
#[derive(Debug)]
struct Again {
    schema: SchemaRef,
    batches: Vec<RecordBatch>,
}

impl PartitionStream for Again {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, _: Arc<TaskContext>) -> SendableRecordBatchStream {
        let batches = futures::stream::iter(self.batches.clone().into_iter().map(Ok));
        Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&self.schema), batches))
    }
}

#[cfg(test)]
mod tests {
    use datafusion::physical_plan::{ExecutionPlanProperties, collect, displayable};
    use datafusion::prelude::SessionConfig;
    use datafusion_wgpu::physical_plan::replay::is_repeatable;

    use super::*;

    /// What the list of operators promises of each table.
    #[tokio::test]
    async fn tables_are_of_different_kinds() {
        let ctx = SessionContext::new_with_config(SessionConfig::new().with_target_partitions(4));
        // The files go with it.
        let tables = Tables::new(40_000).await.unwrap();
        tables.register(&ctx).unwrap();
        let mut counts = vec![];
        for (name, part, repeatable) in [
            ("t", "DataSourceExec: partitions=4", true),
            ("p", "file_type=parquet", true),
            ("r", "StreamingTableExec", false),
            ("u", "DataSourceExec: partitions=1", true),
        ] {
            let plan = ctx.sql(&format!("SELECT * FROM {name}")).await.unwrap().create_physical_plan().await;
            let plan = plan.unwrap();
            let text = displayable(plan.as_ref()).indent(false).to_string();
            assert!(text.contains(part), "{name}: {text}");
            assert_eq!(is_repeatable(&plan), repeatable, "{name}: {text}");
            assert_eq!(name == "u", plan.output_partitioning().partition_count() == 1, "{name}: {text}");
            let rows = collect(plan, ctx.task_ctx()).await.unwrap();
            counts.push(rows.iter().map(RecordBatch::num_rows).sum::<usize>());
        }
        assert!(counts[..3] == [40_000; 3] && counts[3] > 0 && counts[3] < 40_000, "{counts:?}");
    }
}
