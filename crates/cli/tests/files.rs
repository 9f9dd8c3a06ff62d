//! Commands on files of a real cluster.

mod common;

use common::{Ground, describe};
use std::io::Write;
use std::process::Stdio;

/// Goal: a tree copied in and out again is the same: contents, modes, times, links and holes; the listings agree.
#[test]
fn trees_in_and_out() {
    let ground = Ground::new("trees");
    let tree = ground.make_tree();
    ground.run(&["up", "--servers", "3", "--chunk-size", "64K"]);
    ground.run(&["cp", "-r", tree.to_str().unwrap(), ":/"]);
    ground.run(&["cp", "-r", "tabane:/tree", "back"]);
    let (original, back) = (describe(&tree), describe(&ground.path.join("back")));
    let differing: Vec<_> = original.lines().zip(back.lines()).filter(|(left, right)| left != right).collect();
    assert!(original == back, "{differing:?}");
    let sums = ground.run(&["checksum", "-r", ":/tree"]);
    assert_eq!(sums, ground.run(&["checksum", "-r", "tree"]));
    assert_eq!(sums, ground.run(&["checksum", "-r", "back"]));
    assert_eq!(sums.lines().count(), 207);

    // Inside the cluster, into a directory that exists, and over what is there.
    ground.run(&["mkdir", "-p", "/x/y"]);
    ground.run(&["cp", "-r", ":/tree", ":/x/y"]);
    ground.run(&["cp", "-r", ":/tree", ":/x/y"]);
    assert_eq!(ground.run(&["checksum", "-r", ":/x/y/tree"]), sums);
    assert!(ground.fail(1, &["cp", "-r", ":/x", ":/x/y/z"]).contains("into itself"));

    ground.run(&["rm", "-r", "/x", ":/tree"]);
    assert_eq!(ground.run(&["find", "/"]), "/\n");
    let status: serde_json::Value = serde_json::from_str(&ground.run(&["status", "--json"])).unwrap();
    let chunks = |server: &serde_json::Value| server["report"]["store"]["chunks"].as_u64().unwrap();
    assert_eq!(status["servers"].as_array().unwrap().iter().map(chunks).sum::<u64>(), 0);
}

/// Goal: `find` finds what find(1) finds.
/// Method: the same conditions on the tree and on its copy.
#[test]
fn find_agrees_with_find() {
    let ground = Ground::new("find");
    let tree = ground.make_tree();
    ground.run(&["up", "--servers", "2"]);
    ground.run(&["cp", "-r", tree.to_str().unwrap(), ":/"]);
    let conditions: &[&[&str]] = &[
        &[],
        &["-name", "*01*"],
        &["-type", "d"],
        &["-type", "l"],
        &["-type", "f", "-size", "+2k"],
        &["-type", "f", "-size", "3901c"],
        &["-type", "f", "-size", "-2"],
        &["-newer", "tree/one", "-type", "f"],
    ];
    for condition in conditions {
        let sorted = |text: String| {
            let mut paths: Vec<String> = text.split('\0').map(|path| path.trim_start_matches('/').to_owned()).collect();
            paths.sort();
            paths
        };
        let mut theirs = std::process::Command::new("find");
        theirs.arg("tree").args(*condition).arg("-print0").current_dir(&ground.path);
        let theirs = theirs.output().unwrap();
        let ours = ground.run(&[&["find", "/tree", "-print0"], *condition].concat());
        assert_eq!(sorted(ours), sorted(String::from_utf8(theirs.stdout).unwrap()), "{condition:?}");
    }
    assert_eq!(ground.run(&["find", "/tree/many", "--type", "f", "--count"]), "200\n");
    assert!(ground.fail(1, &["find", "/nowhere"]).contains("find: /nowhere: no such file or directory"));
}

/// Goal: small commands do what their namesakes do, and complain in the same style.
#[test]
fn small_commands() {
    let ground = Ground::new("small");
    ground.run(&["up", "--servers", "2"]);
    ground.run(&["mkdir", "-m", "750", "/d"]);
    let mut put = ground.command(&["put", "/d/file"]).stdin(Stdio::piped()).spawn().unwrap();
    let bytes: Vec<u8> = (0..10_000_000u32).map(|index| ((index * 7) >> 3) as u8).collect();
    put.stdin.take().unwrap().write_all(&bytes).unwrap();
    assert!(put.wait().unwrap().success());
    assert!(ground.try_run(&["get", "/d/file"]).stdout == bytes, "what was put is not what is got");
    ground.run(&["ln", "-s", "d/file", "/link"]);
    assert!(ground.try_run(&["cat", ":/link"]).stdout == bytes, "the link leads elsewhere");
    let long = ground.run(&["ls", "-l", "/"]);
    assert!(long.lines().any(|line| line.starts_with("lrwx") && line.ends_with("link -> d/file")), "{long}");
    assert!(long.lines().any(|line| line.starts_with("drwxr-x---") && line.ends_with(" d")), "{long}");
    assert_eq!(ground.run(&["ls", "-R", "/"]), "/:\nd\nlink\n\n/d:\nfile\n");
    ground.run(&["ln", ":/d/file", "/hard"]);
    assert!(ground.run(&["ls", "-l", "/hard"]).contains(" 2 "), "the link is counted");
    assert!(ground.fail(1, &["mv", "-n", "/hard", "/link"]).contains("/hard: file exists"));
    ground.run(&["mv", "/hard", "/moved"]);
    ground.run(&["mv", "/moved", "/d"]);
    assert!(ground.try_run(&["cat", ":/d/moved"]).stdout == bytes, "the renamed file is another");
    ground.run(&["rm", "/d/moved"]);
    assert!(ground.fail(1, &["mv", "/d", "/e"]).contains("directories can't be renamed"));
    let facts = ground.run(&["stat", "/d/file"]);
    assert!(facts.contains("size: 10000000 bytes") && facts.contains("10 chunks of 1048576 bytes"), "{facts}");

    assert_eq!(ground.fail(1, &["cat", "/x"]), "tabane: cat: /x: no such file or directory\n");
    assert_eq!(ground.fail(1, &["rmdir", "/d"]), "tabane: rmdir: /d: directory not empty\n");
    assert_eq!(ground.fail(1, &["mkdir", "/d"]), "tabane: mkdir: /d: file exists\n");
    assert!(ground.fail(1, &["rm", "/d"]).contains("-r removes it"));
    assert!(ground.fail(2, &["rm", "-r", "/"]).contains("can't be removed"));
    assert!(ground.fail(2, &["cp", "a", "b"]).contains(":/path"));
    assert!(ground.fail(1, &["cp", "missing", ":/"]).contains("cp: missing: no such file or directory"));
    ground.run(&["rm", "-f", "/nothing"]);
    ground.run(&["rm", "-r", "/d", "/link"]);
    assert_eq!(ground.run(&["ls", "-a"]), "");
}

/// Goal: a reader that goes away is no reason for words.
/// Method: a long listing into a pipe whose reader has gone.
#[test]
fn broken_pipes_are_quiet() {
    let ground = Ground::new("pipes");
    ground.run(&["up", "--servers", "1"]);
    let mut put = ground.command(&["put", "/file"]).stdin(Stdio::piped()).spawn().unwrap();
    put.stdin.take().unwrap().write_all(&vec![7; 4 << 20]).unwrap();
    assert!(put.wait().unwrap().success());
    let mut cat = ground.command(&["cat", "/file"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(cat.stdout.take());
    let output = cat.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr), (Some(1), Vec::new()));
}

/// Goal: an interrupted copy says how far it came and what is incomplete.
/// Method: a file so large that it is surely under way when the signal comes: the signal follows the first byte that arrived.
#[test]
fn interrupted_copies_say_so() {
    let ground = Ground::new("interrupted");
    ground.run(&["up", "--servers", "1"]);
    let large = std::fs::File::create(ground.path.join("large")).unwrap();
    large.set_len(1 << 42).unwrap();
    let copy = ground.start(&["cp", "large", ":/large"]);
    while ground.run(&["ls"]).is_empty() {}
    std::process::Command::new("kill").args(["-INT", &copy.id().to_string()]).status().unwrap();
    let output = copy.wait_with_output().unwrap();
    let words = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(130), "{words}");
    assert!(words.contains("interrupted: 0 of 1 files") && words.contains("incomplete:\n  :/large"), "{words}");
}
