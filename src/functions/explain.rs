//! `gpu_explain('SELECT ...')`: where each node of a query would run, and why.

use std::sync::Arc;

use arrow::array::{RecordBatch, StringArray, UInt64Array};
use arrow::datatypes::{DataType, Field, SchemaRef};
use async_trait::async_trait;
use datafusion::catalog::{Session, TableFunctionArgs, TableFunctionImpl, TableProvider};
use datafusion::common::{Result, plan_datafusion_err, plan_err};
use datafusion::execution::session_state::SessionState;
use datafusion::logical_expr::Expr;

use crate::optimizer::explain::{explain, is_explaining};
use crate::optimizer::{NodePlacement, PlacementNode, Reason};

use super::{Snapshot, Source};

pub(super) const NAME: &str = "gpu_explain";

/// The function.
#[derive(Debug)]
pub(super) struct ExplainFunction;

impl TableFunctionImpl for ExplainFunction {
    fn call_with_args(&self, args: TableFunctionArgs) -> Result<Arc<dyn TableProvider>> {
        const USAGE: &str = "it takes one string, the query: gpu_explain('SELECT ...')";
        let sql = match args.exprs() {
            [Expr::Literal(value, _)] => value.try_as_str().flatten().map(str::to_owned),
            [_] => None,
            given => return plan_err!("{NAME}: {} arguments were given; {USAGE}", given.len()),
        };
        let Some(sql) = sql else {
            return plan_err!(
                "{NAME}: {} is no string that is known when the query is planned; {USAGE}",
                args.exprs()[0]
            );
        };
        let fields = vec![
            Field::new("depth", DataType::UInt64, false),
            Field::new("node", DataType::Utf8, false),
            Field::new("placement", DataType::Utf8, false),
            Field::new("code", DataType::Utf8, true),
            Field::new("sentence", DataType::Utf8, true),
            Field::new("expression", DataType::Utf8, true),
        ];
        Ok(Arc::new(Snapshot::new(fields, Explain { sql })))
    }
}

#[derive(Debug)]
struct Explain {
    sql: String,
}

#[async_trait]
impl Source for Explain {
    async fn rows(&self, schema: SchemaRef, session: &dyn Session) -> Result<RecordBatch> {
        if is_explaining(session.config()) {
            return Ok(RecordBatch::new_empty(schema));
        }
        let Some(state) = session.as_any().downcast_ref::<SessionState>() else {
            return plan_err!("{NAME}: this session can't plan queries");
        };
        let report = explain(state, &self.sql)
            .await
            .map_err(|error| plan_datafusion_err!("{NAME}: {}", error.message()))?;
        batch(schema, &report.nodes)
    }
}

fn batch(schema: SchemaRef, nodes: &[PlacementNode]) -> Result<RecordBatch> {
    let reasons = |of: fn(&Reason) -> Option<String>| {
        Arc::new(StringArray::from_iter(nodes.iter().map(|node| joined(node, of))))
    };
    Ok(RecordBatch::try_new(
        schema,
        vec![
            Arc::new(UInt64Array::from_iter_values(nodes.iter().map(|node| node.depth as u64))),
            Arc::new(StringArray::from_iter_values(nodes.iter().map(|node| &node.cpu_name))),
            Arc::new(StringArray::from_iter_values(nodes.iter().map(|node| node.placement.name()))),
            reasons(|reason| Some(reason.code().to_owned())),
            Arc::new(StringArray::from_iter(nodes.iter().map(sentence))),
            reasons(|reason| reason.expression().map(str::to_owned)),
        ],
    )?)
}

/// What the reasons of a node say, in their order; `None` when they say nothing.
fn joined(node: &PlacementNode, of: fn(&Reason) -> Option<String>) -> Option<String> {
    let parts: Vec<String> = node.reasons.iter().filter_map(of).collect();
    (!parts.is_empty()).then(|| parts.join("; "))
}

fn sentence(node: &PlacementNode) -> Option<String> {
    match (node.placement, &node.gpu_name) {
        (NodePlacement::Gpu, Some(name)) => Some(format!("{name} takes its place")),
        (NodePlacement::PartOfGpu, Some(name)) => Some(format!("it is part of {name}")),
        (NodePlacement::Transparent, _) => Some("it passes batches on".to_owned()),
        _ => joined(node, |reason| Some(reason.to_string())),
    }
}
