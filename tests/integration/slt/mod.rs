//! Runs every file of `tests/slt`, with the rule off and with the rule forced, against the same expected rows.
//!
//! `SLT=update cargo test slt` first rewrites the expected rows from a run with the rule **off**: DataFusion is the oracle.

mod convention;
mod engine;
mod format;

use std::collections::HashMap;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use datafusion::arrow::datatypes::SchemaRef;
use sqllogictest::{
    QueryExpect, Record, Runner, default_normalizer, default_validator, strict_column_validator,
};

use convention::Convention;
use engine::{Engine, Rule, Session};
use format::Kind;

type TestResult = Result<(), Box<dyn Error>>;

/// One test a file, so that a failure names it; `every_file_is_listed` holds the list complete.
macro_rules! slt_files {
    ($($name:ident),* $(,)?) => {
        const FILES: &[&str] = &[$(stringify!($name)),*];
        $(
            #[tokio::test(flavor = "multi_thread")]
            async fn $name() -> TestResult {
                run_file(stringify!($name)).await
            }
        )*
    };
}

slt_files!(
    aggregate,
    conditional,
    dates,
    decimal,
    decimal_functions,
    declined,
    empty,
    errors,
    filter,
    filter_clause,
    first_last,
    float_arithmetic,
    float_sums,
    floats,
    group_by,
    in_between,
    integer_functions,
    integers,
    limits,
    nulls,
    parquet,
    projection,
    scalar_subquery,
    single_values,
    strings,
    strings_dictionary,
    temporal,
    tpch,
    zones,
);

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/slt")
}

#[test]
fn every_file_is_listed() -> TestResult {
    let mut found = vec![];
    for entry in std::fs::read_dir(folder())? {
        let path = entry?.path();
        let name = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default().to_string();
        assert_eq!(
            path.extension().and_then(|e| e.to_str()),
            Some("slt"),
            "{} is no .slt file",
            path.display()
        );
        found.push(name);
    }
    found.sort();
    assert_eq!(found, FILES, "tests/slt and the list in tests/integration/slt/mod.rs differ");
    Ok(())
}

/// The ways in which a file runs. The small batches of [`Engine`] cut even tiny tables into several.
const SETUPS: [(Rule, usize); 6] = [
    (Rule::Off, 1),
    (Rule::Off, 4),
    (Rule::Forced { exchanges: "collapse" }, 1),
    (Rule::Forced { exchanges: "collapse" }, 4),
    (Rule::Forced { exchanges: "keep" }, 1),
    (Rule::Forced { exchanges: "keep" }, 4),
];

async fn run_file(name: &str) -> TestResult {
    let path = folder().join(format!("{name}.slt"));
    if std::env::var("SLT").is_ok_and(|v| v == "update") {
        let engine = Arc::new(Engine::new(Rule::Off, 1).await?);
        runner(&engine)
            .update_test_file(&path, " ", default_validator, default_normalizer, strict_column_validator)
            .await?;
    }
    let records = sqllogictest::parse_file::<Kind>(&path)?;
    let mut failures = check_form(&records);
    // What the first run, with the rule off, gave; names, types and nullability have to stay.
    let mut schemas = HashMap::new();
    for (rule, partitions) in SETUPS {
        let engine = Arc::new(Engine::new(rule, partitions).await?);
        let found = run_records(&engine, &records, &mut schemas).await;
        failures
            .extend(found.into_iter().map(|failure| format!("{rule:?}, {partitions} partitions: {failure}")));
    }
    if failures.is_empty() {
        return Ok(());
    }
    let shown = failures.len().min(40);
    Err(format!("{} failures, {shown} of them:\n\n{}", failures.len(), failures[..shown].join("\n\n")).into())
}

fn runner(engine: &Arc<Engine>) -> Runner<Session, impl sqllogictest::MakeConnection<Conn = Session>> {
    let engine = Arc::clone(engine);
    let mut runner = Runner::new(move || {
        let session = Session::new(&engine);
        async move { Ok(session) }
    });
    runner.with_column_validator(strict_column_validator);
    runner
}

/// Every query says where it runs, and every comment of the convention stands above a query.
fn check_form(records: &[Record<Kind>]) -> Vec<String> {
    let mut failures = vec![];
    let mut pending: Option<Convention> = None;
    let mut queries = 0;
    for record in records {
        match record {
            Record::Comment(lines) => match Convention::parse(lines) {
                Ok(convention) => pending = convention,
                Err(message) => failures.push(message),
            },
            Record::Query { loc, sql, .. } => {
                queries += 1;
                if pending.take().is_none() && !is_exempt(sql) {
                    failures.push(format!("{loc}: no '# gpu:' or '# cpu:' line directly above this query"));
                }
            }
            _ => {
                if pending.take().is_some() {
                    failures.push(
                        "a '# gpu:' or '# cpu:' line stands above something that is no query".to_string(),
                    );
                }
            }
        }
    }
    if queries == 0 {
        failures.push("the file holds no query".to_string());
    }
    failures
}

/// What the rule never sees.
fn is_exempt(sql: &str) -> bool {
    ["EXPLAIN", "SHOW"].iter().any(|word| sql.trim_start().to_uppercase().starts_with(word))
}

async fn run_records(
    engine: &Arc<Engine>,
    records: &[Record<Kind>],
    schemas: &mut HashMap<u32, SchemaRef>,
) -> Vec<String> {
    let mut failures = vec![];
    let mut runner = runner(engine);
    let mut convention: Option<Convention> = None;
    for record in records {
        let query = match record {
            Record::Comment(lines) => {
                convention = Convention::parse(lines).ok().flatten();
                continue;
            }
            Record::Query { loc, sql, expected, .. } => Some((loc, sql, expected)),
            _ => None,
        };
        engine.start_record(query.is_some());
        if let Err(error) = runner.run_async(record.clone()).await {
            failures.push(error.display(false).to_string());
        }
        let Some((loc, sql, expected)) = query else { continue };
        let ran = engine.last_run();
        if let Some(ran) = &ran {
            let first = schemas.entry(loc.line()).or_insert_with(|| Arc::clone(&ran.schema));
            if *first != ran.schema {
                failures.push(format!("{loc}: the schema is {:?}, was {first:?}", ran.schema));
            }
        }
        let (Some(convention), Rule::Forced { .. }) = (convention.take(), engine.rule) else { continue };
        match ran {
            Some(ran) => {
                let report = engine.reason_codes(sql).await;
                let kept = engine.rule == Rule::Forced { exchanges: "keep" } && engine.partitions > 1;
                failures.extend(
                    convention
                        .check(&ran, kept, report)
                        .into_iter()
                        .map(|f| format!("{loc}: {f}\n{}", ran.plan)),
                );
            }
            None if matches!(expected, QueryExpect::Error(_)) && convention.is_empty() => {}
            None => failures.push(format!("{loc}: the query was not planned, so where it runs is not known")),
        }
    }
    runner.shutdown_async().await;
    failures
}

#[test]
fn form_is_checked() -> TestResult {
    let check = |text: &str| -> Result<Vec<String>, Box<dyn Error>> {
        Ok(check_form(&sqllogictest::parse::<Kind>(text)?))
    };
    assert_eq!(check("# gpu: GpuFilterExec\nquery I\nSELECT 1\n----\n1\n")?, Vec::<String>::new());
    assert_eq!(check("query T\nEXPLAIN SELECT 1\n----\n1\n")?, Vec::<String>::new());
    assert_eq!(check("# Some prose.\nquery I\nSELECT 1\n----\n1\n")?.len(), 1);
    assert_eq!(check("# gpu: GpuFilterExec\n\nquery I\nSELECT 1\n----\n1\n")?.len(), 2);
    assert_eq!(check("# gqu: GpuFilterExec\nquery I\nSELECT 1\n----\n1\n")?.len(), 2);
    assert_eq!(check("statement ok\nSET gpu.enabled = true\n")?.len(), 1);
    Ok(())
}
