//! Breaks the query of each operator at each call of each choke point.

use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use datafusion::error::DataFusionError;
use datafusion::physical_plan::execute_stream;
use datafusion_wgpu::error::GpuError;
use datafusion_wgpu::memory::faults::{Choke, Fault};
use futures::TryStreamExt;
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::{HANG, OPERATORS, Operator, Rig, Verdict, run_apart};
use crate::harness::{Ran, TestResult, rows};

/// A step of a walk: the `n`-th call of a choke point.
#[derive(Debug, Clone, Copy)]
struct Step {
    choke: Choke,
    n: u64,
}

/// An operator's query, run cleanly once, and how often that called each choke point.
struct Walk<'a> {
    rig: &'a mut Rig,
    sql: &'static str,
    want: Vec<String>,
    calls: Vec<(Choke, u64)>,
}

impl<'a> Walk<'a> {
    async fn new(rig: &'a mut Rig, operator: &Operator, scope: &str) -> TestResult<Self> {
        let sql = operator.sql;
        let want = rig.prepare(operator, scope).await?;
        rig.gpu.device.faults().count();
        let clean = rig.healthy(sql, &want).await.map_err(|error| format!("clean, {sql}: {error}"))?;
        let faults = rig.gpu.device.faults();
        let calls: Vec<_> = Choke::ALL.into_iter().map(|choke| (choke, faults.calls(choke))).collect();
        faults.clear();
        assert!(clean.nodes.iter().any(|node| node == operator.node), "{}", clean.plan);
        assert!(!want.is_empty() && calls.iter().all(|(_, calls)| *calls > 0), "{calls:?} for {sql}");
        Ok(Walk { rig, sql, want, calls })
    }

    /// All calls of all choke points, or `most` of each, evenly spread from the first to the last.
    fn steps(&self, most: u64) -> Vec<Step> {
        let spread = |calls: u64| {
            let count = calls.min(most);
            (0..count).map(move |i| 1 + i * (calls - 1) / (count - 1).max(1))
        };
        let steps = |&(choke, calls): &(Choke, u64)| spread(calls).map(move |n| Step { choke, n });
        self.calls.iter().flat_map(steps).collect()
    }

    /// Runs the query with a fault. Gives what came of it, and whether the fault was met: a dynamic filter may leave less to
    /// do than there was in the clean run.
    async fn broken(&mut self, step: Step, fault: &Fault) -> TestResult<(TestResult<Ran>, bool)> {
        let generation = self.rig.generation();
        self.rig.arm(step, fault.clone());
        let ran = self.rig.run(self.sql).await?;
        let met = self.rig.disarm(step);
        if met && matches!(fault, Fault::EndPolling) {
            // The thread may have been in the middle of a wait.
            let gone = async {
                while self.rig.generation() == generation {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            };
            timeout(HANG, gone).await.map_err(|_| "nobody noticed that the poll thread is gone")?;
        }
        Ok((ran, met))
    }

    /// The query itself is as if nothing had been.
    async fn done(self) -> TestResult {
        self.rig.healthy(self.sql, &self.want).await?;
        Ok(())
    }
}

impl Rig {
    /// Orders one fault.
    fn arm(&self, step: Step, fault: Fault) {
        self.gpu.device.faults().order(step.choke, step.n, fault);
    }

    /// Takes it back. True when it happened.
    fn disarm(&self, step: Step) -> bool {
        let met = self.gpu.device.faults().pending(step.choke) == 0;
        self.gpu.device.faults().clear();
        met
    }

    fn generation(&self) -> Option<u64> {
        self.gpu.device.current().map(|context| context.generation())
    }
}

/// Breaks every operator by `fault` at up to `most` calls of each choke point: the rows are the CPU's, and what the GPU did
/// not answer is counted.
async fn answers(fault: Fault, most: u64) -> TestResult {
    let mut rig = Rig::new().await?;
    for operator in OPERATORS {
        for (scope, every) in operator.scopes() {
            let mut walk = Walk::new(&mut rig, operator, scope).await?;
            let mut counted_steps = 0;
            for step in walk.steps(if every { most } else { 2 }) {
                let what = format!("{fault:?} at {step:?}, {scope}, {}", operator.sql);
                let (ran, met) =
                    walk.broken(step, &fault).await.map_err(|error| format!("{what}: {error}"))?;
                let ran = ran.map_err(|error| format!("{what}: {error}"))?;
                assert_eq!(ran.rows, walk.want, "{what}");
                let counted: usize = ran.fallbacks.iter().map(|(_, count)| count).sum();
                assert_eq!(ran.cpu_batches > 0, counted > 0, "{what}: {ran:?}");
                // A refused allocation may be answered by smaller batches, and a poll thread may end after the query.
                let certain = match fault {
                    Fault::Fail => step.choke != Choke::Allocate,
                    Fault::EndPolling => false,
                    _ => true,
                };
                assert!(counted > 0 || !met || !certain, "{what}: {ran:?}");
                counted_steps += usize::from(counted > 0);
                walk.rig.goes_on(&what).await?;
            }
            assert!(
                counted_steps > 1 || matches!(fault, Fault::EndPolling),
                "{fault:?}, {scope}, {}: {counted_steps}",
                operator.sql
            );
            walk.done().await?;
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn every_call_fails_once() -> TestResult {
    answers(Fault::Fail, u64::MAX).await
}

/// The first and the last call of each kind only: every shader is compiled anew after a loss.
#[tokio::test(flavor = "multi_thread")]
async fn the_device_is_lost_at_any_call() -> TestResult {
    answers(Fault::Lose, 2).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_poll_thread_ends_at_any_call() -> TestResult {
    answers(Fault::EndPolling, 2).await
}

/// The shader compiler's panics are failures like others; other panics are bugs, which end the query and nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn panics_at_any_call() -> TestResult {
    let mut rig = Rig::new().await?;
    for operator in OPERATORS {
        let walk = Walk::new(&mut rig, operator, "'batch'").await?;
        for step in walk.steps(2) {
            let what = format!("a panic at {step:?}, {}", operator.sql);
            walk.rig.arm(step, Fault::Panic);
            let verdict =
                run_apart(&walk.rig.gpu.ctx, walk.sql).await.map_err(|error| format!("{what}: {error}"))?;
            walk.rig.end().await?;
            walk.rig.disarm(step);
            match verdict {
                Verdict::Rows(ran) => {
                    assert_eq!(ran.rows, walk.want, "{what}");
                    let rejected = ran.fallbacks.iter().any(|(code, _)| code == "ShaderRejected");
                    assert!(rejected || step.choke != Choke::Compile, "{what}: {ran:?}");
                }
                Verdict::Error(text) | Verdict::Panic(text) => {
                    assert!(
                        step.choke != Choke::Compile && text.contains("injected fault"),
                        "{what}: {text}"
                    );
                }
            }
            walk.rig.goes_on(&what).await?;
        }
        walk.done().await?;
    }
    Ok(())
}

/// `gpu.fallback = 'error'`: the typed error reaches the user.
#[tokio::test(flavor = "multi_thread")]
async fn forbidden_fallbacks() -> TestResult {
    let mut rig = Rig::new().await?;
    rig.gpu.set("fallback", "'error'").await?;
    for operator in OPERATORS {
        for (scope, _) in operator.scopes().into_iter().filter(|(_, every)| *every) {
            let mut walk = Walk::new(&mut rig, operator, scope).await?;
            let mut refused = 0;
            let failures = walk.steps(2).into_iter().map(|step| (step, Fault::Fail));
            let losses = [(Choke::Submit, Fault::Lose), (Choke::Map, Fault::EndPolling)]
                .map(|(choke, fault)| (Step { choke, n: 2 }, fault));
            for (step, fault) in failures.chain(losses) {
                let what = format!("{fault:?} at {step:?}, {scope}, {}", operator.sql);
                let (ran, met) =
                    walk.broken(step, &fault).await.map_err(|error| format!("{what}: {error}"))?;
                match ran {
                    Ok(ran) => {
                        assert_eq!(ran.rows, walk.want, "{what}");
                        let uncertain = matches!(fault, Fault::EndPolling) || step.choke == Choke::Allocate;
                        assert!(ran.fallbacks.is_empty() && (uncertain || !met), "{what}: {ran:?}");
                    }
                    Err(error) => {
                        let error = error.downcast::<DataFusionError>()?;
                        let code = GpuError::find(&error).map(GpuError::code);
                        assert_eq!(code, Some(expected_code(&fault, step.choke)), "{what}: {error}");
                        refused += 1;
                    }
                }
                walk.rig.goes_on(&what).await?;
            }
            assert!(refused > 4, "{refused} errors from {}", operator.sql);
            walk.done().await?;
        }
    }
    Ok(())
}

fn expected_code(fault: &Fault, choke: Choke) -> &'static str {
    match (fault, choke) {
        (Fault::Fail, Choke::Allocate) => "AllocationRefused",
        (Fault::Fail, Choke::Submit | Choke::Map) => "KernelFault",
        (Fault::Fail, Choke::Compile) => "ShaderRejected",
        _ => "DeviceLost",
    }
}

/// How somebody who waits for a query goes away.
#[derive(Debug, Clone, Copy)]
enum Cancel {
    /// The stream is dropped while the call is held up.
    Drop,
    /// The task that reads the stream is aborted; the call goes on at once.
    Abort,
}

impl Walk<'_> {
    /// Runs the query until the step's call, and cancels it there. The rows, where they were complete before.
    async fn cancelled(&mut self, step: Step, cancel: Cancel) -> TestResult<Option<Vec<String>>> {
        let ctx = &self.rig.gpu.ctx;
        let plan = ctx.sql(self.sql).await?.create_physical_plan().await?;
        let task = ctx.task_ctx();
        let (go, ready) = oneshot::channel();
        let stop = Arc::new(Notify::new());
        let (dropped, gone) = mpsc::channel();
        let stopped = Arc::clone(&stop);
        let mut reader = JoinSet::new();
        let handle = reader.spawn(async move {
            let _ = ready.await;
            let stream = execute_stream(plan, task)?;
            let read = tokio::select! {
                biased;
                () = stopped.notified() => None,
                batches = stream.try_collect::<Vec<_>>() => Some(batches?),
            };
            let _ = dropped.send(());
            Ok::<_, DataFusionError>(read)
        });
        let gone = Mutex::new(gone);
        let call = move || match cancel {
            Cancel::Abort => handle.abort(),
            Cancel::Drop => {
                stop.notify_one();
                // Unless it is the reader itself that is held up. It may be queued behind this worker's task.
                if tokio::task::try_id() != Some(handle.id()) {
                    let _ = tokio::task::block_in_place(|| gone.lock().recv_timeout(HANG));
                }
            }
        };
        self.rig.arm(step, Fault::Call(Arc::new(call)));
        let _ = go.send(());
        let joined = timeout(HANG, reader.join_next()).await.map_err(|_| "the reader hangs")?;
        self.rig.end().await?;
        match joined.ok_or("there was no reader")? {
            Err(error) if error.is_cancelled() => Ok(None),
            read => read??.map(|batches| rows(&batches)).transpose(),
        }
    }
}

impl Walk<'_> {
    /// Cancels the query at a step: nothing comes of it, or, where it was complete by then, all of it.
    async fn cancel(&mut self, step: Step, cancel: Cancel, scope: &str) -> TestResult {
        let what = format!("{cancel:?} at {step:?}, {scope}, {}", self.sql);
        let read = self.cancelled(step, cancel).await.map_err(|error| format!("{what}: {error}"))?;
        let met = self.rig.disarm(step);
        match read {
            None => assert!(met, "{what}"),
            Some(rows) => {
                assert_eq!(rows, self.want, "{what}");
                assert!(!met || matches!(cancel, Cancel::Abort), "{what}: nothing was dropped");
            }
        }
        self.rig.goes_on(&what).await
    }
}

/// One way or the other at every call, and both ways at some.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn queries_are_cancelled_at_any_call() -> TestResult {
    let mut rig = Rig::new().await?;
    for operator in OPERATORS {
        let mut walk = Walk::new(&mut rig, operator, "'batch'").await?;
        for (index, step) in walk.steps(u64::MAX).into_iter().enumerate() {
            let cancel = if index % 2 == 0 { Cancel::Drop } else { Cancel::Abort };
            walk.cancel(step, cancel, "'batch'").await?;
        }
        walk.done().await?;
        let mut walk = Walk::new(&mut rig, operator, "'island'").await?;
        for step in walk.steps(2) {
            for cancel in [Cancel::Drop, Cancel::Abort] {
                walk.cancel(step, cancel, "'island'").await?;
            }
        }
        walk.done().await?;
    }
    Ok(())
}
