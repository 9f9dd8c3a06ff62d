//! Whether this client has connections of its own to the servers of other machines, or one to its contact, which passes
//! them on (`reactor::Relay`).
//!
//! A relayed request takes a second hop and a share of the contact's core, so it pays only where connections themselves
//! are what is short: C clients hold C times N of them, and each server C. So a client has connections of its own to
//! the first `SERVERS_FAR_MAX` servers of other machines that it asks, and reaches any more of them through its
//! contact: who talks to a few servers of a large cluster is as near to them as in a small one. Servers of the same
//! machine are never asked through another one, for memory that is shared with them is nearer than any contact;
//! `reactor::Channel` tries that first. A server that has no connection left for us is reached through the contact as
//! well.

use crate::open_files::contact::Contact;
use crate::servers::Common;
use reactor::{ChannelOptions, Relay};
use std::cell::{Cell, OnceCell};
use wire::handshake::Role;
use wire::operation::LEVEL_CLIENT;

/// Servers of other machines that a client has connections of its own to, at most, under `auto`: as many as a server
/// takes by default. With 64, a search by one process for each of 256 servers took 1.8 times as long in the simulator's
/// model.
const SERVERS_FAR_MAX: usize = 256;

/// Whether connections go through a contact.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Relaying {
    /// To servers of other machines beyond the first many, and to any that have no connection left, unless contacts are
    /// off.
    #[default]
    Auto,
    /// To every server that shared memory does not reach: for tests and measurements.
    Always,
    Off,
}

impl Relaying {
    /// The choice of a word.
    pub fn from_word(word: &str) -> Option<Relaying> {
        match word {
            "auto" => Some(Relaying::Auto),
            "always" => Some(Relaying::Always),
            "off" => Some(Relaying::Off),
            _ => None,
        }
    }
}

/// The client's way through its contact, if it has one.
#[derive(Default)]
pub(crate) struct Relays {
    relay: OnceCell<Relay>,
    /// Servers of other machines with connections of our own.
    direct: Cell<usize>,
}

impl Common {
    /// The way to a server that is asked for the first time, if not its own address.
    pub(crate) fn relay(&self, server: u32) -> Option<Relay> {
        let relay = || self.relays.relay.get_or_init(|| self.new_relay());
        match (self.options.relaying, self.options.contact) {
            _ if self.is_relayed(server) => Some(relay().clone()),
            (Relaying::Auto, contact) if contact != Contact::Off && self.server_count() > 1 => {
                Some(relay().for_full_servers())
            }
            _ => None,
        }
    }

    fn is_relayed(&self, server: u32) -> bool {
        match (self.options.relaying, self.options.contact) {
            (Relaying::Always, _) => true,
            (Relaying::Off, _) | (Relaying::Auto, Contact::Off) => false,
            // Where all servers are of this machine, as where few are of others, nothing is short.
            (Relaying::Auto, _) if self.cluster.servers.len() <= SERVERS_FAR_MAX || self.is_here(server) => false,
            (Relaying::Auto, _) => {
                let direct = self.relays.direct.get();
                self.relays.direct.set((direct + 1).min(SERVERS_FAR_MAX));
                direct == SERVERS_FAR_MAX
            }
        }
    }

    fn new_relay(&self) -> Relay {
        // Those of this machine if there are any, so that the hop to it is short.
        let (own, servers, session) = (self.own.clone(), u64::from(self.server_count()), self.session());
        let contacts = move || {
            let beside = own.upgrade().map(|common| common.contacts_beside().collect::<Vec<_>>());
            let drawn = || (0..servers.min(2)).map(|turn| ((session % servers + turn) % servers) as u32).collect();
            beside.filter(|beside| !beside.is_empty()).unwrap_or_else(drawn)
        };
        let options = ChannelOptions {
            cluster: self.cluster.clone(),
            server: 0,
            role: Role::ClientTunnel,
            from_server: 0,
            level: LEVEL_CLIENT,
            session: self.session(),
            user: self.options.user.clone(),
            label: self.options.label.clone(),
            timeout: self.silence(),
            relay: None,
        };
        Relay::through(&self.reactor, options, contacts)
    }
}
