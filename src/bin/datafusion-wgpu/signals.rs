//! Signals that ask the program to end.

use datafusion::error::Result;

/// Waits for a signal that asks the program to end; the exit code that a shell gives for it.
#[cfg(unix)]
pub fn interruption() -> Result<impl Future<Output = u8>> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => 130,
            _ = terminate.recv() => 143,
            _ = hangup.recv() => 129,
        }
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
