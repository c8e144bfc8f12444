//! Faults at every step of a query: right answers, no hang, no leak, and the next query runs on the GPU.
//!
//! A new operator is one more line of [`OPERATORS`]; `walk` then breaks its query at the calls of each choke point.

mod upstream;
mod walk;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use datafusion::parquet::arrow::ArrowWriter;
use datafusion::parquet::file::properties::WriterProperties;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::prelude::SessionContext;
use datafusion_wgpu::observe::Subscription;
use datafusion_wgpu::physical_plan::{GpuExec, OpKind};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::harness::{Gpu, Ran, TestResult, cpu, register_files, run, run_plan, table};
use crate::operators::{OPERATORS, Operator};
use crate::sources;

/// Far beyond what any step takes: who waits longer, hangs.
const HANG: Duration = Duration::from_secs(60);

/// First id and rows of each partition: two device batches and one. The first can be split, the others cannot.
const PARTS: [(i64, i64); 2] = [(0, 2_400), (2_400, 300)];
const DEVICE_BATCH_ROWS: &str = "2100";

/// The query that must find a device as good as new.
const NEXT: (&str, &str) = ("SELECT count(*), sum(v) FROM m", "2700|");

/// A session over a device of its own, told when a query has ended.
pub struct Rig {
    gpu: Gpu,
    dir: tempfile::TempDir,
    ended: UnboundedReceiver<()>,
    _told: Subscription,
}

/// The tables of [`OPERATORS`].
pub const TABLES: [&str; 4] = ["t", "p", "r", "u"];

/// Whether a node of the plan reads all of its input before it gives rows: then it makes a difference what is run again.
fn has_islands(plan: &Arc<dyn ExecutionPlan>) -> bool {
    let breaker =
        plan.downcast_ref::<GpuExec>().is_some_and(|exec| matches!(exec.op().kind(), OpKind::Breaker(_)));
    breaker || plan.children().into_iter().any(has_islands)
}

/// Every node type that has a rule is in the list, so that none is left out of the walk.
#[test]
fn every_operator_has_a_line() {
    let registry = include_str!("../../../src/optimizer/registry.rs");
    let rules = registry.split("\nrules! {").nth(1).unwrap_or_default();
    let nodes: Vec<_> = rules.lines().filter_map(|line| line.trim().split_once(" => ")).collect();
    assert!(nodes.iter().any(|(node, _)| *node == "FilterExec"), "{nodes:?}");
    for (node, _) in nodes {
        let gpu = format!("Gpu{node}");
        assert!(
            OPERATORS.iter().any(|operator| operator.node == gpu),
            "{gpu} needs a line in soak/operators.rs"
        );
    }
}

/// Registers the tables of [`OPERATORS`].
async fn register_tables(ctx: &SessionContext, files: &Path) -> TestResult {
    for name in TABLES {
        ctx.deregister_table(name)?;
    }
    ctx.register_table("u", sources::memory(&[(0, 700)])?)?;
    ctx.register_table("t", sources::memory(&PARTS)?)?;
    ctx.register_table("r", sources::unknown(&PARTS)?)?;
    register_files(ctx, "p", files).await
}

impl Rig {
    async fn new() -> TestResult<Self> {
        let dir = tempfile::tempdir()?;
        for (from, rows) in PARTS {
            let out = std::fs::File::create(dir.path().join(format!("part-{from}.parquet")))?;
            write(from, rows, out)?;
        }
        let gpu = Gpu::new(2).await?;
        gpu.set("batch_rows", DEVICE_BATCH_ROWS).await?;
        // A file is a partition. One pass of the optimizer is enough for these queries, and planning is half of their time.
        gpu.ctx.sql("SET datafusion.optimizer.max_passes = 1").await?;
        gpu.ctx.sql("SET datafusion.optimizer.repartition_file_scans = false").await?;
        register_tables(&gpu.ctx, dir.path()).await?;
        gpu.ctx.register_table("m", sources::memory(&[(0, 2_700)])?)?;
        let (sender, ended) = tokio::sync::mpsc::unbounded_channel();
        // The receiver may be gone while the last query of a test ends.
        let told = gpu.runtime.on_query(move |_| sender.send(()).unwrap_or_default());
        Ok(Rig { gpu, dir, ended, _told: told })
    }

    /// A session without the GPU, over the same tables.
    async fn cpu(&self) -> TestResult<SessionContext> {
        let ctx = cpu(2);
        register_tables(&ctx, self.dir.path()).await?;
        Ok(ctx)
    }

    /// Readies the session for an operator's query. Gives DataFusion's own rows.
    async fn prepare(&self, operator: &Operator, scope: &str) -> TestResult<Vec<String>> {
        let exchanges = if operator.keeps_exchanges { "'keep'" } else { "'collapse'" };
        self.gpu.set("exchanges", exchanges).await?;
        self.gpu.set("merge_groups", if operator.keeps_groups { "1" } else { "16384" }).await?;
        self.gpu.set("fallback_scope", scope).await?;
        Ok(run(&self.cpu().await?, operator.sql).await?.rows)
    }

    /// The values of `gpu.fallback_scope` that make a difference to an operator's query.
    async fn scopes(&self, operator: &Operator) -> TestResult<&'static [&'static str]> {
        self.prepare(operator, "'batch'").await?;
        let plan = self.gpu.ctx.sql(operator.sql).await?.create_physical_plan().await?;
        let scopes: &[&str] = if has_islands(&plan) { &["'batch'", "'island'"] } else { &["'batch'"] };
        Ok(scopes)
    }

    /// Runs a query with a GPU node to its end, that of all its tasks included. The inner error is the query's.
    async fn run(&mut self, sql: &str) -> TestResult<TestResult<Ran>> {
        let ran = timeout(HANG, self.gpu.run(sql)).await.map_err(|_| format!("{sql} hangs"))?;
        self.end().await?;
        Ok(ran)
    }

    /// Waits until the query is gone with everything that it held.
    async fn end(&mut self) -> TestResult {
        let report = || format!("the query does not end: {:?}", self.gpu.runtime.observers());
        timeout(HANG, self.ended.recv()).await.map_err(|_| report())?;
        self.gpu.settled().await
    }

    /// A query to which nothing happens: the GPU answers all of it.
    async fn healthy(&mut self, sql: &str, want: &[String]) -> TestResult<Ran> {
        let ran = self.run(sql).await??;
        assert_eq!(ran.rows, want, "{sql}");
        assert!(ran.gpu_batches > 0 && ran.cpu_batches == 0 && ran.fallbacks.is_empty(), "{ran:?}");
        Ok(ran)
    }

    /// Another query after `what`.
    async fn goes_on(&mut self, what: &str) -> TestResult {
        let ran = self.run(NEXT.0).await?.map_err(|error| format!("after {what}: {error}"))?;
        let right = ran.rows.len() == 1 && ran.rows[0].starts_with(NEXT.1);
        let by_gpu = ran.gpu_batches > 0 && ran.cpu_batches == 0 && ran.fallbacks.is_empty();
        assert!(right && by_gpu, "after {what}: {ran:?}");
        Ok(())
    }
}

/// A Parquet file in row groups of 1,000 rows.
fn write(from: i64, rows: i64, out: impl std::io::Write + Send) -> TestResult {
    let batch = table(from, rows)?;
    let properties = WriterProperties::builder().set_max_row_group_row_count(Some(1000)).build();
    let mut writer = ArrowWriter::try_new(out, batch.schema(), Some(properties))?;
    writer.write(&batch)?;
    writer.close()?;
    Ok(())
}

/// How a query ended.
#[derive(Debug)]
enum Verdict {
    Rows(Ran),
    Error(String),
    Panic(String),
}

impl Verdict {
    /// In words, without the numbers of tasks.
    fn text(&self) -> String {
        match self {
            Verdict::Rows(ran) => ran.rows.join(", "),
            Verdict::Error(text) => format!("error: {}", without_task_numbers(text)),
            Verdict::Panic(text) => format!("panic: {text}"),
        }
    }
}

fn without_task_numbers(text: &str) -> String {
    let mut parts = text.split(" task ");
    let first = parts.next().unwrap_or_default().to_string();
    parts.fold(first, |text, part| text + " task " + part.trim_start_matches(|c: char| c.is_ascii_digit()))
}

/// Runs a query in a task of its own, where a panic does no harm.
async fn run_apart(ctx: &SessionContext, sql: &str) -> TestResult<Verdict> {
    let plan = ctx.sql(sql).await?.create_physical_plan().await?;
    run_plan_apart(ctx, plan).await
}

async fn run_plan_apart(ctx: &SessionContext, plan: Arc<dyn ExecutionPlan>) -> TestResult<Verdict> {
    let ctx = ctx.clone();
    let mut task = JoinSet::new();
    task.spawn(async move { run_plan(&ctx, plan).await });
    let joined = timeout(HANG, task.join_next()).await.map_err(|_| "the query hangs")?;
    Ok(match joined.ok_or("there was no task")? {
        Ok(Ok(ran)) => Verdict::Rows(ran),
        Ok(Err(error)) => Verdict::Error(error.to_string()),
        Err(error) => {
            let panic = error.try_into_panic()?;
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            Verdict::Panic(text.unwrap_or("without a text").to_string())
        }
    })
}
