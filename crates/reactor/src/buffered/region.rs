//! A region of a buffered storage: all of it in memory, or a part at a time (`residency.rs`), with a set of the pages
//! that the device lacks.
//!
//! Invariants
//! 1. A page is in `dirty`, and in the map, before a byte of it is changed by a call, and before whoever received bytes
//!    into it is told so. It goes over to `unflushed` when a write of it has ended that began after the last change,
//!    and leaves the map when a flush has succeeded that began after that. A flush that fails makes it dirty again: the
//!    device may have lost it for good.
//! 2. One pass at a time writes pages of a region, and the next begins when all writes of the one before have ended:
//!    no write of older bytes lands after one of newer ones.
//! 3. The device's space of a region that was removed is given up when nobody has the region, and no write of it is
//!    under way.

use super::Medium;
use super::label::{Entry, PAGE};
use super::pages::{PageSet, WORD_PAGES};
use super::residency::{PagePin, Residency, end_error};
use crate::Class;
use crate::device::{Buffer, DeviceCommand, DeviceError, DeviceTransfer};
use crate::region::{LocalFuture, PageNeed, PageRoom, Region, Span};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::ops::Range;
use std::rc::Rc;
use std::task::{Poll, Waker};

/// Pages that one write has at most: 256 KiB.
pub const RUN_PAGES_MAX: u64 = 64;
/// Writes of a pass under way at a time.
pub const WRITES_MAX: usize = 32;
/// Bytes by which grows what a label says of the space of a region that is in memory in part.
const ALLOCATION_STEP: u64 = 64 << 20;
/// Pages that are written at once where nothing was yet: what a file system has set aside, and nobody has written to,
/// makes each first flush of a page wait for two writes of its own.
pub const FILL_PAGES: u64 = 64;
/// Longest run behind which that is done: where more is written for each flush, such writes matter less than as many
/// bytes again.
const FILL_RUN_PAGES_MAX: u64 = 8;
/// Where the sets of pages begin in the region of them: after the numbers of bytes that were written and have space.
pub const SET_START: u64 = 16;

/// Bytes of the set of pages of a region of so many bytes.
pub fn map_size(size: u64) -> u64 {
    (SET_START + size.div_ceil(PAGE).div_ceil(8)).next_multiple_of(PAGE)
}

/// What all that have a region open share.
pub struct RegionState {
    pub medium: Rc<Medium>,
    /// Where it is on the device.
    pub at: u64,
    /// Its size as it was asked for; in memory it has whole pages.
    size: u64,
    pub image: Rc<dyn Region>,
    map: Rc<dyn Region>,
    /// Pages that the device lacks.
    pub dirty: RefCell<PageSet>,
    /// Pages that it was given since the last flush began, and before it.
    pub unflushed: RefCell<PageSet>,
    pub flushing: RefCell<PageSet>,
    /// All of these; `map` has the same.
    pub mapped: RefCell<PageSet>,
    /// Which pages are in memory, where not all are.
    pub residency: Option<Residency>,
    /// Pages that were changed since the pass that is under way handed them over.
    rewritten: RefCell<PageSet>,
    has_pass: Cell<bool>,
    /// The first page of those, up to the region's end, that hold nothing and that nobody has written to, where it is
    /// known (`Region::note_unused`).
    unwritten: Cell<Option<u64>>,
    waiting: RefCell<Vec<Waker>>,
    allocated: Cell<u64>,
    written: Cell<u64>,
    is_removed: Cell<bool>,
}

impl RegionState {
    /// A region whose memory is there; what its map says of it holds. With `residency`, pages that the device has are
    /// in memory no more.
    pub fn new(
        medium: &Rc<Medium>,
        entry: Entry,
        image: Rc<dyn Region>,
        map: Rc<dyn Region>,
        residency: Option<Residency>,
    ) -> RegionState {
        let number = |at: u64| {
            let mut bytes = [0; 8];
            map.read(at, &mut bytes);
            u64::from_le_bytes(bytes)
        };
        let (mut dirty, mut mapped): (PageSet, PageSet) = Default::default();
        for word in 0..entry.size.div_ceil(PAGE).div_ceil(WORD_PAGES) {
            let bits = number(SET_START + word * 8);
            dirty.load(word, bits);
            mapped.load(word, bits);
        }
        let state = RegionState {
            medium: medium.clone(),
            at: entry.at,
            size: entry.size,
            allocated: Cell::new(number(8).max(entry.allocated)),
            written: Cell::new(number(0).max(entry.written)),
            image,
            map,
            dirty: RefCell::new(dirty),
            unflushed: RefCell::default(),
            flushing: RefCell::default(),
            mapped: RefCell::new(mapped),
            rewritten: RefCell::default(),
            has_pass: Cell::new(false),
            unwritten: Cell::new(None),
            waiting: RefCell::default(),
            is_removed: Cell::new(false),
            residency,
        };
        state.begin_residency();
        state
    }

    /// What the label says of it.
    pub fn entry(&self) -> Entry {
        Entry { at: self.at, size: self.size, allocated: self.allocated.get(), written: self.written.get() }
    }

    /// Its name was removed.
    pub fn note_removed(&self) {
        self.is_removed.set(true);
    }

    /// Gives a new life of the memory what the device has. Errors: the device's, no memory.
    pub fn restore(&self) -> io::Result<()> {
        const STEP: u64 = 1 << 20;
        let (allocated, written) = (self.allocated.get(), self.written.get());
        self.note_number(0, written);
        self.note_number(8, allocated);
        if self.residency.is_some() {
            return Ok(());
        }
        self.image.allocate(0, allocated.max(written))?;
        for offset in (0..written).step_by(STEP as usize) {
            let size = STEP.min(written - offset);
            let span = Span { region: self.image.clone(), offset, size };
            let count = self.medium.device.read_span_blocking(self.at + offset, &span)?;
            if count as u64 != size {
                return Err(end_error(self.medium.device.path(), self.at + offset + count as u64));
            }
        }
        Ok(())
    }

    fn note_number(&self, at: u64, number: u64) {
        self.map.write(at, &number.to_le_bytes());
    }

    pub fn put_word(&self, number: u64, word: u64) {
        self.map.write(SET_START + number * 8, &word.to_le_bytes());
    }

    /// Bytes of the range are about to change, or have changed.
    fn note_change(&self, offset: u64, size: u64) {
        if size == 0 {
            return;
        }
        let mut pages = pages_of(offset, size);
        assert!(self.is_resident(pages.clone()), "pages are pinned before they are changed");
        // Of a region that is in memory in part nobody asks: what counts in it is known elsewhere, and a label takes a
        // write before each flush.
        if self.residency.is_none() && pages.end * PAGE > self.written.get() {
            // With the zeros that are behind it in memory.
            pages.end = pages.end.next_multiple_of(FILL_PAGES).min(self.size.div_ceil(PAGE));
            self.written.set(pages.end * PAGE);
            self.note_number(0, pages.end * PAGE);
            self.medium.note_label_change();
        }
        self.dirty.borrow_mut().add(pages.clone(), |_, _| {});
        self.mapped.borrow_mut().add(pages.clone(), |number, word| self.put_word(number, word));
        if self.has_pass.get() {
            self.rewritten.borrow_mut().add(pages, |_, _| {});
        }
    }

    /// Writes what is dirty in a range of pages. With `fills` a flush follows, and what a short run leaves of a block
    /// that nobody has written to is filled.
    pub async fn write_back(&self, pages: Range<u64>, fills: bool) -> Result<(), DeviceError> {
        self.begin_pass().await;
        let gate = &self.medium.gate;
        let mut under_way: VecDeque<(Range<u64>, u64, DeviceCommand)> = VecDeque::new();
        let (mut from, mut result, mut filling) = (pages.start, Ok(()), None);
        loop {
            let run = self.dirty.borrow().run(from..pages.end, RUN_PAGES_MAX);
            if let Some(run) = &run {
                from = run.end;
                self.rewritten.borrow_mut().hand_on(run.clone(), &PageSet::default(), &mut PageSet::default());
                let (offset, size) = (run.start * PAGE, (run.end - run.start) * PAGE);
                let span = Span { region: self.image.clone(), offset, size };
                let write = self.medium.device.write_span(self.at + offset, span);
                under_way.push_back((run.clone(), gate.failures(), write));
                if let Some((end, transfer)) = self.fill_behind(run, fills) {
                    // There is one buffer of zeros, so that there is none yet. What changes behind the run meanwhile is
                    // for the next pass.
                    (from, filling) = (end, Some(transfer));
                }
            }
            if run.is_none() || under_way.len() >= WRITES_MAX {
                let Some((run, failures, write)) = under_way.pop_front() else { break };
                // A flush that has failed meanwhile may have taken what had ended without our having seen it.
                match write.await.and_then(|()| gate.check_since(failures)) {
                    Ok(()) => self.note_written(run),
                    Err(error) => result = result.and(Err(error)),
                }
            }
        }
        if let Some(filling) = filling {
            // Nothing depends on it.
            let _: (Result<usize, DeviceError>, Buffer) = filling.await;
        }
        self.end_pass();
        result
    }

    /// Writes zeros behind a run that is being written, up to the end of its block, if nothing was ever written there.
    /// The page after the last of them: until that has ended, nobody else may write what lies between.
    fn fill_behind(&self, run: &Range<u64>, fills: bool) -> Option<(u64, DeviceTransfer)> {
        let unwritten = self.unwritten.get()?;
        if run.end <= unwritten {
            return None;
        }
        self.unwritten.set(Some(run.end));
        let last = (self.allocated.get().min(self.size) / PAGE).max(run.end);
        let rest = run.end..run.end.next_multiple_of(FILL_PAGES).min(last);
        let is_free = self.dirty.borrow().run(rest.clone(), 1).is_none();
        let fills = fills && run.end - run.start <= FILL_RUN_PAGES_MAX;
        if !fills || rest.is_empty() || !is_free || self.medium.device.abilities().is_block_device {
            return None;
        }
        let zeros = self.medium.zeros.take()?;
        self.unwritten.set(Some(rest.end));
        let size = (rest.end - rest.start) * PAGE;
        let transfer = self.medium.device.write(self.at + rest.start * PAGE, zeros, size as usize);
        Some((rest.end, transfer))
    }

    fn note_written(&self, run: Range<u64>) {
        let (rewritten, mut unflushed) = (self.rewritten.borrow(), self.unflushed.borrow_mut());
        self.dirty.borrow_mut().hand_on(run, &rewritten, &mut unflushed);
    }

    /// A flush is about to be handed over.
    pub fn begin_flush(&self) {
        self.flushing.borrow_mut().merge(&self.unflushed.take());
    }

    /// It has ended.
    pub fn end_flush(&self, is_done: bool) {
        let flushed = self.flushing.take();
        match is_done {
            true => {
                let (dirty, unflushed) = (self.dirty.borrow(), self.unflushed.borrow());
                let tell = |number, word| self.put_word(number, word);
                self.mapped.borrow_mut().remove_set(&flushed, [&dirty, &unflushed], tell);
                self.note_clean();
            }
            false => {
                // What was written since it was asked for may have gone with it.
                let mut dirty = self.dirty.borrow_mut();
                dirty.merge(&flushed);
                dirty.merge(&self.unflushed.take());
            }
        }
    }

    async fn begin_pass(&self) {
        poll_fn(|context| match self.has_pass.get() {
            true => {
                self.waiting.borrow_mut().push(context.waker().clone());
                Poll::Pending
            }
            false => Poll::Ready(()),
        })
        .await;
        self.has_pass.set(true);
        self.rewritten.take();
    }

    fn end_pass(&self) {
        self.has_pass.set(false);
        self.waiting.take().into_iter().for_each(Waker::wake);
    }
}

impl Drop for RegionState {
    fn drop(&mut self) {
        if self.is_removed.get() {
            self.medium.free(self.at);
        }
    }
}

/// A region that somebody has open.
pub struct BufferedRegion(pub Rc<RegionState>);

fn pages_of(offset: u64, size: u64) -> Range<u64> {
    offset / PAGE..(offset + size).div_ceil(PAGE)
}

impl BufferedRegion {
    fn check_resident(&self, offset: u64, size: u64) {
        assert!(self.0.is_resident(pages_of(offset, size)), "pages are pinned before they are read");
    }

    fn note_change(&self, offset: u64, size: u64) {
        self.0.note_change(offset, size);
        self.0.clean_if_due();
    }
}

impl Region for BufferedRegion {
    fn size(&self) -> u64 {
        self.0.size
    }

    fn allocate(&self, offset: u64, size: u64) -> io::Result<()> {
        if self.0.residency.is_none() {
            self.0.image.allocate(offset, size)?;
        }
        let step = if self.0.residency.is_some() { ALLOCATION_STEP } else { PAGE };
        let end = (offset + size).next_multiple_of(step).min(self.0.size.next_multiple_of(PAGE));
        if end > self.0.allocated.get() {
            self.0.allocated.set(end);
            self.0.note_number(8, end);
            self.0.medium.note_label_change();
        }
        Ok(())
    }

    fn data_end(&self) -> u64 {
        match self.0.residency {
            Some(_) => self.0.allocated.get().min(self.0.size),
            None => self.0.image.data_end().min(self.0.size),
        }
    }

    fn read(&self, offset: u64, into: &mut [u8]) {
        self.check_resident(offset, into.len() as u64);
        self.0.image.read(offset, into);
    }

    fn read_blocking(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let RegionState { medium, at, image, .. } = &*self.0;
        for (number, page) in into.chunks_mut(PAGE as usize).enumerate() {
            let offset = offset + number as u64 * PAGE;
            if self.is_resident(offset, PAGE) {
                image.read(offset, page);
                continue;
            }
            let mut buffer = medium.pool.take().ok_or(io::ErrorKind::ResourceBusy)?;
            let count = medium.device.read_blocking(at + offset, &mut buffer, PAGE as usize)?;
            if count as u64 != PAGE {
                return Err(end_error(medium.device.path(), at + offset + count as u64));
            }
            page.copy_from_slice(&buffer[..page.len()]);
        }
        Ok(())
    }

    fn write(&self, offset: u64, from: &[u8]) {
        self.note_change(offset, from.len() as u64);
        self.0.image.write(offset, from);
    }

    fn copy_within(&self, from: u64, to: u64, size: u64) {
        self.check_resident(from, size);
        self.note_change(to, size);
        self.0.image.copy_within(from, to, size);
    }

    fn fill_zero(&self, offset: u64, size: u64) {
        self.note_change(offset, size);
        self.0.image.fill_zero(offset, size);
    }

    fn crc32c(&self, offset: u64, size: u64) -> u32 {
        self.check_resident(offset, size);
        self.0.image.crc32c(offset, size)
    }

    fn base(&self) -> *mut u8 {
        self.0.image.base()
    }

    fn announce(&self, offset: u64, size: u64) {
        // Where only a part of them arrives nobody says so.
        self.note_change(offset, size);
    }

    fn note_received(&self, offset: u64, size: u64) {
        self.note_change(offset, size);
        self.0.image.note_received(offset, size);
    }

    fn sync(&self, offset: u64, size: u64) -> LocalFuture<io::Result<()>> {
        let state = self.0.clone();
        let medium = state.medium.clone();
        // Not within the caller's future: what was handed over goes on, and its end is to be noted (invariant 2).
        let writing = medium.gate.begin();
        let pages = pages_of(offset, size);
        let done = medium.reactor.clone().spawn_joinable(Class::Data, async move {
            match state.write_back(pages, true).await {
                Ok(()) => medium.flush(writing).await,
                Err(error) => {
                    drop(writing);
                    medium.flush_if_due();
                    Err(error)
                }
            }
        });
        Box::pin(async move { done.await.map_err(io::Error::from) })
    }

    fn is_partial(&self) -> bool {
        self.0.residency.is_some()
    }

    fn try_pin(&self, need: &PageNeed, room: PageRoom<'_>) -> Option<PagePin> {
        self.0.try_pin(need, room)
    }

    fn pin(&self, need: PageNeed) -> LocalFuture<io::Result<PagePin>> {
        // Not within the caller's future: its turn has to end, and what is read is to arrive.
        let done = self.0.medium.reactor.spawn_joinable(Class::Data, self.0.clone().pin_soon(need));
        Box::pin(done)
    }

    fn memory(&self) -> u64 {
        self.0.residency.as_ref().map_or(self.0.size, Residency::memory)
    }

    fn fetch_ahead(&self, need: &PageNeed) -> bool {
        self.0.fetch_ahead(need)
    }

    fn is_resident(&self, offset: u64, size: u64) -> bool {
        self.0.is_resident(pages_of(offset, size))
    }

    fn release(&self, offset: u64, size: u64) {
        self.0.release(offset.div_ceil(PAGE)..(offset + size) / PAGE);
    }

    fn note_unused(&self, from: u64) {
        if self.0.residency.is_some() && self.0.unwritten.get().is_none() {
            self.0.unwritten.set(Some(from.div_ceil(PAGE)));
        }
    }

    fn is_volatile(&self) -> bool {
        false
    }

    fn page_size(&self) -> u64 {
        self.0.image.page_size()
    }
}
