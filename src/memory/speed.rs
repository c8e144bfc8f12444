//! Rates of transfers on this machine, printed. Run in an optimised build:
//! `cargo test --release --lib memory::speed -- --ignored --nocapture`.

use std::sync::Arc;
use std::time::Instant;

use arrow::array::{Array, ArrayRef, Decimal128Array, Int64Array, RecordBatch};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{Field, Schema};

use super::testing::{device, scope};
use super::*;

/// Rows of the batches that DataFusion's scans produce.
const BATCH_ROWS: usize = 8192;

fn batches(rows: usize, columns: usize, array: impl Fn(usize, usize) -> ArrayRef) -> Vec<RecordBatch> {
    let batch = |first| {
        let length = BATCH_ROWS.min(rows - first);
        let arrays: Vec<ArrayRef> = (0..columns).map(|_| array(first, length)).collect();
        let field =
            |(i, array): (usize, &ArrayRef)| Field::new(format!("c{i}"), array.data_type().clone(), true);
        let schema = Schema::new(arrays.iter().enumerate().map(field).collect::<Vec<_>>());
        RecordBatch::try_new(Arc::new(schema), arrays).unwrap()
    };
    (0..rows).step_by(BATCH_ROWS).map(batch).collect()
}

fn integers(first: usize, rows: usize) -> ArrayRef {
    Arc::new((first as i64..(first + rows) as i64).collect::<Int64Array>())
}

fn integers_with_nulls(first: usize, rows: usize) -> ArrayRef {
    let values = (first as i64..(first + rows) as i64).collect();
    Arc::new(Int64Array::new(
        values,
        Some((first..first + rows).map(|i| i % 10 != 0).collect::<NullBuffer>()),
    ))
}

fn decimals(first: usize, rows: usize) -> ArrayRef {
    let array: Decimal128Array = (first as i128..(first + rows) as i128).map(Some).collect();
    Arc::new(array.with_precision_and_scale(12, 2).unwrap())
}

async fn read_back(scope: &LaunchScope, slice: &BufferSlice, bytes: u64) -> Vec<u8> {
    let encoder = scope.context.device().create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
    download(scope, encoder, &[(slice, bytes)]).await.unwrap().remove(0)
}

/// Uploads five times; prints the first and the best rate, of the call and of the finished copies.
async fn measure(scope: &LaunchScope, name: &str, rows: usize, columns: usize, source: &[RecordBatch]) {
    let wanted: Vec<usize> = (0..columns).collect();
    let mut times = Vec::new();
    let mut bytes = 0;
    for _ in 0..6 {
        let before = scope.stats.snapshot().uploaded_bytes;
        let started = Instant::now();
        let uploaded = upload(scope, source, &wanted).await.unwrap();
        let call = started.elapsed();
        let encoder =
            scope.context.device().create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        scope.context.submit(encoder).unwrap().wait().await.unwrap();
        times.push((call, started.elapsed()));
        bytes = scope.stats.snapshot().uploaded_bytes - before;
        let last = &uploaded[columns - 1].values;
        let tail = BufferSlice { buffer: Arc::clone(&last.buffer), offset: (rows as u64 - 2) * 8, len: 16 };
        let value = read_back(scope, &tail, 16).await;
        assert_eq!(value[8..16], (rows as i64 - 1).to_le_bytes());
    }
    let best = times[1..].iter().min_by_key(|(_, done)| *done).unwrap();
    let rate = |time: std::time::Duration| bytes as f64 / time.as_secs_f64() / 1e9;
    println!(
        "{name}: {:.1} MB to the device; first {:.2} GB/s; best {:.2} GB/s ({:.3} ms), copies done {:.2} GB/s ({:.3} ms)",
        bytes as f64 / 1e6,
        rate(times[0].1),
        rate(best.0),
        best.0.as_secs_f64() * 1e3,
        rate(best.1),
        best.1.as_secs_f64() * 1e3,
    );
}

async fn latency(name: &str, mut step: impl AsyncFnMut()) {
    let mut times = Vec::new();
    for _ in 0..200 {
        let started = Instant::now();
        step().await;
        times.push(started.elapsed());
    }
    times.sort();
    println!("{name}: median {:?}, best {:?}", times[times.len() / 2], times[0]);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement"]
async fn rates() {
    let started = Instant::now();
    let device = device();
    println!("open and probe {:?}\n{:#?}", started.elapsed(), device.caps());
    let scope = scope(&device);
    let big = if device.caps().device_type == AdapterKind::Software { 1 << 20 } else { 16 << 20 };
    for (rows, columns) in [(1000, 4), (64 << 10, 4), (1 << 20, 8), (big, 8)] {
        measure(&scope, "i64", rows, columns, &batches(rows, columns, integers)).await;
    }
    measure(&scope, "i64, 10% nulls", 1 << 20, 8, &batches(1 << 20, 8, integers_with_nulls)).await;
    measure(&scope, "decimal(12, 2)", 4 << 20, 4, &batches(4 << 20, 4, decimals)).await;

    let column = upload(&scope, &batches(big, 1, integers), &[0]).await.unwrap().remove(0);
    for _ in 0..3 {
        let started = Instant::now();
        let bytes = read_back(&scope, &column.values, big as u64 * 8).await;
        println!(
            "download {} MB: {:.2} GB/s",
            bytes.len() / 1_000_000,
            bytes.len() as f64 / started.elapsed().as_secs_f64() / 1e9
        );
        assert_eq!(bytes[bytes.len() - 8..], (big as i64 - 1).to_le_bytes());
    }
    latency("download 64 bytes", async || drop(read_back(&scope, &column.values, 64).await)).await;
    latency("empty submit and wait", async || {
        let encoder =
            scope.context.device().create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        scope.context.submit(encoder).unwrap().wait().await.unwrap();
    })
    .await;
    latency("parameter block", async || drop(scope.params(&[7; 256]).unwrap())).await;
    println!("{:?}", scope.stats.snapshot());
}
