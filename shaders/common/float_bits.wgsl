// Binary32 and binary64 as bit patterns: taking them apart, rounding into them, and conversions. All in integers, so that
// denormals, -0 and NaN come out alike on every adapter. Rounding is to nearest, ties to even.

fn fb_clz(x: u64) -> u32 {
    let high = u32(x >> 32u);
    let low = u32(x & 0xfffffffflu);
    return select(countLeadingZeros(high), 32u + countLeadingZeros(low), high == 0u);
}

// x >> n for any n, with bit 0 set where a bit was lost.
fn fb_jam(x: u64, n: u32) -> u64 {
    let shift = min(n, 63u);
    let kept = x >> shift;
    return kept | select(0lu, 1lu, (kept << shift) != x);
}

fn fb_nan64(b: u64) -> bool {
    return (b & 0x7ffffffffffffffflu) > 0x7ff0000000000000lu;
}

fn fb_nan32(b: u32) -> bool {
    return (b & 0x7fffffffu) > 0x7f800000u;
}

// NaN with the quiet bit clear.
fn fb_signaling64(b: u64) -> bool {
    return fb_nan64(b) & ((b & 0x0008000000000000lu) == 0lu);
}

fn fb_signaling32(b: u32) -> bool {
    return fb_nan32(b) & ((b & 0x00400000u) == 0u);
}

// A magnitude m / 2^63 * 2^(e - 1023) with the leading one of m at bit 63; m = 0 for zero. e = 2047 for infinity and NaN.
struct FbParts {
    e: i32,
    m: u64,
}

fn fb_open(b: u64) -> FbParts {
    let e = i32(u32(b >> 52u) & 0x7ffu);
    let fraction = b & 0x000ffffffffffffflu;
    let zeros = fb_clz(fraction);
    let denormal = fraction << (zeros & 63u);
    let normal = (fraction | 0x0010000000000000lu) << 11u;
    return FbParts(select(e, 12 - bitcast<i32>(zeros), e == 0), select(normal, denormal, e == 0));
}

// The double nearest to m / 2^63 * 2^(e - 1023); m is 0 or has its leading one at bit 63, and may be jammed.
fn fb_pack64(sign: u64, e: i32, m: u64) -> u64 {
    // 53 bits and two to round by; fewer for denormals.
    let j = fb_jam(m, bitcast<u32>(10 - min(e, 1)));
    let q = (j + 1lu + ((j >> 2u) & 1lu)) >> 2u;
    let r = (u64(bitcast<u32>(max(e, 1) - 1)) << 52u) + q;
    let finite = select(r, 0x7ff0000000000000lu, e > 2046);
    return sign | select(finite, 0lu, m == 0lu);
}

// The single nearest to m / 2^63 * 2^(e - 127).
fn fb_pack32(sign: u32, e: i32, m: u64) -> u32 {
    let j = fb_jam(m, bitcast<u32>(39 - min(e, 1)));
    let q = u32((j + 1lu + ((j >> 2u) & 1lu)) >> 2u);
    let r = (bitcast<u32>(max(e, 1) - 1) << 23u) + q;
    let finite = select(r, 0x7f800000u, e > 254);
    return sign | select(finite, 0u, m == 0lu);
}

// Single to double: exact; a NaN becomes quiet and keeps sign and payload.
fn fb_widen(b: u32) -> u64 {
    let sign = u64(b & 0x80000000u) << 32u;
    let e = (b >> 23u) & 0xffu;
    let fraction = b & 0x007fffffu;
    let zeros = countLeadingZeros(fraction);
    let normal = (u64(e + 896u) << 52u) | (u64(fraction) << 29u);
    // Of a denormal the leading one goes.
    let scaled = (fraction << ((zeros - 8u) & 31u)) & 0x007fffffu;
    let denormal = (u64(905u - zeros) << 52u) | (u64(scaled) << 29u);
    let small = select(denormal, 0lu, fraction == 0u);
    let special = select(0x7ff0000000000000lu, 0x7ff8000000000000lu | (u64(fraction) << 29u), fraction != 0u);
    return sign | select(select(normal, small, e == 0u), special, e == 255u);
}

// Half to single: exact; a NaN becomes quiet and keeps sign and payload.
fn fb_widen16(b: u32) -> u32 {
    let sign = (b & 0x8000u) << 16u;
    let e = (b >> 10u) & 0x1fu;
    let fraction = b & 0x03ffu;
    let zeros = countLeadingZeros(fraction);
    let normal = ((e + 112u) << 23u) | (fraction << 13u);
    // Of a denormal the leading one goes.
    let scaled = (fraction << ((zeros - 8u) & 31u)) & 0x007fffffu;
    let small = select(((134u - zeros) << 23u) | scaled, 0u, fraction == 0u);
    let special = select(0x7f800000u, 0x7fc00000u | (fraction << 13u), fraction != 0u);
    return sign | select(select(normal, small, e == 0u), special, e == 31u);
}

// Double to single: rounded; a NaN becomes quiet and keeps sign and the payload's high bits.
fn fb_narrow(b: u64) -> u32 {
    let sign = u32(b >> 32u) & 0x80000000u;
    let parts = fb_open(b);
    let nan = sign | 0x7fc00000u | u32((b >> 29u) & 0x003ffffflu);
    let rounded = fb_pack32(sign, select(parts.e - 896, 255, parts.e == 2047), parts.m);
    return select(rounded, nan, fb_nan64(b));
}

fn fb_double(sign: u64, magnitude: u64) -> u64 {
    let zeros = fb_clz(magnitude);
    return fb_pack64(sign, 1086 - bitcast<i32>(zeros), magnitude << (zeros & 63u));
}

fn fb_single(sign: u32, magnitude: u64) -> u32 {
    let zeros = fb_clz(magnitude);
    return fb_pack32(sign, 190 - bitcast<i32>(zeros), magnitude << (zeros & 63u));
}

fn fb_magnitude(x: i64) -> u64 {
    let bits = bitcast<u64>(x);
    return select(bits, ~bits + 1lu, (bits >> 63u) != 0lu);
}

// Integers to the nearest float.
fn fb_double_signed(x: i64) -> u64 {
    return fb_double(bitcast<u64>(x) & 0x8000000000000000lu, fb_magnitude(x));
}

fn fb_single_signed(x: i64) -> u32 {
    return fb_single(u32(bitcast<u64>(x) >> 32u) & 0x80000000u, fb_magnitude(x));
}

fn fb_double_unsigned(x: u64) -> u64 {
    return fb_double(0lu, x);
}

fn fb_single_unsigned(x: u64) -> u32 {
    return fb_single(0u, x);
}

// A double without its fraction as an integer, and whether it lies beyond a type: magnitudes of at most `most`, or
// `least` for negative values.
struct FbWhole {
    v: i64,
    outside: bool,
}

fn fb_whole(b: u64, most: u64, least: u64) -> FbWhole {
    let e = i32(u32(b >> 52u) & 0x7ffu) - 1023;
    let significand = (b & 0x000ffffffffffffflu) | 0x0010000000000000lu;
    let right = significand >> bitcast<u32>(clamp(52 - e, 0, 63));
    let left = significand << bitcast<u32>(clamp(e - 52, 0, 11));
    let magnitude = select(right, left, e > 52);
    let negative = (b >> 63u) != 0lu;
    let v = select(magnitude, ~magnitude + 1lu, negative);
    return FbWhole(bitcast<i64>(v), (e > 63) | (magnitude > select(most, least, negative)));
}
