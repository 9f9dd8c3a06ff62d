//! Writing on the machine of a server: bytes are copied into pages that it has registered for us, and a submission says
//! which bytes of which file they are (docs/shared-memory.md). With that they are written; the server takes the
//! submission up before anything else that it does.
//!
//! | bytes | pages | how they come to the chunk |
//! |---|---|---|
//! | the first of a file that this client has just made | fresh ones | they are swapped in |
//! | whole pages, and much or all of a chunk | fresh ones | they are swapped in |
//! | other pieces of up to 64 KiB | the staging ring's, used again and again | the server copies |
//!
//! Where nothing may be submitted, pages that are to be swapped in are named by a request (`CommitRegistered`), and
//! what is left goes with its message, as it does everywhere else.
//!
//! Invariants
//! 1. A submitted write is made at once when it is taken up: nothing has to be done before it, as the server shows.
//! 2. Pages that are swapped in are never written to again, whatever comes of it.

use crate::bytes::stripe::Share;
use crate::error::RequestError;
use crate::open_files::file::File;
use crate::servers::Servers;
use crate::shared_memory::registered_buffers::{PAGE, PiecePages, Registered};
use crate::shared_memory::snapshot::{COPY_PAUSES, Snapshot};
use reactor::RegisteredPages;
use reactor::channel::Call;
use std::io::IoSlice;
use wire::layout::ChunkRange;
use wire::messages::{CommitRegisteredReply, CommitRegisteredRequest, Pieces, RegisteredPlace};
use wire::submission::{
    ByteTransfer, SUBMITTED_CHUNK_SIZE_MAX, SUBMITTED_SIZE_MAX, Submission, SubmittedBytes, WriteOrder, Written,
};
use wire::{Decode, Operation};

/// Pieces that are submitted through the ring of one call to one server at most: more of them, or more bytes than half
/// of a ring, are better off with one message.
const RING_PIECES_MAX: usize = 16;

/// Bytes in registered pages, and how they are to come to their chunk.
struct Filled {
    bytes: SubmittedBytes,
    transfer: ByteTransfer,
    order: WriteOrder,
}

impl Servers {
    /// Writes the pieces of a share that need no message with their bytes, and takes them out of it. What is left is to
    /// be sent.
    pub(crate) async fn write_local(&self, file: &File, share: &mut Share<IoSlice<'_>>) -> Result<(), RequestError> {
        if self.begin_file(file, share).await.is_some() {
            share.drop_first();
            return Ok(());
        }
        self.write_in_pages(file, share).await?;
        self.write_through_ring(file, share).await;
        Ok(())
    }

    /// Begins a file with a share: only one that this client has just made by a submission which the server has not
    /// taken up, so that nobody else can have done anything with it. Nothing if it has to be written otherwise; then
    /// nothing has happened.
    async fn begin_file(&self, file: &File, share: &Share<IoSlice<'_>>) -> Option<()> {
        let [piece @ ChunkRange { chunk_index: 0, chunk_offset: 0, size: 1..=SUBMITTED_SIZE_MAX }] = share.pieces[..]
        else {
            return None;
        };
        let (mapping, made) = self.made_by_submission(file.id)?;
        if self.cluster.home_of(file.id)? != share.server {
            return None;
        }
        // No step has been since the file was made, and none will be before this is submitted.
        let mut snapshot = Snapshot::new(self, mapping);
        snapshot.step(|snapshot| snapshot.waiting(made)).await?;
        let targets = self.pages_for(share)?;
        let [target] = &targets[..] else { return None };
        self.fill_pages(&piece, target, &mut CallerBytes::of(share)).await?;
        self.submit_swap(snapshot, file, piece, target, WriteOrder::IntentLock).await
    }

    /// Writes the first pieces of a share of small ones, as many as possible, through the ring of its server.
    async fn write_through_ring(&self, file: &File, share: &mut Share<IoSlice<'_>>) {
        let is_fit = file.layout.chunk_size <= SUBMITTED_CHUNK_SIZE_MAX
            && share.pieces.len() <= RING_PIECES_MAX
            && share.size as u64 <= self.ring_size() / 2
            && share.pieces.iter().all(|piece| (1..=SUBMITTED_SIZE_MAX).contains(&piece.size));
        while is_fit
            && let Some(piece) = share.pieces.first().copied()
            && self.write_piece_through_ring(file, share.server, piece, &share.slices).await.is_some()
        {
            share.drop_first();
        }
    }

    /// Writes a piece, whose bytes the slices begin with.
    async fn write_piece_through_ring(
        &self,
        file: &File,
        server: u32,
        piece: ChunkRange,
        slices: &[IoSlice<'_>],
    ) -> Option<()> {
        let snapshot = self.writable(server, file.id).await?;
        let staging_ring = self.staging_ring_for(server, snapshot.mapping())?;
        let mut place = staging_ring.take_soon(piece.size.into(), self.session())?;
        self.fill_part(&staging_ring.buffer, (place.at, piece.size as usize), slices).await?;
        let bytes = SubmittedBytes { at: place.at, size: piece.size, generation: staging_ring.buffer.generation };
        let filled = Filled { bytes, transfer: ByteTransfer::Copy, order: WriteOrder::Number };
        place.submitted = Some(self.submit_piece(snapshot, file, piece, filled).await?);
        Some(())
    }

    /// Writes a share into pages that become the chunks', if it is one that these are for. What the server does not
    /// take stays in the share.
    async fn write_in_pages(&self, file: &File, share: &mut Share<IoSlice<'_>>) -> Result<(), RequestError> {
        let Some(mut targets) = self.take_pages(file, share) else { return Ok(()) };
        let may_submit = file.layout.chunk_size <= SUBMITTED_CHUNK_SIZE_MAX;
        while let (Some(piece), Some(target)) = (share.pieces.first().copied(), targets.first()) {
            let Some(snapshot) = (if may_submit { self.writable(share.server, file.id).await } else { None }) else {
                break;
            };
            if self.fill_pages(&piece, target, &mut CallerBytes::of(share)).await.is_none()
                || self.submit_swap(snapshot, file, piece, target, WriteOrder::Number).await.is_none()
            {
                break;
            }
            targets.remove(0);
            share.drop_first();
        }
        if !targets.is_empty() && self.commit_pages(file, share, targets).await? {
            share.clear();
        }
        Ok(())
    }

    /// The same by a request. False if the server does not take the pages; then nothing has happened.
    async fn commit_pages(
        &self,
        file: &File,
        share: &Share<IoSlice<'_>>,
        targets: Vec<PiecePages>,
    ) -> Result<bool, RequestError> {
        // Cut off between two of its steps such a request is to be sent again, with bytes that go with the server's
        // pages.
        if !share.pieces.is_sorted_by(|one, next| one.chunk_index < next.chunk_index) {
            return Ok(false);
        }
        let mut source = CallerBytes::of(share);
        for (piece, target) in share.pieces.iter().zip(&targets) {
            if self.fill_pages(piece, target, &mut source).await.is_none() {
                return Ok(false);
            }
        }
        let place = |target: &PiecePages| RegisteredPlace { generation: target.buffer.generation, at: target.at };
        let request = CommitRegisteredRequest {
            file: file.id,
            layout: file.layout,
            pieces: Pieces(share.pieces.clone()),
            places: targets.iter().map(place).collect(),
        };
        let operation = Operation::CommitRegistered;
        let reply = self.send(share.server, Call::new(operation, &request)).await;
        // Not before, or the server would be told that it has pages back that it is about to commit.
        drop(targets);
        let reply = reply?;
        let reply = CommitRegisteredReply::from_bytes(&reply.params)
            .map_err(|malformed| RequestError::malformed(operation, share.server, malformed))?;
        Ok(reply.end.is_some())
    }

    /// Submits a piece whose pages become the chunk's. Nothing if that is not possible.
    async fn submit_swap(
        &self,
        snapshot: Snapshot<'_>,
        file: &File,
        piece: ChunkRange,
        target: &PiecePages,
        order: WriteOrder,
    ) -> Option<()> {
        if !std::rc::Rc::ptr_eq(&target.buffer.mapping, snapshot.mapping()) {
            return None;
        }
        let bytes = SubmittedBytes { at: target.at, size: piece.size, generation: target.buffer.generation };
        let filled = Filled { bytes, transfer: ByteTransfer::Swap, order };
        self.submit_piece(snapshot, file, piece, filled).await.map(|_| ())
    }

    /// Submits a piece. Returns the submission's number; nothing if that is not possible.
    async fn submit_piece(
        &self,
        mut snapshot: Snapshot<'_>,
        file: &File,
        piece: ChunkRange,
        filled: Filled,
    ) -> Option<u64> {
        let Filled { bytes, transfer, order } = filled;
        let ChunkRange { chunk_index, chunk_offset, .. } = piece;
        let written = Written { chunk_index, chunk_offset, layout: file.layout, order, transfer };
        let submission = Submission::of_write(file.id, self.reactor.wall_clock(), written, bytes);
        let pending = snapshot.step(|snapshot| snapshot.begin(&submission)).await?;
        match order {
            WriteOrder::Number => snapshot.commit_write(pending, file.id).await,
            WriteOrder::IntentLock => snapshot.commit(pending).await,
        }
    }

    /// Copies so many bytes to a part of registered pages that the server reads soon. Nothing if they are not mapped.
    async fn fill_part(
        &self,
        buffer: &Registered,
        (mut at, mut size): (u64, usize),
        slices: &[IoSlice<'_>],
    ) -> Option<()> {
        let pages = buffer.pages.as_ref()?;
        for slice in slices {
            let part = &slice[..slice.len().min(size)];
            pages.write_near(at, part);
            (at, size) = (at + part.len() as u64, size - part.len());
            if size == 0 {
                break;
            }
            if pages.is_simulated() {
                self.pause().await;
            }
        }
        Some(())
    }

    /// Copies a piece to its pages. Nothing if they are not mapped.
    async fn fill_pages(
        &self,
        piece: &ChunkRange,
        target: &PiecePages,
        source: &mut CallerBytes<'_, '_>,
    ) -> Option<()> {
        let pages = target.buffer.pages.as_ref()?;
        let (mut at, mut size) = (target.at + u64::from(piece.chunk_offset) % PAGE, piece.size as usize);
        for _ in 0..if pages.is_simulated() { COPY_PAUSES } else { 0 } {
            let part = size.div_ceil(2);
            source.copy(pages, at, part);
            (at, size) = (at + part as u64, size - part);
            self.pause_in_copy().await;
        }
        source.copy(pages, at, size);
        Some(())
    }
}

/// The caller's memory, taken from the front.
struct CallerBytes<'s, 'm> {
    slices: &'s [IoSlice<'m>],
    position: usize,
}

impl<'s, 'm> CallerBytes<'s, 'm> {
    fn of(share: &'s Share<IoSlice<'m>>) -> CallerBytes<'s, 'm> {
        CallerBytes { slices: &share.slices, position: 0 }
    }

    fn copy(&mut self, pages: &RegisteredPages, mut at: u64, mut size: usize) {
        while size > 0 {
            let slice = &self.slices[0];
            let part = size.min(slice.len() - self.position);
            pages.write(at, &slice[self.position..self.position + part]);
            at += part as u64;
            size -= part;
            self.position += part;
            if self.position == slice.len() {
                self.slices = &self.slices[1..];
                self.position = 0;
            }
        }
    }
}
