//! What an adapter is declined for, whatever the query.

use crate::memory::caps::DeviceCaps;

use super::expr::OTHER_BINDINGS;
use super::reason::Reason;

/// From this many columns on an operator's limit is of no interest to anybody.
const MANY_COLUMNS: usize = 1_000;

/// Why an adapter that was opened, and so probed, cannot be used for anything; `None` when it can.
pub fn unusable(caps: &DeviceCaps) -> Option<Reason> {
    if !caps.int64 {
        return Some(Reason::NoInt64 { adapter: caps.name.clone() });
    }
    (!caps.numerics.int64_exact).then(|| Reason::NumericsProbe { adapter: caps.name.clone() })
}

/// What stays on the CPU because of this adapter although others would run it: a sentence each, with the reason's code.
/// Empty when nothing does.
pub fn declined_by(caps: &DeviceCaps) -> Vec<String> {
    if let Some(reason) = unusable(caps) {
        return vec![format!("everything ({}: {reason})", reason.code())];
    }
    let buffers = usize::try_from(caps.max_storage_buffers).unwrap_or(usize::MAX);
    let columns = buffers.saturating_sub(OTHER_BINDINGS);
    if columns >= MANY_COLUMNS {
        return vec![];
    }
    let code = Reason::BindingLimit { need: 0, limit: buffers }.code();
    vec![format!(
        "operators over more than {columns} columns, inputs and results together, nullable ones counted twice ({code})"
    )]
}
