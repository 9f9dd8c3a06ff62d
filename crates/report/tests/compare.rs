//! Two jobs beside each other: means, most and ratios that were computed by hand.

#![allow(clippy::unwrap_used)] // Tests, including their helpers.

mod common;

use common::{Counted, START, Scratch, Version, cells, rows_of};

/// What grows in a minute.
#[derive(Clone, Copy)]
struct Minute {
    requests: u64,
    wait: u64,
    depth: u64,
    active: u64,
}

/// As the paper's two MPI-IOs: waiting dozens, over 100 ms, 16 in work; then waiting below 1, 50 us, about 1 in work.
const CROWDED: [Minute; 2] = [
    Minute { requests: 600, wait: 600 * 110_000, depth: 600 * 36, active: 600 * 16 },
    Minute { requests: 600, wait: 600 * 130_000, depth: 600 * 44, active: 600 * 18 },
];
const RELAYED: [Minute; 2] = [
    Minute { requests: 900, wait: 900 * 50, depth: 360, active: 900 },
    Minute { requests: 900, wait: 900 * 50, depth: 360, active: 900 },
];

/// A server's log over minutes, from one on. A request writes a MiB.
fn log(first: u64, minutes: &[Minute]) -> String {
    let mut counted = Counted { requests: 10, ..Counted::default() };
    let mut text = Version::V2_12.text(START + 60 * first, 0, &counted);
    for (index, minute) in minutes.iter().enumerate() {
        counted.requests += minute.requests;
        counted.wait += minute.wait;
        counted.depth += minute.depth;
        counted.active += minute.active;
        counted.writes += minute.requests;
        counted.write_bytes += minute.requests << 20;
        text += &Version::V2_12.text(START + 60 * (first + 1 + index as u64), 0, &counted);
    }
    text
}

fn two_places(scratch: &Scratch) {
    scratch.file("nodes.csv", "node,io_server\nn1,oss1 oss2\n");
    for (place, minutes) in [("standard", CROWDED), ("earth", RELAYED)] {
        scratch.file("jobs.csv", &format!("id,start,end,nodes,name\n7,{START},{},n1,{place}\n", START + 120));
        scratch.file("oss1.log", &log(0, &minutes));
        // Twice the requests, the same queue.
        let twice = minutes.map(|minute| Minute {
            requests: 2 * minute.requests,
            wait: 2 * minute.wait,
            depth: 2 * minute.depth,
            active: 2 * minute.active,
        });
        scratch.file("oss2.log", &log(0, &twice));
        scratch.done(&format!("import {place}.db --jobs jobs.csv --nodes nodes.csv --lustre oss1.log oss2.log"));
    }
}

/// Goal: the same id in two places gives means, most and ratios as by hand, of each server and of all, and words that
/// say how different the queues were.
#[test]
fn the_same_id_in_two_places() {
    let scratch = Scratch::new("compare-places");
    two_places(&scratch);
    let rows = rows_of(&scratch.done("compare 7 7 standard.db earth.db --csv -"));
    assert_eq!(rows.len(), 3 * 11);
    let of = |server: &str, measure: &str| {
        let row = rows.iter().find(|row| row["server"] == server && row["measure"] == measure).unwrap();
        cells(row, &["first_mean", "second_mean", "mean_ratio", "first_most", "second_most", "most_ratio"])
    };
    for server in ["", "oss1", "oss2"] {
        assert_eq!(of(server, "req_waittime"), "120000|50|2400|130000|50|2600");
        assert_eq!(of(server, "req_qdepth"), "40|0.4|100|44|0.4|110");
        assert_eq!(of(server, "req_active"), "17|1|17|18|1|18");
    }
    assert_eq!(of("oss1", "requests_per_s"), "10|15|0.666667|10|15|0.666667");
    assert_eq!(of("", "requests_per_s"), "30|45|0.666667|20|30|0.666667");
    assert_eq!(of("", "write_bytes_per_s"), "31457280|47185920|0.666667|20971520|31457280|0.666667");
    assert_eq!(of("oss2", "read_bytes_per_s"), "0|0||0|0|");
    // Nobody has counted the job: unknown, and not 0.
    assert_eq!(of("", "job_operations_per_s"), "|||||");
    let told = scratch.done("compare 7 7 standard.db earth.db");
    assert!(told.contains("first: job 7 (standard)") && told.contains("second: job 7 (earth)"), "{told}");
    assert!(told.contains("what differs most is req_waittime, 130 ms against 50.0 us at most: 2,600 times"), "{told}");
    let other_way = scratch.done("compare 7 7 earth.db standard.db");
    assert!(other_way.contains("req_waittime, 50.0 us against 130 ms at most: 2,600 times"), "{other_way}");
    let same = scratch.done("compare 7 7 earth.db");
    assert!(same.contains("hardly differ"), "{same}");
}

/// Goal: two jobs of one place, one after the other, with a server that both have and one that says nothing, are told
/// apart in the words of the paper; of a job without samples nothing is made up. Method: waiting alike, depths not.
#[test]
fn two_jobs_of_a_place() {
    let scratch = Scratch::new("compare-jobs");
    let (later, end) = (START + 1200, START + 1320);
    let jobs = format!(
        "id,start,end,nodes\n1,{START},{},n1\n2,{later},{end},n2\n3,{},{},n1\n",
        START + 120,
        end + 9000,
        end + 9060
    );
    scratch.file("jobs.csv", &jobs);
    scratch.file("nodes.csv", "node,io_server\nn1,oss1\nn2,oss1 oss3\n");
    let even = CROWDED.map(|minute| Minute { wait: minute.requests * 70, ..minute });
    let logs = log(0, &even) + &log(20, &RELAYED);
    scratch.file("oss1.log", &logs.replace("job_id:          4711", "job_id:          other"));
    scratch.done("import p.db --jobs jobs.csv --nodes nodes.csv --lustre oss1.log");
    let told = scratch.done("compare 1 2 p.db");
    assert!(
        told.contains("what differs most is req_qdepth, dozens (44.0) against below 1 (0.400) at most: 110 times"),
        "{told}"
    );
    let rows = rows_of(&scratch.done("compare 1 2 p.db --csv -"));
    assert!(
        rows.iter().any(|row| cells(row, &["server", "measure", "first_mean", "mean_ratio"]) == "oss3|req_qdepth||")
    );
    let told = scratch.done("compare 1 3 p.db");
    assert!(told.contains("nothing is known of the queues of one of them"), "{told}");
}

/// Goal: bad input is refused as for 'job', whichever of the two it is, and leaves nothing.
#[test]
fn refusals() {
    let scratch = Scratch::new("compare-refused");
    two_places(&scratch);
    scratch.file(
        "text.db",
        "This is no database, and long enough that SQLite looks at it as one: it wants 100 bytes. ...",
    );
    for (line, status, wanted) in [
        ("compare 7 8 standard.db --csv c.csv", 1, "there is no job 8 in standard.db"),
        ("compare 8 7 standard.db --csv c.csv", 1, "there is no job 8 in standard.db"),
        ("compare 7 8 standard.db earth.db", 1, "there is no job 8 in earth.db"),
        ("compare 7 7 standard.db nothing.db", 1, "nothing.db: there is no such place"),
        ("compare 7 7 text.db standard.db", 1, "is not an SQLite file"),
        ("compare 7 7 standard.db --interval 1e-6", 2, "1,000,000 intervals"),
        ("compare 7 7 standard.db mysql://host/db", 2, "is no kind of place"),
        ("compare 7 7 standard.db --csv no/c.csv", 1, "no/c.csv"),
        ("compare 7", 2, "JOB"),
    ] {
        let words = scratch.refused(line, status);
        assert!(words.contains(wanted), "{line}: {words}");
    }
    assert!(!scratch.is_there("c.csv"));
}
