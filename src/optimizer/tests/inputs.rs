//! Where islands begin: joins, unions, streams and recursion.

use datafusion::catalog::streaming::StreamingTable;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::EmptyRecordBatchStream;
use datafusion::physical_plan::streaming::PartitionStream;

use super::*;

#[tokio::test]
async fn recursive_terms_stay_on_the_cpu() {
    let ctx = session(4);
    let sql =
        "WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r WHERE n < 10) SELECT sum(n) FROM r";
    let (_, outcome) = place(&ctx, sql, &force()).await;
    let report = &outcome.report;
    let recursive = report.nodes.iter().position(|n| n.cpu_name == "RecursiveQueryExec").unwrap();
    for node in &report.nodes[recursive..] {
        assert_eq!(node.placement, NodePlacement::Cpu, "{report}");
        assert!(node.reasons.iter().any(|r| r.code() == "RecursiveQuery"), "{report}");
    }
    assert!(report.codes("FilterExec").contains(&"RecursiveQuery"), "{report}");
}

#[tokio::test]
async fn unions_and_joins_border_islands() {
    let ctx = session(4);
    let sql =
        "SELECT sum(x) FROM (SELECT a AS x FROM t WHERE b > 3 UNION ALL SELECT b AS x FROM t WHERE a < 9)";
    let report = report(&ctx, sql, &force()).await;
    assert_eq!(report.codes("UnionExec"), ["UnsupportedOperator"], "{report}");
    let filters = report.nodes.iter().filter(|n| n.cpu_name == "FilterExec").collect::<Vec<_>>();
    assert!(filters.len() == 2 && filters.iter().all(|n| n.placement == NodePlacement::Gpu), "{report}");
}

/// A stream without statistics.
#[derive(Debug)]
struct Rows(SchemaRef);

impl PartitionStream for Rows {
    fn schema(&self) -> &SchemaRef {
        &self.0
    }

    fn execute(&self, _: Arc<TaskContext>) -> SendableRecordBatchStream {
        Box::pin(EmptyRecordBatchStream::new(Arc::clone(&self.0)))
    }
}

fn streaming_session(infinite: bool) -> SessionContext {
    let ctx = SessionContext::new();
    let schema = batch(0).schema();
    let table = StreamingTable::try_new(Arc::clone(&schema), vec![Arc::new(Rows(schema))]).unwrap();
    ctx.register_table("t", Arc::new(table.with_infinite_table(infinite))).unwrap();
    ctx
}

#[tokio::test]
async fn inputs_without_end_or_of_unknown_size() {
    let endless = report(&streaming_session(true), "SELECT a FROM t WHERE b > 3", &force()).await;
    assert_eq!(endless.codes("FilterExec"), ["Unbounded"], "{endless}");
    let ctx = streaming_session(false);
    let unknown = report(&ctx, Q, &auto()).await;
    assert_eq!(unknown.codes("FilterExec"), ["UnknownRows"], "{unknown}");
    assert!(report(&ctx, Q, &force()).await.uses_gpu());
}
