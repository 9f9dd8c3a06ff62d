//! The two sides of a copy, with one face: this machine's file system and the cluster. Reasons of failures name the
//! path.
//!
//! Calls to this machine's file system are done at once: between them the loop serves what is under way with the
//! cluster.

use super::facts::{EntryKind, Facts};
use crate::failure::{about_path, io_words, show};
use crate::paths::{join, quoted};
use client::{AttributeChanges, DirectoryStream, FileId, FileSystem, Kind, OpenHow, Status, Timestamp};
use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, FileTimes, OpenOptions, Permissions};
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Entries of one page of a listing of this machine.
const PAGE_COUNT: usize = 256;
/// Mode of files and directories until they are complete.
const FILE_MODE_MEANWHILE: u32 = 0o600;
const DIRECTORY_MODE_MEANWHILE: u32 = 0o700;

/// The outcome of a step; the reason is for people.
pub type CopyResult<T = ()> = Result<T, String>;

/// A side.
#[derive(Clone)]
pub enum Side {
    Local,
    Cluster(FileSystem),
}

fn local(path: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(path))
}

fn about_local(path: &[u8], error: &io::Error) -> String {
    format!("{}: {}", show(path), io_words(error))
}

/// The same result with a reason that names the path.
trait Explained<T> {
    fn explain(self, path: &[u8]) -> CopyResult<T>;
}

impl<T> Explained<T> for io::Result<T> {
    fn explain(self, path: &[u8]) -> CopyResult<T> {
        self.map_err(|error| about_local(path, &error))
    }
}

impl<T> Explained<T> for client::Result<T> {
    fn explain(self, path: &[u8]) -> CopyResult<T> {
        self.map_err(|error| format!(":{}", about_path(path, &error)))
    }
}

impl Side {
    /// The server that is asked first for the bytes of a file here; 0 on this machine.
    pub fn home_of(&self, facts: &Facts) -> usize {
        match (self, facts.inode) {
            (Side::Cluster(files), (_, _, id)) => files.cluster().home_of(FileId(id)).unwrap_or(0) as usize,
            (Side::Local, _) => 0,
        }
    }

    /// Facts of an entry, or of what it leads to with `follow`.
    pub async fn facts(&self, path: &[u8], follow: bool) -> CopyResult<Facts> {
        match self {
            Side::Local if follow => fs::metadata(local(path)).explain(path).map(|found| Facts::of_metadata(&found)),
            Side::Local => fs::symlink_metadata(local(path)).explain(path).map(|found| Facts::of_metadata(&found)),
            Side::Cluster(files) if follow => {
                files.stat(path).await.explain(path).map(|found| Facts::of_attributes(&found))
            }
            Side::Cluster(files) => files.lstat(path).await.explain(path).map(|found| Facts::of_attributes(&found)),
        }
    }

    /// The same; `None` where there is nothing.
    pub async fn facts_if_there(&self, path: &[u8], follow: bool) -> CopyResult<Option<Facts>> {
        match self {
            Side::Local => {
                let found = if follow { fs::metadata(local(path)) } else { fs::symlink_metadata(local(path)) };
                match found {
                    Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
                    found => found.explain(path).map(|found| Some(Facts::of_metadata(&found))),
                }
            }
            Side::Cluster(files) => {
                let found = if follow { files.stat(path).await } else { files.lstat(path).await };
                match found {
                    Err(error) if matches!(error.status, Status::NotFound | Status::NotDirectory) => Ok(None),
                    found => found.explain(path).map(|found| Some(Facts::of_attributes(&found))),
                }
            }
        }
    }

    /// The same for what is to be copied: the times of a directory are those that all servers tell.
    pub async fn source_facts(&self, path: &[u8], follow: bool) -> CopyResult<Facts> {
        match self {
            Side::Local => self.facts(path, follow).await,
            Side::Cluster(files) => {
                files.stat_whole(path, follow).await.explain(path).map(|found| Facts::of_attributes(&found))
            }
        }
    }

    /// Which file of the cluster a path names, or leads to with `follow`; `None` for local paths, and where there is
    /// nothing.
    pub async fn identity(&self, path: &[u8], follow: bool) -> CopyResult<Option<FileId>> {
        let found = match self {
            Side::Local => return Ok(None),
            Side::Cluster(files) if follow => files.stat(path).await,
            Side::Cluster(files) => files.lstat(path).await,
        };
        match found {
            Err(error) if matches!(error.status, Status::NotFound | Status::NotDirectory | Status::SymlinkLoop) => {
                Ok(None)
            }
            found => found.explain(path).map(|found| Some(found.id)),
        }
    }

    /// Whether a path, or where it will be once it is made, is a directory of the cluster or lies beneath it.
    ///
    /// The real directories above the path decide, not how it is spelled.
    pub async fn lies_within(&self, path: &[u8], directory: FileId) -> CopyResult<bool> {
        let mut here = path.to_vec();
        let mut found = self.identity(&here, true).await?;
        while found.is_none() && here != b"/" {
            // What does not exist yet will lie in what does.
            here = before_last(&here).to_vec();
            found = self.identity(&here, true).await?;
        }
        while let Some(id) = found.filter(|id| *id != directory && *id != FileId::ROOT) {
            here = join(&here, b"..");
            found = self.identity(&here, true).await?.filter(|above| *above != id);
        }
        Ok(found == Some(directory))
    }

    /// Whether a path names a symbolic link.
    pub async fn is_symlink(&self, path: &[u8]) -> bool {
        self.facts(path, false).await.is_ok_and(|facts| facts.kind == EntryKind::Symlink)
    }

    /// Whether there is a directory at a path, links followed.
    pub async fn is_directory(&self, path: &[u8]) -> bool {
        self.facts(path, true).await.is_ok_and(|facts| facts.kind == EntryKind::Directory)
    }

    /// Starts to list a directory.
    pub async fn list(&self, path: &[u8]) -> CopyResult<DirectoryListing> {
        let path = path.to_vec();
        match self {
            Side::Local => {
                let entries = fs::read_dir(local(&path)).explain(&path)?;
                Ok(DirectoryListing::Local { entries, path })
            }
            Side::Cluster(files) => {
                let stream = files.open_directory(&path, true).await.explain(&path)?;
                Ok(DirectoryListing::Cluster { files: files.clone(), stream, path })
            }
        }
    }

    /// Makes a directory that only we can use yet; one that exists is taken. Whether it was made.
    pub async fn make_directory(&self, path: &[u8]) -> CopyResult<bool> {
        let exists = match self {
            Side::Local => match DirBuilder::new().mode(DIRECTORY_MODE_MEANWHILE).create(local(path)) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => true,
                made => return made.map(|()| true).explain(path),
            },
            Side::Cluster(files) => match files.mkdir(path, DIRECTORY_MODE_MEANWHILE).await {
                Err(error) if error.status == Status::Exists => true,
                made => return made.map(|_| true).explain(path),
            },
        };
        match exists && self.is_directory(path).await {
            true => Ok(false),
            false => Err(format!("{}: exists and is not a directory", self.show(path))),
        }
    }

    /// Copies a symbolic link; a file or link that is in the way is replaced, or left with `replace` not set. Whether
    /// the link was made.
    pub async fn make_symlink(&self, target: &[u8], path: &[u8], facts: &Facts, replace: bool) -> CopyResult<bool> {
        let made = match self {
            Side::Local => {
                let make = || std::os::unix::fs::symlink(OsStr::from_bytes(target), local(path));
                make_local(make, path, replace).explain(path)?
            }
            Side::Cluster(files) => {
                let make = async || files.symlink(target, path).await.map(drop);
                make_inside(files, make, path, replace).await.explain(path)?
            }
        };
        if made {
            self.set_facts(path, facts).await?;
        }
        Ok(made)
    }

    /// Makes a pipe, socket or device; what is in the way as with `make_symlink`. Whether it was made.
    pub async fn make_special(&self, kind: Kind, path: &[u8], facts: &Facts, replace: bool) -> CopyResult<bool> {
        let made = match self {
            Side::Local => {
                let mode = type_bits(kind) | FILE_MODE_MEANWHILE;
                let make = || reactor::process::make_node(local(path), mode, facts.device);
                make_local(make, path, replace).explain(path)?
            }
            Side::Cluster(files) => {
                let make = async || files.make_node(path, kind, FILE_MODE_MEANWHILE, facts.device).await.map(drop);
                make_inside(files, make, path, replace).await.explain(path)?
            }
        };
        if made {
            self.set_facts(path, facts).await?;
        }
        Ok(made)
    }

    /// Gives a file of this side one more name; what is in the way as with `make_symlink`. Whether the name is there.
    pub async fn make_name(&self, file: &[u8], path: &[u8], replace: bool) -> CopyResult<bool> {
        match self {
            Side::Local => make_local(|| fs::hard_link(local(file), local(path)), path, replace).explain(path),
            Side::Cluster(files) => {
                make_inside(files, async || files.link(file, path).await, path, replace).await.explain(path)
            }
        }
    }

    /// Removes a file that was begun here. What is no plain file, such as a device, stays.
    pub async fn remove_file(&self, path: &[u8]) -> CopyResult {
        match self {
            Side::Local => match fs::symlink_metadata(local(path)) {
                Ok(facts) if facts.is_file() => fs::remove_file(local(path)).explain(path),
                _ => Ok(()),
            },
            Side::Cluster(files) => match files.lstat(path).await {
                Ok(attributes) if attributes.kind == Kind::File => files.unlink(path).await.explain(path),
                _ => Ok(()),
            },
        }
    }

    /// The target of a symbolic link.
    pub async fn read_symlink(&self, path: &[u8]) -> CopyResult<Vec<u8>> {
        match self {
            Side::Local => fs::read_link(local(path)).explain(path).map(|target| target.into_os_string().into_vec()),
            Side::Cluster(files) => files.readlink(path).await.explain(path),
        }
    }

    /// The names of an entry's extended attributes that a copy keeps: those of users, and for the superuser those that
    /// only it sees.
    pub async fn extended_names(&self, path: &[u8]) -> CopyResult<Vec<Vec<u8>>> {
        let names = match self {
            Side::Local => match reactor::extended::names(local(path)) {
                Err(error) if error.kind() == ErrorKind::Unsupported => Vec::new(),
                names => names.explain(path)?,
            },
            Side::Cluster(files) => {
                let list = files.list_extended(path, true).await.explain(path)?;
                list.split(|byte| *byte == 0).filter(|name| !name.is_empty()).map(<[u8]>::to_vec).collect()
            }
        };
        let is_root = reactor::process::user() == 0;
        let kept = |name: &Vec<u8>| name.starts_with(b"user.") || (is_root && name.starts_with(b"trusted."));
        Ok(names.into_iter().filter(kept).collect())
    }

    /// An extended attribute; `None` when it is gone meanwhile.
    pub async fn extended(&self, path: &[u8], name: &[u8]) -> CopyResult<Option<Vec<u8>>> {
        match self {
            Side::Local => match reactor::extended::value(local(path), name) {
                Err(error) if error.raw_os_error() == Some(Status::NoAttribute.errno()) => Ok(None),
                value => value.map(Some).explain(path),
            },
            Side::Cluster(files) => match files.get_extended(path, true, name).await {
                Err(error) if error.status == Status::NoAttribute => Ok(None),
                value => value.map(Some).explain(path),
            },
        }
    }

    /// Gives an extended attribute to an entry. A file system of this machine that has none is a failure if they are
    /// `required`.
    pub async fn set_extended(&self, path: &[u8], name: &[u8], value: &[u8], required: bool) -> CopyResult {
        let set = match self {
            Side::Local => match reactor::extended::set(local(path), name, value) {
                Err(error) if error.kind() == ErrorKind::Unsupported && !required => Ok(()),
                set => set.explain(path),
            },
            Side::Cluster(files) => files.set_extended(path, true, name, value, 0).await.explain(path),
        };
        set.map_err(|reason| format!("{reason} (attribute {})", String::from_utf8_lossy(name)))
    }

    /// Gives owner, mode and times to a directory or symbolic link.
    pub async fn set_facts(&self, path: &[u8], facts: &Facts) -> CopyResult {
        match self {
            Side::Local => set_local_facts(path, facts).explain(path),
            Side::Cluster(files) => files.set_attributes(path, false, &facts.changes()).await.map(drop).explain(path),
        }
    }

    /// Gives owner and mode to a directory.
    pub async fn set_rights(&self, path: &[u8], facts: &Facts) -> CopyResult {
        match self {
            Side::Local => set_local_rights(path, facts).explain(path),
            Side::Cluster(files) => {
                let changes = AttributeChanges { atime: Timestamp::Keep, mtime: Timestamp::Keep, ..facts.changes() };
                files.set_attributes(path, false, &changes).await.map(drop).explain(path)
            }
        }
    }

    /// A path as it is written on the command line, in quotes for a shell.
    pub fn quoted(&self, path: &[u8]) -> Vec<u8> {
        match self {
            Side::Local => quoted(path),
            Side::Cluster(_) => quoted(&[b":", path].concat()),
        }
    }

    /// A path as it is written on the command line.
    pub fn show(&self, path: &[u8]) -> String {
        match self {
            Side::Local => show(path),
            Side::Cluster(_) => format!(":{}", show(path)),
        }
    }
}

/// What mknod(2) calls a kind.
fn type_bits(kind: Kind) -> u32 {
    match kind {
        Kind::Fifo => libc::S_IFIFO,
        Kind::Socket => libc::S_IFSOCK,
        Kind::BlockDevice => libc::S_IFBLK,
        _ => libc::S_IFCHR,
    }
}

/// Makes a name on this machine; one that is in the way is removed first, or left.
fn make_local(make: impl Fn() -> io::Result<()>, path: &[u8], replace: bool) -> io::Result<bool> {
    match make() {
        Err(error) if error.kind() == ErrorKind::AlreadyExists && !replace => return Ok(false),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => fs::remove_file(local(path)).and_then(|()| make())?,
        made => made?,
    }
    Ok(true)
}

/// The same in the cluster.
async fn make_inside(
    files: &FileSystem,
    make: impl AsyncFn() -> client::Result<()>,
    path: &[u8],
    replace: bool,
) -> client::Result<bool> {
    match make().await {
        Err(error) if error.status == Status::Exists && !replace => return Ok(false),
        Err(error) if error.status == Status::Exists => {
            files.unlink(path).await?;
            make().await?;
        }
        made => made?,
    }
    Ok(true)
}

fn set_local_facts(path: &[u8], facts: &Facts) -> io::Result<()> {
    reactor::process::set_times(local(path), facts.atime, facts.mtime)?;
    set_local_rights(path, facts)
}

fn set_local_rights(path: &[u8], facts: &Facts) -> io::Result<()> {
    let (uid, gid) = facts.kept_owner();
    if gid.is_some() {
        std::os::unix::fs::lchown(local(path), uid, gid)?;
    }
    match facts.kind {
        EntryKind::Symlink => Ok(()),
        _ => fs::set_permissions(local(path), Permissions::from_mode(facts.kept_mode())),
    }
}

/// A path inside the cluster without its last component.
fn before_last(path: &[u8]) -> &[u8] {
    let trimmed = &path[..path.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1)];
    match trimmed.iter().rposition(|byte| *byte == b'/') {
        None | Some(0) => b"/",
        Some(slash) => &trimmed[..slash],
    }
}

/// A directory that is being listed, page by page.
pub enum DirectoryListing {
    Local { entries: fs::ReadDir, path: Vec<u8> },
    Cluster { files: FileSystem, stream: DirectoryStream, path: Vec<u8> },
}

/// Some names of a directory.
#[derive(Default)]
pub struct ListedPage {
    pub entries: Vec<(Vec<u8>, Facts)>,
    /// Of names that can't be looked at, what is to be said.
    pub failures: Vec<String>,
}

impl DirectoryListing {
    /// The next names with their facts; `None` at the end. Entries that are gone meanwhile are left out.
    pub async fn next(&mut self) -> CopyResult<Option<ListedPage>> {
        let mut page = ListedPage::default();
        match self {
            DirectoryListing::Local { entries, path } => {
                let mut is_at_end = true;
                for entry in entries.by_ref().take(PAGE_COUNT) {
                    is_at_end = false;
                    let entry = entry.explain(path)?;
                    let name = entry.file_name().into_vec();
                    match entry.metadata() {
                        Ok(metadata) => page.entries.push((name, Facts::of_metadata(&metadata))),
                        Err(error) if error.kind() == ErrorKind::NotFound => {}
                        Err(error) => page.failures.push(about_local(&join(path, &name), &error)),
                    }
                }
                Ok((!is_at_end).then_some(page))
            }
            DirectoryListing::Cluster { stream, .. } if stream.is_at_end() => Ok(None),
            DirectoryListing::Cluster { files, stream, path } => {
                let mut entries = files.next_page(stream).await.explain(path)?;
                let errors = files.complete_listed(path, &mut entries).await.explain(path)?;
                page.failures.extend(errors.into_iter().map(|(path, error)| about_path(&path, &error)));
                let known = entries.into_iter().filter_map(|entry| {
                    let facts = Facts::of_attributes(entry.attributes.as_ref()?);
                    Some((entry.name, facts))
                });
                page.entries.extend(known);
                Ok(Some(page))
            }
        }
    }
}

/// A file that is read.
pub struct SourceFile {
    path: Vec<u8>,
    handle: SourceHandle,
}

enum SourceHandle {
    Local(File),
    Cluster(FileSystem, client::File),
}

impl Drop for SourceFile {
    fn drop(&mut self) {
        if let SourceHandle::Cluster(files, file) = &self.handle {
            files.close_later(file);
        }
    }
}

impl SourceFile {
    pub async fn open(place: &Side, path: &[u8]) -> CopyResult<SourceFile> {
        let handle = match place {
            Side::Local => SourceHandle::Local(File::open(local(path)).explain(path)?),
            Side::Cluster(files) => {
                let file = files.open(path, &OpenHow::reading()).await.explain(path)?;
                SourceHandle::Cluster(files.clone(), file)
            }
        };
        Ok(SourceFile { path: path.to_vec(), handle })
    }

    /// The first byte at or after an offset that is not in a hole: nothing where only a hole follows, or the end.
    pub async fn next_data(&self, offset: u64) -> CopyResult<Option<u64>> {
        match &self.handle {
            SourceHandle::Local(file) => next_data(file, offset).explain(&self.path),
            SourceHandle::Cluster(files, file) => match files.seek_data(file, offset).await {
                Err(error) if error.status == Status::NoData => Ok(None),
                found => found.map(Some).explain(&self.path),
            },
        }
    }

    /// Fills the buffer from an offset on; less only at the end of the file.
    pub async fn read_at(&self, buffer: &mut [u8], offset: u64) -> CopyResult<usize> {
        match &self.handle {
            SourceHandle::Local(file) => read_local(file, buffer, offset).explain(&self.path),
            SourceHandle::Cluster(files, file) => files.read_at(file, buffer, offset).await.explain(&self.path),
        }
    }
}

fn next_data(file: &File, offset: u64) -> io::Result<Option<u64>> {
    let to = libc::off_t::try_from(offset).map_err(|_| ErrorKind::InvalidInput)?;
    // SAFETY: the file is open; its position, which this moves, is used by nobody.
    let found = unsafe { libc::lseek(file.as_raw_fd(), to, libc::SEEK_DATA) };
    if found >= 0 {
        return Ok(Some(found as u64));
    }
    match io::Error::last_os_error() {
        error if error.raw_os_error() == Some(libc::ENXIO) => Ok(None),
        // Where nothing tells of holes there are none.
        error if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ESPIPE)) => Ok(Some(offset)),
        error => Err(error),
    }
}

fn read_local(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read_at(&mut buffer[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// A file that is written.
pub struct Target {
    path: Vec<u8>,
    handle: TargetHandle,
}

enum TargetHandle {
    Local(File),
    Cluster(FileSystem, client::File),
}

impl Target {
    /// Makes a file. One that exists is emptied, or, with `replace` not set, left: `None`. `chunk_size` 0 leaves it to
    /// the cluster.
    pub async fn create(place: &Side, path: &[u8], chunk_size: u32, replace: bool) -> CopyResult<Option<Target>> {
        let handle = match place {
            Side::Local => {
                let mut options = OpenOptions::new();
                options.write(true).create(true).truncate(replace).create_new(!replace).mode(FILE_MODE_MEANWHILE);
                match options.open(local(path)) {
                    Err(error) if error.kind() == ErrorKind::AlreadyExists && !replace => return Ok(None),
                    opened => TargetHandle::Local(opened.explain(path)?),
                }
            }
            Side::Cluster(files) => {
                let how = OpenHow { chunk_size, exclusive: !replace, ..OpenHow::creating(FILE_MODE_MEANWHILE) };
                match files.open(path, &how).await {
                    Err(error) if error.status == Status::Exists && !replace => return Ok(None),
                    opened => TargetHandle::Cluster(files.clone(), opened.explain(path)?),
                }
            }
        };
        Ok(Some(Target { path: path.to_vec(), handle }))
    }

    pub async fn write_at(&self, bytes: &[u8], offset: u64) -> CopyResult {
        match &self.handle {
            TargetHandle::Local(file) => file.write_all_at(bytes, offset).explain(&self.path),
            TargetHandle::Cluster(files, file) => {
                let mut done = 0;
                while done < bytes.len() {
                    done += files.write_at(file, &bytes[done..], offset + done as u64).await.explain(&self.path)?;
                }
                Ok(())
            }
        }
    }

    /// Copies a range within the cluster, by its servers, and returns how many bytes: fewer than asked at the end of
    /// the source. Nothing when the sides are not both there.
    pub async fn copy_from(&self, source: &SourceFile, offset: u64, size: u64) -> Option<CopyResult<u64>> {
        let (SourceHandle::Cluster(files, from), TargetHandle::Cluster(_, to)) = (&source.handle, &self.handle) else {
            return None;
        };
        let mut done = 0;
        while done < size {
            match files.copy_range(from, offset + done, to, offset + done, size - done).await {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(error) => return Some(Err(error).explain(&self.path)),
            }
        }
        Some(Ok(done))
    }

    /// Sets the size, for a file that ends in a hole.
    pub async fn set_size(&self, size: u64) -> CopyResult {
        match &self.handle {
            TargetHandle::Local(file) => file.set_len(size).explain(&self.path),
            TargetHandle::Cluster(files, file) => files.truncate_file(file, size).await.map(drop).explain(&self.path),
        }
    }

    /// Ends the use of a file that could not be completed, so that its size is settled.
    pub async fn close(&self) {
        if let TargetHandle::Cluster(files, file) = &self.handle {
            files.close(file).await;
        }
    }

    /// Gives the file its owner, mode and times: it is complete.
    pub async fn finish(&self, facts: &Facts) -> CopyResult {
        match &self.handle {
            TargetHandle::Local(file) => finish_local(file, facts).explain(&self.path),
            TargetHandle::Cluster(files, file) => {
                let set = files.set_file_attributes(file, &facts.changes()).await;
                files.close(file).await;
                set.map(drop).explain(&self.path)
            }
        }
    }
}

fn finish_local(file: &File, facts: &Facts) -> io::Result<()> {
    let (uid, gid) = facts.kept_owner();
    if gid.is_some() {
        std::os::unix::fs::fchown(file, uid, gid)?;
    }
    file.set_permissions(Permissions::from_mode(facts.kept_mode()))?;
    file.set_times(FileTimes::new().set_accessed(system_time(facts.atime)).set_modified(system_time(facts.mtime)))
}

fn system_time(nanoseconds: i64) -> SystemTime {
    let distance = Duration::from_nanos(nanoseconds.unsigned_abs());
    if nanoseconds < 0 { UNIX_EPOCH - distance } else { UNIX_EPOCH + distance }
}
