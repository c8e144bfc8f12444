//! Float functions: the device against the twin, and the twin against DataFusion, bit for bit. Thousands of bit patterns on
//! a software adapter, millions on a GPU.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef};

use crate::kernels::expr::{Expr, FloatFn, Function, NAN_BITS_KNOWN, Scalar, ValueType, check};
use crate::kernels::program::{ColumnShape, Program};
use crate::kernels::reference::{self, Fault};
use crate::kernels::select::{array_of, select, select_shaders};
use crate::kernels::testkit::*;
use crate::memory::{AdapterKind, ColumnRepr, DeviceCaps, LaunchScope, MagnitudeBits};

use FloatFn::*;
use ValueType::*;

mod oracle;

const FLOATS: [ValueType; 2] = [Float32, Float64];
const INTEGERS: [ValueType; 8] = [Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64];

fn call(function: FloatFn, args: Vec<Arc<Expr>>, ty: ValueType) -> Arc<Expr> {
    let expr = Arc::new(Expr::Call { function: Function::Float(function), args, ty });
    check(&expr).expect("known");
    expr
}

fn binary(function: FloatFn, ty: ValueType) -> Arc<Expr> {
    call(function, vec![col(0, ty), col(1, ty)], ty)
}

fn unary(function: FloatFn, ty: ValueType) -> Arc<Expr> {
    call(function, vec![col(0, ty)], if matches!(function, IsNan | IsZero) { Boolean } else { ty })
}

fn to(ty: ValueType, from: ValueType, safe: bool) -> Arc<Expr> {
    call(Cast { safe }, vec![col(0, from)], ty)
}

/// Everything over two columns and, in parameter 0, a factor. None of it raises in DataFusion.
fn everything(ty: ValueType) -> Vec<Arc<Expr>> {
    let mut all: Vec<Arc<Expr>> = [Add, Sub, Mul, Div, Rem, Nanvl].map(|f| binary(f, ty)).to_vec();
    all.extend([Abs, Signum, Floor, Ceil, Trunc, Round, IsNan, IsZero].map(|f| unary(f, ty)));
    all.extend([TruncBy, RoundBy].map(|f| call(f, vec![col(0, ty), param(0, ty)], ty)));
    all.push(Arc::new(Expr::Negate(col(0, ty))));
    all.extend(INTEGERS.iter().chain(&[Boolean]).map(|&int| to(int, ty, true)));
    all.push(to(if ty == Float32 { Float64 } else { Float32 }, ty, false));
    all
}

fn factor(ty: ValueType, factor: f64) -> (ValueType, Scalar) {
    (ty, Some(if ty == Float32 { (factor as f32).to_bits().into() } else { factor.to_bits().into() }))
}

/// Where rounding, ranges and kinds of numbers change.
fn corners(ty: ValueType) -> Vec<i128> {
    let powers = [-32i32, -16, -8, -1, 0, 1, 7, 8, 15, 16, 23, 24, 31, 32, 52, 53, 63, 64, 127, 128];
    let numbers =
        powers.iter().map(|&n| 2f64.powi(n)).chain([0.0, 0.5, 1.5, 2.5, 0.1, 1e-45, 3.0, 1e23, 1e-310]);
    let around = |x: f64| -> Vec<i128> {
        if ty == Float32 {
            let bits = (x as f32).to_bits();
            [bits.saturating_sub(1), bits, bits + 1].map(i128::from).to_vec()
        } else {
            let bits = x.to_bits();
            [bits.saturating_sub(1), bits, bits + 1].map(i128::from).to_vec()
        }
    };
    let sign = if ty == Float32 { 1i128 << 31 } else { 1 << 63 };
    let fraction: i128 = if ty == Float32 { 23 } else { 52 };
    let infinity = (sign - 1) >> fraction << fraction;
    let quiet = infinity | (1 << (fraction - 1));
    let mut positive: Vec<i128> = numbers.flat_map(around).collect();
    // The largest denormal and the smallest normal; the largest number, infinity, and NaNs: the least and the largest
    // signaling one, the usual quiet one, and one with a payload.
    positive.extend([(1 << fraction) - 1, 1 << fraction]);
    positive.extend([infinity - 1, infinity, infinity + 1, quiet - 1, quiet, quiet + 12345]);
    positive.iter().flat_map(|&bits| [bits, bits | sign]).collect()
}

/// Two numbers of one type whose operations round, cancel, overflow and underflow.
fn pair(ty: ValueType, rng: &mut Rng) -> (i128, i128) {
    let (width, fraction) = if ty == Float32 { (32, 23) } else { (64, 52) };
    let bias = (1i128 << (width - fraction - 2)) - 1;
    let raw = |rng: &mut Rng| i128::from(rng.next()) & ((1 << width) - 1);
    let exponent_mask = ((1i128 << (width - 1)) - 1) >> fraction << fraction;
    let at = |rng: &mut Rng, exponent: i128| (raw(rng) & !exponent_mask) | (exponent << fraction);
    let near = |rng: &mut Rng, spread: usize| {
        let exponent = bias + rng.below(2 * spread) as i128 - spread as i128;
        at(rng, exponent)
    };
    let sparse = |rng: &mut Rng, x: i128| {
        // Few bits, so that results are exact, or halfway between two numbers.
        let keep = rng.below(fraction as usize) as i128;
        x & !((1i128 << keep) - 1)
    };
    match rng.below(10) {
        0 | 1 => (raw(rng), raw(rng)),
        2 | 3 => (near(rng, 4), near(rng, 4)),
        4 => (near(rng, 60), near(rng, 60)),
        5 => {
            let (a, b) = (near(rng, 30), near(rng, 30));
            (sparse(rng, a), sparse(rng, b))
        }
        6 => {
            let a = raw(rng);
            (a, (a ^ i128::from(rng.next() & 3)) ^ (i128::from(rng.next() & 1) << (width - 1)))
        }
        // Around the least exponents: denormals, and products and quotients that become such.
        7 => (at(rng, 0), near(rng, 10)),
        8 => {
            let low = rng.below(3) as i128;
            (at(rng, low), at(rng, 1 - low.min(1)))
        }
        _ => {
            let half = bias / 2 + rng.below(60) as i128 - 30;
            let high = (bias + bias / 2 + rng.below(4) as i128).min(2 * bias);
            (at(rng, half), at(rng, high))
        }
    }
}

/// Rows in all: corners in pairs first, then random ones; some NULLs.
fn rows(ty: ValueType, count: usize, nulls: usize, rng: &mut Rng) -> Vec<(Scalar, Scalar)> {
    let corners = corners(ty);
    let mut pairs: Vec<(i128, i128)> =
        corners.iter().map(|&a| (a, corners[rng.below(corners.len())])).collect();
    pairs.extend((pairs.len()..count).map(|at| match at % 5 {
        0 => (corners[rng.below(corners.len())], corners[rng.below(corners.len())]),
        _ => pair(ty, rng),
    }));
    let mut some = |v| (rng.below(100) >= nulls).then_some(v);
    pairs.into_iter().map(|(a, b)| (some(a), some(b))).collect()
}

fn columns(ty: ValueType, rows: &[(Scalar, Scalar)]) -> Vec<ArrayRef> {
    let (a, b): (Vec<Scalar>, Vec<Scalar>) = rows.iter().copied().unzip();
    [a, b].map(|values| array_of(ty, &values).expect("array")).to_vec()
}

fn twin(
    expr: &Expr,
    params: &[(ValueType, Scalar)],
    columns: &[ArrayRef],
    row: usize,
) -> Result<Scalar, Fault> {
    reference::eval(expr, params, columns, row)
}

/// The rows for which `holds`, by several threads.
fn filtered(rows: usize, holds: impl Fn(usize) -> bool + Sync) -> Vec<usize> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let part = rows.div_ceil(threads).max(1);
    let holds = &holds;
    std::thread::scope(|scope| {
        let parts: Vec<_> = (0..rows)
            .step_by(part)
            .map(|first| {
                let range = first..(first + part).min(rows);
                scope.spawn(move || range.filter(|&row| holds(row)).collect::<Vec<usize>>())
            })
            .collect();
        parts.into_iter().flat_map(|part| part.join().expect("thread")).collect()
    })
}

/// More where a GPU does them in no time.
fn size(scope: &LaunchScope) -> usize {
    if scope.context.caps().device_type == AdapterKind::Software { 4_000 } else { 1 << 20 }
}

/// The outputs on the device are the twin's at every row; the rows have no fault.
async fn assert_values(
    scope: &LaunchScope,
    params: &[(ValueType, Scalar)],
    outputs: &[Arc<Expr>],
    columns: &[ArrayRef],
) {
    let rows = columns[0].len();
    let segment = segment(scope, columns, rows).await.expect("upload");
    let program = Program { selection: None, params: params.to_vec() };
    let answer = select(scope, &program, outputs, &[segment]).await.expect("select").remove(0);
    assert!(!answer.fault);
    for (expr, array) in outputs.iter().zip(&answer.outputs) {
        let got = |row| reference::expr::value_at(array, expr.value_type(), row).expect("value");
        let expected = |row| twin(expr, params, columns, row).expect("no fault");
        if let Some(&row) = filtered(rows, |row| got(row) != expected(row)).first() {
            let inputs: Vec<String> = columns.iter().map(|column| shown(column, row)).collect();
            panic!("{expr:?} of {inputs:?}: {:x?}, not {:x?}", got(row), expected(row));
        }
    }
}

fn shown(column: &ArrayRef, row: usize) -> String {
    let ty = crate::memory::upload::value_type(column.data_type()).expect("type");
    format!("{:x?}", reference::expr::value_at(column, ty, row))
}

#[tokio::test]
async fn values_on_the_device() {
    for (number, ty) in FLOATS.into_iter().enumerate() {
        let outputs = everything(ty);
        let params = [factor(ty, 100.0)];
        let full = device();
        let mut scopes = vec![scope(&full)];
        scopes.extend(CHECKS.map(|checks| scope(&with_checks(checks))));
        for (at, scope) in scopes.iter().enumerate() {
            let mut rng = Rng::new(100 + (10 * number + at) as u64);
            let nulls = [0, 10, 50][at];
            let count = if at == 0 { size(scope) } else { 1_000 };
            let rows = rows(ty, count, nulls, &mut rng);
            let all = columns(ty, &rows);
            let known =
                |exprs: &[Arc<Expr>], row| exprs.iter().all(|expr| twin(expr, &params, &all, row).is_ok());
            let picked = |rest: Vec<usize>| rest.into_iter().map(|row| rows[row]).collect::<Vec<_>>();
            let faultless = picked(filtered(rows.len(), |row| known(&outputs, row)));
            assert!(faultless.len() > count / 3, "{} of {count} rows", faultless.len());
            assert_values(scope, &params, &outputs, &columns(ty, &faultless)).await;
            // Those that only the remainder or a signaling NaN leaves to the CPU.
            let arithmetic = [Add, Sub, Mul, Div].map(|f| binary(f, ty));
            let rest = picked(filtered(rows.len(), |row| known(&arithmetic, row)));
            if at == 0 {
                assert!(rest.len() > faultless.len() + count / 20, "{} of {count} rows", rest.len());
                assert_values(scope, &[], &arithmetic, &columns(ty, &rest)).await;
            }
        }
    }
}

/// Bits of numbers that are not negative and of NaNs, of which many have roots close to a tie or are close to squares; 240,000 a type.
fn radicands(ty: ValueType, rng: &mut Rng) -> Vec<u64> {
    let (fraction, exponent) = if ty == Float32 { (23, 8) } else { (52, 11) };
    let (sign, infinity) = (1u64 << (fraction + exponent), ((1u64 << exponent) - 1) << fraction);
    let mut all: Vec<u64> = vec![
        0,
        sign,
        1,
        2,
        3,
        infinity,
        infinity - 1,
        infinity + 1,
        sign | (infinity + 1),
        (1 << fraction) - 1,
        1 << fraction,
    ];
    for _ in 0..60_000 {
        let any = rng.next() & (sign - 1);
        all.extend([any, any >> rng.below(fraction + exponent)]);
        // A root of few bits, and one between two neighbours: the leading bits of its square, and of those around it.
        let short = u128::from(rng.next() >> (64 - fraction / 2));
        let tie = u128::from(rng.next() >> (64 - fraction) | 1 << fraction) << 1 | 1;
        for root in [short, tie] {
            let square = root * root;
            let length = 128 - square.leading_zeros() as usize;
            let top = if length > fraction + 1 {
                square >> (length - fraction - 1)
            } else {
                square << (fraction + 1 - length)
            };
            let top = (top as u64).wrapping_add(rng.next() % 3).wrapping_sub(1) & ((1 << fraction) - 1);
            all.push(((rng.next() << fraction) & infinity) | top);
        }
    }
    all
}

/// Against the host's own root.
#[tokio::test]
async fn square_roots_on_the_device() {
    let scope = scope(&device());
    for ty in FLOATS {
        let bits = radicands(ty, &mut Rng::new(41));
        let root = |bits: &u64| match ty {
            Float32 => u64::from(f32::from_bits(*bits as u32).sqrt().to_bits()),
            _ => f64::from_bits(*bits).sqrt().to_bits(),
        };
        let nan = |bits: &u64| {
            f64::from_bits(*bits).is_nan() || ty == Float32 && f32::from_bits(*bits as u32).is_nan()
        };
        let bits: Vec<u64> = bits.into_iter().filter(|bits| NAN_BITS_KNOWN || !nan(bits)).collect();
        let array = |bits: Vec<u64>| {
            let values: Vec<Scalar> = bits.into_iter().map(|bits| Some(bits.into())).collect();
            array_of(ty, &values).expect("array")
        };
        let segments = [
            segment(&scope, &[array(bits.clone())], bits.len()).await.expect("upload"),
            segment(&scope, &[array(vec![1, if ty == Float32 { 1 << 31 | 1 } else { 1 << 63 | 1 }])], 2)
                .await
                .expect("upload"),
        ];
        let outputs = [unary(Sqrt, ty)];
        let answers = select(&scope, &Program::default(), &outputs, &segments).await.expect("select");
        assert!(!answers[0].fault && answers[1].fault, "of negative numbers only");
        let want = array(bits.iter().map(root).collect());
        for (row, bits) in bits.iter().enumerate() {
            let (got, want) = (answers[0].outputs[0].slice(row, 1), want.slice(row, 1));
            assert_eq!(got.to_data(), want.to_data(), "the root of {bits:x}");
        }
    }
}

/// All of them, against what DataFusion makes of them.
#[tokio::test]
async fn halves_widened_on_the_device() {
    let scope = scope(&device());
    let halves: Vec<Scalar> = (0..1i128 << 16).map(Some).chain([None]).collect();
    let data = [array_of(Float16, &halves).expect("array")];
    let outputs = FLOATS.map(|ty| to(ty, Float16, false));
    for output in &outputs {
        assert_eq!(oracle::compare(output, 0, &[], &data), Vec::<usize>::new(), "a fault");
    }
    assert_values(&scope, &[], &outputs, &data).await;
}

#[tokio::test]
async fn integers_to_floats_on_the_device() {
    let scope = scope(&device());
    let mut rng = Rng::new(7);
    let count = size(&scope);
    let types: Vec<ValueType> = INTEGERS.into_iter().chain([Boolean]).collect();
    let data: Vec<ArrayRef> = types
        .iter()
        .map(|&ty| {
            let mut values: Vec<Scalar> = edges(ty).into_iter().map(Some).collect();
            // All lengths, and patterns that round up into the next power of two.
            values.resize_with(count, || match ty {
                Int64 | UInt64 if rng.one_in(2) => {
                    let length = rng.below(64);
                    let ones = u64::MAX >> length;
                    let v = if rng.one_in(2) { ones ^ (rng.next() & 0xfff) } else { rng.next() >> length };
                    Some(if ty == Int64 { i128::from(v as i64) } else { v.into() })
                }
                _ => (!rng.one_in(10)).then(|| value(ty, &mut rng, 0)),
            });
            array_of(ty, &values).expect("array")
        })
        .collect();
    for target in FLOATS {
        let cast = |(at, &ty)| call(Cast { safe: false }, vec![col(at, ty)], target);
        let outputs: Vec<Arc<Expr>> = types.iter().enumerate().map(cast).collect();
        assert_values(&scope, &[], &outputs, &data).await;
    }
}

/// Faults row by row, each in a segment of its own: as often as in the twin, and never under NULL.
#[tokio::test]
async fn faults_on_the_device() {
    let scope = scope(&device());
    for ty in FLOATS {
        let mut exprs = [Add, Div, Rem].map(|f| binary(f, ty)).to_vec();
        exprs.extend([Floor, Trunc].map(|f| unary(f, ty)));
        exprs.extend([Int8, Int32, UInt32, Int64, UInt64].map(|int| to(int, ty, false)));
        for (number, expr) in exprs.iter().enumerate() {
            let mut rng = Rng::new(40 + number as u64);
            let mut rows = rows(ty, 3_000, 5, &mut rng);
            // Infinities and NaNs with each other.
            let special: Vec<i128> = corners(ty).into_iter().rev().take(10).collect();
            rows.extend(special.iter().flat_map(|&a| special.iter().map(move |&b| (Some(a), Some(b)))));
            let all = columns(ty, &rows);
            let (mut good, mut bad): (Vec<usize>, Vec<usize>) =
                (0..rows.len()).partition(|&row| twin(expr, &[], &all, row).is_ok());
            assert!(bad.len() > 8 && good.len() > 100, "{expr:?}: {} faults", bad.len());
            good.truncate(30);
            let skip = bad.len() / 30;
            bad = bad.into_iter().step_by(skip.max(1)).collect();
            let mut segments = vec![];
            for row in good.iter().chain(&bad) {
                segments.push(segment(&scope, &columns(ty, &rows[*row..=*row]), 1).await.expect("upload"));
            }
            let answers = select(&scope, &Program::default(), &[Arc::clone(expr)], &segments).await;
            for (row, answer) in good.iter().chain(&bad).zip(answers.expect("select")) {
                assert_eq!(answer.fault, bad.contains(row), "{expr:?} of {:x?}", rows[*row]);
            }
        }
    }
}

#[test]
fn what_is_not_known_is_refused() {
    let refused = |function, args: &[ValueType], ty| FloatFn::check(function, args, ty).is_err();
    assert!(refused(Add, &[Float32, Float64], Float64));
    assert!(refused(Add, &[Int32, Int32], Int32));
    assert!(refused(Add, &[Float64], Float64));
    assert!(refused(Floor, &[dec(7, 2)], dec(7, 2)));
    assert!(refused(IsNan, &[Float64], Float64));
    assert!(refused(Cast { safe: false }, &[Float64], Float64));
    assert!(refused(Cast { safe: false }, &[Int64], Int32));
    assert!(refused(Cast { safe: true }, &[Float64], dec(7, 2)));
    assert!(refused(Cast { safe: true }, &[Float64], Date32));
}

/// All of them pass naga without a device, with and without NULLs.
#[test]
fn shaders_are_valid() {
    let caps = DeviceCaps::for_tests();
    let shape = |index, ty: ValueType, nullable| {
        let repr = if ty == Boolean { ColumnRepr::Bits } else { ColumnRepr::Arrow };
        ColumnShape { index, ty, repr, nullable, magnitude: MagnitudeBits(128), packed: false }
    };
    let check = |outputs: &[Arc<Expr>], shapes: &[ColumnShape], params: Vec<(ValueType, Scalar)>| {
        let program = Program { selection: None, params };
        for shader in select_shaders(&caps, &program, outputs, shapes).expect("shaders") {
            // An adapter may have no floats of 64 bits, and its own of 32 bits are not to be trusted.
            let code = shader.wgsl.lines().filter_map(|line| line.split("//").next());
            assert!(
                !code.clone().any(|line| line.contains("f64") || line.contains("f32")),
                "{}",
                shader.wgsl
            );
            validate(&shader);
        }
    };
    for ty in FLOATS {
        for nullable in [false, true] {
            let shapes = [shape(0, ty, nullable), shape(1, ty, nullable)];
            let mut all = everything(ty);
            all.extend(INTEGERS.map(|int| to(int, ty, false)));
            check(&all, &shapes, vec![factor(ty, 10.0)]);
            let from = INTEGERS.into_iter().chain([Boolean]).enumerate();
            let (shapes, casts): (Vec<ColumnShape>, Vec<Arc<Expr>>) = from
                .map(|(at, int)| {
                    (shape(at, int, nullable), call(Cast { safe: false }, vec![col(at, int)], ty))
                })
                .unzip();
            check(&casts, &shapes, vec![]);
        }
    }
}
