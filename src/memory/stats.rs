//! Counters of one plan node's device work.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Counters of device work, shared by all that work for one plan node. Times are in nanoseconds.
#[derive(Debug, Default)]
pub struct LaunchStats {
    /// Bytes written to the device by uploads.
    pub uploaded_bytes: AtomicU64,
    /// Wall time of uploads on the host: filling staging memory and submitting its copies.
    pub upload_ns: AtomicU64,
    /// Bytes read back.
    pub downloaded_bytes: AtomicU64,
    /// Wall time from the submission of a read-back to its bytes; it includes the kernels submitted with it.
    pub readback_ns: AtomicU64,
    /// Device time of kernels by timestamp queries; 0 where the adapter has none.
    pub kernel_ns: AtomicU64,
    /// Dispatches recorded.
    pub dispatches: AtomicU64,
    /// Times the host waited for the device.
    pub waits: AtomicU64,
    /// Pipelines that were compiled, not found in the cache.
    pub pipelines_compiled: AtomicU64,
    /// Wall time of those compilations.
    pub compile_ns: AtomicU64,
}

/// Values of [`LaunchStats`] at one moment, or sums of such.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LaunchSnapshot {
    /// See [`LaunchStats::uploaded_bytes`].
    pub uploaded_bytes: u64,
    /// See [`LaunchStats::upload_ns`].
    pub upload_ns: u64,
    /// See [`LaunchStats::downloaded_bytes`].
    pub downloaded_bytes: u64,
    /// See [`LaunchStats::readback_ns`].
    pub readback_ns: u64,
    /// See [`LaunchStats::kernel_ns`].
    pub kernel_ns: u64,
    /// See [`LaunchStats::dispatches`].
    pub dispatches: u64,
    /// See [`LaunchStats::waits`].
    pub waits: u64,
    /// See [`LaunchStats::pipelines_compiled`].
    pub pipelines_compiled: u64,
    /// See [`LaunchStats::compile_ns`].
    pub compile_ns: u64,
}

impl LaunchSnapshot {
    /// Adds each counter of `other`.
    pub fn add(&mut self, other: &LaunchSnapshot) {
        self.uploaded_bytes += other.uploaded_bytes;
        self.upload_ns += other.upload_ns;
        self.downloaded_bytes += other.downloaded_bytes;
        self.readback_ns += other.readback_ns;
        self.kernel_ns += other.kernel_ns;
        self.dispatches += other.dispatches;
        self.waits += other.waits;
        self.pipelines_compiled += other.pipelines_compiled;
        self.compile_ns += other.compile_ns;
    }
}

impl LaunchStats {
    /// The counters now; each is read on its own, so a snapshot during work may be torn.
    pub fn snapshot(&self) -> LaunchSnapshot {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        LaunchSnapshot {
            uploaded_bytes: get(&self.uploaded_bytes),
            upload_ns: get(&self.upload_ns),
            downloaded_bytes: get(&self.downloaded_bytes),
            readback_ns: get(&self.readback_ns),
            kernel_ns: get(&self.kernel_ns),
            dispatches: get(&self.dispatches),
            waits: get(&self.waits),
            pipelines_compiled: get(&self.pipelines_compiled),
            compile_ns: get(&self.compile_ns),
        }
    }

    /// Adds to a counter.
    pub(crate) fn add(counter: &AtomicU64, value: u64) {
        counter.fetch_add(value, Ordering::Relaxed);
    }

    /// Adds the time since `started` to a counter of nanoseconds.
    pub(crate) fn add_time(counter: &AtomicU64, started: Instant) {
        Self::add(counter, u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX));
    }
}
