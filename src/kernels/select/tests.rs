//! The selection against its twin, and its shaders against naga.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef};

use crate::error::GpuError;
use crate::kernels::expr::{ArithOp, CompareOp, Expr, Scalar, ValueType};
use crate::kernels::program::{ColumnShape, Program};
use crate::kernels::reference;
use crate::kernels::testkit::*;
use crate::memory::testing;
use crate::memory::{ColumnRepr, DeviceCaps, DeviceLedger, LaunchScope, MagnitudeBits, MemoryScope};

use super::plan::{SCAN_BLOCK, TILE};
use super::*;
use ValueType::*;

mod integer;
mod need;

type Data = (Vec<ArrayRef>, usize);

async fn answer(
    scope: &LaunchScope,
    program: &Program,
    outputs: &[Arc<Expr>],
    data: &[Data],
) -> Vec<SelectResult> {
    let mut segments = vec![];
    for (columns, rows) in data {
        segments.push(segment(scope, columns, *rows).await.expect("upload"));
    }
    select(scope, program, outputs, &segments).await.expect("select")
}

fn twin_answer(program: &Program, outputs: &[Arc<Expr>], data: &[Data]) -> Vec<SelectResult> {
    let twin = |(columns, rows): &Data| reference::select(program, outputs, columns, *rows).expect("twin");
    data.iter().map(twin).collect()
}

fn assert_same(device: &[SelectResult], program: &Program, outputs: &[Arc<Expr>], data: &[Data], what: &str) {
    assert_equal(device, &twin_answer(program, outputs, data), what);
}

/// The rest of a result is void after a fault.
fn assert_equal(device: &[SelectResult], twin: &[SelectResult], what: &str) {
    assert_eq!(device.len(), twin.len(), "{what}");
    for (at, (device, twin)) in device.iter().zip(twin).enumerate() {
        let what = format!("{what}, segment {at}");
        assert_eq!(device.fault, twin.fault, "{what}");
        if twin.fault {
            continue;
        }
        assert_eq!(device.mask, twin.mask, "{what}");
        assert_eq!(device.selected, twin.selected, "{what}");
        assert_eq!(device.outputs.len(), twin.outputs.len(), "{what}");
        for (number, (d, t)) in device.outputs.iter().zip(&twin.outputs).enumerate() {
            assert_eq!(d.data_type(), t.data_type(), "{what}, output {number}");
            assert_eq!(d.null_count(), t.null_count(), "{what}, output {number}");
            assert_eq!(d, t, "{what}, output {number}");
        }
    }
}

fn table(types: &[ValueType], rows: usize, shape: DataShape, rng: &mut Rng) -> Vec<ArrayRef> {
    types.iter().map(|&ty| column(ty, rows, shape, rng)).collect()
}

/// Selects by a random number in column 0 below a parameter, in percent.
fn share(percent: i128, first: usize) -> Program {
    Program {
        selection: Some(cmp(CompareOp::Lt, col(first, UInt8), param(0, UInt8))),
        params: vec![(UInt8, Some(percent * 256 / 100))],
    }
}

/// Every type as output column, sizes around the tile, few to all rows selected.
#[tokio::test]
async fn every_type_at_tile_edges() {
    at_tile_edges(&TYPES).await;
}

#[tokio::test]
async fn other_types_at_tile_edges() {
    at_tile_edges(&OTHERS).await;
}

async fn at_tile_edges(all: &[ValueType]) {
    let scopes = CHECKS.map(|checks| scope(&with_checks(checks)));
    let mut types = all.to_vec();
    types.push(UInt8);
    let outputs: Vec<Arc<Expr>> = all.iter().enumerate().map(|(at, &ty)| col(at, ty)).collect();
    for (nulls, offset) in [(0, 0), (1, 7), (50, 0), (100, 33)] {
        let mut rng = Rng::new(nulls as u64);
        let shape = DataShape { nulls, edgy: 3, offset };
        let data: Vec<Data> = [0, 1, 31, 32, 33, 255, 256, 257, 1023, 1024, 1025, 3000, 0, 5]
            .iter()
            .map(|&rows| {
                let mut columns = table(all, rows, shape, &mut rng);
                columns.push(column(UInt8, rows, DataShape { nulls: 3, edgy: 0, offset: 1 }, &mut rng));
                (columns, rows)
            })
            .collect();
        let everything = [(None, Program::default())];
        let programs = [0, 1, 50, 100].map(|percent| (Some(percent), share(percent, all.len())));
        for (percent, program) in programs.iter().chain(&everything) {
            let twin = twin_answer(program, &outputs, &data);
            for (scope, checks) in scopes.iter().zip(CHECKS) {
                let device = answer(scope, program, &outputs, &data).await;
                let what = format!("{nulls} % nulls, {percent:?} % selected, checks {checks:?}");
                assert_equal(&device, &twin, &what);
            }
        }
    }
}

/// The types that no arithmetic is on: compared, in lists, told apart and in CASE.
#[tokio::test]
async fn other_types_compare() {
    let device = device();
    let scope = scope(&device);
    for ty in OTHERS {
        let (left, right) = edge_pairs(ty, ty);
        let rows = left.len();
        let columns = vec![array_of(ty, &left).expect("array"), array_of(ty, &right).expect("array")];
        let edges = edges(ty);
        let params = vec![(ty, Some(edges[0])), (ty, None), (ty, Some(edges[edges.len() - 1]))];
        let mut outputs: Vec<_> = OPS.iter().map(|op| cmp(*op, col(0, ty), col(1, ty))).collect();
        outputs.push(cmp(CompareOp::Lt, col(0, ty), param(2, ty)));
        outputs.push(Arc::new(Expr::Distinct { negated: false, left: col(0, ty), right: col(1, ty) }));
        for list in [vec![param(0, ty), param(2, ty)], vec![param(1, ty), param(2, ty)]] {
            outputs.push(Arc::new(Expr::InList { expr: col(0, ty), list, negated: false }));
        }
        outputs.push(Arc::new(Expr::Case {
            branches: vec![(cmp(CompareOp::Gt, col(0, ty), col(1, ty)), col(0, ty))],
            otherwise: Some(param(2, ty)),
            ty,
        }));
        let program = Program { selection: None, params };
        let data = vec![(columns, rows)];
        let device = answer(&scope, &program, &outputs, &data).await;
        assert_same(&device, &program, &outputs, &data, &format!("{ty:?}"));
    }
}

/// More tiles than one block of the scan, small outputs read at once and large ones after a wait for the counts.
#[tokio::test]
async fn sizes_beyond_a_scan_block() {
    let device = device();
    let rows = (SCAN_BLOCK * TILE) as usize + 1500;
    let mut rng = Rng::new(21);
    let data = vec![(
        vec![
            column(UInt8, rows, DataShape { nulls: 0, edgy: 0, offset: 0 }, &mut rng),
            column(Int16, rows, DataShape { nulls: 1, edgy: 0, offset: 9 }, &mut rng),
        ],
        rows,
    )];
    let outputs = [col(1, Int16)];
    for (percent, waits) in [(1, 2), (0, 1)] {
        let scope = scope(&device);
        let program = share(percent, 0);
        let result = answer(&scope, &program, &outputs, &data).await;
        assert_same(&result, &program, &outputs, &data, "many tiles");
        assert_eq!(scope.stats.snapshot().waits, waits, "nothing selected needs no second wait");
    }
    let small: Vec<Data> = [65_535, 65_536, 65_537, 200_001]
        .iter()
        .map(|&rows| (data[0].0.iter().map(|c| c.slice(77, rows)).collect(), rows))
        .collect();
    let scope = scope(&device);
    let program = share(40, 0);
    let result = answer(&scope, &program, &outputs, &small).await;
    assert_same(&result, &program, &outputs, &small, "several segments");
    assert_eq!(scope.stats.snapshot().waits, 1, "small outputs need one wait");
}

#[tokio::test]
async fn random_programs() {
    let scopes = CHECKS.map(|checks| scope(&with_checks(checks)));
    let mut faults = 0;
    for seed in 0..20 {
        let mut rng = Rng::new(500 + seed);
        let mut make = ExprGen { rng: &mut rng, params: vec![], logic: true };
        let selection = (seed % 4 != 0).then(|| make.expr(Boolean, 3));
        let outputs: Vec<Arc<Expr>> = (0..4)
            .map(|_| {
                let ty = make.rng.pick(&TYPES);
                if make.rng.one_in(3) { make.any_decimal(2) } else { make.expr(ty, 2) }
            })
            .collect();
        let program = Program { selection, params: make.params };
        let mut data = vec![];
        for (rows, nulls, edgy) in [(1, 0, 0), (1300, 20, 0), (900, 2, 4), (40, 0, 1)] {
            let shape = DataShape { nulls, edgy, offset: rng.below(40) };
            data.push((table(&TYPES, rows, shape, &mut rng), rows));
        }
        let twin = twin_answer(&program, &outputs, &data);
        for (scope, checks) in scopes.iter().zip(CHECKS) {
            let device = answer(scope, &program, &outputs, &data).await;
            faults += device.iter().filter(|result| result.fault).count();
            let what = format!("seed {seed}, checks {checks:?}: {program:?} {outputs:?}");
            assert_equal(&device, &twin, &what);
        }
    }
    assert!((6..140).contains(&faults), "{faults} of 160 segments had faults");
}

/// Every comparison of every type on all pairs of edge values.
#[tokio::test]
async fn comparisons_on_edge_pairs() {
    let scope = scope(&device());
    for types in TYPES.chunks(6) {
        let (mut columns, mut outputs, mut params, mut rows) = (vec![], vec![], vec![], 0);
        for &ty in types {
            let (left, right) = edge_pairs(ty, ty);
            let (l, r) = (col(columns.len(), ty), col(columns.len() + 1, ty));
            rows = rows.max(left.len());
            columns.extend([(ty, left), (ty, right)]);
            outputs.extend(OPS.map(|op| cmp(op, Arc::clone(&l), Arc::clone(&r))));
            for negated in [false, true] {
                let (left, right) = (Arc::clone(&l), Arc::clone(&r));
                outputs.push(Arc::new(Expr::Distinct { negated, left, right }));
                let first = params.len();
                params.extend(edges(ty).into_iter().step_by(2).map(|v| (ty, Some(v))));
                params.extend(negated.then_some((ty, None)));
                let list = (first..params.len()).map(|slot| param(slot, ty)).collect();
                outputs.push(Arc::new(Expr::InList { expr: Arc::clone(&l), list, negated }));
            }
        }
        let padded = |(ty, values): (ValueType, Vec<Scalar>)| {
            array_of(ty, &values.iter().copied().cycle().take(rows).collect::<Vec<_>>()).expect("array")
        };
        let data = vec![(columns.into_iter().map(padded).collect(), rows)];
        let program = Program { selection: None, params };
        let device = answer(&scope, &program, &outputs, &data).await;
        assert_same(&device, &program, &outputs, &data, "edges");
    }
}

/// Decimal arithmetic and casts on all pairs of edge values, one segment each, since a fault voids its segment.
#[tokio::test]
async fn decimal_arithmetic_on_edge_pairs() {
    let scope = scope(&device());
    for (a, b) in [(dec(38, 0), dec(38, 0)), (dec(38, 4), dec(25, 2)), (dec(18, 0), dec(38, 0))] {
        let (left, right) = edge_pairs(a, b);
        let segments: Vec<Data> = left
            .into_iter()
            .zip(right)
            .map(|(x, y)| (vec![array_of(a, &[x]).expect("array"), array_of(b, &[y]).expect("array")], 1))
            .collect();
        let mut faults = 0;
        for op in ARITH {
            let negated = negate(arith(op, col(0, a), col(1, b)));
            for outputs in [vec![arith(op, col(0, a), col(1, b))], vec![negated, cast(col(0, a), dec(20, 4))]]
            {
                let program = Program::default();
                let device = answer(&scope, &program, &outputs, &segments).await;
                faults += device.iter().filter(|result| result.fault).count();
                assert_same(&device, &program, &outputs, &segments, &format!("{op:?} of {a:?} and {b:?}"));
            }
        }
        assert!(faults > 10 && faults < 5 * segments.len(), "{faults} faults of 6 * {}", segments.len());
    }
}

/// With WebGPU's default of eight buffers, outputs go through several kernels, and columns share a buffer; with fewer that is
/// an error.
#[tokio::test]
async fn eight_buffers_are_enough() {
    let full = device();
    let with = |max_storage_buffers| {
        let caps = DeviceCaps { max_storage_buffers, ..full.caps().as_ref().clone() };
        scope(&full.with_caps(caps))
    };
    let mut rng = Rng::new(2);
    let types = [UInt8, Int32, Int64, Float64, Boolean, dec(25, 2), dec(15, 2), Int16];
    let shape = DataShape { nulls: 30, edgy: 2, offset: 3 };
    let whole = DataShape { nulls: 0, ..shape };
    // One of the segments has no NULLs, and so no bitmaps.
    let data = vec![(table(&types, 2500, shape, &mut rng), 2500), (table(&types, 70, whole, &mut rng), 70)];
    let mut outputs: Vec<Arc<Expr>> = types.iter().enumerate().map(|(at, &ty)| col(at, ty)).collect();
    let lt = |at: usize, ty| cmp(CompareOp::Lt, col(at, ty), col(at, ty));
    let two = Arc::new(Expr::Or(lt(1, Int32), cmp(CompareOp::GtEq, col(2, Int64), col(2, Int64))));
    let wide = Arc::new(Expr::And(two, Arc::new(Expr::IsNotNull(col(5, dec(25, 2))))));
    outputs.push(Arc::clone(&wide));
    outputs.push(arith(ArithOp::Mul, col(5, dec(25, 2)), col(6, dec(15, 2))));
    let by_all = Program { selection: Some(wide), params: vec![] };
    let scope = with(8);
    for program in [share(50, 0), by_all.clone(), Program::default()] {
        let device = answer(&scope, &program, &outputs, &data).await;
        assert_same(&device, &program, &outputs, &data, "eight buffers");
    }
    let segment = segment(&scope, &data[0].0, 2500).await.expect("upload");
    let shapes: Vec<ColumnShape> =
        (0..types.len()).map(|at| ColumnShape::of(at, segment.column(at).expect("column"))).collect();
    // The product may overflow: one for the status.
    assert_eq!(select_bindings(&by_all, &outputs, &shapes), 8);
    assert_eq!(select_bindings(&by_all, &outputs[..9], &shapes), 7);
    let error = select(&with(4), &by_all, &[], &[segment]).await.map(|_| ()).expect_err("too many buffers");
    assert!(matches!(error, GpuError::Limit { need: 5, limit: 4, .. }), "{error}");
}

#[tokio::test]
async fn lowered_limits() {
    let full = device();
    let mut caps = full.caps().as_ref().clone();
    (caps.max_workgroups_per_dimension, caps.loop_budget) = (2, 300);
    let small = full.with_caps(caps);
    let scope = scope(&small);
    let mut rng = Rng::new(4);
    let shape = DataShape { nulls: 10, edgy: 0, offset: 1 };
    let data: Vec<Data> = [1, 9000, 150_001]
        .iter()
        .map(|&rows| (table(&[UInt8, Int64], rows, shape, &mut rng), rows))
        .collect();
    let outputs = [col(1, Int64)];
    let program = share(30, 0);
    let device = answer(&scope, &program, &outputs, &data).await;
    assert_same(&device, &program, &outputs, &data, "two workgroups a dimension");
}

#[tokio::test]
async fn only_a_mask() {
    let scope = scope(&device());
    let mut rng = Rng::new(6);
    let data = vec![(table(&[UInt8], 5000, DataShape { nulls: 10, edgy: 0, offset: 1 }, &mut rng), 5000)];
    let program = share(30, 0);
    let device = answer(&scope, &program, &[], &data).await;
    assert_same(&device, &program, &[], &data, "no outputs");
    assert_eq!(scope.stats.snapshot().waits, 1);
}

#[tokio::test]
async fn null_and_constant_parameters() {
    let scope = scope(&device());
    let data =
        vec![(table(&[UInt8], 100, DataShape { nulls: 0, edgy: 0, offset: 0 }, &mut Rng::new(1)), 100)];
    let ty = dec(20, 3);
    let outputs = [param(0, ty), param(1, Boolean), param(2, UInt8), param(3, Float64)];
    let cases: [[Scalar; 4]; 2] =
        [[None, None, None, None], [Some(-5), Some(1), Some(255), Some((-0.0f64).to_bits().into())]];
    for values in cases {
        let types = [ty, Boolean, UInt8, Float64];
        let program = Program { selection: None, params: types.into_iter().zip(values).collect() };
        let device = answer(&scope, &program, &outputs, &data).await;
        assert_same(&device, &program, &outputs, &data, "constants");
    }
}

/// Shaders of random programs pass naga without a device.
#[test]
fn shaders_are_valid() {
    let caps = DeviceCaps::for_tests();
    validate(&scan_shader());
    for seed in 0..100 {
        let mut rng = Rng::new(9000 + seed);
        let shapes: Vec<ColumnShape> = TYPES
            .iter()
            .enumerate()
            .map(|(index, &ty)| ColumnShape {
                index,
                ty,
                repr: match ty {
                    Boolean => ColumnRepr::Bits,
                    Decimal { precision, .. } if precision <= 18 => ColumnRepr::DecimalNarrow,
                    Decimal { .. } => ColumnRepr::DecimalWide,
                    _ => ColumnRepr::Arrow,
                },
                nullable: seed % 3 != 0,
                magnitude: MagnitudeBits(rng.pick(&[8, 40, 60, 128])),
                packed: false,
            })
            .collect();
        let mut make = ExprGen { rng: &mut rng, params: vec![], logic: true };
        let selection = (seed % 2 == 0).then(|| make.expr(Boolean, 4));
        let mut outputs = vec![make.any_decimal(3)];
        for ty in TYPES {
            outputs.push(make.expr(ty, 2));
        }
        let program = Program { selection, params: make.params };
        for shader in select_shaders(&caps, &program, &outputs, &shapes).expect("shaders") {
            validate(&shader);
        }
    }
}
