//! What adapters bind, and how much memory tables take.

use super::*;

/// What tells adapters apart, for failures.
fn told(caps: &DeviceCaps) -> String {
    format!(
        "{}: {} rows in flight, {} workgroups of {} invocations and {} bytes, loops of {}, {} buffers",
        caps.name,
        caps.unroll,
        caps.reduce_workgroups,
        caps.max_workgroup_invocations,
        caps.workgroup_bytes,
        caps.loop_budget,
        caps.max_storage_buffers
    )
}

/// An adapter that can do less, and what it is asked for.
pub(super) struct Lowered {
    pub caps: DeviceCaps,
    pub by: GroupBy,
    /// Groups at most.
    pub groups: usize,
    pub name: String,
}

pub(super) fn lowered(full: &crate::memory::GpuDevice, lower: fn(&mut DeviceCaps)) -> Lowered {
    let mut caps = full.caps().as_ref().clone();
    lower(&mut caps);
    let (mut by, mut groups, mut name) = (sums_and_extremes(), 3000, told(&caps));
    if caps.loop_budget < full.caps().loop_budget {
        // A few tries are all that a row has then: that of a wide minimum may give up, as `rows_that_fight_give_up` has it, the sooner the
        // more rows run at a time, and so may that of a group far from its slot.
        by.aggregates.remove(2);
        groups = 300;
        name.push_str(", no wide minimum");
    }
    Lowered { caps, by, groups, name }
}

/// Few workgroups a dimension, short loops, no room in workgroups, and eight or six buffers.
#[tokio::test]
async fn lowered_limits() {
    let full = device();
    let mut rng = Rng::new(3);
    let shape = DataShape { nulls: 10, edgy: 1, offset: 7 };
    let lower: [fn(&mut DeviceCaps); 5] = [
        |caps| caps.max_workgroups_per_dimension = 4,
        |caps| caps.loop_budget = 300,
        |caps| caps.workgroup_bytes = 1024,
        |caps| caps.max_storage_buffers = 8,
        |caps| caps.max_storage_buffers = 6,
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
            check(&scope, &Program::default(), &by, &columns, rows, &GroupHint::default(), &what).await;
        }
    }
    let caps = DeviceCaps { max_storage_buffers: 5, ..full.caps().as_ref().clone() };
    let (by, name) = (sums_and_extremes(), told(&caps));
    let scope = scope(&full.with_caps(caps));
    let columns =
        [keys_below(2, 9, &mut rng), column(Int64, 9, shape, &mut rng), column(Int32, 9, shape, &mut rng)];
    let few = segment(&scope, &columns, 9).await.expect("upload");
    let error =
        group_by(&scope, &Program::default(), &by, &few, &GroupHint::default()).await.expect_err("six");
    assert!(
        matches!(
            error,
            GpuError::Limit { what: "storage buffers of one kernel", need: 6, limit: 5, by_rows: false }
        ),
        "{error:?} on {name}"
    );
}

/// Where loops are short, rows that fight for the best of a group give up sooner or later, the more of them run at a time: then fewer
/// rows are tried. Otherwise the answer is right.
#[tokio::test]
async fn rows_that_fight_give_up() {
    let full = device();
    let caps = DeviceCaps { loop_budget: 300, ..full.caps().as_ref().clone() };
    let name = told(&caps);
    let scope = scope(&full.with_caps(caps));
    let by = sums_and_extremes();
    let mut rng = Rng::new(4);
    let shape = DataShape { nulls: 10, edgy: 1, offset: 7 };
    for (rows, groups) in [(1, 1), (4097, 3), (20_001, 300)] {
        let columns = [
            keys_below(groups, rows, &mut rng),
            column(Int64, rows, shape, &mut rng),
            column(Int32, rows, shape, &mut rng),
        ];
        let segment = segment(&scope, &columns, rows).await.expect("upload");
        let what = format!("{rows} rows in {groups} groups, {name}");
        match group_by(&scope, &Program::default(), &by, &segment, &GroupHint::default()).await {
            Ok(result) => {
                let twin = reference::group_by(&Program::default(), &by, &columns, rows).expect("twin");
                assert_same(&result, &twin, &what);
            }
            Err(error) => assert!(
                rows > 1
                    && matches!(
                        error,
                        GpuError::Limit {
                            what: "attempts to better a group's extreme value",
                            by_rows: true,
                            ..
                        }
                    ),
                "{what}: {error:?}"
            ),
        }
    }
}

/// A table that no binding holds is an error that fewer rows avoid, where rows are not parted.
#[tokio::test]
async fn more_groups_than_a_table_holds() {
    let full = device();
    let caps = DeviceCaps { max_binding_bytes: 1 << 16, ..full.caps().as_ref().clone() };
    let scope = scope(&full.with_caps(caps));
    let by = GroupBy { keys: vec![key(0, Int64)], aggregates: vec![count_rows()], ..GroupBy::default() };
    let mut rng = Rng::new(3);
    let columns = [keys_below(7000, 7000, &mut rng)];
    let segment = segment(&scope, &columns, 7000).await.expect("upload");
    let hint = GroupHint { partitioned: Some(false), ..GroupHint::default() };
    let error = group_by(&scope, &Program::default(), &by, &segment, &hint).await;
    assert!(matches!(error, Err(GpuError::Limit { by_rows: true, .. })), "{error:?}");
}

/// What is held stays below what is announced.
#[tokio::test]
async fn memory_is_announced() {
    let by = sums_and_extremes();
    let mut rng = Rng::new(8);
    for (rows, groups) in [(1, 1), (5000, 2), (5000, 4000), (60_000, 60_000)] {
        // Without guard bands, which take more.
        let scope = crate::memory::testing::scope(&crate::memory::testing::device());
        let shape = DataShape { nulls: 10, edgy: 1, offset: 7 };
        let columns = [
            keys_below(groups, rows, &mut rng),
            column(Int64, rows, shape, &mut rng),
            column(Int32, rows, shape, &mut rng),
        ];
        let segment = segment(&scope, &columns, rows).await.expect("upload");
        let ledger = DeviceLedger::detached(1 << 40);
        let own = LaunchScope { memory: MemoryScope::new(&ledger, "test", u64::MAX), ..scope.clone() };
        let partitioned = GroupHint { partitioned: Some(true), ..GroupHint::default() };
        for hint in [GroupHint::default(), tests::groups(groups), partitioned] {
            group_by(&own, &Program::default(), &by, &segment, &hint).await.expect("group_by");
            let need =
                group_by_bytes(&Program::default(), &by, rows, &GroupHint { groups: None, ..hint.clone() });
            assert!(ledger.peak() <= need, "{rows} rows, {groups} groups: {} of {need} bytes", ledger.peak());
        }
    }
}
