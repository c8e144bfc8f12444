//! Deliberate misuse of Vulkan, by which `make validation` sees that the validation layer is at work.

#![cfg(any(target_os = "linux", target_os = "android", target_os = "windows"))]

use wgpu::hal::api::Vulkan;

use super::*;

/// One mistake for each kind of check: a shader, a call, a missing barrier. Nothing of it is executed.
#[test]
#[ignore = "only the Vulkan validation layer sees anything wrong: make validation"]
fn misuse() {
    let device = own_device();
    let scope = scope(&device);
    let context = &scope.context;
    // Vulkan counts the bits of 32-bit integers only; naga lets it through.
    let wgsl = "@group(0) @binding(0) var<storage, read_write> data: array<u64>;
        @compute @workgroup_size(1)
        fn main() { data[0] = countOneBits(data[1]); }";
    let bindings = vec![BindingKind::Storage];
    context.pipeline(&ShaderSource { name: "misuse".to_string(), wgsl: wgsl.to_string(), bindings }).unwrap();

    let buffer = context.allocate(&scope.memory, 64, BufferKind::Storage).unwrap();
    let mut encoder = new_encoder(&scope);
    // SAFETY: the handles outlive the recording, and the commands are never submitted.
    unsafe {
        let device = context.device().as_hal::<Vulkan>().expect("a Vulkan adapter");
        let buffer = buffer.raw().as_hal::<Vulkan>().expect("a Vulkan buffer").raw_handle();
        encoder.as_hal_mut::<Vulkan, _, _>(|encoder| {
            let commands = encoder.expect("a Vulkan encoder").raw_handle();
            // No multiple of 4; then twice the same bytes with nothing in between.
            device.raw_device().cmd_fill_buffer(commands, buffer, 34, 16, 0);
            device.raw_device().cmd_fill_buffer(commands, buffer, 0, 16, 0);
            device.raw_device().cmd_fill_buffer(commands, buffer, 0, 16, 1);
        });
    }
    drop(encoder);
}
