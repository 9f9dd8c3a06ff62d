//! Salvage: what a damaged store needs to be whole again, found without opening it.
//!
//! Everything that recovery reads but the bytes of chunks lies in *words*: bytes with a CRC-32C of them. Where one bit
//! of a word has flipped, its checksum tells which: the difference of both checksums is a number that no other single
//! bit gives, for CRC-32C finds two flipped bits in any word that is shorter than 2^31 bits (Koopman, "32-Bit Cyclic
//! Redundancy Codes for Internet Applications", DSN 2002). So such a word is put right, and nothing is lost.
//!
//! Invariants
//! 1. A word counts as put right only if it is then the one that is expected at its place: its numbers, its entries,
//!    and for a record of the journal its link to the record before and that of the record after it.
//! 2. What is more damaged than that is told, and left as it is: what it said can't be known, and whatever was made of
//!    the rest might be wrong.
//! 3. Nothing is written before all was read.

use super::checkpoint::{self, BLOCK_HEADER_SIZE, segment_name};
use super::entries;
use super::journal::{self, Journal, MAGIC_FILLER, MAGIC_RECORD, Position, RECORD_HEADER_SIZE};
use super::recovery::check_head;
use super::superblock::{self, HEAD_OFFSET, HEAD_SIZE, Head};
use super::{KIND_FOREIGN_FIRST, Lsn, StoreError};
use reactor::{OpenMode, Region, Storage};
use std::fmt;
use std::rc::Rc;

/// CRC-32C's polynomial with its bits in the order in which bytes give theirs: the lowest first.
const POLYNOMIAL: u32 = 0x82f6_3b78;
/// Where the checksum is in a record of the journal, in a block of a checkpoint.
const RECORD_CRC: usize = 28;
const BLOCK_CRC: usize = 24;

/// Whether an entry of the caller's makes sense.
pub type IsSound<'a> = &'a dyn Fn(u8, &[u8]) -> bool;

/// A bit that has flipped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlippedBit {
    /// File of the store.
    pub file: String,
    /// Byte of it.
    pub offset: u64,
    /// Bit of that byte; 0 is the lowest.
    pub bit: u8,
    /// What lies there.
    pub what: String,
}

impl fmt::Display for FlippedBit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "file `{}`, byte {}, bit {}: {}", self.file, self.offset, self.bit, self.what)
    }
}

/// What is wrong with a store.
#[derive(Debug, Default)]
pub struct Findings {
    /// Bits that can be put right.
    pub flipped: Vec<FlippedBit>,
    /// What can't be, in words.
    pub unreadable: Vec<String>,
    /// Blocks of the checkpoint and records of the journal that were looked at.
    pub blocks: u64,
    pub records: u64,
}

/// Looks through a store that no server has open, and puts right what can be if `mend` says so. `is_sound` judges
/// entries of the caller's. Errors: `Medium`, also when a server uses the directory; `Incompatible` when there is no
/// store.
pub async fn salvage(storage: &dyn Storage, mend: bool, is_sound: IsSound<'_>) -> Result<Findings, StoreError> {
    storage
        .lock_exclusive()
        .map_err(|error| StoreError::Medium("lock its directory, which a server may be using", error))?;
    let findings = look(storage, is_sound)?;
    if mend {
        for flipped in &findings.flipped {
            let region = open(storage, &flipped.file)?;
            let mut byte = [0];
            region.read(flipped.offset, &mut byte);
            region.write(flipped.offset, &[byte[0] ^ 1 << flipped.bit]);
            region.sync(flipped.offset, 1).await.map_err(|error| StoreError::Medium("sync what was mended", error))?;
        }
    }
    Ok(findings)
}

fn open(storage: &dyn Storage, name: &str) -> Result<Rc<dyn Region>, StoreError> {
    if !storage.exists(name) {
        return Err(StoreError::Incompatible(format!("the file `{name}` is missing; is this the store's directory?")));
    }
    storage.open(name, 0, OpenMode::Existing).map_err(|error| StoreError::Medium("open a file of the store", error))
}

fn look(storage: &dyn Storage, is_sound: IsSound<'_>) -> Result<Findings, StoreError> {
    let (superblock, journal, data) = (open(storage, "super")?, open(storage, "journal")?, open(storage, "data")?);
    if superblock.size() < superblock::SUPER_SIZE {
        return Err(StoreError::Incompatible("the file `super` is too short".into()));
    }
    let mut search = Search { findings: Findings::default(), is_sound };
    let Some((head, sizes)) = search.superblock(superblock.as_ref()) else { return Ok(search.findings) };
    if (data.size(), journal.size()) != (sizes.data, sizes.region) {
        let (data, journal) = (data.size(), journal.size());
        search.unreadable(format!(
            "`data` and `journal` have {data} and {journal} bytes, and `super` says {} and {}",
            sizes.data, sizes.region
        ));
        return Ok(search.findings);
    }
    if let Err(StoreError::Damaged(words)) = check_head(&head) {
        search.unreadable(words);
        return Ok(search.findings);
    }
    search.checkpoint(storage, &head);
    let power_cycle =
        || storage.power_cycle().map_err(|error| StoreError::Medium("tell whether power was lost", error));
    // What was not synced counts no more once power was lost, whole or not. A store of a volatile medium names no power
    // cycle, and all of it counts wherever a copy of it lies.
    let all_counts = storage.is_volatile() || head.power_cycle == 0 || power_cycle()? == head.power_cycle;
    let synced = || Journal::new(journal.clone(), sizes.least, head.start).find_synced(sizes.owner);
    let end = if all_counts { Lsn::MAX } else { head.durable.max(synced()) };
    search.journal(journal, sizes.least, head.start, end);
    Ok(search.findings)
}

/// A word as it has to be: its bytes, and the bit that had flipped, if one had.
struct Word {
    bytes: Vec<u8>,
    flipped: Option<u64>,
}

/// Bytes of `data`; of the journal, what it began with; and of its region, which is larger where the journal grows. And
/// the cluster whose store it is.
struct Sizes {
    data: u64,
    least: u64,
    region: u64,
    owner: u128,
}

/// The journal as it is read.
struct Ring<'a> {
    region: &'a dyn Region,
    /// A position modulo this is an offset.
    span: u64,
    /// Bytes of a record at most.
    record_size_max: u64,
    /// What is behind was never taken from the medium.
    end_of_records: u64,
}

struct Search<'a> {
    findings: Findings,
    is_sound: IsSound<'a>,
}

impl Search<'_> {
    fn unreadable(&mut self, words: String) {
        self.findings.unreadable.push(words);
    }

    fn flipped(&mut self, file: &str, start: u64, word: &Word, what: impl FnOnce() -> String) {
        if let Some(bit) = word.flipped {
            let (offset, bit) = (start + bit / 8, (bit % 8) as u8);
            self.findings.flipped.push(FlippedBit { file: file.to_owned(), offset, bit, what: what() });
        }
    }

    /// The head that counts, and the sizes that `data` and the journal have to have.
    fn superblock(&mut self, region: &dyn Region) -> Option<(Head, Sizes)> {
        let Some(identity) = identity_of(region) else {
            self.unreadable("the identity in `super`".to_owned());
            return None;
        };
        self.flipped("super", 0, &identity, || "the identity of the store".to_owned());
        let placement = read(region, superblock::IDENTITY_SIZE, 8);
        if placement.iter().any(|byte| *byte != 0) {
            match word_of(placement, 4).filter(|word| superblock::is_placement(&word.bytes)) {
                Some(word) => self.flipped("super", superblock::IDENTITY_SIZE, &word, || "the placement".to_owned()),
                None => self.unreadable("the placement in `super`".to_owned()),
            }
        }
        let mut newest: Option<(u64, Head)> = None;
        for start in [HEAD_OFFSET, 2 * HEAD_OFFSET] {
            // One that is not readable may be torn, for it is written while the other one counts.
            let Some(word) = word_of(read(region, start, HEAD_SIZE as u64 + 4), HEAD_SIZE) else { continue };
            let Some((version, head)) = superblock::decode_head(&word.bytes[..HEAD_SIZE]) else { continue };
            self.flipped("super", start, &word, || format!("the head of checkpoint {}", head.sequence));
            if newest.is_none_or(|(other, _)| other < version) {
                newest = Some((version, head));
            }
        }
        if newest.is_none() {
            self.unreadable("both heads of checkpoints in `super`".to_owned());
        }
        let (data, least) = superblock::sizes(&identity.bytes);
        let region = self.grown_journal_size(region)?.unwrap_or(least);
        let sizes = Sizes { data, least, region, owner: superblock::owner(&identity.bytes) };
        newest.map(|(_, head)| (head, sizes))
    }

    /// The size of the region of a journal that grows. Nothing at all if that can't be told.
    fn grown_journal_size(&mut self, region: &dyn Region) -> Option<Option<u64>> {
        let growth = read(region, superblock::GROWTH_OFFSET, superblock::GROWTH_SIZE);
        if growth.iter().all(|byte| *byte == 0) {
            return Some(None);
        }
        let set_bits: u32 = growth.iter().map(|byte| byte.count_ones()).sum();
        if set_bits == 1 {
            // No growth has so few bits: this was all zeros.
            let at = growth.iter().position(|byte| *byte != 0).unwrap_or_default();
            let bit = at as u64 * 8 + u64::from(growth[at].trailing_zeros());
            let word = Word { bytes: Vec::new(), flipped: Some(bit) };
            self.flipped("super", superblock::GROWTH_OFFSET, &word, || "that the journal does not grow".to_owned());
            return Some(None);
        }
        let Some(word) = word_of(growth, superblock::GROWTH_SIZE as usize - 4) else {
            self.unreadable("what `super` says of the journal's growth".to_owned());
            return None;
        };
        self.flipped("super", superblock::GROWTH_OFFSET, &word, || "how the journal grows".to_owned());
        Some(Some(superblock::grown_journal_size(&word.bytes)))
    }

    fn checkpoint(&mut self, storage: &dyn Storage, head: &Head) {
        let (mut number, sequence) = (0, head.sequence);
        for segment_number in 0..head.segments {
            let name = segment_name(sequence, segment_number);
            let Ok(segment) = storage.open(&name, 0, OpenMode::Existing) else {
                self.unreadable(format!("segment `{name}` of the checkpoint can't be opened"));
                continue;
            };
            let mut offset = 0;
            while number < head.blocks
                && let Some(word) = self.block(segment.as_ref(), offset, (sequence, number))
            {
                self.flipped(&name, offset, &word, || format!("block {number} of checkpoint {sequence}"));
                offset = (offset + word.bytes.len() as u64).next_multiple_of(8);
                number += 1;
            }
        }
        self.findings.blocks = number;
        if number < head.blocks {
            self.unreadable(format!("block {number} of {} of checkpoint {sequence}", head.blocks));
        }
    }

    fn block(&self, segment: &dyn Region, offset: u64, expected: (u64, u64)) -> Option<Word> {
        let rest = segment.size().saturating_sub(offset);
        let header = (rest >= BLOCK_HEADER_SIZE as u64).then(|| read(segment, offset, BLOCK_HEADER_SIZE as u64))?;
        let sizes = plausible_sizes(&header).map(|size| BLOCK_HEADER_SIZE as u64 + u64::from(size));
        sizes.filter(|size| *size <= rest).find_map(|size| {
            let word = word_of_parts(read(segment, offset, size), BLOCK_CRC, BLOCK_HEADER_SIZE)?;
            let is_expected = checkpoint::block_size(&word.bytes, expected) == Some(size);
            (is_expected && self.count_entries(&word.bytes[BLOCK_HEADER_SIZE..]).is_some()).then_some(word)
        })
    }

    fn journal(&mut self, region: Rc<dyn Region>, size_min: u64, start: Position, end: Lsn) {
        let span = region.size() / journal::ALIGNMENT * journal::ALIGNMENT;
        let end_of_records = Journal::new(region.clone(), size_min, start).backed();
        let ring = Ring { region: region.as_ref(), span, record_size_max: size_min / 4, end_of_records };
        let mut tail = start;
        while tail.lsn < end {
            let offset = tail.at % span;
            let room = (span - offset).min(start.at + span - tail.at);
            let Some((word, next)) = self.record(&ring, (offset, room), tail) else { break };
            self.flipped("journal", offset, &word, || format!("record {}", tail.lsn));
            self.findings.records += 1;
            tail = next;
        }
        let place = format!("record {} of the journal, at byte {}", tail.lsn, tail.at % span);
        if end < Lsn::MAX && tail.lsn < end {
            return self.unreadable(format!("{place}, though those before {end} were synced"));
        }
        if tail.lsn < end
            && let Some(later) = Journal::new(region.clone(), size_min, tail).find_later_record()
        {
            self.unreadable(format!("{place}, with record {later} after it"));
        }
    }

    /// The record at the tail, and where the next one begins.
    fn record(&self, ring: &Ring<'_>, (offset, room): (u64, u64), tail: Position) -> Option<(Word, Position)> {
        let header_size = RECORD_HEADER_SIZE as u64;
        // A look at what was never taken from the medium would take it.
        let size_max = room.min(ring.record_size_max).min(ring.end_of_records.saturating_sub(offset));
        let header = (size_max >= header_size).then(|| read(ring.region, offset, header_size))?;
        // Where more than one bit of what is known beforehand is otherwise, as at the journal's end, there is no need
        // to try sizes, which may be large.
        let found = journal::header_of(&header)?;
        let number_bits = (found.lsn ^ tail.lsn).count_ones() + (found.previous ^ tail.previous).count_ones();
        if [MAGIC_RECORD, MAGIC_FILLER].iter().all(|magic| (found.magic ^ magic).count_ones() + number_bits > 1) {
            return None;
        }
        // Of a filler the header is all there is.
        let sizes = plausible_sizes(&header).map(|size| header_size + u64::from(size)).filter(|size| *size <= size_max);
        let candidates = std::iter::once(header_size).chain(sizes);
        candidates
            .filter_map(|size| word_of_parts(read(ring.region, offset, size), RECORD_CRC, RECORD_HEADER_SIZE))
            .find_map(|word| {
                let record = journal::header_of(&word.bytes)?;
                let step = (header_size + u64::from(record.size)).next_multiple_of(journal::ALIGNMENT);
                let is_expected = match record.magic {
                    MAGIC_RECORD => {
                        let entries = &word.bytes[RECORD_HEADER_SIZE..];
                        entries.len() == record.size as usize && self.count_entries(entries) == Some(record.count)
                    }
                    MAGIC_FILLER => word.bytes.len() == RECORD_HEADER_SIZE && step == ring.span - offset,
                    _ => false,
                };
                let next = Position { at: tail.at + step, lsn: tail.lsn + 1, previous: record.crc };
                let is_next = (record.lsn, record.previous) == (tail.lsn, tail.previous) && step <= room;
                (is_expected && is_next && self.is_linked(ring, next)).then_some((word, next))
            })
    }

    /// Whether the record there, if it is the next one, names the checksum of the one before.
    fn is_linked(&self, ring: &Ring<'_>, place: Position) -> bool {
        let offset = place.at % ring.span;
        if offset >= ring.end_of_records {
            return true;
        }
        let header = read(ring.region, offset, RECORD_HEADER_SIZE as u64);
        let is_whole = |word: &Word| word.flipped.is_none();
        let Some(record) = journal::header_of(&header) else { return true };
        if record.lsn != place.lsn || record.previous == place.previous {
            return true;
        }
        // It names another one: that is a lie only if it is whole itself.
        let size = RECORD_HEADER_SIZE as u64 + if record.magic == MAGIC_RECORD { u64::from(record.size) } else { 0 };
        let fits = size <= ring.end_of_records - offset;
        !(fits
            && word_of_parts(read(ring.region, offset, size), RECORD_CRC, RECORD_HEADER_SIZE)
                .is_some_and(|word| is_whole(&word)))
    }

    /// How many entries there are, if all make sense.
    fn count_entries(&self, mut bytes: &[u8]) -> Option<u32> {
        let mut count = 0;
        while !bytes.is_empty() {
            let (kind, body) = entries::next_entry(&mut bytes)?;
            let is_sound = match kind >= KIND_FOREIGN_FIRST {
                true => (self.is_sound)(kind, body),
                false => entries::decode(kind, body).is_some(),
            };
            count += 1;
            is_sound.then_some(())?;
        }
        Some(count)
    }
}

/// The identity of a store, if no more than one bit of it has flipped.
fn identity_of(superblock: &dyn Region) -> Option<Word> {
    let word = word_of(read(superblock, 0, superblock::IDENTITY_SIZE), superblock::IDENTITY_SIZE as usize - 4);
    word.filter(|word| superblock::is_identity(&word.bytes))
}

/// Whether a superblock is that of no store, or of another version, by one flipped bit alone.
pub fn has_flipped_identity(superblock: &dyn Region) -> bool {
    identity_of(superblock).is_some_and(|word| word.flipped.is_some())
}

fn read(region: &dyn Region, offset: u64, size: u64) -> Vec<u8> {
    let mut bytes = vec![0; size as usize];
    region.read(offset, &mut bytes);
    bytes
}

/// The sizes that a header can have had whose size, at byte 4, is this one or has a flipped bit.
fn plausible_sizes(header: &[u8]) -> impl Iterator<Item = u32> {
    let size = u32::from_le_bytes([header[4], header[5], header[6], header[7]]);
    std::iter::once(size).chain((0..u32::BITS).map(move |bit| size ^ 1 << bit))
}

/// See `word_of_parts`; the checksum is the last thing.
fn word_of(bytes: Vec<u8>, crc_at: usize) -> Option<Word> {
    word_of_parts(bytes, crc_at, crc_at + 4)
}

/// Puts a word right whose checksum is of what lies before it and of what follows from `rest_at` on. Nothing if more
/// than one bit has flipped.
fn word_of_parts(mut bytes: Vec<u8>, crc_at: usize, rest_at: usize) -> Option<Word> {
    let stored = u32::from_le_bytes(bytes[crc_at..crc_at + 4].try_into().expect("four bytes"));
    let actual = crc32c::crc32c_append(crc32c::crc32c(&bytes[..crc_at]), &bytes[rest_at..]);
    if actual == stored {
        return Some(Word { bytes, flipped: None });
    }
    let rest_size = bytes.len() - rest_at;
    let bit = match flipped_bit(actual ^ stored, (crc_at + rest_size) as u64)? {
        FlippedPlace::Checksum(bit) => crc_at as u64 * 8 + bit,
        FlippedPlace::Message(bit) if bit < crc_at as u64 * 8 => bit,
        FlippedPlace::Message(bit) => bit + (rest_at - crc_at) as u64 * 8,
    };
    bytes[(bit / 8) as usize] ^= 1 << (bit % 8);
    Some(Word { bytes, flipped: Some(bit) })
}

#[derive(Debug, PartialEq, Eq)]
enum FlippedPlace {
    /// A bit of the message, by number: the lowest of the first byte is 0.
    Message(u64),
    /// A bit of the checksum.
    Checksum(u64),
}

/// The bit whose flip makes this difference between the checksum of a message and the one that is stored with it.
fn flipped_bit(difference: u32, message_size: u64) -> Option<FlippedPlace> {
    if difference.count_ones() == 1 {
        return Some(FlippedPlace::Checksum(u64::from(difference.trailing_zeros())));
    }
    // A flipped bit comes into the checksum as 1, and each bit of the message after it moves it on by one step.
    let mut effect = 1;
    for following in 1..=message_size * 8 {
        effect = if effect & 1 == 0 { effect >> 1 } else { effect >> 1 ^ POLYNOMIAL };
        if effect == difference {
            return Some(FlippedPlace::Message(message_size * 8 - following));
        }
    }
    None
}
