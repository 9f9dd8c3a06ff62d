//! What a request needs of the backing tree before its handler runs.

use super::check::CheckKey;
use super::extended_behind::KEY_SPACE;
use super::listed_names::ListingNeed;
use super::{BackingUse, ChunkUse, ranges_of};
use crate::core::{Caller, Core, Failure};
use crate::journal::tables::Tables;
use crate::names::cursor_of;
use reactor::backing::SeekKind;
use reactor::{LocalFuture, Nanos};
use std::rc::Rc;
use wire::identity::dentry_slot;
use wire::layout::ChunkRange;
use wire::messages::*;
use wire::operation::LEVEL_CLIENT;
use wire::{Decode, Decoder, FileId, Kind, Layout, Malformed, Operation};

/// Chunks that one request has fetched at a time at most; the others follow.
const PIECES_MAX: u64 = 4096;

/// Data behind is looked for during this part of a server's time-out.
const LOOK_PART: Nanos = 4;

/// What has to end before a request can be done.
pub type Preparation = LocalFuture<Result<(), Failure>>;

/// What may have to be brought here.
#[derive(Default)]
struct Wanted {
    /// Names to be known.
    names: Vec<(FileId, Box<[u8]>)>,
    /// Directories whose names are to be known, and what of them.
    directories: Vec<(FileId, ListingNeed)>,
    /// A page of a listing with attributes: the directory, where it begins, and its bytes at most.
    page: Option<(FileId, u64, u32)>,
    /// Names that lead to such directories, if they do.
    emptied: Vec<(FileId, Box<[u8]>)>,
    /// Parts of files to be here.
    pieces: Option<(FileId, Layout, Vec<ChunkRange>)>,
    /// They are only to stay: what is not here does not come for this request.
    is_brief: bool,
    /// Parts of a file to be here, by offset and size.
    range: Option<(FileId, Layout, u64, u64)>,
    /// A file whose place is to be known, and where data is looked for in it.
    file: Option<FileId>,
    data: Option<(FileId, Layout, u64)>,
    /// An inode whose extended attributes are to be known.
    extended: Option<FileId>,
}

impl Wanted {
    fn name(&mut self, entry: &Entry<'_>) {
        self.names.push((entry.parent, entry.name.as_bytes().into()));
    }

    fn of(operation: Operation, params: &[u8]) -> Result<Wanted, Malformed> {
        use Operation as O;
        let mut wanted = Wanted::default();
        match operation {
            O::Lookup | O::Stat | O::Look => wanted.name(&EntryRequest::from_bytes(params)?.entry),
            O::Open | O::OpenExisting => wanted.name(&OpenRequest::from_bytes(params)?.entry),
            O::MakeDirectory => wanted.name(&MakeDirectoryRequest::from_bytes(params)?.entry),
            O::MakeSymlink => wanted.name(&MakeSymlinkRequest::from_bytes(params)?.entry),
            O::MakeNode => wanted.name(&MakeNodeRequest::from_bytes(params)?.entry),
            O::Unlink => wanted.name(&RemoveRequest::from_bytes(params)?.entry),
            O::RemoveDirectory => {
                let entry = RemoveRequest::from_bytes(params)?.entry;
                wanted.name(&entry);
                wanted.emptied.push((entry.parent, entry.name.as_bytes().into()));
            }
            O::Link => {
                let LinkRequest { from, to } = LinkRequest::from_bytes(params)?;
                [from, to].iter().for_each(|entry| wanted.name(entry));
            }
            O::LinkOpen => wanted.name(&LinkOpenRequest::from_bytes(params)?.to),
            O::Rename => {
                let RenameRequest { from, to, .. } = RenameRequest::from_bytes(params)?;
                [from, to].iter().for_each(|entry| wanted.name(entry));
            }
            O::PrepareDentry => {
                let request = PrepareDentryRequest::from_bytes(params)?;
                wanted.names.push((request.parent, request.name.as_bytes().into()));
            }
            // A find begins as a listing does.
            O::ReadDirectory | O::Find => {
                let request = ReadDirectoryRequest::decode(&mut Decoder::new(params))?;
                let ReadDirectoryRequest { directory, cursor, size_max, .. } = request;
                let need = match operation {
                    O::Find if FindRequest::from_bytes(params)?.tests.need_attributes() => ListingNeed::All,
                    O::Find => ListingNeed::Directories,
                    _ if request.with_attributes => ListingNeed::Page(cursor, size_max),
                    _ => ListingNeed::Names,
                };
                wanted.directories.push((directory, need));
                wanted.page = match need {
                    ListingNeed::Page(..) => Some((directory, cursor, size_max)),
                    // A find looks at more than it tells of.
                    ListingNeed::All => Some((directory, cursor, u32::MAX)),
                    ListingNeed::Names | ListingNeed::Directories => None,
                };
            }
            // MarkDirectory and MarkTree are answered at once: one that has waited would mark what its coordinator has
            // given up long ago. They have the directory listed, and are asked again (`check_removable`).
            O::Read | O::FetchChunks | O::Locate => {
                let DataRequest { file, layout, pieces, .. } = DataRequest::from_bytes(params)?;
                wanted.pieces = Some((file, layout, pieces.0));
            }
            O::CopyRange => {
                let request = CopyRangeRequest::from_bytes(params)?;
                wanted.pieces = Some((request.source, request.source_layout, vec![request.from]));
            }
            O::Allocate => {
                let AllocateRequest { file, layout, offset, size, mode, .. } = AllocateRequest::from_bytes(params)?;
                if mode != allocate_mode::GROW {
                    wanted.range = Some((file, layout, offset, size));
                }
            }
            // An append that was decided is sent here until it has been done: it must not have to wait for the tree
            // then.
            O::ReserveChunks => {
                let ReserveChunksRequest { file, layout, pieces, patient } = ReserveChunksRequest::from_bytes(params)?;
                wanted.pieces = Some((file, layout, pieces.0));
                wanted.is_brief = !patient;
            }
            // A value that is set comes with a body: its handler asks for them.
            O::GetAttribute => {
                let GetExtendedRequest { file, name, .. } = GetExtendedRequest::from_bytes(params)?;
                wanted.extended = name.as_bytes().starts_with(KEY_SPACE).then_some(file);
            }
            O::RemoveAttribute => {
                let RemoveExtendedRequest { file, name } = RemoveExtendedRequest::from_bytes(params)?;
                wanted.extended = name.as_bytes().starts_with(KEY_SPACE).then_some(file);
            }
            O::ListAttributes => wanted.extended = Some(ListExtendedRequest::from_bytes(params)?.file),
            O::Seek => {
                let SeekRequest { file, layout, offset, hole } = SeekRequest::from_bytes(params)?;
                wanted.file = Some(file);
                wanted.data = (!hole).then_some((file, layout, offset));
            }
            _ => {}
        }
        Ok(wanted)
    }

    /// The chunks that it is about. A read is done as soon as they are here; others may wait, and a file that is not
    /// behind yet may be carried and evicted meanwhile.
    fn chunks_of(&self, core: &Rc<Core>, operation: Operation) -> Option<ChunkUse> {
        let may_wait = !matches!(operation, Operation::Read | Operation::FetchChunks | Operation::Locate);
        if let Some((file, _, pieces)) = &self.pieces {
            return core.use_chunks(*file, may_wait, || ranges_of(pieces.iter().map(|piece| piece.chunk_index)));
        }
        let (file, layout, offset, size) = self.range.as_ref()?;
        let chunk_size = u64::from(layout.chunk_size.max(1));
        let range = || vec![(offset / chunk_size, offset.saturating_add(*size).div_ceil(chunk_size))];
        core.use_chunks(*file, may_wait, range)
    }

    /// What was lost in the directories that it is about.
    fn losses(&self, backing: &BackingUse) -> u64 {
        let names = self.names.iter().chain(&self.emptied).map(|(directory, _)| directory);
        names
            .chain(self.directories.iter().map(|(directory, _)| directory))
            .map(|directory| backing.lost.number(*directory))
            .sum()
    }

    /// What is to be looked at again before a client is told of it.
    fn due_checks(&self, core: &Rc<Core>) -> Vec<CheckKey> {
        let tables = core.tables.borrow();
        let directories = self.directories.iter().map(|(directory, _)| *directory);
        let behind = directories.clone().filter(|directory| core.is_behind(*directory));
        let mut due: Vec<CheckKey> = behind.filter_map(|known| core.due_listing(&tables, known)).collect();
        let page = self.page.filter(|(directory, ..)| core.is_behind(*directory));
        due.extend(
            page.into_iter().flat_map(|(directory, from, size)| core.due_in_page(&tables, directory, from, size)),
        );
        for (directory, name) in &self.names {
            let slot = dentry_slot(*directory, name, core.cluster.slot_count);
            if core.is_behind(*directory) && core.owns_slot(slot) {
                due.extend(core.due_check(&tables, *directory, name));
            }
        }
        if self.names.iter().map(|(directory, _)| *directory).chain(directories).any(|told| core.is_behind(told)) {
            core.note_told();
        }
        due
    }

    /// Leaves out what nothing has to be done for.
    fn keep_lacking(&mut self, core: &Core, tables: &Tables) {
        self.names.retain(|(directory, name)| {
            let slot = dentry_slot(*directory, name, core.cluster.slot_count);
            core.is_behind(*directory) && core.owns_slot(slot) && core.is_unknown(tables, *directory, name)
        });
        self.directories.retain(|(directory, need)| core.needs_listing(tables, *directory, *need));
        self.emptied.retain(|(directory, name)| {
            let slot = dentry_slot(*directory, name, core.cluster.slot_count);
            let found = tables.names.get(*directory, name, cursor_of(*directory, name));
            let is_own = |(id, kind): (FileId, Kind)| {
                kind != Kind::Directory || !core.needs_listing(tables, id, ListingNeed::All)
            };
            core.owns_slot(slot) && (core.is_unknown(tables, *directory, name) || !found.is_none_or(is_own))
        });
        let lacks_pieces = |(file, layout, pieces): &(FileId, Layout, Vec<ChunkRange>)| {
            core.check_layout(layout).is_ok()
                && (!core.has_pieces(*file, layout, pieces, false) || core.is_read_ahead_due(*file, pieces))
        };
        let is_brief = self.is_brief;
        self.pieces.take_if(|pieces| is_brief || !lacks_pieces(pieces));
        self.range.take_if(|(file, layout, ..)| !core.may_lack(*file) || core.check_layout(layout).is_err());
        let has_data = |(file, layout, offset): &mut (FileId, Layout, u64)| {
            !core.may_lack(*file)
                || core.check_layout(layout).is_err()
                || !core.lacks_place(*file) && core.next_absent(*file, layout, *offset).is_none()
        };
        self.data.take_if(has_data);
        self.file.take_if(|file| !core.lacks_place(*file));
        self.extended.take_if(|id| !core.lacks_extended(*id));
    }

    fn is_empty(&self) -> bool {
        self.names.is_empty()
            && self.directories.is_empty()
            && self.emptied.is_empty()
            && self.pieces.is_none()
            && self.range.is_none()
            && self.file.is_none()
            && self.data.is_none()
            && self.extended.is_none()
    }

    async fn bring_names(&self, core: &Rc<Core>, deadline: Nanos) -> Result<(), Failure> {
        for (directory, name) in &self.names {
            core.take_up_name(*directory, name, deadline).await?;
        }
        for (directory, need) in &self.directories {
            core.list_behind(*directory, *need, deadline).await?;
        }
        for (parent, name) in &self.emptied {
            let found = core.tables.borrow().names.get(*parent, name, cursor_of(*parent, name));
            if let Some((directory, Kind::Directory)) = found {
                core.list_behind(directory, ListingNeed::All, deadline).await?;
            }
        }
        if let Some(file) = self.file {
            core.know_place(file, deadline).await?;
        }
        if let Some(id) = self.extended {
            core.know_extended(id, deadline).await?;
        }
        if let Some((file, layout, offset)) = &self.data {
            // Where that takes long it counts as data too.
            let limit = core.reactor.now() + core.options.timeout / LOOK_PART;
            crate::core::until(&core.reactor, limit, core.look_for_data(*file, layout, *offset)).await;
        }
        Ok(())
    }

    /// Each of these waits as long as it may itself: room may be made for them.
    async fn bring_chunks(self, core: &Rc<Core>, deadline: Nanos) -> Result<(), Failure> {
        if let Some((file, layout, pieces)) = self.pieces {
            core.take_in(file, &layout, &pieces, false, deadline).await?;
        }
        if let Some((file, layout, offset, size)) = self.range {
            core.take_in_range(file, &layout, offset, size, deadline).await?;
        }
        Ok(())
    }
}

/// What has to be brought here before a request can be done; nothing for nearly all requests. What is malformed is
/// refused by its handler. Chunks of the file that comes with it stay here for as long as the request is there; the
/// number is that of before (`preparation_number`).
pub fn preparation(
    core: &Rc<Core>,
    operation: Operation,
    caller: &Caller,
    params: &[u8],
) -> (Option<ChunkUse>, Option<Preparation>, u64) {
    let Some(backing) = &core.backing else { return (None, None, 0) };
    let Ok(wanted) = Wanted::of(operation, params) else { return (None, None, 0) };
    let number = wanted.losses(backing);
    let chunk_use = wanted.chunks_of(core, operation);
    if operation == Operation::ReserveChunks {
        chunk_use.iter().for_each(|held| core.hold_chunks(held));
    }
    (chunk_use, what_is_lacking(core, operation, caller, wanted), number)
}

/// What is lacking of that by now: before a request is attempted that has waited for something, during which what was
/// here may have gone. `prepared` is what `preparation_number` was before it was prepared. What was looked for since
/// and is not there is no question any more.
pub fn lacking(
    core: &Rc<Core>,
    operation: Operation,
    caller: &Caller,
    params: &[u8],
    prepared: &mut u64,
) -> Option<Preparation> {
    let backing = core.backing.as_ref()?;
    let mut wanted = Wanted::of(operation, params).ok()?;
    let number = wanted.losses(backing);
    wanted.data = None;
    if std::mem::replace(prepared, number) == number {
        wanted = Wanted { directories: wanted.directories, ..Wanted::default() };
    }
    bring(core, operation, caller, wanted, Vec::new())
}

/// Rises when something that was known of the tree, and that a request is about, is known no more.
pub fn preparation_number(core: &Core, operation: Operation, params: &[u8]) -> u64 {
    let wanted = core.backing.as_ref().and_then(|backing| Some((backing, Wanted::of(operation, params).ok()?)));
    wanted.map_or(0, |(backing, wanted)| wanted.losses(backing))
}

fn what_is_lacking(core: &Rc<Core>, operation: Operation, caller: &Caller, wanted: Wanted) -> Option<Preparation> {
    // Servers ask each other about what was looked at before, or do what was decided.
    let due = if operation.level() == LEVEL_CLIENT { wanted.due_checks(core) } else { Vec::new() };
    bring(core, operation, caller, wanted, due)
}

fn bring(
    core: &Rc<Core>,
    operation: Operation,
    caller: &Caller,
    mut wanted: Wanted,
    due: Vec<CheckKey>,
) -> Option<Preparation> {
    if due.is_empty() {
        wanted.keep_lacking(core, &core.tables.borrow());
        if wanted.is_empty() {
            return None;
        }
    }
    // What other servers ask holds up whoever waits for them.
    let limit = match operation.level() {
        LEVEL_CLIENT => Nanos::MAX,
        _ => core.reactor.now() + core.options.timeout,
    };
    let (core, deadline) = (core.clone(), caller.deadline.min(limit));
    Some(Box::pin(async move {
        if !due.is_empty() {
            core.check_again(due, deadline).await;
            wanted.keep_lacking(&core, &core.tables.borrow());
        }
        match crate::core::until(&core.reactor, deadline, wanted.bring_names(&core, deadline)).await {
            Some(result) => result?,
            None => return Err(core.late()),
        }
        wanted.bring_chunks(&core, deadline).await
    }))
}

impl Core {
    /// Brings all chunks of a range of a file that belong here.
    async fn take_in_range(
        self: &Rc<Self>,
        file: FileId,
        layout: &Layout,
        offset: u64,
        size: u64,
        deadline: Nanos,
    ) -> Result<(), Failure> {
        self.know_place(file, deadline).await?;
        let base = self.tables.borrow().backing.place(file).map_or(0, |place| place.base.max(place.carried));
        let end = offset.saturating_add(size).min(base);
        let step = PIECES_MAX * u64::from(layout.chunk_size);
        let mut from = offset;
        while from < end {
            let size = step.min(end - from);
            let pieces: Vec<ChunkRange> = layout.pieces(from, size).collect();
            self.take_in(file, layout, &pieces, false, deadline).await?;
            from += size;
        }
        Ok(())
    }

    /// Looks where the next data of a file is behind, where its next absent chunk here begins. What can't be looked at
    /// counts as data.
    async fn look_for_data(self: &Rc<Self>, file: FileId, layout: &Layout, offset: u64) {
        let Some(at) = self.next_absent(file, layout, offset) else { return };
        let Some(place) = self.tables.borrow().backing.place(file).cloned() else { return };
        let backing = self.backing();
        let look = async {
            let source = backing.open_checked(&place, self.checks_identity()).await?;
            let found = source.seek(at, SeekKind::Data).await.map_err(|error| backing.failure(error))?;
            backing.check(&source, &place, self.checks_identity()).await?;
            Ok::<_, Failure>(found.unwrap_or(u64::MAX))
        };
        let Ok(found) = look.await else { return };
        let tables = self.tables.borrow();
        if let Some(known) = tables.backing.get(file).filter(|known| known.place == place) {
            known.note_hole(at, found);
        }
    }

    /// The first byte of an absent chunk of this server, from an offset of a file on: it counts as data, but where it
    /// is known that none is behind.
    pub fn next_absent(&self, file: FileId, layout: &Layout, offset: u64) -> Option<u64> {
        let tables = self.tables.borrow();
        let taken_up = tables.backing.get(file).filter(|_| self.backing.is_some())?;
        let chunk_size = u64::from(layout.chunk_size);
        let first = offset / chunk_size;
        let limit = taken_up.place.base.div_ceil(chunk_size);
        let is_here = |index: &u64| self.cluster.chunk_server(file, layout, *index) == self.index;
        // What is behind may end before the offset.
        let is_behind = |index: &u64| {
            taken_up.is_absent(*index) && offset < index * chunk_size + u64::from(taken_up.size_behind(*index))
        };
        let below = {
            let mut index = first;
            loop {
                match (first..limit).contains(&index).then(|| taken_up.hole_end(index).filter(|_| is_behind(&index))) {
                    None => break None,
                    Some(Some(end)) => index = (index + 1).max(end / chunk_size),
                    Some(None) if is_here(&index) && is_behind(&index) => break Some(index),
                    Some(None) => index += 1,
                }
            }
        };
        let evicted = || {
            let all =
                std::iter::successors(taken_up.next_evicted(first.max(limit)), |last| taken_up.next_evicted(last + 1));
            all.into_iter().find(is_behind)
        };
        Some(offset.max(below.or_else(evicted)? * chunk_size))
    }

    /// Where what may be behind of an absent chunk ends in it; 0 of one that is here.
    pub fn absent_end(&self, file: FileId, index: u64) -> u32 {
        let tables = self.tables.borrow();
        let absent = tables.backing.get(file).filter(|taken_up| self.backing.is_some() && taken_up.is_absent(index));
        absent.map_or(0, |taken_up| taken_up.size_behind(index))
    }
}
