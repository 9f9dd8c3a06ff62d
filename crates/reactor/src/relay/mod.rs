//! Connections that go through another server: a client holds one connection, the *trunk*, to its contact, and the contact
//! holds one to each other server; the byte streams of all connections between that client and those servers travel in them.
//!
//! What a trunk carries are streams of bytes, as `Stream` has them, and not requests: the handshake, sequences, outcomes and
//! signs of life of a relayed connection are those of the client and the server that acts, and the contact neither reads nor
//! vouches for them. So rights, exactly-once and deadlines are what they are on a direct connection.
//!
//! Invariants
//! 1. Each direction of a stream has a window of its own on each trunk (`STREAM_WINDOW`); nobody sends without room there.
//!    A trunk is therefore read at all times, and a stream whose receiver is slow delays nobody else's.
//! 2. A contact returns room to the sender once the bytes have left it, so it holds one window a stream and direction at most.
//! 3. A stream ends with its trunk. Data that came before the end can still be taken.
//! 4. What a contact got on a server's trunk ends here: nothing is passed on twice.

mod passing;
mod stream;
mod trunk;

pub(crate) use passing::{Passed, pass_on};
pub(crate) use stream::End;
pub(crate) use trunk::{Trunk, TrunkOptions};

use crate::channel::ChannelOptions;
use crate::handshake::{HandshakeError, Introduction, introduce};
use crate::local::local_name;
use crate::service::within;
use crate::{Class, Nanos, Reactor, Stream};
use std::cell::RefCell;
use std::future::poll_fn;
use std::io::{self, ErrorKind};
use std::rc::Rc;
use std::task::{Poll, Waker};
use wire::handshake::Role;

/// Streams of one client's trunk for each server of the cluster: one in use, and some that are about to end.
pub(crate) const STREAMS_PER_SERVER: usize = 4;

/// Most streams of one client's trunk.
pub(crate) fn streams_of_client_max(cluster: &wire::Cluster) -> usize {
    cluster.servers.len() * STREAMS_PER_SERVER
}

/// Longest wait for a trunk.
const CONNECT_NS_MAX: Nanos = 2_000_000_000;

/// A way to other servers through one: connects when it is first needed, and again after the trunk broke. Clones share it;
/// with the last one the trunk ends.
#[derive(Clone)]
pub struct Relay(Rc<Inner>, #[allow(dead_code)] Rc<Owner>);

/// Held by relays alone, not by the tasks that serve them.
struct Owner(std::rc::Weak<Inner>);

impl Drop for Owner {
    fn drop(&mut self) {
        if let Some(inner) = self.0.upgrade() {
            inner.close();
        }
    }
}

struct Inner {
    reactor: Reactor,
    options: ChannelOptions,
    state: RefCell<State>,
}

#[derive(Default)]
struct State {
    trunk: Option<Rc<Trunk>>,
    connecting: bool,
    /// Attempts to connect that have failed.
    failures: u64,
    last_error: String,
    waiting: Vec<Waker>,
    closed: bool,
}

impl Relay {
    /// A way through `options.server`, with a role of trunks.
    pub fn new(reactor: &Reactor, options: ChannelOptions) -> Relay {
        assert!(options.role.is_trunk() && options.relay.is_none());
        let inner = Rc::new(Inner { reactor: reactor.clone(), options, state: RefCell::default() });
        let owner = Rc::new(Owner(Rc::downgrade(&inner)));
        Relay(inner, owner)
    }

    /// The server that it goes through.
    pub fn contact(&self) -> u32 {
        self.0.options.server
    }

    /// A stream to a server. Errors: the contact can't be reached, or has no stream left; that the server itself can't be
    /// shows as the end of the stream.
    pub async fn open(&self, server: u32) -> io::Result<Stream> {
        Ok(self.trunk().await?.open(server)?.into_stream())
    }

    /// The trunk, once there is one.
    pub(crate) async fn trunk(&self) -> io::Result<Rc<Trunk>> {
        let failures = self.0.state.borrow().failures;
        poll_fn(|cx| {
            let mut state = self.0.state.borrow_mut();
            if state.closed {
                return Poll::Ready(Err(ErrorKind::NotConnected.into()));
            }
            if let Some(trunk) = state.trunk.as_ref().filter(|trunk| !trunk.is_closed()) {
                return Poll::Ready(Ok(trunk.clone()));
            }
            if state.failures > failures {
                return Poll::Ready(Err(io::Error::new(ErrorKind::HostUnreachable, state.last_error.clone())));
            }
            if !std::mem::replace(&mut state.connecting, true) {
                self.0.reactor.spawn(Class::Metadata, connect(self.0.clone()));
            }
            state.waiting.push(cx.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// Ends the trunk and all that goes through it, for good.
    pub fn close(&self) {
        self.0.close();
    }
}

impl Inner {
    fn close(&self) {
        let mut state = self.state.borrow_mut();
        state.closed = true;
        let trunk = state.trunk.take();
        state.waiting.drain(..).for_each(Waker::wake);
        drop(state);
        if let Some(trunk) = trunk {
            trunk.close();
        }
    }

    async fn try_connect(&self) -> Result<Stream, HandshakeError> {
        let options = &self.options;
        if let Ok(stream) = self.reactor.connect_local(&local_name(&options.cluster, options.server)) {
            // Anybody may listen at that name: only the handshake shows who it is. If it fails, the address counts.
            let limit = self.reactor.now() + (CONNECT_NS_MAX / 2).min(options.timeout);
            let outcome = within(&self.reactor, limit, std::pin::pin!(self.shake_hands(&stream))).await;
            if let Some(Ok(())) = outcome {
                return Ok(stream);
            }
        }
        let stream = self.reactor.connect(options.cluster.servers[options.server as usize].address).await?;
        self.shake_hands(&stream).await?;
        Ok(stream)
    }

    /// Takes in how an attempt to connect ended, and lets those that wait look again.
    fn settle(&self, outcome: Option<Result<Stream, HandshakeError>>) -> Option<Rc<Trunk>> {
        let mut state = self.state.borrow_mut();
        state.connecting = false;
        let error = match outcome {
            Some(Ok(stream)) if !state.closed => {
                let options = TrunkOptions {
                    timeout: self.options.timeout,
                    stream_count_max: self.stream_count_max(),
                    accepts: false,
                    is_logged: self.options.role == Role::ServerTrunk,
                };
                state.trunk = Some(Trunk::new(&self.reactor, stream, options));
                None
            }
            Some(Ok(_)) => Some("the way was closed".to_owned()),
            Some(Err(HandshakeError::Refused(status, _))) => Some(status.to_string()),
            Some(Err(HandshakeError::Broken(error))) => Some(error.to_string()),
            None => Some("no answer to the handshake".to_owned()),
        };
        state.waiting.drain(..).for_each(Waker::wake);
        let Some(error) = error else { return state.trunk.clone() };
        state.failures += 1;
        state.last_error = error;
        None
    }

    async fn shake_hands(&self, stream: &Stream) -> Result<(), HandshakeError> {
        let options = &self.options;
        let introduction = Introduction {
            role: options.role,
            level: options.level,
            server: options.server,
            from_server: options.from_server,
            session: options.session,
            resume: false,
            user: options.user.clone(),
        };
        introduce(&self.reactor, stream, &options.cluster, &introduction).await.map(|_| ())
    }

    /// Most streams at a time. What a server passes on is bounded where it is taken in.
    fn stream_count_max(&self) -> usize {
        match self.options.role {
            Role::ClientTrunk => streams_of_client_max(&self.options.cluster),
            _ => usize::MAX,
        }
    }
}

/// One attempt to connect; then the trunk for as long as it holds.
async fn connect(inner: Rc<Inner>) {
    let limit = inner.reactor.now() + CONNECT_NS_MAX.min(inner.options.timeout);
    let outcome = within(&inner.reactor, limit, std::pin::pin!(inner.try_connect())).await;
    let trunk = inner.settle(outcome);
    drop(inner);
    if let Some(trunk) = trunk {
        trunk.run(&|_, _, _| unreachable!("a calling trunk accepts no streams")).await;
    }
}
