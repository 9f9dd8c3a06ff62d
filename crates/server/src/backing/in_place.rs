//! A file behind that is updated where it is: each server writes its dirty chunks alone, and zeros where the file was
//! cut since. Who reads there meanwhile sees a mixture; so small files are written anew, and named when they are whole.
//!
//! Invariants
//! 1. Before the first byte is written the home has journalled, and the name's server, that the file is being written
//!    to: from then on its inode number alone tells that it is ours, also after a restart, until its identity is known
//!    again (`BackingPlace::being_written`).
//! 2. Bytes that are behind alone are not written to: not before the file's base, or what was carried of it, in chunks
//!    that are absent.
//! 3. What a flush of before has left behind, and nobody has any more, is overwritten by zeros, up to the size that the
//!    file behind had.
//! 4. Zeros that a cut put into a page are written again where the update that cut it was not synced.

use super::carried_place::MovingPlace;
use super::carry::{Carried, CarryTask, is_known, known_found, words};
use super::shares::{LOOKS_AT_ONCE, Target};
use super::table::{Standing, TakenUp};
use super::{BackingFault, joined};
use crate::core::{Core, Failure};
use crate::journal::records::Record;
use reactor::backing::{BackingAttributes, BackingDirectory, BackingFile, CALL_SIZE_MAX, SeekKind};
use std::collections::BTreeSet;
use std::rc::Rc;
use wire::FileId;
use wire::messages::*;

/// What came of it.
pub enum InPlace {
    Done(Carried),
    /// Something was changed meanwhile: what was not is behind.
    Changed,
    /// It can't be: the file is to be written anew.
    Unfit,
}

/// What is to be done with a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ChunkUpdate {
    /// It is behind as it is here, up to an offset in the file; zeros follow.
    ZerosFrom(u64),
    Write,
}

impl TakenUp {
    fn update_of(&self, index: u64) -> ChunkUpdate {
        let start = index.saturating_mul(u64::from(self.place.chunk_size));
        match self.standing(index) {
            Some(Standing::Dirty) => ChunkUpdate::Write,
            None if start >= self.known_end() => ChunkUpdate::Write,
            _ => ChunkUpdate::ZerosFrom(self.place.base.max(self.place.carried)),
        }
    }
}

impl Core {
    /// Whether a file is large enough, and something of it stays as it is behind.
    pub(super) fn may_be_in_place(&self, request: &CarryInodeRequest, old: &BackingPlace, size: u64) -> bool {
        let is_parked_here = self.is_hidden(old.name()) && old.parent == request.parent;
        !request.is_parked()
            && old.inode != 0
            && (super::carry::is_at(old, request) || is_parked_here)
            && old.base.max(old.carried) > 0
            && size.max(old.size) >= self.options.flushing.atomic_below
    }

    /// Updates a file where it is, and gives it its name if it has none.
    pub(super) async fn update_in_place(
        self: &Rc<Self>,
        request: &CarryInodeRequest,
        (parent, directory, name): (&BackingDirectory, &[u8], &[u8]),
        task: &Rc<CarryTask>,
    ) -> Result<InPlace, Failure> {
        let (backing, file) = (self.backing(), request.id);
        let failed = |error| backing.failure(error);
        let Some(old) = self.tables.borrow().backing.place(file).cloned() else { return Ok(InPlace::Unfit) };
        let own_name = old.name().to_vec();
        let is_parked = own_name != name;
        let Some((target, found)) = self.open_for_update(parent, &old, &own_name).await? else {
            return Ok(InPlace::Unfit);
        };
        let _chunk_use = self.use_file(file);
        let to = (joined(directory, &own_name), old.inode, found.identity.size);
        let Some((inode, share)) = self.begin_wish(file, to, share_modes::IN_PLACE, task).await? else {
            return Ok(InPlace::Changed);
        };
        let wish = share.wish;
        let attributes = &inode.attributes;
        let place = BackingPlace { path: share.path.clone(), ..old.clone() }.being_written();
        if !is_parked {
            self.note_next(request, place.known()).await?;
        }
        if self.is_journal_low() {
            self.checkpoints.finished().wait().await;
        }
        self.note_links(request, &|link| NameBehind { known: Some(place.known()), ..link }).await?;
        self.change([Record::NextPut { id: file, place: place.clone() }])?;
        self.syncs.durable().await?;
        let moving = MovingPlace { place: Some(place.clone()), ..MovingPlace::default() };
        backing.moving.borrow_mut().insert(file.0, moving.clone());
        let holders = inode.other_holders(self.index);
        let updated = async {
            if old.is_being_written() {
                self.renew_ends(&target, file, found.identity.size).await.map_err(failed)?;
            }
            if found.identity.size != attributes.size {
                target.set_size(attributes.size).await.map_err(failed)?;
            }
            let is_changed = self.have_all_written(&holders, &share, task).await?;
            if !is_parked || !is_changed || request.is_snapshot() {
                self.remove_extended_behind(file, &self.own_extended(file), (parent, &own_name)).await?;
                self.set_attributes_behind(file, attributes, None, (parent, &own_name), &target).await?;
            }
            if !backing.has_fault(BackingFault::SyncsNothing) {
                target.sync().await.map_err(failed)?;
                // Its attributes are what it is known by.
                backing.sync_names(parent).await?;
            }
            let found = backing.look_for(parent, &own_name).await?;
            let found = found.filter(|found| found.identity.inode == old.inode);
            let known = known_found(&found.ok_or_else(|| words("somebody else has replaced it there meanwhile"))?);
            let KnownBehind { inode, size, mtime, ctime } = known;
            let place = BackingPlace { inode, size, mtime, ctime, base: self.base_of(file), ..place.clone() };
            self.put_carried_here(file, place.clone(), &|| super::shares::CarriedShare::Unknown).await?;
            self.note_links(request, &|link| NameBehind { known: Some(place.known()), ..link }).await?;
            Ok(place.known())
        };
        let updated: Result<KnownBehind, Failure> = updated.await;
        backing.moving.borrow_mut().remove(&file.0);
        moving.done.tell(());
        let known = updated?;
        self.settle_place(request, &holders, wish).await?;
        let (known, settled) = match is_parked {
            // Nobody sees it before it is as it was at one time, unless somebody syncs it.
            true if !request.is_snapshot() && self.was_changed(&holders, &share).await? => {
                return Ok(InPlace::Changed);
            }
            true => self.give_name(request, (parent, &own_name, name), attributes, None).await?,
            false => (known, Vec::new()),
        };
        if is_parked {
            self.settle_place(request, &holders, wish).await?;
        }
        self.note_now(request, &known).await?;
        Ok(InPlace::Done(Carried { known, settled }))
    }

    /// Writes the last bytes before the ends of an update that came to nothing once more. It may have cut the file
    /// there, and where a sync has failed the zeros behind the cut are on no medium, and in no page that is dirty.
    async fn renew_ends(
        &self,
        target: &BackingFile,
        file: FileId,
        size_behind: u64,
    ) -> Result<(), reactor::backing::BackingError> {
        let known_end = self.tables.borrow().backing.get(file).map_or(0, TakenUp::known_end);
        for end in [size_behind, known_end].into_iter().filter(|end| (1..=size_behind).contains(end)) {
            let (read, memory) = target.read(end - 1, vec![0]).await;
            if read? == 1 {
                target.write(end - 1, memory.into_bytes()).await.0?;
            }
        }
        Ok(())
    }

    /// Opens what is to be updated, if it is what is known to be there, and may be written to.
    async fn open_for_update(
        self: &Rc<Self>,
        parent: &BackingDirectory,
        old: &BackingPlace,
        name: &[u8],
    ) -> Result<Option<(BackingFile, BackingAttributes)>, Failure> {
        let backing = self.backing();
        let found = backing.look_for(parent, name).await?;
        let is_it = |found: &BackingAttributes| !self.checks_identity() || is_known(found, &old.known());
        let Some(found) = found.filter(is_it) else { return Ok(None) };
        // One that is open still may be another one.
        for _ in 0..2 {
            let Ok(target) = parent.open_to_write(name).await else { return Ok(None) };
            let opened = target.look().await.map_err(|error| backing.failure(error))?;
            if opened.identity.inode == found.identity.inode {
                return Ok(Some((target, found)));
            }
            target.set_stale();
        }
        Ok(None)
    }

    /// Writes what of this server's chunks is not behind as it is here. The home sees to chunks of servers that know
    /// nothing of the file, too: there are no bytes of them.
    pub(super) async fn write_dirty(self: &Rc<Self>, target: &Target<'_>, is_home: bool) -> Result<(), Failure> {
        let request = target.request;
        let (file, chunk_size) = (request.file, u64::from(request.layout.chunk_size));
        let update_of = |index| {
            let tables = self.tables.borrow();
            tables.backing.get(file).map_or(ChunkUpdate::Write, |known| known.update_of(index))
        };
        let known_end = self.tables.borrow().backing.get(file).map_or(0, TakenUp::known_end);
        let first = known_end / chunk_size;
        for index in self.dirty_chunks(request, first).await {
            if update_of(index) == ChunkUpdate::Write && !target.share.is_late.get() {
                self.write_chunk(target, index, true).await?;
            }
        }
        // What was there before and is nowhere any more.
        let others: BTreeSet<u32> = match is_home {
            true => self.inode(file)?.holders().iter().copied().collect(),
            false => BTreeSet::new(),
        };
        let limit = request.size.min(request.size_behind);
        let is_ours = |index| {
            let server = self.cluster.chunk_server(file, &request.layout, index);
            server == self.index || is_home && !others.contains(&server)
        };
        let (mut index, mut looks) = (first, 0);
        while index * chunk_size < limit && known_end < limit && !target.share.is_late.get() {
            looks += 1;
            if looks % LOOKS_AT_ONCE == 0 {
                self.reactor.yield_now().await;
            }
            if !is_ours(index) {
                index += 1;
                continue;
            }
            let (start, end) = (index * chunk_size, ((index + 1) * chunk_size).min(limit));
            // Holes there are passed over, however long they are.
            match self.data_behind(target, start.max(known_end)).await?.filter(|data| *data < limit) {
                None => break,
                Some(data) if data >= end => {
                    index = data / chunk_size;
                    continue;
                }
                Some(_) => {}
            }
            let has_data = matches!(self.store.next_data(file.0, start), (Some(offset), _) if offset < end);
            match update_of(index) {
                ChunkUpdate::ZerosFrom(from) => self.write_zeros(target, from.max(start), end).await?,
                ChunkUpdate::Write if !has_data => self.write_zeros(target, start, end).await?,
                ChunkUpdate::Write => {}
            }
            index += 1;
        }
        Ok(())
    }

    /// Where the next bytes are behind that may be none of zeros.
    async fn data_behind(self: &Rc<Self>, target: &Target<'_>, offset: u64) -> Result<Option<u64>, Failure> {
        let data = target.open(self).await?.seek(offset, SeekKind::Data).await;
        data.map_err(|error| self.backing().failure(error))
    }

    /// Dirty chunks, and those with data from a chunk on.
    async fn dirty_chunks(self: &Rc<Self>, request: &WriteShareRequest, first: u64) -> BTreeSet<u64> {
        let is_dirty = |(index, standing): (u64, Standing)| (standing == Standing::Dirty).then_some(index);
        let dirty = {
            let tables = self.tables.borrow();
            tables.backing.get(request.file).map(|known| known.standings().filter_map(is_dirty).collect())
        };
        self.add_chunks_with_data(request, first, dirty.unwrap_or_default()).await
    }

    /// Writes zeros where there are any other bytes.
    async fn write_zeros(self: &Rc<Self>, target: &Target<'_>, start: u64, end: u64) -> Result<(), Failure> {
        let mut offset = start;
        while offset < end {
            let data = self.data_behind(target, offset).await?;
            let Some(data) = data.filter(|data| *data < end) else { return Ok(()) };
            offset = offset.max(data);
            let size = (end - offset).min(CALL_SIZE_MAX as u64);
            self.flush_turn(&target.share.patience, size).await;
            self.write_behind(target, offset, vec![0; size as usize]).await?;
            offset += size;
        }
        Ok(())
    }
}
