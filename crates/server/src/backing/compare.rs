//! Whether what is here of files is what is behind (`--verify` of `tabane down` and `tabane flush`): whoever wants to
//! know asks the servers of names which files are behind, and the servers of chunks to compare theirs. Nothing is
//! fetched, and what was changed since it was carried is no difference: it goes with the next flush.

use super::shares::LOOKS_AT_ONCE;
use crate::core::{Caller, Core, Failure};
use crate::handlers::{Progress, later};
use crate::journal::tables::Tables;
use crate::names::WalkPosition;
use reactor::Nanos;
use reactor::backing::{BackingFile, CALL_SIZE_MAX, SeekKind};
use std::rc::Rc;
use wire::messages::*;
use wire::{Decode, Encode, FileId, Kind};

/// Names that a server looks through for one answer and at a time, and files of one answer.
const WALK_COUNT: usize = 4096;
const STEP_COUNT: usize = 16;
const FILES_MAX: usize = 512;
/// How long one answer may take to come, and chunks that it looks at.
const COMPARE_NS: Nanos = 250_000_000;
const CHUNKS_MAX: u64 = 16 * LOOKS_AT_ONCE;
/// Places that a file is looked for at one after the other.
const ROUNDS_MAX: u32 = 8;

/// `ListCarried`, at a server of names.
pub fn list_carried(core: &Rc<Core>, caller: &Caller, params: &[u8], reply: &mut Vec<u8>) -> Result<Progress, Failure> {
    let from = ListCarriedRequest::from_bytes(params)?;
    core.check_backing()?;
    core.check_owner(caller)?;
    let tables = core.tables.borrow();
    let mut files = Vec::new();
    let mut position = Some(WalkPosition::from_numbers((from.directory, from.cursor)));
    let mut seen = 0;
    while let Some(place) = position.filter(|_| seen < WALK_COUNT && files.len() < FILES_MAX) {
        position = tables.names.walk_step(place, STEP_COUNT, &mut |directory, entry| {
            if entry.kind == Kind::File && core.is_carried_at(&tables, directory, entry.name, entry.id) {
                files.push(entry.id);
            }
        });
        seen += STEP_COUNT;
    }
    let (directory, cursor) = position.map_or((0, 0), WalkPosition::numbers);
    ListCarriedReply { files, is_last: position.is_none(), next: ListCarriedRequest { directory, cursor } }
        .encode(reply);
    Ok(Progress::Done)
}

/// `CompareShare`, at a server with chunks.
pub fn compare_share(core: &Rc<Core>, caller: &Caller, params: &[u8]) -> Result<Progress, Failure> {
    let request = CompareShareRequest::from_bytes(params)?;
    core.check_backing()?;
    core.check_owner(caller)?;
    core.check_layout(&request.layout)?;
    let core = core.clone();
    later(async move { Ok(core.compare_share(request).await) })
}

/// What comes of a share, or of a part of it.
struct Comparison {
    bytes: u64,
    next: u64,
    differs_at: Option<u64>,
}

impl Core {
    /// Whether a file's name here is the one that it has behind.
    fn is_carried_at(&self, tables: &Tables, directory: FileId, name: &[u8], id: FileId) -> bool {
        match tables.backing.difference(directory, name) {
            Some(behind) => behind.agrees(Some(id)),
            // That of another server's inode has a record, if it was carried.
            None => {
                let place = tables.backing.place(id).filter(|_| self.cluster.home_of(id) == Some(self.index));
                place.is_some_and(|place| place.parent == directory && place.name() == name)
            }
        }
    }

    async fn compare_share(self: &Rc<Self>, request: CompareShareRequest) -> CompareShareReply {
        let is_below = |place: &BackingPlace| {
            let is_below = |wanted: &Vec<u8>| super::pass::is_below(&place.path, wanted);
            request.paths.is_empty() || request.paths.iter().any(is_below)
        };
        let none = CompareShareReply { bytes: 0, next: u64::MAX, path: Vec::new(), difference: Vec::new() };
        let mut rounds = 0;
        loop {
            rounds += 1;
            let place = self.tables.borrow().backing.place(request.file).cloned();
            let Some(place) = place.filter(|place| place.inode != 0 && is_below(place)) else { return none };
            let failure = match self.compare_with(&request, &place).await {
                Ok(Comparison { bytes, next, differs_at: None }) => return CompareShareReply { bytes, next, ..none },
                Ok(Comparison { bytes, differs_at: Some(at), .. }) => {
                    let difference = format!("has other bytes there, from byte {at} on").into_bytes();
                    return CompareShareReply { bytes, path: place.path, difference, ..none };
                }
                Err(failure) => failure,
            };
            if self.backing().moving.borrow().contains_key(&request.file.0) {
                return none;
            }
            // A flush may have put it elsewhere, with the same bytes, and this server has not heard of it; and the
            // directory where its home says that it is may have been moved since.
            let is_news =
                rounds < ROUNDS_MAX && self.learn_new_place(request.file, &place).await.is_ok_and(|is_news| is_news);
            match self.tables.borrow().backing.place(request.file) {
                _ if is_news => {}
                Some(now) if *now == place => {
                    let difference = super::carry::reason_of(&failure);
                    return CompareShareReply { path: place.path, difference, ..none };
                }
                // Changed meanwhile, and so carried once more.
                _ => return none,
            }
        }
    }

    async fn compare_with(
        self: &Rc<Self>,
        request: &CompareShareRequest,
        place: &BackingPlace,
    ) -> Result<Comparison, Failure> {
        let (backing, file, chunk_size) = (self.backing(), request.file, u64::from(request.layout.chunk_size));
        let _chunk_use = self.use_file(file);
        let source = backing.open_checked(place, self.checks_identity()).await?;
        let limit = self.reactor.now() + COMPARE_NS;
        let end = request.size.min(place.size);
        let mut compared = Comparison { bytes: 0, next: u64::MAX, differs_at: None };
        // From here to there are no bytes but zeros behind.
        let mut zeros = (0, 0);
        let (mut offset, mut looks) = (request.from, 0);
        while offset < end && compared.differs_at.is_none() {
            let index = offset / chunk_size;
            let chunk_end = ((index + 1) * chunk_size).min(end);
            looks += 1;
            if looks % LOOKS_AT_ONCE == 0 {
                self.reactor.yield_now().await;
            }
            if looks > CHUNKS_MAX || looks > 1 && self.reactor.now() >= limit {
                compared.next = offset;
                break;
            }
            // Where both sides have a hole there is nothing to compare, however long it is.
            let here = self.store.next_data(file.0, offset).0.unwrap_or(end);
            if here >= chunk_end {
                if !(zeros.0..zeros.1).contains(&offset) {
                    let data = source.seek(offset, SeekKind::Data).await.map_err(|error| backing.failure(error))?;
                    zeros = (offset, data.unwrap_or(end));
                }
                let next = here.min(zeros.1);
                if next >= chunk_end {
                    offset = chunk_end.max(next / chunk_size * chunk_size);
                    continue;
                }
            }
            if !self.is_comparable(request, place, index) {
                offset = chunk_end;
                continue;
            }
            let size = (chunk_end - offset).min(CALL_SIZE_MAX as u64);
            let is_same = self.compare_part(request, &source, offset, size).await?;
            if !is_same && self.is_comparable(request, place, index) {
                compared.differs_at = Some(offset);
            }
            compared.bytes += size;
            offset += size;
        }
        backing.check(&source, place, self.checks_identity()).await?;
        Ok(compared)
    }

    /// Whether a chunk belongs here, is here, and was not changed since it was carried.
    fn is_comparable(&self, request: &CompareShareRequest, place: &BackingPlace, index: u64) -> bool {
        let tables = self.tables.borrow();
        self.cluster.chunk_server(request.file, &request.layout, index) == self.index
            && tables
                .backing
                .get(request.file)
                .is_some_and(|known| known.place == *place && !known.is_written && !known.is_absent(index))
    }

    /// Whether bytes of one chunk, as many as one call reads, are the same on both sides.
    async fn compare_part(
        self: &Rc<Self>,
        request: &CompareShareRequest,
        source: &BackingFile,
        offset: u64,
        size: u64,
    ) -> Result<bool, Failure> {
        let backing = self.backing();
        let chunk_size = u64::from(request.layout.chunk_size);
        let (read, memory) = source.read(offset, vec![0; size as usize]).await;
        if read.map_err(|error| backing.failure(error))? as u64 != size {
            return Ok(false);
        }
        let there = memory.into_bytes();
        // It is looked at when the bytes of the other side are here, and nothing is awaited then but the store's own
        // device.
        let (index, within) = (offset / chunk_size, (offset % chunk_size) as u32);
        let mut here = Vec::with_capacity(size as usize);
        let read = self.with_room(|| self.store.read(request.file.0, index, within, size as u32)).await?;
        read.append_to(&mut here);
        here.resize(size as usize, 0);
        Ok(here[..] == there[..])
    }
}
