//! Room that rests: on media that keep what was synced, freed pages are used again only after a sync.

use crate::data::{allocate, append};
use crate::support::*;
use wire::layout::ChunkRange;
use wire::messages::*;
use wire::{Attributes, FileId, Operation, Status};

const ROOT: FileId = FileId::ROOT;
const CHUNK: u64 = 4096;

/// Writes chunks until no server has room for one more.
async fn fill(caller: &Caller, filler: &Attributes, next: &mut u64) {
    let mut is_full = vec![false; caller.cluster.server_count() as usize];
    while is_full.contains(&false) {
        let server = caller.cluster.chunk_server(filler.id, &filler.layout, *next) as usize;
        if !is_full[server] {
            let written = caller.write(filler.id, filler.layout, *next * CHUNK, &[9; CHUNK as usize]).await;
            is_full[server] = written.is_err();
            assert!(matches!(status(&written), Status::Ok | Status::NoSpace));
        }
        *next += 1;
    }
}

/// What takes room, of a file that ends at a multiple of three chunks.
async fn take_room(caller: &Caller, what: usize, at: &Attributes, end: u64) -> Answer<()> {
    match what {
        0 => append(caller, at.id, &[1; 3 * CHUNK as usize]).await.map(drop),
        1 => allocate(caller, at, allocate_mode::RESERVE, true, (end, 3 * CHUNK)).await,
        2 => {
            for chunk in 0..3 {
                let piece = |index| ChunkRange { chunk_index: index, chunk_offset: 0, size: CHUNK as u32 };
                let to = piece(end / CHUNK + chunk);
                let (file, layout) = (at.id, at.layout);
                let request = CopyRangeRequest {
                    source: file,
                    source_layout: layout,
                    from: piece(chunk),
                    target: file,
                    target_layout: layout,
                    to,
                };
                let server = caller.cluster.chunk_server(file, &layout, to.chunk_index);
                caller.call(server, Operation::CopyRange, &request).await?;
            }
            Ok(())
        }
        _ => {
            for chunk in 0..3 {
                caller.write(at.id, at.layout, end + chunk * CHUNK, &[3; CHUNK as usize]).await?;
            }
            Ok(())
        }
    }
}

/// Goal: when the only room left rests until a sync, whatever takes room gets it, on one server and over several:
/// appends, reservations, copies, writes. Method: a file fills all servers; before each attempt a small one is cut, so
/// that its pages rest. Afterwards nothing rests, and all is refused.
#[test]
fn room_that_rests_is_found() {
    for servers in [1, 3] {
        let test = TestCluster::new(5, servers);
        let caller = test.caller(0, 1);
        test.run(0, async move {
            let file = caller.create(ROOT, "file").await.expect("created");
            let filler = caller.create(ROOT, "filler").await.expect("created");
            append(&caller, file.id, &[7; 3 * CHUNK as usize]).await.expect("appended");
            let mut small = Vec::new();
            for what in 0..4 {
                let made = caller.create(ROOT, &format!("small{what}")).await.expect("created");
                for chunk in 0..24 {
                    caller.write(made.id, made.layout, chunk * CHUNK, &[8; CHUNK as usize]).await.expect("written");
                }
                small.push(made.id);
            }
            let mut next = 0;
            for (what, small) in small.into_iter().enumerate() {
                fill(&caller, &filler, &mut next).await;
                caller.truncate(small, 0).await.expect("cut");
                let end = (what as u64 + 1) * 3 * CHUNK;
                let taken = take_room(&caller, what, &file, end).await;
                assert_eq!(status(&taken), Status::Ok, "attempt {what}, {servers} servers: {taken:?}");
                assert_eq!(caller.stat(file.id).await.expect("known").size, end + 3 * CHUNK);
            }
            fill(&caller, &filler, &mut next).await;
            for what in 0..4 {
                let taken = take_room(&caller, what, &file, 15 * CHUNK).await;
                assert_eq!(status(&taken), Status::NoSpace, "attempt {what}, {servers} servers");
            }
        });
        test.settle();
    }
}
