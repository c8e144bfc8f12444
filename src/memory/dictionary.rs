//! Local dictionaries of string and binary columns: each row's code, and the distinct values of the batch.
//!
//! Code 0 is NULL, the others count the distinct values in the order in which they are first met. Only columns that an
//! expression reads are encoded. The rows are hashed by several tasks of the blocking pool, each with a map of its own;
//! the maps are joined afterwards, which costs no more than the distinct values of each.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, LazyLock};

use ahash::RandomState;
use arrow::array::{
    Array, ArrayRef, AsArray, GenericByteArray, GenericByteViewArray, UInt32Array, new_null_array,
};
use arrow::buffer::NullBuffer;
use arrow::compute::{cast, interleave};
use arrow::datatypes::{ArrowDictionaryKeyType, ByteArrayType, ByteViewType, DataType};
use arrow::downcast_dictionary_array;

use crate::error::{GpuError, GpuResult};

use super::lookup::blocking;

/// Values that an expression is given at a time: as many as DataFusion's own batches have by default.
const CHUNK_VALUES: usize = 8192;
/// Fewest rows that are worth a task.
const TASK_ROWS: usize = 64 << 10;

/// Whether columns of the type can have a dictionary: strings and binaries, and Arrow's dictionaries of strings.
pub fn is_encodable(data_type: &DataType) -> bool {
    match data_type {
        DataType::Dictionary(_, values) => {
            matches!(values.as_ref(), DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View)
        }
        DataType::Utf8
        | DataType::LargeUtf8
        | DataType::Utf8View
        | DataType::Binary
        | DataType::LargeBinary
        | DataType::BinaryView
        | DataType::FixedSizeBinary(_) => true,
        _ => false,
    }
}

/// A column as codes.
#[derive(Debug, Clone)]
pub struct Dictionary {
    /// The rows' codes, one array a host batch.
    codes: Vec<UInt32Array>,
    values: Arc<[ArrayRef]>,
}

impl Dictionary {
    /// The rows' codes, one array a host batch.
    pub fn codes(&self) -> &[UInt32Array] {
        &self.codes
    }

    /// The values by code, of the column's own type, cut into chunks; the first holds nothing but the NULL of code 0.
    pub fn values(&self) -> &Arc<[ArrayRef]> {
        &self.values
    }

    /// Host bytes of codes and values.
    pub(crate) fn host_bytes(&self) -> usize {
        let codes: usize = self.codes.iter().map(|codes| 4 * codes.len()).sum();
        codes + self.values.iter().map(|values| values.get_array_memory_size()).sum::<usize>()
    }

    /// The rows of this and then those of `next`; `None` where they are not parts of one dictionary.
    pub(crate) fn join(&self, next: &Self) -> Option<Self> {
        let codes = self.codes.iter().chain(&next.codes).cloned().collect();
        Arc::ptr_eq(&self.values, &next.values).then(|| Self { codes, values: Arc::clone(&self.values) })
    }

    /// The same values for some of the rows, which are cut where `batches`, ranges of host batch and row, say.
    pub(crate) fn slice(&self, batches: &[(usize, Range<usize>)]) -> Self {
        let cut = |(batch, rows): &(usize, Range<usize>)| {
            self.codes.get(*batch).map(|codes| codes.slice(rows.start, rows.len()))
        };
        Self { codes: batches.iter().filter_map(cut).collect(), values: Arc::clone(&self.values) }
    }
}

/// Encodes a column's arrays, one a host batch.
///
/// # Errors
/// [`GpuError::Internal`] for arrays that are not of one type that [`is_encodable`].
pub(crate) async fn encode(arrays: Vec<ArrayRef>) -> GpuResult<Dictionary> {
    let arrays: Arc<[ArrayRef]> = arrays.into();
    let tasks = ranges(&arrays).into_iter().map(|range| {
        let arrays = Arc::clone(&arrays);
        blocking(move || Local::of(&arrays, range))
    });
    let locals = futures::future::try_join_all(tasks).await?;
    blocking(move || join(&arrays, locals)).await
}

/// All values of Arrow's own dictionaries, in arrays of the column's type: those that no row has among them, which DataFusion
/// evaluates with the others. None for columns of another type.
///
/// # Errors
/// [`GpuError::Internal`] where Arrow cannot make the arrays.
pub(crate) fn held_values(arrays: &[ArrayRef]) -> GpuResult<Vec<ArrayRef>> {
    let mut seen: Vec<&ArrayRef> = vec![];
    for array in arrays {
        let Some(values) = array.as_any_dictionary_opt().map(|dictionary| dictionary.values()) else {
            continue;
        };
        // Batches in a row share their dictionaries.
        if !seen.last().is_some_and(|known| known.to_data().ptr_eq(&values.to_data())) {
            seen.push(values);
        }
    }
    let Some(data_type) = arrays.first().map(|array| array.data_type()) else { return Ok(vec![]) };
    let chunk = chunk_values(data_type);
    let chunks = seen.into_iter().flat_map(|values| {
        let starts = (0..values.len()).step_by(chunk);
        starts.map(move |at| values.slice(at, chunk.min(values.len() - at)))
    });
    let cast = |values: ArrayRef| {
        cast(&values, data_type).map_err(|error| GpuError::Internal(format!("a dictionary: {error}")))
    };
    chunks.map(cast).collect()
}

/// Distinct values, NULL apart, among the first rows of `arrays`, and how many rows were looked at: about `rows`.
///
/// # Errors
/// Those of [`encode`].
pub(crate) fn sample(arrays: &[ArrayRef], rows: usize) -> GpuResult<(usize, usize)> {
    let mut some = vec![];
    let mut seen = 0;
    for array in arrays {
        let take = array.len().min(rows - seen);
        some.push(array.slice(0, take));
        seen += take;
    }
    let local = Local::of(&some, 0..some.len())?;
    Ok((local.values.len(), seen))
}

/// Arrays cut into about as many ranges as there are cores.
fn ranges(arrays: &[ArrayRef]) -> Vec<Range<usize>> {
    let rows: usize = arrays.iter().map(|array| array.len()).sum();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let target = rows.div_ceil(cores).max(TASK_ROWS);
    let (mut ranges, mut start, mut held) = (vec![], 0, 0);
    for (at, array) in arrays.iter().enumerate() {
        held += array.len();
        if held >= target {
            ranges.push(start..at + 1);
            (start, held) = (at + 1, 0);
        }
    }
    if start < arrays.len() {
        ranges.push(start..arrays.len());
    }
    ranges
}

/// The arrays of one task, with a dictionary of their own.
struct Local {
    codes: Vec<Vec<u32>>,
    /// Where each code but 0 was first met: array, and index of the value in it or in its dictionary.
    values: Vec<(usize, usize)>,
}

/// A seed that nobody outside can guess, so that no values are chosen to collide. Codes don't depend on it.
static SEED: LazyLock<usize> = LazyLock::new(|| {
    use std::hash::BuildHasher;
    std::hash::RandomState::new().hash_one(0) as usize
});

/// The codes given out so far.
struct Codes<'a> {
    map: HashMap<&'a [u8], u32, RandomState>,
    values: Vec<(usize, usize)>,
}

impl<'a> Codes<'a> {
    fn new() -> Self {
        let hasher = RandomState::with_seed(*SEED);
        Codes { map: HashMap::with_hasher(hasher), values: vec![] }
    }

    fn code(&mut self, bytes: &'a [u8], place: (usize, usize)) -> u32 {
        *self.map.entry(bytes).or_insert_with(|| {
            self.values.push(place);
            self.values.len() as u32
        })
    }
}

impl Local {
    fn of(arrays: &[ArrayRef], range: Range<usize>) -> GpuResult<Local> {
        let mut codes = Codes::new();
        let mut keys = Keys::default();
        let mut coded = Vec::with_capacity(range.len());
        for at in range {
            let array = &arrays[at];
            coded.push(match array.data_type() {
                DataType::Dictionary(..) => keys.codes(array, at, &mut codes)?,
                _ => {
                    let mut out = Vec::with_capacity(array.len());
                    let nulls = array.nulls();
                    let seen = |index, bytes| codes.code(bytes, (at, index));
                    each(array, nulls, seen, &mut out)?;
                    out
                }
            });
        }
        Ok(Local { codes: coded, values: codes.values })
    }
}

/// Codes of an Arrow dictionary's values, kept while batches share it.
#[derive(Default)]
struct Keys {
    of: Option<ArrayRef>,
    codes: Vec<u32>,
}

/// A value of an Arrow dictionary that no row has had so far.
const UNMET: u32 = u32::MAX;

impl Keys {
    fn codes<'a>(&mut self, array: &'a ArrayRef, at: usize, codes: &mut Codes<'a>) -> GpuResult<Vec<u32>> {
        let values = array.as_any_dictionary_opt().ok_or_else(|| unfit(array))?.values();
        if !self.of.as_ref().is_some_and(|known| known.to_data().ptr_eq(&values.to_data())) {
            self.codes = vec![UNMET; values.len()];
            self.of = Some(Arc::clone(values));
        }
        let mut out = Vec::with_capacity(array.len());
        let dictionary = array;
        downcast_dictionary_array! {
            dictionary => self.rows(dictionary.keys(), values, at, codes, &mut out)?,
            _ => return Err(unfit(array)),
        }
        Ok(out)
    }

    fn rows<'a, K: ArrowDictionaryKeyType>(
        &mut self,
        keys: &arrow::array::PrimitiveArray<K>,
        values: &'a ArrayRef,
        at: usize,
        codes: &mut Codes<'a>,
        out: &mut Vec<u32>,
    ) -> GpuResult<()> {
        use arrow::datatypes::ArrowNativeType;
        for key in keys {
            let Some(key) = key.map(|key| key.as_usize()) else {
                out.push(0);
                continue;
            };
            let Some(code) = self.codes.get_mut(key) else { return Err(unfit(values)) };
            if *code == UNMET {
                *code = match values.is_valid(key) {
                    true => codes.code(bytes_at(values, key).ok_or_else(|| unfit(values))?, (at, key)),
                    false => 0,
                };
            }
            out.push(*code);
        }
        Ok(())
    }
}

fn unfit(array: &ArrayRef) -> GpuError {
    GpuError::Internal(format!("a dictionary of {}", array.data_type()))
}

/// Appends the code of every value of an array that is no dictionary.
fn each<'a>(
    array: &'a ArrayRef,
    nulls: Option<&NullBuffer>,
    mut code: impl FnMut(usize, &'a [u8]) -> u32,
    out: &mut Vec<u32>,
) -> GpuResult<()> {
    fn all<'a>(
        rows: usize,
        nulls: Option<&NullBuffer>,
        value: impl Fn(usize) -> &'a [u8],
        code: &mut impl FnMut(usize, &'a [u8]) -> u32,
        out: &mut Vec<u32>,
    ) {
        // Values often come in runs, and comparing is cheaper than hashing.
        let mut last: Option<(&[u8], u32)> = None;
        for row in 0..rows {
            if nulls.is_some_and(|nulls| nulls.is_null(row)) {
                out.push(0);
                continue;
            }
            let bytes = value(row);
            let found = match last {
                Some((same, found)) if same == bytes => found,
                _ => code(row, bytes),
            };
            last = Some((bytes, found));
            out.push(found);
        }
    }
    let rows = array.len();
    match array.data_type() {
        DataType::Utf8 => all(rows, nulls, of_bytes(array.as_string::<i32>()), &mut code, out),
        DataType::LargeUtf8 => all(rows, nulls, of_bytes(array.as_string::<i64>()), &mut code, out),
        DataType::Utf8View => all(rows, nulls, of_views(array.as_string_view()), &mut code, out),
        DataType::Binary => all(rows, nulls, of_bytes(array.as_binary::<i32>()), &mut code, out),
        DataType::LargeBinary => all(rows, nulls, of_bytes(array.as_binary::<i64>()), &mut code, out),
        DataType::BinaryView => all(rows, nulls, of_views(array.as_binary_view()), &mut code, out),
        DataType::FixedSizeBinary(_) => {
            let values = array.as_fixed_size_binary();
            all(rows, nulls, |row| values.value(row), &mut code, out);
        }
        _ => return Err(unfit(array)),
    }
    Ok(())
}

fn of_bytes<'a, T: ByteArrayType>(array: &'a GenericByteArray<T>) -> impl Fn(usize) -> &'a [u8] {
    |row| array.value(row).as_ref()
}

fn of_views<'a, T: ByteViewType>(array: &'a GenericByteViewArray<T>) -> impl Fn(usize) -> &'a [u8] {
    |row| array.value(row).as_ref()
}

/// The bytes of one value.
fn bytes_at(array: &ArrayRef, index: usize) -> Option<&[u8]> {
    Some(match array.data_type() {
        DataType::Utf8 => of_bytes(array.as_string::<i32>())(index),
        DataType::LargeUtf8 => of_bytes(array.as_string::<i64>())(index),
        DataType::Utf8View => of_views(array.as_string_view())(index),
        DataType::Binary => of_bytes(array.as_binary::<i32>())(index),
        DataType::LargeBinary => of_bytes(array.as_binary::<i64>())(index),
        DataType::BinaryView => of_views(array.as_binary_view())(index),
        DataType::FixedSizeBinary(_) => array.as_fixed_size_binary().value(index),
        _ => return None,
    })
}

/// Joins the tasks' dictionaries.
fn join(arrays: &[ArrayRef], locals: Vec<Local>) -> GpuResult<Dictionary> {
    let sources = arrays.iter().map(physical).collect::<Vec<_>>();
    let mut codes = Codes::new();
    let mut coded = Vec::with_capacity(arrays.len());
    let alone = locals.len() == 1;
    for local in locals {
        if alone {
            coded.extend(local.codes.into_iter().map(UInt32Array::from));
            codes.values = local.values;
            break;
        }
        let mut map = vec![0];
        for &(at, index) in &local.values {
            let bytes = bytes_at(sources[at], index).ok_or_else(|| unfit(sources[at]))?;
            map.push(codes.code(bytes, (at, index)));
        }
        for mut rows in local.codes {
            rows.iter_mut().for_each(|code| *code = map[*code as usize]);
            coded.push(UInt32Array::from(rows));
        }
    }
    let values = values(arrays, &sources, &codes.values)?;
    Ok(Dictionary { codes: coded, values: values.into() })
}

/// The array that holds the values' bytes.
fn physical(array: &ArrayRef) -> &ArrayRef {
    array.as_any_dictionary_opt().map_or(array, |dictionary| dictionary.values())
}

/// The distinct values in chunks of the column's own type, after that of the NULL.
fn values(arrays: &[ArrayRef], sources: &[&ArrayRef], places: &[(usize, usize)]) -> GpuResult<Vec<ArrayRef>> {
    let Some(first) = arrays.first() else { return Ok(vec![]) };
    let data_type = first.data_type();
    let sources: Vec<&dyn Array> = sources.iter().map(|source| source.as_ref()).collect();
    let mut chunks = vec![new_null_array(data_type, 1)];
    for places in places.chunks(chunk_values(data_type)) {
        let internal = |error: arrow::error::ArrowError| GpuError::Internal(format!("a dictionary: {error}"));
        let chunk = interleave(&sources, places).map_err(internal)?;
        chunks.push(if chunk.data_type() == data_type {
            chunk
        } else {
            cast(&chunk, data_type).map_err(internal)?
        });
    }
    Ok(chunks)
}

/// Values that fit a chunk of the type: not more than a dictionary's keys can tell apart.
fn chunk_values(data_type: &DataType) -> usize {
    match data_type {
        DataType::Dictionary(key, _) if **key == DataType::Int8 => 127,
        DataType::Dictionary(key, _) if **key == DataType::UInt8 => 255,
        _ => CHUNK_VALUES,
    }
}

#[cfg(test)]
mod tests;
