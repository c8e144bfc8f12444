//! Groups that stay on the device and are merged there, against the twin over all rows.

use arrow::compute::concat;

use super::super::kept::Keep;
use super::*;

const ALL: KeepRule = KeepRule { groups: 0, full: 0, rows_each: u64::MAX };

/// Every aggregate of a type whose states are merged.
fn mergeable(arg: &Arc<Expr>) -> Vec<AggregateSpec> {
    let by = |spec: &AggregateSpec| GroupBy {
        keys: vec![key(0, Int32)],
        aggregates: vec![spec.clone()],
        ..GroupBy::default()
    };
    all_of(arg).into_iter().filter(|spec| can_keep(&by(spec))).collect()
}

async fn kept(
    scope: &LaunchScope,
    program: &Program,
    by: &GroupBy,
    (columns, rows): (&[ArrayRef], usize),
    hint: &GroupHint,
) -> KeptGroups {
    let segment = segment(scope, columns, rows).await.expect("upload");
    match group_and_keep(scope, program, by, &segment, hint, ALL).await.expect("group") {
        Grouped::Kept(kept) => kept,
        Grouped::Host(result) => panic!("{} groups were downloaded", result.groups),
    }
}

/// All groups in parts of so many, put together again.
async fn fetched(scope: &LaunchScope, kept: &KeptGroups, most: usize) -> GroupResult {
    let mut all: Option<GroupResult> = None;
    for part in kept.parts(most) {
        let fetched = kept.fetch(scope, part).await.expect("read-back");
        assert_eq!(fetched.groups(), part.groups);
        for first in (0..part.groups).step_by(700) {
            let next = fetched.result(first, 700.min(part.groups - first)).expect("groups");
            all = Some(match all {
                None => next,
                Some(all) => together(all, next),
            });
        }
    }
    all.expect("some groups")
}

fn together(mut a: GroupResult, b: GroupResult) -> GroupResult {
    a.groups += b.groups;
    for (a, b) in a.keys.iter_mut().zip(&b.keys) {
        *a = concat(&[a.as_ref(), b.as_ref()]).expect("keys");
    }
    for (a, b) in a.states.iter_mut().zip(b.states) {
        a.counts.extend(b.counts);
        if let (StateValues::Array(a), StateValues::Array(b)) = (&mut a.values, &b.values) {
            *a = concat(&[a.as_ref(), b.as_ref()]).expect("states");
        }
    }
    a
}

fn end_to_end(parts: &[(Vec<ArrayRef>, usize)]) -> (Vec<ArrayRef>, usize) {
    let columns = (0..parts[0].0.len()).map(|at| {
        let chunks: Vec<&dyn Array> = parts.iter().map(|(columns, _)| columns[at].as_ref()).collect();
        concat(&chunks).expect("columns")
    });
    (columns.collect(), parts.iter().map(|(_, rows)| rows).sum())
}

/// Keeps the groups of each part, merges them, in two steps where there are three, and compares with the twin.
async fn check_merged(
    scope: &LaunchScope,
    program: &Program,
    by: &GroupBy,
    parts: &[(Vec<ArrayRef>, usize)],
    hint: &GroupHint,
    what: &str,
) -> KeptGroups {
    let mut merged: Option<KeptGroups> = None;
    for (columns, rows) in parts {
        let next = kept(scope, program, by, (columns, *rows), hint).await;
        assert_eq!(next.rows(), *rows as u64, "{what}");
        let alone = fetched(scope, &next, 333).await;
        let twin = reference::group_by(program, by, columns, *rows).expect("twin");
        assert_states(&alone, &twin, &format!("{what}: a part of {rows}"));
        merged = Some(match merged {
            None => next,
            Some(before) if !before.fits(&next) => panic!("{what}: {before:?} and {next:?}"),
            Some(before) => {
                let both = before.and([next]);
                let groups = both.groups();
                let piled = pile_groups(scope, &both).expect("pile");
                assert_eq!((piled.groups(), piled.device_bytes() > 0), (groups, true), "{what}");
                drop(both);
                merge_groups(scope, &piled).await.unwrap_or_else(|error| panic!("{what}: {error:?}"))
            }
        });
    }
    let merged = merged.expect("parts");
    let (columns, rows) = end_to_end(parts);
    let twin = reference::group_by(program, by, &columns, rows).expect("twin");
    assert_states(&fetched(scope, &merged, 1000).await, &twin, what);
    merged
}

fn assert_states(found: &GroupResult, twin: &GroupResult, what: &str) {
    let twin = GroupResult { sums: found.sums.clone(), floats: found.floats, ..twin.clone() };
    assert_same(found, &twin, what);
}

/// Keys of every type, three at a time, with NULLs in one part only or in all; booleans and narrow integers too.
#[tokio::test]
async fn every_type_as_key() {
    let (mut all, mut merged) = (0, 0);
    let scopes = CHECKS.map(|checks| scope(&with_checks(checks)));
    let types: Vec<ValueType> = TYPES.iter().chain(&OTHERS).copied().collect();
    for (number, types) in types.chunks(3).enumerate() {
        let keys = types.iter().enumerate().map(|(at, &ty)| key(at, ty)).collect();
        let by = GroupBy {
            keys,
            aggregates: vec![count_rows(), agg(AggregateKind::SumInt, col(3, Int32))],
            ..GroupBy::default()
        };
        let mut rng = Rng::new(number as u64);
        for nulls in [[0, 20, 0], [30, 1, 5]] {
            let parts = nulls.map(|nulls| {
                let rows = 300 + rng.below(600);
                let mut columns: Vec<ArrayRef> =
                    types.iter().map(|&ty| pooled(ty, rows, 6, nulls, &mut rng)).collect();
                columns.resize(3, array_of(Int32, &vec![Some(0); rows]).expect("array"));
                columns.push(pooled(Int32, rows, 100, nulls, &mut rng));
                (columns, rows)
            });
            // Decimals lie by their magnitudes: the parts' values are alike enough here, or not merged.
            let what = format!("{types:?}, {nulls:?} % nulls");
            let alike = check_alike(&scopes[number % 2], &by, &parts, &what).await;
            let decimal = |ty: &ValueType| ty.to_arrow().is_decimal();
            assert!(alike == parts.len() || types.iter().any(decimal), "{what}: {alike} parts lie alike");
            all += parts.len();
            merged += alike;
        }
    }
    assert!(3 * merged >= 2 * all, "{merged} of {all} parts were merged");
}

/// NULLs among the values of some parts only: whichever aggregates share an accumulator then, all parts lie alike. What is said of
/// values that are never NULL may be wrong.
#[tokio::test]
async fn nulls_among_the_values_of_some_parts() {
    let scope = scope(&device());
    let filter = cmp(CompareOp::Gt, col(2, Int32), param(0, Int32));
    let program = Program { selection: None, params: vec![(Int32, Some(0))] };
    let [a, b] = [col(1, Int32), col(2, Int32)];
    let mut aggregates = vec![count_rows(), agg(AggregateKind::Count, Arc::clone(&b))];
    for kind in
        [AggregateKind::SumInt, AggregateKind::Min, AggregateKind::BitAnd, AggregateKind::SumAsFloat64]
    {
        aggregates.extend([&a, &b].map(|arg| agg(kind, Arc::clone(arg))));
        aggregates.push(AggregateSpec { filter: Some(Arc::clone(&filter)), ..agg(kind, Arc::clone(&a)) });
    }
    let mut rng = Rng::new(77);
    for (number, required) in [vec![], vec![2, 5], (0..aggregates.len()).collect()].into_iter().enumerate() {
        let by = GroupBy {
            keys: vec![key(0, Int64)],
            aggregates: aggregates.clone(),
            // Averages, and sums.
            uncounted: (0..aggregates.len()).filter(|at| at % 2 == number % 2).collect(),
            required: required.iter().copied().collect(),
        };
        let parts = [(0, 0), (20, 0), (0, 70), (100, 5)].map(|(nulls_a, nulls_b)| {
            let columns = vec![
                pooled(Int64, 700, 90, nulls_a / 10, &mut rng),
                pooled(Int32, 700, 50, nulls_a, &mut rng),
                pooled(Int32, 700, 50, nulls_b, &mut rng),
            ];
            (columns, 700)
        });
        let what = format!("{required:?} required");
        if required.is_empty() {
            check_merged(&scope, &program, &by, &parts, &GroupHint::default(), &what).await;
            continue;
        }
        // Where the claim is broken, parts don't lie alike, and are right nevertheless.
        for part in parts.chunks(1) {
            check_merged(&scope, &program, &by, part, &GroupHint::default(), &what).await;
        }
    }
}

/// [`check_merged`] of those parts that lie like the first.
async fn check_alike(
    scope: &LaunchScope,
    by: &GroupBy,
    parts: &[(Vec<ArrayRef>, usize)],
    what: &str,
) -> usize {
    let (program, hint) = (Program::default(), GroupHint::default());
    let first = kept(scope, &program, by, (&parts[0].0, parts[0].1), &hint).await;
    let mut alike = vec![];
    for (columns, rows) in parts {
        if first.fits(&kept(scope, &program, by, (columns, *rows), &hint).await) {
            alike.push((columns.clone(), *rows));
        }
    }
    drop(first);
    check_merged(scope, &program, by, &alike, &hint, what).await;
    alike.len()
}

/// Aggregates of every type, of groups that have nothing but NULLs in some parts, too.
#[tokio::test]
async fn every_aggregate_of_every_type() {
    let (mut all, mut merged) = (0, 0);
    let scopes = CHECKS.map(|checks| scope(&with_checks(checks)));
    let types: Vec<ValueType> = TYPES.iter().chain(&OTHERS).copied().collect();
    for (number, types) in types.chunks(4).enumerate() {
        let aggregates = types.iter().enumerate().flat_map(|(at, &ty)| mergeable(&col(at + 1, ty)));
        let aggregates: Vec<AggregateSpec> = aggregates.collect();
        // Sums without the number of their rows, or with it.
        let uncounted = (0..aggregates.len()).filter(|_| number % 2 == 0).collect();
        let by = GroupBy { keys: vec![key(0, Int32)], aggregates, uncounted, ..GroupBy::default() };
        let mut rng = Rng::new(100 + number as u64);
        for (pool, nulls) in [(3, 1), (150, 60), (40, 97)] {
            let parts: Vec<_> = [900, 257, 600]
                .into_iter()
                .map(|rows| {
                    let shape = DataShape { nulls, edgy: 3, offset: rng.below(40) };
                    let mut columns = vec![pooled(Int32, rows, pool, 3, &mut Rng::new(9))];
                    columns.extend(types.iter().map(|&ty| column(ty, rows, shape, &mut rng)));
                    (columns, rows)
                })
                .collect();
            let what = format!("{types:?}, {pool} keys, {nulls} % nulls");
            all += parts.len();
            merged += check_alike(&scopes[number % 2], &by, &parts, &what).await;
        }
    }
    assert!(3 * merged >= 2 * all, "{merged} of {all} parts were merged");
}

/// Many groups: distinct in all parts, the same in all, and half of each; kernels that part rows by hash, and tables one after the
/// other.
#[tokio::test]
async fn many_groups() {
    let full = device();
    let small = DeviceCaps { max_binding_bytes: 1 << 20, ..full.caps().as_ref().clone() };
    let scopes = [scope(&full), scope(&full.with_caps(small))];
    let by = sums_and_extremes();
    let mut rng = Rng::new(5);
    for step in [0i128, 10_000, 20_000] {
        let mut parts = vec![];
        for part in 0..3 {
            let rows = 20_000 + part;
            let keys: Vec<Scalar> = (0..rows).map(|row| Some(row as i128 + part as i128 * step)).collect();
            let shape = DataShape { nulls: 1, edgy: 1, offset: 3 };
            let columns = vec![
                array_of(Int64, &keys).expect("array"),
                column(Int64, rows, shape, &mut rng),
                column(Int32, rows, shape, &mut rng),
            ];
            parts.push((columns, rows));
        }
        for (hint, scope) in [
            (GroupHint::default(), &scopes[0]),
            (GroupHint { partitioned: Some(true), ..groups(20_000) }, &scopes[0]),
            (GroupHint::default(), &scopes[1]),
        ] {
            let what = format!("steps of {step}, {hint:?}");
            let merged = check_merged(scope, &Program::default(), &by, &parts, &hint, &what).await;
            assert_eq!(merged.groups(), 20_002 + 2 * step as usize, "{what}");
        }
    }
}

/// DISTINCT of many keys, more than a word has flags for.
#[tokio::test]
async fn distinct_rows_of_many_keys() {
    let scope = scope(&device());
    let mut rng = Rng::new(8);
    let by = GroupBy {
        keys: (0..34).map(|at| key(at, Int16)).collect(),
        aggregates: vec![],
        ..GroupBy::default()
    };
    let parts = [40, 0].map(|nulls| {
        let columns = (0..34).map(|at| pooled(Int16, 500, 2, if at == 33 { nulls } else { 0 }, &mut rng));
        (columns.collect::<Vec<_>>(), 500)
    });
    check_merged(&scope, &Program::default(), &by, &parts, &GroupHint::default(), "34 keys").await;
}

/// What stays, and what goes to the host as before.
#[tokio::test]
async fn rules() {
    let scope = scope(&device());
    let by = GroupBy { keys: vec![key(0, Int64)], aggregates: vec![count_rows()], ..GroupBy::default() };
    let mut rng = Rng::new(1);
    let columns = [keys_below(2000, 8000, &mut rng)];
    let segment = segment(&scope, &columns, 8000).await.expect("upload");
    let program = Program::default();
    let cases = [
        (2000, 0, 4, true),
        (2001, 8000, 4, false),
        // Short ones.
        (4000, 16_000, 4, true),
        (4001, 16_000, 4, false),
        (2000, 8001, 3, false),
        (0, 0, 8, true),
    ];
    for (groups, full, rows_each, stays) in cases {
        let rule = KeepRule { groups, full, rows_each };
        let found = group_and_keep(&scope, &program, &by, &segment, &GroupHint::default(), rule).await;
        let kept = matches!(found.expect("group"), Grouped::Kept(_));
        assert_eq!(kept, stays, "{rule:?}");
    }
    let keep = Keep::Rule(KeepRule { groups: 9, full: 40, rows_each: 1 });
    assert!(!keep.may(8, 50, false) && keep.may(8, 39, false) && keep.may(8, 50, true));
    assert!(keep.wants(1, 50, true) && !keep.wants(8, 39, false));
    // Floats have states of other kinds, and so have codes and the grand total.
    let float = |kind| GroupBy {
        keys: by.keys.clone(),
        aggregates: vec![agg(kind, col(1, Float64))],
        ..GroupBy::default()
    };
    assert!(can_keep(&by) && can_keep(&float(AggregateKind::Count)));
    for kind in [AggregateKind::Min, AggregateKind::Max, AggregateKind::SumFloat] {
        assert!(!can_keep(&float(kind)), "{kind:?}");
    }
    assert!(!can_keep(&GroupBy { keys: vec![GroupKey::Codes(0)], ..by.clone() }));
    assert!(!can_keep(&GroupBy { keys: vec![], ..by.clone() }));
}

/// A fault leaves nothing on the device, and no selected row gives no group.
#[tokio::test]
async fn faults_and_no_rows() {
    let scope = scope(&device());
    let absolute = call(crate::kernels::expr::IntegerFn::Abs, vec![col(0, Int64)], Int64);
    let by = GroupBy {
        keys: vec![GroupKey::Value(absolute)],
        aggregates: vec![count_rows()],
        ..GroupBy::default()
    };
    let columns = [array_of(Int64, &[Some(1), Some(i64::MIN.into())]).expect("array")];
    let segment = segment(&scope, &columns, 2).await.expect("upload");
    let found = group_and_keep(&scope, &Program::default(), &by, &segment, &GroupHint::default(), ALL).await;
    assert!(matches!(found, Ok(Grouped::Host(GroupResult { fault: true, .. }))), "{found:?}");
    let none = Program { selection: Some(param(0, Boolean)), params: vec![(Boolean, Some(0))] };
    let by = GroupBy { keys: vec![key(0, Int64)], aggregates: vec![count_rows()], ..GroupBy::default() };
    let found = group_and_keep(&scope, &none, &by, &segment, &GroupHint::default(), ALL).await;
    assert!(matches!(found, Ok(Grouped::Host(GroupResult { groups: 0, .. }))), "{found:?}");
}

/// Groups hold memory in the ledger until they are dropped, no more than foreseen, and are of no use on another device.
#[tokio::test]
async fn memory_and_loss() {
    let device = crate::memory::testing::own_device();
    let ledger = DeviceLedger::detached(u64::MAX);
    let memory = MemoryScope::new(&ledger, "kept", u64::MAX);
    let scope = LaunchScope { memory, ..crate::memory::testing::scope(&device) };
    let by = sums_and_extremes();
    let mut rng = Rng::new(2);
    let mut all: Option<KeptGroups> = None;
    for _ in 0..2 {
        let columns = [
            keys_below(5000, 9000, &mut rng),
            column(Int64, 9000, DataShape { nulls: 1, edgy: 1, offset: 0 }, &mut rng),
            column(Int32, 9000, DataShape { nulls: 0, edgy: 1, offset: 0 }, &mut rng),
        ];
        let next = kept(&scope, &Program::default(), &by, (&columns, 9000), &groups(5000)).await;
        all = Some(all.map_or(next.clone(), |all| all.and([next])));
    }
    let all = all.expect("groups");
    let settled = async || {
        for _ in 0..2000 {
            if ledger.holders().iter().map(|(_, bytes)| bytes).sum::<u64>() <= all.device_bytes() {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
    };
    settled().await;
    assert_eq!(ledger.reserved(), all.device_bytes());
    let foreseen = merge_bytes(&all, all.groups());
    let before = (ledger.reserved(), ledger.peak());
    let piled = pile_groups(&scope, &all).expect("pile");
    let merged = merge_groups(&scope, &piled).await.expect("merge");
    assert_eq!(merged.groups(), 5000);
    let took = ledger.peak() - before.0;
    assert!(took <= foreseen, "{took} of {foreseen} bytes");
    device.lose();
    let scope = LaunchScope { context: device.context().expect("a new device"), ..scope.clone() };
    let part = merged.parts(10)[0];
    assert!(matches!(merged.fetch(&scope, part).await, Err(GpuError::DeviceLost(_))));
    assert!(matches!(pile_groups(&scope, &all), Err(GpuError::DeviceLost(_))));
    assert!(matches!(merge_groups(&scope, &piled).await, Err(GpuError::DeviceLost(_))));
    drop((piled, merged, all));
    for _ in 0..2000 {
        if ledger.reserved() == 0 {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
    panic!("still held: {}", ledger.report());
}
