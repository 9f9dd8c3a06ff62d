//! What `tabane cp` keeps with -a, leaves with -u and -n, and says with -v: in, out and within a real cluster.

#![allow(clippy::unwrap_used)] // What fails here fails the test.

mod common;

use common::{Ground, describe, text};
use std::fs;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::Path;
use std::process::Command;

const NOBODY: u32 = 65_534;

/// Sets the time of the last change, in words of touch(1).
fn set_time(path: &Path, time: &str) {
    assert!(Command::new("touch").args(["-h", "-d", time]).arg(path).status().unwrap().success());
}

/// Names that lead to one inode stand in one line, with owner, group and attributes of the inode; sorted.
fn inodes(tree: &Path) -> Vec<String> {
    let output = Command::new("find").args([".", "-printf", "%i %P\\n"]).current_dir(tree).output().unwrap();
    let mut names = std::collections::BTreeMap::<u64, Vec<String>>::new();
    for line in String::from_utf8(output.stdout).unwrap().lines().filter(|line| line.contains(' ')) {
        let (inode, name) = line.split_once(' ').unwrap();
        // The second line of a name with two lines has no number.
        names.entry(inode.parse().unwrap_or(0)).or_default().push(name.to_owned());
    }
    let mut lines: Vec<String> = names
        .into_values()
        .map(|mut names| {
            names.sort();
            let path = tree.join(&names[0]);
            let facts = fs::symlink_metadata(&path).map(|facts| (facts.uid(), facts.gid())).ok();
            let device = fs::symlink_metadata(&path).map_or(0, |facts| facts.rdev());
            let tagged = reactor::extended::value(&path, b"user.tag").ok();
            format!("{names:?} {facts:?} {tagged:?} {device:x}")
        })
        .collect();
    lines.sort();
    lines
}

/// Goal: with -a a tree is the same after each direction: contents, modes, times, links, names of one file, owners and
/// extended attributes; a second copy over it changes nothing.
/// Method: a tree in, from there to another place inside, and out from both.
#[test]
fn archives_are_the_same() {
    let ground = Ground::new("archive");
    let tree = ground.make_tree();
    for (file, name) in [("a/3901", "many/second"), ("a/3901", "third"), ("a/large", "large-too")] {
        fs::hard_link(tree.join(file), tree.join(name)).unwrap();
    }
    for path in [tree.join("a/b"), tree.join("one"), tree.join("many/second")] {
        // Temporary directories may lie where there are none.
        let _ = reactor::extended::set(&path, b"user.tag", b"kept");
    }
    if reactor::process::user() == 0 {
        chown(tree.join("a/b"), Some(NOBODY), Some(NOBODY)).unwrap();
        chown(tree.join("a/large"), Some(NOBODY), None).unwrap();
    }
    let mut nodes = "mkfifo -m 620 pipe; ln pipe a/same-pipe; touch -d 2003-04-05 pipe".to_owned();
    if reactor::process::user() == 0 {
        nodes.push_str("; mknod -m 604 null c 1 3; mknod disk b 259 70000; chown 65534 null");
    }
    assert!(Command::new("sh").args(["-ec", &nodes]).current_dir(&tree).status().unwrap().success());
    std::os::unix::net::UnixListener::bind(tree.join("socket")).unwrap();
    ground.run(&["up", "--servers", "3", "--chunk-size", "64K"]);
    let times = "2002-03-04 05:06:07";
    ["many", "a/b", "a", "."].iter().for_each(|directory| set_time(&tree.join(directory), times));
    for round in 0..2 {
        ground.run(&["cp", "-a", "-q", "tree/.", ":/tree"]);
        ground.run(&["cp", "-aq", ":/tree/.", ":/within"]);
        ground.run(&["cp", "-aq", ":/tree/.", "back"]);
        ground.run(&["cp", "-aq", ":/within/.", "again"]);
        for copy in ["back", "again"] {
            let copy = ground.path.join(copy);
            assert_eq!(describe(&copy), describe(&tree), "round {round}, {}", copy.display());
            assert_eq!(inodes(&copy), inodes(&tree), "round {round}, {}", copy.display());
        }
        assert!(ground.run(&["ls", "-l", "/within/third"]).contains(" 3 "), "it has three names");
    }
    // Without -a each name is a file of its own, and pipes and the like are left out.
    let complaint = ground.fail(1, &["cp", "-rq", "tree", ":/apart"]);
    assert!(complaint.contains("tree/pipe: not copied: it is a named pipe; -a copies it as such"), "{complaint}");
    assert!(ground.run(&["ls", "-l", "/apart/third"]).contains(" 1 "), "it has one name");
}

/// Goal: where the first name of a file can't be copied, its other names are copies of their own; and a name in the way
/// is replaced.
/// Method: a directory stands where the first name is to be.
#[test]
fn other_names_do_without_the_first() {
    let ground = Ground::new("other-names");
    ground.run(&["up", "--servers", "2"]);
    fs::create_dir(ground.path.join("tree")).unwrap();
    fs::write(ground.path.join("tree/a"), "text").unwrap();
    fs::hard_link(ground.path.join("tree/a"), ground.path.join("tree/b")).unwrap();
    ground.run(&["mkdir", "-p", "/tree/a", "/within/b"]);
    // Which name is found first is the file system's affair: one of them fails, the other does not.
    let complaint = ground.fail(1, &["cp", "-aq", "tree", ":/"]);
    assert!(complaint.contains("1 entry was not copied"), "{complaint}");
    assert_eq!(ground.run(&["cat", "/tree/b"]), "text");
    ground.run(&["rmdir", "/tree/a"]);
    ground.run(&["cp", "-aq", "tree", ":/"]);
    assert!(ground.run(&["ls", "-l", "/tree/b"]).contains(" 2 "), "both names lead to one file");
    // A copy within the cluster onto names of the source itself.
    ground.run(&["rmdir", "/within/b"]);
    ground.run(&["ln", "/tree/a", "/within/a"]);
    ground.run(&["ln", "/tree/a", "/within/b"]);
    assert!(ground.fail(1, &["cp", "-aq", ":/tree/.", ":/within"]).contains("are the same file"));
    assert_eq!(ground.run(&["cat", "/tree/a", "/within/b"]), "texttext");
}

/// Goal: -u copies what is missing or older at the target, -n what is missing, in each direction, files and links
/// alike; what is left is counted and is no failure.
/// Method: one tree with a file and a link, and targets that have an older, an equally old and a newer one, or none.
#[test]
fn what_is_there_stays() {
    let ground = Ground::new("stays");
    ground.run(&["up", "--servers", "2"]);
    let fill = |name: &str, time: &str| {
        let tree = ground.path.join(name);
        fs::create_dir_all(&tree).unwrap();
        for entry in ["missing", "old", "same", "new"] {
            fs::write(tree.join(entry), name).unwrap();
        }
        std::os::unix::fs::symlink(name, tree.join("link")).unwrap();
        for entry in ["missing", "same", "link"] {
            set_time(&tree.join(entry), "2011-01-01");
        }
        set_time(&tree.join("old"), if time == "source" { "2011-01-01" } else { "2010-01-01" });
        set_time(&tree.join("new"), if time == "source" { "2011-01-01" } else { "2012-01-01" });
    };
    fill("from", "source");
    fill("there", "target");
    fs::remove_file(ground.path.join("there/missing")).unwrap();
    set_time(&ground.path.join("there/link"), "2010-01-01");
    ground.run(&["cp", "-aq", "from", ":/from"]);
    let contents = |target: &str| {
        let out = ground.path.join("look");
        let _ = fs::remove_dir_all(&out);
        ground.run(&["cp", "-aq", target, "look"]);
        let read = |entry: &str| fs::read_to_string(out.join(entry)).unwrap();
        let link = fs::read_link(out.join("link")).unwrap();
        [read("missing"), read("old"), read("same"), read("new"), text(&link).to_owned()].join(" ")
    };
    for (flag, expected, kept) in [("-u", "from from there there from", 2), ("-n", "from there there there there", 4)] {
        for (source, direction) in [("from/.", "in"), (":/from/.", "within"), (":/from/.", "out")] {
            ground.run(&["cp", "-aq", "there", &format!(":/{direction}{flag}")]);
            let target = format!(":/{direction}{flag}");
            let copied = match direction {
                "out" => {
                    ground.run(&["cp", "-aq", &target, "local"]);
                    let copied = ground.run(&["cp", "-a", flag, "--json", source, "local"]);
                    ground.run(&["rm", "-r", &target[1..]]);
                    ground.run(&["cp", "-aq", "local", &target]);
                    fs::remove_dir_all(ground.path.join("local")).unwrap();
                    copied
                }
                _ => ground.run(&["cp", "-a", flag, "--json", source, &target]),
            };
            let copied: serde_json::Value = serde_json::from_str(&copied).unwrap();
            assert_eq!((&copied["kept"], &copied["files"]), (&kept.into(), &(5 - kept).into()), "{flag} {direction}");
            assert_eq!(contents(&target), expected, "{flag} {direction}");
        }
    }
    // Without -r too, and nothing is made through a link that leads nowhere.
    ground.run(&["ln", "-s", "/nothing", "/dangling"]);
    ground.run(&["cp", "-nq", "from/old", ":/dangling"]);
    assert!(ground.fail(1, &["cat", "/nothing"]).contains("no such file"));
    let said = ground.try_run(&["cp", "-u", "from/old", ":/in-u/old"]);
    assert!(String::from_utf8(said.stderr).unwrap().contains("copied 0 files, 0 B in "));
}

/// Goal: a directory that is there keeps its mode and times with -n, and gets those of its source without.
#[test]
fn directories_that_are_there() {
    let ground = Ground::new("directories");
    ground.run(&["up", "--servers", "2"]);
    ground.run(&["mkdir", "-m", "701", "/d"]);
    ground.run(&["mkdir", "-m", "750", "/to", "/to/d"]);
    ground.run(&["cp", "-rnq", ":/d", ":/to"]);
    assert!(ground.run(&["ls", "-l", "/to"]).starts_with("drwxr-x---"));
    ground.run(&["cp", "-ruq", ":/d", ":/to"]);
    assert!(ground.run(&["ls", "-l", "/to"]).starts_with("drwx-----x"));
}

/// Goal: a file that fails half-way with -n or -u is not there afterwards, for the next copy would leave it as it is.
/// Method: more than the store can hold.
#[test]
fn no_half_files_are_left() {
    let ground = Ground::new("half");
    fs::write(ground.path.join("large"), vec![7; 100 << 20]).unwrap();
    ground.run(&["up", "--servers", "1"]);
    for flag in ["-n", "-u"] {
        assert!(ground.fail(1, &["cp", flag, "large", ":/large"]).contains("no space"));
        assert_eq!(ground.run(&["ls", "/"]), "", "{flag}");
    }
    // Nor is what was there and could not even be opened.
    ground.run(&["mkdir", "/large"]);
    ground.fail(1, &["cp", "-u", "large", ":/"]);
    assert_eq!(ground.run(&["ls", "/"]), "large\n");
}

/// Goal: -v says what cp(1) says, a line for each entry that is copied, and nothing of what is left.
/// Method: the same copy by both, but for the colon.
#[test]
fn lines_of_entries() {
    let ground = Ground::new("verbose");
    let tree = ground.path.join("tree");
    fs::create_dir_all(tree.join("a b")).unwrap();
    ["a b/one", "two", "it's"].iter().for_each(|name| fs::write(tree.join(name), name).unwrap());
    std::os::unix::fs::symlink("two", tree.join("link")).unwrap();
    ground.run(&["up", "--servers", "2"]);
    let sorted = |text: &str| {
        let mut lines: Vec<&str> = text.lines().collect();
        lines.sort_unstable();
        lines.join("\n")
    };
    let theirs = Command::new("cp").args(["-rv", "tree", "copy"]).current_dir(&ground.path).output().unwrap();
    let theirs = String::from_utf8(theirs.stdout).unwrap();
    // It has other quotes around an apostrophe.
    let theirs = theirs.replace("\"tree/it's\"", "'tree/it'\\''s'").replace("\"copy/it's\"", "'copy/it'\\''s'");
    let ours = ground.run(&["cp", "-rv", "tree", ":/copy"]);
    assert_eq!(sorted(&ours), sorted(&theirs.replace("'copy", "':/copy")));
    let ours = ground.run(&["cp", "-av", ":/copy", "out"]);
    assert_eq!(sorted(&ours), sorted(&theirs.replace("'tree", "':/copy").replace("-> 'copy", "-> 'out")));
    assert_eq!(ground.run(&["cp", "-auv", "tree/.", ":/copy"]), "");
    assert_eq!(ground.run(&["cp", "-nv", "tree/two", ":/three"]), "'tree/two' -> ':/three'\n");
}

/// Goal: options that contradict each other are refused, with words that say which and what to do.
#[test]
fn contradictions() {
    let ground = Ground::new("contradictions");
    let complaint = ground.fail(2, &["cp", "-un", "x", ":/x"]);
    assert!(complaint.contains("-u replaces what is older at the target, -n replaces nothing"), "{complaint}");
    let complaint = ground.fail(2, &["cp", "-v", "--json", "x", ":/x"]);
    assert!(complaint.contains("-v and --json both print"), "{complaint}");
}

/// Goal: who is not root keeps the group of what he copies with -a or -p where he is in it, and else gets files of his
/// own group.
/// Method: as nobody with one group more, by setpriv(1), which only root can.
#[test]
fn groups_of_others_than_root() {
    if reactor::process::user() != 0 {
        eprintln!("not root: what somebody in several groups keeps was not tried");
        return;
    }
    let ground = Ground::new("groups");
    let own = ground.path.join("own");
    fs::create_dir(&own).unwrap();
    for (name, group) in [("mine", NOBODY), ("ours", 20), ("theirs", 21)] {
        fs::write(own.join(name), name).unwrap();
        chown(own.join(name), Some(NOBODY), Some(group)).unwrap();
    }
    chown(&own, Some(NOBODY), Some(NOBODY)).unwrap();
    let run = |words: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--groups=65534,20", "--", common::TABANE]).args(words);
        command.env_clear().env("PATH", "/usr/bin:/bin").env("TABANE_RUN_DIRECTORY", own.join("run"));
        command.env("TABANE_CLUSTER", own.join("run")).env("TABANE_JOURNAL_SIZE", "8M").current_dir(&own);
        let output = command.env("TABANE_STORE", format!("memory:{},size=64M", text(&own.join("stores")))).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    };
    run(&["up", "--servers", "2"]);
    for (flags, kept) in [("-a", 20), ("-p", 20), ("-r", NOBODY)] {
        run(&["cp", flags, "-q", "mine", "ours", "theirs", ":/"]);
        run(&["cp", flags, "-q", ":/mine", ":/ours", ":/theirs", "."]);
        fs::create_dir_all(own.join("out")).unwrap();
        chown(own.join("out"), Some(NOBODY), Some(NOBODY)).unwrap();
        run(&["cp", flags, "-q", ":/mine", ":/ours", ":/theirs", "out"]);
        let groups = ["mine", "ours", "theirs"].map(|name| fs::metadata(own.join("out").join(name)).unwrap().gid());
        assert_eq!(groups, [NOBODY, kept, NOBODY], "{flags}");
        fs::remove_dir_all(own.join("out")).unwrap();
        run(&["rm", "/mine", "/ours", "/theirs"]);
        chown(own.join("ours"), Some(NOBODY), Some(20)).unwrap();
        chown(own.join("theirs"), Some(NOBODY), Some(21)).unwrap();
    }
    run(&["down"]);
}
