//! What a workload needs of a file system, so that every target runs the same code.

use crate::meter::Meter;
use std::ops::Range;

/// Errors carry the operation, the path and the cause in words.
pub type Result<T> = std::result::Result<T, String>;

/// How a file is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// For writing; made if it does not exist.
    Create,
    /// For writing; must not exist.
    CreateNew,
    /// For reading; must exist.
    Read,
}

/// What [`Target::make_many`] makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Make {
    Files,
    Directories,
}

/// The attributes that the workloads look at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attributes {
    pub size: u64,
    /// Nanoseconds since the epoch.
    pub mtime: i64,
}

/// What is free on a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    pub bytes: u64,
    /// Files that can still be made; `None` where there is no such bound.
    pub files: Option<u64>,
}

/// Which part of a directory one of several processes reads.
#[derive(Debug, Clone, Copy)]
pub struct Share {
    pub index: u32,
    pub count: u32,
}

impl Share {
    /// True if item `index` of something is in this share.
    pub fn has(&self, index: usize) -> bool {
        index % self.count as usize == self.index as usize
    }

    /// The servers, of so many, that are in this share.
    pub fn servers(&self, server_count: u32) -> impl Iterator<Item = u32> + use<> {
        (self.index..server_count).step_by(self.count as usize)
    }
}

/// The files that a search is for.
#[derive(Debug, Clone, Copy)]
pub struct SearchPattern {
    /// Bytes that the name holds; none that mean anything in a pattern.
    pub part: &'static str,
    pub size: u64,
    /// Nanoseconds since the epoch: the modification time is later.
    pub newer_than: i64,
}

/// What came of a search.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Entries that were looked at, where this side does that.
    pub examined: u64,
    /// Files that were wanted.
    pub found: u64,
}

/// Pieces of one size that are moved between a file and memory, several at a time.
pub struct Transfers<'a> {
    /// Bytes of each.
    pub size: usize,
    /// How many are under way at a time.
    pub depth: usize,
    pub is_write: bool,
    /// Where the next one goes; nothing after the last.
    pub next: &'a mut (dyn FnMut() -> Option<u64> + Send),
    /// Gets the place and the bytes of each: to fill them, or when they were read.
    pub touch: &'a (dyn Fn(u64, &mut [u8]) -> Result<()> + Sync),
}

/// Errors: fewer bytes were read than are to be there.
pub fn check_size(read: usize, wanted: usize, offset: u64) -> Result<()> {
    match read == wanted {
        true => Ok(()),
        false => Err(format!("{read} instead of {wanted} bytes read at {offset}")),
    }
}

/// A file system under measurement. Paths start with a slash and mean the target's own root.
pub trait Target {
    type File;

    fn open(&self, path: &str, how: How) -> Result<Self::File>;

    /// Writes all of `bytes` at `offset`.
    fn write_at(&self, file: &Self::File, bytes: &[u8], offset: u64) -> Result<()>;

    /// Reads until `place` is full or the file ends; returns the number of bytes.
    fn read_at(&self, file: &Self::File, place: &mut [u8], offset: u64) -> Result<usize>;

    /// Moves pieces until there are no more, or the meter says that the time is over. Returns their number.
    fn transfer(&self, file: &Self::File, transfers: Transfers<'_>, meter: &mut Meter) -> Result<u64>;

    /// Returns when all that was written to the file survives power loss, as far as the medium can.
    fn sync(&self, file: &Self::File) -> Result<()>;

    fn close(&self, file: Self::File) -> Result<()>;

    /// `None` if there is no such file.
    fn stat(&self, path: &str) -> Result<Option<Attributes>>;

    fn unlink(&self, path: &str) -> Result<()>;

    /// Makes a directory; fine if it exists.
    fn make_directory(&self, path: &str) -> Result<()>;

    /// Makes empty files that are not there yet, or directories, many at a time where the target can, until the meter
    /// says that the time is over. Returns their number.
    fn make_many(
        &self,
        kind: Make,
        paths: &mut (dyn Iterator<Item = String> + Send),
        meter: &mut Meter,
    ) -> Result<u64> {
        let mut count = 0;
        for path in paths {
            match kind {
                Make::Files => self.close(self.open(&path, How::CreateNew)?)?,
                Make::Directories => self.make_directory(&path)?,
            }
            meter.note_call();
            count += 1;
            if meter.is_over() {
                break;
            }
        }
        Ok(count)
    }

    /// Removes an empty directory; fine if it does not exist.
    fn remove_directory(&self, path: &str) -> Result<()>;

    /// Tells the name of each entry of a directory, and whether it is a directory, as long as more are wanted.
    fn list(&self, directory: &str, on_entry: &mut dyn FnMut(&[u8], bool) -> bool) -> Result<()>;

    fn space(&self) -> Result<Space>;

    /// Whether this side looks at every entry itself, so that it can count them.
    const EXAMINES: bool;

    /// Searches `share` of a directory. `on_directory` gets the names of the directories in it.
    fn find(
        &self,
        directory: &str,
        share: Share,
        wanted: &SearchPattern,
        on_directory: &mut dyn FnMut(&[u8]),
    ) -> Result<Counts>;

    /// Number of servers that [`Target::ping`] reaches.
    fn server_count(&self) -> u32;

    /// One round trip to a server.
    fn ping(&self, server: u32) -> Result<()>;
}

/// Bytes that tell where they belong: word i holds a mix of `seed` and its offset.
pub fn fill_pattern(seed: u64, offset: u64, place: &mut [u8]) {
    for (index, word) in place.chunks_mut(8).enumerate() {
        let value = mix(seed ^ offset.wrapping_add(index as u64 * 8)).to_le_bytes();
        word.copy_from_slice(&value[..word.len()]);
    }
}

/// The first byte range of a word that is not as [`fill_pattern`] made it.
pub fn find_difference(seed: u64, offset: u64, bytes: &[u8]) -> Option<Range<u64>> {
    for (index, word) in bytes.chunks(8).enumerate() {
        let at = offset.wrapping_add(index as u64 * 8);
        if *word != mix(seed ^ at).to_le_bytes()[..word.len()] {
            return Some(at..at + word.len() as u64);
        }
    }
    None
}

/// Finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
pub fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a changed, swapped or shifted byte is found, also in a last short word.
    #[test]
    fn differences_are_found() {
        let mut bytes = vec![0; 3_901];
        fill_pattern(5, 47_008, &mut bytes);
        assert_eq!(find_difference(5, 47_008, &bytes), None);
        assert!(find_difference(5, 0, &bytes).is_some());
        assert!(find_difference(6, 47_008, &bytes).is_some());
        bytes[3_900] ^= 1;
        assert_eq!(find_difference(5, 47_008, &bytes), Some(47_008 + 3_896..47_008 + 3_901));
    }

    /// Goal: every server belongs to exactly one share, whatever the counts.
    #[test]
    fn shares_cover_all_servers() {
        for (servers, count) in [(1, 4), (4, 1), (5, 2), (8, 8)] {
            let mut seen: Vec<u32> = (0..count).flat_map(|index| Share { index, count }.servers(servers)).collect();
            seen.sort_unstable();
            assert_eq!(seen, (0..servers).collect::<Vec<u32>>());
        }
    }
}
