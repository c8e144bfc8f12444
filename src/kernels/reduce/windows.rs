//! Where the windows of sums of floats lie: chosen from a sample of rows, and moved when most values lie outside.

use std::sync::atomic::{AtomicU32, Ordering};

use arrow::array::ArrayRef;

use crate::kernels::program::Program;
use crate::kernels::reference::eval;

use super::float::Width;
use super::{AggregateKind, AggregateSpec};

/// Rows of a sample.
const SAMPLE: usize = 64;
/// Nodes, written as a tree, of an argument that is looked at: the CPU twin goes through it as one.
pub(crate) const MOST_SAMPLED: u64 = 10_000;

/// The windows of a query's sums of floats, shared by its batches. They decide about speed only: whatever they are, the sums are
/// exact.
#[derive(Debug, Default)]
pub struct FloatWindows {
    /// First exponent field of the window, by aggregate; 0 where nothing is known.
    bases: Vec<AtomicU32>,
}

impl FloatWindows {
    /// Windows for these aggregates, of which nothing is known.
    pub fn new(aggregates: &[AggregateSpec]) -> Self {
        FloatWindows { bases: aggregates.iter().map(|_| AtomicU32::new(0)).collect() }
    }

    /// Looks at some of the `rows` of `columns` for the sums of which nothing is known yet. Rows whose value the CPU twin does not
    /// compute tell nothing, nor do sums of very large expressions.
    pub fn sample(&self, program: &Program, aggregates: &[AggregateSpec], columns: &[ArrayRef], rows: usize) {
        for (spec, base) in aggregates.iter().zip(&self.bases) {
            let (AggregateKind::SumFloat, Some(arg)) = (spec.kind, &spec.arg) else { continue };
            let Some(width) = Width::of(arg.value_type()) else { continue };
            if base.load(Ordering::Relaxed) != 0 || arg.unshared() > MOST_SAMPLED {
                continue;
            }
            let step = rows.div_ceil(SAMPLE).max(1);
            let values = (0..rows).step_by(step).map(|row| eval(arg, &program.params, columns, row));
            let fields = values.filter_map(|value| width.field(value.ok()?? as u64)).collect();
            if let Some(found) = fitting(width, fields) {
                base.store(found, Ordering::Relaxed);
            }
        }
    }

    pub(super) fn base(&self, aggregate: usize, width: Width) -> u32 {
        let known = self.bases.get(aggregate).map_or(0, |base| base.load(Ordering::Relaxed));
        if known == 0 { width.default_base() } else { known }
    }

    /// Learns that `outside` of `count` values were not in the window, one of them with exponent field `field`.
    pub(super) fn learn(&self, aggregate: usize, width: Width, count: u64, outside: u32, field: u32) {
        if u64::from(outside) * 2 > count
            && let Some(base) = self.bases.get(aggregate)
        {
            base.store(width.base_around(field), Ordering::Relaxed);
        }
    }
}

/// The window that holds most of the sample, in the middle of it.
fn fitting(width: Width, mut fields: Vec<u32>) -> Option<u32> {
    fields.sort_unstable();
    let held = |first: u32| {
        let inside = fields.iter().filter(|field| (first..first + width.window()).contains(*field));
        (inside.clone().count(), inside.max().copied().unwrap_or(first))
    };
    let first = fields.iter().copied().rev().max_by_key(|first| held(*first).0)?;
    let spare = width.window() - 1 - (held(first).1 - first);
    // Values are spread more widely to below.
    let base = first.saturating_sub(spare - spare / 3);
    Some(base.clamp(1, width.special_field() - width.window()))
}
