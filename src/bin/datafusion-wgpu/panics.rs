//! Panics of any thread: those that are dealt with are not printed, and harnesses count all of them instead.

#[cfg(feature = "harness")]
use std::collections::BTreeMap;
#[cfg(feature = "harness")]
use std::panic::PanicHookInfo;
#[cfg(feature = "harness")]
use std::sync::LazyLock;

#[cfg(feature = "harness")]
use parking_lot::Mutex;

/// Panics that are caught and dealt with: a timed-out wait of wgpu-core that meets a submission.
const KNOWN: [&str; 1] = ["If the queue is empty, the current submission index"];

/// Leaves known panics, which are caught, out of what is printed.
pub fn leave_out_known() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let text = info.payload_as_str().unwrap_or_default();
        if !KNOWN.iter().any(|known| text.starts_with(known)) {
            print(info);
        }
    }));
}

#[cfg(feature = "harness")]
static SEEN: LazyLock<Mutex<BTreeMap<String, u64>>> = LazyLock::new(Mutex::default);

/// Counts panics from now on.
#[cfg(feature = "harness")]
pub fn watch() {
    std::panic::set_hook(Box::new(|info| *SEEN.lock().entry(text(info)).or_default() += 1));
}

/// Panics so far, as `crate/file:line text`.
#[cfg(feature = "harness")]
pub fn seen() -> BTreeMap<String, u64> {
    SEEN.lock().clone()
}

/// Whether a panic, as [`seen`] shows it, is one of this crate, or of what it calls on the device, that is not known.
#[cfg(feature = "harness")]
pub fn is_own(text: &str) -> bool {
    let own = ["src/", "wgpu", "naga"].iter().any(|place| text.starts_with(place));
    own && !KNOWN.iter().any(|known| text.contains(known))
}

#[cfg(feature = "harness")]
fn text(info: &PanicHookInfo<'_>) -> String {
    let message = info.payload_as_str().unwrap_or("a panic without a text");
    let message: String = message.lines().next().unwrap_or_default().chars().take(100).collect();
    match info.location() {
        Some(place) => format!("{}:{} {message}", short(place.file()), place.line()),
        None => message,
    }
}

/// A source path without the folders of the registry.
#[cfg(feature = "harness")]
fn short(path: &str) -> &str {
    path.split_once("/registry/src/")
        .and_then(|(_, rest)| rest.split_once('/'))
        .map_or(path, |(_, file)| file)
}
