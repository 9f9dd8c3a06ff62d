//! The benches, what they measure, and what keeps the cores busy meanwhile.

use std::fmt;
use std::path::PathBuf;

/// The benches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Bench {
    IorEasy,
    IorHard,
    IorRandom,
    Random,
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
    Congestion,
    Shares,
    Hpio,
    Profile,
    Uring,
    Rdbench,
    Stage,
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

pub const LOAD_KINDS: [(LoadKind, &str); 3] =
    [(LoadKind::Compute, "compute"), (LoadKind::Spin, "spin"), (LoadKind::Yield, "yield")];

impl LoadKind {
    pub fn name(self) -> &'static str {
        LOAD_KINDS.iter().find(|(kind, _)| *kind == self).map_or("", |(_, name)| name)
    }
}

/// Benches that only this program itself asks for.
pub const INTERNAL_BENCHES: [Bench; 3] = [Bench::Clean, Bench::Load, Bench::Steps];

const EVERY_BENCH: [(Bench, &str); 25] = [
    (Bench::IorEasy, "ior-easy"),
    (Bench::IorHard, "ior-hard"),
    (Bench::IorRandom, "ior-rnd4k"),
    (Bench::Random, "random"),
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
    (Bench::Congestion, "congestion"),
    (Bench::Shares, "shares"),
    (Bench::Hpio, "hpio"),
    (Bench::Profile, "profile"),
    (Bench::Uring, "uring"),
    (Bench::Rdbench, "rdbench"),
    (Bench::Stage, "stage"),
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
            Bench::IorEasy | Bench::IorHard | Bench::Random | Bench::ExchangeData => &["write", "read"],
            Bench::MdtestEasy | Bench::MdtestHard => &["create", "stat", "read", "remove"],
            Bench::IorRandom => &["read"],
            Bench::Find => &["find"],
            Bench::Ping => &["ping"],
            Bench::Exchange | Bench::ExchangeMemory => &["exchange"],
            Bench::Names => &["files", "directories"],
            Bench::Clean | Bench::Load | Bench::Steps => &[],
            Bench::Placement | Bench::Async | Bench::OpenStorm | Bench::Profile | Bench::Shares => &[],
            Bench::Congestion | Bench::Hpio | Bench::Uring | Bench::Rdbench | Bench::Stage => &[],
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
    pub fn parse(text: &str) -> Result<TargetName, String> {
        match text.split_once(':') {
            None if text == "tabane" => Ok(TargetName::Tabane),
            Some(("posix", directory)) if !directory.is_empty() => Ok(TargetName::Posix(PathBuf::from(directory))),
            _ => Err(format!("target \"{text}\" is not known; use tabane or posix:DIRECTORY")),
        }
    }
}

/// The benches of a name on the command line. Errors: words.
pub fn add_bench(name: &str, benches: &mut Vec<Bench>) -> Result<(), String> {
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

/// The words about a name that is none of a bench.
pub fn unknown_bench(name: &str) -> String {
    let public = EVERY_BENCH.iter().filter(|(bench, _)| !INTERNAL_BENCHES.contains(bench));
    let known: Vec<&str> = public.map(|(_, known)| *known).collect();
    format!("bench \"{name}\" is not known; there are {} and all", known.join(", "))
}
