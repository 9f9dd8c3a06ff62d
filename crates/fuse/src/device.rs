//! The kernel's end of a mount as a file: requests are read from it, replies written to it. Any number of threads share
//! one.

use crate::errno::Errno;
use crate::port::{Memory, Message, Port, Taken};
use crate::protocol::{self, Header, reply_header, reply_slices};
use crate::serve::{Answer, Reply};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Largest read and write that the kernel is told to ask for.
pub const TRANSFER_SIZE_MAX: usize = 1 << 20;
/// Bytes that a request may take: a write with what stands in front of it.
pub const REQUEST_SIZE_MAX: usize = TRANSFER_SIZE_MAX + (64 << 10);
/// `FUSE_DEV_IOC_CLONE` of linux/fuse.h.
const CLONE: libc::Ioctl = 0x8004_e500_u32 as libc::Ioctl;

/// A descriptor of `/dev/fuse` that is mounted somewhere.
#[derive(Debug)]
pub struct Device(File, AtomicU64);

/// Requests that we have asked for have numbers from here on; the kernel's own begin at 2 and rise, evenly.
const OWN_NUMBERS: u64 = 1 << 63;

impl Device {
    /// Shares a descriptor.
    pub fn share(descriptor: BorrowedFd<'_>) -> io::Result<Device> {
        Ok(Device(File::from(descriptor.try_clone_to_owned()?), AtomicU64::new(0)))
    }

    pub fn descriptor(&self) -> libc::c_int {
        self.0.as_raw_fd()
    }

    /// Another way to the same mount that never sleeps. What was read from it is answered through it.
    /// Errors: those of opening `/dev/fuse`.
    fn polled(&self) -> io::Result<Device> {
        let file = File::options().read(true).write(true).custom_flags(libc::O_NONBLOCK).open("/dev/fuse")?;
        let own = self.0.as_raw_fd() as u32;
        // SAFETY: the kernel reads the one number.
        if unsafe { libc::ioctl(file.as_raw_fd(), CLONE, &raw const own) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Device(file, AtomicU64::new(0)))
    }

    /// Has the kernel send a request that wants nothing, from the core of the caller. Errors: it has not that node in
    /// memory, or tells only of regular files.
    pub fn ask_for_request(&self, node: u64) -> io::Result<()> {
        let number = OWN_NUMBERS | self.1.fetch_add(2, Ordering::Relaxed);
        (&self.0).write_all(&protocol::retrieve(number, node))
    }

    /// Tells the kernel something that it does not answer but with an error: `NotFound` for a node that it does not
    /// have, `InvalidInput` for what it does not understand.
    pub fn notify(&self, words: &[u8]) -> io::Result<()> {
        (&self.0).write_all(words)
    }

    /// Sleeps until there is something to read.
    fn sleep(&self) -> io::Result<()> {
        let mut watched = libc::pollfd { fd: self.0.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: the kernel writes to the one entry.
        match unsafe { libc::poll(&raw mut watched, 1, -1) } {
            ready if ready >= 0 => Ok(()),
            _ => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => Ok(()),
                error => Err(error),
            },
        }
    }

    fn receive(&self, buffer: &mut [u8]) -> io::Result<Received> {
        loop {
            let error = match (&self.0).read(buffer) {
                Ok(size) => return Ok(Received::Request(size)),
                Err(error) => error,
            };
            match error.raw_os_error() {
                // Whoever asked has been killed meanwhile.
                Some(libc::ENOENT | libc::EINTR) => {}
                Some(libc::EAGAIN) => return Ok(Received::Nothing),
                Some(libc::ENODEV | libc::ECONNABORTED) => return Ok(Received::Ended),
                _ => return Err(error),
            }
        }
    }

    fn send(&self, header: &[u8], body: &[u8]) {
        let sent = (&self.0).write_vectored(&reply_slices(header, body));
        if let Err(error) = sent
            && !matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENODEV | libc::ECONNABORTED | libc::EINTR))
        {
            eprintln!("tabane: mount: the kernel refuses a reply: {error}");
        }
    }
}

enum Received {
    Request(usize),
    Nothing,
    Ended,
}

/// One thread's port of a device.
pub struct DevicePort {
    device: Arc<Device>,
    /// For when the thread may not sleep; nothing where there can be none.
    polled: Option<Device>,
    /// See `lazy`.
    naps: bool,
    /// Buffers of requests that were answered: of the request, and of what was read for it.
    spare: Vec<(Vec<u8>, Vec<u8>)>,
}

/// As long may a signal to who waits for a lock take.
const NAP: Duration = Duration::from_millis(5);
/// Pairs of buffers that are kept.
const SPARE_COUNT_MAX: usize = 2;

impl DevicePort {
    pub fn new(device: &Arc<Device>) -> DevicePort {
        DevicePort { device: device.clone(), polled: device.polled().ok(), naps: false, spare: Vec::new() }
    }

    /// Takes forgotten nodes together: after some it is not before `NAP` that more are looked for.
    pub fn lazy(self) -> DevicePort {
        DevicePort { naps: true, ..self }
    }

    /// Whether requests can be taken while others are under way.
    pub fn is_concurrent(&self) -> bool {
        self.polled.is_some()
    }

    fn receive(&mut self, may_sleep: bool) -> io::Result<Taken> {
        let device = match (may_sleep, &self.polled) {
            (true, _) => &*self.device,
            (false, Some(polled)) => polled,
            (false, None) => return Ok(Taken::Nothing),
        };
        let (mut request, place) = self.spare.pop().unwrap_or_else(|| (vec![0; REQUEST_SIZE_MAX], Vec::new()));
        let size = match device.receive(&mut request)? {
            Received::Request(size) => size,
            other => {
                self.spare.push((request, place));
                return Ok(if matches!(other, Received::Ended) { Taken::Ended } else { Taken::Nothing });
            }
        };
        let Ok(header) = protocol::header_of(&request[..size], size) else {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the kernel sent a request without a header"));
        };
        Ok(Taken::Message(Message { header, memory: Memory::Device { request, size, place, polled: !may_sleep } }))
    }
}

impl Port for DevicePort {
    #[allow(clippy::disallowed_methods)] // A thread of its own, which may sleep.
    fn wait(&mut self) -> io::Result<Taken> {
        let taken = self.receive(true)?;
        if matches!(taken, Taken::Nothing) {
            // Somebody else has the descriptor too, and set it so that it never sleeps.
            self.device.sleep()?;
        }
        if self.naps
            && let Taken::Message(Message { header, .. }) = &taken
            && matches!(header.opcode, protocol::opcode::FORGET | protocol::opcode::BATCH_FORGET)
        {
            std::thread::sleep(NAP);
        }
        Ok(taken)
    }

    fn take(&mut self) -> io::Result<Taken> {
        self.receive(false)
    }

    fn looks_are_free(&self) -> bool {
        false
    }

    fn reply(&mut self, reply: Reply) -> io::Result<()> {
        let Header { unique, .. } = reply.message.header;
        let Memory::Device { request, place, polled, .. } = reply.message.memory else {
            unreachable!("a message goes back to the port that it came from");
        };
        let device = self.polled.as_ref().filter(|_| polled).unwrap_or(&self.device);
        match reply.handled {
            Ok(Answer::None) => {}
            Ok(Answer::Output) => {
                let body = reply.output.as_slice();
                device.send(&reply_header(unique, 0, body.len()), body);
            }
            Ok(Answer::Data(size)) => device.send(&reply_header(unique, 0, size), &place[..size]),
            Err(Errno(errno)) => device.send(&reply_header(unique, errno, 0), &[]),
        }
        if self.spare.len() < SPARE_COUNT_MAX {
            self.spare.push((request, place));
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn descriptor(&mut self) -> io::Result<Option<OwnedFd>> {
        self.polled.as_ref().map(|polled| polled.0.try_clone().map(OwnedFd::from)).transpose()
    }
}
