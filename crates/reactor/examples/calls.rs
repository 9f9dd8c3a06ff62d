//! What one call costs: servers that answer `Ping` and clients that ask for it, each a process of its own.
//!
//!     cargo run --release -p reactor --example calls -- SERVERS CLIENTS SECONDS [io_uring|epoll]

use reactor::{Call, Channel, ChannelOptions, DriverKind, Incoming, Peer, Reactor, ServeOptions, Service, serve};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::rc::Rc;
use wire::credentials::Credentials;
use wire::handshake::Role;
use wire::messages::Empty;
use wire::{Cluster, Operation, Placement, ServerAddress, Status};

struct Answer;

impl Service for Answer {
    fn connected(&self, _: &Peer, _: u64) -> Result<bool, Status> {
        Ok(true)
    }

    fn disconnected(&self, _: &Peer) {}

    fn request(self: Rc<Self>, incoming: Incoming) {
        incoming.reply(&Empty {});
    }
}

fn cluster(addresses: &[String]) -> Rc<Cluster> {
    let servers = addresses
        .iter()
        .map(|address| ServerAddress { address: address.parse().expect("an address and a port") })
        .collect();
    Rc::new(Cluster::new(1, [1; 32], Placement::Modular, 1 << 20, servers))
}

fn run_server(kind: DriverKind) {
    let reactor = Reactor::open(kind).expect("the driver opens");
    let listener = reactor.listen("127.0.0.1:0".parse().expect("an address")).expect("a port is free");
    let address = listener.local_address().expect("the listener has an address").to_string();
    println!("{address}");
    let options = ServeOptions {
        cluster: cluster(&[address]),
        server: 0,
        connections_max: 100,
        incarnation: 1,
        shared: None,
        local_clients_only: false,
        registers_buffers: false,
        working_interval: 1_000_000_000,
        timeout: 10_000_000_000,
    };
    serve(&reactor, listener, options, Rc::new(Answer));
    reactor.block_on(std::future::pending::<()>());
}

fn run_client(seconds: u64, session: u64, addresses: &[String]) {
    let reactor = Reactor::open(DriverKind::Epoll).expect("the driver opens");
    let channels: Vec<Channel> = addresses
        .iter()
        .map(|address| {
            let options = ChannelOptions {
                cluster: cluster(std::slice::from_ref(address)),
                server: 0,
                role: Role::Client,
                from_server: 0,
                level: 0,
                session,
                user: Credentials::new(0, 0),
                label: wire::label::Label::default(),
                timeout: 10_000_000_000,
                relay: None,
            };
            Channel::new(&reactor, options)
        })
        .collect();
    let end = reactor.now() + seconds * 1_000_000_000;
    let mut count = 0usize;
    while reactor.now() < end {
        let channel = &channels[(count * 7 + session as usize) % channels.len()];
        reactor.block_on(channel.call(Call::new(Operation::Ping, &Empty {}))).expect("the server answers");
        count += 1;
    }
    println!("{}", count as u64 / seconds);
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let kind =
        if arguments.iter().any(|argument| argument == "epoll") { DriverKind::Epoll } else { DriverKind::IoUring };
    match arguments.first().map(String::as_str) {
        Some("server") => return run_server(kind),
        Some("client") => return run_client(number(&arguments, 1), number(&arguments, 2), &arguments[3..]),
        _ => {}
    }
    let program = std::env::current_exe().expect("this program has a path");
    let start = |list: &[String]| {
        Command::new(&program).args(list).stdout(Stdio::piped()).spawn().expect("this program starts again")
    };
    let line = |child: &mut std::process::Child| {
        let mut text = String::new();
        BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut text).expect("a line");
        text.trim().to_string()
    };
    let driver = if kind == DriverKind::Epoll { "epoll" } else { "io_uring" };
    let mut servers: Vec<_> =
        (0..number(&arguments, 0)).map(|_| start(&["server".to_string(), driver.to_string()])).collect();
    let addresses: Vec<String> = servers.iter_mut().map(line).collect();
    let mut clients: Vec<_> = (0..number(&arguments, 1))
        .map(|session| {
            let mut list = vec!["client".to_string(), number(&arguments, 2).to_string(), session.to_string()];
            list.extend(addresses.iter().cloned());
            start(&list)
        })
        .collect();
    let total: u64 = clients.iter_mut().map(|client| line(client).parse::<u64>().expect("a number")).sum();
    println!("{driver}: {total} calls per second");
    for child in clients.iter_mut().chain(&mut servers) {
        let _ = child.kill();
        let _ = child.wait();
    }
}

fn number(arguments: &[String], index: usize) -> u64 {
    arguments.get(index).and_then(|text| text.parse().ok()).expect("usage: SERVERS CLIENTS SECONDS [io_uring|epoll]")
}
