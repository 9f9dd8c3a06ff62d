//! Mounts of Tabane on this machine, as the kernel knows them, and where a path below one leads within its cluster.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use wire::Cluster;

/// A mount as the kernel knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountPoint {
    pub directory: PathBuf,
    /// The directory of the file system that is mounted there: the root, but where a part of it is (mount --bind).
    pub root: PathBuf,
    pub source: String,
    /// Options of the file system, with commas between them.
    pub options: String,
    /// Whether nothing can be changed by this way.
    pub is_read_only: bool,
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
    (is_kind_of_ours(kind) && mount.source.starts_with(SOURCE_PREFIX)).then_some(mount)
}

/// By mount(2) the type is fuse, by fusermount3 fuse.tabane.
fn is_kind_of_ours(kind: &str) -> bool {
    matches!(kind, "fuse" | "fuse.tabane")
}

/// One line of mountinfo, as proc(5) has it: the type of the file system, and the mount.
fn parse_any(line: &str) -> Option<(&str, MountPoint)> {
    let (front, back) = line.split_once(" - ")?;
    let mut back = back.split(' ');
    let kind = back.next()?;
    let mut front = front.split(' ').skip(2);
    let connection = front.next()?.rsplit_once(':')?.1.to_owned();
    let root = unescape(front.next()?).into();
    let directory = unescape(front.next()?).into();
    let is_read_only = front.next()?.split(',').any(|option| option == "ro");
    let source = unescape(back.next()?).to_string_lossy().into_owned();
    let options = back.next().unwrap_or_default().to_owned();
    let is_read_only = is_read_only || options.split(',').any(|option| option == "ro");
    Some((kind, MountPoint { directory, root, source, options, is_read_only, connection }))
}

/// Where a path below a mount of this cluster leads within the cluster, by which a client reaches the same file without
/// the mount. The file itself need not be there. None: it leads elsewhere, or to where nothing can be changed.
///
/// Errors: those of the directories on the way.
pub fn path_within(cluster: &Cluster, path: &Path) -> io::Result<Option<PathBuf>> {
    let text = fs::read_to_string("/proc/self/mountinfo")?;
    let source = source_of(cluster);
    if !text.lines().filter_map(parse_line).any(|mount| mount.source == source) {
        return Ok(None);
    }
    let resolved = match fs::canonicalize(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && !path.is_symlink() => {
            let Some(name) = path.file_name() else { return Err(error) };
            let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
            fs::canonicalize(directory)?.join(name)
        }
        resolved => resolved?,
    };
    Ok(lead(&text, &source, &resolved))
}

/// As `path_within`, of a path without symbolic links and with the text of mountinfo.
fn lead(mountinfo: &str, source: &str, path: &Path) -> Option<PathBuf> {
    let mounts = mountinfo.lines().filter_map(parse_any).filter(|(_, mount)| path.starts_with(&mount.directory));
    // The innermost; of several on one directory the latest.
    let (kind, mount) = mounts.max_by_key(|(_, mount)| mount.directory.as_os_str().len())?;
    let is_ours = is_kind_of_ours(kind) && mount.source == source && !mount.is_read_only;
    is_ours.then(|| mount.root.join(path.strip_prefix(&mount.directory).unwrap_or(Path::new(""))))
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

    /// Goal: a path leads where the innermost, latest mount above it says: not into what is mounted over ours, nor by a
    /// mount of another cluster or one that is read only, and by a part of ours to that part.
    #[test]
    fn paths_lead_into_the_cluster() {
        let ours = "fuse.tabane tabane:0a1b2c3d rw,user_id=0";
        let text = [
            "20 1 8:1 / / rw - ext4 /dev/sda rw".to_owned(),
            format!("36 20 0:71 / /mnt rw,noatime shared:1 - {ours}"),
            format!("37 20 0:71 /a/b /part rw,noatime - {ours}"),
            format!("38 20 0:71 / /still ro,noatime - {ours}"),
            "39 20 0:72 / /other rw - fuse.tabane tabane:00000001 rw".to_owned(),
            "40 36 0:73 / /mnt/over rw - tmpfs tmpfs rw".to_owned(),
            "41 20 0:74 / /twice rw - tmpfs tmpfs rw".to_owned(),
            format!("42 41 0:71 / /twice rw - {ours}"),
            format!("43 20 0:71 / /hidden rw - {ours}"),
            "44 43 0:75 / /hidden rw - tmpfs tmpfs rw".to_owned(),
        ]
        .join("\n");
        let within = |path: &str| lead(&text, "tabane:0a1b2c3d", Path::new(path));
        let leads = |path: &str, inside: &str| assert_eq!(within(path), Some(PathBuf::from(inside)), "{path}");
        leads("/mnt/d/f", "/d/f");
        leads("/part/f", "/a/b/f");
        leads("/twice/f", "/f");
        for path in ["/f", "/mntf", "/still/f", "/other/f", "/mnt/over/f", "/hidden/f"] {
            assert_eq!(within(path), None, "{path}");
        }
        assert!(within("/mnt").is_some_and(|path| path == Path::new("/")));
    }
}
