// An unsigned integer rounded to 53 significant bits, ties to even, as a conversion to a double does; up to 2^64.
fn round53(magnitude: u64) -> vec2<u64> {
    let zeros = countLeadingZeros(u32(magnitude >> 32u));
    let shift = select(0u, 11u - zeros, zeros < 11u);
    let kept = magnitude >> shift;
    let rest = magnitude - (kept << shift);
    let half = (1lu << shift) >> 1u;
    let up = (shift != 0u) & ((rest > half) | ((rest == half) & ((kept & 1lu) != 0lu)));
    let rounded = kept + select(0lu, 1lu, up);
    let carry = (shift == 11u) & (rounded == 0x20000000000000lu);
    return vec2<u64>(rounded << shift, select(0lu, 1lu, carry));
}

fn round53_signed(x: i64) -> vec2<u64> {
    let negative = x < 0li;
    let bits = bitcast<u64>(x);
    let r = round53(select(bits, ~bits + 1lu, negative));
    return select(r, w_neg(r), negative);
}
