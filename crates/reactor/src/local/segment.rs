//! The memory that two processes share for one connection: a ring of bytes for each direction.
//!
//! | offset | size | holds |
//! |---|---|---|
//! | 0, 512 | 8 each | bytes ever put into the ring: caller to server, server to caller |
//! | 8, 520 | 8 each | that number when the ring was empty last: the byte that followed lies at the ring's beginning |
//! | 128, 640 | 8 each | bytes ever taken out of it |
//! | 1024, 1152 | 4 each | what the caller, the server sleeps for (`WANTS_...`); 0 while it is awake |
//! | 2048 | `HAZARDS_SIZE` | what the caller holds ([`crate::HazardPointers`]) |
//! | 4096 | `RING_SIZE` each | the bytes: caller to server, server to caller |
//!
//! Invariants
//! 1. The peer is not trusted: each of its numbers is read once and checked, our own are kept in memory of our own, and
//!    bytes are copied out before anybody looks at them.
//! 2. The file behind the mapping can't shrink (it is sealed), so that an access never faults.
//! 3. Before a side sleeps it says what for and looks once more; a side that has put or taken bytes looks after that
//!    whether the other one sleeps. A full fence lies between the two steps on both sides, so at least one of them sees
//!    the other.
//! 4. Who puts few bytes into an empty ring begins at its beginning, so that messages that come one at a time pass
//!    through the same few cache lines, however large the ring is. The origin changes only while nothing is in the
//!    ring, and is stored before the number that makes bytes visible. Many bytes walk through the ring: to take back as
//!    many lines from the cache of a core that has just read them costs more than to write others.

use crate::copying::{copy, copy_streaming};
use crate::hazard_pointers::{HAZARDS_SIZE, HazardPointers};
use crate::system::check;
use std::cell::Cell;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Bytes of one direction's ring. Half a chunk of the usual size: while one side fills a half, the other one empties
/// the other, and both stay in the processor's cache.
pub const RING_SIZE: usize = 512 << 10;
const HEAD_SIZE: usize = 4096;
/// Bytes of a segment.
pub const SEGMENT_SIZE: usize = HEAD_SIZE + 2 * RING_SIZE;
/// Bytes moved before the other side is told.
const STEP_SIZE: usize = 64 << 10;

/// Most bytes for which an empty ring begins at its beginning.
const ANEW_SIZE_MAX: usize = 8 << 10;

const PUT_OFFSETS: [usize; 2] = [0, 512];
const ORIGIN_OFFSETS: [usize; 2] = [8, 520];
const TAKEN_OFFSETS: [usize; 2] = [128, 640];
const SLEEP_OFFSETS: [usize; 2] = [1024, 1152];
const HAZARDS_OFFSET: usize = 2048;

/// The sleeper waits for bytes.
pub const WANTS_BYTES: u32 = 1;
/// The sleeper waits for room.
pub const WANTS_ROOM: u32 = 2;

const _: () = assert!(HAZARDS_OFFSET + HAZARDS_SIZE <= HEAD_SIZE);
const _: () = assert!(RING_SIZE.is_power_of_two() && RING_SIZE >= STEP_SIZE);

/// Which end of the connection this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Caller = 0,
    Server = 1,
}

/// A mapped segment, from one side.
pub struct Segment {
    base: NonNull<u8>,
    side: Side,
    /// Bytes that we ever put into the outgoing ring, and took out of the incoming one.
    put: Cell<u64>,
    taken: Cell<u64>,
    /// Where the outgoing ring begins, as a number of bytes put.
    origin: Cell<u64>,
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: maps nothing but this segment, and nothing refers to it any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), SEGMENT_SIZE) };
    }
}

fn damaged() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the peer wrote nonsense into the shared memory")
}

impl Segment {
    /// A fresh segment, and the file to hand to the other side. Nobody can open it by a name.
    pub fn create() -> io::Result<(Segment, OwnedFd)> {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: makes a descriptor, which is owned from here on.
        let file = unsafe { OwnedFd::from_raw_fd(check(libc::memfd_create(c"tabane".as_ptr(), flags))?) };
        // SAFETY: no pointers.
        unsafe {
            check(libc::ftruncate(file.as_raw_fd(), SEGMENT_SIZE as libc::off_t))?;
            check(libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, SEALS))?;
        }
        Ok((Segment::map(&file, Side::Caller)?, file))
    }

    /// The segment in a file that a caller has sent. Errors: `InvalidData` unless it is what it should be.
    pub fn open(file: &OwnedFd) -> io::Result<Segment> {
        // SAFETY: no pointers but to a local status, which is valid zeroed.
        let (seals, size) = unsafe {
            let mut status = std::mem::zeroed::<libc::stat>();
            check(libc::fstat(file.as_raw_fd(), &mut status))?;
            (check(libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS))?, status.st_size)
        };
        if seals & SEALS != SEALS || size != SEGMENT_SIZE as libc::off_t {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the caller's shared memory is not sealed or not of our size",
            ));
        }
        Segment::map(file, Side::Server)
    }

    fn map(file: &OwnedFd, side: Side) -> io::Result<Segment> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED;
        // SAFETY: a new mapping at an address that the kernel picks; a forked child does not inherit it.
        let base = unsafe {
            let base = libc::mmap(std::ptr::null_mut(), SEGMENT_SIZE, protection, flags, file.as_raw_fd(), 0);
            if base == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            libc::madvise(base, SEGMENT_SIZE, libc::MADV_DONTFORK);
            base
        };
        let Some(base) = NonNull::new(base.cast()) else { unreachable!("mappings are not at address 0") };
        Ok(Segment { base, side, put: Cell::new(0), taken: Cell::new(0), origin: Cell::new(0) })
    }

    /// Has all pages here before they are needed: so many only for a peer that has proved itself.
    pub fn populate(&self) {
        // A kernel that can't do it takes a fault for each page instead.
        // SAFETY: the mapping is ours; its bytes stay as they are.
        unsafe { libc::madvise(self.base.as_ptr().cast(), SEGMENT_SIZE, libc::MADV_POPULATE_WRITE) };
    }

    /// What the caller holds.
    pub fn hazards(self: &Rc<Self>) -> Rc<HazardPointers> {
        Rc::new(HazardPointers::at(self.base.as_ptr().wrapping_add(HAZARDS_OFFSET), self.clone()))
    }

    fn number(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: within the mapping, aligned, and only ever accessed as an atomic by either side.
        unsafe { &*self.base.as_ptr().add(offset).cast::<AtomicU64>() }
    }

    fn sleep_word(&self, side: usize) -> &AtomicU32 {
        // SAFETY: as above.
        unsafe { &*self.base.as_ptr().add(SLEEP_OFFSETS[side]).cast::<AtomicU32>() }
    }

    fn outgoing(&self) -> usize {
        self.side as usize
    }

    fn incoming(&self) -> usize {
        1 - self.side as usize
    }

    /// Bytes that may be put into the outgoing ring now.
    fn room(&self) -> io::Result<usize> {
        let waiting = self.put.get().wrapping_sub(self.number(TAKEN_OFFSETS[self.outgoing()]).load(Ordering::Acquire));
        if waiting > RING_SIZE as u64 {
            return Err(damaged());
        }
        Ok(RING_SIZE - waiting as usize)
    }

    /// Bytes that wait in the incoming ring.
    fn waiting(&self) -> io::Result<usize> {
        let waiting = self.number(PUT_OFFSETS[self.incoming()]).load(Ordering::Acquire).wrapping_sub(self.taken.get());
        if waiting > RING_SIZE as u64 { Err(damaged()) } else { Ok(waiting as usize) }
    }

    /// Whether receiving is worth a try: bytes are there, or an error shows.
    pub fn has_bytes(&self) -> bool {
        self.waiting().map_or(true, |waiting| waiting > 0)
    }

    /// Whether sending is worth a try.
    pub fn has_room(&self) -> bool {
        self.room().map_or(true, |room| room > 0)
    }

    /// Puts bytes into the outgoing ring, as many as there is room for. Errors: `WouldBlock`, `InvalidData`.
    pub fn send(&self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut room = self.room()?;
        if room == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let ring = HEAD_SIZE + self.outgoing() * RING_SIZE;
        let (mut put, mut told) = (self.put.get(), self.put.get());
        let size: usize = pieces.iter().map(|piece| piece.len()).sum();
        if room == RING_SIZE && size <= ANEW_SIZE_MAX {
            self.origin.set(put);
            self.number(ORIGIN_OFFSETS[self.outgoing()]).store(put, Ordering::Relaxed);
        }
        let origin = self.origin.get();
        let published = self.number(PUT_OFFSETS[self.outgoing()]);
        for piece in pieces {
            let mut rest: &[u8] = piece;
            while !rest.is_empty() && room > 0 {
                let position = put.wrapping_sub(origin) as usize % RING_SIZE;
                let size = rest.len().min(room).min(RING_SIZE - position).min(STEP_SIZE);
                // SAFETY: the source is a live slice; the target lies within the ring, in bytes that the peer has taken
                // already and that it does not read before they are published.
                unsafe { copy(rest.as_ptr(), self.base.as_ptr().add(ring + position), size) };
                rest = &rest[size..];
                room -= size;
                put += size as u64;
                if put - told >= STEP_SIZE as u64 {
                    published.store(put, Ordering::Release);
                    told = put;
                }
            }
        }
        published.store(put, Ordering::Release);
        let sent = put - self.put.replace(put);
        Ok(sent as usize)
    }

    /// Takes bytes out of the incoming ring. Errors: `WouldBlock`, `InvalidData`.
    pub fn receive(&self, places: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let mut waiting = self.waiting()?;
        if waiting == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let ring = HEAD_SIZE + self.incoming() * RING_SIZE;
        let (mut taken, mut told) = (self.taken.get(), self.taken.get());
        // Whatever the peer wrote there, the position lies within the ring.
        let origin = self.number(ORIGIN_OFFSETS[self.incoming()]).load(Ordering::Relaxed);
        let published = self.number(TAKEN_OFFSETS[self.incoming()]);
        for place in places {
            let mut rest: &mut [u8] = place;
            while !rest.is_empty() && waiting > 0 {
                let position = taken.wrapping_sub(origin) as usize % RING_SIZE;
                let size = rest.len().min(waiting).min(RING_SIZE - position).min(STEP_SIZE);
                // SAFETY: the target is a live slice; the source lies within the ring. A hostile peer may change it
                // meanwhile: then we get other bytes, which are as untrusted as those that it put there first.
                unsafe {
                    let source = self.base.as_ptr().add(ring + position).cast_const();
                    match self.side {
                        // What a caller receives it reads next; a server puts it into its store.
                        Side::Caller => copy(source, rest.as_mut_ptr(), size),
                        Side::Server => copy_streaming(source, rest.as_mut_ptr(), size),
                    }
                }
                rest = &mut rest[size..];
                waiting -= size;
                taken += size as u64;
                if taken - told >= STEP_SIZE as u64 {
                    published.store(taken, Ordering::Release);
                    told = taken;
                }
            }
        }
        published.store(taken, Ordering::Release);
        let received = taken - self.taken.replace(taken);
        Ok(received as usize)
    }

    /// Whether the peer sleeps for this and has to be woken; asked after bytes were put or taken (invariant 3). It is
    /// told once.
    pub fn must_wake_peer(&self, wish: u32) -> bool {
        fence(Ordering::SeqCst);
        let word = self.sleep_word(1 - self.side as usize);
        word.load(Ordering::Relaxed) & wish != 0 && word.swap(0, Ordering::SeqCst) != 0
    }

    /// Says what this side is going to sleep for; the caller looks once more after `fence` (invariant 3).
    pub fn announce_sleep(&self, wishes: u32) {
        self.sleep_word(self.side as usize).store(wishes, Ordering::Relaxed);
    }

    /// Says that this side is awake. True if the peer has rung meanwhile, or is about to.
    pub fn end_sleep(&self) -> bool {
        self.sleep_word(self.side as usize).swap(0, Ordering::SeqCst) == 0
    }
}

const SEALS: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Segment, Segment) {
        let (caller, file) = Segment::create().expect("memory");
        (caller, Segment::open(&file).expect("it is what it should be"))
    }

    /// Goal: bytes come out as they went in, whatever the sizes of the pieces and however often the ring wraps.
    /// Method: sends and receives of odd sizes in turns, a running counter as contents.
    #[test]
    fn bytes_arrive_in_order() {
        let (caller, server) = pair();
        let (mut sent, mut received) = (0u64, 0u64);
        let mut size = 1usize;
        while received < 20 * RING_SIZE as u64 {
            size = (size * 7 + 13) % 200_000 + 1;
            let bytes: Vec<u8> = (sent..sent + size as u64).map(|number| (number % 251) as u8).collect();
            match caller.send(&[IoSlice::new(&bytes[..size / 2]), IoSlice::new(&bytes[size / 2..])]) {
                Ok(count) => sent += count as u64,
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
            }
            let mut place = vec![0; size * 3 / 4 + 1];
            let (first, second) = place.split_at_mut(size / 3);
            match server.receive(&mut [IoSliceMut::new(first), IoSliceMut::new(second)]) {
                Ok(count) => {
                    let right = (received..).zip(&place[..count]).all(|(number, byte)| (number % 251) as u8 == *byte);
                    assert!(right, "bytes from {received} on");
                    received += count as u64;
                }
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
            }
        }
    }

    /// Goal: numbers of a peer that make no sense are an error, not an access beyond the ring.
    #[test]
    fn nonsense_is_refused() {
        let (caller, server) = pair();
        caller.number(PUT_OFFSETS[0]).store(u64::MAX / 2, Ordering::SeqCst);
        let mut place = [0; 16];
        let received = server.receive(&mut [IoSliceMut::new(&mut place)]);
        assert_eq!(received.expect_err("nonsense").kind(), io::ErrorKind::InvalidData);
        caller.number(TAKEN_OFFSETS[1]).store(5, Ordering::SeqCst);
        assert_eq!(server.send(&[IoSlice::new(b"x")]).expect_err("nonsense").kind(), io::ErrorKind::InvalidData);
    }

    /// Goal: files that could shrink, or are of another size, are refused.
    #[test]
    fn files_are_checked() {
        let make = |size: usize, seals: libc::c_int| {
            // SAFETY: makes a descriptor, which is owned from here on; no other pointers.
            unsafe {
                let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
                let file = OwnedFd::from_raw_fd(libc::memfd_create(c"test".as_ptr(), flags));
                assert_eq!(libc::ftruncate(file.as_raw_fd(), size as libc::off_t), 0);
                assert_eq!(libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals), 0);
                file
            }
        };
        assert!(Segment::open(&make(SEGMENT_SIZE, SEALS)).is_ok());
        assert!(Segment::open(&make(SEGMENT_SIZE, libc::F_SEAL_GROW)).is_err());
        assert!(Segment::open(&make(SEGMENT_SIZE - 4096, SEALS)).is_err());
    }

    /// Goal: a sleeper is woken for what it waits for, once, and not for other things.
    #[test]
    fn sleepers_are_woken_once() {
        let (caller, server) = pair();
        server.announce_sleep(WANTS_BYTES);
        assert!(!caller.must_wake_peer(WANTS_ROOM));
        assert!(caller.must_wake_peer(WANTS_BYTES));
        assert!(!caller.must_wake_peer(WANTS_BYTES));
        assert!(server.end_sleep());
        server.announce_sleep(WANTS_BYTES);
        assert!(!server.end_sleep());
    }
}
