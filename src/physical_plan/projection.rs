//! GpuProjectionExec.

use std::sync::Arc;

use datafusion::common::{Result, internal_datafusion_err};

use crate::kernels::expr::Expr;
use crate::memory::batch::{GpuBatch, LazyColumn};

use super::op::{DeviceOp, OpKind, RowLocalOp};
use super::params::{ParamTable, ParamValues, rebase};

/// One output column.
#[derive(Debug, Clone)]
pub enum ProjectedColumn {
    /// The input column of that index, of any Arrow type: it rides along.
    Input(usize),
    /// A value computed on the device, when a consumer needs it.
    Computed(Arc<Expr>),
}

/// Computes columns from the input's.
#[derive(Debug)]
pub struct ProjectionOp {
    /// Output columns.
    pub outputs: Vec<ProjectedColumn>,
    /// Parameters of the computed columns.
    pub params: ParamTable,
    /// The expressions as DataFusion prints them.
    pub display: String,
}

impl DeviceOp for ProjectionOp {
    fn name(&self) -> &'static str {
        "GpuProjectionExec"
    }

    fn details(&self) -> Vec<(&'static str, String)> {
        vec![("expr", format!("[{}]", self.display))]
    }

    fn params(&self) -> &ParamTable {
        &self.params
    }

    fn kind(&self) -> OpKind<'_> {
        OpKind::RowLocal(self)
    }
}

impl RowLocalOp for ProjectionOp {
    fn apply(&self, mut batch: GpuBatch, params: &ParamValues) -> Result<GpuBatch> {
        let bound = self.params.bind(&mut batch, params)?;
        let columns = self
            .outputs
            .iter()
            .map(|output| match output {
                ProjectedColumn::Input(index) => batch.column(*index).cloned(),
                ProjectedColumn::Computed(expr) => {
                    rebase(expr, &|index| batch.column_expr(index), &bound).map(LazyColumn::Computed)
                }
            })
            .collect::<Option<Vec<_>>>()
            .ok_or_else(|| {
                internal_datafusion_err!(
                    "GpuProjectionExec: an expression reads a column that is not on the device"
                )
            })?;
        batch.set_columns(columns);
        Ok(batch)
    }
}
