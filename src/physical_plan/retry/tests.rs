use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::memory::BufferKind;
use crate::memory::faults::{Choke, Fault};
use crate::memory::runtime::GpuDevice;
use crate::memory::testing::{device, own_device};

use super::*;

/// Row numbers.
#[derive(Debug, Clone, PartialEq)]
struct Rows(Range<usize>);

impl WorkInput for Rows {
    fn split(&self) -> Option<(Self, Self)> {
        let Range { start, end } = self.0;
        let half = start + (end - start) / 2;
        (end - start >= 2 * MIN_SPLIT_ROWS).then_some((Rows(start..half), Rows(half..end)))
    }

    fn join(self, next: Self) -> Self {
        assert_eq!(self.0.end, next.0.start);
        Rows(self.0.start..next.0.end)
    }

    fn release(&self) {}
}

fn context(device: &Arc<GpuDevice>) -> Arc<RunContext> {
    RunContext::over(Arc::clone(device), 1 << 20)
}

/// A work that holds a byte a row, and counts how often it is begun.
fn allocate(
    calls: &Arc<AtomicU64>,
) -> impl Fn(LaunchScope, Rows) -> std::future::Ready<GpuResult<()>> + use<> {
    let calls = Arc::clone(calls);
    move |scope, Rows(rows)| {
        calls.fetch_add(1, Ordering::SeqCst);
        let buffer = scope.context.allocate(&scope.memory, rows.len() as u64, BufferKind::Storage);
        std::future::ready(buffer.map(drop))
    }
}

async fn all<T: 'static>(mut parts: Parts<Rows, T>) -> Vec<Part<Rows, T>> {
    let mut all = vec![];
    while let Some(part) = parts.next().await.unwrap() {
        all.push(part);
    }
    all
}

#[tokio::test]
async fn what_does_not_fit_is_done_in_parts_in_order() {
    let (device, calls) = (device(), Arc::default());
    let run = context(&device);
    // It says too little of its need, too much, and what it is.
    for (say, most) in [(0, 1 << 20), (4, 1 << 18), (1, 1 << 20)] {
        let need = move |Rows(rows): &Rows| say * rows.len() as u64;
        let parts = all(with_retry(&run, Rows(0..5_000_000), need, allocate(&calls))).await;
        let mut next = 0;
        for Part { input: Rows(rows), outcome } in parts {
            assert!(outcome.is_ok() && rows.start == next && rows.len() <= most, "{rows:?}");
            next = rows.end;
        }
        assert_eq!(next, 5_000_000);
    }
    assert!(calls.load(Ordering::SeqCst) > 16);
}

/// Somebody else owns the device's memory.
#[tokio::test]
async fn a_driver_that_refuses_everything_is_not_asked_for_long() {
    let (device, calls) = (device(), Arc::default());
    let run = context(&device);
    device.faults().order_always(Choke::Allocate, Fault::Fail);
    for rows in [1 << 19, 1 << 25, 3_000] {
        let parts = all(with_retry(&run, Rows(0..rows), |_| 1000, allocate(&calls))).await;
        let [Part { input, outcome: Err(GpuError::AllocationRefused { .. }) }] = parts.as_slice() else {
            panic!("{} parts", parts.len());
        };
        assert_eq!(*input, Rows(0..rows));
    }
    assert_eq!(calls.load(Ordering::SeqCst), 9 + 9 + 2);
    device.faults().clear();
    assert!(all(with_retry(&run, Rows(0..9), |_| 9, allocate(&calls))).await[0].outcome.is_ok());
}

/// A work that is refused beside another waits for that one to end; when that was in vain, the next one does not.
#[tokio::test]
async fn who_was_refused_alone_is_not_waited_for() {
    let (device, calls) = (device(), Arc::default());
    let run = context(&device);
    device.faults().order_always(Choke::Allocate, Fault::Fail);
    let other = run.admit(Need::Bytes(1)).await.unwrap();
    let mut parts = with_retry(&run, Rows(0..100), |_| 100, allocate(&calls));
    while device.ledger().works().1 == 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(calls.load(Ordering::SeqCst), 1);
    drop(other);
    assert!(parts.next().await.unwrap().unwrap().outcome.is_err());
    assert_eq!((calls.load(Ordering::SeqCst), device.ledger().alone_is_vain()), (2, true));
    let _other = run.admit(Need::Bytes(1)).await.unwrap();
    assert!(all(with_retry(&run, Rows(0..100), |_| 100, allocate(&calls))).await[0].outcome.is_err());
    assert_eq!(calls.load(Ordering::SeqCst), 3);
}

/// A work that loses the device the first `times` times; gives the generation that it ended on.
fn losing(
    device: &Arc<GpuDevice>,
    times: u64,
    calls: &Arc<AtomicU64>,
) -> impl Fn(LaunchScope, Rows) -> std::future::Ready<GpuResult<u64>> + use<> {
    let (device, calls) = (Arc::clone(device), Arc::clone(calls));
    move |scope, _| {
        if calls.fetch_add(1, Ordering::SeqCst) < times {
            device.lose();
        }
        let buffer = scope.context.allocate(&scope.memory, 16, BufferKind::Storage);
        std::future::ready(buffer.map(|_| scope.context.generation()))
    }
}

#[tokio::test]
async fn a_loss_is_tried_again_once_and_not_for_ever() {
    let device = own_device();
    let run = context(&device);
    let outcome = async |run: &Arc<RunContext>, times, calls: &Arc<AtomicU64>| {
        let mut parts = all(with_retry(run, Rows(0..9000), |_| 16, losing(&device, times, calls))).await;
        assert_eq!((parts.len(), &parts[0].input), (1, &Rows(0..9000)));
        parts.remove(0).outcome
    };
    let calls = Arc::default();
    assert_eq!(outcome(&run, 1, &calls).await.unwrap(), 2);
    let killed = outcome(&run, u64::MAX, &calls).await.unwrap_err();
    assert!(matches!(killed, GpuError::DeviceLost(_)), "{killed}");
    assert_eq!(calls.load(Ordering::SeqCst), 4);
    // That were three of them: enough for this query, and nothing to others.
    let left = outcome(&run, 0, &calls).await.unwrap_err().to_string();
    assert!(left.contains("lost: 3 times during this query"), "{left}");
    assert_eq!(calls.load(Ordering::SeqCst), 4);
    assert_eq!(outcome(&context(&device), 0, &calls).await.unwrap(), 4);
}

/// The caller is busy, and the work ends all the same.
#[tokio::test]
async fn a_work_goes_on_unwatched() {
    let (device, calls) = (device(), Arc::default());
    let run = context(&device);
    let mut parts = with_retry(&run, Rows(0..100), |_| 100, allocate(&calls));
    let start = Instant::now();
    while calls.load(Ordering::SeqCst) == 0 || device.ledger().works() != (0, 0) {
        assert!(start.elapsed() < Duration::from_secs(20));
        tokio::task::yield_now().await;
    }
    assert_eq!(device.ledger().reserved(), 0);
    assert!(parts.next().await.unwrap().unwrap().outcome.is_ok());
    assert!(parts.next().await.unwrap().is_none() && parts.next().await.unwrap().is_none());
}

#[tokio::test]
#[should_panic(expected = "another admission")]
async fn a_work_must_not_wait_for_another_admission() {
    let run = context(&device());
    let inner = Arc::clone(&run);
    let work = move |_, _| {
        let run = Arc::clone(&inner);
        async move { run.admit(Need::Bytes(1)).await }
    };
    drop(all(with_retry(&run, Rows(0..1), |_| 1, work)).await);
}
