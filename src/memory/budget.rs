//! Who holds how much device memory, and under which limit.
use crate::error::GpuResult;
use std::sync::Arc;
/// Bytes of device memory in live buffers.
#[derive(Debug)]
pub struct DeviceLedger {}
impl DeviceLedger {
    pub fn reserved(&self) -> u64 {
        todo!()
    }
    pub fn peak(&self) -> u64 {
        todo!()
    }
    pub fn holders(&self) -> Vec<(String, u64)> {
        todo!()
    }
    pub fn report(&self) -> String {
        todo!()
    }
}
/// Who reserves, under which limit.
#[derive(Debug, Clone)]
pub struct MemoryScope {}
impl MemoryScope {
    pub fn new(_ledger: &Arc<DeviceLedger>, _consumer: impl Into<String>, _limit: u64) -> Self {
        todo!()
    }
    pub fn reserve(&self, _bytes: u64) -> GpuResult<Reservation> {
        todo!()
    }
}
/// Reserved bytes, given back on drop.
#[derive(Debug)]
pub struct Reservation {}
