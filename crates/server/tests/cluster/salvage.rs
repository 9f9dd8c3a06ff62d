//! A store with flipped bits: its server does not start before it was mended.

use crate::support::*;
use reactor::OpenMode;
use server::journal;
use server::store::{Findings, FlippedBit};
use std::path::Path;
use wire::FileId;

const ROOT: FileId = FileId::ROOT;
const CHUNK: u64 = 4096;
const FILES: u64 = 100;
/// The server whose store is damaged.
const VICTIM: u32 = 1;

/// Where records with some entries begin in the victim's journal, in the order in which they were written.
fn records(test: &TestCluster) -> Vec<u64> {
    let storage = test.world.reactor(test.servers[VICTIM as usize]).storage(Path::new(DIRECTORY)).expect("storage");
    let journal = storage.open("journal", 0, OpenMode::Existing).expect("the journal is there");
    let mut found = Vec::new();
    for offset in (0..journal.size()).step_by(64) {
        let mut header = [0; 16];
        journal.read(offset, &mut header);
        let size = u32::from_le_bytes(header[4..8].try_into().expect("four bytes"));
        if header.starts_with(b"TbJr") && size >= 24 {
            let lsn = u64::from_le_bytes(header[8..].try_into().expect("eight bytes"));
            found.push((lsn, offset));
        }
    }
    found.sort_unstable();
    found.into_iter().map(|(_, offset)| offset).collect()
}

fn salvage(test: &TestCluster, mend: bool) -> Findings {
    let node = test.servers[VICTIM as usize];
    let storage = test.world.reactor(node).storage(Path::new(DIRECTORY)).expect("storage");
    let found = test.world.run(node, async move { journal::salvage(&*storage, mend).await }, LIMIT);
    found.expect("it ends").expect("there is a store")
}

fn flip(test: &TestCluster, bits: &[(u64, u8)]) {
    for (offset, bit) in bits {
        test.world.corrupt(test.servers[VICTIM as usize], DIRECTORY, "journal", *offset, 1 << bit);
    }
}

/// A refused start, which has to name the store and what looks at it.
fn assert_refused(test: &TestCluster) {
    let words = test.fail_start(VICTIM);
    assert!(words.contains("the store is damaged: ") && words.contains("'tabane salvage store'"), "{words}");
}

/// Goal: a server that finds a flipped bit in its journal does not start; after salvage it does, and everything is
/// there. Two flipped bits of a record are told, and nothing is changed.
/// Method: a server is killed, or loses its power after a sync; one bit of one of its last records is flipped, or two
/// bits are, and flipped back.
#[test]
fn a_flipped_bit_is_mended() {
    for seed in 0..16 {
        let test = TestCluster::new(seed, 3);
        let caller = test.caller(0, 1);
        test.run(0, async move {
            for number in 0..FILES {
                let attributes = caller.create(ROOT, &format!("f{number}")).await.expect("created");
                let at = number % 4 * CHUNK;
                caller.write(attributes.id, attributes.layout, at, &[number as u8; 50]).await.expect("written");
            }
            caller.synchronise().await.expect("synced");
        });
        let before = test.settle();
        if seed % 2 == 0 {
            test.kill(VICTIM)
        } else {
            test.lose_power(VICTIM)
        }
        let node = test.servers[VICTIM as usize];
        test.world.restart(node);
        let records = records(&test);
        let record = records[records.len() - 12];
        let (offset, bit) = (record + test.world.random() % 48, (test.world.random() % 8) as u8);
        let sound = test.world.disk_hash(node);

        let other = record + 48 + test.world.random() % 8;
        flip(&test, &[(offset, bit), (other, bit)]);
        assert_refused(&test);
        let hash = test.world.disk_hash(node);
        let found = salvage(&test, true);
        assert!(found.flipped.is_empty() && found.unreadable.len() == 1, "seed {seed}: {found:?}");
        assert_eq!(test.world.disk_hash(node), hash, "seed {seed}: nothing is changed");
        flip(&test, &[(other, bit)]);

        assert_refused(&test);
        let hash = test.world.disk_hash(node);
        let found = salvage(&test, false);
        let [FlippedBit { file, offset: byte, bit: in_byte, .. }] = &found.flipped[..] else { panic!("{found:?}") };
        assert_eq!((file.as_str(), *byte, *in_byte), ("journal", offset, bit), "seed {seed}");
        assert_eq!(test.world.disk_hash(node), hash, "seed {seed}: a look changes nothing");
        assert!(found.unreadable.is_empty() && salvage(&test, true).unreadable.is_empty(), "seed {seed}");
        assert_eq!(test.world.disk_hash(node), sound, "seed {seed}: it is as it was");

        test.start(VICTIM);
        let counts = |audit: &server::Audit| (audit.dentries, audit.inodes, audit.chunks, audit.bytes_used);
        let after = test.settle();
        assert!(before.iter().map(counts).eq(after.iter().map(counts)), "seed {seed}");
        let caller = test.caller(1, 2);
        test.run(1, async move {
            for number in 0..FILES {
                let opened = caller.open(ROOT, &format!("f{number}"), 0).await.expect("opened");
                let at = number % 4 * CHUNK;
                let (_, bytes) =
                    caller.read(opened.attributes.id, opened.attributes.layout, at, 50).await.expect("read");
                assert_eq!(bytes, [number as u8; 50]);
            }
        });
    }
}
