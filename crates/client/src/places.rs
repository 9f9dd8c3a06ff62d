//! Reading without the server: where bytes of chunks lie in the region that a server of this machine lends us.
//!
//! A server asked once tells the places of all that it holds of a chunk, and the number of the last change. As long as the
//! stamps of those places are not above that number, the bytes are there, and are the chunk's: whatever changes either is
//! stamped first ([`reactor::Window`]). So a read copies, looks at the stamps, and is done, without a message; if a stamp
//! has moved on, it asks anew, and in the end reads as everybody else does.

use crate::file::{File, OpenHow};
use crate::servers::{Common, Servers};
use crate::stripe::Share;
use reactor::Window;
use reactor::channel::Call;
use std::cell::RefCell;
use std::io::IoSliceMut;
use std::rc::Rc;
use wire::messages::{BytePlace, DataRequest, LocateReply, Pieces, open_flags};
use wire::{Decode, Encode, FastMap, FileId, Operation};

/// Chunks remembered at most.
const CHUNKS_MAX: usize = 1_024;
/// A read of fewer bytes than this is answered by the server at once, unless the places are known.
const SIZE_MIN: usize = 4_096;
/// Questions about a read whose bytes change, before the server reads for us.
const ATTEMPTS_MAX: usize = 1;

/// What is known of one chunk.
struct ChunkPlaces {
    window: Rc<Window>,
    number: u64,
    places: Vec<BytePlace>,
}

/// What is known of many.
#[derive(Default)]
pub(crate) struct PlaceCache {
    chunks: RefCell<FastMap<(FileId, u64), Rc<ChunkPlaces>>>,
}

impl PlaceCache {
    fn get(&self, file: FileId, chunk: u64) -> Option<Rc<ChunkPlaces>> {
        self.chunks.borrow().get(&(file, chunk)).cloned()
    }

    fn put(&self, file: FileId, chunk: u64, known: ChunkPlaces) {
        let mut chunks = self.chunks.borrow_mut();
        if chunks.len() >= CHUNKS_MAX {
            // Rare enough, and whatever is still in use is asked for again.
            chunks.clear();
        }
        chunks.insert((file, chunk), Rc::new(known));
    }

    fn forget(&self, file: FileId, chunk: u64) {
        self.chunks.borrow_mut().remove(&(file, chunk));
    }
}

/// Part of a piece that is to be copied.
struct Part {
    at: u64,
    size: usize,
}

impl ChunkPlaces {
    /// The parts of `offset..offset + size` of the chunk. False if not all of it is known.
    fn find(&self, offset: u32, size: u32, parts: &mut Vec<Part>) -> bool {
        let (mut next, end) = (u64::from(offset), u64::from(offset) + u64::from(size));
        for place in &self.places {
            let (start, stop) = (u64::from(place.offset), u64::from(place.offset) + u64::from(place.size));
            if next < start {
                return false;
            }
            if next >= stop {
                continue;
            }
            let part_size = stop.min(end) - next;
            parts.push(Part { at: place.at + (next - start), size: part_size as usize });
            next += part_size;
            if next == end {
                return true;
            }
        }
        false
    }
}

impl Servers {
    /// Reads a share of a read of `size` bytes from the region that its server lends. False if it has to be read through the server; what is in the
    /// caller's memory then has no meaning.
    pub(crate) async fn read_lent(&self, file: &File, share: &mut Share<IoSliceMut<'_>>, size: usize) -> bool {
        for _ in 0..ATTEMPTS_MAX {
            match self.copy_known(file, share).await {
                Found::Copied => return true,
                Found::Hole => return false,
                Found::Unknown => {}
            }
            let wanted = |window: &Rc<Window>| size >= SIZE_MIN || window.is_simulated();
            let Some(window) = self.window(share.server).filter(wanted) else { return false };
            if !self.locate(file, share, window).await {
                return false;
            }
        }
        matches!(self.copy_known(file, share).await, Found::Copied)
    }

    /// Asks where the bytes of all chunks of a share are. False if the server does not say.
    async fn locate(&self, file: &File, share: &Share<IoSliceMut<'_>>, window: Rc<Window>) -> bool {
        let request =
            DataRequest { file: file.id, layout: file.layout, pieces: Pieces(share.pieces.clone()) }.to_bytes();
        let Ok(reply) = self.send(share.server, Call::encoded(Operation::Locate, request)).await else { return false };
        let Ok(reply) = LocateReply::from_bytes(&reply.params) else { return false };
        let mut places = reply.places.as_slice();
        while let Some(first) = places.first() {
            let count = places.iter().take_while(|place| place.chunk == first.chunk).count();
            let (of_chunk, rest) = places.split_at(count);
            let known = ChunkPlaces { window: window.clone(), number: reply.number, places: of_chunk.to_vec() };
            self.places.put(file.id, first.chunk, known);
            places = rest;
        }
        !reply.places.is_empty()
    }

    /// Takes in what an open was told of the start of a file, so that the first read needs no question. `wish` is what was
    /// there to read from when the open was sent.
    pub(crate) fn note_places(&self, file: FileId, wish: PlacesWish, told: Option<LocateReply>) {
        let (Some(window), Some(told)) = (wish.window, told) else { return };
        if told.places.iter().all(|place| place.chunk == 0) {
            told.places.iter().for_each(|place| window.bring_near(place.at, u64::from(place.size)));
            self.places.put(file, 0, ChunkPlaces { window, number: told.number, places: told.places });
        }
    }
}

/// What an open that may be told places asks with.
pub(crate) struct PlacesWish {
    window: Option<Rc<Window>>,
}

impl PlacesWish {
    /// The flag of the request.
    pub(crate) fn flag(&self) -> u32 {
        if self.window.is_some() { open_flags::PLACES } else { 0 }
    }
}

impl Common {
    /// Whether a server lends us what it has in memory.
    pub(crate) fn may_be_lent(&self, server: u32) -> bool {
        self.window(server).is_some()
    }

    /// Whether an open wants to be told where the file's first bytes are: to read them, with something to read them from,
    /// and in a request whose reply is not kept.
    pub(crate) fn wish_for_places(&self, server: u32, how: &OpenHow) -> PlacesWish {
        let is_for_reading = how.read && !how.create && !how.truncate;
        PlacesWish { window: if is_for_reading { self.window(server) } else { None } }
    }

    /// What a server lends us, if anything.
    fn window(&self, server: u32) -> Option<Rc<Window>> {
        self.channel(server).window()
    }

    /// Copies a share from places that are known.
    async fn copy_known(&self, file: &File, share: &mut Share<IoSliceMut<'_>>) -> Found {
        let mut chunks = Vec::with_capacity(share.pieces.len());
        let mut parts = Vec::with_capacity(share.pieces.len());
        for piece in &share.pieces {
            let Some(known) = self.places.get(file.id, piece.chunk_index) else { return Found::Unknown };
            let before = parts.len();
            if !known.find(piece.chunk_offset, piece.size, &mut parts) {
                // Once more for each time that the server was asked, for somebody may have filled the hole.
                self.places.forget(file.id, piece.chunk_index);
                return Found::Hole;
            }
            chunks.push((piece.chunk_index, known, before..parts.len()));
        }
        let mut target = Target { slices: &mut share.slices, index: 0, position: 0 };
        for (_, known, range) in &chunks {
            for part in &parts[range.clone()] {
                if !target.copy(&known.window, part) {
                    return Found::Hole;
                }
                if known.window.is_simulated() {
                    // Others do something meanwhile, as the processors of a real machine would.
                    self.reactor.sleep(self.reactor.random() % 50_000).await;
                }
            }
        }
        let mut unchanged = true;
        for (chunk, known, range) in &chunks {
            let same = parts[range.clone()]
                .iter()
                .all(|part| known.window.is_unchanged(part.at, part.size as u64, known.number));
            if !same {
                self.places.forget(file.id, *chunk);
                unchanged = false;
            }
        }
        if unchanged { Found::Copied } else { Found::Unknown }
    }
}

/// What a look at known places came to.
enum Found {
    /// The bytes are in the caller's memory, and true.
    Copied,
    /// The server did not tell of all of these bytes when it was asked.
    Hole,
    /// Nothing is known, or not any more.
    Unknown,
}

/// The caller's memory, filled from the front.
struct Target<'t, 'm> {
    slices: &'t mut [IoSliceMut<'m>],
    index: usize,
    position: usize,
}

impl Target<'_, '_> {
    fn copy(&mut self, window: &Window, part: &Part) -> bool {
        let mut done = 0;
        while done < part.size {
            let slice = &mut self.slices[self.index];
            let size = (slice.len() - self.position).min(part.size - done);
            if !window.copy(part.at + done as u64, &mut slice[self.position..self.position + size]) {
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
