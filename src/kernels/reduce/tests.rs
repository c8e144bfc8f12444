//! The reduction against its twin, and its shaders against naga.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use arrow::array::ArrayRef;

use crate::error::GpuError;
use crate::kernels::expr::widths::{is_decimal, is_integer};
use crate::kernels::expr::{ArithOp, CompareOp, Expr, Scalar, ValueType};
use crate::kernels::program::{ColumnShape, Program, Segment};
use crate::kernels::reference;
use crate::kernels::testkit::*;
use crate::memory::{ColumnRepr, DeviceCaps, LaunchScope, MagnitudeBits};

use super::*;
use ValueType::*;

mod float;

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

/// In two parts, since the software adapter binds 32 buffers.
fn all_columns() -> [Vec<AggregateSpec>; 2] {
    let columns: Vec<_> = TYPES.iter().enumerate().map(|(at, &ty)| col(at, ty)).collect();
    let (first, second) = columns.split_at(8);
    [first, second].map(|part| part.iter().flat_map(all_of).chain([count_rows()]).collect())
}

async fn device_answer(
    scope: &LaunchScope,
    program: &Program,
    aggregates: &[AggregateSpec],
    data: &[(Vec<ArrayRef>, usize)],
) -> Vec<ReduceResult> {
    let mut segments = vec![];
    for (columns, rows) in data {
        segments.push(segment(scope, columns, *rows).await.expect("upload"));
    }
    reduce(scope, program, aggregates, &segments).await.expect("reduce")
}

fn twin_answer(
    program: &Program,
    aggregates: &[AggregateSpec],
    data: &[(Vec<ArrayRef>, usize)],
) -> Vec<ReduceResult> {
    data.iter().map(|(columns, rows)| reference::reduce(program, aggregates, columns, *rows)).collect()
}

/// States are void after a fault.
fn assert_same(device: &[ReduceResult], twin: &[ReduceResult], what: &str) {
    assert_eq!(device.len(), twin.len(), "{what}");
    for (at, (d, t)) in device.iter().zip(twin).enumerate() {
        assert_eq!(d.fault, t.fault, "{what}, segment {at}");
        if !t.fault {
            assert_eq!(d.states, t.states, "{what}, segment {at}");
        }
    }
}

fn table(rows: usize, shape: DataShape, rng: &mut Rng) -> Vec<ArrayRef> {
    TYPES.iter().map(|&ty| column(ty, rows, shape, rng)).collect()
}

/// One text for every type and aggregate, over sizes around everything that has a size, with and without nulls.
#[tokio::test]
async fn every_aggregate_of_every_type() {
    let scopes = CHECKS.map(|checks| scope(&with_checks(checks)));
    let program = Program::default();
    for (nulls, offset) in [(0, 0), (1, 5), (50, 13), (100, 1)] {
        let mut rng = Rng::new(7 + nulls as u64);
        let shape = DataShape { nulls, edgy: 4, offset };
        let data: Vec<_> = [0, 1, 2, 31, 32, 33, 255, 256, 257, 511, 512, 513, 1023, 1024, 1025, 5000, 0]
            .iter()
            .map(|&rows| (table(rows, shape, &mut rng), rows))
            .collect();
        for aggregates in all_columns() {
            let twin = twin_answer(&program, &aggregates, &data);
            for (scope, checks) in scopes.iter().zip(CHECKS) {
                let device = device_answer(scope, &program, &aggregates, &data).await;
                assert_same(&device, &twin, &format!("{nulls} % nulls, checks {checks:?}"));
            }
        }
    }
}

#[tokio::test]
async fn sizes_around_the_loop_budget_and_many_workgroups() {
    let scope = scope(&device());
    let program = Program {
        selection: Some(cmp(CompareOp::Lt, col(0, Int32), param(0, Int32))),
        params: vec![(Int32, Some(50))],
    };
    let specs = [
        count_rows(),
        agg(AggregateKind::SumInt, col(0, Int32)),
        agg(AggregateKind::SumAsFloat64, col(1, Int64)),
        agg(AggregateKind::SumDecimal, col(2, dec(15, 2))),
        agg(AggregateKind::Max, col(1, Int64)),
    ];
    let mut rng = Rng::new(11);
    let mut data = vec![];
    for rows in [65_535, 65_536, 65_537, 200_003] {
        let shape = DataShape { nulls: 1, edgy: 1, offset: 3 };
        data.push(([Int32, Int64, dec(15, 2)].map(|ty| column(ty, rows, shape, &mut rng)).to_vec(), rows));
    }
    let device = device_answer(&scope, &program, &specs, &data).await;
    assert_same(&device, &twin_answer(&program, &specs, &data), "large segments");
    assert_eq!(scope.stats.snapshot().waits, 1, "all segments in one wait");
}

/// Random predicates, arguments and filters; the data of one program comes in several sizes and null densities.
#[tokio::test]
async fn random_programs() {
    let scopes = CHECKS.map(|checks| scope(&with_checks(checks)));
    let mut faults = 0;
    for seed in 0..30 {
        let mut rng = Rng::new(1000 + seed);
        let mut make = ExprGen { rng: &mut rng, params: vec![], logic: true };
        let selection = make.expr(Boolean, 3);
        let mut specs = vec![count_rows()];
        for _ in 0..3 {
            let ty = make.rng.pick(&TYPES);
            let arg = if make.rng.one_in(3) { make.any_decimal(2) } else { make.expr(ty, 2) };
            let filter = make.rng.one_in(2).then(|| make.expr(Boolean, 2));
            specs.extend(
                all_of(&arg).into_iter().map(|spec| AggregateSpec { filter: filter.clone(), ..spec }),
            );
        }
        let program = Program { selection: Some(selection), params: make.params };
        let mut data = vec![];
        for (rows, nulls, edgy) in [(1, 0, 0), (700, 20, 0), (1500, 2, 4), (300, 0, 1)] {
            let shape = DataShape { nulls, edgy, offset: rng.below(40) };
            data.push((table(rows, shape, &mut rng), rows));
        }
        let twin = twin_answer(&program, &specs, &data);
        faults += twin.iter().filter(|result| result.fault).count();
        for (scope, checks) in scopes.iter().zip(CHECKS) {
            let device = device_answer(scope, &program, &specs, &data).await;
            assert_same(&device, &twin, &format!("seed {seed}, checks {checks:?}: {program:?} {specs:?}"));
        }
    }
    assert!((5..100).contains(&faults), "{faults} of 120 segments had faults");
}

#[tokio::test]
async fn lowered_limits() {
    let full = device();
    let mut caps = full.caps().as_ref().clone();
    (caps.max_workgroups_per_dimension, caps.loop_budget) = (2, 300);
    let small = full.with_caps(caps);
    let scope = scope(&small);
    let program = Program::default();
    let specs =
        [agg(AggregateKind::SumInt, col(0, Int64)), agg(AggregateKind::Min, col(0, Int64)), count_rows()];
    let mut rng = Rng::new(3);
    let shape = DataShape { nulls: 10, edgy: 1, offset: 0 };
    let data: Vec<_> =
        [1, 4097, 150_001].iter().map(|&rows| (vec![column(Int64, rows, shape, &mut rng)], rows)).collect();
    let device = device_answer(&scope, &program, &specs, &data).await;
    assert_same(&device, &twin_answer(&program, &specs, &data), "two workgroups a dimension");

    let rows = 3_000_000;
    let many = segment(&scope, &[column(Int64, rows, shape, &mut rng)], rows).await.expect("upload");
    let error =
        reduce(&scope, &program, &specs, &[many]).await.expect_err("too many rows for eight workgroups");
    assert!(matches!(error, GpuError::Limit { what: "workgroups of a dispatch", limit: 8, .. }), "{error}");
}

/// Columns of all layouts, with and without NULLs, out of one buffer; fewer buffers than that takes is an error.
#[tokio::test]
async fn columns_are_packed_where_few_buffers_are_bound() {
    let types = [Int8, Int32, Int64, UInt64, Boolean, dec(15, 2), dec(38, 4), Float32];
    let mut rng = Rng::new(5);
    let specs: Vec<_> =
        types.iter().enumerate().map(|(at, ty)| agg(AggregateKind::Max, col(at, *ty))).collect();
    let program = Program::default();
    let table = |rows: usize, nulls: usize, rng: &mut Rng| {
        let shape = DataShape { nulls, edgy: 2, offset: 3 };
        (types.iter().map(|ty| column(*ty, rows, shape, rng)).collect::<Vec<_>>(), rows)
    };
    let data = vec![table(3000, 30, &mut rng), table(500, 0, &mut rng), table(70_000, 1, &mut rng)];
    let full = device();
    let with = |max_storage_buffers| {
        let caps = DeviceCaps { max_storage_buffers, ..full.caps().as_ref().clone() };
        scope(&full.with_caps(caps))
    };
    let device = device_answer(&with(3), &program, &specs, &data).await;
    assert_same(&device, &twin_answer(&program, &specs, &data), "packed");

    let few = with(2);
    let segments = [segment(&few, &data[0].0, data[0].1).await.expect("upload")];
    let shapes: Vec<ColumnShape> =
        (0..types.len()).map(|at| ColumnShape::of(at, segments[0].column(at).expect("column"))).collect();
    assert_eq!(reduce_bindings(&program, &specs, &shapes), 3);
    let error = reduce(&few, &program, &specs, &segments).await.expect_err("three buffers");
    assert!(
        matches!(
            error,
            GpuError::Limit { what: "storage buffers of one kernel", need: 3, limit: 2, by_rows: false }
        ),
        "{error}"
    );
}

#[tokio::test]
async fn other_parameters_and_other_data_reuse_the_kernel() {
    let scope = scope(&device());
    let mut rng = Rng::new(9);
    let ty = dec(15, 2);
    let columns =
        [Int32, ty].map(|ty| column(ty, 100, DataShape { nulls: 10, edgy: 0, offset: 0 }, &mut rng));
    let selection = Some(Arc::new(Expr::And(
        cmp(CompareOp::GtEq, col(0, Int32), param(0, Int32)),
        cmp(CompareOp::Lt, col(1, ty), param(1, ty)),
    )));
    let specs = [agg(AggregateKind::SumDecimal, col(1, ty))];
    let mut compiled = vec![];
    let params: [(Scalar, Scalar); 4] =
        [(Some(3), Some(5000)), (Some(-9), Some(-77)), (None, Some(0)), (Some(1), None)];
    for (a, b) in params {
        let program = Program { selection: selection.clone(), params: vec![(Int32, a), (ty, b)] };
        let data = [(columns.to_vec(), 100)];
        let device = device_answer(&scope, &program, &specs, &data).await;
        assert_same(&device, &twin_answer(&program, &specs, &data), "parameters");
        compiled.push(scope.stats.pipelines_compiled.load(Ordering::Relaxed));
    }
    assert_eq!(compiled, [1, 1, 1, 1]);
    // A segment without nulls beside one with: one kernel.
    let whole = [Int32, ty].map(|ty| column(ty, 100, DataShape { nulls: 0, edgy: 0, offset: 0 }, &mut rng));
    let program = Program { selection, params: vec![(Int32, Some(0)), (ty, Some(900))] };
    let data = [(whole.to_vec(), 100), (columns.to_vec(), 100)];
    let device = device_answer(&scope, &program, &specs, &data).await;
    assert_same(&device, &twin_answer(&program, &specs, &data), "nulls in one segment only");
    assert_eq!(scope.stats.pipelines_compiled.load(Ordering::Relaxed), 1);
}

/// Only rows whose value is used can fault: others of the same column overflow without harm.
#[tokio::test]
async fn faults_count_where_the_value_is_used() {
    let scope = scope(&device());
    let ty = dec(38, 0);
    let large = 10i128.pow(37);
    let columns = vec![
        array_of_values(ty, &[Some(1), Some(large), None, Some(2)]),
        array_of_values(Int32, &[Some(0), Some(1), Some(2), Some(3)]),
    ];
    let square = arith(ArithOp::Mul, col(0, ty), col(0, ty));
    let not_one = cmp(CompareOp::NotEq, col(1, Int32), param(0, Int32));
    let params = vec![(Int32, Some(1))];
    let spec = |filter: Option<Arc<Expr>>| AggregateSpec {
        filter,
        ..agg(AggregateKind::SumDecimal, Arc::clone(&square))
    };
    let selected = Program { selection: Some(Arc::clone(&not_one)), params: params.clone() };
    let whole = Program { selection: None, params: params.clone() };
    let eager = Program {
        selection: Some(Arc::new(Expr::And(
            Arc::clone(&not_one),
            cmp(CompareOp::GtEq, Arc::clone(&square), col(0, square.value_type())),
        ))),
        params,
    };
    let cases = [
        (&selected, spec(None), false),
        (&whole, spec(Some(not_one)), false),
        (&whole, spec(None), true),
        (&eager, count_rows(), true),
    ];
    for (number, (program, spec, fault)) in cases.iter().enumerate() {
        // The eager case compares with a column of the product's type.
        let mut columns = columns.clone();
        if number == 3 {
            columns[0] = array_of_values(square.value_type(), &[Some(1), Some(large), None, Some(2)]);
        }
        let program =
            if number == 3 { retyped(program, ty, square.value_type()) } else { (*program).clone() };
        let data = [(columns, 4)];
        let specs = [spec.clone()];
        let device = device_answer(&scope, &program, &specs, &data).await;
        assert_eq!(device[0].fault, *fault, "case {number}");
        assert_same(&device, &twin_answer(&program, &specs, &data), &format!("case {number}"));
        if !fault {
            assert_eq!(device[0].states[0], AggregateState::new(2, 5), "case {number}");
        }
    }
}

fn array_of_values(ty: ValueType, values: &[Scalar]) -> ArrayRef {
    crate::kernels::select::array_of(ty, values).expect("array")
}

/// The program with columns of one type read as another.
fn retyped(program: &Program, from: ValueType, to: ValueType) -> Program {
    let leaf = |e: &Arc<Expr>| match e.as_ref() {
        Expr::Column { index, ty } if *ty == from => col(*index, to),
        _ => Arc::clone(e),
    };
    Program {
        selection: program.selection.as_ref().map(|e| e.map_leaves(&leaf)),
        params: program.params.clone(),
    }
}

/// Bounds choose between 64 and 128 bits; sums at the edges of each choice stay exact.
#[tokio::test]
async fn sums_at_the_edges_of_their_widths() {
    let scope = scope(&device());
    let program = Program::default();
    for bits in [8u32, 40, 41, 42, 48, 49, 50, 56, 59] {
        let ty = dec(18, 0);
        let top = ((1i128 << bits) - 1).min(10i128.pow(18) - 1);
        let rows = 40_000;
        let values: Vec<Scalar> =
            (0..rows).map(|at| Some(if at % 1000 == 999 { -top } else { top })).collect();
        let data = [(vec![array_of_values(ty, &values)], rows)];
        let specs = [agg(AggregateKind::SumDecimal, col(0, ty))];
        let device = device_answer(&scope, &program, &specs, &data).await;
        let sum = top * (rows as i128 - 2 * (rows as i128 / 1000));
        assert_eq!(device[0].states, [AggregateState::new(rows as u64, sum)], "{bits} bits");
    }
}

fn shapes_of_all(nullable: bool, magnitude: u8) -> Vec<ColumnShape> {
    TYPES
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
            nullable,
            magnitude: MagnitudeBits(magnitude),
            packed: false,
        })
        .collect()
}

/// Shaders that the tests above reach, and many more, pass naga without a device.
#[test]
fn shaders_are_valid() {
    let mut caps = DeviceCaps::for_tests();
    for (nullable, magnitude, unroll) in [(false, 24, 4), (true, 128, 1), (true, 60, 4)] {
        caps.unroll = unroll;
        for aggregates in all_columns() {
            let shapes = shapes_of_all(nullable, magnitude);
            validate(&reduce_shader(&caps, &Program::default(), &aggregates, &shapes).expect("shader"));
        }
    }
    for seed in 0..150 {
        let mut rng = Rng::new(seed);
        let mut make = ExprGen { rng: &mut rng, params: vec![], logic: true };
        let selection = Some(make.expr(Boolean, 4));
        let arg = make.any_decimal(3);
        let specs = all_of(&arg);
        let program = Program { selection, params: make.params };
        let shapes = shapes_of_all(seed % 2 == 0, [8, 40, 60, 128][seed as usize % 4]);
        validate(&reduce_shader(&caps, &program, &specs, &shapes).expect("shader"));
    }
}

/// Names and literals never enter the text: only the parameters' words differ.
#[test]
fn shader_text_depends_on_the_shape_only() {
    let caps = DeviceCaps::for_tests();
    let shapes = shapes_of_all(true, 60);
    let text = |value: i128| {
        let selection = Some(cmp(CompareOp::Lt, col(4, Int64), param(0, Int64)));
        let program = Program { selection, params: vec![(Int64, Some(value))] };
        reduce_shader(&caps, &program, &[count_rows()], &shapes).expect("shader").wgsl
    };
    assert_eq!(text(424_242), text(-1));
    assert!(!text(424_242).contains("424242"));
}

#[test]
fn unsupported_work_is_an_error() {
    let caps = DeviceCaps::for_tests();
    let shapes = shapes_of_all(false, 128);
    let sum_of_floats = [agg(AggregateKind::SumInt, col(10, Float64))];
    let not_boolean = Program { selection: Some(col(4, Int64)), params: vec![] };
    let no_such_param = Program { selection: Some(param(0, Boolean)), params: vec![] };
    for (program, specs) in
        [(&Program::default(), &sum_of_floats[..]), (&not_boolean, &[][..]), (&no_such_param, &[][..])]
    {
        let error = reduce_shader(&caps, program, specs, &shapes).expect_err("unsupported");
        assert!(matches!(error, GpuError::Internal(_)), "{error}");
    }
}

#[test]
fn states_merge_in_the_types_order() {
    let state = |value: i128| AggregateState::new(1, value);
    let merged = |kind: AggregateKind, ty: ValueType, values: &[i128]| {
        let mut into = kind.init();
        for &v in values {
            kind.merge(ty, &mut into, &state(v));
        }
        into.value
    };
    let bits = |v: f64| i128::from(v.to_bits());
    let floats = [bits(0.0), bits(-0.0), bits(f64::NAN), bits(f64::NEG_INFINITY), bits(-f64::NAN)];
    assert_eq!(merged(AggregateKind::Min, Float64, &floats), bits(-f64::NAN));
    assert_eq!(merged(AggregateKind::Max, Float64, &floats), bits(f64::NAN));
    assert_eq!(merged(AggregateKind::Min, Float64, &floats[..2]), bits(-0.0));
    assert_eq!(merged(AggregateKind::SumInt, Int64, &[i64::MAX.into(), 1]), i64::MIN.into());
    assert_eq!(merged(AggregateKind::SumInt, UInt64, &[u64::MAX.into(), 2]), 1);
    assert_eq!(merged(AggregateKind::SumDecimal, dec(38, 0), &[i128::MAX, 1]), i128::MIN);
    assert_eq!(merged(AggregateKind::Max, Int32, &[-5, -7]), -5);
}

/// The launch futures run on tokio's workers.
#[test]
fn futures_are_send() {
    fn send<T: Send>(_: fn(&'static LaunchScope, &'static Program, &'static [Segment]) -> T) {}
    send(|scope, program, segments| reduce(scope, program, &[], segments));
    send(|scope, program, segments| crate::kernels::select(scope, program, &[], segments));
}

/// COUNT, MIN and MAX of the types that have no sums.
#[tokio::test]
async fn other_types() {
    let device = device();
    let scope = scope(&device);
    let aggregates: Vec<_> = OTHERS.iter().enumerate().flat_map(|(at, &ty)| all_of(&col(at, ty))).collect();
    let mut data = vec![];
    for (rows, nulls) in [(0, 0), (1, 0), (255, 10), (257, 100), (3000, 50)] {
        let mut rng = Rng::new(rows as u64);
        let shape = DataShape { nulls, edgy: 3, offset: 5 };
        data.push((OTHERS.iter().map(|&ty| column(ty, rows, shape, &mut rng)).collect::<Vec<_>>(), rows));
    }
    let program = Program::default();
    let device = device_answer(&scope, &program, &aggregates, &data).await;
    assert_same(&device, &twin_answer(&program, &aggregates, &data), "other types");
}
