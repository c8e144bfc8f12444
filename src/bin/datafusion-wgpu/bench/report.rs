//! Everything that was measured, as `--json` writes it. Times are in seconds, sizes in bytes.

use std::collections::BTreeMap;
use std::time::Duration;

use datafusion_wgpu::QueryStats;
use serde::Serialize;

use super::bandwidth::Bandwidth;
use super::flags::Source;
use super::machine::Machine;

/// A run of a suite.
#[derive(Debug, Serialize)]
pub struct Report {
    pub suite: &'static str,
    /// TPC-H's scale factor, for that suite.
    pub scale: Option<f64>,
    /// Rows of the largest table, for the others.
    pub rows: Option<u64>,
    pub engine: &'static str,
    pub placement: String,
    pub runs: u32,
    pub partitions: usize,
    pub machine: Machine,
    /// The adapter's read bandwidth; none when no query ran on it.
    pub bandwidth: Option<Bandwidth>,
    /// Why it could not be measured.
    pub bandwidth_error: Option<String>,
    pub queries: Vec<QueryReport>,
    pub totals: BTreeMap<&'static str, Totals>,
}

/// One query.
#[derive(Debug, Serialize)]
pub struct QueryReport {
    pub query: usize,
    pub title: String,
    /// How answers are compared: `exact`, or `rounded` with a relative tolerance for floats.
    pub tier: &'static str,
    pub tolerance: f64,
    pub parquet: Option<SourceReport>,
    pub memory: Option<SourceReport>,
}

/// What came of a query from one source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// No GPU operator: the plan is the CPU's.
    Cpu,
    /// Every answer of the GPU was the CPU's.
    Equal,
    /// The answers are right, but in a measured run no batch came from the device, in spite of GPU operators in the plan.
    Unused,
    /// An answer was not; the figures are void.
    Wrong,
    /// An error, on the CPU or on the GPU.
    Failed,
}

/// One query from one source.
#[derive(Debug, Default, Serialize)]
pub struct SourceReport {
    pub status: Option<Status>,
    /// The difference, or the error.
    pub message: Option<String>,
    pub cpu: Option<CpuTimes>,
    pub result: Option<ResultShape>,
    pub gpu: Option<GpuTimes>,
    /// Names of the plan's GPU nodes, and numbers of GPU and CPU nodes.
    pub nodes: Vec<String>,
    pub gpu_nodes: usize,
    pub cpu_nodes: usize,
    /// Why nodes stay on the CPU, from the scans up.
    pub reasons: Vec<ReasonReport>,
}

/// What the CPU's answer looks like, for comparison with other engines.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ResultShape {
    pub rows: usize,
    /// A sum for each numeric column.
    pub sums: Vec<Option<f64>>,
}

/// Why a node stays on the CPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ReasonReport {
    pub node: String,
    pub code: &'static str,
    pub sentence: String,
}

/// Several runs.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Times {
    pub median_s: f64,
    pub best_s: f64,
    pub runs_s: Vec<f64>,
}

/// DataFusion's own operators.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CpuTimes {
    /// The first run, which is not among the others.
    pub first_s: f64,
    #[serde(flatten)]
    pub times: Times,
}

/// The GPU.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GpuTimes {
    /// The first run on a device opened for this query, compilation included.
    pub cold_s: f64,
    #[serde(flatten)]
    pub times: Times,
    /// Median time of the CPU divided by that of the GPU.
    pub ratio: f64,
    /// Bytes uploaded, which kernels read at least once, by the kernels' time.
    pub read_gb_s: Option<f64>,
    pub share_of_bandwidth: Option<f64>,
    /// Measured runs in which no batch came from the device.
    pub runs_without_device: usize,
    /// Fallbacks of all runs, the cold one too, by their code.
    pub fallbacks: BTreeMap<String, u64>,
    /// What the first run did on the device, and what the median one did.
    pub cold: Work,
    pub warm: Work,
}

/// What a run did on the device.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Work {
    pub uploaded_bytes: u64,
    pub downloaded_bytes: u64,
    pub upload_s: f64,
    pub read_back_s: f64,
    /// None where the adapter has no timestamps.
    pub kernel_s: Option<f64>,
    pub compile_s: f64,
    pub pipelines_compiled: u64,
    pub dispatches: u64,
    pub waits: u64,
    pub peak_device_bytes: u64,
    pub gpu_batches: u64,
    pub cpu_batches: u64,
    pub fallbacks: BTreeMap<String, u64>,
}

/// All queries from one source that neither failed nor were wrong.
#[derive(Debug, Default, PartialEq, Serialize)]
pub struct Totals {
    pub queries: usize,
    pub on_gpu: usize,
    /// With GPU operators, but without a batch from the device.
    pub unused: usize,
    pub wrong: usize,
    pub failed: usize,
    /// Sum of the CPU's medians.
    pub cpu_s: f64,
    /// The same, with the GPU's median where there were GPU operators in the plan.
    pub with_gpu_s: f64,
    /// Sum of the CPU's medians of the queries that the device took part in, and of the GPU's.
    pub on_gpu_cpu_s: f64,
    pub on_gpu_gpu_s: f64,
    /// Geometric mean of the ratios of those.
    pub mean_ratio: Option<f64>,
}

impl Times {
    /// Of runs in the order in which they ran, at least one.
    pub fn of(runs: &[Duration]) -> Times {
        let runs_s: Vec<f64> = runs.iter().map(Duration::as_secs_f64).collect();
        let mut sorted = runs_s.clone();
        sorted.sort_by(f64::total_cmp);
        let middle = |at: usize| sorted.get(at).copied().unwrap_or(0.0);
        let half = sorted.len() / 2;
        let median_s = match sorted.len() % 2 {
            0 => (middle(half.saturating_sub(1)) + middle(half)) / 2.0,
            _ => middle(half),
        };
        Times { median_s, best_s: middle(0), runs_s }
    }
}

impl Work {
    /// Adds what another plan of the same run did: a subquery may have one of its own.
    pub fn add(&mut self, stats: &QueryStats) {
        self.uploaded_bytes += stats.uploaded_bytes;
        self.downloaded_bytes += stats.downloaded_bytes;
        self.upload_s += stats.upload_time.as_secs_f64();
        self.read_back_s += stats.read_back_time.as_secs_f64();
        if let Some(kernel) = stats.kernel_time {
            *self.kernel_s.get_or_insert(0.0) += kernel.as_secs_f64();
        }
        self.compile_s += stats.compile_time.as_secs_f64();
        self.pipelines_compiled += stats.pipelines_compiled;
        self.dispatches += stats.dispatches;
        self.waits += stats.waits;
        self.peak_device_bytes = self.peak_device_bytes.max(stats.peak_device_bytes);
        self.gpu_batches += stats.gpu_batches;
        self.cpu_batches += stats.cpu_batches;
        for (code, count) in &stats.fallbacks {
            *self.fallbacks.entry((*code).to_owned()).or_default() += count;
        }
    }

    /// Gigabytes a second that kernels read at least.
    pub fn read_gb_s(&self) -> Option<f64> {
        let seconds = self.kernel_s.filter(|&seconds| seconds > 0.0)?;
        Some(self.uploaded_bytes as f64 / seconds / 1e9)
    }
}

impl SourceReport {
    /// The reason to name where there is room for one: of those that say most about the query, the lowest.
    pub fn reason(&self) -> Option<&ReasonReport> {
        let says_little = ["UnsupportedOperator", "LoneRowLocal", "NothingToCompute"];
        let telling = self.reasons.iter().find(|reason| !says_little.contains(&reason.code));
        telling.or(self.reasons.first())
    }
}

impl QueryReport {
    /// What there is of each source.
    pub fn sources(&self) -> impl Iterator<Item = (Source, &SourceReport)> {
        let both = [(Source::Parquet, &self.parquet), (Source::Memory, &self.memory)];
        both.into_iter().filter_map(|(source, report)| Some((source, report.as_ref()?)))
    }
}

impl Report {
    /// Whether every query ran and gave the right answer.
    pub fn is_sound(&self) -> bool {
        self.totals.values().all(|totals| totals.wrong == 0 && totals.failed == 0)
    }

    /// The size of the data in words.
    pub fn size(&self) -> String {
        match (self.scale, self.rows) {
            (Some(scale), _) => format!("scale {scale}"),
            (None, rows) => format!("{} rows", indicatif::HumanCount(rows.unwrap_or(0))),
        }
    }
}

/// Totals by source.
pub fn totals(queries: &[QueryReport]) -> BTreeMap<&'static str, Totals> {
    let mut all: BTreeMap<&'static str, Totals> = BTreeMap::new();
    let mut logarithms: BTreeMap<&'static str, f64> = BTreeMap::new();
    for (source, report) in queries.iter().flat_map(QueryReport::sources) {
        let totals = all.entry(source.name()).or_default();
        totals.queries += 1;
        totals.unused += usize::from(report.status == Some(Status::Unused));
        totals.wrong += usize::from(report.status == Some(Status::Wrong));
        totals.failed += usize::from(report.status == Some(Status::Failed));
        let Some(cpu) = report.cpu.as_ref().map(|cpu| cpu.times.median_s) else { continue };
        match (&report.gpu, report.status) {
            (Some(gpu), Some(Status::Unused)) => {
                totals.cpu_s += cpu;
                totals.with_gpu_s += gpu.times.median_s;
            }
            (Some(gpu), _) => {
                totals.on_gpu += 1;
                totals.cpu_s += cpu;
                totals.with_gpu_s += gpu.times.median_s;
                totals.on_gpu_cpu_s += cpu;
                totals.on_gpu_gpu_s += gpu.times.median_s;
                *logarithms.entry(source.name()).or_default() += gpu.ratio.ln();
            }
            (None, Some(Status::Cpu)) => {
                totals.cpu_s += cpu;
                totals.with_gpu_s += cpu;
            }
            (None, _) => {}
        }
    }
    for (source, sum) in logarithms {
        if let Some(totals) = all.get_mut(source) {
            totals.mean_ratio = Some((sum / totals.on_gpu as f64).exp());
        }
    }
    all
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub fn source(status: Status, cpu: f64, gpu: Option<f64>) -> SourceReport {
        let times = |median_s| Times { median_s, best_s: median_s, runs_s: vec![median_s] };
        SourceReport {
            status: Some(status),
            cpu: Some(CpuTimes { first_s: cpu, times: times(cpu) }),
            gpu: gpu.map(|gpu| GpuTimes {
                cold_s: gpu,
                times: times(gpu),
                ratio: cpu / gpu,
                read_gb_s: None,
                share_of_bandwidth: None,
                runs_without_device: usize::from(status == Status::Unused),
                fallbacks: BTreeMap::new(),
                cold: Work::default(),
                warm: Work { uploaded_bytes: 1 << 20, ..Work::default() },
            }),
            ..SourceReport::default()
        }
    }

    pub fn query(query: usize, parquet: SourceReport) -> QueryReport {
        QueryReport {
            query,
            title: "A <title> & more".to_owned(),
            tier: "exact",
            tolerance: 0.0,
            parquet: Some(parquet),
            memory: None,
        }
    }

    pub fn report(queries: Vec<QueryReport>) -> Report {
        Report {
            suite: "tpch",
            scale: Some(1.0),
            rows: None,
            engine: "datafusion-wgpu",
            placement: "auto".to_owned(),
            runs: 1,
            partitions: 2,
            machine: Machine::new(&datafusion_wgpu::GpuOptions::default()),
            bandwidth: None,
            bandwidth_error: None,
            totals: totals(&queries),
            queries,
        }
    }

    #[test]
    fn medians_are_those_of_the_sorted_runs() {
        let times =
            |seconds: &[u64]| Times::of(&seconds.iter().map(|&s| Duration::from_secs(s)).collect::<Vec<_>>());
        assert_eq!(times(&[3, 1, 2]).median_s, 2.0);
        assert_eq!(times(&[4, 1, 2, 3]).median_s, 2.5);
        assert_eq!((times(&[3, 1, 2]).best_s, times(&[7]).median_s), (1.0, 7.0));
        assert_eq!(times(&[3, 1]).runs_s, [3.0, 1.0]);
    }

    #[test]
    fn totals_leave_out_what_is_void() {
        let queries = vec![
            query(1, source(Status::Equal, 8.0, Some(2.0))),
            query(2, source(Status::Equal, 3.0, Some(3.0))),
            query(3, source(Status::Cpu, 5.0, None)),
            query(4, source(Status::Wrong, 100.0, None)),
            query(5, source(Status::Unused, 1.0, Some(1.5))),
        ];
        let report = report(queries);
        let totals = &report.totals["parquet"];
        assert_eq!((totals.queries, totals.on_gpu, totals.wrong, totals.failed), (5, 2, 1, 0));
        // What nothing of came from the device costs its time, and is in no comparison with the GPU.
        assert_eq!((totals.unused, totals.cpu_s, totals.with_gpu_s), (1, 17.0, 11.5));
        assert_eq!((totals.on_gpu_cpu_s, totals.on_gpu_gpu_s), (11.0, 5.0));
        assert!(totals.mean_ratio.is_some_and(|mean| (mean - 2.0).abs() < 1e-12));
        assert!(!report.is_sound());
    }

    #[test]
    fn the_reason_shown_is_the_lowest_that_says_something() {
        let reason = |code| ReasonReport { node: String::new(), code, sentence: String::new() };
        let mut report = SourceReport::default();
        assert_eq!(report.reason(), None);
        report.reasons = vec![reason("LoneRowLocal"), reason("Grouping"), reason("UnsupportedOperator")];
        assert_eq!(report.reason().map(|reason| reason.code), Some("Grouping"));
        report.reasons.remove(1);
        assert_eq!(report.reason().map(|reason| reason.code), Some("LoneRowLocal"));
    }
}
