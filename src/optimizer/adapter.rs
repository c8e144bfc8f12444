//! What an adapter is declined for, whatever the query.

use crate::memory::caps::DeviceCaps;

use super::expr::OTHER_BINDINGS;
use super::reason::Reason;

/// Storage buffers that the largest kernel binds when its columns are packed into one, and with a single output.
const MOST_BINDINGS: usize = OTHER_BINDINGS + 2;

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
    if buffers >= MOST_BINDINGS {
        return vec![];
    }
    let code = Reason::BindingLimit { need: 0, limit: buffers }.code();
    vec![format!("filters, projections and aggregates that need {MOST_BINDINGS} storage buffers ({code})")]
}
