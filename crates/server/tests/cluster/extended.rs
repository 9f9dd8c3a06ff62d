use crate::backing::{contents, find, flush, pattern};
use crate::support::*;
use reactor::sim::{BackingFaults, World};
use reactor::{Call, Reply};
use server::{FlushPolicy, Flushing};
use std::io::IoSlice;
use wire::limits::EXTENDED_SIZE_MAX;
use wire::messages::*;
use wire::{FileId, Operation, Status};

const ROOT: FileId = FileId::ROOT;
const EIO: i32 = 5;

fn extended(name: &str) -> ExtendedName<'_> {
    ExtendedName::new(name.as_bytes()).expect("names in tests are valid")
}

async fn set(caller: &Caller, file: FileId, name: &str, value: &[u8], flags: u32) -> Status {
    let slices = [IoSlice::new(value)];
    let mut call = Call::new(Operation::SetAttribute, &SetExtendedRequest { file, name: extended(name), flags });
    call.body = &slices;
    status(&caller.send(caller.home(file), call).await)
}

async fn get(caller: &Caller, file: FileId, name: &str, size_max: u32) -> Answer<Reply> {
    let request = GetExtendedRequest { file, name: extended(name), size_max };
    caller.call(caller.home(file), Operation::GetAttribute, &request).await
}

async fn list(caller: &Caller, file: FileId) -> Vec<u8> {
    let request = ListExtendedRequest { file, size_max: EXTENDED_SIZE_MAX as u32 };
    caller.call(caller.home(file), Operation::ListAttributes, &request).await.expect("a list").body
}

async fn remove(caller: &Caller, file: FileId, name: &str) -> Status {
    let request = RemoveExtendedRequest { file, name: extended(name) };
    status(&caller.call(caller.home(file), Operation::RemoveAttribute, &request).await)
}

/// Goal: an attribute is set and removed exactly once, over lost replies and killed servers, and its values stay.
/// Method: a name is made with CREATE and removed in turn, each of which must succeed, though connections are cut and
/// the server is killed; values are so large that checkpoints run meanwhile.
#[test]
fn once_over_cuts_and_kills() {
    for seed in 0..20 {
        let test = TestCluster::new(seed, 2);
        let caller = test.caller(0, 1);
        let file = test.run(0, async move { caller.create(ROOT, "f").await.expect("created").id });
        let caller = test.caller(0, 2);
        let home = caller.home(file);
        let worker = test.spawn(0, async move {
            for round in 0..40u8 {
                let value = vec![round; usize::from(round) * 300];
                assert_eq!(set(&caller, file, "user.turn", &value, extended_flags::CREATE).await, Status::Ok);
                assert_eq!(set(&caller, file, "user.kept", &value, 0).await, Status::Ok);
                assert_eq!(get(&caller, file, "user.turn", 65_536).await.expect("there").body, value);
                assert_eq!(remove(&caller, file, "user.turn").await, Status::Ok);
            }
        });
        let mut round = 0;
        while worker.borrow().is_none() {
            round += 1;
            test.world.run_for(1 + test.world.random() % 5_000_000);
            if round % 7 == 0 {
                test.restart(home);
            } else {
                test.world.cut(test.callers[0], test.servers[home as usize]);
            }
        }
        test.wait(&worker);
        test.restart(home);
        let caller = test.caller(1, 3);
        test.run(1, async move {
            assert_eq!(list(&caller, file).await, b"user.kept\0");
            assert_eq!(get(&caller, file, "user.kept", 65_536).await.expect("there").body, vec![39; 39 * 300]);
            assert_eq!(status(&caller.unlink(ROOT, "f").await), Status::Ok);
        });
        // The server was started again: until all sessions have said what they have open, the file may be among it.
        test.settle();
        let caller = test.caller(1, 4);
        test.run(1, async move {
            assert_eq!(status(&get(&caller, file, "user.kept", 0).await), Status::StaleFile);
        });
        let audits = test.settle();
        assert_eq!(audits.iter().map(|audit| audit.extended).sum::<u64>(), 0, "seed {seed}");
    }
}

/// Goal: the name spaces of xattr(7): who may set, read and list what, with Linux's errors.
/// Method: a file and a sticky directory of one user, looked at by the superuser, the owner and somebody else.
#[test]
fn rights() {
    let test = TestCluster::new(1, 1);
    let (root, owner, other) = (test.caller(0, 1), test.caller_as(1, 2, 1000), test.caller_as(2, 3, 2000));
    let makes = test.caller(0, 4);
    let (file, directory) = test.run(0, async move {
        let file = makes.create(ROOT, "f").await.expect("created").id;
        let directory = makes.make_directory(ROOT, "d").await.expect("made");
        for (file, mode) in [(file, 0o640), (directory, 0o1777)] {
            let mask = set_mask::MODE | set_mask::UID;
            let request = SetAttributesRequest { file, mask, mode, uid: 1000, gid: 0, atime: 0, mtime: 0 };
            makes.set(request).await.expect("set");
        }
        (file, directory)
    });
    test.run(0, async move {
        for name in ["user.a", "trusted.a", "security.a"] {
            assert_eq!(set(&root, file, name, b"value", 0).await, Status::Ok);
        }
        assert_eq!(set(&root, file, "system.posix_acl_access", b"", 0).await, Status::NotSupported);
        assert_eq!(set(&root, file, "user.", b"", 0).await, Status::Invalid);
        assert_eq!(set(&root, file, "user.b", b"", 3).await, Status::Invalid);
        assert_eq!(set(&root, file, "user.b", b"", extended_flags::REPLACE).await, Status::NoAttribute);
        assert_eq!(set(&root, file, "user.a", b"", extended_flags::CREATE).await, Status::Exists);
        assert_eq!(set(&root, file, "user.b", &vec![0; EXTENDED_SIZE_MAX + 1], 0).await, Status::ArgumentTooLarge);
        assert_eq!(status(&get(&root, file, "user.a", 4).await), Status::OutOfRange);
        assert_eq!(get(&root, file, "user.a", 0).await.expect("there").body, b"");
        assert_eq!(list(&root, file).await, b"security.a\0trusted.a\0user.a\0");
    });
    test.run(1, async move {
        assert_eq!(list(&owner, file).await, b"security.a\0user.a\0");
        assert_eq!(set(&owner, file, "user.a", b"mine", 0).await, Status::Ok);
        assert_eq!(set(&owner, file, "trusted.a", b"", 0).await, Status::NotPermitted);
        assert_eq!(set(&owner, file, "security.a", b"", 0).await, Status::NotPermitted);
        assert_eq!(status(&get(&owner, file, "trusted.a", 9).await), Status::NoAttribute);
        assert_eq!(get(&owner, file, "security.a", 9).await.expect("read by all").body, b"value");
        assert_eq!(set(&owner, directory, "user.a", b"", 0).await, Status::Ok);
    });
    test.run(2, async move {
        assert_eq!(status(&get(&other, file, "user.a", 9).await), Status::AccessDenied);
        assert_eq!(set(&other, file, "user.a", b"", 0).await, Status::AccessDenied);
        assert_eq!(remove(&other, file, "user.a").await, Status::AccessDenied);
        assert_eq!(set(&other, directory, "user.a", b"", 0).await, Status::NotPermitted);
        assert_eq!(get(&other, directory, "user.a", 9).await.expect("all may read it").body, b"");
    });
    test.settle();
}

/// Names and values.
type Attributes = &'static [(&'static str, &'static [u8])];

/// A path here, and what it has there of extended attributes.
const BEHIND: [(&str, Attributes); 3] = [
    ("file", &[("user.one", b"1"), ("user.two", b"22"), ("trusted.site", b"theirs")]),
    ("d", &[("user.of", b"a directory")]),
    ("d/plain", &[]),
];

/// Goal: users' extended attributes of what is behind are here, whatever asks first; what is set and removed here is
/// so behind after a flush, of files that are written whole or where they are and of directories, and nothing else of
/// theirs is lost; what was fetched is no change, keeps no name here, and is known over kills.
#[test]
fn what_is_behind_has_them() {
    for seed in 0..24 {
        let fill = |world: &World| {
            let site = world.outsider();
            site.make_directory("d");
            site.write("file", 0, &pattern(seed, 20_000));
            site.write("d/plain", 0, &pattern(seed + 1, 300));
            for (path, attributes) in BEHIND {
                attributes.iter().for_each(|(key, value)| site.set_xattr(path, key, value));
            }
        };
        let flushing = Flushing {
            policy: FlushPolicy::Manual,
            check: 1_000_000_000,
            atomic_below: if seed % 2 == 0 { u64::MAX } else { 10_000 },
            ..Flushing::default()
        };
        let (test, ()) = TestCluster::over_a_flushed_site(seed, 1 + seed as u32 % 3, flushing, fill);
        let (site, caller) = (test.world.outsider(), test.caller(0, 1));
        let own = caller.clone();
        let (file, directory, plain) = test.run(0, async move {
            let [file, directory, plain] = [
                find(&own, "file").await.expect("there").id,
                find(&own, "d").await.expect("there").id,
                find(&own, "d/plain").await.expect("there").id,
            ];
            match seed % 3 {
                0 => assert_eq!(list(&own, file).await, b"user.one\0user.two\0"),
                1 => assert_eq!(get(&own, file, "user.two", 100).await.expect("there").body, b"22"),
                // Whoever sets one as new, or removes one, asks as well.
                _ => assert_eq!(set(&own, file, "user.one", b"x", extended_flags::CREATE).await, Status::Exists),
            }
            assert_eq!(status(&get(&own, file, "user.none", 100).await), Status::NoAttribute);
            assert_eq!(list(&own, directory).await, b"user.of\0");
            assert_eq!(list(&own, plain).await, b"");
            assert_eq!(flush(&own).await.done, 0, "what was fetched is no change");
            (file, directory, plain)
        });
        if seed % 4 == 1 {
            test.settle();
            test.server_indexes().for_each(|index| test.restart(index));
        }
        // Somebody else's, of a directory that nobody looks at again.
        site.set_xattr("d", "user.theirs", b"later");
        let own = caller.clone();
        test.run(0, async move {
            assert_eq!(remove(&own, file, "user.one").await, Status::Ok);
            assert_eq!(set(&own, file, "user.new", b"here", 0).await, Status::Ok);
            assert_eq!(remove(&own, directory, "user.of").await, Status::Ok);
            assert_eq!(set(&own, directory, "user.new", b"there", 0).await, Status::Ok);
            assert_eq!(set(&own, plain, "user.first", b"1", 0).await, Status::Ok);
            let made = own.create(directory, "made").await.expect("made").id;
            assert_eq!(set(&own, made, "user.made", b"1", 0).await, Status::Ok);
            let reply = flush(&own).await;
            assert_eq!((reply.failed, reply.done), (0, 4), "seed {seed}");
            // What was carried can be taken back.
            assert_eq!(remove(&own, made, "user.made").await, Status::Ok);
            assert_eq!(list(&own, directory).await, b"user.new\0", "marks are nobody's");
            assert_eq!(flush(&own).await.failed, 0, "seed {seed}");
        });
        let there = |path: &str, key: &str| site.xattr(path, key).map(|value| String::from_utf8(value).expect("text"));
        let wanted = [
            ("file", "user.one", None),
            ("file", "user.two", Some("22")),
            ("file", "user.new", Some("here")),
            ("file", "trusted.site", Some("theirs")),
            ("d", "user.of", None),
            ("d", "user.new", Some("there")),
            ("d", "user.theirs", Some("later")),
            ("d/plain", "user.first", Some("1")),
            ("d/made", "user.made", None),
        ];
        for (path, key, value) in wanted {
            assert_eq!(there(path, key).as_deref(), value, "seed {seed}: {key} of {path}");
        }
        // Somebody else changes one there: what is here is given up, and comes anew.
        test.world.run_for(5_000_000_000);
        site.set_xattr("file", "user.two", b"333");
        let own = caller.clone();
        test.run(0, async move {
            let file = find(&own, "file").await.expect("there").id;
            assert_eq!(get(&own, file, "user.two", 100).await.expect("there").body, b"333", "seed {seed}");
            assert_eq!(list(&own, file).await, b"user.new\0user.two\0", "seed {seed}");
        });
    }
}

/// Goal: a file that goes to another directory loses none of its extended attributes behind where its old directory
/// can't be opened just then; where that has gone there, it goes without.
#[test]
fn attributes_of_a_directory_that_does_not_open() {
    for seed in 0..24 {
        let fill = |world: &World| {
            let site = world.outsider();
            ["old", "new"].iter().for_each(|path| site.make_directory(path));
            site.write("old/file", 0, &pattern(seed, 300));
            site.set_xattr("old/file", "trusted.site", b"theirs");
        };
        let flushing = Flushing { policy: FlushPolicy::Manual, ..Flushing::default() };
        let (test, ()) = TestCluster::over_a_flushed_site(seed, 1 + seed as u32 % 3, flushing, fill);
        let (site, caller) = (test.world.outsider(), test.caller(0, 1));
        let own = caller.clone();
        test.run(0, async move {
            let file = find(&own, "old/file").await.expect("there");
            let [old, new] = [find(&own, "old").await.expect("there").id, find(&own, "new").await.expect("there").id];
            assert_eq!(contents(&own, &file).await.expect("read"), pattern(seed, 300));
            own.write(file.id, file.layout, 0, b"ours").await.expect("written");
            own.rename_to((old, "file"), (new, "file"), 0).await.expect("renamed");
        });
        // What is open is opened anew after a second.
        test.world.set_backing_faults(BackingFaults { delay_ns: 400_000_000, ..BackingFaults::default() });
        let is_gone = seed % 4 == 3;
        match is_gone {
            true => {
                site.remove("old/file");
                site.remove("old");
            }
            false => test.world.fail_backing("old", Some("open"), EIO, Some(1 + seed as u32 / 4)),
        }
        let goes = |_| {
            let own = caller.clone();
            let failed = test.run(0, async move { flush(&own).await.failed });
            test.world.run_for(60_000_000_000);
            failed == 0
        };
        assert!((0..5).any(goes), "seed {seed}: it goes");
        assert!(site.read("new/file").is_some_and(|bytes| bytes.starts_with(b"ours")), "seed {seed}");
        if !is_gone {
            let value = site.xattr("new/file", "trusted.site");
            assert_eq!(value.as_deref(), Some(b"theirs".as_slice()), "seed {seed}");
        }
    }
}

/// Goal: what was fetched goes for what is asked for, where there is no room for both; what was set here stays.
#[test]
fn fetched_ones_make_room() {
    // An eighth of a store of 16 MiB has room for 40 of them.
    let (count, value) = (100, vec![7; 50_000]);
    let fill = |world: &World| {
        for number in 0..count {
            world.outsider().write(&format!("f{number}"), 0, b"x");
            world.outsider().set_xattr(&format!("f{number}"), "user.large", &value);
        }
    };
    let (test, ()) = TestCluster::over_a_site(1, 1, fill);
    let caller = test.caller(0, 1);
    let expected = value.clone();
    test.run(0, async move {
        let changed = find(&caller, "f1").await.expect("there").id;
        assert_eq!(set(&caller, changed, "user.own", b"1", 0).await, Status::Ok);
        for round in 0..2 {
            for number in 0..count {
                let file = find(&caller, &format!("f{number}")).await.expect("there").id;
                let reply = get(&caller, file, "user.large", 65_536).await.expect("there is room");
                assert!(reply.body == expected, "round {round}, f{number}");
            }
        }
        assert_eq!(list(&caller, changed).await, b"user.large\0user.own\0");
    });
}
