//! What other users of the machine put in the way, played by root and another user: run this as root, or set
//! TABANE_CI_NO_ROOT=1 to leave it out. The mounts need /dev/fuse, unless TABANE_CI_NO_FUSE=1.

#![allow(clippy::unwrap_used)] // What fails here fails the test.

mod common;

use common::{Ground, fuse_is_here, mount_point, text};
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

const STRANGER: u32 = 65_534;

/// Whether this process may play another user.
#[allow(clippy::disallowed_methods)] // The one switch of these tests.
fn we_are_root() -> bool {
    let is_root = reactor::process::user() == 0;
    let excused = std::env::var("TABANE_CI_NO_ROOT").is_ok_and(|value| value == "1");
    assert!(
        is_root || excused,
        "this test plays two users: run it as root, or set TABANE_CI_NO_ROOT=1 to leave it out"
    );
    is_root
}

fn as_stranger(ground: &Ground, words: &[&str]) -> Output {
    ground.command(words).uid(STRANGER).gid(STRANGER).stdin(Stdio::null()).output().unwrap()
}

/// A directory as /tmp is, with a cluster of the stranger at the name that is ours there by default.
fn squat(ground: &Ground) {
    fs::set_permissions(&ground.path, fs::Permissions::from_mode(0o1777)).unwrap();
    let run_directory = ground.run_directory();
    let up = as_stranger(ground, &["up", "--servers", "1"]);
    assert!(up.status.success(), "{}", String::from_utf8_lossy(&up.stderr));
    fs::rename(&run_directory, ground.path.join("tabane-0")).unwrap();
}

/// A command that finds the cluster in the default place.
fn by_default(ground: &Ground, words: &[&str]) -> Command {
    let mut command = ground.command(words);
    command.env_remove("TABANE_CLUSTER").env_remove("TABANE_RUN_DIRECTORY").env("XDG_RUNTIME_DIR", &ground.path);
    command
}

/// Goal: a cluster that another user has put in the place of ours is refused by every command, before anything of it is
/// believed, with words that say whose it is; also where TABANE_CLUSTER or --run-directory names it, or its cluster
/// file.
/// Method: the stranger's real cluster at the default place of root's; its servers' log and mounts show that nobody
/// came.
#[test]
fn foreign_run_directory() {
    if !we_are_root() {
        return;
    }
    let ground = Ground::new("stranger");
    let directory = mount_point(&ground, "mnt");
    squat(&ground);
    let squatted = ground.path.join("tabane-0");
    let file = ground.path.join("file");
    fs::write(&file, b"ours").unwrap();
    let all: [&[&str]; 28] = [
        &["ls", "/"],
        &["cp", text(&file), ":/stolen"],
        &["put", "/stolen"],
        &["get", "/stolen"],
        &["cat", "/stolen"],
        &["mkdir", "/stolen"],
        &["rm", "/stolen"],
        &["find", "/"],
        &["stat", "/"],
        &["df"],
        &["check"],
        &["status"],
        &["logs"],
        &["top", "--once"],
        &["mount", text(&directory)],
        &["mount", "--foreground", text(&directory)],
        &["up", "--servers", "1"],
        &["up", "--hosts", "localhost"],
        &["down"],
        &["restart", "0"],
        &["sync"],
        &["flush"],
        &["chmod", "700", "/"],
        &["mv", "/one", "/two"],
        &["checksum", "-r", ":/"],
        &["stage", "/"],
        &["evict", "/"],
        &["flock", "/file", "true"],
    ];
    let refused = |what: &str, output: Output| {
        let words = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code().is_some_and(|code| code != 0), "{what}: {words}");
        assert!(words.contains("belongs to user 65534"), "{what}: {words}");
    };
    for words in all {
        let run = |command: &mut Command| command.stdin(Stdio::null()).output().unwrap();
        if words[1..] != ["--hosts", "localhost"] {
            refused(&format!("{words:?}"), run(&mut by_default(&ground, words)));
        }
        let mut named = ground.command(words);
        named.env("TABANE_CLUSTER", &squatted).env("TABANE_RUN_DIRECTORY", &squatted);
        refused(&format!("{words:?} by its name"), run(&mut named));
    }
    let mut by_file = ground.command(&["ls", "/"]);
    refused("the file", by_file.env("TABANE_CLUSTER", squatted.join("cluster")).output().unwrap());
    assert!(!fs::read_to_string("/proc/self/mounts").unwrap().contains(text(&directory)));

    // Its owner has it as before, and nobody was there.
    let theirs = |words: &[&str]| {
        let mut command = ground.command(words);
        command.env("TABANE_CLUSTER", &squatted).env("TABANE_RUN_DIRECTORY", &squatted);
        command.uid(STRANGER).gid(STRANGER).stdin(Stdio::null()).output().unwrap()
    };
    assert_eq!(String::from_utf8(theirs(&["ls", "/"]).stdout).unwrap(), "");
    let down = theirs(&["down"]);
    assert!(down.status.success(), "{}", String::from_utf8_lossy(&down.stderr));
}

/// Goal: what others may write to on the way is refused with the words that mend it; a link of the stranger's in a
/// place such as /tmp is not followed.
/// Method: our own cluster; a directory above it opened to all, and a link to it by the stranger.
#[test]
fn open_directories() {
    if !we_are_root() {
        return;
    }
    let ground = Ground::new("stranger-way");
    ground.run(&["up", "--servers", "1"]);
    let set_mode = |mode| fs::set_permissions(&ground.path, fs::Permissions::from_mode(mode)).unwrap();
    for (mode, group) in [(0o777, 0), (0o775, STRANGER)] {
        set_mode(mode);
        chown(&ground.path, None, Some(group)).unwrap();
        for words in [&["ls", "/"][..], &["status"], &["down"], &["up"]] {
            let complaint = ground.fail(1, words);
            assert!(complaint.contains(&format!("chmod go-w {}", text(&ground.path))), "{words:?}: {complaint}");
        }
    }
    set_mode(0o1777);
    ground.run(&["ls", "/"]);
    let link = ground.path.join("link");
    std::os::unix::fs::symlink("run", &link).unwrap();
    ground.run(&["ls", "--cluster", text(&link), "/"]);
    std::os::unix::fs::lchown(&link, Some(STRANGER), None).unwrap();
    let complaint = ground.fail(1, &["ls", "--cluster", text(&link), "/"]);
    assert!(complaint.contains("link belongs to user 65534"), "{complaint}");
    set_mode(0o755);
    ground.run(&["down"]);
}

fn output_of_stranger(program: &Path, words: &[&str]) -> String {
    let output = Command::new(program).args(words).uid(STRANGER).gid(STRANGER).output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// Goal: a set-user file and a device node on a mount give nobody anything, unless root asked for them.
/// Method: id(1), set-user root, run by the stranger; a copy of /dev/null. On an ordinary mount, and on one with --suid
/// --dev.
#[test]
fn set_user_files_and_devices() {
    if !we_are_root() || !fuse_is_here() {
        return;
    }
    let ground = Ground::new("stranger-suid");
    fs::set_permissions(&ground.path, fs::Permissions::from_mode(0o755)).unwrap();
    let directory = mount_point(&ground, "mnt");
    ground.run(&["up", "--servers", "1", "--mount", text(&directory)]);
    let (program, device) = (directory.join("id"), directory.join("null"));
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o755)).unwrap();
    let script =
        format!("cp /usr/bin/id '{0}'; chmod 4755 '{0}'; mknod -m 666 '{1}' c 1 3", text(&program), text(&device));
    assert!(Command::new("sh").args(["-ec", &script]).status().unwrap().success());
    assert_eq!(output_of_stranger(&program, &["-u"]), "65534\n");
    assert!(output_of_stranger(Path::new("/bin/cat"), &[text(&device)]).contains("Permission denied"));
    ground.unmount(&directory);
    ground.run(&["mount", "--suid", "--dev", text(&directory)]);
    assert_eq!(output_of_stranger(&program, &["-u"]), "0\n");
    assert_eq!(output_of_stranger(Path::new("/bin/cat"), &[text(&device)]), "");
    ground.run(&["down"]);
    chown(&directory, Some(STRANGER), Some(STRANGER)).unwrap();
    let refused = as_stranger(&ground, &["mount", "--suid", text(&directory)]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("only root may mount so"));
}

/// What a command of another user, who has a copy of the cluster file, says: perhaps in a user namespace of his own.
fn of_copy(copy: &Path, program: &Path, user: u32, in_namespace: bool) -> Output {
    let mut command = if in_namespace { Command::new("unshare") } else { Command::new(program) };
    if in_namespace {
        command.arg("-Ur").arg(program);
    }
    command.args(["cat", ":/file", "--timeout-ms", "5000", "--cluster"]).arg(copy);
    command.env("TABANE_CONFIG", "/dev/null").env_remove("TABANE_CLUSTER").env_remove("TABANE_RUN_DIRECTORY");
    command.uid(user).gid(user).stdin(Stdio::null()).output().unwrap()
}

/// Goal: what docs/security.md says of root, of copies of a cluster file, and of namespaces: a copy lets another user
/// in over TCP, and through shared memory where the servers are root's; a user namespace changes nothing for the same
/// user, and takes shared memory from another one; in another network namespace there is nobody.
/// Method: servers with --transport shm take nobody over TCP, so who reads from them came through shared memory.
#[test]
fn copies_and_namespaces() {
    const THIRD: u32 = 65_533;
    if !we_are_root() {
        return;
    }
    for (is_roots, transport) in [(true, "shm"), (true, "auto"), (false, "shm"), (false, "auto")] {
        let ground = Ground::new(&format!("copies-{is_roots}-{transport}"));
        fs::set_permissions(&ground.path, fs::Permissions::from_mode(0o1777)).unwrap();
        let program = ground.path.join("tabane-copy");
        fs::copy(env!("CARGO_BIN_EXE_tabane"), &program).unwrap();
        let owner = if is_roots { 0 } else { STRANGER };
        let as_owner = |words: &[&str]| {
            let mut command = ground.command(words);
            let output = command.uid(owner).gid(owner).stdin(Stdio::null()).output().unwrap();
            assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        };
        as_owner(&["up", "--servers", "1", "--transport", transport]);
        as_owner(&["put", ":/file"]);
        let directory = ground.path.join("third");
        let copy = directory.join("cluster");
        fs::create_dir(&directory).unwrap();
        fs::copy(ground.run_directory().join("cluster"), &copy).unwrap();
        for path in [&directory, &copy] {
            chown(path, Some(THIRD), Some(THIRD)).unwrap();
        }
        let reaches = |user, in_namespace| {
            let file = if user == THIRD { &copy } else { &ground.run_directory().join("cluster") };
            let output = of_copy(file, &program, user, in_namespace);
            let words = String::from_utf8_lossy(&output.stderr);
            let is_told = words.contains("server takes clients of its own machine only");
            assert!(output.status.success() || is_told, "{words}");
            output.status.success()
        };
        let takes_tcp = transport == "auto";
        assert!(reaches(owner, false) && reaches(owner, true), "the same user, {is_roots} {transport}");
        assert_eq!(reaches(THIRD, false), is_roots || takes_tcp, "a copy, {is_roots} {transport}");
        assert_eq!(reaches(THIRD, true), takes_tcp, "a copy in a user namespace, {is_roots} {transport}");
        if is_roots {
            let file = ground.run_directory().join("cluster");
            let words = format!("ip link set lo up; {} ls --timeout-ms 2000 --cluster {}", text(&program), text(&file));
            let output = Command::new("unshare").args(["-n", "sh", "-c", &words]).output().unwrap();
            let words = String::from_utf8_lossy(&output.stderr);
            assert!(!output.status.success() && words.contains("no connection"), "in another network: {words}");
        }
        as_owner(&["down"]);
    }
}
