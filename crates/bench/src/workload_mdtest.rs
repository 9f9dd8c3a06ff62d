//! `mdtest-easy`: empty files in a directory for each process. `mdtest-hard`: files of 3,901 bytes in one directory for
//! all.

use crate::group::{Failure, Group, Pass};
use crate::meter::Meter;
use crate::options::Bench;
use crate::page_buffer::PageBuffer;
use crate::target::{How, Target, fill_pattern, find_difference};
use std::fmt::Write as _;

/// Bytes of a file in the hard case, as IO500 chose it.
pub const HARD_FILE_SIZE: usize = 3_901;

const CREATE: usize = 0;
const STAT: usize = 1;
const READ: usize = 2;
const REMOVE: usize = 3;

/// Names and contents of the files.
pub struct Tree {
    /// Directory of all, with a slash at the end.
    base: String,
    shared: bool,
    pub file_size: usize,
}

impl Tree {
    /// The files of mdtest-hard or of mdtest-easy below `base`.
    pub fn new(base: &str, hard: bool) -> Tree {
        Tree { base: format!("{base}/"), shared: hard, file_size: if hard { HARD_FILE_SIZE } else { 0 } }
    }

    pub fn directory(&self, rank: u32) -> String {
        if self.shared { self.base.trim_end_matches('/').to_string() } else { format!("{}{rank}", self.base) }
    }

    /// Name of a file in its directory.
    pub fn name(rank: u32, index: u64) -> String {
        format!("file.mdtest.{rank}.{index}")
    }

    /// Puts a file's path in place of what `path` held.
    pub fn set_path(&self, path: &mut String, rank: u32, index: u64) {
        path.clear();
        path.push_str(&self.base);
        // Writing to a String cannot fail.
        let written = if self.shared {
            write!(path, "file.mdtest.{rank}.{index}")
        } else {
            write!(path, "{rank}/file.mdtest.{rank}.{index}")
        };
        assert!(written.is_ok());
    }

    fn seed(rank: u32, index: u64) -> u64 {
        (u64::from(rank) + 1) << 40 | index
    }

    /// Makes the directories; all ranks call it.
    pub fn make_directories<T: Target>(&self, target: &T, group: &Group) -> Result<(), Failure> {
        if group.rank == 0 {
            target.make_directory(self.base.trim_end_matches('/'))?;
        }
        group.barrier()?;
        Ok(target.make_directory(&self.directory(group.rank))?)
    }

    /// Removes the directories, which must be empty; all ranks call it.
    pub fn remove_directories<T: Target>(&self, target: &T, group: &Group) -> Result<(), Failure> {
        if !self.shared {
            target.remove_directory(&self.directory(group.rank))?;
        }
        group.barrier()?;
        if group.rank == 0 {
            target.remove_directory(self.base.trim_end_matches('/'))?;
        }
        group.barrier()
    }

    /// Creates the files of this rank until the time is over; returns their number.
    pub fn create<T: Target>(&self, target: &T, group: &Group, meter: &mut Meter) -> Result<u64, Failure> {
        let mut contents = PageBuffer::new(self.file_size);
        fill_pattern(0, 0, &mut contents);
        let mut path = String::new();
        let mut done = 0;
        while done < group.options.files && !meter.is_over() {
            self.set_path(&mut path, group.rank, done);
            let file = target.open(&path, How::CreateNew)?;
            if self.file_size > 0 {
                if group.verifying() {
                    fill_pattern(Tree::seed(group.rank, done), 0, &mut contents);
                }
                target.write_at(&file, &contents, 0)?;
            }
            if group.options.fsync {
                target.sync(&file)?;
            }
            target.close(file)?;
            meter.note_call();
            done += 1;
        }
        group.note_made(done);
        Ok(done)
    }

    fn stat<T: Target>(&self, target: &T, group: &Group, meter: &mut Meter) -> Result<u64, Failure> {
        let owner = group.neighbour();
        let mut path = String::new();
        for index in 0..group.made_by(owner) {
            self.set_path(&mut path, owner, index);
            match target.stat(&path)? {
                Some(attributes) if attributes.size == self.file_size as u64 => {}
                Some(attributes) => {
                    let wanted = self.file_size;
                    return Err(format!("{path}: size is {} instead of {wanted}", attributes.size).into());
                }
                None => return Err(format!("{path}: stat finds no such file").into()),
            }
            meter.note_call();
        }
        Ok(group.made_by(owner))
    }

    fn read<T: Target>(&self, target: &T, group: &Group, meter: &mut Meter) -> Result<u64, Failure> {
        let owner = group.neighbour();
        let mut place = PageBuffer::new(self.file_size);
        let mut path = String::new();
        for index in 0..group.made_by(owner) {
            self.set_path(&mut path, owner, index);
            let file = target.open(&path, How::Read)?;
            if self.file_size > 0 {
                let size = target.read_at(&file, &mut place, 0)?;
                if size != self.file_size {
                    return Err(format!("{path}: {size} instead of {} bytes read", self.file_size).into());
                }
            }
            target.close(file)?;
            meter.note_call();
            if group.verifying()
                && let Some(range) = find_difference(Tree::seed(owner, index), 0, &place)
            {
                return Err(format!("{path}: bytes {range:?} differ from what rank {owner} wrote").into());
            }
        }
        Ok(group.made_by(owner))
    }

    /// Removes the files of the neighbour; returns their number.
    pub fn remove<T: Target>(&self, target: &T, group: &Group, meter: &mut Meter) -> Result<u64, Failure> {
        let owner = group.neighbour();
        let mut path = String::new();
        for index in 0..group.made_by(owner) {
            self.set_path(&mut path, owner, index);
            target.unlink(&path)?;
            meter.note_call();
        }
        Ok(group.made_by(owner))
    }

    fn check_removed<T: Target>(&self, target: &T, group: &Group) -> Result<(), Failure> {
        let mut path = String::new();
        for index in 0..group.made_by(group.rank) {
            self.set_path(&mut path, group.rank, index);
            if target.stat(&path)?.is_some() {
                return Err(format!("{path}: is still there after its removal").into());
            }
        }
        Ok(())
    }
}

/// Create, stat, read and remove, as the pass says.
pub fn run<T: Target>(target: &T, group: &Group) -> Result<(), Failure> {
    let tree = Tree::new(&format!("{}/{}", group.directory, group.bench.name()), group.bench == Bench::MdtestHard);
    tree.make_directories(target, group)?;
    group.phase(CREATE, group.options.files, |meter| tree.create(target, group, meter))?;
    let made = group.made_by(group.neighbour());
    if group.pass != Pass::Warm {
        group.phase(STAT, made, |meter| tree.stat(target, group, meter))?;
        group.phase(READ, made, |meter| tree.read(target, group, meter))?;
    }
    group.phase(REMOVE, made, |meter| tree.remove(target, group, meter))?;
    if group.verifying() {
        tree.check_removed(target, group)?;
        group.barrier()?;
    }
    tree.remove_directories(target, group)
}
