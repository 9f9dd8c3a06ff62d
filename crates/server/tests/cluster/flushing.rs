//! Changes that go behind by themselves.

use crate::backing::{contents, find, flush, pattern, write};
use crate::support::*;
use reactor::Nanos;
use reactor::sim::World;
use server::{FlushPolicy, Flushing};
use std::cell::Cell;
use std::rc::Rc;
use wire::messages::*;
use wire::{FileId, Operation, Status};

const ROOT: FileId = FileId::ROOT;
const MILLISECOND: Nanos = 1_000_000;
const SPELL: Nanos = 100 * MILLISECOND;
const HIDDEN: &[u8] = b".tabane-";
const ESTALE: i32 = 116;

fn over_a_site(seed: u64, flushing: Flushing) -> TestCluster {
    let populate = |world: &World| world.outsider().make_directory("d");
    TestCluster::over_a_flushed_site(seed, 1 + seed as u32 % 3, Flushing { idle: SPELL, ..flushing }, populate).0
}

fn of_policy(policy: FlushPolicy) -> Flushing {
    Flushing { policy, ..MANUAL }
}

fn pass(test: &TestCluster, time: Nanos) {
    let end = test.world.now() + time;
    test.world.run_until(|| test.world.now() >= end, LIMIT);
}

/// A client that asks every server for something, every 20 ms, until it is told not to.
fn keep_busy(test: &TestCluster, caller: Caller, is_over: &Rc<Cell<bool>>) {
    let (is_over, reactor) = (is_over.clone(), test.reactor_of_caller(1));
    // Then nothing has to be looked for, which may take long.
    let own = caller.clone();
    test.run(1, async move { own.list(ROOT).await.expect("listed") });
    test.spawn(1, async move {
        while !is_over.get() {
            for server in 0..caller.cluster.server_count() {
                let name = name_at(&caller.cluster, ROOT, server);
                let request = EntryRequest { entry: entry(ROOT, &name) };
                assert_eq!(status(&caller.call(server, Operation::Stat, &request).await), Status::NotFound);
            }
            reactor.sleep(20 * MILLISECOND).await;
        }
    });
}

/// Makes a file of that many bytes in the root, and closes it.
fn make(test: &TestCluster, caller: &Caller, name: &'static str, size: usize) -> Vec<u8> {
    let own = caller.clone();
    let bytes: Vec<u8> = (0..size).map(|at| (at % 251 + 1) as u8).collect();
    let written = bytes.clone();
    test.run(0, async move {
        let made = own.create(ROOT, name).await.expect("made");
        write(&own, &made, 0, &written).await;
    });
    bytes
}

/// What of a hidden file is there so far, in bytes that are not zero.
fn hidden_bytes(test: &TestCluster) -> Option<usize> {
    let site = test.world.outsider();
    let hidden = site.list("").into_iter().find(|name| name.starts_with(HIDDEN))?;
    let bytes = site.read(&String::from_utf8_lossy(&hidden))?;
    Some(bytes.iter().filter(|byte| **byte != 0).count())
}

/// Goal: nothing goes while clients are at work, and everything does when they are not; nobody asks for a flush.
#[test]
fn idle_servers_flush() {
    for seed in 0..8 {
        let test = over_a_site(seed, of_policy(FlushPolicy::Idle));
        let caller = test.caller(0, 1);
        let is_over = Rc::new(Cell::new(false));
        keep_busy(&test, test.caller(1, 2), &is_over);
        let bytes = make(&test, &caller, "made", 20_000);
        pass(&test, 5 * SECOND);
        let site = test.world.outsider();
        assert_eq!(site.list(""), [b"d".to_vec()], "seed {seed}: clients are at work");
        is_over.set(true);
        pass(&test, 3 * SECOND);
        assert!(site.read("made") == Some(bytes), "seed {seed}");
        let own = caller.clone();
        test.run(0, async move { own.unlink(ROOT, "made").await.expect("removed") });
        pass(&test, 3 * SECOND);
        assert_eq!(site.list(""), [b"d".to_vec()], "seed {seed}");
        test.settle();
    }
}

/// Goal: a flush that is under way is held up where it is when clients come back, goes on afterwards, and does not
/// begin anew; whoever waits for one has it done at once.
#[test]
fn a_flush_steps_back_and_goes_on() {
    for seed in 0..8 {
        let test = over_a_site(seed, of_policy(FlushPolicy::Idle));
        let caller = test.caller(0, 1);
        let size = 4096 * 400;
        let bytes = make(&test, &caller, "made", size);
        assert!(test.world.run_until(|| hidden_bytes(&test).is_some_and(|bytes| bytes > size / 8), LIMIT));
        let is_over = Rc::new(Cell::new(false));
        keep_busy(&test, test.caller(1, 2), &is_over);
        pass(&test, 2 * SECOND);
        let held = hidden_bytes(&test).expect("it is there");
        assert!(held < size, "seed {seed}");
        pass(&test, 5 * SECOND);
        assert_eq!(hidden_bytes(&test), Some(held), "seed {seed}: it waits");
        let site = test.world.outsider();
        if seed % 2 == 0 {
            is_over.set(true);
            pass(&test, 10 * SECOND);
        } else {
            let own = caller.clone();
            let reply = test.run(0, async move { flush(&own).await });
            assert_eq!((reply.failed, reply.paths), (0, Vec::new()));
            is_over.set(true);
        }
        assert!(site.read("made") == Some(bytes), "seed {seed}");
        let written: u64 = (0..test.cluster.server_count())
            .map(|index| {
                let numbers = test.server(index).backing_numbers();
                numbers.iter().find(|(name, _)| *name == "carried_bytes").map_or(0, |(_, number)| *number)
            })
            .sum();
        assert_eq!(written, size as u64, "seed {seed}: each byte goes once");
        test.settle();
    }
}

/// Goal: a site that is stale for a while tells of nothing that it is gone: removals, whole or of some calls alone, are
/// not taken for done, and are done once it answers again.
#[test]
fn removals_wait_for_a_stale_site() {
    for (seed, operation) in [None, Some("open"), Some("look"), Some("remove")].into_iter().cycle().take(12).enumerate()
    {
        let populate = |world: &World| {
            let site = world.outsider();
            site.make_directory("d");
            site.write("d/inner", 0, &pattern(1, 5000));
            site.write("top", 0, &pattern(2, 5000));
        };
        let flushing = of_policy(FlushPolicy::Manual);
        let (test, ..) = TestCluster::over_a_flushed_site(seed as u64, 1 + seed as u32 % 3, flushing, populate);
        let caller = test.caller(0, 1);
        let own = caller.clone();
        test.run(0, async move {
            let d = find(&own, "d").await.expect("there").id;
            own.unlink(d, "inner").await.expect("removed");
            own.unlink(ROOT, "top").await.expect("removed");
        });
        // Nothing is open any more that was opened for that.
        pass(&test, 5 * SECOND);
        let own = caller.clone();
        test.world.fail_backing("", operation, ESTALE, None);
        let reply = test.run(0, async move { flush(&own).await });
        assert!(reply.failed > 0, "seed {seed}, {operation:?}: it says that all is done");
        test.world.release_backing();
        let own = caller.clone();
        let reply = test.run(0, async move { flush(&own).await });
        assert_eq!((reply.failed, reply.paths), (0, Vec::new()), "seed {seed}, {operation:?}");
        let site = test.world.outsider();
        assert_eq!(site.list(""), [b"d".to_vec()], "seed {seed}, {operation:?}");
        assert_eq!(site.list("d"), Vec::<Vec<u8>>::new(), "seed {seed}, {operation:?}");
        test.settle();
    }
}

/// Goal: what was changed long ago goes although clients are at work all the time.
#[test]
fn what_is_old_goes_beside_accesses() {
    for seed in 0..4 {
        let test = over_a_site(seed, Flushing { age: 2 * SECOND, ..of_policy(FlushPolicy::Idle) });
        let caller = test.caller(0, 1);
        let is_over = Rc::new(Cell::new(false));
        keep_busy(&test, test.caller(1, 2), &is_over);
        let bytes = make(&test, &caller, "made", 20_000);
        let site = test.world.outsider();
        pass(&test, SECOND);
        assert!(site.read("made").is_none());
        assert!(test.world.run_until(|| site.read("made").as_ref() == Some(&bytes), LIMIT), "seed {seed}");
        is_over.set(true);
        test.settle();
    }
}

/// Goal: each policy does what it says while clients are at work.
#[test]
fn policies() {
    for seed in 0..4 {
        let policies = [FlushPolicy::Immediate, FlushPolicy::OnClose, FlushPolicy::Manual, FlushPolicy::Never];
        for policy in policies {
            let test = over_a_site(seed, of_policy(policy));
            let caller = test.caller(0, 1);
            let is_over = Rc::new(Cell::new(false));
            keep_busy(&test, test.caller(1, 2), &is_over);
            let own = caller.clone();
            let opened = test.run(0, async move {
                let opened = own.open_for_good(ROOT, "made", open_flags::CREATE).await.expect("made");
                write(&own, &opened.attributes, 0, b"bytes").await;
                opened
            });
            pass(&test, 3 * SECOND);
            let site = test.world.outsider();
            let goes = policy == FlushPolicy::Immediate;
            assert_eq!(site.read("made").is_some(), goes, "{policy:?}, while it is open");
            let own = caller.clone();
            test.run(0, async move { own.close(&opened).await.expect("closed") });
            pass(&test, 3 * SECOND);
            assert_eq!(site.read("made").is_some(), policy.is_automatic(), "{policy:?}, when it is closed");
            if policy == FlushPolicy::Never {
                let own = caller.clone();
                let refused = test.run(0, async move {
                    let request = FlushRequest { ticket: 0, paths: Vec::new(), file: FileId::default() };
                    own.call(own.home(ROOT), Operation::Flush, &request).await
                });
                assert_eq!(status(&refused), Status::NotPermitted);
            }
            is_over.set(true);
            test.settle();
        }
    }
}

/// Has all servers do what they do before they end; how long that took.
fn end_all(test: &TestCluster) -> Nanos {
    let ended = Rc::new(Cell::new(0));
    let start = test.world.now();
    for index in test.server_indexes() {
        let (server, ended) = (test.server(index), ended.clone());
        test.world.reactor(test.servers[index as usize]).spawn(reactor::Class::Background, async move {
            server.flush_before_end().await;
            ended.set(ended.get() + 1);
        });
    }
    assert!(test.world.run_until(|| ended.get() == test.servers.len(), LIMIT));
    test.world.now() - start
}

/// Goal: servers that are told to end carry everything first, with each other's help: what is closed or synced before
/// what is open, what is small before what is large. They end when nothing is left, or nothing goes any more, and no
/// later than their time, where the site hangs.
#[test]
fn servers_that_end_carry_first() {
    for seed in 0..12 {
        let grace = 5 * SECOND;
        let flushing = Flushing { grace, writers: 1, ..of_policy(FlushPolicy::Manual) };
        let test = over_a_site(seed, flushing);
        let caller = test.caller(0, 1);
        let own = caller.clone();
        test.run(0, async move {
            let opened = own.open_for_good(ROOT, "a.open", open_flags::CREATE).await.expect("made");
            write(&own, &opened.attributes, 0, b"bytes").await;
            let synced = own.open_for_good(ROOT, "z.synced", open_flags::CREATE).await.expect("made");
            write(&own, &synced.attributes, 0, b"bytes").await;
            let request = SynchroniseRequest { file: synced.attributes.id, seen: 0, opened_at: 0, is_question: false };
            own.call(own.home(synced.attributes.id), Operation::Synchronise, &request).await.expect("synced");
        });
        // Small files that share their syncs go together, whatever their order.
        make(&test, &caller, "b.large", 200_000);
        make(&test, &caller, "c.small", 100_000);
        let own = caller.clone();
        test.run(0, async move {
            let below = own.make_directory(ROOT, "below").await.expect("made");
            own.create(below, "empty").await.expect("made");
        });
        let site = test.world.outsider();
        let hangs = seed % 3 == 2;
        if hangs {
            test.world.hang_backing("a.open", None);
        }
        let took = end_all(&test);
        let names = ["z.synced", "c.small", "b.large"];
        assert!(names.iter().all(|name| site.read(name).is_some()), "seed {seed}: {:?}", site.list(""));
        let order: Vec<u64> = names.iter().map(|name| site.inode(name)).collect();
        assert!(order.is_sorted(), "seed {seed}: {order:?}");
        match hangs {
            true => assert!(took <= grace + SECOND / 10, "seed {seed}: {took} ns"),
            false => {
                assert!(took < grace, "seed {seed}: {took} ns");
                assert!(site.inode("a.open") > order[2] && site.exists("below/empty"), "seed {seed}");
                // There is nothing left to wait for.
                assert!(end_all(&test) < 2 * SECOND, "seed {seed}");
            }
        }
        test.world.release_backing();
        test.settle();
    }
}

/// Goal: what can't go does not hold up the end; with `--flush never` nothing goes.
#[test]
fn ends_are_not_held_up() {
    for seed in 0..6 {
        let policy = if seed % 2 == 0 { FlushPolicy::Idle } else { FlushPolicy::Never };
        let test = over_a_site(seed, Flushing { grace: 60 * SECOND, ..of_policy(policy) });
        let caller = test.caller(0, 1);
        test.world.set_backing_read_only(true);
        make(&test, &caller, "made", 20_000);
        assert!(end_all(&test) < 10 * SECOND, "seed {seed}");
        test.world.set_backing_read_only(false);
        assert_eq!(test.world.outsider().list(""), [b"d".to_vec()], "seed {seed}");
        test.settle();
    }
}

/// Goal: a file that is there already is updated where it is, by its dirty chunks alone: it keeps its inode, what was
/// cut and has grown again reads as zeros there, and what was evicted stays. The same after all servers were started
/// again.
/// Method: writes, holes, cuts and growth at random over any number of servers, a flush after each few of them.
#[test]
fn large_files_are_updated_where_they_are() {
    for seed in 0..24 {
        let flushing = Flushing { atomic_below: 0, ..of_policy(FlushPolicy::Manual) };
        let fill = |world: &World| world.outsider().write("old", 0, &pattern(7, 50_000));
        let (test, ()) = TestCluster::over_a_flushed_site(seed, 1 + seed as u32 % 4, flushing, fill);
        let (caller, site) = (test.caller(0, 1), test.world.outsider());
        let mut expected = [pattern(7, 50_000), pattern(3, 61_000)];
        let own = caller.clone();
        let bytes = expected[1].clone();
        test.run(0, async move {
            let made = own.create(ROOT, "new").await.expect("made");
            write(&own, &made, 0, &bytes).await;
            assert_eq!(flush(&own).await.failed, 0);
        });
        let inodes = ["old", "new"].map(|path| site.inode(path));
        let mut state = seed * 2 + 1;
        let mut random = |limit: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % limit
        };
        for round in 0..12 {
            for _ in 0..1 + random(3) {
                let which = random(2) as usize;
                let (path, kind) = (["old", "new"][which], random(4));
                let bytes = &mut expected[which];
                let size = bytes.len() as u64;
                let at = random(size.max(1));
                let own = caller.clone();
                match kind {
                    0 if size > 20_000 => {
                        bytes.truncate(at.max(5_000) as usize);
                        let size = bytes.len() as u64;
                        test.run(0, async move {
                            let file = find(&own, path).await.expect("there");
                            own.truncate(file.id, size).await.expect("cut");
                        });
                    }
                    1 => {
                        bytes.resize(bytes.len() + random(15_000) as usize, 0);
                        let size = bytes.len() as u64;
                        test.run(0, async move {
                            let file = find(&own, path).await.expect("there");
                            own.truncate(file.id, size).await.expect("grown");
                        });
                    }
                    _ => {
                        let piece = pattern(seed * 100 + round, 1 + random(9_000) as usize);
                        let end = at as usize + piece.len();
                        bytes.resize(bytes.len().max(end), 0);
                        bytes[at as usize..end].copy_from_slice(&piece);
                        test.run(0, async move {
                            let file = find(&own, path).await.expect("there");
                            write(&own, &file, at, &piece).await;
                        });
                    }
                }
            }
            if random(3) == 0 {
                test.server_indexes().for_each(|index| while test.server(index).evict_some() {});
            }
            let own = caller.clone();
            test.run(0, async move { assert_eq!(flush(&own).await.failed, 0, "seed {seed}, round {round}") });
            for ((path, bytes), inode) in ["old", "new"].iter().zip(&expected).zip(inodes) {
                assert!(site.read(path).as_ref() == Some(bytes), "seed {seed}, round {round}: {path}");
                assert_eq!(site.inode(path), inode, "seed {seed}, round {round}: {path} is another file");
            }
            if random(4) == 0 {
                test.settle();
                test.server_indexes().for_each(|index| test.restart(index));
            }
        }
        for (path, bytes) in ["old", "new"].iter().zip(expected) {
            let own = caller.clone();
            test.run(0, async move {
                let file = find(&own, path).await.expect("there");
                assert!(contents(&own, &file).await.expect("read") == bytes, "seed {seed}: {path}");
            });
        }
        test.settle();
    }
}

/// Goal: what is written to all the time goes behind all the same, under a hidden name, so that there is room for more,
/// and gets its name when it is quiet, with nothing written anew that was behind.
#[test]
fn what_is_never_quiet_goes_behind() {
    for seed in 0..8 {
        let flushing = Flushing { atomic_below: 0, ..of_policy(FlushPolicy::Manual) };
        let (test, ()) = TestCluster::over_a_flushed_site(seed, 1 + seed as u32 % 3, flushing, |_| ());
        let (caller, site) = (test.caller(0, 1), test.world.outsider());
        let own = caller.clone();
        let mut bytes = pattern(seed, 400_000);
        let first = bytes.clone();
        let file = test.run(0, async move {
            let made = own.create(ROOT, "busy").await.expect("made");
            write(&own, &made, 0, &first).await;
            made
        });
        let (is_over, rounds) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(0usize)));
        let (own, over, count, reactor) =
            (test.caller(1, 2), is_over.clone(), rounds.clone(), test.reactor_of_caller(1));
        let writer = test.spawn(1, async move {
            while !over.get() {
                write(&own, &file, 5_000, &pattern(1_000 + count.get() as u64, 3_000)).await;
                count.set(count.get() + 1);
                reactor.sleep(MILLISECOND).await;
            }
        });
        let own = caller.clone();
        let reply = test.run(0, async move { flush(&own).await });
        assert_eq!(reply.failed, 1, "seed {seed}: it is written to all the time");
        let names = site.list("");
        let parked = names.iter().find(|name| name.ends_with(b"-parked"));
        let parked = parked
            .unwrap_or_else(|| panic!("seed {seed}: {names:?}, {:?}", String::from_utf8_lossy(&reply.reasons[0])));
        let inode = site.inode(&String::from_utf8_lossy(parked));
        test.server_indexes().for_each(|index| while test.server(index).evict_some() {});
        let numbers = || test.server_indexes().flat_map(|index| test.server(index).backing_numbers());
        let sum = |wanted: &str| numbers().filter(|(name, _)| *name == wanted).map(|(_, number)| number).sum::<u64>();
        assert!(sum("evicted_bytes") > 350_000, "seed {seed}: {}", sum("evicted_bytes"));
        is_over.set(true);
        test.wait(&writer);
        let before = sum("carried_bytes");
        bytes[5_000..8_000].copy_from_slice(&pattern(999 + rounds.get() as u64, 3_000));
        let own = caller.clone();
        test.run(0, async move { assert_eq!(flush(&own).await.failed, 0) });
        assert!(site.read("busy").as_ref() == Some(&bytes), "seed {seed}");
        assert_eq!(site.inode("busy"), inode, "seed {seed}: it was renamed");
        assert_eq!(site.list(""), vec![b"busy".to_vec()], "seed {seed}");
        assert!(sum("carried_bytes") - before <= 2 * 4096, "seed {seed}: one chunk was written, or two");
        let own = caller.clone();
        test.run(0, async move {
            let file = find(&own, "busy").await.expect("there");
            assert!(contents(&own, &file).await.expect("read") == bytes, "seed {seed}");
        });
        test.settle();
    }
}

/// Goal: where renames of the site do nothing but replace, all that was moved, made and replaced here is behind after a
/// flush, directories too, and a name that somebody else has taken is a conflict still.
#[test]
fn renames_that_only_replace() {
    for seed in 0..8 {
        let fill = |world: &World| {
            let site = world.outsider();
            site.make_directory("d");
            ["d/in", "moved", "replaced"].iter().for_each(|path| site.write(path, 0, path.as_bytes()));
        };
        let (test, ()) = TestCluster::over_a_site(seed, 1 + seed as u32 % 3, fill);
        test.world.set_backing_renames_plainly();
        let (caller, site) = (test.caller(0, 1), test.world.outsider());
        let own = caller.clone();
        test.run(0, async move {
            let d = find(&own, "d").await.expect("there").id;
            own.rename(ROOT, "d", "e", 0).await.expect("renamed");
            own.rename_to((ROOT, "moved"), (d, "moved"), 0).await.expect("renamed");
            let new = own.make_directory(ROOT, "new").await.expect("made");
            let made = own.create(new, "made").await.expect("made");
            write(&own, &made, 0, b"made").await;
            own.rename_to((new, "made"), (ROOT, "replaced"), 0).await.expect("renamed");
            own.rename_to((ROOT, "new"), (d, "new"), 0).await.expect("renamed");
            let taken = own.create(ROOT, "taken").await.expect("made");
            write(&own, &taken, 0, b"ours").await;
        });
        site.write("taken", 0, b"theirs");
        let own = caller.clone();
        let reply = test.run(0, async move { flush(&own).await });
        assert_eq!(reply.paths, [b"taken"], "seed {seed}");
        let there = |path: &str| site.read(path).map(|bytes| String::from_utf8(bytes).expect("text"));
        let wanted = [("e/in", "d/in"), ("e/moved", "moved"), ("replaced", "made"), ("taken", "theirs")];
        for (path, text) in wanted {
            assert_eq!(there(path).as_deref(), Some(text), "seed {seed}: {path}");
        }
        assert!(site.is_directory("e/new") && !site.exists("d") && !site.exists("moved"), "seed {seed}");
    }
}
