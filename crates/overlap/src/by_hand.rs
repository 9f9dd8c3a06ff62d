//! States by hand, without futures: one loop over a ring with registered file and memory, and a socket that is asked
//! for bytes while there is room. Nothing a runtime does lies between it and the kernel, so it is the yardstick.

use crate::door;
use crate::job::{Job, Mode, STEP_SIZE, Source, Tally};
use crate::memory::{Arena, Slot};
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use std::io::{ErrorKind, Read};
use std::net::TcpStream;
use std::os::fd::AsRawFd;

/// The user data of the poll of the socket; others are numbers of slots.
const POLL: u64 = u64::MAX;
const ENTER_GETEVENTS: u32 = 1;

/// A write that is under way.
struct Write {
    slot: Slot,
    offset: u64,
    prepared: u64,
}

/// Where packets come from.
pub enum Input {
    Socket { stream: TcpStream, done: usize, is_dry: bool, is_watched: bool },
    Made(Source),
}

/// What asking for a packet came to.
pub enum Asked {
    Packet(u64),
    NotYet,
    Ended,
}

impl Input {
    pub fn new(job: &Job, stream: Option<TcpStream>, tally: &Tally) -> Input {
        match stream {
            Some(stream) => Input::Socket { stream, done: 0, is_dry: false, is_watched: false },
            None => Input::Made(Source::new(job, &tally.clock)),
        }
    }

    /// Goes on to receive a packet into a slot, which stays the same until it is whole.
    pub fn ask(&mut self, slot: &mut Slot, tally: &Tally) -> Result<Asked, String> {
        let (stream, done, is_dry) = match self {
            Input::Made(source) => return Ok(source.next(&tally.clock).map_or(Asked::Ended, Asked::Packet)),
            Input::Socket { stream, done, is_dry, .. } => (stream, done, is_dry),
        };
        let packet = slot.packet();
        while *done < packet.len() {
            match stream.read(&mut packet[*done..]) {
                Ok(0) if *done == 0 => return Ok(Asked::Ended),
                Ok(0) => return Err("the client ended within a packet".to_owned()),
                Ok(count) => *done += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    *is_dry = true;
                    return Ok(Asked::NotYet);
                }
                Err(error) => return Err(format!("network: {error}")),
            }
        }
        *done = 0;
        Ok(Asked::Packet(slot.offset()))
    }

    /// Whether the socket has to tell before there is more.
    pub fn is_dry(&self) -> bool {
        matches!(self, Input::Socket { is_dry: true, .. })
    }

    pub fn note_readable(&mut self) {
        if let Input::Socket { is_dry, .. } = self {
            *is_dry = false;
        }
    }
}

struct HandLoop<'a> {
    job: &'a Job,
    tally: &'a mut Tally,
    ring: IoUring,
    is_registered: bool,
    free: Vec<Slot>,
    writes: Vec<Option<Write>>,
    idle: Vec<usize>,
    prepared: Vec<u64>,
}

pub fn run(job: &Job, tally: &mut Tally) -> Result<(), String> {
    let said = |error: std::io::Error| format!("io_uring: {error}");
    let ring: IoUring = IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_coop_taskrun()
        .setup_taskrun_flag()
        .setup_submit_all()
        .build(2 * (job.depth as u32 + 2).next_power_of_two())
        .map_err(said)?;
    let file = if job.mode == Mode::Network { None } else { Some(door::open(job)?) };
    let free = Arena::slots(job.size, job.buffer_count()).map_err(|error| error.to_string())?;
    let (base, size) = free[0].mapping();
    tally.buffers = size as u64;
    let memory = [libc::iovec { iov_base: base.cast(), iov_len: size }];
    // SAFETY: the slots are held until the ring is gone, or all writes have ended.
    let is_registered = unsafe { ring.submitter().register_buffers(&memory) }.is_ok();
    if let Some(file) = &file {
        ring.submitter().register_files(&[file.as_raw_fd()]).map_err(said)?;
    }
    let stream = door::accept(job)?;
    tally.begin();
    let input = Input::new(job, stream, tally);
    let (writes, idle) = ((0..job.depth).map(|_| None).collect(), (0..job.depth).rev().collect());
    HandLoop { job, tally, ring, is_registered, free, writes, idle, prepared: Vec::new() }.serve(input)
}

impl HandLoop<'_> {
    fn serve(&mut self, mut input: Input) -> Result<(), String> {
        let mut next = None;
        let mut is_over = false;
        while !is_over || self.idle.len() < self.job.depth {
            self.reap(&mut input)?;
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
                            (_, Some(slot)) => self.write(offset, slot),
                            (_, None) => unreachable!("it was just asked for"),
                        }
                    }
                }
            }
            let has_more = !is_over && !input.is_dry() && !self.idle.is_empty();
            let may_come = !is_over || self.idle.len() < self.job.depth;
            self.enter(&mut input, !has_more && may_come, is_over)?;
        }
        self.tally.end();
        Ok(())
    }

    fn push(&mut self, entry: &squeue::Entry) {
        // SAFETY: what entries refer to is held until they complete: slots by `writes`, the socket by the input.
        unsafe { self.ring.submission().push(entry) }.expect("the ring has room for all writes and a poll");
    }

    fn write(&mut self, offset: u64, slot: Slot) {
        let index = self.idle.pop().expect("a write may be under way");
        let (address, size) = (slot.payload().as_ptr(), self.job.size as u32);
        let file = types::Fixed(0);
        let entry = match self.is_registered {
            true => opcode::WriteFixed::new(file, address, size, 0).offset(offset).build(),
            false => opcode::Write::new(file, address, size).offset(offset).build(),
        };
        self.push(&entry.user_data(index as u64));
        let prepared = self.tally.now();
        self.writes[index] = Some(Write { slot, offset, prepared });
        self.prepared.push(prepared);
        self.tally.note_held(self.job.depth - self.idle.len());
    }

    /// Hands over what is prepared, and waits for something if there is nothing to do.
    fn enter(&mut self, input: &mut Input, waits: bool, is_over: bool) -> Result<(), String> {
        if let Input::Socket { stream, is_dry: true, is_watched, .. } = input
            && waits
            && !is_over
            && !std::mem::replace(is_watched, true)
        {
            let poll = opcode::PollAdd::new(types::Fd(stream.as_raw_fd()), libc::POLLIN as u32).build();
            self.push(&poll.user_data(POLL));
        }
        let now = self.tally.now();
        for prepared in self.prepared.drain(..) {
            self.tally.handover.record(self.tally.clock.between(prepared, now));
        }
        if !waits && self.ring.submission().is_empty() {
            return Ok(());
        }
        match self.ring.submit_and_wait(usize::from(waits)) {
            Err(error) if error.kind() != ErrorKind::Interrupted => Err(format!("io_uring: {error}")),
            _ => Ok(()),
        }
    }

    /// Takes completions.
    fn reap(&mut self, input: &mut Input) -> Result<(), String> {
        if self.ring.submission().taskrun() {
            // SAFETY: no argument is passed.
            let entered = unsafe { self.ring.submitter().enter::<libc::sigset_t>(0, 0, ENTER_GETEVENTS, None) };
            entered.map_err(|error| format!("io_uring: {error}"))?;
        }
        let seen = self.tally.now();
        while let Some(completion) = self.next_completion() {
            if completion.user_data() == POLL {
                if let Input::Socket { is_watched, .. } = input {
                    *is_watched = false;
                }
                input.note_readable();
                continue;
            }
            let index = completion.user_data() as usize;
            let write = self.writes[index].take().expect("completions are those of writes under way");
            if completion.result() != self.job.size as i32 {
                return Err(crate::failure(&self.job.path, completion.result(), self.job.size, write.offset));
            }
            self.tally.note_written(write.prepared);
            let now = self.tally.now();
            self.tally.resumption.record(self.tally.clock.between(seen, now));
            self.free.push(write.slot);
            self.idle.push(index);
        }
        Ok(())
    }

    fn next_completion(&mut self) -> Option<cqueue::Entry> {
        self.ring.completion().next()
    }
}

impl Drop for HandLoop<'_> {
    /// The kernel may still read slots of what an error has left under way.
    fn drop(&mut self) {
        while self.writes.iter().any(Option::is_some) {
            if self.ring.submit_and_wait(1).is_err_and(|error| error.kind() != ErrorKind::Interrupted) {
                std::process::abort();
            }
            while let Some(completion) = self.next_completion() {
                if completion.user_data() != POLL {
                    self.writes[completion.user_data() as usize] = None;
                }
            }
        }
    }
}
