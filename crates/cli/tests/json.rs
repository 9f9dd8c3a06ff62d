//! What commands print for programs, and how far they are on a terminal. Real servers.

#![allow(clippy::unwrap_used)] // What fails here fails the test.

mod common;

use common::{Ground, TABANE, read_until, send_signal};
use serde_json::Value;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::process::{Command, Stdio};

const SIGINT: i32 = 2;
const SIGSTOP: i32 = 19;
const SIGCONT: i32 = 18;

/// A name that is no UTF-8, and its base64.
const ODD: &[u8] = b"/\xff\"\n\\";
const ODD_BASE64: &str = "L/8iClw=";

/// The fields that docs/json.md says a command has.
fn documented(command: &str) -> BTreeSet<String> {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/json.md")).unwrap();
    let head = format!("tabane {command}\n");
    let chapter = page.split("\n## ").find(|part| part.starts_with(&head)).unwrap_or_else(|| panic!("no {command}"));
    let cells = chapter.lines().filter_map(|line| line.strip_prefix("| `")?.split(" |").next());
    cells.flat_map(|cell| cell.trim_matches('`').split("`, `").map(str::to_owned).collect::<Vec<String>>()).collect()
}

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}"))).collect()
}

/// Asserts that the objects have the documented fields, all of them over the whole of the objects, and no others.
fn check_fields(command: &str, objects: &[Value], mut expected: BTreeSet<String>) {
    let seen: BTreeSet<String> =
        objects.iter().flat_map(|object| object.as_object().unwrap().keys().cloned()).collect();
    expected.extend(documented(command));
    assert_eq!(seen, expected, "tabane {command}");
}

fn find<'a>(objects: &'a [Value], path: &str) -> &'a Value {
    objects.iter().find(|object| object["path"] == path).unwrap_or_else(|| panic!("{path}: {objects:#?}"))
}

/// A cluster with a file, an odd name with an odd attribute, a link, and a directory with a file in it.
fn cluster(name: &str) -> Ground {
    let ground = Ground::new(name);
    ground.run(&["up", "--servers", "2"]);
    for path in [b"/plain".as_slice(), ODD] {
        let mut put = ground.command(&["put"]);
        let put = put.arg(OsStr::from_bytes(path)).stdin(std::fs::File::open("/etc/passwd").unwrap());
        assert!(put.status().unwrap().success());
    }
    ground.run(&["mkdir", "/tree"]);
    ground.run(&["cp", ":/plain", ":/tree/copy"]);
    let mut link = ground.command(&["ln", "-s"]);
    assert!(link.arg(OsStr::from_bytes(b"\xfe")).arg("/link").status().unwrap().success());
    ground.run(&["setfattr", "-n", "user.text", "-v", "a\"b", "/plain"]);
    ground.run(&["setfattr", "-n", "user.bytes", "-v", "0xff", "/plain"]);
    ground
}

/// Goal: what is printed of entries is as documented, for names of any bytes too, and is what the cluster holds.
#[test]
fn entries() {
    let ground = cluster("json-entries");
    let size = std::fs::metadata("/etc/passwd").unwrap().len();
    let listed = lines(&ground.run(&["ls", "--json", "-R"]));
    assert_eq!(listed.len(), 5);
    check_fields("ls", &listed, BTreeSet::new());
    let plain = find(&listed, "/plain");
    assert_eq!((&plain["type"], &plain["bytes"], &plain["links"]), (&"file".into(), &size.into(), &1.into()));
    assert_eq!((plain["mode"].as_str().unwrap().len(), plain["target"].is_null()), (4, true));
    let odd = listed.iter().find(|object| object["path_base64"] == ODD_BASE64).unwrap();
    assert_eq!(odd["path"], "/\u{fffd}\"\n\\");
    assert_eq!(find(&listed, "/link")["target_base64"], "/g==");
    assert_eq!(find(&listed, "/tree/copy")["bytes"], size);

    let mut command = ground.command(&["stat", "--json", "/plain", "/link"]);
    let output = command.arg(OsStr::from_bytes(ODD)).output().unwrap();
    let told = lines(&String::from_utf8(output.stdout).unwrap());
    // Nobody made a device here: it takes a mount.
    let mut seen = told.clone();
    seen[0]["device"] = Value::Null;
    check_fields("stat", &seen, documented("ls"));
    assert_eq!((&told[0]["id"], told[0]["layout"]["chunks"].as_u64()), (&plain["id"], Some(1)));
    assert!(told[0]["home"]["server"].is_u64() && told[1]["layout"].is_null());

    let found = lines(&ground.run(&["find", "/", "-json", "-mindepth", "1"]));
    check_fields("find", &found, BTreeSet::new());
    assert_eq!(found.len(), 5);
    assert_eq!(find(&found, "/tree")["type"], "directory");

    let used = lines(&ground.run(&["du", "--json", "-b", "-a", "/"]));
    check_fields("du", &used, BTreeSet::new());
    assert_eq!(find(&used, "/plain")["bytes"], size);
    assert_eq!(find(&used, "/")["bytes"], 3 * size + 1);

    let sums = lines(&ground.run(&["checksum", "--json", "-r", ":/"]));
    check_fields("checksum", &sums, BTreeSet::new());
    let plain = ground.run(&["checksum", ":/plain"]);
    assert_eq!(sums.len(), 3);
    assert!(sums.iter().all(|sum| plain.starts_with(sum["sha256"].as_str().unwrap())), "{sums:?}");

    let attributes: Value = serde_json::from_str(&ground.run(&["getfattr", "-d", "--json", "/plain"])).unwrap();
    let mut seen = attributes.as_array().unwrap().clone();
    let values: BTreeSet<String> = seen[0]["attributes"].as_array().unwrap().iter().map(Value::to_string).collect();
    let wanted = [r#"{"base64":"/w==","name":"user.bytes"}"#, r#"{"name":"user.text","text":"a\"b"}"#];
    assert_eq!(values, wanted.map(str::to_owned).into());
    let mut command = ground.command(&["getfattr", "--json"]);
    let output = command.arg(OsStr::from_bytes(ODD)).output().unwrap();
    seen.extend(serde_json::from_slice::<Vec<Value>>(&output.stdout).unwrap());
    check_fields("getfattr", &seen, BTreeSet::new());
}

/// Goal: summaries of what was done, and of what could not be, agree with the exit status.
#[test]
fn summaries() {
    let ground = cluster("json-summaries");
    let document = |code: i32, words: &[&str]| -> Value {
        let output = ground.try_run(words);
        assert_eq!(output.status.code(), Some(code), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let space = document(0, &["df", "--json"]);
    let servers = space["servers"].as_array().unwrap();
    let sum: u64 = servers.iter().map(|server| server["bytes_used"].as_u64().unwrap()).sum();
    assert_eq!((servers.len(), Some(sum)), (2, space["all"]["bytes_used"].as_u64()));

    let copied = document(0, &["cp", "-r", "--json", ":/tree", "out"]);
    check_fields("cp", std::slice::from_ref(&copied), BTreeSet::new());
    let size = std::fs::metadata("/etc/passwd").unwrap().len();
    assert_eq!((copied["files"].as_u64(), copied["bytes"].as_u64()), (Some(1), Some(size)));
    assert_eq!((&copied["interrupted"], &copied["failures"]), (&false.into(), &0.into()));
    assert_eq!(document(1, &["cp", "--json", ":/tree", "out2"])["failures"], 1);

    let checked = document(0, &["check", "--json"]);
    check_fields("check", std::slice::from_ref(&checked), BTreeSet::new());

    let changed = document(1, &["chmod", "-R", "--json", "u+rwx", "/tree", "/nothing"]);
    check_fields("chmod", std::slice::from_ref(&changed), BTreeSet::new());
    assert_eq!((&changed["changed"], &changed["failures"]), (&2.into(), &1.into()));
    assert_eq!(document(0, &["chgrp", "--json", "0", "/plain"])["changed"], 1);

    let mut put = ground.command(&["put", "--json"]);
    let put = put.arg(OsStr::from_bytes(ODD)).stdin(std::fs::File::open("/etc/passwd").unwrap()).output().unwrap();
    let written: Value = serde_json::from_slice(&put.stdout).unwrap();
    check_fields("put", std::slice::from_ref(&written), BTreeSet::new());
    assert_eq!((written["bytes"].as_u64(), &written["path_base64"]), (Some(size), &ODD_BASE64.into()));
    assert_eq!(written["interrupted"], false);

    let removed = document(1, &["rm", "-r", "--json", "/tree", "/nothing"]);
    check_fields("rm", std::slice::from_ref(&removed), BTreeSet::new());
    assert_eq!((&removed["removed"], &removed["failures"]), (&2.into(), &1.into()));
    assert_eq!(document(0, &["rm", "-r", "--json", "/*"])["removed"], 3);

    ground.kill(1);
    let space = document(1, &["df", "--json", "--timeout-ms", "300"]);
    let mut seen = space["servers"].as_array().unwrap().clone();
    assert!(seen[1]["reason"].as_str().unwrap().contains("server 1"), "{space}");
    assert_eq!(space["all"]["bytes_used"], seen[0]["bytes_used"]);
    // Of a cluster over a backing directory.
    seen[0]["bytes_clean"] = Value::Null;
    seen[0]["reason"] = Value::Null;
    check_fields("df", &seen, BTreeSet::new());
}

/// Goal: every command with --json is in docs/json.md.
#[test]
fn all_are_documented() {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/json.md")).unwrap();
    let help = Command::new(TABANE).args(["help", "--markdown"]).output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let mut count = 0;
    for chapter in help.split("\n## tabane ").skip(1) {
        let (name, text) = chapter.split_once('\n').unwrap();
        if text.contains("-json\n") {
            count += 1;
            assert!(page.contains(&format!("tabane {name}")) || page.contains(&format!("`{name} --json`")), "{name}");
        }
    }
    assert!(count > 14, "{count}");
}

/// A command line of the shell on a pseudo terminal, which script(1) makes.
fn on_a_terminal(ground: &Ground, line: &str) -> Command {
    let mut command = Command::new("script");
    command.args(["-qec", &format!("stty cols 100; {line}"), "/dev/null"]).env_clear();
    command.env("PATH", "/usr/bin:/bin").env("TERM", "xterm-256color").env("SHELL", "/bin/sh");
    command.env("TABANE_CLUSTER", ground.run_directory()).current_dir(&ground.path);
    command
}

/// Goal: whatever takes longer than a second says how far it is on a terminal, and leaves no trace of that in the end.
/// Method: a pseudo terminal made by script(1), and a server that is stopped until the progress is seen.
#[test]
fn progress_on_a_terminal() {
    let ground = cluster("json-progress");
    let cases = [
        ("find / -count", "directories searched, "),
        ("du -s /", "entries counted, "),
        ("check", "records checked, "),
        ("checksum -r :/", "files "),
        ("rm -r /tree", "removed, "),
        ("cp -r :/ out", "files "),
    ];
    for (line, wanted) in cases {
        send_signal(ground.pid(1), SIGSTOP);
        let mut command = on_a_terminal(&ground, &format!("exec {TABANE} {line}"));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().unwrap();
        let mut seen = String::new();
        read_until(&mut child, &mut seen, wanted);
        send_signal(ground.pid(1), SIGCONT);
        let mut rest = Vec::new();
        child.stdout.as_mut().unwrap().read_to_end(&mut rest).unwrap();
        drop(child.stdin.take());
        seen.push_str(&String::from_utf8_lossy(&rest));
        assert!(child.wait().unwrap().success(), "{line}: {seen}");
        let end = seen.rsplit(wanted).next().unwrap();
        assert!(end.contains("\x1b[K") || end.contains("\x1b[2K"), "{line}: {seen:?}");
    }
}

/// Goal: bytes through pipes that take longer than a second say how far they are, and leave no trace of that in the
/// end. Method: a pseudo terminal for standard error, and a pipe whose other end waits for two seconds.
#[test]
fn progress_of_pipes() {
    let ground = Ground::new("json-pipes");
    ground.run(&["up", "--servers", "2"]);
    std::fs::write(ground.path.join("large"), vec![b'x'; 3 << 20]).unwrap();
    let cases = [
        (format!("{{ sleep 2; cat large; }} | {TABANE} put /large"), "0 B written, 0 B/s"),
        (format!("{TABANE} get /large | {{ sleep 2; cat; }} > got"), "of 3.0 MiB copied, "),
        (format!("{TABANE} cat /large /large | {{ sleep 2; cat; }} > twice"), "of 6.0 MiB copied, "),
    ];
    for (line, wanted) in cases {
        let output = on_a_terminal(&ground, &line).stdin(Stdio::null()).output().unwrap();
        let seen = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && seen.contains(wanted), "{line}: {seen:?}");
        assert!(seen.rsplit(wanted).next().unwrap().contains("\x1b[K"), "{line}: {seen:?}");
    }
    let bytes = std::fs::read(ground.path.join("large")).unwrap();
    assert!(std::fs::read(ground.path.join("got")).unwrap() == bytes);
    assert!(std::fs::read(ground.path.join("twice")).unwrap() == [bytes.clone(), bytes].concat());
}

/// Goal: whoever waits for servers to stop for longer than a second sees how many there are left, and no trace of that
/// in the end. Method: a server that is stopped, and let go on by the same command line two seconds later.
#[test]
fn waiting_for_servers() {
    let ground = Ground::new("json-waiting");
    ground.run(&["up", "--servers", "2"]);
    for (command, wanted) in
        [("restart 1", "waiting for 1 server to stop, "), ("down", "waiting for 1 server to stop, ")]
    {
        let stopped = ground.pid(1);
        send_signal(stopped, SIGSTOP);
        let line = format!("(sleep 2; kill -CONT {stopped}) & {TABANE} {command}");
        let output = on_a_terminal(&ground, &line).stdin(Stdio::null()).output().unwrap();
        let seen = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && seen.contains(wanted), "{line}: {seen:?}");
        assert!(seen.rsplit(wanted).next().unwrap().contains("\x1b[K"), "{line}: {seen:?}");
    }
}

/// Goal: an interrupted `put` leaves no first part behind that could pass for the whole; where it must not remove
/// anything, it says so. Method: the signal follows once `put` itself says that two pieces are written, while it waits
/// for the rest of the third; then once more through a symbolic link.
#[test]
fn interrupted_puts_leave_nothing() {
    let ground = Ground::new("json-interrupted");
    ground.run(&["up", "--servers", "2"]);
    ground.run(&["ln", "-s", "there", "/link"]);
    for (path, there) in [("/file", false), ("/link", true)] {
        let mut put = ground.command(&["put", "--json", "--progress", path]);
        put.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut put = put.spawn().unwrap();
        put.stdin.as_mut().unwrap().write_all(&vec![7; 20 << 20]).unwrap();
        let mut lines = BufReader::new(put.stderr.take().unwrap()).lines().map(|line| line.unwrap());
        assert!(lines.any(|line| line.starts_with("16.0 MiB written, ")), "{path}: it has ended");
        send_signal(put.id(), SIGINT);
        let words: String = lines.collect();
        let output = put.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(130), "{words}");
        let told: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((&told["interrupted"], told["bytes"].as_u64()), (&true.into(), Some(16 << 20)));
        let wanted = if there { "/link is incomplete: it holds the first 16.0 MiB" } else { "incomplete, is removed" };
        assert!(words.contains(wanted), "{words}");
        assert_eq!(ground.try_run(&["du", "-b", path]).stdout.is_empty(), !there, "{path}");
    }
    assert_eq!(ground.run(&["ls"]), "link\nthere\n");
}
