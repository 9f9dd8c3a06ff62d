//! Networks of servers: InfiniBand, LNet and interfaces in the tables of a job, by hand.

#![allow(clippy::unwrap_used)] // Tests, including their helpers.

mod common;

use common::{Counted, START, Scratch, Version, cells, rows_of, said};

const INFINIBAND: [&str; 4] = [
    "infiniband_receive_bytes_per_s",
    "infiniband_send_bytes_per_s",
    "infiniband_send_wait_per_s",
    "infiniband_drops_per_s",
];
const LNET: [&str; 3] = ["lnet_receive_bytes_per_s", "lnet_send_bytes_per_s", "lnet_drops_per_s"];
const INTERFACE: [&str; 3] = ["interface_receive_bytes_per_s", "interface_send_bytes_per_s", "interface_drops_per_s"];

/// What a server prints at a moment: two ports of InfiniBand that grow alike.
fn text(minute: u64) -> String {
    let mut text = String::new();
    for device in ["mlx5_0", "mlx5_1"] {
        for (name, value) in [("rcv_data", 1500), ("xmit_data", 3000), ("xmit_wait", 600), ("xmit_discards", 0)] {
            let path = format!("/sys/class/infiniband/{device}/ports/1/counters/port_{name}");
            text += &format!("{path}:{}\n", 77 + minute * value);
        }
    }
    text += &format!("statistics:\n    send_length: {}\n    recv_length: {}\n", 1200 * minute, 600 * minute);
    text += "    drop_count: 9\nInter-|   Receive   |  Transmit\n face |bytes    packets errs |bytes\n";
    text += &format!("    lo: {0} 0 0 0 0 0 0 0 {0} 0 0 0 0 0 0 0\n", 999 * minute);
    text + &format!("  eth0: {0} 1 0 {1} 0 0 0 0 {0} 1 0 {1} 0 0 0 0\n", 6000 * minute, 60 * minute)
}

fn job(scratch: &Scratch) {
    scratch.file("jobs.csv", &format!("id,start,end,nodes\n7,{START},{},n1\n", START + 120));
    scratch.file("nodes.csv", "node,io_server\nn1,oss1\n");
}

fn check(scratch: &Scratch) {
    let rows = rows_of(&scratch.done("job 7 p.db --interval 60 --csv -"));
    assert_eq!(rows.len(), 2);
    for row in &rows {
        // Two ports, four bytes a unit: 1,500 units of each in a minute are 200 bytes a second.
        assert_eq!(cells(row, &INFINIBAND), "200|400|20|0");
        assert_eq!(cells(row, &LNET), "10|20|0");
        assert_eq!(cells(row, &INTERFACE), "100|100|2");
    }
}

/// Goal: rates are those by hand, in bytes, of all ports together; what nobody logged is empty; the same log twice
/// changes nothing. Method: a log with the time before each text, beside one of Lustre, then by pdsh.
#[test]
fn by_hand() {
    let scratch = Scratch::new("network");
    job(&scratch);
    let log: String = (0..3).map(|minute| format!("{}\n{}", START + 60 * minute, text(minute))).collect();
    scratch.file("oss1.log", &log);
    let counted = Counted { requests: 100, wait: 1000, depth: 100, active: 100, ..Counted::default() };
    let lustre: String = (0..3)
        .map(|minute| Version::V2_15.text(START + 60 * minute, 0, &Counted { requests: 100 + minute, ..counted }))
        .collect();
    scratch.file("lustre.log", &lustre);
    scratch.done("import p.db --jobs jobs.csv --nodes nodes.csv --lustre oss1=lustre.log");
    let rows = rows_of(&scratch.done("job 7 p.db --interval 60 --csv -"));
    let without = cells(&rows[0], &[INFINIBAND.as_slice(), &LNET, &INTERFACE].concat());
    assert!(without.chars().all(|letter| letter == '|'), "{without}");
    scratch.done("import p.db --network oss1.log");
    assert_eq!(scratch.done("events p.db"), "");
    check(&scratch);
    assert!(said(&scratch.run("import p.db --network oss1.log")).contains("12 samples, 0 of them new"));
    let told = scratch.done("job 7 p.db");
    assert!(told.contains("  infiniband: received 200 B/s, sent 400 B/s, waited 20.0 ticks/s"), "{told}");
    assert!(told.contains("  interface: received 100 B/s, sent 100 B/s, dropped 2.00/s"), "{told}");
    let mixed: String = log.lines().map(|line| format!("oss1: {line}\n")).collect();
    scratch.file("all.log", &mixed);
    scratch.done("import q.db --jobs jobs.csv --nodes nodes.csv --network all.log");
    std::fs::rename(scratch.0.join("q.db"), scratch.0.join("p.db")).unwrap();
    check(&scratch);
}

/// Goal: a collector's time counts, also where the servers' clocks are days off and Lustre's log has measured that; a
/// log with the server's own clock beside it is put right by the same offset. Method: fluentd's records.
#[test]
fn clocks() {
    let scratch = Scratch::new("network-clocks");
    job(&scratch);
    let record = |minute: u64, text: &str| {
        let time = START + 60 * minute;
        format!("{}\n", serde_json::json!({"time": time, "host": "oss1", "message": text}))
    };
    let counted = Counted { requests: 100, ..Counted::default() };
    let lustre: String =
        (0..3).map(|minute| record(minute, &Version::V2_15.text(START + 60 * minute - 200_000, 0, &counted))).collect();
    scratch.file("lustre.log", &lustre);
    let collected: String = (0..3).map(|minute| record(minute, &text(minute))).collect();
    scratch.file("collected.log", &collected);
    let line = "import p.db --jobs jobs.csv --nodes nodes.csv --lustre lustre.log --network";
    scratch.done(&format!("{line} collected.log"));
    check(&scratch);
    std::fs::remove_file(scratch.0.join("p.db")).unwrap();
    let log: String = (0..3).map(|minute| format!("{}\n{}", START + 60 * minute - 200_000, text(minute))).collect();
    scratch.file("own.log", &log);
    scratch.done(&format!("{line} oss1=own.log"));
    check(&scratch);
}

/// Goal: a log without times, or of another kind, is refused with words, and nothing is changed; a reset is none of it
/// negative.
#[test]
fn bad_input() {
    let scratch = Scratch::new("network-bad");
    job(&scratch);
    scratch.file("oss1.log", &text(1));
    let words = scratch.refused("import p.db --network oss1.log", 1);
    assert!(words.contains("nothing in what was read is of use") && !scratch.is_there("p.db"), "{words}");
    assert!(scratch.refused("import p.db --network nothing.log", 1).contains("nothing.log"));
    assert!(scratch.refused("import p.db --network =x", 2).contains("--network =x: SERVER=FILE"));
    let (first, again) = (format!("{START}\n{}", text(5)), format!("{}\n{}", START + 60, text(1)));
    scratch.file("oss1.log", &(first + &again));
    scratch.done("import p.db --jobs jobs.csv --nodes nodes.csv --network oss1.log");
    let rows = rows_of(&scratch.done("job 7 p.db --interval 60 --csv -"));
    assert_eq!((cells(&rows[0], &LNET), rows[0]["reset"].as_str()), ("10|20|0.15".into(), "1"));
}
