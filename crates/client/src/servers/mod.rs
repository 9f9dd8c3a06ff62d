//! The channels to all servers, opened when first used, and the one way in which requests leave the client.

pub(crate) mod counters;
pub(crate) mod join;
pub(crate) mod relaying;

use crate::bytes::late_errors::UnansweredQuestions;
use crate::error::RequestError;
use crate::names::directory_cache::DirectoryCache;
use crate::open_files::OpenFiles;
use crate::open_files::contact::Contacts;
use crate::open_files::kept_entries::KeptEntries;
use crate::open_files::locks::LockBook;
use crate::open_files::read_leases::ReadLeases;
use crate::options::Options;
use crate::servers::counters::UntoldCounters;
use crate::servers::join::join_all;
use crate::servers::relaying::Relays;
use crate::shared_memory::registered_buffers::RegisteredBuffers;
use crate::shared_memory::short_circuit::PlaceCache;
use reactor::channel::{Call, Channel, ChannelOptions, Failure, Reply, Turnabout};
use reactor::{Nanos, Reactor};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::ops::Deref;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use wire::credentials::Credentials;
use wire::handshake::Role;
use wire::messages::{RenamedReply, TreeLogReply, TreeLogRequest};
use wire::operation::LEVEL_CLIENT;
use wire::{Cluster, Decode, Encode, FileId, Operation, Status};

const NANOS_PER_MS: Nanos = 1_000_000;
/// First and longest pause before a server that answered `Busy` is asked again.
const BUSY_PAUSE: Nanos = NANOS_PER_MS;
const BUSY_PAUSE_MAX: Nanos = 100 * NANOS_PER_MS;
/// Longest wait for news of moved directories, which can be had later as well.
const LOG_WAIT_MAX: Nanos = 1_000 * NANOS_PER_MS;

/// The servers as one user sees them. Users of one client share its session, its channels and all that it knows.
pub(crate) struct Servers {
    common: Rc<Common>,
    /// Who is acted for, when that is not the client's own user.
    actor: Option<Arc<Actor>>,
}

/// Another user than the client's own, for whom some requests are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Actor {
    pub user: Credentials,
    pub umask: u32,
}

/// What a client has sent and received so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Requests, those sent again over a new connection not counted twice.
    pub requests: u64,
    /// Times that requests were handed to the kernel, or to memory shared with a server: those made together travel
    /// together. What belongs to connections is in it.
    pub sends: u64,
    /// Bytes, of headers too; what is read from a mapped store is not among them.
    pub bytes_sent: u64,
    pub bytes_received: u64,
}

/// Everything that the operations share.
pub(crate) struct Common {
    pub(crate) reactor: Reactor,
    pub(crate) cluster: Rc<Cluster>,
    pub(crate) options: Options,
    pub(crate) cache: RefCell<DirectoryCache>,
    /// This, for what goes on by itself.
    pub(crate) own: Weak<Common>,
    pub(crate) open_files: OpenFiles,
    pub(crate) locks: LockBook,
    pub(crate) places: PlaceCache,
    pub(crate) read_leases: ReadLeases,
    pub(crate) kept_entries: KeptEntries,
    pub(crate) contacts: Contacts,
    pub(crate) relays: Relays,
    pub(crate) buffers: RegisteredBuffers,
    /// Servers that have said that they keep no checksums.
    pub(crate) without_sums: RefCell<BTreeSet<u32>>,
    /// Permits that were ever asked for.
    pub(crate) permit_count: Cell<u64>,
    pub(crate) unanswered: UnansweredQuestions,
    session: u64,
    channels: RefCell<Vec<Option<Channel>>>,
    round_trips: Cell<u64>,
    pub(crate) untold: UntoldCounters,
    /// Looks at attribute caches since a server was last asked instead.
    pub(crate) looks: Cell<u32>,
    /// The last tree change that the cache is right about.
    tree_known: Cell<u64>,
    /// The last one that any server has named, and that server.
    tree_seen: Cell<(u64, u32)>,
    /// Shared by all clients of a process, so that it holds after fork too.
    umask: Arc<AtomicU32>,
}

impl Deref for Servers {
    type Target = Common;

    fn deref(&self) -> &Common {
        &self.common
    }
}

impl Servers {
    pub(crate) fn new(reactor: &Reactor, cluster: Rc<Cluster>, options: Options, umask: Arc<AtomicU32>) -> Rc<Servers> {
        let common = Rc::new_cyclic(|own| Common::with_own(reactor, cluster, options, umask, own.clone()));
        Rc::new(Servers { common, actor: None })
    }

    /// The same servers as another user sees them.
    pub(crate) fn acting_as(&self, actor: Arc<Actor>) -> Rc<Servers> {
        Rc::new(Servers { common: self.common.clone(), actor: Some(actor) })
    }

    /// On whose behalf requests are made.
    pub(crate) fn user(&self) -> &Credentials {
        self.foreign_user().unwrap_or(&self.options.user)
    }

    pub(crate) fn foreign_user(&self) -> Option<&Credentials> {
        self.actor.as_ref().map(|actor| &actor.user)
    }

    /// Permission bits that new files and directories do not get.
    pub(crate) fn umask(&self) -> u32 {
        self.actor.as_ref().map_or_else(|| self.common.umask(), |actor| actor.umask)
    }

    /// One request and its reply, on behalf of the user.
    pub(crate) async fn send(&self, server: u32, call: Call<'_>) -> Result<Reply, RequestError> {
        match self.foreign_user() {
            None => self.common.send(server, call).await,
            Some(user) => self.common.send(server, call.on_behalf_of(user)).await,
        }
    }

    /// A request without a body, on behalf of the user. `Busy` means "ask again", which is done with growing pauses
    /// until the time-out.
    pub(crate) async fn ask(
        &self,
        server: u32,
        operation: Operation,
        params: &impl Encode,
    ) -> Result<Reply, RequestError> {
        self.common.ask_as(self.foreign_user(), server, operation, params).await
    }
}

impl Common {
    fn with_own(
        reactor: &Reactor,
        cluster: Rc<Cluster>,
        options: Options,
        umask: Arc<AtomicU32>,
        own: Weak<Common>,
    ) -> Common {
        let session = options.session.unwrap_or_else(|| reactor.random());
        let channels = vec![None; cluster.servers.len()];
        Common {
            reactor: reactor.clone(),
            cluster,
            cache: RefCell::new(DirectoryCache::new(options.bounds.directory_cache_size)),
            places: PlaceCache::new(options.bounds.placed_chunks),
            read_leases: ReadLeases::new(options.bounds.read_leases),
            options,
            own,
            open_files: OpenFiles::default(),
            locks: LockBook::new(),
            kept_entries: KeptEntries::default(),
            without_sums: RefCell::default(),
            permit_count: Cell::new(0),
            contacts: Contacts::default(),
            relays: Relays::default(),
            buffers: RegisteredBuffers::default(),
            unanswered: UnansweredQuestions::default(),
            session,
            channels: RefCell::new(channels),
            round_trips: Cell::new(0),
            untold: UntoldCounters::default(),
            looks: Cell::new(0),
            tree_known: Cell::new(0),
            tree_seen: Cell::new((0, 0)),
            umask,
        }
    }

    fn umask(&self) -> u32 {
        self.umask.load(Ordering::Relaxed)
    }

    pub(crate) fn set_umask(&self, umask: u32) -> u32 {
        self.umask.swap(umask & 0o777, Ordering::Relaxed)
    }

    pub(crate) fn silence(&self) -> Nanos {
        self.options.timeout_ms.saturating_mul(NANOS_PER_MS)
    }

    pub(crate) fn session(&self) -> u64 {
        self.session
    }

    pub(crate) fn channel(&self, server: u32) -> Channel {
        let mut channels = self.channels.borrow_mut();
        let slot = &mut channels[server as usize];
        slot.get_or_insert_with(|| {
            let options = ChannelOptions {
                cluster: self.cluster.clone(),
                server,
                role: if self.options.is_low_priority { Role::LowPriority } else { Role::Client },
                from_server: 0,
                level: LEVEL_CLIENT,
                session: self.session,
                user: self.options.user.clone(),
                label: self.options.label.clone(),
                timeout: self.silence(),
                relay: self.relay(server),
            };
            let channel = Channel::new(&self.reactor, options);
            let own = self.own.clone();
            channel.observe(Rc::new(move |turnabout| match (own.upgrade(), turnabout) {
                (Some(servers), Turnabout::Lost) => {
                    servers.begin_counters_anew(server);
                    servers.lost(server);
                }
                (Some(servers), Turnabout::Renewed { session_known, life }) => {
                    servers.renewed(server, session_known, life);
                }
                (Some(servers), Turnabout::Resumed) => servers.resumed(server),
                (None, _) => {}
            }));
            channel
        })
        .clone()
    }

    /// Tells all servers to which there are connections what was counted, and that the session has ended.
    pub(crate) async fn end(&self) {
        self.tell_counters();
        let channels: Vec<Channel> = self.channels.borrow().iter().flatten().cloned().collect();
        let _: Vec<()> = join_all(channels.iter().map(Channel::end)).await;
    }

    pub(crate) fn round_trips(&self) -> u64 {
        self.round_trips.get()
    }

    /// The sum over all channels.
    pub(crate) fn traffic(&self) -> Traffic {
        let mut traffic = Traffic { requests: self.round_trips.get(), ..Traffic::default() };
        for statistics in self.channels.borrow().iter().flatten().map(Channel::statistics) {
            traffic.sends += statistics.sends;
            traffic.bytes_sent += statistics.bytes_sent;
            traffic.bytes_received += statistics.bytes_received;
        }
        traffic
    }

    pub(crate) fn server_count(&self) -> u32 {
        self.cluster.server_count()
    }

    /// The home of a file. Errors: `BadMessage`, for an id that no server of this cluster gives out.
    pub(crate) fn home_of(&self, file: FileId) -> Result<u32, RequestError> {
        self.cluster.home_of(file).ok_or_else(|| {
            RequestError::Local(Status::BadMessage, format!("a server named file {file}, which has no home"))
        })
    }

    /// One request and its reply.
    pub(crate) async fn send(&self, server: u32, call: Call<'_>) -> Result<Reply, RequestError> {
        self.round_trips.set(self.round_trips.get() + 1);
        self.send_due(server).await;
        let channel = self.channel(server);
        let answer = self.await_answer(&call);
        let result = channel.call(call).await;
        match &result {
            Ok(reply) => self.count_answer(server, answer, reply.served),
            Err(failure) if is_answer(failure.status) => self.count_answer(server, answer, failure.served),
            Err(_) => {}
        }
        if result.as_ref().is_err_and(is_too_old) {
            self.begin_tree_anew(channel.tree_number(), server);
        } else if channel.tree_number() > self.tree_seen.get().0 {
            self.tree_seen.set((channel.tree_number(), server));
        }
        Ok(result?)
    }

    /// A server has refused what we know of the tree as a whole: it is too little, or a power loss took some of it
    /// back. The cache is empty then, and right about whatever that server knows.
    fn begin_tree_anew(&self, number: u64, server: u32) {
        self.cache.borrow_mut().forget_all();
        self.tree_known.set(number);
        self.tree_seen.set((number, server));
    }

    /// The last tree change that the cache is right about.
    pub(crate) fn tree_known(&self) -> u64 {
        self.tree_known.get()
    }

    /// The last tree change that any server has named.
    pub(crate) fn tree_seen(&self) -> u64 {
        self.tree_seen.get().0
    }

    /// The cache is empty, and knows of nothing: for when a server has lost what we know to a power loss.
    pub(crate) fn forget_tree_changes(&self) {
        self.tree_known.set(0);
        self.tree_seen.set((0, 0));
    }

    /// Takes in that this client has moved directories.
    pub(crate) fn note_moved(&self, moved: &RenamedReply) {
        if !moved.directories.is_empty() {
            self.kept_entries.note_move();
        }
        let mut cache = self.cache.borrow_mut();
        moved.directories.iter().for_each(|directory| cache.forget(*directory));
        if self.tree_known.get() == moved.before {
            self.tree_known.set(moved.number);
        }
    }

    /// The same, after the cache has learned of what a server has hinted at. When that can't be asked, the cache stays
    /// as it is, and servers refuse what it is wrong about.
    pub(crate) async fn known_tree_changes(&self) -> u64 {
        let (seen, server) = self.tree_seen.get();
        if seen <= self.tree_known.get() {
            return self.tree_known.get();
        }
        if self.cache.borrow().is_empty() {
            self.tree_known.set(seen);
            return seen;
        }
        let request = TreeLogRequest { since: self.tree_known.get() };
        let mut call = Call::new(Operation::TreeLog, &request);
        call.deadline = Some(self.reactor.now().saturating_add(LOG_WAIT_MAX.min(self.silence())));
        let reply = self.send(server, call).await;
        // When that server is not to be asked, the next reply of another one will say so again.
        self.tree_seen.set((self.tree_known.get(), server));
        if let Ok(reply) = reply
            && let Ok(log) = TreeLogReply::from_bytes(&reply.params)
        {
            let mut cache = self.cache.borrow_mut();
            match log.complete {
                true => log.entries.iter().for_each(|entry| cache.forget(entry.directory)),
                false => cache.forget_all(),
            }
            self.tree_known.set(self.tree_known.get().max(log.number));
        }
        self.tree_known.get()
    }

    /// As `Servers::ask`, on behalf of the client's own user.
    pub(crate) async fn ask(
        &self,
        server: u32,
        operation: Operation,
        params: &impl Encode,
    ) -> Result<Reply, RequestError> {
        self.ask_as(None, server, operation, params).await
    }

    async fn ask_as(
        &self,
        user: Option<&Credentials>,
        server: u32,
        operation: Operation,
        params: &impl Encode,
    ) -> Result<Reply, RequestError> {
        let result = self.send(server, call_for(user, operation, params)).await;
        match result {
            Err(request_error) if request_error.status() == Status::Busy => {
                self.ask_again(user, server, operation, params).await
            }
            other => other,
        }
    }

    async fn ask_again(
        &self,
        user: Option<&Credentials>,
        server: u32,
        operation: Operation,
        params: &impl Encode,
    ) -> Result<Reply, RequestError> {
        let give_up = self.reactor.now().saturating_add(self.silence());
        let mut pause = BUSY_PAUSE;
        loop {
            self.reactor.sleep(pause).await;
            pause = (pause * 2).min(BUSY_PAUSE_MAX);
            match self.send(server, call_for(user, operation, params)).await {
                Err(request_error) if request_error.status() != Status::Busy => return Err(request_error),
                Err(_) if self.reactor.now() < give_up => {}
                Err(_) => {
                    let words = format!("{} on server {server}: others kept it busy", operation.name());
                    return Err(RequestError::Local(Status::TimedOut, words));
                }
                Ok(reply) => return Ok(reply),
            }
        }
    }
}

fn call_for<'a>(user: Option<&Credentials>, operation: Operation, params: &impl Encode) -> Call<'a> {
    let call = Call::new(operation, params);
    match user {
        None => call,
        Some(user) => call.on_behalf_of(user),
    }
}

/// Whether a failure is what a server has answered.
pub(crate) fn is_answer(status: Status) -> bool {
    !matches!(status, Status::Unreachable | Status::TimedOut | Status::OutcomeUnknown)
}

/// Whether a server says that a request knows of no tree change that it could compare: it names no directory.
fn is_too_old(failure: &Failure) -> bool {
    failure.status == Status::StaleDirectory && failure.id == FileId::default()
}
