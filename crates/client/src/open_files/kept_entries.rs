//! Delegations of all entries of all servers, for a caller that keeps what he is told of names and attributes: a mount,
//! whose kernel keeps it (docs/kept-entries.md).
//!
//! One task for each server asks for its delegation, and is answered when it is called back. What is kept counts while
//! all servers' delegations are held: forgetting is for everything at once.
//!
//! Invariants
//! 1. `generation` changes when a delegation ends here, before anybody can be told so. What was learnt within one
//!    generation, with all delegations held from begin to end, may be kept until the first of them ends by time.
//! 2. A server is told that a delegation has been let go only after the caller has forgotten everything that he was
//!    told before.
//! 3. A delegation lasts here from the moment at which the request was sent that the server has answered.

use crate::filesystem::FileSystem;
use crate::names::rights::Rights;
use crate::servers::Common;
use reactor::channel::Call;
use reactor::{Class, LocalFuture, Nanos};
use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use wire::messages::{KeepEntriesReply, KeepEntriesRequest, kept};
use wire::{Decode, FileId, Operation};

const NANOS_PER_MS: Nanos = 1_000_000;
/// Pauses before a server is asked again that could not be.
const PAUSE_FIRST: Nanos = 50 * NANOS_PER_MS;
const PAUSE_MAX: Nanos = 1_000 * NANOS_PER_MS;
/// Longest time of a delegation that is believed.
const TIME_MS_MAX: u32 = 60_000;

/// Who keeps entries.
pub trait EntryKeeper {
    /// Takes in until when what is learnt from now on may be kept; `None` for not at all. What was kept before stays so
    /// until `forget`, unless its own time is over.
    fn held(&self, until: Option<Nanos>);
    /// Forgets everything that was kept; resolves when that is so.
    fn forget(&self) -> LocalFuture<()>;
}

/// What is known of one server's delegation.
#[derive(Clone, Copy, Default)]
struct OfServer {
    /// Its number, and until when it is held.
    held: Option<(u64, Nanos)>,
    /// The last one that was let go of and not confirmed yet; 0 for none.
    ended: u64,
}

/// See the module.
#[derive(Default)]
pub(crate) struct KeptEntries {
    keeper: RefCell<Option<Rc<dyn EntryKeeper>>>,
    /// Whose changes take nothing back.
    session: Cell<u64>,
    servers: RefCell<Vec<OfServer>>,
    generation: Cell<u64>,
    /// How often everything was given back; what a request brings that was sent before counts no more.
    returns: Cell<u64>,
    /// Renames of directories by this client.
    moves: Cell<u64>,
}

impl KeptEntries {
    pub(crate) fn note_move(&self) {
        self.moves.set(self.moves.get() + 1);
    }

    fn is_wanted(&self) -> bool {
        self.keeper.borrow().is_some()
    }

    fn of(&self, server: u32) -> OfServer {
        self.servers.borrow()[server as usize]
    }

    /// The end of a delegation here (invariant 1).
    fn let_go(&self, server: u32) {
        {
            let mut servers = self.servers.borrow_mut();
            let Some(of_server) = servers.get_mut(server as usize) else { return };
            let Some((number, _)) = of_server.held.take() else { return };
            of_server.ended = number;
        }
        self.generation.set(self.generation.get() + 1);
        self.tell();
    }

    /// Tells until when all are held.
    fn tell(&self) {
        let keeper = self.keeper.borrow().clone();
        if let Some(keeper) = keeper {
            keeper.held(self.held_until());
        }
    }

    /// Until when all are held.
    fn held_until(&self) -> Option<Nanos> {
        let servers = self.servers.borrow();
        let ends = servers.iter().map(|of_server| of_server.held.map(|(_, until)| until));
        ends.min().flatten()
    }
}

impl Common {
    /// Takes in that the connection to a server has ended.
    pub(crate) fn entries_lost(&self, server: u32) {
        self.kept_entries.let_go(server);
    }

    async fn forget_entries(&self) {
        let keeper = self.kept_entries.keeper.borrow().clone();
        if let Some(keeper) = keeper {
            keeper.forget().await;
        }
    }

    /// Asks a server, and takes in what it says. False when there is nothing to ask for any more.
    async fn ask_for_entries(&self, server: u32, pause: &mut Nanos) -> bool {
        let kept = &self.kept_entries;
        let OfServer { held, ended } = kept.of(server);
        if held.is_none() && ended != 0 {
            self.forget_entries().await;
        }
        if !kept.is_wanted() && held.is_none() && ended == 0 {
            return false;
        }
        let (sent, returns) = (self.reactor.now(), kept.returns.get());
        let number = held.map_or(0, |(number, _)| number);
        let (session, wanted) = (kept.session.get(), kept.is_wanted());
        let request = KeepEntriesRequest { session, held: number, ended, wanted };
        let mut call = Call::new(Operation::KeepEntries, &request);
        // What was lost on the way is asked anew, by what is known then.
        (call.once, call.deadline) = (true, held.map(|(_, until)| until));
        let reply = self.channel(server).call(call).await;
        let reply = reply.ok().and_then(|reply| KeepEntriesReply::from_bytes(&reply.params).ok());
        let Some(reply) = reply else {
            kept.let_go(server);
            self.reactor.sleep(*pause).await;
            *pause = (*pause * 2).min(PAUSE_MAX);
            return true;
        };
        *pause = PAUSE_FIRST;
        let until = sent + Nanos::from(reply.time_ms.min(TIME_MS_MAX)) * NANOS_PER_MS;
        if reply.state == kept::ENDED && held.is_some_and(|(known, _)| known == reply.number) {
            kept.let_go(server);
        }
        let mut servers = kept.servers.borrow_mut();
        let of_server = &mut servers[server as usize];
        match (reply.state, of_server.held) {
            (kept::HELD, Some((known, end))) if known == reply.number && number == known => {
                of_server.held = Some((known, until.max(end)));
            }
            (kept::HELD, None) if number == 0 && returns == kept.returns.get() && kept.is_wanted() => {
                // Of what was let go of before, this server knows by now.
                *of_server = OfServer { held: Some((reply.number, until)), ended: 0 };
            }
            // It came too late.
            (kept::HELD, None) if number == 0 => of_server.ended = reply.number,
            (kept::HELD, _) => {}
            // Also one that this client was never told of.
            (kept::ENDED, None) => of_server.ended = reply.number,
            (kept::NEVER, _) => return false,
            // It has taken in what was let go of.
            _ if number == 0 && of_server.ended == ended => of_server.ended = 0,
            _ => {}
        }
        drop(servers);
        kept.tell();
        true
    }
}

async fn attend(own: Weak<Common>, server: u32) {
    let mut pause = PAUSE_FIRST;
    while let Some(servers) = own.upgrade() {
        if !servers.ask_for_entries(server, &mut pause).await {
            return;
        }
    }
}

impl FileSystem {
    /// From now on asks all servers for delegations of their entries, so that what they tell may be kept. Changes of
    /// `session` take nothing back: that of who keeps them, which may be another client, and which knows of its own
    /// changes.
    pub fn keep_entries(&self, session: u64, keeper: Rc<dyn EntryKeeper>) {
        let kept = &self.servers.kept_entries;
        assert!(kept.keeper.replace(Some(keeper)).is_none(), "one caller keeps entries");
        kept.session.set(session);
        *kept.servers.borrow_mut() = vec![OfServer::default(); self.server_count() as usize];
        for server in 0..self.server_count() {
            self.servers.reactor.spawn(Class::Metadata, attend(self.servers.own.clone(), server));
        }
    }

    /// Where what is about to be learnt may be kept: the generation that it has to be of.
    pub fn kept_generation(&self) -> Option<u64> {
        let kept = &self.servers.kept_entries;
        let until = kept.held_until()?;
        (until > self.servers.reactor.now()).then(|| kept.generation.get())
    }

    /// For how long what was learnt since a look at the generation may be kept: nanoseconds, 0 for not at all.
    pub fn kept_for(&self, generation: Option<u64>) -> Nanos {
        if generation.is_none() || generation != self.kept_generation() {
            return 0;
        }
        self.servers.kept_entries.held_until().map_or(0, |until| until.saturating_sub(self.servers.reactor.now()))
    }

    /// Gives all delegations back, after a change of the caller's own of which it is not known whether or when it
    /// happens: servers give none before they know. Resolves when everything has been forgotten.
    pub async fn give_back_entries(&self) {
        let kept = &self.servers.kept_entries;
        if !kept.is_wanted() {
            return;
        }
        kept.returns.set(kept.returns.get() + 1);
        kept.generation.set(kept.generation.get() + 1);
        (0..self.server_count()).for_each(|server| kept.let_go(server));
        self.servers.forget_entries().await;
    }

    /// Keeps nothing any more, and tells the servers. To be called before the process ends.
    pub async fn stop_keeping_entries(&self, time_max: Nanos) {
        self.give_back_entries().await;
        self.servers.kept_entries.keeper.take();
        let deadline = self.servers.reactor.now() + time_max;
        let tell = |server: u32| async move {
            let kept = &self.servers.kept_entries;
            let (session, OfServer { ended, .. }) = (kept.session.get(), kept.of(server));
            let request = KeepEntriesRequest { session, held: 0, ended, wanted: false };
            let mut call = Call::new(Operation::KeepEntries, &request);
            (call.once, call.deadline) = (true, Some(deadline));
            // Where it can't be told, it waits for the time.
            let _ = self.servers.channel(server).call(call).await;
        };
        let servers = self.servers.kept_entries.servers.borrow().len() as u32;
        crate::servers::join::join_all((0..servers).map(tell)).await;
    }

    /// How often this client has moved directories so far. Some servers hear of such a change after it was answered.
    pub fn directory_moves(&self) -> u64 {
        self.servers.kept_entries.moves.get()
    }

    /// Whether every user may search a directory, or all processes of `user`, whatever their groups are; as far as was
    /// told in this generation.
    pub async fn is_searchable_by_all(&self, directory: FileId, user: Option<u32>) -> bool {
        let directory = self.servers.cache.borrow_mut().by_id(directory);
        let allows =
            |rights: Rights| rights.mode & 0o111 == 0o111 || user == Some(rights.uid) && rights.mode & 0o100 != 0;
        self.servers.known_rights(&directory).await.is_ok_and(allows)
    }
}
