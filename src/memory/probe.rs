//! The numerics probe: small shaders run once, whose results are compared with the CPU's bit for bit.
//!
//! Vulkan promises little about float arithmetic (f32 division may be wrong in the last places, products may be
//! contracted with sums, denormals may be flushed), and 64-bit integers are emulated by some compilers. What fails
//! here is declined by the support check on this adapter.

use std::sync::Arc;

use crate::error::GpuResult;

use super::budget::{DeviceLedger, MemoryScope};
use super::caps::Numerics;
use super::column::BufferSlice;
use super::device::{BindingKind, BufferKind, DeviceContext, ShaderSource};
use super::download::download;
use super::launch::LaunchScope;

/// Triples of inputs; 64 KiB of parameters hold them.
const TRIPLES: usize = 2048;
const INT64_RESULTS: usize = 12;
const FLOAT_RESULTS: usize = 5;

/// Runs the probe and blocks until it is done. A float part that cannot be run counts as not exact; without the integer
/// part nothing is known of the adapter.
///
/// # Errors
/// The device's own, when the integer part could not be run.
pub(crate) fn run(context: &Arc<DeviceContext>, ledger: &Arc<DeviceLedger>) -> GpuResult<Numerics> {
    let scope = LaunchScope {
        context: Arc::clone(context),
        memory: MemoryScope::new(ledger, "numerics probe", u64::MAX),
        stats: Arc::default(),
    };
    let caps = context.caps();
    let mut numerics = Numerics::default();
    if caps.int64 {
        let inputs = triples(&edges_64(), |random| random);
        let outputs =
            evaluate(&scope, "int64", include_str!("../../shaders/probe/int64.wgsl"), &inputs, INT64_RESULTS);
        numerics.int64_exact = int64_agrees(&inputs, &outputs?);
    }
    if caps.int64 && caps.float64 {
        let inputs = triples(&edges_64(), near_one_64);
        let outputs = evaluate(
            &scope,
            "float64",
            include_str!("../../shaders/probe/float64.wgsl"),
            &inputs,
            FLOAT_RESULTS,
        );
        if let Some(outputs) = checked("float64", outputs) {
            numerics.float64_exact = agrees(&inputs, &outputs, canonical_64, &F64_OPS, |_| true);
            numerics.float_contraction |= contracted(&inputs, &outputs, canonical_64, multiply_add_64);
        }
    }
    let inputs = triples(&edges_32(), near_one_32);
    let outputs =
        evaluate(&scope, "float32", include_str!("../../shaders/probe/float32.wgsl"), &inputs, FLOAT_RESULTS);
    if let Some(outputs) = checked("float32", outputs) {
        let denormal = |values: &[u32]| values.iter().any(|bits| f32::from_bits(*bits).is_subnormal());
        numerics.float32_division_exact =
            agrees(&inputs, &outputs, canonical_32, &F32_OPS[3..], |values| !denormal(values));
        numerics.float32_denormals = agrees(&inputs, &outputs, canonical_32, &F32_OPS[..3], denormal);
        numerics.float_contraction |= contracted(&inputs, &outputs, canonical_32, multiply_add_32);
    }
    Ok(numerics)
}

fn checked<T>(part: &str, outputs: GpuResult<T>) -> Option<T> {
    outputs.inspect_err(|error| tracing::warn!(part, %error, "the numerics probe could not be run")).ok()
}

/// Words that a probe shader reads and writes.
trait Word: bytemuck::Pod + Copy + PartialEq {
    fn truncate(bits: u64) -> Self;
}

impl Word for u64 {
    fn truncate(bits: u64) -> Self {
        bits
    }
}

impl Word for u32 {
    fn truncate(bits: u64) -> Self {
        bits as u32
    }
}

/// Runs a probe shader over the triples; `results` words a triple.
fn evaluate<T: Word>(
    scope: &LaunchScope,
    name: &str,
    wgsl: &str,
    inputs: &[[T; 3]],
    results: usize,
) -> GpuResult<Vec<T>> {
    let context = &scope.context;
    let pipeline = context.pipeline(&ShaderSource {
        name: format!("probe {name}"),
        wgsl: wgsl.to_string(),
        bindings: vec![BindingKind::ReadOnlyStorage, BindingKind::Storage],
    })?;
    let bytes: &[u8] = bytemuck::cast_slice(inputs);
    let input = scope.params(bytes)?;
    let size = (inputs.len() * results * size_of::<T>()) as u64;
    let output = context.allocate(&scope.memory, size, BufferKind::Storage)?;
    let bind = |buffer, size| {
        wgpu::BindingResource::Buffer(wgpu::BufferBinding {
            buffer,
            offset: 0,
            size: std::num::NonZeroU64::new(size),
        })
    };
    let group = context.device().create_bind_group(&wgpu::BindGroupDescriptor {
        label: None,
        layout: &pipeline.layout,
        entries: &[
            wgpu::BindGroupEntry { binding: 0, resource: bind(input.raw(), bytes.len() as u64) },
            wgpu::BindGroupEntry { binding: 1, resource: bind(output.raw(), size) },
        ],
    });
    let mut encoder = context.device().create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
    {
        let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
        pass.set_pipeline(&pipeline.pipeline);
        pass.set_bind_group(0, &group, &[]);
        pass.dispatch_workgroups((inputs.len() as u32).div_ceil(64), 1, 1);
    }
    let slice = BufferSlice { buffer: output, offset: 0, len: size.next_multiple_of(16) };
    let parts = pollster::block_on(download(scope, encoder, &[(&slice, size)]))?;
    let words = parts.iter().flat_map(|part| part.chunks_exact(size_of::<T>()));
    Ok(words.map(bytemuck::pod_read_unaligned).collect())
}

/// Pairs of edge values first, then pseudo-random bit patterns: half of them raw, half shaped by `near`.
fn triples<T: Word>(edges: &[T], near: fn(u64) -> u64) -> Vec<[T; 3]> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = move || {
        // xorshift64 (Marsaglia 2003)
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let pairs = edges.iter().flat_map(|a| edges.iter().map(move |b| (*a, *b)));
    let mut result: Vec<[T; 3]> = pairs.map(|(a, b)| [a, b, T::truncate(random())]).collect();
    while result.len() < TRIPLES {
        result.push([0; 3].map(|_| T::truncate(random())));
        result.push([0; 3].map(|_| T::truncate(near(random()))));
    }
    result.truncate(TRIPLES);
    result
}

fn edges_64() -> Vec<u64> {
    let floats =
        [0.0, 1.0, 1.5, 1.0 / 3.0, f64::MAX, f64::MIN_POSITIVE, f64::INFINITY, f64::NAN, 1e-310, 9.007e15];
    let signed = floats.iter().flat_map(|value| [value.to_bits(), (-value).to_bits()]);
    let integers = [1, 2, 3, u64::MAX, 1 << 63, (1 << 63) - 1, 0xffff_ffff, 1 << 32, 0x5555_5555_5555_5555];
    signed.chain(integers).collect()
}

fn edges_32() -> Vec<u32> {
    let floats =
        [0.0, 1.0, 1.5, 1.0 / 3.0, f32::MAX, f32::MIN_POSITIVE, f32::INFINITY, f32::NAN, 1e-40, 16_777_217.0];
    let signed = floats.iter().flat_map(|value: &f32| [value.to_bits(), (-value).to_bits()]);
    signed.chain([1, 2, 0x007f_ffff, 0x8000_0001, 0x00ff_ffff]).collect()
}

/// A double whose exponent lies within 16 of 1.0's, so that sums cancel and products don't overflow.
fn near_one_64(bits: u64) -> u64 {
    let exponent = 1023 - 16 + ((bits >> 52) & 31);
    (bits & 0x800f_ffff_ffff_ffff) | (exponent << 52)
}

/// The same for a float, in the low half.
fn near_one_32(bits: u64) -> u64 {
    let exponent = 127 - 16 + ((bits >> 23) & 31);
    (bits & 0x807f_ffff) | (exponent << 23)
}

fn int64_agrees(inputs: &[[u64; 3]], outputs: &[u64]) -> bool {
    outputs.len() == inputs.len() * INT64_RESULTS
        && inputs
            .iter()
            .zip(outputs.chunks_exact(INT64_RESULTS))
            .all(|(input, output)| int64_results(input)[..] == *output)
}

/// What `int64.wgsl` computes.
fn int64_results(&[a, b, c]: &[u64; 3]) -> [u64; INT64_RESULTS] {
    let (x, y) = (a as i64, b as i64);
    let shift = (c & 63) as u32;
    let flags = [a < b, x < y, a == b, x <= y, a > b, x > y];
    [
        a.wrapping_add(b),
        a.wrapping_sub(b),
        a.wrapping_mul(b),
        a << shift,
        a >> shift,
        (x >> shift) as u64,
        (a & b) ^ (b | c),
        x.wrapping_neg() as u64,
        x.wrapping_mul(y).wrapping_add(c as i64) as u64,
        (a & 0xffff_ffff) * (b >> 32),
        flags.iter().enumerate().map(|(bit, flag)| u64::from(*flag) << bit).sum(),
        a.max(b) ^ (x.min(y) as u64),
    ]
}

/// A result word of a float shader, and what it holds: an operation on bit patterns.
type Op<T> = (usize, fn(T, T) -> T);

const F64_OPS: [Op<u64>; 4] = [
    (0, |a, b| (f64::from_bits(a) + f64::from_bits(b)).to_bits()),
    (1, |a, b| (f64::from_bits(a) - f64::from_bits(b)).to_bits()),
    (2, |a, b| (f64::from_bits(a) * f64::from_bits(b)).to_bits()),
    (3, |a, b| (f64::from_bits(a) / f64::from_bits(b)).to_bits()),
];

const F32_OPS: [Op<u32>; 4] = [
    (0, |a, b| (f32::from_bits(a) + f32::from_bits(b)).to_bits()),
    (1, |a, b| (f32::from_bits(a) - f32::from_bits(b)).to_bits()),
    (2, |a, b| (f32::from_bits(a) * f32::from_bits(b)).to_bits()),
    (3, |a, b| (f32::from_bits(a) / f32::from_bits(b)).to_bits()),
];

/// All NaNs as one: their payloads are nobody's promise.
fn canonical_64(bits: u64) -> u64 {
    if f64::from_bits(bits).is_nan() { f64::NAN.to_bits() } else { bits }
}

fn canonical_32(bits: u32) -> u32 {
    if f32::from_bits(bits).is_nan() { f32::NAN.to_bits() } else { bits }
}

/// Whether the operations give what the CPU gives, for those (operand, operand, result) that count.
fn agrees<T: Word>(
    inputs: &[[T; 3]],
    outputs: &[T],
    canonical: fn(T) -> T,
    ops: &[Op<T>],
    counts: impl Fn(&[T]) -> bool,
) -> bool {
    outputs.len() == inputs.len() * FLOAT_RESULTS
        && inputs.iter().zip(outputs.chunks_exact(FLOAT_RESULTS)).all(|(&[a, b, _], output)| {
            ops.iter().all(|(word, op)| {
                let expected = canonical(op(a, b));
                !counts(&[a, b, expected]) || canonical(output[*word]) == expected
            })
        })
}

/// `b * c + a` with two roundings and with one.
fn multiply_add_64([a, b, c]: [u64; 3]) -> [u64; 2] {
    let [a, b, c] = [a, b, c].map(f64::from_bits);
    [(b * c + a).to_bits(), b.mul_add(c, a).to_bits()]
}

fn multiply_add_32([a, b, c]: [u32; 3]) -> [u32; 2] {
    let [a, b, c] = [a, b, c].map(f32::from_bits);
    [(b * c + a).to_bits(), b.mul_add(c, a).to_bits()]
}

/// Whether some `b * c + a` was rounded once.
fn contracted<T: Word>(
    inputs: &[[T; 3]],
    outputs: &[T],
    canonical: fn(T) -> T,
    multiply_add: fn([T; 3]) -> [T; 2],
) -> bool {
    inputs.iter().zip(outputs.chunks_exact(FLOAT_RESULTS)).any(|(input, output)| {
        let [twice, once] = multiply_add(*input).map(canonical);
        twice != once && canonical(output[4]) == once
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comparisons_can_fail() {
        let inputs = triples(&edges_64(), near_one_64);
        assert_eq!(inputs.len(), TRIPLES);
        let results = |input: &[u64; 3]| {
            let mut words = F64_OPS.map(|(_, op)| op(input[0], input[1])).to_vec();
            words.push(multiply_add_64(*input)[0]);
            words
        };
        let mut outputs: Vec<u64> = inputs.iter().flat_map(results).collect();
        assert!(agrees(&inputs, &outputs, canonical_64, &F64_OPS, |_| true));
        assert!(!contracted(&inputs, &outputs, canonical_64, multiply_add_64));
        for (input, output) in inputs.iter().zip(outputs.chunks_exact_mut(FLOAT_RESULTS)) {
            output[4] = multiply_add_64(*input)[1];
        }
        assert!(contracted(&inputs, &outputs, canonical_64, multiply_add_64));
        outputs[5 * 1000] ^= 1;
        assert!(!agrees(&inputs, &outputs, canonical_64, &F64_OPS, |_| true));

        let mut words: Vec<u64> = inputs.iter().flat_map(int64_results).collect();
        assert!(int64_agrees(&inputs, &words));
        words[12 * 999 + 7] ^= 1 << 40;
        assert!(!int64_agrees(&inputs, &words));
    }
}
