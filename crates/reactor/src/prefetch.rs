//! Memory that will be needed soon. What a request touches first lies anywhere in large tables; asked for early, it
//! comes while other such memory is waited for.

/// Has the processor fetch all of something into its cache, and does not wait for it.
pub fn prefetch<T: ?Sized>(thing: &T) {
    prefetch_range(std::ptr::from_ref(thing).cast(), size_of_val(thing));
}

/// The same of a range of memory, which others may write to meanwhile.
pub(crate) fn prefetch_range(first: *const u8, size: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        for offset in (0..size).step_by(LINE_SIZE) {
            // SAFETY: tells the processor what may be read soon; nothing is read, whatever the address.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(first.wrapping_add(offset).cast()) };
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (first, size);
}

/// Bytes of a cache line.
#[cfg(target_arch = "x86_64")]
const LINE_SIZE: usize = 64;
