//! `tabane mkdir`, `rmdir`, `ln` and `mv`.

use crate::arguments::Arguments;
use crate::failure::{Failure, Outcome, about_path, path_failure};
use crate::paths::{base_name, inside, join};
use crate::session::Session;
use client::{AttributeChanges, Kind, Status};

const DIRECTORY_MODE: u32 = 0o777;

/// Does the same with each path; goes on after failures, which are said at once.
fn with_each(arguments: &Arguments, session: &Session, act: impl AsyncFn(&[u8]) -> client::Result<()>) -> Outcome {
    let mut failed = false;
    for path in arguments.operand_bytes() {
        let path = inside(&path);
        if let Err(error) = session.block_on(act(&path)) {
            failed = true;
            eprintln!("tabane: {}: {}", arguments.command.name, about_path(&path, &error));
        }
    }
    if failed { Err(Failure::Said(1)) } else { Ok(()) }
}

/// `tabane mkdir`.
pub fn run_mkdir(arguments: &Arguments) -> Outcome {
    let session = Session::open(arguments)?;
    let mode = arguments.number_given("mode").map(|mode| mode as u32);
    let parents = arguments.flag("parents");
    with_each(arguments, &session, async |path| {
        if parents {
            session.files.create_all(path, DIRECTORY_MODE).await?;
        } else {
            session.files.mkdir(path, mode.unwrap_or(DIRECTORY_MODE)).await?;
        }
        match mode {
            // As with mkdir(1), a mode that was asked for is not masked.
            Some(mode) => {
                let changes = AttributeChanges { mode: Some(mode), ..AttributeChanges::default() };
                session.files.set_attributes(path, true, &changes).await.map(drop)
            }
            None => Ok(()),
        }
    })
}

/// `tabane rmdir`.
pub fn run_rmdir(arguments: &Arguments) -> Outcome {
    let session = Session::open(arguments)?;
    with_each(arguments, &session, async |path| session.files.rmdir(path).await)
}

/// `tabane ln`.
pub fn run_ln(arguments: &Arguments) -> Outcome {
    let session = Session::open(arguments)?;
    let operands = arguments.operand_bytes();
    let path = inside(&operands[1]);
    if arguments.flag("symbolic") {
        let made = session.block_on(session.files.symlink(&operands[0], &path));
        return made.map(drop).map_err(|error| path_failure(&path, &error));
    }
    let old = inside(&operands[0]);
    session.block_on(session.files.link(&old, &path)).map_err(|error| {
        let to_blame = if is_about_goal(&session, &old, &error) { &path } else { &old };
        path_failure(to_blame, &error)
    })
}

/// Whether what went wrong with two paths is about the second one: the first is there, or the second one is in the way.
fn is_about_goal(session: &Session, source: &[u8], error: &client::Error) -> bool {
    match error.status {
        Status::NotFound | Status::NotDirectory => session.block_on(session.files.lstat(source)).is_ok(),
        Status::Exists | Status::NotEmpty => true,
        _ => false,
    }
}

/// `tabane mv`.
pub fn run_mv(arguments: &Arguments) -> Outcome {
    let session = Session::open(arguments)?;
    let flags = match (arguments.flag("no-replace"), arguments.flag("exchange")) {
        (true, true) => return Err(Failure::usage("--no-replace and --exchange exclude each other")),
        (true, false) => client::RENAME_NO_REPLACE,
        (false, true) => client::RENAME_EXCHANGE,
        (false, false) => 0,
    };
    let operands = arguments.operand_bytes();
    let (last, sources) = operands.split_last().expect("the arguments were counted");
    let goal = inside(last);
    let is_directory = flags != client::RENAME_EXCHANGE
        && session.block_on(session.files.stat(&goal)).is_ok_and(|attributes| attributes.kind == Kind::Directory);
    if sources.len() > 1 && !is_directory {
        return Err(Failure::usage("with several paths the last one must be a directory"));
    }
    let mut failed = false;
    for source in sources {
        let source = inside(source);
        let to = match base_name(&source) {
            Some(name) if is_directory => join(&goal, name),
            _ => goal.clone(),
        };
        if let Err(error) = session.block_on(session.files.rename(&source, &to, flags)) {
            failed = true;
            let to_blame = if is_about_goal(&session, &source, &error) { &to } else { &source };
            eprintln!("tabane: {}: {}", arguments.command.name, about_path(to_blame, &error));
        }
    }
    if failed { Err(Failure::Said(1)) } else { Ok(()) }
}
