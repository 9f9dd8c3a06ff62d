//! Servers whose clocks are hours apart: times of files and directories never go back along a chain of operations,
//! sessions and locks live on, and the checker finds nothing wrong. docs/hosts.md, "Clocks".

use client::check::CheckOptions;
use client::{FileSystem, OpenHow};
use reactor::{Class, Nanos};
use sim::harness::Harness;
use sim::profile::{Overrides, Profile, SECOND};
use std::cell::RefCell;
use std::rc::Rc;
use wire::Placement;

const CHUNK: u64 = 4096;
const SERVERS: u32 = 4;
const HOUR: i64 = 3600 * SECOND as i64;
const LIMIT: Nanos = 600 * SECOND;
const SEEDS: u64 = 12;

/// A cluster whose servers are hours and days away from each other, in an order that the seed turns.
fn cluster(seed: u64) -> Harness {
    let overrides = Overrides { no_faults: true, servers: Some(SERVERS), ..Overrides::default() };
    let mut profile = Profile::new(seed, &overrides);
    (profile.placement, profile.chunk_sizes) = (Placement::Modular, vec![CHUNK as u32]);
    (profile.client_timeout, profile.server_timeout) = (10 * SECOND, 2 * SECOND);
    (profile.session_grace, profile.latency) = (5 * SECOND, (5_000, 300_000));
    (profile.store_size, profile.stable_media) = (16 << 20, false);
    let harness = Harness::new(&profile, false);
    let offsets = [0, 26 * HOUR, -5 * HOUR, 3 * HOUR];
    for server in 0..SERVERS {
        let offset = offsets[(u64::from(server) + seed) as usize % offsets.len()];
        harness.world.set_clock(harness.node(server), offset, 0);
    }
    harness.wait_for_servers(LIMIT).expect("servers start");
    harness
}

fn run<T: 'static>(harness: &Harness, work: impl AsyncFnOnce(FileSystem) -> T + 'static) -> T {
    let client = harness.add_client();
    let told = Rc::new(RefCell::new(None));
    let (files, place) = (client.client.file_system.clone(), told.clone());
    harness.world.reactor(client.node).spawn(Class::Metadata, async move {
        let value = work(files).await;
        place.replace(Some(value));
    });
    assert!(harness.world.run_until(|| told.borrow().is_some(), LIMIT), "it ends, seed {}", harness.profile.seed);
    told.borrow_mut().take().expect("it has ended")
}

fn check(harness: &Harness) {
    harness.world.run_for(2 * SECOND);
    let report =
        run(harness, async |files| files.check(&CheckOptions { data: true }, &|_| {}).await.expect("the check ends"));
    assert!(report.faults.is_empty(), "seed {}: {:?}", harness.profile.seed, report.faults);
}

/// Goal: the time of a file never goes back, whichever servers are written to one after the other. Method: chunks on
/// servers whose clocks are ahead and behind, in turns and twice; after each write, another client looks.
#[test]
fn times_of_files_do_not_go_back() {
    for seed in 0..SEEDS {
        let harness = cluster(seed);
        let mut latest = 0;
        for chunk in (0..2 * u64::from(SERVERS)).chain(0..2 * u64::from(SERVERS)) {
            run(&harness, async move |files| {
                let how = OpenHow { create: true, ..OpenHow::reading_and_writing() };
                let file = files.open(b"/file", &how).await.expect("opened");
                files.write_at(&file, &[chunk as u8; 100], chunk * CHUNK).await.expect("written");
                files.close(&file).await;
            });
            let (mtime, ctime) = run(&harness, async |files| {
                let attributes = files.stat(b"/file").await.expect("it is there");
                (attributes.mtime, attributes.ctime)
            });
            assert!(mtime >= latest, "seed {seed}, chunk {chunk}: the time went back by {} ns", latest - mtime);
            assert!(ctime >= mtime, "seed {seed}, chunk {chunk}: changed before it was written");
            latest = mtime;
        }
        check(&harness);
    }
}

/// Goal: the time of a directory grows with each entry that is made or removed, on whichever server, and so it is seen
/// from everywhere. Method: names that fall on all servers; after each a fresh client looks at the directory.
#[test]
fn times_of_directories_grow() {
    for seed in 0..SEEDS {
        let harness = cluster(seed);
        run(&harness, async |files| files.mkdir(b"/directory", 0o755).await.expect("made"));
        let mut latest = 0;
        for step in 0..24 {
            run(&harness, async move |files| {
                let path = format!("/directory/{}", step / 2);
                if step % 2 == 0 {
                    files.mkdir(path.as_bytes(), 0o755).await.map(drop).expect("made");
                } else {
                    files.rmdir(path.as_bytes()).await.expect("removed");
                }
            });
            let mtime = run(&harness, async |files| files.stat(b"/directory").await.expect("it is there").mtime);
            assert!(mtime >= latest, "seed {seed}, step {step}: the time went back by {} ns", latest - mtime);
            latest = mtime;
        }
        check(&harness);
    }
}

/// Goal: what was renamed between servers whose clocks differ keeps its time, and its ctime does not go back.
#[test]
fn renames_between_clocks() {
    for seed in 0..SEEDS {
        let harness = cluster(seed);
        run(&harness, async |files| {
            let how = OpenHow { create: true, ..OpenHow::reading_and_writing() };
            let file = files.open(b"/0", &how).await.expect("opened");
            files.write_at(&file, b"content", 0).await.expect("written");
            files.close(&file).await;
        });
        let first = run(&harness, async |files| files.stat(b"/0").await.expect("it is there"));
        let mut ctime = first.ctime;
        for step in 0..12 {
            let attributes = run(&harness, async move |files| {
                let (from, to) = (format!("/{step}"), format!("/{}", step + 1));
                files.rename(from.as_bytes(), to.as_bytes(), 0).await.expect("renamed");
                files.stat(to.as_bytes()).await.expect("it is there")
            });
            assert_eq!(attributes.mtime, first.mtime, "seed {seed}, step {step}");
            assert!(attributes.ctime >= ctime, "seed {seed}, step {step}");
            ctime = attributes.ctime;
        }
        check(&harness);
    }
}
