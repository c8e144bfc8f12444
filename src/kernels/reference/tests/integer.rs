//! Functions of the integer family against DataFusion's own operators, casts and functions.

use datafusion::functions::math;
use datafusion::physical_expr::expressions::TryCastExpr;

use crate::kernels::expr::{IntegerFn, widths};

use super::*;

const INTEGERS: [ValueType; 8] = [Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64];
const BINARY: [IntegerFn; 7] = [
    IntegerFn::Divide,
    IntegerFn::Remainder,
    IntegerFn::BitAnd,
    IntegerFn::BitOr,
    IntegerFn::BitXor,
    IntegerFn::ShiftLeft,
    IntegerFn::ShiftRight,
];

/// The function as DataFusion would plan it.
pub(super) fn physical(
    function: IntegerFn,
    args: &[Arc<dyn PhysicalExpr>],
    ty: ValueType,
    schema: &Schema,
) -> Arc<dyn PhysicalExpr> {
    let operator = |op| {
        Arc::new(BinaryExpr::new(Arc::clone(&args[0]), op, Arc::clone(&args[1]))) as Arc<dyn PhysicalExpr>
    };
    match function {
        IntegerFn::Divide => operator(Operator::Divide),
        IntegerFn::Remainder => operator(Operator::Modulo),
        IntegerFn::BitAnd => operator(Operator::BitwiseAnd),
        IntegerFn::BitOr => operator(Operator::BitwiseOr),
        IntegerFn::BitXor => operator(Operator::BitwiseXor),
        IntegerFn::ShiftLeft => operator(Operator::BitwiseShiftLeft),
        IntegerFn::ShiftRight => operator(Operator::BitwiseShiftRight),
        IntegerFn::Round => unreachable!("its second operand is none of DataFusion's"),
        IntegerFn::Abs => function_call(math::abs(), args.to_vec(), schema),
        IntegerFn::Convert { safe: true } => Arc::new(TryCastExpr::new(Arc::clone(&args[0]), arrow_type(ty))),
        IntegerFn::Convert { safe: false } => {
            Arc::new(CastExpr::new(Arc::clone(&args[0]), arrow_type(ty), None))
        }
    }
}

/// Values of `ty` at its own edges, and at those of the other integers where it has them.
fn values(ty: ValueType) -> Vec<i128> {
    let all = INTEGERS.iter().flat_map(|&other| edges(other)).flat_map(|v| [v - 1, v, v + 1]);
    let own = edges(ty);
    let (low, high) = (own.iter().min().copied().unwrap_or(0), own.iter().max().copied().unwrap_or(0));
    let mut values: Vec<i128> = all.filter(|v| (low..=high).contains(v)).collect();
    values.sort_unstable();
    values.dedup();
    values
}

/// Row by row, so that one error does not hide the others; with either side as a scalar as well.
#[test]
fn operators_on_edge_pairs() {
    let mut errors = 0;
    for ty in INTEGERS {
        let (left, right) = edge_pairs(ty, ty);
        for (x, y) in left.into_iter().zip(right) {
            let batch = batch(&[array_of(ty, &[x]).expect("array"), array_of(ty, &[y]).expect("array")], 1);
            let params = [(ty, x), (ty, y)];
            for function in BINARY {
                for (a, b) in
                    [(col(0, ty), col(1, ty)), (col(0, ty), param(1, ty)), (param(0, ty), col(1, ty))]
                {
                    let expr = call(function, vec![a, b], ty);
                    let what = format!("{x:?} {function:?} {y:?} of {ty:?}");
                    errors += usize::from(!compare_one(&expr, &params, &batch, &what));
                }
            }
        }
    }
    assert!(errors > 200, "{errors} errors");
}

#[test]
fn shifts_by_any_count() {
    for ty in INTEGERS {
        let negative: &[i128] = if widths::is_signed(ty) { &[-1, -7, -64] } else { &[] };
        let counts: Vec<Scalar> = (0..128).chain(negative.iter().copied()).map(Some).collect();
        for v in edges(ty) {
            let columns = [
                array_of(ty, &vec![Some(v); counts.len()]).expect("array"),
                array_of(ty, &counts).expect("array"),
            ];
            let batch = batch(&columns, counts.len());
            for function in [IntegerFn::ShiftLeft, IntegerFn::ShiftRight] {
                let expr = call(function, vec![col(0, ty), col(1, ty)], ty);
                compare_one(&expr, &[], &batch, &format!("{v} {function:?} of {ty:?}"));
            }
        }
    }
}

#[test]
fn casts_in_all_directions() {
    let types = [INTEGERS.as_slice(), &[Boolean]].concat();
    let mut errors = 0;
    for (from, to) in types.iter().flat_map(|&from| types.iter().map(move |&to| (from, to))) {
        for v in values(from).into_iter().map(Some).chain([None]) {
            let batch = batch(&[array_of(from, &[v]).expect("array")], 1);
            for safe in [false, true] {
                let expr = call(IntegerFn::Convert { safe }, vec![col(0, from)], to);
                let what = format!("{v:?} from {from:?} to {to:?}, safe: {safe}");
                errors += usize::from(!compare_one(&expr, &[], &batch, &what));
                assert_eq!(
                    expr.may_fault(),
                    !safe && values(from).iter().any(|v| !fits(*v, to)),
                    "{from:?} to {to:?}"
                );
            }
        }
    }
    assert!(errors > 200, "{errors} errors");
}

fn fits(value: i128, to: ValueType) -> bool {
    let edges = edges(to);
    to == Boolean || (edges.iter().min() <= Some(&value) && Some(&value) <= edges.iter().max())
}

#[test]
fn absolute_values() {
    for ty in INTEGERS.into_iter().filter(|ty| widths::is_signed(*ty)) {
        for v in values(ty).into_iter().map(Some).chain([None]) {
            let batch = batch(&[array_of(ty, &[v]).expect("array")], 1);
            let expr = call(IntegerFn::Abs, vec![col(0, ty)], ty);
            let raised = !compare_one(&expr, &[], &batch, &format!("abs({v:?}) of {ty:?}"));
            assert_eq!(raised, v == edges(ty).into_iter().min(), "abs({v:?}) of {ty:?}");
        }
    }
}

/// To every number of places, on single rows: those that leave their type raise.
#[test]
fn rounding_to_places() {
    let mut errors = 0;
    for ty in INTEGERS {
        let (low, high) = (edges(ty).into_iter().min(), edges(ty).into_iter().max());
        let (low, high) = (low.unwrap_or(0), high.unwrap_or(0));
        let around = (0..20u32).flat_map(|n| [10i128.pow(n), 10i128.pow(n) / 2 * 3, 10i128.pow(n) / 2]);
        let around = around.flat_map(|v| [v - 1, v, v + 1, -v - 1, -v, 1 - v]);
        let all = values(ty).into_iter().chain(around).filter(|v| (low..=high).contains(v));
        let all: Vec<Scalar> = all.map(Some).chain([None]).collect();
        for places in [-25, -20, -19, -18, -10, -9, -5, -3, -2, -1, 0, 1, 30] {
            let factor = if places < 0 { 10i128.pow(-places as u32) } else { 1 };
            let factor = Some(if factor > high { 0 } else { factor });
            let expr = call(IntegerFn::Round, vec![col(0, ty), param(0, ty)], ty);
            for v in &all {
                let batch = batch(&[array_of(ty, &[*v]).expect("array")], 1);
                let args = vec![Arc::new(Column::new("c0", 0)) as Arc<dyn PhysicalExpr>, lit(places)];
                let oracle = function_call(math::round(), args, &batch.schema()).evaluate(&batch);
                let twin = eval(&expr, &[(ty, factor)], batch.columns(), 0);
                let what = format!("round({v:?}, {places}) of {ty:?}");
                match oracle.and_then(|value| value.into_array(1)) {
                    Ok(array) => {
                        assert_eq!(twin.map(|v| array_of(ty, &[v]).expect("array")), Ok(array), "{what}")
                    }
                    Err(error) => {
                        errors += 1;
                        assert!(twin.is_err(), "{what}: {error}, but {twin:?}");
                    }
                }
            }
        }
    }
    assert!(errors > 50, "{errors} errors");
}

/// NULLs are passed over, and the total order of floats tells zeros and NaNs apart.
#[test]
fn extremes_of_every_type() {
    for ty in TYPES {
        let (left, right) = edge_pairs(ty, ty);
        let rows = left.len();
        let third: Vec<Scalar> = left.iter().copied().cycle().skip(rows / 3).take(rows).collect();
        let columns = [left, right, third].map(|values| array_of(ty, &values).expect("array"));
        let batch = batch(&columns, rows);
        let edge = edges(ty).last().copied();
        for function in [ExtremeFn::Greatest, ExtremeFn::Least] {
            for args in [vec![0, 1], vec![2, 0, 1], vec![1, 3, 0], vec![4, 1, 3]] {
                let arg = |at: &usize| if *at < 3 { col(*at, ty) } else { param(*at - 3, ty) };
                let expr = extreme(function, args.iter().map(arg).collect());
                let params = [(ty, edge), (ty, None)];
                let what = format!("{function:?} of {args:?}, {ty:?}");
                assert!(compare_one(&expr, &params, &batch, &what), "{what}");
            }
        }
    }
}

/// CASE with an operand, whose equality tells -0 from +0, in the form that compares and in the one that looks up.
#[test]
fn case_with_an_operand_compares_bits() {
    for ty in TYPES {
        let (left, right) = edge_pairs(ty, ty);
        let columns = [array_of(ty, &left).expect("array"), array_of(ty, &right).expect("array")];
        let batch = batch(&columns, left.len());
        let candidates: Vec<Scalar> = edges(ty).into_iter().step_by(2).take(2).map(Some).collect();
        let literal = |v: &Scalar| lit(scalar(ty, *v));
        let look_up = candidates.iter().zip(0i64..).map(|(v, at)| (literal(v), lit(at))).collect();
        let compare = vec![(Arc::new(Column::new("c1", 1)) as Arc<dyn PhysicalExpr>, lit(0i64))];
        for (whens, listed) in [(look_up, candidates), (compare, vec![])] {
            let case = CaseExpr::try_new(Some(Arc::new(Column::new("c0", 0))), whens, Some(lit(-1i64)));
            let oracle = case.expect("CASE").evaluate(&batch).and_then(|v| v.into_array(left.len()));
            let bits =
                |list: Vec<Arc<Expr>>| Arc::new(Expr::InList { expr: col(0, ty), list, negated: false });
            let params: Vec<(ValueType, Scalar)> =
                listed.iter().map(|v| (ty, *v)).chain((-1..2).map(|v| (Int64, Some(v)))).collect();
            let value = |v: usize| param(listed.len() + 1 + v, Int64);
            let branches = match listed.len() {
                0 => vec![(bits(vec![col(1, ty)]), value(0))],
                n => (0..n).map(|at| (bits(vec![param(at, ty)]), value(at))).collect(),
            };
            let otherwise = Some(param(listed.len(), Int64));
            let expr = Arc::new(Expr::Case { branches, otherwise, ty: Int64 });
            let program = Program { selection: None, params };
            let twin = select(&program, &[expr], batch.columns(), left.len()).expect("twin");
            assert_eq!(&oracle.expect("CASE"), &twin.outputs[0], "{ty:?}, {} listed", listed.len());
        }
    }
}
