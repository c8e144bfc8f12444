//! The poll thread of a device generation, and what it tells those who wait.
//!
//! wgpu reports finished submissions and mapped buffers only while somebody polls the device. One thread a
//! generation does that: it waits for the oldest unfinished submission, so that a short one is not reported late
//! because a long one was submitted after it, and it is parked while nothing is pending. Should it ever panic, its
//! generation is lost: nobody would be told of anything any more.

use std::any::Any;
use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tokio::sync::{Notify, oneshot};

use crate::error::{GpuError, GpuResult};

use super::exit::{self, Inside};
use super::faults::INJECTED;
use super::pool::BufferPool;

/// Longest wait inside one poll; bounds how late a loss is noticed that nobody reported.
const POLL_TIMEOUT: Duration = Duration::from_secs(2);
/// Pause when a mapping is not ready although all submissions are; doubles up to the longer one.
const MAP_PAUSE: (Duration, Duration) = (Duration::from_micros(200), Duration::from_millis(50));

/// Progress of one device generation, shared by its context, its poll thread and wgpu's callbacks. It holds no
/// device, so that callbacks stored inside wgpu form no cycle.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    state: Mutex<State>,
    wake: Condvar,
    lost: AtomicBool,
    /// Notified when a staging buffer came back, and on loss.
    pub(crate) returned: Notify,
    /// Told of a loss.
    pool: OnceLock<Weak<BufferPool>>,
}

#[derive(Debug, Default)]
struct State {
    submitted: u64,
    completed: u64,
    in_flight: VecDeque<(u64, wgpu::SubmissionIndex)>,
    waiters: Vec<(u64, oneshot::Sender<GpuResult<()>>)>,
    next_map: u64,
    /// Pending mappings; those of read-backs with somebody who waits.
    maps: HashMap<u64, Option<oneshot::Sender<GpuResult<()>>>>,
    loss: Option<String>,
    last_error: Option<String>,
    shutdown: bool,
    /// The poll thread shall panic, for tests.
    panic_next: bool,
}

impl Progress {
    pub(crate) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// The error of a lost generation.
    pub(crate) fn lost_error(&self) -> Option<GpuError> {
        if !self.is_lost() {
            return None;
        }
        self.state.lock().loss.clone().map(GpuError::DeviceLost)
    }

    /// Marks the generation as lost and fails everybody who waits. Called from wgpu's callbacks: calls no wgpu.
    pub(crate) fn mark_lost(&self, message: &str) {
        let (waiters, maps) = {
            let mut state = self.state.lock();
            if state.loss.is_some() {
                return;
            }
            if !state.shutdown {
                tracing::warn!(message, "GPU device lost");
            }
            state.loss = Some(message.to_string());
            self.lost.store(true, Ordering::Release);
            state.in_flight.clear();
            (std::mem::take(&mut state.waiters), std::mem::take(&mut state.maps))
        };
        let error = || Err(GpuError::DeviceLost(message.to_string()));
        waiters.into_iter().for_each(|(_, waiter)| drop(waiter.send(error())));
        maps.into_values().flatten().for_each(|waiter| drop(waiter.send(error())));
        self.wake.notify_all();
        if let Some(pool) = self.pool.get().and_then(Weak::upgrade) {
            pool.lost();
        }
        self.returned.notify_waiters();
    }

    /// The pool whose staging buffers it reports.
    pub(crate) fn set_pool(&self, pool: &Arc<BufferPool>) {
        self.pool.get_or_init(|| Arc::downgrade(pool));
    }

    /// Remembers an error that no scope caught.
    pub(crate) fn remember_error(&self, message: String) {
        self.state.lock().last_error = Some(message);
    }

    /// The last error that no scope caught, once.
    pub(crate) fn take_error(&self) -> Option<String> {
        self.state.lock().last_error.take()
    }

    /// Queues a submission for the poll thread and gives its number. Called in the order of the submissions.
    pub(crate) fn submitted(&self, index: wgpu::SubmissionIndex, notify: bool) -> u64 {
        let mut state = self.state.lock();
        state.submitted += 1;
        let sequence = state.submitted;
        if state.loss.is_none() {
            state.in_flight.push_back((sequence, index));
        }
        if notify {
            self.wake.notify_one();
        }
        sequence
    }

    /// Receives the end of a submission.
    pub(crate) fn wait_for(&self, sequence: u64) -> oneshot::Receiver<GpuResult<()>> {
        let (sender, receiver) = oneshot::channel();
        let mut state = self.state.lock();
        let answer = match &state.loss {
            Some(message) => Err(GpuError::DeviceLost(message.clone())),
            None if state.completed >= sequence => Ok(()),
            None => {
                state.waiters.push((sequence, sender));
                return receiver;
            }
        };
        drop(state);
        // The receiver is still here.
        let _ = sender.send(answer);
        receiver
    }

    /// Announces a mapping; the ticket goes into wgpu's callback. With `wait`, gives the receiver of its end.
    pub(crate) fn announce_map(
        self: &Arc<Self>,
        wait: bool,
    ) -> GpuResult<(MapTicket, Option<oneshot::Receiver<GpuResult<()>>>)> {
        let mut state = self.state.lock();
        if let Some(message) = &state.loss {
            return Err(GpuError::DeviceLost(message.clone()));
        }
        if state.shutdown {
            return Err(GpuError::DeviceLost("its context was dropped".to_string()));
        }
        let id = state.next_map;
        state.next_map += 1;
        let (sender, receiver) = wait.then(oneshot::channel).unzip();
        state.maps.insert(id, sender);
        Ok((MapTicket { progress: Arc::clone(self), id }, receiver))
    }

    /// Wakes the poll thread after `map_async` was called.
    pub(crate) fn notify(&self) {
        self.wake.notify_one();
    }

    /// Lets the poll thread end once everything in flight has finished.
    pub(crate) fn shut_down(&self) {
        self.state.lock().shutdown = true;
        self.wake.notify_all();
    }

    /// Makes the poll thread panic once its wait is over.
    pub(crate) fn end_polling(&self) {
        self.state.lock().panic_next = true;
        self.wake.notify_all();
    }

    fn end_map(&self, id: u64, result: GpuResult<()>) {
        let waiter = self.state.lock().maps.remove(&id);
        if let Some(Some(waiter)) = waiter {
            // A cancelled reader has dropped its receiver.
            let _ = waiter.send(result);
        }
    }

    /// Ends the submissions up to `sequence`, the last of them with `result`.
    fn complete(&self, sequence: u64, result: &GpuResult<()>) {
        let mut ended = Vec::new();
        {
            let mut state = self.state.lock();
            state.completed = state.completed.max(sequence);
            while state.in_flight.front().is_some_and(|(number, _)| *number <= sequence) {
                state.in_flight.pop_front();
            }
            let mut index = 0;
            while index < state.waiters.len() {
                if state.waiters[index].0 <= sequence {
                    ended.push(state.waiters.swap_remove(index));
                } else {
                    index += 1;
                }
            }
        }
        for (number, waiter) in ended {
            let _ = waiter.send(if number == sequence { result.clone() } else { Ok(()) });
        }
    }

    /// Blocks until there is something to poll for; `None` when the thread shall end.
    fn next_work(&self) -> Option<Work> {
        let mut state = self.state.lock();
        loop {
            if exit::is_ending() {
                drop(state);
                Inside::rest();
            }
            if state.panic_next {
                drop(state);
                resume_unwind(Box::new(INJECTED));
            }
            if state.loss.is_some() {
                return None;
            }
            if let Some((sequence, index)) = state.in_flight.front() {
                return Some(Work::Submission(*sequence, index.clone()));
            }
            if state.shutdown {
                return None;
            }
            if !state.maps.is_empty() {
                return Some(Work::Maps(state.maps.len(), state.next_map));
            }
            Inside::outside(|| self.wake.wait(&mut state));
        }
    }

    /// Pauses until new work arrives or the time is over, if the mappings are still the same.
    fn pause(&self, seen: (usize, u64), time: Duration) -> bool {
        let mut state = self.state.lock();
        let same = (state.maps.len(), state.next_map) == seen && state.in_flight.is_empty();
        if same && !state.shutdown && state.loss.is_none() {
            self.wake.wait_for(&mut state, time);
        }
        same
    }
}

/// A pending mapping. Dropping it ends the mapping with an error, so none is forgotten when wgpu drops a callback.
#[derive(Debug)]
pub(crate) struct MapTicket {
    progress: Arc<Progress>,
    id: u64,
}

impl MapTicket {
    /// Passes the outcome on, then tells `then` whether the buffer is mapped. Panics end here, as a loss: they would unwind
    /// through wgpu, past the callbacks that it has yet to call, into whoever polls or submits.
    pub(crate) fn finish(self, result: Result<(), wgpu::BufferAsyncError>, then: impl FnOnce(bool)) {
        let progress = Arc::clone(&self.progress);
        let told = catch_unwind(AssertUnwindSafe(move || {
            let mapped = result.is_ok();
            self.progress.end_map(self.id, result.map_err(|error| map_error(error.to_string())));
            then(mapped);
        }));
        if let Err(panic) = told {
            progress.mark_lost(&format!("a callback panicked: {}", panic_text(panic.as_ref())));
        }
    }
}

impl Drop for MapTicket {
    fn drop(&mut self) {
        self.progress.end_map(self.id, Err(map_error("the mapping was aborted".to_string())));
    }
}

/// The error of a mapping that failed.
pub(crate) fn map_error(message: String) -> GpuError {
    GpuError::KernelFault { kernel: "read-back".to_string(), message }
}

enum Work {
    Submission(u64, wgpu::SubmissionIndex),
    Maps(usize, u64),
}

/// Polls without blocking; callbacks of finished work, loss included, run before it returns.
pub(crate) fn poll_now(device: &wgpu::Device, progress: &Progress) {
    poll(device, wgpu::PollType::Poll, progress);
}

/// Polls; a device error, which wgpu turns into a panic, becomes a loss.
#[expect(clippy::disallowed_methods, reason = "the one place that polls; only the poll thread passes a wait")]
fn poll(device: &wgpu::Device, poll_type: wgpu::PollType, progress: &Progress) -> Option<wgpu::PollError> {
    match catch_unwind(AssertUnwindSafe(|| device.poll(poll_type))) {
        Ok(result) => result.err(),
        Err(panic) => {
            let text = panic_text(panic.as_ref());
            // wgpu-core asserts this after a wait that timed out, when a submitting thread has meanwhile seen the work
            // end: the device is fine, and the next wait returns at once.
            if text.starts_with("If the queue is empty") {
                return Some(wgpu::PollError::Timeout);
            }
            progress.mark_lost(&text);
            None
        }
    }
}

/// The message of a caught panic.
pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without a message").to_string()
}

/// Starts the poll thread. It ends after a loss, or after [`Progress::shut_down`] when all submissions are done; a panic in
/// it is a loss. It owns clones of device and queue, so dropping the context never waits for the device.
pub(crate) fn spawn(
    device: wgpu::Device,
    queue: wgpu::Queue,
    progress: Arc<Progress>,
) -> std::io::Result<std::thread::JoinHandle<()>> {
    std::thread::Builder::new().name("gpu-poll".to_string()).spawn(move || {
        let inside = Inside::enter();
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| run(&device, &progress))) {
            progress.mark_lost(&format!("its poll thread ended: {}", panic_text(panic.as_ref())));
            // Work may be in flight, which whoever drops the last handle would wait for.
            let rest = wgpu::PollType::Wait { submission_index: None, timeout: Some(POLL_TIMEOUT) };
            poll(&device, rest, &progress);
        }
        // Ends what wgpu still holds for callbacks.
        poll_now(&device, &progress);
        drop((queue, device));
        drop(inside);
    })
}

fn run(device: &wgpu::Device, progress: &Progress) {
    let mut pause = MAP_PAUSE.0;
    while let Some(work) = progress.next_work() {
        match work {
            Work::Submission(sequence, index) => {
                pause = MAP_PAUSE.0;
                let wait =
                    wgpu::PollType::Wait { submission_index: Some(index), timeout: Some(POLL_TIMEOUT) };
                match poll(device, wait, progress) {
                    None if progress.is_lost() => {}
                    None => progress.complete(sequence, &Ok(())),
                    Some(wgpu::PollError::Timeout) => {}
                    Some(error) => refuse(device, progress, sequence, &error.to_string()),
                }
            }
            Work::Maps(count, next) => {
                poll_now(device, progress);
                if progress.pause((count, next), pause) {
                    pause = (pause * 2).min(MAP_PAUSE.1);
                } else {
                    pause = MAP_PAUSE.0;
                }
            }
        }
    }
}

/// Ends a submission that wgpu does not know: it was dropped because of an error or a loss.
fn refuse(device: &wgpu::Device, progress: &Progress, sequence: u64, message: &str) {
    poll_now(device, progress);
    if !progress.is_lost() {
        let kernel = "a submission".to_string();
        progress.complete(sequence, &Err(GpuError::KernelFault { kernel, message: message.to_string() }));
    }
}
