//! What power loss takes and what it leaves, on media that keep what was synced.

use crate::support::*;
use wire::messages::{SynchroniseReply, SynchroniseRequest, open_flags};
use wire::{Decode, FileId, Operation, Status};

const ROOT: FileId = FileId::ROOT;
const CHUNK: u64 = 4096;
const SERVERS: u32 = 3;

fn name(number: u64) -> String {
    format!("f{number}")
}

/// Makes a file with a few bytes in one of its first chunks, which may be on any server.
async fn make(caller: &Caller, number: u64) -> Answer<()> {
    let attributes = caller.create(ROOT, &name(number)).await?;
    let at = number % 5 * CHUNK;
    caller.write(attributes.id, attributes.layout, at, &[number as u8; 50]).await.map(drop)
}

/// Whether the name is there; then its file is whole.
async fn is_whole(caller: &Caller, called: &str, number: u64) -> bool {
    let id = match caller.look(ROOT, called).await {
        Err(failure) if failure.status == Status::NotFound => return false,
        found => found.expect("known").0,
    };
    let attributes = caller.stat(id).await.expect("a name leads to a file");
    let at = number % 5 * CHUNK;
    assert_eq!(attributes.size, at + 50, "{called}");
    let (_, bytes) = caller.read(id, attributes.layout, at, 50).await.expect("read");
    assert_eq!(bytes, [number as u8; 50], "{called}");
    true
}

/// What goes on while power is lost: files come, go, and get other names.
async fn go_on(caller: Caller) -> Answer<()> {
    for number in 0..4 {
        caller.unlink(ROOT, &name(number)).await?;
        caller.rename(ROOT, &name(number + 4), &format!("r{}", number + 4), 0).await?;
        make(&caller, number + 20).await?;
        caller.link(ROOT, &name(number + 20), &format!("l{}", number + 20)).await?;
    }
    Ok(())
}

/// Goal: what was synced before a power loss of some servers or all is there, whole; what was under way happened or did
/// not, on all servers alike: names, link counts and chunks fit together, and nothing is leaked. Method: files are made
/// and synced; while others are made, removed, renamed and linked, power is lost at some moment.
#[test]
fn power_loss_leaves_what_was_synced() {
    for seed in 0..48u64 {
        let test = TestCluster::with_grace(seed, SERVERS, 5 * SECOND);
        let caller = test.caller(0, 1);
        let own = caller.clone();
        test.run(0, async move {
            for number in 0..12 {
                make(&own, number).await.expect("made");
            }
            own.synchronise().await.expect("synced");
        });
        let under_way = test.spawn(0, go_on(caller));
        test.world.run_for(seed * 700_000);
        let victims: Vec<u32> = (0..SERVERS).filter(|server| (seed % 7 + 1) >> server & 1 == 1).collect();
        victims.iter().for_each(|server| test.lose_power(*server));
        for server in victims {
            test.world.restart(test.servers[server as usize]);
            test.start(server);
        }
        test.world.run_until(|| under_way.borrow().is_some(), LIMIT);
        test.settle();
        let caller = test.caller(1, 2);
        test.run(1, async move {
            for number in 0..12u64 {
                let stays = is_whole(&caller, &name(number), number).await;
                match number {
                    0..4 => {}
                    4..8 => {
                        let moved = is_whole(&caller, &format!("r{number}"), number).await;
                        assert!(stays != moved, "file {number} has one name, seed {seed}");
                    }
                    _ => assert!(stays, "file {number} was synced, seed {seed}"),
                }
            }
            for left in caller.list(ROOT).await.expect("listed") {
                caller.unlink(ROOT, &left).await.expect("removed");
            }
        });
        let audits = test.settle();
        assert!(audits.iter().all(|audit| audit.chunks + audit.dentries == 0), "seed {seed}: {audits:?}");
    }
}

/// Goal: after a power loss no id is given out that was given out before, and a session is not mistaken for what it
/// was. Method: files are made and not synced; all servers lose power; the same session makes files again.
#[test]
fn ids_are_never_given_out_twice() {
    for seed in 0..8 {
        let test = TestCluster::new(seed, SERVERS);
        let caller = test.caller(0, 1);
        let own = caller.clone();
        let before = test.run(0, async move {
            let mut ids = Vec::new();
            for number in 0..20 {
                ids.push(own.create(ROOT, &name(number)).await.expect("made").id);
            }
            ids
        });
        (0..SERVERS).for_each(|server| test.lose_power(server));
        for server in 0..SERVERS {
            test.world.restart(test.servers[server as usize]);
            test.start(server);
        }
        test.run(0, async move {
            for number in 0..20 {
                // What is sent before the loss is noticed ends so.
                let made = loop {
                    match caller.open(ROOT, &name(number), open_flags::CREATE).await {
                        Err(failure) if failure.status == Status::OutcomeUnknown => {}
                        opened => break opened.expect("opened"),
                    }
                };
                assert!(!made.created || !before.contains(&made.attributes.id), "seed {seed}");
            }
        });
        test.settle();
    }
}

/// Goal: the same when the first start after the power loss is killed at any write: what power took is dealt with
/// before anything says so. Method: the session is synced, the files made after that are not. The first start dies with
/// its n-th write; the next one serves.
#[test]
fn ids_are_never_given_out_twice_however_often_it_starts() {
    let mut deaths = 0;
    for count in 1..40 {
        let test = TestCluster::new(count, 1);
        let caller = test.caller(0, 1);
        let own = caller.clone();
        let before = test.run(0, async move {
            own.create(ROOT, "first").await.expect("made");
            own.synchronise().await.expect("synced");
            let mut ids = Vec::new();
            for number in 0..20 {
                ids.push(own.create(ROOT, &name(number)).await.expect("made").id);
            }
            ids
        });
        test.lose_power(0);
        test.world.restart(test.servers[0]);
        if test.start_or_die(0, count) {
            deaths += 1;
            test.world.restart(test.servers[0]);
            test.start(0);
        }
        assert_eq!(test.server(0).audit().sessions, 0, "write {count}: the session is known, and what it did is gone");
        let other = test.caller(1, 2);
        test.run(1, async move {
            for number in 0..20 {
                let made = other.open(ROOT, &name(number), open_flags::CREATE).await.expect("opened");
                assert!(!made.created || !before.contains(&made.attributes.id), "write {count}");
            }
        });
        test.settle();
    }
    assert!(deaths > 5, "{deaths} starts died");
}

/// Goal: what a start after a power loss journals may make a checkpoint due, whose sync and the start's own do not
/// meet. Method: the journal is filled to each of many levels, by creates of several sessions, which the start forgets
/// one by one.
#[test]
fn starts_after_power_loss_with_any_journal() {
    for count in (0..1_200).step_by(3) {
        let test = TestCluster::new(count, 1);
        let callers: Vec<Caller> = (0..24).map(|session| test.caller(0, 1 + session)).collect();
        test.run(0, async move {
            for number in 0..count {
                let caller = &callers[number as usize % callers.len()];
                caller.create(ROOT, &name(number)).await.expect("made");
            }
            callers[0].synchronise().await.expect("synced");
        });
        test.lose_power(0);
        test.world.restart(test.servers[0]);
        test.start(0);
        assert_eq!(test.server(0).audit().sessions, 0, "{count} files");
    }
}

/// fsync of a file that was open all the time; what its caller is told of errors of earlier writes.
async fn fsync(caller: &Caller, file: FileId, seen: u64) -> Answer<u64> {
    let request = SynchroniseRequest { file, seen, opened_at: 0, is_question: false };
    let reply = caller.call(caller.home(file), Operation::Synchronise, &request).await?;
    Ok(SynchroniseReply::from_bytes(&reply.params).expect("the reply is well-formed").trouble)
}

/// Goal: data that a medium refused is told of once to a descriptor; a server that is started anew has forgotten that,
/// but not the data: the fsync that it confirms holds through power loss. Method: a sync of data fails; fsync is called
/// before the restart of the server or only after it; then power is lost.
#[test]
fn a_restart_forgets_errors_and_no_data() {
    for asks_before in [false, true] {
        let test = TestCluster::new(9, 1);
        let caller = test.caller(0, 1);
        let own = caller.clone();
        let node = test.servers[0];
        let file = test.run(0, async move {
            let made = own.create(ROOT, "file").await.expect("created");
            own.synchronise().await.expect("synced");
            own.write(made.id, made.layout, 0, &[5; 3000]).await.expect("written");
            made
        });
        test.world.fail_sync(node, 1);
        let own = caller.clone();
        let seen = test.run(0, async move {
            assert_eq!(status(&own.synchronise().await), Status::Io, "the medium refuses");
            if !asks_before {
                return 0;
            }
            let seen = fsync(&own, file.id, 0).await.expect("the second sync is taken");
            assert!(seen > 0, "the error is told");
            assert_eq!(fsync(&own, file.id, seen).await.expect("nothing is refused"), 0, "and once");
            seen
        });
        test.restart(0);
        let own = caller.clone();
        test.run(0, async move {
            assert_eq!(
                fsync(&own, file.id, seen).await.expect("all is written anew"),
                0,
                "asked before: {asks_before}"
            );
        });
        test.lose_power(0);
        test.world.restart(node);
        test.start(0);
        test.run(0, async move {
            let (_, bytes) = caller.read(file.id, file.layout, 0, 3000).await.expect("read");
            assert!(bytes == [5; 3000], "asked before: {asks_before}");
        });
        test.settle();
    }
}

/// Goal: stores on tmpfs keep everything that was acknowledged when servers are killed, and nothing when power is lost;
/// servers start either way.
/// Method: files are made and no sync is asked for; all servers are killed, later all lose power.
#[test]
fn tmpfs_keeps_all_or_nothing() {
    let test = TestCluster::new(11, SERVERS);
    let lose_power = || {
        for server in 0..SERVERS {
            test.lose_power(server);
            test.world.set_volatile(test.servers[server as usize], true);
        }
        for server in 0..SERVERS {
            test.world.restart(test.servers[server as usize]);
            test.start(server);
        }
    };
    lose_power();
    let caller = test.caller(0, 1);
    let own = caller.clone();
    test.run(0, async move {
        for number in 0..12 {
            make(&own, number).await.expect("made");
        }
    });
    (0..SERVERS).for_each(|server| test.restart(server));
    test.run(0, async move {
        for number in 0..12 {
            assert!(is_whole(&caller, &name(number), number).await, "file {number} was acknowledged");
        }
    });
    lose_power();
    let caller = test.caller(1, 2);
    test.run(1, async move {
        assert_eq!(caller.list(ROOT).await.expect("listed"), Vec::<String>::new());
        make(&caller, 0).await.expect("the cluster works");
    });
    test.settle();
}
