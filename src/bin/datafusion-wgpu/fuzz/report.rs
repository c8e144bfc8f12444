//! What a run of the fuzzer did, in numbers: for people, and as JSON.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use crate::panics;

use super::judge::{Judgement, Wrong};
use super::runner::{GpuWork, Verdict};

/// A failure that was found.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Failure {
    /// Number of the query.
    pub query: u64,
    /// What is wrong.
    pub wrong: Wrong,
    /// In words.
    pub detail: String,
    /// The query, made smaller.
    pub sql: String,
    /// The script.
    pub script: Option<PathBuf>,
}

/// The numbers.
#[derive(Debug, Clone, Default, serde::Serialize)]
pub struct Summary {
    /// Name of the adapter.
    pub adapter: String,
    /// The seed.
    pub seed: u64,
    /// Queries whose verdicts were compared.
    pub queries: u64,
    /// Of these, those that only gave errors.
    pub queries_with_errors: u64,
    /// Queries that the CPU did not answer in time, or with too many rows.
    pub queries_too_large: u64,
    /// Forced runs.
    pub runs: u64,
    /// Forced runs with a GPU node.
    pub runs_with_gpu_nodes: u64,
    /// Forced runs in which the device answered a batch.
    pub runs_with_gpu_batches: u64,
    /// Forced runs that the device answered alone: their sums and averages must be the exact ones.
    pub runs_answered_alone: u64,
    /// The same rows.
    pub same: u64,
    /// The same error.
    pub same_error: u64,
    /// What the CPU gives under other batch sizes.
    pub other_cpu: u64,
    /// Pieced together from answers of the CPU that differ among themselves, or out of DataFusion's memory.
    pub undetermined: u64,
    /// Forced runs in which one side raised for a value that AND or OR may guard.
    pub guarded: u64,
    /// Rows of which the CPU could not say whether they are right.
    pub unchecked: u64,
    /// Too many rows to compare.
    pub too_large: u64,
    /// Without an answer in time, without GPU nodes, and slow on the CPU as well.
    pub slow_on_cpu: u64,
    /// Without an answer in time, but with the right one when given more of it.
    pub slow: u64,
    /// Whether a signal ended it early.
    pub interrupted: bool,
    /// GPU nodes by name, over all forced runs.
    pub gpu_nodes: BTreeMap<String, u64>,
    /// Uploads or islands that the device answered.
    pub gpu_batches: u64,
    /// Those that the CPU answered.
    pub cpu_batches: u64,
    /// Run-time fallbacks by reason.
    pub fallbacks: BTreeMap<String, u64>,
    /// Reasons for which nodes stayed on the CPU, one count a query.
    pub declined: BTreeMap<String, u64>,
    /// What the queries were made of.
    pub kinds: BTreeMap<&'static str, u64>,
    /// The first errors of each kind, with a query.
    pub errors: BTreeMap<String, u64>,
    /// Panics of any thread, by place and text; those of the plan's own code end in a verdict too.
    pub panics: BTreeMap<String, u64>,
    /// What was found.
    pub failures: Vec<Failure>,
    /// How long it took.
    pub seconds: f64,
}

/// Forced runs that may end without being found to be the same, in percent; from so many runs on.
const MOST_UNSETTLED: f64 = 5.0;
const LEAST_RUNS: u64 = 100;

/// Error texts that are kept apart, at most.
const MOST_ERRORS: usize = 60;

impl Summary {
    /// Counts a query by the CPU's verdict.
    pub fn add_query(&mut self, verdict: &Verdict, declined: &[String]) {
        self.queries += 1;
        match verdict {
            Verdict::Rows(_) => {}
            Verdict::Error(text) | Verdict::Panic(text) => {
                self.queries_with_errors += 1;
                let short: String = text.lines().next().unwrap_or_default().chars().take(110).collect();
                if self.errors.len() < MOST_ERRORS || self.errors.contains_key(&short) {
                    *self.errors.entry(short).or_default() += 1;
                }
            }
            Verdict::Hang | Verdict::TooLarge => self.queries_too_large += 1,
        }
        for reason in declined {
            *self.declined.entry(reason.clone()).or_default() += 1;
        }
    }

    /// Counts a forced run.
    pub fn add_run(&mut self, work: &GpuWork, judgement: &Judgement) {
        self.runs += 1;
        self.runs_with_gpu_nodes += u64::from(!work.nodes.is_empty());
        self.runs_with_gpu_batches += u64::from(work.gpu_batches > 0);
        self.runs_answered_alone += u64::from(work.is_whole());
        match judgement {
            Judgement::Same => self.same += 1,
            Judgement::SameError => self.same_error += 1,
            Judgement::OtherCpu => self.other_cpu += 1,
            Judgement::Undetermined => self.undetermined += 1,
            Judgement::Guarded => self.guarded += 1,
            Judgement::Unchecked => self.unchecked += 1,
            Judgement::TooLarge => self.too_large += 1,
            Judgement::SlowOnCpu => self.slow_on_cpu += 1,
            Judgement::Slow => self.slow += 1,
            Judgement::Wrong(..) => {}
        }
        for (name, count) in &work.nodes {
            *self.gpu_nodes.entry(name.clone()).or_default() += count;
        }
        for (code, count) in &work.fallbacks {
            *self.fallbacks.entry(code.clone()).or_default() += count;
        }
        self.gpu_batches += work.gpu_batches;
        self.cpu_batches += work.cpu_batches;
    }

    /// Queries that could not show a difference, in percent.
    pub fn useless_percent(&self) -> f64 {
        let useless = self.queries_with_errors + self.queries_too_large;
        100.0 * useless as f64 / self.queries.max(1) as f64
    }

    /// Forced runs that were not found to be the same, in percent.
    pub fn unsettled_percent(&self) -> f64 {
        let open = self.guarded + self.unchecked + self.too_large + self.slow_on_cpu;
        let unsettled = self.other_cpu + self.undetermined + open;
        100.0 * unsettled as f64 / self.runs.max(1) as f64
    }

    /// Whether so many runs were not found to be the same that the others prove little.
    pub fn proves_little(&self) -> bool {
        self.runs >= LEAST_RUNS && self.unsettled_percent() > MOST_UNSETTLED
    }

    /// Panics of this crate, or of what it calls on the device, that are not known: failures as well.
    pub fn own_panics(&self) -> Vec<&String> {
        self.panics.keys().filter(|text| panics::is_own(text)).collect()
    }

    /// One line on how far the run is.
    pub fn progress(&self, elapsed: Duration) -> String {
        format!(
            "{:>5} s  {} queries, {} runs, {} with GPU nodes, {} failures",
            elapsed.as_secs(),
            self.queries,
            self.runs,
            self.runs_with_gpu_nodes,
            self.failures.len()
        )
    }
}

fn counts<K: fmt::Display>(
    f: &mut fmt::Formatter<'_>,
    title: &str,
    counts: &BTreeMap<K, u64>,
) -> fmt::Result {
    if counts.is_empty() {
        return Ok(());
    }
    let mut sorted: Vec<_> = counts.iter().collect();
    sorted.sort_by(|a, b| b.1.cmp(a.1));
    writeln!(f, "{title}")?;
    sorted.into_iter().try_for_each(|(name, count)| writeln!(f, "  {count:>8}  {name}"))
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {} on {}, {:.0} s", self.seed, self.adapter, self.seconds)?;
        writeln!(
            f,
            "{} queries: {} gave errors, {} were too large ({:.1} % of no use)",
            self.queries,
            self.queries_with_errors,
            self.queries_too_large,
            self.useless_percent()
        )?;
        writeln!(
            f,
            "{} forced runs: {} with GPU nodes, {} with batches on the device, {} without the CPU's help",
            self.runs, self.runs_with_gpu_nodes, self.runs_with_gpu_batches, self.runs_answered_alone
        )?;
        writeln!(
            f,
            "  {} same rows, {} same error, {} as the CPU under other options, {} undetermined, {} guarded, {} unchecked, {} too large",
            self.same,
            self.same_error,
            self.other_cpu,
            self.undetermined,
            self.guarded,
            self.unchecked,
            self.too_large
        )?;
        if self.slow_on_cpu > 0 {
            writeln!(f, "  {} slow on the CPU: without GPU nodes, and not in time", self.slow_on_cpu)?;
        }
        if self.slow > 0 {
            writeln!(f, "  {} slow: the right answer, but not in time", self.slow)?;
        }
        if self.proves_little() {
            let percent = self.unsettled_percent();
            writeln!(
                f,
                "{percent:.1} % of the runs were not found to be the same: more than {MOST_UNSETTLED} %"
            )?;
        }
        writeln!(f, "batches: {} on the device, {} on the CPU", self.gpu_batches, self.cpu_batches)?;
        counts(f, "GPU nodes", &self.gpu_nodes)?;
        counts(f, "fallbacks", &self.fallbacks)?;
        counts(f, "left on the CPU (queries)", &self.declined)?;
        counts(f, "panics", &self.panics)?;
        writeln!(f, "{} failures", self.failures.len())?;
        for failure in &self.failures {
            let script = failure.script.as_ref().map(|path| path.display().to_string()).unwrap_or_default();
            writeln!(f, "  query {} {:?} {script}\n    {}", failure.query, failure.wrong, failure.sql)?;
        }
        Ok(())
    }
}
