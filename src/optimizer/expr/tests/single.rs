//! Columns of halves and singles against wider literals.

use arrow::array::{ArrayRef, AsArray, Float16Array, Float32Array, RecordBatch};
use arrow::compute::{and, not};
use arrow::datatypes::{ArrowPrimitiveType, Float16Type};

use super::super::compare::{Narrow, narrow_bounds};
use super::*;

/// Singles at the edges: zeros, denormals, infinities, NaNs of both signs, and neighbours of the bounds below.
fn singles() -> Vec<f32> {
    let tenth = 0.1f32;
    vec![
        0.0,
        -0.0,
        f32::from_bits(1),
        -f32::from_bits(1),
        f32::MIN_POSITIVE,
        tenth,
        tenth.next_up(),
        tenth.next_down(),
        -tenth,
        1.0,
        f32::MAX,
        f32::MIN,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        -f32::NAN,
        16_777_216.0,
        16_777_218.0,
    ]
}

/// Every half, and the singles; the same values in a column of their type.
fn narrow_columns() -> [(Narrow, ArrayRef); 2] {
    let halves = (0..=u16::MAX).map(<Float16Type as ArrowPrimitiveType>::Native::from_bits);
    [
        (Narrow::Half, Arc::new(Float16Array::from_iter_values(halves))),
        (Narrow::Single, Arc::new(Float32Array::from(singles()))),
    ]
}

#[test]
fn narrow_floats_against_literals_agree_with_datafusion() {
    let bounds = [
        0.1,
        -0.1,
        0.0,
        -0.0,
        1.0,
        1e-60,
        -1e-60,
        1e300,
        -1e300,
        f64::INFINITY,
        f64::NEG_INFINITY,
        16_777_217.0,
        3.5e38,
        65_504.0,
        65_519.0,
        65_520.0,
        -65_536.0,
        3e-8,
        6.1e-5,
    ];
    let operators = [
        (Operator::Eq, CompareOp::Eq),
        (Operator::NotEq, CompareOp::NotEq),
        (Operator::Lt, CompareOp::Lt),
        (Operator::LtEq, CompareOp::LtEq),
        (Operator::Gt, CompareOp::Gt),
        (Operator::GtEq, CompareOp::GtEq),
    ];
    for (ty, array) in narrow_columns() {
        let batch = RecordBatch::try_from_iter([("x", array)]).unwrap();
        let x = || col("x", &batch.schema()).unwrap();
        let evaluate = |left, op, right| {
            let expr = BinaryExpr::new(left, op, right);
            let values = expr.evaluate(&batch).unwrap().into_array(batch.num_rows()).unwrap();
            values.as_boolean().clone()
        };
        for bound in bounds {
            for (operator, op) in operators {
                let cast = Arc::new(CastExpr::new(x(), DataType::Float64, None));
                let wanted = evaluate(cast, operator, lit(bound));
                let sides = narrow_bounds(op, ty, bound).into_iter().flatten().map(|(op, rank)| {
                    let operator = operators.iter().find(|(_, o)| *o == op).unwrap().0;
                    evaluate(x(), operator, lit(ty.literal(rank).0))
                });
                let got = sides.reduce(|a, b| and(&a, &b).unwrap()).unwrap();
                let got = if op == CompareOp::NotEq { not(&got).unwrap() } else { got };
                assert_eq!(got, wanted, "{ty:?} {operator} {bound:e}");
            }
        }
    }
}

#[test]
fn narrow_floats_against_literals_are_lowered_on_their_type() {
    let (expr, params) = taken("f32 > 0.1");
    let Expr::Compare { op: CompareOp::GtEq, left, right } = expr.as_ref() else { panic!("{expr:?}") };
    assert_eq!(*left, column("f32"));
    assert_eq!(right.value_type(), ValueType::Float32);
    // 0.1 lies between two singles; the nearest lies above it.
    assert_eq!(
        params.resolve().unwrap().values,
        vec![(ValueType::Float32, Some(i128::from(0.1f32.to_bits())))]
    );
    let (mirrored, _) = taken("0.1 < f32");
    assert_eq!(mirrored, expr);
    // Whatever the literal, the expression is the same.
    for (one, others) in [
        ("f32 > 0.1", ["f32 > 0.5", "f32 > -0.0", "f32 > 1e300"]),
        ("f32 < 0.1", ["f32 < 0.5", "f32 < 0.0", "f32 < -1e300"]),
        ("f32 = 0.1", ["f32 = 0.5", "f32 = 0.0", "f32 = 1e300"]),
        ("f32 <> 0.1", ["f32 <> 0.5", "f32 <> 0.0", "f32 <> 1e300"]),
    ] {
        let expr = taken(one).0;
        for other in others {
            assert_eq!(taken(other).0, expr, "{other}");
        }
    }
}
