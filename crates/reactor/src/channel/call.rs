//! What goes into a call and what comes out of it.

use crate::{Nanos, Relay};
use std::io::{IoSlice, IoSliceMut};
use std::rc::Rc;
use wire::credentials::Credentials;
use wire::handshake::Role;
use wire::label::Label;
use wire::{Cluster, Encode, FileId, Operation, Status};

/// Whom a channel speaks to, and as whom.
#[derive(Clone)]
pub struct ChannelOptions {
    pub cluster: Rc<Cluster>,
    /// The server to call.
    pub server: u32,
    pub role: Role,
    /// The caller's own index, when it is a server.
    pub from_server: u32,
    /// Call level of all calls on this channel.
    pub level: u8,
    pub session: u64,
    pub user: Credentials,
    /// Whose job, of clients.
    pub label: Label,
    /// Silence after which a call fails.
    pub timeout: Nanos,
    /// The way to a server of another machine, while that way is open; else the server's address counts. One for full
    /// servers (`Relay::for_full_servers`) is used where the server itself has no connection left.
    pub relay: Option<Relay>,
}

/// One request.
pub struct Call<'a> {
    pub operation: Operation,
    pub params: Vec<u8>,
    /// Bytes at the front of the parameters that say on whose behalf the request is; 0: on that of the channel's user.
    pub user_size: u32,
    /// Bytes that travel with the request.
    pub body: &'a [IoSlice<'a>],
    /// Where the reply's body goes. Without one it is returned in `Reply::body`.
    pub place: Vec<IoSliceMut<'a>>,
    /// When the caller gives up whatever the server says; `None`: only silence counts.
    pub deadline: Option<Nanos>,
    /// It fails when its connection ends or can't be made, instead of being sent over the next one: for callers that
    /// can ask somebody else.
    pub once: bool,
}

impl<'a> Call<'a> {
    /// A request without body and place.
    pub fn new(operation: Operation, params: &impl Encode) -> Call<'a> {
        Call::encoded(operation, params.to_bytes())
    }

    /// The same with parameters that are encoded already.
    pub fn encoded(operation: Operation, params: Vec<u8>) -> Call<'a> {
        Call { operation, params, user_size: 0, body: &[], place: Vec::new(), deadline: None, once: false }
    }

    /// The same request on behalf of another user than the channel's.
    pub fn on_behalf_of(mut self, user: &Credentials) -> Call<'a> {
        let mut params = user.to_bytes();
        self.user_size = params.len() as u32;
        params.append(&mut self.params);
        Call { params, ..self }
    }
}

/// A successful reply.
#[derive(Debug, Default)]
pub struct Reply {
    pub params: Vec<u8>,
    /// Bytes of the body.
    pub body_size: usize,
    /// The body, where the call gave no place.
    pub body: Vec<u8>,
    pub tree_number: u64,
    /// How long the server says that it took.
    pub served: Nanos,
}

/// A call that did not succeed, in the server's words or our own.
#[derive(Debug, Clone, PartialEq)]
pub struct Failure {
    pub status: Status,
    /// The stale directory or file; else 0.
    pub id: FileId,
    /// The target of a symbolic link for `IsSymlink`; else words for people.
    pub text: Vec<u8>,
    pub server: u32,
    pub operation: Operation,
    /// How long the server says that it took; 0 where none answered.
    pub served: Nanos,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} on server {}: {}", self.operation.name(), self.server, self.status)?;
        if !self.text.is_empty() && self.status != Status::IsSymlink {
            write!(f, " ({})", String::from_utf8_lossy(&self.text))?;
        }
        Ok(())
    }
}

impl std::error::Error for Failure {}

/// Counters of one channel.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ChannelStatistics {
    pub calls: u64,
    pub resends: u64,
    pub connects: u64,
    pub bytes_sent: u64,
    pub bytes_received: u64,
    /// Times that frames were handed to the kernel, or to the memory shared with the server. Calls made together travel
    /// together.
    pub sends: u64,
}
