//! The grouping against its twin, and its shaders against naga.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int64Array};
use arrow::datatypes::Int64Type;

use crate::kernels::expr::widths::{is_decimal, is_integer};
use crate::kernels::expr::{ArithOp, CompareOp, Expr, Scalar, ValueType};
use crate::kernels::program::{ColumnShape, Program};
use crate::kernels::reference;
use crate::kernels::reference::expr::value_at;
use crate::kernels::testkit::*;
use crate::memory::column::DeviceColumn;
use crate::memory::{ColumnRepr, DeviceLedger, MagnitudeBits, MemoryScope};

use super::*;
use ValueType::*;

mod first_rows;
mod floats;
mod kept;
mod limits;
mod ordered;
mod shapes;
mod states;

fn agg(kind: AggregateKind, arg: Arc<Expr>) -> AggregateSpec {
    AggregateSpec { kind, arg: Some(arg), filter: None }
}

fn count_rows() -> AggregateSpec {
    AggregateSpec { kind: AggregateKind::CountRows, arg: None, filter: None }
}

/// Every aggregate that a type allows.
fn all_of(arg: &Arc<Expr>) -> Vec<AggregateSpec> {
    let ty = arg.value_type();
    let mut kinds = vec![AggregateKind::Count, AggregateKind::Min, AggregateKind::Max];
    if is_integer(ty) {
        kinds.extend([AggregateKind::SumInt, AggregateKind::SumAsFloat64]);
    }
    if is_integer(ty) || ty == Boolean {
        kinds.extend([AggregateKind::BitAnd, AggregateKind::BitOr, AggregateKind::BitXor]);
    }
    if matches!(ty, Duration(_)) {
        kinds.push(AggregateKind::SumInt);
    }
    if is_decimal(ty) {
        kinds.push(AggregateKind::SumDecimal);
    }
    if matches!(ty, Float32 | Float64) {
        kinds.push(AggregateKind::SumFloat);
    }
    kinds.into_iter().map(|kind| agg(kind, Arc::clone(arg))).collect()
}

/// Rows by key: of each aggregate the count, and where there is one the value, or the exact sum's bytes.
type Rows = BTreeMap<Vec<Scalar>, Vec<(u64, Scalar, Vec<u8>)>>;

fn at(array: &ArrayRef, row: usize) -> Scalar {
    let ty = ValueType::from_arrow(array.data_type()).expect("type");
    value_at(array, ty, row).expect("row")
}

fn rows_of(result: &GroupResult) -> Rows {
    let mut rows = Rows::new();
    for group in 0..result.groups {
        let key = result.keys.iter().map(|key| at(key, group)).collect();
        let states = result.states.iter().map(|state| {
            let value = match &state.values {
                StateValues::Array(array) if state.counts[group] > 0 => at(array, group),
                _ => None,
            };
            let exact = match &state.values {
                StateValues::Exact(sums) => sums[group].to_bytes(),
                _ => vec![],
            };
            (state.counts[group], value, exact)
        });
        assert!(rows.insert(key, states.collect()).is_none(), "a key twice");
    }
    rows
}

fn assert_same(device: &GroupResult, twin: &GroupResult, what: &str) {
    assert_eq!(device.fault, twin.fault, "{what}");
    if twin.fault {
        return;
    }
    assert_eq!(device.groups, twin.groups, "{what}");
    assert_eq!(device.floats, twin.floats, "{what}");
    assert_eq!(device.sums, twin.sums, "{what}");
    for (d, t) in device.keys.iter().zip(&twin.keys) {
        assert_eq!((d.len(), d.data_type()), (t.len(), t.data_type()), "{what}");
    }
    for (d, t) in device.states.iter().zip(&twin.states) {
        match (&d.values, &t.values) {
            (StateValues::None, StateValues::None) => {}
            (StateValues::Array(d), StateValues::Array(t)) => {
                assert_eq!(d.data_type(), t.data_type(), "{what}")
            }
            (StateValues::Exact(d), StateValues::Exact(t)) => assert_eq!(d.len(), t.len(), "{what}"),
            other => panic!("{what}: {other:?}"),
        }
    }
    let (device, twin) = (rows_of(device), rows_of(twin));
    for (key, states) in &twin {
        assert_eq!(device.get(key), Some(states), "{what}: group {key:?}");
    }
}

async fn check(
    scope: &LaunchScope,
    program: &Program,
    by: &GroupBy,
    columns: &[ArrayRef],
    rows: usize,
    hint: &GroupHint,
    what: &str,
) -> GroupResult {
    let segment = segment(scope, columns, rows).await.expect("upload");
    let device =
        group_by(scope, program, by, &segment, hint).await.unwrap_or_else(|e| panic!("{what}: {e:?}"));
    let twin = reference::group_by(program, by, columns, rows).expect("twin");
    assert_same(&device, &twin, what);
    device
}

/// Values of a small pool, so that they come more than once; `pool` is their number beside NULL.
fn pooled(ty: ValueType, rows: usize, pool: usize, nulls: usize, rng: &mut Rng) -> ArrayRef {
    let values: Vec<i128> = (0..pool).map(|_| value(ty, rng, 5)).collect();
    let offset = rng.below(40);
    let picked: Vec<Scalar> =
        (0..rows + offset).map(|_| (rng.below(100) >= nulls).then(|| values[rng.below(pool)])).collect();
    array_of(ty, &picked).expect("array").slice(offset, rows)
}

fn key(index: usize, ty: ValueType) -> GroupKey {
    GroupKey::Value(col(index, ty))
}

fn groups(groups: usize) -> GroupHint {
    GroupHint { groups: Some(groups), ..GroupHint::default() }
}

/// Three keys at a time, of every type; few and many groups; with a table that is too small, too. Every second kernel runs without the
/// compiler's checks, others with all.
#[tokio::test]
async fn every_type_as_key() {
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
        let cases = [(1, 1, 1, None), (800, 2, 20, None), (1500, 40, 10, Some(1)), (300, 3, 100, Some(5))];
        for (rows, pool, nulls, hint) in cases {
            let mut columns: Vec<ArrayRef> =
                types.iter().map(|&ty| pooled(ty, rows, pool, nulls, &mut rng)).collect();
            columns.resize(3, array_of(Int32, &vec![Some(0); rows]).expect("array"));
            columns.push(pooled(Int32, rows, 100, nulls, &mut rng));
            let hint = GroupHint { groups: hint, ..GroupHint::default() };
            let what = format!("{types:?}, {rows} rows, pool {pool}, {nulls} % nulls");
            check(&scopes[number % 2], &Program::default(), &by, &columns, rows, &hint, &what).await;
        }
    }
}

/// Several columns at a time, of every type, in few groups and in many; checks likewise.
#[tokio::test]
async fn every_aggregate_of_every_type() {
    let scopes = CHECKS.map(|checks| scope(&with_checks(checks)));
    let types: Vec<ValueType> = TYPES.iter().chain(&OTHERS).copied().collect();
    for (number, types) in types.chunks(5).enumerate() {
        let aggregates = types.iter().enumerate().flat_map(|(at, &ty)| all_of(&col(at + 1, ty)));
        let by =
            GroupBy { keys: vec![key(0, Int32)], aggregates: aggregates.collect(), ..GroupBy::default() };
        let mut rng = Rng::new(100 + number as u64);
        for (rows, pool, nulls) in [(2000, 3, 1), (1000, 200, 50), (257, 2, 100)] {
            let shape = DataShape { nulls, edgy: 3, offset: rng.below(40) };
            let mut columns = vec![pooled(Int32, rows, pool, nulls, &mut rng)];
            columns.extend(types.iter().map(|&ty| column(ty, rows, shape, &mut rng)));
            let what = format!("{types:?}, {rows} rows, {nulls} % nulls");
            check(&scopes[number % 2], &Program::default(), &by, &columns, rows, &groups(pool), &what).await;
        }
    }
}

/// Keys 0 to `groups` - 1, each at least once where there are as many rows.
fn keys_below(groups: usize, rows: usize, rng: &mut Rng) -> ArrayRef {
    let mut keys: Vec<Scalar> =
        (0..rows).map(|row| Some(if row < groups { row } else { rng.below(groups) } as i128)).collect();
    for row in (1..rows).rev() {
        keys.swap(row, rng.below(row + 1));
    }
    array_of(Int64, &keys).expect("array")
}

fn sums_and_extremes() -> GroupBy {
    GroupBy {
        keys: vec![key(0, Int64)],
        aggregates: vec![
            count_rows(),
            agg(AggregateKind::SumInt, col(1, Int64)),
            agg(AggregateKind::Min, col(1, Int64)),
            agg(AggregateKind::Max, col(2, Int32)),
        ],
        ..GroupBy::default()
    }
}

/// One kernel a strategy, over all numbers of groups.
#[tokio::test]
async fn cardinalities() {
    let device = device();
    let by = sums_and_extremes();
    let mut seen = BTreeSet::new();
    for (number, groups) in [1, 2, 255, 256, 257, 4000, 65_535, 65_537, 70_001].into_iter().enumerate() {
        let scope = scope(&device);
        let rows = 70_001;
        let mut rng = Rng::new(number as u64);
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
        let range = KeyRange { min: 0, max: groups as i128 - 1 };
        let hints = [
            GroupHint::default(),
            tests::groups(groups),
            GroupHint { groups: Some(1), ranges: vec![None], ..GroupHint::default() },
            GroupHint { ranges: vec![Some(range)], ..GroupHint::default() },
            // The last group lies outside of it.
            GroupHint {
                ranges: vec![Some(KeyRange { max: groups as i128 - 2, ..range })],
                ..GroupHint::default()
            },
        ];
        for hint in hints {
            let what = format!("{groups} groups, {hint:?}");
            let device = group_by(&scope, &program, &by, &segment, &hint).await.expect(&what);
            assert_same(&device, &twin, &what);
            seen.insert((device.strategy.name(), device.reruns));
        }
    }
    let strategies: Vec<&str> = seen.iter().map(|(strategy, _)| *strategy).collect();
    for strategy in ["direct", "dense", "local"] {
        assert!(strategies.contains(&strategy), "{seen:?}");
    }
    assert!(seen.contains(&("local", 3)), "tables that grow: {seen:?}");
}

/// A million groups, without a hint, with one that is far too small, and parted by hash; what they are is known without the twin.
#[tokio::test]
async fn a_million_groups() {
    const GROUPS: i64 = 1_000_000;
    const ROWS: i64 = 1_200_007;
    // Without guard bands, which the largest table that can be bound has no room for.
    let scope = crate::memory::testing::scope(&crate::memory::testing::device());
    let group = |row: i64| row.wrapping_mul(7_919) % GROUPS;
    let keys: ArrayRef = Arc::new(Int64Array::from_iter_values((0..ROWS).map(|row| group(row) << 33)));
    let values: ArrayRef = Arc::new(Int64Array::from_iter_values((0..ROWS).map(|row| row - 600_000)));
    let segment = segment(&scope, &[keys, values], ROWS as usize).await.expect("upload");
    let by = GroupBy {
        keys: vec![key(0, Int64)],
        aggregates: vec![agg(AggregateKind::SumInt, col(1, Int64)), count_rows()],
        ..GroupBy::default()
    };
    let mut want = vec![(0i64, 0u64); GROUPS as usize];
    for row in 0..ROWS {
        let (sum, count) = &mut want[group(row) as usize];
        *sum += row - 600_000;
        *count += 1;
    }
    for (groups, partitioned) in [(None, None), (Some(100), Some(false)), (Some(1 << 20), Some(true))] {
        let hint = GroupHint { groups, partitioned, ..GroupHint::default() };
        let result = group_by(&scope, &Program::default(), &by, &segment, &hint).await.expect("groups");
        assert!(!result.fault && result.groups == GROUPS as usize, "{hint:?}: {}", result.groups);
        let StateValues::Array(sums) = &result.states[0].values else { panic!("{:?}", result.states) };
        let (keys, sums) = (result.keys[0].as_primitive::<Int64Type>(), sums.as_primitive::<Int64Type>());
        let mut seen = vec![false; GROUPS as usize];
        for (at, (key, sum)) in keys.values().iter().zip(sums.values()).enumerate() {
            let group = (key >> 33) as usize;
            assert!(!std::mem::replace(&mut seen[group], true), "{hint:?}: group {group} twice");
            assert_eq!((*sum, result.states[1].counts[at]), want[group], "{hint:?}: group {group}");
        }
    }
}

/// Most rows in one group, or in two of several keys, others alone in theirs.
#[tokio::test]
async fn skew() {
    let scope = scope(&device());
    let by = sums_and_extremes();
    for (number, hot) in [50, 99, 100].into_iter().enumerate() {
        let rows = 40_000;
        let mut rng = Rng::new(number as u64);
        let keys: Vec<Scalar> =
            (0..rows).map(|row| (rng.below(100) >= hot).then_some(row as i128 * 1_000_003)).collect();
        let shape = DataShape { nulls: 0, edgy: 2, offset: 1 };
        let columns = [
            array_of(Int64, &keys).expect("array"),
            column(Int64, rows, shape, &mut rng),
            column(Int32, rows, shape, &mut rng),
        ];
        let hint = GroupHint::default();
        check(&scope, &Program::default(), &by, &columns, rows, &hint, &format!("{hot} % in one group"))
            .await;
    }
}

/// Selections and filters that keep all, some and no rows; keys and arguments that are computed.
#[tokio::test]
async fn selections_and_expressions() {
    let scopes = CHECKS.map(|checks| scope(&with_checks(checks)));
    let less = |slot| cmp(CompareOp::Lt, col(1, Int32), param(slot, Int32));
    let by = GroupBy {
        keys: vec![
            GroupKey::Value(arith(ArithOp::Add, col(0, Int64), param(1, Int64))),
            GroupKey::Value(less(2)),
        ],
        aggregates: vec![
            count_rows(),
            AggregateSpec {
                filter: Some(less(3)),
                ..agg(AggregateKind::Max, arith(ArithOp::Mul, col(0, Int64), col(0, Int64)))
            },
            AggregateSpec { filter: Some(less(3)), ..count_rows() },
            agg(AggregateKind::Count, col(1, Int32)),
        ],
        ..GroupBy::default()
    };
    let mut rng = Rng::new(77);
    for (rows, nulls, limit) in
        [(3000, 1, i32::MAX), (3000, 30, 5), (3000, 0, i32::MIN), (0, 0, 0), (1, 0, 7)]
    {
        let shape = DataShape { nulls, edgy: 0, offset: 3 };
        let columns = [pooled(Int64, rows, 30, 5, &mut rng), column(Int32, rows, shape, &mut rng)];
        let params =
            vec![(Int32, Some(limit.into())), (Int64, Some(1 << 40)), (Int32, Some(-3)), (Int32, Some(50))];
        let program = Program { selection: Some(less(0)), params };
        for scope in &scopes {
            let hint = GroupHint::default();
            check(scope, &program, &by, &columns, rows, &hint, &format!("{rows} rows below {limit}")).await;
        }
    }
}

#[tokio::test]
async fn random_programs() {
    let scope = scope(&device());
    let mut faults = 0;
    for seed in 0..12 {
        let mut rng = Rng::new(2000 + seed);
        let mut make = ExprGen { rng: &mut rng, params: vec![], logic: true };
        let selection = make.rng.one_in(2).then(|| make.expr(Boolean, 2));
        let keys = (0..1 + make.rng.below(2)).map(|_| {
            let ty = make.rng.pick(&[Boolean, Int8, UInt16, Int64, Float64, Date32, dec(7, 2)]);
            GroupKey::Value(make.expr(ty, 1))
        });
        let keys = keys.collect();
        let mut aggregates = vec![count_rows()];
        for _ in 0..2 {
            let ty = make.rng.pick(&TYPES);
            let arg = if make.rng.one_in(3) { make.any_decimal(1) } else { make.expr(ty, 1) };
            let filter = make.rng.one_in(2).then(|| make.expr(Boolean, 1));
            aggregates.extend(
                all_of(&arg).into_iter().map(|spec| AggregateSpec { filter: filter.clone(), ..spec }),
            );
        }
        let by = GroupBy { keys, aggregates, ..GroupBy::default() };
        let program = Program { selection, params: make.params };
        for (rows, nulls, edgy) in [(700, 20, 0), (1500, 2, 4)] {
            let shape = DataShape { nulls, edgy, offset: rng.below(40) };
            let columns: Vec<ArrayRef> = TYPES.iter().map(|&ty| column(ty, rows, shape, &mut rng)).collect();
            let hint = GroupHint::default();
            let what = format!("seed {seed}: {program:?} {by:?}");
            faults += usize::from(check(&scope, &program, &by, &columns, rows, &hint, &what).await.fault);
        }
    }
    assert!((1..20).contains(&faults), "{faults} of 24 segments had faults");
}

/// A column of codes on the device.
fn coded(column: &DeviceColumn) -> DeviceColumn {
    DeviceColumn { ty: Opaque, repr: ColumnRepr::Codes, ..column.clone() }
}

#[tokio::test]
async fn codes_are_keys() {
    let scope = scope(&device());
    let by = GroupBy {
        keys: vec![GroupKey::Codes(0), GroupKey::Codes(1)],
        aggregates: vec![count_rows(), agg(AggregateKind::SumDecimal, col(2, dec(15, 2)))],
        ..GroupBy::default()
    };
    let mut rng = Rng::new(4);
    for (rows, first, second) in [(5000, 4, 3), (5000, 300, 200)] {
        let codes = |most: usize, rng: &mut Rng| {
            let codes: Vec<Scalar> = (0..rows).map(|_| Some(rng.below(most) as i128)).collect();
            array_of(UInt32, &codes).expect("array")
        };
        let shape = DataShape { nulls: 10, edgy: 1, offset: 0 };
        let columns =
            [codes(first, &mut rng), codes(second, &mut rng), column(dec(15, 2), rows, shape, &mut rng)];
        let mut segment = segment(&scope, &columns, rows).await.expect("upload");
        for column in segment.columns.iter_mut().take(2) {
            *column = column.as_ref().map(coded);
        }
        let twin = reference::group_by(&Program::default(), &by, &columns, rows).expect("twin");
        let range = |most: usize| Some(KeyRange { min: 0, max: most as i128 - 1 });
        for ranges in [vec![], vec![range(first), range(second)]] {
            let hint = GroupHint { ranges, ..GroupHint::default() };
            let device = group_by(&scope, &Program::default(), &by, &segment, &hint).await.expect("group_by");
            assert_same(&device, &twin, &format!("{hint:?}"));
        }
    }
}

/// DISTINCT, and one group of everything.
#[tokio::test]
async fn without_aggregates_and_without_keys() {
    let scope = scope(&device());
    let mut rng = Rng::new(6);
    let columns = [pooled(Int32, 3000, 700, 3, &mut rng), pooled(Int16, 3000, 2, 0, &mut rng)];
    let keys = vec![key(0, Int32), key(1, Int16)];
    let distinct = GroupBy { keys, aggregates: vec![], ..GroupBy::default() };
    let whole = GroupBy {
        keys: vec![],
        aggregates: vec![agg(AggregateKind::SumInt, col(0, Int32))],
        ..GroupBy::default()
    };
    let hint = GroupHint::default();
    for by in [&distinct, &whole] {
        check(&scope, &Program::default(), by, &columns, 3000, &hint, &format!("{by:?}")).await;
        let none = Program { selection: Some(param(0, Boolean)), params: vec![(Boolean, Some(0))] };
        assert_eq!(check(&scope, &none, by, &columns, 3000, &hint, &format!("{by:?}")).await.groups, 0);
    }
}
