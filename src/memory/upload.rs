//! Arrow columns to the device.
//!
//! The columns' bytes are cut into chunks. Each chunk is one blocking task: it takes a pooled, mapped staging
//! buffer, fills it, and submits the copies into the columns' buffers, so that filling by several cores and copying by
//! the device overlap, and nobody waits for the device: later work is behind the copies in the queue.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::DataType;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tracing::Instrument;

use crate::error::{GpuError, GpuResult};
use crate::kernels::expr::ValueType;
use crate::kernels::expr::widths::type_bits;

use super::budget::{PeakMeter, Reservation};
use super::column::{BufferSlice, ColumnRepr, DeviceColumn, MagnitudeBits};
use super::device::{BufferKind, DeviceBuffer};
use super::fill::{ROW_ALIGNMENT, Sink, Source};
use super::launch::LaunchScope;
use super::poll;
use super::pool::size_class;
use super::stats::LaunchStats;

/// Smallest and largest chunk. The largest keeps the staging memory small; the smallest is worth a task.
const CHUNK_BYTES: (u64, u64) = (1 << 20, 16 << 20);
/// Tasks that fill at the same time; on an H200 host, more than eight don't fill faster.
const MAX_FILLERS: usize = 8;
/// Uploads up to this size are filled by the calling task.
const INLINE_BYTES: u64 = 256 << 10;

/// Logical type of an Arrow type that can live on the device, or `None`.
pub fn value_type(data_type: &DataType) -> Option<ValueType> {
    ValueType::from_arrow(data_type)
}

/// Layout on the device: representation, bits a row, magnitude bits by the type. Of an opaque column, that of its codes.
fn layout(ty: ValueType) -> (ColumnRepr, u64, u8) {
    match ty {
        ValueType::Opaque => (ColumnRepr::Codes, 32, 32),
        ValueType::Boolean => (ColumnRepr::Bits, 1, 1),
        ValueType::Decimal { precision, .. } if precision <= 18 => (ColumnRepr::DecimalNarrow, 64, 60),
        ValueType::Decimal { .. } => (ColumnRepr::DecimalWide, 128, 128),
        _ => (ColumnRepr::Arrow, u64::from(type_bits(ty)), type_bits(ty)),
    }
}

/// How the values of a type lie on the device; those of [`ValueType::Opaque`] as codes.
pub(crate) fn representation(ty: ValueType) -> ColumnRepr {
    layout(ty).0
}

/// Bytes of `rows` rows of so many bits, padded to 16; never 0, since a binding cannot be empty.
fn padded_bytes(rows: usize, bits: u64) -> u64 {
    let bits = (rows as u64).saturating_mul(bits);
    bits.div_ceil(8).checked_next_multiple_of(16).unwrap_or(u64::MAX).max(16)
}

/// Device bytes that a column takes in the ledger, its validity included when `nullable`; 0 for a type that cannot
/// live on the device.
pub fn device_bytes(data_type: &DataType, rows: usize, nullable: bool) -> u64 {
    let Some(ty) = value_type(data_type) else { return 0 };
    let values = size_class(padded_bytes(rows, layout(ty).1));
    let validity = if nullable { size_class(padded_bytes(rows, 1)) } else { 0 };
    values.saturating_add(validity)
}

/// Device bytes of a column of [`ValueType::Opaque`]: its codes, or only which rows are not NULL.
pub(crate) fn opaque_bytes(rows: usize, coded: bool) -> u64 {
    size_class(padded_bytes(rows, if coded { 32 } else { 1 }))
}

/// Bytes of so many words as they lie in their buffer.
pub(crate) fn word_bytes(words: usize) -> u64 {
    padded_bytes(words, 32)
}

/// Bytes of staging memory that are held at a time while columns of `bytes` device bytes are uploaded.
pub fn staging_bytes(bytes: u64) -> u64 {
    let chunk = size_class(chunk_capacity(bytes).min(bytes));
    let fillers = if bytes > INLINE_BYTES { most_fillers() as u64 } else { 1 };
    chunk.saturating_mul(fillers.min(bytes.div_ceil(chunk.max(1))))
}

/// A column under way.
struct Target {
    ty: ValueType,
    repr: ColumnRepr,
    bits: u64,
    source: Source,
    values: BufferSlice,
    validity: Option<BufferSlice>,
}

/// Rows of a column's values, or of its validity, in a chunk's staging buffer.
struct Part {
    target: usize,
    validity: bool,
    rows: Range<usize>,
    staging_offset: u64,
    bytes: u64,
}

#[derive(Default)]
struct Chunk {
    parts: Vec<Part>,
    bytes: u64,
}

/// Uploads columns: one [`DeviceColumn`] for each index in `columns`, the rows of all batches concatenated in order.
/// Sliced arrays are realigned; there is a validity bitmap only where a row is null. Decimals of precision <= 18 are
/// narrowed to 64 bits, their non-null values checked (`Representation`) and measured; other types take the bits of
/// the type. A column larger than a binding gives `Limit`; a type that [`value_type`] does not know, no batch at
/// all, or batches of different types, `Internal`.
///
/// Returns when the copies are submitted, not when they are done. When the future is dropped, tasks already
/// started end by themselves and everything is released.
pub async fn upload(
    scope: &LaunchScope,
    batches: &[RecordBatch],
    columns: &[usize],
) -> GpuResult<Vec<DeviceColumn>> {
    let columns = columns.iter().map(|column| gather(batches, *column)).collect::<GpuResult<Vec<_>>>()?;
    upload_arrays(scope, &columns).await
}

/// A column to upload: its arrays, and how they lie on the device.
#[derive(Debug)]
pub(crate) struct Upload {
    name: String,
    data_type: DataType,
    ty: ValueType,
    repr: ColumnRepr,
    bits: u64,
    arrays: Vec<ArrayRef>,
}

impl Upload {
    /// A column's codes in its dictionary, or other words; NULL is code 0.
    pub(crate) fn words(name: &str, arrays: Vec<ArrayRef>) -> Self {
        let (repr, bits, _) = layout(ValueType::Opaque);
        let (name, data_type) = (name.to_owned(), DataType::UInt32);
        Self { name, data_type, ty: ValueType::Opaque, repr, bits, arrays }
    }

    /// Which rows of a column of any type are not NULL.
    pub(crate) fn presence(name: &str, data_type: &DataType, arrays: Vec<ArrayRef>) -> Self {
        let (name, data_type) = (name.to_owned(), data_type.clone());
        Self { name, data_type, ty: ValueType::Opaque, repr: ColumnRepr::Presence, bits: 1, arrays }
    }
}

/// Uploads columns, as [`upload`] does.
pub(crate) async fn upload_arrays(scope: &LaunchScope, columns: &[Upload]) -> GpuResult<Vec<DeviceColumn>> {
    let started = Instant::now();
    let targets = columns.iter().map(|column| prepare(scope, column)).collect::<GpuResult<Vec<_>>>()?;
    let targets = Arc::new(targets);
    let chunks = cut(&targets);
    let bytes: u64 = chunks.iter().map(|chunk| chunk.bytes).sum();
    let span = tracing::debug_span!(target: "datafusion_wgpu::upload", "gpu_upload", bytes);
    fill_all(scope, &targets, chunks, bytes).instrument(span).await?;
    LaunchStats::add(&scope.stats.uploaded_bytes, bytes);
    LaunchStats::add_time(&scope.stats.upload_ns, started);
    targets.iter().zip(columns).map(|(target, column)| finish(target, column)).collect()
}

/// Collects a column's arrays.
pub(crate) fn gather(batches: &[RecordBatch], column: usize) -> GpuResult<Upload> {
    let field = batches.first().and_then(|batch| batch.schema_ref().fields().get(column));
    let field =
        field.ok_or_else(|| GpuError::Internal(format!("upload of column {column}, which no batch has")))?;
    let ty = value_type(field.data_type()).ok_or_else(|| unfit(field.name(), field.data_type()))?;
    let (repr, bits, _) = layout(ty);
    let arrays = column_arrays(batches, column)?;
    Ok(Upload { name: field.name().clone(), data_type: field.data_type().clone(), ty, repr, bits, arrays })
}

/// The arrays of a column, one a batch.
///
/// # Errors
/// [`GpuError::Internal`] where a batch lacks the column or has it in another type.
pub(crate) fn column_arrays(batches: &[RecordBatch], column: usize) -> GpuResult<Vec<ArrayRef>> {
    let Some(first) = batches.first().and_then(|batch| batch.schema_ref().fields().get(column)) else {
        return Err(GpuError::Internal(format!("no batch has a column {column}")));
    };
    let arrays = batches.iter().map(|batch| {
        let array = batch.columns().get(column).filter(|array| array.data_type() == first.data_type());
        array.cloned().ok_or_else(|| unfit(first.name(), first.data_type()))
    });
    arrays.collect()
}

fn unfit(name: &str, data_type: &DataType) -> GpuError {
    GpuError::Internal(format!("column {name} ({data_type}) cannot be uploaded"))
}

/// Allocates a column's buffers.
fn prepare(scope: &LaunchScope, column: &Upload) -> GpuResult<Target> {
    let Upload { name, data_type, ty, repr, bits, arrays } = column;
    let (ty, bits) = (*ty, *bits);
    let bound = match ty {
        ValueType::Decimal { precision, .. } if precision <= 18 => 10u64.pow(u32::from(precision)),
        _ => 0,
    };
    let source =
        Source::new(arrays, *repr, bits as usize / 8, bound).ok_or_else(|| unfit(name, data_type))?;
    let values = allocate(scope, padded_bytes(source.rows(), bits))?;
    let validity = source.has_nulls().then(|| allocate(scope, padded_bytes(source.rows(), 1))).transpose()?;
    Ok(Target { ty, repr: *repr, bits, source, values, validity })
}

fn allocate(scope: &LaunchScope, len: u64) -> GpuResult<BufferSlice> {
    let limit = scope.context.caps().max_binding_bytes;
    if len > limit {
        return Err(GpuError::Limit { what: "a column's bytes", need: len, limit, by_rows: true });
    }
    let buffer = scope.context.allocate(&scope.memory, len, BufferKind::Storage)?;
    Ok(BufferSlice { buffer, offset: 0, len })
}

/// Bytes of a chunk, for uploads of `total` bytes.
fn chunk_capacity(total: u64) -> u64 {
    total.div_ceil(2 * MAX_FILLERS as u64).next_power_of_two().clamp(CHUNK_BYTES.0, CHUNK_BYTES.1)
}

fn most_fillers() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).min(MAX_FILLERS)
}

/// Cuts all values and bitmaps into chunks of about equal size.
fn cut(targets: &[Target]) -> Vec<Chunk> {
    let streams = || {
        targets.iter().enumerate().flat_map(|(target, column)| {
            let values = (target, false, column.bits, column.source.rows());
            let validity = column.validity.as_ref().map(|_| (target, true, 1, column.source.rows()));
            std::iter::once(values).chain(validity)
        })
    };
    let capacity = chunk_capacity(streams().map(|(_, _, bits, rows)| padded_bytes(rows, bits)).sum());
    let mut chunks: Vec<Chunk> = Vec::new();
    for (target, validity, bits, rows) in streams() {
        let mut first = 0;
        while first < rows {
            let room = chunks.last().map_or(0, |chunk| capacity - chunk.bytes);
            let fit = usize::try_from(room * 8 / bits).unwrap_or(usize::MAX) / ROW_ALIGNMENT * ROW_ALIGNMENT;
            if fit == 0 {
                chunks.push(Chunk::default());
                continue;
            }
            let end = rows.min(first.saturating_add(fit));
            if let Some(chunk) = chunks.last_mut() {
                let bytes = padded_bytes(end - first, bits);
                chunk.parts.push(Part {
                    target,
                    validity,
                    rows: first..end,
                    staging_offset: chunk.bytes,
                    bytes,
                });
                chunk.bytes += bytes;
            }
            first = end;
        }
    }
    chunks
}

/// Fills and submits all chunks. After an error no further chunk is started, and those under way are awaited, so that
/// nothing is held any more when the error is returned.
async fn fill_all(
    scope: &LaunchScope,
    targets: &Arc<Vec<Target>>,
    chunks: Vec<Chunk>,
    bytes: u64,
) -> GpuResult<()> {
    let runtime = match tokio::runtime::Handle::try_current() {
        Ok(runtime) if bytes > INLINE_BYTES => runtime,
        _ => return chunks.iter().try_for_each(|chunk| fill(scope, targets, chunk, None)),
    };
    let (fillers, most_staging) = fillers(scope, &chunks);
    let staging = Arc::new(PeakMeter::default());
    let scope = LaunchScope { memory: scope.memory.clone().and_meter(&staging), ..scope.clone() };
    let mut running = FuturesUnordered::new();
    let mut outcome = Ok(());
    for chunk in chunks {
        let size = size_class(chunk.bytes);
        loop {
            let returned = scope.context.pool().returned();
            tokio::pin!(returned);
            returned.as_mut().enable();
            let room = has_room(&scope, staging.held(), size, most_staging);
            if outcome.is_err() || (running.len() < fillers && room) {
                break;
            }
            tokio::select! {
                Some(result) = running.next(), if !running.is_empty() => {
                    outcome = outcome.and(joined(Some(result)));
                }
                () = returned => {}
            }
        }
        if outcome.is_err() {
            break;
        }
        // Claimed here, so that the next chunk knows of it.
        match scope.memory.claim(size) {
            Err(error) => outcome = Err(error),
            Ok(claimed) => {
                let (scope, targets) = (scope.clone(), Arc::clone(targets));
                running.push(runtime.spawn_blocking(move || fill(&scope, &targets, &chunk, Some(claimed))));
            }
        }
    }
    while let Some(result) = running.next().await {
        outcome = outcome.and(joined(Some(result)));
    }
    outcome
}

/// Tasks that fill at the same time: as many as there are cores, and as the budget has room for staging buffers. And the
/// bytes of those that this upload may have under way: for each task one that it fills, and one whose copies are in flight.
fn fillers(scope: &LaunchScope, chunks: &[Chunk]) -> (usize, u64) {
    let largest = chunks.iter().map(|chunk| size_class(chunk.bytes)).max().unwrap_or(1);
    let room = usize::try_from(scope.memory.available() / largest).unwrap_or(usize::MAX);
    let fillers = most_fillers().min(room).max(1);
    (fillers, 2 * fillers as u64 * largest)
}

/// Whether an upload that has `held` bytes of staging memory under way can take another buffer now. Else some of that will
/// come back; where there is none to come, waiting is in vain.
fn has_room(scope: &LaunchScope, held: u64, bytes: u64, most: u64) -> bool {
    let fits = held + bytes <= most && bytes <= scope.memory.available();
    fits || held == 0 || scope.context.is_lost()
}

fn joined(result: Option<Result<GpuResult<()>, tokio::task::JoinError>>) -> GpuResult<()> {
    match result {
        None => Ok(()),
        Some(Ok(result)) => result,
        Some(Err(error)) => Err(GpuError::Internal(format!("an upload task failed: {error}"))),
    }
}

/// Fills one chunk's staging buffer, for which `claimed` is reserved, and submits its copies. Blocks for a few milliseconds
/// at most.
fn fill(
    scope: &LaunchScope,
    targets: &[Target],
    chunk: &Chunk,
    claimed: Option<Reservation>,
) -> GpuResult<()> {
    let context = &scope.context;
    let staging = context.allocate_claimed(&scope.memory, claimed, chunk.bytes, BufferKind::Staging)?;
    write(&staging, targets, chunk).map_err(|error| context.classify(error))?;
    staging.unmap();
    if targets.iter().any(|target| target.source.out_of_range()) {
        // `finish` reports it.
        return Ok(());
    }
    let mut encoder =
        context.device().create_command_encoder(&wgpu::CommandEncoderDescriptor { label: Some("upload") });
    for part in &chunk.parts {
        let target = &targets[part.target];
        let (slice, bits) = match &target.validity {
            Some(validity) if part.validity => (validity, 1),
            _ => (&target.values, target.bits),
        };
        // Parts start at multiples of 128 rows: whole bytes.
        let offset = slice.offset + part.rows.start as u64 * bits / 8;
        let source = staging.raw();
        encoder.copy_buffer_to_buffer(source, part.staging_offset, slice.buffer.raw(), offset, part.bytes);
    }
    context.submit(encoder).map(drop)
}

/// A range of mapped memory.
struct Mapped<'a> {
    view: &'a mut wgpu::BufferViewMut,
    position: usize,
}

impl Sink for Mapped<'_> {
    fn put(&mut self, bytes: &[u8]) {
        let end = self.position + bytes.len();
        self.view.slice(self.position..end).copy_from_slice(bytes);
        self.position = end;
    }
}

fn write(staging: &DeviceBuffer, targets: &[Target], chunk: &Chunk) -> GpuResult<()> {
    let view = staging.raw().get_mapped_range_mut(..chunk.bytes);
    let mut view = view.map_err(|error| poll::map_error(error.to_string()))?;
    for part in &chunk.parts {
        let start = part.staging_offset as usize;
        let source = &targets[part.target].source;
        let mut sink = Mapped { view: &mut view, position: start };
        if part.validity {
            source.write_validity(part.rows.clone(), &mut sink);
        } else {
            source.write_values(part.rows.clone(), &mut sink);
        }
        let (position, end) = (sink.position, start + part.bytes as usize);
        // Bits after the last row are 0 up to the end of the slice; other padding is zeroed for nothing but tidiness.
        view.slice(position..end).fill(0);
    }
    Ok(())
}

/// The finished column, or what was wrong with its values.
fn finish(target: &Target, column: &Upload) -> GpuResult<DeviceColumn> {
    let source = &target.source;
    if source.out_of_range() {
        let (column, data_type) = (column.name.clone(), column.data_type.to_string());
        return Err(GpuError::Representation { column, data_type });
    }
    let bits = match target.repr {
        ColumnRepr::DecimalNarrow | ColumnRepr::DecimalWide => source.magnitude(),
        _ => layout(target.ty).2,
    };
    Ok(DeviceColumn {
        ty: target.ty,
        repr: target.repr,
        values: target.values.clone(),
        validity: target.validity.clone(),
        rows: source.rows(),
        magnitude: MagnitudeBits(bits),
    })
}
