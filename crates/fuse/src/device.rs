//! The kernel's end of a mount: requests come out of it, replies go in. Any number of threads share one.

use crate::protocol::{reply_header, reply_slices};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::BorrowedFd;

/// Largest read and write that the kernel is told to ask for.
pub const TRANSFER_SIZE_MAX: usize = 1 << 20;
/// Bytes that a request may take: a write with what stands in front of it.
pub const REQUEST_SIZE_MAX: usize = TRANSFER_SIZE_MAX + (64 << 10);

/// See the module.
#[derive(Debug)]
pub struct Device(File);

impl Device {
    /// Shares a descriptor of `/dev/fuse` that is mounted somewhere.
    pub fn share(descriptor: BorrowedFd<'_>) -> io::Result<Device> {
        Ok(Device(File::from(descriptor.try_clone_to_owned()?)))
    }

    /// The next request: its size in the buffer, or `None` when the file system is not mounted any more.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            let error = match (&self.0).read(buffer) {
                Ok(size) => return Ok(Some(size)),
                Err(error) => error,
            };
            match error.raw_os_error() {
                // Whoever asked has been killed meanwhile.
                Some(libc::ENOENT | libc::EINTR | libc::EAGAIN) => {}
                Some(libc::ENODEV | libc::ECONNABORTED) => return Ok(None),
                _ => return Err(error),
            }
        }
    }

    /// Answers a request with a body.
    pub fn reply(&self, unique: u64, body: &[u8]) {
        self.send(&reply_header(unique, 0, body.len()), body);
    }

    /// Answers a request with an errno, or 0 when there is nothing to say.
    pub fn reply_errno(&self, unique: u64, errno: i32) {
        self.send(&reply_header(unique, errno, 0), &[]);
    }

    /// A reply that the kernel does not take is one that nobody waits for any more, since it was killed or the file
    /// system is not mounted.
    fn send(&self, header: &[u8], body: &[u8]) {
        let sent = (&self.0).write_vectored(&reply_slices(header, body));
        if let Err(error) = sent
            && !matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENODEV | libc::ECONNABORTED | libc::EINTR))
        {
            eprintln!("tabane: mount: the kernel refuses a reply: {error}");
        }
    }
}
