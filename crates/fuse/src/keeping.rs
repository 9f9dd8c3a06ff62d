//! What the kernel may keep of names and attributes, and how it is made to forget (docs/kept-entries.md).
//!
//! A client of its own asks the servers for their delegations, on a thread that does nothing else, so that a recall is
//! heard while no program asks for anything, and no request has to share its loop. Replies say for how long the kernel
//! may keep what they tell.
//!
//! Invariants
//! 1. A reply allows the kernel to keep only what was learnt in one generation that has not ended when the reply is put
//!    together; and attributes of nodes that are noted here, under the same lock under which forgetting takes them,
//!    where no change of the mount's own was under way meanwhile: they may be older than what another reply told.
//! 2. Forgetting first makes all entries doubtful (the epoch), then takes back the attributes of each node noted: by
//!    paths nobody comes to these any more, but by open files, working directories and the root. A node that the kernel
//!    does not know is one that it has forgotten, or whose reply it is still taking in; the latter is waited for.
//! 3. The kernel does not ask for rights on the way to an entry that it keeps. So only entries are kept of directories
//!    that everybody who may use the mount may search.

use crate::device::Device;
use crate::protocol;
use client::{Client, EntryKeeper, FileSystem};
use reactor::{LocalFuture, Nanos, Reactor};
use std::collections::HashMap;
use std::io;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Nodes whose attributes the kernel may keep at a time.
const NODE_COUNT_MAX: usize = 128 << 10;
/// The kernel has taken in a reply after this time, also while the program that it is for gets no core.
const TAKEN_IN_NS: Nanos = 1_000_000_000;
/// Pause between two looks whether it has.
const LOOK_NS: Nanos = 1_000_000;
/// What the kernel says that it has forgotten is about a node that was told before this time: such messages are read
/// later than others.
const FORGOTTEN_NS: Nanos = 20_000_000;
/// After a change of whose outcome nothing is known nothing is kept for this long, beside the client's time-out: until
/// servers do not do any more what nobody waits for.
const DOUBT_NS: Nanos = 5_000_000_000;
/// Longest wait for servers when the mount ends.
const STOP_NS_MAX: Nanos = 500_000_000;
/// How often the thread that asks looks whether it is over.
const LOOK_OVER_NS: Nanos = 500_000_000;

/// For how long the kernel may keep something; nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Validity {
    pub entry: Nanos,
    pub attributes: Nanos,
}

impl Validity {
    /// As long as it takes to tell.
    pub const NONE: Validity = Validity { entry: 0, attributes: 0 };
}

/// What is so when something is about to be learnt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Beginning {
    generation: u64,
    /// How many changes of our own had begun; nothing where one was under way.
    changes: Option<u64>,
}

/// See the module.
pub struct Keeping {
    /// Asks for delegations; none where nothing is kept.
    asker: Option<Client>,
    device: Arc<Device>,
    /// Whether programs of other users may use the mount.
    pub serves_others: bool,
    /// The present generation, and the moment until which what is learnt in it may be kept; 0 for not at all.
    generation: AtomicU64,
    until: AtomicU64,
    /// Until when nothing is kept after a change of unknown outcome.
    doubtful_until: AtomicU64,
    /// How often what is held was to be given back, and how often it has been; while these differ it counts no more.
    /// Servers give it again when nothing is undecided any more.
    doubts: AtomicU64,
    doubts_settled: AtomicU64,
    /// Changes of our own that have begun, and ended.
    changes_begun: AtomicU64,
    changes_ended: AtomicU64,
    is_over: AtomicBool,
    /// Nodes whose attributes the kernel may keep, each with the moment at which they were told last.
    nodes: Mutex<HashMap<u64, Nanos>>,
}

impl Keeping {
    /// With a client that asks, where the kernel can be made to forget all that it keeps; it is asked to once.
    pub fn new(asker: Option<Client>, device: &Arc<Device>, serves_others: bool) -> Keeping {
        Keeping {
            asker: asker.filter(|_| device.notify(&protocol::increment_epoch()).is_ok()),
            device: device.clone(),
            serves_others,
            generation: AtomicU64::new(0),
            until: AtomicU64::new(0),
            doubtful_until: AtomicU64::new(0),
            doubts: AtomicU64::new(0),
            doubts_settled: AtomicU64::new(0),
            changes_begun: AtomicU64::new(0),
            changes_ended: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
            nodes: Mutex::default(),
        }
    }

    /// Whether anything may ever be kept.
    pub fn is_on(&self) -> bool {
        self.asker.is_some()
    }

    fn nodes(&self) -> MutexGuard<'_, HashMap<u64, Nanos>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A change of our own begins.
    pub fn begin_change(&self) {
        self.changes_begun.fetch_add(1, Ordering::SeqCst);
    }

    pub fn end_change(&self) {
        self.changes_ended.fetch_add(1, Ordering::SeqCst);
    }

    /// To be asked before something is learnt; nothing where that may not be kept.
    pub fn begin(&self, now: Nanos) -> Option<Beginning> {
        let generation = self.present_generation(now)?;
        // In this order: no change was under way where these are equal.
        let ended = self.changes_ended.load(Ordering::SeqCst);
        let begun = self.changes_begun.load(Ordering::SeqCst);
        Some(Beginning { generation, changes: (begun == ended).then_some(begun) })
    }

    fn present_generation(&self, now: Nanos) -> Option<u64> {
        let generation = self.generation.load(Ordering::SeqCst);
        let is_held = self.until.load(Ordering::SeqCst) > now;
        let is_in_doubt = self.doubts.load(Ordering::SeqCst) != self.doubts_settled.load(Ordering::SeqCst)
            || self.doubtful_until.load(Ordering::SeqCst) > now;
        (is_held && !is_in_doubt).then_some(generation)
    }

    /// For how long an entry may be kept that was learnt since; nanoseconds.
    pub fn entry_validity(&self, beginning: Option<Beginning>, now: Nanos) -> Nanos {
        match beginning.map(|beginning| beginning.generation) {
            generation @ Some(_) if generation == self.present_generation(now) => {
                self.until.load(Ordering::SeqCst).saturating_sub(now)
            }
            _ => 0,
        }
    }

    /// The same for attributes of a node, which is noted.
    pub fn attribute_validity(&self, beginning: Option<Beginning>, node: u64, now: Nanos) -> Nanos {
        let changes = beginning.and_then(|beginning| beginning.changes);
        if changes != Some(self.changes_begun.load(Ordering::SeqCst)) {
            return 0;
        }
        let mut nodes = self.nodes();
        let valid_ns = self.entry_validity(beginning, now);
        if valid_ns == 0 || nodes.len() >= NODE_COUNT_MAX && !nodes.contains_key(&node) {
            return 0;
        }
        nodes.insert(node, now);
        valid_ns
    }

    /// The kernel has forgotten a node.
    pub fn note_forgotten(&self, node: u64, now: Nanos) {
        if self.is_on() {
            let mut nodes = self.nodes();
            if nodes.get(&node).is_some_and(|told| told + FORGOTTEN_NS <= now) {
                nodes.remove(&node);
            }
        }
    }

    /// Makes all entries doubtful, after a change of our own by which more than the kernel knows is not so any more.
    pub fn forget_entries(&self) {
        if self.is_on() {
            self.generation.fetch_add(1, Ordering::SeqCst);
            self.increment_epoch();
        }
    }

    /// A change of our own is not known everywhere yet, or may have happened though it failed: nothing is kept until
    /// the servers say so.
    pub async fn give_back(&self, reactor: &Reactor) {
        if self.is_on() {
            self.doubts.fetch_add(1, Ordering::SeqCst);
            self.generation.fetch_add(1, Ordering::SeqCst);
            self.forget_all(reactor).await;
        }
    }

    /// The same of one that has failed and may still happen, until nobody does it any more.
    pub async fn doubt(&self, reactor: &Reactor, timeout: Nanos) {
        self.doubtful_until.fetch_max(reactor.now() + timeout + DOUBT_NS, Ordering::SeqCst);
        self.give_back(reactor).await;
    }

    fn increment_epoch(&self) {
        // Where that fails the file system is not mounted any more.
        let _: io::Result<()> = self.device.notify(&protocol::increment_epoch());
    }

    /// Forgets everything (invariant 2). The generation has ended before.
    async fn forget_all(&self, reactor: &Reactor) {
        self.increment_epoch();
        let nodes = std::mem::take(&mut *self.nodes());
        let is_unknown = |node: u64| {
            let told = self.device.notify(&protocol::invalidate_attributes(node));
            told.is_err_and(|error| error.raw_os_error() == Some(libc::ENOENT))
        };
        let mut left: Vec<(u64, Nanos)> = nodes.into_iter().filter(|(node, _)| is_unknown(*node)).collect();
        loop {
            let now = reactor.now();
            left.retain(|(_, told)| told + TAKEN_IN_NS > now);
            if left.is_empty() {
                return;
            }
            reactor.sleep(LOOK_NS).await;
            left.retain(|(node, _)| is_unknown(*node));
        }
    }

    /// Asks the servers, until the mount ends. For a thread of its own. `session` is that of the client which serves.
    pub fn attend(self: &Arc<Self>, session: u64) {
        let Some(asker) = &self.asker else { return };
        asker.run(async |reactor, files: &FileSystem| {
            let keeper = Keeper { keeping: self.clone(), reactor: reactor.clone() };
            files.keep_entries(session, Rc::new(keeper));
            while !self.is_over.load(Ordering::SeqCst) {
                reactor.sleep(LOOK_OVER_NS).await;
                let doubts = self.doubts.load(Ordering::SeqCst);
                if doubts != self.doubts_settled.load(Ordering::SeqCst) {
                    files.give_back_entries().await;
                    self.doubts_settled.store(doubts, Ordering::SeqCst);
                }
            }
        });
    }

    /// Keeps nothing any more, and tells the servers.
    pub fn end(&self) {
        if let Some(asker) = &self.asker {
            asker.run(async |_, files: &FileSystem| files.end(files.stop_keeping_entries(STOP_NS_MAX)).await);
            self.is_over.store(true, Ordering::SeqCst);
        }
    }
}

struct Keeper {
    keeping: Arc<Keeping>,
    reactor: Reactor,
}

impl EntryKeeper for Keeper {
    fn held(&self, until: Option<Nanos>) {
        let until = until.unwrap_or(0);
        let before = self.keeping.until.swap(until, Ordering::SeqCst);
        if until == 0 && before != 0 {
            self.keeping.generation.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn forget(&self) -> LocalFuture<()> {
        let (keeping, reactor) = (self.keeping.clone(), self.reactor.clone());
        Box::pin(async move { keeping.forget_all(&reactor).await })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    fn keeping() -> Keeping {
        let file = std::fs::File::options().write(true).open("/dev/null").expect("/dev/null");
        Keeping::new(None, &Arc::new(Device::share(file.as_fd()).expect("a descriptor")), true)
    }

    /// Goal: only what was learnt while all was held may be kept, and for no longer than that; attributes are noted, a
    /// bounded number of them, until the kernel has forgotten the node.
    #[test]
    fn kept_within_one_generation() {
        let keeping = keeping();
        assert!(!keeping.is_on() && keeping.begin(10).is_none());
        keeping.until.store(1_000, Ordering::SeqCst);
        let generation = keeping.begin(10);
        assert_eq!((keeping.entry_validity(generation, 20), keeping.entry_validity(None, 20)), (980, 0));
        assert_eq!((keeping.entry_validity(generation, 1_000), keeping.begin(1_000)), (0, None));
        assert_eq!(keeping.attribute_validity(generation, 7, 20), 980);
        keeping.generation.fetch_add(1, Ordering::SeqCst);
        assert_eq!((keeping.entry_validity(generation, 30), keeping.attribute_validity(generation, 8, 30)), (0, 0));
        assert_eq!(keeping.nodes().keys().copied().collect::<Vec<u64>>(), [7]);
        let generation = keeping.begin(30);
        for node in 0..NODE_COUNT_MAX as u64 {
            let room = node + 1 < NODE_COUNT_MAX as u64;
            assert_eq!(keeping.attribute_validity(generation, 100 + node, 40), if room { 960 } else { 0 });
        }
        assert_eq!(keeping.nodes().len(), NODE_COUNT_MAX);
        assert_eq!(
            (keeping.attribute_validity(generation, 9, 50), keeping.attribute_validity(generation, 7, 50)),
            (0, 950)
        );
        keeping.nodes().clear();
        let generation = keeping.begin(50);
        keeping.begin_change();
        let during = keeping.begin(50);
        assert_eq!((keeping.entry_validity(generation, 50), keeping.attribute_validity(generation, 7, 50)), (950, 0));
        keeping.end_change();
        assert_eq!((keeping.entry_validity(during, 50), keeping.attribute_validity(during, 7, 50)), (950, 0));
        let generation = keeping.begin(50);
        assert_eq!(keeping.attribute_validity(generation, 7, 50), 950);
        keeping.doubts.fetch_add(1, Ordering::SeqCst);
        assert_eq!((keeping.begin(60), keeping.entry_validity(generation, 60)), (None, 0));
    }
}
