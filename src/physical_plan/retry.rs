//! Work on the device that is tried again where memory is short or the device was lost.
//!
//! In this order: the work waits until it has room beside others; caches are evicted; a work that was refused beside others
//! is done again alone; one that was refused alone is done in halves. Where a part can't be halved any more, it and all that
//! comes after it are the caller's: the CPU answers for them where `gpu.fallback` allows that, else the error, which names
//! need, limit and option, is the query's.
//!
//! A work that lost the device is done once more on the next one, alone: it may only have been beside the one that did it.

use std::future::Future;
use std::sync::Arc;

use datafusion::common::runtime::SpawnedTask;
use datafusion::common::{DataFusionError, Result};
use tokio::sync::mpsc;
use tracing::Instrument;

use crate::error::{GpuError, GpuResult};
use crate::memory::admission::Need;
use crate::memory::batch::GpuBatch;
use crate::memory::launch::LaunchScope;

use super::run::RunContext;

/// Below this many rows a batch is not halved further: a limit that small fails for good.
pub(crate) const MIN_SPLIT_ROWS: usize = 1024;
/// How often the same rows are halved because they were refused: who is refused that often is refused everything.
const MOST_HALVINGS: u32 = 8;

tokio::task_local! {
    /// Set while a work runs.
    static ADMITTED: ();
}

/// Whether this is a work that was let in: it must not wait for another admission.
pub(crate) fn is_admitted() -> bool {
    ADMITTED.try_with(|()| ()).is_ok()
}

/// What a work is done on: again, in halves, or with what comes after it. Copies are cheap.
pub(crate) trait WorkInput: Clone {
    /// Two halves, in order; `None` where it is too small for that.
    fn split(&self) -> Option<(Self, Self)>;

    /// This, and then `next`, which comes right after it.
    fn join(self, next: Self) -> Self;

    /// Gives up what of it is on the device, which the work makes anew.
    fn release(&self);
}

impl WorkInput for GpuBatch {
    fn split(&self) -> Option<(Self, Self)> {
        if self.source().rows() < 2 * MIN_SPLIT_ROWS { None } else { GpuBatch::split(self) }
    }

    fn join(self, next: Self) -> Self {
        GpuBatch::join(self, &next)
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

/// The parts of an input as they are done, in order. Dropping it ends the work.
pub(crate) struct Parts<I, T> {
    parts: mpsc::Receiver<Part<I, T>>,
    task: Option<SpawnedTask<()>>,
}

impl<I: 'static, T: 'static> Parts<I, T> {
    /// The next part; `None` after the last. Panics of the work go on here.
    ///
    /// # Errors
    /// The async runtime is going down.
    pub(crate) async fn next(&mut self) -> Result<Option<Part<I, T>>> {
        if let Some(part) = self.parts.recv().await {
            return Ok(Some(part));
        }
        if let Some(task) = self.task.take() {
            task.join_unwind().await.map_err(|error| DataFusionError::ExecutionJoin(Box::new(error)))?;
        }
        Ok(None)
    }
}

/// Does `work` on `input`, in as many parts as memory asks for. `need` tells about how many bytes of device memory the work
/// holds at a time. `work` must be idempotent: it may be done again after it failed half way.
///
/// The work is a task of its own, so that it ends, and gives its memory back, whatever the caller is busy with. The scope that
/// it gets is its admission: it must be dropped when the work ends, and no other be waited for meanwhile.
pub(crate) fn with_retry<I, T, F>(
    run: &Arc<RunContext>,
    input: I,
    need: impl Fn(&I) -> u64 + Send + Sync + 'static,
    work: impl Fn(LaunchScope, I) -> F + Send + Sync + 'static,
) -> Parts<I, T>
where
    I: WorkInput + Send + Sync + 'static,
    T: Send + 'static,
    F: Future<Output = GpuResult<T>> + Send + 'static,
{
    // Nothing is held while a part waits here.
    let (sender, parts) = mpsc::channel(1);
    let run = Arc::clone(run);
    let all = async move {
        let mut todo = vec![Attempt::new(input)];
        while let Some(attempt) = todo.pop() {
            match attempt.run(&run, &need, &work).await {
                Next::Done(part) => {
                    if sender.send(part).await.is_err() {
                        return;
                    }
                }
                Next::Again(attempt) => todo.push(attempt),
                Next::Halves(first, second) => {
                    run.metrics.batch_split();
                    todo.push(second);
                    todo.push(first);
                }
                Next::GiveUp(Part { input, outcome }) => {
                    let rest = std::mem::take(&mut todo).into_iter().rev();
                    let input = rest.fold(input, |input, attempt| input.join(attempt.input));
                    if sender.send(Part { input, outcome }).await.is_err() {
                        return;
                    }
                }
            }
        }
    };
    Parts { parts, task: Some(SpawnedTask::spawn(all.in_current_span())) }
}

/// A part that is to be worked on.
struct Attempt<I> {
    input: I,
    alone: bool,
    /// The device was lost under it before.
    lost: bool,
    /// How often its rows were halved because they were refused.
    halvings: u32,
}

/// What comes after an attempt.
enum Next<I, T> {
    Done(Part<I, T>),
    Again(Attempt<I>),
    Halves(Attempt<I>, Attempt<I>),
    /// The part's outcome is that of all that comes after it.
    GiveUp(Part<I, T>),
}

impl<I: WorkInput> Attempt<I> {
    fn new(input: I) -> Self {
        Self { input, alone: false, lost: false, halvings: 0 }
    }

    async fn run<T, F>(
        self,
        run: &RunContext,
        need: &impl Fn(&I) -> u64,
        work: &impl Fn(LaunchScope, I) -> F,
    ) -> Next<I, T>
    where
        F: Future<Output = GpuResult<T>>,
    {
        if let Some(error) = run.given_up() {
            return Next::GiveUp(Part { input: self.input, outcome: Err(error) });
        }
        let bytes = need(&self.input);
        // It cannot fit: nothing is lost by not trying.
        if bytes > run.memory_limit()
            && let Some((first, second)) = self.halves(0)
        {
            return Next::Halves(first, second);
        }
        let need = if self.alone { Need::Alone } else { Need::Bytes(bytes) };
        let (generation, outcome) = match run.admit(need).await {
            Ok(scope) => {
                // It may have waited for works that were the end of it.
                if let Some(error) = run.given_up() {
                    return Next::GiveUp(Part { input: self.input, outcome: Err(error) });
                }
                let generation = scope.context.generation();
                (Some(generation), ADMITTED.scope((), work(scope, self.input.clone())).await)
            }
            Err(error) => (None, Err(error)),
        };
        self.input.release();
        self.judge(run, generation, outcome)
    }

    /// What comes after `outcome`, on the device of `generation` if there was one.
    fn judge<T>(self, run: &RunContext, generation: Option<u64>, outcome: GpuResult<T>) -> Next<I, T> {
        let refused = match &outcome {
            Err(GpuError::AllocationRefused { .. }) => {
                if self.alone {
                    run.refused_alone();
                }
                !run.alone_is_vain()
            }
            Err(GpuError::OutOfDeviceMemory { .. }) => true,
            Err(GpuError::Limit { by_rows: true, .. }) => false,
            Err(GpuError::DeviceLost(_)) => {
                generation.into_iter().for_each(|generation| run.lost(generation));
                if self.lost || generation.is_none() {
                    return Next::Done(Part { input: self.input, outcome });
                }
                run.metrics.batch_retry();
                return Next::Again(Self { alone: true, lost: true, ..self });
            }
            _ => return Next::Done(Part { input: self.input, outcome }),
        };
        if refused && !self.alone && run.others_run() {
            run.metrics.batch_retry();
            return Next::Again(Self { alone: true, ..self });
        }
        match self.halves(1) {
            Some((first, second)) => Next::Halves(first, second),
            None => Next::GiveUp(Part { input: self.input, outcome }),
        }
    }

    /// Two attempts of half the rows, after so many refusals more.
    fn halves(&self, refusals: u32) -> Option<(Self, Self)> {
        let halvings = self.halvings + refusals;
        let (first, second) = if halvings > MOST_HALVINGS { None } else { self.input.split() }?;
        let half = |input| Self { input, alone: false, lost: self.lost, halvings };
        Some((half(first), half(second)))
    }
}

#[cfg(test)]
mod tests;
