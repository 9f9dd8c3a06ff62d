//! Blocking threads, as ABT-IO has them (the Argobots runtime's I/O): one thread receives, others write, and buffers go
//! round between them.

use crate::door;
use crate::job::{Job, Mode, Source, Tally};
use crate::memory::{Arena, Slot};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// A packet that is to be written.
struct Packet {
    slot: Slot,
    offset: u64,
    prepared: u64,
}

struct Queues<'a> {
    packets: VecDeque<Packet>,
    free: Vec<Slot>,
    is_over: bool,
    under_way: usize,
    failure: Option<String>,
    tally: &'a mut Tally,
}

struct Shared<'a> {
    queues: Mutex<Queues<'a>>,
    has_packet: Condvar,
    has_free: Condvar,
}

impl<'a> Shared<'a> {
    fn lock(&self) -> MutexGuard<'_, Queues<'a>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn wait<'a, T>(condition: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condition.wait(guard).unwrap_or_else(PoisonError::into_inner)
}

pub fn run(job: &Job, tally: &mut Tally) -> Result<(), String> {
    let file = if job.mode == Mode::Network { None } else { Some(door::open(job)?) };
    let free = Arena::slots(job.size, job.buffer_count()).map_err(|error| error.to_string())?;
    tally.buffers = free[0].mapping().1 as u64;
    let stream = door::accept(job)?;
    if let Some(stream) = &stream {
        stream.set_nonblocking(false).map_err(|error| format!("network: {error}"))?;
    }
    tally.begin();
    let clock = tally.clock;
    let source = Source::new(job, &clock);
    let (packets, is_over, under_way, failure) = Default::default();
    let queues = Mutex::new(Queues { packets, free, is_over, under_way, failure, tally });
    let shared = Shared { queues, has_packet: Condvar::new(), has_free: Condvar::new() };
    std::thread::scope(|scope| {
        if let Some(file) = &file {
            // As many threads as there are writes under way.
            (0..job.depth).for_each(|_| drop(scope.spawn(|| write_packets(job, &shared, file))));
        }
        let result = receive_packets(job, &shared, stream, source);
        let mut queues = shared.lock();
        queues.is_over = true;
        if let Err(words) = result {
            queues.failure.get_or_insert(words);
        }
        drop(queues);
        shared.has_packet.notify_all();
    });
    let mut queues = shared.lock();
    queues.tally.end();
    queues.failure.take().map_or(Ok(()), Err)
}

fn receive_packets(
    job: &Job,
    shared: &Shared<'_>,
    mut stream: Option<TcpStream>,
    mut source: Source,
) -> Result<(), String> {
    let clock = shared.lock().tally.clock;
    loop {
        let mut queues = shared.lock();
        while queues.free.is_empty() && queues.failure.is_none() {
            queues = wait(&shared.has_free, queues);
        }
        if queues.failure.is_some() {
            return Ok(());
        }
        let mut slot = queues.free.pop().expect("there is one");
        drop(queues);
        let offset = match &mut stream {
            None => source.next(&clock),
            Some(stream) => receive(stream, &mut slot)?,
        };
        let Some(offset) = offset else { return Ok(()) };
        job.check(offset)?;
        let prepared = clock.read();
        let mut queues = shared.lock();
        if job.mode == Mode::Network {
            queues.tally.note_received();
            queues.free.push(slot);
            continue;
        }
        queues.packets.push_back(Packet { slot, offset, prepared });
        let held = queues.packets.len() + queues.under_way;
        queues.tally.note_held(held);
        drop(queues);
        shared.has_packet.notify_one();
    }
}

fn receive(stream: &mut TcpStream, slot: &mut Slot) -> Result<Option<u64>, String> {
    let mut done = 0;
    let packet = slot.packet();
    while done < packet.len() {
        match stream.read(&mut packet[done..]) {
            Ok(0) if done == 0 => return Ok(None),
            Ok(0) => return Err("the client ended within a packet".to_owned()),
            Ok(count) => done += count,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(format!("network: {error}")),
        }
    }
    Ok(Some(slot.offset()))
}

fn write_packets(job: &Job, shared: &Shared<'_>, file: &File) {
    loop {
        let mut queues = shared.lock();
        let packet = loop {
            match queues.packets.pop_front() {
                Some(packet) => break packet,
                None if queues.is_over => return,
                None => queues = wait(&shared.has_packet, queues),
            }
        };
        queues.under_way += 1;
        let begun = queues.tally.now();
        drop(queues);
        let result = write_at(file, packet.slot.payload(), packet.offset);
        let mut queues = shared.lock();
        queues.under_way -= 1;
        if result != job.size as i32 {
            queues.failure = Some(crate::failure(&job.path, result, job.size, packet.offset));
        }
        let waited = queues.tally.clock.between(packet.prepared, begun);
        queues.tally.handover.record(waited);
        queues.tally.note_written(packet.prepared);
        queues.free.push(packet.slot);
        drop(queues);
        shared.has_free.notify_one();
    }
}

/// Writes at once. A count, or a negated error number.
pub fn write_at(file: &File, bytes: &[u8], offset: u64) -> i32 {
    // SAFETY: reads the bytes of the slice.
    let result = unsafe { libc::pwrite(file.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), offset as libc::off_t) };
    if result < 0 { -std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO) } else { result as i32 }
}
