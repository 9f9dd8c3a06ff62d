//! Checkpoints: all tables, written in steps while they go on changing.
//!
//! A checkpoint notes the journal's tail when it begins; recovery loads it and replays the journal from there. Every
//! entry is an after-image, so that it does not matter on which side of a change the checkpoint saw a table.
//!
//! It consists of segments, regions `checkpoint.SEQUENCE.NUMBER`, each with whole blocks: magic (4), size of the
//! entries (4), sequence (8), number of the block (8), CRC-32C of the header up to here and of the entries (4), zero
//! (4), entries. Blocks begin at multiples of 8 bytes. It counts once a head in the superblock names it; only then its
//! predecessor goes.

use super::StoreError;
use super::durability::FinishedCheckpoint;
use super::entries::{self, Reader};
use super::journal::Position;
use super::state::StoreState;
use super::sums::for_each_sum_run;
use super::superblock::Head;
use reactor::{OpenMode, Region, Storage};
use std::rc::Rc;

/// A block is written when its entries reach this size.
const BLOCK_SIZE: usize = 64 * 1024;
/// Bytes of a block before its entries.
pub const BLOCK_HEADER_SIZE: usize = 32;
const MAGIC: u32 = u32::from_le_bytes(*b"TbCk");
/// The store's own entries that one step adds.
const STEP_ENTRIES: u32 = 128;
/// Checksums that count as one more of them.
const SUMS_PER_ENTRY: u32 = 64;
/// Bounds of a segment's size.
const SEGMENT_SIZE_MIN: u64 = 128 * 1024;
pub const SEGMENT_SIZE_MAX: u64 = 4 * 1024 * 1024;

/// The start of the name of every segment.
pub const NAME_PREFIX: &str = "checkpoint.";

/// The name of a segment.
pub fn segment_name(sequence: u64, number: u32) -> String {
    format!("{NAME_PREFIX}{sequence}.{number}")
}

/// A checkpoint in the making.
pub struct CheckpointWriter {
    sequence: u64,
    start: Position,
    /// All segments so far; the last one is being written.
    segments: Vec<Rc<dyn Region>>,
    segment_size: u64,
    /// Where the next block goes in the segment.
    offset: u64,
    blocks: u64,
    /// Bytes of the entries in them.
    entries_size: u64,
    /// The next block: room for its header, then entries.
    buffer: Vec<u8>,
    /// Where the walk over the files is: cell, file that was begun there, its next chunk.
    cell: u32,
    begun: Option<u64>,
    index: u64,
    /// What went wrong; reported once.
    failure: Option<StoreError>,
    is_broken: bool,
}

impl CheckpointWriter {
    fn put(&mut self, storage: &dyn Storage, kind: u8, fill: impl FnOnce(&mut Vec<u8>)) {
        entries::put_entry(&mut self.buffer, kind, fill);
        self.flush_if_large(storage);
    }

    fn flush_if_large(&mut self, storage: &dyn Storage) {
        if self.buffer.len() >= BLOCK_SIZE {
            self.flush(storage);
        }
    }

    fn flush(&mut self, storage: &dyn Storage) {
        if self.buffer.len() == BLOCK_HEADER_SIZE || self.is_broken {
            self.buffer.truncate(BLOCK_HEADER_SIZE);
            return;
        }
        match self.write_block(storage) {
            Ok(()) => self.buffer.truncate(BLOCK_HEADER_SIZE),
            Err(error) => {
                self.is_broken = true;
                self.failure = Some(error);
            }
        }
    }

    fn write_block(&mut self, storage: &dyn Storage) -> Result<(), StoreError> {
        let size = self.buffer.len() as u64;
        let fits = |segment: &Rc<dyn Region>| self.offset + size <= segment.size();
        let segment = match self.segments.last().cloned().filter(fits) {
            Some(segment) => segment,
            None => self.new_segment(storage, size)?,
        };
        seal(&mut self.buffer, self.sequence, self.blocks);
        segment.write(self.offset, &self.buffer);
        self.offset = (self.offset + size).next_multiple_of(8);
        self.blocks += 1;
        self.entries_size += size - BLOCK_HEADER_SIZE as u64;
        Ok(())
    }

    fn new_segment(&mut self, storage: &dyn Storage, needed: u64) -> Result<Rc<dyn Region>, StoreError> {
        let name = segment_name(self.sequence, self.segments.len() as u32);
        let size = self.segment_size.max(needed).next_multiple_of(4096);
        let region = storage
            .open(&name, size, OpenMode::CreateNew)
            .map_err(|error| StoreError::Medium("create a checkpoint segment", error))?;
        self.segments.push(region.clone());
        region.allocate(0, size).map_err(|error| StoreError::Medium("allocate a checkpoint segment", error))?;
        self.offset = 0;
        Ok(region)
    }

    fn check(&mut self) -> Result<(), StoreError> {
        if !self.is_broken {
            return Ok(());
        }
        Err(self.failure.take().unwrap_or_else(|| StoreError::Damaged("this checkpoint has failed before".into())))
    }
}

impl StoreState {
    /// Whether the journal is half as full as it should become, and no checkpoint is under way.
    pub fn checkpoint_due(&self) -> bool {
        self.checkpoint.is_none() && self.durability.finished.is_none() && self.journal.is_checkpoint_due()
    }

    /// Begins a checkpoint.
    pub fn checkpoint_begin(&mut self) {
        assert!(self.checkpoint.is_none(), "there is one checkpoint at a time");
        let mut sequence = self.superblock.head.sequence + 1;
        if let Some(finished) = self.durability.finished.take() {
            // No sync has made it count, and now this one takes its place.
            sequence = finished.head.sequence + 1;
            self.remove_segments(finished.head.sequence, finished.head.segments);
        }
        self.checkpoint = Some(CheckpointWriter {
            sequence,
            start: self.journal.tail(),
            segments: Vec::new(),
            segment_size: (self.journal.size() / 8).clamp(SEGMENT_SIZE_MIN, SEGMENT_SIZE_MAX),
            offset: 0,
            blocks: 0,
            entries_size: 0,
            buffer: vec![0; BLOCK_HEADER_SIZE],
            cell: 0,
            begun: None,
            index: 0,
            failure: None,
            is_broken: false,
        });
    }

    /// Adds an entry of the caller's.
    pub fn checkpoint_put(&mut self, kind: u8, bytes: &[u8]) -> Result<(), StoreError> {
        let writer = self.checkpoint.as_mut().expect("a checkpoint is under way");
        writer.put(self.storage.as_ref(), kind, |out| out.extend_from_slice(bytes));
        writer.check()
    }

    /// Adds a bounded number of the store's own entries; false when all are there.
    pub fn checkpoint_step(&mut self) -> Result<bool, StoreError> {
        let more = self.checkpoint_step_kept();
        self.checkpoint.as_mut().expect("a checkpoint is under way").check()?;
        Ok(more)
    }

    /// As `checkpoint_step`; an error stays for the next call of that.
    pub fn checkpoint_step_kept(&mut self) -> bool {
        let writer = self.checkpoint.as_mut().expect("a checkpoint is under way");
        let mut budget = STEP_ENTRIES;
        while writer.cell < self.files.cell_count() && budget > 0 && !writer.is_broken {
            let Some(file) = self.files.cell(writer.cell) else {
                (writer.cell, writer.begun) = (writer.cell + 1, None);
                continue;
            };
            if writer.begun != Some(file.id) {
                entries::put_file(&mut writer.buffer, file);
                if file.end > file.chunks.written_end(file.chunk_size) {
                    entries::put_drop(&mut writer.buffer, file.id, 0..0, file.end, file.mtime);
                }
                (writer.begun, writer.index) = (Some(file.id), 0);
                budget -= 1;
            }
            while budget > 0
                && let Some((index, chunk)) = file.chunks.next(writer.index)
            {
                entries::put_chunk(&mut writer.buffer, file.id, index, file.chunk_size, file.mtime, chunk);
                for_each_sum_run(&self.page_sums, chunk, |first, sums| {
                    entries::put_sums(&mut writer.buffer, first, sums.iter().copied());
                    budget = budget.saturating_sub(sums.len() as u32 / SUMS_PER_ENTRY);
                });
                writer.flush_if_large(self.storage.as_ref());
                writer.index = index + 1;
                budget = budget.saturating_sub(1);
            }
            if file.chunks.next(writer.index).is_none() {
                (writer.cell, writer.begun) = (writer.cell + 1, None);
            }
            writer.flush_if_large(self.storage.as_ref());
        }
        writer.cell < self.files.cell_count()
    }

    /// Makes the checkpoint the one that counts.
    pub fn checkpoint_finish(&mut self) -> Result<(), StoreError> {
        while self.checkpoint_step()? {}
        let writer = self.checkpoint.as_mut().expect("a checkpoint is under way");
        writer.flush(self.storage.as_ref());
        writer.check()?;
        let before = self.superblock.head;
        let head = Head {
            sequence: writer.sequence,
            start: writer.start,
            segments: writer.segments.len() as u32,
            blocks: writer.blocks,
            ..before
        };
        let segments = std::mem::take(&mut writer.segments);
        self.journal.fit(writer.entries_size, self.superblock.options.journal_growth.checkpoint_percent);
        self.checkpoint = None;
        if !self.durability.is_volatile {
            self.durability.finished = Some(FinishedCheckpoint { head, segments });
            return Ok(());
        }
        self.superblock.advance(head);
        self.journal.release(head.start.at);
        self.remove_segments(before.sequence, before.segments);
        Ok(())
    }

    /// Gives a checkpoint up, if one is under way.
    pub fn checkpoint_give_up(&mut self) {
        if let Some(writer) = self.checkpoint.take() {
            self.journal.stop_growing();
            self.remove_segments(writer.sequence, writer.segments.len() as u32);
        }
    }

    /// Removes the segments of a checkpoint that does not count.
    pub fn remove_segments(&self, sequence: u64, count: u32) {
        for number in 0..count {
            // What cannot be removed now is removed at the next opening.
            self.storage.remove(&segment_name(sequence, number)).ok();
        }
    }
}

/// Reads a checkpoint; `visit` gets the entries of each block. Errors: `Damaged`, and whatever `visit` says.
pub fn load(
    storage: &dyn Storage,
    head: &Head,
    visit: &mut dyn FnMut(&[u8]) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    let mut number = 0;
    for segment_number in 0..head.segments {
        let name = segment_name(head.sequence, segment_number);
        let segment = storage
            .open(&name, 0, OpenMode::Existing)
            .map_err(|error| StoreError::Damaged(format!("checkpoint segment `{name}` cannot be opened: {error}")))?;
        let mut offset = 0;
        while number < head.blocks
            && let Some(block) = read_block(segment.as_ref(), offset, head.sequence, number)
        {
            visit(&block[BLOCK_HEADER_SIZE..])?;
            offset = (offset + block.len() as u64).next_multiple_of(8);
            number += 1;
        }
    }
    if number < head.blocks {
        return Err(StoreError::Damaged(format!(
            "block {number} of {} of checkpoint {} is unreadable",
            head.blocks, head.sequence
        )));
    }
    Ok(())
}

fn read_block(segment: &dyn Region, offset: u64, sequence: u64, number: u64) -> Option<Vec<u8>> {
    if offset + BLOCK_HEADER_SIZE as u64 > segment.size() {
        return None;
    }
    let mut block = vec![0; BLOCK_HEADER_SIZE];
    segment.read(offset, &mut block);
    let size = block_size(&block, (sequence, number)).filter(|size| offset + size <= segment.size())?;
    block.resize(size as usize, 0);
    segment.read(offset, &mut block);
    (block_crc(&block).to_le_bytes() == block[24..28]).then_some(block)
}

/// Bytes of the block that has this header, if it is the one of this checkpoint and number.
pub fn block_size(header: &[u8], (sequence, number): (u64, u64)) -> Option<u64> {
    let mut reader = Reader(header);
    let (magic, size) = (reader.u32()?, reader.u32()?);
    let is_expected = magic == MAGIC && (reader.u64()?, reader.u64()?) == (sequence, number);
    is_expected.then_some(BLOCK_HEADER_SIZE as u64 + u64::from(size))
}

/// A block with these entries.
pub fn block(entries: &[u8], sequence: u64, number: u64) -> Vec<u8> {
    let mut block = vec![0; BLOCK_HEADER_SIZE];
    block.extend_from_slice(entries);
    seal(&mut block, sequence, number);
    block
}

/// Fills in the header of a block.
fn seal(block: &mut [u8], sequence: u64, number: u64) {
    let size = (block.len() - BLOCK_HEADER_SIZE) as u32;
    block[0..4].copy_from_slice(&MAGIC.to_le_bytes());
    block[4..8].copy_from_slice(&size.to_le_bytes());
    block[8..16].copy_from_slice(&sequence.to_le_bytes());
    block[16..24].copy_from_slice(&number.to_le_bytes());
    let crc = block_crc(block);
    block[24..28].copy_from_slice(&crc.to_le_bytes());
}

fn block_crc(block: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&block[..24]), &block[BLOCK_HEADER_SIZE..])
}
