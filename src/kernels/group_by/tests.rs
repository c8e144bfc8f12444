//! The grouping against its twin, and its shaders against naga.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef};

use crate::kernels::expr::widths::is_integer;
use crate::kernels::expr::{Expr, Scalar, ValueType};
use crate::kernels::program::Program;
use crate::kernels::reference;
use crate::kernels::reference::expr::value_at;
use crate::kernels::testkit::*;

use super::*;
use ValueType::*;

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
    if matches!(ty, Decimal { .. }) {
        kinds.push(AggregateKind::SumDecimal);
    }
    kinds.into_iter().map(|kind| agg(kind, Arc::clone(arg))).collect()
}

/// Rows by key: of each aggregate the count, and the value where there is one.
type Rows = BTreeMap<Vec<Scalar>, Vec<(u64, Scalar)>>;

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
            (state.counts[group], value)
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
    for (d, t) in device.keys.iter().zip(&twin.keys) {
        assert_eq!((d.len(), d.data_type()), (t.len(), t.data_type()), "{what}");
    }
    for (d, t) in device.states.iter().zip(&twin.states) {
        match (&d.values, &t.values) {
            (StateValues::None, StateValues::None) => {}
            (StateValues::Array(d), StateValues::Array(t)) => {
                assert_eq!(d.data_type(), t.data_type(), "{what}")
            }
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
    let device = group_by(scope, program, by, &segment, hint).await.unwrap_or_else(|e| panic!("{what}: {e}"));
    let twin = reference::group_by(program, by, columns, rows).expect("twin");
    assert_same(&device, &twin, what);
    device
}

#[tokio::test]
async fn every_type_as_key() {
    let scope = scope(&device());
    for (at, &ty) in TYPES.iter().chain(&OTHERS).enumerate() {
        let by = GroupBy {
            keys: vec![GroupKey::Value(col(0, ty))],
            aggregates: [vec![count_rows()], all_of(&col(1, Int64))].concat(),
        };
        let mut rng = Rng::new(at as u64);
        for (rows, nulls) in [(1, 0), (700, 20), (0, 0), (300, 0), (256, 100)] {
            let shape = DataShape { nulls, edgy: 3, offset: rng.below(40) };
            let columns = [column(ty, rows, shape, &mut rng), column(Int64, rows, shape, &mut rng)];
            let hint = GroupHint::default();
            check(&scope, &Program::default(), &by, &columns, rows, &hint, &format!("{ty:?}, {rows} rows"))
                .await;
        }
    }
}

#[tokio::test]
async fn every_aggregate_of_every_type() {
    let scope = scope(&device());
    for (number, &ty) in TYPES.iter().chain(&OTHERS).enumerate() {
        let by = GroupBy { keys: vec![GroupKey::Value(col(0, Int8))], aggregates: all_of(&col(1, ty)) };
        let mut rng = Rng::new(100 + number as u64);
        for (rows, nulls) in [(2000, 0), (2000, 50), (257, 100)] {
            let shape = DataShape { nulls, edgy: 3, offset: rng.below(40) };
            let columns = [column(Int8, rows, shape, &mut rng), column(ty, rows, shape, &mut rng)];
            let hint = GroupHint { groups: Some(300) };
            check(
                &scope,
                &Program::default(),
                &by,
                &columns,
                rows,
                &hint,
                &format!("{ty:?}, {nulls} % nulls"),
            )
            .await;
        }
    }
}
