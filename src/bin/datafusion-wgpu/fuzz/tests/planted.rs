//! Whatever is changed in an answer is found.

use super::*;

/// A table `t0` of 20 rows: `k` is ascending, `v` is large and has an average that no double is.
pub async fn numbers() -> Stored {
    let large = |k: i64| (k % 7) * 0x0123_4567_89ab_cdef + k;
    let rows = RecordBatch::try_from_iter(vec![
        ("k", Arc::new(Int64Array::from_iter_values(0..20)) as ArrayRef),
        ("v", Arc::new(Int64Array::from_iter_values((0..20).map(large))) as ArrayRef),
    ]);
    let layout = data::Layout::plain();
    let tables = vec![data::TableData { name: "t0".to_string(), rows: rows.unwrap(), layout }];
    Dataset { tables }.store().await.unwrap()
}

pub fn column(name: &str) -> Expr {
    Expr::leaf("column", DataType::Int64, name.to_string())
}

/// SELECT from `t0`.
pub fn select(items: Vec<Expr>) -> Query {
    let named = |(index, expr)| Item { expr, alias: format!("x{index}"), hidden: false };
    let items = items.into_iter().enumerate().map(named).collect();
    let table = Relation::Table { name: "t0".to_string(), alias: "t0".to_string() };
    // A condition gives every plan a GPU node.
    let all = Expr::leaf("comparison", DataType::Boolean, "k >= 0".to_string());
    Query::select(ast::Select { items, from: Some(table), filter: Some(all), ..ast::Select::default() })
}

fn ordered(mut query: Query, target: Target, descending: bool, limit: Option<u64>) -> Query {
    query.order.push(OrderKey { target, descending, nulls_first: None });
    query.limit = limit;
    query
}

/// Whatever is changed in an answer is found, whenever the change can show.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_kind_of_bug_is_found() {
    let engine = Engine::new("", Duration::from_secs(60)).unwrap();
    let average = Expr::new("avg of integers", DataType::Float64, "avg({})", vec![column("v").into()])
        .with_tier(Tier::Rounded(Rounding::Average));
    let count = Expr::leaf("count", DataType::Int64, "count(*)".to_string());
    let both = || select(vec![column("k"), column("v")]);
    let mut found: BTreeMap<String, u64> = BTreeMap::new();
    let stored = numbers().await;
    for query in [
        select(vec![average, count]),
        ordered(both(), Target::Column(0), true, None),
        ordered(both(), Target::Column(0), false, Some(5)),
        ordered(select(vec![column("v")]), Target::Hidden(column("k")), false, Some(5)),
        Query { limit: Some(5), ..both() },
    ] {
        plant_all(&engine, &stored, &query, &mut found).await;
    }
    assert_eq!(found.len(), 5, "{found:?}");
    let world = World::new(11, 0).unwrap();
    let stored = world.datasets[1].store().await.unwrap();
    for number in 0..QUERIES_A_WORLD {
        plant_all(&engine, &stored, &world.query(number), &mut found).await;
    }
}

async fn plant_all(engine: &Engine, stored: &Stored, query: &Query, found: &mut BTreeMap<String, u64>) {
    let options = RunOptions::default();
    let question = Question::new(engine, stored, query).await;
    let run = engine.forced(stored, &question.sql, &options).await;
    let judgement = question.judge(engine, &options, &run, Care::Quick).await;
    assert!(!matches!(judgement, Judgement::Wrong(..)), "{query}: {judgement:?}");
    for bug in [Bug::Row, Bug::Value, Bug::Average, Bug::Order, Bug::Limit] {
        let mut run = run.clone();
        let plant = Plant { text: Some(String::new()), bug };
        if plant.apply(&question.sql, &question.spec, &mut run) {
            let judgement = question.judge(engine, &options, &run, Care::Quick).await;
            if run.gpu.nodes.is_empty() {
                // Whatever a plan of DataFusion's own gives is none of ours.
                assert!(matches!(judgement, Judgement::Undetermined), "{bug:?} in {query}: {judgement:?}");
                run.plan.push_str("another plan");
                let judgement = question.judge(engine, &options, &run, Care::Quick).await;
                assert!(matches!(judgement, Judgement::Wrong(..)), "{bug:?} in {query}: {judgement:?}");
                continue;
            }
            assert!(matches!(judgement, Judgement::Wrong(..)), "{bug:?} in {query}: {judgement:?}");
            *found.entry(format!("{bug:?}")).or_default() += 1;
        }
    }
}

/// `SELECT v FROM t0 ORDER BY k LIMIT 2` must not be answered with the largest keys.
#[tokio::test]
async fn a_top_k_from_the_wrong_end_is_found() {
    let stored = numbers().await;
    let query =
        |descending| ordered(select(vec![column("v")]), Target::Hidden(column("k")), descending, Some(2));
    let engine = Engine::new("", Duration::from_secs(60)).unwrap();
    let options = RunOptions::default();
    let question = Question::new(&engine, &stored, &query(false)).await;
    for (descending, right) in [(false, true), (true, false)] {
        let run = engine.forced(&stored, &query(descending).to_string(), &options).await;
        let judgement = question.judge(&engine, &options, &run, Care::Quick).await;
        assert_eq!(matches!(judgement, Judgement::Same), right, "{judgement:?}");
        assert_eq!(matches!(judgement, Judgement::Wrong(..)), !right, "{judgement:?}");
    }
}

/// An average of a few small values among large ones must not pass with any value.
#[tokio::test]
async fn a_wrong_average_of_small_values_is_found() {
    let stored = numbers().await;
    let average = |value: &str| {
        let expr = Expr::new("avg of integers", DataType::Float64, "avg({})", vec![column(value).into()]);
        select(vec![expr.with_tier(Tier::Rounded(Rounding::Average))])
    };
    let engine = Engine::new("", Duration::from_secs(60)).unwrap();
    let options = RunOptions::default();
    let question = Question::new(&engine, &stored, &average("k")).await;
    for (value, right) in [("k", true), ("k + 100000000", false), ("k * 1.000000000001", false)] {
        let run = engine.forced(&stored, &average(value).to_string(), &options).await;
        let judgement = question.judge(&engine, &options, &run, Care::Quick).await;
        assert_eq!(matches!(judgement, Judgement::Same), right, "{value}: {judgement:?}");
        assert_eq!(matches!(judgement, Judgement::Wrong(..)), !right, "{value}: {judgement:?}");
    }
}
