//! Whole runs of `tabane-bench` on a local directory, with real processes.

#![allow(clippy::unwrap_used)] // Tests, including their helpers.

use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

/// A directory that goes when the test ends.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("tabane-bench-test-{name}-{}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Scratch(path)
    }

    fn target(&self) -> String {
        format!("posix:{}", self.0.display())
    }

    fn is_empty(&self) -> bool {
        std::fs::read_dir(&self.0).unwrap().next().is_none()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

fn bench(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tabane-bench"));
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.env_remove("TABANE_CLUSTER");
    command
}

fn run(arguments: &[&str]) -> Output {
    bench(arguments).output().unwrap()
}

fn lines_of(output: &Output) -> Vec<Value> {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn send(signal: &str, process: &str) {
    assert!(Command::new("kill").args([signal, process]).status().unwrap().success());
}

/// Goal: every bench and phase runs, is verified, says exactly the promised keys, and leaves nothing behind.
/// Method: all benches with three processes and small volumes.
#[test]
fn all_benches_verified() {
    let scratch = Scratch::new("all");
    let target = scratch.target();
    let sizes = ["--procs=3", "--files=110", "--block-size=200KiB", "--transfer-size=30001", "--verify"];
    let output = run(&[&["--target", &target], &sizes[..], &["--depth=4", "all", "random"]].concat());
    let lines = lines_of(&output);
    let phases: Vec<String> = lines
        .iter()
        .map(|line| format!("{} {}", line["bench"].as_str().unwrap(), line["phase"].as_str().unwrap()))
        .collect();
    let mut expected = Vec::new();
    for bench in ["ior-easy", "ior-hard"] {
        expected.extend(["write", "read"].map(|phase| format!("{bench} {phase}")));
    }
    expected.push("ior-rnd4k read".to_string());
    for bench in ["mdtest-easy", "mdtest-hard"] {
        expected.extend(["create", "stat", "read", "remove"].map(|phase| format!("{bench} {phase}")));
    }
    expected.push("find find".to_string());
    expected.extend(["write", "read"].map(|phase| format!("random {phase}")));
    assert_eq!(phases, expected);
    for line in &lines {
        let is_bytes = ["ior-easy", "ior-hard"].contains(&line["bench"].as_str().unwrap());
        let rate = if is_bytes { "mib_per_s" } else { "ops_per_s" };
        let mut keys = vec!["bench", "phase", "target", "procs", "servers", "transport", rate, "seconds", "verified"];
        keys.extend(["calls", "p50_us", "p99_us", "p999_us", "most_us"]);
        keys.sort_unstable();
        let mut said: Vec<&str> = line.as_object().unwrap().keys().map(String::as_str).collect();
        said.sort_unstable();
        assert_eq!(said, keys);
        assert_eq!(line["verified"], true);
        assert_eq!((&line["procs"], &line["target"]), (&3.into(), &target.as_str().into()));
        assert!(line[rate].as_f64().unwrap() > 0.0 && line["seconds"].as_f64().unwrap() > 0.0);
    }
    assert!(scratch.is_empty());
}

/// Goal: the work is counted in full: rate times time is what the options ask for.
#[test]
fn rates_count_all_work() {
    let scratch = Scratch::new("rates");
    let output = run(&["--target", &scratch.target(), "--files=100", "--block-size=2MiB", "ior-easy", "mdtest-hard"]);
    for line in lines_of(&output) {
        let seconds = line["seconds"].as_f64().unwrap();
        let (work, wanted) = match line.get("mib_per_s") {
            Some(rate) => (rate.as_f64().unwrap() * seconds, 4.0),
            None => (line["ops_per_s"].as_f64().unwrap() * seconds, 200.0),
        };
        assert!((work / wanted - 1.0).abs() < 0.02, "{line}: {work} instead of {wanted}");
        assert_eq!(line["verified"], false);
    }
}

/// Goal: two targets take turns, and the table ends with their ratio.
#[test]
fn comparison_alternates() {
    let (first, second) = (Scratch::new("a"), Scratch::new("b"));
    let (a, b) = (first.target(), second.target());
    let arguments = ["--target", &a, "--compare", &b, "--repeat=2", "--files=50", "--no-warm", "mdtest-easy"];
    let output = run(&arguments);
    let targets: Vec<Value> =
        lines_of(&output).iter().filter(|l| l["phase"] == "stat").map(|l| l["target"].clone()).collect();
    assert_eq!(targets, [&a, &b, &a, &b].map(|target| Value::from(target.as_str())));
    let table = String::from_utf8(output.stderr).unwrap();
    let (rates, _) = table.split_once("time of a call").unwrap();
    let rows: Vec<&str> = rates.lines().filter(|line| line.starts_with("mdtest-easy")).collect();
    assert_eq!(rows.len(), 4, "{table}");
    for row in rows {
        assert!(row.split_whitespace().last().unwrap().parse::<f64>().unwrap() > 0.0);
    }
    assert!(first.is_empty() && second.is_empty());
}

/// Goal: a time limit ends writing and creating early, and the other phases take what is there.
#[test]
fn time_limit_cuts_work() {
    let scratch = Scratch::new("limit");
    let arguments = ["--seconds=0.05", "--files=1000000000", "--no-warm", "--verify", "mdtest-easy"];
    let lines = lines_of(&run(&[&["--target", &scratch.target()], &arguments[..]].concat()));
    let work = |line: &Value| (line["ops_per_s"].as_f64().unwrap() * line["seconds"].as_f64().unwrap()).round();
    let created = work(&lines[0]);
    assert!(created > 0.0 && created < 1e9);
    for line in &lines[1..] {
        assert!((work(line) / created - 1.0).abs() < 0.02, "{lines:?}");
    }
    assert!(scratch.is_empty());
}

/// Goal: every phase of every bench tells the times of all its calls, and these are in order; the table has them too.
/// Method: all benches that need no servers, whose calls are counted by hand.
#[test]
fn call_times_of_every_phase() {
    let scratch = Scratch::new("times");
    let benches = ["all", "random", "exchange", "exchange-memory", "exchange-data", "names"];
    let sizes = ["--procs=3", "--servers=2", "--files=110", "--block-size=200KiB", "--transfer-size=30001"];
    let output = run(&[&["--target", &scratch.target()], &sizes[..], &benches[..]].concat());
    let table = String::from_utf8_lossy(&output.stderr).into_owned();
    for line in lines_of(&output) {
        let (bench, phase) = (line["bench"].as_str().unwrap(), line["phase"].as_str().unwrap());
        let calls = match (bench, phase) {
            ("ior-easy" | "ior-hard" | "ior-rnd4k" | "random", _) => 6,
            // The root, two trees, and a directory for each process.
            ("find", _) => 6,
            ("exchange-data", _) => 7,
            ("names", "directories") => 11,
            _ => 110,
        };
        assert_eq!(line["calls"], 3 * calls, "{line}");
        let times = ["p50_us", "p99_us", "p999_us", "most_us"].map(|key| line[key].as_f64().unwrap());
        assert!(times.is_sorted() && times[3] > 0.0, "{line}");
        assert!(times[3] / 1e6 <= line["seconds"].as_f64().unwrap() * 1.01, "{line}");
    }
    let rows = table.split("time of a call, us").nth(1).unwrap();
    assert_eq!(rows.lines().filter(|row| row.starts_with("mdtest-hard")).count(), 4, "{table}");
}

/// Goal: who wants no times of calls gets none.
#[test]
fn call_times_can_be_left_out() {
    let scratch = Scratch::new("untimed");
    let output = run(&["--target", &scratch.target(), "--files=50", "--no-call-times", "mdtest-easy"]);
    assert!(!String::from_utf8_lossy(&output.stderr).contains("time of a call"));
    assert!(lines_of(&output).iter().all(|line| line.get("calls").is_none() && line["ops_per_s"].is_f64()));
}

/// Goal: a phase that lasts says how far it is. Method: a line is wanted every millisecond.
#[test]
fn progress_is_told() {
    let scratch = Scratch::new("progress");
    let output = run(&["--target", &scratch.target(), "--files=5000", "--progress=0.0005", "mdtest-easy"]);
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    let told = words.lines().find(|line| line.contains("mdtest-easy create: ")).expect(&words);
    assert!(told.contains(" of 10,000 calls on posix:"), "{told}");
    assert!(words.contains("mdtest-easy create (warm-up): "), "{words}");
}

/// Goal: what cannot fit is refused before anything is written, with the sizes.
#[test]
fn too_little_space_is_told_first() {
    let scratch = Scratch::new("space");
    let output = run(&["--target", &scratch.target(), "--block-size=512T", "ior-easy"]);
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1));
    assert!(words.contains("its data want 1,073,741,824 MiB") && words.contains("--block-size"), "{words}");
    assert!(scratch.is_empty());
}

/// Processes that have this in their environment, and of those the ones of `--load`.
fn marked(marker: &str) -> (usize, usize) {
    let holds = |path: PathBuf, part: &str| {
        let bytes = std::fs::read(path).unwrap_or_default();
        bytes.windows(part.len()).any(|window| window == part.as_bytes())
    };
    let processes = std::fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
    let ours: Vec<PathBuf> = processes.filter(|path| holds(path.join("environ"), marker)).collect();
    let load = ours.iter().filter(|path| holds(path.join("cmdline"), "\0--group-memory=none\0")).count();
    (ours.len(), load)
}

/// Goal: the load runs beside what is measured and never outlives it, however the leader ends: by itself, interrupted,
/// killed. Method: processes are known by a variable of their environment.
#[test]
fn load_ends_with_the_leader() {
    for (index, signal) in [None, Some("-INT"), Some("-KILL")].into_iter().enumerate() {
        let scratch = Scratch::new(&format!("load-{index}"));
        let marker = format!("MARKED_LOAD=test-{}-{index}", std::process::id());
        let (name, value) = marker.split_once('=').unwrap();
        let files = if signal.is_some() { "1000000000" } else { "100" };
        let load = "--load=compute:1,spin:1,yield:1";
        let limit = ["--files", files, "--seconds=1e6", "--no-warm"];
        let mut command = bench(&[&["--target", &scratch.target(), load], &limit[..], &["mdtest-easy"]].concat());
        let mut leader = command.env(name, value).spawn().unwrap();
        if let Some(signal) = signal {
            wait_for_work(&leader, &scratch.0);
            assert_eq!(marked(&marker).1, 3);
            send(signal, &leader.id().to_string());
        }
        let status = leader.wait().unwrap();
        assert_eq!(status.success(), signal.is_none(), "{status}");
        // The kernel needs a moment to end the children of one that was killed.
        while signal == Some("-KILL") && marked(&marker).0 > 0 {
            std::thread::yield_now();
        }
        assert_eq!(marked(&marker), (0, 0), "{signal:?}");
    }
}

/// Goal: a load that is not understood is refused with what to write.
#[test]
fn unknown_load_is_refused() {
    let output = run(&["--load=dance:2", "all"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("such as compute:2"));
}

/// Goal: wrong command lines exit with 2, a target that cannot be used with 1, and both say what to do.
#[test]
fn errors_say_what_to_do() {
    let said = |output: &Output| String::from_utf8_lossy(&output.stderr).into_owned();
    let usage = run(&["--proc=2", "all"]);
    assert_eq!(usage.status.code(), Some(2));
    assert!(said(&usage).contains("did you mean --procs?"));
    let missing = run(&["--target=posix:/nonexistent/directory", "all"]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(said(&missing).contains("name a directory that you may write to"), "{}", said(&missing));
    let mut command = bench(&["--target=tabane", "ior-easy"]);
    let cluster = command.env("TABANE_CLUSTER", "/nonexistent/run").output().unwrap();
    assert_eq!(cluster.status.code(), Some(1));
    assert!(said(&cluster).contains("/nonexistent/run"), "{}", said(&cluster));
    let program = run(&["--target=tabane", "--tabane=/nonexistent/tabane", "ior-easy"]);
    assert_eq!(program.status.code(), Some(1));
    assert!(said(&program).contains("/nonexistent/tabane"));
}

/// Goal: Ctrl-C ends all processes and leaves nothing behind.
/// Method: interrupt the leader, once its first line shows that it is at work.
#[test]
fn interruption_cleans_up() {
    let scratch = Scratch::new("interrupt");
    let mut leader =
        bench(&["--target", &scratch.target(), "--repeat=10000", "--files=100", "mdtest-hard"]).spawn().unwrap();
    let mut output = BufReader::new(leader.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    assert!(line.contains("create"));
    send("-INT", &leader.id().to_string());
    output.read_to_string(&mut line).unwrap();
    assert_eq!(leader.wait().unwrap().code(), Some(130));
    assert!(scratch.is_empty());
}

/// Goal: the death of one process ends the run with words, and nothing is left.
/// Method: kill one worker in the middle of an endless phase.
#[test]
fn death_of_a_worker_is_reported() {
    let scratch = Scratch::new("death");
    let mut leader =
        bench(&["--target", &scratch.target(), "--files=1000000000", "--seconds=1e6", "--no-warm", "mdtest-easy"])
            .spawn()
            .unwrap();
    let victim = wait_for_work(&leader, &scratch.0);
    send("-KILL", &victim);
    let mut words = String::new();
    leader.stderr.take().unwrap().read_to_string(&mut words).unwrap();
    assert_eq!(leader.wait().unwrap().code(), Some(1));
    assert!(words.contains("signal: 9"), "{words}");
    assert!(scratch.is_empty());
}

/// Process id of one of the two workers, after both have made files.
fn wait_for_work(leader: &Child, root: &Path) -> String {
    let run = root.join(format!("tabane-bench-{}", leader.id())).join("mdtest-easy");
    while !(run.join("0/file.mdtest.0.0").exists() && run.join("1/file.mdtest.1.0").exists()) {
        std::thread::yield_now();
    }
    let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", leader.id())).unwrap();
    // The last two: what --load starts comes before them.
    children.split_whitespace().last().unwrap().to_string()
}

/// Goal: the exchanges over bare sockets and memory end and count what they moved, whatever the sizes. Method: pieces
/// of the usual size, and ones larger than the sockets' buffers, that no number of bytes is a multiple of.
#[test]
fn exchanges_move_everything() {
    let scratch = Scratch::new("exchange");
    let target = scratch.target();
    for (size, moved) in [("47008", 22 * 47_008), ("3000001", 3_000_001)] {
        let piece = format!("--transfer-size={size}");
        let sizes = ["--procs=2", "--servers=2", "--files=200", "--block-size=1000000", &piece];
        let lines =
            lines_of(&run(
                &[&["--target", &target], &sizes[..], &["exchange", "exchange-memory", "exchange-data"]].concat()
            ));
        let phases: Vec<&str> = lines.iter().map(|line| line["phase"].as_str().unwrap()).collect();
        assert_eq!(phases, ["exchange", "exchange", "write", "read"]);
        let work = |line: &Value, rate: &str| line[rate].as_f64().unwrap() * line["seconds"].as_f64().unwrap();
        for line in &lines[..2] {
            assert!((work(line, "ops_per_s") - 400.0).abs() < 1.0, "{line:?}");
        }
        for line in &lines[2..] {
            let expected = f64::from(2 * moved) / f64::from(1 << 20);
            assert!((work(line, "mib_per_s") / expected - 1.0).abs() < 0.01, "{line:?}");
        }
    }
    assert!(scratch.is_empty());
}
