//! The twins against DataFusion's own expressions and accumulators, so that they are not their own oracle.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, BooleanArray, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Schema};
use datafusion::config::ConfigOptions;
use datafusion::functions::core;
use datafusion::functions_aggregate::average::avg_udaf;
use datafusion::functions_aggregate::count::count_udaf;
use datafusion::functions_aggregate::min_max::{max_udaf, min_udaf};
use datafusion::functions_aggregate::sum::sum_udaf;
use datafusion::logical_expr::{AggregateUDF, Operator, ScalarUDF};
use datafusion::physical_expr::aggregate::AggregateExprBuilder;
use datafusion::physical_expr::expressions::{
    BinaryExpr, CaseExpr, CastExpr, Column, IsNotNullExpr, IsNullExpr, NegativeExpr, NotExpr, in_list, lit,
};
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};
use datafusion::scalar::ScalarValue;

use crate::kernels::expr::widths::{is_integer, type_bits};
use crate::kernels::expr::{ArithOp, CompareOp, DecimalFn, Expr, ExtremeFn, Function, Scalar, ValueType};
use crate::kernels::program::Program;
use crate::kernels::reduce::{AggregateKind, AggregateSpec};
use crate::kernels::select::array_of;
use crate::kernels::testkit::*;

use super::*;
use ValueType::*;

mod integer;

fn scalar(ty: ValueType, value: Scalar) -> ScalarValue {
    ScalarValue::try_from_array(&array_of(ty, &[value]).expect("array"), 0).expect("scalar")
}

/// The expression as DataFusion would plan it.
fn physical(expr: &Expr, params: &[(ValueType, Scalar)], schema: &Schema) -> Arc<dyn PhysicalExpr> {
    let go = |e: &Arc<Expr>| physical(e, params, schema);
    let binary = |left: &Arc<Expr>, op: Operator, right: &Arc<Expr>| {
        Arc::new(BinaryExpr::new(go(left), op, go(right))) as Arc<dyn PhysicalExpr>
    };
    match expr {
        Expr::Column { index, .. } => Arc::new(Column::new(&format!("c{index}"), *index)),
        Expr::Param { slot, ty } => lit(scalar(*ty, params[*slot].1)),
        Expr::Compare { op, left, right } => {
            let op = match op {
                CompareOp::Eq => Operator::Eq,
                CompareOp::NotEq => Operator::NotEq,
                CompareOp::Lt => Operator::Lt,
                CompareOp::LtEq => Operator::LtEq,
                CompareOp::Gt => Operator::Gt,
                CompareOp::GtEq => Operator::GtEq,
            };
            binary(left, op, right)
        }
        Expr::Distinct { negated: false, left, right } => binary(left, Operator::IsDistinctFrom, right),
        Expr::Distinct { negated: true, left, right } => binary(left, Operator::IsNotDistinctFrom, right),
        Expr::And(left, right) => binary(left, Operator::And, right),
        Expr::Or(left, right) => binary(left, Operator::Or, right),
        Expr::Not(e) => Arc::new(NotExpr::new(go(e))),
        Expr::IsNull(e) => Arc::new(IsNullExpr::new(go(e))),
        Expr::IsNotNull(e) => Arc::new(IsNotNullExpr::new(go(e))),
        Expr::InList { expr, list, negated } => {
            in_list(go(expr), list.iter().map(go).collect(), negated, schema).expect("IN")
        }
        Expr::Arith { op, left, right, .. } => binary(left, operator(*op), right),
        Expr::Negate(e) => Arc::new(NegativeExpr::new(go(e))),
        Expr::Lookup { .. } | Expr::InSorted { .. } | Expr::Required(_) => {
            unreachable!("random expressions have no {expr:?}")
        }
        Expr::Cast { expr, to } => Arc::new(CastExpr::new(go(expr), arrow_type(*to), None)),
        Expr::Case { branches, otherwise, .. } => {
            let branches = branches.iter().map(|(when, then)| (go(when), go(then))).collect();
            Arc::new(CaseExpr::try_new(None, branches, otherwise.as_ref().map(go)).expect("CASE"))
        }
        Expr::Call { function: Function::Integer(function), args, ty } => {
            let args: Vec<_> = args.iter().map(go).collect();
            integer::physical(*function, &args, *ty, schema)
        }
        Expr::Call { function: Function::Extreme(function), args, .. } => {
            let function = match function {
                ExtremeFn::Greatest => core::greatest(),
                ExtremeFn::Least => core::least(),
            };
            function_call(function, args.iter().map(go).collect(), schema)
        }
        Expr::Call { function: Function::Decimal(function), args, ty } => match (function, args.as_slice()) {
            (DecimalFn::Arith(op), [left, right]) => binary(left, operator(*op), right),
            (DecimalFn::Negate, [e]) => Arc::new(NegativeExpr::new(go(e))),
            (DecimalFn::Cast { safe: false }, [e]) => Arc::new(CastExpr::new(go(e), arrow_type(*ty), None)),
            _ => unreachable!("{expr:?}"),
        },
        // The other functions are held to DataFusion by tests of their own.
        Expr::Call { .. } => unreachable!("{expr:?}"),
    }
}

fn operator(op: ArithOp) -> Operator {
    match op {
        ArithOp::Add => Operator::Plus,
        ArithOp::Sub => Operator::Minus,
        ArithOp::Mul => Operator::Multiply,
    }
}

/// A function of DataFusion's.
fn function_call(
    function: Arc<ScalarUDF>,
    args: Vec<Arc<dyn PhysicalExpr>>,
    schema: &Schema,
) -> Arc<dyn PhysicalExpr> {
    let config = Arc::new(ConfigOptions::default());
    Arc::new(ScalarFunctionExpr::try_new(function, args, schema, config).expect("function"))
}

/// Whether a fault says no more than that DataFusion might raise: where it negates what only some batches have as a scalar.
fn doubtful(expr: &Expr) -> bool {
    let mut columns = std::collections::BTreeSet::new();
    expr.collect_columns(&mut columns);
    let here = matches!(expr, Expr::Negate(e) if e.may_be_scalar() && !columns.is_empty());
    here || expr.children().into_iter().any(|child| doubtful(child))
}

/// Both sides on one expression: the same values, or DataFusion raises where the twin has a fault.
fn compare_one(expr: &Arc<Expr>, params: &[(ValueType, Scalar)], batch: &RecordBatch, what: &str) -> bool {
    let rows = batch.num_rows();
    let oracle =
        physical(expr, params, &batch.schema()).evaluate(batch).and_then(|value| value.into_array(rows));
    let program = Program { selection: None, params: params.to_vec() };
    let twin = select(&program, &[Arc::clone(expr)], batch.columns(), rows).expect("twin");
    match oracle {
        Ok(array) => {
            if twin.fault && doubtful(expr) {
                return false;
            }
            assert!(!twin.fault, "{what}: fault, but DataFusion gives a result");
            assert_eq!(array.data_type(), twin.outputs[0].data_type(), "{what}");
            assert_eq!(&array, &twin.outputs[0], "{what}");
            true
        }
        Err(error) => {
            assert!(twin.fault, "{what}: no fault, but DataFusion says {error}");
            false
        }
    }
}

fn random_batch(rows: usize, shape: DataShape, rng: &mut Rng) -> RecordBatch {
    let columns: Vec<ArrayRef> = TYPES.iter().map(|&ty| column(ty, rows, shape, rng)).collect();
    batch(&columns, rows)
}

/// Random expressions of every type. AND and OR are left out: DataFusion may not evaluate their right side everywhere.
#[test]
fn expressions_against_datafusion() {
    let (mut values, mut errors) = (0, 0);
    for seed in 0..1500 {
        let mut rng = Rng::new(seed);
        let shape =
            DataShape { nulls: rng.pick(&[0, 20, 100]), edgy: rng.pick(&[0, 1, 5]), offset: rng.below(9) };
        let rows = rng.pick(&[1, 3, 20]);
        let batch = random_batch(rows, shape, &mut rng);
        let mut make = ExprGen { rng: &mut rng, params: vec![], logic: false };
        let ty = make.rng.pick(&TYPES);
        let expr = if make.rng.one_in(3) { make.any_decimal(2) } else { make.expr(ty, 3) };
        let params = make.params;
        match compare_one(&expr, &params, &batch, &format!("seed {seed}: {expr:?} {params:?}")) {
            true => values += 1,
            false => errors += 1,
        }
    }
    assert!(values > 800 && errors > 50, "{values} results, {errors} errors");
}

/// Every comparison on all pairs of edge values, also as IN, which does not fold -0.
#[test]
fn comparisons_on_edge_pairs() {
    for ty in TYPES.into_iter().chain(OTHERS) {
        let edges = edges(ty);
        let (left, right) = edge_pairs(ty, ty);
        let columns = [array_of(ty, &left).expect("array"), array_of(ty, &right).expect("array")];
        let batch = batch(&columns, left.len());
        for op in OPS {
            compare_one(&cmp(op, col(0, ty), col(1, ty)), &[], &batch, &format!("{op:?} {ty:?}"));
        }
        for negated in [false, true] {
            let expr = Expr::Distinct { negated, left: col(0, ty), right: col(1, ty) };
            compare_one(&Arc::new(expr), &[], &batch, &format!("DISTINCT {ty:?}"));
            let params: Vec<(ValueType, Scalar)> = edges.iter().step_by(2).map(|&v| (ty, Some(v))).collect();
            let list: Vec<Arc<Expr>> = (0..params.len()).map(|slot| param(slot, ty)).collect();
            let expr = Expr::InList { expr: col(0, ty), list, negated };
            compare_one(&Arc::new(expr), &params, &batch, &format!("IN {ty:?}"));
            let with_null = [vec![(ty, None)], params].concat();
            let list = (0..with_null.len()).map(|slot| param(slot, ty)).collect();
            let expr = Expr::InList { expr: col(0, ty), list, negated };
            compare_one(&Arc::new(expr), &with_null, &batch, &format!("IN with NULL {ty:?}"));
        }
    }
}

#[test]
fn three_valued_logic() {
    let three = [None, Some(0), Some(1)];
    let left: Vec<Scalar> = three.iter().flat_map(|&a| [a; 3]).collect();
    let right: Vec<Scalar> = three.repeat(3);
    let columns = [array_of(Boolean, &left).expect("array"), array_of(Boolean, &right).expect("array")];
    let batch = batch(&columns, 9);
    for expr in [
        Expr::And(col(0, Boolean), col(1, Boolean)),
        Expr::Or(col(0, Boolean), col(1, Boolean)),
        Expr::Not(col(0, Boolean)),
    ] {
        compare_one(&Arc::new(expr.clone()), &[], &batch, &format!("{expr:?}"));
    }
}

/// Arithmetic on all pairs of edge values, row by row so that one overflow does not hide the others.
#[test]
fn arithmetic_on_edge_pairs() {
    let decimals = [dec(7, 2), dec(15, 2), dec(25, 2), dec(38, 4), dec(38, 0)];
    let mut pairs: Vec<(ValueType, ValueType)> =
        TYPES.iter().filter(|ty| is_integer(**ty)).map(|&ty| (ty, ty)).collect();
    pairs.extend(decimals.iter().flat_map(|&a| decimals.iter().map(move |&b| (a, b))));
    let (mut values, mut errors) = (0, 0);
    for (a, b) in pairs {
        for (x, y) in edges(a).into_iter().flat_map(|x| edges(b).into_iter().map(move |y| (x, y))) {
            let columns = [array_of(a, &[Some(x)]).expect("array"), array_of(b, &[Some(y)]).expect("array")];
            let batch = batch(&columns, 1);
            for op in ARITH {
                let expr = arith(op, col(0, a), col(1, b));
                match compare_one(&expr, &[], &batch, &format!("{x} {op:?} {y} as {a:?}, {b:?}")) {
                    true => values += 1,
                    false => errors += 1,
                }
            }
        }
    }
    assert!(values > 1000 && errors > 100, "{values} results, {errors} errors");
}

/// Casts to decimals: where the declared precisions leave room Arrow does not look at the values.
#[test]
fn decimal_casts_on_edges() {
    let from = [Int8, Int32, Int64, UInt64, dec(7, 2), dec(18, 0), dec(25, 2), dec(38, 0)];
    let to = [dec(3, 0), dec(7, 2), dec(9, 4), dec(18, 2), dec(19, 0), dec(20, 2), dec(38, 2), dec(38, 30)];
    let mut errors = 0;
    for (a, b) in from.into_iter().flat_map(|a| to.into_iter().map(move |b| (a, b))) {
        let expr = crate::kernels::testkit::cast(col(0, a), b);
        if crate::kernels::expr::check(&expr).is_err() {
            continue;
        }
        for v in edges(a) {
            let batch = batch(&[array_of(a, &[Some(v)]).expect("array")], 1);
            errors +=
                usize::from(!compare_one(&expr, &[], &batch, &format!("cast of {v} from {a:?} to {b:?}")));
        }
    }
    assert!(errors > 20, "{errors} errors");
}

/// DataFusion's accumulator over one array.
fn accumulate(function: Arc<AggregateUDF>, array: &ArrayRef) -> ScalarValue {
    let schema = Arc::new(Schema::new(vec![Field::new("x", array.data_type().clone(), true)]));
    let expr = AggregateExprBuilder::new(function, vec![Arc::new(Column::new("x", 0))])
        .schema(schema)
        .alias("a")
        .build()
        .expect("aggregate");
    let mut accumulator = expr.create_accumulator().expect("accumulator");
    accumulator.update_batch(&[Arc::clone(array)]).expect("update");
    accumulator.evaluate().expect("evaluate")
}

/// A scalar's canonical value, whatever type DataFusion gave the result.
fn canonical(value: &ScalarValue, ty: ValueType) -> Scalar {
    let array = value.to_array().expect("array");
    if array.is_null(0) {
        return None;
    }
    match ty {
        Decimal { .. } => {
            array.as_any().downcast_ref::<arrow::array::Decimal128Array>().map(|array| array.value(0))
        }
        _ => expr::value_at(&array, ty, 0).expect("type"),
    }
}

#[test]
fn aggregates_against_datafusion() {
    for (number, ty) in TYPES.into_iter().chain(OTHERS).enumerate() {
        for (rows, nulls, edgy) in
            [(0, 0, 0), (1, 0, 5), (50, 30, 0), (200, 0, 4), (100, 100, 0), (300, 10, 2)]
        {
            let shape = DataShape { nulls, edgy, offset: 3 };
            let array = column(ty, rows, shape, &mut Rng::new((number * 1000 + rows) as u64));
            let state = |kind: AggregateKind, array: &ArrayRef, ty: ValueType| {
                let mut state = kind.init();
                update_from_array(kind, ty, &mut state, Some(array), rows, None).unwrap();
                state
            };
            let some = |kind, array: &ArrayRef, ty| {
                let state = state(kind, array, ty);
                (state.count > 0).then_some(state.value)
            };
            let what = format!("{ty:?}, {rows} rows, {nulls} % nulls");
            let count = state(AggregateKind::Count, &array, ty).count;
            assert_eq!(ScalarValue::Int64(Some(count as i64)), accumulate(count_udaf(), &array), "{what}");
            for (kind, function) in [(AggregateKind::Min, min_udaf()), (AggregateKind::Max, max_udaf())] {
                let oracle = canonical(&accumulate(function, &array), ty);
                assert_eq!(some(kind, &array, ty), oracle, "{kind:?} of {what}");
            }
            if matches!(ty, Decimal { .. }) {
                let oracle = canonical(&accumulate(sum_udaf(), &array), ty);
                assert_eq!(some(AggregateKind::SumDecimal, &array, ty), oracle, "sum of {what}");
            }
            if is_integer(ty) {
                // The analyzer casts the argument first.
                let wide = if crate::kernels::expr::widths::is_signed(ty) { Int64 } else { UInt64 };
                let widened = cast(&array, &arrow_type(wide)).expect("cast");
                let oracle = canonical(&accumulate(sum_udaf(), &widened), wide);
                assert_eq!(some(AggregateKind::SumInt, &widened, wide), oracle, "sum of {what}");
                assert_eq!(some(AggregateKind::SumInt, &array, ty), oracle, "sum of narrow {what}");
            }
            if is_integer(ty) && type_bits(ty) <= 32 {
                // Sums below 2^53 are exact in doubles, so the order of DataFusion's additions does not matter.
                let doubles = cast(&array, &DataType::Float64).expect("cast");
                let state = state(AggregateKind::SumAsFloat64, &array, ty);
                let mean = (state.count > 0).then(|| state.value as f64 / state.count as f64);
                assert_eq!(ScalarValue::Float64(mean), accumulate(avg_udaf(), &doubles), "mean of {what}");
            }
        }
    }
}

/// Each integer is rounded to a double before it is added.
#[test]
fn sums_as_doubles_round_each_value() {
    let values: [Scalar; 4] =
        [Some((1 << 53) + 1), Some((1 << 53) + 3), Some(-(1 << 53) - 1), Some(i64::MAX.into())];
    let array = array_of(Int64, &values).expect("array");
    let doubles = cast(&array, &DataType::Float64).expect("cast");
    let doubles = doubles.as_any().downcast_ref::<arrow::array::Float64Array>().expect("doubles");
    let exact: i128 = doubles.values().iter().map(|v| *v as i128).sum();
    let mut state = AggregateKind::SumAsFloat64.init();
    update_from_array(AggregateKind::SumAsFloat64, Int64, &mut state, Some(&array), 4, None).unwrap();
    assert_eq!((state.count, state.value), (4, exact));
    assert_ne!(exact, values.iter().flatten().sum::<i128>());
}

#[test]
fn filters_count_only_where_true() {
    let array = array_of(Int32, &[Some(1), Some(2), None, Some(4), Some(8)]).expect("array");
    let filter = BooleanArray::from(vec![Some(true), None, Some(true), Some(false), Some(true)]);
    let run = |kind| {
        let mut state = AggregateKind::init(&kind);
        update_from_array(kind, Int32, &mut state, Some(&array), 5, Some(&filter)).unwrap();
        (state.count, state.value)
    };
    assert_eq!(run(AggregateKind::SumInt), (2, 9));
    assert_eq!(run(AggregateKind::Max), (2, 8));
    assert_eq!(run(AggregateKind::Count), (2, 0));
    let mut state = AggregateKind::CountRows.init();
    update_from_array(AggregateKind::CountRows, Int32, &mut state, None, 5, Some(&filter)).unwrap();
    assert_eq!(state.count, 3);
}

/// The row-wise twin of the reduction and the array-wise update agree.
#[test]
fn both_twins_agree() {
    let mut rng = Rng::new(77);
    let rows = 400;
    for ty in TYPES.into_iter().chain(OTHERS) {
        let array = column(ty, rows, DataShape { nulls: 15, edgy: 3, offset: 2 }, &mut rng);
        let mut kinds = vec![AggregateKind::Count, AggregateKind::Min, AggregateKind::Max];
        if is_integer(ty) {
            kinds.extend([AggregateKind::SumInt, AggregateKind::SumAsFloat64]);
        }
        for kind in kinds {
            let specs = [AggregateSpec { kind, arg: Some(col(0, ty)), filter: None }];
            let by_row = reduce(&Program::default(), &specs, &[Arc::clone(&array)], rows);
            let mut state = kind.init();
            update_from_array(kind, ty, &mut state, Some(&array), rows, None).unwrap();
            assert_eq!(by_row.states, [state], "{kind:?} of {ty:?}");
        }
    }
}
