//! The kernel's requests, each passed through to SOURCE.

use crate::faults::{Faults, Operation, errno};
use crate::tree::{Open, Tree, attributes, c_path};
use fuser::{
    FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags, KernelConfig, LockOwner,
    OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty,
    ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use std::ffi::{CString, OsStr};
use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown, lchown, symlink};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const TRANSFER_SIZE_MAX: u32 = 1 << 20;
/// Requests that the kernel has under way by itself at most.
const BACKGROUND_COUNT_MAX: u16 = 64;
/// As in `memory.rs`. Bits of set-user and set-group are taken off by us, so that writes need no further calls.
const WANTED: [InitFlags; 5] = [
    InitFlags::FUSE_ATOMIC_O_TRUNC,
    InitFlags::FUSE_PARALLEL_DIROPS,
    InitFlags::FUSE_ASYNC_DIO,
    InitFlags::FUSE_HANDLE_KILLPRIV_V2,
    InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
];
/// Every read and write is a call, as with a site whose clients keep no pages.
const OPEN_FLAGS: FopenFlags = FopenFlags::FOPEN_DIRECT_IO.union(FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES);
const LISTING_SIZE: usize = 32 << 10;
/// Where the fields of `struct linux_dirent64` are.
const ENTRY_NAME_OFFSET: usize = 19;

pub struct Site {
    pub tree: Tree,
    pub faults: Arc<Faults>,
    /// For how long the kernel may keep names and attributes.
    pub kept: Duration,
}

/// Turns the result of a system call into an error where it is one.
fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn text(name: &OsStr) -> io::Result<CString> {
    c_path(Path::new(name))
}

/// Gives what root has made in somebody's name to him. What a directory with the set-group bit hands on stays.
fn give(path: &Path, directory: &Metadata, request: &Request) -> io::Result<()> {
    let is = fs::symlink_metadata(path)?;
    let group = if directory.mode() & libc::S_ISGID != 0 { is.gid() } else { request.gid() };
    if (is.uid(), is.gid()) == (request.uid(), group) {
        return Ok(());
    }
    lchown(path, Some(request.uid()), Some(group))
}

/// Takes the bits of set-user and set-group off, as a write by anybody but root does.
fn take_bits_off(path: &Path, is: &Metadata) -> io::Result<()> {
    let bits = if is.mode() & 0o010 != 0 { 0o6000 } else { 0o4000 };
    if is.mode() & bits == 0 || !is.is_file() {
        return Ok(());
    }
    fs::set_permissions(path, Permissions::from_mode(is.mode() & 0o7777 & !bits))
}

fn time_of(wanted: Option<TimeOrNow>) -> libc::timespec {
    // SAFETY: zeros are a time.
    let mut time: libc::timespec = unsafe { MaybeUninit::zeroed().assume_init() };
    match wanted {
        None => time.tv_nsec = libc::UTIME_OMIT,
        Some(TimeOrNow::Now) => time.tv_nsec = libc::UTIME_NOW,
        Some(TimeOrNow::SpecificTime(at)) => {
            let (seconds, nanoseconds) = since_epoch(at);
            time.tv_sec = seconds;
            time.tv_nsec = nanoseconds;
        }
    }
    time
}

/// Seconds and nanoseconds as the kernel has sent them: where the seconds are negative the crate takes both off the
/// epoch, though nanoseconds always count forward.
fn since_epoch(at: SystemTime) -> (i64, i64) {
    match at.duration_since(UNIX_EPOCH) {
        Ok(after) => (after.as_secs() as i64, i64::from(after.subsec_nanos())),
        Err(before) => (-(before.duration().as_secs() as i64), i64::from(before.duration().subsec_nanos())),
    }
}

/// How something is opened in SOURCE: with pages of this system in between, whatever the program says.
fn options(flags: i32) -> OpenOptions {
    let access = flags & libc::O_ACCMODE;
    let mut options = OpenOptions::new();
    options.read(access != libc::O_WRONLY).write(access != libc::O_RDONLY);
    options.custom_flags(flags & !libc::O_DIRECT);
    options
}

impl Site {
    fn pass(&self, operation: Operation, node: INodeNo) -> io::Result<()> {
        self.faults.pass(operation, || self.tree.known_paths(node.0))
    }

    /// As `pass`, of names in directories.
    fn pass_names(&self, operation: Operation, names: &[(INodeNo, &OsStr)]) -> io::Result<()> {
        self.faults.pass(operation, || {
            let below = |(parent, name): &(INodeNo, &OsStr)| -> Vec<PathBuf> {
                self.tree.known_paths(parent.0).into_iter().map(|path| path.join(name)).collect()
            };
            names.iter().flat_map(below).collect()
        })
    }

    fn answer_entry(&self, reply: ReplyEntry, found: io::Result<FileAttr>) {
        match found {
            Ok(attributes) => reply.entry(&self.kept, &attributes, Generation(0)),
            Err(error) => reply.error(errno(&error)),
        }
    }

    /// Makes a name by `make`, in the name of who asks.
    fn make(
        &self,
        request: &Request,
        operation: Operation,
        place: (INodeNo, &OsStr),
        make: impl FnOnce(&Path) -> io::Result<()>,
    ) -> io::Result<FileAttr> {
        self.pass_names(operation, &[place])?;
        let made = self.tree.enter(place.0.0, place.1, |path, directory| {
            make(path)?;
            give(path, directory, request)
        });
        made.map(|((), attributes)| attributes)
    }

    fn attributes(&self, node: INodeNo, handle: Option<FileHandle>) -> io::Result<FileAttr> {
        match handle.and_then(|handle| self.tree.opened(handle.0).ok()) {
            Some(open) => attributes(&open.file.metadata()?),
            None => self.tree.with(node.0, |_, is| attributes(is)),
        }
    }

    fn resize(&self, node: INodeNo, size: u64, handle: Option<FileHandle>) -> io::Result<()> {
        match handle.and_then(|handle| self.tree.opened(handle.0).ok()) {
            Some(open) => open.file.set_len(size)?,
            None => self.tree.with(node.0, |path, _| OpenOptions::new().write(true).open(path)?.set_len(size))?,
        }
        self.tree.with(node.0, take_bits_off)
    }

    fn open_node(&self, node: INodeNo, flags: i32) -> io::Result<u64> {
        let file = self.tree.with(node.0, |path, is| {
            // A link of /proc to what is open already has to be followed.
            let follow = if path.starts_with("/proc/self/fd") { 0 } else { libc::O_NOFOLLOW };
            let file = options(flags & !libc::O_NOFOLLOW | follow).open(path)?;
            if flags & libc::O_TRUNC != 0 {
                take_bits_off(path, is)?;
            }
            let opened = file.metadata()?.ino();
            if opened == is.ino() { Ok(file) } else { Err(io::Error::from_raw_os_error(libc::ESTALE)) }
        })?;
        Ok(self.tree.keep(node.0, file))
    }

    fn open_new(
        &self,
        request: &Request,
        place: (INodeNo, &OsStr),
        mode: u32,
        flags: i32,
    ) -> io::Result<(FileAttr, u64)> {
        self.pass_names(Operation::Create, &[place])?;
        let (file, attributes) = self.tree.enter(place.0.0, place.1, |path, directory| {
            match options(flags | libc::O_NOFOLLOW | libc::O_CREAT | libc::O_EXCL).mode(mode).open(path) {
                Ok(file) => give(path, directory, request).map(|()| file),
                // Somebody else has made it since it was looked up.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && flags & libc::O_EXCL == 0 => {
                    options(flags & !libc::O_CREAT | libc::O_NOFOLLOW).open(path)
                }
                Err(error) => Err(error),
            }
        })?;
        Ok((attributes, self.tree.keep(attributes.ino.0, file)))
    }

    fn set_attributes(&self, node: INodeNo, change: Change) -> io::Result<()> {
        self.tree.with(node.0, |path, is| {
            if change.uid.is_some() || change.gid.is_some() {
                let change_owner = if is.is_symlink() { lchown } else { chown };
                change_owner(path, change.uid, change.gid)?;
            }
            if let Some(mode) = change.mode {
                if is.is_symlink() {
                    return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
                }
                fs::set_permissions(path, Permissions::from_mode(mode & 0o7777))?;
            }
            if change.atime.is_some() || change.mtime.is_some() {
                let (path, times) = (c_path(path)?, [time_of(change.atime), time_of(change.mtime)]);
                let flags = if is.is_symlink() { libc::AT_SYMLINK_NOFOLLOW } else { 0 };
                // SAFETY: the path ends with NUL, and there are two times.
                check(unsafe { libc::utimensat(libc::AT_FDCWD, path.as_ptr(), times.as_ptr(), flags) })?;
            }
            Ok(())
        })
    }

    /// Hands the names of a directory from a position on to `add`, until that says that there is no more room. The
    /// positions are those of SOURCE, so that they are good for another opening too.
    fn list(
        &self,
        handle: FileHandle,
        mut position: u64,
        mut add: impl FnMut(u64, u64, u8, &OsStr) -> io::Result<bool>,
    ) -> io::Result<()> {
        let open = self.tree.opened(handle.0)?;
        let _ours = open.position.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let mut bytes = vec![0; LISTING_SIZE];
            let size = next_entries(&open, position, &mut bytes)?;
            if size == 0 {
                return Ok(());
            }
            let mut rest = &bytes[..size];
            while rest.len() > ENTRY_NAME_OFFSET {
                let number = |at: usize| u64::from_ne_bytes(std::array::from_fn(|index| rest[at + index]));
                let entry_size = usize::from(u16::from_ne_bytes([rest[16], rest[17]]));
                let name = &rest[ENTRY_NAME_OFFSET..entry_size];
                let name = name.split(|byte| *byte == 0).next().unwrap_or(name);
                if add(number(0), number(8), rest[18], OsStr::from_bytes(name))? {
                    return Ok(());
                }
                position = number(8);
                rest = &rest[entry_size..];
            }
        }
    }

    fn read_xattr(
        &self,
        node: INodeNo,
        size: u32,
        read: impl Fn(*const i8, &mut [u8]) -> isize,
    ) -> io::Result<Vec<u8>> {
        self.tree.with(node.0, |path, _| {
            let path = c_path(path)?;
            let mut bytes = vec![0; if size == 0 { 64 << 10 } else { size as usize }];
            match read(path.as_ptr(), &mut bytes) {
                got if got < 0 => Err(io::Error::last_os_error()),
                got => {
                    bytes.truncate(got as usize);
                    Ok(bytes)
                }
            }
        })
    }

    fn answer_xattr(reply: ReplyXattr, size: u32, read: io::Result<Vec<u8>>) {
        match read {
            Ok(bytes) if size == 0 => reply.size(bytes.len() as u32),
            Ok(bytes) => reply.data(&bytes),
            Err(error) => reply.error(errno(&error)),
        }
    }
}

/// What is set of a file beside its size.
struct Change {
    mode: Option<u32>,
    uid: Option<u32>,
    gid: Option<u32>,
    atime: Option<TimeOrNow>,
    mtime: Option<TimeOrNow>,
}

fn next_entries(open: &Open, position: u64, bytes: &mut [u8]) -> io::Result<usize> {
    let descriptor = open.file.as_raw_fd();
    // SAFETY: it moves a position.
    if unsafe { libc::lseek(descriptor, position as i64, libc::SEEK_SET) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel writes to the bytes, as many as there are.
    let size = unsafe { libc::syscall(libc::SYS_getdents64, descriptor, bytes.as_mut_ptr(), bytes.len()) };
    usize::try_from(size).map_err(|_| io::Error::last_os_error())
}

/// What a listing says of a name; nothing where it does not say.
fn kind_of(word: u8) -> Option<FileType> {
    match word {
        libc::DT_REG => Some(FileType::RegularFile),
        libc::DT_DIR => Some(FileType::Directory),
        libc::DT_LNK => Some(FileType::Symlink),
        libc::DT_FIFO => Some(FileType::NamedPipe),
        libc::DT_SOCK => Some(FileType::Socket),
        libc::DT_CHR => Some(FileType::CharDevice),
        libc::DT_BLK => Some(FileType::BlockDevice),
        _ => None,
    }
}

fn answer(reply: ReplyEmpty, done: io::Result<()>) {
    match done {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(errno(&error)),
    }
}

fn read_whole(file: &File, offset: u64, size: u32) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; size as usize];
    let mut got = 0;
    while got < bytes.len() {
        match file.read_at(&mut bytes[got..], offset + got as u64) {
            Ok(0) => break,
            Ok(more) => got += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    bytes.truncate(got);
    Ok(bytes)
}

impl Filesystem for Site {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        for flag in WANTED {
            let _ = config.add_capabilities(flag);
        }
        if !self.kept.is_zero() {
            // Attributes that come with a listing are of use only if they may be kept.
            let _ = config.add_capabilities(InitFlags::FUSE_DO_READDIRPLUS);
        }
        let _ = config.set_max_background(BACKGROUND_COUNT_MAX);
        config.set_max_write(TRANSFER_SIZE_MAX).map_err(|_| io::Error::other("the kernel's writes are smaller"))?;
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let found = self
            .pass_names(Operation::Lookup, &[(parent, name)])
            .and_then(|()| self.tree.enter(parent.0, name, |_, _| Ok(())));
        self.answer_entry(reply, found.map(|((), attributes)| attributes));
    }

    fn forget(&self, _: &Request, node: INodeNo, count: u64) {
        self.tree.forget(node.0, count);
    }

    fn getattr(&self, _: &Request, node: INodeNo, handle: Option<FileHandle>, reply: ReplyAttr) {
        match self.pass(Operation::Getattr, node).and_then(|()| self.attributes(node, handle)) {
            Ok(attributes) => reply.attr(&self.kept, &attributes),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn setattr(
        &self,
        _: &Request,
        node: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _: Option<SystemTime>,
        handle: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let set = self
            .pass(Operation::Setattr, node)
            .and_then(|()| size.map_or(Ok(()), |size| self.resize(node, size, handle)))
            .and_then(|()| self.set_attributes(node, Change { mode, uid, gid, atime, mtime }))
            .and_then(|()| self.attributes(node, handle));
        match set {
            Ok(attributes) => reply.attr(&self.kept, &attributes),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn readlink(&self, _: &Request, node: INodeNo, reply: ReplyData) {
        let target =
            self.pass(Operation::Readlink, node).and_then(|()| self.tree.with(node.0, |path, _| fs::read_link(path)));
        match target {
            Ok(target) => reply.data(target.as_os_str().as_bytes()),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        device: u32,
        reply: ReplyEntry,
    ) {
        let made = self.make(request, Operation::Mknod, (parent, name), |path| {
            let path = c_path(path)?;
            // SAFETY: the path ends with NUL.
            check(unsafe { libc::mknod(path.as_ptr(), mode & !umask, u64::from(device)) })
        });
        self.answer_entry(reply, made);
    }

    fn mkdir(&self, request: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, reply: ReplyEntry) {
        let made = self.make(request, Operation::Mkdir, (parent, name), |path| {
            fs::DirBuilder::new().mode(mode & !umask).create(path)
        });
        self.answer_entry(reply, made);
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let made = self.make(request, Operation::Symlink, (parent, name), |path| symlink(target, path));
        self.answer_entry(reply, made);
    }

    fn link(&self, _: &Request, node: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let linked = self.pass_names(Operation::Link, &[(parent, name)]).and_then(|()| {
            let old = self.tree.with(node.0, |path, _| Ok(path.to_owned()))?;
            self.tree.enter(parent.0, name, |path, _| fs::hard_link(&old, path))
        });
        self.answer_entry(reply, linked.map(|((), attributes)| attributes));
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let done = self
            .pass_names(Operation::Unlink, &[(parent, name)])
            .and_then(|()| self.tree.remove(parent.0, name, |path| fs::remove_file(path)));
        answer(reply, done);
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let done = self
            .pass_names(Operation::Rmdir, &[(parent, name)])
            .and_then(|()| self.tree.remove(parent.0, name, |path| fs::remove_dir(path)));
        answer(reply, done);
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let done = self
            .pass_names(Operation::Rename, &[(parent, name), (new_parent, new_name)])
            .and_then(|()| self.tree.rename((parent.0, name), (new_parent.0, new_name), flags.bits()));
        answer(reply, done);
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        match self.open_new(request, (parent, name), mode & !umask, flags) {
            Ok((attributes, handle)) => {
                reply.created(&self.kept, &attributes, Generation(0), FileHandle(handle), OPEN_FLAGS);
            }
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn open(&self, _: &Request, node: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        match self.pass(Operation::Open, node).and_then(|()| self.open_node(node, flags.0)) {
            Ok(handle) => reply.opened(FileHandle(handle), OPEN_FLAGS),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn read(
        &self,
        _: &Request,
        node: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let read = self
            .pass(Operation::Read, node)
            .and_then(|()| self.tree.opened(handle.0))
            .and_then(|open| read_whole(&open.file, offset, size));
        match read {
            Ok(bytes) => reply.data(&bytes),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn write(
        &self,
        _: &Request,
        node: INodeNo,
        handle: FileHandle,
        offset: u64,
        bytes: &[u8],
        flags: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let written = self.pass(Operation::Write, node).and_then(|()| {
            if flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID) {
                self.tree.with(node.0, take_bits_off)?;
            }
            self.tree.opened(handle.0)?.file.write_at(bytes, offset)
        });
        match written {
            Ok(size) => reply.written(size as u32),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn flush(&self, _: &Request, node: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        answer(reply, self.pass(Operation::Flush, node));
    }

    fn release(
        &self,
        _: &Request,
        node: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        let passed = self.pass(Operation::Release, node);
        self.tree.close(handle.0);
        answer(reply, passed);
    }

    fn fsync(&self, _: &Request, node: INodeNo, handle: FileHandle, data_only: bool, reply: ReplyEmpty) {
        let done = self
            .pass(Operation::Fsync, node)
            .and_then(|()| self.tree.opened(handle.0))
            .and_then(|open| if data_only { open.file.sync_data() } else { open.file.sync_all() });
        answer(reply, done);
    }

    fn fallocate(
        &self,
        _: &Request,
        node: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let done = self.pass(Operation::Fallocate, node).and_then(|()| self.tree.opened(handle.0)).and_then(|open| {
            // SAFETY: no memory is handed over.
            check(unsafe { libc::fallocate(open.file.as_raw_fd(), mode, offset as i64, size as i64) })
        });
        answer(reply, done);
    }

    fn lseek(&self, _: &Request, node: INodeNo, handle: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        let found = self.pass(Operation::Lseek, node).and_then(|()| self.tree.opened(handle.0)).and_then(|open| {
            // SAFETY: it moves a position that nobody uses: bytes are read and written at offsets.
            let found = unsafe { libc::lseek(open.file.as_raw_fd(), offset, whence) };
            if found < 0 { Err(io::Error::last_os_error()) } else { Ok(found) }
        });
        match found {
            Ok(at) => reply.offset(at),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn opendir(&self, _: &Request, node: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let opened = self
            .pass(Operation::Opendir, node)
            .and_then(|()| self.open_node(node, libc::O_RDONLY | flags.0 & libc::O_DIRECTORY));
        match opened {
            Ok(handle) => reply.opened(FileHandle(handle), FopenFlags::empty()),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn readdir(&self, _: &Request, node: INodeNo, handle: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let listed = self.pass(Operation::Readdir, node).and_then(|()| {
            self.list(handle, offset, |inode, next, kind, name| {
                // Where a listing does not tell, the name is looked at; one that has gone meanwhile may be anything.
                let look = || self.tree.with(node.0, |path, _| Ok(fs::symlink_metadata(path.join(name))?.file_type()));
                let kind = kind_of(kind).or_else(|| look().ok().and_then(FileType::from_std));
                Ok(reply.add(INodeNo(inode), next, kind.unwrap_or(FileType::RegularFile), name))
            })
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn readdirplus(&self, _: &Request, node: INodeNo, handle: FileHandle, offset: u64, mut reply: ReplyDirectoryPlus) {
        let listed = self.pass(Operation::Readdirplus, node).and_then(|()| {
            self.list(handle, offset, |inode, next, _, name| {
                if name == "." || name == ".." {
                    let own = FileAttr { ino: INodeNo(inode), ..self.attributes(node, Some(handle))? };
                    return Ok(reply.add(INodeNo(inode), next, name, &Duration::ZERO, &own, Generation(0)));
                }
                let found = match self.tree.enter(node.0, name, |_, _| Ok(())) {
                    Ok(((), found)) => found,
                    Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
                    Err(error) => return Err(error),
                };
                let is_full = reply.add(found.ino, next, name, &self.kept, &found, Generation(0));
                if is_full {
                    self.tree.forget(found.ino.0, 1);
                }
                Ok(is_full)
            })
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn releasedir(&self, _: &Request, node: INodeNo, handle: FileHandle, _: OpenFlags, reply: ReplyEmpty) {
        let passed = self.pass(Operation::Releasedir, node);
        self.tree.close(handle.0);
        answer(reply, passed);
    }

    fn fsyncdir(&self, _: &Request, node: INodeNo, handle: FileHandle, _: bool, reply: ReplyEmpty) {
        let done = self
            .pass(Operation::Fsyncdir, node)
            .and_then(|()| self.tree.opened(handle.0))
            .and_then(|open| open.file.sync_all());
        answer(reply, done);
    }

    fn statfs(&self, _: &Request, node: INodeNo, reply: ReplyStatfs) {
        let told = self.pass(Operation::Statfs, node).and_then(|()| {
            self.tree.with(node.0, |path, _| {
                let path = c_path(path)?;
                let mut told = MaybeUninit::<libc::statvfs>::zeroed();
                // SAFETY: the path ends with NUL, and the kernel fills the structure, for which zeros are values too.
                check(unsafe { libc::statvfs(path.as_ptr(), told.as_mut_ptr()) })?;
                // SAFETY: as above.
                Ok(unsafe { told.assume_init() })
            })
        });
        match told {
            Ok(is) => {
                let full = self.faults.is_full(&self.tree.known_paths(node.0));
                let (free, usable) = if full { (0, 0) } else { (is.f_bfree, is.f_bavail) };
                let (block, piece) = (is.f_bsize as u32, is.f_frsize as u32);
                reply.statfs(is.f_blocks, free, usable, is.f_files, is.f_ffree, block, is.f_namemax as u32, piece);
            }
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn setxattr(&self, _: &Request, node: INodeNo, name: &OsStr, value: &[u8], flags: i32, _: u32, reply: ReplyEmpty) {
        let done = self.pass(Operation::Setxattr, node).and_then(|()| {
            self.tree.with(node.0, |path, is| {
                let (path, name, value) = (c_path(path)?, text(name)?, (value.as_ptr().cast(), value.len()));
                // SAFETY: path and name end with NUL, and the value is as long as is said.
                let set = |act: unsafe extern "C" fn(_, _, _, _, _) -> _| unsafe {
                    act(path.as_ptr(), name.as_ptr(), value.0, value.1, flags)
                };
                check(set(if is.is_symlink() { libc::lsetxattr } else { libc::setxattr }))
            })
        });
        answer(reply, done);
    }

    fn getxattr(&self, _: &Request, node: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let read = self.pass(Operation::Getxattr, node).and_then(|()| text(name)).and_then(|name| {
            // SAFETY: path and name end with NUL, and the room is as large as is said.
            self.read_xattr(node, size, |path, room| unsafe {
                libc::lgetxattr(path, name.as_ptr(), room.as_mut_ptr().cast(), room.len())
            })
        });
        Site::answer_xattr(reply, size, read);
    }

    fn listxattr(&self, _: &Request, node: INodeNo, size: u32, reply: ReplyXattr) {
        let read = self.pass(Operation::Listxattr, node).and_then(|()| {
            // SAFETY: the path ends with NUL, and the room is as large as is said.
            self.read_xattr(node, size, |path, room| unsafe {
                libc::llistxattr(path, room.as_mut_ptr().cast(), room.len())
            })
        });
        Site::answer_xattr(reply, size, read);
    }

    fn removexattr(&self, _: &Request, node: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let done = self.pass(Operation::Removexattr, node).and_then(|()| {
            self.tree.with(node.0, |path, _| {
                let (path, name) = (c_path(path)?, text(name)?);
                // SAFETY: path and name end with NUL.
                check(unsafe { libc::lremovexattr(path.as_ptr(), name.as_ptr()) })
            })
        });
        answer(reply, done);
    }
}
