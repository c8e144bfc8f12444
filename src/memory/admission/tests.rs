use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;

use super::super::budget::{MemoryScope, Reservation};
use super::*;

type Admitting = Pin<Box<dyn Future<Output = MemoryScope> + Send>>;

fn admitting(scope: &MemoryScope, need: Need) -> Admitting {
    let scope = scope.clone();
    Box::pin(async move { scope.admit(need).await })
}

/// The scope, if the work has been let in by now.
async fn now(admitting: &mut Admitting) -> Option<MemoryScope> {
    match futures::poll!(admitting.as_mut()) {
        Poll::Ready(scope) => Some(scope),
        Poll::Pending => None,
    }
}

fn ledger() -> (Arc<DeviceLedger>, MemoryScope) {
    let ledger = DeviceLedger::detached(u64::MAX);
    let scope = MemoryScope::new(&ledger, "test", 1000);
    (ledger, scope)
}

#[tokio::test]
async fn works_wait_for_room_in_the_order_in_which_they_came() {
    let (ledger, scope) = ledger();
    let first = scope.admit(Need::Bytes(600)).await;
    let mut second = admitting(&scope, Need::Bytes(600));
    assert!(now(&mut second).await.is_none());
    // It would fit, but others came before it.
    let mut third = admitting(&scope, Need::Bytes(100));
    assert!(now(&mut third).await.is_none());
    assert_eq!(ledger.works(), (1, 2));
    drop(first);
    let second = now(&mut second).await.unwrap();
    let third = now(&mut third).await.unwrap();
    assert_eq!(ledger.works(), (2, 0));
    drop((second, third));
    assert_eq!(ledger.works(), (0, 0));
}

#[tokio::test]
async fn what_a_work_was_promised_is_kept_for_it() {
    let (ledger, scope) = ledger();
    let work = scope.admit(Need::Bytes(600)).await;
    assert_eq!((work.available(), scope.available()), (1000, 400));
    let error = scope.reserve(401).unwrap_err().to_string();
    assert!(error.contains("600 of 1000 bytes are in use"), "{error}");
    assert!(error.contains("promised to other work 600 B"), "{error}");
    let other = scope.reserve(400).unwrap();
    let transient = work.reserve(500).unwrap();
    assert_eq!(ledger.reserved(), 900);
    // What it gives back is still its own.
    drop(transient);
    assert!(scope.reserve(1).is_err());
    let held: Vec<Reservation> = (0..6).map(|_| work.reserve(100).unwrap()).collect();
    assert!(work.reserve(1).is_err(), "nothing is left beyond the promise");
    drop(other);
    // Beyond the promise it takes what is there.
    let more = work.reserve(300).unwrap();
    assert_eq!((scope.available(), ledger.reserved()), (100, 900));
    // The work ends while somebody still holds its memory.
    drop(work);
    assert_eq!(ledger.works(), (0, 0));
    assert_eq!(scope.available(), 100);
    drop((held, more));
    assert_eq!((scope.available(), ledger.reserved()), (1000, 0));
}

#[tokio::test]
async fn a_cancelled_work_loses_its_place() {
    let (ledger, scope) = ledger();
    let first = scope.admit(Need::Bytes(1000)).await;
    let mut second = admitting(&scope, Need::Bytes(1000));
    let mut third = admitting(&scope, Need::Bytes(10));
    assert!(now(&mut second).await.is_none() && now(&mut third).await.is_none());
    drop(second);
    assert_eq!(ledger.works(), (1, 1));
    drop(first);
    // It was let in and never noticed.
    assert_eq!(ledger.works(), (1, 0));
    drop(third);
    assert_eq!(ledger.works(), (0, 0));
    assert_eq!(scope.available(), 1000);
}

#[tokio::test]
async fn a_work_that_would_be_alone_is_always_let_in() {
    let (ledger, scope) = ledger();
    let resident = scope.reserve(900).unwrap();
    let huge = scope.admit(Need::Bytes(u64::MAX)).await;
    assert_eq!(huge.available(), 100);
    let mut alone = admitting(&scope, Need::Alone);
    assert!(now(&mut alone).await.is_none());
    drop(huge);
    let alone = now(&mut alone).await.unwrap();
    let mut small = admitting(&scope, Need::Bytes(1));
    assert!(now(&mut small).await.is_none());
    drop(resident);
    assert!(now(&mut small).await.is_none());
    assert_eq!(alone.available(), 1000);
    drop(alone);
    assert!(now(&mut small).await.is_some());
    assert_eq!(ledger.works(), (0, 0));
}

#[tokio::test]
async fn there_are_never_too_many_works() {
    let (ledger, scope) = ledger();
    let mut works = vec![];
    for _ in 0..*MOST {
        works.push(scope.admit(Need::Bytes(0)).await);
    }
    let mut next = admitting(&scope, Need::Bytes(0));
    assert!(now(&mut next).await.is_none());
    works.pop();
    assert!(now(&mut next).await.is_some());
    drop((works, next));
    assert_eq!(ledger.works(), (0, 0));
}

/// Many tasks, some of which are cancelled: the limit holds at every moment, and everybody gets his turn.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_limit_holds_under_load() {
    let (ledger, scope) = ledger();
    let mut tasks = tokio::task::JoinSet::new();
    let all = Arc::new(AtomicU64::new(0));
    for task in 0..64u64 {
        let (scope, all) = (scope.clone(), Arc::clone(&all));
        tasks.spawn(async move {
            for round in 0..20 {
                let bytes = 50 + (task * 37 + round * 11) % 400;
                let admitted = scope.admit(Need::Bytes(bytes));
                if (task + round) % 7 == 0 {
                    drop(tokio::time::timeout(Duration::ZERO, admitted).await);
                    continue;
                }
                let work = admitted.await;
                let held = work.reserve(bytes).unwrap();
                let together = all.fetch_add(held.bytes(), Ordering::SeqCst) + held.bytes();
                assert!(together <= 1000, "{together} bytes are held");
                tokio::task::yield_now().await;
                all.fetch_sub(held.bytes(), Ordering::SeqCst);
                drop(held);
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    assert_eq!((ledger.works(), ledger.reserved()), ((0, 0), 0));
    assert!(ledger.peak() > 500, "they hardly met");
}

/// A session with a low limit does not keep those with a higher one from what is there, but it gets its turn.
#[tokio::test]
async fn a_low_limit_is_passed_by_some() {
    let (ledger, low) = ledger();
    let high = MemoryScope::new(&ledger, "high", 10_000);
    let large = high.admit(Need::Bytes(5000)).await;
    let mut first = admitting(&low, Need::Bytes(100));
    let mut second = admitting(&low, Need::Bytes(1));
    assert!(now(&mut first).await.is_none() && now(&mut second).await.is_none());
    assert_eq!(ledger.waiting(), [("test".to_string(), 101)]);
    assert_eq!(ledger.promised(), [("high".to_string(), 5000)]);
    for _ in 0..MOST_PASSING {
        assert!(now(&mut admitting(&high, Need::Bytes(1000))).await.is_some());
    }
    let mut late = admitting(&high, Need::Bytes(1000));
    assert!(now(&mut late).await.is_none(), "they were passed often enough");
    drop(large);
    assert!(now(&mut first).await.is_some() && now(&mut second).await.is_some());
    assert!(now(&mut late).await.is_some());
    // One that is too large for what is free is passed by nobody with the same limit, and one who wants to be alone by nobody.
    let large = high.admit(Need::Bytes(9000)).await;
    let mut next = admitting(&high, Need::Bytes(2000));
    let mut small = admitting(&high, Need::Bytes(10));
    assert!(now(&mut next).await.is_none() && now(&mut small).await.is_none());
    drop((next, small));
    let mut alone = admitting(&low, Need::Alone);
    let mut small = admitting(&high, Need::Bytes(10));
    assert!(now(&mut alone).await.is_none() && now(&mut small).await.is_none());
    drop((large, alone, small));
    assert_eq!(ledger.works(), (0, 0));
}
