//! The choice of a contact: a server that this client asks first for what another server is the home of.
//!
//! Under `auto` that is a server on the client's own machine, the same one for the client's life, drawn by its session
//! so that the clients of a machine share its servers evenly. A home on the same machine is asked itself, for it is as
//! near. Whether asking pays is learnt: a file that only one process of the machine opens is never known to the
//! contact, and each question in vain makes the client leave out more of them. A contact that can't be reached is left
//! out for a while: the next server that may be one is asked instead, and the home where there is none.

use crate::error::RequestError;
use crate::servers::{Common, Servers};
use reactor::channel::{Call, Reply};
use reactor::{Nanos, Reactor};
use std::cell::{Cell, OnceCell, RefCell};
use std::net::SocketAddr;
use wire::messages::{OpenReply, OpenRequest, OpenThroughReply};
use wire::{Attributes, Cluster, Decode, Kind, Operation, Status};

/// Questions in vain after which some are left out.
const PATIENCE: u32 = 4;
/// Opens that are left out in a row, at most.
const SKIP_COUNT_MAX: u32 = 31;

/// Contacts that are silent for this long together are left out: the home is asked.
const SILENCE_MAX: Nanos = 2_000_000_000;
/// A contact that could not be reached is not asked for this long.
const DOWN_NS: Nanos = 30_000_000_000;

/// Whether clients have a contact.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Contact {
    /// A server of the same machine, for homes on other machines, where it pays.
    #[default]
    Auto,
    /// Any server but the home, evenly drawn, for every open: for tests and measurements.
    Always,
    Off,
}

impl Contact {
    /// The choice of a word.
    pub fn from_word(word: &str) -> Option<Contact> {
        match word {
            "auto" => Some(Contact::Auto),
            "always" => Some(Contact::Always),
            "off" => Some(Contact::Off),
            _ => None,
        }
    }

    /// The word of the choice.
    pub fn word(self) -> &'static str {
        match self {
            Contact::Auto => "auto",
            Contact::Always => "always",
            Contact::Off => "off",
        }
    }
}

/// What a client knows of its contact.
#[derive(Default)]
pub(crate) struct Contacts {
    /// Servers of this machine, if there are others as well.
    beside: OnceCell<Vec<u32>>,
    /// Questions in vain since the last one that was not.
    vain: Cell<u32>,
    /// Opens that are still left out.
    skip: Cell<u32>,
    /// Contacts that could not be reached, each with the time until which it is left out.
    down: RefCell<Vec<(u32, Nanos)>>,
}

/// What became of a question to a contact.
enum ContactReply {
    Opened(Attributes),
    /// It does not know the name.
    Unknown,
    /// It can't be asked.
    Unreachable,
}

/// Servers whose addresses are this machine's; nothing when all are or none is.
fn servers_beside(reactor: &Reactor, cluster: &Cluster) -> Vec<u32> {
    let beside = servers_here(reactor, cluster);
    if beside.len() == cluster.servers.len() { Vec::new() } else { beside }
}

/// All servers whose addresses are this machine's.
fn servers_here(reactor: &Reactor, cluster: &Cluster) -> Vec<u32> {
    let own = reactor.own_addresses();
    let is_own = |address: &SocketAddr| address.ip().is_loopback() || own.contains(&address.ip());
    let servers = cluster.servers.iter().enumerate().filter(|(_, server)| is_own(&server.address));
    servers.map(|(index, _)| index as u32).collect()
}

impl Common {
    fn beside(&self) -> &[u32] {
        self.contacts.beside.get_or_init(|| servers_beside(&self.reactor, &self.cluster))
    }

    /// Whether a server is of this machine.
    pub(crate) fn is_here(&self, server: u32) -> bool {
        servers_here(&self.reactor, &self.cluster).contains(&server)
    }

    /// The servers of this machine that may stand for us at servers of other machines, where there are both: the one to
    /// ask, and the others for when it can't be reached.
    pub(crate) fn contacts_beside(&self) -> impl Iterator<Item = u32> {
        let beside = self.beside();
        let drawn = (self.session() % beside.len().max(1) as u64) as usize;
        beside[drawn..].iter().chain(&beside[..drawn]).copied()
    }

    /// Whom to ask for what may be known there of a name whose home is `home`; nothing when the home is to be asked.
    fn contact_for(&self, home: u32) -> Option<u32> {
        match self.options.contact {
            Contact::Off => None,
            Contact::Always => self.others_than(home).find(|contact| !self.is_down(*contact)),
            Contact::Auto if self.beside().is_empty() || self.beside().contains(&home) => None,
            Contact::Auto => self.contacts_beside().find(|contact| !self.is_down(*contact)),
        }
    }

    /// All other servers, from one on that is the same for all names of a home.
    fn others_than(&self, home: u32) -> impl Iterator<Item = u32> {
        let others = self.server_count() - 1;
        let drawn = (self.session() % u64::from(others.max(1))) as u32;
        let turns = (drawn..others).chain(0..drawn.min(others));
        turns.map(move |place| if place < home { place } else { place + 1 })
    }

    fn is_down(&self, contact: u32) -> bool {
        let mut down = self.contacts.down.borrow_mut();
        if down.is_empty() {
            return false;
        }
        let now = self.reactor.now();
        down.retain(|(_, until)| *until > now);
        down.iter().any(|(known, _)| *known == contact)
    }

    fn note_down(&self, contact: u32) {
        let until = self.reactor.now() + DOWN_NS;
        self.contacts.down.borrow_mut().push((contact, until));
    }

    fn pays(&self) -> bool {
        let skip = self.contacts.skip.get();
        self.contacts.skip.set(skip.saturating_sub(1));
        skip == 0
    }

    /// Takes in whether a contact knew what it was asked for.
    fn note_contact(&self, knew: bool) {
        let vain = if knew { 0 } else { self.contacts.vain.get().saturating_add(1) };
        self.contacts.vain.set(vain);
        self.contacts.skip.set(vain.saturating_sub(PATIENCE).min(SKIP_COUNT_MAX));
    }
}

impl Servers {
    /// Opens a name through a contact. Nothing where the home is to be asked: the contact does not know the name, none
    /// can be asked, or it does not pay. Errors are those that the home would give.
    pub(crate) async fn open_near(
        &self,
        home: u32,
        request: &OpenRequest<'_>,
    ) -> Result<Option<Attributes>, RequestError> {
        let Some(mut contact) = self.contact_for(home) else { return Ok(None) };
        if self.options.contact == Contact::Auto && !self.pays() {
            return Ok(None);
        }
        let give_up = self.reactor.now().saturating_add(SILENCE_MAX.min(self.silence()));
        loop {
            match self.open_through(contact, home, request, give_up).await? {
                ContactReply::Opened(attributes) => return Ok(Some(attributes)),
                ContactReply::Unknown => return Ok(None),
                ContactReply::Unreachable => self.note_down(contact),
            }
            match self.contact_for(home) {
                Some(other) if self.reactor.now() < give_up => contact = other,
                _ => return Ok(None),
            }
        }
    }

    async fn open_through(
        &self,
        contact: u32,
        home: u32,
        request: &OpenRequest<'_>,
        give_up: Nanos,
    ) -> Result<ContactReply, RequestError> {
        let mut call = Call::new(Operation::OpenThrough, request);
        (call.deadline, call.once) = (Some(give_up), true);
        let reply: Reply = match self.send(contact, call).await {
            Ok(reply) => reply,
            Err(request_error) => match request_error.status() {
                Status::AccessDenied | Status::StaleDirectory => return Err(request_error),
                Status::Unreachable | Status::TimedOut | Status::TooManyConnections | Status::Draining => {
                    return Ok(ContactReply::Unreachable);
                }
                _ => {
                    self.note_contact(false);
                    return Ok(ContactReply::Unknown);
                }
            },
        };
        let malformed = |malformed| RequestError::malformed(Operation::OpenThrough, contact, malformed);
        let held = OpenThroughReply::from_bytes(&reply.params).map_err(malformed)?.held;
        self.note_contact(held.is_some());
        let Some(OpenReply { attributes, open_number, .. }) = held else { return Ok(ContactReply::Unknown) };
        attributes.layout.check(self.cluster.slot_count).map_err(malformed)?;
        if attributes.kind != Kind::File || self.home_of(attributes.id)? != home || open_number == 0 {
            let words = format!("server {contact} answered an open with what is no file of server {home}");
            return Err(RequestError::Local(Status::BadMessage, words));
        }
        self.note_open_through(attributes.id, contact, open_number);
        Ok(ContactReply::Opened(attributes))
    }
}
