use crate::support::*;
use wire::FileId;
use wire::Operation;
use wire::Status;
use wire::messages::{AllocateRequest, SetAttributesRequest, allocate_mode, set_mask};

const ROOT: FileId = FileId::ROOT;
const CHUNK: u64 = 4096;

/// Goal: the size covers everything acknowledged before the stat began and nothing begun after it ended.
/// Method: one caller writes chunk after chunk; two others stat all the time and compare with what was acknowledged and
/// begun; closes fold sizes in between.
#[test]
fn size_is_right_at_every_moment() {
    use std::cell::Cell;
    use std::rc::Rc;
    for seed in 0..20 {
        let test = TestCluster::new(seed, 4);
        let caller = test.caller(0, 1);
        let attributes = test.run(0, async move { caller.create(ROOT, "f").await.expect("created") });
        let (file, layout) = (attributes.id, attributes.layout);
        let (acknowledged, begun) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
        let stop = Rc::new(Cell::new(false));
        let writer = {
            let caller = test.caller(0, 2);
            let (acknowledged, begun, stop) = (acknowledged.clone(), begun.clone(), stop.clone());
            test.spawn(0, async move {
                for chunk in 0..40u64 {
                    begun.set(chunk * CHUNK + 10);
                    caller.write(file, layout, chunk * CHUNK, &[chunk as u8; 10]).await.expect("written");
                    acknowledged.set(chunk * CHUNK + 10);
                    if chunk % 7 == 3 {
                        let home = caller.home(file);
                        caller.call(home, wire::Operation::Close, &fold(file)).await.expect("closed");
                    }
                }
                stop.set(true);
            })
        };
        let readers: Vec<_> = (1..3)
            .map(|node| {
                let caller = test.caller(node, 10 + node as u64);
                let (acknowledged, begun, stop) = (acknowledged.clone(), begun.clone(), stop.clone());
                test.spawn(node, async move {
                    while !stop.get() {
                        let least = acknowledged.get();
                        let size = caller.stat(file).await.expect("known").size;
                        assert!(least <= size && size <= begun.get(), "{least} <= {size} <= {}", begun.get());
                    }
                })
            })
            .collect();
        test.wait(&writer);
        readers.iter().for_each(|reader| test.wait(reader));
        test.settle();
    }
}

/// Goal: after close the home knows the size alone, until somebody writes elsewhere again.
#[test]
fn close_folds_the_size_in() {
    let test = TestCluster::new(5, 3);
    let caller = test.caller(0, 1);
    let file = test.run(0, async move {
        let attributes = caller.create(ROOT, "f").await.expect("created");
        let (file, layout) = (attributes.id, attributes.layout);
        for chunk in 0..9 {
            caller.write(file, layout, chunk * CHUNK, b"x").await.expect("written");
        }
        let (reply, _) = caller.read(file, layout, 0, 1).await.expect("read");
        assert_eq!(reply.size, None);
        caller.call(caller.home(file), wire::Operation::Close, &fold(file)).await.expect("closed");
        file
    });
    let folded = || test.audits().iter().all(|audit| audit.announced == 0);
    assert!(test.world.run_until(folded, LIMIT));
    let caller = test.caller(1, 2);
    test.run(1, async move {
        let attributes = caller.stat(file).await.expect("known");
        assert_eq!(attributes.size, 8 * CHUNK + 1);
        let (reply, bytes) = caller.read(file, attributes.layout, 0, 4).await.expect("read");
        assert_eq!((reply.size, bytes), (Some(8 * CHUNK + 1), b"x\0\0\0".to_vec()));
        assert!(reply.complete, "the home knows that the hole is within the file");
        caller.write(file, attributes.layout, 10 * CHUNK, b"y").await.expect("written");
        assert_eq!(caller.stat(file).await.expect("known").size, 10 * CHUNK + 1);
    });
}

/// Goal: truncate cuts on every server, is final once acknowledged, and later growth reads zeros.
#[test]
fn truncate_reaches_all_chunks() {
    for seed in 0..10 {
        let test = TestCluster::new(seed, 3);
        let caller = test.caller(0, 1);
        test.run(0, async move {
            let attributes = caller.create(ROOT, "f").await.expect("created");
            let (file, layout) = (attributes.id, attributes.layout);
            for chunk in 0..8 {
                caller.write(file, layout, chunk * CHUNK, &[7; 4096]).await.expect("written");
            }
            let cut = caller.truncate(file, 2 * CHUNK + 100).await.expect("cut");
            assert_eq!(cut.size, 2 * CHUNK + 100);
            assert_eq!(caller.stat(file).await.expect("known").size, 2 * CHUNK + 100);
            caller.write(file, layout, 6 * CHUNK, b"new").await.expect("written");
            assert_eq!(caller.stat(file).await.expect("known").size, 6 * CHUNK + 3);
            for chunk in 2..7u64 {
                let (_, bytes) = caller.read(file, layout, chunk * CHUNK, CHUNK).await.expect("read");
                let mut expected = vec![0; CHUNK as usize];
                match chunk {
                    2 => expected[..100].fill(7),
                    6 => expected[..3].copy_from_slice(b"new"),
                    _ => {}
                }
                assert_eq!(bytes, expected, "chunk {chunk}");
            }
            let grown = caller.truncate(file, 100 * CHUNK).await.expect("grown");
            assert_eq!(grown.size, 100 * CHUNK);
            assert_eq!(caller.stat(file).await.expect("known").size, 100 * CHUNK);
        });
        test.settle();
    }
}

/// Goal: an unlinked file leaves no chunk anywhere, also when writes to it are on their way, and none comes back.
/// Method: writers on all servers race with the unlink, over many seeds; the servers' channels are in use before, or
/// connecting them would keep the reap behind all else.
#[test]
fn unlink_leaves_no_chunk() {
    let mut stale = 0;
    for seed in 0..400 {
        let test = TestCluster::new(seed, 4);
        let caller = test.caller(0, 1);
        let attributes = test.run(0, async move {
            let home = caller.cluster.dentry_server(ROOT, b"f");
            let earlier = name_at(&caller.cluster, ROOT, home);
            let made = caller.create(ROOT, &earlier).await.expect("created");
            for chunk in 0..4 {
                caller.write(made.id, made.layout, chunk * CHUNK, b"x").await.expect("written");
            }
            caller.unlink(ROOT, &earlier).await.expect("unlinked");
            caller.create(ROOT, "f").await.expect("created")
        });
        test.settle();
        let (file, layout) = (attributes.id, attributes.layout);
        let writers: Vec<_> = (0..8u64)
            .map(|number| {
                let caller = test.caller(1, 10 + number);
                test.spawn(1, async move {
                    let mut outcomes = Vec::new();
                    for round in 0..4 {
                        let chunk = number + round * 8;
                        outcomes.push(status(&caller.write(file, layout, chunk * CHUNK, &[1; 2000]).await));
                    }
                    outcomes
                })
            })
            .collect();
        let caller = test.caller(2, 2);
        let reactor = test.world.reactor(test.callers[2]);
        // Most often amid the first announcements, and with messages between servers that overtake one another.
        let pause = test.world.random() % if seed % 4 == 0 { 8_000_000 } else { 2_000_000 };
        test.world.set_latency(None, 1_000, 200_000);
        let unlinked = test.spawn(2, async move {
            reactor.sleep(pause).await;
            status(&caller.unlink(ROOT, "f").await)
        });
        assert_eq!(test.wait(&unlinked), Status::Ok);
        for writer in &writers {
            for status in test.wait(writer) {
                assert!(matches!(status, Status::Ok | Status::StaleFile), "seed {seed}: {status:?}");
                stale += u32::from(status == Status::StaleFile);
            }
        }
        let audits = test.settle();
        assert_eq!(audits.iter().map(|audit| audit.chunks + audit.files).sum::<u64>(), 0, "seed {seed}");
    }
    assert!(stale > 10, "no write met the unlink");
}

/// Goal: times that were set by hand stay until somebody writes, also where a server with an earlier write of the file
/// makes room in it; its next write counts again, whatever its clock says. Method: the server of the second chunk
/// writes, reserves and writes, in lives of its own; its clock is a second early or late.
#[test]
fn times_set_by_hand_stay() {
    for (seed, offset) in [(1, -1_000_000_000), (2, 1_000_000_000), (3, 0)] {
        let test = TestCluster::new(seed, 2);
        let home = test.caller(0, 1);
        let made = test.run(0, async move { home.create(ROOT, "f").await.expect("created") });
        let caller = test.caller(0, 2);
        let other = 1 - caller.home(made.id);
        test.world.set_clock(test.servers[other as usize], offset, 0);
        let reactor = test.world.reactor(test.callers[0]);
        let do_all = |ends_life: bool| {
            let (caller, reactor) = (caller.clone(), reactor.clone());
            let set = async move {
                caller.write(made.id, made.layout, CHUNK, &[1; 100]).await.expect("written");
                let mask = set_mask::MTIME;
                let request =
                    SetAttributesRequest { file: made.id, mask, mode: 0, uid: 0, gid: 0, atime: 0, mtime: 1_000 };
                caller.set(request).await.expect("set");
                reactor.sleep(5_000_000).await;
                caller
            };
            let caller = test.run(0, set);
            if ends_life {
                test.restart(other);
            }
            test.run(0, async move {
                let request = AllocateRequest {
                    file: made.id,
                    layout: made.layout,
                    offset: CHUNK + 200,
                    size: 100,
                    mode: allocate_mode::RESERVE,
                    grow: false,
                };
                caller.call(other, Operation::Allocate, &request).await.expect("reserved");
                assert_eq!(caller.stat(made.id).await.expect("there").mtime, 1_000, "seed {seed}");
                caller.call(1 - other, Operation::Close, &fold(made.id)).await.expect("closed");
                assert_eq!(caller.stat(made.id).await.expect("there").mtime, 1_000, "seed {seed}");
                caller.write(made.id, made.layout, CHUNK, &[2; 100]).await.expect("written");
                let after = caller.stat(made.id).await.expect("there");
                assert!(after.mtime > 1_000_000, "seed {seed}: {}", after.mtime);
            });
        };
        do_all(false);
        do_all(true);
    }
}

/// Goal: a reap that overtakes the answer to an announcement ends that announcement too: no write behind it leaves a
/// chunk. Method: many files in one world, all channels open; writes by two callers and the unlink start within the
/// time that a few messages take, and messages take very different times.
#[test]
fn reaps_may_overtake_announcements() {
    let test = TestCluster::new(8, 3);
    test.world.set_latency(None, 1_000, 300_000);
    let callers: Vec<Caller> = (0..3).map(|node| test.caller(node, node as u64 + 1)).collect();
    let mut stale = 0;
    for round in 0..400 {
        let maker = callers[2].clone();
        let made = test.run(2, async move { maker.create(ROOT, "f").await.expect("created") });
        let writers: Vec<_> = (0..6)
            .map(|number| {
                let (node, chunk) = (number as usize % 2, number / 2);
                let caller = callers[node].clone();
                let reactor = test.world.reactor(test.callers[node]);
                let pause = test.world.random() % 600_000;
                test.spawn(node, async move {
                    reactor.sleep(pause).await;
                    status(&caller.write(made.id, made.layout, chunk * CHUNK, &[1; 2000]).await)
                })
            })
            .collect();
        let remover = callers[2].clone();
        let reactor = test.world.reactor(test.callers[2]);
        let pause = test.world.random() % 600_000;
        let unlinked = test.spawn(2, async move {
            reactor.sleep(pause).await;
            status(&remover.unlink(ROOT, "f").await)
        });
        assert_eq!(test.wait(&unlinked), Status::Ok);
        for writer in &writers {
            let status = test.wait(writer);
            assert!(matches!(status, Status::Ok | Status::StaleFile), "round {round}: {status:?}");
            stale += u32::from(status == Status::StaleFile);
        }
        let audits = test.settle();
        assert_eq!(audits.iter().map(|audit| audit.chunks + audit.files).sum::<u64>(), 0, "round {round}");
    }
    assert!(stale > 100, "hardly any write met the unlink: {stale}");
}
