//! Guard bands around the buffers that kernels write, for tests.
//!
//! On a device made by `GpuDevice::with_guards` each such buffer lies between two bands of a known pattern, which also fills
//! the buffer itself: its contents are undefined. The band behind it is bound with it, since adapters drop what a shader
//! writes outside of a binding, and the defect would go unseen; so kernels must not ask for the length of a binding.
//! A buffer that is dropped waits here for `Guards::check`, which reads its bands, instead of going back to its pool.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

use parking_lot::Mutex;

use crate::error::{GpuError, GpuResult};

use super::budget::{DeviceLedger, MemoryScope};
use super::column::BufferSlice;
use super::device::{BufferKind, DeviceContext};
use super::pool::RawBuffer;

/// Bytes of a band: a multiple of every storage offset alignment, and as much as a workgroup writes of 16-byte values.
pub(crate) const BAND: u64 = 4096;
/// Buffers whose bands are read back together.
const TOGETHER: usize = 128;
/// Findings that a message names.
const NAMED: usize = 8;

/// What the two bands hold, one after the other: no word twice.
static BANDS: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let word = |at: u32| (at | 1).wrapping_mul(0x9e37_79b9) ^ 0x5bd1_e995;
    (0..2 * BAND as u32).step_by(4).flat_map(|at| word(at).to_le_bytes()).collect()
});

/// The bands of one device, those of its views by `with_caps` included.
#[derive(Debug, Default)]
#[doc(hidden)]
pub struct Guards {
    /// Buffers that were not dropped yet.
    alive: AtomicUsize,
    dropped: Mutex<Vec<Dropped>>,
}

/// What a buffer between bands carries.
#[derive(Debug)]
pub(crate) struct Guard {
    guards: Arc<Guards>,
    /// Without faults or guards of its own.
    context: Arc<DeviceContext>,
    name: &'static str,
    /// Bytes between the bands.
    len: u64,
}

#[derive(Debug)]
struct Dropped {
    raw: RawBuffer,
    guard: Guard,
}

impl Guards {
    /// A buffer of `len` bytes, a multiple of 16, between two bands.
    ///
    /// # Errors
    /// Those of [`DeviceContext::allocate`], for the bands too.
    #[expect(clippy::disallowed_methods, reason = "only in tests, where a loss is no loss")]
    pub(crate) fn allocate(
        self: &Arc<Self>,
        context: &Arc<DeviceContext>,
        memory: &MemoryScope,
        name: &'static str,
        len: u64,
    ) -> GpuResult<BufferSlice> {
        let mut buffer = context.allocate(memory, len + 2 * BAND, BufferKind::Storage)?;
        let (before, after) = BANDS.split_at(BAND as usize);
        let mut bytes = before.to_vec();
        while bytes.len() < (BAND + len) as usize {
            let rest = (BAND + len) as usize - bytes.len();
            bytes.extend_from_slice(&BANDS[..rest.min(BANDS.len())]);
        }
        bytes.extend_from_slice(after);
        context.queue().write_buffer(buffer.raw(), 0, &bytes);
        let fresh = Arc::get_mut(&mut buffer)
            .ok_or_else(|| GpuError::Internal("a fresh buffer is shared already".to_string()))?;
        let guard = Guard { guards: Arc::clone(self), context: context.without_hooks(), name, len };
        fresh.set_guard(guard);
        self.alive.fetch_add(1, Ordering::SeqCst);
        Ok(BufferSlice { buffer, offset: BAND, len })
    }

    /// Reads the bands of all buffers dropped since the last check, after all work submitted so far. Gives their number;
    /// those of a lost device are not counted.
    ///
    /// # Errors
    /// A text that says for each buffer that was written outside of where and what; or that buffers are still in use, or
    /// bands could not be read.
    pub async fn check(&self) -> Result<usize, String> {
        // Before those that were dropped are taken: none falls between the two.
        let alive = self.alive.load(Ordering::SeqCst);
        let taken = std::mem::take(&mut *self.dropped.lock());
        let mut generations: BTreeMap<u64, Vec<Dropped>> = BTreeMap::new();
        for dropped in taken {
            generations.entry(dropped.guard.context.generation()).or_default().push(dropped);
        }
        let (mut checked, mut findings) = (0, vec![]);
        for together in generations.values().flat_map(|dropped| dropped.chunks(TOGETHER)) {
            match read(together).await {
                Ok(bands) => {
                    checked += together.len();
                    findings.extend(
                        together.iter().zip(&bands).filter_map(|(dropped, bands)| dropped.finding(bands)),
                    );
                }
                Err(GpuError::DeviceLost(_)) => {}
                Err(error) => return Err(format!("the guard bands could not be read: {error}")),
            }
        }
        if !findings.is_empty() {
            let more = findings.len().saturating_sub(NAMED);
            let rest = if more > 0 { format!("\nand {more} buffers more") } else { String::new() };
            findings.truncate(NAMED);
            return Err(format!("a kernel wrote outside of its buffers\n{}{rest}", findings.join("\n")));
        }
        match alive {
            0 => Ok(checked),
            _ => Err(format!("{alive} guarded buffers are still in use, and were not checked")),
        }
    }
}

/// The two bands of each buffer, one after the other.
async fn read(together: &[Dropped]) -> GpuResult<Vec<Vec<u8>>> {
    let Some(first) = together.first() else { return Ok(vec![]) };
    let context = &first.guard.context;
    let memory = MemoryScope::new(&DeviceLedger::detached(u64::MAX), "guard bands", u64::MAX);
    let bytes = 2 * BAND * together.len() as u64;
    let target = context.allocate(&memory, bytes, BufferKind::ReadBack)?;
    let mut encoder = context.device().create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
    for (at, dropped) in (0..).step_by(2 * BAND as usize).zip(together) {
        for (source, target_at) in [(0, at), (BAND + dropped.guard.len, at + BAND)] {
            encoder.copy_buffer_to_buffer(&dropped.raw, source, target.raw(), target_at, BAND);
        }
    }
    let ranges = (0..bytes).step_by(2 * BAND as usize).map(|at| (at, 2 * BAND)).collect();
    context.submit_and_read(encoder, vec![(target, ranges)]).await
}

impl Dropped {
    /// What is wrong with the bands, if anything.
    fn finding(&self, bands: &[u8]) -> Option<String> {
        if bands == BANDS.as_slice() {
            return None;
        }
        let word = |bytes: &[u8]| bytes.iter().rev().fold(0, |word, byte| (word << 8) | u32::from(*byte));
        let words = bands.chunks_exact(4).zip(BANDS.chunks_exact(4)).zip((0..).step_by(4));
        let wrong: Vec<(i64, u32, u32)> = words
            .filter(|((found, expected), _)| found != expected)
            .map(|((found, expected), at)| {
                let from_start =
                    if at < BAND { at as i64 - BAND as i64 } else { (at - BAND + self.guard.len) as i64 };
                (from_start, word(found), word(expected))
            })
            .collect();
        let (offset, found, expected) = wrong.first()?;
        let (last, ..) = wrong.last()?;
        Some(format!(
            "buffer '{}' of {} bytes: {} words, at bytes {offset} to {last}; the first is {found:#010x} and was {expected:#010x}",
            self.guard.name,
            self.guard.len,
            wrong.len(),
        ))
    }
}

impl Guard {
    /// Bytes to bind for a slice of the buffer: the band after it too, if the slice ends there.
    pub(crate) fn bound_len(&self, offset: u64, len: u64) -> u64 {
        if offset + len == BAND + self.len { len + BAND } else { len }
    }

    /// Takes over the buffer that carried it.
    pub(crate) fn dropped(self, raw: RawBuffer) {
        let guards = Arc::clone(&self.guards);
        guards.dropped.lock().push(Dropped { raw, guard: self });
        guards.alive.fetch_sub(1, Ordering::SeqCst);
    }
}
