//! What a device of a buffered storage begins with: which regions there are, where, and how far each was written.
//!
//! A label has two slots that are written in turn. The one with the higher version whose checksum matches counts. The
//! memory beside the device has one too, which is written at every change; see the module above.
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 8 | magic `TabaneDv` |
//! | 8 | 4 | format version |
//! | 12 | 4 | number of entries |
//! | 16 | 8 | version of the label, from 1 |
//! | 24 | 16 | life of the memory that belongs to it |
//! | 40 | 8 | bytes of the device that belong to the storage |
//! | 48 | 12 | 0 |
//! | 60 | 4 | CRC-32C of all other bytes of header and entries |
//! | 64 | | entries of 64 bytes: name and its size (31 + 1), place, size, bytes with space, bytes that were written |

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};

/// Bytes of a slot.
pub const SLOT_SIZE: u64 = 64 << 10;
/// Where regions begin: behind both slots, at a boundary that suits every device.
pub const REGIONS_START: u64 = 1 << 20;
/// Regions lie at multiples of it.
pub const PAGE: u64 = 4096;

/// What each slot with a label begins with.
pub const MAGIC: [u8; 8] = *b"TabaneDv";
const FORMAT_VERSION: u32 = 1;
const HEADER_SIZE: usize = 64;
const ENTRY_SIZE: usize = 64;
const NAME_SIZE_MAX: usize = 31;
const ENTRIES_MAX: usize = (SLOT_SIZE as usize - HEADER_SIZE) / ENTRY_SIZE;

/// Where a region is. All numbers are bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Where on the device it begins.
    pub at: u64,
    /// Its size.
    pub size: u64,
    /// What is behind was never given space.
    pub allocated: u64,
    /// What is behind reads as zeros.
    pub written: u64,
}

impl Entry {
    /// Bytes that it takes of the device.
    pub fn extent(&self) -> u64 {
        self.size.next_multiple_of(PAGE)
    }
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    /// One more than that of the label before.
    pub version: u64,
    /// Names the memory that holds what the device does not have yet.
    pub life: u128,
    /// Bytes of the device.
    pub size: u64,
    /// The regions by their names.
    pub entries: BTreeMap<String, Entry>,
}

/// Why a slot can't be used.
#[derive(Debug, PartialEq, Eq)]
pub enum SlotFault {
    /// It was never written.
    Blank,
    /// It is another program's, or damaged.
    Unreadable,
    /// It is of a version that this program does not know.
    Version(u32),
}

impl Label {
    /// Adds a region of so many bytes, at the first place with room. `taken` are ranges of the device in use: where
    /// each begins, and its bytes. Errors: `StorageFull`, `InvalidInput` for a name that is too long.
    pub fn add(&mut self, name: &str, size: u64, taken: &BTreeMap<u64, u64>) -> io::Result<Entry> {
        if name.len() > NAME_SIZE_MAX {
            return Err(io::Error::new(ErrorKind::InvalidInput, "a region's name has at most 31 bytes"));
        }
        if self.entries.len() >= ENTRIES_MAX {
            return Err(ErrorKind::StorageFull.into());
        }
        let entry = Entry { at: 0, size, allocated: 0, written: 0 };
        let at = first_gap(taken, entry.extent(), self.size).ok_or(ErrorKind::StorageFull)?;
        let entry = Entry { at, ..entry };
        self.entries.insert(name.to_owned(), entry);
        Ok(entry)
    }

    /// The bytes of a slot, in whole pages.
    pub fn encode(&self) -> Vec<u8> {
        let size = HEADER_SIZE + self.entries.len() * ENTRY_SIZE;
        let mut bytes = vec![0; size.next_multiple_of(PAGE as usize)];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&(self.entries.len() as u32).to_le_bytes());
        bytes[16..24].copy_from_slice(&self.version.to_le_bytes());
        bytes[24..40].copy_from_slice(&self.life.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.size.to_le_bytes());
        for ((name, entry), place) in self.entries.iter().zip(bytes[HEADER_SIZE..].chunks_mut(ENTRY_SIZE)) {
            place[..name.len()].copy_from_slice(name.as_bytes());
            place[NAME_SIZE_MAX] = name.len() as u8;
            let numbers = [entry.at, entry.size, entry.allocated, entry.written];
            for (number, field) in numbers.iter().zip(place[NAME_SIZE_MAX + 1..].chunks_mut(8)) {
                field.copy_from_slice(&number.to_le_bytes());
            }
        }
        let sum = checksum(&bytes[..size]);
        bytes[60..64].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Reads a slot. All that it says of places holds then.
    pub fn decode(bytes: &[u8]) -> Result<Label, SlotFault> {
        let number = |at: usize| bytes[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        let short = |at: usize| bytes[at..].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
        if bytes.len() < HEADER_SIZE || bytes.iter().all(|byte| *byte == 0) {
            return Err(SlotFault::Blank);
        }
        if bytes[..8] != MAGIC {
            return Err(SlotFault::Unreadable);
        }
        if short(8) != FORMAT_VERSION {
            return Err(SlotFault::Version(short(8)));
        }
        let count = short(12) as usize;
        let size = HEADER_SIZE + count.min(ENTRIES_MAX + 1) * ENTRY_SIZE;
        if count > ENTRIES_MAX || size > bytes.len() || short(60) != checksum(&bytes[..size]) {
            return Err(SlotFault::Unreadable);
        }
        let life = bytes[24..].first_chunk().map_or(0, |bytes| u128::from_le_bytes(*bytes));
        let mut label = Label { version: number(16), life, size: number(40), entries: BTreeMap::new() };
        for place in bytes[HEADER_SIZE..size].chunks(ENTRY_SIZE) {
            let name = place.get(..usize::from(place[NAME_SIZE_MAX])).filter(|name| name.len() <= NAME_SIZE_MAX);
            let name = name.and_then(|name| std::str::from_utf8(name).ok()).ok_or(SlotFault::Unreadable)?;
            let field = |index: usize| {
                place[NAME_SIZE_MAX + 1 + index * 8..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
            };
            let entry = Entry { at: field(0), size: field(1), allocated: field(2), written: field(3) };
            label.entries.insert(name.to_owned(), entry);
        }
        if label.is_sound() { Ok(label) } else { Err(SlotFault::Unreadable) }
    }

    /// Whether all regions lie within the device, and none over another.
    fn is_sound(&self) -> bool {
        let mut places: Vec<(u64, u64)> = Vec::new();
        for entry in self.entries.values() {
            let end = entry.size.checked_next_multiple_of(PAGE).and_then(|extent| entry.at.checked_add(extent));
            let Some(end) = end.filter(|end| *end <= self.size) else { return false };
            let is_placed = entry.at >= REGIONS_START
                && entry.size > 0
                && [entry.at, entry.allocated, entry.written].iter().all(|number| number.is_multiple_of(PAGE));
            if !is_placed || entry.allocated.max(entry.written) > entry.extent() {
                return false;
            }
            places.push((entry.at, end));
        }
        places.sort_unstable();
        places.windows(2).all(|pair| pair[0].1 <= pair[1].0)
    }
}

/// The checksum of a slot's bytes, but for the field that holds it.
fn checksum(bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&bytes[..60]), &bytes[HEADER_SIZE..])
}

/// The first place for so many bytes between what is taken, on a device of a size.
fn first_gap(taken: &BTreeMap<u64, u64>, wanted: u64, size: u64) -> Option<u64> {
    let mut at = REGIONS_START;
    for (start, extent) in taken {
        if start.saturating_sub(at) >= wanted {
            return Some(at);
        }
        at = at.max(start + extent);
    }
    (size.saturating_sub(at) >= wanted).then_some(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn label() -> Label {
        let mut label = Label { version: 7, life: 1 << 100, size: 16 << 20, entries: BTreeMap::new() };
        let mut taken = BTreeMap::new();
        for (name, size) in [("data", 4 << 20), ("journal", 100_000), ("super", 1)] {
            let entry = label.add(name, size, &taken).unwrap();
            taken.insert(entry.at, entry.extent());
        }
        label
    }

    /// Goal: a label is read as it was written, and no bit of it can turn unseen.
    #[test]
    fn bits_that_turn_are_seen() {
        let label = label();
        let bytes = label.encode();
        assert_eq!(Label::decode(&bytes).as_ref(), Ok(&label));
        let used = HEADER_SIZE + 3 * ENTRY_SIZE;
        for bit in 0..used * 8 {
            let mut turned = bytes.clone();
            turned[bit / 8] ^= 1 << (bit % 8);
            assert!(Label::decode(&turned).is_err(), "bit {bit}");
        }
        assert_eq!(Label::decode(&vec![0; SLOT_SIZE as usize]), Err(SlotFault::Blank));
    }

    /// Goal: regions never lie over one another, gaps are used again, and what does not fit is refused; a label that
    /// says otherwise, with a checksum that matches, is not believed.
    #[test]
    fn places_of_regions() {
        let mut label = label();
        let mut taken: BTreeMap<u64, u64> = label.entries.values().map(|entry| (entry.at, entry.extent())).collect();
        assert_eq!(label.entries["data"].at, REGIONS_START);
        assert_eq!(label.entries["journal"].at, REGIONS_START + (4 << 20));
        let gone = label.entries.remove("journal").unwrap();
        taken.remove(&gone.at);
        assert_eq!(label.add("again", 99_000, &taken).unwrap().at, gone.at);
        taken.insert(gone.at, gone.extent());
        assert_eq!(label.add("large", 12 << 20, &taken).unwrap_err().kind(), ErrorKind::StorageFull);
        assert_eq!(label.add(&"n".repeat(32), 1, &taken).unwrap_err().kind(), ErrorKind::InvalidInput);
        for change in [
            Entry { at: REGIONS_START, ..gone },
            Entry { at: 4096, ..gone },
            Entry { at: u64::MAX - 4095, ..gone },
            Entry { size: 0, ..gone },
            Entry { written: gone.extent() + 1, ..gone },
        ] {
            let mut other = label.clone();
            other.entries.insert("again".to_owned(), change);
            assert_eq!(Label::decode(&other.encode()), Err(SlotFault::Unreadable), "{change:?}");
        }
    }

    /// Goal: a label holds as many regions as it says, and no more.
    #[test]
    fn number_of_regions() {
        let mut label = Label { version: 1, life: 0, size: 1 << 30, entries: BTreeMap::new() };
        let mut taken = BTreeMap::new();
        for number in 0..ENTRIES_MAX {
            let entry = label.add(&format!("region.{number}"), 1, &taken).unwrap();
            taken.insert(entry.at, entry.extent());
        }
        assert_eq!(label.encode().len() as u64, SLOT_SIZE);
        assert_eq!(Label::decode(&label.encode()), Ok(label.clone()));
        assert_eq!(label.add("more", 1, &taken).unwrap_err().kind(), ErrorKind::StorageFull);
    }
}
