//! FUSE over io_uring (Linux 6.14 on, `/sys/module/fuse/parameters/enable_uring`): the kernel has a queue of requests
//! for each core, and hands those of a program to whoever serves the queue of the core that it runs on. A reply and the
//! next request take one system call, and neither wakes another core.
//!
//! A queue has entries: memory for one request and its reply, which the kernel fills and we hand back with the reply in
//! it (linux/fuse.h, `fuse_uring_cmd_req`). When all entries of a queue are with us one more is registered, so that
//! requests that wait keep no others out; what the kernel has not filled takes no memory.
//!
//! Signals and forgotten nodes still come by the device.
//!
//! Invariants
//! 1. An entry's memory is written to by the kernel only between handing it over and its completion.
//! 2. The kernel sends requests this way once every core that there may be has an entry; from the agreement on that
//!    there will be rings until then it sends none. So all that can fail but the registering itself, after which the
//!    kernel goes back to the device by itself, is done before.

use crate::device::REQUEST_SIZE_MAX;
use crate::errno::Errno;
use crate::port::{Memory, Message, Port, Taken};
use crate::protocol::{self, Input, reply_header};
use crate::serve::{Answer, Mounted, Reply, UNDER_WAY_MAX};
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Commands of linux/fuse.h.
const REGISTER: u32 = 1;
const COMMIT_AND_FETCH: u32 = 2;
/// Bytes of `fuse_uring_req_header`, and where its parts are: the request's structure, and number and size of what
/// comes and goes with it.
const HEADERS_SIZE: usize = 288;
const OPERATION_OFFSET: usize = 128;
const OPERATION_SIZE_MAX: usize = 128;
const COMMIT_ID_OFFSET: usize = 264;
const PAYLOAD_SIZE_OFFSET: usize = 272;
/// Where the payload is in an entry's memory: at the next page.
const PAYLOAD_OFFSET: usize = 4096;
const ENTRY_SIZE: usize = PAYLOAD_OFFSET + REQUEST_SIZE_MAX;

/// Entries of a queue at first. At most there are as many as a thread has requests under way.
const ENTRY_COUNT_MIN: usize = 2;
/// Entries of the submission and the completion ring. What overflows the kernel keeps.
const SUBMISSIONS: u32 = 64;
const COMPLETIONS: u32 = 1024;
/// Where fields of a submission are that the crate does not set for commands (linux/io_uring.h).
const SQE_ADDRESS_OFFSET: usize = 16;
const SQE_LENGTH_OFFSET: usize = 24;

/// Memory of one entry.
struct Mapping(*mut u8);

// SAFETY: nothing of it belongs to a thread.
unsafe impl Send for Mapping {}

impl Mapping {
    fn new() -> io::Result<Mapping> {
        let (access, kind) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE);
        // SAFETY: asks for new memory.
        let memory = unsafe { libc::mmap(std::ptr::null_mut(), ENTRY_SIZE, access, kind, -1, 0) };
        if memory == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(Mapping(memory.cast())) }
    }

    fn headers(&self) -> *mut u8 {
        self.0
    }

    fn payload(&self) -> *mut u8 {
        // SAFETY: within the mapping.
        unsafe { self.0.add(PAYLOAD_OFFSET) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this size, and nobody has it any more: rings are closed before (`Ring`).
        unsafe { libc::munmap(self.0.cast(), ENTRY_SIZE) };
    }
}

struct Entry {
    queue: u16,
    memory: Mapping,
}

/// The memory of an entry while its request is with us.
pub struct EntryMemory {
    entry: u32,
    commit_id: u64,
    operation_size: usize,
    payload_size: usize,
    headers: *mut u8,
    payload: *mut u8,
}

impl EntryMemory {
    pub fn input(&self) -> Input<'_> {
        // SAFETY: the entry is ours until its reply (invariant 1), which takes `self`; sizes were checked.
        unsafe {
            let operation = std::slice::from_raw_parts(self.headers.add(OPERATION_OFFSET), self.operation_size);
            Input::new(operation, std::slice::from_raw_parts(self.payload, self.payload_size))
        }
    }

    /// Room for what is read. Takes the place of a payload.
    pub fn place(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` says that nobody looks at the payload.
        unsafe { std::slice::from_raw_parts_mut(self.payload, REQUEST_SIZE_MAX) }
    }
}

/// The port of one thread: the queues of some cores. Declared in the order in which they have to go.
pub struct Ring {
    ring: IoUring<squeue::Entry128, cqueue::Entry>,
    entries: Vec<Entry>,
    /// Each queue with its entries that are with the kernel, and all.
    queues: Vec<(u16, usize, usize)>,
    mounted: Option<Arc<Mounted>>,
    has_served: bool,
}

impl Ring {
    /// Makes all that a ring for the queues of these cores takes, before there is anything to serve. Errors: those of
    /// io_uring_setup(2) and mmap(2).
    pub fn new(cores: &[u16]) -> io::Result<Ring> {
        let ring = IoUring::<squeue::Entry128, cqueue::Entry>::builder()
            .setup_cqsize(COMPLETIONS)
            .setup_coop_taskrun()
            .setup_submit_all()
            .build(SUBMISSIONS)?;
        let mut entries = Vec::new();
        for core in cores {
            for _ in 0..ENTRY_COUNT_MIN {
                entries.push(Entry { queue: *core, memory: Mapping::new()? });
            }
        }
        let queues = cores.iter().map(|core| (*core, 0, 0)).collect();
        Ok(Ring { ring, entries, queues, mounted: None, has_served: false })
    }

    /// Registers the entries with a file system.
    pub fn begin(&mut self, mounted: Arc<Mounted>) -> io::Result<()> {
        self.mounted = Some(mounted);
        for entry in 0..self.entries.len() {
            self.register(entry)?;
        }
        Ok(())
    }

    /// Whether there ever was a request.
    pub fn has_served(&self) -> bool {
        self.has_served
    }

    fn register(&mut self, entry: usize) -> io::Result<()> {
        let Entry { queue, memory } = &self.entries[entry];
        let queue = *queue;
        let parts = [
            libc::iovec { iov_base: memory.headers().cast(), iov_len: HEADERS_SIZE },
            libc::iovec { iov_base: memory.payload().cast(), iov_len: REQUEST_SIZE_MAX },
        ];
        let mut submission = self.command(entry, REGISTER, 0, queue);
        let raw = (&raw mut submission).cast::<u8>();
        // SAFETY: an entry is the 128 bytes of the kernel's structure, and these fields lie in it. The list is read
        // while it is submitted, which is done here.
        unsafe {
            raw.add(SQE_ADDRESS_OFFSET).cast::<u64>().write_unaligned(parts.as_ptr() as u64);
            raw.add(SQE_LENGTH_OFFSET).cast::<u32>().write_unaligned(parts.len() as u32);
        }
        self.push(&submission)?;
        self.submit()?;
        if let Some((_, free, count)) = self.queues.iter_mut().find(|(known, ..)| *known == queue) {
            *free += 1;
            *count += 1;
        }
        Ok(())
    }

    fn command(&self, entry: usize, command: u32, commit_id: u64, queue: u16) -> squeue::Entry128 {
        let descriptor = self.mounted.as_ref().map_or(-1, |mounted| mounted.device.descriptor());
        let mut words = [0; 80];
        words[8..16].copy_from_slice(&commit_id.to_ne_bytes());
        words[16..18].copy_from_slice(&queue.to_ne_bytes());
        opcode::UringCmd80::new(types::Fd(descriptor), command).cmd(words).build().user_data(entry as u64)
    }

    fn push(&mut self, submission: &squeue::Entry128) -> io::Result<()> {
        loop {
            // SAFETY: what the entry refers to stays until its completion (invariant 1).
            if unsafe { self.ring.submission().push(submission) }.is_ok() {
                return Ok(());
            }
            self.submit()?;
        }
    }

    fn submit(&mut self) -> io::Result<()> {
        loop {
            match self.ring.submit() {
                Err(error) if matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)) => {}
                other => return other.map(drop),
            }
        }
    }

    /// The request that an entry has come back with.
    fn message(&mut self, entry: usize) -> io::Result<Taken> {
        let Some(Entry { queue, memory }) = self.entries.get(entry) else {
            return Err(io::Error::other("the kernel completed an entry that there is not"));
        };
        let (queue, headers, payload) = (*queue, memory.headers(), memory.payload());
        // SAFETY: the entry is ours now, and the mapping is larger than the headers.
        let (bytes, commit_id, payload_size) = unsafe {
            (
                std::slice::from_raw_parts(headers, protocol::HEADER_SIZE),
                headers.add(COMMIT_ID_OFFSET).cast::<u64>().read(),
                headers.add(PAYLOAD_SIZE_OFFSET).cast::<u32>().read() as usize,
            )
        };
        let malformed = || io::Error::new(io::ErrorKind::InvalidData, "the kernel sent a request without a header");
        let size = protocol::size_of(bytes).map_err(|_| malformed())?;
        let header = protocol::header_of(bytes, size).map_err(|_| malformed())?;
        let operation_size = size.checked_sub(protocol::HEADER_SIZE + payload_size).ok_or_else(malformed)?;
        if operation_size > OPERATION_SIZE_MAX || payload_size > REQUEST_SIZE_MAX {
            return Err(malformed());
        }
        self.has_served = true;
        self.take_away(queue)?;
        let memory = EntryMemory { entry: entry as u32, commit_id, operation_size, payload_size, headers, payload };
        Ok(Taken::Message(Message { header, memory: Memory::Ring(memory) }))
    }

    /// Takes in that an entry of a queue is with us, and has another one registered if that was the last.
    fn take_away(&mut self, queue: u16) -> io::Result<()> {
        let Some((_, free, count)) = self.queues.iter_mut().find(|(known, ..)| *known == queue) else { return Ok(()) };
        *free = free.saturating_sub(1);
        let waiting_count = self.mounted.as_ref().map_or(0, |mounted| mounted.interrupts.waiting_count());
        if *free > 0 || *count >= UNDER_WAY_MAX + waiting_count {
            return Ok(());
        }
        // Without memory for one more the requests to come wait for those that are under way.
        let Ok(memory) = Mapping::new() else { return Ok(()) };
        self.entries.push(Entry { queue, memory });
        self.register(self.entries.len() - 1)
    }

    fn next_completion(&mut self) -> io::Result<Taken> {
        loop {
            let Some(completion) = self.ring.completion().next() else { return Ok(Taken::Nothing) };
            match -completion.result() {
                0 => return self.message(completion.user_data() as usize),
                libc::ENOTCONN | libc::ECONNABORTED | libc::ECANCELED | libc::ENODEV => return Ok(Taken::Ended),
                // The reply of a request that nobody waits for; the entry is lost with it.
                libc::ENOENT => {}
                errno => return Err(io::Error::from_raw_os_error(errno)),
            }
        }
    }
}

// SAFETY: an entry's memory goes with the message to whoever works on it, on the thread of its port; nothing else of it
// belongs to a thread.
unsafe impl Send for EntryMemory {}

impl Port for Ring {
    fn wait(&mut self) -> io::Result<Taken> {
        match self.next_completion()? {
            Taken::Nothing => {}
            other => {
                self.submit()?;
                return Ok(other);
            }
        }
        match self.ring.submit_and_wait(1) {
            Err(error) if !matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)) => Err(error),
            _ => self.next_completion(),
        }
    }

    fn take(&mut self) -> io::Result<Taken> {
        self.next_completion()
    }

    fn looks_are_free(&self) -> bool {
        true
    }

    fn reply(&mut self, reply: Reply) -> io::Result<()> {
        let Memory::Ring(memory) = reply.message.memory else {
            unreachable!("a message goes back to the port that it came from");
        };
        let (errno, size) = match reply.handled {
            Ok(Answer::Data(size)) => (0, size),
            Ok(Answer::Output | Answer::None) => {
                let body = reply.output.as_slice();
                assert!(body.len() <= REQUEST_SIZE_MAX, "replies are bounded by their requests");
                // SAFETY: the entry is ours, and the payload is that large.
                unsafe { memory.payload.copy_from_nonoverlapping(body.as_ptr(), body.len()) };
                (0, body.len())
            }
            Err(Errno(errno)) => (errno, 0),
        };
        let header = reply_header(reply.message.header.unique, errno, size);
        // SAFETY: as above; the fields lie within the headers.
        unsafe {
            memory.headers.copy_from_nonoverlapping(header.as_ptr(), header.len());
            memory.headers.add(PAYLOAD_SIZE_OFFSET).cast::<u32>().write(size as u32);
        }
        let entry = memory.entry as usize;
        let queue = self.entries[entry].queue;
        if let Some((_, free, _)) = self.queues.iter_mut().find(|(known, ..)| *known == queue) {
            *free += 1;
        }
        let submission = self.command(entry, COMMIT_AND_FETCH, memory.commit_id, queue);
        self.push(&submission)
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.ring.submission().is_empty() { Ok(()) } else { self.submit() }
    }

    fn descriptor(&mut self) -> io::Result<Option<OwnedFd>> {
        // SAFETY: the ring's descriptor is open as long as the ring is.
        let descriptor = unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) };
        descriptor.as_fd().try_clone_to_owned().map(Some)
    }
}

/// The cores that each thread serves: one thread for each core that we may run on, which also serves some of those that
/// we may not. `None` where the kernel does not tell which there are.
pub fn cores_of_threads() -> Option<Vec<Vec<u16>>> {
    let possible = cores_in(&std::fs::read_to_string("/sys/devices/system/cpu/possible").ok()?)?;
    let own = reactor::process::allowed_cores().ok()?;
    let own: Vec<u16> = own.into_iter().filter_map(|core| u16::try_from(core).ok()).collect();
    let own: Vec<u16> = own.into_iter().filter(|core| possible.contains(core)).collect();
    if own.is_empty() {
        return None;
    }
    let mut threads: Vec<Vec<u16>> = own.iter().map(|core| vec![*core]).collect();
    let others = possible.into_iter().filter(|core| !own.contains(core));
    others.enumerate().for_each(|(index, core)| threads[index % own.len()].push(core));
    Some(threads)
}

/// The numbers of a list like `0-3,8`, which have to be all up to the last: queues are told apart by them.
fn cores_in(list: &str) -> Option<Vec<u16>> {
    let mut cores = Vec::new();
    for range in list.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        cores.extend(first.parse::<u16>().ok()?..=last.parse().ok()?);
    }
    let is_whole = cores.iter().enumerate().all(|(index, core)| index == usize::from(*core));
    (is_whole && !cores.is_empty()).then_some(cores)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: every core that there may be is served by one thread, also where we may run on a few only.
    #[test]
    fn every_core_is_served() {
        assert_eq!(cores_in("0-3\n"), Some(vec![0, 1, 2, 3]));
        assert_eq!(cores_in("0"), Some(vec![0]));
        assert_eq!((cores_in("0-1,3"), cores_in("all"), cores_in("")), (None, None, None));
        let threads = cores_of_threads().expect("a machine with cores");
        let mut served: Vec<u16> = threads.concat();
        served.sort_unstable();
        assert!(served.iter().enumerate().all(|(index, core)| index == usize::from(*core)), "{served:?}");
    }
}
