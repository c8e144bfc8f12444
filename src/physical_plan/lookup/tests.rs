use arrow::array::{Int32Array, StringViewArray};
use arrow::datatypes::Field;
use datafusion::common::ScalarValue;
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::expressions::{CastExpr, Column, lit};

use super::*;
use crate::kernels::expr::lookup::{POISON, VALID};

fn function(expr: Arc<dyn PhysicalExpr>, ty: ValueType) -> ExprFunction {
    let schema = Arc::new(Schema::new(vec![Field::new("s", DataType::Utf8View, true)]));
    let data_type = expr.data_type(&schema).unwrap();
    ExprFunction { expr, schema, ty, data_type, fallible: true, required: false }
}

fn column() -> Arc<dyn PhysicalExpr> {
    Arc::new(Column::new("s", 0))
}

fn to_int() -> Arc<dyn PhysicalExpr> {
    Arc::new(CastExpr::new(column(), DataType::Int32, None))
}

fn values(values: &[Option<&str>]) -> ArrayRef {
    Arc::new(StringViewArray::from(values.to_vec()))
}

#[test]
fn values_that_raise_are_found() {
    let cast = function(to_int(), ValueType::Int32);
    let strings = values(&[Some("1"), Some("x"), None, Some("4"), Some("5"), Some("6"), Some(""), Some("8")]);
    let results = cast.evaluate(&strings).unwrap();
    let poisoned: Vec<usize> = (0..8).filter(|at| results.is_poisoned(*at)).collect();
    assert_eq!(poisoned, [1, 6]);
    let numbers: ArrayRef =
        Arc::new(Int32Array::from(vec![Some(1), None, None, Some(4), Some(5), Some(6), None, Some(8)]));
    assert_eq!(&results.values, &numbers);
    let (words, values_at) = cast.pack(&results).unwrap();
    assert_eq!((values_at, words[1], words[4]), (1, 1, 4));
    assert_eq!(words[0], {
        let flags = [VALID, POISON, 0, VALID, VALID, VALID, POISON, VALID];
        flags.iter().enumerate().fold(0, |word, (at, flag)| word | flag << (4 * at))
    });
}

/// The entry for NULL of a column that is never NULL is not evaluated: no row has it.
#[test]
fn columns_without_null_are_given_none() {
    let number = ExprFunction { required: true, ..function(to_int(), ValueType::Int32) };
    let null = values(&[None]);
    let open = number.evaluate(&null).unwrap();
    assert!(open.is_poisoned(0), "a NULL where none may be");
    let schema = Arc::new(Schema::new(vec![Field::new("s", DataType::Utf8View, false)]));
    for fallible in [false, true] {
        let schema = Arc::clone(&schema);
        let number = ExprFunction { schema, fallible, ..function(to_int(), ValueType::Int32) };
        let void = number.evaluate(&null).unwrap();
        assert_eq!((void.values.null_count(), void.is_poisoned(0)), (1, fallible));
        let some = number.evaluate(&values(&[Some("1"), Some("2")])).unwrap();
        assert_eq!((some.values.null_count(), some.poison.is_some()), (0, false));
    }
}

#[test]
fn many_values_that_raise_end_the_search() {
    let cast = function(to_int(), ValueType::Int32);
    let strings: Vec<String> = (0..8192).map(|k| format!("x{k}")).collect();
    let strings: ArrayRef = Arc::new(StringViewArray::from_iter_values(strings));
    let results = cast.evaluate(&strings).unwrap();
    assert!((0..8192).all(|at| results.is_poisoned(at)));
}

/// DataFusion passes over the right side where the left one decides for all rows, or for most.
#[test]
fn both_sides_of_and_and_or_are_evaluated() {
    for op in [Operator::And, Operator::Or] {
        let decides = if op == Operator::And { Operator::NotEq } else { Operator::Eq };
        let guard: Arc<dyn PhysicalExpr> =
            Arc::new(BinaryExpr::new(column(), decides, lit(ScalarValue::Utf8View(Some("x".to_owned())))));
        let number: Arc<dyn PhysicalExpr> = Arc::new(BinaryExpr::new(to_int(), Operator::Gt, lit(3i32)));
        let guarded: Arc<dyn PhysicalExpr> = Arc::new(BinaryExpr::new(guard, op, number));
        let eager = EagerLogic::of(&guarded).unwrap();
        let strings = values(&[Some("x"), Some("1"), None, Some("5")]);
        let results = function(eager, ValueType::Boolean).evaluate(&strings).unwrap();
        assert_eq!((0..4).filter(|at| results.is_poisoned(*at)).collect::<Vec<_>>(), [0], "{op}");
        let one = values(&[Some("x")]);
        let lazy = function(guarded, ValueType::Boolean).evaluate(&one).unwrap();
        assert!(!lazy.is_poisoned(0), "{op}");
        let booleans = results.values.as_boolean();
        assert_eq!((booleans.value(1), booleans.is_null(2), booleans.value(3)), (false, true, true));
    }
}

#[test]
fn equal_functions_share_a_table() {
    let cast = function(to_int(), ValueType::Int32);
    assert!(cast.same(&function(to_int(), ValueType::Int32)));
    assert!(!cast.same(&function(to_int(), ValueType::Opaque)));
    assert!(!cast.same(&function(column(), ValueType::Int32)));
}
