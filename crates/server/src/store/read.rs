//! What happens to a read: the pieces are found, and pinned until the reader is done with them.

use super::chunk::{self, Chunk};
use super::inline_vec::InlineVec;
use super::state::{ChunkKey, StoreState};
use super::{Piece, StoreError, sums};
use reactor::{PagePin, PageRoom, Span};

/// What a read found.
pub struct ReadPlan {
    /// See [`super::ChunkRead::pieces`].
    pub pieces: Vec<Piece>,
    /// See [`super::ChunkRead::valid_end`].
    pub valid_end: u32,
    /// See [`super::ChunkRead::sum`].
    pub sum: Option<u32>,
    /// Number of the pin, if there are bytes to pin.
    pub at: Option<u64>,
    /// Keeps them in memory.
    pub pages: PagePin,
}

/// Pieces of a range of a chunk, and their checksum as far as they are known.
struct Pieces {
    list: Vec<Piece>,
    sum: u32,
    has_sum: bool,
}

impl Pieces {
    fn add_zeros(&mut self, size: u32) {
        self.list.push(Piece::Zero(size));
        if self.has_sum {
            self.sum = sums::join(self.sum, sums::of_zeros(size), size);
        }
    }

    fn into_sum(self) -> (Vec<Piece>, Option<u32>) {
        (self.list, self.has_sum.then_some(self.sum))
    }
}

impl StoreState {
    /// See [`super::Store::read`].
    pub fn read(&mut self, key: ChunkKey, offset: u32, size: u32) -> Result<ReadPlan, StoreError> {
        let end = offset.checked_add(size).ok_or(StoreError::TooLarge)?;
        let Some(chunk) = self.files.get(key.0).and_then(|file| file.chunks.get(key.1)) else {
            let mut pieces = self.no_pieces();
            if size > 0 {
                pieces.add_zeros(size);
            }
            let (pieces, sum) = pieces.into_sum();
            return Ok(ReadPlan { pieces, valid_end: 0, sum, at: None, pages: PagePin::default() });
        };
        let pages = self.pin_pages(key, PageRoom::Left, || self.pages_to_read(chunk, offset, end))?;
        let (pieces, sum) = self.find_pieces(key, chunk, offset, end)?.into_sum();
        let valid_end = chunk.valid_end();
        let has_bytes = pieces.iter().any(|piece| matches!(piece, Piece::Bytes(_)));
        let at = has_bytes.then(|| self.pin(key, true, InlineVec::default()));
        Ok(ReadPlan { pieces, valid_end, sum, at, pages })
    }

    fn no_pieces(&self) -> Pieces {
        Pieces { list: Vec::with_capacity(1), sum: 0, has_sum: self.checksums() }
    }

    fn find_pieces(&self, key: ChunkKey, chunk: &Chunk, offset: u32, end: u32) -> Result<Pieces, StoreError> {
        let mut pieces = self.no_pieces();
        let mut byte = offset;
        let behind = &chunk.ranges[chunk.ranges.partition_point(|range| range.end <= offset)..];
        for range in behind.iter().take_while(|range| range.start < end) {
            let (first, last) = (range.start.max(offset), range.end.min(end));
            let sum = self.verified_sum(key, chunk, first, last)?;
            if byte < range.start {
                pieces.add_zeros(range.start - byte);
            }
            if pieces.has_sum {
                pieces.sum = sums::join(pieces.sum, sum, last - first);
            }
            chunk::for_each_piece(&chunk.extents, first, last, |place, _, size| {
                pieces.list.push(Piece::Bytes(Span {
                    region: self.data.clone(),
                    offset: place,
                    size: u64::from(size),
                }));
            });
            byte = last;
        }
        if byte < end {
            pieces.add_zeros(end - byte);
        }
        Ok(pieces)
    }
}
