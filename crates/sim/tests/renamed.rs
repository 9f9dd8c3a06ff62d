//! The time of change of what is renamed, wherever its names and its inode are; and directories that are looked at
//! while a server with a share of them is gone.

use client::{Credentials, FileSystem, Kind, OpenHow, Status};
use reactor::Class;
use sim::harness::{Harness, SimClient};
use sim::profile::{Overrides, Profile, SECOND};
use std::cell::RefCell;
use std::future::Future;
use std::rc::Rc;
use wire::FileId;

const MILLISECOND: u64 = SECOND / 1000;
const SERVERS: u32 = 3;

fn cluster(seed: u64) -> Harness {
    let overrides = Overrides { no_faults: true, servers: Some(SERVERS), ..Overrides::default() };
    let mut profile = Profile::new(seed, &overrides);
    profile.client_timeout = 20 * SECOND;
    profile.latency = (100_000, 100_000);
    let harness = Harness::new(&profile, false);
    harness.wait_for_servers(60 * SECOND).expect("servers start");
    harness
}

fn start<T: 'static, F: Future<Output = T> + 'static>(
    harness: &Harness,
    client: &SimClient,
    work: impl FnOnce(FileSystem) -> F,
) -> Rc<RefCell<Option<T>>> {
    let told = Rc::new(RefCell::new(None));
    let (future, place) = (work(client.client.file_system.clone()), told.clone());
    harness.world.reactor(client.node).spawn(Class::Metadata, async move {
        let value = future.await;
        place.replace(Some(value));
    });
    told
}

fn wait<T>(harness: &Harness, told: &RefCell<Option<T>>) -> T {
    assert!(harness.world.run_until(|| told.borrow().is_some(), 600 * SECOND), "it never ends");
    told.borrow_mut().take().expect("it has ended")
}

fn run<T: 'static, F: Future<Output = T> + 'static>(
    harness: &Harness,
    client: &SimClient,
    work: impl FnOnce(FileSystem) -> F,
) -> T {
    wait(harness, &start(harness, client, work))
}

/// A name in the root that a server holds, another one for each number.
fn name_at(harness: &Harness, server: u32, number: usize) -> String {
    let names = (0..).map(|count| format!("n{count}"));
    let mut fitting = names.filter(|name| harness.cluster.dentry_server(FileId::ROOT, name.as_bytes()) == server);
    fitting.nth(number).map(|name| format!("/{name}")).expect("there is no end of names")
}

async fn make(fs: &FileSystem, path: &str) {
    let how = OpenHow { create: true, ..OpenHow::reading_and_writing() };
    let file = fs.open(path.as_bytes(), &how).await.expect("made");
    fs.close(&file).await;
}

/// Times of change and modification.
async fn times(fs: &FileSystem, path: &str) -> (i64, i64) {
    let attributes = fs.lstat(path.as_bytes()).await.expect("there");
    (attributes.ctime, attributes.mtime)
}

/// Goal: a rename changes the ctime of what it renames and not its mtime, whoever has the old name, the new one and the
/// inode; so does an exchange for both.
#[test]
fn renamed_files_have_changed() {
    for home in 0..SERVERS {
        for from in 0..SERVERS {
            for to in 0..SERVERS {
                let harness = cluster(1);
                let client = harness.add_client();
                let paths =
                    [(home, 0), (from, 1), (to, 2), (to, 3)].map(|(server, number)| name_at(&harness, server, number));
                run(&harness, &client, async move |fs| {
                    let [first, old, new, other] = paths;
                    let pause = async || fs.reactor().sleep(10 * MILLISECOND).await;
                    let rename = async |one: &str, two: &str, flags| {
                        fs.rename(one.as_bytes(), two.as_bytes(), flags).await.expect("renamed");
                    };
                    make(&fs, &first).await;
                    rename(&first, &old, 0).await;
                    let before = times(&fs, &old).await;
                    pause().await;
                    rename(&old, &new, 0).await;
                    let after = times(&fs, &new).await;
                    let words = format!("inode on {home}, from {from} to {to}");
                    assert!(after.0 > before.0 && after.1 == before.1, "{words}: {before:?} {after:?}");
                    make(&fs, &other).await;
                    let second = times(&fs, &other).await;
                    pause().await;
                    rename(&new, &other, client::RENAME_EXCHANGE).await;
                    let (one, two) = (times(&fs, &other).await, times(&fs, &new).await);
                    assert!(one.0 > after.0 && one.1 == after.1, "{words}, exchanged: {after:?} {one:?}");
                    assert!(two.0 > second.0 && two.1 == second.1, "{words}, exchanged: {second:?} {two:?}");
                });
            }
        }
    }
}

/// Goal: the same for directories, which the sequencer has a part in.
#[test]
fn renamed_directories_have_changed() {
    for from in 0..SERVERS {
        for to in 0..SERVERS {
            let harness = cluster(2);
            let client = harness.add_client();
            let (old, new) = (name_at(&harness, from, 0), name_at(&harness, to, 1));
            run(&harness, &client, async move |fs| {
                fs.mkdir(old.as_bytes(), 0o755).await.expect("made");
                for turn in 0..3 {
                    let before = times(&fs, &old).await;
                    fs.reactor().sleep(10 * MILLISECOND).await;
                    fs.rename(old.as_bytes(), new.as_bytes(), 0).await.expect("renamed");
                    let after = times(&fs, &new).await;
                    assert!(after.0 > before.0, "from {from} to {to}, turn {turn}: {before:?} {after:?}");
                    fs.rename(new.as_bytes(), old.as_bytes(), 0).await.expect("back");
                }
            });
        }
    }
}

/// Goal: a rename that was confirmed has changed the ctime, whichever of its servers is killed meanwhile, and has
/// happened once. Method: old name, new name and inode are on three servers; each of them is killed at each of many
/// moments and comes back.
#[test]
fn renamed_at_every_step() {
    for victim in 0..SERVERS {
        for step in 0..16u64 {
            let harness = cluster(3);
            let client = harness.add_client();
            let paths = [(0, 0), (1, 1), (2, 2)].map(|(server, number)| name_at(&harness, server, number));
            let [first, old, new] = paths;
            let before = run(&harness, &client, {
                let old = old.clone();
                async move |fs| {
                    make(&fs, &first).await;
                    fs.rename(first.as_bytes(), old.as_bytes(), 0).await.expect("renamed");
                    let before = times(&fs, &old).await;
                    fs.reactor().sleep(10 * MILLISECOND).await;
                    before
                }
            });
            let renamed = start(&harness, &client, {
                let (old, new) = (old.clone(), new.clone());
                async move |fs| fs.rename(old.as_bytes(), new.as_bytes(), 0).await
            });
            harness.world.run_for(20_000 + step * 60_000);
            harness.kill(victim);
            harness.restart(victim);
            harness.wait_for_servers(60 * SECOND).expect("the server comes back");
            wait(&harness, &renamed).expect("the rename goes on by itself");
            run(&harness, &client, async move |fs| {
                let after = times(&fs, &new).await;
                assert!(after.0 > before.0 && after.1 == before.1, "victim {victim} step {step}: {before:?} {after:?}");
                assert_eq!(fs.lstat(old.as_bytes()).await.expect_err("it has gone").status, Status::NotFound);
            });
        }
    }
}

/// Goal: who looks at a directory on the way to something else waits for a server that is gone once and not long; what
/// is told then says that it is not whole: by identity, by path, and of what is open. Opening it, rights on it and
/// files beneath it need no share. Who goes by times is told all or nothing. When the server is back all tell the same.
#[test]
fn directories_without_a_server() {
    let harness = cluster(4);
    let client = harness.add_client();
    let root = harness.cluster.home_of(FileId::ROOT).expect("a home");
    let gone = (root + 1) % SERVERS;
    let living = name_at(&harness, (root + 2) % SERVERS, 0);
    let living_file = living.clone();
    let names: Vec<String> = (0..SERVERS).map(|server| name_at(&harness, server, 0)).collect();
    run(&harness, &client, async move |fs| {
        for name in &names {
            make(&fs, name).await;
        }
        assert_eq!(fs.look_id(FileId::ROOT).await.expect("all are there").link_count, 2);
    });
    harness.kill(gone);
    run(&harness, &client, async move |fs| {
        let reactor = fs.reactor().clone();
        for turn in 0..5 {
            let begun = reactor.now();
            assert_eq!(fs.look_id(FileId::ROOT).await.expect("told").link_count, 1);
            let limit = if turn == 0 { 3 * SECOND } else { 100 * MILLISECOND };
            assert!(reactor.now() - begun < limit, "turn {turn} took {} ns", reactor.now() - begun);
            assert!(fs.lookup_at(FileId::ROOT, &living.as_bytes()[1..]).await.is_ok());
        }
        assert!(fs.stat_id(FileId::ROOT).await.is_err(), "nobody knows its times");
        assert!(fs.stat_whole(b"/", true).await.is_err(), "nobody knows its times");
    });
    // Another client knows nothing yet, and is not root.
    let other = harness.add_client_as(Credentials::new(7, 7));
    let file = living_file.clone();
    run(&harness, &other, async move |fs| {
        let reactor = fs.reactor().clone();
        let begun = reactor.now();
        let opened = fs.open(b"/", &OpenHow::reading()).await.expect("opened");
        assert_eq!((fs.stat(b"/").await.expect("told").link_count, opened.kind), (1, Kind::Directory));
        assert_eq!(fs.lstat(b"/.").await.expect("told").link_count, 1);
        assert_eq!(fs.stat_file(&opened).await.expect("told").link_count, 1);
        fs.access(b"/", 4, None).await.expect("it may be listed");
        fs.access_id(FileId::ROOT, 5).await.expect("it may be listed");
        fs.lstat(file.as_bytes()).await.expect("its server is there");
        let denied = fs.open(b"/", &OpenHow::reading_and_writing()).await.expect_err("it is a directory");
        assert_eq!(denied.status, Status::IsDirectory);
        let denied = fs.mkdir(file.as_bytes(), 0o700).await.expect_err("it is there");
        assert_eq!(denied.status, Status::Exists);
        assert!(reactor.now() - begun < SECOND, "all of it took {} ns", reactor.now() - begun);
    });
    harness.restart(gone);
    harness.wait_for_servers(60 * SECOND).expect("the server comes back");
    run(&harness, &client, async move |fs| {
        let whole = fs.stat_whole(b"/", true).await.expect("all are there");
        let mut looked = fs.look_id(FileId::ROOT).await.expect("told");
        for _ in 0..100 {
            if looked.link_count != 1 {
                break;
            }
            fs.reactor().sleep(SECOND).await;
            looked = fs.look_id(FileId::ROOT).await.expect("told");
        }
        assert_eq!((looked.link_count, looked.mtime, looked.ctime), (2, whole.mtime, whole.ctime));
    });
}
