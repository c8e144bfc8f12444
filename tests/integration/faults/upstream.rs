//! What the operators read breaks: at every batch, by an error or a panic, and at every request to an object store.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use datafusion::execution::object_store::ObjectStoreUrl;
use datafusion::object_store::memory::InMemory;
use datafusion::object_store::path::Path;
use datafusion::object_store::{
    self, CopyOptions, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult,
};
use datafusion::physical_plan::{collect, displayable};
use datafusion::prelude::{ParquetReadOptions, SessionContext};
use futures::stream::BoxStream;

use super::{OPERATORS, PARTS, Rig, TABLES, Verdict, register_tables, run_apart, run_plan_apart, write};
use crate::harness::{TestResult, cpu, run};
use crate::sources::{self, BATCH_ROWS, Break};

/// Puts sources that break at their `at`-th batch in the place of all tables.
fn break_tables(ctx: &SessionContext, at: usize, how: Break) -> TestResult {
    for name in TABLES {
        ctx.deregister_table(name)?;
        ctx.register_table(name, sources::breaking(&PARTS, at, how)?)?;
    }
    Ok(())
}

/// The verdict is DataFusion's, whichever batch it is; afterwards the session works as before.
#[tokio::test(flavor = "multi_thread")]
async fn sources_break_at_every_batch() -> TestResult {
    let mut rig = Rig::new().await?;
    let off = cpu(2);
    let batches = (PARTS[0].1 as usize).div_ceil(BATCH_ROWS as usize);
    for operator in OPERATORS {
        for scope in rig.scopes(operator).await? {
            let want = rig.prepare(operator, scope).await?;
            for (at, how) in (1..=batches).flat_map(|at| [(at, Break::Error), (at, Break::Panic)]) {
                let what = format!("{how:?} at {at}, {scope}, {}", operator.sql);
                break_tables(&rig.gpu.ctx, at, how)?;
                break_tables(&off, at, how)?;
                let verdict = run_apart(&rig.gpu.ctx, operator.sql).await?;
                rig.end().await?;
                let cpu_verdict = run_apart(&off, operator.sql).await?;
                assert!(!matches!(cpu_verdict, Verdict::Rows(_)), "{what}: {cpu_verdict:?}");
                assert_eq!(verdict.text(), cpu_verdict.text(), "{what}");
                rig.goes_on(&what).await?;
            }
            register_tables(&rig.gpu.ctx, rig.dir.path()).await?;
            rig.healthy(operator.sql, &want).await?;
        }
    }
    Ok(())
}

/// A store that goes down at the `down_at`-th request for data from now on; 0 means never.
#[derive(Debug)]
struct Faulty {
    inner: InMemory,
    gets: AtomicU64,
    down_at: AtomicU64,
}

impl Faulty {
    fn down_at(&self, request: u64) {
        self.gets.store(0, Ordering::SeqCst);
        self.down_at.store(request, Ordering::SeqCst);
    }
}

impl fmt::Display for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Faulty")
    }
}

fn broke() -> object_store::Error {
    object_store::Error::Generic { store: "Faulty", source: "the object store broke".into() }
}

#[async_trait]
impl ObjectStore for Faulty {
    async fn get_opts(&self, path: &Path, options: GetOptions) -> object_store::Result<GetResult> {
        let request = self.gets.fetch_add(1, Ordering::SeqCst) + 1;
        let down_at = self.down_at.load(Ordering::SeqCst);
        let mut result = self.inner.get_opts(path, options).await?;
        if down_at > 0 && request >= down_at {
            // Every other time the request itself succeeds, and the bytes do not arrive.
            if request.is_multiple_of(2) {
                return Err(broke());
            }
            result.payload = GetResultPayload::Stream(Box::pin(futures::stream::iter([Err(broke())])));
        }
        Ok(result)
    }

    async fn put_opts(
        &self,
        path: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> object_store::Result<PutResult> {
        self.inner.put_opts(path, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        path: &Path,
        options: PutMultipartOptions,
    ) -> object_store::Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(path, options).await
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, object_store::Result<Path>>,
    ) -> BoxStream<'static, object_store::Result<Path>> {
        self.inner.delete_stream(paths)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, object_store::Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> object_store::Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> object_store::Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

/// [`PARTS`] in a store.
async fn store() -> TestResult<Arc<Faulty>> {
    let store = Faulty { inner: InMemory::new(), gets: AtomicU64::new(0), down_at: AtomicU64::new(0) };
    for (from, rows) in PARTS {
        let mut file = vec![];
        write(from, rows, &mut file)?;
        let path = Path::from(format!("part-{from}.parquet"));
        store.inner.put_opts(&path, PutPayload::from(file), PutOptions::default()).await?;
    }
    Ok(Arc::new(store))
}

/// Puts the files of the store in the place of all tables.
async fn register(ctx: &SessionContext, store: &Arc<Faulty>) -> TestResult {
    let url = ObjectStoreUrl::parse("faulty://files")?;
    ctx.register_object_store(url.as_ref(), Arc::clone(store) as _);
    for name in TABLES {
        ctx.deregister_table(name)?;
        ctx.register_parquet(name, "faulty://files/", ParquetReadOptions::default()).await?;
    }
    Ok(())
}

/// Runs a query that was planned while the store was up.
async fn run_down(ctx: &SessionContext, store: &Faulty, sql: &str, request: u64) -> TestResult<Verdict> {
    let plan = ctx.sql(sql).await?.create_physical_plan().await?;
    store.down_at(request);
    let verdict = run_plan_apart(ctx, plan).await;
    store.down_at(0);
    verdict
}

/// The error is DataFusion's own, whichever request is the first that fails.
#[tokio::test(flavor = "multi_thread")]
async fn an_object_store_breaks_at_every_request() -> TestResult {
    let mut rig = Rig::new().await?;
    let store = store().await?;
    let off = cpu(2);
    register(&off, &store).await?;
    register(&rig.gpu.ctx, &store).await?;
    let mut taken = 0;
    for operator in OPERATORS {
        for scope in rig.scopes(operator).await? {
            rig.prepare(operator, scope).await?;
            let want = run(&off, operator.sql).await?.rows;
            let plan = rig.gpu.ctx.sql(operator.sql).await?.create_physical_plan().await?;
            let shown = displayable(plan.as_ref()).indent(false).to_string();
            if !shown.contains(operator.node) {
                // The scan of files computes a projection itself.
                taken += 1;
                continue;
            }
            // What breaks may not be needed any more by then.
            let prunes = shown.contains("DynamicFilter");
            drop(plan);
            rig.healthy(operator.sql, &want).await?;
            // Metadata are cached by now.
            let plan = rig.gpu.ctx.sql(operator.sql).await?.create_physical_plan().await?;
            store.down_at(0);
            collect(plan, rig.gpu.ctx.task_ctx()).await?;
            rig.end().await?;
            let requests = store.gets.load(Ordering::SeqCst);
            assert!(requests > 2, "{requests} requests for {}", operator.sql);
            let error = run_down(&off, &store, operator.sql, 1).await?.text();
            assert!(error.starts_with("error: ") && error.contains("the object store broke"), "{error}");
            for request in 1..=requests {
                let what = format!("{request} of {requests}, {scope}, {}", operator.sql);
                let cpu_verdict = run_down(&off, &store, operator.sql, request).await?;
                let verdict = run_down(&rig.gpu.ctx, &store, operator.sql, request).await?;
                rig.end().await?;
                for verdict in [cpu_verdict, verdict] {
                    match verdict {
                        Verdict::Rows(ran) => assert!(ran.rows == want && prunes, "{what}"),
                        broke => assert_eq!(broke.text(), error, "{what}"),
                    }
                }
                rig.goes_on(&what).await?;
            }
            rig.healthy(operator.sql, &want).await?;
        }
    }
    assert!(taken <= 1, "{taken} queries had no GPU node");
    Ok(())
}
