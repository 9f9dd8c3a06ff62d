//! Staging: how long it takes until a tree of small files, and one of large ones, is in a cluster over the directory
//! where it lies, beside as many `cp` as there are cores that copy it into memory; and how long until `tabane stage`
//! has found that all is here, which asks nothing of the directory.
//!
//! The page cache has the tree, and the memory that it goes to has been touched before: what is measured is the way,
//! not the disk that DIR may lie on, nor how long it takes until a virtual machine has memory.

use crate::cluster::{Cluster, find_tabane};
use crate::engine::Line;
use crate::experiment::{Runner, SiteDirectory, Table, size_name};
use crate::options::{Options, SiteUse};
use crate::plot::{Look, Panel, Picture, Series};
use crate::report::grouped;
use crate::workload_mdtest::HARD_FILE_SIZE;
use reactor::barrier::monotonic_now;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Small files unless said otherwise, and of one directory.
const SMALL_FILES: u64 = 20_000;
const DIRECTORY_FILES: u64 = 1_000;
/// Large files, and their size unless said otherwise.
const LARGE_FILES: u64 = 20;
const LARGE_SIZE: u64 = 64 << 20;
/// What is written at a time.
const BLOCK: u64 = 1 << 20;
/// Where copies of `cp` go, and what is staged is kept unless said otherwise.
const MEMORY: &str = "/dev/shm";
const PAGE: u64 = 4096;
const MIB: f64 = 1_048_576.0;

/// Curves of the picture.
const WAYS: [(&str, &str); 3] =
    [("cp", "cp into memory, one a core"), ("stage", "tabane stage"), ("again", "tabane stage again")];

/// A tree in the directory of the run.
struct Tree {
    name: &'static str,
    /// What it consists of: directories of small files, or large ones.
    parts: Vec<PathBuf>,
    files: u64,
    bytes: u64,
}

/// Seconds, and calls on the backing directory meanwhile; of `cp` nobody knows.
struct Outcome {
    seconds: f64,
    calls: Option<u64>,
}

pub fn run(runner: &Runner<'_>) -> Result<Picture, String> {
    let options = runner.options;
    let site = options.backing.as_deref().expect("options were checked");
    let directory = SiteDirectory::make(site, "tabane-stage")?;
    let trees = make_trees(&directory.0, options)?;
    let mut table = Table::default();
    for (category, servers) in options.server_counts.iter().enumerate() {
        for _ in 0..runner.repeats() {
            for tree in &trees {
                let copied = copy(tree)?;
                print(runner, tree, "cp", *servers, &copied)?;
                let (staged, again) = stage(runner, &directory.0, tree, *servers)?;
                print(runner, tree, "stage", *servers, &staged)?;
                print(runner, tree, "again", *servers, &again)?;
                for ((way, _), outcome) in WAYS.iter().zip([&copied, &staged, &again]) {
                    table.add(format!("{} {way}", tree.name), category, tree.rate(outcome));
                }
            }
        }
    }
    Ok(picture(runner, &trees, &table))
}

impl Tree {
    fn is_of_small(&self) -> bool {
        self.name == "small"
    }

    /// Bytes of memory that it takes, in whole pages.
    fn memory(&self) -> u64 {
        self.bytes + self.files * PAGE
    }

    /// Files or MiB a second.
    fn rate(&self, outcome: &Outcome) -> f64 {
        let work = if self.is_of_small() { self.files as f64 } else { self.bytes as f64 / MIB };
        work / outcome.seconds
    }
}

/// Small files in directories, and large ones, all of them different.
fn make_trees(directory: &Path, options: &Options) -> Result<[Tree; 2], String> {
    let count = if options.is_given("files") { options.files } else { SMALL_FILES };
    let size = if options.is_given("block-size") { options.block_size } else { LARGE_SIZE };
    let (small, large) = (directory.join("small"), directory.join("large"));
    let mut parts = Vec::new();
    for number in 0..count {
        if number % DIRECTORY_FILES == 0 {
            parts.push(small.join(format!("d{:03}", number / DIRECTORY_FILES)));
            make_directory(&parts[parts.len() - 1])?;
        }
        let path = parts[parts.len() - 1].join(format!("file-{number:06}"));
        write_file(&path, number, HARD_FILE_SIZE as u64)?;
    }
    let bytes = count * HARD_FILE_SIZE as u64;
    let small = Tree { name: "small", parts, files: count, bytes };
    make_directory(&large)?;
    let parts: Vec<PathBuf> = (0..LARGE_FILES).map(|number| large.join(format!("file-{number:02}"))).collect();
    for (number, path) in parts.iter().enumerate() {
        write_file(path, count + number as u64, size)?;
    }
    let large = Tree { name: "large", parts, files: LARGE_FILES, bytes: LARGE_FILES * size };
    Ok([small, large])
}

fn make_directory(path: &Path) -> Result<(), String> {
    std::fs::create_dir_all(path).map_err(|error| format!("{}: {error}", path.display()))
}

fn write_file(path: &Path, number: u64, size: u64) -> Result<(), String> {
    let write = || {
        let mut file = std::fs::File::create_new(path)?;
        let mut left = size;
        while left > 0 {
            let step = left.min(BLOCK);
            // No two blocks are the same, and none has only zeros.
            let word = ((number << 24) | (left / BLOCK)) + 1;
            let words = word.to_le_bytes().into_iter().cycle().take(step as usize);
            std::io::Write::write_all(&mut file, &words.collect::<Vec<u8>>())?;
            left -= step;
        }
        Ok(())
    };
    write().map_err(|error: std::io::Error| format!("{}: {error}", path.display()))
}

fn seconds_since(start: u64) -> f64 {
    (monotonic_now() - start) as f64 / 1e9
}

/// Copies a tree into memory, its parts shared out among as many `cp` as there are cores.
fn copy(tree: &Tree) -> Result<Outcome, String> {
    let copies = SiteDirectory::make(Path::new(MEMORY), "tabane-stage-copies")?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let shares: Vec<Vec<&PathBuf>> =
        (0..cores).map(|core| tree.parts.iter().skip(core).step_by(cores).collect()).collect();
    let failed = |words: String| format!("cp: {words}");
    drop(std::hint::black_box(vec![1_u8; tree.memory() as usize]));
    let start = monotonic_now();
    let mut children = Vec::new();
    for share in shares.iter().filter(|share| !share.is_empty()) {
        let mut command = Command::new("cp");
        command.arg("-r").args(share).arg(&copies.0).stdin(Stdio::null());
        children.push(command.spawn().map_err(|error| failed(error.to_string()))?);
    }
    for child in &mut children {
        let status = child.wait().map_err(|error| failed(error.to_string()))?;
        if !status.success() {
            return Err(failed(status.to_string()));
        }
    }
    Ok(Outcome { seconds: seconds_since(start), calls: None })
}

/// Stages a tree into a new cluster over the directory, twice. Errors: also if then not all of it is there.
fn stage(runner: &Runner<'_>, directory: &Path, tree: &Tree, servers: u32) -> Result<(Outcome, Outcome), String> {
    let mut options = runner.options.clone();
    options.servers = servers;
    let share = tree.memory() / u64::from(servers);
    options.site = SiteUse::Behind { path: directory.to_owned(), flush: "manual", warm: share + share / 8 };
    let cluster = Cluster::find_or_start(&options, runner.signals())?;
    let tabane = Tabane { program: find_tabane(&options)?, runner, cluster: &cluster };
    let outcomes = tabane.stage_twice(tree);
    cluster.stop(runner.signals())?;
    outcomes
}

/// The `tabane` program with a cluster.
struct Tabane<'a> {
    program: PathBuf,
    runner: &'a Runner<'a>,
    cluster: &'a Cluster,
}

impl Tabane<'_> {
    fn stage_twice(&self, tree: &Tree) -> Result<(Outcome, Outcome), String> {
        let path = format!(":/{}", tree.name);
        let stage = || {
            let (before, start) = (self.calls()?, monotonic_now());
            self.run(&["stage", &path])?;
            let seconds = seconds_since(start);
            Ok::<_, String>(Outcome { seconds, calls: Some(self.calls()? - before) })
        };
        let staged = stage()?;
        let state = &self.json(&["status", "--json", &path])?["paths"][0];
        let number = |key: &str| state[key].as_u64().ok_or_else(|| format!("tabane status tells no {key}"));
        let (files, clean, absent) = (number("files")?, number("clean_bytes")?, number("absent_bytes")?);
        if (files, absent) != (tree.files, 0) || clean < tree.bytes {
            let (wanted, bytes) = (tree.files, tree.bytes);
            return Err(format!(
                "after `tabane stage` there are {clean} of {bytes} bytes in {files} of {wanted} files, and {absent} \
                 bytes are absent"
            ));
        }
        Ok((staged, stage()?))
    }

    /// Calls on the backing directory so far, of all servers.
    fn calls(&self) -> Result<u64, String> {
        let status = self.json(&["status", "--json"])?;
        let servers = status["servers"].as_array().ok_or("tabane status names no servers")?;
        Ok(servers.iter().filter_map(|server| server["report"]["backing"]["calls"].as_u64()).sum())
    }

    fn json(&self, arguments: &[&str]) -> Result<Value, String> {
        let text = self.run(arguments)?;
        serde_json::from_slice(&text).map_err(|error| format!("tabane {}: {error}", arguments.join(" ")))
    }

    /// What a command prints. Errors: the words of one that fails.
    fn run(&self, arguments: &[&str]) -> Result<Vec<u8>, String> {
        let mut command = Command::new(&self.program);
        command.args(arguments).env("TABANE_CLUSTER", &self.cluster.path).stdin(Stdio::null());
        self.runner.signals().release_in(&mut command);
        let failed = |words: &str| format!("tabane {}: {words}", arguments.join(" "));
        let output = command.output().map_err(|error| failed(&error.to_string()))?;
        match output.status.success() {
            true => Ok(output.stdout),
            false => Err(failed(String::from_utf8_lossy(&output.stderr).trim())),
        }
    }
}

fn print(runner: &Runner<'_>, tree: &Tree, way: &str, servers: u32, outcome: &Outcome) -> Result<(), String> {
    let line = Line::new("stage").put("engine", runner.engine_name()).put("tree", tree.name).put("way", way);
    let line = line.put("servers", servers).put("files", tree.files).put("bytes", tree.bytes);
    let line = line.put_rounded("seconds", outcome.seconds, 6).put("calls", outcome.calls);
    runner.print(&line.put_rounded("rate", tree.rate(outcome), 1).end())
}

fn picture(runner: &Runner<'_>, trees: &[Tree; 2], table: &Table) -> Picture {
    let mut picture = runner.picture("Staging a tree into a cluster");
    let about = "The page cache of this machine has the tree, and memory was touched before.";
    picture.about.push(about.to_owned());
    for tree in trees {
        let series = WAYS.iter().map(|(way, name)| Series {
            name: (*name).to_owned(),
            points: table.points(&format!("{} {way}", tree.name)),
            is_reference: *way == "cp",
        });
        let (unit, size) = match tree.is_of_small() {
            true => ("files per second (log)", size_name(HARD_FILE_SIZE as u64)),
            false => ("MiB per second (log)", size_name(tree.bytes / tree.files)),
        };
        picture.panels.push(Panel {
            title: format!("{} files of {size}", grouped(tree.files as f64)),
            x_label: "servers".to_owned(),
            y_label: unit.to_owned(),
            categories: runner.options.server_counts.iter().map(u32::to_string).collect(),
            series: series.collect(),
            look: Look::LogLines,
        });
    }
    picture
}
