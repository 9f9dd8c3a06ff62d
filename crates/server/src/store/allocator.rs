//! Which pages of the data space are free.
//!
//! Freed runs go onto a stack for their exact size and come back from there first, so that repeated sizes cost O(1) and
//! memory that was already faulted in is used again. When no stack fits, runs are joined with their neighbours; only
//! when no single run is long enough is a request served from several. A request fails only when too few pages are
//! free.
//!
//! Invariants
//! 1. Each page below `frontier` is either used, or in exactly one stack, or in exactly one run.
//! 2. Pages from `frontier` on were never given out, or were given back and joined to the rest; all are free.
//! 3. Pages below `backed` were taken from the medium; a page is given out only when it is backed.
//! 4. Runs in `runs` neither touch one another nor the frontier.

use std::collections::{BTreeMap, BTreeSet};

/// Bytes of a page.
pub const PAGE_SIZE: u64 = 4096;
/// Longest run, in pages, that is kept on a stack of its own size.
const STACK_PAGES_MAX: u32 = 1024;

/// Consecutive pages of the data space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Run {
    /// First page.
    pub start: u32,
    /// Number of pages.
    pub pages: u32,
}

/// Runs that are looked at for one that is long enough once its start is aligned.
const ALIGNED_LOOKS_MAX: usize = 64;
/// Pages by which the backed space grows when a request needs more: 4 MiB.
const GROWTH_PAGES: u32 = 1024;

/// Takes pages `from..to` from the medium; false when the medium refuses.
pub type SpaceGrowth<'a> = &'a mut dyn FnMut(u32, u32) -> bool;

/// See the module.
pub struct Allocator {
    total: u32,
    frontier: u32,
    backed: u32,
    stacks: Vec<Vec<u32>>,
    /// Bit n of word n / 64: stack n is not empty.
    occupied: Vec<u64>,
    stacked: u64,
    runs: BTreeMap<u32, u32>,
    by_size: BTreeSet<(u32, u32)>,
    free: u64,
}

impl Allocator {
    /// An allocator of `total` pages, of which those in `used` are taken.
    /// Errors: the first pair of runs in `used` that overlap, or a run beyond the end (twice the same run).
    pub fn new(total: u32, mut used: Vec<Run>) -> Result<Allocator, (Run, Run)> {
        used.sort_unstable();
        let mut allocator = Allocator {
            total,
            frontier: 0,
            backed: 0,
            stacks: vec![Vec::new(); STACK_PAGES_MAX as usize + 1],
            occupied: vec![0; STACK_PAGES_MAX as usize / 64 + 1],
            stacked: 0,
            runs: BTreeMap::new(),
            by_size: BTreeSet::new(),
            free: u64::from(total),
        };
        let mut previous = Run { start: 0, pages: 0 };
        for run in used {
            if run.pages == 0 || u64::from(run.start) + u64::from(run.pages) > u64::from(total) {
                return Err((run, run));
            }
            if run.start < allocator.frontier {
                return Err((previous, run));
            }
            if run.start > allocator.frontier {
                allocator.insert_run(Run { start: allocator.frontier, pages: run.start - allocator.frontier });
            }
            allocator.frontier = run.start + run.pages;
            allocator.free -= u64::from(run.pages);
            previous = run;
        }
        allocator.backed = allocator.frontier;
        Ok(allocator)
    }

    /// Pages that are free.
    pub fn free(&self) -> u64 {
        self.free
    }

    /// Pages in all.
    pub fn total(&self) -> u32 {
        self.total
    }

    /// Pages that were ever taken from the medium.
    pub fn backed(&self) -> u32 {
        self.backed
    }

    /// Pages that are free and were taken from the medium.
    pub fn ready(&self) -> u64 {
        self.free - u64::from(self.total - self.backed)
    }

    /// Takes pages from the medium up to the next multiple of `step`, so that whole huge pages are taken; nothing is
    /// left to take: false. Errors: the medium refuses.
    pub fn grow_step(&mut self, step: u32, grow: SpaceGrowth) -> Result<bool, ()> {
        if self.backed == self.total {
            return Ok(false);
        }
        let to = (self.backed / step + 1).saturating_mul(step).min(self.total);
        if !grow(self.backed, to) {
            return Err(());
        }
        self.backed = to;
        Ok(true)
    }

    /// One run of exactly `pages` pages, if there is one.
    pub fn take_run(&mut self, pages: u32, grow: SpaceGrowth) -> Option<Run> {
        assert!(pages > 0, "a request is for at least one page");
        let start = self
            .pop(pages)
            .or_else(|| self.take_best_fit(pages))
            .or_else(|| self.split_larger(pages))
            .or_else(|| self.advance(pages, self.backed))
            .or_else(|| {
                self.join();
                self.take_best_fit(pages).or_else(|| self.advance(pages, self.backed))
            })
            .or_else(|| self.advance_grown(pages, grow))?;
        self.free -= u64::from(pages);
        Some(Run { start, pages })
    }

    /// `pages` pages as one run, or as several when no run is long enough; they are appended to `into`.
    /// False when too few are free; then nothing is taken.
    pub fn take(&mut self, pages: u32, grow: SpaceGrowth, into: &mut Vec<Run>) -> bool {
        if let Some(run) = self.take_run(pages, grow) {
            into.push(run);
            return true;
        }
        if self.free < u64::from(pages) {
            return false;
        }
        let first = into.len();
        let mut missing = pages;
        while missing > 0 {
            if let Some(run) = self.take_longest(missing, grow) {
                missing -= run.pages;
                into.push(run);
            } else {
                for run in into.drain(first..) {
                    self.release(run);
                }
                return false;
            }
        }
        true
    }

    /// One run of exactly `pages` pages that begins at a multiple of `align`, if there is one that is backed: in a run
    /// that was given back, then where nothing was given out yet, and only then in what is on the stacks, whose sizes
    /// are asked for again.
    pub fn take_aligned(&mut self, pages: u32, align: u32) -> Option<Run> {
        assert!(pages > 0 && align > 0, "a request is for at least one page");
        let start = self
            .find_aligned(pages, align)
            .or_else(|| self.advance_aligned(pages, align, self.backed))
            .or_else(|| {
                if self.stacked < u64::from(pages) {
                    return None;
                }
                self.join();
                self.find_aligned(pages, align).or_else(|| self.advance_aligned(pages, align, self.backed))
            })?;
        self.free -= u64::from(pages);
        Some(Run { start, pages })
    }

    /// The same where nothing was given out yet, with what that needs from the medium.
    pub fn grow_aligned(&mut self, pages: u32, align: u32, grow: SpaceGrowth) -> Option<Run> {
        assert!(pages > 0 && align > 0, "a request is for at least one page");
        let end = self.frontier.checked_next_multiple_of(align)?.checked_add(pages)?;
        while self.backed < end && end <= self.total {
            self.grow_step(GROWTH_PAGES, grow).ok()?;
        }
        let start = self.advance_aligned(pages, align, self.backed)?;
        self.free -= u64::from(pages);
        Some(Run { start, pages })
    }

    /// Just these pages, which lie in the data space, with what that needs from the medium. False, and nothing is
    /// taken, if one of them is not free.
    pub fn take_exactly(&mut self, run: Run, grow: SpaceGrowth) -> bool {
        let end = run.start + run.pages;
        assert!(run.pages > 0 && end <= self.total, "a request is for pages that there are");
        self.join();
        if end > self.frontier {
            // The page before the frontier is used.
            if run.start < self.frontier {
                return false;
            }
            while self.backed < end {
                if !matches!(self.grow_step(GROWTH_PAGES, grow), Ok(true)) {
                    return false;
                }
            }
            let before = std::mem::replace(&mut self.frontier, end);
            if before < run.start {
                self.insert_run(Run { start: before, pages: run.start - before });
            }
            self.free -= u64::from(run.pages);
            return true;
        }
        let Some((&start, &pages)) = self.runs.range(..=run.start).next_back() else { return false };
        if start + pages < end {
            return false;
        }
        self.remove_run(start, pages);
        for rest in [Run { start, pages: run.start - start }, Run { start: end, pages: start + pages - end }] {
            if rest.pages > 0 {
                self.insert_run(rest);
            }
        }
        self.free -= u64::from(run.pages);
        true
    }

    fn find_aligned(&mut self, pages: u32, align: u32) -> Option<u32> {
        let fits = |&&(found, start): &&(u32, u32)| {
            let first = u64::from(start).next_multiple_of(u64::from(align));
            first + u64::from(pages) <= u64::from(start) + u64::from(found)
        };
        let &(found, start) = self.by_size.range((pages, 0)..).take(ALIGNED_LOOKS_MAX).find(fits)?;
        self.remove_run(start, found);
        let (first, end) = (start.next_multiple_of(align), start + found);
        for rest in [Run { start, pages: first - start }, Run { start: first + pages, pages: end - first - pages }] {
            if rest.pages > 0 {
                self.insert_run(rest);
            }
        }
        Some(first)
    }

    /// Aligned pages from the frontier on, which must end by `limit`; those that are skipped are free.
    fn advance_aligned(&mut self, pages: u32, align: u32, limit: u32) -> Option<u32> {
        let before = self.frontier;
        let first = before.checked_next_multiple_of(align)?;
        self.frontier = first.checked_add(pages).filter(|end| *end <= limit)?;
        if before < first {
            self.insert_run(Run { start: before, pages: first - before });
        }
        Some(first)
    }

    /// Gives pages back.
    pub fn release(&mut self, run: Run) {
        assert!(run.pages > 0 && run.start + run.pages <= self.frontier, "only used pages are released");
        self.free += u64::from(run.pages);
        if run.pages <= STACK_PAGES_MAX {
            self.push(run);
        } else {
            self.insert_run(run);
        }
    }

    /// All free runs below the frontier, joined and sorted, and the frontier. For checks.
    pub fn free_runs(&mut self) -> (Vec<Run>, u32) {
        self.join();
        (self.runs.iter().map(|(&start, &pages)| Run { start, pages }).collect(), self.frontier)
    }

    fn push(&mut self, run: Run) {
        self.stacks[run.pages as usize].push(run.start);
        self.occupied[run.pages as usize / 64] |= 1 << (run.pages % 64);
        self.stacked += u64::from(run.pages);
    }

    fn pop(&mut self, pages: u32) -> Option<u32> {
        let stack = self.stacks.get_mut(pages as usize)?;
        let start = stack.pop()?;
        if stack.is_empty() {
            self.occupied[pages as usize / 64] &= !(1 << (pages % 64));
        }
        self.stacked -= u64::from(pages);
        Some(start)
    }

    fn split_larger(&mut self, pages: u32) -> Option<u32> {
        let found = self.first_occupied(pages.checked_add(1)?)?;
        let start = self.pop(found)?;
        self.push(Run { start: start + pages, pages: found - pages });
        Some(start)
    }

    /// The smallest size from `pages` on whose stack is not empty.
    fn first_occupied(&self, pages: u32) -> Option<u32> {
        let mut word_index = pages as usize / 64;
        let mut word = self.occupied.get(word_index)? & (u64::MAX << (pages % 64));
        while word == 0 {
            word_index += 1;
            word = *self.occupied.get(word_index)?;
        }
        Some(word_index as u32 * 64 + word.trailing_zeros())
    }

    fn take_best_fit(&mut self, pages: u32) -> Option<u32> {
        let &(found, start) = self.by_size.range((pages, 0)..).next()?;
        self.remove_run(start, found);
        if found > pages {
            self.runs.insert(start + pages, found - pages);
            self.by_size.insert((found - pages, start + pages));
        }
        Some(start)
    }

    /// Pages from the frontier, which must end by `limit`.
    fn advance(&mut self, pages: u32, limit: u32) -> Option<u32> {
        let end = self.frontier.checked_add(pages)?;
        if end > limit {
            return None;
        }
        Some(std::mem::replace(&mut self.frontier, end))
    }

    fn advance_grown(&mut self, pages: u32, grow: SpaceGrowth) -> Option<u32> {
        let end = self.frontier.checked_add(pages)?;
        if end > self.total {
            return None;
        }
        while self.backed < end {
            self.grow_step(GROWTH_PAGES, grow).ok()?;
        }
        self.advance(pages, self.backed)
    }

    /// The longest run there is, at most `pages` long. Called when everything is joined.
    fn take_longest(&mut self, pages: u32, grow: SpaceGrowth) -> Option<Run> {
        let longest = self.by_size.last().copied();
        let rest = self.total - self.frontier;
        let run_pages = longest.map_or(0, |(found, _)| found);
        if rest > run_pages
            && let Some(start) = self.advance_grown(rest.min(pages), grow)
        {
            self.free -= u64::from(rest.min(pages));
            return Some(Run { start, pages: rest.min(pages) });
        }
        let (found, start) = longest?;
        self.remove_run(start, found);
        let taken = found.min(pages);
        if found > taken {
            self.insert_run(Run { start: start + taken, pages: found - taken });
        }
        self.free -= u64::from(taken);
        Some(Run { start, pages: taken })
    }

    /// Moves everything from the stacks to the joined runs. Each run that was released is moved at most once.
    fn join(&mut self) {
        if self.stacked == 0 {
            return;
        }
        for pages in 1..self.stacks.len() {
            for start in std::mem::take(&mut self.stacks[pages]) {
                self.insert_run(Run { start, pages: pages as u32 });
            }
        }
        self.occupied.fill(0);
        self.stacked = 0;
    }

    fn remove_run(&mut self, start: u32, pages: u32) {
        let there = self.runs.remove(&start);
        let listed = self.by_size.remove(&(pages, start));
        assert!(there == Some(pages) && listed, "the two indices of runs agree");
    }

    fn insert_run(&mut self, run: Run) {
        let Run { mut start, mut pages } = run;
        if let Some((&before, &before_pages)) = self.runs.range(..start).next_back() {
            assert!(before + before_pages <= start, "a page is released once (invariant 1)");
            if before + before_pages == start {
                self.remove_run(before, before_pages);
                start = before;
                pages += before_pages;
            }
        }
        if let Some((&after, &after_pages)) = self.runs.range(start..).next() {
            assert!(start + pages <= after, "a page is released once (invariant 1)");
            if start + pages == after {
                self.remove_run(after, after_pages);
                pages += after_pages;
            }
        }
        if start + pages == self.frontier {
            self.frontier = start;
        } else {
            self.runs.insert(start, pages);
            self.by_size.insert((pages, start));
        }
    }
}
