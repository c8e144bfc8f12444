//! A table on the GPU and on the CPU: the same answers, and how many pipelines they took.

use std::sync::Arc;
use std::time::Duration;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::prelude::SessionContext;
use parking_lot::Mutex;

use crate::harness::{Gpu, TestResult, cpu, run};

pub struct Both {
    pub gpu: Gpu,
    pub cpu: SessionContext,
    log: Arc<Mutex<Vec<u64>>>,
}

impl Both {
    /// Two sessions of one partition that `register` gives their tables.
    pub async fn new(register: impl Fn(&SessionContext) -> TestResult) -> TestResult<Self> {
        let gpu = Gpu::new(1).await?;
        let cpu = cpu(1);
        for ctx in [&gpu.ctx, &cpu] {
            register(ctx)?;
        }
        let log: Arc<Mutex<Vec<u64>>> = Arc::default();
        let into = Arc::clone(&log);
        gpu.runtime.on_query(move |stats| into.lock().push(stats.pipelines_compiled)).forever();
        Ok(Both { gpu, cpu, log })
    }

    /// With table `t`.
    pub async fn with_table(table: RecordBatch) -> TestResult<Self> {
        Both::new(|ctx| {
            ctx.register_batch("t", table.clone())?;
            Ok(())
        })
        .await
    }

    /// Holds that rows and schema are the same on both sides, with every batch from the device; gives the pipelines that were made.
    pub async fn same(&self, sql: &str) -> TestResult<u64> {
        self.log.lock().clear();
        let ran = self.gpu.run(sql).await.map_err(|error| format!("{sql:.200}: {error}"))?;
        let want = run(&self.cpu, sql).await?;
        assert_eq!(ran.rows, want.rows, "{sql:.200}");
        assert!(ran.gpu_batches > 0 && ran.cpu_batches == 0, "{sql:.200}: {:?}\n{}", ran.fallbacks, ran.plan);
        // A query is told of when the last of it is dropped.
        drop(ran);
        for _ in 0..500 {
            if !self.log.lock().is_empty() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let told = std::mem::take(&mut *self.log.lock());
        assert!(!told.is_empty(), "{sql:.200}: nothing was told of the query");
        let (ours, theirs) = (schema(&self.gpu.ctx, sql).await?, schema(&self.cpu, sql).await?);
        assert_eq!(ours, theirs, "{sql:.200}");
        Ok(told.iter().sum())
    }
}

async fn schema(ctx: &SessionContext, sql: &str) -> TestResult<Option<SchemaRef>> {
    let batches = ctx.sql(sql).await?.collect().await?;
    Ok(batches.first().map(RecordBatch::schema))
}
