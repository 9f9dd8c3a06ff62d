//! Errors of flushes as users see them: fsync and close tell each open file once, and with `--fsync-backing` fsync waits
//! until what was changed is at the site.

#[path = "common/simulated.rs"]
#[allow(dead_code)] // Shared with other tests.
mod simulated;

use client::{File, FileSystem, OpenHow, Status};
use server::{FlushPolicy, Flushing};
use simulated::{Guest, SECOND, Stage};

const CHUNK: u32 = 4096;
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

/// Goal: a file of which somebody waits for its way to the site need not wait for a flush that steps back.
/// Method: a large file goes in idle spells, of which there are none; a small one is synced.
#[test]
fn fsync_waits_for_no_patient_flush() {
    let rate = Flushing { rate: 64 << 10, writers: 1, ..flushing(AUTOMATIC, true) };
    let stage = Stage::over_a_site(5, 2, CHUNK, rate);
    let guest = stage.client();
    guest.get(|files| async move {
        make(&files, "/large", 4 << 20).await;
    });
    stage.pass(2 * SECOND);
    let start = stage.world.now();
    guest.get(|files| async move {
        let file = make(&files, "/small", 100).await;
        assert_eq!(files.synchronise(&file).await, Ok(()));
    });
    assert!(stage.world.now() - start < 3 * SECOND, "{}", stage.world.now() - start);
    assert!(stage.world.outsider().read("small").is_some());
    pass_until(&stage, "the large one has gone", || stage.world.outsider().read("large").is_some());
}
