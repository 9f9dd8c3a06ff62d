//! Memory from which and to which a bench copies.

use std::ops::{Deref, DerefMut};

const PAGE_SIZE: usize = 4096;

/// Zeros that begin at a page, as those of IOR do. Where the heap puts a buffer depends on all that was allocated
/// before, on the length of an option's value even, and the kernel's copies to some places take twice the time of
/// others.
pub struct PageBuffer {
    memory: Vec<u8>,
    start: usize,
    size: usize,
}

impl PageBuffer {
    pub fn new(size: usize) -> PageBuffer {
        let memory = vec![0; size + PAGE_SIZE - 1];
        let start = memory.as_ptr().align_offset(PAGE_SIZE);
        PageBuffer { memory, start, size }
    }
}

impl Deref for PageBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.size]
    }
}

impl DerefMut for PageBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.size]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn begins_at_a_page() {
        for size in [1, 4096, 47_008, 1 << 20] {
            let mut buffer = PageBuffer::new(size);
            assert_eq!((buffer.len(), buffer.as_ptr() as usize % PAGE_SIZE), (size, 0));
            buffer.fill(7);
            assert!(buffer.iter().all(|byte| *byte == 7));
        }
    }
}
