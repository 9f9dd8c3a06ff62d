//! One reactor for all threads of a process, without a thread of its own: for clients inside foreign programs.
//!
//! Whoever holds the lock polls its own future and turns the loop, which also serves the futures and tasks of the
//! others. A thread that has nothing to do gives the core away a few times, then becomes the leader, who sleeps in the
//! kernel with the lock released, or, where there is a leader already, sleeps until its own waker fires or leadership
//! is free.
//!
//! Invariants
//! 1. The reactor, `T`, all tasks and all futures are touched with the lock held only, and only values that are `Send`
//!    go in or out. So that they hold `Rc`s does not matter.
//! 2. A waker that belongs to a thread only sets that thread's flag and wakes it; it may be used without the lock.
//! 3. While anybody waits without being the leader, there is a leader, or somebody was woken to become it.
//! 4. After a fork the child never touches what it inherited: another thread may have held the lock. It makes its own.

use crate::driver::Driver;
use crate::epoll::{EpollDriver, EventBuffer};
use crate::forks::fork_generation;
use crate::task::{ReadyQueue, thread_marker};
use crate::waiting::{Patience, Waiting};
use crate::{Nanos, Reactor, system};
use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::ops::AsyncFnOnce;
use std::pin::pin;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

/// Flags of a thread's parker.
const WOKEN: u32 = 1;
const LEAD: u32 = 2;
const ASLEEP: u32 = 4;
const POLLING: u32 = 8;

/// One thread that may wait. It is the waker of all futures which that thread runs.
struct Parker {
    flags: AtomicU32,
    /// While `POLLING` is set: the queue whose event descriptor interrupts this thread's sleep as the leader.
    polled: Mutex<Option<Arc<ReadyQueue>>>,
}

impl Parker {
    /// Sets a flag, and wakes the thread if it sleeps.
    fn set(&self, flag: u32) {
        let before = self.flags.fetch_or(flag, Ordering::SeqCst);
        if before & (POLLING | flag) == POLLING
            && let Some(queue) = &*self.polled.lock().unwrap_or_else(PoisonError::into_inner)
        {
            queue.poke();
        }
        if before & ASLEEP != 0 {
            // SAFETY: wakes whoever sleeps on this word, which outlives the call.
            unsafe {
                libc::syscall(libc::SYS_futex, self.flags.as_ptr(), libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, 1)
            };
        }
    }

    fn is_set(&self, flag: u32) -> bool {
        self.flags.load(Ordering::Acquire) & flag != 0
    }

    /// Takes a flag. True if it was set.
    fn take(&self, flag: u32) -> bool {
        self.is_set(flag) && self.flags.fetch_and(!flag, Ordering::SeqCst) & flag != 0
    }

    /// Says that this thread will sleep as the leader. False, and no sleep, if it has been woken already.
    fn begin_polling(&self, queue: &Arc<ReadyQueue>) -> bool {
        *self.polled.lock().unwrap_or_else(PoisonError::into_inner) = Some(queue.clone());
        if self.flags.fetch_or(POLLING, Ordering::SeqCst) & WOKEN != 0 {
            self.end_polling();
            return false;
        }
        true
    }

    fn end_polling(&self) {
        self.flags.fetch_and(!POLLING, Ordering::SeqCst);
        *self.polled.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Sleeps until a flag is set.
    fn sleep(&self) {
        while self.flags.fetch_or(ASLEEP, Ordering::SeqCst) & (WOKEN | LEAD) == 0 {
            let no_limit = std::ptr::null::<libc::timespec>();
            // SAFETY: sleeps only while the word has the value just written, and the word outlives the call.
            unsafe {
                libc::syscall(
                    libc::SYS_futex,
                    self.flags.as_ptr(),
                    libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
                    ASLEEP,
                    no_limit,
                )
            };
        }
        self.flags.fetch_and(!ASLEEP, Ordering::SeqCst);
    }
}

impl Wake for Parker {
    fn wake(self: Arc<Self>) {
        self.set(WOKEN);
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.set(WOKEN);
    }
}

thread_local! {
    /// A thread's parker and waker. The same ones for all its calls, so that a socket that it waits for knows them
    /// already.
    static PARKER: (Arc<Parker>, Waker) = new_parker();
}

fn new_parker() -> (Arc<Parker>, Waker) {
    let parker = Arc::new(Parker { flags: AtomicU32::new(0), polled: Mutex::new(None) });
    let waker = Waker::from(parker.clone());
    (parker, waker)
}

/// Who waits, and how.
struct Crew {
    has_leader: bool,
    /// Until when the leader sleeps (`None`: for ever). Meaningful while there is a leader.
    leader_until: Option<Nanos>,
    /// Those who sleep without being the leader.
    waiters: VecDeque<Arc<Parker>>,
    waiting: Waiting,
}

impl Crew {
    /// Whether the leader sleeps beyond a deadline.
    fn oversleeps(&self, deadline: Option<Nanos>) -> bool {
        deadline.is_some_and(|deadline| self.leader_until.is_none_or(|until| deadline < until))
    }
}

struct State<T> {
    crew: Crew,
    value: T,
    driver: EpollDriver,
    reactor: Reactor,
}

struct Instance<T> {
    generation: u64,
    lock: Mutex<()>,
    queue: Arc<ReadyQueue>,
    epoll: libc::c_int,
    state: UnsafeCell<State<T>>,
}

// SAFETY: the state is touched with the lock held only (invariant 1); the rest is synchronised or constant.
unsafe impl<T> Send for Instance<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Instance<T> {}

/// The lock, held. The holder owns the reactor's queue.
struct SharedGuard<'a, T> {
    instance: &'a Instance<T>,
    _guard: MutexGuard<'a, ()>,
}

impl<T> Instance<T> {
    fn lock(&self) -> SharedGuard<'_, T> {
        // A panic in one call must not take the others with it: what a panicking task leaves behind is its own.
        let guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.queue.set_owner(thread_marker());
        SharedGuard { instance: self, _guard: guard }
    }
}

impl<T> SharedGuard<'_, T> {
    /// Runs `with` on the crew. It must not run tasks or futures, which come here themselves.
    fn crew<R>(&self, with: impl FnOnce(&mut Crew) -> R) -> R {
        // SAFETY: the lock is held, and no closure passed here calls back: they touch plain fields only.
        with(unsafe { &mut (*self.instance.state.get()).crew })
    }
}

impl<T> Drop for SharedGuard<'_, T> {
    fn drop(&mut self) {
        self.instance.queue.set_owner(0);
    }
}

/// Leaves the crew, also by a panic: if nobody leads and somebody waits, that one is woken to lead (invariant 3).
struct Membership<'a, T>(&'a Instance<T>);

impl<T> Drop for Membership<'_, T> {
    fn drop(&mut self) {
        // SAFETY: dropped before the lock that is declared before it (`Instance::run`).
        let (crew, reactor, driver) = unsafe {
            let state = self.0.state.get();
            (&mut (*state).crew, &(*state).reactor, &(*state).driver)
        };
        if crew.has_leader {
            // The leader sleeps, and only what the kernel watches wakes it.
            driver.end_looks();
        }
        if !crew.has_leader {
            if let Some(next) = crew.waiters.pop_front() {
                next.set(LEAD);
            }
        } else if reactor.has_ready() || crew.oversleeps(reactor.next_deadline()) || !driver.ports().begin_sleep() {
            // The leader sleeps for what was so when it began; what this call has changed or left must wake it too.
            self.0.queue.poke();
        }
    }
}

/// Turns that a call grants to tasks that it made ready, after it has its own result.
const PARTING_TURNS: u32 = 4;

impl<T: 'static> Instance<T> {
    fn new(generation: u64, make: &Make<T>) -> io::Result<Instance<T>> {
        let driver = EpollDriver::new_shared()?;
        let reactor = Reactor::with_driver(Box::new(driver.clone()));
        let value = make(&reactor);
        let queue = reactor.queue().clone();
        queue.set_owner(0);
        let epoll = driver.descriptor();
        let crew = Crew { has_leader: false, leader_until: None, waiters: VecDeque::new(), waiting: Waiting::new() };
        let state = UnsafeCell::new(State { crew, value, driver, reactor });
        Ok(Instance { generation, lock: Mutex::new(()), queue, epoll, state })
    }

    /// The reactor and the value. To be used with the lock held only.
    fn parts(&self) -> (&Reactor, &EpollDriver, &T) {
        // SAFETY: these fields are never borrowed mutably; that they are used under the lock is up to `run`.
        unsafe {
            let state = self.state.get();
            (&(*state).reactor, &(*state).driver, &(*state).value)
        }
    }

    fn run<R>(&self, parker: &Arc<Parker>, waker: &Waker, start: impl AsyncFnOnce(&Reactor, &T) -> R) -> R {
        assert!(!self.queue.is_owner(), "a call must not be made from within another call on the same thread");
        // Dropped in reverse order: first the future, then the membership, then the lock.
        let mut held = Some(self.lock());
        let _membership = Membership(self);
        let (reactor, driver, value) = self.parts();
        let mut future = pin!(start(reactor, value));
        let mut context = Context::from_waker(waker);
        parker.take(WOKEN);
        let mut wait = CallWait::default();
        loop {
            if let Poll::Ready(result) = future.as_mut().poll(&mut context) {
                for _ in 0..PARTING_TURNS {
                    if !reactor.has_ready() {
                        break;
                    }
                    reactor.turn(false);
                }
                return result;
            }
            // Others' tasks and everybody's events, until our own future is woken.
            loop {
                let busy = reactor.has_ready() && reactor.turn(false);
                if parker.take(WOKEN) {
                    break;
                }
                if busy && reactor.has_ready() {
                    continue;
                }
                held = Some(self.wait(held.take(), parker, reactor, driver, &mut wait));
            }
            wait.end(reactor);
        }
    }

    /// Gives the core away once, or sleeps, with the lock released; then takes events.
    fn wait<'a>(
        &'a self,
        held: Option<SharedGuard<'a, T>>,
        parker: &Arc<Parker>,
        reactor: &Reactor,
        driver: &EpollDriver,
        wait: &mut CallWait,
    ) -> SharedGuard<'a, T> {
        let held = held.unwrap_or_else(|| self.lock());
        if wait.started.is_none() {
            let now = reactor.now();
            *wait = CallWait { started: Some(now), patience: held.crew(|crew| crew.waiting.begin(now)), last: now };
        }
        // To ask busy sockets is a system call as well.
        let spins = !driver.has_busy() && held.crew(|crew| crew.waiting.may_spin(&wait.patience));
        if spins || held.crew(|crew| crew.waiting.may_yield(&wait.patience)) {
            drop(held);
            if spins {
                std::hint::spin_loop();
            } else {
                system::yield_core();
            }
            let yielded = reactor.now();
            let held = self.lock();
            reactor.look_soon(yielded);
            reactor.turn(false);
            // What was waited for has come: the rest of the round was work.
            let now = if parker.is_set(WOKEN) { yielded } else { reactor.now() };
            let (yield_ns, round_ns) = (yielded - wait.last, now - wait.last);
            held.crew(|crew| match spins {
                true => crew.waiting.note_spin(&mut wait.patience, round_ns),
                false => crew.waiting.note_yield(&mut wait.patience, yield_ns, round_ns, now),
            });
            wait.last = now;
            return held;
        }
        // What has arrived at busy sockets meanwhile shows as events of the next turn.
        if driver.end_looks() {
            reactor.turn(false);
            return held;
        }
        let slept_from = reactor.now();
        let until = reactor.next_deadline();
        let held = if held.crew(|crew| crew.has_leader) {
            self.follow(held, parker, until, driver)
        } else {
            self.lead(held, parker, until, driver)
        };
        let now = reactor.now();
        reactor.note_waited(now - wait.started.take().unwrap_or(now), true);
        held.crew(|crew| crew.waiting.note_slept(now - slept_from));
        reactor.turn(false);
        held
    }

    /// Sleeps in the kernel, as the leader, until there is an event, a timer is due, or our own waker fires.
    fn lead<'a>(
        &'a self,
        held: SharedGuard<'a, T>,
        parker: &Arc<Parker>,
        until: Option<Nanos>,
        driver: &EpollDriver,
    ) -> SharedGuard<'a, T> {
        if !parker.begin_polling(&self.queue) {
            return held;
        }
        if !driver.ports().begin_sleep() {
            parker.end_polling();
            return held;
        }
        if !self.queue.begin_sleep() {
            driver.ports().end_sleep();
            parker.end_polling();
            return held;
        }
        held.crew(|crew| {
            crew.has_leader = true;
            crew.leader_until = until;
        });
        drop(held);
        let mut events = EventBuffer::new();
        events.wait(self.epoll, until.map(|until| until.saturating_sub(system::monotonic())));
        let held = self.lock();
        self.queue.end_sleep();
        driver.ports().end_sleep();
        parker.end_polling();
        held.crew(|crew| crew.has_leader = false);
        driver.end_pokes(&events);
        driver.deliver(&mut events);
        held
    }

    /// Sleeps, while somebody else leads, until our own waker fires or we are to lead.
    fn follow<'a>(
        &'a self,
        held: SharedGuard<'a, T>,
        parker: &Arc<Parker>,
        until: Option<Nanos>,
        driver: &EpollDriver,
    ) -> SharedGuard<'a, T> {
        if !driver.ports().begin_sleep() {
            return held;
        }
        let leader_oversleeps = held.crew(|crew| {
            crew.waiters.push_back(parker.clone());
            crew.oversleeps(until)
        });
        if leader_oversleeps {
            // It wakes up, finds nothing, and sleeps again until the earlier time.
            self.queue.poke();
        }
        drop(held);
        parker.sleep();
        let held = self.lock();
        parker.take(LEAD);
        held.crew(|crew| crew.waiters.retain(|waiter| !Arc::ptr_eq(waiter, parker)));
        held
    }
}

/// One wait of a call, from having nothing to do until its waker fires.
#[derive(Default)]
struct CallWait {
    started: Option<Nanos>,
    patience: Patience,
    last: Nanos,
}

impl CallWait {
    fn end(&mut self, reactor: &Reactor) {
        if let Some(started) = self.started.take() {
            reactor.note_waited(self.last - started, false);
        }
    }
}

type Make<T> = dyn Fn(&Reactor) -> T + Send + Sync;

/// A reactor and a value that all threads of a process share; see the module's head.
pub struct Shared<T: 'static> {
    instance: AtomicPtr<Instance<T>>,
    make: Box<Make<T>>,
}

impl<T: 'static> Shared<T> {
    /// Makes the reactor and the value; in a forked child `make` runs again at the first call.
    ///
    /// Errors: whatever creating the epoll descriptor gives (`EMFILE`).
    pub fn new(make: impl Fn(&Reactor) -> T + Send + Sync + 'static) -> io::Result<Shared<T>> {
        let make: Box<Make<T>> = Box::new(make);
        let instance = Box::new(Instance::new(fork_generation(), &*make)?);
        Ok(Shared { instance: AtomicPtr::new(Box::into_raw(instance)), make })
    }

    /// Runs a future to completion, from any thread. What it borrows from the caller may live on the caller's stack.
    ///
    /// Panics when called from within another call on the same thread, or when a forked child has no descriptor left
    /// for a reactor of its own.
    pub fn run<R: Send>(&self, start: impl AsyncFnOnce(&Reactor, &T) -> R + Send) -> R {
        let instance = self.instance();
        let mut start = Some(start);
        let mut call = |(parker, waker): &(Arc<Parker>, Waker)| {
            let start = start.take().expect("a call is made once");
            instance.run(parker, waker, start)
        };
        // A thread that is ending may have lost its own.
        PARKER.try_with(&mut call).unwrap_or_else(|_| call(&new_parker()))
    }

    /// Takes the events that are there, and serves the tasks that they wake, without waiting for any.
    ///
    /// Panics: as `run`.
    pub fn look(&self) {
        self.run(async |reactor, _| {
            reactor.look_soon(reactor.now());
            // The first one takes events; what these have woken may wake others.
            for _ in 0..PARTING_TURNS {
                if !reactor.turn(false) {
                    break;
                }
            }
        });
    }

    /// Whether this process, not only one that it was forked from, has made it or used it, and the thread is in none of
    /// its calls: so that a call which is only for the end of the process has something to say, and may be made.
    pub fn is_in_use(&self) -> bool {
        // SAFETY: as in `instance`.
        let instance = unsafe { &*self.instance.load(Ordering::Acquire) };
        instance.generation == fork_generation() && !instance.queue.is_owner()
    }

    fn instance(&self) -> &Instance<T> {
        let current = self.instance.load(Ordering::Acquire);
        // SAFETY: an instance is freed by `drop` only; those that a fork made useless are leaked.
        let instance = unsafe { &*current };
        if instance.generation == fork_generation() {
            return instance;
        }
        self.renew(current)
    }

    /// Puts an instance of this process in the place of an inherited one (invariant 4).
    #[cold]
    fn renew(&self, inherited: *mut Instance<T>) -> &Instance<T> {
        let made = Instance::new(fork_generation(), &*self.make).expect("a forked child has descriptors for a reactor");
        let made = Box::into_raw(Box::new(made));
        match self.instance.compare_exchange(inherited, made, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: as in `instance`; the inherited one is leaked on purpose.
            Ok(_) => unsafe { &*made },
            Err(other) => {
                // SAFETY: nobody else has seen the one just made, and the other thread's is in place for good.
                unsafe {
                    free(made);
                    &*other
                }
            }
        }
    }
}

/// Frees an instance.
///
/// # Safety
/// Nobody else may use it, now or later, and this process made it.
unsafe fn free<T: 'static>(instance: *mut Instance<T>) {
    // SAFETY: the caller says so.
    let instance = unsafe { Box::from_raw(instance) };
    instance.queue.set_owner(thread_marker());
    let reactor = instance.parts().0.clone();
    reactor.shutdown();
    drop(instance);
}

impl<T: 'static> Drop for Shared<T> {
    fn drop(&mut self) {
        let instance = *self.instance.get_mut();
        // SAFETY: an instance lives until here; `&mut self` says that nobody uses it. One that was inherited by a fork
        // is left alone.
        unsafe {
            if (*instance).generation == fork_generation() {
                free(instance);
            }
        }
    }
}
