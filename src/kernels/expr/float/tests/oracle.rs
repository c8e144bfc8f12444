//! The twin against DataFusion.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef};
use datafusion::config::ConfigOptions;
use datafusion::functions::math;
use datafusion::logical_expr::{Operator, ScalarUDF};
use datafusion::physical_expr::expressions::{BinaryExpr, CastExpr, Column, TryCastExpr, lit};
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};

use crate::kernels::expr::INVALID_NAN;

use super::*;

fn column(index: usize) -> Arc<dyn PhysicalExpr> {
    Arc::new(Column::new(&format!("c{index}"), index))
}

/// DataFusion's expression for `expr`; a factor is ten to this power.
fn physical(expr: &Expr, places: i32, data: &[ArrayRef]) -> Arc<dyn PhysicalExpr> {
    let Expr::Call { function: Function::Float(function), ty, .. } = expr else { panic!("{expr:?}") };
    let operator = |op| Arc::new(BinaryExpr::new(column(0), op, column(1))) as Arc<dyn PhysicalExpr>;
    let schema = batch(data, data[0].len()).schema();
    let named = |udf: Arc<ScalarUDF>, args| {
        let options = Arc::new(ConfigOptions::default());
        Arc::new(ScalarFunctionExpr::try_new(udf, args, &schema, options).expect("function")) as _
    };
    match function {
        Add => operator(Operator::Plus),
        Sub => operator(Operator::Minus),
        Mul => operator(Operator::Multiply),
        Div => operator(Operator::Divide),
        Rem => operator(Operator::Modulo),
        Abs => named(math::abs(), vec![column(0)]),
        Signum => named(math::signum(), vec![column(0)]),
        Floor => named(math::floor(), vec![column(0)]),
        Ceil => named(math::ceil(), vec![column(0)]),
        Trunc => named(math::trunc(), vec![column(0)]),
        Round => named(math::round(), vec![column(0)]),
        Sqrt => named(math::sqrt(), vec![column(0)]),
        TruncBy => named(math::trunc(), vec![column(0), lit(i64::from(places))]),
        RoundBy => named(math::round(), vec![column(0), lit(places)]),
        IsNan => named(math::isnan(), vec![column(0)]),
        IsZero => named(math::iszero(), vec![column(0)]),
        Nanvl => named(math::nanvl(), vec![column(0), column(1)]),
        Cast { safe: false } => Arc::new(CastExpr::new(column(0), arrow_type(*ty), None)),
        Cast { safe: true } => Arc::new(TryCastExpr::new(column(0), arrow_type(*ty))),
    }
}

/// The twin and DataFusion on rows where the twin has no fault. Gives how many had one.
pub(super) fn compare(
    expr: &Arc<Expr>,
    places: i32,
    params: &[(ValueType, Scalar)],
    data: &[ArrayRef],
) -> Vec<usize> {
    let count = data[0].len();
    let (good, bad): (Vec<usize>, Vec<usize>) =
        (0..count).partition(|&row| twin(expr, params, data, row).is_ok());
    let picked: Vec<ArrayRef> = data.iter().map(|column| take(column, &good)).collect();
    let result = physical(expr, places, &picked).evaluate(&batch(&picked, good.len()));
    let array = result.and_then(|value| value.into_array(good.len())).expect("evaluate");
    for (at, row) in good.iter().enumerate() {
        let got = reference::expr::value_at(&array, expr.value_type(), at).expect("value");
        let expected = twin(expr, params, data, *row).expect("no fault");
        let inputs: Vec<String> = data.iter().map(|column| shown(column, *row)).collect();
        assert_eq!(got, expected, "{expr:?}, {places}, of {inputs:?}: DataFusion gives {got:x?}");
    }
    bad
}

fn take(column: &ArrayRef, rows: &[usize]) -> ArrayRef {
    let rows = arrow::array::UInt64Array::from_iter_values(rows.iter().map(|&row| row as u64));
    arrow::compute::take(column, &rows, None).expect("take")
}

#[test]
fn twin_against_datafusion() {
    for ty in FLOATS {
        let mut rng = Rng::new(3);
        let rows = rows(ty, 20_000, 5, &mut rng);
        let data = columns(ty, &rows);
        for expr in everything(ty) {
            if matches!(expr.as_ref(), Expr::Negate(_)) {
                continue;
            }
            let Expr::Call { function: Function::Float(function), .. } = expr.as_ref() else {
                panic!("{expr:?}")
            };
            let places: &[i32] =
                if matches!(function, TruncBy | RoundBy) { &[-3, -1, 0, 1, 2, 7, 30] } else { &[0] };
            for &places in places {
                let double = 10f64.powi(places);
                let single = if *function == TruncBy { 10f32.powi(places) } else { double as f32 };
                let bits = if ty == Float32 { single.to_bits().into() } else { double.to_bits().into() };
                let faults = compare(&expr, places, &[(ty, Some(bits))], &data).len();
                // What is left to the CPU is rare, but for remainders of numbers that are far apart.
                let most = if *function == Rem { rows.len() / 2 } else { rows.len() / 20 };
                assert!(faults < most, "{expr:?}: {faults} of {} rows have a fault", rows.len());
            }
        }
    }
}

/// CAST raises exactly where the twin has a fault.
#[test]
fn casts_raise_in_datafusion() {
    for ty in FLOATS {
        let rows = rows(ty, 2_000, 5, &mut Rng::new(5));
        let data = columns(ty, &rows);
        for int in INTEGERS {
            let expr = to(int, ty, false);
            let faults = compare(&expr, 0, &[], &data);
            assert!(faults.len() > 100, "{expr:?}: {} faults", faults.len());
            for row in faults {
                let one: Vec<ArrayRef> = data.iter().map(|column| column.slice(row, 1)).collect();
                let result = physical(&expr, 0, &one).evaluate(&batch(&one, 1));
                assert!(result.is_err(), "{expr:?} of {:x?}: no error", rows[row]);
            }
        }
    }
}

/// Roots of what has one, and an error for every negative number.
#[test]
fn square_roots_against_datafusion() {
    for ty in FLOATS {
        let root = unary(Sqrt, ty);
        let rows = rows(ty, 20_000, 10, &mut Rng::new(31));
        let data = columns(ty, &rows);
        let bad = compare(&root, 0, &[], &data);
        assert!(bad.len() > rows.len() / 5, "{} faults", bad.len());
        for row in bad.into_iter().take(200) {
            let one: Vec<ArrayRef> = data.iter().map(|column| take(column, &[row])).collect();
            let answer = physical(&root, 0, &one).evaluate(&batch(&one, 1));
            let error = answer.err().map(|error| error.to_string()).unwrap_or_default();
            assert!(error.contains("square root of a negative number"), "{:?}: {error}", rows[row]);
        }
    }
}

#[test]
fn integers_to_floats_against_datafusion() {
    let mut rng = Rng::new(11);
    for from in INTEGERS.into_iter().chain([Boolean]) {
        let mut values: Vec<Scalar> = edges(from).into_iter().map(Some).collect();
        values.resize_with(5_000, || (!rng.one_in(20)).then(|| value(from, &mut rng, 1)));
        let data = [array_of(from, &values).expect("array")];
        for target in FLOATS {
            let expr = to(target, from, false);
            assert_eq!(compare(&expr, 0, &[], &data), Vec::<usize>::new());
        }
    }
}

/// The rules on NaN that the module states hold for this processor, as DataFusion's kernels use it.
#[test]
fn nan_bits_of_this_processor() {
    if !NAN_BITS_KNOWN {
        return;
    }
    for (ty, quiet) in [(Float32, 1i128 << 22), (Float64, 1 << 51)] {
        let width = if ty == Float32 { 32 } else { 64 };
        let (infinity, one) =
            if ty == Float32 { (0x7f80_0000, 0x3f80_0000) } else { (0x7ff << 52, 0x3ff << 52) };
        let sign = 1i128 << (width - 1);
        let negative = i128::from(INVALID_NAN >> 63) << (width - 1);
        let invalid = negative | infinity | quiet;
        for (function, a, b) in [
            (Add, infinity, infinity | sign),
            (Sub, infinity, infinity),
            (Mul, infinity, 0),
            (Mul, sign, infinity),
            (Div, 0, 0),
            (Div, sign, 0),
            (Div, infinity, infinity | sign),
        ] {
            let data = columns(ty, &[(Some(a), Some(b))]);
            assert_eq!(twin(&binary(function, ty), &[], &data, 0), Ok(Some(invalid)), "{function:?}");
            assert!(compare(&binary(function, ty), 0, &[], &data).is_empty());
        }
        let nan = infinity | sign | 77;
        for function in [Add, Sub, Mul, Div] {
            for (a, b) in [(nan, one), (one, nan), (nan, nan), (nan, nan | quiet), (nan, infinity)] {
                let data = columns(ty, &[(Some(a), Some(b))]);
                assert_eq!(twin(&binary(function, ty), &[], &data, 0), Ok(Some(nan | quiet)), "{function:?}");
                assert!(compare(&binary(function, ty), 0, &[], &data).is_empty());
            }
            let data = columns(ty, &[(Some(nan), Some(nan ^ sign))]);
            assert_eq!(twin(&binary(function, ty), &[], &data, 0), Err(Fault), "{function:?}");
        }
    }
}
