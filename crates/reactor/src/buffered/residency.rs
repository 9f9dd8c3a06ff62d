//! A region of which only a part is in memory: which pages are there, who uses them, and which of them go.
//!
//! Whoever is about to touch pages *pins* them. Pages whose bytes count are read from the device before; *fresh* ones,
//! all of whose bytes that count are about to be written, are not. Pages that nobody has pinned, and that the device
//! has for good, are given up when others need the room, by a clock over *frames* of up to 64 pages: a frame that was
//! pinned since the hand came by is passed over once.
//!
//! Invariants
//! 1. A page that the device lacks is resident: `dirty`, `unflushed` and `flushing` are parts of `resident`.
//! 2. `resident` and `arriving` have no page in common, and together with the room that was granted no more than
//!    `limit` pages, but for those that were dirty when a region was opened, those that are pinned in any case
//!    (`PageRoom::Any`), and one need at a time that nothing else would ever make room for.
//! 3. A page that is being read from the device is claimed by nobody until that has ended: bytes that arrive late
//!    overwrite nothing. A page is claimed as fresh in the step in which the caller has looked whether it is.
//! 4. A frame in `frames` has resident pages or pins; one that has resident pages is in `queue`, once.

use super::BufferStatistics;
use super::label::PAGE;
use super::pages::{PageSet, WORD_PAGES};
use super::region::{RUN_PAGES_MAX, RegionState, WRITES_MAX};
use crate::Class;
use crate::device::{DeviceError, DeviceSpanRead};
use crate::region::{PageNeed, PageRoom, Span};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::rc::Rc;
use std::task::{Poll, Waker};

/// The least that a part in memory has, in pages.
pub const LIMIT_MIN: u64 = 16;
/// Frames that a part in memory has at least, where it has so many pages.
const FRAMES_MIN: u64 = 64;
/// Pages that are written between two looks at who waits.
const SLICE_PAGES: u64 = 2048;
/// Frames that one look for room goes through, beside some for each page that is needed.
const LOOK_FRAMES: usize = 64;
/// The same with a pause before and after it.
const LOOK_FRAMES_PAUSED: usize = 4096;
/// Looks for room with nothing left to be written, a millisecond apart, before a need goes beyond the limit.
const LOOKS_MAX: u32 = 50;
const LOOK_PAUSE_NS: u64 = 1_000_000;
/// Pause after an error of the device before dirty pages are written again without anybody asking.
const ERROR_PAUSE_NS: u64 = 100_000_000;

#[derive(Default)]
struct Frame {
    pins: u32,
    is_referenced: bool,
    is_queued: bool,
}

/// See the module.
pub struct Residency {
    /// Pages in memory at most.
    limit: u64,
    /// Pages of a frame, a power of two.
    frame_pages: u64,
    pub resident: RefCell<PageSet>,
    arriving: RefCell<PageSet>,
    /// Pages for which there is room that somebody was granted and has not used yet.
    granted: Cell<u64>,
    frames: RefCell<BTreeMap<u64, Frame>>,
    queue: RefCell<VecDeque<u64>>,
    /// Turns of those that wait for room or for pages: the next to be given, and whose it is.
    next_turn: Cell<u64>,
    turn: Cell<u64>,
    /// Those that wait for anything here.
    waiting: RefCell<Vec<Waker>>,
    is_cleaning: Cell<bool>,
    /// Pages that the need whose turn it is lacks.
    wanted: Cell<u64>,
    /// Whether that need may go beyond the limit.
    may_exceed: Cell<bool>,
    /// What the device said when room was to be made, for who waits.
    failure: RefCell<Option<DeviceError>>,
    /// What the system said when memory was to be taken for which there was room.
    lacks_memory: RefCell<Option<io::Error>>,
}

impl Residency {
    /// Of a region of which so many bytes may be in memory.
    pub fn new(bytes: u64) -> Residency {
        let limit = (bytes / PAGE).max(LIMIT_MIN);
        let frame_pages = (limit / FRAMES_MIN).max(1).next_power_of_two().min(WORD_PAGES);
        let (resident, arriving, granted, frames, queue) = Default::default();
        let (next_turn, turn, waiting, is_cleaning, wanted, may_exceed, failure, lacks_memory) = Default::default();
        Residency {
            limit,
            frame_pages,
            resident,
            arriving,
            granted,
            frames,
            queue,
            next_turn,
            turn,
            waiting,
            is_cleaning,
            wanted,
            may_exceed,
            failure,
            lacks_memory,
        }
    }

    fn frames_of(&self, pages: &Range<u64>) -> Range<u64> {
        pages.start / self.frame_pages..pages.end.div_ceil(self.frame_pages)
    }

    /// A word's number, and the bits of it that are a frame.
    fn bits_of(&self, frame: u64) -> (u64, u64) {
        let first = frame * self.frame_pages;
        let bits = u64::MAX >> (WORD_PAGES - self.frame_pages);
        (first / WORD_PAGES, bits << (first % WORD_PAGES))
    }

    fn add_resident(&self, pages: Range<u64>) {
        self.resident.borrow_mut().add(pages.clone(), |_, _| {});
        let (mut frames, mut queue) = (self.frames.borrow_mut(), self.queue.borrow_mut());
        for number in self.frames_of(&pages) {
            let frame = frames.entry(number).or_default();
            if !std::mem::replace(&mut frame.is_queued, true) {
                queue.push_back(number);
            }
        }
    }

    /// Bytes in memory at most.
    pub fn memory(&self) -> u64 {
        self.limit * PAGE
    }

    /// Pages are read from the device from now on; returns the runs in which they are.
    fn begin_arrival(&self, absent: &PageSet) -> Vec<Range<u64>> {
        let (mut runs, mut from) = (Vec::new(), 0);
        while let Some(run) = absent.run(from..u64::MAX / PAGE, RUN_PAGES_MAX) {
            from = run.end;
            runs.push(run);
        }
        self.arriving.borrow_mut().merge(absent);
        runs
    }

    fn held(&self) -> u64 {
        self.resident.borrow().count() + self.arriving.borrow().count() + self.granted.get()
    }

    /// Adds what is to be told of it.
    pub fn tell(&self, statistics: &mut BufferStatistics) {
        statistics.resident_bytes += self.held() * PAGE;
        statistics.waiting += self.next_turn.get() - self.turn.get();
        statistics.waits += self.next_turn.get();
    }

    fn has_waiters(&self) -> bool {
        self.turn.get() != self.next_turn.get()
    }

    fn wake(&self) {
        self.waiting.take().into_iter().for_each(Waker::wake);
    }

    async fn until(&self, mut is_met: impl FnMut() -> bool) {
        poll_fn(|context| match is_met() {
            true => Poll::Ready(()),
            false => {
                self.waiting.borrow_mut().push(context.waker().clone());
                Poll::Pending
            }
        })
        .await;
    }
}

/// Pages that stay in memory while it lives, and room that was granted for fresh ones.
#[derive(Default)]
pub struct PagePin(Option<Pinned>);

struct Pinned {
    state: Rc<RegionState>,
    frames: Vec<Range<u64>>,
    room: Cell<u64>,
}

impl Drop for PagePin {
    fn drop(&mut self) {
        let Some(Pinned { state, frames, room }) = self.0.take() else { return };
        let Some(residency) = &state.residency else { return };
        residency.granted.set(residency.granted.get() - room.get());
        let mut table = residency.frames.borrow_mut();
        for number in frames.into_iter().flatten() {
            let Some(frame) = table.get_mut(&number) else { unreachable!("it is pinned") };
            frame.pins -= 1;
            if frame.pins == 0 && !frame.is_queued {
                table.remove(&number);
            }
        }
        drop(table);
        state.trim();
        if residency.has_waiters() {
            residency.wake();
        }
    }
}

/// A need in which no page is named twice.
struct Wanted {
    filled: PageSet,
    fresh: PageSet,
}

impl Wanted {
    fn new(need: &PageNeed) -> Wanted {
        let mut wanted = Wanted { filled: PageSet::default(), fresh: PageSet::default() };
        need.filled.iter().for_each(|pages| wanted.filled.add(pages.clone(), |_, _| {}));
        need.fresh.iter().for_each(|pages| wanted.fresh.add(pages.clone(), |_, _| {}));
        wanted.fresh.remove_all(&wanted.filled);
        wanted
    }
}

impl RegionState {
    /// Says of memory that somebody left, or that is new, what is in it: the pages that the device lacks.
    pub fn begin_residency(&self) {
        let Some(residency) = &self.residency else { return };
        let mut from = 0;
        let end = self.image.size() / PAGE;
        while from < end {
            let run = self.mapped.borrow().run(from..end, u64::MAX);
            let gap = from..run.as_ref().map_or(end, |run| run.start);
            if !gap.is_empty() {
                self.image.release(gap.start * PAGE, (gap.end - gap.start) * PAGE);
            }
            from = match run {
                Some(run) => {
                    residency.add_resident(run.clone());
                    run.end
                }
                None => end,
            };
        }
    }

    /// Whether all pages of a range are in memory.
    pub fn is_resident(&self, pages: Range<u64>) -> bool {
        self.residency.as_ref().is_none_or(|residency| residency.resident.borrow().has_all(pages))
    }

    /// Pins pages if that takes no wait.
    pub fn try_pin(self: &Rc<Self>, need: &PageNeed, room: PageRoom<'_>) -> Option<PagePin> {
        let Some(residency) = &self.residency else { return Some(PagePin::default()) };
        let wanted = Wanted::new(need);
        let (is_there, is_arriving, lacking) = {
            let (resident, arriving) = (residency.resident.borrow(), residency.arriving.borrow());
            (
                wanted.filled.is_within(&resident),
                wanted.fresh.shares_with(&arriving),
                wanted.fresh.count_without(&resident),
            )
        };
        if !is_there || is_arriving {
            return None;
        }
        let granted = match room {
            PageRoom::Granted(PagePin(Some(pinned))) => pinned.room.get().min(lacking),
            _ => 0,
        };
        let more = lacking - granted;
        // Before others are given up: what is needed is not to be among them.
        let pin = self.pin(need);
        let is_refused = match room {
            PageRoom::Left => more > 0 && residency.has_waiters() || !self.make_room(more, LOOK_FRAMES),
            PageRoom::Granted(_) => !self.make_room(more, LOOK_FRAMES),
            PageRoom::Any => {
                self.make_room(more, LOOK_FRAMES);
                false
            }
        };
        if is_refused {
            return None;
        }
        if let Err(error) = self.claim(&wanted.fresh) {
            if !matches!(room, PageRoom::Left) {
                // Who waits for room once more is told, for there is room, and no memory.
                residency.lacks_memory.replace(Some(error));
            }
            return None;
        }
        if let PageRoom::Granted(PagePin(Some(pinned))) = room {
            pinned.room.set(pinned.room.get() - granted);
            residency.granted.set(residency.granted.get() - granted);
        }
        Some(pin)
    }

    /// Pins pages when those with bytes that count are in memory, and there is room for the others. Errors: the
    /// device's; `StorageFull` where memory is lacking.
    pub async fn pin_soon(self: Rc<Self>, need: PageNeed) -> io::Result<PagePin> {
        let Some(residency) = &self.residency else { return Ok(PagePin::default()) };
        if let Some(error) = residency.lacks_memory.take() {
            self.start_cleaning();
            return Err(error);
        }
        let turn = residency.next_turn.get();
        residency.next_turn.set(turn + 1);
        residency.until(|| residency.turn.get() == turn).await;
        let taken = self.take_turn(&need).await;
        residency.turn.set(turn + 1);
        residency.wake();
        let (pin, runs) = taken?;
        let result = self.fill(&runs).await;
        residency.wake();
        result.map(|()| pin)
    }

    /// Waits for room, and takes it: what is read from now on is `arriving`.
    async fn take_turn(self: &Rc<Self>, need: &PageNeed) -> io::Result<(PagePin, Vec<Range<u64>>)> {
        let Some(residency) = &self.residency else { unreachable!("the caller looked") };
        let wanted = Wanted::new(need);
        let all = {
            let mut all = PageSet::default();
            all.merge(&wanted.filled);
            all.merge(&wanted.fresh);
            all
        };
        residency.failure.take();
        let pin = loop {
            residency.until(|| !all.shares_with(&residency.arriving.borrow())).await;
            let lacking = all.count_without(&residency.resident.borrow());
            residency.wanted.set(lacking);
            let exceeds = residency.may_exceed.replace(false);
            // Before others are given up, and not while it waits.
            let pin = self.pin(need);
            if self.make_room(lacking, LOOK_FRAMES) || exceeds || lacking > residency.limit {
                break pin;
            }
            drop(pin);
            if let Some(error) = residency.failure.take() {
                return Err(error.into());
            }
            self.start_cleaning();
            let mut is_first = true;
            // Anything that happens here may have made room.
            residency.until(|| !std::mem::replace(&mut is_first, false)).await;
        };
        if let PagePin(Some(pinned)) = &pin {
            let room = wanted.fresh.count_without(&residency.resident.borrow());
            pinned.room.set(room);
            residency.granted.set(residency.granted.get() + room);
        }
        let mut absent = wanted.filled;
        absent.remove_all(&residency.resident.borrow());
        Ok((pin, residency.begin_arrival(&absent)))
    }

    /// See [`Region::fetch_ahead`](crate::Region::fetch_ahead).
    pub fn fetch_ahead(self: &Rc<Self>, need: &PageNeed) -> bool {
        let Some(residency) = &self.residency else { return false };
        if residency.has_waiters() {
            return false;
        }
        let mut absent = Wanted::new(need).filled;
        absent.remove_all(&residency.resident.borrow());
        absent.remove_all(&residency.arriving.borrow());
        let clean = residency.resident.borrow().count().saturating_sub(self.mapped.borrow().count());
        let excess = (residency.held() + absent.count()).saturating_sub(residency.limit);
        // What is in use is not looked through, and nothing is given up for nothing.
        if excess > clean / 2 || !self.make_room(absent.count(), LOOK_FRAMES) {
            return false;
        }
        let runs = residency.begin_arrival(&absent);
        if !runs.is_empty() {
            let state = self.clone();
            self.medium.reactor.spawn(Class::Data, async move {
                // Whoever needs what has not come reads it himself.
                let _ = state.fill(&runs).await;
                state.residency.iter().for_each(Residency::wake);
            });
        }
        true
    }

    /// Reads pages that are `arriving`, after which they are resident.
    async fn fill(self: &Rc<Self>, runs: &[Range<u64>]) -> io::Result<()> {
        let Some(residency) = &self.residency else { unreachable!("the caller looked") };
        let mut result = Ok(());
        let mut under_way: VecDeque<(Range<u64>, DeviceSpanRead)> = VecDeque::new();
        let mut left = runs.iter();
        loop {
            let run = left.next();
            if let Some(run) = run {
                let (offset, size) = (run.start * PAGE, (run.end - run.start) * PAGE);
                match self.take_memory(run) {
                    Ok(()) => {
                        let span = Span { region: self.image.clone(), offset, size };
                        under_way.push_back((run.clone(), self.medium.device.read_span(self.at + offset, span)));
                    }
                    Err(error) => {
                        residency.arriving.borrow_mut().remove(run.clone(), |_, _| {});
                        result = Err(error);
                    }
                }
            }
            if run.is_none() || under_way.len() >= WRITES_MAX {
                let Some((run, read)) = under_way.pop_front() else { break };
                let (offset, size) = (run.start * PAGE, (run.end - run.start) * PAGE);
                let arrived = match read.await {
                    Ok(count) if count as u64 == size => Ok(()),
                    Ok(count) => Err(end_error(self.medium.device.path(), self.at + offset + count as u64)),
                    Err(error) => Err(error.into()),
                };
                residency.arriving.borrow_mut().remove(run.clone(), |_, _| {});
                match arrived {
                    Ok(()) => {
                        self.image.note_received(offset, size);
                        residency.add_resident(run);
                        if residency.has_waiters() {
                            residency.wake();
                        }
                    }
                    Err(error) => {
                        self.image.release(offset, size);
                        result = Err(error);
                    }
                }
            }
        }
        result
    }

    /// Pages become resident whose bytes count only when they are written. Errors: memory is lacking.
    fn claim(&self, fresh: &PageSet) -> io::Result<()> {
        let Some(residency) = &self.residency else { unreachable!("the caller looked") };
        let mut from = 0;
        while let Some(run) = fresh.run(from..u64::MAX / PAGE, u64::MAX) {
            from = run.end;
            if !residency.resident.borrow().has_all(run.clone()) {
                self.take_memory(&run)?;
                residency.add_resident(run);
            }
        }
        Ok(())
    }

    /// Takes memory for pages from the system, which may have less than it is to have: then others are given up for it.
    fn take_memory(&self, pages: &Range<u64>) -> io::Result<()> {
        let Some(residency) = &self.residency else { unreachable!("the caller looked") };
        let (offset, size) = (pages.start * PAGE, (pages.end - pages.start) * PAGE);
        match self.image.allocate(offset, size) {
            Err(error) if error.kind() == ErrorKind::StorageFull => {
                let queued = residency.queue.borrow().len();
                self.evict(pages.end - pages.start, 2 * queued);
                self.image.allocate(offset, size)
            }
            result => result,
        }
    }

    fn pin(self: &Rc<Self>, need: &PageNeed) -> PagePin {
        let Some(residency) = &self.residency else { unreachable!("the caller looked") };
        let mut frames: Vec<Range<u64>> = Vec::with_capacity(need.filled.len() + need.fresh.len());
        let mut table = residency.frames.borrow_mut();
        for pages in need.filled.iter().chain(&need.fresh) {
            let numbers = residency.frames_of(pages);
            for number in numbers.clone() {
                let frame = table.entry(number).or_default();
                frame.pins += 1;
                frame.is_referenced = true;
            }
            frames.push(numbers);
        }
        PagePin(Some(Pinned { state: self.clone(), frames, room: Cell::new(0) }))
    }

    /// Gives pages up until so many more fit. False if too few can go that one look finds.
    fn make_room(&self, pages: u64, look_frames: usize) -> bool {
        let Some(residency) = &self.residency else { unreachable!("the caller looked") };
        let excess = (residency.held() + pages).saturating_sub(residency.limit);
        if excess == 0 || pages == 0 {
            return true;
        }
        let queued = residency.queue.borrow().len();
        self.evict(excess, look_frames.saturating_add(4 * excess as usize).min(2 * queued)) >= excess
    }

    /// Gives up about so many pages that nobody uses and that the device has for good. Returns how many.
    fn evict(&self, pages: u64, looks: usize) -> u64 {
        let Some(residency) = &self.residency else { unreachable!("the caller looked") };
        let mut gone = 0;
        for _ in 0..looks {
            if gone >= pages {
                break;
            }
            let Some(number) = residency.queue.borrow_mut().pop_front() else { break };
            let mut frames = residency.frames.borrow_mut();
            let Some(frame) = frames.get_mut(&number) else { unreachable!("what is queued is there (invariant 4)") };
            let is_passed_over = frame.pins > 0 || std::mem::replace(&mut frame.is_referenced, false);
            let (word, bits) = residency.bits_of(number);
            if !is_passed_over {
                let clean = residency.resident.borrow().word(word) & bits & !self.mapped.borrow().word(word);
                self.give_up(word, clean);
                gone += u64::from(clean.count_ones());
            }
            if residency.resident.borrow().word(word) & bits != 0 {
                residency.queue.borrow_mut().push_back(number);
            } else {
                frame.is_queued = false;
                if frame.pins == 0 {
                    frames.remove(&number);
                }
            }
        }
        gone
    }

    /// What went beyond the limit goes when it can.
    fn trim(&self) {
        let Some(residency) = &self.residency else { return };
        let excess = residency.held().saturating_sub(residency.limit);
        if excess > 0 {
            let queued = residency.queue.borrow().len();
            self.evict(excess, (LOOK_FRAMES + 4 * excess as usize).min(2 * queued));
        }
    }

    /// Gives pages of a word back to the system.
    fn give_up(&self, word: u64, bits: u64) {
        let Some(residency) = &self.residency else { unreachable!("the caller looked") };
        residency.resident.borrow_mut().remove_bits(word, bits);
        let mut left = bits;
        while left != 0 {
            let first = u64::from(left.trailing_zeros());
            let count = u64::from((!(left >> first)).trailing_zeros()).min(WORD_PAGES - first);
            self.image.release((word * WORD_PAGES + first) * PAGE, count * PAGE);
            left &= !(u64::MAX >> (WORD_PAGES - count) << first);
        }
    }

    /// What pages hold counts no more, and will not before they are pinned as fresh ones: they need not be written.
    /// They stay in memory until somebody needs the room, for giving up many at once takes its time.
    pub fn release(&self, pages: Range<u64>) {
        let Some(residency) = &self.residency else { return };
        let mut from = pages.start;
        loop {
            let run = residency.resident.borrow().run(from..pages.end, RUN_PAGES_MAX);
            let Some(run) = run else { break };
            from = run.end;
            for set in [&self.dirty, &self.unflushed, &self.flushing] {
                set.borrow_mut().remove(run.clone(), |_, _| {});
            }
            self.mapped.borrow_mut().remove(run.clone(), |number, word| self.put_word(number, word));
        }
        if residency.has_waiters() {
            residency.wake();
        }
    }

    /// A flush has made pages durable, which may go now.
    pub fn note_clean(&self) {
        self.trim();
        if let Some(residency) = self.residency.as_ref().filter(|residency| residency.has_waiters()) {
            residency.wake();
        }
    }

    /// Writes dirty pages back if they are a good part of what is in memory.
    pub fn clean_if_due(self: &Rc<Self>) {
        if let Some(residency) = &self.residency
            && self.dirty.borrow().count() > residency.limit / 4
        {
            self.start_cleaning();
        }
    }

    fn start_cleaning(self: &Rc<Self>) {
        let Some(residency) = &self.residency else { return };
        if !residency.is_cleaning.replace(true) {
            let state = self.clone();
            self.medium.reactor.spawn(Class::Data, async move {
                state.clean().await;
                if let Some(residency) = &state.residency {
                    residency.is_cleaning.set(false);
                    // Who waits since it met an error has it begin again.
                    residency.wake();
                }
            });
        }
    }

    /// Writes and flushes until few pages are dirty and nobody waits for room.
    async fn clean(self: &Rc<Self>) {
        let Some(residency) = &self.residency else { return };
        let (gate, mut cursor, mut looks) = (&self.medium.gate, 0, 0);
        loop {
            let unclean = self.mapped.borrow().count();
            if unclean <= residency.limit / 8 && !residency.has_waiters() {
                return;
            }
            if unclean == 0 {
                // Those that use what is here will be done, or they wait for one another.
                looks += 1;
                if looks % LOOKS_MAX == 0 {
                    residency.may_exceed.set(true);
                }
                self.make_room(residency.wanted.get(), LOOK_FRAMES_PAUSED);
                residency.wake();
                self.medium.reactor.sleep(LOOK_PAUSE_NS).await;
                continue;
            }
            // Other syncs wait for no write of this: what fails between is dirty again, and written once more.
            let result = match self.write_some(&mut cursor).await {
                Ok(()) => self.medium.flush(gate.begin()).await,
                Err(error) => Err(error),
            };
            if let Err(error) = result {
                // The next write may go well, and others may be done with what they use.
                self.medium.reactor.sleep(ERROR_PAUSE_NS).await;
                residency.failure.replace(Some(error));
                return residency.wake();
            }
            if residency.has_waiters() && self.mapped.borrow().count() == unclean {
                // All of it is written to again and again.
                looks += 1;
                if looks % LOOKS_MAX == 0 {
                    residency.may_exceed.set(true);
                }
            }
            residency.wake();
        }
    }

    /// Writes an eighth of what may be in memory, in the order of the device from where it was left off, or less where
    /// somebody waits for less.
    async fn write_some(&self, cursor: &mut u64) -> Result<(), DeviceError> {
        let Some(residency) = &self.residency else { return Ok(()) };
        let mut left = (residency.limit / 8).max(1);
        if residency.has_waiters() {
            left = left.min(residency.wanted.get().max(SLICE_PAGES));
        }
        while left > 0 {
            let count = left.min(SLICE_PAGES);
            left -= count;
            let end = self.dirty.borrow().reach(*cursor, count);
            match end {
                Some(end) => self.write_back(*cursor..end, false).await?,
                None if *cursor == 0 => return Ok(()),
                None => {}
            }
            *cursor = end.unwrap_or(0);
        }
        Ok(())
    }
}

/// The error of a device that ends where bytes should be.
pub fn end_error(path: &std::path::Path, offset: u64) -> io::Error {
    io::Error::new(ErrorKind::UnexpectedEof, format!("{} ends at {offset}, within what it should hold", path.display()))
}
