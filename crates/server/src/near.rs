//! Memory that will be needed soon. What a request touches first lies anywhere in large tables; asked for early, it comes while
//! other such memory is waited for.

/// Has the processor fetch all of something into its cache, and does not wait for it.
pub fn bring_near<T: ?Sized>(thing: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let first = std::ptr::from_ref(thing).cast::<i8>();
        for offset in (0..size_of_val(thing)).step_by(LINE_SIZE) {
            // SAFETY: says to the processor what will be read; nothing is read, and the address lies within `thing`.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(first.add(offset)) };
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = thing;
}

/// Bytes of a cache line.
#[cfg(target_arch = "x86_64")]
const LINE_SIZE: usize = 64;
