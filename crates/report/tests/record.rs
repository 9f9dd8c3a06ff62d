//! Recording: what is asked, what is kept, and how it ends. The servers are a script that prints as 'tabane status'.

#![allow(clippy::unwrap_used)] // Tests, including their helpers.

mod common;

use common::{Scratch, documents_of, load, rows_of, said};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

const ID: &str = "4458aef012bb3c283639e2e9badb4102";

/// A program that prints one document after the other, and notes what it was asked.
fn stand_in(scratch: &Scratch) {
    let text = documents_of(ID, &[load(), load()], 3);
    for (number, document) in text.split_inclusive("\n}\n").enumerate() {
        scratch.file(&format!("answer.{number}"), document);
    }
    let script = "#!/bin/sh\necho \"$@\" >>asked\nn=$(($(wc -l <asked) - 1))\ncat answer.$n 2>/dev/null || exit 1\n";
    scratch.file("tabane", script);
    std::fs::set_permissions(scratch.0.join("tabane"), std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// What it was asked, but for the last question, which is where the busiest files are.
fn asked(scratch: &Scratch) -> String {
    let text = scratch.text("asked");
    let (asked, last) = text.trim_end().rsplit_once('\n').unwrap();
    assert!(last.starts_with("status --files --json ") && !asked.contains("--files"), "{text}");
    format!("{asked}\n")
}

/// Goal: each question is kept at its time, the job has name, state and end, and the place answers as any other.
/// Method: three questions, then the input ends with the job's status.
#[test]
fn until_input_ends() {
    let scratch = Scratch::new("record");
    stand_in(&scratch);
    let line = "record p.db --tabane ./tabane --cluster /run/x --every 0.05 --id 7 --name fluid --until-input-ends";
    let mut recorder = scratch.command(line).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // It ends with its input, whatever was asked until then; before that it has to have asked once at least.
    while !scratch.is_there("asked") {
        std::thread::yield_now();
    }
    recorder.stdin.take().unwrap().write_all(b"exit 3\n").unwrap();
    let output = recorder.wait_with_output().unwrap();
    assert!(output.status.success() && said(&output).contains("p.db: job 7 is recorded"), "{}", said(&output));
    let asked = asked(&scratch);
    assert!(
        asked.lines().all(|line| line.ends_with("--cluster /run/x") && line.starts_with("status --json")),
        "{asked}"
    );
    // All samples at first, then those since the last answer, with some to spare.
    let is_right = |(number, line): (usize, &str)| match number {
        0 => line.contains(" --samples "),
        _ => line.contains(" --sample-count=3 ") || line.contains(" --sample-count=4 "),
    };
    assert!(asked.lines().enumerate().all(is_right), "{asked}");
    let told = scratch.done("job 7 p.db");
    assert!(told.starts_with("job 7 (fluid), FAILED (3)\n") && told.contains("servers: 2"), "{told}");
    let rows = rows_of(&scratch.done("history fluid p.db --csv -"));
    assert_eq!((rows.len(), rows[0]["servers"].as_str()), (1, "2"));
}

/// Goal: accounting adds to a job that was recorded what it knows besides, though by its clock of seconds the job began
/// before it was recorded; an older job of that id adds nothing.
#[test]
fn accounting_of_a_recorded_job() {
    let scratch = Scratch::new("record-accounting");
    stand_in(&scratch);
    scratch.done("record p.db --tabane ./tabane --cluster x --every 0.01 --id 7 --runs 2");
    let now = std::fs::metadata(scratch.0.join("p.db")).unwrap().modified().unwrap();
    let now = now.duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let row = |start: u64, end: u64, user: &str| {
        scratch.file("jobs.csv", &format!("id,start,end,nodes,user,state\n7,{start},{end},n1,{user},COMPLETED\n"));
        scratch.done("import p.db --jobs jobs.csv");
        scratch.done("job 7 p.db")
    };
    assert!(!row(now - 900, now - 800, "bob").contains("bob"));
    let told = row(now - 5, now + 5, "alice");
    assert!(told.starts_with("job 7 by alice, COMPLETED\n") && told.contains("servers: 2"), "{told}");
}

/// Goal: a server that answers again, or for the first time, is asked for what it has kept meanwhile; the others' gap
/// is none, and they are asked no more than usual while it is away.
#[test]
fn servers_that_come_back() {
    let scratch = Scratch::new("record-back");
    stand_in(&scratch);
    let away = |document: &str| {
        let mut document: serde_json::Value = serde_json::from_str(document).unwrap();
        document["servers"][1]["report"] = serde_json::Value::Null;
        document["servers"][1]["reason"] = "it does not answer".into();
        format!("{document:#}\n")
    };
    for number in 0..2 {
        scratch.file(&format!("answer.{number}"), &away(&scratch.text(&format!("answer.{number}"))));
    }
    scratch.done("record p.db --tabane ./tabane --cluster x --every 0.01 --id 7 --runs 3");
    let asked = asked(&scratch);
    let counts: Vec<_> = asked
        .lines()
        .map(|line| line.split_once("--sample-count=").map(|(_, rest)| rest.split_once(' ').unwrap().0))
        .collect();
    assert_eq!(counts[..3], [None, Some("3"), Some("3")], "{asked}");
    // As it never answered, all.
    assert!(counts.len() == 4 && counts[3].unwrap().parse::<u64>().unwrap() > 1_000_000_000, "{asked}");
    let told = scratch.done("job 7 p.db");
    assert!(told.contains("servers: 2"), "{told}");
}

/// Goal: without a name the job is called by the cluster; a cluster that never answers is a failure, one that answers
/// at last is not, and a program that is not there is named.
#[test]
fn in_vain() {
    let scratch = Scratch::new("record-in-vain");
    stand_in(&scratch);
    scratch.done("record p.db --tabane ./tabane --every 0.01 --runs 9 --since 100");
    let names = scratch.refused("job z p.db", 1);
    assert!(names.contains("it has 1 job, by name from tabane-4458aef0-"), "{names}");
    // The script has nothing more to print.
    let words = scratch.refused("record q.db --tabane ./tabane --every 0.01 --runs 2", 1);
    assert!(words.contains("the servers were asked in vain"), "{words}");
    let words = scratch.refused("record q.db --tabane ./none --runs 1", 1);
    assert!(words.contains("./none: no such file or directory"), "{words}");
}

/// Goal: a recorder that goes with a cluster ends by an order, or when the cluster's directory is gone, and says a
/// trouble once however long it lasts. Method: a cluster that never answers after three times, and input that stays
/// open.
#[test]
fn with_the_cluster() {
    for by_order in [true, false] {
        let scratch = Scratch::new(if by_order { "record-order" } else { "record-gone" });
        stand_in(&scratch);
        std::fs::create_dir(scratch.0.join("cluster")).unwrap();
        let line = "record p.db --tabane ./tabane --cluster cluster --every 0.01 --id 7 --until-input-ends";
        let mut command = scratch.command(line);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut recorder = command.spawn().unwrap();
        while !scratch.is_there("asked") || scratch.text("asked").lines().count() < 9 {
            std::thread::yield_now();
        }
        let mut input = recorder.stdin.take().unwrap();
        match by_order {
            true => input.write_all(b"end\n").unwrap(),
            false => std::fs::remove_dir(scratch.0.join("cluster")).unwrap(),
        }
        let output = recorder.wait_with_output().unwrap();
        drop(input);
        assert!(output.status.success(), "{}", said(&output));
        assert_eq!(String::from_utf8_lossy(&output.stdout), "recording in p.db as job 7\n");
        let words = String::from_utf8_lossy(&output.stderr);
        assert_eq!(words.matches("no server answers").count(), 1, "{words}");
        assert_eq!(words.contains("the cluster has gone"), !by_order, "{words}");
        assert!(scratch.done("job 7 p.db").starts_with("job 7, ENDED\n"));
    }
}
