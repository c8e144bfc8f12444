// Moves rows into the order of an 8-bit digit of their keys; rows of one digit stay in their order. A tile takes its keys in rounds of 256.
// In a round each invocation sets its bit in its digit's mask of the round; the bits below it are its rank. No subgroups are needed,
// and no workgroup waits for another.

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

// Bit b of word w of digit d's mask, at w * 256 + d, is invocation 32 * w + b's.
var<workgroup> masks: array<atomic<u32>, 2048>;
// Where the next row of each digit goes.
var<workgroup> heads: array<u32, 256>;

fn move_row(key: u32, row: u32, live: bool, l: u32) {
    let d = (key >> args[4]) & 255u;
    let w = l >> 5u;
    let bit = 1u << (l & 31u);
    if (live) {
        atomicOr(&masks[w * 256u + d], bit);
    }
    workgroupBarrier();
    var rank = 0u;
    var all = 0u;
    var head = 0u;
    if (live) {
        head = heads[d];
        for (var k = 0u; k < 8u; k++) {
            let ones = countOneBits(atomicLoad(&masks[k * 256u + d]));
            rank += select(0u, ones, k < w);
            all += ones;
        }
        rank += countOneBits(atomicLoad(&masks[w * 256u + d]) & (bit - 1u));
    }
    workgroupBarrier();
    if (live) {
        atomicStore(&masks[w * 256u + d], 0u);
        if (rank + 1u == all) {
            heads[d] = head + all;
        }
        rows_out[head + rank] = row;
        if ((args[6] & 2u) != 0u) {
            keys_out[head + rank] = key;
        }
    }
    workgroupBarrier();
}

fn row_of(i: u32) -> u32 {
    if ((args[6] & 1u) != 0u) {
        return rows[i];
    }
    return i;
}

fn is_live(key: u32, i: u32, end: u32) -> bool {
    return i < end && (key & args[5]) == args[5];
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(num_workgroups) nwg: vec3<u32>,
    @builtin(local_invocation_index) l: u32,
) {
    let n = args[1];
    let tiles = args[3];
    let groups = nwg.x * nwg.y * nwg.z;
    for (var w = 0u; w < 8u; w++) {
        atomicStore(&masks[w * 256u + l], 0u);
    }
    for (var t = (wid.z * nwg.y + wid.y) * nwg.x + wid.x; t < tiles; t += groups) {
        let at = l * tiles + t;
        let start = starts[at] + blocks[at >> 11u];
        heads[l] = start;
        if (t == 0u) {
            offsets[l] = start;
        }
        workgroupBarrier();
        let first = t * args[2];
        let end = min(first + args[2], n);
        for (var base = first; base < end; base += 1024u) {
            let i0 = base + l;
            let i1 = i0 + 256u;
            let i2 = i0 + 512u;
            let i3 = i0 + 768u;
            let k0 = keys[min(i0, n - 1u)];
            let k1 = keys[min(i1, n - 1u)];
            let k2 = keys[min(i2, n - 1u)];
            let k3 = keys[min(i3, n - 1u)];
            let r0 = row_of(min(i0, n - 1u));
            let r1 = row_of(min(i1, n - 1u));
            let r2 = row_of(min(i2, n - 1u));
            let r3 = row_of(min(i3, n - 1u));
            move_row(k0, r0, is_live(k0, i0, end), l);
            move_row(k1, r1, is_live(k1, i1, end), l);
            move_row(k2, r2, is_live(k2, i2, end), l);
            move_row(k3, r3, is_live(k3, i3, end), l);
        }
        if (t + 1u == tiles && l == 255u) {
            offsets[256] = heads[255];
        }
        workgroupBarrier();
    }
}
