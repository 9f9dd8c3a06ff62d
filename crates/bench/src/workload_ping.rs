//! `ping`: round trips to each server in turn, for what the transport itself costs. And the removal of what a run left.

use crate::group::{Failure, Group, Pass};
use crate::target::Target;

const PING: usize = 0;

/// Round trips to all servers in turn.
pub fn run<T: Target>(target: &T, group: &Group) -> Result<(), Failure> {
    if group.pass == Pass::Verify {
        return Ok(());
    }
    let server_count = u64::from(target.server_count());
    group.phase(PING, |limit| {
        let mut done = 0;
        while done < group.options.files && !limit.reached() {
            target.ping(((done + u64::from(group.rank)) % server_count) as u32)?;
            done += 1;
        }
        Ok(done)
    })
}

/// Removes the run's directory with everything in it.
pub fn clean<T: Target>(target: &T, group: &Group) -> Result<(), Failure> {
    if group.rank == 0 && target.stat(group.directory)?.is_some() {
        remove_tree(target, group.directory)?;
    }
    Ok(())
}

fn remove_tree<T: Target>(target: &T, directory: &str) -> Result<(), Failure> {
    let (mut directories, mut files) = (Vec::new(), Vec::new());
    target.list(directory, &mut |name, is_directory| {
        let path = format!("{directory}/{}", String::from_utf8_lossy(name));
        if is_directory { directories.push(path) } else { files.push(path) }
    })?;
    for path in &files {
        target.unlink(path)?;
    }
    for path in &directories {
        remove_tree(target, path)?;
    }
    Ok(target.remove_directory(directory)?)
}
