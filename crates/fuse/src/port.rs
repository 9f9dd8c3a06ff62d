//! What a request and its reply go through: the device (`device.rs`), which all threads can share, or a ring for each
//! core (`ring.rs`), where the kernel has that.

use crate::protocol::{Header, Input};
use crate::serve::Reply;
use std::io;
use std::os::fd::OwnedFd;

/// A request as it lies in memory, until it is answered.
pub struct Message {
    pub header: Header,
    pub memory: Memory,
}

/// Where a request's bytes are, and room for what is read for it.
pub enum Memory {
    /// Read from the device: `size` bytes of `request` with the header in front, and a place that grows.
    Device {
        request: Vec<u8>,
        size: usize,
        place: Vec<u8>,
        polled: bool,
    },
    Ring(crate::ring::EntryMemory),
}

impl Message {
    /// What follows the header.
    pub fn input(&self) -> Input<'_> {
        match &self.memory {
            Memory::Device { request, size, .. } => Input::new(&[], &request[crate::protocol::HEADER_SIZE..*size]),
            Memory::Ring(memory) => memory.input(),
        }
    }

    /// Room for `size` bytes that are read for a request which has nothing but a structure behind its header.
    pub fn place(&mut self, size: usize) -> &mut [u8] {
        match &mut self.memory {
            Memory::Device { place, .. } => {
                if place.len() < size {
                    place.resize(size, 0);
                }
                &mut place[..size]
            }
            Memory::Ring(memory) => &mut memory.place()[..size],
        }
    }
}

/// What came of looking for a request.
pub enum Taken {
    Message(Message),
    Nothing,
    /// The file system is not mounted any more.
    Ended,
}

/// One thread's end of a mount.
pub trait Port: Send {
    /// Sleeps until there is a request, after replies have left.
    fn wait(&mut self) -> io::Result<Taken>;
    /// A request that is there already.
    fn take(&mut self) -> io::Result<Taken>;
    /// Whether `take` costs a look at memory only.
    fn looks_are_free(&self) -> bool;
    /// Answers a request. A reply that the kernel does not take is one that nobody waits for any more, since it was
    /// killed or the file system is not mounted.
    fn reply(&mut self, reply: Reply) -> io::Result<()>;
    /// Has all replies leave.
    fn flush(&mut self) -> io::Result<()>;
    /// A descriptor that is readable when `take` has something; `None` where requests come by `wait` alone.
    fn descriptor(&mut self) -> io::Result<Option<OwnedFd>>;
}
