use super::*;

fn event(query_id: u64) -> FallbackEvent {
    FallbackEvent {
        time: SystemTime::UNIX_EPOCH,
        session_id: String::new(),
        query_id,
        query: "SELECT 1".into(),
        node: "GpuFilterExec[0]".to_owned(),
        scope: "batch",
        code: "ArithmeticFault",
        message: String::new(),
        forbidden: false,
    }
}

#[test]
fn hooks_are_called_until_dropped_and_may_panic() {
    let observers = Arc::new(Observers::default());
    let seen = Arc::new(Mutex::new(vec![]));
    let panicking = observers.on_fallback(|_| panic!("a hook's own fault"));
    let into = Arc::clone(&seen);
    let counting = observers.on_fallback(move |event| into.lock().push(event.query_id));
    let into = Arc::clone(&seen);
    observers.on_fallback(move |event| into.lock().push(100 + event.query_id)).forever();
    observers.fell_back(event(1));
    drop(counting);
    observers.fell_back(event(2));
    drop(panicking);
    assert_eq!(*seen.lock(), [1, 101, 102]);
}

#[test]
fn a_hook_may_take_itself_away() {
    let observers = Arc::new(Observers::default());
    let slot: Arc<Mutex<Option<Subscription>>> = Arc::default();
    let own = Arc::clone(&slot);
    *slot.lock() = Some(observers.on_fallback(move |_| {
        let gone = own.lock().take();
        drop(gone);
    }));
    observers.fell_back(event(1));
    assert!(slot.lock().is_none());
    assert!(observers.fallbacks.registered.read().is_empty());
}

#[test]
fn the_latest_fallbacks_are_remembered() {
    let observers = Arc::new(Observers::default());
    let count = REMEMBERED_FALLBACKS as u64 + 3;
    (1..=count).for_each(|id| observers.fell_back(event(id)));
    let recent = observers.recent_fallbacks();
    assert_eq!(recent.len(), REMEMBERED_FALLBACKS);
    assert_eq!((recent[0].query_id, recent[REMEMBERED_FALLBACKS - 1].query_id), (count, 4));
}
