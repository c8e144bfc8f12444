//! The rows behind lazy batches: host batches, and the columns of them that are on the device.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::{FieldRef, SchemaRef};
use parking_lot::Mutex;

use crate::error::{GpuError, GpuResult};
use crate::memory::column::{ColumnRepr, DeviceColumn};
use crate::memory::dictionary::{self, Dictionary};
use crate::memory::launch::LaunchScope;
use crate::memory::upload::{
    Upload, column_arrays, device_bytes, gather, opaque_bytes, upload_arrays, value_type,
};

/// The rows that a lazy batch is computed from: consecutive host batches with their boundaries, and the columns of them
/// that have been uploaded.
///
/// The host batches stay until the last consumer is done, because a fault on the device is decided by replaying exactly
/// them on the CPU.
#[derive(Debug)]
pub struct SourceBatch {
    schema: SchemaRef,
    host: Vec<RecordBatch>,
    rows: usize,
    device: Mutex<BTreeMap<usize, DeviceColumn>>,
    /// Columns whose rows have codes.
    dictionaries: Mutex<BTreeMap<usize, Arc<Dictionary>>>,
}

impl SourceBatch {
    /// A source over `host`, nothing uploaded yet.
    pub fn new(schema: SchemaRef, host: Vec<RecordBatch>) -> Self {
        let rows = host.iter().map(RecordBatch::num_rows).sum();
        Self { schema, host, rows, device: Mutex::default(), dictionaries: Mutex::default() }
    }

    /// The host batches, in order.
    pub fn host(&self) -> &[RecordBatch] {
        &self.host
    }

    /// Rows of all host batches together.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Schema of the host batches.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Gives the rows of column `index` codes, unless they have some.
    ///
    /// # Errors
    /// [`GpuError::Internal`] for a column that cannot have a dictionary.
    pub(crate) async fn encode(&self, index: usize) -> GpuResult<Arc<Dictionary>> {
        if let Some(known) = self.dictionary(index) {
            return Ok(known);
        }
        let encoded = Arc::new(dictionary::encode(column_arrays(&self.host, index)?).await?);
        self.dictionaries.lock().insert(index, Arc::clone(&encoded));
        Ok(encoded)
    }

    /// The dictionary of column `index`, if its rows have codes.
    pub fn dictionary(&self, index: usize) -> Option<Arc<Dictionary>> {
        self.dictionaries.lock().get(&index).cloned()
    }

    /// How column `index` is uploaded: its values, its codes where it has some, or else which rows are not NULL.
    fn uploaded(&self, index: usize) -> GpuResult<Upload> {
        let Some(field) = self.schema.fields().get(index) else {
            return Err(GpuError::Internal(format!("source column {index} does not exist")));
        };
        if value_type(field.data_type()).is_some() {
            return gather(&self.host, index);
        }
        Ok(match self.dictionary(index) {
            Some(dictionary) => {
                let codes = dictionary.codes().iter().map(|codes| Arc::new(codes.clone()) as ArrayRef);
                Upload::words(field.name(), codes.collect())
            }
            None => Upload::presence(field.name(), field.data_type(), column_arrays(&self.host, index)?),
        })
    }

    /// Uploads those of `columns` that are not on the device yet and returns all of them by source index (`None` for
    /// columns not asked for). Of a column without values on the device come its codes or, where it has none, which rows
    /// are not NULL.
    ///
    /// # Errors
    /// Those of [`crate::memory::upload()`]; columns uploaded before stay.
    pub async fn device_columns(
        &self,
        scope: &LaunchScope,
        columns: &BTreeSet<usize>,
    ) -> GpuResult<Vec<Option<DeviceColumn>>> {
        let missing: Vec<usize> = {
            let device = self.device.lock();
            let usable = |index: &usize| {
                // Which rows are not NULL is not enough any more once they have codes.
                let outdated = |column: &DeviceColumn| {
                    column.repr == ColumnRepr::Presence && self.dictionary(*index).is_some()
                };
                device.get(index).is_some_and(|column| !outdated(column))
            };
            columns.iter().copied().filter(|index| !usable(index)).collect()
        };
        if !missing.is_empty() {
            let columns = missing.iter().map(|index| self.uploaded(*index)).collect::<GpuResult<Vec<_>>>()?;
            let uploaded = upload_arrays(scope, &columns).await?;
            self.device.lock().extend(missing.into_iter().zip(uploaded));
        }
        let device = self.device.lock();
        let mut result = vec![None; self.schema.fields().len()];
        for index in columns {
            let slot = result
                .get_mut(*index)
                .ok_or_else(|| GpuError::Internal(format!("source column {index} does not exist")))?;
            *slot = device.get(index).cloned();
        }
        Ok(result)
    }

    /// Gives up the uploaded columns; they are uploaded again when they are asked for.
    pub fn release(&self) {
        // Buffers are freed outside the lock.
        let released = std::mem::take(&mut *self.device.lock());
        drop(released);
    }

    /// Device bytes that `columns` take, whether they are there or not.
    pub fn column_bytes(&self, columns: &BTreeSet<usize>) -> u64 {
        let fields = columns.iter().filter_map(|index| Some((*index, self.schema.fields().get(*index)?)));
        let bytes = |(index, field): (usize, &FieldRef)| match value_type(field.data_type()) {
            Some(_) => device_bytes(field.data_type(), self.rows, field.is_nullable()),
            None => opaque_bytes(self.rows, self.dictionary(index).is_some()),
        };
        fields.map(bytes).sum()
    }

    /// The rows in two halves, for less device memory at a time; `None` for a single row. A host batch in the middle is
    /// sliced.
    pub fn split(&self) -> Option<(SourceBatch, SourceBatch)> {
        if self.rows < 2 {
            return None;
        }
        let half = self.rows / 2;
        let (mut first, mut second, mut seen) = (vec![], vec![], 0);
        for (at, batch) in self.host.iter().enumerate() {
            let rows = batch.num_rows();
            let cut = half.saturating_sub(seen).min(rows);
            if cut > 0 {
                first.push((at, 0..cut));
            }
            if cut < rows {
                second.push((at, cut..rows));
            }
            seen += rows;
        }
        Some((self.slice(&first), self.slice(&second)))
    }

    /// The source over some of the rows, by host batch and row; they keep their codes.
    fn slice(&self, batches: &[(usize, Range<usize>)]) -> SourceBatch {
        let host = batches
            .iter()
            .filter_map(|(batch, rows)| Some(self.host.get(*batch)?.slice(rows.start, rows.len())));
        let slice = Self::new(Arc::clone(&self.schema), host.collect());
        let dictionaries = self.dictionaries.lock();
        let sliced = dictionaries.iter().map(|(index, known)| (*index, Arc::new(known.slice(batches))));
        *slice.dictionaries.lock() = sliced.collect();
        slice
    }

    /// The rows of this source and then those of `next`, with their codes where both have them of the same dictionary; nothing
    /// is on the device.
    pub(super) fn join(&self, next: &SourceBatch) -> SourceBatch {
        let host = self.host.iter().chain(&next.host).cloned().collect();
        let joined = Self::new(Arc::clone(&self.schema), host);
        let (first, second) = (self.dictionaries.lock().clone(), next.dictionaries.lock().clone());
        let both = first.iter().filter_map(|(index, known)| {
            let all = second.get(index).and_then(|next| known.join(next))?;
            Some((*index, Arc::new(all)))
        });
        *joined.dictionaries.lock() = both.collect();
        joined
    }
}
