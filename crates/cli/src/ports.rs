//! The ports of servers that are about to start.

use crate::failure::{Failure, Outcome, io_words};
use reactor::Reactor;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;

/// Ports that are picked from; those that the system gives to outgoing connections are left out.
const PICKED: Range<u16> = 10_000..61_000;
/// Ports tried for each that is wanted.
const TRIES: usize = 1000;

/// Ports of servers to come, held until this is dropped: who picks free ones meanwhile finds them taken, while a server
/// can listen on them. Two who were given the same port find that out only when their servers listen.
///
/// A socket that is bound and does not listen holds each. It says only once it is bound that its port may be shared:
/// another one that wants the port for itself is refused, and a server, which shares too, is not.
pub struct Ports {
    numbers: Vec<u16>,
    held: Vec<Socket>,
}

impl Ports {
    /// As many ports of `host` as `count` says: from `first` on, or free ones where that is 0.
    ///
    /// Errors: a usage error where there are not so many ports; a failure for one in use, or where none is free.
    pub fn choose(reactor: &Reactor, host: IpAddr, first: u16, count: u32) -> Outcome<Ports> {
        let mut ports = Ports { numbers: Vec::new(), held: Vec::new() };
        if first != 0 {
            ports.numbers = ports.hold_given("--port", host, u64::from(first), count)?;
            return Ok(ports);
        }
        let count = count as usize;
        // A client that connects again and again to a port that nobody listens on may meet itself if the port is one
        // of those that the system gives to outgoing connections; and such a port may be taken while its server is
        // away.
        let outgoing = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
        let mut limits = outgoing.split_ascii_whitespace().filter_map(|word| word.parse::<u16>().ok());
        let outgoing = limits.next().unwrap_or(32_768)..=limits.next().unwrap_or(60_999);
        let picked =
            (0..TRIES * count).map(|_| PICKED.start + (reactor.random() % u64::from(PICKED.end - PICKED.start)) as u16);
        for port in picked.filter(|port| !outgoing.contains(port)) {
            if ports.numbers.len() == count {
                break;
            }
            if let Ok(socket) = hold(host, port, false) {
                ports.held.push(socket);
                ports.numbers.push(port);
            }
        }
        while ports.numbers.len() < count {
            let picked = hold(host, 0, false).and_then(|socket| Ok((port_of(&socket)?, socket)));
            let (port, socket) =
                picked.map_err(|error| Failure::failed(format!("no port is free on {host}: {}", io_words(&error))))?;
            ports.held.push(socket);
            ports.numbers.push(port);
        }
        Ok(ports)
    }

    /// The ports of the servers, in their order.
    pub fn numbers(&self) -> &[u16] {
        &self.numbers
    }

    /// Holds the `count` ports from `first` on, which `option` has named, and returns them.
    ///
    /// Errors: a usage error where there are not so many; a failure for one in use.
    pub fn hold_given(&mut self, option: &str, host: IpAddr, first: u64, count: u32) -> Outcome<Vec<u16>> {
        let last = first + u64::from(count) - 1;
        let Ok(last) = u16::try_from(last) else {
            return Err(Failure::usage(format!(
                "{option} {first}: ports {first} to {last} are wanted, but 65535 is the last one"
            )));
        };
        let numbers: Vec<u16> = (first as u16..=last).collect();
        if let Some(port) = numbers.iter().find(|port| self.numbers.contains(port)) {
            return Err(Failure::failed(format!(
                "port {port} on {host} is one that a server listens on already; choose another {option}"
            )));
        }
        for port in &numbers {
            // Connections of an earlier cluster may linger there.
            let socket = hold(host, *port, true).map_err(|error| {
                let advice = format!("choose another {option}, or leave it away");
                let words = match error.kind() {
                    io::ErrorKind::AddrInUse => "is in use".to_owned(),
                    _ => io_words(&error),
                };
                Failure::failed(format!("port {port} on {host} {words}; {advice}"))
            })?;
            self.held.push(socket);
        }
        Ok(numbers)
    }
}

/// Holds a port, or any where it is 0; `lingers` takes one on which connections of the past have not faded yet.
fn hold(host: IpAddr, port: u16, lingers: bool) -> io::Result<Socket> {
    let address = SocketAddr::new(host, port);
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(lingers)?;
    socket.bind(&SockAddr::from(address))?;
    socket.set_reuse_address(true)?;
    Ok(socket)
}

fn port_of(socket: &Socket) -> io::Result<u16> {
    socket.local_addr()?.as_socket().map(|address| address.port()).ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::open_reactor;
    use std::net::{Ipv4Addr, TcpListener};

    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    /// Goal: picked ports are free and different; a port in use is refused by its number.
    #[test]
    fn ports_are_free() {
        let reactor = open_reactor().unwrap();
        let ports = Ports::choose(&reactor, HERE, 0, 20).unwrap();
        let mut sorted = ports.numbers().to_vec();
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!(sorted.len(), 20);
        let listener = TcpListener::bind((HERE, 0)).unwrap();
        let taken = listener.local_addr().unwrap().port();
        let Err(Failure::Failed(words)) = Ports::choose(&reactor, HERE, taken, 1) else {
            panic!("port {taken} is in use")
        };
        assert!(words.contains(&taken.to_string()) && words.contains("--port"), "{words}");
        drop(listener);
        assert!(matches!(Ports::choose(&reactor, HERE, 65_535, 2), Err(Failure::Usage(_))));
    }

    /// Goal: a port that is held is nobody else's choice, its server listens on it all the same, and then it stays
    /// taken when it is held no longer.
    #[test]
    fn held_until_the_server_listens() {
        let reactor = open_reactor().unwrap();
        let ports = Ports::choose(&reactor, HERE, 0, 1).unwrap();
        let port = ports.numbers()[0];
        let refusal = |lingers| hold(HERE, port, lingers).map(drop).map_err(|error| error.kind());
        assert_eq!(refusal(false), Err(io::ErrorKind::AddrInUse));
        let listener = reactor.listen(SocketAddr::new(HERE, port)).unwrap();
        drop(ports);
        for lingers in [false, true] {
            assert_eq!(refusal(lingers), Err(io::ErrorKind::AddrInUse));
        }
        drop(listener);
    }
}
