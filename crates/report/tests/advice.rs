//! Advice: each rule has an input that fires it and one just beside that which does not. Inputs are what servers print:
//! documents of 'tabane status --json', Lustre's statistics, network counters.

#![allow(clippy::unwrap_used)] // Tests, including their helpers.

mod common;

use common::{Counted, START, Scratch, Version, documents_of, load};
use serde_json::json;
use std::collections::BTreeSet;

const MIB: i64 = 1 << 20;
const SECOND: i64 = 1_000_000_000;
const ID: &str = "4458aef012bb3c283639e2e9badb4102";

/// Names of the rules that fire.
fn fired(scratch: &Scratch) -> BTreeSet<String> {
    let told = scratch.done("advice 7 p.db");
    assert!(told.starts_with("job 7"), "{told}");
    let rules = told.lines().skip(2).filter(|line| !line.starts_with(' ') && line.contains(": "));
    rules.map(|line| line.split(':').next().unwrap().to_owned()).collect()
}

/// What fires for a cluster's documents.
fn of_cluster(name: &str, servers: usize, change: impl Fn(usize, &mut common::Told)) -> BTreeSet<String> {
    let scratch = Scratch::new(&format!("advice-{}", name.replace([' ', '/'], "-")));
    let mut told = vec![load(); servers];
    told.iter_mut().enumerate().for_each(|(index, server)| change(index, server));
    scratch.file("status.json", &documents_of(ID, &told, 60));
    let jobs = format!("id,start,end,nodes\n7,{START},{},tabane-4458aef0\n", START + 600);
    scratch.file("jobs.csv", &jobs);
    scratch.done("import p.db --jobs jobs.csv --tabane status.json");
    fired(&scratch)
}

/// A change of one server's numbers, in a step of ten seconds.
type Change = fn(usize, &mut common::Told);

/// Goal: each rule about servers of Tabane fires alone where its measure is at its threshold, and does not below it.
/// Method: four servers with an even load, of which one thing is changed.
#[test]
fn rules_about_tabane() {
    let cases: [(&str, Change, Change); 24] = [
        (
            "long-wait",
            |i, told| told.wait_ns = if i == 2 { 11_000_000 } else { 0 },
            |i, told| {
                told.wait_ns = if i == 2 { 9_000_000 } else { 0 };
            },
        ),
        (
            "wait-lock",
            |i, told| told.waits_ns[0] = i64::from(i == 2) * 11 * SECOND,
            |_, told| told.waits_ns[0] = 9 * SECOND,
        ),
        (
            "wait-journal",
            |i, told| told.waits_ns[1] = i64::from(i == 2) * 11 * SECOND,
            |_, told| told.waits_ns[1] = 9 * SECOND,
        ),
        (
            "wait-sync",
            |i, told| told.waits_ns[2] = i64::from(i == 2) * 11 * SECOND,
            |_, told| told.waits_ns[2] = 9 * SECOND,
        ),
        (
            "wait-disk",
            |i, told| told.waits_ns[3] = i64::from(i == 2) * 11 * SECOND,
            |_, told| told.waits_ns[3] = 9 * SECOND,
        ),
        (
            "hot-server",
            |i, told| told.write_bytes *= if i == 2 { 4 } else { 1 },
            |i, told| {
                told.write_bytes *= if i == 2 { 2 } else { 1 };
            },
        ),
        (
            "idle-servers",
            |i, told| (told.write_bytes, told.read_bytes) = (i64::from(i < 2) * 20 * MIB, 0),
            |i, told| {
                (told.write_bytes, told.read_bytes) = (i64::from(i < 3) * 20 * MIB, 0);
            },
        ),
        (
            "hot-names",
            |i, told| told.names = if i == 2 { 10_000 } else { 100 },
            |i, told| {
                told.names = if i == 2 { 1_000 } else { 100 };
            },
        ),
        (
            "busy-loop",
            |i, told| told.busy_ns = if i == 2 { 9_200_000_000 } else { 0 },
            |i, told| {
                told.busy_ns = if i == 2 { 8_800_000_000 } else { 0 };
            },
        ),
        (
            "small-writes",
            |_, told| (told.writes, told.write_bytes) = (2_000, 40 * MIB),
            |_, told| {
                (told.writes, told.write_bytes) = (2_000, 80 * MIB);
            },
        ),
        (
            "small-reads",
            |_, told| (told.reads, told.read_bytes) = (2_000, 40 * MIB),
            |_, told| {
                (told.reads, told.read_bytes) = (2_000, 80 * MIB);
            },
        ),
        ("network", |i, told| told.way_ns = i64::from(i == 2) * 11_000_000, |_, told| told.way_ns = 9_000_000),
        // One late wake-up where few ask.
        ("network", |_, told| told.way_ns = 11_000_000, |_, told| (told.answers, told.way_ns) = (450, 11_000_000)),
        // 240 calls of each server, of some 950.
        (
            "across-chunks",
            |_, told| (told.writes, told.write_bytes, told.crossing) = (955, 9_550 << 20, 240),
            |_, told| (told.writes, told.write_bytes, told.crossing) = (956, 9_560 << 20, 239),
        ),
        // Of ten seconds, at four servers: 1.28 s, and 0.2 s of each of the three others, so 1.08 s more; then 1.16 s.
        (
            "slow-rank",
            |_, told| told.ranks = &[(50, 50_000_000), (50, 50_000_000), (50, 50_000_000), (400, 320_000_000)],
            |_, told| told.ranks = &[(50, 50_000_000), (50, 50_000_000), (50, 50_000_000), (400, 290_000_000)],
        ),
        ("many-calls", |_, told| told.names = 3_000, |_, told| (told.names, told.writes) = (3_000, 400)),
        ("fsync-storm", |_, told| told.fsyncs = 10, |_, told| told.fsyncs = 3),
        ("recalls", |i, told| told.recalls = if i == 1 { 110 } else { 0 }, |_, told| told.recalls = 90),
        ("awaited-leases", |i, told| told.leases = if i == 1 { 11 } else { 0 }, |_, told| told.leases = 9),
        ("full-store", |i, told| told.bytes_free = if i == 3 { 4 } else { 100 }, |_, told| told.bytes_free = 6),
        ("full-journal", |i, told| told.journal_used = if i == 3 { 91 } else { 1 }, |_, told| told.journal_used = 89),
        ("failed-checkpoints", |i, told| told.checkpoints_failed = i64::from(i == 0), |_, _| ()),
        ("resends", |i, told| told.resends = i64::from(i == 0), |_, _| ()),
        ("refused", |i, told| told.refused = i64::from(i == 0), |_, _| ()),
    ];
    assert_eq!(of_cluster("even load", 4, |_, _| ()), BTreeSet::new());
    for (rule, fires, does_not) in cases {
        // What makes names hot or many is one thing.
        let mut found = of_cluster(&format!("{rule}-fires"), 4, fires);
        if rule == "hot-names" {
            found.remove("many-calls");
        }
        assert_eq!(found, BTreeSet::from([rule.to_owned()]));
        let mut found = of_cluster(&format!("{rule}-does-not"), 4, does_not);
        found.remove("many-calls");
        assert_eq!(found, BTreeSet::new(), "{rule}");
    }
    // Small files as wholes are no small pieces.
    let whole: Change = |_, told| (told.names, told.writes, told.write_bytes) = (600, 2_000, 40 * MIB);
    assert_eq!(of_cluster("small files", 4, whole), BTreeSet::new());
    let pieces: Change = |_, told| (told.names, told.writes, told.write_bytes) = (400, 2_000, 40 * MIB);
    assert!(of_cluster("pieces of files", 4, pieces).contains("small-writes"));
    let relays: Change = |i, told| told.relay_bytes = if i == 0 { 20 * MIB } else { 0 };
    assert_eq!(of_cluster("relays", 4, relays), BTreeSet::from(["relayed".to_owned()]));
    let few: Change = |i, told| told.relay_bytes = if i == 0 { 5 * MIB } else { 0 };
    assert_eq!(of_cluster("few relays", 4, few), BTreeSet::new());
}

/// Goal: a server that was started again is told of, and one whose clock merely drifts is not.
#[test]
fn restarts() {
    let restart: Change = |i, told| told.restart_at = if i == 1 { 30 } else { 0 };
    assert_eq!(of_cluster("restart", 4, restart), BTreeSet::from(["restart".to_owned()]));
    let drift: Change = |_, told| told.drift_ns = 50_000;
    assert_eq!(of_cluster("drift", 4, drift), BTreeSet::new());
}

/// What fires for one server of Lustre whose counters grow so each ten seconds.
fn of_lustre(name: &str, step: &Counted) -> BTreeSet<String> {
    let scratch = Scratch::new(&format!("advice-lustre-{name}"));
    let mut log = String::new();
    for number in 0..=60 {
        let times = |value: u64| value * number;
        let counted = Counted {
            requests: times(step.requests),
            wait: times(step.wait),
            depth: times(step.depth),
            active: times(step.active),
            writes: times(step.writes),
            write_bytes: times(step.write_bytes),
            reads: times(step.reads),
            read_bytes: times(step.read_bytes),
            ..Counted::default()
        };
        log += &Version::V2_15.text(START + 10 * number, 0, &counted);
    }
    scratch.file("oss1.log", &log);
    scratch.file("jobs.csv", &format!("id,start,end,nodes\n7,{START},{},n1\n", START + 600));
    scratch.file("nodes.csv", "node,io_server\nn1,oss1\n");
    scratch.done("import p.db --jobs jobs.csv --nodes nodes.csv --lustre oss1.log");
    fired(&scratch)
}

/// Goal: rules about queues of Lustre's servers, which Tabane's do not tell of, and that sizes are judged there too.
#[test]
fn rules_about_lustre() {
    let only = |rule: &str| BTreeSet::from([rule.to_owned()]);
    let step = Counted { requests: 100, wait: 500_000, depth: 100, active: 100, ..Counted::default() };
    assert_eq!(of_lustre("quiet", &step), BTreeSet::new());
    assert_eq!(of_lustre("queue", &Counted { depth: 1_600, ..step }), only("queue"));
    assert_eq!(of_lustre("no-queue", &Counted { depth: 1_590, ..step }), BTreeSet::new());
    assert_eq!(of_lustre("slow", &Counted { wait: 2_000_000, ..step }), only("slow-storage"));
    assert_eq!(of_lustre("not-slow", &Counted { wait: 2_000_000, depth: 200, ..step }), BTreeSet::new());
    let small = Counted { writes: 200, write_bytes: 200 * 32_000, ..step };
    assert_eq!(of_lustre("small", &small), only("small-writes"));
    assert_eq!(of_lustre("large", &Counted { write_bytes: 200 * 33_000, ..small }), BTreeSet::new());
}

/// Goal: a network that gives up packets is told of from one a second on.
#[test]
fn drops() {
    for (each_step, rules) in [(10, vec!["drops".to_owned()]), (9, Vec::new())] {
        let scratch = Scratch::new(&format!("advice-drops-{each_step}"));
        let mut log = String::new();
        for step in 0..=60u64 {
            let dropped = each_step * step;
            log += &format!("{}\nInter-|   Receive   |  Transmit\n face |bytes\n", START + 10 * step);
            log += &format!("  eth0: {0} 1 0 {dropped} 0 0 0 0 {0} 1 0 0 0 0 0 0\n", 1000 * step);
        }
        scratch.file("oss1.log", &log);
        scratch.file("jobs.csv", &format!("id,start,end,nodes\n7,{START},{},n1\n", START + 600));
        scratch.file("nodes.csv", "node,io_server\nn1,oss1\n");
        scratch.done("import p.db --jobs jobs.csv --nodes nodes.csv --network oss1.log");
        assert_eq!(fired(&scratch), rules.into_iter().collect());
    }
}

/// Goal: another job is named from a third of the waiting on, and not if it did little.
#[test]
fn other_jobs() {
    for (others, rules) in [(6, vec!["other-job"]), (1, Vec::new())] {
        let scratch = Scratch::new(&format!("advice-others-{others}"));
        let mut log = String::new();
        for step in 0..=30u64 {
            let at = START + 10 * step;
            let head = Version::V2_15.head(at, 0);
            let sum = |of: u64| of * step * 1000;
            let queue = Version::V2_15.counter("req_waittime", sum(10), "usec", sum(10) * 9_000, true);
            let bytes = Version::V2_15.counter("write_bytes", sum(10), "bytes", sum(10) * 65_536, true);
            log += &format!("ost.OSS.ost_io.stats=\n{head}{queue}obdfilter.s-OST0.stats=\n{head}{bytes}");
            log += "obdfilter.s-OST0.job_stats=\njob_stats:\n";
            for (job, part) in [("7", 10 - others), ("8", others)] {
                log += &format!("- job_id:          {job}\n  snapshot_time:   {at}.000000000 secs.nsecs\n");
                log += &format!(
                    "  start_time:      {START}.000000000 secs.nsecs\n  write_bytes:     {{ samples: {}, ",
                    sum(part)
                );
                log += &format!("unit: bytes, min: 1, max: 9, sum: {} }}\n", sum(part) * 65_536);
            }
            log += "version=x\n";
        }
        scratch.file("oss1.log", &log);
        scratch.file("jobs.csv", &format!("id,start,end,nodes\n7,{START},{},n1\n", START + 300));
        scratch.done("import p.db --jobs jobs.csv --lustre oss1.log");
        let told = scratch.done("advice 7 p.db");
        assert_eq!(fired(&scratch), rules.iter().map(|rule| (*rule).to_owned()).collect(), "{told}");
        assert_eq!(told.contains("60 % of what its requests waited was because of job 8"), others == 6, "{told}");
    }
}

/// Goal: sentences name server, share and times, and say what to change and where that is written; little that is known
/// is said to be so; the table has all rules.
#[test]
fn words() {
    let scratch = Scratch::new("advice-words");
    let mut told = vec![load(); 4];
    told[2].busy_ns = 9_500_000_000;
    scratch.file("status.json", &documents_of(ID, &told, 60));
    let rest = format!("8,{},{},n9\n", START + 9_000, START + 9_060);
    scratch.file("jobs.csv", &format!("id,start,end,nodes\n7,{START},{},tabane-4458aef0\n{rest}", START + 600));
    scratch.done("import p.db --jobs jobs.csv --tabane status.json");
    let said = scratch.done("advice 7 p.db");
    let wanted = "busy-loop: 4458aef0-2 was at work 95 % of each second for 100 % of the time, longest from 10:00:00 \
                  to 10:10:00\n  start more servers, or larger calls: one server is one core (tuning.md)\n";
    assert!(said.ends_with(wanted), "{said}");
    assert!(scratch.done("advice 8 p.db").contains("nothing is known of its servers in this time"));
    let table = scratch.done("advice");
    assert!(table.lines().count() >= 14 && table.contains("| `hot-server` | "), "{table}");
    assert!(scratch.refused("advice 9 p.db", 1).contains("there is no job 9"));
    scratch.refused("advice 7", 2);
}

/// Goal: what the servers printed is read to the byte, and lines that are no such document are left out and told of.
#[test]
fn documents() {
    let scratch = Scratch::new("advice-documents");
    let document = documents_of(ID, &[load(), load()], 6);
    scratch.file("status.json", &format!("{document}nonsense\n{}", &document[..200]));
    scratch.file("jobs.csv", &format!("id,start,end,nodes\n7,{START},{},tabane-4458aef0\n", START + 60));
    scratch.done("import p.db --jobs jobs.csv --tabane status.json");
    let rows = common::rows_of(&scratch.done("job 7 p.db --interval 60 --csv -"));
    assert_eq!(common::column(&rows, "server"), ["4458aef0-0", "4458aef0-1"]);
    let rate = |row: &str, name: &str| {
        let row = rows.iter().find(|found| found["server"] == row).unwrap();
        row[name].parse::<f64>().unwrap() * 60.0
    };
    let near = |value: f64, wanted: i64| (value - wanted as f64).abs() < 1e-3;
    assert!(near(rate("4458aef0-1", "write_bytes_per_s"), 6 * load().write_bytes));
    assert!(near(rate("4458aef0-1", "writes_per_s"), 6 * load().writes));
    assert_eq!(rows[0]["req_qdepth"], "", "nobody knows its mean");
    let events = scratch.done("events p.db");
    assert!(events.contains("it is no part of what") && events.contains("is cut"), "{events}");
    scratch.file("other.json", &format!("{}\n", json!({ "a": 1 })));
    assert!(scratch.refused("import q.db --tabane other.json", 1).contains("nothing in what was read is of use"));
    assert!(!scratch.is_there("q.db"));
}
