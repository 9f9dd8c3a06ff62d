//! Experiments, simulated and with real processes: what their lines say, the shapes that the simulator promises (in
//! virtual time, so the same on any machine), and that pictures are pictures.

#![allow(clippy::unwrap_used)] // Tests, including their helpers.

mod common;

use common::{STORE, tabane};
use serde_json::Value;
use std::path::PathBuf;
use std::process::{Command, Stdio};

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tabane-bench"));
    command.args(arguments).stdin(Stdio::null()).env_remove("TABANE_CLUSTER");
    command
}

fn lines(arguments: &[&str]) -> Vec<Value> {
    let output = command(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn number(line: &Value, key: &str) -> f64 {
    line[key].as_f64().unwrap_or_else(|| panic!("{key} is missing in {line}"))
}

/// The value of a key in the one line that fits.
fn one(lines: &[Value], wanted: &[(&str, Value)], key: &str) -> f64 {
    let fits = |line: &&Value| wanted.iter().all(|(key, value)| line[*key] == *value);
    let found: Vec<&Value> = lines.iter().filter(fits).collect();
    assert_eq!(found.len(), 1, "{wanted:?} in {lines:?}");
    number(found[0], key)
}

/// A file that goes with the test.
struct Picture(PathBuf);

impl Picture {
    fn new(name: &str) -> Picture {
        Picture(std::env::temp_dir().join(format!("tabane-bench-{name}-{}.svg", std::process::id())))
    }

    fn argument(&self) -> String {
        format!("--plot={}", self.0.display())
    }

    /// It parses as XML, and all of these stand in it.
    fn assert_says(&self, wanted: &[&str]) {
        let text = std::fs::read_to_string(&self.0).unwrap();
        let document = roxmltree::Document::parse(&text).unwrap();
        assert_eq!(document.root_element().tag_name().name(), "svg");
        let texts: Vec<String> = document
            .descendants()
            .filter(|node| node.has_tag_name("text"))
            .map(|node| node.text().unwrap_or_default().trim().to_owned())
            .collect();
        for words in wanted {
            assert!(texts.iter().any(|text| text.contains(words)), "{words} in {texts:?}");
        }
    }
}

impl Drop for Picture {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Goal: in the simulator's model a search by one process a server grows with the servers: at least 0.8 of it from 16
/// to 256; tested on the servers it is at least 5 times as fast as readdir and stat. Method: 120 files of each kind a
/// server, in virtual time.
#[test]
fn simulated_find_is_near_linear() {
    let picture = Picture::new("find");
    let lines = lines(&["find", "--simulate", "--servers=16,256", "--files=120", &picture.argument()]);
    assert_eq!(lines.len(), 6);
    assert!(lines.iter().all(|line| line["engine"] == "simulated" && number(line, "found") > 0.0));
    let rate = |way: &str, servers: u32| one(&lines, &[("way", way.into()), ("servers", servers.into())], "ops_per_s");
    let growth = rate("servers", 256) / rate("servers", 16);
    assert!((0.8 * 16.0..1.2 * 16.0).contains(&growth), "{growth}");
    // A few files fit on each server, on some more than on others, and each is asked for.
    assert!(rate("index", 256) > 0.3 * 16.0 * rate("index", 16), "{lines:?}");
    for servers in [16, 256] {
        assert!(rate("servers", servers) > 5.0 * rate("stat", servers), "{lines:?}");
    }
    picture.assert_says(&["simulated", "Model:", "servers", "entries per second", "readdir and stat"]);
}

/// Goal: modular placement gives all servers the same bytes within 2 per cent, a ring does not, and is slower for it.
#[test]
fn simulated_placement_is_even() {
    let picture = Picture::new("placement");
    let sizes = ["--block-size=6MiB", "--files=20", "--chunk-size=16KiB"];
    let lines = lines(&[&["placement", "--simulate", "--servers=8,12"], &sizes[..], &[&picture.argument()]].concat());
    // Twelve phases for each of two placements and two counts of servers.
    assert_eq!(lines.len(), 48);
    for servers in [8, 12] {
        for bench in ["ior-easy", "ior-hard"] {
            let value = |placement: &str, key: &str| {
                let phase: [(&str, Value); 4] = [
                    ("placement", placement.into()),
                    ("servers", servers.into()),
                    ("bench", bench.into()),
                    ("phase", "write".into()),
                ];
                one(&lines, &phase, key)
            };
            assert!(value("modular", "bytes_spread") <= 0.02, "{lines:?}");
            assert!(value("ring", "bytes_spread") > 0.05, "{lines:?}");
            assert!(value("modular", "mib_per_s") > value("ring", "mib_per_s"), "{lines:?}");
        }
    }
    for line in &lines {
        let shares = line["bytes_per_server"].as_array().unwrap();
        assert_eq!(shares.len() as f64, number(line, "servers"));
    }
    picture.assert_says(&["simulated", "MiB per second", "files per second", "per cent", "ring"]);
}

/// Goal: streams get as many bytes of a server, however large their records are, and these and a flood of small
/// requests leave each other their part.
#[test]
fn simulated_shares_are_even() {
    let picture = Picture::new("shares");
    let shares = |more: &[&str]| {
        lines(&[&["shares", "--simulate", "--servers=1", "--seconds=0.2", &picture.argument()], more].concat())
    };
    for (procs, sizes) in [("--procs=8", "--record-sizes=4KiB,1MiB"), ("--procs=15", "--record-sizes=4KiB,64KiB,1MiB")]
    {
        let found = shares(&[procs, sizes]);
        assert!(found.iter().all(|line| (0.9..1.1).contains(&number(line, "share"))), "{found:?}");
    }
    let found = shares(&["--procs=8", "--flood=4", "--record-sizes=1MiB"]);
    for (kind, least) in [(0, 0.25), (1 << 20, 0.45)] {
        let of_kind: Vec<f64> =
            found.iter().filter(|line| line["record_size"] == kind).map(|line| number(line, "of_alone")).collect();
        let mean = of_kind.iter().sum::<f64>() / of_kind.len() as f64;
        assert!(mean >= least, "{kind}: {found:?}");
    }
    picture.assert_says(&["simulated", "small requests", "records of 1 MiB", "rate of each kind"]);
}

/// Goal: with all requests of a call at once, a process's bandwidth grows with the call at every chunk size, at least
/// fivefold from 1 to 64 chunks of 4 KiB; with one request after the other it does not.
#[test]
fn simulated_async_grows_and_serial_is_flat() {
    let picture = Picture::new("async");
    let arguments = ["async", "--simulate", "--chunk-counts=1,8,64", "--chunk-sizes=4KiB,64KiB,512KiB"];
    let volume = "--block-size=33554432";
    let at_once = lines(&[&arguments[..], &[volume, &picture.argument()]].concat());
    let serial = lines(&[&arguments[..], &[volume, "--serial"]].concat());
    let rate = |lines: &[Value], size: u32, count: u32| {
        one(lines, &[("chunk_size", size.into()), ("chunks_per_call", count.into())], "mib_per_s")
    };
    for size in [4 << 10, 64 << 10, 512 << 10] {
        assert!(rate(&at_once, size, 1) < rate(&at_once, size, 8), "{at_once:?}");
        assert!(rate(&at_once, size, 8) < 1.1 * rate(&at_once, size, 64), "{at_once:?}");
        let flat = rate(&serial, size, 64) / rate(&serial, size, 1);
        assert!((0.8..1.25).contains(&flat), "{size}: {flat}");
    }
    assert!(rate(&at_once, 4 << 10, 64) > 5.0 * rate(&at_once, 4 << 10, 1), "{at_once:?}");
    picture.assert_says(&["simulated", "chunks written in one call", "MiB per second", "chunks of 4 KiB"]);
}

/// Goal: without a cache the home of a file answers every open, so that requests and time grow with the clients.
#[test]
fn simulated_open_storm_loads_the_home() {
    let picture = Picture::new("storm");
    let arguments = ["open-storm", "--simulate", "--clients=32,128", "--contact=off"];
    let found = lines(&[&arguments[..], &[&picture.argument()]].concat());
    // A simulation comes out the same each time.
    assert_eq!(lines(&arguments), found);
    let lines = found;
    let value = |clients: u32, key: &str| one(&lines, &[("clients", clients.into())], key);
    assert_eq!((value(32, "home_requests"), value(128, "home_requests")), (32.0, 128.0), "{lines:?}");
    assert!(value(128, "seconds") > 2.0 * value(32, "seconds"), "{lines:?}");
    picture.assert_says(&["simulated", "clients", "microseconds an open", "requests", "without contacts"]);
}

/// Goal: with contacts the home answers no more requests for 512 clients than for 64.
#[test]
fn simulated_contacts_spare_the_home() {
    let lines = lines(&["open-storm", "--simulate", "--contact=always", "--clients=64,512"]);
    let value = |clients: u32| one(&lines, &[("clients", clients.into())], "home_requests");
    // Each of the seven contacts sends one client on and asks once.
    assert_eq!((value(64), value(512)), (14.0, 14.0), "{lines:?}");
}

/// Goal: where all processes write to each server at once requests wait there, and where one does hardly any; servers
/// say so, simulated and real. The same bytes are written both ways.
#[test]
fn congestion_shows_in_the_queues() {
    let picture = Picture::new("congestion");
    let arguments = ["congestion", "--simulate", "--servers=2,4", "--pieces=8", &picture.argument()];
    let found = lines(&arguments);
    assert_eq!(found.len(), 8);
    for servers in [2u32, 4] {
        let value =
            |writers: &str, key: &str| one(&found, &[("servers", servers.into()), ("writers", writers.into())], key);
        for writers in ["view", "turns"] {
            assert_eq!(value(writers, "bytes"), value("all", "bytes"));
        }
        let ratio = |key: &str| value("all", key) / value("one-a-server", key);
        assert_eq!(ratio("bytes"), 1.0);
        assert!(
            ratio("req_qdepth") > 30.0 && ratio("req_waittime_us") > 10.0 && ratio("req_active") > 3.0,
            "{found:?}"
        );
        assert!(value("all", "req_qdepth") > 4.0 && value("one-a-server", "req_qdepth") < 1.0, "{found:?}");
    }
    picture.assert_says(&["simulated", "requests that wait at a server", "one writer a server", "all processes"]);
    let real = lines(&["congestion", "--servers=2", "--procs=8", "--pieces=40", "--transport=tcp"]);
    let value = |writers: &str, key: &str| one(&real, &[("writers", writers.into())], key);
    assert_eq!(value("all", "bytes"), value("one-a-server", "bytes"));
    assert!(value("all", "req_qdepth") > 0.0 && value("all", "req_active") > 0.0, "{real:?}");
}

/// Goal: all modes of hpio move the same bytes, which the processes compare, and differ in how many ask the servers: a
/// few a node, one a server, or everybody. Method: a small simulation, its table and its picture; then real processes,
/// whose file takes several windows.
#[test]
fn hpio_in_all_modes() {
    let picture = Picture::new("hpio");
    let csv = std::env::temp_dir().join(format!("tabane-bench-hpio-{}.csv", std::process::id()));
    let table = format!("--csv={}", csv.display());
    let pattern = ["hpio", "--simulate", "--servers=2", "--procs=16", "--pieces=24", "--chunk-size=256KiB"];
    let found = lines(&[&pattern[..], &[&table, &picture.argument()]].concat());
    assert_eq!(found.len(), 4 * 2 * 2);
    let value = |mode: &str, turns: &str, pass: &str, key: &str| {
        one(&found, &[("mode", mode.into()), ("turns", turns.into()), ("pass", pass.into())], key)
    };
    for pass in ["write", "read"] {
        for (mode, turns) in
            ["list", "node", "stripe", "view"].into_iter().flat_map(|mode| [(mode, "off"), (mode, "on")])
        {
            assert_eq!(value(mode, turns, pass, "bytes"), 16.0 * 24.0 * 5992.0);
        }
        let requests = |mode: &str| value(mode, "off", pass, "requests");
        assert!(requests("stripe") < requests("node") && requests("node") < requests("list"), "{found:?}");
        let depth = |mode: &str| value(mode, "off", pass, "req_qdepth");
        assert!(depth("stripe") < depth("list"), "{found:?}");
    }
    assert!(value("view", "on", "write", "permit_wait_us") > 0.0, "{found:?}");
    let text = std::fs::read_to_string(&csv).unwrap();
    std::fs::remove_file(&csv).unwrap();
    let mut rows = text.lines().map(|line| line.split(',').collect::<Vec<&str>>());
    let head = rows.next().unwrap();
    let rows: Vec<Vec<&str>> = rows.collect();
    assert_eq!(rows.len(), found.len() * 2, "a line for each pass and server");
    assert!(head.starts_with(&["engine", "servers"]) && rows.iter().all(|row| row.len() == head.len()), "{text}");
    picture.assert_says(&["simulated", "requests that wait at a server", "stripe, with permits", "write: bandwidth"]);
    let real = lines(&["hpio", "--servers=2", "--procs=3", "--pieces=1100", "--turns=off"]);
    assert_eq!(real.len(), 4 * 2);
    assert!(real.iter().all(|line| number(line, "bytes") == 3.0 * 1100.0 * 5992.0 && number(line, "mib_per_s") > 0.0));
    // More processes than a server has permits: each gives its own back before it waits for the others, and none has to
    // end by itself, which takes two seconds.
    let many = ["hpio", "--servers=1", "--procs=6", "--pieces=60", "--transport=tcp", "--modes=view", "--turns=on"];
    let real = lines(&many);
    assert!(real.len() == 2 && real.iter().all(|line| number(line, "permit_wait_us") < 150_000.0), "{real:?}");
}

/// Goal: a device is measured in each way, its contents are checked, and what somebody has is not written to.
/// Method: a small file, and short runs; nothing about speed.
#[test]
fn devices_are_measured() {
    let picture = Picture::new("uring");
    let file = std::env::temp_dir().join(format!("tabane-bench-device-{}", std::process::id()));
    let device = format!("--device={}", file.display());
    let short =
        ["uring", "--seconds=0.01", "--device-size=4MiB", "--operation-sizes=4KiB,64KiB", "--depths=1,3", &device];
    let found = lines(&[&short[..], &["--verify", &picture.argument()]].concat());
    assert!(!file.exists(), "what was made is removed");
    // Four patterns, two sizes; one depth for calls that wait, two for the others.
    assert_eq!(found.len(), 4 * 2 * 5);
    for line in &found {
        let keys = ["mib_per_s", "ops_per_s", "cpu_share", "cpu_ns_per_byte", "p50_us", "p99_us"];
        assert!(keys.iter().all(|key| number(line, key) > 0.0) && number(line, "p50_us") <= number(line, "p99_us"));
    }
    picture.assert_says(&[
        "measured",
        "size of an operation",
        "MiB per second on a core",
        "pread",
        "io_uring, depth 3",
    ]);
    std::fs::write(&file, vec![7; 4 << 20]).unwrap();
    let refused = command(&short).output().unwrap();
    assert!(!refused.status.success());
    assert!(String::from_utf8_lossy(&refused.stderr).contains("--overwrite gives up its contents"));
    let read = lines(&[&short[..], &["--patterns=read,randread"]].concat());
    assert_eq!((read.len(), std::fs::read(&file).unwrap()), (20, vec![7; 4 << 20]));
    std::fs::remove_file(&file).unwrap();
}

/// Goal: writing to the site directly grows with the processes until its bandwidth is reached, and not beyond; writing
/// to a cluster over it goes beyond. Rows of several processes in one stripe cost their price. What is flushed is what
/// was written.
#[test]
fn simulated_snapshots_meet_the_bandwidth_of_the_site() {
    let picture = Picture::new("rdbench");
    let arguments = ["rdbench", "--simulate", "--servers=1,4,16", "--length=256", "--snapshots=2", "--phases=1"];
    let site = ["--model=site_gbit_per_s=8", "--layout=chunk,view", "--chunk-size=64KiB", "--targets=direct,never"];
    let lines = lines(&[&arguments[..], &site, &[&picture.argument()]].concat());
    assert_eq!(lines.len(), 3 * 2 * 2);
    assert!(lines.iter().all(|line| line["equal"] == true && line["engine"] == "simulated"), "{lines:?}");
    let rate = |target: &str, layout: &str, servers: u32| {
        let wanted = [("target", target.into()), ("layout", layout.into()), ("servers", servers.into())];
        one(&lines, &wanted, "bytes") / one(&lines, &wanted, "write_seconds")
    };
    assert!(rate("direct", "chunk", 4) > 1.5 * rate("direct", "chunk", 1), "{lines:?}");
    assert!(rate("direct", "chunk", 16) < 1.3 * rate("direct", "chunk", 4), "{lines:?}");
    assert!(rate("direct", "chunk", 16) < 1e9, "{lines:?}");
    assert!(rate("never", "chunk", 16) > 1.5e9, "{lines:?}");
    // Eight calls of a process on one file are under way at a time, and hide a part of what a change of hands costs.
    assert!(rate("direct", "view", 16) < 0.75 * rate("direct", "chunk", 16), "{lines:?}");
    let view_at = |stripe_us: u32| {
        let site = format!("--model=site_gbit_per_s=8,stripe_us={stripe_us}");
        let alone = ["--layout=view", "--targets=direct", "--servers=16", &site];
        let lines = self::lines(&[&arguments[..2], &arguments[3..], &alone].concat());
        assert_eq!(lines.len(), 1);
        number(&lines[0], "bytes") / number(&lines[0], "write_seconds")
    };
    assert!(view_at(0) > 0.9 * rate("direct", "chunk", 16), "rows cost nothing else");
    assert!(view_at(200) < 0.5 * rate("direct", "chunk", 16));
    picture.assert_says(&["simulated", "Site: 8 Gbit/s", "servers", "MiB per second", "seconds", "direct, chunk"]);
}

/// Goal: reaction diffusion writes the same files to a directory and, by a flush, through a cluster over it, in every
/// layout, and they are what one process computes for all cells. Nothing of it is left in the directory.
#[test]
fn snapshots_are_equal() {
    let program = tabane();
    let site = std::env::temp_dir().join(format!("tabane-bench-site-{}", std::process::id()));
    std::fs::create_dir(&site).unwrap();
    let picture = Picture::new("rdbench-real");
    let (backing, plot) = (format!("--backing={}", site.display()), picture.argument());
    let own = ["--store", STORE, "--tabane", program.to_str().unwrap(), &backing];
    let small = ["rdbench", "--procs=6", "--length=48", "--snapshots=3"];
    let steps = [
        "--targets=direct,never",
        "--interval=5",
        "--servers=3",
        "--layout=view,manual,chunk",
        "--chunk-size=4KiB",
        &plot,
    ];
    let by_steps = lines(&[&small[..], &steps, &own].concat());
    assert_eq!(by_steps.len(), 6);
    let timed = lines(&[&small[..], &["--phases=2", "--compute=sleep", "--nosync", "--repeat=2"], &own].concat());
    assert_eq!(timed.len(), 8);
    for line in by_steps.iter().chain(&timed) {
        assert_eq!(line["equal"], true, "{line}");
        assert_eq!((number(line, "bytes"), number(line, "procs")), (3.0 * 48.0 * 48.0 * 8.0, 6.0), "{line}");
        assert!(number(line, "write_seconds") > 0.0, "{line}");
        assert!(number(line, "total_seconds") > number(line, "write_seconds"), "{line}");
        assert!(number(line, "flushed_after_seconds") >= 0.0 && number(line, "flushed_in_compute") >= 0.0, "{line}");
    }
    assert_eq!(std::fs::read_dir(&site).unwrap().count(), 0);
    std::fs::remove_dir(&site).unwrap();
    picture.assert_says(&[
        "measured",
        "3 snapshots of 48 x 48 cells",
        "servers",
        "never, manual",
        "per cent of the bytes",
    ]);
}

/// Goal: a tree is copied and staged, all of it is there then, and to find that out asks nothing of the directory,
/// which is as it was in the end.
#[test]
fn trees_are_staged() {
    let program = tabane();
    let site = std::env::temp_dir().join(format!("tabane-bench-staged-{}", std::process::id()));
    std::fs::create_dir(&site).unwrap();
    let picture = Picture::new("stage");
    let backing = format!("--backing={}", site.display());
    let own = ["stage", "--store", STORE, "--tabane", program.to_str().unwrap(), &backing];
    let small = ["--servers=1,2", "--files=1200", "--block-size=96KiB", &picture.argument()];
    let lines = lines(&[&own[..], &small].concat());
    assert_eq!(lines.len(), 2 * 2 * 3);
    for line in &lines {
        let (files, bytes) = if line["tree"] == "small" { (1_200, 1_200 * 3_901) } else { (20, 20 * 98_304) };
        assert_eq!((&line["files"], &line["bytes"]), (&files.into(), &bytes.into()), "{line}");
        assert!(number(line, "seconds") > 0.0 && number(line, "rate") > 0.0, "{line}");
        match line["way"].as_str() {
            Some("cp") => assert!(line["calls"].is_null(), "{line}"),
            // Up to sixteen small files are read by one call, and as many names looked at by one.
            Some("stage") => {
                let calls = number(line, "calls");
                assert!(calls >= f64::from(files) / 8.0 && (files < 100 || calls < f64::from(files)), "{line}");
            }
            _ => assert_eq!(number(line, "calls"), 0.0, "{line}"),
        }
    }
    assert_eq!(std::fs::read_dir(&site).unwrap().count(), 0);
    std::fs::remove_dir(&site).unwrap();
    picture.assert_says(&["measured", "1,200 files of 3901 B", "20 files of 96 KiB", "servers", "tabane stage again"]);
}

/// Goal: every experiment runs with real processes, counts what it ought to, and draws what it says it draws.
/// Method: small volumes; nothing about speed.
#[test]
fn real_experiments() {
    let program = tabane();
    let own = ["--store", STORE, "--tabane", program.to_str().unwrap()];
    let run = |name: &str, arguments: &[&str], wanted: &[&str]| {
        let picture = Picture::new(&format!("real-{name}"));
        let found = lines(&[&[name], arguments, &own[..], &[&picture.argument()]].concat());
        assert!(found.iter().all(|line| line["engine"] == "real" && number(line, "seconds") > 0.0), "{found:?}");
        picture.assert_says(&[&["measured", "1 host", "cores"], wanted].concat());
        found
    };
    let find = run("find", &["--servers=1..3", "--files=110"], &["servers", "entries per second (log)"]);
    assert_eq!(find.len(), 9);
    for line in &find {
        // Of each rank's numbers below 110 one holds 01: 101.
        assert_eq!(number(line, "found"), number(line, "servers"), "{line}");
        assert!(number(line, "entries") >= 220.0 * number(line, "servers"), "{line}");
    }
    let sizes = ["--servers=2,3", "--files=30", "--block-size=3MiB", "--chunk-size=16KiB"];
    let placement = run("placement", &sizes, &["MiB per second", "modular", "ring"]);
    assert_eq!(placement.len(), 48);
    let volume = ["--servers=2", "--chunk-sizes=4KiB,47008", "--chunk-counts=1,4", "--block-size=1MiB"];
    assert_eq!(run("async", &volume, &["chunks of 47008 B", "chunks written in one call"]).len(), 4);
    let profile = run(
        "profile",
        &["--servers=2", "--files=50", "--block-size=2MiB", "--repeat=2"],
        &["microseconds per operation"],
    );
    assert_eq!(profile.len(), 12);
    for line in &profile {
        assert!(number(line, "client_us") + number(line, "client_kernel_us") > 0.0, "{line}");
        assert!(number(line, "server_us") >= 0.0 && number(line, "kernel_us") >= 0.0, "{line}");
        assert_eq!(number(line, "runs"), 2.0, "{line}");
        assert!(number(line, "client_switches") >= 0.0 && number(line, "server_switches") >= 0.0, "{line}");
        // Whether perf may count here is the machine's affair; if it may, both sides are counted in all phases.
        for side in ["client_system_calls", "server_system_calls"] {
            assert_eq!(line[side].is_number(), profile[0]["client_system_calls"].is_number(), "{line}");
        }
        // Each byte is copied at least once; what goes by a message is copied out of the client and into the server.
        match (line["unit"].as_str(), line["bench"].as_str(), line["phase"].as_str()) {
            (Some("MiB"), ..) => assert!((1.0..=3.5).contains(&number(line, "bytes_copied_per_byte")), "{line}"),
            (_, Some("mdtest-hard"), Some("create" | "read")) => {
                assert!(number(line, "bytes_copied_per_byte") >= 1.0, "{line}")
            }
            _ => assert!(line["bytes_copied_per_byte"].is_null(), "{line}"),
        }
    }
    let words = ["clients", "microseconds an open (log)", "with contacts", "without contacts"];
    let storm = run("open-storm", &["--servers=3", "--clients=6,24", "--repeat=2"], &words);
    let (with, without): (Vec<&Value>, Vec<&Value>) = storm.iter().partition(|line| line["contact"] == "always");
    assert_eq!((with.len(), without.len()), (4, 4));
    for line in without {
        assert_eq!(number(line, "home_requests"), number(line, "clients"), "{line}");
    }
    // Each of the two contacts sends one client on and asks once, and may tell of what it holds from the storm before.
    for line in with {
        assert!(number(line, "home_requests") <= 8.0, "{line}");
    }
}

/// Goal: what is wrong is refused before anything is started, and what fails says why.
#[test]
fn refusals() {
    let said = |arguments: &[&str], status: i32| {
        let output = command(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(status), "{arguments:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert!(said(&["mdtest-easy", "--simulate"], 2).contains("--simulate is for an experiment"));
    assert!(said(&["find", "--servers=4..2"], 2).contains("1..8"));
    assert!(said(&["async", "--simulate", "--plot=/nonexistent/x.svg"], 1).contains("/nonexistent/x.svg"));
    assert!(said(&["async", "--tabane=/nonexistent/tabane"], 1).contains("/nonexistent/tabane"));
    assert!(said(&["rdbench", "--backing=/", "--procs=3", "--length=100"], 2).contains("make it a multiple of 3"));
    assert!(said(&["stage"], 2).contains("stage needs --backing DIR"));
    assert!(said(&["stage", "--backing=/", "--simulate"], 2).contains("leave --simulate out"));
}
