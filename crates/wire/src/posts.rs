//! Changes that clients of a server's machine post in memory instead of asking for them (docs/posts.md): what is in the words of a post.
//!
//! Invariants
//! 1. Whatever the words are, decoding them ends in a post or in nothing.

use crate::board::NAME_SIZE_MAX;
use crate::identity::{FileId, dentry_hash};
use crate::names::Name;

const WORD_SIZE: usize = 8;
/// Words of a post.
pub const POST_WORDS: usize = 16;
/// The words of a name: its length, and its bytes.
const NAME_WORDS: usize = (NAME_SIZE_MAX + 1) / WORD_SIZE;
const NAME_START: usize = 3;
const KIND_UNLINK: u64 = 1;
const KIND_CREATE: u64 = 2;
const KIND_WRITE: u64 = 3;
/// Those of bytes, where there is no name.
const BYTES_START: usize = NAME_START;
/// The word of the time.
const TIME_WORD: usize = POST_WORDS - 1;
/// The words of a file that is made, behind the name.
const MADE_START: usize = NAME_START + NAME_WORDS;

/// A change that is posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Post<'a> {
    /// The directory of the name that changes; 0 where none does.
    pub parent: FileId,
    /// At most [`NAME_SIZE_MAX`] bytes; none where no name changes.
    pub name: &'a [u8],
    pub file: FileId,
    /// When it was posted, in nanoseconds since the epoch.
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
    /// The file begins with these bytes.
    Write(PostedBytes),
}

/// Most bytes of a file that are posted.
pub const POSTED_SIZE_MAX: u32 = 64 << 10;

/// Bytes that lie in pages which the server has granted to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PostedBytes {
    /// The first one, in the store's data: that of a page.
    pub at: u64,
    /// 1 to [`POSTED_SIZE_MAX`].
    pub size: u32,
    /// The grant's.
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

impl Post<'_> {
    /// A post that begins a file with bytes.
    pub fn of_bytes(file: FileId, time: i64, bytes: PostedBytes) -> Post<'static> {
        Post { parent: FileId::default(), name: &[], file, time, change: Change::Write(bytes) }
    }

    /// The words; nothing for a name that is too long.
    pub fn words(&self) -> Option<[u64; POST_WORDS]> {
        if let Change::Write(PostedBytes { at, size, generation }) = self.change {
            let mut words = [0; POST_WORDS];
            words[..BYTES_START + 3].copy_from_slice(&[KIND_WRITE, 0, self.file.0, at, size.into(), generation]);
            words[TIME_WORD] = self.time as u64;
            return Some(words);
        }
        if self.name.is_empty() || self.name.len() > NAME_SIZE_MAX {
            return None;
        }
        let mut bytes = [0; NAME_WORDS * WORD_SIZE];
        bytes[0] = self.name.len() as u8;
        bytes[1..=self.name.len()].copy_from_slice(self.name);
        let mut words = [0; POST_WORDS];
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
            Change::Write(_) => unreachable!("it has no name"),
        }
        Some(words)
    }

    /// What it claims.
    pub fn claims(&self) -> [usize; 2] {
        match self.change {
            Change::Write(_) => [file_claim(self.file); 2],
            _ => [name_claim(dentry_hash(self.parent, self.name)), file_claim(self.file)],
        }
    }
}

fn pair(low: u32, high: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

fn parts(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}

/// The bytes of a post's words, in which its name is.
pub struct PostBytes([u8; NAME_WORDS * WORD_SIZE]);

impl PostBytes {
    /// Those of a post's words.
    pub fn of(words: &[u64; POST_WORDS]) -> PostBytes {
        let mut bytes = [0; NAME_WORDS * WORD_SIZE];
        for (part, word) in bytes.as_chunks_mut::<WORD_SIZE>().0.iter_mut().zip(&words[NAME_START..]) {
            *part = word.to_le_bytes();
        }
        PostBytes(bytes)
    }

    /// What the words stand for.
    pub fn post(&self, words: &[u64; POST_WORDS]) -> Option<Post<'_>> {
        if words[0] == KIND_WRITE {
            let size =
                u32::try_from(words[BYTES_START + 1]).ok().filter(|size| (1..=POSTED_SIZE_MAX).contains(size))?;
            let bytes = PostedBytes { at: words[BYTES_START], size, generation: words[BYTES_START + 2] };
            return Some(Post::of_bytes(FileId(words[2]), words[TIME_WORD] as i64, bytes));
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
        Some(Post { parent: FileId(words[1]), name, file: FileId(words[2]), time, change })
    }
}

/// What claims a name with this hash ([`dentry_hash`]).
pub fn name_claim(hash: u64) -> usize {
    // The lower bits have chosen the server.
    (hash >> 32) as usize
}

/// What claims a file.
pub fn file_claim(file: FileId) -> usize {
    // Files that are made one after the other get claims far from those that names of them get.
    (file.sequence().wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a post is what it was when it is read again, and nonsense is none.
    #[test]
    fn there_and_back() {
        let (parent, file, time) = (FileId::new(7, 3), FileId::new(9, 3), -77);
        for name in [&b"a"[..], b"file.mdtest.0.1234567", &[7; NAME_SIZE_MAX]] {
            let made = Made { mode: 0o640, chunk_size: 1 << 20, uid: 7, gid: 8 };
            let made = Post { parent, name, file, time, change: Change::Create(made) };
            let words = made.words().expect("it fits");
            assert_eq!(PostBytes::of(&words).post(&words), Some(made));
            let post = Post { parent, name, file, time, change: Change::Unlink };
            let words = post.words().expect("it fits");
            assert_eq!(PostBytes::of(&words).post(&words), Some(post));
            let mut other = words;
            other[0] = u64::MAX;
            assert_eq!(PostBytes::of(&other).post(&other), None);
        }
        for size in [0, 1, POSTED_SIZE_MAX, POSTED_SIZE_MAX + 1, u32::MAX] {
            let post = Post::of_bytes(file, time, PostedBytes { at: 77 << 12, size, generation: 9 });
            let words = post.words().expect("it fits");
            let is_one = (1..=POSTED_SIZE_MAX).contains(&size);
            assert_eq!(PostBytes::of(&words).post(&words), is_one.then_some(post));
        }
        for name in [&b""[..], &[7; NAME_SIZE_MAX + 1]] {
            assert_eq!(Post { parent, name, file, time, change: Change::Unlink }.words(), None);
        }
        for nonsense in [0, 1, u64::MAX] {
            assert_eq!(PostBytes::of(&[nonsense; POST_WORDS]).post(&[nonsense; POST_WORDS]), None);
        }
        // What no request may name, no post may either.
        for name in [&b"."[..], b"..", b"a/b", b"a\0b"] {
            let words = Post { parent, name, file, time, change: Change::Unlink }.words().expect("it fits");
            assert_eq!(PostBytes::of(&words).post(&words), None);
        }
    }
}
