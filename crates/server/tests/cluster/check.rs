//! What somebody else changes in a backing tree is seen after a while (`--backing-check`), and what was changed here
//! stays.

use crate::backing::{contents, find, flush, populate, write};
use crate::support::*;
use reactor::Nanos;
use reactor::sim::World;
use server::Flushing;
use std::collections::BTreeMap;
use wire::{FileId, Kind, Status};

const ROOT: FileId = FileId::ROOT;
const INTERVAL: Nanos = 5 * SECOND;
const EIO: i32 = 5;

fn over_a_site(seed: u64, check: Nanos) -> (TestCluster, BTreeMap<String, Vec<u8>>) {
    let flushing = Flushing { check, ..MANUAL };
    TestCluster::over_a_flushed_site(seed, 1 + seed as u32 % 4, flushing, populate)
}

/// Replaces a file by another one of its name.
fn replace(world: &World, path: &str, bytes: &[u8]) {
    let site = world.outsider();
    site.write("theirs", 0, bytes);
    site.rename("theirs", path);
}

/// Looks at everything: names by listings, files by name.
async fn assert_seen(caller: &Caller, files: &BTreeMap<String, Vec<u8>>, missing: &[&str]) {
    for (path, bytes) in files {
        let file = find(caller, path).await.unwrap_or_else(|failure| panic!("{path}: {failure:?}"));
        assert_eq!((file.kind, file.size), (Kind::File, bytes.len() as u64), "{path}");
        assert!(contents(caller, &file).await.expect("read") == *bytes, "{path}");
    }
    for path in missing {
        assert_eq!(status(&find(caller, path).await), Status::NotFound, "{path}");
    }
    for directory in ["", "d", "d/e", "d/empty"] {
        let id = if directory.is_empty() { ROOT } else { find(caller, directory).await.expect("there").id };
        let listed = caller.list(id).await.expect("listed");
        let path_of = |name: &str| if directory.is_empty() { name.to_owned() } else { format!("{directory}/{name}") };
        for path in files.keys() {
            let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
            assert!(parent != directory || listed.iter().any(|own| own == name), "{path} is not listed");
        }
        for path in missing {
            assert!(!listed.iter().any(|name| path_of(name) == *path), "{path} is listed");
        }
    }
}

/// Goal: files that were changed, replaced, removed and made by somebody else are seen as they are when what is known
/// of them is old, in directories that were listed and by name alone; and before that nothing is looked at.
#[test]
fn what_somebody_else_changes_is_seen() {
    for seed in 0..12 {
        let (test, mut files) = over_a_site(seed, INTERVAL);
        let caller = test.caller(0, 1);
        let (own, before) = (caller.clone(), files.clone());
        test.run(0, async move { assert_seen(&own, &before, &["new"]).await });
        let site = test.world.outsider();
        site.write("small", 90, b"what is longer now");
        files.get_mut("small").expect("known").truncate(90);
        files.get_mut("small").expect("known").extend(b"what is longer now");
        replace(&test.world, "d/large", b"another one");
        files.insert("d/large".to_owned(), b"another one".to_vec());
        site.remove("d/e/odd");
        files.remove("d/e/odd");
        for path in ["new", "d/e/new"] {
            site.write(path, 0, b"new");
            files.insert(path.to_owned(), b"new".to_vec());
        }
        // A name that leads to something of another kind.
        site.remove("whole");
        site.make_symlink("whole", "small");
        files.remove("whole");
        let looks = test.world.backing_calls("look");
        let own = caller.clone();
        test.run(0, async move {
            assert_eq!(find(&own, "small").await.expect("there").size, 100, "it was looked at a moment ago");
            assert_eq!(status(&find(&own, "new").await), Status::NotFound);
        });
        assert_eq!(test.world.backing_calls("look"), looks, "nothing is looked at again so soon");
        test.world.run_for(INTERVAL);
        let (own, expected) = (caller.clone(), files.clone());
        test.run(0, async move {
            assert_seen(&own, &expected, &["d/e/odd"]).await;
            assert_eq!(find(&own, "whole").await.expect("a link").kind, Kind::Symlink);
        });
        let (looks, own) = (test.world.backing_calls("look"), caller.clone());
        test.run(0, async move { assert_seen(&own, &files, &["d/e/odd"]).await });
        assert_eq!(test.world.backing_calls("look"), looks, "all of it was looked at a moment ago");
        test.settle();
    }
}

/// Goal: with `off`, and of what was changed here, nothing that somebody else does shows; a flush finds both.
#[test]
fn what_was_changed_here_stays() {
    for seed in 0..8 {
        let check = if seed % 2 == 0 { INTERVAL } else { Nanos::MAX };
        let (test, _) = over_a_site(seed, check);
        let caller = test.caller(0, 1);
        let own = caller.clone();
        test.run(0, async move {
            let file = find(&own, "d/large").await.expect("there");
            contents(&own, &file).await.expect("read");
            write(&own, &file, 10, b"ours").await;
            let file = find(&own, "small").await.expect("there");
            assert_eq!(contents(&own, &file).await.expect("read").len(), 100);
        });
        replace(&test.world, "d/large", b"theirs");
        replace(&test.world, "small", b"theirs");
        test.world.run_for(2 * INTERVAL);
        let own = caller.clone();
        test.run(0, async move {
            let file = find(&own, "d/large").await.expect("there");
            assert_eq!(contents(&own, &file).await.expect("read")[10..14], *b"ours", "seed {seed}");
            let size = if check == Nanos::MAX { 100 } else { 6 };
            assert_eq!(find(&own, "small").await.expect("there").size, size, "seed {seed}");
            assert_eq!(flush(&own).await.failed, 1, "seed {seed}");
        });
        assert_eq!(test.world.outsider().read("d/large").as_deref(), Some(b"theirs".as_slice()));
    }
}

/// Goal: who has a file open keeps it as it is, and then the name shows the other one.
#[test]
fn what_is_open_stays() {
    for seed in 0..6 {
        let (test, files) = over_a_site(seed, INTERVAL);
        let caller = test.caller(0, 1);
        let old = files["d/large"].clone();
        let own = caller.clone();
        let opened = test.run(0, async move {
            let d = find(&own, "d").await.expect("there").id;
            let opened = own.open_for_good(d, "large", 0).await.expect("opened");
            assert!(contents(&own, &opened.attributes).await.expect("read") == old);
            opened
        });
        replace(&test.world, "d/large", b"theirs");
        test.world.run_for(2 * INTERVAL);
        let own = caller.clone();
        test.run(0, async move {
            let file = find(&own, "d/large").await.expect("there");
            assert_eq!(file.id, opened.attributes.id, "it is open");
            own.close(&opened).await.expect("closed");
        });
        test.world.run_for(2 * INTERVAL);
        let own = caller.clone();
        test.run(0, async move {
            let file = find(&own, "d/large").await.expect("there");
            assert!(contents(&own, &file).await.expect("read") == b"theirs", "seed {seed}");
        });
    }
}

/// Goal: what was made here, and carried, and then changed by somebody else is seen.
#[test]
fn what_was_carried_is_looked_at() {
    for seed in 0..6 {
        let (test, _) = over_a_site(seed, INTERVAL);
        let caller = test.caller(0, 1);
        let own = caller.clone();
        test.run(0, async move {
            for name in ["made", "gone"] {
                let made = own.create(ROOT, name).await.expect("made");
                write(&own, &made, 0, b"ours").await;
            }
            assert_eq!(flush(&own).await.failed, 0);
        });
        replace(&test.world, "made", b"theirs");
        test.world.outsider().remove("gone");
        test.world.run_for(INTERVAL);
        let own = caller.clone();
        test.run(0, async move {
            let file = find(&own, "made").await.expect("there");
            assert_eq!(contents(&own, &file).await.expect("read"), b"theirs", "seed {seed}");
            assert_eq!(status(&find(&own, "gone").await), Status::NotFound, "seed {seed}");
            assert_eq!(flush(&own).await.failed, 0);
        });
        assert_eq!(test.world.outsider().read("made").as_deref(), Some(b"theirs".as_slice()));
        assert!(!test.world.outsider().exists("gone"));
    }
}

/// Goal: one name that can't be looked at keeps none of those that are looked at by the same call from being seen as it
/// is. Method: a page of a listing asks for all of them.
#[test]
fn a_name_that_hangs_is_looked_at_by_itself() {
    for seed in 0..4 {
        let flushing = Flushing { check: INTERVAL, ..MANUAL };
        let names: Vec<String> = (0..40).map(|number| format!("d/n{number}")).collect();
        let fill = |world: &World| {
            world.outsider().make_directory("d");
            names.iter().for_each(|name| world.outsider().write(name, 0, b"ours"));
        };
        let (test, ()) = TestCluster::over_a_flushed_site(seed, 1 + seed as u32 % 2, flushing, fill);
        let caller = test.caller(0, 1);
        let own = caller.clone();
        let d = test.run(0, async move {
            let d = find(&own, "d").await.expect("there").id;
            own.list(d).await.expect("listed");
            d
        });
        names[1..].iter().for_each(|name| replace(&test.world, name, b"somebody else's"));
        test.world.run_for(INTERVAL);
        test.world.hang_backing(&names[0], Some("look"));
        let own = caller.clone();
        test.run(0, async move { own.list(d).await.expect("listed") });
        let (own, others) = (caller.clone(), names[1..].to_vec());
        test.run(0, async move {
            for name in others {
                assert_eq!(find(&own, &name).await.expect("there").size, 15, "{name}, seed {seed}");
            }
        });
        test.world.release_backing();
        test.settle();
    }
}

/// Goal: where the site fails or does not answer what is here is served on, and nobody waits for long.
#[test]
fn a_site_that_fails_keeps_nobody_waiting() {
    let (test, files) = over_a_site(3, INTERVAL);
    let caller = test.caller(0, 1);
    let (own, before) = (caller.clone(), files.clone());
    test.run(0, async move { assert_seen(&own, &before, &[]).await });
    test.world.run_for(INTERVAL);
    test.world.fail_backing("small", None, EIO, None);
    test.world.hang_backing("whole", None);
    let start = test.world.now();
    let own = caller.clone();
    test.run(0, async move { assert_seen(&own, &files, &[]).await });
    assert!(test.world.now() - start < 2 * SECOND, "it took {} ns", test.world.now() - start);
    test.world.release_backing();
    test.settle();
}

/// Goal: however many names are asked for at a time, each is looked at, and none more often than it is due.
#[test]
fn many_are_looked_at_again() {
    const COUNT: u64 = 300;
    let flushing = Flushing { check: INTERVAL, ..MANUAL };
    let path = |number: u64| format!("d/f{number}");
    let fill = |world: &World| {
        world.outsider().make_directory("d");
        (0..COUNT).for_each(|number| world.outsider().write(&path(number), 0, b"ours"));
    };
    let (test, ()) = TestCluster::over_a_flushed_site(5, 2, flushing, fill);
    let caller = test.caller(0, 1);
    let own = caller.clone();
    let d = test.run(0, async move {
        let d = find(&own, "d").await.expect("there").id;
        assert_eq!(own.list(d).await.expect("listed").len() as u64, COUNT);
        d
    });
    (0..COUNT).step_by(3).for_each(|number| replace(&test.world, &path(number), b"theirs"));
    test.world.run_for(INTERVAL);
    let looks = test.world.backing_calls("look");
    let asked: Vec<_> = (0..COUNT)
        .map(|number| {
            let own = caller.clone();
            let answer = std::rc::Rc::new(std::cell::Cell::new(0));
            let told = answer.clone();
            let task = test.spawn(0, async move {
                told.set(find(&own, &path(number)).await.expect("there").size);
            });
            (number, task, answer)
        })
        .collect();
    for (number, task, answer) in &asked {
        test.wait(task);
        assert_eq!(answer.get(), if number % 3 == 0 { 6 } else { 4 }, "{number}");
    }
    // Each once, those that were replaced once more, and directories.
    let looks = test.world.backing_calls("look") - looks;
    assert!((COUNT..COUNT + COUNT / 3 + 20).contains(&looks), "{looks} looks");
    let own = caller.clone();
    test.run(0, async move { assert_eq!(own.list(d).await.expect("listed").len() as u64, COUNT) });
    test.settle();
}

/// Goal: names that nobody has changed, and nobody uses, go when there are too many, and are as before when somebody
/// asks; what is open, or was changed here, stays; and a directory of more names than that is listed whole.
#[test]
fn names_go_when_there_are_many() {
    const COUNT: u64 = 200;
    const MAX: usize = 30;
    for seed in 0..6 {
        let flushing = Flushing { check: if seed % 2 == 0 { INTERVAL } else { Nanos::MAX }, ..MANUAL };
        let bounds = server::Bounds { taken_up_names: MAX, ..server::Bounds::default() };
        let path = |number: u64| format!("d{}/f{number}", number % 4);
        let fill = |world: &World| {
            (0..4).for_each(|number| world.outsider().make_directory(&format!("d{number}")));
            (0..COUNT).for_each(|number| world.outsider().write(&path(number), 0, &number.to_le_bytes()));
        };
        let servers = 1 + seed as u32 % 3;
        let (test, ()) = TestCluster::over_a_bounded_site(seed, servers, flushing, bounds, fill);
        let caller = test.caller(0, 1);
        let names = || test.audits().iter().map(|audit| audit.dentries).sum::<u64>();
        let own = caller.clone();
        let kept = test.run(0, async move {
            for number in 0..4 {
                let d = find(&own, &format!("d{number}")).await.expect("there").id;
                assert_eq!(own.list(d).await.expect("listed").len() as u64, COUNT / 4);
            }
            let d = find(&own, "d1").await.expect("there").id;
            let opened = own.open_for_good(d, "f1", 0).await.expect("opened");
            let changed = find(&own, "d2/f2").await.expect("there");
            write(&own, &changed, 0, b"ours, and longer").await;
            (opened, changed)
        });
        // Directories that were listed lately keep their names.
        test.world.run_for(10 * SECOND);
        assert_eq!(names(), COUNT + 4, "seed {seed}");
        test.world.run_for(120 * SECOND);
        let own = caller.clone();
        test.run(0, async move { assert_eq!(find(&own, "d3/f3").await.expect("there").size, 8) });
        assert!(test.world.run_until(|| names() <= u64::from(servers) * MAX as u64 + 6, LIMIT), "{} names", names());
        let own = caller.clone();
        test.run(0, async move {
            let (opened, changed) = kept;
            assert_eq!(find(&own, "d1/f1").await.expect("there").id, opened.attributes.id, "seed {seed}");
            assert_eq!(find(&own, "d2/f2").await.expect("there").id, changed.id, "seed {seed}");
            for number in (0..COUNT).filter(|number| *number != 2) {
                let file = find(&own, &path(number)).await.expect("there");
                assert_eq!(contents(&own, &file).await.expect("read"), number.to_le_bytes(), "{number}, seed {seed}");
            }
            for number in 0..4 {
                let d = find(&own, &format!("d{number}")).await.expect("there").id;
                assert_eq!(own.list(d).await.expect("listed").len() as u64, COUNT / 4);
            }
            let file = find(&own, "d2/f2").await.expect("there");
            assert_eq!(contents(&own, &file).await.expect("read"), b"ours, and longer");
            own.close(&opened).await.expect("closed");
        });
        test.server_indexes().for_each(|server| test.restart(server));
        test.settle();
    }
}

/// Goal: names that never go, for they were changed here, do not have the others go.
#[test]
fn changed_names_are_no_matter_of_the_bound() {
    const CHANGED: u64 = 80;
    const MAX: usize = 30;
    let bounds = server::Bounds { taken_up_names: MAX, ..server::Bounds::default() };
    let fill = |world: &World| {
        (0..CHANGED + 10).for_each(|number| world.outsider().write(&format!("f{number}"), 0, b"theirs"));
    };
    let (test, ()) = TestCluster::over_a_bounded_site(1, 1, Flushing { check: Nanos::MAX, ..MANUAL }, bounds, fill);
    let caller = test.caller(0, 1);
    let own = caller.clone();
    test.run(0, async move {
        for number in 0..CHANGED {
            let file = find(&own, &format!("f{number}")).await.expect("there");
            write(&own, &file, 0, b"ours, and longer").await;
        }
    });
    let ids = async |caller: &Caller| {
        let mut ids = Vec::new();
        for number in CHANGED..CHANGED + 10 {
            ids.push(find(caller, &format!("f{number}")).await.expect("there").id);
        }
        ids
    };
    let (first, second) = (caller.clone(), caller);
    let before = test.run(0, async move { ids(&first).await });
    test.world.run_for(60 * SECOND);
    assert_eq!(test.run(0, async move { ids(&second).await }), before);
    test.settle();
}
