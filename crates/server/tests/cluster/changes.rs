//! Link, rename, and unlink of names that are parted from their inodes.

use crate::support::*;
use wire::messages::{open_flags, rename_flags};
use wire::{Cluster, FileId, Status};

const ROOT: FileId = FileId::ROOT;
const CHUNK: u64 = 4096;

/// Names in the root that live at servers 0 to 3, and a second set.
fn names(cluster: &Cluster, servers: u32) -> Vec<[String; 2]> {
    (0..servers)
        .map(|server| {
            let mut found = (0..)
                .map(|number| format!("name.{number}"))
                .filter(|name| cluster.dentry_server(ROOT, name.as_bytes()) == server);
            [found.next().expect("endless"), found.next().expect("endless")]
        })
        .collect()
}

/// Goal: links count up and down wherever names and inode live, and the last one takes the file along.
/// Method: names on the same and on another server; chunks on several servers.
#[test]
fn links_count() {
    let test = TestCluster::new(1, 3);
    let caller = test.caller(0, 1);
    let [[a, a2], [b, _], [c, _]] = names(&test.cluster, 3).try_into().expect("three servers");
    test.run(0, async move {
        let made = caller.create(ROOT, &a).await.expect("created");
        for chunk in 0..6 {
            caller.write(made.id, made.layout, chunk * CHUNK, &[1; 4096]).await.expect("written");
        }
        caller.link(ROOT, &a, &a2).await.expect("linked beside");
        caller.link(ROOT, &a, &b).await.expect("linked elsewhere");
        caller.link(ROOT, &b, &c).await.expect("linked by a name that is parted");
        for name in [&a, &a2, &b, &c] {
            assert_eq!(caller.look(ROOT, name).await.expect("there"), (made.id, 4));
        }
        assert_eq!(status(&caller.link(ROOT, &a, &b).await), Status::Exists);
        assert_eq!(status(&caller.link(ROOT, &a, &a).await), Status::Exists);
        assert_eq!(status(&caller.link(ROOT, "nothing", "new").await), Status::NotFound);
        let opened = caller.open(ROOT, &b, 0).await;
        assert_eq!(opened.expect_err("the inode is elsewhere").id, made.id);
        let exclusive = open_flags::CREATE | open_flags::EXCLUSIVE;
        assert_eq!(status(&caller.open(ROOT, &b, exclusive).await), Status::Exists);
        for (left, name) in [&a, &c, &b].into_iter().enumerate() {
            caller.unlink(ROOT, name).await.expect("unlinked");
            assert_eq!(status(&caller.look(ROOT, name).await), Status::NotFound);
            assert_eq!(caller.look(ROOT, &a2).await.expect("there"), (made.id, 3 - left as u32));
        }
        caller.unlink(ROOT, &a2).await.expect("unlinked");
        assert_eq!(status(&caller.stat(made.id).await), Status::StaleFile);
    });
    let audits = test.settle();
    assert!(audits.iter().all(|audit| audit.dentries + audit.chunks + audit.files == 0), "{audits:?}");
}

/// Goal: directories and what is in them keep to the rules: no links to directories, none into removed ones.
#[test]
fn directories_are_refused() {
    let test = TestCluster::new(2, 3);
    let caller = test.caller(0, 1);
    test.run(0, async move {
        let directory = caller.make_directory(ROOT, "d").await.expect("made");
        caller.create(ROOT, "f").await.expect("created");
        assert_eq!(status(&caller.link(ROOT, "d", "e").await), Status::NotPermitted);
        assert_eq!(status(&caller.rename(ROOT, "f", "d", 0).await), Status::IsDirectory);
        assert_eq!(status(&caller.rename(ROOT, "d", "f", 0).await), Status::NotDirectory);
        assert_eq!(status(&caller.rename(ROOT, "f", "g", rename_flags::ALL).await), Status::Invalid);
        caller.create(directory, "g").await.expect("created");
        assert_eq!(status(&caller.remove_directory(ROOT, "d").await), Status::NotEmpty);
        caller.unlink(directory, "g").await.expect("unlinked");
        caller.remove_directory(ROOT, "d").await.expect("removed");
        assert_eq!(status(&caller.link(directory, "g", "h").await), Status::StaleDirectory);
    });
    test.settle();
}

/// Goal: rename follows POSIX: it replaces and frees what was there, does nothing between two names of one file, and
/// keeps to its flags; wherever the names and the inodes live.
/// Method: all pairs of servers for the two names.
#[test]
fn renames() {
    for (from_server, to_server) in (0..9).map(|pair| (pair / 3, pair % 3)) {
        let test = TestCluster::new(3, 3);
        let caller = test.caller(0, 1);
        let names = names(&test.cluster, 3);
        let (a, b) = (names[from_server][0].clone(), names[to_server][1].clone());
        test.run(0, async move {
            let first = caller.create(ROOT, &a).await.expect("created").id;
            caller.rename(ROOT, &a, &b, 0).await.expect("moved");
            assert_eq!(status(&caller.look(ROOT, &a).await), Status::NotFound);
            assert_eq!(caller.look(ROOT, &b).await.expect("there"), (first, 1));
            assert_eq!(status(&caller.rename(ROOT, &a, &b, 0).await), Status::NotFound);
            let second = caller.create(ROOT, &a).await.expect("created");
            caller.write(second.id, second.layout, 5 * CHUNK, &[1; 99]).await.expect("written");
            assert_eq!(status(&caller.rename(ROOT, &a, &b, rename_flags::NO_REPLACE).await), Status::Exists);
            caller.rename(ROOT, &a, &b, rename_flags::EXCHANGE).await.expect("exchanged");
            assert_eq!(caller.look(ROOT, &a).await.expect("there"), (first, 1));
            assert_eq!(caller.look(ROOT, &b).await.expect("there"), (second.id, 1));
            caller.rename(ROOT, &a, &b, 0).await.expect("replaced");
            assert_eq!(status(&caller.stat(second.id).await), Status::StaleFile);
            caller.link(ROOT, &b, &a).await.expect("linked");
            caller.rename(ROOT, &a, &b, 0).await.expect("nothing to do");
            assert_eq!(caller.look(ROOT, &a).await.expect("there"), (first, 2));
            assert_eq!(caller.list(ROOT).await.expect("listed").len(), 2);
            caller.unlink(ROOT, &a).await.expect("unlinked");
            caller.unlink(ROOT, &b).await.expect("unlinked");
        });
        let audits = test.settle();
        assert!(audits.iter().all(|audit| audit.dentries + audit.chunks + audit.files == 0), "{audits:?}");
    }
}

/// Goal: renames against each other end, in some order, and lose nothing.
/// Method: two callers rename a to b and b to a, or two files onto one name, at once; many times over.
#[test]
fn renames_against_each_other() {
    for seed in 0..20 {
        let test = TestCluster::new(seed, 3);
        let names = names(&test.cluster, 3);
        let [a, b, c] = [names[0][0].clone(), names[1][0].clone(), names[2][0].clone()];
        let setup = test.caller(0, 1);
        let made = [a.clone(), b.clone(), c.clone()];
        test.run(0, async move {
            for name in &made {
                setup.create(ROOT, name).await.expect("created");
            }
        });
        let wishes = [(a.clone(), b.clone()), (b.clone(), a.clone()), (c, a.clone())];
        let workers: Vec<_> = wishes
            .into_iter()
            .enumerate()
            .map(|(node, (from, to))| {
                let caller = test.caller(node, 10 + node as u64);
                test.spawn(node, async move { status(&caller.rename(ROOT, &from, &to, 0).await) })
            })
            .collect();
        let outcomes: Vec<Status> = workers.iter().map(|worker| test.wait(worker)).collect();
        let done = outcomes.iter().filter(|status| **status == Status::Ok).count();
        assert!(outcomes.iter().all(|status| matches!(status, Status::Ok | Status::NotFound)), "{outcomes:?}");
        let audits = test.settle();
        // A rename onto a name that an earlier one left empty takes no file away.
        let left = audits.iter().map(|audit| audit.dentries).sum::<u64>();
        assert!((1..=2).contains(&left) && done >= 2, "seed {seed}: {outcomes:?}, {left} left");
    }
}

#[derive(Clone, Copy, Debug)]
enum Deed {
    Link,
    Rename,
    Replace,
    Exchange,
    Unlink,
}

/// Goal: a change of names that a crash interrupts anywhere happens as a whole or not at all, once, and leaves nothing.
/// Method: the names, the inode and the replaced inode live on four servers. For each server and n, its n-th write is
/// torn and its last; it is started again, and the caller, whose channel resends, gets its answer.
#[test]
fn changes_survive_a_crash_at_each_write() {
    for deed in [Deed::Link, Deed::Rename, Deed::Replace, Deed::Exchange, Deed::Unlink] {
        for victim in 0..4 {
            let crashes = (1..30).take_while(|crash_at| crash_during(deed, victim, *crash_at)).count();
            let has_part = match deed {
                Deed::Link | Deed::Rename => victim != 3,
                // The homes of both files are told, or lose a name.
                Deed::Exchange | Deed::Replace => true,
                Deed::Unlink => victim == 0 || victim == 2,
            };
            // A session, the decision, its end; or what is prepared, and its end.
            assert_eq!(crashes >= 2, has_part, "{deed:?}, victim {victim}: struck {crashes} times");
        }
    }
}

/// False when the victim did not write that often.
fn crash_during(deed: Deed, victim: usize, crash_at: u64) -> bool {
    let test = TestCluster::new(crash_at, 4);
    let names = names(&test.cluster, 4);
    let [from, to, first, second] = [0, 1, 2, 3].map(|server: usize| names[server][0].clone());
    let has_destination = matches!(deed, Deed::Replace | Deed::Exchange);
    let setup = test.caller(0, 1);
    let (old, new) = (from.clone(), to.clone());
    // Both names are parted from their inodes, which live at servers 2 and 3.
    let (source, destination) = test.run(0, async move {
        let source = setup.create(ROOT, &first).await.expect("created").id;
        setup.rename(ROOT, &first, &old, 0).await.expect("parted");
        let destination = setup.create(ROOT, &second).await.expect("created").id;
        if has_destination {
            setup.rename(ROOT, &second, &new, 0).await.expect("parted");
        } else {
            setup.unlink(ROOT, &second).await.expect("unlinked");
        }
        (source, destination)
    });
    test.settle();
    let node = test.servers[victim];
    test.world.crash_after_writes(node, crash_at, true);
    let caller = test.caller(1, 2);
    let (asking, old, new) = (caller.clone(), from.clone(), to.clone());
    let worker = test.spawn(1, async move {
        match deed {
            Deed::Link => asking.link(ROOT, &old, &new).await,
            Deed::Rename | Deed::Replace => asking.rename(ROOT, &old, &new, 0).await,
            Deed::Exchange => asking.rename(ROOT, &old, &new, rename_flags::EXCHANGE).await,
            Deed::Unlink => asking.unlink(ROOT, &old).await,
        }
    });
    let ended = || !test.world.is_running(node) || worker.borrow().is_some();
    assert!(test.world.run_until(ended, LIMIT));
    // What follows the decision may strike the victim too.
    test.world.run_for(SECOND);
    let struck = !test.world.is_running(node);
    if struck {
        test.world.restart(node);
        test.start(victim as u32);
    }
    let outcome = status(&test.wait(&worker));
    test.world.crash_after_writes(node, u64::MAX, false);
    let audits = test.settle();
    let done = match outcome {
        Status::Ok => true,
        Status::Unreachable | Status::TimedOut => false,
        other => panic!("{deed:?}, victim {victim}, write {crash_at}: {other:?}"),
    };
    let seen = test.run(1, async move {
        let from = caller.look(ROOT, &from).await.ok();
        (from, caller.look(ROOT, &to).await.ok(), caller.stat(destination).await.is_ok())
    });
    let before = (Some((source, 1)), has_destination.then_some((destination, 1)), has_destination);
    let after = match deed {
        Deed::Link => (Some((source, 2)), Some((source, 2)), false),
        Deed::Rename | Deed::Replace => (None, Some((source, 1)), false),
        Deed::Exchange => (Some((destination, 1)), Some((source, 1)), true),
        Deed::Unlink => (None, None, false),
    };
    // An error tells nothing; success tells everything.
    let right = seen == after || (!done && seen == before);
    assert!(right, "{deed:?}, victim {victim}, write {crash_at}: told {outcome:?}, found {seen:?}");
    assert_eq!(audits.iter().map(|audit| audit.prepared + audit.intents).sum::<u64>(), 0);
    struck
}

/// Goal: rmdir of a name that a rename has just given to a file says that it is no directory, not that it is missing.
/// Method: the server of the old name dies as soon as it has answered, so that the new name is still locked; rmdir
/// waits.
#[test]
fn removal_waits_for_a_rename() {
    let mut locked = 0;
    for seed in 0..10 {
        let test = TestCluster::new(seed, 2);
        let names = names(&test.cluster, 2);
        let [old, new] = [0, 1].map(|server: usize| names[server][0].clone());
        let caller = test.caller(0, 1);
        let (from, to) = (old.clone(), new.clone());
        let renaming = test.spawn(0, async move {
            caller.create(ROOT, &from).await.expect("created");
            caller.rename(ROOT, &from, &to, 0).await
        });
        test.wait(&renaming).expect("renamed");
        test.kill(0);
        locked += test.server(1).audit().prepared;
        let caller = test.caller(1, 2);
        let removing = test.spawn(1, async move { status(&caller.remove_directory(ROOT, &new).await) });
        test.world.run_for(SECOND / 10);
        test.restart(0);
        assert_eq!(test.wait(&removing), Status::NotDirectory, "seed {seed}");
        test.settle();
    }
    assert!(locked > 0, "no rename was caught in the middle");
}
