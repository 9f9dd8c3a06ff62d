//! The threads that serve a mount: as many as were asked for, and one more for each that is held up.
//!
//! A thread that waits for a server which does not answer serves nobody until the client's time-out. So that such a
//! server takes only its own files away, whoever is at one request for longer than a look apart counts as held up, and
//! another thread is started in its place, up to `THREADS_MAX`. When there are more than it takes, those that have done
//! a request end.
//!
//! The other choice, requests as tasks of the one loop, would have no such bound, but would have every request handed
//! from thread to thread, or finished by another one than has its buffers.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Threads that there may be at most, whatever is asked for.
pub const THREADS_MAX: usize = 256;
/// Time between two looks while somebody is at work.
const LOOK_INTERVAL: Duration = Duration::from_millis(25);

/// What a thread is at: odd while it serves a request, another number for each.
#[derive(Debug, Default)]
pub struct Seat(AtomicU64);

#[derive(Debug)]
struct Taken {
    seat: Arc<Seat>,
    /// What it was at when it was last looked at.
    seen: u64,
}

/// See the module.
#[derive(Debug)]
pub struct Crew {
    /// Threads that serve while nobody is held up.
    base: usize,
    seats: Mutex<Vec<Taken>>,
    bell: Condvar,
    /// Whether somebody looks every `LOOK_INTERVAL`; else the next request rings.
    looking: AtomicBool,
    /// Threads there are, and how many there should be.
    count: AtomicUsize,
    wanted: AtomicUsize,
}

impl Crew {
    pub fn new(base: usize) -> Crew {
        Crew {
            base,
            seats: Mutex::default(),
            bell: Condvar::new(),
            looking: AtomicBool::new(false),
            count: AtomicUsize::new(0),
            wanted: AtomicUsize::new(base),
        }
    }

    fn seats(&self) -> MutexGuard<'_, Vec<Taken>> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A seat for a thread that is about to be started.
    pub fn join(&self) -> Arc<Seat> {
        let seat = Arc::new(Seat::default());
        self.seats().push(Taken { seat: seat.clone(), seen: 0 });
        self.count.fetch_add(1, Ordering::Relaxed);
        seat
    }

    /// Gives a seat back.
    pub fn leave(&self, seat: &Arc<Seat>) {
        self.seats().retain(|taken| !Arc::ptr_eq(&taken.seat, seat));
        self.count.fetch_sub(1, Ordering::Relaxed);
        self.bell.notify_one();
    }

    /// The thread of a seat has got a request.
    pub fn begin(&self, seat: &Seat) {
        // Either we see that nobody looks, or the last look sees us (`look`).
        seat.0.store(seat.0.load(Ordering::Relaxed) + 1, Ordering::SeqCst);
        if !self.looking.load(Ordering::SeqCst) {
            let _seats = self.seats();
            self.looking.store(true, Ordering::Relaxed);
            self.bell.notify_one();
        }
    }

    /// It has answered it. True if it had better end, for there are more than it takes.
    pub fn end(&self, seat: &Seat) -> bool {
        seat.0.store(seat.0.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        self.count.load(Ordering::Relaxed) > self.wanted.load(Ordering::Relaxed)
    }

    /// Waits until there is something to look at and looks: how many threads are missing. `None` when the last has
    /// left.
    pub fn look(&self) -> Option<usize> {
        let mut seats = self.seats();
        if self.looking.load(Ordering::Relaxed) {
            (seats, _) = self.bell.wait_timeout(seats, LOOK_INTERVAL).unwrap_or_else(PoisonError::into_inner);
        } else {
            // Whoever begins a request from now on rings, and needs the lock for it.
            while !seats.is_empty() && !self.looking.load(Ordering::Relaxed) {
                seats = self.bell.wait(seats).unwrap_or_else(PoisonError::into_inner);
            }
        }
        if seats.is_empty() {
            return None;
        }
        let (mut busy, mut held_up) = (0, 0);
        for taken in seats.iter_mut() {
            let now = taken.seat.0.load(Ordering::Relaxed);
            let at_work = now % 2 == 1;
            busy += usize::from(at_work || now != taken.seen);
            held_up += usize::from(at_work && now == taken.seen);
            taken.seen = now;
        }
        if busy == 0 {
            self.looking.store(false, Ordering::SeqCst);
            if seats.iter().any(|taken| taken.seat.0.load(Ordering::SeqCst) % 2 == 1) {
                self.looking.store(true, Ordering::SeqCst);
            }
        }
        let wanted = (self.base + held_up).min(THREADS_MAX.max(self.base));
        self.wanted.store(wanted, Ordering::Relaxed);
        Some(wanted.saturating_sub(seats.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: for each thread that is at one request for two looks there is one more, up to the bound; when they are
    /// free again the surplus ends, and no more than that.
    #[test]
    fn grows_and_shrinks() {
        let crew = Crew::new(2);
        let mut seats = vec![crew.join(), crew.join()];
        crew.begin(&seats[0]);
        assert_eq!(crew.look(), Some(0), "it has just begun");
        assert_eq!(crew.look(), Some(1), "it is at the same still");
        seats.push(crew.join());
        crew.begin(&seats[1]);
        assert!(!crew.end(&seats[1]));
        assert_eq!(crew.look(), Some(0), "the other one has done something");
        while seats.len() < THREADS_MAX + 10 {
            seats.iter().filter(|seat| seat.0.load(Ordering::Relaxed) % 2 == 0).for_each(|seat| crew.begin(seat));
            assert!(crew.look().is_some());
            let missing = crew.look().unwrap();
            assert!(seats.len() + missing <= THREADS_MAX);
            if missing == 0 {
                break;
            }
            (0..missing).for_each(|_| seats.push(crew.join()));
        }
        assert_eq!(seats.len(), THREADS_MAX);
        let first = seats.remove(0);
        let mut left = 0;
        // All but one have answered; that one counts still.
        for seat in &seats {
            crew.end(seat);
        }
        assert_eq!(crew.look(), Some(0));
        for seat in &seats {
            crew.begin(seat);
            if crew.end(seat) {
                crew.leave(seat);
                left += 1;
            }
        }
        assert_eq!(left, THREADS_MAX - 3, "two, and one in place of the first");
        crew.end(&first);
        seats.iter().chain([&first]).for_each(|seat| crew.leave(seat));
        assert_eq!(crew.look(), None);
    }
}
