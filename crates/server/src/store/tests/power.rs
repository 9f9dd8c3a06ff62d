//! Goal: power loss leaves a store as it was at its last sync, whatever of the rest has reached the medium. Method: the
//! histories of `model` on a disk that keeps, loses or tears each page that was not synced; the store that is opened
//! then must equal the model as it was when the last sync began.

use super::model::World;
use super::*;
use reactor::{OpenMode, Storage};

/// Goal and method: the module's; kills and power losses between operations, and power losses within syncs.
#[test]
fn power_loss_leaves_the_last_sync() {
    let mut counts = std::collections::BTreeMap::new();
    for seed in 0..80u64 {
        let mut world = World::stable(seed, 32 + seed % 4 * 32, seed.is_multiple_of(2));
        for round in 0..14 {
            let steps = world.random.below(150);
            for _ in 0..steps {
                world.step();
                world.store.check().unwrap_or_else(|what| panic!("seed {seed}, round {round}: {what}"));
                if world.random.below(25) == 0 {
                    world.sync();
                }
            }
            match world.random.below(4) {
                0 => world.restart(),
                1 => {
                    // The next life ends before its first sync.
                    world.restart();
                    world.lose_power();
                }
                2 => {
                    let syncs = world.random.below(6);
                    world.disk.crash_after_syncs(syncs);
                    world.sync();
                    world.lose_power();
                }
                _ => world.lose_power(),
            }
            world.sync();
        }
        for (what, count) in world.counts {
            *counts.entry(what).or_insert(0) += count;
        }
    }
    for what in ["committed", "checkpoint", "sync", "resting", "sync counted though it failed"] {
        assert!(counts.get(what).is_some_and(|&count| count > 5), "{what} hardly happened: {counts:?}");
    }
}

/// Goal: a failed sync promises nothing, and the next one makes good what the failed one lost.
/// Method: syncs of data fail at random; the medium then has neither these pages nor takes them for changed.
#[test]
fn a_failed_sync_is_made_good_by_the_next() {
    for seed in 100..140u64 {
        let mut world = World::stable(seed, 64, seed.is_multiple_of(2));
        for _ in 0..8 {
            for _ in 0..world.random.below(60) {
                world.step();
            }
            let failing = world.random.below(2);
            world.disk.fail_syncs(failing);
            world.sync();
            for _ in 0..world.random.below(20) {
                world.step();
            }
            world.disk.fail_syncs(0);
            if world.random.below(2) == 0 {
                world.sync();
            }
            if world.random.below(2) == 0 {
                world.lose_power();
                world.sync();
            }
        }
    }
}

/// Goal: what had arrived when a sync failed is made good as well, whenever it is committed, and whoever syncs next.
/// Method: the bytes of a write arrive, a sync begins and fails; the write is committed meanwhile, or after the next
/// sync, which succeeds; then that or the next life of the server syncs.
#[test]
fn a_failed_sync_takes_nothing_of_what_has_arrived() {
    let mut random = Random(3);
    for round in 0..80 {
        let (is_late, is_killed) = (round % 2 == 1, round % 4 >= 2);
        let (disk, mut store) = synced_store(64, false);
        write(&store, 1, 0, 65_536, 0, &[1; 100]).unwrap();
        let reserved = store.reserve_write(2, 0, 65_536, 0, 5000).unwrap();
        fill(&reserved, &[2; 5000]);
        let mut reserved = Some(reserved);
        disk.slow_syncs(true);
        disk.fail_syncs(1);
        {
            let mut context = std::task::Context::from_waker(std::task::Waker::noop());
            let mut failing = std::pin::pin!(store.sync());
            assert!(failing.as_mut().poll(&mut context).is_pending());
            if !is_late {
                finish(&store, reserved.take().unwrap(), 1).unwrap();
            }
            let failed = std::iter::repeat_with(|| failing.as_mut().poll(&mut context)).find(|ended| ended.is_ready());
            assert!(matches!(failed, Some(std::task::Poll::Ready(Err(SyncError::Data { .. })))));
        }
        disk.slow_syncs(false);
        if is_late {
            sync(&store).unwrap();
            finish(&store, reserved.take().unwrap(), 1).unwrap();
        }
        if is_killed {
            drop(store);
            store = reopen(&disk).unwrap();
        }
        sync(&store).unwrap();
        drop(store);
        disk.lose_power(&mut random);
        let store = reopen(&disk).unwrap();
        assert_eq!(bytes_of(&store.read(2, 0, 0, 5000).unwrap()), [2; 5000], "late {is_late}, killed {is_killed}");
    }
}

/// Goal: a medium that refuses the journal ends all promises of this life, and no earlier one.
/// Method: the journal's sync fails, the next ones would not; then power is lost.
#[test]
fn a_failed_journal_is_the_end() {
    let mut world = World::stable(5, 64, true);
    (0..40).for_each(|_| world.step());
    world.sync();
    (0..40).for_each(|_| world.step());
    world.disk.fail_syncs(2);
    assert!(matches!(sync(&world.store), Err(SyncError::Journal(_))));
    assert!(matches!(sync(&world.store), Err(SyncError::Journal(_))));
    world.lose_power();
}

/// Goal: after a failed sync of whatever, and a restart of the server, the next sync promises what it says. Method:
/// syncs fail at random, also those of the journal and the superblock; the process ends, its next life syncs, and power
/// is lost then.
#[test]
fn a_failed_sync_is_made_good_by_the_next_life() {
    for seed in 200..260u64 {
        let mut world = World::stable(seed, 64, seed.is_multiple_of(2));
        for _ in 0..6 {
            for _ in 0..world.random.below(60) {
                world.step();
            }
            let failing = 1 + world.random.below(3);
            world.disk.fail_syncs(failing);
            world.sync();
            world.disk.fail_syncs(0);
            world.restart();
            world.sync();
            for _ in 0..world.random.below(20) {
                world.step();
            }
            if world.random.below(2) == 0 {
                world.lose_power();
                world.sync();
            }
        }
    }
}

/// Goal: an interrupted creation is no obstacle: what is there after power loss opens, or can be created over.
/// Method: power is lost at each step of a creation's first sync.
#[test]
fn creation_survives_power_loss() {
    let options =
        StoreOptions { size: 1 << 20, journal_size: 64 * 1024, journal_growth: JournalGrowth::NONE, checksums: false };
    let mut random = Random(11);
    for round in 0..400 {
        let disk = TestDisk::stable();
        let store = Store::create(Rc::new(disk.clone()), &options, IDENTITY).unwrap();
        disk.crash_after_syncs(round % 6);
        drop(sync(&store));
        drop(store);
        disk.lose_power(&mut random);
        if Store::exists(&disk) {
            sync(&reopen(&disk).unwrap()).unwrap();
        } else {
            Store::create(Rc::new(disk.clone()), &options, IDENTITY).unwrap();
        }
    }
}

/// Goal: a chunk that is overwritten in small pieces, and never copied over, does not fall into ever more pieces.
/// Method: overwrite single pages of a chunk of 256 in a scattered order; a record has to fit into a small journal.
#[test]
fn overwrites_do_not_scatter_a_chunk_for_ever() {
    let (_disk, store) = synced_store(1024, true);
    let mut expected = vec![7; 1 << 20];
    write(&store, 1, 0, 1 << 20, 0, &expected).unwrap();
    for round in 0..600u32 {
        let page = (round * 101 % 256) as usize;
        expected[page * 4096..][..4096].fill(round as u8);
        write(&store, 1, 0, 1 << 20, page as u32 * 4096, &[round as u8; 4096]).unwrap();
        if round % 16 == 0 {
            store.checkpoint_begin().finish().unwrap();
            sync(&store).unwrap();
        }
    }
    assert!(read(&store, 1, 0, 0, 1 << 20) == expected);
    store.check().unwrap();
}

fn bytes_of_region(disk: &TestDisk, name: &str) -> Vec<u8> {
    let region = disk.open(name, 0, OpenMode::Existing).unwrap();
    let mut bytes = vec![0; region.size() as usize];
    region.read(0, &mut bytes);
    bytes
}

/// Whether a sync writes a head, which takes a flush of its own.
fn writes_head(disk: &TestDisk, store: &Store) -> bool {
    let before = bytes_of_region(disk, "super");
    sync(store).unwrap();
    before != bytes_of_region(disk, "super")
}

/// Goal: a sync takes one flush where it may, and a head where it has to.
/// Method: it writes no head; it does without checksums, with more pages than a group has, with a page that has gone
/// bad, after a checkpoint, when the journal has no room, and as the first of a life.
#[test]
fn which_syncs_write_a_head() {
    let (disk, store) = synced_store(1024, false);
    write(&store, 1, 0, 1 << 20, 0, &[1; 5000]).unwrap();
    assert!(writes_head(&disk, &store), "nothing tells whether its pages are there");

    let (disk, store) = synced_store(4096, true);
    for offset in 0..3 {
        write(&store, 1, 0, 1 << 21, offset * 5000, &[1; 5000]).unwrap();
        assert!(!writes_head(&disk, &store));
    }
    assert!(store.is_durable() && !writes_head(&disk, &store));
    for (pages, is_large) in [(256, false), (257, true), (1, false)] {
        write(&store, 2 + pages, 0, 1 << 21, 0, &vec![2; pages as usize * 4096]).unwrap();
        assert_eq!(writes_head(&disk, &store), is_large, "{pages} pages");
    }
    write(&store, 9, 0, 4096, 0, b"it goes bad").unwrap();
    let place = data_offset_of(&disk, b"it goes bad").expect("it is stored");
    disk.flip("data", place, 1);
    assert!(writes_head(&disk, &store), "a page is rotten");
    disk.flip("data", place, 1);
    assert!(!writes_head(&disk, &store));

    store.checkpoint_begin().finish().unwrap();
    assert!(writes_head(&disk, &store), "it names the checkpoint");
    assert!(!writes_head(&disk, &store));
    let mut heads = 0;
    for file in 0..400 {
        // Each such record takes 128 bytes, and the one of its sync 64.
        match write(&store, 1000 + file, 0, 4096, 0, b"small") {
            Ok(_) => heads += u32::from(writes_head(&disk, &store)),
            Err(error) => assert!(matches!(error, StoreError::JournalFull), "{error}"),
        }
    }
    assert!(store.is_durable() && heads <= 1, "{heads} heads");
    drop(store);
    let store = reopen(&disk).unwrap();
    assert!(writes_head(&disk, &store), "it is the first of a life");
}

/// Where bytes are in the data space.
fn data_offset_of(disk: &TestDisk, bytes: &[u8]) -> Option<u64> {
    let data = disk.open("data", 0, OpenMode::Existing).unwrap();
    (0..data.data_end()).step_by(4096).find(|offset| {
        let mut found = vec![0; bytes.len()];
        data.read(*offset, &mut found);
        found == bytes
    })
}

/// Goal: a sync of which a page is not on the medium does not count, the one before does, and which page is told.
/// Method: two syncs; a byte of the second one's page is another after the power loss, and in another run none.
#[test]
fn a_sync_whose_page_is_lacking_did_not_end() {
    for is_lacking in [false, true] {
        let (disk, store) = synced_store(64, true);
        write(&store, 1, 0, 4096, 0, b"first").unwrap();
        sync(&store).unwrap();
        write(&store, 2, 0, 4096, 0, b"second").unwrap();
        let limits = store.journal_limits();
        sync(&store).unwrap();
        drop(store);
        disk.lose_power(&mut Random(1));
        if is_lacking {
            disk.flip("data", data_offset_of(&disk, b"second").unwrap(), 1);
        }
        let store = reopen(&disk).unwrap();
        assert_eq!(read(&store, 1, 0, 0, 5), b"first");
        assert_eq!(store.share(2).is_some(), !is_lacking);
        assert_eq!(store.lacking_page().map(|((file, index), _)| (file, index)), is_lacking.then_some((2, 0)));
        let expected = if is_lacking { limits.0 } else { limits.1 + 1 };
        assert_eq!(store.recovered_end(), expected);
        sync(&store).unwrap();
        drop(store);
        // What did not count then never does.
        disk.lose_power(&mut Random(2));
        assert_eq!(reopen(&disk).unwrap().recovered_end(), expected);
    }
}

/// Goal: what lies in a journal where it was never written tells nothing, if another store has left it there.
/// Method: the record of a sync far ahead, of another cluster and of this one, behind the end of the journal.
#[test]
fn syncs_of_another_store_tell_nothing() {
    for (owner, is_told) in [(IDENTITY.cluster_id + 1, false), (IDENTITY.cluster_id, true)] {
        let (disk, store) = synced_store(64, true);
        write(&store, 1, 0, 4096, 0, b"first").unwrap();
        sync(&store).unwrap();
        drop(store);
        disk.lose_power(&mut Random(1));
        let other = TestDisk::stable();
        let region = other.open("journal", 64 * 1024, OpenMode::CreateNew).unwrap();
        region.allocate(0, 64 * 1024).unwrap();
        let mut record = vec![0; journal::RECORD_HEADER_SIZE];
        entries::put_sync(&mut record, 1000, owner);
        let start = journal::Position { at: 0, lsn: 1001, previous: 7 };
        journal::Journal::new(region, 64 * 1024, start).append(&mut record, 1, false).unwrap();
        disk.open("journal", 0, OpenMode::Existing).unwrap().write(32 * 1024, &record);
        match reopen(&disk) {
            Err(StoreError::Damaged(words)) => assert!(is_told && words.contains("before 1000 were synced"), "{words}"),
            Err(error) => panic!("{error}"),
            Ok(store) => assert!(!is_told && read(&store, 1, 0, 0, 5) == b"first"),
        }
    }
}

/// Goal: a record that goes bad in the journal is told, and nothing of it is left out in silence, as soon as a later
/// sync has ended.
/// Method: three syncs; each byte of the records before the second one's is inverted, and power is lost.
#[test]
fn a_record_that_was_synced_is_not_left_out() {
    let (disk, store) = synced_store(64, true);
    let before = store.usage().journal_used;
    for (file, body) in [(1, b"first "), (2, b"second"), (3, b"third ")] {
        write(&store, file, 0, 4096, 0, body).unwrap();
        sync(&store).unwrap();
    }
    let per_sync = (store.usage().journal_used - before) / 3;
    drop(store);
    disk.lose_power(&mut Random(1));
    let mut told = 0;
    for offset in before..before + 2 * per_sync {
        disk.flip("journal", offset, 0x10);
        match reopen(&disk) {
            Err(StoreError::Damaged(words)) => {
                assert!(words.contains("were synced"), "{words}");
                told += 1;
            }
            Err(error) => panic!("byte {offset}: {error}"),
            Ok(store) => {
                // What fills a record up to its end, or the second sync's record, of which nobody tells that it ended.
                assert_eq!(read(&store, 1, 0, 0, 5), b"first", "byte {offset}");
            }
        }
        disk.flip("journal", offset, 0x10);
    }
    assert!(told > per_sync, "{told} of {per_sync} bytes and as many again");
    assert_eq!(read(&reopen(&disk).unwrap(), 3, 0, 0, 5), b"third");
}
