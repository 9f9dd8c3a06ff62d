//! The system calls behind a backing tree of this machine. Each may wait for as long as the file system pleases, so
//! they are made by worker threads alone.
//!
//! Invariants
//! 1. Whatever is opened is resolved from a handle with `RESOLVE_BENEATH` and `RESOLVE_NO_SYMLINKS`, and all other
//!    calls take one name in a handle and follow no link; so nothing outside the root is touched, whatever others do to
//!    the tree meanwhile.
//! 2. At most two descriptors a call are open beside the handles.

use super::HANDLES_MAX;
use super::layout::{LAYOUT_KEY, stripe_size};
use super::name::{EntryName, RelativePath};
use super::operation::*;
use std::ffi::{CStr, CString};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Bytes that one call lists.
const LIST_SIZE: usize = 64 << 10;
/// The most that the kernel takes as a value of an extended attribute, and as the list of their names.
const XATTR_SIZE_MAX: usize = 64 << 10;
/// Bytes written by one handle after which those of the time before are waited for.
const WRITE_WINDOW_SIZE: u64 = 4 << 20;
/// Times that a resolution is tried which lost a race against a rename.
const RESOLVE_TRIES: u32 = 8;

/// What a call came to.
pub(super) type CallResult = Result<BackingOutcome, i32>;

/// An open handle.
pub(super) struct OpenHandle {
    file: OwnedFd,
    /// Where a listing stands.
    position: AtomicU64,
    /// Bytes that were written by it.
    written: AtomicU64,
}

/// The handles of one tree.
pub(super) struct HandleFiles {
    root: CString,
    open: Mutex<Vec<Option<Arc<OpenHandle>>>>,
    /// Known when the root is open.
    shared_sync: OnceLock<Option<SharedSync>>,
}

fn errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

/// Turns the -1 of a system call into its error number.
fn check(result: libc::c_int) -> Result<libc::c_int, i32> {
    if result < 0 { Err(errno()) } else { Ok(result) }
}

fn check_size(result: isize) -> Result<usize, i32> {
    usize::try_from(result).map_err(|_| errno())
}

/// Repeats a call that a signal has cut off.
fn again<T>(call: impl Fn() -> Result<T, i32>) -> Result<T, i32> {
    loop {
        match call() {
            Err(libc::EINTR) => {}
            result => return result,
        }
    }
}

fn owned(raw: libc::c_int) -> OwnedFd {
    // SAFETY: a descriptor that a system call has just made, which nobody else has.
    unsafe { OwnedFd::from_raw_fd(raw) }
}

impl HandleFiles {
    pub fn new(root: CString) -> HandleFiles {
        let open = Mutex::new((0..HANDLES_MAX).map(|_| None).collect());
        HandleFiles { root, open, shared_sync: OnceLock::new() }
    }

    fn get(&self, handle: HandleId) -> Result<Arc<OpenHandle>, i32> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open[handle.0 as usize].clone().ok_or(libc::EBADF)
    }

    fn put(&self, handle: HandleId, file: OwnedFd) -> CallResult {
        #[allow(clippy::unnecessary_cast)] // The C libraries give it different types.
        let inode = status_of(file.as_raw_fd())?.st_ino as u64;
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let place = &mut open[handle.0 as usize];
        assert!(place.is_none(), "a handle is used again only after its close");
        *place = Some(Arc::new(OpenHandle { file, position: AtomicU64::new(0), written: AtomicU64::new(0) }));
        Ok(BackingOutcome::Opened(inode))
    }

    pub fn syncs_at_once(&self) -> bool {
        self.shared_sync().is_some()
    }

    fn shared_sync(&self) -> Option<&SharedSync> {
        let shared = self.shared_sync.get()?.as_ref();
        shared.filter(|shared| !shared.has_failed.load(Ordering::Relaxed))
    }

    fn sync_files(&self, files: &[Arc<OpenHandle>]) -> Vec<Result<(), i32>> {
        if let Some(shared) = self.shared_sync().filter(|shared| shared.covers(files)) {
            // SAFETY: no pointers.
            match check(unsafe { libc::syncfs(shared.root.as_raw_fd()) }) {
                Ok(_) => return files.iter().map(|_| Ok(())).collect(),
                // Files tell what became of each, those that are open by now as well: nobody asks this way again.
                Err(_) => shared.has_failed.store(true, Ordering::Relaxed),
            }
        }
        files.iter().map(|file| sync(file.raw()).map(drop)).collect()
    }

    fn take(&self, handle: HandleId) -> Option<Arc<OpenHandle>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)[handle.0 as usize].take()
    }

    /// Closes all handles.
    pub fn close_all(&self) {
        let open: Vec<_> = {
            let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
            open.iter_mut().map(Option::take).collect()
        };
        drop(open);
    }

    /// Carries out one call, however long that takes.
    pub fn perform(&self, operation: BackingOperation) -> CallResult {
        use BackingOperation::*;
        match operation {
            OpenRoot { handle } => {
                let root = open_root(&self.root)?;
                self.shared_sync.get_or_init(|| SharedSync::of(root.as_raw_fd()));
                self.put(handle, root)
            }
            Open { handle, parent, path, open_as } => {
                let parent = self.get(parent)?;
                self.put(handle, in_directory(&parent, open(parent.raw(), path.as_c(), open_as))?)
            }
            OpenListing { handle, directory } => {
                let directory = self.get(directory)?;
                check_living(directory.raw())?;
                self.put(handle, in_directory(&directory, open_itself(directory.raw()))?)
            }
            Close { handle } => {
                drop(self.take(handle));
                Ok(BackingOutcome::Done)
            }
            List { listing, from } => {
                let listing = self.get(listing)?;
                in_directory(&listing, list(&listing, from))
            }
            Look { directory, name } => self.look_at(directory, &name),
            LookAll { directory, names } => {
                let directory = self.get(directory)?;
                let look = |name: &EntryName| in_directory(&directory, look(directory.raw(), name.as_c()));
                Ok(BackingOutcome::Looked(names.iter().map(look).collect()))
            }
            LookOpen { handle } => look_open(self.get(handle)?.raw()).map(told),
            Read { file, offset, memory } => {
                let (file, offset) = (self.get(file)?, to_offset(offset)?);
                // SAFETY: the memory is the call's until it has ended (`Backing::begin`).
                let read = || unsafe { libc::pread(file.raw(), memory.address.cast(), memory.size, offset) };
                again(|| check_size(read())).map(BackingOutcome::Moved)
            }
            ReadFiles { directory, files } => {
                let directory = self.get(directory)?;
                let read = |(path, memory): &(RelativePath, MemoryPlace)| {
                    let file = in_directory(&directory, open(directory.raw(), path.as_c(), OpenAs::Read))?;
                    read_beginning(file.as_raw_fd(), *memory)
                };
                Ok(BackingOutcome::FilesRead(files.iter().map(read).collect()))
            }
            Write { file, offset, memory } => {
                let (file, offset) = (self.get(file)?, to_offset(offset)?);
                // SAFETY: as above.
                let write = || unsafe { libc::pwrite(file.raw(), memory.address.cast(), memory.size, offset) };
                let size = again(|| check_size(write()))?;
                file.note_written(size)?;
                Ok(BackingOutcome::Moved(size))
            }
            Sync { handle } => sync(self.get(handle)?.raw()),
            SyncFiles { files } => {
                let files: Result<Vec<_>, i32> = files.into_iter().map(|file| self.get(file)).collect();
                Ok(BackingOutcome::Synced(self.sync_files(&files?)))
            }
            SetSize { file, size } => {
                let (file, size) = (self.get(file)?, to_offset(size)?);
                // SAFETY: no pointers.
                done(again(|| check(unsafe { libc::ftruncate(file.raw(), size) })))
            }
            SetOpenAttributes { file, size, change } => set_open_attributes(self.get(file)?.raw(), size, &change),
            Space { handle } => space(self.get(handle)?.raw()),
            PreferredSize { handle } => preferred_size(self.get(handle)?.raw()),
            Seek { file, offset, kind } => seek(self.get(file)?.raw(), offset, kind),
            change => self.change_name(change),
        }
    }

    fn change_name(&self, operation: BackingOperation) -> CallResult {
        use BackingOperation::*;
        match operation {
            MakeDirectory { directory, name, mode } => self.named(directory, &name, |parent, name| {
                // SAFETY: the name is a C string.
                check(unsafe { libc::mkdirat(parent, name.as_ptr(), mode) })
            }),
            MakeSymlink { directory, name, target } => self.named(directory, &name, |parent, name| {
                // SAFETY: both are C strings.
                check(unsafe { libc::symlinkat(target.as_ptr(), parent, name.as_ptr()) })
            }),
            Remove { directory, name, is_directory } => self.named(directory, &name, |parent, name| {
                let flags = if is_directory { libc::AT_REMOVEDIR } else { 0 };
                // SAFETY: the name is a C string.
                check(unsafe { libc::unlinkat(parent, name.as_ptr(), flags) })
            }),
            SetAttributes { directory, name, change } => {
                self.named(directory, &name, |parent, name| set_attributes(parent, name, &change))?;
                self.look_at(directory, &name)
            }
            Link { from, to } => self.named_twice((from.0, &from.1), (to.0, &to.1), |(from, name), (to, other)| {
                // SAFETY: both names are C strings. Without flags no link is followed.
                check(unsafe { libc::linkat(from, name.as_ptr(), to, other.as_ptr(), 0) })
            }),
            Rename { from, to, mode } => {
                self.named_twice((from.0, &from.1), (to.0, &to.1), |from, to| rename(from, to, mode))?;
                self.look_at(to.0, &to.1)
            }
            ListXattrs { directory, name } => {
                let directory = self.get(directory)?;
                in_directory(&directory, list_xattrs(directory.raw(), name.as_c()))
            }
            GetXattr { directory, name, key } => {
                let directory = self.get(directory)?;
                let path = in_directory(&directory, ItemPath::new(directory.raw(), name.as_c()))?;
                get_xattr(&path.path, key.as_c()).map(BackingOutcome::Value)
            }
            SetXattr { directory, name, key, value } => self.named(directory, &name, |parent, name| {
                let item = ItemPath::new(parent, name)?;
                let (path, size) = (item.path.as_ptr(), value.len());
                // SAFETY: path and key are C strings, and the value has that size.
                check(unsafe { libc::setxattr(path, key.as_c().as_ptr(), value.as_ptr().cast(), size, 0) })
            }),
            RemoveXattr { directory, name, key } => self.named(directory, &name, |parent, name| {
                let item = ItemPath::new(parent, name)?;
                // SAFETY: both are C strings.
                check(unsafe { libc::removexattr(item.path.as_ptr(), key.as_c().as_ptr()) })
            }),
            other => unreachable!("{} is no call about a name", other.word()),
        }
    }

    /// A call on a name that brings nothing.
    fn look_at(&self, directory: HandleId, name: &EntryName) -> CallResult {
        let directory = self.get(directory)?;
        in_directory(&directory, look(directory.raw(), name.as_c())).map(told)
    }

    fn named(
        &self,
        directory: HandleId,
        name: &EntryName,
        call: impl Fn(RawFd, &CStr) -> Result<libc::c_int, i32>,
    ) -> CallResult {
        let directory = self.get(directory)?;
        in_directory(&directory, done(again(|| call(directory.raw(), name.as_c()))))
    }

    fn named_twice(
        &self,
        from: (HandleId, &EntryName),
        to: (HandleId, &EntryName),
        call: impl Fn((RawFd, &CStr), (RawFd, &CStr)) -> Result<libc::c_int, i32>,
    ) -> CallResult {
        let (source, target) = (self.get(from.0)?, self.get(to.0)?);
        let result = again(|| call((source.raw(), from.1.as_c()), (target.raw(), to.1.as_c())));
        in_directory(&target, in_directory(&source, done(result)))
    }
}

impl OpenHandle {
    fn raw(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// Notes bytes that were written. After each window of them the kernel is to have written back those of the window
    /// before, and begins with these: so a sync has little left to do and takes not long, writes take as long as the
    /// file system behind does, and little of the node's memory is dirty. Errors: whatever a sync would tell, which
    /// does not tell it any more.
    fn note_written(&self, size: usize) -> Result<(), i32> {
        let before = self.written.fetch_add(size as u64, Ordering::Relaxed);
        if before / WRITE_WINDOW_SIZE == (before + size as u64) / WRITE_WINDOW_SIZE {
            return Ok(());
        }
        // SAFETY: no pointers.
        let sync_all = |flags| check(unsafe { libc::sync_file_range(self.raw(), 0, 0, flags) });
        // Without flags it does nothing, and fails where a sandbox has no such call: all is left to the sync then.
        static IS_ALLOWED: OnceLock<bool> = OnceLock::new();
        match *IS_ALLOWED.get_or_init(|| sync_all(0).is_ok()) {
            true => sync_all(libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE).map(drop),
            false => Ok(()),
        }
    }
}

fn done(result: Result<libc::c_int, i32>) -> CallResult {
    result.map(|_| BackingOutcome::Done)
}

fn to_offset(offset: u64) -> Result<libc::off_t, i32> {
    libc::off_t::try_from(offset).map_err(|_| libc::EFBIG)
}

/// That a name is not there means nothing where the directory itself was removed: then it is stale.
fn in_directory<T>(directory: &OpenHandle, result: Result<T, i32>) -> Result<T, i32> {
    match result {
        Err(libc::ENOENT) => match check_living(directory.raw()) {
            Ok(()) => Err(libc::ENOENT),
            // What is open has no name that could be missing: the file system itself is gone.
            Err(libc::ENOENT) => Err(libc::ESTALE),
            Err(errno) => Err(errno),
        },
        result => result,
    }
}

fn check_living(directory: RawFd) -> Result<(), i32> {
    if status_of(directory)?.st_nlink > 0 { Ok(()) } else { Err(libc::ESTALE) }
}

/// The root is where whoever runs us says, through links if there are any.
fn open_root(path: &CStr) -> Result<OwnedFd, i32> {
    let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC;
    // SAFETY: the path is a C string.
    again(|| check(unsafe { libc::open(path.as_ptr(), flags) })).map(owned)
}

fn open(parent: RawFd, path: &CStr, open_as: OpenAs) -> Result<OwnedFd, i32> {
    // No open of a FIFO waits for its other end, and no terminal becomes ours.
    let file_flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let (flags, mode) = match open_as {
        OpenAs::Directory => (libc::O_PATH | libc::O_DIRECTORY, 0),
        OpenAs::Listing => (libc::O_RDONLY | libc::O_DIRECTORY, 0),
        OpenAs::Read => (file_flags | libc::O_RDONLY, 0),
        OpenAs::Write => (file_flags | libc::O_RDWR, 0),
        OpenAs::Create(mode) => (file_flags | libc::O_RDWR | libc::O_CREAT | libc::O_EXCL, mode),
    };
    match resolve(parent, path, flags, mode) {
        // Somebody has a lease on the file: whoever opens it has to wait until it is given back.
        Err(libc::EAGAIN) if flags & libc::O_NONBLOCK != 0 => open_leased(parent, path, flags & !file_flags),
        Ok(file) if flags & libc::O_NONBLOCK != 0 => check_regular(&file).map(|()| file),
        result => result,
    }
}

fn check_regular(file: &OwnedFd) -> Result<(), i32> {
    match kind_of(status_of(file.as_raw_fd())?.st_mode) {
        FileKind::File => Ok(()),
        FileKind::Directory => Err(libc::EISDIR),
        _ => Err(libc::EINVAL),
    }
}

/// Waits for a lease of somebody else, on a file that is known to be one.
fn open_leased(parent: RawFd, path: &CStr, flags: libc::c_int) -> Result<OwnedFd, i32> {
    let found = resolve(parent, path, libc::O_PATH, 0)?;
    check_regular(&found)?;
    let path = descriptor_path(&found)?;
    let flags = flags & !(libc::O_CREAT | libc::O_EXCL) | libc::O_CLOEXEC;
    // SAFETY: the path is a C string.
    again(|| check(unsafe { libc::open(path.as_ptr(), flags) })).map(owned)
}

/// Opens what a path from a directory leads to, beneath it and through no link (invariant 1).
fn resolve(parent: RawFd, path: &CStr, flags: libc::c_int, mode: u32) -> Result<OwnedFd, i32> {
    let flags = flags | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    // SAFETY: zeros are a value of it.
    let mut how: libc::open_how = unsafe { MaybeUninit::zeroed().assume_init() };
    how.flags = flags as u64;
    how.mode = u64::from(mode);
    how.resolve = libc::RESOLVE_BENEATH | libc::RESOLVE_NO_SYMLINKS;
    let size = size_of::<libc::open_how>();
    let mut tries = 0;
    loop {
        // SAFETY: the path is a C string, and `how` has that size.
        let raw = unsafe { libc::syscall(libc::SYS_openat2, parent, path.as_ptr(), &raw const how, size) };
        match check(raw as libc::c_int) {
            Ok(raw) => return Ok(owned(raw)),
            Err(libc::EINTR) => {}
            // Somebody has renamed a directory on the way.
            Err(libc::EAGAIN) if flags & libc::O_NONBLOCK == 0 && tries < RESOLVE_TRIES => tries += 1,
            // Kernels before 5.6.
            Err(libc::ENOSYS) => return walk(parent, path, flags, mode),
            Err(error) => return Err(error),
        }
    }
}

/// As `resolve`, name by name: none of them is `..` (`RelativePath`), and links are not followed.
fn walk(parent: RawFd, path: &CStr, flags: libc::c_int, mode: u32) -> Result<OwnedFd, i32> {
    let mut names: Vec<&[u8]> = path.to_bytes().split(|byte| *byte == b'/').collect();
    let last = names.pop().ok_or(libc::EINVAL)?;
    let step = |directory: RawFd, name: &[u8], flags: libc::c_int| {
        let name = CString::new(name).map_err(|_| libc::EINVAL)?;
        // SAFETY: the name is a C string.
        again(|| check(unsafe { libc::openat(directory, name.as_ptr(), flags, mode) })).map(owned)
    };
    let way = libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    let mut above: Option<OwnedFd> = None;
    for name in names {
        above = Some(step(above.as_ref().map_or(parent, OwnedFd::as_raw_fd), name, way)?);
    }
    step(above.as_ref().map_or(parent, OwnedFd::as_raw_fd), last, flags)
}

/// Opens a directory once more, so that it can be read.
fn open_itself(directory: RawFd) -> Result<OwnedFd, i32> {
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
    // SAFETY: the name is a C string.
    again(|| check(unsafe { libc::openat(directory, c".".as_ptr(), flags) })).map(owned)
}

fn descriptor_path(file: &OwnedFd) -> Result<CString, i32> {
    CString::new(format!("/proc/self/fd/{}", file.as_raw_fd())).map_err(|_| libc::EINVAL)
}

/// Something in a directory under a path that stays its own, for calls that know no `AT_SYMLINK_NOFOLLOW`.
struct ItemPath {
    path: CString,
    /// Its descriptor, which the path is about.
    item: OwnedFd,
}

impl ItemPath {
    fn new(directory: RawFd, name: &CStr) -> Result<ItemPath, i32> {
        let item = resolve(directory, name, libc::O_PATH, 0)?;
        Ok(ItemPath { path: descriptor_path(&item)?, item })
    }
}

fn status_of(file: RawFd) -> Result<libc::stat, i32> {
    let mut status = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: writes the status, which is a valid value even where it stays zeroed.
    unsafe {
        check(libc::fstat(file, status.as_mut_ptr()))?;
        Ok(status.assume_init())
    }
}

fn kind_of(mode: libc::mode_t) -> FileKind {
    match mode & libc::S_IFMT {
        libc::S_IFREG => FileKind::File,
        libc::S_IFDIR => FileKind::Directory,
        libc::S_IFLNK => FileKind::Symlink,
        _ => FileKind::Other,
    }
}

// The C libraries give these fields different types.
#[allow(clippy::unnecessary_cast)]
fn attributes(status: &libc::stat, target: Option<Box<[u8]>>) -> BackingAttributes {
    let nanos = |seconds: i64, rest: i64| seconds.saturating_mul(1_000_000_000).saturating_add(rest);
    let identity = Identity {
        device: status.st_dev as u64,
        inode: status.st_ino as u64,
        size: status.st_size as u64,
        mtime: nanos(status.st_mtime, status.st_mtime_nsec as i64),
        ctime: nanos(status.st_ctime, status.st_ctime_nsec as i64),
    };
    BackingAttributes {
        kind: kind_of(status.st_mode),
        identity,
        mode: status.st_mode & 0o7777,
        owner: status.st_uid,
        group: status.st_gid,
        link_count: status.st_nlink as u64,
        space: status.st_blocks as u64 * 512,
        block_size: status.st_blksize as u64,
        target,
    }
}

fn told(attributes: BackingAttributes) -> BackingOutcome {
    BackingOutcome::Attributes(Box::new(attributes))
}

fn look(directory: RawFd, name: &CStr) -> Result<BackingAttributes, i32> {
    let mut status = MaybeUninit::<libc::stat>::zeroed();
    let flags = libc::AT_SYMLINK_NOFOLLOW | libc::AT_NO_AUTOMOUNT;
    // SAFETY: the name is a C string; writes the status.
    again(|| check(unsafe { libc::fstatat(directory, name.as_ptr(), status.as_ptr().cast_mut(), flags) }))?;
    // SAFETY: zeros are a value of it, and it was written.
    let status = unsafe { status.assume_init_mut() };
    let target = match kind_of(status.st_mode) {
        FileKind::Symlink => Some(read_link(directory, name)?),
        _ => None,
    };
    Ok(attributes(status, target))
}

fn read_link(directory: RawFd, name: &CStr) -> Result<Box<[u8]>, i32> {
    let mut target = vec![0u8; libc::PATH_MAX as usize];
    let (address, size) = (target.as_mut_ptr().cast(), target.len());
    // SAFETY: the name is a C string; writes at most so many bytes.
    let size = check_size(unsafe { libc::readlinkat(directory, name.as_ptr(), address, size) })?;
    target.truncate(size);
    Ok(target.into())
}

/// What an open file is now. A file system of other machines is asked anew, whatever this one remembers: times and
/// sizes of before and after a fetch are to be those of before and after it.
fn look_open(file: RawFd) -> Result<BackingAttributes, i32> {
    let mut status = MaybeUninit::<libc::statx>::zeroed();
    let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_FORCE_SYNC;
    let (mask, name) = (libc::STATX_BASIC_STATS, c"".as_ptr());
    // Not every C library that there is has a function for it.
    // SAFETY: the name is a C string; writes the status, which is a valid value even where it stays zeroed.
    let (result, status) = unsafe {
        let result = libc::syscall(libc::SYS_statx, file, name, flags, mask, status.as_mut_ptr());
        (check(result as libc::c_int), status.assume_init())
    };
    match result {
        Ok(_) => Ok(attributes_of(&status)),
        // Kernels before 4.11, and those who guard system calls by a list of then.
        Err(libc::ENOSYS | libc::EPERM) => status_of(file).map(|status| attributes(&status, None)),
        Err(error) => Err(error),
    }
}

fn attributes_of(status: &libc::statx) -> BackingAttributes {
    let nanos =
        |time: libc::statx_timestamp| time.tv_sec.saturating_mul(1_000_000_000).saturating_add(i64::from(time.tv_nsec));
    let identity = Identity {
        device: libc::makedev(status.stx_dev_major, status.stx_dev_minor),
        inode: status.stx_ino,
        size: status.stx_size,
        mtime: nanos(status.stx_mtime),
        ctime: nanos(status.stx_ctime),
    };
    BackingAttributes {
        kind: kind_of(libc::mode_t::from(status.stx_mode)),
        identity,
        mode: u32::from(status.stx_mode) & 0o7777,
        owner: status.stx_uid,
        group: status.stx_gid,
        link_count: u64::from(status.stx_nlink),
        space: status.stx_blocks * 512,
        block_size: u64::from(status.stx_blksize),
        target: None,
    }
}

/// Reads the beginning of an open file into all of a memory, and looks at it after that.
fn read_beginning(file: RawFd, memory: MemoryPlace) -> Result<FileRead, i32> {
    let mut size = 0;
    while size < memory.size {
        let (rest, offset) = (memory.rest(size), to_offset(size as u64)?);
        // SAFETY: the memory is the call's until it has ended (`Backing::begin`).
        let read = || unsafe { libc::pread(file, rest.address.cast(), rest.size, offset) };
        match again(|| check_size(read()))? {
            0 => break,
            moved => size += moved,
        }
    }
    Ok(FileRead { size, after: look_open(file)? })
}

/// The head of a `linux_dirent64`: inode number, offset of the next one, size, kind.
const DIRENT_HEAD_SIZE: usize = 19;

fn list(listing: &OpenHandle, from: ListPosition) -> CallResult {
    if listing.position.load(Ordering::Relaxed) != from.0 {
        // SAFETY: no pointers.
        if unsafe { libc::lseek(listing.raw(), from.0 as libc::off_t, libc::SEEK_SET) } < 0 {
            return Err(errno());
        }
        listing.position.store(from.0, Ordering::Relaxed);
    }
    // Of words, as the kernel aligns what it writes there.
    let mut words = vec![0u64; LIST_SIZE / 8];
    // SAFETY: writes at most so many bytes.
    let read = || unsafe { libc::syscall(libc::SYS_getdents64, listing.raw(), words.as_ptr(), LIST_SIZE) };
    let size = again(|| check_size(read() as isize))?;
    if size == 0 {
        // Not every file system says of a removed directory that it is one.
        check_living(listing.raw())?;
    }
    // SAFETY: the words are initialised, and bytes have no alignment.
    let bytes = unsafe { std::slice::from_raw_parts(words.as_mut_ptr().cast::<u8>(), size) };
    let (mut entries, mut position, mut at) = (Vec::new(), from.0, 0);
    while let Some(head) = bytes.get(at..at + DIRENT_HEAD_SIZE) {
        let word = |from: usize| head[from..from + 8].try_into().map_or(0, u64::from_ne_bytes);
        let record_size = usize::from(u16::from_ne_bytes([head[16], head[17]]));
        let record = bytes.get(at + DIRENT_HEAD_SIZE..at + record_size).ok_or(libc::EIO)?;
        let name = record.split(|byte| *byte == 0).next().unwrap_or_default();
        if !matches!(name, b"." | b"..") {
            let kind = match head[18] {
                libc::DT_REG => Some(FileKind::File),
                libc::DT_DIR => Some(FileKind::Directory),
                libc::DT_LNK => Some(FileKind::Symlink),
                libc::DT_UNKNOWN => None,
                _ => Some(FileKind::Other),
            };
            entries.push(ListEntry { name: name.into(), kind, inode: word(0) });
        }
        (position, at) = (word(8), at + record_size);
    }
    listing.position.store(position, Ordering::Relaxed);
    let next = (size > 0).then_some(ListPosition(position));
    Ok(BackingOutcome::Piece(ListPiece { entries, next }))
}

/// How the file system of the root is synced as a whole. That tells of an error once to each who has had it open since
/// before (Linux 5.8), so one descriptor stays open for it.
struct SharedSync {
    root: OwnedFd,
    device: u64,
    /// It has told of an error.
    has_failed: AtomicBool,
}

/// File systems of this machine, whose sync is all that a sync of each file is. Those of others may only have sent the
/// bytes by then.
const LOCAL_FILE_SYSTEMS: [(&str, u32); 5] =
    [("ext4", 0xEF53), ("xfs", 0x5846_5342), ("btrfs", 0x9123_683E), ("f2fs", 0xF2F5_2010), ("tmpfs", 0x0102_1994)];
/// The first kernel whose sync of a file system tells of errors.
const TELLING_KERNEL: (u32, u32) = (5, 8);

impl SharedSync {
    /// Nothing where the file system is not known for it, or can't be opened so.
    fn of(root: RawFd) -> Option<SharedSync> {
        let mut status = MaybeUninit::<libc::statfs>::zeroed();
        // SAFETY: writes the status, which is a valid value even where it stays zeroed.
        let status = unsafe {
            check(libc::fstatfs(root, status.as_mut_ptr())).ok()?;
            status.assume_init()
        };
        #[allow(clippy::unnecessary_cast)] // The C libraries give it different types.
        let magic = status.f_type as u32;
        let is_local = LOCAL_FILE_SYSTEMS.iter().any(|(_, known)| *known == magic);
        if !is_local || kernel_version()? < TELLING_KERNEL {
            return None;
        }
        let root = open_itself(root).ok()?;
        #[allow(clippy::unnecessary_cast)]
        let device = status_of(root.as_raw_fd()).ok()?.st_dev as u64;
        Some(SharedSync { root, device, has_failed: AtomicBool::new(false) })
    }

    /// Others may be mounted within.
    fn covers(&self, files: &[Arc<OpenHandle>]) -> bool {
        #[allow(clippy::unnecessary_cast)]
        let is_there = |status: libc::stat| status.st_dev as u64 == self.device;
        files.iter().all(|file| status_of(file.raw()).is_ok_and(is_there))
    }
}

/// The first two numbers of the kernel's version.
fn kernel_version() -> Option<(u32, u32)> {
    let mut names = MaybeUninit::<libc::utsname>::zeroed();
    // SAFETY: writes names that end with a NUL.
    let release = unsafe {
        check(libc::uname(names.as_mut_ptr())).ok()?;
        CStr::from_ptr((*names.as_ptr()).release.as_ptr()).to_str().ok()?.to_owned()
    };
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

fn sync(file: RawFd) -> CallResult {
    // SAFETY: no pointers.
    match check(unsafe { libc::fsync(file) }) {
        // A directory that was opened to do something in it.
        Err(libc::EBADF) => {
            let directory = open_itself(file)?;
            // SAFETY: no pointers.
            done(check(unsafe { libc::fsync(directory.as_raw_fd()) }))
        }
        // Which is never repeated after an error: only the first one tells what was lost.
        result => done(result),
    }
}

fn timespec(time: Option<i64>) -> libc::timespec {
    match time {
        Some(time) => libc::timespec {
            tv_sec: time.div_euclid(1_000_000_000) as libc::time_t,
            tv_nsec: time.rem_euclid(1_000_000_000) as libc::c_long,
        },
        None => libc::timespec { tv_sec: 0, tv_nsec: libc::UTIME_OMIT },
    }
}

fn rename((from, name): (RawFd, &CStr), (to, other): (RawFd, &CStr), mode: RenameMode) -> Result<libc::c_int, i32> {
    let flags = match mode {
        // Not every file system knows the call with flags.
        RenameMode::Replace => {
            // SAFETY: both names are C strings.
            return check(unsafe { libc::renameat(from, name.as_ptr(), to, other.as_ptr()) });
        }
        RenameMode::NoReplace => libc::RENAME_NOREPLACE,
        RenameMode::Exchange => libc::RENAME_EXCHANGE,
    };
    // Not every C library that there is has a function for it.
    // SAFETY: as above.
    check(unsafe { libc::syscall(libc::SYS_renameat2, from, name.as_ptr(), to, other.as_ptr(), flags) as libc::c_int })
}

fn set_attributes(directory: RawFd, name: &CStr, change: &AttributeChange) -> Result<libc::c_int, i32> {
    let flags = libc::AT_SYMLINK_NOFOLLOW;
    if let Some((owner, group)) = change.owner {
        // SAFETY: the name is a C string.
        check(unsafe { libc::fchownat(directory, name.as_ptr(), owner, group, flags) })?;
    }
    if let Some(mode) = change.mode {
        let item = ItemPath::new(directory, name)?;
        if kind_of(status_of(item.item.as_raw_fd())?.st_mode) == FileKind::Symlink {
            return Err(libc::EOPNOTSUPP);
        }
        // SAFETY: the path is a C string.
        check(unsafe { libc::chmod(item.path.as_ptr(), mode & 0o7777) })?;
    }
    if change.atime.is_some() || change.mtime.is_some() {
        let times = [timespec(change.atime), timespec(change.mtime)];
        // SAFETY: the name is a C string, and there are two times.
        check(unsafe { libc::utimensat(directory, name.as_ptr(), times.as_ptr(), flags) })?;
    }
    Ok(0)
}

fn set_open_attributes(file: RawFd, size: u64, change: &AttributeChange) -> CallResult {
    let status = status_of(file)?;
    let size = to_offset(size)?;
    if status.st_size != size {
        // SAFETY: no pointers.
        again(|| check(unsafe { libc::ftruncate(file, size) }))?;
    }
    let owner = change.owner.filter(|owner| *owner != (status.st_uid, status.st_gid));
    if let Some((owner, group)) = owner {
        // SAFETY: no pointers.
        again(|| check(unsafe { libc::fchown(file, owner, group) }))?;
    }
    // A change of the owner may take bits away.
    let mode = change.mode.filter(|mode| owner.is_some() || mode & 0o7777 != status.st_mode & 0o7777);
    if let Some(mode) = mode {
        // SAFETY: no pointers.
        again(|| check(unsafe { libc::fchmod(file, mode & 0o7777) }))?;
    }
    if change.atime.is_some() || change.mtime.is_some() {
        let times = [timespec(change.atime), timespec(change.mtime)];
        // SAFETY: there are two times.
        again(|| check(unsafe { libc::futimens(file, times.as_ptr()) }))?;
    }
    status_of(file).map(|status| told(attributes(&status, None)))
}

fn list_xattrs(directory: RawFd, name: &CStr) -> CallResult {
    let item = ItemPath::new(directory, name)?;
    let mut list = vec![0u8; XATTR_SIZE_MAX];
    // SAFETY: the path is a C string; writes at most so many bytes.
    let size = check_size(unsafe { libc::listxattr(item.path.as_ptr(), list.as_mut_ptr().cast(), list.len()) })?;
    let keys = list[..size].split(|byte| *byte == 0).filter(|key| !key.is_empty()).map(Box::from).collect();
    Ok(BackingOutcome::Keys(keys))
}

fn get_xattr(path: &CStr, key: &CStr) -> Result<Vec<u8>, i32> {
    let mut value = vec![0u8; XATTR_SIZE_MAX];
    let (address, size) = (value.as_mut_ptr().cast(), value.len());
    // SAFETY: path and key are C strings; writes at most so many bytes.
    let size = check_size(unsafe { libc::getxattr(path.as_ptr(), key.as_ptr(), address, size) })?;
    value.truncate(size);
    Ok(value)
}

fn space(file: RawFd) -> CallResult {
    let mut status = MaybeUninit::<libc::statvfs>::zeroed();
    // SAFETY: writes the status, which is a valid value even where it stays zeroed.
    let status = unsafe {
        check(libc::fstatvfs(file, status.as_mut_ptr()))?;
        status.assume_init()
    };
    #[allow(clippy::unnecessary_cast)] // The C libraries give it different types.
    let file_system = status.f_fsid as u64;
    Ok(BackingOutcome::Space(FreeSpace {
        file_system,
        size: status.f_blocks.saturating_mul(status.f_frsize),
        available: status.f_bavail.saturating_mul(status.f_frsize),
        file_count: status.f_files,
        file_count_available: status.f_favail,
    }))
}

fn preferred_size(file: RawFd) -> CallResult {
    let status = status_of(file)?;
    let path = CString::new(format!("/proc/self/fd/{file}")).map_err(|_| libc::EINVAL)?;
    // What has no such attribute is of another file system, or has no layout yet.
    let stripe = get_xattr(&path, LAYOUT_KEY).ok().and_then(|layout| stripe_size(&layout));
    #[allow(clippy::unnecessary_cast)]
    Ok(BackingOutcome::Size(stripe.unwrap_or(status.st_blksize as u64)))
}

fn seek(file: RawFd, offset: u64, kind: SeekKind) -> CallResult {
    let whence = match kind {
        SeekKind::Data => libc::SEEK_DATA,
        SeekKind::Hole => libc::SEEK_HOLE,
    };
    // SAFETY: no pointers. Where the descriptor stands is nothing to anybody.
    match unsafe { libc::lseek(file, to_offset(offset)?, whence) } {
        at if at >= 0 => Ok(BackingOutcome::Offset(Some(at as u64))),
        _ => match errno() {
            libc::ENXIO => Ok(BackingOutcome::Offset(None)),
            error => Err(error),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: where the kernel has no openat2, the walk refuses what that refuses. Method: both, on a tree with links.
    #[test]
    fn both_ways_refuse_the_same() {
        let directory = crate::backing::tests::TestDirectory::new("walk");
        let at = |name: &str| directory.path.join(name);
        std::fs::create_dir_all(at("a/b")).unwrap();
        std::fs::write(at("a/b/file"), "x").unwrap();
        std::os::unix::fs::symlink("/", at("a/out")).unwrap();
        std::os::unix::fs::symlink("b", at("a/within")).unwrap();
        let root = open_root(&CString::new(directory.path.to_str().unwrap()).unwrap()).unwrap();
        let flags = libc::O_RDONLY | libc::O_NOFOLLOW | libc::O_CLOEXEC;
        let followed = ["a", "a/b", "a/b/file"];
        let refused = ["a/out", "a/out/etc", "a/within", "a/within/file", "none", "a/b/file/x"];
        for path in followed.into_iter().chain(refused) {
            let name = CString::new(path).unwrap();
            for way in [resolve, walk] {
                let result = way(root.as_raw_fd(), &name, flags, 0);
                assert_eq!(result.is_ok(), followed.contains(&path), "{path}: {result:?}");
            }
        }
    }
}
