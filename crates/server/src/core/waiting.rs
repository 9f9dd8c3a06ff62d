//! Waiting for others on one loop: a value announced once, turns at a file, several futures at once, and deadlines.
//!
//! Invariants
//! 1. No borrow is held while a waker is woken.
//! 2. A turn that was granted is passed on when its waiter is dropped.

use crate::process::statistics::waits::{self, WaitReason};
use crate::store::FastMap;
use reactor::LocalFuture;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// A value that is told once, to all who wait for it and to all who ask later.
pub struct Notice<T>(Rc<RefCell<NoticeState<T>>>);

struct NoticeState<T> {
    value: Option<T>,
    /// What requests wait for that wait for it, if that is not another server.
    reason: Option<WaitReason>,
    wakers: Vec<Waker>,
}

impl<T> Clone for Notice<T> {
    fn clone(&self) -> Self {
        Notice(self.0.clone())
    }
}

impl<T: Clone> Default for Notice<T> {
    fn default() -> Self {
        Notice::new()
    }
}

impl<T: Clone> Notice<T> {
    pub fn new() -> Notice<T> {
        Notice(Rc::new(RefCell::new(NoticeState { value: None, reason: None, wakers: Vec::new() })))
    }

    /// One for which requests wait because of this.
    pub fn of(reason: WaitReason) -> Notice<T> {
        let notice = Notice::new();
        notice.0.borrow_mut().reason = Some(reason);
        notice
    }

    /// Whether both are one.
    pub fn is_same(&self, other: &Notice<T>) -> bool {
        Rc::ptr_eq(&self.0, &other.0)
    }

    /// The value, if it was told.
    pub fn told(&self) -> Option<T> {
        self.0.borrow().value.clone()
    }

    /// Tells the value; a second value is ignored.
    pub fn tell(&self, value: T) {
        let wakers = {
            let mut state = self.0.borrow_mut();
            if state.value.is_none() {
                state.value = Some(value);
            }
            std::mem::take(&mut state.wakers)
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Resolves to the value.
    pub async fn wait(&self) -> T {
        poll_fn(|context| {
            let mut state = self.0.borrow_mut();
            match &state.value {
                Some(value) => Poll::Ready(value.clone()),
                None => {
                    if let Some(reason) = state.reason {
                        waits::note(reason);
                    }
                    if !state.wakers.iter().any(|waker| waker.will_wake(context.waker())) {
                        state.wakers.push(context.waker().clone());
                    }
                    Poll::Pending
                }
            }
        })
        .await
    }
}

/// First come, first served turns at things named by a number.
#[derive(Clone, Default)]
pub struct Turns(Rc<RefCell<FastMap<u64, VecDeque<Rc<TurnTicket>>>>>);

struct TurnTicket {
    granted: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

/// A turn; it ends when this is dropped.
pub struct Turn {
    turns: Turns,
    key: u64,
}

impl Turns {
    /// Takes the turn if nobody has it.
    pub fn try_take(&self, key: u64) -> Option<Turn> {
        let mut queues = self.0.borrow_mut();
        if queues.contains_key(&key) {
            return None;
        }
        queues.insert(key, VecDeque::new());
        Some(Turn { turns: self.clone(), key })
    }

    pub fn is_taken(&self, key: u64) -> bool {
        self.0.borrow().contains_key(&key)
    }

    /// Waits for the turn.
    pub async fn take(&self, key: u64) -> Turn {
        if let Some(turn) = self.try_take(key) {
            return turn;
        }
        let ticket = Rc::new(TurnTicket { granted: Cell::new(false), waker: RefCell::new(None) });
        if let Some(queue) = self.0.borrow_mut().get_mut(&key) {
            queue.push_back(ticket.clone());
        }
        TurnWait { turns: self.clone(), key, ticket, done: false }.await
    }

    fn pass_on(&self, key: u64) {
        let next = {
            let mut queues = self.0.borrow_mut();
            let Some(queue) = queues.get_mut(&key) else {
                unreachable!("a turn that ends is taken");
            };
            let next = queue.pop_front();
            if next.is_none() {
                queues.remove(&key);
            }
            next
        };
        if let Some(ticket) = next {
            ticket.granted.set(true);
            let waker = ticket.waker.borrow_mut().take();
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.turns.pass_on(self.key);
    }
}

struct TurnWait {
    turns: Turns,
    key: u64,
    ticket: Rc<TurnTicket>,
    done: bool,
}

impl Future for TurnWait {
    type Output = Turn;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Turn> {
        if self.ticket.granted.get() {
            self.done = true;
            return Poll::Ready(Turn { turns: self.turns.clone(), key: self.key });
        }
        waits::note(WaitReason::Turn);
        *self.ticket.waker.borrow_mut() = Some(context.waker().clone());
        Poll::Pending
    }
}

impl Drop for TurnWait {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        if self.ticket.granted.get() {
            self.turns.pass_on(self.key);
        } else if let Some(queue) = self.turns.0.borrow_mut().get_mut(&self.key) {
            queue.retain(|ticket| !Rc::ptr_eq(ticket, &self.ticket));
        }
    }
}

/// Resolves when all have; results in the order of the futures.
pub async fn all<T>(futures: Vec<LocalFuture<T>>) -> Vec<T> {
    let mut running: Vec<Option<LocalFuture<T>>> = futures.into_iter().map(Some).collect();
    let mut results: Vec<Option<T>> = running.iter().map(|_| None).collect();
    poll_fn(move |context| {
        let mut waiting = false;
        for (future, result) in running.iter_mut().zip(&mut results) {
            if let Some(live) = future {
                match live.as_mut().poll(context) {
                    Poll::Ready(value) => {
                        *result = Some(value);
                        *future = None;
                    }
                    Poll::Pending => waiting = true,
                }
            }
        }
        if waiting { Poll::Pending } else { Poll::Ready(results.drain(..).flatten().collect()) }
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn poll_once<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    /// Goal: turns go round in order, and a waiter that gives up neither keeps nor loses the turn for the others.
    /// Method: four waiters; the second leaves while it waits, the third after it was granted.
    #[test]
    fn turns_in_order() {
        let turns = Turns::default();
        let first = turns.try_take(7).expect("the turn is free");
        assert!(turns.try_take(7).is_none());
        let mut second = Box::pin(turns.take(7));
        let mut third = Box::pin(turns.take(7));
        let mut fourth = Box::pin(turns.take(7));
        assert!(poll_once(second.as_mut()).is_pending());
        assert!(poll_once(third.as_mut()).is_pending());
        assert!(poll_once(fourth.as_mut()).is_pending());
        drop(second);
        drop(first);
        drop(third);
        let Poll::Ready(turn) = poll_once(fourth.as_mut()) else { panic!("the turn was lost") };
        assert!(turns.is_taken(7));
        drop(turn);
        assert!(!turns.is_taken(7));
    }

    /// Goal: a notice reaches those who waited and those who come late.
    #[test]
    fn notice_is_told_to_all() {
        let notice = Notice::new();
        let mut early = Box::pin(notice.wait());
        assert!(poll_once(early.as_mut()).is_pending());
        notice.tell(5);
        notice.tell(6);
        assert_eq!(poll_once(early.as_mut()), Poll::Ready(5));
        assert_eq!(poll_once(Box::pin(notice.wait()).as_mut()), Poll::Ready(5));
    }
}
