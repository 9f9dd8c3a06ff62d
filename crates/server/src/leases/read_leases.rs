//! Read leases: contents of small files that an open was told along with its reply, for a client to read from until
//! they end.
//!
//! A client that opens a file to read it mostly reads it at once. Where it has nothing mapped to read from, the reply
//! of the open brings what a small file holds, and until when that is true: nobody changes the file's contents or size
//! before. So opening, reading and closing a small file is one round trip over a network. Leases end by time alone, and
//! soon: no message calls one back, and whoever wants to change the file waits for the rest of that time. None is given
//! of a file that has changed lately, so that who writes to a file again and again waits a small part of his time at
//! most.
//!
//! Invariants
//! 1. While a lease may stand, nothing is journalled that changes the file's contents or size, or announces that
//!    another server may (`Core::commit` asserts it). Between the look at the leases and the change there is no await.
//! 2. A lease is given only where its file's home holds all of the contents and knows the size.
//! 3. A lease ends here later than at its holder: he counts from before he asked, and clocks differ by less than
//!    `MARGIN`.
//! 4. A life of this server changes nothing before what an earlier one gave has ended (`Server::start` waits).

use crate::core::{Core, Notice};
use crate::files::inodes::Inode;
use crate::process::options::{Bounds, ReadLeasing};
use crate::store::FastMap;
use reactor::{Class, Nanos};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use wire::limits::LEASED_SIZE_MAX;
use wire::{Encode, FileId, Kind};

/// A lease is kept to for a time longer than it was given for by this part of it.
const MARGIN: Nanos = 8;

/// How long a lease is kept to here.
pub fn kept_for(leasing: ReadLeasing) -> Nanos {
    leasing.time + leasing.time / MARGIN
}

/// The leases of one file.
struct FileLeases {
    /// When the last one has ended.
    until: Nanos,
    /// When this may be forgotten.
    kept_until: Nanos,
    /// Somebody waits for that: nobody is given one until he has had time to change the file.
    ended: Option<Notice<()>>,
}

/// See the module.
#[derive(Default)]
pub struct ReadLeases {
    /// Files whose contents clients have leases of at a time.
    file_count_max: usize,
    files: RefCell<FastMap<u64, FileLeases>>,
    /// The same by the time at which each may be forgotten, if none has been given again.
    order: RefCell<VecDeque<(u64, Nanos)>>,
    /// For tests: nobody waits for the end.
    ignored: Cell<bool>,
    given_count: Cell<u64>,
    awaited_count: Cell<u64>,
}

impl ReadLeases {
    pub fn new(bounds: &Bounds) -> ReadLeases {
        ReadLeases { file_count_max: bounds.read_leased_files, ..ReadLeases::default() }
    }

    /// Bytes that the tables take at most.
    pub fn memory_max(&self) -> u64 {
        // Of each file one entry counts and one may be out of date.
        (self.file_count_max * (2 * size_of::<(u64, FileLeases)>() + 4 * size_of::<(u64, Nanos)>())) as u64
    }

    /// Leases given, and those that a change has waited for.
    pub fn numbers(&self) -> [(&'static str, u64); 2] {
        [("read_leases_given", self.given_count.get()), ("read_leases_awaited", self.awaited_count.get())]
    }

    /// Has this server break its word, for tests of the simulation's checker.
    pub fn ignore(&self) {
        self.ignored.set(true);
    }

    /// Whether there is nothing to look for.
    pub fn is_empty(&self) -> bool {
        self.files.borrow().is_empty()
    }

    /// Whether a lease of the file may stand.
    pub fn may_stand(&self, file: FileId, now: Nanos) -> bool {
        let files = self.files.borrow();
        !files.is_empty() && !self.ignored.get() && files.get(&file.0).is_some_and(|given| given.until > now)
    }

    /// Notes one more lease, unless there is no room or somebody waits for those that there are.
    fn give(&self, file: FileId, now: Nanos, leasing: ReadLeasing) -> bool {
        let (mut files, mut order) = (self.files.borrow_mut(), self.order.borrow_mut());
        while let Some((oldest, at)) = order.front().copied().filter(|(_, at)| *at <= now) {
            order.pop_front();
            if files.get(&oldest).is_some_and(|given| given.kept_until <= at) {
                files.remove(&oldest);
            }
        }
        if order.len() >= 2 * self.file_count_max || files.len() >= self.file_count_max {
            return false;
        }
        let until = now + kept_for(leasing);
        let kept_until = until + leasing.time;
        let given = files.entry(file.0).or_insert(FileLeases { until, kept_until, ended: None });
        if given.ended.is_some() {
            return false;
        }
        (given.until, given.kept_until) = (until, kept_until);
        order.push_back((file.0, kept_until));
        self.given_count.set(self.given_count.get() + 1);
        true
    }
}

impl Core {
    /// Told when no lease of the file's contents stands any more; nothing when none does. Who is told looks again.
    pub fn read_lease_end(self: &Rc<Self>, file: FileId) -> Option<Notice<()>> {
        let leases = &self.leases.read_leases;
        let now = self.reactor.now();
        if !leases.may_stand(file, now) {
            return None;
        }
        let mut files = leases.files.borrow_mut();
        let given = files.get_mut(&file.0)?;
        if let Some(ended) = &given.ended {
            return Some(ended.clone());
        }
        let (until, ended) = (given.until, Notice::new());
        given.ended = Some(ended.clone());
        leases.awaited_count.set(leases.awaited_count.get() + 1);
        let (core, told) = (self.clone(), ended.clone());
        drop(files);
        self.reactor.spawn(Class::Metadata, async move {
            core.reactor.sleep_until(until).await;
            told.tell(());
        });
        Some(ended)
    }

    /// Waits until no lease of the file's contents stands. What happens before the next await is covered.
    pub async fn wait_for_read_leases(self: &Rc<Self>, file: FileId) {
        while let Some(ended) = self.read_lease_end(file) {
            ended.wait().await;
        }
    }

    /// Appends `OpenReply::contents`: those of a small file that is not being changed, where they are wanted, with a
    /// lease of them.
    pub fn tell_contents(self: &Rc<Self>, file: FileId, wanted: bool, reply: &mut Vec<u8>) {
        let tables = self.tables.borrow();
        let told = tables.inodes.get(file).filter(|inode| wanted && self.may_lease(inode)).filter(|_| {
            // Nobody could check what is told here.
            !self.store.keeps_sums() && !self.lacks_chunk(file, 0)
        });
        let told = told.and_then(|inode| {
            // What can't be read is told to who reads it.
            let read = self.store.read(file.0, 0, 0, inode.attributes.size as u32).ok()?;
            self.leases.read_leases.give(file, self.reactor.now(), self.options.read_leasing).then_some((inode, read))
        });
        if let (Some(_), Some(publisher)) = (&told, &tables.publisher) {
            // Who writes waits until the lease has ended.
            publisher.invalidate_writable(file);
        }
        told.is_some().encode(reply);
        let Some((inode, read)) = told else { return };
        reply.reserve(inode.attributes.size as usize + 16);
        self.options.read_leasing.time.encode(reply);
        (inode.attributes.size as u32).encode(reply);
        read.append_to(reply);
    }

    /// Invariant 2, and whether the file is small and has not changed lately.
    fn may_lease(&self, inode: &Inode) -> bool {
        let (attributes, leasing) = (&inode.attributes, self.options.read_leasing);
        let is_home_alone =
            || !inode.is_announced() && self.cluster.chunk_server(attributes.id, &attributes.layout, 0) == self.index;
        leasing.time > 0
            && attributes.kind == Kind::File
            && attributes.size <= u64::from(attributes.layout.chunk_size).min(LEASED_SIZE_MAX as u64)
            && self.clock.time().saturating_sub(attributes.ctime) >= leasing.rest as i64
            && is_home_alone()
            && !self.turns.is_taken(attributes.id.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASING: ReadLeasing = ReadLeasing { time: 800, rest: 0 };

    /// Goal: what is noted stays bounded, makes room as time passes, and none is given while somebody waits, nor just
    /// after.
    #[test]
    fn bounded_and_renewed() {
        let leases = ReadLeases::new(&Bounds::default());
        let count = leases.file_count_max as u64;
        let given =
            |now: Nanos| (0..2 * count).filter(|file| leases.give(FileId(now << 32 | file), now, LEASING)).count();
        assert_eq!(given(1), leases.file_count_max);
        assert!(leases.may_stand(FileId(1 << 32), 900) && !leases.may_stand(FileId(1 << 32), 901));
        assert_eq!(given(1_700), 0);
        assert_eq!(given(1_701), leases.file_count_max);
        // One file again and again takes the room of one, as time passes.
        let one = (10_000..30_000).filter(|now| leases.give(FileId(7), *now, LEASING)).count();
        assert_eq!((one, leases.files.borrow().len()), (20_000, 1));
        assert!(leases.order.borrow().len() <= 2 * leases.file_count_max && leases.may_stand(FileId(7), 30_898));
        leases.files.borrow_mut().get_mut(&7).expect("given").ended = Some(Notice::new());
        assert!(!leases.give(FileId(7), 30_000, LEASING) && !leases.give(FileId(7), 30_900, LEASING));
        assert!(leases.give(FileId(7), 31_700, LEASING));
    }
}
