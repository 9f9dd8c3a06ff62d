//! What is bounded is driven beyond its bound: clients find every path that there is, and servers stay within what they
//! say.

use client::{DirectoryEntry, FileSystem, OpenHow, Status};
use reactor::{CacheFault, Class};
use server::Bounds;
use server::journal::Record;
use sim::harness::{Harness, SimClient};
use sim::profile::{Overrides, Profile, SECOND, Sabotage};
use std::cell::RefCell;
use std::future::Future;
use std::rc::Rc;
use wire::identity::SEQUENCE_MAX;

const CHANGES: usize = 40;
/// More tree changes than the log has entries, if it has as many as servers have unless told otherwise.
const TREE_CHANGES: usize = 1_200;

fn cluster(servers: u32, bounds: Bounds) -> Harness {
    let overrides = Overrides { no_faults: true, servers: Some(servers), ..Overrides::default() };
    let mut profile = Profile::new(7, &overrides);
    profile.client_timeout = 20 * SECOND;
    profile.bounds = bounds;
    let harness = Harness::new(&profile, false);
    harness.wait_for_servers(60 * SECOND).expect("servers start");
    harness
}

fn run<T: 'static, F: Future<Output = T> + 'static>(
    harness: &Harness,
    client: &SimClient,
    work: impl FnOnce(FileSystem) -> F,
) -> T {
    let told = Rc::new(RefCell::new(None));
    let (future, place) = (work(client.client.file_system.clone()), told.clone());
    harness.world.reactor(client.node).spawn(Class::Metadata, async move {
        let value = future.await;
        place.replace(Some(value));
    });
    assert!(harness.world.run_until(|| told.borrow().is_some(), 6_000 * SECOND), "it never ends");
    told.borrow_mut().take().expect("it has ended")
}

async fn make(fs: &FileSystem, path: &str) {
    let how = OpenHow { create: true, ..OpenHow::reading_and_writing() };
    let file = fs.open(path.as_bytes(), &how).await.expect("made");
    fs.close(&file).await;
}

/// Looks at a path of each depth, makes something there, and lists it.
async fn use_all(fs: &FileSystem, turn: usize) {
    for directory in ["/d", "/d/e", "/d/e/f"] {
        fs.stat(directory.as_bytes()).await.expect("a directory is there");
        fs.stat(format!("{directory}/x").as_bytes()).await.expect("a file is there");
        make(fs, &format!("{directory}/y{turn}")).await;
        let mut is_listed = false;
        let mut look = |entry: &DirectoryEntry| {
            is_listed |= entry.name == b"x";
            true
        };
        fs.read_directory(directory.as_bytes(), true, &mut look).await.expect("listed");
        assert!(is_listed, "{directory}");
    }
}

async fn make_tree(fs: FileSystem) {
    for directory in ["/d", "/d/e", "/d/e/f", "/moving"] {
        fs.mkdir(directory.as_bytes(), 0o755).await.expect("made");
        make(&fs, &format!("{directory}/x")).await;
    }
}

/// Tree changes, of rights and of names: as many, and some more.
async fn change_tree(fs: FileSystem, count: usize) {
    for turn in 0..count.div_ceil(2) {
        fs.chmod(b"/moving", if turn % 2 == 0 { 0o700 } else { 0o500 }).await.expect("changed");
        fs.rename(b"/moving", b"/moved", 0).await.expect("renamed");
        fs.rename(b"/moved", b"/moving", 0).await.expect("renamed");
    }
}

/// Goal: after more tree changes than servers remember, whoever is new, slept through them or goes on, over paths,
/// finds all.
/// Method: clusters of one and three servers with logs of 2, 5 and 1,024 entries; a client that has cached everything
/// sleeps, another one changes the tree, and then the sleeper, the changer and a new client use paths of each depth.
#[test]
fn more_tree_changes_than_the_log_holds() {
    for servers in [1, 3] {
        for tree_log in [2, 5, 1024] {
            let harness = cluster(servers, Bounds { tree_log, ..Bounds::default() });
            let (sleeper, changer) = (harness.add_client(), harness.add_client());
            run(&harness, &changer, make_tree);
            run(&harness, &sleeper, async |fs| use_all(&fs, 0).await);
            let changes = if tree_log > CHANGES { TREE_CHANGES } else { CHANGES };
            run(&harness, &changer, async move |fs| change_tree(fs, changes).await);
            for (turn, client) in [sleeper, changer, harness.add_client()].iter().enumerate() {
                run(&harness, client, async move |fs| use_all(&fs, turn + 1).await);
            }
        }
    }
}

/// Goal: servers remember a bounded number of removed directories, and what a client has cached of them does no harm.
/// Method: directories are made and removed in turns, several times as many as are remembered; another client, which
/// has cached each of them, makes files in it afterwards, by its path and by its id.
#[test]
fn more_removed_directories_than_are_remembered() {
    for servers in [1, 3] {
        let bounds = Bounds { tombstones: 5, ..Bounds::default() };
        let harness = cluster(servers, bounds);
        let (remover, other) = (harness.add_client(), harness.add_client());
        let mut ids = Vec::new();
        for turn in 0..CHANGES {
            let path = format!("/r{turn}");
            let (own, seen) = (path.clone(), path.clone());
            run(&harness, &remover, async move |fs| fs.mkdir(own.as_bytes(), 0o755).await.expect("made"));
            ids.push(run(&harness, &other, async move |fs| {
                make(&fs, &format!("{seen}/x")).await;
                fs.unlink(format!("{seen}/x").as_bytes()).await.expect("removed");
                fs.stat(seen.as_bytes()).await.expect("there").id
            }));
            run(&harness, &remover, async move |fs| fs.rmdir(path.as_bytes()).await.expect("removed"));
        }
        run(&harness, &other, async move |fs| {
            let how = OpenHow { create: true, ..OpenHow::reading_and_writing() };
            for (turn, id) in ids.into_iter().enumerate() {
                let by_path = fs.open(format!("/r{turn}/late").as_bytes(), &how).await;
                assert_eq!(by_path.expect_err("the directory is gone").status, Status::NotFound, "turn {turn}");
                let by_id = fs.open_at(id, b"late", &how).await.map(drop);
                assert_eq!(by_id.expect_err("the directory is gone").status, Status::NotFound, "turn {turn}");
            }
            make(&fs, "/new").await;
        });
        harness.world.run_for(10 * SECOND);
        for (server, audit) in harness.audits() {
            assert!(audit.tombstones < 5, "server {server} remembers {} removed directories", audit.tombstones);
            assert!(audit.errors.is_empty(), "{:?}", audit.errors);
        }
    }
}

/// Names that are more than one segment of an attribute cache has room for, so that it is split again and again.
const NAMES: u64 = 700;

/// Goes through many names as the attribute cache grows: makes them, removes a third, makes those that are there once
/// more (which fails) and those that are gone (which does not), and looks at all of them. Returns what was wrong.
async fn use_names(fs: FileSystem) -> u64 {
    let path = |number: u64| format!("/n{number}").into_bytes();
    let how = OpenHow { create: true, exclusive: true, ..OpenHow::reading_and_writing() };
    let (is_removed, mut wrong) = (|number: u64| number.is_multiple_of(3), 0);
    for number in 0..NAMES {
        let file = fs.open(&path(number), &how).await.expect("made");
        fs.close(&file).await;
        if number >= 30 && is_removed(number - 30) {
            fs.unlink(&path(number - 30)).await.expect("removed");
        }
    }
    for number in 0..NAMES - 30 {
        let known = fs.stat(&path(number)).await.map(drop).map_err(|error| error.status);
        let wanted = if is_removed(number) { Err(Status::NotFound) } else { Ok(()) };
        let made = fs.open(&path(number), &how).await;
        let is_as_wanted = match &made {
            Ok(file) => {
                fs.close(file).await;
                is_removed(number)
            }
            Err(error) => error.status == Status::Exists && !is_removed(number),
        };
        wrong += u64::from(known != wanted) + u64::from(!is_as_wanted);
    }
    wrong
}

/// What is wrong after many names in an attribute cache of so many blocks, and names that clients made without asking.
fn wrong_names(fault: CacheFault, index_blocks: u64) -> (u64, u64) {
    let overrides = Overrides { no_faults: true, servers: Some(1), ..Overrides::default() };
    let (mut wrong, mut submissions) = (0, 0);
    for seed in 0..4 {
        let mut profile = Profile::new(seed, &overrides);
        (profile.short_circuit, profile.checksums, profile.stable_media) = (true, false, false);
        profile.client_timeout = 20 * SECOND;
        profile.bounds = Bounds { index_blocks, ..Bounds::default() };
        profile.sabotage = Sabotage::Cache(fault);
        let harness = Harness::new(&profile, false);
        harness.wait_for_servers(60 * SECOND).expect("servers start");
        let client = harness.add_client();
        wrong += run(&harness, &client, use_names);
        harness.world.run_for(SECOND);
        for (_, audit) in harness.audits() {
            wrong += audit.errors.len() as u64;
            submissions += audit.submissions;
        }
    }
    (wrong, submissions)
}

/// Goal: an attribute cache grows by one segment after the other, and where it can't, whoever looks for what has found
/// no room asks; nobody takes a name for missing that is there. One that leaves names out in silence is noticed.
/// Method: one client makes, removes and looks at more names than a segment has room for, in attribute caches of two
/// blocks, a few, and as many as there is memory for.
#[test]
fn more_names_than_an_attribute_cache_holds() {
    for index_blocks in [2, 3, 9, u64::MAX] {
        let (wrong, submissions) = wrong_names(CacheFault::None, index_blocks);
        assert_eq!(wrong, 0, "with {index_blocks} blocks");
        assert!(submissions > 0, "with {index_blocks} blocks nobody looks");
    }
    assert!(wrong_names(CacheFault::OmitsInSilence, 2).0 > 0, "names that are left out in silence are not noticed");
}

/// Makes files in each of some directories, one after the other, and returns how many of them servers made from
/// submissions.
fn make_in_each(harness: &Harness, client: &SimClient, directories: usize, names: &'static [&'static str]) -> u64 {
    let submissions = || harness.audits().iter().map(|(_, audit)| audit.submissions).sum::<u64>();
    let before = submissions();
    run(harness, client, async move |fs| {
        for directory in 0..directories {
            for name in names {
                make(&fs, &format!("/d{directory}/{name}")).await;
            }
        }
    });
    submissions() - before
}

/// Goal: clients are told of a bounded number of directories that they may make names in without asking; for others
/// they ask, and are told with that. Method: one client makes files in as many directories as there are places for, and
/// in many more (256 places, where a store has a MiB), twice in turns and then two at a time.
#[test]
fn more_permissions_to_submit_than_there_is_room_for() {
    for (directories, fit) in [(20, true), (2_500, false)] {
        let overrides = Overrides { no_faults: true, servers: Some(1), ..Overrides::default() };
        let mut profile = Profile::new(5, &overrides);
        (profile.short_circuit, profile.checksums, profile.stable_media) = (true, false, false);
        (profile.client_timeout, profile.store_size) = (20 * SECOND, 8 << 20);
        profile.remember_all();
        let harness = Harness::new(&profile, false);
        harness.wait_for_servers(60 * SECOND).expect("servers start");
        let client = harness.add_client();
        run(&harness, &client, async move |fs| {
            for directory in 0..directories {
                fs.mkdir(format!("/d{directory}").as_bytes(), 0o755).await.expect("made");
            }
        });
        make_in_each(&harness, &client, directories, &["a"]);
        let again = make_in_each(&harness, &client, directories, &["b"]) as usize;
        let at_once = make_in_each(&harness, &client, 20, &["c", "d"]) as usize;
        assert_eq!(again > directories / 2, fit, "{again} of {directories} submitted");
        assert!(again > 0 && at_once >= 10, "{at_once} of 40 submitted");
        harness.world.run_for(SECOND);
        for (_, audit) in harness.audits() {
            assert!(audit.errors.is_empty(), "{:?}", audit.errors);
        }
    }
}

/// Goal: a server that has given out all numbers of files says so, and what is there goes on. Method: its journal says
/// that nearly all are given out, and it is started again; then files are made, read and removed.
#[test]
fn all_numbers_of_files_are_given_out() {
    let harness = cluster(1, Bounds::default());
    let client = harness.add_client();
    run(&harness, &client, async |fs| make(&fs, "/there").await);
    let generation_limit = 1;
    // What is left is not for files.
    let record = Record::Numbers { number_limit: SEQUENCE_MAX - (1 << 40), generation_limit };
    harness.server(0).damage(vec![record]).expect("written");
    for _ in 0..2 {
        harness.kill(0);
        harness.restart(0);
        harness.wait_for_servers(60 * SECOND).expect("the server starts");
        run(&harness, &harness.add_client(), async |fs| {
            let how = OpenHow { create: true, ..OpenHow::reading_and_writing() };
            let refused = fs.open(b"/new", &how).await.expect_err("there is no number for it");
            assert_eq!(refused.status, Status::NoSpace, "{refused}");
            assert_eq!(fs.mkdir(b"/directory", 0o755).await.expect_err("nor for it").status, Status::NoSpace);
            fs.stat(b"/there").await.expect("it is there");
            let file = fs.open(b"/there", &OpenHow::reading_and_writing()).await.expect("opened");
            assert_eq!(fs.write_at(&file, b"more", 0).await.expect("written"), 4);
            fs.close(&file).await;
        });
    }
    run(&harness, &client, async |fs| fs.unlink(b"/there").await.expect("removed"));
}

/// Goal: a server that has given out all generations of announcements says so: a file that it has nothing of gets
/// nothing there, and what it has goes on. Method: journals say that all are given out, as after very many losses of
/// power, and the servers are started again; then files are written at their homes and beyond.
#[test]
fn all_generations_are_given_out() {
    const CHUNK: u64 = 4096;
    let harness = cluster(2, Bounds::default());
    let how = || OpenHow { create: true, chunk_size: CHUNK as u32, ..OpenHow::reading_and_writing() };
    run(&harness, &harness.add_client(), async move |fs| {
        let file = fs.open(b"/there", &how()).await.expect("made");
        assert_eq!(fs.write_at(&file, &[7; 2 * CHUNK as usize], 0).await, Ok(2 * CHUNK as usize));
        fs.close(&file).await;
    });
    for server in 0..2 {
        let record = Record::Numbers { number_limit: 1, generation_limit: u32::MAX };
        harness.server(server).damage(vec![record]).expect("written");
        harness.kill(server);
        harness.restart(server);
    }
    harness.wait_for_servers(60 * SECOND).expect("the servers start");
    run(&harness, &harness.add_client(), async move |fs| {
        let file = fs.open(b"/new", &how()).await.expect("made");
        let mut outcomes = Vec::new();
        for chunk in 0..2 {
            let written = fs.write_at(&file, &[8; 10], chunk * CHUNK).await;
            outcomes.push(written.map(|count| assert_eq!(count, 10)).map_err(|error| error.status));
        }
        // One of the two chunks is at the file's home.
        outcomes.sort_by_key(Result::is_err);
        assert_eq!(outcomes, [Ok(()), Err(Status::NoSpace)]);
        fs.close(&file).await;
        let file = fs.open(b"/there", &OpenHow::reading_and_writing()).await.expect("it is there");
        let mut bytes = vec![0; 2 * CHUNK as usize];
        assert_eq!(fs.read_at(&file, &mut bytes, 0).await, Ok(bytes.len()));
        assert!(bytes.iter().all(|byte| *byte == 7));
        fs.close(&file).await;
        fs.unlink(b"/there").await.expect("removed");
        fs.unlink(b"/new").await.expect("removed");
    });
}

/// Goal: who waits for locks beyond what a server remembers is told, and nobody waits for ever: not where processes
/// would wait for each other, nor who is in the queue and not told of his turn. Open files wait beyond it too.
/// Method: the only place in the queue is taken by a process that waits for another one, which then asks for what the
/// first holds; that is a deadlock as soon as both wait.
#[test]
fn more_waiters_for_locks_than_are_remembered() {
    use client::{LockRange, Locker};
    for session_lock_listeners in [0, 1] {
        let harness = cluster(1, Bounds { lock_waiters: 1, session_lock_listeners, ..Bounds::default() });
        let client = harness.add_client();
        run(&harness, &client, async move |fs| {
            let file_system = fs.clone();
            make(&fs, "/locked").await;
            let file = fs.open(b"/locked", &OpenHow::reading_and_writing()).await.expect("opened");
            let byte = |number: u64| LockRange { start: number, end: number + 1 };
            let (first, second, third) = (Locker::Process(1), Locker::Process(2), Locker::Process(3));
            fs.lock(&file, first, byte(1), true).await.expect("free");
            fs.lock(&file, second, byte(2), true).await.expect("free");
            let (queued, other) = (fs.clone(), file.clone());
            let waits = fs.reactor().spawn_joinable(Class::Metadata, async move {
                queued.lock(&other, first, byte(2), true).await.expect("granted when the other one lets go");
                queued.unlock(&other, first, LockRange::WHOLE).await.expect("released");
            });
            fs.reactor().sleep(SECOND).await;
            let refused = fs.lock(&file, third, byte(1), true).await.expect_err("there is no place to wait");
            assert_eq!(refused.status, Status::NoLocks, "{refused}");
            let refused = fs.lock(&file, second, byte(1), true).await.expect_err("nor where it would be for ever");
            assert_eq!(refused.status, Status::NoLocks, "{refused}");
            fs.unlock(&file, second, byte(2)).await.expect("released");
            waits.await;
            fs.lock(&file, third, byte(1), true).await.expect("free again");
            fs.unlock(&file, third, byte(1)).await.expect("released");

            // Whole files: of three that wait there is a place for one; two of them hold it together, and want it
            // alone.
            let mut waiters = Vec::new();
            for shares in [true, true, false] {
                let own = fs.open(b"/locked", &OpenHow::reading_and_writing()).await.expect("opened");
                if shares {
                    fs.lock(&own, Locker::Whole, LockRange::WHOLE, false).await.expect("free");
                }
                let fs = fs.clone();
                let waits = async move {
                    // Who shares nothing comes first.
                    fs.reactor().sleep(if shares { SECOND } else { 0 }).await;
                    fs.lock(&own, Locker::Whole, LockRange::WHOLE, true).await.expect("granted in the end");
                    fs.close(&own).await;
                };
                waiters.push(file_system.reactor().spawn_joinable(Class::Metadata, waits));
            }
            for waiter in waiters {
                waiter.await;
            }
        });
    }
}
