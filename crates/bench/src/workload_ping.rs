//! `ping`: round trips to each server in turn, for what the transport itself costs. And the removal of what a run left.

use crate::group::{Failure, Group, Pass, Stage};
use crate::meter::Meter;
use crate::target::Target;

const PING: usize = 0;
/// Names of a directory that are looked at before they are removed: so many are held in memory.
const NAME_COUNT_MAX: usize = 10_000;

/// Round trips to all servers in turn.
pub fn run<T: Target>(target: &T, group: &Group) -> Result<(), Failure> {
    if group.pass == Pass::Verify {
        return Ok(());
    }
    let server_count = u64::from(target.server_count());
    group.phase(PING, group.options.files, |meter| {
        let mut done = 0;
        while done < group.options.files && !meter.is_over() {
            target.ping(((done + u64::from(group.rank)) % server_count) as u32)?;
            meter.note_call();
            done += 1;
        }
        Ok(done)
    })
}

/// Removes the run's directory with everything in it.
pub fn clean<T: Target>(target: &T, group: &Group) -> Result<(), Failure> {
    if group.rank == 0 && target.stat(group.directory)?.is_some() {
        group.untimed(Stage::Removal, 0, |meter| remove_tree(target, group.directory, meter))?;
    }
    Ok(())
}

/// Some names at a time, so that memory does not grow with the directory.
fn remove_tree<T: Target>(target: &T, directory: &str, meter: &mut Meter) -> Result<(), Failure> {
    loop {
        let (mut directories, mut files) = (Vec::new(), Vec::new());
        target.list(directory, &mut |name, is_directory| {
            let path = format!("{directory}/{}", String::from_utf8_lossy(name));
            if is_directory {
                directories.push(path)
            } else {
                files.push(path)
            }
            directories.len() + files.len() < NAME_COUNT_MAX
        })?;
        for path in &files {
            target.unlink(path)?;
            meter.note_call();
        }
        for path in &directories {
            remove_tree(target, path, meter)?;
        }
        if directories.len() + files.len() < NAME_COUNT_MAX {
            return Ok(target.remove_directory(directory)?);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target_posix::Posix;

    /// Goal: a directory with more names than are held at once is removed whole, with what is below it.
    #[test]
    fn trees_of_any_size_are_removed() {
        let root = std::env::temp_dir().join(format!("tabane-bench-tree-{}", std::process::id()));
        let many = root.join("tree/many");
        std::fs::create_dir_all(root.join("tree/other/below")).unwrap();
        std::fs::create_dir(&many).unwrap();
        (0..2 * NAME_COUNT_MAX + 1).for_each(|number| drop(std::fs::File::create(many.join(number.to_string()))));
        let target = Posix::open(&root).unwrap();
        let mut meter = Meter::new(reactor::call_clock::CallClock::calibrated(), |_| {}, false, 0.0);
        remove_tree(&target, "/tree", &mut meter).unwrap();
        std::fs::remove_dir(&root).unwrap();
    }
}
