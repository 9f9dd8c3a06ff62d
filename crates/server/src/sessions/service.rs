//! From a request that came in to the handler that does it, and from its end to the reply: exactly once, in order of
//! arrival, with a bounded number under way. What is done with which operation says `handlers::operations`.
//!
//! Invariants
//! 1. A request of a client that waits for other servers is one of at most `Bounds::active_requests`; others queue.
//!    Requests of servers run at once and never queue, so that what the active ones wait for always comes. Writes are
//!    bounded by the number of connections, each of which brings one body at a time, and by their windows.
//! 2. Each request that `Sessions::begin` called new ends in `finish`, `conclude` or `Sessions::abandon`.

use crate::backing::{self, ChunkUse};
use crate::coordination::intents::Origin;
use crate::core::{Caller, Core, Failure, Notice, until};
use crate::handlers::operations::{Handler, Promise, QuestionHandler, StepHandler, changes_entries, row};
use crate::handlers::{self, Progress, WriteEnd};
use crate::leases::kept_entries::ChangeUnderWay;
use crate::process::statistics::busiest::object_of;
use crate::process::statistics::waits::{Asker, WaitReason, because};
use crate::process::statistics::{EarlyWaits, RequestEnd, report};
use crate::sessions::expiry::start_expiry;
use crate::sessions::{Admission, low_priority, throttle};
use crate::store::AbsentPages;
use reactor::{BodyPiece, Class, Incoming, LocalFuture, Nanos, Peer, ReplyBody, Service};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::rc::Rc;
use wire::handshake::Role;
use wire::operation::{LEVEL_CLIENT, OperationClass};
use wire::{FileId, Operation, Status};

const WAIT_WORDS: &str = "what the request waits for (a rename or link of its name, the removal of its directory, or \
                          room in the journal) takes long";

/// A request that was started, until it is answered.
pub struct Request {
    pub incoming: Incoming,
    pub caller: Caller,
    pub started: Nanos,
    /// How long it has waited since.
    pub waited: Nanos,
    /// Has chunks of a file of the backing tree stay here.
    pub chunk_use: Option<ChunkUse>,
    /// `preparation_number` before what it needs of the backing tree was last brought.
    prepared: u64,
}

impl Request {
    pub fn asker(&self) -> Asker {
        asker(&self.incoming)
    }

    /// That it ends now.
    fn end(&self, now: Nanos) -> RequestEnd {
        let took = now.saturating_sub(self.started).saturating_sub(self.waited);
        let object = object_of(self.incoming.operation, &self.incoming.params);
        RequestEnd { now, took, object, ..RequestEnd::default() }
    }
}

/// Which counters a request counts to.
pub fn asker(incoming: &Incoming) -> Asker {
    Asker { operation: incoming.operation, job: incoming.peer.tag.get() }
}

/// A request that waits, and what does it afterwards.
struct WaitingRequest {
    request: Request,
    handle: StepHandler,
    step: Progress,
    /// That it changes something, if it may.
    _change: Option<ChangeUnderWay>,
}

/// The service of one server.
pub struct Front {
    core: Rc<Core>,
    active: Cell<usize>,
    /// Those that wait to be at work, and since when.
    queue: RefCell<VecDeque<(WaitingRequest, Nanos)>>,
    /// Reply parameters are put together here.
    scratch: RefCell<Vec<u8>>,
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
        if core.life.is_stopping() {
            return Err(Status::Draining);
        }
        let known = self.admit_peer(peer, welcomes)?;
        core.statistics.connected(peer);
        Ok(known)
    }

    fn shared(&self, peer: &Peer) {
        self.core.statistics.shared(peer);
        if let Some(holding) = &peer.hazards {
            self.core.holder_connected(peer.connection, holding.0.clone());
        }
        if let Some(queue) = peer.queue {
            self.core.queue_opened(queue, peer.user.uid, peer.connection, peer.tag.get());
        }
    }

    fn disconnected(&self, peer: &Peer) {
        self.core.statistics.disconnected(peer);
        self.core.contact_disconnected(peer);
        if peer.role.is_client() {
            self.core.holder_disconnected(peer.connection, peer.session);
            let now = self.core.reactor.now();
            let idle = self.core.tables.borrow_mut().sessions.disconnected(peer.session, now);
            if idle {
                start_expiry(&self.core);
            }
            handlers::forget_listeners(&self.core, peer.connection);
            throttle::disconnected(&self.core, peer.connection);
            self.core.store.end_holder(peer.connection);
            handlers::watch_buffers(&self.core);
        }
    }

    fn session_ended(&self, peer: &Peer) {
        self.core.session_ended(peer.session);
    }

    fn request(self: Rc<Self>, incoming: Incoming) {
        let core = &self.core;
        let operation = incoming.operation;
        let who = asker(&incoming);
        core.statistics.arrived(who);
        if !core.statistics.sampling.get() {
            report::start_sampling(core);
        }
        if core.life.is_stopping() && operation.level() == LEVEL_CLIENT && operation != Operation::Shutdown {
            // It ends with its connection, and the client asks the next server of this place. What other servers ask is
            // done, for what is under way here or there may wait for it.
            core.statistics.not_started(who);
            core.life.leave(incoming);
            return;
        }
        if incoming.peer.queue.is_some() && row(operation).leads_to_submissions {
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
                if status == Status::Ok && row(operation).opens {
                    handlers::reopened(core, incoming.peer.session, &bytes);
                }
                core.statistics.not_started(who);
                incoming.answer(status, &bytes, ReplyBody::default());
            }
            Admission::Active(waiting) => {
                core.statistics.not_started(who);
                let deadline = incoming.deadline();
                waiting.push(incoming);
                if tables.sessions.is_resumed(origin) {
                    core.reactor.spawn(Class::Metadata, end_late_copies(core.clone(), origin, deadline));
                }
            }
            Admission::Unknown => {
                drop(tables);
                core.statistics.not_started(who);
                incoming.fail(Status::OutcomeUnknown, FileId::default(), b"the request was answered before");
            }
        }
    }
}

impl Front {
    /// Whether somebody may connect, and whether its session is known.
    fn admit_peer(&self, peer: &Peer, welcomes: u64) -> Result<bool, Status> {
        let core = &self.core;
        if peer.role == Role::Server {
            let known = peer.from_server < core.cluster.server_count() && peer.from_server != core.index;
            if !known || peer.level == LEVEL_CLIENT {
                return Err(Status::NotPermitted);
            }
            return Ok(core.contact_connected(peer, welcomes));
        }
        if peer.level != LEVEL_CLIENT {
            return Err(Status::NotPermitted);
        }
        if core.tables.borrow().is_loss_untold {
            return Err(Status::Draining);
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

    /// Starts a request, of a low-priority client when it is its turn.
    fn begin(self: Rc<Self>, incoming: Incoming, origin: Option<Origin>) {
        match incoming.peer.role {
            Role::LowPriority => return low_priority::start(self, incoming, origin),
            Role::Client => {
                self.core.low_priority.note_other(incoming.taken);
                if let Some(backing) = &self.core.backing {
                    backing.note_access(incoming.operation, incoming.taken);
                }
            }
            Role::Server | Role::ClientTunnel | Role::ServerTunnel => {}
        }
        // It has just been taken.
        let started = incoming.taken;
        self.start(incoming, origin, started, None);
    }

    /// Starts a request now, at `started`, which has waited for its turn since `turn_since`, if it has.
    pub fn start(
        self: Rc<Self>,
        incoming: Incoming,
        origin: Option<Origin>,
        started: Nanos,
        turn_since: Option<Nanos>,
    ) {
        let core = &self.core;
        let caller = Caller { peer: incoming.peer.clone(), origin, deadline: incoming.deadline() };
        let early = EarlyWaits {
            unread: incoming.read.saturating_sub(incoming.arrived),
            others: incoming.taken.saturating_sub(incoming.read),
            turn_since,
        };
        core.statistics.started(asker(&incoming), early, started);
        let (chunk_use, preparation, prepared) =
            backing::preparation(core, incoming.operation, &caller, &incoming.params);
        let request = Request { incoming, caller, started, waited: 0, chunk_use, prepared };
        match preparation {
            None => self.handle(request),
            Some(preparation) => {
                let reactor = core.reactor.clone();
                reactor.spawn(Class::Metadata, self.prepare(request, preparation));
            }
        }
    }

    /// Brings here what a request needs of the backing tree, and handles it then, before anything else happens.
    async fn prepare(self: Rc<Self>, mut request: Request, preparation: LocalFuture<Result<(), Failure>>) {
        let mut next = Some(preparation);
        while let Some(preparation) = next {
            if let Err(failure) = self.watch(&mut request, because(WaitReason::Disk, preparation)).await {
                return finish(&self.core, request, Err(&failure));
            }
            // Some of it may have gone before all was here.
            next = self.lacking(&mut request);
        }
        self.handle(request);
    }

    /// What a request lacks of the backing tree by now.
    fn lacking(&self, request: &mut Request) -> Option<LocalFuture<Result<(), Failure>>> {
        let Request { incoming, caller, prepared, .. } = request;
        backing::lacking(&self.core, incoming.operation, caller, &incoming.params, prepared)
    }

    fn handle(self: Rc<Self>, request: Request) {
        let core = &self.core;
        match row(request.incoming.operation).handler {
            Handler::Step(handle) => self.run(request, handle),
            Handler::Question(answer) => self.answer(request, answer),
            Handler::Listing(answer) => self.list(request, answer),
            Handler::Body(start) => start(self, request),
            Handler::Parked(park) => park(core, request),
        }
    }

    /// Runs a handler at once; what has to wait goes on in a task of its own.
    fn run(self: Rc<Self>, request: Request, handle: StepHandler) {
        let mut reply = self.scratch.take();
        reply.clear();
        let result = self.attempt(&request, handle, &mut reply);
        match result {
            Ok(Progress::Done) if self.is_promise_open(&request) => {
                // What another server is promised survives first.
                let (core, bytes) = (self.core.clone(), reply.clone());
                let step = Progress::Later(Box::pin(async move { core.durable().await.map(|()| bytes) }));
                self.clone().spawn(WaitingRequest { request, handle, step, _change: None });
            }
            Ok(Progress::Done) => finish(&self.core, request, Ok(&reply)),
            Err(failure) => finish(&self.core, request, Err(&failure)),
            Ok(step) => {
                let is_client = request.caller.peer.level == LEVEL_CLIENT;
                let _change = self.begin_change(&request);
                let waiting = WaitingRequest { request, handle, step, _change };
                match is_client && !self.has_room() {
                    true => self.hold(waiting),
                    false => self.clone().spawn(waiting),
                }
            }
        }
        self.scratch.replace(reply);
    }

    /// Whether a reply that is ready has to wait for a sync.
    fn is_promise_open(&self, request: &Request) -> bool {
        request.caller.peer.role == Role::Server
            && !self.core.store.is_durable()
            && match row(request.incoming.operation).promise {
                Promise::Never => false,
                Promise::Always => true,
                Promise::If(is_promise) => is_promise(&request.incoming.params),
            }
    }

    /// Notes that a request which is not done at once may change something.
    fn begin_change(&self, request: &Request) -> Option<ChangeUnderWay> {
        changes_entries(request.incoming.operation).then(|| self.core.begin_change(&request.caller))
    }

    fn attempt(&self, request: &Request, handle: StepHandler, reply: &mut Vec<u8>) -> Result<Progress, Failure> {
        let core = &self.core;
        if request.incoming.operation.is_mutating() && core.is_journal_low() {
            return Ok(Progress::Blocked(core.checkpoints.finished()));
        }
        if !core.leases.kept_entries.is_idle()
            && changes_entries(request.incoming.operation)
            && let Some(ended) = core.recall_entries(request.caller.peer.session)
        {
            return Ok(Progress::Blocked(ended));
        }
        match handle(core, &request.caller, &request.incoming.params, reply) {
            // What is absent is waited for in a task of its own, like anything else.
            Err(failure) if failure.absent.is_some() => Ok(Progress::Later(Box::pin(async { Err(failure) }))),
            result => result,
        }
    }

    /// Has a request wait until fewer are at work.
    fn hold(&self, waiting: WaitingRequest) {
        let now = self.core.reactor.now();
        self.core.statistics.begin_wait(asker(&waiting.request.incoming), WaitReason::Queue, now);
        self.queue.borrow_mut().push_back((waiting, now));
    }

    /// A request's future, whose waits count.
    async fn watch<T>(&self, request: &mut Request, future: impl Future<Output = T>) -> T {
        let core = &self.core;
        let (result, waited) = core.statistics.watch(&core.reactor, asker(&request.incoming), future).await;
        request.waited += waited;
        result
    }

    fn spawn(self: Rc<Self>, waiting: WaitingRequest) {
        self.active.set(self.active.get() + 1);
        let reactor = self.core.reactor.clone();
        reactor.spawn(Class::Metadata, self.wait(waiting));
    }

    async fn wait(self: Rc<Self>, waiting: WaitingRequest) {
        let WaitingRequest { mut request, handle, mut step, _change } = waiting;
        let deadline = request.caller.deadline;
        let mut pins = Vec::new();
        let result = loop {
            let ready = match step {
                Progress::Done => unreachable!("what is done does not wait"),
                Progress::Later(future) => match self.watch(&mut request, future).await {
                    Err(Failure { absent: Some(absent), .. }) => {
                        let pinned = because(WaitReason::Disk, self.core.store.pin_pages(&absent));
                        match self.watch(&mut request, pinned).await {
                            // It stays until the request has ended, which begins again with it.
                            Ok(pin) => pins.push(pin),
                            Err(error) => break Err(error.into()),
                        }
                        Ok(())
                    }
                    result => break result,
                },
                Progress::After(future) => self.watch(&mut request, future).await,
                Progress::Blocked(notice) => {
                    let told = because(WaitReason::Lock, notice.wait());
                    self.watch(&mut request, self.core.wait_until(deadline, WAIT_WORDS, told)).await
                }
            };
            if let Err(failure) = ready {
                break Err(failure);
            }
            if let Some(lacking) = self.lacking(&mut request) {
                step = Progress::After(Box::pin(because(WaitReason::Disk, lacking)));
                continue;
            }
            let mut reply = Vec::new();
            match self.attempt(&request, handle, &mut reply) {
                Ok(Progress::Done) => break Ok(reply),
                Ok(next) => step = next,
                Err(failure) => break Err(failure),
            }
        };
        let result = match result {
            Ok(reply) if self.is_promise_open(&request) => {
                self.watch(&mut request, self.core.durable()).await.map(|()| reply)
            }
            result => result,
        };
        finish(&self.core, request, result.as_ref().map(Vec::as_slice));
        self.active.set(self.active.get() - 1);
        self.admit();
    }

    /// Whether another request of a client may be at work.
    fn has_room(&self) -> bool {
        self.active.get() < self.core.options.bounds.active_requests
    }

    /// Starts those that queue for as long as there is room.
    fn admit(self: &Rc<Self>) {
        while self.has_room() {
            let Some((mut waiting, since)) = self.queue.borrow_mut().pop_front() else { return };
            let now = self.core.reactor.now();
            self.core.statistics.end_wait(asker(&waiting.request.incoming), WaitReason::Queue, since, now);
            let waited = now.saturating_sub(since);
            waiting.request.waited += waited;
            // Those before it may have had to wait for room. Whoever asks has seen signs of life since, so that the
            // time in the queue does not count, and what was to end in the time that is over begins anew.
            let is_over = now > waiting.request.caller.deadline;
            if is_over && !waiting.request.incoming.is_connected() {
                let failure = Failure::with_text(Status::TimedOut, "whoever asked had gone when there was time for it");
                finish(&self.core, waiting.request, Err(&failure));
                continue;
            }
            waiting.request.caller.deadline = waiting.request.caller.deadline.saturating_add(waited);
            if is_over {
                waiting.step = Progress::After(Box::pin(async { Ok(()) }));
            }
            self.clone().spawn(waiting);
        }
    }

    /// Lists a directory, once the changes of names in it are decided that are under way, and its removal.
    fn list(self: Rc<Self>, request: Request, answer: QuestionHandler) {
        let core = self.core.clone();
        let is_changing = !core.tables.borrow().locks.is_empty();
        let removal = if is_changing { None } else { handlers::removal_under_way(&core, &request.incoming.params) };
        if !is_changing && removal.is_none() {
            return self.answer(request, answer);
        }
        core.reactor.spawn(Class::Metadata, self.list_later(request, answer, is_changing, removal));
    }

    async fn list_later(
        self: Rc<Self>,
        mut request: Request,
        answer: QuestionHandler,
        is_changing: bool,
        mut removal: Option<Notice<()>>,
    ) {
        let (core, deadline) = (&self.core, request.caller.deadline);
        if is_changing {
            let params = request.incoming.params.clone();
            let decided = because(WaitReason::Lock, handlers::wait_for_names(core, &params, deadline));
            if self.watch(&mut request, decided).await.is_none() {
                let failure = Failure::with_text(Status::TimedOut, "a change of names in the directory takes long");
                return finish(core, request, Err(&failure));
            }
            removal = handlers::removal_under_way(core, &request.incoming.params);
        }
        while let Some(resolved) = removal {
            let told = because(WaitReason::Lock, until(&core.reactor, deadline, resolved.wait()));
            if self.watch(&mut request, told).await.is_none() {
                let failure = Failure::with_text(Status::TimedOut, "the removal of the directory takes long");
                return finish(core, request, Err(&failure));
            }
            removal = handlers::removal_under_way(core, &request.incoming.params);
        }
        // Meanwhile it may have come out that not all names are known.
        match self.lacking(&mut request) {
            None => self.answer(request, answer),
            Some(lacking) => self.prepare(request, lacking).await,
        }
    }

    /// Has a handler take in the body of a request, in a task of its own that begins at once: as a rule the body has
    /// come with the request, and the connection goes on with the next one in the same step.
    pub fn receive<H>(self: Rc<Self>, mut request: Request, handle: H)
    where
        H: AsyncFn(&Rc<Core>, &Caller, &mut Incoming) -> Result<Vec<u8>, WriteEnd> + 'static,
    {
        let class = match request.incoming.operation.class() {
            OperationClass::Data => Class::Data,
            OperationClass::Metadata => Class::Metadata,
        };
        let core = self.core.clone();
        let change = self.begin_change(&request);
        core.clone().reactor.spawn_started(class, async move {
            let _change = change;
            let who = asker(&request.incoming);
            let handled = handle(&core, &request.caller, &mut request.incoming);
            let (result, waited) = core.statistics.watch(&core.reactor, who, handled).await;
            request.waited += waited;
            let result = match result {
                Ok(reply) if self.is_promise_open(&request) => {
                    self.watch(&mut request, core.durable()).await.map(|()| reply).map_err(WriteEnd::Failed)
                }
                result => result,
            };
            match result {
                Ok(reply) => finish(&core, request, Ok(&reply)),
                Err(WriteEnd::Failed(failure)) => finish(&core, request, Err(&failure)),
                Err(WriteEnd::Disconnected) => self.abandon(request),
            }
        });
    }

    /// A body that never came leaves nothing behind. If the request was sent again meanwhile, that copy is executed.
    fn abandon(self: Rc<Self>, request: Request) {
        let end = RequestEnd { failed: true, ..request.end(self.core.reactor.now()) };
        let Request { incoming, caller, .. } = request;
        self.core.statistics.finished(asker(&incoming), end);
        note_end(&self.core, &incoming);
        drop(incoming);
        let Some(origin) = caller.origin else { return };
        let mut copies = self.core.tables.borrow_mut().sessions.abandon(origin);
        copies.retain(Incoming::is_connected);
        // A session has one connection, so that only the last copy has a caller.
        if let Some(copy) = copies.pop() {
            let who = asker(&copy);
            self.core.statistics.arrived(who);
            let acknowledged = copy.header.session_acknowledged;
            let is_new = matches!(self.core.tables.borrow_mut().sessions.begin(origin, acknowledged), Admission::New);
            if is_new {
                let now = self.core.reactor.now();
                self.start(copy, Some(origin), now, None);
            } else {
                self.core.statistics.not_started(who);
                copy.fail(Status::OutcomeUnknown, FileId::default(), b"the request was answered before");
            }
        }
    }

    /// Answers a request that changes nothing and whose reply has a body.
    fn answer(self: Rc<Self>, request: Request, answer: QuestionHandler) {
        if let Some((request, absent)) = self.try_answer(request, answer) {
            let class = match request.incoming.operation.class() {
                OperationClass::Data => Class::Data,
                OperationClass::Metadata => Class::Metadata,
            };
            self.core.clone().reactor.spawn(class, self.answer_later(request, answer, absent));
        }
    }

    /// The same, once pages are in memory.
    async fn answer_later(self: Rc<Self>, mut request: Request, answer: QuestionHandler, mut absent: Rc<AbsentPages>) {
        let mut pins = Vec::new();
        loop {
            let pinned = because(WaitReason::Disk, self.core.store.pin_pages(&absent));
            match self.watch(&mut request, pinned).await {
                Ok(pin) => pins.push(pin),
                Err(error) => return finish(&self.core, request, Err(&error.into())),
            }
            match self.try_answer(request, answer) {
                Some(again) => (request, absent) = again,
                None => return,
            }
        }
    }

    /// Answers a request, unless pages are absent for that.
    fn try_answer(&self, request: Request, answer: QuestionHandler) -> Option<(Request, Rc<AbsentPages>)> {
        let core = &self.core;
        let mut params = self.scratch.take();
        params.clear();
        let mut absent = None;
        match answer(core, &request.caller, &request.incoming.params, &mut params) {
            Err(Failure { absent: Some(pages), .. }) => absent = Some((request, pages)),
            Ok(body) => {
                let end = request.end(core.reactor.now());
                note_end(core, &request.incoming);
                let bytes_out = body.pieces.iter().map(piece_size).sum();
                core.statistics.finished(asker(&request.incoming), RequestEnd { bytes_out, ..end });
                request.incoming.answer(Status::Ok, &params, body);
            }
            Err(failure) => finish(core, request, Err(&failure)),
        }
        self.scratch.replace(params);
        absent
    }
}

/// A request has ended, which others of low-priority clients may wait for.
fn note_end(core: &Core, incoming: &Incoming) {
    if incoming.peer.role == Role::LowPriority {
        core.low_priority.note_end();
    }
}

/// Answers a request, and keeps its outcome.
pub fn finish(core: &Core, request: Request, result: Result<&[u8], &Failure>) {
    let end = request.end(core.reactor.now());
    let Request { incoming, caller, .. } = request;
    let bytes_in = if result.is_ok() { incoming.body_size() as u64 } else { 0 };
    note_end(core, &incoming);
    core.statistics.finished(asker(&incoming), RequestEnd { failed: result.is_err(), bytes_in, ..end });
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

/// Answers copies of a request that goes on since an earlier life of this server, once their callers' time is up: it
/// may wait for a server that is down, and has no deadline of its own.
async fn end_late_copies(core: Rc<Core>, origin: Origin, deadline: Nanos) {
    core.reactor.sleep_until(deadline.saturating_add(1)).await;
    let now = core.reactor.now();
    let late = core.tables.borrow_mut().sessions.take_waiting(origin, |copy| copy.expired(now));
    for copy in late {
        copy.fail(Status::TimedOut, FileId::default(), b"what was begun before the server's restart is not done yet");
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
