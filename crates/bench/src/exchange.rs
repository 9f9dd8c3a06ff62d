//! How processes that write or read together hand each other their pieces: through memory that they share, as those of
//! one machine do, or by messages over the (simulated) network.
//!
//! Invariants
//! 1. What is in the image belongs to the owners of pieces until all have come to the first barrier of a window, then
//!    to aggregators until the second; for reads the other way round.
//! 2. Messages of one process to another arrive in the order in which they were sent, and each window has at most one
//!    each way; so the first one there is that of the window at hand.

use crate::collective::{Part, merged};
use crate::collective_process::{WindowWork, read_ranges};
use crate::step::write_ranges;
use client::FileRange;
use reactor::barrier::GroupMemory;
use reactor::stream::Stream;
use reactor::{Class, Reactor};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::poll_fn;
use std::io::{ErrorKind, IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};

const PORT: u16 = 5_000;
/// Turns that a client has before its process waits at a barrier.
const PARTING_TURNS: u32 = 4;
/// Before a message: who sends it, and how many bytes follow.
const HEAD_SIZE: usize = 8;
/// Before each part of a message: where it lies in the file, and how many bytes it has.
const PART_HEAD_SIZE: usize = 12;

/// How pieces get from their owners to aggregators, and back.
pub trait Exchange {
    /// Bytes of the file that are gone through at a time.
    fn window_size_max(&self) -> u64;

    /// Writes a window of the file: pieces go to their aggregators, and these write them. Errors: words.
    async fn write(&self, work: &WindowWork<'_>, memory: &[u8]) -> Result<(), String>;

    /// Reads a window of the file: aggregators read pieces, and these go to their owners. Errors: words.
    async fn read(&self, work: &WindowWork<'_>, memory: &mut [u8]) -> Result<(), String>;
}

/// An image of a window of the file, which all processes share.
impl Exchange for Arc<GroupMemory> {
    fn window_size_max(&self) -> u64 {
        (self.word_count() * size_of::<u64>()) as u64
    }

    async fn write(&self, work: &WindowWork<'_>, memory: &[u8]) -> Result<(), String> {
        for part in &work.own {
            image_part(self, work, &part.range).copy_from_slice(&memory[memory_place(work, part)]);
        }
        wait(self).await?;
        let ranges = merged(&work.domain);
        let places = ranges.iter().map(|range| IoSlice::new(image_part(self, work, range)));
        if !ranges.is_empty() {
            write_ranges(work.files, work.file, &ranges, &places.collect::<Vec<_>>()).await?;
        }
        wait(self).await
    }

    async fn read(&self, work: &WindowWork<'_>, memory: &mut [u8]) -> Result<(), String> {
        let ranges = merged(&work.domain);
        let places = ranges.iter().map(|range| IoSliceMut::new(image_part(self, work, range)));
        if !ranges.is_empty() {
            read_ranges(work, &ranges, &mut places.collect::<Vec<_>>()).await?;
        }
        wait(self).await?;
        for part in &work.own {
            memory[memory_place(work, part)].copy_from_slice(image_part(self, work, &part.range));
        }
        wait(self).await
    }
}

impl Exchange for Messages {
    fn window_size_max(&self) -> u64 {
        u64::MAX
    }

    async fn write(&self, work: &WindowWork<'_>, memory: &[u8]) -> Result<(), String> {
        let mut buffer = DomainBuffer::new(&work.domain);
        for (aggregator, parts) in by(&work.own, |part| part.aggregator) {
            let bytes = |part: &Part| &memory[memory_place(work, part)];
            if aggregator == self.rank {
                parts.iter().for_each(|part| buffer.place(&part.range).copy_from_slice(bytes(part)));
            } else {
                self.send(aggregator, &message(self.rank, &parts, bytes)).await?;
            }
        }
        for bytes in self.receive(others(&work.domain, self.rank, |part| part.owner)).await {
            take_apart(&bytes, |range, bytes| buffer.place(&range).copy_from_slice(bytes))?;
        }
        let ranges = merged(&work.domain);
        if ranges.is_empty() {
            return Ok(());
        }
        write_ranges(work.files, work.file, &ranges, &[IoSlice::new(&buffer.bytes)]).await.map(drop)
    }

    async fn read(&self, work: &WindowWork<'_>, memory: &mut [u8]) -> Result<(), String> {
        let ranges = merged(&work.domain);
        let mut buffer = DomainBuffer::new(&work.domain);
        if !ranges.is_empty() {
            read_ranges(work, &ranges, &mut [IoSliceMut::new(&mut buffer.bytes)]).await?;
        }
        for (owner, parts) in by(&work.domain, |part| part.owner) {
            let bytes = |part: &Part| buffer.bytes_of(&part.range);
            if owner == self.rank {
                parts.iter().for_each(|part| memory[memory_place(work, part)].copy_from_slice(bytes(part)));
            } else {
                self.send(owner, &message(self.rank, &parts, bytes)).await?;
            }
        }
        let (pieces, procs) = (&work.plan.pieces, work.plan.procs);
        for bytes in self.receive(others(&work.own, self.rank, |part| part.aggregator)).await {
            take_apart(&bytes, |range, bytes| {
                memory[pieces.place(procs, range.offset)..][..bytes.len()].copy_from_slice(bytes);
            })?;
        }
        Ok(())
    }
}

/// Waits for all at a barrier, which stops this process's client too. So what it still has to say goes out before: a
/// permit that is not given back would keep others waiting until it ends by itself.
async fn wait(image: &GroupMemory) -> Result<(), String> {
    for _ in 0..PARTING_TURNS {
        let mut has_yielded = false;
        poll_fn(|context| {
            if std::mem::replace(&mut has_yielded, true) {
                return Poll::Ready(());
            }
            context.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }
    image.wait().map_err(|_| "another process has failed".to_owned())
}

/// Where a part of a window lies in the image.
#[allow(clippy::mut_from_ref)]
fn image_part<'a>(image: &'a GroupMemory, work: &WindowWork<'_>, range: &FileRange) -> &'a mut [u8] {
    let first = (range.offset - work.window.start) as usize;
    // SAFETY: between two barriers an owner touches its own parts alone, and an aggregator its domain (invariant 1);
    // neither those of two owners nor those of two aggregators overlap, nor do two ranges of one.
    unsafe { image.bytes(first..first + range.size as usize) }
}

/// Where a part lies in its owner's memory.
fn memory_place(work: &WindowWork<'_>, part: &Part) -> std::ops::Range<usize> {
    let first = work.plan.pieces.place(work.plan.procs, part.range.offset);
    first..first + part.range.size as usize
}

/// Parts by one of their processes, each process's in the order of the file.
fn by(parts: &[Part], process: impl Fn(&Part) -> u32) -> BTreeMap<u32, Vec<Part>> {
    let mut all: BTreeMap<u32, Vec<Part>> = BTreeMap::new();
    parts.iter().for_each(|part| all.entry(process(part)).or_default().push(*part));
    all
}

/// The other processes that have to do with some parts.
fn others(parts: &[Part], own: u32, process: impl Fn(&Part) -> u32) -> BTreeSet<u32> {
    parts.iter().map(process).filter(|rank| *rank != own).collect()
}

/// The bytes of a domain's parts, one behind the other in the order of the file.
struct DomainBuffer {
    /// By where a part begins in the file, where it begins here.
    starts: BTreeMap<u64, usize>,
    bytes: Vec<u8>,
}

impl DomainBuffer {
    fn new(domain: &[Part]) -> DomainBuffer {
        let mut size = 0;
        let start = |part: &Part| {
            let start = (part.range.offset, size);
            size += part.range.size as usize;
            start
        };
        let starts = domain.iter().map(start).collect();
        DomainBuffer { starts, bytes: vec![0; size] }
    }

    fn place(&mut self, range: &FileRange) -> &mut [u8] {
        &mut self.bytes[self.starts[&range.offset]..][..range.size as usize]
    }

    fn bytes_of(&self, range: &FileRange) -> &[u8] {
        &self.bytes[self.starts[&range.offset]..][..range.size as usize]
    }
}

/// A message with parts, each with its place in the file.
fn message<'a>(rank: u32, parts: &[Part], bytes: impl Fn(&Part) -> &'a [u8]) -> Vec<u8> {
    let size: usize = parts.iter().map(|part| PART_HEAD_SIZE + part.range.size as usize).sum();
    let mut message = Vec::with_capacity(HEAD_SIZE + size);
    message.extend_from_slice(&rank.to_le_bytes());
    message.extend_from_slice(&(size as u32).to_le_bytes());
    for part in parts {
        message.extend_from_slice(&part.range.offset.to_le_bytes());
        message.extend_from_slice(&(part.range.size as u32).to_le_bytes());
        message.extend_from_slice(bytes(part));
    }
    message
}

/// A number at the begin of bytes, which are left without it.
fn take_number<const SIZE: usize>(bytes: &mut &[u8]) -> Option<[u8; SIZE]> {
    let (number, rest) = bytes.split_first_chunk::<SIZE>()?;
    *bytes = rest;
    Some(*number)
}

/// Hands on each part of a message. Errors: words.
fn take_apart(mut message: &[u8], mut take: impl FnMut(FileRange, &[u8])) -> Result<(), String> {
    while !message.is_empty() {
        let range = || -> Option<FileRange> {
            let offset = u64::from_le_bytes(take_number(&mut message)?);
            Some(FileRange { offset, size: u64::from(u32::from_le_bytes(take_number(&mut message)?)) })
        };
        let cut_short = "a message of another process is cut short";
        let range = { range }().ok_or(cut_short)?;
        let (bytes, rest) = message.split_at_checked(range.size as usize).ok_or(cut_short)?;
        take(range, bytes);
        message = rest;
    }
    Ok(())
}

/// A process's messages to others and from them.
pub struct Messages {
    rank: u32,
    reactor: Reactor,
    address_of: Rc<dyn Fn(u32) -> SocketAddr>,
    connections: RefCell<BTreeMap<u32, Rc<Stream>>>,
    inbox: Rc<Inbox>,
}

/// Messages that have arrived, by their senders.
#[derive(Default)]
struct Inbox {
    messages: RefCell<BTreeMap<u32, VecDeque<Vec<u8>>>>,
    waker: RefCell<Option<Waker>>,
}

impl Inbox {
    fn put(&self, sender: u32, message: Vec<u8>) {
        self.messages.borrow_mut().entry(sender).or_default().push_back(message);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

impl Messages {
    /// Listens on a node. `address_of` says where a process listens; `scratch`, where what arrives lies for a moment,
    /// may be shared by all of a thread. Errors: words.
    pub fn listen(
        reactor: &Reactor,
        rank: u32,
        address_of: Rc<dyn Fn(u32) -> SocketAddr>,
        scratch: Rc<RefCell<Vec<u8>>>,
    ) -> Result<Messages, String> {
        let words = |error: std::io::Error| format!("process {rank} listens: {error}");
        let listener = reactor.listen(address_of(rank)).map_err(words)?;
        let (inbox, own) = (Rc::new(Inbox::default()), reactor.clone());
        let arrivals = inbox.clone();
        reactor.spawn(Class::Data, async move {
            while let Ok((stream, _)) = listener.accept().await {
                own.spawn(Class::Data, take_messages(stream, arrivals.clone(), scratch.clone()));
            }
        });
        Ok(Messages { rank, reactor: reactor.clone(), address_of, connections: RefCell::default(), inbox })
    }

    /// The address of a process on a host.
    pub fn address(host: std::net::IpAddr) -> SocketAddr {
        SocketAddr::new(host, PORT)
    }

    async fn send(&self, to: u32, message: &[u8]) -> Result<(), String> {
        let words = |error: std::io::Error| format!("message to process {to}: {error}");
        let known = self.connections.borrow().get(&to).cloned();
        let stream = match known {
            Some(stream) => stream,
            None => {
                let stream = Rc::new(self.reactor.connect((self.address_of)(to)).await.map_err(words)?);
                self.connections.borrow_mut().insert(to, stream.clone());
                stream
            }
        };
        stream.send_all(message).await.map_err(words)
    }

    /// The next message of each of some processes, in the order in which they are there.
    async fn receive(&self, mut senders: BTreeSet<u32>) -> Vec<Vec<u8>> {
        let mut received = Vec::with_capacity(senders.len());
        poll_fn(|context| {
            let mut messages = self.inbox.messages.borrow_mut();
            senders.retain(|sender| match messages.get_mut(sender).and_then(VecDeque::pop_front) {
                Some(message) => {
                    received.push(message);
                    false
                }
                None => true,
            });
            if senders.is_empty() {
                return Poll::Ready(());
            }
            self.inbox.waker.replace(Some(context.waker().clone()));
            Poll::Pending
        })
        .await;
        received
    }
}

/// Takes what arrives over a connection apart into messages, until it ends.
async fn take_messages(stream: Stream, inbox: Rc<Inbox>, scratch: Rc<RefCell<Vec<u8>>>) {
    let mut bytes: Vec<u8> = Vec::new();
    loop {
        stream.readable().await;
        let received = stream.try_recv(&mut [IoSliceMut::new(&mut scratch.borrow_mut())]);
        match received {
            Ok(0) => return,
            Ok(size) => bytes.extend_from_slice(&scratch.borrow()[..size]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
            Err(_) => return,
        }
        while let Some((sender, size)) = head_of(&bytes)
            && bytes.len() >= HEAD_SIZE + size
        {
            let rest = bytes.split_off(HEAD_SIZE + size);
            let mut message = std::mem::replace(&mut bytes, rest);
            message.drain(..HEAD_SIZE);
            inbox.put(sender, message);
        }
    }
}

/// Who sends the message that bytes begin with, and its size.
fn head_of(mut bytes: &[u8]) -> Option<(u32, usize)> {
    let sender = u32::from_le_bytes(take_number(&mut bytes)?);
    Some((sender, u32::from_le_bytes(take_number(&mut bytes)?) as usize))
}
