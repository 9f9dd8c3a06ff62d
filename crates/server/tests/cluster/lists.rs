//! Writes of many pieces by one request.

use crate::support::*;
use reactor::Call;
use std::io::IoSlice;
use wire::layout::ChunkRange;
use wire::limits::PIECE_COUNT_MAX;
use wire::messages::*;
use wire::{FileId, Layout, Operation, Status};

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
