//! Whole runs of `tabane-bench` on real clusters.

#![allow(clippy::unwrap_used)] // Tests, including their helpers.

mod common;

use common::{STORE, tabane};
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

fn run(program: &Path, cluster: Option<&Path>, arguments: &[&str]) -> String {
    let mut command = Command::new(program);
    command.args(arguments).env_remove("TABANE_CLUSTER");
    if let Some(cluster) = cluster {
        command.env("TABANE_CLUSTER", cluster);
    }
    let Output { status, stdout, stderr } = command.output().unwrap();
    assert!(status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&stderr));
    String::from_utf8(stdout).unwrap()
}

/// Goal: every bench runs verified on a cluster of its own with odd chunks, and the cluster is gone afterwards.
#[test]
fn own_cluster_all_benches() {
    let program = tabane();
    let bench = Path::new(env!("CARGO_BIN_EXE_tabane-bench"));
    let sizes = ["--procs=3", "--servers=2", "--chunk-size=47008", "--files=110", "--block-size=1MiB", "--verify"];
    let more = ["--store", STORE, "--tabane", program.to_str().unwrap(), "--depth=5", "all", "random", "ping"];
    let output = run(bench, None, &[&sizes[..], &more[..]].concat());
    assert_eq!(output.lines().count(), 17, "{output}");
    for line in output.lines() {
        let told: Value = serde_json::from_str(line).unwrap();
        let calls = match told["bench"].as_str().unwrap() {
            "ior-easy" => 1,
            "ior-hard" => 22,
            "ior-rnd4k" | "random" => 256,
            // The root, two trees, and a directory for each process.
            "find" => 6,
            _ => 110,
        };
        assert_eq!(told["calls"], 3 * calls, "{line}");
        let times = ["p50_us", "p99_us", "p999_us", "most_us"].map(|key| told[key].as_f64().unwrap());
        assert!(times.is_sorted() && times[3] > 0.0, "{line}");
        let ending = format!("\"verified\":{}}}", !line.contains("\"bench\":\"ping\""));
        assert!(line.contains("\"servers\":2,\"transport\":\"shm\"") && line.ends_with(&ending), "{line}");
    }
}

/// Goal: a cluster that was there before is used, and is left as it was.
#[test]
fn given_cluster_is_left_as_it_was() {
    let program = tabane();
    let directory = std::env::temp_dir().join(format!("tabane-bench-given-{}", std::process::id()));
    let place = directory.to_str().unwrap();
    run(&program, None, &["up", "--servers", "1", "--store", STORE, "--run-directory", place]);
    let bench = Path::new(env!("CARGO_BIN_EXE_tabane-bench"));
    let output = run(bench, Some(&directory), &["--files=20", "mdtest-hard"]);
    let left = run(&program, Some(&directory), &["ls", "-a", "/"]);
    run(&program, None, &["down", "--run-directory", place]);
    assert_eq!(output.lines().count(), 4, "{output}");
    assert!(!left.contains("tabane-bench"), "{left}");
    assert!(!directory.exists());
}

/// Goal: many names at once are timed one by one.
#[test]
fn names_are_timed() {
    let program = tabane();
    let bench = Path::new(env!("CARGO_BIN_EXE_tabane-bench"));
    let more = ["--store", STORE, "--tabane", program.to_str().unwrap(), "--files=1000", "names"];
    let output = run(bench, None, &more);
    let calls: Vec<Value> =
        output.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["calls"].clone()).collect();
    assert_eq!(calls, [2_000, 200].map(Value::from));
}

/// Goal: cold runs have a new cluster each, which is gone before the next one. Method: a script that notes what it is
/// called for stands before the program.
#[test]
fn cold_runs_start_anew() {
    let directory = std::env::temp_dir().join(format!("tabane-bench-cold-{}", std::process::id()));
    std::fs::create_dir(&directory).unwrap();
    let (script, calls) = (directory.join("tabane"), directory.join("calls"));
    let text = format!("#!/bin/sh\necho \"$1\" >>{}\nexec {} \"$@\"\n", calls.display(), tabane().display());
    // Written by another process, as in own_cluster.rs: a program that is open for writing cannot be started.
    let mut writer = Command::new("sh");
    writer.args(["-c", "printf %s \"$1\" >\"$0\" && chmod 755 \"$0\""]).arg(&script).arg(text);
    assert!(writer.status().unwrap().success());
    let bench = Path::new(env!("CARGO_BIN_EXE_tabane-bench"));
    let sizes = ["--cold", "--repeat=2", "--files=20", "--block-size=1MiB", "--store", STORE];
    let more = ["--tabane", script.to_str().unwrap(), "mdtest-easy", "ior-rnd4k"];
    let output = run(bench, None, &[&sizes[..], &more[..]].concat());
    let calls = std::fs::read_to_string(&calls).unwrap();
    std::fs::remove_dir_all(&directory).unwrap();
    assert_eq!(output.lines().count(), 10, "{output}");
    assert!(output.lines().all(|line| line.contains("\"servers\":2,")), "{output}");
    assert_eq!(calls.lines().collect::<Vec<_>>(), ["up", "down"].repeat(4));
}

/// Goal: a store that is too small is told before anything is written, with a size that is enough.
#[test]
fn too_small_a_store_is_told_first() {
    let program = tabane();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tabane-bench"));
    command.args(["--files=100000", "--store", STORE, "--tabane", program.to_str().unwrap(), "mdtest-hard"]);
    let output = command.env_remove("TABANE_CLUSTER").output().unwrap();
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{words}");
    assert!(words.contains("its data want 781 MiB") && words.contains("--store memory:size=433M"), "{words}");
    assert!(output.stdout.is_empty());
}
