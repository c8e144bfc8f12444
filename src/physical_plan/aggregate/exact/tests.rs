//! The exact functions in DataFusion's own grouping, partial and final step, against integers kept bit by bit.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Float64Array, Int64Array, RecordBatch};
use arrow::datatypes::{DataType, Field, Float64Type, Int64Type, Schema};
use datafusion::datasource::MemTable;
use datafusion::execution::memory_pool::FairSpillPool;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::prelude::{SessionConfig, SessionContext};

use super::{Finish, exact_function};
use crate::kernels::ExactSum;
use crate::kernels::exact::plain::Plain;
use crate::kernels::testkit::Rng;

/// Rows of (key, value); a NULL value has no summand.
type Rows = Vec<(i64, Option<f64>)>;

fn context(rows: &Rows, config: SessionConfig, memory: Option<usize>) -> SessionContext {
    let mut runtime = RuntimeEnvBuilder::new();
    if let Some(bytes) = memory {
        runtime = runtime.with_memory_pool(Arc::new(FairSpillPool::new(bytes)));
    }
    let context = SessionContext::new_with_config_rt(config, runtime.build_arc().expect("runtime"));
    for finish in [Finish::Sum, Finish::Average] {
        context.register_udaf(exact_function(finish).as_ref().clone());
    }
    let schema = Arc::new(Schema::new(vec![
        Field::new("k", DataType::Int64, false),
        Field::new("x", DataType::Float64, true),
    ]));
    let batches = rows.chunks(97).map(|rows| {
        let keys: ArrayRef = Arc::new(rows.iter().map(|(key, _)| *key).collect::<Int64Array>());
        let values: ArrayRef = Arc::new(rows.iter().map(|(_, x)| *x).collect::<Float64Array>());
        RecordBatch::try_new(Arc::clone(&schema), vec![keys, values]).expect("batch")
    });
    let mut partitions = vec![vec![], vec![], vec![]];
    batches.enumerate().for_each(|(at, batch)| partitions[at % 3].push(batch));
    let table = MemTable::try_new(schema, partitions).expect("table");
    context.register_table("t", Arc::new(table)).expect("table");
    context
}

/// Sum and average by group, as bits.
type Answer = BTreeMap<i64, (Option<u64>, Option<u64>)>;

async fn ask(context: &SessionContext, sql: &str) -> Answer {
    let batches = context.sql(sql).await.expect("plan").collect().await.expect("rows");
    let mut answer = Answer::new();
    for batch in &batches {
        let keys = batch.column(0).as_primitive::<Int64Type>();
        let bits = |column: usize, row: usize| {
            let values = batch.column(column).as_primitive::<Float64Type>();
            values.iter().nth(row).flatten().map(f64::to_bits)
        };
        for row in 0..batch.num_rows() {
            answer.insert(keys.value(row), (bits(1, row), bits(2, row)));
        }
    }
    answer
}

const GROUPED: &str = "SELECT k, exact_sum(x), exact_avg(x) FROM t GROUP BY k";

fn rows(count: usize, groups: usize, seed: u64) -> Rows {
    let mut rng = Rng::new(seed);
    (0..count)
        .map(|_| {
            let key = rng.below(groups) as i64;
            // Some groups see all exponents, some prices, one nothing but NULL.
            let value = match key % 4 {
                0 => f64::from_bits(rng.next() & !(1 << 62)),
                1 => rng.below(1_000_000) as f64 / 100.0 - 3000.0,
                2 => f64::from_bits((rng.next() >> 12) | (rng.next() << 63) | (0x7fe << 52)),
                _ => (rng.next() as i64) as f64 * 1e-30,
            };
            (key, (key != 5 && !rng.one_in(7)).then_some(value))
        })
        .collect()
}

fn wanted(rows: &Rows) -> BTreeMap<i64, Vec<f64>> {
    let mut groups: BTreeMap<i64, Vec<f64>> = BTreeMap::new();
    rows.iter().for_each(|(key, value)| groups.entry(*key).or_default().extend(*value));
    groups
}

fn assert_exact(rows: &Rows, answer: &Answer) {
    let wanted = wanted(rows);
    assert_eq!(answer.len(), wanted.len());
    for (key, values) in wanted {
        let (sum, average) = answer[&key];
        if values.is_empty() {
            assert_eq!((sum, average), (None, None), "group {key}");
            continue;
        }
        let sum = f64::from_bits(sum.expect("a sum"));
        Plain::sum(&values).assert_rounds_to(sum, &format!("group {key}"));
        assert_eq!(average, Some((sum / values.len() as f64).to_bits()), "group {key}");
    }
}

#[tokio::test]
async fn the_same_bits_for_any_batches_and_partitions() {
    let rows = rows(1000, 40, 1);
    let mut first = None;
    for (partitions, batch_size, skip) in [(1, 8192, false), (4, 100, false), (4, 13, true), (2, 1, false)] {
        let mut config = SessionConfig::new().with_target_partitions(partitions).with_batch_size(batch_size);
        // Rows that become states without being grouped first.
        let (ratio, least) = if skip { (0.0, 1) } else { (1.0, 1 << 30) };
        let options = &mut config.options_mut().execution;
        options.skip_partial_aggregation_probe_ratio_threshold = ratio;
        options.skip_partial_aggregation_probe_rows_threshold = least;
        let answer = ask(&context(&rows, config, None), GROUPED).await;
        assert_exact(&rows, &answer);
        assert_eq!(first.get_or_insert_with(|| answer.clone()), &answer, "{partitions} x {batch_size}");
    }
}

/// Little memory: states go to disk and come back.
#[tokio::test]
async fn states_spill() {
    let rows = rows(30_000, 12_000, 2);
    let config = || SessionConfig::new().with_target_partitions(2).with_batch_size(500);
    let context = context(&rows, config(), Some(1_500_000));
    let frame = context.sql(GROUPED).await.expect("plan");
    let plan = frame.create_physical_plan().await.expect("plan");
    datafusion::physical_plan::collect(Arc::clone(&plan), context.task_ctx()).await.expect("rows");
    let mut spills = 0;
    let mut nodes = vec![plan];
    while let Some(node) = nodes.pop() {
        spills += node.metrics().and_then(|metrics| metrics.spill_count()).unwrap_or(0);
        nodes.extend(node.children().into_iter().map(Arc::clone));
    }
    assert!(spills > 0);
    assert_exact(&rows, &ask(&context, GROUPED).await);
}

#[tokio::test]
async fn filters_and_no_groups() {
    let rows = rows(2000, 9, 3);
    let context = context(&rows, SessionConfig::new().with_target_partitions(3), None);
    let sql =
        "SELECT k, exact_sum(x) FILTER (WHERE x > 0), exact_avg(x) FILTER (WHERE x > 0) FROM t GROUP BY k";
    let positive: Rows = rows.iter().map(|(key, x)| (*key, x.filter(|x| *x > 0.0))).collect();
    assert_exact(&positive, &ask(&context, sql).await);
    let whole: Rows = rows.iter().map(|(_, x)| (7, *x)).collect();
    assert_exact(&whole, &ask(&context, "SELECT 7, exact_sum(x), exact_avg(x) FROM t").await);
    let nothing = ask(&context, "SELECT 7, exact_sum(x), exact_avg(x) FROM t WHERE k < 0").await;
    assert_eq!(nothing, Answer::from([(7, (None, None))]));
}

/// NaN, infinities and zeros are DataFusion's, bit for bit.
#[tokio::test]
async fn what_is_not_finite_is_datafusions() {
    let nan = |bits: u64| f64::from_bits(0x7ff0_0000_0000_0000 | bits);
    let groups: [&[f64]; 9] = [
        &[f64::INFINITY, 1.0],
        &[f64::NEG_INFINITY, 1.0, 2.0],
        &[f64::INFINITY, f64::NEG_INFINITY],
        &[1.0, nan(5)],
        &[-nan(1 << 51 | 3), 2.0, f64::INFINITY],
        &[nan(1 << 51)],
        &[-0.0],
        &[-0.0, -0.0, -0.0],
        &[f64::MAX, f64::MAX],
    ];
    let numbered = groups.iter().enumerate().map(|(key, values)| (key as i64, values));
    let rows: Rows = numbered.flat_map(|(key, values)| values.iter().map(move |x| (key, Some(*x)))).collect();
    for partitions in [1, 3] {
        let config = SessionConfig::new().with_target_partitions(partitions);
        let context = context(&rows, config, None);
        let exact = ask(&context, GROUPED).await;
        assert_eq!(exact, ask(&context, "SELECT k, sum(x), avg(x) FROM t GROUP BY k").await);
        for key in 0..groups.len() {
            let whole =
                |f: [&str; 2]| format!("SELECT {key}, {}(x), {}(x) FROM t WHERE k = {key}", f[0], f[1]);
            let exact = ask(&context, &whole(["exact_sum", "exact_avg"])).await;
            assert_eq!(exact, ask(&context, &whole(["sum", "avg"])).await);
        }
    }
}

#[test]
fn memory_is_accounted_for() {
    use arrow::array::UInt64Array;
    use datafusion::logical_expr::{EmitTo, GroupsAccumulator};

    let mut groups = super::ExactGroups::new(Finish::Sum);
    let values: ArrayRef = Arc::new(Float64Array::from(vec![1.0, 1e300, 5.0, f64::NAN]));
    groups.update_batch(&[values], &[0, 0, 1, 1], None, 2).expect("update");
    let lean = groups.counts_capacity() * (8 + size_of::<ExactSum>());
    assert!(groups.size() > lean);
    let state = groups.state(EmitTo::First(1)).expect("state");
    assert_eq!(state[0].as_ref(), &UInt64Array::from(vec![2]) as &dyn arrow::array::Array);
    groups.state(EmitTo::All).expect("state");
    assert_eq!(groups.size(), 0);
}
