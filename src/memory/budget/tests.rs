use super::*;

#[test]
fn counts_live_bytes_and_forgets_them() {
    let ledger = DeviceLedger::detached(u64::MAX);
    let a = MemoryScope::new(&ledger, "a", u64::MAX);
    let first = a.reserve(100).unwrap();
    let second = a.for_consumer("b").reserve(2048).unwrap();
    assert_eq!(ledger.reserved(), 2148);
    assert_eq!(ledger.holders(), vec![("b".to_string(), 2048), ("a".to_string(), 100)]);
    assert_eq!(ledger.report(), "b 2.0 KiB, a 100 B");
    drop(second);
    assert_eq!(ledger.holders(), vec![("a".to_string(), 100)]);
    drop(first);
    assert_eq!((ledger.reserved(), ledger.peak()), (0, 2148));
    assert_eq!(ledger.report(), "nobody holds any");
}

#[test]
fn refuses_beyond_the_smaller_limit() {
    let ledger = DeviceLedger::detached(1000);
    let _held = MemoryScope::new(&ledger, "sort", u64::MAX).reserve(600).unwrap();
    let error = MemoryScope::new(&ledger, "join", 900).reserve(301).unwrap_err().to_string();
    assert_eq!(
        error,
        "out of device memory: join needs 301 bytes, 600 of 900 bytes are in use (sort 600 B); raise gpu.memory_limit"
    );
    let error = MemoryScope::new(&ledger, "join", u64::MAX).reserve(401).unwrap_err().to_string();
    assert!(error.contains("600 of 1000 bytes"), "{error}");
    assert!(error.contains("all the device has") && !error.contains("gpu.memory_limit"), "{error}");
    assert_eq!(MemoryScope::new(&ledger, "join", 900).available(), 300);
    assert!(MemoryScope::new(&ledger, "join", 900).reserve(300).is_ok());
    assert!(MemoryScope::new(&ledger, "join", u64::MAX).reserve(u64::MAX).is_err());
}

#[derive(Debug)]
struct Idle(Mutex<u64>);
impl Reclaim for Idle {
    fn idle_bytes(&self) -> u64 {
        *self.0.lock()
    }
    fn reclaim(&self, bytes: u64) {
        let mut idle = self.0.lock();
        *idle = idle.saturating_sub(bytes);
    }
}

#[test]
fn evicts_idle_bytes_before_they_exceed_the_limit() {
    let pools = Arc::new(PoolRegistry::default());
    let idle = Arc::new(Idle(Mutex::new(800)));
    let pool: Arc<dyn Reclaim> = Arc::clone(&idle) as _;
    pools.add(Arc::downgrade(&pool));
    let ledger = DeviceLedger::new(1000, pools);
    let scope = MemoryScope::new(&ledger, "x", u64::MAX);
    let _first = scope.reserve(200).unwrap();
    assert_eq!(ledger.idle(), 800);
    let _second = scope.reserve(300).unwrap();
    assert_eq!(ledger.idle(), 500);
    let _third = scope.reserve(500).unwrap();
    assert_eq!(ledger.idle(), 0);
    assert!(scope.reserve(1).is_err());
}

#[derive(Debug)]
struct Cache(Mutex<Vec<Reservation>>);

impl DeviceCache for Cache {
    fn evict(&self, bytes: u64) -> u64 {
        let mut freed = 0;
        while freed < bytes {
            let Some(entry) = self.0.lock().pop() else { break };
            freed += entry.bytes();
        }
        freed
    }
}

#[test]
fn caches_go_first() {
    let ledger = DeviceLedger::detached(1000);
    let scope = MemoryScope::new(&ledger, "cache", u64::MAX);
    let cache = Arc::new(Cache(Mutex::new((0..8).map(|_| scope.reserve(100).unwrap()).collect())));
    let registered: Arc<dyn DeviceCache> = Arc::clone(&cache) as _;
    ledger.register_cache(Arc::downgrade(&registered));
    let first = scope.for_consumer("query").reserve(350).unwrap();
    assert_eq!((cache.0.lock().len(), ledger.reserved()), (6, 950));
    let error = scope.for_consumer("query").reserve(651).unwrap_err().to_string();
    assert!(error.contains("350 of 1000 bytes are in use (query 350 B)"), "{error}");
    drop((registered, cache));
    assert!(scope.reserve(651).is_err() && scope.reserve(650).is_ok());
    drop(first);
}

#[test]
fn caches_are_asked_for_no_more_than_is_missing() {
    let ledger = DeviceLedger::detached(1000);
    let scope = MemoryScope::new(&ledger, "cache", u64::MAX);
    let cache = || Arc::new(Cache(Mutex::new((0..5).map(|_| scope.reserve(100).unwrap()).collect())));
    let caches = [cache(), cache()];
    let registered = caches.clone().map(|cache| -> Arc<dyn DeviceCache> { cache });
    registered.iter().for_each(|cache| ledger.register_cache(Arc::downgrade(cache)));
    let first = scope.for_consumer("query").reserve(200).unwrap();
    assert_eq!(caches.each_ref().map(|cache| cache.0.lock().len()), [3, 5]);
    let _second = scope.for_consumer("query").reserve(400).unwrap();
    assert_eq!(caches.each_ref().map(|cache| cache.0.lock().len()), [0, 4]);
    drop(first);
}

/// Works that wait are told of what comes back by itself, and are not let in to be refused.
#[tokio::test]
async fn who_would_be_alone_waits_for_what_comes_back() {
    let ledger = DeviceLedger::detached(1000);
    let scope = MemoryScope::new(&ledger, "x", u64::MAX);
    let mut staging = scope.reserve(700).unwrap();
    staging.returns();
    let mut waits = Box::pin(scope.admit(Need::Bytes(500)));
    assert!(futures::poll!(waits.as_mut()).is_pending());
    let small = scope.admit(Need::Bytes(300));
    drop(staging);
    let work = waits.await;
    assert_eq!(work.available(), 1000);
    drop(work);
    drop(small.await);
    // What does not come back by itself is not waited for.
    let held = scope.reserve(700).unwrap();
    assert_eq!(scope.admit(Need::Bytes(500)).await.available(), 300);
    drop(held);
}
