//! What salvage makes of a store whose bits have flipped.

use super::*;
use reactor::{OpenMode, Storage};

fn look(disk: &TestDisk, mend: bool) -> Findings {
    at_once(salvage(disk, mend, &|_, _| true)).unwrap()
}

/// A store of two checkpoints with some records of the journal after them, and what its files hold.
fn filled(size: u64) -> (TestDisk, Store) {
    filled_growing(size, JournalGrowth::NONE)
}

fn filled_growing(size: u64, growth: JournalGrowth) -> (TestDisk, Store) {
    let (disk, store) = new_growing_store(size, growth, true);
    let mut random = Random(7);
    for round in 0..3 {
        for file in 1..4u64 {
            write(&store, file, round, 16_384, 100 * file as u32, &body(&mut random, 3000)).unwrap();
            let mut transaction = store.begin();
            transaction.put(200, |out| out.extend_from_slice(b"of the caller's"));
            store.commit(transaction).unwrap();
        }
        if round < 2 {
            store.checkpoint_begin().finish().unwrap();
        }
    }
    (disk, store)
}

fn contents(store: &Store) -> Vec<Vec<u8>> {
    (1..4).flat_map(|file| (0..3).map(move |index| read(store, file, index, 0, 16_384))).collect()
}

fn bytes(disk: &TestDisk, name: &str) -> Vec<u8> {
    let region = Storage::open(disk, name, 0, OpenMode::Existing).unwrap();
    let mut bytes = vec![0; region.size() as usize];
    region.read(0, &mut bytes);
    bytes
}

/// Parts of a store's files that hold words, with the least part of their bits that a store can't be without.
const PARTS: [(&str, std::ops::Range<u64>, f64); 5] = [
    ("super", 0..72, 0.9),
    ("super", 4096..4172, 0.9),
    ("super", 8192..8268, 0.0),
    ("checkpoint.3.0", 0..1200, 0.4),
    ("journal", 768..2048, 0.2),
];

/// Goal: one flipped bit, wherever it is, is found and put right: then the store is byte for byte what it was.
/// Method: flip each bit of all that recovery reads in turn.
#[test]
fn one_flipped_bit_is_put_right() {
    let (disk, store) = filled(48 * PAGE_SIZE);
    let expected = contents(&store);
    let sound = look(&disk, false);
    assert!(sound.flipped.is_empty() && sound.unreadable.is_empty() && sound.records >= 6 && sound.blocks > 0);
    for (name, range, part) in PARTS {
        let original = bytes(&disk, name);
        let (mut refused, mut count) = (0, 0);
        for bit in range.start * 8..range.end * 8 {
            let (offset, bit) = (bit / 8, (bit % 8) as u8);
            let copy = disk.duplicate();
            copy.flip(name, offset, 1 << bit);
            let is_refused = reopen(&copy.duplicate()).is_err();
            let found = look(&copy, true);
            assert!(found.unreadable.is_empty(), "{name} {offset}.{bit}: {found:?}");
            count += 1;
            refused += u64::from(is_refused);
            if let [flipped] = &found.flipped[..] {
                assert_eq!((flipped.file.as_str(), flipped.offset, flipped.bit), (name, offset, bit));
                assert_eq!(bytes(&copy, name), original, "{name} {offset}.{bit}");
                assert!(look(&copy, false).flipped.is_empty(), "what is mended is sound");
            } else {
                // Where nothing is: behind the last entry of a word, before the checkpoint's start, the head before.
                assert!(found.flipped.is_empty() && !is_refused, "{name} {offset}.{bit}: {found:?}");
            }
            assert!(contents(&reopen(&copy).unwrap()) == expected, "{name} {offset}.{bit}");
        }
        assert!(refused as f64 >= part * count as f64, "{name}: {refused} of {count} bits matter");
    }
}

/// Goal: the same of what says how the journal grows, or that it does not; and a journal that grows is read no further
/// than it was taken.
/// Method: flip each bit of it; a test disk lets nobody read holes.
#[test]
fn growth_is_put_right() {
    let grows = JournalGrowth { size_max: 1 << 20, checkpoint_percent: 75 };
    for growth in [JournalGrowth::NONE, grows] {
        let (disk, store) = filled_growing(48 * PAGE_SIZE, growth);
        let (expected, sound) = (contents(&store), look(&disk, false));
        assert!(sound.flipped.is_empty() && sound.unreadable.is_empty() && sound.records >= 6);
        for bit in 72 * 8..88 * 8 {
            let (offset, bit) = (bit / 8, (bit % 8) as u8);
            let copy = disk.duplicate();
            copy.flip("super", offset, 1 << bit);
            assert!(matches!(reopen(&copy), Err(StoreError::Damaged(_))));
            let found = look(&copy, true);
            let [flipped] = &found.flipped[..] else { panic!("{offset}.{bit}: {found:?}") };
            assert_eq!((flipped.file.as_str(), flipped.offset, flipped.bit), ("super", offset, bit));
            assert!(found.unreadable.is_empty() && bytes(&copy, "super") == bytes(&disk, "super"));
            assert!(contents(&reopen(&copy).unwrap()) == expected);
        }
    }
}

/// Goal: what is more damaged than by one bit is never put "right": the store is refused afterwards as before, and not
/// a byte of it has changed.
/// Method: flip two bits of a word, invert a byte, and wipe out some, at places of a fixed seed.
#[test]
fn what_is_lost_is_told() {
    let (disk, store) = filled(48 * PAGE_SIZE);
    let expected = contents(&store);
    let mut random = Random(11);
    let mut told = 0;
    for round in 0..3_000 {
        let (name, range, _) = PARTS[random.below(PARTS.len() as u64) as usize].clone();
        let at = range.start + random.below(range.end - range.start - 8);
        let copy = disk.duplicate();
        match round % 3 {
            0 => {
                copy.flip(name, at, 1 << random.below(8));
                copy.flip(name, at + 1 + random.below(7), 1 << random.below(8));
            }
            1 => copy.flip(name, at, 0xff),
            _ => (0..8).for_each(|byte| copy.flip(name, at + byte, random.below(256) as u8)),
        }
        let damaged = bytes(&copy, name);
        let is_refused = reopen(&copy.duplicate()).is_err();
        let found = look(&copy, true);
        told += u64::from(!found.unreadable.is_empty());
        match reopen(&copy) {
            // Harmless, or two bits of two words, or the last record, which can't be told from a torn one.
            Ok(opened) => {
                let last = name == "journal"
                    && contents(&opened).iter().zip(&expected).filter(|(one, other)| one != other).count() <= 1;
                assert!(last || contents(&opened) == expected, "{name} {at}: other contents");
            }
            Err(_) => {
                assert!(is_refused && !found.unreadable.is_empty(), "{name} {at}: refused, and nothing was found");
                assert!(found.flipped.is_empty() == (bytes(&copy, name) == damaged), "{name} {at}");
            }
        }
    }
    assert!(told > 500, "{told} losses");
}

/// Goal: bits are put right in every lap of the ring, in fillers too, and in a record that says it is larger or
/// smaller.
/// Method: a journal that has gone round many times; flip bits of the headers of its last records.
#[test]
fn laps_and_fillers() {
    let (disk, store) = new_store(256 * PAGE_SIZE, true);
    let mut random = Random(3);
    for round in 0..3_000u64 {
        let mut transaction = store.begin();
        let size = random.below(1000) as usize;
        transaction.put(200, |out| out.resize(out.len() + size, round as u8));
        store.commit(transaction).unwrap();
        if store.checkpoint_due() {
            store.checkpoint_begin().finish().unwrap();
        }
        if round < 2_000 || round % 100 != 0 {
            continue;
        }
        let journal = bytes(&disk, "journal");
        let headers = (0..journal.len()).step_by(64).filter(|at| journal[*at..].starts_with(b"TbJ"));
        let headers: Vec<u64> = headers.map(|at| at as u64).collect();
        for _ in 0..200 {
            let offset = headers[random.below(headers.len() as u64) as usize] + random.below(32);
            let copy = disk.duplicate();
            copy.flip("journal", offset, 1 << random.below(8));
            let is_refused = reopen(&copy.duplicate()).is_err();
            let found = look(&copy, true);
            assert!(found.unreadable.is_empty(), "round {round}, byte {offset}: {found:?}");
            assert!(!is_refused || found.flipped.len() == 1, "round {round}, byte {offset}");
            if !found.flipped.is_empty() {
                assert!(bytes(&copy, "journal") == journal, "round {round}, byte {offset}");
            }
            reopen(&copy).unwrap();
        }
    }
}

/// Goal: a look changes nothing, and a directory without a store is said to be none.
#[test]
fn looks_change_nothing() {
    let (disk, _) = filled(48 * PAGE_SIZE);
    disk.flip("journal", 5, 2);
    let before = bytes(&disk, "journal");
    look(&disk, false);
    assert!(bytes(&disk, "journal") == before);
    let none = at_once(salvage(&TestDisk::default(), true, &|_, _| true));
    assert!(matches!(none, Err(StoreError::Incompatible(_))));
}

/// Goal: a store whose identity has a flipped bit is called damaged, and not one of another version or none.
#[test]
fn flipped_identities_are_damage() {
    let (disk, _) = filled(48 * PAGE_SIZE);
    for bit in 0..512 {
        let copy = disk.duplicate();
        copy.flip("super", bit / 8, 1 << (bit % 8));
        assert!(matches!(reopen(&copy), Err(StoreError::Damaged(_))), "bit {bit}");
    }
}
