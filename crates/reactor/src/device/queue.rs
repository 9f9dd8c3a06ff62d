//! The queue of one device: which operations are handed over, which wait, and what a completion means for the rest of
//! its bytes.
//!
//! Invariants
//! 1. At most `depth` operations are handed over at a time; `waiting` is empty while fewer are.
//! 2. Operations are handed over in the order in which they were asked for.

use super::{Abilities, Buffer, DeviceCounters, OperationKind};
use crate::operations::{Held, OperationTable};
use crate::region::Span;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

/// What a driver is to do next for an operation: the rest of its bytes.
pub(crate) struct Piece {
    pub kind: OperationKind,
    pub offset: u64,
    pub address: *mut u8,
    pub size: u64,
    /// Where the ring knows the buffer's pool by, if it does.
    pub buffer_slot: Option<u16>,
    /// Whether others may write to the memory meanwhile.
    pub is_shared: bool,
}

/// How a driver hands over operations of one device.
pub(crate) trait Handover {
    /// Prepares an operation; it is handed over with others, at the end of the turn at the latest. The entry of the
    /// table holds what the piece refers to until the driver completes it. False if the driver has ended.
    fn prepare(&self, index: u32, piece: &Piece) -> bool;
    /// Reads, writes or flushes at once and waits for it. A count, or a negated error number.
    fn move_now(&self, piece: &Piece) -> i32;
}

/// Operations that are held back for one system call: at least, and at most.
const BATCH: (usize, usize) = (4, 8);

/// Whether what is prepared is to go to the kernel before the end of the turn: where the device has less to do than we
/// hold back it would stand still until then, and where much is held back it runs low. `under_way` counts both.
/// Measured: notes/2026-11-25-device.md.
pub(crate) fn is_batch_due(prepared: usize, under_way: usize) -> bool {
    let (least, most) = BATCH;
    prepared >= under_way.saturating_sub(prepared).clamp(least, most)
}

/// What an operation moves bytes from or to.
pub(crate) enum TransferMemory {
    /// It moves none, or its memory is its caller's.
    None,
    /// A buffer of its own, from a byte on.
    Buffer(Buffer, u64),
    /// Bytes of a region, which others may write to meanwhile.
    Span(Span),
}

impl TransferMemory {
    /// Where its first byte is, and where the driver knows it by.
    fn place(&self) -> (*mut u8, Option<u16>) {
        match self {
            TransferMemory::None => (std::ptr::null_mut(), None),
            TransferMemory::Buffer(buffer, start) => (buffer.address().wrapping_add(*start as usize), buffer.slot()),
            TransferMemory::Span(span) => (span.pointer(), None),
        }
    }
}

/// One operation on a device.
pub(crate) struct Transfer {
    pub queue: Rc<DeviceQueue>,
    pub kind: OperationKind,
    pub offset: u64,
    pub size: u64,
    /// Bytes that were moved.
    pub done: u64,
    pub memory: TransferMemory,
}

/// What a completion means.
pub(crate) enum Next {
    /// There is a rest to move.
    Again,
    /// It has ended: a count, or a negated error number.
    Ended(i32),
}

impl Transfer {
    /// Takes a result of the driver for the piece that was handed over.
    pub fn advance(&mut self, result: i32) -> Next {
        if result == -libc::EINTR {
            return Next::Again;
        }
        if result < 0 || !self.kind.moves_bytes() {
            return Next::Ended(result.min(0));
        }
        let (before, alignment) = (self.done, self.queue.abilities.alignment());
        self.done += result as u64;
        assert!(self.done <= self.size, "no more is moved than was asked for");
        let is_aligned = self.done.is_multiple_of(alignment);
        match self.kind {
            _ if self.done == self.size => Next::Ended(self.done as i32),
            // Within a block only the end of the file stops a direct read, and the rest could not be asked for.
            OperationKind::Read if result == 0 || !is_aligned => Next::Ended(self.done as i32),
            OperationKind::Read => Next::Again,
            _ => {
                // A direct write goes on at the start of the block that it stopped in.
                self.done -= self.done % alignment;
                if self.done > before { Next::Again } else { Next::Ended(-libc::EIO) }
            }
        }
    }

    /// What is still to be done.
    pub fn piece(&self) -> Piece {
        let (start, buffer_slot) = self.memory.place();
        let address = start.wrapping_add(self.done as usize);
        let (offset, size) = (self.offset + self.done, self.size - self.done);
        let is_shared = matches!(self.memory, TransferMemory::Span(_));
        Piece { kind: self.kind, offset, address, size, buffer_slot, is_shared }
    }
}

/// A device as its operations see it.
pub(crate) struct DeviceQueue {
    pub path: Arc<Path>,
    pub abilities: Abilities,
    pub handover: Box<dyn Handover>,
    pub depth: u32,
    handed_over: Cell<u32>,
    waiting: RefCell<VecDeque<u32>>,
    /// Whether those that wait are being handed over.
    hands_over: Cell<bool>,
    pub counters: DeviceCounters,
}

impl DeviceQueue {
    pub fn new(path: Arc<Path>, abilities: Abilities, handover: Box<dyn Handover>, depth: u32) -> DeviceQueue {
        assert!(depth > 0, "a device does something");
        let (handed_over, waiting, hands_over, counters) = Default::default();
        DeviceQueue { path, abilities, handover, depth, handed_over, waiting, hands_over, counters }
    }

    /// Takes an operation: hands it over now, or when one before it has ended.
    pub fn enqueue(&self, table: &OperationTable, transfer: Transfer) -> u32 {
        let index = table.add(Held::Device(transfer));
        if self.handed_over.get() < self.depth {
            self.hand_over(table, index);
        } else {
            table.note_queued(index);
            self.waiting.borrow_mut().push_back(index);
        }
        index
    }

    fn hand_over(&self, table: &OperationTable, index: u32) {
        let Some(piece) = table.with_transfer(index, Transfer::piece) else { unreachable!("it was just added") };
        table.note_handed_over(index);
        let in_flight = self.handed_over.get() + 1;
        self.handed_over.set(in_flight);
        assert!(in_flight <= self.depth, "no more than the depth is handed over");
        self.counters.note_handed_over(in_flight);
        if !self.handover.prepare(index, &piece) {
            table.complete(index, -libc::ECANCELED);
        }
    }

    /// Hands over the rest of an operation, which keeps its place.
    pub fn hand_over_again(&self, table: &OperationTable, index: u32) {
        let Some(piece) = table.with_transfer(index, Transfer::piece) else { unreachable!("it is under way") };
        self.counters.note_short();
        if !self.handover.prepare(index, &piece) {
            table.complete(index, -libc::ECANCELED);
        }
    }

    /// One that was handed over has ended, so that the next can go.
    pub fn note_ended(&self, table: &OperationTable) {
        self.handed_over.set(self.handed_over.get() - 1);
        // Where handing over ends an operation at once it comes here again, and the loop below goes on.
        if self.hands_over.replace(true) {
            return;
        }
        while self.handed_over.get() < self.depth {
            let Some(index) = self.waiting.borrow_mut().pop_front() else { break };
            self.hand_over(table, index);
        }
        self.hands_over.set(false);
    }

    /// An operation that has not been handed over is gone.
    pub fn forget(&self, index: u32) {
        self.waiting.borrow_mut().retain(|waiting| *waiting != index);
    }

    /// Operations that are handed over, and that wait.
    pub fn counts(&self) -> (u32, u32) {
        (self.handed_over.get(), self.waiting.borrow().len() as u32)
    }
}
