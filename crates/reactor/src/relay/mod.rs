//! Connections that go through another server: a client holds one connection, the *tunnel*, to its contact, and the
//! contact holds one to each other server; the byte streams of all connections between that client and those servers
//! travel in them.
//!
//! What a tunnel carries are streams of bytes, as `Stream` has them, and not requests: the handshake, sequences,
//! outcomes and signs of life of a relayed connection are those of the client and the server that acts, and the contact
//! neither reads nor vouches for them. So rights, exactly-once and deadlines are what they are on a direct connection.
//!
//! Invariants
//! 1. Each direction of a stream has a window of its own on each tunnel (`STREAM_WINDOW`); nobody sends without room
//!    there. A tunnel is therefore read at all times, and a stream whose receiver is slow delays nobody else's.
//! 2. A contact returns room to the sender once the bytes have left it, so it holds one window a stream and direction
//!    at most.
//! 3. A stream ends with its tunnel. Data that came before the end can still be taken.
//! 4. What a contact got on a server's tunnel ends here: nothing is passed on twice.

mod passing;
mod stream;
mod tunnel;

pub(crate) use passing::{Passed, pass_on};
pub(crate) use stream::End;
pub(crate) use tunnel::{Tunnel, TunnelOptions};

use crate::channel::ChannelOptions;
use crate::executor::until;
use crate::handshake::{HandshakeError, Introduction, introduce};
use crate::local::reach;
use crate::{Class, Nanos, Reactor, Stream};
use std::cell::{Cell, OnceCell, RefCell};
use std::future::poll_fn;
use std::io::{self, ErrorKind};
use std::rc::Rc;
use std::task::{Poll, Waker};
use wire::handshake::Role;

/// Streams of one client's tunnel for each server of the cluster: one in use, and some that are about to end.
pub(crate) const STREAMS_PER_SERVER: usize = 4;

/// Most streams of one client's tunnel.
pub(crate) fn streams_of_client_max(cluster: &wire::Cluster) -> usize {
    cluster.servers.len() * STREAMS_PER_SERVER
}

/// Longest wait for a tunnel, of which each contact that is tried gets its share.
const CONNECT_NS_MAX: Nanos = 2_000_000_000;
/// Contacts that are tried before whoever waits hears that there is no way.
const CONTACTS_PER_ATTEMPT: usize = 2;

/// A way to other servers through one: connects when it is first needed, and again after the tunnel broke. Clones share
/// it; with the last one the tunnel ends.
#[derive(Clone)]
pub struct Relay {
    inner: Rc<TunnelInner>,
    #[allow(dead_code)]
    owner: Rc<TunnelOwner>,
    for_full_servers: bool,
}

/// Held by relays alone, not by the tasks that serve them.
struct TunnelOwner(std::rc::Weak<TunnelInner>);

impl Drop for TunnelOwner {
    fn drop(&mut self) {
        if let Some(inner) = self.0.upgrade() {
            inner.close();
        }
    }
}

struct TunnelInner {
    reactor: Reactor,
    options: ChannelOptions,
    /// Servers that it may go through, in the order in which they are tried; found when first needed.
    contacts: OnceCell<Vec<u32>>,
    find_contacts: Box<dyn Fn() -> Vec<u32>>,
    state: RefCell<RelayState>,
    /// See `TunnelOptions`.
    first_stream: Cell<u64>,
}

#[derive(Default)]
struct RelayState {
    tunnel: Option<Rc<Tunnel>>,
    /// Which contact the tunnel leads to, or the next one to try.
    contact: usize,
    connecting: bool,
    /// Attempts to connect that have failed.
    failures: u64,
    last_error: String,
    waiting: Vec<Waker>,
    closed: bool,
}

impl Relay {
    /// A way through `options.server`, with a role of tunnels.
    pub fn new(reactor: &Reactor, options: ChannelOptions) -> Relay {
        let server = options.server;
        Relay::through(reactor, options, move || vec![server])
    }

    /// A way through one of several servers, in whose place the next one is tried when it can't be reached. `contacts`
    /// finds them when the way is first needed; `options.server` is not looked at.
    pub fn through(reactor: &Reactor, options: ChannelOptions, contacts: impl Fn() -> Vec<u32> + 'static) -> Relay {
        assert!(options.role.is_tunnel() && options.relay.is_none());
        let (contacts, find_contacts) = (OnceCell::new(), Box::new(contacts));
        let inner = TunnelInner {
            reactor: reactor.clone(),
            options,
            contacts,
            find_contacts,
            state: RefCell::default(),
            first_stream: Cell::new(1),
        };
        let inner = Rc::new(inner);
        let owner = Rc::new(TunnelOwner(Rc::downgrade(&inner)));
        Relay { inner, owner, for_full_servers: false }
    }

    /// The same way for a channel that takes it only where the server itself has no connection left.
    pub fn for_full_servers(&self) -> Relay {
        Relay { for_full_servers: true, ..self.clone() }
    }

    /// Has tunnels that it begins from now on count their streams from this number, for tests of the last ones.
    pub fn count_from(&self, first_stream: u64) {
        self.inner.first_stream.set(first_stream);
    }

    pub(crate) fn is_for_full_servers(&self) -> bool {
        self.for_full_servers
    }

    /// The server that it goes through now, or that it tries next.
    pub fn contact(&self) -> u32 {
        self.inner.contact()
    }

    /// A stream to a server. Errors: the contact can't be reached, or has no stream left; that the server itself can't
    /// be shows as the end of the stream.
    pub async fn open(&self, server: u32) -> io::Result<Stream> {
        Ok(self.tunnel().await?.open(server)?.into_stream())
    }

    /// The tunnel, once there is one.
    pub(crate) async fn tunnel(&self) -> io::Result<Rc<Tunnel>> {
        let failures = self.inner.state.borrow().failures;
        poll_fn(|cx| {
            let mut state = self.inner.state.borrow_mut();
            if state.closed {
                return Poll::Ready(Err(ErrorKind::NotConnected.into()));
            }
            if let Some(tunnel) = state.tunnel.take_if(|tunnel| tunnel.is_used_up()) {
                tunnel.close();
            }
            if let Some(tunnel) = state.tunnel.as_ref().filter(|tunnel| !tunnel.is_closed()) {
                return Poll::Ready(Ok(tunnel.clone()));
            }
            if state.failures > failures {
                return Poll::Ready(Err(io::Error::new(ErrorKind::HostUnreachable, state.last_error.clone())));
            }
            if !std::mem::replace(&mut state.connecting, true) {
                self.inner.reactor.spawn(Class::Metadata, connect(self.inner.clone()));
            }
            state.waiting.push(cx.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// Ends the tunnel and all that goes through it, for good.
    pub fn close(&self) {
        self.inner.close();
    }
}

impl TunnelInner {
    fn close(&self) {
        let mut state = self.state.borrow_mut();
        state.closed = true;
        let tunnel = state.tunnel.take();
        state.waiting.drain(..).for_each(Waker::wake);
        drop(state);
        if let Some(tunnel) = tunnel {
            tunnel.close();
        }
    }

    async fn try_connect(&self, contact: u32) -> Result<Stream, HandshakeError> {
        let options = &self.options;
        if let Some(Ok(stream)) = reach(&self.reactor, &options.cluster, contact) {
            // Only the handshake shows who it is. If it fails, the address counts.
            let limit = self.reactor.now() + self.patience() / 2;
            let outcome = until(&self.reactor, limit, std::pin::pin!(self.shake_hands(&stream, contact))).await;
            if let Some(Ok(stream)) = outcome {
                return Ok(stream);
            }
        }
        let stream = self.reactor.connect(options.cluster.servers[contact as usize].address).await?;
        self.shake_hands(&stream, contact).await
    }

    /// Takes in how an attempt to connect ended, and lets those that wait look again.
    fn settle(&self, outcome: Option<Result<Stream, HandshakeError>>) -> Option<Rc<Tunnel>> {
        let mut state = self.state.borrow_mut();
        state.connecting = false;
        let error = match outcome {
            Some(Ok(stream)) if !state.closed => {
                let options = TunnelOptions {
                    timeout: self.options.timeout,
                    stream_count_max: self.stream_count_max(),
                    accepts: false,
                    is_logged: self.options.role == Role::ServerTunnel,
                    first_stream: self.first_stream.get(),
                };
                state.tunnel = Some(Tunnel::new(&self.reactor, stream, options));
                None
            }
            Some(Ok(_)) => Some("the way was closed".to_owned()),
            Some(Err(HandshakeError::Refused(status, _))) => Some(status.to_string()),
            Some(Err(HandshakeError::Broken(error))) => Some(error.to_string()),
            None => Some("no answer to the handshake".to_owned()),
        };
        state.waiting.drain(..).for_each(Waker::wake);
        let Some(error) = error else { return state.tunnel.clone() };
        state.failures += 1;
        state.last_error = error;
        None
    }

    async fn shake_hands(&self, stream: &Stream, contact: u32) -> Result<Stream, HandshakeError> {
        let options = &self.options;
        let introduction = Introduction {
            role: options.role,
            level: options.level,
            server: contact,
            from_server: options.from_server,
            session: options.session,
            welcomes: 0,
            user: options.user.clone(),
            label: options.label.clone(),
        };
        let introduced = introduce(&self.reactor, stream, &options.cluster, &introduction, |_, _| false).await;
        introduced.map(|(stream, _)| {
            stream.prepare();
            stream
        })
    }

    fn contacts(&self) -> &[u32] {
        self.contacts.get_or_init(&self.find_contacts)
    }

    fn contact(&self) -> u32 {
        self.contacts()[self.state.borrow().contact]
    }

    /// Time that one contact has to answer.
    fn patience(&self) -> Nanos {
        CONNECT_NS_MAX.min(self.options.timeout) / self.contacts().len().min(CONTACTS_PER_ATTEMPT) as Nanos
    }

    /// Most streams at a time. What a server passes on is bounded where it is taken in.
    fn stream_count_max(&self) -> usize {
        match self.options.role {
            Role::ClientTunnel => streams_of_client_max(&self.options.cluster),
            _ => usize::MAX,
        }
    }
}

/// One attempt to connect; then the tunnel for as long as it holds.
async fn connect(inner: Rc<TunnelInner>) {
    let mut outcome = None;
    for _ in 0..inner.contacts().len().min(CONTACTS_PER_ATTEMPT) {
        let contact = inner.contact();
        let limit = inner.reactor.now() + inner.patience();
        outcome = until(&inner.reactor, limit, std::pin::pin!(inner.try_connect(contact))).await;
        let mut state = inner.state.borrow_mut();
        if matches!(outcome, Some(Ok(_))) || state.closed {
            break;
        }
        // Whoever can't be reached is the last one to be tried again.
        state.contact = (state.contact + 1) % inner.contacts().len();
    }
    let tunnel = inner.settle(outcome);
    drop(inner);
    if let Some(tunnel) = tunnel {
        tunnel.run(&|_, _, _| unreachable!("a calling tunnel accepts no streams")).await;
    }
}
