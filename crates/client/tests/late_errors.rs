//! Errors of flushes as users see them: fsync and close tell each open file once, and with `--fsync-backing` fsync
//! waits until what was changed is at the site.

#[path = "common/simulated.rs"]
#[allow(dead_code)] // Shared with other tests.
mod simulated;

use client::{File, FileSystem, OpenHow, Status};
use server::{FlushPolicy, Flushing};
use simulated::{Guest, SECOND, Stage};

const CHUNK: u32 = 4096;
const EPERM: i32 = 1;
const EIO: i32 = 5;
const AUTOMATIC: FlushPolicy = FlushPolicy::Immediate;

fn flushing(policy: FlushPolicy, fsync_carries: bool) -> Flushing {
    Flushing { policy, fsync_carries, atomic_below: 16 << 10, ..Flushing::default() }
}

async fn make(files: &FileSystem, path: &'static str, size: usize) -> File {
    let file = files.open(path.as_bytes(), &OpenHow::creating(0o644)).await.expect("opened");
    assert_eq!(files.write_at(&file, &vec![b'x'; size], 0).await.expect("written"), size);
    file
}

fn pass_until(stage: &Stage, what: &str, is_so: impl Fn() -> bool) {
    for _ in 0..600 {
        if is_so() {
            return;
        }
        stage.pass(SECOND / 10);
    }
    panic!("in a minute it did not come to pass that {what}");
}

/// The words of the error, if there is one, which is of files.
fn told(result: client::Result<()>) -> Option<String> {
    result.err().map(|error| {
        assert_eq!(error.status, Status::Io, "{error}");
        error.to_string()
    })
}

/// Goal: that a file can't be carried is told once to each open file, by fsync or close, with the reason; the same
/// failure again is nothing new, and when the file has gone nobody is told any more. Other files are told nothing.
/// Method: writes of one file fail at the site; handles from before and from later.
#[test]
fn who_has_a_file_open_is_told_once() {
    for seed in 1..=8 {
        let stage = Stage::over_a_site(seed, 1 + seed as u8 % 4, CHUNK, flushing(AUTOMATIC, false));
        // The directory can't be written to, or can't be made.
        let call = if seed % 2 == 0 { "write" } else { "make" };
        stage.world.fail_backing("bad", Some(call), EIO, None);
        let guest = stage.client();
        let (one, two, three, other) = guest.get(|files| async move {
            files.mkdir(b"/bad", 0o755).await.expect("made");
            let one = make(&files, "/bad/f", 9_000).await;
            let two = files.open(b"/bad/f", &OpenHow::reading_and_writing()).await.expect("opened");
            let three = files.open(b"/bad/f", &OpenHow::reading_and_writing()).await.expect("opened");
            for file in [&two, &three] {
                files.write_at(file, b"yy", 0).await.expect("written");
            }
            (one, two, three, make(&files, "/good", 9_000).await)
        });
        pass_until(&stage, "the other one has gone", || stage.world.outsider().read("good").is_some());
        stage.pass(5 * SECOND);
        let close = async |files: &FileSystem, file: &File| {
            let late_error = files.late_error(file).await;
            files.close(file).await;
            late_error
        };
        let (first, again, by_close) = guest.get(|files| async move {
            assert_eq!(files.synchronise(&other).await, Ok(()), "seed {seed}: it has gone");
            assert_eq!(close(&files, &other).await, Ok(()));
            let (first, again) = (files.synchronise(&one).await, files.synchronise(&one).await);
            assert_eq!(close(&files, &one).await, Ok(()), "seed {seed}: told already");
            let by_close = close(&files, &two).await;
            (told(first), told(again), told(by_close))
        });
        let first = first.unwrap_or_else(|| panic!("seed {seed}: nobody was told"));
        assert!(first.contains("backing directory") && first.contains("directory"), "{first}");
        assert_eq!(again, None, "seed {seed}: told twice");
        assert!(by_close.is_some(), "seed {seed}: close tells nothing");
        stage.world.release_backing();
        pass_until(&stage, "it has gone too", || stage.world.outsider().read("bad/f").is_some());
        stage.pass(5 * SECOND);
        let late = guest.get(|files| async move { told(files.synchronise(&three).await) });
        assert_eq!(late, None, "seed {seed}: it has gone");
    }
}

/// Goal: closes cost nothing where nothing has failed, and none waits for servers that are gone but the first.
/// Method: count the round trips of closes, at once, after a pause and without the server.
#[test]
fn closes_ask_little() {
    let stage = Stage::over_a_site(3, 2, CHUNK, flushing(FlushPolicy::Manual, false));
    let guest = stage.client();
    let opened = guest.get(|files| async move {
        let mut opened = Vec::new();
        for name in ["/a", "/b", "/c", "/d", "/e", "/f"] {
            opened.push(make(&files, name, 100).await);
        }
        opened
    });
    let ask = |guest: &Guest, file: &File| {
        let file = file.clone();
        guest.run(|files| async move { files.late_error(&file).await })
    };
    assert!(opened.iter().all(|file| ask(&guest, file) == (Ok(()), 0)), "all servers were heard of just now");
    stage.pass(2 * SECOND);
    let asked: u64 = opened.iter().map(|file| ask(&guest, file).1).sum();
    assert!((1..=2).contains(&asked), "each server is asked once after a pause: {asked}");
    [0, 1].iter().for_each(|server| stage.kill(*server));
    stage.pass(2 * SECOND);
    let start = stage.world.now();
    assert!(opened.iter().all(|file| ask(&guest, file).0 == Ok(())));
    assert!(stage.world.now() - start <= 3 * SECOND, "each server is waited for once, for a second");
}

/// Goal: with `--fsync-backing` a file is at the site when its fsync has ended, also if it is written to all the time,
/// and so are the names in a directory that is synced; and nothing else is. One that can't go is told once.
/// Method: small files and large ones, in directories that are new; a writer beside; a site that is read-only.
#[test]
fn fsync_waits_for_the_site() {
    for seed in 1..=12 {
        let stage = Stage::over_a_site(seed, 1 + seed as u8 % 4, CHUNK, flushing(FlushPolicy::Manual, true));
        let guest = stage.client();
        let is_over = std::rc::Rc::new(std::cell::Cell::new(false));
        let (own, other) = (is_over.clone(), stage.client());
        let site = stage.world.outsider();
        for (name, size) in [("/d/e/small", 3_000), ("/d/e/large", 90_000)] {
            let file = guest.get(|files| async move {
                files.create_all(b"/d/e", 0o755).await.expect("made");
                make(&files, "/d/e/not", 10).await;
                let file = make(&files, name, size).await;
                assert_eq!(files.synchronise(&file).await, Ok(()), "seed {seed}");
                file
            });
            let read = || site.read(&name[1..]).expect("it is there");
            assert_eq!(read(), vec![b'x'; size], "seed {seed}: {name}");
            assert_eq!(site.read("d/e/not"), None, "seed {seed}: nobody has synced that");
            let (own, writes) = (own.clone(), name);
            let ended = other.spawn(move |files| async move {
                let file = files.open(writes.as_bytes(), &OpenHow::reading_and_writing()).await.expect("opened");
                while !own.get() {
                    files.write_at(&file, b"zz", 5).await.expect("written");
                    files.reactor().sleep(1_000_000).await;
                }
            });
            let before = stage.world.now();
            guest.get(|files| async move {
                files.write_at(&file, b"yy", 1).await.expect("written");
                assert_eq!(files.synchronise(&file).await, Ok(()), "seed {seed}: {name} is written to");
            });
            assert!(stage.world.now() - before < 5 * SECOND);
            assert_eq!(read()[..4], *b"xyyx", "seed {seed}: {name}");
            is_over.set(true);
            pass_until(&stage, "the writer has ended", || ended.get());
            is_over.set(false);
        }
        stage.world.set_backing_read_only(true);
        let words = guest.get(|files| async move {
            let directory = files.open(b"/d/e", &OpenHow::reading()).await.expect("opened");
            let file = make(&files, "/d/e/more", 10).await;
            let first = told(files.synchronise(&file).await).expect("it can't go");
            assert_eq!(files.late_error(&file).await, Ok(()), "told already");
            assert!(told(files.synchronise(&directory).await).is_some());
            first
        });
        assert!(words.contains("d/e/more") && words.contains("ead-only"), "{words}");
        stage.world.set_backing_read_only(false);
        guest.get(|files| async move {
            let directory = files.open(b"/d/e", &OpenHow::reading()).await.expect("opened");
            assert_eq!(files.synchronise(&directory).await, Ok(()));
        });
        assert!(site.read("d/e/not").is_some() && site.read("d/e/more").is_some(), "seed {seed}");
    }
}

/// Goal: what a synced file needs goes with it: directories above it that were moved, removals in what it replaces,
/// files that have each other's names; and what its directory has got from elsewhere. One that can't be moved has fsync
/// fail.
/// Method: changes of names after a flush, each followed by one fsync; a site with links and one without.
#[test]
fn what_a_synced_file_needs() {
    for seed in 1..=12 {
        let stage = Stage::over_a_site(seed, 1 + seed as u8 % 4, CHUNK, flushing(FlushPolicy::Manual, true));
        let guest = stage.client();
        let site = stage.world.outsider();
        let has_links = seed % 2 == 0;
        if !has_links {
            stage.world.fail_backing("", Some("link"), EPERM, None);
        }
        let both = OpenHow::reading_and_writing();
        let opened = guest.get(|files| async move {
            for path in ["/d1", "/d", "/x/y", "/tmp", "/new", "/e1"] {
                files.create_all(path.as_bytes(), 0o755).await.expect("made");
            }
            for path in ["/d1/f", "/d/x", "/a", "/b", "/tmp/m", "/tmp/n", "/e1/f"] {
                let file = make(&files, path, if path == "/tmp/n" { 90_000 } else { 9_000 }).await;
                files.write_at(&file, path.as_bytes(), 0).await.expect("written");
                files.close(&file).await;
            }
            assert_eq!(files.flush(&[], &|_| ()).await.expect("flushed").failed, 0);
            files.rename(b"/d1", b"/d2", 0).await.expect("renamed");
            let file = files.open(b"/d2/f", &both).await.expect("opened");
            files.write_at(&file, b"changed", 0).await.expect("written");
            assert_eq!(files.synchronise(&file).await, Ok(()), "seed {seed}");
            file
        });
        assert!(site.read("d2/f").is_some_and(|bytes| bytes.starts_with(b"changed")), "seed {seed}: a moved directory");
        assert!(site.read("d1/f").is_none());
        guest.get(|files| async move {
            files.unlink(b"/d/x").await.expect("removed");
            files.rmdir(b"/d").await.expect("removed");
            files.mkdir(b"/d", 0o755).await.expect("made");
            let file = make(&files, "/d/new", 10).await;
            assert_eq!(files.synchronise(&file).await, Ok(()), "seed {seed}");
            files.rename(b"/x", b"/z", 0).await.expect("renamed");
            let file = make(&files, "/z/y/f", 10).await;
            assert_eq!(files.synchronise(&file).await, Ok(()), "seed {seed}");
            files.rename(b"/a", b"/t", 0).await.expect("renamed");
            files.rename(b"/b", b"/a", 0).await.expect("renamed");
            files.rename(b"/t", b"/b", 0).await.expect("renamed");
            let file = files.open(b"/b", &OpenHow::reading()).await.expect("opened");
            assert_eq!(files.synchronise(&file).await, Ok(()), "seed {seed}");
            files.rename(b"/tmp/m", b"/new/m", 0).await.expect("renamed");
            files.rename(b"/tmp/n", b"/new/n", 0).await.expect("renamed");
            let directory = files.open(b"/new", &OpenHow::reading()).await.expect("opened");
            assert_eq!(files.synchronise(&directory).await, Ok(()), "seed {seed}");
        });
        let starts = |path: &str, with: &str| {
            let bytes = site.read(path).unwrap_or_else(|| panic!("seed {seed}: {path} is not there"));
            assert!(bytes.starts_with(with.as_bytes()), "seed {seed}: {path} is another file");
        };
        assert!(site.read("d/new").is_some() && site.read("d/x").is_none(), "seed {seed}: a directory made anew");
        assert!(site.read("z/y/f").is_some(), "seed {seed}: a directory two above");
        for (path, with) in [("a", "/b"), ("b", "/a"), ("new/m", "/tmp/m"), ("new/n", "/tmp/n")] {
            starts(path, with);
        }
        stage.world.fail_backing("e1", Some("rename"), EIO, None);
        let words = guest.get(|files| async move {
            files.rename(b"/e1", b"/e2", 0).await.expect("renamed");
            let file = files.open(b"/e2/f", &both).await.expect("opened");
            files.write_at(&file, b"changed", 0).await.expect("written");
            told(files.synchronise(&file).await)
        });
        assert!(words.is_some_and(|words| words.contains("Input/output error")), "seed {seed}: it is at no name of it");
        stage.world.release_backing();
        let world = stage.world.clone();
        let opened = guest.get(|files| async move {
            assert_eq!(files.synchronise(&opened).await, Ok(()));
            let last = make(&files, "/last", 10).await;
            files.close(&last).await;
            let root = files.open(b"/", &OpenHow::reading()).await.expect("opened");
            assert_eq!(files.synchronise(&root).await, Ok(()));
            assert!(world.outsider().read("last").is_some(), "seed {seed}: a name in the root");
            files.unlink(b"/last").await.expect("removed");
            files.flush(&[], &|_| ()).await.expect("flushed")
        });
        assert_eq!(opened.failed, 0, "seed {seed}: {:?}", opened.failures);
        assert!(site.read("e2/f").is_some() && site.read("e1/f").is_none() && site.read("tmp/m").is_none());
    }
}

/// Goal: fsync waits for no flush that steps back for accesses, also if that is just updating the file where it is; and
/// that one goes on after it.
/// Method: one that may write little a second has begun with a large file; another file is synced, then that one.
#[test]
fn fsync_waits_for_no_patient_flush() {
    for policy in [FlushPolicy::Idle, AUTOMATIC] {
        let idle = SECOND / 10;
        let slow = Flushing { rate: 64 << 10, writers: 1, idle, ..flushing(policy, true) };
        let stage = Stage::over_a_site(5, 2, CHUNK, slow);
        let guest = stage.client();
        let large = guest.get(|files| async move {
            let large = make(&files, "/large", 1 << 20).await;
            assert_eq!(files.synchronise(&large).await, Ok(()));
            files.write_at(&large, &vec![b'y'; 800 << 10], 0).await.expect("written");
            large
        });
        stage.pass(2 * SECOND);
        let start = stage.world.now();
        guest.get(|files| async move {
            let file = make(&files, "/small", 100).await;
            assert_eq!(files.synchronise(&file).await, Ok(()));
            assert_eq!(files.synchronise(&large).await, Ok(()));
            // What nobody syncs goes by itself.
            make(&files, "/other", 100).await;
        });
        let taken = stage.world.now() - start;
        assert!(taken < 4 * SECOND, "{policy:?}: {taken}");
        let site = stage.world.outsider();
        assert!(site.read("small").is_some() && site.read("large").is_some_and(|bytes| bytes[100] == b'y'));
        pass_until(&stage, "the other one has gone", || site.read("other").is_some());
    }
}

/// Goal: a call of the site that never returns holds up nobody's fsync but that of its file, which fails in time; and a
/// flush that somebody waits for goes on beside.
/// Method: writes of one file hang; a flush and an fsync of it are under way when others sync.
#[test]
fn a_call_that_hangs_holds_up_its_file_alone() {
    let stage = Stage::over_a_site(9, 3, CHUNK, flushing(FlushPolicy::Manual, true));
    let (guest, other, third) = (stage.client(), stage.client(), stage.client());
    let large = guest.get(|files| async move {
        files.mkdir(b"/hangs", 0o755).await.expect("made");
        assert_eq!(files.flush(&[], &|_| ()).await.expect("flushed").failed, 0);
        make(&files, "/others", 5_000).await;
        make(&files, "/hangs/f", 90_000).await
    });
    stage.world.hang_backing("hangs", Some("write"));
    let flushed = other.spawn(|files| async move {
        assert_eq!(files.flush(&[], &|_| ()).await.expect("flushed").failed, 0);
    });
    let synced = third.spawn(|files| async move {
        let file = files.open(b"/hangs/f", &OpenHow::reading_and_writing()).await.expect("opened");
        let error = files.synchronise(&file).await.expect_err("it hangs");
        assert_eq!(error.status, Status::TimedOut, "{error}");
    });
    for (round, name) in ["/a", "/b", "/c"].into_iter().enumerate() {
        stage.pass(SECOND);
        let start = stage.world.now();
        guest.get(|files| async move {
            let file = make(&files, name, 2_000).await;
            assert_eq!(files.synchronise(&file).await, Ok(()));
        });
        let taken = stage.world.now() - start;
        assert!(taken < 3 * SECOND, "round {round}: {taken}");
        assert!(stage.world.outsider().read(&name[1..]).is_some());
    }
    pass_until(&stage, "the sync of the file has failed", || synced.get());
    assert!(!flushed.get() && stage.world.outsider().read("others").is_some());
    stage.world.release_backing();
    pass_until(&stage, "the flush has ended", || flushed.get());
    guest.get(|files| async move { assert_eq!(files.synchronise(&large).await, Ok(())) });
}

/// Goal: files that are synced all the time hold up no flush of everything for good, and that none of them.
/// Method: two clients sync one new file after another while many others wait for a flush.
#[test]
fn syncs_and_a_flush_take_turns() {
    let stage = Stage::over_a_site(4, 2, CHUNK, Flushing { writers: 1, ..flushing(FlushPolicy::Manual, true) });
    let guest = stage.client();
    guest.get(|files| async move {
        files.mkdir(b"/many", 0o755).await.expect("made");
        for number in 0..300 {
            let path = format!("/many/{number}");
            let file = files.open(path.as_bytes(), &OpenHow::creating(0o644)).await.expect("opened");
            files.write_at(&file, path.as_bytes(), 0).await.expect("written");
            files.close(&file).await;
        }
    });
    let is_over = std::rc::Rc::new(std::cell::Cell::new(false));
    let syncing = ["a", "b"].map(|prefix| {
        let is_over = is_over.clone();
        stage.client().spawn(move |files| async move {
            let mut number = 0;
            while !is_over.get() {
                number += 1;
                let path = format!("/{prefix}{number}");
                let file = files.open(path.as_bytes(), &OpenHow::creating(0o644)).await.expect("opened");
                files.write_at(&file, b"x", 0).await.expect("written");
                let start = files.reactor().now();
                assert_eq!(files.synchronise(&file).await, Ok(()));
                // Some calls of the site take a hundred times as long as others.
                assert!(files.reactor().now() - start < 5 * SECOND);
                files.close(&file).await;
            }
        })
    });
    guest.get(|files| async move { assert_eq!(files.flush(&[], &|_| ()).await.expect("flushed").failed, 0) });
    assert!((0..300).all(|number| stage.world.outsider().read(&format!("many/{number}")).is_some()));
    is_over.set(true);
    pass_until(&stage, "the others have ended", || syncing.iter().all(|ended| ended.get()));
}

/// Goal: fsync of a file with several names leaves none of them with old bytes at the site, also if it is written to
/// all the time; and a pipe in a directory does not keep the directory from being synced.
/// Method: a small file with two names that were carried, a writer beside, and the site after each fsync.
#[test]
fn every_name_of_a_synced_file_is_at_the_site() {
    for seed in 1..=6 {
        let stage = Stage::over_a_site(seed, 1 + seed as u8 % 3, CHUNK, flushing(FlushPolicy::Manual, true));
        let (guest, other) = (stage.client(), stage.client());
        let site = stage.world.outsider();
        let file = guest.get(|files| async move {
            files.mkdir(b"/d", 0o755).await.expect("made");
            let file = make(&files, "/d/a", 3_000).await;
            files.link(b"/d/a", b"/d/b").await.expect("linked");
            files.make_node(b"/d/pipe", client::Kind::Fifo, 0o644, 0).await.expect("made");
            assert_eq!(files.synchronise(&file).await, Ok(()), "seed {seed}");
            let directory = files.open(b"/d", &OpenHow::reading()).await.expect("opened");
            assert_eq!(files.synchronise(&directory).await, Ok(()), "seed {seed}");
            file
        });
        assert_eq!(site.inode("d/a"), site.inode("d/b"), "seed {seed}: they are one file");
        let is_over = std::rc::Rc::new(std::cell::Cell::new(false));
        let own = is_over.clone();
        let ended = other.spawn(move |files| async move {
            let file = files.open(b"/d/b", &OpenHow::reading_and_writing()).await.expect("opened");
            while !own.get() {
                files.write_at(&file, b"zz", 5).await.expect("written");
                files.reactor().sleep(1_000_000).await;
            }
        });
        for round in [b'1', b'2'] {
            let own = file.clone();
            guest.get(|files| async move {
                files.write_at(&own, &[round], 0).await.expect("written");
                assert_eq!(files.synchronise(&own).await, Ok(()), "seed {seed}");
            });
            for name in ["d/a", "d/b"] {
                assert_eq!(site.read(name).expect("it is there")[0], round, "seed {seed}: {name} is old");
            }
        }
        is_over.set(true);
        pass_until(&stage, "the writer has ended", || ended.get());
    }
}
