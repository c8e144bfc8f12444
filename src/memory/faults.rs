//! Injected failures, for tests of what happens after them.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A place where a failure can be injected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Choke {
    /// `DeviceContext::allocate`: fails with `AllocationRefused`.
    Allocate,
    /// `DeviceContext::submit`, the copies of uploads included: fails with `KernelFault`.
    Submit,
    /// Mapping for read-back: fails with `KernelFault`.
    Map,
    /// `DeviceContext::pipeline` and `compile`, cached or not: fails with `ShaderRejected`.
    Compile,
}

/// What an injected failure does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FaultAction {
    /// Return the choke point's typed error.
    Fail,
    /// Destroy the device first, then go on.
    Lose,
}

/// Failures to come on one `GpuDevice`. Unset, each choke point pays one relaxed load.
#[derive(Debug, Default)]
#[doc(hidden)]
pub struct FaultPlan {
    armed: AtomicBool,
    points: [Countdown; 4],
}

#[derive(Debug, Default)]
struct Countdown {
    fail: AtomicU64,
    lose: AtomicU64,
}

impl FaultPlan {
    /// The `n`-th call from now (1 = the next) fails with a typed error. 0 takes the order back.
    pub fn fail(&self, at: Choke, n: u64) {
        self.points[at as usize].fail.store(n, Ordering::SeqCst);
        self.armed.store(true, Ordering::SeqCst);
    }

    /// The `n`-th call from now (1 = the next) loses the device. 0 takes the order back.
    pub fn lose_at(&self, at: Choke, n: u64) {
        self.points[at as usize].lose.store(n, Ordering::SeqCst);
        self.armed.store(true, Ordering::SeqCst);
    }

    /// Calls left until the failure ordered at this point; 0 when it has happened or none was ordered.
    pub fn pending(&self, at: Choke) -> u64 {
        let point = &self.points[at as usize];
        point.fail.load(Ordering::SeqCst).max(point.lose.load(Ordering::SeqCst))
    }

    /// Forgets all failures.
    pub fn clear(&self) {
        self.armed.store(false, Ordering::SeqCst);
        for point in &self.points {
            point.fail.store(0, Ordering::SeqCst);
            point.lose.store(0, Ordering::SeqCst);
        }
    }

    /// Counts a call; says whether it must fail.
    pub(crate) fn check(&self, at: Choke) -> Option<FaultAction> {
        if !self.armed.load(Ordering::Relaxed) {
            return None;
        }
        let point = &self.points[at as usize];
        if count_down(&point.lose) {
            return Some(FaultAction::Lose);
        }
        count_down(&point.fail).then_some(FaultAction::Fail)
    }
}

/// True when this call is the one that was counted down to.
fn count_down(counter: &AtomicU64) -> bool {
    counter.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1)) == Ok(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fails_the_nth_call_once() {
        let plan = FaultPlan::default();
        assert_eq!(plan.check(Choke::Submit), None);
        plan.fail(Choke::Submit, 2);
        assert_eq!(plan.check(Choke::Map), None);
        assert_eq!(plan.check(Choke::Submit), None);
        assert_eq!(plan.pending(Choke::Submit), 1);
        assert_eq!(plan.check(Choke::Submit), Some(FaultAction::Fail));
        assert_eq!(plan.check(Choke::Submit), None);
        plan.lose_at(Choke::Map, 1);
        plan.clear();
        assert_eq!(plan.check(Choke::Map), None);
    }
}
