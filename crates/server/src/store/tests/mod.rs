//! Tests of the store as a whole.

mod damage;
mod growth;
mod model;
mod power;
mod registered_buffers;
mod rules;
mod salvage;
mod short_circuit;

use super::testing::{Random, TestDisk};
use super::*;

const IDENTITY: StoreIdentity =
    StoreIdentity { cluster_id: 0x1234, server: 3, slots: 1024, placement: wire::Placement::Modular };

/// A store of `size` bytes with a small journal on a disk of its own.
fn new_store(size: u64, checksums: bool) -> (TestDisk, Store) {
    new_growing_store(size, JournalGrowth::NONE, checksums)
}

/// The same, with a journal that grows.
fn new_growing_store(size: u64, journal_growth: JournalGrowth, checksums: bool) -> (TestDisk, Store) {
    let disk = TestDisk::default();
    let options = StoreOptions { size, journal_size: 64 * 1024, journal_growth, checksums };
    let store = Store::create(Rc::new(disk.clone()), &options, IDENTITY).unwrap();
    (disk, store)
}

/// A store on a disk that keeps what was synced, after its first sync.
fn synced_store(pages: u64, checksums: bool) -> (TestDisk, Store) {
    let disk = TestDisk::stable();
    let options = StoreOptions {
        size: pages * PAGE_SIZE,
        journal_size: 64 * 1024,
        journal_growth: JournalGrowth::NONE,
        checksums,
    };
    let store = Store::create(Rc::new(disk.clone()), &options, IDENTITY).unwrap();
    sync(&store).unwrap();
    (disk, store)
}

/// Syncs; all futures of a test disk whose syncs are not slow are ready at once.
fn sync(store: &Store) -> Result<(), SyncError> {
    at_once(store.sync())
}

/// What a future on a test disk whose syncs are not slow resolves to.
fn at_once<T>(future: impl Future<Output = T>) -> T {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match std::pin::pin!(future).poll(&mut context) {
        std::task::Poll::Ready(result) => result,
        std::task::Poll::Pending => panic!("a test disk never keeps anybody waiting"),
    }
}

/// Opens a store whose foreign entries do not matter.
fn reopen(disk: &TestDisk) -> Result<Store, StoreError> {
    Store::open(Rc::new(disk.clone()), IDENTITY, &mut |_, _| Ok(()))
}

/// Puts the body of a write in its places.
fn fill(write: &ChunkWrite, body: &[u8]) {
    fill_part(write, body, 0, body.len());
}

/// Puts bytes `from..to` of the body of a write in its places.
fn fill_part(write: &ChunkWrite, body: &[u8], from: usize, to: usize) {
    let mut start = 0;
    for place in &write.places {
        let end = start + place.size as usize;
        let (first, last) = (start.max(from), end.min(to));
        if first < last {
            place.region.write(place.offset + (first - start) as u64, &body[first..last]);
        }
        start = end;
    }
    assert_eq!(start, body.len(), "the places are as long as the write");
}

/// Commits a write that is complete.
fn finish(store: &Store, write: ChunkWrite, mtime: i64) -> Result<Lsn, StoreError> {
    let mut transaction = store.begin();
    store.commit_write(write, &mut transaction, mtime)?;
    store.commit(transaction)
}

/// Reserves, fills and commits.
fn write(store: &Store, file: u64, index: u64, chunk_size: u32, offset: u32, body: &[u8]) -> Result<Lsn, StoreError> {
    let reserved = store.reserve_write(file, index, chunk_size, offset, body.len() as u32)?;
    fill(&reserved, body);
    finish(store, reserved, 1)
}

/// The bytes that a read found.
fn bytes_of(read: &ChunkRead) -> Vec<u8> {
    let mut bytes = Vec::new();
    for piece in &read.pieces {
        match piece {
            Piece::Zero(size) => bytes.resize(bytes.len() + *size as usize, 0),
            Piece::Bytes(span) => {
                let start = bytes.len();
                bytes.resize(start + span.size as usize, 0);
                span.region.read(span.offset, &mut bytes[start..]);
            }
        }
    }
    bytes
}

/// Reads bytes of a chunk.
fn read(store: &Store, file: u64, index: u64, offset: u32, size: u32) -> Vec<u8> {
    bytes_of(&store.read(file, index, offset, size).unwrap())
}

/// `size` pseudo-random bytes.
fn body(random: &mut Random, size: u32) -> Vec<u8> {
    (0..size).map(|_| random.next() as u8).collect()
}
