//! What can't be answered or taken gets a clear answer, the right exit status, and nothing is half written.

#![allow(clippy::unwrap_used)] // Tests, including their helpers.

mod common;

use common::{Counted, START, Scratch, Version, rows_of, said, texts_of};
use rusqlite::Connection;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::Command;

/// A place with a job that has ended, one that runs, one that waits and one from the future.
fn place(scratch: &Scratch) {
    let (end, running) = (START + 60, START - 3600);
    scratch.file(
        "jobs.csv",
        &format!(
            "id,start,end,nodes,name\n1,{START},{end},\"n[1-2],elsewhere\",ior\n2,{running},Unknown,n1,x\n\
             3,Unknown,Unknown,n1,x\n4,99000000000,,n1,x\n5,4000000000,,n1,x\n6,{end},{START},n1,x\n"
        ),
    );
    scratch.file("nodes.csv", "node,x,y,io_server\nn[1-2],0,0,oss1\nn3,1,0,oss2\n");
    let counted = Counted { requests: 100, wait: 1000, depth: 100, active: 100, ..Counted::default() };
    let later = Counted { requests: 200, ..counted };
    scratch.file("oss1.log", &(Version::V2_12.text(START, 0, &counted) + &Version::V2_12.text(START + 60, 0, &later)));
    scratch.done("import p.db --jobs jobs.csv --nodes nodes.csv --lustre oss1.log");
}

/// Goal: jobs that are unknown, wait, or have impossible times are told as such; one that runs is looked at until now,
/// and that is said; unknown nodes are named.
#[test]
fn jobs_and_nodes() {
    let scratch = Scratch::new("jobs");
    place(&scratch);
    let words = scratch.refused("job 77 p.db", 1);
    assert!(words.contains("no job 77 in p.db; it has 5 jobs, by name from 1 to 6"), "{words}");
    assert!(scratch.refused("job 3 p.db", 1).contains("has not begun"));
    assert!(scratch.refused("job 5 p.db", 1).contains("begins in the future"));
    assert!(scratch.refused("job 6 p.db", 1).contains("ends before it begins"));
    let told = scratch.done("job 2 p.db --interval 3600");
    assert!(told.contains("until now") && told.contains("it still runs"), "{told}");
    let told = scratch.done("job 1 p.db");
    assert!(told.contains("nodes: 3, 1 of them unknown here: elsewhere"), "{told}");
    assert!(told.contains("servers: 1 (the I/O servers of its nodes)") && told.contains("oss1, for 2 nodes"), "{told}");
    // The fourth was of no use.
    assert!(scratch.done("events p.db").contains("jobs.csv:5: \"99000000000\" is no time"));
    let words = scratch.refused("job 1 p.db --interval 0.00001", 2);
    assert!(words.contains("more than 1,000,000 intervals"), "{words}");
}

/// Goal: what is no place, another program's, a newer one's or damaged is refused and stays as it is.
#[test]
fn places() {
    let scratch = Scratch::new("places");
    place(&scratch);
    assert!(scratch.refused("job 1 nothing.db", 1).contains("no such place"));
    assert!(scratch.refused("import p/q.db --jobs jobs.csv", 1).contains("can't be opened"));
    assert!(scratch.refused("import mysql://host/db --jobs jobs.csv", 2).contains("is no kind of place"));
    scratch.file(
        "text.db",
        "This is no database, and it is long enough to be looked at as one: that takes 100 bytes. ......",
    );
    for line in ["job 1 text.db", "import text.db --jobs jobs.csv"] {
        assert!(scratch.refused(line, 1).contains("it is not an SQLite file"), "{line}");
    }
    assert!(scratch.text("text.db").starts_with("This is no database"));
    Connection::open(scratch.0.join("other.db")).unwrap().execute_batch("CREATE TABLE theirs (a)").unwrap();
    for line in ["job 1 other.db", "import other.db --jobs jobs.csv"] {
        assert!(scratch.refused(line, 1).contains("another program's database"), "{line}");
    }
    std::fs::copy(scratch.0.join("p.db"), scratch.0.join("newer.db")).unwrap();
    Connection::open(scratch.0.join("newer.db")).unwrap().pragma_update(None, "user_version", 3).unwrap();
    for line in ["job 1 newer.db", "import newer.db --jobs jobs.csv"] {
        assert!(scratch.refused(line, 1).contains("version 3, this program knows version 2"), "{line}");
    }
    let whole = std::fs::read(scratch.0.join("p.db")).unwrap();
    std::fs::write(scratch.0.join("cut.db"), &whole[..whole.len() / 2]).unwrap();
    let output = scratch.run("job 1 cut.db");
    assert!(said(&output).contains("is damaged") || output.status.success(), "{}", said(&output));
}

/// Goal: a place that can't be written to is refused for an import, and answers questions. Method: root, who may write
/// anywhere, tries it as nobody.
#[test]
fn read_only() {
    let scratch = Scratch::new("read-only");
    place(&scratch);
    let is_root = std::fs::metadata("/proc/self").unwrap().uid() == 0;
    let program = scratch.0.join("program");
    // By a process of its own: a child that another test starts just then would keep ours open for writing, and what is
    // can't be run.
    let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_tabane-report")).arg(&program).status().unwrap();
    assert!(copied.success());
    for (name, mode) in [("program", 0o755), ("p.db", 0o444), ("jobs.csv", 0o444), (".", 0o755)] {
        std::fs::set_permissions(scratch.0.join(name), std::fs::Permissions::from_mode(mode)).unwrap();
    }
    let run = |line: &str| {
        let nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
        let before = if is_root { &nobody[..] } else { &["env"] };
        let mut command = Command::new(before[0]);
        command.args(&before[1..]).arg(&program).args(line.split(' ')).current_dir(&scratch.0);
        command.output().unwrap()
    };
    let output = run("import p.db --jobs jobs.csv");
    assert_eq!(
        (output.status.code(), said(&output).contains("can't be written to")),
        (Some(1), true),
        "{}",
        said(&output)
    );
    let output = run("job 1 p.db");
    assert!(output.status.success(), "{}", said(&output));
}

/// Goal: an import that fails in the middle changes nothing, and leaves no place where none was.
#[test]
fn whole_or_not_at_all() {
    let scratch = Scratch::new("whole");
    place(&scratch);
    let before = scratch.done("job 1 p.db --csv -");
    scratch.file("more.csv", "id,start,end,nodes\n50,1,2,n1\n");
    scratch.file("cut.json", "{\"jobs\": [{\"job_id\": 1, \"time\": {\"start\": 5, \"end\": 6}}, {\"job_id\"");
    for place in ["p.db", "new.db"] {
        let words = scratch.refused(&format!("import {place} --jobs more.csv cut.json"), 1);
        assert!(words.contains("cut.json: after 1 job") && words.contains("not all of it"), "{words}");
        let words = scratch.refused(&format!("import {place} --jobs more.csv --lustre nothing.log"), 1);
        assert!(words.contains("nothing.log: no such file or directory"), "{words}");
        let words = scratch.refused(&format!("import {place} --lustre oss1=jobs.csv"), 1);
        assert!(words.contains("Nothing was changed"), "{words}");
    }
    assert!(scratch.refused("job 50 p.db", 1).contains("no job 50"));
    assert_eq!(scratch.done("job 1 p.db --csv -"), before);
    assert!(!scratch.is_there("new.db"));
    let left: Vec<String> =
        scratch.files(".").into_iter().filter(|name| name.contains("journal") || name.contains("part")).collect();
    assert_eq!(left, Vec::<String>::new());
}

/// Goal: names that are formulas or HTML are texts in tables and pictures, and can't leave a directory as file names.
#[test]
fn hostile_names() {
    let scratch = Scratch::new("hostile");
    let (start, end) = (START, START + 60);
    scratch.file("jobs.csv", &format!("id,start,end,nodes,name\n=1+1,{start},{end},n1,<script>alert(1)</script>\n"));
    scratch.file("nodes.csv", "node,io_server\nn1,=cmd|'/C\nn2,<b>&\n");
    let text = Version::V2_12.text(START, 0, &Counted { requests: 1, ..Counted::default() });
    for server in ["=cmd|'/C", "../../<b>"] {
        let record = serde_json::json!({"time": START, "host": server, "message": text});
        scratch.file("fluentd.log", &format!("{record}\n"));
        scratch.done("import p.db --jobs jobs.csv --nodes nodes.csv --lustre fluentd.log");
    }
    let rows = rows_of(&scratch.done("job =1+1 p.db --csv - --interval 60"));
    assert_eq!((rows[0]["job"].as_str(), rows[0]["server"].as_str()), ("'=1+1", "'=cmd|'/C"));
    scratch.done("job =1+1 p.db --csv out --heat-map a.svg");
    assert_eq!(scratch.files("out"), ["_1_1-_cmd___C.csv"]);
    scratch.done("job =1+1 p.db --map machine --heat-map b.svg");
    for picture in ["a.svg", "b.svg"] {
        assert!(texts_of(&scratch.0.join(picture)).iter().any(|text| text.contains("<script>alert(1)</script>")));
        assert!(!scratch.text(picture).contains("<script>"));
    }
    let written: Vec<String> = scratch.files(".").into_iter().filter(|name| !name.contains('.')).collect();
    assert_eq!(written, ["out"]);
}

/// Goal: who stops reading is no failure; a directory that can't be made is.
#[test]
fn outputs() {
    let scratch = Scratch::new("outputs");
    place(&scratch);
    let mut child =
        scratch.command("job 1 p.db --csv - --interval 0.001").stdout(std::process::Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    assert!(child.wait().unwrap().success());
    let words = said(&scratch.run("job 1 p.db --csv jobs.csv"));
    assert!(words.contains("jobs.csv: ") && words.contains("exists"), "{words}");
    let words = said(&scratch.run("job 1 p.db --heat-map nowhere/a.svg"));
    assert!(words.contains("nowhere/a.svg: no such file or directory"), "{words}");
    assert!(scratch.done("--version").starts_with("tabane-report 0."));
}

/// Goal: times at both ends of what can be said are answered like others. Method: a job of 292 years, and servers whose
/// clocks are at the other end.
#[test]
fn extreme_times() {
    let scratch = Scratch::new("extreme");
    let last = 9_223_372_034u64;
    scratch.file("jobs.csv", &format!("id,start,end,nodes\n1,1,{last},n1\n"));
    let counted = Counted { requests: 1, job_read_bytes: 5, ..Counted::default() };
    let text = |at: u64| Version::V2_12.text(at, 0, &counted).replace("4711", "1");
    let mut log = String::new();
    for (collected, at) in [(1, last), (last, 1), (last, last), (START, 0), (1, 1)] {
        log += &format!("{}\n", serde_json::json!({"time": collected, "host": "a", "message": text(at)}));
        log += &text(at).lines().map(|line| format!("b: {line}\n")).collect::<String>();
    }
    scratch.file("x.log", &log);
    scratch.done("import p.db --jobs jobs.csv --lustre x.log --clock-offset b=-999999999");
    for options in
        ["", "--csv out", "--heat-map a.svg", "--heat-map b.svg --map machine --scale log --congested-from 1"]
    {
        assert!(scratch.done(&format!("job 1 p.db {options}")).contains("106751 d"), "{options}");
    }
}

/// Goal: an id that is used again is the new job, whichever order the records are read in, and twice is once. Method: a
/// job that ended, and was queued and started again.
#[test]
fn used_again() {
    let scratch = Scratch::new("again");
    let record = |kind: &str, start: u64, end: &str| {
        format!("11/25/2026 10:00:00;{kind};7.pbs;user=alice start={start} exec_host=n1/0 {end}\n")
    };
    let first = record("S", START, "") + &record("E", START, &format!("end={}", START + 60));
    scratch.file("log", &(first.clone() + &record("S", START + 600, "")));
    scratch.done("import p.db --jobs log");
    assert!(scratch.done("job 7.pbs p.db --interval 3600").contains("it still runs"));
    let again = said(&scratch.run("import p.db --jobs log"));
    assert!(again.contains("3 jobs, 0 of them new or changed"), "{again}");
    scratch.file("end", &record("E", START + 600, &format!("end={}", START + 1200)));
    scratch.done("import p.db --jobs end");
    scratch.file("late", &first);
    scratch.done("import p.db --jobs late");
    let told = scratch.done("job 7.pbs p.db");
    assert!(told.contains("10:10:00 to 2026-11-25 10:20:00, 10 min 00 s"), "{told}");
}
