//! The reactor: runs ready tasks by class, fires timers, and waits when there is nothing to do.
//!
//! Invariants
//! 1. No borrow of the reactor's own state is held while a task is polled, a future dropped or a waker woken or
//!    dropped.
//! 2. After `shutdown` no task is alive and none can be added.

use crate::Nanos;
use crate::cores::PreferredCores;
use crate::device::{BufferPool, Device, DeviceOptions};
use crate::driver::{Driver, DriverKind, SIMULATED_NAME};
use crate::operations::OperationDelays;
use crate::region::Storage;
use crate::schedule::{self, Schedule};
use crate::task::{self, CLASS_COUNT, Outcome, ReadyQueue, RootWaker, Runnable};
use crate::timers::{TimerKey, Timers};
use crate::waiting::{Patience, Waiting};
use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::io;
use std::path::Path;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

/// Scheduling class of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Class {
    /// Short work that others wait for.
    Metadata = 0,
    /// Moving bytes.
    Data = 1,
    /// Work that steps back while others are busy: flushing, checkpoints, eviction. It yields every 64-256 KiB.
    Background = 2,
}

impl Class {
    /// All classes, most urgent first.
    pub const ALL: [Class; CLASS_COUNT] = [Class::Metadata, Class::Data, Class::Background];
}

/// Busy sockets are asked after each yield, and else in one of so many turns: others have not run meanwhile.
const LOOK_TURNS: u32 = 4;

/// What is to happen around each step of a loop: a poll of a task, within which nothing else of the loop happens.
pub trait Gate {
    /// Does what waits at the gate, between two steps. Whether there was something.
    fn look(&self) -> bool;
    /// A step is about to begin. False when nobody needs this gate any more.
    fn enter(&self) -> bool;
    /// It has ended.
    fn leave(&self);
}

/// What a loop has done so far. Times are nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoopStatistics {
    /// Turns of the loop.
    pub turns: u64,
    /// Time spent working.
    pub busy_ns: u64,
    /// Time spent polling or asleep with nothing to do. For `Shared` it is summed over all threads that waited, so it
    /// may exceed the time that passed, and `busy_ns` then says nothing.
    pub waiting_ns: u64,
    /// Polls of tasks.
    pub polls: u64,
    /// Times that a turn found events or timers.
    pub wakeups: u64,
    /// Times that the loop slept in the kernel.
    pub sleeps: u64,
    /// What the loop adds to the time of operations on devices.
    pub delays: OperationDelays,
    /// Tasks alive, by class.
    pub tasks_live: [u64; CLASS_COUNT],
    /// Tasks ready to run, by class.
    pub ready_depth: [u64; CLASS_COUNT],
    /// Timers set.
    pub timers: u64,
}

#[derive(Default)]
struct Counters {
    turns: Cell<u64>,
    polls: Cell<u64>,
    wakeups: Cell<u64>,
    sleeps: Cell<u64>,
    waiting_ns: Cell<u64>,
}

fn count(counter: &Cell<u64>) {
    counter.set(counter.get() + 1);
}

/// A wait that is under way.
#[derive(Clone, Copy)]
struct Wait {
    started: Nanos,
    patience: Patience,
    /// When the last yield and the look for work after it had ended.
    before: Nanos,
}

/// Tasks that are alive.
#[derive(Default)]
struct TaskTable {
    tasks: Vec<Option<Arc<dyn Runnable>>>,
    free: Vec<u32>,
    live: [u64; CLASS_COUNT],
}

impl TaskTable {
    fn insert(&mut self, task: Arc<dyn Runnable>) {
        self.live[task.header().class() as usize] += 1;
        let slot = self.free.pop().unwrap_or_else(|| {
            self.tasks.push(None);
            (self.tasks.len() - 1) as u32
        });
        task.header().set_slot(slot);
        self.tasks[slot as usize] = Some(task);
    }

    fn set_class(&mut self, slot: u32, class: Class) {
        if let Some(Some(task)) = self.tasks.get(slot as usize) {
            self.live[task.header().class() as usize] -= 1;
            self.live[class as usize] += 1;
            task.header().set_class(class);
        }
    }

    fn remove(&mut self, slot: u32) -> Option<Arc<dyn Runnable>> {
        let task = self.tasks[slot as usize].take()?;
        self.live[task.header().class() as usize] -= 1;
        self.free.push(slot);
        Some(task)
    }
}

struct ExecutorInner {
    queue: Arc<ReadyQueue>,
    tasks: RefCell<TaskTable>,
    timers: RefCell<Timers>,
    waiting: RefCell<Waiting>,
    wait: Cell<Option<Wait>>,
    /// Turns until busy sockets are asked again.
    look_in: Cell<u32>,
    /// The time, if the clock was read just before the next turn.
    just_now: Cell<Option<Nanos>>,
    /// When the clock was last read for a task, before the last look for events, and before the one before that.
    last_reading: Cell<Nanos>,
    last_look: Cell<Nanos>,
    look_before: Cell<Nanos>,
    counters: Counters,
    started: Nanos,
    schedule: RefCell<Schedule>,
    /// What the task that runs now is to be from now on.
    next_class: Cell<Option<Class>>,
    yield_asked: Cell<bool>,
    polled: Cell<bool>,
    closed: Cell<bool>,
    gates: RefCell<Vec<Rc<dyn Gate>>>,
    /// Whether something was done at a gate in the wait that has just ended.
    was_busy_at_gates: Cell<bool>,
    driver: Box<dyn Driver>,
}

/// One loop. Clones are the same loop; it stays on the thread that made it.
#[derive(Clone)]
pub struct Reactor(Rc<ExecutorInner>);

impl Reactor {
    /// A reactor over the machine's own facilities. Errors: whatever creating the ring or the epoll descriptor gives.
    pub fn open(kind: DriverKind) -> io::Result<Reactor> {
        let driver: Box<dyn Driver> = match kind {
            DriverKind::Epoll => Box::new(crate::epoll::EpollDriver::new()?),
            DriverKind::IoUring => Box::new(crate::uring::UringDriver::new()?),
            DriverKind::Auto => match crate::uring::UringDriver::new() {
                Ok(driver) => Box::new(driver),
                Err(_) => Box::new(crate::epoll::EpollDriver::new()?),
            },
        };
        Ok(Reactor::with_driver(driver))
    }

    /// A reactor over a given driver.
    pub fn with_driver(driver: Box<dyn Driver>) -> Reactor {
        let queue = ReadyQueue::new();
        driver.attach(&queue);
        Reactor(Rc::new(ExecutorInner {
            queue,
            tasks: RefCell::default(),
            timers: RefCell::default(),
            waiting: RefCell::new(Waiting::new()),
            wait: Cell::new(None),
            look_in: Cell::new(0),
            just_now: Cell::new(None),
            last_reading: Cell::new(driver.now()),
            last_look: Cell::new(driver.now()),
            look_before: Cell::new(driver.now()),
            counters: Counters::default(),
            started: driver.now(),
            schedule: RefCell::default(),
            next_class: Cell::new(None),
            yield_asked: Cell::new(false),
            polled: Cell::new(false),
            closed: Cell::new(false),
            gates: RefCell::default(),
            was_busy_at_gates: Cell::new(false),
            driver,
        }))
    }

    pub(crate) fn driver(&self) -> &dyn Driver {
        &*self.0.driver
    }

    pub(crate) fn queue(&self) -> &Arc<ReadyQueue> {
        &self.0.queue
    }

    /// Name of the driver: `io_uring`, `epoll` or `sim`.
    pub fn driver_name(&self) -> &'static str {
        self.0.driver.name()
    }

    /// Whether this loop is a part of a simulation.
    pub fn is_simulated(&self) -> bool {
        self.driver_name() == SIMULATED_NAME
    }

    /// Monotonic time.
    pub fn now(&self) -> Nanos {
        let now = self.0.driver.now();
        self.0.last_reading.set(now);
        now
    }

    /// The earliest time at which something can have arrived that was found in this turn and had not been there before:
    /// the look for events before had not seen it. No clock is read for it.
    pub fn arrival_floor(&self) -> Nanos {
        self.0.look_before.get()
    }

    /// A turn is about to begin. Where the loop was idle it would have seen at once whatever arrived before.
    pub(crate) fn note_turn(&self, now: Nanos, was_idle: bool) {
        match was_idle {
            true => self.0.note_idle(now),
            false => self.0.last_reading.set(now),
        }
    }

    /// Nanoseconds since the epoch.
    pub fn wall_clock(&self) -> i64 {
        self.0.driver.wall_clock()
    }

    /// A random number; not for secrets.
    pub fn random(&self) -> u64 {
        self.0.driver.random()
    }

    /// Random bytes, good enough for keys and nonces.
    pub fn fill_random(&self, bytes: &mut [u8]) {
        self.0.driver.fill_random(bytes);
    }

    /// The storage in a directory, which is created if it is missing.
    pub fn storage(&self, directory: &Path) -> io::Result<Rc<dyn Storage>> {
        self.0.driver.storage(directory)
    }

    /// Opens a file or block device, for operations beside other work (docs/device.md). Errors: they name the path;
    /// `InvalidInput` for what is neither, `ResourceBusy` for a block device that others use.
    pub fn open_device(&self, path: &Path, options: &DeviceOptions) -> io::Result<Device> {
        self.0.driver.device(path, options)
    }

    /// Makes `count` buffers of `size` bytes for devices of this loop. Errors: `OutOfMemory`, `InvalidInput` for more
    /// than 1 GiB.
    pub fn buffer_pool(&self, size: usize, count: u32) -> io::Result<BufferPool> {
        self.0.driver.buffer_pool(size, count)
    }

    /// Tells that so many entries of a directory were gone through. A simulated processor takes its time for them; a
    /// real one has taken it already.
    pub fn note_entries(&self, count: u64) {
        self.0.driver.note_entries(count);
    }

    /// Starts a task that nobody waits for.
    pub fn spawn(&self, class: Class, future: impl Future<Output = ()> + 'static) {
        self.spawn_task(class, future);
    }

    /// The same, and runs it until it waits for the first time, within the step of whoever starts it.
    pub fn spawn_started(&self, class: Class, future: impl Future<Output = ()> + 'static) {
        let inner = &*self.0;
        if inner.closed.get() {
            return;
        }
        let task = task::new_task(class, inner.queue.clone(), future);
        inner.tasks.borrow_mut().insert(task.clone());
        // What the task within which it is started is to be stays that one's.
        let next_class = inner.next_class.take();
        inner.run_task(task);
        inner.next_class.set(next_class);
    }

    /// Starts a task. Dropping the handle lets it go on; `JoinHandle::cancel` drops it.
    pub fn spawn_joinable<T: 'static>(&self, class: Class, future: impl Future<Output = T> + 'static) -> JoinHandle<T> {
        let result = Rc::new(RefCell::new(JoinResult { value: None, waker: None }));
        let place = result.clone();
        let task = self.spawn_task(class, async move {
            let value = future.await;
            let waker = {
                let mut result = place.borrow_mut();
                result.value = Some(value);
                result.waker.take()
            };
            if let Some(waker) = waker {
                waker.wake();
            }
        });
        JoinHandle { reactor: self.clone(), task, result }
    }

    fn spawn_task<F: Future<Output = ()> + 'static>(&self, class: Class, future: F) -> Option<Arc<dyn Runnable>> {
        if self.0.closed.get() {
            return None;
        }
        let task = task::new_task(class, self.0.queue.clone(), future);
        self.0.tasks.borrow_mut().insert(task.clone());
        task.clone().schedule();
        Some(task)
    }

    /// Resolves after a time.
    pub fn sleep(&self, duration: Nanos) -> Sleep {
        self.sleep_until(self.now().saturating_add(duration))
    }

    /// Resolves at a time.
    pub fn sleep_until(&self, deadline: Nanos) -> Sleep {
        Sleep { reactor: self.clone(), deadline, key: None }
    }

    /// Bytes that a step of the task that runs now may move.
    pub(crate) fn step_bytes(&self) -> usize {
        let waiting = Class::ALL.map(|class| self.0.queue.ready_count(class));
        schedule::step_bytes(waiting.into_iter().sum())
    }

    /// Has the task that runs now be of another class, from its next step on.
    pub(crate) fn set_class(&self, class: Class) {
        self.0.next_class.set(Some(class));
    }

    /// Lets others run: the task goes to the end of its class, and events are looked at first.
    pub fn yield_now(&self) -> YieldNow {
        YieldNow { reactor: self.clone(), yielded: false }
    }

    /// Runs the loop until the future completes. Must not be called from within a task.
    pub fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        let root = Arc::new(RootWaker { woken: AtomicBool::new(true), queue: self.0.queue.clone() });
        let waker = Waker::from(root.clone());
        let mut context = Context::from_waker(&waker);
        let mut future = pin!(future);
        loop {
            self.0.queue.begin_root();
            if root.woken.swap(false, Ordering::Acquire)
                && let Poll::Ready(value) = self.0.pass_gate(|| future.as_mut().poll(&mut context))
            {
                self.0.driver.submit();
                return value;
            }
            self.turn(!root.woken.load(Ordering::Acquire));
        }
    }

    /// One turn: events, timers, ready tasks within their budgets. With nothing to do and `may_wait` it waits for the
    /// next event or timer. True if it did anything.
    pub fn turn(&self, may_wait: bool) -> bool {
        let inner = &*self.0;
        count(&inner.counters.turns);
        // Events that ended a wait have just been taken.
        let events = inner.polled.replace(false) || {
            inner.note_look(inner.last_reading.get());
            inner.driver.poll()
        };
        let events = inner.fire_timers() | events;
        let events = inner.was_busy_at_gates.replace(false) | inner.look_at_gates() | events;
        let received = inner.driver.received();
        let looks = inner.look();
        let polls = inner.run_ready();
        // Tasks that looked in vain are no work.
        let found = events || inner.driver.received() != received;
        let did = found || polls > looks;
        if found {
            count(&inner.counters.wakeups);
        }
        inner.driver.submit();
        if did {
            inner.end_wait(false);
        } else if may_wait && inner.queue.is_empty() {
            inner.wait_for_work();
        }
        did
    }

    /// From now on each poll of a task passes this gate too.
    pub fn add_gate(&self, gate: Rc<dyn Gate>) {
        self.0.gates.borrow_mut().push(gate);
    }

    /// Drops all tasks and refuses new ones. Tasks own clones of the reactor, so this is also what lets it be freed.
    pub fn shutdown(&self) {
        self.0.close();
    }

    /// What the loop has done so far.
    pub fn statistics(&self) -> LoopStatistics {
        let inner = &*self.0;
        let waiting_ns = inner.counters.waiting_ns.get();
        LoopStatistics {
            turns: inner.counters.turns.get(),
            busy_ns: (inner.driver.now() - inner.started).saturating_sub(waiting_ns),
            waiting_ns,
            polls: inner.counters.polls.get(),
            wakeups: inner.counters.wakeups.get(),
            sleeps: inner.counters.sleeps.get(),
            delays: inner.driver.operation_delays(),
            tasks_live: inner.tasks.borrow().live,
            ready_depth: Class::ALL.map(|class| inner.queue.ready_count(class) as u64),
            timers: inner.timers.borrow().count() as u64,
        }
    }

    /// Has busy sockets asked in the next turn, which comes at once, at a time that is known already.
    pub(crate) fn look_soon(&self, now: Nanos) {
        self.0.look_in.set(0);
        self.0.just_now.set(Some(now));
    }

    /// Bytes that this process has copied since it started ([`crate::bytes_copied`]); 0 in simulations, where many
    /// share a process.
    pub fn bytes_copied(&self) -> u64 {
        self.0.driver.bytes_copied()
    }

    /// Whether somebody else wants the core: it is given away once, for as long as they take it. For work that can
    /// wait. What a simulated node says is set ([`crate::sim::World::set_core_wanted`]).
    pub fn is_core_wanted(&self) -> bool {
        self.0.driver.is_core_wanted()
    }

    /// Has this thread run on some cores as long as nobody computes there; from when somebody does until he is gone it
    /// runs on all that it may use. Errors: as [`crate::process::stay_on`].
    pub fn prefer_cores(&self, cores: Vec<usize>) -> io::Result<()> {
        let allowed = crate::process::allowed_cores()?;
        crate::threads::note_all_cores(&allowed);
        crate::process::stay_on(&cores)?;
        self.0.waiting.borrow_mut().preferred_cores = Some(PreferredCores::new(cores, allowed));
        Ok(())
    }

    /// When the next timer is due.
    pub(crate) fn next_deadline(&self) -> Option<Nanos> {
        self.0.timers.borrow_mut().next_deadline()
    }

    /// Whether a turn would run a task now.
    pub(crate) fn has_ready(&self) -> bool {
        !self.0.queue.is_empty()
    }

    /// Counts time spent waiting outside of `turn`, and whether it was asleep.
    pub(crate) fn note_waited(&self, waited: Nanos, slept: bool) {
        self.0.note_waited(waited, slept);
    }
}

impl ExecutorInner {
    fn close(&self) {
        self.closed.set(true);
        let tasks = std::mem::take(&mut *self.tasks.borrow_mut());
        for task in tasks.tasks.into_iter().flatten() {
            task.cancel();
        }
        self.queue.close();
    }

    /// Events are about to be looked for, not before `now`.
    fn note_look(&self, now: Nanos) {
        self.last_reading.set(now);
        self.look_before.set(self.last_look.replace(now));
    }

    fn note_idle(&self, now: Nanos) {
        self.last_reading.set(now);
        self.last_look.set(now);
        self.look_before.set(now);
    }

    fn fire_timers(&self) -> bool {
        let just_now = self.just_now.take();
        if self.timers.borrow().count() == 0 {
            return false;
        }
        let now = just_now.unwrap_or_else(|| self.driver.now());
        let mut fired = false;
        loop {
            let due = self.timers.borrow_mut().pop_due(now);
            let Some(waker) = due else { return fired };
            waker.wake();
            fired = true;
        }
    }

    /// Has busy sockets asked for bytes, if it is time. Returns how many.
    fn look(&self) -> usize {
        let left = self.look_in.get();
        if left > 0 {
            self.look_in.set(left - 1);
            return 0;
        }
        self.look_in.set(LOOK_TURNS - 1);
        self.driver.look()
    }

    /// Runs tasks, slice by slice of their classes. Returns the number of polls.
    fn run_ready(&self) -> usize {
        let mut polls = 0;
        self.schedule.borrow_mut().begin_turn();
        loop {
            self.queue.take_remote();
            let ready = Class::ALL.map(|class| self.queue.ready_count(class));
            let slice = self.schedule.borrow_mut().next(ready);
            let Some(slice) = slice else { break };
            let started = slice.is_timed.then(|| self.driver.now());
            self.run_class(slice.class, slice.steps);
            polls += slice.steps;
            if let Some(started) = started {
                self.schedule.borrow_mut().note(slice, self.driver.now().saturating_sub(started));
            }
            // A task that yields wants events to be looked at before it goes on.
            if self.yield_asked.replace(false) {
                break;
            }
        }
        polls
    }

    /// Polls so many tasks of a class that are ready now.
    fn run_class(&self, class: Class, steps: usize) {
        for _ in 0..steps {
            let Some(task) = self.queue.pop(class) else { break };
            // It was woken before it was of another class.
            if task.header().class() != class {
                ReadyQueue::push(task);
                continue;
            }
            self.pass_gate(|| self.run_task(task));
        }
    }

    fn run_task(&self, task: Arc<dyn Runnable>) {
        count(&self.counters.polls);
        let slot = task.header().slot();
        let outcome = task.run();
        if let Some(next) = self.next_class.take() {
            self.tasks.borrow_mut().set_class(slot, next);
        }
        if outcome == Outcome::Finished && !self.closed.get() {
            let ended = self.tasks.borrow_mut().remove(slot);
            drop(ended);
        }
    }

    /// Does what waits at the gates. Whether there was something.
    fn look_at_gates(&self) -> bool {
        self.gates.borrow().iter().fold(false, |any, gate| gate.look() | any)
    }

    /// One step of the loop.
    fn pass_gate<T>(&self, step: impl FnOnce() -> T) -> T {
        if self.gates.borrow().is_empty() {
            return step();
        }
        self.gates.borrow_mut().retain(|gate| gate.enter());
        let result = step();
        self.gates.borrow().iter().for_each(|gate| gate.leave());
        result
    }

    /// Polls a while, giving the core away, then sleeps in the kernel. While there are busy sockets it comes back after
    /// each yield, for they are asked in the next turn.
    fn wait_for_work(&self) {
        let looks = self.driver.has_busy();
        let mut before = self.driver.now();
        let mut wait = self.wait.get().unwrap_or_else(|| Wait {
            started: before,
            patience: self.waiting.borrow_mut().begin(before),
            before,
        });
        let deadline = self.timers.borrow_mut().next_deadline();
        loop {
            // To ask busy sockets is a system call as well.
            let spins = !looks && self.waiting.borrow().may_spin(&wait.patience);
            if !spins && !self.waiting.borrow().may_yield(&wait.patience) {
                break;
            }
            if spins {
                std::hint::spin_loop();
            } else {
                crate::system::yield_core();
            }
            self.look_in.set(0);
            let yielded = self.driver.now();
            self.note_look(yielded);
            let events = self.driver.poll();
            self.polled.set(events);
            let was_busy = self.look_at_gates();
            self.was_busy_at_gates.set(was_busy);
            let found =
                was_busy || events || !self.queue.is_empty() || deadline.is_some_and(|deadline| deadline <= yielded);
            let now = if found || looks { yielded } else { self.driver.now() };
            // Also when it was worth it: a neighbour that computes keeps the core while messages pile up.
            let mut waiting = self.waiting.borrow_mut();
            match spins {
                true => waiting.note_spin(&mut wait.patience, now - wait.before),
                false => waiting.note_yield(&mut wait.patience, yielded - before, now - wait.before, now),
            }
            drop(waiting);
            wait.before = now;
            before = now;
            if found || looks {
                self.wait.set(Some(wait));
                self.just_now.set(Some(yielded));
                return;
            }
        }
        self.wait.set(Some(wait));
        // What has arrived at busy sockets meanwhile shows as events of the next turn, and then no poll counts as a
        // look.
        if self.driver.end_looks() {
            return;
        }
        let slept_from = self.driver.now();
        if self.queue.begin_sleep() {
            self.driver.wait(deadline);
            self.queue.end_sleep();
        }
        let woken = self.driver.now();
        self.waiting.borrow_mut().note_slept(woken - slept_from);
        self.note_idle(woken);
        self.end_wait(true);
    }

    /// The wait that is under way, if any, has ended.
    fn end_wait(&self, slept: bool) {
        if let Some(wait) = self.wait.take() {
            let until = if slept { self.driver.now() } else { wait.before };
            self.note_waited(until - wait.started, slept);
        }
    }

    /// Counts time spent waiting.
    fn note_waited(&self, waited: Nanos, slept: bool) {
        self.counters.waiting_ns.set(self.counters.waiting_ns.get() + waited);
        if slept {
            count(&self.counters.sleeps);
        }
    }
}

impl Drop for ExecutorInner {
    fn drop(&mut self) {
        // Wakers may keep tasks allocated: their futures must go here, on the owner's thread.
        self.close();
        self.queue.set_poke_descriptor(-1);
    }
}

/// Resolves like `future`, or to `None` at the deadline.
pub async fn until<T>(reactor: &Reactor, deadline: Nanos, future: impl Future<Output = T>) -> Option<T> {
    let (mut future, mut sleep) = (pin!(future), pin!(reactor.sleep_until(deadline)));
    poll_fn(|context| {
        if let Poll::Ready(value) = future.as_mut().poll(context) {
            return Poll::Ready(Some(value));
        }
        sleep.as_mut().poll(context).map(|()| None)
    })
    .await
}

/// Resolves at its deadline; see [`Reactor::sleep`]. Making and dropping one is cheap; it registers when first polled.
pub struct Sleep {
    reactor: Reactor,
    deadline: Nanos,
    key: Option<TimerKey>,
}

impl Sleep {
    /// When it resolves.
    pub fn deadline(&self) -> Nanos {
        self.deadline
    }

    /// Moves the deadline, without waking anybody.
    pub fn reset(&mut self, deadline: Nanos) {
        self.forget();
        self.deadline = deadline;
    }

    fn forget(&mut self) {
        if let Some(key) = self.key.take() {
            let waker = self.reactor.0.timers.borrow_mut().drop_timer(key);
            drop(waker);
        }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        let inner = &*this.reactor.0;
        match this.key {
            Some(key) => {
                let mut timers = inner.timers.borrow_mut();
                if !timers.is_set(key) {
                    return Poll::Ready(());
                }
                timers.update(key, context.waker());
            }
            None => {
                if inner.driver.now() >= this.deadline {
                    return Poll::Ready(());
                }
                this.key = Some(inner.timers.borrow_mut().set(this.deadline, context.waker().clone()));
            }
        }
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.forget();
    }
}

/// Resolves when the task runs next; see [`Reactor::yield_now`].
pub struct YieldNow {
    reactor: Reactor,
    yielded: bool,
}

impl Future for YieldNow {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.yielded {
            return Poll::Ready(());
        }
        self.yielded = true;
        self.reactor.0.yield_asked.set(true);
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

struct JoinResult<T> {
    value: Option<T>,
    waker: Option<Waker>,
}

/// Waits for a task's result; see [`Reactor::spawn_joinable`]. Never resolves if the reactor is shut down first.
pub struct JoinHandle<T> {
    reactor: Reactor,
    task: Option<Arc<dyn Runnable>>,
    result: Rc<RefCell<JoinResult<T>>>,
}

impl<T> JoinHandle<T> {
    /// Drops the task's future now, or, called from within that task, when its poll returns.
    pub fn cancel(self) {
        let Some(task) = &self.task else { return };
        if task.cancel() && !self.reactor.0.closed.get() {
            let ended = self.reactor.0.tasks.borrow_mut().remove(task.header().slot());
            drop(ended);
        }
    }

    /// Whether the result is there.
    pub fn is_finished(&self) -> bool {
        self.result.borrow().value.is_some()
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let mut result = self.result.borrow_mut();
        match result.value.take() {
            Some(value) => Poll::Ready(value),
            None => {
                let old = result.waker.replace(context.waker().clone());
                drop(result);
                drop(old);
                Poll::Pending
            }
        }
    }
}
