//! A lock for what a process hands down to the children that it forks: free in the child, and what it guards is whole.
//!
//! A thread that holds an ordinary lock at a fork is not there in the child, where the lock stays taken for ever. So
//! whoever forks takes all locks of this kind first, and gives them back afterwards in parent and child. Whoever holds
//! one does a few steps in memory and waits for nothing but others of them: no server, no lock of another kind.
//!
//! Invariants
//! 1. Where a fork is made all these locks are the forking thread's, but perhaps for those that it holds already: a
//!    signal handler that forks may have interrupted a holder, who goes on in the child as in the parent. Such a fork
//!    goes on without them after `PATIENCE`, which is far more than a holder ever goes without a core.
//! 2. Who forks never waits for a lock while it holds another: a holder may wait for a second one.

use crate::forks::fork_generation;
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::mem;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError, Weak};
use std::time::{Duration, Instant};

/// A fork gives the core away as often, then sleeps for as long each time, and goes on without the locks after so long.
const YIELDS: u32 = 50;
const SLEEP: Duration = Duration::from_micros(50);
const PATIENCE: Duration = Duration::from_secs(5);

/// A lock as a fork sees it.
trait Lock: Send + Sync {
    /// Takes it, until what is returned is dropped. Nothing when another has it.
    fn try_hold(self: Arc<Self>) -> Option<Box<dyn Any>>;
}

/// A lock that a fork has taken.
struct Held<T: 'static> {
    // Dropped before what it borrows from.
    _guard: RwLockWriteGuard<'static, T>,
    _lock: Arc<RwLock<T>>,
}

impl<T: Send + Sync + 'static> Lock for RwLock<T> {
    fn try_hold(self: Arc<Self>) -> Option<Box<dyn Any>> {
        let guard = match self.try_write() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(guard)) => guard.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        // SAFETY: the lock lies in the `Arc`, which is kept beside the guard and dropped after it.
        let guard = unsafe { mem::transmute::<RwLockWriteGuard<'_, T>, RwLockWriteGuard<'static, T>>(guard) };
        Some(Box::new(Held { _guard: guard, _lock: self }))
    }
}

/// All locks of the process, and perhaps some that are gone.
static LOCKS: Mutex<Vec<Weak<dyn Lock>>> = Mutex::new(Vec::new());

thread_local! {
    /// What the fork that this thread is making has taken; nothing outside of one.
    static TAKEN: RefCell<Vec<Box<dyn Any>>> = const { RefCell::new(Vec::new()) };
    /// Forks that this thread has begun: a signal handler may fork within a fork, whose locks it has then.
    static FORKS_BEGUN: Cell<u32> = const { Cell::new(0) };
}

fn try_all() -> Option<Vec<Box<dyn Any>>> {
    let locks = match LOCKS.try_lock() {
        Ok(locks) => locks,
        Err(TryLockError::Poisoned(locks)) => locks.into_inner(),
        Err(TryLockError::WouldBlock) => return None,
    };
    let mut taken: Vec<Box<dyn Any>> = Vec::new();
    for lock in locks.iter().filter_map(Weak::upgrade) {
        taken.push(lock.try_hold()?);
    }
    taken.push(Box::new(locks));
    Some(taken)
}

/// To be called by the thread that forks.
#[expect(clippy::disallowed_methods, reason = "the whole thread waits, and no loop is there to wait in")]
pub(crate) fn before_fork() {
    let begun = FORKS_BEGUN.get();
    FORKS_BEGUN.set(begun + 1);
    if begun > 0 {
        return;
    }
    let mut rounds = 0;
    let mut slept_first = None;
    loop {
        if let Some(taken) = try_all() {
            // A thread that is ending may have lost its own.
            let _ = TAKEN.try_with(|place| place.replace(taken));
            return;
        }
        if rounds < YIELDS {
            rounds += 1;
            std::thread::yield_now();
        } else if slept_first.get_or_insert_with(Instant::now).elapsed() < PATIENCE {
            std::thread::sleep(SLEEP);
        } else {
            return;
        }
    }
}

/// To be called by it afterwards, in the parent and in the child.
pub(crate) fn after_fork() {
    let begun = FORKS_BEGUN.get().saturating_sub(1);
    FORKS_BEGUN.set(begun);
    if begun == 0 {
        let _ = TAKEN.try_with(RefCell::take);
    }
}

/// See the module's head. A panic of a holder poisons nothing.
pub struct ForkLock<T: 'static> {
    lock: OnceLock<Arc<RwLock<T>>>,
    initial: fn() -> T,
}

impl<T: Send + Sync + 'static> ForkLock<T> {
    /// A lock over what `initial` gives when it is first used.
    pub const fn new(initial: fn() -> T) -> ForkLock<T> {
        ForkLock { lock: OnceLock::new(), initial }
    }

    fn lock(&self) -> &RwLock<T> {
        self.lock.get().unwrap_or_else(|| self.make())
    }

    #[cold]
    fn make(&self) -> &Arc<RwLock<T>> {
        // Has the handlers registered.
        fork_generation();
        let made = Arc::new(RwLock::new((self.initial)()));
        let weak: Weak<RwLock<T>> = Arc::downgrade(&made);
        // Of two threads that come at once one makes a lock for nothing; neither waits for the other.
        let mut locks = LOCKS.lock().unwrap_or_else(PoisonError::into_inner);
        if self.lock.set(made).is_ok() {
            locks.retain(|lock| lock.strong_count() > 0);
            locks.push(weak);
        }
        drop(locks);
        self.lock.get().expect("it was set just now, here or elsewhere")
    }

    /// Shares it with other readers.
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        self.lock().read().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.lock().write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: fmt::Debug> fmt::Debug for ForkLock<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lock.get().fmt(formatter)
    }
}
