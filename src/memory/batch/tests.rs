//! What is to be computed of a batch on which many operators are.

use arrow::datatypes::{DataType, Field, Schema};

use super::*;
use crate::kernels::expr::{Function, IntegerFn};

fn batch(columns: usize) -> GpuBatch {
    let field = |at| Field::new(format!("c{at}"), DataType::Int64, true);
    let schema = Schema::new((0..columns).map(field).collect::<Vec<_>>());
    GpuBatch::new(Arc::new(SourceBatch::new(Arc::new(schema), vec![])))
}

/// Every column divided by itself, `levels` times.
fn doubled(batch: &mut GpuBatch, levels: usize) {
    for _ in 0..levels {
        let columns = (0..batch.columns().len()).map(|at| {
            let column = || batch.column_expr(at).unwrap();
            let function = Function::Integer(IntegerFn::Divide);
            let quotient = Expr::Call { function, args: vec![column(), column()], ty: ValueType::Int64 };
            LazyColumn::Computed(Arc::new(quotient))
        });
        let columns = columns.collect();
        batch.set_columns(columns);
    }
}

/// Columns that may fault are told apart, and from what kernels evaluate, by their nodes and not by their 2^60 paths.
#[test]
fn guards_of_stacked_columns() {
    const LEVELS: usize = 60;
    let mut once = batch(1);
    doubled(&mut once, LEVELS);
    // The column is there twice.
    assert_eq!((once.fallible.len(), once.extent()), (LEVELS, (LEVELS + 2, LEVELS + 1)));
    // The same from other nodes.
    let mut again = batch(1);
    doubled(&mut again, LEVELS);
    let (all, top) = (again.fallible.clone(), again.column_expr(0).unwrap());
    let guards = |batch: &GpuBatch, evaluated: &[&Arc<Expr>]| {
        let selection = batch.guarded_selection(evaluated);
        selection.map_or(0, |all| {
            dag::nodes([all.as_ref()]).iter().filter(|e| matches!(e, Expr::IsNull(_))).count()
        })
    };
    assert_eq!(guards(&once, &[&top]), LEVELS - 1);
    assert_eq!(guards(&once, &all.iter().map(|(expr, _)| expr).collect::<Vec<_>>()), 0);
    // Computed anew, they are none the more.
    once.set_columns(all.iter().map(|(expr, _)| LazyColumn::Computed(Arc::clone(expr))).collect());
    assert_eq!(once.fallible.len(), LEVELS);
    // For fewer rows they are guarded all, until the selection is what it was.
    once.select(Arc::new(Expr::IsNotNull(Arc::clone(&top))));
    assert_eq!(guards(&once, &all.iter().map(|(expr, _)| expr).collect::<Vec<_>>()), LEVELS);
    let (_, depth) = once.extent();
    assert_eq!(depth, LEVELS + 2);
    let guarded = once.guarded_selection(&[]).unwrap();
    assert!(dag::extent([guarded.as_ref()]).1 < LEVELS + 12, "guards are joined two by two");
}
