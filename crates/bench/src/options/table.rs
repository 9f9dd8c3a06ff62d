//! The one table of options: flags, environment variables and the help text come from it.

use super::values::{parse_list, parse_size};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, Command, value_parser};
use std::ffi::OsString;

/// How the processes of a cluster of our own speak to each other, as for `tabane up`.
pub const TRANSPORTS: [&str; 3] = ["auto", "shm", "tcp"];

/// Id of what is not an option.
pub const BENCHES: &str = "benches";
/// Columns of the help.
const HELP_WIDTH: usize = 120;

/// How an option's text is read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Count,
    Size,
    Seconds,
    /// Several counts or sizes: `1,2,3`, or `1..8` for each doubling from the first to the last.
    Counts,
    Sizes,
    Text,
    Flag,
}

pub struct Spec {
    pub name: &'static str,
    pub kind: Kind,
    /// What holds when nobody says anything; empty means unset.
    pub default: &'static str,
    unit: &'static str,
    help: &'static str,
    /// Passed from the leader to its workers, of no use to people.
    pub internal: bool,
}

const fn spec(name: &'static str, kind: Kind, default: &'static str, unit: &'static str, help: &'static str) -> Spec {
    Spec { name, kind, default, unit, help, internal: false }
}

const fn internal(name: &'static str, kind: Kind) -> Spec {
    Spec { name, kind, default: "", unit: "", help: "", internal: true }
}

pub const TABLE: &[Spec] = &[
    spec("target", Kind::Text, "tabane", "TARGET", "what to measure: tabane, or posix:DIRECTORY"),
    spec("compare", Kind::Text, "", "TARGET", "measure this target too, in turns, and print medians and ratios"),
    spec("repeat", Kind::Count, "1", "runs", "runs of each bench on each target"),
    spec("procs", Kind::Count, "2", "processes", "processes that do the work together"),
    spec(
        "block-size",
        Kind::Size,
        "1GiB",
        "bytes",
        "volume that each process writes in the ior benches; size of stage's large files, 64MiB unless given",
    ),
    spec(
        "transfer-size",
        Kind::Size,
        "",
        "bytes",
        "size of one write or read: 1MiB in ior-easy, 47,008 in ior-hard, 4KiB in ior-rnd4k and random",
    ),
    spec(
        "files",
        Kind::Count,
        "50000",
        "files",
        "files of each process in mdtest, find and names, up to ten million and more; pings of each in ping; small \
         files of stage, 20,000 unless given",
    ),
    spec(
        "seconds",
        Kind::Seconds,
        "0",
        "seconds",
        "stop each phase of writing, creating or pinging after this time; 0 never",
    ),
    spec("verify", Kind::Flag, "", "", "after each timed run, run again untimed and check all contents"),
    spec("depth", Kind::Count, "1", "transfers", "ior-rnd4k and random: transfers of each process under way at a time"),
    spec(
        "fsync",
        Kind::Flag,
        "",
        "",
        "ior, random and mdtest: sync each file before it is closed, in the measured time",
    ),
    spec("no-warm", Kind::Flag, "", "", "do not write and delete the same volume before the timed run"),
    spec(
        "cold",
        Kind::Flag,
        "",
        "",
        "measure first runs: a new cluster for each bench and run, and nothing written or read before",
    ),
    spec(
        "load",
        Kind::Text,
        "",
        "KIND:COUNT,...",
        "processes that want the cores beside each run: compute:2, spin:2 (looks at memory without end), yield:2 \
         (gives the core away between two looks)",
    ),
    spec("no-call-times", Kind::Flag, "", "", "do not take the time of each call, to see what taking it costs"),
    spec("progress", Kind::Seconds, "10", "seconds", "say this often how far a long phase is; 0 never"),
    spec(
        "servers",
        Kind::Counts,
        "2",
        "servers",
        "servers of the cluster started for --target tabane; experiments take several: 1,2,3, or 1..8 (doubling)",
    ),
    spec(
        "transport",
        Kind::Text,
        TRANSPORTS[0],
        "NAME",
        "transport of that cluster, as for `tabane up`: auto, shm or tcp",
    ),
    spec("store", Kind::Text, "", "STORE", "store of that cluster, as for `tabane up`"),
    spec(
        "chunk-size",
        Kind::Size,
        "0",
        "bytes",
        "chunk size of that cluster and of the files made; 0 takes the cluster's",
    ),
    spec("placement", Kind::Text, "", "NAME", "placement of that cluster, as for `tabane up`"),
    spec("clients", Kind::Counts, "8..512", "clients", "open-storm: clients that open one file at once"),
    spec(
        "record-sizes",
        Kind::Sizes,
        "4KiB,1MiB",
        "bytes",
        "shares: bytes that one call writes, of one process after the other; up to 1 MiB",
    ),
    spec("flood", Kind::Count, "0", "processes", "shares: processes beside these that send small requests"),
    spec("pieces", Kind::Count, "64", "pieces", "congestion, hpio: pieces of each process"),
    spec("piece-size", Kind::Size, "5992", "bytes", "congestion, hpio: bytes of a piece"),
    spec("gap", Kind::Size, "256", "bytes", "congestion, hpio: bytes between two pieces that nobody writes"),
    spec(
        "modes",
        Kind::Text,
        "list,node,stripe,view",
        "WORDS",
        "hpio: how the processes write and read together, each in turn (see docs/mpiio.md)",
    ),
    spec(
        "turns",
        Kind::Text,
        "off,on",
        "WORDS",
        "hpio: whether large bodies wait for permits of their server, each in turn",
    ),
    spec("procs-per-node", Kind::Count, "4", "processes", "hpio: processes of each node, with --simulate"),
    spec("csv", Kind::Text, "", "FILE.csv", "hpio: what each server counted, a line for each pass and server"),
    spec("chunk-sizes", Kind::Sizes, "4KiB..512KiB", "bytes", "async: chunk sizes, each with every number of chunks"),
    spec("chunk-counts", Kind::Counts, "1..64", "chunks", "async: chunks that one call writes"),
    spec("serial", Kind::Flag, "", "", "async: the chunks of a call one after the other, as their own calls"),
    spec(
        "contact",
        Kind::Text,
        "off,always",
        "WORDS",
        "open-storm: contacts of the clients, each in turn: auto, always or off, as for `tabane`",
    ),
    spec(
        "pages",
        Kind::Count,
        "0",
        "pages",
        "exchanges: pages of its own that a process reads a line of for each message, as larger programs do",
    ),
    spec("device", Kind::Text, "", "PATH", "uring: a file or block device; unset or missing means a file made for it"),
    spec("device-size", Kind::Size, "1GiB", "bytes", "uring: size of a file that is made"),
    spec("overwrite", Kind::Flag, "", "", "uring: a device that is there is written to, and its contents are lost"),
    spec("operation-sizes", Kind::Sizes, "1KiB..1MiB", "bytes", "uring: bytes of one operation"),
    spec("depths", Kind::Counts, "1..256", "operations", "uring: operations under way at a time"),
    spec("patterns", Kind::Text, "read,write,randread,randwrite", "WORDS", "uring: what is done, in fio's words"),
    spec("interfaces", Kind::Text, "sync,io_uring,aio", "WORDS", "uring: how; sync is pread and pwrite"),
    spec("fio", Kind::Flag, "", "", "uring: run the same with fio beside each run, and print the ratio"),
    spec(
        "backing",
        Kind::Text,
        "",
        "DIR",
        "rdbench, stage: directory of the site's file system; all is in one made in it",
    ),
    spec(
        "targets",
        Kind::Text,
        "direct,never,idle,immediate",
        "WORDS",
        "rdbench: DIR itself (direct), or a cluster over it that flushes at the end alone (never), when idle, or at \
         once (immediate); each in turn",
    ),
    spec(
        "length",
        Kind::Count,
        "1024",
        "cells",
        "rdbench: cells along a side of the square; with --simulate of the square of each process",
    ),
    spec("grid", Kind::Text, "", "COLUMNSxROWS", "rdbench: grid of processes; unset means as square as --procs allows"),
    spec("snapshots", Kind::Count, "8", "snapshots", "rdbench: files written, with computing after each"),
    spec("layout", Kind::Text, "view", "WORDS", "rdbench: rows in one call (view) or a call each (manual), or chunk"),
    spec("nosync", Kind::Flag, "", "", "rdbench: do not synchronise each snapshot"),
    spec("compute", Kind::Text, "stencil", "WORD", "rdbench: between snapshots: stencil, or sleep"),
    spec(
        "phases",
        Kind::Counts,
        "1,3",
        "times",
        "rdbench: computing lasts so many times as long as a snapshot that is written to DIR directly",
    ),
    spec(
        "interval",
        Kind::Text,
        "",
        "steps",
        "rdbench: steps between snapshots instead of --phases, or before a sleep",
    ),
    spec("simulate", Kind::Flag, "", "", "run the experiment in the simulator, over a model of what things cost"),
    spec("model", Kind::Text, "", "NAME=NUMBER,...", "numbers of that model, see docs/simulation.md"),
    spec("plot", Kind::Text, "", "FILE.svg", "draw what the experiment measured"),
    spec("tabane", Kind::Text, "", "FILE", "the tabane program; unset means beside this one, else the one in PATH"),
    spec("help", Kind::Flag, "", "", "print this text"),
    spec("version", Kind::Flag, "", "", "print the version and the commit it was built from"),
    internal("worker", Kind::Count),
    internal("group-memory", Kind::Text),
    internal("directory", Kind::Text),
];

const INTRODUCTION: &str = "\
tabane-bench [OPTIONS] BENCH...
Measures a file system with several processes. One JSON line a phase goes to standard output, tables go to \
standard error.

Benches:
  ior-easy     each process writes its own file in large pieces and reads its neighbour's
  ior-hard     all write one file in pieces of 47,008 bytes, interleaved, and read their neighbour's pieces
  ior-rnd4k    each process reads 4 KiB at random places of its neighbour's file, which was written and read before
  random       4 KiB at random places of files that were written before: its own to write, its neighbour's to read
  mdtest-easy  empty files, one directory a process: create, stat, read, remove
  mdtest-hard  files of 3,901 bytes in one shared directory: create, stat, read, remove
  find         search what mdtest made by name, size and age
  ping         round trips to each server (--target tabane only)
  exchange     messages of a stat's size over bare sockets, without Tabane: the most that round trips over TCP allow
  exchange-memory  messages of a stat's size in bare shared memory: the most that round trips of processes \
of one machine allow
  exchange-data  messages with pieces of ior-hard's size over bare sockets: the most that its calls over TCP allow
  names        very many empty files and directories, which are left there
  all          all of them but random, ping, the exchanges and names

Experiments, each alone; --plot draws them, --simulate runs them at up to 1,024 servers (see docs/experiments.md):
  placement    modular against ring placement: bandwidth, names a second, and how even the servers' shares are
  find         with several --servers, --plot or --simulate: the search by three ways over numbers of servers
  async        one process writes, by chunk size and chunks a call
  open-storm   many clients open one file at once
  congestion   pieces with gaps, written by all processes and by one a server: what waits at the servers
  shares       records of several sizes and small requests at once: what of one server's loop each gets
  hpio         pieces with gaps, written and read together in the modes of MPI-IO's collective calls, without MPI
  uring        one thread and a device: io_uring, kernel AIO and pread, by size and depth
  rdbench      reaction diffusion that writes snapshots, to a file system and to a cluster over it
  stage        small and large files of a directory into a cluster over it, beside cp
  profile      where the time of each phase goes: client, server, kernel, system calls, context switches

Example: tabane-bench --procs 2 --servers 2 --compare posix:/dev/shm --repeat 3 ior-easy mdtest-easy
A cluster is started and taken down again unless TABANE_CLUSTER names one.

Options (each also as an environment variable: --block-size is TABANE_BENCH_BLOCK_SIZE):
";

/// The environment variable of an option.
pub fn variable(spec: &Spec) -> String {
    format!("TABANE_BENCH_{}", spec.name.replace('-', "_").to_uppercase())
}

/// Names of all environment variables that set options; workers get theirs as arguments only.
pub fn variables() -> impl Iterator<Item = String> {
    TABLE.iter().map(variable)
}

/// Errors: what is wanted instead of the text.
pub fn check(spec: &Spec, text: &str) -> Result<(), String> {
    let good = match spec.kind {
        Kind::Count => text.parse::<u64>().is_ok(),
        Kind::Size => parse_size(text).is_some(),
        Kind::Sizes => parse_list(text, parse_size).is_some(),
        Kind::Counts => parse_list(text, |text| text.trim().parse().ok()).is_some(),
        Kind::Seconds => text.parse::<f64>().is_ok_and(|seconds| (0.0..=1e9).contains(&seconds)),
        Kind::Text | Kind::Flag => true,
    };
    if good {
        return Ok(());
    }
    let wanted = match spec.kind {
        Kind::Counts => "a whole number, or several such as 1,2,3 or 1..8",
        Kind::Sizes => "a size, or several such as 4KiB,1MiB or 4KiB..512KiB",
        Kind::Size => "a size such as 4096, 64KiB or 1GiB",
        Kind::Seconds => "a time in seconds such as 2.5",
        _ => "a whole number",
    };
    Err(format!("\"{text}\" is not {wanted}"))
}

/// What clap found wrong, in one line.
pub fn words_of(error: &clap::Error) -> String {
    let of = |kind| match error.get(kind) {
        Some(ContextValue::String(word)) => Some(word),
        _ => None,
    };
    match (error.kind(), of(ContextKind::InvalidArg), of(ContextKind::SuggestedArg)) {
        (ErrorKind::UnknownArgument, Some(option), Some(near)) => {
            format!("option {option} is not known; did you mean {near}?")
        }
        (ErrorKind::UnknownArgument, Some(option), None) => {
            format!("option {option} is not known; see tabane-bench --help")
        }
        _ => {
            let words = error.to_string();
            let line = words.lines().next().unwrap_or_default();
            line.strip_prefix("error: ").unwrap_or(line).to_owned()
        }
    }
}

/// The command line as clap knows it. What a value may be is checked by the table, as that of a variable is.
pub fn command() -> Command {
    Command::new("tabane-bench")
        .help_template(format!("{INTRODUCTION}{{options}}\n"))
        .term_width(HELP_WIDTH)
        .no_binary_name(true)
        .args_override_self(true)
        .disable_help_flag(true)
        .arg(Arg::new(BENCHES).num_args(0..).action(ArgAction::Append).value_parser(value_parser!(OsString)))
        .args(TABLE.iter().map(|spec| {
            let default = if spec.default.is_empty() { String::new() } else { format!(" [{}]", spec.default) };
            let option = Arg::new(spec.name).long(spec.name).help(format!("{}{default}", spec.help));
            match (spec.kind, spec.name) {
                (_, "help") => option.short('h').action(ArgAction::Help),
                (_, "version") => option.short('V').action(ArgAction::SetTrue),
                (Kind::Flag, _) => option.action(ArgAction::SetTrue),
                _ => option
                    .value_name(spec.unit)
                    .hide(spec.internal)
                    .allow_hyphen_values(true)
                    .value_parser(value_parser!(OsString)),
            }
        }))
}
