//! A table of things by small numbers, in pages, so that growing never moves what is there and a walk in steps (a
//! checkpoint) meets everything that was there when it began.

const PAGE_COUNT: usize = 512;

/// See the module.
pub struct Slab<T> {
    pages: Vec<Vec<Option<T>>>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Slab { pages: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    /// Adds a thing and returns its number.
    pub fn insert(&mut self, value: T) -> u32 {
        if let Some(index) = self.free.pop() {
            self.pages[index as usize / PAGE_COUNT][index as usize % PAGE_COUNT] = Some(value);
            return index;
        }
        if self.pages.last().is_none_or(|page| page.len() == PAGE_COUNT) {
            self.pages.push(Vec::with_capacity(PAGE_COUNT));
        }
        let last = self.pages.len() - 1;
        self.pages[last].push(Some(value));
        (last * PAGE_COUNT + self.pages[last].len() - 1) as u32
    }

    pub fn get(&self, index: u32) -> Option<&T> {
        self.pages.get(index as usize / PAGE_COUNT)?.get(index as usize % PAGE_COUNT)?.as_ref()
    }

    pub fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        self.pages.get_mut(index as usize / PAGE_COUNT)?.get_mut(index as usize % PAGE_COUNT)?.as_mut()
    }

    pub fn remove(&mut self, index: u32) -> Option<T> {
        let value = self.pages.get_mut(index as usize / PAGE_COUNT)?.get_mut(index as usize % PAGE_COUNT)?.take();
        if value.is_some() {
            self.free.push(index);
        }
        value
    }

    /// One more than the largest number ever used.
    pub fn limit(&self) -> u32 {
        self.pages.last().map_or(0, |page| ((self.pages.len() - 1) * PAGE_COUNT + page.len()) as u32)
    }

    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.pages.iter().flatten().flatten()
    }
}
