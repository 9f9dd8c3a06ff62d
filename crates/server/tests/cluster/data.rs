//! Contents beyond reads and writes: appends, holes and room, the look for data, copies, and truncates against all of
//! them.

use crate::support::*;
use reactor::Call;
use std::cell::RefCell;
use std::io::IoSlice;
use std::rc::Rc;
use wire::layout::ChunkRange;
use wire::messages::*;
use wire::{Attributes, Decode, FileId, Layout, Operation, Status};

const ROOT: FileId = FileId::ROOT;
const CHUNK: u64 = 4096;

pub async fn append(caller: &Caller, file: FileId, bytes: &[u8]) -> Answer<u64> {
    let slices = [IoSlice::new(bytes)];
    let call = Call {
        body: &slices,
        ..Call::new(Operation::Append, &AppendRequest { file, sum: Some(crc32c::crc32c(bytes)) })
    };
    let reply = caller.send(caller.home(file), call).await?;
    Ok(ReserveAppendReply::from_bytes(&reply.params).expect("the reply is well-formed").offset)
}

/// All bytes of a file as the servers hold them, up to `size`.
async fn contents(caller: &Caller, file: FileId, layout: Layout, size: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while (bytes.len() as u64) < size {
        let start = bytes.len() as u64;
        let step = (CHUNK - start % CHUNK).min(size - start);
        let (_, mut piece) = caller.read(file, layout, start, step).await.expect("read");
        piece.resize(step as usize, 0);
        bytes.extend(piece);
    }
    bytes
}

/// Asks all servers for their part, and the home for the growth.
pub async fn allocate(caller: &Caller, at: &Attributes, mode: u8, grow: bool, range: (u64, u64)) -> Answer<()> {
    let (offset, size) = range;
    let mut request = AllocateRequest { file: at.id, layout: at.layout, offset, size, mode, grow: false };
    for server in 0..caller.cluster.server_count() {
        caller.call(server, Operation::Allocate, &request).await?;
    }
    if grow {
        (request.mode, request.grow) = (allocate_mode::GROW, true);
        caller.call(caller.home(at.id), Operation::Allocate, &request).await?;
    }
    Ok(())
}

/// Goal: appends by 16 callers on 8 servers leave no gap and no overlap, and each is where its caller was told.
/// Method: sizes from a byte to 16 chunks; at the end the file is put together from what the callers were told.
#[test]
fn appends_by_sixteen() {
    for seed in 0..3 {
        let test = TestCluster::new(seed, 8);
        let caller = test.caller(0, 1);
        let made = test.run(0, async move { caller.create(ROOT, "log").await.expect("created") });
        let told = Rc::new(RefCell::new(Vec::new()));
        let workers: Vec<_> = (0..16u64)
            .map(|number| {
                let caller = test.caller(number as usize % 3, 10 + number);
                let told = told.clone();
                let sizes: Vec<usize> = (0..8).map(|_| draw_size(&test)).collect();
                test.spawn(number as usize % 3, async move {
                    for (round, size) in sizes.into_iter().enumerate() {
                        let value = (number * 8 + round as u64 + 1) as u8;
                        let offset = append(&caller, made.id, &vec![value; size]).await.expect("appended");
                        told.borrow_mut().push((offset, size, value));
                    }
                })
            })
            .collect();
        workers.iter().for_each(|worker| test.wait(worker));
        let mut told = told.take();
        told.sort_unstable();
        let expected: Vec<u8> = told.iter().flat_map(|(_, size, value)| vec![*value; *size]).collect();
        let mut end = 0;
        for (offset, size, _) in told {
            assert_eq!(offset, end, "seed {seed}: a gap or an overlap");
            end += size as u64;
        }
        let caller = test.caller(1, 2);
        test.run(1, async move {
            assert_eq!(caller.stat(made.id).await.expect("known").size, end);
            assert!(contents(&caller, made.id, made.layout, end).await == expected);
            caller.unlink(ROOT, "log").await.expect("unlinked");
        });
        let audits = test.settle();
        assert_eq!(audits.iter().map(|audit| audit.chunks + audit.files).sum::<u64>(), 0, "seed {seed}");
    }
}

fn draw_size(test: &TestCluster) -> usize {
    let most = if test.world.random().is_multiple_of(3) { 65_536 } else { 3000 };
    (test.world.random() % most + 1) as usize
}

/// Goal: an append that a crash interrupts anywhere is there as a whole or not at all, once, and leaves nothing behind.
/// Method: bytes for all four servers. For each server and n, its n-th write is torn and its last; it is started again,
/// and the caller, whose channel resends, gets its answer. A reader never sees a part.
#[test]
fn appends_survive_a_crash_at_each_write() {
    for victim in 0..4 {
        let crashes = (1..60).take_while(|crash_at| crash_during_append(victim, *crash_at)).count();
        assert!(crashes >= 4, "victim {victim}: struck {crashes} times");
    }
}

/// False when the victim did not write that often.
fn crash_during_append(victim: usize, crash_at: u64) -> bool {
    let test = TestCluster::new(crash_at, 4);
    let setup = test.caller(0, 1);
    let made = test.run(0, async move {
        let made = setup.create(ROOT, "log").await.expect("created");
        append(&setup, made.id, &[1; 100]).await.expect("appended");
        made
    });
    test.settle();
    let node = test.servers[victim];
    test.world.crash_after_writes(node, crash_at, true);
    let caller = test.caller(1, 2);
    let asking = caller.clone();
    let worker = test.spawn(1, async move { append(&asking, made.id, &[2; 16_384]).await });
    let ended = || !test.world.is_running(node) || worker.borrow().is_some();
    assert!(test.world.run_until(ended, LIMIT));
    test.world.run_for(SECOND);
    let struck = !test.world.is_running(node);
    if struck {
        test.world.restart(node);
        test.start(victim as u32);
    }
    let outcome = test.wait(&worker);
    test.world.crash_after_writes(node, u64::MAX, false);
    test.settle();
    let reader = caller.clone();
    let (size, bytes) = test.run(1, async move {
        let size = reader.stat(made.id).await.expect("known").size;
        (size, contents(&reader, made.id, made.layout, 6 * CHUNK).await)
    });
    let mut expected = vec![0; 6 * CHUNK as usize];
    expected[..100].fill(1);
    match outcome {
        Ok(offset) => assert_eq!((offset, size), (100, 16_484), "victim {victim}, write {crash_at}"),
        Err(failure) => assert!(
            matches!(failure.status, Status::Unreachable | Status::TimedOut | Status::Io),
            "victim {victim}, write {crash_at}: {failure}"
        ),
    }
    if size > 100 {
        assert_eq!(size, 16_484, "victim {victim}, write {crash_at}");
        expected[100..16_484].fill(2);
    }
    assert!(bytes == expected, "victim {victim}, write {crash_at}: a part of the append");
    test.run(1, async move { caller.unlink(ROOT, "log").await.expect("unlinked") });
    let audits = test.settle();
    assert_eq!(audits.iter().map(|audit| audit.chunks + audit.files).sum::<u64>(), 0);
    struck
}

/// Goal: an append whose body goes bad on its server before all others have it is made nevertheless: nobody waits for
/// ever, and who reads it hears of the damage where the bytes are not what was appended.
/// Method: bytes for all three servers. Another one dies with its n-th write of the append; where that is decided by
/// then, its home is killed, all that this has stored of bytes goes bad, and both are started again.
#[test]
fn damaged_appends_end() {
    let damaged = (1..40).map_while(damage_append).filter(|is_decided| *is_decided).count();
    assert!(damaged >= 1, "an append was decided and not everywhere");
}

/// Whether the append was decided when its other server died; nothing when that one did not write so often.
fn damage_append(crash_at: u64) -> Option<bool> {
    let test = TestCluster::new(crash_at, 3);
    let caller = test.caller(0, 1);
    let asking = caller.clone();
    let made = test.run(0, async move { asking.create(ROOT, "log").await.expect("created") });
    let home = caller.home(made.id);
    let victim = (home + 1) % 3;
    test.settle();
    let (home_node, victim_node) = (test.servers[home as usize], test.servers[victim as usize]);
    test.world.crash_after_writes(victim_node, crash_at, false);
    let asking = caller.clone();
    let worker = test.spawn(0, async move { append(&asking, made.id, &[2; 16_384]).await });
    let ended = || !test.world.is_running(victim_node) || worker.borrow().is_some();
    assert!(test.world.run_until(ended, LIMIT));
    if test.world.is_running(victim_node) {
        return None;
    }
    test.world.crash_after_writes(victim_node, u64::MAX, false);
    test.world.run_for(SECOND / 10);
    let is_decided = test.server(home).audit().intents == 1;
    if is_decided {
        test.kill(home);
        (0..1 << 20).step_by(512).for_each(|at| test.world.corrupt(home_node, "store", "data", at, 0x10));
        test.world.restart(home_node);
        test.start(home);
    }
    test.kill(victim);
    test.world.restart(victim_node);
    test.start(victim);
    let outcome = test.wait(&worker);
    let asking = caller.clone();
    test.run(0, async move {
        if is_decided {
            assert_eq!(outcome.as_ref().ok(), Some(&0), "it was decided: {outcome:?}");
            assert_eq!(asking.stat(made.id).await.expect("nobody waits").size, 16_384);
            let mut told = 0;
            for start in (0..16_384).step_by(CHUNK as usize) {
                match asking.read(made.id, made.layout, start, CHUNK).await {
                    Ok((_, bytes)) => assert!(bytes == [2; CHUNK as usize], "bytes that nobody has appended"),
                    Err(failure) => {
                        assert_eq!(failure.status, Status::Corrupt);
                        told += 1;
                    }
                }
            }
            assert!(told > 0, "the damage is told");
            assert_eq!(append(&asking, made.id, &[3; 5_000]).await.expect("the turn is free"), 16_384);
            for start in (0..16_384).step_by(CHUNK as usize) {
                asking.write(made.id, made.layout, start, &[4; CHUNK as usize]).await.expect("overwritten");
            }
            assert!(contents(&asking, made.id, made.layout, 16_384).await == [4; 16_384]);
        }
        asking.unlink(ROOT, "log").await.expect("unlinked");
    });
    let audits = test.settle();
    assert_eq!(audits.iter().map(|audit| audit.chunks + audit.files).sum::<u64>(), 0);
    Some(is_decided)
}

/// Goal: an append for which a server has no room changes nothing.
/// Method: another file fills server 1; the append needs all servers.
#[test]
fn appends_need_room_everywhere() {
    let test = TestCluster::new(3, 3);
    let caller = test.caller(0, 1);
    test.run(0, async move {
        let name = name_at(&caller.cluster, ROOT, 0);
        let made = caller.create(ROOT, &name).await.expect("created");
        append(&caller, made.id, &[1; 100]).await.expect("appended");
        let filler = caller.create(ROOT, &name_at(&caller.cluster, ROOT, 2)).await.expect("created");
        let mut chunk = 0;
        loop {
            let server = caller.cluster.chunk_server(filler.id, &filler.layout, chunk);
            if server == 1 && caller.write(filler.id, filler.layout, chunk * CHUNK, &[9; 4096]).await.is_err() {
                break;
            }
            chunk += 1;
        }
        assert_eq!(status(&append(&caller, made.id, &[2; 3 * 4096]).await), Status::NoSpace);
        assert_eq!(caller.stat(made.id).await.expect("known").size, 100);
        assert_eq!(append(&caller, made.id, &[3; 100]).await.expect("there is room at the home"), 100);
        let mut expected = vec![1; 100];
        expected.extend([3; 100]);
        assert_eq!(contents(&caller, made.id, made.layout, 200).await, expected);
    });
    test.settle();
}

/// Goal: an append and a truncate take turns: what is left is one of the two orders.
/// Method: both at once, over many seeds; the append needs all servers.
#[test]
fn truncate_against_append() {
    let mut sizes = std::collections::BTreeSet::new();
    for seed in 0..60 {
        let test = TestCluster::new(seed, 3);
        let setup = test.caller(0, 1);
        let made = test.run(0, async move {
            let made = setup.create(ROOT, "log").await.expect("created");
            append(&setup, made.id, &[1; 5000]).await.expect("appended");
            made
        });
        test.world.set_latency(None, 1_000, 300_000);
        let [appending, cutting] = [test.caller(1, 2), test.caller(2, 3)];
        let appended = test.spawn(1, async move { append(&appending, made.id, &[2; 9000]).await.expect("appended") });
        let cut = test.spawn(2, async move { caller_cut(&cutting, made.id).await });
        let offset = test.wait(&appended);
        test.wait(&cut);
        let caller = test.caller(0, 4);
        let (size, bytes) = test.run(0, async move {
            let size = caller.stat(made.id).await.expect("known").size;
            (size, contents(&caller, made.id, made.layout, 4 * CHUNK).await)
        });
        let mut expected = vec![0; 4 * CHUNK as usize];
        match (offset, size) {
            (5000, 0) => {}
            (0, 9000) => expected[..9000].fill(2),
            other => panic!("seed {seed}: appended at and left {other:?}"),
        }
        assert!(bytes == expected, "seed {seed}");
        sizes.insert(size);
        test.settle();
    }
    assert_eq!(sizes.len(), 2, "only one order came up");
}

async fn caller_cut(caller: &Caller, file: FileId) {
    assert_eq!(caller.truncate(file, 0).await.expect("cut").size, 0);
}

/// Goal: a close that comes late does not bring back the size from before a truncate.
/// Method: write on all servers, then truncate to 0 and the writer's close at once, over many seeds.
#[test]
fn truncate_against_a_late_close() {
    for seed in 0..60 {
        let test = TestCluster::new(seed, 3);
        let setup = test.caller(0, 1);
        let made = test.run(0, async move {
            let made = setup.create(ROOT, "f").await.expect("created");
            for chunk in 0..6 {
                setup.write(made.id, made.layout, chunk * CHUNK, &[1; 4096]).await.expect("written");
            }
            made
        });
        test.world.set_latency(None, 1_000, 300_000);
        let [closing, cutting] = [test.caller(1, 2), test.caller(2, 3)];
        let closed = test.spawn(1, async move {
            closing.call(closing.home(made.id), Operation::Close, &fold(made.id)).await.expect("closed");
        });
        let cut = test.spawn(2, async move { caller_cut(&cutting, made.id).await });
        test.wait(&closed);
        test.wait(&cut);
        test.settle();
        let caller = test.caller(0, 4);
        test.run(0, async move {
            assert_eq!(caller.stat(made.id).await.expect("known").size, 0, "seed {seed}");
            assert!(contents(&caller, made.id, made.layout, 6 * CHUNK).await.iter().all(|byte| *byte == 0));
        });
    }
}

async fn seek(caller: &Caller, at: &Attributes, offset: u64, hole: bool) -> Option<u64> {
    let request = SeekRequest { file: at.id, layout: at.layout, offset, hole };
    let mut first = None;
    for server in 0..caller.cluster.server_count() {
        let reply = caller.call(server, Operation::Seek, &request).await.expect("looked");
        let reply = SeekReply::from_bytes(&reply.params).expect("the reply is well-formed");
        assert!(reply.exact);
        first = [first, reply.found].into_iter().flatten().min();
    }
    first
}

/// Goal: data and holes are found across the chunks of many servers.
#[test]
fn data_and_holes_are_found() {
    let test = TestCluster::new(1, 3);
    let caller = test.caller(0, 1);
    test.run(0, async move {
        let made = caller.create(ROOT, "f").await.expect("created");
        assert_eq!(seek(&caller, &made, 0, false).await, None);
        for chunk in [0, 1, 2, 3, 7] {
            caller.write(made.id, made.layout, chunk * CHUNK, &[1; 4096]).await.expect("written");
        }
        caller.write(made.id, made.layout, 8 * CHUNK + 100, &[1; 50]).await.expect("written");
        assert_eq!(seek(&caller, &made, 5, false).await, Some(5));
        assert_eq!(seek(&caller, &made, 5, true).await, Some(4 * CHUNK));
        assert_eq!(seek(&caller, &made, 4 * CHUNK + 9, false).await, Some(7 * CHUNK));
        assert_eq!(seek(&caller, &made, 7 * CHUNK, true).await, Some(8 * CHUNK));
        assert_eq!(seek(&caller, &made, 8 * CHUNK, false).await, Some(8 * CHUNK + 100));
        assert_eq!(seek(&caller, &made, 8 * CHUNK + 150, false).await, None);
    });
}

/// Goal: holes, zeros and room do to the contents, the size and the space what they should, on all servers.
/// Method: a file on three servers; each mode over parts of chunks and whole ones, within the file and beyond its end.
#[test]
fn holes_zeros_and_room() {
    let test = TestCluster::new(2, 3);
    let caller = test.caller(0, 1);
    let made = test.run(0, async move {
        let made = caller.create(ROOT, "f").await.expect("created");
        let mut expected = vec![7; 9 * CHUNK as usize];
        for chunk in 0..9 {
            caller.write(made.id, made.layout, chunk * CHUNK, &[7; 4096]).await.expect("written");
        }
        allocate(&caller, &made, allocate_mode::PUNCH, false, (CHUNK + 100, 5 * CHUNK)).await.expect("punched");
        expected[CHUNK as usize + 100..6 * CHUNK as usize + 100].fill(0);
        assert!(contents(&caller, made.id, made.layout, 9 * CHUNK).await == expected);
        assert_eq!(seek(&caller, &made, 0, true).await, Some(CHUNK + 100));
        allocate(&caller, &made, allocate_mode::ZERO, true, (8 * CHUNK + 1, 2 * CHUNK)).await.expect("zeroed");
        assert_eq!(caller.stat(made.id).await.expect("known").size, 10 * CHUNK + 1);
        expected[8 * CHUNK as usize + 1..].fill(0);
        assert!(contents(&caller, made.id, made.layout, 9 * CHUNK).await == expected);
        // The last bytes go, on a server that is not the home, and the size stays.
        caller.write(made.id, made.layout, 11 * CHUNK, &[7; 4096]).await.expect("written");
        allocate(&caller, &made, allocate_mode::PUNCH, false, (7 * CHUNK, 1 << 40)).await.expect("punched");
        expected[7 * CHUNK as usize..].fill(0);
        assert_eq!(caller.stat(made.id).await.expect("known").size, 12 * CHUNK);
        assert!(contents(&caller, made.id, made.layout, 9 * CHUNK).await == expected);
        allocate(&caller, &made, allocate_mode::RESERVE, false, (20 * CHUNK, 5 * CHUNK)).await.expect("reserved");
        assert_eq!(caller.stat(made.id).await.expect("known").size, 12 * CHUNK);
        assert_eq!(seek(&caller, &made, 7 * CHUNK, false).await, None);
        let many = AllocateRequest {
            file: made.id,
            layout: made.layout,
            offset: 0,
            size: 1 << 30,
            mode: allocate_mode::RESERVE,
            grow: false,
        };
        assert_eq!(status(&caller.call(0, Operation::Allocate, &many).await), Status::Invalid);
        made
    });
    for server in 0..3 {
        test.restart(server);
    }
    let caller = test.caller(1, 2);
    test.run(1, async move {
        assert_eq!(caller.stat(made.id).await.expect("known").size, 12 * CHUNK);
        caller.unlink(ROOT, "f").await.expect("unlinked");
    });
    let audits = test.settle();
    assert_eq!(audits.iter().map(|audit| audit.chunks + audit.files + audit.bytes_used).sum::<u64>(), 0);
}

/// Goal: a hole that was acknowledged is not made again over what was written since, whatever is sent again.
/// Method: the server dies after the n-th write of a punch; the caller's channel resends; a write follows each answer.
#[test]
fn holes_are_made_once() {
    for crash_at in 1..12 {
        let test = TestCluster::new(crash_at, 2);
        let setup = test.caller(0, 1);
        let made = test.run(0, async move {
            let made = setup.create(ROOT, &name_at(&setup.cluster, ROOT, 0)).await.expect("created");
            setup.write(made.id, made.layout, CHUNK, &[1; 4096]).await.expect("written");
            made
        });
        let node = test.servers[1];
        test.world.crash_after_writes(node, crash_at, true);
        let caller = test.caller(1, 2);
        let worker = test.spawn(1, async move {
            allocate(&caller, &made, allocate_mode::PUNCH, false, (CHUNK, 2000)).await.expect("punched");
            caller.write(made.id, made.layout, CHUNK, &[2; 1000]).await.expect("written");
            contents(&caller, made.id, made.layout, 2 * CHUNK).await
        });
        let ended = || !test.world.is_running(node) || worker.borrow().is_some();
        assert!(test.world.run_until(ended, LIMIT));
        if !test.world.is_running(node) {
            test.world.restart(node);
            test.start(1);
        }
        let bytes = test.wait(&worker);
        let mut expected = vec![0; 2 * CHUNK as usize];
        expected[4096..5096].fill(2);
        expected[6096..].fill(1);
        assert!(bytes == expected, "crash at write {crash_at}");
    }
}

/// Goal: bytes move from chunk to chunk, within a server and between two, with sizes kept right.
#[test]
fn ranges_are_copied() {
    let test = TestCluster::new(4, 3);
    let caller = test.caller(0, 1);
    test.run(0, async move {
        let source = caller.create(ROOT, "source").await.expect("created");
        let target = caller.create(ROOT, "target").await.expect("created");
        for chunk in 0..6u64 {
            caller.write(source.id, source.layout, chunk * CHUNK, &[chunk as u8 + 1; 4096]).await.expect("written");
        }
        let mut expected = vec![0; 6 * CHUNK as usize];
        for chunk in 0..6u64 {
            let piece = |index, chunk_offset| ChunkRange { chunk_index: index, chunk_offset, size: 1000 };
            let request = CopyRangeRequest {
                source: source.id,
                source_layout: source.layout,
                from: piece(chunk, 96),
                target: target.id,
                target_layout: target.layout,
                to: piece(5 - chunk, 500),
            };
            let server = caller.cluster.chunk_server(target.id, &target.layout, 5 - chunk);
            caller.call(server, Operation::CopyRange, &request).await.expect("copied");
            let start = ((5 - chunk) * CHUNK + 500) as usize;
            expected[start..start + 1000].fill(chunk as u8 + 1);
            let other = (server + 1) % 3;
            assert_eq!(status(&caller.call(other, Operation::CopyRange, &request).await), Status::WrongServer);
        }
        assert!(contents(&caller, target.id, target.layout, 6 * CHUNK).await == expected);
        assert_eq!(caller.stat(target.id).await.expect("known").size, 5 * CHUNK + 1500);
    });
    test.settle();
}
