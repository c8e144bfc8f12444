//! Functions of one string column, evaluated by DataFusion's own expressions once a distinct value.
//!
//! *When a dictionary pays.* Kernels see a string column as codes of a dictionary that is local to the batch. Building it
//! hashes every row, and the expression runs over the distinct values: with few of them that is far less than running it
//! over all rows, with about as many values as rows it is more. Which it is must be known before rows go out, because a
//! representation that changed on the way would have to be joined with what was computed already. So the first rows of
//! the first batch are a sample, and if too many of them are distinct, every batch of the run goes to the CPU. Once taken,
//! the dictionary stays, whatever later batches hold: it is slower then, not wrong.

use std::any::Any;
use std::collections::BTreeSet;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, RecordBatch, new_null_array};
use arrow::buffer::BooleanBuffer;
use arrow::compute::{and_kleene, cast, or_kleene};
use arrow::datatypes::{DataType, Schema, SchemaRef};
use datafusion::common::{Result, internal_err};
use datafusion::logical_expr::{ColumnarValue, Operator};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::BinaryExpr;

use crate::error::GpuResult;
use crate::kernels::expr::ValueType;
use crate::kernels::table;
use crate::memory::batch::GpuBatch;
use crate::memory::dictionary::sample;
use crate::memory::lookup::{Results, ValueFunction, blocking};

use super::run::{FallbackReason, RunContext};

/// Rows of a sample.
const SAMPLE_ROWS: usize = 64 << 10;
/// Fewer distinct values are never too many: their tables cost less than a launch's overhead.
const FEW_VALUES: usize = 16 << 10;
/// Above one distinct value in so many rows, the CPU is left to evaluate the rows themselves.
const ROWS_A_VALUE: usize = 4;
/// Evaluations of one chunk of values that may fail before all the rest of it is taken for poisoned, which only leaves
/// more to the CPU.
const MAX_FAILURES: usize = 512;

/// An expression of one column, as a function of its values.
#[derive(Debug)]
pub struct ExprFunction {
    /// Over column 0 of `schema`, the only one.
    pub expr: Arc<dyn PhysicalExpr>,
    /// The column.
    pub schema: SchemaRef,
    /// Type of the results in kernels, [`ValueType::Opaque`] for those that only the host holds.
    pub ty: ValueType,
    /// Type of the results in Arrow.
    pub data_type: DataType,
    /// Whether kernels are to look for values for which the expression raises; if it may not and does, the CPU answers for
    /// the batch.
    pub fallible: bool,
    /// Whether the results are taken to be never NULL. A value for which one is counts as one for which the expression raises.
    pub required: bool,
}

impl ExprFunction {
    fn evaluate_all(&self, values: &ArrayRef) -> Result<ArrayRef> {
        let batch = RecordBatch::try_new(Arc::clone(&self.schema), vec![Arc::clone(values)])?;
        let results = self.expr.evaluate(&batch)?.into_array(values.len())?;
        if results.data_type() != &self.data_type || results.len() != values.len() {
            return internal_err!(
                "{} gave {} values of {} where {} of {} were expected",
                self.expr,
                results.len(),
                results.data_type(),
                values.len(),
                self.data_type
            );
        }
        Ok(results)
    }

    /// Whether the column may be NULL.
    fn is_nullable(&self) -> bool {
        self.schema.fields().iter().any(|field| field.is_nullable())
    }

    /// The results that are NULL and must not be; `None` where there are none.
    fn poison(&self, results: &ArrayRef) -> Option<BooleanBuffer> {
        let nulls = results.logical_nulls().filter(|nulls| self.required && nulls.null_count() > 0)?;
        Some(!nulls.inner())
    }

    /// Finds the values that raise by halving what fails.
    fn evaluate_some(&self, values: &ArrayRef, failures: &mut usize, parts: &mut Vec<Results>) {
        if let Ok(values) = self.evaluate_all(values) {
            let poison = self.poison(&values);
            return parts.push(Results { values, poison });
        }
        let len = values.len();
        if len == 1 && values.logical_null_count() == 1 && !self.is_nullable() {
            // Every table has an entry for NULL, also that of a column which is never NULL.
            let poison = self.fallible.then(|| BooleanBuffer::new_set(1));
            return parts.push(Results { values: new_null_array(&self.data_type, 1), poison });
        }
        *failures += 1;
        if len <= 1 || *failures > MAX_FAILURES {
            let void = new_null_array(&self.data_type, len);
            return parts.push(Results { values: void, poison: Some(BooleanBuffer::new_set(len)) });
        }
        self.evaluate_some(&values.slice(0, len / 2), failures, parts);
        self.evaluate_some(&values.slice(len / 2, len - len / 2), failures, parts);
    }
}

impl ValueFunction for ExprFunction {
    fn evaluate(&self, values: &ArrayRef) -> GpuResult<Results> {
        let mut parts = vec![];
        self.evaluate_some(values, &mut 0, &mut parts);
        Results::concat(&parts)
    }

    fn pack(&self, results: &Results) -> GpuResult<(Vec<u32>, usize)> {
        table::pack(self.ty, &results.values, results.poison.as_ref())
    }

    fn may_raise(&self) -> bool {
        self.fallible
    }

    fn same(&self, other: &dyn ValueFunction) -> bool {
        let other: &dyn Any = other;
        other.downcast_ref::<ExprFunction>().is_some_and(|other| {
            self.expr.as_ref() == other.expr.as_ref()
                && self.ty == other.ty
                && self.schema == other.schema
                && self.required == other.required
        })
    }
}

/// AND or OR that evaluates both sides, whatever the left one is.
///
/// DataFusion evaluates the right side for some of the rows only, depending on how many the left side leaves. Distinct
/// values are other rows than the batch's, so that a value for which the right side raises could be passed over here and not
/// there. Evaluated always, it becomes a poisoned value, and the CPU decides.
#[derive(Debug, Clone, Eq)]
pub struct EagerLogic {
    and: bool,
    left: Arc<dyn PhysicalExpr>,
    right: Arc<dyn PhysicalExpr>,
}

impl PartialEq for EagerLogic {
    fn eq(&self, other: &Self) -> bool {
        self.and == other.and
            && self.left.as_ref() == other.left.as_ref()
            && self.right.as_ref() == other.right.as_ref()
    }
}

impl Hash for EagerLogic {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.and.hash(state);
        self.left.hash(state);
        self.right.hash(state);
    }
}

impl EagerLogic {
    /// `expr` for expressions that are AND or OR.
    pub fn of(expr: &Arc<dyn PhysicalExpr>) -> Option<Arc<dyn PhysicalExpr>> {
        let binary = expr.downcast_ref::<BinaryExpr>()?;
        let and = match binary.op() {
            Operator::And => true,
            Operator::Or => false,
            _ => return None,
        };
        Some(Arc::new(Self { and, left: Arc::clone(binary.left()), right: Arc::clone(binary.right()) }))
    }
}

impl fmt::Display for EagerLogic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({} {} {})", self.left, if self.and { "AND" } else { "OR" }, self.right)
    }
}

impl PhysicalExpr for EagerLogic {
    fn data_type(&self, _: &Schema) -> Result<DataType> {
        Ok(DataType::Boolean)
    }

    fn nullable(&self, schema: &Schema) -> Result<bool> {
        Ok(self.left.nullable(schema)? || self.right.nullable(schema)?)
    }

    fn evaluate(&self, batch: &RecordBatch) -> Result<ColumnarValue> {
        let boolean = |side: &Arc<dyn PhysicalExpr>| -> Result<BooleanArray> {
            let array = side.evaluate(batch)?.into_array(batch.num_rows())?;
            let array = cast(&array, &DataType::Boolean)?;
            Ok(array.as_boolean().clone())
        };
        let (left, right) = (boolean(&self.left)?, boolean(&self.right)?);
        let both = if self.and { and_kleene(&left, &right) } else { or_kleene(&left, &right) };
        Ok(ColumnarValue::Array(Arc::new(both?)))
    }

    fn children(&self) -> Vec<&Arc<dyn PhysicalExpr>> {
        vec![&self.left, &self.right]
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn PhysicalExpr>>,
    ) -> Result<Arc<dyn PhysicalExpr>> {
        let [left, right] = children.as_slice() else {
            return internal_err!("{self} has two operands");
        };
        Ok(Arc::new(Self { and: self.and, left: Arc::clone(left), right: Arc::clone(right) }))
    }

    fn fmt_sql(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Computes `tables` of the batch, unless a dictionary does not pay; then, or where they cannot be computed, the CPU answers
/// for the batch.
///
/// # Errors
/// Why the CPU is to answer.
pub(crate) async fn prepare(
    run: &RunContext,
    batch: &mut GpuBatch,
    tables: &BTreeSet<usize>,
) -> std::result::Result<(), FallbackReason> {
    prepare_keys(run, batch, tables, &BTreeSet::new()).await
}

/// The same, and codes for the source columns `coded`, by which rows are grouped.
///
/// # Errors
/// Why the CPU is to answer.
pub(crate) async fn prepare_keys(
    run: &RunContext,
    batch: &mut GpuBatch,
    tables: &BTreeSet<usize>,
    coded: &BTreeSet<usize>,
) -> std::result::Result<(), FallbackReason> {
    if tables.is_empty() && coded.is_empty() {
        return Ok(());
    }
    let columns = tables.iter().filter_map(|table| batch.table_column(*table)).chain(coded.iter().copied());
    let columns: BTreeSet<usize> = columns.collect();
    if let Some(reason) = run.no_dictionaries(too_many_distinct(batch, &columns)).await {
        return Err(reason);
    }
    let memory = run.host_memory("look-up tables");
    let codes = columns.iter().filter(|column| batch.source().dictionary(**column).is_none()).count();
    reserved(memory.try_grow(codes * batch.source().rows() * size_of::<u32>()))?;
    for column in coded {
        batch.source().encode(*column).await?;
    }
    batch.prepare(tables).await?;
    // How many values there are is known only now.
    reserved(memory.try_resize(batch.host_bytes(tables, coded)))?;
    batch.hold(Arc::new(memory));
    let raised = |table: &usize| batch.table(*table).is_some_and(|(table, _)| table.raised);
    if tables.iter().any(raised) { Err(FallbackReason::TableRaised) } else { Ok(()) }
}

fn reserved(outcome: Result<()>) -> std::result::Result<(), FallbackReason> {
    outcome.map_err(|error| FallbackReason::HostMemory { message: error.strip_backtrace() })
}

/// Whether the first rows of one of the columns have too many distinct values.
async fn too_many_distinct(batch: &GpuBatch, columns: &BTreeSet<usize>) -> Option<FallbackReason> {
    for &column in columns {
        let arrays: Vec<ArrayRef> =
            batch.source().host().iter().filter_map(|host| host.columns().get(column).cloned()).collect();
        match blocking(move || sample(&arrays, SAMPLE_ROWS)).await {
            Ok((distinct, rows)) if distinct > FEW_VALUES && distinct > rows / ROWS_A_VALUE => {
                let field = batch.source().schema().fields().get(column);
                let column = field.map_or_else(String::new, |field| field.name().clone());
                return Some(FallbackReason::TooManyDistinct { column, distinct, rows });
            }
            Ok(_) => {}
            Err(error) => return Some(error.into()),
        }
    }
    None
}

#[cfg(test)]
mod tests;
