//! What the device says to rows against what DataFusion says.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, RecordBatch};
use arrow::compute::filter_record_batch;
use arrow::datatypes::DataType;
use datafusion::physical_expr::PhysicalExpr;

use crate::kernels::testkit::Verdict;

/// DataFusion's answer: values, or the text of its error. `None` where its code panics, as kernels in debug builds do on
/// overflows that wrap in release builds.
pub(super) fn on_cpu(expr: &Arc<dyn PhysicalExpr>, batch: &RecordBatch) -> Option<Result<ArrayRef, String>> {
    let rows = batch.num_rows();
    let evaluate =
        || expr.evaluate(batch).and_then(|value| value.into_array(rows)).map_err(|error| error.to_string());
    catch_unwind(AssertUnwindSafe(evaluate)).ok()
}

/// Rows of a comparison that held.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Agreed {
    /// Rows on which both have the same bits.
    pub rows: usize,
    /// Rows left to the CPU although it has a value for them.
    pub guarded: usize,
    /// Whether the CPU raised, and the device told so.
    pub raised: bool,
    /// Whether the CPU's code panicked, so that nothing was compared.
    pub panicked: bool,
}

/// Whether the device's verdicts are right: equal bits where there is no fault, and no error of the CPU's without one.
///
/// # Errors
/// What was wrong, in which row.
pub(super) fn agree(
    expr: &Arc<dyn PhysicalExpr>,
    batch: &RecordBatch,
    verdicts: &[Verdict],
) -> Result<Agreed, String> {
    let faults: BooleanArray = verdicts.iter().map(|verdict| Some(*verdict == Verdict::Fault)).collect();
    let mut agreed = Agreed { guarded: faults.true_count(), ..Agreed::default() };
    let array = match on_cpu(expr, batch) {
        None => return Ok(Agreed { panicked: true, ..Agreed::default() }),
        Some(Ok(array)) => {
            same_rows(&array, verdicts)?;
            agreed.rows = verdicts.len() - agreed.guarded;
            return Ok(agreed);
        }
        Some(Err(error)) if agreed.guarded == 0 => {
            return Err(format!("the CPU raises, no row has a fault: {error}"));
        }
        Some(Err(_)) => {
            let clean = arrow::compute::not(&faults).map_err(|error| error.to_string())?;
            let rest = filter_record_batch(batch, &clean).map_err(|error| error.to_string())?;
            match on_cpu(expr, &rest) {
                None => return Ok(Agreed { panicked: true, ..Agreed::default() }),
                Some(Err(error)) => return Err(format!("the CPU raises on rows without a fault: {error}")),
                Some(Ok(array)) => array,
            }
        }
    };
    let rest: Vec<Verdict> = verdicts.iter().copied().filter(|verdict| *verdict != Verdict::Fault).collect();
    same_rows(&array, &rest)?;
    Ok(Agreed { rows: rest.len(), raised: true, ..Agreed::default() })
}

fn same_rows(array: &ArrayRef, verdicts: &[Verdict]) -> Result<(), String> {
    for (row, verdict) in verdicts.iter().enumerate() {
        let want = (!array.is_null(row) && *array.data_type() != DataType::Null).then(|| bits(array, row));
        let wrong = match (*verdict, want) {
            (Verdict::Fault, _) | (Verdict::Null, None) => continue,
            (Verdict::Value(got), Some((want, width))) if got << (128 - width) == want << (128 - width) => {
                continue;
            }
            (Verdict::Value(got), Some((_, width))) => format!("{:x}", got << (128 - width) >> (128 - width)),
            (Verdict::Value(got), None) => format!("{got:x}"),
            (Verdict::Null, Some(_)) => "NULL".to_owned(),
        };
        let shown = want.map_or_else(|| "NULL".to_owned(), |(want, _)| format!("{want:x}"));
        let ty = array.data_type();
        return Err(format!(
            "row {row} of type {ty}: the device has {wrong}, the CPU {shown} (bits in base 16)"
        ));
    }
    Ok(())
}

/// A value's bits, and how many there are.
fn bits(array: &ArrayRef, row: usize) -> (u128, usize) {
    if let Some(flags) = array.as_boolean_opt() {
        return (u128::from(flags.value(row)), 1);
    }
    let data = array.to_data();
    let width = array.data_type().primitive_width().expect("a fixed width");
    let at = (data.offset() + row) * width;
    let bytes = &data.buffers()[0].as_slice()[at..at + width];
    (bytes.iter().rev().fold(0, |value, byte| (value << 8) | u128::from(*byte)), width * 8)
}

/// Whether rows of the type can be compared by [`agree`].
pub(super) fn is_plain(ty: &DataType) -> bool {
    *ty == DataType::Boolean || *ty == DataType::Null || ty.primitive_width().is_some_and(|width| width <= 16)
}
