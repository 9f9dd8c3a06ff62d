//! `names`: very many empty files in one directory, then a tenth as many directories in another. They are left there,
//! so that what they take in memory, and how long a restart takes with them, can be looked at (scripts/names.sh).

use crate::group::{Failure, Group, Pass};
use crate::target::{Make, Target};

const FILES: usize = 0;
const DIRECTORIES: usize = 1;
/// Files for each directory.
const FILES_PER_DIRECTORY: u64 = 10;

pub fn run<T: Target>(target: &T, group: &Group) -> Result<(), Failure> {
    if group.pass != Pass::Timed {
        return Ok(());
    }
    let base = format!("{}/names", group.directory);
    if group.rank == 0 {
        for directory in [base.clone(), format!("{base}/files"), format!("{base}/directories")] {
            target.make_directory(&directory)?;
        }
    }
    let (rank, files) = (group.rank, group.options.files);
    group.phase(FILES, files, |meter| {
        let mut paths = (0..files).map(|number| format!("{base}/files/file.{rank}.{number}"));
        Ok(target.make_many(Make::Files, &mut paths, meter)?)
    })?;
    let directories = files / FILES_PER_DIRECTORY;
    group.phase(DIRECTORIES, directories, |meter| {
        let mut paths = (0..directories).map(|number| format!("{base}/directories/directory.{rank}.{number}"));
        Ok(target.make_many(Make::Directories, &mut paths, meter)?)
    })
}
