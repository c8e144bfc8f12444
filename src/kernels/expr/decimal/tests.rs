//! Decimal functions on the device against their twins.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef};

use crate::kernels::expr::widths::{pow10, value_bits};
use crate::kernels::expr::{ArithOp, Expr, Function, Scalar, ValueType};
use crate::kernels::program::{ColumnShape, Program};
use crate::kernels::reference;
use crate::kernels::select::{SelectResult, array_of, select, select_shaders};
use crate::kernels::testkit::*;
use crate::memory::{DeviceCaps, LaunchScope};

use super::*;
use ValueType::*;

/// A function over columns 0, 1, ... of these types, and the parameters after them.
fn call(function: DecimalFn, args: &[ValueType], ty: ValueType) -> Arc<Expr> {
    let halves = match function {
        DecimalFn::Round { scaled: true } => 4,
        DecimalFn::Round { .. } | DecimalFn::Truncate => 2,
        _ => 0,
    };
    let columns = args.iter().enumerate().map(|(at, &ty)| col(at, ty));
    let args: Vec<_> = columns.chain((0..halves).map(|slot| param(slot, UInt64))).collect();
    let types: Vec<_> = args.iter().map(|arg| arg.value_type()).collect();
    function.check(&types, ty).expect("known");
    Arc::new(Expr::Call { function: Function::Decimal(function), args, ty })
}

/// Numbers as parameters in two halves.
fn program(numbers: &[u128]) -> Program {
    let halves = numbers.iter().flat_map(|number| [*number as u64, (number >> 64) as u64]);
    Program { selection: None, params: halves.map(|half| (UInt64, Some(half.into()))).collect() }
}

/// Values around zero, powers of ten, their halves and powers of two, and random ones of every length.
fn values(ty: ValueType, rng: &mut Rng) -> Vec<Scalar> {
    let mut values = edges(ty);
    let Some(decimal) = DecimalType::of(ty) else {
        values.extend((0..150).map(|_| value(ty, rng, 0)));
        match ty {
            Float32 => values.extend(doubles(rng).map(|v| i128::from((v as f32).to_bits()))),
            Float64 => values.extend(doubles(rng).map(|v| i128::from(v.to_bits()))),
            _ => {}
        }
        return values.into_iter().map(Some).chain([None]).collect();
    };
    for k in 0..=decimal.max_digits() {
        let unit = pow10(k).unwrap_or(1);
        for v in [unit, unit / 2, unit / 2 * 3] {
            values.extend([v - 1, v, v + 1, -v - 1, -v, 1 - v]);
        }
    }
    values.extend((0..126).flat_map(|k| [1i128 << k, (1i128 << k) - 1, -(1i128 << k)]));
    values.extend((0..200).map(|_| value(dec(38, 0), rng, 0) >> rng.below(120)));
    // Values of a narrow column have no more digits than declared.
    let narrow = decimal.width == 128 && decimal.precision <= 18;
    values.retain(|v| decimal.holds(*v) && (!narrow || decimal.has_digits(*v)));
    values.into_iter().map(Some).chain([None]).collect()
}

/// Doubles of every size that casts to decimals meet, near ties and beyond the range.
fn doubles(rng: &mut Rng) -> impl Iterator<Item = f64> + use<> {
    let mut values = vec![];
    for exponent in -60..130 {
        let v = (1.0 + (rng.next() >> 12) as f64 / 4.5e15) * 2f64.powi(exponent);
        values.extend([v, -v, v.floor() + 0.5, v.round(), -(v.floor() + 0.5).next_down()]);
    }
    values.extend([0.5, 0.5f64.next_down(), 1.005, 2.675, 1e37, 1e38, 99_999.995, 1.7e38, 1.8e38]);
    values.extend([
        f64::MIN_POSITIVE,
        f64::MIN_POSITIVE / 8.0,
        f64::MAX,
        f64::NAN,
        f64::INFINITY,
        1e-38,
        1e-39,
    ]);
    values.into_iter()
}

/// Columns for the operands: all values of one, or many pairs.
fn operands(types: &[ValueType], rng: &mut Rng) -> Vec<Vec<Scalar>> {
    match types {
        [one] => vec![values(*one, rng)],
        [a, b] => {
            let (left, right) = (values(*a, rng), values(*b, rng));
            let (mut x, mut y) = edge_pairs(*a, *b);
            for _ in 0..1500 {
                x.push(left[rng.below(left.len())]);
                y.push(right[rng.below(right.len())]);
            }
            vec![x, y]
        }
        _ => vec![],
    }
}

fn arrays(types: &[ValueType], columns: &[Vec<Scalar>], rows: &[usize]) -> Vec<ArrayRef> {
    let pick = |column: &Vec<Scalar>| rows.iter().map(|&row| column[row]).collect::<Vec<_>>();
    types.iter().zip(columns).map(|(&ty, column)| array_of(ty, &pick(column)).expect("array")).collect()
}

async fn on_device(
    scope: &LaunchScope,
    program: &Program,
    expr: &Arc<Expr>,
    data: &[(Vec<ArrayRef>, usize)],
) -> Vec<SelectResult> {
    let mut segments = vec![];
    for (columns, rows) in data {
        segments.push(segment(scope, columns, *rows).await.expect("upload"));
    }
    select(scope, program, &[Arc::clone(expr)], &segments).await.expect("select")
}

/// The rows of small enough values as one segment, and some of those that fault as segments of their own.
async fn compare(
    scope: &LaunchScope,
    (function, types, ty): (DecimalFn, &[ValueType], ValueType),
    numbers: &[u128],
    bits: u8,
) -> (usize, usize) {
    let expr = call(function, types, ty);
    let program = program(numbers);
    let what = format!("{function:?} of {types:?} as {ty:?}, {numbers:?}, {bits} bits");
    let columns = operands(types, &mut Rng::new(u64::from(bits)));
    let small = |row: &usize| columns.iter().all(|c| c[*row].is_none_or(|v| value_bits(v) <= bits));
    let rows: Vec<usize> = (0..columns[0].len()).filter(small).collect();
    let whole = arrays(types, &columns, &rows);
    let faulty = |at: &usize| reference::eval(&expr, &program.params, &whole, *at).is_err();
    let (faults, good): (Vec<usize>, Vec<usize>) = (0..rows.len()).partition(|at| faulty(at));
    assert!(faults.is_empty() || expr.may_fault(), "{what} says that it cannot fault");
    let rows_of = |at: &[usize]| at.iter().map(|&at| rows[at]).collect::<Vec<_>>();
    let mut data = vec![(arrays(types, &columns, &rows_of(&good)), good.len())];
    let step = faults.len().div_ceil(12).max(1);
    data.extend(faults.iter().step_by(step).map(|&at| (arrays(types, &columns, &rows_of(&[at])), 1)));
    let device = on_device(scope, &program, &expr, &data).await;
    for (at, (result, (columns, rows))) in device.iter().zip(&data).enumerate() {
        assert_eq!(result.fault, at > 0, "{what}, segment {at}: {columns:?}");
        if at == 0 {
            let twin = reference::select(&program, &[Arc::clone(&expr)], columns, *rows).expect("twin");
            let (got, want) = (&result.outputs[0], &twin.outputs[0]);
            for row in 0..*rows {
                let here = columns.iter().map(|c| c.slice(row, 1)).collect::<Vec<_>>();
                assert_eq!(
                    got.slice(row, 1).as_ref(),
                    want.slice(row, 1).as_ref(),
                    "{what}, row {row}: {here:?}"
                );
            }
            assert_eq!(got.null_count(), want.null_count(), "{what}");
        }
    }
    (good.len(), faults.len())
}

async fn compare_all(cases: &[(DecimalFn, Vec<ValueType>, ValueType)], sizes: &[u8]) -> (usize, usize) {
    let scopes = CHECKS.map(|checks| scope(&with_checks(checks)));
    let mut sums = (0, 0);
    for (at, (function, types, ty)) in cases.iter().enumerate() {
        for (size, &bits) in sizes.iter().enumerate() {
            let scope = &scopes[(at + size) % scopes.len()];
            let (good, faults) = compare(scope, (*function, types, *ty), &[], bits).await;
            sums = (sums.0 + good, sums.1 + faults);
        }
    }
    sums
}

#[tokio::test]
async fn division_and_remainder() {
    let mut cases = vec![];
    for (a, b) in [
        (dec(15, 2), dec(7, 2)),
        (dec(38, 0), dec(38, 10)),
        (dec(20, 3), dec(12, 6)),
        (dec(10, 0), dec(5, -3)),
    ] {
        let (Decimal { precision: p, scale: s }, Decimal { precision: q, scale: t }) = (a, b) else {
            continue;
        };
        let scale = (s + 4).min(38);
        cases.push((DecimalFn::Divide, vec![a, b], dec((p as i8 + scale - s + t).clamp(1, 38) as u8, scale)));
        let wide = s.max(t);
        let digits = wide + (p as i8 - s).min(q as i8 - t);
        cases.push((DecimalFn::Remainder, vec![a, b], dec((digits as u8).min(38), wide)));
    }
    let (good, faults) = compare_all(&cases, &[30, 100, 128]).await;
    assert!(good > 20_000 && faults > 1000, "{good} results, {faults} faults");
}

#[tokio::test]
async fn rounding_functions() {
    let types = [dec(15, 2), dec(38, 10), dec(38, 38), dec(9, -2)];
    let mut cases = vec![];
    for ty in types {
        for function in [DecimalFn::Absolute, DecimalFn::Negate, DecimalFn::Floor, DecimalFn::Ceil] {
            cases.push((function, vec![ty], ty));
        }
    }
    let (good, faults) = compare_all(&cases, &[40, 128]).await;
    assert!(good > 5_000 && faults > 50, "{good} results, {faults} faults");
}

/// `round` and `trunc` to many places by few kernels: units and factors are data.
#[tokio::test]
async fn rounding_to_places() {
    let power = |digits: u32| 10u128.pow(digits);
    let wide = [dec(15, 2), dec(38, 10), dec(9, -2), dec(38, 0)];
    let narrow = [Decimal32 { precision: 9, scale: 0 }, Decimal64 { precision: 18, scale: 3 }];
    let scopes = CHECKS.map(|checks| scope(&with_checks(checks)));
    let (mut good, mut faults) = (0, 0);
    for (at, &ty) in wide.iter().chain(&narrow).enumerate() {
        let most = DecimalType::of(ty).map_or(0, |ty| u32::from(ty.precision));
        for bits in [40, 63, 128] {
            let scope = &scopes[(at + usize::from(bits)) % scopes.len()];
            let all: Vec<u128> = [0, 1, 2, 7, most - 1, most].into_iter().map(power).collect();
            let mut compiled = vec![];
            for (function, numbers) in all
                .iter()
                .flat_map(|&unit| {
                    let scaled = [0, 1, unit, unit.div_ceil(10)].map(|factor| vec![unit, factor]);
                    let scaled = scaled.map(|numbers| (DecimalFn::Round { scaled: true }, numbers));
                    let plain = (DecimalFn::Round { scaled: false }, vec![unit]);
                    scaled.into_iter().chain([plain, (DecimalFn::Truncate, vec![unit])])
                })
                .chain([(DecimalFn::Truncate, vec![u128::MAX])])
            {
                let sums = compare(scope, (function, &[ty], ty), &numbers, bits).await;
                (good, faults) = (good + sums.0, faults + sums.1);
                compiled.push(scope.stats.pipelines_compiled.load(std::sync::atomic::Ordering::Relaxed));
            }
            // Small values never fault, so that the columns are the same.
            if bits == 40 && at < wide.len() {
                assert_eq!(compiled.last(), compiled.get(5), "{ty:?}: {compiled:?}");
            }
        }
    }
    assert!(good > 50_000 && faults > 100, "{good} results, {faults} faults");
}

#[tokio::test]
async fn casts_between_decimals_and_integers() {
    let mut cases = vec![];
    for safe in [false, true] {
        for (from, to) in [
            (dec(15, 2), dec(10, 0)),
            (dec(38, 10), dec(12, 2)),
            (dec(38, 38), dec(5, -3)),
            (dec(38, 19), dec(38, 0)),
            (dec(20, 4), dec(38, 2)),
            (dec(15, 2), dec(15, 4)),
            (dec(38, 0), dec(38, 38)),
            (dec(7, 2), dec(5, 2)),
        ] {
            cases.push((DecimalFn::Cast { safe }, vec![from], to));
        }
        for (from, to) in
            [(Int8, dec(3, 1)), (Int64, dec(18, -2)), (UInt64, dec(38, 30)), (UInt32, dec(9, 2))]
        {
            cases.push((DecimalFn::Cast { safe }, vec![from], to));
        }
        for to in [Int8, Int32, Int64, UInt16, UInt64] {
            cases.push((DecimalFn::ToInteger { safe }, vec![dec(38, 10)], to));
        }
        cases.push((DecimalFn::ToInteger { safe }, vec![dec(15, 2)], Int32));
        cases.push((DecimalFn::ToInteger { safe }, vec![dec(15, -4)], Int64));
        cases.push((DecimalFn::ToInteger { safe }, vec![dec(38, 0)], UInt64));
    }
    let (good, faults) = compare_all(&cases, &[40, 128]).await;
    assert!(good > 20_000 && faults > 1000, "{good} results, {faults} faults");
}

#[tokio::test]
async fn casts_from_and_to_floats() {
    let mut cases = vec![];
    for from in [dec(15, 2), dec(38, 0), dec(38, 10), dec(38, 38), dec(20, -20), dec(30, 23)] {
        cases.push((DecimalFn::ToFloat, vec![from], Float64));
        cases.push((DecimalFn::ToFloat, vec![from], Float32));
    }
    for to in [dec(15, 2), dec(38, 0), dec(38, 10), dec(38, 38), dec(20, -20), dec(30, 23)] {
        cases.push((DecimalFn::Cast { safe: to.eq(&dec(15, 2)) }, vec![Float64], to));
        cases.push((DecimalFn::Cast { safe: to.eq(&dec(38, 38)) }, vec![Float32], to));
    }
    let (good, faults) = compare_all(&cases, &[60, 128]).await;
    assert!(good > 10_000 && faults > 1000, "{good} results, {faults} faults");
}

/// Arrow's narrower decimals: what leaves their native types faults.
#[tokio::test]
async fn narrow_types() {
    let d32 = |precision, scale| Decimal32 { precision, scale };
    let d64 = |precision, scale| Decimal64 { precision, scale };
    let cases = [
        (DecimalFn::Arith(ArithOp::Add), vec![d32(9, 2), d32(7, 4)], d32(9, 4)),
        (DecimalFn::Arith(ArithOp::Mul), vec![d32(9, 2), d32(9, 2)], d32(9, 4)),
        (DecimalFn::Arith(ArithOp::Sub), vec![d64(18, 0), d64(18, 0)], d64(18, 0)),
        (DecimalFn::Arith(ArithOp::Mul), vec![d64(18, 2), d64(10, 2)], d64(18, 4)),
        (DecimalFn::Divide, vec![d32(9, 1), d32(5, 2)], d32(9, 5)),
        (DecimalFn::Divide, vec![d64(18, 2), d64(18, 2)], d64(18, 6)),
        (DecimalFn::Remainder, vec![d64(18, 0), d64(18, 0)], d64(18, 0)),
        (DecimalFn::Remainder, vec![d32(9, 2), d32(9, 0)], d32(9, 2)),
        (DecimalFn::Negate, vec![d32(9, 2)], d32(9, 2)),
        (DecimalFn::Negate, vec![d64(18, 2)], d64(18, 2)),
        (DecimalFn::Absolute, vec![d64(18, 2)], d64(18, 2)),
        (DecimalFn::Ceil, vec![d32(9, 9)], d32(9, 9)),
        (DecimalFn::Floor, vec![d64(18, 18)], d64(18, 18)),
        (DecimalFn::Cast { safe: false }, vec![dec(38, 4)], d32(9, 2)),
        (DecimalFn::Cast { safe: true }, vec![d64(18, 4)], d32(5, 2)),
        (DecimalFn::Cast { safe: true }, vec![d64(18, 4)], dec(20, 3)),
        (DecimalFn::Cast { safe: false }, vec![d32(9, 0)], d64(18, 4)),
        (DecimalFn::Cast { safe: true }, vec![Float64], d64(18, 4)),
        (DecimalFn::Cast { safe: true }, vec![Int64], d32(9, 1)),
        (DecimalFn::ToInteger { safe: false }, vec![d64(18, -3)], Int64),
        (DecimalFn::ToInteger { safe: true }, vec![d32(9, 1)], UInt8),
        (DecimalFn::ToFloat, vec![d64(18, 4)], Float64),
        (DecimalFn::ToFloat, vec![d32(9, 4)], Float32),
    ];
    let (good, faults) = compare_all(&cases, &[128]).await;
    assert!(good > 10_000 && faults > 1000, "{good} results, {faults} faults");
}

/// Sums and products of narrow columns take no 128-bit step where the bounds on their values exclude an overflow of 64 bits.
#[test]
fn narrow_arithmetic_stays_in_64_bits() {
    let money = dec(15, 2);
    let one_less = arith(ArithOp::Sub, param(0, dec(20, 0)), col(1, money));
    let charged = arith(ArithOp::Mul, col(0, money), one_less);
    let exprs = [
        (cast(charged, dec(38, 8)), [24, 8], 63),
        (arith(ArithOp::Mul, col(0, money), col(1, money)), [32, 16], 63),
        (negate(arith(ArithOp::Mul, col(0, money), col(1, money))), [40, 16], 63),
        (arith(ArithOp::Mul, col(0, money), col(1, money)), [50, 50], 128),
    ];
    let program = Program { selection: None, params: vec![(dec(20, 0), Some(1))] };
    for (expr, bits, class) in exprs {
        let shape = |(index, bits): (usize, u8)| ColumnShape {
            index,
            ty: money,
            repr: crate::memory::ColumnRepr::DecimalNarrow,
            nullable: true,
            magnitude: crate::memory::MagnitudeBits(bits),
            packed: false,
        };
        let shapes: Vec<ColumnShape> = bits.into_iter().enumerate().map(shape).collect();
        let shaders = select_shaders(&DeviceCaps::for_tests(), &program, &[expr], &shapes).expect("shaders");
        let wide = shaders.iter().any(|shader| shader.wgsl.contains("w_mul("));
        assert_eq!(wide, class > 63, "{bits:?}");
    }
}

#[test]
fn types_that_do_not_fit_are_refused() {
    for (function, args, ty) in [
        (DecimalFn::Divide, vec![dec(38, 0), dec(38, 38)], dec(38, 4)),
        (DecimalFn::Remainder, vec![dec(38, -2), dec(38, 38)], dec(38, 38)),
        (DecimalFn::Cast { safe: true }, vec![dec(5, -5)], dec(38, 38)),
        (DecimalFn::Cast { safe: true }, vec![Boolean], dec(5, 0)),
        (DecimalFn::ToFloat, vec![dec(5, 0)], Int32),
        (DecimalFn::ToInteger { safe: false }, vec![dec(5, 0)], Float32),
        (DecimalFn::Floor, vec![dec(5, 1)], dec(5, 0)),
        (DecimalFn::Arith(ArithOp::Mul), vec![dec(5, 1), dec(5, 1)], dec(11, 1)),
        (DecimalFn::Divide, vec![dec(5, 1)], dec(11, 1)),
        (DecimalFn::Truncate, vec![dec(5, 1)], dec(5, 1)),
        (DecimalFn::Truncate, vec![dec(5, 1), UInt64, UInt64], dec(5, 0)),
        (DecimalFn::Round { scaled: true }, vec![dec(5, 1), UInt64, UInt64], dec(5, 0)),
        (DecimalFn::Round { scaled: false }, vec![dec(5, 1), UInt64, Int64], dec(5, 0)),
    ] {
        let why = function.check(&args, ty).expect_err("refused");
        let result = format!(" as {}", ty.to_arrow());
        assert!(why.starts_with("no GPU counterpart for ") && why.ends_with(&result), "{why}");
    }
}

/// Every function passes naga without a device, at every register width.
#[test]
fn shaders_are_valid() {
    let caps = DeviceCaps::for_tests();
    let narrow = dec(15, 2);
    for (function, args, ty) in [
        (DecimalFn::Divide, vec![narrow, narrow], dec(21, 6)),
        (DecimalFn::Remainder, vec![narrow, narrow], dec(15, 2)),
        (DecimalFn::Cast { safe: true }, vec![Float32], narrow),
        (DecimalFn::Cast { safe: false }, vec![narrow], dec(3, 0)),
        (DecimalFn::ToInteger { safe: true }, vec![narrow], UInt8),
        (DecimalFn::ToFloat, vec![narrow], Float32),
        (DecimalFn::Ceil, vec![narrow], narrow),
        (DecimalFn::Round { scaled: false }, vec![narrow], dec(15, 0)),
        (DecimalFn::Round { scaled: true }, vec![narrow], dec(15, 0)),
        (DecimalFn::Truncate, vec![narrow], narrow),
    ] {
        for bits in [16, 50, 128] {
            let shape = |(index, &ty): (usize, &ValueType)| ColumnShape {
                index,
                ty,
                repr: match ty {
                    Decimal { .. } if bits == 128 => crate::memory::ColumnRepr::DecimalWide,
                    Decimal { .. } => crate::memory::ColumnRepr::DecimalNarrow,
                    _ => crate::memory::ColumnRepr::Arrow,
                },
                nullable: bits == 50,
                magnitude: crate::memory::MagnitudeBits(bits),
                packed: false,
            };
            let shapes: Vec<ColumnShape> = args.iter().enumerate().map(shape).collect();
            let expr = call(function, &args, ty);
            for shader in select_shaders(&caps, &program(&[100, 10]), &[expr], &shapes).expect("shaders") {
                validate(&shader);
            }
        }
    }
}
