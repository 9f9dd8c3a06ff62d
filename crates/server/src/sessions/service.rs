//! From a request that came in to the handler that does it, and from its end to the reply: exactly once, in order of
//! arrival, with a bounded number under way.
//!
//! Invariants
//! 1. A request of a client that waits for other servers is one of at most `ACTIVE_MAX`; others queue. Requests of
//!    servers run at once and never queue, so that what the active ones wait for always comes. Writes are bounded by
//!    the number of connections, each of which brings one body at a time, and by their windows.
//! 2. Each request that `Sessions::begin` called new ends in `conclude` or `Sessions::abandon`.

use crate::coordination::intents::Origin;
use crate::core::failure::Failure;
use crate::core::waiting::{Notice, until};
use crate::core::{Caller, Core};
use crate::handlers::WriteEnd;
use crate::handlers::{self, Progress};
use crate::journal::durability::is_promise;
use crate::journal::records::Record;
use crate::sessions::Admission;
use crate::sessions::low_priority;
use reactor::log::{self, Level};
use reactor::{BodyPiece, Class, Incoming, Nanos, Peer, ReplyBody, Service};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use wire::handshake::Role;
use wire::messages::{Empty, ListingReply, StatisticsRequest};
use wire::operation::{LEVEL_CLIENT, LEVEL_COORDINATION};
use wire::{Decode, Encode, FileId, Operation, Status};

/// Requests of clients that may wait for other servers at a time.
pub const ACTIVE_MAX: usize = 256;

/// Shortest time between two looks for idle sessions.
const EXPIRY_PAUSE_NS: Nanos = 100_000_000;

/// The service of one server.
pub struct Front {
    core: Rc<Core>,
    active: Cell<usize>,
    queue: RefCell<VecDeque<WaitingRequest>>,
    /// Reply parameters are put together here.
    scratch: RefCell<Vec<u8>>,
}

struct WaitingRequest {
    incoming: Incoming,
    caller: Caller,
    step: Progress,
}

impl Front {
    pub fn core(&self) -> &Rc<Core> {
        &self.core
    }

    pub fn new(core: &Rc<Core>) -> Front {
        Front {
            core: core.clone(),
            active: Cell::new(0),
            queue: RefCell::default(),
            scratch: RefCell::new(Vec::with_capacity(1024)),
        }
    }
}

impl Service for Front {
    fn connected(&self, peer: &Peer, welcomes: u64) -> Result<bool, Status> {
        let core = &self.core;
        if core.stopping.get() {
            return Err(Status::Draining);
        }
        if peer.role == Role::Server {
            let known = peer.from_server < core.cluster.server_count() && peer.from_server != core.index;
            if !known || peer.level == LEVEL_CLIENT {
                return Err(Status::NotPermitted);
            }
            return Ok(self.contact_connected(peer, welcomes));
        }
        if peer.level != LEVEL_CLIENT {
            return Err(Status::NotPermitted);
        }
        let born = core.tables.borrow().sessions.born(peer.session);
        if born.is_none_or(|born| welcomes == 0 && born > 0) {
            // A session that comes back and is not known here goes on as a new one, once it was told so: a welcome may
            // get lost.
            core.add_session(peer.session, welcomes).map_err(|failure| failure.status)?;
        }
        core.tables.borrow_mut().sessions.connected(peer.session);
        if born.is_some() && welcomes == 0 {
            // It never had a connection before, so it has nothing open.
            core.reclaimed(peer.session);
        }
        Ok(welcomes == 0 || born.is_some_and(|born| welcomes > born))
    }

    fn shared(&self, peer: &Peer) {
        if let Some(holding) = &peer.hazards {
            self.core.holder_connected(peer.connection, holding.0.clone());
        }
        if let Some(queue) = peer.queue {
            self.core.queue_opened(queue, peer.user.uid, peer.connection);
        }
    }

    fn disconnected(&self, peer: &Peer) {
        if is_of_contact(peer) {
            self.core.delegations.note_disconnected(peer.from_server, peer.connection);
        }
        if peer.role.is_client() {
            self.core.holder_disconnected(peer.connection, peer.session);
            let now = self.core.reactor.now();
            let idle = self.core.tables.borrow_mut().sessions.disconnected(peer.session, now);
            if idle {
                start_expiry(&self.core);
            }
            handlers::forget_listeners(&self.core, peer.connection);
            self.core.store.end_holder(peer.connection);
            handlers::watch_buffers(&self.core);
        }
    }

    fn request(self: Rc<Self>, incoming: Incoming) {
        let core = &self.core;
        let operation = incoming.operation;
        core.statistics.arrived(operation);
        if !core.statistics.sampling.get() {
            crate::server::statistics::report::start_sampling(core);
        }
        if core.stopping.get() && operation.level() == LEVEL_CLIENT && operation != Operation::Shutdown {
            // It ends with its connection, and the client asks the next server of this place. What other servers ask is
            // done, for what is under way here or there may wait for it.
            core.statistics.not_started(operation);
            core.left_to_the_next.borrow_mut().push(incoming);
            return;
        }
        let may_go_on_by_submissions =
            matches!(operation, Operation::Unlink | Operation::Open | Operation::Write | Operation::CommitRegistered);
        if may_go_on_by_submissions && incoming.peer.queue.is_some() {
            core.watch_submissions();
        }
        let sequence = incoming.header.session_sequence;
        if sequence == 0 {
            return self.begin(incoming, None);
        }
        let origin = Origin { session: incoming.peer.session, sequence };
        let mut tables = core.tables.borrow_mut();
        match tables.sessions.begin(origin, incoming.header.session_acknowledged) {
            Admission::New => {
                drop(tables);
                self.begin(incoming, Some(origin));
            }
            Admission::Repeated(outcome) => {
                let (status, bytes) = (outcome.status, outcome.bytes.clone());
                drop(tables);
                if status == Status::Ok {
                    handlers::reopened(core, incoming.peer.session, operation, &bytes);
                }
                core.statistics.not_started(operation);
                incoming.answer(status, &bytes, ReplyBody::default());
            }
            Admission::Active(waiting) => {
                core.statistics.not_started(operation);
                waiting.push(incoming);
            }
            Admission::Unknown => {
                drop(tables);
                core.statistics.not_started(operation);
                incoming.fail(Status::OutcomeUnknown, FileId::default(), b"the request was answered before");
            }
        }
    }
}

impl Front {
    /// A server that has files open here is known as a session meanwhile; whether this one is. Of others nothing is to
    /// be known.
    fn contact_connected(&self, peer: &Peer, welcomes: u64) -> bool {
        let core = &self.core;
        if !is_of_contact(peer) {
            return true;
        }
        core.delegations.note_connected(peer.from_server, peer.connection);
        let known = core.tables.borrow().sessions.is_known(peer.session);
        if known && welcomes == 0 {
            core.reclaimed(peer.session);
        }
        known || welcomes == 0
    }

    /// Starts a request, of a low-priority client when it is its turn.
    fn begin(self: Rc<Self>, incoming: Incoming, origin: Option<Origin>) {
        match incoming.peer.role {
            Role::LowPriority => return low_priority::start(self, incoming, origin),
            Role::Client => self.core.low_priority.note_other(incoming.taken),
            Role::Server | Role::ClientTunnel | Role::ServerTunnel => {}
        }
        // It has just been taken.
        let started = incoming.taken;
        self.start(incoming, origin, started);
    }

    /// Starts a request now, at `started`.
    pub fn start(self: Rc<Self>, incoming: Incoming, origin: Option<Origin>, started: Nanos) {
        let core = &self.core;
        let caller = Caller { peer: incoming.peer.clone(), origin, deadline: incoming.deadline() };
        core.statistics.started(incoming.operation, started.saturating_sub(incoming.arrived));
        match incoming.operation {
            Operation::Write | Operation::CommitRegistered | Operation::Append | Operation::WriteChunks => {
                let front = self.clone();
                core.reactor.spawn(Class::Data, front.write(incoming, caller, started));
            }
            Operation::Read | Operation::FetchChunks => {
                let result = handlers::read(core, &incoming.params);
                self.answer_with_body(incoming, result, started);
            }
            Operation::Locate => {
                let result = handlers::locate_bytes(core, &incoming.params);
                self.answer_with_body(incoming, result, started);
            }
            Operation::ReadDirectory | Operation::Find if !core.tables.borrow().locks.is_empty() => {
                let front = self.clone();
                core.reactor.spawn(Class::Metadata, front.list_after_changes(incoming, caller.deadline, started));
            }
            Operation::ReadDirectory | Operation::Find => match handlers::removal_under_way(core, &incoming.params) {
                None => self.list(incoming, started),
                Some(resolved) => {
                    let front = self.clone();
                    core.reactor.spawn(Class::Metadata, front.list_later(incoming, caller.deadline, started, resolved));
                }
            },
            Operation::AwaitLock => handlers::await_lock(core, ParkedRequest { incoming, caller, started }),
            Operation::GetAttribute => {
                let result = handlers::get_extended(core, &caller, &incoming.params);
                self.answer_with_body(incoming, result, started);
            }
            Operation::ListAttributes => {
                let result = handlers::list_extended(core, &caller, &incoming.params);
                self.answer_with_body(incoming, result, started);
            }
            Operation::SetAttribute => {
                let front = self.clone();
                core.reactor.spawn(Class::Metadata, front.set_extended(incoming, caller, started));
            }
            Operation::Check => {
                let result = handlers::check(core, &caller, &incoming.params);
                self.answer_with_body(incoming, result, started);
            }
            Operation::Statistics => {
                let result = statistics(core, &incoming.params);
                self.answer_with_body(incoming, result, started);
            }
            _ => self.run(incoming, caller, started),
        }
    }

    /// Runs a handler at once; what has to wait goes on in a task of its own.
    fn run(self: Rc<Self>, incoming: Incoming, caller: Caller, started: Nanos) {
        let mut reply = self.scratch.take();
        reply.clear();
        let result = self.attempt(&caller, &incoming, &mut reply);
        match result {
            Ok(Progress::Done) if self.is_promise_open(&caller, &incoming) => {
                // What another server is promised survives first.
                let (core, bytes) = (self.core.clone(), reply.clone());
                let step = Progress::Later(Box::pin(async move { core.durable().await.map(|()| bytes) }));
                self.clone().spawn(WaitingRequest { incoming, caller, step }, started);
            }
            Ok(Progress::Done) => self.finish(incoming, &caller, Ok(&reply), started),
            Err(failure) => self.finish(incoming, &caller, Err(&failure), started),
            Ok(step) if caller.peer.level == LEVEL_CLIENT && self.active.get() >= ACTIVE_MAX => {
                self.queue.borrow_mut().push_back(WaitingRequest { incoming, caller, step });
            }
            Ok(step) => self.clone().spawn(WaitingRequest { incoming, caller, step }, started),
        }
        self.scratch.replace(reply);
    }

    /// Whether a reply that is ready has to wait for a sync.
    fn is_promise_open(&self, caller: &Caller, incoming: &Incoming) -> bool {
        caller.peer.role == Role::Server
            && !self.core.store.is_durable()
            && is_promise(incoming.operation, &incoming.params)
    }

    fn attempt(&self, caller: &Caller, incoming: &Incoming, reply: &mut Vec<u8>) -> Result<Progress, Failure> {
        let core = &self.core;
        if incoming.operation.is_mutating() && core.is_journal_low() {
            return Ok(Progress::Blocked(core.checkpoints.finished()));
        }
        handlers::handle(core, caller, incoming.operation, &incoming.params, reply)
    }

    fn spawn(self: Rc<Self>, waiting: WaitingRequest, started: Nanos) {
        self.active.set(self.active.get() + 1);
        let reactor = self.core.reactor.clone();
        reactor.spawn(Class::Metadata, self.wait(waiting, started));
    }

    async fn wait(self: Rc<Self>, waiting: WaitingRequest, started: Nanos) {
        let WaitingRequest { incoming, caller, mut step } = waiting;
        let result = loop {
            let ready = match step {
                Progress::Done => unreachable!("what is done does not wait"),
                Progress::Later(future) => break future.await,
                Progress::After(future) => future.await,
                Progress::Blocked(notice) => {
                    let told = until(&self.core.reactor, caller.deadline, notice.wait()).await;
                    let text = "what the request waits for (a rename or link of its name, the removal of its directory, or room in the journal) takes long";
                    told.ok_or_else(|| Failure::with_text(Status::TimedOut, text))
                }
            };
            if let Err(failure) = ready {
                break Err(failure);
            }
            let mut reply = Vec::new();
            match self.attempt(&caller, &incoming, &mut reply) {
                Ok(Progress::Done) => break Ok(reply),
                Ok(next) => step = next,
                Err(failure) => break Err(failure),
            }
        };
        let result = match result {
            Ok(reply) if self.is_promise_open(&caller, &incoming) => self.core.durable().await.map(|()| reply),
            result => result,
        };
        self.finish(incoming, &caller, result.as_ref().map(Vec::as_slice), started);
        self.active.set(self.active.get() - 1);
        self.admit();
    }

    /// Starts those that queue for as long as there is room.
    fn admit(self: &Rc<Self>) {
        while self.active.get() < ACTIVE_MAX {
            let Some(waiting) = self.queue.borrow_mut().pop_front() else { return };
            let now = self.core.reactor.now();
            if waiting.incoming.expired(now) {
                let failure =
                    Failure::with_text(Status::TimedOut, "the server was too busy to start the request in time");
                self.finish(waiting.incoming, &waiting.caller, Err(&failure), now);
                continue;
            }
            self.clone().spawn(waiting, now);
        }
    }

    fn list(&self, incoming: Incoming, started: Nanos) {
        if incoming.operation == Operation::Find {
            let result = handlers::find(&self.core, &incoming.params);
            return self.answer_with_body(incoming, result, started);
        }
        let result = handlers::read_directory(&self.core, &incoming.params);
        self.answer_with_body(incoming, result, started);
    }

    /// Lists a directory once the changes of names in it are decided that are under way.
    async fn list_after_changes(self: Rc<Self>, incoming: Incoming, deadline: Nanos, started: Nanos) {
        if handlers::wait_for_names(&self.core, &incoming.params, deadline).await.is_none() {
            let failure = Failure::with_text(Status::TimedOut, "a change of names in the directory takes long");
            return self.answer_with_body::<ListingReply>(incoming, Err(failure), started);
        }
        match handlers::removal_under_way(&self.core, &incoming.params) {
            None => self.list(incoming, started),
            Some(resolved) => self.list_later(incoming, deadline, started, resolved).await,
        }
    }

    /// Lists a directory once it is decided whether it is removed.
    async fn list_later(self: Rc<Self>, incoming: Incoming, deadline: Nanos, started: Nanos, mut resolved: Notice<()>) {
        while until(&self.core.reactor, deadline, resolved.wait()).await.is_some() {
            match handlers::removal_under_way(&self.core, &incoming.params) {
                None => return self.list(incoming, started),
                Some(next) => resolved = next,
            }
        }
        let failure = Failure::with_text(Status::TimedOut, "the removal of the directory takes long");
        self.answer_with_body::<ListingReply>(incoming, Err(failure), started);
    }

    async fn write(self: Rc<Self>, mut incoming: Incoming, caller: Caller, started: Nanos) {
        let result = match incoming.operation {
            Operation::Append => handlers::append(&self.core, &caller, &mut incoming).await,
            Operation::WriteChunks => handlers::write_chunks(&self.core, &caller, &mut incoming).await,
            Operation::CommitRegistered => handlers::commit_registered(&self.core, &caller, &incoming.params).await,
            _ => handlers::write(&self.core, &caller, &mut incoming).await,
        };
        let result = match result {
            Ok(reply) if self.is_promise_open(&caller, &incoming) => {
                self.core.durable().await.map(|()| reply).map_err(WriteEnd::Failed)
            }
            result => result,
        };
        match result {
            Ok(reply) => self.finish(incoming, &caller, Ok(&reply), started),
            Err(WriteEnd::Failed(failure)) => self.finish(incoming, &caller, Err(&failure), started),
            Err(WriteEnd::Disconnected) => self.abandon(incoming, &caller, started),
        }
    }

    async fn set_extended(self: Rc<Self>, mut incoming: Incoming, caller: Caller, started: Nanos) {
        match handlers::set_extended(&self.core, &caller, &mut incoming).await {
            Ok(reply) => self.finish(incoming, &caller, Ok(&reply), started),
            Err(WriteEnd::Failed(failure)) => self.finish(incoming, &caller, Err(&failure), started),
            Err(WriteEnd::Disconnected) => self.abandon(incoming, &caller, started),
        }
    }

    /// A body that never came leaves nothing behind. If the request was sent again meanwhile, that copy is executed.
    fn abandon(self: Rc<Self>, incoming: Incoming, caller: &Caller, started: Nanos) {
        let took = self.core.reactor.now().saturating_sub(started);
        self.core.statistics.finished(incoming.operation, took, true, 0, 0);
        note_end(&self.core, &incoming);
        drop(incoming);
        let Some(origin) = caller.origin else { return };
        let mut copies = self.core.tables.borrow_mut().sessions.abandon(origin);
        copies.retain(Incoming::is_connected);
        // A session has one connection, so that only the last copy has a caller.
        if let Some(copy) = copies.pop() {
            self.core.statistics.arrived(copy.operation);
            let acknowledged = copy.header.session_acknowledged;
            let is_new = matches!(self.core.tables.borrow_mut().sessions.begin(origin, acknowledged), Admission::New);
            if is_new {
                let now = self.core.reactor.now();
                self.start(copy, Some(origin), now);
            } else {
                self.core.statistics.not_started(copy.operation);
                copy.fail(Status::OutcomeUnknown, FileId::default(), b"the request was answered before");
            }
        }
    }

    fn finish(&self, incoming: Incoming, caller: &Caller, result: Result<&[u8], &Failure>, started: Nanos) {
        end(&self.core, incoming, caller, result, started);
    }

    /// Answers a request that changed nothing and whose reply has a body.
    fn answer_with_body<R: Encode>(&self, incoming: Incoming, result: Result<(R, ReplyBody), Failure>, started: Nanos) {
        let core = &self.core;
        let took = core.reactor.now().saturating_sub(started);
        note_end(core, &incoming);
        match result {
            Ok((reply, body)) => {
                let bytes_out = body.pieces.iter().map(piece_size).sum();
                core.statistics.finished(incoming.operation, took, false, 0, bytes_out);
                let mut params = self.scratch.take();
                params.clear();
                reply.encode(&mut params);
                incoming.answer(Status::Ok, &params, body);
                self.scratch.replace(params);
            }
            Err(failure) => {
                core.statistics.finished(incoming.operation, took, true, 0, 0);
                incoming.fail(failure.status, failure.id, &failure.text);
            }
        }
    }
}

/// A request that is answered when something else has happened, without a task of its own.
pub struct ParkedRequest {
    pub incoming: Incoming,
    pub caller: Caller,
    pub started: Nanos,
}

/// Answers a request that was parked.
pub fn finish(core: &Core, parked: ParkedRequest, result: Result<&[u8], &Failure>) {
    end(core, parked.incoming, &parked.caller, result, parked.started);
}

/// A request has ended, which others of low-priority clients may wait for.
fn note_end(core: &Core, incoming: &Incoming) {
    if incoming.peer.role == Role::LowPriority {
        core.low_priority.note_end();
    }
}

fn end(core: &Core, incoming: Incoming, caller: &Caller, result: Result<&[u8], &Failure>, started: Nanos) {
    let took = core.reactor.now().saturating_sub(started);
    let bytes_in = if result.is_ok() { incoming.body_size() as u64 } else { 0 };
    note_end(core, &incoming);
    core.statistics.finished(incoming.operation, took, result.is_err(), bytes_in, 0);
    match result {
        Ok(reply) => {
            let copies = note_outcome(core, caller.origin, Status::Ok, reply);
            incoming.reply_encoded(reply);
            copies.into_iter().for_each(|copy| copy.reply_encoded(reply));
        }
        Err(failure) => {
            let params = failure.to_params();
            let copies = note_outcome(core, caller.origin, failure.status, &params);
            incoming.answer(failure.status, &params, ReplyBody::default());
            for copy in copies {
                copy.answer(failure.status, &params, ReplyBody::default());
            }
        }
    }
}

fn piece_size(piece: &BodyPiece) -> u64 {
    match piece {
        BodyPiece::Span(span) => span.size,
        BodyPiece::Zero(size) => *size as u64,
        BodyPiece::Bytes(bytes) => bytes.len() as u64,
    }
}

fn note_outcome(core: &Core, origin: Option<Origin>, status: Status, bytes: &[u8]) -> Vec<Incoming> {
    match origin {
        Some(origin) => core.tables.borrow_mut().sessions.finish(origin, status, bytes),
        None => Vec::new(),
    }
}

/// Ends a request of an earlier life of this server: whoever sent it again is answered.
pub fn conclude(core: &Core, origin: Origin, result: &Result<Vec<u8>, Failure>) {
    let (status, params) = match result {
        Ok(reply) => (Status::Ok, reply.clone()),
        Err(failure) => (failure.status, failure.to_params()),
    };
    for copy in note_outcome(core, Some(origin), status, &params) {
        copy.answer(status, &params, ReplyBody::default());
    }
}

fn statistics(core: &Core, params: &[u8]) -> Result<(Empty, ReplyBody), Failure> {
    let request = StatisticsRequest::from_bytes(params)?;
    let text = match request.format {
        0 => crate::server::statistics::report::json(core, 1),
        1 => crate::server::statistics::report::prometheus(core),
        2 => crate::server::statistics::report::json(core, usize::MAX),
        _ => return Err(Failure::with_text(Status::Invalid, "format of the statistics is unknown")),
    };
    Ok((Empty {}, ReplyBody { pieces: vec![BodyPiece::Bytes(text.into_bytes())], guard: None }))
}

/// Whether a connection is the one over which a contact has files open.
fn is_of_contact(peer: &Peer) -> bool {
    peer.role == Role::Server && peer.level == LEVEL_COORDINATION
}

impl Core {
    /// Journals a session before its first request, so that a resend after a restart finds it known. `welcomes` is what
    /// it had received by then.
    pub fn add_session(self: &Rc<Self>, session: u64, welcomes: u64) -> Result<(), Failure> {
        let room = self.tables.borrow().sessions.room()?;
        let gone = room.map_or(Record::Nothing, Record::SessionDelete);
        self.change([gone, Record::SessionPut { session, born: welcomes }])?;
        self.reap_orphans();
        self.release_remote_opens();
        Ok(())
    }
}

/// Forgets sessions that stay without connection, for as long as there are any.
pub fn start_expiry(core: &Rc<Core>) {
    if core.expiring.replace(true) {
        return;
    }
    let core = core.clone();
    core.reactor.clone().spawn(Class::Background, async move {
        let grace = core.options.session_grace;
        loop {
            let now = core.reactor.now();
            let (gone, next) = match now.checked_sub(grace) {
                Some(before) => core.tables.borrow().sessions.expired(before),
                None => (Vec::new(), Some(0)),
            };
            for session in gone {
                let words = "a client did not come back in time; its locks and open files are given up";
                log::event(Level::Info, "session-forgotten", words, &[("session", &format_args!("{session:016x}"))]);
                // Journalled or not, a session that can't be forgotten now is tried again with the next one.
                if core.change([Record::SessionDelete(session)]).is_err() {
                    break;
                }
            }
            core.reap_orphans();
            core.release_remote_opens();
            let Some(next) = next else { break };
            core.reactor.sleep_until((next + grace).max(now + EXPIRY_PAUSE_NS)).await;
        }
        core.expiring.set(false);
    });
}
