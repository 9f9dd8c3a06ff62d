//! What a server shows of its names and files in an attribute cache that clients of its machine have mapped: where
//! what is, and how it is found (docs/shared-memory.md).
//!
//! | where | what |
//! |---|---|
//! | one line | the state of the directory tree |
//! | one line | the owner's own: how much is used |
//! | a row of lines | permissions: directories in which names may be made, and files to which writes may be submitted |
//! | two directories of words | for each prefix of a hash the segment that its keys are in: of names, and of inodes |
//! | blocks of 4 KiB | segments of the two tables, and inodes |
//!
//! The tables are extendible hashing (Fagin et al., ACM TODS 4(3), 1979) with segments of a page, as CCEH (Nam et al.,
//! FAST 2019) and Dash (Lu et al., VLDB 2020) have them: a segment that is full is split in two, so a table grows by a
//! page at a time and nothing else moves. A segment is a row of buckets of a line, each a cell with a version of its
//! own; a key is in one of the `PROBE_COUNT` buckets from its home bucket on.
//!
//! Invariants
//! 1. A bucket says which keys its segment is for (`Bucket::is_of`), so whoever comes by a word of a directory that is
//!    no longer so notices.
//! 2. A key is no further behind its home than that says (`Bucket::reach`), and it is in one of these buckets unless
//!    the home says that some found no room (`Bucket::is_complete`).

use crate::attributes::{Attributes, Kind};
use crate::codec::{Decode, Decoder, Encode};
use crate::identity::{FileId, dentry_hash};

const WORD_SIZE: usize = 8;
const LINE_SIZE: u64 = 64;

/// Bytes of a segment of a table, and of a page of inodes.
pub const BLOCK_SIZE: u64 = 4096;
/// Bytes of an inode's cell, with its version.
const CELL_SIZE: u64 = 2 * LINE_SIZE;
/// Inodes of a page of them.
pub const CELLS_PER_BLOCK: u64 = BLOCK_SIZE / CELL_SIZE;
/// Words of such a cell beside its version.
pub const CELL_WORDS: usize = CELL_SIZE as usize / WORD_SIZE - 1;
/// Buckets of a segment, which are cells of one line.
pub const BUCKETS_PER_BLOCK: u64 = BLOCK_SIZE / LINE_SIZE;
/// Words of a cell of one line beside its version: the tree's, and a permission's.
pub const LINE_WORDS: usize = LINE_SIZE as usize / WORD_SIZE - 1;
/// Of the owner's own line the word that tells the bytes in use, counted from the attribute cache's first byte. The
/// first two words of a line are written to when all cells are emptied.
pub const USED_OFFSET: u64 = LINE_SIZE + 2 * WORD_SIZE as u64;
const PERMISSIONS_START: u64 = 2 * LINE_SIZE;
const PERMISSION_COUNT_MIN: u64 = 16;
const PERMISSION_COUNT_MAX: u64 = 1 << 14;
/// An attribute cache has a permission for so many of its bytes.
const PERMISSION_SHARE: u64 = 1024;
/// Bits of a hash that choose the word of a directory, at most: so many that each segment of a table that has half of
/// all blocks may have one, and most may have several.
const PREFIX_BITS_MAX: u32 = 20;
const PREFIX_BITS_MIN: u32 = 2;
const SIZE_MIN: u64 = 32 << 10;
/// Bytes of the largest attribute cache: more than 80 million files.
const SIZE_MAX: u64 = 16 << 30;

/// Keys of a bucket.
pub const BUCKET_KEYS: usize = (LINE_WORDS - 1) / 2;
/// Buckets that a key may be in, one behind the other.
pub const PROBE_COUNT: u64 = 6;
/// A key's second word is what it stands for, and above that what is left of the key.
const VALUE_BITS: u32 = 40;
const VALUE_MASK: u64 = (1 << VALUE_BITS) - 1;
const CHECK_MASK: u64 = (1 << (64 - VALUE_BITS)) - 1;

/// The word of an inode's cell behind the attributes.
const FIRST_WORD: usize = 12;
/// The word that begins with what the inode is, for which there are fewer numbers than bits: the rest of that byte says
/// how the cell is to be taken. It is in the first line, so that the second one is left alone where only that changes.
const STATE_WORD: usize = 1;
const STATE_PUBLISHED: u64 = 1 << 7;
/// The inode has more than fits: what that is only its owner knows.
const STATE_HAS_MORE: u64 = 1 << 6;
const STATE_MASK: u64 = STATE_PUBLISHED | STATE_HAS_MORE;

/// A table of keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    /// Of a name ([`TableKey::of_name`]) what it leads to ([`NameState`]).
    Names,
    /// Of an inode ([`TableKey::of_inode`]) the number of its cell, counted from one.
    Inodes,
}

/// What is looked for in a table. A hash alone would be mistaken for another one too often where very many are looked
/// for that are not there: of the hash up to 26 bits say where a key is, and with 24 bits of another one some 62 remain
/// to tell it from the three that are there too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TableKey {
    pub hash: u64,
    check: u64,
}

impl TableKey {
    pub fn of_name(parent: FileId, name: &[u8]) -> TableKey {
        TableKey::of_hashed_name(dentry_hash(parent, name), parent, name)
    }

    /// The same of a name whose hash ([`dentry_hash`]) is known.
    pub fn of_hashed_name(hash: u64, parent: FileId, name: &[u8]) -> TableKey {
        let (words, rest) = name.as_chunks::<WORD_SIZE>();
        let mut last = [0; WORD_SIZE];
        last[..rest.len()].copy_from_slice(rest);
        let words = words.iter().chain(std::iter::once(&last)).map(|word| u64::from_le_bytes(*word));
        let mixed = words.fold(parent.0 ^ name.len() as u64, |mixed, word| mix(mixed ^ word));
        TableKey { hash, check: mixed & CHECK_MASK }
    }

    /// Every file has another hash: nothing of an id is lost.
    pub fn of_inode(file: FileId) -> TableKey {
        TableKey { hash: mix(file.0), check: 0 }
    }

    /// The bucket of a segment that it is to be in.
    pub fn home(self) -> u64 {
        // The lowest bits have chosen the server.
        self.hash >> 24 & (BUCKETS_PER_BLOCK - 1)
    }
}

/// Scatters a number; no two come to the same one.
fn mix(number: u64) -> u64 {
    let mixed = (number ^ number >> 32).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mixed = (mixed ^ mixed >> 29).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    mixed ^ mixed >> 32
}

/// How an attribute cache of some size is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttributeCacheShape {
    permission_count: u64,
    prefix_bits: u32,
    /// First bytes of the tables' directories, and of the blocks.
    directory_starts: [u64; 2],
    blocks_start: u64,
    block_count: u64,
}

impl AttributeCacheShape {
    /// The shape of an attribute cache with so many bytes; nothing if it has no room.
    pub fn of_size(size: u64) -> Option<AttributeCacheShape> {
        if size < SIZE_MIN {
            return None;
        }
        let permission_count = (size / PERMISSION_SHARE).clamp(PERMISSION_COUNT_MIN, PERMISSION_COUNT_MAX);
        let permission_count = 1 << permission_count.ilog2();
        let prefix_bits = (size / BLOCK_SIZE / 2).ilog2().clamp(PREFIX_BITS_MIN, PREFIX_BITS_MAX);
        let names = PERMISSIONS_START + permission_count * LINE_SIZE;
        let directory_size = (WORD_SIZE as u64) << prefix_bits;
        let directory_starts = [names, names + directory_size];
        let blocks_start = (names + 2 * directory_size).next_multiple_of(BLOCK_SIZE);
        let block_count = (size - blocks_start) / BLOCK_SIZE;
        Some(AttributeCacheShape { permission_count, prefix_bits, directory_starts, blocks_start, block_count })
    }

    /// Bytes for the attribute cache of a server that may have so many of them; 0 if that is too few.
    pub fn size_within(limit: u64) -> u64 {
        if limit < SIZE_MIN { 0 } else { limit.min(SIZE_MAX) / BLOCK_SIZE * BLOCK_SIZE }
    }

    /// Blocks that there is room for.
    pub fn block_count(self) -> u64 {
        self.block_count
    }

    /// Bytes before the first block.
    pub fn blocks_start(self) -> u64 {
        self.blocks_start
    }

    /// First byte of the cell for the tree.
    pub fn tree_offset(self) -> u64 {
        0
    }

    /// First byte of the cell for permission to make names in a directory, or to write to a file. Directories that are
    /// made one after the other on different servers have the same sequence.
    pub fn permission_offset(self, of: FileId) -> u64 {
        let hash = of.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        PERMISSIONS_START + (hash & (self.permission_count - 1)) * LINE_SIZE
    }

    /// First bytes of all permissions. For checks.
    pub fn permission_offsets(self) -> impl Iterator<Item = u64> {
        (0..self.permission_count).map(|index| PERMISSIONS_START + index * LINE_SIZE)
    }

    /// The most bits of a hash that may choose a word of a directory, and that a segment's prefix may have.
    pub fn prefix_bits(self) -> u32 {
        self.prefix_bits
    }

    /// The word that tells how many bits of a hash choose a word of a table's directory now, which has a word for each
    /// such prefix: as few as there are segments to tell apart, so that it stays in the processors' caches.
    pub fn depth_offset(self, table: Table) -> u64 {
        USED_OFFSET + WORD_SIZE as u64 * (1 + table as u64)
    }

    /// The word of a table's directory for a key, while so many bits choose one. It holds the segment's block, counted
    /// from one; 0 is none.
    pub fn directory_offset(self, table: Table, key: TableKey, depth: u64) -> u64 {
        let depth = depth.min(u64::from(self.prefix_bits)) as u32;
        self.directory_word(table, prefix_of(key.hash, depth))
    }

    /// A word of a table's directory.
    pub fn directory_word(self, table: Table, index: u64) -> u64 {
        self.directory_starts[table as usize] + index * WORD_SIZE as u64
    }

    /// First byte of a cell, which are counted from the first block's on.
    pub fn cell_offset(self, cell: u64) -> u64 {
        self.blocks_start + cell * CELL_SIZE
    }

    /// First bytes of all buckets of the segment at a block.
    pub fn all_bucket_offsets(self, block: u64) -> impl Iterator<Item = u64> {
        let segment = self.blocks_start + block * BLOCK_SIZE;
        (0..BUCKETS_PER_BLOCK).map(move |bucket| segment + bucket * LINE_SIZE)
    }

    /// First bytes of the buckets that a key may be in, the first of them its home, in the segment at a block.
    pub fn bucket_offsets(self, block: u64, key: TableKey) -> impl Iterator<Item = u64> {
        let (segment, home) = (self.blocks_start + block * BLOCK_SIZE, key.home());
        (home..home + PROBE_COUNT).map(move |bucket| segment + bucket % BUCKETS_PER_BLOCK * LINE_SIZE)
    }
}

/// The words of a bucket: a head, and two for each key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket(pub [u64; LINE_WORDS]);

const HEAD_LIVE: u64 = 1 << 63;
const HEAD_INCOMPLETE: u64 = 1 << 62;
const HEAD_REACH_SHIFT: u32 = 52;
const HEAD_REACH_MASK: u64 = 0xF;
const HEAD_OVERFLOW_SHIFT: u32 = 40;
const HEAD_OVERFLOW_MASK: u64 = 0xFFF;
const HEAD_DEPTH_SHIFT: u32 = 32;
const HEAD_DEPTH_MASK: u64 = 0x3F;
const HEAD_PREFIX_MASK: u64 = u32::MAX as u64;

impl Bucket {
    /// An empty one of a segment.
    pub fn new(depth: u32, prefix: u64) -> Bucket {
        let mut words = [0; LINE_WORDS];
        words[0] = HEAD_LIVE | u64::from(depth) << HEAD_DEPTH_SHIFT | prefix;
        Bucket(words)
    }

    /// How many bits the prefix has that all keys of the segment share, and what it is.
    pub fn prefix(&self) -> (u32, u64) {
        ((self.0[0] >> HEAD_DEPTH_SHIFT & HEAD_DEPTH_MASK) as u32, self.0[0] & HEAD_PREFIX_MASK)
    }

    /// Whether its segment is the one of a key (invariant 1).
    pub fn is_of(&self, key: TableKey) -> bool {
        let (depth, prefix) = self.prefix();
        self.0[0] & HEAD_LIVE != 0 && prefix_of(key.hash, depth) == prefix
    }

    /// How many buckets behind this one the last may be that has a key whose home this is.
    pub fn reach(&self) -> u64 {
        self.0[0] >> HEAD_REACH_SHIFT & HEAD_REACH_MASK
    }

    /// Whether all keys whose home this is have found room.
    pub fn is_complete(&self) -> bool {
        self.0[0] & HEAD_INCOMPLETE == 0
    }

    /// A key whose home this is has found no room.
    pub fn set_incomplete(&mut self) {
        self.0[0] |= HEAD_INCOMPLETE;
    }

    /// A key whose home this is has come to a bucket so many behind.
    pub fn add_overflow(&mut self, step: u64) {
        let count = (self.0[0] >> HEAD_OVERFLOW_SHIFT & HEAD_OVERFLOW_MASK) + 1;
        self.set_overflow(count, self.reach().max(step));
    }

    /// One that was behind has gone.
    pub fn remove_overflow(&mut self) {
        let count = (self.0[0] >> HEAD_OVERFLOW_SHIFT & HEAD_OVERFLOW_MASK) - 1;
        self.set_overflow(count, if count == 0 { 0 } else { self.reach() });
    }

    fn set_overflow(&mut self, count: u64, reach: u64) {
        assert!(count <= HEAD_OVERFLOW_MASK && reach < PROBE_COUNT, "a bucket has no more keys than its segment");
        let mask = HEAD_OVERFLOW_MASK << HEAD_OVERFLOW_SHIFT | HEAD_REACH_MASK << HEAD_REACH_SHIFT;
        self.0[0] = self.0[0] & !mask | count << HEAD_OVERFLOW_SHIFT | reach << HEAD_REACH_SHIFT;
    }

    /// The slot of a key, and its value.
    pub fn find(&self, key: TableKey) -> Option<(usize, u64)> {
        find_in(|word| self.0[word], key)
    }

    /// A slot without a key.
    pub fn free_slot(&self) -> Option<usize> {
        (0..BUCKET_KEYS).find(|slot| self.0[2 + 2 * slot] == 0)
    }

    /// All keys with their values.
    pub fn entries(&self) -> impl Iterator<Item = (TableKey, u64)> {
        let slots = (0..BUCKET_KEYS).map(|slot| (self.0[1 + 2 * slot], self.0[2 + 2 * slot]));
        let keys = slots.filter(|(_, second)| *second != 0);
        keys.map(|(hash, second)| (TableKey { hash, check: second >> VALUE_BITS }, second & VALUE_MASK))
    }

    /// Puts a key into a slot; a value of 0 frees it.
    pub fn set(&mut self, slot: usize, key: TableKey, value: u64) {
        for (index, word) in words_of_slot(slot, key, value) {
            self.0[index] = word;
        }
    }
}

/// The slot of a key in a bucket whose words are read one by one, and its value.
#[inline]
pub fn find_in(word: impl Fn(usize) -> u64, key: TableKey) -> Option<(usize, u64)> {
    for slot in (0..BUCKET_KEYS).filter(|slot| word(1 + 2 * slot) == key.hash) {
        let second = word(2 + 2 * slot);
        if second != 0 && second >> VALUE_BITS == key.check {
            return Some((slot, second & VALUE_MASK));
        }
    }
    None
}

/// The words of a slot with a key that stands for a value; with 0 the slot is free.
pub fn words_of_slot(slot: usize, key: TableKey, value: u64) -> [(usize, u64); 2] {
    assert!(value <= VALUE_MASK, "a value has room beside what is left of a key");
    let (hash, second) = if value == 0 { (0, 0) } else { (key.hash, key.check << VALUE_BITS | value) };
    [(1 + 2 * slot, hash), (2 + 2 * slot, second)]
}

/// The first bits of a hash.
pub fn prefix_of(hash: u64, bits: u32) -> u64 {
    if bits == 0 { 0 } else { hash >> (64 - bits) }
}

/// What the table of names says of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameState {
    /// It leads to a file that needs not be asked for, and that has its home here, in a cell.
    Here(FileCell),
    /// To one that has its home on another server: a cell that begins with its id.
    Elsewhere(u64),
    /// It is there; the server knows more.
    Exists,
    /// A change of several servers has it, whether it is there or not: the server knows more.
    Locked { exists: bool },
}

/// The cell of a file, and as much of its id as has room beside that: a cell whose file is gone may be another one's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileCell {
    cell: u64,
    check: u64,
}

const CELL_BITS: u32 = 27;
const STATE_BITS: u32 = 3;
const FILE_CHECK_SHIFT: u32 = CELL_BITS + STATE_BITS;
const FILE_CHECK_BITS: u32 = VALUE_BITS - FILE_CHECK_SHIFT;
const _: () = assert!(SIZE_MAX / CELL_SIZE <= 1 << CELL_BITS);

impl FileCell {
    pub fn new(file: FileId, cell: u64) -> FileCell {
        assert!(cell < 1 << CELL_BITS, "cells lie in an attribute cache");
        FileCell { cell, check: TableKey::of_inode(file).hash >> (64 - FILE_CHECK_BITS) }
    }

    pub fn cell(self) -> u64 {
        self.cell
    }

    /// Whether it may be that of a file.
    pub fn is_of(self, file: FileId) -> bool {
        FileCell::new(file, self.cell) == self
    }
}

impl NameState {
    /// What a value stands for; it is not 0.
    pub fn of_value(value: u64) -> NameState {
        let cell = value & ((1 << CELL_BITS) - 1);
        match value >> CELL_BITS & ((1 << STATE_BITS) - 1) {
            1 => NameState::Here(FileCell { cell, check: value >> FILE_CHECK_SHIFT }),
            2 => NameState::Elsewhere(cell),
            3 => NameState::Locked { exists: false },
            4 => NameState::Locked { exists: true },
            _ => NameState::Exists,
        }
    }

    pub fn value(self) -> u64 {
        let (state, cell, check) = match self {
            NameState::Here(FileCell { cell, check }) => (1, cell, check),
            NameState::Elsewhere(cell) => (2, cell, 0),
            NameState::Locked { exists: false } => (3, 0, 0),
            NameState::Locked { exists: true } => (4, 0, 0),
            NameState::Exists => (5, 0, 0),
        };
        check << FILE_CHECK_SHIFT | state << CELL_BITS | cell
    }
}

/// Where the first bytes of a file lie, one behind the other, in the store that its home lends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FirstBytes {
    /// First byte in the store's data.
    pub at: u64,
    /// How many there are; 0 where that is not told.
    pub size: u32,
}

/// The words of an inode's cell, which nobody but its owner believes yet.
pub fn inode_words(attributes: &Attributes, has_more: bool, buffer: &mut Vec<u8>) -> [u64; CELL_WORDS] {
    buffer.clear();
    attributes.encode(buffer);
    assert!(buffer.len() <= FIRST_WORD * WORD_SIZE, "a cell has room for attributes");
    let mut bytes = [0; CELL_WORDS * WORD_SIZE];
    bytes[..buffer.len()].copy_from_slice(buffer);
    let mut words: [u64; CELL_WORDS] = words_of(&bytes);
    if has_more {
        words[STATE_WORD] |= STATE_HAS_MORE;
    }
    words
}

/// What has an inode's cell believed from now on, where the first bytes lie so, or no more: single words, of a cell
/// with this second word.
pub fn publication(second_word: u64, first: Option<FirstBytes>) -> [(usize, u64); 3] {
    let FirstBytes { at, size } = first.unwrap_or_default();
    let published = if first.is_some() { STATE_PUBLISHED } else { 0 };
    [(STATE_WORD, second_word & !STATE_PUBLISHED | published), (FIRST_WORD, at), (FIRST_WORD + 1, size.into())]
}

/// The word of a cell that tells whether it says where the first bytes lie: 0 where it does not.
pub const FIRST_SIZE_WORD: usize = FIRST_WORD + 1;

/// The word of a directory's cell with the id of the one that it is in; 0 for the root.
pub const PARENT_WORD: usize = FIRST_WORD;

/// Whether a cell with this second word is to be believed.
pub fn is_published(second_word: u64) -> bool {
    second_word & STATE_PUBLISHED != 0
}

/// Whether its owner knows more of an inode than the words say.
pub fn has_more(words: &[u64; CELL_WORDS]) -> bool {
    words[STATE_WORD] & STATE_HAS_MORE != 0
}

/// Where an inode's cell says that the first bytes lie.
pub fn first_bytes_in(words: &[u64; CELL_WORDS]) -> FirstBytes {
    FirstBytes { at: words[FIRST_WORD], size: words[FIRST_WORD + 1] as u32 }
}

/// The attributes in an inode's cell. Errors: the words are none.
pub fn inode_in(words: &[u64; CELL_WORDS]) -> Option<Attributes> {
    let mut bytes = [0; CELL_WORDS * WORD_SIZE];
    for (target, word) in bytes.as_chunks_mut::<WORD_SIZE>().0.iter_mut().zip(words) {
        *target = word.to_le_bytes();
    }
    bytes[STATE_WORD * WORD_SIZE] &= !(STATE_MASK as u8);
    Attributes::decode(&mut Decoder::new(&bytes)).ok()
}

/// What the inode is in a cell with this second word.
pub fn kind_in(second_word: u64) -> Option<Kind> {
    Kind::from_code((second_word & !STATE_MASK) as u8)
}

/// The attributes that an inode's cell shows, if they are those of this file.
pub fn attributes_in(words: &[u64; CELL_WORDS], file: FileId) -> Option<Attributes> {
    if words[0] != file.0 || !is_published(words[STATE_WORD]) {
        return None;
    }
    inode_in(words).filter(|attributes| attributes.kind == Kind::File && attributes.link_count > 0)
}

/// The words of a permission: names may be made in a directory without anything being done before.
pub fn directory_words(directory: FileId) -> [u64; 2] {
    [directory.0, u64::MAX]
}

/// The words of the permission to submit writes to a file.
pub fn writable_words(file: FileId) -> [u64; 2] {
    [file.0, u64::MAX - 1]
}

/// The word of the tree's cell, where the last change of the tree is `number` and none is under way.
pub fn tree_word(number: u64) -> u64 {
    number << 1 | 1
}

fn words_of<const BYTES: usize, const WORDS: usize>(bytes: &[u8; BYTES]) -> [u64; WORDS] {
    const { assert!(BYTES == WORDS * WORD_SIZE) };
    let mut words = [0; WORDS];
    for (word, part) in words.iter_mut().zip(bytes.as_chunks::<WORD_SIZE>().0) {
        *word = u64::from_le_bytes(*part);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{Layout, LayoutPolicy};
    use std::collections::BTreeSet;

    const PARENT: FileId = FileId(77 << 20);
    const FILE: FileId = FileId(78 << 20 | 5);

    /// Goal: no two parts of an attribute cache overlap, and all of them lie in it, whatever its size.
    #[test]
    fn shapes() {
        assert_eq!(
            (AttributeCacheShape::of_size(SIZE_MIN - 1), AttributeCacheShape::size_within(SIZE_MIN - 1)),
            (None, 0)
        );
        for limit in [SIZE_MIN, 100_000, 1 << 20, 1 << 30, SIZE_MAX, u64::MAX] {
            let size = AttributeCacheShape::size_within(limit);
            assert!(size <= limit.min(SIZE_MAX) && size > limit.min(SIZE_MAX) - BLOCK_SIZE);
            let shape = AttributeCacheShape::of_size(size).expect("room");
            let end = shape.cell_offset(shape.block_count() * CELLS_PER_BLOCK);
            assert!(shape.block_count() >= 4 && end <= size && end > size - BLOCK_SIZE);
            let permissions: Vec<u64> = shape.permission_offsets().collect();
            assert!(USED_OFFSET < permissions[0] && permissions.windows(2).all(|pair| pair[1] - pair[0] == LINE_SIZE));
            let last = permissions.last().expect("permissions") + LINE_SIZE;
            let words = |table| (0..1 << shape.prefix_bits()).map(move |index| shape.directory_word(table, index));
            let names: Vec<u64> = words(Table::Names).collect();
            let inodes: Vec<u64> = words(Table::Inodes).collect();
            let own = [USED_OFFSET, shape.depth_offset(Table::Names), shape.depth_offset(Table::Inodes)];
            assert!(own.windows(2).all(|pair| pair[0] < pair[1]) && own[2] < PERMISSIONS_START);
            assert_eq!((names[0], inodes[0]), (last, names.last().expect("words") + WORD_SIZE as u64));
            assert!(inodes.last().expect("words") + WORD_SIZE as u64 <= shape.blocks_start());
            for number in 0..1000u64 {
                let key = TableKey::of_inode(FileId(number + 1));
                assert!(permissions.contains(&shape.permission_offset(FileId(number))));
                assert_eq!(shape.directory_offset(Table::Names, key, 0), names[0]);
                assert!(names.binary_search(&shape.directory_offset(Table::Names, key, u64::MAX)).is_ok());
                let buckets: BTreeSet<u64> = shape.bucket_offsets(3, key).collect();
                assert_eq!(buckets.len() as u64, PROBE_COUNT);
                let block = shape.cell_offset(3 * CELLS_PER_BLOCK)..shape.cell_offset(4 * CELLS_PER_BLOCK);
                assert!(buckets.iter().all(|bucket| shape.all_bucket_offsets(3).any(|offset| offset == *bucket)));
                assert!(buckets.iter().all(|bucket| block.contains(bucket) && bucket % LINE_SIZE == 0));
            }
        }
    }

    /// Goal: a bucket has room for three keys, tells them apart also where their hashes are the same, and knows which
    /// keys it is for.
    #[test]
    fn buckets() {
        let key = |hash, check| TableKey { hash, check };
        let mut bucket = Bucket::new(3, 0b101);
        assert!(bucket.is_of(key(0b1011 << 60, 1)) && !bucket.is_of(key(0b1001 << 60, 1)));
        assert!(!Bucket([0; LINE_WORDS]).is_of(key(0, 0)), "one that is empty is of no segment");
        let keys: Vec<TableKey> =
            (0..BUCKET_KEYS as u64).map(|n| key((0b101 << 61) + n / 2, CHECK_MASK - n % 2)).collect();
        for (value, key) in keys.iter().enumerate() {
            assert_eq!(bucket.find(*key), None);
            let slot = bucket.free_slot().expect("room");
            bucket.set(slot, *key, VALUE_MASK - value as u64);
        }
        assert_eq!(bucket.free_slot(), None);
        let values = (0..BUCKET_KEYS as u64).map(|value| VALUE_MASK - value);
        assert_eq!(bucket.entries().collect::<Vec<_>>(), keys.iter().copied().zip(values).collect::<Vec<_>>());
        let (slot, value) = bucket.find(keys[1]).expect("it is there");
        assert_eq!(value, VALUE_MASK - 1);
        bucket.set(slot, keys[1], 0);
        assert_eq!((bucket.find(keys[1]), bucket.free_slot()), (None, Some(1)));
        assert_eq!(bucket.find(keys[2]), Some((2, VALUE_MASK - 2)));
        bucket.add_overflow(2);
        bucket.add_overflow(1);
        assert_eq!((bucket.reach(), bucket.prefix(), bucket.is_complete()), (2, (3, 0b101), true));
        bucket.remove_overflow();
        assert_eq!(bucket.reach(), 2);
        bucket.set_incomplete();
        bucket.remove_overflow();
        assert_eq!((bucket.reach(), bucket.prefix(), bucket.is_complete()), (0, (3, 0b101), false));
    }

    /// Goal: keys of names differ in their directories and names; those of inodes are never the same.
    #[test]
    fn keys() {
        let keys: BTreeSet<TableKey> = (1..10_000).map(|number| TableKey::of_inode(FileId(number << 20 | 3))).collect();
        assert_eq!(keys.len(), 9_999);
        let name = TableKey::of_name(PARENT, b"a");
        assert_ne!(name.check, TableKey::of_name(PARENT, b"b").check);
        assert_ne!(name.check, TableKey::of_name(PARENT, b"a\0").check);
        assert_ne!(name.check, TableKey::of_name(FileId(PARENT.0 + 1), b"a").check);
        assert_eq!(name, TableKey::of_hashed_name(dentry_hash(PARENT, b"a"), PARENT, b"a"));
    }

    /// Goal: what is said of a name comes back from its value.
    #[test]
    fn names() {
        let last = SIZE_MAX / CELL_SIZE - 1;
        let here = [FILE, FileId(u64::MAX)].map(|file| FileCell::new(file, last));
        let locked = [true, false].map(|exists| NameState::Locked { exists });
        for state in [NameState::Here(here[0]), NameState::Here(here[1]), NameState::Elsewhere(last), NameState::Exists]
            .into_iter()
            .chain(locked)
        {
            assert_eq!(NameState::of_value(state.value()), state);
            assert!((1..=VALUE_MASK).contains(&state.value()));
        }
        assert!(here[0].is_of(FILE) && !here[0].is_of(FileId(u64::MAX)) && here[0].cell() == last);
    }

    /// Goal: an inode's cell has room for all attributes, and shows them of their own file only, once it is published.
    #[test]
    fn inodes() {
        let attributes = Attributes {
            id: FILE,
            kind: Kind::File,
            mode: u32::MAX,
            uid: u32::MAX,
            gid: u32::MAX,
            link_count: u32::MAX,
            size: u64::MAX,
            atime: -1,
            mtime: -1,
            ctime: -1,
            version: u64::MAX,
            truncate_generation: u32::MAX,
            times_set: -1,
            layout: Layout { width: u32::MAX, run: u32::MAX, ..Layout::default_for(LayoutPolicy::Ring, 9, 9, 1 << 20) },
        };
        let first = FirstBytes { at: u64::MAX, size: u32::MAX };
        let set = |words: &mut [u64; CELL_WORDS], first| {
            publication(words[1], first).into_iter().for_each(|(index, word)| words[index] = word);
        };
        let mut words = inode_words(&attributes, true, &mut Vec::new());
        assert_eq!((attributes_in(&words, FILE), is_published(words[1]), has_more(&words)), (None, false, true));
        assert_eq!((kind_in(words[1]), kind_in(u64::MAX)), (Some(Kind::File), None));
        set(&mut words, Some(first));
        assert_eq!((first_bytes_in(&words), words[FIRST_SIZE_WORD]), (first, u64::from(first.size)));
        assert_eq!((attributes_in(&words, FILE), kind_in(words[1])), (Some(attributes.clone()), Some(Kind::File)));
        assert_eq!(attributes_in(&words, FileId(FILE.0 + 1)), None);
        assert!(has_more(&words) && !has_more(&inode_words(&attributes, false, &mut Vec::new())));
        set(&mut words, None);
        assert_eq!((attributes_in(&words, FILE), inode_in(&words)), (None, Some(attributes.clone())));
        assert_eq!(attributes_in(&[u64::MAX; CELL_WORDS], FileId(u64::MAX)), None, "no such kind");
        let removed = Attributes { link_count: 0, ..attributes };
        let mut words = inode_words(&removed, false, &mut Vec::new());
        set(&mut words, Some(first));
        assert_eq!(attributes_in(&words, FILE), None);
    }
}
