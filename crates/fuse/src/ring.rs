//! FUSE over io_uring (Linux 6.14 on, `/sys/module/fuse/parameters/enable_uring`): the kernel has a queue of requests
//! for each core, and hands those of a program to whoever serves the queue of the core that it runs on. A reply and the
//! next request take one system call, and neither wakes another core.
//!
//! A queue has entries: memory for one request and its reply, which the kernel fills and we hand back with the reply in
//! it (linux/fuse.h, `fuse_uring_cmd_req`). When few of a queue are left with the kernel more are registered, so that
//! requests that wait keep no others out; what the kernel has not filled takes no memory.
//!
//! What comes while no entry is left the kernel puts into a list, of which it takes one with each reply, and only then:
//! an entry that is registered waits for what is new. So where all have been away we may be owed requests that no entry
//! brings, an unlock among them that all others wait for. Then we ask the kernel for no bytes of a file that it has in
//! memory (`FUSE_NOTIFY_RETRIEVE`): that comes as a request by a free entry of this core, and with its reply the first
//! of the list; and so on until the list is empty. The file is one that there were requests about just now, for some
//! kernels refuse to tell of anything else.
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
use crate::serve::{Answer, Mounted, ROOT_NODE, Reply, UNDER_WAY_MAX};
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

/// Entries of a queue at first. At most there are as many as a thread has requests under way, and these.
const ENTRY_COUNT_MIN: usize = 16;
/// When fewer than these are with the kernel, it may have no more, and some are registered.
const FREE_COUNT_MIN: usize = 4;
/// Bytes of payload that stay in memory though nobody needs them, of all entries of a ring together.
const IDLE_BYTES_MAX: usize = 32 << 20;
/// As much of each stays anyway.
const SMALL_PAYLOAD_SIZE: usize = 64 << 10;
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

    /// Gives the memory of the payload back, but for its front.
    fn shrink(&mut self) {
        // SAFETY: the payload is that large, and nobody looks there: the entry is with us, and its reply is in front.
        // Where it is refused the memory stays.
        unsafe {
            let rest = self.payload().add(SMALL_PAYLOAD_SIZE);
            libc::madvise(rest.cast(), REQUEST_SIZE_MAX - SMALL_PAYLOAD_SIZE, libc::MADV_DONTNEED);
        }
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
    /// Bytes of the payload that may take memory.
    filled: usize,
}

/// The entries of one core.
struct Queue {
    core: u16,
    /// Those with the kernel, and all.
    free: usize,
    count: usize,
}

/// How far the list of requests that no entry was there for is known to be empty.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Backlog {
    Empty,
    /// All entries may have been away.
    Possible,
    /// The kernel was asked for a request (`Ring::ask`).
    Asked,
    /// That one came, and its reply has left with this entry; if the entry comes back at once, there was more.
    Answered(usize),
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
    /// The first is that of the core that the thread stays on.
    queues: Vec<Queue>,
    backlog: Backlog,
    /// Nodes of the last requests for bytes and for a lock, and the root, which older kernels take.
    known_nodes: [u64; 3],
    /// Of all entries.
    filled: usize,
    mounted: Option<Arc<Mounted>>,
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
                entries.push(Entry { queue: *core, memory: Mapping::new()?, filled: 0 });
            }
        }
        let queues = cores.iter().map(|core| Queue { core: *core, free: 0, count: 0 }).collect();
        Ok(Ring {
            ring,
            entries,
            queues,
            backlog: Backlog::Empty,
            known_nodes: [ROOT_NODE; 3],
            filled: 0,
            mounted: None,
        })
    }

    /// Registers the entries with a file system. Errors: some queue has none, so that the kernel sends nothing this
    /// way.
    pub fn begin(&mut self, mounted: Arc<Mounted>) -> io::Result<()> {
        self.mounted = Some(mounted);
        for entry in 0..self.entries.len() {
            let registered = self.register(entry);
            if self.queue_of(entry).is_none_or(|queue| queue.count == 0) {
                return registered;
            }
        }
        Ok(())
    }

    fn queue_of(&mut self, entry: usize) -> Option<&mut Queue> {
        let core = self.entries[entry].queue;
        self.queues.iter_mut().find(|queue| queue.core == core)
    }

    fn register(&mut self, entry: usize) -> io::Result<()> {
        let Entry { queue, memory, .. } = &self.entries[entry];
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
        if let Some(queue) = self.queue_of(entry) {
            queue.free += 1;
            queue.count += 1;
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

    /// The request that an entry has come back with; `None` if it is ours.
    fn message(&mut self, entry: usize) -> io::Result<Option<Message>> {
        let Some(Entry { memory, .. }) = self.entries.get(entry) else {
            return Err(io::Error::other("the kernel completed an entry that there is not"));
        };
        let (headers, payload) = (memory.headers(), memory.payload());
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
        self.note_filled(entry, payload_size);
        if self.backlog == Backlog::Answered(entry) {
            self.backlog = Backlog::Possible;
        }
        self.take_away(entry);
        match header.opcode {
            protocol::opcode::READ | protocol::opcode::WRITE => self.known_nodes[0] = header.node,
            protocol::opcode::SETLK | protocol::opcode::SETLKW => self.known_nodes[1] = header.node,
            _ => {}
        }
        let memory = EntryMemory { entry: entry as u32, commit_id, operation_size, payload_size, headers, payload };
        if header.opcode == protocol::opcode::NOTIFY_REPLY {
            self.commit(&memory, header.unique, 0, 0)?;
            self.submit()?;
            self.backlog = Backlog::Answered(entry);
            return Ok(None);
        }
        Ok(Some(Message { header, memory: Memory::Ring(memory) }))
    }

    fn note_filled(&mut self, entry: usize, size: usize) {
        let filled = &mut self.entries[entry].filled;
        self.filled += size.saturating_sub(*filled);
        *filled = size.max(*filled);
    }

    /// Takes in that an entry is with us, and has others registered when few are left.
    fn take_away(&mut self, entry: usize) {
        let core = self.entries[entry].queue;
        let waiting_count = self.mounted.as_ref().map_or(0, |mounted| mounted.interrupts.waiting_count());
        let Some(queue) = self.queue_of(entry) else { return };
        queue.free = queue.free.saturating_sub(1);
        if queue.free >= FREE_COUNT_MIN {
            return;
        }
        let more = queue.count < UNDER_WAY_MAX + ENTRY_COUNT_MIN + waiting_count;
        if core == self.queues[0].core {
            // Also where the kernel was asked: that request may be in the list itself.
            self.backlog = Backlog::Possible;
        }
        // Without memory for one more the requests to come wait for those that are under way.
        if more && let Ok(memory) = Mapping::new() {
            self.entries.push(Entry { queue: core, memory, filled: 0 });
            let _: io::Result<()> = self.register(self.entries.len() - 1);
        }
    }

    /// What is there, without looking for what the kernel may still have in its list.
    fn next_completion(&mut self) -> io::Result<Taken> {
        loop {
            let Some(completion) = self.ring.completion().next() else { return Ok(Taken::Nothing) };
            match -completion.result() {
                0 => {
                    if let Some(message) = self.message(completion.user_data() as usize)? {
                        return Ok(Taken::Message(message));
                    }
                }
                libc::ENOTCONN | libc::ECONNABORTED | libc::ECANCELED | libc::ENODEV => return Ok(Taken::Ended),
                // The reply of a request that nobody waits for; the entry is lost with it.
                libc::ENOENT => {}
                errno => return Err(io::Error::from_raw_os_error(errno)),
            }
        }
    }

    /// What is there, or was left in the kernel's list.
    fn next(&mut self) -> io::Result<Taken> {
        loop {
            match self.next_completion()? {
                Taken::Nothing => {}
                other => return Ok(other),
            }
            self.backlog = match self.backlog {
                Backlog::Empty | Backlog::Asked => return Ok(Taken::Nothing),
                Backlog::Possible => {
                    // With a reply that leaves one of the list comes.
                    self.flush()?;
                    if self.ring.completion().is_empty() { self.ask() } else { Backlog::Possible }
                }
                Backlog::Answered(_) => Backlog::Empty,
            };
        }
    }

    /// Asks the kernel for a request, on the core that this thread stays on.
    fn ask(&self) -> Backlog {
        let Some(mounted) = self.mounted.as_ref().filter(|_| self.queues[0].free > 0) else { return Backlog::Empty };
        match self.known_nodes.iter().any(|node| mounted.device.ask_for_request(*node).is_ok()) {
            true => Backlog::Asked,
            // Who waits in the list is taken along by the next reply.
            false => Backlog::Empty,
        }
    }

    /// Hands an entry back with a reply, whose payload lies in it.
    fn commit(&mut self, memory: &EntryMemory, unique: u64, errno: i32, size: usize) -> io::Result<()> {
        let header = reply_header(unique, errno, size);
        // SAFETY: the entry is ours, and the fields lie within the headers.
        unsafe {
            memory.headers.copy_from_nonoverlapping(header.as_ptr(), header.len());
            memory.headers.add(PAYLOAD_SIZE_OFFSET).cast::<u32>().write(size as u32);
        }
        let entry = memory.entry as usize;
        let idle = self.entries[entry].filled.saturating_sub(SMALL_PAYLOAD_SIZE);
        if self.filled > IDLE_BYTES_MAX && idle > 0 && size <= SMALL_PAYLOAD_SIZE {
            self.entries[entry].memory.shrink();
            self.entries[entry].filled -= idle;
            self.filled -= idle;
        }
        if let Some(queue) = self.queue_of(entry) {
            queue.free += 1;
        }
        let submission = self.command(entry, COMMIT_AND_FETCH, memory.commit_id, self.entries[entry].queue);
        self.push(&submission)
    }
}

// SAFETY: an entry's memory goes with the message to whoever works on it, on the thread of its port; nothing else of it
// belongs to a thread.
unsafe impl Send for EntryMemory {}

impl Port for Ring {
    fn wait(&mut self) -> io::Result<Taken> {
        match self.next()? {
            Taken::Nothing => {}
            other => {
                self.submit()?;
                return Ok(other);
            }
        }
        match self.ring.submit_and_wait(1) {
            Err(error) if !matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)) => Err(error),
            _ => self.next(),
        }
    }

    fn take(&mut self) -> io::Result<Taken> {
        self.next()
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
        self.note_filled(memory.entry as usize, size);
        self.commit(&memory, reply.message.header.unique, errno, size)
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
