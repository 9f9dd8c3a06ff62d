//! A cluster over a directory that there is already: both are one tree, and the directory stays as it was.

#![allow(clippy::unwrap_used)] // What fails here fails the test.

mod common;

use common::{Ground, describe};
use std::fs;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const EIO: i32 = 5;

fn status(ground: &Ground) -> serde_json::Value {
    serde_json::from_str(&ground.run(&["status", "--json"])).unwrap()
}

/// The sum of a number of the backing directory over all servers.
fn sum(ground: &Ground, name: &str) -> u64 {
    let of = |server: &serde_json::Value| server["report"]["backing"][name].as_u64().unwrap();
    status(ground)["servers"].as_array().unwrap().iter().map(of).sum()
}

/// Goal: a tree that is behind is read, listed, found and copied out as it is; each file is fetched once; what is
/// changed, made, moved and removed over it stays so over a restart of all servers; the directory is as before; and the
/// cluster is not taken down without a word on what would be lost.
#[test]
fn one_tree_of_both() {
    let ground = Ground::new("backing");
    let behind = ground.make_tree();
    let before = describe(&behind);
    let of = behind.to_str().unwrap();
    ground.run(&["up", "--servers", "3", "--chunk-size", "64K", "--backing", of, "--flush", "manual"]);
    assert!(ground.run(&["status"]).contains("backing directory"));
    assert_eq!(sum(&ground, "fetched_bytes"), 0, "nothing is fetched ahead");
    let sums = ground.run(&["checksum", "-r", "tree"]).replace("tree/", "");
    let here = |text: String| text.replace(":/", "").replace("  /", "  ");
    assert_eq!(here(ground.run(&["checksum", "-r", ":/"])), here(sums.clone()));
    let fetched = sum(&ground, "fetched_bytes");
    let size = |path: &std::path::Path| fs::metadata(path).unwrap().size();
    let all: u64 = (0..200).map(|index| size(&behind.join(format!("many/file-{index:03}.txt")))).sum();
    assert!(fetched >= all + (9 << 20), "{fetched}");
    ground.run(&["cp", "-r", "tabane:/", "back"]);
    assert_eq!(sum(&ground, "fetched_bytes"), fetched, "each byte comes once");
    let space: serde_json::Value = serde_json::from_str(&ground.run(&["df", "--json"])).unwrap();
    let bytes = |value: &serde_json::Value| value.as_u64().unwrap_or_else(|| panic!("{space}"));
    let (clean, used) = (bytes(&space["all"]["bytes_clean"]), bytes(&space["all"]["bytes_used"]));
    assert!((9 << 20..=used).contains(&clean), "{clean} of {used} bytes are clean");
    assert_eq!(
        clean,
        space["servers"].as_array().unwrap().iter().map(|server| bytes(&server["bytes_clean"])).sum::<u64>()
    );
    let [total, used, free] = ["bytes_total", "bytes_used", "bytes_free"].map(|name| bytes(&space["backing"][name]));
    assert!(used > fetched && total == used + free, "{space}");
    assert!(ground.run(&["df"]).lines().last().is_some_and(|line| line.starts_with("behind ")));
    assert_eq!(ground.run(&["cat", "/a/link"]).len(), 1);
    assert_eq!(ground.run(&["find", "/many", "-name", "file-01*"]).lines().count(), 10);

    // Over it.
    fs::write(ground.path.join("letter"), "hello").unwrap();
    ground.run(&["cp", "letter", ":/one"]);
    ground.run(&["cp", "letter", ":/new"]);
    ground.run(&["rm", "/many/file-007.txt"]);
    ground.run(&["mv", "/a/b", "/moved"]);
    ground.run(&["truncate", "-s", "100000", "/a/large"]);
    ground.run(&["rm", "-r", "/with space"]);
    let check = || {
        assert_eq!(ground.run(&["cat", "/one"]), "hello");
        assert_eq!(ground.run(&["cat", "/new"]), "hello");
        assert_eq!(ground.run(&["ls", "/many"]).lines().count(), 199);
        assert!(!ground.try_run(&["cat", "/many/file-007.txt"]).status.success());
        assert!(!ground.try_run(&["stat", "/a/b"]).status.success());
        assert!(!ground.try_run(&["ls", "/with space"]).status.success());
        ground.run(&["cp", ":/moved/47008", "copy"]);
        assert!(fs::read(ground.path.join("copy")).unwrap() == fs::read(behind.join("a/b/47008")).unwrap());
        ground.run(&["cp", ":/a/large", "copy"]);
        let large = fs::read(behind.join("a/large")).unwrap();
        assert!(fs::read(ground.path.join("copy")).unwrap() == large[..100_000]);
    };
    check();
    if common::fuse_is_here() {
        let complaint = ground.fail(1, &["mount", behind.join("a").to_str().unwrap()]);
        assert!(complaint.contains("mount it elsewhere"), "{complaint}");
    }
    ground.run(&["down", "--keep"]);
    ground.run(&["up"]);
    check();
    assert_eq!(before, describe(&behind), "the directory is as it was");
    ground.run(&["check"]);
    ground.run(&["down", "--discard"]);
    assert_eq!(before, describe(&behind), "the directory is as it was");
}

/// Goal: what is staged is fetched once and for all, by paths and by a list; what can't be is listed, with exit status
/// 3.
#[test]
fn staged_files() {
    let ground = Ground::new("stage");
    let behind = ground.make_tree();
    ground.run(&["up", "--servers", "2", "--chunk-size", "64K", "--backing", behind.to_str().unwrap()]);
    assert!(ground.run(&["stage", "--dry-run", ":/many"]).starts_with("200 files"));
    assert_eq!(sum(&ground, "fetched_bytes"), 0);
    assert!(ground.run(&["stage", ":/many", "/a/large"]).starts_with("201 files"));
    let fetched = sum(&ground, "fetched_bytes");
    let all: u64 = (0..200).map(|index| index * 13).sum::<u64>() + (9 << 20) + 17;
    assert_eq!(fetched, all, "each byte comes once");
    ground.run(&["stage", ":/many", "/a/large"]);
    ground.run(&["cp", "-r", "tabane:/many", "back"]);
    assert_eq!(sum(&ground, "fetched_bytes"), fetched);
    fs::write(ground.path.join("list"), "/one\n:/a/b\n").unwrap();
    assert!(ground.run(&["stage", "--from-list", "list"]).starts_with("2 files"));
    let complaint = ground.fail(3, &["stage", "/nothing", "/a"]);
    assert!(complaint.contains("/nothing") && complaint.contains("1 file could not be fetched"), "{complaint}");
    fs::write(behind.join("sparse"), "changed").unwrap();
    ground.run(&["down"]);
}

/// Waits until something holds that others have changed in the backing directory.
#[allow(clippy::disallowed_methods)] // A real process is waited for.
fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let start = std::time::Instant::now();
    while !holds() {
        assert!(start.elapsed().as_secs() < 30, "not seen: {what}");
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
}

/// Goal: what others change in the directory is seen after a while, by commands and in a mount that keeps what it is
/// told; what was changed here stays. With `off` nothing of it is seen.
#[test]
fn what_others_change_is_seen() {
    let ground = Ground::new("seen");
    let behind = ground.make_tree();
    let up = ["up", "--servers", "2", "--flush", "manual", "--backing", behind.to_str().unwrap()];
    for check in ["0", "soon", "86401"] {
        let complaint = ground.fail(2, &[&up[..], &["--backing-check", check]].concat());
        assert!(complaint.contains("'off' or 1 to 86400 seconds are wanted"), "{complaint}");
    }
    ground.run(&[&up[..], &["--backing-check", "1"]].concat());
    assert!(ground.run(&["status"]).contains("looked at again after 1 s"));
    let mount = ground.path.join("mount");
    let mounts = common::fuse_is_here();
    if mounts {
        fs::create_dir(&mount).unwrap();
        ground.run(&["mount", mount.to_str().unwrap()]);
        assert_eq!(fs::read_dir(mount.join("many")).unwrap().count(), 200);
        assert_eq!(fs::read(mount.join("one")).unwrap(), fs::read(behind.join("one")).unwrap());
    }
    ground.run(&["ls", "-l", "/many"]);
    // Nothing while it can't be read: another moment's bytes are not mixed in.
    let text = |path: &str| String::from_utf8_lossy(&ground.try_run(&["cat", path]).stdout).into_owned();
    fs::write(behind.join("many/file-007.txt"), "short").unwrap();
    fs::write(ground.path.join("letter"), "ours").unwrap();
    ground.run(&["cp", "letter", ":/many/file-008.txt"]);
    wait_until("a file that was cut", || text("/many/file-007.txt") == "short");
    // Grown, replaced, removed, made.
    fs::write(behind.join("many/file-007.txt"), "short and more").unwrap();
    fs::write(behind.join("theirs"), "theirs").unwrap();
    fs::rename(behind.join("theirs"), behind.join("one")).unwrap();
    fs::write(behind.join("many/file-008.txt"), "theirs").unwrap();
    fs::remove_file(behind.join("many/file-009.txt")).unwrap();
    fs::write(behind.join("many/new"), "new").unwrap();
    let found = || ground.run(&["find", "/many", "-name", "file-007.txt", "-size", "+10c"]);
    wait_until("a file that has grown, by a search", || found().contains("file-007.txt"));
    wait_until("a file that has grown", || text("/many/file-007.txt") == "short and more");
    wait_until("a file that was replaced", || text("/one") == "theirs");
    let listed = || ground.run(&["ls", "/many"]);
    wait_until("a name that is new", || listed().lines().any(|name| name == "new"));
    wait_until("a name that is gone", || !listed().contains("file-009.txt"));
    assert!(!ground.try_run(&["stat", "/many/file-009.txt"]).status.success());
    assert_eq!(ground.run(&["cat", "/many/file-008.txt"]), "ours");
    assert!(sum(&ground, "forgotten_names") >= 3);
    if mounts {
        wait_until("a file in a mount", || fs::read(mount.join("one")).unwrap() == b"theirs");
        wait_until("a new name in a mount", || fs::read(mount.join("many/new")).is_ok_and(|bytes| bytes == b"new"));
        wait_until("a name that is gone, in a mount", || !mount.join("many/file-009.txt").exists());
        ground.unmount(&mount);
    }
    ground.run(&["check"]);
    let complaint = ground.fail(3, &["down"]);
    assert!(complaint.contains("many/file-008.txt"), "{complaint}");
    ground.run(&["down", "--discard"]);
    ground.run(&[&up[..], &["--backing-check", "off"]].concat());
    assert!(ground.run(&["status"]).contains("is not looked at again"));
    assert_eq!(ground.run(&["cat", "/one"]), "theirs");
    fs::write(behind.join("one"), "something else").unwrap();
    #[allow(clippy::disallowed_methods)] // Nothing happens that could be waited for.
    std::thread::sleep(std::time::Duration::from_millis(1500));
    assert_eq!(ground.run(&["cat", "/one"]), "theirs");
    ground.run(&["down"]);
}

fn bytes_of(ground: &Ground, path: &str) -> [u64; 3] {
    let told: serde_json::Value = serde_json::from_str(&ground.run(&["status", "--json", path])).unwrap();
    ["dirty_bytes", "clean_bytes", "absent_bytes"].map(|kind| told["paths"][0][kind].as_u64().unwrap())
}

/// Goal: `evict` gives up what is clean, fetched or made here and carried, and nothing else; what is read afterwards is
/// as before; `status PATH` tells dirty, clean and absent bytes at each step.
#[test]
fn evicted_files() {
    let ground = Ground::new("evict");
    let behind = ground.make_tree();
    let up = ["--flush", "manual", "--chunk-size", "64K", "--backing", behind.to_str().unwrap()];
    ground.run(&[&["up", "--servers", "2"][..], &up].concat());
    let large = fs::metadata(behind.join("a/large")).unwrap().len();
    assert_eq!(bytes_of(&ground, "/a/large"), [0, 0, large]);
    ground.run(&["stage", "/a/large"]);
    assert_eq!(bytes_of(&ground, "/a/large"), [0, large, 0]);
    let made: Vec<u8> = (0..5_000_000u32).map(|at| (at / 7 % 251) as u8).collect();
    fs::write(ground.path.join("made"), &made).unwrap();
    ground.run(&["cp", "made", ":/made"]);
    let size = made.len() as u64;
    assert_eq!(bytes_of(&ground, "/made"), [size, 0, 0]);
    assert!(ground.run(&["evict", "/made"]).contains("stay, changed and not in the backing directory yet"));
    assert_eq!(bytes_of(&ground, "/made"), [size, 0, 0]);
    ground.run(&["flush", "--wait"]);
    assert_eq!(bytes_of(&ground, "/made"), [0, size, 0]);
    assert!(ground.run(&["evict", "--dry-run", "/made", "/a/large"]).contains("would be given up"));
    assert_eq!(bytes_of(&ground, "/"), [0, size + large, sizes_below(&behind) - size - large]);
    ground.run(&["evict", "/made", "/a/large"]);
    assert_eq!(bytes_of(&ground, "/made"), [0, 0, size]);
    assert_eq!(bytes_of(&ground, "/a/large"), [0, 0, large]);
    ground.run(&["cp", ":/made", "back"]);
    assert!(fs::read(ground.path.join("back")).unwrap() == made);
    ground.run(&["cp", ":/a/large", "back"]);
    assert!(fs::read(ground.path.join("back")).unwrap() == fs::read(behind.join("a/large")).unwrap());
    let complaint = ground.fail(3, &["evict", "/nothing", "/made"]);
    assert!(complaint.contains("/nothing"), "{complaint}");
    ground.run(&["down"]);
    ground.run(&["up", "--servers", "1"]);
    ground.run(&["cp", "made", ":/made"]);
    let complaint = ground.fail(3, &["evict", "/made"]);
    assert!(complaint.contains("there is no backing directory"), "{complaint}");
    ground.run(&["down"]);
}

/// Bytes of all files below a directory.
fn sizes_below(directory: &Path) -> u64 {
    let entries = fs::read_dir(directory).unwrap().map(Result::unwrap);
    let size = |entry: fs::DirEntry| match entry.file_type().unwrap() {
        kind if kind.is_dir() => sizes_below(&entry.path()),
        kind if kind.is_file() => entry.metadata().unwrap().len(),
        _ => 0,
    };
    entries.map(size).sum()
}

/// Goal: a data set several times as large as the store goes through it, written and read, at once in its own words.
#[test]
fn more_than_the_store_holds() {
    let ground = Ground::new("evict-full");
    let behind = ground.path.join("behind");
    fs::create_dir(&behind).unwrap();
    let up = ["up", "--servers", "2", "--store", "memory,size=32M", "--flush", "immediate", "--backing"];
    ground.run(&[&up[..], &[behind.to_str().unwrap()]].concat());
    let piece: Vec<u8> = (0..20_000_000u32).map(|at| (at / 11 % 253) as u8).collect();
    fs::write(ground.path.join("piece"), &piece).unwrap();
    for number in 0..10 {
        ground.run(&["cp", "piece", &format!(":/file-{number}")]);
    }
    for number in 0..10 {
        ground.run(&["cp", &format!(":/file-{number}"), "back"]);
        assert!(fs::read(ground.path.join("back")).unwrap() == piece, "file {number}");
    }
    ground.run(&["flush", "--wait"]);
    assert!(sum(&ground, "evicted_bytes") > 100_000_000);
    for number in 0..10 {
        assert!(fs::read(behind.join(format!("file-{number}"))).unwrap() == piece, "file {number} behind");
    }
    ground.run(&["down"]);
}

/// Goal: one file that is several times as large as all stores is written and read in one go.
#[test]
fn a_file_larger_than_the_stores() {
    let ground = Ground::new("evict-large");
    let behind = ground.path.join("behind");
    fs::create_dir(&behind).unwrap();
    let up = ["up", "--servers", "2", "--store", "memory,size=32M", "--backing"];
    ground.run(&[&up[..], &[behind.to_str().unwrap()]].concat());
    let bytes: Vec<u8> = (0..150_000_000u32).map(|at| (at / 7 % 251) as u8).collect();
    fs::write(ground.path.join("large"), &bytes).unwrap();
    ground.run(&["cp", "large", ":/large"]);
    ground.run(&["cp", ":/large", "back"]);
    assert!(fs::read(ground.path.join("back")).unwrap() == bytes);
    ground.run(&["down"]);
    assert!(fs::read(behind.join("large")).unwrap() == bytes);
    assert_eq!(fs::read_dir(&behind).unwrap().count(), 1, "nothing of ours is left there");
}

/// Goal: whatever is changed of the tree, `down` carries it back: bytes where the tree had none, attributes alone,
/// names.
/// Method: one change each to a new cluster over the same tree, and none.
#[test]
fn every_change_is_carried_back() {
    let mode = |path: PathBuf| fs::metadata(path).unwrap().mode() & 0o777;
    type Check<'a> = &'a dyn Fn(&Path);
    let changes: [(&[&str], Check<'_>); 9] = [
        (&[], &|_| ()),
        (&["cp", "letter", ":/empty"], &|behind| assert_eq!(fs::read(behind.join("empty")).unwrap(), b"precious")),
        (&["cp", "letter", ":/new"], &|behind| assert_eq!(fs::read(behind.join("new")).unwrap(), b"precious")),
        (&["truncate", "-s", "1000000", ":/chunk"], &|behind| {
            let bytes = fs::read(behind.join("chunk")).unwrap();
            assert!(
                bytes.len() == 1_000_000
                    && bytes[..65_536] == [7; 65_536]
                    && bytes[65_536..].iter().all(|byte| *byte == 0)
            );
        }),
        (&["chmod", "600", ":/empty"], &|behind| assert_eq!(mode(behind.join("empty")), 0o600)),
        (&["chmod", "700", ":/directory"], &|behind| assert_eq!(mode(behind.join("directory")), 0o700)),
        (&["rm", ":/chunk"], &|behind| assert!(!behind.join("chunk").exists())),
        (&["rm", "-r", ":/directory"], &|behind| assert!(!behind.join("directory").exists())),
        (&["mv", ":/chunk", ":/directory/other"], &|behind| {
            assert!(!behind.join("chunk").exists());
            assert_eq!(fs::read(behind.join("directory/other")).unwrap(), vec![7; 65_536]);
        }),
    ];
    for (words, check) in changes {
        let ground = Ground::new("backing-carried");
        let behind = ground.path.join("behind");
        fs::create_dir_all(behind.join("directory")).unwrap();
        fs::write(behind.join("empty"), "").unwrap();
        fs::write(behind.join("chunk"), vec![7; 65_536]).unwrap();
        ground.run(&["up", "--servers", "3", "--chunk-size", "64K", "--backing", behind.to_str().unwrap()]);
        ground.run(&["ls", "-lR", ":/"]);
        ground.run(&["stage", ":/chunk", ":/empty"]);
        fs::write(ground.path.join("letter"), "precious").unwrap();
        if !words.is_empty() {
            ground.run(words);
        }
        ground.run(&["down"]);
        check(&behind);
        let hidden =
            |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name().as_bytes().starts_with(b".tabane-");
        assert!(!fs::read_dir(&behind).unwrap().any(hidden), "{words:?}: nothing of ours is left there");
    }
}

/// Goal: a flush carries a directory into a new one that has its old name, what is in it deeper into it, although by
/// the paths of before each of them would be within itself, and what was in a directory to that one's name.
#[test]
fn directories_move_into_their_old_names() {
    let ground = Ground::new("backing-into-old-names");
    let behind = ground.path.join("behind");
    fs::create_dir_all(behind.join("old/name/within")).unwrap();
    fs::create_dir_all(behind.join("old/deep")).unwrap();
    fs::write(behind.join("old/file"), "file").unwrap();
    let of = behind.to_str().unwrap();
    ground.run(&["up", "--servers", "3", "--backing", of, "--flush", "manual"]);
    for name in ["file", "name"] {
        ground.run(&["mv", ":/old", ":/moved"]);
        ground.run(&["mv", &format!(":/moved/{name}"), ":/moved/deep/new"]);
        ground.run(&["mkdir", ":/old"]);
        ground.run(&["mv", ":/moved", &format!(":/old/{name}")]);
        ground.run(&["flush", "--wait"]);
        let new = behind.join("old").join(name).join("deep/new");
        let is_there = if name == "file" { fs::read(&new).unwrap() == b"file" } else { new.join("within").is_dir() };
        assert!(is_there, "{name}");
        // As it was, without what was moved.
        ground.run(&["mv", &format!(":/old/{name}"), ":/moved"]);
        ground.run(&["rm", "-r", ":/old", ":/moved/deep/new"]);
        ground.run(&["mv", ":/moved", ":/old"]);
        ground.run(&["flush", "--wait"]);
    }
    // A file and a directory take the name of the one that they were in.
    for path in [&["file"][..], &["within", "deeper", "directory"]] {
        fs::write(ground.path.join("letter"), "letter").unwrap();
        let directory = format!("/outer/{}", path[..path.len() - 1].join("/"));
        ground.run(&["mkdir", "-p", &directory]);
        let inner = format!(":{directory}/{}", path[path.len() - 1]);
        match path.len() {
            1 => ground.run(&["cp", "letter", &inner]),
            _ => ground.run(&["mkdir", &inner]),
        };
        ground.run(&["flush", "--wait"]);
        ground.run(&["mv", &inner, ":/aside"]);
        ground.run(&["rm", "-r", ":/outer"]);
        ground.run(&["mv", ":/aside", ":/outer"]);
        ground.run(&["flush", "--wait"]);
        let left = fs::metadata(behind.join("outer")).unwrap();
        assert!(if path.len() == 1 { left.len() == 6 } else { left.is_dir() }, "{path:?}");
        ground.run(&["rm", "-r", ":/outer"]);
        ground.run(&["flush", "--wait"]);
        assert_eq!(fs::read_dir(&behind).unwrap().count(), 1, "{path:?}");
    }
    ground.run(&["down"]);
    let left: Vec<_> = fs::read_dir(behind.join("old")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["deep"]);
}

/// Goal: `flush` carries back while the cluster goes on, again and again; what can't go is listed with its reason, exit
/// status 3, and `down` stops nothing then; what somebody else has changed there is not replaced.
#[test]
fn flushes_and_what_cannot_go() {
    let ground = Ground::new("backing-flush");
    let behind = ground.path.join("behind");
    fs::create_dir_all(behind.join("directory/below")).unwrap();
    fs::write(behind.join("one"), "as it was").unwrap();
    fs::write(ground.path.join("letter"), "first").unwrap();
    let of = behind.to_str().unwrap();
    ground.run(&["up", "--servers", "3", "--chunk-size", "64K", "--backing", of, "--flush", "manual"]);
    for text in ["first", "second, longer", "3"] {
        fs::write(ground.path.join("letter"), text).unwrap();
        ground.run(&["cp", "letter", ":/one"]);
        ground.run(&["cp", "letter", ":/new"]);
        ground.run(&["mkdir", "-p", ":/made/below"]);
        ground.run(&["cp", "letter", ":/made/below/it"]);
        ground.run(&["flush", "--wait"]);
        for name in ["one", "new", "made/below/it"] {
            assert_eq!(fs::read_to_string(behind.join(name)).unwrap(), text, "{name}");
        }
        assert!(ground.run(&["flush", "--wait"]).starts_with("0 changes"), "there is nothing to do twice");
    }
    ground.run(&["rm", "-r", ":/made"]);
    ground.run(&["flush", "--wait"]);
    assert!(!behind.join("made").exists());
    fs::write(behind.join("one"), "theirs").unwrap();
    ground.run(&["cp", "letter", ":/one"]);
    ground.run(&["put", "/directory/below/it"]);
    ground.run(&["mv", ":/directory", ":/moved"]);
    ground.run(&["ln", ":/new", ":/second"]);
    for command in [&["flush", "--wait"][..], &["down"][..]] {
        let complaint = ground.fail(3, command);
        assert!(complaint.contains("/one: somebody else has changed it there"), "{complaint}");
        let inode = |name: &str| fs::metadata(behind.join(name)).unwrap().ino();
        assert_eq!(inode("new"), inode("second"), "two names of one file");
        assert!(behind.join("moved/below/it").exists() && !behind.join("directory").exists(), "it goes with all in it");
    }
    assert_eq!(fs::read_to_string(behind.join("one")).unwrap(), "theirs");
    assert_eq!(ground.run(&["cat", ":/one"]), "3", "nothing was stopped");
    ground.run(&["rm", ":/second"]);
    ground.run(&["mv", ":/one", ":/ours"]);
    ground.run(&["down", "--keep"]);
    ground.run(&["up"]);
    ground.fail(3, &["down"]);
    assert_eq!(fs::read_to_string(behind.join("ours")).unwrap(), "3");
    assert_eq!(fs::read_to_string(behind.join("one")).unwrap(), "theirs");
    ground.run(&["down", "--discard"]);
}

/// Goal: servers carry changes back by themselves when nobody uses them, and say so; with `--flush never` nothing goes
/// and nobody is kept from ending the cluster; what is wrong with such options is said.
#[test]
fn changes_go_by_themselves() {
    let ground = Ground::new("backing-idle");
    let behind = ground.path.join("behind");
    fs::create_dir_all(&behind).unwrap();
    fs::write(ground.path.join("letter"), "precious").unwrap();
    let of = behind.to_str().unwrap();
    for (words, part) in [
        (&["--backing", of, "--flush", "often"][..], "one of idle, immediate, on-close, manual, never is wanted"),
        (&["--backing", of, "--flush-idle-ms", "soon"], "'auto' or 1 to"),
        (&["--backing", of, "--flush-writers", "0"], "1 to 1024"),
        (&["--flush", "idle"], "name that with --backing"),
    ] {
        let complaint = ground.fail(2, &[&["up", "--servers", "2"], words].concat());
        assert!(complaint.contains(part), "{complaint}");
    }
    ground.run(&["up", "--servers", "2", "--backing", of, "--flush-idle-ms", "50"]);
    ground.run(&["cp", "letter", ":/new"]);
    let carried = || fs::read(behind.join("new")).is_ok_and(|bytes| bytes == b"precious");
    // Each of these questions takes a while, and is no access.
    let is_seen = (0..1000).any(|_| ground.run(&["status"]).contains("backing") && carried());
    assert!(is_seen, "{}", ground.run(&["status"]));
    assert!(ground.run(&["status"]).contains("after 50 ms without accesses"));
    ground.run(&["down"]);
    ground.run(&["up", "--servers", "2", "--backing", of, "--flush", "never"]);
    ground.run(&["cp", "letter", ":/other"]);
    let complaint = ground.fail(1, &["flush", "--wait"]);
    assert!(complaint.contains("--flush never"), "{complaint}");
    ground.run(&["down"]);
    assert!(!behind.join("other").exists());
}

/// Goal: a cluster of one command carries its results back at the end; what can't go stays, and is told with a way on.
#[test]
fn results_of_a_run() {
    let ground = Ground::new("backing-run");
    let behind = ground.path.join("behind");
    fs::create_dir_all(&behind).unwrap();
    let own = ground.path.join("own");
    let (at, of) = (own.to_str().unwrap().to_owned(), behind.to_str().unwrap().to_owned());
    let run = |status: i32, script: &str| {
        let script = format!("{} mkdir :/made && {script}", env!("CARGO_BIN_EXE_tabane"));
        let line = ["run", "--run-directory", &at, "--backing", &of, "--", "sh", "-c", &script];
        match status {
            0 => ground.run(&line),
            status => ground.fail(status, &line),
        }
    };
    run(0, "true");
    assert!(behind.join("made").is_dir() && !own.exists());
    fs::remove_dir(behind.join("made")).unwrap();
    let complaint = run(3, &format!("echo theirs > {of}/made"));
    assert!(complaint.contains("/made: ") && complaint.contains("tabane down --run-directory"), "{complaint}");
    fs::remove_file(behind.join("made")).unwrap();
    ground.run(&["up", "--run-directory", &at]);
    ground.run(&["down", "--run-directory", &at]);
    assert!(behind.join("made").is_dir() && !own.exists());
}

/// Goal: directories that can't be behind are refused in words, and nothing is left of the attempt.
#[test]
fn directories_that_cant_be_behind() {
    let ground = Ground::new("backing-bad");
    fs::write(ground.path.join("file"), "x").unwrap();
    fs::create_dir(ground.path.join("stores")).unwrap();
    let path = |name: &str| ground.path.join(name).display().to_string();
    for (given, words) in [
        (path("nothing"), "no such file"),
        (path("file"), "no directory"),
        (path("stores"), "it is the directory of the stores"),
        (ground.path.display().to_string(), "it holds the directory of the stores"),
        (path("run"), "it is the run directory"),
    ] {
        let complaint = ground.fail(1, &["up", "--backing", &given]);
        assert!(complaint.contains(words) && complaint.contains("--backing"), "{given}: {complaint}");
        assert!(!ground.path.join("run/cluster").exists(), "{given}");
    }
}

/// Goal: `clean` removes hidden files of dead clusters, and nothing else: not those of a cluster that is here, running
/// or stopped, no young ones of others, no parked ones, nothing that links lead to, no names that look alike; what it
/// can't do is said.
#[test]
fn hidden_files_of_dead_clusters_are_cleaned() {
    let ground = Ground::new("backing-clean");
    let behind = ground.path.join("behind");
    fs::create_dir_all(behind.join("a/b")).unwrap();
    fs::create_dir(ground.path.join("elsewhere")).unwrap();
    std::os::unix::fs::symlink(ground.path.join("elsewhere"), behind.join("a/link")).unwrap();
    let of = behind.to_str().unwrap();
    let make = |paths: &[PathBuf]| paths.iter().for_each(|path| fs::write(path, "x").unwrap());
    let dead = [behind.join(".tabane-0123456789abcdef-4a"), behind.join("a/b/.tabane-0123456789abcdef-4b")];
    let others = [
        behind.join("a/.tabane-0123456789abcdef-4a-parked"),
        behind.join("a/results.tabane-4a"),
        behind.join(".tabane-notes"),
        ground.path.join("elsewhere/.tabane-0123456789abcdef-4a"),
    ];
    make(&dead);
    make(&others);
    std::os::unix::fs::symlink("b", behind.join("a/.tabane-0123456789abcdef-4c")).unwrap();

    // No cluster is here.
    let told = ground.run(&["clean", of]);
    assert!(told.contains("0 hidden files") && told.contains("4 kept") && told.contains("less than a day"), "{told}");
    let told = ground.run(&["clean", "--force", "--dry-run", of]);
    assert!(told.contains(&format!("would remove {}", dead[1].display())), "{told}");
    assert!(told.contains("3 hidden files of dead clusters would be removed") && dead[0].exists(), "{told}");
    let told = ground.run(&["clean", "--force", of]);
    assert!(told.contains(&format!("removed {}", dead[0].display())) && told.contains("1 kept"), "{told}");
    assert!(told.contains("-parked: it was about to be renamed"), "{told}");
    assert!(!dead.iter().any(|path| path.exists()) && others.iter().all(|path| path.exists()));
    assert!(behind.join("a/b").is_dir() && behind.join("a/.tabane-0123456789abcdef-4c").symlink_metadata().is_err());

    // One that is.
    ground.run(&["up", "--servers", "2", "--backing", of, "--flush", "manual"]);
    let text = fs::read_to_string(ground.path.join("run/cluster")).unwrap();
    let id = text.lines().find_map(|line| line.strip_prefix("id = ")).unwrap();
    let own = behind.join(format!("a/.tabane-{}-4a", &id[16..]));
    make(std::slice::from_ref(&own));
    make(&dead);
    let kept = |told: String| {
        assert!(told.contains(&format!("kept {}: its cluster is here", own.display())), "{told}");
        assert!(own.exists() && !dead[0].exists());
    };
    kept(ground.run(&["clean", "--force", of]));
    ground.run(&["down", "--keep"]);
    kept(ground.run(&["clean", "--force", of]));

    let file = behind.join(".tabane-notes");
    for (words, code, part) in [
        (&["clean"][..], 2, "DIR"),
        (&["clean", "nothing"], 1, "no such file"),
        (&["clean", file.to_str().unwrap()], 1, "it is no directory"),
        (&["clean", "--run-directory", "nothing", of], 1, "nothing was removed"),
        (&["clean", "--cluster", file.to_str().unwrap(), of], 1, "nothing was removed"),
    ] {
        let complaint = ground.fail(code, words);
        assert!(complaint.contains(part), "{words:?}: {complaint}");
    }
    ground.run(&["up"]);
    fs::remove_file(own).unwrap();
    ground.run(&["down"]);
}

/// Names beside one in a directory, but for itself.
fn beside(directory: &Path, name: &str) -> Vec<String> {
    let names = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut found: Vec<String> = names.filter(|own| own.starts_with(&format!("{name}.tabane-"))).collect();
    found.sort();
    found
}

/// Goal: of a file that both sides have changed the versions are where `--on-conflict` says, which is told once; and a
/// cluster that is up keeps to what it was made with.
#[test]
fn conflicts_are_settled_as_asked() {
    for policy in ["ours", "theirs"] {
        let ground = Ground::new(&format!("backing-{policy}"));
        let behind = ground.path.join("behind");
        fs::create_dir_all(&behind).unwrap();
        fs::write(behind.join("one"), "as it was").unwrap();
        fs::write(behind.join("gone"), "as it was").unwrap();
        fs::write(ground.path.join("letter"), "ours").unwrap();
        let of = behind.to_str().unwrap();
        let up = ["up", "--servers", "3", "--backing", of, "--flush", "manual", "--on-conflict"];
        let complaint = ground.fail(2, &[&up[..], &["mine"]].concat());
        assert!(complaint.contains("one of both, ours, theirs"), "{complaint}");
        ground.run(&[&up[..], &[policy]].concat());
        ground.run(&["cp", "letter", ":/one"]);
        ground.run(&["cp", "letter", ":/new"]);
        ground.run(&["rm", ":/gone"]);
        for name in ["one", "new", "gone"] {
            fs::write(behind.join(name), "theirs, longer").unwrap();
        }
        let output = ground.try_run(&["flush", "--wait"]);
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{told}");
        for name in ["one", "new", "gone"] {
            assert!(told.contains(&format!("settled: /{name}: somebody else has changed it there")), "{told}");
        }
        assert!(ground.run(&["status"]).contains("settled: /one: "));
        let again = ground.try_run(&["flush", "--wait", "--verify"]);
        let told = String::from_utf8_lossy(&again.stderr).into_owned();
        assert!(again.status.success() && !told.contains("settled"), "it is told once: {told}");
        let read = |name: &str| fs::read_to_string(behind.join(name)).unwrap();
        let (here, kept) = if policy == "ours" { ("ours", 1) } else { ("theirs, longer", 0) };
        for name in ["one", "new"] {
            assert_eq!((ground.run(&["cat", &format!("/{name}")]), read(name)), (here.to_owned(), here.to_owned()));
        }
        assert_eq!(behind.join("gone").exists(), policy == "theirs");
        assert_eq!(ground.try_run(&["cat", "/gone"]).status.success(), policy == "theirs");
        for name in ["one", "new", "gone"] {
            let names = beside(&behind, name);
            assert_eq!(names.len(), kept, "{names:?}");
            names.iter().for_each(|name| assert_eq!(read(name), "theirs, longer"));
        }
        ground.run(&["down", "--keep"]);
        let complaint = ground.fail(1, &["up", "--on-conflict", "both", "--backing", of]);
        assert!(complaint.contains(&format!("--on-conflict is {policy}")), "{complaint}");
        ground.run(&["up"]);
        ground.run(&["down", "--verify"]);
    }
}

/// Goal: `--verify` finds what is not the same there and lists it, with exit status 3; `down` stops nothing then.
#[test]
fn both_sides_are_compared() {
    let ground = Ground::new("backing-verify");
    let behind = ground.make_tree();
    let of = behind.to_str().unwrap();
    ground.run(&["up", "--servers", "3", "--chunk-size", "64K", "--backing", of, "--flush", "manual"]);
    ground.run(&["stage", ":/a/large", "/one"]);
    fs::write(ground.path.join("letter"), vec![b'x'; 200_000]).unwrap();
    ground.run(&["cp", "letter", ":/made"]);
    ground.run(&["truncate", "-s", "3000000", ":/made"]);
    let told = ground.run(&["flush", "--wait", "--verify"]);
    assert!(told.contains("compared: the same"), "{told}");
    assert!(ground.fail(2, &["flush", "--verify"]).contains("--wait"));
    assert!(ground.fail(2, &["down", "--verify", "--keep"]).contains("--keep"));
    // The same size, and the time of before, but for that of the change.
    let path = behind.join("made");
    let before = fs::metadata(&path).unwrap();
    let mut bytes = fs::read(&path).unwrap();
    bytes[150_000] = b'y';
    fs::write(&path, &bytes).unwrap();
    fs::File::options().write(true).open(&path).unwrap().set_modified(before.modified().unwrap()).unwrap();
    for command in [&["flush", "--wait", "--verify"][..], &["down", "--verify"][..]] {
        let complaint = ground.fail(3, command);
        assert!(complaint.contains("verify: /made: "), "{complaint}");
    }
    assert!(ground.run(&["flush", "--wait", "--verify", ":/a"]).contains("compared: the same"));
    assert_eq!(ground.run(&["cat", "/made"]).len(), 3_000_000, "nothing was stopped");
    ground.run(&["down"]);
}

/// Goal: servers that get SIGTERM carry what they can before they end; what can't go stays in their stores, and is in
/// their logs.
#[test]
fn servers_that_are_told_to_end_carry_first() {
    let ground = Ground::new("backing-grace");
    let behind = ground.path.join("behind");
    fs::create_dir_all(&behind).unwrap();
    fs::write(ground.path.join("letter"), "precious").unwrap();
    let of = behind.to_str().unwrap();
    ground.run(&["up", "--servers", "3", "--backing", of, "--flush", "manual", "--grace-ms", "30000"]);
    ground.run(&["cp", "letter", ":/one"]);
    ground.run(&["mkdir", ":/made"]);
    ground.run(&["cp", "letter", ":/made/two"]);
    ground.run(&["ln", ":/one", ":/second"]);
    ground.run(&["cp", "letter", ":/taken"]);
    fs::write(behind.join("taken"), "theirs").unwrap();
    let pids: Vec<u32> = (0..3).map(|index| ground.pid(index)).collect();
    pids.iter().for_each(|pid| common::send_signal(*pid, reactor::process::SIGTERM));
    let has_ended = |pid: &u32| reactor::process::ProcessId::of(*pid).is_none();
    // Each of these questions takes a while.
    let have_ended = (0..1000).any(|_| {
        pids.iter().all(has_ended) || {
            ground.try_run(&["status"]);
            false
        }
    });
    assert!(have_ended);
    for name in ["one", "second", "made/two"] {
        assert_eq!(fs::read_to_string(behind.join(name)).unwrap(), "precious", "{name}");
    }
    assert_eq!(fs::read_to_string(behind.join("taken")).unwrap(), "theirs");
    let log = |index: u32| fs::read_to_string(ground.run_directory().join(format!("server-{index}.log"))).unwrap();
    let logs: String = (0..3).map(log).collect();
    assert!(logs.contains("event=not-carried") && logs.contains("somebody else has changed it there"), "{logs}");
    ground.run(&["up"]);
    assert_eq!(ground.run(&["cat", "/second", "/taken"]), "preciousprecious");
    assert!(ground.fail(3, &["down"]).contains("/taken: somebody else has changed it there"));
    ground.run(&["down", "--discard"]);
}

/// Goal: in a cluster with `--fsync-backing` a file is in the directory when a program's fsync has ended, and one that
/// can't go there has fsync fail, once; close tells it to who did not sync. Without the option fsync waits for nothing.
/// Method: a program's files on a mount; somebody else takes a name.
#[test]
fn fsync_has_files_carried() {
    let ground = Ground::new("fsync-backing");
    let behind = ground.path.join("behind");
    fs::create_dir_all(&behind).unwrap();
    let up = ["up", "--servers", "2", "--backing", behind.to_str().unwrap(), "--flush"];
    let complaint = ground.fail(2, &[&up[..], &["never", "--fsync-backing"]].concat());
    assert!(complaint.contains("leave out one of the two"), "{complaint}");
    let mount = ground.path.join("mount");
    fs::create_dir(&mount).unwrap();
    for carries in [true, false] {
        ground.run(&[&up[..], &["manual", if carries { "--fsync-backing" } else { "--fsync-backing=no" }]].concat());
        assert_eq!(ground.run(&["status"]).contains("fsync waits for that"), carries);
        if common::fuse_is_here() {
            ground.run(&["mount", mount.to_str().unwrap()]);
            fs::create_dir_all(mount.join("a/b")).unwrap();
            for size in [5, 3 << 20] {
                let name = format!("a/b/{size}-{carries}");
                let mut file = fs::File::create(mount.join(&name)).unwrap();
                file.write_all(&vec![b'x'; size]).unwrap();
                file.sync_all().unwrap();
                let there = fs::read(behind.join(&name));
                assert_eq!(there.is_ok_and(|bytes| bytes == vec![b'x'; size]), carries, "{name}");
            }
            let name = format!("taken-{carries}");
            let mut file = fs::File::create(mount.join(&name)).unwrap();
            file.write_all(b"ours").unwrap();
            fs::write(behind.join(&name), "theirs").unwrap();
            if !carries {
                assert!(ground.fail(3, &["flush", "--wait"]).contains(&name));
            }
            let errno = file.sync_all().unwrap_err().raw_os_error();
            assert_eq!(errno, Some(EIO), "{carries}");
            if !carries {
                file.sync_all().unwrap();
            }
            drop(file);
            assert_eq!(fs::read_to_string(behind.join(&name)).unwrap(), "theirs");
            ground.unmount(&mount);
        }
        ground.run(&["down", "--discard"]);
    }
}
