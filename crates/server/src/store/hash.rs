//! A hash for tables that are keyed by ids of our own making.
//!
//! Ids are not chosen by peers freely (the sequence part is ours), so the tables need spread, not resistance to attack.
//! The mix is the finaliser of MurmurHash3 (Appleby, 2011), folded over the words of the key.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

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
        let mut mixed = self.0.rotate_left(29) ^ word;
        mixed = (mixed ^ (mixed >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        mixed = (mixed ^ (mixed >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        self.0 = mixed ^ (mixed >> 33);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
