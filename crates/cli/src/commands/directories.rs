//! `tabane mkdir`, `rmdir` and `ln`.

use crate::arguments::Arguments;
use crate::failure::{Failure, Outcome, about_path};
use crate::paths::inside;
use crate::session::Session;
use client::AttributeChanges;

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

/// `tabane ln -s`.
pub fn run_ln(arguments: &Arguments) -> Outcome {
    if !arguments.flag("symbolic") {
        return Err(Failure::usage("hard links do not exist yet; -s makes a symbolic one"));
    }
    let session = Session::open(arguments)?;
    let operands = arguments.operand_bytes();
    let path = inside(&operands[1]);
    let made = session.block_on(session.files.symlink(&operands[0], &path));
    made.map(drop).map_err(|error| crate::failure::path_failure(&path, &error))
}
