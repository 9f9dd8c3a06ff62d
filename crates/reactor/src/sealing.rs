//! Streams whose bytes nobody on the way can change, repeat, leave out or put into another order without being
//! noticed, and, where that is asked for, read.
//!
//! What is sent goes in records: 8 bytes of head (size, check sum), the bytes, 16 bytes of tag. A tag is AEGIS-128X2's
//! (draft-irtf-cfrg-aegis-aead), over the head and the bytes, as a MAC or of the encrypted bytes, under a key that this
//! direction of this connection alone has (`handshake`), with the number of the record as the nonce. Nothing of a
//! record is handed on before its tag was looked at.
//!
//! Invariants
//! 1. No number is used twice under one key: each record has the next one, and the connection ends before they could
//!    wrap.
//! 2. A stream on which one record was wrong gives nothing more.
//! 3. Bytes are copied before their tag is made, for whoever owns them may write to them meanwhile.
//! 4. Each side holds at most `SEALED_MEMORY_MAX` bytes.

use crate::hazard_pointers::HazardPointers;
use crate::short_circuit::{SharedStore, StampedRegion, StoreMapping};
use crate::stream::{Readiness, Socket, Stream, Way};
use aegis::aegis128x2::{Aegis128X2, Aegis128X2Mac};
use shm::client_counters::{ClientCounter, ClientCounters};
use shm::mapping::Mapped;
use std::cell::RefCell;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::rc::Rc;
use wire::Protection;

pub(crate) const KEY_SIZE: usize = 16;
const TAG_SIZE: usize = 16;
const HEAD_SIZE: usize = 8;
/// Bytes of a record: few enough that they are in the processor's nearest cache when they are copied again.
const RECORD_SIZE_MAX: usize = 32 * 1024;
const SEALED_SIZE_MAX: usize = HEAD_SIZE + RECORD_SIZE_MAX + TAG_SIZE;
/// Records that are made before they are sent, and received before they are looked at.
const RECORDS_AT_ONCE: usize = 4;
/// Room for what is received at first, in bytes: small messages.
const ROOM_SIZE_FIRST: usize = 4608;
/// Largest memory of one end of a stream, in bytes.
pub(crate) const SEALED_MEMORY_MAX: usize = 2 * RECORDS_AT_ONCE * SEALED_SIZE_MAX;

/// What such an end says of itself.
pub(crate) const CHANGED: &str = "the connection was changed on its way";

/// The error of a stream on which a record was wrong.
#[derive(Debug)]
struct Changed;

impl std::fmt::Display for Changed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(CHANGED)
    }
}

impl std::error::Error for Changed {}

pub(crate) fn changed() -> io::Error {
    io::Error::new(ErrorKind::InvalidData, Changed)
}

/// Whether an error is that of a stream on which a record was wrong.
pub(crate) fn is_changed(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<Changed>())
}

/// The key of one direction of one connection, and the number of its next record.
pub(crate) struct Sealer {
    is_secret: bool,
    key: [u8; KEY_SIZE],
    number: u64,
}

impl Sealer {
    pub(crate) fn new(protection: Protection, key: [u8; KEY_SIZE]) -> Sealer {
        assert!(protection != Protection::Off);
        Sealer { is_secret: protection == Protection::Encryption, key, number: 0 }
    }

    fn next_nonce(&mut self) -> [u8; 16] {
        let number = self.number;
        self.number = number.checked_add(1).unwrap_or_else(|| unreachable!("nobody sends so many records"));
        (u128::from(number)).to_le_bytes()
    }

    /// Makes bytes unreadable where that is asked for; their tag, which covers `head` too.
    fn seal(&mut self, head: &[u8], bytes: &mut [u8]) -> [u8; TAG_SIZE] {
        let nonce = self.next_nonce();
        if self.is_secret {
            return Aegis128X2::<TAG_SIZE>::new(&self.key, &nonce).encrypt_in_place(bytes, head);
        }
        let mut mac = Aegis128X2Mac::<TAG_SIZE>::new_with_nonce(&self.key, &nonce);
        mac.update(head);
        mac.update(bytes);
        mac.finalize()
    }

    /// The opposite. Errors: `changed`, and the bytes are of no use.
    fn open(&mut self, head: &[u8], bytes: &mut [u8], tag: &[u8; TAG_SIZE]) -> io::Result<()> {
        let nonce = self.next_nonce();
        let outcome = if self.is_secret {
            Aegis128X2::<TAG_SIZE>::new(&self.key, &nonce).decrypt_in_place(bytes, tag, head)
        } else {
            let mut mac = Aegis128X2Mac::<TAG_SIZE>::new_with_nonce(&self.key, &nonce);
            mac.update(head);
            mac.update(bytes);
            mac.verify(tag)
        };
        outcome.map_err(|_| changed())
    }

    /// A message as a record of its own.
    pub(crate) fn seal_message(&mut self, message: &[u8]) -> Vec<u8> {
        let mut sealed = message.to_vec();
        let tag = self.seal(&[], &mut sealed);
        sealed.extend_from_slice(&tag);
        sealed
    }

    /// The opposite.
    pub(crate) fn open_message(&mut self, sealed: &[u8]) -> io::Result<Vec<u8>> {
        let (bytes, tag) = sealed.split_last_chunk().ok_or_else(changed)?;
        let mut message = bytes.to_vec();
        self.open(&[], &mut message, tag)?;
        Ok(message)
    }

    /// The head of the next record. Its sum is no proof, which its tag is; it tells a size that was damaged before
    /// anybody waits for so many bytes.
    fn head(&self, size: usize) -> [u8; HEAD_SIZE] {
        let mut head = [0; HEAD_SIZE];
        let size = (size as u32).to_le_bytes();
        head[..4].copy_from_slice(&size);
        let mut covered = [0; 12];
        covered[..4].copy_from_slice(&size);
        covered[4..].copy_from_slice(&self.number.to_le_bytes());
        head[4..].copy_from_slice(&crc32c::crc32c(&covered).to_le_bytes());
        head
    }
}

/// Records on their way out.
struct SealedRecords {
    sealer: Sealer,
    bytes: Vec<u8>,
    sent: usize,
}

impl SealedRecords {
    /// Adds a record of bytes from the front of `pieces`, whose first `done` bytes have gone. How many it took.
    fn add_record(&mut self, pieces: &[IoSlice<'_>], mut done: usize) -> usize {
        let start = self.bytes.len();
        let offered: usize = pieces.iter().map(|piece| piece.len()).sum();
        self.bytes.reserve_exact(HEAD_SIZE + (offered - done).min(RECORD_SIZE_MAX) + TAG_SIZE);
        self.bytes.extend_from_slice(&[0; HEAD_SIZE]);
        let payload = start + HEAD_SIZE;
        for piece in pieces {
            let skipped = done.min(piece.len());
            done -= skipped;
            let room = RECORD_SIZE_MAX - (self.bytes.len() - payload);
            let rest = &piece[skipped..];
            self.bytes.extend_from_slice(&rest[..rest.len().min(room)]);
        }
        let size = self.bytes.len() - payload;
        let head = self.sealer.head(size);
        self.bytes[start..payload].copy_from_slice(&head);
        let tag = self.sealer.seal(&head, &mut self.bytes[payload..]);
        self.bytes.extend_from_slice(&tag);
        size
    }
}

/// Records that have arrived, and what of the last one that was opened was not taken yet.
struct OpenedRecords {
    sealer: Sealer,
    bytes: Vec<u8>,
    /// What was received and is not opened.
    start: usize,
    end: usize,
    /// What is opened and not taken; it lies before `start`.
    opened: std::ops::Range<usize>,
    is_wrong: bool,
}

impl OpenedRecords {
    /// Opens the next record. False when it is not here yet.
    fn open(&mut self) -> io::Result<bool> {
        let received = &mut self.bytes[self.start..self.end];
        let Some((head, rest)) = received.split_first_chunk_mut::<HEAD_SIZE>() else { return Ok(false) };
        let size = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
        if size == 0 || size > RECORD_SIZE_MAX || *head != self.sealer.head(size) {
            return Err(changed());
        }
        let Some((bytes, rest)) = rest.split_at_mut_checked(size) else { return Ok(false) };
        let Some(tag) = rest.first_chunk::<TAG_SIZE>() else { return Ok(false) };
        self.sealer.open(head, bytes, tag)?;
        let payload = self.start + HEAD_SIZE;
        self.opened = payload..payload + size;
        self.start = payload + size + TAG_SIZE;
        Ok(true)
    }

    fn take(&mut self, place: &mut [u8]) -> usize {
        let size = place.len().min(self.opened.len());
        place[..size].copy_from_slice(&self.bytes[self.opened.start..self.opened.start + size]);
        self.opened.start += size;
        size
    }

    /// Where more is to be received. Everything that was opened has been taken.
    fn room(&mut self) -> &mut [u8] {
        assert!(self.opened.is_empty());
        self.bytes.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        // Whoever filled the room sends much.
        if self.end * 2 >= self.bytes.len() {
            let larger = (self.bytes.len() * 4).clamp(ROOM_SIZE_FIRST, RECORDS_AT_ONCE * SEALED_SIZE_MAX);
            self.bytes.reserve_exact(larger - self.bytes.len());
            self.bytes.resize(larger, 0);
        }
        &mut self.bytes[self.end..]
    }
}

/// A socket whose bytes travel in records over another stream, with which it shares what is known of its readiness.
struct SealedSocket {
    stream: Stream,
    readiness: Rc<Readiness>,
    outgoing: RefCell<SealedRecords>,
    incoming: RefCell<OpenedRecords>,
}

/// The same stream with everything sealed from now on.
pub(crate) fn seal(stream: &Stream, sending: Sealer, receiving: Sealer) -> Stream {
    let readiness = stream.readiness().clone();
    let outgoing = SealedRecords { sealer: sending, bytes: Vec::new(), sent: 0 };
    let incoming =
        OpenedRecords { sealer: receiving, bytes: Vec::new(), start: 0, end: 0, opened: 0..0, is_wrong: false };
    let (outgoing, incoming) = (RefCell::new(outgoing), RefCell::new(incoming));
    let socket = SealedSocket { stream: stream.clone(), readiness: readiness.clone(), outgoing, incoming };
    Stream::new(socket, readiness)
}

impl SealedSocket {
    fn send_out(&self, outgoing: &mut SealedRecords) -> io::Result<()> {
        while outgoing.sent < outgoing.bytes.len() {
            outgoing.sent += self.stream.try_send(&[IoSlice::new(&outgoing.bytes[outgoing.sent..])])?;
        }
        outgoing.bytes.clear();
        outgoing.sent = 0;
        Ok(())
    }

    fn receive(&self, incoming: &mut OpenedRecords, places: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let mut received = 0;
        for place in places {
            let mut filled = 0;
            while filled < place.len() {
                let taken = incoming.take(&mut place[filled..]);
                filled += taken;
                received += taken;
                if taken > 0 || incoming.open()? {
                    continue;
                }
                match self.stream.try_recv(&mut [IoSliceMut::new(incoming.room())]) {
                    Ok(size @ 1..) => incoming.end += size,
                    Err(error) if received == 0 || error.kind() == ErrorKind::WouldBlock => {
                        return if received > 0 { Ok(received) } else { Err(error) };
                    }
                    // What came before the end is told first; then it is looked for again.
                    Ok(_) | Err(_) => {
                        self.readiness.set_hung_up();
                        return Ok(received);
                    }
                }
            }
        }
        Ok(received)
    }
}

impl Socket for SealedSocket {
    fn try_recv(&self, places: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let incoming = &mut *self.incoming.borrow_mut();
        if incoming.is_wrong {
            return Err(changed());
        }
        let outcome = self.receive(incoming, places);
        incoming.is_wrong = matches!(&outcome, Err(error) if is_changed(error));
        // The stream below may have nothing more while we have.
        if incoming.is_wrong || !incoming.opened.is_empty() || incoming.start < incoming.end {
            self.readiness.set_readable();
        }
        outcome
    }

    fn try_send(&self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        let outgoing = &mut *self.outgoing.borrow_mut();
        self.send_out(outgoing)?;
        let offered: usize = pieces.iter().map(|piece| piece.len()).sum();
        let mut taken = 0;
        for _ in 0..RECORDS_AT_ONCE {
            if taken < offered {
                taken += outgoing.add_record(pieces, taken);
            }
        }
        match self.send_out(outgoing) {
            Err(error) if error.kind() != ErrorKind::WouldBlock => Err(error),
            // The rest leaves with `flush`, or before what is sent next.
            _ => Ok(taken),
        }
    }

    fn flush(&self) -> io::Result<()> {
        self.send_out(&mut self.outgoing.borrow_mut())
    }

    fn shutdown(&self) {
        self.stream.shutdown();
    }

    fn peer_address(&self) -> io::Result<SocketAddr> {
        self.stream.peer_address()
    }

    fn local_address(&self) -> io::Result<SocketAddr> {
        self.stream.local_address()
    }

    fn take_error(&self) -> io::Result<()> {
        Ok(())
    }

    fn way(&self) -> Way {
        self.stream.way()
    }

    fn share(&self, region: &Rc<StampedRegion>, shared: &SharedStore) -> bool {
        self.stream.share(region, shared)
    }

    fn hazards(&self) -> Option<Rc<HazardPointers>> {
        self.stream.hazards()
    }

    fn counters(&self) -> Option<Mapped<ClientCounters>> {
        self.stream.counters()
    }

    fn count(&self, counts: &[(ClientCounter, u64)]) -> bool {
        self.stream.count(counts)
    }

    fn mapping(&self) -> Option<Rc<StoreMapping>> {
        self.stream.mapping()
    }

    fn set_buffer_sizes(&self, receive: usize, send: usize) -> io::Result<()> {
        self.stream.set_buffer_sizes(receive, send)
    }
}
