//! What is done in a directory of a backing tree. Names are one component each; links are not followed.

use super::calls::{CallEnded, CallHeld, CallRequest, HandleGuard};
use super::name::{EntryName, RelativePath, TreePath, XattrKey, joined};
use super::operation::*;
use super::{BackingError, BackingFile, BackingTree, expect_outcome, refusal};
use std::ffi::CString;
use std::rc::Rc;

/// An open directory. Clones are the same one. It is the directory that was opened, wherever it is moved to.
#[derive(Clone)]
pub struct BackingDirectory {
    tree: BackingTree,
    handle: Rc<HandleGuard>,
}

/// A directory whose names are being listed. Dropping it closes it.
pub struct BackingListing {
    tree: BackingTree,
    handle: Rc<HandleGuard>,
}

/// The name of an open that has found another directory.
pub(super) const OPEN_KNOWN: &str = "open again";

impl BackingListing {
    /// The next names from a position on; the default one is the beginning. What is made, removed or renamed meanwhile
    /// may be told or not; everything else is told once. Errors: whatever the file system says.
    pub async fn list(&self, from: ListPosition) -> Result<ListPiece, BackingError> {
        let operation = BackingOperation::List { listing: self.handle.id, from };
        let outcome = self.tree.ask(&self.handle, self.handle.path.clone(), operation).await?;
        Ok(expect_outcome!(outcome, Piece))
    }
}

/// What changes a name says so to the handles.
fn changed(path: &TreePath) -> [Option<TreePath>; 2] {
    [Some(path.clone()), None]
}

impl BackingDirectory {
    pub(super) fn new(tree: BackingTree, handle: Rc<HandleGuard>) -> BackingDirectory {
        BackingDirectory { tree, handle }
    }

    /// Where it was when it was opened, from the root.
    pub fn path(&self) -> &[u8] {
        &self.handle.path
    }

    /// The number of its inode.
    pub fn inode(&self) -> u64 {
        self.handle.inode
    }

    fn path_of(&self, name: &[u8]) -> TreePath {
        joined(&self.handle.path, name)
    }

    fn name(&self, word: &'static str, name: &[u8]) -> Result<EntryName, BackingError> {
        EntryName::new(name).map_err(refusal(word, &self.handle.path, name))
    }

    fn key(&self, word: &'static str, name: &[u8], key: &[u8]) -> Result<XattrKey, BackingError> {
        XattrKey::new(key).map_err(refusal(word, &self.handle.path, name))
    }

    /// A call about one name, which changes nothing that handles are known by.
    async fn ask(&self, name: &[u8], operation: BackingOperation) -> Result<BackingOutcome, BackingError> {
        self.tree.ask(&self.handle, self.path_of(name), operation).await
    }

    /// A call by which a name may stand for something else.
    async fn change(&self, name: &[u8], operation: BackingOperation) -> Result<(), BackingError> {
        let path = self.path_of(name);
        let held = CallHeld { handles: [Some(self.handle.clone()), None], ..CallHeld::default() };
        let request = CallRequest { operation, changes: changed(&path), path, held };
        self.tree.core().call(request).await.result.map(drop)
    }

    async fn open(&self, path: &[u8], open_as: OpenAs) -> Result<Rc<HandleGuard>, BackingError> {
        let relative = RelativePath::new(path).map_err(refusal("open", &self.handle.path, path))?;
        let parent = self.handle.id;
        let operation = |handle| BackingOperation::Open { handle, parent, path: relative, open_as };
        self.tree.core().open(self.path_of(path), open_as, Some(self.handle.clone()), operation).await
    }

    /// Opens a directory below, by one name or several. One that was opened in the last second may be given once more.
    /// Errors: `EINVAL` for a path that is absolute, has `..`, `.`, nothing or a NUL in it; `ELOOP` or `ENOTDIR` where
    /// a link is on the way; `ENOENT`, `ENOTDIR`, `EACCES`, `ESTALE`.
    pub async fn open_directory(&self, path: impl AsRef<[u8]>) -> Result<BackingDirectory, BackingError> {
        let handle = self.open(path.as_ref(), OpenAs::Directory).await?;
        Ok(BackingDirectory { tree: self.tree.clone(), handle })
    }

    /// Opens the directory below that had this inode when it was met; the empty path is this one. Errors: as ever, and
    /// `ESTALE` if another one is there now.
    pub async fn open_known(&self, path: impl AsRef<[u8]>, inode: u64) -> Result<BackingDirectory, BackingError> {
        let path = path.as_ref();
        // One that is open still may be that of before.
        for _ in 0..2 {
            let directory = if path.is_empty() { self.clone() } else { self.open_directory(path).await? };
            if directory.inode() == inode {
                return Ok(directory);
            }
            self.tree.core().set_stale(&directory.handle);
        }
        Err(refusal(OPEN_KNOWN, &self.handle.path, path)(libc::ESTALE))
    }

    /// Opens a regular file below, to read. Errors: as of a directory, and `EISDIR`; `EINVAL` for what is neither.
    pub async fn open_file(&self, path: impl AsRef<[u8]>) -> Result<BackingFile, BackingError> {
        let handle = self.open(path.as_ref(), OpenAs::Read).await?;
        Ok(BackingFile::new(self.tree.clone(), handle))
    }

    /// Opens a regular file below, to read and write. Errors: as for reading, `EROFS`, `ETXTBSY`.
    pub async fn open_to_write(&self, path: impl AsRef<[u8]>) -> Result<BackingFile, BackingError> {
        let handle = self.open(path.as_ref(), OpenAs::Write).await?;
        Ok(BackingFile::new(self.tree.clone(), handle))
    }

    /// Makes a regular file and opens it to read and write. The process's umask counts for its mode. Errors: `EEXIST`,
    /// `ENOSPC`, `EDQUOT`, `EROFS`.
    pub async fn make_file(&self, name: impl AsRef<[u8]>, mode: u32) -> Result<BackingFile, BackingError> {
        self.name("open", name.as_ref())?;
        let handle = self.open(name.as_ref(), OpenAs::Create(mode & 0o7777)).await?;
        Ok(BackingFile::new(self.tree.clone(), handle))
    }

    /// Opens this directory for its names. Errors: `EACCES`, `ESTALE`.
    pub async fn open_listing(&self) -> Result<BackingListing, BackingError> {
        let directory = self.handle.id;
        let operation = |handle| BackingOperation::OpenListing { handle, directory };
        let core = self.tree.core();
        let handle = core.open(self.handle.path.clone(), OpenAs::Listing, Some(self.handle.clone()), operation).await?;
        Ok(BackingListing { tree: self.tree.clone(), handle })
    }

    /// Attributes of this directory.
    pub async fn look_open(&self) -> Result<BackingAttributes, BackingError> {
        let operation = BackingOperation::LookOpen { handle: self.handle.id };
        let outcome = self.tree.ask(&self.handle, self.handle.path.clone(), operation).await?;
        Ok(*expect_outcome!(outcome, Attributes))
    }

    /// What a name stands for. Errors: `ENOENT` where there is none, `ESTALE` where this directory was removed.
    pub async fn look(&self, name: impl AsRef<[u8]>) -> Result<BackingAttributes, BackingError> {
        let (bytes, directory) = (name.as_ref(), self.handle.id);
        let name = self.name("look", bytes)?;
        let outcome = self.ask(bytes, BackingOperation::Look { directory, name }).await?;
        Ok(*expect_outcome!(outcome, Attributes))
    }

    /// What each of several names stands for, by one call: the results are in the order of the names. Errors of a name
    /// are those of [`BackingDirectory::look`]; `EINVAL` if one of them is none.
    pub async fn look_all(
        &self,
        names: &[impl AsRef<[u8]>],
    ) -> Result<Vec<Result<BackingAttributes, BackingError>>, BackingError> {
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let directory = self.handle.id;
        let checked: Result<_, _> = names.iter().map(|name| self.name("look", name.as_ref())).collect();
        let operation = BackingOperation::LookAll { directory, names: checked? };
        let outcome = self.tree.ask(&self.handle, self.handle.path.clone(), operation).await?;
        let told = names.iter().zip(expect_outcome!(outcome, Looked));
        let told = told.map(|(name, found)| found.map_err(refusal("look", &self.handle.path, name.as_ref())));
        Ok(told.collect())
    }

    /// Reads the beginnings of regular files below, each into all of a memory, by one call that opens each, reads,
    /// looks at it and closes it; and gives the memories back. Together they have at most [`CALL_SIZE_MAX`] bytes.
    /// A future that is dropped leaves the memories to the call. Errors: as of opening and reading each; as of the call
    /// itself; `EINVAL` if one of the paths is none.
    pub async fn read_files(
        &self,
        paths: &[impl AsRef<[u8]>],
        mut memories: Vec<CallMemory>,
    ) -> (Result<Vec<Result<FileRead, BackingError>>, BackingError>, Vec<CallMemory>) {
        assert_eq!(paths.len(), memories.len(), "each file has its memory");
        let places: Vec<_> = memories.iter_mut().map(CallMemory::place).collect();
        let size: usize = places.iter().map(|place| place.size).sum();
        assert!((1..=CALL_SIZE_MAX).contains(&size), "a call moves 1 byte to 256 KiB");
        let mut files = Vec::with_capacity(paths.len());
        for (path, place) in paths.iter().zip(places) {
            match RelativePath::new(path.as_ref()) {
                Ok(relative) => files.push((relative, place)),
                Err(errno) => return (Err(refusal("read", &self.handle.path, path.as_ref())(errno)), memories),
            }
        }
        let operation = BackingOperation::ReadFiles { directory: self.handle.id, files };
        let handles = [Some(self.handle.clone()), None];
        let held = CallHeld { handles, memories, ..CallHeld::default() };
        let path = self.path_of(paths[0].as_ref());
        let request = CallRequest { operation, path, held, changes: Default::default() };
        let CallEnded { result, held } = self.tree.core().call(request).await;
        let refused = |path: &[u8], errno| refusal("read", &self.handle.path, path)(errno);
        let told = |outcome| {
            let read = paths.iter().zip(expect_outcome!(outcome, FilesRead));
            read.map(|(path, read)| read.map_err(|errno| refused(path.as_ref(), errno))).collect()
        };
        (result.map(told), held.memories)
    }

    /// Makes a directory. The process's umask counts for its mode. Errors: `EEXIST`, `ENOSPC`, `EDQUOT`, `EROFS`.
    pub async fn make_directory(&self, name: impl AsRef<[u8]>, mode: u32) -> Result<(), BackingError> {
        let (bytes, directory) = (name.as_ref(), self.handle.id);
        let (name, mode) = (self.name("make", bytes)?, mode & 0o7777);
        self.change(bytes, BackingOperation::MakeDirectory { directory, name, mode }).await
    }

    /// Makes a symbolic link; nobody here follows it. Errors: as for a directory, and `EINVAL` or `ENAMETOOLONG` for a
    /// target that is empty, has a NUL or more than 4,095 bytes.
    pub async fn make_symlink(&self, name: impl AsRef<[u8]>, target: impl AsRef<[u8]>) -> Result<(), BackingError> {
        let (bytes, directory, target) = (name.as_ref(), self.handle.id, target.as_ref());
        let name = self.name("make", bytes)?;
        let fault = match target.len() {
            0 => Some(libc::EINVAL),
            size if size > super::PATH_SIZE_MAX => Some(libc::ENAMETOOLONG),
            _ => None,
        };
        let refused = refusal("make", &self.handle.path, bytes);
        let target = match (fault, CString::new(target)) {
            (None, Ok(target)) => target,
            (fault, _) => return Err(refused(fault.unwrap_or(libc::EINVAL))),
        };
        self.change(bytes, BackingOperation::MakeSymlink { directory, name, target }).await
    }

    /// A call about two names.
    async fn change_two(
        &self,
        (name, other, other_name): (&[u8], &BackingDirectory, &[u8]),
        operation: BackingOperation,
    ) -> Result<BackingOutcome, BackingError> {
        let (path, other_path) = (self.path_of(name), other.path_of(other_name));
        let handles = [Some(self.handle.clone()), Some(other.handle.clone())];
        let held = CallHeld { handles, ..CallHeld::default() };
        let changes = [Some(path.clone()), Some(other_path)];
        self.tree.core().call(CallRequest { operation, path, held, changes }).await.result
    }

    /// Gives a file one name more, here or in another directory. Errors: `EEXIST`, `ENOENT`, `EXDEV`, `EPERM` for a
    /// directory, `EMLINK`, `EROFS`.
    pub async fn link(
        &self,
        name: impl AsRef<[u8]>,
        to: &BackingDirectory,
        new_name: impl AsRef<[u8]>,
    ) -> Result<(), BackingError> {
        let (name, new_name) = (name.as_ref(), new_name.as_ref());
        let from = (self.handle.id, self.name("link", name)?);
        let target = (to.handle.id, to.name("link", new_name)?);
        self.change_two((name, to, new_name), BackingOperation::Link { from, to: target }).await.map(drop)
    }

    /// Renames, here or to another directory. What comes is what has the new name then. Errors: as of rename(2), or of
    /// the look after it; `EINVAL` where the file system does not know the mode; `ESTALE` where one of the directories
    /// was removed.
    pub async fn rename(
        &self,
        name: impl AsRef<[u8]>,
        to: &BackingDirectory,
        new_name: impl AsRef<[u8]>,
        mode: RenameMode,
    ) -> Result<BackingAttributes, BackingError> {
        let (name, new_name) = (name.as_ref(), new_name.as_ref());
        let from = (self.handle.id, self.name("rename", name)?);
        let target = (to.handle.id, to.name("rename", new_name)?);
        let renamed = self.change_two((name, to, new_name), BackingOperation::Rename { from, to: target, mode }).await;
        Ok(*expect_outcome!(renamed?, Attributes))
    }

    /// Renames to a name that nothing has. Where the file system can't tell (FUSE, NFS), a look has to do: who takes
    /// the name in between loses it, a file to a file and an empty directory to a directory. Errors: `EEXIST`, and as
    /// of `rename`.
    pub async fn rename_new(
        &self,
        name: impl AsRef<[u8]>,
        to: &BackingDirectory,
        new_name: impl AsRef<[u8]>,
    ) -> Result<BackingAttributes, BackingError> {
        let (name, new_name) = (name.as_ref(), new_name.as_ref());
        match self.rename(name, to, new_name, RenameMode::NoReplace).await {
            Err(error) if error.is_unsupported() => match to.look(new_name).await {
                Err(missing) if missing.is_not_found() => self.rename(name, to, new_name, RenameMode::Replace).await,
                Err(other) => Err(other),
                Ok(_) => Err(BackingError { errno: libc::EEXIST, ..error }),
            },
            renamed => renamed,
        }
    }

    /// Removes a name that stands for no directory. Errors: `ENOENT`, `EISDIR`, `EROFS`.
    pub async fn remove(&self, name: impl AsRef<[u8]>) -> Result<(), BackingError> {
        self.remove_kind(name.as_ref(), false).await
    }

    /// Removes an empty directory. Errors: `ENOENT`, `ENOTDIR`, `ENOTEMPTY`, `EROFS`.
    pub async fn remove_directory(&self, name: impl AsRef<[u8]>) -> Result<(), BackingError> {
        self.remove_kind(name.as_ref(), true).await
    }

    async fn remove_kind(&self, bytes: &[u8], is_directory: bool) -> Result<(), BackingError> {
        let (directory, name) = (self.handle.id, self.name("remove", bytes)?);
        self.change(bytes, BackingOperation::Remove { directory, name, is_directory }).await
    }

    /// Sets attributes of what a name stands for, and tells what it has then; after an error some may be set. Errors:
    /// `ENOENT`, `EPERM`, `EROFS`, `EOPNOTSUPP` for the mode of a symbolic link.
    pub async fn set_attributes(
        &self,
        name: impl AsRef<[u8]>,
        change: AttributeChange,
    ) -> Result<BackingAttributes, BackingError> {
        let (bytes, directory) = (name.as_ref(), self.handle.id);
        let name = self.name("set attributes", bytes)?;
        let set = self.ask(bytes, BackingOperation::SetAttributes { directory, name, change }).await?;
        Ok(*expect_outcome!(set, Attributes))
    }

    /// The keys of the extended attributes of what a name stands for. Errors: `ENOENT`, `EOPNOTSUPP`.
    pub async fn xattrs(&self, name: impl AsRef<[u8]>) -> Result<Vec<Box<[u8]>>, BackingError> {
        let (bytes, directory) = (name.as_ref(), self.handle.id);
        let name = self.name("get xattr", bytes)?;
        Ok(expect_outcome!(self.ask(bytes, BackingOperation::ListXattrs { directory, name }).await?, Keys))
    }

    /// The value of an extended attribute, 64 KiB at most. Errors: `ENODATA`, `ENOENT`, `EOPNOTSUPP`.
    pub async fn xattr(&self, name: impl AsRef<[u8]>, key: impl AsRef<[u8]>) -> Result<Vec<u8>, BackingError> {
        let (bytes, directory) = (name.as_ref(), self.handle.id);
        let (name, key) = (self.name("get xattr", bytes)?, self.key("get xattr", bytes, key.as_ref())?);
        Ok(expect_outcome!(self.ask(bytes, BackingOperation::GetXattr { directory, name, key }).await?, Value))
    }

    /// Sets an extended attribute. Errors: `ENOENT`, `EOPNOTSUPP`, `ENOSPC`, `E2BIG`, `EROFS`.
    pub async fn set_xattr(
        &self,
        name: impl AsRef<[u8]>,
        key: impl AsRef<[u8]>,
        value: Vec<u8>,
    ) -> Result<(), BackingError> {
        let (bytes, directory) = (name.as_ref(), self.handle.id);
        let (name, key) = (self.name("set xattr", bytes)?, self.key("set xattr", bytes, key.as_ref())?);
        self.ask(bytes, BackingOperation::SetXattr { directory, name, key, value }).await.map(drop)
    }

    /// Removes an extended attribute. Errors: `ENODATA`, `ENOENT`, `EOPNOTSUPP`, `EROFS`.
    pub async fn remove_xattr(&self, name: impl AsRef<[u8]>, key: impl AsRef<[u8]>) -> Result<(), BackingError> {
        let (bytes, directory) = (name.as_ref(), self.handle.id);
        let (name, key) = (self.name("set xattr", bytes)?, self.key("set xattr", bytes, key.as_ref())?);
        self.ask(bytes, BackingOperation::RemoveXattr { directory, name, key }).await.map(drop)
    }

    /// Makes names of this directory durable: what was made, renamed and removed in it before.
    pub async fn sync(&self) -> Result<(), BackingError> {
        let operation = BackingOperation::Sync { handle: self.handle.id };
        self.tree.ask(&self.handle, self.handle.path.clone(), operation).await.map(drop)
    }

    /// How much the file system has.
    pub async fn space(&self) -> Result<FreeSpace, BackingError> {
        let operation = BackingOperation::Space { handle: self.handle.id };
        let outcome = self.tree.ask(&self.handle, self.handle.path.clone(), operation).await?;
        Ok(expect_outcome!(outcome, Space))
    }

    /// Bytes that files made here are best read and written by: the size of a stripe where the directory has a layout
    /// of Lustre, else what the file system says.
    pub async fn preferred_size(&self) -> Result<u64, BackingError> {
        let operation = BackingOperation::PreferredSize { handle: self.handle.id };
        let outcome = self.tree.ask(&self.handle, self.handle.path.clone(), operation).await?;
        Ok(expect_outcome!(outcome, Size))
    }
}
