//! `tabane sync`.

use crate::arguments::Arguments;
use crate::failure::about_path;
use crate::failure::{Failure, Outcome};
use crate::paths::inside;
use crate::session::Session;
use client::{OpenHow, Result};

/// `tabane sync`: the files that are named, or everything.
pub fn run(arguments: &Arguments) -> Outcome {
    let session = Session::open(arguments)?;
    let paths = arguments.operand_bytes();
    if paths.is_empty() {
        return session.block_on(session.files.synchronise_all()).map_err(|error| Failure::failed(error.to_string()));
    }
    let mut failed = false;
    for path in paths {
        let path = inside(&path);
        if let Err(error) = session.block_on(synchronise(&session, &path)) {
            failed = true;
            eprintln!("tabane: sync: {}", about_path(&path, &error));
        }
    }
    if failed { Err(Failure::Said(1)) } else { Ok(()) }
}

async fn synchronise(session: &Session, path: &[u8]) -> Result<()> {
    let file = session.files.open_unchecked(path, &OpenHow::reading()).await?;
    let result = session.files.synchronise(&file).await;
    session.files.close(&file).await;
    result
}
