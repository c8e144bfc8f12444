//! Runs the queries of a suite and measures them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::error::Result;
use datafusion::physical_plan::collect;
use datafusion::prelude::{SessionConfig, SessionContext};
use datafusion_wgpu::{
    GpuOptions, GpuRuntime, PlacementReport, QueryStats, placement_report, shared_runtime,
};
use indicatif::ProgressBar;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::answer::{Answer, Rule, sums};
use super::bandwidth::{self, Bandwidth};
use super::flags::{Common, Source};
use super::machine::{Machine, blocking, open};
use super::report::{
    CpuTimes, GpuTimes, QueryReport, ReasonReport, Report, ResultShape, SourceReport, Status, Times, Work,
    totals,
};
use super::sessions::{Sessions, nodes_of, tables_of};
use super::suite::{Query, Size, Suite};
use crate::error::{message, problem};
use crate::gpu::queries_of;

/// How long the statistics of a query that has ended may take to arrive.
const STATISTICS_WAIT: Duration = Duration::from_secs(3);

/// Runs the suite.
///
/// # Errors
/// Files that can't be read, and queries that can't be planned. What fails later, or is wrong, is in the report.
pub async fn run(common: &Common, config: SessionConfig, suite: &Suite) -> Result<Report> {
    let options = GpuOptions::from_config(config.options());
    let mut sessions = Sessions::open(config, suite).await?;
    let rules = rules(&sessions, suite).await?;
    let sources: Vec<Source> = [Source::Parquet, Source::Memory]
        .into_iter()
        .filter(|source| common.sources.contains(source))
        .collect();
    let progress = super::bar("{bar:40} {pos} of {len}  {msg}");
    progress.set_length((suite.queries.len() * sources.len()) as u64);
    if sources.contains(&Source::Memory) {
        progress.set_message("reading the tables into memory");
        let names = rules.iter().flat_map(|(_, tables)| tables.clone()).collect::<BTreeSet<_>>();
        sessions.load(&names).await?;
    }
    let mut bench = Bench {
        sessions,
        runs: common.runs,
        peak: common.peak.map(|peak| Ok(Bandwidth::given(peak))),
        progress,
    };
    let mut queries = vec![];
    for (query, (rule, _)) in suite.queries.iter().zip(&rules) {
        queries.push(bench.query(query, rule, &sources).await);
    }
    bench.progress.finish_and_clear();
    let machine = blocking({
        let options = options.clone();
        move || Machine::new(&options)
    })
    .await?;
    let (bandwidth, bandwidth_error) = match bench.peak {
        Some(Ok(bandwidth)) => (Some(bandwidth), None),
        Some(Err(error)) => (None, Some(error)),
        None => (None, None),
    };
    let (scale, rows) = match suite.size {
        Size::Scale(scale) => (Some(scale), None),
        Size::Rows(rows) => (None, Some(rows)),
    };
    Ok(Report {
        suite: suite.name,
        scale,
        rows,
        engine: "datafusion-wgpu",
        placement: options.placement.to_string(),
        runs: common.runs,
        partitions: bench.sessions.config().target_partitions(),
        machine,
        bandwidth,
        bandwidth_error,
        totals: totals(&queries),
        queries,
    })
}

/// How the answers to each query are compared, and the tables that it reads.
async fn rules(sessions: &Sessions, suite: &Suite) -> Result<Vec<(Rule, BTreeSet<String>)>> {
    let ctx = sessions.cpu(Source::Parquet)?;
    let mut rows: u64 = 0;
    for table in &suite.tables {
        let count = ctx.table(*table).await?.count().await?;
        rows = rows.max(count as u64);
    }
    let mut rules = vec![];
    for query in &suite.queries {
        let plan = ctx.state().create_logical_plan(&query.sql).await;
        let plan = plan.map_err(|e| e.context(format!("query {}", query.number)))?;
        let optimized = ctx.state().optimize(&plan)?;
        rules.push((Rule::of(&plan, &optimized, rows)?, tables_of(&plan)?));
    }
    Ok(rules)
}

struct Bench {
    sessions: Sessions,
    runs: u32,
    /// The adapter's read bandwidth, or why it could not be measured; none before the first query on the GPU.
    peak: Option<std::result::Result<Bandwidth, String>>,
    progress: ProgressBar,
}

/// One run of a query.
struct Run {
    /// From the text to the last row.
    wall: Duration,
    schema: SchemaRef,
    batches: Vec<RecordBatch>,
    nodes: Vec<String>,
    /// Numbers of what ran on the GPU: of the query, and of subqueries with a plan of their own.
    queries: BTreeSet<u64>,
}

async fn timed(ctx: &SessionContext, sql: &str) -> Result<Run> {
    let start = Instant::now();
    let plan = ctx.sql(sql).await?.create_physical_plan().await?;
    let batches = collect(Arc::clone(&plan), ctx.task_ctx()).await?;
    let wall = start.elapsed();
    Ok(Run { wall, schema: plan.schema(), batches, nodes: nodes_of(&plan), queries: queries_of(&plan) })
}

impl Bench {
    async fn query(&mut self, query: &Query, rule: &Rule, sources: &[Source]) -> QueryReport {
        let mut report = QueryReport {
            query: query.number,
            title: query.title.clone(),
            tier: rule.tier(),
            tolerance: rule.tolerance,
            parquet: None,
            memory: None,
        };
        for &source in sources {
            let measured = self.query_from(source, query, rule).await;
            match source {
                Source::Parquet => report.parquet = Some(measured),
                Source::Memory => report.memory = Some(measured),
            }
            self.progress.inc(1);
        }
        report
    }

    /// Measures a query from one source. Errors of its runs are part of the report.
    async fn query_from(&mut self, source: Source, query: &Query, rule: &Rule) -> SourceReport {
        let say = |what: &str| {
            self.progress.set_message(format!("query {} from {}, {what}", query.number, source.name()));
        };
        let mut report = SourceReport::default();
        let failed = |report: &mut SourceReport, error: &datafusion::error::DataFusionError| {
            report.status = Some(Status::Failed);
            report.message = Some(first_line(&message(error)));
        };
        say("CPU");
        let want = match self.cpu(query, source, &mut report).await {
            Ok(want) => want,
            Err(error) => {
                failed(&mut report, &error);
                return report;
            }
        };
        say("GPU");
        if let Err(error) = self.place(query, source, &mut report).await {
            failed(&mut report, &error);
            return report;
        }
        if report.gpu_nodes == 0 {
            report.status = Some(Status::Cpu);
            return report;
        }
        match self.gpu(query, rule, source, &want, &mut report).await {
            Ok(None) => match report.gpu.as_ref().map_or(0, |gpu| gpu.runs_without_device) {
                0 => report.status = Some(Status::Equal),
                idle => {
                    report.status = Some(Status::Unused);
                    report.message =
                        Some(format!("no batch came from the device in {idle} of {} runs", self.runs));
                }
            },
            Ok(Some(difference)) => {
                report.status = Some(Status::Wrong);
                report.message = Some(difference);
                report.gpu = None;
            }
            Err(error) => {
                failed(&mut report, &error);
                report.gpu = None;
            }
        }
        report
    }

    /// Measures the CPU, and gives its first run.
    async fn cpu(&self, query: &Query, source: Source, report: &mut SourceReport) -> Result<Run> {
        let ctx = self.sessions.cpu(source)?;
        let first = timed(&ctx, &query.sql).await?;
        let mut walls = vec![];
        for _ in 0..self.runs {
            walls.push(timed(&ctx, &query.sql).await?.wall);
        }
        report.cpu = Some(CpuTimes { first_s: first.wall.as_secs_f64(), times: Times::of(&walls) });
        let rows = first.batches.iter().map(RecordBatch::num_rows).sum();
        report.result = Some(ResultShape { rows, sums: sums(&first.schema, &first.batches)? });
        Ok(first)
    }

    /// Where the plan's nodes would run.
    async fn place(&self, query: &Query, source: Source, report: &mut SourceReport) -> Result<()> {
        let ctx = self.sessions.gpu(source, &shared_runtime())?;
        let plan = ctx.sql(&query.sql).await?.create_physical_plan().await?;
        let (gpu, cpu): (Vec<String>, Vec<String>) =
            nodes_of(&plan).into_iter().partition(|name| name.starts_with("Gpu"));
        report.gpu_nodes = gpu.len();
        report.cpu_nodes = cpu.len();
        report.nodes = gpu;
        report.reasons = reasons(&placement_report(&ctx, &query.sql).await?);
        Ok(())
    }

    /// Measures the GPU on a device that is opened for this query, so that its first run compiles everything. Gives the
    /// first difference from the CPU's answer.
    async fn gpu(
        &mut self,
        query: &Query,
        rule: &Rule,
        source: Source,
        want: &Run,
        report: &mut SourceReport,
    ) -> Result<Option<String>> {
        let runtime = GpuRuntime::new();
        let ctx = self.sessions.gpu(source, &runtime)?;
        open(&runtime, self.sessions.config()).await?;
        if self.peak.is_none() {
            let measured = bandwidth::measure(self.sessions.config()).await;
            self.peak = Some(measured.map_err(|error| first_line(&message(&error))));
        }
        let want = Answer::new(&want.schema, &want.batches, rule)?;
        let (send, mut statistics) = unbounded_channel();
        // A run whose statistics nobody waits for any more is no reason to fail.
        let _subscription = runtime.on_query(move |stats| drop(send.send(stats.clone())));
        let mut runs = vec![];
        for _ in 0..=self.runs {
            let run = timed(&ctx, &query.sql).await?;
            let got = Answer::new(&run.schema, &run.batches, rule)?;
            if let Some(difference) = want.difference(&got, rule) {
                return Ok(Some(difference));
            }
            if !run.nodes.iter().any(|name| name.starts_with("Gpu")) {
                return Err(problem("the plan had GPU operators, and has none on a device of its own"));
            }
            runs.push((run.wall, work(&mut statistics, run.queries).await?));
        }
        report.gpu = self.gpu_times(report.cpu.as_ref(), runs);
        Ok(None)
    }

    fn gpu_times(&self, cpu: Option<&CpuTimes>, mut runs: Vec<(Duration, Work)>) -> Option<GpuTimes> {
        let mut fallbacks: BTreeMap<String, u64> = BTreeMap::new();
        for (code, count) in runs.iter().flat_map(|(_, work)| &work.fallbacks) {
            *fallbacks.entry(code.clone()).or_default() += count;
        }
        let (cold_wall, cold) = runs.remove(0);
        let runs_without_device = runs.iter().filter(|(_, work)| work.gpu_batches == 0).count();
        let walls: Vec<Duration> = runs.iter().map(|(wall, _)| *wall).collect();
        let times = Times::of(&walls);
        runs.sort_by_key(|(wall, _)| *wall);
        let warm = runs.swap_remove(runs.len() / 2).1;
        let read_gb_s = warm.read_gb_s();
        let share = |rate: f64| self.peak.as_ref()?.as_ref().ok().map(|peak| rate / peak.gb_s);
        Some(GpuTimes {
            cold_s: cold_wall.as_secs_f64(),
            ratio: cpu?.times.median_s / times.median_s,
            times,
            share_of_bandwidth: read_gb_s.and_then(share),
            read_gb_s,
            runs_without_device,
            fallbacks,
            cold,
            warm,
        })
    }
}

/// What the plans of these numbers did on the device, those of a run.
///
/// # Errors
/// Statistics that do not come: what they would say of fallbacks is then not known.
async fn work(statistics: &mut UnboundedReceiver<QueryStats>, mut open: BTreeSet<u64>) -> Result<Work> {
    let mut work = Work::default();
    while !open.is_empty() {
        match tokio::time::timeout(STATISTICS_WAIT, statistics.recv()).await {
            // Others belong to a plan that was made and never asked for rows.
            Ok(Some(stats)) if open.remove(&stats.query_id) => work.add(&stats),
            Ok(Some(_)) => {}
            Ok(None) | Err(_) => {
                let seconds = STATISTICS_WAIT.as_secs();
                return Err(problem(format!("no statistics of the GPU's work within {seconds} s of a run")));
            }
        }
    }
    Ok(work)
}

/// Why nodes stay on the CPU, from the scans up; those of the scans themselves only when there are no others.
fn reasons(placement: &PlacementReport) -> Vec<ReasonReport> {
    let nodes = &placement.nodes;
    let is_leaf = |at: usize| nodes.get(at + 1).is_none_or(|next| next.depth <= nodes[at].depth);
    let of = |leaves: bool| -> Vec<ReasonReport> {
        let wanted = (0..nodes.len()).rev().filter(|&at| leaves || !is_leaf(at));
        wanted
            .flat_map(|at| {
                nodes[at].reasons.iter().map(move |reason| ReasonReport {
                    node: nodes[at].cpu_name.clone(),
                    code: reason.code(),
                    sentence: reason.to_string(),
                })
            })
            .collect()
    };
    let above = of(false);
    if above.is_empty() { of(true) } else { above }
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}
