//! Tunnels at the serving side: streams in them that are for this server are connections like any other; those of
//! clients that are for another one are passed on.
//!
//! Invariants
//! 1. Of streams that end here, at most `connections_max` are taken, beside as many connections; each counts as a
//!    stranger until its handshake is done. At most `connections_max` streams are passed on at a time, so that what
//!    they hold is bounded (`ServerHandle::relay_memory_max`).
//! 2. Only a client's streams are passed on, so that no stream goes through two contacts.

use super::strangers::StrangerOrigin;
use super::{ConnectionOrigin, FenceKey, Serving, meet};
use crate::channel::ChannelOptions;
use crate::executor::until;
use crate::handshake::{Guest, HandshakeError};
use crate::relay::{End, Tunnel, TunnelOptions, pass_on, streams_of_client_max};
use crate::{Class, Nanos, Relay};
use std::rc::Rc;
use wire::Status;
use wire::credentials::Credentials;
use wire::handshake::Role;
use wire::label::Label;
use wire::operation::LEVEL_CLIENT;

/// Longest wait for the way to another server.
const CONNECT_NS_MAX: Nanos = 2_000_000_000;

/// A tunnel and who fences it off.
pub(super) struct OpenTunnel {
    tunnel: Rc<Tunnel>,
    role: Role,
    key: FenceKey,
}

/// Counters of what goes through this server, or comes through others.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RelayStatistics {
    /// Connections of clients and of servers that carry others, open now.
    pub tunnels_of_clients: usize,
    pub tunnels_of_servers: usize,
    /// Streams that are passed on to other servers now, and that ever were.
    pub streams: usize,
    pub streams_total: u64,
    /// What was passed on, in both directions.
    pub frames: u64,
    pub bytes: u64,
}

impl Serving {
    pub(super) async fn admit_tunnel(&self, guest: &Guest, key: FenceKey) -> Result<u64, HandshakeError> {
        let hello = &guest.hello;
        let older = self.fences.borrow().get(&key).copied();
        if let Some(older) = older {
            self.forget_tunnel(older);
        }
        let refused = if self.closed.get() {
            Some(Status::Draining)
        } else if self.is_full(hello.role) {
            Some(Status::TooManyConnections)
        } else if hello.role == Role::ServerTunnel && hello.from_server == self.options.server {
            Some(Status::NotPermitted)
        } else {
            None
        };
        if let Some(status) = refused {
            return Err(self.refuse(guest, status).await?);
        }
        let number = self.next_connection.replace(self.next_connection.get() + 1);
        let stream_count_max = match hello.role {
            Role::ClientTunnel => streams_of_client_max(&self.options.cluster),
            _ => self.options.connections_max,
        };
        let options = TunnelOptions {
            timeout: self.options.timeout,
            stream_count_max,
            accepts: true,
            is_logged: true,
            first_stream: 1,
        };
        let tunnel = Tunnel::new(&self.reactor, guest.stream.clone(), options);
        self.tunnels.borrow_mut().insert(number, OpenTunnel { tunnel, role: hello.role, key });
        self.fences.borrow_mut().insert(key, number);
        if let Err(error) = guest.welcome(&self.welcome(true)).await {
            self.forget_tunnel(number);
            return Err(error.into());
        }
        Ok(number)
    }

    /// Ends a tunnel and takes it off the books, once.
    fn forget_tunnel(&self, number: u64) {
        let Some(open) = self.tunnels.borrow_mut().remove(&number) else { return };
        if self.fences.borrow().get(&open.key) == Some(&number) {
            self.fences.borrow_mut().remove(&open.key);
        }
        open.tunnel.close();
        self.queue.borrow_mut().wake_first();
        let (received, sent) = open.tunnel.traffic();
        self.bytes_received.set(self.bytes_received.get() + received);
        self.bytes_sent.set(self.bytes_sent.get() + sent);
    }

    pub(super) fn close_tunnels(&self) {
        let numbers: Vec<u64> = self.tunnels.borrow().keys().copied().collect();
        numbers.into_iter().for_each(|number| self.forget_tunnel(number));
        let ways = std::mem::take(&mut *self.ways.borrow_mut());
        ways.values().for_each(Relay::close);
    }

    pub(super) fn relay_statistics(&self) -> RelayStatistics {
        let tunnels = self.tunnels.borrow();
        let of_role = |role| tunnels.values().filter(|open| open.role == role).count();
        RelayStatistics {
            tunnels_of_clients: of_role(Role::ClientTunnel),
            tunnels_of_servers: of_role(Role::ServerTunnel),
            streams: self.passing.get(),
            streams_total: self.passed_streams.get(),
            frames: self.passed.frames.get(),
            bytes: self.passed.bytes.get(),
        }
    }

    /// The way to another server, made when first needed.
    fn way_to(&self, server: u32) -> Relay {
        let make = || {
            let options = ChannelOptions {
                cluster: self.options.cluster.clone(),
                server,
                role: Role::ServerTunnel,
                from_server: self.options.server,
                level: LEVEL_CLIENT,
                session: self.options.incarnation,
                user: Credentials::new(0, 0),
                label: Label::default(),
                timeout: self.options.timeout,
                relay: None,
            };
            Relay::new(&self.reactor, options)
        };
        self.ways.borrow_mut().entry(server).or_insert_with(make).clone()
    }
}

/// Carries the streams of a tunnel that has been let in, until it ends.
pub(super) async fn carry(serving: &Rc<Serving>, number: u64) {
    let open = serving.tunnels.borrow().get(&number).map(|open| (open.tunnel.clone(), open.role));
    let Some((tunnel, role)) = open else { return };
    tunnel.run(&|tunnel, stream, server| take_stream(serving, (number, role), tunnel.end_of(stream), server)).await;
    serving.forget_tunnel(number);
}

/// A stream has begun.
fn take_stream(serving: &Rc<Serving>, (number, role): (u64, Role), end: End, server: u32) {
    let options = &serving.options;
    if server == options.server {
        return meet(serving, StrangerOrigin::Tunnel(number), end.into_stream(), ConnectionOrigin::Relay);
    }
    if role != Role::ClientTunnel || server >= options.cluster.server_count() {
        return end.finish(Status::WrongServer);
    }
    if serving.closed.get() || serving.passing.get() >= options.connections_max {
        return end.finish(Status::TooManyConnections);
    }
    serving.passing.set(serving.passing.get() + 1);
    serving.passed_streams.set(serving.passed_streams.get() + 1);
    let serving = serving.clone();
    serving.reactor.clone().spawn(Class::Metadata, async move {
        pass(&serving, end, server).await;
        serving.passing.set(serving.passing.get() - 1);
    });
}

async fn pass(serving: &Rc<Serving>, end: End, server: u32) {
    let way = serving.way_to(server);
    let limit = serving.reactor.now() + CONNECT_NS_MAX.min(serving.options.timeout);
    let other = until(&serving.reactor, limit, std::pin::pin!(way.tunnel())).await;
    match other.and_then(|tunnel| tunnel.ok()?.open(server).ok()) {
        Some(other) => pass_on(end, other, &serving.passed).await,
        None => end.finish(Status::Unreachable),
    }
}
