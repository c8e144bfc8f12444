//! What a soak run found.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use datafusion_wgpu::memory::GpuDevice;
use serde::Serialize;

use super::Args;
use super::work::Done;

/// The process, sampled.
#[derive(Debug, Default)]
pub struct Health {
    /// Resident bytes: their sum and number in each quarter of the run.
    resident: [(u64, u64); 4],
    /// The most threads.
    threads: u64,
}

impl Health {
    /// Adds a sample of quarter `quarter`; nothing where the system does not tell.
    pub fn sample(&mut self, quarter: usize) {
        let Ok(status) = std::fs::read_to_string("/proc/self/status") else { return };
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()?.parse::<u64>().ok()
        };
        if let (Some(slot), Some(kib)) = (self.resident.get_mut(quarter), field("VmRSS:")) {
            slot.0 += kib << 10;
            slot.1 += 1;
        }
        self.threads = self.threads.max(field("Threads:").unwrap_or(0));
    }

    fn resident(&self, quarter: usize) -> u64 {
        let (sum, samples) = self.resident[quarter];
        sum.checked_div(samples).unwrap_or(0)
    }
}

/// The numbers of a run.
#[derive(Debug, Default, Serialize)]
pub struct Summary {
    adapter: String,
    seconds: f64,
    jobs: u32,
    sessions: u32,
    rows: u32,
    queries: u64,
    cancelled: u64,
    /// Queries of the job that ended fewest, and of the one that ended most.
    fewest: u64,
    most: u64,
    longest_s: f64,
    gpu_batches: u64,
    cpu_batches: u64,
    splits: u64,
    fallbacks: BTreeMap<String, u64>,
    injected_failures: u64,
    injected_losses: u64,
    memory_limit: u64,
    /// Of the buffers that existed at a time.
    peak_device_bytes: u64,
    idle_device_bytes: u64,
    leaked: u64,
    /// Means of the second and of the last quarter.
    resident_bytes: (u64, u64),
    most_threads: u64,
    /// What is wrong: nothing, in a good run.
    pub problems: Vec<String>,
}

/// Problems that are kept.
const KEPT: usize = 20;

impl Summary {
    /// No queries yet.
    pub fn new(args: &Args, adapter: String) -> Self {
        Summary {
            adapter,
            jobs: args.queries,
            sessions: args.sessions,
            rows: args.rows,
            memory_limit: args.memory_limit.0,
            fewest: u64::MAX,
            ..Summary::default()
        }
    }

    /// Notes a problem.
    pub fn wrong(&mut self, problem: String) {
        if self.problems.len() < KEPT {
            self.problems.push(problem);
        }
    }

    /// Adds a job.
    pub fn add(&mut self, done: Done) {
        self.queries += done.queries;
        self.cancelled += done.cancelled;
        self.fewest = self.fewest.min(done.queries);
        self.most = self.most.max(done.queries);
        self.longest_s = self.longest_s.max(done.longest.as_secs_f64());
        self.gpu_batches += done.gpu_batches;
        self.cpu_batches += done.cpu_batches;
        self.splits += done.splits;
        for (code, count) in done.fallbacks {
            *self.fallbacks.entry(code).or_default() += count;
        }
        done.wrong.into_iter().for_each(|text| self.wrong(text));
    }

    /// Judges the run as a whole.
    pub fn finish(
        &mut self,
        elapsed: Duration,
        device: &GpuDevice,
        (failures, losses): (u64, u64),
        health: &Health,
        leaked: u64,
    ) {
        let ledger = device.ledger();
        self.seconds = elapsed.as_secs_f64();
        (self.injected_failures, self.injected_losses) = (failures, losses);
        (self.peak_device_bytes, self.idle_device_bytes, self.leaked) =
            (ledger.alive_peak(), ledger.idle(), leaked);
        self.resident_bytes = (health.resident(1), health.resident(3));
        self.most_threads = health.threads;
        if leaked > 0 {
            self.wrong(format!("{leaked} bytes or works are left on the device: {}", ledger.report()));
        }
        if self.peak_device_bytes > self.memory_limit {
            self.wrong("there were more buffers on the device than the limit allows".to_owned());
        }
        if self.fewest == 0 {
            self.wrong("a job ended no query".to_owned());
        }
        if self.gpu_batches == 0 {
            self.wrong("nothing ran on the device".to_owned());
        }
        let (early, late) = self.resident_bytes;
        if late > early + early / 2 {
            self.wrong(format!("the process grew from {} to {} MiB", early >> 20, late >> 20));
        }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Summary { adapter, seconds, jobs, sessions, rows, .. } = self;
        writeln!(
            f,
            "{adapter}: {seconds:.1} s, {jobs} queries at a time of {sessions} sessions over {rows} rows"
        )?;
        writeln!(
            f,
            "queries          {} ended, {} cancelled; {} to {} a job; the longest took {:.2} s",
            self.queries, self.cancelled, self.fewest, self.most, self.longest_s
        )?;
        writeln!(
            f,
            "batches          {} by the GPU, {} by the CPU, {} in halves",
            self.gpu_batches, self.cpu_batches, self.splits
        )?;
        let fallbacks: Vec<_> =
            self.fallbacks.iter().map(|(code, count)| format!("{code} {count}")).collect();
        writeln!(
            f,
            "fallbacks        {}",
            if fallbacks.is_empty() { "none".to_owned() } else { fallbacks.join(", ") }
        )?;
        writeln!(
            f,
            "injected         {} failures, {} losses of the device",
            self.injected_failures, self.injected_losses
        )?;
        writeln!(
            f,
            "device memory    {:.1} MiB of {:.1} MiB at most, {:.1} MiB wait for reuse, {} left",
            self.peak_device_bytes as f64 / 1048576.0,
            self.memory_limit as f64 / 1048576.0,
            self.idle_device_bytes as f64 / 1048576.0,
            self.leaked
        )?;
        let (early, late) = self.resident_bytes;
        writeln!(
            f,
            "process          {} MiB in the second quarter, {} MiB in the last; {} threads at most",
            early >> 20,
            late >> 20,
            self.most_threads
        )?;
        for problem in &self.problems {
            writeln!(f, "WRONG            {problem}")?;
        }
        Ok(())
    }
}
