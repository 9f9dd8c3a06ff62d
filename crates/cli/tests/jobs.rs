//! What servers and clients count for jobs, to the byte, by every way that bytes take. Real servers and programs.
#![allow(clippy::unwrap_used)] // What fails here fails the test.

mod common;

use common::{Ground, fuse_is_here, mount_point, text};
use serde_json::Value;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};

const LARGE: usize = (5 << 20) + 17;
const SMALL: usize = 5_000;
const READS_MAX: usize = 200;
/// Least that a reader has read that has filled a pipe.
const PIPE_SIZE: u64 = 64 << 10;

fn command_of(ground: &Ground, job: &str, words: &[&str]) -> Command {
    let mut command = ground.command(words);
    command.env("TABANE_JOB", job);
    command
}

fn put(ground: &Ground, job: &str, path: &str, size: usize) {
    let file = ground.path.join("contents");
    std::fs::write(&file, vec![7; size]).unwrap();
    let input = std::fs::File::open(&file).unwrap();
    assert!(command_of(ground, job, &["put", path]).stdin(input).status().unwrap().success());
}

fn get(ground: &Ground, job: &str, path: &str, size: usize) {
    let output = command_of(ground, job, &["get", path]).output().unwrap();
    assert_eq!((output.status.success(), output.stdout.len()), (true, size), "{output:?}");
}

/// What all servers have of a job: numbers of their own, and those of its clients.
struct Job(Vec<Value>);

impl Job {
    fn of(ground: &Ground, job: &str) -> Job {
        let status: Value = serde_json::from_str(&ground.run(&["status", "--json"])).unwrap();
        let servers = status["servers"].as_array().unwrap();
        let jobs = servers.iter().flat_map(|server| server["report"]["jobs"].as_array().unwrap().clone());
        Job(jobs.filter(|found| found["job"] == job).collect())
    }

    fn sum(&self, of: impl Fn(&Value) -> &Value) -> u64 {
        self.0.iter().map(|job| of(job).as_u64().unwrap()).sum()
    }

    fn asked(&self, name: &str) -> u64 {
        self.sum(|job| &job[name])
    }

    fn alone(&self, name: &str) -> u64 {
        self.sum(|job| &job["clients"][name])
    }

    /// Bytes that it has read, by any way.
    fn read(&self) -> u64 {
        self.asked("bytes_out") + self.alone("short_circuit_bytes") + self.alone("leased_bytes")
    }
}

fn check_ways(name: &str, options: &[&str], way: &str) {
    let ground = Ground::new(name);
    let stores = Path::new("/dev/shm").join(ground.path.file_name().unwrap());
    let store = format!("memory:{},size=128M", text(&stores));
    ground.run(&[&["up", "--servers", "2", "--store", &store][..], options].concat());
    put(&ground, "writer", "/large", LARGE);
    put(&ground, "writer", "/small", SMALL);
    assert_eq!(Job::of(&ground, "writer").asked("bytes_in"), (LARGE + SMALL) as u64);
    get(&ground, "reader", "/large", LARGE);
    // No lease is given of what has changed lately.
    let mut reader = Job::of(&ground, "reader");
    for count in 1.. {
        get(&ground, "reader", "/small", SMALL);
        reader = Job::of(&ground, "reader");
        assert_eq!(reader.read(), (LARGE + count * SMALL) as u64, "{:?}", reader.0);
        if count > 1 && reader.alone(way) > 0 {
            break;
        }
        assert!(count < READS_MAX, "{way}: {:?}", reader.0);
    }
    assert!(reader.alone("answers") > 0, "{:?}", reader.0);
    assert_eq!(Job::of(&ground, "writer").read(), 0);

    // Killed while it waits for somebody to take what it has read.
    let mut killed = command_of(&ground, "killed", &["get", "/large"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut byte = [0];
    killed.stdout.as_mut().unwrap().read_exact(&mut byte).unwrap();
    let is_full = || Job::of(&ground, "killed").read() >= PIPE_SIZE;
    assert!((0..READS_MAX).any(|_| is_full()), "{:?}", Job::of(&ground, "killed").0);
    killed.kill().unwrap();
    killed.wait().unwrap();
    let read = Job::of(&ground, "killed").read();
    assert!((PIPE_SIZE..=LARGE as u64).contains(&read), "{read}");

    if fuse_is_here() {
        let mount = mount_point(&ground, "jobs");
        assert!(command_of(&ground, "mount", &["mount", text(&mount)]).status().unwrap().success());
        // By another process: a child that another test starts just then would keep a file of ours open for a moment.
        let read = Command::new("cat").arg(mount.join("large")).output().unwrap();
        assert_eq!(read.stdout.len(), LARGE);
        ground.run(&["umount", text(&mount)]);
        let mounted = Job::of(&ground, "mount");
        assert_eq!(mounted.read(), LARGE as u64, "{:?}", mounted.0);
    }
    ground.run(&["down"]);
}

/// Goal: what clients read from mapped stores counts for their jobs, to the byte.
#[test]
fn short_circuit_reads() {
    check_ways("jobs-short-circuit", &[], "short_circuit_reads");
}

/// Goal: the same of reads through shared memory that ask for all.
#[test]
fn requests() {
    check_ways("jobs-requests", &["--short-circuit", "off"], "answers");
}

/// Goal: the same over TCP, where small files come with their opens.
#[test]
fn read_leases() {
    check_ways("jobs-leases", &["--transport", "tcp"], "leased_reads");
}

/// Goal: it is told by path what was done to which file, to the byte, on all servers together: what was asked of names
/// counts to their directory, and what is removed keeps its numbers. The id of an inode leads to all of its names.
/// Method: over TCP, where no client reads by itself what is this large.
#[test]
fn busiest_files() {
    let ground = Ground::new("busiest");
    ground.run(&["up", "--servers", "3", "--transport", "tcp"]);
    assert_eq!(ground.run(&["status", "--files", "--json"]), "");
    ground.run(&["mkdir", "/d", "/d/e"]);
    put(&ground, "writer", "/d/e/hot", LARGE);
    put(&ground, "writer", "/gone", 2 * SMALL);
    ground.run(&["rm", "/gone"]);
    (0..3).for_each(|_| get(&ground, "reader", "/d/e/hot", LARGE));
    let names: Vec<String> = (0..300).map(|name| format!("/d/{name}")).collect();
    ground.run(&[&["mkdir"][..], &names.iter().map(String::as_str).collect::<Vec<_>>()].concat());

    let lines = ground.run(&["status", "--files", "--json"]);
    assert_eq!(ground.run(&["status", "--files", "--json"]), lines, "to ask changes nothing");
    let told: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |path: &str| told.iter().find(|told| told["path"] == path).unwrap_or_else(|| panic!("{path}: {lines}"));
    let hot = of("/d/e/hot");
    assert_eq!(told[0], *hot, "that is where most was done");
    assert_eq!((hot["object"].as_str(), hot["bytes_written"].as_u64()), (Some("file"), Some(LARGE as u64)));
    let reader = Job::of(&ground, "reader");
    assert_eq!(hot["bytes_read"].as_u64(), Some(3 * LARGE as u64));
    assert_eq!(reader.asked("bytes_out"), 3 * LARGE as u64);
    assert_eq!(hot["servers"], serde_json::json!([0, 1, 2]));
    let directory = of("/d");
    assert!(directory["object"] == "directory" && directory["requests"].as_u64() >= Some(300), "{directory}");
    let gone = told.iter().find(|told| told["bytes_written"].as_u64() == Some(2 * SMALL as u64)).unwrap();
    assert!(gone.get("path").is_none(), "{gone}");

    let table = ground.run(&["status", "--files"]);
    let first = table.lines().nth(1).unwrap();
    assert!(first.ends_with("  0,1,2  /d/e/hot"), "{table}");
    assert!(table.contains("  /d/\n") && table.contains("  (removed or not found: id "), "{table}");

    let id = hot["id"].as_str().unwrap();
    let stat: Value = serde_json::from_str(&ground.run(&["stat", "--json", "/d/e/hot"])).unwrap();
    assert_eq!(stat["id"], id);
    ground.run(&["ln", "/d/e/hot", "/d/warm"]);
    let found = ground.run(&["find", "-id", id]);
    let mut found: Vec<&str> = found.lines().collect();
    found.sort_unstable();
    assert_eq!(found, ["/d/e/hot", "/d/warm"]);
    assert_eq!(ground.run(&["find", "-id", id, "-name", "w*", "-count"]), "1\n");
    assert!(ground.fail(2, &["find", "-id", "hot"]).contains("-id hot: the id of an inode is wanted"));
    assert!(
        ground.fail(2, &["status", "--files", "--samples", "--json"]).contains("--files goes with neither samples")
    );
    assert!(ground.fail(2, &["status", "--files", "--lost"]).contains("two questions"));
    ground.kill(1);
    let words = ground.fail(1, &["status", "--files"]);
    assert!(words.contains("server 1") && words.contains("paths are not looked for"), "{words}");
    ground.run(&["up"]);
    ground.run(&["down"]);
}
