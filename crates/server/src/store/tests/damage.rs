//! What the store says about a medium that is not as it was left.

use super::*;
use crate::store::files::Announcement;
use reactor::OpenMode;

/// A store with some of everything, and what its files hold.
fn filled(checksums: bool) -> (TestDisk, Store) {
    let (disk, store) = new_store(64 * PAGE_SIZE, checksums);
    let mut random = Random(7);
    for file in 1..5u64 {
        write(&store, file, 0, 16_384, 100, &body(&mut random, 9000)).unwrap();
        write(&store, file, file, 16_384, 0, &body(&mut random, 5000)).unwrap();
        write(&store, file, 0, 16_384, 200, &body(&mut random, 50)).unwrap();
    }
    (disk, store)
}

fn contents(store: &Store) -> Vec<Vec<u8>> {
    (1..5).flat_map(|file| [read(store, file, 0, 0, 16_384), read(store, file, file, 0, 16_384)]).collect()
}

fn used_journal(store: &Store) -> u64 {
    store.usage().journal_used
}

/// Goal: a journal record that is unreadable although later ones exist is an error, never silently left out.
/// Method: invert each byte of the journal's first records in turn and open.
#[test]
fn a_rotten_record_is_an_error() {
    let (disk, store) = filled(false);
    let expected = contents(&store);
    let used = used_journal(&store);
    let mut error_count = 0;
    for offset in 0..used {
        let copy = disk.duplicate();
        copy.flip("journal", offset, 0x10);
        match reopen(&copy) {
            Err(StoreError::Damaged(what)) => {
                assert!(what.starts_with("journal record"), "{what}");
                error_count += 1;
            }
            Err(error) => panic!("byte {offset}: {error}"),
            // Padding between records, or the last record, which cannot be told from a torn one.
            Ok(opened) => {
                let last = used - 192;
                assert!(offset >= last || contents(&opened) == expected, "byte {offset}: other contents");
            }
        }
    }
    assert!(error_count > used / 2, "{error_count} errors in {used} bytes");
}

/// Goal: each byte of a checkpoint and of the superblock that recovery relies on is protected.
/// Method: invert each byte in turn and open: an error, or nothing changed.
#[test]
fn a_rotten_checkpoint_or_superblock_is_an_error() {
    let (disk, store) = filled(false);
    store.checkpoint_begin().finish().unwrap();
    let expected = contents(&store);
    for (name, size, errors_min) in [("checkpoint.2.0", 2048, 300), ("super", 80, 55)] {
        let mut error_count = 0;
        for offset in 0..size {
            let copy = disk.duplicate();
            copy.flip(name, offset, 1);
            match reopen(&copy) {
                Err(StoreError::Damaged(_) | StoreError::Incompatible(_)) => error_count += 1,
                Err(error) => panic!("{name} byte {offset}: {error}"),
                Ok(opened) => assert!(contents(&opened) == expected, "{name} byte {offset}"),
            }
        }
        assert!(error_count >= errors_min, "{name}: {error_count} errors");
    }
}

/// Goal: when the newest checkpoint head is torn, the one before counts and nothing is lost.
/// Method: crash in each write of a second checkpoint's end, with each way to tear it.
#[test]
fn a_torn_checkpoint_head_does_not_count() {
    for crash in 0..6 {
        for tear in 0..48 {
            let (disk, store) = filled(true);
            store.checkpoint_begin().finish().unwrap();
            write(&store, 1, 0, 16_384, 0, &[9; 300]).unwrap();
            let expected = contents(&store);
            disk.crash_after(crash, tear);
            store.checkpoint_begin().finish().unwrap();
            disk.revive();
            let opened = reopen(&disk).unwrap();
            assert!(contents(&opened) == expected, "crash at write {crash}, torn after {tear} bytes");
            opened.check().unwrap();
        }
    }
}

/// Goal: with checksums, rotten data is an error that names the chunk and the place, for readers of that page and for
/// overwrites that would keep a part of it, and for nobody else; a whole overwrite heals it.
/// Method: invert a bit in each page that is in use.
#[test]
fn rotten_data_is_never_silent() {
    let (disk, store) = new_store(64 * PAGE_SIZE, true);
    let content = body(&mut Random(1), 10_000);
    write(&store, 5, 2, 65_536, 1000, &content).unwrap();
    let starts = [1000, 4096, 8192];
    for (flipped, start) in [1000, 5000, 10_999].into_iter().zip(starts) {
        disk.flip("data", flipped, 4);
        let corrupt = |result: Result<Lsn, StoreError>| match result {
            Err(StoreError::Corrupt { file: 5, index: 2, offset }) => assert_eq!(offset, start),
            other => panic!("{other:?}"),
        };
        corrupt(store.read(5, 2, 0, 65_536).map(|_| 0));
        corrupt(store.read(5, 2, start + 100, 10).map(|_| 0));
        corrupt(write(&store, 5, 2, 65_536, start + 100, &[1; 10]));
        for sound in starts.into_iter().filter(|other| *other != start) {
            let from = sound as usize - 1000;
            assert_eq!(read(&store, 5, 2, sound, 2000), content[from..from + 2000]);
            write(&store, 5, 2, 65_536, sound + 100, &content[from + 100..from + 110]).unwrap();
        }
        store.check().unwrap();
        disk.flip("data", flipped, 4);
        assert_eq!(read(&store, 5, 2, 1000, 10_000), content);
    }
    disk.flip("data", 1000, 4);
    write(&store, 5, 2, 65_536, 1000, &content).unwrap();
    assert_eq!(read(&reopen(&disk).unwrap(), 5, 2, 1000, 10_000), content);
}

/// Goal: cuts and holes of rotten data succeed, for they may be decided already, and what they leave of that page is as
/// rotten. Method: make both around an inverted bit.
#[test]
fn rotten_data_can_be_cut() {
    let (disk, store) = new_store(64 * PAGE_SIZE, true);
    let (base, content) = (2 * 65_536, body(&mut Random(1), 10_000));
    write(&store, 5, 2, 65_536, 1000, &content).unwrap();
    disk.flip("data", 5000, 4);
    let change = |make: &dyn Fn(&mut Transaction)| {
        let mut transaction = store.begin();
        make(&mut transaction);
        store.commit(transaction).unwrap();
    };
    let is_rotten = |store: &Store, from, size| matches!(store.read(5, 2, from, size), Err(StoreError::Corrupt { .. }));
    change(&|transaction| store.truncate_file(5, base + 7000, 1, transaction));
    let hole = Hole { file: 5, start: base + 4500, end: base + 4600, mtime: 1, keep_pages: false };
    change(&|transaction| store.punch(hole, transaction));
    for store in [&store, &reopen(&disk).unwrap()] {
        store.check().unwrap();
        assert!(is_rotten(store, 4096, 10) && is_rotten(store, 6000, 10), "what is left of it can't be trusted");
        assert_eq!(read(store, 5, 2, 1000, 3096), content[..3096]);
        assert_eq!(read(store, 5, 2, 4500, 100), [0; 100]);
        assert_eq!(read(store, 5, 2, 7000, 1000).len(), 1000);
    }
    write(&store, 5, 2, 65_536, 4000, &content[..4000]).unwrap();
    assert_eq!(read(&store, 5, 2, 4000, 4000), content[..4000], "a whole overwrite heals it");
}

/// Goal: who writes elsewhere in a chunk is not refused for rotten bytes whose gaps have to be filled for it, and these
/// stay rotten. Method: as many ranges as a small write may keep in one page, an inverted bit, and one more range.
#[test]
fn rotten_data_stops_nobody_else() {
    let (disk, store) = new_store(64 * PAGE_SIZE, true);
    for number in 0..8 {
        write(&store, 5, 0, 65_536, 200 * number, &[1; 100]).unwrap();
    }
    disk.flip("data", 50, 4);
    write(&store, 5, 0, 65_536, 9000, &[2; 10]).unwrap();
    assert!(store.next_hole(5, 0, 65_536, 0).unwrap() > 100, "a gap was filled");
    for store in [&store, &reopen(&disk).unwrap()] {
        assert!(matches!(store.read(5, 0, 0, 10), Err(StoreError::Corrupt { .. })));
        assert_eq!(read(store, 5, 0, 9000, 10), [2; 10]);
    }
}

/// Goal: a part whose bytes do not match the checksum that came with them is an error for its readers, and joined with
/// what is there it stays one. Method: keep a wrong sum, then write before and behind it.
#[test]
fn a_sum_that_came_counts() {
    let (disk, store) = new_store(64 * PAGE_SIZE, true);
    let content = body(&mut Random(3), 9000);
    for (index, sum) in [(0, crc32c::crc32c(&content)), (1, 7)] {
        let mut reserved = store.reserve_write(5, index, 65_536, 100, 9000).unwrap();
        fill(&reserved, &content);
        reserved.keep_sum(sum);
        assert_eq!(reserved.verify(0, sum), index == 0);
        let mut transaction = store.begin();
        store.commit_write(reserved, &mut transaction, 1).unwrap();
        store.commit(transaction).unwrap();
        write(&store, 5, index, 65_536, 9100, &content[..50]).unwrap();
    }
    for store in [&store, &reopen(&disk).unwrap()] {
        assert_eq!(read(store, 5, 0, 100, 9000), content);
        for offset in [100, 4096, 9099, 9100] {
            assert!(matches!(store.read(5, 1, offset, 1), Err(StoreError::Corrupt { .. })), "{offset}");
        }
    }
}

/// Goal: an interrupted creation leaves nothing that is taken for a store, and can be repeated.
/// Method: crash at each write of a creation, and create again.
#[test]
fn creation_is_all_or_nothing() {
    let options =
        StoreOptions { size: 1 << 20, journal_size: 64 * 1024, journal_growth: JournalGrowth::NONE, checksums: false };
    let disk = TestDisk::default();
    Store::create(Rc::new(disk.clone()), &options, IDENTITY).unwrap();
    for crash in 0..disk.writes() {
        for tear in 0..90 {
            let disk = TestDisk::default();
            disk.crash_after(crash, tear);
            drop(Store::create(Rc::new(disk.clone()), &options, IDENTITY));
            disk.revive();
            if Store::exists(&disk) {
                reopen(&disk).unwrap();
            } else {
                assert!(matches!(reopen(&disk), Err(StoreError::Incompatible(_))), "crash at write {crash}");
                Store::create(Rc::new(disk.clone()), &options, IDENTITY).unwrap();
            }
            assert!(Store::exists(&disk));
        }
    }
}

/// Goal: a store opens only for the cluster and server it was made for, and is never created over.
/// Method: ask with each field changed.
#[test]
fn a_store_belongs_to_one_server() {
    let (disk, _) = filled(false);
    let open = |identity| Store::open(Rc::new(disk.clone()), identity, &mut |_, _| Ok(()));
    for identity in [
        StoreIdentity { cluster_id: 1, ..IDENTITY },
        StoreIdentity { server: 4, ..IDENTITY },
        StoreIdentity { slots: 2048, ..IDENTITY },
        StoreIdentity { placement: wire::Placement::Ring, ..IDENTITY },
    ] {
        assert!(matches!(open(identity), Err(StoreError::Incompatible(_))));
    }
    let options =
        StoreOptions { size: 1 << 20, journal_size: 64 * 1024, journal_growth: JournalGrowth::NONE, checksums: false };
    assert!(matches!(Store::create(Rc::new(disk.clone()), &options, IDENTITY), Err(StoreError::Incompatible(_))));
    open(IDENTITY).unwrap();
}

/// Goal: entries that the caller refuses stop the opening with their place.
/// Method: refuse one.
#[test]
fn a_refused_entry_is_an_error() {
    let (disk, store) = filled(false);
    let mut transaction = store.begin();
    transaction.put(200, |out| out.extend_from_slice(b"what"));
    store.commit(transaction).unwrap();
    let opened =
        Store::open(Rc::new(disk), IDENTITY, &mut |kind, _| Err(EntryError(format!("kind {kind} is not mine"))));
    assert!(matches!(opened, Err(StoreError::Damaged(what)) if what.contains("kind 200 is not mine")));
}

/// Goal: bytes of any kind are refused by the decoder of entries, or accepted, but nothing else happens.
/// Method: random bytes, and random changes to entries that are sound.
#[test]
fn the_entry_decoder_takes_anything() {
    let mut random = Random(3);
    let mut sound = Vec::new();
    let extents = [(0, 5), (1, 9)].map(|(logical, start)| chunk::Extent { logical, start, pages: 1, birth: 0 });
    let ranges = [chunk::ValidRange { start: 10, end: 8000 }];
    let chunk = chunk::Chunk {
        extents: inline_vec::InlineVec::from_slice(&extents),
        ranges: inline_vec::InlineVec::from_slice(&ranges),
    };
    entries::put_chunk(&mut sound, 1, 2, 8192, 4, &chunk);
    entries::put_truncate(&mut sound, 1, 2, 3);
    entries::put_announced(&mut sound, Announcement { file: 1, announced: Some(2), forgets_time: false });
    entries::put_redo(&mut sound, entries::Copy { from: 1, to: 2, size: 3 });
    let mut decoded_count = 0;
    for round in 0..20_000u64 {
        let mut bytes = if round % 2 == 0 {
            sound.clone()
        } else {
            let size = random.below(80) as u32;
            body(&mut random, size)
        };
        for _ in 0..random.below(4) {
            if !bytes.is_empty() {
                let place = random.below(bytes.len() as u64) as usize;
                bytes[place] = random.next() as u8;
            }
        }
        decoded_count += count_sound_entries(&bytes);
    }
    assert!(decoded_count > 10_000);
}

/// Goal: whatever a checkpoint head with a right checksum says, opening ends with a store or with an error, never by
/// overflow. Method: each field of the head is set to the largest and to odd numbers; and random heads.
#[test]
fn crafted_heads_are_errors() {
    let (disk, store) = filled(false);
    store.checkpoint_begin().finish().unwrap();
    let region = disk.open("super", 0, OpenMode::Existing).unwrap();
    // The second head is the newer one of the two.
    let place = [0, 1].map(|place| superblock::HEAD_OFFSET + place * 4096).into_iter().max_by_key(|place| {
        let mut version = [0; 8];
        region.read(*place, &mut version);
        u64::from_le_bytes(version)
    });
    let place = place.unwrap();
    let mut head = [0; superblock::HEAD_SIZE];
    region.read(place, &mut head);
    let mut random = Random(3);
    let mut refused = 0;
    for round in 0..400usize {
        let mut crafted = head;
        let start = 8 + round % 12 * 4;
        let value = match round / 12 % 4 {
            0 => u64::MAX,
            1 => u64::MAX - 63,
            2 => 1 << 63,
            _ => random.next(),
        };
        crafted[start..start + 8].copy_from_slice(&value.to_le_bytes());
        let copy = disk.duplicate();
        let region = copy.open("super", 0, OpenMode::Existing).unwrap();
        region.write(place, &crafted);
        region.write(place + superblock::HEAD_SIZE as u64, &crc32c::crc32c(&crafted).to_le_bytes());
        match reopen(&copy) {
            Err(StoreError::Damaged(_)) => refused += 1,
            Err(error) => panic!("round {round}: {error}"),
            Ok(opened) => opened.check().unwrap(),
        }
    }
    assert!(refused > 200, "{refused}");
}
