//! FLOAT columns against DOUBLE literals.

use arrow::array::{ArrayRef, Float32Array, RecordBatch};

use super::super::compare::single_bound;
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

#[test]
fn single_against_double_agrees_with_datafusion() {
    let array: ArrayRef = Arc::new(Float32Array::from(singles()));
    let batch = RecordBatch::try_from_iter([("x", array)]).unwrap();
    let x = || col("x", &batch.schema()).unwrap();
    let evaluate = |left, op, right| {
        let expr = BinaryExpr::new(left, op, right);
        expr.evaluate(&batch).unwrap().into_array(batch.num_rows()).unwrap()
    };
    let bounds =
        [0.1, -0.1, 0.0, -0.0, 1.0, 1e-60, -1e-60, 1e300, -1e300, f64::INFINITY, 16_777_217.0, 3.5e38];
    let operators = [
        (Operator::Eq, CompareOp::Eq),
        (Operator::NotEq, CompareOp::NotEq),
        (Operator::Lt, CompareOp::Lt),
        (Operator::LtEq, CompareOp::LtEq),
        (Operator::Gt, CompareOp::Gt),
        (Operator::GtEq, CompareOp::GtEq),
    ];
    for bound in bounds {
        for (operator, op) in operators {
            let cast = Arc::new(CastExpr::new(x(), DataType::Float64, None));
            let wanted = evaluate(cast, operator, lit(bound));
            let got = match single_bound(op, bound) {
                Some((op, bound)) => {
                    let operator = operators.iter().find(|(_, o)| *o == op).unwrap().0;
                    evaluate(x(), operator, lit(bound))
                }
                None if op == CompareOp::Eq => evaluate(x(), Operator::NotEq, x()),
                None => evaluate(x(), Operator::Eq, x()),
            };
            assert_eq!(&got, &wanted, "x {operator} {bound:e}");
        }
    }
}

#[test]
fn single_against_double_is_lowered_on_singles() {
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
    let (never, params) = taken("f32 = 0.1");
    assert_eq!(*never, Expr::Compare { op: CompareOp::NotEq, left: column("f32"), right: column("f32") });
    assert!(params.sources.is_empty());
}
