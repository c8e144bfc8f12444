//! Strings in groups: kernels see codes or ranks, the host has the values.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, UInt32Array};
use arrow::compute::{interleave, take};
use arrow::datatypes::UInt32Type;
use arrow::error::ArrowError;

use crate::error::{GpuError, GpuResult};
use crate::kernels::expr::Expr;
use crate::memory::batch::GpuBatch;

use super::super::super::rank::codes_of_ranks;

/// A string column or a function of one, over an operator's input or over a batch's source columns.
#[derive(Debug, Clone)]
pub struct Text {
    /// Ranks of the values, looked up by kernels; without them rows are told apart by their codes.
    pub kernel: Option<Arc<Expr>>,
    /// The column, or the look-up of a function whose results only the host holds.
    pub values: Arc<Expr>,
}

impl Text {
    /// The same over a batch, by `over`, which rebases expressions.
    pub(super) fn over(&self, over: &dyn Fn(&Arc<Expr>) -> Option<Arc<Expr>>) -> Option<BatchText> {
        let ranks = match &self.kernel {
            None => None,
            Some(kernel) => match over(kernel)?.as_ref() {
                Expr::Lookup { table, .. } => Some(*table),
                _ => return None,
            },
        };
        let (column, table) = match over(&self.values)?.as_ref() {
            Expr::Column { index, .. } => (*index, None),
            Expr::Lookup { codes, table, .. } => match codes.as_ref() {
                Expr::Column { index, .. } => (*index, Some(*table)),
                _ => return None,
            },
            _ => return None,
        };
        Some(BatchText { ranks, column, table })
    }
}

/// Where a batch has the values of a [`Text`].
#[derive(Debug, Clone)]
pub(super) struct BatchText {
    /// Table of the ranks that kernels give; without one they give codes.
    ranks: Option<usize>,
    /// Source column whose dictionary the codes are of.
    pub column: usize,
    /// Table whose results are the values, if those of the dictionary are not.
    pub table: Option<usize>,
}

impl BatchText {
    /// Whether one of the codes `kernel` is that of a value for which the function raised. Of ranks, kernels tell it themselves.
    pub(super) fn meets_poison(&self, batch: &GpuBatch, kernel: &ArrayRef) -> bool {
        let (None, Some(table)) = (self.ranks, self.table) else { return false };
        let Some((table, _)) = batch.table(table) else { return false };
        let codes = kernel.as_primitive_opt::<UInt32Type>();
        table.results.poison.is_some()
            && codes.is_some_and(|codes| {
                codes.values().iter().any(|code| table.results.is_poisoned(*code as usize))
            })
    }

    /// The values by what a kernel gave: codes, or ranks, of which NULL is NULL.
    ///
    /// # Errors
    /// [`GpuError::Internal`] where they do not fit the batch.
    pub(super) fn values(&self, batch: &GpuBatch, kernel: &ArrayRef) -> GpuResult<ArrayRef> {
        let wrong = |what: &str| GpuError::Internal(format!("groups of strings: {what}"));
        let codes = match self.ranks {
            Some(table) => codes_of_ranks(batch, table, kernel)?,
            None => {
                kernel.as_primitive_opt::<UInt32Type>().ok_or_else(|| wrong("no codes came back"))?.clone()
            }
        };
        let values = match self.table {
            Some(table) => {
                let (table, _) = batch.table(table).ok_or_else(|| wrong("a table was not computed"))?;
                take(&table.results.values, &codes, None)
            }
            None => {
                let dictionary = batch.source().dictionary(self.column);
                take_chunks(dictionary.ok_or_else(|| wrong("a column has no dictionary"))?.values(), &codes)
            }
        };
        values.map_err(|error| wrong(&error.to_string()))
    }
}

/// The values of `chunks`, one after another, at `codes`, of which NULL stands for code 0: a dictionary's first value is NULL.
fn take_chunks(chunks: &[ArrayRef], codes: &UInt32Array) -> Result<ArrayRef, ArrowError> {
    let mut ends = Vec::with_capacity(chunks.len());
    let mut end = 0;
    for chunk in chunks {
        end += chunk.len();
        ends.push(end);
    }
    let place = |code: &u32| {
        let code = *code as usize;
        let chunk = ends.partition_point(|end| *end <= code);
        (chunk, code - chunk.checked_sub(1).map_or(0, |before| ends[before]))
    };
    let places: Vec<_> = codes.iter().map(|code| place(&code.unwrap_or(0))).collect();
    if places.iter().any(|(chunk, _)| *chunk >= chunks.len()) {
        return Err(ArrowError::InvalidArgumentError(format!("a code beyond {end} values")));
    }
    let sources: Vec<&dyn Array> = chunks.iter().map(AsRef::as_ref).collect();
    interleave(&sources, &places)
}
