use crate::support::*;
use wire::messages::{RepairRequest, RepairStep, SetAttributesRequest, open_flags, set_mask};
use wire::{FileId, Operation, Status};

const ROOT: FileId = FileId::ROOT;

/// Goal: of all who create a name exclusively at once, one succeeds, and all others are told that it exists.
#[test]
fn exclusive_create_has_one_winner() {
    for seed in 0..20 {
        let test = TestCluster::new(seed, 2);
        let slots: Vec<_> = (0..3)
            .flat_map(|node| (0..3).map(move |part| (node, part)))
            .map(|(node, part)| {
                let caller = test.caller(node, (node * 10 + part + 1) as u64);
                test.spawn(node, async move { status(&caller.create(ROOT, "prize").await) })
            })
            .collect();
        let outcomes: Vec<Status> = slots.iter().map(|slot| test.wait(slot)).collect();
        assert_eq!(outcomes.iter().filter(|status| **status == Status::Ok).count(), 1, "seed {seed}");
        assert_eq!(outcomes.iter().filter(|status| **status == Status::Exists).count(), 8, "seed {seed}");
        test.settle();
    }
}

/// Goal: a file may have 65,000 names and no more (EMLINK), wherever its names are and by whatever request it gets
/// them; once one is removed there is room for another. A refused link leaves nothing. Method: the count is set so that
/// two names are left, as no test has the time to make them all.
#[test]
fn links_have_a_limit() {
    for apart in [false, true] {
        let test = TestCluster::new(8, 2);
        let caller = test.caller(0, 1);
        test.run(0, async move {
            let file = caller.create(ROOT, "f").await.expect("created").id;
            let home = caller.home(file);
            let server = if apart { 1 - home } else { home };
            let names: Vec<String> = (0..)
                .map(|number| format!("n{number}"))
                .filter(|name| caller.cluster.dentry_server(ROOT, name.as_bytes()) == server)
                .take(4)
                .collect();
            let set_links = async |from: u32, to: u32| {
                let request = RepairRequest { step: RepairStep::SetLinks { file, from, to } };
                caller.call(home, Operation::Repair, &request).await.expect("set")
            };
            set_links(1, 64_998).await;
            caller.link(ROOT, "f", &names[0]).await.expect("linked");
            caller.link_open(file, ROOT, &names[1]).await.expect("linked");
            assert_eq!(status(&caller.link(ROOT, "f", &names[2]).await), Status::TooManyLinks);
            assert_eq!(status(&caller.link(ROOT, &names[0], &names[2]).await), Status::TooManyLinks);
            assert_eq!(status(&caller.link_open(file, ROOT, &names[2]).await), Status::TooManyLinks);
            assert_eq!(status(&caller.look(ROOT, &names[2]).await), Status::NotFound);
            assert_eq!(caller.stat(file).await.expect("there").link_count, 65_000);
            // Names change places and come instead of others as before.
            caller.rename(ROOT, &names[0], &names[2], 0).await.expect("renamed");
            caller.unlink(ROOT, &names[2]).await.expect("unlinked");
            caller.link(ROOT, "f", &names[3]).await.expect("linked");
            assert_eq!(status(&caller.link(ROOT, "f", &names[0]).await), Status::TooManyLinks);
            set_links(65_000, 3).await;
        });
        test.settle();
    }
}

/// Goal: the same with 64 clients on 8 servers.
#[test]
fn exclusive_create_by_many_on_many_servers() {
    for seed in 0..3 {
        let test = TestCluster::new(seed, 8);
        let attempts: Vec<_> = (0..64usize)
            .map(|client| {
                let caller = test.caller(client % 3, client as u64 + 1);
                test.spawn(client % 3, async move { status(&caller.create(ROOT, "prize").await) })
            })
            .collect();
        let outcomes: Vec<Status> = attempts.iter().map(|attempt| test.wait(attempt)).collect();
        assert_eq!(outcomes.iter().filter(|status| **status == Status::Ok).count(), 1, "seed {seed}");
        assert_eq!(outcomes.iter().filter(|status| **status == Status::Exists).count(), 63, "seed {seed}");
        test.settle();
    }
}

/// Goal: flags of open do what POSIX says, for files and directories, existing and missing.
#[test]
fn open_flags_are_honoured() {
    let test = TestCluster::new(1, 3);
    let caller = test.caller(0, 1);
    test.run(0, async move {
        assert_eq!(status(&caller.open(ROOT, "a", 0).await), Status::NotFound);
        assert_eq!(status(&caller.open(ROOT, "a", open_flags::TRUNCATE).await), Status::NotFound);
        let made = caller.open(ROOT, "a", open_flags::CREATE).await.expect("created");
        assert!(made.created);
        caller.write(made.attributes.id, made.attributes.layout, 0, b"bytes").await.expect("written");
        let again = caller.open(ROOT, "a", open_flags::CREATE).await.expect("opened");
        assert!(!again.created && again.attributes.id == made.attributes.id && again.attributes.size == 5);
        let cut = caller.open(ROOT, "a", open_flags::TRUNCATE).await.expect("cut");
        assert_eq!((cut.created, cut.attributes.size), (false, 0));
        let exclusive = open_flags::CREATE | open_flags::EXCLUSIVE;
        assert_eq!(status(&caller.open(ROOT, "a", exclusive).await), Status::Exists);
        caller.make_directory(ROOT, "d").await.expect("made");
        assert_eq!(status(&caller.open(ROOT, "d", open_flags::CREATE).await), Status::IsDirectory);
        assert_eq!(status(&caller.open(ROOT, "d", exclusive).await), Status::Exists);
        assert_eq!(status(&caller.open(ROOT, "d", 0).await), Status::Ok);
        assert_eq!(status(&caller.unlink(ROOT, "d").await), Status::IsDirectory);
        assert_eq!(status(&caller.remove_directory(ROOT, "a").await), Status::NotDirectory);
        assert_eq!(
            status(&caller.create(made.attributes.id, "below").await),
            status_below(&caller, made.attributes.id)
        );
    });
    test.settle();
}

/// What a create below a file gives: its home knows better than other servers.
fn status_below(caller: &Caller, file: FileId) -> Status {
    let at = caller.cluster.dentry_server(file, b"below");
    if at == caller.home(file) { Status::NotDirectory } else { Status::Ok }
}

/// Goal: a listing in pages of many names is complete on any number of servers, and removal empties it again.
#[test]
fn listings_are_complete() {
    for servers in [1, 5] {
        let test = TestCluster::new(3, servers);
        let caller = test.caller(0, 1);
        let left = test.run(0, async move {
            let directory = caller.make_directory(ROOT, "many").await.expect("made");
            let mut names: Vec<String> =
                (0..300).map(|number| format!("a-longer-name-for-fuller-pages.{number}")).collect();
            names.sort();
            for name in &names {
                caller.create(directory, name).await.expect("created");
            }
            assert_eq!(caller.list(directory).await.expect("listed"), names);
            assert_eq!(status(&caller.remove_directory(ROOT, "many").await), Status::NotEmpty);
            for name in &names {
                caller.unlink(directory, name).await.expect("unlinked");
            }
            assert_eq!(status(&caller.remove_directory(ROOT, "many").await), Status::Ok);
            assert_eq!(status(&caller.create(directory, "late").await), Status::StaleDirectory);
            assert_eq!(status(&caller.list(directory).await), Status::StaleDirectory);
            caller.list(ROOT).await.expect("listed")
        });
        assert!(left.is_empty());
        let audits = test.settle();
        assert_eq!(audits.iter().map(|audit| audit.dentries).sum::<u64>(), 0);
        assert_eq!(audits.iter().map(|audit| audit.inodes).sum::<u64>(), 1);
        assert!(audits.iter().all(|audit| audit.tombstones == 1));
    }
}

/// Goal: creates that race with the removal of their directory either are in a directory that stays, or fail with it
/// gone; never a file in a removed directory.
/// Method: several callers create while one removes, over many seeds; then the audit and a listing decide.
#[test]
fn removal_races_with_creates() {
    let (mut removed, mut kept) = (0, 0);
    for seed in 0..60 {
        let test = TestCluster::new(seed, 4);
        let caller = test.caller(0, 1);
        let directory = test.run(0, async move { caller.make_directory(ROOT, "d").await.expect("made") });
        let creates: Vec<_> = (0..4)
            .map(|number| {
                let caller = test.caller(1, 10 + number);
                let reactor = test.world.reactor(test.callers[1]);
                let pause = test.world.random() % 3_000_000;
                test.spawn(1, async move {
                    reactor.sleep(pause).await;
                    status(&caller.create(directory, &format!("f{number}")).await)
                })
            })
            .collect();
        let caller = test.caller(2, 3);
        let (reactor, pause) = (test.world.reactor(test.callers[2]), test.world.random() % 5_000_000);
        let removal = test.spawn(2, async move {
            reactor.sleep(pause).await;
            status(&caller.remove_directory(ROOT, "d").await)
        });
        let outcomes: Vec<Status> = creates.iter().map(|slot| test.wait(slot)).collect();
        let removal = test.wait(&removal);
        test.settle();
        match removal {
            Status::Ok => {
                assert!(outcomes.iter().all(|status| *status == Status::StaleDirectory), "seed {seed}: {outcomes:?}");
                removed += 1;
            }
            Status::NotEmpty => {
                assert!(outcomes.contains(&Status::Ok), "seed {seed}: nothing was created");
                assert!(outcomes.iter().all(|status| *status == Status::Ok), "seed {seed}: {outcomes:?}");
                kept += 1;
            }
            other => panic!("seed {seed}: {other:?}"),
        }
    }
    assert!(removed > 3 && kept > 3, "the race is no race: {removed} removed, {kept} kept");
}

/// Goal: only who may changes attributes, and times set explicitly stay whatever other servers know.
/// Method: chunks on all servers carry later times; utimens sets an early one.
#[test]
fn attributes_follow_their_rules() {
    let test = TestCluster::new(9, 3);
    let owner = test.caller_as(0, 1, 500);
    let other = test.caller_as(1, 2, 501);
    let request = |file, mask| SetAttributesRequest { file, mask, mode: 0o600, uid: 501, gid: 501, atime: 5, mtime: 7 };
    let file = test.run(0, async move {
        let attributes = owner.create(ROOT, "f").await.expect("created");
        let file = attributes.id;
        for chunk in 0..6 {
            owner.write(file, attributes.layout, chunk * 4096, b"x").await.expect("written");
        }
        assert_eq!(status(&owner.set(request(file, set_mask::UID)).await), Status::NotPermitted);
        let changed = owner.set(request(file, set_mask::MODE)).await.expect("changed");
        assert_eq!((changed.mode, changed.size), (0o600, 5 * 4096 + 1));
        let changed = owner.set(request(file, set_mask::MTIME | set_mask::ATIME)).await.expect("changed");
        assert_eq!((changed.mtime, changed.atime), (7, 5));
        assert_eq!(owner.stat(file).await.expect("known").mtime, 7);
        owner.write(file, attributes.layout, 4096, b"y").await.expect("written");
        let after = owner.stat(file).await.expect("known");
        assert!(after.mtime > 7 && after.size == 5 * 4096 + 1);
        file
    });
    test.run(1, async move {
        assert_eq!(status(&other.set(request(file, set_mask::MODE)).await), Status::NotPermitted);
        assert_eq!(status(&other.set(request(file, set_mask::MTIME)).await), Status::NotPermitted);
        let touch = set_mask::ATIME_NOW | set_mask::MTIME_NOW;
        assert_eq!(status(&other.set(request(file, touch)).await), Status::AccessDenied);
    });
    test.settle();
}

/// Goal: requests for slots and files of other servers are refused.
#[test]
fn strangers_requests_are_refused() {
    use wire::messages::{EntryRequest, FileRequest};
    let test = TestCluster::new(4, 3);
    let caller = test.caller(0, 1);
    test.run(0, async move {
        let name = name_at(&caller.cluster, ROOT, 1);
        let request = EntryRequest { entry: entry(ROOT, &name) };
        assert_eq!(status(&caller.call(2, Operation::Stat, &request).await), Status::WrongServer);
        let root_home = caller.home(ROOT);
        let elsewhere = (root_home + 1) % 3;
        let answer = caller.call(elsewhere, Operation::StatId, &FileRequest { file: ROOT }).await;
        assert_eq!(status(&answer), Status::WrongServer);
        assert_eq!(status(&caller.call(1, Operation::Stat, &wire::messages::Empty {}).await), Status::BadMessage);
        assert_eq!(status(&caller.call(1, Operation::Stat, &request).await), Status::NotFound);
    });
}
