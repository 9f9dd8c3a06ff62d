use crate::support::*;
use reactor::{Call, Reply};
use std::io::IoSlice;
use wire::limits::EXTENDED_SIZE_MAX;
use wire::messages::*;
use wire::{FileId, Operation, Status};

const ROOT: FileId = FileId::ROOT;

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
