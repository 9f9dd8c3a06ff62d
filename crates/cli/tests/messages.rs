//! What the commands that go through trees say to the servers: counts of requests, by real processes.
#![allow(clippy::unwrap_used)] // What fails here fails the test.
#![allow(clippy::disallowed_methods)] // These are processes of their own.

mod common;

use common::Ground;
use std::fs;

const SERVERS: u64 = 2;
const DIRECTORIES: u64 = 3;
const FILES_EACH: u64 = 100;
const FILES: u64 = DIRECTORIES * FILES_EACH;

/// Requests of one kind that all servers have had so far.
fn arrivals(status: &str, operation: &str) -> u64 {
    let head = format!("\"{operation}\": {{");
    let counts = status.split(&head).skip(1).map(|text| {
        let (_, count) = text.split_once("\"arrivals\": ").unwrap();
        count.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse::<u64>().unwrap()
    });
    counts.sum()
}

/// Runs a command; what of each kind of request it made is to be asked of the result.
fn requests_of(ground: &Ground, words: &[&str]) -> impl Fn(&str) -> u64 + use<> {
    let before = ground.run(&["status", "--json"]);
    ground.run(words);
    let after = ground.run(&["status", "--json"]);
    move |operation| arrivals(&after, operation) - arrivals(&before, operation)
}

/// Goal: `cp -r`, `ls -l`, `find`, `chmod -R` and `rm -r` make no request that could have been spared: attributes come
/// with listings, `find` is done by the servers, and closes ride along. Method: a tree of small files; the servers' own
/// counts before and after each command.
#[test]
fn requests_of_trees() {
    let ground = Ground::new("messages");
    let tree = ground.path.join("tree");
    for directory in 0..DIRECTORIES {
        let path = tree.join(format!("d{directory}"));
        fs::create_dir_all(&path).unwrap();
        (0..FILES_EACH).for_each(|file| fs::write(path.join(format!("f{file}")), [7; 3901]).unwrap());
    }
    ground.run(&["up", "--servers", &SERVERS.to_string()]);
    // Collected closes are sent with 64 files each, at the end, and when they have waited long.
    let closes_max = FILES / 16;

    let made = requests_of(&ground, &["cp", "-q", "-r", tree.to_str().unwrap(), ":/tree"]);
    assert_eq!((made("Open"), made("Write"), made("Close")), (FILES, FILES, 0));
    assert_eq!(made("SetAttributes"), FILES + DIRECTORIES + 1, "modes and times in one");
    assert!(made("CloseMany") <= closes_max, "{} messages of closes", made("CloseMany"));
    assert!(made("Lookup") + made("Look") + made("Stat") + made("StatId") <= 4 * (DIRECTORIES + 1));

    let listed = requests_of(&ground, &["ls", "-l", "/tree/d0"]);
    assert_eq!(listed("ReadDirectory"), SERVERS, "one page of each server, with the attributes");
    assert!(listed("Lookup") + listed("Look") + listed("Stat") + listed("StatId") <= 4);

    let found = requests_of(&ground, &["find", "/tree", "-name", "f1*", "-size", "+1"]);
    assert_eq!(found("Find"), SERVERS * (DIRECTORIES + 1));
    assert!(found("Lookup") + found("Look") + found("Stat") + found("StatId") <= 8);

    let back = ground.path.join("back");
    let read = requests_of(&ground, &["cp", "-q", "-r", ":/tree", back.to_str().unwrap()]);
    assert_eq!((read("OpenExisting"), read("Close")), (FILES, 0));
    assert!(read("Read") + read("Locate") <= FILES, "one read for each file, its end included");
    assert!(read("CloseMany") <= closes_max, "{} messages of closes", read("CloseMany"));
    assert!(
        read("Lookup") + read("Look") + read("Stat") + read("StatId") <= 4 * (DIRECTORIES + 1),
        "attributes come with the listing"
    );

    let changed = requests_of(&ground, &["chmod", "-R", "go-w", "/tree"]);
    assert_eq!(changed("SetAttributes"), FILES + DIRECTORIES + 1, "one for each");
    let looks = changed("Lookup") + changed("Look") + changed("Stat") + changed("StatId");
    assert!(looks <= 4 * (DIRECTORIES + 1), "attributes come with the listing: {looks}");

    let removed = requests_of(&ground, &["rm", "-r", "/tree"]);
    assert_eq!((removed("Unlink"), removed("RemoveDirectory")), (FILES, DIRECTORIES + 1));
    assert!(removed("Lookup") + removed("Look") + removed("Stat") + removed("StatId") <= 8);
    ground.run(&["down"]);
}

/// Runs a command; how many requests it sent, and in how many sends.
fn traffic_of(ground: &Ground, words: &[&str]) -> (u64, u64) {
    let output = ground.command(words).arg("--traffic").output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{words:?}: {said}");
    let (head, tail) = said.split_once(" requests in ").unwrap();
    let (sends, _) = tail.split_once(" sends").unwrap();
    (head.rsplit(' ').next().unwrap().parse().unwrap(), sends.parse().unwrap())
}

/// Goal: what these commands ask that does not depend on each other travels together.
/// Method: a tree of directories with files and links; requests against the times that any were handed to the kernel.
#[test]
fn requests_travel_together() {
    let ground = Ground::new("together");
    let tree = ground.path.join("tree");
    for directory in 0..32 {
        let path = tree.join(format!("d{directory}"));
        fs::create_dir_all(&path).unwrap();
        (0..16).for_each(|file| fs::write(path.join(format!("f{file}")), [7; 100]).unwrap());
        (0..8).for_each(|link| std::os::unix::fs::symlink("f0", path.join(format!("l{link}"))).unwrap());
    }
    ground.run(&["up", "--servers", "1"]);
    for words in [
        &["cp", "-q", "-r", tree.to_str().unwrap(), ":/tree"][..],
        &["find", "/tree", "-name", "f1*", "-size", "+0"],
        &["ls", "-l", "-R", "/tree"],
        &["cp", "-q", "-r", ":/tree", ground.path.join("back").to_str().unwrap()],
        &["chmod", "-R", "u+w,go-w", "/tree"],
        &["rm", "-r", "/tree"],
    ] {
        let (requests, sends) = traffic_of(&ground, words);
        assert!(sends * 2 <= requests, "{words:?}: {requests} requests in {sends} sends");
    }
    ground.run(&["down"]);
}
