//! The `gpu.*` options of a session, settable in code and by `SET gpu.option = value`.
//!
//! Every value is typed: `SET` refuses a value outside an option's choices and an option that does not exist, and the
//! error names what there is. `SHOW gpu.option` and `information_schema.df_settings` list the options with their
//! descriptions.

use std::any::Any;
use std::fmt;
use std::str::FromStr;

use datafusion::common::config::{ConfigEntry, ConfigExtension, ConfigOptions, ExtensionOptions};
use datafusion::error::{DataFusionError, Result};

/// Where supported operators run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Placement {
    /// On the GPU where the estimate says that it is faster.
    #[default]
    Auto,
    /// On the GPU wherever the operator is supported, whatever the estimate says.
    Force,
    /// Never on the GPU; plans are left untouched.
    Off,
}

/// What happens when a running query has to fall back to the CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FallbackPolicy {
    /// Fall back, count it in the metrics and log a warning.
    #[default]
    Warn,
    /// Fall back and count it in the metrics.
    Silent,
    /// Fail the query with a typed error.
    Error,
}

/// How much a run-time fallback re-runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FallbackScope {
    /// The batch that failed, where the operator can; else the island.
    #[default]
    Batch,
    /// The whole island, from its sources or from the batches that were read.
    Island,
}

/// What happens to exchanges between operators of one GPU island.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Exchanges {
    /// A partial/final pair and the exchange between them become one GPU operator.
    #[default]
    Collapse,
    /// Every node of the CPU plan keeps its counterpart, as engines that split plans into stages need.
    Keep,
}

/// Where sums and averages of floats, and averages of integers, are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FloatSum {
    /// On the GPU, as the exact sum rounded once: the same bits in every run.
    #[default]
    Exact,
    /// On the CPU, whose rounding depends on batches and partitions.
    Cpu,
}

/// A number of bytes, written as digits with an optional unit: `4GiB`, `512 MiB`, `64MB`, `1000`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteSize(pub u64);

/// The most device memory that a session's queries may reserve.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MemoryLimit {
    /// The share of the device's memory that the runtime takes by default; written `''`.
    #[default]
    DefaultShare,
    /// A fixed number of bytes.
    Bytes(ByteSize),
}

impl MemoryLimit {
    /// The limit in bytes; `None` stands for the runtime's default share.
    pub fn bytes(&self) -> Option<u64> {
        match self {
            MemoryLimit::DefaultShare => None,
            MemoryLimit::Bytes(size) => Some(size.0),
        }
    }
}

/// A value of an option: how it is read from SQL text and shown again.
trait OptionValue: Sized {
    /// Reads the value; the error says which values there are.
    fn read(text: &str) -> std::result::Result<Self, String>;
    /// Text that `read` takes back.
    fn show(&self) -> String;
}

/// Reads and shows an enum by the lower-case names of its variants.
macro_rules! choices {
    ($type:ident { $($name:literal => $variant:ident),+ $(,)? }) => {
        impl FromStr for $type {
            type Err = String;

            fn from_str(text: &str) -> std::result::Result<Self, String> {
                match text.trim().to_ascii_lowercase().as_str() {
                    $($name => Ok($type::$variant),)+
                    _ => Err(format!("expected one of {}", [$($name),+].map(|n| format!("'{n}'")).join(", "))),
                }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $($type::$variant => $name),+ })
            }
        }
    };
}

choices!(Placement { "auto" => Auto, "force" => Force, "off" => Off });
choices!(FallbackPolicy { "warn" => Warn, "silent" => Silent, "error" => Error });
choices!(FallbackScope { "batch" => Batch, "island" => Island });
choices!(Exchanges { "collapse" => Collapse, "keep" => Keep });
choices!(FloatSum { "exact" => Exact, "cpu" => Cpu });

/// Factors of the units that a byte size may carry, largest first within each family.
const UNITS: [(&str, u64); 9] = [
    ("tib", 1 << 40),
    ("gib", 1 << 30),
    ("mib", 1 << 20),
    ("kib", 1 << 10),
    ("tb", 1_000_000_000_000),
    ("gb", 1_000_000_000),
    ("mb", 1_000_000),
    ("kb", 1_000),
    ("b", 1),
];

impl FromStr for ByteSize {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let expected =
            || "expected a number of bytes such as '4GiB', '512MiB', '64MB' or '1000000'".to_string();
        let text = text.trim().to_ascii_lowercase();
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = text.split_at(digits);
        let number: u64 = number.parse().map_err(|_| expected())?;
        let unit = unit.trim();
        let factor = if unit.is_empty() {
            1
        } else {
            UNITS.iter().find(|(name, _)| *name == unit).map(|(_, factor)| *factor).ok_or_else(expected)?
        };
        let bytes = number.checked_mul(factor).ok_or_else(|| "more than 2^64 bytes".to_string())?;
        if bytes == 0 {
            return Err("expected more than 0 bytes".to_string());
        }
        Ok(ByteSize(bytes))
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let binary = [("TiB", 1u64 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
        match binary.iter().find(|(_, factor)| self.0 != 0 && self.0.is_multiple_of(*factor)) {
            Some((unit, factor)) => write!(f, "{}{unit}", self.0 / factor),
            None => write!(f, "{}", self.0),
        }
    }
}

impl FromStr for MemoryLimit {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        if text.trim().is_empty() {
            return Ok(MemoryLimit::DefaultShare);
        }
        let size = text.parse().map_err(|e: String| format!("{e}, or '' for the default share"))?;
        Ok(MemoryLimit::Bytes(size))
    }
}

impl fmt::Display for MemoryLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MemoryLimit::DefaultShare => Ok(()),
            MemoryLimit::Bytes(size) => size.fmt(f),
        }
    }
}

/// Option values whose text form is their `FromStr` and `Display`.
macro_rules! value_by_display {
    ($($type:ty),+) => {
        $(impl OptionValue for $type {
            fn read(text: &str) -> std::result::Result<Self, String> {
                text.parse()
            }

            fn show(&self) -> String {
                self.to_string()
            }
        })+
    };
}

value_by_display!(Placement, FallbackPolicy, FallbackScope, Exchanges, FloatSum, ByteSize, MemoryLimit);

impl OptionValue for bool {
    fn read(text: &str) -> std::result::Result<Self, String> {
        text.trim().to_ascii_lowercase().parse().map_err(|_| "expected 'true' or 'false'".to_string())
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

impl OptionValue for usize {
    fn read(text: &str) -> std::result::Result<Self, String> {
        text.trim().parse().map_err(|_| "expected a whole number, 0 or greater".to_string())
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

impl OptionValue for String {
    fn read(text: &str) -> std::result::Result<Self, String> {
        Ok(text.to_string())
    }

    fn show(&self) -> String {
        self.clone()
    }
}

/// Declares the options: fields with defaults, and the text interface that DataFusion's configuration asks for.
macro_rules! gpu_options {
    ($(#[doc = $doc:literal] $name:ident: $type:ty = $default:expr;)+) => {
        /// The `gpu.*` options of a session.
        #[derive(Debug, Clone, PartialEq)]
        #[non_exhaustive]
        pub struct GpuOptions {
            $(#[doc = $doc] pub $name: $type,)+
        }

        impl Default for GpuOptions {
            fn default() -> Self {
                Self { $($name: $default),+ }
            }
        }

        impl GpuOptions {
            /// Names of all options, without the prefix.
            pub const NAMES: &'static [&'static str] = &[$(stringify!($name)),+];

            fn set_text(&mut self, name: &str, text: &str) -> Result<()> {
                match name {
                    $(stringify!($name) => {
                        self.$name = OptionValue::read(text).map_err(|why| bad_value(name, text, &why))?;
                        Ok(())
                    })+
                    _ => Err(unknown_option(name)),
                }
            }

            fn list(&self) -> Vec<ConfigEntry> {
                vec![$(ConfigEntry {
                    key: format!("{}.{}", Self::PREFIX, stringify!($name)),
                    value: Some(OptionValue::show(&self.$name)),
                    description: $doc.trim_ascii(),
                }),+]
            }
        }
    };
}

gpu_options! {
    /// Whether plans are looked at at all; false leaves every plan untouched.
    enabled: bool = true;
    /// Where supported operators run: 'auto' (where the estimate says it is faster), 'force' (wherever supported) or 'off'.
    placement: Placement = Placement::Auto;
    /// With placement 'auto', the fewest input rows for which operators move to the GPU.
    min_rows: usize = 500_000;
    /// With placement 'auto', the rate at which columns are taken to reach the device, in GB/s; 0 is taken for 1. A software adapter has no estimates.
    upload_rate: usize = 8;
    /// What a run-time fallback to the CPU does: 'warn' (log and count), 'silent' (count) or 'error' (fail the query).
    fallback: FallbackPolicy = FallbackPolicy::Warn;
    /// What a run-time fallback re-runs on the CPU: the 'batch' that failed, where the operator can, or the whole 'island'.
    fallback_scope: FallbackScope = FallbackScope::Batch;
    /// Whether partial/final pairs and the exchange between them become one operator ('collapse') or stay apart ('keep').
    exchanges: Exchanges = Exchanges::Collapse;
    /// Sums and averages of floats, and averages of integers: 'exact' on the GPU, rounded once, or left on the 'cpu', whose last digits depend on batches.
    float_sum: FloatSum = FloatSum::Exact;
    /// With GROUP BY, the fewest groups of a batch (of shorter ones in proportion; one for 32 rows at least) that stay on the device, where they are merged with those of other batches if states and keys allow it; 0 has the host merge all groups.
    merge_groups: usize = 16_384;
    /// The adapter to use: its index, or a part of its name in any case; '' takes the first one.
    adapter: String = String::new();
    /// Whether a software adapter, which runs on the CPU, may be used.
    allow_software_adapter: bool = false;
    /// The most device memory that queries may reserve, such as '4GiB'; '' takes the default share of the device's memory.
    memory_limit: MemoryLimit = MemoryLimit::DefaultShare;
    /// Rows that are gathered into one upload, if batch_bytes does not end it earlier; at least 1.
    batch_rows: usize = 524_288;
    /// Bytes that are gathered into one upload, if batch_rows does not end it earlier, such as '64MiB'.
    batch_bytes: ByteSize = ByteSize(64 << 20);
}

impl GpuOptions {
    /// The options of a session's configuration; the defaults where the extension was not registered.
    pub fn from_config(config: &ConfigOptions) -> GpuOptions {
        config.extensions.get::<GpuOptions>().cloned().unwrap_or_default()
    }
}

impl ConfigExtension for GpuOptions {
    const PREFIX: &'static str = "gpu";
}

impl ExtensionOptions for GpuOptions {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }

    fn cloned(&self) -> Box<dyn ExtensionOptions> {
        Box::new(self.clone())
    }

    fn set(&mut self, key: &str, value: &str) -> Result<()> {
        // entries() carries the prefix so that SHOW finds the options; engines that ship options may add it again.
        let name = key.strip_prefix("gpu.").unwrap_or(key);
        if name == "batch_rows" && !value.trim().parse::<usize>().is_ok_and(|rows| rows > 0) {
            return Err(bad_value(name, value, "expected a whole number, 1 or greater"));
        }
        self.set_text(name, value)
    }

    fn entries(&self) -> Vec<ConfigEntry> {
        self.list()
    }
}

fn bad_value(name: &str, text: &str, why: &str) -> DataFusionError {
    DataFusionError::Configuration(format!("invalid value '{text}' for gpu.{name}: {why}"))
}

fn unknown_option(name: &str) -> DataFusionError {
    let known = GpuOptions::NAMES.join(", gpu.");
    DataFusionError::Configuration(format!("unknown option gpu.{name}; the options are gpu.{known}"))
}

#[cfg(test)]
mod tests;
