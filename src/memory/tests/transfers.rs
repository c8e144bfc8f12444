//! Columns to the device and back, buffers, limits, timers.

use std::slice;

use tokio::task::JoinSet;

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_type_survives_the_round_trip() {
    let device = device();
    let scope = scope(&device);
    for null_every in [0, 1, 2, 100] {
        let whole = batch(columns(3000, null_every));
        round_trip(&scope, slice::from_ref(&whole)).await;
        // Odd bit offsets, empty batches in between, one without nulls among others.
        let slices = vec![
            whole.slice(3, 997),
            whole.slice(0, 0),
            batch(columns(130, 0)),
            whole.slice(1001, 1),
            whole.slice(1007, 1993),
        ];
        round_trip(&scope, &slices).await;
        round_trip(&scope, &[whole.slice(5, 0)]).await;
    }
    drop(scope);
    settles(&device, 0).await;
    assert!(device.ledger().peak() > 0);
}

/// More than the inline limit, several chunks, boundaries inside batches.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_uploads_are_cut_into_chunks() {
    let device = device();
    let scope = scope(&device);
    let whole = batch(columns(70_001, 7));
    let batches: Vec<_> =
        (0..9).map(|i| whole.slice(i * 7_777, 7_777)).chain([whole.slice(69_993, 8)]).collect();
    round_trip(&scope, &batches).await;
    let snapshot = scope.stats.snapshot();
    assert!(snapshot.uploaded_bytes > 70_001 * 80 && snapshot.upload_ns > 0 && snapshot.downloaded_bytes > 0);
    assert_eq!(snapshot.waits, 15);
}

#[tokio::test]
async fn columns_have_the_documented_shape() {
    let device = device();
    let scope = scope(&device);
    let source = batch(columns(1000, 0));
    let uploaded = upload(&scope, slice::from_ref(&source), &[12, 4, 0, 14]).await.unwrap();
    let shapes: Vec<_> =
        uploaded.iter().map(|column| (column.repr, column.values.len, column.magnitude.0)).collect();
    assert_eq!(shapes[0].0, ColumnRepr::DecimalNarrow);
    assert!(shapes[0].2 <= 40 && shapes[0].2 > 30, "10^12 needs 40 bits, the values as many as they have");
    assert_eq!(shapes[1], (ColumnRepr::Arrow, 8000, 64));
    assert_eq!(shapes[2], (ColumnRepr::Bits, 128, 1));
    assert_eq!((shapes[3].0, shapes[3].1), (ColumnRepr::DecimalWide, 16_000));
    settles(&device, 8192 + 8192 + 256 + 16_384).await;
    assert_eq!(device_bytes(&DataType::Int64, 1000, false), 8192);
    assert_eq!(device_bytes(&DataType::Int64, 1000, true), 8192 + 256);
    assert_eq!(device_bytes(&DataType::Utf8, 1000, true), 0);
    let twice = upload(&scope, &[source], &[4, 4]).await.unwrap();
    assert_eq!(twice.len(), 2);
}

#[tokio::test]
async fn decimals_beyond_their_precision_are_named() {
    let device = device();
    let scope = scope(&device);
    let values: Decimal128Array =
        (0..20_000).map(|i| Some(if i == 19_999 { 1_000_000 } else { i })).collect();
    let array = values.with_precision_and_scale(6, 2).unwrap();
    let schema = Schema::new(vec![Field::new("price", array.data_type().clone(), true)]);
    let source = RecordBatch::try_new(Arc::new(schema), vec![Arc::new(array)]).unwrap();
    let error = upload(&scope, slice::from_ref(&source), &[0]).await.unwrap_err();
    assert_eq!(error.to_string(), "column price holds a value outside its declared type Decimal128(6, 2)");
    settles(&device, 0).await;
    let fine = upload(&scope, &[source.slice(0, 19_999)], &[0]).await.unwrap();
    assert_eq!(fine[0].magnitude, MagnitudeBits(15));
}

#[tokio::test]
async fn wrong_requests_are_typed_errors() {
    let device = device();
    let scope = scope(&device);
    let source = batch(columns(10, 0));
    assert!(matches!(upload(&scope, &[], &[0]).await, Err(GpuError::Internal(_))));
    assert!(matches!(upload(&scope, slice::from_ref(&source), &[99]).await, Err(GpuError::Internal(_))));
    let other = batch(columns(10, 0).into_iter().rev().collect());
    assert!(matches!(upload(&scope, &[source.clone(), other], &[0]).await, Err(GpuError::Internal(_))));

    let mut caps = device.caps().as_ref().clone();
    caps.max_binding_bytes = 4096;
    let small = device.with_caps(caps);
    let small_scope = testing::scope(&small);
    assert!(upload(&small_scope, &[batch(columns(512, 0))], &[4]).await.is_ok());
    let error = upload(&small_scope, &[batch(columns(513, 0))], &[4]).await.unwrap_err();
    assert!(matches!(error, GpuError::Limit { need: 4112, limit: 4096, .. }), "{error}");
    let error = scope.context.allocate(&scope.memory, u64::MAX, BufferKind::Storage).unwrap_err();
    assert!(matches!(error, GpuError::Limit { .. }), "{error}");

    let column = upload(&scope, &[source], &[4]).await.unwrap().remove(0);
    assert!(matches!(read(&scope, &[(&column.values, 1 << 20)]).await, Err(GpuError::Internal(_))));
    assert!(matches!(scope.context.map_read(&column.values.buffer, 16).await, Err(GpuError::Internal(_))));
}

#[tokio::test]
async fn the_limit_names_need_use_and_holders() {
    let device = device();
    let scope = scope(&device);
    let source = batch(columns(4096, 0));
    let held = upload(&scope, slice::from_ref(&source), &[4]).await.unwrap();
    settles(&device, 32_768).await;
    assert_eq!(device.ledger().holders(), vec![("test".to_string(), 32_768)]);
    let mut tight = scope.clone();
    tight.memory = MemoryScope::new(device.ledger(), "GpuFilterExec[0]", 65_536);
    let error = upload(&tight, &[source], &[4, 8, 4]).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "out of device memory: GpuFilterExec[0] needs 32768 bytes, 65536 of 65536 bytes are in use (GpuFilterExec[0] \
         32.0 KiB, test 32.0 KiB); raise gpu.memory_limit"
    );
    assert_eq!(device.ledger().reserved(), 32_768);
    drop(held);
    assert_eq!(device.ledger().reserved(), 0);
}

#[tokio::test]
async fn buffers_are_reused() {
    let device = own_device();
    let scope = scope(&device);
    let storage = scope.context.allocate(&scope.memory, 5000, BufferKind::Storage).unwrap();
    assert_eq!((storage.size(), device.ledger().reserved()), (5120, 5120));
    let raw = storage.raw().clone();
    drop(storage);
    assert_eq!((device.ledger().reserved(), device.ledger().idle() >= 5120), (0, true));
    let again = scope.context.allocate(&scope.memory, 5100, BufferKind::Storage).unwrap();
    assert_eq!(again.raw(), &raw);
    let other = scope.context.allocate(&scope.memory, 5100, BufferKind::Storage).unwrap();
    assert_ne!(other.raw(), &raw);
    let read_back = scope.context.allocate(&scope.memory, 5100, BufferKind::ReadBack).unwrap();
    assert_ne!(read_back.raw(), &raw);

    // Staging memory comes back when its copies are done and it is mapped again.
    let source = [batch(columns(4000, 0))];
    // The numerics probe may have left buffers in the pool.
    let before = device.ledger().idle();
    for _ in 0..20 {
        let column = upload(&scope, &source, &[4]).await.unwrap().remove(0);
        check_column(&scope, &column, &[Arc::clone(source[0].column(4))]).await;
    }
    drop((again, other, read_back));
    let idle = device.ledger().idle() - before;
    assert!(idle < 300_000, "20 uploads of 32 KB share their buffers: {idle} bytes are idle");
}

#[tokio::test]
async fn idle_buffers_give_way_to_the_limit() {
    let device = own_device();
    let mut scope = scope(&device);
    scope.memory = MemoryScope::new(device.ledger(), "test", 1 << 20);
    for size in [1 << 19, 1 << 18, 1 << 17] {
        drop(scope.context.allocate(&scope.memory, size, BufferKind::Storage).unwrap());
    }
    let whole = scope.context.allocate(&scope.memory, 1 << 20, BufferKind::Storage).unwrap();
    assert_eq!(device.ledger().idle(), 0);
    assert!(scope.context.allocate(&scope.memory, 1, BufferKind::Storage).is_err());
    drop(whole);
}

#[tokio::test]
async fn a_kernel_runs_and_is_timed_and_cached() {
    let device = own_device();
    let scope = scope(&device);
    let source = batch(columns(10_000, 0));
    let column = upload(&scope, slice::from_ref(&source), &[7]).await.unwrap().remove(0);
    for factor in [2, 3] {
        let result = run_double(&scope, &column, factor).await.unwrap();
        let values = source.column(7).as_primitive::<arrow::datatypes::UInt32Type>();
        assert!(result.iter().zip(values.values()).all(|(got, value)| *got == value.wrapping_mul(factor)));
    }
    let snapshot = scope.stats.snapshot();
    assert_eq!((snapshot.pipelines_compiled, snapshot.waits), (1, 2));
    assert!(snapshot.compile_ns > 0 && snapshot.readback_ns > 0);
    assert_eq!(snapshot.kernel_ns > 0, device.caps().timestamps);
    assert!(snapshot.kernel_ns < snapshot.readback_ns);
}

/// Staging memory is held until its copies are done. Buffers are counted from their creation to their end, and at no moment
/// there are more than the limit allows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn buffers_that_exist_are_within_the_limit() {
    let device = own_device();
    let mut scope = scope(&device);
    let array: ArrayRef = Arc::new((0..1i64 << 20).collect::<Int64Array>());
    let source = [batch(vec![array])];
    let limit = (8 << 20) + (2 << 20);
    scope.memory = MemoryScope::new(device.ledger(), "tight", limit);
    for _ in 0..3 {
        drop(upload(&scope, &source, &[0]).await.unwrap());
        settles(&device, 0).await;
    }
    let (alive, peak) = (device.ledger().alive(), device.ledger().alive_peak());
    assert!(peak <= limit && peak > 8 << 20, "{peak}");
    assert_eq!(alive, device.ledger().idle());
    device.ledger().restart_alive_peak();
    assert_eq!((device.ledger().alive_peak(), device.ledger().idle()), (0, 0));
    drop(upload(&scope, &source, &[0]).await.unwrap());
    settles(&device, 0).await;
    assert!(device.ledger().alive_peak() > 8 << 20);
    drop(scope);
    drop(device.context().unwrap());
    device.lose();
    // The next generation takes the place of the old one.
    let next = testing::scope(&device);
    assert_eq!((device.ledger().alive(), device.ledger().idle()), (0, 0));
    drop(next);
}

/// A limit with room for the column and one staging buffer is enough.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fewer_tasks_fill_under_a_tight_limit() {
    let device = device();
    let mut scope = scope(&device);
    let rows = 1 << 20;
    scope.memory =
        MemoryScope::new(device.ledger(), "tight", device_bytes(&DataType::Int64, rows, false) + (1 << 20));
    let array: ArrayRef = Arc::new((0..rows as i64).collect::<Int64Array>());
    let column = upload(&scope, &[batch(vec![Arc::clone(&array)])], &[0]).await.unwrap().remove(0);
    scope.memory = MemoryScope::new(device.ledger(), "reader", u64::MAX);
    check_column(&scope, &column, &[array]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_tasks_share_a_device() {
    let device = device();
    let mut tasks = JoinSet::new();
    for task in 0..6 {
        let scope = scope(&device);
        tasks.spawn(async move {
            for round in 0..3 {
                let whole = batch(columns(20_000 + task * 1111 + round, task));
                round_trip(&scope, &[whole.slice(task, 9_999), whole.slice(11, 8_000)]).await;
            }
        });
    }
    tasks.join_all().await;
    settles(&device, 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_small_downloads_and_submissions_complete() {
    let device = device();
    let mut tasks = JoinSet::new();
    for task in 0..8u32 {
        let scope = scope(&device);
        tasks.spawn(async move {
            for i in 0..25 {
                let words = [task, i, task ^ i, 7];
                let buffer = scope.params(bytemuck::cast_slice(&words)).unwrap();
                let slice = BufferSlice { buffer, offset: 0, len: 16 };
                let bytes = read(&scope, &[(&slice, 16), (&slice, 5)]).await.unwrap();
                assert_eq!(bytes[0], bytemuck::cast_slice::<u32, u8>(&words));
                assert_eq!(bytes[1], bytes[0][..5]);
                scope.context.submit(new_encoder(&scope)).unwrap().wait().await.unwrap();
            }
            25
        });
    }
    let done = tokio::time::timeout(Duration::from_secs(60), tasks.join_all()).await.expect("no hang");
    assert_eq!(done.iter().sum::<u32>(), 200);
}

#[test]
fn the_probe_knows_the_software_rasteriser() {
    let device = device();
    let caps = device.caps();
    assert!(caps.int64, "the tests need 64-bit integers");
    assert!(caps.numerics.int64_exact, "{caps:?}");
    if caps.name.contains("llvmpipe") {
        let exact = Numerics {
            int64_exact: true,
            float64_exact: true,
            float_contraction: false,
            float32_division_exact: true,
            float32_denormals: true,
        };
        assert_eq!(caps.numerics, exact);
        assert_eq!((caps.loop_budget, caps.device_type), (65_535, AdapterKind::Software));
    }
    if caps.name.contains("H200") {
        assert!(caps.numerics.float64_exact && caps.numerics.float_contraction, "{caps:?}");
        assert!(!caps.numerics.float32_division_exact && !caps.numerics.float32_denormals, "{caps:?}");
    }
    assert!(caps.max_binding_bytes <= 1 << 30 && caps.max_buffer_bytes >= caps.max_binding_bytes);
}
