//! What the published measurement did: a runtime that runs its queue until it is empty before it looks at the ring, a
//! task for each packet, and no bound for packets that were received and not yet written. Where the network is never
//! quiet the queue is never empty, so writes are handed over when the ring is full alone, nobody hears of their ends,
//! and memory grows.

use crate::door;
use crate::job::{Job, Mode, Source, Tally};
use crate::memory::{Arena, Slot};
use io_uring::{IoUring, opcode, squeue, types};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fs::File;
use std::future::Future;
use std::io::{ErrorKind, Read};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

const SUBMISSIONS: u32 = 256;
/// Slots that are made at a time.
const SLOTS_MADE: usize = 64;

type BoxedTask = Pin<Box<dyn Future<Output = ()>>>;

/// What an operation on the ring has come to, and whose it is.
struct Operation {
    task: usize,
    /// The result, and when it was seen.
    ended: Option<(i32, u64)>,
    /// What the kernel reads.
    slot: Option<Slot>,
}

/// A runtime with one queue.
struct Runtime {
    ring: RefCell<IoUring>,
    tasks: RefCell<Vec<Option<BoxedTask>>>,
    vacant: RefCell<Vec<usize>>,
    live: Cell<usize>,
    ready: RefCell<VecDeque<usize>>,
    current: Cell<usize>,
    operations: RefCell<Vec<Option<Operation>>>,
    unused: RefCell<Vec<usize>>,
    under_way: Cell<usize>,
    /// When the operations that are not yet handed over were prepared.
    prepared: RefCell<Vec<u64>>,
}

/// What the tasks share.
struct Work {
    runtime: Runtime,
    job: Job,
    file: Option<File>,
    free: RefCell<Vec<Slot>>,
    tally: RefCell<Tally>,
    held: Cell<usize>,
    failure: RefCell<Option<String>>,
}

pub fn run(job: &Job, tally: &mut Tally) -> Result<bool, String> {
    let ring = IoUring::new(SUBMISSIONS).map_err(|error| format!("io_uring: {error}"))?;
    let file = if job.mode == Mode::Network { None } else { Some(door::open(job)?) };
    let stream = door::accept(job)?;
    let (tasks, vacant, live, ready, current) = Default::default();
    let (operations, unused, under_way, prepared) = Default::default();
    let ring = RefCell::new(ring);
    let runtime = Runtime { ring, tasks, vacant, live, ready, current, operations, unused, under_way, prepared };
    let (free, held, failure) = Default::default();
    let own = std::mem::replace(tally, Tally::new());
    let work = Rc::new(Work { runtime, job: job.clone(), file, free, tally: RefCell::new(own), held, failure });
    // The first are made before the time begins, as everybody's.
    let first = work.slot()?;
    work.free.borrow_mut().extend(first);
    work.tally.borrow_mut().begin();
    let is_full = Rc::new(Cell::new(false));
    work.runtime.spawn(receive_packets(work.clone(), stream, is_full.clone()));
    let result = work.runtime.run(&work.tally);
    work.tally.borrow_mut().end();
    std::mem::swap(tally, &mut work.tally.borrow_mut());
    match (result, work.failure.take()) {
        (Err(words), _) | (_, Some(words)) => Err(words),
        _ => Ok(is_full.get()),
    }
}

async fn receive_packets(work: Rc<Work>, stream: Option<TcpStream>, is_full: Rc<Cell<bool>>) {
    let source = Source::new(&work.job, &work.tally.borrow().clock);
    if let Err(words) = try_receive_packets(&work, stream, source, &is_full).await {
        work.failure.borrow_mut().get_or_insert(words);
    }
}

async fn try_receive_packets(
    work: &Rc<Work>,
    mut stream: Option<TcpStream>,
    mut source: Source,
    is_full: &Cell<bool>,
) -> Result<(), String> {
    while work.failure.borrow().is_none() {
        let Some(mut slot) = work.slot()? else {
            is_full.set(true);
            return Ok(());
        };
        let offset = match &mut stream {
            None => source.next(&work.tally.borrow().clock),
            Some(stream) => work.receive(stream, &mut slot).await?,
        };
        let Some(offset) = offset else { return Ok(()) };
        work.job.check(offset)?;
        if work.job.mode == Mode::Network {
            work.tally.borrow_mut().note_received();
            work.free.borrow_mut().push(slot);
        } else {
            work.held.set(work.held.get() + 1);
            work.tally.borrow_mut().note_held(work.held.get());
            work.runtime.spawn(write_packet(work.clone(), offset, slot));
        }
        work.runtime.yield_now().await;
    }
    Ok(())
}

async fn write_packet(work: Rc<Work>, offset: u64, slot: Slot) {
    let Some(file) = &work.file else { return };
    let (address, size) = (slot.payload().as_ptr(), work.job.size as u32);
    let entry = opcode::Write::new(types::Fd(file.as_raw_fd()), address, size).offset(offset).build();
    let began = work.tally.borrow().now();
    let (result, seen, slot) = work.runtime.operate(&work.tally, entry, Some(slot)).await;
    if result != size as i32 {
        let words = crate::failure(&work.job.path, result, work.job.size, offset);
        work.failure.borrow_mut().get_or_insert(words);
    }
    let mut tally = work.tally.borrow_mut();
    let waited = tally.clock.between(seen, tally.now());
    tally.resumption.record(waited);
    tally.note_written(began);
    work.held.set(work.held.get() - 1);
    work.free.borrow_mut().extend(slot);
}

impl Work {
    /// Room for a packet, however much there is already; none when the most that this may have is used up.
    fn slot(&self) -> Result<Option<Slot>, String> {
        let mut free = self.free.borrow_mut();
        if free.is_empty() {
            let mut tally = self.tally.borrow_mut();
            if tally.buffers >= self.job.memory_max {
                return Ok(None);
            }
            *free = Arena::slots(self.job.size, SLOTS_MADE).map_err(|error| error.to_string())?;
            tally.buffers += free[0].mapping().1 as u64;
        }
        Ok(free.pop())
    }

    async fn receive(&self, stream: &mut TcpStream, slot: &mut Slot) -> Result<Option<u64>, String> {
        let mut done = 0;
        while done < slot.packet().len() {
            match stream.read(&mut slot.packet()[done..]) {
                Ok(0) if done == 0 => return Ok(None),
                Ok(0) => return Err("the client ended within a packet".to_owned()),
                Ok(count) => done += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let poll = opcode::PollAdd::new(types::Fd(stream.as_raw_fd()), libc::POLLIN as u32).build();
                    self.runtime.operate(&self.tally, poll, None).await;
                }
                Err(error) => return Err(format!("network: {error}")),
            }
        }
        Ok(Some(slot.offset()))
    }
}

impl Runtime {
    fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        let mut tasks = self.tasks.borrow_mut();
        let index = self.vacant.borrow_mut().pop().unwrap_or_else(|| {
            tasks.push(None);
            tasks.len() - 1
        });
        tasks[index] = Some(Box::pin(task));
        self.live.set(self.live.get() + 1);
        self.ready.borrow_mut().push_back(index);
    }

    /// Runs until no task is left.
    fn run(&self, tally: &RefCell<Tally>) -> Result<(), String> {
        let mut context = Context::from_waker(Waker::noop());
        while self.live.get() > 0 {
            loop {
                let Some(index) = self.ready.borrow_mut().pop_front() else { break };
                let Some(mut task) = self.tasks.borrow_mut()[index].take() else { continue };
                self.current.set(index);
                if task.as_mut().poll(&mut context).is_pending() {
                    self.tasks.borrow_mut()[index] = Some(task);
                } else {
                    self.vacant.borrow_mut().push(index);
                    self.live.set(self.live.get() - 1);
                }
            }
            if self.live.get() > 0 {
                self.submit(tally, 1)?;
            }
            self.reap(tally);
        }
        Ok(())
    }

    fn submit(&self, tally: &RefCell<Tally>, wanted: usize) -> Result<(), String> {
        let mut tally = tally.borrow_mut();
        let now = tally.now();
        for prepared in self.prepared.borrow_mut().drain(..) {
            let waited = tally.clock.between(prepared, now);
            tally.handover.record(waited);
        }
        match self.ring.borrow_mut().submit_and_wait(wanted) {
            Err(error) if !matches!(error.raw_os_error(), Some(libc::EINTR | libc::EBUSY | libc::EAGAIN)) => {
                Err(format!("io_uring: {error}"))
            }
            _ => Ok(()),
        }
    }

    fn reap(&self, tally: &RefCell<Tally>) {
        let seen = tally.borrow().now();
        let mut ring = self.ring.borrow_mut();
        for completion in ring.completion() {
            let index = completion.user_data() as usize;
            if let Some(operation) = &mut self.operations.borrow_mut()[index] {
                operation.ended = Some((completion.result(), seen));
                self.ready.borrow_mut().push_back(operation.task);
            }
            self.under_way.set(self.under_way.get() - 1);
        }
    }

    /// One operation on the ring: its result, when that was seen, and the slot.
    async fn operate(
        &self,
        tally: &RefCell<Tally>,
        entry: squeue::Entry,
        slot: Option<Slot>,
    ) -> (i32, u64, Option<Slot>) {
        let index = self.unused.borrow_mut().pop().unwrap_or_else(|| {
            self.operations.borrow_mut().push(None);
            self.operations.borrow().len() - 1
        });
        self.operations.borrow_mut()[index] = Some(Operation { task: self.current.get(), ended: None, slot });
        let entry = entry.user_data(index as u64);
        // SAFETY: what the entry refers to is in `operations`, or is a descriptor that outlives the ring's use of it.
        while unsafe { self.ring.borrow_mut().submission().push(&entry) }.is_err() {
            self.submit(tally, 0).expect("the kernel takes what is prepared");
            // Where the kernel takes no more before ends are taken back.
            if self.ring.borrow_mut().submission().is_full() {
                self.reap(tally);
            }
        }
        self.under_way.set(self.under_way.get() + 1);
        let now = tally.borrow().now();
        self.prepared.borrow_mut().push(now);
        std::future::poll_fn(|_| {
            let mut operations = self.operations.borrow_mut();
            let is_ended = operations[index].as_ref().is_some_and(|operation| operation.ended.is_some());
            match is_ended.then(|| operations[index].take()).flatten() {
                Some(Operation { ended: Some((result, seen)), slot, .. }) => {
                    self.unused.borrow_mut().push(index);
                    Poll::Ready((result, seen, slot))
                }
                _ => Poll::Pending,
            }
        })
        .await
    }

    async fn yield_now(&self) {
        let mut yielded = false;
        std::future::poll_fn(|_| {
            if std::mem::replace(&mut yielded, true) {
                return Poll::Ready(());
            }
            self.ready.borrow_mut().push_back(self.current.get());
            Poll::Pending
        })
        .await;
    }
}

impl Drop for Runtime {
    /// The kernel may still read slots of what an error has left under way.
    fn drop(&mut self) {
        while self.under_way.get() > 0 {
            let mut ring = self.ring.borrow_mut();
            if ring.submit_and_wait(1).is_err_and(|error| error.kind() != ErrorKind::Interrupted) {
                std::process::abort();
            }
            let count = ring.completion().count();
            self.under_way.set(self.under_way.get() - count);
        }
    }
}
