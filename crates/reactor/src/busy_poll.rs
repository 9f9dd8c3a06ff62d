//! Busy polling: a socket that talks all the time is asked for bytes in each turn of the loop, instead of being watched
//! by the kernel.
//!
//! To be told of each message costs more than to ask for it: the kernel queues an event, the loop fetches it, and only
//! then the bytes. While the loop gives the core away between its turns, what was waited for has mostly arrived when it
//! runs again, so asking at once finds it.
//!
//! Invariants
//! 1. A socket is either watched by the kernel or in the list of busy ones; before the loop sleeps, and when a send
//!    finds no room, it is watched again, which reports what is true by then.
//! 2. At most `BUSY_MAX` sockets are in the list, and those where asking is mostly in vain leave it.

use crate::stream::Readiness;
use std::cell::{Cell, RefCell};
use std::os::fd::RawFd;
use std::rc::Rc;

/// Most sockets asked in one turn.
const BUSY_MAX: usize = 4;
/// Messages without a sleep of the loop between them, after which a socket is busy.
const MESSAGES_MIN: u8 = 8;
/// What a socket's merit begins with, and its most. It grows with each message and falls with each look in vain; at 0
/// the socket is watched again. So looking pays while at least one look in five finds something.
const MERIT_FIRST: u8 = 12;
const MERIT_MAX: u8 = 20;
const MERIT_MESSAGE: u8 = 4;

/// What busy polling knows about one socket.
pub(crate) struct BusySocket {
    pub descriptor: RawFd,
    pub token: u64,
    pub events: u32,
    readiness: Rc<Readiness>,
    busy: Cell<bool>,
    /// While busy: see `MERIT_FIRST`. Else: messages in this period.
    merit: Cell<u8>,
    period: Cell<u32>,
}

impl BusySocket {
    /// A socket that the kernel watches for these events.
    pub fn new(descriptor: RawFd, token: u64, events: u32, readiness: Rc<Readiness>) -> Rc<BusySocket> {
        let (busy, merit, period) = (Cell::new(false), Cell::new(0), Cell::new(0));
        Rc::new(BusySocket { descriptor, token, events, readiness, busy, merit, period })
    }
}

/// How the kernel is told; a driver's part.
pub(crate) trait KernelWatch {
    /// Reports nothing of the socket from now on.
    fn suspend(&self, socket: &BusySocket);
    /// Reports again, beginning with what is true already.
    fn resume(&self, socket: &BusySocket);
}

/// The busy sockets of a driver.
#[derive(Default)]
pub(crate) struct BusyPoll {
    list: RefCell<Vec<Rc<BusySocket>>>,
    received: Cell<u64>,
    /// Counts the sleeps of the loop.
    period: Cell<u32>,
}

impl BusyPoll {
    pub fn is_empty(&self) -> bool {
        self.list.borrow().is_empty()
    }

    /// Receipts so far, of all sockets: whether a look was in vain.
    pub fn received(&self) -> u64 {
        self.received.get()
    }

    /// Wakes whoever waits for bytes of a busy socket, to ask for them. Returns how many.
    pub fn look(&self) -> usize {
        self.list.borrow().iter().filter(|socket| socket.readiness.look()).count()
    }

    /// Bytes were received.
    pub fn note_received(&self, socket: &Rc<BusySocket>, kernel: &dyn KernelWatch) {
        self.received.set(self.received.get() + 1);
        if socket.busy.get() {
            socket.merit.set((socket.merit.get() + MERIT_MESSAGE).min(MERIT_MAX));
            return;
        }
        if socket.period.replace(self.period.get()) != self.period.get() {
            socket.merit.set(0);
        }
        socket.merit.set(socket.merit.get().saturating_add(1));
        let mut list = self.list.borrow_mut();
        if socket.merit.get() >= MESSAGES_MIN && list.len() < BUSY_MAX {
            socket.busy.set(true);
            socket.merit.set(MERIT_FIRST);
            kernel.suspend(socket);
            list.push(socket.clone());
        }
    }

    /// There were none.
    pub fn note_vain(&self, socket: &BusySocket, kernel: &dyn KernelWatch) {
        if socket.busy.get() {
            socket.merit.set(socket.merit.get() - 1);
            if socket.merit.get() == 0 {
                self.end(socket, kernel);
            }
        }
    }

    /// Has the kernel watch a socket again.
    pub fn end(&self, socket: &BusySocket, kernel: &dyn KernelWatch) {
        if self.forget(socket) {
            kernel.resume(socket);
        }
    }

    /// Forgets a socket that is about to be closed. True if it was busy.
    pub fn forget(&self, socket: &BusySocket) -> bool {
        socket.merit.set(0);
        if !socket.busy.replace(false) {
            return false;
        }
        self.list.borrow_mut().retain(|other| other.token != socket.token);
        true
    }

    /// Has the kernel watch all of them again: the loop is going to sleep.
    pub fn end_all(&self, kernel: &dyn KernelWatch) {
        self.period.set(self.period.get().wrapping_add(1));
        for socket in self.list.take() {
            socket.busy.set(false);
            socket.merit.set(0);
            kernel.resume(&socket);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Log(RefCell<Vec<(&'static str, u64)>>);

    impl KernelWatch for Log {
        fn suspend(&self, socket: &BusySocket) {
            self.0.borrow_mut().push(("suspend", socket.token));
        }

        fn resume(&self, socket: &BusySocket) {
            self.0.borrow_mut().push(("resume", socket.token));
        }
    }

    fn socket(token: u64) -> Rc<BusySocket> {
        BusySocket::new(-1, token, 0, Readiness::new())
    }

    fn receive(busy: &BusyPoll, socket: &Rc<BusySocket>, count: u32, kernel: &Log) {
        for _ in 0..count {
            busy.note_received(socket, kernel);
        }
    }

    /// Goal: a socket is busy after enough messages without a sleep, and watched again when asking is in vain, when the
    /// loop sleeps, or when the kernel is needed.
    #[test]
    fn sockets_come_and_go() {
        let (busy, kernel, socket) = (BusyPoll::default(), Log::default(), socket(7));
        receive(&busy, &socket, 5, &kernel);
        busy.end_all(&kernel);
        receive(&busy, &socket, 5, &kernel);
        assert!(busy.is_empty(), "a sleep came between the messages");
        receive(&busy, &socket, 3, &kernel);
        assert!(!busy.is_empty());
        for _ in 0..MERIT_FIRST {
            busy.note_vain(&socket, &kernel);
        }
        assert!(busy.is_empty());
        receive(&busy, &socket, 8, &kernel);
        busy.end_all(&kernel);
        receive(&busy, &socket, 8, &kernel);
        busy.end(&socket, &kernel);
        busy.end(&socket, &kernel);
        let expected = [("suspend", 7), ("resume", 7)].repeat(3);
        assert_eq!(*kernel.0.borrow(), expected);
    }

    /// Goal: however many talk, few are asked in each turn, and one that is closed is forgotten without the kernel.
    #[test]
    fn list_is_bounded() {
        let (busy, kernel) = (BusyPoll::default(), Log::default());
        let sockets: Vec<_> = (0..20).map(socket).collect();
        for socket in &sockets {
            receive(&busy, socket, 100, &kernel);
        }
        assert_eq!(busy.list.borrow().len(), BUSY_MAX);
        assert!(busy.forget(&sockets[0]) && !busy.forget(&sockets[0]) && !busy.forget(&sockets[19]));
        assert_eq!(busy.list.borrow().len(), BUSY_MAX - 1);
        assert!(kernel.0.borrow().iter().all(|(what, _)| *what == "suspend"));
    }
}
