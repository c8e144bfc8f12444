//! The TPC-H files that the other tests and the examples use.

use std::error::Error;
use std::fs;

use datafusion::arrow::array::AsArray;
use datafusion::arrow::datatypes::Int64Type;
use datafusion::prelude::{ParquetReadOptions, SessionContext};

use crate::tpch::write_tpch;

#[tokio::test]
async fn writes_whole_files_once() -> Result<(), Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    let root = write_tpch(dir.path(), 0.001, 3, &["nation", "orders"])?;
    let orders: Vec<_> = (1..=3).map(|part| root.join(format!("orders/part-{part}.parquet"))).collect();
    assert_eq!(fs::read_dir(root.join("orders"))?.count(), orders.len());
    assert_eq!(fs::read_dir(root.join("nation"))?.count(), 1);

    let made = fs::metadata(&orders[0])?.modified()?;
    fs::remove_file(&orders[1])?;
    assert_eq!(write_tpch(dir.path(), 0.001, 3, &["orders"])?, root);
    assert_eq!(fs::metadata(&orders[0])?.modified()?, made, "a file that is there is kept");

    // The generator's own counts at this scale.
    for (table, rows) in [("nation", 25), ("orders", 1500)] {
        let ctx = SessionContext::new();
        let path = root.join(table);
        ctx.register_parquet(table, path.to_string_lossy(), ParquetReadOptions::default()).await?;
        let batches = ctx.sql(&format!("SELECT count(*) FROM {table}")).await?.collect().await?;
        assert_eq!(batches[0].column(0).as_primitive::<Int64Type>().value(0), rows);
    }
    Ok(())
}

#[test]
fn unknown_tables_are_named() {
    let dir = std::env::temp_dir();
    let error = write_tpch(&dir, 0.001, 1, &["lineitems"]).map_err(|e| e.to_string());
    assert!(error.is_err_and(|e| e.contains("lineitems")));
}
