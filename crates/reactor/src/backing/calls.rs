//! The calls of a backing tree: which are under way, which wait, what each refers to, and what its end means.
//!
//! Invariants
//! 1. What a call refers to (its memory, its handles) is held by its entry until the call has ended, also when nobody
//!    waits for it any more.
//! 2. At most `CALLS_MAX` calls are begun and have not ended, and no more about one thing than its lanes allow
//!    (`lanes.rs`). The others wait, first come first served.
//! 3. No borrow of the state is held while a waker is woken, something held is dropped, or a call is begun.
//! 4. A handle that was opened for somebody who has gone is closed.

use super::handles::{HandleTable, OpenedAs, ToClose};
use super::lanes::{CallLanes, Lanes};
use super::name::{TreePath, joined};
use super::operation::{Backing, BackingOperation, BackingOutcome, CallId, CallMemory, HandleId, MemoryPlace, OpenAs};
use super::{BackingError, BackingStatistics, CALLS_MAX, CallStatus, expect_outcome};
use crate::Nanos;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};

/// Ended calls that one poll of the task takes before others of the loop have their turn.
const ENDED_BATCH: usize = 64;

/// What users of an open handle share, and calls that are under way on it.
pub(super) struct HandleGuard {
    core: Weak<CallCore>,
    pub id: HandleId,
    pub path: TreePath,
    /// The number of the inode that was opened.
    pub inode: u64,
}

impl Drop for HandleGuard {
    fn drop(&mut self) {
        if let Some(core) = self.core.upgrade() {
            core.release(self.id);
        }
    }
}

/// A read or write, which is asked for piece by piece until it is whole.
struct MoveProgress {
    file: HandleId,
    offset: u64,
    memory: MemoryPlace,
    done: usize,
    is_write: bool,
}

/// What a call refers to.
#[derive(Default)]
pub(super) struct CallHeld {
    pub handles: [Option<Rc<HandleGuard>>; 2],
    /// Files that are synced at once.
    pub files: Vec<Rc<HandleGuard>>,
    /// What bytes go to or come from: one, or one for each of several files.
    pub memories: Vec<CallMemory>,
}

/// A call as it is asked for.
pub(super) struct CallRequest {
    pub operation: BackingOperation,
    /// What it is about, for people.
    pub path: TreePath,
    pub held: CallHeld,
    /// Paths that may stand for something else once it has begun.
    pub changes: [Option<TreePath>; 2],
}

struct CallEntry {
    word: &'static str,
    path: TreePath,
    is_of_several: bool,
    since: Nanos,
    /// Nothing once it was begun.
    operation: Option<BackingOperation>,
    lanes: CallLanes,
    held: CallHeld,
    progress: Option<MoveProgress>,
    /// It reads into its memory.
    reads: bool,
    /// The handle that it opens.
    opens: Option<HandleId>,
    /// The handle that it closes.
    closes: Option<HandleId>,
    changes: [Option<TreePath>; 2],
    result: Option<Result<BackingOutcome, i32>>,
    waker: Option<Waker>,
    is_abandoned: bool,
}

/// How a call came out, with what it held.
pub(super) struct CallEnded {
    pub result: Result<BackingOutcome, BackingError>,
    pub held: CallHeld,
}

struct CallState {
    entries: Vec<Option<CallEntry>>,
    free: Vec<u32>,
    /// Calls that wait for nothing but a place.
    waiting: VecDeque<u32>,
    lanes: Lanes,
    under_way: usize,
    under_way_most: usize,
    begun: u64,
    handles: HandleTable<HandleGuard>,
    /// Of the task that takes what has ended.
    pump: Option<Waker>,
    is_closing: bool,
}

/// All of one tree that is not its caller's.
pub(super) struct CallCore {
    backing: Box<dyn Backing>,
    state: RefCell<CallState>,
    /// Whether calls that wait are being begun.
    begins: Cell<bool>,
    /// The root, once somebody has opened it.
    pub root: RefCell<Weak<HandleGuard>>,
}

impl CallCore {
    pub fn new(backing: Box<dyn Backing>) -> Rc<CallCore> {
        let state = CallState {
            entries: Vec::new(),
            free: Vec::new(),
            waiting: VecDeque::new(),
            lanes: Lanes::default(),
            under_way: 0,
            under_way_most: 0,
            begun: 0,
            handles: HandleTable::new(),
            pump: None,
            is_closing: false,
        };
        Rc::new(CallCore { backing, state: RefCell::new(state), begins: Cell::new(false), root: RefCell::default() })
    }

    pub fn name(&self) -> &'static str {
        self.backing.name()
    }

    /// Takes a call: begins it now, or when enough before it have ended.
    fn add(&self, request: CallRequest) -> u32 {
        let CallRequest { operation, path, held, changes } = request;
        let (mut opens, mut closes, mut progress) = (None, None, None);
        match operation {
            BackingOperation::OpenRoot { handle }
            | BackingOperation::Open { handle, .. }
            | BackingOperation::OpenListing { handle, .. } => opens = Some(handle),
            BackingOperation::Close { handle } => closes = Some(handle),
            BackingOperation::Read { file, offset, memory } => {
                progress = Some(MoveProgress { file, offset, memory, done: 0, is_write: false });
            }
            BackingOperation::Write { file, offset, memory } => {
                progress = Some(MoveProgress { file, offset, memory, done: 0, is_write: true });
            }
            _ => {}
        }
        let reads = matches!(operation, BackingOperation::Read { .. } | BackingOperation::ReadFiles { .. });
        for memory in held.memories.iter().filter(|_| reads) {
            if let CallMemory::Span(span) = memory {
                span.region.announce(span.offset, span.size);
            }
        }
        let resolves = matches!(operation, BackingOperation::Look { .. }) || opens.is_some();
        let is_of_several = match &operation {
            BackingOperation::LookAll { .. } => true,
            BackingOperation::ReadFiles { files, .. } => files.len() > 1,
            _ => false,
        };
        let lanes = match &operation {
            // It is about names in the directory, and not about that.
            BackingOperation::LookAll { names, .. } if !names.is_empty() => {
                CallLanes::new(&joined(&path, names[0].bytes()), None)
            }
            _ => CallLanes::new(&path, resolves.then(|| operation.word())),
        };
        let entry = CallEntry {
            word: operation.word(),
            is_of_several,
            lanes,
            path,
            since: self.backing.now(),
            operation: Some(operation),
            held,
            progress,
            reads,
            opens,
            // Nobody waits for a close.
            is_abandoned: closes.is_some(),
            closes,
            changes,
            result: None,
            waker: None,
        };
        let index = {
            let mut state = self.state.borrow_mut();
            let index = state.free.pop().unwrap_or_else(|| {
                state.entries.push(None);
                (state.entries.len() - 1) as u32
            });
            assert!(state.entries[index as usize].is_none(), "a free entry is empty");
            state.entries[index as usize] = Some(entry);
            state.waiting.push_back(index);
            index
        };
        self.begin_waiting();
        index
    }

    fn begin_waiting(&self) {
        // Beginning may end something at once, and come here again: the loop below goes on.
        if self.begins.replace(true) {
            return;
        }
        while let Some((call, operation)) = self.next_to_begin() {
            self.backing.begin(call, operation);
        }
        self.begins.set(false);
    }

    fn next_to_begin(&self) -> Option<(CallId, BackingOperation)> {
        let mut state = self.state.borrow_mut();
        if state.under_way == CALLS_MAX || state.is_closing {
            return None;
        }
        let index = loop {
            let index = state.waiting.pop_front()?;
            let lanes = state.entries[index as usize].as_ref().map(|entry| entry.lanes);
            if state.lanes.enter(index, lanes.expect("what waits has an entry")) {
                break index;
            }
        };
        state.under_way += 1;
        state.begun += 1;
        state.under_way_most = state.under_way_most.max(state.under_way);
        let entry = state.entries[index as usize].as_mut();
        let operation = entry.and_then(|entry| entry.operation.take());
        Some((CallId(index), operation.expect("a call is begun once")))
    }

    /// A call that was begun has ended, or a piece of it.
    fn complete(self: &Rc<Self>, call: CallId, result: Result<BackingOutcome, i32>) {
        let mut state = self.state.borrow_mut();
        let is_closing = state.is_closing;
        let index = call.0 as usize;
        let entry = state.entries[index].as_mut().expect("an entry stays until its call has ended");
        assert!(entry.operation.is_none() && entry.result.is_none(), "a call ends once, after it was begun");
        let result = match &mut entry.progress {
            None => result,
            Some(progress) => match progress.advance(result) {
                // Nobody wants the rest of what was abandoned.
                MoveNext::Again(operation) if !entry.is_abandoned && !is_closing => {
                    drop(state);
                    return self.backing.begin(call, operation);
                }
                MoveNext::Again(_) => Ok(BackingOutcome::Moved(progress.done)),
                MoveNext::Ended(result) => result,
            },
        };
        let (arrived, lanes) = (entry.arrived(), entry.lanes);
        let changes = std::mem::take(&mut entry.changes);
        let (opens, closes, is_abandoned, path) = (entry.opens, entry.closes, entry.is_abandoned, entry.path.clone());
        let stale = match result {
            Err(libc::ESTALE) => entry.held.handles.each_ref().map(|guard| guard.as_ref().map(|guard| guard.id)),
            _ => [None, None],
        };
        let waker = entry.waker.take();
        let mut ended = None;
        let is_opened = result.is_ok();
        if is_abandoned {
            ended = state.entries[index].take();
            state.free.push(call.0);
        } else {
            entry.result = Some(result);
        }
        state.under_way -= 1;
        let CallState { waiting, lanes: all, .. } = &mut *state;
        all.leave(lanes).for_each(|freed| waiting.push_front(freed));
        let mut to_close: Vec<ToClose> =
            stale.into_iter().flatten().flat_map(|handle| state.handles.note_stale(handle)).collect();
        to_close.extend(changes.iter().flatten().flat_map(|path| state.handles.note_changed(path)));
        let mut freed = closes.and_then(|handle| state.handles.set_free(handle));
        match opens {
            Some(handle) if !is_opened => freed = state.handles.set_free(handle),
            Some(handle) if is_abandoned => to_close.push((handle, path)),
            _ => {}
        }
        drop(state);
        for (span, size) in arrived {
            span.region.note_received(span.offset, size);
        }
        // Before whoever waits, so that what he opens next finds no handle of before a rename.
        to_close.into_iter().for_each(|handle| self.close(handle));
        freed.into_iter().chain(waker).for_each(Waker::wake);
        drop(ended);
        self.begin_waiting();
    }

    fn poll(&self, index: u32, context: &mut Context<'_>) -> Poll<CallEnded> {
        let mut state = self.state.borrow_mut();
        let entry = state.entries[index as usize].as_mut().expect("an entry stays until its future takes it");
        let Some(result) = entry.result.take() else {
            let old = entry.waker.replace(context.waker().clone());
            drop(state);
            drop(old);
            return Poll::Pending;
        };
        let entry = state.entries[index as usize].take();
        state.free.push(index);
        drop(state);
        let entry = entry.expect("the entry was just seen");
        let failed = |errno| BackingError { word: entry.word, path: entry.path.clone(), errno };
        Poll::Ready(CallEnded { result: result.map_err(failed), held: entry.held })
    }

    /// Nobody waits for a call any more. It keeps what it holds until it has ended (invariant 1).
    fn abandon(&self, index: u32) {
        let mut state = self.state.borrow_mut();
        let entry = state.entries[index as usize].as_mut().expect("an entry stays until its future leaves it");
        let waker = entry.waker.take();
        let (opens, path, lanes) = (entry.opens, entry.path.clone(), entry.lanes);
        let (mut given_up, mut freed, mut opened) = (None, None, None);
        if entry.operation.is_none() && entry.result.is_none() {
            entry.is_abandoned = true;
        } else {
            let was_opened = matches!(entry.result, Some(Ok(_)));
            let was_begun = entry.operation.is_none();
            given_up = state.entries[index as usize].take();
            state.free.push(index);
            if !was_begun {
                state.waiting.retain(|waiting| *waiting != index);
                state.lanes.forget(index, lanes);
            }
            match opens {
                Some(handle) if was_opened => opened = Some((handle, path)),
                // What failed has given its number back.
                Some(handle) if !was_begun => freed = state.handles.set_free(handle),
                _ => {}
            }
        }
        drop(state);
        drop(waker);
        drop(given_up);
        if let Some(handle) = opened {
            self.close(handle);
        }
        freed.into_iter().for_each(Waker::wake);
    }

    fn close(&self, (handle, path): ToClose) {
        let (held, changes) = Default::default();
        self.add(CallRequest { operation: BackingOperation::Close { handle }, path, held, changes });
    }

    fn release(&self, handle: HandleId) {
        let to_close = self.state.borrow_mut().handles.release(handle);
        if let Some(to_close) = to_close {
            self.close(to_close);
        }
    }

    pub fn syncs_at_once(&self) -> bool {
        self.backing.syncs_at_once()
    }

    /// Nobody gets a handle any more that is open by now.
    pub fn set_all_stale(&self) {
        let to_close = self.state.borrow_mut().handles.note_changed(b"");
        to_close.into_iter().for_each(|handle| self.close(handle));
    }

    /// Nobody gets a handle any more who opens its path.
    pub fn set_stale(&self, guard: &HandleGuard) {
        let to_close = self.state.borrow_mut().handles.note_stale(guard.id);
        to_close.into_iter().for_each(|handle| self.close(handle));
    }

    /// A handle of that path which is open already.
    fn reuse(self: &Rc<Self>, path: &[u8], open_as: OpenAs) -> Option<Rc<HandleGuard>> {
        let revive = |id, path, inode| Rc::new(HandleGuard { core: Rc::downgrade(self), id, path, inode });
        self.state.borrow_mut().handles.reuse(path, open_as, self.backing.now(), revive)
    }

    /// Opens what an operation says, which is given a number for its handle.
    pub async fn open(
        self: &Rc<Self>,
        path: TreePath,
        open_as: OpenAs,
        parent: Option<Rc<HandleGuard>>,
        operation: impl FnOnce(HandleId) -> BackingOperation,
    ) -> Result<Rc<HandleGuard>, BackingError> {
        let is_reusable = matches!(open_as, OpenAs::Directory | OpenAs::Read);
        if is_reusable && let Some(guard) = self.reuse(&path, open_as) {
            return Ok(guard);
        }
        let permit = HandleWait { core: self.clone(), ticket: None }.await;
        let facts = OpenedAs { path: path.clone(), open_as, opened: self.backing.now(), inode: 0, is_reusable };
        self.state.borrow_mut().handles.set_opening(permit, facts);
        let held = CallHeld { handles: [parent, None], ..CallHeld::default() };
        let operation = operation(permit);
        let changes = if matches!(open_as, OpenAs::Create(_)) { [Some(path.clone()), None] } else { [None, None] };
        let call = self.call(CallRequest { operation, path: path.clone(), held, changes });
        let inode = expect_outcome!(call.await.result?, Opened);
        let guard = Rc::new(HandleGuard { core: Rc::downgrade(self), id: permit, path, inode });
        self.state.borrow_mut().handles.set_used(permit, inode, Rc::downgrade(&guard));
        Ok(guard)
    }

    /// Makes a call. Dropping the future leaves the call to itself.
    pub fn call(self: &Rc<Self>, request: CallRequest) -> CallFuture {
        CallFuture { index: Some(self.add(request)), core: self.clone() }
    }

    /// Nobody uses the tree any more: nothing that waits is begun, and the task ends with the last call.
    pub fn close_down(&self) {
        let (dropped, pump) = {
            let mut state = self.state.borrow_mut();
            state.is_closing = true;
            let mut waiting = std::mem::take(&mut state.waiting);
            waiting.extend(state.lanes.take_held());
            let dropped: Vec<_> = waiting.into_iter().map(|index| state.entries[index as usize].take()).collect();
            (dropped, state.pump.take())
        };
        drop(dropped);
        pump.into_iter().for_each(Waker::wake);
    }

    /// All calls that have not ended, longest first.
    pub fn calls(&self) -> Vec<CallStatus> {
        let state = self.state.borrow();
        let live = state.entries.iter().flatten().filter(|entry| entry.result.is_none());
        let mut calls: Vec<CallStatus> = live
            .map(|entry| CallStatus {
                operation: entry.word,
                path: entry.path.to_vec(),
                is_of_several: entry.is_of_several,
                since: entry.since,
                is_begun: entry.operation.is_none(),
                is_abandoned: entry.is_abandoned,
            })
            .collect();
        calls.sort_by_key(|call| call.since);
        calls
    }

    pub fn statistics(&self) -> BackingStatistics {
        let state = self.state.borrow();
        let (handles, handles_idle, handles_most, openers_waiting) = state.handles.counts();
        BackingStatistics {
            calls: state.begun,
            under_way: state.under_way,
            under_way_most: state.under_way_most,
            waiting: state.waiting.len() + state.lanes.held_count(),
            handles,
            handles_idle,
            handles_most,
            openers_waiting,
        }
    }
}

impl Drop for CallCore {
    fn drop(&mut self) {
        let may_touch = self.backing.end();
        for entry in self.state.get_mut().entries.iter_mut().flatten() {
            // A call that hangs reads or writes its memory when it goes on, long after we have gone.
            if may_touch && entry.operation.is_none() && entry.result.is_none() {
                std::mem::forget(std::mem::take(&mut entry.held.memories));
            }
        }
    }
}

impl CallEntry {
    /// What a read has put into a region.
    fn arrived(&self) -> Vec<(crate::Span, u64)> {
        let arrived = self.held.memories.iter().filter(|_| self.reads).filter_map(|memory| match memory {
            CallMemory::Span(span) => match &self.progress {
                Some(progress) => Some((span.clone(), progress.done as u64)),
                // Wherever it has ended.
                None => Some((span.clone(), span.size)),
            },
            CallMemory::Bytes(_) => None,
        });
        arrived.filter(|(_, size)| *size > 0).collect()
    }
}

/// What a piece that has ended means.
enum MoveNext {
    /// There is a rest.
    Again(BackingOperation),
    Ended(Result<BackingOutcome, i32>),
}

impl MoveProgress {
    fn advance(&mut self, result: Result<BackingOutcome, i32>) -> MoveNext {
        let count = match result {
            Ok(BackingOutcome::Moved(count)) => count,
            other => return MoveNext::Ended(other),
        };
        self.done += count;
        assert!(self.done <= self.memory.size, "no more is moved than was asked for");
        if self.done == self.memory.size || (count == 0 && !self.is_write) {
            return MoveNext::Ended(Ok(BackingOutcome::Moved(self.done)));
        }
        if count == 0 {
            // A write that moves nothing would not end.
            return MoveNext::Ended(Err(libc::EIO));
        }
        let (file, offset, memory) = (self.file, self.offset + self.done as u64, self.memory.rest(self.done));
        MoveNext::Again(match self.is_write {
            true => BackingOperation::Write { file, offset, memory },
            false => BackingOperation::Read { file, offset, memory },
        })
    }
}

/// A call that was asked for.
pub(super) struct CallFuture {
    core: Rc<CallCore>,
    /// Nothing after it was taken.
    index: Option<u32>,
}

impl Future for CallFuture {
    type Output = CallEnded;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<CallEnded> {
        let index = self.index.expect("a future is not polled after it completed");
        let ended = self.core.poll(index, context);
        if ended.is_ready() {
            self.index = None;
        }
        ended
    }
}

impl Drop for CallFuture {
    fn drop(&mut self) {
        if let Some(index) = self.index {
            self.core.abandon(index);
        }
    }
}

/// Waits for a number of a handle.
struct HandleWait {
    core: Rc<CallCore>,
    ticket: Option<u64>,
}

impl Future for HandleWait {
    type Output = HandleId;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<HandleId> {
        let core = self.core.clone();
        let mut state = core.state.borrow_mut();
        let Some(ticket) = self.ticket else {
            if let Some(handle) = state.handles.take() {
                return Poll::Ready(handle);
            }
            let (ticket, oldest) = state.handles.join_queue(context.waker().clone());
            drop(state);
            self.ticket = Some(ticket);
            if let Some(handle) = oldest {
                core.close(handle);
            }
            return Poll::Pending;
        };
        match state.handles.poll_queue(ticket, context.waker()) {
            Ok(handle) => {
                self.ticket = None;
                Poll::Ready(handle)
            }
            Err(old) => {
                drop(state);
                drop(old);
                Poll::Pending
            }
        }
    }
}

impl Drop for HandleWait {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            let woken = self.core.state.borrow_mut().handles.leave_queue(ticket);
            woken.into_iter().for_each(Waker::wake);
        }
    }
}

/// The task that takes what has ended. It ends once nobody uses the tree and nothing is under way.
pub(super) struct CallPump(pub Rc<CallCore>);

impl Future for CallPump {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let core = &self.0;
        for _ in 0..ENDED_BATCH {
            match core.backing.poll_ended(context) {
                Poll::Ready((call, result)) => core.complete(call, result),
                Poll::Pending => {
                    let mut state = core.state.borrow_mut();
                    if state.is_closing && state.under_way == 0 {
                        return Poll::Ready(());
                    }
                    let old = state.pump.replace(context.waker().clone());
                    drop(state);
                    drop(old);
                    return Poll::Pending;
                }
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }
}
