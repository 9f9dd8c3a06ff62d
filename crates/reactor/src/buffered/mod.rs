//! Storage in memory that is kept on a device: each region lies in memory, as a whole or, one of them, a part at a time
//! (`residency.rs`), where it is read and written by address, and a sync writes the pages that have changed to the
//! device, past the kernel's page cache.
//!
//! The memory is a storage of its own that outlives the process but not a loss of power (a directory of a tmpfs). A
//! start that finds it goes on with it, so a killed process loses nothing. One that does not, or finds memory that
//! belongs to another life of the device, reads the device: then all is as it was at some sync, or newer here and
//! there, as on any medium that keeps what was synced. Pages of a region that were never written, with others behind
//! them that were, are then whatever the device has there; those behind the last that was written are zeros.
//!
//! Invariants
//! 1. Memory belongs to a device while the labels of both name the same life (`label.rs`). A new life is named on the
//!    device only when its memory holds all that the device has.
//! 2. A label on the device that is known to be there for good is not written over: the other slot is, until a flush
//!    has succeeded after it.
//! 3. The label that a flush makes durable says of each region at least what a sync that it speaks for has written.
//! 4. The space of a region that was removed is used again when a label without it is on the device for good.
//! 5. In memory the label has a region before anybody gets it, and not any more before anything of it goes.

mod flush;
mod label;
mod pages;
mod region;
mod residency;
#[cfg(test)]
mod tests;

use crate::device::{BufferPool, Device, DeviceError, DeviceStatistics};
use crate::region::{LocalFuture, OpenMode, Region, Storage};
use crate::{Class, Reactor};
use flush::{FlushGate, Writing};
use label::{Label, PAGE, REGIONS_START, SLOT_SIZE, SlotFault};
use region::{BufferedRegion, FILL_PAGES, RegionState, map_size};
use residency::Residency;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::rc::{Rc, Weak};

pub use residency::PagePin;

/// The label's copy in memory.
const NAME_LABEL: &str = "label";
/// What the name of a region's set of pages ends with.
const MAP_SUFFIX: &str = ".map";

/// A region of which only a part is in memory at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartialRegion {
    /// Its name.
    pub name: String,
    /// Bytes of it that are in memory at most.
    pub memory: u64,
}

/// What a device that keeps a storage does, and what of its partial region is in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BufferStatistics {
    /// What the device does.
    pub device: DeviceStatistics,
    /// Bytes of the partial region that are in memory, or on their way there.
    pub resident_bytes: u64,
    /// Bytes of all regions that the device does not have for good.
    pub dirty_bytes: u64,
    /// Operations that wait for bytes of the partial region, or for room.
    pub waiting: u64,
    /// Times that one began to.
    pub waits: u64,
}

/// What all regions of a storage share.
pub(crate) struct Medium {
    pub reactor: Reactor,
    pub device: Device,
    pub gate: Rc<FlushGate>,
    /// Without what its entries say of bytes, which the regions know.
    label: RefCell<Label>,
    /// Ranges of the device that are in use: where each begins, and its bytes.
    taken: RefCell<BTreeMap<u64, u64>>,
    /// Those of them that nobody uses any more, but for a label on the device.
    leaving: RefCell<Vec<u64>>,
    regions: RefCell<BTreeMap<String, Weak<RegionState>>>,
    /// Those without a name that somebody may still have.
    removed: RefCell<Vec<Weak<RegionState>>>,
    /// Memory for labels on their way to the device.
    pool: BufferPool,
    /// One buffer that is full of them, for what was never written.
    zeros: BufferPool,
    /// The slot whose label the device has for good.
    durable_slot: Cell<u64>,
    is_label_changed: Cell<bool>,
    /// Whether there may be a region that no label on the device has.
    has_new_region: Cell<bool>,
    this: Weak<Medium>,
}

impl Medium {
    /// Somebody will have to write the label before the next flush.
    pub fn note_label_change(&self) {
        self.is_label_changed.set(true);
    }

    /// A range of the device is in use no more. It is free when a label is on the device for good that says so: an
    /// older one would show it after power loss, with whatever has come into its place.
    pub fn free(&self, at: u64) {
        self.leaving.borrow_mut().push(at);
        self.note_label_change();
    }

    /// Makes durable what a sync has written.
    pub async fn flush(&self, writing: Writing) -> Result<(), DeviceError> {
        self.gate.end_writes(writing, || self.start_flush()).await
    }

    /// Somebody who held others up writes no more.
    pub fn flush_if_due(&self) {
        if self.gate.is_due() {
            self.start_flush();
        }
    }

    fn start_flush(&self) {
        let group = self.gate.take_group();
        let Some(medium) = self.this.upgrade() else { unreachable!("whoever calls it has it") };
        self.reactor.spawn(Class::Data, async move {
            let result = medium.write_label_and_flush().await;
            medium.gate.end_flush(group, result);
            medium.flush_if_due();
        });
    }

    async fn write_label_and_flush(&self) -> Result<(), DeviceError> {
        if !self.is_label_changed.replace(false) {
            return self.flush_device().await;
        }
        let result = self.write_label().await;
        if result.is_err() {
            self.note_label_change();
        }
        result
    }

    /// Writes the label into the slot that does not count, and makes it count.
    async fn write_label(&self) -> Result<(), DeviceError> {
        if self.has_new_region.replace(false) {
            // Else it might be there before the bytes of the region, with those of an earlier one in its place.
            self.flush_device().await.inspect_err(|_| self.has_new_region.set(true))?;
        }
        let slot = 1 - self.durable_slot.get();
        let (bytes, left) = (self.next_label().encode(), self.leaving.take());
        let mut buffer = self.pool.get().await;
        buffer[..bytes.len()].copy_from_slice(&bytes);
        let written = async {
            self.device.write(slot * SLOT_SIZE, buffer, bytes.len()).await.0?;
            self.flush_device().await
        };
        if let Err(error) = written.await {
            self.leaving.borrow_mut().extend(left);
            return Err(error);
        }
        self.durable_slot.set(slot);
        self.taken.borrow_mut().retain(|at, _| !left.contains(at));
        Ok(())
    }

    /// Those that have a name, and those that somebody still has.
    fn open_regions(&self) -> Vec<Rc<RegionState>> {
        let mut removed = self.removed.borrow_mut();
        removed.retain(|region| region.strong_count() > 0);
        self.regions.borrow().values().chain(&*removed).filter_map(Weak::upgrade).collect()
    }

    async fn flush_device(&self) -> Result<(), DeviceError> {
        let open = self.open_regions();
        open.iter().for_each(|region| region.begin_flush());
        let result = self.device.flush().await;
        open.iter().for_each(|region| region.end_flush(result.is_ok()));
        result
    }

    /// Writes a label while nobody is served yet, and makes it count.
    fn put_label(&self, slot: u64, label: &Label) -> io::Result<()> {
        let Some(mut buffer) = self.pool.take() else { unreachable!("nobody has it yet") };
        let bytes = label.encode();
        buffer[..bytes.len()].copy_from_slice(&bytes);
        self.device.write_blocking(slot * SLOT_SIZE, &mut buffer, bytes.len())?;
        self.device.flush_blocking()?;
        self.durable_slot.set(slot);
        Ok(())
    }

    /// The label as it is now, under a version of its own.
    fn next_label(&self) -> Label {
        let mut label = self.label.borrow_mut();
        label.version += 1;
        for (name, region) in &*self.regions.borrow() {
            if let (Some(entry), Some(region)) = (label.entries.get_mut(name), region.upgrade()) {
                *entry = region.entry();
            }
        }
        label.clone()
    }

    /// The error of a device that can't be used as it is.
    fn unusable(&self, words: &str) -> io::Error {
        io::Error::new(ErrorKind::InvalidData, format!("{}: {words}", self.device.path().display()))
    }
}

/// See the module.
pub struct BufferedStorage {
    medium: Rc<Medium>,
    image: Rc<dyn Storage>,
    /// The label in memory: two slots that are written in turn.
    slots: Rc<dyn Region>,
    next_slot: Cell<u64>,
    regions: RefCell<BTreeMap<String, Rc<RegionState>>>,
    life: u128,
    partial: Option<PartialRegion>,
}

impl BufferedStorage {
    /// Bytes of a device that hold regions of so many bytes together.
    pub fn device_size(regions: u64) -> u64 {
        REGIONS_START + regions.next_multiple_of(PAGE)
    }

    /// Bytes at the start of a device that tell whether there is a storage on it.
    pub const START_SIZE: u64 = 2 * SLOT_SIZE;

    /// Whether a device that begins with these bytes holds a storage, be it damaged or of another version.
    pub fn begins_with_label(start: &[u8]) -> bool {
        start.chunks(SLOT_SIZE as usize).take(2).any(|slot| slot.starts_with(&label::MAGIC))
    }

    /// Opens what a device holds, in a memory that nobody else has meanwhile; nothing if the device is blank, which has
    /// at least `size_min` bytes then. Where there is no memory yet it reads all but the partial region, which takes a
    /// while.
    ///
    /// Errors: the device's and the memory's; `InvalidData` if the device holds something else, is damaged, too small,
    /// or of a version that this program does not know; or if the memory has what another device, or an earlier life of
    /// this one, does not have yet. Nothing is written or removed then.
    pub fn open(
        reactor: &Reactor,
        image: Rc<dyn Storage>,
        device: Device,
        size_min: u64,
        partial: Option<PartialRegion>,
    ) -> io::Result<BufferedStorage> {
        let pool = reactor.buffer_pool(SLOT_SIZE as usize, 1)?;
        let zeros = reactor.buffer_pool((FILL_PAGES * PAGE) as usize, 1)?;
        let size = device.abilities().size / PAGE * PAGE;
        let blank = Label { version: 0, life: 0, size, entries: BTreeMap::new() };
        let medium = Rc::new_cyclic(|this| Medium {
            reactor: reactor.clone(),
            device,
            gate: Rc::default(),
            label: RefCell::new(blank),
            taken: RefCell::default(),
            leaving: RefCell::default(),
            regions: RefCell::default(),
            removed: RefCell::default(),
            pool,
            zeros,
            durable_slot: Cell::new(1),
            is_label_changed: Cell::new(true),
            // A life that was killed may have made one.
            has_new_region: Cell::new(true),
            this: this.clone(),
        });
        if medium.device.abilities().alignment() > PAGE {
            return Err(medium.unusable("it is written in blocks of more than 4 KiB, which a store can't use"));
        }
        let found = read_label(&medium)?;
        if found.is_none() && size < size_min {
            let words = format!("it has {size} bytes, and a store of this size takes {size_min}");
            return Err(medium.unusable(&words));
        }
        if let Some((slot, label)) = &found {
            if label.size > size {
                return Err(medium.unusable("it is shorter than it was when its store was made"));
            }
            // One that a life which was killed has written may not be there for good, or have been lost by a flush that
            // failed. Where it is, it is written over with itself.
            medium.put_label(*slot, label)?;
            let places = label.entries.values().map(|entry| (entry.at, entry.extent()));
            medium.taken.borrow_mut().extend(places);
            medium.label.replace(Label { size, ..label.clone() });
        }
        let life = found.as_ref().map_or(0, |(_, label)| label.life);
        match found
            .is_some()
            .then(|| BufferedStorage::take_over(&medium, &image, life, &partial))
            .transpose()?
            .flatten()
        {
            Some(storage) => Ok(storage),
            None if holds_changes(&*image) => Err(medium.unusable(
                "the memory of the store has changes that this device lacks, and belongs to another one, or to an \
                 earlier life of it; name the right device, or give them up by removing that memory",
            )),
            None => BufferedStorage::restore(medium, image, partial),
        }
    }

    /// Goes on with memory that belongs to the device. Nothing if it does not.
    fn take_over(
        medium: &Rc<Medium>,
        image: &Rc<dyn Storage>,
        life: u128,
        partial: &Option<PartialRegion>,
    ) -> io::Result<Option<BufferedStorage>> {
        if !image.exists(NAME_LABEL) {
            return Ok(None);
        }
        let slots = image.open(NAME_LABEL, 0, OpenMode::Existing)?;
        let read = |slot: u64| {
            let mut bytes = vec![0; SLOT_SIZE as usize];
            slots.read(slot * SLOT_SIZE, &mut bytes);
            Label::decode(&bytes).ok().map(|label| (slot, label))
        };
        let is_whole = slots.size() >= 2 * SLOT_SIZE;
        let newest = (0..2).filter(|_| is_whole).filter_map(read).max_by_key(|(_, label)| label.version);
        let Some((slot, label)) = newest.filter(|(_, label)| label.life == life) else { return Ok(None) };
        let version = medium.label.borrow().version.max(label.version);
        // What the device's own label has, and this one has not, is there until another label is.
        let is_gone = |at: &u64| !label.entries.values().any(|entry| entry.at == *at);
        medium.leaving.borrow_mut().extend(medium.taken.borrow().keys().copied().filter(is_gone));
        medium.taken.borrow_mut().extend(label.entries.values().map(|entry| (entry.at, entry.extent())));
        let size = medium.label.borrow().size;
        medium.label.replace(Label { version, size, ..label.clone() });
        let storage = BufferedStorage {
            medium: medium.clone(),
            image: image.clone(),
            slots,
            next_slot: Cell::new(1 - slot),
            regions: RefCell::default(),
            life,
            partial: partial.clone(),
        };
        storage.remove_leftovers()?;
        for (name, entry) in label.entries {
            let map = image.open(&map_name(&name), 0, OpenMode::Existing)?;
            let region = image.open(&name, 0, OpenMode::Existing)?;
            storage.put(&name, RegionState::new(medium, entry, region, map, storage.residency(&name)));
        }
        Ok(Some(storage))
    }

    /// Begins a new life of the memory, with what the device has.
    fn restore(
        medium: Rc<Medium>,
        image: Rc<dyn Storage>,
        partial: Option<PartialRegion>,
    ) -> io::Result<BufferedStorage> {
        image.list().iter().try_for_each(|name| image.remove(name))?;
        let life = u128::from(medium.reactor.random()) << 64 | u128::from(medium.reactor.random()) | 1;
        medium.label.borrow_mut().life = life;
        let slots = image.open(NAME_LABEL, 2 * SLOT_SIZE, OpenMode::CreateNew)?;
        slots.allocate(0, 2 * SLOT_SIZE)?;
        let (next_slot, regions) = Default::default();
        let storage = BufferedStorage { medium, image, slots, next_slot, regions, life, partial };
        let entries = storage.medium.label.borrow().entries.clone();
        for (name, entry) in entries {
            let state = storage.make_image(&name, entry)?;
            state.restore()?;
            storage.put(&name, state);
        }
        storage.write_label();
        let label = storage.medium.next_label();
        storage.medium.put_label(1 - storage.medium.durable_slot.get(), &label)?;
        Ok(storage)
    }

    /// Removes what a process that was killed was about to make or to remove.
    fn remove_leftovers(&self) -> io::Result<()> {
        let is_known = |name: &str| self.medium.label.borrow().entries.contains_key(name);
        let is_own = |name: &String| *name == NAME_LABEL || is_known(name.strip_suffix(MAP_SUFFIX).unwrap_or(name));
        self.image.list().iter().filter(|name| !is_own(name)).try_for_each(|name| self.image.remove(name))
    }

    /// The memory of a region: new, and nothing of it dirty.
    fn make_image(&self, name: &str, entry: label::Entry) -> io::Result<RegionState> {
        let map = self.image.open(&map_name(name), map_size(entry.size), OpenMode::CreateNew)?;
        map.allocate(0, map.size())?;
        let region = self.image.open(name, entry.extent(), OpenMode::CreateNew)?;
        Ok(RegionState::new(&self.medium, entry, region, map, self.residency(name)))
    }

    fn residency(&self, name: &str) -> Option<Residency> {
        let partial = self.partial.as_ref().filter(|partial| partial.name == name);
        partial.map(|partial| Residency::new(partial.memory))
    }

    fn put(&self, name: &str, state: RegionState) -> Rc<RegionState> {
        let state = Rc::new(state);
        self.medium.regions.borrow_mut().insert(name.to_owned(), Rc::downgrade(&state));
        self.regions.borrow_mut().insert(name.to_owned(), state.clone());
        state
    }

    /// Writes the label in memory.
    fn write_label(&self) {
        let bytes = self.medium.next_label().encode();
        let slot = self.next_slot.replace(1 - self.next_slot.get());
        self.slots.write(slot * SLOT_SIZE, &bytes);
        self.medium.note_label_change();
    }

    fn create(&self, name: &str, size: u64) -> io::Result<Rc<RegionState>> {
        if name == NAME_LABEL || name.ends_with(MAP_SUFFIX) {
            return Err(io::Error::new(ErrorKind::InvalidInput, "this name is the storage's own"));
        }
        if size == 0 {
            return Err(io::Error::new(ErrorKind::InvalidInput, "a region is not empty"));
        }
        let entry = {
            let mut taken = self.medium.taken.borrow_mut();
            let entry = self.medium.label.borrow_mut().add(name, size, &taken)?;
            taken.insert(entry.at, entry.extent());
            entry
        };
        match self.make_image(name, entry) {
            Ok(state) => {
                let state = self.put(name, state);
                self.write_label();
                self.medium.has_new_region.set(true);
                Ok(state)
            }
            Err(error) => {
                self.medium.label.borrow_mut().entries.remove(name);
                self.medium.free(entry.at);
                self.remove_image(name);
                Err(error)
            }
        }
    }

    /// What can't be removed from memory is, when it is opened the next time.
    fn remove_image(&self, name: &str) {
        let _ = (self.image.remove(name), self.image.remove(&map_name(name)));
    }
}

/// Whether a memory has pages that its device lacks, as far as can be told.
fn holds_changes(image: &dyn Storage) -> bool {
    let is_map = |name: &&String| name.ends_with(MAP_SUFFIX);
    let is_dirty = |name: &String| {
        let Ok(map) = image.open(name, 0, OpenMode::Existing) else { return true };
        let mut bytes = vec![0; map.size() as usize];
        map.read(0, &mut bytes);
        bytes.iter().skip(region::SET_START as usize).any(|byte| *byte != 0)
    };
    image.list().iter().filter(is_map).any(is_dirty)
}

fn map_name(name: &str) -> String {
    format!("{name}{MAP_SUFFIX}")
}

/// The label that counts on a device, with its slot; nothing if the device is blank. Errors: there is no label, and
/// something else.
fn read_label(medium: &Medium) -> io::Result<Option<(u64, Label)>> {
    let Some(mut buffer) = medium.pool.take() else { unreachable!("nobody has it yet") };
    let (mut newest, mut faults): (Option<(u64, Label)>, Vec<SlotFault>) = Default::default();
    let mut is_blank = true;
    if medium.device.abilities().size < REGIONS_START + PAGE {
        return Err(medium.unusable("it is too small: a store takes more than 1 MiB"));
    }
    for slot in 0..REGIONS_START / SLOT_SIZE {
        let count = medium.device.read_blocking(slot * SLOT_SIZE, &mut buffer, SLOT_SIZE as usize)?;
        is_blank &= buffer[..count].iter().all(|byte| *byte == 0);
        if slot >= 2 {
            continue;
        }
        match Label::decode(&buffer[..count]) {
            Ok(label) if newest.as_ref().is_none_or(|(_, newest)| newest.version < label.version) => {
                newest = Some((slot, label));
            }
            Ok(_) => {}
            Err(fault) => faults.push(fault),
        }
    }
    match (newest, &*faults) {
        (Some(newest), _) => Ok(Some(newest)),
        (None, _) if is_blank => Ok(None),
        (None, [.., SlotFault::Version(version)] | [SlotFault::Version(version), ..]) => {
            Err(medium.unusable(&format!("its store is of version {version}, which this program does not know")))
        }
        (None, _) => Err(medium
            .unusable("it holds no store, and is not empty; to make one there, take another, or wipe its first MiB")),
    }
}

impl Storage for BufferedStorage {
    fn open(&self, name: &str, size: u64, mode: OpenMode) -> io::Result<Rc<dyn Region>> {
        let known = self.regions.borrow().get(name).cloned();
        let state = match (known, mode) {
            (Some(_), OpenMode::CreateNew) => return Err(ErrorKind::AlreadyExists.into()),
            (Some(state), OpenMode::Existing) => state,
            (None, OpenMode::Existing) => return Err(ErrorKind::NotFound.into()),
            (None, OpenMode::CreateNew) => self.create(name, size)?,
        };
        Ok(Rc::new(BufferedRegion(state)))
    }

    fn exists(&self, name: &str) -> bool {
        self.regions.borrow().contains_key(name)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let state = self.regions.borrow_mut().remove(name).ok_or(ErrorKind::NotFound)?;
        let nameless = self.medium.regions.borrow_mut().remove(name);
        self.medium.removed.borrow_mut().extend(nameless);
        self.medium.label.borrow_mut().entries.remove(name);
        state.note_removed();
        self.write_label();
        self.remove_image(name);
        Ok(())
    }

    fn list(&self) -> Vec<String> {
        self.regions.borrow().keys().cloned().collect()
    }

    fn lock_exclusive(&self) -> io::Result<()> {
        self.image.lock_exclusive()
    }

    fn free_bytes(&self) -> u64 {
        let (taken, size) = (self.medium.taken.borrow(), self.medium.label.borrow().size);
        let on_device = size.saturating_sub(REGIONS_START + taken.values().sum::<u64>());
        self.image.free_bytes().min(on_device)
    }

    fn is_volatile(&self) -> bool {
        false
    }

    fn power_cycle(&self) -> io::Result<u128> {
        Ok(self.life)
    }

    fn sync_names(&self) -> LocalFuture<io::Result<()>> {
        let (medium, writing) = (self.medium.clone(), self.medium.gate.begin());
        let done = self.medium.reactor.spawn_joinable(Class::Data, async move { medium.flush(writing).await });
        Box::pin(async move { done.await.map_err(io::Error::from) })
    }

    fn buffer_statistics(&self) -> Option<BufferStatistics> {
        let device = self.medium.device.statistics();
        let mut statistics = BufferStatistics { device, ..BufferStatistics::default() };
        for region in self.medium.open_regions() {
            statistics.dirty_bytes += region.mapped.borrow().count() * PAGE;
            if let Some(residency) = &region.residency {
                residency.tell(&mut statistics);
            }
        }
        Some(statistics)
    }
}
