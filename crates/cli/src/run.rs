//! `tabane run`: a program with a cluster of its own.

use crate::arguments::Arguments;
use crate::commands::flush::SOME_FAILED;
use crate::down::{carry_back_or_keep, take_down};
use crate::failure::{Failure, Outcome, io_words};
use crate::hosts;
use crate::report::{Recorder, Wanted};
use crate::run_directory::RunDirectory;
use crate::session::open_reactor;
use crate::together::{Either, race};
use crate::up::{catch_signals, check_no_hosts, raise};
use client::default_run_directory;
use reactor::process::{ProcessId, SIGCHLD, SIGKILL, Signal, Signals};
use reactor::{Nanos, Reactor};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};

const NANOS_PER_MS: Nanos = 1_000_000;
/// How long the command has to end after a signal asked it to.
const END_INTERVAL: Nanos = 10_000 * NANOS_PER_MS;
/// Exit statuses of shells for a command that can't be run, or is not there.
const EXIT_CANNOT_RUN: u8 = 126;
const EXIT_NOT_THERE: u8 = 127;

/// `tabane run`.
pub fn run(arguments: &Arguments) -> Outcome {
    let reactor = open_reactor()?;
    let signals = catch_signals(&reactor)?;
    if arguments.is_given("hosts") {
        return on_hosts(arguments, &reactor, &signals);
    }
    let wanted = Wanted::of(arguments, &["record", "report"])?;
    let mount = crate::mount::wanted(arguments)?;
    crate::mpi::library(arguments)?;
    check_no_hosts(arguments)?;
    let path = arguments.path("run-directory").unwrap_or_else(|| own_name(default_run_directory()));
    let raised = raise(arguments, &path, &reactor, &signals, true)?;
    let run_directory = &raised.directory.path;
    let whole = raised.check().and_then(|()| crate::warm::warm(arguments, &reactor, &signals, run_directory, true));
    let mounted =
        whole.and_then(|()| mount.map_or(Ok(()), |mount| crate::mount::start(&mount, run_directory).map(drop)));
    let ended = mounted.and_then(|()| run_recorded(&reactor, &signals, arguments, run_directory, &wanted));
    let stop_timeout = arguments.number("stop-timeout-ms") * NANOS_PER_MS;
    let is_whole = carry_back_or_keep(&reactor, &signals, &raised.directory, "run");
    let down = take_down(&reactor, raised.directory, &raised.cluster, &raised.settings, stop_timeout, !is_whole);
    exit_with(ended, whole_or_said(is_whole, down))
}

/// The same with the servers on other hosts, and the mount on all of them.
fn on_hosts(arguments: &Arguments, reactor: &Reactor, signals: &Signals) -> Outcome {
    let wanted = Wanted::of(arguments, &["record", "report"])?;
    crate::mpi::library(arguments)?;
    let path = arguments.path("run-directory").unwrap_or_else(|| own_name(hosts::default_run_directory()));
    let path = hosts::up_for_a_while(arguments, reactor, signals, &path)?;
    let warmed = crate::warm::warm(arguments, reactor, signals, &path, true);
    let ended = warmed.and_then(|()| run_recorded(reactor, signals, arguments, &path, &wanted));
    let directory = RunDirectory::open(&path)?;
    let is_whole = carry_back_or_keep(reactor, signals, &directory, "run");
    let ending = hosts::Ending { keep: !is_whole, ..hosts::Ending::at_once(arguments) };
    let down = || {
        let record = hosts::HostsRecord::of(&path).ok_or_else(|| Failure::failed("its list of hosts can't be read"))?;
        let known = directory.cluster()?;
        hosts::take_down(ending, reactor, directory, &record, known)
    };
    exit_with(ended, whole_or_said(is_whole, down()))
}

/// What the end of a cluster came to of which not all may have been carried back.
fn whole_or_said(is_whole: bool, down: Outcome) -> Outcome {
    if is_whole { down } else { down.and(Err(Failure::Said(SOME_FAILED))) }
}

/// What the command came to, and then the end of its cluster.
fn exit_with(ended: Outcome<u8>, down: Outcome) -> Outcome {
    match ended {
        Ok(0) => down,
        ended => {
            if let Err(Failure::Failed(words)) = down {
                eprintln!("tabane: run: {words}");
            }
            ended.and_then(|code| Err(Failure::Said(code)))
        }
    }
}

/// The name of a run directory that no other cluster uses.
fn own_name(default: PathBuf) -> PathBuf {
    let mut name = default.into_os_string();
    name.push(format!("-run-{}", std::process::id()));
    PathBuf::from(name)
}

/// The same with a recorder beside it, if a report or a record is wanted. One that can't be written makes a run fail
/// that succeeded otherwise.
fn run_recorded(
    reactor: &Reactor,
    signals: &Signals,
    arguments: &Arguments,
    run_directory: &Path,
    wanted: &Wanted,
) -> Outcome<u8> {
    if !wanted.is_something() {
        return run_command(reactor, signals, arguments, run_directory);
    }
    let recorder = Recorder::start(run_directory, wanted, &arguments.operands[0])?;
    let ended = run_command(reactor, signals, arguments, run_directory);
    let reported = recorder.end(ended.as_ref().ok().copied(), wanted);
    match (ended, reported) {
        (Ok(0), Err(failure)) => Err(failure),
        (ended, Err(Failure::Failed(words))) => {
            eprintln!("tabane: run: {words}");
            ended
        }
        (ended, _) => ended,
    }
}

/// Runs the command in the cluster and gives its exit status.
fn run_command(reactor: &Reactor, signals: &Signals, arguments: &Arguments, run_directory: &Path) -> Outcome<u8> {
    let mut command = Command::new(&arguments.operands[0]);
    command.args(&arguments.operands[1..]);
    command.env("TABANE_CLUSTER", run_directory).env("CHFS_SERVER", run_directory);
    if let Some(contact) = arguments.text("contact") {
        command.env("TABANE_CONTACT", contact);
    }
    if let Some(library) = crate::mpi::library(arguments)? {
        command.env("LD_PRELOAD", crate::mpi::preloads(&library));
    }
    run_program(reactor, signals, "run", command)
}

/// Runs a program to its end and gives its exit status; `name` is ours in messages.
pub fn run_program(reactor: &Reactor, signals: &Signals, name: &str, mut command: Command) -> Outcome<u8> {
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => {
            eprintln!("tabane: {name}: {}: {}", Path::new(command.get_program()).display(), io_words(&error));
            let there = error.kind() != std::io::ErrorKind::NotFound;
            return Ok(if there { EXIT_CANNOT_RUN } else { EXIT_NOT_THERE });
        }
    };
    let status = reactor.block_on(attend(reactor, signals, name, &mut child));
    let status = status.map_err(|error| Failure::failed(format!("waiting for the command: {}", io_words(&error))))?;
    Ok(exit_code(status))
}

/// Waits for the end of the command. A signal that asks to stop is handed on to it, unless the terminal sent it to both
/// of us; if it goes on for too long after that, or a second signal comes, it is killed.
async fn attend(reactor: &Reactor, signals: &Signals, name: &str, child: &mut Child) -> std::io::Result<ExitStatus> {
    let process = ProcessId::of(child.id());
    let mut kill_at = Nanos::MAX;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        match race(signals.next(), reactor.sleep_until(kill_at)).await {
            Either::First(Signal { number: SIGCHLD, .. }) => {}
            Either::First(signal) => {
                let again = kill_at != Nanos::MAX;
                kill_at = kill_at.min(reactor.now() + END_INTERVAL);
                if let Some(process) = process.filter(|_| again || !signal.from_terminal) {
                    process.signal(if again { SIGKILL } else { signal.number })?;
                }
            }
            Either::Second(()) => {
                kill_at = reactor.now() + END_INTERVAL;
                eprintln!("tabane: {name}: the command does not end; it is killed");
                if let Some(process) = process {
                    process.signal(SIGKILL)?;
                }
            }
        }
    }
}

fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default());
    code as u8
}
