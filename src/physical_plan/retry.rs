//! Work on the device that is tried again where memory is short.
//!
//! In this order: the work waits until it has room beside others; caches are evicted; a work that was refused beside others
//! is done again alone; one that was refused alone is done in halves. What cannot be halved any more is the caller's: the CPU
//! answers for it where `gpu.fallback` allows that, else the error, which names need, limit and option, is the query's.

use std::future::Future;

use crate::error::{GpuError, GpuResult};
use crate::memory::admission::Need;
use crate::memory::batch::GpuBatch;
use crate::memory::launch::LaunchScope;

use super::run::RunContext;

/// Below this many rows a batch is not halved further: a limit that small fails for good.
pub(crate) const MIN_SPLIT_ROWS: usize = 1024;

/// What a work is done on: again, and in halves. Copies are cheap.
pub(crate) trait WorkInput: Clone {
    /// Two halves, in order; `None` where it is too small for that.
    fn split(&self) -> Option<(Self, Self)>;

    /// Gives up what of it is on the device, which the work makes anew.
    fn release(&self);
}

impl WorkInput for GpuBatch {
    fn split(&self) -> Option<(Self, Self)> {
        if self.source().rows() < 2 * MIN_SPLIT_ROWS { None } else { GpuBatch::split(self) }
    }

    fn release(&self) {
        self.source().release();
    }
}

/// A part of the input, and what the work made of it.
pub(crate) struct Part<I, T> {
    /// The part; nothing of it is on the device any more.
    pub input: I,
    /// The work's result, or why it could not be done.
    pub outcome: GpuResult<T>,
}

/// Does `work` on `input`, in as many parts as memory asks for; they come in the input's order. `need` tells about how many
/// bytes of device memory the work holds at a time. `work` must be idempotent: it may be done again after it failed half way.
///
/// The scope that `work` gets is its admission: it must be dropped when the work ends, and no other be waited for meanwhile.
pub(crate) async fn with_retry<I, T, F>(
    run: &RunContext,
    input: I,
    need: impl Fn(&I) -> u64,
    work: impl Fn(LaunchScope, I) -> F,
) -> Vec<Part<I, T>>
where
    I: WorkInput,
    F: Future<Output = GpuResult<T>>,
{
    let mut parts = vec![];
    let mut todo = vec![(input, false)];
    while let Some((input, alone)) = todo.pop() {
        let bytes = need(&input);
        // It cannot fit: nothing is lost by not trying.
        let halves = if bytes > run.memory_limit() { input.split() } else { None };
        let outcome = match halves {
            Some(halves) => Err(Retry::Halves(halves)),
            None => {
                let need = if alone { Need::Alone } else { Need::Bytes(bytes) };
                let outcome = match run.admit(need).await {
                    Ok(scope) => work(scope, input.clone()).await,
                    Err(error) => Err(error),
                };
                input.release();
                judge(run, &input, alone, outcome)
            }
        };
        match outcome {
            Ok(outcome) => parts.push(Part { input, outcome }),
            Err(Retry::Alone) => todo.push((input, true)),
            Err(Retry::Halves((first, second))) => {
                run.metrics.batch_split();
                todo.push((second, false));
                todo.push((first, false));
            }
        }
    }
    parts
}

/// How a work is tried again.
enum Retry<I> {
    Alone,
    Halves((I, I)),
}

/// The outcome, unless the work is to be tried again.
fn judge<I: WorkInput, T>(
    run: &RunContext,
    input: &I,
    alone: bool,
    outcome: GpuResult<T>,
) -> Result<GpuResult<T>, Retry<I>> {
    match &outcome {
        Err(GpuError::OutOfDeviceMemory { .. } | GpuError::AllocationRefused { .. })
            if !alone && run.others_run() =>
        {
            Err(Retry::Alone)
        }
        Err(error) if is_helped_by_fewer_rows(error) => match input.split() {
            Some(halves) => Err(Retry::Halves(halves)),
            None => Ok(outcome),
        },
        _ => Ok(outcome),
    }
}

/// Whether fewer rows at a time could help against `error`.
fn is_helped_by_fewer_rows(error: &GpuError) -> bool {
    match error {
        GpuError::OutOfDeviceMemory { .. } | GpuError::AllocationRefused { .. } => true,
        GpuError::Limit { by_rows, .. } => *by_rows,
        _ => false,
    }
}
