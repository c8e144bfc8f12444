// 64-bit integer operations of triples (a, b, c), for comparison with the CPU. Twelve words of results a triple.

@group(0) @binding(0) var<storage, read> input: array<u64>;
@group(0) @binding(1) var<storage, read_write> output: array<u64>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let i = id.x;
    if (i >= arrayLength(&input) / 3u) {
        return;
    }
    let a = input[3u * i];
    let b = input[3u * i + 1u];
    let c = input[3u * i + 2u];
    let x = bitcast<i64>(a);
    let y = bitcast<i64>(b);
    let shift = u32(c & 63lu);
    let o = 12u * i;
    output[o] = a + b;
    output[o + 1u] = a - b;
    output[o + 2u] = a * b;
    output[o + 3u] = a << shift;
    output[o + 4u] = a >> shift;
    output[o + 5u] = bitcast<u64>(x >> shift);
    output[o + 6u] = (a & b) ^ (b | c);
    output[o + 7u] = bitcast<u64>(-x);
    output[o + 8u] = bitcast<u64>(x * y + bitcast<i64>(c));
    output[o + 9u] = u64(u32(a & 0xfffffffflu)) * u64(u32(b >> 32u));
    output[o + 10u] = select(0lu, 1lu, a < b) | select(0lu, 2lu, x < y) | select(0lu, 4lu, a == b)
        | select(0lu, 8lu, x <= y) | select(0lu, 16lu, a > b) | select(0lu, 32lu, x > y);
    output[o + 11u] = max(a, b) ^ bitcast<u64>(min(x, y));
}
