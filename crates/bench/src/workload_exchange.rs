//! `exchange`: what the sockets alone allow. Clients and servers do nothing but send and receive messages as large as those of
//! a stat over TCP, each without blocking, giving the core away while there is nothing: no framing, no sessions, no names.
//! Beside mdtest in one run it says which part of a figure is the kernel's.

use crate::group::{Failure, Group, Pass};
use crate::target::mix;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;

const EXCHANGE: usize = 0;
/// Bytes of a stat's request and reply over TCP, headers included (names as mdtest makes them).
const REQUEST_SIZE: usize = 124;
const REPLY_SIZE: usize = 163;

/// The ranks below `clients` ask, the others answer.
pub fn run(group: &Group, clients: u32) -> Result<(), Failure> {
    if group.pass == Pass::Verify {
        return Ok(());
    }
    if group.rank < clients { ask(group, clients) } else { answer(group, clients) }
}

fn words(error: io::Error) -> Failure {
    format!("sockets: {error}").into()
}

/// Sets a connection up as Tabane does.
fn tuned(stream: TcpStream) -> io::Result<TcpStream> {
    let peer = stream.peer_addr()?;
    let descriptor = OwnedFd::from(stream);
    reactor::tune_connection(&descriptor, peer)?;
    let stream = TcpStream::from(descriptor);
    stream.set_nonblocking(true)?;
    Ok(stream)
}

fn ask(group: &Group, clients: u32) -> Result<(), Failure> {
    group.barrier()?;
    let mut servers = Vec::new();
    for rank in clients..group.procs {
        let text = group.published(rank);
        let address: SocketAddr =
            String::from_utf8_lossy(&text).parse().map_err(|_| "a server told no address".to_string())?;
        servers.push(TcpStream::connect(address).and_then(tuned).map_err(words)?);
    }
    let (request, mut reply) = ([1; REQUEST_SIZE], [0; REPLY_SIZE]);
    let server_count = servers.len() as u64;
    group.phase(EXCHANGE, |limit| {
        let mut done = 0;
        while done < group.options.files && !limit.reached() {
            let stream = &mut servers[(mix(done << 8 | u64::from(group.rank)) % server_count) as usize];
            send(stream, &request).map_err(words)?;
            let mut received = 0;
            while received < REPLY_SIZE {
                received +=
                    receive(stream, &mut reply[received..]).map_err(words)?.ok_or("a server has gone".to_string())?;
                if received < REPLY_SIZE {
                    std::thread::yield_now();
                }
            }
            done += 1;
        }
        servers.clear();
        Ok(done)
    })
}

fn answer(group: &Group, clients: u32) -> Result<(), Failure> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(words)?;
    group.publish(listener.local_addr().map_err(words)?.to_string().as_bytes())?;
    group.barrier()?;
    // What has arrived of the request under way, for each client.
    let mut peers: Vec<(TcpStream, usize)> = Vec::new();
    for _ in 0..clients {
        peers.push((listener.accept().and_then(|(stream, _)| tuned(stream)).map_err(words)?, 0));
    }
    group.attend(EXCHANGE, || {
        let (mut request, reply) = ([0; REQUEST_SIZE], [2; REPLY_SIZE]);
        while !peers.is_empty() {
            let mut idle = true;
            let mut ended = None;
            for (index, (stream, pending)) in peers.iter_mut().enumerate() {
                match receive(stream, &mut request[*pending..]).map_err(words)? {
                    None => ended = Some(index),
                    Some(0) => continue,
                    Some(received) => {
                        *pending += received;
                        if *pending == REQUEST_SIZE {
                            *pending = 0;
                            send(stream, &reply).map_err(words)?;
                        }
                    }
                }
                idle = false;
            }
            if let Some(index) = ended {
                peers.swap_remove(index);
            }
            if idle {
                std::thread::yield_now();
            }
        }
        Ok(())
    })
}

/// Bytes that were there, 0 if there were none; `None` at the end of the stream.
fn receive(stream: &mut TcpStream, place: &mut [u8]) -> io::Result<Option<usize>> {
    match stream.read(place) {
        Ok(0) => Ok(None),
        Ok(received) => Ok(Some(received)),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(Some(0)),
        Err(error) => Err(error),
    }
}

/// Messages this small always fit: one is under way in each direction of a connection.
fn send(stream: &mut TcpStream, message: &[u8]) -> io::Result<()> {
    match stream.write(message)? {
        sent if sent == message.len() => Ok(()),
        _ => Err(ErrorKind::WriteZero.into()),
    }
}
