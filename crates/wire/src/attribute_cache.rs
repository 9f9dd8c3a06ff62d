//! What a server shows of its names and files in an attribute cache that clients of its machine have mapped: where
//! which cell is, and what is in it (docs/attribute-cache.md).
//!
//! A cell for the state of the directory tree, a row of cells for names, and one for inodes. A name is in one of the
//! `NAME_WAYS` cells of a set, which is chosen by its hash; an inode in the cell that its sequence leads to. Each cell
//! has room for one name or inode: where none is free, another one that comes to it takes its place, and whoever does
//! not find what he looks for asks the server.
//!
//! Invariants
//! 1. The first word of a cell with something in it is not 0: it is an id, or has its lowest bit set.

use crate::attributes::{Attributes, Kind};
use crate::codec::{Decode, Decoder, Encode};
use crate::identity::FileId;

const WORD_SIZE: usize = 8;
const LINE_SIZE: u64 = 64;

/// Bytes of a cell with its version: the tree's and a name's, and an inode's.
pub const NAME_CELL_SIZE: u64 = LINE_SIZE;
pub const INODE_CELL_SIZE: u64 = 2 * LINE_SIZE;
/// Words in a cell beside its version.
pub const NAME_WORDS: usize = NAME_CELL_SIZE as usize / WORD_SIZE - 1;
pub const INODE_WORDS: usize = INODE_CELL_SIZE as usize / WORD_SIZE - 1;
/// The word of an inode's cell behind the attributes.
const FIRST_WORD: usize = 12;
/// Words of a name's cell in front of the name: the directory, and the file.
const NAME_WORDS_BEFORE: usize = 2;
/// Longer names are not shown.
pub const NAME_SIZE_MAX: usize = (NAME_WORDS - NAME_WORDS_BEFORE) * WORD_SIZE - 1;
/// Cells for names to each one for an inode: names lie by hash, so that half of their cells would be taken twice,
/// inodes one after the other.
const NAMES_PER_INODE: u64 = 2;
/// Cells that a name may be in, one behind the other. With a name for every four cells one in 200 finds none free; with
/// one cell for each name it would be one in eight.
pub const NAME_WAYS: usize = 4;
/// Attribute caches have at least so many cells for inodes, so that there is a set for names.
const INODE_COUNT_MIN: u64 = NAME_WAYS as u64 / NAMES_PER_INODE;
/// Buckets in which names are counted, for each cell of an inode; a byte each.
const BUCKETS_PER_INODE: u64 = 32;
/// Buckets that a name counts in: where one of them is empty, there is no such name.
pub const NAME_BUCKETS: usize = 2;
/// A bucket with so many names is never counted down again.
pub const BUCKET_FULL: u8 = u8::MAX;
/// Bytes of the largest attribute cache.
const SIZE_MAX: u64 =
    LINE_SIZE + INODE_COUNT_MAX * (NAMES_PER_INODE * NAME_CELL_SIZE + INODE_CELL_SIZE + BUCKETS_PER_INODE);
const INODE_COUNT_MAX: u64 = 1 << 16;

/// How an attribute cache of some size is laid out: the tree's cell, the names' and the inodes'.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttributeCacheShape {
    inode_count: u64,
}

impl AttributeCacheShape {
    /// The shape of an attribute cache with so many bytes; nothing if it has no room.
    pub fn of_size(size: u64) -> Option<AttributeCacheShape> {
        let room =
            size.checked_sub(LINE_SIZE)? / (NAMES_PER_INODE * NAME_CELL_SIZE + INODE_CELL_SIZE + BUCKETS_PER_INODE);
        (room >= INODE_COUNT_MIN).then(|| AttributeCacheShape { inode_count: 1 << room.min(INODE_COUNT_MAX).ilog2() })
    }

    /// Bytes for the attribute cache of a server that may have so many of them; 0 if that is too few.
    pub fn size_within(limit: u64) -> u64 {
        match AttributeCacheShape::of_size(limit.min(SIZE_MAX)) {
            Some(shape) => shape.buckets_start() + shape.inode_count * BUCKETS_PER_INODE,
            None => 0,
        }
    }

    fn name_count(self) -> u64 {
        self.inode_count * NAMES_PER_INODE
    }

    fn inodes_start(self) -> u64 {
        LINE_SIZE + self.name_count() * NAME_CELL_SIZE
    }

    fn buckets_start(self) -> u64 {
        self.inodes_start() + self.inode_count * INODE_CELL_SIZE
    }

    /// First and last byte of the buckets, which are words' bytes from the lowest on.
    pub fn buckets(self) -> std::ops::Range<u64> {
        self.buckets_start()..self.buckets_start() + self.inode_count * BUCKETS_PER_INODE
    }

    /// The buckets of a name with this hash, which lie in one line: of each its word's first byte, and how far up in it
    /// the bucket is. They may be the same one. The lowest bit of the hash does not count.
    pub fn buckets_of(self, hash: u64) -> [(u64, u32); NAME_BUCKETS] {
        let line = self.buckets_start() + (hash >> 32) % (self.inode_count * BUCKETS_PER_INODE / LINE_SIZE) * LINE_SIZE;
        std::array::from_fn(|index| {
            let bucket = hash >> (20 + 6 * index) & (LINE_SIZE - 1);
            (line + bucket / 8 * 8, (bucket % 8) as u32 * 8)
        })
    }

    /// First byte of the cell for the tree.
    pub fn tree_offset(self) -> u64 {
        0
    }

    /// First bytes of the cells for a name with this hash ([`crate::identity::dentry_hash`]).
    pub fn name_offsets(self, hash: u64) -> [u64; NAME_WAYS] {
        // The lower bits have chosen the server.
        let set = (hash >> 32) % (self.name_count() / NAME_WAYS as u64);
        std::array::from_fn(|way| LINE_SIZE + (set * NAME_WAYS as u64 + way as u64) * NAME_CELL_SIZE)
    }

    /// The one of these that is to be taken where none is free.
    pub fn taken_way(hash: u64) -> usize {
        (hash >> 16) as usize % NAME_WAYS
    }

    /// First bytes of the cells of all names, and of all inodes. For checks.
    pub fn all_offsets(self) -> (impl Iterator<Item = u64>, impl Iterator<Item = u64>) {
        let names = (0..self.name_count()).map(|index| LINE_SIZE + index * NAME_CELL_SIZE);
        (names, (0..self.inode_count).map(move |index| self.inodes_start() + index * INODE_CELL_SIZE))
    }

    /// First byte of the cell for an inode.
    pub fn inode_offset(self, file: FileId) -> u64 {
        self.inodes_start() + file.sequence() % self.inode_count * INODE_CELL_SIZE
    }
}

impl AttributeCacheShape {
    /// First byte of the cell for a directory, which is one of those for inodes. Directories that are made one after
    /// the other on different servers have the same sequence.
    pub fn directory_offset(self, directory: FileId) -> u64 {
        let hash = directory.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        self.inodes_start() + hash % self.inode_count * INODE_CELL_SIZE
    }
}

/// A name and the file that it stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NameCell([u64; NAME_WORDS]);

impl NameCell {
    /// The cell for a name; nothing if that is too long.
    pub fn new(parent: FileId, name: &[u8], file: FileId) -> Option<NameCell> {
        if name.len() > NAME_SIZE_MAX {
            return None;
        }
        let mut bytes = [0; NAME_WORDS * WORD_SIZE];
        bytes[..8].copy_from_slice(&parent.0.to_le_bytes());
        bytes[8..16].copy_from_slice(&file.0.to_le_bytes());
        bytes[16] = name.len() as u8;
        bytes[17..17 + name.len()].copy_from_slice(name);
        Some(NameCell(words_of(&bytes)))
    }

    pub fn words(&self) -> &[u64] {
        &self.0
    }

    /// The directory, the name and the file in a cell's words.
    pub fn parts(words: &[u64; NAME_WORDS]) -> (FileId, Vec<u8>, FileId) {
        let bytes: Vec<u8> = words[NAME_WORDS_BEFORE..].iter().flat_map(|word| word.to_le_bytes()).collect();
        let size = usize::from(bytes[0]).min(NAME_SIZE_MAX);
        (FileId(words[0]), bytes[1..=size].to_vec(), FileId(words[1]))
    }

    /// The file, if `words` are those of a cell for the same name as this one.
    pub fn file_in(&self, words: &[u64; NAME_WORDS]) -> Option<FileId> {
        let is_same = words[0] == self.0[0] && words[NAME_WORDS_BEFORE..] == self.0[NAME_WORDS_BEFORE..];
        is_same.then_some(FileId(words[1]))
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

/// The words of an inode's cell; `buffer` is for what is in between.
pub fn inode_words(attributes: &Attributes, first: FirstBytes, buffer: &mut Vec<u8>) -> [u64; INODE_WORDS] {
    buffer.clear();
    attributes.encode(buffer);
    let mut bytes = [0; INODE_WORDS * WORD_SIZE];
    bytes[..buffer.len().min(FIRST_WORD * WORD_SIZE)].copy_from_slice(buffer);
    let mut words: [u64; INODE_WORDS] = words_of(&bytes);
    (words[FIRST_WORD], words[FIRST_WORD + 1]) = (first.at, first.size.into());
    words
}

/// Where an inode's cell says that the first bytes lie.
pub fn first_bytes_in(words: &[u64; INODE_WORDS]) -> FirstBytes {
    FirstBytes { at: words[FIRST_WORD], size: words[FIRST_WORD + 1] as u32 }
}

/// The attributes in an inode's cell, if they are those of this file, which they are only shown of.
pub fn attributes_in(words: &[u64; INODE_WORDS], file: FileId) -> Option<Attributes> {
    let mut bytes = [0; INODE_WORDS * WORD_SIZE];
    for (target, word) in bytes.chunks_exact_mut(WORD_SIZE).zip(words) {
        target.copy_from_slice(&word.to_le_bytes());
    }
    let attributes = Attributes::decode(&mut Decoder::new(&bytes)).ok()?;
    (attributes.id == file && attributes.kind == Kind::File && attributes.link_count > 0).then_some(attributes)
}

/// The words of a directory's cell among those of inodes: names may be made in it without anything being done before.
pub fn directory_words(directory: FileId) -> [u64; 2] {
    [directory.0, u64::MAX]
}

/// The words of the cell of a file to which writes may be submitted, which is where one for a directory with its id
/// would be.
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

    const PARENT: FileId = FileId(77 << 20);
    const FILE: FileId = FileId(78 << 20 | 5);

    /// Goal: no two cells of an attribute cache overlap, and all of them lie on it, whatever its size.
    #[test]
    fn shapes() {
        assert_eq!((AttributeCacheShape::of_size(639), AttributeCacheShape::size_within(639)), (None, 0));
        for limit in [640, 1500, 1 << 20, SIZE_MAX - 1, SIZE_MAX, u64::MAX] {
            let size = AttributeCacheShape::size_within(limit);
            assert!(size <= limit.min(SIZE_MAX) && size > limit.min(SIZE_MAX) / 3);
            let shape = AttributeCacheShape::of_size(size).expect("room");
            let sets = shape.name_count() / NAME_WAYS as u64;
            let names: Vec<u64> = (0..sets).flat_map(|index| shape.name_offsets(index << 32)).collect();
            let inodes = (0..shape.inode_count).map(|index| shape.inode_offset(FileId::new(index, 3)));
            assert!(shape.all_offsets().0.eq(names.iter().copied()) && shape.all_offsets().1.eq(inodes.clone()));
            assert_eq!((shape.tree_offset(), names[0]), (0, LINE_SIZE));
            assert!(names.windows(2).all(|pair| pair[1] - pair[0] == NAME_CELL_SIZE));
            let last = names.last().expect("names") + NAME_CELL_SIZE;
            assert!(inodes.enumerate().all(|(index, offset)| offset == last + index as u64 * INODE_CELL_SIZE));
            let buckets = shape.buckets();
            assert_eq!((last + shape.inode_count * INODE_CELL_SIZE, size), (buckets.start, buckets.end));
            for hash in [0, 77 << 32, u64::MAX, 12_345_678_901_234_567] {
                let both = shape.buckets_of(hash);
                assert!(both.iter().all(|(word, shift)| buckets.contains(word) && word % 8 == 0 && shift % 8 == 0));
                assert!(both.iter().all(|(word, shift)| word / LINE_SIZE == both[0].0 / LINE_SIZE && *shift < 64));
                assert_eq!(both, shape.buckets_of(hash ^ 1));
                assert!(shape.name_offsets(hash).iter().all(|offset| names.contains(offset)));
                assert!(AttributeCacheShape::taken_way(hash) < NAME_WAYS);
            }
        }
    }

    /// Goal: a name's cell is found by that name alone.
    #[test]
    fn names() {
        let cell = |parent, name: &[u8]| NameCell::new(parent, name, FILE);
        let longest = [7; NAME_SIZE_MAX];
        for name in [&b"a"[..], b"ab", b"file.mdtest.0.1234567", &longest] {
            let shown = *cell(PARENT, name).expect("it fits").words().first_chunk().expect("words");
            assert_eq!(cell(PARENT, name).expect("it fits").file_in(&shown), Some(FILE));
            assert_eq!(NameCell::parts(&shown), (PARENT, name.to_vec(), FILE));
            for other in [&b"b"[..], b"abc", b"a\0", &longest[1..]] {
                assert_eq!(cell(PARENT, other).expect("it fits").file_in(&shown), None);
            }
            assert_eq!(cell(FileId(PARENT.0 + 1), name).expect("it fits").file_in(&shown), None);
        }
        assert_eq!(cell(PARENT, &[7; NAME_SIZE_MAX + 1]), None);
    }

    /// Goal: an inode's cell has room for all attributes, and tells them of their own file only.
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
        let words = inode_words(&attributes, first, &mut Vec::new());
        assert_eq!(first_bytes_in(&words), first);
        assert_eq!(attributes_in(&words, FILE), Some(attributes.clone()));
        assert_eq!(attributes_in(&words, FileId(FILE.0 + 1)), None);
        assert_eq!(attributes_in(&[u64::MAX; INODE_WORDS], FileId(u64::MAX)), None, "no such kind");
        let removed = Attributes { link_count: 0, ..attributes };
        assert_eq!(attributes_in(&inode_words(&removed, first, &mut Vec::new()), FILE), None);
    }
}
