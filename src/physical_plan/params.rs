//! Parameters of an operator's expressions: values, and look-up tables, that are known only when the plan is executed.

use std::sync::Arc;

use arrow::array::{RecordBatch, RecordBatchOptions, UInt32Array};
use arrow::datatypes::Schema;
use datafusion::common::{Result, ScalarValue, internal_datafusion_err};
use datafusion::logical_expr::ColumnarValue;
use datafusion::physical_expr::PhysicalExpr;

use crate::kernels::expr::{Expr, Scalar, ValueType};
use crate::kernels::table;
use crate::memory::batch::GpuBatch;
use crate::memory::lookup::ValueFunction;

use super::scalar::to_scalar;

/// Where one parameter's value comes from.
#[derive(Debug, Clone)]
pub struct ParamSource {
    /// An expression without columns: a literal, a placeholder, a scalar subquery. Evaluated once per execution.
    pub expr: Arc<dyn PhysicalExpr>,
    /// Type of the value.
    pub ty: ValueType,
}

/// A function of one of the operator's input columns, of which every batch has a table.
#[derive(Debug, Clone)]
pub struct TableSource {
    /// Index of the input column.
    pub column: usize,
    /// The function.
    pub function: Arc<dyn ValueFunction>,
}

/// The candidates of a long IN list.
#[derive(Debug, Clone)]
struct ListSource {
    /// Expressions without columns.
    candidates: Vec<Arc<dyn PhysicalExpr>>,
    /// Type of their values.
    ty: ValueType,
    /// Values that kernels search.
    len: usize,
}

/// The parameters of one operator; [`Expr::Param`] slots, [`Expr::Lookup`] tables and [`Expr::InSorted`] lists index into it.
#[derive(Debug, Clone, Default)]
pub struct ParamTable {
    /// Sources by slot.
    pub sources: Vec<ParamSource>,
    /// Functions by table.
    pub tables: Vec<TableSource>,
    lists: Vec<ListSource>,
}

/// The values of a [`ParamTable`].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ParamValues {
    /// Values of the parameters, by slot.
    pub values: Vec<(ValueType, Scalar)>,
    /// Lists as kernels search them, as [`table::pack_list`] has them.
    pub lists: Vec<UInt32Array>,
}

impl ParamTable {
    /// Adds a source and returns the expression that reads it.
    pub fn push(&mut self, expr: Arc<dyn PhysicalExpr>, ty: ValueType) -> Arc<Expr> {
        let slot = self.sources.len();
        self.sources.push(ParamSource { expr, ty });
        Arc::new(Expr::Param { slot, ty })
    }

    /// Adds a function of input column `column` and returns the expression that looks it up.
    pub fn push_table(
        &mut self,
        column: usize,
        function: Arc<dyn ValueFunction>,
        ty: ValueType,
        fallible: bool,
    ) -> Arc<Expr> {
        let table = self.tables.len();
        self.tables.push(TableSource { column, function });
        let codes = Arc::new(Expr::Column { index: column, ty: ValueType::Opaque });
        Arc::new(Expr::Lookup { codes, table, ty, fallible })
    }

    /// Adds the parameters to those of a lazy batch, whose columns are the operator's input; `values` are those of the
    /// sources.
    ///
    /// # Errors
    /// An internal error when the values of a column that a function reads are not on the host.
    pub fn bind(&self, batch: &mut GpuBatch, values: &ParamValues) -> Result<Bound> {
        let params = batch.add_params(&values.values);
        let lists = values.lists.iter().map(|list| batch.add_list(list.clone())).collect();
        let tables = self
            .tables
            .iter()
            .map(|table| batch.add_table(table.column, &table.function))
            .collect::<Option<Vec<_>>>()
            .ok_or_else(|| internal_datafusion_err!("a function reads a column that is not on the host"))?;
        Ok(Bound { params, tables, lists })
    }

    /// Adds a list of constants of type `ty` in which kernels search `expr`, and returns the expression that does.
    pub fn push_list(
        &mut self,
        expr: Arc<Expr>,
        candidates: Vec<Arc<dyn PhysicalExpr>>,
        ty: ValueType,
        negated: bool,
    ) -> Arc<Expr> {
        // Lists of about one length share a kernel.
        let len = candidates.len().next_power_of_two();
        self.lists.push(ListSource { candidates, ty, len });
        Arc::new(Expr::InSorted { expr, table: self.lists.len() - 1, len, negated })
    }

    /// Values for what is computed of no rows: none is known.
    pub fn without_values(&self) -> ParamValues {
        let values = self.sources.iter().map(|source| (source.ty, None)).collect();
        ParamValues { values, lists: vec![UInt32Array::from(Vec::<u32>::new()); self.lists.len()] }
    }

    /// Evaluates every source, and the candidates of every list.
    ///
    /// # Errors
    /// DataFusion's own (e.g. a scalar subquery that returned two rows), or an internal error when a value does not have the type
    /// it was planned with.
    pub fn resolve(&self) -> Result<ParamValues> {
        let values = self.sources.iter().map(|source| Ok((source.ty, typed(&source.expr, source.ty)?)));
        let lists = self.lists.iter().map(|list| {
            let candidates = list.candidates.iter().map(|expr| typed(expr, list.ty));
            let candidates = candidates.collect::<Result<Vec<_>>>()?;
            Ok(UInt32Array::from(table::pack_list(list.ty, &candidates, list.len)))
        });
        Ok(ParamValues { values: values.collect::<Result<_>>()?, lists: lists.collect::<Result<_>>()? })
    }
}

fn typed(expr: &Arc<dyn PhysicalExpr>, ty: ValueType) -> Result<Scalar> {
    let value = constant(expr)?;
    to_scalar(&value, ty).ok_or_else(|| {
        internal_datafusion_err!("parameter {expr} was planned as {ty:?} and is {}", value.data_type())
    })
}

/// The value of an expression without columns.
///
/// # Errors
/// DataFusion's own.
pub fn constant(expr: &Arc<dyn PhysicalExpr>) -> Result<ScalarValue> {
    let one_row = RecordBatch::try_new_with_options(
        Arc::new(Schema::empty()),
        vec![],
        &RecordBatchOptions::new().with_row_count(Some(1)),
    )?;
    match expr.evaluate(&one_row)? {
        ColumnarValue::Scalar(value) => Ok(value),
        ColumnarValue::Array(array) => ScalarValue::try_from_array(&array, 0),
    }
}

/// Where a batch has the parameters of one operator.
#[derive(Debug, Clone, Default)]
pub struct Bound {
    /// Slot of the first value.
    params: usize,
    /// Number of each table.
    tables: Vec<usize>,
    /// Number of each list's table.
    lists: Vec<usize>,
}

/// Rewrites an operator's expression onto its input's expressions: columns become `columns[i]`, and parameters and tables
/// get the numbers that they have in the batch.
pub fn rebase(
    expr: &Arc<Expr>,
    columns: &dyn Fn(usize) -> Option<Arc<Expr>>,
    bound: &Bound,
) -> Option<Arc<Expr>> {
    let mut read = std::collections::BTreeSet::new();
    expr.collect_columns(&mut read);
    if read.iter().any(|index| columns(*index).is_none()) {
        return None;
    }
    let column = |leaf: &Arc<Expr>| match leaf.as_ref() {
        Expr::Column { index, .. } => columns(*index).unwrap_or_else(|| Arc::clone(leaf)),
        _ => Arc::clone(leaf),
    };
    Some(expr.map_leaves(&|leaf| match leaf.as_ref() {
        Expr::Param { slot, ty } => Arc::new(Expr::Param { slot: slot + bound.params, ty: *ty }),
        Expr::Lookup { codes, table, ty, fallible } => {
            // A function of a function is a table by the codes of the same source column.
            let (codes, before) = match column(codes).as_ref() {
                Expr::Lookup { codes, fallible, .. } => (Arc::clone(codes), *fallible),
                _ => (column(codes), false),
            };
            let table = bound.tables.get(*table).copied().unwrap_or(*table);
            Arc::new(Expr::Lookup { codes, table, ty: *ty, fallible: *fallible || before })
        }
        Expr::InSorted { expr, table, len, negated } => {
            let table = bound.lists.get(*table).copied().unwrap_or(*table);
            Arc::new(Expr::InSorted { expr: Arc::clone(expr), table, len: *len, negated: *negated })
        }
        _ => column(leaf),
    }))
}
