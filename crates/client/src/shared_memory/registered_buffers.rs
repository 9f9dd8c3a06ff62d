//! Pages of servers of this machine that are registered for us to write to (docs/shared-memory.md): which there
//! are, when more are asked for, and when they are given back. What is written into them, and how that comes to the
//! file, is in [`crate::shared_memory::local_write`].
//!
//! A registered buffer is a run of pages of the server's memory that nobody else is given while we have it mapped. It
//! is used from its front to its end, each page once, and then unmapped and given back; the next one was asked for
//! meanwhile, so that no write waits for one. Whoever has none, or writes little, sends the bytes along as everybody
//! else does. Which writes pages are for is decided by their size and place alone (`is_for_pages`), and the first ones
//! are asked for by the second such write in a row: a client that makes one now and then would hold pages for nothing.
//!
//! Invariants
//! 1. Only pages of a registered buffer that came over the connection whose mapping they are mapped through are written
//!    to.
//! 2. A page is used by one write. After its commit was sent it is never written to again, whatever comes of that.
//! 3. A registered buffer is given back when the last write that uses it has let go of it, for then it is unmapped.

use crate::bytes::stripe::Share;
use crate::open_files::file::File;
use crate::servers::Common;
use crate::shared_memory::staging_ring::{RING_SIZE_MIN, StagingRing};
use reactor::channel::Call;
use reactor::{Class, Nanos, RegisteredPages, StoreMapping};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io::IoSlice;
use std::rc::Rc;
use wire::layout::ChunkRange;
use wire::messages::{BUFFER_COUNT_MAX, REGISTERED_PIECE_COUNT_MAX, RegisterBuffersReply, RegisterBuffersRequest};
use wire::{Decode, Operation};

pub(crate) const PAGE: u64 = 4096;
/// Pieces of fewer bytes travel with their message; those that are less than their chunk do below the second size, so
/// that a chunk does not come to lie in very many places.
const PIECE_SIZE_MIN: u32 = 16 << 10;
const PART_SIZE_MIN: u32 = 64 << 10;
/// Writes in a row that pages are for before the first are asked for.
const SUITED_COUNT_MIN: u32 = 2;
/// Bytes asked for at a time.
const BUFFER_SIZE: u64 = 8 << 20;
/// With fewer bytes left than two writes of this size take, but no fewer than the first and no more than the second,
/// more are asked for.
const AHEAD_SIZE_MIN: u64 = 1 << 20;
const AHEAD_SIZE_MAX: u64 = 32 << 20;
/// Time for which a server that has registered nothing is not asked again.
const REFUSED_NS: Nanos = 1_000_000_000;
/// A client that has not used its registered buffers for this long gives them back.
const IDLE_NS: Nanos = 2_000_000_000;

/// One registered buffer.
pub(crate) struct Registered {
    pub generation: u64,
    /// First byte in the region that was not used yet, and the byte after the last.
    next: Cell<u64>,
    end: u64,
    pub mapping: Rc<StoreMapping>,
    /// Unmapped before it is noted as given back.
    pub pages: Option<RegisteredPages>,
    returned: Rc<RefCell<Vec<u64>>>,
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.pages = None;
        self.returned.borrow_mut().push(self.generation);
    }
}

impl Registered {
    pub(crate) fn left(&self) -> u64 {
        self.end - self.next.get()
    }

    /// Takes so many bytes, which are left, and returns the first.
    pub(crate) fn take(&self, size: u64) -> u64 {
        self.next.replace(self.next.get() + size)
    }
}

/// What one server has registered.
#[derive(Default)]
struct OfServer {
    /// The first one is in use.
    buffers: Vec<Rc<Registered>>,
    /// Where bytes wait that were submitted.
    staging_ring: Option<Rc<StagingRing>>,
    /// Generations that the server is to be told of.
    returned: Rc<RefCell<Vec<u64>>>,
    is_asking: bool,
    /// Writes in a row that pages were for, and writes that might have been submitted.
    suited_count: u32,
    submitted_count: u32,
    refused_at: Option<Nanos>,
    used_at: Nanos,
    /// Whether the task that gives back what nobody uses is at work.
    is_watched: bool,
}

/// What all servers have registered.
#[derive(Default)]
pub(crate) struct RegisteredBuffers {
    servers: RefCell<BTreeMap<u32, OfServer>>,
}

/// Where one piece goes.
pub(crate) struct PiecePages {
    pub buffer: Rc<Registered>,
    /// The first byte of its pages in the region.
    pub at: u64,
}

impl Common {
    /// Pages for all pieces of a share, if it is one that registered pages are for, and has them.
    pub(crate) fn take_pages(&self, file: &File, share: &Share<IoSlice<'_>>) -> Option<Vec<PiecePages>> {
        let chunk_size = file.layout.chunk_size;
        // In simulations every piece is one, so that edges of all kinds are met.
        let is_simulated = self.reactor.is_simulated();
        let is_suited = |piece: &ChunkRange| is_simulated || is_for_pages(piece, chunk_size);
        if share.pieces.len() > REGISTERED_PIECE_COUNT_MAX || !share.pieces.iter().all(is_suited) {
            if share.size >= PIECE_SIZE_MIN as usize
                && let Some(of_server) = self.buffers.servers.borrow_mut().get_mut(&share.server)
            {
                of_server.suited_count = 0;
            }
            return None;
        }
        self.pages_for(share)
    }

    /// Pages for all pieces of a share, which is one that they are for, if there are some.
    pub(crate) fn pages_for(&self, share: &Share<IoSlice<'_>>) -> Option<Vec<PiecePages>> {
        let mapping = self.channel(share.server).mapping().filter(|mapping| mapping.may_be_registered())?;
        let mut servers = self.buffers.servers.borrow_mut();
        let of_server = servers.entry(share.server).or_default();
        // What was registered for another connection is void.
        of_server.buffers.retain(|buffer| Rc::ptr_eq(&buffer.mapping, &mapping));
        let targets = of_server.take(&share.pieces);
        let left: u64 = of_server.buffers.iter().map(|buffer| buffer.left()).sum();
        let wanted = (2 * share.size as u64).clamp(AHEAD_SIZE_MIN, AHEAD_SIZE_MAX);
        of_server.suited_count = of_server.suited_count.saturating_add(1);
        let is_wanted = left < wanted && of_server.suited_count >= SUITED_COUNT_MIN;
        self.note_use(share.server, of_server, &mapping, is_wanted.then_some(BUFFER_SIZE));
        targets
    }

    /// The ring for what is submitted to a server; nothing as long as it has registered too little.
    pub(crate) fn staging_ring_for(&self, server: u32, mapping: &Rc<StoreMapping>) -> Option<Rc<StagingRing>> {
        let mut servers = self.buffers.servers.borrow_mut();
        let of_server = servers.entry(server).or_default();
        of_server.buffers.retain(|buffer| Rc::ptr_eq(&buffer.mapping, mapping));
        let is_ours = |staging_ring: &Rc<StagingRing>| Rc::ptr_eq(staging_ring.mapping(), mapping);
        let staging_ring = of_server.staging_ring.take().filter(is_ours);
        of_server.staging_ring = staging_ring.or_else(|| {
            of_server.buffers.iter().find_map(|buffer| StagingRing::of(buffer, self.ring_size())).map(Rc::new)
        });
        let staging_ring = of_server.staging_ring.clone();
        of_server.submitted_count = of_server.submitted_count.saturating_add(1);
        let is_wanted = staging_ring.is_none() && of_server.submitted_count >= SUITED_COUNT_MIN;
        self.note_use(server, of_server, mapping, is_wanted.then_some(self.ring_size()));
        staging_ring
    }

    /// Pages are used, or would be; asks for so many bytes if they are wanted.
    fn note_use(&self, server: u32, of_server: &mut OfServer, mapping: &Rc<StoreMapping>, wanted: Option<u64>) {
        let now = self.reactor.now();
        of_server.used_at = now;
        let is_refused = of_server.refused_at.is_some_and(|at| now < at + REFUSED_NS);
        if let Some(size) = wanted
            && !of_server.is_asking
            && !is_refused
        {
            of_server.is_asking = true;
            self.ask_for_pages(server, mapping.clone(), size);
        }
    }

    /// Asks for another registered buffer, in the background.
    fn ask_for_pages(&self, server: u32, mapping: Rc<StoreMapping>, size: u64) {
        let Some(own) = self.own.upgrade() else { return };
        self.reactor.spawn(Class::Data, async move {
            let reply = own.ask_for_buffers(server, size).await;
            let is_same = own.channel(server).mapping().is_some_and(|now| Rc::ptr_eq(&now, &mapping));
            let mut servers = own.buffers.servers.borrow_mut();
            let of_server = servers.entry(server).or_default();
            of_server.is_asking = false;
            // A connection that ended meanwhile: nobody can tell which one the registered buffer belongs to (invariant
            // 1).
            let given = reply.filter(|reply| reply.size > 0);
            let is_too_small = given.as_ref().is_some_and(|reply| reply.size < size.min(RING_SIZE_MIN));
            let is_given = given.is_some();
            let mapped = given.as_ref().filter(|_| is_same && !is_too_small).and_then(|reply| {
                let pages = mapping.registered(reply.at, reply.size).ok()?;
                Some(Registered {
                    generation: reply.generation,
                    next: Cell::new(reply.at),
                    end: reply.at + reply.size,
                    mapping: mapping.clone(),
                    pages: Some(pages),
                    returned: of_server.returned.clone(),
                })
            });
            match (mapped, given) {
                (Some(buffer), _) => of_server.buffers.push(Rc::new(buffer)),
                (None, Some(reply)) => of_server.returned.borrow_mut().push(reply.generation),
                (None, None) => {}
            }
            if is_too_small || !is_given {
                of_server.refused_at = Some(own.reactor.now());
            }
            if !of_server.buffers.is_empty() && !std::mem::replace(&mut of_server.is_watched, true) {
                own.return_when_idle(server);
            }
        });
    }

    /// One `RegisterBuffers`, which also gives back what is to be.
    async fn ask_for_buffers(&self, server: u32, size: u64) -> Option<RegisterBuffersReply> {
        let returned = {
            let mut servers = self.buffers.servers.borrow_mut();
            let list = &servers.entry(server).or_default().returned;
            let mut list = list.borrow_mut();
            let count = list.len().min(BUFFER_COUNT_MAX);
            list.drain(..count).collect()
        };
        let reply = self
            .send(server, Call::new(Operation::RegisterBuffers, &RegisterBuffersRequest { returned, size }))
            .await
            .ok()?;
        RegisterBuffersReply::from_bytes(&reply.params).ok()
    }

    /// Gives all that a server has registered back, for it has no space. False if there is nothing.
    pub(crate) async fn give_back_pages(&self, server: u32) -> bool {
        let had_some = {
            let mut servers = self.buffers.servers.borrow_mut();
            let Some(of_server) = servers.get_mut(&server) else { return false };
            of_server.refused_at = Some(self.reactor.now());
            let has_staging_ring = of_server.staging_ring.is_some() && self.is_settled(of_server.staging_ring.as_ref());
            if has_staging_ring {
                of_server.staging_ring = None;
            }
            has_staging_ring | (of_server.buffers.drain(..).count() > 0)
        };
        had_some && self.ask_for_buffers(server, 0).await.is_some()
    }

    /// Gives everything back once it was not used for a while.
    fn return_when_idle(&self, server: u32) {
        let (own, reactor) = (self.own.clone(), self.reactor.clone());
        self.reactor.spawn(Class::Background, async move {
            loop {
                reactor.sleep(IDLE_NS).await;
                let Some(common) = own.upgrade() else { return };
                let is_idle = {
                    let mut servers = common.buffers.servers.borrow_mut();
                    let of_server = servers.entry(server).or_default();
                    let is_idle = reactor.now() >= of_server.used_at + IDLE_NS
                        && !of_server.is_asking
                        && common.is_settled(of_server.staging_ring.as_ref());
                    if is_idle {
                        of_server.is_watched = false;
                        of_server.buffers.clear();
                        of_server.staging_ring = None;
                        of_server.submitted_count = 0;
                    }
                    is_idle
                };
                if is_idle {
                    // Without a connection there is nothing to give back.
                    if common.channel(server).mapping().is_some() {
                        common.ask_for_buffers(server, 0).await;
                    }
                    return;
                }
            }
        });
    }
}

/// Whether pages are better for a piece than a message: it is whole pages, and much, or all of its chunk.
fn is_for_pages(piece: &ChunkRange, chunk_size: u32) -> bool {
    let size_min = if piece.size == chunk_size { PIECE_SIZE_MIN } else { PART_SIZE_MIN };
    piece.size >= size_min && has_whole_pages(piece, chunk_size)
}

/// Whether a piece is whole pages of its chunk, the last one of which may be shorter.
fn has_whole_pages(piece: &ChunkRange, chunk_size: u32) -> bool {
    let end = u64::from(piece.chunk_offset) + u64::from(piece.size);
    u64::from(piece.chunk_offset).is_multiple_of(PAGE) && (end.is_multiple_of(PAGE) || end == u64::from(chunk_size))
}

/// Bytes of the pages that a piece takes.
fn pages_size(piece: &ChunkRange) -> u64 {
    (u64::from(piece.chunk_offset) % PAGE + u64::from(piece.size)).next_multiple_of(PAGE)
}

impl OfServer {
    /// Takes pages for all pieces, or for none.
    fn take(&mut self, pieces: &[ChunkRange]) -> Option<Vec<PiecePages>> {
        let left: u64 = self.buffers.iter().map(|buffer| buffer.left()).sum();
        if pieces.iter().map(pages_size).sum::<u64>() > left {
            return None;
        }
        let mut targets = Vec::with_capacity(pieces.len());
        for piece in pieces {
            let size = pages_size(piece);
            if !self.buffers.iter().any(|buffer| buffer.left() >= size) {
                return None;
            }
            // What is left of a registered buffer is too little: the next one. Its rest is given back with it.
            while self.buffers.first().is_some_and(|buffer| buffer.left() < size) {
                self.buffers.remove(0);
            }
            let buffer = self.buffers.first()?;
            let at = buffer.take(size);
            targets.push(PiecePages { buffer: buffer.clone(), at });
        }
        Some(targets)
    }
}
