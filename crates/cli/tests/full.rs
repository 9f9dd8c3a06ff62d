//! Starts for which a file system has too little room: said with what to do, and nothing half started is left.

mod common;

use common::{Ground, TABANE};
use std::process::{Command, Output};

/// What runs in a mount name space of its own: a small file system, perhaps filled, the start, and a look at what it
/// left. Whoever still used the file system would keep it from being unmounted.
const SCRIPT: &str = r#"
    mount -t tmpfs -o "$1" none small
    [ "$2" = empty ] || dd if=/dev/zero of=small/filler bs=4k 2> /dev/null || true
    shift 2
    code=0
    "$@" || code=$?
    [ "$code" != 0 ] || "$1" down
    find small -mindepth 1 ! -name filler
    umount small
    exit "$code"
"#;

/// Brings a cluster up while `small` is a file system with these limits; the options' variables say what lies there.
fn up(ground: &Ground, limits: &str, fill: &str, variables: &[(&str, String)]) -> Output {
    let usual = ground.command(&[]);
    let mut command = Command::new("unshare");
    command.arg(if reactor::process::user() == 0 { "-m" } else { "-rm" });
    command.args(["sh", "-ec", SCRIPT, "sh", limits, fill, TABANE, "up", "--servers", "2"]).env_clear();
    command.envs(usual.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.envs(variables.iter().map(|(name, value)| (*name, value.as_str())));
    command.current_dir(&ground.path).output().expect("unshare(1) is part of util-linux")
}

/// Whether this machine lets us mount anything; it is to be said when it does not.
#[allow(clippy::disallowed_methods)] // What may be left out is said by the environment, as for mounts.
fn may_mount() -> bool {
    let word = if reactor::process::user() == 0 { "-m" } else { "-rm" };
    let status = Command::new("unshare").args([word, "mount", "-t", "tmpfs", "none", "/mnt"]).status();
    let may = status.is_ok_and(|status| status.success());
    let told = std::env::var("TABANE_CI_NO_FUSE").is_ok_and(|value| value == "1");
    assert!(may || told, "mounting a tmpfs is refused here; TABANE_CI_NO_FUSE=1 says that this is known");
    may
}

/// Goal: wherever room ends, for the files of the run directory or for the stores, `up` fails with words that say where
/// and what to do; no file, directory or process is left, so that the next start, with room, succeeds. Method: file
/// systems with room for 2, 3, ... files until the start succeeds, and one whose blocks are all taken.
#[test]
fn full_directories() {
    if !may_mount() {
        return;
    }
    let ground = Ground::new("full");
    std::fs::create_dir(ground.path.join("small")).unwrap();
    let run = ground.path.join("small/run").display().to_string();
    let stores = format!("memory:{},size=16M", ground.path.join("small/stores").display());
    // On mounts of their own the stores would have room for as many files as they like.
    let in_place = ("TABANE_HUGE_PAGES", "off".to_owned());
    let places: [&[(&str, String)]; 2] =
        [&[("TABANE_RUN_DIRECTORY", run.clone()), ("TABANE_CLUSTER", run)], &[("TABANE_STORE", stores), in_place]];
    for words in places {
        let mut failures = 0;
        for files in 2.. {
            assert!(files < 40, "{words:?}: the cluster does not start with room for {files} files");
            let output = up(&ground, &format!("size=64m,nr_inodes={files}"), "empty", words);
            let (left, complaint) = (output.stdout, String::from_utf8(output.stderr).unwrap());
            if output.status.success() {
                break;
            }
            failures += 1;
            assert_eq!(output.status.code(), Some(1), "{words:?}, {files} files: {complaint}");
            assert!(left.is_empty(), "{words:?}, {files} files: {}", String::from_utf8_lossy(&left));
            assert!(
                complaint.contains("small/") && complaint.to_lowercase().contains("no space left on device"),
                "{words:?}, {files} files: {complaint}"
            );
            assert!(complaint.contains("room"), "{words:?}, {files} files: {complaint}");
            assert!(!ground.run_directory().exists() && !ground.stores().exists(), "{words:?}, {files} files");
        }
        assert!(failures > 4, "{words:?}: room never ended");
    }
    let output = up(&ground, "size=16k", "full", places[0]);
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{complaint}");
    assert!(output.stdout.is_empty() && complaint.contains("make room"), "{complaint}");
    let output = up(&ground, "size=16m", "empty", places[1]);
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{complaint}");
    assert!(output.stdout.is_empty() && complaint.contains("ask for less"), "{complaint}");
    assert!(!ground.run_directory().exists() && !ground.stores().exists());
}

/// As `SCRIPT`: a cluster whose medium is filled, changes until the journal has no room for more, and what is said then
/// and once there is room again.
const FULL_JOURNAL: &str = r#"
    mount -t tmpfs -o size=30m none small
    "$1" up --servers 1 --store "memory:$PWD/small,size=16M" --journal-size 4M > /dev/null
    dd if=/dev/zero of=small/filler bs=4k 2> /dev/null || true
    code=0
    "$1" mkdir $(seq -f ':/d%.0f' 60000) 2> complaints || code=$?
    tail -n 1 complaints >&2
    echo "full: $code"
    rm small/filler
    # The first one that is refused has a checkpoint begin.
    for turn in $(seq 50); do
        ! "$1" mkdir -p :/again 2> /dev/null || { echo "made after room was there"; break; }
        sleep 0.1
    done
    "$1" stat :/d1 :/again > /dev/null && echo "both are there"
    "$1" down > /dev/null
    umount small
"#;

/// Goal: a server whose journal is full because its medium had no room for a checkpoint goes on by itself when there is
/// room again. Method: a small file system that is filled and emptied again while a client makes directories.
#[test]
fn room_comes_back() {
    if !may_mount() {
        return;
    }
    let ground = Ground::new("full-journal");
    std::fs::create_dir(ground.path.join("small")).unwrap();
    let usual = ground.command(&[]);
    let mut command = Command::new("unshare");
    command.arg(if reactor::process::user() == 0 { "-m" } else { "-rm" }).args([
        "sh",
        "-ec",
        FULL_JOURNAL,
        "sh",
        TABANE,
    ]);
    command.env_clear().envs(usual.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.env("TABANE_HUGE_PAGES", "off").env_remove("TABANE_STORE").current_dir(&ground.path);
    let output = command.output().expect("unshare(1) is part of util-linux");
    let (said, complaint) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}{complaint}");
    assert!(said.contains("full: 1") && complaint.contains("the journal is full"), "{said}{complaint}");
    assert!(said.contains("made after room was there\n") && said.ends_with("both are there\n"), "{said}{complaint}");
}
