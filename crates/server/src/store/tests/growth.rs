//! The journal that grows with the checkpoints.

use super::*;
use crate::store::journal::{Journal, Position, RECORD_HEADER_SIZE};
use reactor::OpenMode;
use std::collections::BTreeMap;

const SIZE_MIN: u64 = 64 * 1024;
/// Of checkpoints that the ring should have.
const PERCENT: u32 = 75;
/// What invariant 3 of the journal keeps.
const RESERVE: u64 = 4096;

/// A journal, what is in it, and how often things happened.
struct Ring {
    random: Random,
    disk: TestDisk,
    journal: Journal,
    head: Position,
    /// Records from the head on, with their lsns.
    records: Vec<(Lsn, Vec<u8>)>,
    checkpoint_size: u64,
    /// Largest size that the ring should ever have had.
    wanted_max: u64,
    counts: BTreeMap<&'static str, u64>,
}

impl Ring {
    fn new(seed: u64) -> Ring {
        let mut random = Random(seed);
        let disk = TestDisk::default();
        let span = SIZE_MIN * [1, 2, 3, 8][random.below(4) as usize];
        let region = disk.open("journal", span, OpenMode::CreateNew).unwrap();
        region.allocate(0, SIZE_MIN).unwrap();
        let head = Position { at: 0, lsn: 1, previous: 0 };
        let journal = Journal::new(region, SIZE_MIN, head);
        let (records, counts) = (Vec::new(), BTreeMap::new());
        Ring { random, disk, journal, head, records, checkpoint_size: 0, wanted_max: SIZE_MIN, counts }
    }

    fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    fn append(&mut self, size: usize, reserved: bool) -> Result<(), StoreError> {
        let before = (self.journal.backed(), self.journal.tail().at);
        let body = body(&mut self.random, size as u32);
        let mut record = vec![0; RECORD_HEADER_SIZE];
        record.extend_from_slice(&body);
        let lsn = self.journal.append(&mut record, 1, reserved)?;
        self.records.push((lsn, body));
        let span = self.journal.region().size();
        if self.journal.backed() > before.0 {
            self.count("growth");
        }
        if self.journal.tail().at / span > before.1 / span {
            let is_early = span - before.1 % span > SIZE_MIN / 4;
            self.count(if is_early { "early turn" } else { "turn at the end" });
        }
        Ok(())
    }

    fn step(&mut self) {
        let size = match self.random.below(8) {
            0 => self.random.below(SIZE_MIN / 4 - RECORD_HEADER_SIZE as u64 + 1),
            1 => 0,
            _ => self.random.below(700),
        };
        match self.random.below(60) {
            0 | 1 => self.checkpoint(true),
            2 => self.restart(),
            3 => {
                let count = self.random.below(3);
                self.disk.fail_allocations_after(count.checked_sub(1));
            }
            4 => self.use_up(),
            5 => {
                let (after, tear) = (self.random.below(4), self.random.next());
                self.disk.crash_after(after, tear);
            }
            _ => match self.append(size as usize, false) {
                Ok(()) => {}
                Err(StoreError::JournalFull) => {
                    self.count("full");
                    self.append(0, true).expect("a record without entries has room");
                    let marks = self.random.below(2) * self.random.below(70);
                    (0..marks).for_each(|_| drop(self.append(0, true)));
                    self.checkpoint(false);
                    self.append(size as usize, false).expect("what fits at all has room then");
                }
                Err(error) => panic!("{error}"),
            },
        }
        if self.disk.is_crashed() {
            self.count("crash");
            self.restart();
        }
        self.check();
    }

    /// A checkpoint ends, of some size, that began now, or may have begun a while ago.
    fn checkpoint(&mut self, is_long: bool) {
        let everything = self.journal.tail();
        // Where it began can be told only by reading: the records before are walked again.
        let kept = self.random.below(self.records.len() as u64 / 2 + 1);
        let start = if is_long && kept > 0 && self.random.below(2) == 0 && !self.disk.is_crashed() {
            self.position_of(self.records[self.records.len() - kept as usize].0)
        } else {
            everything
        };
        self.records.retain(|(lsn, _)| *lsn >= start.lsn);
        self.head = start;
        self.journal.release(start.at);
        self.checkpoint_size = self.random.below(700 << 10) * self.random.below(2);
        self.journal.fit(self.checkpoint_size, PERCENT);
        self.wanted_max = self.wanted_max.max(self.checkpoint_size);
    }

    /// Where the record of this number is, or the filler before it.
    fn position_of(&self, lsn: Lsn) -> Position {
        let mut journal = self.reopened();
        let mut end = None;
        // The end of replay is where the tail is, so that a replay which is stopped tells it.
        let stopped = journal.replay(&mut |found, _, _| match found >= lsn {
            true => {
                end = Some(found);
                Err(StoreError::TooLarge)
            }
            false => Ok(()),
        });
        assert!(stopped.is_err() && end == Some(lsn), "the record is there");
        journal.tail()
    }

    fn reopened(&self) -> Journal {
        let region = self.disk.open("journal", 0, OpenMode::Existing).unwrap();
        let mut journal = Journal::new(region, SIZE_MIN, self.head);
        journal.fit(self.checkpoint_size, PERCENT);
        journal
    }

    /// The process ends and starts again; of a record that was under way when it crashed, all or nothing is there.
    fn restart(&mut self) {
        let crashed = self.disk.is_crashed();
        self.disk.revive();
        let used = self.journal.used();
        self.journal = self.reopened();
        let mut found = Vec::new();
        self.journal
            .replay(&mut |lsn, count, bytes| {
                assert_eq!(count, 1);
                found.push((lsn, bytes.to_vec()));
                Ok(())
            })
            .unwrap();
        while crashed && found.len() < self.records.len() {
            self.records.pop();
        }
        assert!(found == self.records, "{} records are found, of {}", found.len(), self.records.len());
        assert!(crashed || self.journal.used() == used, "a restart changes nothing");
    }

    /// Room that is told is there, also when the medium gives no more.
    fn use_up(&mut self) {
        if self.disk.is_crashed() {
            return;
        }
        self.disk.fail_allocations_after(Some(0));
        let room = self.journal.room().saturating_sub(RESERVE);
        let mut taken = 0;
        while self.append(20, false).is_ok() {
            taken += 64;
        }
        assert!(taken + 128 >= room, "{taken} bytes are taken, of {room}");
        self.disk.fail_allocations_after(None);
        self.restart();
        self.checkpoint(true);
    }

    fn check(&self) {
        let (journal, span) = (&self.journal, self.journal.region().size());
        assert!(journal.used() <= journal.size() && journal.size() <= span);
        assert!(journal.backed() >= SIZE_MIN && journal.room() <= journal.size() - journal.used());
        assert!(journal.backed() <= self.wanted_max.max(SIZE_MIN), "a ring is no larger than checkpoints want");
    }
}

/// Goal: whatever a journal went through, replay finds the records from the head on, nothing is read or written where
/// no space was taken, and there is always room for marks.
/// Method: random appends, checkpoints of random sizes, restarts, crashes at a write, torn, and refusals to give space.
#[test]
fn a_growing_ring_keeps_its_records() {
    let mut counts = BTreeMap::new();
    for seed in 0..200 {
        let mut ring = Ring::new(seed);
        let guard = RingSeed(seed);
        for _ in 0..400 {
            ring.step();
        }
        ring.disk.revive();
        drop(guard);
        for (what, count) in ring.counts {
            *counts.entry(what).or_insert(0) += count;
        }
    }
    for what in ["growth", "early turn", "turn at the end", "full", "crash"] {
        assert!(counts.get(what).is_some_and(|&count| count > 100), "{what} hardly happened: {counts:?}");
    }
}

/// Prints which history failed.
struct RingSeed(u64);

impl Drop for RingSeed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("failed with seed {}", self.0);
        }
    }
}

fn growing_store(disk: &TestDisk, size_max: u64) -> Store {
    let journal_growth = JournalGrowth { size_max, checkpoint_percent: PERCENT };
    let options = StoreOptions { size: 64 * PAGE_SIZE, journal_size: SIZE_MIN, journal_growth, checksums: false };
    Store::create(Rc::new(disk.clone()), &options, IDENTITY).unwrap()
}

fn put(store: &Store, size: usize) -> Result<Lsn, StoreError> {
    let mut transaction = store.begin();
    transaction.put(KIND_FOREIGN_FIRST, |out| out.resize(out.len() + size, 1));
    store.commit(transaction)
}

/// Writes until a checkpoint is due, and then that, with so many bytes of the caller's; how much of the journal was
/// used when it was due.
fn fill_and_checkpoint(store: &Store, size: usize) -> u64 {
    while !store.checkpoint_due() {
        put(store, 500).unwrap();
    }
    let used = store.usage().journal_used;
    let mut checkpoint = store.checkpoint_begin();
    for _ in 0..size / 1000 {
        checkpoint.put(KIND_FOREIGN_FIRST, &[7; 1000]).unwrap();
    }
    checkpoint.finish().unwrap();
    used
}

/// Goal: a checkpoint is due by the size of the last one, within the ring's bounds, over a restart too; a small one
/// leaves the journal at its smallest size for ever, however often the ring goes round.
#[test]
fn checkpoints_are_due_by_the_size_of_the_last() {
    let disk = TestDisk::default();
    let store = growing_store(&disk, 1 << 20);
    for _ in 0..20 {
        let used = fill_and_checkpoint(&store, 30_000);
        assert!((SIZE_MIN / 2..SIZE_MIN / 2 + 600).contains(&used) && store.usage().journal_size == SIZE_MIN);
    }
    fill_and_checkpoint(&store, 400_000);
    let wanted = 400_000 / 8 * 3;
    let store = reopen(&disk).unwrap();
    for _ in 0..5 {
        let used = fill_and_checkpoint(&store, 400_000);
        assert!((wanted..wanted + 8000).contains(&used), "{used}");
    }
    let taken = store.usage().journal_size;
    assert!((2 * wanted..2 * wanted + 16_000).contains(&taken), "{taken}");
    assert_eq!(reopen(&disk).unwrap().usage().journal_size, taken, "what was taken is known after a restart");
    for _ in 0..5 {
        fill_and_checkpoint(&store, 4_000_000);
    }
    let used = fill_and_checkpoint(&store, 1000);
    assert!((1 << 19..(1 << 19) + 600).contains(&used) && store.usage().journal_size == 1 << 20);
    let used = fill_and_checkpoint(&store, 1000);
    assert!((SIZE_MIN / 2..SIZE_MIN / 2 + 600).contains(&used), "{used}");
}

/// Goal: on a medium that gives no more, the journal has the room that it had, and goes round in it.
#[test]
fn a_full_medium_leaves_the_ring_as_it_is() {
    let disk = TestDisk::default();
    let store = growing_store(&disk, 1 << 20);
    fill_and_checkpoint(&store, 400_000);
    disk.fail_allocations_after(Some(0));
    let error = loop {
        if let Err(error) = put(&store, 500) {
            break error;
        }
    };
    assert!(matches!(error, StoreError::JournalFull) && store.checkpoint_due());
    assert!(store.usage().journal_size == SIZE_MIN && store.usage().journal_used > SIZE_MIN - RESERVE - 1200);
    disk.fail_allocations_after(None);
    let store = reopen(&disk).unwrap();
    fill_and_checkpoint(&store, 400_000);
    while !store.checkpoint_due() {
        put(&store, 500).unwrap();
    }
    assert!(store.usage().journal_size > SIZE_MIN);
}

/// Goal: stores from before journals grew, and those on media that keep what was synced, have a journal that does not.
#[test]
fn other_journals_stay_as_they_are() {
    let disk = TestDisk::stable();
    let store = growing_store(&disk, 1 << 20);
    sync(&store).unwrap();
    let old = TestDisk::default();
    for (store, disk) in [(store, disk), (growing_store(&old, 0), old)] {
        assert_eq!(disk.open("journal", 0, OpenMode::Existing).unwrap().size(), SIZE_MIN);
        let mut growth = [1; 16];
        disk.open("super", 0, OpenMode::Existing).unwrap().read(72, &mut growth);
        assert_eq!(growth, [0; 16]);
        for _ in 0..4 {
            let used = fill_and_checkpoint(&store, 400_000);
            assert!((SIZE_MIN / 2..SIZE_MIN / 2 + 600).contains(&used));
            sync(&store).unwrap();
        }
        assert_eq!(store.usage().journal_size, SIZE_MIN);
        reopen(&disk).unwrap();
    }
}

/// Goal: how a journal grows is protected, for all positions depend on it.
#[test]
fn rotten_growth_is_an_error() {
    let disk = TestDisk::default();
    let store = growing_store(&disk, 1 << 20);
    fill_and_checkpoint(&store, 400_000);
    for offset in 72..88 {
        let copy = disk.duplicate();
        copy.flip("super", offset, 1);
        assert!(matches!(reopen(&copy), Err(StoreError::Damaged(_))), "byte {offset}");
    }
    reopen(&disk).unwrap();
}

/// Goal: a journal that grows leaves the next checkpoint its room: what went on for ever with a journal that does not
/// grow does so with one that does.
/// Method: steady changes on media with less and less beside the store; a checkpoint is always as large as the last.
#[test]
fn growth_leaves_room_for_checkpoints() {
    const CHECKPOINT_SIZE: usize = 12 << 20;
    let changes = |growth: JournalGrowth, rest: u64| {
        let disk = TestDisk::default();
        let options =
            StoreOptions { size: 64 * PAGE_SIZE, journal_size: 1 << 20, journal_growth: growth, checksums: false };
        let store = Store::create(Rc::new(disk.clone()), &options, IDENTITY).unwrap();
        disk.leave_bytes(rest);
        let checkpoint = || -> Result<(), StoreError> {
            let mut checkpoint = store.checkpoint_begin();
            for _ in 0..CHECKPOINT_SIZE / 60_000 {
                checkpoint.put(KIND_FOREIGN_FIRST, &[7; 60_000])?;
            }
            checkpoint.finish()
        };
        let mut done = 0;
        while done < 4_000 {
            let mut transaction = store.begin();
            transaction.put(200, |out| out.extend_from_slice(&[5; 40_000]));
            if store.commit(transaction).is_err() {
                break;
            }
            done += 1;
            if store.checkpoint_due() {
                let _ = checkpoint();
            }
        }
        (done, store.usage().journal_size)
    };
    let grows = JournalGrowth { size_max: 64 << 20, checkpoint_percent: PERCENT };
    let mut largest = 0;
    for rest in (24..64).step_by(4).map(|size| size << 20) {
        let (without, _) = changes(JournalGrowth::NONE, rest);
        let (with, size) = changes(grows, rest);
        assert!(with >= without, "{rest} bytes beside the store: {with} changes, and {without} without growth");
        largest = largest.max(size);
    }
    assert!(largest > 4 << 20, "none has grown: {largest}");
}

/// Goal: a flipped bit in the size of a record of a journal that grows is an error, and nothing that was never taken
/// from the medium is looked at.
#[test]
fn sizes_of_records_are_bounded() {
    let disk = TestDisk::default();
    let growth = JournalGrowth { size_max: 1 << 20, checkpoint_percent: PERCENT };
    let options =
        StoreOptions { size: 64 * PAGE_SIZE, journal_size: SIZE_MIN, journal_growth: growth, checksums: false };
    let store = Store::create(Rc::new(disk.clone()), &options, IDENTITY).unwrap();
    for _ in 0..4 {
        let mut transaction = store.begin();
        transaction.put(200, |out| out.extend_from_slice(b"something"));
        store.commit(transaction).unwrap();
    }
    for bit in 0..32u64 {
        let copy = disk.duplicate();
        copy.flip("journal", 4 + bit / 8, 1 << (bit % 8));
        assert!(matches!(reopen(&copy), Err(StoreError::Damaged(_))), "bit {bit}");
    }
}
