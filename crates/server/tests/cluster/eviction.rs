//! Clean chunks that go when there is no room, or when somebody says so, and come again (docs/cache.md).

use crate::backing::{contents, find, flush, pattern, populate, write};
use crate::data::{allocate, append};
use crate::support::*;
use reactor::Reactor;
use reactor::sim::{BackingCosts, World};
use server::{FlushPolicy, Flushing};
use wire::layout::ChunkRange;
use wire::messages::{BackingSpace, CarryTime, CopyRangeRequest, Empty, FileSystemReply, allocate_mode};
use wire::{Decode, FileId, Operation, Status};

const ROOT: FileId = FileId::ROOT;
const CHUNK: usize = 4096;
/// As errors of the site have it.
const EIO: i32 = 5;
/// Nearly as much as the stores of two servers hold.
const FULL_SIZE: usize = 31 << 20;

fn number(test: &TestCluster, name: &str) -> u64 {
    let of = |index| test.server(index).backing_numbers().into_iter().find(|(known, _)| *known == name);
    test.server_indexes().map(|index| of(index).expect("it is counted").1).sum()
}

/// Has all servers give up what they can.
fn evict_all(test: &TestCluster) {
    for index in test.server_indexes() {
        while test.server(index).evict_some() {}
    }
}

fn read_back(test: &TestCluster, caller: &Caller, path: &'static str, expected: &[u8]) {
    let (own, expected) = (caller.clone(), expected.to_vec());
    test.run(0, async move {
        let file = find(&own, path).await.expect("there");
        assert!(contents(&own, &file).await.expect("read") == expected, "{path}");
    });
}

/// Reads the files that `clean_chunks_make_room` has at the site.
async fn read_all(caller: &Caller, expected: &[Vec<u8>]) {
    for (number, bytes) in expected.iter().enumerate() {
        let file = find(caller, &format!("f{number}")).await.expect("there");
        assert!(contents(caller, &file).await.expect("read") == *bytes, "f{number}");
    }
}

/// Goal: what is clean goes when the store is full and comes again when it is read; what is dirty stays, and writers
/// find room. Method: files larger than the store, read twice, and written to in between; another one is made too.
#[test]
fn clean_chunks_make_room() {
    let (count, size) = (20, 1 << 20);
    let fill = |world: &World| {
        (0..count).for_each(|number| world.outsider().write(&format!("f{number}"), 0, &pattern(number, size)));
    };
    let (test, ()) = TestCluster::over_a_site(3, 1, fill);
    let caller = test.caller(0, 1);
    let before: Vec<Vec<u8>> = (0..count).map(|number| pattern(number, size)).collect();
    let mut expected = before.clone();
    let changed = [0, 5, 19];
    for number in changed {
        expected[number][100..106].copy_from_slice(b"change");
    }
    let (own, known) = (caller.clone(), expected.clone());
    test.run(0, async move {
        read_all(&own, &before).await;
        for number in changed {
            let file = find(&own, &format!("f{number}")).await.expect("there");
            write(&own, &file, 100, b"change").await;
        }
        let made = own.create(ROOT, "made").await.expect("made");
        write(&own, &made, 0, &pattern(2, 6 << 20)).await;
        read_all(&own, &known).await;
        let made = find(&own, "made").await.expect("there");
        assert!(contents(&own, &made).await.expect("read") == pattern(2, 6 << 20));
    });
    assert!(number(&test, "evicted_bytes") > (12 << 20), "{}", number(&test, "evicted_bytes"));
    test.settle();
    test.restart(0);
    let own = test.caller(1, 2);
    test.run(1, async move { read_all(&own, &expected).await });
    test.settle();
}

/// Goal: what is read again and again stays while more than the store holds is read once, also from the moment on when
/// chunks begin to go. Method: it is fetched first, so it would be the first to go.
#[test]
fn what_is_read_again_stays() {
    let (count, size) = (24, 1 << 20);
    let fill = |world: &World| {
        world.outsider().write("hot", 0, &pattern(9, CHUNK));
        (0..count).for_each(|number| world.outsider().write(&format!("f{number}"), 0, &pattern(number, size)));
    };
    let (test, ()) = TestCluster::over_a_site(3, 1, fill);
    let caller = test.caller(0, 1);
    for number in 0..count {
        read_back(&test, &caller, "hot", &pattern(9, CHUNK));
        let own = caller.clone();
        test.run(0, async move {
            let file = find(&own, &format!("f{number}")).await.expect("there");
            assert!(contents(&own, &file).await.expect("read") == pattern(number, size));
        });
        // Uses within two seconds are one.
        test.world.run_for(3 * SECOND);
    }
    read_back(&test, &caller, "hot", &pattern(9, CHUNK));
    assert!(number(&test, "evicted_bytes") > (8 << 20), "{}", number(&test, "evicted_bytes"));
    let chunks = count * (size / CHUNK) as u64 + 1;
    assert_eq!(number(&test, "fetched_chunks"), chunks, "each chunk comes once");
    test.settle();
}

/// Goal: a server that is killed at any step while chunks go and come again shows nothing that is not so.
#[test]
fn killed_while_chunks_go() {
    for step in 1..30 {
        let (test, files) = TestCluster::over_a_site(step, 2, populate);
        let victim = (step % 2) as u32;
        let caller = test.caller(0, 1);
        let mut expected = files.clone();
        expected.get_mut("d/large").expect("a file")[10_000..10_005].copy_from_slice(b"write");
        let made = pattern(5, 30_000);
        expected.insert("made".to_owned(), made.clone());
        let own = caller.clone();
        test.run(0, async move {
            let file = own.create(ROOT, "made").await.expect("made");
            write(&own, &file, 0, &made).await;
            assert_eq!(flush(&own).await.failed, 0);
            let large = find(&own, "d/large").await.expect("there");
            write(&own, &large, 10_000, b"write").await;
        });
        test.settle();
        test.world.crash_after_writes(test.servers[victim as usize], step, false);
        let asked = expected.clone();
        let own = caller.clone();
        let walk = test.spawn(0, async move {
            for _ in 0..3 {
                for (path, bytes) in &asked {
                    let Ok(file) = find(&own, path).await else { continue };
                    if let Ok(read) = contents(&own, &file).await {
                        assert!(read == *bytes, "{path}, step {step}");
                    }
                }
            }
        });
        let is_over = || {
            for server in test.server_indexes() {
                if test.world.is_running(test.servers[server as usize]) {
                    test.server(server).evict_some();
                }
            }
            !test.world.is_running(test.servers[victim as usize]) || walk.borrow().is_some()
        };
        assert!(test.world.run_until(is_over, LIMIT), "neither dead nor done");
        test.revive(victim);
        test.wait(&walk);
        let own = test.caller(1, 2);
        test.run(1, async move {
            for (path, bytes) in &expected {
                let file = find(&own, path).await.expect("there");
                assert!(contents(&own, &file).await.expect("read") == *bytes, "{path}, step {step}");
            }
        });
        test.settle();
    }
}

/// Goal: what was made here and carried goes like what was fetched, over any number of servers, and whatever happens to
/// the file then: parts of it written and carried again, cut within a chunk, extended, and all servers started again.
/// The same for a file of the tree that has grown.
#[test]
fn what_was_carried_goes_and_comes() {
    for seed in 0..12 {
        let fill = |world: &World| world.outsider().write("grown", 0, &pattern(7, 9_000));
        let (test, ()) = TestCluster::over_a_site(seed, 1 + seed as u32 % 4, fill);
        let (caller, site) = (test.caller(0, 1), test.world.outsider());
        let paths = ["made", "grown"];
        let mut expected = [pattern(3, 61_000), pattern(7, 9_000)];
        expected[1].resize(14_000, 0);
        expected[1].extend(pattern(4, 50_000));
        let own = caller.clone();
        let bytes = expected.clone();
        test.run(0, async move {
            let made = own.create(ROOT, "made").await.expect("made");
            write(&own, &made, 0, &bytes[0]).await;
            let grown = find(&own, "grown").await.expect("there");
            write(&own, &grown, 14_000, &bytes[1][14_000..]).await;
            assert_eq!(flush(&own).await.failed, 0);
        });
        for round in 0..4u64 {
            evict_all(&test);
            assert!(number(&test, "evicted_bytes") > 0, "seed {seed}");
            if round == 1 {
                // The last flush is not known by its journal entries alone: what was carried goes after a start, too.
                test.settle();
                test.server_indexes().for_each(|index| test.restart(index));
                evict_all(&test);
                read_back(&test, &caller, "made", &expected[0]);
            }
            for (path, bytes) in paths.iter().zip(&expected) {
                assert!(site.read(path).as_ref() == Some(bytes), "seed {seed}, round {round}: {path} behind");
                if round % 2 == 0 {
                    read_back(&test, &caller, path, bytes);
                }
            }
            evict_all(&test);
            let cut = [40_000, 13_000, 20_500, 8_192][(round % 4) as usize];
            for bytes in &mut expected {
                let at = 5_000 + 300 * round as usize;
                bytes[at..at + 7].copy_from_slice(b"written");
                bytes.truncate(cut);
                bytes.resize(cut + 30_000, 0);
                let end = bytes.len();
                bytes[end - 5_000..].copy_from_slice(&pattern(round, 5_000));
            }
            let (own, bytes) = (caller.clone(), expected.clone());
            test.run(0, async move {
                for (path, bytes) in paths.iter().zip(&bytes) {
                    let file = find(&own, path).await.expect("there");
                    write(&own, &file, 5_000 + 300 * round, b"written").await;
                    own.truncate(file.id, cut as u64).await.expect("cut");
                    write(&own, &file, bytes.len() as u64 - 5_000, &bytes[bytes.len() - 5_000..]).await;
                    if seed % 2 == 0 {
                        let file = find(&own, path).await.expect("there");
                        assert!(contents(&own, &file).await.expect("read") == *bytes, "{path}");
                    }
                }
                assert_eq!(flush(&own).await.failed, 0, "seed {seed}, round {round}");
            });
        }
        for (path, bytes) in paths.iter().zip(&expected) {
            assert!(site.read(path).as_ref() == Some(bytes), "seed {seed}: {path} behind");
            read_back(&test, &caller, path, bytes);
        }
        test.settle();
    }
}

/// Goal: a hole beside the bytes of a chunk that is behind alone does not make the chunk count as here, changed and
/// empty, whenever it is made. Method: at each of many moments of a flush of other chunks of the file.
#[test]
fn holes_beside_what_went() {
    for moment in 0..60 {
        let (test, ()) = TestCluster::over_a_site(moment, 1, |_| ());
        let caller = test.caller(0, 1);
        let mut expected = pattern(3, 2 * CHUNK + 100);
        let (own, bytes) = (caller.clone(), expected.clone());
        test.run(0, async move {
            let made = own.create(ROOT, "made").await.expect("made");
            write(&own, &made, 0, &bytes).await;
            assert_eq!(flush(&own).await.failed, 0);
        });
        evict_all(&test);
        let (own, bytes) = (caller.clone(), pattern(5, CHUNK));
        expected[..CHUNK].copy_from_slice(&bytes);
        test.run(0, async move {
            let made = find(&own, "made").await.expect("there");
            write(&own, &made, 0, &bytes).await;
        });
        let own = caller.clone();
        let flushing = test.spawn(0, async move { assert_eq!(flush(&own).await.failed, 0) });
        test.world.run_for(moment * SECOND / 1_000);
        let own = caller.clone();
        test.run(0, async move {
            let made = find(&own, "made").await.expect("there");
            let (from, size) = (2 * CHUNK as u64 + 200, 4 * CHUNK as u64);
            allocate(&own, &made, allocate_mode::PUNCH, false, (from, size)).await.expect("punched");
        });
        test.wait(&flushing);
        read_back(&test, &caller, "made", &expected);
        let own = caller.clone();
        test.run(0, async move { assert_eq!(flush(&own).await.failed, 0) });
        assert!(test.world.outsider().read("made").as_ref() == Some(&expected), "moment {moment}");
        test.settle();
    }
}

/// Goal: a file that was removed while somebody has it open keeps its bytes behind as long as they may be there alone,
/// and nothing of it is left anywhere when he has closed it.
#[test]
fn what_is_open_keeps_its_bytes() {
    for seed in 0..6 {
        let (test, ()) = TestCluster::over_a_site(seed, 1 + seed as u32 % 3, |_| ());
        let (caller, site) = (test.caller(0, 1), test.world.outsider());
        let own = caller.clone();
        let opened = test.run(0, async move {
            let made = own.create(ROOT, "made").await.expect("made");
            write(&own, &made, 0, &pattern(3, 61_000)).await;
            assert_eq!(flush(&own).await.failed, 0);
            own.open_for_good(ROOT, "made", 0).await.expect("opened")
        });
        evict_all(&test);
        let own = caller.clone();
        test.run(0, async move {
            own.unlink(ROOT, "made").await.expect("removed");
            let reply = flush(&own).await;
            assert_eq!(reply.failed, 1, "it waits");
            let file = own.stat(opened.attributes.id).await.expect("it is open");
            assert!(contents(&own, &file).await.expect("read") == pattern(3, 61_000));
            own.close(&opened).await.expect("closed");
            assert_eq!(flush(&own).await.failed, 0);
        });
        assert_eq!(site.list(""), Vec::<Vec<u8>>::new(), "seed {seed}");
        let places: u64 = test.settle().iter().map(|audit| audit.backing[0]).sum();
        assert_eq!(places, 0, "seed {seed}: nobody knows a place");
    }
}

/// Goal: who writes more than there is room for goes on at the pace at which changes go behind, if they go by
/// themselves; if not, the error says what helps.
#[test]
fn a_store_full_of_changes() {
    for policy in [FlushPolicy::Idle, FlushPolicy::Immediate, FlushPolicy::Manual, FlushPolicy::Never] {
        let flushing = Flushing { policy, ..MANUAL };
        let (test, ()) = TestCluster::over_a_flushed_site(5, 1, flushing, |_| ());
        let caller = test.caller(0, 1);
        let (files, size) = (12, 3 << 20);
        let own = caller.clone();
        let failure = test.run(0, async move {
            for number in 0..files {
                let file = own.create(ROOT, &format!("f{number}")).await.expect("made");
                for (index, piece) in pattern(number, size).chunks(CHUNK).enumerate() {
                    let written = own.write(file.id, file.layout, (index * CHUNK) as u64, piece).await;
                    if let Err(failure) = written {
                        return Some(failure);
                    }
                }
            }
            None
        });
        match (policy, failure) {
            (FlushPolicy::Manual, Some(failure)) => {
                assert_eq!(failure.status, Status::NoSpace);
                assert!(failure.to_string().contains("tabane flush"), "{failure}");
            }
            (FlushPolicy::Never, Some(failure)) => assert_eq!(failure.status, Status::NoSpace),
            (_, None) => {
                let own = caller.clone();
                test.run(0, async move {
                    for number in 0..files {
                        let file = find(&own, &format!("f{number}")).await.expect("there");
                        assert!(contents(&own, &file).await.expect("read") == pattern(number, size));
                    }
                    assert_eq!(flush(&own).await.failed, 0);
                });
            }
            (policy, failure) => panic!("{policy:?}: {failure:?}"),
        }
        test.settle();
    }
}

/// Goal: the same for a server that has only chunks of files whose homes are elsewhere: what has to go for a reader or
/// a writer is not among its own changes. Method: a file that fills both stores, not yet closed; another one that is
/// behind alone is read beside it, and a third one written.
#[test]
fn a_store_full_of_changes_of_others() {
    for policy in [FlushPolicy::Idle, FlushPolicy::Immediate, FlushPolicy::OnClose] {
        let flushing = Flushing { policy, ..MANUAL };
        let (test, ()) = TestCluster::over_a_flushed_site(6, 2, flushing, |_| ());
        let own = test.caller(0, 1);
        test.run(0, async move {
            let home = own.home(ROOT);
            let names = (0..).map(|number| format!("f{number}"));
            let mut names = names.filter(|name| own.cluster.dentry_server(ROOT, name.as_bytes()) == home);
            let mut next = || names.next().expect("without end");
            let old = own.create(ROOT, &next()).await.expect("made");
            write(&own, &old, 0, &pattern(1, 4 << 20)).await;
            assert_eq!(flush(&own).await.failed, 0);
            let large = own.create(ROOT, &next()).await.expect("made");
            let bytes = pattern(2, FULL_SIZE);
            for (index, piece) in bytes.chunks(CHUNK).enumerate() {
                own.write(large.id, large.layout, (index * CHUNK) as u64, piece).await.expect("written");
            }
            let old = own.stat(old.id).await.expect("there");
            assert!(contents(&own, &old).await.expect("read") == pattern(1, 4 << 20));
            let third = own.create(ROOT, &next()).await.expect("made");
            write(&own, &third, 0, &pattern(3, 8 << 20)).await;
            let large = own.stat(large.id).await.expect("there");
            assert!(large.size == 0 || contents(&own, &large).await.expect("read") == bytes);
            assert_eq!(flush(&own).await.failed, 0);
        });
        test.settle();
    }
}

/// Goal: logs that grow beyond what all stores hold go on at the pace at which changes go behind, whichever server
/// lacks the room. Method: two logs with appends that lie on one server or on two, and one that is appended to so
/// seldom that its end is behind alone by then.
#[test]
fn logs_larger_than_the_stores() {
    for (servers, policy) in [(1, FlushPolicy::Idle), (2, FlushPolicy::Immediate), (3, FlushPolicy::OnClose)] {
        let flushing = Flushing { policy, ..MANUAL };
        let (test, ()) = TestCluster::over_a_flushed_site(7, servers, flushing, |_| ());
        let own = test.caller(0, 1);
        test.run(0, async move {
            let mut logs = Vec::new();
            for number in 0..3 {
                logs.push((own.create(ROOT, &format!("log{number}")).await.expect("made").id, Vec::new()));
            }
            for turn in 0..800 * u64::from(servers) {
                let sizes = [20_000, 7_000, if turn % 400 == 0 { 1_000 } else { 0 }];
                for ((file, expected), size) in logs.iter_mut().zip(sizes).filter(|(_, size)| *size > 0) {
                    let bytes = pattern(turn, size);
                    let offset = append(&own, *file, &bytes).await;
                    assert_eq!(offset.expect("appended"), expected.len() as u64, "turn {turn}");
                    expected.extend_from_slice(&bytes);
                }
            }
            for (file, expected) in logs {
                let file = own.stat(file).await.expect("there");
                assert!(contents(&own, &file).await.expect("read") == expected);
            }
            assert_eq!(flush(&own).await.failed, 0);
        });
        test.settle();
    }
}

/// Goal: copies wait for their turn as long as those before them wait for room, which they do while changes go behind.
/// Method: three times as many copies as have a turn at a time, stores full of changes, and a slow site.
#[test]
fn copies_behind_those_that_wait_for_room() {
    let flushing = Flushing { policy: FlushPolicy::Immediate, ..MANUAL };
    let (test, ()) = TestCluster::over_a_flushed_site(9, 2, flushing, |_| ());
    test.world.set_backing_costs(BackingCosts { bandwidth: 1 << 20, stripe_size: 1 << 20, stripe_ns: 0 });
    let caller = test.caller(0, 1);
    let source = test.run(0, async move {
        let source = caller.create(ROOT, "source").await.expect("made");
        caller.write(source.id, source.layout, 0, &pattern(1, CHUNK)).await.expect("written");
        let filler = caller.create(ROOT, "filler").await.expect("made");
        for (index, piece) in pattern(2, FULL_SIZE).chunks(CHUNK).enumerate() {
            caller.write(filler.id, filler.layout, (index * CHUNK) as u64, piece).await.expect("written");
        }
        source
    });
    let copies: Vec<_> = (0..96)
        .map(|number| {
            let (node, own) = (number as usize % 3, test.caller(number as usize % 3, 10 + number));
            let from = ChunkRange { chunk_index: 0, chunk_offset: 0, size: CHUNK as u32 };
            test.spawn(node, async move {
                let target = own.create(ROOT, &format!("copy{number}")).await.expect("made");
                for index in 0..20 {
                    let request = CopyRangeRequest {
                        source: source.id,
                        source_layout: source.layout,
                        from,
                        target: target.id,
                        target_layout: target.layout,
                        to: ChunkRange { chunk_index: index, ..from },
                    };
                    let server = own.cluster.chunk_server(target.id, &target.layout, index);
                    own.call(server, Operation::CopyRange, &request).await.expect("copied");
                }
                let target = own.stat(target.id).await.expect("there");
                assert!(contents(&own, &target).await.expect("read") == pattern(1, CHUNK).repeat(20));
            })
        })
        .collect();
    copies.iter().for_each(|copy| test.wait(copy));
    test.settle();
}

/// Goal: who waits for room is told that there is none though a flush writes and writes: each attempt fails at its end.
/// Method: names of the root can't be synced behind, so that no file is ever known to be there.
#[test]
fn what_fails_again_and_again_is_no_progress() {
    let flushing = Flushing { policy: FlushPolicy::Immediate, ..MANUAL };
    let (test, ()) = TestCluster::over_a_flushed_site(8, 2, flushing, |_| ());
    test.world.fail_backing("", Some("sync"), EIO, None);
    let own = test.caller(0, 1);
    let status = test.run(0, async move {
        let file = own.create(ROOT, "large").await.expect("made");
        let piece = pattern(1, CHUNK);
        for index in 0..4 * FULL_SIZE / CHUNK {
            if let Err(failure) = own.write(file.id, file.layout, (index * CHUNK) as u64, &piece).await {
                return failure.status;
            }
        }
        Status::Ok
    });
    assert_eq!(status, Status::NoSpace);
}

/// Goal: an append for whose bytes there is no room is told so, and what it had brought here of its file is not given
/// up for them, to be brought again without end. Method: a log that is behind alone, and a store full of what can't go
/// behind, of which a few chunks are freed: the body finds room, then the log's last chunk, then all that follows.
#[test]
fn an_append_does_not_give_up_what_it_needs() {
    let flushing = Flushing { policy: FlushPolicy::Immediate, ..MANUAL };
    let (test, ()) = TestCluster::over_a_flushed_site(10, 1, flushing, |_| ());
    let caller = test.caller(0, 1);
    let own = caller.clone();
    let (log, filler) = test.run(0, async move {
        let log = own.create(ROOT, "log").await.expect("made");
        append(&own, log.id, &pattern(1, 100)).await.expect("appended");
        assert_eq!(flush(&own).await.failed, 0);
        (log, own.create(ROOT, "filler").await.expect("made"))
    });
    test.world.fail_backing("", Some("sync"), EIO, None);
    let own = caller.clone();
    let count = test.run(0, async move {
        for index in 0..4 * (FULL_SIZE / CHUNK) as u64 {
            let written = own.write(filler.id, filler.layout, index * CHUNK as u64, &pattern(1, CHUNK)).await;
            if let Err(failure) = written {
                assert_eq!(failure.status, Status::NoSpace);
                return index;
            }
        }
        panic!("the store never gets full");
    });
    assert!(number(&test, "evicted_chunks") > 0, "the log is behind alone");
    for freed in 1..40 {
        let own = caller.clone();
        let done = test.run(0, async move {
            own.truncate(filler.id, (count - freed) * CHUNK as u64).await.expect("cut");
            append(&own, log.id, &pattern(2, 4 * CHUNK)).await
        });
        match done {
            Ok(offset) => {
                assert_eq!(offset, 100);
                assert!(freed > 6 && number(&test, "fetched_chunks") > 0, "after {freed}");
                return;
            }
            Err(failure) => assert_eq!(failure.status, Status::NoSpace, "{freed} freed"),
        }
    }
    panic!("an append finds no room in what was freed");
}

/// What all servers say of space: bytes free, bytes clean, and what is said of the file system behind.
async fn space_told(reactor: Reactor, caller: &Caller, server_count: u32) -> (u64, u64, Vec<BackingSpace>) {
    // What was told last is told for a second.
    reactor.sleep(1_100_000_000).await;
    let mut told = (0, 0, Vec::new());
    for server in 0..server_count {
        let reply = caller.call(server, Operation::StatFileSystem, &Empty {}).await.expect("told");
        let reply = FileSystemReply::from_bytes(&reply.params).expect("the reply is well-formed");
        let share = reply.backing.expect("there is a backing tree");
        assert_eq!(share.carries, CarryTime::Asked);
        told.0 += reply.bytes_free;
        told.1 += share.bytes_clean;
        told.2.extend(share.space);
    }
    told
}

/// Goal: servers tell what is clean, which is what free space grows by when all of it goes, and one of them what the
/// file system behind has; one that does not answer keeps nobody waiting for long, and the next one not at all.
#[test]
fn space_of_both_sides() {
    for seed in 0..12 {
        let server_count = 1 + seed as u32 % 3;
        let fill = |world: &World| world.outsider().write("fetched", 0, &pattern(seed, 50_000));
        let (test, ()) = TestCluster::over_a_site(seed, server_count, fill);
        let caller = test.caller(0, 1);
        let (own, reactor) = (caller.clone(), test.reactor_of_caller(0));
        let told = || {
            let (own, reactor) = (caller.clone(), reactor.clone());
            test.run(0, async move { space_told(reactor, &own, server_count).await })
        };
        let (free, clean, space) = told();
        assert_eq!(clean, 0, "nothing is here");
        let [site] = space[..] else { panic!("seed {seed}: one server tells, not {}", space.len()) };
        let used = site.bytes_total - site.bytes_free;
        assert!((50_000..60_000).contains(&used), "seed {seed}: {used} bytes in whole blocks");
        test.run(0, async move {
            let fetched = find(&own, "fetched").await.expect("there");
            contents(&own, &fetched).await.expect("read");
            let made = own.create(ROOT, "made").await.expect("made");
            write(&own, &made, 0, &pattern(9, 30_000)).await;
        });
        let (with_both, fetched, _) = told();
        assert!((50_000..=free - with_both - 30_000).contains(&fetched), "seed {seed}: {fetched} are clean");
        let own = caller.clone();
        test.run(0, async move { assert_eq!(flush(&own).await.failed, 0) });
        let (before, all, _) = told();
        assert_eq!(all, free - before, "seed {seed}: what was carried is clean too");
        let own = caller.clone();
        test.run(0, async move {
            let made = find(&own, "made").await.expect("there");
            write(&own, &made, 0, b"changed").await;
        });
        let (_, some, _) = told();
        assert!((fetched..all).contains(&some), "seed {seed}: {some} of {all} are clean");
        evict_all(&test);
        let (after, left, _) = told();
        assert!(after - before >= some, "seed {seed}: {some} were clean, and {} went", after - before);
        assert_eq!(left, 0, "seed {seed}: all of it went that is known to be clean");
        test.world.hang_backing("", Some("space"));
        let (own, reactor) = (caller.clone(), reactor.clone());
        let waits = test.run(0, async move {
            let mut waits = Vec::new();
            for _ in 0..2 {
                let begun = reactor.now();
                assert_eq!(space_told(reactor.clone(), &own, server_count).await.2, Vec::new());
                waits.push((reactor.now() - begun) / 100_000_000);
            }
            waits
        });
        assert_eq!(waits, [21, 11], "seed {seed}: in tenths of a second, after a sleep of 11");
    }
}
