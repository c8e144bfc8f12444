//! Injected faults, for tests of what happens after them.

use std::fmt;
use std::mem::discriminant;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;

/// The message of injected faults.
pub(crate) const INJECTED: &str = "injected fault";

/// A place where a fault can be injected.
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
    /// Opening the device again after a loss: whatever the fault is, it fails with `NoAdapter`.
    Open,
}

impl Choke {
    /// Those that a healthy query calls.
    pub const ALL: [Choke; 4] = [Choke::Allocate, Choke::Submit, Choke::Map, Choke::Compile];
}

/// What happens at a choke point.
#[derive(Clone)]
pub enum Fault {
    /// The call returns the choke point's typed error.
    Fail,
    /// The device is destroyed, then the call goes on.
    Lose,
    /// The poll thread is told to panic, then the call goes on: the thread may end a little later.
    EndPolling,
    /// The call panics; at [`Choke::Compile`] the shader compiler does, which is contained.
    Panic,
    /// At [`Choke::Compile`] the shader's last line is no WGSL, cached or not; elsewhere as [`Fault::Fail`].
    Misspell,
    /// The closure runs on the calling thread, then the call goes on: for a query that is cancelled just there.
    Call(Arc<dyn Fn() + Send + Sync>),
}

impl fmt::Debug for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Fault::Fail => "Fail",
            Fault::Lose => "Lose",
            Fault::EndPolling => "EndPolling",
            Fault::Panic => "Panic",
            Fault::Misspell => "Misspell",
            Fault::Call(_) => "Call",
        })
    }
}

/// Faults to come on one `GpuDevice`. Unset, each choke point pays one relaxed load.
#[derive(Debug, Default)]
#[doc(hidden)]
pub struct FaultPlan {
    armed: AtomicBool,
    calls: [AtomicU64; 5],
    orders: Mutex<Vec<Order>>,
}

#[derive(Debug)]
struct Order {
    at: Choke,
    /// Calls until it is due, that one included.
    left: u64,
    fault: Fault,
    /// It happens at every call from then on.
    stays: bool,
}

impl FaultPlan {
    /// `fault` happens once, at the `n`-th call from now (1 = the next), in the place of an earlier order of that kind at
    /// this point. 0 takes the order back.
    pub fn order(&self, at: Choke, n: u64, fault: Fault) {
        let mut orders = self.orders.lock();
        orders.retain(|order| order.at != at || discriminant(&order.fault) != discriminant(&fault));
        if n > 0 {
            orders.push(Order { at, left: n, fault, stays: false });
            self.armed.store(true, Ordering::SeqCst);
        }
    }

    /// `fault` happens at every call from now on, until [`FaultPlan::clear`].
    pub fn order_always(&self, at: Choke, fault: Fault) {
        self.order(at, 1, fault);
        self.orders.lock().iter_mut().rev().take(1).for_each(|order| order.stays = true);
    }

    /// [`FaultPlan::order`] of [`Fault::Fail`].
    pub fn fail(&self, at: Choke, n: u64) {
        self.order(at, n, Fault::Fail);
    }

    /// [`FaultPlan::order`] of [`Fault::Lose`].
    pub fn lose_at(&self, at: Choke, n: u64) {
        self.order(at, n, Fault::Lose);
    }

    /// Calls left until the last fault ordered at this point; 0 when all have happened or none was ordered.
    pub fn pending(&self, at: Choke) -> u64 {
        let orders = self.orders.lock();
        orders
            .iter()
            .filter(|order| order.at == at && !order.stays)
            .map(|order| order.left)
            .max()
            .unwrap_or(0)
    }

    /// Counts calls from now on, beginning at 0, until [`FaultPlan::clear`].
    pub fn count(&self) {
        self.calls.iter().for_each(|calls| calls.store(0, Ordering::SeqCst));
        self.armed.store(true, Ordering::SeqCst);
    }

    /// Calls of a choke point since [`FaultPlan::count`].
    pub fn calls(&self, at: Choke) -> u64 {
        self.calls[at as usize].load(Ordering::SeqCst)
    }

    /// Forgets all orders and stops counting; what was counted can still be read.
    pub fn clear(&self) {
        self.armed.store(false, Ordering::SeqCst);
        self.orders.lock().clear();
    }

    /// Counts a call; says what must happen at it. A closure has run by then.
    pub(crate) fn check(&self, at: Choke) -> Option<Fault> {
        if !self.armed.load(Ordering::Relaxed) {
            return None;
        }
        self.calls[at as usize].fetch_add(1, Ordering::SeqCst);
        match self.due(at) {
            // Called without the lock: it may give orders of its own.
            Some(Fault::Call(call)) => {
                call();
                None
            }
            fault => fault,
        }
    }

    /// Counts all orders at this point down; takes the one that is due out.
    fn due(&self, at: Choke) -> Option<Fault> {
        let mut orders = self.orders.lock();
        orders.iter_mut().filter(|order| order.at == at && !order.stays).for_each(|order| order.left -= 1);
        let mut due = None;
        // Of several the last one that was ordered.
        orders.retain(|order| {
            let keep = order.left > 0;
            if !keep || (order.at == at && order.stays) {
                due = Some(order.fault.clone());
            }
            keep
        });
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(fault: Option<Fault>) -> String {
        fault.map_or_else(String::new, |fault| format!("{fault:?}"))
    }

    #[test]
    fn the_nth_call_meets_the_fault_once() {
        let plan = FaultPlan::default();
        assert_eq!(name(plan.check(Choke::Submit)), "");
        plan.fail(Choke::Submit, 2);
        assert_eq!(name(plan.check(Choke::Map)), "");
        assert_eq!(name(plan.check(Choke::Submit)), "");
        assert_eq!(plan.pending(Choke::Submit), 1);
        assert_eq!(name(plan.check(Choke::Submit)), "Fail");
        assert_eq!(plan.pending(Choke::Submit), 0);
        assert_eq!(name(plan.check(Choke::Submit)), "");
        plan.lose_at(Choke::Map, 1);
        plan.clear();
        assert_eq!(name(plan.check(Choke::Map)), "");
    }

    #[test]
    fn orders_of_different_kinds_stand_side_by_side() {
        let plan = FaultPlan::default();
        plan.fail(Choke::Map, 1);
        plan.fail(Choke::Map, 3);
        plan.order(Choke::Map, 2, Fault::EndPolling);
        plan.order(Choke::Map, 4, Fault::Panic);
        plan.order(Choke::Map, 0, Fault::Panic);
        let met: Vec<_> = (0..4).map(|_| name(plan.check(Choke::Map))).collect();
        assert_eq!(met, ["", "EndPolling", "Fail", ""]);
    }

    #[test]
    fn an_order_can_stay() {
        let plan = FaultPlan::default();
        plan.order_always(Choke::Map, Fault::Fail);
        plan.lose_at(Choke::Map, 2);
        let met: Vec<_> = (0..3).map(|_| name(plan.check(Choke::Map))).collect();
        assert_eq!(met, ["Fail", "Lose", "Fail"]);
        assert_eq!((plan.pending(Choke::Map), name(plan.check(Choke::Submit))), (0, String::new()));
        plan.clear();
        assert_eq!(name(plan.check(Choke::Map)), "");
    }

    #[test]
    fn calls_are_counted_and_closures_called() {
        let plan = Arc::new(FaultPlan::default());
        plan.check(Choke::Allocate);
        plan.count();
        let (called, weak) = (Arc::new(AtomicU64::new(0)), Arc::downgrade(&plan));
        let counter = Arc::clone(&called);
        let call = move || {
            counter.fetch_add(1, Ordering::SeqCst);
            weak.upgrade().unwrap().fail(Choke::Allocate, 1);
        };
        plan.order(Choke::Allocate, 2, Fault::Call(Arc::new(call)));
        let met: Vec<_> = (0..3).map(|_| name(plan.check(Choke::Allocate))).collect();
        assert_eq!(met, ["", "", "Fail"]);
        assert_eq!((called.load(Ordering::SeqCst), plan.calls(Choke::Allocate)), (1, 3));
        plan.clear();
        plan.check(Choke::Allocate);
        assert_eq!((plan.calls(Choke::Allocate), plan.calls(Choke::Submit)), (3, 0));
        plan.count();
        assert_eq!(plan.calls(Choke::Allocate), 0);
    }
}
