//! Simulated devices: operations that complete in any order, late, short or with EIO, over a medium with a cache that
//! power loss empties.
//!
//! Invariants
//! 1. `durable` is what the medium has for good, by sectors that differ from zero; `cache` is what completed writes
//!    have changed since, and processes see it first. Only a flush moves sectors from one to the other.
//! 2. A flush moves what had completed when it was handed over, and nothing whose flush has failed before.
//! 3. What is under way lies in `Pending`, with a copy of what is to be written: a buffer that differs from it when the
//!    write completes was used by somebody else meanwhile, and asserts.

use super::world::{CrashKind, Node, NodeId, Universe, World};
use crate::Nanos;
use crate::device::open::check_depth;
use crate::device::queue::{DeviceQueue, Handover, Piece};
use crate::device::{Abilities, Device, DeviceOptions, Direct, OperationKind};
use crate::operations::OperationTable;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::rc::{Rc, Weak};

/// The least that is written in one piece.
const SECTOR: u64 = 512;
/// How long operations take.
const MOVE_NS: (Nanos, Nanos) = (10_000, 300_000);
const FLUSH_NS: (Nanos, Nanos) = (50_000, 2_000_000);
/// How much longer the slow ones take.
const SLOWNESS: Nanos = 100;

type Sector = Box<[u8; SECTOR as usize]>;

/// How often the devices of a node do what, and how power loss tears. 0 is never, 1 always, and else one in so many
/// operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceFaults {
    /// 100 times as slow.
    pub slow: u32,
    /// Fewer bytes than asked for.
    pub short: u32,
    /// EIO; what was to be written is then as it was, as it should be, or a mixture.
    pub error: u32,
    /// Bytes that power loss keeps or takes together: 512 or 4,096.
    pub tear_size: u32,
    /// Flushes say that they have ended, and do nothing: a fault that tests must notice.
    pub ignores_flushes: bool,
}

impl Default for DeviceFaults {
    fn default() -> DeviceFaults {
        DeviceFaults { slow: 50, short: 50, error: 0, tear_size: 4096, ignores_flushes: false }
    }
}

/// A sector of the cache.
struct Cached {
    bytes: Sector,
    /// Which change it is of.
    change: u64,
    /// A flush of it has failed: no later one makes up for it.
    is_lost: bool,
}

/// What a device holds.
struct Medium {
    size: Cell<u64>,
    durable: RefCell<BTreeMap<u64, Sector>>,
    cache: RefCell<BTreeMap<u64, Cached>>,
    changes: Cell<u64>,
    /// The newest change that a flush under way speaks for.
    flushing: Cell<u64>,
}

impl Medium {
    fn new(size: u64) -> Medium {
        let (durable, cache, changes, flushing) = Default::default();
        Medium { size: Cell::new(size), durable, cache, changes, flushing }
    }

    /// Copies out what processes see.
    fn read(&self, offset: u64, into: &mut [u8]) {
        let (durable, cache) = (self.durable.borrow(), self.cache.borrow());
        for (index, part) in into.chunks_mut(SECTOR as usize).enumerate() {
            let sector = offset / SECTOR + index as u64;
            match cache.get(&sector).map(|cached| &cached.bytes).or_else(|| durable.get(&sector)) {
                Some(bytes) => part.copy_from_slice(&bytes[..part.len()]),
                None => part.fill(0),
            }
        }
    }

    fn write_sector(&self, sector: u64, bytes: &[u8]) {
        let mut whole = Box::new([0; SECTOR as usize]);
        whole[..bytes.len()].copy_from_slice(bytes);
        self.changes.set(self.changes.get() + 1);
        let new = Cached { bytes: whole, change: self.changes.get(), is_lost: false };
        let old = self.cache.borrow_mut().insert(sector, new);
        if let Some(old) = old.filter(|old| !old.is_lost && old.change <= self.flushing.get()) {
            // A flush is to make it durable, and finds newer bytes in its place.
            self.durable.borrow_mut().insert(sector, old.bytes);
        }
    }

    /// Writes each part of `unit` bytes that `keeps` says yes to.
    fn write(&self, offset: u64, bytes: &[u8], unit: u64, mut keeps: impl FnMut() -> bool) {
        let mut kept = (0, false);
        for (index, part) in bytes.chunks(SECTOR as usize).enumerate() {
            let sector = offset / SECTOR + index as u64;
            let number = sector * SECTOR / unit + 1;
            if kept.0 != number {
                kept = (number, keeps());
            }
            if kept.1 {
                self.write_sector(sector, part);
            }
        }
    }

    /// Makes durable what is no newer than a change, or marks it as lost.
    fn flush(&self, change: u64, failed: bool) {
        if self.flushing.get() <= change {
            self.flushing.set(0);
        }
        let mut cache = self.cache.borrow_mut();
        let due: Vec<u64> =
            cache.iter().filter(|(_, cached)| cached.change <= change && !cached.is_lost).map(|(at, _)| *at).collect();
        for sector in due {
            match failed {
                true => cache.entry(sector).and_modify(|cached| cached.is_lost = true),
                false => {
                    if let Some(cached) = cache.remove(&sector) {
                        self.durable.borrow_mut().insert(sector, cached.bytes);
                    }
                    continue;
                }
            };
        }
    }

    /// What power loss does to the cache: each part is kept or lost.
    fn lose_power(&self, universe: &Universe, unit: u64) {
        let mut kept = (0, false);
        for (sector, cached) in std::mem::take(&mut *self.cache.borrow_mut()) {
            let number = sector * SECTOR / unit + 1;
            if kept.0 != number {
                kept = (number, universe.below(2) == 0);
            }
            if kept.1 {
                self.durable.borrow_mut().insert(sector, cached.bytes);
            }
            universe.trace(0x60, sector << 1 | u64::from(kept.1));
        }
    }
}

/// An operation that is under way.
struct Pending {
    medium: Rc<Medium>,
    table: Weak<OperationTable>,
    index: u32,
    kind: OperationKind,
    offset: u64,
    size: u64,
    address: *mut u8,
    /// What is to be written.
    bytes: Vec<u8>,
    /// Whether others may write to the memory meanwhile.
    is_shared: bool,
    /// The newest change when it was handed over.
    change: u64,
}

/// The devices of a node, which outlive its processes, and what is under way.
#[derive(Default)]
pub(crate) struct Devices {
    media: RefCell<BTreeMap<String, Rc<Medium>>>,
    faults: Cell<DeviceFaults>,
    /// By time, and in the order in which they were handed over.
    pending: RefCell<BTreeMap<(Nanos, u64), Pending>>,
    handed_over: Cell<u64>,
    errors_in: Cell<u64>,
}

impl Devices {
    /// When the next operation completes, in world time.
    pub fn next_completion(&self) -> Option<Nanos> {
        self.pending.borrow().keys().next().map(|(due, _)| *due)
    }

    /// Completes what is due. True if there was anything.
    pub fn complete_due(&self, universe: &Universe) -> bool {
        let mut any = false;
        while let Some(pending) = self.take_due(universe.time.get()) {
            let result = self.finish(universe, &pending);
            universe.trace(0x61, pending.offset.rotate_left(32) ^ result as u64);
            if let Some(table) = pending.table.upgrade() {
                table.complete(pending.index, result);
            }
            any = true;
        }
        any
    }

    fn take_due(&self, time: Nanos) -> Option<Pending> {
        let mut pending = self.pending.borrow_mut();
        let first = pending.first_entry()?;
        (first.key().0 <= time).then(|| first.remove())
    }

    /// The world ends.
    pub fn clear(&self) {
        self.pending.take();
        self.media.take();
    }

    fn one_in(universe: &Universe, count: u32) -> bool {
        count > 0 && universe.below(u64::from(count)) == 0
    }

    /// Does an operation to the medium. A count, or a negated error number.
    fn finish(&self, universe: &Universe, pending: &Pending) -> i32 {
        let Pending { medium, offset, size, .. } = pending;
        let faults = self.faults.get();
        let is_planned = self.errors_in.get() == 1;
        self.errors_in.set(self.errors_in.get().saturating_sub(1));
        let fails = is_planned || Devices::one_in(universe, faults.error);
        let beyond = pending.kind != OperationKind::Flush && offset + size > medium.size.get();
        let moved = match Devices::one_in(universe, faults.short) && *size > SECTOR {
            true => (1 + universe.below(size / SECTOR - 1)) * SECTOR,
            false => *size,
        };
        match pending.kind {
            OperationKind::Flush => medium.flush(pending.change, fails),
            OperationKind::Discard if !fails && !beyond => {
                let zeros = vec![0; *size as usize];
                medium.write(*offset, &zeros, SECTOR, || universe.below(2) == 0);
            }
            OperationKind::Write => {
                // SAFETY: the entry holds the buffer until this completes, and a crash drops what is pending.
                let now = unsafe { std::slice::from_raw_parts(pending.address, *size as usize) };
                assert!(
                    pending.is_shared || pending.is_ownerless() || now == pending.bytes,
                    "a buffer belongs to its write until that ends"
                );
                match fails || beyond {
                    true => medium.write(*offset, self.within(pending), SECTOR, || universe.below(2) == 0),
                    false => medium.write(*offset, &pending.bytes[..moved as usize], SECTOR, || true),
                }
                if pending.is_shared && !fails && !beyond {
                    // What has changed meanwhile is written as it is, here and there.
                    medium.write(*offset, &now[..moved as usize], SECTOR, || universe.below(2) == 0);
                }
            }
            OperationKind::Read if !fails && !beyond => {
                // SAFETY: as above.
                let into = unsafe { std::slice::from_raw_parts_mut(pending.address, moved as usize) };
                medium.read(*offset, into);
            }
            _ => {}
        }
        if fails || beyond {
            -libc::EIO
        } else if pending.kind.moves_bytes() {
            moved as i32
        } else {
            0
        }
    }

    /// What of a write lies within a medium that was cut short.
    fn within<'a>(&self, pending: &'a Pending) -> &'a [u8] {
        let left = pending.medium.size.get().saturating_sub(pending.offset);
        &pending.bytes[..pending.bytes.len().min((left - left % SECTOR) as usize)]
    }

    /// The node went down. What was handed over and not told of has happened or not, and with power lost in part.
    pub fn crash(&self, universe: &Universe, kind: CrashKind) {
        self.errors_in.set(0);
        let unit = u64::from(self.faults.get().tear_size);
        for pending in std::mem::take(&mut *self.pending.borrow_mut()).into_values() {
            if pending.kind == OperationKind::Write {
                let bytes = self.within(&pending);
                match kind {
                    CrashKind::Kill if universe.below(2) == 0 => {}
                    CrashKind::Kill => pending.medium.write(pending.offset, bytes, SECTOR, || true),
                    CrashKind::PowerLoss => {
                        pending.medium.write(pending.offset, bytes, unit, || universe.below(2) == 0);
                    }
                }
            }
        }
        self.media.borrow().values().for_each(|medium| medium.flushing.set(0));
        if kind == CrashKind::PowerLoss {
            for medium in self.media.borrow().values() {
                medium.lose_power(universe, unit);
            }
        }
    }
}

impl Pending {
    /// Whether the driver is gone whose operation it was.
    fn is_ownerless(&self) -> bool {
        self.table.strong_count() == 0
    }
}

/// A device as a life of its node has it open.
struct SimDeviceFile {
    universe: Rc<Universe>,
    node: Rc<Node>,
    incarnation: u64,
    medium: Rc<Medium>,
    table: Weak<OperationTable>,
}

impl SimDeviceFile {
    fn is_alive(&self) -> bool {
        self.node.incarnation.get() == self.incarnation && self.node.running.get()
    }

    fn due(&self, kind: OperationKind) -> Nanos {
        let universe = &*self.universe;
        let (least, most) = if kind == OperationKind::Flush { FLUSH_NS } else { MOVE_NS };
        if universe.agenda.borrow().is_some() {
            return self.node.moment(universe) + least;
        }
        let slowness = if Devices::one_in(universe, self.node.devices.faults.get().slow) { SLOWNESS } else { 1 };
        universe.time.get() + slowness * universe.between(least, most)
    }

    fn pending(&self, index: u32, piece: &Piece) -> Pending {
        let bytes = match piece.kind {
            // SAFETY: the entry holds the buffer, which nobody else touches.
            OperationKind::Write => unsafe { std::slice::from_raw_parts(piece.address, piece.size as usize) }.to_vec(),
            _ => Vec::new(),
        };
        let &Piece { kind, offset, address, size, is_shared, .. } = piece;
        let (medium, table, change) = (self.medium.clone(), self.table.clone(), self.medium.changes.get());
        Pending { medium, table, index, kind, offset, size, address, bytes, is_shared, change }
    }
}

impl Handover for SimDeviceFile {
    fn prepare(&self, index: u32, piece: &Piece) -> bool {
        if !self.is_alive() {
            return false;
        }
        let devices = &self.node.devices;
        let pending = self.pending(index, piece);
        self.universe.trace(0x62, piece.offset.rotate_left(32) ^ piece.size ^ (piece.kind as u64) << 56);
        if self.node.frozen.get() {
            // It has crashed: nothing of this happens, and nobody hears of it.
            return true;
        }
        if piece.kind == OperationKind::Flush && devices.faults.get().ignores_flushes {
            let nothing = Pending { change: 0, ..pending };
            devices.pending.borrow_mut().insert((self.due(piece.kind), self.next_order()), nothing);
            return true;
        }
        if piece.kind == OperationKind::Flush {
            self.medium.flushing.set(pending.change);
        }
        devices.pending.borrow_mut().insert((self.due(piece.kind), self.next_order()), pending);
        true
    }

    fn move_now(&self, piece: &Piece) -> i32 {
        if !self.is_alive() {
            return -libc::ECANCELED;
        }
        if self.node.frozen.get() && piece.kind != OperationKind::Read {
            // It has crashed: nothing of this happens.
            return piece.size as i32;
        }
        let pending = Pending { table: Weak::new(), ..self.pending(0, piece) };
        self.node.devices.finish(&self.universe, &pending)
    }
}

impl SimDeviceFile {
    fn next_order(&self) -> u64 {
        let devices = &self.node.devices;
        devices.handed_over.replace(devices.handed_over.get() + 1)
    }
}

/// Opens a device of a node.
pub(super) fn open(
    universe: &Rc<Universe>,
    node: &Rc<Node>,
    table: &Rc<OperationTable>,
    path: &Path,
    options: &DeviceOptions,
) -> io::Result<Device> {
    check_depth(options.depth)?;
    let name = path.to_string_lossy().into_owned();
    let said = |kind: ErrorKind| io::Error::new(kind, format!("{name}: {kind}"));
    let mut media = node.devices.media.borrow_mut();
    let medium = match (media.get(&name), options.create) {
        (Some(_), Some(_)) => return Err(said(ErrorKind::AlreadyExists)),
        (Some(medium), None) => medium.clone(),
        (None, None) => return Err(said(ErrorKind::NotFound)),
        (None, Some(size)) => media.entry(name).or_insert(Rc::new(Medium::new(size))).clone(),
    };
    let abilities = Abilities {
        interface: "sim",
        // A file system under it has more to do.
        is_block_device: false,
        size: medium.size.get(),
        direct: Direct::Yes { memory: SECTOR, offset: SECTOR },
        is_volatile: false,
        is_file_registered: false,
        locked_memory_max: None,
        can_poll: false,
        requests_max: None,
        has_write_cache: Some(true),
    };
    let (universe, node, incarnation) = (universe.clone(), node.clone(), node.incarnation.get());
    let file = SimDeviceFile { universe, node, incarnation, medium, table: Rc::downgrade(table) };
    Ok(Device::new(table, DeviceQueue::new(path.into(), abilities, Box::new(file), options.depth)))
}

impl World {
    /// Sets what the devices of a node do wrong from now on.
    pub fn set_device_faults(&self, node: NodeId, faults: DeviceFaults) {
        assert!([512, 4096].contains(&faults.tear_size), "devices write 512 bytes or 4 KiB in one piece");
        self.universe.node(node).devices.faults.set(faults);
    }

    /// Makes the `count`-th next operation on a device of a node (counted from 1) fail with EIO.
    pub fn fail_device(&self, node: NodeId, count: u64) {
        assert!(count > 0);
        self.universe.node(node).devices.errors_in.set(count);
    }

    /// Flips the bits of `mask` in one byte of a device. Panics if there is no such device.
    pub fn corrupt_device(&self, node: NodeId, path: &str, offset: u64, mask: u8) {
        self.universe.trace(0x63, offset << 8 | u64::from(mask));
        let medium = self.medium(node, path);
        let (sector, at) = (offset / SECTOR, (offset % SECTOR) as usize);
        if let Some(cached) = medium.cache.borrow_mut().get_mut(&sector) {
            cached.bytes[at] ^= mask;
        }
        medium.durable.borrow_mut().entry(sector).or_insert_with(|| Box::new([0; SECTOR as usize]))[at] ^= mask;
    }

    /// Takes all devices of a node away, with what they hold.
    pub fn remove_devices(&self, node: NodeId) {
        self.universe.trace(0x65, 0);
        self.universe.node(node).devices.media.borrow_mut().clear();
    }

    /// Cuts a device short: whoever goes beyond its end gets EIO. Panics if there is no such device.
    pub fn cut_device(&self, node: NodeId, path: &str, size: u64) {
        self.universe.trace(0x64, size);
        self.medium(node, path).size.set(size);
    }

    fn medium(&self, node: NodeId, path: &str) -> Rc<Medium> {
        let node = self.universe.node(node);
        let medium = node.devices.media.borrow().get(path).cloned();
        medium.expect("the device exists")
    }
}
