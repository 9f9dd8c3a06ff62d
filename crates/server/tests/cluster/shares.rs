//! Times and link counts of directories, which all servers with entries have a share of.

use crate::support::*;
use wire::messages::{Empty, FileSystemReply, SetAttributesRequest, set_mask};
use wire::{Cluster, Decode, FileId, Operation, Status};

const ROOT: FileId = FileId::ROOT;

fn set_time(directory: FileId, mtime: i64) -> SetAttributesRequest {
    SetAttributesRequest { file: directory, mask: set_mask::MTIME, mode: 0, uid: 0, gid: 0, atime: 0, mtime }
}

/// A name at a server that no other one in these tests is like.
fn subdirectory(cluster: &Cluster, parent: FileId, server: u32) -> String {
    let mut names = (0..).map(|number| format!("sub.{number}"));
    names.find(|name| cluster.dentry_server(parent, name.as_bytes()) == server).expect("endless")
}

/// Goal: every change of an entry moves the directory's time, links count the directories in it, and a set time stays
/// until the next change; whichever server has the entry, and over restarts of all.
/// Method: each kind of change at each server, with a utimens to an early and to a late time before it.
#[test]
fn changes_of_entries_show() {
    let test = TestCluster::new(1, 3);
    let caller = test.caller(0, 1);
    let directory = test.run(0, async move { caller.make_directory(ROOT, "d").await.expect("made") });
    let late = 4_000_000_000_000_000_000;
    for server in 0..3 {
        let caller = test.caller(0, 10 + u64::from(server));
        test.run(0, async move {
            let name = name_at(&caller.cluster, directory, server);
            let other = name_at(&caller.cluster, directory, (server + 1) % 3);
            let links = caller.stat(directory).await.expect("there").link_count;
            for (step, early) in [5, late, 7, late].into_iter().enumerate() {
                let set = caller.set(set_time(directory, early)).await.expect("set");
                let seen = caller.stat(directory).await.expect("there");
                assert_eq!((set.mtime, seen.mtime, seen.link_count), (early, early, links));
                match step {
                    0 => drop(caller.create(directory, &name).await.expect("created")),
                    1 => caller.rename(directory, &name, &other, 0).await.expect("renamed"),
                    2 => caller.link(directory, &other, &name).await.expect("linked"),
                    _ => caller.unlink(directory, &name).await.expect("unlinked"),
                }
                let changed = caller.stat(directory).await.expect("there");
                assert!(changed.mtime > 7 && changed.mtime < late, "step {step} at server {server}: {changed:?}");
                assert_eq!((changed.link_count, changed.mtime), (links, changed.ctime));
            }
            caller.unlink(directory, &other).await.expect("unlinked");
            caller.make_directory(directory, &subdirectory(&caller.cluster, directory, server)).await.expect("made");
            assert_eq!(caller.stat(directory).await.expect("there").link_count, links + 1);
        });
        test.settle();
        let caller = test.caller(1, 20 + u64::from(server));
        let before = test.run(1, async move { caller.stat(directory).await.expect("there") });
        (0..3).for_each(|server| test.restart(server));
        let caller = test.caller(1, 30 + u64::from(server));
        let after = test.run(1, async move { caller.stat(directory).await.expect("there") });
        assert_eq!((after.mtime, after.link_count), (before.mtime, before.link_count));
    }
    let caller = test.caller(2, 50);
    test.run(2, async move {
        assert_eq!(caller.stat(directory).await.expect("there").link_count, 5);
        assert_eq!(caller.stat(ROOT).await.expect("there").link_count, 3);
        for server in 0..3 {
            let name = subdirectory(&caller.cluster, directory, server);
            caller.remove_directory(directory, &name).await.expect("removed");
        }
        assert_eq!(caller.stat(directory).await.expect("there").link_count, 2);
        caller.remove_directory(ROOT, "d").await.expect("removed");
        assert_eq!(caller.stat(ROOT).await.expect("there").link_count, 2);
    });
    let audits = test.settle();
    assert!(audits.iter().all(|audit| audit.shares == 0), "{audits:?}");
}

/// Goal: shares are in checkpoints, also of directories in which nothing is left.
/// Method: many changes roll the journal over; all servers are killed and started again.
#[test]
fn shares_survive_checkpoints() {
    let test = TestCluster::new(2, 3);
    let caller = test.caller(0, 1);
    let (directory, before) = test.run(0, async move {
        let directory = caller.make_directory(ROOT, "d").await.expect("made");
        caller.set(set_time(directory, 5)).await.expect("set");
        for server in 0..3 {
            let name = name_at(&caller.cluster, directory, server);
            caller.create(directory, &name).await.expect("created");
            caller.unlink(directory, &name).await.expect("unlinked");
        }
        let before = caller.stat(directory).await.expect("there");
        for round in 0..3000 {
            let name = format!("n{round}");
            caller.create(ROOT, &name).await.expect("created");
            caller.unlink(ROOT, &name).await.expect("unlinked");
        }
        (directory, before)
    });
    test.settle();
    (0..3).for_each(|server| test.restart(server));
    let caller = test.caller(1, 2);
    let after = test.run(1, async move {
        let after = caller.stat(directory).await.expect("there");
        caller.set(set_time(directory, 9)).await.expect("set");
        assert_eq!(caller.stat(directory).await.expect("there").mtime, 9);
        after
    });
    assert_eq!((after.mtime, after.link_count), (before.mtime, before.link_count));
    assert!(after.mtime > 5);
}

/// Goal: what servers journal when another one announces itself does not grow with the number of those that have: with
/// the whole list in each record, a thousand servers filled a journal at once, and their clients met ENOSPC. The lists
/// survive restarts. Method: each of 30 servers makes an entry in a directory, and gets a chunk of a file; what the
/// home's journal grows by.
#[test]
fn announcements_are_journalled_one_by_one() {
    const SERVERS: u32 = 30;
    let test = TestCluster::new(3, SERVERS);
    let caller = test.caller(0, 1);
    let (directory, file) = test.run(0, async move {
        let journal = async |server: u32| {
            let reply = caller.call(server, Operation::StatFileSystem, &Empty {}).await.expect("told");
            FileSystemReply::from_bytes(&reply.params).expect("the reply is well-formed").journal_bytes
        };
        let directory = caller.make_directory(ROOT, "d").await.expect("made");
        let home = caller.home(directory);
        let mut grown = Vec::new();
        for server in (0..SERVERS).filter(|server| *server != home) {
            let name = subdirectory(&caller.cluster, directory, server);
            let before = journal(home).await;
            caller.make_directory(directory, &name).await.expect("made");
            grown.push(journal(home).await - before);
        }
        assert!(grown.iter().all(|bytes| *bytes == grown[0] && *bytes > 0), "of the directory: {grown:?}");

        let file = caller.create(ROOT, "f").await.expect("created");
        let home = caller.home(file.id);
        let mut grown = Vec::new();
        for chunk in 0..u64::from(SERVERS) {
            if caller.cluster.chunk_server(file.id, &file.layout, chunk) == home {
                continue;
            }
            let before = journal(home).await;
            caller.write(file.id, file.layout, chunk * 4096, &[7; 4096]).await.expect("written");
            grown.push(journal(home).await - before);
        }
        assert_eq!(grown.len() as u32, SERVERS - 1);
        assert!(grown.iter().all(|bytes| *bytes == grown[0] && *bytes > 0), "of the file: {grown:?}");
        (directory, file.id)
    });
    let homes = [test.cluster.home_of(directory), test.cluster.home_of(file)];
    homes.into_iter().flatten().for_each(|home| test.restart(home));
    let caller = test.caller(1, 2);
    test.run(1, async move {
        assert_eq!(caller.stat(directory).await.expect("there").link_count, 2 + SERVERS - 1);
        assert_eq!(caller.stat(file).await.expect("there").size, u64::from(SERVERS) * 4096);
    });
    test.settle();
}

/// Goal: a change is acknowledged only when the directory's home knows who made it, wherever a crash strikes.
/// Method: for the server of the entry and the directory's home and each n, its n-th write during the first create is
/// torn and its last; it is started again, and the caller, whose channel resends, gets its answer.
#[test]
fn announcements_survive_a_crash_at_each_write() {
    for victim_is_home in [false, true] {
        let crashes = (1..20).take_while(|crash_at| crash_during_create(victim_is_home, *crash_at)).count();
        // A session and the file; or the announcement.
        let expected = if victim_is_home { 1 } else { 2 };
        assert!(crashes >= expected, "home {victim_is_home}: struck {crashes} times");
    }
}

/// False when the victim did not write that often.
fn crash_during_create(victim_is_home: bool, crash_at: u64) -> bool {
    let test = TestCluster::new(crash_at, 3);
    let setup = test.caller(0, 1);
    let directory = test.run(0, async move {
        let directory = setup.make_directory(ROOT, "d").await.expect("made");
        setup.set(set_time(directory, 5)).await.expect("set");
        directory
    });
    test.settle();
    let home = test.cluster.home_of(directory).expect("in range");
    let server = (home + 1) % 3;
    let victim = if victim_is_home { home } else { server };
    let node = test.servers[victim as usize];
    test.world.crash_after_writes(node, crash_at, true);
    let caller = test.caller(1, 2);
    let asking = caller.clone();
    let worker = test.spawn(1, async move {
        let name = name_at(&asking.cluster, directory, server);
        asking.make_directory(directory, &name).await
    });
    let ended = || !test.world.is_running(node) || worker.borrow().is_some();
    assert!(test.world.run_until(ended, LIMIT));
    let struck = !test.world.is_running(node);
    if struck {
        test.world.restart(node);
        test.start(victim);
    }
    let outcome = status(&test.wait(&worker));
    test.world.crash_after_writes(node, u64::MAX, false);
    test.settle();
    let seen = test.run(1, async move { caller.stat(directory).await.expect("there") });
    let shows = seen.mtime > 5 && seen.link_count == 3;
    let shows_nothing = seen.mtime == 5 && seen.link_count == 2;
    match outcome {
        Status::Ok => assert!(shows, "write {crash_at}: told of success, found {seen:?}"),
        Status::Unreachable | Status::TimedOut => assert!(shows || shows_nothing, "write {crash_at}: {seen:?}"),
        other => panic!("write {crash_at}: {other:?}"),
    }
    struck
}

/// Goal: a directory whose entries are on a server that is down says so when it is looked at, and works again after.
/// Method: the server of an entry is killed; stat and utimens of the directory name it.
#[test]
fn unreachable_shares_are_named() {
    let test = TestCluster::new(3, 3);
    let caller = test.caller(0, 1);
    let setup = caller.clone();
    let (directory, server) = test.run(0, async move {
        let directory = setup.make_directory(ROOT, "d").await.expect("made");
        let server = (setup.home(directory) + 1) % 3;
        setup.create(directory, &name_at(&setup.cluster, directory, server)).await.expect("created");
        (directory, server)
    });
    test.kill(server);
    let asking = caller.clone();
    test.run(0, async move {
        for answer in [asking.stat(directory).await, asking.set(set_time(directory, 5)).await] {
            let failure = answer.expect_err("a share is missing");
            assert!(matches!(failure.status, Status::Unreachable | Status::TimedOut), "{failure:?}");
        }
    });
    test.world.restart(test.servers[server as usize]);
    test.start(server);
    test.run(0, async move {
        assert!(caller.stat(directory).await.expect("there").mtime > 5);
        assert_eq!(caller.set(set_time(directory, 5)).await.expect("set").mtime, 5);
        assert_eq!(caller.stat(directory).await.expect("there").mtime, 5);
    });
}

/// Goal: entries are not made under what is no directory, or none any more, wherever its home is.
#[test]
fn announcements_of_strangers_are_refused() {
    let test = TestCluster::new(4, 3);
    let caller = test.caller(0, 1);
    test.run(0, async move {
        let file = caller.create(ROOT, "f").await.expect("created").id;
        let elsewhere = (caller.home(file) + 1) % 3;
        let name = name_at(&caller.cluster, file, elsewhere);
        assert_eq!(status(&caller.create(file, &name).await), Status::NotDirectory);
        let directory = caller.make_directory(ROOT, "d").await.expect("made");
        caller.remove_directory(ROOT, "d").await.expect("removed");
        for server in 0..3 {
            let name = name_at(&caller.cluster, directory, server);
            assert_eq!(status(&caller.create(directory, &name).await), Status::StaleDirectory);
        }
    });
    let audits = test.settle();
    assert!(audits.iter().all(|audit| audit.shares == 0), "{audits:?}");
}
