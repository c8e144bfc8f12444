//! Why an operator stays on the CPU: a code to count and to test by, and a sentence to read.

use std::fmt;

use arrow::datatypes::DataType;

/// One reason for which a node of a plan stays on the CPU.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// The options leave plans untouched.
    Disabled {
        /// The option that says so, e.g. `gpu.placement = 'off'`.
        option: &'static str,
    },
    /// No adapter can be used.
    NoAdapter {
        /// The runtime's own words.
        message: String,
    },
    /// The adapter has no 64-bit integers.
    NoInt64 {
        /// Name of the adapter.
        adapter: String,
    },
    /// The adapter gave wrong results when its arithmetic was probed.
    NumericsProbe {
        /// Name of the adapter.
        adapter: String,
    },
    /// The input is too small for the GPU to be faster.
    TooFewRows {
        /// Estimated input rows of the island.
        rows: u64,
        /// `gpu.min_rows`.
        min_rows: usize,
    },
    /// The CPU is estimated to be faster.
    CpuIsFaster {
        /// Estimated time of the island's nodes on the CPU, in microseconds.
        cpu_us: u64,
        /// Estimated time of the island on the GPU, in microseconds.
        gpu_us: u64,
    },
    /// Nothing says how large the input is, so that the GPU may be slower.
    UnknownRows,
    /// A filter or projection whose result goes to a CPU operator: transfers cost more than the work.
    LoneRowLocal,
    /// A projection that only renames, reorders or drops columns.
    NothingToCompute,
    /// There is no GPU counterpart of the operator.
    UnsupportedOperator {
        /// Name of the plan node.
        operator: String,
    },
    /// There is no GPU counterpart of an expression.
    UnsupportedExpression {
        /// The expression.
        expression: String,
        /// What about it is not supported.
        why: String,
    },
    /// A type cannot live on the device, or not in this position.
    UnsupportedType {
        /// The expression of that type.
        expression: String,
        /// The type.
        data_type: DataType,
    },
    /// An aggregate function, or one of its forms, has no GPU counterpart.
    UnsupportedAggregate {
        /// The aggregate.
        aggregate: String,
        /// What about it is not supported.
        why: String,
    },
    /// A function of floats whose last digits depend on who computes it.
    FloatArithmetic {
        /// The expression.
        expression: String,
    },
    /// An aggregate over distinct values.
    Distinct {
        /// The aggregate.
        aggregate: String,
    },
    /// An aggregate with an ORDER BY, or that depends on the order of its input.
    OrderSensitive {
        /// The aggregate.
        aggregate: String,
    },
    /// An aggregate that gives its groups in the order of its input, or while it reads it.
    OrderedGrouping,
    /// An aggregate that stops early, since few of its groups are asked for.
    SoftLimit {
        /// Number of groups.
        limit: usize,
    },
    /// The operator reads more columns than a kernel can bind.
    BindingLimit {
        /// Storage buffers that the kernel needs.
        need: usize,
        /// Storage buffers that the adapter allows.
        limit: usize,
    },
    /// The expression is too large for one kernel.
    ExpressionTooLarge {
        /// The expression, or its beginning.
        expression: String,
        /// What is limited, and to how much.
        limit: String,
    },
    /// The input never ends.
    Unbounded,
    /// The predicate is changed by other operators while the query runs.
    DynamicFilter {
        /// The expression.
        expression: String,
    },
    /// A term of a recursive query, which is executed many times.
    RecursiveQuery,
    /// The final step of an aggregate whose partial step is not below it, exchanges apart.
    FinalWithoutPartial,
    /// `gpu.exchanges = 'keep'` leaves the final step of an aggregate, which merges states, on the CPU unless placement is forced.
    ExchangesKept,
    /// A partial state would already be rounded, so that the result would depend on the partitions.
    RoundedState {
        /// The aggregate.
        aggregate: String,
    },
    /// `gpu.float_sum = 'cpu'` leaves sums of floats on the CPU.
    FloatSumOnCpu {
        /// The aggregate.
        aggregate: String,
    },
    /// A limit within the subtree that would be replaced.
    Fetch {
        /// Name of the plan node that carries the limit.
        operator: String,
    },
    /// The converted plan did not pass the checks; the CPU plan is kept.
    ConversionFailed {
        /// What went wrong.
        message: String,
    },
}

impl Reason {
    /// Short stable code, as counted, logged and tested.
    pub fn code(&self) -> &'static str {
        match self {
            Reason::Disabled { .. } => "Disabled",
            Reason::NoAdapter { .. } => "NoAdapter",
            Reason::NoInt64 { .. } => "NoInt64",
            Reason::NumericsProbe { .. } => "NumericsProbe",
            Reason::TooFewRows { .. } => "TooFewRows",
            Reason::CpuIsFaster { .. } => "CpuIsFaster",
            Reason::UnknownRows => "UnknownRows",
            Reason::LoneRowLocal => "LoneRowLocal",
            Reason::NothingToCompute => "NothingToCompute",
            Reason::UnsupportedOperator { .. } => "UnsupportedOperator",
            Reason::UnsupportedExpression { .. } => "UnsupportedExpression",
            Reason::UnsupportedType { .. } => "UnsupportedType",
            Reason::UnsupportedAggregate { .. } => "UnsupportedAggregate",
            Reason::FloatArithmetic { .. } => "FloatArithmetic",
            Reason::Distinct { .. } => "Distinct",
            Reason::OrderSensitive { .. } => "OrderSensitive",
            Reason::OrderedGrouping => "OrderedGrouping",
            Reason::SoftLimit { .. } => "SoftLimit",
            Reason::BindingLimit { .. } => "BindingLimit",
            Reason::ExpressionTooLarge { .. } => "ExpressionTooLarge",
            Reason::Unbounded => "Unbounded",
            Reason::DynamicFilter { .. } => "DynamicFilter",
            Reason::RecursiveQuery => "RecursiveQuery",
            Reason::FinalWithoutPartial => "FinalWithoutPartial",
            Reason::ExchangesKept => "ExchangesKept",
            Reason::RoundedState { .. } => "RoundedState",
            Reason::FloatSumOnCpu { .. } => "FloatSumOnCpu",
            Reason::Fetch { .. } => "Fetch",
            Reason::ConversionFailed { .. } => "ConversionFailed",
        }
    }

    /// The expression or aggregate at fault, as text, where the reason is about one.
    pub fn expression(&self) -> Option<&str> {
        match self {
            Reason::UnsupportedExpression { expression, .. }
            | Reason::UnsupportedType { expression, .. }
            | Reason::FloatArithmetic { expression }
            | Reason::ExpressionTooLarge { expression, .. }
            | Reason::DynamicFilter { expression } => Some(expression),
            Reason::UnsupportedAggregate { aggregate, .. }
            | Reason::Distinct { aggregate }
            | Reason::OrderSensitive { aggregate }
            | Reason::RoundedState { aggregate }
            | Reason::FloatSumOnCpu { aggregate } => Some(aggregate),
            Reason::Disabled { .. }
            | Reason::NoAdapter { .. }
            | Reason::NoInt64 { .. }
            | Reason::NumericsProbe { .. }
            | Reason::TooFewRows { .. }
            | Reason::CpuIsFaster { .. }
            | Reason::UnknownRows
            | Reason::LoneRowLocal
            | Reason::NothingToCompute
            | Reason::UnsupportedOperator { .. }
            | Reason::OrderedGrouping
            | Reason::SoftLimit { .. }
            | Reason::BindingLimit { .. }
            | Reason::Unbounded
            | Reason::RecursiveQuery
            | Reason::FinalWithoutPartial
            | Reason::ExchangesKept
            | Reason::Fetch { .. }
            | Reason::ConversionFailed { .. } => None,
        }
    }

    /// An unsupported expression, with the expression's text shortened for reading.
    pub(crate) fn unsupported_expression(expression: &dyn fmt::Display, why: impl Into<String>) -> Reason {
        Reason::UnsupportedExpression { expression: shorten(expression), why: why.into() }
    }

    /// An unsupported type, with the expression's text shortened for reading.
    pub(crate) fn unsupported_type(expression: &dyn fmt::Display, data_type: &DataType) -> Reason {
        Reason::UnsupportedType { expression: shorten(expression), data_type: data_type.clone() }
    }

    /// An unsupported aggregate, with its text shortened for reading.
    pub(crate) fn unsupported_aggregate(aggregate: &dyn fmt::Display, why: impl Into<String>) -> Reason {
        Reason::UnsupportedAggregate { aggregate: shorten(aggregate), why: why.into() }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Disabled { option } => write!(f, "{option} leaves the plan untouched"),
            Reason::NoAdapter { message } => f.write_str(message),
            Reason::NoInt64 { adapter } => write!(f, "the adapter {adapter} has no 64-bit integers"),
            Reason::NumericsProbe { adapter } => {
                write!(f, "the adapter {adapter} computes 64-bit integers wrongly")
            }
            Reason::TooFewRows { rows, min_rows } => {
                write!(f, "about {rows} input rows are fewer than gpu.min_rows = {min_rows}")
            }
            Reason::CpuIsFaster { cpu_us, gpu_us } => {
                let millis = |us: &u64| *us as f64 / 1e3;
                write!(
                    f,
                    "the CPU is estimated to take {:.1} ms, the GPU with its transfers {:.1} ms at gpu.upload_rate",
                    millis(cpu_us),
                    millis(gpu_us)
                )
            }
            Reason::UnknownRows => {
                f.write_str("nothing says how many rows the input has (gpu.placement = 'force' does not ask)")
            }
            Reason::LoneRowLocal => f.write_str(
                "the result goes to a CPU operator, so that moving the rows would cost more than the work",
            ),
            Reason::NothingToCompute => f.write_str("it only renames, reorders or drops columns"),
            Reason::UnsupportedOperator { operator } => write!(f, "{operator} has no GPU counterpart"),
            Reason::UnsupportedExpression { expression, why } => write!(f, "{expression}: {why}"),
            Reason::UnsupportedType { expression, data_type } => {
                write!(f, "{expression} is of type {data_type}, which is not supported here")
            }
            Reason::UnsupportedAggregate { aggregate, why } => write!(f, "{aggregate}: {why}"),
            Reason::FloatArithmetic { expression } => {
                write!(f, "{expression}: devices round this function in other ways than the CPU")
            }
            Reason::Distinct { aggregate } => write!(f, "{aggregate}: DISTINCT is not supported"),
            Reason::OrderSensitive { aggregate } => {
                write!(f, "{aggregate}: the result depends on the order of the rows")
            }
            Reason::OrderedGrouping => {
                f.write_str("its groups come in the order of its input, which the GPU does not keep")
            }
            Reason::SoftLimit { limit } => {
                write!(f, "the CPU stops at {limit} groups, while the GPU finds them all")
            }
            Reason::BindingLimit { need, limit } => {
                write!(f, "the kernel needs {need} storage buffers, the adapter allows {limit}")
            }
            Reason::ExpressionTooLarge { expression, limit } => write!(f, "{expression}: more than {limit}"),
            Reason::Unbounded => f.write_str("the input never ends"),
            Reason::DynamicFilter { expression } => {
                write!(f, "{expression}: other operators change it while the query runs")
            }
            Reason::RecursiveQuery => f.write_str("it is a term of a recursive query"),
            Reason::FinalWithoutPartial => {
                f.write_str("the aggregate's partial step is not directly below it")
            }
            Reason::ExchangesKept => f.write_str(
                "gpu.exchanges = 'keep' leaves the final step, which merges the states of the partitions, on the CPU unless gpu.placement = 'force'",
            ),
            Reason::RoundedState { aggregate } => {
                write!(
                    f,
                    "{aggregate}: its partial states are rounded, so that the sum would depend on partitions"
                )
            }
            Reason::FloatSumOnCpu { aggregate } => {
                write!(f, "{aggregate}: gpu.float_sum = 'cpu' leaves sums of floats on the CPU")
            }
            Reason::Fetch { operator } => write!(f, "{operator} carries a limit"),
            Reason::ConversionFailed { message } => write!(f, "the converted plan was refused: {message}"),
        }
    }
}

/// Text for a sentence: at most 160 characters, without line breaks.
pub(crate) fn shorten(text: &dyn fmt::Display) -> String {
    const MOST: usize = 160;
    let full = text.to_string();
    let mut out: String = full.chars().take(MOST).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if full.chars().nth(MOST).is_some() {
        out.push('…');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_are_short_and_on_one_line() {
        let text = format!("a\nb{}", "ü".repeat(1000));
        let reason = Reason::unsupported_expression(&text, "no");
        let shown = reason.to_string();
        assert_eq!(shown.chars().count(), 160 + 1 + ": no".len());
        assert!(shown.starts_with("a b") && !shown.contains('\n'));
        assert_eq!(reason.code(), "UnsupportedExpression");
        assert_eq!(reason.expression().map(|text| text.chars().count()), Some(161));
        assert_eq!(Reason::OrderedGrouping.expression(), None);
    }
}
