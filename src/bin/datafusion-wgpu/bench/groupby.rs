//! h2o.ai's questions with GROUP BY: one table, with keys of 100 values and keys of a hundredth of its rows.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, Float64Array, Int32Array, StringArray};
use datafusion::arrow::datatypes::{DataType, Field, Schema};
use rand::Rng;

use super::files::{self, Table, batch, row_count};
use super::flags::RowsArgs;
use super::suite::{Size, Suite, queries};

/// Values of the small keys, and rows of a value of the large ones.
const GROUPS: i32 = 100;

/// The suite.
pub fn suite(args: &RowsArgs) -> Suite {
    let rows = args.rows;
    let folder = args.common.data.join(format!("groupby-{rows}"));
    let out = folder.clone();
    Suite {
        name: "groupby",
        size: Size::Rows(rows),
        folder,
        tables: vec!["x"],
        queries: queries(include_str!("groupby.sql")),
        make: Box::new(move |progress| files::prepare(&out, &[table(rows)], progress)),
    }
}

fn table(rows: u64) -> Table {
    let field = |name: &str, data_type| Field::new(name, data_type, false);
    let schema = Arc::new(Schema::new(vec![
        field("id1", DataType::Utf8),
        field("id2", DataType::Utf8),
        field("id3", DataType::Utf8),
        field("id4", DataType::Int32),
        field("id5", DataType::Int32),
        field("id6", DataType::Int32),
        field("v1", DataType::Int32),
        field("v2", DataType::Int32),
        field("v3", DataType::Float64),
    ]));
    let large = i32::try_from(rows / u64::from(GROUPS.unsigned_abs())).unwrap_or(i32::MAX).max(1);
    let columns = Arc::clone(&schema);
    let make = move |rng: &mut files::Random, range: std::ops::Range<u64>| {
        let rows = row_count(&range);
        let mut integers = |most: i32| (0..rows).map(|_| rng.random_range(1..=most)).collect::<Vec<i32>>();
        let text = |keys: &[i32], width: usize| -> ArrayRef {
            Arc::new(StringArray::from_iter_values(keys.iter().map(|key| format!("id{key:0width$}"))))
        };
        let numbers = |values: Vec<i32>| -> ArrayRef { Arc::new(Int32Array::from(values)) };
        let mut arrays = vec![
            text(&integers(GROUPS), 3),
            text(&integers(GROUPS), 3),
            text(&integers(large), 10),
            numbers(integers(GROUPS)),
            numbers(integers(GROUPS)),
            numbers(integers(large)),
            numbers(integers(5)),
            numbers(integers(15)),
        ];
        // Six digits after the point, as the benchmark's own data.
        let v3 = (0..rows).map(|_| f64::from(rng.random_range(0..=100_000_000)) / 1e6);
        arrays.push(Arc::new(Float64Array::from_iter_values(v3)));
        batch(&columns, arrays)
    };
    Table { name: "x", schema, rows, make: Box::new(make) }
}
