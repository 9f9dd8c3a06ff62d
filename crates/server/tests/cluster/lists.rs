//! Writes of many pieces by one request.

use crate::support::*;
use reactor::Call;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::io::IoSlice;
use std::rc::Rc;
use wire::layout::ChunkRange;
use wire::limits::PIECE_COUNT_MAX;
use wire::messages::*;
use wire::{Decode, FileId, Layout, Operation, Status};

const ROOT: FileId = FileId::ROOT;
const CHUNK: u32 = 4096;

/// Writes pieces of chunks of one server, each with its bytes.
async fn write_list(caller: &Caller, file: FileId, layout: Layout, list: &[(ChunkRange, Vec<u8>)]) -> Answer<()> {
    let server = caller.cluster.chunk_server(file, &layout, list[0].0.chunk_index);
    let slices: Vec<IoSlice<'_>> = list.iter().map(|(_, bytes)| IoSlice::new(bytes)).collect();
    let sums = list.iter().map(|(_, bytes)| crc32c::crc32c(bytes)).collect();
    let pieces = Pieces(list.iter().map(|(piece, _)| *piece).collect());
    let mut call = Call::new(Operation::Write, &DataRequest { file, layout, pieces, sums });
    call.body = &slices;
    caller.send(server, call).await.map(drop)
}

/// As many pieces of a chunk as a request names, each `step` bytes behind the one before it.
fn list_of(chunk_index: u64, first: u32, step: u32, size: u32, value: u8) -> Vec<(ChunkRange, Vec<u8>)> {
    let piece = |number| ChunkRange { chunk_index, chunk_offset: first + number * step, size };
    (0..PIECE_COUNT_MAX as u32).map(|number| (piece(number), vec![value + number as u8 % 2; size as usize])).collect()
}

/// Goal: however many records the pieces of writes take, these wait for checkpoints and are not refused for want of
/// room in the journal; nor is what else changes meanwhile.
/// Method: three callers write lists of the largest count of tiny pieces at once, with holes between them and each over
/// a part of the one before it, to servers whose journal holds fewer records than one such list had once; with files
/// made and removed beside them. With and without checksums.
#[test]
fn lists_of_tiny_pieces_wait_for_checkpoints() {
    for seed in 0..4 {
        let test = match seed % 2 {
            0 => TestCluster::new(seed, 2),
            _ => TestCluster::without_checksums(seed, 2),
        };
        let caller = test.caller(0, 1);
        let made = test.run(0, async move { caller.create(ROOT, "file").await.expect("created") });
        let workers: Vec<_> = (0..3u64)
            .map(|number| {
                let caller = test.caller(number as usize, 10 + number);
                test.spawn(number as usize, async move {
                    for round in 0..4 {
                        let chunk = 4 * number + round;
                        let lists = [list_of(chunk, 0, 2, 1, 1), list_of(chunk, 2048, 1, 3, 3)];
                        for (what, list) in lists.iter().enumerate() {
                            let written = write_list(&caller, made.id, made.layout, list).await;
                            assert_eq!(status(&written), Status::Ok, "list {what}, round {round}: {written:?}");
                        }
                        let name = format!("other {number}");
                        caller.create(ROOT, &name).await.expect("created");
                        caller.unlink(ROOT, &name).await.expect("unlinked");
                    }
                })
            })
            .collect();
        workers.iter().for_each(|worker| test.wait(worker));
        let caller = test.caller(0, 2);
        test.run(0, async move {
            for chunk in 0..12 {
                let start = chunk * u64::from(CHUNK);
                let (_, bytes) = caller.read(made.id, made.layout, start, u64::from(CHUNK)).await.expect("read");
                for (offset, byte) in bytes.iter().enumerate().take(2048) {
                    let expected = if offset % 2 == 0 { 1 + (offset / 2 % 2) as u8 } else { 0 };
                    assert_eq!(*byte, expected, "chunk {chunk}, byte {offset}, seed {seed}");
                }
                assert!(bytes[2048..3074].iter().all(|byte| [3, 4].contains(byte)), "chunk {chunk}, seed {seed}");
            }
        });
        test.settle();
    }
}

async fn journal_bytes(caller: &Caller, server: u32) -> u64 {
    let reply = caller.call(server, Operation::StatFileSystem, &Empty {}).await.expect("told");
    FileSystemReply::from_bytes(&reply.params).expect("the reply is well-formed").journal_bytes
}

/// Goal: however many pieces of a chunk a request has, they take one record, of bounded size, in whatever order they
/// come; only pieces that have bytes in common take one each, and the later one wins.
/// Method: what the journal of a server grows by, with lists in order, backwards, over several chunks by turns, and
/// with overlaps.
#[test]
fn pieces_are_one_record() {
    for checksums in [false, true] {
        let test = if checksums { TestCluster::new(3, 1) } else { TestCluster::without_checksums(3, 1) };
        let caller = test.caller(0, 1);
        test.run(0, async move {
            let made = caller.create(ROOT, "file").await.expect("created");
            let in_order = list_of(0, 0, 3, 2, 1)[..500].to_vec();
            let backwards = in_order.iter().rev().cloned().collect();
            let turn = |number: usize, (piece, bytes): &(ChunkRange, Vec<u8>)| {
                (ChunkRange { chunk_index: number as u64 % 3, ..*piece }, bytes.clone())
            };
            let by_turns = in_order.iter().enumerate().map(|(number, piece)| turn(number, piece)).collect();
            for (what, list) in [in_order, backwards, by_turns].iter().enumerate() {
                let before = journal_bytes(&caller, 0).await;
                write_list(&caller, made.id, made.layout, list).await.expect("written");
                let grown = journal_bytes(&caller, 0).await - before;
                assert!(grown < 7 * 1024, "list {what}: {grown} bytes of the journal");
            }
            let overlapping: Vec<_> = list_of(5, 0, 2, 3, 1)[..4]
                .iter()
                .enumerate()
                .map(|(number, (piece, _))| (*piece, vec![number as u8 + 1; 3]))
                .collect();
            write_list(&caller, made.id, made.layout, &overlapping).await.expect("written");
            let (_, bytes) = caller.read(made.id, made.layout, 5 * u64::from(CHUNK), 10).await.expect("read");
            assert_eq!(bytes[..9], [1, 1, 2, 2, 3, 3, 4, 4, 4]);
        });
        test.settle();
    }
}

/// Goal: who reads sees all pieces that a request has of a chunk, or none of them.
/// Method: one caller writes lists with one value each, of pieces with gaps in two chunks; others read the chunks all
/// the while.
#[test]
fn pieces_of_a_chunk_are_seen_together() {
    for seed in 0..2 {
        let test = if seed == 0 { TestCluster::new(seed, 1) } else { TestCluster::without_checksums(seed, 1) };
        let caller = test.caller(0, 1);
        let made = test.run(0, async move { caller.create(ROOT, "file").await.expect("created") });
        let writer = test.caller(0, 2);
        let ended = Rc::new(Cell::new(false));
        let end = ended.clone();
        let writing = test.spawn(0, async move {
            for round in 0..60u8 {
                let list: Vec<_> = (0..2u64)
                    .flat_map(|chunk| list_of(chunk, u32::from(round % 3), 40, 20, 0)[..90].to_vec())
                    .map(|(piece, bytes)| (piece, vec![round + 1; bytes.len()]))
                    .collect();
                write_list(&writer, made.id, made.layout, &list).await.expect("written");
            }
            end.set(true);
        });
        let readers: Vec<_> = (1..3usize)
            .map(|node| {
                let (reader, ended) = (test.caller(node, 2 + node as u64), ended.clone());
                test.spawn(node, async move {
                    let mut seen = BTreeSet::new();
                    while !ended.get() {
                        for chunk in 0..2u64 {
                            let start = chunk * u64::from(CHUNK);
                            let read = reader.read(made.id, made.layout, start, u64::from(CHUNK)).await;
                            let mut bytes = read.expect("read").1;
                            bytes.resize(CHUNK as usize, 0);
                            // Bytes that all lists write.
                            let values: BTreeSet<u8> =
                                (0..90).flat_map(|piece| bytes[piece * 40 + 2..piece * 40 + 20].to_vec()).collect();
                            assert_eq!(values.len(), 1, "parts of several lists are seen: {values:?}");
                            seen.extend(values);
                        }
                    }
                    seen.len()
                })
            })
            .collect();
        test.wait(&writing);
        let seen: usize = readers.iter().map(|reader| test.wait(reader)).sum();
        assert!(seen > 20, "the readers saw {seen} lists");
    }
}

/// Goal: a list that takes several steps is made as a whole, whichever of them a crash interrupts.
/// Method: the server dies with each of its writes in turn, torn; it is started again, and the caller's channel sends
/// its request once more.
#[test]
fn lists_in_steps_survive_a_crash_at_each_write() {
    let crashes = (1..80).take_while(|crash_at| crash_during_list(*crash_at)).count();
    assert!(crashes >= 8, "struck {crashes} times");
}

/// False when the server did not write that often.
fn crash_during_list(crash_at: u64) -> bool {
    let test = TestCluster::new(crash_at, 1);
    let setup = test.caller(0, 1);
    let made = test.run(0, async move { setup.create(ROOT, "file").await.expect("created") });
    test.settle();
    let node = test.servers[0];
    test.world.crash_after_writes(node, crash_at, true);
    let writer = test.caller(1, 2);
    let worker = test.spawn(1, async move {
        let list: Vec<_> = (0..30u32)
            .map(|number| {
                let piece = ChunkRange { chunk_index: u64::from(number % 2), chunk_offset: number / 6 * 8, size: 12 };
                (piece, vec![number as u8 + 1; 12])
            })
            .collect();
        write_list(&writer, made.id, made.layout, &list).await
    });
    let ended = || !test.world.is_running(node) || worker.borrow().is_some();
    assert!(test.world.run_until(ended, LIMIT));
    let struck = !test.world.is_running(node);
    if struck {
        test.forget(0);
        test.world.restart(node);
        test.start(0);
    }
    let outcome = test.wait(&worker);
    test.world.crash_after_writes(node, u64::MAX, false);
    assert_eq!(status(&outcome), Status::Ok, "crash at {crash_at}: {outcome:?}");
    let reader = test.caller(2, 3);
    test.run(2, async move {
        for chunk in 0..2u64 {
            let (_, bytes) = reader.read(made.id, made.layout, chunk * u64::from(CHUNK), 44).await.expect("read");
            // Of six pieces at a place three are of this chunk; the last of them wins, but where the next place begins.
            let expected: Vec<u8> = (0..44).map(|byte: u64| ((byte / 8).min(4) * 6 + 5 + chunk) as u8).collect();
            assert_eq!(bytes, expected, "chunk {chunk}, crash at {crash_at}");
        }
    });
    test.settle();
    struck
}
