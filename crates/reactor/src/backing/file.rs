//! What is done to an open file of a backing tree.

use super::calls::{CallEnded, CallHeld, CallRequest, HandleGuard};
use super::operation::*;
use super::{BackingError, BackingTree, expect_outcome};
use std::rc::Rc;

/// An open regular file. Clones are the same one. It is the file that was opened, whatever becomes of its name; what
/// was opened to write is closed when the last clone and its last call are gone, and an error of that close is not
/// told: whoever wants to know syncs.
#[derive(Clone)]
pub struct BackingFile {
    tree: BackingTree,
    handle: Rc<HandleGuard>,
}

impl BackingFile {
    pub(super) fn new(tree: BackingTree, handle: Rc<HandleGuard>) -> BackingFile {
        BackingFile { tree, handle }
    }

    /// Where it was when it was opened, from the root.
    pub fn path(&self) -> &[u8] {
        &self.handle.path
    }

    /// Its path leads to another file by now: whoever opens that does not get this one.
    pub fn set_stale(&self) {
        self.tree.core().set_stale(&self.handle);
    }

    async fn ask(&self, operation: BackingOperation) -> Result<BackingOutcome, BackingError> {
        self.tree.ask(&self.handle, self.handle.path.clone(), operation).await
    }

    /// Reads into all of a memory, which has at most [`CALL_SIZE_MAX`] bytes, and gives it back. What comes is how many
    /// there were: fewer only where the file ends. A future that is dropped leaves the memory to the call. Errors:
    /// `EIO`, `ESTALE`, `EBADF` for what was not opened so.
    pub async fn read(&self, offset: u64, memory: impl Into<CallMemory>) -> (Result<usize, BackingError>, CallMemory) {
        self.transfer(offset, memory.into(), false).await
    }

    /// Writes all of a memory, which has at most [`CALL_SIZE_MAX`] bytes, and gives it back: all of it, or there is an
    /// error and any part of it may have been written. A future that is dropped leaves the memory to the call. Errors:
    /// `ENOSPC`, `EDQUOT`, `EIO`, `ESTALE`, `EROFS`, `EFBIG`.
    pub async fn write(&self, offset: u64, memory: impl Into<CallMemory>) -> (Result<usize, BackingError>, CallMemory) {
        self.transfer(offset, memory.into(), true).await
    }

    async fn transfer(
        &self,
        offset: u64,
        mut memory: CallMemory,
        is_write: bool,
    ) -> (Result<usize, BackingError>, CallMemory) {
        let (place, file) = (memory.place(), self.handle.id);
        assert!((1..=CALL_SIZE_MAX).contains(&place.size), "a call moves 1 byte to 256 KiB");
        let operation = match is_write {
            true => BackingOperation::Write { file, offset, memory: place },
            false => BackingOperation::Read { file, offset, memory: place },
        };
        let handles = [Some(self.handle.clone()), None];
        let held = CallHeld { handles, memories: vec![memory], ..CallHeld::default() };
        let (path, changes) = (self.handle.path.clone(), Default::default());
        let CallEnded { result, mut held } =
            self.tree.core().call(CallRequest { operation, path, held, changes }).await;
        let memory = held.memories.pop().expect("a call holds its memory until it has ended");
        (result.map(|outcome| expect_outcome!(outcome, Moved)), memory)
    }

    /// Makes durable what was written before, by calls that have ended. After an error some of it may be lost for good,
    /// and no later sync tells of that again. Errors: `EIO`, `ENOSPC`, `EDQUOT`.
    pub async fn sync(&self) -> Result<(), BackingError> {
        self.ask(BackingOperation::Sync { handle: self.handle.id }).await.map(drop)
    }

    /// What has to stay open for as long as a call is under way.
    pub(super) fn guard(&self) -> &Rc<HandleGuard> {
        &self.handle
    }

    /// Sets the file's size; what it grows by are zeros. Errors: `EINVAL` for what was opened to read, `EFBIG`,
    /// `ENOSPC`.
    pub async fn set_size(&self, size: u64) -> Result<(), BackingError> {
        self.ask(BackingOperation::SetSize { file: self.handle.id, size }).await.map(drop)
    }

    /// Sets the file's size and attributes, as far as they are other ones, and tells what it has then; after an error
    /// some may be set. Errors: as for the size, and `EPERM`.
    pub async fn set_attributes(&self, size: u64, change: AttributeChange) -> Result<BackingAttributes, BackingError> {
        let operation = BackingOperation::SetOpenAttributes { file: self.handle.id, size, change };
        Ok(*expect_outcome!(self.ask(operation).await?, Attributes))
    }

    /// The file's attributes.
    pub async fn look(&self) -> Result<BackingAttributes, BackingError> {
        Ok(*expect_outcome!(self.ask(BackingOperation::LookOpen { handle: self.handle.id }).await?, Attributes))
    }

    /// The first offset from one on where there is data, or a hole; nothing beyond the last of it. File systems may
    /// call zeros data. Errors: `EINVAL` where the file system can't tell.
    pub async fn seek(&self, offset: u64, kind: SeekKind) -> Result<Option<u64>, BackingError> {
        let operation = BackingOperation::Seek { file: self.handle.id, offset, kind };
        Ok(expect_outcome!(self.ask(operation).await?, Offset))
    }

    /// Bytes that it is best read and written by: the size of its stripes where it has a layout of Lustre, else what
    /// the file system says.
    pub async fn preferred_size(&self) -> Result<u64, BackingError> {
        let operation = BackingOperation::PreferredSize { handle: self.handle.id };
        Ok(expect_outcome!(self.ask(operation).await?, Size))
    }
}
