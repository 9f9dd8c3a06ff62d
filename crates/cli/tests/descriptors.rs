//! `tabane mount /dev/fd/N`, as container runtimes use it: they open /dev/fuse and mount it, and the program gets the
//! descriptor. Only root can play such a runtime; the tests need /dev/fuse, unless TABANE_CI_NO_FUSE=1.

#![allow(clippy::unwrap_used)] // What fails here fails the test.

mod common;

use common::{Ground, TABANE, fuse_is_here, mount_point, text};
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn may_play() -> bool {
    let is_root = reactor::process::user() == 0;
    if !is_root {
        eprintln!("not root: nobody here mounts for others, so it was not tried");
    }
    is_root && fuse_is_here()
}

/// Mounts as a runtime does, by mount(2) without its helper programs, and goes on with `script` in the same shell.
fn runtime(ground: &Ground, directory: &Path, script: &str) -> Command {
    let options = "fd=7,rootmode=40000,user_id=0,group_id=0";
    let mount = format!("exec 7<>/dev/fuse; mount -i -t fuse -o {options} of-a-runtime '{}'", text(directory));
    let mut command = ground.command(&[]);
    let variables: Vec<_> =
        command.get_envs().filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned()))).collect();
    command = Command::new("sh");
    command.args(["-ec", &format!("{mount}; {script}")]).env_clear().envs(variables).current_dir(&ground.path);
    command.env("TABANE", TABANE).env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").stdin(Stdio::null());
    command
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned()
}

/// Goal: a mount that a runtime has made is served in the foreground, says nothing by itself, is known to `status`, and
/// ends when the runtime takes it out.
#[test]
fn served_in_the_foreground() {
    if !may_play() {
        return;
    }
    let ground = Ground::new("descriptor");
    let directory = mount_point(&ground, "mnt");
    ground.run(&["up", "--servers", "2"]);
    let mut serving = runtime(&ground, &directory, "exec \"$TABANE\" mount /dev/fd/7 -f");
    let serving = serving.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    while !ground.run(&["status"]).contains(&format!("/proc/{}/fd/7", serving.id())) {}
    fs::write(directory.join("file"), "of a container").unwrap();
    assert_eq!(ground.run(&["cat", "/file"]), "of a container");
    ground.run(&["mv", "/file", "/moved"]);
    assert_eq!(fs::read_to_string(directory.join("moved")).unwrap(), "of a container");
    let status = ground.run(&["status"]);
    assert!(status.contains("threads, no caching"), "{status}");
    reactor::process::unmount(&directory, false).unwrap();
    let output = serving.wait_with_output().unwrap();
    assert!(output.status.success() && said(&output).is_empty(), "{}", said(&output));
    assert!(!ground.run(&["status"]).contains("/proc/"));
}

/// Goal: in the background the command returns when it serves, and `down` ends what serves; the mount, which is the
/// runtime's, stays in the tree and is dead.
#[test]
fn served_in_the_background() {
    if !may_play() {
        return;
    }
    let ground = Ground::new("descriptor-background");
    let directory = mount_point(&ground, "mnt");
    ground.run(&["up", "--servers", "1"]);
    ground.run(&["put", "/file"]);
    let script = format!("\"$TABANE\" mount /dev/fd/7; ls '{}'", text(&directory));
    let output = runtime(&ground, &directory, &script).output().unwrap();
    assert!(output.status.success() && said(&output) == "file\n", "{}", said(&output));
    ground.run(&["down"]);
    // A look that meets the last of its threads on its way out is cut off (ECONNABORTED), once.
    let look = || fs::metadata(&directory).unwrap_err();
    let error = Some(look()).filter(|error| error.raw_os_error() != Some(103)).unwrap_or_else(look);
    assert_eq!(error.raw_os_error(), Some(107), "it is served still, or gone: {error}");
    reactor::process::unmount(&directory, false).unwrap();
}

/// Goal: what is no mounted descriptor of /dev/fuse is refused with words that say so, as are options that are the
/// runtime's.
#[test]
fn refused_descriptors() {
    let ground = Ground::new("descriptor-refused");
    ground.run(&["up", "--servers", "1"]);
    for words in [&["mount", "/dev/fd/77"][..], &["mount", "-f", "/dev/fd/77"], &["mount", "-f", "/dev/fd/0"]] {
        let complaint = ground.fail(1, words);
        assert!(complaint.contains("it has to be a descriptor of /dev/fuse that is mounted"), "{complaint}");
    }
    assert!(ground.fail(1, &["mount", "/dev/fd/x"]).contains("/dev/fd/x"));
    let complaint = ground.fail(2, &["mount", "--allow-other", "/dev/fd/7"]);
    assert!(complaint.contains("--allow-other: /dev/fd/7 is mounted already"), "{complaint}");
}
