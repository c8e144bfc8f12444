//! What the views of one device generation share: device, queue, pool, pipelines, progress.

use std::sync::Arc;

use futures::FutureExt;
use parking_lot::Mutex;

use crate::error::GpuError;

use super::budget::PeakMeter;
use super::exit;
use super::pipeline::PipelineCache;
use super::poll::{self, Progress};
use super::pool::BufferPool;

/// Error scopes for all kinds of errors of this thread. Guards of wgpu cannot be sent, so no await can lie between.
pub(crate) struct ErrorScopes {
    guards: [wgpu::ErrorScopeGuard; 3],
}

impl ErrorScopes {
    pub(crate) fn push(device: &wgpu::Device) -> Self {
        let push = |filter| device.push_error_scope(filter);
        ErrorScopes {
            guards: [
                push(wgpu::ErrorFilter::Internal),
                push(wgpu::ErrorFilter::Validation),
                push(wgpu::ErrorFilter::OutOfMemory),
            ],
        }
    }

    /// The first error since `push`.
    pub(crate) fn pop(self) -> Option<wgpu::Error> {
        let [internal, validation, memory] = self.guards;
        // Scopes end in reverse order; on native backends the futures are ready at once.
        let errors = [memory, validation, internal].map(|guard| guard.pop().now_or_never().flatten());
        errors.into_iter().flatten().next()
    }
}

/// What the views of one generation share.
#[derive(Debug)]
pub(crate) struct ContextCore {
    pub(super) device: wgpu::Device,
    pub(super) queue: wgpu::Queue,
    pub(super) generation: u64,
    pub(super) progress: Arc<Progress>,
    pub(super) pool: Arc<BufferPool>,
    pub(super) pipelines: PipelineCache,
    /// Makes the numbers of submissions follow their order in the queue.
    pub(super) submitting: Mutex<()>,
    pub(super) query_sets: Mutex<Vec<wgpu::QuerySet>>,
    /// Counts the buffers that exist.
    pub(super) alive: Arc<PeakMeter>,
}

impl ContextCore {
    /// Takes an open device over and starts its poll thread.
    pub(crate) fn new(
        device: wgpu::Device,
        queue: wgpu::Queue,
        generation: u64,
        idle_cap: u64,
        alive: &Arc<PeakMeter>,
    ) -> std::io::Result<Arc<Self>> {
        let progress = Arc::new(Progress::default());
        let lost = Arc::clone(&progress);
        device.set_device_lost_callback(move |reason, message| {
            lost.mark_lost(&format!("{reason:?} {message}"))
        });
        let uncaught = Arc::clone(&progress);
        device.on_uncaptured_error(Arc::new(move |error: wgpu::Error| {
            // Buffers of a lost device are unmapped and dropped like others, and wgpu objects.
            if uncaught.is_lost() {
                tracing::debug!(%error, "GPU error after the loss of the device");
            } else {
                tracing::error!(%error, "GPU error outside of any scope");
            }
            uncaught.remember_error(error.to_string());
        }));
        exit::register();
        poll::spawn(device.clone(), queue.clone(), Arc::clone(&progress))?;
        let pool = BufferPool::new(Arc::clone(&progress), idle_cap);
        Ok(Arc::new(ContextCore {
            device,
            queue,
            generation,
            progress,
            pool,
            pipelines: PipelineCache::default(),
            submitting: Mutex::new(()),
            query_sets: Mutex::new(Vec::new()),
            alive: Arc::clone(alive),
        }))
    }

    /// Like `is_lost`, and notices a loss that nobody was told of. Takes microseconds.
    pub(crate) fn check_lost(&self) -> bool {
        if !self.progress.is_lost() {
            poll::poll_now(&self.device, &self.progress);
        }
        if !self.progress.is_lost() && !self.answers() {
            self.progress.mark_lost("destroyed");
        }
        self.progress.is_lost()
    }

    /// Whether the device still answers. Someone's `destroy` is reported only after the work in flight, and until
    /// then wgpu keeps all errors to itself: also that of a buffer without any usage.
    #[expect(clippy::disallowed_methods, reason = "creates nothing: the buffer is refused")]
    fn answers(&self) -> bool {
        let scopes = ErrorScopes::push(&self.device);
        let usage = wgpu::BufferUsages::empty();
        let descriptor = wgpu::BufferDescriptor { label: None, size: 16, usage, mapped_at_creation: false };
        drop(self.device.create_buffer(&descriptor));
        scopes.pop().is_some()
    }

    /// Destroys the device, as a driver would.
    pub(crate) fn lose(&self) {
        self.device.destroy();
        self.check_lost();
    }

    /// The loss, if that is behind an error, else the error.
    pub(super) fn classify(&self, error: GpuError) -> GpuError {
        self.check_lost();
        self.progress.lost_error().unwrap_or(error)
    }
}

impl Drop for ContextCore {
    fn drop(&mut self) {
        self.progress.shut_down();
    }
}
