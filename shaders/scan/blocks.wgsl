// Exclusive prefix sums of u32 counts within blocks of 2,048, and each block's total. Run again over the totals it
// gives the blocks' own offsets (reduce, then scan: no workgroup waits for another).

// args: 1 = number of counts, 2 = number of blocks, 3 = where the totals start in `totals`.
@group(0) @binding(0) var<storage, read> args: array<u32>;
@group(0) @binding(1) var<storage, read> counts: array<u32>;
@group(0) @binding(2) var<storage, read_write> offsets: array<u32>;
@group(0) @binding(3) var<storage, read_write> totals: array<u32>;

var<workgroup> part: array<u32, 256>;

fn count_at(i: u32, n: u32) -> u32 {
    return select(0u, counts[min(i, n - 1u)], i < n);
}

fn put(i: u32, n: u32, value: u32) {
    if (i < n) {
        offsets[i] = value;
    }
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(num_workgroups) nwg: vec3<u32>,
    @builtin(local_invocation_index) l: u32,
) {
    let n = args[1];
    let blocks = args[2];
    let groups = nwg.x * nwg.y * nwg.z;
    for (var block = (wid.z * nwg.y + wid.y) * nwg.x + wid.x; block < blocks; block += groups) {
        let i = block * 2048u + l * 8u;
        let c0 = count_at(i, n);
        let c1 = count_at(i + 1u, n);
        let c2 = count_at(i + 2u, n);
        let c3 = count_at(i + 3u, n);
        let c4 = count_at(i + 4u, n);
        let c5 = count_at(i + 5u, n);
        let c6 = count_at(i + 6u, n);
        let c7 = count_at(i + 7u, n);
        let own = c0 + c1 + c2 + c3 + c4 + c5 + c6 + c7;
        part[l] = own;
        workgroupBarrier();
        for (var d = 1u; d < 256u; d <<= 1u) {
            var before = 0u;
            if (l >= d) {
                before = part[l - d];
            }
            workgroupBarrier();
            part[l] += before;
            workgroupBarrier();
        }
        var at = part[l] - own;
        put(i, n, at);
        at += c0;
        put(i + 1u, n, at);
        at += c1;
        put(i + 2u, n, at);
        at += c2;
        put(i + 3u, n, at);
        at += c3;
        put(i + 4u, n, at);
        at += c4;
        put(i + 5u, n, at);
        at += c5;
        put(i + 6u, n, at);
        at += c6;
        put(i + 7u, n, at);
        if (l == 255u) {
            totals[args[3] + block] = part[255];
        }
        workgroupBarrier();
    }
}
