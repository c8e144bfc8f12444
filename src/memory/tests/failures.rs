//! Injected faults, cancelled work, lost devices, wrong shaders and commands.

use std::panic::resume_unwind;
use std::slice;

use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::super::faults::Fault;
use super::super::poll::Progress;
use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn injected_faults_are_typed_and_leave_nothing_behind() {
    let device = device();
    let scope = scope(&device);
    let source = batch(columns(50_000, 3));
    let wanted = all_columns(&source);
    for n in [1, 3, 20, 31, 32] {
        device.faults().fail(Choke::Allocate, n);
        let error = upload(&scope, slice::from_ref(&source), &wanted).await.unwrap_err();
        assert!(matches!(error, GpuError::AllocationRefused { .. }), "{n} {error}");
        settles(&device, 0).await;
    }
    for n in [1, 4] {
        device.faults().fail(Choke::Submit, n);
        let error = upload(&scope, slice::from_ref(&source), &wanted).await.unwrap_err();
        assert!(matches!(error, GpuError::KernelFault { .. }), "{error}");
        settles(&device, 0).await;
    }
    device.faults().fail(Choke::Map, 1);
    let column = upload(&scope, &[source], &[4]).await.unwrap().remove(0);
    let error = read(&scope, &[(&column.values, 64)]).await.unwrap_err();
    assert!(matches!(error, GpuError::KernelFault { .. }), "{error}");
    assert!(read(&scope, &[(&column.values, 64)]).await.is_ok());
    drop(column);
    settles(&device, 0).await;
}

/// A cache of buffers on the device.
#[derive(Debug)]
struct Kept(Mutex<Vec<Arc<DeviceBuffer>>>);

impl DeviceCache for Kept {
    fn evict(&self, bytes: u64) -> u64 {
        let mut freed = 0;
        while freed < bytes {
            let Some(buffer) = self.0.lock().pop() else { break };
            freed += buffer.size();
        }
        freed
    }
}

/// The driver has less than the ledger thinks: free buffers and caches go before that is an error, and nothing is left of it.
#[tokio::test]
async fn a_driver_without_memory_is_given_what_caches_hold() {
    let device = own_device();
    let scope = scope(&device);
    let buffers = [1 << 20, 1 << 18].map(|bytes| {
        scope.context.allocate(&scope.memory.for_consumer("cache"), bytes, BufferKind::Storage).unwrap()
    });
    let cache = Arc::new(Kept(Mutex::new(buffers.into())));
    let registered: Arc<dyn DeviceCache> = Arc::clone(&cache) as _;
    device.ledger().register_cache(Arc::downgrade(&registered));
    drop(scope.context.allocate(&scope.memory, 1 << 19, BufferKind::Storage).unwrap());
    assert!(device.ledger().alive() >= (1 << 20) + (1 << 18) + (1 << 19));
    device.faults().fail(Choke::Allocate, 1);
    let error = scope.context.allocate(&scope.memory, 1 << 21, BufferKind::Storage).unwrap_err();
    assert!(matches!(error, GpuError::AllocationRefused { bytes: 2_097_152, .. }), "{error}");
    assert_eq!((device.ledger().peak(), device.ledger().reserved()), ((1 << 20) + (1 << 18) + (1 << 21), 0));
    assert_eq!((device.ledger().alive(), device.ledger().idle(), cache.0.lock().len()), (0, 0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_uploads_and_downloads_release_everything() {
    let device = device();
    let scope = scope(&device);
    let source = batch(columns(200_000, 3));
    let wanted = all_columns(&source);
    for polls in 1..6 {
        let batches = [source.clone()];
        let mut upload = Box::pin(upload(&scope, &batches, &wanted));
        for _ in 0..polls {
            let _ = futures::poll!(upload.as_mut());
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        drop(upload);
        settles(&device, 0).await;
    }
    let column = upload(&scope, &[source], &[4]).await.unwrap().remove(0);
    let held = bytes_of(&column);
    for _ in 0..3 {
        let ranges = [(&column.values, 8 * 200_000)];
        let mut download = Box::pin(read(&scope, &ranges));
        let _ = futures::poll!(download.as_mut());
        drop(download);
        settles(&device, held).await;
    }
    check_column(&scope, &column, &[Arc::clone(batch(columns(200_000, 3)).column(4))]).await;
}

#[tokio::test]
async fn bad_shaders_are_rejected_and_the_device_lives_on() {
    let device = device();
    let scope = scope(&device);
    let naga_panics = "@group(0) @binding(0) var<storage, read_write> x: array<u64>;
@compute @workgroup_size(1) fn main() { x[0] = countLeadingZeros(x[1]); }";
    let only = |wgsl: &str| ShaderSource {
        name: "bad".to_string(),
        wgsl: wgsl.to_string(),
        bindings: vec![BindingKind::Storage],
    };
    let no_parse = only("fn main( {");
    let no_entry = only("@compute @workgroup_size(1) fn other() {}");
    for source in [no_parse, no_entry, only(naga_panics), shader(&DOUBLE.replace("<uniform>", "<storage>"))] {
        let error = scope.context.compile(source.clone(), &scope.stats).await.unwrap_err();
        let GpuError::ShaderRejected { kernel, message } = error else { panic!("{error}") };
        assert!(kernel == source.name && !message.is_empty());
        // Where the text is wrong, the message names the line and shows it.
        let line = source.wgsl.contains("main( {").then_some(["wgsl:1:", "fn main( {"]);
        assert!(line.into_iter().flatten().all(|part| message.contains(part)), "{message}");
    }
    device.faults().fail(Choke::Compile, 1);
    assert!(matches!(scope.context.pipeline(&shader(DOUBLE)), Err(GpuError::ShaderRejected { .. })));
    assert!(scope.context.pipeline(&shader(DOUBLE)).is_ok());
    assert_eq!(scope.stats.snapshot().pipelines_compiled, 0);
}

#[tokio::test]
async fn wrong_commands_are_errors_of_the_submission() {
    let device = device();
    let scope = scope(&device);
    let a = scope.context.allocate(&scope.memory, 256, BufferKind::Storage).unwrap();
    let b = scope.context.allocate(&scope.memory, 256, BufferKind::Storage).unwrap();
    let mut encoder = new_encoder(&scope);
    encoder.copy_buffer_to_buffer(a.raw(), 0, b.raw(), 128, 256);
    let error = scope.context.submit(encoder).unwrap_err();
    assert!(matches!(error, GpuError::KernelFault { .. }), "{error}");
    let mut encoder = new_encoder(&scope);
    encoder.copy_buffer_to_buffer(a.raw(), 0, b.raw(), 0, 256);
    scope.context.submit(encoder).unwrap().wait().await.unwrap();
}

/// Tasks that read the first 800,000 bytes of a column until that fails.
fn readers(scope: &LaunchScope, column: &DeviceColumn) -> JoinSet<GpuError> {
    let mut readers = JoinSet::new();
    for _ in 0..4 {
        let (scope, column) = (scope.clone(), column.clone());
        readers.spawn(async move {
            loop {
                if let Err(error) = read(&scope, &[(&column.values, 800_000)]).await {
                    return error;
                }
            }
        });
    }
    readers
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_device_fails_its_waiters_and_is_replaced() {
    for round in 0..2 {
        let device = own_device();
        let old = scope(&device);
        assert_eq!(old.context.generation(), 1);
        let source = batch(columns(100_000, 2));
        let column = upload(&old, slice::from_ref(&source), &[4]).await.unwrap().remove(0);
        let submission = {
            let encoder = new_encoder(&old);
            old.context.submit(encoder).unwrap()
        };
        let waiters = readers(&old, &column);
        tokio::time::sleep(Duration::from_millis(20)).await;
        // Once by the hook, once by wgpu alone, as an application or a driver might.
        if round == 0 {
            device.lose();
        } else {
            old.context.device().destroy();
        }
        let errors = timeout(Duration::from_secs(10), waiters.join_all()).await.expect("no hang");
        for error in errors {
            assert!(matches!(error, GpuError::DeviceLost(_)), "{error}");
        }
        let _ = timeout(Duration::from_secs(10), submission.wait()).await.expect("no hang");
        assert!(old.context.is_lost());
        let error = upload(&old, slice::from_ref(&source), &[4]).await.unwrap_err();
        assert!(matches!(error, GpuError::DeviceLost(_)), "{error}");
        let error = old.context.compile(shader(DOUBLE), &old.stats).await.unwrap_err();
        assert!(matches!(error, GpuError::DeviceLost(_)), "{error}");

        let new = scope(&device);
        assert_eq!(new.context.generation(), 2);
        round_trip(&new, &[source.slice(1, 1000)]).await;
        assert!(run_double(&new, &upload(&new, &[source], &[7]).await.unwrap()[0], 5).await.is_ok());
        drop((old, new, column));
        settles(&device, 0).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn losses_at_each_choke_point_are_typed() {
    let points = [
        (Choke::Allocate, 1),
        (Choke::Allocate, 3),
        (Choke::Submit, 1),
        (Choke::Map, 1),
        (Choke::Compile, 1),
    ];
    for (round, (choke, n)) in (0u64..).zip(points) {
        let device = own_device();
        device.faults().lose_at(choke, n);
        let source = [batch(columns(10_000, 0))];
        let context = scope(&device);
        let work = async {
            let column = upload(&context, &source, &[7]).await?.remove(0);
            run_double(&context, &column, 2).await
        };
        let error = timeout(Duration::from_secs(10), work).await.expect("no hang").unwrap_err();
        assert!(matches!(error, GpuError::DeviceLost(_)), "{choke:?} {n}: {error}");
        settles(&device, 0).await;
        assert_eq!(device.context().unwrap().generation(), 2, "round {round}");
        let again = scope(&device);
        assert_eq!(again.context.generation(), 2);
        round_trip(&again, &source).await;
    }
}

/// Busy or asleep, a poll thread that panics takes its generation with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_poll_thread_that_ends_is_a_loss() {
    for busy in [true, false] {
        let device = own_device();
        let old = scope(&device);
        let source = [batch(columns(100_000, 2))];
        let column = upload(&old, &source, &[4]).await.unwrap().remove(0);
        let submission = old.context.submit(new_encoder(&old)).unwrap();
        let waiters = if busy { readers(&old, &column) } else { JoinSet::new() };
        device.faults().order(Choke::Allocate, 1, Fault::EndPolling);
        if !busy {
            // The loss may be noticed by this very call.
            drop(old.context.allocate(&old.memory, 16, BufferKind::Storage));
        }
        for error in timeout(Duration::from_secs(10), waiters.join_all()).await.expect("no hang") {
            let GpuError::DeviceLost(message) = error else { panic!("{error}") };
            assert_eq!(message, "its poll thread ended: injected fault");
        }
        let deadline = Instant::now() + Duration::from_secs(10);
        while !old.context.is_lost() {
            assert!(Instant::now() < deadline, "nobody noticed");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let _ = timeout(Duration::from_secs(10), submission.wait()).await.expect("no hang");
        settles(&device, bytes_of(&column)).await;
        let error = upload(&old, &source, &[4]).await.unwrap_err();
        assert!(matches!(error, GpuError::DeviceLost(_)), "{error}");

        let new = scope(&device);
        assert_eq!(new.context.generation(), 2);
        round_trip(&new, &source).await;
        drop((old, new, column));
        settles(&device, 0).await;
    }
}

/// An adapter that is gone is not looked for at every call.
#[tokio::test]
async fn an_adapter_that_is_gone_is_asked_now_and_then() {
    let device = own_device();
    device.lose();
    device.faults().count();
    device.faults().order_always(Choke::Open, Fault::Fail);
    for _ in 0..100 {
        let error = device.context().unwrap_err();
        assert!(matches!(error, GpuError::NoAdapter(_)), "{error}");
        assert!(device.current().is_none());
    }
    let asked = device.faults().calls(Choke::Open);
    assert!((1..5).contains(&asked), "{asked}");
    device.faults().clear();
    let deadline = Instant::now() + Duration::from_secs(20);
    while device.context().is_err() {
        assert!(Instant::now() < deadline, "it is not tried again");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(device.context().unwrap().generation(), 2);
    round_trip(&scope(&device), &[batch(columns(100, 3))]).await;
}

#[tokio::test]
async fn a_panic_in_a_callback_is_a_loss() {
    let progress = Arc::new(Progress::default());
    let (ticket, told) = progress.announce_map(true).unwrap();
    let (_other, waiting) = progress.announce_map(true).unwrap();
    ticket.finish(Ok(()), |mapped| resume_unwind(Box::new(format!("mapped: {mapped}"))));
    told.unwrap().await.unwrap().unwrap();
    let error = waiting.unwrap().await.unwrap().unwrap_err();
    assert!(
        matches!(&error, GpuError::DeviceLost(message) if message == "a callback panicked: mapped: true"),
        "{error}"
    );
    assert!(progress.is_lost() && progress.announce_map(true).is_err());
}

#[tokio::test]
async fn a_panic_in_the_compiler_is_a_rejection() {
    let device = device();
    let scope = scope(&device);
    // Before and after the pipeline is in the cache.
    for _ in 0..2 {
        device.faults().order(Choke::Compile, 1, Fault::Panic);
        let error = scope.context.compile(shader(DOUBLE), &scope.stats).await.unwrap_err();
        let GpuError::ShaderRejected { message, .. } = error else { panic!("{error}") };
        assert_eq!(message, "panic in the shader compiler: injected fault");
        device.faults().order(Choke::Compile, 1, Fault::Panic);
        assert!(matches!(scope.context.pipeline(&shader(DOUBLE)), Err(GpuError::ShaderRejected { .. })));
        assert!(scope.context.compile(shader(DOUBLE), &scope.stats).await.is_ok());
    }
}

#[test]
fn the_poll_thread_ends_with_its_context() {
    let threads = || {
        let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
        let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
        names.filter(|name| name.trim() == "gpu-poll").count()
    };
    if !cfg!(target_os = "linux") {
        return;
    }
    let device = own_device();
    let context = device.context().unwrap();
    drop(device);
    assert!(threads() >= 1);
    drop(context);
    // Other tests open and close devices meanwhile: only a leak in every round would keep the number up.
    let before = threads();
    for _ in 0..10 {
        drop(own_device());
    }
    let deadline = Instant::now() + Duration::from_secs(20);
    while threads() >= before + 10 {
        assert!(Instant::now() < deadline, "{before} poll threads before, {} after", threads());
        std::thread::sleep(Duration::from_millis(10));
    }
}
