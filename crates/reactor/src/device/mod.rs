//! Devices: files and block devices that are read and written beside other work (docs/device.md).
//!
//! An operation takes its buffer, and gives it back when it has ended. Operations are begun when they are called, not
//! when they are first polled, so several can be under way; those of one turn are handed over together.
//!
//! Invariants
//! 1. A buffer whose operation has been handed over is reachable through the operation's entry alone, until the
//!    operation has ended (`operations.rs`); a dropped future changes nothing about it.
//! 2. At most `DeviceOptions::depth` operations are handed over at a time.
//! 3. Offsets, sizes and memory of reads and writes are multiples of `Abilities::alignment`.
//! 4. A flush speaks for what had ended before it was asked for; operations under way have no order among them.

mod abilities;
pub(crate) mod aio;
mod buffers;
pub(crate) mod open;
pub(crate) mod queue;
pub(crate) mod ring;
#[cfg(test)]
mod tests;

pub use abilities::{Abilities, Direct, locked_memory_max};
pub(crate) use buffers::Registration;
pub use buffers::{Buffer, BufferPool, BufferWait};

use crate::Nanos;
use crate::operations::{Ended, Held, OperationTable};
use crate::region::Span;
use queue::{DeviceQueue, Piece, Transfer, TransferMemory};
use std::cell::Cell;
use std::fmt;
use std::future::Future;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationKind {
    /// Bytes into a buffer.
    Read,
    /// Bytes out of a buffer.
    Write,
    /// What has ended before is on the medium afterwards.
    Flush,
    /// A range is of no use any more.
    Discard,
}

impl OperationKind {
    pub(crate) fn moves_bytes(self) -> bool {
        matches!(self, OperationKind::Read | OperationKind::Write)
    }

    fn word(self) -> &'static str {
        match self {
            OperationKind::Read => "read",
            OperationKind::Write => "write",
            OperationKind::Flush => "flush",
            OperationKind::Discard => "discard",
        }
    }
}

/// Whether the page cache is passed by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DirectMode {
    /// Where the file system can.
    #[default]
    Auto,
    /// Never.
    Never,
    /// Always: opening fails where the file system can't, or takes the flag and ignores it.
    Required,
}

/// How a device is opened.
#[derive(Clone, Debug)]
pub struct DeviceOptions {
    /// Makes a new file of so many bytes, with its space; the name must not exist.
    pub create: Option<u64>,
    /// Whether it is written to. A block device that is written to must not be mounted or in use by others.
    pub writable: bool,
    /// Whether the page cache is passed by.
    pub direct: DirectMode,
    /// Operations that are handed over at a time, at most [`DEPTH_MAX`].
    pub depth: u32,
    /// Whether nobody else may have it so meanwhile. Errors: `WouldBlock` where somebody has, `ResourceBusy` for a
    /// block device; it may be the kernel for a process that was just killed.
    pub exclusive: bool,
}

/// The most operations of a device that are handed over at a time.
pub const DEPTH_MAX: u32 = 1024;
impl Default for DeviceOptions {
    fn default() -> DeviceOptions {
        DeviceOptions { create: None, writable: true, direct: DirectMode::Auto, depth: 32, exclusive: false }
    }
}

/// Why an operation failed. It names what to look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceError {
    path: Arc<Path>,
    kind: OperationKind,
    offset: u64,
    size: u64,
    errno: i32,
}

impl DeviceError {
    /// The kernel's number for it.
    pub fn errno(&self) -> i32 {
        self.errno
    }

    /// First byte of the operation.
    pub fn offset(&self) -> u64 {
        self.offset
    }
}

impl fmt::Display for DeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.kind.word())?;
        if self.kind != OperationKind::Flush {
            write!(f, " of {} bytes at offset {}", self.size, self.offset)?;
        }
        write!(f, ": {}", io::Error::from_raw_os_error(self.errno))
    }
}

impl std::error::Error for DeviceError {}

impl From<DeviceError> for io::Error {
    fn from(error: DeviceError) -> io::Error {
        io::Error::new(io::Error::from_raw_os_error(error.errno).kind(), error)
    }
}

/// What a device has done since it was opened.
#[derive(Default)]
pub(crate) struct DeviceCounters(Cell<DeviceStatistics>);

impl DeviceCounters {
    fn update(&self, change: impl FnOnce(&mut DeviceStatistics)) {
        let mut statistics = self.0.get();
        change(&mut statistics);
        self.0.set(statistics);
    }

    fn note_handed_over(&self, in_flight: u32) {
        self.update(|statistics| statistics.in_flight_most = statistics.in_flight_most.max(in_flight));
    }

    fn note_short(&self) {
        self.update(|statistics| statistics.shorts += 1);
    }

    /// An operation is handed over that has waited for others to end.
    pub(crate) fn note_waited(&self, time: Nanos) {
        self.update(|statistics| statistics.waited_ns += time);
    }

    /// One that was handed over so long ago has come to a count, or a negated error number.
    pub(crate) fn note_ended(&self, transfer: &Transfer, result: i32, time: Nanos) {
        self.update(|statistics| {
            let kind = match transfer.kind {
                OperationKind::Read => &mut statistics.reads,
                OperationKind::Write => &mut statistics.writes,
                OperationKind::Flush => &mut statistics.flushes,
                OperationKind::Discard => &mut statistics.discards,
            };
            kind.count += 1;
            kind.bytes += transfer.done;
            kind.time_ns += time;
            statistics.failed += u64::from(result < 0);
        });
    }
}

/// Operations of one kind that have ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KindStatistics {
    /// How many, those that failed too.
    pub count: u64,
    /// Bytes that were moved.
    pub bytes: u64,
    /// Nanoseconds from when they were prepared for the kernel to when their completion was seen, of all together: by
    /// the time that passes, the mean number of operations that the device has at once.
    pub time_ns: u64,
}

/// What a device is doing and has done, beside what was waited for with everything else of the loop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceStatistics {
    /// Reads that have ended.
    pub reads: KindStatistics,
    /// Writes that have ended.
    pub writes: KindStatistics,
    /// Flushes that have ended.
    pub flushes: KindStatistics,
    /// Discards that have ended.
    pub discards: KindStatistics,
    /// Those of all these that failed.
    pub failed: u64,
    /// Times that the rest of one had to be asked for.
    pub shorts: u64,
    /// Operations that are handed over now.
    pub in_flight: u32,
    /// The most there ever were.
    pub in_flight_most: u32,
    /// Operations that wait for one of these to end.
    pub waiting: u32,
    /// Nanoseconds that operations have so waited, of all that were handed over.
    pub waited_ns: u64,
}

/// A file or block device of one loop. Clones are the same one; it is closed when the last of them is gone and its last
/// operation has ended.
#[derive(Clone)]
pub struct Device {
    table: Rc<OperationTable>,
    queue: Rc<DeviceQueue>,
}

impl Device {
    pub(crate) fn new(table: &Rc<OperationTable>, queue: DeviceQueue) -> Device {
        Device { table: table.clone(), queue: Rc::new(queue) }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.queue.path
    }

    /// What it can do.
    pub fn abilities(&self) -> &Abilities {
        &self.queue.abilities
    }

    /// What it is doing.
    pub fn statistics(&self) -> DeviceStatistics {
        let (in_flight, waiting) = self.queue.counts();
        DeviceStatistics { in_flight, waiting, ..self.queue.counters.0.get() }
    }

    /// Reads `size` bytes into the start of a buffer. What comes is how many there were: fewer than asked for only
    /// where the file ends.
    pub fn read(&self, offset: u64, buffer: Buffer, size: usize) -> DeviceTransfer {
        self.begin_transfer(OperationKind::Read, offset, buffer, 0, size)
    }

    /// Writes the first `size` bytes of a buffer: all of them, or there is an error.
    pub fn write(&self, offset: u64, buffer: Buffer, size: usize) -> DeviceTransfer {
        self.begin_transfer(OperationKind::Write, offset, buffer, 0, size)
    }

    /// Writes `size` bytes that begin within a buffer, after a header that came with them for instance. The start is
    /// aligned as offsets are.
    pub fn write_part(&self, offset: u64, buffer: Buffer, start: usize, size: usize) -> DeviceTransfer {
        self.begin_transfer(OperationKind::Write, offset, buffer, start, size)
    }

    /// Makes durable what was written before, by operations that have ended.
    pub fn flush(&self) -> DeviceCommand {
        self.begin_command(OperationKind::Flush, 0, 0)
    }

    /// Says that a range is of no use any more: until it is written again its bytes are what they were, or zeros.
    /// Errors: `EOPNOTSUPP` where the device can't; nothing depends on it.
    pub fn discard(&self, offset: u64, size: u64) -> DeviceCommand {
        self.begin_command(OperationKind::Discard, offset, size)
    }

    /// Writes the bytes of a span, whose place in memory and size are aligned as offsets are: all of them, or there is
    /// an error. Bytes that change meanwhile are written as they were or as they are.
    pub fn write_span(&self, offset: u64, span: Span) -> DeviceCommand {
        self.check_span(offset, &span);
        let size = span.size;
        DeviceCommand(self.begin(OperationKind::Write, offset, size, TransferMemory::Span(span)))
    }

    /// Reads into a span, whose place in memory and size are aligned as offsets are: as many bytes as there are. Nobody
    /// looks at them, or writes to them, until that has ended; the caller tells the region that they arrived.
    pub fn read_span(&self, offset: u64, span: Span) -> DeviceSpanRead {
        self.check_span(offset, &span);
        let size = span.size;
        DeviceSpanRead(self.begin(OperationKind::Read, offset, size, TransferMemory::Span(span)))
    }

    /// Reads as [`Device::read`] does, and waits for it with everything else of the loop: for starts.
    pub fn read_blocking(&self, offset: u64, buffer: &mut Buffer, size: usize) -> Result<usize, DeviceError> {
        self.check_range(offset, buffer, 0, size);
        self.move_blocking(OperationKind::Read, offset, buffer.address(), size)
    }

    /// Writes as [`Device::write`] does, and waits for it with everything else of the loop: for starts.
    pub fn write_blocking(&self, offset: u64, buffer: &mut Buffer, size: usize) -> Result<usize, DeviceError> {
        self.check_range(offset, buffer, 0, size);
        self.move_blocking(OperationKind::Write, offset, buffer.address(), size)
    }

    /// Reads into a span, whose place and size are aligned as offsets are, and waits for it as `read_blocking` does.
    pub fn read_span_blocking(&self, offset: u64, span: &Span) -> Result<usize, DeviceError> {
        self.check_span(offset, span);
        let count = self.move_blocking(OperationKind::Read, offset, span.pointer(), span.size as usize)?;
        span.region.note_received(span.offset, span.size);
        Ok(count)
    }

    /// Makes durable what was written before, and waits for it as `read_blocking` does.
    pub fn flush_blocking(&self) -> Result<(), DeviceError> {
        self.move_blocking(OperationKind::Flush, 0, std::ptr::null_mut(), 0).map(drop)
    }

    fn check_span(&self, offset: u64, span: &Span) {
        let (alignment, address) = (self.queue.abilities.alignment(), span.pointer() as u64);
        assert!(
            span.size > 0 && [offset, span.size, address].iter().all(|number| number.is_multiple_of(alignment)),
            "{}: {span:?} at {offset} is aligned to {alignment}",
            self.queue.path.display()
        );
    }

    fn check_range(&self, offset: u64, buffer: &Buffer, start: usize, size: usize) {
        let is_within = size > 0 && start <= buffer.len() && size <= buffer.len() - start;
        assert!(is_within, "{size} bytes from {start} on lie within a buffer of {}", buffer.len());
        let alignment = self.queue.abilities.alignment();
        assert!(
            [offset, size as u64, start as u64].iter().all(|number| number.is_multiple_of(alignment)),
            "{}: {size} bytes at {offset}, from {start} on, are aligned to {alignment}",
            self.queue.path.display()
        );
    }

    fn begin_transfer(
        &self,
        kind: OperationKind,
        offset: u64,
        buffer: Buffer,
        start: usize,
        size: usize,
    ) -> DeviceTransfer {
        self.check_range(offset, &buffer, start, size);
        DeviceTransfer(self.begin(kind, offset, size as u64, TransferMemory::Buffer(buffer, start as u64)))
    }

    fn begin_command(&self, kind: OperationKind, offset: u64, size: u64) -> DeviceCommand {
        DeviceCommand(self.begin(kind, offset, size, TransferMemory::None))
    }

    fn begin(&self, kind: OperationKind, offset: u64, size: u64, memory: TransferMemory) -> Begun {
        let transfer = Transfer { queue: self.queue.clone(), kind, offset, size, done: 0, memory };
        let index = self.queue.enqueue(&self.table, transfer);
        Begun { table: self.table.clone(), index: Some(index) }
    }

    fn move_blocking(
        &self,
        kind: OperationKind,
        offset: u64,
        memory: *mut u8,
        size: usize,
    ) -> Result<usize, DeviceError> {
        let (queue, size) = (self.queue.clone(), size as u64);
        let mut transfer = Transfer { queue, kind, offset, size, done: 0, memory: TransferMemory::None };
        loop {
            let address = memory.wrapping_add(transfer.done as usize);
            let piece = Piece { address, ..transfer.piece() };
            let result = self.queue.handover.move_now(&piece);
            if let queue::Next::Ended(result) = transfer.advance(result) {
                return transfer.outcome(result).map(|count| count as usize);
            }
        }
    }
}

impl Transfer {
    fn outcome(&self, result: i32) -> Result<u32, DeviceError> {
        if result >= 0 {
            return Ok(result as u32);
        }
        let (kind, offset, size) = (self.kind, self.offset + self.done, self.size - self.done);
        Err(DeviceError { path: self.queue.path.clone(), kind, offset, size, errno: -result })
    }
}

/// An operation that has begun.
struct Begun {
    table: Rc<OperationTable>,
    /// Nothing after it was taken.
    index: Option<u32>,
}

impl Begun {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<(Result<u32, DeviceError>, Option<Buffer>)> {
        let index = self.index.expect("a future is not polled after it completed");
        let Poll::Ready(Ended { result, held }) = self.table.poll(index, context) else { return Poll::Pending };
        self.index = None;
        let Held::Device(mut transfer) = held else { unreachable!("it began as an operation on a device") };
        let buffer = match std::mem::replace(&mut transfer.memory, TransferMemory::None) {
            TransferMemory::Buffer(buffer, _) => Some(buffer),
            TransferMemory::Span(_) | TransferMemory::None => None,
        };
        Poll::Ready((transfer.outcome(result), buffer))
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        if let Some(index) = self.index {
            self.table.abandon(index);
        }
    }
}

/// A read or write that has begun; it gives its buffer back. Dropping it leaves the operation to itself, and the buffer
/// returns to its pool when that has ended.
pub struct DeviceTransfer(Begun);

impl Future for DeviceTransfer {
    type Output = (Result<usize, DeviceError>, Buffer);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll(context).map(|(result, buffer)| {
            (result.map(|count| count as usize), buffer.expect("a transfer holds its buffer until it has ended"))
        })
    }
}

/// A flush, a discard, or a write of a span that has begun. Dropping it leaves it to itself.
pub struct DeviceCommand(Begun);

impl Future for DeviceCommand {
    type Output = Result<(), DeviceError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll(context).map(|(result, _)| result.map(drop))
    }
}

/// A read into a span that has begun. Dropping it leaves it to itself.
pub struct DeviceSpanRead(Begun);

impl Future for DeviceSpanRead {
    type Output = Result<usize, DeviceError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll(context).map(|(result, _)| result.map(|count| count as usize))
    }
}
