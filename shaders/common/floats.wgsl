// Floats as bit patterns: signed integer keys in IEEE total order. The mapping is its own inverse.

fn f_key16(bits: u32) -> i32 {
    let extended = bitcast<i32>(bits << 16u) >> 16u;
    return extended ^ ((extended >> 31u) & 0x7fff);
}

fn f_key32(bits: u32) -> i32 {
    return bitcast<i32>(bits ^ (bitcast<u32>(bitcast<i32>(bits) >> 31u) >> 1u));
}

fn f_key64(bits: u64) -> i64 {
    return bitcast<i64>(bits ^ (bitcast<u64>(bitcast<i64>(bits) >> 63u) >> 1u));
}

// The same after -0 became +0, for comparisons.
fn f_fold16(bits: u32) -> i32 {
    return f_key16(select(bits, 0u, bits == 0x8000u));
}

fn f_fold32(bits: u32) -> i32 {
    return f_key32(select(bits, 0u, bits == 0x80000000u));
}

fn f_fold64(bits: u64) -> i64 {
    return f_key64(select(bits, 0lu, bits == 0x8000000000000000lu));
}
