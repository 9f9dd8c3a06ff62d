//! A server whose clients must come through shared memory says so to those of other machines, at once.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use reactor::sim::World;
use reactor::{Call, Channel, ChannelOptions, Class, Incoming, Peer, ServeOptions, Service, serve};
use std::cell::Cell;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;
use wire::credentials::Credentials;
use wire::handshake::Role;
use wire::messages::Empty;
use wire::{Cluster, Operation, Placement, ServerAddress, Status};

const SECOND: u64 = 1_000_000_000;
const TIMEOUT: u64 = 30 * SECOND;

struct Answers;

impl Service for Answers {
    fn connected(&self, _: &Peer, _: u64) -> Result<bool, Status> {
        Ok(true)
    }

    fn disconnected(&self, _: &Peer) {}

    fn request(self: Rc<Self>, incoming: Incoming) {
        incoming.reply(&Empty {});
    }
}

/// Goal: a client of another machine is refused at once, with words that say what to change; another server is not
/// refused, and where the server takes all nobody is.
#[test]
fn clients_of_other_machines_are_refused() {
    for (only, role, wanted) in
        [(true, Role::Client, Err(Status::NotLocal)), (true, Role::Server, Ok(())), (false, Role::Client, Ok(()))]
    {
        let (world, level) = (World::new(1), u8::from(role == Role::Server));
        let ip = |number| IpAddr::from(Ipv4Addr::new(10, 0, 0, number));
        let (server, client) = (world.add_node("server", ip(1)), world.add_node("client", ip(2)));
        let address = |number| ServerAddress { address: SocketAddr::new(ip(number), 700) };
        let cluster = Rc::new(Cluster::new(77, [3; 32], Placement::Modular, 1 << 20, vec![address(1), address(2)]));
        let reactor = world.reactor(server);
        let options = ServeOptions {
            cluster: cluster.clone(),
            server: 0,
            connections_max: 8,
            incarnation: 1,
            shared: None,
            local_clients_only: only,
            registers_buffers: false,
            working_interval: TIMEOUT / 4,
            timeout: TIMEOUT,
        };
        let listener = reactor.listen(cluster.servers[0].address).unwrap();
        std::mem::forget(serve(&reactor, listener, options, Rc::new(Answers)));
        let reactor = world.reactor(client);
        let options = ChannelOptions {
            cluster,
            server: 0,
            role,
            from_server: 1,
            level,
            session: 5,
            user: Credentials::new(0, 0),
            label: wire::label::Label::default(),
            timeout: TIMEOUT,
            relay: None,
        };
        let channel = Channel::new(&reactor, options);
        let outcome = Rc::new(Cell::new(None));
        let told = outcome.clone();
        reactor.spawn(Class::Metadata, async move {
            let of_its_level = |operation: &&Operation| operation.level() == level && !operation.is_mutating();
            let operation = *Operation::ALL.iter().find(of_its_level).unwrap();
            let answer = channel.call(Call::new(operation, &Empty {})).await;
            told.set(Some(answer.map(|_| ()).map_err(|failure| failure.status)));
        });
        assert!(world.run_until(|| outcome.get().is_some(), SECOND), "{role:?} waits");
        assert_eq!(outcome.get(), Some(wanted), "{role:?}");
    }
}
