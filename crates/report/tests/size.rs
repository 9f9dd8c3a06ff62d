//! Large inputs and large places: memory is bounded, and an answer takes as long as its rows need.

#![allow(clippy::unwrap_used)] // Tests, including their helpers.

mod common;

use common::{START, Scratch, said};
use rusqlite::{Connection, params};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Address space of an import, whatever it reads: 64 MiB of SQLite's pages, one line, and the program.
const MEMORY_KIB: u64 = 320 << 10;
const JOBS: u64 = 100_000;
const SECOND: i64 = 1_000_000_000;

/// Runs it with no more address space than that.
fn bounded(scratch: &Scratch, line: &str) {
    let command = format!("ulimit -v {MEMORY_KIB}; exec '{}' {line}", env!("CARGO_BIN_EXE_tabane-report"));
    let output = Command::new("sh").args(["-c", &command]).current_dir(&scratch.0).output().unwrap();
    assert!(output.status.success(), "{line}: {}", said(&output));
}

fn write(scratch: &Scratch, name: &str, lines: impl Iterator<Item = String>) -> u64 {
    let mut output = BufWriter::new(File::create(scratch.0.join(name)).unwrap());
    lines.for_each(|line| output.write_all(line.as_bytes()).unwrap());
    output.into_inner().unwrap().metadata().unwrap().len()
}

/// Goal: 100,000 jobs, of Slurm in both forms and in job_stats, take no more memory than a few. Method: imports of some
/// 150 MB within an address space of 320 MiB; afterwards one of the jobs is asked about within the same.
#[test]
fn a_hundred_thousand_jobs() {
    let scratch = Scratch::new("jobs-100000");
    let head = std::iter::once("JobID|Start|End|NodeList|JobName|User|State\n".to_owned());
    let time = |job: u64| START + job % 86_400;
    let table = (0..JOBS).map(|job| {
        format!("{job}|{}|{}|n[1-64]|a job of some name|user{}|COMPLETED\n", time(job), time(job) + 600, job % 99)
    });
    let mut read = write(&scratch, "sacct.txt", head.chain(table));
    let steps = "{\"step\": {\"id\": 1, \"tres\": [1, 2, 3]}}, ".repeat(12) + "{}";
    let record = |job: u64| {
        let (comma, id, start, end) = (if job == 0 { "" } else { "," }, JOBS + job, time(job), time(job) + 600);
        let times = format!("{{\"start\": {start}, \"end\": {end}}}");
        format!("{comma}{{\"job_id\": {id}, \"nodes\": \"n[1-64]\", \"steps\": [{steps}], \"time\": {times}}}\n")
    };
    let document = std::iter::once("{\"jobs\": [".to_owned()).chain((0..JOBS).map(record)).chain(["]}".to_owned()]);
    read += write(&scratch, "sacct.json", document);
    let record = |job: u64| {
        let bytes = |name: &str| format!("  {name}      {{ samples: 9, unit: bytes, min: 1, max: 9, sum: {job} }}\n");
        let punch = "  punch:           { samples: 3, unit: reqs }\n";
        let head = format!("- job_id:          {job}\n  snapshot_time:   {}\n", time(job) + 30);
        head + &bytes("read_bytes:") + &bytes("write_bytes:") + punch
    };
    let head = std::iter::once("obdfilter.scratch-OST0000.job_stats=job_stats:\n".to_owned());
    read += write(&scratch, "oss1.log", head.chain((0..JOBS).map(record)).chain(["version=x\n".to_owned()]));
    bounded(&scratch, "import p.db --jobs sacct.txt sacct.json --lustre oss1.log");
    bounded(&scratch, "job 77777 p.db --csv out --heat-map a.svg --map machine");
    let told = scratch.done("job 77777 p.db");
    assert!(told.contains("read 76.0 KiB (77,777 bytes), wrote 76.0 KiB (77,777 bytes)"), "{told}");
    assert!(read > 80_000_000, "{read}");
}

/// Servers, and a week of samples of them every minute.
const SERVERS: i64 = 100;
const MINUTES: i64 = 7 * 24 * 60;
const NODES: i64 = 400;
/// Each job is seen so often at each of its two servers.
const SAMPLES_OF_JOB: i64 = 90;

const ADD_QUEUE: &str = "INSERT INTO samples
    (series, time_ns, wait_count, wait_us, depth_count, depth, active_count, active)
    VALUES (?1, ?2, ?3, ?4, ?3, ?5, ?3, ?6)";
const ADD_BYTES: &str = "INSERT INTO samples
    (series, time_ns, reads, read_bytes, writes, write_bytes, operations) VALUES (?1, ?2, ?3, ?4, ?3, ?5, 0)";
const ADD_SERIES: &str = "INSERT INTO series VALUES (?1, ?2, ?3, ?4, ?5)";

fn start_of(job: i64) -> i64 {
    START as i64 + job * 7 % (MINUTES * 60 - 6000)
}

/// 20 million samples: of each job 90 at each of two servers, and of each server its queue and a target.
fn fill(scratch: &Scratch) {
    let node = |node: i64| format!("n{node},oss{}\n", node % SERVERS);
    write(scratch, "nodes.csv", std::iter::once("node,io_server\n".to_owned()).chain((0..NODES).map(node)));
    let job = |job: i64| {
        let (start, nodes) = (start_of(job), (job % NODES, (job + 1) % NODES));
        format!("{job},{start},{},\"n{},n{}\"\n", start + 5400, nodes.0, nodes.1)
    };
    let (start, end) = (START as i64 + 60, START as i64 + MINUTES * 60 - 60);
    let large = format!("large,{start},{end},n[0-{}]\n", NODES - 1);
    let head = std::iter::once("id,start,end,nodes\n".to_owned());
    write(scratch, "jobs.csv", head.chain((0..JOBS as i64).map(job)).chain([large]));
    scratch.done("import p.db --jobs jobs.csv --nodes nodes.csv");
    let mut connection = Connection::open(scratch.0.join("p.db")).unwrap();
    connection.pragma_update(None, "synchronous", "OFF").unwrap();
    let transaction = connection.transaction().unwrap();
    let samples = fill_servers(&transaction) + fill_jobs(&transaction);
    transaction.commit().unwrap();
    assert!(samples >= 20_000_000, "{samples}");
}

fn fill_servers(connection: &Connection) -> u64 {
    let mut add_server = connection.prepare("INSERT INTO servers (server, name) VALUES (?1, ?2)").unwrap();
    let mut add_series = connection.prepare(ADD_SERIES).unwrap();
    let (mut queue, mut bytes) = (connection.prepare(ADD_QUEUE).unwrap(), connection.prepare(ADD_BYTES).unwrap());
    for server in 0..SERVERS {
        add_server.execute(params![server, format!("oss{server}")]).unwrap();
        let of_queue = 2 * server;
        add_series.execute(params![of_queue, server, "service", "ost_io", ""]).unwrap();
        add_series.execute(params![of_queue + 1, server, "target", format!("scratch-OST{server:04x}"), ""]).unwrap();
        for minute in 0..MINUTES {
            let (time, count) = ((START as i64 + minute * 60) * SECOND, minute * (600 + server));
            queue.execute(params![of_queue, time, count, count * 900, count * 3, count * 2]).unwrap();
        }
        for minute in 0..MINUTES {
            let (time, count) = ((START as i64 + minute * 60) * SECOND, minute * (600 + server));
            bytes.execute(params![of_queue + 1, time, count, count << 20, count << 18]).unwrap();
        }
    }
    (2 * SERVERS * MINUTES) as u64
}

fn fill_jobs(connection: &Connection) -> u64 {
    let mut add_series = connection.prepare(ADD_SERIES).unwrap();
    let mut bytes = connection.prepare(ADD_BYTES).unwrap();
    for job in 0..JOBS as i64 {
        for place in 0..2 {
            let (series, server) = (2 * SERVERS + 2 * job + place, (job + place) % NODES % SERVERS);
            let target = format!("scratch-OST{server:04x}");
            add_series.execute(params![series, server, "job", target, job.to_string()]).unwrap();
            for sample in 0..SAMPLES_OF_JOB {
                let time = (start_of(job) + 30 + sample * 60) * SECOND;
                bytes.execute(params![series, time, sample, sample << 20, sample << 10]).unwrap();
            }
        }
    }
    JOBS * 2 * SAMPLES_OF_JOB as u64
}

/// The rows that an answer about a job is made of: when, and the keys of its series.
#[derive(Clone)]
struct Wanted {
    job: String,
    start: i64,
    end: i64,
    series: Vec<i64>,
}

impl Wanted {
    fn ordinary(job: i64) -> Wanted {
        let servers = [job % NODES % SERVERS, (job + 1) % NODES % SERVERS];
        let mut series: Vec<i64> = servers.iter().flat_map(|server| [2 * server, 2 * server + 1]).collect();
        series.extend([2 * SERVERS + 2 * job, 2 * SERVERS + 2 * job + 1]);
        let start = start_of(job);
        Wanted { job: job.to_string(), start, end: start + 5400, series }
    }

    fn large() -> Wanted {
        let (start, end) = (START as i64 + 60, START as i64 + MINUTES * 60 - 60);
        Wanted { job: "large".into(), start, end, series: (0..2 * SERVERS).collect() }
    }

    fn text(&self) -> String {
        let series: Vec<String> = self.series.iter().map(i64::to_string).collect();
        format!("{} {} {}", self.start, self.end, series.join(" "))
    }
}

/// Writes rows as CSV, found by their keys. How many there are.
fn copy_rows_out(place: &Path, wanted: &str, output: &Path) -> u64 {
    let numbers: Vec<i64> = wanted.split(' ').map(|word| word.parse().unwrap()).collect();
    let connection = Connection::open(place).unwrap();
    let rows = "SELECT * FROM samples WHERE series = ?1 AND time_ns BETWEEN ?2 AND ?3";
    let mut copy = connection.prepare(rows).unwrap();
    let mut writer = csv::Writer::from_path(output).unwrap();
    let mut count = 0;
    for series in &numbers[2..] {
        let mut rows = copy.query(params![series, numbers[0] * SECOND, numbers[1] * SECOND]).unwrap();
        while let Some(row) = rows.next().unwrap() {
            for column in 0..15 {
                let value: Option<i64> = row.get(column).unwrap();
                writer.write_field(value.map(|value| value.to_string()).unwrap_or_default()).unwrap();
            }
            writer.write_record(None::<&[u8]>).unwrap();
            count += 1;
        }
    }
    writer.flush().unwrap();
    count
}

#[allow(clippy::disallowed_methods)] // A measurement.
fn timed(run: impl FnOnce()) -> Duration {
    let begun = Instant::now();
    run();
    begun.elapsed()
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

/// The copy as a process of its own, as the program is one: what it is told is in files beside the place.
#[test]
#[ignore = "a part of the measurement below"]
fn copy() {
    let Ok(wanted) = std::fs::read_to_string("wanted") else { return };
    copy_rows_out(Path::new("p.db"), &wanted, Path::new("rows.csv"));
}

/// Goal: with 20 million samples of 100,000 jobs, a job's CSV takes at most 3 times what copying its rows out takes.
/// Method: both as processes, in turns, medians of 21 ordinary jobs (90 minutes, two servers), and of 5 runs for one of
/// all nodes over the whole week. The copy is told the keys of its rows.
#[test]
#[ignore = "fills a place of 1 GB, and measures for a minute"]
fn twenty_million_samples() {
    let scratch = Scratch::new("samples-20000000");
    let filled = timed(|| fill(&scratch));
    let size = std::fs::metadata(scratch.0.join("p.db")).unwrap().len();
    println!("filled in {filled:.1?}, {} MiB", size >> 20);
    let itself = std::env::current_exe().unwrap();
    let ordinary: Vec<Wanted> = (0..21).map(|job| Wanted::ordinary(job * 4_567)).collect();
    for (name, jobs) in [("ordinary", ordinary), ("large", vec![Wanted::large(); 5])] {
        let (mut copies, mut answers) = (Vec::new(), Vec::new());
        let rows = copy_rows_out(&scratch.0.join("p.db"), &jobs[0].text(), &scratch.0.join("rows.csv"));
        for wanted in &jobs {
            scratch.file("wanted", &wanted.text());
            let mut copy = Command::new(&itself);
            copy.args(["--ignored", "--exact", "copy"]).current_dir(&scratch.0);
            // Both once before, so that neither meets a cold page.
            let line = format!("job {} p.db --csv out", wanted.job);
            scratch.done(&line);
            copies.push(timed(|| assert!(copy.output().unwrap().status.success())));
            answers.push(timed(|| drop(scratch.done(&line))));
        }
        let (copy, answer) = (median(copies), median(answers));
        let ratio = answer.as_secs_f64() / copy.as_secs_f64();
        println!("{name}: {rows} rows; copied out in {copy:.2?}, CSV in {answer:.2?}, {ratio:.2} times");
        // Of all jobs at its servers, so there is no copy to compare it with.
        let neighbours = timed(|| drop(scratch.done(&format!("neighbours {} p.db", jobs[0].job))));
        println!("{name}: who was in its way, in {neighbours:.2?}");
        assert!(ratio <= 3.0, "{name}: {ratio}");
    }
}
