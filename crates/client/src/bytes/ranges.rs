//! Operations on ranges of files that move no bytes through the client: room, holes, zeros, the look for data, and
//! copies between the servers.

use crate::bytes::read_write::check_handle;
use crate::error::{Attempt, RequestError, Result};
use crate::filesystem::FileSystem;
use crate::open_files::file::File;
use crate::servers::Servers;
use crate::servers::join::join_all;
use std::collections::BTreeMap;
use wire::layout::ChunkRange;
use wire::limits::{ALLOCATE_CHUNK_COUNT_MAX, COPY_SIZE_MAX, FILE_SIZE_MAX};
use wire::messages::{AllocateRequest, CopyRangeRequest, SeekReply, SeekRequest, allocate_mode};
use wire::{Decode, FileId, Kind, Layout, Operation, Status};

/// Chunks that are looked at to find the servers of a range; of a range with more, all servers are asked.
const LOOK_COUNT_MAX: usize = 1 << 14;
/// Pieces of one copy that are under way at once.
const COPY_COUNT_MAX: usize = 16;
/// How often a search for data goes on where the file has grown meanwhile.
const GROWTHS_MAX: u32 = 16;
/// Bytes that one call copies at most.
const COPY_ROUND_SIZE_MAX: u64 = 256 << 20;

/// What `FileSystem::allocate` does with a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allocation {
    /// Takes room for what is not written yet, so that the first write of each byte does not fail for want of it.
    Reserve,
    /// Makes it a hole. The file keeps its size.
    Punch,
    /// Makes it zeros with room.
    Zero,
}

impl FileSystem {
    /// Reserves, punches or zeroes a range of an open file, as fallocate(2) does. The file grows to the range's end
    /// unless `keep_size`; punching never makes it grow. Servers do their parts at once, each chunk as a whole; a call
    /// that fails may have done some of them. With `Reserve` that is room and harms nothing, and the size changes last.
    ///
    /// Errors: `BadHandle` when not opened for writing, `Invalid` for no bytes, `TooLarge` beyond 2^63 - 1, `NoSpace`,
    /// and what concerns the servers.
    pub async fn allocate(&self, file: &File, kind: Allocation, keep_size: bool, offset: u64, size: u64) -> Result<()> {
        let attempt = self.servers.allocate(file, kind, keep_size, offset, size);
        attempt.await.map_err(|request_error| request_error.about_file(file.id))
    }

    /// The first byte with data at or after an offset. Errors: `NoData` (ENXIO) at or beyond the end of the file, and
    /// when only a hole follows.
    pub async fn seek_data(&self, file: &File, offset: u64) -> Result<u64> {
        self.servers.seek(file, offset, false).await.map_err(|request_error| request_error.about_file(file.id))
    }

    /// The first byte without data at or after an offset; there is a hole at the end of every file. Errors: `NoData`
    /// (ENXIO) at or beyond the end.
    pub async fn seek_hole(&self, file: &File, offset: u64) -> Result<u64> {
        self.servers.seek(file, offset, true).await.map_err(|request_error| request_error.about_file(file.id))
    }

    /// Copies a range between open files, on the servers. Returns the bytes copied: fewer than asked at the end of the
    /// source, in very large calls, and when an error struck in the middle. Holes are copied as zeros.
    ///
    /// Errors: `BadHandle` when not opened for reading or writing, `Invalid` when the ranges overlap in one file,
    /// `TooLarge` beyond 2^63 - 1, `NoSpace`, and what concerns the servers.
    pub async fn copy_range(&self, source: &File, from: u64, target: &File, to: u64, size: u64) -> Result<u64> {
        let copied = self.servers.copy_range(source, from, target, to, size);
        copied.await.map_err(|request_error| request_error.about_file(target.id))
    }
}

impl Servers {
    async fn allocate(&self, file: &File, kind: Allocation, keep_size: bool, offset: u64, size: u64) -> Attempt<()> {
        check_handle(file, file.write)?;
        if size == 0 {
            return Err(RequestError::local(Status::Invalid));
        }
        if offset.checked_add(size).is_none_or(|end| end > FILE_SIZE_MAX) {
            return Err(RequestError::local(Status::TooLarge));
        }
        let home = self.home_of(file.id)?;
        let grow = !keep_size && kind != Allocation::Punch;
        let mode = match kind {
            Allocation::Reserve => allocate_mode::RESERVE,
            Allocation::Zero => allocate_mode::ZERO,
            Allocation::Punch => {
                let servers = self.servers_of(file.id, &file.layout, offset, size);
                return self.allocate_on(file, &servers, allocate_mode::PUNCH, false, offset, size).await;
            }
        };
        let mut start = offset;
        while start < offset + size {
            let (end, servers) = self.allocation_round(file, start, offset + size);
            // The home alone does both at once; else the file grows when all others have done their parts.
            let alone = start == offset && end == offset + size && servers == [home];
            self.allocate_on(file, &servers, mode, grow && alone, start, end - start).await?;
            if alone {
                return Ok(());
            }
            start = end;
        }
        match grow {
            true => self.allocate_on(file, &[home], allocate_mode::GROW, true, offset, size).await,
            false => Ok(()),
        }
    }

    /// As much of a range as one request to each server may concern, and these servers.
    fn allocation_round(&self, file: &File, start: u64, end: u64) -> (u64, Vec<u32>) {
        let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
        let mut round_end = start;
        for piece in file.layout.pieces(start, end - start) {
            let server = self.cluster.chunk_server(file.id, &file.layout, piece.chunk_index);
            let count = counts.entry(server).or_default();
            if *count == ALLOCATE_CHUNK_COUNT_MAX {
                break;
            }
            *count += 1;
            round_end += u64::from(piece.size);
        }
        (round_end, counts.into_keys().collect())
    }

    /// Servers that may have chunks in a range.
    pub(crate) fn servers_of(&self, file: FileId, layout: &Layout, offset: u64, size: u64) -> Vec<u32> {
        let mut found = vec![false; self.server_count() as usize];
        let (mut left, mut looked) = (found.len(), 0);
        for piece in layout.pieces(offset, size) {
            let server = self.cluster.chunk_server(file, layout, piece.chunk_index) as usize;
            left -= usize::from(!found[server]);
            found[server] = true;
            looked += 1;
            if left == 0 {
                break;
            }
            if looked == LOOK_COUNT_MAX {
                found.fill(true);
                break;
            }
        }
        (0..self.server_count()).filter(|server| found[*server as usize]).collect()
    }

    async fn allocate_on(
        &self,
        file: &File,
        servers: &[u32],
        mode: u8,
        grow: bool,
        offset: u64,
        size: u64,
    ) -> Attempt<()> {
        let request = AllocateRequest { file: file.id, layout: file.layout, offset, size, mode, grow };
        let home = self.home_of(file.id)?;
        if mode != allocate_mode::GROW && servers.iter().any(|server| *server != home) {
            // Close lets the home take sizes and times in.
            file.note_written(0, true);
        }
        let asked = servers.iter().map(|server| self.ask(*server, Operation::Allocate, &request));
        let replies = join_all(asked).await;
        replies.into_iter().try_for_each(|reply| reply.map(drop))
    }

    async fn seek(&self, file: &File, offset: u64, hole: bool) -> Attempt<u64> {
        if file.kind != Kind::File {
            return Err(RequestError::local(Status::Invalid));
        }
        let size_of = async || {
            let attributes = self.stat_id(file.id).await?;
            file.note_attributes(&attributes);
            Ok::<u64, RequestError>(attributes.size)
        };
        let mut size = size_of().await?;
        let (mut from, mut growths) = (offset, 0);
        while from < size {
            let servers = self.servers_of(file.id, &file.layout, from, size - from);
            let request = SeekRequest { file: file.id, layout: file.layout, offset: from, hole };
            let replies = join_all(servers.into_iter().map(|server| self.seek_on(server, &request))).await;
            let mut first: Option<(u64, bool)> = None;
            for reply in replies {
                let reply = reply?;
                let found = reply.found.map(|found| (found, reply.exact));
                // Of two at one place, the one that is sure counts.
                first = [first, found].into_iter().flatten().min_by_key(|(place, exact)| (*place, !*exact));
            }
            match first {
                Some((found, true)) if found < size => return Ok(found),
                Some((found, false)) if found < size => from = found.max(from + 1),
                // It may have grown before the servers looked, so that there was data all the time. Of one that grows
                // all the time the last end has to do.
                _ if hole || growths == GROWTHS_MAX => break,
                _ => match size_of().await? {
                    now if now > size => (size, growths) = (now, growths + 1),
                    _ => break,
                },
            }
        }
        match offset < size && hole {
            true => Ok(size),
            false => Err(RequestError::local(Status::NoData)),
        }
    }

    async fn seek_on(&self, server: u32, request: &SeekRequest) -> Attempt<SeekReply> {
        let reply = self.ask(server, Operation::Seek, request).await?;
        SeekReply::from_bytes(&reply.params)
            .map_err(|malformed| RequestError::malformed(Operation::Seek, server, malformed))
    }

    async fn copy_range(&self, source: &File, from: u64, target: &File, to: u64, size: u64) -> Attempt<u64> {
        check_handle(source, source.read)?;
        check_handle(target, target.write)?;
        let ends = [from, to].map(|start| start.checked_add(size).filter(|end| *end <= FILE_SIZE_MAX));
        let [Some(from_end), Some(to_end)] = ends else { return Err(RequestError::local(Status::TooLarge)) };
        if source.id == target.id && from < to_end && to < from_end {
            return Err(RequestError::local(Status::Invalid));
        }
        let attributes = self.stat_id(source.id).await?;
        source.note_attributes(&attributes);
        let size = size.min(attributes.size.saturating_sub(from)).min(COPY_ROUND_SIZE_MAX);
        let mut copied = 0;
        while copied < size {
            let pieces = copy_pieces(source, from + copied, target, to + copied, size - copied);
            let round = pieces.iter().map(|piece| self.copy_piece(source, target, piece));
            for (piece, result) in pieces.iter().zip(join_all(round).await) {
                match result {
                    Ok(()) => copied += u64::from(piece.1.size),
                    Err(request_error) if copied == 0 => return Err(request_error),
                    Err(_) => return Ok(copied),
                }
            }
            target.note_written(to + copied, true);
        }
        Ok(copied)
    }

    async fn copy_piece(&self, source: &File, target: &File, piece: &(ChunkRange, ChunkRange)) -> Attempt<()> {
        let server = self.cluster.chunk_server(target.id, &target.layout, piece.1.chunk_index);
        let request = CopyRangeRequest {
            source: source.id,
            source_layout: source.layout,
            from: piece.0,
            target: target.id,
            target_layout: target.layout,
            to: piece.1,
        };
        self.ask(server, Operation::CopyRange, &request).await.map(drop)
    }
}

/// The first pieces of a copy, each within one chunk of either file.
fn copy_pieces(source: &File, mut from: u64, target: &File, mut to: u64, size: u64) -> Vec<(ChunkRange, ChunkRange)> {
    let mut pieces = Vec::with_capacity(COPY_COUNT_MAX);
    let mut left = size;
    while left > 0 && pieces.len() < COPY_COUNT_MAX {
        let most = left.min(u64::from(COPY_SIZE_MAX));
        let first = |file: &File, offset| file.layout.pieces(offset, most).next();
        let (Some(mut read), Some(mut write)) = (first(source, from), first(target, to)) else { break };
        let step = read.size.min(write.size);
        (read.size, write.size) = (step, step);
        pieces.push((read, write));
        (from, to, left) = (from + u64::from(step), to + u64::from(step), left - u64::from(step));
    }
    pieces
}
