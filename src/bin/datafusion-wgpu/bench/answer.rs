//! Whether two answers to a query are the same, by the tiers that docs/compatibility.md promises.
//!
//! Rows are compared as multisets, and the columns that a query is ordered by in their order. Values are compared bit for
//! bit, but for the floats of queries that add up floats: there DataFusion's own last digits change from run to run, with
//! the order in which partitions end.

use std::cmp::Ordering;

use datafusion::arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use datafusion::arrow::compute::{cast, concat_batches, sum};
use datafusion::arrow::datatypes::{DataType, Float64Type, SchemaRef};
use datafusion::arrow::row::{RowConverter, Rows, SortField};
use datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::error::Result;
use datafusion::logical_expr::{Expr, ExprSchemable, LogicalPlan};

/// Relative difference of floats that were added up, for each square root of a row: eight roundings.
const ROUNDINGS: f64 = 8.0 * f64::EPSILON;
/// Difference of such floats as a share of their column's largest value, for those that came out near 0.
const NEAR_ZERO: f64 = 4.0 * f64::EPSILON;
/// Aggregates of floats that do no arithmetic.
const EXACT: [&str; 9] =
    ["min", "max", "count", "first_value", "last_value", "nth_value", "row_number", "rank", "dense_rank"];

/// How the answers to a query are compared.
#[derive(Debug, Clone, PartialEq)]
pub struct Rule {
    /// The relative difference that floats may have; 0 compares bits.
    pub tolerance: f64,
    /// Output columns that the query is ordered by, the first key first.
    pub order: Vec<usize>,
}

impl Rule {
    /// The rule for a query's plans before and after optimization, over tables of so many rows.
    ///
    /// # Errors
    /// Expressions without a type.
    pub fn of(plan: &LogicalPlan, optimized: &LogicalPlan, rows: u64) -> Result<Rule> {
        let tolerance = if adds_floats(optimized)? { ROUNDINGS * (rows.max(1) as f64).sqrt() } else { 0.0 };
        Ok(Rule { tolerance, order: order_keys(plan) })
    }

    /// `exact` or `rounded`.
    pub fn tier(&self) -> &'static str {
        if self.tolerance > 0.0 { "rounded" } else { "exact" }
    }
}

/// Whether an aggregate or a window function does arithmetic on floats.
fn adds_floats(plan: &LogicalPlan) -> Result<bool> {
    let mut found = false;
    plan.apply_with_subqueries(|node| {
        let Some(input) = node.inputs().first().map(|input| input.schema()) else {
            return Ok(TreeNodeRecursion::Continue);
        };
        node.apply_expressions(|expr| {
            expr.apply(|expr| {
                let (name, args) = match expr {
                    Expr::AggregateFunction(call) => (call.func.name().to_owned(), &call.params.args),
                    Expr::WindowFunction(call) => (call.fun.name().to_owned(), &call.params.args),
                    _ => return Ok(TreeNodeRecursion::Continue),
                };
                for arg in args.iter().filter(|_| !EXACT.contains(&name.as_str())) {
                    found |= arg.get_type(input)?.is_floating();
                }
                Ok(TreeNodeRecursion::Continue)
            })
        })
    })?;
    Ok(found)
}

/// Output columns that the top-level ORDER BY sorts by, up to the first key that is no output column.
fn order_keys(plan: &LogicalPlan) -> Vec<usize> {
    let mut plan = plan;
    let mut output: Option<&[Expr]> = None;
    loop {
        plan = match plan {
            LogicalPlan::Limit(limit) => &limit.input,
            LogicalPlan::Projection(projection) if output.is_none() => {
                output = Some(&projection.expr);
                &projection.input
            }
            LogicalPlan::Sort(sort) => {
                let place = |expr: &Expr| match output {
                    Some(output) => output.iter().position(|column| unaliased(column) == unaliased(expr)),
                    None => {
                        expr.try_as_col().and_then(|column| sort.input.schema().maybe_index_of_column(column))
                    }
                };
                return sort.expr.iter().map_while(|key| place(&key.expr)).collect();
            }
            _ => return vec![],
        };
    }
}

fn unaliased(expr: &Expr) -> &Expr {
    match expr {
        Expr::Alias(alias) => unaliased(&alias.expr),
        expr => expr,
    }
}

/// An answer in one piece, with what its comparison needs.
#[derive(Debug)]
pub struct Answer {
    rows: RecordBatch,
    all: Encoded,
    /// Rows in the order of their values.
    sorted: Vec<usize>,
    keys: Encoded,
}

/// Rows as bytes that compare as their values do bit for bit; floats that may differ a little apart.
#[derive(Debug)]
struct Encoded {
    exact: Option<Rows>,
    floats: Vec<Floats>,
}

#[derive(Debug)]
struct Floats {
    values: Vec<Option<f64>>,
    /// The largest magnitude.
    largest: f64,
}

impl Answer {
    /// # Errors
    /// Batches that don't fit the schema, and types that can't be compared.
    pub fn new(schema: &SchemaRef, batches: &[RecordBatch], rule: &Rule) -> Result<Answer> {
        let rows = concat_batches(schema, batches)?;
        let rounded = rule.tolerance > 0.0;
        let all = Encoded::of(rows.columns(), rounded)?;
        let keys: Vec<ArrayRef> =
            rule.order.iter().filter_map(|&key| rows.columns().get(key).cloned()).collect();
        let mut sorted: Vec<usize> = (0..rows.num_rows()).collect();
        sorted.sort_unstable_by(|&a, &b| all.compare(a, b));
        Ok(Answer { keys: Encoded::of(&keys, rounded)?, rows, all, sorted })
    }

    pub fn row_count(&self) -> usize {
        self.rows.num_rows()
    }

    /// Where `other` differs, in words; nothing when it is the same answer.
    pub fn difference(&self, other: &Answer, rule: &Rule) -> Option<String> {
        let types = |answer: &Answer| -> Vec<DataType> {
            answer.rows.columns().iter().map(|column| column.data_type().clone()).collect()
        };
        if types(self) != types(other) {
            return Some(format!("columns of types {:?}, expected {:?}", types(other), types(self)));
        }
        if self.row_count() != other.row_count() {
            return Some(format!("{} rows, expected {}", other.row_count(), self.row_count()));
        }
        let mut pairs = self.sorted.iter().zip(&other.sorted);
        if let Some((&want, &got)) =
            pairs.find(|&(&want, &got)| !self.all.same(want, &other.all, got, rule.tolerance))
        {
            return Some(format!("row {}, expected {}", other.show(got), self.show(want)));
        }
        let unordered =
            (0..self.row_count()).find(|&row| !self.keys.same(row, &other.keys, row, rule.tolerance));
        unordered.map(|row| {
            format!("row {} in order is {}, expected {}", row + 1, other.show(row), self.show(row))
        })
    }

    fn show(&self, row: usize) -> String {
        let options = FormatOptions::default().with_null("NULL");
        let cell = |column: &ArrayRef| match ArrayFormatter::try_new(column, &options) {
            Ok(formatter) => formatter.value(row).to_string(),
            Err(error) => error.to_string(),
        };
        let cells: Vec<String> = self.rows.columns().iter().map(cell).collect();
        format!("({})", cells.join(", "))
    }
}

/// The sum of each numeric column, for comparison with other engines.
///
/// # Errors
/// Values that can't be cast.
pub fn sums(schema: &SchemaRef, batches: &[RecordBatch]) -> Result<Vec<Option<f64>>> {
    let mut sums = vec![];
    for (at, field) in schema.fields().iter().enumerate() {
        if !field.data_type().is_numeric() {
            sums.push(None);
            continue;
        }
        let mut total = 0.0;
        for batch in batches {
            let values = cast(batch.column(at), &DataType::Float64)?;
            total += sum(values.as_primitive::<Float64Type>()).unwrap_or(0.0);
        }
        sums.push(Some(total));
    }
    Ok(sums)
}

impl Encoded {
    fn of(columns: &[ArrayRef], rounded: bool) -> Result<Encoded> {
        let is_float = |column: &&ArrayRef| rounded && column.data_type().is_floating();
        let floats = columns.iter().filter(is_float).map(Floats::of).collect::<Result<_>>()?;
        let exact: Vec<ArrayRef> = columns.iter().filter(|column| !is_float(column)).cloned().collect();
        let exact = match exact.is_empty() {
            true => None,
            false => {
                let fields = exact.iter().map(|column| SortField::new(column.data_type().clone()));
                Some(RowConverter::new(fields.collect())?.convert_columns(&exact)?)
            }
        };
        Ok(Encoded { exact, floats })
    }

    fn compare(&self, a: usize, b: usize) -> Ordering {
        let exact = self.exact.as_ref().map_or(Ordering::Equal, |rows| rows.row(a).cmp(&rows.row(b)));
        self.floats.iter().fold(exact, |order, floats| order.then_with(|| floats.compare(a, b)))
    }

    fn same(&self, row: usize, other: &Encoded, other_row: usize, tolerance: f64) -> bool {
        let exact = match (&self.exact, &other.exact) {
            (Some(rows), Some(others)) => rows.row(row) == others.row(other_row),
            (None, None) => true,
            _ => false,
        };
        let mut floats = self.floats.iter().zip(&other.floats);
        exact
            && floats
                .all(|(floats, others)| floats.near(floats.values[row], others.values[other_row], tolerance))
    }
}

impl Floats {
    fn of(column: &ArrayRef) -> Result<Floats> {
        let values: Vec<Option<f64>> =
            cast(column, &DataType::Float64)?.as_primitive::<Float64Type>().iter().collect();
        let finite = values.iter().flatten().filter(|value| value.is_finite());
        let largest = finite.fold(0.0, |largest: f64, value| largest.max(value.abs()));
        Ok(Floats { values, largest })
    }

    fn compare(&self, a: usize, b: usize) -> Ordering {
        match (self.values[a], self.values[b]) {
            (Some(a), Some(b)) => a.total_cmp(&b),
            (a, b) => a.is_some().cmp(&b.is_some()),
        }
    }

    fn near(&self, a: Option<f64>, b: Option<f64>, tolerance: f64) -> bool {
        match (a, b) {
            // Which NaN a sum gives depends on the order too. Of an infinity nothing is a few roundings away.
            (Some(a), Some(b)) if !(a.is_finite() && b.is_finite()) => {
                a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan())
            }
            (Some(a), Some(b)) => {
                let allowed = tolerance * a.abs().max(b.abs());
                a == b || (a - b).abs() <= allowed.max(NEAR_ZERO * self.largest)
            }
            (a, b) => a.is_none() && b.is_none(),
        }
    }
}

#[cfg(test)]
mod tests;
