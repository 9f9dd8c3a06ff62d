//! Reading without the server: where bytes of chunks lie in the region that a server of this machine lends us.
//!
//! A server asked once tells the places of all that it holds of a chunk, and the number of the last change; where a
//! file is read from front to back it is asked for the next chunks as well. As long as the stamps of those places are
//! not above that number, the bytes are there, and are the chunk's: whatever changes either is stamped first
//! ([`reactor::StoreMapping`]). So a read copies, looks at the stamps, and is done, without a message; if a stamp has
//! moved on, it asks anew, and in the end reads as everybody else does.

use crate::bytes::stripe::Share;
use crate::error::Attempt;
use crate::open_files::file::{File, OpenHow};
use crate::servers::{Common, Servers, is_answer};
use crate::shared_memory::snapshot::{CellVersion, Snapshot};
use reactor::channel::Call;
use reactor::{Nanos, StoreMapping};
use std::cell::RefCell;
use std::io::IoSliceMut;
use std::rc::Rc;
use wire::attribute_cache::FirstBytes;
use wire::layout::ChunkRange;
use wire::limits::PIECE_COUNT_MAX;
use wire::messages::{BytePlace, DataRequest, LeasedContents, LocateReply, PLACE_COUNT_MAX, Pieces, open_flags};
use wire::{Attributes, Decode, Encode, FastMap, FileId, Operation};

/// A read of fewer bytes than this is answered by the server at once, unless the places are known.
const SIZE_MIN: usize = 4_096;
/// Chunks that a question asks for beyond those that are read, at most, where a file is read from front to back; they
/// double with each question that goes on where the last one had ended.
const AHEAD_MAX: usize = 15;
/// Chunks among which those of the same server are looked for, and beyond which a read does not go on.
const AHEAD_RANGE: u64 = 256;
/// Questions about a read whose bytes change, before the server reads for us.
const ATTEMPTS_MAX: usize = 1;
/// Messages that one question about very many places takes at most.
const QUESTIONS_MAX: usize = 16;

/// What is known of one chunk.
pub(crate) struct ChunkPlaces {
    mapping: Rc<StoreMapping>,
    pub proof: Proof,
    places: Vec<BytePlace>,
}

/// What shows that the bytes are still there.
pub(crate) enum Proof {
    /// The stamps of the places are not above this number.
    Stamps(u64),
    /// The file's cell in the server's attribute cache holds: it is written anew before anything of the file changes.
    Cell(CellVersion),
}

/// Questions about chunks of a file that one server holds.
#[derive(Clone, Copy)]
struct Run {
    /// The chunk behind the last one that was asked for.
    end: u64,
    ahead: usize,
}

impl Run {
    /// The run that a question belongs to, for a read from `first` on, after the run before.
    fn going_on(before: Option<Run>, first: u64) -> Run {
        match before {
            Some(run) if (run.end..run.end + AHEAD_RANGE).contains(&first) => {
                Run { end: first, ahead: (2 * run.ahead + 1).min(AHEAD_MAX) }
            }
            _ => Run { end: first, ahead: 0 },
        }
    }
}

/// What is known of many.
pub(crate) struct PlaceCache {
    /// Chunks and runs, each.
    count_max: usize,
    chunks: RefCell<FastMap<(FileId, u64), Rc<ChunkPlaces>>>,
    /// By file and server.
    runs: RefCell<FastMap<(FileId, u32), Run>>,
}

impl PlaceCache {
    pub(crate) fn new(count_max: usize) -> PlaceCache {
        PlaceCache { count_max, chunks: RefCell::default(), runs: RefCell::default() }
    }

    fn get(&self, file: FileId, chunk: u64) -> Option<Rc<ChunkPlaces>> {
        self.chunks.borrow().get(&(file, chunk)).cloned()
    }

    fn put(&self, file: FileId, chunk: u64, known: ChunkPlaces) {
        let mut chunks = self.chunks.borrow_mut();
        if chunks.len() >= self.count_max {
            // Rare enough, and whatever is still in use is asked for again.
            chunks.clear();
        }
        chunks.insert((file, chunk), Rc::new(known));
    }

    fn forget(&self, file: FileId, chunk: u64) {
        self.chunks.borrow_mut().remove(&(file, chunk));
    }

    fn run(&self, file: FileId, server: u32) -> Option<Run> {
        self.runs.borrow().get(&(file, server)).copied()
    }

    fn note_run(&self, file: FileId, server: u32, run: Run) {
        let mut runs = self.runs.borrow_mut();
        if runs.len() >= self.count_max {
            runs.clear();
        }
        runs.insert((file, server), run);
    }
}

/// What a question names a chunk by: whatever the size, places are told of whole chunks.
fn first_byte(chunk_index: u64) -> ChunkRange {
    ChunkRange { chunk_index, chunk_offset: 0, size: 1 }
}

/// Bytes of a piece that lie in one place of the store.
pub(crate) struct BytesPart {
    pub at: u64,
    pub size: usize,
}

/// The parts of `next..end` of a chunk, in order, up to the first byte whose place is not known.
pub(crate) struct Parts<'k> {
    places: std::slice::Iter<'k, BytePlace>,
    next: u64,
    end: u64,
}

impl Parts<'_> {
    /// Whether the parts that were told are all there is.
    fn is_whole(&self) -> bool {
        self.next == self.end
    }
}

impl Iterator for Parts<'_> {
    type Item = BytesPart;

    fn next(&mut self) -> Option<BytesPart> {
        while self.next < self.end {
            let place = self.places.next()?;
            let (start, stop) = (u64::from(place.offset), u64::from(place.offset) + u64::from(place.size));
            if self.next < start {
                return None;
            }
            if self.next < stop {
                let size = stop.min(self.end) - self.next;
                let at = place.at + (self.next - start);
                self.next += size;
                return Some(BytesPart { at, size: size as usize });
            }
        }
        None
    }
}

impl ChunkPlaces {
    /// The change up to which stamps may be; none where there is another proof.
    pub fn number(&self) -> u64 {
        match self.proof {
            Proof::Stamps(number) => number,
            Proof::Cell(_) => 0,
        }
    }

    /// Where the bytes of a piece are.
    pub fn parts(&self, piece: &ChunkRange) -> Parts<'_> {
        let next = u64::from(piece.chunk_offset);
        let is_before = |place: &BytePlace| u64::from(place.offset) + u64::from(place.size) <= next;
        let behind = &self.places[self.places.partition_point(is_before)..];
        Parts { places: behind.iter(), next, end: next + u64::from(piece.size) }
    }
}

impl Servers {
    /// Reads a share of a read of `size` bytes from the region that its server lends. False if it has to be read
    /// through the server; what is in the caller's memory then has no meaning. Errors: those of a server that does not
    /// answer, which is not to be waited for twice.
    pub(crate) async fn read_short_circuit(
        &self,
        file: &File,
        share: &mut Share<IoSliceMut<'_>>,
        size: usize,
    ) -> Attempt<bool> {
        for _ in 0..ATTEMPTS_MAX {
            match self.copy_known(file, &share.pieces, &mut share.slices).await {
                Found::Copied(_) => return Ok(true),
                Found::Hole => return Ok(false),
                Found::Unknown => {}
            }
            let wanted = |mapping: &Rc<StoreMapping>| size >= SIZE_MIN || mapping.is_simulated();
            let Some(mapping) = self.mapping(share.server).filter(wanted) else { return Ok(false) };
            if !self.locate(file, share, mapping).await? {
                return Ok(false);
            }
        }
        Ok(matches!(self.copy_known(file, &share.pieces, &mut share.slices).await, Found::Copied(_)))
    }

    /// A piece of each chunk of a share, and of each that is likely to be read next.
    fn pieces_ahead(&self, file: &File, share: &Share<IoSliceMut<'_>>) -> Pieces {
        let mut pieces: Vec<ChunkRange> = share.pieces.iter().map(|read| first_byte(read.chunk_index)).collect();
        pieces.dedup();
        let (Some(first), Some(last)) = (pieces.first(), pieces.last()) else { return Pieces(pieces) };
        let (first, behind) = (first.chunk_index, last.chunk_index + 1);
        let mut run = Run::going_on(self.places.run(file.id, share.server), first);
        let size = file.known_size().size.max(file.written_end());
        let end = size.div_ceil(u64::from(file.layout.chunk_size)).min(behind + AHEAD_RANGE);
        let is_there = |chunk: &u64| self.cluster.chunk_server(file.id, &file.layout, *chunk) == share.server;
        let count = run.ahead.min(PIECE_COUNT_MAX - pieces.len());
        pieces.extend((behind..end).filter(is_there).take(count).map(first_byte));
        run.end = pieces.last().map_or(behind, |last| last.chunk_index + 1);
        self.places.note_run(file.id, share.server, run);
        Pieces(pieces)
    }

    /// Asks where the bytes of all chunks of a share are. False if the server does not say.
    async fn locate(&self, file: &File, share: &Share<IoSliceMut<'_>>, mapping: Rc<StoreMapping>) -> Attempt<bool> {
        let mut pieces = self.pieces_ahead(file, share);
        let mut is_told = false;
        for _ in 0..QUESTIONS_MAX {
            let (count, last) = self.ask_for_places(file, share.server, pieces, &mapping).await?;
            is_told |= count > 0;
            // With so many places not all chunks may have been told of: those behind the last that was are left.
            let is_left = |chunk: &u64| count > PLACE_COUNT_MAX / 2 && *chunk > last;
            let left = share.pieces.iter().map(|read| read.chunk_index).filter(is_left);
            let mut left: Vec<ChunkRange> = left.map(first_byte).collect();
            left.dedup();
            if left.is_empty() {
                break;
            }
            pieces = Pieces(left);
        }
        Ok(is_told)
    }

    /// Asks where the bytes of chunks are. Returns the number of places that were told, and the last chunk among them.
    async fn ask_for_places(
        &self,
        file: &File,
        server: u32,
        pieces: Pieces,
        mapping: &Rc<StoreMapping>,
    ) -> Attempt<(usize, u64)> {
        const NOTHING: (usize, u64) = (0, 0);
        let request = DataRequest { file: file.id, layout: file.layout, pieces, sums: Vec::new() }.to_bytes();
        let reply = match self.send(server, Call::encoded(Operation::Locate, request)).await {
            Err(request_error) if !is_answer(request_error.status()) => return Err(request_error),
            Err(_) => return Ok(NOTHING),
            Ok(reply) => reply,
        };
        let Ok(reply) = LocateReply::from_bytes(&reply.params) else { return Ok(NOTHING) };
        let mut places = reply.places.as_slice();
        while let Some(first) = places.first() {
            let count = places.iter().take_while(|place| place.chunk == first.chunk).count();
            let (of_chunk, rest) = places.split_at(count);
            let known =
                ChunkPlaces { mapping: mapping.clone(), proof: Proof::Stamps(reply.number), places: of_chunk.to_vec() };
            self.places.put(file.id, first.chunk, known);
            places = rest;
        }
        Ok((reply.places.len(), reply.places.last().map_or(0, |place| place.chunk)))
    }

    /// Copies pieces of a file, one behind the other, from places that are known. Each chunk counts for itself, as with
    /// reads through servers: it is as it was at one moment.
    pub(crate) async fn copy_known(&self, file: &File, pieces: &[ChunkRange], into: &mut [IoSliceMut<'_>]) -> Found {
        let mut target = CallerMemory { slices: into, index: 0, position: 0 };
        let mut copied = Found::Unknown;
        for piece in pieces {
            let Some(known) = self.places.get(file.id, piece.chunk_index) else { return Found::Unknown };
            copied = self.copy_chunk(file, &known, piece, &mut target).await;
            if matches!(copied, Found::Unknown | Found::Hole) {
                break;
            }
        }
        copied
    }

    async fn copy_chunk(
        &self,
        file: &File,
        known: &ChunkPlaces,
        piece: &ChunkRange,
        target: &mut CallerMemory<'_, '_>,
    ) -> Found {
        if known.mapping.has_ended() {
            self.places.forget(file.id, piece.chunk_index);
            return Found::Unknown;
        }
        let mut snapshot = Snapshot::new(self, known.mapping.clone());
        if !snapshot.step(|snapshot| snapshot.is_unwritten(file.id)).await {
            // The server takes up what was submitted before it answers.
            return Found::Hole;
        }
        snapshot.bytes(known, piece);
        let mut parts = known.parts(piece);
        for part in parts.by_ref() {
            if !snapshot.step(|snapshot| target.copy(snapshot, &part)).await {
                return Found::Hole;
            }
        }
        if parts.is_whole() && snapshot.holds() {
            return Found::Copied(known.mapping.clone());
        }
        // Once more for each time that the server was asked, for somebody may have filled the hole.
        self.places.forget(file.id, piece.chunk_index);
        if parts.is_whole() { Found::Unknown } else { Found::Hole }
    }

    /// Takes in what an open was told along with its reply, so that the first read needs no question.
    pub(crate) fn note_told(
        &self,
        attributes: &Attributes,
        wish: OpenExtras,
        places: Option<LocateReply>,
        contents: Option<LeasedContents>,
    ) {
        match (wish, places, contents) {
            (OpenExtras::Places(mapping), Some(told), _) => self.note_places(attributes.id, mapping, told),
            (OpenExtras::Contents(asked), _, Some(told)) if told.bytes.len() as u64 == attributes.size => {
                self.read_leases.note(attributes.id, asked, told);
            }
            _ => {}
        }
    }

    fn note_places(&self, file: FileId, mapping: Rc<StoreMapping>, told: LocateReply) {
        if told.places.iter().all(|place| place.chunk == 0) {
            told.places.iter().for_each(|place| mapping.prefetch(place.at, u64::from(place.size)));
            let proof = Proof::Stamps(told.number);
            self.places.put(file, 0, ChunkPlaces { mapping, proof, places: told.places });
        }
    }

    /// Takes in where an attribute cache says that all bytes of a small file are.
    pub(crate) fn note_first_bytes(&self, file: FileId, first: FirstBytes, inode: &CellVersion) {
        if first.size == 0 {
            return;
        }
        let mapping = inode.mapping().clone();
        mapping.prefetch(first.at, u64::from(first.size));
        let places = vec![BytePlace { chunk: 0, offset: 0, size: first.size, at: first.at }];
        self.places.put(file, 0, ChunkPlaces { mapping, proof: Proof::Cell(inode.clone()), places });
    }
}

/// What an open wants to be told along with its reply.
pub(crate) enum OpenExtras {
    Nothing,
    /// Where the first bytes are, in what the server lends us.
    Places(Rc<StoreMapping>),
    /// The contents of a small file. Counted from this moment, before it was asked.
    Contents(Nanos),
}

impl OpenExtras {
    /// The flag of the request.
    pub(crate) fn flag(&self) -> u32 {
        match self {
            OpenExtras::Nothing => 0,
            OpenExtras::Places(_) => open_flags::PLACES,
            OpenExtras::Contents(_) => open_flags::CONTENTS,
        }
    }
}

impl Common {
    /// Whether a server lends us what it has in memory.
    pub(crate) fn may_short_circuit(&self, server: u32) -> bool {
        self.mapping(server).is_some()
    }

    /// What an open is to be told that is about to be sent: something that saves the first read its question, in a
    /// request whose reply is not kept. Who opens a file to change it would wait for the end of his own lease.
    pub(crate) fn wish_of_open(&self, server: u32, how: &OpenHow) -> OpenExtras {
        if !how.read || how.create || how.truncate {
            return OpenExtras::Nothing;
        }
        match self.mapping(server) {
            Some(mapping) => OpenExtras::Places(mapping),
            None if how.write => OpenExtras::Nothing,
            None => OpenExtras::Contents(self.reactor.now()),
        }
    }

    /// What a server lends us, if anything.
    fn mapping(&self, server: u32) -> Option<Rc<StoreMapping>> {
        self.channel(server).mapping()
    }
}

/// What a look at known places came to.
pub(crate) enum Found {
    /// The bytes are in the caller's memory, and true; where they were, the last of them.
    Copied(Rc<StoreMapping>),
    /// The server did not tell of all of these bytes when it was asked.
    Hole,
    /// Nothing is known, or not any more.
    Unknown,
}

/// The caller's memory, filled from the front.
struct CallerMemory<'t, 'm> {
    slices: &'t mut [IoSliceMut<'m>],
    index: usize,
    position: usize,
}

impl CallerMemory<'_, '_> {
    fn copy(&mut self, snapshot: &Snapshot<'_>, part: &BytesPart) -> bool {
        let mut done = 0;
        while done < part.size {
            let slice = &mut self.slices[self.index];
            let size = (slice.len() - self.position).min(part.size - done);
            if !snapshot.copy(part.at + done as u64, &mut slice[self.position..self.position + size]) {
                return false;
            }
            done += size;
            self.position += size;
            if self.position == slice.len() {
                self.index += 1;
                self.position = 0;
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: more and more chunks are asked for where reads go on, up to a bound; who goes back or far ahead begins
    /// anew.
    #[test]
    fn runs_grow() {
        let mut run = Run::going_on(None, 3);
        assert_eq!((run.end, run.ahead), (3, 0));
        for ahead in [1, 3, 7, 15, 15] {
            run = Run::going_on(Some(run), run.end + 2);
            assert_eq!(run.ahead, ahead);
        }
        assert_eq!(Run::going_on(Some(run), run.end - 1).ahead, 0);
        assert_eq!(Run::going_on(Some(run), run.end + AHEAD_RANGE).ahead, 0);
    }
}
