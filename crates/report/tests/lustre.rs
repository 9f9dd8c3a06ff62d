//! Whole runs over texts of Lustre's versions: intervals that were computed by hand, resets, gaps, clocks.

#![allow(clippy::unwrap_used)] // Tests, including their helpers.

mod common;

use common::{Counted, START, Scratch, VERSIONS, Version, cells, column, rows_of, said};

const NANOS: u64 = 5_012_000;
const QUEUE: [&str; 5] = ["seconds", "req_waittime", "req_qdepth", "req_active", "requests_per_s"];
const BYTES: [&str; 4] = ["reads_per_s", "read_bytes_per_s", "writes_per_s", "write_bytes_per_s"];

/// Three readings of a server, a minute after each other.
fn three() -> [Counted; 3] {
    let first = Counted { requests: 1000, wait: 50_000, depth: 2000, active: 3000, ..Counted::default() };
    let first = Counted { reads: 400, read_bytes: 100 << 20, ..first };
    let second = Counted { requests: 1600, wait: 62_000, depth: 3800, active: 6600, ..first };
    let second = Counted { reads: 460, read_bytes: 160 << 20, job_read_bytes: 60 << 20, ..second };
    let third = Counted { requests: 2800, wait: 1_262_000, depth: 27_800, active: 16_200, ..second };
    [first, second, Counted { writes: 600, write_bytes: 150 << 20, job_write_bytes: 120 << 20, ..third }]
}

fn job_of_two_minutes(scratch: &Scratch) {
    let (end, fraction) = (START + 120, "005012");
    scratch.file("jobs.csv", &format!("id,start,end,nodes\n4711,{START}.{fraction},{end}.{fraction},n1\n"));
}

/// Goal: averages and rates of all versions are those that were computed by hand. Method: in the first minute 600
/// requests waited 12,000 us, found 1,800 waiting and 3,600 in work, and 60 reads read 60 MiB; in the second one 1,200
/// requests waited 1,200,000 us and found 24,000 and 9,600, and 600 writes wrote 150 MiB.
#[test]
fn intervals_by_hand() {
    for version in VERSIONS {
        let scratch = Scratch::new(&format!("hand-{version:?}"));
        job_of_two_minutes(&scratch);
        let log: String = three()
            .iter()
            .enumerate()
            .map(|(minute, counted)| version.text(START + 60 * minute as u64, NANOS, counted))
            .collect();
        scratch.file("oss1.log", &log);
        scratch.done("import p.db --jobs jobs.csv --lustre oss1.log");
        assert_eq!(scratch.done("events p.db"), "", "{version:?}");
        let rows = rows_of(&scratch.done("job 4711 p.db --csv -"));
        let queue: Vec<String> = rows.iter().map(|row| cells(row, &QUEUE)).collect();
        assert_eq!(queue, ["60|20|3|6|10", "60|1000|20|8|20"], "{version:?}");
        let bytes: Vec<String> = rows.iter().map(|row| cells(row, &BYTES)).collect();
        assert_eq!(bytes, ["1|1048576|0|0", "0|0|10|2621440"], "{version:?}");
        assert_eq!(column(&rows, "snapshot_time"), ["1795600860.005", "1795600920.005"]);
        assert_eq!(column(&rows, "time")[0], "2026-11-25T10:01:00.005Z");
        let told = scratch.done("job 4711 p.db");
        assert!(told.contains("read 60.0 MiB (62,914,560 bytes), wrote 120.0 MiB (125,829,120 bytes)"), "{told}");
        assert!(told.contains("servers: 1 (those that have counted it)"), "{told}");
        // The whole in one: 1,800 requests.
        let rows = rows_of(&scratch.done("job 4711 p.db --csv - --interval 120"));
        assert_eq!(rows.len(), 1);
        assert_eq!(cells(&rows[0], &QUEUE), "120|673.333333|14.333333|7.333333|15");
    }
}

/// Goal: the same file twice, and a file that grew, change nothing or only what is new, also where it had been cut.
#[test]
fn twice_is_once() {
    let scratch = Scratch::new("twice");
    job_of_two_minutes(&scratch);
    let texts: Vec<String> = three()
        .iter()
        .enumerate()
        .map(|(minute, counted)| Version::V2_12.text(START + 60 * minute as u64, NANOS, counted))
        .collect();
    let log = texts.concat();
    scratch.file("whole.log", &log);
    scratch.done("import whole.db --jobs jobs.csv --lustre oss1=whole.log");
    let wanted = scratch.done("job 4711 whole.db --csv -");
    let again = scratch.run("import whole.db --jobs jobs.csv --lustre oss1=whole.log");
    assert!(said(&again).contains("1 job, 0 of them new or changed; 9 samples, 0 of them new"), "{}", said(&again));
    assert_eq!(scratch.done("job 4711 whole.db --csv -"), wanted);
    // Cut in each place in turn, then whole.
    scratch.file("part.log", "");
    for size in (1..log.len()).step_by(97).chain([log.len()]) {
        scratch.file("part.log", &log[..size]);
        scratch.run("import part.db --jobs jobs.csv --lustre oss1=part.log");
    }
    assert_eq!(scratch.done("job 4711 part.db --csv -"), wanted);
}

/// Goal: counters that go back are a reset: what they show has come since, and nothing is negative; where start_time
/// tells when, nothing before it is made up. Method: by hand.
#[test]
fn resets() {
    let scratch = Scratch::new("resets");
    job_of_two_minutes(&scratch);
    let [first, second, _] = three();
    let anew =
        Counted { requests: 30, wait: 300, depth: 60, active: 30, reads: 3, read_bytes: 6000, ..Counted::default() };
    let log = Version::V2_12.text(START, NANOS, &first)
        + &Version::V2_12.text(START + 60, NANOS, &second)
        + &Version::V2_12.text(START + 120, NANOS, &anew);
    scratch.file("oss1.log", &log);
    scratch.done("import p.db --jobs jobs.csv --lustre oss1.log");
    let rows = rows_of(&scratch.done("job 4711 p.db --csv -"));
    assert_eq!(cells(&rows[1], &QUEUE), "60|10|2|1|0.5");
    assert_eq!((cells(&rows[1], &BYTES), column(&rows, "reset")), ("0.05|100|0|0".into(), vec!["".into(), "1".into()]));
    assert!(scratch.done("job 4711 p.db").contains("counters were reset"));
    // The newest version tells when: 30 s before the last reading.
    let since = |text: String| {
        let (old, new) = (format!("{}.{:09}", START - 1_000_000, 0), format!("{}.{NANOS:09}", START + 90));
        text.replace(&old, &new)
    };
    let log = Version::V2_15.text(START, NANOS, &first)
        + &Version::V2_15.text(START + 60, NANOS, &second)
        + &since(Version::V2_15.text(START + 120, NANOS, &anew));
    scratch.file("oss1.log", &log);
    scratch.done("import newest.db --jobs jobs.csv --lustre oss1.log");
    let rows = rows_of(&scratch.done("job 4711 newest.db --csv - --interval 30"));
    let queue: Vec<String> = rows.iter().map(|row| cells(row, &QUEUE)).collect();
    assert_eq!(queue, ["30|20|3|6|10", "30|20|3|6|10", "30||||", "30|10|2|1|1"]);
}

/// Goal: where samples are missing nothing is shown, neither 0 nor an average over the gap; the job's bytes are whole
/// all the same.
#[test]
fn gaps() {
    let scratch = Scratch::new("gaps");
    scratch.file("jobs.csv", &format!("id,start,end,nodes\n4711,{START},{},n1\n", START + 900));
    let mut log = String::new();
    for minute in (0..=4).chain(11..=15) {
        let requests = 100 * (minute + 1);
        let counted = Counted {
            requests,
            wait: requests,
            depth: requests,
            active: requests,
            job_read_bytes: minute << 20,
            ..Counted::default()
        };
        log += &Version::V2_12.text(START + 60 * minute, 0, &counted);
    }
    scratch.file("oss1.log", &log);
    scratch.done("import p.db --jobs jobs.csv --lustre oss1.log");
    let rows = rows_of(&scratch.done("job 4711 p.db --csv - --interval 60"));
    let known: Vec<bool> = column(&rows, "requests_per_s").iter().map(|cell| !cell.is_empty()).collect();
    let wanted: Vec<bool> = (0..15).map(|minute| !(4..11).contains(&minute)).collect();
    assert_eq!(known, wanted);
    assert!(column(&rows, "requests_per_s").iter().all(|cell| cell.is_empty() || cell == "1.666667"), "{rows:?}");
    let told = scratch.done("job 4711 p.db");
    assert!(told.contains("samples are missing") && told.contains("read 15.0 MiB (15,728,640 bytes)"), "{told}");
    // Before the first and after the last sample nothing is known either.
    scratch.file("later.csv", &format!("id,start,end,nodes\n2,{},{},n1\n", START + 840, START + 1020));
    scratch.done("import p.db --jobs later.csv");
    let rows = rows_of(&scratch.done("job 2 p.db --csv - --interval 60"));
    assert_eq!(column(&rows, "requests_per_s"), ["1.666667", "", ""]);
}

/// A record of fluentd: the collector's time, and a whole text.
fn record(collected: f64, host: &str, text: &str) -> String {
    format!("{}\n", serde_json::json!({"time": collected, "host": host, "message": text}))
}

/// Goal: a server's clock that is days off, and one that leaps by an hour and back, change no row. Method: the same
/// counters by three servers, collected at the same moments.
#[test]
fn clocks() {
    let scratch = Scratch::new("clocks");
    scratch.file("jobs.csv", &format!("id,start,end,nodes\n4711,{START},{},n1\n", START + 600));
    let mut log = String::new();
    for step in 0..=20u64 {
        let (at, requests) = (START + 30 * step, 1000 + 60 * step * step);
        let counted =
            Counted { requests, wait: 10 * requests, depth: 2 * requests, active: requests, ..Counted::default() };
        let leap = if (8..13).contains(&step) { 3600 } else { 0 };
        log += &record(at as f64, "right", &Version::V2_12.text(at, 0, &counted));
        log += &record(at as f64, "days-off", &Version::V2_12.text(at - 200_000, 0, &counted));
        log += &record(at as f64, "leaping", &Version::V2_12.text(at - leap, 0, &counted));
    }
    scratch.file("fluentd.log", &log);
    scratch.done("import p.db --jobs jobs.csv --lustre fluentd.log");
    let rows = rows_of(&scratch.done("job 4711 p.db --csv - --interval 30"));
    assert_eq!(rows.len(), 60);
    let of = |server: &str| {
        let rows = rows.iter().filter(|row| row["server"] == server);
        rows.map(|row| cells(row, &["time", "req_waittime", "req_qdepth", "requests_per_s", "reset"]))
            .collect::<Vec<_>>()
    };
    assert_eq!((of("days-off"), of("leaping")), (of("right"), of("right")));
    assert!(of("right").iter().all(|row| row.contains("|10|2|")), "{:?}", of("right"));
    let offset = |server: &str| rows.iter().find(|row| row["server"] == server).unwrap()["clock_offset"].clone();
    assert_eq!((offset("right"), offset("days-off"), offset("leaping")), ("0".into(), "200000".into(), "0".into()));
    let told = scratch.done("job 4711 p.db");
    assert!(told.contains("+200000.000 s added to its clock, measured"), "{told}");
}

/// Goal: without a collector's time an offset can be given, and a clock that went back is told.
#[test]
fn given_offset() {
    let scratch = Scratch::new("offset");
    job_of_two_minutes(&scratch);
    let late: String = three()
        .iter()
        .enumerate()
        .map(|(minute, counted)| Version::V2_5.text(START + 60 * minute as u64 - 40, NANOS, counted))
        .collect();
    scratch.file("oss1.log", &late);
    scratch.done("import p.db --jobs jobs.csv --lustre oss1.log --clock-offset oss1=40");
    let rows = rows_of(&scratch.done("job 4711 p.db --csv - --interval 60"));
    assert_eq!(rows.iter().map(|row| cells(row, &QUEUE)).collect::<Vec<_>>(), ["60|20|3|6|10", "60|1000|20|8|20"]);
    assert_eq!(rows[0]["clock_offset"], "40");
    scratch.file("oss1.log", &(late + &Version::V2_5.text(START - 600, NANOS, &three()[0])));
    scratch.done("import p.db --lustre oss1.log");
    let events = scratch.done("events p.db");
    assert!(events.contains("the clock of oss1 went back by 11 min 20 s"), "{events}");
}

/// Goal: a command is run as often as was asked for, names its servers or is told them, and one that fails is told.
#[test]
fn commands() {
    let scratch = Scratch::new("command");
    scratch.file("one", &Version::V2_12.text(START, 0, &three()[0]));
    scratch.done("import p.db --server oss7 --every 0.01 --runs 3 --command cat*one".replace('*', "\t").as_str());
    let lines: String =
        Version::V2_12.text(START, 0, &three()[0]).lines().map(|line| format!("oss8: {line}\n")).collect();
    scratch.file("two", &lines);
    scratch.done("import p.db --command cat\ttwo");
    let words = scratch.refused("import p.db --command echo\thello", 1);
    assert!(words.contains("nothing that is of use"), "{words}");
    let words = scratch.refused("import p.db --command cat\tone;exit\t3 --server oss7x", 1);
    assert!(words.contains("failed"), "{words}");
}
