//! Who is at work on a chunk just now: readers whose bytes must not change, writers whose bytes are on their way.
//!
//! Nothing here outlives the process.
//!
//! Invariants
//! 1. A pin taken at clock p refers only to extents with `birth` < p, and to none that left the chunk before p.
//! 2. An extent that left its chunk is recycled only when no pin p with `birth` < p <= `gone_at` is left.
//! 3. Bytes under a writer that lands in place (`Pin::in_place`) are written by nobody else.

use super::allocator::Run;
use super::chunk::{self, Extent};
use super::inline_vec::InlineVec;

/// One reader or writer.
pub struct Pin {
    /// Clock when it began; identifies it.
    pub at: u64,
    /// Bytes of the chunk that this writer's body arrives in, when they belong to the chunk's own extents, in order.
    pub in_place: InlineVec<(u32, u32)>,
    /// Whether it is a reader.
    pub reader: bool,
}

/// An extent that left its chunk while somebody may still use it.
struct DepartedExtent {
    extent: Extent,
    gone_at: u64,
}

/// Readers and writers of one chunk.
#[derive(Default)]
pub struct ActiveChunk {
    pins: Vec<Pin>,
    held: Vec<DepartedExtent>,
    readers: u32,
    /// Bytes from here on may be seen by readers though the chunk no longer has them (truncated).
    frozen_from: Option<u32>,
    /// Space given to the chunk by writers that have not committed; the journal does not know it yet.
    pub capacity: InlineVec<Extent>,
    /// The file was reaped: writers fail.
    pub reaped: bool,
}

impl ActiveChunk {
    /// Registers a reader or writer.
    pub fn pin(&mut self, pin: Pin) {
        self.readers += u32::from(pin.reader);
        self.pins.push(pin);
    }

    /// Removes one; extents that nobody uses any more are appended to `free`, those that never were part of a committed
    /// chunk to `unused`. True when nobody is left.
    pub fn unpin(&mut self, at: u64, free: &mut Vec<Run>, unused: &mut Vec<Run>) -> bool {
        let position = self.pins.iter().position(|pin| pin.at == at).expect("a pin is removed once");
        let pin = self.pins.swap_remove(position);
        self.readers -= u32::from(pin.reader);
        if self.readers == 0 {
            self.frozen_from = None;
        }
        let pins = &self.pins;
        self.held.retain(|held| {
            let keep = is_used(pins, held.extent.birth, held.gone_at);
            if !keep {
                free.push(held.extent.run());
            }
            keep
        });
        if self.pins.iter().all(|pin| pin.reader) {
            unused.extend(std::mem::take(&mut self.capacity).iter().map(Extent::run));
        }
        self.pins.is_empty()
    }

    /// An extent leaves the chunk: it is appended to `free`, or held as long as somebody may use it.
    pub fn let_go(&mut self, extent: Extent, now: u64, free: &mut Vec<Run>) {
        if is_used(&self.pins, extent.birth, now) {
            self.held.push(DepartedExtent { extent, gone_at: now });
        } else {
            free.push(extent.run());
        }
    }

    /// Whether anybody reads the chunk.
    pub fn has_readers(&self) -> bool {
        self.readers > 0
    }

    /// Bytes from `start` on leave the chunk but readers may still see them where they are.
    pub fn freeze(&mut self, start: u32) {
        if self.readers > 0 {
            self.frozen_from = Some(self.frozen_from.map_or(start, |frozen| frozen.min(start)));
        }
    }

    /// Whether nobody has a claim on bytes `from..to`; the writer `except` does not count.
    pub fn is_unclaimed(&self, from: u32, to: u32, except: Option<u64>) -> bool {
        let thawed = self.frozen_from.is_none_or(|frozen| to <= frozen);
        thawed && !self.has_other_landing(from, to, except)
    }

    /// Whether a writer other than `except` lands in place in bytes `from..to`.
    pub fn has_other_landing(&self, from: u32, to: u32, except: Option<u64>) -> bool {
        self.pins.iter().any(|pin| Some(pin.at) != except && chunk::has_bytes_of(&pin.in_place, from, to))
    }

    /// Number of byte ranges that writers land in place in.
    pub fn landing_count(&self) -> usize {
        self.pins.iter().map(|pin| pin.in_place.len()).sum()
    }

    /// Runs that are held here and are in no chunk.
    pub fn held_runs(&self) -> impl Iterator<Item = Run> {
        self.held.iter().map(|held| held.extent.run()).chain(self.capacity.iter().map(Extent::run))
    }
}

fn is_used(pins: &[Pin], birth: u64, gone_at: u64) -> bool {
    pins.iter().any(|pin| birth < pin.at && pin.at <= gone_at)
}
