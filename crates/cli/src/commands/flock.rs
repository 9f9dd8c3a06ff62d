//! `tabane flock`: a program that runs while a file is locked, as flock(1).

use crate::arguments::Arguments;
use crate::failure::{Failure, Outcome, about_path, path_failure};
use crate::paths::inside;
use crate::run::run_program;
use crate::session::Session;
use crate::together::{Either, race};
use crate::up::catch_signals;
use client::{File, LockRange, Locker, OpenHow, Status};
use reactor::process::{SIGCHLD, Signals};
use std::process::Command;

const FILE_MODE: u32 = 0o666;

/// `tabane flock`.
pub fn run(arguments: &Arguments) -> Outcome {
    let session = Session::open(arguments)?;
    let signals = catch_signals(&session.reactor)?;
    let path = inside(&arguments.operand_bytes()[0]);
    let locked = session.reactor.block_on(lock(&session, &signals, arguments, &path));
    let file = match locked? {
        Either::First(file) => file,
        Either::Second(code) => return Err(Failure::Said(code)),
    };
    let mut command = Command::new(&arguments.operands[1]);
    command.args(&arguments.operands[2..]);
    let ended = run_program(&session.reactor, &signals, "flock", command);
    // Closing it ends the lock.
    session.block_on(session.files.close(&file));
    match ended? {
        0 => Ok(()),
        code => Err(Failure::Said(code)),
    }
}

/// The file with its lock; or the exit status, when there is none to be had, or a signal came while it was waited for.
async fn lock(session: &Session, signals: &Signals, arguments: &Arguments, path: &[u8]) -> Outcome<Either<File, u8>> {
    let files = &session.files;
    let exclusive = !arguments.flag("shared");
    let how = OpenHow { read: true, write: exclusive, create: true, mode: FILE_MODE, ..OpenHow::default() };
    let file = files.open(path, &how).await.map_err(|error| path_failure(path, &error))?;
    if arguments.flag("nonblock") {
        return match files.try_lock(&file, Locker::Whole, LockRange::WHOLE, exclusive).await {
            Ok(()) => Ok(Either::First(file)),
            Err(error) if error.status == Status::WouldBlock => {
                eprintln!("tabane: flock: {}", about_path(path, &error));
                Ok(Either::Second(1))
            }
            Err(error) => Err(path_failure(path, &error)),
        };
    }
    let stopped = async {
        loop {
            let signal = signals.next().await;
            if signal.number != SIGCHLD {
                return signal.exit_code();
            }
        }
    };
    match race(files.lock(&file, Locker::Whole, LockRange::WHOLE, exclusive), stopped).await {
        Either::First(locked) => locked.map(|()| Either::First(file)).map_err(|error| path_failure(path, &error)),
        Either::Second(code) => Ok(Either::Second(code)),
    }
}
