//! ProjectionExec.

use std::sync::Arc;

use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::projection::ProjectionExec;

use crate::optimizer::expr::Lowering;
use crate::optimizer::reason::Reason;
use crate::optimizer::registry::{Proposal, RuleContext};
use crate::physical_plan::projection::{ProjectedColumn, ProjectionOp};

/// The GPU projection for `exec`, or every reason against it.
///
/// Plain columns ride along, whatever their type; only computed ones need to be lowered.
pub(crate) fn check(exec: &ProjectionExec, context: &RuleContext<'_>) -> Result<Proposal, Vec<Reason>> {
    let mut lowering = Lowering::new(exec.input().schema());
    let outputs: Vec<_> = exec
        .expr()
        .iter()
        .zip(exec.schema().fields())
        .map(|(output, field)| {
            lowering.name(format!("column {}", output.alias));
            match output.expr.downcast_ref::<Column>() {
                Some(column) => Ok(ProjectedColumn::Input(column.index())),
                // The CPU raises where it makes a batch with a NULL in a column that is declared to have none.
                None if !field.is_nullable() => {
                    lowering.required(&output.expr).map(ProjectedColumn::Computed)
                }
                None => lowering.output(&output.expr).map(ProjectedColumn::Computed),
            }
        })
        .collect();
    let (outputs, params) =
        lowering.finish(context.caps, outputs.into_iter().collect::<Result<Vec<_>, _>>())?;
    let renames = outputs.iter().all(|output| matches!(output, ProjectedColumn::Input(_)));
    let display =
        exec.expr().iter().map(|e| format!("{} as {}", e.expr, e.alias)).collect::<Vec<_>>().join(", ");
    let proposal = Proposal::row_local(Arc::new(ProjectionOp { outputs, params, display }));
    Ok(if renames { proposal.without_work() } else { proposal })
}
