//! Copies of bytes of messages and files.
//!
//! An ordinary copy first reads the memory that it is going to overwrite into the cache, and pushes out what was there;
//! both are in vain where the target is a store's memory. Non-temporal stores go past the cache, a line at a time
//! ([`copy_streaming`]).
//!
//! The C library copies some KiB with one instruction (`rep movsb`), which on some processors has a fifth of its speed
//! where the target lies 1 to 31 bytes behind the source, both counted within their pages: loads then seem to depend on
//! the stores before them. Stores have pages as sources, and large buffers of the C library's begin 16 bytes into a
//! page, so that this is the rule rather than the exception ([`copy`]).

use std::sync::atomic::{AtomicU64, Ordering};

static BYTES_COPIED: AtomicU64 = AtomicU64::new(0);

/// Bytes of messages and files that this process has copied since it started, or had copied by the kernel for its
/// sockets: into and out of stores, shared memory, and buffers. Each time that a byte is copied counts.
#[inline]
pub fn bytes_copied() -> u64 {
    BYTES_COPIED.load(Ordering::Relaxed)
}

/// So many bytes were copied by other means than [`copy`] and [`copy_streaming`], which count themselves.
#[inline]
pub fn note_copied(size: usize) {
    BYTES_COPIED.fetch_add(size as u64, Ordering::Relaxed);
}

/// Bytes within which a processor tells loads and stores apart by their lowest bits alone.
#[cfg(target_arch = "x86_64")]
const ALIAS_SIZE: usize = 4 << 10;
/// From this size on the C library may copy with one instruction.
#[cfg(target_arch = "x86_64")]
const MOVED_SIZE_MIN: usize = 2 << 10;

/// Copies bytes, also where those of source and target lie so that the C library is slow.
///
/// # Safety
/// As for [`copy_streaming`].
#[inline]
pub unsafe fn copy(source: *const u8, target: *mut u8, size: usize) {
    note_copied(size);
    #[cfg(target_arch = "x86_64")]
    if size >= MOVED_SIZE_MIN {
        let distance = (target as usize).wrapping_sub(source as usize) % ALIAS_SIZE;
        if (1..LINE_SIZE).contains(&distance) {
            // SAFETY: as the caller says.
            unsafe { copy_lines(source, target, size) };
            return;
        }
    }
    // SAFETY: as the caller says.
    unsafe { std::ptr::copy_nonoverlapping(source, target, size) };
}

/// Copies with ordinary loads and stores, a line at a time.
///
/// # Safety
/// As for `copy_streaming`.
#[cfg(target_arch = "x86_64")]
unsafe fn copy_lines(source: *const u8, target: *mut u8, size: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_storeu_si128};
    let lines = size / LINE_SIZE;
    let tail = lines * LINE_SIZE;
    // SAFETY: all accesses lie within the ranges; none needs an alignment.
    unsafe {
        for line in 0..lines {
            let from = source.add(line * LINE_SIZE).cast::<__m128i>();
            let to = target.add(line * LINE_SIZE).cast::<__m128i>();
            let (a, b) = (_mm_loadu_si128(from), _mm_loadu_si128(from.add(1)));
            let (c, d) = (_mm_loadu_si128(from.add(2)), _mm_loadu_si128(from.add(3)));
            _mm_storeu_si128(to, a);
            _mm_storeu_si128(to.add(1), b);
            _mm_storeu_si128(to.add(2), c);
            _mm_storeu_si128(to.add(3), d);
        }
        std::ptr::copy_nonoverlapping(source.add(tail), target.add(tail), size - tail);
    }
}

/// Copies smaller than this gain nothing.
#[cfg(target_arch = "x86_64")]
const STREAMED_SIZE_MIN: usize = 4 << 10;

/// Copies bytes past the cache where that pays. What was stored before may be seen after what is copied, unless a fence
/// for such stores lies between ([`crate::stamps::Stamps::stamp`]). What is copied is visible to other processors once
/// whoever publishes it does so by a release store or a lock, as with an ordinary copy.
///
/// # Safety
/// As for [`std::ptr::copy_nonoverlapping`]: both ranges are valid for `size` bytes and do not overlap. The source may
/// change meanwhile; then any mixture of bytes arrives.
#[inline]
pub unsafe fn copy_streaming(source: *const u8, target: *mut u8, size: usize) {
    note_copied(size);
    #[cfg(target_arch = "x86_64")]
    if size >= STREAMED_SIZE_MIN {
        // SAFETY: as the caller says.
        unsafe { stream(source, target, size) };
        return;
    }
    // SAFETY: as the caller says.
    unsafe { std::ptr::copy_nonoverlapping(source, target, size) };
}

/// Bytes of a cache line, filled by one turn of the loop.
#[cfg(target_arch = "x86_64")]
const LINE_SIZE: usize = 64;

/// # Safety
/// As for `copy_streaming`; at least two lines.
#[cfg(target_arch = "x86_64")]
unsafe fn stream(source: *const u8, target: *mut u8, size: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
    let head = target.align_offset(LINE_SIZE).min(size);
    let lines = (size - head) / LINE_SIZE;
    let tail = head + lines * LINE_SIZE;
    // SAFETY: all accesses lie within the ranges; the stores are aligned because `head` ends at a line.
    unsafe {
        std::ptr::copy_nonoverlapping(source, target, head);
        for line in 0..lines {
            let from = source.add(head + line * LINE_SIZE).cast::<__m128i>();
            let to = target.add(head + line * LINE_SIZE).cast::<__m128i>();
            let (a, b) = (_mm_loadu_si128(from), _mm_loadu_si128(from.add(1)));
            let (c, d) = (_mm_loadu_si128(from.add(2)), _mm_loadu_si128(from.add(3)));
            _mm_stream_si128(to, a);
            _mm_stream_si128(to.add(1), b);
            _mm_stream_si128(to.add(2), c);
            _mm_stream_si128(to.add(3), d);
        }
        // Non-temporal stores are ordered by nothing else.
        _mm_sfence();
        std::ptr::copy_nonoverlapping(source.add(tail), target.add(tail), size - tail);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Copy = unsafe fn(*const u8, *mut u8, usize);

    /// Goal: every byte arrives and none beside them is touched, whatever the sizes and alignments, and however far
    /// apart both lie within their pages.
    #[test]
    fn bytes_arrive() {
        let source: Vec<u8> = (0..25_000u32).map(|number| (number * 7 % 251) as u8).collect();
        for size in [0, 1, 63, 2_047, 2_048, 4_095, 4_096, 4_097, 9_000, 16_384] {
            for (from, distance) in [(0, 0), (1, 0), (0, 1), (13, 16), (64, 31), (0, 63), (5, 64), (3, 4_095)] {
                for copy in [copy as Copy, copy_streaming as Copy] {
                    let mut target = vec![255; 25_000];
                    let to =
                        (source.as_ptr() as usize + from + distance).wrapping_sub(target.as_ptr() as usize) % 4_096;
                    // SAFETY: both ranges lie within the vectors.
                    unsafe { copy(source.as_ptr().add(from), target.as_mut_ptr().add(to), size) };
                    assert_eq!(&target[to..to + size], &source[from..from + size]);
                    assert!(target[..to].iter().chain(&target[to + size..]).all(|byte| *byte == 255));
                }
            }
        }
    }
}
