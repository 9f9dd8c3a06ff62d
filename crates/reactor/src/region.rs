//! Storage as servers see it: named, mapped files of fixed size.
//!
//! Invariants
//! 1. No reference into a region is ever handed out: a peer's bytes arrive in it asynchronously. Access is by offset.
//! 2. Space is allocated (`Region::allocate`) before it is written; a hole in a full tmpfs would be a SIGBUS.
//! 3. A region is never shrunk while it is mapped, and punched (`Region::release`) only where nobody has a byte.

use crate::buffered::{BufferStatistics, PagePin};
use std::future::Future;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::rc::Rc;

/// A boxed future that stays on its loop.
pub type LocalFuture<T> = Pin<Box<dyn Future<Output = T>>>;

/// How `Storage::open` treats a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// The name must not exist yet; the region is created with the size asked for and reads as zeros.
    CreateNew,
    /// The name must exist; the size asked for is ignored and `Region::size` tells the real one.
    Existing,
}

/// One directory of named regions that belongs to one server.
pub trait Storage {
    /// Opens or creates a region of `size` bytes.
    ///
    /// Errors: `AlreadyExists`, `NotFound`, `InvalidInput` for a name with a slash, and whatever the file system says.
    fn open(&self, name: &str, size: u64, mode: OpenMode) -> io::Result<Rc<dyn Region>>;
    /// Whether a region of that name exists.
    fn exists(&self, name: &str) -> bool;
    /// Removes the name; regions that are open stay usable until they are dropped.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// All names, sorted.
    fn list(&self) -> Vec<String>;
    /// Takes the directory for this storage alone until it is dropped. Errors: `WouldBlock` when another one has it.
    fn lock_exclusive(&self) -> io::Result<()>;
    /// Bytes that the medium can still take.
    fn free_bytes(&self) -> u64;
    /// Whether the medium forgets at power loss (tmpfs).
    fn is_volatile(&self) -> bool;
    /// Names the time since power came on: as long as it is the same, everything ever written is still there, synced or
    /// not. Errors: it cannot be told.
    fn power_cycle(&self) -> io::Result<u128>;
    /// Makes names that were created or removed durable; resolves at once on volatile media.
    fn sync_names(&self) -> LocalFuture<io::Result<()>>;
    /// What the device does that keeps all this, if there is one of its own.
    fn buffer_statistics(&self) -> Option<BufferStatistics> {
        None
    }
}

/// Pages (of 4 KiB, counted from the start of the region) that somebody is about to touch, in a region of which only a
/// part is in memory. Ranges may overlap; what is in both lists counts as filled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PageNeed {
    /// Those with bytes that count.
    pub filled: Vec<Range<u64>>,
    /// Those of which no byte counts that is not about to be written.
    pub fresh: Vec<Range<u64>>,
}

impl PageNeed {
    /// Whether it names no page.
    pub fn is_empty(&self) -> bool {
        self.filled.is_empty() && self.fresh.is_empty()
    }
}

/// Where fresh pages that are pinned have their room from, in a region of which only a part is in memory.
#[derive(Clone, Copy)]
pub enum PageRoom<'a> {
    /// What is left, or can be made at once; not while others wait for room.
    Left,
    /// What was waited for (`Region::pin`), and more if that is too little.
    Granted(&'a PagePin),
    /// It is taken whether there is any or not.
    Any,
}

/// A mapped file of fixed size. Offsets and sizes are bytes; a range outside the region is a bug of the caller and
/// asserts.
pub trait Region {
    /// Size in bytes.
    fn size(&self) -> u64;
    /// Makes the range usable: space is taken from the medium now, pages are faulted in. What is there stays.
    ///
    /// Errors: `StorageFull` (ENOSPC), `EIO`.
    fn allocate(&self, offset: u64, size: u64) -> io::Result<()>;
    /// End of the last byte that may have been taken from the medium; what is behind was never written.
    fn data_end(&self) -> u64 {
        self.size()
    }
    /// Copies bytes out of the region.
    fn read(&self, offset: u64, into: &mut [u8]);
    /// Copies whole pages out of the region, whether they are in memory or not, and waits for them with everything else
    /// of the loop: for starts. Errors: the medium's.
    fn read_blocking(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.read(offset, into);
        Ok(())
    }
    /// Copies bytes into the region.
    fn write(&self, offset: u64, from: &[u8]);
    /// Copies within the region; the ranges may overlap.
    fn copy_within(&self, from: u64, to: u64, size: u64);
    /// Writes zeros.
    fn fill_zero(&self, offset: u64, size: u64);
    /// CRC-32C of a range.
    fn crc32c(&self, offset: u64, size: u64) -> u32;
    /// Address of the first byte, where a storage's regions have a page boundary; for transports, which move bytes
    /// between it and a stream, and for structs that processes share.
    fn base(&self) -> *mut u8;
    /// Tells that bytes are going to arrive in the range through `base`, or that what lies there will stand for
    /// something else from now on; whoever reads by short circuit notices ([`crate::StampedRegion`]).
    fn announce(&self, _offset: u64, _size: u64) {}
    /// Tells that bytes arrived in the range through `base`; to be called when the last of them is there.
    fn note_received(&self, offset: u64, size: u64);
    /// Makes the range durable as far as the medium can; resolves at once on volatile media.
    fn sync(&self, offset: u64, size: u64) -> LocalFuture<io::Result<()>>;
    /// Whether only a part of it is in memory at a time: then a page is pinned before any byte of it is read or
    /// written, and until that is over.
    fn is_partial(&self) -> bool {
        false
    }
    /// Pins pages if those with bytes that count are in memory, and there is room for the fresh ones, now.
    fn try_pin(&self, _need: &PageNeed, _room: PageRoom<'_>) -> Option<PagePin> {
        Some(PagePin::default())
    }
    /// Has pages with bytes that count in memory, which are read, and room for the fresh ones, which others make. What
    /// was fresh may have bytes that count by the end; so the caller pins what it needs then in that room
    /// ([`PageRoom::Granted`]). Errors: the medium's, `StorageFull`.
    fn pin(&self, _need: PageNeed) -> LocalFuture<io::Result<PagePin>> {
        Box::pin(std::future::ready(Ok(PagePin::default())))
    }
    /// Bytes of it that are in memory at most.
    fn memory(&self) -> u64 {
        self.size()
    }
    /// Has pages with bytes that count read into memory that somebody may ask for soon, if there is room at once.
    /// False if there is not. Errors of the medium are of no account here.
    fn fetch_ahead(&self, _need: &PageNeed) -> bool {
        false
    }
    /// Whether a range is in memory.
    fn is_resident(&self, _offset: u64, _size: u64) -> bool {
        true
    }
    /// Tells that from this byte on nothing counts that was ever written, until it is written again: to be called
    /// before anything is written in this life.
    fn note_unused(&self, _from: u64) {}
    /// Tells that what whole pages hold counts no more, until they are written to again, and may be anything then.
    fn release(&self, _offset: u64, _size: u64) {}
    /// Whether the medium forgets at power loss (tmpfs).
    fn is_volatile(&self) -> bool;
    /// Bytes of the largest pages that what was allocated lies on. Asking takes milliseconds.
    fn page_size(&self) -> u64 {
        4096
    }
    /// The file behind it, if there is one that another process could map.
    fn file(&self) -> Option<Rc<OwnedFd>> {
        None
    }
    /// Something to map single ranges through for writing, for one borrower. Errors: it can't be lent so.
    fn mapping_lock(&self) -> io::Result<Rc<dyn MappingLock>> {
        Err(io::ErrorKind::Unsupported.into())
    }
    /// The first bytes in the range that were lent for writing, in this life of the server or an earlier one, and that
    /// somebody may still write to. What can't be told counts as lent.
    fn borrowed(&self, _offset: u64, _size: u64) -> Option<Range<u64>> {
        None
    }
}

/// What one borrower writes to ranges of a region through ([`crate::RegisteredPages`]). The owner holds it, and whoever
/// has mapped something through it; a range that it holds is borrowed for as long as any of them is left.
pub trait MappingLock {
    /// Holds a range: from now on somebody may write to it. Errors: it can't be held; then nobody is to be told of it.
    fn hold(&self, offset: u64, size: u64) -> io::Result<()>;
    /// Nobody writes to the range any more, for who has borrowed it says so.
    fn let_go(&self, offset: u64, size: u64);
    /// The file to map ranges of, where there is one.
    fn file(&self) -> Option<&OwnedFd> {
        None
    }
    /// Copies bytes into the region as a borrower does, where there is no file. The range lies within the region.
    fn poke(&self, _offset: u64, _bytes: &[u8]) {}
}

/// A range of a region.
#[derive(Clone)]
pub struct Span {
    /// The region.
    pub region: Rc<dyn Region>,
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub size: u64,
}

impl Span {
    /// A part of this span, `offset` counted from its start.
    pub fn part(&self, offset: u64, size: u64) -> Span {
        assert!(offset <= self.size && size <= self.size - offset, "a part lies within its span");
        Span { region: self.region.clone(), offset: self.offset + offset, size }
    }

    /// Address of the first byte; for transports only.
    pub fn pointer(&self) -> *mut u8 {
        assert!(
            self.offset <= self.region.size() && self.size <= self.region.size() - self.offset,
            "a span lies within its region"
        );
        // The offset was just checked against the size of the mapping.
        self.region.base().wrapping_add(self.offset as usize)
    }
}

impl std::fmt::Debug for Span {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Span({}..{})", self.offset, self.offset + self.size)
    }
}
