// Moves rows into the order of an 8-bit digit of their keys; rows of one digit stay in their order. A tile takes its keys in rounds of
// 2,048, eight an invocation. First 256 at a time are ranked: an invocation sets its bit in its digit's mask, and the bits below it are its
// rank. Then the round is put into order in the workgroup's memory, so that neighbours write next to each other. No subgroups are
// needed, and no workgroup waits for another.

// args: 1 = keys, 2 = keys of a tile, 3 = tiles, 4 = first bit of the digit, 5 = bits that a key needs to be moved, 6 = 1: `rows` has the
// keys' rows, whose numbers are their places otherwise; 2: `keys_out` gets the keys.
@group(0) @binding(0) var<storage, read> args: array<u32>;
@group(0) @binding(1) var<storage, read> keys: array<u32>;
@group(0) @binding(2) var<storage, read> rows: array<u32>;
// The scanned counts of the histogram, within blocks of 2,048 and of the blocks.
@group(0) @binding(3) var<storage, read> starts: array<u32>;
@group(0) @binding(4) var<storage, read> blocks: array<u32>;
@group(0) @binding(5) var<storage, read_write> keys_out: array<u32>;
@group(0) @binding(6) var<storage, read_write> rows_out: array<u32>;
// Where each digit starts, and where the last ends.
@group(0) @binding(7) var<storage, read_write> offsets: array<u32>;

// While keys are ranked: bit b of word w of digit d's mask, at w * 256 + d, is invocation 32 * w + b's. Then: the round in its new order.
var<workgroup> words: array<atomic<u32>, 2048>;
// The rank with which each word of a digit's mask begins, a byte each: four words' at the digit, four at 256 + digit. Later the counts that
// are scanned.
var<workgroup> ranks: array<u32, 512>;
// How many keys of a digit the round has had so far; then where they begin in its new order.
var<workgroup> counts: array<u32, 256>;
// Where the digit's keys go, less where they begin in the round's order.
var<workgroup> bases: array<u32, 256>;
// Keys that are moved.
var<workgroup> moved: u32;

fn digit(key: u32) -> u32 {
    return (key >> args[4]) & 255u;
}

// Places of the keys that an invocation takes of a thousand.
fn places(i: u32) -> vec4<u32> {
    return vec4<u32>(i, i + 256u, i + 512u, i + 768u);
}

fn keys_at(i: vec4<u32>, last: u32) -> vec4<u32> {
    let j = min(i, vec4<u32>(last));
    return vec4<u32>(keys[j.x], keys[j.y], keys[j.z], keys[j.w]);
}

fn rows_at(i: vec4<u32>, last: u32) -> vec4<u32> {
    if ((args[6] & 1u) == 0u) {
        return i;
    }
    let j = min(i, vec4<u32>(last));
    return vec4<u32>(rows[j.x], rows[j.y], rows[j.z], rows[j.w]);
}

fn live_at(key: vec4<u32>, i: vec4<u32>, end: u32) -> vec4<bool> {
    return (i < vec4<u32>(end)) & ((key & vec4<u32>(args[5])) == vec4<u32>(args[5]));
}

// The key's rank among those of its digit in the round.
fn rank_of(key: u32, live: bool, l: u32) -> u32 {
    let d = digit(key);
    let w = l >> 5u;
    let bit = 1u << (l & 31u);
    if (live) {
        atomicOr(&words[w * 256u + d], bit);
    }
    workgroupBarrier();
    let mask = atomicLoad(&words[w * 256u + d]);
    // Each invocation counts the keys of one digit.
    var sum = 0u;
    for (var half = 0u; half < 512u; half += 256u) {
        var bytes = 0u;
        for (var k = 0u; k < 4u; k++) {
            bytes |= sum << (8u * k);
            sum += countOneBits(atomicLoad(&words[half * 4u + k * 256u + l]));
        }
        ranks[half + l] = bytes;
    }
    workgroupBarrier();
    let begin = (ranks[((w >> 2u) << 8u) + d] >> (8u * (w & 3u))) & 255u;
    let rank = counts[d] + begin + countOneBits(mask & (bit - 1u));
    if (live) {
        atomicStore(&words[w * 256u + d], 0u);
    }
    workgroupBarrier();
    counts[l] += sum;
    return rank;
}

fn ranks_of(key: vec4<u32>, live: vec4<bool>, l: u32) -> vec4<u32> {
    let x = rank_of(key.x, live.x, l);
    let y = rank_of(key.y, live.y, l);
    let z = rank_of(key.z, live.z, l);
    let w = rank_of(key.w, live.w, l);
    return vec4<u32>(x, y, z, w);
}

// The sum of what lower invocations count.
fn scanned(count: u32, l: u32) -> u32 {
    var half = 0u;
    ranks[l] = count;
    workgroupBarrier();
    for (var d = 1u; d < 256u; d <<= 1u) {
        var sum = ranks[half + l];
        if (l >= d) {
            sum += ranks[half + l - d];
        }
        half ^= 256u;
        ranks[half + l] = sum;
        workgroupBarrier();
    }
    return ranks[half + l] - count;
}

fn put(key: u32, rank: u32, live: bool, value: u32) {
    if (live) {
        atomicStore(&words[counts[digit(key)] + rank], value);
    }
}

// Puts values of keys into the round's new order.
fn put_all(key: vec4<u32>, rank: vec4<u32>, live: vec4<bool>, value: vec4<u32>) {
    put(key.x, rank.x, live.x, value.x);
    put(key.y, rank.y, live.y, value.y);
    put(key.z, rank.z, live.z, value.z);
    put(key.w, rank.w, live.w, value.w);
}

// Where the key at a place of the new order goes.
fn move_key(p: u32) -> u32 {
    if (p >= moved) {
        return 0u;
    }
    let key = atomicLoad(&words[p]);
    let to = bases[digit(key)] + p;
    if ((args[6] & 2u) != 0u) {
        keys_out[to] = key;
    }
    return to;
}

fn move_keys(p: vec4<u32>) -> vec4<u32> {
    return vec4<u32>(move_key(p.x), move_key(p.y), move_key(p.z), move_key(p.w));
}

fn move_row(p: u32, to: u32) {
    if (p < moved) {
        rows_out[to] = atomicLoad(&words[p]);
    }
    atomicStore(&words[p], 0u);
}

fn move_rows(p: vec4<u32>, to: vec4<u32>) {
    move_row(p.x, to.x);
    move_row(p.y, to.y);
    move_row(p.z, to.z);
    move_row(p.w, to.w);
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(num_workgroups) nwg: vec3<u32>,
    @builtin(local_invocation_index) l: u32,
) {
    let last = args[1] - 1u;
    let tiles = args[3];
    let groups = nwg.x * nwg.y * nwg.z;
    let first_places = places(l);
    let second_places = places(1024u + l);
    for (var w = 0u; w < 8u; w++) {
        atomicStore(&words[w * 256u + l], 0u);
    }
    counts[l] = 0u;
    workgroupBarrier();
    for (var t = (wid.z * nwg.y + wid.y) * nwg.x + wid.x; t < tiles; t += groups) {
        // Invocation l has where the next key of digit l goes.
        let at = l * tiles + t;
        var head = starts[at] + blocks[at >> 11u];
        if (t == 0u) {
            offsets[l] = head;
        }
        let begin = t * args[2];
        let end = min(begin + args[2], args[1]);
        for (var base = begin; base < end; base += 2048u) {
            let i = first_places + vec4<u32>(base);
            let j = second_places + vec4<u32>(base);
            let key_i = keys_at(i, last);
            let key_j = keys_at(j, last);
            let live_i = live_at(key_i, i, end);
            let live_j = live_at(key_j, j, end);
            let rank_i = ranks_of(key_i, live_i, l);
            let rank_j = ranks_of(key_j, live_j, l);
            let row_i = rows_at(i, last);
            let row_j = rows_at(j, last);
            let count = counts[l];
            let start = scanned(count, l);
            bases[l] = head - start;
            head += count;
            counts[l] = start;
            if (l == 255u) {
                moved = start + count;
            }
            workgroupBarrier();
            put_all(key_i, rank_i, live_i, key_i);
            put_all(key_j, rank_j, live_j, key_j);
            workgroupBarrier();
            let to_i = move_keys(first_places);
            let to_j = move_keys(second_places);
            workgroupBarrier();
            put_all(key_i, rank_i, live_i, row_i);
            put_all(key_j, rank_j, live_j, row_j);
            workgroupBarrier();
            move_rows(first_places, to_i);
            move_rows(second_places, to_j);
            counts[l] = 0u;
            workgroupBarrier();
        }
        if (t + 1u == tiles && l == 255u) {
            offsets[256] = head;
        }
    }
}
