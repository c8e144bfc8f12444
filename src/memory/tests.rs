//! Tests on a device. They fail where there is none.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, Date32Array, Decimal128Array, Float32Array, Float64Array,
    Int8Array, Int16Array, Int32Array, Int64Array, RecordBatch, UInt8Array, UInt16Array, UInt32Array,
    UInt64Array,
};
use arrow::datatypes::{DataType, Decimal128Type, Field, Schema};

use crate::error::{GpuError, GpuResult};

use super::faults::Choke;
use super::testing::{device, own_device, scope};
use super::*;

/// Rows of every type with about one null in `null_every` (0: none; 1: all), deterministic.
fn columns(rows: usize, null_every: usize) -> Vec<ArrayRef> {
    let word = |i: usize| (i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let live = |i: usize| null_every == 0 || !(word(i) >> 32).is_multiple_of(null_every as u64);
    macro_rules! array {
        ($array:ty, $value:expr) => {{
            let value = $value;
            Arc::new((0..rows).map(|i| live(i).then(|| value(word(i)))).collect::<$array>()) as ArrayRef
        }};
    }
    let decimals = |precision, scale, value: fn(u64) -> i128| {
        let array: Decimal128Array = (0..rows).map(|i| live(i).then(|| value(word(i)))).collect();
        Arc::new(array.with_precision_and_scale(precision, scale).unwrap()) as ArrayRef
    };
    vec![
        array!(BooleanArray, |w: u64| w % 3 == 0),
        array!(Int8Array, |w: u64| w as i8),
        array!(Int16Array, |w: u64| w as i16),
        array!(Int32Array, |w: u64| w as i32),
        array!(Int64Array, |w: u64| w as i64),
        array!(UInt8Array, |w: u64| w as u8),
        array!(UInt16Array, |w: u64| w as u16),
        array!(UInt32Array, |w: u64| w as u32),
        array!(UInt64Array, |w: u64| w),
        array!(Float32Array, |w: u64| f32::from_bits(w as u32)),
        array!(Float64Array, f64::from_bits),
        array!(Date32Array, |w: u64| w as i32),
        decimals(12, 2, |w| i128::from(w as i64 % 1_000_000_000_000)),
        decimals(18, 0, |w| i128::from(w as i64 % 1_000_000_000_000_000_000)),
        decimals(38, 10, |w| i128::from(w as i64) << 55),
    ]
}

fn batch(arrays: Vec<ArrayRef>) -> RecordBatch {
    let field = |(i, array): (usize, &ArrayRef)| Field::new(format!("c{i}"), array.data_type().clone(), true);
    let schema = Schema::new(arrays.iter().enumerate().map(field).collect::<Vec<_>>());
    RecordBatch::try_new(Arc::new(schema), arrays).unwrap()
}

fn all_columns(batch: &RecordBatch) -> Vec<usize> {
    (0..batch.num_columns()).collect()
}

fn bit(bytes: &[u8], index: usize) -> bool {
    bytes[index / 8] >> (index % 8) & 1 == 1
}

async fn read(scope: &LaunchScope, ranges: &[(&BufferSlice, u64)]) -> GpuResult<Vec<Vec<u8>>> {
    let encoder = scope.context.device().create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
    download(scope, encoder, ranges).await
}

/// Reads a column back and compares each row with the arrays it came from.
async fn check_column(scope: &LaunchScope, column: &DeviceColumn, arrays: &[ArrayRef]) {
    let rows: usize = arrays.iter().map(|array| array.len()).sum();
    assert_eq!(column.rows, rows);
    let nulls: usize = arrays.iter().map(|array| array.null_count()).sum();
    assert_eq!(column.validity.is_some(), nulls > 0);
    let mut ranges = vec![(&column.values, column.values.len)];
    ranges.extend(column.validity.as_ref().map(|validity| (validity, validity.len)));
    let bytes = read(scope, &ranges).await.unwrap();
    if let Some(validity) = bytes.get(1) {
        let expected = arrays.iter().flat_map(|array| (0..array.len()).map(|i| array.is_valid(i)));
        assert!(expected.enumerate().all(|(i, valid)| bit(validity, i) == valid));
        assert!((rows..validity.len() * 8).all(|i| !bit(validity, i)), "bits after the last row");
    }
    let mut row = 0;
    for array in arrays {
        for i in 0..array.len() {
            if array.is_valid(i) {
                check_value(column, &bytes[0], row, array, i);
            }
            row += 1;
        }
    }
}

fn check_value(column: &DeviceColumn, bytes: &[u8], row: usize, array: &ArrayRef, i: usize) {
    let context = || format!("{} row {row}", array.data_type());
    match column.repr {
        ColumnRepr::Bits => assert_eq!(bit(bytes, row), array.as_boolean().value(i), "{}", context()),
        ColumnRepr::DecimalNarrow => {
            let value = array.as_primitive::<Decimal128Type>().value(i);
            let stored = i64::from_le_bytes(bytes[row * 8..][..8].try_into().unwrap());
            assert_eq!(i128::from(stored), value, "{}", context());
            assert!(value.unsigned_abs() < 1 << column.magnitude.0);
        }
        ColumnRepr::DecimalWide => {
            let value = array.as_primitive::<Decimal128Type>().value(i);
            assert_eq!(bytes[row * 16..][..16], value.to_le_bytes(), "{}", context());
            assert!(column.magnitude.0 >= 128 || value.unsigned_abs() < 1 << column.magnitude.0);
        }
        ColumnRepr::Arrow => {
            let data = array.to_data();
            let width = data.data_type().primitive_width().unwrap();
            let expected = &data.buffers()[0].as_slice()[(data.offset() + i) * width..][..width];
            assert_eq!(&bytes[row * width..][..width], expected, "{}", context());
        }
    }
}

async fn round_trip(scope: &LaunchScope, batches: &[RecordBatch]) {
    let wanted = all_columns(&batches[0]);
    let uploaded = upload(scope, batches, &wanted).await.unwrap();
    for (index, column) in uploaded.iter().enumerate() {
        let arrays: Vec<ArrayRef> = batches.iter().map(|batch| Arc::clone(batch.column(index))).collect();
        check_column(scope, column, &arrays).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_type_survives_the_round_trip() {
    let device = device();
    let scope = scope(&device);
    for null_every in [0, 1, 2, 100] {
        let whole = batch(columns(3000, null_every));
        round_trip(&scope, std::slice::from_ref(&whole)).await;
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
    assert_eq!(device.ledger().reserved(), 0);
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
    let uploaded = upload(&scope, &[source.clone()], &[12, 4, 0, 14]).await.unwrap();
    let shapes: Vec<_> =
        uploaded.iter().map(|column| (column.repr, column.values.len, column.magnitude.0)).collect();
    assert_eq!(shapes[0].0, ColumnRepr::DecimalNarrow);
    assert!(shapes[0].2 <= 40 && shapes[0].2 > 30, "10^12 needs 40 bits, the values as many as they have");
    assert_eq!(shapes[1], (ColumnRepr::Arrow, 8000, 64));
    assert_eq!(shapes[2], (ColumnRepr::Bits, 128, 1));
    assert_eq!((shapes[3].0, shapes[3].1), (ColumnRepr::DecimalWide, 16_000));
    assert_eq!(device.ledger().reserved(), 8192 + 8192 + 256 + 16_384);
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
    let error = upload(&scope, &[source.clone()], &[0]).await.unwrap_err();
    assert_eq!(error.to_string(), "column price holds a value outside its declared type Decimal128(6, 2)");
    assert_eq!(device.ledger().reserved(), 0);
    let fine = upload(&scope, &[source.slice(0, 19_999)], &[0]).await.unwrap();
    assert_eq!(fine[0].magnitude, MagnitudeBits(15));
}

#[tokio::test]
async fn wrong_requests_are_typed_errors() {
    let device = device();
    let scope = scope(&device);
    let source = batch(columns(10, 0));
    assert!(matches!(upload(&scope, &[], &[0]).await, Err(GpuError::Internal(_))));
    assert!(matches!(upload(&scope, &[source.clone()], &[99]).await, Err(GpuError::Internal(_))));
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
    let held = upload(&scope, &[source.clone()], &[4]).await.unwrap();
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn injected_faults_are_typed_and_leave_nothing_behind() {
    let device = device();
    let scope = scope(&device);
    let source = batch(columns(50_000, 3));
    let wanted = all_columns(&source);
    for n in [1, 3, 20, 31, 32] {
        device.faults().fail(Choke::Allocate, n);
        let error = upload(&scope, &[source.clone()], &wanted).await.unwrap_err();
        assert!(matches!(error, GpuError::AllocationRefused { .. }), "{n} {error}");
        assert_eq!(device.ledger().reserved(), 0, "{n}");
    }
    for n in [1, 4] {
        device.faults().fail(Choke::Submit, n);
        let error = upload(&scope, &[source.clone()], &wanted).await.unwrap_err();
        assert!(matches!(error, GpuError::KernelFault { .. }), "{error}");
        assert_eq!(device.ledger().reserved(), 0);
    }
    device.faults().fail(Choke::Map, 1);
    let column = upload(&scope, &[source], &[4]).await.unwrap().remove(0);
    let error = read(&scope, &[(&column.values, 64)]).await.unwrap_err();
    assert!(matches!(error, GpuError::KernelFault { .. }), "{error}");
    assert!(read(&scope, &[(&column.values, 64)]).await.is_ok());
    drop(column);
    assert_eq!(device.ledger().reserved(), 0);
}

/// Waits until what cancelled tasks still held has been released.
async fn settles(device: &Arc<GpuDevice>, bytes: u64) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while device.ledger().reserved() != bytes {
        assert!(Instant::now() < deadline, "still reserved: {}", device.ledger().report());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
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
    let held = device.ledger().reserved();
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
    for _ in 0..20 {
        let column = upload(&scope, &source, &[4]).await.unwrap().remove(0);
        check_column(&scope, &column, &[Arc::clone(source[0].column(4))]).await;
    }
    drop((again, other, read_back));
    let idle = device.ledger().idle();
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

const DOUBLE: &str = "@group(0) @binding(0) var<uniform> factor: vec4<u32>;
@group(0) @binding(1) var<storage, read> input: array<u32>;
@group(0) @binding(2) var<storage, read_write> output: array<u32>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if (id.x < arrayLength(&input)) { output[id.x] = input[id.x] * factor.x; }
}";

fn shader(wgsl: &str) -> ShaderSource {
    let bindings = vec![BindingKind::Uniform, BindingKind::ReadOnlyStorage, BindingKind::Storage];
    ShaderSource { name: "double".to_string(), wgsl: wgsl.to_string(), bindings }
}

/// Runs DOUBLE over the column; the factor is a parameter.
async fn run_double(scope: &LaunchScope, column: &DeviceColumn, factor: u32) -> GpuResult<Vec<u32>> {
    let pipeline = scope.context.compile(shader(DOUBLE), &scope.stats).await?;
    let params = scope.params(&factor.to_le_bytes())?;
    let buffer = scope.context.allocate(&scope.memory, column.values.len, BufferKind::Storage)?;
    let output = BufferSlice { buffer, offset: 0, len: column.values.len };
    let size = std::num::NonZeroU64::new(column.values.len);
    let bind = |buffer| wgpu::BindingResource::Buffer(wgpu::BufferBinding { buffer, offset: 0, size });
    let group = scope.context.device().create_bind_group(&wgpu::BindGroupDescriptor {
        label: None,
        layout: &pipeline.layout,
        entries: &[
            wgpu::BindGroupEntry { binding: 0, resource: params.raw().as_entire_binding() },
            wgpu::BindGroupEntry { binding: 1, resource: bind(column.values.buffer.raw()) },
            wgpu::BindGroupEntry { binding: 2, resource: bind(output.buffer.raw()) },
        ],
    });
    let mut encoder =
        scope.context.device().create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
    let mut timer = scope.timer();
    {
        let mut pass = timer.pass(&mut encoder, "double");
        pass.set_pipeline(&pipeline.pipeline);
        pass.set_bind_group(0, &group, &[]);
        pass.dispatch_workgroups((column.rows as u32).div_ceil(64), 1, 1);
    }
    let bytes = download_timed(scope, encoder, &[(&output, column.rows as u64 * 4)], timer).await?;
    Ok(bytes[0].chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect())
}

#[tokio::test]
async fn a_kernel_runs_and_is_timed_and_cached() {
    let device = own_device();
    let scope = scope(&device);
    let source = batch(columns(10_000, 0));
    let column = upload(&scope, &[source.clone()], &[7]).await.unwrap().remove(0);
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
    let mut encoder =
        scope.context.device().create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
    encoder.copy_buffer_to_buffer(a.raw(), 0, b.raw(), 128, 256);
    let error = scope.context.submit(encoder).unwrap_err();
    assert!(matches!(error, GpuError::KernelFault { .. }), "{error}");
    let mut encoder =
        scope.context.device().create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
    encoder.copy_buffer_to_buffer(a.raw(), 0, b.raw(), 0, 256);
    scope.context.submit(encoder).unwrap().wait().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_tasks_share_a_device() {
    let device = device();
    let tasks = (0..6).map(|task| {
        let scope = scope(&device);
        tokio::spawn(async move {
            for round in 0..3 {
                let whole = batch(columns(20_000 + task * 1111 + round, task));
                round_trip(&scope, &[whole.slice(task, 9_999), whole.slice(11, 8_000)]).await;
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
    settles(&device, 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_device_fails_its_waiters_and_is_replaced() {
    for round in 0..2 {
        let device = own_device();
        let old = scope(&device);
        assert_eq!(old.context.generation(), 1);
        let source = batch(columns(100_000, 2));
        let column = upload(&old, &[source.clone()], &[4]).await.unwrap().remove(0);
        let submission = {
            let encoder =
                old.context.device().create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
            old.context.submit(encoder).unwrap()
        };
        let waiters: Vec<_> = (0..4)
            .map(|_| {
                let (scope, column) = (old.clone(), column.clone());
                tokio::spawn(async move {
                    loop {
                        if let Err(error) = read(&scope, &[(&column.values, 800_000)]).await {
                            return error;
                        }
                    }
                })
            })
            .collect();
        tokio::time::sleep(Duration::from_millis(20)).await;
        // Once by the hook, once by wgpu alone, as an application or a driver might.
        if round == 0 {
            device.lose();
        } else {
            old.context.device().destroy();
        }
        for waiter in waiters {
            let error =
                tokio::time::timeout(Duration::from_secs(10), waiter).await.expect("no hang").unwrap();
            assert!(matches!(error, GpuError::DeviceLost(_)), "{error}");
        }
        let _ = tokio::time::timeout(Duration::from_secs(10), submission.wait()).await.expect("no hang");
        assert!(old.context.is_lost());
        let error = upload(&old, &[source.clone()], &[4]).await.unwrap_err();
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
        let error = tokio::time::timeout(Duration::from_secs(10), work).await.expect("no hang").unwrap_err();
        assert!(matches!(error, GpuError::DeviceLost(_)), "{choke:?} {n}: {error}");
        assert_eq!(device.ledger().reserved(), 0, "round {round}");
        let again = scope(&device);
        assert_eq!(again.context.generation(), 2);
        round_trip(&again, &source).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_small_downloads_and_submissions_complete() {
    let device = device();
    let done = Arc::new(AtomicU32::new(0));
    let tasks: Vec<_> = (0..8u32)
        .map(|task| {
            let (scope, done) = (scope(&device), Arc::clone(&done));
            tokio::spawn(async move {
                for i in 0..25 {
                    let words = [task, i, task ^ i, 7];
                    let buffer = scope.params(bytemuck::cast_slice(&words)).unwrap();
                    let slice = BufferSlice { buffer, offset: 0, len: 16 };
                    let bytes = read(&scope, &[(&slice, 16), (&slice, 5)]).await.unwrap();
                    assert_eq!(bytes[0], bytemuck::cast_slice::<u32, u8>(&words));
                    assert_eq!(bytes[1], bytes[0][..5]);
                    let encoder = scope
                        .context
                        .device()
                        .create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
                    scope.context.submit(encoder).unwrap().wait().await.unwrap();
                    done.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    for task in tasks {
        tokio::time::timeout(Duration::from_secs(60), task).await.expect("no hang").unwrap();
    }
    assert_eq!(done.load(Ordering::Relaxed), 200);
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
    assert!(caps.max_binding_bytes <= 1 << 30 && caps.max_buffer_bytes >= caps.max_binding_bytes);
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
