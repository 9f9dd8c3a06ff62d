//! `exchange` and `exchange-data`: what the sockets alone allow. Clients and servers do nothing but send and receive
//! messages as large as those of a stat, or of ior-hard's writes and reads, over TCP, each without blocking, giving the
//! core away while there is nothing: no framing, no sessions, no names. Beside mdtest and ior-hard in one run they say
//! which part of a figure is the kernel's.
//!
//! Bytes go from the client's buffer of one piece through the socket into a server's memory of `--block-size` bytes, or
//! the other way, each place in turn, so that a server's side meets memory that no cache holds, as a store does.
//!
//! With `--pages` each process also reads a line of so many pages of its own for each message of `exchange` and
//! `exchange-memory`, as a program does whose code and data lie on as many: it shows what switches cost whoever needs
//! more than a loop does, most of all when more processes take turns on a core than its TLB keeps apart.

use crate::group::{Failure, Group, Pass};
use crate::options::Bench;
use crate::target::mix;
use crate::workload_ior::HARD_TRANSFER_SIZE;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;

/// Bytes of a stat's request and reply over TCP, headers included (names as mdtest makes them).
pub const REQUEST_SIZE: usize = 124;
pub const REPLY_SIZE: usize = 163;

/// The bytes of a piece that go with each request or reply of a phase.
#[derive(Clone, Copy)]
struct ExchangeShape {
    with_request: usize,
    with_reply: usize,
}

/// The phases of the bench, in order.
fn shapes(group: &Group) -> Vec<ExchangeShape> {
    if group.bench == Bench::Exchange {
        return vec![ExchangeShape { with_request: 0, with_reply: 0 }];
    }
    let piece = group.options.transfer_size.unwrap_or(HARD_TRANSFER_SIZE);
    vec![ExchangeShape { with_request: piece, with_reply: 0 }, ExchangeShape { with_request: 0, with_reply: piece }]
}

const PAGE_SIZE: usize = 4096;
const LINE_SIZE: usize = 64;

/// Pages that a process reads from for each message.
pub struct Belongings(Vec<u8>);

impl Belongings {
    pub fn new(pages: usize) -> Belongings {
        // Not zeros, which the kernel would keep on one page.
        Belongings(vec![1; pages * PAGE_SIZE])
    }

    /// Reads a line of each page, another one in each so that they do not share a set of the cache.
    pub fn touch(&self) {
        for (index, page) in self.0.chunks_exact(PAGE_SIZE).enumerate() {
            std::hint::black_box(page[index * LINE_SIZE % PAGE_SIZE]);
        }
    }
}

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
    for (phase, shape) in shapes(group).into_iter().enumerate() {
        let mut servers = Vec::new();
        for rank in clients..group.procs {
            let text = group.published(rank);
            let address: SocketAddr =
                String::from_utf8_lossy(&text).parse().map_err(|_| "a server told no address".to_string())?;
            servers.push(TcpStream::connect(address).and_then(tuned).map_err(words)?);
        }
        let server_count = servers.len() as u64;
        let piece_size = shape.with_request + shape.with_reply;
        let (count, work) = match piece_size {
            0 => (group.options.files, 1),
            size => (group.options.block_size.div_ceil(size as u64), size as u64),
        };
        let belongings = Belongings::new(group.options.pages);
        let (request, mut reply, mut piece) = ([1; REQUEST_SIZE], [0; REPLY_SIZE], vec![3; piece_size]);
        group.phase(phase, count, |meter| {
            let mut done = 0;
            while done < count && !meter.is_over() {
                let server = (mix(done << 8 | u64::from(group.rank)) % server_count) as usize;
                belongings.touch();
                send(&servers[server], &request, &piece[..shape.with_request])?;
                receive_whole(&servers[server], &mut reply, &mut piece[..shape.with_reply])?;
                meter.note_call();
                done += 1;
            }
            servers.clear();
            Ok(done * work)
        })?;
    }
    Ok(())
}

/// A connection at a server, and what of the request under way has arrived.
struct Peer {
    stream: TcpStream,
    received: usize,
    /// Where in the server's memory its next piece lies.
    place: usize,
}

fn answer(group: &Group, clients: u32) -> Result<(), Failure> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(words)?;
    group.publish(listener.local_addr().map_err(words)?.to_string().as_bytes())?;
    let shapes = shapes(group);
    let most = shapes.iter().map(|shape| shape.with_request.max(shape.with_reply)).max().unwrap_or(0);
    let mut memory = vec![2; if most == 0 { 0 } else { most.max(group.options.block_size as usize) }];
    let belongings = Belongings::new(group.options.pages);
    group.barrier()?;
    for (phase, shape) in shapes.into_iter().enumerate() {
        let mut peers = Vec::new();
        for number in 0..clients as usize {
            let stream = listener.accept().and_then(|(stream, _)| tuned(stream)).map_err(words)?;
            peers.push(Peer { stream, received: 0, place: memory.len() / clients as usize * number });
        }
        group.attend(phase, || {
            while !peers.is_empty() {
                let mut idle = true;
                let mut ended = None;
                for (index, peer) in peers.iter_mut().enumerate() {
                    match serve(peer, shape, &mut memory)? {
                        None => ended = Some(index),
                        Some(0) => continue,
                        Some(_) => belongings.touch(),
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
        })?;
    }
    Ok(())
}

/// Receives what is there, and answers what is whole. Bytes received; `None` at the end of the stream.
fn serve(peer: &mut Peer, shape: ExchangeShape, memory: &mut [u8]) -> Result<Option<usize>, Failure> {
    let piece_size = shape.with_request.max(shape.with_reply);
    if peer.place + piece_size > memory.len() {
        peer.place = 0;
    }
    let place = peer.place..peer.place + piece_size;
    let mut request = [0; REQUEST_SIZE];
    let body = &mut memory[place.clone()][..shape.with_request];
    let Some(received) = receive(&peer.stream, &mut request, body, peer.received)? else { return Ok(None) };
    peer.received += received;
    if peer.received == REQUEST_SIZE + shape.with_request {
        peer.received = 0;
        peer.place += piece_size;
        send(&peer.stream, &[2; REPLY_SIZE], &memory[place][..shape.with_reply])?;
    }
    Ok(Some(received))
}

/// Receives a message of a head and a body, of which `begun` bytes have come before. Bytes that were there, 0 if there
/// were none; `None` at the end of the stream.
fn receive(mut stream: &TcpStream, head: &mut [u8], body: &mut [u8], begun: usize) -> Result<Option<usize>, Failure> {
    let head_begun = begun.min(head.len());
    let body_begun = begun - head_begun;
    let mut places = [IoSliceMut::new(&mut head[head_begun..]), IoSliceMut::new(&mut body[body_begun..])];
    match stream.read_vectored(&mut places) {
        Ok(0) => Ok(None),
        Ok(received) => Ok(Some(received)),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(Some(0)),
        Err(error) => Err(words(error)),
    }
}

fn receive_whole(stream: &TcpStream, head: &mut [u8], body: &mut [u8]) -> Result<(), Failure> {
    let mut received = 0;
    while received < head.len() + body.len() {
        match receive(stream, head, body, received)? {
            None => return Err("a server has gone".to_string().into()),
            Some(0) => std::thread::yield_now(),
            Some(more) => received += more,
        }
    }
    Ok(())
}

/// Sends a message of a head and a body. Small ones always fit: one is under way in each direction of a connection.
fn send(mut stream: &TcpStream, head: &[u8], body: &[u8]) -> Result<(), Failure> {
    let mut sent = 0;
    while sent < head.len() + body.len() {
        let head_sent = sent.min(head.len());
        let pieces = [IoSlice::new(&head[head_sent..]), IoSlice::new(&body[sent - head_sent..])];
        match stream.write_vectored(&pieces) {
            Ok(more) => sent += more,
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::yield_now(),
            Err(error) => return Err(words(error)),
        }
    }
    Ok(())
}
