//! h2o.ai's joins: a table of all rows with tables of a millionth of them, a thousandth, and as many.
//!
//! Nine tenths of the keys of each pair of tables are in both, one tenth only in the one, one tenth only in the other.

use std::ops::Range;
use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, Float64Array, Int32Array, StringArray};
use datafusion::arrow::datatypes::{DataType, Field, Schema};
use rand::Rng;

use super::files::{self, Random, Table, batch, row_count};
use super::flags::RowsArgs;
use super::suite::{Size, Suite, queries};

/// Fewest rows of the small tables.
const FEWEST: u64 = 10;

/// The suite.
pub fn suite(args: &RowsArgs) -> Suite {
    let rows = args.rows;
    let folder = args.common.data.join(format!("joins-{rows}"));
    let out = folder.clone();
    Suite {
        name: "joins",
        size: Size::Rows(rows),
        folder,
        tables: vec!["x", "small", "medium", "big"],
        queries: queries(include_str!("joins.sql")),
        make: Box::new(move |progress| files::prepare(&out, &tables(rows), progress)),
    }
}

fn tables(rows: u64) -> Vec<Table> {
    let keys = [(rows / 1_000_000).max(FEWEST), (rows / 1_000).max(FEWEST), rows];
    vec![
        table("x", rows, keys, 3, false),
        table("small", keys[0], keys, 1, true),
        table("medium", keys[1], keys, 2, true),
        table("big", keys[2], keys, 3, true),
    ]
}

/// A table with the first `ids` of the integer keys id1 to id3, their texts id4 to id6, and a value. The last of the keys
/// of a `unique` table has each of its values once.
fn table(name: &'static str, rows: u64, keys: [u64; 3], ids: usize, unique: bool) -> Table {
    let names = (1..=ids).map(|id| (format!("id{id}"), DataType::Int32));
    let texts = (4..4 + ids).map(|id| (format!("id{id}"), DataType::Utf8));
    let value = [(if unique { "v2" } else { "v1" }.to_owned(), DataType::Float64)];
    let fields = names.chain(texts).chain(value);
    let schema = Arc::new(Schema::new(
        fields.map(|(name, data_type)| Field::new(name, data_type, false)).collect::<Vec<_>>(),
    ));
    let columns = Arc::clone(&schema);
    let step = coprime(rows);
    let make = move |rng: &mut Random, range: Range<u64>| {
        let count = row_count(&range);
        let mut integers: Vec<Vec<i32>> = vec![];
        for (id, &most) in keys.iter().enumerate().take(ids) {
            let last = unique && id + 1 == ids;
            let key = |row: u64| if last { mapped(row * step % most, most) } else { 0 };
            integers.push(match last {
                true => range.clone().map(|row| narrow(key(row))).collect(),
                false => (0..count).map(|_| narrow(rng.random_range(1..=most))).collect(),
            });
        }
        let text = |keys: &Vec<i32>| -> ArrayRef {
            Arc::new(StringArray::from_iter_values(keys.iter().map(|key| format!("id{key}"))))
        };
        let mut arrays: Vec<ArrayRef> = integers.iter().map(text).collect();
        let numbers = |keys: Vec<i32>| -> ArrayRef { Arc::new(Int32Array::from(keys)) };
        arrays.splice(0..0, integers.into_iter().map(numbers));
        let values = (0..count).map(|_| f64::from(rng.random_range(0..=100_000_000)) / 1e6);
        arrays.push(Arc::new(Float64Array::from_iter_values(values)));
        batch(&columns, arrays)
    };
    Table { name, schema, rows, make: Box::new(make) }
}

/// The key of the number-th row, from 0, of a table of unique keys: one in ten lies beyond those that others draw from.
fn mapped(number: u64, keys: u64) -> u64 {
    let shared = keys - keys / 10;
    if number < shared { number + 1 } else { keys + 1 + (number - shared) }
}

fn narrow(key: u64) -> i32 {
    i32::try_from(key).unwrap_or(i32::MAX)
}

/// A step that visits each of `rows` rows once in a scattered order.
fn coprime(rows: u64) -> u64 {
    let start = (rows as f64 * 0.618) as u64;
    (start.max(1)..).find(|&step| gcd(step, rows) == 1).unwrap_or(1)
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_the_most_rows_fit() {
        let most = 1_000_000_000;
        let last = mapped(most - 1, most);
        assert_eq!(u64::try_from(narrow(last)), Ok(last));
        assert!((most - 1).checked_mul(coprime(most)).is_some());
    }

    #[test]
    fn unique_keys_are_unique_and_mostly_shared() {
        for rows in [10, 1_000, 12_345] {
            let step = coprime(rows);
            let mut keys: Vec<u64> = (0..rows).map(|row| mapped(row * step % rows, rows)).collect();
            keys.sort_unstable();
            keys.dedup();
            assert_eq!(keys.len() as u64, rows);
            assert_eq!(keys.iter().filter(|&&key| key <= rows).count() as u64, rows - rows / 10);
        }
    }
}
