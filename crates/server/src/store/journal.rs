//! The journal: a ring of checksummed records in a preallocated region.
//!
//! Record: magic (4), size of the entries (4), lsn (8), number of entries (4), checksum of the record before (4), zero
//! (4), CRC-32C of the header up to here and of the entries (4), entries. It begins at a multiple of 64 bytes. A record
//! that would cross the ring's end is preceded by a filler: a record of its own lsn whose entries are never read.
//!
//! Invariants
//! 1. Each record has the lsn after the one before and names its checksum; records of an earlier lap fit neither.
//! 2. `head` is where the newest complete checkpoint says that replay starts; nothing from there to `tail` is
//!    overwritten.
//! 3. `RESERVE` bytes stay free for records without entries, which recovery and the release of staged space need.

use super::Lsn;
use super::StoreError;
use super::entries::Reader;
use reactor::Region;
use std::rc::Rc;

/// Bytes of a record before its entries.
pub const RECORD_HEADER_SIZE: usize = 32;
/// Records begin at multiples of this.
pub const ALIGNMENT: u64 = 64;
/// See invariant 3.
const RESERVE: u64 = 4096;
pub const MAGIC_RECORD: u32 = u32::from_le_bytes(*b"TbJr");
pub const MAGIC_FILLER: u32 = u32::from_le_bytes(*b"TbJf");

const _: () = assert!(RECORD_HEADER_SIZE as u64 <= ALIGNMENT);

/// A place in the journal: where the next record goes and what it must carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// Bytes since the journal was created; modulo the ring's size it is the offset.
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
    size: u64,
    head: u64,
    tail: Position,
}

impl Journal {
    /// A journal whose replay starts at `start`; it is to be replayed before anything is appended.
    pub fn new(region: Rc<dyn Region>, start: Position) -> Journal {
        let size = region.size() / ALIGNMENT * ALIGNMENT;
        Journal { region, size, head: start.at, tail: start }
    }

    /// Where the next record goes.
    pub fn tail(&self) -> Position {
        self.tail
    }

    /// The region, to be made durable.
    pub fn region(&self) -> &Rc<dyn Region> {
        &self.region
    }

    /// Bytes of the ring.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Bytes that replay would have to read.
    pub fn used(&self) -> u64 {
        self.tail.at - self.head
    }

    /// Releases everything before `head`.
    pub fn release(&mut self, head: u64) {
        assert!(self.head <= head && head <= self.tail.at, "the journal's head moves forward");
        self.head = head;
    }

    /// Whether a record of `size` bytes, its header included, fits now; `reserved` may use what is kept by invariant 3.
    pub fn check_room(&self, size: usize, reserved: bool) -> Result<(), StoreError> {
        let needed = align(size as u64);
        if needed > self.size / 4 {
            return Err(StoreError::TooLarge);
        }
        let limit = if reserved { self.size } else { self.size - RESERVE };
        if self.used() + self.filler_size(needed) + needed > limit { Err(StoreError::JournalFull) } else { Ok(()) }
    }

    /// Appends a record. `record` has `RECORD_HEADER_SIZE` bytes before the entries, which are filled in here.
    /// Errors: as `check_room`.
    pub fn append(&mut self, record: &mut [u8], count: u32, reserved: bool) -> Result<Lsn, StoreError> {
        self.check_room(record.len(), reserved)?;
        let needed = align(record.len() as u64);
        let filler_size = self.filler_size(needed);
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
        self.region.write(self.tail.at % self.size, record);
        self.tail = Position { at: self.tail.at + step, lsn: self.tail.lsn + 1, previous: crc };
    }

    /// Bytes up to the ring's end, when a record of `needed` bytes does not fit before it.
    fn filler_size(&self, needed: u64) -> u64 {
        let rest = self.size - self.tail.at % self.size;
        if rest < needed { rest } else { 0 }
    }

    /// Reads all records from the head on and leaves the tail after the last. A torn record at the end is ignored.
    /// Errors: `Damaged` when a record is unreadable though later ones exist; whatever `visit` says.
    pub fn replay(&mut self, visit: Visit) -> Result<(), StoreError> {
        self.replay_below(Lsn::MAX, visit)?;
        if let Some(later) = self.find_later_record() {
            return Err(StoreError::Damaged(format!(
                "journal record {} at byte {} is unreadable, but record {later} after it is there",
                self.tail.lsn,
                self.tail.at % self.size
            )));
        }
        Ok(())
    }

    /// Reads the records from the head on up to the one before `end`, which is the first that may not have been on the
    /// medium when power was lost, and wipes out what there is of later ones: new records will take their numbers.
    /// Errors: `Damaged` when one of them is unreadable; whatever `visit` says.
    pub fn replay_durable(&mut self, end: Lsn, visit: Visit) -> Result<(), StoreError> {
        self.replay_below(end, visit)?;
        if self.tail.lsn != end {
            let offset = self.tail.at % self.size;
            return Err(StoreError::Damaged(format!(
                "journal record {} at byte {offset} is unreadable, but those before {end} were synced",
                self.tail.lsn
            )));
        }
        let mut header = [0; ALIGNMENT as usize];
        for at in (self.tail.at..self.head + self.size).step_by(ALIGNMENT as usize) {
            let offset = at % self.size;
            self.region.read(offset, &mut header);
            let mut reader = Reader(&header);
            let (magic, _, lsn) = (reader.u32(), reader.u32(), reader.u64());
            if [Some(MAGIC_RECORD), Some(MAGIC_FILLER)].contains(&magic) && lsn.is_some_and(|lsn| lsn >= end) {
                self.region.fill_zero(offset, ALIGNMENT);
            }
        }
        Ok(())
    }

    fn replay_below(&mut self, end: Lsn, visit: Visit) -> Result<(), StoreError> {
        while self.tail.lsn < end
            && let Some(record) = self.read_record()
        {
            if !record.filler {
                visit(self.tail.lsn, record.count, &record.entries)?;
            }
            self.tail = Position { at: self.tail.at + record.size, lsn: self.tail.lsn + 1, previous: record.crc };
        }
        Ok(())
    }

    /// The record at the tail, if it is whole and the one expected there (invariant 1).
    fn read_record(&self) -> Option<JournalRecord> {
        let offset = self.tail.at % self.size;
        let mut header = [0; RECORD_HEADER_SIZE];
        self.region.read(offset, &mut header);
        let RecordHeader { magic, size, lsn, count, previous, crc } = header_of(&header)?;
        let step = align(u64::from(size) + RECORD_HEADER_SIZE as u64);
        let fits = offset + step <= self.size && self.used() + step <= self.size;
        if lsn != self.tail.lsn || previous != self.tail.previous || !fits {
            return None;
        }
        match magic {
            MAGIC_FILLER => {
                let whole = record_crc(&header) == crc && offset + step == self.size;
                whole.then(|| JournalRecord { filler: true, count, entries: Vec::new(), crc, size: step })
            }
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

    /// Looks through the whole ring for a record that must have been written after the tail's.
    pub fn find_later_record(&self) -> Option<Lsn> {
        const BLOCK: u64 = 64 * 1024;
        let mut block = Vec::new();
        for start in (0..self.size).step_by(BLOCK as usize) {
            block.resize(BLOCK.min(self.size - start) as usize, 0);
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

    fn later_record(&self, offset: u64, header: &[u8]) -> Option<Lsn> {
        let RecordHeader { magic, size, lsn, .. } = header_of(header)?;
        if magic != MAGIC_RECORD
            || lsn <= self.tail.lsn
            || offset + RECORD_HEADER_SIZE as u64 + u64::from(size) > self.size
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
