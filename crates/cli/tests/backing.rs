//! A cluster over a directory that there is already: both are one tree, and the directory stays as it was.

#![allow(clippy::unwrap_used)] // What fails here fails the test.

mod common;

use common::{Ground, describe};
use std::fs;
use std::os::unix::fs::MetadataExt;

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
    ground.run(&["up", "--servers", "3", "--chunk-size", "64K", "--backing", behind.to_str().unwrap()]);
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
    let complaint = ground.fail(1, &["down"]);
    for wanted in ["--discard", "--keep", "changed: one", "removed: many/file-007.txt", "made: new"] {
        assert!(complaint.contains(wanted), "{wanted}: {complaint}");
    }
    ground.run(&["down", "--keep"]);
    ground.run(&["up"]);
    check();
    assert_eq!(before, describe(&behind), "the directory is as it was");
    ground.run(&["check"]);
    ground.run(&["down", "--discard"]);
    assert_eq!(before, describe(&behind), "the directory is as it was");
}

/// Goal: what is staged is fetched once and for all, by paths and by a list; what can't be is listed, with exit status 3.
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

/// Goal: whatever is changed of the tree, `down` says so: bytes where the tree had none, attributes alone, another name.
/// Method: one change each to a new cluster over the same tree, and none.
#[test]
fn every_change_is_told() {
    let changes: [(&[&str], &str); 6] = [
        (&[], ""),
        (&["cp", "letter", ":/empty"], "changed: empty"),
        (&["truncate", "-s", "1000000", ":/chunk"], "changed: chunk"),
        (&["chmod", "600", ":/empty"], "changed: empty"),
        (&["chmod", "700", ":/directory"], "changed: directory"),
        (&["ln", ":/chunk", ":/link"], "changed: chunk"),
    ];
    for (words, told) in changes {
        let ground = Ground::new("backing-told");
        let behind = ground.path.join("behind");
        fs::create_dir_all(behind.join("directory")).unwrap();
        fs::write(behind.join("empty"), "").unwrap();
        fs::write(behind.join("chunk"), vec![7; 65_536]).unwrap();
        ground.run(&["up", "--servers", "3", "--chunk-size", "64K", "--backing", behind.to_str().unwrap()]);
        ground.run(&["ls", "-lR", ":/"]);
        ground.run(&["stage", ":/chunk", ":/empty"]);
        fs::write(ground.path.join("letter"), "precious").unwrap();
        if words.is_empty() {
            ground.run(&["down"]);
        } else {
            ground.run(words);
            let complaint = ground.fail(1, &["down"]);
            assert!(complaint.contains(told), "{words:?}: {complaint}");
            ground.run(&["down", "--discard"]);
        }
    }
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
