//! What others replace while somebody is on his way to it.
//!
//! The kernel comes to a file in two steps: it asks for the node of a name, then does something to that node. If the
//! file loses its last name in between, the node is ESTALE, and the kernel takes both steps once more, but not a third
//! time. So that a name that is always there can always be opened, whoever was told ESTALE finds his next files held:
//! each is opened here before its node is told, so that it stays when its name goes, and let go some time after. It
//! takes several, for the kernel looks a name up again for as long as what others looked up meanwhile does not hold.
//!
//! A symbolic link can't be opened, nor can a pipe, socket or device at a server. What there is to know of one is kept
//! instead, and told only when the servers say that it is gone: until then they are asked as ever. A link's target
//! never changes; of the attributes of what is gone the link count is 0 and the rest stays as it was.
//!
//! Both lists are bounded: who has fallen out of the first takes his chance like everybody, and what falls out of the
//! second is let go early.

use client::{Attributes, File};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use wire::FileId;

/// Threads of programs that are remembered to have been told ESTALE.
const MISLED_COUNT_MAX: usize = 256;
/// Look-ups that are held for a thread each time that it is told ESTALE.
const LOOK_UP_COUNT: u32 = 64;
/// Files and nodes that are held at once.
const HELD_COUNT_MAX: usize = 4096;
/// Each is held for so many calls of `age`.
const AGE_MAX: u32 = 8;

/// What is held.
#[derive(Debug)]
pub enum OpenInode {
    File(File),
    /// Neither file nor directory; the target is empty unless it is a symbolic link.
    Node(Box<(Attributes, Vec<u8>)>),
}

impl OpenInode {
    /// What is to be closed when this is let go.
    pub fn into_file(self) -> Option<File> {
        match self {
            OpenInode::File(file) => Some(file),
            OpenInode::Node(_) => None,
        }
    }
}

/// See the module.
#[derive(Debug, Default)]
pub struct HeldNodes {
    /// Whether anybody was told ESTALE; until then a look-up costs no look at the rest.
    any: AtomicBool,
    lists: Mutex<Lists<OpenInode>>,
}

#[derive(Debug)]
struct Lists<H> {
    /// Each with the number of look-ups that are left.
    misled: VecDeque<(u32, u32)>,
    held: VecDeque<(H, u32)>,
}

impl<H> Default for Lists<H> {
    fn default() -> Lists<H> {
        Lists { misled: VecDeque::new(), held: VecDeque::new() }
    }
}

impl<H> Lists<H> {
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

    fn hold(&mut self, held: H) -> Option<H> {
        let early = if self.held.len() >= HELD_COUNT_MAX { self.held.pop_front() } else { None };
        self.held.push_back((held, 0));
        early.map(|(held, _)| held)
    }

    fn age(&mut self) -> Vec<H> {
        self.held.iter_mut().for_each(|(_, age)| *age += 1);
        let count = self.held.iter().take_while(|(_, age)| *age > AGE_MAX).count();
        self.held.drain(..count).map(|(held, _)| held).collect()
    }
}

impl HeldNodes {
    fn lists(&self) -> MutexGuard<'_, Lists<OpenInode>> {
        self.lists.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A thread of a program was told ESTALE, so that the kernel will try again for it.
    pub fn note_misled(&self, thread: u32) {
        self.any.store(true, Ordering::Relaxed);
        self.lists().note_misled(thread);
    }

    /// Whether what a thread looks up is to be held: so is some after it was misled.
    pub fn take_misled(&self, thread: u32) -> bool {
        self.any.load(Ordering::Relaxed) && self.lists().take_misled(thread)
    }

    /// Holds something. Returns a file to close, for which there is no room any more.
    #[must_use]
    pub fn hold(&self, held: OpenInode) -> Option<File> {
        self.lists().hold(held).and_then(OpenInode::into_file)
    }

    /// What is kept of a node that is neither file nor directory, and that the servers say is gone: its attributes, and
    /// its target.
    pub fn of_gone(&self, id: FileId) -> Option<(Attributes, Vec<u8>)> {
        if !self.any.load(Ordering::Relaxed) {
            return None;
        }
        let kept = self.lists().held.iter().find_map(|(held, _)| match held {
            OpenInode::Node(node) if node.0.id == id => Some((**node).clone()),
            _ => None,
        });
        kept.map(|(attributes, target)| (Attributes { link_count: 0, ..attributes }, target))
    }

    /// Time has passed. Returns files that were held for long enough, to be closed.
    pub fn age(&self) -> Vec<File> {
        let left = if self.any.load(Ordering::Relaxed) { self.lists().age() } else { Vec::new() };
        left.into_iter().filter_map(OpenInode::into_file).collect()
    }

    /// Takes out all that is left. Returns files to be closed.
    pub fn drain(&self) -> Vec<File> {
        self.lists().held.drain(..).filter_map(|(held, _)| held.into_file()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: who was misled is so for some look-ups; files are held for their time and no longer, and nothing grows
    /// beyond its bound.
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
