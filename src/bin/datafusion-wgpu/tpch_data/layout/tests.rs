use super::*;

fn request(scale: f64, parts: Option<u32>) -> Request {
    Request { scale, parts, row_group_rows: 262_144, compression: Codec::Snappy }
}

fn counts(table: Table, scale: f64, parts: Option<u32>) -> (i32, i32) {
    let layout = Layout::new(table, &request(scale, parts));
    (layout.files, layout.row_groups)
}

#[test]
fn files_and_row_groups_grow_with_the_table() {
    assert_eq!(counts(Table::Lineitem, 1.0, None), (4, 6));
    assert_eq!(counts(Table::Lineitem, 10.0, None), (30, 8));
    assert_eq!(counts(Table::Orders, 1.0, Some(3)), (3, 2));
    assert_eq!(counts(Table::Nation, 100.0, Some(50)), (1, 1));
    assert_eq!(counts(Table::Supplier, 0.001, Some(64)), (10, 1), "as many files as rows");
}

#[test]
fn the_largest_table_in_the_smallest_row_groups_can_be_counted() {
    let request = Request { row_group_rows: 1_000, ..request(1_000.0, Some(10_000)) };
    let Layout { files, row_groups, .. } = Layout::new(Table::Lineitem, &request);
    assert_eq!((files, row_groups), (10_000, 600));
}

#[test]
fn the_layout_does_not_depend_on_the_machine() {
    let folder = PathBuf::from("x");
    let table =
        TableLayout { table: Table::Part, layout: Layout::new(Table::Part, &request(1.0, Some(12))), folder };
    let paths: Vec<_> = table.paths().collect();
    assert_eq!(paths[0], Path::new("x/part-01.parquet"));
    assert_eq!(paths[11], Path::new("x/part-12.parquet"));
    let rows: u64 = table.missing().map(|file| file.expected_rows()).sum();
    assert_eq!(rows, 200_000 / 12 * 12, "each file's share is rounded down");
}
