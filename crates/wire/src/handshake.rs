//! The first four messages of a connection: both sides prove that they hold the cluster's key before anything else is
//! read, the server before the client has said who it is. Each message has a fixed size in front (16 bits) so that
//! nothing is allocated for a stranger.
//!
//! client -> server  `Greeting`              whom I want, my nonce
//! server -> client  `Challenge`             my nonce, MAC over all that was said, and the way between us
//! client -> server  `Proven` of a `Hello`   who I am, MAC over the same and that
//! server -> client  `Proven` of a `Welcome` windows, or the one error before the connection is closed; MAC over the
//! same and that

use crate::codec::{Decode, Decoder, Encode, Malformed};
use crate::credentials::{Credentials, GROUP_COUNT_MAX};
use crate::label::{LABEL_SIZE_MAX, Label};
use crate::message;

pub const NONCE_SIZE: usize = 32;
pub const MAC_SIZE: usize = 32;
pub const VOUCHER_SIZE: usize = 16;
/// Largest handshake message, in bytes; one with a `Hello` is larger, for the groups in it.
pub const HANDSHAKE_SIZE_MAX: usize = 256;
/// Largest message with a `Hello`, in bytes.
pub const HELLO_SIZE_MAX: usize = 256 + GROUP_COUNT_MAX * size_of::<u32>() + LABEL_SIZE_MAX + 5 * size_of::<u32>();
pub const GREETING_MAGIC: u64 = u64::from_le_bytes(*b"TABANEhi");

/// Who connects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Role {
    Client = 1,
    Server = 2,
    /// A client whose requests wait while other clients are at work.
    LowPriority = 3,
    /// A client whose connection carries those of its session to this server and, passed on, to others.
    ClientTunnel = 4,
    /// A server whose connection carries those of sessions that it passes on.
    ServerTunnel = 5,
}

impl Role {
    /// Whether it is a client of either kind.
    pub fn is_client(self) -> bool {
        matches!(self, Role::Client | Role::LowPriority)
    }

    /// Whether the connection carries others.
    pub fn is_tunnel(self) -> bool {
        matches!(self, Role::ClientTunnel | Role::ServerTunnel)
    }
}

impl Encode for Role {
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(*self as u8);
    }
}

impl<'a> Decode<'a> for Role {
    fn decode(input: &mut Decoder<'a>) -> Result<Self, Malformed> {
        match u8::decode(input)? {
            1 => Ok(Role::Client),
            2 => Ok(Role::Server),
            3 => Ok(Role::LowPriority),
            4 => Ok(Role::ClientTunnel),
            5 => Ok(Role::ServerTunnel),
            _ => Err(Malformed("role is unknown")),
        }
    }
}

message! {
    /// Magic and version stand first in every version, so that others are told which side to upgrade.
    pub struct Greeting {
        pub magic: u64,
        pub protocol_version: u32,
        pub cluster: u128,
        /// The server that is wanted.
        pub server: u32,
        /// How the client's cluster file says that connections are protected (`Protection`).
        pub protection: u8,
        pub nonce: [u8; NONCE_SIZE],
        /// First bytes of a MAC over all of the above, which only a holder of the key can make. It proves nothing of
        /// the peer, for it may be a repeated one, and admits to nothing: where connections are many, these are the
        /// last to be sent away.
        pub voucher: [u8; VOUCHER_SIZE],
    }
}

message! {
    pub struct Hello {
        pub role: Role,
        /// Call level of all requests on this connection.
        pub level: u8,
        /// Of a server that connects: its own index.
        pub from_server: u32,
        /// The session, chosen at random by the client; the same at all servers.
        pub session: u64,
        /// Welcomes of this server that the session has received so far. From the first one on it is to be known there,
        /// and not only because of a welcome that got lost.
        pub welcomes: u64,
        /// On whose behalf; of servers, root.
        pub user: Credentials,
        /// Of clients: whose job, for those who look at what the servers did.
        pub label: Label,
    }
}

message! {
    pub struct Challenge {
        pub protocol_version: u32,
        /// A `Status` code; other than `Ok`, the connection ends here.
        pub status: u32,
        pub nonce: [u8; NONCE_SIZE],
        pub mac: [u8; MAC_SIZE],
    }
}

message! {
    /// A message of somebody who knows what the connection's MACs are made with.
    pub struct Proven<'a> {
        pub mac: [u8; MAC_SIZE],
        pub message: &'a [u8],
    }
}

message! {
    pub struct Welcome {
        pub status: u32,
        pub request_window: u32,
        pub bytes_window: u64,
        /// Whether the server knew the session. A reconnecting client whose session is unknown can't learn the outcome
        /// of its unanswered requests.
        pub session_known: bool,
        /// Changes with every start of the server.
        pub incarnation: u64,
        /// Milliseconds within which the server shows a sign of life for each request it holds.
        pub working_interval_ms: u32,
        /// Other than 0: the server has no connection left, and so many of those who wait for one get theirs before,
        /// this one included. Another `Welcome` follows when that has changed.
        pub places_before: u32,
        /// Those who had waited and have got a connection, since the server's start: who finds even the queue full sees
        /// whether it moves.
        pub turns: u64,
    }
}
