//! Rows that come first in an order.

use super::*;
use crate::kernels::reduce::RowOrder;

const ORDERS: [RowOrder; 4] = [
    RowOrder { descending: false, nulls_first: false },
    RowOrder { descending: false, nulls_first: true },
    RowOrder { descending: true, nulls_first: false },
    RowOrder { descending: true, nulls_first: true },
];

fn firsts(arg: &Arc<Expr>) -> Vec<AggregateSpec> {
    ORDERS.iter().map(|order| agg(AggregateKind::FirstRow(*order), Arc::clone(arg))).collect()
}

/// Types of every register class.
fn ordered_types() -> Vec<ValueType> {
    vec![Boolean, Int8, UInt32, Int64, UInt64, Date32, dec(12, 2), dec(30, 4)]
}

/// Every type, no, some and nothing but NULLs, few values so that rows tie; numbers of groups, and with each the strategies.
#[tokio::test]
async fn orders_ties_and_nulls() {
    let scopes = CHECKS.map(|checks| scope(&with_checks(checks)));
    let types = ordered_types();
    let mut strategies = std::collections::HashSet::new();
    for (number, types) in types.chunks(2).enumerate() {
        let mut aggregates = vec![count_rows()];
        aggregates.extend(types.iter().enumerate().flat_map(|(at, &ty)| firsts(&col(at + 1, ty))));
        let by = GroupBy { keys: vec![key(0, Int64)], aggregates, ..GroupBy::default() };
        let mut rng = Rng::new(700 + number as u64);
        for (rows, many, pool, nulls) in
            [(1, 1, 1, 0), (4099, 7, 3, 30), (4099, 500, 2, 0), (3000, 2, 1, 100)]
        {
            let mut columns = vec![keys_below(many, rows, &mut rng)];
            columns.extend(types.iter().map(|&ty| pooled(ty, rows, pool, nulls, &mut rng)));
            let range = Some(KeyRange { min: 0, max: many as i128 - 1 });
            let dense = GroupHint { groups: Some(many), ranges: vec![range], ..GroupHint::default() };
            let parted = GroupHint { groups: Some(many), partitioned: Some(true), ..GroupHint::default() };
            for hint in [groups(many), groups(100_000), dense, parted] {
                let what = format!("{types:?}: {rows} rows, {many} groups, {nulls} % NULL, {hint:?}");
                let scope = &scopes[number % 2];
                let result = check(scope, &Program::default(), &by, &columns, rows, &hint, &what).await;
                strategies.insert(result.strategy);
            }
        }
    }
    assert!(strategies.len() >= 3, "{strategies:?}");
}

/// Keys whose slots are computed, and no keys at all.
#[tokio::test]
async fn few_groups() {
    let scope = scope(&device());
    let mut rng = Rng::new(11);
    for (keys, rows) in [(vec![key(0, Boolean)], 5000), (vec![], 5000), (vec![], 3)] {
        let by = GroupBy { keys, aggregates: firsts(&col(1, Int32)), ..GroupBy::default() };
        let columns = [pooled(Boolean, rows, 2, 10, &mut rng), pooled(Int32, rows, 9, 10, &mut rng)];
        for hint in [GroupHint::default(), groups(3)] {
            let what = format!("{} keys, {rows} rows, {hint:?}", by.keys.len());
            check(&scope, &Program::default(), &by, &columns, rows, &hint, &what).await;
        }
    }
}

/// Under a selection and filters: rows keep the numbers that they have in the segment, and a group may have none.
#[tokio::test]
async fn selected_rows_keep_their_numbers() {
    let scopes = CHECKS.map(|checks| scope(&with_checks(checks)));
    let mut rng = Rng::new(77);
    let filter = Some(cmp(CompareOp::Gt, col(2, Int16), param(1, Int16)));
    let filtered = |spec: AggregateSpec| AggregateSpec { filter: filter.clone(), ..spec };
    let aggregates = firsts(&col(1, Int64)).into_iter().map(filtered).chain(firsts(&col(2, Int16)));
    let by = GroupBy { keys: vec![key(0, Int64)], aggregates: aggregates.collect(), ..GroupBy::default() };
    let selection = Some(cmp(CompareOp::Lt, col(3, Int32), param(0, Int32)));
    for (number, (rows, many, least)) in
        [(3000, 9, 2), (3000, 1500, 8), (6000, 40, 99)].into_iter().enumerate()
    {
        let digits = |rng: &mut Rng, ty| {
            let picked: Vec<Scalar> =
                (0..rows).map(|_| (rng.below(9) > 0).then(|| rng.below(10) as i128)).collect();
            array_of(ty, &picked).expect("array")
        };
        let columns = [
            keys_below(many, rows, &mut rng),
            pooled(Int64, rows, 4, 20, &mut rng),
            digits(&mut rng, Int16),
            digits(&mut rng, Int32),
        ];
        let params = vec![(Int32, Some(6)), (Int16, Some(least))];
        let program = Program { selection: selection.clone(), params };
        for hint in [groups(many), GroupHint { partitioned: Some(true), ..groups(many) }] {
            let what = format!("{rows} rows, {many} groups, above {least}, {hint:?}");
            let result = check(&scopes[number % 2], &program, &by, &columns, rows, &hint, &what).await;
            let empty = result.states[0].counts.iter().filter(|count| **count == 0).count();
            assert!(empty > 0 || least < 8, "{what}: every group has a row");
        }
    }
}

/// Rows with one value each in many tables, and the same value in all: the least number is found whatever workgroup has it.
#[tokio::test]
async fn one_value_for_all() {
    let scope = scope(&device());
    let rows = 20_000;
    let by = GroupBy { keys: vec![key(0, Int64)], aggregates: firsts(&col(1, Int64)), ..GroupBy::default() };
    let mut rng = Rng::new(5);
    let columns = [keys_below(3, rows, &mut rng), array_of(Int64, &vec![Some(7); rows]).expect("array")];
    for hint in [groups(3), groups(100_000), GroupHint { partitioned: Some(true), ..groups(3) }] {
        check(&scope, &Program::default(), &by, &columns, rows, &hint, &format!("{hint:?}")).await;
    }
}

/// An argument that raises for a row, and floats, which have no such order.
#[tokio::test]
async fn faults_and_floats() {
    let scope = scope(&device());
    let values: Vec<Scalar> = (0..500).map(|at| Some(if at == 40 { i64::MIN.into() } else { at })).collect();
    let columns = [array_of(Int64, &values).expect("array")];
    let absolute = call(crate::kernels::expr::IntegerFn::Abs, vec![col(0, Int64)], Int64);
    let by = GroupBy { keys: vec![key(0, Int64)], aggregates: firsts(&absolute), ..GroupBy::default() };
    let result = check(&scope, &Program::default(), &by, &columns, 500, &groups(500), "abs").await;
    assert!(result.fault);
    for ty in [Float16, Float32, Float64] {
        let spec = agg(AggregateKind::FirstRow(ORDERS[0]), col(0, ty));
        let error = state_type(&spec).expect_err("an order of floats").to_string();
        assert!(error.contains(&format!("the row that comes first over {ty}")), "{error}");
    }
}
