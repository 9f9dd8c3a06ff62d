//! A table of keys and values in an attribute cache, in its owner's hands (`wire::attribute_cache`): extendible hashing
//! with segments of a block.
//!
//! Invariants
//! 1. Each bucket is changed under its own version. What moves is nowhere for a while, in buckets that are of no
//!    segment meanwhile: whoever looks there asks.
//! 2. A key that finds no room is left out, and its home says so; whoever does not find it asks.

use crate::publish::blocks::Blocks;
use reactor::{CacheFault, CellPlace};
use std::cell::RefCell;
use std::rc::Rc;
use wire::attribute_cache::{
    BUCKETS_PER_BLOCK, Bucket, LINE_WORDS, Table, TableKey, find_in, prefix_of, words_of_slot,
};

/// See the module.
pub struct SharedTable {
    blocks: Rc<Blocks>,
    table: Table,
    /// All segments, for checks.
    segments: RefCell<Vec<u64>>,
}

/// Where a key is.
struct Found {
    place: CellPlace,
    slot: usize,
    value: u64,
    /// How many buckets behind its home.
    step: usize,
}

/// The buckets of a segment that is being made.
struct Segment([Bucket; BUCKETS_PER_BLOCK as usize]);

impl Segment {
    fn new(depth: u32, prefix: u64) -> Segment {
        Segment([Bucket::new(depth, prefix); BUCKETS_PER_BLOCK as usize])
    }

    /// Takes in a key from the bucket of the same place in another segment. There is room for all that were there.
    fn take_in(&mut self, place: usize, key: TableKey, value: u64) {
        let slot = self.0[place].free_slot().expect("a bucket has room for the keys of another one");
        self.0[place].set(slot, key, value);
        let step = (place as u64).wrapping_sub(key.home()) % BUCKETS_PER_BLOCK;
        if step > 0 {
            self.0[key.home() as usize].add_overflow(step);
        }
    }
}

impl SharedTable {
    /// An empty table; nothing where there is no block for it.
    pub fn new(blocks: &Rc<Blocks>, table: Table) -> Option<SharedTable> {
        let own = SharedTable { blocks: blocks.clone(), table, segments: RefCell::default() };
        let segment = own.blocks.take()?;
        own.write(segment, &Segment::new(0, 0));
        // What the life before has left there leads to blocks that are something else now.
        (0..1 << blocks.shape().prefix_bits()).for_each(|index| own.set_directory_word(index, 0));
        blocks.cache().set_word(blocks.shape().depth_offset(table), 0);
        own.direct(0, 0, segment);
        own.segments.borrow_mut().push(segment);
        Some(own)
    }

    fn place(&self, offset: u64) -> CellPlace {
        CellPlace { offset, words: LINE_WORDS }
    }

    fn places_of(&self, segment: u64, key: TableKey) -> impl Iterator<Item = CellPlace> {
        self.blocks.shape().bucket_offsets(segment, key).map(|offset| self.place(offset))
    }

    fn bucket(&self, place: CellPlace) -> Bucket {
        Bucket(self.blocks.cache().words(place))
    }

    fn put_bucket(&self, place: CellPlace, bucket: &Bucket) {
        self.blocks.cache().put(place, &bucket.0);
    }

    fn depth(&self) -> u64 {
        self.blocks.cache().word(self.blocks.shape().depth_offset(self.table))
    }

    fn directory_word(&self, index: u64) -> u64 {
        self.blocks.cache().word(self.blocks.shape().directory_word(self.table, index))
    }

    fn set_directory_word(&self, index: u64, value: u64) {
        self.blocks.cache().set_word(self.blocks.shape().directory_word(self.table, index), value);
    }

    fn segment_of(&self, key: TableKey) -> u64 {
        let word = self.directory_word(prefix_of(key.hash, self.depth() as u32));
        word.checked_sub(1).expect("each key has a segment")
    }

    fn write(&self, segment: u64, content: &Segment) {
        for (offset, bucket) in self.blocks.shape().all_bucket_offsets(segment).zip(&content.0) {
            self.put_bucket(self.place(offset), bucket);
        }
    }

    /// Has the directory lead to a segment for all keys with a prefix. Whoever finds it meanwhile half done comes to a
    /// segment that is not for his key.
    fn direct(&self, depth: u32, prefix: u64, segment: u64) {
        let known = self.depth();
        if known < u64::from(depth) {
            for index in (0..1 << known).rev() {
                let word = self.directory_word(index);
                self.set_directory_word(2 * index + 1, word);
                self.set_directory_word(2 * index, word);
            }
            self.blocks.cache().set_word(self.blocks.shape().depth_offset(self.table), known + 1);
            return self.direct(depth, prefix, segment);
        }
        let count = 1 << (known as u32 - depth);
        (prefix * count..(prefix + 1) * count).for_each(|index| self.set_directory_word(index, segment + 1));
    }

    fn find(&self, key: TableKey) -> Option<Found> {
        let cache = self.blocks.cache();
        let mut reach = 0;
        for (step, place) in self.places_of(self.segment_of(key), key).enumerate() {
            if let Some((slot, value)) = find_in(|word| cache.cell_word(place, word), key) {
                return Some(Found { place, slot, value, step });
            }
            if step == 0 {
                reach = self.bucket(place).reach() as usize;
            }
            if step == reach {
                break;
            }
        }
        None
    }

    /// The value of a key.
    pub fn get(&self, key: TableKey) -> Option<u64> {
        self.find(key).map(|found| found.value)
    }

    /// Has the home of a key fetched from memory.
    pub fn prefetch(&self, key: TableKey) {
        if let Some(place) = self.places_of(self.segment_of(key), key).next() {
            self.blocks.cache().prefetch(place);
        }
    }

    /// Changes what a key stands for, from what it is to what it is to be; nothing is not there, as 0 is. False for a
    /// key that finds no room and is left out.
    pub fn change(&self, key: TableKey, change: impl FnOnce(Option<u64>) -> Option<u64>) -> bool {
        match self.find(key) {
            Some(found) => {
                let value = change(Some(found.value)).unwrap_or(0);
                if value == found.value {
                    return true;
                }
                self.set_slot(&found.place, found.slot, key, value);
                if value == 0 && found.step > 0 {
                    self.change_home(key, Bucket::remove_overflow);
                }
                true
            }
            None => change(None).is_none_or(|value| self.put_new(key, value)),
        }
    }

    fn set_slot(&self, place: &CellPlace, slot: usize, key: TableKey, value: u64) {
        self.blocks.cache().put_words(*place, &words_of_slot(slot, key, value));
    }

    fn change_home(&self, key: TableKey, change: impl FnOnce(&mut Bucket)) {
        if let Some(place) = self.places_of(self.segment_of(key), key).next() {
            let mut home = self.bucket(place);
            change(&mut home);
            self.put_bucket(place, &home);
        }
    }

    /// Puts a key that is not there. False when it finds no room and is left out.
    pub fn put_new(&self, key: TableKey, value: u64) -> bool {
        loop {
            let segment = self.segment_of(key);
            for (step, place) in self.places_of(segment, key).enumerate() {
                if let Some(slot) = self.bucket(place).free_slot() {
                    if step > 0 {
                        self.change_home(key, |home| home.add_overflow(step as u64));
                    }
                    self.set_slot(&place, slot, key, value);
                    return true;
                }
            }
            if !self.split(segment) {
                if !self.blocks.cache().has_fault(CacheFault::OmitsInSilence) {
                    self.change_home(key, Bucket::set_incomplete);
                }
                return false;
            }
        }
    }

    /// Parts a segment in two. False when that is not possible.
    fn split(&self, segment: u64) -> bool {
        let shape = self.blocks.shape();
        let places: Vec<CellPlace> = shape.all_bucket_offsets(segment).map(|offset| self.place(offset)).collect();
        let old: Vec<Bucket> = places.iter().map(|place| self.bucket(*place)).collect();
        let (depth, prefix) = old[0].prefix();
        if depth == shape.prefix_bits() {
            return false;
        }
        let Some(other) = self.blocks.take() else { return false };
        let mut parts = [prefix << 1, prefix << 1 | 1].map(|prefix| Segment::new(depth + 1, prefix));
        for (index, bucket) in old.iter().enumerate().filter(|(_, bucket)| !bucket.is_complete()) {
            assert!(bucket.prefix() == (depth, prefix), "all buckets of a segment are for the same keys");
            parts.iter_mut().for_each(|part| part.0[index].set_incomplete());
        }
        // Each stays in the bucket that it is in. First come, first served would not always find room for all.
        for (place, bucket) in old.iter().enumerate() {
            for (key, value) in bucket.entries() {
                parts[prefix_of(key.hash, depth + 1) as usize & 1].take_in(place, key, value);
            }
        }
        places.iter().for_each(|place| self.blocks.cache().clear(*place));
        let [first, second] = &parts;
        self.write(other, second);
        self.direct(depth + 1, prefix << 1 | 1, other);
        self.write(segment, first);
        self.segments.borrow_mut().push(other);
        true
    }

    /// Whether a key that is not found may be there all the same.
    pub fn may_lack(&self, key: TableKey) -> bool {
        let home = self.places_of(self.segment_of(key), key).next();
        home.is_some_and(|place| !self.bucket(place).is_complete())
    }

    /// All keys with their values.
    pub fn entries(&self) -> Vec<(TableKey, u64)> {
        let shape = self.blocks.shape();
        let segments = self.segments.borrow();
        let buckets = segments.iter().flat_map(|segment| shape.all_bucket_offsets(*segment));
        buckets.flat_map(|offset| self.bucket(self.place(offset)).entries().collect::<Vec<_>>()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use reactor::sim::World;
    use reactor::{OpenMode, STAMPS_SIZE, SUBMISSION_QUEUES_SIZE, StampedRegion};
    use std::collections::BTreeMap;
    use wire::FileId;

    /// Blocks of an attribute cache of some size, and a limit to how many.
    fn blocks(size: u64, limit: u64) -> Rc<Blocks> {
        let world = World::new(1);
        let reactor = world.reactor(world.add_node("server", [10, 0, 0, 1].into()));
        let storage = reactor.storage("store".as_ref()).expect("storage");
        let region = |name: &str, size: u64, allocated: u64| {
            let region = storage.open(name, size, OpenMode::CreateNew).expect("room");
            region.allocate(0, allocated).expect("room");
            region
        };
        let table = region("table", STAMPS_SIZE + size, STAMPS_SIZE + 4096);
        let submissions = region("submissions", SUBMISSION_QUEUES_SIZE, SUBMISSION_QUEUES_SIZE);
        let stamped = StampedRegion::new(region("data", 4096, 4096), table, submissions);
        Blocks::of(stamped.attribute_cache(), limit).expect("room")
    }

    fn name(number: u64) -> TableKey {
        TableKey::of_name(FileId::ROOT, format!("file.{number}").as_bytes())
    }

    /// Goal: a table says of each key what it was changed to last, or that it does not know; the latter only once there
    /// are no blocks left, or no bits of the hash to choose a segment by.
    /// Method: keys come and go at random beside a map, in attribute caches of several sizes and with bounds.
    #[test]
    fn behaves_like_a_map() {
        for (size, limit, count, is_bounded) in
            [(64 << 20, u64::MAX, 20_000, false), (64 << 20, 3, 2_000, true), (32 << 10, u64::MAX, 2_000, true)]
        {
            let blocks = blocks(size, limit);
            let table = SharedTable::new(&blocks, Table::Names).expect("a block");
            let mut model = BTreeMap::new();
            let mut state = 7u64;
            for step in 0..3 * count {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let key = name((state >> 33) % count);
                let value = if state >> 62 == 0 { None } else { Some(step + 1) };
                table.change(key, |known| {
                    assert!(known == model.get(&key).copied() || (known.is_none() && table.may_lack(key)));
                    value
                });
                match value {
                    Some(value) => drop(model.insert(key, value)),
                    None => drop(model.remove(&key)),
                }
            }
            let mut left_out = 0;
            for key in (0..count).map(name) {
                match table.get(key) {
                    None if model.contains_key(&key) => {
                        assert!(table.may_lack(key), "a key that is left out is not missed in silence");
                        left_out += 1;
                    }
                    found => assert_eq!(found, model.get(&key).copied()),
                }
            }
            assert_eq!(left_out > 0, is_bounded, "{left_out} of {} keys are left out", model.len());
            let entries: BTreeMap<TableKey, u64> = table.entries().into_iter().collect();
            assert_eq!(entries.len(), table.entries().len(), "no key is there twice");
            assert!(entries.iter().all(|(key, value)| model.get(key) == Some(value)));
            assert_eq!(entries.len() + left_out, model.len());
            for key in model.keys() {
                table.change(*key, |_| None);
            }
            assert!(table.entries().is_empty());
        }
    }

    /// Goal: no key is lost when a segment is split, whatever order they are in.
    /// Method: keys that have gone round the end of a segment, of which those in front would take the room of others if
    /// all were put anew; and many random ones of a few homes.
    #[test]
    fn splits_lose_nothing() {
        let blocks = blocks(64 << 20, u64::MAX);
        let table = SharedTable::new(&blocks, Table::Inodes).expect("a block");
        let mut state = 3u64;
        let homes = [58, 59, 60, 61, 62].map(|home| [home; 3]).concat();
        let rest = [58, 63, 63, 62, 62, 62];
        // All in the same half, but for the last one, for which it is parted from the other one.
        let round = homes.into_iter().chain(rest).map(|home| (home, 0)).chain([(58, 1 << 63)]);
        let random = (0..4_000u64).map(|number| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((56 + (state >> 60) % 12) % BUCKETS_PER_BLOCK, number.reverse_bits())
        });
        let mut keys = Vec::new();
        for ((home, prefix), number) in round.chain(random).zip(1..) {
            let mut key = TableKey::of_inode(FileId(number));
            key.hash = prefix & !0x3FFF_FFFF | home << 24 | number & 0xFF_FFFF;
            assert!(table.put_new(key, number), "key {number} finds no room");
            keys.push(key);
            assert!(number > 40 || keys.iter().zip(1..).all(|(key, value)| table.get(*key) == Some(value)));
        }
        for (key, value) in keys.into_iter().zip(1..) {
            assert_eq!(table.get(key), Some(value));
        }
    }

    /// Goal: the bytes that a key takes stay below what the documents say.
    #[test]
    fn memory_of_a_key() {
        let blocks = blocks(64 << 20, u64::MAX);
        let table = SharedTable::new(&blocks, Table::Inodes).expect("a block");
        let mut sum = 0.0;
        for number in 1..=200_000u64 {
            table.change(TableKey::of_inode(FileId::new(number + 4096, 3)), |_| Some(number));
            if number.is_multiple_of(10_000) {
                sum +=
                    (table.segments.borrow().len() as u64 * wire::attribute_cache::BLOCK_SIZE) as f64 / number as f64;
            }
        }
        let mean = sum / 20.0;
        assert!((35.0..45.0).contains(&mean), "{mean} bytes a key");
    }
}
