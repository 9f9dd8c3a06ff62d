//! The processes of a run: the leader starts them and waits; each worker goes through the passes of one bench.

use crate::group::{self, Failure, Group, Measured, Pass, Stage};
use crate::options::{self, Bench, Options, TargetName, Worker};
use crate::report::grouped;
use crate::target::Target;
use crate::target_posix::Posix;
use crate::target_tabane::Tabane;
use crate::{
    space_need, workload_exchange, workload_exchange_memory, workload_find, workload_ior, workload_mdtest,
    workload_names, workload_ping, workload_random,
};
use reactor::Nanos;
use reactor::barrier::{GroupMemory, monotonic_now};
use reactor::workers::{Event, HeldSignals};
use std::path::Path;
use std::process::{Child, Command, ExitStatus};

/// A worker that stopped because another one failed.
const EXIT_ABORTED: u8 = 3;

/// Why the leader stops.
#[derive(Debug)]
pub enum Stop {
    /// A signal (its number) asked for it.
    Interrupted(i32),
    Failed(String),
}

impl From<String> for Stop {
    fn from(message: String) -> Stop {
        Stop::Failed(message)
    }
}

/// Where one run takes place.
pub struct RunSite<'a> {
    pub target: &'a TargetName,
    /// Cluster of a Tabane target.
    pub cluster: Option<&'a Path>,
    /// Directory on the target.
    pub directory: &'a str,
}

/// Runs one bench with all its processes; returns what each of its phases measured.
pub fn run_group(
    options: &Options,
    bench: Bench,
    place: &RunSite,
    signals: &HeldSignals,
) -> Result<Vec<Measured>, Stop> {
    let failed = |error: std::io::Error| format!("start of the processes: {error}");
    let group_memory = GroupMemory::create(options.procs, group::word_count(options.procs)).map_err(failed)?;
    let mut workers = Workers { children: Vec::new() };
    for rank in 0..options.procs {
        let worker = Worker { rank, group_memory: group_memory.path(), directory: place.directory.to_string() };
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        command.args(options.worker_arguments(bench, place.target, &worker));
        for variable in options::variables() {
            command.env_remove(variable);
        }
        if let Some(cluster) = place.cluster {
            command.env("TABANE_CLUSTER", cluster);
        }
        signals.release_in_worker(&mut command);
        workers.children.push(Some(command.spawn().map_err(failed)?));
    }
    let mut report = ProgressReport::new(&group_memory, options, bench, place.target);
    workers.wait(signals, bench, &mut report)?;
    Ok((0..bench.phases().len()).map(|phase| group::measured(&group_memory, options.procs, phase)).collect())
}

/// Says on standard error how far a phase is, while it lasts long.
struct ProgressReport<'a> {
    group_memory: &'a GroupMemory,
    procs: u32,
    bench: Bench,
    target: &'a TargetName,
    /// Time between two lines; `None` means that there are none.
    interval: Option<Nanos>,
    /// What the group was at when it was looked at last, and since when.
    stage: Option<(Pass, Stage)>,
    since: Nanos,
}

impl<'a> ProgressReport<'a> {
    fn new(group_memory: &'a GroupMemory, options: &Options, bench: Bench, target: &'a TargetName) -> Self {
        let interval = (options.progress > 0.0).then(|| ((options.progress * 1e9) as Nanos).max(1));
        let since = monotonic_now();
        ProgressReport { group_memory, procs: options.procs, bench, target, interval, stage: None, since }
    }

    /// A line about what the group is at, if it was at the same when this was called last.
    fn tell(&mut self) {
        let Some(progress) = group::progress(self.group_memory, self.procs) else { return };
        let stage = Some((progress.pass, progress.stage));
        if std::mem::replace(&mut self.stage, stage) != stage {
            self.since = monotonic_now();
            return;
        }
        let seconds = (monotonic_now() - self.since) / 1_000_000_000;
        eprintln!("tabane-bench: {} on {}, after {seconds} s", progress_words(self.bench, &progress), self.target);
    }
}

/// For instance "mdtest-easy create: 2,000,000 of 20,000,000 calls".
fn progress_words(bench: Bench, progress: &group::Progress) -> String {
    let stage = match progress.stage {
        Stage::Phase(index) => bench.phases().get(index).copied().unwrap_or_default(),
        Stage::Preparation => "preparation",
        Stage::Removal => "removal",
    };
    let pass = match progress.pass {
        Pass::Warm => " (warm-up)",
        Pass::Timed => "",
        Pass::Verify => " (verification)",
    };
    let done = grouped(progress.done as f64);
    let calls = match progress.wanted {
        0 => format!("{done} calls"),
        wanted => format!("{done} of {} calls", grouped(wanted as f64)),
    };
    format!("{} {stage}{pass}: {calls}", bench.name())
}

/// Child processes; those still running are killed when this is dropped.
struct Workers {
    children: Vec<Option<Child>>,
}

impl Workers {
    fn wait(&mut self, signals: &HeldSignals, bench: Bench, report: &mut ProgressReport) -> Result<(), Stop> {
        let mut told = monotonic_now();
        loop {
            match self.reap(bench) {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                // A Ctrl-C goes to all processes of the terminal: it is the reason, not the worker that died of it.
                Err(stop) => return Err(signals.take_interruption().map_or(stop, Stop::Interrupted)),
            }
            let limit = report.interval.map(|interval| (told + interval).saturating_sub(monotonic_now()));
            match signals.next_within(limit).map_err(|error| format!("wait for the processes: {error}"))? {
                Some(Event::ChildEnded) => {}
                Some(Event::Interrupted(signal)) => return Err(Stop::Interrupted(signal)),
                None if report.interval.is_some_and(|interval| monotonic_now() - told >= interval) => {
                    report.tell();
                    told = monotonic_now();
                }
                None => {}
            }
        }
    }

    /// True while some still run. An error as soon as one has failed.
    fn reap(&mut self, bench: Bench) -> Result<bool, Stop> {
        let mut running = false;
        for (rank, place) in self.children.iter_mut().enumerate() {
            let Some(child) = place else { continue };
            match child.try_wait().map_err(|error| format!("wait for the processes: {error}"))? {
                None => running = true,
                Some(status) => {
                    *place = None;
                    check_status(bench, rank, status)?;
                }
            }
        }
        Ok(running)
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        for child in self.children.iter_mut().flatten() {
            // It may have ended meanwhile; then both calls have nothing to do.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn check_status(bench: Bench, rank: usize, status: ExitStatus) -> Result<(), Stop> {
    if status.success() {
        return Ok(());
    }
    let reason = match status.code() {
        Some(code) if code == i32::from(EXIT_ABORTED) => return Ok(()),
        Some(_) => "failed, as it says above".to_string(),
        None => format!("ended: {status}"),
    };
    Err(Stop::Failed(format!("{}: process {rank} {reason}", bench.name())))
}

/// The life of a worker; the status to exit with.
pub fn work(options: &Options, worker: &Worker) -> u8 {
    let group_memory = match GroupMemory::open(&worker.group_memory) {
        Ok(group_memory) => group_memory,
        Err(error) => {
            eprintln!("tabane-bench: process {}: {}: {error}", worker.rank, worker.group_memory.display());
            return 1;
        }
    };
    let bench = options.benches[0];
    let mut group = Group::new(options, &group_memory, bench, worker.rank, &worker.directory);
    let result = match &options.target {
        _ if bench == Bench::ExchangeMemory => workload_exchange_memory::run(&group, options.procs - options.servers),
        _ if bench.is_bare() => workload_exchange::run(&group, options.procs - options.servers),
        TargetName::Tabane => Tabane::open(options).map_err(Failure::from).and_then(|t| all_passes(&t, &mut group)),
        TargetName::Posix(root) => Posix::open(root).map_err(Failure::from).and_then(|t| all_passes(&t, &mut group)),
    };
    match result {
        Ok(()) => 0,
        Err(Failure::Aborted) => EXIT_ABORTED,
        Err(Failure::Message(message)) => {
            eprintln!("tabane-bench: {}: process {}: {message}", bench.name(), worker.rank);
            group_memory.abort();
            1
        }
    }
}

fn all_passes<T: Target>(target: &T, group: &mut Group) -> Result<(), Failure> {
    if group.bench == Bench::Clean {
        return workload_ping::clean(target, group);
    }
    if group.rank == 0 {
        space_need::check(target, group)?;
        target.make_directory(group.directory)?;
    }
    group.barrier()?;
    let (warm, verify) = (group.options.warm, group.options.verify);
    for (pass, wanted) in [(Pass::Warm, warm), (Pass::Timed, true), (Pass::Verify, verify)] {
        if !wanted {
            continue;
        }
        group.pass = pass;
        match group.bench {
            Bench::IorEasy | Bench::IorHard => workload_ior::run(target, group)?,
            Bench::IorRandom | Bench::Random => workload_random::run(target, group)?,
            Bench::MdtestEasy | Bench::MdtestHard => workload_mdtest::run(target, group)?,
            Bench::Find => workload_find::run(target, group)?,
            Bench::Ping => workload_ping::run(target, group)?,
            Bench::Names => workload_names::run(target, group)?,
            // None comes here: the exchanges need no target, the others have no passes.
            Bench::Exchange | Bench::ExchangeMemory | Bench::ExchangeData | Bench::Clean | Bench::Load => {}
            // Experiments go their own way (experiment.rs).
            Bench::Steps | Bench::Placement | Bench::Async | Bench::Congestion | Bench::OpenStorm | Bench::Profile => {}
            Bench::Hpio | Bench::Uring | Bench::Rdbench | Bench::Stage | Bench::Shares => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::Progress;

    /// Goal: a line says what is done, in which pass, and how much of how much.
    #[test]
    fn progress_is_told_in_words() {
        let progress = |pass, stage, wanted| Progress { pass, stage, done: 2_000_000, wanted };
        let words = |bench, progress| progress_words(bench, &progress);
        assert_eq!(
            words(Bench::MdtestEasy, progress(Pass::Warm, Stage::Phase(0), 20_000_000)),
            "mdtest-easy create (warm-up): 2,000,000 of 20,000,000 calls"
        );
        assert_eq!(words(Bench::Clean, progress(Pass::Timed, Stage::Removal, 0)), "clean removal: 2,000,000 calls");
    }
}
