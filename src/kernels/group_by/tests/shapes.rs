//! Shaders by shape, most of them without a device.

use super::*;

#[tokio::test]
async fn other_data_and_other_ranges_reuse_the_kernels() {
    let scope = scope(&device());
    let by = sums_and_extremes();
    let mut rng = Rng::new(9);
    let mut compiled = vec![];
    for (rows, groups, hint) in [(100, 5, None), (9000, 800, None), (50, 9, Some(40)), (300, 70, Some(90))] {
        let shape = DataShape { nulls: 0, edgy: 0, offset: 0 };
        let columns = [
            keys_below(groups, rows, &mut rng),
            column(Int64, rows, shape, &mut rng),
            column(Int32, rows, shape, &mut rng),
        ];
        let ranges = hint.map(|max| vec![Some(KeyRange { min: 0, max })]).unwrap_or_default();
        let hint = GroupHint { ranges, ..GroupHint::default() };
        check(&scope, &Program::default(), &by, &columns, rows, &hint, "reuse").await;
        compiled.push(scope.stats.pipelines_compiled.load(std::sync::atomic::Ordering::Relaxed));
    }
    // Count and scan may have been compiled for another test.
    assert_eq!((compiled[0], compiled[2]), (compiled[1], compiled[3]), "{compiled:?}");
}

fn shapes_of_all(nullable: bool, magnitude: u8) -> Vec<ColumnShape> {
    let repr = |ty| match ty {
        Boolean => ColumnRepr::Bits,
        Decimal { precision, .. } if precision <= 18 => ColumnRepr::DecimalNarrow,
        Decimal { .. } => ColumnRepr::DecimalWide,
        _ => ColumnRepr::Arrow,
    };
    let shape = |(index, &ty): (usize, &ValueType)| ColumnShape {
        index,
        ty,
        repr: repr(ty),
        nullable,
        magnitude: MagnitudeBits(magnitude),
        packed: false,
    };
    TYPES.iter().chain(&OTHERS).enumerate().map(shape).collect()
}

/// Shaders that the tests above reach, and many more, pass naga without a device.
#[test]
fn shaders_are_valid() {
    let types: Vec<ValueType> = TYPES.iter().chain(&OTHERS).copied().collect();
    let range = Some(KeyRange { min: -5, max: 300 });
    let hints = [
        GroupHint::default(),
        groups(1 << 24),
        GroupHint { partitioned: Some(true), ..groups(1 << 20) },
        GroupHint { partitioned: Some(true), ..GroupHint::default() },
        GroupHint { ranges: vec![range; 4], ..GroupHint::default() },
        GroupHint {
            groups: Some(1 << 20),
            ranges: vec![Some(KeyRange { min: 0, max: 1 << 20 })],
            ..GroupHint::default()
        },
    ];
    for seed in 0..120 {
        let mut rng = Rng::new(seed);
        let mut caps = DeviceCaps::for_tests();
        caps.unroll = [1, 4][seed as usize % 2];
        caps.max_storage_buffers = [8, 500_000][seed as usize / 2 % 2];
        let pick = |rng: &mut Rng| rng.below(types.len());
        let keys = (0..rng.below(4)).map(|_| pick(&mut rng)).map(|at| key(at, types[at])).collect();
        let mut aggregates = vec![count_rows()];
        for _ in 0..3 {
            let at = pick(&mut rng);
            aggregates.extend(all_of(&col(at, types[at])));
        }
        let mut make = ExprGen { rng: &mut rng, params: vec![], logic: true };
        let selection = make.rng.one_in(2).then(|| make.expr(Boolean, 3));
        let by = GroupBy { keys, aggregates, ..GroupBy::default() };
        let program = Program { selection, params: make.params };
        let shapes = shapes_of_all(seed % 3 == 0, [8, 40, 60, 128][seed as usize % 4]);
        for hint in &hints {
            for shader in group_by_shaders(&caps, &program, &by, &shapes, hint).expect("shaders") {
                validate(&shader);
                assert!(shader.bindings.len() <= caps.max_storage_buffers as usize, "{}", shader.wgsl);
            }
        }
        let used = columns_used(&program, &by).len() as u32;
        assert!(group_by_bindings(&program, &by, &shapes) <= 6 + used.min(1));
    }
}

/// Names and literals never enter the text: only the parameters' words differ.
#[test]
fn shader_text_depends_on_the_shape_only() {
    let caps = DeviceCaps::for_tests();
    let shapes = shapes_of_all(true, 60);
    let texts = |value: i128, max: i128| {
        let selection = Some(cmp(CompareOp::Lt, col(4, Int64), param(0, Int64)));
        let program = Program { selection, params: vec![(Int64, Some(value))] };
        let by = GroupBy { keys: vec![key(4, Int64)], aggregates: vec![count_rows()], ..GroupBy::default() };
        let hint = GroupHint { ranges: vec![Some(KeyRange { min: value, max })], ..GroupHint::default() };
        let shaders = group_by_shaders(&caps, &program, &by, &shapes, &hint).expect("shaders");
        shaders.into_iter().map(|shader| shader.wgsl).collect::<Vec<_>>()
    };
    assert_eq!(texts(424_242, 424_255), texts(-1, 31));
    assert!(!texts(424_242, 424_255).concat().contains("4242"));
}

#[test]
fn unsupported_work_is_an_error() {
    let caps = DeviceCaps::for_tests();
    let shapes = shapes_of_all(false, 128);
    let sum_of_dates = GroupBy {
        keys: vec![key(4, Int64)],
        aggregates: vec![agg(AggregateKind::SumInt, col(11, Date32))],
        ..GroupBy::default()
    };
    let no_argument = GroupBy {
        keys: vec![],
        aggregates: vec![AggregateSpec { kind: AggregateKind::Max, arg: None, filter: None }],
        ..GroupBy::default()
    };
    let not_coded = GroupBy { keys: vec![GroupKey::Codes(4)], aggregates: vec![], ..GroupBy::default() };
    for by in [&sum_of_dates, &no_argument, &not_coded] {
        let error = group_by_shaders(&caps, &Program::default(), by, &shapes, &GroupHint::default());
        assert!(matches!(error, Err(GpuError::Internal(_))), "{error:?}");
    }
}

/// The launch future runs on tokio's workers.
#[test]
fn the_future_is_send() {
    fn send<T: Send>(_: fn(&'static LaunchScope, &'static Program, &'static Segment) -> T) {}
    send(|scope, program, segment| async move {
        let (by, hint) = (GroupBy::default(), GroupHint::default());
        group_by(scope, program, &by, segment, &hint).await
    });
}
