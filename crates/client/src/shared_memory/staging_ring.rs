//! The registered pages that a server copies from: they are used again and again, as a ring, so that they stay in the
//! processors' caches.
//!
//! Invariants
//! 1. Pages are used again only after the server has taken up what was submitted of them; so never once the connection
//!    has ended, for then nobody knows.
//! 2. They are given back only when nothing of them waits.

use crate::servers::Common;
use crate::shared_memory::registered_buffers::{PAGE, Registered};
use reactor::StoreMapping;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use wire::submission::{STAGING_RING_SIZE, SUBMITTED_SIZE_MAX};

/// A ring of fewer bytes is not worth the while, nor is a registered buffer.
pub(crate) const RING_SIZE_MIN: u64 = 2 * SUBMITTED_SIZE_MAX as u64;

/// The rings of a client at all servers together, as long as none is smaller than the second: where more processes take
/// turns on a core than it has room in its caches for, smaller rings are faster.
const RINGS_SIZE: u64 = 2 << 20;
const RING_SIZE_OF_MANY: u64 = 256 << 10;

/// Pages that bytes wait in until the server has taken them up.
pub(crate) struct StagingRing {
    pub buffer: Rc<Registered>,
    start: u64,
    end: u64,
    next: Cell<u64>,
    /// What is used, in the order in which it was taken.
    parts: RefCell<VecDeque<RingPart>>,
}

struct RingPart {
    at: u64,
    state: PartState,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum PartState {
    Filling,
    /// By this submission of ours.
    Submitted(u64),
    Free,
}

impl StagingRing {
    /// A ring of up to so many bytes, in pages that nothing else is done with; nothing if they are too few.
    pub fn of(buffer: &Rc<Registered>, size: u64) -> Option<StagingRing> {
        let size = buffer.left().min(size);
        let start = (size >= RING_SIZE_MIN).then(|| buffer.take(size))?;
        Some(StagingRing {
            buffer: buffer.clone(),
            start,
            end: start + size,
            next: Cell::new(start),
            parts: RefCell::default(),
        })
    }

    pub fn mapping(&self) -> &Rc<StoreMapping> {
        &self.buffer.mapping
    }

    /// Whether nothing of it waits for the server `owner` has submitted it to.
    pub fn is_free(&self, owner: u64) -> bool {
        self.free_taken(owner);
        self.parts.borrow().is_empty()
    }

    fn free_taken(&self, owner: u64) {
        let mut parts = self.parts.borrow_mut();
        while let Some(part) = parts.front() {
            match part.state {
                PartState::Filling => break,
                PartState::Submitted(number) if self.mapping().is_waiting(owner, number) => break,
                PartState::Submitted(_) | PartState::Free => drop(parts.pop_front()),
            }
        }
    }

    /// The first of so many bytes, in pages of their own, if there are some.
    fn take(&self, size: u64) -> Option<u64> {
        let size = size.next_multiple_of(PAGE);
        let mut parts = self.parts.borrow_mut();
        let next = self.next.get();
        let at = match parts.front() {
            None => (self.start + size <= self.end).then_some(self.start)?,
            Some(first) if first.at < next && next + size <= self.end => next,
            Some(first) if first.at < next => (self.start + size <= first.at).then_some(self.start)?,
            Some(first) => (next + size <= first.at).then_some(next)?,
        };
        self.next.set(at + size);
        parts.push_back(RingPart { at, state: PartState::Filling });
        Some(at)
    }

    /// The same, if need be after the server was let run. Nothing once the connection has ended: what a killed server
    /// has not taken up is made by its next life, of the bytes that lie here then.
    pub fn take_soon(self: &Rc<Self>, size: u64, owner: u64) -> Option<RingSlice> {
        if self.mapping().has_ended() {
            return None;
        }
        self.free_taken(owner);
        let at = self.take(size).or_else(|| {
            let oldest = self.parts.borrow().front().map(|part| part.state);
            let Some(PartState::Submitted(number)) = oldest else { return None };
            if !self.mapping().waits_until_taken(owner, number) {
                return None;
            }
            self.free_taken(owner);
            self.take(size)
        })?;
        Some(RingSlice { staging_ring: self.clone(), at, submitted: None })
    }
}

/// Bytes of a ring for one write; free again when this is dropped, unless they were submitted.
pub(crate) struct RingSlice {
    staging_ring: Rc<StagingRing>,
    /// The first byte of its pages in the region.
    pub at: u64,
    /// By this submission.
    pub submitted: Option<u64>,
}

impl Drop for RingSlice {
    fn drop(&mut self) {
        let state = self.submitted.map_or(PartState::Free, PartState::Submitted);
        let mut parts = self.staging_ring.parts.borrow_mut();
        if let Some(part) = parts.iter_mut().rev().find(|part| part.at == self.at && part.state == PartState::Filling) {
            part.state = state;
        }
    }
}

impl Common {
    /// Bytes of a ring of a client of so many servers.
    pub(crate) fn ring_size(&self) -> u64 {
        let size = RINGS_SIZE / u64::from(self.cluster.server_count()).max(1);
        size.clamp(RING_SIZE_OF_MANY, STAGING_RING_SIZE).next_multiple_of(PAGE)
    }

    /// Whether nothing that was submitted of a ring waits.
    pub(crate) fn is_settled(&self, staging_ring: Option<&Rc<StagingRing>>) -> bool {
        staging_ring.is_none_or(|staging_ring| staging_ring.is_free(self.session()))
    }
}
