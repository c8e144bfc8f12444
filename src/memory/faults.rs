//! Injected failures, for tests of what happens after them.
/// A place where a failure can be injected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Choke {
    /// `DeviceContext::allocate`
    Allocate,
    /// `DeviceContext::submit`
    Submit,
    /// Mapping for read-back.
    Map,
    /// `DeviceContext::pipeline`, also when the pipeline is cached.
    Compile,
}
/// Failures to come.
#[derive(Debug, Default)]
#[doc(hidden)]
pub struct FaultPlan {}
impl FaultPlan {
    /// The `n`-th call from now (1 = the next) fails with a typed error.
    pub fn fail(&self, _at: Choke, _n: u64) {
        todo!()
    }
    /// The `n`-th call from now (1 = the next) loses the device.
    pub fn lose_at(&self, _at: Choke, _n: u64) {
        todo!()
    }
    /// Forgets all.
    pub fn clear(&self) {
        todo!()
    }
}
