//! `names`: very many empty files in one directory, then a tenth as many directories in another. They are left there, so
//! that what they take in memory, and how long a restart takes with them, can be looked at (scripts/names.sh).

use crate::group::{Failure, Group, Pass};
use crate::target::{How, Target};

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
    group.phase(FILES, |limit| {
        let mut done = 0;
        while done < group.options.files && !limit.reached() {
            let file = target.open(&format!("{base}/files/file.{}.{done}", group.rank), How::CreateNew)?;
            target.close(file)?;
            done += 1;
        }
        Ok(done)
    })?;
    group.phase(DIRECTORIES, |limit| {
        let mut done = 0;
        while done < group.options.files / FILES_PER_DIRECTORY && !limit.reached() {
            target.make_directory(&format!("{base}/directories/directory.{}.{done}", group.rank))?;
            done += 1;
        }
        Ok(done)
    })
}
