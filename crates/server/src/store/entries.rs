//! The store's own entries, as they lie in the journal and in checkpoints. All numbers are little-endian.
//!
//! Each is an after-image: applied again, alone or with the entries after it, it leads to the same state.

use super::Lsn;
use super::chunk::{Chunk, Extent, ValidRange};
use super::files::{Announcement, File};
use super::inline_vec::InlineVec;
use super::sums::{NewSums, runs_of};

/// Bytes before each entry: kind (1) and size of what follows (4).
pub const ENTRY_HEADER_SIZE: usize = 5;
const KIND_CHUNK: u8 = 1;
const KIND_TRUNCATE: u8 = 2;
const KIND_REAP: u8 = 3;
const KIND_ANNOUNCED: u8 = 4;
const KIND_REDO: u8 = 5;
const KIND_FILE: u8 = 6;
const KIND_DROP: u8 = 7;
const KIND_SUMS: u8 = 8;
const KIND_SYNC: u8 = 9;

/// One entry of the store's own.
#[derive(Debug)]
pub enum Entry {
    /// The whole state of a chunk, and of its file what a write changes.
    Chunk {
        /// File id.
        file: u64,
        /// Chunk index.
        index: u64,
        /// Bytes of a chunk.
        chunk_size: u32,
        /// Time of the last write of the file.
        mtime: i64,
        /// The chunk; without pages and ranges it is gone.
        chunk: Chunk,
    },
    /// The file has no chunks from `keep_below` on.
    Truncate {
        /// File id.
        file: u64,
        /// Truncate generation.
        generation: u32,
        /// Index of the first chunk that is dropped.
        keep_below: u64,
    },
    /// Nothing is known of the file any more.
    Reap {
        /// File id.
        file: u64,
    },
    /// The file has no chunks `from..to`; of its share, what a hole leaves.
    Drop {
        /// File id.
        file: u64,
        /// Index of the first chunk that is dropped.
        from: u64,
        /// Index of the first chunk after them.
        to: u64,
        /// Largest written end since the last truncate.
        end: u64,
        /// Time of the last change of contents.
        mtime: i64,
    },
    /// The announcement of a file.
    Announced(Announcement),
    /// Checksums of pages of the data space.
    Sums {
        /// First page.
        first: u32,
        /// One number for each page.
        sums: Vec<u32>,
    },
    /// A sync is about to begin; it is the only entry of its record.
    Sync {
        /// Records below this one were durable by then.
        since: Lsn,
        /// The cluster whose store this is.
        owner: u128,
    },
    /// Bytes to be copied within the data space once the record is written.
    Redo(Copy),
    /// All of a file but its chunks; in checkpoints only.
    File {
        /// File id.
        file: u64,
        /// Bytes of a chunk.
        chunk_size: u32,
        /// Truncate generation.
        generation: u32,
        /// Announcement.
        announced: Option<u32>,
        /// Time of the last write.
        mtime: i64,
    },
}

/// A copy within the data space, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copy {
    /// Offset of the source.
    pub from: u64,
    /// Offset of the target.
    pub to: u64,
    /// Bytes.
    pub size: u32,
}

/// Appends one entry, whatever its kind.
pub fn put_entry(out: &mut Vec<u8>, kind: u8, fill: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[kind, 0, 0, 0, 0]);
    fill(out);
    let size = u32::try_from(out.len() - start - ENTRY_HEADER_SIZE).expect("an entry is smaller than 4 GiB");
    out[start + 1..start + ENTRY_HEADER_SIZE].copy_from_slice(&size.to_le_bytes());
}

/// Bytes that the entry of a chunk takes beside its extents and ranges.
pub const CHUNK_ENTRY_SIZE: usize = 41;
/// Bytes of an extent in it, which is more than a range takes.
pub const RANGE_SIZE: usize = EXTENT_SIZE;
const EXTENT_SIZE: usize = 12;
const WRITTEN_SIZE: usize = 8;
/// Bytes that the entry of a copy takes.
pub const REDO_ENTRY_SIZE: usize = 25;

/// Appends a chunk.
pub fn put_chunk(out: &mut Vec<u8>, file: u64, index: u64, chunk_size: u32, mtime: i64, chunk: &Chunk) {
    put_entry(out, KIND_CHUNK, |out| {
        out.extend_from_slice(&file.to_le_bytes());
        out.extend_from_slice(&index.to_le_bytes());
        out.extend_from_slice(&chunk_size.to_le_bytes());
        out.extend_from_slice(&mtime.to_le_bytes());
        out.extend_from_slice(&(chunk.extents.len() as u32).to_le_bytes());
        out.extend_from_slice(&(chunk.ranges.len() as u32).to_le_bytes());
        for extent in chunk.extents.iter() {
            put_words(out, [extent.logical, extent.start, extent.pages]);
        }
        for range in chunk.ranges.iter() {
            put_words(out, [range.start, range.end]);
        }
    });
}

/// Appends a truncate.
pub fn put_truncate(out: &mut Vec<u8>, file: u64, generation: u32, keep_below: u64) {
    put_entry(out, KIND_TRUNCATE, |out| {
        out.extend_from_slice(&file.to_le_bytes());
        out.extend_from_slice(&generation.to_le_bytes());
        out.extend_from_slice(&keep_below.to_le_bytes());
    });
}

/// Appends a drop.
pub fn put_drop(out: &mut Vec<u8>, file: u64, chunks: std::ops::Range<u64>, end: u64, mtime: i64) {
    put_entry(out, KIND_DROP, |out| {
        for number in [file, chunks.start, chunks.end, end] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.extend_from_slice(&mtime.to_le_bytes());
    });
}

/// Appends a reap.
pub fn put_reap(out: &mut Vec<u8>, file: u64) {
    put_entry(out, KIND_REAP, |out| out.extend_from_slice(&file.to_le_bytes()));
}

/// Appends an announcement.
pub fn put_announced(out: &mut Vec<u8>, announcement: Announcement) {
    put_entry(out, KIND_ANNOUNCED, |out| {
        out.extend_from_slice(&announcement.file.to_le_bytes());
        let state = if announcement.forgets_time { 2 } else { u8::from(announcement.announced.is_some()) };
        out.push(state);
        out.extend_from_slice(&announcement.announced.unwrap_or(0).to_le_bytes());
    });
}

/// Appends a copy.
pub fn put_redo(out: &mut Vec<u8>, copy: Copy) {
    put_entry(out, KIND_REDO, |out| {
        out.extend_from_slice(&copy.from.to_le_bytes());
        out.extend_from_slice(&copy.to.to_le_bytes());
        out.extend_from_slice(&copy.size.to_le_bytes());
    });
}

/// Bytes of the entry of a sync.
pub const SYNC_ENTRY_SIZE: usize = ENTRY_HEADER_SIZE + 24;

/// Appends the entry of a sync.
pub fn put_sync(out: &mut Vec<u8>, since: Lsn, owner: u128) {
    put_entry(out, KIND_SYNC, |out| {
        out.extend_from_slice(&since.to_le_bytes());
        out.extend_from_slice(&owner.to_le_bytes());
    });
}

/// What a record with these entries says, if it is that of a sync of this cluster's store: below which record all was
/// durable by then.
pub fn synced_before(mut bytes: &[u8], of: u128) -> Option<Lsn> {
    let (kind, body) = next_entry(&mut bytes)?;
    match decode(kind, body) {
        Some(Entry::Sync { since, owner }) => (owner == of).then_some(since),
        _ => None,
    }
}

/// Appends checksums of pages from `first` on.
pub fn put_sums(out: &mut Vec<u8>, first: u32, sums: impl Iterator<Item = u32>) {
    put_entry(out, KIND_SUMS, |out| {
        out.extend_from_slice(&first.to_le_bytes());
        sums.for_each(|sum| out.extend_from_slice(&sum.to_le_bytes()));
    });
}

/// Appends the numbers that a change gives, and returns how many entries that took.
pub fn put_new_sums(out: &mut Vec<u8>, sums: &NewSums) -> u32 {
    let mut count = 0;
    for (first, run) in runs_of(sums) {
        put_sums(out, first, run.iter().map(|(_, sum)| *sum));
        count += 1;
    }
    count
}

/// Appends a file without its chunks.
pub fn put_file(out: &mut Vec<u8>, file: &File) {
    put_entry(out, KIND_FILE, |out| {
        out.extend_from_slice(&file.id.to_le_bytes());
        out.extend_from_slice(&file.chunk_size.to_le_bytes());
        out.extend_from_slice(&file.generation.to_le_bytes());
        put_option(out, file.announced);
        out.extend_from_slice(&file.mtime.to_le_bytes());
    });
}

fn put_words<const COUNT: usize>(out: &mut Vec<u8>, words: [u32; COUNT]) {
    for word in words {
        out.extend_from_slice(&word.to_le_bytes());
    }
}

fn put_option(out: &mut Vec<u8>, value: Option<u32>) {
    out.push(u8::from(value.is_some()));
    out.extend_from_slice(&value.unwrap_or(0).to_le_bytes());
}

/// Splits the first entry off; nothing if the bytes end within it.
pub fn next_entry<'a>(bytes: &mut &'a [u8]) -> Option<(u8, &'a [u8])> {
    let (header, rest) = bytes.split_at_checked(ENTRY_HEADER_SIZE)?;
    let size = u32::from_le_bytes([header[1], header[2], header[3], header[4]]);
    let (body, rest) = rest.split_at_checked(size as usize)?;
    *bytes = rest;
    Some((header[0], body))
}

/// Decodes one of the store's own entries; nothing if the bytes are not one.
pub fn decode(kind: u8, body: &[u8]) -> Option<Entry> {
    let mut reader = Reader(body);
    let entry = match kind {
        KIND_CHUNK => decode_chunk(&mut reader)?,
        KIND_TRUNCATE => Entry::Truncate { file: reader.u64()?, generation: reader.u32()?, keep_below: reader.u64()? },
        KIND_DROP => Entry::Drop {
            file: reader.u64()?,
            from: reader.u64()?,
            to: reader.u64()?,
            end: reader.u64()?,
            mtime: reader.u64()? as i64,
        },
        KIND_REAP => Entry::Reap { file: reader.u64()? },
        KIND_ANNOUNCED => Entry::Announced(reader.announcement()?),
        KIND_REDO => Entry::Redo(Copy { from: reader.u64()?, to: reader.u64()?, size: reader.u32()? }),
        KIND_SUMS => {
            let first = reader.u32()?;
            let words = std::mem::take(&mut reader.0);
            if words.is_empty() || !words.len().is_multiple_of(4) {
                return None;
            }
            let word = |bytes: &[u8]| bytes.iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte));
            Entry::Sums { first, sums: words.chunks(4).map(word).collect() }
        }
        KIND_SYNC => Entry::Sync { since: reader.u64()?, owner: reader.u128()? },
        KIND_FILE => Entry::File {
            file: reader.u64()?,
            chunk_size: reader.u32()?,
            generation: reader.u32()?,
            announced: reader.option()?,
            mtime: reader.u64()? as i64,
        },
        _ => return None,
    };
    reader.0.is_empty().then_some(entry)
}

fn decode_chunk(reader: &mut Reader) -> Option<Entry> {
    let (file, index, chunk_size, mtime) = (reader.u64()?, reader.u64()?, reader.u32()?, reader.u64()? as i64);
    let (extent_count, range_count) = (reader.u32()? as usize, reader.u32()? as usize);
    let wanted = extent_count.checked_mul(EXTENT_SIZE)?.checked_add(range_count.checked_mul(WRITTEN_SIZE)?)?;
    if reader.0.len() != wanted {
        return None;
    }
    let mut extents = Vec::with_capacity(extent_count);
    for _ in 0..extent_count {
        extents.push(Extent { logical: reader.u32()?, start: reader.u32()?, pages: reader.u32()?, birth: 0 });
    }
    let mut ranges = Vec::with_capacity(range_count);
    for _ in 0..range_count {
        ranges.push(ValidRange { start: reader.u32()?, end: reader.u32()? });
    }
    let chunk = Chunk { extents: InlineVec::from_slice(&extents), ranges: InlineVec::from_slice(&ranges) };
    Some(Entry::Chunk { file, index, chunk_size, mtime, chunk })
}

/// Takes numbers off the front of bytes.
pub struct Reader<'a>(pub &'a [u8]);

impl Reader<'_> {
    fn take<const SIZE: usize>(&mut self) -> Option<[u8; SIZE]> {
        let (taken, rest) = self.0.split_first_chunk::<SIZE>()?;
        self.0 = rest;
        Some(*taken)
    }

    /// The next four bytes.
    pub fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    /// The next eight bytes.
    pub fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    /// The next sixteen bytes.
    pub fn u128(&mut self) -> Option<u128> {
        self.take().map(u128::from_le_bytes)
    }

    fn announcement(&mut self) -> Option<Announcement> {
        let file = self.u64()?;
        let [state] = self.take()?;
        let generation = self.u32()?;
        let announced = match state {
            0 => None,
            1 | 2 => Some(generation),
            _ => return None,
        };
        Some(Announcement { file, announced, forgets_time: state == 2 })
    }

    fn option(&mut self) -> Option<Option<u32>> {
        let [present] = self.take()?;
        let value = self.u32()?;
        match present {
            0 => Some(None),
            1 => Some(Some(value)),
            _ => None,
        }
    }
}
