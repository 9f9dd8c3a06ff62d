//! A recorder that goes with a cluster: `tabane up --record`, and `tabane run --record`. Real servers, and the real
//! tabane-report, which has to be built beside the program (`cargo build -p tabane-report`).

#![allow(clippy::unwrap_used)] // What fails here fails the test.

mod common;

use common::{Ground, TABANE};
use reactor::process::{ProcessId, SIGKILL};
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

const SIGSTOP: i32 = 19;

/// What tabane-report prints.
fn report(ground: &Ground, words: &[&str]) -> String {
    let program = Path::new(TABANE).with_file_name("tabane-report");
    assert!(program.is_file(), "{} is missing: cargo build -p tabane-report", program.display());
    let output = Command::new(program).args(words).current_dir(&ground.path).output().unwrap();
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn recorder(ground: &Ground) -> ProcessId {
    let text = std::fs::read_to_string(ground.run_directory().join("recorder")).unwrap();
    ProcessId::of(text.split(' ').next().unwrap().parse().unwrap()).expect("it runs")
}

/// As a rank of job 42 that is called like the file.
fn put(ground: &Ground, path: &str, size: usize) {
    let mut command = ground.command(&["put", path]);
    let rank = path.trim_start_matches('/');
    let mut child = command.env("TABANE_JOB", "42").env("PMI_RANK", rank).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(&vec![7; size]).unwrap();
    assert!(child.wait().unwrap().success());
}

/// Goal: what servers count is in the place, to the byte, from `up` to `down`, whatever became of servers meanwhile;
/// one place holds all lives of a cluster. Method: bytes after a kill and a restart, and after `down --keep` and `up`.
#[test]
fn recorded_from_up_to_down() {
    let ground = Ground::new("recorder");
    let mut command = ground.command(&["up", "--servers", "2", "--record", "job.db"]);
    let output = command.env("TABANE_JOB", "42").stderr(Stdio::inherit()).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let place = ground.path.join("job.db");
    assert!(output.status.success() && said.contains(&format!("recording in {}", place.display())), "{said}");
    ground.kill(1);
    ground.run(&["restart", "1"]);
    put(&ground, "/a", 100_000);
    put(&ground, "/<c>", 1_000);
    let own = recorder(&ground);
    let said = ground.run(&["down", "--keep"]);
    assert!(said.contains(&format!("recorded in {}", place.display())) && !own.is_alive(), "{said}");
    let whole = report(&ground, &["job", "42", "job.db"]);
    // Its ranks, and where the files are to which most was done.
    let page = report(&ground, &["html", "42", "job.db"]);
    for words in ["2 ranks waited ", "<th scope=\"row\">&lt;c&gt;</th>", "left\">/a</th>", "left\">/&lt;c&gt;</th>"] {
        assert!(page.contains(words), "{words} in {page}");
    }
    let said = ground.fail(1, &["down", "--report", "missing/page.html"]);
    assert!(said.contains("its directory is not there") && ground.run_directory().exists(), "{said}");
    assert!(whole.starts_with("job 42, ENDED\n") && whole.contains("wrote 98.6 KiB (101,000 bytes)"), "{whole}");
    let mut again = ground.command(&["up"]);
    let output = again.env("TABANE_JOB", "42").output().unwrap();
    assert!(String::from_utf8_lossy(&output.stdout).contains("as job 42.2"), "{output:?}");
    assert!(report(&ground, &["job", "42.2", "job.db"]).starts_with("job 42.2, RUNNING\n"));
    for is_down in [false, true] {
        if is_down {
            ground.kill(0);
        }
        let said = ground.fail(1, &["up", "--record", "other.db"]);
        assert!(said.contains("other.db: it is being recorded in"), "{said}");
    }
    put(&ground, "/b", 5000);
    ground.run(&["down"]);
    assert!(!ground.run_directory().exists() && !ground.path.join("other.db").exists());
    assert!(report(&ground, &["job", "42.2", "job.db"]).starts_with("job 42.2, ENDED\n"));
    // The first life is what it was.
    assert_eq!(report(&ground, &["job", "42", "job.db"]), whole);
}

/// Goal: what a server had counted up to a second before it was killed is recorded, although nobody had asked it, and
/// what the next one counts from 0 on is added, whether it is more or less.
#[test]
fn a_killed_server_s_last_minutes() {
    let ground = Ground::new("recorder-last-minutes");
    let mut command = ground.command(&["up", "--servers", "1", "--record", "job.db"]);
    assert!(command.env("TABANE_JOB", "42").stdout(Stdio::null()).status().unwrap().success());
    for (name, size) in [("/a", 100_000), ("/b", 300_000), ("/c", 7000)] {
        put(&ground, name, size);
        // It takes a sample each second.
        let is_sampled = |status: &str| {
            let status: serde_json::Value = serde_json::from_str(status).unwrap();
            let samples = status["servers"][0]["report"]["samples"].as_array().unwrap().clone();
            samples.iter().any(|sample| sample["jobs"].as_array().unwrap().iter().any(|job| job["bytes_in"] == size))
        };
        while !is_sampled(&ground.run(&["status", "--json", "--samples"])) {
            std::thread::yield_now();
        }
        ground.kill(0);
        ground.run(&["restart", "0"]);
    }
    let status: serde_json::Value = serde_json::from_str(&ground.run(&["status", "--json", "--samples"])).unwrap();
    let report = &status["servers"][0]["report"];
    let numbers = |key: &str| -> Vec<i64> {
        report["samples"].as_array().unwrap().iter().map(|sample| sample[key].as_i64().unwrap()).collect()
    };
    let (all, mut lives) = (numbers("number"), numbers("started_ns"));
    assert!(all[0] == 1 && all.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{all:?}");
    lives.dedup();
    assert!(lives.len() >= 3 && lives.is_sorted() && report["started_ns"].as_i64().unwrap() >= lives[2], "{lives:?}");
    ground.run(&["down"]);
    let told = self::report(&ground, &["job", "42", "job.db"]);
    assert!(told.contains("wrote 397.5 KiB (407,000 bytes)"), "{told}");
    // Means are of the time that passed, also over restarts.
    assert!(!told.contains("e-1"), "{told}");
}

/// Goal: a recorder that was killed keeps nobody from ending, is told, and what it has seen is there; what can't be
/// recorded is refused before anything is started.
#[test]
fn killed_and_refused() {
    let ground = Ground::new("recorder-killed");
    let said = ground.fail(1, &["up", "--record", "missing/job.db"]);
    assert!(said.contains("missing/job.db: its directory is not there") && !ground.run_directory().exists(), "{said}");
    std::fs::write(ground.path.join("text"), "no place\n").unwrap();
    let said = ground.fail(1, &["up", "--servers", "1", "--record", "text"]);
    assert!(said.contains("the cluster is up, but is not recorded: ") && said.contains("text"), "{said}");
    ground.run(&["down"]);
    ground.run(&["up", "--servers", "1", "--record", "job.db"]);
    let process = recorder(&ground);
    assert!(process.signal(SIGKILL).unwrap());
    while process.is_alive() {}
    // All that is missing is a recorder.
    assert!(ground.run(&["up", "--record", "job.db"]).contains("recording in"));
    let process = recorder(&ground);
    assert!(process.signal(SIGKILL).unwrap());
    while process.is_alive() {}
    let output = ground.try_run(&["down"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && said.contains("the recorder ended before the cluster"), "{said}");
    assert!(!ground.run_directory().exists());
}

/// Goal: a server that is silent at the end keeps the others' last numbers back from nobody, and not for long.
/// Method: one of two is stopped after bytes were written to both; `down` ends it in the end.
#[test]
fn silent_at_the_end() {
    let ground = Ground::new("recorder-silent");
    let mut command = ground.command(&["up", "--servers", "2", "--record", "job.db"]);
    assert!(command.env("TABANE_JOB", "42").stdout(Stdio::null()).status().unwrap().success());
    put(&ground, "/a", 5 << 20);
    assert!(ProcessId::of(ground.pid(1)).unwrap().signal(SIGSTOP).unwrap());
    let output = ground.try_run(&["down", "--keep", "--stop-timeout-ms", "500"]);
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("recorded in "), "{said} {}", String::from_utf8_lossy(&output.stderr));
    let told = report(&ground, &["job", "42", "job.db"]);
    let line = told.lines().find(|line| line.contains("the job itself")).unwrap();
    let bytes: u64 = line.rsplit('(').next().unwrap().split(' ').next().unwrap().replace(',', "").parse().unwrap();
    assert!(bytes > 1 << 20 && bytes < 5 << 20 && bytes.is_multiple_of(1 << 20), "{told}");
}

/// Goal: what became of the place while it was recorded is said at the end.
#[test]
fn what_was_lost_is_told() {
    let ground = Ground::new("recorder-lost");
    ground.run(&["up", "--servers", "2", "--record", "job.db"]);
    std::fs::remove_file(ground.path.join("job.db")).unwrap();
    let output = ground.try_run(&["down", "--keep"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("job.db is gone") || said.contains("not all is recorded"), "{said}");
    // Started again without being asked to record, it only tells what it can't.
    std::fs::create_dir(ground.path.join("job.db")).unwrap();
    let output = ground.try_run(&["up"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && said.contains("the cluster is up, but is not recorded"), "{said}");
    ground.run(&["down"]);
}

/// Goal: a run is recorded by its command's name, with what it came to.
#[test]
fn a_run() {
    let ground = Ground::new("recorder-run");
    let script = format!("seq 1000 | {TABANE} put /numbers; exit 3");
    let complaint = ground.fail(3, &["run", "--servers", "1", "--record", "runs.db", "--", "sh", "-c", &script]);
    assert!(complaint.contains("is recorded"), "{complaint}");
    let runs = report(&ground, &["history", "sh", "runs.db"]);
    assert!(runs.contains("FAILED (3)"), "{runs}");
    std::fs::write(ground.path.join("text"), "no place\n").unwrap();
    let words = ["run", "--servers", "1", "--record", "text", "--", "touch", "begun"];
    assert!(ground.fail(1, &words).contains("text: nothing can be recorded there"));
    assert!(!ground.path.join("begun").exists(), "it began although it can't be recorded");
}
