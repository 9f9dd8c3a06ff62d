use crate::support::*;
use wire::limits::REQUEST_WINDOW;
use wire::messages::{ReserveAppendRequest, SetAttributesRequest, set_mask};
use wire::{FileId, Operation, Status};

const ROOT: FileId = FileId::ROOT;

/// Goal: a mutating request is executed once, however often its connection breaks and whichever server restarts.
/// Method: `ReserveAppend` moves the end of a file by a fixed amount at each execution, so the final size counts the
/// executions; meanwhile connections are cut and the server is killed and restarted.
#[test]
fn appends_count_executions() {
    for seed in 0..30 {
        let test = TestCluster::new(seed, 2);
        let caller = test.caller(0, 1);
        let file = test.run(0, async move { caller.create(ROOT, "f").await.expect("created").id });
        let caller = test.caller(0, 2);
        let home = caller.home(file);
        let appender = test.spawn(0, async move {
            let mut offsets = Vec::new();
            for _ in 0..30 {
                let reply = caller.call(home, Operation::ReserveAppend, &ReserveAppendRequest { file, size: 10 }).await;
                let reply = reply.expect("appended");
                offsets.push(u64::from_le_bytes(reply.params.try_into().expect("an offset")));
            }
            offsets
        });
        for round in 0..6 {
            test.world.run_for(test.world.random() % 3_000_000);
            if round % 3 == 2 {
                test.restart(home);
            } else {
                test.world.cut(test.callers[0], test.servers[home as usize]);
            }
        }
        let offsets = test.wait(&appender);
        assert_eq!(offsets, (0..30).map(|number| number * 10).collect::<Vec<u64>>(), "seed {seed}");
        let caller = test.caller(1, 3);
        let size = test.run(1, async move { caller.stat(file).await.expect("known").size });
        assert_eq!(size, 300, "seed {seed}");
        test.settle();
    }
}

/// Goal: creates and unlinks whose replies are lost are neither refused nor done twice.
/// Method: exclusive creates and unlinks in turn; each must succeed, though connections are cut all the time.
#[test]
fn creates_and_unlinks_over_cut_connections() {
    for seed in 0..30 {
        let test = TestCluster::new(seed, 3);
        let caller = test.caller(0, 1);
        let worker = test.spawn(0, async move {
            for number in 0..40 {
                let name = format!("f{}", number % 5);
                let made = caller.create(ROOT, &name).await;
                assert_eq!(status(&made), Status::Ok);
                let attributes = made.expect("created");
                for chunk in 0..3 {
                    let written = caller.write(attributes.id, attributes.layout, chunk * 4096, &[9; 3000]).await;
                    assert_eq!(status(&written), Status::Ok);
                }
                assert_eq!(status(&caller.unlink(ROOT, &name).await), Status::Ok);
            }
        });
        while worker.borrow().is_none() {
            test.world.run_for(1 + test.world.random() % 5_000_000);
            let server = test.world.random() as usize % 3;
            test.world.cut(test.callers[0], test.servers[server]);
        }
        test.wait(&worker);
        let audits = test.settle();
        assert_eq!(audits.iter().map(|audit| audit.dentries + audit.chunks).sum::<u64>(), 0, "seed {seed}");
    }
}

/// Goal: a session that the server forgot gets "outcome unknown" for a request that may have been executed, never a
/// second execution.
/// Method: a request is under way when its server is parted from it and restarts; the session's grace passes before the
/// two meet again.
#[test]
fn a_forgotten_session_is_told_so() {
    forgotten_sessions(|_| {});
}

/// Goal: the same when the connection that would have told it so ends before it does, once or twice, and when the
/// server does. Method: as soon as the server knows the session again, which it does with the welcome that it sends.
#[test]
fn a_forgotten_session_is_told_so_in_the_end() {
    // Where the reply was on its way when the two were parted, nobody has to come back.
    let known_again = |test: &TestCluster| {
        test.world.run_until(|| test.server(0).audit().sessions > 0, 10 * SECOND);
    };
    forgotten_sessions(|test| {
        known_again(test);
        test.world.cut(test.callers[0], test.servers[0]);
    });
    forgotten_sessions(|test| {
        known_again(test);
        test.world.cut(test.callers[0], test.servers[0]);
        test.world.run_for(600_000);
        test.world.cut(test.callers[0], test.servers[0]);
    });
    forgotten_sessions(|test| {
        known_again(test);
        test.restart(0);
    });
}

fn forgotten_sessions(disturb: impl Fn(&TestCluster)) {
    let mut unknown = 0;
    for seed in 0..20 {
        let test = TestCluster::with_grace(seed, 1, 3 * SECOND);
        let caller = test.caller(0, 1);
        let file = test.run(0, async move { caller.create(ROOT, "f").await.expect("created").id });
        let caller = test.caller(0, 2);
        let first = caller.clone();
        test.run(0, async move {
            first.call(0, Operation::ReserveAppend, &ReserveAppendRequest { file, size: 10 }).await.expect("appended");
        });
        test.world.set_latency(None, 200_000, 400_000);
        let request = caller.clone();
        let lost = test.spawn(0, async move {
            status(&request.call(0, Operation::ReserveAppend, &ReserveAppendRequest { file, size: 10 }).await)
        });
        test.world.run_for(test.world.random() % 500_000);
        test.world.partition(test.callers[0], test.servers[0]);
        test.restart(0);
        let forgotten = || test.server(0).audit().sessions == 0;
        assert!(test.world.run_until(forgotten, LIMIT), "idle sessions are never forgotten");
        test.world.heal(test.callers[0], test.servers[0]);
        disturb(&test);
        let outcome = test.wait(&lost);
        let caller = test.caller(1, 3);
        let size = test.run(1, async move { caller.stat(file).await.expect("known").size });
        match outcome {
            Status::Ok => assert_eq!(size, 20, "seed {seed}"),
            Status::OutcomeUnknown => assert!(size == 10 || size == 20, "seed {seed}: {size}"),
            other => panic!("seed {seed}: {other:?}"),
        }
        unknown += u32::from(outcome == Status::OutcomeUnknown);
    }
    assert!(unknown > 3, "the session was hardly ever forgotten in time: {unknown}");
}

/// Goal: a request that waits for a server which does not answer holds up nobody else of its session, however many
/// follow it, and is done once, however often it is sent meanwhile. Method: `ReserveAppend` to a file with a share at a
/// server that is parted from the home waits, and counts its executions in the file's size. Several windows of other
/// requests of the same session to the home follow it, then its connection is cut or the home killed.
#[test]
fn a_request_that_waits_holds_up_no_other() {
    for seed in 0..20 {
        let test = TestCluster::new(seed, 2);
        let caller = test.caller(0, 1);
        let name = name_at(&test.cluster, ROOT, 0);
        let (first, other) = (name.clone(), name);
        let file = test.run(0, async move {
            let made = caller.create(ROOT, &first).await.expect("created");
            caller.rename(ROOT, &first, "kept", 0).await.expect("renamed");
            caller.write(made.id, made.layout, 4096, &[7; 4096]).await.expect("written");
            made.id
        });
        let caller = test.caller(0, 2);
        test.world.partition(test.servers[0], test.servers[1]);
        let request = caller.clone();
        let waiting = test.spawn(0, async move {
            status(&request.call(0, Operation::ReserveAppend, &ReserveAppendRequest { file, size: 10 }).await)
        });
        test.world.run_for(10_000_000);
        let others = caller.clone();
        let following = test.spawn(0, async move {
            for _ in 0..3 * REQUEST_WINDOW / 2 {
                others.create(ROOT, &other).await.expect("created");
                others.unlink(ROOT, &other).await.expect("unlinked");
            }
        });
        let done = || following.borrow().is_some();
        assert!(test.world.run_until(done, 1_500_000_000), "others wait for the one that waits, seed {seed}");
        assert!(waiting.borrow().is_none(), "it has to wait for a server that is away, seed {seed}");
        match seed % 3 {
            0 => test.world.cut(test.callers[0], test.servers[0]),
            1 => test.restart(0),
            _ => {}
        }
        test.world.run_for(test.world.random() % 3_000_000);
        test.world.heal(test.servers[0], test.servers[1]);
        assert_eq!(test.wait(&waiting), Status::Ok, "seed {seed}");
        let size = test.run(0, async move { caller.stat(file).await.expect("known").size });
        assert_eq!(size, 8202, "seed {seed}");
        test.settle();
    }
}

/// Goal: a request that its server resumes after a restart, and that waits for another server which stays down, has an
/// answer for its caller when the caller's time is up; what was begun is done once that server is back.
/// Method: rights are taken from a directory while a server is down; the directory's home is killed and started again,
/// so that the caller's channel sends its request once more.
#[test]
fn resumed_requests_keep_deadlines() {
    let test = TestCluster::new(5, 3);
    let caller = test.caller(0, 1);
    let directory = test.run(0, async move { caller.make_directory(FileId::ROOT, "d").await.expect("made") });
    let caller = test.caller(1, 2);
    let home = caller.home(directory);
    let other = (0..3).find(|server| *server != home && *server != caller.home(FileId::ROOT)).expect("three servers");
    test.kill(other);
    let clock = test.reactor_of_caller(1);
    let asked = test.spawn(1, async move {
        let begun = clock.now();
        let mask = set_mask::MODE;
        let request = SetAttributesRequest { file: directory, mask, mode: 0o500, uid: 0, gid: 0, atime: 0, mtime: 0 };
        (status(&caller.set(request).await), clock.now() - begun)
    });
    test.world.run_for(SECOND);
    test.restart(home);
    let (told, took) = test.wait(&asked);
    assert_eq!(told, Status::TimedOut);
    assert!(took < 45 * SECOND, "it took {} s", took / SECOND);
    test.revive(other);
    test.settle();
    let caller = test.caller(2, 3);
    let seen = test.run(2, async move { caller.stat(directory).await.expect("told") });
    assert_eq!(seen.mode, 0o500);
}
