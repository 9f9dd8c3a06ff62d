//! What happens to a read: the pieces are found, and pinned until the reader is done with them.

use super::chunk::{self, Chunk};
use super::state::{Key, State};
use super::{Piece, StoreError};
use reactor::Span;

/// What a read found.
pub struct Found {
    /// See [`super::ChunkRead::pieces`].
    pub pieces: Vec<Piece>,
    /// See [`super::ChunkRead::valid_end`].
    pub valid_end: u32,
    /// Number of the pin, if there are bytes to pin.
    pub at: Option<u64>,
}

impl State {
    /// See [`super::Store::read`].
    pub fn read(&mut self, key: Key, offset: u32, size: u32) -> Result<Found, StoreError> {
        let end = offset.checked_add(size).ok_or(StoreError::TooLarge)?;
        let Some(chunk) = self.files.get(key.0).and_then(|file| file.chunks.get(key.1)) else {
            let pieces = if size > 0 { vec![Piece::Zero(size)] } else { Vec::new() };
            return Ok(Found { pieces, valid_end: 0, at: None });
        };
        let pieces = self.find_pieces(key, chunk, offset, end)?;
        let valid_end = chunk.valid_end();
        let has_bytes = pieces.iter().any(|piece| matches!(piece, Piece::Bytes(_)));
        let at = has_bytes.then(|| self.pin(key, true, None));
        Ok(Found { pieces, valid_end, at })
    }

    fn find_pieces(&self, key: Key, chunk: &Chunk, offset: u32, end: u32) -> Result<Vec<Piece>, StoreError> {
        let mut pieces = Vec::with_capacity(1);
        let mut byte = offset;
        for range in chunk.ranges.iter().filter(|range| range.start < end && offset < range.end) {
            self.verify(key, &chunk.extents, range)?;
            if byte < range.start {
                pieces.push(Piece::Zero(range.start - byte));
            }
            let (first, last) = (range.start.max(offset), range.end.min(end));
            chunk::for_each_piece(&chunk.extents, first, last, |place, _, size| {
                pieces.push(Piece::Bytes(Span { region: self.data.clone(), offset: place, size: u64::from(size) }));
            });
            byte = last;
        }
        if byte < end {
            pieces.push(Piece::Zero(end - byte));
        }
        Ok(pieces)
    }
}
