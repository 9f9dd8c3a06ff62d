//! What is asked for: read from the command line and the environment by the one table of options, and checked.

mod bench;
mod device;
mod rdbench;
mod table;
mod values;

pub use bench::{Bench, LoadKind, TargetName, Unit};
pub use device::DeviceBench;
pub use rdbench::{Compute, RdBench, SnapshotLayout, SnapshotTarget};
pub use table::variables;

use crate::collective::{MODES, Mode, PIECE_GAP, PIECE_SIZE, Pieces};
use crate::engine_simulated::Model;
use bench::{INTERNAL_BENCHES, add_bench, unknown_bench};
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use client::Contact;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use table::{BENCHES, Kind, TABLE, TRANSPORTS, check, command, variable, words_of};
use values::Values;

/// Processes of a simulation.
const SIMULATED_PROCS_MAX: u64 = 65_536;

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
    /// Transfers of each process under way at a time.
    pub depth: u32,
    pub verify: bool,
    pub warm: bool,
    /// Whether files that were written are synced before they are closed, in the measured time.
    pub fsync: bool,
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
    /// Bytes of the records of shares, by process, and processes that send small requests beside these.
    pub record_sizes: Vec<u64>,
    pub flood: u32,
    pub pieces: Pieces,
    pub modes: Vec<Mode>,
    /// Whether bodies wait for permits, one after the other.
    pub turns: Vec<bool>,
    pub procs_per_node: u32,
    /// What each server counted, as a table.
    pub csv: Option<PathBuf>,
    pub chunk_sizes: Vec<u32>,
    pub chunk_counts: Vec<u32>,
    pub serial: bool,
    /// Whether clients ask contacts first, one after the other.
    pub contacts: Vec<Contact>,
    /// Pages that a process of the exchanges touches for each message.
    pub pages: usize,
    pub device: DeviceBench,
    pub rdbench: RdBench,
    pub backing: Option<PathBuf>,
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
    /// What the cluster of our own is over.
    pub site: SiteUse,
    /// The cluster that TABANE_CLUSTER names.
    pub cluster: Option<PathBuf>,
    /// As given, so that workers can be told the same.
    texts: BTreeMap<&'static str, String>,
}

/// What the processes of an experiment write to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum SiteUse {
    /// A cluster with nothing behind it.
    #[default]
    None,
    /// A directory of the site's file system itself, without a cluster.
    Direct(PathBuf),
    /// A cluster over that directory, with what `tabane up` is told of when to flush, and of bytes of each store whose
    /// memory it touches first.
    Behind { path: PathBuf, flush: &'static str, warm: u64 },
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
            procs: values.count("procs", 1, SIMULATED_PROCS_MAX)? as u32,
            block_size: values.size("block-size", 1, 1 << 50)?.unwrap_or(1),
            transfer_size: values.size("transfer-size", 1, 1 << 30)?.map(|size| size as usize),
            files: values.count("files", 1, 1 << 40)?,
            seconds: values.seconds("seconds"),
            depth: values.count("depth", 1, 4096)? as u32,
            verify: values.text("verify").is_some(),
            warm: values.text("no-warm").is_none() && values.text("cold").is_none(),
            fsync: values.text("fsync").is_some(),
            cold: values.text("cold").is_some(),
            load: values.load()?,
            call_times: values.text("no-call-times").is_none(),
            progress: values.seconds("progress"),
            servers: server_counts[0],
            server_counts,
            record_sizes: values.sizes("record-sizes", 1, 1 << 20)?,
            flood: values.count("flood", 0, 256)? as u32,
            pieces: Pieces {
                count: values.count("pieces", 1, 1 << 24)?,
                size: values.size("piece-size", 1, 1 << 20)?.unwrap_or(PIECE_SIZE),
                gap: values.size("gap", 0, 1 << 20)?.unwrap_or(PIECE_GAP),
            },
            modes: values.words("modes", &MODES)?,
            turns: values.words("turns", &[(false, "off"), (true, "on")])?,
            procs_per_node: values.count("procs-per-node", 1, SIMULATED_PROCS_MAX)? as u32,
            csv: values.text("csv").map(PathBuf::from),
            client_counts: values.counts("clients", reactor::barrier::PARTY_COUNT_MAX)?,
            chunk_sizes: values.chunk_sizes()?,
            chunk_counts: values.counts("chunk-counts", 1 << 16)?,
            serial: values.text("serial").is_some(),
            contacts: values.contacts()?,
            pages: values.count("pages", 0, 1 << 16)? as usize,
            device: DeviceBench::read(&values)?,
            rdbench: RdBench::read(&values)?,
            backing: values.text("backing").map(PathBuf::from),
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
            site: SiteUse::None,
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
            Bench::Congestion | Bench::Shares | Bench::Hpio | Bench::Uring | Bench::Rdbench | Bench::Stage => true,
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
                Some((name, _)) => Err(format!(
                    "{name} is for an experiment: placement, find, async, open-storm, congestion, shares, hpio, \
                     uring, rdbench, stage or profile"
                )),
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
        if experiment == Bench::Uring && (self.simulate || self.server_counts.len() > 1) {
            return Err("uring is about a real device and no servers; leave --simulate and --servers out".into());
        }
        if experiment == Bench::Stage && self.simulate {
            return Err("stage is about real files and programs; leave --simulate out".into());
        }
        if experiment == Bench::Shares && self.is_given("servers") && self.server_counts != [1] {
            return Err("shares is about the loop of one server; leave --servers out, or give 1".into());
        }
        let has_own = matches!(experiment, Bench::Placement | Bench::Rdbench | Bench::Stage | Bench::Shares);
        let starts_own = self.server_counts.len() > 1 || has_own;
        if self.cluster.is_some() && !self.simulate && starts_own {
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

    fn check_backing(&self, experiment: Bench) -> Result<(), String> {
        match (self.simulate, &self.backing) {
            (true, Some(_)) => Err("--simulate has a simulated site; leave --backing out".into()),
            (false, None) => {
                Err(format!("{} needs --backing DIR: a directory of the file system that is slower", experiment.name()))
            }
            (false, Some(path)) if !path.is_dir() => Err(format!("--backing {}: no such directory", path.display())),
            _ => Ok(()),
        }
    }

    fn check_rdbench(&self) -> Result<(), String> {
        let options = &self.rdbench;
        if options.interval.is_some() && options.compute == Compute::Stencil && self.is_given("phases") {
            return Err("--interval says how long the stencil computes; leave --phases out".into());
        }
        if !self.simulate {
            options.decomposition(self.procs, false)?;
        }
        Ok(())
    }

    fn check_hpio(&self) -> Result<(), String> {
        match (self.experiment() == Some(Bench::Hpio), &self.csv) {
            (false, Some(_)) => Err("--csv is for hpio; leave it out".into()),
            (true, _) if !self.simulate && self.is_given("procs-per-node") => {
                Err("--procs-per-node is for --simulate: real processes are on one node; leave it out".into())
            }
            _ => Ok(()),
        }
    }

    fn check_together(&self) -> Result<(), String> {
        self.check_experiment()?;
        self.check_hpio()?;
        let procs_max = reactor::barrier::PARTY_COUNT_MAX;
        if self.procs > procs_max && !self.simulate {
            return Err(format!("--procs: {} is out of range (1 to {procs_max} without --simulate)", self.procs));
        }
        if let Some(experiment @ (Bench::Rdbench | Bench::Stage)) = self.experiment() {
            self.check_backing(experiment)?;
            if experiment == Bench::Rdbench {
                self.check_rdbench()?;
            }
        }
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
    use super::values::{parse_list, parse_size};
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
        assert!(refused(&["congestion", "--csv=x.csv"]).contains("--csv is for hpio"));
        assert!(refused(&["hpio", "--procs-per-node=2"]).contains("leave it out"));
        assert!(refused(&["hpio", "--modes=list,tree"]).contains("\"tree\" is none of list, node, stripe, view"));
        assert!(refused(&["hpio", "--procs=5000"]).contains("1 to 4096 without --simulate"));
        assert_eq!(run(&["hpio", "--procs=5000", "--simulate"], &[]).unwrap().experiment(), Some(Bench::Hpio));
        for own in ["placement", "shares"] {
            assert!(run(&[own], &[("TABANE_CLUSTER", "/x")]).unwrap_err().contains("unset TABANE_CLUSTER"));
        }
        assert!(refused(&["shares", "--servers=1..2", "--simulate"]).contains("leave --servers out, or give 1"));
        assert!(refused(&["shares", "--record-sizes=4KiB,2MiB"]).contains("--record-sizes: 2097152 is out of range"));
        assert_eq!(run(&["shares", "--servers=1"], &[]).unwrap().experiment(), Some(Bench::Shares));
    }

    /// Goal: what can't be divided, is not known or does not fit together is refused with words that say what would do.
    #[test]
    fn reaction_diffusion() {
        let over = |arguments: &[&str]| run(&[&["rdbench", "--backing=/"], arguments].concat(), &[]);
        assert_eq!(over(&[]).unwrap().experiment(), Some(Bench::Rdbench));
        assert_eq!(over(&["--grid=1x2"]).unwrap().rdbench.grid, Some((1, 2)));
        let refused = |arguments: &[&str]| over(arguments).unwrap_err();
        assert!(refused(&["--procs=3"]).contains("--length 1024 can't be divided among 3 columns"));
        assert!(refused(&["--procs=4", "--grid=1x4", "--length=6"]).contains("make it a multiple of 4"));
        assert!(refused(&["--procs=4", "--grid=3x2"]).contains("is for 6 processes, and there are 4"));
        assert!(refused(&["--grid=2"]).contains("such as 2x2") && refused(&["--grid=0x2"]).contains("such as 2x2"));
        assert!(refused(&["--length=0"]).contains("--length: 0 is out of range (1 to 65536)"));
        assert!(refused(&["--layout=rows"]).contains("\"rows\" is none of view, manual, chunk"));
        assert!(refused(&["--compute=dance"]).contains("\"dance\" is none of stencil, sleep"));
        assert!(refused(&["--targets=direct,maybe"]).contains("\"maybe\" is none of direct, never, idle, immediate"));
        assert!(refused(&["--phases=0"]).contains("--phases: 0 is out of range"));
        assert!(refused(&["--interval=many"]).contains("--interval: not a number"));
        assert!(refused(&["--interval=5", "--phases=1"]).contains("leave --phases out"));
        assert!(refused(&["--simulate"]).contains("leave --backing out"));
        assert!(run(&["rdbench"], &[]).unwrap_err().contains("--backing DIR"));
        assert!(run(&["rdbench", "--backing=/nonexistent"], &[]).unwrap_err().contains("no such directory"));
        let cluster = [("TABANE_CLUSTER", "/x")];
        assert!(run(&["rdbench", "--backing=/"], &cluster).unwrap_err().contains("unset TABANE_CLUSTER"));
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
