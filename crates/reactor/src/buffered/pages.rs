//! Sets of pages: what is in use of them takes memory, however large the region is.

use std::collections::BTreeMap;
use std::ops::Range;

/// Pages in one word.
pub const WORD_PAGES: u64 = 64;

/// A set of pages.
#[derive(Default)]
pub struct PageSet {
    /// Words that are not empty.
    words: BTreeMap<u64, u64>,
    /// Pages in it.
    count: u64,
}

/// The pages of one word that lie in a range: the word's number, and its bits.
fn words(pages: Range<u64>) -> impl Iterator<Item = (u64, u64)> {
    let Range { start, end } = pages;
    let limit = if start < end { end.div_ceil(WORD_PAGES) } else { 0 };
    (start / WORD_PAGES..limit).map(move |number| {
        let below = start.saturating_sub(number * WORD_PAGES);
        let above = (WORD_PAGES * (number + 1)).saturating_sub(end);
        (number, (u64::MAX >> above) & (u64::MAX << below))
    })
}

impl PageSet {
    /// Sets the pages of a word.
    pub fn load(&mut self, number: u64, bits: u64) {
        self.put(number, bits);
    }

    fn put(&mut self, number: u64, bits: u64) {
        let before = match bits {
            0 => self.words.remove(&number),
            bits => self.words.insert(number, bits),
        };
        self.count = self.count + u64::from(bits.count_ones()) - u64::from(before.unwrap_or(0).count_ones());
    }

    /// Pages in it.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Adds pages. Tells each word that is another one then.
    pub fn add(&mut self, pages: Range<u64>, mut told: impl FnMut(u64, u64)) {
        for (number, bits) in words(pages) {
            let word = self.words.entry(number).or_default();
            let added = bits & !*word;
            if added != 0 {
                *word |= added;
                self.count += u64::from(added.count_ones());
                told(number, *word);
            }
        }
    }

    /// The pages of a word.
    pub fn word(&self, number: u64) -> u64 {
        self.words.get(&number).copied().unwrap_or(0)
    }

    /// Whether all pages of a range are in it.
    pub fn has_all(&self, pages: Range<u64>) -> bool {
        words(pages).all(|(number, bits)| self.word(number) & bits == bits)
    }

    /// Whether all of its pages are in another set.
    pub fn is_within(&self, other: &PageSet) -> bool {
        self.count_without(other) == 0
    }

    /// Whether a page is in both sets.
    pub fn shares_with(&self, other: &PageSet) -> bool {
        self.words.iter().any(|(number, bits)| bits & other.word(*number) != 0)
    }

    /// Pages that are not in another set.
    pub fn count_without(&self, other: &PageSet) -> u64 {
        self.words.iter().map(|(number, bits)| u64::from((bits & !other.word(*number)).count_ones())).sum()
    }

    /// Adds the pages of another set.
    pub fn merge(&mut self, other: &PageSet) {
        other.words.iter().for_each(|(number, bits)| self.put(*number, self.word(*number) | bits));
    }

    /// Moves pages to another set, but for some.
    pub fn hand_on(&mut self, pages: Range<u64>, kept: &PageSet, to: &mut PageSet) {
        for (number, bits) in words(pages) {
            let gone = self.word(number) & bits & !kept.word(number);
            if gone != 0 {
                to.put(number, to.word(number) | gone);
                self.remove_bits(number, gone);
            }
        }
    }

    /// Takes pages out. Tells each word that is another one then.
    pub fn remove(&mut self, pages: Range<u64>, mut told: impl FnMut(u64, u64)) {
        for (number, bits) in words(pages) {
            if self.word(number) & bits != 0 {
                told(number, self.remove_bits(number, bits));
            }
        }
    }

    /// Takes the pages of another set out.
    pub fn remove_all(&mut self, other: &PageSet) {
        let mut count = 0;
        self.words.retain(|number, bits| {
            *bits &= !other.word(*number);
            count += u64::from(bits.count_ones());
            *bits != 0
        });
        self.count = count;
    }

    /// Takes the pages of another set out, but for those of two others. Tells each word that is another one then.
    pub fn remove_set(&mut self, other: &PageSet, kept: [&PageSet; 2], mut told: impl FnMut(u64, u64)) {
        for (number, bits) in &other.words {
            let gone = self.word(*number) & bits & !kept[0].word(*number) & !kept[1].word(*number);
            if gone != 0 {
                told(*number, self.remove_bits(*number, gone));
            }
        }
    }

    /// Takes pages of a word out. Returns what is left of it.
    pub fn remove_bits(&mut self, number: u64, bits: u64) -> u64 {
        let left = self.word(number) & !bits;
        self.put(number, left);
        left
    }

    /// The page behind the first so many from one on; nothing if there is none from there on.
    pub fn reach(&self, from: u64, count: u64) -> Option<u64> {
        let (mut left, mut reached) = (count, None);
        for (number, word) in self.words.range(from / WORD_PAGES..) {
            let below = from.saturating_sub(number * WORD_PAGES);
            let pages = u64::from((word & u64::MAX << below).count_ones());
            if pages > 0 {
                reached = Some((number + 1) * WORD_PAGES);
            }
            left = left.saturating_sub(pages);
            if left == 0 {
                break;
            }
        }
        reached
    }

    /// The first run of pages within a range, of so many at most.
    pub fn run(&self, within: Range<u64>, count_max: u64) -> Option<Range<u64>> {
        let mut run: Option<Range<u64>> = None;
        for (number, word) in self.words.range(within.start / WORD_PAGES..within.end.div_ceil(WORD_PAGES)) {
            for page in (number * WORD_PAGES..(number + 1) * WORD_PAGES).filter(|page| within.contains(page)) {
                let is_in = word >> (page % WORD_PAGES) & 1 == 1;
                match &mut run {
                    None if is_in => run = Some(page..page + 1),
                    Some(run) if is_in && run.end == page && run.end - run.start < count_max => run.end += 1,
                    Some(_) => return run,
                    None => {}
                }
            }
        }
        run
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn note(told: &mut BTreeMap<u64, u64>, number: u64, word: u64) {
        told.insert(number, word);
    }

    fn single(set: &PageSet) -> BTreeSet<u64> {
        let mut found = BTreeSet::new();
        let mut from = 0;
        while let Some(run) = set.run(from..1000, 50) {
            assert!(run.end - run.start <= 50 && !run.is_empty());
            found.extend(run.clone());
            from = run.end;
        }
        found
    }

    /// Goal: a set holds what was put into it, whatever the ranges. Method: beside sets of single pages, with ranges at
    /// and over the ends of words.
    #[test]
    fn ranges_of_any_kind() {
        let ranges = [0..1, 63..64, 63..65, 64..128, 5..5, 1..200, 127..129, 300..640, 310..311];
        for (index, added) in ranges.iter().enumerate() {
            for (other, moved) in ranges.iter().enumerate() {
                let spared = ranges[(index + other) % ranges.len()].clone();
                let (mut set, mut kept, mut to, mut told) =
                    (PageSet::default(), PageSet::default(), PageSet::default(), BTreeMap::new());
                set.add(added.clone(), |number, word| note(&mut told, number, word));
                kept.add(spared.clone(), |_, _| {});
                let mut both = PageSet::default();
                both.merge(&set);
                set.hand_on(moved.clone(), &kept, &mut to);
                let goes = |page: &u64| moved.contains(page) && !spared.contains(page);
                let (gone, left): (BTreeSet<u64>, BTreeSet<u64>) = added.clone().partition(goes);
                assert_eq!((single(&set), single(&to)), (left.clone(), gone), "{added:?} {moved:?} {spared:?}");
                both.remove_set(&to, [&kept, &PageSet::default()], |number, word| note(&mut told, number, word));
                told.retain(|_, word| *word != 0);
                assert_eq!((single(&both), told), (left, both.words.clone()), "each change of a word is told");
            }
        }
    }
}
