//! `tabane check`: what is wrong is found and repaired, each kind of it, and a cluster that works is not accused.

use client::check::{CheckOptions, CheckReport, Fault};
use client::{FileId, FileSystem, Kind, OpenHow, Status};
use reactor::Nanos;
use server::journal::Record;
use sim::harness::{Harness, SimClient};
use sim::profile::{Overrides, Profile, SECOND};
use wire::Placement;

const CHUNK_SIZE: u32 = 4096;
const LIMIT: Nanos = 600 * SECOND;

fn cluster(servers: u32) -> Harness {
    let overrides = Overrides { no_faults: true, servers: Some(servers), ..Overrides::default() };
    let mut profile = Profile::new(3, &overrides);
    (profile.placement, profile.chunk_sizes) = (Placement::Modular, vec![CHUNK_SIZE]);
    (profile.client_timeout, profile.server_timeout) = (10 * SECOND, 2 * SECOND);
    let harness = Harness::new(&profile, false);
    harness.wait_for_servers(LIMIT).expect("servers start");
    harness
}

fn run<T: 'static>(harness: &Harness, client: &SimClient, work: impl AsyncFnOnce(FileSystem) -> T + 'static) -> T {
    let file_system = client.client.file_system.clone();
    harness.world.run(client.node, async move { work(file_system).await }, LIMIT).expect("it ends")
}

fn creating() -> OpenHow {
    OpenHow { create: true, chunk_size: CHUNK_SIZE, ..OpenHow::reading_and_writing() }
}

/// A small tree with all that there is: directories in directories, small files, one on all servers, several names of
/// one file, names parted from their inodes, symbolic links.
async fn make_tree(files: &FileSystem) {
    for directory in ["/d", "/d/e", "/d/e/f", "/g"] {
        files.mkdir(directory.as_bytes(), 0o755).await.expect("mkdir");
    }
    for index in 0..40 {
        let path = format!("/d/e/file{index}");
        let file = files.open(path.as_bytes(), &creating()).await.expect("create");
        files.write_at(&file, &[1; 100], 0).await.expect("write");
        files.close(&file).await;
    }
    let large = files.open(b"/g/large", &creating()).await.expect("create");
    files.write_at(&large, &[2; 12 * CHUNK_SIZE as usize], 0).await.expect("write");
    files.close(&large).await;
    for index in 0..6 {
        let name = format!("/d/e/file{index}");
        files.link(name.as_bytes(), format!("/g/link{index}").as_bytes()).await.expect("link");
        let other = format!("/d/e/file{}", index + 6);
        files.rename(other.as_bytes(), format!("/g/moved{index}").as_bytes(), 0).await.expect("rename");
    }
    files.symlink(b"nowhere", b"/g/symlink").await.expect("symlink");
}

async fn check(files: &FileSystem) -> CheckReport {
    files.check(&CheckOptions { data: true }, &|_| {}).await.expect("the check comes to an end")
}

fn codes(report: &CheckReport) -> Vec<&'static str> {
    let mut codes: Vec<&str> = report.faults.iter().map(Fault::code).collect();
    codes.sort_unstable();
    codes.dedup();
    codes
}

/// Writes a record where it belongs, or at another server.
fn damage(harness: &Harness, server: u32, record: Record<'_>) {
    harness.server(server).damage(vec![record]).expect("written");
}

fn name_server(harness: &Harness, parent: FileId, name: &str) -> u32 {
    harness.cluster.dentry_server(parent, name.as_bytes())
}

/// Damages a cluster, expects these faults and no others, repairs it, and expects none; returns the client.
fn find_and_repair(servers: u32, expected: &[&str], damage: impl FnOnce(&Harness, &SimClient)) -> (Harness, SimClient) {
    let harness = cluster(servers);
    let client = harness.add_client();
    run(&harness, &client, async |files| make_tree(&files).await);
    let clean = run(&harness, &client, async |files| check(&files).await);
    assert_eq!(clean.faults, [], "of a cluster that nobody damaged");
    assert_eq!(clean.undecided, []);
    damage(&harness, &client);
    let found = run(&harness, &client, async |files| check(&files).await);
    assert_eq!(codes(&found), expected, "{:?}", found.faults);
    let repaired = run(&harness, &client, async |files| {
        let options = CheckOptions::default();
        let mut repairs = Vec::new();
        let mut note = |fault: &Fault, outcome: &client::Result<String>| repairs.push(format!("{fault}: {outcome:?}"));
        let left = files.check_and_repair(&options, false, &|_| {}, &mut note).await.expect("repaired");
        (left, repairs)
    });
    assert_eq!(repaired.0.faults, [], "{:#?}", repaired.1);
    let again = run(&harness, &client, async |files| check(&files).await);
    assert_eq!(again.faults, []);
    (harness, client)
}

async fn id_of(files: &FileSystem, path: &str) -> FileId {
    files.lstat(path.as_bytes()).await.expect("it is there").id
}

fn id_at(harness: &Harness, client: &SimClient, path: &str) -> FileId {
    let path = path.to_owned();
    run(harness, client, async move |files| id_of(&files, &path).await)
}

fn home(harness: &Harness, id: FileId) -> u32 {
    harness.cluster.home_of(id).expect("it has a home")
}

/// Goal: a directory that is there and that a server takes for removed is found; afterwards it can be used again.
/// Method: tombstones on the directory's home and on another server.
#[test]
fn stale_tombstones() {
    for servers in [1, 3] {
        let (harness, client) = find_and_repair(servers, &["stale-tombstone"], |harness, client| {
            let id = id_at(harness, client, "/d/e/f");
            damage(harness, home(harness, id), Record::Tombstone(id));
            damage(harness, (home(harness, id) + 1) % servers, Record::Tombstone(id));
        });
        run(&harness, &client, async |files| {
            for number in 0..20 {
                let path = format!("/d/e/f/new{number}");
                files.open(path.as_bytes(), &creating()).await.expect("it is a directory");
            }
        });
    }
}

/// Goal: a name that leads nowhere is found and removed, on one server and on several.
#[test]
fn name_without_inode() {
    for servers in [1, 3] {
        let (harness, client) = find_and_repair(servers, &["name-without-inode"], |harness, client| {
            let parent = id_at(harness, client, "/g");
            let id = FileId(id_at(harness, client, "/d").0 + (99 << 30));
            let put = Record::DentryPut { parent, name: b"ghost", id, kind: Kind::File };
            damage(harness, name_server(harness, parent, "ghost"), put);
        });
        let gone = run(&harness, &client, async |files| files.lstat(b"/g/ghost").await);
        assert_eq!(gone.expect_err("removed").status, Status::NotFound);
    }
}

/// Goal: a file and a directory whose names were lost are found, and kept in lost+found with all that is in them.
#[test]
fn orphans() {
    let (harness, client) = find_and_repair(3, &["orphan"], |harness, client| {
        for path in ["/d/e/file20", "/d/e", "/g/moved3"] {
            let (above, name) = path.rsplit_once('/').expect("a path");
            let parent = id_at(harness, client, above);
            let delete = Record::DentryDelete { parent, name: name.as_bytes() };
            damage(harness, name_server(harness, parent, name), delete);
            run(harness, client, async |files| files.forget_directories());
        }
    });
    let found = run(&harness, &client, async |files| {
        let mut kinds = Vec::new();
        let mut note = |entry: &client::DirectoryEntry| {
            kinds.push(entry.kind);
            true
        };
        files.read_directory(b"/lost+found", false, &mut note).await.expect("listed");
        kinds.sort_unstable_by_key(|kind| *kind as u8);
        kinds
    });
    assert_eq!(found, [Kind::File, Kind::File, Kind::Directory]);
}

/// Goal: link counts are those of the names again.
#[test]
fn link_counts() {
    let (harness, client) = find_and_repair(3, &["wrong-link-count"], |harness, client| {
        for (path, wrong) in [("/d/e/file0", 1), ("/d/e/file30", 2), ("/g/moved0", 7)] {
            let id = id_at(harness, client, path);
            let mut inode = harness.server(home(harness, id)).inode(id).expect("it is there");
            inode.attributes.link_count = wrong;
            damage(harness, home(harness, id), Record::InodePut(inode));
        }
    });
    for (path, right) in [("/d/e/file0", 2), ("/d/e/file30", 1), ("/g/moved0", 1)] {
        let seen = run(&harness, &client, async move |files| files.lstat(path.as_bytes()).await.expect("there"));
        assert_eq!(seen.link_count, right, "{path}");
    }
}

/// Goal: names of the wrong kind, on the wrong server, in a removed directory, and second names of a directory are
/// found.
#[test]
fn names_in_wrong_places() {
    find_and_repair(
        3,
        &["directory-with-names", "misplaced-name", "name-in-nothing", "wrong-kind"],
        |harness, client| {
            let [g, d, e] = ["/g", "/d", "/d/e"].map(|path| id_at(harness, client, path));
            let file = id_at(harness, client, "/d/e/file33");
            let right = name_server(harness, e, "file33");
            damage(harness, right, Record::DentryPut { parent: e, name: b"file33", id: file, kind: Kind::Symlink });
            // The name of a file goes to a server that nobody asks for it.
            let other = id_at(harness, client, "/d/e/file34");
            let place = name_server(harness, e, "file34");
            damage(harness, place, Record::DentryDelete { parent: e, name: b"file34" });
            let put = Record::DentryPut { parent: e, name: b"file34", id: other, kind: Kind::File };
            damage(harness, (place + 1) % 3, put);
            let second = Record::DentryPut { parent: g, name: b"second", id: d, kind: Kind::Directory };
            damage(harness, name_server(harness, g, "second"), second);
            let nothing = FileId(g.0 + (77 << 30));
            let moved = id_at(harness, client, "/d/e/file35");
            let place = name_server(harness, e, "file35");
            damage(harness, place, Record::DentryDelete { parent: e, name: b"file35" });
            let put = Record::DentryPut { parent: nothing, name: b"x", id: moved, kind: Kind::File };
            damage(harness, name_server(harness, nothing, "x"), put);
        },
    );
}

/// Goal: directories that are below each other are found, and come back in lost+found.
#[test]
fn circles() {
    let (harness, client) = find_and_repair(3, &["circle", "wrong-parent"], |harness, client| {
        let [root, d, f] = [FileId::ROOT, id_at(harness, client, "/d"), id_at(harness, client, "/d/e/f")];
        damage(harness, name_server(harness, root, "d"), Record::DentryDelete { parent: root, name: b"d" });
        let put = Record::DentryPut { parent: f, name: b"d", id: d, kind: Kind::Directory };
        damage(harness, name_server(harness, f, "d"), put);
    });
    let count = run(&harness, &client, async |files| {
        files.forget_directories();
        let mut count = 0;
        let mut note = |_: &client::DirectoryEntry| {
            count += 1;
            true
        };
        files.read_directory(b"/lost+found", false, &mut note).await.expect("listed");
        count
    });
    assert_eq!(count, 1);
}

/// Goal: chunks of no file are freed; a file learns of holders and of bytes that it forgot, and its data is whole.
#[test]
fn chunks() {
    let expected = ["chunks-without-file", "size-too-small", "unknown-holder"];
    let (harness, client) = find_and_repair(3, &expected, |harness, client| {
        let nothing = FileId(id_at(harness, client, "/g").0 + (55 << 30));
        for server in 0..3 {
            harness.server(server).damage_with_chunk(nothing, 1, 300).expect("stored");
        }
        let large = id_at(harness, client, "/g/large");
        let mut inode = harness.server(home(harness, large)).inode(large).expect("there");
        inode.spread_mut().holders.truncate(1);
        damage(harness, home(harness, large), Record::InodePut(inode));
        let small = id_at(harness, client, "/d/e/file39");
        let mut inode = harness.server(home(harness, small)).inode(small).expect("there");
        inode.attributes.size = 10;
        damage(harness, home(harness, small), Record::InodePut(inode));
    });
    let (large, small) = run(&harness, &client, async |files| {
        let large = files.open(b"/g/large", &OpenHow::reading_and_writing()).await.expect("open");
        let mut bytes = vec![0; 13 * CHUNK_SIZE as usize];
        let count = files.read_at(&large, &mut bytes, 0).await.expect("read");
        (bytes[..count].to_vec(), files.lstat(b"/d/e/file39").await.expect("there").size)
    });
    assert_eq!(large, vec![2; 12 * CHUNK_SIZE as usize]);
    assert_eq!(small, 100);
}

/// Goal: names of the root, which has none, and the circle that they make, are found and removed.
#[test]
fn name_of_the_root() {
    let (harness, client) = find_and_repair(3, &["circle", "directory-with-names"], |harness, client| {
        let parent = id_at(harness, client, "/g");
        let put = Record::DentryPut { parent, name: b"loop", id: FileId::ROOT, kind: Kind::Directory };
        damage(harness, name_server(harness, parent, "loop"), put);
    });
    let gone = run(&harness, &client, async |files| files.lstat(b"/g/loop").await);
    assert_eq!(gone.expect_err("removed").status, Status::NotFound);
}

/// Goal: an inode on a server that is not its home is found, nothing else is said of it, and it is left alone.
#[test]
fn misplaced_inode() {
    let harness = cluster(3);
    let client = harness.add_client();
    run(&harness, &client, async |files| make_tree(&files).await);
    for path in ["/d/e/file22", "/g/large", "/d/e/f"] {
        let id = id_at(&harness, &client, path);
        let inode = harness.server(home(&harness, id)).inode(id).expect("it is there");
        damage(&harness, (home(&harness, id) + 1) % 3, Record::InodePut(inode));
        let report = run(&harness, &client, async |files| {
            let mut note = |_: &Fault, _: &client::Result<String>| {};
            files.check_and_repair(&CheckOptions::default(), false, &|_| {}, &mut note).await.expect("it ends")
        });
        assert_eq!(report.faults, [Fault::MisplacedInode { server: (home(&harness, id) + 1) % 3, id }], "{path}");
        damage(&harness, (home(&harness, id) + 1) % 3, Record::InodeDelete(id));
        let clean = run(&harness, &client, async |files| check(&files).await);
        assert_eq!(clean.faults, [], "{path}");
    }
}

/// Goal: with checksums, chunks whose bytes have changed by themselves are named, each once, and no others.
/// Method: a byte of each page of one server's data region is turned over.
#[test]
fn damaged_chunks() {
    let overrides = Overrides { no_faults: true, servers: Some(3), ..Overrides::default() };
    let mut profile = Profile::new(3, &overrides);
    (profile.placement, profile.chunk_sizes, profile.checksums) = (Placement::Modular, vec![CHUNK_SIZE], true);
    (profile.client_timeout, profile.server_timeout) = (10 * SECOND, 2 * SECOND);
    let harness = Harness::new(&profile, false);
    harness.wait_for_servers(LIMIT).expect("servers start");
    let client = harness.add_client();
    run(&harness, &client, async |files| make_tree(&files).await);
    let clean = run(&harness, &client, async |files| check(&files).await);
    assert_eq!(clean.faults, []);
    harness.flip_bits(1);
    let report = run(&harness, &client, async |files| check(&files).await);
    assert_eq!(report.faults.len(), 4, "the large file has four chunks there, the small ones are smaller than that");
    let of_server = |fault: &Fault| matches!(fault, Fault::DamagedChunk { server: 1, .. });
    assert!(report.faults.iter().all(of_server), "{:?}", report.faults);
    let mut words: Vec<String> = report.faults.iter().map(Fault::to_string).collect();
    words.sort_unstable();
    words.dedup();
    assert_eq!(words.len(), report.faults.len(), "each once");
    let without_data = run(&harness, &client, async |files| {
        files.check(&CheckOptions { data: false }, &|_| {}).await.expect("it ends").faults
    });
    assert_eq!(without_data, []);
}

/// Goal: a cluster at work is never accused. Method: two clients create, rename, link, write beyond the home and remove
/// without a pause, while a third one checks.
#[test]
fn no_false_alarms() {
    let harness = cluster(3);
    let setup = harness.add_client();
    run(&harness, &setup, async |files| make_tree(&files).await);
    for number in 0..2 {
        let client = harness.add_client();
        let files = client.client.file_system.clone();
        harness.world.reactor(client.node).spawn(reactor::Class::Data, async move {
            for round in 0.. {
                let name = |what: &str| format!("/d/{what}{number}.{}", round % 7).into_bytes();
                if let Ok(file) = files.open(&name("new"), &creating()).await {
                    drop(files.write_at(&file, &[3; 5 * CHUNK_SIZE as usize], 0).await);
                    files.close(&file).await;
                }
                drop(files.rename(&name("new"), &name("old"), 0).await);
                drop(files.link(&name("old"), &name("also")).await);
                drop(files.mkdir(&name("directory"), 0o700).await);
                drop(files.rmdir(&name("directory")).await);
                drop(files.unlink(&name("old")).await);
                drop(files.unlink(&name("also")).await);
            }
        });
    }
    let checker = harness.add_client();
    for _ in 0..20 {
        let report = run(&harness, &checker, async |files| check(&files).await);
        assert_eq!(report.faults, []);
    }
}

/// Goal: only the owner of the servers and root look into their tables.
#[test]
fn others_are_refused() {
    let harness = cluster(1);
    let stranger = harness.add_client();
    let outcome = run(&harness, &stranger, async |files| {
        let options =
            client::Options { user: wire::credentials::Credentials::new(4711, 4711), ..files.options().clone() };
        let other = FileSystem::new(files.reactor(), files.cluster().clone(), options);
        other.check(&CheckOptions::default(), &|_| {}).await
    });
    assert_eq!(outcome.expect_err("refused").status, Status::NotPermitted);
}
