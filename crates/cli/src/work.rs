//! Work that makes more work: items on two stacks, taken by a fixed number of tasks.
//!
//! Invariants
//! 1. `active` counts the items that were taken and are not finished, so that no item and nobody active means the end.
//! 2. While nobody is active items are handed out (`open`).

use crate::launch::stop_asked;
use crate::together::{Either, race};
use reactor::process::{Signal, Signals};
use reactor::{Class, Nanos, Reactor};
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

/// Longest wait for what is under way when a signal asks to stop.
pub const STOP_NS_MAX: Nanos = 5_000_000_000;

/// How soon an item is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Urgency {
    First,
    Later,
}

/// A stack of items, or one for each server that they ask, of which each gives one in turn: a directory is listed
/// server by server, and so its names would be worked off.
struct Stacks<T> {
    lanes: Vec<Vec<T>>,
    /// The lane that has given the last item.
    turn: usize,
    count: usize,
}

impl<T> Default for Stacks<T> {
    fn default() -> Stacks<T> {
        Stacks { lanes: Vec::new(), turn: 0, count: 0 }
    }
}

impl<T> Stacks<T> {
    fn push(&mut self, lane: usize, item: T) {
        let lanes = self.lanes.len().max(lane + 1);
        self.lanes.resize_with(lanes, Vec::new);
        self.lanes[lane].push(item);
        self.count += 1;
    }

    fn pop(&mut self) -> Option<T> {
        let lanes = self.lanes.len();
        let next = (1..=lanes).map(|step| (self.turn + step) % lanes).find(|lane| !self.lanes[*lane].is_empty())?;
        self.turn = next;
        self.count -= 1;
        self.lanes[next].pop()
    }

    /// The next one of the lane that has given the last item, if it is wanted.
    fn pop_like(&mut self, is_wanted: &impl Fn(&T) -> bool) -> Option<T> {
        let item = self.lanes.get_mut(self.turn)?.pop_if(|item| is_wanted(item))?;
        self.count -= 1;
        Some(item)
    }
}

/// The stacks. The last one pushed is the first one taken, so that trees are worked off depth first.
pub struct Work<T> {
    first: RefCell<Stacks<T>>,
    later: RefCell<Stacks<T>>,
    /// With this many items for later, they come before the urgent ones: urgent ones make more of them.
    later_max: usize,
    active: Cell<usize>,
    stopped: Cell<bool>,
    idle: RefCell<Vec<Waker>>,
    /// With so many items under way the next ones wait, until no more than `low` are left. `low` 0: nothing waits for
    /// that.
    high: usize,
    low: usize,
    /// Whether items are handed out now.
    open: Cell<bool>,
}

impl<T> Work<T> {
    pub fn new(later_max: usize) -> Rc<Work<T>> {
        Work::make(later_max, 0, 0)
    }

    /// The same for many small requests, with `jobs` of them under way: when three quarters of them are done, as many
    /// follow, all at once, so that they travel together. One by one, as replies come, each might go out alone.
    pub fn in_batches(later_max: usize, jobs: usize) -> Rc<Work<T>> {
        Work::make(later_max, jobs, jobs / 4)
    }

    fn make(later_max: usize, high: usize, low: usize) -> Rc<Work<T>> {
        Rc::new(Work {
            first: RefCell::default(),
            later: RefCell::default(),
            later_max,
            active: Cell::new(0),
            stopped: Cell::new(false),
            idle: RefCell::default(),
            high,
            low,
            open: Cell::new(true),
        })
    }

    pub fn push(&self, urgency: Urgency, item: T) {
        self.push_for(0, urgency, item);
    }

    /// The same of an item that one server has to do with.
    pub fn push_for(&self, server: usize, urgency: Urgency, item: T) {
        match urgency {
            Urgency::First => self.first.borrow_mut().push(server, item),
            Urgency::Later => self.later.borrow_mut().push(server, item),
        }
        let idle = self.idle.borrow_mut().pop();
        if let Some(waker) = idle {
            waker.wake();
        }
    }

    /// No item is taken any more.
    pub fn stop(&self) {
        self.stopped.set(true);
        self.wake_all();
    }

    pub fn is_stopped(&self) -> bool {
        self.stopped.get()
    }

    fn wake_all(&self) {
        let idle = std::mem::take(&mut *self.idle.borrow_mut());
        idle.into_iter().for_each(Waker::wake);
    }

    /// The next item, and more of the same server's if it goes with others.
    fn take(&self, grouping: &Grouping<T>) -> Option<Vec<T>> {
        let (mut first, mut later) = (self.first.borrow_mut(), self.later.borrow_mut());
        let is_later = later.count >= self.later_max || first.count == 0;
        let stacks = if is_later { &mut *later } else { &mut *first };
        let mut group = vec![stacks.pop()?];
        if (grouping.goes_along)(&group[0]) {
            let others = std::iter::from_fn(|| stacks.pop_like(&grouping.goes_along));
            group.extend(others.take(grouping.most - 1));
        }
        Some(group)
    }

    /// The next items, waiting while others may still make one; `None` at the end.
    async fn next(&self, grouping: &Grouping<T>) -> Option<Vec<T>> {
        poll_fn(|context| {
            if self.stopped.get() {
                return Poll::Ready(None);
            }
            if self.open.get()
                && let Some(group) = self.take(grouping)
            {
                self.active.set(self.active.get() + 1);
                self.open.set(self.low == 0 || self.active.get() < self.high);
                return Poll::Ready(Some(group));
            }
            if self.active.get() == 0 {
                return Poll::Ready(None);
            }
            self.idle.borrow_mut().push(context.waker().clone());
            Poll::Pending
        })
        .await
    }

    fn finished(&self) {
        self.active.set(self.active.get() - 1);
        let reopens = !self.open.get() && self.active.get() <= self.low;
        if self.active.get() == 0 || reopens {
            self.open.set(true);
            self.wake_all();
        }
    }
}

/// Which items are handled together: so many at most, all of one server.
pub struct Grouping<T> {
    pub most: usize,
    pub goes_along: fn(&T) -> bool,
}

/// Handles all items, and those that they make, with `jobs` of them under way at once.
pub async fn run_all<T: 'static>(
    reactor: &Reactor,
    jobs: usize,
    work: &Rc<Work<T>>,
    handle: impl AsyncFn(T) + 'static,
) {
    let alone = Grouping { most: 1, goes_along: |_| false };
    let handle_one = async move |items| {
        for item in items {
            handle(item).await;
        }
    };
    run_groups(reactor, jobs, work, alone, handle_one).await;
}

/// The same of items that are handled together.
pub async fn run_groups<T: 'static>(
    reactor: &Reactor,
    jobs: usize,
    work: &Rc<Work<T>>,
    grouping: Grouping<T>,
    handle: impl AsyncFn(Vec<T>) + 'static,
) {
    let shared = Rc::new((handle, grouping));
    let worker = |work: Rc<Work<T>>| {
        let shared = shared.clone();
        async move {
            let (handle, grouping) = &*shared;
            while let Some(items) = work.next(grouping).await {
                handle(items).await;
                work.finished();
            }
        }
    };
    let tasks: Vec<_> = (0..jobs).map(|_| reactor.spawn_joinable(Class::Data, worker(work.clone()))).collect();
    for task in tasks {
        task.await;
    }
}

/// Lets work go on, and what shows how far it is, until it has ended or a signal asks to stop: then nothing more is
/// begun, and what is under way has a while to end, unless there is a second signal. Returns the first.
pub async fn run_until_asked<T>(
    reactor: &Reactor,
    signals: &Signals,
    work: &Work<T>,
    running: impl Future<Output = ()>,
    shown: impl Future<Output = ()>,
) -> Option<Signal> {
    let mut running = Box::pin(running);
    match race(race(running.as_mut(), shown), stop_asked(signals)).await {
        Either::First(_) => None,
        Either::Second(signal) => {
            work.stop();
            race(running, race(reactor.sleep(STOP_NS_MAX), stop_asked(signals))).await;
            Some(signal)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::open_reactor;

    /// Goal: items of several servers are taken in turn, whoever's came first, each server's last one first.
    #[test]
    fn servers_have_their_turns() {
        let mut stacks = Stacks::default();
        assert_eq!(stacks.pop(), None);
        for (server, item) in [(0, 1), (0, 2), (2, 3), (2, 4), (2, 5), (1, 6)] {
            stacks.push(server, item);
        }
        let taken: Vec<i32> = std::iter::from_fn(|| stacks.pop()).collect();
        assert_eq!((taken, stacks.count), (vec![6, 5, 2, 4, 1, 3], 0));
    }

    /// Goal: items that go together are handled together, at most so many and of one server alone; each once.
    #[test]
    fn groups() {
        let reactor = open_reactor().unwrap();
        let (work, seen) = (Work::new(1000), Rc::new(RefCell::new(Vec::new())));
        // Every tenth one goes alone, as does what is wanted first.
        (0..100).for_each(|item| work.push_for(item % 2, Urgency::Later, item));
        work.push_for(0, Urgency::First, 1000);
        let (noted, grouping) =
            (seen.clone(), Grouping { most: 8, goes_along: |item: &usize| !item.is_multiple_of(10) });
        let handle = async move |items: Vec<usize>| noted.borrow_mut().push(items);
        reactor.block_on(run_groups(&reactor, 3, &work, grouping, handle));
        let seen = seen.borrow();
        for group in seen.iter() {
            assert!(group.len() <= 8 && group.iter().all(|item| item % 2 == group[0] % 2), "{group:?}");
            assert!(group.len() == 1 || group.iter().all(|item| item % 10 != 0), "{group:?}");
        }
        let mut all = seen.concat();
        all.sort_unstable();
        assert_eq!((all, &seen[0]), ((0..100).chain([1000]).collect(), &vec![1000]));
        assert!(seen.len() < 50, "{} groups", seen.len());
    }

    /// Goal: every item is handled once, also those made on the way, and the end is seen.
    /// Method: a binary tree of items, each giving way to the others before it makes two more.
    #[test]
    fn trees_are_worked_off() {
        for jobs in [1, 7] {
            let reactor = open_reactor().unwrap();
            let (work, count) = (Work::new(10), Rc::new(Cell::new(0)));
            work.push(Urgency::First, 1u32);
            let (inner, counter, yields) = (work.clone(), count.clone(), reactor.clone());
            let handle = async move |item: u32| {
                yields.yield_now().await;
                counter.set(counter.get() + 1);
                if item < 512 {
                    inner.push(Urgency::First, item * 2);
                    inner.push(Urgency::Later, item * 2 + 1);
                }
            };
            reactor.block_on(run_all(&reactor, jobs, &work, handle));
            assert_eq!(count.get(), 1023);
        }
    }

    /// Goal: after a stop nothing more is taken, and all tasks end.
    #[test]
    fn stopping() {
        let reactor = open_reactor().unwrap();
        let work = Work::new(10);
        (0..100).for_each(|item| work.push(Urgency::Later, item));
        let (inner, count) = (work.clone(), Rc::new(Cell::new(0)));
        let counter = count.clone();
        let handle = async move |_| {
            counter.set(counter.get() + 1);
            inner.stop();
        };
        reactor.block_on(run_all(&reactor, 3, &work, handle));
        assert!(work.is_stopped() && count.get() == 1);
    }

    /// Goal: all items are handled, also those that come up on the way; in batches, what follows a full house is begun
    /// together and not one by one.
    #[test]
    fn batches() {
        for jobs in [1, 2, 3, 16] {
            let reactor = open_reactor().unwrap();
            let work = Work::in_batches(usize::MAX, jobs);
            let (begun, done) = (Rc::new(RefCell::new(Vec::new())), Rc::new(Cell::new(0)));
            (0..200).for_each(|item: u64| work.push(Urgency::First, item));
            reactor.block_on(async {
                let (own, noted, counted, loop_of) = (work.clone(), begun.clone(), done.clone(), reactor.clone());
                let handle = async move |item: u64| {
                    noted.borrow_mut().push(own.active.get());
                    assert!(own.active.get() <= jobs);
                    loop_of.sleep(item * 7_919 % 300_000).await;
                    if item < 100 {
                        own.push(Urgency::Later, item + 1_000);
                    }
                    counted.set(counted.get() + 1);
                };
                run_all(&reactor, jobs, &work, handle).await;
            });
            assert_eq!(done.get(), 300);
            let begun = begun.borrow();
            let alone = begun.windows(2).filter(|pair| pair[1] == jobs && pair[0] == jobs).count();
            assert!(jobs < 4 || alone == 0, "{jobs} jobs: {alone} items followed a full house one by one");
        }
    }
}
