//! Memory for packets: slots of one mapping, each a payload at a page's start and its header right before, so that a
//! packet is received by one call and its payload written from where it is.

use crate::job::HEADER_SIZE;
use std::io;
use std::sync::Arc;

const PAGE_SIZE: usize = 4096;

/// Slots of one size. It goes when the last of them is gone.
pub struct Arena {
    base: *mut u8,
    size: usize,
    stride: usize,
    payload_size: usize,
}

// SAFETY: the mapping is reached through slots alone, each of which is the only one of its bytes.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

impl Arena {
    /// All slots. Errors: there is no such memory.
    pub fn slots(payload_size: usize, count: usize) -> io::Result<Vec<Slot>> {
        let stride = PAGE_SIZE + payload_size.next_multiple_of(PAGE_SIZE);
        let size = stride * count;
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: new memory, at an address of the kernel's choice.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), size, protection, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // As the pools of the reactor: huge pages if there are any, and all of it now.
        // SAFETY: advice about our own mapping.
        unsafe {
            libc::madvise(base, size, libc::MADV_HUGEPAGE);
            libc::madvise(base, size, libc::MADV_POPULATE_WRITE);
        }
        let arena = Arc::new(Arena { base: base.cast(), size, stride, payload_size });
        // The first is taken first.
        Ok((0..count).rev().map(|index| Slot { arena: arena.clone(), index }).collect())
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: our own mapping, and no slot of it is left.
        unsafe { libc::munmap(self.base.cast(), self.size) };
    }
}

/// Room for one packet.
pub struct Slot {
    arena: Arc<Arena>,
    index: usize,
}

impl Slot {
    /// The first byte of the header.
    fn start(&self) -> *mut u8 {
        // SAFETY: indexes lie within the mapping, and a header fits before each payload.
        unsafe { self.arena.base.add(self.index * self.arena.stride + PAGE_SIZE - HEADER_SIZE) }
    }

    /// Bytes of the header and the payload.
    pub fn packet(&mut self) -> &mut [u8] {
        // SAFETY: within the mapping, initialised by the kernel, and nobody else's.
        unsafe { std::slice::from_raw_parts_mut(self.start(), HEADER_SIZE + self.arena.payload_size) }
    }

    pub fn payload(&self) -> &[u8] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts(self.start().add(HEADER_SIZE), self.arena.payload_size) }
    }

    /// Where the payload goes.
    pub fn offset(&self) -> u64 {
        // SAFETY: as above.
        u64::from_le_bytes(unsafe { self.start().cast::<[u8; HEADER_SIZE]>().read() })
    }

    /// The whole mapping, for those who register it: where and how many bytes.
    pub fn mapping(&self) -> (*mut u8, usize) {
        (self.arena.base, self.arena.size)
    }
}
