//! What is known of the tree is looked at again (`--backing-check`): a name that somebody asks for, or a directory all
//! of whose names are known, if nobody has looked for longer than the interval. A name that stands for something else
//! there by now, or for nothing, is forgotten: nothing is known of it any more, and whoever asks has it taken up anew,
//! by another id. So there is one way in which something comes here, and nothing of an older one is mixed with it.
//!
//! Invariants
//! 1. A name is forgotten only if nothing of what it stands for was changed here, on any server, and nobody may have it
//!    open. What was changed here stays, and is a conflict for flushes.
//! 2. What a look has found counts only if what is known of the name is what it was before the look, and no flush is
//!    about to change it.
//! 3. With a name its directory's listing is forgotten, in the same record: "not here" is a question again.
//! 4. A look that fails or takes long changes nothing, and keeps nobody waiting for longer than `PATIENCE_NS`; from
//!    then on nobody waits, until the site has been left alone for a while.
//! 5. What clients of this machine know without asking, and what mounts keep, is taken from them before it is twice as
//!    old as the interval.

use super::carry::is_known;
use super::{BackingFault, add};
use crate::core::{Core, Failure, Notice, all, until};
use crate::handlers::names::unlink::drop_link;
use crate::journal::records::Record;
use crate::journal::tables::Tables;
use crate::names::{Dentry, NO_TIME, cursor_of};
use crate::store::FastMap;
use reactor::log::{self, Level};
use reactor::{Class, LocalFuture, Nanos};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use wire::messages::KnownBehind;
use wire::{FileId, Kind};

/// A request waits so long for what it has looked at again.
const PATIENCE_NS: Nanos = 1_000_000_000;
/// For so long at most nobody waits after that.
const PAUSE_NS_MAX: Nanos = 10_000_000_000;
/// Times of a directory that are no older than this may stand for several changes.
const YOUNG_NS: i64 = 3_000_000_000;
/// Looks that one request has under way, and all of them together; and names that one call looks at.
const LOOKS_AT_ONCE: usize = 128;
const LOOKS_MAX: usize = 256;
const CALL_LOOKS: usize = 16;
/// What is taken from clients of this machine in one step.
const STEP_COUNT: usize = 1024;
/// Names of one page of a listing that are looked at for their attributes; a page has fewer.
const PAGE_NAMES_MAX: usize = 4096;

/// What is looked at again: a directory, or a name in it.
pub type CheckKey = (u64, Option<Box<[u8]>>);

/// See the module.
pub struct Checks {
    /// `Nanos::MAX` for never.
    interval: Nanos,
    under_way: RefCell<BTreeMap<CheckKey, Notice<()>>>,
    /// Until then the site is left alone.
    paused_until: Cell<Nanos>,
    /// Names that were forgotten in this life.
    pub forgotten: Cell<u64>,
    pub looks: Cell<u64>,
    /// Files whose names clients of this machine may know by themselves, and directories in which they may make some.
    shown: RefCell<FastMap<u64, ()>>,
    /// Somebody was told something that he may keep.
    is_told: Cell<bool>,
    is_sweeping: Cell<bool>,
}

/// A name about which both sides agree, as far as anybody knows.
#[derive(PartialEq)]
pub(super) struct AgreedName {
    pub id: FileId,
    known: KnownBehind,
}

impl Checks {
    pub fn new(interval: Nanos) -> Checks {
        Checks {
            interval,
            under_way: RefCell::default(),
            paused_until: Cell::new(0),
            forgotten: Cell::new(0),
            looks: Cell::new(0),
            shown: RefCell::default(),
            is_told: Cell::new(false),
            is_sweeping: Cell::new(false),
        }
    }

    pub fn is_on(&self) -> bool {
        self.interval != Nanos::MAX
    }

    fn is_due(&self, checked: Nanos, now: Nanos) -> bool {
        self.is_on() && now >= self.paused_until.get() && (checked == 0 || now - checked >= self.interval)
    }
}

impl Core {
    /// A name of this server about which both sides agree: it leads to a file or link whose home this is too, and which
    /// has its place there. Directories are no matter of checks.
    pub(super) fn agreed_name(&self, tables: &Tables, directory: FileId, name: &[u8]) -> Option<AgreedName> {
        let (id, kind) = tables.names.get(directory, name, cursor_of(directory, name))?;
        if kind == Kind::Directory || self.cluster.home_of(id) != Some(self.index) {
            return None;
        }
        let place = tables.backing.place(id).filter(|place| place.inode != 0)?;
        if (place.parent, place.name()) != (directory, name) || tables.backing.next(id).is_some() {
            return None;
        }
        let known = match tables.backing.difference(directory, name) {
            None => id.is_from_behind().then(|| place.known()),
            Some(behind) => behind.known.clone().filter(|_| behind.agrees(Some(id))),
        };
        // Of one of several names the place tells what all of them are known by.
        let is_link = |known: &KnownBehind| known.inode == place.inode && known.may_have_links();
        let known = known.map(|known| if is_link(&known) { place.known() } else { known });
        known.map(|known| AgreedName { id, known })
    }

    /// What has to be looked at again before somebody is told what a name stands for.
    pub(super) fn due_check(&self, tables: &Tables, directory: FileId, name: &[u8]) -> Option<CheckKey> {
        let checks = &self.backing().checks;
        let now = self.reactor.now();
        if let Some(AgreedName { id, .. }) = self.agreed_name(tables, directory, name) {
            let taken_up = tables.backing.get(id);
            taken_up.iter().for_each(|taken_up| taken_up.note_name_use(now / 1_000_000_000));
            let is_due = taken_up.is_some_and(|taken_up| checks.is_due(taken_up.checked(), now));
            return is_due.then(|| (directory.0, Some(name.into())));
        }
        let is_absent = tables.names.get(directory, name, cursor_of(directory, name)).is_none()
            && tables.backing.difference(directory, name).is_none();
        if is_absent { self.due_listing(tables, directory) } else { None }
    }

    /// The same before somebody is told which names a directory has.
    pub(super) fn due_listing(&self, tables: &Tables, directory: FileId) -> Option<CheckKey> {
        let checks = &self.backing().checks;
        let now = self.reactor.now();
        let checked = match tables.backing.listed_directory(directory) {
            Some(listed) => {
                listed.used.set(now);
                listed.checked.get()
            }
            None => self.backing().names_under_way(directory)?.borrow().checked,
        };
        checks.is_due(checked, now).then_some((directory.0, None))
    }

    /// The same for the attributes of names in a page of a listing, of `size_max` bytes from a cursor on.
    pub(super) fn due_in_page(&self, tables: &Tables, directory: FileId, from: u64, size_max: u32) -> Vec<CheckKey> {
        let (mut due, mut size, mut count) = (Vec::new(), 0, 0);
        tables.names.walk(directory, from, &mut |entry: &Dentry<'_>| {
            due.extend(self.due_check(tables, directory, entry.name));
            (size, count) = (size + entry.name.len(), count + 1);
            size <= size_max as usize && count < PAGE_NAMES_MAX
        });
        due
    }

    /// Looks at all of these again; what is late counts as it is known.
    pub(super) async fn check_again(self: &Rc<Self>, due: Vec<CheckKey>, deadline: Nanos) {
        let checks = &self.backing().checks;
        let limit = deadline.min(self.reactor.now() + PATIENCE_NS);
        for (number, some) in due.chunks(LOOKS_AT_ONCE).enumerate() {
            if until(&self.reactor, limit, self.check_all(some)).await.is_none() {
                if number == 0 {
                    let pause = checks.interval.min(PAUSE_NS_MAX);
                    checks.paused_until.set(self.reactor.now() + pause);
                }
                return;
            }
        }
    }

    async fn check_all(self: &Rc<Self>, due: &[CheckKey]) {
        let mut begun = Vec::with_capacity(due.len());
        for of_one in due.chunk_by(|left, right| left.0 == right.0 && left.1.is_some() && right.1.is_some()) {
            for some in of_one.chunks(CALL_LOOKS) {
                begun.extend(self.start_checks(some).await);
            }
        }
        for check in begun {
            check.wait().await;
        }
    }

    /// Begins to look at names of one directory again, or at that, or joins whoever does, when not too many are under
    /// way.
    async fn start_checks(self: &Rc<Self>, keys: &[CheckKey]) -> Vec<Notice<()>> {
        let checks = &self.backing().checks;
        let (begun, new) = loop {
            let full = {
                let under_way = checks.under_way.borrow();
                let (begun, new): (Vec<_>, Vec<_>) = keys.iter().partition(|key| under_way.contains_key(*key));
                if new.is_empty() || under_way.len() + new.len() <= LOOKS_MAX {
                    break (begun.into_iter().map(|key| under_way[key].clone()).collect(), new);
                }
                under_way.values().next().cloned()
            };
            match full {
                Some(full) => full.wait().await,
                None => unreachable!("one call looks at less than may be looked at"),
            }
        };
        let mut all: Vec<Notice<()>> = begun;
        if new.is_empty() {
            return all;
        }
        let check = Notice::new();
        let new: Vec<CheckKey> = new.into_iter().cloned().collect();
        checks.under_way.borrow_mut().extend(new.iter().map(|key| (key.clone(), check.clone())));
        add(&checks.looks, new.len() as u64);
        let (core, told) = (self.clone(), check.clone());
        self.reactor.spawn(Class::Metadata, async move {
            core.check_keys(&new).await;
            told.tell(());
        });
        all.push(check);
        all
    }

    async fn check_keys(self: &Rc<Self>, keys: &[CheckKey]) {
        let Some((directory, _)) = keys.first() else { return };
        let directory = FileId(*directory);
        let names: Vec<&[u8]> = keys.iter().filter_map(|(_, name)| name.as_deref()).collect();
        let is_done = match &names[..] {
            [] => {
                self.check_listing(directory).await;
                true
            }
            [_] => false,
            // If one of them makes all of them late, each is looked at by itself.
            _ => self.look_at_names(directory, &names, self.reactor.now() + PATIENCE_NS / 4).await,
        };
        let forget = |key: &CheckKey| drop(self.backing().checks.under_way.borrow_mut().remove(key));
        if is_done {
            return keys.iter().for_each(forget);
        }
        let check = |key: &CheckKey| {
            let (core, key) = (self.clone(), key.clone());
            Box::pin(async move {
                let name = key.1.as_deref().unwrap_or_default();
                core.look_at_names(FileId(key.0), &[name], Nanos::MAX).await;
                core.backing().checks.under_way.borrow_mut().remove(&key);
            }) as LocalFuture<()>
        };
        all(keys.iter().map(check).collect()).await;
    }

    /// Looks at names again by one call, and forgets those that are not what they are known to be. False if that was
    /// not told by a time.
    async fn look_at_names(self: &Rc<Self>, directory: FileId, names: &[&[u8]], limit: Nanos) -> bool {
        let deadline = self.reactor.now() + self.options.timeout;
        let agreed: Vec<(&[u8], AgreedName)> = {
            let tables = self.tables.borrow();
            let agreed = names.iter().map(|name| Some((*name, self.agreed_name(&tables, directory, name)?)));
            agreed.flatten().collect()
        };
        let wanted: Vec<&[u8]> = agreed.iter().map(|(name, _)| *name).collect();
        let look = async {
            let (place, opened) = self.open_behind(directory, deadline).await?;
            let found = opened.look_all(&wanted).await.map_err(|error| self.backing().failure(error))?;
            Ok::<_, Failure>((place, found))
        };
        let Some(looked) = until(&self.reactor, limit, look).await else { return false };
        let is_same = |tables: &Tables, name: &[u8], before: &AgreedName| {
            self.agreed_name(tables, directory, name).as_ref() == Some(before)
        };
        {
            let tables = self.tables.borrow();
            for (name, before) in &agreed {
                // What was changed here as well is looked at again in time, as is what can't be looked at.
                if is_same(&tables, name, before) {
                    tables.backing.get(before.id).iter().for_each(|known| known.note_checked(self.reactor.now()));
                }
            }
        }
        let Ok((place, found)) = looked else { return true };
        for ((name, before), found) in agreed.iter().zip(found) {
            let is_other = match found {
                Ok(found) => !is_known(&found, &before.known),
                Err(error) if error.is_not_found() => true,
                Err(error) => {
                    // It is counted.
                    let _: Failure = self.backing().failure(error);
                    false
                }
            };
            let forgets = is_other && !self.backing().has_fault(BackingFault::IdentityUnchecked);
            if forgets && is_same(&self.tables.borrow(), name, before) {
                self.forget_changed(directory, &place.path, name, before, deadline).await;
            }
        }
        true
    }

    /// Forgets a name that is not any more what it is known to be, if nothing would be lost.
    async fn forget_changed(
        self: &Rc<Self>,
        directory: FileId,
        path: &[u8],
        name: &[u8],
        before: &AgreedName,
        deadline: Nanos,
    ) {
        let forgotten = self.forget_name(directory, name, before, deadline).await;
        if let Ok(true) = forgotten {
            add(&self.backing().checks.forgotten, 1);
            let path = super::joined(path, name);
            let words = "somebody else has changed it there; what was here of it is given up";
            log::event(Level::Info, "changed-behind", words, &[("path", &path.escape_ascii())]);
        }
    }

    /// Whether nothing would be lost, and nobody disturbed, if a name with all that it leads to was not here.
    fn may_forget(&self, tables: &Tables, directory: FileId, name: &[u8], id: FileId) -> bool {
        let forgets_changes = self.backing().has_fault(BackingFault::ForgetsChanges);
        let is_unchanged = tables.backing.get(id).is_some_and(|taken_up| taken_up.is_unchanged());
        let is_alone = tables.inodes.get(id).is_some_and(|inode| {
            inode.attributes.link_count == 1 && (forgets_changes || is_unchanged && !inode.is_announced())
        });
        is_alone
            && !super::keeps_extended(tables, id)
            && !tables.may_be_open(id)
            && !self.turns.is_taken(id.0)
            && !self.is_carrying(id)
            && !self.backing().eviction.is_in_use(id)
            && !self.backing().moving.borrow().contains_key(&id.0)
            && !tables.marks.contains_key(&directory.0)
            && tables.locks.of_dentry(directory, name).is_none()
            && tables.locks.of_inode(id).is_none()
    }

    /// Forgets a name with all that it leads to: whoever asks for it has what is behind taken up. Whether it has: else
    /// something was changed here, or is about to be.
    async fn forget_name(
        self: &Rc<Self>,
        directory: FileId,
        name: &[u8],
        agreed: &AgreedName,
        deadline: Nanos,
    ) -> Result<bool, Failure> {
        let id = agreed.id;
        if !self.may_forget(&self.tables.borrow(), directory, name, id) {
            return Ok(false);
        }
        let caller = self.flush_caller(deadline);
        let _change = self.begin_change(&caller);
        loop {
            self.await_recalled_entries(&caller).await?;
            if self.lacks_share(&self.tables.borrow(), directory) {
                self.announce_share(directory, deadline).await?;
            } else if self.is_journal_low() {
                self.until_journal_has_room(0, deadline).await?;
            } else if let Some(recalled) = self.recall_delegations(id) {
                self.wait_until(deadline, "a delegation takes long to come back", recalled.wait()).await?;
            } else {
                break;
            }
        }
        // From here on nothing is awaited.
        self.forget_now(directory, name, agreed)
    }

    /// The same at once, when nobody has a delegation of it any more, and this server has its share of the directory.
    pub(super) fn forget_now(
        self: &Rc<Self>,
        directory: FileId,
        name: &[u8],
        agreed: &AgreedName,
    ) -> Result<bool, Failure> {
        let (id, mut records) = (agreed.id, Vec::with_capacity(4));
        {
            let tables = self.tables.borrow();
            let is_same = self.agreed_name(&tables, directory, name).as_ref() == Some(agreed);
            if !is_same || !self.may_forget(&tables, directory, name, id) {
                return Ok(false);
            }
        }
        records.extend([Record::Unlisted(directory), Record::DentryDelete { parent: directory, name }]);
        let mut transaction = self.store.begin();
        let reap = drop_link(self, id, &mut transaction, &mut records)?;
        self.commit_at(NO_TIME, transaction, records)?;
        self.disturb_listing(directory);
        reap.start(self);
        Ok(true)
    }

    /// Other names of a directory may be unknown now than a listing of it has found.
    fn disturb_listing(&self, directory: FileId) {
        self.backing().forget_listed_names(directory);
        if self.backing().listings.borrow().contains_key(&directory.0) {
            self.backing().disturbed.borrow_mut().insert(directory.0);
        }
    }

    /// Looks at a directory again all of whose names are known, or were read, and notes that they may not be if it was
    /// changed.
    async fn check_listing(self: &Rc<Self>, directory: FileId) {
        let deadline = self.reactor.now() + self.options.timeout;
        let look = async {
            let (_, opened) = self.open_behind(directory, deadline).await?;
            opened.look_open().await.map_err(|error| self.backing().failure(error))
        };
        let times = look.await.ok().map(|found| (found.identity.mtime, found.identity.ctime));
        let is_changed = |known: Option<(i64, i64)>| times.is_some_and(|times| known != Some(times));
        let (is_listed, is_changed) = {
            let tables = self.tables.borrow();
            match (tables.backing.listed_directory(directory), self.backing().names_under_way(directory)) {
                (Some(listed), _) => {
                    listed.checked.set(self.reactor.now());
                    (true, is_changed(listed.times.get()))
                }
                (None, Some(names)) => {
                    names.borrow_mut().checked = self.reactor.now();
                    (false, is_changed(names.borrow().times))
                }
                (None, None) => return,
            }
        };
        match (is_changed, is_listed) {
            (true, true) if !self.is_journal_low() => {
                // Where that fails, it is looked at again in time.
                let _: Result<(), Failure> = self.change([Record::Unlisted(directory)]);
                self.backing().forget_listed_names(directory);
            }
            (true, false) => {
                if let Some(names) = self.backing().names_under_way(directory) {
                    names.borrow_mut().is_outdated = true;
                }
                self.disturb_listing(directory);
            }
            _ => {}
        }
    }

    /// A directory was listed: as which it is known from now on.
    pub(super) fn note_listed_as(&self, directory: FileId, times: Option<(i64, i64)>) {
        if let Some(listed) = self.tables.borrow().backing.listed_directory(directory) {
            listed.checked.set(self.reactor.now());
            listed.used.set(self.reactor.now());
            listed.times.set(times);
        }
    }

    /// The times of a directory as it is looked at now, if they move with the next change of it: what comes within
    /// their grain does not move them. One that is young is listed once more.
    pub(super) fn settled_times(&self, times: (i64, i64)) -> Option<(i64, i64)> {
        let young = self.reactor.wall_clock() - YOUNG_NS;
        (times.0.max(times.1) < young).then_some(times)
    }

    /// Something of a file could not be fetched: its name is looked at again, whoever asks for it.
    pub(super) fn doubt(&self, file: FileId) {
        let tables = self.tables.borrow();
        let Some(taken_up) = tables.backing.get(file).filter(|_| self.backing().checks.is_on()) else { return };
        taken_up.note_checked(0);
        self.take_old(&tables, file, 0);
    }

    /// A listing has met a name: it is there, if its inode is the one that is known.
    pub(super) fn note_met(&self, tables: &Tables, directory: FileId, name: &[u8], inode: u64) {
        if let Some(AgreedName { id, known }) = self.agreed_name(tables, directory, name)
            && known.inode == inode
        {
            tables.backing.get(id).iter().for_each(|taken_up| taken_up.note_listed(self.reactor.now()));
        }
    }

    /// Looks again at the names of a directory that a listing has not met, which began at a time. Those that take long
    /// stay as they are.
    pub(super) async fn check_unmet(self: &Rc<Self>, directory: FileId, since: Nanos) {
        let mut next = self.backing().checks.is_on().then_some(0);
        while let Some(from) = next {
            let (unmet, then) = self.unmet_names(directory, from, since);
            for some in unmet.chunks(LOOKS_AT_ONCE) {
                let limit = self.reactor.now() + PATIENCE_NS;
                if until(&self.reactor, limit, self.check_all(some)).await.is_none() {
                    return;
                }
            }
            self.reactor.yield_now().await;
            next = then;
        }
    }

    /// Those among some names of a directory, from a cursor on, and where to go on.
    fn unmet_names(&self, directory: FileId, from: u64, since: Nanos) -> (Vec<CheckKey>, Option<u64>) {
        let tables = self.tables.borrow();
        let is_unmet = |name: &[u8]| {
            let agreed = self.agreed_name(&tables, directory, name);
            let taken_up = agreed.and_then(|agreed| tables.backing.get(agreed.id));
            taken_up.is_some_and(|taken_up| !taken_up.is_met_since(since))
        };
        let (mut unmet, mut next, mut count, mut last) = (Vec::new(), None, 0, from);
        tables.names.walk(directory, from, &mut |entry: &Dentry<'_>| {
            if count >= STEP_COUNT && entry.cursor != last {
                next = Some(entry.cursor);
                return false;
            }
            (count, last) = (count + 1, entry.cursor);
            unmet.extend(is_unmet(entry.name).then(|| (directory.0, Some(entry.name.into()))));
            true
        });
        (unmet, next)
    }

    /// A client is told something of a directory that is behind, which he may keep if he has a delegation.
    pub(super) fn note_told(self: &Rc<Self>) {
        let checks = &self.backing().checks;
        if checks.is_on() && self.leases.kept_entries.may_be_held() && !checks.is_told.replace(true) {
            self.start_sweeping();
        }
    }

    /// Clients of this machine may know what a name of something that is behind leads to, or make names in such a
    /// directory.
    pub fn note_shown(self: &Rc<Self>, directory: FileId, shown: FileId) {
        let Some(backing) = self.backing.as_ref().filter(|backing| backing.checks.is_on()) else { return };
        if self.is_behind(directory) && backing.checks.shown.borrow_mut().insert(shown.0, ()).is_none() {
            self.start_sweeping();
        }
    }

    /// Takes from clients of this machine, time and again, what was looked at too long ago for them to believe it.
    fn start_sweeping(self: &Rc<Self>) {
        let checks = &self.backing().checks;
        if checks.is_sweeping.replace(true) {
            return;
        }
        let core = self.clone();
        self.reactor.spawn(Class::Background, async move {
            let checks = &core.backing().checks;
            while !core.life.is_stopping() && (checks.is_told.get() || !checks.shown.borrow().is_empty()) {
                core.reactor.sleep(checks.interval / 2).await;
                if checks.is_told.replace(false) {
                    let caller = core.flush_caller(core.reactor.now() + core.options.timeout);
                    let _change = core.begin_change(&caller);
                    // One that does not come back ends by time.
                    let _: Result<(), Failure> = core.await_recalled_entries(&caller).await;
                }
                core.sweep().await;
            }
            checks.is_sweeping.set(false);
        });
    }

    async fn sweep(self: &Rc<Self>) {
        let checks = &self.backing().checks;
        let shown: Vec<u64> = checks.shown.take().into_keys().collect();
        for some in shown.chunks(STEP_COUNT) {
            let half = self.reactor.now().saturating_sub(checks.interval / 2);
            {
                let tables = self.tables.borrow();
                let young = some.iter().filter(|id| !self.take_old(&tables, FileId(**id), half));
                checks.shown.borrow_mut().extend(young.map(|id| (*id, ())));
            }
            self.reactor.yield_now().await;
        }
    }

    /// Takes something from clients of this machine if it was looked at before a time. Whether it has.
    fn take_old(&self, tables: &Tables, id: FileId, before: Nanos) -> bool {
        let Some(publisher) = &tables.publisher else { return true };
        if let Some(listed) = tables.backing.listed_directory(id) {
            let is_old = listed.checked.get() <= before;
            if is_old {
                publisher.invalidate_directory(id);
            }
            return is_old;
        }
        let Some(taken_up) = tables.backing.get(id) else { return true };
        let is_old = taken_up.checked() <= before;
        if is_old {
            publisher.invalidate_name(taken_up.place.parent, taken_up.place.name());
        }
        is_old
    }
}
