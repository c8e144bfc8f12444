//! Twin of the partition.

/// The hash of a key of these words, as kernels have it.
pub fn hash(words: &[u32], seed: u32) -> u32 {
    let stir = |h: u32, word: &u32| {
        let x = (h ^ word).wrapping_mul(0x9e37_79b1);
        x.rotate_left(13) ^ (x >> 16)
    };
    let h = words.iter().fold(seed, stir);
    let h = (h ^ (h >> 15)).wrapping_mul(0x2c1b_3c6d);
    let h = (h ^ (h >> 12)).wrapping_mul(0x297a_2d39);
    h ^ (h >> 15)
}

/// The places of those `keys` that have all bits of `needed`, in the order of the 8 bits from `shift` on, else of their own; and where each
/// value of those bits begins, and the last ends.
pub fn partition(keys: &[u32], shift: u32, needed: u32) -> (Vec<u32>, Vec<u32>) {
    let digit = |place: u32| (keys[place as usize] >> shift) & 255;
    let live = (0u32..).zip(keys).filter(|(_, key)| *key & needed == needed).map(|(place, _)| place);
    let mut places: Vec<u32> = live.collect();
    places.sort_by_key(|place| digit(*place));
    let offsets = (0..257).map(|d| places.partition_point(|place| digit(*place) < d) as u32);
    (places.clone(), offsets.collect())
}
