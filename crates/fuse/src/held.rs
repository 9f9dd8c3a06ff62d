//! Files that others replace while somebody is on his way to them.
//!
//! The kernel comes to a file in two steps: it asks for the node of a name, then does something to that node. If the file loses
//! its last name in between, the node is ESTALE, and the kernel takes both steps once more, but not a third time. So that a
//! name that is always there can always be opened, whoever was told ESTALE finds his next files held: each is opened here before
//! its node is told, so that it stays when its name goes, and let go some time after. It takes several, for the kernel looks a
//! name up again for as long as what others looked up meanwhile does not hold.
//!
//! Both lists are bounded: who has fallen out of the first takes his chance like everybody, and what falls out of the second
//! is let go early.

use client::File;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Threads of programs that are remembered to have been told ESTALE.
const MISLED_COUNT_MAX: usize = 256;
/// Look-ups of files that are held for a thread each time that it is told ESTALE.
const LOOK_UP_COUNT: u32 = 64;
/// Files that are held at once.
const HELD_COUNT_MAX: usize = 4096;
/// A file is held for so many calls of `age`.
const AGE_MAX: u32 = 8;

/// See the module.
#[derive(Debug, Default)]
pub struct HeldFiles {
    /// Whether anybody was told ESTALE; until then a look-up costs no look at the rest.
    any: AtomicBool,
    lists: Mutex<Lists<File>>,
}

#[derive(Debug)]
struct Lists<F> {
    /// Each with the number of look-ups that are left.
    misled: VecDeque<(u32, u32)>,
    held: VecDeque<(F, u32)>,
}

impl<F> Default for Lists<F> {
    fn default() -> Lists<F> {
        Lists { misled: VecDeque::new(), held: VecDeque::new() }
    }
}

impl<F> Lists<F> {
    fn note_misled(&mut self, thread: u32) {
        self.misled.retain(|(misled, _)| *misled != thread);
        if self.misled.len() >= MISLED_COUNT_MAX {
            self.misled.pop_front();
        }
        self.misled.push_back((thread, LOOK_UP_COUNT));
    }

    fn take_misled(&mut self, thread: u32) -> bool {
        let Some((_, left)) = self.misled.iter_mut().find(|(misled, _)| *misled == thread) else { return false };
        *left -= 1;
        self.misled.retain(|(_, left)| *left > 0);
        true
    }

    fn hold(&mut self, file: F) -> Option<F> {
        let early = if self.held.len() >= HELD_COUNT_MAX { self.held.pop_front() } else { None };
        self.held.push_back((file, 0));
        early.map(|(file, _)| file)
    }

    fn age(&mut self) -> Vec<F> {
        self.held.iter_mut().for_each(|(_, age)| *age += 1);
        let count = self.held.iter().take_while(|(_, age)| *age > AGE_MAX).count();
        self.held.drain(..count).map(|(file, _)| file).collect()
    }
}

impl HeldFiles {
    fn lists(&self) -> MutexGuard<'_, Lists<File>> {
        self.lists.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A thread of a program was told ESTALE, so that the kernel will try again for it.
    pub fn note_misled(&self, thread: u32) {
        self.any.store(true, Ordering::Relaxed);
        self.lists().note_misled(thread);
    }

    /// Whether the file that a thread looks up is to be held: so are some after it was misled.
    pub fn take_misled(&self, thread: u32) -> bool {
        self.any.load(Ordering::Relaxed) && self.lists().take_misled(thread)
    }

    /// Holds an open file. Returns one to close, for which there is no room any more.
    #[must_use]
    pub fn hold(&self, file: File) -> Option<File> {
        self.lists().hold(file)
    }

    /// Time has passed. Returns what was held for long enough, to be closed.
    pub fn age(&self) -> Vec<File> {
        if self.any.load(Ordering::Relaxed) { self.lists().age() } else { Vec::new() }
    }

    /// Takes out all that is left, to be closed.
    pub fn drain(&self) -> Vec<File> {
        self.lists().held.drain(..).map(|(file, _)| file).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: who was misled is so for some look-ups; files are held for their time and no longer, and nothing grows beyond its bound.
    #[test]
    fn held_once_and_for_a_while() {
        let mut lists: Lists<u32> = Lists::default();
        lists.note_misled(7);
        lists.note_misled(7);
        (0..LOOK_UP_COUNT).for_each(|_| assert!(lists.take_misled(7)));
        assert!(!lists.take_misled(7));
        (0..2 * MISLED_COUNT_MAX as u32).for_each(|thread| lists.note_misled(thread));
        assert!(!lists.take_misled(0) && lists.take_misled(2 * MISLED_COUNT_MAX as u32 - 1));
        assert_eq!(lists.hold(1), None);
        (0..AGE_MAX).for_each(|_| assert!(lists.age().is_empty()));
        assert_eq!(lists.hold(2), None);
        assert_eq!(lists.age(), [1]);
        (3..2 + HELD_COUNT_MAX as u32).for_each(|file| assert_eq!(lists.hold(file), None));
        assert_eq!(lists.hold(100), Some(2));
    }
}
