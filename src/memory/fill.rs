//! Writing Arrow columns into mapped staging memory.
//!
//! Mapped memory may be write-combined: it is written once, in order, and never read. A [`Source`] holds one column of
//! all batches; any range of its rows that starts at a multiple of [`ROW_ALIGNMENT`] can be written on its own,
//! so several tasks fill different staging buffers at the same time.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use arrow::array::{Array, ArrayRef, AsArray, downcast_primitive_array};
use arrow::buffer::{BooleanBuffer, Buffer, NullBuffer, ScalarBuffer};
use arrow::datatypes::Decimal128Type;

use super::column::ColumnRepr;

/// Rows at whose multiples a column may be cut: a bitmap then falls into pieces of 16 bytes.
pub(crate) const ROW_ALIGNMENT: usize = 128;
/// Values converted at a time, in a buffer on the stack.
const BLOCK: usize = 512;

/// Where bytes go, in order.
pub(crate) trait Sink {
    /// Appends bytes.
    fn put(&mut self, bytes: &[u8]);
}

/// One array of a column.
#[derive(Debug)]
struct Piece {
    rows: Range<usize>,
    values: Values,
    nulls: Option<NullBuffer>,
}

#[derive(Debug)]
enum Values {
    /// Fixed-width values, exactly those of the rows.
    Bytes(Buffer),
    Bits(BooleanBuffer),
    Decimals(ScalarBuffer<i128>),
}

/// One column of all batches, its rows in order.
#[derive(Debug)]
pub(crate) struct Source {
    repr: ColumnRepr,
    /// Bytes of a value on the device; 0 for bits.
    width: usize,
    rows: usize,
    nullable: bool,
    pieces: Vec<Piece>,
    /// Every decimal must be smaller in magnitude.
    bound: u64,
    /// Bits of the largest decimal seen so far.
    magnitude: AtomicU8,
    out_of_range: AtomicBool,
}

impl Source {
    /// `width` is that of a value on the device, 0 for [`ColumnRepr::Bits`]; `bound` is read for
    /// [`ColumnRepr::DecimalNarrow`] only. `None` when an array is not of the layout that `repr` takes.
    pub(crate) fn new(arrays: &[ArrayRef], repr: ColumnRepr, width: usize, bound: u64) -> Option<Self> {
        let mut rows = 0;
        let mut pieces = Vec::with_capacity(arrays.len());
        for array in arrays.iter().filter(|array| !array.is_empty()) {
            let values = match repr {
                ColumnRepr::Bits => Values::Bits(array.as_boolean_opt()?.values().clone()),
                ColumnRepr::DecimalNarrow | ColumnRepr::DecimalWide => {
                    Values::Decimals(array.as_primitive_opt::<Decimal128Type>()?.values().clone())
                }
                ColumnRepr::Arrow | ColumnRepr::Codes => Values::Bytes(value_bytes(array, width)?),
                ColumnRepr::Presence => Values::Bits(match array.logical_nulls() {
                    Some(nulls) => nulls.into_inner(),
                    None => BooleanBuffer::new_set(array.len()),
                }),
            };
            // The bits of a presence are the validity themselves.
            let nulls = array.nulls().filter(|_| repr != ColumnRepr::Presence);
            let nulls = nulls.filter(|nulls| nulls.null_count() > 0).cloned();
            pieces.push(Piece { rows: rows..rows + array.len(), values, nulls });
            rows += array.len();
        }
        let nullable = pieces.iter().any(|piece| piece.nulls.is_some());
        Some(Source {
            repr,
            width,
            rows,
            nullable,
            pieces,
            bound,
            magnitude: AtomicU8::new(0),
            out_of_range: AtomicBool::new(false),
        })
    }

    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Whether some row is null.
    pub(crate) fn has_nulls(&self) -> bool {
        self.nullable
    }

    /// Bits of the largest decimal that was written.
    pub(crate) fn magnitude(&self) -> u8 {
        self.magnitude.load(Ordering::Relaxed)
    }

    /// Whether a decimal was not below the bound.
    pub(crate) fn out_of_range(&self) -> bool {
        self.out_of_range.load(Ordering::Relaxed)
    }

    /// Writes the values of some rows; those under nulls are whatever the array holds.
    pub(crate) fn write_values(&self, rows: Range<usize>, sink: &mut dyn Sink) {
        let mut bits = BitWriter::new(sink);
        for (piece, range) in self.overlaps(&rows) {
            match &piece.values {
                Values::Bytes(bytes) => {
                    bits.sink.put(&bytes.as_slice()[range.start * self.width..range.end * self.width]);
                }
                Values::Bits(values) => bits.copy(values, range),
                Values::Decimals(values) => {
                    let nulls = piece.nulls.as_ref();
                    self.write_decimals(&values[range.clone()], nulls, range.start, bits.sink);
                }
            }
        }
        bits.finish();
    }

    /// Writes the validity bitmap of some rows; bits after the last are 0.
    pub(crate) fn write_validity(&self, rows: Range<usize>, sink: &mut dyn Sink) {
        let mut bits = BitWriter::new(sink);
        for (piece, range) in self.overlaps(&rows) {
            match &piece.nulls {
                Some(nulls) => bits.copy(nulls.inner(), range),
                None => bits.ones(range.len()),
            }
        }
        bits.finish();
    }

    /// Pieces that hold some of the rows, with the rows' range inside each.
    fn overlaps<'a>(&'a self, rows: &'a Range<usize>) -> impl Iterator<Item = (&'a Piece, Range<usize>)> {
        let first = self.pieces.partition_point(|piece| piece.rows.end <= rows.start);
        self.pieces[first..].iter().take_while(|piece| piece.rows.start < rows.end).map(|piece| {
            let start = rows.start.max(piece.rows.start) - piece.rows.start;
            let end = rows.end.min(piece.rows.end) - piece.rows.start;
            (piece, start..end)
        })
    }

    fn write_decimals(&self, values: &[i128], nulls: Option<&NullBuffer>, first: usize, sink: &mut dyn Sink) {
        let mut seen = 0u128;
        let mut bad = false;
        for (index, block) in values.chunks(BLOCK).enumerate() {
            let start = first + index * BLOCK;
            let mut valid = [true; BLOCK];
            if let Some(nulls) = nulls {
                for (offset, flag) in valid[..block.len()].iter_mut().enumerate() {
                    *flag = nulls.is_valid(start + offset);
                }
            }
            if self.repr == ColumnRepr::DecimalNarrow {
                let mut narrow = [0i64; BLOCK];
                let checked = narrow_block(block, &valid, self.bound, &mut narrow);
                seen |= u128::from(checked.0);
                bad |= checked.1;
                sink.put(bytemuck::cast_slice(&narrow[..block.len()]));
            } else {
                let live = block.iter().zip(&valid).filter(|(_, valid)| **valid);
                seen |= live.fold(0, |seen, (value, _)| seen | value.unsigned_abs());
                sink.put(bytemuck::cast_slice(block));
            }
        }
        // The highest bit of all magnitudes OR'ed is that of the largest.
        self.magnitude.fetch_max((u128::BITS - seen.leading_zeros()) as u8, Ordering::Relaxed);
        if bad {
            self.out_of_range.store(true, Ordering::Relaxed);
        }
    }
}

/// The bytes of a primitive array's values; `None` when they are not `width` bytes each.
fn value_bytes(array: &ArrayRef, width: usize) -> Option<Buffer> {
    let values = downcast_primitive_array! {
        array => array.values().inner().clone(),
        _ => return None
    };
    (values.len() == array.len() * width).then_some(values)
}

/// Narrows a block; gives the magnitudes of the valid values OR'ed, and whether one was not below `bound`.
fn narrow_block(values: &[i128], valid: &[bool; BLOCK], bound: u64, out: &mut [i64; BLOCK]) -> (u64, bool) {
    let (mut seen, mut bad) = (0u64, false);
    for ((value, out), valid) in values.iter().zip(out.iter_mut()).zip(valid) {
        let low = *value as i64;
        *out = low;
        let magnitude = low.unsigned_abs();
        let wrong = i128::from(low) != *value || magnitude >= bound;
        bad |= wrong & valid;
        seen |= if *valid { magnitude } else { 0 };
    }
    (seen, bad)
}

/// Appends bits from any offset; whole 64-bit words go to the sink in blocks.
struct BitWriter<'a> {
    sink: &'a mut dyn Sink,
    /// Bits not yet in `words`, from bit 0.
    word: u64,
    used: usize,
    words: [u64; BLOCK],
    count: usize,
}

impl<'a> BitWriter<'a> {
    fn new(sink: &'a mut dyn Sink) -> Self {
        BitWriter { sink, word: 0, used: 0, words: [0; BLOCK], count: 0 }
    }

    /// Appends the lowest `bits` (1..=64) of `value`, whose others are 0.
    fn push(&mut self, value: u64, bits: usize) {
        self.word |= value << self.used;
        if self.used + bits < 64 {
            self.used += bits;
            return;
        }
        let word = self.word;
        let taken = 64 - self.used;
        self.used = self.used + bits - 64;
        self.word = if self.used == 0 { 0 } else { value >> taken };
        self.flush_word(word);
    }

    fn flush_word(&mut self, word: u64) {
        self.words[self.count] = word.to_le();
        self.count += 1;
        if self.count == BLOCK {
            self.flush();
        }
    }

    fn flush(&mut self) {
        self.sink.put(bytemuck::cast_slice(&self.words[..self.count]));
        self.count = 0;
    }

    fn copy(&mut self, bits: &BooleanBuffer, range: Range<usize>) {
        let slice = bits.slice(range.start, range.len());
        if self.used == 0 && slice.offset().is_multiple_of(8) {
            return self.copy_aligned(&slice);
        }
        let chunks = slice.bit_chunks();
        chunks.iter().for_each(|word| self.push(word, 64));
        if chunks.remainder_len() > 0 {
            self.push(chunks.remainder_bits(), chunks.remainder_len());
        }
    }

    /// Copies whole words as bytes when neither side needs a shift.
    fn copy_aligned(&mut self, slice: &BooleanBuffer) {
        let whole = slice.len() / 64 * 8;
        let first = slice.offset() / 8;
        self.flush();
        self.sink.put(&slice.inner().as_slice()[first..first + whole]);
        let chunks = slice.bit_chunks();
        if chunks.remainder_len() > 0 {
            self.push(chunks.remainder_bits(), chunks.remainder_len());
        }
    }

    fn ones(&mut self, mut bits: usize) {
        while bits > 0 {
            let part = bits.min(64);
            self.push(u64::MAX >> (64 - part), part);
            bits -= part;
        }
    }

    /// Writes what is left, padded with zeros to whole words.
    fn finish(mut self) {
        if self.used > 0 {
            let word = self.word;
            self.flush_word(word);
        }
        self.flush();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{BooleanArray, Decimal128Array, Int16Array};

    use super::*;

    impl Sink for Vec<u8> {
        fn put(&mut self, bytes: &[u8]) {
            self.extend_from_slice(bytes);
        }
    }

    fn bit(bytes: &[u8], index: usize) -> bool {
        bytes[index / 8] >> (index % 8) & 1 == 1
    }

    #[test]
    fn bitmaps_of_sliced_arrays_are_realigned() {
        let pattern = |i: usize| (i * i + i / 7).is_multiple_of(3);
        let all = BooleanArray::from((0..5000).map(pattern).collect::<Vec<_>>());
        for cuts in [vec![0, 5000], vec![3, 4, 77, 141, 205, 1000, 4997], vec![64, 128, 4000], vec![1, 4999]]
        {
            let arrays: Vec<ArrayRef> =
                cuts.windows(2).map(|cut| Arc::new(all.slice(cut[0], cut[1] - cut[0])) as ArrayRef).collect();
            let source = Source::new(&arrays, ColumnRepr::Bits, 0, 0).unwrap();
            let rows = cuts[cuts.len() - 1] - cuts[0];
            assert_eq!(source.rows(), rows);
            let mut whole = Vec::new();
            source.write_values(0..rows, &mut whole);
            assert_eq!(whole.len(), rows.div_ceil(64) * 8);
            for i in 0..whole.len() * 8 {
                assert_eq!(bit(&whole, i), i < rows && pattern(cuts[0] + i), "{cuts:?} {i}");
            }
            let mut parts = Vec::new();
            let middle = (rows / 2).next_multiple_of(ROW_ALIGNMENT).min(rows);
            source.write_values(0..middle, &mut parts);
            source.write_values(middle..rows, &mut parts);
            assert_eq!(whole, parts);
        }
    }

    #[test]
    fn validity_mixes_arrays_with_and_without_nulls() {
        let some = Int16Array::from((0..300).map(|i| (i % 5 != 0).then_some(i as i16)).collect::<Vec<_>>());
        let none = Int16Array::from((0..77).collect::<Vec<i16>>());
        let arrays: Vec<ArrayRef> = vec![
            Arc::new(some.slice(13, 200)),
            Arc::new(none),
            Arc::new(some.slice(0, 0)),
            Arc::new(some.slice(7, 9)),
        ];
        let source = Source::new(&arrays, ColumnRepr::Arrow, 2, 0).unwrap();
        assert!(source.has_nulls());
        let mut bytes = Vec::new();
        source.write_validity(0..286, &mut bytes);
        let expected = arrays.iter().flat_map(|array| (0..array.len()).map(|i| array.is_valid(i)));
        for (i, valid) in expected.enumerate() {
            assert_eq!(bit(&bytes, i), valid, "{i}");
        }
        assert!((286..bytes.len() * 8).all(|i| !bit(&bytes, i)));
        let mut values = Vec::new();
        source.write_values(200..286, &mut values);
        assert_eq!(values.len(), 86 * 2);
        // Row 213 is row 13 of the second array, row 277 the first of the last.
        assert_eq!(values[26..28], 13i16.to_le_bytes());
        assert_eq!(values[154..156], 7i16.to_le_bytes());
    }

    #[test]
    fn decimals_are_checked_where_valid() {
        let decimals = |values: Vec<Option<i128>>| {
            let array = Decimal128Array::from(values).with_precision_and_scale(5, 2).unwrap();
            vec![Arc::new(array) as ArrayRef]
        };
        let write = |arrays: &[ArrayRef]| {
            let source = Source::new(arrays, ColumnRepr::DecimalNarrow, 8, 100_000).unwrap();
            let mut bytes = Vec::new();
            source.write_values(0..source.rows(), &mut bytes);
            (source.magnitude(), source.out_of_range(), bytes)
        };
        let (magnitude, bad, bytes) = write(&decimals(vec![Some(-99_999), None, Some(3)]));
        assert_eq!((magnitude, bad, bytes.len()), (17, false, 24));
        assert_eq!(bytes[..8], (-99_999i64).to_le_bytes());
        assert!(write(&decimals(vec![Some(100_000)])).1);
        assert!(write(&decimals(vec![Some(-(1 << 64))])).1);
        // Garbage under a null counts neither as wrong nor as large.
        let values = ScalarBuffer::from(vec![1i128 << 100, 4, i128::MIN]);
        let garbage = Decimal128Array::new(values, Some(NullBuffer::from(vec![false, true, false])));
        let (magnitude, bad, _) = write(&[Arc::new(garbage.with_precision_and_scale(5, 2).unwrap())]);
        assert_eq!((magnitude, bad), (3, false));
    }
}
