//! The one table of options: flags, environment variables and the help text come from it.

use crate::engine_simulated::Model;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, Command, value_parser};
use client::Contact;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

/// How the processes of a cluster of our own speak to each other, as for `tabane up`.
const TRANSPORTS: [&str; 3] = ["auto", "shm", "tcp"];

/// Id of what is not an option.
const BENCHES: &str = "benches";
/// Most processes of a kind of `--load`.
const LOAD_COUNT_MAX: u32 = 1_024;
/// Columns of the help.
const HELP_WIDTH: usize = 120;

/// How an option's text is read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Count,
    Size,
    Seconds,
    /// Several counts or sizes: `1,2,3`, or `1..8` for each doubling from the first to the last.
    Counts,
    Sizes,
    Text,
    Flag,
}

struct Spec {
    name: &'static str,
    kind: Kind,
    /// What holds when nobody says anything; empty means unset.
    default: &'static str,
    unit: &'static str,
    help: &'static str,
    /// Passed from the leader to its workers, of no use to people.
    internal: bool,
}

const fn spec(name: &'static str, kind: Kind, default: &'static str, unit: &'static str, help: &'static str) -> Spec {
    Spec { name, kind, default, unit, help, internal: false }
}

const fn internal(name: &'static str, kind: Kind) -> Spec {
    Spec { name, kind, default: "", unit: "", help: "", internal: true }
}

const TABLE: &[Spec] = &[
    spec("target", Kind::Text, "tabane", "TARGET", "what to measure: tabane, or posix:DIRECTORY"),
    spec("compare", Kind::Text, "", "TARGET", "measure this target too, in turns, and print medians and ratios"),
    spec("repeat", Kind::Count, "1", "runs", "runs of each bench on each target"),
    spec("procs", Kind::Count, "2", "processes", "processes that do the work together"),
    spec("block-size", Kind::Size, "1GiB", "bytes", "volume that each process writes in the ior benches"),
    spec(
        "transfer-size",
        Kind::Size,
        "",
        "bytes",
        "size of one write or read: 1MiB in ior-easy, 47,008 in ior-hard, 4KiB in ior-rnd4k",
    ),
    spec(
        "files",
        Kind::Count,
        "50000",
        "files",
        "files of each process in mdtest, find and names, up to ten million and more; pings of each in ping",
    ),
    spec(
        "seconds",
        Kind::Seconds,
        "0",
        "seconds",
        "stop each phase of writing, creating or pinging after this time; 0 never",
    ),
    spec("verify", Kind::Flag, "", "", "after each timed run, run again untimed and check all contents"),
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
Measures a file system with several processes. One JSON line a phase goes to standard output, tables go to standard error.

Benches:
  ior-easy     each process writes its own file in large pieces and reads its neighbour's
  ior-hard     all write one file in pieces of 47,008 bytes, interleaved, and read their neighbour's pieces
  ior-rnd4k    each process reads 4 KiB at random places of its neighbour's file, which was written and read before
  mdtest-easy  empty files, one directory a process: create, stat, read, remove
  mdtest-hard  files of 3,901 bytes in one shared directory: create, stat, read, remove
  find         search what mdtest made by name, size and age
  ping         round trips to each server (--target tabane only)
  exchange     messages of a stat's size over bare sockets, without Tabane: the most that round trips over TCP allow
  exchange-memory  messages of a stat's size in bare shared memory: the most that round trips of processes of one machine allow
  exchange-data  messages with pieces of ior-hard's size over bare sockets: the most that its calls over TCP allow
  names        very many empty files and directories, which are left there
  all          all of them but ping, the exchanges and names

Experiments, each alone; --plot draws them, --simulate runs them at up to 1,024 servers (see docs/experiments.md):
  placement    modular against ring placement: bandwidth, names a second, and how even the servers' shares are
  find         with several --servers, --plot or --simulate: the search by three ways over numbers of servers
  async        one process writes, by chunk size and chunks a call
  open-storm   many clients open one file at once
  profile      where the time of each phase goes: client, server, kernel, system calls, context switches

Example: tabane-bench --procs 2 --servers 2 --compare posix:/dev/shm --repeat 3 ior-easy mdtest-easy
A cluster is started and taken down again unless TABANE_CLUSTER names one.

Options (each also as an environment variable: --block-size is TABANE_BENCH_BLOCK_SIZE):
";

/// The benches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Bench {
    IorEasy,
    IorHard,
    IorRandom,
    MdtestEasy,
    MdtestHard,
    Find,
    Ping,
    Exchange,
    ExchangeMemory,
    ExchangeData,
    Names,
    /// Internal: removes what an interrupted run left.
    Clean,
    /// Internal: wants a core, and does nothing with it.
    Load,
    /// Internal: does the steps of an experiment.
    Steps,
    Placement,
    Async,
    OpenStorm,
    Profile,
}

/// What a phase counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    Bytes,
    Operations,
}

/// What a process of `--load` does with a core.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoadKind {
    /// Arithmetic, in registers alone.
    Compute,
    /// Looks at a word of memory without end.
    Spin,
    /// The same, and gives the core to whoever else wants it between two looks.
    Yield,
}

const LOAD_KINDS: [(LoadKind, &str); 3] =
    [(LoadKind::Compute, "compute"), (LoadKind::Spin, "spin"), (LoadKind::Yield, "yield")];

impl LoadKind {
    pub fn name(self) -> &'static str {
        LOAD_KINDS.iter().find(|(kind, _)| *kind == self).map_or("", |(_, name)| name)
    }
}

/// Benches that only this program itself asks for.
const INTERNAL_BENCHES: [Bench; 3] = [Bench::Clean, Bench::Load, Bench::Steps];

const EVERY_BENCH: [(Bench, &str); 18] = [
    (Bench::IorEasy, "ior-easy"),
    (Bench::IorHard, "ior-hard"),
    (Bench::IorRandom, "ior-rnd4k"),
    (Bench::MdtestEasy, "mdtest-easy"),
    (Bench::MdtestHard, "mdtest-hard"),
    (Bench::Find, "find"),
    (Bench::Ping, "ping"),
    (Bench::Exchange, "exchange"),
    (Bench::ExchangeMemory, "exchange-memory"),
    (Bench::ExchangeData, "exchange-data"),
    (Bench::Names, "names"),
    (Bench::Placement, "placement"),
    (Bench::Async, "async"),
    (Bench::OpenStorm, "open-storm"),
    (Bench::Profile, "profile"),
    (Bench::Clean, "clean"),
    (Bench::Load, "load"),
    (Bench::Steps, "steps"),
];

impl Bench {
    pub fn name(self) -> &'static str {
        EVERY_BENCH.iter().find(|(bench, _)| *bench == self).map_or("", |(_, name)| name)
    }

    /// Whether it needs no target: bare sockets or memory, and as many processes again that serve.
    pub fn is_bare(self) -> bool {
        matches!(self, Bench::Exchange | Bench::ExchangeMemory | Bench::ExchangeData)
    }

    /// Its phases in order.
    pub fn phases(self) -> &'static [&'static str] {
        match self {
            Bench::IorEasy | Bench::IorHard | Bench::ExchangeData => &["write", "read"],
            Bench::MdtestEasy | Bench::MdtestHard => &["create", "stat", "read", "remove"],
            Bench::IorRandom => &["read"],
            Bench::Find => &["find"],
            Bench::Ping => &["ping"],
            Bench::Exchange | Bench::ExchangeMemory => &["exchange"],
            Bench::Names => &["files", "directories"],
            Bench::Clean | Bench::Load | Bench::Steps => &[],
            Bench::Placement | Bench::Async | Bench::OpenStorm | Bench::Profile => &[],
        }
    }

    pub fn unit(self) -> Unit {
        match self {
            Bench::IorEasy | Bench::IorHard | Bench::ExchangeData => Unit::Bytes,
            _ => Unit::Operations,
        }
    }
}

/// A file system to measure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TargetName {
    Tabane,
    Posix(PathBuf),
}

impl fmt::Display for TargetName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TargetName::Tabane => f.write_str("tabane"),
            TargetName::Posix(directory) => write!(f, "posix:{}", directory.display()),
        }
    }
}

impl TargetName {
    fn parse(text: &str) -> Result<TargetName, String> {
        match text.split_once(':') {
            None if text == "tabane" => Ok(TargetName::Tabane),
            Some(("posix", directory)) if !directory.is_empty() => Ok(TargetName::Posix(PathBuf::from(directory))),
            _ => Err(format!("target \"{text}\" is not known; use tabane or posix:DIRECTORY")),
        }
    }
}

/// What makes this process a worker instead of the leader.
#[derive(Debug, Clone)]
pub struct Worker {
    pub rank: u32,
    pub group_memory: PathBuf,
    /// Directory on the target in which everything is made; a path from the target's root.
    pub directory: String,
}

/// All options, checked.
#[derive(Debug, Clone)]
pub struct Options {
    pub benches: Vec<Bench>,
    pub target: TargetName,
    pub compare: Option<TargetName>,
    pub repeat: u32,
    pub procs: u32,
    /// Bytes that each process writes.
    pub block_size: u64,
    /// Bytes of one call; unset means the bench's own.
    pub transfer_size: Option<usize>,
    pub files: u64,
    /// 0 means no limit.
    pub seconds: f64,
    pub verify: bool,
    pub warm: bool,
    /// Each run on a cluster of its own that has done nothing before; never with `warm`.
    pub cold: bool,
    /// Processes beside each run.
    pub load: Vec<(LoadKind, u32)>,
    /// Whether each call is timed.
    pub call_times: bool,
    /// Seconds between two lines that say how far a phase is; 0 means none.
    pub progress: f64,
    /// The first of `server_counts`.
    pub servers: u32,
    pub server_counts: Vec<u32>,
    pub client_counts: Vec<u32>,
    pub chunk_sizes: Vec<u32>,
    pub chunk_counts: Vec<u32>,
    pub serial: bool,
    /// Whether clients ask contacts first, one after the other.
    pub contacts: Vec<Contact>,
    /// Pages that a process of the exchanges touches for each message.
    pub pages: usize,
    pub simulate: bool,
    pub model: Model,
    pub plot: Option<PathBuf>,
    pub transport: String,
    pub store: Option<String>,
    pub chunk_size: u32,
    pub placement: Option<String>,
    pub tabane: Option<PathBuf>,
    pub worker: Option<Worker>,
    /// Connections that each server of a cluster of our own takes, when its default is too few.
    pub connections: Option<u32>,
    /// The cluster that TABANE_CLUSTER names.
    pub cluster: Option<PathBuf>,
    /// As given, so that workers can be told the same.
    texts: BTreeMap<&'static str, String>,
}

/// What the command line asks for.
pub enum Request {
    Help(String),
    Run(Box<Options>),
}

/// Reads command line and environment. The error says what to do.
pub fn read() -> Result<Request, String> {
    // The one place where this program looks at its environment.
    #[allow(clippy::disallowed_methods)]
    let environment = |name: &str| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
    parse(std::env::args_os().skip(1), environment)
}

fn parse(
    arguments: impl IntoIterator<Item = OsString>,
    environment: impl Fn(&str) -> Option<String>,
) -> Result<Request, String> {
    let mut texts = BTreeMap::new();
    for spec in TABLE {
        let variable = variable(spec);
        let given = environment(&variable).filter(|text| !spec.internal && !text.is_empty());
        if let Some(text) = given {
            check(spec, &text).map_err(|error| format!("{variable}: {error}"))?;
            texts.insert(spec.name, text);
        }
    }
    let matches = match command().try_get_matches_from(arguments) {
        Err(error) if error.kind() == ErrorKind::DisplayHelp => return Ok(Request::Help(error.to_string())),
        matches => matches.map_err(|error| words_of(&error))?,
    };
    if matches.get_flag("version") {
        return Ok(Request::Help(crate::version::line("tabane-bench")));
    }
    let mut benches = Vec::new();
    for name in matches.get_raw(BENCHES).into_iter().flatten() {
        add_bench(&name.to_string_lossy(), &mut benches)?;
    }
    for spec in TABLE.iter().filter(|spec| matches.value_source(spec.name) == Some(ValueSource::CommandLine)) {
        let value = matches.get_raw(spec.name).and_then(Iterator::last).unwrap_or_default();
        let text = value.to_str().ok_or_else(|| format!("--{}: the value is not UTF-8", spec.name))?;
        check(spec, text).map_err(|error| format!("--{}: {error}", spec.name))?;
        texts.insert(spec.name, text.to_owned());
    }
    let cluster = environment("TABANE_CLUSTER").filter(|text| !text.is_empty()).map(PathBuf::from);
    Options::build(benches, texts, cluster).map(|options| Request::Run(Box::new(options)))
}

impl Options {
    fn build(
        benches: Vec<Bench>,
        texts: BTreeMap<&'static str, String>,
        cluster: Option<PathBuf>,
    ) -> Result<Options, String> {
        let values = Values(&texts);
        let worker = match values.text("worker") {
            None => None,
            Some(_) => Some(Worker {
                rank: values.count("worker", 0, u64::from(reactor::barrier::PARTY_COUNT_MAX))? as u32,
                group_memory: PathBuf::from(values.text("group-memory").ok_or("--worker needs --group-memory")?),
                directory: values.text("directory").ok_or("--worker needs --directory")?,
            }),
        };
        if benches.is_empty() {
            return Err("name a bench, for instance ior-easy, or all; see tabane-bench --help".into());
        }
        if let Some(bench) = benches.iter().find(|bench| INTERNAL_BENCHES.contains(bench) && worker.is_none()) {
            return Err(unknown_bench(bench.name()));
        }
        let server_counts = values.counts("servers", wire::limits::SERVER_COUNT_MAX)?;
        let options = Options {
            benches,
            target: TargetName::parse(&values.text("target").unwrap_or_default())?,
            compare: values.text("compare").map(|text| TargetName::parse(&text)).transpose()?,
            repeat: values.count("repeat", 1, 10_000)? as u32,
            procs: values.count("procs", 1, u64::from(reactor::barrier::PARTY_COUNT_MAX))? as u32,
            block_size: values.size("block-size", 1, 1 << 50)?.unwrap_or(1),
            transfer_size: values.size("transfer-size", 1, 1 << 30)?.map(|size| size as usize),
            files: values.count("files", 1, 1 << 40)?,
            seconds: values.seconds("seconds"),
            verify: values.text("verify").is_some(),
            warm: values.text("no-warm").is_none() && values.text("cold").is_none(),
            cold: values.text("cold").is_some(),
            load: values.load()?,
            call_times: values.text("no-call-times").is_none(),
            progress: values.seconds("progress"),
            servers: server_counts[0],
            server_counts,
            client_counts: values.counts("clients", reactor::barrier::PARTY_COUNT_MAX)?,
            chunk_sizes: values.chunk_sizes()?,
            chunk_counts: values.counts("chunk-counts", 1 << 16)?,
            serial: values.text("serial").is_some(),
            contacts: values.contacts()?,
            pages: values.count("pages", 0, 1 << 16)? as usize,
            simulate: values.text("simulate").is_some(),
            model: Model::parse(&values.text("model").unwrap_or_default())?,
            plot: values.text("plot").map(PathBuf::from),
            transport: values.text("transport").unwrap_or_default(),
            store: values.text("store"),
            chunk_size: values.size("chunk-size", 0, u64::from(wire::limits::CHUNK_SIZE_MAX))?.unwrap_or(0) as u32,
            placement: values.text("placement"),
            tabane: values.text("tabane").map(PathBuf::from),
            worker,
            connections: None,
            cluster,
            texts,
        };
        options.check_together()?;
        Ok(options)
    }

    /// Whether it is one of the experiments that is asked for, which run in a way of their own.
    pub fn experiment(&self) -> Option<Bench> {
        let several = self.server_counts.len() > 1 || self.plot.is_some() || self.simulate;
        let is_one = |bench: &Bench| match bench {
            Bench::Placement | Bench::Async | Bench::OpenStorm | Bench::Profile => true,
            Bench::Find => several,
            _ => false,
        };
        self.benches.iter().copied().find(is_one)
    }

    /// Whether an option was given, and does not just have its default.
    pub fn is_given(&self, name: &str) -> bool {
        self.texts.contains_key(name)
    }

    fn check_experiment(&self) -> Result<(), String> {
        let Some(experiment) = self.experiment() else {
            let only = [("--plot", self.plot.is_some()), ("--simulate", self.simulate)];
            let several = ("several --servers", self.server_counts.len() > 1);
            return match only.into_iter().chain([several]).find(|(_, given)| *given && self.worker.is_none()) {
                Some((name, _)) => {
                    Err(format!("{name} is for an experiment: placement, find, async, open-storm or profile"))
                }
                None => Ok(()),
            };
        };
        let name = experiment.name();
        if self.benches.len() > 1 {
            return Err(format!("{name} is an experiment; run it alone"));
        }
        if self.target != TargetName::Tabane || self.compare.is_some() {
            return Err(format!("{name} measures Tabane; leave --target and --compare out"));
        }
        if experiment == Bench::Profile && (self.simulate || self.server_counts.len() > 1) {
            return Err("profile is about real processes and one count of servers; leave --simulate out".into());
        }
        if self.cluster.is_some() && !self.simulate && (self.server_counts.len() > 1 || experiment == Bench::Placement)
        {
            return Err(format!(
                "{name} starts clusters of its own; unset TABANE_CLUSTER, or give one count of servers"
            ));
        }
        for (option, given) in [("--cold", self.cold), ("--load", !self.load.is_empty())] {
            if given {
                return Err(format!("{option} is for the benches; {name} is an experiment, leave {option} out"));
            }
        }
        Ok(())
    }

    fn check_together(&self) -> Result<(), String> {
        self.check_experiment()?;
        let tabane = self.target == TargetName::Tabane || self.compare.as_ref() == Some(&TargetName::Tabane);
        if self.cold && tabane && self.cluster.is_some() && self.worker.is_none() {
            return Err("--cold starts a new cluster for each run; unset TABANE_CLUSTER, or leave --cold out".into());
        }
        if self.compare.as_ref() == Some(&self.target) {
            return Err("--compare names the same target as --target; name another one".into());
        }
        let posix_only =
            self.target != TargetName::Tabane || self.compare.as_ref().is_some_and(|t| *t != TargetName::Tabane);
        if self.benches.contains(&Bench::Ping) && posix_only {
            return Err("ping measures servers; leave posix targets out of that run".into());
        }
        if !TRANSPORTS.contains(&self.transport.as_str()) {
            return Err(format!("--transport {} is not known; use {}", self.transport, TRANSPORTS.join(" or ")));
        }
        if self.chunk_size != 0 && self.chunk_size < wire::limits::CHUNK_SIZE_MIN {
            return Err(format!("--chunk-size must be at least {} bytes", wire::limits::CHUNK_SIZE_MIN));
        }
        Ok(())
    }

    /// Changes the number of processes, for steps that one does alone.
    pub fn set_procs(&mut self, procs: u32) {
        self.procs = procs;
        self.texts.insert("procs", procs.to_string());
    }

    /// The arguments that make another process of this program a worker under the same options.
    pub fn worker_arguments(&self, bench: Bench, target: &TargetName, worker: &Worker) -> Vec<String> {
        let mut texts = self.texts.clone();
        for name in ["compare", "repeat", "load", "progress"] {
            texts.remove(name);
        }
        texts.insert("target", target.to_string());
        texts.insert("worker", worker.rank.to_string());
        texts.insert("group-memory", worker.group_memory.display().to_string());
        texts.insert("directory", worker.directory.clone());
        let is_flag = |name: &str| TABLE.iter().any(|spec| spec.name == name && spec.kind == Kind::Flag);
        let mut arguments = vec![bench.name().to_string()];
        for (name, text) in texts {
            arguments.push(if is_flag(name) { format!("--{name}") } else { format!("--{name}={text}") });
        }
        arguments
    }
}

/// Texts by name, with defaults from the table.
struct Values<'a>(&'a BTreeMap<&'static str, String>);

impl Values<'_> {
    fn load(&self) -> Result<Vec<(LoadKind, u32)>, String> {
        let Some(text) = self.text("load") else { return Ok(Vec::new()) };
        let read = |part: &str| {
            let (name, count) = part.trim().split_once(':')?;
            let (kind, _) = LOAD_KINDS.iter().find(|(_, known)| *known == name)?;
            let count = count.parse().ok().filter(|count| (1..=LOAD_COUNT_MAX).contains(count))?;
            Some((*kind, count))
        };
        let wrong = |part: &str| {
            format!(
                "--load: \"{part}\" is not a kind and a number of processes up to {LOAD_COUNT_MAX}, such as compute:2, \
                 spin:2 or yield:2"
            )
        };
        text.split(',').map(|part| read(part).ok_or_else(|| wrong(part))).collect()
    }

    /// A time that [`check`] has looked at.
    fn seconds(&self, name: &str) -> f64 {
        self.text(name).and_then(|text| text.parse().ok()).unwrap_or(0.0)
    }

    fn contacts(&self) -> Result<Vec<Contact>, String> {
        let wrong = |word: &str| format!("--contact {word} is none of auto, always and off");
        let words = self.text("contact").unwrap_or_default();
        words.split(',').map(|word| Contact::from_word(word.trim()).ok_or_else(|| wrong(word))).collect()
    }

    /// `None` when neither given nor a default exists.
    fn text(&self, name: &str) -> Option<String> {
        let default = || TABLE.iter().find(|spec| spec.name == name).map(|spec| spec.default.to_string());
        self.0.get(name).cloned().or_else(default).filter(|text| !text.is_empty())
    }

    fn count(&self, name: &str, least: u64, most: u64) -> Result<u64, String> {
        let value = self.text(name).unwrap_or_default().parse().map_err(|_| format!("--{name}: not a number"))?;
        in_range(name, value, least, most)
    }

    fn counts(&self, name: &str, most: u32) -> Result<Vec<u32>, String> {
        let read = |text: &str| text.trim().parse().ok();
        let values =
            parse_list(&self.text(name).unwrap_or_default(), read).ok_or_else(|| format!("--{name}: not counts"))?;
        values.into_iter().map(|value| Ok(in_range(name, value, 1, u64::from(most))? as u32)).collect()
    }

    fn chunk_sizes(&self) -> Result<Vec<u32>, String> {
        let name = "chunk-sizes";
        let values = parse_list(&self.text(name).unwrap_or_default(), parse_size).ok_or("--chunk-sizes: not sizes")?;
        let (least, most) = (u64::from(wire::limits::CHUNK_SIZE_MIN), u64::from(wire::limits::CHUNK_SIZE_MAX));
        values.into_iter().map(|value| Ok(in_range(name, value, least, most)? as u32)).collect()
    }

    fn size(&self, name: &str, least: u64, most: u64) -> Result<Option<u64>, String> {
        let Some(text) = self.text(name) else { return Ok(None) };
        let value = parse_size(&text).ok_or_else(|| format!("--{name}: not a size"))?;
        in_range(name, value, least, most).map(Some)
    }
}

fn in_range(name: &str, value: u64, least: u64, most: u64) -> Result<u64, String> {
    if (least..=most).contains(&value) {
        return Ok(value);
    }
    Err(format!("--{name}: {value} is out of range ({least} to {most})"))
}

fn variable(spec: &Spec) -> String {
    format!("TABANE_BENCH_{}", spec.name.replace('-', "_").to_uppercase())
}

/// Names of all environment variables that set options; workers get theirs as arguments only.
pub fn variables() -> impl Iterator<Item = String> {
    TABLE.iter().map(variable)
}

fn check(spec: &Spec, text: &str) -> Result<(), String> {
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

/// Numbers with commas between them, or two with `..` between: then the first, each doubling of it, and the last.
fn parse_list(text: &str, read: impl Fn(&str) -> Option<u64>) -> Option<Vec<u64>> {
    let Some((first, last)) = text.split_once("..") else { return text.split(',').map(read).collect() };
    let (first, last) = (read(first)?, read(last)?);
    if first == 0 || first > last {
        return None;
    }
    let mut values: Vec<u64> =
        std::iter::successors(Some(first), |value| value.checked_mul(2)).take_while(|value| *value < last).collect();
    values.push(last);
    Some(values)
}

/// Bytes, with an optional suffix: K, M, G, T, also written KiB or kib (powers of 1,024).
fn parse_size(text: &str) -> Option<u64> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let number: u64 = text[..digits].parse().ok()?;
    let shift = match text[digits..].trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        "t" | "tib" => 40,
        _ => return None,
    };
    number.checked_mul(1 << shift)
}

fn add_bench(name: &str, benches: &mut Vec<Bench>) -> Result<(), String> {
    if name == "all" {
        benches.extend([Bench::IorEasy, Bench::IorHard, Bench::IorRandom]);
        benches.extend([Bench::MdtestEasy, Bench::MdtestHard, Bench::Find]);
        return Ok(());
    }
    let found = EVERY_BENCH.iter().find(|(_, known)| *known == name);
    let (bench, _) = found.ok_or_else(|| unknown_bench(name))?;
    benches.push(*bench);
    Ok(())
}

fn unknown_bench(name: &str) -> String {
    let public = EVERY_BENCH.iter().filter(|(bench, _)| !INTERNAL_BENCHES.contains(bench));
    let known: Vec<&str> = public.map(|(_, known)| *known).collect();
    format!("bench \"{name}\" is not known; there are {} and all", known.join(", "))
}

/// What clap found wrong, in one line.
fn words_of(error: &clap::Error) -> String {
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
fn command() -> Command {
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

/// Options of a command line that is right, for the tests of other files.
#[cfg(test)]
pub fn for_tests(arguments: &[&str]) -> Options {
    match parse(arguments.iter().map(OsString::from), |_| None) {
        Ok(Request::Run(options)) => *options,
        _ => panic!("{arguments:?} is wrong"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(arguments: &[&str], environment: &[(&str, &str)]) -> Result<Options, String> {
        let lookup = |name: &str| environment.iter().find(|(key, _)| *key == name).map(|(_, v)| v.to_string());
        match parse(arguments.iter().map(OsString::from), lookup)? {
            Request::Run(options) => Ok(*options),
            Request::Help(_) => Err("help".into()),
        }
    }

    /// Goal: sizes are read with and without suffix and refused otherwise.
    #[test]
    fn sizes() {
        let read = |text| parse_size(text);
        assert_eq!(read("47008"), Some(47_008));
        assert_eq!(read("1MiB"), Some(1 << 20));
        assert_eq!(read("2g"), Some(2 << 30));
        assert_eq!((read(""), read("x"), read("1Q"), read("99999999999T")), (None, None, None, None));
    }

    /// Goal: lists of counts are read as they are, ranges by doubling up to their end.
    #[test]
    fn lists() {
        let read = |text: &str| parse_list(text, parse_size);
        assert_eq!(read("3"), Some(vec![3]));
        assert_eq!(read("16,24,32"), Some(vec![16, 24, 32]));
        assert_eq!(read("1..8"), Some(vec![1, 2, 4, 8]));
        assert_eq!(read("1..1"), Some(vec![1]));
        assert_eq!(read("4K..24K"), Some(vec![4096, 8192, 16_384, 24_576]));
        assert_eq!((read(""), read("8..1"), read("0..4"), read("1,,2")), (None, None, None, None));
    }

    /// Goal: experiments are alone, and what is only for them is refused elsewhere.
    #[test]
    fn experiments() {
        assert_eq!(run(&["find"], &[]).unwrap().experiment(), None);
        assert_eq!(run(&["find", "--servers=1..4"], &[]).unwrap().experiment(), Some(Bench::Find));
        assert_eq!(run(&["async"], &[]).unwrap().experiment(), Some(Bench::Async));
        let refused = |arguments: &[&str]| run(arguments, &[]).unwrap_err();
        assert!(refused(&["async", "placement"]).contains("run it alone"));
        assert!(refused(&["ior-easy", "--plot=x.svg"]).contains("--plot is for an experiment"));
        assert!(refused(&["ior-easy", "--servers=1..2"]).contains("several --servers"));
        assert!(refused(&["placement", "--target=posix:/x"]).contains("leave --target"));
        assert!(refused(&["async", "--model=x=1", "--simulate"]).contains("latency_us"));
        assert!(run(&["placement"], &[("TABANE_CLUSTER", "/x")]).unwrap_err().contains("unset TABANE_CLUSTER"));
    }

    /// Goal: the command line goes before the environment, and that before the default.
    #[test]
    fn precedence() {
        let environment = [("TABANE_BENCH_PROCS", "3"), ("TABANE_BENCH_FILES", "7"), ("TABANE_CLUSTER", "/run/x")];
        let options = run(&["--procs", "4", "ior-easy"], &environment).unwrap();
        assert_eq!((options.procs, options.files, options.repeat), (4, 7, 1));
        assert_eq!(options.cluster, Some(PathBuf::from("/run/x")));
    }

    /// Goal: every wrong command line is refused with words that help.
    #[test]
    fn refusals() {
        let refused = |arguments: &[&str]| run(arguments, &[]).unwrap_err();
        assert!(refused(&["--proc", "2", "all"]).contains("did you mean --procs?"));
        assert!(refused(&["--procs", "two", "all"]).contains("whole number"));
        assert!(refused(&["--procs", "0", "all"]).contains("out of range"));
        assert!(refused(&["--block-size", "1 apple", "all"]).contains("64KiB"));
        assert!(refused(&["ior-esy"]).contains("ior-easy"));
        assert!(refused(&[]).contains("name a bench"));
        assert!(refused(&["--target", "disk", "all"]).contains("posix:DIRECTORY"));
        assert!(refused(&["--target", "posix:/x", "ping"]).contains("ping"));
        assert!(refused(&["--transport", "pigeon", "all"]).contains("auto or shm or tcp"));
        assert!(refused(&["--compare", "tabane", "all"]).contains("same target"));
        assert!(refused(&["--chunk-size", "100", "all"]).contains("at least 4096"));
    }

    /// Goal: loads are read with all their kinds, and refused with words that say what to write.
    #[test]
    fn loads() {
        let load = |text: &str| run(&["--load", text, "all"], &[]).map(|options| options.load);
        assert_eq!(run(&["all"], &[]).unwrap().load, []);
        assert_eq!(load("compute:2").unwrap(), [(LoadKind::Compute, 2)]);
        assert_eq!(load("spin:1, yield:3").unwrap(), [(LoadKind::Spin, 1), (LoadKind::Yield, 3)]);
        for wrong in ["2", "compute", "compute:0", "compute:2000", "dance:2", "compute:2,", "spin:-1"] {
            assert!(load(wrong).unwrap_err().contains("such as compute:2"), "{wrong}");
        }
        assert!(run(&["--load=spin:1", "profile"], &[]).unwrap_err().contains("leave --load out"));
    }

    /// Goal: a cold run warms nothing, and is refused where there is no new cluster for each run.
    #[test]
    fn cold_runs() {
        let cold = |arguments: &[&str], environment: &[(&str, &str)]| {
            run(&[&["--cold"], arguments].concat(), environment).map(|options| (options.cold, options.warm))
        };
        assert_eq!(cold(&["ior-easy"], &[]), Ok((true, false)));
        let given = [("TABANE_CLUSTER", "/run/x")];
        assert!(cold(&["ior-easy"], &given).unwrap_err().contains("unset TABANE_CLUSTER"));
        assert_eq!(cold(&["--target=posix:/x", "ior-easy"], &given), Ok((true, false)));
        assert!(cold(&["async"], &[]).unwrap_err().contains("leave --cold out"));
    }

    /// Goal: progress and the times of calls are there unless somebody says otherwise, in words that are understood.
    #[test]
    fn progress_and_call_times() {
        let read = |arguments: &[&str]| run(arguments, &[]).map(|options| (options.progress, options.call_times));
        assert_eq!(read(&["all"]), Ok((10.0, true)));
        assert_eq!(read(&["--progress=0.5", "--no-call-times", "all"]), Ok((0.5, false)));
        assert_eq!(read(&["--progress=0", "all"]), Ok((0.0, true)));
        assert!(read(&["--progress=often", "all"]).unwrap_err().contains("a time in seconds"));
    }

    /// Goal: ten million files a process are taken, and benches of this program alone are not offered.
    #[test]
    fn many_files_and_public_benches() {
        assert_eq!(run(&["--files=10000000", "ior-rnd4k"], &[]).unwrap().files, 10_000_000);
        for name in ["bench", "load", "clean"] {
            let words = run(&[name], &[]).unwrap_err();
            let known = words.split("there are").nth(1).unwrap();
            assert!(known.contains("ior-rnd4k") && !known.contains("load") && !known.contains("steps"), "{words}");
        }
    }

    /// Goal: a worker reads exactly the options that its leader had.
    #[test]
    fn workers_are_told_the_same() {
        let arguments =
            ["--procs=3", "--verify", "--block-size", "3MiB", "--compare", "posix:/tmp", "--repeat=5", "all"];
        let leader = run(&arguments, &[("TABANE_BENCH_FILES", "9")]).unwrap();
        let worker = Worker { rank: 2, group_memory: "/proc/1/fd/3".into(), directory: "/bench".into() };
        let arguments = leader.worker_arguments(Bench::IorHard, &TargetName::Posix("/tmp".into()), &worker);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let told = run(&arguments, &[]).unwrap();
        assert_eq!((told.procs, told.verify, told.block_size, told.files), (3, true, 3 << 20, 9));
        assert_eq!((told.benches, told.target), (vec![Bench::IorHard], TargetName::Posix("/tmp".into())));
        let told = told.worker.unwrap();
        assert_eq!((told.rank, told.group_memory, told.directory), (2, worker.group_memory, worker.directory));
    }

    /// Goal: the help names every option that people may use.
    #[test]
    fn help_is_complete() {
        let text = command().render_help().to_string();
        for spec in TABLE {
            assert_eq!(text.contains(&format!("--{} ", spec.name)), !spec.internal, "{}", spec.name);
        }
    }
}
