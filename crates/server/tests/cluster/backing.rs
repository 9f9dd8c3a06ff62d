//! A backing tree behind a cluster: both are one tree, nothing behind is taken for zeros or for missing, and nothing of
//! it is changed (docs/cache.md).

use crate::data::{allocate, append};
use crate::support::*;
use reactor::sim::World;
use std::collections::BTreeMap;
use std::rc::Rc;
use wire::messages::*;
use wire::{Attributes, Decode, FileId, Kind, Operation, Status};

const ROOT: FileId = FileId::ROOT;
const CHUNK: u64 = 4096;
const ESTALE: i32 = 116;

/// Bytes that tell where they are from.
pub fn pattern(seed: u64, size: usize) -> Vec<u8> {
    (0..size as u64).map(|at| ((at * 31 + seed * 7 + at / 4096) % 251 + 1) as u8).collect()
}

/// A site with a bit of everything.
pub fn populate(test: &reactor::sim::World) -> BTreeMap<String, Vec<u8>> {
    let site = test.outsider();
    site.make_directory("d");
    site.make_directory("d/e");
    site.make_directory("d/empty");
    let mut files = BTreeMap::new();
    for (number, (path, size)) in
        [("small", 100), ("d/large", 50_000), ("d/e/odd", 9_000), ("d/e/none", 0), ("whole", 8_192)].iter().enumerate()
    {
        let bytes = pattern(number as u64, *size);
        site.write(path, 0, &bytes);
        files.insert((*path).to_owned(), bytes);
    }
    // A hole, as the site has it.
    site.write("d/holes", 20_000, b"in the middle");
    site.set_size("d/holes", 40_000);
    let mut holes = vec![0; 40_000];
    holes[20_000..20_013].copy_from_slice(b"in the middle");
    files.insert("d/holes".to_owned(), holes);
    site.make_symlink("link", "d/large");
    site.make_other("socket");
    files
}

async fn stat_at(caller: &Caller, parent: FileId, name: &str) -> Answer<Attributes> {
    let request = EntryRequest { entry: entry(parent, name) };
    let server = caller.cluster.dentry_server(parent, name.as_bytes());
    match caller.call(server, Operation::Stat, &request).await {
        Err(failure) if failure.status == Status::Elsewhere => caller.stat(failure.id).await,
        Err(failure) => Err(failure),
        Ok(reply) => Ok(EntryReply::from_bytes(&reply.params).expect("the reply is well-formed").attributes),
    }
}

/// What a path leads to.
pub async fn find(caller: &Caller, path: &str) -> Answer<Attributes> {
    let mut here = ROOT;
    let mut found = None;
    for name in path.split('/') {
        let attributes = stat_at(caller, here, name).await?;
        here = attributes.id;
        found = Some(attributes);
    }
    Ok(found.expect("a path has a name"))
}

pub async fn contents(caller: &Caller, file: &Attributes) -> Answer<Vec<u8>> {
    let mut bytes = Vec::new();
    while (bytes.len() as u64) < file.size {
        let start = bytes.len() as u64;
        let step = (CHUNK - start % CHUNK).min(file.size - start);
        let (_, mut piece) = caller.read(file.id, file.layout, start, step).await?;
        piece.resize(step as usize, 0);
        bytes.extend(piece);
    }
    Ok(bytes)
}

/// Writes any bytes, chunk by chunk.
pub async fn write(caller: &Caller, file: &Attributes, offset: u64, bytes: &[u8]) {
    let mut done = 0;
    while done < bytes.len() {
        let at = offset + done as u64;
        let step = ((CHUNK - at % CHUNK) as usize).min(bytes.len() - done);
        caller.write(file.id, file.layout, at, &bytes[done..done + step]).await.expect("written");
        done += step;
    }
    caller.call(caller.home(file.id), Operation::Close, &fold(file.id)).await.expect("settled");
}

/// Removes a directory, as clients do: a server that has to list it first says that it is busy, and is asked again.
async fn remove_directory(caller: &Caller, parent: FileId, name: &str) -> Answer<()> {
    loop {
        match caller.remove_directory(parent, name).await {
            Err(failure) if failure.status == Status::Busy => {}
            removed => return removed.map(drop),
        }
    }
}

/// Goal: all that is behind is seen here, whatever is asked first, by each server's own looks; what is there twice
/// costs nothing twice; a restart knows it.
#[test]
fn a_tree_is_seen_as_it_is() {
    for seed in 0..10 {
        let (test, files) = TestCluster::over_a_site(seed, 1 + seed as u32 % 4, populate);
        let caller = test.caller(0, 1);
        let asked = files.clone();
        let own = caller.clone();
        test.run(0, async move {
            for (path, bytes) in &asked {
                let file = find(&own, path).await.expect("it is there");
                assert_eq!((file.kind, file.size), (Kind::File, bytes.len() as u64), "{path}");
                assert!(contents(&own, &file).await.expect("read") == *bytes, "{path}, seed {seed}");
            }
            let link = find(&own, "link").await.expect("a link");
            assert_eq!((link.kind, link.size), (Kind::Symlink, 7));
            assert_eq!(find(&own, "socket").await.expect("something").kind, Kind::Socket);
            for missing in ["nothing", "d/nothing", "d/e/nothing"] {
                assert_eq!(status(&find(&own, missing).await), Status::NotFound);
            }
            let listed = own.list(ROOT).await.expect("listed");
            assert_eq!(listed, ["d", "link", "small", "socket", "whole"]);
            let directory = find(&own, "d").await.expect("a directory").id;
            assert_eq!(own.list(directory).await.expect("listed"), ["e", "empty", "holes", "large"]);
        });
        let calls = test.world.backing_calls("look") + test.world.backing_calls("read");
        let again = files.clone();
        let own = caller.clone();
        test.run(0, async move {
            for (path, bytes) in &again {
                let file = find(&own, path).await.expect("it is there");
                assert!(contents(&own, &file).await.expect("read") == *bytes, "{path}, seed {seed}");
            }
            assert_eq!(status(&find(&own, "missing").await), Status::NotFound);
        });
        assert_eq!(test.world.backing_calls("look") + test.world.backing_calls("read"), calls, "it is all here");
        test.settle();
        for server in test.server_indexes() {
            test.restart(server);
        }
        let own = test.caller(1, 2);
        test.run(1, async move {
            for (path, bytes) in &files {
                let file = find(&own, path).await.expect("it is there");
                assert!(contents(&own, &file).await.expect("read") == *bytes, "{path}, seed {seed}");
            }
            assert_eq!(own.list(ROOT).await.expect("listed").len(), 5);
        });
        test.settle();
    }
}

/// Goal: a write into the middle of what is behind, a truncate, an append, a punched hole and the look for data all
/// have the bytes of both sides, and the tree behind stays as it was.
#[test]
fn changes_are_made_over_what_is_behind() {
    for seed in 0..10 {
        let (test, files) = TestCluster::over_a_site(seed, 1 + seed as u32 % 4, populate);
        let caller = test.caller(0, 1);
        let mut expected = files.clone();
        let before = files.clone();
        expected.get_mut("d/large").expect("a file")[10_000..10_005].copy_from_slice(b"write");
        let odd = expected.get_mut("d/e/odd").expect("a file");
        odd.truncate(5_000);
        odd.resize(6_000, 0);
        odd.extend_from_slice(b"the end");
        let whole = expected.get_mut("whole").expect("a file");
        whole[4_000..8_000].fill(0);
        expected.get_mut("small").expect("a file").extend_from_slice(b"appended");
        test.run(0, async move {
            let large = find(&caller, "d/large").await.expect("there");
            let seek = SeekRequest { file: large.id, layout: large.layout, offset: 10_000, hole: false };
            let mut least = u64::MAX;
            for server in 0..caller.cluster.server_count() {
                let reply = caller.call(server, Operation::Seek, &seek).await.expect("sought");
                let found = SeekReply::from_bytes(&reply.params).expect("well-formed").found;
                least = least.min(found.unwrap_or(u64::MAX));
            }
            assert_eq!(least, 10_000, "what is behind is data");
            write(&caller, &large, 10_000, b"write").await;
            let odd = find(&caller, "d/e/odd").await.expect("there");
            caller.truncate(odd.id, 5_000).await.expect("cut");
            let odd = caller.truncate(odd.id, 6_000).await.expect("grown");
            write(&caller, &odd, 6_000, b"the end").await;
            let whole = find(&caller, "whole").await.expect("there");
            allocate(&caller, &whole, allocate_mode::PUNCH, false, (4_000, 4_000)).await.expect("punched");
            let small = find(&caller, "small").await.expect("there");
            assert_eq!(append(&caller, small.id, b"appended").await.expect("appended"), 100);
            for (path, bytes) in &expected {
                let file = find(&caller, path).await.expect("there");
                assert_eq!(file.size, bytes.len() as u64, "{path}");
                assert!(contents(&caller, &file).await.expect("read") == *bytes, "{path}, seed {seed}");
            }
        });
        for (path, bytes) in &before {
            assert!(test.world.outsider().read(path).as_ref() == Some(bytes), "{path} was changed behind");
        }
        test.settle();
    }
}

/// Goal: names that are removed, replaced and moved here stay so, whatever is behind, over restarts; a directory that
/// moves takes what is behind it along; and one that is empty here may go, although it is not behind.
#[test]
fn names_differ_and_stay_so() {
    for seed in 0..12 {
        let (test, files) = TestCluster::over_a_site(seed, 1 + seed as u32 % 4, populate);
        let caller = test.caller(0, 1);
        let own = caller.clone();
        test.run(0, async move {
            own.unlink(ROOT, "small").await.expect("removed");
            assert_eq!(status(&find(&own, "small").await), Status::NotFound);
            let d = find(&own, "d").await.expect("there").id;
            own.rename_to((ROOT, "whole"), (d, "moved"), 0).await.expect("renamed");
            assert_eq!(status(&own.create(d, "large").await), Status::Exists);
            own.rename(d, "holes", "large", 0).await.expect("replaced");
            own.make_directory(ROOT, "new").await.expect("made");
            let new = find(&own, "new").await.expect("there").id;
            own.rename_to((d, "e"), (new, "e"), 0).await.expect("moved");
            assert_eq!(status(&remove_directory(&own, ROOT, "d").await), Status::NotEmpty);
            remove_directory(&own, d, "empty").await.expect("empty");
            own.create(d, "empty").await.expect("a file in its place");
            own.rename_to((d, "large"), (ROOT, "holes"), 0).await.expect("moved");
            own.unlink(d, "moved").await.expect("removed");
            own.unlink(d, "empty").await.expect("removed");
            remove_directory(&own, ROOT, "d").await.expect("nothing is left in it");
            own.create(ROOT, "small").await.expect("made anew");
        });
        let check = |caller: Caller, files: BTreeMap<String, Vec<u8>>| async move {
            assert_eq!(caller.list(ROOT).await.expect("listed"), ["holes", "link", "new", "small", "socket"]);
            assert_eq!(find(&caller, "small").await.expect("there").size, 0);
            for (path, behind) in [("new/e/odd", "d/e/odd"), ("holes", "d/holes"), ("new/e/none", "d/e/none")] {
                let file = find(&caller, path).await.expect("there");
                assert!(contents(&caller, &file).await.expect("read") == files[behind], "{path}, seed {seed}");
            }
            for gone in ["d", "whole"] {
                assert_eq!(status(&find(&caller, gone).await), Status::NotFound);
            }
        };
        // Part of it is read only after the restart: the places are known still.
        if seed.is_multiple_of(2) {
            test.run(0, check(caller.clone(), files.clone()));
        }
        test.settle();
        for server in test.server_indexes() {
            test.restart(server);
        }
        test.run(1, check(test.caller(1, 2), files.clone()));
        for (path, bytes) in &files {
            assert!(test.world.outsider().read(path).as_ref() == Some(bytes), "{path} was changed behind");
        }
        test.settle();
    }
}

/// Goal: what comes back to its place agrees with what is behind again.
#[test]
fn names_that_come_back_agree() {
    let (test, files) = TestCluster::over_a_site(3, 3, populate);
    let caller = test.caller(0, 1);
    let differing = || -> u64 { test.audits().iter().map(|audit| audit.backing[3]).sum() };
    let own = caller.clone();
    test.run(0, async move {
        own.rename(ROOT, "small", "elsewhere", 0).await.expect("renamed");
    });
    assert_eq!(differing(), 1);
    let own = caller.clone();
    test.run(0, async move {
        assert_eq!(status(&find(&own, "small").await), Status::NotFound);
        own.rename(ROOT, "elsewhere", "small", 0).await.expect("renamed back");
        let file = find(&own, "small").await.expect("there");
        assert!(contents(&own, &file).await.expect("read") == files["small"]);
    });
    test.settle();
    assert_eq!(differing(), 0);
}

/// Goal: a call that hangs keeps those alone waiting that need it, and not for ever: they are told which call it is;
/// when it goes on, all is well. Errors are told, and the next one tries again.
#[test]
fn calls_that_hang_and_fail() {
    let (test, files) = TestCluster::over_a_site(5, 2, populate);
    let caller = test.caller(0, 1);
    test.world.hang_backing("d/large", Some("read"));
    test.world.fail_backing("d/e", None, 5, Some(1));
    let own = caller.clone();
    let files = Rc::new(files);
    let known = files.clone();
    test.run(0, async move {
        let large = find(&own, "d/large").await.expect("its name is known");
        let failure = contents(&own, &large).await.expect_err("its bytes do not come");
        assert_eq!(failure.status, Status::TimedOut);
        let words = String::from_utf8_lossy(&failure.text).into_owned();
        assert!(words.contains("d/large") && words.contains("read"), "{words}");
        let small = find(&own, "small").await.expect("others are fine");
        assert!(contents(&own, &small).await.expect("read") == known["small"]);
        own.create(ROOT, "own").await.expect("made");
        assert_eq!(status(&find(&own, "d/e").await), Status::Io);
        assert_eq!(find(&own, "d/e").await.expect("the next time").kind, Kind::Directory);
    });
    test.world.release_backing();
    test.run(0, async move {
        let large = find(&caller, "d/large").await.expect("there");
        assert!(contents(&caller, &large).await.expect("read") == files["d/large"]);
    });
    test.settle();
}

/// Goal: a name that can't be looked at leaves the rest of its directory to be listed. It is shown, fails by itself
/// with its error or in time, is taken for absent by nobody, and is as all others once it can be looked at.
#[test]
fn a_name_that_cant_be_looked_at() {
    for seed in 0..12 {
        let (test, files) = TestCluster::over_a_site(seed, 1 + seed as u32 % 4, populate);
        let caller = test.caller(0, 1);
        let hangs = seed % 3 == 2;
        for path in ["d/large", "d/e/odd"] {
            match hangs {
                true => test.world.hang_backing(path, Some("look")),
                false => test.world.fail_backing(path, Some("look"), ESTALE, None),
            }
        }
        let failed = if hangs { Status::TimedOut } else { Status::Io };
        let own = caller.clone();
        test.run(0, async move {
            let d = find(&own, "d").await.expect("there").id;
            assert_eq!(own.list(d).await.expect("listed"), ["e", "empty", "holes", "large"], "seed {seed}");
            let failure = find(&own, "d/large").await.expect_err("it can't be looked at");
            assert_eq!(failure.status, failed);
            assert!(String::from_utf8_lossy(&failure.text).contains("d/large"));
            assert_eq!(status(&own.create(d, "large").await), failed, "it is not known to be absent");
            own.create(d, "made").await.expect("another name");
            let e = find(&own, "d/e").await.expect("there").id;
            assert_eq!(own.list(e).await.expect("listed"), ["none", "odd"]);
            own.unlink(e, "none").await.expect("removed");
            assert_eq!(status(&remove_directory(&own, d, "e").await), Status::NotEmpty);
            assert_eq!(own.list(e).await.expect("listed"), ["odd"]);
        });
        test.world.release_backing();
        test.run(0, async move {
            let large = find(&caller, "d/large").await.expect("there");
            assert!(contents(&caller, &large).await.expect("read") == files["d/large"]);
            let d = find(&caller, "d").await.expect("there").id;
            assert_eq!(caller.list(d).await.expect("listed"), ["e", "empty", "holes", "large", "made"]);
            let e = find(&caller, "d/e").await.expect("there").id;
            caller.unlink(e, "odd").await.expect("removed");
            remove_directory(&caller, d, "e").await.expect("removed");
        });
        test.settle();
    }
}

/// Goal: names that a listing could not look at, and that were looked for by themselves before it ended, are gone when
/// they are removed on both sides. Method: the listing waits for another name.
#[test]
fn failed_names_that_were_found_meanwhile() {
    for seed in 0..4 {
        let names: Vec<String> = (0..50).map(|number| format!("n{number}")).collect();
        let fill = |world: &reactor::sim::World| {
            world.outsider().make_directory("d");
            names.iter().for_each(|name| world.outsider().write(&format!("d/{name}"), 0, &pattern(seed, 10)));
        };
        let (test, ()) = TestCluster::over_a_site(seed, 1, fill);
        let caller = test.caller(0, 1);
        let own = caller.clone();
        let d = test.run(0, async move { find(&own, "d").await.expect("there").id });
        let hung = format!("d/{}", names[49]);
        test.world.hang_backing(&hung, Some("look"));
        names[..49]
            .iter()
            .for_each(|name| test.world.fail_backing(&format!("d/{name}"), Some("look"), ESTALE, Some(1)));
        let own = test.caller(1, 2);
        let listing = test.spawn(1, async move { own.list(d).await.expect("listed") });
        test.world.run_for(SECOND / 10);
        let (own, found) = (caller.clone(), names.clone());
        test.run(0, async move {
            for name in &found[..49] {
                // That of a later batch fails now, and not for the listing.
                let _: Answer<Attributes> = find(&own, &format!("d/{name}")).await;
            }
        });
        test.wait(&listing);
        test.world.release_backing();
        test.run(0, async move {
            for name in &names[..49] {
                caller.unlink(d, name).await.expect("removed");
            }
            assert_eq!(flush(&caller).await.failed, 0);
            assert_eq!(caller.list(d).await.expect("listed"), [names[49].clone()], "seed {seed}");
        });
        test.settle();
    }
}

/// Goal: a directory whose removal came to nothing, because its coordinator was killed while another server was listing
/// it, takes names afterwards. Method: the other server's listing hangs until the coordinator has started again.
#[test]
fn a_mark_that_comes_late_is_not_made() {
    for seed in 0..8 {
        let (test, _) = TestCluster::over_a_site(seed, 2, populate);
        let caller = test.caller(0, 1);
        let own = caller.clone();
        let coordinator = test.run(0, async move {
            let d = find(&own, "d").await.expect("there").id;
            let empty = find(&own, "d/empty").await.expect("there").id;
            let coordinator = own.cluster.dentry_server(d, b"empty");
            own.list_on(coordinator, empty).await.expect("listed");
            coordinator
        });
        test.world.hang_backing("d/empty", Some("list"));
        let own = caller.clone();
        let removal = test.spawn(0, async move {
            let d = find(&own, "d").await.expect("there").id;
            let _ = remove_directory(&own, d, "empty").await;
        });
        let other = 1 - coordinator;
        let lists = || test.server(other).backing_calls().iter().any(|call| call.operation == "list");
        assert!(test.world.run_until(lists, LIMIT), "the other server does not list, seed {seed}");
        test.restart(coordinator);
        let quiet = test.world.now() + 2 * SECOND;
        test.world.run_until(|| test.world.now() > quiet, LIMIT);
        test.world.release_backing();
        test.wait(&removal);
        let own = test.caller(1, 2);
        test.run(1, async move {
            let d = find(&own, "d").await.expect("there").id;
            let Ok(empty) = find(&own, "d/empty").await else { return };
            for number in 0..8 {
                own.create(empty.id, &format!("{number}")).await.expect("nothing marks it");
            }
            assert_eq!(status(&remove_directory(&own, d, "empty").await), Status::NotEmpty);
        });
        test.settle();
    }
}

/// Goal: bytes that are not those of the file that was taken up are not shown as if they were.
#[test]
fn what_has_changed_behind_is_not_mixed_in() {
    let (test, files) = TestCluster::over_a_site(7, 2, populate);
    let caller = test.caller(0, 1);
    let own = caller.clone();
    let large = test.run(0, async move {
        let large = find(&own, "d/large").await.expect("there");
        own.read(large.id, large.layout, 0, CHUNK).await.expect("the first chunk");
        large
    });
    test.world.outsider().write("d/large", 30_000, b"changed");
    test.run(0, async move {
        let failure = contents(&caller, &large).await.expect_err("mixed");
        assert_eq!(failure.status, Status::Io);
        let words = String::from_utf8_lossy(&failure.text).into_owned();
        assert!(words.contains("has changed"), "{words}");
        let (_, first) = caller.read(large.id, large.layout, 0, CHUNK).await.expect("what is here");
        assert!(first == files["d/large"][..CHUNK as usize]);
    });
    test.settle();
}

/// Goal: a directory that somebody has replaced by another one of its name is not taken for it, whether a server has it
/// open or not: what was taken up of it stays, and whoever needs more of it is told.
#[test]
fn a_directory_that_was_replaced_is_not_taken_for_another() {
    for seed in 0..8 {
        let (test, files) = TestCluster::over_a_site(seed, 1 + seed as u32 % 4, populate);
        let caller = test.caller(0, 1);
        let own = caller.clone();
        let known = files.clone();
        test.run(0, async move {
            let large = find(&own, "d/large").await.expect("there");
            assert!(contents(&own, &large).await.expect("read") == known["d/large"]);
            assert_eq!(find(&own, "d").await.expect("there").link_count, 1, "what is in it nobody has counted");
        });
        test.world.outsider().rename("d", "away");
        test.world.outsider().make_directory("d");
        test.world.outsider().write("d/holes", 0, b"another one");
        test.world.outsider().write("d/new", 0, b"another one");
        // So long that handles of before are not used again.
        let later = test.world.now() + 2 * SECOND;
        test.world.run_until(|| test.world.now() > later, LIMIT);
        let own = caller.clone();
        test.run(0, async move {
            let d = find(&own, "d").await.expect("there").id;
            for name in ["holes", "new"] {
                let failure = stat_at(&own, d, name).await.expect_err("of another directory");
                let words = String::from_utf8_lossy(&failure.text).into_owned();
                assert!(failure.status == Status::Io && words.contains("d has changed"), "{words}");
            }
            assert_eq!(status(&own.list(d).await), Status::Io);
            let large = find(&own, "d/large").await.expect("there");
            assert!(contents(&own, &large).await.expect("read") == files["d/large"]);
        });
        test.settle();
        test.world.outsider().rename("d", "other");
        test.world.outsider().rename("away", "d");
        test.world.run_until(|| test.world.now() > later + 2 * SECOND, LIMIT);
        test.run(0, async move {
            let d = find(&caller, "d").await.expect("there").id;
            assert_eq!(caller.list(d).await.expect("listed"), ["e", "empty", "holes", "large"]);
        });
        test.settle();
    }
}

/// Has everything carried behind, and waits for the end.
pub async fn flush(caller: &Caller) -> FlushReply {
    let mut ticket = 0;
    loop {
        let request = FlushRequest { ticket, paths: Vec::new(), file: FileId::default() };
        let reply = caller.call(caller.home(ROOT), Operation::Flush, &request).await.expect("flushed");
        let reply = FlushReply::from_bytes(&reply.params).expect("the reply is well-formed");
        if reply.state == flush_states::ENDED {
            return reply;
        }
        ticket = reply.ticket;
    }
}

/// Goal: a flush writes nothing to a directory that somebody has put in the place of one, removes nothing in it, and
/// goes on when the right one is back.
#[test]
fn a_flush_leaves_a_directory_that_was_replaced_alone() {
    for seed in 0..8 {
        let (test, files) = TestCluster::over_a_site(seed, 1 + seed as u32 % 4, populate);
        let caller = test.caller(0, 1);
        let own = caller.clone();
        test.run(0, async move {
            let d = find(&own, "d").await.expect("there").id;
            own.create(d, "made").await.expect("made");
            own.make_directory(d, "new").await.expect("made");
            own.unlink(d, "holes").await.expect("removed");
            let large = find(&own, "d/large").await.expect("there");
            write(&own, &large, 0, b"changed").await;
            let mode =
                SetAttributesRequest { file: d, mask: set_mask::MODE, mode: 0o700, uid: 0, gid: 0, atime: 0, mtime: 0 };
            own.set(mode).await.expect("set");
        });
        let site = test.world.outsider();
        site.rename("d", "away");
        site.make_directory("d");
        site.write("d/holes", 0, b"another one");
        site.write("d/large", 0, b"another one");
        let later = test.world.now() + 2 * SECOND;
        test.world.run_until(|| test.world.now() > later, LIMIT);
        let own = caller.clone();
        let reply = test.run(0, async move { flush(&own).await });
        let failed: Vec<String> = reply.paths.iter().map(|path| String::from_utf8_lossy(path).into_owned()).collect();
        assert_eq!(failed, ["d", "d/holes", "d/large", "d/made", "d/new"], "seed {seed}");
        assert_eq!(site.list("d"), [b"holes".to_vec(), b"large".to_vec()]);
        for name in ["d/holes", "d/large"] {
            assert_eq!(site.read(name), Some(b"another one".to_vec()));
        }
        assert_eq!(site.read("away/large").as_ref(), Some(&files["d/large"]));
        site.rename("d", "other");
        site.rename("away", "d");
        test.world.run_until(|| test.world.now() > later + 2 * SECOND, LIMIT);
        let own = caller.clone();
        let reply = test.run(0, async move { flush(&own).await });
        assert_eq!((reply.failed, &reply.paths), (0, &Vec::new()), "seed {seed}");
        let mut names = site.list("d");
        names.sort();
        assert_eq!(names, ["e", "empty", "large", "made", "new"].map(|name| name.as_bytes().to_vec()));
        assert_eq!(site.read("d/large").map(|bytes| bytes[..7].to_vec()), Some(b"changed".to_vec()));
        test.settle();
    }
}

/// Goal: a directory that was gone behind, and that a flush has made anew, is known by all servers, also by those that
/// remember where it was before.
#[test]
fn a_directory_that_a_flush_made_anew_is_known() {
    for seed in 0..8 {
        let (test, _) = TestCluster::over_a_site(seed, 1 + seed as u32 % 4, populate);
        let caller = test.caller(0, 1);
        let own = caller.clone();
        test.run(0, async move {
            let d = find(&own, "d").await.expect("there").id;
            for number in 0..16 {
                assert_eq!(status(&stat_at(&own, d, &format!("none{number}")).await), Status::NotFound);
            }
            let (mask, mode) = (set_mask::MODE, 0o700);
            let mode = SetAttributesRequest { file: d, mask, mode, uid: 0, gid: 0, atime: 0, mtime: 0 };
            own.set(mode).await.expect("set");
        });
        let site = test.world.outsider();
        site.rename("d", "away");
        let later = test.world.now() + 2 * SECOND;
        test.world.run_until(|| test.world.now() > later, LIMIT);
        let own = caller.clone();
        let reply = test.run(0, async move { flush(&own).await });
        assert_eq!((reply.failed, &reply.paths), (0, &Vec::new()), "seed {seed}");
        for number in 0..16 {
            site.write(&format!("d/new{number}"), 0, b"new");
        }
        test.run(0, async move {
            let d = find(&caller, "d").await.expect("there").id;
            for number in 0..16 {
                assert_eq!(stat_at(&caller, d, &format!("new{number}")).await.expect("there").size, 3);
            }
            assert_eq!(caller.list(d).await.expect("listed").len(), 16);
        });
        test.settle();
    }
}

/// Goal: without that the bytes of two times would be shown as those of one.
#[test]
fn identities_that_nobody_checks_mix() {
    let (test, files) = TestCluster::over_a_site(7, 2, populate);
    for server in test.server_indexes() {
        test.server(server).set_backing_fault(server::BackingFault::IdentityUnchecked);
    }
    let caller = test.caller(0, 1);
    let own = caller.clone();
    let large = test.run(0, async move { find(&own, "d/large").await.expect("there") });
    test.world.outsider().write("d/large", 30_000, b"changed");
    test.run(0, async move {
        let read = contents(&caller, &large).await.expect("mixed");
        assert!(read != files["d/large"] && read[30_000..30_007] == *b"changed");
    });
}

/// Goal: a server that is killed at any step of taking up and fetching, and starts again, has lost nothing and shows
/// nothing that is not so.
#[test]
fn killed_at_each_step() {
    for step in 1..40 {
        let (test, files) = TestCluster::over_a_site(step, 2, populate);
        let victim = (step % 2) as u32;
        test.world.crash_after_writes(test.servers[victim as usize], step, false);
        let caller = test.caller(0, 1);
        let asked = files.clone();
        let own = caller.clone();
        let walk = test.spawn(0, async move {
            for (path, bytes) in &asked {
                let Ok(file) = find(&own, path).await else { continue };
                if let Ok(read) = contents(&own, &file).await {
                    assert!(read == *bytes, "{path}, step {step}");
                }
                let _ = own.list(ROOT).await;
            }
        });
        let died = test
            .world
            .run_until(|| !test.world.is_running(test.servers[victim as usize]) || walk.borrow().is_some(), LIMIT);
        assert!(died, "neither dead nor done");
        test.revive(victim);
        test.wait(&walk);
        let own = test.caller(1, 2);
        test.run(1, async move {
            for (path, bytes) in &files {
                let file = find(&own, path).await.expect("there");
                assert!(contents(&own, &file).await.expect("read") == *bytes, "{path}, step {step}");
            }
            assert_eq!(own.list(ROOT).await.expect("listed"), ["d", "link", "small", "socket", "whole"]);
        });
        test.settle();
    }
}

/// Goal: a server says what is wrong with its backing directory, and is not started without the one it had.
#[test]
fn other_directories_are_refused() {
    let (mut test, _) = TestCluster::over_a_site(1, 1, populate);
    let caller = test.caller(0, 1);
    test.run(0, async move { caller.list(ROOT).await.expect("listed") });
    test.kill(0);
    test.world.restart(test.servers[0]);
    let right = test.backing.take();
    let words = test.fail_start(0);
    assert!(words.contains("--backing"), "{words}");
    test.backing = Some("/none".into());
    let words = test.fail_start(0);
    assert!(words.contains("No such file") && words.contains("--backing"), "{words}");
    test.backing = right;
    // The root of another file system, with the same inode number.
    test.world.set_backing_file_system(2);
    let words = test.fail_start(0);
    assert!(words.contains("another directory"), "{words}");
    test.world.set_backing_file_system(0);
    test.start(0);
    test.settle();
}

/// Goal: where a large file has no data behind, whoever looks for data gets there in a few steps; what is found counts
/// only as long as the file behind is the same, and data that is here comes first.
#[test]
fn large_holes_behind_are_passed_over() {
    const DATA: u64 = 1 << 40;
    let mut passed_over = 0;
    for seed in 0..8 {
        let fill = |world: &World| {
            world.outsider().write("sparse", DATA, b"data");
            world.outsider().set_size("sparse", 2 * DATA);
        };
        let (test, ()) = TestCluster::over_a_site(seed, 1 + seed as u32 % 4, fill);
        let caller = test.caller(0, 1);
        let own = caller.clone();
        let next = async move |caller: &Caller, file: &Attributes, offset: u64| {
            let mut least = None;
            for server in 0..caller.cluster.server_count() {
                let request = SeekRequest { file: file.id, layout: file.layout, offset, hole: false };
                let reply = caller.call(server, Operation::Seek, &request).await.expect("answered");
                let found = SeekReply::from_bytes(&reply.params).expect("well-formed").found;
                least = least.into_iter().chain(found).min();
            }
            least
        };
        passed_over += test.run(0, async move {
            let file = find(&own, "sparse").await.expect("there");
            // The site may call holes data, to each server that asks: then that is the server's first chunk. A hole is
            // told of by whole chunks.
            let found = next(&own, &file, 0).await.expect("there is data");
            let (_, bytes) = own.read(file.id, file.layout, DATA, 4).await.expect("read");
            let (is_over, servers) = (found == DATA / CHUNK * CHUNK, u64::from(own.cluster.server_count()));
            let is_first = found % CHUNK == 0 && found < servers * CHUNK;
            assert!((is_over || is_first) && bytes == b"data", "seed {seed}: {found}");
            if is_over {
                let beyond = next(&own, &file, DATA + CHUNK).await;
                assert!(beyond.is_none_or(|found| found > DATA), "seed {seed}: {beyond:?}");
            }
            write(&own, &file, 10 * CHUNK, b"ours").await;
            assert!(next(&own, &file, 0).await.is_some_and(|found| found <= 10 * CHUNK), "seed {seed}");
            u32::from(is_over)
        });
        test.settle();
    }
    assert!(passed_over >= 4, "in {passed_over} of 8 runs");
}
