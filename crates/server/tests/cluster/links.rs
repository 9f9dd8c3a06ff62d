//! Files with several names over a site: they are those of one file there, too.

use crate::backing::{contents, find, flush, pattern, write};
use crate::support::*;
use server::{FlushPolicy, Flushing};
use std::collections::BTreeSet;
use wire::FileId;
use wire::messages::FlushReply;

const ROOT: FileId = FileId::ROOT;
const EPERM: i32 = 1;
const EIO: i32 = 5;
/// Bytes of a file that is there before, and of small ones at most.
const THERE: usize = 90_000;
const SMALL: usize = 64 << 10;
/// Names in the root, so many that they are on several servers.
const NAMES: [&str; 5] = ["a", "b", "c", "e", "f"];

fn over_a_site(seed: u64, atomic_below: u64) -> TestCluster {
    let flushing = Flushing { policy: FlushPolicy::Manual, atomic_below, ..MANUAL };
    let populate = |world: &reactor::sim::World| {
        let site = world.outsider();
        site.make_directory("d");
        site.write("d/there", 0, &pattern(3, THERE));
    };
    TestCluster::over_a_flushed_site(seed, 1 + seed as u32 % 4, flushing, populate).0
}

fn flush_all(test: &TestCluster, caller: &Caller, at: &str) -> FlushReply {
    let own = caller.clone();
    let reply = test.run(0, async move { flush(&own).await });
    assert_eq!((reply.failed, &reply.paths), (0, &Vec::new()), "{at}: {:?}", reasons(&reply));
    let hidden = |name: &Vec<u8>| name.starts_with(b".tabane-");
    let left: Vec<Vec<u8>> =
        ["", "d"].iter().flat_map(|path| test.world.outsider().list(path)).filter(hidden).collect();
    assert!(left.is_empty(), "{at}: hidden names are left");
    reply
}

fn reasons(reply: &FlushReply) -> Vec<String> {
    reply.reasons.iter().map(|text| String::from_utf8_lossy(text).into_owned()).collect()
}

/// Whether these are the names of one file there, with these bytes.
fn assert_one(test: &TestCluster, names: &[&str], bytes: &[u8], at: &str) {
    let site = test.world.outsider();
    for name in names {
        assert!(site.read(name).as_deref() == Some(bytes), "{at}: {name} has other bytes there");
    }
    let inodes: BTreeSet<u64> = names.iter().map(|name| site.inode(name)).collect();
    assert_eq!(inodes.len(), 1, "{at}: {names:?} are several files there");
}

/// A file with all names, as it is behind after a flush.
fn make_linked(test: &TestCluster, caller: &Caller, at: &str) -> Vec<u8> {
    let (own, bytes) = (caller.clone(), pattern(1, 10_000));
    let written = bytes.clone();
    test.run(0, async move {
        let made = own.create(ROOT, "a").await.expect("made");
        write(&own, &made, 0, &written).await;
        for name in &NAMES[1..] {
            own.link(ROOT, "a", name).await.expect("linked");
        }
    });
    flush_all(test, caller, at);
    assert_one(test, &NAMES, &bytes, at);
    bytes
}

/// Goal: names that a file gets are names of the file there, of new files and of those that were there before; and
/// nothing is written for a name alone.
#[test]
fn names_are_linked_behind() {
    for seed in 0..12 {
        let test = over_a_site(seed, u64::MAX);
        let caller = test.caller(0, 1);
        let at = format!("seed {seed}");
        make_linked(&test, &caller, &at);
        let own = caller.clone();
        test.run(0, async move {
            let d = find(&own, "d").await.expect("there").id;
            own.link(d, "there", "too").await.expect("linked");
        });
        let written = test.world.backing_bytes_written();
        flush_all(&test, &caller, &at);
        assert_one(&test, &["d/there", "d/too"], &pattern(3, THERE), &at);
        assert_eq!(test.world.backing_bytes_written(), written, "{at}: a name costs no bytes");
        // Nothing is left to do, for the next life of servers neither.
        test.server_indexes().for_each(|index| test.kill(index));
        test.server_indexes().for_each(|index| test.restart(index));
        let reply = flush_all(&test, &caller, &at);
        assert_eq!((reply.done, test.world.backing_bytes_written()), (0, written), "{at}");
        let own = caller.clone();
        let read = test.run(0, async move {
            let file = find(&own, "d/too").await.expect("there");
            contents(&own, &file).await.expect("read")
        });
        assert!(read == pattern(3, THERE), "{at}");
        test.settle();
    }
}

/// Goal: what is written by one name is there by all, whether the file is written anew or where it is.
#[test]
fn changes_reach_all_names() {
    for (seed, atomic_below) in (0..12).flat_map(|seed| [(seed, u64::MAX), (seed, 1)]) {
        let test = over_a_site(seed, atomic_below);
        let caller = test.caller(0, 1);
        let at = format!("seed {seed}, atomic below {atomic_below}");
        let mut bytes = make_linked(&test, &caller, &at);
        for (round, name) in [(0, "c"), (1, "a"), (2, "f")] {
            let own = caller.clone();
            bytes[4000 + round] ^= 1;
            let changed = bytes.clone();
            test.run(0, async move {
                let file = find(&own, name).await.expect("there");
                write(&own, &file, 0, &changed).await;
            });
            flush_all(&test, &caller, &at);
            assert_one(&test, &NAMES, &bytes, &format!("{at}, round {round}"));
        }
        test.settle();
    }
}

/// Goal: names come and go one by one, the one of the file's place among them, and are taken by other files: the file
/// stays behind by those that are left, and nothing of it is written again.
#[test]
fn names_go_one_by_one() {
    for (seed, atomic_below) in (0..12).flat_map(|seed| [(seed, u64::MAX), (seed, 1)]) {
        let test = over_a_site(seed, atomic_below);
        let caller = test.caller(0, 1);
        let at = format!("seed {seed}, atomic below {atomic_below}");
        let mut bytes = make_linked(&test, &caller, &at);
        let mut order = NAMES;
        order.rotate_left(seed as usize % NAMES.len());
        let (removed, replaced, renamed) = (order[0], order[1], order[2]);
        let own = caller.clone();
        test.run(0, async move {
            own.unlink(ROOT, removed).await.expect("removed");
            let other = own.create(ROOT, "other").await.expect("made");
            write(&own, &other, 0, b"of another file").await;
            own.rename(ROOT, "other", replaced, 0).await.expect("replaced");
            own.rename(ROOT, renamed, "moved", 0).await.expect("renamed");
        });
        let written = test.world.backing_bytes_written();
        flush_all(&test, &caller, &at);
        let left = ["moved", order[3], order[4]];
        assert_one(&test, &left, &bytes, &at);
        let site = test.world.outsider();
        assert!(site.read(replaced).as_deref() == Some(b"of another file".as_slice()), "{at}");
        assert!(!site.exists(removed) && !site.exists(renamed) && !site.exists("other"), "{at}");
        assert_eq!(test.world.backing_bytes_written() - written, 15, "{at}: the file's bytes stay where they are");
        let own = caller.clone();
        bytes[0] ^= 1;
        let changed = bytes.clone();
        test.run(0, async move {
            let file = find(&own, "moved").await.expect("there");
            write(&own, &file, 0, &changed).await;
        });
        flush_all(&test, &caller, &at);
        assert_one(&test, &left, &bytes, &at);
        let own = caller.clone();
        test.run(0, async move {
            for name in left {
                own.unlink(ROOT, name).await.expect("removed");
            }
        });
        flush_all(&test, &caller, &at);
        let names: Vec<Vec<u8>> = site.list("");
        assert_eq!(
            names,
            [b"d".to_vec(), replaced.as_bytes().to_vec()]
                .into_iter()
                .collect::<BTreeSet<_>>()
                .into_iter()
                .collect::<Vec<_>>(),
            "{at}"
        );
        test.settle();
    }
}

/// Goal: a file that was moved here is moved there, and nothing of it is written again, as large as it may be; where no
/// links are made it is written anew, as small ones are.
#[test]
fn moved_files_are_not_written_again() {
    let cases = [(true, 100_000), (false, 100_000), (true, SMALL)];
    for (seed, (makes_links, size)) in (0..12).flat_map(|seed| cases.map(|case| (seed, case))) {
        let test = over_a_site(seed, u64::MAX);
        let caller = test.caller(0, 1);
        let at = format!("seed {seed}, links: {makes_links}, {size} bytes");
        let (own, bytes) = (caller.clone(), pattern(1, size));
        let first = bytes.clone();
        test.run(0, async move {
            let made = own.create(ROOT, "made").await.expect("made");
            write(&own, &made, 0, &first).await;
        });
        flush_all(&test, &caller, &at);
        if !makes_links {
            test.world.fail_backing("", Some("link"), EPERM, None);
        }
        let own = caller.clone();
        let written = test.world.backing_bytes_written();
        test.run(0, async move {
            let d = find(&own, "d").await.expect("there").id;
            own.rename_to((d, "there"), (ROOT, "there"), 0).await.expect("renamed");
            own.rename_to((ROOT, "made"), (d, "made"), 0).await.expect("renamed");
        });
        flush_all(&test, &caller, &at);
        let again = test.world.backing_bytes_written() - written;
        let anew =
            [(size, size > SMALL), (THERE, true)].into_iter().filter(|(_, is_large)| !(makes_links && *is_large));
        assert_eq!(again, anew.map(|(size, _)| size as u64).sum::<u64>(), "{at}");
        let site = test.world.outsider();
        assert_eq!(
            (site.list(""), site.list("d")),
            (vec![b"d".to_vec(), b"there".to_vec()], vec![b"made".to_vec()]),
            "{at}"
        );
        assert!(site.read("there") == Some(pattern(3, THERE)) && site.read("d/made") == Some(bytes), "{at}");
        let reply = flush_all(&test, &caller, &at);
        assert_eq!(reply.done, 0, "{at}");
        test.settle();
    }
}

/// Goal: a site that makes no links keeps the file by one name, and the others are listed with the reason; nothing else
/// is held up.
#[test]
fn sites_without_links() {
    for seed in 0..8 {
        let test = over_a_site(seed, u64::MAX);
        let caller = test.caller(0, 1);
        test.world.fail_backing("", Some("link"), EPERM, None);
        let own = caller.clone();
        test.run(0, async move {
            let made = own.create(ROOT, "a").await.expect("made");
            write(&own, &made, 0, b"bytes").await;
            own.link(ROOT, "a", "b").await.expect("linked");
            own.create(ROOT, "last").await.expect("made");
        });
        let own = caller.clone();
        let reply = test.run(0, async move { flush(&own).await });
        let site = test.world.outsider();
        assert_eq!((reply.failed, site.exists("last")), (1, true), "seed {seed}: {:?}", reasons(&reply));
        assert!(reasons(&reply)[0].contains("no hard link can be made"), "seed {seed}: {:?}", reasons(&reply));
        assert_ne!(site.exists("a"), site.exists("b"), "seed {seed}");
        test.world.release_backing();
        flush_all(&test, &caller, "links can be made again");
        assert_one(&test, &["a", "b"], b"bytes", "links can be made again");
        test.settle();
    }
}

/// Goal: a file counts as one of several names as long as any of its names is there that is to go: a removal that
/// fails, and is done later, makes nothing of it somebody else's.
#[test]
fn names_that_go_late() {
    for seed in 0..12 {
        let test = over_a_site(seed, u64::MAX);
        let caller = test.caller(0, 1);
        let at = format!("seed {seed}");
        make_linked(&test, &caller, &at);
        // Times are not those of before.
        let end = test.world.now() + SECOND;
        test.world.run_until(|| test.world.now() >= end, LIMIT);
        let [first, .., last] = NAMES;
        test.world.fail_backing(first, Some("remove"), EIO, None);
        let own = caller.clone();
        let reply = test.run(0, async move {
            for name in NAMES.iter().filter(|name| **name != last) {
                own.unlink(ROOT, name).await.expect("removed");
            }
            flush(&own).await
        });
        assert!(reply.failed > 0, "{at}: one can't be removed");
        test.world.release_backing();
        let end = test.world.now() + SECOND;
        test.world.run_until(|| test.world.now() >= end, LIMIT);
        flush_all(&test, &caller, &at);
        let site = test.world.outsider();
        assert_eq!(site.list(""), [b"d".to_vec(), last.as_bytes().to_vec()], "{at}");
        let own = caller.clone();
        test.run(0, async move { own.unlink(ROOT, last).await.expect("removed") });
        flush_all(&test, &caller, &at);
        assert_eq!(site.list(""), [b"d".to_vec()], "{at}");
        test.settle();
    }
}

/// Goal: a name that a file has left, and that can't be removed yet, is nobody else's when the file is updated where it
/// is meanwhile, whether that ends well or fails when the bytes are written; a file may take it, too.
#[test]
fn names_left_before_an_update() {
    for (seed, fails, is_taken) in
        (0..8).flat_map(|seed| [(seed, true, false), (seed, false, false), (seed, true, true)])
    {
        let test = over_a_site(seed, 1);
        let caller = test.caller(0, 1);
        let at = format!("seed {seed}, fails: {fails}, taken: {is_taken}");
        let (own, mut bytes) = (caller.clone(), pattern(1, 100_000));
        let first = bytes.clone();
        test.run(0, async move {
            let made = own.create(ROOT, "a").await.expect("made");
            write(&own, &made, 0, &first).await;
        });
        flush_all(&test, &caller, &at);
        test.world.fail_backing("a", Some("remove"), EIO, None);
        let own = caller.clone();
        let reply = test.run(0, async move {
            own.rename(ROOT, "a", "moved", 0).await.expect("renamed");
            flush(&own).await
        });
        assert_eq!(reply.failed, 1, "{at}: the old name can't be removed: {:?}", reasons(&reply));
        test.world.release_backing();
        test.world.run_for(SECOND);
        if fails {
            test.world.fail_backing("moved", Some("sync"), EIO, None);
        }
        bytes[5] ^= 1;
        let (own, changed) = (caller.clone(), bytes.clone());
        let reply = test.run(0, async move {
            let file = find(&own, "moved").await.expect("there");
            write(&own, &file, 0, &changed).await;
            if is_taken {
                let other = own.create(ROOT, "a").await.expect("made");
                write(&own, &other, 0, b"of another file").await;
            }
            flush(&own).await
        });
        assert_eq!(reply.failed, u64::from(fails), "{at}: {:?}", reasons(&reply));
        test.world.release_backing();
        flush_all(&test, &caller, &at);
        assert_one(&test, &["moved"], &bytes, &at);
        let site = test.world.outsider();
        let taken = is_taken.then(|| b"a".to_vec());
        let names: Vec<Vec<u8>> = taken.into_iter().chain([b"d".to_vec(), b"moved".to_vec()]).collect();
        assert_eq!(site.list(""), names, "{at}");
        assert!(!is_taken || site.read("a").as_deref() == Some(b"of another file"), "{at}");
        test.settle();
    }
}

/// Goal: where all names of a file are taken by others at once, and somebody else has changed the file, one of its
/// names is left to him: each but the last may go, and which is the last is seen.
#[test]
fn names_that_are_all_taken_at_once() {
    for seed in 0..24 {
        let test = over_a_site(seed, u64::MAX);
        let caller = test.caller(0, 1);
        let at = format!("seed {seed}");
        make_linked(&test, &caller, &at);
        test.world.run_for(SECOND);
        let site = test.world.outsider();
        let theirs = b"somebody else's".to_vec();
        site.write(NAMES[0], 0, &theirs);
        site.set_size(NAMES[0], theirs.len() as u64);
        let own = caller.clone();
        let reply = test.run(0, async move {
            for name in NAMES {
                let other = own.create(ROOT, "other").await.expect("made");
                write(&own, &other, 0, name.as_bytes()).await;
                own.rename(ROOT, "other", name, 0).await.expect("replaced");
            }
            flush(&own).await
        });
        let is_theirs = |name: &&str| site.read(name).as_ref() == Some(&theirs);
        assert_eq!(NAMES.iter().filter(|name| is_theirs(name)).count(), 1, "{at}: {:?}", reasons(&reply));
        assert_eq!(reply.failed, 1, "{at}: {:?}", reasons(&reply));
        assert!(reasons(&reply)[0].contains("somebody else has changed it there"), "{at}: {:?}", reasons(&reply));
        test.settle();
    }
}
