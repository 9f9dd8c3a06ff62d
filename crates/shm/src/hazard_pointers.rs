//! Words by which a client of this machine says, in memory that it shares with a server, what the server is to keep for
//! it (hazard pointers: Michael, "Hazard Pointers: Safe Memory Reclamation for Lock-Free Objects", IEEE TPDS 15(6),
//! 2004): here files that it has open without having said so by a message.
//!
//! Invariants
//! 1. A client writes an id, then fences, then looks whether what led it there still stands (a cell of the server's
//!    attribute cache) and whether the server looks at its words: if not, it takes the id back, and has nothing.
//! 2. A server that is about to give something up first takes away what leads there, then fences, then looks for the
//!    id. So at least one of the two sees what the other one has written.
//! 3. Before it looks at the words no more, a server says so, fences, and takes over what is there.
//!    A client that takes an id back fences after that, and looks whether the server still looks.
//! 4. The server trusts no word: an id that nobody should hold keeps a file that has lost its name until the connection
//!    ends, as an open does.

use crate::mapping::Layout;
#[cfg(not(loom))]
use crate::sync::LINE_SIZE;
use crate::sync::{AtomicU64, Barrier, CacheLine, Ordering, fence_at, order_at};

/// Ids that a client can hold over one connection.
#[cfg(not(loom))]
pub const HAZARD_COUNT: usize = 64;
#[cfg(loom)]
pub const HAZARD_COUNT: usize = 2;

/// The words of one client.
#[repr(C)]
#[cfg_attr(loom, derive(Default))]
pub struct Hazards {
    /// Client: how many ids there are.
    count: CacheLine<AtomicU64>,
    /// Client: ids, 0 where there is none.
    ids: [AtomicU64; HAZARD_COUNT],
    /// Server: the number of its life, while it looks at these words; else 0.
    server: CacheLine<AtomicU64>,
}

#[cfg(not(loom))]
const _: () = {
    use std::mem::offset_of;
    assert!(offset_of!(Hazards, ids) == LINE_SIZE && offset_of!(Hazards, server) == (1 + 8) * LINE_SIZE);
    assert!(size_of::<Hazards>() == 10 * LINE_SIZE);
};

// SAFETY: atomics alone.
unsafe impl Layout for Hazards {}

impl Hazards {
    /// Client: asks the server to keep what has an id, as the one at `place`, `count` with it. What led to it is to be
    /// looked at again after this, and whether it `stands`.
    #[inline]
    pub fn hold(&self, place: usize, id: u64, count: u64) {
        // Whoever finds another id here than that which was here before knows that this one was let go of.
        self.ids[place].store(id, order_at(Barrier::HazardIdReuse, Ordering::Release));
        self.count.store(count, Ordering::Relaxed);
        fence_at(Barrier::HazardHold, Ordering::SeqCst);
    }

    /// Client: whether the server looks at what is held, in the life of this number.
    #[inline]
    pub fn stands(&self, life: u64) -> bool {
        life != 0 && self.server.load(order_at(Barrier::HazardStands, Ordering::Acquire)) == life
    }

    /// Client: lets go of what is held at `place`; `count` are left.
    #[inline]
    pub fn let_go(&self, place: usize, count: u64) {
        // What was read under it was read before.
        self.ids[place].store(0, order_at(Barrier::HazardIdLeave, Ordering::Release));
        self.count.store(count, order_at(Barrier::HazardCountLeave, Ordering::Release));
    }

    /// Client, after it has let go of something: whether the server still looks, and so has not taken it over. Whether
    /// anything has happened to it is to be looked at after this.
    #[inline]
    pub fn is_looked_at(&self) -> bool {
        // The counterpart of the fences in `end` and `before_look`.
        fence_at(Barrier::HazardRelease, Ordering::SeqCst);
        self.server.load(Ordering::Relaxed) != 0
    }

    /// Server: looks at these words from now on, in a life of this number, which is not 0.
    #[inline]
    pub fn begin(&self, life: u64) {
        self.server.store(life, order_at(Barrier::HazardBegin, Ordering::Release));
    }

    /// Server: looks at them no more, and takes over what is held.
    pub fn end(&self) -> Vec<u64> {
        self.server.store(0, Ordering::Relaxed);
        fence_at(Barrier::HazardEnd, Ordering::SeqCst);
        self.held().filter(|id| *id != 0).collect()
    }

    /// Server: whether an id is held. To be asked after `before_look`.
    #[inline]
    pub fn has(&self, id: u64) -> bool {
        self.count.load(order_at(Barrier::HazardCountLook, Ordering::Acquire)) != 0
            && self.held().any(|held| held == id)
    }

    #[inline]
    fn held(&self) -> impl Iterator<Item = u64> {
        self.ids.iter().map(|id| id.load(order_at(Barrier::HazardIdLook, Ordering::Acquire)))
    }
}

/// Server: between taking away what leads to something and looking whether anybody holds it.
#[inline]
pub fn before_look() {
    fence_at(Barrier::HazardLook, Ordering::SeqCst);
}
