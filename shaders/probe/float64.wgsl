// f64 arithmetic of triples of bit patterns (a, b, c), for comparison with the CPU. Five results a triple.

@group(0) @binding(0) var<storage, read> input: array<u64>;
@group(0) @binding(1) var<storage, read_write> output: array<u64>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let i = id.x;
    if (i >= arrayLength(&input) / 3u) {
        return;
    }
    let a = bitcast<f64>(input[3u * i]);
    let b = bitcast<f64>(input[3u * i + 1u]);
    let c = bitcast<f64>(input[3u * i + 2u]);
    let o = 5u * i;
    output[o] = bitcast<u64>(a + b);
    output[o + 1u] = bitcast<u64>(a - b);
    output[o + 2u] = bitcast<u64>(a * b);
    output[o + 3u] = bitcast<u64>(a / b);
    // Of a product that nobody else wants: one that is stored too may be kept from contraction.
    output[o + 4u] = bitcast<u64>(b * c + a);
}
