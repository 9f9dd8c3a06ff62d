//! A lock for what a process hands down to the children that it forks: free in the child, and what it guards is whole.
//!
//! A thread that holds an ordinary lock at a fork is not there in the child, where the lock stays taken for ever. A
//! fork waits here until no other thread is within any lock of this kind, and lets nobody in until it is done. So
//! whoever holds one does a few steps in memory and waits for nothing else: no server, no lock of another kind.
//!
//! Invariants
//! 1. Where a fork is made no thread is within a section, but perhaps the one that forks: a signal handler that forks
//!    may have interrupted one, which goes on in the child as in the parent. Others may wait there for what that one
//!    holds, so such a fork waits for `INTERRUPTED_ROUNDS` at most: its child may find a lock taken that yet another
//!    held.
//! 2. A section within a section never waits for a fork, which waits for the outer one.

use crate::forks::fork_generation;
use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

/// Counters of threads within sections; several, so that threads on many cores seldom write to one cache line.
const COUNTERS: usize = 16;
/// A fork, or who waits for one, gives the core away as often, then sleeps for as long.
const YIELDS: u32 = 50;
const SLEEP: Duration = Duration::from_micros(50);
/// Rounds of the two in which others leave their sections if they can.
const INTERRUPTED_ROUNDS: u32 = 1000;
/// Rounds after which a fork goes on whatever is counted: a signal handler that forks just when its thread enters a
/// section may have it counted twice in the child.
const FORK_ROUNDS: u32 = 100_000;

#[repr(align(64))]
struct Counter(AtomicU32);

static INSIDE: [Counter; COUNTERS] = [const { Counter(AtomicU32::new(0)) }; COUNTERS];
static FORK_UNDER_WAY: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// Sections that this thread is in, one within the other.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
    /// Forks that this thread has begun: a signal handler may fork within a fork.
    static FORKS_BEGUN: Cell<u32> = const { Cell::new(0) };
}

fn wait_until(is_reached: impl Fn() -> bool) {
    wait_rounds(u32::MAX, is_reached);
}

#[expect(clippy::disallowed_methods, reason = "the whole thread waits, and no loop is there to wait in")]
fn wait_rounds(rounds: u32, is_reached: impl Fn() -> bool) {
    for round in 0..rounds {
        if is_reached() {
            return;
        }
        if round < YIELDS {
            std::thread::yield_now();
        } else {
            std::thread::sleep(SLEEP);
        }
    }
}

/// The counter of this thread.
fn counter() -> &'static AtomicU32 {
    let address = DEPTH.with(|depth| std::ptr::from_ref(depth).addr() as u64);
    &INSIDE[(address.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60) as usize % COUNTERS].0
}

/// To be called by the thread that forks.
pub(crate) fn before_fork() {
    let begun = FORKS_BEGUN.get();
    FORKS_BEGUN.set(begun + 1);
    if begun > 0 {
        return;
    }
    wait_until(|| FORK_UNDER_WAY.compare_exchange(false, true, Ordering::SeqCst, Ordering::Relaxed).is_ok());
    let inside = || INSIDE.iter().map(|counter| counter.0.load(Ordering::SeqCst)).sum::<u32>();
    if DEPTH.get() == 0 {
        wait_rounds(FORK_ROUNDS, || inside() == 0);
    } else {
        wait_rounds(INTERRUPTED_ROUNDS, || inside() <= 1);
    }
}

/// To be called by it in the parent, afterwards.
pub(crate) fn after_fork() {
    let begun = FORKS_BEGUN.get().saturating_sub(1);
    FORKS_BEGUN.set(begun);
    if begun == 0 {
        FORK_UNDER_WAY.store(false, Ordering::SeqCst);
    }
}

/// To be called in the child, whose only thread it is.
pub(crate) fn after_fork_in_child() {
    for counter in &INSIDE {
        counter.0.store(0, Ordering::SeqCst);
    }
    counter().store(u32::from(DEPTH.get() > 0), Ordering::SeqCst);
    after_fork();
}

/// While it lives no other thread of the process forks. It belongs to its thread.
struct Section(PhantomData<*const ()>);

impl Section {
    fn enter() -> Section {
        // Has the handlers registered.
        fork_generation();
        let depth = DEPTH.get();
        DEPTH.set(depth + 1);
        if depth == 0 {
            let counter = counter();
            counter.fetch_add(1, Ordering::SeqCst);
            while FORK_UNDER_WAY.load(Ordering::SeqCst) {
                counter.fetch_sub(1, Ordering::SeqCst);
                wait_until(|| !FORK_UNDER_WAY.load(Ordering::SeqCst));
                counter.fetch_add(1, Ordering::SeqCst);
            }
        }
        Section(PhantomData)
    }
}

impl Drop for Section {
    fn drop(&mut self) {
        let depth = DEPTH.get() - 1;
        if depth == 0 {
            counter().fetch_sub(1, Ordering::SeqCst);
        }
        DEPTH.set(depth);
    }
}

/// See the module's head. A panic of a holder poisons nothing.
#[derive(Default)]
pub struct ForkLock<T>(RwLock<T>);

/// What is locked, until it is dropped. It does not leave its thread.
pub struct ForkLockGuard<G> {
    // Dropped before the section ends.
    guard: G,
    _section: Section,
}

impl<T> ForkLock<T> {
    pub const fn new(value: T) -> ForkLock<T> {
        ForkLock(RwLock::new(value))
    }

    /// Shares it with other readers.
    pub fn read(&self) -> ForkLockGuard<RwLockReadGuard<'_, T>> {
        let section = Section::enter();
        ForkLockGuard { guard: self.0.read().unwrap_or_else(PoisonError::into_inner), _section: section }
    }

    pub fn write(&self) -> ForkLockGuard<RwLockWriteGuard<'_, T>> {
        let section = Section::enter();
        ForkLockGuard { guard: self.0.write().unwrap_or_else(PoisonError::into_inner), _section: section }
    }
}

impl<T: fmt::Debug> fmt::Debug for ForkLock<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

impl<G: Deref> Deref for ForkLockGuard<G> {
    type Target = G::Target;

    fn deref(&self) -> &G::Target {
        &self.guard
    }
}

impl<G: DerefMut> DerefMut for ForkLockGuard<G> {
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.guard
    }
}
