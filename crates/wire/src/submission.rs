//! Changes that clients of a server's machine submit in memory instead of asking for them (docs/shared-memory.md):
//! what is in the words of a submission.
//!
//! Invariants
//! 1. Whatever the words are, decoding them ends in a submission or in nothing.

use crate::identity::{FileId, dentry_hash};
use crate::layout::{ChunkRange, Layout, LayoutPolicy};
use crate::names::Name;

const WORD_SIZE: usize = 8;
/// Words of a submission.
pub const SUBMISSION_WORDS: usize = 16;
/// The words of a name: its length, and its bytes.
const NAME_WORDS: usize = 5;
/// Changes of longer names are not submitted.
pub const NAME_SIZE_MAX: usize = NAME_WORDS * WORD_SIZE - 1;
const NAME_START: usize = 3;
const KIND_UNLINK: u64 = 1;
const KIND_CREATE: u64 = 2;
const KIND_WRITE: u32 = 4;
/// Bits of a write's first word, in whose upper half they are behind the layout's policy.
const POLICY_MASK: u32 = 0xFF;
const IS_LOCKED: u32 = 1 << 8;
const IS_SWAP: u32 = 1 << 9;
/// Those of bytes, where there is no name.
const BYTES_START: usize = NAME_START;
/// Those of the chunk and the layout, where there are bytes.
const CHUNK_WORD: usize = 1;
const LAYOUT_START: usize = BYTES_START + 3;
/// The word of the time.
const TIME_WORD: usize = SUBMISSION_WORDS - 1;
/// The word in which the order of writes is that several clients submit; 0 in other submissions.
pub const SEQUENCE_WORD: usize = SUBMISSION_WORDS - 2;
/// Stands for an intent lock where there is none.
pub const NO_INTENT_LOCK: usize = usize::MAX;
/// The words of a file that is made, behind the name.
const MADE_START: usize = NAME_START + NAME_WORDS;

/// A change that is submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Submission<'a> {
    /// The directory of the name that changes; 0 where none does.
    pub parent: FileId,
    /// At most [`NAME_SIZE_MAX`] bytes; none where no name changes.
    pub name: &'a [u8],
    pub file: FileId,
    /// When it was submitted, in nanoseconds since the epoch.
    pub time: i64,
    pub change: Change,
}

/// What happens to the name, or the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The name goes, and with it, if it was the last one, the file.
    Unlink,
    /// The name comes, with a new file of this id.
    Create(Made),
    /// Bytes of the file are these from now on.
    Write(Written, SubmittedBytes),
}

/// What gives a write its place among the other changes of its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteOrder {
    /// Its number among all writes that are submitted ([`SEQUENCE_WORD`]).
    Number,
    /// The file's intent lock, which its client has had since it submitted the making of the file: nobody else has done
    /// anything with it.
    IntentLock,
}

/// How bytes come from registered pages to their chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ByteTransfer {
    /// They are copied, and the pages are the client's again.
    Copy,
    /// The pages become the chunk's. The bytes lie within them as they do within the chunk's pages.
    Swap,
}

/// Which bytes of a file are written, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    pub chunk_index: u64,
    /// First byte within the chunk.
    pub chunk_offset: u32,
    pub layout: Layout,
    pub order: WriteOrder,
    pub transfer: ByteTransfer,
}

impl Written {
    /// The bytes, so many of them.
    pub fn range(&self, size: u32) -> ChunkRange {
        ChunkRange { chunk_index: self.chunk_index, chunk_offset: self.chunk_offset, size }
    }
}

impl Change {
    /// Where the bytes are that it is about.
    pub fn bytes(&self) -> Option<SubmittedBytes> {
        match self {
            Change::Write(_, bytes) => Some(*bytes),
            Change::Unlink | Change::Create(_) => None,
        }
    }
}

/// Most bytes of a write that is submitted, where they are copied.
pub const SUBMITTED_SIZE_MAX: u32 = 64 << 10;
/// Writes to files of larger chunks are not submitted, but for those to files without anything in them; nor are more
/// bytes than this.
pub const SUBMITTED_CHUNK_SIZE_MAX: u32 = 1 << 20;
/// Most bytes of registered pages in which a client has bytes of writes that its server has not taken up.
pub const STAGING_RING_SIZE: u64 = 512 << 10;

/// Bytes that lie in pages which the server has registered to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubmittedBytes {
    /// The first one, in the store's data: that of a page.
    pub at: u64,
    /// 1 to [`SUBMITTED_SIZE_MAX`], or to [`SUBMITTED_CHUNK_SIZE_MAX`] where the pages become the chunk's.
    pub size: u32,
    /// The registered buffer's.
    pub generation: u64,
}

/// A file that is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Made {
    /// Permission bits.
    pub mode: u32,
    /// Bytes; 0 for those that the cluster has.
    pub chunk_size: u32,
    pub uid: u32,
    pub gid: u32,
}

impl Submission<'_> {
    /// A submission that writes bytes to a file.
    pub fn of_write(file: FileId, time: i64, written: Written, bytes: SubmittedBytes) -> Submission<'static> {
        Submission { parent: FileId::default(), name: &[], file, time, change: Change::Write(written, bytes) }
    }

    /// The words; nothing for a name that is too long.
    pub fn words(&self) -> Option<[u64; SUBMISSION_WORDS]> {
        if let Change::Write(written, SubmittedBytes { at, size, generation }) = self.change {
            let Written { chunk_index, chunk_offset, layout, order, transfer } = written;
            let is_locked = if order == WriteOrder::IntentLock { IS_LOCKED } else { 0 };
            let is_swap = if transfer == ByteTransfer::Swap { IS_SWAP } else { 0 };
            let mut words = [0; SUBMISSION_WORDS];
            words[0] = pair(KIND_WRITE, layout.policy as u32 | is_locked | is_swap);
            words[CHUNK_WORD] = chunk_index;
            words[2] = self.file.0;
            words[BYTES_START..LAYOUT_START].copy_from_slice(&[at, pair(size, chunk_offset), generation]);
            words[LAYOUT_START] = pair(layout.chunk_size, layout.first);
            words[LAYOUT_START + 1] = pair(layout.width, layout.run);
            words[TIME_WORD] = self.time as u64;
            return Some(words);
        }
        if self.name.is_empty() || self.name.len() > NAME_SIZE_MAX {
            return None;
        }
        let mut bytes = [0; NAME_WORDS * WORD_SIZE];
        bytes[0] = self.name.len() as u8;
        bytes[1..=self.name.len()].copy_from_slice(self.name);
        let mut words = [0; SUBMISSION_WORDS];
        (words[1], words[2], words[TIME_WORD]) = (self.parent.0, self.file.0, self.time as u64);
        for (word, part) in words[NAME_START..].iter_mut().zip(bytes.as_chunks::<WORD_SIZE>().0) {
            *word = u64::from_le_bytes(*part);
        }
        match self.change {
            Change::Unlink => words[0] = KIND_UNLINK,
            Change::Create(made) => {
                words[0] = KIND_CREATE;
                words[MADE_START] = pair(made.mode, made.chunk_size);
                words[MADE_START + 1] = pair(made.uid, made.gid);
            }
            Change::Write(..) => unreachable!("it has no name"),
        }
        Some(words)
    }

    /// What it locks.
    pub fn intent_locks(&self) -> [usize; 2] {
        match self.change {
            Change::Write(Written { order: WriteOrder::IntentLock, .. }, _) => [file_intent_lock(self.file); 2],
            Change::Write(..) => [NO_INTENT_LOCK; 2],
            _ => [name_intent_lock(dentry_hash(self.parent, self.name)), file_intent_lock(self.file)],
        }
    }
}

fn pair(low: u32, high: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

fn parts(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}

/// The bytes of a submission's words, in which its name is.
pub struct SubmissionBytes([u8; NAME_WORDS * WORD_SIZE]);

impl SubmissionBytes {
    /// Those of a submission's words.
    pub fn of(words: &[u64; SUBMISSION_WORDS]) -> SubmissionBytes {
        let mut bytes = [0; NAME_WORDS * WORD_SIZE];
        for (part, word) in bytes.as_chunks_mut::<WORD_SIZE>().0.iter_mut().zip(&words[NAME_START..]) {
            *part = word.to_le_bytes();
        }
        SubmissionBytes(bytes)
    }

    /// The file that the words remove, or write to.
    pub fn file_of(words: &[u64; SUBMISSION_WORDS]) -> Option<FileId> {
        [KIND_UNLINK, u64::from(KIND_WRITE)].contains(&u64::from(parts(words[0]).0)).then_some(FileId(words[2]))
    }

    /// What the words stand for.
    pub fn submission(&self, words: &[u64; SUBMISSION_WORDS]) -> Option<Submission<'_>> {
        let (kind, flags) = parts(words[0]);
        if kind == KIND_WRITE {
            let (size, chunk_offset) = parts(words[BYTES_START + 1]);
            let transfer = if flags & IS_SWAP != 0 { ByteTransfer::Swap } else { ByteTransfer::Copy };
            let size_max = match transfer {
                ByteTransfer::Copy => SUBMITTED_SIZE_MAX,
                ByteTransfer::Swap => SUBMITTED_CHUNK_SIZE_MAX,
            };
            if !(1..=size_max).contains(&size) || flags & !(POLICY_MASK | IS_LOCKED | IS_SWAP) != 0 {
                return None;
            }
            let order = if flags & IS_LOCKED != 0 { WriteOrder::IntentLock } else { WriteOrder::Number };
            let policy = LayoutPolicy::of((flags & POLICY_MASK) as u8)?;
            let ((chunk_size, first), (width, run)) = (parts(words[LAYOUT_START]), parts(words[LAYOUT_START + 1]));
            let layout = Layout { policy, chunk_size, first, width, run };
            let written = Written { chunk_index: words[CHUNK_WORD], chunk_offset, layout, order, transfer };
            let bytes = SubmittedBytes { at: words[BYTES_START], size, generation: words[BYTES_START + 2] };
            return Some(Submission::of_write(FileId(words[2]), words[TIME_WORD] as i64, written, bytes));
        }
        let size = usize::from(self.0[0]);
        let name = Name::new(self.0.get(1..=size)?).ok()?.as_bytes();
        let change = match words[0] {
            KIND_UNLINK => Change::Unlink,
            KIND_CREATE => {
                let ((mode, chunk_size), (uid, gid)) = (parts(words[MADE_START]), parts(words[MADE_START + 1]));
                Change::Create(Made { mode, chunk_size, uid, gid })
            }
            _ => return None,
        };
        let time = words[TIME_WORD] as i64;
        Some(Submission { parent: FileId(words[1]), name, file: FileId(words[2]), time, change })
    }
}

/// What locks a name with this hash ([`dentry_hash`]).
pub fn name_intent_lock(hash: u64) -> usize {
    // The lower bits have chosen the server.
    (hash >> 32) as usize
}

/// What locks a file.
pub fn file_intent_lock(file: FileId) -> usize {
    // Files that are made one after the other get locks far from those that names of them get.
    (file.sequence().wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a submission is what it was when it is read again, and nonsense is none.
    #[test]
    fn there_and_back() {
        let (parent, file, time) = (FileId::new(7, 3), FileId::new(9, 3), -77);
        for name in [&b"a"[..], b"file.mdtest.0.1234567", &[7; NAME_SIZE_MAX]] {
            let made = Made { mode: 0o640, chunk_size: 1 << 20, uid: 7, gid: 8 };
            let made = Submission { parent, name, file, time, change: Change::Create(made) };
            let words = made.words().expect("it fits");
            assert_eq!(SubmissionBytes::of(&words).submission(&words), Some(made));
            let submission = Submission { parent, name, file, time, change: Change::Unlink };
            let words = submission.words().expect("it fits");
            assert_eq!(SubmissionBytes::of(&words).submission(&words), Some(submission));
            let mut other = words;
            other[0] = u64::MAX;
            assert_eq!(SubmissionBytes::of(&other).submission(&other), None);
        }
        for name in [&b""[..], &[7; NAME_SIZE_MAX + 1]] {
            assert_eq!(Submission { parent, name, file, time, change: Change::Unlink }.words(), None);
        }
        let layout = Layout { width: 7, run: 9, ..Layout::default_for(LayoutPolicy::Ring, 3, 8, 1 << 20) };
        let orders = [WriteOrder::Number, WriteOrder::IntentLock];
        let transfers = [(ByteTransfer::Copy, SUBMITTED_SIZE_MAX), (ByteTransfer::Swap, SUBMITTED_CHUNK_SIZE_MAX)];
        for (order, (transfer, size_max)) in orders.into_iter().flat_map(|order| transfers.map(|with| (order, with))) {
            for size in [0, 1, size_max, size_max + 1, u32::MAX] {
                let written = Written { chunk_index: u64::MAX, chunk_offset: 77, layout, order, transfer };
                let bytes = SubmittedBytes { at: 77 << 12, size, generation: 9 };
                let submission = Submission::of_write(file, time, written, bytes);
                let mut words = submission.words().expect("it fits");
                assert_eq!(words[SEQUENCE_WORD], 0);
                let is_one = (1..=size_max).contains(&size);
                assert_eq!(SubmissionBytes::of(&words).submission(&words), is_one.then_some(submission));
                words[0] |= 2 << 32;
                assert_eq!(SubmissionBytes::of(&words).submission(&words), None, "no such policy");
                words[0] = submission.words().expect("it fits")[0] | 1 << 63;
                assert_eq!(SubmissionBytes::of(&words).submission(&words), None, "no such flag");
            }
        }
        for nonsense in [0, 1, u64::MAX] {
            assert_eq!(
                SubmissionBytes::of(&[nonsense; SUBMISSION_WORDS]).submission(&[nonsense; SUBMISSION_WORDS]),
                None
            );
        }
        // What no request may name, no submission may either.
        for name in [&b"."[..], b"..", b"a/b", b"a\0b"] {
            let words = Submission { parent, name, file, time, change: Change::Unlink }.words().expect("it fits");
            assert_eq!(SubmissionBytes::of(&words).submission(&words), None);
        }
    }
}
