//! Goal: each scheduler writes what was sent to where its packets say, whatever the device and the size; and what can't
//! work is told in words.
//! Method: the program itself, with short runs on a small file, whose contents it reads back; and as root a loop
//! device.

#![allow(clippy::unwrap_used)] // a test

use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A file of its own for each test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        Scratch(std::env::temp_dir().join(format!("overlap-test-{name}-{}", std::process::id())))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn overlap(path: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_overlap"));
    command.arg("--path").arg(path).args(["--seconds", "0.05", "--size", "8MiB", "--depth", "8"]).args(arguments);
    command.output().unwrap()
}

fn words(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn lines(output: &Output) -> Vec<serde_json::Value> {
    assert!(output.status.success(), "{}", words(output));
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn contents_arrive_by_every_scheduler() {
    let scratch = Scratch::new("contents");
    let output = overlap(&scratch.0, &["--scheduler", "all", "--packet-sizes", "4KiB,64KiB", "--verify"]);
    let lines = lines(&output);
    let (mut schedulers, mut sizes) = (std::collections::BTreeSet::new(), std::collections::BTreeSet::new());
    for line in &lines {
        schedulers.insert(line["scheduler"].as_str().unwrap().to_owned());
        sizes.insert(line["size"].as_u64().unwrap());
        assert!(line["packets"].as_u64().unwrap() > 0 && line["mib_per_s"].as_f64().unwrap() > 0.0, "{line}");
        let is_bounded = line["scheduler"] != "naive";
        assert!(!is_bounded || line["held_most"].as_u64().unwrap() <= 16, "{line}");
        let writes = line["mode"] != "network";
        assert_eq!(line["p99_us"].is_number(), writes, "{line}");
    }
    for own in ["ours", "ours-epoll", "naive", "loop", "pool", "aio"] {
        assert!(schedulers.contains(own), "{own}");
    }
    assert_eq!(lines.len(), schedulers.len() * sizes.len() * 3);
    assert!(!scratch.0.exists(), "a file that was made for this goes with it");
}

#[test]
fn pictures_are_drawn() {
    let (scratch, picture) = (Scratch::new("device"), Scratch::new("picture.svg"));
    let plot = picture.0.to_str().unwrap();
    lines(&overlap(&scratch.0, &["--packet-sizes", "4KiB,16KiB", "--plot", plot]));
    let text = std::fs::read_to_string(&picture.0).unwrap();
    for part in ["network only", "disk only", "network and disk", "packets per second on a core", "ours", "loop"] {
        assert!(text.contains(part), "{part}");
    }
}

#[test]
fn a_naive_runtime_gives_up_when_its_memory_is_full() {
    let scratch = Scratch::new("naive");
    let arguments = [
        "--scheduler",
        "naive",
        "--packet-sizes",
        "64KiB",
        "--modes",
        "both",
        "--memory-max",
        "1MiB",
        "--seconds",
        "5",
    ];
    let output = Command::new(env!("CARGO_BIN_EXE_overlap"))
        .arg("--path")
        .arg(&scratch.0)
        .args(["--size", "8MiB", "--depth", "8"])
        .args(arguments)
        .output()
        .unwrap();
    let lines = lines(&output);
    // Whether the network is ever quiet is the machine's to say; the bound holds in any case.
    assert!(lines[0]["buffers_mib"].as_f64().unwrap() < 9.0, "{}", lines[0]);
    assert!(lines[0]["memory_full"].is_boolean());
}

#[test]
fn bad_input_is_told_in_words() {
    let small = Scratch::new("small");
    std::fs::write(&small.0, vec![0; 1 << 20]).unwrap();
    for (arguments, part) in [
        (&["--scheduler", "none"][..], "no scheduler none: there are ours"),
        (&[], "--overwrite gives up its contents"),
        (&["--overwrite", "--packet-sizes", "256KiB"], "too small"),
        (&["--overwrite", "--packet-sizes", "1000"], "multiples of"),
        (&["--packet-sizes", "4QiB"], "not a size"),
        (&["--repeat", "0"], "0 is not in 1..=100"),
        (&["--scheduler", "loop,nought"], "no scheduler nought"),
        (&["--plot", "/nowhere/picture.svg"], "/nowhere/picture.svg"),
    ] {
        let output = overlap(&small.0, arguments);
        assert!(!output.status.success() && words(&output).contains(part), "{arguments:?}: {}", words(&output));
    }
    assert_eq!(std::fs::read(&small.0).unwrap(), vec![0; 1 << 20], "nothing was written");
    for (path, part) in
        [("/dev/no-such-device", "there is no such device"), ("/nowhere/at/all", "/nowhere/at/all"), ("/tmp", "/tmp")]
    {
        let output = overlap(Path::new(path), &["--overwrite"]);
        assert!(!output.status.success() && words(&output).contains(part), "{path}: {}", words(&output));
    }
}

/// A loop device over a file, taken away again.
struct LoopDevice(PathBuf);

impl LoopDevice {
    fn over(file: &Path) -> LoopDevice {
        let output = Command::new("losetup").args(["--find", "--show"]).arg(file).output().unwrap();
        assert!(output.status.success(), "{}", words(&output));
        LoopDevice(String::from_utf8(output.stdout).unwrap().trim().into())
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.0).status();
    }
}

#[test]
fn a_block_device_is_refused_while_others_use_it() {
    // As root alone, who can make loop devices; the variable says that this is known.
    // SAFETY: no arguments.
    let is_root = unsafe { libc::geteuid() } == 0;
    #[expect(clippy::disallowed_methods, reason = "a test's own setting")]
    if std::env::var_os("TABANE_CI_NO_ROOT").is_some() {
        return;
    }
    assert!(is_root, "run as root, or with TABANE_CI_NO_ROOT=1");
    let backing = Scratch::new("backing");
    std::fs::write(&backing.0, vec![0; 8 << 20]).unwrap();
    let device = LoopDevice::over(&backing.0);
    let arguments = ["--overwrite", "--scheduler", "all", "--packet-sizes", "4KiB,64KiB", "--verify"];
    assert!(!lines(&overlap(&device.0, &arguments)).is_empty());
    let flags = libc::O_EXCL | libc::O_DIRECT;
    let held = std::fs::File::options().read(true).custom_flags(flags).open(&device.0).unwrap();
    let output = overlap(&device.0, &arguments);
    assert!(!output.status.success(), "a device in use is refused");
    assert!(words(&output).contains(": is mounted, or in use by others"), "{}", words(&output));
    drop(held);
}
