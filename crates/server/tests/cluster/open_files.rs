//! Files that are open when they lose their last name, and files that never had one.

use crate::support::*;
use reactor::sim::CrashKind;
use wire::messages::{FileRequest, OpenIdRequest, OpenReply, open_flags};
use wire::{FileId, Operation, Status};

const ROOT: FileId = FileId::ROOT;
const CHUNK: u64 = 4096;

/// Nothing is left of any file.
fn assert_empty(test: &TestCluster) {
    let gone = || test.audits().iter().all(|audit| audit.orphans + audit.chunks + audit.files + audit.open_files == 0);
    assert!(test.world.run_until(gone, LIMIT), "{:?}", test.audits());
    let audits = test.settle();
    assert_eq!(audits.iter().map(|audit| audit.inodes).sum::<u64>(), 1, "{audits:?}");
}

/// Makes a file with six chunks and keeps it open.
async fn make(caller: &Caller, name: &str) -> OpenReply {
    let opened = caller.open_for_good(ROOT, name, open_flags::CREATE).await.expect("created");
    fill(caller, &opened).await;
    opened
}

async fn fill(caller: &Caller, opened: &OpenReply) {
    let (id, layout) = (opened.attributes.id, opened.attributes.layout);
    for chunk in 0..6 {
        caller.write(id, layout, chunk * CHUNK, &[chunk as u8 + 1; 4096]).await.expect("written");
    }
}

/// What an open file without a name is still good for.
async fn use_it(caller: &Caller, opened: &OpenReply) {
    let (id, layout) = (opened.attributes.id, opened.attributes.layout);
    let seen = caller.stat(id).await.expect("it is open");
    assert_eq!((seen.link_count, seen.size), (0, 6 * CHUNK));
    for chunk in 0..6 {
        let (_, bytes) = caller.read(id, layout, chunk * CHUNK, 100).await.expect("read");
        assert_eq!(bytes, [chunk as u8 + 1; 100]);
    }
    caller.write(id, layout, 6 * CHUNK, &[7; 10]).await.expect("written");
    assert_eq!(caller.truncate(id, 6 * CHUNK).await.expect("cut").size, 6 * CHUNK);
}

/// Goal: "rename over an open file": whoever has it open keeps it, wherever names and inode live.
/// Method: all pairs of servers for the two names; two have the replaced file open, and close it one after the other.
#[test]
fn rename_over_an_open_file() {
    for (from, to) in (0..9).map(|pair| (pair / 3, pair % 3)) {
        let test = TestCluster::new(1, 3);
        let (one, other) = (test.caller(0, 1), test.caller(1, 2));
        let (a, b) = (name_at(&test.cluster, ROOT, from), format!("{}x", name_at(&test.cluster, ROOT, to)));
        test.run(0, async move {
            let opened = make(&one, &b).await;
            let second = other.open_for_good(ROOT, &b, 0).await.expect("opened");
            other.create(ROOT, &a).await.expect("created");
            other.rename(ROOT, &a, &b, 0).await.expect("replaced");
            assert_ne!(one.look(ROOT, &b).await.expect("there").0, opened.attributes.id);
            use_it(&one, &opened).await;
            one.close(&opened).await.expect("closed");
            use_it(&other, &second).await;
            other.close(&second).await.expect("closed");
            assert_eq!(status(&one.stat(opened.attributes.id).await), Status::StaleFile);
            one.unlink(ROOT, &b).await.expect("unlinked");
        });
        assert_empty(&test);
    }
}

/// Goal: an open that fails takes nothing from those that its session has made before. Method: a file that is open is
/// to be opened and cut while a server with chunks of it is down; then its name is removed.
#[test]
fn failed_open_leaves_earlier_ones() {
    let test = TestCluster::new(3, 3);
    let caller = test.caller(0, 1);
    let name = name_at(&test.cluster, ROOT, 0);
    let (keeper, held) = (caller.clone(), name.clone());
    let opened = test.run(0, async move { make(&keeper, &held).await });
    test.kill(1);
    let (keeper, held) = (caller.clone(), name.clone());
    let refused = test.run(0, async move { keeper.open_for_good(ROOT, &held, open_flags::TRUNCATE).await });
    assert!(matches!(status(&refused), Status::TimedOut | Status::Unreachable), "{refused:?}");
    test.restart(1);
    test.run(0, async move {
        caller.truncate(opened.attributes.id, 0).await.expect("the cut before is done");
        fill(&caller, &opened).await;
        caller.unlink(ROOT, &name).await.expect("unlinked");
        use_it(&caller, &opened).await;
        caller.close(&opened).await.expect("closed");
    });
    assert_empty(&test);
}

/// Goal: "link against unlink of the last name": the file ends with one name or none, and the link count says which.
/// Method: both at once, from two nodes, the names on the same and on different servers; a third has the file open.
#[test]
fn link_against_unlink_of_the_last_name() {
    for seed in 0..24 {
        let test = TestCluster::new(seed, 3);
        let (a, b) = (name_at(&test.cluster, ROOT, 0), format!("{}x", name_at(&test.cluster, ROOT, (seed % 3) as u32)));
        let holder = test.caller(2, 3);
        let (keeper, name) = (holder.clone(), a.clone());
        let opened = test.run(2, async move { make(&keeper, &name).await });
        let (linker, remover) = (test.caller(0, 1), test.caller(1, 2));
        let (old, new) = (a.clone(), b.clone());
        let link = test.spawn(0, async move { status(&linker.link(ROOT, &old, &new).await) });
        let old = a.clone();
        let unlink = test.spawn(1, async move { status(&remover.unlink(ROOT, &old).await) });
        let (link, unlink) = (test.wait(&link), test.wait(&unlink));
        assert_eq!(unlink, Status::Ok, "seed {seed}");
        test.settle();
        test.run(2, async move {
            let left = match link {
                Status::Ok => 1,
                Status::NotFound => 0,
                other => panic!("seed {seed}: {other:?}"),
            };
            assert_eq!(holder.stat(opened.attributes.id).await.expect("open").link_count, left);
            assert_eq!(holder.look(ROOT, &b).await.is_ok(), left == 1);
            if left == 1 {
                holder.unlink(ROOT, &b).await.expect("unlinked");
            }
            holder.close(&opened).await.expect("closed");
        });
        assert_empty(&test);
    }
}

/// Goal: "file unlinked while open on another client, then its client dies": it is there for the grace time, then gone.
#[test]
fn unlinked_while_open_on_a_client_that_dies() {
    let test = TestCluster::with_grace(4, 3, 5 * SECOND);
    let (holder, remover) = (test.caller(0, 1), test.caller(1, 2));
    let opened = test.run(0, async move { make(&holder, "f").await });
    let (again, file) = (remover.clone(), opened.attributes.id);
    test.run(1, async move { remover.unlink(ROOT, "f").await.expect("unlinked") });
    test.world.crash(test.callers[0], CrashKind::Kill);
    test.world.run_for(2 * SECOND);
    let look = again.clone();
    test.run(1, async move { use_it(&look, &opened).await });
    test.world.run_for(10 * SECOND);
    test.run(1, async move { assert_eq!(status(&again.stat(file).await), Status::StaleFile) });
    assert_empty(&test);
}

/// Goal: "server of the file restarted between unlink and close", and between open and unlink: the file stays until its
/// session, which has told what it has open, closes it. What a session that does not come back had open goes with it.
#[test]
fn server_restarted_between_unlink_and_close() {
    for restart_first in [false, true] {
        let test = TestCluster::with_grace(5, 3, 8 * SECOND);
        let (holder, lost, remover) = (test.caller(0, 1), test.caller(2, 3), test.caller(1, 2));
        let keeper = holder.clone();
        let opened = test.run(0, async move { make(&keeper, "f").await });
        test.run(2, async move {
            lost.open_for_good(ROOT, "f", 0).await.expect("opened");
            make(&lost, "g").await;
        });
        test.world.crash(test.callers[2], CrashKind::Kill);
        let restart = || test.server_indexes().for_each(|server| test.restart(server));
        if restart_first {
            restart();
        }
        test.run(1, async move {
            remover.unlink(ROOT, "f").await.expect("unlinked");
            remover.unlink(ROOT, "g").await.expect("unlinked");
        });
        if !restart_first {
            restart();
        }
        let waiting: u64 = test.audits().iter().map(|audit| audit.orphans).sum();
        assert_eq!(waiting, 2, "nobody has said yet what is open");
        let (keeper, handle) = (holder.clone(), opened.clone());
        test.run(0, async move { use_it(&keeper, &handle).await });
        let one_left = || test.audits().iter().map(|audit| audit.orphans).sum::<u64>() == 1;
        assert!(test.world.run_until(one_left, LIMIT), "{:?}", test.audits());
        test.run(0, async move {
            use_it(&holder, &opened).await;
            holder.close(&opened).await.expect("closed");
        });
        assert_empty(&test);
    }
}

/// Goal: what a client had open goes when it says that it has ended, and no server waits for it to come back, also none
/// that is started anew. Method: a grace time that is longer than the test; files that others have open too.
#[test]
fn sessions_that_end() {
    let test = TestCluster::with_grace(6, 3, 10_000 * SECOND);
    let (ending, keeper) = (test.caller(0, 1), test.caller(1, 2));
    let is_known = |count: u64| test.audits().iter().map(|audit| audit.sessions).sum::<u64>() == count;
    let left = |count: u64| {
        let orphans = || test.audits().iter().map(|audit| audit.orphans).sum::<u64>();
        assert!(test.world.run_until(|| orphans() == count, SECOND), "{:?}", test.audits());
    };
    let own = keeper.clone();
    let opened = test.run(1, async move { [make(&own, "f").await, make(&own, "g").await] });
    let (own, removing) = (ending.clone(), keeper.clone());
    test.run(0, async move {
        make(&own, "h").await;
        own.open_for_good(ROOT, "f", 0).await.expect("opened");
    });
    test.run(1, async move {
        for name in ["f", "g", "h"] {
            removing.unlink(ROOT, name).await.expect("unlinked");
        }
    });
    left(3);
    test.run(0, async move { ending.end().await });
    left(2);
    assert!(is_known(3), "only one client is left: {:?}", test.audits());
    let [f, g] = opened;
    let own = keeper.clone();
    test.run(1, async move { own.close(&f).await.expect("closed") });
    left(1);
    test.server_indexes().for_each(|server| test.restart(server));
    test.run(1, async move {
        use_it(&keeper, &g).await;
        keeper.close(&g).await.expect("closed");
    });
    left(0);
    assert_empty(&test);
}

/// Goal: a file without a name lives like any other, may be given a name once, and only if it was made for that.
#[test]
fn files_without_a_name() {
    for server in 0..3 {
        let test = TestCluster::new(6, 3);
        let caller = test.caller(0, 1);
        test.run(0, async move {
            let made = caller.make_temporary(server, true).await.expect("made");
            let id = made.attributes.id;
            assert_eq!((made.attributes.link_count, caller.home(id)), (0, server));
            fill(&caller, &made).await;
            use_it(&caller, &made).await;
            caller.create(ROOT, "taken").await.expect("created");
            assert_eq!(status(&caller.link_open(id, ROOT, "taken").await), Status::Exists);
            caller.link_open(id, ROOT, "named").await.expect("linked");
            caller.link_open(id, ROOT, "twice").await.expect("linked");
            assert_eq!(caller.look(ROOT, "named").await.expect("there"), (id, 2));
            for name in ["named", "twice", "taken"] {
                caller.unlink(ROOT, name).await.expect("unlinked");
            }
            use_it(&caller, &made).await;
            assert_eq!(status(&caller.link_open(id, ROOT, "named").await), Status::NotFound);
            caller.close(&made).await.expect("closed");
            assert_eq!(status(&caller.link_open(id, ROOT, "named").await), Status::StaleFile);
            let private = caller.make_temporary(server, false).await.expect("made");
            assert_eq!(status(&caller.link_open(private.attributes.id, ROOT, "named").await), Status::NotFound);
            caller.close(&private).await.expect("closed");
        });
        assert_empty(&test);
    }
}

/// Goal: an open that goes on at the home of an inode which lost its last name meanwhile is sent back to the name; one
/// that cuts does not cut.
#[test]
fn open_by_id_of_a_file_without_a_name() {
    let test = TestCluster::new(7, 2);
    let caller = test.caller(0, 1);
    test.run(0, async move {
        let opened = make(&caller, "f").await;
        let file = opened.attributes.id;
        caller.unlink(ROOT, "f").await.expect("unlinked");
        for (operation, flags) in [(Operation::OpenIdExisting, 0), (Operation::OpenId, open_flags::TRUNCATE)] {
            let request = OpenIdRequest { file, flags, access: 0 };
            let answer = caller.call(caller.home(file), operation, &request).await;
            assert_eq!(answer.expect_err("refused").id, file);
        }
        use_it(&caller, &opened).await;
        caller.close(&opened).await.expect("closed");
        let answer = caller.call(caller.home(file), Operation::StatId, &FileRequest { file }).await;
        assert_eq!(status(&answer), Status::StaleFile);
    });
    assert_empty(&test);
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Deed {
    Unlink,
    Close,
    MakeTemporary,
    LinkOpen,
}

/// Goal: a crash at any step of the unlink of an open file, of its last close, of the making of a file without a name
/// and of its first link leaves the file whole for who has it open, and nothing after the last close. Method: for each
/// server and n, its n-th write is torn and its last; it is started again, and the caller, whose channel resends, goes
/// on: it reads what it has open, closes it, and removes the name that there may be.
#[test]
fn open_files_survive_a_crash_at_each_write() {
    for deed in [Deed::Unlink, Deed::Close, Deed::MakeTemporary, Deed::LinkOpen] {
        for victim in 0..3 {
            let crashes = (1..30).take_while(|crash_at| crash_during(deed, victim, *crash_at)).count();
            // The inode's home is server 0, the new name of a link is at server 1, and server 2 has chunks.
            let has_part = match deed {
                Deed::Unlink | Deed::MakeTemporary => victim == 0,
                Deed::Close => true,
                Deed::LinkOpen => victim < 2,
            };
            assert_eq!(crashes >= 1, has_part, "{deed:?}, victim {victim}: struck {crashes} times");
        }
    }
}

/// False when the victim did not write that often.
fn crash_during(deed: Deed, victim: usize, crash_at: u64) -> bool {
    let test = TestCluster::new(crash_at, 3);
    let (caller, remover) = (test.caller(0, 1), test.caller(1, 2));
    let (name, new) = (name_at(&test.cluster, ROOT, 0), name_at(&test.cluster, ROOT, 1));
    let (maker, old) = (caller.clone(), name.clone());
    let first = test.run(0, async move {
        match deed {
            Deed::MakeTemporary => {
                // Sessions begin with a write of their own.
                maker.create(ROOT, &old).await.expect("created");
                maker.unlink(ROOT, &old).await.expect("unlinked");
                None
            }
            Deed::LinkOpen => {
                let made = maker.make_temporary(0, true).await.expect("made");
                fill(&maker, &made).await;
                Some(made)
            }
            _ => Some(make(&maker, &old).await),
        }
    });
    let old = name.clone();
    let unlinker = remover.clone();
    test.run(1, async move {
        unlinker.create(ROOT, "other").await.expect("created");
        if deed == Deed::Close {
            unlinker.unlink(ROOT, &old).await.expect("unlinked");
        }
        unlinker.unlink(ROOT, "other").await.expect("unlinked");
    });
    test.settle();
    // Samples are written too, each second until one in which nothing happens: they are over, and the next is not due.
    test.world.run_for(4 * SECOND);
    let node = test.servers[victim];
    test.world.crash_after_writes(node, crash_at, true);
    let (actor, opened, old, to) = (caller.clone(), first.clone(), name.clone(), new.clone());
    let worker = test.spawn(if deed == Deed::Unlink { 1 } else { 0 }, async move {
        match (deed, opened) {
            (Deed::Unlink, _) => remover.unlink(ROOT, &old).await.map(|()| None),
            (Deed::Close, Some(opened)) => actor.close(&opened).await.map(|()| None),
            (Deed::LinkOpen, Some(opened)) => actor.link_open(opened.attributes.id, ROOT, &to).await.map(|()| None),
            _ => actor.make_temporary(0, true).await.map(Some),
        }
    });
    let ended = || !test.world.is_running(node) || worker.borrow().is_some();
    assert!(test.world.run_until(ended, LIMIT));
    // What follows the answer may strike the victim too.
    test.world.run_for(SECOND * 9 / 10);
    let struck = !test.world.is_running(node);
    if struck {
        test.world.restart(node);
        test.start(victim as u32);
    }
    let outcome = test.wait(&worker);
    test.world.crash_after_writes(node, u64::MAX, false);
    test.run(0, async move {
        match (deed, outcome.expect("the channel asks until it knows"), first) {
            // It goes as soon as the session of the other caller is forgotten, which might have had it open as well.
            (Deed::Close, _, Some(_)) => {}
            (Deed::Unlink, _, Some(opened)) => {
                use_it(&caller, &opened).await;
                caller.close(&opened).await.expect("closed");
            }
            (Deed::LinkOpen, _, Some(opened)) => {
                assert_eq!(caller.look(ROOT, &new).await.expect("named"), (opened.attributes.id, 1));
                caller.close(&opened).await.expect("closed");
                caller.unlink(ROOT, &new).await.expect("unlinked");
            }
            (_, made, _) => {
                let made = made.expect("made");
                fill(&caller, &made).await;
                use_it(&caller, &made).await;
                caller.close(&made).await.expect("closed");
            }
        }
    });
    assert_empty(&test);
    struck
}
