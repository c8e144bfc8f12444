//! Tests of the fuzzer: it repeats itself, it produces every clause, it finds what is planted, and makes it small.

use std::collections::BTreeMap;
use std::path::Path;

use datafusion::arrow::array::{ArrayRef, Float64Array, Int64Array, RecordBatch};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::DataType;

use super::ast::Tier;
use super::compare::{Key, Spec, compare, same_error};
use super::types::{Class, Flavour, random_type};
use super::values::Fill;
use super::*;

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
const KINDS: [&str; 73] = [
    "guarded division",
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

fn answer(columns: Vec<(&str, ArrayRef)>) -> Answer {
    let batch =
        RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(n, a)| (n, a, true))).unwrap();
    Answer { schema: batch.schema(), batches: vec![batch] }
}

fn floats(values: Vec<f64>) -> Answer {
    answer(vec![("x", Arc::new(Float64Array::from(values)))])
}

fn spec(tier: Tier) -> Spec {
    Spec { order: vec![], limited: false, folds_zero: false, tiers: vec![tier] }
}

#[test]
fn every_bit_counts() {
    let payload = f64::from_bits(0x7ff8_0000_0000_0001);
    let differ = |spec: &Spec, a: &[f64], b: &[f64]| {
        compare(spec, &floats(a.to_vec()), None, &floats(b.to_vec())).unwrap().is_err()
    };
    let exact = spec(Tier::Exact);
    assert!(!differ(&exact, &[1.0, f64::NAN, -0.0], &[-0.0, 1.0, f64::NAN]));
    assert!(differ(&exact, &[0.0], &[-0.0]));
    assert!(differ(&exact, &[f64::NAN], &[payload]));
    assert!(differ(&exact, &[1.0, 1.0, 2.0], &[1.0, 2.0, 2.0]));
    assert!(differ(&exact, &[1.0], &[1.0, 1.0]));
    assert!(!differ(&Spec { folds_zero: true, ..exact.clone() }, &[0.0], &[-0.0]));
    assert!(!differ(&spec(Tier::AnyNan), &[f64::NAN], &[payload]));
    assert!(!differ(&spec(Tier::Within(0.5)), &[1.0, 9.0], &[9.25, 1.0]));
    assert!(differ(&spec(Tier::Within(0.5)), &[1.0, 9.0], &[9.75, 1.0]));
    let one = answer(vec![("x", Arc::new(Int64Array::from(vec![1])))]);
    assert!(compare(&exact, &one, None, &floats(vec![1.0])).unwrap().is_err(), "other types");
}

#[test]
fn order_and_limit_are_checked_by_key() {
    let rows = |keys: &[i64], values: &[i64]| {
        answer(vec![
            ("k", Arc::new(Int64Array::from(keys.to_vec()))),
            ("v", Arc::new(Int64Array::from(values.to_vec()))),
        ])
    };
    let key = Key { column: 0, descending: false, nulls_first: false };
    let mut spec = spec(Tier::Exact);
    spec.order = vec![key];
    let all = rows(&[1, 1, 2, 3], &[10, 11, 20, 30]);
    let is_same =
        |spec: &Spec, want: &Answer, got: &Answer| compare(spec, want, Some(&all), got).unwrap().is_ok();
    assert!(is_same(&spec, &all, &rows(&[1, 1, 2, 3], &[11, 10, 20, 30])), "ties are free");
    assert!(!is_same(&spec, &all, &rows(&[1, 2, 1, 3], &[10, 20, 11, 30])), "a key out of order");
    spec.limited = true;
    let first = rows(&[1], &[10]);
    assert!(is_same(&spec, &first, &rows(&[1], &[11])), "another row of the tie");
    assert!(!is_same(&spec, &first, &rows(&[2], &[20])), "another key");
    assert!(!is_same(&spec, &first, &rows(&[1], &[12])), "a row that is not there");
    assert!(!is_same(&spec, &first, &rows(&[1, 1], &[10, 11])), "too many rows");
}

#[test]
fn errors_are_the_same_apart_from_values() {
    assert!(same_error(
        "Arrow error: Cast error: Can't cast value 300 to type Int8",
        "Can't cast value -7 to type Int8"
    ));
    assert!(same_error(
        "Arrow error: Divide by zero error",
        "External error: Arrow error: Divide by zero error"
    ));
    assert!(!same_error(
        "Arrow error: Divide by zero error",
        "Arithmetic overflow: Overflow happened on: 1 + 2"
    ));
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
        Class::Decimal,
        Class::Date,
        Class::Timestamp,
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
        let shrunk = shrink::Shrunk { case, detail: "two\nlines".to_string(), tries: 0 };
        let path = script::write(folder.path(), round as usize, 3, 0, judge::Wrong::Rows, &shrunk).unwrap();
        let back = script::read(&path).await.unwrap_or_else(|error| {
            panic!("{error}\n{}", std::fs::read_to_string(&path).unwrap());
        });
        assert_eq!(back.dataset.tables[0].rows.schema(), rows.schema());
        let exact = Spec { order: vec![], limited: false, folds_zero: false, tiers: vec![] };
        let of = |rows: &RecordBatch| Answer { schema: rows.schema(), batches: vec![rows.clone()] };
        compare(&exact, &of(&rows), None, &of(&back.dataset.tables[0].rows)).unwrap().unwrap();
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
            let exact = Spec { order: vec![], limited: false, folds_zero: false, tiers: vec![] };
            let same = compare(&exact, &want, None, &got).unwrap();
            assert_eq!(same, Ok(()), "{:?}", table.layout);
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
    let summary = Fuzzer::new(engine, args).run().await.unwrap();
    let failure = &summary.failures[0];
    assert_eq!(failure.wrong, judge::Wrong::Rows, "{failure:?}");
    assert!(failure.sql.contains(text), "{}", failure.sql);
    assert!(failure.sql.len() < 200, "not made small: {}", failure.sql);
    let path = failure.script.clone().unwrap();
    let script = script::read(&path).await.unwrap();
    assert!(script.dataset.rows() <= 2, "{} rows", script.dataset.rows());
    let engine = Engine::new("", Duration::from_secs(60)).unwrap();
    let found = replay(&engine, &path, &Plant(Some(text.to_string()))).await.unwrap();
    let without = replay(&engine, &path, &Plant::default()).await.unwrap();
    assert_eq!((found, without), (ExitCode::FAILURE, ExitCode::SUCCESS));
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
}
