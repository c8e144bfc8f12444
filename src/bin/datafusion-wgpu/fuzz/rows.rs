//! Answers, encoded so that their rows can be matched with each other.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use datafusion::arrow::array::{
    Array, ArrayRef, AsArray, Float16Array, Float32Array, Float64Array, RecordBatch,
};
use datafusion::arrow::compute::{SortOptions, cast, concat_batches};
use datafusion::arrow::datatypes::{ArrowPrimitiveType, DataType, Float16Type, Float32Type, Float64Type};
use datafusion::arrow::row::{RowConverter, SortField};
use datafusion::error::Result;

use super::ast::Tier;
use super::cells;
use super::compare::{Answer, Key, Spec};
use super::rounded::{Expected, Rounding};

/// An answer, or a reference: an answer with hidden keys and summands as further columns.
pub struct Rows {
    batch: RecordBatch,
    /// Columns of the result.
    columns: usize,
    /// The exact columns of each row; where one may stand for another, only one zero and one NaN.
    pub exact: Vec<Vec<u8>>,
    rounded: Vec<Rounded>,
    /// The keys of each row as they are, up to the first that the answer does not have.
    keys: Vec<Vec<u8>>,
    /// The keys of each row as far as they determine its place.
    places: Vec<Vec<u8>>,
}

/// A float of 16 bits.
type Half = <Float16Type as ArrowPrimitiveType>::Native;

/// A column that DataFusion rounds at each step.
struct Rounded {
    column: usize,
    values: Float64Array,
    /// What each row must give: in a reference only. Nothing, where the summands cannot be read.
    expected: Option<Vec<Option<Expected>>>,
}

impl Rounded {
    /// Whether each row has only one right value, so that the column determines places.
    fn is_settled(&self) -> bool {
        let expected = self.expected.as_ref();
        expected.is_some_and(|all| all.iter().flatten().all(Expected::is_settled))
    }
}

impl Rows {
    /// Encodes an answer whose result has `columns`.
    pub fn new(spec: &Spec, answer: &Answer, columns: usize) -> Result<Self> {
        let batch = concat_batches(&answer.schema, &answer.batches)?;
        let normal: Vec<ArrayRef> = (0..columns)
            .map(|at| normal(batch.column(at), spec.folds(at), has_any_nan(spec.tier(at))))
            .collect();
        let (mut exact, mut rounded) = (vec![], vec![]);
        let mut summands = batch.columns().iter().skip(columns + spec.hidden(columns));
        for (column, array) in normal.iter().enumerate() {
            let Tier::Rounded(rounding) = spec.tier(column) else {
                exact.push(Arc::clone(array));
                continue;
            };
            let lists = summands.next();
            match doubles(rounding, array)? {
                Some(values) => {
                    let data_type = array.data_type();
                    let expected = lists.and_then(|lists| expected(rounding, data_type, lists));
                    rounded.push(Rounded { column, values, expected });
                }
                // The average of decimals is one.
                None => exact.push(Arc::clone(array)),
            }
        }
        let plain = exact.iter().map(|column| SortField::new(column.data_type().clone())).collect();
        let exact = encode(plain, &exact, batch.num_rows())?;
        let known = spec.order.iter().take_while(|key| key.column < batch.num_columns());
        let known: Vec<Key> = known.copied().collect();
        let is_settled = |key: &&Key| match rounded.iter().find(|rounded| rounded.column == key.column) {
            Some(rounded) => rounded.is_settled(),
            None => settles(spec, key.column, &batch, columns),
        };
        let settled = known.iter().take_while(is_settled).count();
        let keys = sort_keys(&batch, &known)?;
        let places = sort_keys(&batch, &known[..settled])?;
        Ok(Rows { batch, columns, exact, rounded, keys, places })
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.batch.num_rows()
    }

    /// Whether no column is rounded at each step.
    pub fn is_exact(&self) -> bool {
        self.rounded.is_empty()
    }

    /// Whether what each row must give is known.
    pub fn has_summands(&self) -> bool {
        self.rounded.iter().all(|rounded| rounded.expected.is_some())
    }

    /// The first row whose key is less than the key before.
    pub fn disorder(&self) -> Option<usize> {
        (1..self.keys.len()).find(|row| self.keys[row - 1] > self.keys[*row])
    }

    /// The first row whose key is more than the key before.
    pub fn step(&self) -> Option<usize> {
        (1..self.keys.len()).find(|row| self.keys[row - 1] < self.keys[*row])
    }

    /// The rows in order, and where those end that have the same place.
    pub fn ties(&self) -> (Vec<usize>, Vec<usize>) {
        let mut order: Vec<usize> = (0..self.len()).collect();
        order.sort_by(|a, b| self.places[*a].cmp(&self.places[*b]));
        let ends = (1..=order.len())
            .filter(|at| *at == order.len() || self.places[order[*at]] != self.places[order[at - 1]]);
        let ends = ends.collect();
        (order, ends)
    }

    /// Rows among `rows` for which none of the rows `theirs` of the other answer is left.
    pub fn unmatched(&self, other: &Rows, rows: Range<usize>, theirs: &[usize], strict: bool) -> Vec<usize> {
        let mut left: HashMap<&[u8], Vec<usize>> = HashMap::new();
        for row in theirs {
            left.entry(other.exact[*row].as_slice()).or_default().push(*row);
        }
        // Nearly equal values meet first.
        let mut rows: Vec<usize> = rows.collect();
        if !self.is_exact() {
            rows.sort_by(|a, b| self.by_value(*a, *b));
            // Those that allow one value only before those that allow it as well.
            let order = |a: &usize, b: &usize| {
                other.choices(*a).cmp(&other.choices(*b)).then_with(|| other.by_value(*a, *b))
            };
            left.values_mut().for_each(|rows| rows.sort_by(order));
        }
        rows.retain(|row| {
            let Some(candidates) = left.get_mut(self.exact[*row].as_slice()) else { return true };
            let place = if self.is_exact() {
                candidates.len().checked_sub(1)
            } else {
                candidates.iter().position(|candidate| other.allows(*candidate, self, *row, strict))
            };
            place.map(|place| candidates.remove(place)).is_none()
        });
        rows
    }

    /// How many values a row of this reference allows.
    fn choices(&self, row: usize) -> usize {
        let expected = self.rounded.iter().filter_map(|rounded| rounded.expected.as_ref()?[row].as_ref());
        expected.map(Expected::choices).max().unwrap_or(1)
    }

    fn by_value(&self, a: usize, b: usize) -> std::cmp::Ordering {
        let orders = self.rounded.iter().map(|rounded| {
            let value = |row: usize| rounded.values.is_valid(row).then(|| rounded.values.value(row));
            match (value(a), value(b)) {
                (Some(a), Some(b)) => a.total_cmp(&b),
                (a, b) => a.is_some().cmp(&b.is_some()),
            }
        });
        orders.fold(std::cmp::Ordering::Equal, std::cmp::Ordering::then)
    }

    /// Whether a row's rounded values are those that `row` of this reference must give.
    fn allows(&self, row: usize, other: &Rows, theirs: usize, strict: bool) -> bool {
        self.rounded.iter().zip(&other.rounded).all(|(here, there)| {
            let got = there.values.is_valid(theirs).then(|| there.values.value(theirs));
            match (here.expected.as_ref().and_then(|all| all[row].as_ref()), got) {
                (Some(expected), Some(got)) => expected.allows(got, strict),
                (None, None) => true,
                _ => false,
            }
        })
    }

    /// Where the first key is rounded: a row whose key is not that of its rank in this reference.
    pub fn misranked(&self, spec: &Spec, got: &Rows) -> Option<usize> {
        let key = spec.order.first()?;
        let at = self.rounded.iter().position(|rounded| rounded.column == key.column)?;
        let expected = self.rounded[at].expected.as_ref()?;
        let (mut ranks, mut most) = (Vec::with_capacity(expected.len()), 0.0f64);
        for expected in expected {
            // One value whose place is open leaves all ranks open.
            let place = match expected {
                Some(expected) => Some(expected.place()?),
                None => None,
            };
            most = most.max(place.map_or(0.0, |(_, distance)| distance));
            ranks.push(place.map(|(value, _)| value));
        }
        ranks.sort_by(|a, b| {
            // NULLs come first or last, whatever the direction.
            let nulls =
                if key.nulls_first { a.is_some().cmp(&b.is_some()) } else { a.is_none().cmp(&b.is_none()) };
            let values = a.unwrap_or_default().total_cmp(&b.unwrap_or_default());
            nulls.then(if key.descending { values.reverse() } else { values })
        });
        let values = &got.rounded.get(at)?.values;
        // Each value is off by `most` at most, so each rank is.
        (0..got.len()).find(|row| {
            match (ranks.get(spec.offset + row).copied().flatten(), values.is_valid(*row)) {
                (Some(rank), true) => (values.value(*row) - rank).abs() > most,
                (rank, valid) => rank.is_some() != valid,
            }
        })
    }

    /// Rows that are more often here than there.
    pub fn only(&self, there: &Rows) -> Vec<usize> {
        let whole = |rows: &Rows, row: usize| -> Vec<Option<u64>> {
            let values =
                rows.rounded.iter().map(|r| r.values.is_valid(row).then(|| r.values.value(row).to_bits()));
            values.collect()
        };
        let mut counts: HashMap<(&[u8], Vec<Option<u64>>), usize> = HashMap::new();
        for row in 0..there.len() {
            *counts.entry((there.exact[row].as_slice(), whole(there, row))).or_default() += 1;
        }
        let is_spare = |row: &usize| match counts.get_mut(&(self.exact[*row].as_slice(), whole(self, *row))) {
            Some(count) if *count > 0 => {
                *count -= 1;
                false
            }
            _ => true,
        };
        (0..self.len()).filter(is_spare).collect()
    }

    /// A row as people read it.
    pub fn show(&self, row: usize) -> String {
        let columns = self.batch.columns().iter().take(self.columns);
        let cells = columns.map(|column| cells::show(column.as_ref(), row));
        format!("({})", cells.collect::<Vec<_>>().join(", "))
    }

    /// A row with these exact columns, and what its rounded ones must give.
    pub fn near(&self, exact: &[u8]) -> Option<String> {
        let row = (0..self.len()).find(|row| self.exact[*row] == exact)?;
        let wanted =
            |rounded: &Rounded| format!("{:?}", rounded.expected.as_ref().and_then(|all| all[row].as_ref()));
        Some(self.show(row) + " " + &self.rounded.iter().map(wanted).collect::<Vec<_>>().join(" "))
    }
}

fn expected(rounding: Rounding, data_type: &DataType, lists: &ArrayRef) -> Option<Vec<Option<Expected>>> {
    (0..lists.len()).map(|row| Expected::of_row(rounding, data_type, lists, row)).collect()
}

/// The values of a column that may come out otherwise; `None` for one of a type that never does.
fn doubles(rounding: Rounding, array: &ArrayRef) -> Result<Option<Float64Array>> {
    let is_extreme = matches!(rounding, Rounding::Extreme { .. });
    if is_extreme && *array.data_type() == DataType::Float32 {
        let array = cast(array, &DataType::Float64)?;
        return Ok(array.as_primitive_opt::<Float64Type>().cloned());
    }
    Ok(array.as_primitive_opt::<Float64Type>().cloned())
}

/// Whether one NaN may stand for another, so that only one is kept. MIN and MAX look for theirs among the values of the group.
fn has_any_nan(tier: Tier) -> bool {
    !matches!(tier, Tier::Exact | Tier::Rounded(Rounding::Extreme { .. }))
}

/// Whether a key determines the place of rows: not where it may come out as another value.
fn settles(spec: &Spec, column: usize, batch: &RecordBatch, columns: usize) -> bool {
    let array = batch.column(column);
    let any = |test: fn(f64) -> bool| match array.data_type() {
        DataType::Float16 => array.as_primitive::<Float16Type>().iter().flatten().any(|v| test(v.into())),
        DataType::Float32 => array.as_primitive::<Float32Type>().iter().flatten().any(|v| test(v.into())),
        DataType::Float64 => array.as_primitive::<Float64Type>().iter().flatten().any(test),
        _ => false,
    };
    let zeros = column < columns && spec.folds(column) && any(|value| value == 0.0);
    let nans = spec.tier(column) != Tier::Exact && any(f64::is_nan);
    !zeros && !nans
}

fn sort_keys(batch: &RecordBatch, keys: &[Key]) -> Result<Vec<Vec<u8>>> {
    let columns: Vec<ArrayRef> = keys.iter().map(|key| Arc::clone(batch.column(key.column))).collect();
    let field = |(key, column): (&Key, &ArrayRef)| {
        let options = SortOptions { descending: key.descending, nulls_first: key.nulls_first };
        SortField::new_with_options(column.data_type().clone(), options)
    };
    encode(keys.iter().zip(&columns).map(field).collect(), &columns, batch.num_rows())
}

/// Each row's bytes; empty ones where there are no columns.
fn encode(fields: Vec<SortField>, columns: &[ArrayRef], rows: usize) -> Result<Vec<Vec<u8>>> {
    if columns.is_empty() {
        return Ok(vec![vec![]; rows]);
    }
    let encoded = RowConverter::new(fields)?.convert_columns(columns)?;
    Ok(encoded.iter().map(|row| row.as_ref().to_vec()).collect())
}

/// The column with one zero, or one NaN, where either may stand for the other.
fn normal(column: &ArrayRef, one_zero: bool, one_nan: bool) -> ArrayRef {
    macro_rules! normal {
        ($type:ty, $array:ty, $native:ty) => {{
            let value = |value: $native| {
                let zero = <$native>::default();
                if one_zero && value == zero {
                    zero
                } else if one_nan && value.is_nan() {
                    <$native>::NAN
                } else {
                    value
                }
            };
            let floats = column.as_primitive::<$type>();
            Arc::new(floats.iter().map(|v| v.map(value)).collect::<$array>()) as ArrayRef
        }};
    }
    match column.data_type() {
        DataType::Float16 => normal!(Float16Type, Float16Array, Half),
        DataType::Float32 => normal!(Float32Type, Float32Array, f32),
        DataType::Float64 => normal!(Float64Type, Float64Array, f64),
        _ => Arc::clone(column),
    }
}
