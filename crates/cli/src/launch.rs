//! Starting and stopping the processes of a cluster.

use crate::activity::ProgressLine;
use crate::failure::{Failure, Outcome, io_words};
use crate::flushing;
use crate::run_directory::{RunDirectory, process_of};
use crate::settings::Settings;
use crate::text::{duration_words, plural};
use crate::together::{Either, join_all, race};
use client::{Cluster, Credentials, FileSystem, Options};
use reactor::process::{ProcessId, SIGCHLD, SIGKILL, SIGTERM, Signal, Signals, signal_at_our_death, spawn_detached};
use reactor::{Nanos, Reactor};
use std::cell::Cell;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::rc::Rc;

const NANOS_PER_MS: Nanos = 1_000_000;
/// How often a process is looked at while its end is waited for.
const LOOK_INTERVAL: Nanos = 5 * NANOS_PER_MS;
/// How long a server has between one kind of push and the next, when it does not stop.
const PUSH_INTERVAL: Nanos = 5_000 * NANOS_PER_MS;
/// Lines of a log that are shown when a server fails.
const LOG_LINE_COUNT: usize = 5;

/// Servers that this program started.
pub struct Started {
    pub index: u32,
    pub process: ProcessId,
    child: Child,
    log_size_before: u64,
}

/// How and for how long to start.
pub struct Start<'a> {
    pub reactor: &'a Reactor,
    pub directory: &'a RunDirectory,
    pub cluster: &'a Cluster,
    pub settings: &'a Settings,
    pub signals: &'a Signals,
    /// Until all servers answer.
    pub timeout: Nanos,
    /// The servers stop when this program dies.
    pub bound_to_us: bool,
}

impl Start<'_> {
    /// Starts these servers and waits until all of them answer. If one fails, or a signal comes, all of them are
    /// stopped again before this returns.
    pub fn start(&self, indices: &[u32]) -> Outcome<Vec<Started>> {
        let mut started = Vec::new();
        let outcome = self.spawn_all(indices, &mut started);
        let outcome = outcome.and_then(|()| self.reactor.block_on(self.wait_for_answers(&mut started)));
        let outcome = outcome.and_then(|answers| {
            let reasons: Vec<String> = answers.into_iter().filter_map(Result::err).collect();
            if reasons.is_empty() { Ok(()) } else { Err(not_all_started(&reasons)) }
        });
        self.or_push_out(started, outcome).map(|(started, ())| started)
    }

    /// The same, but a server that fails keeps none of the others from starting: those that answer, and the reasons why
    /// others don't. When a signal comes, or time is up, all of them are stopped again.
    pub fn start_each(&self, indices: &[u32]) -> Outcome<(Vec<Started>, Vec<String>)> {
        let mut started = Vec::new();
        let outcome = self.spawn_all(indices, &mut started);
        let outcome = outcome.and_then(|()| self.reactor.block_on(self.wait_for_answers(&mut started)));
        let (started, answers) = self.or_push_out(started, outcome)?;
        let (mut living, mut failed, mut reasons) = (Vec::new(), Vec::new(), Vec::new());
        for (server, answer) in started.into_iter().zip(answers) {
            match answer {
                Ok(()) => living.push(server),
                Err(reason) => {
                    reasons.push(reason);
                    failed.push(server);
                }
            }
        }
        // One that refuses us lives still.
        self.push_out(&failed);
        Ok((living, reasons))
    }

    fn push_out(&self, started: &[Started]) {
        let living = started.iter().map(|server| server.process).filter(|process| process.is_alive());
        let living: Vec<ProcessId> = living.collect();
        if !living.is_empty() {
            self.reactor.block_on(push_out(self.reactor, &living));
        }
    }

    fn spawn_all(&self, indices: &[u32], started: &mut Vec<Started>) -> Outcome {
        indices.iter().try_for_each(|index| {
            let server = self.spawn(*index)?;
            let process = server.process;
            // From here on it is stopped when anything fails.
            started.push(server);
            self.directory.keep_process(*index, process)
        })
    }

    /// Stops what was started if something has failed.
    fn or_push_out<T>(&self, started: Vec<Started>, outcome: Outcome<T>) -> Outcome<(Vec<Started>, T)> {
        match outcome {
            Ok(value) => Ok((started, value)),
            Err(failure) => {
                self.push_out(&started);
                Err(failure)
            }
        }
    }

    fn spawn(&self, index: u32) -> Outcome<Started> {
        let path = self.directory.log_path(index);
        let about = |what: &str, error: std::io::Error| Failure::failed(format!("{what}: {}", io_words(&error)));
        let log = OpenOptions::new().create(true).append(true).mode(0o600).open(&path);
        let log: File = log.map_err(|error| {
            let words = io_words(&error);
            Failure::failed(format!(
                "{}: {words}; make room or choose another run directory with --run-directory",
                path.display()
            ))
        })?;
        let log_size_before = log.metadata().map_or(0, |facts| facts.len());
        let second = log.try_clone().map_err(|error| about("log", error))?;
        let program = std::env::current_exe().map_err(|error| about("this program's own file", error))?;
        let mut command = Command::new(program);
        self.describe_server(&mut command, index);
        command.stdin(Stdio::null()).stdout(log).stderr(second).current_dir("/");
        if self.bound_to_us {
            signal_at_our_death(&mut command, SIGTERM);
        }
        let mut child = spawn_detached(&mut command).map_err(|error| about("starting a server", error))?;
        let Some(process) = ProcessId::of(child.id()) else {
            let status = child.wait().map_err(|error| about("waiting for a server", error))?;
            return Err(Failure::failed(self.reason(index, log_size_before, status)));
        };
        Ok(Started { index, process, child, log_size_before })
    }

    /// The command line of one server. Its environment is empty, so that only what stands here counts.
    fn describe_server(&self, command: &mut Command, index: u32) {
        let settings = self.settings;
        command.env_clear().arg("server").arg("--cluster").arg(self.directory.cluster_file());
        command.arg("--directory").arg(settings.store_of(index)).arg("--log").arg(self.directory.log_path(index));
        let metrics_port = if settings.metrics_port == 0 { 0 } else { settings.metrics_port + u64::from(index) };
        let numbers = [
            ("index", u64::from(index)),
            ("size", settings.store_size),
            ("journal-size", settings.journal_size),
            ("connections-max", settings.connections_max),
            ("metrics-port", metrics_port),
            ("timeout-ms", settings.timeout_ms),
            ("session-grace-ms", settings.session_grace_ms),
        ];
        for (name, number) in numbers {
            command.arg(format!("--{name}={number}"));
        }
        if settings.checksums {
            command.arg("--checksums");
        }
        if let Some(devices) = &settings.devices {
            command.arg("--device").arg(devices.path_of(&settings.stores, index));
            command.arg(format!("--buffer={}", devices.buffer));
        }
        command.arg("--transport").arg(settings.transport.word());
        command.arg("--short-circuit").arg(settings.short_circuit());
        command.arg("--pin").arg(settings.pin.to_string());
        command.arg("--huge-pages").arg(settings.huge_pages());
        if let Some(backing) = &settings.backing {
            command.arg("--backing").arg(backing);
            for (key, value) in flushing::texts(&settings.flushing) {
                command.arg(format!("--{key}={value}"));
            }
        }
    }

    /// What each of them came to.
    async fn wait_for_answers(&self, started: &mut [Started]) -> Outcome<Vec<Result<(), String>>> {
        let timeout_ms = self.timeout / NANOS_PER_MS;
        let options = Options { timeout_ms, user: Credentials::new(reactor::process::user(), 0), ..Options::default() };
        let files = FileSystem::new(self.reactor, Rc::new(self.cluster.clone()), options);
        let (count, answered, line) = (started.len(), Cell::new(0), ProgressLine::default());
        let answers = join_all(started.iter_mut().map(|server| async {
            let answer = self.wait_for_one(&files, server).await;
            answered.set(answered.get() + 1);
            answer
        }));
        let words = || format!("{} of {} answer", answered.get(), plural(count as u64, "server"));
        let waiting = race(self.reactor.sleep(self.timeout), line.say_waiting(self.reactor, words));
        let timed = race(answers, waiting);
        let outcome = race(timed, stop_asked(self.signals)).await;
        files.end(async {}).await;
        match outcome {
            Either::First(Either::First(answers)) => Ok(answers),
            Either::First(Either::Second(_)) => {
                let waited = duration_words(self.timeout);
                let words =
                    format!("not all servers answered within {waited}; more time is given by --start-timeout-ms");
                Err(not_all_started(&[words]))
            }
            Either::Second(signal) => {
                eprintln!("tabane: interrupted before all servers answered; what was started is taken down again");
                Err(Failure::Said(signal.exit_code()))
            }
        }
    }

    async fn wait_for_one(&self, files: &FileSystem, server: &mut Started) -> Result<(), String> {
        let index = server.index;
        match race(wait_for_end(self.reactor, &mut server.child), files.ping(index)).await {
            Either::First(status) => Err(self.reason(index, server.log_size_before, status)),
            Either::Second(Ok(())) => Ok(()),
            Either::Second(Err(error)) => Err(format!("server {index}: {error}")),
        }
    }

    /// Why a server ended: the last lines that it wrote.
    fn reason(&self, index: u32, log_size_before: u64, status: ExitStatus) -> String {
        let log = std::fs::read(self.directory.log_path(index)).unwrap_or_default();
        let text = String::from_utf8_lossy(&log[log.len().min(log_size_before as usize)..]).into_owned();
        let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        match lines.iter().rev().find_map(|line| line.strip_prefix("tabane: server: ")) {
            Some(words) => format!("server {index}: {words}"),
            None => {
                let last = &lines[lines.len().saturating_sub(LOG_LINE_COUNT)..];
                format!("server {index} ended ({status}): {}", last.join(" / "))
            }
        }
    }
}

/// Which of the servers of a cluster run.
pub struct Survey {
    /// Those that don't.
    pub missing: Vec<u32>,
    /// Those that run but did not answer in time, with the reason.
    pub silent: Vec<(u32, String)>,
}

/// Looks which of these servers run. One counts when it has answered: the process of one that was killed is there until
/// its memory is given back.
pub async fn survey(
    reactor: &Reactor,
    run_directory: &Path,
    cluster: &Cluster,
    indices: &[u32],
    timeout: Nanos,
) -> Survey {
    let options = Options {
        timeout_ms: (timeout / NANOS_PER_MS).max(1),
        user: Credentials::new(reactor::process::user(), 0),
        ..Options::default()
    };
    let files = FileSystem::new(reactor, Rc::new(cluster.clone()), options);
    let states = join_all(indices.iter().map(|index| async {
        let Some(process) = process_of(run_directory, *index).filter(|process| process.is_alive()) else {
            return Err(None);
        };
        match race(end_of(reactor, process), race(files.ping(*index), reactor.sleep(timeout))).await {
            Either::First(()) => Err(None),
            Either::Second(Either::First(Ok(()))) => Ok(()),
            Either::Second(Either::First(Err(error))) => Err(Some(error.to_string())),
            Either::Second(Either::Second(())) => Err(Some("it does not answer".to_owned())),
        }
    }))
    .await;
    files.end(async {}).await;
    let mut survey = Survey { missing: Vec::new(), silent: Vec::new() };
    for (index, state) in indices.iter().zip(states) {
        match state {
            Ok(()) => {}
            Err(None) => survey.missing.push(*index),
            Err(Some(reason)) => survey.silent.push((*index, reason)),
        }
    }
    survey
}

async fn end_of(reactor: &Reactor, process: ProcessId) {
    while process.is_alive() {
        reactor.sleep(LOOK_INTERVAL).await;
    }
}

/// The next signal that asks to stop.
pub async fn stop_asked(signals: &Signals) -> Signal {
    loop {
        let signal = signals.next().await;
        if signal.number != SIGCHLD {
            return signal;
        }
    }
}

fn not_all_started(reasons: &[String]) -> Failure {
    Failure::failed(format!("the cluster was not started:\n  {}", reasons.join("\n  ")))
}

async fn wait_for_end(reactor: &Reactor, child: &mut Child) -> ExitStatus {
    loop {
        if let Ok(Some(status)) = child.try_wait() {
            return status;
        }
        reactor.sleep(LOOK_INTERVAL).await;
    }
}

/// Whether all of the processes ended within a time.
pub async fn ended_within(reactor: &Reactor, processes: &[ProcessId], time: Nanos) -> bool {
    let deadline = reactor.now().saturating_add(time);
    while processes.iter().any(|process| process.is_alive()) {
        if reactor.now() >= deadline {
            return false;
        }
        reactor.sleep(LOOK_INTERVAL).await;
    }
    true
}

/// Ends processes by SIGTERM, and what is left after a while by SIGKILL.
pub async fn push_out(reactor: &Reactor, processes: &[ProcessId]) {
    for signal in [SIGTERM, SIGKILL] {
        for process in processes {
            if let Err(error) = process.signal(signal) {
                eprintln!("tabane: process {}: {}", process.pid, io_words(&error));
            }
        }
        if ended_within(reactor, processes, PUSH_INTERVAL).await {
            return;
        }
    }
    let left: Vec<String> =
        processes.iter().filter(|process| process.is_alive()).map(|process| process.pid.to_string()).collect();
    eprintln!("tabane: these processes do not end, not even by SIGKILL: {}", left.join(", "));
}

/// Asks the servers that live to stop and waits for their end; those that do not stop in time are pushed out.
pub async fn stop_servers(reactor: &Reactor, cluster: &Cluster, living: &[(u32, ProcessId)], timeout: Nanos) {
    let options = Options {
        timeout_ms: (timeout / NANOS_PER_MS).max(1),
        user: Credentials::new(reactor::process::user(), 0),
        ..Options::default()
    };
    let files = FileSystem::new(reactor, Rc::new(cluster.clone()), options);
    let processes: Vec<ProcessId> = living.iter().map(|(_, process)| *process).collect();
    // A server that has stopped may do so before its answer is out: what counts is the end of its process.
    let asked = join_all(living.iter().map(|(index, _)| files.shutdown(*index)));
    let line = ProgressLine::default();
    let left = || processes.iter().filter(|process| process.is_alive()).count() as u64;
    let ended = race(ended_within(reactor, &processes, timeout), async {
        let refusals = asked.await.into_iter().filter_map(Result::err);
        refusals.for_each(|error| {
            line.clear();
            eprintln!("tabane: {error}");
        });
        ended_within(reactor, &processes, timeout).await
    });
    let ended =
        match race(ended, line.say_waiting(reactor, || format!("waiting for {} to stop", plural(left(), "server"))))
            .await
        {
            Either::First(Either::First(ended) | Either::Second(ended)) => ended,
            Either::Second(()) => unreachable!("it is said until all is done"),
        };
    if !ended {
        let left: Vec<ProcessId> = processes.iter().copied().filter(|process| process.is_alive()).collect();
        eprintln!("tabane: {} of the servers did not stop when asked; they get SIGTERM now, then SIGKILL", left.len());
        push_out(reactor, &left).await;
    }
}
