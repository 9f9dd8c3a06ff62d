//! A run among earlier ones, and Darshan's log beside the servers.

#![allow(clippy::unwrap_used)] // Tests, including their helpers.

mod common;

use common::{START, Scratch, column, documents_of, load, rows_of, said};

/// Goal: runs of a name are told in order, and the last, or any, is held against those before it. Method: four runs of
/// ten minutes, the last one with twice the bytes and three times the time.
#[test]
fn among_earlier_ones() {
    let scratch = Scratch::new("history");
    let mut jobs = "id,name,state,start,end,nodes\n".to_owned();
    for (number, length) in [600, 620, 580, 1800].into_iter().enumerate() {
        let start = START + 10_000 * number as u64;
        let id = format!("{number:08}00112233");
        jobs += &format!("{},fluid,COMPLETED,{start},{},tabane-{number:08}\n", 70 + number, start + length);
        let mut told = load();
        told.write_bytes *= if number == 3 { 2 } else { 1 };
        let text = documents_of(&id, &[told, told], length as i64 / 10);
        // The generator begins at one time; a clock elsewhere is the same as another time.
        let shifted = text.lines().map(|line| match line.trim().strip_prefix("\"wall_clock_ns\": ") {
            Some(number_of) => {
                let time: i64 = number_of.trim_end_matches(',').parse().unwrap();
                format!(
                    "\"wall_clock_ns\": {}{}",
                    time + 10_000_000_000_000 * number as i64,
                    if number_of.ends_with(',') { "," } else { "" }
                )
            }
            None => line.to_owned(),
        });
        let text: Vec<String> =
            shifted.map(|line| if line.starts_with('"') { format!(" {line}") } else { line }).collect();
        scratch.file(&format!("{number}.json"), &(text.join("\n") + "\n"));
    }
    jobs += &format!("80,other,COMPLETED,{START},{},n1\n90,fluid,PENDING,,,n1\n", START + 5);
    scratch.file("jobs.csv", &jobs);
    scratch.done("import p.db --jobs jobs.csv --tabane 0.json 1.json 2.json 3.json");
    let told = scratch.done("history fluid p.db");
    assert!(told.starts_with("4 runs of the name fluid\n"), "{told}");
    assert!(told.contains("it took 30 min 00 s, 3.00 times the 10 min 00 s of 3 earlier runs"), "{told}");
    assert!(told.contains("it wrote 14.1 GiB, 6.00 times the 2.3 GiB of 3 earlier runs"), "{told}");
    let this: Vec<&str> = told.lines().filter(|line| line.ends_with("<- this run")).collect();
    assert!(this.len() == 1 && this[0].contains(" 73, COMPLETED (all bytes of its servers)"), "{told}");
    assert!(scratch.done("history fluid p.db --id 72").contains("it is as 2 earlier runs"), "{told}");
    assert!(scratch.done("history fluid p.db --id 70").contains("no earlier run"), "{told}");
    let rows = rows_of(&scratch.done("history fluid p.db --csv -"));
    assert_eq!(column(&rows, "job"), ["70", "71", "72", "73"]);
    assert_eq!(column(&rows, "seconds"), ["600", "620", "580", "1800"]);
    assert_eq!(rows[0]["write_bytes"], (60u64 * 2 * (20 << 20)).to_string());
    assert!(scratch.refused("history moon p.db", 1).contains("no job of the name moon has begun"));
    assert!(scratch.refused("history fluid p.db --id 80", 1).contains("none of the last 4 runs"));
}

const DARSHAN: &str = "# darshan log version: 3.41
# exe: ./fluid <input>
# uid: 1000
# jobid: 7
# start_time: 1795600800
# end_time: 1795601400
# nprocs: 64
# *******************************************************
# POSIX module data
#<module>\t<rank>\t<record id>\t<counter>\t<value>\t<file name>\t<mount pt>\t<fs type>
POSIX\t-1\t92\tPOSIX_OPENS\t64\t/scratch/a\t/scratch\tlustre
POSIX\t-1\t92\tPOSIX_READS\t100\t/scratch/a\t/scratch\tlustre
POSIX\t-1\t92\tPOSIX_WRITES\t6400\t/scratch/a\t/scratch\tlustre
POSIX\t-1\t92\tPOSIX_BYTES_READ\t1048576\t/scratch/a\t/scratch\tlustre
POSIX\t-1\t92\tPOSIX_BYTES_WRITTEN\t6710886400\t/scratch/a\t/scratch\tlustre
POSIX\t-1\t92\tPOSIX_SLOWEST_RANK\t13\t/scratch/a\t/scratch\tlustre
POSIX\t-1\t92\tPOSIX_F_READ_TIME\t0.500000\t/scratch/a\t/scratch\tlustre
POSIX\t-1\t92\tPOSIX_F_WRITE_TIME\t120.250000\t/scratch/a\t/scratch\tlustre
POSIX\t-1\t92\tPOSIX_F_META_TIME\t3.000000\t/scratch/a\t/scratch\tlustre
POSIX\t-1\t92\tPOSIX_F_SLOWEST_RANK_TIME\t9.500000\t/scratch/a\t/scratch\tlustre
POSIX\t3\t93\tPOSIX_BYTES_READ\t-1\t/scratch/b\t/scratch\tlustre
LUSTRE\t-1\t92\tLUSTRE_OSTS\t8\t/scratch/a\t/scratch\tlustre
MPI-IO\t-1\t92\tMPIIO_BYTES_WRITTEN\t6710886400\t/scratch/a\t/scratch\tlustre
MPI-IO\t-1\t92\tMPIIO_F_WRITE_TIME\t130.000000\t/scratch/a\t/scratch\tlustre
";

/// Goal: Darshan's bytes and times stand beside the servers', another job's log is told to be that, a cut one loses
/// only what is cut, and another file is refused before anything is written.
#[test]
fn darshan() {
    let scratch = Scratch::new("darshan");
    let jobs = format!("id,start,end,nodes\n7,{START},{0},n1\n8,{0},{1},n1\n", START + 600, START + 700);
    scratch.file("jobs.csv", &jobs);
    scratch.file("nodes.csv", "node,io_server\nn1,oss1\n");
    scratch.file("d.txt", DARSHAN);
    scratch.done("import p.db --jobs jobs.csv --nodes nodes.csv");
    let told = scratch.done("job 7 p.db --darshan d.txt");
    for words in [
        "  Darshan's log of 64 processes:",
        "POSIX: read 1.0 MiB in 500 ms, wrote 6.2 GiB in 120 s, opens and looks 3.00 s, 6,564 calls",
        "POSIX: the slowest rank with one file was 13: 9.50 s",
        "MPI-IO: read 0 B in 0 us, wrote 6.2 GiB in 130 s",
    ] {
        assert!(told.contains(words), "{words} in {told}");
    }
    assert!(!told.contains("of another time") && !told.contains("can't be understood"), "{told}");
    let told = scratch.done("job 8 p.db --darshan d.txt");
    assert!(told.contains("it is of job 7, by its own words"), "{told}");
    for end in [DARSHAN.len() - 3, DARSHAN.len() - 60] {
        scratch.file("cut.txt", &DARSHAN[..end]);
        assert!(scratch.done("job 7 p.db --darshan cut.txt").contains("1 line of it can't be understood"));
    }
    scratch.file("other.txt", "POSIX hello\n\u{1}\u{2}\n");
    let said = scratch.refused("job 7 p.db --darshan other.txt --csv out", 1);
    assert!(said.contains("what 'darshan-parser LOG' prints?") && !scratch.is_there("out"), "{said}");
    scratch.refused("job 7 p.db --darshan none.txt", 1);
}

/// Goal: a log itself is printed by `darshan-parser`, else by what `python3` has; of a log that can't be read to its
/// end nothing is told, though the program ends as if all were well; without either the words say what is missing.
#[cfg(unix)]
#[test]
fn darshan_log() {
    use std::os::unix::fs::PermissionsExt;
    let scratch = Scratch::new("darshan-log");
    scratch.file("jobs.csv", &format!("id,start,end,nodes\n7,{START},{0},n1\n", START + 600));
    scratch.file("nodes.csv", "node,io_server\nn1,oss1\n");
    scratch.done("import p.db --jobs jobs.csv --nodes nodes.csv");
    // Its head: a version of 8 bytes and the magic number, in either byte order.
    for (name, magic) in [("log.darshan", 6_567_223i64.to_le_bytes()), ("big.darshan", 6_567_223i64.to_be_bytes())] {
        std::fs::write(scratch.0.join(name), [b"3.41\0\0\0\0".as_slice(), &magic, &[7; 100]].concat()).unwrap();
    }
    scratch.file("printed.txt", DARSHAN);
    let programs = scratch.0.join("programs");
    let program = |name: &str, script: &str| {
        let _ = std::fs::remove_dir_all(&programs);
        std::fs::create_dir(&programs).unwrap();
        let path = programs.join(name);
        std::fs::write(&path, format!("#!/bin/sh\nPATH=/usr/bin:/bin\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    };
    let asked = |log: &str| {
        let line = format!("job 7 p.db --darshan {log}");
        scratch.command(&line).env("PATH", &programs).output().unwrap()
    };
    let printed = scratch.0.join("printed.txt");
    for (name, log, given) in [("darshan-parser", "log.darshan", "$1"), ("python3", "big.darshan", "$3")] {
        let path = scratch.0.join(log);
        program(name, &format!("[ \"{given}\" = {} ] && cat {}", path.display(), printed.display()));
        let output = asked(log);
        assert!(output.status.success(), "{name}: {}", said(&output));
        let told = String::from_utf8(output.stdout).unwrap();
        assert!(told.contains("POSIX: read 1.0 MiB in 500 ms, wrote 6.2 GiB in 120 s"), "{told}");
    }
    for (name, end, words) in [
        ("darshan-parser", "echo Error: it is cut >&2", "darshan-parser can't read all of it: Error: it is cut"),
        ("darshan-parser", "exit 3", "can't read all of it: exit status: 3"),
        ("python3", "exit 86", "pip install darshan"),
    ] {
        program(name, &format!("cat {}\n{end}", printed.display()));
        let output = asked("log.darshan");
        assert!(output.status.code() == Some(1) && output.stdout.is_empty(), "{output:?}");
        assert!(said(&output).contains(words), "{words} in {}", said(&output));
    }
    std::fs::remove_dir_all(&programs).unwrap();
    let output = asked("log.darshan");
    assert!(output.status.code() == Some(1) && said(&output).contains("'darshan-parser LOG'"), "{output:?}");
}
