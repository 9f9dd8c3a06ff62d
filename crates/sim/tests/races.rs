//! Races by name: two or more clients at once, over many schedules, each with the outcomes that it may have and no
//! others. Afterwards the checker finds nothing wrong. docs/simulation.md lists them.

use client::check::CheckOptions;
use client::{AttributeChanges, File, FileSystem, LockRange, Locker, OpenHow, Status, Timestamp};
use reactor::sim::CrashKind;
use reactor::{Class, Nanos};
use sim::harness::{Harness, SimClient};
use sim::profile::{MILLISECOND, Overrides, Profile, SECOND};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use wire::{FileId, Placement};

const CHUNK: u64 = 4096;
const LIMIT: Nanos = 600 * SECOND;
const GRACE: Nanos = 5 * SECOND;
const SEEDS: u64 = 24;

fn cluster(seed: u64, servers: u32) -> Harness {
    cluster_as(seed, servers, |_| {})
}

/// One in which clients see what servers show, and may submit changes.
fn cluster_with_submissions(seed: u64, servers: u32) -> Harness {
    cluster_as(seed, servers, |profile| (profile.short_circuit, profile.checksums) = (true, false))
}

fn cluster_as(seed: u64, servers: u32, adapt: impl FnOnce(&mut Profile)) -> Harness {
    let overrides = Overrides { no_faults: true, servers: Some(servers), ..Overrides::default() };
    let mut profile = Profile::new(seed, &overrides);
    (profile.placement, profile.chunk_sizes) = (Placement::Modular, vec![CHUNK as u32]);
    (profile.client_timeout, profile.server_timeout) = (10 * SECOND, 2 * SECOND);
    (profile.session_grace, profile.latency) = (GRACE, (5_000, 300_000));
    (profile.store_size, profile.stable_media) = (16 << 20, false);
    adapt(&mut profile);
    let harness = Harness::new(&profile, false);
    harness.wait_for_servers(LIMIT).expect("servers start");
    harness
}

type Cell<T> = Rc<RefCell<Option<T>>>;

fn start<T: 'static>(
    harness: &Harness,
    client: &SimClient,
    work: impl AsyncFnOnce(FileSystem) -> T + 'static,
) -> Cell<T> {
    let told = Cell::default();
    let (files, place) = (client.client.file_system.clone(), told.clone());
    harness.world.reactor(client.node).spawn(Class::Metadata, async move {
        let value = work(files).await;
        place.replace(Some(value));
    });
    told
}

fn wait<T>(harness: &Harness, told: &Cell<T>) -> T {
    let ended = harness.world.run_until(|| told.borrow().is_some(), LIMIT);
    assert!(ended, "it never ends, seed {}", harness.profile.seed);
    told.borrow_mut().take().expect("it has ended")
}

fn run<T: 'static>(harness: &Harness, client: &SimClient, work: impl AsyncFnOnce(FileSystem) -> T + 'static) -> T {
    let told = start(harness, client, work);
    wait(harness, &told)
}

/// What two clients, which know the directories, are told of two pieces of work that they begin at once.
fn race<A: 'static, B: 'static>(
    harness: &Harness,
    paths: &'static [&'static str],
    one: impl AsyncFnOnce(FileSystem) -> A + 'static,
    other: impl AsyncFnOnce(FileSystem) -> B + 'static,
) -> (A, B) {
    let clients = [harness.add_client(), harness.add_client()];
    for client in &clients {
        run(harness, client, async move |files| {
            for path in paths {
                files.stat(path.as_bytes()).await.expect("it is there");
            }
        });
    }
    let (one, other) = (start(harness, &clients[0], one), start(harness, &clients[1], other));
    (wait(harness, &one), wait(harness, &other))
}

fn status<T>(result: client::Result<T>) -> Status {
    result.map_or_else(|error| error.status, |_| Status::Ok)
}

fn creating() -> OpenHow {
    OpenHow { create: true, ..OpenHow::reading_and_writing() }
}

async fn rename(files: FileSystem, from: &str, to: &str) -> Status {
    status(files.rename(from.as_bytes(), to.as_bytes(), 0).await)
}

async fn make_file(files: &FileSystem, path: &str, byte: u8, size: u64) -> File {
    let file = files.open(path.as_bytes(), &creating()).await.expect("created");
    let written = files.write_at(&file, &vec![byte; size as usize], 0).await.expect("written");
    assert_eq!(written as u64, size);
    file
}

/// Names in a directory, as a fresh client sees them.
fn names(harness: &Harness, directory: &'static str) -> BTreeSet<String> {
    run(harness, &harness.add_client(), async move |files| {
        let mut names = BTreeSet::new();
        let mut note = |entry: &client::DirectoryEntry| {
            assert!(names.insert(String::from_utf8_lossy(&entry.name).into_owned()), "a name is shown twice");
            true
        };
        match files.read_directory(directory.as_bytes(), false, &mut note).await {
            Err(error) if error.status != Status::NotFound => panic!("{error}"),
            _ => names,
        }
    })
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// The checker finds nothing wrong once everything is at rest.
fn check(harness: &Harness) {
    harness.world.run_for(2 * SECOND);
    let report = run(harness, &harness.add_client(), async |files| {
        files.check(&CheckOptions { data: true }, &|_| {}).await.expect("the check ends")
    });
    assert!(report.faults.is_empty(), "seed {}: {:?}", harness.profile.seed, report.faults);
}

/// No server finds anything wrong with itself: above all, each change that was submitted could be done.
fn check_servers(harness: &Harness) {
    let errors: Vec<_> = harness.audits().into_iter().flat_map(|(_, audit)| audit.errors).collect();
    assert!(errors.is_empty(), "seed {}: {errors:?}", harness.profile.seed);
}

fn with_directories(seed: u64, paths: &'static [&'static str]) -> Harness {
    directories_on(cluster(seed, 1 + seed as u32 % 4), paths)
}

fn directories_on(harness: Harness, paths: &'static [&'static str]) -> Harness {
    run(&harness, &harness.add_client(), async move |files| {
        for path in paths {
            files.mkdir(path.as_bytes(), 0o755).await.expect("made");
        }
    });
    harness
}

/// Goal: `mv a b/x` against `mv b a/y`: one is moved into the other, and never both, which nobody could reach any more.
#[test]
fn mv_a_b_x_against_mv_b_a_y() {
    for seed in 0..SEEDS {
        let harness = with_directories(seed, &["/a", "/b"]);
        let told = race(
            &harness,
            &["/a", "/b"],
            async |files| rename(files, "/a", "/b/x").await,
            async |files| rename(files, "/b", "/a/y").await,
        );
        let (left, below) = match told {
            (Status::Ok, Status::Invalid | Status::NotFound) => (set(&["b"]), names(&harness, "/b")),
            (Status::Invalid | Status::NotFound, Status::Ok) => (set(&["a"]), names(&harness, "/a")),
            other => panic!("seed {seed}: {other:?}"),
        };
        assert_eq!((names(&harness, "/"), below.len()), (left, 1), "seed {seed}");
        check(&harness);
    }
}

/// Goal: `mv a b` against `mv b a`: as if one came after the other: one directory is left, and what was in it.
#[test]
fn mv_a_b_against_mv_b_a() {
    for seed in 0..SEEDS {
        let harness = with_directories(seed, &["/a", "/b"]);
        let told = race(
            &harness,
            &["/a", "/b"],
            async |files| rename(files, "/a", "/b").await,
            async |files| rename(files, "/b", "/a").await,
        );
        let left = names(&harness, "/");
        // The second of two may find what the first has made of its name, and move that back.
        let fits = match told {
            (Status::Ok, Status::Ok) => left.len() == 1,
            (Status::Ok, Status::NotFound) => left == set(&["b"]),
            (Status::NotFound, Status::Ok) => left == set(&["a"]),
            _ => false,
        };
        assert!(fits, "seed {seed}: told {told:?}, left {left:?}");
        check(&harness);
    }
}

/// Goal: a rename that moves something into a directory against one that replaces it: the second happens before, or
/// finds that its own source has moved along, but is not told of a directory that is not empty, which its path never
/// led to.
#[test]
fn mv_a_into_b_against_mv_a_s_over_b() {
    for seed in 0..3 * SEEDS {
        let harness = with_directories(seed, &["/a", "/a/s", "/b"]);
        let told = race(
            &harness,
            &["/a/s", "/b"],
            async |files| rename(files, "/a", "/b/s").await,
            async |files| rename(files, "/a/s", "/b").await,
        );
        assert!(matches!(told, (Status::Ok, Status::Ok | Status::NotFound)), "seed {seed}: {told:?}");
        assert_eq!(names(&harness, "/"), set(&["b"]), "seed {seed}");
        check(&harness);
    }
}

/// Goal: create in a directory being removed: one of the two is refused, and what was created is there.
#[test]
fn create_in_a_directory_being_removed() {
    let mut outcomes = BTreeSet::new();
    for seed in 0..3 * SEEDS {
        let harness = with_directories(seed, &["/d"]);
        let told = race(
            &harness,
            &["/d"],
            async |files| status(files.open(b"/d/f", &creating()).await),
            async |files| status(files.rmdir(b"/d").await),
        );
        let expected = match told {
            (Status::Ok, Status::NotEmpty) => (set(&["d"]), set(&["f"])),
            (Status::NotFound, Status::Ok) => (set(&[]), set(&[])),
            other => panic!("seed {seed}: {other:?}"),
        };
        assert_eq!((names(&harness, "/"), names(&harness, "/d")), expected, "seed {seed}");
        outcomes.insert(told.0 == Status::Ok);
        check(&harness);
    }
    assert_eq!(outcomes.len(), 2, "only one order came up");
}

/// Goal: create-exclusive by 64 clients on 8 servers: one wins, and all others are told that the file exists.
#[test]
fn create_exclusive_by_64_clients_on_8_servers() {
    let harness = cluster(1, 8);
    let clients: Vec<SimClient> = (0..64).map(|_| harness.add_client()).collect();
    for round in 0..8 {
        let path = format!("/f{round}");
        let told: Vec<Cell<Status>> = clients
            .iter()
            .map(|client| {
                let path = path.clone();
                start(&harness, client, async move |files| {
                    let how = OpenHow { exclusive: true, ..creating() };
                    let file = files.open(path.as_bytes(), &how).await;
                    if let Ok(file) = &file {
                        files.close(file).await;
                    }
                    status(file)
                })
            })
            .collect();
        let told: Vec<Status> = told.iter().map(|told| wait(&harness, told)).collect();
        assert_eq!(told.iter().filter(|status| **status == Status::Ok).count(), 1, "round {round}");
        assert_eq!(told.iter().filter(|status| **status == Status::Exists).count(), 63, "round {round}");
    }
    check(&harness);
}

/// Goal: rename over an open file: who has it open goes on with it, who opens the name gets the new one, and the old
/// one's chunks go with its last close.
#[test]
fn rename_over_an_open_file() {
    for seed in 0..SEEDS {
        let harness = cluster(seed, 1 + seed as u32 % 4);
        let holder = harness.add_client();
        let (old, new) = (6 * CHUNK, 3 * CHUNK);
        let file = run(&harness, &holder, async move |files| {
            let made = make_file(&files, "/new", 2, new).await;
            files.close(&made).await;
            make_file(&files, "/f", 1, old).await
        });
        let handle = file.clone();
        let reading = start(&harness, &holder, async move |files| {
            for _ in 0..20 {
                let mut bytes = vec![0; old as usize];
                assert_eq!(files.read_at(&handle, &mut bytes, 0).await.expect("it is open") as u64, old);
                assert!(bytes.iter().all(|byte| *byte == 1));
                files.write_at(&handle, &[1; 100], 2 * CHUNK).await.expect("it is open");
            }
        });
        let renamed = run(&harness, &harness.add_client(), async |files| rename(files, "/new", "/f").await);
        assert_eq!(renamed, Status::Ok);
        wait(&harness, &reading);
        run(&harness, &holder, async move |files| {
            let seen = files.stat_file(&file).await.expect("it is open");
            assert_eq!((seen.link_count, seen.size), (0, old));
            assert_eq!(files.stat(b"/f").await.expect("the new one").size, new);
            files.close(&file).await;
        });
        let chunks = || harness.audits().iter().map(|(_, audit)| audit.chunks).sum::<u64>();
        assert!(harness.world.run_until(|| chunks() == 3, LIMIT), "seed {seed}: {} chunks are left", chunks());
        check(&harness);
    }
}

/// Goal: link against unlink of the last name: the file ends with the new name alone, or without any.
#[test]
fn link_against_unlink_of_the_last_name() {
    let mut outcomes = BTreeSet::new();
    for seed in 0..3 * SEEDS {
        let harness = cluster(seed, 1 + seed as u32 % 4);
        run(&harness, &harness.add_client(), async |files| {
            let file = make_file(&files, "/f", 1, 3 * CHUNK).await;
            files.close(&file).await;
            files.finish().await;
        });
        let told = race(
            &harness,
            &["/f"],
            async |files| status(files.link(b"/f", b"/g").await),
            async |files| status(files.unlink(b"/f").await),
        );
        let expected = match told {
            (Status::Ok, Status::Ok) => (set(&["g"]), 3),
            (Status::NotFound, Status::Ok) => (set(&[]), 0),
            other => panic!("seed {seed}: {other:?}"),
        };
        check(&harness);
        let chunks = harness.audits().iter().map(|(_, audit)| audit.chunks).sum::<u64>();
        assert_eq!((names(&harness, "/"), chunks), expected, "seed {seed}");
        if told.0 == Status::Ok {
            let seen = run(&harness, &harness.add_client(), async |files| files.stat(b"/g").await.expect("there"));
            assert_eq!((seen.link_count, seen.size), (1, 3 * CHUNK), "seed {seed}");
        }
        outcomes.insert(told.0 == Status::Ok);
    }
    assert_eq!(outcomes.len(), 2, "only one order came up");
}

/// Goal: open, create and truncate through a name whose inode lives on another server, against what takes the name or
/// its last link away between the two steps: the name is looked up again, so that nobody is told of a stale file, and
/// where another file comes in its place nobody is told that there is none.
#[test]
fn open_through_a_parted_name_against_its_removal() {
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    enum How {
        Reading,
        Creating,
        Truncating,
    }
    let mut outcomes = BTreeSet::new();
    for seed in 0..2 * SEEDS {
        for (how, replaced) in
            [How::Reading, How::Creating, How::Truncating].into_iter().flat_map(|how| [(how, false), (how, true)])
        {
            let harness = cluster(seed, 2 + seed as u32 % 3);
            let path = run(&harness, &harness.add_client(), async |files| {
                for (path, byte) in [("/f", 1), ("/g", 2)] {
                    let file = make_file(&files, path, byte, 10).await;
                    files.close(&file).await;
                }
                let home = files.cluster().home_of(files.stat(b"/f").await.expect("there").id).expect("a home");
                let at = |name: &String| files.cluster().dentry_server(FileId::ROOT, name.as_bytes());
                let name = (0..).map(|number| format!("n{number}")).find(|name| at(name) != home).expect("endless");
                let path = format!("/{name}");
                assert_eq!(rename(files.clone(), "/f", &path).await, Status::Ok);
                files.finish().await;
                path
            });
            let (opened, removed) = (path.clone(), path.clone());
            let told = race(
                &harness,
                &["/g"],
                async move |files| {
                    let create = how == How::Creating;
                    let how = OpenHow { create, truncate: how == How::Truncating, ..OpenHow::reading_and_writing() };
                    let file = files.open(opened.as_bytes(), &how).await.map_err(|error| error.status)?;
                    let size = files.stat_file(&file).await.map_err(|error| error.status)?.size;
                    files.close(&file).await;
                    Ok::<u64, Status>(size)
                },
                async move |files| {
                    files.reactor().sleep(seed % 8 * 300_000).await;
                    match replaced {
                        true => rename(files, "/g", &removed).await,
                        false => status(files.unlink(removed.as_bytes()).await),
                    }
                },
            );
            check(&harness);
            let left = names(&harness, "/").contains(&path[1..]);
            let fits = match told {
                (Ok(size), Status::Ok) => {
                    let size_fits = match how {
                        How::Reading => size == 10,
                        How::Creating => size == 10 || (size == 0 && !replaced && left),
                        How::Truncating => size == 0,
                    };
                    size_fits && (left || !replaced)
                }
                (Err(Status::NotFound), Status::Ok) => !replaced && how != How::Creating && !left,
                _ => false,
            };
            assert!(fits, "seed {seed}, {how:?}, replaced {replaced}: {told:?}, left {left}");
            outcomes.insert((how, replaced, told.0.ok()));
        }
    }
    // Both orders of each came up, as far as they can be told apart.
    let count = |how| outcomes.iter().filter(|(other, replaced, _)| *other == how && !replaced).count();
    assert_eq!((count(How::Reading), count(How::Creating), count(How::Truncating)), (2, 2, 2), "{outcomes:?}");
}

/// Goal: truncate to 0 against a writer's late close: what the writer's close tells does not bring the old size back.
#[test]
fn truncate_to_0_against_a_writers_late_close() {
    for seed in 0..SEEDS {
        let harness = cluster(seed, 1 + seed as u32 % 4);
        let writer = harness.add_client();
        let file = run(&harness, &writer, async |files| make_file(&files, "/f", 1, 6 * CHUNK).await);
        let cutter = harness.add_client();
        let cut = start(&harness, &cutter, async |files| files.truncate(b"/f", 0).await.expect("cut").size);
        harness.world.run_for(harness.world.random() % MILLISECOND);
        run(&harness, &writer, async move |files| {
            files.close(&file).await;
            files.finish().await;
        });
        assert_eq!(wait(&harness, &cut), 0);
        check(&harness);
        let seen = run(&harness, &harness.add_client(), async |files| files.stat(b"/f").await.expect("there"));
        assert_eq!(seen.size, 0, "seed {seed}");
        let chunks = harness.audits().iter().map(|(_, audit)| audit.chunks).sum::<u64>();
        assert_eq!(chunks, 0, "seed {seed}: chunks came back");
    }
}

/// Goal: utimens against a late settle: the time that was set stays, though the sizes and times of writes that came
/// before are folded in afterwards.
#[test]
fn utimens_against_a_late_fold() {
    for seed in 0..SEEDS {
        let harness = cluster(seed, 1 + seed as u32 % 4);
        let writer = harness.add_client();
        let file = run(&harness, &writer, async |files| make_file(&files, "/f", 1, 6 * CHUNK).await);
        let setter = harness.add_client();
        let closing = start(&harness, &writer, async move |files| {
            files.close(&file).await;
            files.finish().await;
        });
        harness.world.run_for(harness.world.random() % MILLISECOND);
        run(&harness, &setter, async |files| {
            files.utimens(b"/f", Timestamp::Keep, Timestamp::At(12_345)).await.expect("set");
        });
        wait(&harness, &closing);
        check(&harness);
        let seen = run(&harness, &harness.add_client(), async |files| files.stat(b"/f").await.expect("there"));
        assert_eq!((seen.mtime, seen.size), (12_345, 6 * CHUNK), "seed {seed}");
    }
}

/// Goal: append by 16 clients with no gap and no overlap: every record is where its client was told, and nothing else
/// is.
#[test]
fn append_by_16_clients_with_no_gap_and_no_overlap() {
    for seed in 0..3 {
        let harness = cluster(seed, 4);
        let told = Rc::new(RefCell::new(Vec::new()));
        let clients: Vec<SimClient> = (0..16).map(|_| harness.add_client()).collect();
        let appending: Vec<Cell<()>> = clients
            .iter()
            .enumerate()
            .map(|(number, client)| {
                let told = told.clone();
                let sizes: Vec<usize> = (0..6).map(|_| 1 + harness.world.random() as usize % 20_000).collect();
                start(&harness, client, async move |files| {
                    let file = files.open(b"/log", &creating()).await.expect("opened");
                    for (round, size) in sizes.into_iter().enumerate() {
                        let byte = (number * 6 + round + 1) as u8;
                        let offset = files.append(&file, &vec![byte; size]).await.expect("appended");
                        told.borrow_mut().push((offset, size, byte));
                    }
                    files.close(&file).await;
                })
            })
            .collect();
        appending.iter().for_each(|told| wait(&harness, told));
        let mut told = told.take();
        told.sort_unstable();
        let expected: Vec<u8> = told.iter().flat_map(|(_, size, byte)| vec![*byte; *size]).collect();
        let mut end = 0;
        for (offset, size, _) in &told {
            assert_eq!(*offset, end, "seed {seed}: a gap or an overlap");
            end += *size as u64;
        }
        run(&harness, &harness.add_client(), async move |files| {
            let file = files.open(b"/log", &OpenHow::reading()).await.expect("opened");
            assert_eq!(files.stat_file(&file).await.expect("there").size, expected.len() as u64);
            let mut bytes = vec![0; expected.len()];
            assert_eq!(files.read_at(&file, &mut bytes, 0).await.expect("read"), bytes.len());
            assert!(bytes == expected, "seed {seed}: the contents are not what was appended");
            files.close(&file).await;
        });
        check(&harness);
    }
}

/// Goal: `cp -p` keeps mtime: the time that is set after the bytes were written, and before the file is closed, stays.
#[test]
fn cp_p_keeps_mtime() {
    for seed in 0..SEEDS {
        let harness = cluster(seed, 1 + seed as u32 % 4);
        let copier = harness.add_client();
        run(&harness, &copier, async |files| {
            let file = make_file(&files, "/copy", 1, 6 * CHUNK).await;
            let changes = AttributeChanges { mtime: Timestamp::At(54_321), ..AttributeChanges::default() };
            files.set_file_attributes(&file, &changes).await.expect("set");
            files.close(&file).await;
        });
        let seen = run(&harness, &harness.add_client(), async |files| files.stat(b"/copy").await.expect("there"));
        assert_eq!((seen.mtime, seen.size), (54_321, 6 * CHUNK), "seed {seed}, at once");
        run(&harness, &copier, async |files| files.finish().await);
        check(&harness);
        let seen = run(&harness, &harness.add_client(), async |files| files.stat(b"/copy").await.expect("there"));
        assert_eq!((seen.mtime, seen.size), (54_321, 6 * CHUNK), "seed {seed}");
    }
}

/// Goal: lock holder killed: who waits gets the lock when the holder's session is forgotten, and not before.
#[test]
fn lock_holder_killed() {
    for locker in [Locker::Whole, Locker::Description, Locker::Process(3)] {
        let harness = cluster(1, 3);
        let (holder, waiter) = (harness.add_client(), harness.add_client());
        let locking = async move |files: FileSystem| {
            let file = files.open(b"/f", &creating()).await.expect("opened");
            files.lock(&file, locker, LockRange::WHOLE, true).await.expect("locked in the end");
        };
        run(&harness, &holder, locking);
        let waiting = start(&harness, &waiter, locking);
        harness.world.run_for(SECOND);
        harness.world.crash(holder.node, CrashKind::Kill);
        harness.world.run_for(GRACE - SECOND);
        assert!(waiting.borrow().is_none(), "{locker:?}: the holder may still come back");
        wait(&harness, &waiting);
        check(&harness);
    }
}

/// Goal: two-phase rmdir with a server cut off: it fails and names the server, the directory stays and can be used, and
/// it can be removed once the server is back.
#[test]
fn two_phase_rmdir_with_a_server_cut_off() {
    for cut_off in 0..3 {
        let harness = directories_on(cluster(u64::from(cut_off), 4), &["/d"]);
        let coordinator = harness.cluster.dentry_server(wire::FileId::ROOT, b"d");
        let away = (coordinator + 1 + cut_off) % 4;
        let others = harness.server_indexes().filter(|server| *server != away);
        others.for_each(|server| harness.world.partition(harness.node(server), harness.node(away)));
        let remover = harness.add_client();
        let error = run(&harness, &remover, async |files| files.rmdir(b"/d").await.expect_err("a server is cut off"));
        assert!(matches!(error.status, Status::TimedOut | Status::Unreachable), "{error}");
        assert!(error.to_string().contains(&format!("server {away}")), "{error}");
        harness.world.heal_all();
        harness.world.run_for(10 * SECOND);
        run(&harness, &remover, async |files| {
            let file = files.open(b"/d/f", &creating()).await.expect("it is a directory as before");
            files.close(&file).await;
            assert_eq!(status(files.rmdir(b"/d").await), Status::NotEmpty);
            files.unlink(b"/d/f").await.expect("unlinked");
            files.rmdir(b"/d").await.expect("removed");
        });
        assert_eq!(names(&harness, "/"), set(&[]));
        check(&harness);
    }
}

/// Goal: a close ends no open of the same client whose answer is still on its way, or has come and was not taken in
/// yet. Method: two opens of one file by one client at once; one of them is closed as soon as it is there; the file's
/// name goes, and the other one is read. Both orders of asking and of taking the answers in come up.
#[test]
fn opens_under_way_against_a_close() {
    for seed in 0..SEEDS {
        for later_first in [false, true] {
            let harness = cluster(seed, 2);
            let (ours, theirs) = (harness.add_client(), harness.add_client());
            run(&harness, &theirs, async |files| {
                let file = make_file(&files, "/f", 7, 100).await;
                files.close(&file).await;
            });
            run(&harness, &ours, async |files| {
                files.stat(b"/f").await.expect("it is there");
            });
            let kept = run(&harness, &ours, async move |files| {
                let reactor = files.reactor().clone();
                let open = async || files.open(b"/f", &OpenHow::reading()).await.expect("opened");
                let mut kept = Box::pin(open());
                let mut closed = Box::pin(async {
                    if later_first {
                        // It asks second and is polled first.
                        reactor.yield_now().await;
                    }
                    let file = open().await;
                    files.close(&file).await;
                });
                let (mut result, mut done) = (None, false);
                std::future::poll_fn(|context| {
                    for turn in 0..2 {
                        if (turn == 0) == later_first && !done {
                            done = closed.as_mut().poll(context).is_ready();
                        } else if (turn == 0) != later_first
                            && result.is_none()
                            && let std::task::Poll::Ready(file) = kept.as_mut().poll(context)
                        {
                            result = Some(file);
                        }
                    }
                    if done && result.is_some() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
                })
                .await;
                result.expect("opened")
            });
            run(&harness, &theirs, async |files| files.unlink(b"/f").await.expect("unlinked"));
            harness.world.run_for(SECOND);
            run(&harness, &ours, async move |files| {
                let mut bytes = [0; 100];
                let read = files.read_at(&kept, &mut bytes, 0).await;
                assert_eq!(read, Ok(100), "seed {seed}, later first: {later_first}");
                assert_eq!(bytes, [7; 100]);
                files.close(&kept).await;
            });
        }
    }
}

/// Goal: of two tasks of one client that make the same new name exclusively, or remove it, one does and the other one
/// is told so, also where the changes are submitted: neither is submitted while the other one is. Method: over many
/// schedules both look before either submissions; each server's audit counts submissions that could not be done.
#[test]
fn one_client_submissions_the_same_change_twice() {
    for seed in 0..4 * SEEDS {
        let harness = cluster_with_submissions(seed, 1);
        let client = harness.add_client();
        run(&harness, &client, async |files| {
            // The first one is asked for; whoever asks is invited to submit the next ones.
            let first = files.open(b"/first", &creating()).await.expect("created");
            files.close(&first).await;
        });
        let make = async |files: FileSystem| {
            let made = files.open(b"/f", &OpenHow { exclusive: true, ..creating() }).await;
            if let Ok(file) = &made {
                files.close(file).await;
            }
            status(made)
        };
        let remove = async |files: FileSystem| status(files.unlink(b"/f").await);
        let both = |one: Cell<Status>, other: Cell<Status>| {
            BTreeSet::from([wait(&harness, &one), wait(&harness, &other)].map(|status| status as u32))
        };
        for _ in 0..3 {
            let made = both(start(&harness, &client, make), start(&harness, &client, make));
            assert_eq!(made, BTreeSet::from([Status::Ok, Status::Exists].map(|status| status as u32)), "seed {seed}");
            let removed = both(start(&harness, &client, remove), start(&harness, &client, remove));
            assert_eq!(
                removed,
                BTreeSet::from([Status::Ok, Status::NotFound].map(|status| status as u32)),
                "seed {seed}"
            );
        }
        check_servers(&harness);
        check(&harness);
    }
}

/// Goal: what was submitted to a server that is killed is made once, wherever in a change or behind it the kill falls,
/// and the next one while the server takes up what was left. Method: a client makes files, writes to them and removes
/// some of them by submissions, while this or that write of the server to its store is its last one, whole or torn.
#[test]
fn submissions_are_made_once() {
    const WRITES: u64 = 40;
    const FILES: u64 = 12;
    const SIZE: u64 = 5_000;
    let mut found_made = 0;
    for (write, torn) in (1..=WRITES).flat_map(|write| [(write, false), (write, true)]) {
        let harness = cluster_as(write, 1, |profile| {
            (profile.short_circuit, profile.registered_buffers, profile.checksums) = (true, true, false);
            profile.chunk_sizes = vec![64 << 10];
        });
        let client = harness.add_client();
        run(&harness, &client, async |files| {
            // The first ones are asked for; whoever asks is invited to submit the next ones.
            for _ in 0..3 {
                let file = make_file(&files, "/shared", 1, SIZE).await;
                files.close(&file).await;
            }
            let file = make_file(&files, "/gone", 1, SIZE).await;
            files.close(&file).await;
            files.unlink(b"/gone").await.expect("removed");
        });
        harness.world.crash_after_writes(harness.node(0), write, torn);
        let work = start(&harness, &client, async |files| {
            let shared = files.open(b"/shared", &OpenHow::reading_and_writing()).await.expect("is there");
            for index in 0..FILES {
                let path = format!("/f{index}");
                let how = OpenHow { exclusive: true, ..creating() };
                let file = files.open(path.as_bytes(), &how).await.expect("it is not there yet");
                files.write_at(&file, &[index as u8; SIZE as usize], 0).await.expect("written");
                files.close(&file).await;
                files.write_at(&shared, &[index as u8; SIZE as usize], index % 3 * SIZE).await.expect("written");
                if index % 3 == 2 {
                    files.unlink(format!("/f{}", index - 1).as_bytes()).await.expect("it is there once");
                }
            }
            files.close(&shared).await;
        });
        let mut next_write = Some(1 + write % 5);
        while work.borrow().is_none() {
            let goes_on = harness.world.run_until(|| work.borrow().is_some() || !harness.is_running(0), LIMIT);
            assert!(goes_on, "it never ends, write {write}");
            if !harness.is_running(0) {
                harness.restart(0);
                if let Some(write) = next_write.take() {
                    harness.world.crash_after_writes(harness.node(0), write, torn);
                }
            }
        }
        if !harness.is_up(0) {
            harness.restart(0);
            harness.wait_for_servers(LIMIT).expect("it starts again");
        }
        let left: Vec<String> = (0..FILES).filter(|index| index % 3 != 1).map(|index| format!("f{index}")).collect();
        let expected = left.into_iter().chain(["shared".to_owned()]).collect::<BTreeSet<_>>();
        assert_eq!(names(&harness, "/"), expected, "write {write}, torn {torn}");
        let contents = run(&harness, &harness.add_client(), async move |files| {
            let mut contents = Vec::new();
            for (path, size) in (0..FILES).filter(|index| index % 3 != 1).map(|index| (format!("/f{index}"), SIZE)) {
                let file = files.open(path.as_bytes(), &OpenHow::reading()).await.expect("is there");
                let mut bytes = vec![0; size as usize];
                let count = files.read_at(&file, &mut bytes, 0).await.expect("read");
                contents.push((path, count as u64 == size, bytes[0], bytes.windows(2).all(|pair| pair[0] == pair[1])));
                files.close(&file).await;
            }
            let file = files.open(b"/shared", &OpenHow::reading()).await.expect("is there");
            let mut bytes = vec![0; 3 * SIZE as usize];
            files.read_at(&file, &mut bytes, 0).await.expect("read");
            files.close(&file).await;
            (contents, bytes)
        });
        for (path, is_whole, byte, is_even) in contents.0 {
            assert!(
                is_whole && is_even && path == format!("/f{byte}"),
                "{path} has {byte}, write {write}, torn {torn}"
            );
        }
        for (index, byte) in contents.1.iter().enumerate() {
            let expected = FILES - 3 + index as u64 / SIZE;
            assert_eq!(u64::from(*byte), expected, "byte {index}, write {write}, torn {torn}");
        }
        found_made += harness.audits().iter().map(|(_, audit)| audit.submissions_found_made).sum::<u64>();
        check_servers(&harness);
        check(&harness);
    }
    assert!(found_made > 0, "no kill fell between a change and the note of it");
}

/// Goal: a removal that was submitted is made though its server had to journal something else first, and was killed
/// behind that: to free chunks on other servers takes a number, and numbers are set aside in blocks. Method: a file
/// lies on two servers; its home is asked for changes that take numbers until none is left, and then this or that write
/// of its is the last one.
#[test]
fn a_removal_outlives_the_record_before_it() {
    let mut submitted = 0;
    for write in 1..=3 {
        let harness = cluster_with_submissions(1, 2);
        let client = harness.add_client();
        let home_of = |name: &str| harness.cluster.dentry_server(FileId::ROOT, name.as_bytes());
        let mut names_here = (0..).map(|index| format!("/n{index}")).filter(|name| home_of(&name[1..]) == 0);
        let [path, other] = std::array::from_fn(|_| names_here.next().expect("a name"));
        run(&harness, &client, {
            let (path, other) = (path.clone(), other.clone());
            async move |files| {
                let file = make_file(&files, &path, 7, 4 * CHUNK).await;
                files.synchronise(&file).await.expect("its size is settled");
                files.close(&file).await;
                files.close(&make_file(&files, &other, 7, 1).await).await;
            }
        });
        let numbers_left = || harness.audits()[0].1.numbers_left;
        while numbers_left() > 0 {
            let (path, count) = (path.clone(), numbers_left());
            run(&harness, &client, async move |files| {
                for _ in 0..count {
                    files.truncate(path.as_bytes(), 3 * CHUNK).await.expect("cut");
                }
            });
        }
        run(&harness, &client, {
            let path = path.clone();
            async move |files| {
                // Whoever removes something by request may submit the next ones for a second; this one takes no number.
                files.unlink(other.as_bytes()).await.expect("removed");
                files.stat(path.as_bytes()).await.expect("it is there");
            }
        });
        let submitted_before = harness.audits()[0].1.submissions;
        harness.world.crash_after_writes(harness.node(0), write, false);
        let work = start(&harness, &client, {
            let path = path.clone();
            async move |files| {
                files.stat(path.as_bytes()).await.expect("it is there");
                files.unlink(path.as_bytes()).await.expect("removed");
            }
        });
        while !harness.world.run_until(|| work.borrow().is_some(), SECOND) {
            harness.restart(0);
        }
        harness.world.run_for(SECOND);
        submitted += u64::from(harness.audits()[0].1.submissions > submitted_before);
        // If it has not come to its last write, it is not to come to it any more.
        if harness.is_running(0) {
            harness.kill(0);
        }
        harness.restart(0);
        harness.wait_for_servers(LIMIT).expect("it starts again");
        assert_eq!(names(&harness, "/"), BTreeSet::new(), "write {write}");
        check_servers(&harness);
        check(&harness);
    }
    assert!(submitted > 0, "nothing was submitted");
}

/// Goal: a file that was made by a submission is there though the server was killed before it took the submission up,
/// also when its directory, whose home is another server, had no other names at that one. Method: the directory's only
/// name at the server goes, another one is made, and the server is killed as soon as that is told.
#[test]
fn a_submission_outlives_the_last_other_name() {
    for seed in 0..SEEDS {
        let harness = cluster_with_submissions(seed, 2);
        let client = harness.add_client();
        let away = |name: &&&str| harness.cluster.dentry_server(FileId::ROOT, name.as_bytes()) == 1;
        let [first, second] =
            ["a", "b", "c", "d", "e", "f", "g", "h"].iter().filter(away).take(2).collect::<Vec<_>>()[..]
        else {
            unreachable!("every server has names");
        };
        run(&harness, &client, async move |files| {
            let [first, second] = [first, second].map(|name| format!("/{name}").into_bytes());
            let file = files.open(&first, &creating()).await.expect("created");
            files.close(&file).await;
            files.unlink(&first).await.expect("removed");
            files.open(&second, &OpenHow { exclusive: true, ..creating() }).await.expect("created");
        });
        harness.kill(1);
        harness.restart(1);
        harness.wait_for_servers(LIMIT).expect("it starts again");
        assert_eq!(names(&harness, "/"), set(&[second]), "seed {seed}");
        check_servers(&harness);
        check(&harness);
    }
}
