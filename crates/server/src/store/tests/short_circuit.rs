//! Reading by short circuit: what somebody was told of a chunk holds until its stamps say otherwise.

use super::*;
use reactor::{OpenMode, Region};
use std::sync::atomic::{AtomicU64, Ordering};

/// What a reader along was told.
struct Told {
    number: u64,
    places: Vec<BytesPlace>,
    bytes: Vec<u8>,
}

fn ask(store: &Store, file: u64, index: u64) -> Told {
    let mut places = Vec::new();
    store.places(file, index, |place| places.push(place));
    let shared = store.shared().expect("this store is shared");
    let mut told = Told { number: shared.number(), places, bytes: Vec::new() };
    told.bytes = told.read(store);
    told
}

impl Told {
    fn read(&self, store: &Store) -> Vec<u8> {
        let data = store.shared().expect("this store is shared");
        let mut bytes = Vec::new();
        for place in &self.places {
            let start = bytes.len();
            bytes.resize(start + place.size as usize, 0);
            data.read(place.at, &mut bytes[start..]);
        }
        bytes
    }

    /// Whether the stamps say that it still holds.
    fn holds(&self, disk: &TestDisk) -> bool {
        let table = disk.open("stamps", 0, OpenMode::Existing).unwrap();
        let stamps = table.base().cast::<AtomicU64>();
        self.places.iter().all(|place| {
            (place.at >> 16..(place.at + u64::from(place.size)).div_ceil(1 << 16)).all(|granule| {
                // SAFETY: the table has 65,536 stamps, and the store of this test is small.
                unsafe { (*stamps.add(granule as usize)).load(Ordering::Relaxed) <= self.number }
            })
        })
    }
}

/// Goal: whatever is done to a chunk, who was told its places either sees by the stamps that they are worth nothing, or
/// still finds the chunk's own bytes there. Method: random writes, cuts, holes, reservations and removals of a few
/// files in a store so small that freed pages are soon others'; after each step everything that somebody was told is
/// compared with what the store reads.
#[test]
fn what_was_told_holds_until_stamped() {
    const FILES: u64 = 4;
    const CHUNK: u32 = 3 * PAGE_SIZE as u32 + 700;
    let (mut still, mut stamped) = (0, 0);
    for seed in 0..40 {
        let mut random = Random(seed * 77 + 1);
        let (disk, mut store) = new_store(200 * PAGE_SIZE, false);
        let mut told: Vec<(u64, u64, Told)> = Vec::new();
        let mut generations = [0u32; FILES as usize + 1];
        for step in 0..150u64 {
            let (file, index) = (1 + random.below(FILES), random.below(3));
            let offset = random.below(u64::from(CHUNK) - 1) as u32;
            let size = 1 + random.below(u64::from(CHUNK - offset)) as u32;
            let mut transaction = store.begin();
            match random.below(12) {
                0 => {
                    generations[file as usize] += 1;
                    let end = index * u64::from(CHUNK) + u64::from(offset);
                    store.truncate_file(file, end, generations[file as usize], &mut transaction);
                    store.commit(transaction).unwrap();
                }
                1 => {
                    let start = index * u64::from(CHUNK) + u64::from(offset);
                    let hole = Hole { file, start, end: start + u64::from(size), mtime: 1, keep_pages: step % 2 == 0 };
                    store.punch(hole, &mut transaction);
                    store.commit(transaction).unwrap();
                }
                2 => {
                    store.reap_file(file, &mut transaction);
                    store.commit(transaction).unwrap();
                }
                3 => {
                    drop(transaction);
                    drop(store);
                    store = reopen(&disk).unwrap();
                    assert!(told.iter().all(|(_, _, told)| told.places.is_empty() || !told.holds(&disk)), "a new life");
                    told.clear();
                    continue;
                }
                _ => {
                    drop(transaction);
                    let body = body(&mut random, size);
                    write(&store, file, index, CHUNK, offset, &body).unwrap();
                }
            }
            told.retain(|(file, index, told)| {
                if !told.holds(&disk) {
                    stamped += 1;
                    return false;
                }
                still += 1;
                assert_eq!(told.read(&store), told.bytes, "seed {seed}, step {step}: bytes changed without a stamp");
                for place in &told.places {
                    let now = read(&store, *file, *index, place.offset, place.size);
                    let mut then = vec![0; place.size as usize];
                    store.shared().unwrap().read(place.at, &mut then);
                    assert!(now == then, "seed {seed}, step {step}: the chunk's bytes are elsewhere, without a stamp");
                }
                true
            });
            told.push((file, index, ask(&store, file, index)));
        }
    }
    assert!(still > 1_000 && stamped > 1_000, "{still} held and {stamped} did not");
}

/// Goal: nobody reads by short circuit where bytes have checksums, or on a disk.
#[test]
fn not_lent() {
    assert!(new_store(64 * PAGE_SIZE, false).1.shared().is_some());
    assert!(new_store(64 * PAGE_SIZE, true).1.shared().is_none());
    let disk = TestDisk::stable();
    let options = StoreOptions {
        size: 64 * PAGE_SIZE,
        journal_size: 64 * 1024,
        journal_growth: JournalGrowth::NONE,
        checksums: false,
    };
    assert!(Store::create(Rc::new(disk), &options, IDENTITY).unwrap().shared().is_none());
}
