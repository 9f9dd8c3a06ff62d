//! Who was in the way: from logs of servers whose queues are computed request by request, so that it is known.

#![allow(clippy::unwrap_used)] // Tests, including their helpers.

mod common;

use common::{START, Scratch, Version, rows_of};
use std::collections::{BTreeMap, HashMap};

const MIB: u64 = 1 << 20;

/// A request: when it comes, in microseconds, and of which job (`-` for one that job_stats don't count).
type Request = (u64, &'static str);

#[derive(Debug, Clone, Copy, Default)]
struct OfJob {
    requests: u64,
    /// In microseconds.
    first: u64,
    last: u64,
}

/// A server that works on one request at a time, a millisecond for each.
#[derive(Debug, Default)]
struct Server {
    requests: Vec<Request>,
}

/// What it has counted until a moment.
#[derive(Debug, Default)]
struct Counters {
    begun: u64,
    wait: u64,
    written: u64,
    jobs: BTreeMap<&'static str, OfJob>,
}

impl Server {
    /// So many requests of each job at every tenth of a second, evenly mixed.
    fn bursts(mut self, seconds: std::ops::Range<u64>, jobs: &[(&'static str, u64)]) -> Server {
        for tenth in seconds.start * 10..seconds.end * 10 {
            let mut burst: Vec<(u64, &str)> = jobs
                .iter()
                .flat_map(|(job, count)| (0..*count).map(move |index| ((2 * index + 1) * 1000 / (2 * count), *job)))
                .collect();
            burst.sort();
            self.requests.extend(burst.iter().map(|(_, job)| (tenth * 100_000, *job)));
        }
        self.requests.sort_by_key(|(time, _)| *time);
        self
    }

    /// Each request's job, and when it was begun.
    fn begun(&self) -> Vec<(Request, u64)> {
        let mut free = 0;
        let mut begin = |request: &Request| {
            let begun = free.max(request.0);
            free = begun + 1000;
            (*request, begun)
        };
        self.requests.iter().map(&mut begin).collect()
    }

    fn counters(&self, until: u64) -> Counters {
        let mut counters = Counters::default();
        for ((came, job), begun) in self.begun().into_iter().filter(|(_, begun)| *begun < until) {
            counters.begun += 1;
            counters.wait += begun - came;
            let end = begun + 1000;
            if end > until {
                continue;
            }
            counters.written += 1;
            if job != "-" {
                let of_job = counters.jobs.entry(job).or_insert(OfJob { first: begun, ..OfJob::default() });
                (of_job.requests, of_job.last) = (of_job.requests + 1, end);
            }
        }
        counters
    }

    /// How long a job's requests waited, in seconds, of those that came in this time.
    fn waited(&self, job: &str, seconds: std::ops::Range<u64>) -> f64 {
        let of = |((came, whose), begun): ((u64, &str), u64)| {
            (whose == job && seconds.contains(&(came / 1_000_000))).then_some((begun - came) as f64 / 1e6)
        };
        self.begun().into_iter().filter_map(of).sum()
    }

    /// What it prints at a moment, by a clock that is so many seconds off.
    fn text(&self, version: Version, second: u64, clock: i64) -> String {
        let counters = self.counters(second * 1_000_000);
        let at = |micros: u64| ((START as i64 + clock) as u64 + micros / 1_000_000, micros % 1_000_000 * 1000);
        let (now, _) = at(second * 1_000_000);
        let head = version.head(now, 0);
        let queue: String = [("req_waittime", "usec", counters.wait), ("req_qdepth", "reqs", counters.begun)]
            .iter()
            .map(|(name, unit, sum)| version.counter(name, counters.begun, unit, *sum, true))
            .collect();
        let writes = version.counter("write_bytes", counters.written, "bytes", counters.written * MIB, false);
        let mut text = format!("ost.OSS.ost_io.stats=\n{head}{queue}obdfilter.s-OST0000.stats=\n{head}{writes}");
        text += "obdfilter.s-OST0000.job_stats=job_stats:\n";
        for (job, of_job) in &counters.jobs {
            text += &format!("- job_id:          {job}\n");
            let ((last, nanos), (first, first_nanos)) = (at(of_job.last), at(of_job.first));
            if version == Version::V2_15 {
                text += &format!("  {}", version.time("snapshot_time:", last, nanos, 16));
                text += &format!("  {}", version.time("start_time:", first, first_nanos, 16));
            } else {
                text += &format!("  snapshot_time:   {last}\n");
            }
            let (count, sum) = (of_job.requests, of_job.requests * MIB);
            text += &format!("  write_bytes:     {{ samples: {count}, unit: bytes, min: 1, max: 9, sum: {sum} }}\n");
        }
        text + "version=x\n"
    }
}

/// A job of 30 seconds at two servers, for 10 of them with others. Clocks are so many seconds off.
fn site(scratch: &Scratch, version: Version, flood: u64, clocks: [i64; 3]) -> [Server; 3] {
    let crowded = [("A", 4), ("B", flood)];
    let first = Server::default().bursts(0..10, &[("A", 4)]).bursts(10..20, &crowded).bursts(20..30, &[("A", 4)]);
    // After A, and where A is not.
    let first = first.bursts(33..38, &[("D", 60)]);
    let second = Server::default().bursts(0..5, &[("A", 4)]).bursts(5..8, &[("A", 4), ("-", 12)]);
    let servers = [first, second.bursts(8..30, &[("A", 4)]), Server::default().bursts(0..40, &[("C", 90)])];
    let mut log = String::new();
    for second in 0..=40 {
        for (index, server) in servers.iter().enumerate() {
            let message = server.text(version, second, clocks[index]);
            let (time, host) = ((START + second) as f64 + 0.003, format!("oss{}", index + 1));
            log += &format!("{}\n", serde_json::json!({"time": time, "host": host, "message": message}));
        }
    }
    scratch.file("fluentd.log", &log);
    let job = |id: &str, from: u64, to: u64| format!("{id},{},{},n1,name-{id},user-{id}\n", START + from, START + to);
    let jobs = [job("A", 0, 30), job("B", 8, 25), job("C", 0, 40), job("D", 31, 40)].concat();
    scratch.file("jobs.csv", &format!("id,start,end,nodes,name,user\n{jobs}"));
    // Its node is said to use the third one too, but it does not.
    scratch.file("nodes.csv", "node,io_server\nn1,oss3\nn9,oss1\n");
    scratch.done("import p.db --jobs jobs.csv --lustre fluentd.log --nodes nodes.csv");
    servers
}

/// The seconds of all rows that fit.
fn sum(rows: &[HashMap<String, String>], fits: impl Fn(&HashMap<String, String>) -> bool) -> f64 {
    rows.iter().filter(|row| fits(row)).map(|row| row["waiting_seconds"].parse::<f64>().unwrap()).sum()
}

/// Goal: a job that floods a server for ten seconds is named with server and seconds (1 s off at most), its part of the
/// waiting is within 10 points of the slow-down against a run alone, and jobs that were elsewhere, or there at another
/// time, are not named. Method: queues that are computed; three versions, clocks days apart, two floods.
#[test]
fn a_flood_is_named() {
    for (version, flood, clocks) in [
        (Version::V2_12, 36, [0, 0, 0]),
        (Version::V2_15, 36, [-260_000, 170_000, 0]),
        (Version::V2_12, 8, [400_000, -90_000, 7]),
        (Version::V2_5, 36, [-3, 86_400, 0]),
    ] {
        let scratch = Scratch::new(&format!("flood-{version:?}-{flood}"));
        let servers = site(&scratch, version, flood, clocks);
        let rows = rows_of(&scratch.done("neighbours A p.db --csv -"));
        let others: Vec<_> = rows.iter().filter(|row| row["whose"] == "other").collect();
        assert!(!others.is_empty() && others.iter().all(|row| row["neighbour"] == "B" && row["server"] == "oss1"));
        assert!(others.iter().all(|row| row["name"] == "name-B" && row["user"] == "user-B"), "{others:?}");
        let seconds: Vec<u64> =
            others.iter().map(|row| row["snapshot_time"].parse::<f64>().unwrap() as u64 - START).collect();
        assert!((10..=12).contains(&seconds[0]) && (19..=21).contains(seconds.last().unwrap()), "{seconds:?}");
        let at = |row: &HashMap<String, String>| row["snapshot_time"].parse::<f64>().unwrap() - START as f64;
        let of_flood = |row: &HashMap<String, String>| row["server"] == "oss1" && (10.5..20.5).contains(&at(row));
        let share = sum(&rows, |row| of_flood(row) && row["whose"] == "other") / sum(&rows, of_flood);
        let alone = Server::default().bursts(0..30, &[("A", 4)]).waited("A", 10..20);
        let slow_down = 1.0 - alone / servers[0].waited("A", 10..20);
        assert!((share - slow_down).abs() < 0.1, "{version:?} {flood}: {share} {slow_down}");
        // All that A waited is shared out, and comes near to what it did wait.
        let waited: f64 = servers.iter().map(|server| server.waited("A", 0..30)).sum();
        let told = sum(&rows, |_| true);
        assert!((told - waited).abs() < 0.05 * waited, "{told} {waited}");
        told_in_words(&scratch, flood);
    }
}

fn told_in_words(scratch: &Scratch, flood: u64) {
    let told = scratch.done("neighbours A p.db");
    let sentence = told.lines().find(|line| line.contains("let requests wait")).unwrap_or_else(|| panic!("{told}"));
    let of_all = 100.0 * flood as f64 / (flood + 4) as f64;
    let written = format!("wrote {:.1} MiB there", (flood * 100) as f64);
    let gib = format!("wrote {:.1} GiB there", (flood * 100) as f64 / 1024.0);
    assert!(
        sentence.starts_with("oss1 let requests wait for ") && sentence.contains("job B (name-B, user-B)"),
        "{told}"
    );
    assert!(sentence.contains(&written) || sentence.contains(&gib), "{told}");
    assert!(sentence.ends_with(&format!("({of_all:.0} % of what came)")), "{told}");
    let times: Vec<&str> = sentence.split(' ').filter(|word| word.starts_with("10:00:")).collect();
    assert!(["10:00:09", "10:00:10", "10:00:11"].contains(&times[0]), "{told}");
    assert!(["10:00:19", "10:00:20,", "10:00:21,"].contains(&times[1]), "{told}");
    assert!(!told.contains("job C") && !told.contains("job D"), "{told}");
    assert_eq!(told.matches("let requests wait").count(), 1, "{told}");
}

/// Goal: what came and is of no job that was counted is called that. Method: at server 2, three quarters of what came
/// in three seconds are in no job_stats.
#[test]
fn nobody_has_counted_it() {
    let scratch = Scratch::new("nobody");
    site(&scratch, Version::V2_15, 36, [0; 3]);
    let rows = rows_of(&scratch.done("neighbours A p.db --csv -"));
    let nobody: Vec<_> = rows.iter().filter(|row| row["whose"] == "nobody" && row["share"] != "0").collect();
    let percent = |row: &HashMap<String, String>| (100.0 * row["share"].parse::<f64>().unwrap()).round();
    let shares: Vec<(&str, &str, f64)> = nobody
        .iter()
        .filter(|row| percent(row) > 5.0)
        .map(|row| (row["server"].as_str(), &row["time"][17..19], percent(row)))
        .collect();
    assert_eq!(shares, [("oss2", "06", 75.0), ("oss2", "07", 75.0), ("oss2", "08", 75.0)]);
    assert!(scratch.done("neighbours A p.db").contains("not known to be of any job"));
}

/// Goal: a job at servers where nobody was waiting, or of whose time nothing is known, blames nobody; one that Lustre
/// does not count is told of with the waiting of all requests, and that is said. Method: by hand.
#[test]
fn little_is_known() {
    let scratch = Scratch::new("little");
    site(&scratch, Version::V2_12, 36, [0; 3]);
    let more = format!("id,start,end,nodes\nE,{},{},n8\nF,{START},{},n9\n", START + 5000, START + 5060, START + 30);
    scratch.file("more.csv", &more);
    scratch.done("import p.db --jobs more.csv");
    let told = scratch.done("neighbours E p.db");
    assert!(told.contains("none of its requests is known to have waited"), "{told}");
    assert!(told.contains("oss1, oss2, oss3: nothing is known of the queue"), "{told}");
    let told = scratch.done("neighbours F p.db");
    assert!(told.contains("oss1: the job is not in job_stats; it is the waiting of all requests"), "{told}");
    assert!(told.contains("job A (") && told.contains("job B ("), "{told}");
}

/// Goal: a question that can't be answered is refused as for 'job', and a table that can't be written leaves nothing.
#[test]
fn refusals() {
    let scratch = Scratch::new("neighbours-refused");
    site(&scratch, Version::V2_12, 36, [0; 3]);
    assert!(scratch.refused("neighbours Z p.db", 1).contains("there is no job Z in p.db"));
    assert!(scratch.refused("neighbours A q.db", 1).contains("no such place"));
    assert!(scratch.refused("neighbours A p.db --interval 1e-6", 2).contains("1,000,000 intervals"));
    assert!(scratch.refused("neighbours A p.db --csv no/where.csv", 1).contains("no/where.csv"));
    let before = scratch.files(".");
    scratch.done("neighbours A p.db --csv n.csv");
    assert_eq!(scratch.files(".").len(), before.len() + 1);
    assert!(rows_of(&scratch.text("n.csv")).len() > 50);
}
