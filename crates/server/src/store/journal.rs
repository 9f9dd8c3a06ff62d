//! The journal: a ring of checksummed records that grows with the checkpoints.
//!
//! Record: magic (4), size of the entries (4), lsn (8), number of entries (4), checksum of the record before (4), zero
//! (4), CRC-32C of the header up to here and of the entries (4), entries. It begins at a multiple of 64 bytes. A record
//! that would cross the ring's end is preceded by a filler: a record of its own lsn whose entries are never read.
//!
//! The region may be larger than the ring is at the moment (`Journal::size`). Then it is sparse: its first bytes are
//! taken from the medium, as many as the ring ever had, and the rest are holes. A filler reaches to the region's end
//! wherever the ring ends, so that a position modulo the region's size is an offset whatever size the ring has.
//!
//! Invariants
//! 1. Each record has the lsn after the one before and names its checksum; records of an earlier lap fit neither.
//! 2. `head` is where the newest complete checkpoint says that replay starts; nothing from there to `tail` is
//!    overwritten. So `tail` is in the lap of `head` or in the one after it.
//! 3. `RESERVE` bytes stay free for records without entries, which recovery and the release of staged space need.
//! 4. Bytes are taken from the medium before they are written: those below `backed` are, and all records lie there.
//!    What is behind was never written and is never read, for to read a hole of a mapping makes pages.
//! 5. The ring never becomes smaller than `backed`, and where the medium refuses to give more, it is just that: a ring
//!    that does not grow has the room that it had. `room` is what is there even then.
//! 6. The ring takes nothing that the next checkpoint may need (`elsewhere`): without a checkpoint nothing goes on.

use super::Lsn;
use super::StoreError;
use super::checkpoint::SEGMENT_SIZE_MAX;
use super::entries::{self, Reader, SYNC_ENTRY_SIZE};
use reactor::{Region, Storage};
use std::rc::Rc;

/// Bytes of a record before its entries.
pub const RECORD_HEADER_SIZE: usize = 32;
/// Records begin at multiples of this.
pub const ALIGNMENT: u64 = 64;
/// See invariant 3.
const RESERVE: u64 = 4096;
/// Largest region of a journal that grows: a filler has 32 bits for its size.
pub const GROWN_SIZE_MAX: u64 = 1 << 32;
/// Bounds of what is taken from the medium at a time.
const STEP_SIZE_MIN: u64 = 4096;
const STEP_SIZE_MAX: u64 = 4 * 1024 * 1024;
pub const MAGIC_RECORD: u32 = u32::from_le_bytes(*b"TbJr");
pub const MAGIC_FILLER: u32 = u32::from_le_bytes(*b"TbJf");

const _: () = assert!(RECORD_HEADER_SIZE as u64 <= ALIGNMENT);

/// A place in the journal: where the next record goes and what it must carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// Bytes since the journal was created, with those that were skipped; modulo the region's size it is the offset.
    pub at: u64,
    /// Lsn of the record there.
    pub lsn: Lsn,
    /// Checksum of the record before.
    pub previous: u32,
}

/// Gets the lsn, the number of entries and the entries of a record.
pub type Visit<'a> = &'a mut dyn FnMut(Lsn, u32, &[u8]) -> Result<(), StoreError>;

/// The fields of a record's header.
pub struct RecordHeader {
    pub magic: u32,
    /// Bytes of its entries.
    pub size: u32,
    pub lsn: Lsn,
    /// Number of its entries.
    pub count: u32,
    /// Checksum of the record before.
    pub previous: u32,
    pub crc: u32,
}

/// Reads a header; nothing if that is too short.
pub fn header_of(bytes: &[u8]) -> Option<RecordHeader> {
    let mut reader = Reader(bytes);
    let (magic, size, lsn) = (reader.u32()?, reader.u32()?, reader.u64()?);
    let (count, previous, _, crc) = (reader.u32()?, reader.u32()?, reader.u32()?, reader.u32()?);
    Some(RecordHeader { magic, size, lsn, count, previous, crc })
}

/// What a record that was read says.
struct JournalRecord {
    filler: bool,
    count: u32,
    entries: Vec<u8>,
    crc: u32,
    size: u64,
}

/// See the module.
pub struct Journal {
    region: Rc<dyn Region>,
    /// Bytes of the region; a position modulo this is an offset.
    span: u64,
    /// Bytes that the ring has at least.
    size_min: u64,
    /// See invariant 4.
    backed: u64,
    /// Bytes that the ring should have, by the last checkpoint.
    wanted: u64,
    /// Whether the medium has refused more since the last checkpoint.
    is_refused: bool,
    /// What the region lies on, if it is to be asked how much is left there.
    medium: Option<Rc<dyn Storage>>,
    /// See invariant 6; bytes.
    elsewhere: u64,
    head: u64,
    tail: Position,
    /// Where the ring ended when the tail last came there.
    turn: u64,
}

impl Journal {
    /// A journal of `size_min` bytes, which may grow to what the region has, whose replay starts at `start`; it is to
    /// be replayed before anything is appended.
    pub fn new(region: Rc<dyn Region>, size_min: u64, start: Position) -> Journal {
        let span = region.size() / ALIGNMENT * ALIGNMENT;
        let size_min = size_min.min(span);
        let backed = if size_min == span { span } else { region.data_end().clamp(size_min, span) };
        let (wanted, is_refused) = (size_min, false);
        let (medium, elsewhere) = (None, 0);
        let (head, tail, turn) = (start.at, start, span);
        Journal { region, span, size_min, backed, wanted, is_refused, medium, elsewhere, head, tail, turn }
    }

    /// Has the medium asked before the journal grows (invariant 6).
    pub fn grow_on(&mut self, medium: Rc<dyn Storage>) {
        self.medium = Some(medium);
    }

    /// Where the next record goes.
    pub fn tail(&self) -> Position {
        self.tail
    }

    /// The region, to be made durable.
    pub fn region(&self) -> &Rc<dyn Region> {
        &self.region
    }

    /// Bytes of the largest record.
    pub fn record_size_max(&self) -> u64 {
        self.size_min / 4
    }

    /// Bytes of the ring as it is now.
    pub fn size(&self) -> u64 {
        if self.has_turned() {
            self.turn
        } else if self.is_refused {
            self.backed
        } else {
            self.wanted.max(self.backed)
        }
    }

    /// Bytes that the journal has taken from the medium.
    pub fn backed(&self) -> u64 {
        self.backed
    }

    /// Bytes that replay would have to read.
    pub fn used(&self) -> u64 {
        let skipped = if self.has_turned() { self.span - self.turn } else { 0 };
        self.tail.at - self.head - skipped
    }

    /// Bytes that are left, also if the medium gives no more.
    pub fn room(&self) -> u64 {
        self.size().min(self.backed).saturating_sub(self.used())
    }

    /// Whether replay would have to read so much that a checkpoint should begin.
    pub fn is_checkpoint_due(&self) -> bool {
        self.used() > self.wanted.min(self.size()) / 2
    }

    /// Releases everything before `head`.
    pub fn release(&mut self, head: u64) {
        assert!(self.head <= head && head <= self.tail.at, "the journal's head moves forward");
        self.head = head;
    }

    /// Fits the ring to the last checkpoint, of whose bytes it is to have so many of a hundred.
    pub fn fit(&mut self, checkpoint_size: u64, percent: u32) {
        let wanted = (checkpoint_size.saturating_mul(u64::from(percent)) / 100).min(self.span);
        self.wanted = wanted.next_multiple_of(STEP_SIZE_MIN).clamp(self.size_min, self.span);
        self.is_refused = false;
        self.elsewhere = checkpoint_size + checkpoint_size / 4 + SEGMENT_SIZE_MAX;
    }

    /// A checkpoint has found no room: until one counts the ring is what it has, so that the next is due in time.
    pub fn stop_growing(&mut self) {
        self.is_refused = self.span > self.size_min;
    }

    /// Whether the tail is in the lap after the head's.
    fn has_turned(&self) -> bool {
        self.head / self.span != self.tail.at / self.span
    }

    /// Where records of this lap end at most.
    fn lap_end(&self) -> u64 {
        if self.size() == self.span { self.span } else { self.size() - self.filler_room() }
    }

    /// What is free before the end of a ring that grows, for the header of a filler.
    fn filler_room(&self) -> u64 {
        if self.span == self.size_min { 0 } else { ALIGNMENT }
    }

    /// Where a lap ends whose next record does not fit at `offset`: a ring that does not grow counts what it skips as
    /// used.
    fn turn_at(&self, offset: u64) -> u64 {
        if self.span == self.size_min { self.span } else { offset }
    }

    /// Bytes of the filler before a record of `needed` bytes. `reserved` may use what is kept by invariant 3. Takes
    /// space from the medium. Errors: `TooLarge`, `JournalFull`; then nothing was written.
    fn make_room(&mut self, needed: u64, reserved: bool) -> Result<u64, StoreError> {
        if needed > self.record_size_max() {
            return Err(StoreError::TooLarge);
        }
        let offset = self.tail.at % self.span;
        if !self.has_turned() && offset + needed <= self.lap_end() {
            self.grow(offset + needed);
        }
        // In the lap after the head's the head is what is in the way.
        let fits = self.has_turned() || offset + needed <= self.lap_end();
        let (used, size) = match self.turn_at(offset) {
            _ if fits => (self.used(), self.size()),
            turn => (self.used() + turn - offset, turn),
        };
        let kept = if reserved { self.filler_room() } else { RESERVE };
        match used + needed > size - kept {
            true => Err(StoreError::JournalFull),
            false => Ok(if fits { 0 } else { self.span - offset }),
        }
    }

    /// Takes space from the medium for records up to `end`, with the reserve, and half of the smallest ring beyond, a
    /// step at a time, so that `room` tells of it early. Where the medium refuses, the ring ends at what it has.
    fn grow(&mut self, end: u64) {
        if (end + self.size_min / 2).min(self.size()) <= self.backed {
            return;
        }
        let step = (self.size_min / 16 / STEP_SIZE_MIN * STEP_SIZE_MIN).clamp(STEP_SIZE_MIN, STEP_SIZE_MAX);
        let target = (end + RESERVE).max(self.backed + step).min(self.size());
        let needed = target - self.backed + self.elsewhere;
        let has_room = self.medium.as_ref().is_none_or(|medium| medium.free_bytes() >= needed);
        match has_room && self.region.allocate(self.backed, target - self.backed).is_ok() {
            true => self.backed = target,
            false => self.is_refused = true,
        }
    }

    /// Appends a record. `record` has `RECORD_HEADER_SIZE` bytes before the entries, which are filled in here;
    /// `reserved` may use what is kept by invariant 3. Errors: `TooLarge`, `JournalFull`; then nothing was written.
    pub fn append(&mut self, record: &mut [u8], count: u32, reserved: bool) -> Result<Lsn, StoreError> {
        let needed = align(record.len() as u64);
        let filler_size = self.make_room(needed, reserved)?;
        if filler_size > 0 {
            let mut header = [0; RECORD_HEADER_SIZE];
            self.write(&mut header, MAGIC_FILLER, (filler_size as usize - RECORD_HEADER_SIZE) as u32, 0, filler_size);
        }
        let lsn = self.tail.lsn;
        let size = (record.len() - RECORD_HEADER_SIZE) as u32;
        self.write(record, MAGIC_RECORD, size, count, needed);
        Ok(lsn)
    }

    fn write(&mut self, record: &mut [u8], magic: u32, size: u32, count: u32, step: u64) {
        record[0..4].copy_from_slice(&magic.to_le_bytes());
        record[4..8].copy_from_slice(&size.to_le_bytes());
        record[8..16].copy_from_slice(&self.tail.lsn.to_le_bytes());
        record[16..20].copy_from_slice(&count.to_le_bytes());
        record[20..24].copy_from_slice(&self.tail.previous.to_le_bytes());
        record[24..28].fill(0);
        let crc = record_crc(record);
        record[28..32].copy_from_slice(&crc.to_le_bytes());
        self.region.write(self.tail.at % self.span, record);
        self.advance(step, crc, magic == MAGIC_FILLER);
    }

    /// The tail is behind a record of `step` bytes that was written or read.
    fn advance(&mut self, step: u64, crc: u32, is_filler: bool) {
        let offset = self.tail.at % self.span;
        if is_filler {
            self.turn = self.turn_at(offset);
        } else if offset + step == self.span {
            self.turn = self.span;
        }
        self.tail = Position { at: self.tail.at + step, lsn: self.tail.lsn + 1, previous: crc };
    }

    /// Reads all records from the head on and leaves the tail after the last. A torn record at the end is ignored.
    /// Errors: `Damaged` when a record is unreadable though later ones exist; whatever `visit` says.
    pub fn replay(&mut self, visit: Visit) -> Result<(), StoreError> {
        self.replay_below(Lsn::MAX, visit)?;
        if let Some(later) = self.find_later_record() {
            return Err(StoreError::Damaged(format!(
                "journal record {} at byte {} is unreadable, but record {later} after it is there",
                self.tail.lsn,
                self.tail.at % self.span
            )));
        }
        Ok(())
    }

    /// Reads the records from the head on up to the one before `end`, which is the first that may not have been on the
    /// medium when power was lost, and wipes out what there is of later ones: new records will take their numbers.
    /// Errors: `Damaged` when one of them is unreadable; whatever `visit` says.
    pub fn replay_durable(&mut self, end: Lsn, visit: Visit) -> Result<(), StoreError> {
        self.replay_below(end, visit)?;
        self.check_synced(end)?;
        let mut header = [0; ALIGNMENT as usize];
        for at in (self.tail.at..self.head + self.span).step_by(ALIGNMENT as usize) {
            let offset = at % self.span;
            if offset >= self.backed {
                continue;
            }
            self.region.read(offset, &mut header);
            let mut reader = Reader(&header);
            let (magic, _, lsn) = (reader.u32(), reader.u32(), reader.u64());
            if [Some(MAGIC_RECORD), Some(MAGIC_FILLER)].contains(&magic) && lsn.is_some_and(|lsn| lsn >= end) {
                self.region.fill_zero(offset, ALIGNMENT);
            }
        }
        Ok(())
    }

    /// Reads the records from the tail on up to the one before `end`, as far as they can be read. Errors: whatever
    /// `visit` says.
    pub fn replay_below(&mut self, end: Lsn, visit: Visit) -> Result<(), StoreError> {
        while self.tail.lsn < end
            && let Some(record) = self.read_record()
        {
            if !record.filler {
                visit(self.tail.lsn, record.count, &record.entries)?;
            }
            self.advance(record.size, record.crc, record.filler);
        }
        Ok(())
    }

    /// The record at the tail, if it is whole and the one expected there (invariant 1).
    fn read_record(&self) -> Option<JournalRecord> {
        let offset = self.tail.at % self.span;
        if offset >= self.backed {
            return None;
        }
        let mut header = [0; RECORD_HEADER_SIZE];
        self.region.read(offset, &mut header);
        let RecordHeader { magic, size, lsn, count, previous, crc } = header_of(&header)?;
        let step = align(u64::from(size) + RECORD_HEADER_SIZE as u64);
        let fits = offset + step <= self.span && self.tail.at - self.head + step <= self.span;
        if lsn != self.tail.lsn || previous != self.tail.previous || !fits {
            return None;
        }
        match magic {
            MAGIC_FILLER => {
                let whole = record_crc(&header) == crc && offset + step == self.span;
                whole.then(|| JournalRecord { filler: true, count, entries: Vec::new(), crc, size: step })
            }
            // A size that no record has may be a flipped bit's.
            MAGIC_RECORD if step > self.size_min / 4 || offset + step > self.backed => None,
            MAGIC_RECORD => {
                let mut record = vec![0; RECORD_HEADER_SIZE + size as usize];
                self.region.read(offset, &mut record);
                let whole = record_crc(&record) == crc;
                record.drain(..RECORD_HEADER_SIZE);
                whole.then_some(JournalRecord { filler: false, count, entries: record, crc, size: step })
            }
            _ => None,
        }
    }

    /// Looks through all that was ever written (invariant 4) for a record that must have been written after the tail's.
    pub fn find_later_record(&self) -> Option<Lsn> {
        const BLOCK: u64 = 64 * 1024;
        let mut block = Vec::new();
        for start in (0..self.backed).step_by(BLOCK as usize) {
            block.resize(BLOCK.min(self.backed - start) as usize, 0);
            self.region.read(start, &mut block);
            for (number, candidate) in block.chunks(ALIGNMENT as usize).enumerate() {
                let lsn = self.later_record(start + number as u64 * ALIGNMENT, candidate);
                if lsn.is_some() {
                    return lsn;
                }
            }
        }
        None
    }

    /// Looks through all that was ever written for records of syncs of this cluster's store: below which record the
    /// last of them says that all is on the medium; 0 where there are none. What was never written may be another
    /// store's.
    pub fn find_synced(&self, owner: u128) -> Lsn {
        const SIZE: usize = RECORD_HEADER_SIZE + SYNC_ENTRY_SIZE;
        let mut synced = 0;
        for offset in (0..self.backed.saturating_sub(SIZE as u64 - 1)).step_by(ALIGNMENT as usize) {
            let mut record = [0; SIZE];
            self.region.read(offset, &mut record);
            let Some(RecordHeader { magic, size, count, crc, .. }) = header_of(&record) else { continue };
            if (magic, size as usize, count) == (MAGIC_RECORD, SYNC_ENTRY_SIZE, 1) && record_crc(&record) == crc {
                synced = synced.max(entries::synced_before(&record[RECORD_HEADER_SIZE..], owner).unwrap_or_default());
            }
        }
        synced
    }

    /// Errors: `Damaged` where the tail is at a record that can't be read though those before `end` were synced.
    pub fn check_synced(&self, end: Lsn) -> Result<(), StoreError> {
        if self.tail.lsn >= end {
            return Ok(());
        }
        let offset = self.tail.at % self.span;
        Err(StoreError::Damaged(format!(
            "journal record {} at byte {offset} is unreadable, but those before {end} were synced",
            self.tail.lsn
        )))
    }

    fn later_record(&self, offset: u64, header: &[u8]) -> Option<Lsn> {
        let RecordHeader { magic, size, lsn, .. } = header_of(header)?;
        if magic != MAGIC_RECORD
            || lsn <= self.tail.lsn
            || offset + RECORD_HEADER_SIZE as u64 + u64::from(size) > self.backed
        {
            return None;
        }
        let mut record = vec![0; RECORD_HEADER_SIZE + size as usize];
        self.region.read(offset, &mut record);
        (record_crc(&record).to_le_bytes() == record[28..32]).then_some(lsn)
    }
}

fn align(size: u64) -> u64 {
    size.next_multiple_of(ALIGNMENT)
}

fn record_crc(record: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&record[..28]), &record[RECORD_HEADER_SIZE..])
}
