//! The memory that two processes share for one connection: a ring of bytes for each direction.
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

use crate::check;
use crate::client_counters::{ClientCounter, ClientCounters};
#[cfg(not(loom))]
use crate::copying::{copy, copy_streaming};
use crate::hazard_pointers::Hazards;
use crate::mapping::{Layout, Mapped, Mapping, Protection};
#[cfg(not(loom))]
use crate::sync::LINE_SIZE;
use crate::sync::{AtomicU32, AtomicU64, Barrier, CacheLine, Ordering, Padding, fence_at, order_at};
use std::any::Any;
use std::cell::Cell;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::rc::Rc;

/// Bytes of one direction's ring. Half a chunk of the usual size: while one side fills a half, the other one empties
/// the other, and both stay in the processor's cache.
pub const RING_SIZE: usize = if cfg!(loom) { 2 } else { 512 << 10 };
/// Bytes moved before the other side is told.
const STEP_SIZE: usize = if cfg!(loom) { 1 } else { 64 << 10 };
/// Most bytes for which an empty ring begins at its beginning.
const ANEW_SIZE_MAX: usize = if cfg!(loom) { 1 } else { 8 << 10 };
/// Bytes of a segment.
pub const SEGMENT_SIZE: usize = size_of::<SegmentArea>();

/// The sleeper waits for bytes.
pub const WANTS_BYTES: u32 = 1;
/// The sleeper waits for room.
pub const WANTS_ROOM: u32 = 2;

const _: () = assert!(RING_SIZE.is_power_of_two() && RING_SIZE >= STEP_SIZE);

/// All of it. Of a pair the first one is that from the caller to the server, or the caller's.
#[repr(C)]
#[cfg_attr(loom, derive(Default))]
pub struct SegmentArea {
    rings: [RingArea; 2],
    sleeps: [SleepArea; 2],
    _unused: Padding<{ 2048 - 1280 }>,
    /// What the caller holds.
    hazards: Hazards,
    /// What the caller did by itself.
    counters: ClientCounters,
    _unused_behind: Padding<{ 4096 - 2048 - 640 - 128 }>,
    bytes: [RingBytes; 2],
}

/// The numbers of a ring.
#[repr(C)]
#[cfg_attr(loom, derive(Default))]
struct RingArea {
    sender: CacheLine<SenderLine>,
    _unused: Padding<64>,
    /// Receiver: bytes ever taken out of it.
    taken: CacheLine<AtomicU64>,
    _unused_behind: Padding<{ 512 - 3 * 64 }>,
}

#[repr(C)]
#[cfg_attr(loom, derive(Default))]
struct SenderLine {
    /// Bytes ever put into the ring.
    put: AtomicU64,
    /// That number when the ring was empty last: the byte that followed lies at the ring's beginning.
    origin: AtomicU64,
}

/// A side that may sleep.
#[repr(C)]
#[cfg_attr(loom, derive(Default))]
struct SleepArea {
    /// What it sleeps for (`WANTS_...`); 0 while it is awake.
    wishes: CacheLine<AtomicU32>,
    _unused: Padding<64>,
}

#[cfg(not(loom))]
const _: () = {
    use std::mem::offset_of;
    assert!(size_of::<RingArea>() == 512 && size_of::<SleepArea>() == 2 * LINE_SIZE);
    assert!(offset_of!(RingArea, taken) == 128 && offset_of!(SenderLine, origin) == 8);
    assert!(offset_of!(SegmentArea, sleeps) == 1024 && offset_of!(SegmentArea, hazards) == 2048);
    assert!(offset_of!(SegmentArea, counters) == 2048 + 640);
    assert!(offset_of!(SegmentArea, bytes) == 4096 && SEGMENT_SIZE == 4096 + 2 * RING_SIZE);
};

// SAFETY: atomics, bytes that are only copied by their address, and bytes that are nobody's.
unsafe impl Layout for SegmentArea {}

/// The bytes of a ring.
#[repr(C)]
struct RingBytes(Bytes);

#[cfg(not(loom))]
type Bytes = std::cell::UnsafeCell<[u8; RING_SIZE]>;
#[cfg(loom)]
type Bytes = [loom::cell::UnsafeCell<u8>; RING_SIZE];

// SAFETY: of each byte it is known whose turn it is (invariant 4, and the numbers of the ring).
unsafe impl Sync for RingBytes {}

#[cfg(not(loom))]
impl RingBytes {
    /// Copies bytes into the ring. They lie in it from `position` on, and the peer has taken what was there.
    #[inline]
    fn put(&self, position: usize, source: &[u8]) {
        assert!(position <= RING_SIZE && source.len() <= RING_SIZE - position);
        // SAFETY: just checked; the peer does not read them before they are published. One that does so nonetheless
        // gets any mixture.
        unsafe { copy(source.as_ptr(), self.0.get().cast::<u8>().add(position), source.len()) };
    }

    /// Copies bytes out of the ring; `streaming`: past the cache.
    #[inline]
    fn take(&self, position: usize, target: &mut [u8], streaming: bool) {
        assert!(position <= RING_SIZE && target.len() <= RING_SIZE - position);
        // SAFETY: just checked. A hostile peer may change the bytes meanwhile: then we get other ones, which are as
        // untrusted as those that it put there first.
        unsafe {
            let source = self.0.get().cast::<u8>().add(position).cast_const();
            match streaming {
                true => copy_streaming(source, target.as_mut_ptr(), target.len()),
                false => copy(source, target.as_mut_ptr(), target.len()),
            }
        }
    }
}

#[cfg(loom)]
impl RingBytes {
    fn put(&self, position: usize, source: &[u8]) {
        for (index, byte) in source.iter().enumerate() {
            // SAFETY: loom tells when this is not so.
            self.0[position + index].with_mut(|place| unsafe { *place = *byte });
        }
    }

    fn take(&self, position: usize, target: &mut [u8], _streaming: bool) {
        for (index, byte) in target.iter_mut().enumerate() {
            // SAFETY: as above.
            *byte = self.0[position + index].with(|place| unsafe { *place });
        }
    }
}

#[cfg(loom)]
impl Default for RingBytes {
    fn default() -> Self {
        RingBytes(std::array::from_fn(|_| loom::cell::UnsafeCell::new(0)))
    }
}

/// Which end of the connection this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Caller = 0,
    Server = 1,
}

/// A segment, from one side.
pub struct Segment {
    area: Mapped<SegmentArea>,
    /// Nothing in models.
    mapping: Option<Rc<Mapping>>,
    side: Side,
    /// Bytes that we ever put into the outgoing ring, and took out of the incoming one.
    put: Cell<u64>,
    taken: Cell<u64>,
    /// Where the outgoing ring begins, as a number of bytes put.
    origin: Cell<u64>,
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
        let mapping = Rc::new(Mapping::new(file, 0, SEGMENT_SIZE as u64, Protection::ReadAndWrite)?);
        let memory: Rc<dyn Any> = mapping.clone();
        // SAFETY: so many bytes are mapped, and the peer is told to touch them as this struct says; what it writes else
        // is some number or some byte (invariant 1).
        let area = unsafe { Mapped::at(mapping.base(), memory) };
        Ok(Segment { mapping: Some(mapping), ..Segment::of(area, side) })
    }

    /// A side of a segment in memory that is there already.
    pub fn of(area: Mapped<SegmentArea>, side: Side) -> Segment {
        Segment { area, mapping: None, side, put: Cell::new(0), taken: Cell::new(0), origin: Cell::new(0) }
    }

    /// Has all pages here before they are needed: so many only for a peer that has proved itself.
    pub fn populate(&self) {
        if let Some(mapping) = &self.mapping {
            mapping.populate();
        }
    }

    /// What the caller holds.
    pub fn hazards(&self) -> Mapped<Hazards> {
        let memory: Rc<dyn Any> = Rc::new(self.area.clone());
        // SAFETY: they lie in the segment, which is held with them.
        unsafe { Mapped::at((&raw const self.area.hazards).cast(), memory) }
    }

    /// Caller: counts what it did by itself.
    #[inline]
    pub fn count(&self, counter: ClientCounter, count: u64) {
        self.area.counters.add(counter, count);
    }

    /// What the caller did by itself.
    pub fn counters(&self) -> Mapped<ClientCounters> {
        let memory: Rc<dyn Any> = Rc::new(self.area.clone());
        // SAFETY: they lie in the segment, which is held with them.
        unsafe { Mapped::at((&raw const self.area.counters).cast(), memory) }
    }

    #[inline]
    fn outgoing(&self) -> &RingArea {
        &self.area.rings[self.side as usize]
    }

    #[inline]
    fn incoming(&self) -> &RingArea {
        &self.area.rings[1 - self.side as usize]
    }

    /// Bytes that may be put into the outgoing ring now.
    #[inline]
    fn room(&self) -> io::Result<usize> {
        let taken = self.outgoing().taken.load(order_at(Barrier::RingTakenLook, Ordering::Acquire));
        let waiting = self.put.get().wrapping_sub(taken);
        if waiting > RING_SIZE as u64 {
            return Err(damaged());
        }
        Ok(RING_SIZE - waiting as usize)
    }

    /// Bytes that wait in the incoming ring.
    #[inline]
    fn waiting(&self) -> io::Result<usize> {
        let put = self.incoming().sender.put.load(order_at(Barrier::RingPutLook, Ordering::Acquire));
        let waiting = put.wrapping_sub(self.taken.get());
        if waiting > RING_SIZE as u64 { Err(damaged()) } else { Ok(waiting as usize) }
    }

    /// Whether receiving is worth a try: bytes are there, or an error shows.
    #[inline]
    pub fn has_bytes(&self) -> bool {
        self.waiting().map_or(true, |waiting| waiting > 0)
    }

    /// Whether sending is worth a try.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.room().map_or(true, |room| room > 0)
    }

    /// Puts bytes into the outgoing ring, as many as there is room for. Errors: `WouldBlock`, `InvalidData`.
    #[inline]
    pub fn send(&self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut room = self.room()?;
        if room == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let (ring, bytes) = (&self.outgoing().sender, &self.area.bytes[self.side as usize]);
        let (mut put, mut told) = (self.put.get(), self.put.get());
        let size: usize = pieces.iter().map(|piece| piece.len()).sum();
        if room == RING_SIZE && size <= ANEW_SIZE_MAX {
            self.origin.set(put);
            ring.origin.store(put, Ordering::Relaxed);
        }
        let origin = self.origin.get();
        let publish = |put| ring.put.store(put, order_at(Barrier::RingPut, Ordering::Release));
        for piece in pieces {
            let mut rest: &[u8] = piece;
            while !rest.is_empty() && room > 0 {
                let position = put.wrapping_sub(origin) as usize % RING_SIZE;
                let size = rest.len().min(room).min(RING_SIZE - position).min(STEP_SIZE);
                bytes.put(position, &rest[..size]);
                rest = &rest[size..];
                room -= size;
                put += size as u64;
                if put - told >= STEP_SIZE as u64 {
                    publish(put);
                    told = put;
                }
            }
        }
        publish(put);
        let sent = put - self.put.replace(put);
        Ok(sent as usize)
    }

    /// Takes bytes out of the incoming ring. Errors: `WouldBlock`, `InvalidData`.
    #[inline]
    pub fn receive(&self, places: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let mut waiting = self.waiting()?;
        if waiting == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let (ring, bytes) = (self.incoming(), &self.area.bytes[1 - self.side as usize]);
        let (mut taken, mut told) = (self.taken.get(), self.taken.get());
        // Whatever the peer wrote there, the position lies within the ring.
        let origin = ring.sender.origin.load(Ordering::Relaxed);
        let publish = |taken| ring.taken.store(taken, order_at(Barrier::RingTaken, Ordering::Release));
        // What a caller receives it reads next; a server puts it into its store.
        let streaming = self.side == Side::Server;
        for place in places {
            let mut rest: &mut [u8] = place;
            while !rest.is_empty() && waiting > 0 {
                let position = taken.wrapping_sub(origin) as usize % RING_SIZE;
                let size = rest.len().min(waiting).min(RING_SIZE - position).min(STEP_SIZE);
                bytes.take(position, &mut rest[..size], streaming);
                rest = &mut rest[size..];
                waiting -= size;
                taken += size as u64;
                if taken - told >= STEP_SIZE as u64 {
                    publish(taken);
                    told = taken;
                }
            }
        }
        publish(taken);
        let received = taken - self.taken.replace(taken);
        Ok(received as usize)
    }

    /// Whether the peer sleeps for this and has to be woken; asked after bytes were put or taken (invariant 3). It is
    /// told once.
    #[inline]
    pub fn must_wake_peer(&self, wish: u32) -> bool {
        fence_at(Barrier::WakeLook, Ordering::SeqCst);
        let wishes = &self.area.sleeps[1 - self.side as usize].wishes;
        // Of this exchange and the sleeper's own one comes first; what is looked at after either is ordered by fences.
        wishes.load(Ordering::Relaxed) & wish != 0 && wishes.swap(0, Ordering::Relaxed) != 0
    }

    /// Says what this side is going to sleep for; the caller looks once more after `before_last_look` (invariant 3).
    #[inline]
    pub fn announce_sleep(&self, wishes: u32) {
        self.area.sleeps[self.side as usize].wishes.store(wishes, Ordering::Relaxed);
    }

    /// Says that this side is awake. True if the peer has rung meanwhile, or is about to.
    #[inline]
    pub fn end_sleep(&self) -> bool {
        self.area.sleeps[self.side as usize].wishes.swap(0, Ordering::Relaxed) == 0
    }
}

/// Between `announce_sleep`, for any number of segments, and the last look whether something is there.
#[inline]
pub fn before_last_look() {
    fence_at(Barrier::SleepLook, Ordering::SeqCst);
}

const SEALS: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

#[cfg(all(test, not(loom)))]
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
        caller.outgoing().sender.put.store(u64::MAX / 2, Ordering::Relaxed);
        let mut place = [0; 16];
        let received = server.receive(&mut [IoSliceMut::new(&mut place)]);
        assert_eq!(received.expect_err("nonsense").kind(), io::ErrorKind::InvalidData);
        caller.incoming().taken.store(5, Ordering::Relaxed);
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
