//! Expressions that are short in memory and long on paper.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::kernels::expr::{ArithOp, Emitter, check};
use crate::kernels::program::ColumnShape;
use crate::memory::{ColumnRepr, MagnitudeBits};

const TY: ValueType = ValueType::Int64;
/// Visits of 2^60 nodes would not end.
const LEVELS: usize = 60;

fn sum(left: &Arc<Expr>, right: &Arc<Expr>) -> Arc<Expr> {
    Arc::new(Expr::Arith { op: ArithOp::Add, left: Arc::clone(left), right: Arc::clone(right), ty: TY })
}

/// `leaf`, doubled `levels` times.
fn doubled(leaf: Arc<Expr>, levels: usize) -> Arc<Expr> {
    (0..levels).fold(leaf, |a, _| sum(&a, &a))
}

fn column(index: usize) -> Arc<Expr> {
    Arc::new(Expr::Column { index, ty: TY })
}

#[test]
fn every_node_is_visited_once() {
    let expr = doubled(column(3), LEVELS);
    assert_eq!(extent([expr.as_ref()]), (LEVELS + 1, LEVELS + 1));
    assert_eq!((expr.unshared(), doubled(column(3), 200).unshared()), ((1 << 61) - 1, u64::MAX));
    assert!(!expr.may_fault() && !expr.may_be_scalar());
    let param = doubled(Arc::new(Expr::Param { slot: 0, ty: TY }), LEVELS);
    assert!(param.may_be_scalar());
    assert!(Expr::Negate(Arc::clone(&param)).may_fault() && !Expr::Negate(Arc::clone(&expr)).may_fault());
    assert!(sum(&expr, &Arc::new(Expr::Required(Arc::clone(&expr)))).may_fault());
    assert!(expr.may_be_null(&|_| true) && !expr.may_be_null(&|_| false));
    assert_eq!(check(&expr), Ok(()));
    assert!(check(&doubled(Arc::new(Expr::Column { index: 0, ty: ValueType::Boolean }), LEVELS)).is_err());
    let codes = Arc::new(Expr::Column { index: 7, ty: ValueType::Opaque });
    let both =
        sum(&expr, &doubled(Arc::new(Expr::Lookup { codes, table: 4, ty: TY, fallible: true }), LEVELS));
    let (mut columns, mut tables) = (BTreeSet::new(), BTreeMap::new());
    both.collect_columns(&mut columns);
    both.collect_tables(&mut tables);
    assert_eq!((columns, tables), (BTreeSet::from([3, 7]), BTreeMap::from([(4, Some(7))])));
    assert!(both.may_fault());
    let mapped = both.map_leaves(&|leaf| match leaf.as_ref() {
        Expr::Column { .. } => column(5),
        _ => Arc::clone(leaf),
    });
    assert_eq!(extent([mapped.as_ref()]), (2 * LEVELS + 4, LEVELS + 3));
}

#[test]
fn equal_expressions_become_one() {
    let mut exprs = Interner::default();
    let (one, other) = (doubled(column(0), LEVELS), doubled(column(0), LEVELS));
    assert!(!Arc::ptr_eq(&one, &other) && exprs.same(&one, &other));
    let (interned, top) = (exprs.intern(&one), exprs.intern(&sum(&one, &other)));
    assert!(top.children().into_iter().all(|child| Arc::ptr_eq(child, &interned)));
    assert!(Arc::ptr_eq(&exprs.intern(&top), &top));
    assert!(!exprs.same(&one, &doubled(column(1), LEVELS)));
    assert!(!exprs.same(&one, &Arc::clone(one.children()[0])));
    // Order, and every field of a node, count.
    let (a, b) = (column(0), column(1));
    assert!(!exprs.same(&sum(&a, &b), &sum(&b, &a)) && exprs.same(&sum(&a, &b), &sum(&column(0), &b)));
    let less = Expr::Arith { op: ArithOp::Sub, left: Arc::clone(&a), right: Arc::clone(&b), ty: TY };
    assert!(!exprs.same(&sum(&a, &b), &Arc::new(less)));
    let case = |otherwise| {
        let branches = vec![(Arc::new(Expr::IsNull(Arc::clone(&a))), Arc::clone(&b))];
        Arc::new(Expr::Case { branches, otherwise, ty: TY })
    };
    assert!(!exprs.same(&case(None), &case(Some(Arc::clone(&a)))) && exprs.same(&case(None), &case(None)));
}

/// The body of a shader has each sum once, also those that were made apart.
#[test]
fn shaders_compute_it_once() {
    let shape = ColumnShape {
        index: 0,
        ty: TY,
        repr: ColumnRepr::Arrow,
        nullable: true,
        magnitude: MagnitudeBits(64),
        packed: false,
    };
    let columns = [shape];
    let mut emitter = Emitter::new(&columns, &[], 8);
    let one = emitter.emit(&doubled(column(0), LEVELS)).unwrap();
    let body = emitter.body.clone();
    assert!(body.lines().count() < 3 * LEVELS, "{body}");
    let other = emitter.emit(&doubled(column(0), LEVELS)).unwrap();
    assert_eq!((one.value, body), (other.value, emitter.body.clone()));
    assert_eq!(emitter.size(), LEVELS + 1);
    let truth = |expr: &Arc<Expr>, emitter: &mut Emitter<'_>| emitter.truth(expr).unwrap().value;
    let test = |bound: &Arc<Expr>| {
        Arc::new(Expr::Distinct { negated: false, left: column(0), right: Arc::clone(bound) })
    };
    let deep = |op: fn(Arc<Expr>, Arc<Expr>) -> Expr| {
        (0..LEVELS).fold(test(&doubled(column(0), 1)), |p, _| Arc::new(op(Arc::clone(&p), p)))
    };
    assert_eq!(truth(&deep(Expr::And), &mut emitter), truth(&deep(Expr::And), &mut emitter));
    assert!(emitter.body.lines().count() < 5 * LEVELS);
}

#[test]
fn many_operands_make_a_flat_tree() {
    let operands: Vec<_> = (0..1000).map(|at| Arc::new(Expr::IsNull(column(at)))).collect();
    let all = Expr::balanced(operands, Expr::And).unwrap();
    let (nodes, depth) = extent([all.as_ref()]);
    assert_eq!((nodes, depth), (2999, 12));
    assert_eq!(Expr::balanced(vec![], Expr::Or), None);
}
