//! FilterExec.

use std::sync::Arc;

use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::filter::FilterExec;

use crate::optimizer::expr::Lowering;
use crate::optimizer::reason::Reason;
use crate::optimizer::registry::{Proposal, RuleContext};
use crate::physical_plan::filter::FilterOp;

/// The GPU filter for `exec`, or every reason against it.
pub(crate) fn check(exec: &FilterExec, context: &RuleContext<'_>) -> Result<Proposal, Vec<Reason>> {
    let mut lowering = Lowering::new(exec.input().schema());
    lowering.name("the predicate".to_owned());
    let predicate = lowering.boolean(exec.predicate());
    let (predicate, params) = lowering.finish(context.caps, predicate)?;
    let op = FilterOp {
        predicate,
        params,
        projection: exec.projection().as_ref().map(|projection| projection.to_vec()),
        fetch: exec.fetch(),
        display: exec.predicate().to_string(),
    };
    Ok(Proposal::row_local(Arc::new(op)))
}
