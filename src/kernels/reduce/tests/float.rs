//! Sums of floats: windows and limbs against exact sums on the host.

use arrow::array::{Float32Array, Float64Array};

use super::*;
use crate::kernels::ExactSum;
use crate::kernels::reduce::float::Width;

fn sum_of(index: usize, ty: ValueType) -> AggregateSpec {
    agg(AggregateKind::SumFloat, col(index, ty))
}

fn doubles(values: Vec<f64>) -> (Vec<ArrayRef>, usize) {
    let rows = values.len();
    (vec![Arc::new(Float64Array::from(values))], rows)
}

/// A double, or what a single has of it, with an exponent within `spread` of `around`.
fn around(rng: &mut Rng, around: usize, spread: usize) -> f64 {
    let exponent = (around + rng.below(2 * spread + 1)).saturating_sub(spread).min(0x7fe) as u64;
    f64::from_bits((rng.next() & !(0x7ff << 52)) | exponent << 52)
}

/// Values near each other and far apart, at the ends of the range and in between; windows that fit, that do not, and unknown ones.
#[tokio::test]
async fn any_exponents_in_any_window() {
    let scope = scope(&device());
    let program = Program::default();
    let specs = [sum_of(0, Float64), sum_of(1, Float32)];
    let mut rng = Rng::new(21);
    for (middle, spread) in
        [(1023, 8), (1023, 30), (1023, 150), (1023, 1023), (0, 0), (3, 3), (0x7fe, 0), (0x7f0, 40), (300, 22)]
    {
        let mut data = vec![];
        for rows in [1, 3, 700, 5000] {
            let values: Vec<Option<f64>> =
                (0..rows).map(|_| (!rng.one_in(9)).then(|| around(&mut rng, middle, spread))).collect();
            // The same spread where singles have it.
            let singles = values.iter().map(|x| {
                x.map(|x| {
                    let field = ((x.to_bits() >> 52 & 0x7ff) as i64 - middle as i64 + middle as i64 / 8)
                        .clamp(0, 0xfe);
                    f32::from_bits((x.to_bits() >> 32) as u32 & 0x807f_ffff | (field as u32) << 23)
                })
            });
            let singles: ArrayRef = Arc::new(singles.collect::<Float32Array>());
            data.push((vec![Arc::new(Float64Array::from(values)) as ArrayRef, singles], rows));
        }
        let twin = twin_answer(&program, &specs, &data);
        let mut segments = vec![];
        for (columns, rows) in &data {
            segments.push(segment(&scope, columns, *rows).await.expect("upload"));
        }
        let sampled = FloatWindows::new(&specs);
        sampled.sample(&program, &specs, &data[3].0, 5000);
        for windows in [sampled, FloatWindows::new(&specs), FloatWindows::default()] {
            // The second time in windows that were moved.
            for round in 0..2 {
                let device = reduce_in(&scope, &program, &specs, &segments, &windows).await.expect("reduce");
                let what = format!("{spread} around {middle}, {windows:?}, round {round}");
                assert_same(&device, &twin, &what);
            }
        }
    }
    assert_eq!(scope.stats.pipelines_compiled.load(Ordering::Relaxed), 1, "windows are data");
}

/// As many rows an invocation as there may be, of the largest mantissa at either end of the window.
#[tokio::test]
async fn registers_hold_all_rows_of_an_invocation() {
    let full = device();
    let caps = DeviceCaps { reduce_workgroups: 1, ..full.caps().as_ref().clone() };
    let scope = scope(&full.with_caps(caps));
    let rows = 1usize << 22;
    let base = u64::from(Width::Double.default_base());
    for field in [base, base + 22, base + 23, base + 45, base + 46] {
        let value = f64::from_bits(field << 52 | ((1 << 52) - 1));
        for value in [value, -value] {
            let (columns, rows) = doubles(vec![value; rows]);
            let segments = [segment(&scope, &columns, rows).await.expect("upload")];
            let device =
                reduce(&scope, &Program::default(), &[sum_of(0, Float64)], &segments).await.expect("reduce");
            // A power of two times the value is exact.
            assert_eq!(device[0].states[0].exact.to_f64(), value * rows as f64, "field {field}");
            let mut one = ExactSum::new();
            one.add_f64(value * rows as f64);
            assert_eq!(device[0].states[0].exact, one, "field {field}");
        }
    }
}

#[tokio::test]
async fn what_is_not_finite() {
    let scope = scope(&device());
    let program = Program::default();
    let nan = |bits: u64| f64::from_bits(0x7ff0_0000_0000_0000 | bits);
    let rows: [&[f64]; 8] = [
        &[f64::INFINITY, 1.0],
        &[f64::NEG_INFINITY, -1.0, 0.0],
        &[f64::INFINITY, f64::NEG_INFINITY, f64::MAX],
        &[1.0, nan(1)],
        &[nan(1 << 51 | 77), nan(1 << 51 | 78), nan(1 << 50), f64::INFINITY],
        &[-nan(1 << 51), nan(9)],
        &[0.0, -0.0, 5e-324],
        &[f64::MAX, f64::MAX, -f64::MAX],
    ];
    let specs = [sum_of(0, Float64), sum_of(1, Float32)];
    let mut data = vec![];
    for values in rows {
        // Far apart, so that workgroups join them.
        let mut spread = vec![0.5; 3000];
        values.iter().enumerate().for_each(|(at, x)| spread[at * 900] = *x);
        let single = |x: f64| f32::from_bits(((x.to_bits() >> 32) as u32).rotate_left(3) ^ 0x1ff0_0000);
        let singles: ArrayRef = Arc::new(spread.iter().map(|x| Some(single(*x))).collect::<Float32Array>());
        let plain: ArrayRef = Arc::new(spread.iter().map(|x| Some(*x as f32)).collect::<Float32Array>());
        let (mut columns, rows) = doubles(spread);
        columns.push(plain);
        data.push((columns.clone(), rows));
        columns[1] = singles;
        data.push((columns, rows));
    }
    let device = device_answer(&scope, &program, &specs, &data).await;
    assert_same(&device, &twin_answer(&program, &specs, &data), "not finite");
    assert!(device[0].states[0].exact.to_f64() == f64::INFINITY);
    assert!(device[4].states[0].exact.to_f64().is_nan());
}

/// Most values outside: the window goes where they are. A few outside: it stays.
#[tokio::test]
async fn windows_follow_the_values() {
    let scope = scope(&device());
    let program = Program::default();
    let specs = [count_rows(), sum_of(0, Float64)];
    let windows = FloatWindows::new(&specs);
    let base = || windows.base(1, Width::Double);
    assert_eq!(base(), Width::Double.default_base());
    let small: Vec<f64> = (0..2000).map(|row| 1e-200 * f64::from(row)).collect();
    let mixed: Vec<f64> =
        small.iter().enumerate().map(|(at, x)| if at % 3 == 0 { 1e9 } else { *x }).collect();
    let mut seen = vec![];
    for values in [small, mixed] {
        let (columns, rows) = doubles(values);
        let segments = [segment(&scope, &columns, rows).await.expect("upload")];
        let device = reduce_in(&scope, &program, &specs, &segments, &windows).await.expect("reduce");
        assert_same(&device, &twin_answer(&program, &specs, &[(columns, rows)]), "moved");
        seen.push(base());
    }
    let field = (1e-197f64.to_bits() >> 52) as u32;
    assert!(seen[0] <= field && field < seen[0] + Width::Double.window());
    assert_eq!(seen[0], seen[1]);
}

/// The sample's window holds what there is; a stray value does not draw it away.
#[test]
fn samples_find_windows() {
    let field = |x: f64| (x.to_bits() >> 52) as u32 & 0x7ff;
    let found = |values: Vec<f64>, arg: Arc<Expr>| {
        let specs = [agg(AggregateKind::SumFloat, arg)];
        let windows = FloatWindows::new(&specs);
        let (columns, rows) = doubles(values);
        windows.sample(&Program::default(), &specs, &columns, rows);
        windows.base(0, Width::Double)
    };
    let prices = |row: i32| f64::from(row) / 100.0;
    for scale in [1.0, 1e-300, 1e290] {
        let values: Vec<f64> = (0..1000).map(|row| prices(row) * scale).collect();
        let base = found(values, col(0, Float64));
        for x in [0.01, 3.0, 10.0] {
            assert!((base..base + 46).contains(&field(x * scale)), "{scale}: {base}");
        }
        let mut stray: Vec<f64> = (0..1000).map(|row| prices(row) * scale).collect();
        stray[0] = 1e150;
        assert!(base.abs_diff(found(stray, col(0, Float64))) < 3);
    }
    assert_eq!(found(vec![], col(0, Float64)), Width::Double.default_base());
    assert_eq!(found(vec![0.0, f64::NAN, 5e-324], col(0, Float64)), Width::Double.default_base());
    assert!(found(vec![1e-310, 1e-307], col(0, Float64)) >= 1);
    assert_eq!(found(vec![f64::MAX], col(0, Float64)), 0x7ff - 46);
    // What the twin does not compute tells nothing.
    assert_eq!(found(vec![1.0], col(3, Float64)), Width::Double.default_base());
}

/// More sums than there are windows to tell apart, equal ones shared, with filters.
#[tokio::test]
async fn many_sums_in_one_kernel() {
    let scope = scope(&device());
    let mut rng = Rng::new(23);
    let shape = DataShape { nulls: 10, edgy: 2, offset: 3 };
    let rows = 1500;
    let columns: Vec<ArrayRef> = (0..14)
        .map(|at| column(if at % 3 == 0 { Float32 } else { Float64 }, rows, shape, &mut rng))
        .collect();
    let ty = |at: usize| if at.is_multiple_of(3) { Float32 } else { Float64 };
    let specs: Vec<_> = (0..16)
        .map(|at| {
            let at = at % 14;
            let filter = (at == 5).then(|| cmp(CompareOp::Lt, col(1, Float64), col(2, Float64)));
            AggregateSpec { filter, ..sum_of(at, ty(at)) }
        })
        .collect();
    let program = Program {
        selection: Some(cmp(CompareOp::NotEq, col(4, Float64), param(0, Float64))),
        params: vec![(Float64, Some(0))],
    };
    let data = [(columns, rows)];
    let device = device_answer(&scope, &program, &specs, &data).await;
    assert_same(&device, &twin_answer(&program, &specs, &data), "16 sums");
}
