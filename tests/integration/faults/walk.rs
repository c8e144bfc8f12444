//! Breaks the query of each operator at each call of each choke point.

use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use datafusion::error::DataFusionError;
use datafusion::physical_plan::execute_stream;
use datafusion_wgpu::error::GpuError;
use datafusion_wgpu::memory::faults::{Choke, Fault};
use datafusion_wgpu::memory::{MemoryScope, Need};
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
        // One that was lost at the very end of the last query has no context until somebody asks for one.
        let generation = Some(self.rig.gpu.device.context()?.generation());
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

/// Another query is run after one step in so many; each step is one itself.
const GOES_ON: usize = 4;

/// Breaks every operator by `fault` at up to `most` calls of each choke point, and at up to `most_islands` where its whole
/// island falls back: the rows are the CPU's, and what the GPU did not answer, or only when asked again, is counted.
async fn answers(fault: Fault, most: u64, most_islands: u64) -> TestResult {
    let mut rig = Rig::new().await?;
    for operator in OPERATORS {
        for scope in rig.scopes(operator).await? {
            let mut walk = Walk::new(&mut rig, operator, scope).await?;
            let (mut noticed, mut tried_again) = (0, 0);
            // The rows of `u` are too few for halves.
            let halves = !operator.sql.contains("FROM u");
            for (number, step) in
                walk.steps(if *scope == "'batch'" { most } else { most_islands }).into_iter().enumerate()
            {
                let what = format!("{fault:?} at {step:?}, {scope}, {}", operator.sql);
                let (ran, met) =
                    walk.broken(step, &fault).await.map_err(|error| format!("{what}: {error}"))?;
                let ran = ran.map_err(|error| format!("{what}: {error}"))?;
                assert_eq!(ran.rows, walk.want, "{what}");
                let counted: usize = ran.fallbacks.iter().map(|(_, count)| count).sum();
                assert_eq!(ran.cpu_batches > 0, counted > 0, "{what}: {ran:?}");
                let again = ran.splits + ran.retries;
                let (falls_back, is_tried_again) = match fault {
                    Fault::Fail => (step.choke != Choke::Allocate, step.choke == Choke::Allocate),
                    _ => (false, true),
                };
                // A poll thread may end after the query.
                let certain = met && !matches!(fault, Fault::EndPolling);
                assert!(!certain || !falls_back || counted > 0, "{what}: {ran:?}");
                // Where nothing else runs, and the batch can't be halved, there is nothing to try again.
                assert!(!certain || !is_tried_again || again + counted > 0, "{what}: {ran:?}");
                tried_again += again;
                assert!(matches!(fault, Fault::Fail) || counted == 0, "{what}: {ran:?}");
                noticed += usize::from(counted + again > 0);
                if number % GOES_ON == 0 {
                    walk.rig.goes_on(&what).await?;
                }
            }
            assert!(
                noticed > 1 && (tried_again > 0 || !halves) || matches!(fault, Fault::EndPolling),
                "{fault:?}, {scope}, {}: {noticed} {tried_again}",
                operator.sql
            );
            walk.done().await?;
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn every_call_fails_once() -> TestResult {
    answers(Fault::Fail, u64::MAX, 6).await
}

/// Some calls of each kind only: every shader is compiled anew after a loss.
#[tokio::test(flavor = "multi_thread")]
async fn the_device_is_lost_at_any_call() -> TestResult {
    answers(Fault::Lose, 3, 1).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_poll_thread_ends_at_any_call() -> TestResult {
    answers(Fault::EndPolling, 3, 1).await
}

/// The shader compiler's panics are failures like others; other panics are bugs, which end the query and nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn panics_at_any_call() -> TestResult {
    let mut rig = Rig::new().await?;
    for operator in OPERATORS {
        let walk = Walk::new(&mut rig, operator, "'batch'").await?;
        for step in walk.steps(3) {
            let what = format!("a panic at {step:?}, {}", operator.sql);
            walk.rig.arm(step, Fault::Panic);
            let verdict =
                run_apart(&walk.rig.gpu.ctx, walk.sql).await.map_err(|error| format!("{what}: {error}"))?;
            walk.rig.end().await?;
            let met = walk.rig.disarm(step);
            match verdict {
                Verdict::Rows(ran) => {
                    assert_eq!(ran.rows, walk.want, "{what}");
                    let rejected = ran.fallbacks.iter().any(|(code, _)| code == "ShaderRejected");
                    // How many shapes a query compiles depends on what its dynamic filter leaves of the rows.
                    assert!(rejected || !met || step.choke != Choke::Compile, "{what}: {ran:?}");
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
        for scope in rig.scopes(operator).await? {
            let mut walk = Walk::new(&mut rig, operator, scope).await?;
            let mut refused = 0;
            let failures = walk.steps(2).into_iter().map(|step| (step, Fault::Fail));
            let losses = [(Choke::Submit, Fault::Lose), (Choke::Map, Fault::EndPolling)]
                .map(|(choke, fault)| (Step { choke, n: 2 }, fault));
            for (step, fault) in failures.chain(losses) {
                let what = format!("{fault:?} at {step:?}, {scope}, {}", operator.sql);
                let (ran, met) =
                    walk.broken(step, &fault).await.map_err(|error| format!("{what}: {error}"))?;
                // How many calls there are depends on which batches end first.
                assert!(met || step.n > 1, "{what}: there was no such call");
                match ran {
                    Ok(ran) => {
                        assert_eq!(ran.rows, walk.want, "{what}");
                        let helped = !matches!(fault, Fault::Fail) || step.choke == Choke::Allocate;
                        assert!(ran.fallbacks.is_empty() && (helped || !met), "{what}: {ran:?}");
                    }
                    Err(error) => {
                        let error = error.downcast::<DataFusionError>()?;
                        let code = GpuError::find(&error).map(GpuError::code);
                        // A loss is no error of the query's.
                        assert!(matches!(fault, Fault::Fail), "{what}: {error}");
                        assert_eq!(code, Some(expected_code(step.choke)), "{what}: {error}");
                        refused += 1;
                    }
                }
                walk.rig.goes_on(&what).await?;
            }
            // The first call of each choke point but allocation.
            assert!(refused >= Choke::ALL.len() - 1, "{refused} errors from {}", operator.sql);
            walk.done().await?;
        }
    }
    Ok(())
}

fn expected_code(choke: Choke) -> &'static str {
    match choke {
        Choke::Allocate => "AllocationRefused",
        Choke::Submit | Choke::Map => "KernelFault",
        Choke::Compile => "ShaderRejected",
        Choke::Open => "NoAdapter",
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
    async fn cancel(&mut self, step: Step, cancel: Cancel, scope: &str, goes_on: bool) -> TestResult {
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
        if goes_on {
            self.rig.goes_on(&what).await?;
        }
        Ok(())
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
            walk.cancel(step, cancel, "'batch'", index % GOES_ON == 0).await?;
        }
        walk.done().await?;
        if rig.scopes(operator).await?.contains(&"'island'") {
            let mut walk = Walk::new(&mut rig, operator, "'island'").await?;
            for step in walk.steps(2) {
                for cancel in [Cancel::Drop, Cancel::Abort] {
                    walk.cancel(step, cancel, "'island'", false).await?;
                }
            }
            walk.done().await?;
        }
    }
    Ok(())
}

/// A query that waits for its first admission goes away, and so does its place in the queue.
#[tokio::test(flavor = "multi_thread")]
async fn queries_are_cancelled_while_they_wait_for_admission() -> TestResult {
    let mut rig = Rig::new().await?;
    for operator in OPERATORS {
        rig.prepare(operator, "'batch'").await?;
        let ledger = Arc::clone(rig.gpu.device.ledger());
        let alone = MemoryScope::new(&ledger, "test", u64::MAX).admit(Need::Alone).await;
        let plan = rig.gpu.ctx.sql(operator.sql).await?.create_physical_plan().await?;
        let task = rig.gpu.ctx.task_ctx();
        let mut reader = JoinSet::new();
        reader.spawn(async move { execute_stream(plan, task)?.try_collect::<Vec<_>>().await });
        let works = |running, some: bool| {
            let ledger = Arc::clone(&ledger);
            async move {
                while ledger.works().0 != running || (ledger.works().1 > 0) != some {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            }
        };
        timeout(HANG, works(1, true)).await.map_err(|_| format!("{} does not wait", operator.sql))?;
        reader.shutdown().await;
        timeout(HANG, works(1, false)).await.map_err(|_| format!("{} still waits", operator.sql))?;
        drop(alone);
        rig.end().await?;
        rig.goes_on(operator.sql).await?;
    }
    Ok(())
}
