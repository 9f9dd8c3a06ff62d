//! What a run does, and what it notes.
//!
//! A packet is the offset of its payload on the device, eight bytes little-endian, and the payload. All of a run have
//! one size, and offsets are multiples of it.

use crate::call_times::CallTimes;
use reactor::call_clock::CallClock;
use std::path::PathBuf;

/// Bytes before the payload.
pub const HEADER_SIZE: usize = 8;
/// Bytes that a server task moves before it lets others run.
pub const STEP_SIZE: usize = 256 << 10;

/// What of the work is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Mode {
    /// Packets are received and dropped.
    Network,
    /// Packets are there already, and written.
    Disk,
    /// They are received and written.
    Both,
}

impl Mode {
    pub fn word(self) -> &'static str {
        match self {
            Mode::Network => "network",
            Mode::Disk => "disk",
            Mode::Both => "both",
        }
    }
}

/// What a server is to do.
#[derive(Clone, Debug)]
pub struct Job {
    pub mode: Mode,
    /// Bytes of a payload.
    pub size: usize,
    /// Writes under way at most.
    pub depth: usize,
    /// The file or block device, and how many bytes of it are used: a multiple of the size.
    pub path: PathBuf,
    pub extent: u64,
    /// How long packets are made where none are received.
    pub seconds: f64,
    /// Bytes in buffers at which a scheduler that has no bound of its own gives up.
    pub memory_max: u64,
}

impl Job {
    /// Buffers of a server that has a bound: as many as may be under way, and as many to receive into meanwhile.
    pub fn buffer_count(&self) -> usize {
        2 * self.depth
    }

    /// Looks at what a header says. Errors: it leads out of the device, or into the middle of a block.
    pub fn check(&self, offset: u64) -> Result<(), String> {
        let is_within = offset.is_multiple_of(self.size as u64) && offset < self.extent;
        if is_within { Ok(()) } else { Err(format!("a packet for offset {offset}, of {}", self.extent)) }
    }
}

/// The packets of a run in which none are received.
pub struct Source {
    next: u64,
    extent: u64,
    size: u64,
    end: u64,
}

impl Source {
    pub fn new(job: &Job, clock: &CallClock) -> Source {
        let end = clock.after(clock.read(), (job.seconds * 1e9) as u64);
        Source { next: 0, extent: job.extent, size: job.size as u64, end }
    }

    /// Where the next packet goes; none when the time is over.
    pub fn next(&mut self, clock: &CallClock) -> Option<u64> {
        let offset = self.next;
        self.next = (offset + self.size) % self.extent;
        (clock.read() < self.end).then_some(offset)
    }
}

/// What a server notes of its packets. Times are nanoseconds.
pub struct Tally {
    pub clock: CallClock,
    pub packets: u64,
    /// From preparing a write to the server task's knowing of its end.
    pub times: CallTimes,
    /// From preparing an operation to handing it over; and from its completion, as the program sees it, to the
    /// resumption of who waits for it. Empty where the scheduler can't tell.
    pub handover: CallTimes,
    pub resumption: CallTimes,
    /// Bytes in buffers for packets, at most.
    pub buffers: u64,
    /// Packets that were received and not yet written, at most.
    pub held_most: u64,
    /// Time on cores that was used before the first packet.
    pub cpu_before: u64,
    pub started: u64,
    pub ended: u64,
}

impl Tally {
    pub fn new() -> Tally {
        let clock = CallClock::calibrated();
        let (times, handover, resumption) = (CallTimes::new(), CallTimes::new(), CallTimes::new());
        let started = clock.read();
        Tally {
            clock,
            packets: 0,
            times,
            handover,
            resumption,
            buffers: 0,
            held_most: 0,
            cpu_before: 0,
            started,
            ended: started,
        }
    }

    /// The client is there, or the first write is about to begin.
    pub fn begin(&mut self) {
        self.cpu_before = reactor::process::cpu_time();
        self.started = self.clock.read();
    }

    /// All that came is done with.
    pub fn end(&mut self) {
        self.ended = self.clock.read();
    }

    pub fn now(&self) -> u64 {
        self.clock.read()
    }

    /// A packet that was only received.
    pub fn note_received(&mut self) {
        self.packets += 1;
    }

    /// A packet whose write was prepared at a reading of the clock has been written.
    pub fn note_written(&mut self, began: u64) {
        self.packets += 1;
        let now = self.clock.read();
        self.times.record(self.clock.between(began, now));
    }

    /// The two delays of a write whose end is known now.
    pub fn note_delays(&mut self, prepared: u64, handed_over: u64, completed: u64) {
        self.handover.record(self.clock.between(prepared, handed_over));
        self.resumption.record(self.clock.between(completed, self.clock.read()));
    }

    pub fn note_held(&mut self, held: usize) {
        self.held_most = self.held_most.max(held as u64);
    }

    pub fn seconds(&self) -> f64 {
        self.clock.between(self.started, self.ended).max(1) as f64 / 1e9
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a packet that would be written elsewhere than on a whole block of the device is refused.
    #[test]
    fn offsets_are_checked() {
        let path = PathBuf::new();
        let (mode, size, depth, extent, seconds) = (Mode::Both, 4096, 2, 8192, 0.0);
        let job = Job { mode, size, depth, path, extent, seconds, memory_max: 0 };
        assert_eq!(job.check(4096), Ok(()));
        for wrong in [1, 8192, u64::MAX] {
            assert!(job.check(wrong).is_err(), "{wrong}");
        }
    }
}
