//! Listings of directories behind: names are shown as soon as they are read, and looked at by and by (docs/cache.md).

use crate::backing::{find, pattern};
use crate::support::*;
use reactor::Nanos;
use reactor::sim::{BackingFaults, World};
use server::Flushing;
use std::collections::BTreeMap;
use wire::messages::*;
use wire::search::{Order, Test, Tests, Verdict};
use wire::{Decode, FileId, Kind, Operation};

/// Longer than names wait that nobody needs to know more of.
const QUIET: Nanos = SECOND / 5;
const FILE_COUNT: usize = 200;
const ESTALE: i32 = 116;

/// A directory of many files, one directory and a link, at a site that tells kinds with names.
fn fill(world: &World) {
    world.set_backing_faults(BackingFaults { unknown_kinds: 0, ..BackingFaults::default() });
    let site = world.outsider();
    site.make_directory("d");
    site.make_directory("d/e");
    site.write("d/e/below", 0, b"below");
    site.make_symlink("d/link", "d/e");
    names().iter().for_each(|name| site.write(&format!("d/{name}"), 0, &pattern(1, 10)));
}

fn names() -> Vec<String> {
    (0..FILE_COUNT).map(|number| format!("n{number}")).collect()
}

async fn entries(caller: &Caller, directory: FileId, with_attributes: bool) -> BTreeMap<String, ListedEntry> {
    let mut found = BTreeMap::new();
    for server in 0..caller.cluster.server_count() {
        for entry in caller.entries_on(server, directory, with_attributes).await.expect("listed") {
            let before = found.insert(entry.name.clone(), entry);
            assert!(before.is_none(), "a name comes once");
        }
    }
    found
}

fn assert_all(found: &BTreeMap<String, ListedEntry>) {
    assert_eq!(found.len(), FILE_COUNT + 2);
    for (name, entry) in found {
        let kind = match name.as_str() {
            "e" => Kind::Directory,
            "link" => Kind::Symlink,
            _ => Kind::File,
        };
        assert_eq!(entry.kind, kind, "{name}");
    }
}

/// The names that one server finds in a directory that begin with `n`, in one page.
async fn search(caller: &Caller, server: u32, directory: FileId, more: &[Test]) -> Answer<usize> {
    let listing = ReadDirectoryRequest {
        directory,
        cursor: 0,
        size_max: 128 << 10,
        with_attributes: false,
        ancestors: Ancestors::default(),
        known: KNOWN_UNCHECKED,
    };
    let name = Test::Name { pattern: b"n*".to_vec(), any_case: false };
    let tests = Tests([&[name], more].concat());
    let reply = caller.call(server, Operation::Find, &FindRequest { listing, count_only: false, tests }).await?;
    let mut input = wire::Decoder::new(&reply.body);
    let mut count = 0;
    while input.remaining() > 0 {
        let found = FoundEntry::decode(&mut input).expect("well-formed");
        count += usize::from(found.verdict == Verdict::Yes && found.kind == Kind::File);
    }
    Ok(count)
}

/// Goal: names and kinds are shown, and found by name, although no file can be looked at; what needs more waits, and
/// has it in the end. What is shown has the id that it keeps. Method: looks at files hang.
#[test]
fn names_are_shown_before_they_are_looked_at() {
    for seed in 0..8 {
        let (mut test, ()) = TestCluster::over_a_site(seed, 1 + seed as u32 % 3, fill);
        test.restart_with_timeout(60 * SECOND);
        let caller = test.caller(0, 1);
        let own = caller.clone();
        let d = test.run(0, async move { find(&own, "d").await.expect("there").id });
        names().iter().for_each(|name| test.world.hang_backing(&format!("d/{name}"), Some("look")));
        let own = caller.clone();
        let shown = test.run(0, async move {
            let shown = entries(&own, d, false).await;
            assert_all(&shown);
            let mut count = 0;
            for server in 0..own.cluster.server_count() {
                count += search(&own, server, d, &[]).await.expect("found");
            }
            assert_eq!(count, FILE_COUNT);
            shown
        });
        let (attributes, sizes) = (test.caller(1, 2), test.caller(2, 3));
        let page = test.spawn(1, async move { entries(&attributes, d, true).await });
        let of_size = [Test::Size { order: Order::Equal, unit: 1, count: 10 }];
        let found = test.spawn(2, async move { search(&sizes, 0, d, &of_size).await });
        test.world.run_for(QUIET);
        assert!(page.borrow().is_none() && found.borrow().is_none(), "nobody knows, seed {seed}");
        test.world.release_backing();
        let page = test.wait(&page);
        assert_all(&page);
        assert!(test.wait(&found).expect("found") > 0);
        for (name, entry) in &page {
            assert!(entry.has_attributes, "{name}");
            assert_eq!(entry.id, shown[name].id, "{name}");
        }
        test.settle();
    }
}

/// Goal: what is changed here while names are shown that nobody has looked at shows as it is.
#[test]
fn changes_show_among_them() {
    for seed in 0..8 {
        let (test, ()) = TestCluster::over_a_site(seed, 1 + seed as u32 % 3, fill);
        let caller = test.caller(0, 1);
        let own = caller.clone();
        let d = test.run(0, async move { find(&own, "d").await.expect("there").id });
        let hung = &names()[10..12];
        hung.iter().for_each(|name| test.world.hang_backing(&format!("d/{name}"), Some("look")));
        test.run(0, async move {
            assert_all(&entries(&caller, d, false).await);
            caller.unlink(d, "n0").await.expect("removed");
            caller.rename(d, "n1", "moved", 0).await.expect("renamed");
            caller.create(d, "made").await.expect("made");
            caller.create(d, "short").await.expect("made");
            caller.unlink(d, "short").await.expect("removed");
            let mut found = entries(&caller, d, false).await;
            assert!(found.remove("moved").is_some() && found.remove("made").is_some());
            assert!(!found.contains_key("n0") && !found.contains_key("n1") && !found.contains_key("short"));
            assert_eq!(found.len(), FILE_COUNT);
        });
        test.world.release_backing();
        test.settle();
    }
}

/// Goal: what somebody else changes in the directory meanwhile shows within the interval of checks.
#[test]
fn they_are_looked_at_again_when_they_are_old() {
    for seed in 0..8 {
        let flushing = Flushing { check: SECOND / 8, ..MANUAL };
        let (mut test, ()) = TestCluster::over_a_flushed_site(seed, 1 + seed as u32 % 3, flushing, fill);
        test.restart_with_timeout(60 * SECOND);
        // Else its times are so young that they tell nothing.
        test.world.run_for(if seed < 4 { 10 * SECOND } else { 0 });
        let caller = test.caller(0, 1);
        let own = caller.clone();
        let d = test.run(0, async move { find(&own, "d").await.expect("there").id });
        names().iter().for_each(|name| test.world.hang_backing(&format!("d/{name}"), Some("look")));
        let own = caller.clone();
        test.run(0, async move { assert_all(&entries(&own, d, false).await) });
        test.world.outsider().remove("d/n7");
        test.world.outsider().write("d/theirs", 0, b"theirs");
        test.world.run_for(SECOND / 4);
        let own = caller.clone();
        let again = test.spawn(0, async move { entries(&own, d, false).await });
        test.world.run_for(SECOND / 10);
        test.world.release_backing();
        let found = test.wait(&again);
        assert!(found.contains_key("theirs") && !found.contains_key("n7"), "seed {seed}");
        test.settle();
    }
}

/// Goal: a directory of more names than servers have room for is listed all the same, and looked at as it is read.
#[test]
fn more_names_than_there_is_room_for() {
    for seed in 0..8 {
        let bounds = server::Bounds { memos: 1 + 5 * seed as usize, ..server::Bounds::default() };
        let (test, ()) = TestCluster::over_a_bounded_site(seed, 1 + seed as u32 % 3, MANUAL, bounds, fill);
        let caller = test.caller(0, 1);
        let stale = format!("d/n{seed}");
        let is_stale = seed % 2 == 1;
        if is_stale {
            test.world.fail_backing(&stale, Some("look"), ESTALE, None);
        }
        test.run(0, async move {
            let d = find(&caller, "d").await.expect("there").id;
            assert_all(&entries(&caller, d, false).await);
            let found = entries(&caller, d, true).await;
            assert_all(&found);
            let failed = found.values().filter(|entry| !entry.has_attributes).map(|entry| format!("d/{}", entry.name));
            assert_eq!(failed.collect::<Vec<_>>(), Vec::from_iter(is_stale.then_some(stale)), "seed {seed}");
        });
        test.settle();
    }
}

/// Goal: where the site tells no kinds, nobody is told one that is wrong.
#[test]
fn kinds_that_nobody_tells_are_looked_at() {
    for seed in 0..4 {
        let (test, ()) = TestCluster::over_a_site(seed, 1 + seed as u32 % 3, fill);
        test.world.set_backing_faults(BackingFaults { unknown_kinds: 1, ..BackingFaults::default() });
        let caller = test.caller(0, 1);
        test.run(0, async move {
            let d = find(&caller, "d").await.expect("there").id;
            assert_all(&entries(&caller, d, false).await);
        });
        test.settle();
    }
}

/// Goal: a path costs one look for each of its names, and a listing one for each that it has, on whichever servers.
#[test]
fn each_name_is_looked_at_once() {
    for seed in 0..8 {
        let (test, ()) = TestCluster::over_a_site(seed, 1 + seed as u32 % 4, fill);
        // What takes too long for one call is asked for by many.
        test.world.set_backing_faults(BackingFaults { unknown_kinds: 0, slow: 0, ..BackingFaults::default() });
        let caller = test.caller(0, 1);
        let own = caller.clone();
        let looks = || test.world.backing_calls("look");
        let before = looks();
        let d = test.run(0, async move {
            assert_eq!(find(&own, "d/e/below").await.expect("there").size, 5);
            find(&own, "d").await.expect("there").id
        });
        assert_eq!(looks() - before, 3, "seed {seed}");
        test.run(0, async move { assert_all(&entries(&caller, d, true).await) });
        test.world.run_for(SECOND);
        // All but what is known; and each server looks at the directory before and after it.
        let of_directory = 2 * u64::from(test.cluster.server_count());
        assert_eq!(looks() - before, 3 + FILE_COUNT as u64 + 1 + of_directory, "seed {seed}");
        test.settle();
    }
}

/// Goal: names that are replaced and made while they are read come once, and in the end all are there. Method: somebody
/// else does so all the time, in a directory of several pieces.
#[test]
fn names_that_are_replaced_come_once() {
    const COUNT: usize = 3_000;
    for seed in 0..6 {
        let fill = |world: &World| {
            world.set_backing_faults(BackingFaults { unknown_kinds: 0, ..BackingFaults::default() });
            world.outsider().make_directory("d");
            (0..COUNT).for_each(|number| world.outsider().write(&format!("d/n{number}"), 0, b"first"));
        };
        let (test, ()) = TestCluster::over_a_site(seed, 1 + seed as u32 % 2, fill);
        let caller = test.caller(0, 1);
        let own = caller.clone();
        let d = test.run(0, async move { find(&own, "d").await.expect("there").id });
        let listing = test.spawn(0, async move { entries(&caller, d, false).await });
        let mut number = seed as usize;
        while listing.borrow().is_none() {
            number = (number + 7) % COUNT;
            test.world.outsider().write("theirs", 0, b"second");
            test.world.outsider().rename("theirs", &format!("d/n{number}"));
            test.world.run_for(SECOND / 10_000);
        }
        let found = test.wait(&listing);
        assert_eq!(found.len(), COUNT, "seed {seed}");
        test.settle();
    }
}

/// Goal: names that nobody needs to know more of, and that can't be looked at, hold up no other directory: whoever
/// needs that has it at once, and it is listed by itself in time.
#[test]
fn what_somebody_needs_does_not_wait_for_what_nobody_does() {
    for seed in 0..4 {
        let fill = |world: &World| {
            fill(world);
            for directory in ["x", "y"] {
                world.outsider().make_directory(directory);
                (0..50).for_each(|number| world.outsider().write(&format!("{directory}/n{number}"), 0, b"here"));
            }
        };
        let (mut test, ()) = TestCluster::over_a_site(seed, 1 + seed as u32 % 2, fill);
        test.restart_with_timeout(20 * SECOND);
        test.world.set_backing_faults(BackingFaults { unknown_kinds: 0, slow: 0, ..BackingFaults::default() });
        let caller = test.caller(0, 1);
        names().iter().for_each(|name| test.world.hang_backing(&format!("d/{name}"), Some("look")));
        let own = caller.clone();
        let (x, y) = test.run(0, async move {
            let d = find(&own, "d").await.expect("there").id;
            assert_all(&entries(&own, d, false).await);
            (find(&own, "x").await.expect("there").id, find(&own, "y").await.expect("there").id)
        });
        test.world.run_for(QUIET);
        let start = test.world.now();
        let own = caller.clone();
        test.run(0, async move {
            assert_eq!(entries(&own, x, false).await.len(), 50);
            assert!(entries(&own, x, true).await.values().all(|entry| entry.has_attributes));
            assert_eq!(entries(&own, y, false).await.len(), 50);
        });
        assert!(test.world.now() - start < SECOND, "seed {seed}: {} ns", test.world.now() - start);
        // Those of the first directory are given up by and by.
        test.world.run_for(60 * SECOND);
        test.run(0, async move {
            assert!(entries(&caller, y, true).await.values().all(|entry| entry.has_attributes));
        });
        test.world.release_backing();
        test.settle();
    }
}
