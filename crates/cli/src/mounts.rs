//! Which mounts there are: what the kernel says, and what those who serve them have written down in the run directory
//! (`mount-NUMBER` with process, place and directory, `mount-NUMBER.log` beside it).
//!
//! Hosts may share a run directory, and each may have the same directory mounted: a record is of one place, which is
//! the machine, its network and its tree.

use crate::failure::{Failure, Outcome, io_words};
use client::mounts::mount_on;
use reactor::process::ProcessId;
use sha2::{Digest, Sha256};
use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// An absolute path without `.`, `..` and symbolic links. What it names is not asked, for it may be a mount that nobody
/// serves any more.
pub fn settled(path: &Path) -> Outcome<PathBuf> {
    let absolute = crate::settings::absolute(path)?;
    let known = mount_on(&absolute).is_some();
    let resolved = match (known, absolute.parent(), absolute.file_name()) {
        (true, _, _) => return Ok(absolute),
        (false, Some(parent), Some(name)) => fs::canonicalize(parent).map(|parent| parent.join(name)),
        _ => fs::canonicalize(&absolute),
    };
    let resolved = resolved.map_err(|error| Failure::failed(format!("{}: {}", path.display(), io_words(&error))))?;
    if mount_on(&resolved).is_some() {
        return Ok(resolved);
    }
    fs::canonicalize(&resolved).map_err(|error| Failure::failed(format!("{}: {}", path.display(), io_words(&error))))
}

/// Where a mount is, as seen by the one who serves it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountSite {
    /// Within it a number of a process means the same.
    machine: String,
    /// Hosts that are namespaces of one machine differ in it.
    network: String,
    /// Within it a path means the same.
    tree: String,
}

impl MountSite {
    /// That of this process.
    pub fn here() -> MountSite {
        let name_space = |kind: &str| {
            let name = fs::read_link(format!("/proc/self/ns/{kind}")).unwrap_or_default();
            name.to_string_lossy().chars().filter(char::is_ascii_digit).collect()
        };
        MountSite { machine: reactor::process::machine(), network: name_space("net"), tree: name_space("mnt") }
    }

    /// All of it in one word.
    pub fn text(&self) -> String {
        format!("{},{},{}", self.machine, self.network, self.tree)
    }

    fn parse(text: &str) -> Option<MountSite> {
        let mut parts = text.split(',').map(str::to_owned);
        Some(MountSite { machine: parts.next()?, network: parts.next()?, tree: parts.next()? })
    }

    /// Whether processes of the other can be asked and ended from here.
    pub fn is_same_machine(&self, other: &MountSite) -> bool {
        self.machine == other.machine
    }

    /// Whether the other is on the same host.
    pub fn is_same_host(&self, other: &MountSite) -> bool {
        self.is_same_machine(other) && self.network == other.network
    }
}

/// What serves a mount has written down about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountRecord {
    pub directory: PathBuf,
    pub process: ProcessId,
    pub thread_count: u64,
    pub place: MountSite,
}

fn record_path(run_directory: &Path, place: &MountSite, directory: &Path) -> PathBuf {
    let mut digest = Sha256::new();
    digest.update(place.text());
    digest.update([0]);
    digest.update(directory.as_os_str().as_bytes());
    let number: String = digest.finalize()[..8].iter().map(|byte| format!("{byte:02x}")).collect();
    run_directory.join(format!("mount-{number}"))
}

/// Where the one who serves a directory from here says what goes wrong.
pub fn log_path(run_directory: &Path, directory: &Path) -> PathBuf {
    record_path(run_directory, &MountSite::here(), directory).with_extension("log")
}

impl MountRecord {
    /// Writes it down, as a whole or not at all.
    pub fn keep(&self, run_directory: &Path) -> Outcome {
        let path = record_path(run_directory, &self.place, &self.directory);
        let place = self.place.text();
        let mut text =
            format!("{} {} {} {place} ", self.process.pid, self.process.started, self.thread_count).into_bytes();
        text.extend_from_slice(self.directory.as_os_str().as_bytes());
        let temporary = path.with_extension("new");
        let opened = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary);
        let written = opened.and_then(|mut file| file.write_all(&text)).and_then(|()| fs::rename(&temporary, &path));
        written.map_err(|error| Failure::failed(format!("{}: {}", path.display(), io_words(&error))))
    }

    fn parse(bytes: &[u8]) -> Option<MountRecord> {
        let mut parts = bytes.splitn(5, |byte| *byte == b' ');
        let mut word = || std::str::from_utf8(parts.next()?).ok();
        let process = ProcessId { pid: word()?.parse().ok()?, started: word()?.parse().ok()? };
        let thread_count = word()?.parse().ok()?;
        let place = MountSite::parse(word()?)?;
        let directory = PathBuf::from(OsString::from_vec(parts.next()?.to_vec()));
        Some(MountRecord { directory, process, thread_count, place })
    }

    /// Removes it, unless another process has written it anew.
    pub fn remove(&self, run_directory: &Path) {
        let path = record_path(run_directory, &self.place, &self.directory);
        if fs::read(&path).ok().and_then(|bytes| MountRecord::parse(&bytes)).as_ref() == Some(self) {
            // What is left is seen to belong to a process that has ended.
            let _ = fs::remove_file(path);
        }
    }
}

/// The record of a directory as it is seen from here: a mount may have come here from another tree of this machine.
pub fn record_of(run_directory: &Path, directory: &Path) -> Option<MountRecord> {
    let here = MountSite::here();
    let mut found: Vec<MountRecord> = records(run_directory)
        .into_iter()
        .filter(|record| record.directory == directory && record.place.is_same_machine(&here))
        .collect();
    found.sort_by_key(|record| (record.place == here, record.place.is_same_host(&here), record.process.is_alive()));
    found.pop()
}

fn record_files(run_directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(run_directory).into_iter().flatten().flatten();
    let ours = |path: &PathBuf| path.file_name().is_some_and(|name| name.as_bytes().starts_with(b"mount-"));
    entries.map(|entry| entry.path()).filter(ours).collect()
}

/// All records of a run directory.
pub fn records(run_directory: &Path) -> Vec<MountRecord> {
    let texts = record_files(run_directory).into_iter().filter(|path| path.extension().is_none());
    texts.filter_map(|path| MountRecord::parse(&fs::read(path).ok()?)).collect()
}

/// Removes what mounts have left in a run directory.
pub fn remove_records(run_directory: &Path) {
    for path in record_files(run_directory) {
        // What can't be removed keeps the run directory there, which is said then.
        let _ = fs::remove_file(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a record is what was written down, also of a directory with blanks; cut ones are none.
    #[test]
    fn records_round_trip() {
        let run_directory = std::env::temp_dir().join(format!("tabane-records-{}", std::process::id()));
        fs::create_dir_all(&run_directory).unwrap();
        let process = ProcessId { pid: 7, started: 8 };
        let record =
            MountRecord { directory: PathBuf::from("/mnt/a b"), process, thread_count: 4, place: MountSite::here() };
        record.keep(&run_directory).unwrap();
        assert_eq!(records(&run_directory), vec![record.clone()]);
        assert_eq!(record_of(&run_directory, Path::new("/mnt/a b")), Some(record.clone()));
        // The same directory of another host that shares the run directory.
        let there = MountSite { machine: "other/1".to_owned(), ..MountSite::here() };
        let other = MountRecord { place: there, ..record.clone() };
        other.keep(&run_directory).unwrap();
        assert_eq!(records(&run_directory).len(), 2);
        assert_eq!(record_of(&run_directory, Path::new("/mnt/a b")), Some(record.clone()));
        other.remove(&run_directory);
        assert_eq!(records(&run_directory), vec![record.clone()]);
        record.remove(&run_directory);
        assert!(records(&run_directory).is_empty());
        fs::remove_dir_all(&run_directory).unwrap();
        assert_eq!(MountRecord::parse(b"7 8 4"), None);
        assert_eq!(MountRecord::parse(b"7 8 4 a,b /mnt"), None);
        assert_eq!(MountRecord::parse(b"7 x 4 a,b,c /mnt"), None);
    }
}
