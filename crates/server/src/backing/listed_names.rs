//! Names that a listing has read and that nobody has looked at: those whose turn comes, and those that can't be looked
//! at (a stale handle, a dead mount, a file that is too large). Listings show them, by the kind that the tree tells and
//! the id that they will have; whoever wants to know more of one looks for it by name.
//!
//! Invariants
//! 1. A directory that has such names is not listed: that others are absent is never concluded, and no client looks for
//!    names in it by itself.
//! 2. While its listing is under way, what is here and what is known make up all names of a directory, of the time when
//!    it was last looked at. When something known is forgotten, its table goes with it.
//! 3. They are in memory alone. Those that can't be looked at are forgotten after `AGE_NS_MAX`: whoever lists the
//!    directory then has it listed anew.
//! 4. An id is given to one inode: a name that was taken up by it is known in its table for as long as that is there.
//! 5. Nothing is noted as known in a table whose listing is under way but what its listing has looked at, or what was
//!    taken up: "it is not there" may have been true before the names were read.

use super::{BackingUse, names};
use crate::core::{Core, Notice, Turn, until};
use crate::journal::tables::Tables;
use crate::names::{Dentry, cursor_of};
use reactor::Nanos;
use reactor::backing::FileKind;
use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::ops::ControlFlow;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use wire::{FileId, Kind, Status};

/// Names of one directory on one server that can't be looked at, at most; if there are more, the listing fails.
pub const FAILED_NAMES_MAX: usize = 256;
/// Directories that have a table at most.
const DIRECTORIES_MAX: usize = 256;
/// Bytes of all tables. Beyond them names are looked at as they are read, and shown when that is over.
pub const LISTED_SIZE_MAX: usize = 32 << 20;
/// For how long names that can't be looked at are shown without another try.
const AGE_NS_MAX: Nanos = 10_000_000_000;
/// While names are shown, of whichever directory, and for so long afterwards, none are looked at that nobody needs to
/// know more of.
const QUIET_NS: Nanos = 50_000_000;
/// For that at most.
const SHOWN_NS_MAX: Nanos = 1_000_000_000;
/// Bytes of an entry with attributes in a page of a listing, beside its name.
const PAGE_ENTRY_SIZE: usize = 64;

/// What a request needs to know of the names of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListingNeed {
    /// Names and kinds.
    Names,
    /// The same, and what its directories are.
    Directories,
    /// The same, and what everything is in a page of so many bytes, from a cursor on.
    Page(u64, u32),
    /// What everything is.
    All,
}

/// One name; its bytes are in its table.
#[derive(Clone, Copy)]
struct ListedName {
    cursor: u64,
    id: FileId,
    at: u32,
    size: u8,
    state: NameState,
    /// Nothing where the tree does not tell.
    kind: Option<Kind>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NameState {
    Waiting,
    Failed,
    /// It was looked at.
    Known,
}

/// Bytes of tables that there are, and names in them.
#[derive(Default)]
pub struct ListedTotal {
    size: Cell<usize>,
    count: Cell<usize>,
}

/// The names of one directory.
pub struct ListedNames {
    entries: Vec<ListedName>,
    bytes: Vec<u8>,
    /// Where looking goes on: among all, and among those that others wait for (`is_urgent`).
    next: usize,
    next_urgent: usize,
    /// How many wait: those whose kind nobody tells, directories, and all others.
    unknown_kinds: usize,
    directories: usize,
    others: usize,
    failed: usize,
    total: Rc<ListedTotal>,
    /// The times (mtime, ctime) of the directory of which they are, unless it may have changed since without moving
    /// these.
    pub times: Option<(i64, i64)>,
    /// When they were read, or the directory was last found to be the same.
    pub checked: Nanos,
    /// Told when somebody needs to know more than names.
    hurry: Notice<()>,
    /// The directory was found to have changed since.
    pub is_outdated: bool,
    /// All were looked at, but for those that can't be.
    is_complete: bool,
}

impl Drop for ListedNames {
    fn drop(&mut self) {
        self.total.size.set(self.total.size.get() - self.size());
        self.total.count.set(self.total.count.get() - self.entries.len());
    }
}

impl ListedNames {
    pub fn new(total: &Rc<ListedTotal>) -> ListedNames {
        ListedNames {
            entries: Vec::new(),
            bytes: Vec::new(),
            next: 0,
            next_urgent: 0,
            unknown_kinds: 0,
            directories: 0,
            others: 0,
            failed: 0,
            total: total.clone(),
            times: None,
            checked: 0,
            hurry: Notice::new(),
            is_outdated: false,
            is_complete: false,
        }
    }

    fn size(&self) -> usize {
        self.entries.len() * size_of::<ListedName>() + self.bytes.len()
    }

    /// Adds a name that waits. They are in order after `sort`.
    pub fn push(&mut self, directory: FileId, name: &[u8], kind: Option<FileKind>, id: FileId) {
        self.put(directory, name, kind.map(names::kind_of), id);
    }

    fn put(&mut self, directory: FileId, name: &[u8], kind: Option<Kind>, id: FileId) {
        let before = self.size();
        let (at, size) = (self.bytes.len() as u32, name.len() as u8);
        let cursor = cursor_of(directory, name);
        self.entries.push(ListedName { cursor, id, at, size, state: NameState::Waiting, kind });
        *self.waiting(kind) += 1;
        self.bytes.extend_from_slice(name);
        self.total.size.set(self.total.size.get() + self.size() - before);
        self.total.count.set(self.total.count.get() + 1);
    }

    /// Puts them in order, each once: what is replaced while it is read may have been read twice.
    pub fn sort(&mut self) {
        let bytes = &self.bytes;
        self.entries.sort_unstable_by(|a, b| (a.cursor, a.name(bytes)).cmp(&(b.cursor, b.name(bytes))));
        self.shrink();
        let bytes = &self.bytes;
        let (same, kept): (Vec<bool>, usize) = {
            let is_same =
                |pair: &[ListedName]| pair[0].cursor == pair[1].cursor && pair[0].name(bytes) == pair[1].name(bytes);
            let same: Vec<bool> = std::iter::once(false).chain(self.entries.windows(2).map(is_same)).collect();
            let kept = same.iter().filter(|same| !**same).count();
            (same, kept)
        };
        if kept == self.entries.len() || self.entries.is_empty() {
            return;
        }
        for (index, _) in same.iter().enumerate().filter(|(_, same)| **same) {
            self.note(index, NameState::Known);
        }
        let mut same = same.into_iter();
        self.retain(|_| same.next() != Some(true));
    }

    /// Nothing is added for now.
    fn shrink(&mut self) {
        self.entries.shrink_to_fit();
        self.bytes.shrink_to_fit();
    }

    /// Leaves those of which something holds.
    fn retain(&mut self, holds: impl FnMut(&ListedName) -> bool) {
        let (size, count) = (self.size(), self.entries.len());
        self.entries.retain(holds);
        self.total.size.set(self.total.size.get() + self.size() - size);
        self.total.count.set(self.total.count.get() + self.entries.len() - count);
    }

    /// Leaves those that can't be looked at.
    pub fn retain_failed(&mut self) {
        self.retain(|entry| entry.state == NameState::Failed);
    }

    fn find(&self, directory: FileId, name: &[u8]) -> Option<usize> {
        let key = (cursor_of(directory, name), name);
        self.entries.binary_search_by(|entry| (entry.cursor, entry.name(&self.bytes)).cmp(&key)).ok()
    }

    /// The name's bytes.
    pub fn name(&self, index: usize) -> &[u8] {
        self.entries[index].name(&self.bytes)
    }

    /// At most so many names that are to be looked at next: first those that others wait for, and by themselves.
    pub fn next(&mut self, count_max: usize) -> Vec<usize> {
        let waits = |entry: &ListedName| entry.state == NameState::Waiting;
        let urgent = |index: &usize| waits(&self.entries[*index]) && self.entries[*index].is_urgent();
        let found: Vec<usize> = (self.next_urgent..self.entries.len()).filter(urgent).take(count_max).collect();
        self.next_urgent = found.last().map_or(self.entries.len(), |last| last + 1);
        if !found.is_empty() {
            return found;
        }
        // Those before a page that somebody wanted come last.
        for _ in 0..2 {
            let ahead = (self.next..self.entries.len()).filter(|index| waits(&self.entries[*index]));
            let found: Vec<usize> = ahead.take(count_max).collect();
            self.next = found.last().map_or(0, |last| last + 1);
            if !found.is_empty() {
                return found;
            }
        }
        Vec::new()
    }

    /// A name was looked at.
    pub fn note_known(&mut self, index: usize) {
        self.note(index, NameState::Known);
    }

    /// A name can't be looked at.
    pub fn note_failed(&mut self, index: usize) {
        self.note(index, NameState::Failed);
    }

    fn note(&mut self, index: usize, state: NameState) {
        let ListedName { kind, state: before, .. } = self.entries[index];
        match before {
            NameState::Waiting => *self.waiting(kind) -= 1,
            NameState::Failed => self.failed -= 1,
            NameState::Known => return,
        }
        self.entries[index].state = state;
        self.failed += usize::from(state == NameState::Failed);
    }

    /// How many of a kind wait.
    fn waiting(&mut self, kind: Option<Kind>) -> &mut usize {
        match kind {
            None => &mut self.unknown_kinds,
            Some(Kind::Directory) => &mut self.directories,
            Some(_) => &mut self.others,
        }
    }

    /// How many can't be looked at.
    pub fn failed_count(&self) -> usize {
        self.failed
    }

    /// Those that can't be looked at.
    pub fn failed(&self) -> Vec<usize> {
        (0..self.entries.len()).filter(|index| self.entries[*index].state == NameState::Failed).collect()
    }

    /// Adds those of another table that can't be looked at. They are in order after `sort`.
    pub fn add_failed(&mut self, others: &ListedNames, directory: FileId) {
        for index in others.failed() {
            let ListedName { kind, id, .. } = others.entries[index];
            self.put(directory, others.name(index), kind, id);
            self.note_failed(self.entries.len() - 1);
        }
    }

    /// Whether all were looked at, or can't be.
    pub fn has_no_waiting(&self) -> bool {
        self.unknown_kinds + self.directories + self.others == 0
    }

    /// Those that may be in a page from a cursor on, of so many bytes at most.
    fn page(&self, from: u64, size_max: u32) -> impl Iterator<Item = &ListedName> {
        let first = self.entries.partition_point(|entry| entry.cursor < from);
        let mut size = 0;
        self.entries[first..].iter().take_while(move |entry| {
            let fits = size <= size_max as usize;
            size += PAGE_ENTRY_SIZE + usize::from(entry.size);
            fits
        })
    }

    /// Whether nothing is to be waited for that somebody needs. When all were looked at, the listing ends.
    fn serve(&self, need: ListingNeed) -> bool {
        if self.has_no_waiting() {
            return false;
        }
        match need {
            ListingNeed::All => false,
            ListingNeed::Names => self.unknown_kinds == 0,
            ListingNeed::Directories => self.unknown_kinds + self.directories == 0,
            ListingNeed::Page(from, size_max) => {
                self.serve(ListingNeed::Names)
                    && self.page(from, size_max).all(|entry| entry.state != NameState::Waiting)
            }
        }
    }
}

impl ListedName {
    fn name<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        &bytes[self.at as usize..][..usize::from(self.size)]
    }

    /// Whether names can't be shown, or the tree below can't be searched, before this was looked at.
    fn is_urgent(&self) -> bool {
        matches!(self.kind, None | Some(Kind::Directory))
    }
}

impl BackingUse {
    /// Whether there is room for more names.
    pub(super) fn has_room_for_names(&self) -> bool {
        self.listed_total.size.get() < LISTED_SIZE_MAX && self.listed_total.count.get() < self.memos
    }

    /// Shows all names of a directory that are not known, in order; not if there are too many directories that have
    /// some. Whether it does.
    pub(super) fn show_listed_names(&self, directory: FileId, names: &Rc<RefCell<ListedNames>>) -> bool {
        let fits = self.make_room_for_table() || self.listed_names.borrow().contains_key(&directory.0);
        if fits {
            self.listed_names.borrow_mut().insert(directory.0, names.clone());
        }
        fits
    }

    /// Makes room for another table: those go that have only what can't be looked at. Whether there is some.
    fn make_room_for_table(&self) -> bool {
        let mut tables = self.listed_names.borrow_mut();
        let (before, most) = (tables.len(), DIRECTORIES_MAX.min(self.memos));
        if before >= most {
            tables.retain(|_, names| !names.borrow().is_complete);
            if tables.len() < before {
                self.lost.note_all();
            }
        }
        tables.len() < most
    }

    /// A directory was listed, but for these names.
    pub(super) fn put_failed_names(&self, directory: FileId, names: &Rc<RefCell<ListedNames>>, now: Nanos) {
        {
            let mut names = names.borrow_mut();
            names.retain_failed();
            (names.is_complete, names.checked) = (true, now);
        }
        // Also where there is no room: whoever has waited for it would list it again.
        self.make_room_for_table();
        self.listed_names.borrow_mut().insert(directory.0, names.clone());
    }

    /// Other names of a directory may be unknown now: what was read of it is not all any more.
    pub(super) fn forget_listed_names(&self, directory: FileId) {
        self.listed_names.borrow_mut().remove(&directory.0);
        self.lost.note(directory);
    }

    /// A listing has ended: what it has read is shown no more, but what can't be looked at.
    pub(super) fn end_listed_names(&self, directory: FileId) {
        let mut tables = self.listed_names.borrow_mut();
        if tables.get(&directory.0).is_some_and(|names| !names.borrow().is_complete) {
            tables.remove(&directory.0);
        }
    }

    /// What a name stands for is known now, if only that it is not there. The last of those that can't be looked at
    /// leaves a directory that is to be listed anew.
    pub(super) fn note_known_name(&self, directory: FileId, name: &[u8]) {
        if self.names_under_way(directory).is_none() {
            self.note_taken_up(directory, name);
        }
    }

    /// The same of a name that was taken up: by its id, if `listed_id` has told one.
    pub(super) fn note_taken_up(&self, directory: FileId, name: &[u8]) {
        let names = self.listed_names.borrow().get(&directory.0).cloned();
        let Some(names) = names else { return };
        let mut names = names.borrow_mut();
        if let Some(index) = names.find(directory, name) {
            names.note_known(index);
        }
        if names.is_complete && names.failed_count() == 0 {
            self.listed_names.borrow_mut().remove(&directory.0);
        }
    }

    /// The id with which listings have shown a name, for what is taken up there.
    pub(super) fn listed_id(&self, directory: FileId, name: &[u8]) -> Option<FileId> {
        let names = self.listed_names.borrow().get(&directory.0)?.clone();
        let names = names.borrow();
        let entry = &names.entries[names.find(directory, name)?];
        (entry.state != NameState::Known).then_some(entry.id)
    }

    /// What was read of a directory whose listing is under way, if it is shown.
    pub(super) fn names_under_way(&self, directory: FileId) -> Option<Rc<RefCell<ListedNames>>> {
        let names = self.listed_names.borrow().get(&directory.0)?.clone();
        let is_complete = names.borrow().is_complete;
        (!is_complete).then_some(names)
    }
}

impl Core {
    /// Whether a directory was listed, but for some of its names.
    pub(super) fn has_failed_names(&self, directory: FileId) -> bool {
        let Some(backing) = &self.backing else { return false };
        let tables = backing.listed_names.borrow();
        tables.get(&directory.0).is_some_and(|names| self.is_usable(&names.borrow(), ListingNeed::All))
    }

    /// Whether what was read of a directory is enough for somebody who needs something of it.
    pub(super) fn shows_listed_names(&self, directory: FileId, need: ListingNeed) -> bool {
        let Some(backing) = &self.backing else { return false };
        let tables = backing.listed_names.borrow();
        tables.get(&directory.0).is_some_and(|names| self.is_usable(&names.borrow(), need))
    }

    fn is_usable(&self, names: &ListedNames, need: ListingNeed) -> bool {
        match names.is_complete {
            true => self.reactor.now().saturating_sub(names.checked) < AGE_NS_MAX,
            false => names.serve(need),
        }
    }

    /// The cursor of the first name of a directory, from one on, that nobody has looked at and that can be: with it a
    /// page of attributes ends.
    pub fn first_to_look_at(&self, directory: FileId, from: u64) -> Option<u64> {
        let names = self.backing.as_ref()?.names_under_way(directory)?;
        let names = names.borrow();
        let first = names.entries.partition_point(|entry| entry.cursor < from);
        let waits = names.entries[first..].iter().find(|entry| entry.state == NameState::Waiting);
        waits.map(|entry| entry.cursor)
    }

    /// Has those names looked at next, and now, that somebody waits for.
    pub(super) fn note_need(&self, directory: FileId, need: ListingNeed) {
        let Some(names) = self.backing().names_under_way(directory) else { return };
        let mut names = names.borrow_mut();
        if let ListingNeed::Page(from, _) = need {
            names.next = names.entries.partition_point(|entry| entry.cursor < from);
        }
        if need != ListingNeed::Names || !names.serve(need) {
            names.hurry.tell(());
        }
    }

    /// Waits until somebody needs more than names, or for as long as those are shown.
    pub(super) async fn wait_for_need(&self, names: &RefCell<ListedNames>) {
        let hurry = names.borrow().hurry.clone();
        let latest = self.reactor.now() + SHOWN_NS_MAX;
        loop {
            let limit = latest.min(self.backing().names_shown.get() + QUIET_NS);
            if self.reactor.now() >= limit || until(&self.reactor, limit, hurry.wait()).await.is_some() {
                return;
            }
        }
    }

    /// The turn to look at names that nobody needs to know more of; or nothing as soon as somebody does.
    pub(super) async fn turn_or_need(&self, names: &RefCell<ListedNames>) -> Option<Turn> {
        let hurry = names.borrow().hurry.clone();
        let (mut turn, mut needed) = (pin!(self.backing().idle_looks.take(0)), pin!(hurry.wait()));
        poll_fn(|context| match needed.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(None),
            Poll::Pending => turn.as_mut().poll(context).map(Some),
        })
        .await
    }

    /// Whether this server's share of a directory has no names: `NotEmpty`, or `Busy` where nobody knows yet.
    pub fn check_emptied(&self, tables: &Tables, directory: FileId) -> Result<(), Status> {
        if !tables.names.is_empty(directory) || self.has_failed_names(directory) {
            return Err(Status::NotEmpty);
        }
        if self.lacks_listing(tables, directory) { Err(Status::Busy) } else { Ok(()) }
    }

    /// The same, for whoever tries again if nobody knows: it is listed meanwhile.
    pub fn check_removable(self: &Rc<Self>, tables: &Tables, directory: FileId) -> Result<(), Status> {
        let emptied = self.check_emptied(tables, directory);
        if emptied == Err(Status::Busy) {
            self.start_listing(directory);
            self.note_need(directory, ListingNeed::All);
        }
        emptied
    }

    /// Visits a directory's entries from a cursor on, in the order of cursors, until the visitor says false.
    pub fn walk_names(
        &self,
        tables: &Tables,
        directory: FileId,
        from: u64,
        visit: &mut dyn FnMut(&Dentry<'_>) -> bool,
    ) {
        let listed = self.backing.as_ref().and_then(|backing| {
            let names = backing.listed_names.borrow().get(&directory.0)?.clone();
            let is_shown = !names.borrow().is_complete || self.is_usable(&names.borrow(), ListingNeed::All);
            is_shown.then_some(names)
        });
        let Some(listed) = listed else {
            return tables.names.walk(directory, from, &mut |entry: &Dentry<'_>| visit(entry));
        };
        let listed = listed.borrow();
        if let Some(backing) = &self.backing {
            backing.names_shown.set(self.reactor.now());
        }
        let first = listed.entries.partition_point(|entry| entry.cursor < from);
        // By now somebody may have found out what is there, and have removed it.
        let is_shown = |name: &[u8]| self.is_unknown(tables, directory, name);
        let mut left = listed.entries[first..]
            .iter()
            .filter(|entry| entry.state != NameState::Known)
            .map(|entry| Dentry {
                cursor: entry.cursor,
                id: entry.id,
                kind: entry.kind.unwrap_or(Kind::File),
                name: entry.name(&listed.bytes),
            })
            .filter(|entry| is_shown(entry.name))
            .peekable();
        let mut flow = ControlFlow::Continue(());
        tables.names.walk(directory, from, &mut |entry: &Dentry<'_>| {
            while flow.is_continue()
                && let Some(listed) = left.next_if(|listed| listed.cursor <= entry.cursor)
            {
                flow = to_flow(visit(&listed));
            }
            if flow.is_continue() {
                flow = to_flow(visit(entry));
            }
            flow.is_continue()
        });
        while flow.is_continue()
            && let Some(listed) = left.next()
        {
            flow = to_flow(visit(&listed));
        }
    }
}

fn to_flow(goes_on: bool) -> ControlFlow<()> {
    if goes_on { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIRECTORY: FileId = FileId(7);

    fn table(names: &[(&str, Option<FileKind>)]) -> (Rc<ListedTotal>, ListedNames) {
        let total = Rc::new(ListedTotal::default());
        let mut table = ListedNames::new(&total);
        for (number, (name, kind)) in names.iter().enumerate() {
            table.push(DIRECTORY, name.as_bytes(), *kind, FileId(100 + number as u64));
        }
        table.sort();
        (total, table)
    }

    fn many(count: usize) -> (Rc<ListedTotal>, ListedNames) {
        let names: Vec<String> = (0..count).map(|number| format!("n{number}")).collect();
        table(&names.iter().map(|name| (name.as_str(), Some(FileKind::File))).collect::<Vec<_>>())
    }

    /// Goal: a name that was read twice is there once, and what is counted is what is there; nothing is left in the
    /// end.
    #[test]
    fn names_are_there_once() {
        let file = Some(FileKind::File);
        let (total, mut table) = table(&[("a", file), ("b", Some(FileKind::Directory)), ("a", file), ("c", None)]);
        assert_eq!((table.entries.len(), total.count.get(), total.size.get()), (3, 3, table.size()));
        assert_eq!((table.others, table.directories, table.unknown_kinds), (1, 1, 1));
        let index = table.find(DIRECTORY, b"a").expect("there");
        for _ in 0..2 {
            table.note_failed(index);
            assert_eq!((table.others, table.failed_count()), (0, 1));
        }
        table.retain_failed();
        assert_eq!((table.name(0), total.count.get(), total.size.get()), (&b"a"[..], 1, table.size()));
        table.note_known(0);
        // It was taken up: its id is somebody's.
        table.note_failed(0);
        assert_eq!(table.failed_count(), 0);
        drop(table);
        assert_eq!((total.count.get(), total.size.get()), (0, 0));
    }

    /// Goal: directories and what tells no kind come first, by themselves; then all others from where somebody reads,
    /// and those before it at last; each once.
    #[test]
    fn the_order_of_looks() {
        let (_total, mut table) = many(200);
        table.push(DIRECTORY, b"directory", Some(FileKind::Directory), FileId(1));
        table.push(DIRECTORY, b"unknown", None, FileId(2));
        table.sort();
        assert!(!table.serve(ListingNeed::Names) && !table.serve(ListingNeed::Directories));
        let note = |table: &mut ListedNames| {
            let batch = table.next(64);
            batch.iter().for_each(|index| table.note_known(*index));
            batch
        };
        let first = note(&mut table);
        let mut names: Vec<&[u8]> = first.iter().map(|index| table.name(*index)).collect();
        names.sort_unstable();
        assert_eq!(names, [&b"directory"[..], b"unknown"]);
        assert!(table.serve(ListingNeed::Directories) && !table.serve(ListingNeed::All));
        let from = table.entries[150].cursor;
        assert!(!table.serve(ListingNeed::Page(from, 1_000)));
        table.next = 150;
        let batch = note(&mut table);
        assert!(batch.iter().all(|index| *index >= 150) && table.serve(ListingNeed::Page(from, 1_000)));
        let mut seen = first.len() + batch.len();
        loop {
            match note(&mut table).len() {
                0 => break,
                count => seen += count,
            }
        }
        assert_eq!(seen, 202);
        assert!(table.has_no_waiting() && !table.serve(ListingNeed::Names), "the listing ends now");
    }
}
