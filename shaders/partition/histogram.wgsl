// How many keys of each value of an 8-bit digit a tile has; counts of one digit lie together, so that one scan over all of them gives
// where each tile's keys of each digit go.

// args: 1 = keys, 2 = keys of a tile, 3 = tiles, 4 = first bit of the digit, 5 = bits that a key needs to be counted.
@group(0) @binding(0) var<storage, read> args: array<u32>;
@group(0) @binding(1) var<storage, read> keys: array<u32>;
@group(0) @binding(2) var<storage, read_write> counts: array<u32>;

var<workgroup> bins: array<atomic<u32>, 256>;

fn count(key: u32, i: u32, end: u32) {
    if (i < end && (key & args[5]) == args[5]) {
        atomicAdd(&bins[(key >> args[4]) & 255u], 1u);
    }
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
    for (var t = (wid.z * nwg.y + wid.y) * nwg.x + wid.x; t < tiles; t += groups) {
        atomicStore(&bins[l], 0u);
        workgroupBarrier();
        let first = t * args[2];
        let end = min(first + args[2], n);
        for (var base = first; base < end; base += 1024u) {
            let i = base + l;
            let k0 = keys[min(i, n - 1u)];
            let k1 = keys[min(i + 256u, n - 1u)];
            let k2 = keys[min(i + 512u, n - 1u)];
            let k3 = keys[min(i + 768u, n - 1u)];
            count(k0, i, end);
            count(k1, i + 256u, end);
            count(k2, i + 512u, end);
            count(k3, i + 768u, end);
        }
        workgroupBarrier();
        counts[l * tiles + t] = atomicLoad(&bins[l]);
        workgroupBarrier();
    }
}
