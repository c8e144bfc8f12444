//! Columns that are declared to have no NULL: functions see the declaration, and where a value is NULL all the same, DataFusion
//! raises. The device leaves that to the CPU, with the rows that come before.

use std::sync::Arc;

use datafusion::arrow::array::{
    Array, ArrayRef, Date32Array, DictionaryArray, Int32Array, RecordBatch, StringArray,
};
use datafusion::arrow::datatypes::Int32Type;
use datafusion::datasource::MemTable;
use datafusion::prelude::SessionContext;
use futures::StreamExt;

use crate::harness::{Gpu, TestResult, cpu, run};

/// A day that no calendar has.
const BEYOND: i32 = i32::MAX;

/// Table `t`: batches of one row and of two, of which the last has a day beyond the calendar.
fn register(ctx: &SessionContext) -> TestResult {
    let batch = |ids: Vec<i32>, days: Vec<i32>, names: Vec<&str>| {
        let columns: Vec<(&str, ArrayRef, bool)> = vec![
            ("id", Arc::new(Int32Array::from(ids)), false),
            ("d", Arc::new(Date32Array::from(days)), false),
            ("s", Arc::new(StringArray::from(names)), false),
        ];
        RecordBatch::try_from_iter_with_nullable(columns)
    };
    let batches =
        vec![batch(vec![1], vec![0], vec!["a"])?, batch(vec![2, 3], vec![1, BEYOND], vec!["b", "a"])?];
    ctx.register_table("t", Arc::new(MemTable::try_new(batches[0].schema(), vec![batches])?))?;
    Ok(())
}

/// Rows before the error, and its text.
async fn streamed(ctx: &SessionContext, sql: &str) -> TestResult<(usize, Option<String>)> {
    let mut stream = ctx.sql(sql).await?.execute_stream().await?;
    let mut rows = 0;
    while let Some(batch) = stream.next().await {
        match batch {
            Ok(batch) => rows += batch.num_rows(),
            Err(error) => return Ok((rows, Some(error.to_string()))),
        }
    }
    Ok((rows, None))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_null_that_must_not_be_raises_after_the_rows_before_it() -> TestResult {
    let (gpu, off) = (Gpu::new(1).await?, cpu(1));
    register(&gpu.ctx)?;
    register(&off)?;
    let sql = "SELECT id, date_part('year', d) AS y FROM t";
    let (want, got) = (streamed(&off, sql).await?, streamed(&gpu.ctx, sql).await?);
    assert!(want.0 == 1 && want.1.as_ref().is_some_and(|text| text.contains("non-nullable")), "{want:?}");
    assert_eq!(got, want);
    let plan = gpu.ctx.sql(sql).await?.create_physical_plan().await?;
    assert_eq!(plan.name(), "GpuProjectionExec");
    Ok(())
}

/// The projection of a subexpression that two aggregates share raises, though aggregates pass over NULL.
#[tokio::test(flavor = "multi_thread")]
async fn a_null_that_must_not_be_raises_below_other_gpu_nodes() -> TestResult {
    let (gpu, off) = (Gpu::new(1).await?, cpu(1));
    register(&gpu.ctx)?;
    register(&off)?;
    for (sql, raises) in [
        ("SELECT sum(date_part('year', d) + 1), min(date_part('year', d) + 1) FROM t", true),
        ("SELECT sum(date_part('year', d) + 1), min(date_part('year', d) + 1) FROM t WHERE id < 3", false),
        ("SELECT min(date_part('year', d)) FROM t", false),
        ("SELECT id FROM t WHERE date_part('year', d) > 1", false),
    ] {
        let (want, got) = (run(&off, sql).await, gpu.run(sql).await);
        let text = |ran: &TestResult<_>| ran.as_ref().err().map(ToString::to_string);
        assert_eq!(text(&want).is_some(), raises, "{sql}: {want:?}");
        assert_eq!(text(&got), text(&want), "{sql}");
        if let (Ok(want), Ok(got)) = (want, got) {
            assert_eq!(got.rows, want.rows, "{sql}");
            assert!(got.gpu_batches > 0 && got.cpu_batches == 0, "{sql}: {got:?}");
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn functions_of_strings_see_whether_their_column_may_be_null() -> TestResult {
    let (gpu, off) = (Gpu::new(1).await?, cpu(1));
    register(&gpu.ctx)?;
    register(&off)?;
    for sql in
        ["SELECT id, arrow_field(s)['nullable'] FROM t", "SELECT id FROM t WHERE arrow_field(s)['nullable']"]
    {
        let (want, got) = (run(&off, sql).await?, gpu.run(sql).await?);
        assert_eq!(got.rows, want.rows, "{sql}");
        assert!(got.gpu_batches > 0 && got.cpu_batches == 0, "{sql}: {got:?}");
    }
    Ok(())
}

/// The values of an Arrow dictionary may have a NULL in a column that is declared to have none.
#[tokio::test(flavor = "multi_thread")]
async fn a_null_among_the_values_of_a_dictionary_is_left_to_the_cpu() -> TestResult {
    let (gpu, off) = (Gpu::new(1).await?, cpu(1));
    let values: ArrayRef = Arc::new(StringArray::from(vec![Some("a"), None]));
    let column = DictionaryArray::<Int32Type>::try_new(Int32Array::from(vec![0, 1, 0]), values)?;
    assert_eq!(column.null_count(), 0);
    let columns: Vec<(&str, ArrayRef, bool)> = vec![("s", Arc::new(column), false)];
    let batch = RecordBatch::try_from_iter_with_nullable(columns)?;
    for ctx in [&gpu.ctx, &off] {
        ctx.register_table("t", Arc::new(MemTable::try_new(batch.schema(), vec![vec![batch.clone()]])?))?;
    }
    let sql = "SELECT concat(s, 'x') AS c FROM t";
    let (want, got) = (run(&off, sql).await?, gpu.run(sql).await?);
    assert_eq!(got.rows, want.rows);
    assert_eq!(got.nodes, ["GpuProjectionExec"], "{}", got.plan);
    Ok(())
}
