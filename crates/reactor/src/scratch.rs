//! Memory of the heap as a region: a place for small bodies that do not go to a store.

use crate::region::{LocalFuture, Region, Span};
use std::cell::UnsafeCell;
use std::io;
use std::rc::Rc;

struct Scratch(Box<[UnsafeCell<u8>]>);

/// A span of `size` zero bytes that lives for as long as the span does.
pub fn scratch(size: usize) -> Span {
    let region: Rc<dyn Region> = Rc::new(Scratch((0..size).map(|_| UnsafeCell::new(0)).collect()));
    Span { region, offset: 0, size: size as u64 }
}

impl Scratch {
    fn place(&self, offset: u64, size: u64) -> *mut u8 {
        let total = self.0.len() as u64;
        assert!(offset <= total && size <= total - offset, "a range lies within its region");
        self.base().wrapping_add(offset as usize)
    }
}

impl Region for Scratch {
    fn size(&self) -> u64 {
        self.0.len() as u64
    }

    fn allocate(&self, _offset: u64, _size: u64) -> io::Result<()> {
        Ok(())
    }

    fn read(&self, offset: u64, into: &mut [u8]) {
        let from = self.place(offset, into.len() as u64);
        // SAFETY: the range is within the memory, as `place` asserts, and nobody has a reference into it (invariant 1
        // of `region`).
        unsafe { std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) }
    }

    fn write(&self, offset: u64, from: &[u8]) {
        let to = self.place(offset, from.len() as u64);
        // SAFETY: as in `read`; cells may be written through a shared reference.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) }
    }

    fn copy_within(&self, from: u64, to: u64, size: u64) {
        let (from, to) = (self.place(from, size), self.place(to, size));
        // SAFETY: both ranges are within the memory; they may overlap.
        unsafe { std::ptr::copy(from, to, size as usize) }
    }

    fn fill_zero(&self, offset: u64, size: u64) {
        let place = self.place(offset, size);
        // SAFETY: as in `write`.
        unsafe { std::ptr::write_bytes(place, 0, size as usize) }
    }

    fn crc32c(&self, offset: u64, size: u64) -> u32 {
        let mut bytes = vec![0; size as usize];
        self.read(offset, &mut bytes);
        crc32c::crc32c(&bytes)
    }

    fn base(&self) -> *mut u8 {
        self.0.as_ptr().cast_mut().cast()
    }

    fn note_received(&self, _offset: u64, _size: u64) {}

    fn sync(&self, _offset: u64, _size: u64) -> LocalFuture<io::Result<()>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn is_volatile(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: bytes written are read back, also after a move within, and ranges outside are refused.
    #[test]
    fn bytes_stay() {
        let span = scratch(10);
        span.region.write(2, b"abcd");
        span.region.copy_within(2, 4, 4);
        let mut bytes = [9; 10];
        span.region.read(0, &mut bytes);
        assert_eq!(&bytes, b"\0\0ababcd\0\0");
        span.region.fill_zero(5, 5);
        span.region.read(0, &mut bytes);
        assert_eq!(&bytes, b"\0\0aba\0\0\0\0\0");
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| span.region.write(9, b"xy"))).is_err());
    }
}
