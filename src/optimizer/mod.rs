//! The optimizer rule that moves supported parts of a plan to the GPU: tag, review, convert, report.
//!
//! It needs no device: everything is decided on [`DeviceCaps`], plain data.

mod adapter;
mod convert;
mod cost;
pub mod explain;
mod expr;
mod planning;
pub mod reason;
mod registry;
pub mod report;
mod review;
mod rules;
mod tag;
#[cfg(test)]
mod tests;
mod types;

use std::fmt;
use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;

use crate::config::{GpuOptions, Placement};
use crate::error::GpuResult;
use crate::memory::caps::{AdapterKind, DeviceCaps};

pub use adapter::{declined_by, unusable};
pub use explain::explain;
pub use reason::Reason;
pub use report::{NodePlacement, PlacementNode, PlacementReport};

#[cfg(test)]
pub(crate) use expr::Lowering;
pub(crate) use planning::Planning;

use cost::Machine;
use registry::RuleContext;
use review::Island;
use tag::Tagged;

/// Where the rule learns what the adapter of a query can do; it never sees the adapter itself.
pub trait CapsSource: Send + Sync {
    /// Capabilities of the adapter that `options` choose.
    ///
    /// # Errors
    /// `NoAdapter` when there is none, and the driver's errors when it cannot be opened.
    fn caps(&self, options: &GpuOptions) -> GpuResult<Arc<DeviceCaps>>;
}

/// Physical optimizer rule `gpu_offload`; it belongs behind DataFusion's own rules.
///
/// It fails a query only when `gpu.adapter` names an adapter that is not there: when anything goes wrong while a plan is
/// converted, the plan stays as it was, and the report says why.
pub struct GpuOffload {
    source: Arc<dyn CapsSource>,
}

/// A plan with its GPU nodes, and what was decided for each node of the CPU plan.
#[derive(Debug, Clone)]
pub(crate) struct Outcome {
    /// The plan to execute.
    pub plan: Arc<dyn ExecutionPlan>,
    /// The decisions.
    pub report: PlacementReport,
}

impl GpuOffload {
    /// The rule's name in DataFusion's list.
    pub const NAME: &'static str = "gpu_offload";

    /// The rule for the adapters of `source`; which of them is used is up to the options of each session.
    pub fn new(source: Arc<dyn CapsSource>) -> Self {
        Self { source }
    }

    /// What the rule would do to `cpu_plan`, without executing anything.
    pub fn explain(&self, cpu_plan: &Arc<dyn ExecutionPlan>, config: &ConfigOptions) -> PlacementReport {
        match self.place(cpu_plan, config) {
            Ok(outcome) => outcome.report,
            Err(error) => refused(cpu_plan, &Reason::NoAdapter { message: error.to_string() }).report,
        }
    }

    /// The plan with GPU nodes where they belong. Without an adapter it stays as it is, unless the session names one: then
    /// the name is wrong, and that is an error.
    fn place(&self, plan: &Arc<dyn ExecutionPlan>, config: &ConfigOptions) -> GpuResult<Outcome> {
        let options = GpuOptions::from_config(config);
        if let Some(reason) = switched_off(&options) {
            return Ok(refused(plan, &reason));
        }
        // Opening an adapter takes tens of milliseconds the first time: not for plans with nothing to offer.
        if !has_candidates(plan) {
            return Ok(untouched(plan, &|node| registry::no_rule(node)));
        }
        match self.source.caps(&options) {
            Ok(caps) => Ok(offload(plan, &caps, &options, config)),
            Err(error) if !options.adapter.is_empty() => Err(error),
            Err(error) => Ok(refused(plan, &Reason::NoAdapter { message: error.to_string() })),
        }
    }
}

impl fmt::Debug for GpuOffload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GpuOffload")
    }
}

impl PhysicalOptimizerRule for GpuOffload {
    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        config: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let outcome = self.place(&plan, config).inspect_err(planning::failed)?;
        planning::reported(&outcome.report);
        tracing::debug!(target: "datafusion_wgpu::placement", report = %outcome.report, "placement");
        Ok(outcome.plan)
    }

    fn name(&self) -> &str {
        Self::NAME
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// Places `plan` on a device with `caps`.
pub(crate) fn offload(
    plan: &Arc<dyn ExecutionPlan>,
    caps: &DeviceCaps,
    options: &GpuOptions,
    config: &ConfigOptions,
) -> Outcome {
    if let Some(reason) = switched_off(options).or_else(|| unusable(caps)) {
        return refused(plan, &reason);
    }
    let mut tagged = Tagged::new(plan, &RuleContext { caps, options });
    let islands = review::review(&mut tagged, options, machine(caps, options, config));
    finish(plan, tagged, &islands, config)
}

/// What estimates take the machine for; none for a software adapter, which a user asks for to see it run.
fn machine(caps: &DeviceCaps, options: &GpuOptions, config: &ConfigOptions) -> Option<Machine> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let cores = cores.min(config.execution.target_partitions).max(1) as f64;
    let machine = Machine { cores, upload: options.upload_rate.max(1) as f64 };
    (caps.device_type != AdapterKind::Software).then_some(machine)
}

/// The converted plan; the CPU plan when nothing moves or when anything goes wrong, except that an island which cannot be
/// converted leaves the others alone.
fn finish(
    plan: &Arc<dyn ExecutionPlan>,
    mut tagged: Tagged,
    islands: &[Island],
    config: &ConfigOptions,
) -> Outcome {
    let query = planning::query();
    let convert = |tagged: &Tagged| {
        let report = PlacementReport::new(tagged);
        if !report.uses_gpu() {
            return Ok(Outcome { plan: Arc::clone(plan), report });
        }
        let converted = convert::convert(tagged, config, &query);
        converted.map(|plan| Outcome { plan, report }).map_err(|failed| {
            tracing::warn!(target: "datafusion_wgpu::placement", "a plan cannot be converted: {failed}");
            Reason::ConversionFailed { message: failed.to_string() }
        })
    };
    let first = match convert(&tagged) {
        Ok(outcome) => return outcome,
        Err(reason) => reason,
    };
    if islands.len() > 1 {
        for island in islands {
            if let Err(reason) = review::alone(&mut tagged, island, convert) {
                review::give_up(&mut tagged, island, &reason);
            }
        }
        if let Ok(outcome) = convert(&tagged) {
            return outcome;
        }
    }
    refused(plan, &first)
}

fn refused(plan: &Arc<dyn ExecutionPlan>, reason: &Reason) -> Outcome {
    untouched(plan, &|_| reason.clone())
}

fn untouched(plan: &Arc<dyn ExecutionPlan>, reason: &dyn Fn(&dyn ExecutionPlan) -> Reason) -> Outcome {
    Outcome { plan: Arc::clone(plan), report: PlacementReport::new(&Tagged::refused(plan, reason)) }
}

fn switched_off(options: &GpuOptions) -> Option<Reason> {
    if !options.enabled {
        return Some(Reason::Disabled { option: "gpu.enabled = false" });
    }
    (options.placement == Placement::Off).then_some(Reason::Disabled { option: "gpu.placement = 'off'" })
}

fn has_candidates(plan: &Arc<dyn ExecutionPlan>) -> bool {
    registry::is_registered(plan.as_ref()) || plan.children().into_iter().any(has_candidates)
}
