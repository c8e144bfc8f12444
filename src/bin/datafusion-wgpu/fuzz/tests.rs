//! Tests of the fuzzer: it repeats itself, it produces every clause, it finds what is planted, and makes it small.

mod ends;
mod planted;
mod verdicts;

use std::path::Path;

use datafusion::arrow::array::{ArrayRef, Int64Array, RecordBatch};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, TimeUnit};
use datafusion::common::runtime::SpawnedTask;

use super::ast::{Expr, Item, OrderKey, Query, Relation, Target, Tier};
use super::compare::{Answer, Spec};
use super::data::{Dataset, Size};
use super::plant::Bug;
use super::rounded::Rounding;
use super::runner::Verdict;
use super::types::{Class, Flavour, random_type};
use super::values::Fill;
use super::*;
use planted::{column, numbers, select};
use verdicts::is_same;

fn args(out: &Path) -> Args {
    Args {
        seed: 5,
        queries: Some(48),
        minutes: None,
        from: 0,
        runs: 1,
        jobs: 2,
        out: out.to_path_buf(),
        json: None,
        replay: None,
        timeout: 60,
        shrink: 60,
        failures: 1,
        adapter: String::new(),
        plant: None,
        bug: Bug::Row,
    }
}

#[test]
fn a_seed_gives_the_same_again() {
    let (one, same) = (World::new(7, 3).unwrap(), World::new(7, 3).unwrap());
    let rows = |world: &World| format!("{:?}", world.datasets);
    assert_eq!(rows(&one), rows(&same));
    for number in 24..32 {
        assert_eq!(one.query(number).to_string(), same.query(number).to_string());
        let options = |seed| RunOptions::random(&mut Rng::new(seed, OPTIONS + number), 100);
        assert_eq!(options(7), options(7));
    }
    let other = World::new(8, 3).unwrap();
    assert_ne!(rows(&one), rows(&other));
    assert_ne!(one.query(24).to_string(), one.query(25).to_string());
}

/// What queries are made of; each of these must be produced.
const KINDS: [&str; 81] = [
    "guarded division",
    "duration arithmetic",
    "interval arithmetic",
    "long IN",
    "text function",
    "text test",
    "text to integer",
    "AND",
    "BETWEEN",
    "CASE",
    "CASE with operand",
    "CAST",
    "COALESCE",
    "CROSS JOIN",
    "CUBE",
    "DISTINCT",
    "EXCEPT",
    "EXCEPT ALL",
    "EXTRACT",
    "FILTER",
    "FULL JOIN",
    "GROUP BY",
    "HAVING",
    "IN",
    "INTERSECT",
    "INTERSECT ALL",
    "IS DISTINCT FROM",
    "IS NULL",
    "IS TRUE",
    "JOIN",
    "LEFT ANTI JOIN",
    "LEFT JOIN",
    "LEFT SEMI JOIN",
    "LIKE",
    "LIMIT",
    "NOT",
    "NULLIF",
    "OFFSET",
    "OR",
    "ORDER BY",
    "ORDER BY expression",
    "RIGHT ANTI JOIN",
    "RIGHT JOIN",
    "RIGHT SEMI JOIN",
    "ROLLUP",
    "TRY_CAST",
    "UNION",
    "UNION ALL",
    "WHERE",
    "WITH",
    "avg of any floats",
    "avg of decimals",
    "avg of floats",
    "avg of integers",
    "bit aggregate",
    "bitwise",
    "bool aggregate",
    "comparison",
    "count",
    "count DISTINCT",
    "count of several",
    "decimal arithmetic",
    "derived table",
    "division",
    "float arithmetic",
    "integer arithmetic",
    "join key",
    "join residual",
    "median",
    "min/max",
    "min/max of floats",
    "ordered aggregate",
    "subquery (EXISTS)",
    "subquery (IN)",
    "subquery (correlated)",
    "subquery (scalar)",
    "sum of any floats",
    "sum of floats",
    "variance",
    "window aggregate",
    "window rank",
];

#[test]
fn every_clause_is_produced() {
    let mut kinds = BTreeMap::new();
    for world in 0..80 {
        let tables = types::tables(&mut Rng::new(1, world));
        for number in 0..40 {
            generate::query(&mut Rng::new(1, QUERIES + world * 40 + number), &tables).count_kinds(&mut kinds);
        }
    }
    let missing: Vec<_> = KINDS.iter().filter(|kind| !kinds.contains_key(*kind)).collect();
    assert!(missing.is_empty(), "{missing:?} are not among {kinds:?}");
}

#[test]
fn reductions_change_the_query() {
    let tables = types::tables(&mut Rng::new(1, 0));
    for number in 0..200 {
        let query = generate::query(&mut Rng::new(1, QUERIES + number), &tables);
        let text = query.to_string();
        for smaller in reduce::reductions(&query) {
            assert_ne!(smaller.to_string(), text);
        }
    }
}

/// Every type, with edge values, goes through a script and comes back with the same bits.
#[tokio::test]
async fn scripts_hold_every_value() {
    let folder = tempfile::tempdir().unwrap();
    let classes = [
        Class::Null,
        Class::Bool,
        Class::Int,
        Class::Float,
        Class::Half,
        Class::Decimal,
        Class::Date,
        Class::Time,
        Class::Timestamp,
        Class::Duration,
        Class::Text,
        Class::Binary,
    ];
    for round in 0..12 {
        let mut rng = Rng::new(3, round);
        // Without payloads in rounds of their own, so that no file is needed.
        let flavour = if round % 3 == 0 { Flavour::Special } else { Flavour::Edge };
        let columns = classes.iter().map(|class| {
            let data_type = random_type(&mut rng, *class);
            let fill = Fill { nulls: 20, hot: 10 };
            values::array(&mut rng, &data_type, flavour, fill, if round == 11 { 0 } else { 30 }).unwrap()
        });
        let columns: Vec<_> =
            columns.enumerate().map(|(index, array)| (format!("c{index}"), array, true)).collect();
        let rows = RecordBatch::try_from_iter_with_nullable(columns).unwrap();
        let layout = data::Layout::plain();
        let tables = vec![data::TableData { name: "t0".to_string(), rows: rows.clone(), layout }];
        let world = World::new(1, 0).unwrap();
        let case =
            Case { query: world.query(0), dataset: Dataset { tables }, options: RunOptions::default() };
        let shrunk = Shrunk { case, detail: "two\nlines".to_string(), tries: 0 };
        let path = script::write(folder.path(), 3, 0, Wrong::Rows, &shrunk).unwrap();
        let back = script::read(&path).await.unwrap_or_else(|error| {
            panic!("{error}\n{}", std::fs::read_to_string(&path).unwrap());
        });
        assert_eq!(back.dataset.tables[0].rows.schema(), rows.schema());
        let of = |rows: &RecordBatch| Answer { schema: rows.schema(), batches: vec![rows.clone()] };
        assert!(is_same(&Spec::default(), &of(&rows), None, &of(&back.dataset.tables[0].rows)));
        assert_eq!(back.sql, shrunk.case.query.to_string());
    }
}

/// Slices, empty batches, files and row groups hold the rows that they were made of.
#[tokio::test]
async fn layouts_keep_the_rows() {
    for seed in 0..6 {
        let mut rng = Rng::new(seed, 0);
        let tables = types::tables(&mut rng);
        let dataset =
            Dataset::random(&mut rng, &tables, if seed < 2 { Size::Tiny } else { Size::Medium }).unwrap();
        let stored = dataset.store().await.unwrap();
        for (table, (name, provider)) in dataset.tables.iter().zip(&stored.tables) {
            let context = datafusion::prelude::SessionContext::new();
            context.register_table(name.as_str(), Arc::clone(provider)).unwrap();
            let batches = context.table(name.as_str()).await.unwrap().collect().await.unwrap();
            // Parquet gives strings and bytes back as views.
            let schema = table.rows.schema();
            let cast = |batch: &RecordBatch| {
                let columns = batch.columns().iter().zip(schema.fields());
                let columns = columns.map(|(column, field)| cast(column, field.data_type()).unwrap());
                RecordBatch::try_new(Arc::clone(&schema), columns.collect()).unwrap()
            };
            let got = Answer { schema: Arc::clone(&schema), batches: batches.iter().map(cast).collect() };
            let want = Answer { schema: Arc::clone(&schema), batches: vec![table.rows.clone()] };
            assert!(is_same(&Spec::default(), &want, None, &got), "{:?}", table.layout);
        }
    }
}

#[tokio::test]
async fn a_query_that_takes_too_long_is_given_up() {
    let world = World::new(1, 0).unwrap();
    let stored = world.datasets[0].store().await.unwrap();
    let engine = Engine::new("", Duration::ZERO).unwrap();
    let run = engine.forced(&stored, "SELECT count(*) FROM t0", &RunOptions::default()).await;
    assert!(matches!(run.verdict, Verdict::Hang), "{:?}", run.verdict);
}

/// A planted bug is found, made small, written down, and found again from the script.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn planted_bugs_are_found_and_made_small() {
    let folder = tempfile::tempdir().unwrap();
    let text = "BETWEEN";
    let args = Args { plant: Some(text.to_string()), jobs: 1, shrink: 120, ..args(folder.path()) };
    let engine = Engine::new("", Duration::from_secs(60)).unwrap();
    let (summary, _) = Fuzzer::new(engine, args).run(std::future::pending()).await.unwrap();
    let failure = &summary.failures[0];
    assert_eq!(failure.wrong, Wrong::Rows, "{failure:?}");
    assert!(failure.sql.contains(text), "{}", failure.sql);
    assert!(failure.sql.len() < 200, "not made small: {}", failure.sql);
    let path = failure.script.clone().unwrap();
    let script = script::read(&path).await.unwrap();
    assert!(script.dataset.rows() <= 2, "{} rows", script.dataset.rows());
    let engine = Engine::new("", Duration::from_secs(60)).unwrap();
    let plant = Plant { text: Some(text.to_string()), bug: Bug::Row };
    let found = replay(&engine, &path, &plant).await.unwrap();
    let without = replay(&engine, &path, &Plant::default()).await.unwrap();
    assert_eq!((found, without), (ExitCode::FAILURE, ExitCode::SUCCESS));
}

/// Only where partitions run at once may an error name another row's value.
#[tokio::test]
async fn errors_of_partitions_may_name_other_values() {
    let stored = numbers().await;
    let engine = Engine::new("", Duration::from_secs(60)).unwrap();
    let sql = "SELECT arrow_cast(v, 'Int8') FROM t0".to_string();
    let question = Question::of_sql(&engine, &stored, sql, None, Spec::default()).await;
    let Verdict::Error(text) = &question.oracle.verdict else { panic!("{:?}", question.oracle.verdict) };
    let value = 0x0123_4567_89ab_cdefi64 + 1;
    let (other, kind) = (text.replace(&value.to_string(), "-300"), text.replace("Int8", "Int16"));
    assert!(*text != other && *text != kind, "{text}");
    for (text, target, partitions, is_right) in [
        (text, "1", 1, true),
        (&other, "1", 1, false),
        (&other, "1", 2, true),
        (&other, "2", 1, true),
        (&kind, "2", 2, false),
    ] {
        let target = ("datafusion.execution.target_partitions".to_string(), target.to_string());
        let options = RunOptions { settings: BTreeMap::from([target]), ..RunOptions::default() };
        let gpu = runner::GpuWork { partitions, ..runner::GpuWork::default() };
        let run = runner::Run { verdict: Verdict::Error(text.clone()), gpu, plan: String::new() };
        let judgement = question.judge(&engine, &options, &run, Care::Quick).await;
        assert_eq!(matches!(judgement, Judgement::SameError), is_right, "{text}: {judgement:?}");
        assert_eq!(matches!(judgement, Judgement::Wrong(Wrong::Error, _)), !is_right, "{judgement:?}");
    }
}

/// MIN and MAX over floats are told by their values where they are grouped, and only there.
#[test]
fn grouped_float_extremes_have_a_tier_of_their_own() {
    let float = || Expr::leaf("column", DataType::Float64, "f".to_string());
    let maximum = Expr::new(ast::FLOAT_EXTREME, DataType::Float64, "max({})", vec![float().into()]);
    let condition = Expr::leaf("literal", DataType::Boolean, "true".to_string());
    let filtered = "{} FILTER (WHERE {})";
    let filtered =
        Expr::new("FILTER", DataType::Float64, filtered, vec![maximum.clone().into(), condition.into()]);
    let plain = select(vec![column("k"), maximum, filtered]);
    assert_eq!(plain.tiers(), [Tier::Exact; 3]);
    assert!(plain.reference().is_none());
    let mut grouped = plain.clone();
    if let ast::Body::Select(select) = &mut grouped.body {
        select.keys = vec![0];
    }
    let extreme = Tier::Rounded(Rounding::Extreme { is_max: true, any_nan: false });
    assert_eq!(grouped.tiers(), [Tier::Exact, extreme, extreme]);
    let reference = grouped.reference().unwrap().to_string();
    let both =
        "array_agg(CAST(f AS DOUBLE)) AS check0, array_agg(CAST(f AS DOUBLE)) FILTER (WHERE true) AS check1";
    assert!(reference.contains(both), "{reference}");
}

/// Running out of DataFusion's memory is the plan's own business; the ledger is still looked at.
#[tokio::test]
async fn a_small_pool_leaves_the_verdict_open() {
    let world = World::new(1, 0).unwrap();
    let stored = world.datasets[3].store().await.unwrap();
    let engine = Engine::new("", Duration::from_secs(60)).unwrap();
    let sql = "SELECT k, count(*) FROM t0 GROUP BY k".to_string();
    let question = Question::of_sql(&engine, &stored, sql, None, Spec::default()).await;
    let options = RunOptions { pool: Some(options::Pool::Greedy(1)), ..RunOptions::default() };
    let (run, judgement) = question.run(&engine, &options, &Plant::default(), Care::Quick).await;
    assert!(matches!(judgement, Judgement::Undetermined), "{judgement:?} {:?}", run.verdict);
    let unlimited = RunOptions::default();
    let judgement = question.judge(&engine, &unlimited, &run, Care::Quick).await;
    assert!(matches!(judgement, Judgement::Wrong(Wrong::Error, _)), "{judgement:?}");
}

#[tokio::test]
async fn what_runs_is_known_while_it_runs() {
    let watchdog = Arc::new(watchdog::Watchdog::guard(Duration::from_secs(600)));
    let running = Running { seed: 3, number: 7, sql: "SELECT 1".to_string(), options: RunOptions::default() };
    let inside = Arc::clone(&watchdog);
    let task =
        SpawnedTask::spawn(
            async move { inside.running().iter().map(ToString::to_string).collect::<String>() },
        );
    let text = watchdog.wait(running, task, Duration::from_secs(60)).await.unwrap().unwrap();
    assert!(text.contains("--seed 3 --from 7") && text.contains("SELECT 1"), "{text}");
    assert!(watchdog.running().is_empty());
}

/// Whether this process is the one that is to block.
const BLOCK: &str = "DATAFUSION_WGPU_TEST_BLOCK";

/// A process whose threads are all blocked says what ran, and ends.
#[test]
fn a_deadlock_ends_with_a_report() {
    if std::env::var_os(BLOCK).is_some() {
        let watchdog = watchdog::Watchdog::guard(Duration::from_secs(1));
        watchdog.on_deadlock(|running| eprintln!("{} query is told of", running.len()));
        let running =
            Running { seed: 3, number: 7, sql: "SELECT 1".to_string(), options: RunOptions::default() };
        // The only thread of the runtime.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let block = async { std::thread::sleep(Duration::from_secs(60)) };
        let wait = async { watchdog.wait(running, SpawnedTask::spawn(block), Duration::from_secs(90)).await };
        let _ = runtime.block_on(wait);
        panic!("nothing ended the process");
    }
    let name = "fuzz::tests::a_deadlock_ends_with_a_report";
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(BLOCK, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    for part in ["a deadlock", "--seed 3 --from 7 --queries 1", "SELECT 1", "1 query is told of"] {
        assert!(text.contains(part), "{part} is missing: {text}");
    }
}

#[test]
fn edge_values_are_there() {
    let mut rng = Rng::new(1, 1);
    let full = Fill { nulls: 0, hot: 0 };
    let texts = |rng: &mut Rng, data_type: &DataType| -> Vec<String> {
        let array = values::array(rng, data_type, Flavour::Edge, full, 4_000).unwrap();
        (0..array.len()).map(|row| cells::show(array.as_ref(), row)).collect()
    };
    let mut has = |data_type: &DataType, wanted: &[&str]| {
        let texts = texts(&mut rng, data_type);
        for value in wanted {
            assert!(texts.iter().any(|text| text == value), "{value} is not among the {data_type} values");
        }
    };
    let doubles = [
        "-0.0",
        "0.0",
        "NaN",
        "inf",
        "-inf",
        "5e-324",
        "NaN(0x7ff8000000000001)",
        "9007199254740994.0",
        "0.1",
    ];
    has(&DataType::Float64, &doubles);
    has(&DataType::Float32, &["-0.0", "NaN(0xffc00000)", "inf", "1e-45"]);
    has(
        &DataType::Int64,
        &["-9223372036854775808", "9223372036854775807", "9007199254740993", "4294967295", "0"],
    );
    has(&DataType::Int8, &["-128", "127", "0"]);
    has(&DataType::UInt64, &["18446744073709551615", "9007199254740993"]);
    has(&DataType::Date32, &["-1", "0", "18321", "-719162", "2147483647"]);
    has(&DataType::Utf8View, &["", "日本語", "'", "%"]);
    has(&DataType::Decimal128(9, 2), &["9999999.99", "-9999999.99", "0.00"]);
    has(&DataType::Decimal32(9, 2), &["9999999.99", "-9999999.99", "0.00"]);
    has(&DataType::Float16, &["-0.0", "NaN(0x7e01)", "inf", "5.9604645e-8"]);
    has(&DataType::Date64, &["-86400000", "0", "9223372036854775807"]);
    has(&DataType::Time64(TimeUnit::Nanosecond), &["0", "86399999999999"]);
    has(&DataType::Duration(TimeUnit::Second), &["-9223372036854775808", "0"]);
}
