//! Staging as users see it: files of a listing come here together, by few calls, and what can't come keeps none of the
//! others back.

#[path = "common/simulated.rs"]
#[allow(dead_code)] // Shared with other tests.
mod simulated;

use client::{DirectoryEntry, FileSystem, ListedFile, OpenHow, StatisticsFormat, Status};
use reactor::sim::BackingFaults;
use server::{FlushPolicy, Flushing};
use simulated::{Guest, SECOND, Stage};
use std::rc::Rc;
use wire::Placement;

const CHUNK: u32 = 4096;
const FILES: usize = 96;
const EIO: i32 = 5;
const DIRECTORIES: [&str; 2] = ["one", "two"];

fn stage_over_a_site(seed: u64) -> Stage {
    let flushing = Flushing { policy: FlushPolicy::Manual, check: 3600 * SECOND, ..Flushing::default() };
    let stage = Stage::over_a_site(seed, 1 + seed as u8 % 3, CHUNK, flushing);
    for directory in DIRECTORIES {
        stage.world.outsider().make_directory(directory);
        for number in 0..FILES {
            stage.world.outsider().write(&path_of(directory, number), 0, &bytes_of(number));
        }
    }
    stage
}

fn path_of(directory: &str, number: usize) -> String {
    format!("{directory}/f{number:02}")
}

/// Some are empty, some are zeros, and some have three chunks.
fn bytes_of(number: usize) -> Vec<u8> {
    let byte = if number % 10 == 3 { 0 } else { number as u8 + 1 };
    let size = match number % 10 {
        0 => 0,
        7 => 3 * CHUNK as usize - 100,
        last => 100 * last + number,
    };
    vec![byte; size]
}

/// The files of a directory, by name.
async fn listed(files: &FileSystem, directory: &str) -> Vec<ListedFile> {
    let mut found = Vec::new();
    let on_entry = &mut |entry: &DirectoryEntry| {
        let attributes = entry.attributes.as_ref().expect("all inodes are with their names");
        let file = ListedFile { id: attributes.id, layout: attributes.layout, size: attributes.size };
        found.push((entry.name.clone(), file));
        true
    };
    files.read_directory(format!("/{directory}").as_bytes(), true, on_entry).await.expect("listed");
    found.sort_by(|one, other| one.0.cmp(&other.0));
    found.into_iter().map(|(_, file)| file).collect()
}

async fn read(files: &FileSystem, path: &str) -> client::Result<Vec<u8>> {
    let file = files.open(format!("/{path}").as_bytes(), &OpenHow::reading()).await?;
    let mut bytes = vec![0; 4 * CHUNK as usize];
    let size = files.read_at(&file, &mut bytes, 0).await;
    files.close(&file).await;
    bytes.truncate(size?);
    Ok(bytes)
}

/// A number of what all servers have done with the site.
fn number(guest: &Guest, servers: usize, name: &str) -> u64 {
    let number_of = |text: String| {
        let (_, rest) = text.split_once("\"backing\":{").expect("there is a backing directory");
        let (_, rest) = rest.split_once(&format!("\"{name}\":")).expect("it is counted");
        rest.split(',').next().and_then(|number| number.parse::<u64>().ok()).expect("a number")
    };
    (0..servers as u32)
        .map(|server| {
            let text = guest.get(|files| async move { files.server_statistics(server, StatisticsFormat::JSON).await });
            number_of(text.expect("told"))
        })
        .sum()
}

/// What becomes of each file of a directory.
fn stage_all(guest: &Guest, directory: &'static str) -> Vec<client::Result<()>> {
    guest.get(move |files| async move {
        let listed = listed(&files, directory).await;
        assert_eq!(listed.len(), FILES);
        files.stage_listed(&listed).await
    })
}

/// Has servers see that the site is quick, and makes known what the other directory has.
fn warm_up(stage: &Stage) -> Rc<Guest> {
    let guest = stage.client();
    assert_eq!(stage_all(&guest, "one"), vec![Ok(()); FILES]);
    guest.get(|files| async move { listed(&files, "two").await });
    guest
}

/// Goal: files that are staged together are here as they are at the site, each byte came once, by half as many calls
/// as there are files at most; staging them again asks nothing of the site.
#[test]
fn small_files_come_together() {
    for seed in 1..=6 {
        let stage = stage_over_a_site(seed);
        stage.world.set_backing_faults(BackingFaults { slow: 0, ..BackingFaults::default() });
        let servers = stage.cluster.servers.len();
        let guest = warm_up(&stage);
        let fetched = number(&guest, servers, "fetched_chunks");
        let large = guest.get(|files| async move {
            let all = listed(&files, "two").await;
            let large: Vec<ListedFile> = all.into_iter().filter(|file| file.size > u64::from(CHUNK)).collect();
            files.stage_listed(&large).await
        });
        assert_eq!(large, vec![Ok(()); FILES / 10]);
        let calls = number(&guest, servers, "calls");
        assert_eq!(stage_all(&guest, "two"), vec![Ok(()); FILES]);
        let fetched = number(&guest, servers, "fetched_chunks") - fetched;
        let chunks: usize = (0..FILES).map(|number| bytes_of(number).len().div_ceil(CHUNK as usize)).sum();
        assert_eq!(fetched, chunks as u64, "seed {seed}: each chunk is fetched once");
        let made = number(&guest, servers, "calls") - calls;
        assert!(made as usize <= FILES / 2, "seed {seed}: {made} calls for {FILES} files");
        let seen = stage.world.backing_calls("read");
        assert_eq!(stage_all(&guest, "two"), vec![Ok(()); FILES]);
        for number in 0..FILES {
            let bytes = guest.get(move |files| async move { read(&files, &path_of("two", number)).await });
            assert!(bytes.expect("read") == bytes_of(number), "seed {seed}: file {number}");
        }
        assert_eq!(stage.world.backing_calls("read"), seen, "seed {seed}: all of it is here");
    }
}

/// Goal: a file whose reads never end keeps nobody from the others that were to be read by the same call, neither those
/// who stage them nor those who read them; and it comes when its reads end.
#[test]
fn one_that_hangs_keeps_no_other_back() {
    for seed in 1..=6 {
        let stage = stage_over_a_site(seed);
        let guest = warm_up(&stage);
        stage.world.hang_backing(&path_of("two", 41), Some("read"));
        let staging = stage.client();
        let ended = staging.spawn(|files| async move {
            let listed = listed(&files, "two").await;
            for (number, staged) in files.stage_listed(&listed).await.into_iter().enumerate() {
                let status = staged.err().map(|error| error.status);
                assert_eq!(status, (number == 41).then_some(Status::TimedOut), "file {number}");
            }
        });
        stage.pass(SECOND / 100);
        for number in (0..FILES).filter(|number| *number != 41) {
            let bytes = guest.get(move |files| async move {
                let since = files.reactor().now();
                let bytes = read(&files, &path_of("two", number)).await;
                assert!(files.reactor().now() - since < SECOND, "seed {seed}: file {number}");
                bytes
            });
            assert!(bytes.expect("read") == bytes_of(number), "seed {seed}: file {number}");
        }
        stage.pass(60 * SECOND);
        assert!(ended.get(), "seed {seed}: staging ends");
        stage.world.release_backing();
        stage.pass(SECOND);
        let bytes = guest.get(|files| async move { read(&files, &path_of("two", 41)).await });
        assert!(bytes.expect("read") == bytes_of(41), "seed {seed}");
    }
}

/// Goal: what can't be read, has gone, or is another one by now, fails alone, and says why; what was written stays.
#[test]
fn what_fails_fails_alone() {
    for seed in 1..=6 {
        let stage = stage_over_a_site(seed);
        let guest = warm_up(&stage);
        let all = guest.get(|files| async move { listed(&files, "two").await });
        stage.world.fail_backing(&path_of("two", 11), Some("read"), EIO, None);
        stage.world.outsider().remove(&path_of("two", 22));
        stage.world.outsider().write(&path_of("two", 32), 0, b"somebody else's");
        guest.get(|files| async move {
            files.unlink(b"/two/f42").await.expect("removed");
            let how = OpenHow::reading_and_writing();
            let file = files.open(b"/two/f52", &how).await.expect("opened");
            files.write_at(&file, b"ours", 0).await.expect("written");
            files.close(&file).await;
        });
        let staged = guest.get(|files| async move { files.stage_listed(&all).await });
        for (number, staged) in staged.into_iter().enumerate() {
            let status = staged.as_ref().err().map(|error| error.status);
            let expected = match number {
                11 | 22 | 32 => Some(Status::Io),
                42 => Some(Status::StaleFile),
                _ => None,
            };
            assert_eq!(status, expected, "seed {seed}: file {number}: {staged:?}");
            if let Some(error) = staged.err() {
                assert!(error.message.contains("Stage on server"), "{error}");
            }
        }
        let mut bytes = bytes_of(52);
        bytes[..4].copy_from_slice(b"ours");
        assert!(guest.get(|files| async move { read(&files, "two/f52").await }).expect("read") == bytes);
    }
}

/// Goal: however long names are, and however many of them fail, a reply says so of each.
#[test]
fn many_long_names_fail() {
    let stage = stage_over_a_site(1);
    let directory = "\u{e9}".repeat(120);
    stage.world.outsider().make_directory(&directory);
    for number in 0..FILES {
        stage.world.outsider().write(&format!("{directory}/{number:0100}"), 0, b"bytes");
    }
    stage.world.fail_backing(&directory, Some("read"), EIO, None);
    let staged = stage.client().get(move |files| async move {
        let listed = listed(&files, &directory).await;
        assert_eq!(listed.len(), FILES);
        files.stage_listed(&listed).await
    });
    for failed in staged {
        let error = failed.expect_err("no file can be read");
        assert_eq!(error.status, Status::Io, "{error}");
        assert!(error.message.contains("backing directory: read"), "{error}");
    }
}

/// Goal: of a file that can't be read nothing more is asked for, however many requests it would take.
#[test]
fn a_large_file_fails_once() {
    let stage = stage_over_a_site(1);
    stage.world.outsider().make_directory("large");
    stage.world.outsider().write("large/file", 0, &vec![1; 4000 * CHUNK as usize]);
    stage.world.hang_backing("large/file", Some("read"));
    stage.client().get(|files| async move {
        let (listed, since) = (listed(&files, "large").await, files.reactor().now());
        let staged = files.stage_listed(&listed).await.remove(0);
        assert_eq!(staged.expect_err("it can't be read").status, Status::TimedOut);
        assert!(files.reactor().now() - since < 60 * SECOND);
    });
}

/// Goal: where reads become slow while many files are staged, they come all the same, and who reads a file of another
/// directory hardly waits longer than the site takes for that.
#[test]
fn a_site_that_becomes_slow() {
    for seed in 1..=6 {
        let stage = stage_over_a_site(seed);
        stage.world.outsider().make_directory("three");
        stage.world.outsider().write("three/file", 0, b"bytes");
        let (guest, staging) = (warm_up(&stage), stage.client());
        stage.world.set_backing_faults(BackingFaults { delay_ns: 300_000_000, ..BackingFaults::default() });
        let ended = staging.spawn(|files| async move {
            let listed = listed(&files, "two").await;
            assert_eq!(files.stage_listed(&listed).await, vec![Ok(()); FILES]);
        });
        stage.pass(SECOND / 10);
        guest.get(|files| async move {
            let since = files.reactor().now();
            assert_eq!(read(&files, "three/file").await.expect("read"), b"bytes");
            assert!(files.reactor().now() - since < 8 * SECOND, "seed {seed}");
        });
        stage.pass(60 * SECOND);
        assert!(ended.get(), "seed {seed}: all of it has come");
    }
}

/// Goal: without a backing directory nothing is lacking.
#[test]
fn nothing_is_lacking_without_a_site() {
    let stage = Stage::new(1, 2, CHUNK, Placement::Modular);
    let staged = stage.client().get(|files| async move {
        let file = files.open(b"/file", &OpenHow::creating(0o644)).await.expect("opened");
        files.write_at(&file, &[1; 10_000], 0).await.expect("written");
        let listed = ListedFile { id: file.id, layout: file.layout, size: 10_000 };
        (files.stage(&file).await, files.stage_listed(&[listed; 300]).await)
    });
    assert_eq!(staged, (Ok(()), vec![Ok(()); 300]));
}
