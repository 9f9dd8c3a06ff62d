//! File ids and slots: who is responsible for what, for good.

use crate::codec::{Decode, Decoder, Encode, Malformed};
use siphasher::sip::SipHasher13;
use std::cell::RefCell;
use std::hash::Hasher;

/// A fixed share of the key space, below the cluster's slot count.
pub type Slot = u32;

const HOME_SLOT_BITS: u32 = 20;
/// Says that a file was taken up from the backing tree, and not made here.
const FROM_BEHIND: u64 = 1 << 62;
/// Largest sequence of a file id (42 bits).
pub const SEQUENCE_MAX: u64 = (1 << (62 - HOME_SLOT_BITS)) - 1;

/// A file's identity: a sequence that is never reused (42 bits) above its home slot (20 bits). Above both a bit that is
/// set in those of files and directories of the backing tree (docs/cache.md): so whoever meets an id knows whether
/// there is anything behind it, and need not ask. The highest bit is never set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct FileId(pub u64);

impl FileId {
    /// The root directory: sequence 1 at slot 0.
    pub const ROOT: FileId = FileId(1 << HOME_SLOT_BITS);

    pub fn new(sequence: u64, home: Slot) -> FileId {
        assert!(sequence <= SEQUENCE_MAX && home < 1 << HOME_SLOT_BITS);
        FileId(sequence << HOME_SLOT_BITS | u64::from(home))
    }

    /// The slot where the inode lives.
    pub fn home(self) -> Slot {
        (self.0 & ((1 << HOME_SLOT_BITS) - 1)) as Slot
    }

    /// The same for what was taken up from the backing tree.
    pub fn taken_up(sequence: u64, home: Slot) -> FileId {
        FileId(FileId::new(sequence, home).0 | FROM_BEHIND)
    }

    /// Whether it was taken up from the backing tree. Of the root, which is of both, the id does not tell.
    pub fn is_from_behind(self) -> bool {
        self.0 & FROM_BEHIND != 0
    }

    pub fn sequence(self) -> u64 {
        (self.0 & !FROM_BEHIND) >> HOME_SLOT_BITS
    }
}

impl std::fmt::Display for FileId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

impl Encode for FileId {
    fn encode(&self, out: &mut Vec<u8>) {
        self.0.encode(out);
    }
}

impl<'a> Decode<'a> for FileId {
    fn decode(input: &mut Decoder<'a>) -> Result<Self, Malformed> {
        Ok(FileId(u64::decode(input)?))
    }
}

/// Version of the hashes below; part of the on-media format and of the cluster file.
pub const HASH_VERSION: u32 = 1;
const HASH_KEY_DENTRY: (u64, u64) = (0x7461_6261_6e65_0001, 0x6465_6e74_7279_0001);
const HASH_KEY_CHUNK: (u64, u64) = (0x7461_6261_6e65_0002, 0x6368_756e_6b00_0001);
const HASH_KEY_RING: (u64, u64) = (0x7461_6261_6e65_0003, 0x7269_6e67_0000_0001);

fn hash_with(key: (u64, u64), number: u64, bytes: &[u8]) -> u64 {
    let mut hasher = SipHasher13::new_with_keys(key.0, key.1);
    hasher.write(&number.to_le_bytes());
    hasher.write(bytes);
    hasher.finish()
}

/// Longest name whose hash is remembered.
const LAST_NAME_SIZE: usize = 40;

/// The last name whose hash was asked for. What is done with a name asks for it some five times.
struct LastName {
    parent: u64,
    size: usize,
    name: [u8; LAST_NAME_SIZE],
    hash: u64,
}

thread_local! {
    static LAST_NAME: RefCell<LastName> =
        const { RefCell::new(LastName { parent: 0, size: usize::MAX, name: [0; LAST_NAME_SIZE], hash: 0 }) };
}

/// Hash of a directory entry. Its remainder is the entry's slot, its upper 63 bits are the entry's listing cursor.
pub fn dentry_hash(parent: FileId, name: &[u8]) -> u64 {
    if name.len() > LAST_NAME_SIZE {
        return hash_with(HASH_KEY_DENTRY, parent.0, name);
    }
    LAST_NAME.with_borrow_mut(|last| {
        if last.parent != parent.0 || last.size != name.len() || last.name[..name.len()] != *name {
            (last.parent, last.size) = (parent.0, name.len());
            last.name[..name.len()].copy_from_slice(name);
            last.hash = hash_with(HASH_KEY_DENTRY, parent.0, name);
        }
        last.hash
    })
}

/// The slot of a directory entry among `slot_count` slots.
pub fn dentry_slot(parent: FileId, name: &[u8], slot_count: u32) -> Slot {
    (dentry_hash(parent, name) % u64::from(slot_count)) as Slot
}

/// Hash that scatters chunks under the ring policy.
pub fn chunk_hash(file: FileId, chunk_index: u64) -> u64 {
    hash_with(HASH_KEY_CHUNK, file.0, &chunk_index.to_le_bytes())
}

/// Position of a virtual node or a slot on the consistent-hashing ring.
pub fn ring_hash(kind: u64, number: u64) -> u64 {
    hash_with(HASH_KEY_RING, kind, &number.to_le_bytes())
}
