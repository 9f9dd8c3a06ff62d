//! Chunks of a file that are behind alone, copied from the place of before to the file that a flush makes: by each
//! holder those of its own, by the home those of servers that know nothing of the file, too.
//!
//! Invariant: the place of before is looked at before the first byte is read and after the last.

use super::add;
use super::pace::Patience;
use super::shares::LOOKS_AT_ONCE;
use super::table::TakenUp;
use crate::core::{Core, Failure};
use reactor::backing::{BackingFile, CALL_SIZE_MAX, SeekKind};
use std::cell::Cell;
use std::rc::Rc;
use wire::messages::BackingPlace;
use wire::{FileId, Layout};

/// A file of which chunks are copied from one place behind to another: its size is that of the copy, in bytes.
pub struct BaseCopy<'a> {
    pub file: FileId,
    pub old: &'a BackingPlace,
    pub layout: &'a Layout,
    pub size: u64,
    /// Whether it is of no use any more.
    pub is_over: &'a dyn Fn() -> bool,
    /// Bytes that were written are added to these.
    pub written: &'a Cell<u64>,
}

impl Core {
    /// Copies those chunks from the place of before that are wanted, as far as they are behind.
    pub(super) async fn copy_base(
        self: &Rc<Self>,
        BaseCopy { file, old, layout, size, is_over, written }: BaseCopy<'_>,
        wants: &dyn Fn(u64) -> bool,
        target: &BackingFile,
        patience: &Patience,
    ) -> Result<(), Failure> {
        let backing = self.backing();
        let mut opened = None;
        let end = old.base.max(old.carried).min(size);
        let chunk_size = u64::from(layout.chunk_size);
        let (mut offset, mut looks) = (0, 0);
        while offset < end && !is_over() {
            // Of a file of many chunks few may be absent, or none.
            let next = |known: &TakenUp| {
                let index = known.next_absent(offset / chunk_size)?;
                Some((index, known.size_behind(index)))
            };
            let Some((index, behind)) = self.tables.borrow().backing.get(file).and_then(next) else { break };
            offset = offset.max(index.saturating_mul(chunk_size));
            let chunk_end = (index + 1).saturating_mul(chunk_size).min(end);
            let data_end = index.saturating_mul(chunk_size).saturating_add(u64::from(behind)).min(end);
            looks += 1;
            if looks % LOOKS_AT_ONCE == 0 {
                self.reactor.yield_now().await;
            }
            if offset >= data_end || !wants(index) {
                offset = chunk_end;
                continue;
            }
            if opened.is_none() {
                opened = Some(self.open_source(file, old).await?);
            }
            let Some(source) = &opened else { continue };
            let data = source.seek(offset, SeekKind::Data).await.map_err(|error| backing.failure(error))?;
            if data.is_none_or(|data| data > offset) {
                offset = data.unwrap_or(end).min(end);
                continue;
            }
            let size = (data_end - offset).min(CALL_SIZE_MAX as u64);
            self.flush_turn(patience, size).await;
            let (read, memory) = source.read(offset, vec![0; size as usize]).await;
            if read.map_err(|error| backing.failure(error))? as u64 != size {
                return Err(backing.changed(&old.path));
            }
            let bytes = memory.into_bytes();
            if bytes.iter().any(|byte| *byte != 0) {
                add(written, target.write(offset, bytes).await.0.map_err(|error| backing.failure(error))? as u64);
            }
            offset += size;
        }
        if let Some(source) = &opened {
            let now = self.tables.borrow().backing.place(file).cloned();
            backing.check(source, now.as_ref().unwrap_or(old), self.checks_identity()).await?;
        }
        Ok(())
    }

    /// Opens a file behind, also where its directory was moved there.
    async fn open_source(self: &Rc<Self>, file: FileId, old: &BackingPlace) -> Result<BackingFile, Failure> {
        let checks = self.checks_identity();
        let failure = match self.backing().open_checked(old, checks).await {
            Ok(source) => return Ok(source),
            Err(failure) => failure,
        };
        // The home carries it, so its own place is the last one.
        let is_home = self.cluster.home_of(file) == Some(self.index);
        let is_elsewhere = match is_home {
            true => self.follow_directory(file, old).await?,
            false => self.learn_new_place(file, old).await?,
        };
        if !is_elsewhere {
            return Err(failure);
        }
        let now = self.tables.borrow().backing.place(file).cloned();
        self.backing().open_checked(&now.ok_or(failure)?, checks).await
    }
}
