//! A local directory through the operating system.

use crate::meter::Meter;
use crate::page_buffer::PageBuffer;
use crate::target::{Attributes, Counts, How, Result, SearchPattern, Share, Space, Target, Transfers, check_size};
use reactor::process::{file_system_files_free, file_system_space};
use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::thread;

/// A directory of the local machine as a target.
pub struct Posix {
    root: String,
}

impl Posix {
    /// The directory must exist.
    pub fn open(root: &Path) -> Result<Posix> {
        let about = |cause: &str| format!("posix:{}: {cause}; name a directory that you may write to", root.display());
        let metadata = fs::metadata(root).map_err(|error| about(&error.to_string()))?;
        if !metadata.is_dir() {
            return Err(about("is not a directory"));
        }
        let root = root.to_str().ok_or_else(|| about("the path is not UTF-8"))?;
        Ok(Posix { root: root.trim_end_matches('/').to_string() })
    }

    fn path(&self, path: &str) -> PathBuf {
        let mut full = String::with_capacity(self.root.len() + path.len());
        full.push_str(&self.root);
        full.push_str(path);
        PathBuf::from(full)
    }

    fn failure(&self, operation: &str, path: &str, error: std::io::Error) -> String {
        format!("{operation} {}{path}: {error}", self.root)
    }
}

fn attributes_of(metadata: &fs::Metadata) -> Attributes {
    Attributes { size: metadata.size(), mtime: metadata.mtime() * 1_000_000_000 + metadata.mtime_nsec() }
}

impl Target for Posix {
    type File = File;

    fn open(&self, path: &str, how: How) -> Result<File> {
        let mut options = OpenOptions::new();
        match how {
            How::Create => options.write(true).create(true),
            How::CreateNew => options.write(true).create_new(true),
            How::Read => options.read(true),
        };
        options.open(self.path(path)).map_err(|error| self.failure("open", path, error))
    }

    fn write_at(&self, file: &File, bytes: &[u8], offset: u64) -> Result<()> {
        file.write_all_at(bytes, offset).map_err(|error| format!("write at {offset}: {error}"))
    }

    fn read_at(&self, file: &File, place: &mut [u8], offset: u64) -> Result<usize> {
        let mut done = 0;
        while done < place.len() {
            match file.read_at(&mut place[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(format!("read at {offset}: {error}")),
            }
        }
        Ok(done)
    }

    /// A thread for each that is under way.
    fn transfer(&self, file: &File, transfers: Transfers<'_>, meter: &mut Meter) -> Result<u64> {
        let Transfers { size, depth, is_write, next, touch } = transfers;
        let shared = Mutex::new((next, meter));
        let work = || {
            let mut buffer = PageBuffer::new(size);
            let mut count = 0;
            loop {
                let (offset, began) = {
                    let mut shared = shared.lock().unwrap_or_else(PoisonError::into_inner);
                    let offset = if shared.1.is_over() { None } else { (shared.0)() };
                    (offset, shared.1.read())
                };
                let Some(offset) = offset else { return Ok(count) };
                if is_write {
                    touch(offset, &mut buffer)?;
                    self.write_at(file, &buffer, offset)?;
                } else {
                    check_size(self.read_at(file, &mut buffer, offset)?, size, offset)?;
                }
                shared.lock().unwrap_or_else(PoisonError::into_inner).1.note_one_of_many(began);
                if !is_write {
                    touch(offset, &mut buffer)?;
                }
                count += 1;
            }
        };
        thread::scope(|scope| {
            let others: Vec<_> = (1..depth).map(|_| scope.spawn(work)).collect();
            let mut count = work();
            for other in others {
                let done = other.join().unwrap_or_else(|_| Err("a thread of the transfer has failed".to_owned()));
                count = count.and_then(|count| done.map(|done| count + done));
            }
            count
        })
    }

    fn sync(&self, file: &File) -> Result<()> {
        file.sync_all().map_err(|error| format!("fsync: {error}"))
    }

    fn close(&self, file: File) -> Result<()> {
        drop(file);
        Ok(())
    }

    fn stat(&self, path: &str) -> Result<Option<Attributes>> {
        match fs::metadata(self.path(path)) {
            Ok(metadata) => Ok(Some(attributes_of(&metadata))),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(self.failure("stat", path, error)),
        }
    }

    fn unlink(&self, path: &str) -> Result<()> {
        fs::remove_file(self.path(path)).map_err(|error| self.failure("unlink", path, error))
    }

    fn make_directory(&self, path: &str) -> Result<()> {
        match fs::create_dir(self.path(path)) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(self.failure("mkdir", path, error)),
            _ => Ok(()),
        }
    }

    fn remove_directory(&self, path: &str) -> Result<()> {
        match fs::remove_dir(self.path(path)) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(self.failure("rmdir", path, error)),
            _ => Ok(()),
        }
    }

    fn list(&self, directory: &str, on_entry: &mut dyn FnMut(&[u8], bool) -> bool) -> Result<()> {
        let failed = |error| self.failure("readdir", directory, error);
        for entry in fs::read_dir(self.path(directory)).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            if !on_entry(entry.file_name().as_bytes(), entry.file_type().map_err(failed)?.is_dir()) {
                break;
            }
        }
        Ok(())
    }

    fn space(&self) -> Result<Space> {
        let (root, failed) = (self.path("/"), |error| self.failure("statvfs", "/", error));
        let (bytes, _) = file_system_space(&root).map_err(failed)?;
        Ok(Space { bytes, files: file_system_files_free(&root).map_err(failed)? })
    }

    const EXAMINES: bool = true;

    fn find(
        &self,
        directory: &str,
        share: Share,
        wanted: &SearchPattern,
        on_directory: &mut dyn FnMut(&[u8]),
    ) -> Result<Counts> {
        let failed = |error| self.failure("readdir", directory, error);
        let mut counts = Counts::default();
        for (index, entry) in fs::read_dir(self.path(directory)).map_err(failed)?.enumerate() {
            let entry = entry.map_err(failed)?;
            if !share.has(index) {
                continue;
            }
            counts.examined += 1;
            let name = entry.file_name();
            let name = name.as_bytes();
            if entry.file_type().map_err(failed)?.is_dir() {
                on_directory(name);
            } else if name.windows(wanted.part.len()).any(|window| window == wanted.part.as_bytes()) {
                let found = attributes_of(&entry.metadata().map_err(failed)?);
                counts.found += u64::from(found.size == wanted.size && found.mtime > wanted.newer_than);
            }
        }
        Ok(counts)
    }

    fn server_count(&self) -> u32 {
        0
    }

    fn ping(&self, _server: u32) -> Result<()> {
        Err("a local directory has no servers to ping".into())
    }
}
