//! Tests on a device. They fail where there is none.

use std::sync::Arc;
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

mod failures;
mod transfers;
mod validation;

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
        array!(BooleanArray, |w: u64| w.is_multiple_of(3)),
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

fn new_encoder(scope: &LaunchScope) -> wgpu::CommandEncoder {
    scope.context.device().create_command_encoder(&wgpu::CommandEncoderDescriptor::default())
}

async fn read(scope: &LaunchScope, ranges: &[(&BufferSlice, u64)]) -> GpuResult<Vec<Vec<u8>>> {
    let encoder = new_encoder(scope);
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
        ColumnRepr::Presence | ColumnRepr::Codes => unreachable!("only upload of values is tested here"),
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

/// Waits until what cancelled tasks still held has been released.
async fn settles(device: &Arc<GpuDevice>, bytes: u64) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while device.ledger().reserved() != bytes {
        assert!(Instant::now() < deadline, "still reserved: {}", device.ledger().report());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Bytes that a column is reserved for.
fn bytes_of(column: &DeviceColumn) -> u64 {
    column.values.buffer.size() + column.validity.as_ref().map_or(0, |validity| validity.buffer.size())
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
    let mut encoder = new_encoder(scope);
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
