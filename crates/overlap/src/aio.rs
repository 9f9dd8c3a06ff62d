//! Kernel AIO beside epoll: a loop by hand that is told of sockets and, by an event descriptor, of completions.

use crate::by_hand::{Asked, Input};
use crate::door;
use crate::job::{Job, Mode, STEP_SIZE, Tally};
use crate::memory::{Arena, Slot};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// `struct iocb` of linux/aio_abi.h.
#[repr(C)]
#[derive(Clone, Default)]
struct ControlBlock {
    data: u64,
    key: u32,
    write_flags: u32,
    operation: u16,
    priority: i16,
    descriptor: u32,
    address: u64,
    size: u64,
    offset: i64,
    reserved: u64,
    block_flags: u32,
    event_descriptor: u32,
}

/// `struct io_event`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Event {
    data: u64,
    block: u64,
    result: i64,
    result2: i64,
}

const OPERATION_WRITE: u16 = 1;
const FLAG_EVENT_DESCRIPTOR: u32 = 1;
const _: () = assert!(size_of::<ControlBlock>() == 64 && size_of::<Event>() == 32);

/// A context of kernel AIO; its end waits for what is under way.
struct Context(libc::c_ulong);

fn check(result: libc::c_long) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

impl Context {
    fn new(depth: usize) -> io::Result<Context> {
        let mut context: libc::c_ulong = 0;
        // SAFETY: writes one local.
        check(unsafe { libc::syscall(libc::SYS_io_setup, depth as libc::c_long, &raw mut context) })?;
        Ok(Context(context))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: the context is ours.
        unsafe { libc::syscall(libc::SYS_io_destroy, self.0) };
    }
}

/// A write that is under way.
struct Write {
    slot: Slot,
    offset: u64,
    prepared: u64,
}

struct AioLoop<'a> {
    job: &'a Job,
    tally: &'a mut Tally,
    /// Before the slots that it may be reading.
    context: Context,
    file: Option<File>,
    epoll: OwnedFd,
    bell: OwnedFd,
    free: Vec<Slot>,
    writes: Vec<Option<Write>>,
    idle: Vec<usize>,
    blocks: Vec<ControlBlock>,
    prepared: Vec<usize>,
}

pub fn run(job: &Job, tally: &mut Tally) -> Result<(), String> {
    let said = |error: io::Error| format!("aio: {error}");
    let file = if job.mode == Mode::Network { None } else { Some(door::open(job)?) };
    let free = Arena::slots(job.size, job.buffer_count()).map_err(said)?;
    tally.buffers = free[0].mapping().1 as u64;
    let context = Context::new(job.depth).map_err(said)?;
    // SAFETY: makes descriptors, which are owned from here on.
    let (epoll, bell) = unsafe {
        let epoll = check(libc::epoll_create1(libc::EPOLL_CLOEXEC).into()).map_err(said)?;
        let bell = check(libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK).into()).map_err(said)?;
        (OwnedFd::from_raw_fd(epoll as i32), OwnedFd::from_raw_fd(bell as i32))
    };
    let stream = door::accept(job)?;
    watch(&epoll, bell.as_raw_fd(), 0).map_err(said)?;
    if let Some(stream) = &stream {
        watch(&epoll, stream.as_raw_fd(), 1).map_err(said)?;
    }
    tally.begin();
    let input = Input::new(job, stream, tally);
    let (writes, idle) = ((0..job.depth).map(|_| None).collect(), (0..job.depth).rev().collect());
    let blocks = vec![ControlBlock::default(); job.depth];
    AioLoop { job, tally, context, file, epoll, bell, free, writes, idle, blocks, prepared: Vec::new() }.serve(input)
}

/// Told once whenever something has come.
fn watch(epoll: &OwnedFd, descriptor: i32, word: u64) -> io::Result<()> {
    let mut event = libc::epoll_event { events: (libc::EPOLLIN | libc::EPOLLET | libc::EPOLLRDHUP) as u32, u64: word };
    // SAFETY: reads one local.
    let added = unsafe { libc::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, descriptor, &raw mut event) };
    check(added.into()).map(drop)
}

impl AioLoop<'_> {
    fn serve(&mut self, mut input: Input) -> Result<(), String> {
        let mut next = None;
        let mut is_over = false;
        while !is_over || self.idle.len() < self.job.depth {
            let mut stepped = 0;
            while !is_over && !input.is_dry() && stepped < STEP_SIZE && !self.idle.is_empty() {
                let slot = match &mut next {
                    Some(slot) => slot,
                    None => next.insert(self.free.pop().expect("there are more slots than writes under way")),
                };
                match input.ask(slot, self.tally)? {
                    Asked::Ended => is_over = true,
                    Asked::NotYet => {}
                    Asked::Packet(offset) => {
                        self.job.check(offset)?;
                        stepped += self.job.size;
                        match (self.job.mode, next.take()) {
                            (Mode::Network, slot) => {
                                self.tally.note_received();
                                next = slot;
                            }
                            (_, Some(slot)) => self.prepare(offset, slot),
                            (_, None) => unreachable!("it was just asked for"),
                        }
                    }
                }
            }
            self.submit()?;
            let has_more = !is_over && !input.is_dry() && !self.idle.is_empty();
            let may_come = !is_over || self.idle.len() < self.job.depth;
            self.wait(&mut input, !has_more && may_come)?;
        }
        self.tally.end();
        Ok(())
    }

    fn prepare(&mut self, offset: u64, slot: Slot) {
        let index = self.idle.pop().expect("a write may be under way");
        self.blocks[index] = ControlBlock {
            data: index as u64,
            block_flags: FLAG_EVENT_DESCRIPTOR,
            operation: OPERATION_WRITE,
            descriptor: self.file.as_ref().map_or(u32::MAX, |file| file.as_raw_fd() as u32),
            address: slot.payload().as_ptr() as u64,
            size: self.job.size as u64,
            offset: offset as i64,
            event_descriptor: self.bell.as_raw_fd() as u32,
            ..ControlBlock::default()
        };
        let prepared = self.tally.now();
        self.writes[index] = Some(Write { slot, offset, prepared });
        self.prepared.push(index);
        self.tally.note_held(self.job.depth - self.idle.len());
    }

    fn submit(&mut self) -> Result<(), String> {
        let now = self.tally.now();
        for index in &self.prepared {
            if let Some(write) = &self.writes[*index] {
                self.tally.handover.record(self.tally.clock.between(write.prepared, now));
            }
        }
        let mut done = 0;
        while done < self.prepared.len() {
            let blocks: Vec<*const ControlBlock> =
                self.prepared[done..].iter().map(|index| &raw const self.blocks[*index]).collect();
            // SAFETY: the blocks are copied by the call, and what they refer to lies in `writes` until completion.
            let taken =
                check(unsafe { libc::syscall(libc::SYS_io_submit, self.context.0, blocks.len(), blocks.as_ptr()) });
            done += taken.map_err(|error| crate::failure(&self.job.path, -errno(&error), self.job.size, 0))?;
        }
        self.prepared.clear();
        Ok(())
    }

    /// Takes what the kernel has to tell, and waits for something if there is nothing else to do.
    fn wait(&mut self, input: &mut Input, waits: bool) -> Result<(), String> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 2];
        let time = if waits { -1 } else { 0 };
        // SAFETY: writes at most two events of a local.
        let count = match check(
            unsafe { libc::epoll_wait(self.epoll.as_raw_fd(), events.as_mut_ptr(), events.len() as i32, time) }.into(),
        ) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
            result => result.map_err(|error| format!("epoll: {error}"))?,
        };
        for event in &events[..count] {
            match event.u64 {
                0 => self.reap()?,
                _ => input.note_readable(),
            }
        }
        Ok(())
    }

    fn reap(&mut self) -> Result<(), String> {
        let mut rings = 0u64;
        // SAFETY: reads eight bytes into a local; what it says is not needed.
        unsafe { libc::read(self.bell.as_raw_fd(), (&raw mut rings).cast(), 8) };
        let mut events = [Event::default(); 64];
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        loop {
            // SAFETY: writes at most so many events of a local.
            let count = check(unsafe {
                let (context, most) = (self.context.0, events.len());
                libc::syscall(libc::SYS_io_getevents, context, 0, most, events.as_mut_ptr(), &raw mut time)
            });
            let count = count.map_err(|error| format!("aio: {error}"))?;
            let seen = self.tally.now();
            for event in &events[..count] {
                let index = event.data as usize;
                let write = self.writes[index].take().expect("events are those of writes under way");
                if event.result != self.job.size as i64 {
                    return Err(crate::failure(&self.job.path, event.result as i32, self.job.size, write.offset));
                }
                self.tally.note_written(write.prepared);
                let now = self.tally.now();
                self.tally.resumption.record(self.tally.clock.between(seen, now));
                self.free.push(write.slot);
                self.idle.push(index);
            }
            if count < events.len() {
                return Ok(());
            }
        }
    }
}

fn errno(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}
