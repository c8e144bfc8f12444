//! Sums of floats: windows, what lies outside of them, and what is not finite.

use arrow::array::{Float32Array, Float64Array};

use crate::kernels::exact::plain::Plain;
use crate::kernels::expr::{FloatFn, Function};

use super::*;

const TINY: f64 = f64::from_bits(1);

/// SUM, and AVG's numerator, which is the same, of column 1.
fn sums(ty: ValueType) -> GroupBy {
    let sum = || agg(AggregateKind::SumFloat, col(1, ty));
    GroupBy { keys: vec![key(0, Int64)], aggregates: vec![sum(), sum()], ..GroupBy::default() }
}

fn doubles(values: impl IntoIterator<Item = f64>) -> ArrayRef {
    Arc::new(Float64Array::from_iter_values(values))
}

fn singles(values: impl IntoIterator<Item = f32>) -> ArrayRef {
    Arc::new(Float32Array::from_iter_values(values))
}

fn longs(values: impl IntoIterator<Item = usize>) -> ArrayRef {
    array_of(Int64, &values.into_iter().map(|value| Some(value as i128)).collect::<Vec<_>>()).expect("array")
}

/// A double of any sign and mantissa between 2^`low` and 2^`high`.
fn between(rng: &mut Rng, low: i64, high: i64) -> f64 {
    let exponent = 1023 + low + rng.below((high - low) as usize) as i64;
    f64::from_bits(rng.next() & !(0x7ff << 52) | (exponent as u64) << 52)
}

fn limbs(low: u32, high: u32) -> Option<LimbRange> {
    Some(LimbRange { low, high })
}

/// The doubles of each group, and how they add up bit by bit.
fn assert_rounded(result: &GroupResult, keys: &[usize], values: &[f64], what: &str) {
    let StateValues::Exact(sums) = &result.states[0].values else { panic!("{what}: no exact sums") };
    let group_of = |group: usize| at(&result.keys[0], group).expect("key") as usize;
    for (group, sum) in sums.iter().enumerate() {
        let own =
            keys.iter().zip(values).filter(|(key, _)| **key == group_of(group)).map(|(_, value)| *value);
        Plain::sum(&own.collect::<Vec<_>>()).assert_rounds_to(sum.to_f64(), what);
    }
}

/// The window is chosen anew where values lie outside, once, and what is learned holds for the next segment. Larger and smaller
/// values, near the largest doubles and among denormals, in all strategies.
#[tokio::test]
async fn windows_widen() {
    let scope = scope(&device());
    let by = sums(Float64);
    let mut rng = Rng::new(11);
    let rows = 3000;
    let shapes: [(i64, i64, u32); 8] = [
        (-30, 34, 0),
        (-30, 2, 0),
        (-60, 20, 1),
        (30, 160, 1),
        (-300, 200, 1),
        (-1022, 1024, 1),
        (1000, 1024, 1),
        (-1022, -1000, 1),
    ];
    for (low, high, reruns) in shapes {
        let keys: Vec<usize> = (0..rows).map(|_| rng.below(40)).collect();
        let values: Vec<f64> = (0..rows).map(|_| between(&mut rng, low, high)).collect();
        let columns = [longs(keys.iter().copied()), doubles(values.iter().copied())];
        let what = format!("2^{low} to 2^{high}");
        let hint = groups(40);
        let first = check(&scope, &Program::default(), &by, &columns, rows, &hint, &what).await;
        assert_eq!(first.reruns, reruns, "{what}: {:?}", first.sums);
        assert_rounded(&first, &keys, &values, &what);
        let learned = GroupHint { sums: first.sums, ..hint };
        let again = check(&scope, &Program::default(), &by, &columns, rows, &learned, &what).await;
        assert_eq!(again.reruns, 0, "{what}");
    }
}

/// Values that end each other up to the last bit, in any order: sums go through zero all the time, with carries to the top.
#[tokio::test]
async fn cancellation() {
    let scope = scope(&device());
    let by = sums(Float64);
    let mut rng = Rng::new(12);
    for (low, high, most) in [(0, 20, 1), (-30, 30, 300), (-1022, 1023, 3)] {
        let mut pairs: Vec<(usize, f64)> = vec![];
        for _ in 0..2000 {
            let (group, value) = (rng.below(most), between(&mut rng, low, high));
            pairs.extend([(group, value), (group, -value)]);
        }
        // What is left in the end.
        pairs.extend((0..most).map(|group| (group, f64::from_bits(rng.next() >> 12 | 1023 << 52))));
        for at in (1..pairs.len()).rev() {
            pairs.swap(at, rng.below(at + 1));
        }
        let rows = pairs.len();
        let columns = [longs(pairs.iter().map(|pair| pair.0)), doubles(pairs.iter().map(|pair| pair.1))];
        let hint = groups(most);
        let what = format!("2^{low} to 2^{high} in {most} groups");
        let result = check(&scope, &Program::default(), &by, &columns, rows, &hint, &what).await;
        let StateValues::Exact(sums) = &result.states[1].values else { panic!("no exact sums") };
        assert!(sums.iter().all(|sum| (1.0..2.0).contains(&sum.to_f64())), "{what}: {sums:?}");
    }
}

/// The largest doubles, denormals, zeros of any sign, and sums that leave the range of doubles on their way.
#[tokio::test]
async fn edges() {
    let scope = scope(&device());
    let by = sums(Float64);
    let groups: [&[f64]; 8] = [
        &[f64::MAX, f64::MAX, -f64::MAX],
        &[f64::MAX, f64::MAX],
        &[TINY, TINY, -TINY, f64::MIN_POSITIVE],
        &[-0.0, -0.0],
        &[0.0],
        &[1.0, 1e-320, -1.0],
        &[-f64::MAX, TINY, f64::MAX],
        &[-TINY],
    ];
    let rows = || groups.iter().enumerate().flat_map(|(key, values)| values.iter().map(move |x| (key, *x)));
    let columns = [longs(rows().map(|row| row.0)), doubles(rows().map(|row| row.1))];
    let count = rows().count();
    let hint = GroupHint::default();
    let result = check(&scope, &Program::default(), &by, &columns, count, &hint, "edges").await;
    assert_eq!(result.sums, SummedFloats { limbs: vec![limbs(0, 63); 2], special: false });
    let StateValues::Exact(sums) = &result.states[0].values else { panic!("no exact sums") };
    for (group, sum) in sums.iter().enumerate() {
        let key = at(&result.keys[0], group).expect("key") as usize;
        let want = [f64::MAX, f64::INFINITY, f64::MIN_POSITIVE.next_up(), 0.0, 0.0, 1e-320, TINY, -TINY][key];
        assert_eq!(sum.to_f64().to_bits(), want.to_bits(), "group {key}");
    }
    // Nothing but zeros says nothing of limbs.
    let zeros = [longs([1, 2, 1]), doubles([0.0, -0.0, 0.0])];
    let result = check(&scope, &Program::default(), &by, &zeros, 3, &hint, "zeros").await;
    assert_eq!((result.sums.limbs, result.reruns), (vec![None; 2], 0));
}

/// NaN with its bits, and infinities, of which records know only where there are some.
#[tokio::test]
async fn what_is_not_finite() {
    let scope = scope(&device());
    let (double, single) = (sums(Float64), sums(Float32));
    let mut rng = Rng::new(13);
    for (special, tells) in [(0, 0), (1, 1), (300, 1)] {
        let rows = 2500;
        let odd: Vec<usize> = (0..special).map(|_| rng.below(rows)).collect();
        let keys: Vec<usize> = (0..rows).map(|_| rng.below(20)).collect();
        let pick = |row: usize, rng: &mut Rng| odd.contains(&row).then(|| rng.below(4));
        let mut of = |nan: u64, infinity: u64, sign: u64, finite: u64| -> Vec<u64> {
            let value = |row| match pick(row, &mut rng) {
                None => finite | (rng.next() % 1000),
                Some(0) => infinity,
                Some(1) => infinity | sign,
                Some(2) => nan | (rng.next() % 1000),
                Some(_) => nan | sign | (rng.next() % 1000),
            };
            (0..rows).map(value).collect()
        };
        let bits = of(0x7ff0_0000_0000_0001, 0x7ff << 52, 1 << 63, 0x3ff << 52);
        let values = bits.iter().map(|bits| f64::from_bits(*bits));
        let columns = [longs(keys.iter().copied()), doubles(values)];
        for hint in [GroupHint::default(), groups(20)] {
            let what = format!("{special} of {rows} values, {hint:?}");
            let result = check(&scope, &Program::default(), &double, &columns, rows, &hint, &what).await;
            assert_eq!((result.reruns, result.sums.special), (tells, special > 0), "{what}");
            let hint = GroupHint { sums: result.sums, ..hint };
            let again = check(&scope, &Program::default(), &double, &columns, rows, &hint, &what).await;
            assert_eq!(again.reruns, 0, "{what}");
        }
        let bits = of(0x7f80_0001, 0xff << 23, 1 << 31, 0x7f << 23);
        let values = bits.iter().map(|bits| f32::from_bits(*bits as u32));
        let columns = [longs(keys.iter().copied()), singles(values)];
        let hint = GroupHint::default();
        let what = format!("{special} of {rows} singles");
        let result = check(&scope, &Program::default(), &single, &columns, rows, &hint, &what).await;
        assert_eq!((result.reruns, result.sums.special), (tells, special > 0), "{what}");
    }
}

#[tokio::test]
async fn singles_of_all_exponents() {
    let scope = scope(&device());
    let by = sums(Float32);
    let mut rng = Rng::new(14);
    for (low, high, reruns) in [(-30, 30, 0), (-149, 128, 1), (100, 128, 1)] {
        let rows = 2000;
        let keys: Vec<usize> = (0..rows).map(|_| rng.below(7)).collect();
        let values: Vec<f32> = (0..rows).map(|_| between(&mut rng, low, high) as f32).collect();
        let columns = [longs(keys.iter().copied()), singles(values.iter().copied())];
        let hint = groups(7);
        let what = format!("2^{low} to 2^{high}");
        let result = check(&scope, &Program::default(), &by, &columns, rows, &hint, &what).await;
        assert_eq!(result.reruns, reruns, "{what}: {:?}", result.sums);
        let values: Vec<f64> = values.iter().map(|value| f64::from(*value)).collect();
        assert_rounded(&result, &keys, &values, &what);
    }
}

/// One kernel a strategy: computed and searched slots, workgroups' tables and none, tables that grow and ranges that are not so, each
/// with values outside of the first window.
#[tokio::test]
async fn all_strategies() {
    let device = device();
    let by = sums(Float64);
    let mut seen = BTreeSet::new();
    for (number, most) in [1, 3, 300, 30_000].into_iter().enumerate() {
        let scope = scope(&device);
        let rows = 40_000;
        let mut rng = Rng::new(20 + number as u64);
        let values: Vec<f64> = (0..rows).map(|row| between(&mut rng, -20 - row % 2 * 20, 20)).collect();
        let columns = [keys_below(most, rows as usize, &mut rng), doubles(values)];
        let rows = rows as usize;
        let segment = segment(&scope, &columns, rows).await.expect("upload");
        let program = Program::default();
        let twin = reference::group_by(&program, &by, &columns, rows).expect("twin");
        let range = KeyRange { min: 0, max: most as i128 - 1 };
        let hints = [
            GroupHint::default(),
            groups(most),
            groups(1),
            GroupHint { ranges: vec![Some(range)], ..GroupHint::default() },
            GroupHint {
                ranges: vec![Some(KeyRange { max: most as i128 - 2, ..range })],
                ..GroupHint::default()
            },
        ];
        for hint in hints {
            let what = format!("{most} groups, {hint:?}");
            let device = group_by(&scope, &program, &by, &segment, &hint).await.expect(&what);
            assert_same(&device, &twin, &what);
            seen.insert(device.strategy.name());
            assert!(device.reruns > 0, "{what}: {:?}", device.sums);
        }
    }
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), ["dense", "direct", "local"]);
}

/// Rows in the order of their hashes, in one table and in several, of which only some have values outside of the first window.
#[tokio::test]
async fn parted_rows() {
    let full = device();
    let caps = DeviceCaps { max_binding_bytes: 1 << 18, ..full.caps().as_ref().clone() };
    let scopes = [scope(&full), scope(&full.with_caps(caps))];
    let by = sums(Float64);
    let mut rng = Rng::new(19);
    let rows = 7000;
    for (most, odd) in [(5, 1), (5000, 1), (5000, 3000)] {
        let mut values: Vec<f64> = (0..rows).map(|_| between(&mut rng, 0, 20)).collect();
        for at in 0..odd {
            values[rng.below(rows)] = if at % 7 == 3 { f64::NAN } else { between(&mut rng, -1000, 1000) };
        }
        let columns = [keys_below(most, rows, &mut rng), doubles(values)];
        for scope in &scopes {
            for groups in [None, Some(most)] {
                let hint = GroupHint { groups, partitioned: Some(true), ..GroupHint::default() };
                let what = format!("{most} groups, {odd} peculiar, {hint:?}");
                let result = check(scope, &Program::default(), &by, &columns, rows, &hint, &what).await;
                assert_eq!(result.strategy, Strategy::Partitioned, "{what}");
                assert!(result.reruns > 0, "{what}");
            }
        }
    }
}

/// Selections and filters, arguments that are computed, and one accumulator for what is the same.
#[tokio::test]
async fn filters_and_expressions() {
    let scope = scope(&device());
    let x = || col(1, Float64);
    let positive = || cmp(CompareOp::Gt, x(), param(0, Float64));
    let function = Function::Float(FloatFn::Mul);
    let product = Arc::new(Expr::Call { function, args: vec![x(), x()], ty: Float64 });
    let by = GroupBy {
        keys: vec![key(0, Int64)],
        aggregates: vec![
            agg(AggregateKind::SumFloat, product),
            AggregateSpec { filter: Some(positive()), ..agg(AggregateKind::SumFloat, x()) },
            agg(AggregateKind::SumFloat, x()),
            agg(AggregateKind::Max, x()),
            count_rows(),
        ],
        ..GroupBy::default()
    };
    let mut rng = Rng::new(15);
    for (nulls, edgy) in [(0, 0), (30, 0), (10, 5)] {
        let rows = 1500;
        let shape = DataShape { nulls, edgy, offset: 5 };
        let columns = [pooled(Int64, rows, 12, 3, &mut rng), column(Float64, rows, shape, &mut rng)];
        let params = vec![(Float64, Some(i128::from(0.5f64.to_bits()))), (Int64, Some(0))];
        let program =
            Program { selection: Some(cmp(CompareOp::NotEq, col(0, Int64), param(1, Int64))), params };
        let what = format!("{nulls} % nulls, edgy {edgy}");
        let hint = GroupHint::default();
        check(&scope, &program, &by, &columns, rows, &hint, &what).await;
    }
}

/// Short loops, no room in workgroups, and few buffers.
#[tokio::test]
async fn lowered_limits() {
    let full = device();
    let by = sums(Float64);
    let mut rng = Rng::new(16);
    let lower: [fn(&mut DeviceCaps); 4] = [
        |caps| caps.max_workgroups_per_dimension = 4,
        |caps| caps.loop_budget = 4000,
        |caps| caps.workgroup_bytes = 1024,
        |caps| caps.max_storage_buffers = 6,
    ];
    for (number, lower) in lower.into_iter().enumerate() {
        let mut caps = full.caps().as_ref().clone();
        lower(&mut caps);
        let scope = scope(&full.with_caps(caps));
        for (rows, most, spread) in [(1, 1, 10), (4097, 3, 10), (9001, 2000, 1000)] {
            let values: Vec<f64> = (0..rows).map(|_| between(&mut rng, -spread, spread)).collect();
            let columns = [keys_below(most, rows, &mut rng), doubles(values)];
            let what = format!("limit {number}, {rows} rows, within 2^{spread}");
            check(&scope, &Program::default(), &by, &columns, rows, &GroupHint::default(), &what).await;
        }
    }
}

/// What is held stays below what is announced for floats that are as the hint says.
#[tokio::test]
async fn memory_is_announced() {
    let device = device();
    let by = sums(Float64);
    let mut rng = Rng::new(17);
    for (rows, most, spread, nan) in
        [(4000, 4000, 10, false), (4000, 4000, 1000, true), (20_000, 3, 1000, false)]
    {
        let scope = scope(&device);
        let values = (0..rows).map(|row| match row {
            0 if nan => f64::NAN,
            _ => between(&mut rng, -spread, spread),
        });
        let values = doubles(values.collect::<Vec<_>>());
        let columns = [keys_below(most, rows, &mut rng), values];
        let twin = reference::group_by(&Program::default(), &by, &columns, rows).expect("twin");
        let segment = segment(&scope, &columns, rows).await.expect("upload");
        let ledger = DeviceLedger::detached(1 << 40);
        let own = LaunchScope { memory: MemoryScope::new(&ledger, "test", u64::MAX), ..(*scope).clone() };
        let learned = GroupHint { sums: twin.sums.clone(), ..GroupHint::default() };
        for hint in [learned.clone(), GroupHint { groups: Some(most), ..learned.clone() }] {
            let result = group_by(&own, &Program::default(), &by, &segment, &hint).await.expect("group_by");
            assert_same(&result, &twin, &format!("{hint:?}"));
            let need = group_by_bytes(&Program::default(), &by, rows, &learned);
            assert!(ledger.peak() <= need, "{rows} rows, {hint:?}: {} of {need} bytes", ledger.peak());
        }
        let usual = group_by_bytes(&Program::default(), &by, rows, &GroupHint::default());
        let need = group_by_bytes(&Program::default(), &by, rows, &learned);
        assert!(if spread > 34 { need > 2 * usual } else { need == usual }, "{need} and {usual} bytes");
    }
}

/// A look at some rows tells the first segment's window.
#[tokio::test]
async fn samples() {
    let scope = scope(&device());
    let mut rng = Rng::new(18);
    let by = sums(Float64);
    let rows = 1000;
    let values: Vec<f64> = (0..rows).map(|_| between(&mut rng, -300, -230)).collect();
    let columns = [keys_below(9, rows, &mut rng), doubles(values)];
    let program = Program::default();
    let sample = SummedFloats::sample(&program, &by.aggregates, &columns, rows);
    assert_eq!(sample, SummedFloats { limbs: vec![limbs(22, 24); 2], special: false });
    let hint = GroupHint { sums: sample, ..GroupHint::default() };
    let result = check(&scope, &program, &by, &columns, rows, &hint, "sample").await;
    assert_eq!(result.reruns, 0);
    // What the twin does not know tells nothing.
    let other = [keys_below(1, 1, &mut rng)];
    assert_eq!(SummedFloats::sample(&program, &by.aggregates, &other, 1), SummedFloats::default());
    let odd = [keys_below(2, 2, &mut rng), doubles([f64::INFINITY, 0.0])];
    let odd = SummedFloats::sample(&program, &by.aggregates, &odd, 2);
    assert_eq!(odd, SummedFloats { limbs: vec![], special: true });
}

/// The window's place is no part of the shader, nor is what was learned of groups.
#[test]
fn windows_are_data() {
    let caps = DeviceCaps::for_tests();
    let shape = |index, ty| ColumnShape {
        index,
        ty,
        repr: ColumnRepr::Arrow,
        nullable: false,
        magnitude: MagnitudeBits(64),
        packed: false,
    };
    let columns = [shape(0, Int64), shape(1, Float64)];
    let texts = |low, high, special| {
        let sums = SummedFloats { limbs: vec![limbs(low, high); 2], special };
        let hint = GroupHint { sums, ..groups(9) };
        let by = self::sums(Float64);
        let shaders = group_by_shaders(&caps, &Program::default(), &by, &columns, &hint).expect("shaders");
        shaders.iter().for_each(validate);
        shaders.into_iter().map(|shader| shader.wgsl).collect::<Vec<_>>()
    };
    assert_eq!(texts(31, 32, false), texts(3, 3, false));
    assert_eq!(texts(31, 34, true), texts(40, 42, true));
    let shapes: BTreeSet<Vec<String>> = [
        (31, 32, false),
        (31, 33, false),
        (31, 40, false),
        (0, 63, false),
        (1, 60, false),
        (20, 30, false),
        (20, 30, true),
    ]
    .map(|(low, high, special)| texts(low, high, special))
    .into();
    assert_eq!(shapes.len(), 5, "four sizes, and one of them with words for NaN");
    // One sum of the same argument, not two.
    let text = texts(31, 32, false).concat();
    assert!(text.contains("met0") && !text.contains("met1"), "{text}");
}
