//! The table of outstanding calls and the connection that carries them.

use super::{ChannelStatistics, Failure, Reply};
use crate::link::{Link, RawSlice};
use crate::{Nanos, Stream};
use std::collections::VecDeque;
use std::task::Waker;
use wire::header::BEHIND_MAX;
use wire::limits::{BYTES_WINDOW, REQUEST_WINDOW};
use wire::{Header, Operation};

pub(super) const WINDOW: usize = REQUEST_WINDOW as usize;

#[expect(clippy::large_enum_variant, reason = "a channel has one, in place")]
pub(super) enum ChannelConnection {
    None,
    /// The connecting task is at work.
    Connecting,
    Open {
        link: Link,
        stream: Stream,
        receiving: ReplyStage,
    },
}

/// Where the connection stands with the stream of incoming bytes.
pub(super) enum ReplyStage {
    Head,
    Body { slot: usize, header: Header, params: Vec<u8>, target: BodyTarget, received: usize },
}

pub(super) enum BodyTarget {
    Place(Vec<RawSlice>),
    Owned(Vec<u8>),
    /// Nobody wants it any more; so many bytes are left.
    Discard(usize),
}

pub(super) struct Outstanding {
    pub(super) call_id: u64,
    pub(super) operation: Operation,
    pub(super) params: Vec<u8>,
    /// As in `Call`.
    pub(super) user_size: u32,
    pub(super) body: Vec<RawSlice>,
    pub(super) place: Vec<RawSlice>,
    pub(super) session_sequence: u64,
    pub(super) deadline: Option<Nanos>,
    /// When the server was last heard about this call.
    pub(super) last_life: Nanos,
    /// Whether any byte of it may have left over some connection.
    pub(super) was_sent: bool,
    /// The connection that it was last sent on, by its number.
    pub(super) sent_on: u64,
    /// The only life of the server that it is good for (`ChannelState::life`).
    pub(super) life: Option<u64>,
    /// As in `Call`.
    pub(super) once: bool,
    /// Nobody waits for it any more.
    pub(super) abandoned: bool,
    /// It was under way on a connection that was changed on its way.
    pub(super) was_changed: bool,
    /// Its reply has come, or it ended with its connection; else an outcome means that the caller gave up.
    pub(super) answered: bool,
    pub(super) outcome: Option<Result<Reply, Failure>>,
    pub(super) waker: Option<Waker>,
}

pub(super) struct ChannelState {
    pub(super) connection: ChannelConnection,
    pub(super) calls: Vec<Option<Box<Outstanding>>>,
    /// Memory of a call that has ended, for the next one.
    pub(super) spare: Option<Box<Outstanding>>,
    pub(super) outstanding: usize,
    pub(super) bytes_outstanding: u64,
    pub(super) next_call: u64,
    pub(super) sequences: Sequences,
    pub(super) established: bool,
    /// The server's, of the last connection.
    pub(super) incarnation: u64,
    /// Counts how often the server has lost what it kept of this session in memory.
    pub(super) life: u64,
    pub(super) watching: bool,
    pub(super) watcher: Option<Waker>,
    pub(super) room: VecDeque<Waker>,
    /// Some answered call still has bytes to send.
    pub(super) draining: bool,
    /// Bytes that had come over this connection when it was last looked whether somebody waits in vain.
    pub(super) bytes_heard: u64,
    /// And those that had left it.
    pub(super) bytes_said: u64,
    pub(super) last_error: String,
    pub(super) closed: bool,
    pub(super) statistics: ChannelStatistics,
    /// The last tree change that the server has named.
    pub(super) tree_number: u64,
    /// The last error of those that servers learn of late that it has named, and when it has replied last.
    pub(super) late_error: (u64, Nanos),
}

/// The session sequences of mutating requests. The server keeps the outcome of each in the place that is the sequence
/// modulo the window, until a later one has that place; so a sequence is given out when its place is free, and one that
/// waits long takes its own place alone.
pub(super) struct Sequences {
    next: u64,
    /// Bit i: the sequence `of_place[i]` has no reply yet.
    taken: u64,
    of_place: [u64; WINDOW],
}

const _: () = assert!(WINDOW == u64::BITS as usize);

impl Sequences {
    fn new() -> Sequences {
        Sequences { next: 1, taken: 0, of_place: [0; WINDOW] }
    }

    /// Whether a place is free, and the oldest sequence without reply near enough for the header to name.
    fn has_room(&self) -> bool {
        self.taken != u64::MAX && self.next - self.acknowledged() <= BEHIND_MAX - WINDOW as u64
    }

    /// Gives out the next sequence whose place is free; there must be one.
    pub(super) fn take(&mut self) -> u64 {
        assert!(self.taken != u64::MAX, "a sequence has a place of its own");
        while self.taken & place_of(self.next) != 0 {
            self.next += 1;
        }
        let sequence = self.next;
        self.next += 1;
        self.taken |= place_of(sequence);
        self.of_place[sequence as usize % WINDOW] = sequence;
        sequence
    }

    /// The greatest number up to which all sequences that were given out have their replies.
    pub(super) fn acknowledged(&self) -> u64 {
        let (mut oldest, mut left) = (self.next, self.taken);
        while left != 0 {
            oldest = oldest.min(self.of_place[left.trailing_zeros() as usize]);
            left &= left - 1;
        }
        oldest - 1
    }

    /// The reply is here, or will not come; 0 stands for none.
    pub(super) fn acknowledge(&mut self, sequence: u64) {
        if sequence != 0 {
            assert!(self.of_place[sequence as usize % WINDOW] == sequence, "an answered sequence was given out");
            self.taken &= !place_of(sequence);
        }
    }
}

/// The bit of a sequence's place.
fn place_of(sequence: u64) -> u64 {
    1 << (sequence % WINDOW as u64)
}

impl ChannelState {
    pub(super) fn new() -> ChannelState {
        ChannelState {
            connection: ChannelConnection::None,
            calls: (0..WINDOW).map(|_| None).collect(),
            spare: None,
            outstanding: 0,
            bytes_outstanding: 0,
            next_call: 1,
            sequences: Sequences::new(),
            established: false,
            incarnation: 0,
            life: 0,
            watching: false,
            watcher: None,
            room: VecDeque::new(),
            draining: false,
            bytes_heard: 0,
            bytes_said: 0,
            last_error: String::new(),
            closed: false,
            statistics: ChannelStatistics::default(),
            tree_number: 0,
            late_error: (0, 0),
        }
    }

    pub(super) fn has_room(&self, size: u64, mutating: bool) -> bool {
        let sequence_fits = !mutating || self.sequences.has_room();
        let bytes_fit = self.bytes_outstanding == 0 || self.bytes_outstanding + size <= BYTES_WINDOW;
        // The slot of the next call id must be free; ids move on past slots that are still taken.
        self.outstanding < WINDOW && sequence_fits && bytes_fit
    }

    pub(super) fn wake_watcher(&mut self) {
        if let Some(waker) = self.watcher.take() {
            waker.wake();
        }
    }

    /// Frees a slot; invariant 4 holds its sequence until then.
    pub(super) fn release(&mut self, slot: usize) -> Option<Box<Outstanding>> {
        let outstanding = self.calls[slot].take()?;
        self.outstanding -= 1;
        self.bytes_outstanding -= body_size(&outstanding.body);
        if self.outstanding == 0
            && let ChannelConnection::Open { stream, .. } = &self.connection
        {
            stream.expect(false);
        }
        // Several may fit now, and a waker that waits in vain queues again.
        for waker in self.room.drain(..) {
            waker.wake();
        }
        Some(outstanding)
    }

    /// Gives a call its outcome.
    pub(super) fn finish(&mut self, slot: usize, outcome: Result<Reply, Failure>) {
        let Some(outstanding) = &mut self.calls[slot] else {
            return;
        };
        if outstanding.answered {
            return;
        }
        let sequence = std::mem::take(&mut outstanding.session_sequence);
        outstanding.answered = true;
        if outstanding.abandoned {
            self.release(slot);
        } else {
            // A caller that has given up keeps the outcome that it was told.
            outstanding.outcome.get_or_insert(outcome);
            if let Some(waker) = &outstanding.waker {
                waker.wake_by_ref();
            }
        }
        self.sequences.acknowledge(sequence);
    }

    /// Takes in whether more of a body has come or left since the last look. The server is alive then: it answers
    /// nobody before all of what it sends is here, and takes the rest of what it has answered early.
    pub(super) fn note_body(&mut self, now: Nanos) {
        let ChannelConnection::Open { link, receiving, .. } = &self.connection else { return };
        let has_come = std::mem::replace(&mut self.bytes_heard, link.bytes_received) != link.bytes_received;
        let has_left = std::mem::replace(&mut self.bytes_said, link.bytes_sent) != link.bytes_sent;
        let has_come = has_come && matches!(receiving, ReplyStage::Body { .. });
        for outstanding in self.calls.iter_mut().flatten() {
            if has_come || has_left && outstanding.answered {
                outstanding.last_life = now;
            }
        }
    }

    /// Lets calls whose reply came early look again whether their body has left.
    pub(super) fn wake_drained(&mut self) {
        if !std::mem::take(&mut self.draining) {
            return;
        }
        for outstanding in self.calls.iter().flatten().filter(|outstanding| outstanding.answered) {
            if let Some(waker) = &outstanding.waker {
                waker.wake_by_ref();
            }
        }
    }

    pub(super) fn slot_of(&self, call_id: u64) -> Option<usize> {
        let slot = (call_id % WINDOW as u64) as usize;
        self.calls[slot].as_ref().filter(|outstanding| outstanding.call_id == call_id).map(|_| slot)
    }
}

pub(super) fn body_size(body: &[RawSlice]) -> u64 {
    body.iter().map(|slice| slice.size as u64).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: sequences rise; no two without a reply share a place; all up to `acknowledged` have theirs, and the next
    /// one has not. Method: random order of taking and answering, against a plain list.
    #[test]
    fn sequences_have_places_of_their_own() {
        let mut sequences = Sequences::new();
        let (mut open, mut last, mut random) = (Vec::new(), 0, 1u64);
        for _ in 0..20_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            if sequences.has_room() && (random >> 33) % 97 < 50 {
                let sequence = sequences.take();
                assert!(sequence > last);
                assert!(open.iter().all(|other| place_of(*other) != place_of(sequence)));
                last = sequence;
                open.push(sequence);
            } else if !open.is_empty() {
                sequences.acknowledge(open.swap_remove((random >> 33) as usize % open.len()));
            }
            assert_eq!(sequences.acknowledged(), open.iter().min().map_or(last, |oldest| oldest - 1));
        }
        assert!(last > 9_000);
    }

    /// Goal: a sequence that has no reply for very long stops the others before the header could not name it any more.
    #[test]
    fn the_oldest_stays_within_reach() {
        let mut sequences = Sequences::new();
        let oldest = sequences.take();
        sequences.next = oldest + BEHIND_MAX - 2 * WINDOW as u64;
        while sequences.has_room() {
            let sequence = sequences.take();
            assert!(sequence - sequences.acknowledged() <= BEHIND_MAX);
            sequences.acknowledge(sequence);
        }
        sequences.acknowledge(oldest);
        assert!(sequences.has_room());
    }
}
