//! Ways to the other servers: one channel for each server and call level, made when it is first needed.

use crate::core::Failure;
use crate::handlers::operations::row;
use crate::journal::durability::Syncs;
use crate::process::options::ServerOptions;
use reactor::channel::Turnabout;
use reactor::{Call, Channel, ChannelOptions, ChannelStatistics, Nanos, Reactor};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::IoSlice;
use std::rc::Rc;
use wire::credentials::Credentials;
use wire::handshake::Role;
use wire::label::Label;
use wire::operation::{LEVEL_CLIENT, LEVEL_COORDINATION};
use wire::{Decode, Encode, Operation};

/// Is told of a server and the turnabout of the connection to it.
type Observer = Rc<dyn Fn(u32, Turnabout)>;

/// See the module.
pub struct Peers {
    reactor: Reactor,
    options: ServerOptions,
    session: u64,
    syncs: Rc<Syncs>,
    channels: RefCell<BTreeMap<(u32, u8), Channel>>,
    /// Told of turnabouts of the connections over which files are held at other servers.
    observer: RefCell<Option<Observer>>,
}

impl Peers {
    pub fn new(reactor: &Reactor, options: &ServerOptions, syncs: &Rc<Syncs>) -> Peers {
        Peers {
            reactor: reactor.clone(),
            options: options.clone(),
            session: reactor.random(),
            syncs: syncs.clone(),
            channels: RefCell::default(),
            observer: RefCell::default(),
        }
    }

    /// Has turnabouts told, by server, of connections that are made from now on.
    pub fn observe(&self, observer: Observer) {
        self.observer.replace(Some(observer));
    }

    fn channel(&self, server: u32, level: u8) -> Channel {
        assert!(server != self.options.index, "a server does not call itself");
        assert!(level > LEVEL_CLIENT, "servers call each other at levels of their own");
        let make = || {
            let options = ChannelOptions {
                cluster: self.options.cluster.clone(),
                server,
                role: Role::Server,
                from_server: self.options.index,
                level,
                session: self.session,
                user: Credentials::new(0, 0),
                label: Label::default(),
                timeout: self.options.timeout,
                relay: None,
            };
            let channel = Channel::new(&self.reactor, options);
            let observer = self.observer.borrow().clone();
            if let Some(observer) = observer.filter(|_| level == LEVEL_COORDINATION) {
                channel.observe(Rc::new(move |turnabout| observer(server, turnabout)));
            }
            channel
        };
        self.channels.borrow_mut().entry((server, level)).or_insert_with(make).clone()
    }

    /// Calls another server and decodes its reply, once what makes us call is durable. Errors name that server.
    pub async fn call<R: for<'a> Decode<'a>>(
        &self,
        server: u32,
        operation: Operation,
        params: &impl Encode,
        deadline: Option<Nanos>,
    ) -> Result<R, Failure> {
        if row(operation).is_consequence {
            self.syncs.durable().await?;
        }
        let mut call = Call::new(operation, params);
        call.deadline = deadline;
        let reply = self.channel(server, operation.level()).call(call).await?;
        decoded(server, operation, &reply.params)
    }

    /// As `call`, with bytes that travel along, and until the other server is silent.
    pub async fn call_with_body<R: for<'a> Decode<'a>>(
        &self,
        server: u32,
        operation: Operation,
        params: &impl Encode,
        body: &[IoSlice<'_>],
    ) -> Result<R, Failure> {
        self.syncs.durable().await?;
        let call = Call { body, ..Call::new(operation, params) };
        let reply = self.channel(server, operation.level()).call(call).await?;
        decoded(server, operation, &reply.params)
    }

    /// As `call`, for a question whose reply has a body, and until the other server is silent: it may have to make room
    /// before it can fetch what is behind.
    pub async fn fetch<R: for<'a> Decode<'a>>(
        &self,
        server: u32,
        operation: Operation,
        params: &impl Encode,
    ) -> Result<(R, Vec<u8>), Failure> {
        let reply = self.channel(server, operation.level()).call(Call::new(operation, params)).await?;
        Ok((decoded(server, operation, &reply.params)?, reply.body))
    }

    /// Ends all channels; calls under way fail.
    pub fn close(&self) {
        let channels: Vec<Channel> = self.channels.borrow().values().cloned().collect();
        channels.iter().for_each(Channel::close);
    }

    /// Counters by server and level.
    pub fn statistics(&self) -> Vec<(u32, u8, ChannelStatistics)> {
        self.channels
            .borrow()
            .iter()
            .map(|((server, level), channel)| (*server, *level, channel.statistics()))
            .collect()
    }
}

fn decoded<R: for<'a> Decode<'a>>(server: u32, operation: Operation, params: &[u8]) -> Result<R, Failure> {
    R::from_bytes(params).map_err(|error| {
        let text = format!("{} on server {server}: {error}", operation.name());
        Failure::with_text(wire::Status::Io, text)
    })
}
