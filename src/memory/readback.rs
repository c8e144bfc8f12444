//! Copying out of mapped memory.

use parking_lot::Mutex;

use crate::error::{GpuError, GpuResult};

use super::poll;
use super::pool::DeviceBuffer;

/// Ranges from this size on are copied by several threads.
const PARALLEL_READ_BYTES: usize = 8 << 20;
const MAX_COPIERS: usize = 8;
/// Bytes that a thread copies at a time.
const COPY_SHARE: usize = 2 << 20;

/// Copies ranges out of a mapped buffer and unmaps it.
pub(super) fn copy_out(buffer: &DeviceBuffer, ranges: &[(u64, u64)]) -> GpuResult<Vec<Vec<u8>>> {
    let view = buffer.raw().get_mapped_range(..).map_err(|error| poll::map_error(error.to_string()))?;
    let copies = ranges.iter().map(|(offset, length)| {
        let range = usize::try_from(*offset).ok()?..usize::try_from(offset.checked_add(*length)?).ok()?;
        view.get(range).map(copy_slice)
    });
    let copies: Option<Vec<_>> = copies.collect();
    drop(view);
    buffer.unmap();
    copies.ok_or_else(|| GpuError::Internal("a read-back beyond its buffer".to_string()))
}

/// Copies mapped memory; a large range by several threads, which share the page faults of the fresh target.
fn copy_slice(source: &[u8]) -> Vec<u8> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(MAX_COPIERS);
    if source.len() < PARALLEL_READ_BYTES || threads == 1 {
        return source.to_vec();
    }
    let mut target = vec![0; source.len()];
    copy_shares(&mut target, source, threads);
    target
}

/// Copies with `threads` threads, the calling one among them, each taking the next share.
fn copy_shares(target: &mut [u8], source: &[u8], threads: usize) {
    let shares = Mutex::new(target.chunks_mut(COPY_SHARE).zip(source.chunks(COPY_SHARE)));
    let copy = || {
        while let Some((target, source)) = { shares.lock().next() } {
            target.copy_from_slice(source);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads {
            // Without this helper the others copy its share.
            let _ = std::thread::Builder::new().spawn_scoped(scope, copy);
        }
        copy();
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_threads_copy_every_byte() {
        for length in [0, 1, COPY_SHARE - 1, 3 * COPY_SHARE + 5] {
            let source: Vec<u8> = (0..length).map(|i| (i % 251) as u8).collect();
            for threads in [1, 2, 5] {
                let mut target = vec![0; length];
                copy_shares(&mut target, &source, threads);
                assert!(target == source, "{length} bytes, {threads} threads");
            }
        }
    }
}
