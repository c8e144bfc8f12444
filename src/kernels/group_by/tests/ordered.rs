//! Rows that are parted by their keys' hashes before they are grouped.

use super::limits::{Lowered, lowered};
use super::*;

fn forced(groups: Option<usize>) -> GroupHint {
    GroupHint { groups, partitioned: Some(true), ..GroupHint::default() }
}

/// Numbers of groups around the sizes of tables, where they are known, unknown, and thought to be few: with and without workgroups'
/// own tables.
#[tokio::test]
async fn cardinalities() {
    let device = device();
    let by = sums_and_extremes();
    let mut reruns = 0;
    for (number, groups) in [1, 2, 255, 256, 257, 4000, 65_535, 65_537, 70_001].into_iter().enumerate() {
        let scope = scope(&device);
        let rows = 70_001;
        let mut rng = Rng::new(40 + number as u64);
        let shape = DataShape { nulls: 0, edgy: 2, offset: 1 };
        let columns = [
            keys_below(groups, rows, &mut rng),
            column(Int64, rows, shape, &mut rng),
            column(Int32, rows, shape, &mut rng),
        ];
        let segment = segment(&scope, &columns, rows).await.expect("upload");
        let program = Program::default();
        let twin = reference::group_by(&program, &by, &columns, rows).expect("twin");
        assert_eq!(twin.groups, groups);
        let other = if number % 2 == 0 { None } else { Some(1) };
        for hint in [forced(Some(groups)), forced(other)] {
            let what = format!("{groups} groups, {hint:?}");
            let device = group_by(&scope, &program, &by, &segment, &hint).await.expect(&what);
            assert_same(&device, &twin, &what);
            assert_eq!(device.strategy, Strategy::Partitioned, "{what}");
            reruns = reruns.max(device.reruns);
        }
    }
    assert!(reruns >= 1, "tables grow: {reruns}");
}

/// Every aggregate under a selection and over NULLs, by several keys; no row, one, and a hot group that has nearly all.
#[tokio::test]
async fn selections_and_skew() {
    let scopes = CHECKS.map(|checks| scope(&with_checks(checks)));
    let types = [Int64, dec(25, 2), Boolean, Float32];
    let aggregates = types.iter().enumerate().flat_map(|(at, &ty)| all_of(&col(at + 2, ty)));
    let sum = agg(AggregateKind::SumFloat, col(5, Float32));
    let by = GroupBy {
        keys: vec![key(0, Int64), key(1, Int16)],
        aggregates: std::iter::once(count_rows()).chain(aggregates).chain([sum]).collect(),
        ..GroupBy::default()
    };
    let mut rng = Rng::new(50);
    for (number, (rows, hot, limit)) in
        [(1, 0, 9), (3000, 0, 5), (3000, 0, -1), (6000, 97, 9)].into_iter().enumerate()
    {
        let shape = DataShape { nulls: 10, edgy: 1, offset: rng.below(40) };
        let keys: Vec<Scalar> =
            (0..rows).map(|row| (rng.below(100) >= hot).then_some(row as i128 / 2 * 1_000_003)).collect();
        let mut columns = vec![array_of(Int64, &keys).expect("array"), pooled(Int16, rows, 2, 0, &mut rng)];
        columns.extend(types.iter().map(|&ty| column(ty, rows, shape, &mut rng)));
        let digits: Vec<Scalar> = (0..rows).map(|_| Some(rng.below(10) as i128)).collect();
        columns.push(array_of(Int32, &digits).expect("array"));
        let selection = Some(cmp(CompareOp::Lt, col(6, Int32), param(0, Int32)));
        let program = Program { selection, params: vec![(Int32, Some(limit))] };
        for groups in [None, Some(rows)] {
            let what = format!("{rows} rows, {hot} % in one group, below {limit}, {groups:?}");
            let scope = &scopes[number % 2];
            let segment = segment(scope, &columns, rows).await.expect("upload");
            let device = group_by(scope, &program, &by, &segment, &forced(groups)).await.expect(&what);
            let twin = reference::group_by(&program, &by, &columns, rows).expect("twin");
            assert_same(&device, &twin, &what);
            assert!(device.strategy == Strategy::Partitioned || twin.groups == 0, "{what}");
        }
    }
}

/// More groups than any table that can be bound: tables one after the other, foreseen or not.
#[tokio::test]
async fn tables_one_after_the_other() {
    let full = device();
    let caps = DeviceCaps { max_binding_bytes: 1 << 16, ..full.caps().as_ref().clone() };
    let scope = scope(&full.with_caps(caps));
    let by = sums_and_extremes();
    let mut rng = Rng::new(3);
    let shape = DataShape { nulls: 0, edgy: 2, offset: 1 };
    let rows = 8000;
    for groups in [5, 900, 6000, 8000] {
        let columns = [
            keys_below(groups, rows, &mut rng),
            column(Int64, rows, shape, &mut rng),
            column(Int32, rows, shape, &mut rng),
        ];
        // What is not known is learned.
        let known = GroupHint { groups: Some(groups), ..GroupHint::default() };
        for hint in [forced(Some(groups)), forced(Some(3)), GroupHint::default(), known] {
            let what = format!("{groups} groups, {hint:?}");
            let device = check(&scope, &Program::default(), &by, &columns, rows, &hint, &what).await;
            let many = groups > 2000;
            let ordered = many || hint.partitioned == Some(true);
            assert_eq!(device.strategy == Strategy::Partitioned, ordered, "{what}: {:?}", device.strategy);
        }
    }
}

/// Faults of selection, keys and arguments; those of rows that are left out don't count.
#[tokio::test]
async fn faults() {
    let scope = scope(&device());
    let values = |at: usize| Some(if at == 40 { i64::MIN.into() } else { at as i128 });
    let columns = [array_of(Int64, &(0..500).map(values).collect::<Vec<_>>()).expect("array")];
    let absolute = call(crate::kernels::expr::IntegerFn::Abs, vec![col(0, Int64)], Int64);
    let of = |key: &Arc<Expr>, arg: &Arc<Expr>| GroupBy {
        keys: vec![GroupKey::Value(Arc::clone(key))],
        aggregates: vec![agg(AggregateKind::Max, Arc::clone(arg))],
        ..GroupBy::default()
    };
    let plain = col(0, Int64);
    for by in [of(&absolute, &plain), of(&plain, &absolute)] {
        for (least, fault) in [(i64::MIN, true), (0, false)] {
            let selection = Some(cmp(CompareOp::GtEq, col(0, Int64), param(0, Int64)));
            let program = Program { selection, params: vec![(Int64, Some(least.into()))] };
            let what = format!("{by:?} from {least}");
            let device = check(&scope, &program, &by, &columns, 500, &forced(None), &what).await;
            assert_eq!(device.fault, fault, "{what}");
        }
    }
}

/// Short loops, no room in workgroups, few buffers: those that parting needs, and fewer.
#[tokio::test]
async fn lowered_limits() {
    let full = device();
    let mut rng = Rng::new(3);
    let shape = DataShape { nulls: 10, edgy: 1, offset: 7 };
    let lower: [fn(&mut DeviceCaps); 6] = [
        |caps| caps.max_workgroups_per_dimension = 4,
        |caps| caps.loop_budget = 300,
        |caps| caps.workgroup_bytes = crate::kernels::partition::WORKGROUP_BYTES,
        |caps| caps.max_storage_buffers = 8,
        |caps| caps.max_storage_buffers = 7,
        |caps| caps.workgroup_bytes = crate::kernels::partition::WORKGROUP_BYTES - 4,
    ];
    for (number, lower) in lower.into_iter().enumerate() {
        let Lowered { caps, by, groups: most, name } = lowered(&full, lower);
        let scope = scope(&full.with_caps(caps));
        for (rows, groups) in [(1, 1), (4097, 3), (20_001, most)] {
            let columns = [
                keys_below(groups, rows, &mut rng),
                column(Int64, rows, shape, &mut rng),
                column(Int32, rows, shape, &mut rng),
            ];
            let what = format!("limit {number}, {rows} rows in {groups} groups, {name}");
            let device = check(&scope, &Program::default(), &by, &columns, rows, &forced(None), &what).await;
            assert_eq!(device.strategy == Strategy::Partitioned, number < 4, "{what}");
        }
    }
}

/// Where ordering is expected to be faster.
#[test]
fn where_it_pays() {
    use super::super::ordered::pays;
    let caps = DeviceCaps::for_tests();
    let known = |groups| GroupHint { groups: Some(groups), ..GroupHint::default() };
    let cases = [
        // Tables that caches hold, or of groups that nobody knows.
        (1 << 27, known(1 << 19), false),
        (1 << 27, GroupHint::default(), false),
        (1 << 27, forced(None), true),
        (1 << 27, known(10_000_000), true),
        // Hardly more rows than groups.
        (1 << 24, known(10_000_000), false),
        // More than a binding.
        (1 << 27, known(100_000_000), true),
        (1 << 27, GroupHint { partitioned: Some(false), ..known(100_000_000) }, false),
        // Row numbers that no binding holds.
        (1 << 29, known(100_000_000), false),
    ];
    for (rows, hint, want) in cases {
        assert_eq!(pays(32, rows, &hint, &caps), want, "{rows} rows, {hint:?}");
    }
    assert!(!pays(32, 1 << 27, &forced(None), &DeviceCaps { max_storage_buffers: 7, ..caps }));
}
