//! Goal: power loss leaves a store as it was at its last sync, whatever of the rest has reached the medium. Method: the
//! histories of `model` on a disk that keeps, loses or tears each page that was not synced; the store that is opened
//! then must equal the model as it was when the last sync began.

use super::model::World;
use super::*;

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
        let disk = TestDisk::stable();
        let options = StoreOptions {
            size: 64 * PAGE_SIZE,
            journal_size: 64 * 1024,
            journal_growth: JournalGrowth::NONE,
            checksums: false,
        };
        let mut store = Store::create(Rc::new(disk.clone()), &options, IDENTITY).unwrap();
        sync(&store).unwrap();
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
    let disk = TestDisk::stable();
    let options =
        StoreOptions { size: 4 << 20, journal_size: 64 * 1024, journal_growth: JournalGrowth::NONE, checksums: true };
    let store = Store::create(Rc::new(disk.clone()), &options, IDENTITY).unwrap();
    sync(&store).unwrap();
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
