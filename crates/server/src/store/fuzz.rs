//! The entry point of the fuzz target `store`: whatever lies on a medium is refused or taken, and nothing else happens.
//!
//! The same bytes are tried as entries, as a checkpoint head, as a record of the journal, as the journal as it is, and
//! as a block of a checkpoint. Checksums are put right, for the decoders behind them are what is to be tried.

use super::checkpoint::{self, segment_name};
use super::entries;
use super::journal::{ALIGNMENT, Journal, Position, RECORD_HEADER_SIZE};
use super::superblock::{self, HEAD_OFFSET, HEAD_SIZE, Head};
use super::{JournalGrowth, Store, StoreIdentity, StoreOptions};
use crate::journal::records::Record;
use crate::journal::tables::Tables;
use reactor::sim::World;
use reactor::{OpenMode, Region, Storage};
use std::net::Ipv4Addr;
use std::path::Path;
use std::rc::Rc;

const OPTIONS: StoreOptions =
    StoreOptions { size: 64 << 12, journal_size: 64 << 10, journal_growth: JournalGrowth::NONE, checksums: true };
const IDENTITY: StoreIdentity =
    StoreIdentity { cluster_id: 1, server: 0, slots: 1024, placement: wire::Placement::Modular };
/// What a store that was just created says of its journal.
const START: Position = Position { at: 0, lsn: 1, previous: 0 };

/// Tries the bytes as everything; the number of entries and stores that are sound.
pub fn decode_everything(bytes: &[u8]) -> usize {
    let entries = super::count_sound_entries(bytes) + count_records(bytes);
    let stores = [head, record, ring, block].into_iter().filter(|write| opens(bytes, *write)).count();
    entries + stores
}

/// Entries of names, inodes and sessions. What decodes must encode to the same bytes.
fn count_records(mut bytes: &[u8]) -> usize {
    let mut count = 0;
    while let Some((kind, body)) = entries::next_entry(&mut bytes) {
        if let Ok((record, time)) = Record::decode(kind, body) {
            let mut again = Vec::new();
            record.encode(time, &mut again);
            assert_eq!(again, body, "the encoding of entry {kind} is not unique");
            count += 1;
        }
    }
    count
}

/// Whether a store opens in which these bytes were written somewhere. If it does, it is whole.
fn opens(bytes: &[u8], write: fn(&dyn Storage, &[u8])) -> bool {
    let world = World::new(1);
    let node = world.add_node("node", Ipv4Addr::LOCALHOST.into());
    let Ok(storage) = world.reactor(node).storage(Path::new("store")) else { return false };
    drop(Store::create(storage.clone(), &OPTIONS, IDENTITY).expect("the simulated disk has room"));
    region(storage.as_ref(), "data").allocate(0, OPTIONS.size).expect("the simulated disk has room");
    write(storage.as_ref(), bytes);
    let mut tables = Tables::new(64, &crate::process::options::Bounds::default());
    let opened = Store::open(storage, IDENTITY, &mut |kind, bytes| {
        let (record, time) = Record::decode(kind, bytes)?;
        tables.apply(record, time, Some(0));
        Ok(())
    });
    match opened {
        Ok(store) => {
            store.check().expect("a store that opens is whole");
            true
        }
        Err(_) => false,
    }
}

fn region(storage: &dyn Storage, name: &str) -> Rc<dyn Region> {
    storage.open(name, 0, OpenMode::Existing).expect("the store has it")
}

/// The bytes as a head, with the right checksum.
fn head(storage: &dyn Storage, bytes: &[u8]) {
    let mut fields = [0; HEAD_SIZE];
    let size = bytes.len().min(HEAD_SIZE);
    fields[..size].copy_from_slice(&bytes[..size]);
    let superblock = region(storage, "super");
    for place in 0..2 {
        superblock.write(HEAD_OFFSET * (1 + place), &fields);
        superblock.write(HEAD_OFFSET * (1 + place) + HEAD_SIZE as u64, &crc32c::crc32c(&fields).to_le_bytes());
    }
}

/// The bytes as the entries of the first record.
fn record(storage: &dyn Storage, bytes: &[u8]) {
    let mut rest = bytes;
    let count = std::iter::from_fn(|| entries::next_entry(&mut rest)).count() as u32;
    let mut record = vec![0; RECORD_HEADER_SIZE];
    record.extend_from_slice(bytes);
    // One that is too large is refused, and the journal stays empty.
    let _ =
        Journal::new(region(storage, "journal"), OPTIONS.journal_size, START).append(&mut record, count, false).is_ok();
}

/// The bytes as they are, again and again at places where records begin.
fn ring(storage: &dyn Storage, bytes: &[u8]) {
    let journal = region(storage, "journal");
    let step = (bytes.len() as u64).next_multiple_of(ALIGNMENT).max(ALIGNMENT);
    for offset in (0..journal.size()).step_by(step as usize).take(16) {
        let size = (journal.size() - offset).min(bytes.len() as u64) as usize;
        journal.write(offset, &bytes[..size]);
    }
}

/// The bytes as the only block of a checkpoint.
fn block(storage: &dyn Storage, bytes: &[u8]) {
    let sequence = 2;
    let block = checkpoint::block(bytes, sequence, 0);
    let size = (block.len() as u64).next_multiple_of(4096);
    let segment = storage.open(&segment_name(sequence, 0), size, OpenMode::CreateNew).expect("the disk has room");
    segment.allocate(0, size).expect("the disk has room");
    segment.write(0, &block);
    let power_cycle = storage.power_cycle().expect("the simulated disk knows");
    let counts = Head { sequence, start: START, segments: 1, blocks: 1, durable: START.lsn, power_cycle };
    head(storage, &superblock::encode_head(2, &counts));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::chunk::{Chunk, Extent, ValidRange};
    use crate::store::inline_vec::InlineVec;
    use crate::store::testing::Random;
    use std::path::PathBuf;

    /// One valid encoding of every entry: the records of names, inodes and sessions, and what a store journals by
    /// itself.
    fn seeds() -> Vec<Vec<u8>> {
        let mut seeds = Vec::new();
        for record in crate::journal::records::tests::samples() {
            let mut seed = Vec::new();
            let kind = record.kind().expect("samples have kinds");
            entries::put_entry(&mut seed, kind, |out| record.encode(77, out));
            seeds.push(seed);
        }
        let own: [fn(&mut Vec<u8>); 8] = [
            |out| entries::put_truncate(out, 1 << 20, 3, 2),
            |out| entries::put_reap(out, 1 << 20),
            |out| {
                entries::put_announced(
                    out,
                    crate::store::files::Announcement { file: 1 << 20, announced: Some(7), forgets_time: true },
                )
            },
            |out| entries::put_drop(out, 1 << 20, 1..3, 9000, 5),
            |out| entries::put_sums(out, 3, [7, 8].into_iter()),
            |out| entries::put_sync(out, 1, IDENTITY.cluster_id),
            |out| entries::put_redo(out, entries::Copy { from: 0, to: 8192, size: 100 }),
            |out| {
                let extents = InlineVec::from_slice(&[Extent { logical: 0, start: 3, pages: 2, birth: 0 }]);
                let ranges = InlineVec::from_slice(&[ValidRange { start: 0, end: 5000 }]);
                entries::put_chunk(out, 1 << 20, 0, 65_536, 5, &Chunk { extents, ranges });
            },
        ];
        for put in own {
            let mut seed = Vec::new();
            put(&mut seed);
            seeds.push(seed);
        }
        let all = seeds.concat();
        seeds.push(all);
        let power_cycle = 0;
        seeds.push(superblock::encode_head(
            3,
            &Head { sequence: 1, start: START, segments: 0, blocks: 0, durable: START.lsn, power_cycle },
        ));
        seeds
    }

    fn folder() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/store")
    }

    /// Goal: what the program writes itself is taken, so that the seeds reach what is behind the decoders.
    #[test]
    fn seeds_are_sound() {
        for (index, seed) in seeds().iter().enumerate() {
            assert!(decode_everything(seed) > 0, "seed {index}");
        }
    }

    /// Goal: damaged bytes with right checksums are refused or taken, without a panic, and what opens is whole.
    /// Method: seeds with bytes changed, cut, put in and repeated, from a fixed seed.
    #[test]
    fn mutations() {
        let mut random = Random(20);
        for seed in seeds() {
            for _ in 0..40 {
                let mut input = seed.clone();
                for _ in 0..1 + random.below(3) {
                    let at = random.below(input.len() as u64 + 1) as usize;
                    match random.below(5) {
                        0 if at < input.len() => input[at] ^= 1 << random.below(8),
                        1 => input.truncate(at),
                        2 => input.insert(at, random.below(256) as u8),
                        3 if input.len() >= at + 4 => input[at..at + 4].fill(0xff),
                        _ => input.extend_from_within(..at),
                    }
                }
                decode_everything(&input);
            }
        }
    }

    /// Goal: inputs that once mattered stay harmless.
    #[test]
    fn corpus_is_replayed() {
        let mut count = 0;
        for file in std::fs::read_dir(folder()).expect("the corpus is part of the repository") {
            decode_everything(&std::fs::read(file.unwrap().path()).unwrap());
            count += 1;
        }
        assert!(count >= seeds().len(), "the corpus in {} is incomplete", folder().display());
    }

    /// Writes the seeds into the corpus: `cargo test -p server --lib write_corpus -- --ignored`.
    #[test]
    #[ignore = "writes files into the repository; run by hand after a new entry"]
    fn write_corpus() {
        std::fs::create_dir_all(folder()).unwrap();
        for (index, seed) in seeds().iter().enumerate() {
            std::fs::write(folder().join(format!("seed-{index:02}")), seed).unwrap();
        }
    }
}
