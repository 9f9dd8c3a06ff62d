//! Which node of the kernel is which file of SOURCE.
//!
//! Nodes are kept as names in their directories, and each call goes by the path below SOURCE that follows from them: so
//! no descriptor is open but those of programs, however many nodes the kernel has in memory. What is at a path counts
//! only if it has the node's number (that of SOURCE's inode); if somebody else has moved or replaced it there, it is
//! ESTALE, as with NFS, until it is looked up again. What has no name any more is reached through a descriptor that a
//! program has open.
//!
//! Names change with the table locked, and paths are used with it locked for readers, so that a rename of ours comes
//! before or after any other call. Nothing is held up by a fault while it is locked.

use fuser::{FileAttr, FileType, INodeNo};
use std::collections::HashMap;
use std::ffi::{CString, OsStr, OsString};
use std::fs::{self, File, Metadata};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const ROOT: u64 = INodeNo::ROOT.0;

/// What a program has open.
pub struct Open {
    pub node: u64,
    pub file: File,
    /// Whoever moves the position of a directory has this.
    pub position: Mutex<()>,
}

struct Node {
    /// How often the kernel was told of it, less what it has forgotten.
    lookups: u64,
    /// Parents and names, the last one that was looked up at the end. A directory has one.
    names: Vec<(u64, OsString)>,
}

type Nodes = HashMap<u64, Node>;

pub struct Tree {
    source: PathBuf,
    /// Numbers of SOURCE: file system and inode.
    device: u64,
    inode: u64,
    nodes: RwLock<Nodes>,
    open: Mutex<(u64, HashMap<u64, Arc<Open>>)>,
}

fn failure(number: i32) -> io::Error {
    io::Error::from_raw_os_error(number)
}

pub fn c_path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| failure(libc::EINVAL))
}

impl Tree {
    /// Errors: those of lstat(2).
    pub fn new(source: PathBuf) -> io::Result<Tree> {
        let is = fs::symlink_metadata(&source)?;
        let (device, inode) = (is.dev(), is.ino());
        Ok(Tree { source, device, inode, nodes: RwLock::default(), open: Mutex::default() })
    }

    /// Paths below the root by which a node is known, the likeliest first.
    fn paths(nodes: &Nodes, node: u64) -> Vec<PathBuf> {
        if node == ROOT {
            return vec![PathBuf::new()];
        }
        let Some(Node { names, .. }) = nodes.get(&node) else { return Vec::new() };
        let below = |(parent, name): &(u64, OsString)| Some(Tree::paths(nodes, *parent).first()?.join(name));
        names.iter().rev().filter_map(below).collect()
    }

    /// The same from the root of the mount on, as rules of the control have them.
    pub fn known_paths(&self, node: u64) -> Vec<PathBuf> {
        let nodes = self.nodes.read().unwrap_or_else(PoisonError::into_inner);
        Tree::paths(&nodes, node).into_iter().map(|path| Path::new("/").join(path)).collect()
    }

    /// The path of a node in SOURCE, and what is there. Errors: `ESTALE` if it is no longer where it was.
    fn place(&self, nodes: &Nodes, node: u64) -> io::Result<(PathBuf, Metadata)> {
        let inode = if node == ROOT { self.inode } else { node };
        for path in Tree::paths(nodes, node) {
            // No slash at the end of SOURCE: it would follow.
            let path = if node == ROOT { self.source.clone() } else { self.source.join(path) };
            match fs::symlink_metadata(&path) {
                Ok(is) if is.ino() == inode => return Ok((path, is)),
                Ok(_) => {}
                Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR)) => {}
                Err(error) => return Err(error),
            }
        }
        Err(failure(libc::ESTALE))
    }

    /// Does something at the path of a node.
    pub fn with<T>(&self, node: u64, act: impl FnOnce(&Path, &Metadata) -> io::Result<T>) -> io::Result<T> {
        let nodes = self.nodes.read().unwrap_or_else(PoisonError::into_inner);
        let stale = match self.place(&nodes, node) {
            Ok((path, is)) => return act(&path, &is),
            Err(error) => error,
        };
        let open = self.open().1.values().find(|open| open.node == node).cloned().ok_or(stale)?;
        let path = PathBuf::from(format!("/proc/self/fd/{}", open.file.as_raw_fd()));
        act(&path, &open.file.metadata()?)
    }

    /// Does something at the path of a name, and takes up what is there then, which the kernel knows once more from now
    /// on.
    pub fn enter<T>(
        &self,
        parent: u64,
        name: &OsStr,
        act: impl FnOnce(&Path, &Metadata) -> io::Result<T>,
    ) -> io::Result<(T, FileAttr)> {
        let mut nodes = self.nodes.write().unwrap_or_else(PoisonError::into_inner);
        let (directory, of_directory) = self.place(&nodes, parent)?;
        let path = directory.join(name);
        let done = act(&path, &of_directory)?;
        let is = fs::symlink_metadata(&path)?;
        if is.dev() != self.device {
            // Numbers of inodes tell nothing over several file systems.
            return Err(failure(libc::EXDEV));
        }
        let node = nodes.entry(is.ino()).or_insert(Node { lookups: 0, names: Vec::new() });
        node.lookups += 1;
        node.add(parent, name, is.is_dir());
        Ok((done, attributes(&is)?))
    }

    pub fn forget(&self, node: u64, count: u64) {
        let mut nodes = self.nodes.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = nodes.get_mut(&node) {
            known.lookups = known.lookups.saturating_sub(count);
            if known.lookups == 0 {
                nodes.remove(&node);
            }
        }
    }

    /// Removes a name by `act`.
    pub fn remove(&self, parent: u64, name: &OsStr, act: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
        let mut nodes = self.nodes.write().unwrap_or_else(PoisonError::into_inner);
        let path = self.place(&nodes, parent)?.0.join(name);
        let is = fs::symlink_metadata(&path)?;
        act(&path)?;
        unname(&mut nodes, is.ino(), parent, name);
        Ok(())
    }

    /// Renames by renameat2(2).
    pub fn rename(&self, from: (u64, &OsStr), to: (u64, &OsStr), flags: u32) -> io::Result<()> {
        let mut nodes = self.nodes.write().unwrap_or_else(PoisonError::into_inner);
        let from_path = self.place(&nodes, from.0)?.0.join(from.1);
        let to_path = self.place(&nodes, to.0)?.0.join(to.1);
        let moved = fs::symlink_metadata(&from_path)?;
        let met = fs::symlink_metadata(&to_path).ok();
        let (old, new) = (c_path(&from_path)?, c_path(&to_path)?);
        // SAFETY: both paths end with NUL.
        if unsafe { libc::renameat2(libc::AT_FDCWD, old.as_ptr(), libc::AT_FDCWD, new.as_ptr(), flags) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // A rename to another name of the same file does nothing.
        if met.as_ref().is_some_and(|met| met.ino() == moved.ino()) {
            return Ok(());
        }
        unname(&mut nodes, moved.ino(), from.0, from.1);
        if let Some(met) = met {
            unname(&mut nodes, met.ino(), to.0, to.1);
            if flags & libc::RENAME_EXCHANGE != 0
                && let Some(node) = nodes.get_mut(&met.ino())
            {
                node.add(from.0, from.1, met.is_dir());
            }
        }
        if let Some(node) = nodes.get_mut(&moved.ino()) {
            node.add(to.0, to.1, moved.is_dir());
        }
        Ok(())
    }

    fn open(&self) -> MutexGuard<'_, (u64, HashMap<u64, Arc<Open>>)> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps what a program has opened, by a number.
    pub fn keep(&self, node: u64, file: File) -> u64 {
        let mut open = self.open();
        open.0 += 1;
        let number = open.0;
        open.1.insert(number, Arc::new(Open { node, file, position: Mutex::default() }));
        number
    }

    pub fn opened(&self, number: u64) -> io::Result<Arc<Open>> {
        self.open().1.get(&number).cloned().ok_or_else(|| failure(libc::EBADF))
    }

    pub fn close(&self, number: u64) {
        let closed = self.open().1.remove(&number);
        drop(closed);
    }
}

impl Node {
    fn add(&mut self, parent: u64, name: &OsStr, is_directory: bool) {
        self.names.retain(|known| !is_directory && (known.0, known.1.as_os_str()) != (parent, name));
        self.names.push((parent, name.to_owned()));
    }
}

fn unname(nodes: &mut Nodes, node: u64, parent: u64, name: &OsStr) {
    if let Some(node) = nodes.get_mut(&node) {
        node.names.retain(|known| (known.0, known.1.as_os_str()) != (parent, name));
    }
}

fn time(seconds: i64, nanoseconds: i64) -> SystemTime {
    let second = Duration::from_secs(seconds.unsigned_abs());
    let whole = if seconds < 0 { UNIX_EPOCH - second } else { UNIX_EPOCH + second };
    whole + Duration::from_nanos(nanoseconds.unsigned_abs())
}

/// What the kernel is told of a file of SOURCE.
pub fn attributes(is: &Metadata) -> io::Result<FileAttr> {
    Ok(FileAttr {
        ino: INodeNo(is.ino()),
        size: is.size(),
        blocks: is.blocks(),
        atime: time(is.atime(), is.atime_nsec()),
        mtime: time(is.mtime(), is.mtime_nsec()),
        ctime: time(is.ctime(), is.ctime_nsec()),
        crtime: UNIX_EPOCH,
        kind: FileType::from_std(is.file_type()).ok_or_else(|| failure(libc::EIO))?,
        perm: (is.mode() & 0o7777) as u16,
        nlink: is.nlink() as u32,
        uid: is.uid(),
        gid: is.gid(),
        rdev: is.rdev() as u32,
        blksize: is.blksize() as u32,
        flags: 0,
    })
}
