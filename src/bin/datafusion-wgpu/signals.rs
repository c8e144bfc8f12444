//! Signals that ask the program to end.

use std::io::{self, Write};
use std::sync::atomic::{AtomicU8, Ordering};

use datafusion::error::Result;

/// The exit code of the signal that came; 0 for none.
static CAME: AtomicU8 = AtomicU8::new(0);

/// Waits for a signal that asks the program to end; the exit code that a shell gives for it.
#[cfg(unix)]
pub fn interruption() -> Result<impl Future<Output = u8>> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    Ok(async move {
        let code = tokio::select! {
            _ = interrupt.recv() => 130,
            _ = terminate.recv() => 143,
            _ = hangup.recv() => 129,
        };
        CAME.store(code, Ordering::SeqCst);
        code
    })
}

/// Waits for Ctrl-C; the exit code.
#[cfg(not(unix))]
pub fn interruption() -> Result<impl Future<Output = u8>> {
    Ok(async {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
        130
    })
}

/// Ends the process after a signal, without exit handlers: work may still be inside a driver, whose own threads would meet what
/// the handlers of its libraries free. Comes back when there was no signal.
pub fn leave() {
    let code = CAME.load(Ordering::SeqCst);
    if code == 0 {
        return;
    }
    // Nobody may be reading any more.
    drop(io::stdout().flush());
    drop(io::stderr().flush());
    // SAFETY: ends the process; files were written and closed before.
    #[cfg(unix)]
    unsafe {
        libc::_exit(code.into());
    }
}
