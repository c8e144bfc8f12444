//! Every expression that the lowering takes, with every type, over edge values and small values, with none, few, half and
//! nothing but NULLs, in sliced arrays: the GPU node must run, and give DataFusion's bits or its error.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, RecordBatch};
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, SchemaRef};
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::{ExecutionPlan, collect};
use datafusion::prelude::SessionContext;

use crate::config::{GpuOptions, Placement};
use crate::kernels::testkit::{GuardedScope, Rng, device, scope};
use crate::memory::{DeviceCaps, GpuDevice, GpuRuntime};
use crate::optimizer::offload;
use crate::session::register_gpu_runtime;

use super::compare::{agree, is_plain, on_cpu};
use super::data::{Kind, ROWS, column, same_bits};
use super::trees::verdicts;
use super::*;

/// Expressions of one query.
const OUTPUTS: usize = 24;

/// A session with the GPU, and the device to ask directly.
pub(super) struct Bench {
    pub ctx: SessionContext,
    pub runtime: Arc<GpuRuntime>,
    pub device: Arc<GpuDevice>,
    scope: GuardedScope,
    caps: DeviceCaps,
}

impl Bench {
    pub async fn new() -> Bench {
        Bench::on(device()).await
    }

    /// The same on a device of other capabilities.
    async fn on(device: Arc<GpuDevice>) -> Bench {
        let ctx = SessionContext::new();
        let runtime = GpuRuntime::over(Arc::clone(&device));
        register_gpu_runtime(&ctx, Arc::clone(&runtime)).expect("the GPU");
        for option in ["allow_software_adapter = true", "placement = 'force'", "fallback = 'silent'"] {
            ctx.sql(&format!("SET gpu.{option}")).await.expect("option").collect().await.expect("option");
        }
        let caps = device.caps().as_ref().clone();
        Bench { ctx, runtime, scope: scope(&device), device, caps }
    }

    /// The plan of `SELECT exprs`, on the GPU.
    fn plan(&self, batch: &RecordBatch, exprs: &[Arc<dyn PhysicalExpr>]) -> Arc<dyn ExecutionPlan> {
        let source =
            MemorySourceConfig::try_new_exec(&[vec![batch.clone()]], batch.schema(), None).expect("source");
        let named = exprs.iter().enumerate().map(|(at, expr)| (Arc::clone(expr), format!("e{at}")));
        let plan: Arc<dyn ExecutionPlan> =
            Arc::new(ProjectionExec::try_new(named.collect::<Vec<_>>(), source).expect("projection"));
        let options = GpuOptions { placement: Placement::Force, ..GpuOptions::default() };
        let outcome = offload(&plan, &self.caps, &options, self.ctx.state().config_options());
        assert_eq!(outcome.plan.name(), "GpuProjectionExec", "{}", outcome.report);
        outcome.plan
    }
}

/// What a plan's node did: batches of the device and of the CPU.
pub(super) fn batches(plan: &Arc<dyn ExecutionPlan>) -> (usize, usize) {
    let metrics = plan.metrics().expect("metrics");
    let count = |name: &str| metrics.sum_by_name(name).map_or(0, |value| value.as_usize());
    (count("gpu_batches"), count("cpu_batches"))
}

/// A table, and what DataFusion says to expressions over it.
struct Case {
    batch: RecordBatch,
    exprs: Vec<(String, Arc<dyn PhysicalExpr>)>,
    what: String,
}

fn table(schema: &SchemaRef, kind: Kind, nulls: usize) -> RecordBatch {
    let mut rng = Rng::new(nulls as u64);
    let fields = schema.fields().iter().enumerate();
    let columns = fields.map(|(at, field)| {
        let kind = if at > 1 { Kind::Plain } else { kind };
        column(field.data_type(), kind, ROWS, at == 1, nulls, &mut rng)
    });
    RecordBatch::try_new(Arc::clone(schema), columns.collect()).expect("batch")
}

impl Case {
    /// All expressions on the device; gives the failures, and how many expressions were compared in a query.
    async fn run(&self, bench: &Bench, failures: &mut Vec<String>) -> usize {
        let (mut queried, mut raising) = (vec![], vec![]);
        let plain = |expr: &Arc<dyn PhysicalExpr>| {
            let schema = self.batch.schema();
            expr.data_type(&schema).is_ok_and(|ty| is_plain(&ty)) && is_direct(&schema, expr, &bench.caps)
        };
        for chunk in self.exprs.chunks(OUTPUTS) {
            let (rows, carried): (Vec<_>, Vec<_>) = chunk.iter().partition(|(_, expr)| plain(expr));
            for named in carried {
                match on_cpu(&named.1, &self.batch) {
                    Some(Ok(_)) if self.fits(&named.1) => queried.push(named),
                    Some(Err(_)) => raising.push(named),
                    _ => {}
                }
            }
            let exprs: Vec<_> = rows.iter().map(|(_, expr)| Arc::clone(expr)).collect();
            let verdicts = match verdicts(&bench.scope, &self.batch, &exprs, &bench.caps).await {
                Ok(verdicts) => verdicts,
                Err(wrong) => {
                    failures.push(format!("{}: {wrong}", self.what));
                    continue;
                }
            };
            for (named, verdicts) in rows.into_iter().zip(&verdicts) {
                match agree(&named.1, &self.batch, verdicts) {
                    Err(wrong) => failures.push(format!("{}: {}: {wrong}", self.what, named.0)),
                    Ok(agreed) if agreed.raised => raising.push(named),
                    Ok(agreed) if agreed.guarded == 0 && !agreed.panicked && self.fits(&named.1) => {
                        queried.push(named);
                    }
                    Ok(_) => {}
                }
            }
        }
        for chunk in queried.chunks(OUTPUTS) {
            self.query(bench, chunk, failures).await;
        }
        for named in &raising {
            self.error(bench, named, failures).await;
        }
        queried.len() + raising.len()
    }

    /// Whether DataFusion's own projection takes the values: some of its functions call themselves never NULL and are.
    fn fits(&self, expr: &Arc<dyn PhysicalExpr>) -> bool {
        let nullable = expr.nullable(&self.batch.schema()).unwrap_or(true);
        nullable || matches!(on_cpu(expr, &self.batch), Some(Ok(array)) if array.logical_null_count() == 0)
    }

    /// One query whose outputs are the expressions, none of which has a fault.
    async fn query(
        &self,
        bench: &Bench,
        named: &[&(String, Arc<dyn PhysicalExpr>)],
        failures: &mut Vec<String>,
    ) {
        let exprs: Vec<_> = named.iter().map(|(_, expr)| Arc::clone(expr)).collect();
        let plan = bench.plan(&self.batch, &exprs);
        let answer = match collect(Arc::clone(&plan), bench.ctx.task_ctx()).await {
            Ok(answer) => concat_batches(&plan.schema(), &answer).expect("batches of one schema"),
            Err(error) => {
                let names: Vec<_> = named.iter().map(|(sql, _)| sql.as_str()).collect();
                failures.push(format!("{}: {}: {error}", self.what, names.join(", ")));
                return;
            }
        };
        if batches(&plan) != (1, 0) {
            failures.push(format!(
                "{}: (device, CPU) batches are {:?}: {named:?}",
                self.what,
                batches(&plan)
            ));
        }
        for ((sql, expr), got) in named.iter().zip(answer.columns()) {
            match on_cpu(expr, &self.batch) {
                Some(Ok(want)) if same_bits(&want, got) => {}
                want => failures.push(format!(
                    "{}: {sql}: a query gives {}, {}",
                    self.what,
                    shown(got),
                    match want {
                        Some(Ok(want)) => format!("DataFusion {}", shown(&want)),
                        other => format!("DataFusion {other:?}"),
                    }
                )),
            }
        }
    }

    /// A query that must fail as on the CPU.
    async fn error(
        &self,
        bench: &Bench,
        named: &(String, Arc<dyn PhysicalExpr>),
        failures: &mut Vec<String>,
    ) {
        let plan = bench.plan(&self.batch, std::slice::from_ref(&named.1));
        let got = collect(Arc::clone(&plan), bench.ctx.task_ctx())
            .await
            .map(|_| ())
            .map_err(|error| error.to_string());
        let want = on_cpu(&named.1, &self.batch).and_then(Result::err);
        if got.as_ref().err() != want.as_ref() || batches(&plan) != (0, 1) {
            failures.push(format!("{}: {}: {got:?} instead of {want:?}", self.what, named.0));
        }
    }
}

/// The beginning of an array.
fn shown(array: &ArrayRef) -> String {
    format!("{} {:?}", array.data_type(), array.slice(0, array.len().min(20)))
}

/// Every type of `types`; returns how many expressions were compared.
async fn compare(bench: &Bench, types: &[DataType]) -> usize {
    let (mut failures, mut compared) = (vec![], 0);
    for ty in types {
        let planners = [false, true].map(|nullable| Planner::new(schema_of(ty, nullable)));
        for (kind, nulls) in [(Kind::Edges, 0), (Kind::Edges, 1), (Kind::Plain, 50), (Kind::Edges, 100)] {
            let planner = &planners[usize::from(nulls > 0)];
            let taken = templates()
                .into_iter()
                .filter(|template| answer(template, ty, planner, &bench.caps) == Answer::Gpu);
            let exprs = taken.filter_map(|template| {
                let sql = template.sql(ty)?;
                // A projection carries plain columns, such as casts to the column's own type.
                let expr = planner.plan(&sql).ok().filter(|expr| !expr.is::<Column>())?;
                Some((sql, expr))
            });
            let what = format!("{ty}, {kind:?}, {nulls} % NULL");
            let case = Case { batch: table(&planner.schema, kind, nulls), exprs: exprs.collect(), what };
            compared += case.run(bench, &mut failures).await;
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    compared
}

/// Types of one kind.
async fn compare_where(wanted: impl Fn(&DataType) -> bool, least: usize) {
    let types: Vec<_> = subjects().into_iter().filter(|ty| wanted(ty)).collect();
    let compared = compare(&Bench::new().await, &types).await;
    assert!(compared >= least, "{compared} expressions were compared");
}

#[tokio::test(flavor = "multi_thread")]
async fn integers_and_booleans() {
    compare_where(|ty| ty.is_integer() || *ty == DataType::Boolean, 800).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn floats() {
    compare_where(DataType::is_floating, 100).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn decimals() {
    compare_where(|ty| ty.is_decimal(), 100).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dates_and_times() {
    compare_where(|ty| ty.is_temporal(), 100).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn strings_and_others() {
    let other = |ty: &DataType| !(ty.is_numeric() || *ty == DataType::Boolean || ty.is_temporal());
    compare_where(other, 700).await;
}

/// The same with WebGPU's default of eight storage buffers: outputs are spread over kernels, and columns share a buffer.
#[tokio::test(flavor = "multi_thread")]
async fn eight_storage_buffers() {
    let full = device();
    let caps = DeviceCaps { max_storage_buffers: 8, ..full.caps().as_ref().clone() };
    let bench = Bench::on(full.with_caps(caps)).await;
    let compared = compare(&bench, &[DataType::Int16, DataType::Decimal128(15, 2), DataType::Utf8View]).await;
    assert!(compared > 100, "{compared} expressions were compared");
}
