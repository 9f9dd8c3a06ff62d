//! Which mounts there are: what the kernel says, and what those who serve them have written down in the run directory
//! (`mount-NUMBER` with process, place and directory, `mount-NUMBER.log` beside it).
//!
//! Hosts may share a run directory, and each may have the same directory mounted: a record is of one place, which is
//! the machine, its network and its tree.

use crate::failure::{Failure, Outcome, io_words};
use client::Cluster;
use reactor::process::ProcessId;
use sha2::{Digest, Sha256};
use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// A mount as the kernel knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountPoint {
    pub directory: PathBuf,
    pub source: String,
    /// Options, with commas between them.
    pub options: String,
    /// Number of its connection, as /sys/fs/fuse/connections has it.
    connection: String,
}

impl MountPoint {
    /// Ends the connection to who serves it: whoever still uses it gets errors, and who serves it sees that it is over.
    /// Where the control file system of FUSE is not mounted it stays until nobody uses it.
    pub fn abort(&self) {
        let _ = fs::write(format!("/sys/fs/fuse/connections/{}/abort", self.connection), "1");
    }
}

const SOURCE_PREFIX: &str = "tabane:";

/// What stands in front of a mount of this cluster in /proc/mounts.
pub fn source_of(cluster: &Cluster) -> String {
    format!("{SOURCE_PREFIX}{:08x}", cluster.id >> 96)
}

/// All mounts of Tabane on this machine, the latest last.
pub fn mount_points() -> Vec<MountPoint> {
    let text = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    text.lines().filter_map(parse_line).collect()
}

/// The mount on a directory; of several the one on top.
pub fn mount_on(directory: &Path) -> Option<MountPoint> {
    mount_points().into_iter().rev().find(|mount| mount.directory == directory)
}

/// The mount of memory with this source on a directory, if it is the one on top.
pub fn memory_mount_on(directory: &Path, source: &str) -> Option<MountPoint> {
    let text = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let last = text.lines().rev().filter_map(parse_any).find(|(_, mount)| mount.directory == directory);
    last.filter(|(kind, mount)| *kind == "tmpfs" && mount.source == source).map(|(_, mount)| mount)
}

/// One line of mountinfo about a mount of Tabane.
fn parse_line(line: &str) -> Option<MountPoint> {
    let (kind, mount) = parse_any(line)?;
    // By mount(2) the type is fuse, by fusermount3 fuse.tabane.
    (matches!(kind, "fuse" | "fuse.tabane") && mount.source.starts_with(SOURCE_PREFIX)).then_some(mount)
}

/// One line of mountinfo, as proc(5) has it: the type of the file system, and the mount.
fn parse_any(line: &str) -> Option<(&str, MountPoint)> {
    let (front, back) = line.split_once(" - ")?;
    let mut back = back.split(' ');
    let kind = back.next()?;
    let mut front = front.split(' ').skip(2);
    let connection = front.next()?.rsplit_once(':')?.1.to_owned();
    let directory = unescape(front.nth(1)?);
    let source = unescape(back.next()?).to_string_lossy().into_owned();
    let options = back.next().unwrap_or_default().to_owned();
    Some((kind, MountPoint { directory: directory.into(), source, options, connection }))
}

/// Blanks and the like are written as a backslash and three octal digits.
fn unescape(text: &str) -> OsString {
    let bytes = text.as_bytes();
    let mut plain = Vec::with_capacity(bytes.len());
    let mut position = 0;
    while position < bytes.len() {
        let digits = bytes.get(position + 1..position + 4).and_then(|digits| std::str::from_utf8(digits).ok());
        let escaped = digits.filter(|_| bytes[position] == b'\\').and_then(|digits| u8::from_str_radix(digits, 8).ok());
        plain.push(escaped.unwrap_or(bytes[position]));
        position += if escaped.is_some() { 4 } else { 1 };
    }
    OsString::from_vec(plain)
}

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

    /// Goal: mounts are found in the kernel's list with what is odd in their names, others are passed over.
    #[test]
    fn mountinfo_is_understood() {
        let line = "36 35 98:0 / /mnt/a\\040b\\134c rw,noatime shared:1 - fuse.tabane tabane:0a1b2c3d rw,user_id=0";
        let mount = parse_line(line).unwrap();
        assert_eq!(mount.directory, PathBuf::from("/mnt/a b\\c"));
        assert_eq!((mount.source.as_str(), mount.options.as_str()), ("tabane:0a1b2c3d", "rw,user_id=0"));
        assert_eq!(mount.connection, "0");
        assert!(parse_line("36 35 0:71 / /mnt rw,noatime - fuse tabane:0a1b2c3d rw").unwrap().connection == "71");
        assert_eq!(parse_line("36 35 98:0 / /mnt rw - fuse other:0a1b2c3d rw"), None);
        assert_eq!(parse_line("36 35 98:0 / /mnt rw - ext4 /dev/sda rw"), None);
        assert_eq!(parse_line("nonsense"), None);
    }

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
