//! Where a file's chunks live.

use crate::codec::{Decode, Decoder, Encode, Malformed};
use crate::identity::{FileId, Slot, chunk_hash};
use crate::limits::{CHUNK_SIZE_MAX, CHUNK_SIZE_MIN, FILE_SIZE_MAX};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum LayoutPolicy {
    /// Chunk i is at slot `first + (i / run) mod width`: perfectly even.
    Modular = 0,
    /// Chunk i is at slot `hash(file id, i) mod slot count`; chunk 0 stays at the home.
    Ring = 1,
}

impl LayoutPolicy {
    /// The policy with this number.
    pub(crate) fn of(number: u8) -> Option<LayoutPolicy> {
        [LayoutPolicy::Modular, LayoutPolicy::Ring].into_iter().find(|policy| *policy as u8 == number)
    }
}

/// How the creator of a file wants it spread over the servers; what is 0 or `None` is the cluster's usual way. Where
/// chunks go where a hash leads (`LayoutPolicy::Ring`) only the chunk size counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LayoutWish {
    /// Bytes of a chunk.
    pub chunk_size: u32,
    /// Servers that the file is spread over; more than there are stand for all.
    pub width: u32,
    /// Neighbouring chunks at the same server.
    pub run: u32,
    /// The server of chunk 0.
    pub first: Option<u32>,
}

impl LayoutWish {
    pub fn of_chunk_size(chunk_size: u32) -> LayoutWish {
        LayoutWish { chunk_size, ..LayoutWish::default() }
    }

    /// Whether no more than the chunk size is wanted.
    pub fn is_plain(&self) -> bool {
        *self == LayoutWish::of_chunk_size(self.chunk_size)
    }

    /// Errors: what can't be had, in words.
    pub fn check(&self, server_count: u32) -> Result<(), String> {
        if self.chunk_size != 0 && !(CHUNK_SIZE_MIN..=CHUNK_SIZE_MAX).contains(&self.chunk_size) {
            let size = self.chunk_size;
            return Err(format!("chunk size {size} is not between {CHUNK_SIZE_MIN} and {CHUNK_SIZE_MAX} bytes"));
        }
        match self.first.filter(|first| *first >= server_count) {
            Some(first) => Err(format!("a file can't begin at server {first}: the last one is {}", server_count - 1)),
            None => Ok(()),
        }
    }
}

impl Encode for LayoutWish {
    fn encode(&self, out: &mut Vec<u8>) {
        self.chunk_size.encode(out);
        self.width.encode(out);
        self.run.encode(out);
        self.first.encode(out);
    }
}

impl<'a> Decode<'a> for LayoutWish {
    fn decode(input: &mut Decoder<'a>) -> Result<Self, Malformed> {
        Ok(LayoutWish {
            chunk_size: u32::decode(input)?,
            width: u32::decode(input)?,
            run: u32::decode(input)?,
            first: Option::decode(input)?,
        })
    }
}

/// A file's placement rule, fixed at its creation and carried by every data request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    pub policy: LayoutPolicy,
    /// Bytes of a chunk.
    pub chunk_size: u32,
    /// Slot of chunk 0.
    pub first: Slot,
    /// Slots that the file is spread over.
    pub width: u32,
    /// Neighbouring chunks that share a slot.
    pub run: u32,
}

impl Layout {
    /// The default layout of a new file: it starts at its home and is spread over all slots.
    pub fn default_for(policy: LayoutPolicy, home: Slot, slot_count: u32, chunk_size: u32) -> Layout {
        Layout { policy, chunk_size, first: home, width: slot_count, run: 1 }
    }

    /// The slot of a chunk.
    pub fn slot_of(&self, file: FileId, chunk_index: u64, slot_count: u32) -> Slot {
        match self.policy {
            LayoutPolicy::Modular => {
                let step = (chunk_index / u64::from(self.run)) % u64::from(self.width);
                ((u64::from(self.first) + step) % u64::from(slot_count)) as Slot
            }
            LayoutPolicy::Ring if chunk_index == 0 => self.first,
            LayoutPolicy::Ring => (chunk_hash(file, chunk_index) % u64::from(slot_count)) as Slot,
        }
    }

    /// Checks the fields of a layout from outside against a cluster of `slot_count` slots.
    pub fn check(&self, slot_count: u32) -> Result<(), Malformed> {
        if !(CHUNK_SIZE_MIN..=CHUNK_SIZE_MAX).contains(&self.chunk_size) {
            return Err(Malformed("chunk size is out of range"));
        }
        if self.first >= slot_count || self.width == 0 || self.width > slot_count || self.run == 0 {
            return Err(Malformed("layout is out of range"));
        }
        Ok(())
    }

    /// Cuts the byte range `[offset, offset + size)` of a file into pieces of single chunks, in order.
    /// Panics when the range ends past `FILE_SIZE_MAX`; callers check.
    pub fn pieces(&self, offset: u64, size: u64) -> impl Iterator<Item = ChunkRange> + use<> {
        assert!(offset.checked_add(size).is_some_and(|end| end <= FILE_SIZE_MAX));
        let chunk_size = u64::from(self.chunk_size);
        let end = offset + size;
        let mut position = offset;
        std::iter::from_fn(move || {
            if position >= end {
                return None;
            }
            let within = position % chunk_size;
            let piece_size = (chunk_size - within).min(end - position);
            let piece =
                ChunkRange { chunk_index: position / chunk_size, chunk_offset: within as u32, size: piece_size as u32 };
            position += piece_size;
            Some(piece)
        })
    }
}

/// A range within one chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkRange {
    pub chunk_index: u64,
    /// Offset within the chunk, in bytes.
    pub chunk_offset: u32,
    /// Bytes.
    pub size: u32,
}

impl Encode for ChunkRange {
    fn encode(&self, out: &mut Vec<u8>) {
        self.chunk_index.encode(out);
        self.chunk_offset.encode(out);
        self.size.encode(out);
    }
}

impl<'a> Decode<'a> for ChunkRange {
    fn decode(input: &mut Decoder<'a>) -> Result<Self, Malformed> {
        Ok(ChunkRange {
            chunk_index: u64::decode(input)?,
            chunk_offset: u32::decode(input)?,
            size: u32::decode(input)?,
        })
    }
}

impl Encode for Layout {
    fn encode(&self, out: &mut Vec<u8>) {
        (self.policy as u8).encode(out);
        self.chunk_size.encode(out);
        self.first.encode(out);
        self.width.encode(out);
        self.run.encode(out);
    }
}

impl<'a> Decode<'a> for Layout {
    fn decode(input: &mut Decoder<'a>) -> Result<Self, Malformed> {
        let policy = LayoutPolicy::of(u8::decode(input)?).ok_or(Malformed("layout policy is unknown"))?;
        Ok(Layout {
            policy,
            chunk_size: u32::decode(input)?,
            first: u32::decode(input)?,
            width: u32::decode(input)?,
            run: u32::decode(input)?,
        })
    }
}
