//! GpuFilterExec.

use std::sync::Arc;

use datafusion::common::{Result, internal_datafusion_err};

use crate::kernels::expr::Expr;
use crate::memory::batch::GpuBatch;

use super::op::{DeviceOp, OpKind, RowLocalOp};
use super::params::{ParamTable, ParamValues, rebase};

/// Keeps the rows for which the predicate is true; NULL drops a row, as in SQL.
#[derive(Debug)]
pub struct FilterOp {
    /// Boolean expression over the input's columns.
    pub predicate: Arc<Expr>,
    /// Parameters of the predicate.
    pub params: ParamTable,
    /// Input columns that are kept, in output order; `None` keeps all.
    pub projection: Option<Vec<usize>>,
    /// Rows after which the filter may stop.
    pub fetch: Option<usize>,
    /// The predicate as DataFusion prints it.
    pub display: String,
}

impl DeviceOp for FilterOp {
    fn name(&self) -> &'static str {
        "GpuFilterExec"
    }

    fn details(&self) -> Vec<(&'static str, String)> {
        let mut details = vec![("predicate", self.display.to_string())];
        details.extend(self.projection.as_ref().map(|projection| ("projection", format!("{projection:?}"))));
        details.extend(self.fetch.map(|fetch| ("fetch", fetch.to_string())));
        details
    }

    fn params(&self) -> &ParamTable {
        &self.params
    }

    fn kind(&self) -> OpKind<'_> {
        OpKind::RowLocal(self)
    }
}

impl RowLocalOp for FilterOp {
    fn apply(&self, mut batch: GpuBatch, params: &ParamValues) -> Result<GpuBatch> {
        let bound = self.params.bind(&mut batch, params)?;
        let predicate =
            rebase(&self.predicate, &|index| batch.column_expr(index), &bound).ok_or_else(|| {
                internal_datafusion_err!(
                    "GpuFilterExec: the predicate reads a column that is not on the device"
                )
            })?;
        batch.select(predicate);
        if let Some(projection) = &self.projection {
            batch.project(projection)?;
        }
        Ok(batch)
    }

    fn fetch(&self) -> Option<usize> {
        self.fetch
    }
}
