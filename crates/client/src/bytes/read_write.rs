//! Reading and writing: one call becomes one request to each server that holds a part, all under way at once, with the
//! bytes going straight from and to the caller's memory.
//!
//! How a read knows where the file ends
//! 1. A server says of its pieces whether they are complete: wholly before some byte that it holds of that chunk. All
//!    complete: nothing is missing.
//! 2. Else the home may have told the size with its own piece, when nobody else holds bytes. That counts only where all
//!    others were complete: what another one does not hold may have been freed after the home answered, with the file.
//! 3. Else the home is asked. What was read before is only valid up to a size that was known before the read and in the
//!    same truncate generation, for within a generation sizes only grow, but for a power loss, with which the home
//!    forgets our session; where the size turns out to be larger, the range is read again. So a byte that was written
//!    in between is never returned as a zero.

use crate::bytes::stripe::{Destination, FileRange, Share, Source, deal, fill_zero, part_of_ranges};
use crate::error::{Attempt, RequestError, Result};
use crate::filesystem::FileSystem;
use crate::open_files::file::{File, KnownSize};
use crate::servers::Servers;
use crate::servers::join::join_all;
use crate::shared_memory::short_circuit::Found;
use crate::shared_memory::snapshot::Snapshot;
use reactor::ClientCounter;
use reactor::channel::Call;
use std::io::{IoSlice, IoSliceMut};
use wire::layout::ChunkRange;
use wire::limits::{APPEND_SIZE_MAX, FILE_SIZE_MAX};
use wire::messages::{
    AppendRequest, DataRequest, Pieces, ReadReply, ReserveAppendReply, ReserveAppendRequest, WriteReply,
};
use wire::{Decode, Encode, Kind, Operation, Status};

/// Bytes of one call that are under way at once: bounds the lists of pieces of very large calls.
const ROUND_SIZE_MAX: usize = 256 << 20;
/// How often a read follows a file that others truncate under it.
const REREAD_COUNT_MAX: usize = 16;
/// How often bytes are sent again, or asked for again, that were changed on their way.
const ATTEMPTS_MAX: usize = 3;

impl FileSystem {
    /// Reads into `place` from `offset` bytes on. Returns the bytes read: fewer than asked only at the end of the file.
    ///
    /// Errors: `BadHandle` when not opened for reading, `IsDirectory`, and what concerns the servers.
    pub async fn read_at(&self, file: &File, place: &mut [u8], offset: u64) -> Result<usize> {
        self.read_vectored_at(file, &mut [IoSliceMut::new(place)], offset).await
    }

    /// Reads into several places, one after the other, as `read_at` does.
    pub async fn read_vectored_at(&self, file: &File, places: &mut [IoSliceMut<'_>], offset: u64) -> Result<usize> {
        let size = places.iter().map(|place| place.len()).sum::<usize>() as u64;
        let range = FileRange { offset, size: size.min(FILE_SIZE_MAX.saturating_sub(offset)) };
        let end = self.try_read(file, places, &[range]).await;
        let end = end.map_err(|request_error| request_error.about_file(file.id))?;
        Ok(range.size_before(end) as usize)
    }

    /// Reads a list of ranges, in any order, into several places, in which the bytes of one range follow those of the
    /// one before it: one request to each server that holds a part, whatever their number. Returns the bytes read of
    /// each range: fewer than it has only at the end of the file; the rest of its memory has no meaning then.
    ///
    /// Errors: as `read_at`, and `Invalid` when the places are not as large as the ranges together.
    pub async fn read_list_at(
        &self,
        file: &File,
        ranges: &[FileRange],
        places: &mut [IoSliceMut<'_>],
    ) -> Result<Vec<usize>> {
        let checked = check_list(ranges, places.iter().map(|place| place.len()).sum());
        let end = match checked {
            Ok(()) => self.try_read(file, places, ranges).await,
            Err(request_error) => Err(request_error),
        };
        let end = end.map_err(|request_error| request_error.about_file(file.id))?;
        Ok(ranges.iter().map(|range| range.size_before(end) as usize).collect())
    }

    /// Writes all of `bytes` at `offset`. Returns the bytes written: fewer only when an error struck in the middle,
    /// which a further write will report, or the next synchronisation or close.
    ///
    /// Errors: `BadHandle` when not opened for writing, `TooLarge` beyond 2^63 - 1, `NoSpace`, and what concerns the
    /// servers.
    pub async fn write_at(&self, file: &File, bytes: &[u8], offset: u64) -> Result<usize> {
        self.write_vectored_at(file, &[IoSlice::new(bytes)], offset).await
    }

    /// Writes from several places, one after the other, as `write_at` does.
    pub async fn write_vectored_at(&self, file: &File, places: &[IoSlice<'_>], offset: u64) -> Result<usize> {
        let range = FileRange { offset, size: places.iter().map(|place| place.len()).sum::<usize>() as u64 };
        self.write_list_at(file, &[range], places).await
    }

    /// Writes a list of ranges, in any order, from several places, in which the bytes of one range follow those of the
    /// one before it: one request to each server that gets a part, whatever their number. Returns the bytes written,
    /// counted from the beginning of the list, as `write_at` does. Where ranges overlap, either may win.
    ///
    /// Errors: as `write_at`, and `Invalid` when the places are not as large as the ranges together.
    pub async fn write_list_at(&self, file: &File, ranges: &[FileRange], places: &[IoSlice<'_>]) -> Result<usize> {
        self.try_write(file, places, ranges).await.map_err(|request_error| request_error.about_file(file.id))
    }

    /// Writes at the end of the file and returns the offset. Up to 64 KiB are there as a whole or not at all, whoever
    /// dies; of larger appends the home moves the end first, so that no two overlap, and an interrupted one leaves
    /// zeros.
    pub async fn append(&self, file: &File, bytes: &[u8]) -> Result<u64> {
        if (1..=APPEND_SIZE_MAX).contains(&bytes.len()) {
            return self.append_whole(file, bytes).await.map_err(|request_error| request_error.about_file(file.id));
        }
        let offset =
            self.reserve_append(file, bytes.len()).await.map_err(|request_error| request_error.about_file(file.id))?;
        let mut written = 0;
        while written < bytes.len() {
            written += self.write_at(file, &bytes[written..], offset + written as u64).await?;
        }
        Ok(offset)
    }

    async fn append_whole(&self, file: &File, bytes: &[u8]) -> Attempt<u64> {
        check_handle(file, file.write)?;
        let (servers, operation) = (&self.servers, Operation::Append);
        let home = servers.home_of(file.id)?;
        let body = [IoSlice::new(bytes)];
        let mut attempts = 0;
        let reply = loop {
            let request = AppendRequest { file: file.id, sum: Some(crc32c::crc32c(bytes)) };
            attempts += 1;
            match servers.send(home, Call { body: &body, ..Call::new(operation, &request) }).await {
                Err(request_error) if request_error.status() == Status::Damaged && attempts <= ATTEMPTS_MAX => {}
                result => break result?,
            }
        };
        let reply = ReserveAppendReply::from_bytes(&reply.params);
        let offset = reply.map_err(|malformed| RequestError::malformed(operation, home, malformed))?.offset;
        let mut pieces = file.layout.pieces(offset, bytes.len() as u64);
        let beyond_home =
            pieces.any(|piece| servers.cluster.chunk_server(file.id, &file.layout, piece.chunk_index) != home);
        file.note_written(offset + bytes.len() as u64, beyond_home);
        Ok(offset)
    }

    async fn reserve_append(&self, file: &File, size: usize) -> Attempt<u64> {
        check_handle(file, file.write)?;
        self.servers.adopt(file).await;
        let home = self.servers.home_of(file.id)?;
        let operation = Operation::ReserveAppend;
        let request = ReserveAppendRequest { file: file.id, size: size as u64 };
        let reply = self.servers.ask(home, operation, &request).await?;
        let reply = ReserveAppendReply::from_bytes(&reply.params);
        let offset = reply.map_err(|malformed| RequestError::malformed(operation, home, malformed))?.offset;
        match offset.checked_add(size as u64) {
            Some(end) if end <= FILE_SIZE_MAX => Ok(offset),
            _ => Err(RequestError::local(Status::TooLarge)),
        }
    }

    async fn try_write(&self, file: &File, places: &[IoSlice<'_>], ranges: &[FileRange]) -> Attempt<usize> {
        check_handle(file, file.write)?;
        self.servers.adopt(file).await;
        let size = places.iter().map(|place| place.len()).sum::<usize>();
        check_list(ranges, size)?;
        self.servers.count_crossing(file, ranges);
        if size <= ROUND_SIZE_MAX {
            return self.servers.write_round(file, places, ranges, size).await;
        }
        let mut written = 0;
        while written < size {
            let round_size = (size - written).min(ROUND_SIZE_MAX);
            let round = part_of(places, written, round_size);
            let list = part_of_ranges(ranges, written as u64, round_size as u64);
            match self.servers.write_round(file, &round, &list, round_size).await {
                Ok(count) if count == round_size => written += count,
                Ok(count) => return Ok(written + count),
                Err(request_error) if written > 0 => {
                    file.keep_error(request_error.about_file(file.id));
                    return Ok(written);
                }
                Err(request_error) => return Err(request_error),
            }
        }
        Ok(written)
    }

    /// Returns the end up to which the ranges were read: at least that of the last of them, unless the file ends
    /// before.
    async fn try_read(&self, file: &File, places: &mut [IoSliceMut<'_>], ranges: &[FileRange]) -> Attempt<u64> {
        check_handle(file, file.read)?;
        self.servers.adopt(file).await;
        let size = ranges.iter().map(|range| range.size).sum::<u64>() as usize;
        self.servers.count_crossing(file, ranges);
        if size <= ROUND_SIZE_MAX {
            return self.servers.read_round(file, places, ranges).await;
        }
        let (mut read, mut end) = (0, u64::MAX);
        while read < size {
            let round_size = (size - read).min(ROUND_SIZE_MAX);
            let mut round = part_of_mut(places, read, round_size);
            let list = part_of_ranges(ranges, read as u64, round_size as u64);
            let round_end = self.servers.read_round(file, &mut round, &list).await?;
            if round_end < end_of(&list) {
                end = end.min(round_end);
                if ranges.len() == 1 {
                    break;
                }
            }
            read += round_size;
        }
        Ok(end)
    }
}

/// The end of the last of the ranges that have bytes.
fn end_of(ranges: &[FileRange]) -> u64 {
    ranges.iter().filter(|range| range.size > 0).map(FileRange::end).max().unwrap_or(0)
}

/// Errors: `Invalid` where the memory is not as large as the ranges, `TooLarge` where one ends beyond 2^63 - 1.
fn check_list(ranges: &[FileRange], memory_size: usize) -> Attempt<()> {
    let is_there = |range: &FileRange| range.offset.checked_add(range.size).is_some_and(|end| end <= FILE_SIZE_MAX);
    if !ranges.iter().all(is_there) {
        return Err(RequestError::local(Status::TooLarge));
    }
    // No sum of sizes that are at most 2^63 - 1 each: as many of them as make up the memory are enough.
    let mut left = memory_size as u64;
    let is_as_large = ranges.iter().all(|range| match left.checked_sub(range.size) {
        Some(rest) => {
            left = rest;
            true
        }
        None => false,
    });
    if !is_as_large || left > 0 {
        let words = "the memory and the ranges of a list are not of the same size".to_owned();
        return Err(RequestError::Local(Status::Invalid, words));
    }
    Ok(())
}

/// What the servers said to one attempt to read a range.
struct RangeRead {
    complete: bool,
    size: Option<u64>,
}

impl Servers {
    async fn write_round(
        &self,
        file: &File,
        places: &[IoSlice<'_>],
        ranges: &[FileRange],
        size: usize,
    ) -> Attempt<usize> {
        if size == 0 {
            return Ok(0);
        }
        let home = self.home_of(file.id)?;
        let shares = deal(&self.cluster, file.id, &file.layout, (ranges, u64::MAX), Source::new(places));
        let beyond_home = shares.iter().any(|share| share.server != home);
        file.note_written_servers(shares.iter().fold(0, |bits, share| bits | 1 << (share.server % u64::BITS)));
        let firsts: Vec<usize> = shares.iter().map(|share| share.first_position).collect();
        let results = match <[_; 1]>::try_from(shares) {
            Ok([share]) => vec![self.write_share(file, share).await],
            Err(shares) => join_all(shares.into_iter().map(|share| self.write_share(file, share))).await,
        };
        // Everything before the first piece that failed is written; the error itself waits for the next call then.
        let mut written = size;
        let mut first_trouble = None;
        for (first, result) in firsts.into_iter().zip(results) {
            if let Err(request_error) = result
                && (first < written || first_trouble.is_none())
            {
                written = written.min(first);
                first_trouble = Some(request_error);
            }
        }
        match first_trouble {
            Some(request_error) if written == 0 => Err(request_error),
            first_trouble => {
                if let Some(request_error) = first_trouble {
                    file.keep_error(request_error.about_file(file.id));
                    file.note_written(end_of(&part_of_ranges(ranges, 0, written as u64)), beyond_home);
                } else {
                    file.note_written(end_of(ranges), beyond_home);
                }
                Ok(written)
            }
        }
    }

    async fn write_share(&self, file: &File, mut share: Share<IoSlice<'_>>) -> Attempt<()> {
        self.write_local(file, &mut share).await?;
        if share.pieces.is_empty() {
            return Ok(());
        }
        let _permit = self.await_permit(file, share.server, share.size).await?;
        let mut request =
            DataRequest { file: file.id, layout: file.layout, pieces: Pieces(share.pieces), sums: Vec::new() };
        if self.wants_sums(share.server) {
            request.sums = sums_of(&request.pieces.0, &share.slices);
        }
        match self.write_pieces(&share.slices, share.server, &mut request).await {
            // What the server has registered for us may be what it lacks.
            Err(request_error)
                if request_error.status() == Status::NoSpace && self.give_back_pages(share.server).await =>
            {
                self.write_pieces(&share.slices, share.server, &mut request).await
            }
            result => result,
        }
    }

    /// Sends pieces until they have arrived as they are here, or that has failed too often.
    async fn write_pieces(&self, body: &[IoSlice<'_>], server: u32, request: &mut DataRequest) -> Attempt<()> {
        let operation = Operation::Write;
        for attempt in 1.. {
            match self.send(server, Call { body, ..Call::new(operation, request) }).await {
                Err(request_error) if request_error.status() == Status::Damaged && attempt <= ATTEMPTS_MAX => {
                    // It may keep checksums since it was started anew, over another store.
                    self.note_sums(server, true);
                    request.sums = sums_of(&request.pieces.0, body);
                }
                result => {
                    let reply = WriteReply::from_bytes(&result?.params);
                    let reply = reply.map_err(|malformed| RequestError::malformed(operation, server, malformed))?;
                    self.note_sums(server, reply.keeps_sums);
                    break;
                }
            }
        }
        Ok(())
    }

    /// Whether writes to a server have to bring checksums, as far as is known. A server that was not heard of may want
    /// them.
    fn wants_sums(&self, server: u32) -> bool {
        !self.without_sums.borrow().contains(&server)
    }

    fn note_sums(&self, server: u32, keeps_sums: bool) {
        if keeps_sums != self.wants_sums(server) {
            let mut without = self.without_sums.borrow_mut();
            if keeps_sums {
                without.remove(&server)
            } else {
                without.insert(server)
            };
        }
    }

    /// Returns the end up to which the ranges were read.
    async fn read_round(&self, file: &File, places: &mut [IoSliceMut<'_>], ranges: &[FileRange]) -> Attempt<u64> {
        let mut end = end_of(ranges);
        let Some(start) = ranges.iter().filter(|range| range.size > 0).map(|range| range.offset).min() else {
            return Ok(end);
        };
        if let [FileRange { offset, size }] = *ranges
            && let Some(count) = self.read_leases.read(file.id, places, offset, size as usize, || self.reactor.now())
        {
            let home = self.home_of(file.id)?;
            self.count(home, &[(ClientCounter::LeasedReads, 1), (ClientCounter::LeasedBytes, count as u64)]);
            return Ok(offset + count as u64);
        }
        let mut sessions_lost = self.sessions_lost();
        file.forget_lost_size(sessions_lost);
        let mut known = file.known_size();
        if start >= known.size && start >= file.written_end() {
            // Most likely the end of the file: the size alone is cheaper than a body of zeros.
            known = self.ask_size(file).await?;
            end = end.min(known.size);
        }
        // Beyond the known size a question for places would mostly be in vain.
        let is_inside = start < end && end <= known.size.max(file.written_end());
        if is_inside && self.read_ranges_short_circuit(file, places, (ranges, end), || true).await? {
            return Ok(end);
        }
        if !is_inside
            && start < end
            && let Some(end) = self.read_to_end(file, places, (ranges, end)).await?
        {
            return Ok(end);
        }
        for _ in 0..REREAD_COUNT_MAX {
            if end <= start {
                return Ok(end);
            }
            let mut read = self.read_ranges(file, places, (ranges, end)).await;
            for _ in 0..ATTEMPTS_MAX {
                if matches!(&read, Err(request_error) if request_error.status() == Status::Damaged) {
                    read = self.read_ranges(file, places, (ranges, end)).await;
                }
            }
            let read = read?;
            if read.complete {
                break;
            }
            if let Some(size) = read.size {
                return Ok(end.min(size));
            }
            let now = self.ask_size(file).await?;
            let valid_end = end.min(now.size);
            let is_kept = now.truncate_generation == known.truncate_generation && self.sessions_lost() == sessions_lost;
            if is_kept && valid_end <= known.size {
                end = valid_end;
                break;
            }
            sessions_lost = self.sessions_lost();
            known = now;
            end = valid_end;
        }
        Ok(end)
    }

    /// Reads ranges in which the file ends, without a message: what its home shows of its size, and then the bytes, as
    /// long as the size is the same afterwards. Returns the end up to which they were read; nothing if servers have to
    /// be asked.
    async fn read_to_end(
        &self,
        file: &File,
        places: &mut [IoSliceMut<'_>],
        (ranges, end): (&[FileRange], u64),
    ) -> Attempt<Option<u64>> {
        let home = self.home_of(file.id)?;
        let Some((attributes, cell)) = self.cached_inode_cell(home, file.id).await else { return Ok(None) };
        file.note_attributes(&attributes);
        let end = end.min(attributes.size);
        if ranges.iter().all(|range| range.size_before(end) == 0) {
            return Ok(Some(end));
        }
        let is_same = || {
            let mut snapshot = Snapshot::new(self, cell.mapping().clone());
            snapshot.kept(&cell);
            snapshot.holds()
        };
        Ok(self.read_ranges_short_circuit(file, places, (ranges, end), is_same).await?.then_some(end))
    }

    async fn ask_size(&self, file: &File) -> Attempt<KnownSize> {
        let attributes = self.stat_id(file.id).await?;
        file.note_attributes(&attributes);
        Ok(KnownSize { size: attributes.size, truncate_generation: attributes.truncate_generation })
    }

    /// Reads what of the ranges lies before `end` from the regions that the servers lend. False if a part of it has to
    /// be read through its server, or if it is not `valid` in the end; then what is in `places` has no meaning.
    async fn read_ranges_short_circuit(
        &self,
        file: &File,
        places: &mut [IoSliceMut<'_>],
        (ranges, end): (&[FileRange], u64),
        valid: impl FnOnce() -> bool,
    ) -> Attempt<bool> {
        if let [range] = ranges {
            let mut pieces = file.layout.pieces(range.offset, range.size_before(end));
            if let (Some(piece), None) = (pieces.next(), pieces.next()) {
                // Most reads: of one chunk, whose places are known already or soon.
                match self.copy_known(file, &[piece], places).await {
                    Found::Copied(mapping) => {
                        if !valid() {
                            return Ok(false);
                        }
                        mapping.count(&counts_of_read(piece.size as usize));
                        return Ok(true);
                    }
                    Found::Hole => return Ok(false),
                    Found::Unknown => {}
                }
            }
        }
        let size = ranges.iter().map(|range| range.size_before(end)).sum::<u64>() as usize;
        let mut shares = deal(&self.cluster, file.id, &file.layout, (ranges, end), Destination::new(places));
        if let [share] = &mut shares[..] {
            let is_read = self.read_short_circuit(file, share, size).await? && valid();
            if is_read {
                self.count_read(share.server, share.size);
            }
            return Ok(is_read);
        }
        if !shares.iter().all(|share| self.may_short_circuit(share.server)) {
            return Ok(false);
        }
        let mut is_read = true;
        for read in join_all(shares.iter_mut().map(|share| self.read_short_circuit(file, share, size))).await {
            is_read &= read?;
        }
        is_read = is_read && valid();
        if is_read {
            shares.iter().for_each(|share| self.count_read(share.server, share.size));
        }
        Ok(is_read)
    }

    /// Counts a call that is cut in two by the place of a boundary alone: a list has its places from the program.
    fn count_crossing(&self, file: &File, ranges: &[FileRange]) {
        let chunk_size = u64::from(file.layout.chunk_size);
        if let [range] = ranges
            && range.size <= chunk_size
            && range.offset % chunk_size + range.size > chunk_size
            && let Ok(home) = self.home_of(file.id)
        {
            self.count(home, &[(ClientCounter::CrossingCalls, 1)]);
        }
    }

    /// Counts a read by short circuit from one server's store.
    fn count_read(&self, server: u32, size: usize) {
        self.count(server, &counts_of_read(size));
    }

    /// Asks all servers of ranges for their pieces before `end`. All of that is filled, with zeros where nothing is
    /// held.
    async fn read_ranges(
        &self,
        file: &File,
        places: &mut [IoSliceMut<'_>],
        (ranges, end): (&[FileRange], u64),
    ) -> Attempt<RangeRead> {
        let shares = deal(&self.cluster, file.id, &file.layout, (ranges, end), Destination::new(places));
        let results = match <[_; 1]>::try_from(shares) {
            Ok([share]) => vec![self.read_share(file, share).await],
            Err(shares) => join_all(shares.into_iter().map(|share| self.read_share(file, share))).await,
        };
        let home = self.home_of(file.id)?;
        let mut range = RangeRead { complete: true, size: None };
        let mut complete_elsewhere = true;
        for result in results {
            let (share, reply, received) = result?;
            range.complete &= reply.complete;
            complete_elsewhere &= reply.complete || share.server == home;
            range.size = range.size.or(reply.size);
            if received < share.size {
                fill_missing(places, &share, received);
            }
            verify(places, &share, &reply)?;
        }
        range.size = range.size.filter(|_| complete_elsewhere);
        Ok(range)
    }

    /// Returns the share without its memory, what its server said, and the bytes that came: a server may leave out the
    /// zeros at the end of the body.
    async fn read_share(
        &self,
        file: &File,
        mut share: Share<IoSliceMut<'_>>,
    ) -> Attempt<(Share<()>, ReadReply, usize)> {
        let operation = Operation::Read;
        let _permit = self.await_permit(file, share.server, share.size).await?;
        let params = data_request(file, share.pieces.clone());
        let place = std::mem::take(&mut share.slices);
        let call = Call { place, ..Call::encoded(operation, params) };
        let reply = self.send(share.server, call).await?;
        let received = reply.body_size;
        let reply = ReadReply::from_bytes(&reply.params)
            .map_err(|malformed| RequestError::malformed(operation, share.server, malformed))?;
        Ok((share.without_memory(), reply, received))
    }
}

/// A read by short circuit.
fn counts_of_read(size: usize) -> [(ClientCounter, u64); 2] {
    [(ClientCounter::ShortCircuitReads, 1), (ClientCounter::ShortCircuitBytes, size as u64)]
}

/// Compares what has come with the checksums that came with it, if any. Errors: `Damaged`.
fn verify(places: &[IoSliceMut<'_>], share: &Share<()>, reply: &ReadReply) -> Attempt<()> {
    if reply.sums.is_empty() {
        return Ok(());
    }
    let is_right = |((piece, position), sum): ((&ChunkRange, usize), &u32)| {
        sum_of(places.iter().map(|place| &**place), position, piece.size as usize) == *sum
    };
    if reply.sums.len() == share.pieces.len() && share.placed_pieces().zip(&reply.sums).all(is_right) {
        return Ok(());
    }
    let words = format!("bytes that server {} sent have another checksum than they came with", share.server);
    Err(RequestError::Local(Status::Damaged, words))
}

/// CRC-32C of bytes `start..start + size`, counted over all slices.
fn sum_of<'m>(slices: impl Iterator<Item = &'m [u8]>, start: usize, size: usize) -> u32 {
    let (mut before, mut sum) = (0, 0);
    for slice in slices {
        let from = start.saturating_sub(before).min(slice.len());
        let to = (start + size).saturating_sub(before).min(slice.len());
        sum = crc32c::crc32c_append(sum, &slice[from..to.max(from)]);
        before += slice.len();
    }
    sum
}

/// The checksum of each piece, of which the slices hold one after the other.
fn sums_of(pieces: &[ChunkRange], slices: &[IoSlice<'_>]) -> Vec<u32> {
    let mut start = 0;
    let sum_of = |piece: &ChunkRange| {
        let sum = sum_of(slices.iter().map(|slice| &**slice), start, piece.size as usize);
        start += piece.size as usize;
        sum
    };
    pieces.iter().map(sum_of).collect()
}

fn data_request(file: &File, pieces: Vec<ChunkRange>) -> Vec<u8> {
    DataRequest { file: file.id, layout: file.layout, pieces: Pieces(pieces), sums: Vec::new() }.to_bytes()
}

/// Zeroes what of the pieces lies beyond the first `received` bytes of their body.
fn fill_missing(places: &mut [IoSliceMut<'_>], share: &Share<()>, received: usize) {
    let mut before = 0;
    for (piece, position) in share.placed_pieces() {
        let size = piece.size as usize;
        let present = received.saturating_sub(before).min(size);
        fill_zero(places, position + present, size - present);
        before += size;
    }
}

pub(crate) fn check_handle(file: &File, allowed: bool) -> Attempt<()> {
    match file.kind {
        Kind::Directory => Err(RequestError::local(Status::IsDirectory)),
        _ if allowed => Ok(()),
        _ => Err(RequestError::local(Status::BadHandle)),
    }
}

/// The slices of `[start, start + size)`, counted over all places.
fn part_of<'m>(places: &'m [IoSlice<'_>], start: usize, size: usize) -> Vec<IoSlice<'m>> {
    let mut before = 0;
    let mut part = Vec::new();
    for place in places {
        let from = start.saturating_sub(before).min(place.len());
        let to = (start + size).saturating_sub(before).min(place.len());
        if from < to {
            part.push(IoSlice::new(&place[from..to]));
        }
        before += place.len();
    }
    part
}

/// As `part_of`, for memory that is read into.
fn part_of_mut<'m>(places: &'m mut [IoSliceMut<'_>], start: usize, size: usize) -> Vec<IoSliceMut<'m>> {
    let mut before = 0;
    let mut part = Vec::new();
    for place in places {
        let place_size = place.len();
        let from = start.saturating_sub(before).min(place_size);
        let to = (start + size).saturating_sub(before).min(place_size);
        if from < to {
            part.push(IoSliceMut::new(&mut place[from..to]));
        }
        before += place_size;
    }
    part
}
