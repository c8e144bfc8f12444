// Occupied slots of a hash table, by tiles of 1,024.

// args: 1 = slots, 2 = tiles, 3 = words of a slot's record, whose first is 0 where the slot is free.
@group(0) @binding(0) var<storage, read> args: array<u32>;
@group(0) @binding(1) var<storage, read> table: array<u32>;
@group(0) @binding(2) var<storage, read_write> counts: array<u32>;

var<workgroup> total: atomic<u32>;

fn occupied(slot: u32) -> u32 {
    return select(0u, 1u, slot < args[1] && table[min(slot, args[1] - 1u) * args[3]] != 0u);
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(num_workgroups) nwg: vec3<u32>,
    @builtin(local_invocation_index) l: u32,
) {
    let groups = nwg.x * nwg.y * nwg.z;
    for (var t = (wid.z * nwg.y + wid.y) * nwg.x + wid.x; t < args[2]; t += groups) {
        if (l == 0u) {
            atomicStore(&total, 0u);
        }
        workgroupBarrier();
        let slot = t * 1024u + l;
        let own = occupied(slot) + occupied(slot + 256u) + occupied(slot + 512u) + occupied(slot + 768u);
        if (own > 0u) {
            atomicAdd(&total, own);
        }
        workgroupBarrier();
        if (l == 0u) {
            counts[t] = atomicLoad(&total);
        }
        workgroupBarrier();
    }
}
