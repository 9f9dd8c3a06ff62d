//! Commands on files of a real cluster.

mod common;

use common::{Ground, describe};
use reactor::process::ProcessId;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::{Command, Stdio};

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

/// Goal: what a copy of a sparse file costs depends on its data and not on its size, into the cluster, within and out.
#[test]
fn sparse_files_are_copied_by_their_data() {
    let ground = Ground::new("sparse");
    ground.run(&["up", "--servers", "2", "--store", "memory,size=64M"]);
    let path = ground.path.join("sparse");
    let file = std::fs::File::create(&path).unwrap();
    let size = 3 << 40;
    file.set_len(size).unwrap();
    let pieces: [(u64, &[u8]); 4] =
        [(0, b"begins"), ((5 << 20) - 3, b"across"), (1 << 40, b"far"), ((2 << 40) + 7, b"on")];
    for (offset, bytes) in pieces {
        file.write_all_at(bytes, offset).unwrap();
    }
    ground.run(&["cp", "sparse", ":/a"]);
    ground.run(&["cp", ":/a", ":/b"]);
    ground.run(&["cp", ":/b", "back"]);
    let back = std::fs::File::open(ground.path.join("back")).unwrap();
    let metadata = back.metadata().unwrap();
    assert_eq!(metadata.len(), size);
    assert!(metadata.blocks() * 512 < 64 << 20, "{} blocks", metadata.blocks());
    for (offset, bytes) in pieces {
        let mut read = vec![1; bytes.len() + 2];
        back.read_exact_at(&mut read, offset).unwrap();
        assert_eq!(read, [bytes, &[0, 0]].concat(), "at {offset}");
    }
}

/// Goal: a file is never copied onto itself, nor a directory into itself, by whatever name.
#[test]
fn nothing_is_copied_onto_itself() {
    let ground = Ground::new("itself");
    ground.run(&["up", "--servers", "2"]);
    ground.run(&["mkdir", "-p", "/a/b"]);
    std::fs::write(ground.path.join("letter"), "hello").unwrap();
    ground.run(&["cp", "letter", ":/f"]);
    ground.run(&["ln", "-s", "f", "/lf"]);
    ground.run(&["ln", "-s", "/", "/root"]);
    for [source, target] in
        [[":/f", ":/f"], [":/f", ":/a/../f"], [":/f", ":/lf"], [":/lf", ":/f"], [":/f", ":/root/"], [":/root/f", ":/"]]
    {
        let complaint = ground.fail(1, &["cp", source, target]);
        assert!(complaint.contains("are the same file"), "cp {source} {target}: {complaint}");
        assert_eq!(ground.run(&["cat", "/f"]), "hello", "after cp {source} {target}");
    }
    ground.run(&["ln", "-s", "/a", "/la"]);
    for target in [":/a/c", ":/la/c", ":/la/b/c/d", ":/root/a/b", ":/a/b/../c"] {
        let complaint = ground.fail(1, &["cp", "-r", ":/a", target]);
        assert!(complaint.contains("into itself"), "cp -r :/a {target}: {complaint}");
    }
    ground.run(&["cp", "-r", ":/a", ":/other"]);
    assert_eq!(ground.run(&["find", "/other"]).lines().count(), 2);
}

/// Goal: files and links are told apart by what they are also when trees and links are copied: no file loses its bytes.
/// Method: links to links, links copied as links, and trees whose copy leads back to them.
#[test]
fn links_do_not_hide_what_is_the_same() {
    let ground = Ground::new("same");
    std::fs::write(ground.path.join("f"), "precious").unwrap();
    ground.run(&["up", "--servers", "2"]);
    ground.run(&["mkdir", "-p", "/a", "/b/a"]);
    ground.run(&["cp", "f", ":/f"]);
    ground.run(&["cp", "f", ":/a/g"]);
    for (leads_to, link) in
        [("f", "/lf"), ("/", "/root"), ("lf", "/llf"), ("/a/g", "/b/a/g"), ("/new", "/dangling"), ("loop", "/loop")]
    {
        ground.run(&["ln", "-s", leads_to, link]);
    }
    let refuses = |options: &[&str], source: &str, target: &str, shown: &str| {
        let words = ground.fail(1, &[&["cp"], options, &[source, target]].concat());
        assert!(words.contains(&format!("'{source}' and '{shown}' are the same file")), "{source} {target}: {words}");
        assert_eq!(ground.run(&["cat", "/f"]), "precious", "{source} {target}");
        assert!(ground.run(&["ls", "-l", "/"]).contains(" lf -> f\n"), "{source} {target}");
    };
    refuses(&[], ":/f", ":/llf", ":/llf");
    refuses(&[], ":/lf", ":/llf", ":/llf");
    refuses(&[], ":/f", ":/root/", ":/root/f");
    // With -r a link is copied as such: not over itself, nor over the file that it leads to.
    for (source, target) in
        [(":/lf", ":/f"), (":/lf", ":/lf"), (":/lf", ":/a/../lf"), (":/f", ":/lf"), (":/llf", ":/f")]
    {
        refuses(&["-r"], source, target, target);
    }
    let words = ground.fail(1, &["cp", "-r", ":/a", ":/b"]);
    assert!(words.contains("':/a/g' and ':/b/a/g' are the same file"), "{words}");
    assert_eq!(ground.run(&["cat", "/a/g"]), "precious");

    // What only looks alike is copied: other files, links over links to the same file, links that lead nowhere.
    ground.run(&["cp", ":/f", ":/a/f"]);
    ground.run(&["cp", ":/a/f", ":/a/../f"]);
    ground.run(&["cp", "-r", ":/lf", ":/llf"]);
    ground.run(&["cp", "-r", ":/loop", ":/b/loop"]);
    ground.run(&["cp", "-r", ":/loop", ":/b/loop"]);
    assert!(ground.run(&["ls", "-l", "/"]).contains(" llf -> f\n"));
    ground.run(&["cp", ":/f", ":/dangling"]);
    assert_eq!(ground.run(&["cat", "/new", "/a/f", "/f"]), "precious".repeat(3));
}

/// Goal: a tree is never copied into itself, however the target is spelled: nothing is made.
#[test]
fn trees_are_not_copied_into_themselves() {
    let ground = Ground::new("into-itself");
    ground.run(&["up", "--servers", "2"]);
    ground.run(&["mkdir", "-p", "/a/d/e", "/ab", "/other/a"]);
    for (leads_to, link) in [("/a", "/la"), ("a/d", "/deep"), ("/a/d/e", "/other/a/d")] {
        ground.run(&["ln", "-s", leads_to, link]);
    }
    let all = || {
        let mut paths: Vec<String> = ground.run(&["find", "/"]).lines().map(str::to_owned).collect();
        paths.sort();
        paths
    };
    let before = all();
    let cases = [
        (":/a", ":/a", ":/a/a"),
        (":/a", ":/a/c", ":/a/c"),
        (":/a", ":/la", ":/la/a"),
        (":/a", ":/la/c", ":/la/c"),
        (":/a", ":/deep", ":/deep/a"),
        (":/a", ":/deep/c", ":/deep/c"),
        (":/a", ":/deep/../c", ":/deep/../c"),
        (":/a", ":/ab/../a/d", ":/ab/../a/d/a"),
        (":/la/", ":/a/c", ":/a/c"),
        (":/", ":/ab", ":/ab"),
    ];
    for (source, target, shown) in cases {
        let words = ground.fail(1, &["cp", "-r", source, target]);
        let expected = format!("cannot copy a directory, '{source}', into itself, '{shown}'");
        assert!(words.contains(&expected), "{source} {target}: {words}");
        assert_eq!(all(), before, "{source} {target}");
    }
    // A link on the way leads back into the source.
    let words = ground.fail(1, &["cp", "-r", ":/a", ":/other"]);
    assert!(words.contains("cannot copy a directory, ':/a/d', into itself, ':/other/a/d'"), "{words}");
    assert_eq!(all(), before);

    // A name that begins alike, a link that leads away, and a parent of the source are other directories.
    ground.run(&["cp", "-r", ":/a", ":/ab"]);
    ground.run(&["cp", "-r", ":/a", ":/deep/../../c"]);
    ground.run(&["cp", "-r", ":/a/d", ":/"]);
    assert_eq!(ground.run(&["find", "/ab", "/c", "/d", "--count"]), "9\n");
}

/// Goal: a large file that fails is complained about once, however many of its pieces fail.
/// Method: more than the store can hold, with many pieces under way at once.
#[test]
fn failures_are_counted_by_files() {
    let ground = Ground::new("full");
    std::fs::write(ground.path.join("large"), vec![7; 100 << 20]).unwrap();
    ground.run(&["up", "--servers", "1"]);
    let words = ground.fail(1, &["cp", "--jobs", "16", "large", ":/large"]);
    assert_eq!(words.matches("no space").count(), 1, "{words}");
    assert!(words.contains("1 entry was not copied"), "{words}");
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
        &["-maxdepth", "1"],
        &["-mindepth", "2", "-iname", "F*"],
        &["-path", "*/many/*1*"],
        &["-empty", "-type", "f"],
        &["-perm", "-600", "-mtime", "-1"],
        &["-type", "d", "-links", "2"],
    ];
    for condition in conditions {
        let sorted = |text: String| {
            let mut paths: Vec<String> = text.split('\0').map(|path| path.trim_start_matches('/').to_owned()).collect();
            paths.sort();
            paths
        };
        let mut theirs = Command::new("find");
        theirs.arg("tree").args(*condition).arg("-print0").current_dir(&ground.path);
        let theirs = theirs.output().unwrap();
        let ours = ground.run(&[&["find", "/tree", "-print0"], *condition].concat());
        assert_eq!(sorted(ours), sorted(String::from_utf8(theirs.stdout).unwrap()), "{condition:?}");
    }
    assert_eq!(ground.run(&["find", "/tree/many", "--type", "f", "--count"]), "200\n");
    assert_eq!(ground.run(&["find", "/tree/many", "-type", "f", "-name", "*", "-mindepth", "1", "-count"]), "200\n");
    assert!(ground.fail(2, &["find", "/", "-perm", "u+w"]).contains("octal"));
    assert!(ground.fail(2, &["find", "/", "-nme", "x"]).contains("-name"));
    let mut theirs = Command::new("find");
    theirs.args(["tree", "!", "-type", "d", "-printf", "%s\n"]).current_dir(&ground.path);
    let sizes = String::from_utf8(theirs.output().unwrap().stdout).unwrap();
    let total: u64 = sizes.lines().map(|size| size.parse::<u64>().unwrap()).sum();
    assert_eq!(ground.run(&["du", "-sb", "/tree"]), format!("{total}\t/tree\n"));
    assert!(ground.fail(1, &["find", "/nowhere"]).contains("find: /nowhere: no such file or directory"));
    // The same file on both sides, told apart by the colon.
    let newer = |file: &str| ground.run(&["find", "/tree", "-newer", file, "-type", "f", "-count"]);
    assert_eq!(newer("tree/one"), newer(":/tree/one"));
    ground.run(&["put", "/tree/one"]);
    assert_ne!(newer("tree/one"), newer("tabane:/tree/one"));
    let complaint = ground.fail(1, &["find", "-newer", "/tree/one"]);
    let expected = "-newer /tree/one: no such file or directory: asked for on this machine; a file of the cluster is \
                    written with a colon, as :/tree/one";
    assert!(complaint.contains(expected), "{complaint}");
    let complaint = ground.fail(1, &["find", "-newer", ":/nothing"]);
    let expected = "-newer :/nothing: no such file or directory: asked for in the cluster; a file of this machine is \
                    written without a colon";
    assert!(complaint.contains(expected), "{complaint}");
}

/// Goal: df with paths shows the cluster when one of them is there, names those that are not, and fails then.
#[test]
fn space_of_paths() {
    let ground = Ground::new("space");
    ground.run(&["up", "--servers", "2"]);
    ground.run(&["mkdir", "/d"]);
    ground.run(&["ln", "-s", "nothing", "/dangling"]);
    let all = ground.run(&["df"]);
    assert_eq!(all.lines().count(), 4, "{all}");
    assert_eq!(ground.run(&["df", "/d"]), all);
    assert_eq!(ground.run(&["df", ":/", "/[d]"]), all);
    for path in ["/nothing", "/dangling"] {
        let output = ground.try_run(&["df", path]);
        assert_eq!((output.status.code(), output.stdout), (Some(1), Vec::new()));
        assert_eq!(
            String::from_utf8(output.stderr).unwrap(),
            format!("tabane: df: {path}: no such file or directory\n")
        );
    }
    let output = ground.try_run(&["df", "/nothing", "/d"]);
    assert_eq!((output.status.code(), output.stdout), (Some(1), all.into_bytes()));
    let space: serde_json::Value = serde_json::from_str(&ground.run(&["df", "--json", "/d"])).unwrap();
    assert_eq!(space["servers"].as_array().unwrap().len(), 2);
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
    assert!(ground.fail(1, &["mv", "-n", "/hard", "/link"]).contains("/link: file exists"));
    ground.run(&["mv", "/hard", "/moved"]);
    ground.run(&["mv", "/moved", "/d"]);
    assert!(ground.try_run(&["cat", ":/d/moved"]).stdout == bytes, "the renamed file is another");
    ground.run(&["rm", "/d/moved"]);
    ground.run(&["mv", "/d", "/e"]);
    assert!(ground.try_run(&["cat", ":/e/file"]).stdout == bytes, "the directory lost its file");
    assert!(ground.fail(1, &["mv", "/e", "/e/f"]).contains("can't be moved into itself"));
    ground.run(&["mv", "/e", "/d"]);
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

/// Goal: `du` tells what files take, on all servers together, and their sizes when asked for them.
#[test]
fn du_tells_what_files_take() {
    let ground = Ground::new("du");
    ground.run(&["up", "--servers", "2"]);
    let du = |words: &[&str]| -> u64 {
        let line = ground.run(&[&["du"], words].concat());
        line.split('\t').next().unwrap().parse().unwrap_or_else(|_| panic!("{line}"))
    };
    ground.run(&["mkdir", "/d"]);
    ground.run(&["truncate", "-s", "20M", "/d/hole"]);
    assert_eq!((du(&["/d/hole"]), du(&["--apparent-size", "/d/hole"])), (0, 20 << 10));
    ground.run(&["fallocate", "-l", "5M", "/d/room"]);
    assert_eq!(du(&["/d/room"]), 5 << 10);
    let mut put = ground.command(&["put", "/d/file"]).stdin(Stdio::piped()).spawn().unwrap();
    put.stdin.take().unwrap().write_all(&[1; 10_000]).unwrap();
    assert!(put.wait().unwrap().success());
    let file = du(&["/d/file"]);
    assert!((12..=1024).contains(&file), "{file}");
    ground.run(&["ln", ":/d/file", "/d/again"]);
    assert_eq!(du(&["-s", "/"]), (5 << 10) + file, "a file with two names counts once, a directory nothing");
    assert_eq!(du(&["-b", "/d/file"]), 10_000);
    assert_eq!(du(&["-sb", "/"]), (20 << 20) + (5 << 20) + 10_000);
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

/// Makes a file of 40 GiB that takes seconds to be read and next to no room: zeros that were written now and then.
fn make_long(path: &Path) {
    let file = std::fs::File::create(path).expect("a file");
    file.set_len(40 << 30).expect("a size");
    (0..10_000).for_each(|piece| file.write_all_at(&[0], piece << 22).expect("room"));
}

/// Goal: an interrupted copy says how far it came, and leaves no part of a file behind. Method: a file so large that it
/// is surely under way when the signal comes: the signal follows the first byte that arrived.
#[test]
fn interrupted_copies_say_so() {
    let ground = Ground::new("interrupted");
    ground.run(&["up", "--servers", "1"]);
    make_long(&ground.path.join("large"));
    let copy = ground.start(&["cp", "large", ":/large"]);
    while ground.run(&["ls"]).is_empty() {}
    assert!(ProcessId::of(copy.id()).unwrap().signal(libc::SIGINT).unwrap());
    let output = copy.wait_with_output().unwrap();
    let words = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(130), "{words}");
    assert!(words.contains("interrupted: 0 of 1 files"), "{words}");
    assert_eq!(ground.run(&["ls"]), "");
}

/// Goal: directories that an interrupted copy made have the modes of their sources, in both directions; one that was
/// there before keeps its own. Method: a tree whose deepest directory holds so much that it is under way when the
/// signal comes: inwards one large file, outwards one file with 40 names, each of which is copied by itself.
#[test]
fn interrupted_copies_leave_directories_usable() {
    use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
    let ground = Ground::new("interrupted-tree");
    ground.run(&["up", "--servers", "2", "--store", "memory,size=1G"]);
    let modes =
        [("tree", 0o755), ("tree/there", 0o711), ("tree/there/group", 0o750), ("tree/there/group/deep", 0o1777)];
    for (name, mode) in modes {
        std::fs::DirBuilder::new().create(ground.path.join(name)).unwrap();
        std::fs::set_permissions(ground.path.join(name), std::fs::Permissions::from_mode(mode)).unwrap();
    }
    let deep = "tree/there/group/deep";
    make_long(&ground.path.join(deep).join("large"));
    let interrupt = |words: &[&str], has_begun: &dyn Fn() -> bool| {
        let copy = ground.start(words);
        while !has_begun() {}
        assert!(ProcessId::of(copy.id()).unwrap().signal(libc::SIGINT).unwrap());
        let output = copy.wait_with_output().unwrap();
        let complaint = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(130), "{complaint}");
        assert!(complaint.contains("interrupted: ") && !complaint.contains("700"), "{complaint}");
    };
    // Inwards, into a directory that is there.
    ground.run(&["mkdir", ":/in"]);
    ground.run(&["mkdir", "-m", "0701", ":/in/tree"]);
    let inside = format!(":/in/{deep}");
    interrupt(&["cp", "-r", "tree", ":/in"], &|| ground.try_run(&["ls", &inside]).stdout == b"large\n");
    assert!(ground.run(&["stat", ":/in/tree"]).contains("mode: 0701"));
    for (name, mode) in &modes[1..] {
        let stat = ground.run(&["stat", &format!(":/in/{name}")]);
        assert!(stat.contains(&format!("mode: {mode:04o}")), "{name}: {stat}");
    }
    assert_eq!(ground.run(&["ls", &inside]), "");

    // Outwards.
    std::fs::write(ground.path.join("bytes"), vec![b'x'; 1 << 28]).unwrap();
    let large = format!("{inside}/large");
    ground.run(&["cp", "bytes", &large]);
    for name in 1..40 {
        ground.run(&["ln", &large, &format!("{large}{name}")]);
    }
    std::fs::DirBuilder::new().mode(0o700).create(ground.path.join("out")).unwrap();
    let outside = ground.path.join("out").join(deep);
    let has_begun = || std::fs::read_dir(&outside).is_ok_and(|mut names| names.next().is_some());
    interrupt(&["cp", "-r", ":/in/tree", "out"], &has_begun);
    for (name, mode) in [&[("tree", 0o701)][..], &modes[1..]].concat() {
        let found = std::fs::metadata(ground.path.join("out").join(name)).unwrap().permissions().mode() & 0o7777;
        assert_eq!(found, mode, "{name}");
    }
    ground.run(&["down"]);
}

/// Goal: truncate and fallocate do what their namesakes do, and a copy within the cluster keeps bytes, holes and size.
#[test]
fn sizes_and_ranges() {
    let ground = Ground::new("ranges");
    ground.run(&["up", "--servers", "3", "--chunk-size", "64K"]);
    let size = |path: &str| ground.run(&["get", path]).len();
    ground.run(&["truncate", "-s", "5K", "/f"]);
    for (change, expected) in [("+1K", 6144), ("-2K", 4096), ("<9K", 4096), (">9K", 9216), ("/4K", 8192), ("%3K", 9216)]
    {
        ground.run(&["truncate", "-s", change, "/f"]);
        assert_eq!(size("/f"), expected, "after {change}");
    }
    ground.run(&["truncate", "-c", "-s", "1", "/none"]);
    assert!(ground.fail(1, &["get", "/none"]).contains("no such file"));
    assert!(ground.fail(2, &["truncate", "-s", "much", "/f"]).contains("+, -, <"));
    assert!(ground.fail(2, &["truncate", "/f"]).contains("--size is missing"));

    let text: String = (0..20 << 20).map(|byte| char::from(b'a' + (byte / 4096 % 26) as u8)).collect();
    std::fs::write(ground.path.join("large"), &text).unwrap();
    ground.run(&["cp", "large", ":/large"]);
    ground.run(&["fallocate", "-p", "-o", "1000", "-l", "9M", "/large"]);
    ground.run(&["fallocate", "-z", "-o", "19M", "-l", "2M", "/large"]);
    ground.run(&["fallocate", "-n", "-l", "30M", "/large"]);
    let mut expected = text.into_bytes();
    expected[1000..1000 + (9 << 20)].fill(0);
    expected[19 << 20..].fill(0);
    expected.resize(21 << 20, 0);
    ground.run(&["cp", ":/large", ":/copy"]);
    for path in ["/large", "/copy"] {
        assert!(ground.run(&["get", path]).into_bytes() == expected, "{path}");
    }
    ground.run(&["fallocate", "-l", "1M", "/new"]);
    assert_eq!(size("/new"), 1 << 20);
    assert!(ground.fail(1, &["fallocate", "-l", "1T", "/new"]).contains("no space"));
    assert!(ground.fail(2, &["fallocate", "-p", "-z", "-l", "1", "/new"]).contains("exclude"));
    ground.run(&["down"]);
}

/// Goal: `chmod -R` changes what chmod(1) changes, wherever servers are, leaves what links lead to alone, and names
/// what it can't find. Method: the same changes, one after the other, to a tree here and to a copy inside, which is
/// then copied out.
#[test]
fn modes_of_trees() {
    let ground = Ground::new("modes");
    // Names and modes, in order.
    let modes = |tree: &Path| -> Vec<String> {
        let output = Command::new("find").args([".", "-printf", "%p %y %m\n"]).current_dir(tree).output().unwrap();
        let mut lines: Vec<String> = String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect();
        lines.sort_unstable();
        lines
    };
    let tree = ground.path.join("tree");
    for directory in ["", "a", "a/b", "c"] {
        let path = tree.join(directory);
        fs::create_dir_all(&path).unwrap();
        (0..20).for_each(|file| fs::write(path.join(format!("f{file}")), "x").unwrap());
        std::os::unix::fs::symlink("/etc/hostname", path.join("link")).unwrap();
    }
    ground.run(&["up", "--servers", "3"]);
    ground.run(&["cp", "-q", "-r", tree.to_str().unwrap(), ":/"]);
    for (index, mode) in ["0700", "go+rX", "a-x,u+X", "u=rwX,g=rX,o="].into_iter().enumerate() {
        let here = Command::new("chmod").args(["-R", mode]).arg(&tree).output().unwrap();
        assert!(here.status.success(), "{here:?}");
        ground.run(&["chmod", "-R", mode, "/tree"]);
        let copy = ground.path.join(format!("copy{index}"));
        ground.run(&["cp", "-q", "-r", ":/tree", copy.to_str().unwrap()]);
        assert_eq!(modes(&copy), modes(&tree), "{mode}");
    }
    let complaint = ground.fail(1, &["chmod", "600", "/tree/f1", "/tree/none", "/tree/f2"]);
    assert_eq!(complaint, "tabane: chmod: /tree/none: no such file or directory\n");
    for file in ["f1", "f2"] {
        let shown = ground.run(&["ls", "-l", &format!("/tree/{file}")]);
        assert!(shown.starts_with("-rw-------"), "{shown}");
    }
    ground.run(&["down"]);
}

/// Goal: `mv` and `ln` say which of two paths is at fault: the one that is missing, or that is in the way.
#[test]
fn who_is_to_blame() {
    let ground = Ground::new("blame");
    ground.run(&["up", "--servers", "2"]);
    ground.run(&["mkdir", "-p", "/directory/below"]);
    ground.run(&["put", "/file"]);
    ground.run(&["put", "/other"]);
    let says = |words: &[&str], path: &str| {
        let complaint = ground.fail(1, words);
        assert!(complaint.starts_with(&format!("tabane: {}: {path}: ", words[0])), "{words:?}: {complaint}");
    };
    says(&["mv", "/file", "/missing/new"], "/missing/new");
    says(&["mv", "/missing", "/new"], "/missing");
    says(&["mv", "/missing", "/lacking/new"], "/missing");
    says(&["mv", "/file", "/other/new"], "/other/new");
    says(&["mv", "-n", "/file", "/other"], "/other");
    says(&["ln", "/file", "/missing/new"], "/missing/new");
    says(&["ln", "/missing", "/new"], "/missing");
    says(&["ln", "/file", "/other"], "/other");
    says(&["ln", "-s", "/file", "/missing/new"], "/missing/new");
}
