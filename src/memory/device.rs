//! One generation of an open device, with the four choke points: allocate, submit, map, compile.
//!
//! Everything that may fail on the device goes through here, so that out-of-memory, validation errors, injected
//! faults and loss become typed errors in one place. wgpu reports the use of a lost device to nobody: each
//! choke point asks for the loss itself.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use tokio::sync::oneshot;

use crate::error::{GpuError, GpuResult};

use super::budget::{MemoryScope, Reclaim, Reservation};
use super::caps::DeviceCaps;
use super::exit;
use super::faults::{Choke, Fault, FaultPlan, INJECTED};
use super::generation::{ContextCore, ErrorScopes};
use super::guards::Guards;
use super::poll::{self, Progress};
use super::pool::{BufferPool, RawBuffer, size_class};
use super::readback::copy_out;
use super::stats::LaunchStats;

use super::pipeline::Broken;
pub use super::pipeline::{BindingKind, Pipeline, ShaderSource};
pub use super::pool::{BufferKind, DeviceBuffer};

/// Read-backs from this size on are copied out of mapped memory by a blocking task.
const INLINE_READ_BYTES: u64 = 1 << 20;

/// One generation of an open device. Cheap to share; when the last holder and the `GpuDevice` let it go, its poll
/// thread ends. After a loss every call gives `GpuError::DeviceLost`, and `GpuDevice::context` a new generation.
#[derive(Debug)]
pub struct DeviceContext {
    core: Arc<ContextCore>,
    caps: Arc<DeviceCaps>,
    faults: Arc<FaultPlan>,
    guards: Option<Arc<Guards>>,
}

impl DeviceContext {
    pub(crate) fn new(
        core: Arc<ContextCore>,
        caps: Arc<DeviceCaps>,
        faults: Arc<FaultPlan>,
        guards: Option<Arc<Guards>>,
    ) -> Arc<Self> {
        Arc::new(DeviceContext { core, caps, faults, guards })
    }

    /// The same without faults and guards.
    pub(crate) fn without_hooks(&self) -> Arc<Self> {
        DeviceContext::new(Arc::clone(&self.core), Arc::clone(&self.caps), Arc::default(), None)
    }

    /// Puts guard bands around what kernels write; only on devices made by `GpuDevice::with_guards`.
    pub(crate) fn guards(&self) -> Option<&Arc<Guards>> {
        self.guards.as_ref()
    }

    /// Limits and features; lowered ones where the device was made by `GpuDevice::with_caps`.
    pub fn caps(&self) -> &Arc<DeviceCaps> {
        &self.caps
    }

    /// 1 for the first device, one more after each loss.
    pub fn generation(&self) -> u64 {
        self.core.generation
    }

    /// The wgpu device, for encoders and bind groups only.
    pub fn device(&self) -> &wgpu::Device {
        &self.core.device
    }

    /// Whether the device was lost. A loss is noticed by the next call that touches the device.
    pub fn is_lost(&self) -> bool {
        self.core.progress.is_lost()
    }

    pub(crate) fn pool(&self) -> &Arc<BufferPool> {
        &self.core.pool
    }

    pub(crate) fn queue(&self) -> &wgpu::Queue {
        &self.core.queue
    }

    pub(crate) fn classify(&self, error: GpuError) -> GpuError {
        self.core.classify(error)
    }

    /// Refuses on a lost device; counts injected faults.
    fn pass(&self, at: Choke, error: impl FnOnce() -> GpuError) -> GpuResult<()> {
        self.meet(self.faults.check(at).as_ref(), error)
    }

    /// [`DeviceContext::pass`] before a compilation: how that is to go wrong, if it is.
    fn pass_compile(&self, source: &ShaderSource) -> GpuResult<Option<Broken>> {
        match self.faults.check(Choke::Compile) {
            Some(Fault::Panic) => Ok(Some(Broken::Panics)),
            Some(Fault::Misspell) => Ok(Some(Broken::Misspelled)),
            fault => self.meet(fault.as_ref(), || injected_rejection(source)).map(|()| None),
        }
    }

    fn meet(&self, fault: Option<&Fault>, error: impl FnOnce() -> GpuError) -> GpuResult<()> {
        match fault {
            Some(Fault::Fail | Fault::Misspell) => return Err(error()),
            Some(Fault::Lose) => self.core.lose(),
            Some(Fault::EndPolling) => self.core.progress.end_polling(),
            Some(Fault::Panic) => resume_unwind(Box::new(INJECTED)),
            Some(Fault::Call(_)) | None => {}
        }
        if exit::is_ending() {
            return Err(GpuError::DeviceLost("the process ends".to_string()));
        }
        self.core.progress.lost_error().map_or(Ok(()), Err)
    }

    /// A buffer of at least `bytes`, rounded up to a size class, its bytes reserved in the ledger first. Contents
    /// are undefined; a `Staging` buffer is mapped. Errors: `OutOfDeviceMemory` by the ledger, `AllocationRefused`
    /// by the driver, `Limit` beyond the largest buffer.
    pub fn allocate(
        self: &Arc<Self>,
        memory: &MemoryScope,
        bytes: u64,
        kind: BufferKind,
    ) -> GpuResult<Arc<DeviceBuffer>> {
        self.allocate_claimed(memory, None, bytes, kind)
    }

    /// [`Self::allocate`] of what was claimed before: its size class.
    pub(crate) fn allocate_claimed(
        self: &Arc<Self>,
        memory: &MemoryScope,
        claimed: Option<Reservation>,
        bytes: u64,
        kind: BufferKind,
    ) -> GpuResult<Arc<DeviceBuffer>> {
        let refused = |message: String| GpuError::AllocationRefused {
            consumer: memory.consumer().to_string(),
            bytes,
            message,
        };
        // An injected refusal is the driver's: it comes after the reservation.
        let fault = self.faults.check(Choke::Allocate);
        let refuse = matches!(fault, Some(Fault::Fail));
        self.meet(fault.as_ref().filter(|_| !refuse), || refused(INJECTED.to_string()))?;
        let limit = self.caps.max_buffer_bytes;
        if bytes > limit {
            return Err(GpuError::Limit { what: "the size of a buffer", need: bytes, limit, by_rows: true });
        }
        let size = match size_class(bytes) {
            class if class <= limit => class,
            _ => bytes.next_multiple_of(16).min(limit & !15),
        };
        // In this order every buffer is counted at every moment, and room is not made at the cost of the very buffer that
        // will be reused.
        let reservation = match claimed.filter(|claimed| claimed.bytes() == size) {
            Some(claimed) => claimed,
            None => memory.claim(size)?,
        };
        let take = || if refuse { None } else { self.core.pool.take(kind, size) };
        let recycled = memory.make_room(take);
        let raw = match recycled {
            Some(raw) => raw,
            None => self.create(memory, size, kind, refuse).map_err(|error| self.classify(refused(error)))?,
        };
        Ok(DeviceBuffer::new(raw, kind, Arc::clone(&self.core.pool), reservation))
    }

    /// Creates a buffer; on out-of-memory once more after all free buffers were given up, and again after all that caches
    /// hold. With `refuse` the driver is taken to be out of memory.
    fn create(
        &self,
        memory: &MemoryScope,
        size: u64,
        kind: BufferKind,
        refuse: bool,
    ) -> Result<RawBuffer, String> {
        let attempt =
            || if refuse { Err((true, INJECTED.to_string())) } else { self.create_once(size, kind) };
        let mut result = attempt();
        if matches!(result, Err((true, _))) && self.core.pool.idle_bytes() > 0 {
            memory.make_room(|| self.core.pool.reclaim(u64::MAX));
            result = attempt();
        }
        if matches!(result, Err((true, _))) && memory.ledger().evict(u64::MAX) > 0 {
            memory.make_room(|| self.core.pool.reclaim(u64::MAX));
            result = attempt();
        }
        result.map_err(|(_, message)| message)
    }

    /// Creates a buffer, or says whether memory was short and what was wrong.
    #[expect(clippy::disallowed_methods, reason = "the choke point of allocations")]
    fn create_once(&self, size: u64, kind: BufferKind) -> Result<RawBuffer, (bool, String)> {
        let scopes = ErrorScopes::push(&self.core.device);
        let buffer = self.core.device.create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size,
            usage: kind.usage(),
            mapped_at_creation: kind == BufferKind::Staging,
        });
        match scopes.pop() {
            None => Ok(RawBuffer::new(buffer, &self.core.alive)),
            Some(error) => Err((matches!(error, wgpu::Error::OutOfMemory { .. }), error.to_string())),
        }
    }

    /// Finishes and submits an encoder. Errors in its commands are found here (`KernelFault`); those on the device
    /// only by waiting.
    pub fn submit(self: &Arc<Self>, encoder: wgpu::CommandEncoder) -> GpuResult<Submission> {
        self.submit_for(encoder, true)
    }

    /// `submit` of what later work needs: nobody waits for it alone, so the poll thread is not woken.
    pub(crate) fn submit_ahead(&self, encoder: wgpu::CommandEncoder) -> GpuResult<()> {
        self.submit_for(encoder, false).map(drop)
    }

    /// `submit`; without `notify` the poll thread is left asleep until a mapping is announced.
    #[expect(clippy::disallowed_methods, reason = "the choke point of submissions")]
    fn submit_for(&self, encoder: wgpu::CommandEncoder, notify: bool) -> GpuResult<Submission> {
        let fault = |message| GpuError::KernelFault { kernel: "a submission".to_string(), message };
        self.pass(Choke::Submit, || fault(INJECTED.to_string()))?;
        let progress = &self.core.progress;
        let scopes = ErrorScopes::push(&self.core.device);
        let commands = encoder.finish();
        let submitting = self.core.submitting.lock();
        let index = self.core.queue.submit([commands]);
        if let Some(error) = scopes.pop() {
            drop(submitting);
            let earlier = progress.take_error().map_or_else(String::new, |text| format!("; earlier: {text}"));
            return Err(self.classify(fault(format!("{error}{earlier}"))));
        }
        let sequence = progress.submitted(index, notify);
        drop(submitting);
        match progress.lost_error() {
            Some(error) => Err(error),
            None => Ok(Submission { progress: Arc::clone(progress), sequence }),
        }
    }

    /// The first `bytes` of a `ReadBack` buffer, once the work submitted before has finished; unmaps.
    pub async fn map_read(self: &Arc<Self>, buffer: &Arc<DeviceBuffer>, bytes: u64) -> GpuResult<Vec<u8>> {
        let mut parts = self.read_parts(buffer, vec![(0, bytes)]).await?;
        Ok(parts.pop().unwrap_or_default())
    }

    /// `submit`, and the byte ranges of each read-back buffer after it: one wait.
    pub(crate) async fn submit_and_read(
        self: &Arc<Self>,
        encoder: wgpu::CommandEncoder,
        reads: Vec<Read>,
    ) -> GpuResult<Vec<Vec<u8>>> {
        self.submit_for(encoder, false)?;
        let mut pending = Vec::with_capacity(reads.len());
        for (buffer, ranges) in reads {
            pending.push((self.begin_read(&buffer)?, buffer, ranges));
        }
        let mut parts = Vec::new();
        for (receiver, buffer, ranges) in pending {
            parts.extend(self.end_read(receiver, &buffer, ranges).await?);
        }
        Ok(parts)
    }

    async fn read_parts(
        self: &Arc<Self>,
        buffer: &Arc<DeviceBuffer>,
        ranges: Vec<(u64, u64)>,
    ) -> GpuResult<Vec<Vec<u8>>> {
        let receiver = self.begin_read(buffer)?;
        self.end_read(receiver, buffer, ranges).await
    }

    fn begin_read(&self, buffer: &Arc<DeviceBuffer>) -> GpuResult<oneshot::Receiver<GpuResult<()>>> {
        if buffer.kind() != BufferKind::ReadBack {
            return Err(GpuError::Internal(format!("read-back of a {:?} buffer", buffer.kind())));
        }
        self.pass(Choke::Map, || poll::map_error(INJECTED.to_string()))?;
        let (ticket, receiver) = self.core.progress.announce_map(true)?;
        let receiver =
            receiver.ok_or_else(|| GpuError::Internal("a mapping without a receiver".to_string()))?;
        buffer.set_mapping();
        buffer.raw().map_async(wgpu::MapMode::Read, .., move |result| ticket.finish(result, |_| {}));
        self.core.progress.notify();
        Ok(receiver)
    }

    async fn end_read(
        self: &Arc<Self>,
        receiver: oneshot::Receiver<GpuResult<()>>,
        buffer: &Arc<DeviceBuffer>,
        ranges: Vec<(u64, u64)>,
    ) -> GpuResult<Vec<Vec<u8>>> {
        let aborted = || Err(poll::map_error("the mapping was aborted".to_string()));
        receiver.await.unwrap_or_else(|_| aborted()).map_err(|error| self.classify(error))?;
        let bytes: u64 = ranges.iter().map(|(_, length)| length).sum();
        let buffer = Arc::clone(buffer);
        let copy = move || copy_out(&buffer, &ranges);
        let copied = match tokio::runtime::Handle::try_current() {
            Ok(runtime) if bytes > INLINE_READ_BYTES => runtime
                .spawn_blocking(copy)
                .await
                .map_err(|error| GpuError::Internal(format!("a read-back task failed: {error}")))?,
            _ => copy(),
        };
        copied.map_err(|error| self.classify(error))
    }

    /// The pipeline of a shader, compiled if it is not in the cache. Blocks for tens of milliseconds then: async
    /// callers use [`DeviceContext::compile`]. A shader that is refused, also by a panic in naga, gives
    /// `ShaderRejected`.
    pub fn pipeline(self: &Arc<Self>, source: &ShaderSource) -> GpuResult<Arc<Pipeline>> {
        let broken = self.pass_compile(source)?;
        self.compile_now(source, broken).map(|(pipeline, _)| pipeline)
    }

    fn compile_now(&self, source: &ShaderSource, broken: Option<Broken>) -> GpuResult<(Arc<Pipeline>, bool)> {
        let (device, checks) = (&self.core.device, self.caps.shader_checks);
        let compiled = self.core.pipelines.get_or_compile(device, source, checks, broken);
        let compiled = compiled.map_err(|error| self.classify(error))?;
        self.core.progress.lost_error().map_or(Ok(compiled), Err)
    }

    /// [`DeviceContext::pipeline`] off the async threads; counts what was compiled and how long it took.
    pub async fn compile(
        self: &Arc<Self>,
        source: ShaderSource,
        stats: &LaunchStats,
    ) -> GpuResult<Arc<Pipeline>> {
        let broken = self.pass_compile(&source)?;
        let cached = self.core.pipelines.get(&source, self.caps.shader_checks);
        if let Some(pipeline) = cached.filter(|_| broken.is_none()) {
            return Ok(pipeline);
        }
        let started = Instant::now();
        let context = Arc::clone(self);
        let span =
            tracing::debug_span!(target: "datafusion_wgpu::compile", "gpu_compile", kernel = source.name);
        let work = move || span.in_scope(|| context.compile_now(&source, broken));
        let (pipeline, fresh) = match tokio::runtime::Handle::try_current() {
            Ok(runtime) => runtime
                .spawn_blocking(work)
                .await
                .map_err(|error| GpuError::Internal(format!("a compile task failed: {error}")))??,
            Err(_) => work()?,
        };
        if fresh {
            stats.pipelines_compiled.fetch_add(1, Ordering::Relaxed);
            LaunchStats::add_time(&stats.compile_ns, started);
        }
        Ok(pipeline)
    }

    /// A set of `count` timestamp queries, a used one if there is one; `None` when the driver refuses it.
    pub(crate) fn take_query_set(&self, count: u32) -> Option<wgpu::QuerySet> {
        let used = self.core.query_sets.lock().pop();
        if used.is_some() {
            return used;
        }
        let scopes = ErrorScopes::push(&self.core.device);
        let ty = wgpu::QueryType::Timestamp;
        let set = self.core.device.create_query_set(&wgpu::QuerySetDescriptor { label: None, ty, count });
        // One that is not valid would fail every later launch that takes it.
        scopes.pop().is_none().then_some(set)
    }

    pub(crate) fn put_query_set(&self, set: wgpu::QuerySet) {
        self.core.query_sets.lock().push(set);
    }
}

fn injected_rejection(source: &ShaderSource) -> GpuError {
    GpuError::ShaderRejected { kernel: source.name.clone(), message: INJECTED.to_string() }
}

/// A read-back buffer, and the ranges (offset, length) that are wanted of it.
pub(crate) type Read = (Arc<DeviceBuffer>, Vec<(u64, u64)>);

/// Submitted work. Dropping it is fine.
#[derive(Debug)]
pub struct Submission {
    progress: Arc<Progress>,
    sequence: u64,
}

impl Submission {
    /// Waits until the device has finished the work; `DeviceLost` when it never will.
    pub async fn wait(self) -> GpuResult<()> {
        let closed = || Err(GpuError::DeviceLost("its context was dropped".to_string()));
        self.progress.wait_for(self.sequence).await.unwrap_or_else(|_| closed())
    }
}
