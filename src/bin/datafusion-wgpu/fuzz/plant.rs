//! Planted bugs: changes of forced answers, to see that they are found.

use std::sync::Arc;

use datafusion::arrow::array::{
    Array, ArrayRef, AsArray, Float64Array, Int64Array, RecordBatch, UInt32Array,
};
use datafusion::arrow::compute::{concat_batches, take_record_batch};
use datafusion::arrow::datatypes::{Float64Type, Int64Type};
use datafusion::error::Result;

use super::ast::Tier;
use super::compare::{Answer, Spec};
use super::rounded::Rounding;
use super::rows::Rows;
use super::runner::{Run, Verdict};

/// A kind of bug.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Bug {
    /// The last row is dropped.
    #[default]
    Row,
    /// A 64-bit integer of the first row is one more.
    Value,
    /// A sum or average that the GPU rounded once is off by its last bit.
    Average,
    /// Two rows with other keys of ORDER BY change places.
    Order,
    /// The last row of a limited answer is one that there is not.
    Limit,
}

/// A bug in the answers to some queries.
#[derive(Debug, Clone, Default)]
pub struct Plant {
    /// Queries whose SQL holds this text; none without it.
    pub text: Option<String>,
    /// What is changed.
    pub bug: Bug,
}

impl Plant {
    /// Changes the run's rows, where the query is meant and the bug can show; says whether it did.
    pub fn apply(&self, sql: &str, spec: &Spec, run: &mut Run) -> bool {
        if !self.text.as_ref().is_some_and(|text| sql.contains(text.as_str())) {
            return false;
        }
        let exact = run.gpu.is_whole();
        let Verdict::Rows(answer) = &mut run.verdict else { return false };
        let Ok(Some(rows)) = changed(self.bug, spec, answer, exact) else { return false };
        tracing::debug!(bug = ?self.bug, "an answer is changed");
        answer.batches = vec![rows];
        true
    }
}

fn changed(bug: Bug, spec: &Spec, answer: &Answer, exact: bool) -> Result<Option<RecordBatch>> {
    let rows = concat_batches(&answer.schema, &answer.batches)?;
    let Some(last) = rows.num_rows().checked_sub(1) else { return Ok(None) };
    match bug {
        Bug::Row => Ok(Some(rows.slice(0, last))),
        Bug::Value if spec.limited => Ok(None),
        Bug::Value => with_integer(&rows, 0, spec, |value| value.wrapping_add(1)),
        Bug::Limit if !spec.limited => Ok(None),
        Bug::Limit => with_integer(&rows, last, spec, |value| value ^ 0x5bd1_e995_0000_0001),
        Bug::Average if exact => with_last_bit(&rows, spec),
        Bug::Average => Ok(None),
        Bug::Order => {
            let Some(row) = Rows::new(spec, answer, rows.num_columns())?.step() else { return Ok(None) };
            let places = (0..=last).map(|place| match place {
                place if place + 1 == row => row,
                place if place == row => row - 1,
                place => place,
            });
            let places = UInt32Array::from_iter_values(places.map(|place| place as u32));
            Ok(Some(take_record_batch(&rows, &places)?))
        }
    }
}

fn with_column(rows: &RecordBatch, column: usize, array: ArrayRef) -> Result<Option<RecordBatch>> {
    let mut columns = rows.columns().to_vec();
    columns[column] = array;
    Ok(Some(RecordBatch::try_new(rows.schema(), columns)?))
}

/// A column that is no key of ORDER BY: its order must not give the bug away.
fn with_integer(
    rows: &RecordBatch,
    row: usize,
    spec: &Spec,
    change: fn(i64) -> i64,
) -> Result<Option<RecordBatch>> {
    let is_key = |column: usize| spec.order.iter().any(|key| key.column == column);
    let integers = |column: &usize| {
        let array = rows.column(*column).as_primitive_opt::<Int64Type>();
        array.is_some_and(|array| array.is_valid(row)) && !is_key(*column)
    };
    let Some(column) = (0..rows.num_columns()).find(integers) else { return Ok(None) };
    let values = rows.column(column).as_primitive::<Int64Type>().iter().enumerate();
    let values = values.map(|(at, value)| if at == row { value.map(change) } else { value });
    with_column(rows, column, Arc::new(values.collect::<Int64Array>()))
}

fn with_last_bit(rows: &RecordBatch, spec: &Spec) -> Result<Option<RecordBatch>> {
    let usable = |value: f64| value.is_finite() && value != 0.0;
    let promised = |column: &usize| {
        let array = rows.column(*column).as_primitive_opt::<Float64Type>();
        spec.tier(*column).is_promised()
            && array.is_some_and(|array| array.is_valid(0) && usable(array.value(0)))
    };
    let Some(column) = (0..rows.num_columns()).find(promised) else { return Ok(None) };
    let values = rows.column(column).as_primitive::<Float64Type>().iter().enumerate();
    let values = values.map(|(at, value)| match value {
        Some(value) if at == 0 => Some(f64::from_bits(value.to_bits() ^ 1)),
        value => value,
    });
    with_column(rows, column, Arc::new(values.collect::<Float64Array>()))
}

impl Tier {
    /// Whether the GPU promises the exact value, rounded once.
    fn is_promised(self) -> bool {
        matches!(self, Tier::Rounded(Rounding::Sum | Rounding::Average))
    }
}
