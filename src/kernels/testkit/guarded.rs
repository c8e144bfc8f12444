//! Devices and scopes whose kernels are watched: who writes outside of a buffer fails the test.

use std::ops::Deref;
use std::sync::Arc;

use crate::memory::guards::Guards;
use crate::memory::{GpuDevice, LaunchScope, ShaderChecks, testing};

/// The shared device with guard bands around what kernels write.
pub(crate) fn device() -> Arc<GpuDevice> {
    testing::device().with_guards()
}

/// What every kernel must give the same answers under, besides the default.
pub(crate) const CHECKS: [ShaderChecks; 2] = [ShaderChecks::All, ShaderChecks::None];

/// The device under other checks of the shader compiler.
pub(crate) fn with_checks(checks: ShaderChecks) -> Arc<GpuDevice> {
    let device = device();
    let mut caps = device.caps().as_ref().clone();
    caps.shader_checks = checks;
    device.with_caps(caps)
}

/// A launch scope whose guard bands are checked when it is dropped: a test whose kernels write outside of their buffers fails.
pub(crate) struct GuardedScope {
    scope: LaunchScope,
    guards: Arc<Guards>,
}

/// A scope on a device made by [`device`].
pub(crate) fn scope(device: &Arc<GpuDevice>) -> GuardedScope {
    let guards = Arc::clone(device.guards().expect("a device with guard bands"));
    GuardedScope { scope: testing::scope(device), guards }
}

impl Deref for GuardedScope {
    type Target = LaunchScope;

    fn deref(&self) -> &LaunchScope {
        &self.scope
    }
}

impl Drop for GuardedScope {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        // The device's own thread answers, so that waiting here is no deadlock.
        if let Err(message) = pollster::block_on(self.guards.check()) {
            panic!("{message}");
        }
    }
}

/// The watching itself: kernels and bindings that are wrong on purpose.
mod tests {
    use crate::error::GpuResult;
    use crate::kernels::launch::{Grid, allocate, argument_slices, bind_slices, dispatch};
    use crate::kernels::shader::ArgumentBlock;
    use crate::memory::guards::BAND;
    use crate::memory::{BindingKind, BufferSlice, ShaderSource};

    use super::*;

    const COUNT: &str = "@group(0) @binding(0) var<storage, read> args: array<u32>;
@group(0) @binding(1) var<storage, read_write> output: array<u32>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if (id.x < args[0]) { output[id.x] = id.x; }
}";

    /// Writes 0, 1, 2, ... into so many words of the slice, which may have fewer.
    async fn count(scope: &LaunchScope, output: &BufferSlice, words: u32) -> GpuResult<()> {
        let bindings = vec![BindingKind::ReadOnlyStorage, BindingKind::Storage];
        let source = ShaderSource { name: "count".to_owned(), wgsl: COUNT.to_owned(), bindings };
        let pipeline = scope.context.compile(source, &scope.stats).await?;
        let args = argument_slices(scope, &[ArgumentBlock::of(vec![words])])?;
        let group = bind_slices(scope, &pipeline, &[&args[0], output]);
        let mut encoder = scope.context.device().create_command_encoder(&Default::default());
        let grid = Grid { size: [words.div_ceil(64), 1, 1] };
        dispatch(scope, &mut scope.timer().pass(&mut encoder, "count"), &pipeline, &group, grid);
        scope.context.submit(encoder)?.wait().await
    }

    /// Lets a right launch and one of so many words over `slice` of a buffer of 64 bytes run, and checks.
    async fn found(
        device: &Arc<GpuDevice>,
        slice: impl Fn(BufferSlice) -> BufferSlice,
        words: u32,
    ) -> Result<usize, String> {
        let scope = testing::scope(device);
        let [right, target] = ["right", "target"].map(|name| allocate(&scope, name, 64).expect("buffer"));
        count(&scope, &right, 16).await.expect("launch");
        drop(right);
        count(&scope, &slice(target), words).await.expect("launch");
        device.guards().expect("guard bands").check().await
    }

    #[tokio::test]
    async fn what_is_written_outside_is_found() {
        for checks in [ShaderChecks::Bounds, ShaderChecks::All, ShaderChecks::None] {
            let device = with_checks(checks);
            assert_eq!(found(&device, |slice| slice, 16).await, Ok(2), "{checks:?}");
            // A row count that is wrong.
            let past = found(&device, |slice| slice, 19).await.expect_err("past the end");
            assert!(
                past.starts_with(
                    "a kernel wrote outside of its buffers\n\
                     buffer 'target' of 64 bytes: 3 words, at bytes 64 to 72; the first is 0x00000010 and was 0x"
                ),
                "{checks:?}: {past}"
            );
            assert_eq!(past.lines().count(), 2, "{past}");
            // A binding that is wrong.
            let early = |slice: BufferSlice| BufferSlice { offset: slice.offset - 256, ..slice };
            let before = found(&device, early, 16).await.expect_err("before the start");
            assert!(before.contains(" 16 words, at bytes -256 to -196; "), "{checks:?}: {before}");
            // Further than the band reaches.
            let far = found(&device, |slice| slice, 100_000).await.expect_err("far past the end");
            assert!(far.contains(&format!(" {} words, at bytes 64 to ", BAND / 4)), "{checks:?}: {far}");
            assert_eq!(found(&device, |slice| slice, 16).await, Ok(2), "every finding is told once");
        }
    }

    #[tokio::test]
    async fn buffers_in_use_are_not_passed_over() {
        let device = device();
        let scope = testing::scope(&device);
        let guards = device.guards().expect("guard bands");
        let buffer = allocate(&scope, "late", 64).expect("buffer");
        count(&scope, &buffer, 17).await.expect("launch");
        assert_eq!(
            guards.check().await,
            Err("1 guarded buffers are still in use, and were not checked".into())
        );
        drop(buffer);
        assert!(guards.check().await.expect_err("one word").contains("'late'"));
        assert_eq!(guards.check().await, Ok(0));
    }

    /// A test need not ask for the check.
    #[tokio::test]
    #[should_panic(expected = "buffer 'short' of 16 bytes: 1 words, at bytes 16 to 16")]
    async fn a_scope_checks_when_it_is_dropped() {
        let scope = scope(&device());
        let short = allocate(&scope, "short", 4).expect("buffer");
        count(&scope, &short, 5).await.expect("launch");
    }

    /// On other devices nothing is added to a buffer.
    #[test]
    fn no_bands_without_being_asked() {
        let scope = testing::scope(&testing::device());
        let buffer = allocate(&scope, "plain", 64).expect("buffer");
        assert_eq!((buffer.offset, buffer.len, buffer.bound_len()), (0, 64, 64));
        assert_eq!(buffer.buffer.size(), 256, "the smallest size class");
    }

    /// What a lost device held can't be read any more.
    #[tokio::test]
    async fn a_lost_device_is_passed_over() {
        let device = testing::own_device().with_guards();
        let scope = testing::scope(&device);
        drop(allocate(&scope, "lost", 64).expect("buffer"));
        device.lose();
        assert_eq!(device.guards().expect("guard bands").check().await, Ok(0));
    }
}
