//! Version stamps: a table that says when which part of a large memory has changed last, for those who copy bytes out
//! of it without asking.
//!
//! The table has a word for each 64 KiB; several parts share one where the memory is large. Before any byte changes, or
//! what bytes stand for, the owner raises a number and writes it as the stamp of all that is concerned. Who was told at
//! number `n` where some bytes are, copies them and then looks at their stamps: none above `n` means that the copy is
//! what the bytes were all the time since then; else the copy is worth nothing.
//!
//! Invariants
//! 1. A stamp is written before the first byte changes (release fence between, which holds for non-temporal stores
//!    too), and read after the last byte was copied (acquire fence between). So a copy that holds a changed byte is
//!    followed by a look that sees its stamp.
//! 2. The number only grows, also from one life of the owner to the next, which begins by stamping everything.

use crate::mapping::Layout;
use crate::sync::{AtomicU64, Barrier, Ordering, fence_at};

#[cfg(not(loom))]
const STAMP_COUNT: usize = 1 << 16;
#[cfg(loom)]
const STAMP_COUNT: usize = 2;
/// Bytes that have one stamp.
const GRANULE: u64 = 64 << 10;
/// Size of a table of stamps in bytes.
pub const STAMPS_SIZE: u64 = STAMP_COUNT as u64 * 8;

/// A table of stamps.
#[repr(C)]
#[cfg_attr(loom, derive(Default))]
pub struct Stamps([AtomicU64; STAMP_COUNT]);

#[cfg(not(loom))]
const _: () = assert!(size_of::<Stamps>() as u64 == STAMPS_SIZE);

// SAFETY: atomics alone.
unsafe impl Layout for Stamps {}

impl Stamps {
    #[inline]
    fn of_range(&self, offset: u64, size: u64) -> impl Iterator<Item = &AtomicU64> {
        let (first, last) = (offset / GRANULE, (offset + size).div_ceil(GRANULE));
        let count = (last - first).min(STAMP_COUNT as u64);
        (first..first + count).map(|granule| &self.0[granule as usize % STAMP_COUNT])
    }

    /// Owner: stamps a range, whose bytes change after this.
    #[inline]
    pub fn stamp(&self, offset: u64, size: u64, number: u64) {
        for stamp in self.of_range(offset, size) {
            stamp.store(number, Ordering::Relaxed);
        }
        fence_at(Barrier::StampFirst, Ordering::Release);
        // On x86 non-temporal stores pass earlier ones otherwise. The C library's copies of much memory may use them.
        #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
        // SAFETY: only orders memory accesses.
        unsafe {
            std::arch::x86_64::_mm_sfence();
        }
    }

    /// Owner, when its life begins: stamps everything with a number above all that there were, and returns that.
    pub fn begin(&self) -> u64 {
        let newest = self.0.iter().map(|stamp| stamp.load(Ordering::Relaxed)).max().unwrap_or(0);
        self.stamp(0, STAMP_COUNT as u64 * GRANULE, newest + 1);
        newest + 1
    }

    /// Whether nothing in the range has changed since the owner was at `number`; asked when the bytes are copied. No
    /// stamp at all is a medium that has lost everything.
    #[inline]
    pub fn is_unchanged(&self, offset: u64, size: u64, number: u64) -> bool {
        fence_at(Barrier::StampLastLook, Ordering::Acquire);
        self.of_range(offset, size).all(|stamp| (1..=number).contains(&stamp.load(Ordering::Relaxed)))
    }
}
