//! A hash for tables that are keyed by ids of our own making.
//!
//! Ids are not chosen by peers freely (the sequence part is ours), so the tables need spread, not resistance to attack.
//! The mix is the finaliser of MurmurHash3 (Appleby, 2011), folded over the words of the key. The lowest bits of a file
//! id's sequence are left out of it and added at the end, so that files that were made one after the other have
//! neighbouring buckets: whoever goes through many of them in that order finds most buckets in the cache. Their tags,
//! the highest bits, differ.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Where the sequence begins in a file id, and how many that follow each other share a run of buckets.
const SEQUENCE_SHIFT: u32 = 20;
const NEIGHBOUR_COUNT: u64 = 64;

/// A hash map keyed by ids.
pub type FastMap<K, V> = HashMap<K, V, BuildHasherDefault<IdHasher>>;

/// See the module.
#[derive(Clone, Copy, Default)]
pub struct IdHasher(u64);

/// The same hash of a single number.
pub fn hash_id(id: u64) -> u64 {
    let mut hasher = IdHasher::default();
    hasher.write_u64(id);
    hasher.finish()
}

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(8) {
            let mut word = [0u8; 8];
            word[..part.len()].copy_from_slice(part);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u32(&mut self, word: u32) {
        self.write_u64(u64::from(word));
    }

    fn write_u64(&mut self, word: u64) {
        let neighbour = word >> SEQUENCE_SHIFT & (NEIGHBOUR_COUNT - 1);
        let mut mixed = self.0.rotate_left(29) ^ word ^ neighbour << SEQUENCE_SHIFT;
        mixed = (mixed ^ (mixed >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        mixed = (mixed ^ (mixed >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        mixed ^= mixed >> 33;
        let bucket = mixed.wrapping_add(neighbour) & (NEIGHBOUR_COUNT - 1);
        self.0 = (mixed & !(NEIGHBOUR_COUNT - 1) | bucket) ^ neighbour << (u64::BITS - NEIGHBOUR_COUNT.ilog2());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: files that were made one after the other have neighbouring buckets and different tags.
    #[test]
    fn neighbours_lie_together() {
        let hashes: Vec<u64> = (6400..6464).map(|sequence| hash_id(crate::FileId::new(sequence, 3).0)).collect();
        let run = hashes[0] / NEIGHBOUR_COUNT % 1024;
        let mut buckets: Vec<u64> = hashes.iter().map(|hash| hash % NEIGHBOUR_COUNT).collect();
        assert!(buckets.windows(2).all(|pair| pair[1] == (pair[0] + 1) % NEIGHBOUR_COUNT));
        assert!(hashes.iter().all(|hash| hash / NEIGHBOUR_COUNT % 1024 == run));
        let mut tags: Vec<u64> = hashes.iter().map(|hash| hash >> 57).collect();
        for distinct in [&mut buckets, &mut tags] {
            distinct.sort_unstable();
            distinct.dedup();
            assert_eq!(distinct.len() as u64, NEIGHBOUR_COUNT);
        }
        assert_ne!(run, hash_id(crate::FileId::new(6464, 3).0) / NEIGHBOUR_COUNT % 1024);
    }

    /// Goal: ids that differ only in their high or only in their low bits spread over small tables.
    /// Method: count the buckets of 4,096 such ids by the low and the high seven bits.
    #[test]
    fn ids_spread() {
        for shift in [0, 20, 44] {
            let mut low = [0u32; 128];
            let mut high = [0u32; 128];
            for id in 0..4096u64 {
                let mut hasher = IdHasher::default();
                hasher.write_u64(id << shift);
                low[(hasher.finish() & 127) as usize] += 1;
                high[(hasher.finish() >> 57) as usize] += 1;
            }
            assert!(low.iter().chain(&high).all(|&count| (8..=80).contains(&count)), "shift {shift}: {low:?} {high:?}");
        }
    }
}
