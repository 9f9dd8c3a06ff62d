//! What of a device is the ring's: entries of the submission queue, and the slots by which a ring knows files and
//! buffers.

use super::OperationKind;
use super::open::DISCARD_MODE;
use super::queue::Piece;
use io_uring::{Submitter, opcode, squeue, types};
use std::io;
use std::os::fd::RawFd;

/// Files and pools that a ring knows; those beyond are looked up for each operation.
const FILE_SLOTS: u32 = 64;
const POOL_SLOTS: u32 = 64;

/// A file as an entry names it.
#[derive(Clone, Copy)]
pub(crate) enum FileName {
    Slot(u32),
    Descriptor(RawFd),
}

macro_rules! with_file {
    ($name:expr, $file:ident => $entry:expr) => {
        match $name {
            FileName::Slot(slot) => {
                let $file = types::Fixed(slot);
                $entry
            }
            FileName::Descriptor(descriptor) => {
                let $file = types::Fd(descriptor);
                $entry
            }
        }
    };
}

/// The entry by which the ring does a piece of an operation.
pub(crate) fn entry_of(file: FileName, piece: &Piece) -> squeue::Entry {
    let &Piece { kind, offset, address, size, buffer_slot, .. } = piece;
    let bytes = size as u32;
    match (kind, buffer_slot) {
        (OperationKind::Read, Some(slot)) => {
            with_file!(file, file => opcode::ReadFixed::new(file, address, bytes, slot).offset(offset).build())
        }
        (OperationKind::Read, None) => {
            with_file!(file, file => opcode::Read::new(file, address, bytes).offset(offset).build())
        }
        (OperationKind::Write, Some(slot)) => {
            with_file!(file, file => opcode::WriteFixed::new(file, address, bytes, slot).offset(offset).build())
        }
        (OperationKind::Write, None) => {
            with_file!(file, file => opcode::Write::new(file, address, bytes).offset(offset).build())
        }
        (OperationKind::Flush, _) => {
            with_file!(file, file => opcode::Fsync::new(file).flags(types::FsyncFlags::DATASYNC).build())
        }
        (OperationKind::Discard, _) => {
            with_file!(file, file => opcode::Fallocate::new(file, size).offset(offset).mode(DISCARD_MODE).build())
        }
    }
}

/// The slots of one ring that are in use. Empty until the first is wanted.
#[derive(Default)]
pub(crate) struct Slots {
    files: Vec<bool>,
    pools: Vec<bool>,
}

fn free_slot(used: &[bool]) -> Option<u32> {
    used.iter().position(|used| !used).map(|slot| slot as u32)
}

impl Slots {
    /// Makes a file known. Errors: there are no slots left, or the kernel has none.
    pub fn add_file(&mut self, ring: &Submitter<'_>, file: RawFd) -> io::Result<u32> {
        if self.files.is_empty() {
            ring.register_files_sparse(FILE_SLOTS)?;
            self.files = vec![false; FILE_SLOTS as usize];
        }
        let slot = free_slot(&self.files).ok_or(io::ErrorKind::QuotaExceeded)?;
        ring.register_files_update(slot, &[file])?;
        self.files[slot as usize] = true;
        Ok(slot)
    }

    /// Forgets a file with which no operation is under way.
    pub fn remove_file(&mut self, ring: &Submitter<'_>, slot: u32) {
        // Where that fails the slot stays in use, until the ring is gone; at its end all are taken back before.
        if !self.files.is_empty() && ring.register_files_update(slot, &[-1]).is_ok() {
            self.files[slot as usize] = false;
        }
    }

    /// Forgets everything at once: the kernel takes a ring apart after it was closed, in its own time, and would keep a
    /// block device from its next owner until then.
    pub fn end(&mut self, ring: &Submitter<'_>) {
        // What fails here was not registered, or goes with the ring.
        let _ = (ring.unregister_files(), ring.unregister_buffers());
        self.files.clear();
        self.pools.clear();
    }

    /// Makes memory known. Errors: there are no slots left, or it is more than this process may lock.
    pub fn add_pool(&mut self, ring: &Submitter<'_>, base: *mut u8, size: usize) -> io::Result<u16> {
        if self.pools.is_empty() {
            ring.register_buffers_sparse(POOL_SLOTS)?;
            self.pools = vec![false; POOL_SLOTS as usize];
        }
        let slot = free_slot(&self.pools).ok_or(io::ErrorKind::QuotaExceeded)?;
        set_pool(ring, slot, base, size)?;
        self.pools[slot as usize] = true;
        Ok(slot as u16)
    }

    /// Forgets memory that no operation uses.
    pub fn remove_pool(&mut self, ring: &Submitter<'_>, slot: u16) {
        if !self.pools.is_empty() && set_pool(ring, u32::from(slot), std::ptr::null_mut(), 0).is_ok() {
            self.pools[usize::from(slot)] = false;
        }
    }
}

fn set_pool(ring: &Submitter<'_>, slot: u32, base: *mut u8, size: usize) -> io::Result<()> {
    let memory = libc::iovec { iov_base: base.cast(), iov_len: size };
    // SAFETY: the pool's memory is mapped until after it was taken out of its slot (`Registration`), and the kernel
    // keeps its pages for what is under way.
    unsafe { ring.register_buffers_update(slot, &[memory], Some(&[0])) }
}
