// What a conversion to a double adds to an integer of this magnitude: it rounds to 53 significant bits, ties to even,
// so the result differs by at most half a unit in the last place, 2^10.
fn round53_delta(magnitude: u64) -> i32 {
    let zeros = countLeadingZeros(u32(magnitude >> 32u));
    let shift = select(0u, 11u - zeros, zeros < 11u);
    let low = u32(magnitude & 0xfffffffflu);
    let unit = 1u << shift;
    let rest = low & (unit - 1u);
    let half = unit >> 1u;
    let odd = ((low >> shift) & 1u) != 0u;
    let up = (rest > half) | ((rest == half) & odd & (half != 0u));
    return select(0i, bitcast<i32>(unit), up) - bitcast<i32>(rest);
}

fn round53(x: u64) -> vec2<u64> {
    return w_add(vec2<u64>(x, 0lu), w_from(i64(round53_delta(x))));
}

fn round53_signed(x: i64) -> vec2<u64> {
    let negative = x < 0li;
    let bits = bitcast<u64>(x);
    let delta = round53_delta(select(bits, ~bits + 1lu, negative));
    return w_add(w_from(x), w_from(i64(select(delta, -delta, negative))));
}
