//! The shell's flags: datafusion-cli's, which that crate keeps to itself, and those of the GPU.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;

use clap::ValueEnum;
use clap::builder::NonEmptyStringValueParser;
use datafusion::error::Result;
use datafusion::execution::disk_manager::{DiskManagerBuilder, DiskManagerMode};
use datafusion::execution::memory_pool::{FairSpillPool, GreedyMemoryPool, MemoryPool, TrackConsumersPool};
use datafusion::execution::object_store::ObjectStoreRegistry;
use datafusion::execution::runtime_env::{RuntimeEnv, RuntimeEnvBuilder};
use datafusion_cli::object_storage::instrumented::InstrumentedObjectStoreMode;
use datafusion_cli::print_format::PrintFormat;
use datafusion_cli::print_options::MaxRows;

/// Flags of the shell.
#[derive(Debug, Clone, clap::Args)]
#[group(id = "shell_flags")]
pub struct Args {
    /// Run these statements, then exit
    #[arg(short, long, num_args = 1.., value_name = "SQL", value_parser = NonEmptyStringValueParser::new())]
    pub command: Vec<String>,
    /// Run the statements of these files, then exit; before those of --command
    #[arg(short, long, num_args = 1.., value_name = "FILE")]
    pub file: Vec<PathBuf>,
    /// Files to run at the start of an interactive or piped session instead of ~/.datafusionrc; none without a value
    #[arg(short, long, num_args = 0.., value_name = "FILE", conflicts_with = "file")]
    pub rc: Option<Vec<PathBuf>>,
    /// Print results only
    #[arg(short, long)]
    pub quiet: bool,
    /// Output format
    #[arg(long, value_enum, ignore_case = true, default_value_t = PrintFormat::Automatic)]
    pub format: PrintFormat,
    /// Most rows that the table format shows: a number, or inf
    #[arg(long, value_name = "ROWS", default_value = "40")]
    pub maxrows: MaxRows,
    /// Highlight SQL while it is typed
    #[arg(long)]
    pub color: bool,
    /// Folder to work in: paths in SQL are relative to it, and the history is kept there
    #[arg(short = 'p', long, value_name = "DIR")]
    pub data_path: Option<PathBuf>,
    /// Rows of a batch; DataFusion's default without it
    #[arg(short, long, value_name = "ROWS")]
    pub batch_size: Option<NonZeroUsize>,
    /// Most memory that queries may use, such as 10g; no limit without it
    #[arg(short, long, value_name = "SIZE", value_parser = size)]
    pub memory_limit: Option<usize>,
    /// How queries share that memory: first come first served, or evenly
    #[arg(long, value_name = "TYPE", value_enum, ignore_case = true, default_value_t = Pool::Greedy)]
    pub mem_pool_type: Pool,
    /// How many of the largest users of memory are named when it runs out; 0 to keep no account
    #[arg(long, value_name = "NUMBER", default_value_t = 3)]
    pub top_memory_consumers: usize,
    /// Most disk space for what does not fit into memory, such as 10g; DataFusion's default without it
    #[arg(short, long, value_name = "SIZE", value_parser = size)]
    pub disk_limit: Option<usize>,
    /// Whether requests to object stores are counted, or listed too
    #[arg(long, value_name = "MODE", value_enum, ignore_case = true, default_value_t = Profiling::Disabled)]
    pub object_store_profiling: Profiling,
    #[command(flatten)]
    pub gpu: crate::gpu::Args,
}

/// How queries share the memory limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Pool {
    Greedy,
    Fair,
}

/// What is recorded of requests to object stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Profiling {
    Disabled,
    Summary,
    Trace,
}

impl From<Profiling> for InstrumentedObjectStoreMode {
    fn from(mode: Profiling) -> Self {
        match mode {
            Profiling::Disabled => InstrumentedObjectStoreMode::Disabled,
            Profiling::Summary => InstrumentedObjectStoreMode::Summary,
            Profiling::Trace => InstrumentedObjectStoreMode::Trace,
        }
    }
}

impl Args {
    /// The memory pool, spill folder and object stores of the flags.
    pub fn runtime(&self, stores: Arc<dyn ObjectStoreRegistry>) -> Result<Arc<RuntimeEnv>> {
        let mut builder = RuntimeEnvBuilder::new().with_object_store_registry(stores);
        if let Some(limit) = self.memory_limit {
            builder = builder.with_memory_pool(self.memory_pool(limit));
        }
        if let Some(limit) = self.disk_limit {
            let disk = DiskManagerBuilder::default()
                .with_mode(DiskManagerMode::OsTmpDirectory)
                .with_max_temp_directory_size(limit as u64);
            builder = builder.with_disk_manager_builder(disk);
        }
        builder.build_arc()
    }

    fn memory_pool(&self, limit: usize) -> Arc<dyn MemoryPool> {
        match (self.mem_pool_type, NonZeroUsize::new(self.top_memory_consumers)) {
            (Pool::Greedy, None) => Arc::new(GreedyMemoryPool::new(limit)),
            (Pool::Greedy, Some(top)) => Arc::new(TrackConsumersPool::new(GreedyMemoryPool::new(limit), top)),
            (Pool::Fair, None) => Arc::new(FairSpillPool::new(limit)),
            (Pool::Fair, Some(top)) => Arc::new(TrackConsumersPool::new(FairSpillPool::new(limit), top)),
        }
    }
}

/// Bytes, as datafusion-cli reads them: each unit is 1024 times the one before.
fn size(text: &str) -> std::result::Result<usize, String> {
    const EXPECTED: &str = "expected a whole number, with b, k, m, g or t behind it if it is not bytes";
    let lower = text.to_lowercase();
    let digits = lower.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = lower.split_at(digits);
    let shift = match unit {
        "" | "b" => 0,
        "k" | "kb" => 10,
        "m" | "mb" => 20,
        "g" | "gb" => 30,
        "t" | "tb" => 40,
        _ => return Err(EXPECTED.to_owned()),
    };
    if number.is_empty() {
        return Err(EXPECTED.to_owned());
    }
    let bytes = number.parse::<usize>().ok().and_then(|number| number.checked_mul(1 << shift));
    bytes.ok_or_else(|| "more bytes than this machine can address".to_owned())
}

#[cfg(test)]
mod tests {
    use super::size;

    #[test]
    fn sizes_are_read_with_every_unit() {
        let cases =
            [("7", 7), ("7b", 7), ("7K", 7 << 10), ("7mb", 7 << 20), ("7g", 7 << 30), ("7TB", 7 << 40)];
        for (text, bytes) in cases {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn other_sizes_are_refused() {
        for text in ["", "g", "-1g", "1.5g", "1 g", "10x", "10gib", "99999999999999999999", "99999999t"] {
            assert!(size(text).is_err(), "{text}");
        }
    }
}
