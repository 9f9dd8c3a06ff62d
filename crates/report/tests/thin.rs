//! Samples that are taken away, and what stays.

#![allow(clippy::unwrap_used)] // Tests, including their helpers.

mod common;

use common::{START, Scratch, documents_of, load};

const ID: &str = "4458aef012bb3c283639e2e9badb4102";

fn place(scratch: &Scratch) {
    let mut told = vec![load(); 2];
    // The counters of one begin anew within a minute.
    told[1].restart_at = 100;
    scratch.file("status.json", &documents_of(ID, &told, 360));
    scratch.file("jobs.csv", &format!("id,start,end,nodes\n7,{START},{},tabane-4458aef0\n", START + 3600));
    scratch.done("import p.db --jobs jobs.csv --tabane status.json");
}

/// What a job's profile sums up to, by server and column, at an interval.
fn sums(scratch: &Scratch, interval: u32) -> Vec<(String, f64)> {
    let text = scratch.done(&format!("job 7 p.db --interval {interval} --csv -"));
    let mut sums = std::collections::BTreeMap::new();
    for row in common::rows_of(&text) {
        for column in ["requests_per_s", "read_bytes_per_s", "write_bytes_per_s"] {
            let key = format!("{} {column}", row["server"]);
            *sums.entry(key).or_insert(0.0) += row[column].parse::<f64>().unwrap_or(0.0);
        }
    }
    sums.into_iter().collect()
}

/// Goal: of an hour of samples every 10 s one a minute stays, and the sums stay, through a restart within a minute;
/// what is younger or of others stays as it is.
#[test]
fn sums_stay() {
    let scratch = Scratch::new("thin");
    place(&scratch);
    let (job, before) = (scratch.done("job 7 p.db --interval 600"), sums(&scratch, 600));
    assert_eq!(said(&scratch, "thin p.db --servers other-*"), "p.db: 0 samples taken away\n");
    let far = u64::MAX >> 34;
    assert_eq!(said(&scratch, &format!("thin p.db --older {far}")), "p.db: 0 samples taken away\n");
    let words = said(&scratch, "thin p.db --older 1");
    let count: u64 = words.strip_prefix("p.db: ").unwrap().split(' ').next().unwrap().replace(',', "").parse().unwrap();
    assert!(count > 1000, "{words}");
    assert_eq!(said(&scratch, "thin p.db --older 1"), "p.db: 0 samples taken away\n");
    let told = |text: &str| text.lines().find(|line| line.contains("the job itself")).map(str::to_owned);
    assert_eq!(told(&scratch.done("job 7 p.db --interval 600")), told(&job));
    for ((name, old), (_, new)) in before.into_iter().zip(sums(&scratch, 600)) {
        assert!((old - new).abs() <= old * 1e-3, "{name}: {old} became {new}");
    }
}

fn said(scratch: &Scratch, line: &str) -> String {
    let output = scratch.run(line);
    assert!(output.status.success(), "{}", common::said(&output));
    String::from_utf8(output.stderr).unwrap()
}

/// Goal: a place that is not there is not made.
#[test]
fn no_place() {
    let scratch = Scratch::new("thin-none");
    assert!(scratch.refused("thin p.db", 1).contains("there is no such place"));
    assert!(!scratch.is_there("p.db"));
}
