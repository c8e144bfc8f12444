//! The table functions: `gpu_devices()`, `gpu_options()`, `gpu_explain('...')`, `gpu_memory()`, `gpu_fallbacks()`.

use std::sync::Arc;

use datafusion::arrow::datatypes::DataType;
use datafusion::catalog::{TableFunctionArgs, TableFunctionImpl, TableProvider};
use datafusion::common::plan_err;
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::prelude::SessionContext;
use datafusion_wgpu::functions::table_functions;
use datafusion_wgpu::memory::{MemoryScope, Need};
use datafusion_wgpu::{GpuSessionStateBuilderExt, placement_report, register_gpu};

use crate::harness::{Gpu, TestResult, cpu, rows, run};

const NAMES: [&str; 5] = ["gpu_devices", "gpu_options", "gpu_explain", "gpu_memory", "gpu_fallbacks"];

async fn session() -> TestResult<Gpu> {
    let gpu = Gpu::new(2).await?;
    let table = "CREATE TABLE t AS SELECT value AS id, value % 10 AS v, CAST(value AS VARCHAR) AS s \
                 FROM generate_series(1, 100)";
    gpu.ctx.sql(table).await?.collect().await?;
    Ok(gpu)
}

/// Rows in their order.
async fn ordered(ctx: &SessionContext, sql: &str) -> TestResult<Vec<String>> {
    let batches = ctx.sql(sql).await?.collect().await?;
    let mut all = vec![];
    for batch in &batches {
        for row in 0..batch.num_rows() {
            all.extend(rows(&[batch.slice(row, 1)])?);
        }
    }
    Ok(all)
}

async fn error(ctx: &SessionContext, sql: &str) -> TestResult<String> {
    let outcome = match ctx.sql(sql).await {
        Ok(frame) => frame.collect().await.map(|_| ()),
        Err(error) => Err(error),
    };
    Ok(outcome.err().ok_or_else(|| format!("{sql} must fail"))?.to_string())
}

#[tokio::test(flavor = "multi_thread")]
async fn explain_gives_a_row_for_each_node() -> TestResult {
    let gpu = session().await?;
    let query = "SELECT sum(id) FROM t WHERE v > 5";
    let report = placement_report(&gpu.ctx, query).await?;
    let all =
        ordered(&gpu.ctx, &format!("SELECT depth, node, placement FROM gpu_explain('{query}')")).await?;
    let expected: Vec<String> =
        report.nodes.iter().map(|n| format!("{}|{}|{}", n.depth, n.cpu_name, n.placement.name())).collect();
    assert_eq!(all, expected);

    let gpu_nodes = format!(
        "SELECT node, sentence FROM gpu_explain('{query}') WHERE placement = 'gpu' AND code IS NULL ORDER BY depth"
    );
    let nodes = ordered(&gpu.ctx, &gpu_nodes).await?;
    assert!(nodes.contains(&"FilterExec|GpuFilterExec takes its place".to_owned()), "{nodes:?}");
    assert!(nodes[0].contains("GpuAggregateExec takes its place"), "{nodes:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn explain_gives_reasons_with_their_expressions() -> TestResult {
    let gpu = session().await?;
    let cpu_rows = ordered(
        &gpu.ctx,
        "SELECT node, code, sentence, expression FROM gpu_explain('SELECT id FROM t WHERE s LIKE CAST(id AS VARCHAR) AND CAST(v AS VARCHAR) <> ''x''') \
         WHERE placement = 'cpu' AND node = 'FilterExec'",
    )
    .await?;
    let [row] = cpu_rows.as_slice() else { return Err(format!("{cpu_rows:?}").into()) };
    let cells: Vec<&str> = row.split('|').collect();
    let codes: Vec<&str> = cells[1].split("; ").collect();
    assert!(codes.len() > 1, "several reasons share a row: {row}");
    assert!(codes.contains(&"UnsupportedExpression") && codes.contains(&"UnsupportedType"), "{row}");
    assert_eq!(cells[3].split("; ").count(), codes.len(), "{row}");
    assert!(cells[3].contains("LIKE"), "{row}");
    assert!(cells[2].contains("which is not supported here"), "{row}");

    // The session's own options hold, and the source of a query without an operator of ours is told too.
    gpu.set("placement", "'off'").await?;
    let off = "SELECT DISTINCT code, sentence, expression FROM gpu_explain('SELECT id FROM t WHERE v > 5')";
    assert_eq!(
        ordered(&gpu.ctx, off).await?,
        ["Disabled|gpu.placement = 'off' leaves the plan untouched|NULL"]
    );
    Ok(())
}

/// A view that explains itself ends, as do queries that explain one another.
#[tokio::test(flavor = "multi_thread")]
async fn explain_within_explain() -> TestResult {
    let gpu = session().await?;
    gpu.ctx.sql("CREATE VIEW own AS SELECT node FROM gpu_explain('SELECT 1')").await?;
    gpu.ctx.sql("CREATE OR REPLACE VIEW own AS SELECT node FROM gpu_explain('SELECT * FROM own')").await?;
    let nodes = ordered(&gpu.ctx, "SELECT * FROM own").await?;
    assert!(nodes.contains(&"DataSourceExec".to_owned()), "{nodes:?}");
    let nested = "SELECT count(*) > 0 FROM gpu_explain('SELECT * FROM gpu_explain(''SELECT id FROM t'')')";
    assert_eq!(ordered(&gpu.ctx, nested).await?, ["true"]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_arguments_are_named() -> TestResult {
    let gpu = session().await?;
    gpu.ctx
        .sql("CREATE TABLE kept AS SELECT column1 AS x FROM (VALUES (1), (2), (3))")
        .await?
        .collect()
        .await?;
    for (call, words) in [
        ("gpu_explain()", "0 arguments were given; it takes one string"),
        ("gpu_explain('SELECT 1', 'SELECT 2')", "2 arguments were given"),
        ("gpu_explain(5)", "is no string"),
        ("gpu_explain(NULL)", "is no string"),
        ("gpu_explain('no SQL')", "found: no"),
        ("gpu_explain('')", ""),
        ("gpu_explain('SELECT 1; SELECT 2')", "single SQL statement"),
        ("gpu_explain('SELECT missing FROM t')", "missing"),
        ("gpu_explain('SELECT * FROM nowhere')", "nowhere"),
        ("gpu_explain('SET gpu.enabled = false')", "only a query has a placement"),
        ("gpu_explain('CREATE TABLE u AS SELECT 1')", "only a query has a placement"),
        ("gpu_explain('DELETE FROM kept WHERE x > 1')", "only a query has a placement"),
        ("gpu_explain('UPDATE kept SET x = 9')", "only a query has a placement"),
        ("gpu_explain('TRUNCATE TABLE kept')", "only a query has a placement"),
        ("gpu_explain('INSERT INTO kept VALUES (4)')", "only a query has a placement"),
        ("gpu_explain('EXPLAIN DELETE FROM kept')", "only a query has a placement"),
        ("gpu_explain('EXPLAIN ANALYZE DELETE FROM kept')", "only a query has a placement"),
        ("gpu_explain('COPY kept TO ''kept.csv''')", "only a query has a placement"),
        ("gpu_devices(1)", "takes no arguments, 1 were given"),
        ("gpu_options('x')", "takes no arguments"),
        ("gpu_fallbacks(NULL)", "takes no arguments"),
    ] {
        let text = error(&gpu.ctx, &format!("SELECT * FROM {call}")).await?;
        let name = call.split('(').next().unwrap_or_default();
        assert!(text.starts_with(&format!("Error during planning: {name}")), "{call}: {text}");
        assert!(text.contains(words), "{call}: {text}");
    }
    assert_eq!(
        ordered(&gpu.ctx, "SELECT value FROM gpu_options() WHERE name = 'gpu.enabled'").await?,
        ["true"]
    );
    let kept = ordered(&gpu.ctx, "SELECT x FROM kept ORDER BY x").await?;
    assert_eq!(kept, ["1", "2", "3"], "some tables change while a statement is planned");
    assert!(error(&gpu.ctx, "SELECT * FROM u").await?.contains("not found"), "nothing inside was executed");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn options_as_the_session_has_them() -> TestResult {
    let gpu = session().await?;
    gpu.set("memory_limit", "'4GiB'").await?;
    let set = "SELECT name, value, default FROM gpu_options() WHERE value <> default ORDER BY name";
    assert_eq!(
        ordered(&gpu.ctx, set).await?,
        [
            "gpu.allow_software_adapter|true|false",
            "gpu.batch_rows|3000|524288",
            "gpu.fallback|silent|warn",
            "gpu.memory_limit|4GiB|",
            "gpu.placement|force|auto",
        ]
    );
    let names = run(&gpu.ctx, "SELECT name FROM gpu_options() WHERE length(description) > 20").await?.rows;
    let mut known: Vec<String> =
        datafusion_wgpu::GpuOptions::NAMES.iter().map(|name| format!("gpu.{name}")).collect();
    known.sort();
    assert_eq!(names, known);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn devices_and_the_selected_one() -> TestResult {
    let gpu = session().await?;
    let caps = gpu.device.caps();
    let selected = ordered(
        &gpu.ctx,
        "SELECT name, kind, backend, int64, float64, usable, why_not FROM gpu_devices() WHERE selected",
    )
    .await?;
    let expected = format!(
        "{}|{}|{}|{}|{}|true|NULL",
        caps.name,
        caps.device_type.name(),
        caps.backend,
        caps.int64,
        caps.float64
    );
    assert_eq!(selected, [expected]);
    let memory = ordered(&gpu.ctx, "SELECT memory_bytes FROM gpu_devices() WHERE selected").await?;
    assert_eq!(memory, [caps.memory_bytes.map_or("NULL".to_owned(), |bytes| bytes.to_string())]);

    // Numbers count up from 0; an adapter that is not there leaves none selected, without an error.
    let all = "SELECT count(*), max(index) + 1, count(DISTINCT index) FROM gpu_devices()";
    let counts = ordered(&gpu.ctx, all).await?.concat();
    let counts: Vec<&str> = counts.split('|').collect();
    assert!(counts[0] == counts[1] && counts[1] == counts[2], "{counts:?}");
    gpu.set("adapter", "'no such adapter'").await?;
    // No filter or aggregate, which the wrong name would fail.
    let selected = ordered(&gpu.ctx, "SELECT selected FROM gpu_devices()").await?;
    assert!(!selected.is_empty() && selected.iter().all(|row| row == "false"), "{selected:?}");
    for row in ordered(&gpu.ctx, "SELECT usable, why_not FROM gpu_devices()").await? {
        assert_eq!(row, "false|gpu.adapter = 'no such adapter' matches no adapter");
    }

    gpu.set("adapter", "''").await?;
    gpu.set("allow_software_adapter", "false").await?;
    let why = "SELECT usable, why_not LIKE '%gpu.allow_software_adapter = true%' FROM gpu_devices() WHERE kind = 'software'";
    for row in ordered(&gpu.ctx, why).await? {
        assert_eq!(row, "false|true");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn snapshots_join_and_stay_within_limits() -> TestResult {
    let gpu = session().await?;
    let joined = "SELECT count(*) FROM gpu_options() o JOIN gpu_explain('SELECT id FROM t WHERE v > 5') e \
                  ON o.name = 'gpu.' || 'placement' CROSS JOIN gpu_devices() d WHERE d.selected AND e.placement = 'gpu'";
    assert_eq!(ordered(&gpu.ctx, joined).await?, ["1"]);
    assert_eq!(ordered(&gpu.ctx, "SELECT name FROM gpu_options() LIMIT 1").await?, ["gpu.enabled"]);
    assert_eq!(ordered(&gpu.ctx, "SELECT 1 FROM gpu_options() LIMIT 0").await?.len(), 0);
    assert_eq!(ordered(&gpu.ctx, "SELECT 1 FROM gpu_options() LIMIT 3 OFFSET 1").await?, ["1", "1", "1"]);
    let none = ordered(&gpu.ctx, "SELECT * FROM gpu_fallbacks()").await?;
    assert_eq!(none.len(), 0, "{none:?}");

    // Each execution of a prepared statement is a new snapshot.
    gpu.ctx.sql("PREPARE rows AS SELECT value FROM gpu_options() WHERE name = 'gpu.batch_rows'").await?;
    assert_eq!(ordered(&gpu.ctx, "EXECUTE rows").await?, ["3000"]);
    gpu.set("batch_rows", "77").await?;
    assert_eq!(ordered(&gpu.ctx, "EXECUTE rows").await?, ["77"]);
    Ok(())
}

#[derive(Debug)]
struct Mine;

impl TableFunctionImpl for Mine {
    fn call_with_args(&self, _args: TableFunctionArgs) -> datafusion::error::Result<Arc<dyn TableProvider>> {
        plan_err!("this is mine")
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn functions_of_the_user_stay() -> TestResult {
    let existing = cpu(1);
    existing.register_udtf("mine", Arc::new(Mine));
    existing.register_udtf("gpu_options", Arc::new(Mine));
    register_gpu(&existing)?;
    register_gpu(&existing)?;

    let built = SessionStateBuilder::new()
        .with_table_function_list(vec![Arc::new(datafusion::catalog::TableFunction::new(
            "mine".to_owned(),
            Arc::new(Mine),
        ))])
        .with_gpu()
        .with_gpu()
        .with_default_features()
        .build();
    let built = SessionContext::new_with_state(built);
    for ctx in [&existing, &built] {
        assert!(error(ctx, "SELECT * FROM mine()").await?.contains("this is mine"));
        assert_eq!(run(ctx, "SELECT value FROM generate_series(1, 1)").await?.rows, ["1"]);
        for name in NAMES {
            assert!(ctx.state().table_functions().contains_key(name), "{name}");
        }
    }
    assert!(error(&existing, "SELECT * FROM gpu_options()").await?.contains("this is mine"));
    assert_eq!(run(&built, "SELECT 1 FROM gpu_options() WHERE name = 'gpu.enabled'").await?.rows, ["1"]);

    // Lost to a later call of the builder, and given back.
    let replaced =
        SessionStateBuilder::new_with_default_features().with_gpu().with_table_function_list(vec![]);
    let replaced = SessionContext::new_with_state(replaced.build());
    assert!(replaced.state().table_functions().is_empty());
    register_gpu(&replaced)?;
    assert_eq!(replaced.state().table_functions().len(), NAMES.len());
    Ok(())
}

/// A session that has the functions but was never registered says what to do.
#[tokio::test(flavor = "multi_thread")]
async fn without_registration() -> TestResult {
    let ctx = cpu(1);
    for function in table_functions() {
        ctx.register_udtf(function.name(), Arc::clone(function.function()));
    }
    for call in ["gpu_explain('SELECT 1')", "gpu_devices()", "gpu_fallbacks()"] {
        let text = error(&ctx, &format!("SELECT * FROM {call}")).await?;
        assert!(text.contains("call register_gpu first"), "{text}");
    }
    assert_eq!(
        run(&ctx, "SELECT value FROM gpu_options() WHERE name = 'gpu.placement'").await?.rows,
        ["auto"]
    );
    Ok(())
}

/// What a query that met an overflow leaves behind, also when the fallback was forbidden.
#[tokio::test(flavor = "multi_thread")]
async fn fallbacks_are_remembered() -> TestResult {
    let gpu = session().await?;
    let schema = gpu.ctx.sql("SELECT time, query_id FROM gpu_fallbacks()").await?.schema().as_arrow().clone();
    assert!(
        matches!(schema.field(0).data_type(), DataType::Timestamp(_, Some(zone)) if zone.as_ref() == "+00:00")
    );
    assert_eq!(schema.field(1).data_type(), &DataType::UInt64);

    gpu.ctx
        .sql("CREATE TABLE big AS SELECT CAST(10000000000000000000 AS DECIMAL(38, 0)) AS d FROM generate_series(1, 4)")
        .await?
        .collect()
        .await?;
    let overflow = "SELECT d * d * d AS cube FROM big";
    let failed = error(&gpu.ctx, overflow).await?;
    gpu.set("fallback", "'error'").await?;
    let forbidden = error(&gpu.ctx, overflow).await?;
    assert_ne!(failed, forbidden);
    let seen = "SELECT DISTINCT session_id, node LIKE 'GpuProjectionExec[%', scope, code, forbidden, query LIKE '%big%', \
                time > now() - INTERVAL '1 hour' FROM gpu_fallbacks() ORDER BY forbidden";
    let id = gpu.ctx.session_id();
    assert_eq!(
        ordered(&gpu.ctx, seen).await?,
        [
            format!("{id}|true|batch|ArithmeticFault|false|true|true"),
            format!("{id}|true|batch|ArithmeticFault|true|true|true"),
        ]
    );
    let latest = ordered(&gpu.ctx, "SELECT forbidden FROM gpu_fallbacks() LIMIT 1").await?;
    assert_eq!(latest, ["true"]);
    Ok(())
}

/// Who holds memory now, and what waits for reuse.
#[tokio::test(flavor = "multi_thread")]
async fn memory_by_holder() -> TestResult {
    let gpu = session().await?;
    let all = "SELECT holder, state, bytes FROM gpu_memory() ORDER BY bytes DESC";
    let held = MemoryScope::new(gpu.device.ledger(), "a test", u64::MAX).reserve(1 << 30)?;
    assert_eq!(ordered(&gpu.ctx, all).await?[0], format!("a test|held|{}", 1u64 << 30));
    drop(held);
    assert!(run(&gpu.ctx, "SELECT sum(id) FROM t WHERE v > 5").await?.gpu_batches > 0);
    gpu.settled().await?;
    let idle = ordered(&gpu.ctx, "SELECT holder, state, bytes > 0 FROM gpu_memory()").await?;
    assert_eq!(idle, ["NULL|idle|true"]);
    // Works that were let in, and those that wait for them.
    let scope = |name: &str| MemoryScope::new(gpu.device.ledger(), name, 1000);
    let work = scope("first").admit(Need::Bytes(700)).await;
    let part = work.reserve(300)?;
    let second = scope("second");
    let waits = second.admit(Need::Bytes(600));
    tokio::pin!(waits);
    assert!(futures::poll!(waits.as_mut()).is_pending());
    let states = "SELECT holder, state, bytes FROM gpu_memory() WHERE state <> 'idle' ORDER BY holder, state";
    let want = ["first|held|300", "first|promised|400", "second|waiting|600"];
    assert_eq!(ordered(&gpu.ctx, states).await?, want);
    drop((part, work));
    drop(waits.await);
    assert!(ordered(&gpu.ctx, states).await?.is_empty());
    Ok(())
}
