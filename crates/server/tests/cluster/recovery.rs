use crate::support::*;
use wire::messages::{Empty, open_flags};
use wire::{FileId, Operation, Status};

const ROOT: FileId = FileId::ROOT;
const CHUNK: u64 = 4096;

/// Goal: a restart keeps everything acknowledged: names, attributes, sizes, bytes.
/// Method: enough operations for several checkpoints, all servers killed one by one, then everything is compared.
#[test]
fn restarts_recover_all() {
    for seed in 0..4 {
        let test = TestCluster::new(seed, 3);
        let caller = test.caller(0, 1);
        let ids = test.run(0, async move {
            let directory = caller.make_directory(ROOT, "d").await.expect("made");
            let mut ids = Vec::new();
            for number in 0..400u64 {
                let attributes = caller.create(directory, &format!("f{number}")).await.expect("created");
                let at = number % 4 * CHUNK;
                caller.write(attributes.id, attributes.layout, at, &[number as u8; 50]).await.expect("written");
                if number % 3 == 0 {
                    caller.unlink(directory, &format!("f{number}")).await.expect("unlinked");
                } else {
                    ids.push((number, attributes.id));
                }
            }
            (directory, ids)
        });
        let before = test.settle();
        for server in 0..3 {
            test.restart(server);
        }
        let after = test.settle();
        for (before, after) in before.iter().zip(&after) {
            let counts = |audit: &server::Audit| (audit.dentries, audit.inodes, audit.chunks, audit.bytes_used);
            assert_eq!(counts(before), counts(after), "seed {seed}");
        }
        let caller = test.caller(1, 2);
        test.run(1, async move {
            let (directory, ids) = ids;
            for (number, id) in ids {
                let opened = caller.open(directory, &format!("f{number}"), 0).await.expect("opened");
                assert_eq!(opened.attributes.id, id);
                let at = number % 4 * CHUNK;
                assert_eq!(caller.stat(id).await.expect("known").size, at + 50);
                let (_, bytes) = caller.read(id, opened.attributes.layout, at, 50).await.expect("read");
                assert_eq!(bytes, [number as u8; 50]);
            }
        });
    }
}

/// Goal: removals, truncates and unlinks that a crash interrupts at any write end, one way or the other, and leave
/// nothing behind; what was acknowledged holds.
/// Method: for each n the n-th write of one server to its store is torn and its last; it is restarted, and the caller,
/// whose channel resends, gets its answer.
#[test]
fn operations_survive_a_crash_at_each_write() {
    for crash_at in 1..40 {
        for victim in 0..2 {
            let test = TestCluster::new(crash_at, 2);
            let caller = test.caller(0, 1);
            let (directory, file) = (name_at(&test.cluster, ROOT, 0), name_at(&test.cluster, FileId(5), 0));
            let setup = caller.clone();
            let (directory_name, file_name) = (directory.clone(), file.clone());
            let made = test.run(0, async move {
                setup.make_directory(ROOT, &directory_name).await.expect("made");
                let made = setup.create(ROOT, &file_name).await.expect("created");
                for chunk in 0..4 {
                    setup.write(made.id, made.layout, chunk * CHUNK, &[1; 4096]).await.expect("written");
                }
                made
            });
            let node = test.servers[victim];
            test.world.crash_after_writes(node, crash_at, true);
            let worker = test.spawn(0, async move {
                let cut = caller.truncate(made.id, CHUNK + 10).await.expect("cut");
                assert_eq!(cut.size, CHUNK + 10);
                let removal = status(&caller.remove_directory(ROOT, &directory).await);
                assert!(matches!(removal, Status::Ok | Status::Unreachable | Status::TimedOut), "{removal:?}");
                let opened = caller.open(ROOT, &file, open_flags::TRUNCATE).await.expect("cut");
                assert_eq!(opened.attributes.size, 0);
                assert_eq!(caller.stat(made.id).await.expect("known").size, 0);
                caller.unlink(ROOT, &file).await.expect("unlinked");
                assert_eq!(status(&caller.stat(made.id).await), Status::StaleFile);
                removal
            });
            let ended = || worker.borrow().is_some() || !test.world.is_running(node);
            assert!(test.world.run_until(ended, LIMIT));
            if !test.world.is_running(node) {
                test.world.restart(node);
                test.start(victim as u32);
            }
            let removal = test.wait(&worker);
            test.world.crash_after_writes(node, u64::MAX, false);
            let audits = test.settle();
            let left = u64::from(removal != Status::Ok);
            assert_eq!(audits.iter().map(|audit| audit.dentries).sum::<u64>(), left, "crash at write {crash_at}");
            assert_eq!(audits.iter().map(|audit| audit.chunks + audit.files).sum::<u64>(), 0);
        }
    }
}

/// Goal: a directory can't be removed while a server can't be reached; the error names it, and nothing stays marked.
#[test]
fn removal_needs_all_servers() {
    let test = TestCluster::new(2, 3);
    let caller = test.caller(0, 1);
    let setup = caller.clone();
    let name = name_at(&test.cluster, ROOT, 0);
    let directory_name = name.clone();
    let directory = test.run(0, async move { setup.make_directory(ROOT, &directory_name).await.expect("made") });
    test.kill(2);
    let refused = caller.clone();
    let removal_name = name.clone();
    let failure = test.run(0, async move { refused.remove_directory(ROOT, &removal_name).await });
    let failure = failure.expect_err("server 2 is down");
    assert!(matches!(failure.status, Status::Unreachable | Status::TimedOut), "{failure}");
    assert!(failure.to_string().contains("server 2"), "{failure}");
    test.world.restart(test.servers[2]);
    test.start(2);
    test.settle();
    test.run(0, async move {
        caller.create(directory, "f").await.expect("created");
        assert_eq!(status(&caller.remove_directory(ROOT, &name).await), Status::NotEmpty);
        caller.unlink(directory, "f").await.expect("unlinked");
        caller.remove_directory(ROOT, &name).await.expect("removed");
    });
    test.settle();
}

/// Goal: nobody waits for the session of who has told a server to go, when it is started again.
#[test]
fn who_asks_for_the_end_is_forgotten() {
    let test = TestCluster::new(2, 1);
    let caller = test.caller(0, 1);
    test.run(0, async move {
        caller.create(ROOT, "f").await.expect("created");
        caller.call(0, Operation::Shutdown, &Empty {}).await.expect("told");
    });
    let server = test.server(0);
    assert!(test.world.run(test.servers[0], async move { server.stop().await }, LIMIT).is_some());
    test.restart(0);
    let audit = &test.audits()[0];
    assert_eq!((audit.dentries, audit.unreclaimed, audit.sessions), (1, 0, 0));
}

/// Goal: a clean stop and start keeps everything and needs no replay.
#[test]
fn clean_stop() {
    let test = TestCluster::new(2, 1);
    let caller = test.caller(0, 1);
    test.run(0, async move {
        for number in 0..50 {
            caller.create(ROOT, &format!("f{number}")).await.expect("created");
        }
    });
    let server = test.server(0);
    assert!(test.world.run(test.servers[0], async move { server.stop().await }, LIMIT).is_some());
    test.restart(0);
    assert_eq!(test.settle()[0].dentries, 50);
    let caller = test.caller(1, 2);
    let names = test.run(1, async move { caller.list(ROOT).await.expect("listed") });
    assert_eq!(names.len(), 50);
}
