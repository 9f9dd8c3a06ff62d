//! Changes that clients of this machine submit in memory that both share, instead of asking for them
//! (docs/shared-memory.md).
//!
//! Invariants
//! 1. What was submitted is done before any other step of this server (`Gate`), so between two steps it counts as done.
//! 2. Clients may submit only what is done at once when it is taken up: nobody has to be asked or waited for. Where
//!    that may not be so for something that the attribute cache does not tell, nobody may submit (`may_submit`).
//! 3. Submissions are not left lying: as long as anybody may submit, this server looks now and then.

use crate::core::{Core, Failure};
use crate::handlers::{self, SubmittedSource};
use crate::journal::records::Record;
use crate::names::cursor_of_hash;
use crate::process::statistics::waits::Asker;
use crate::process::statistics::{EarlyWaits, RequestEnd};
use crate::store::{HeldPages, PAGE_SIZE};
use reactor::log::{self, Level};
use reactor::{Class, Gate, Nanos, SLOT_COUNT, SubmissionQueues, SubmissionWords, Submitted};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use wire::identity::dentry_hash;
use wire::operation::OperationObject;
use wire::submission::{
    Change, Made, STAGING_RING_SIZE, SUBMITTED_CHUNK_SIZE_MAX, SUBMITTED_SIZE_MAX, Submission, SubmissionBytes,
};
use wire::{FileId, Operation, Status};

/// Time between looks while there may be submissions, and looks in vain after which nobody may submit until somebody
/// asks again.
const LOOK_NS: Nanos = 20_000_000;
const LOOKS_MAX: u32 = 50;
/// File ids that a client is given at a time.
const NUMBER_COUNT: u64 = 1024;
/// Bytes of the journal that a submission takes at most, beside what names servers; and those that no submission may
/// have.
const RECORD_SIZE_MAX: u64 = 512;
const RESERVE: u64 = 16 << 10;
/// What that may be more where there is a backing tree: the name differs then, and the file was changed.
const DIFFERENCE_SIZE_MAX: u64 = 448;
/// The same of a write, with the whole of a chunk of which each page is an extent and a range of its own; and pages
/// that the writes of one client take at most: those of as many bytes as it may have submitted, and two more for each.
const WRITE_RECORD_SIZE_MAX: u64 = RECORD_SIZE_MAX + 24 * (SUBMITTED_CHUNK_SIZE_MAX as u64 / PAGE_SIZE);
const WRITE_PAGES_MAX: u64 = STAGING_RING_SIZE / PAGE_SIZE + 2 * SLOT_COUNT;
const _: () = assert!(STAGING_RING_SIZE >= SUBMITTED_SIZE_MAX as u64);

/// Who submits in a queue.
#[derive(Clone, Copy)]
struct QueueClient {
    uid: u32,
    connection: u64,
    /// The tag of the job that it counts to.
    job: u32,
}

/// What this server does about submissions.
#[derive(Default)]
pub struct SubmissionWork {
    is_watched: Cell<bool>,
    taken: Cell<u64>,
    failed: Cell<u64>,
    /// Leftovers that the life before had made.
    found_made: Cell<u64>,
    /// Whose queues there are.
    clients: RefCell<BTreeMap<usize, QueueClient>>,
}

impl SubmissionWork {
    /// Submissions that were taken up, and those among them that could not be done.
    pub fn numbers(&self) -> (u64, u64) {
        (self.taken.get(), self.failed.get())
    }

    /// Submissions that the life before had made and not noted as taken up.
    pub fn found_made(&self) -> u64 {
        self.found_made.get()
    }
}

/// Where a submission comes from.
enum Submitter<'a> {
    /// A client that has this queue now.
    SubmissionQueue(&'a SubmissionQueues, usize),
    /// It was submitted to an earlier life; with the pages of a write.
    Earlier(Option<HeldPages>),
}

/// Around each step of this server.
struct SubmissionGate {
    core: Weak<Core>,
    submissions: Rc<SubmissionQueues>,
    writes_allowed: Cell<bool>,
}

impl Gate for SubmissionGate {
    /// What was submitted is taken up whenever this server comes to run, also when nobody asks it anything.
    fn look(&self) -> bool {
        let Some(core) = self.core.upgrade() else { return false };
        let is_submitted = self.submissions.has_queues() && self.submissions.look();
        if is_submitted {
            core.take_up(&self.submissions);
            let is_allowed = self.writes_allowed.get();
            if !core.may_submit(&self.submissions)
                || is_allowed && !core.may_submit_writes(&self.submissions, is_allowed)
            {
                // As a step would.
                self.submissions.forbid();
                core.take_up(&self.submissions);
                self.leave();
            }
        }
        is_submitted
    }

    fn enter(&self) -> bool {
        let Some(core) = self.core.upgrade() else { return false };
        if self.submissions.has_queues() {
            self.look();
            // What was submitted meanwhile.
            if self.submissions.forbid() {
                core.take_up(&self.submissions);
            }
        }
        true
    }

    fn leave(&self) {
        let Some(core) = self.core.upgrade() else { return };
        if !self.submissions.has_queues() {
            if self.writes_allowed.replace(false) {
                core.store.keep_pages(0);
            }
            return;
        }
        if !core.may_submit(&self.submissions) {
            return self.submissions.refuse();
        }
        self.writes_allowed.set(core.may_submit_writes(&self.submissions, self.writes_allowed.get()));
        self.submissions.allow(self.writes_allowed.get());
    }
}

impl Core {
    /// Ends the submissions of this life: whatever program is next finds that nothing is left.
    pub fn end_submissions(self: &Rc<Self>) {
        let Some(shared) = self.store.shared() else { return };
        let submissions = shared.submissions();
        submissions.forbid();
        self.take_up(submissions);
        submissions.end();
    }

    /// Begins a life of this server: takes up what was submitted to the one before, and from now on what is submitted
    /// to this one.
    pub fn begin_submissions(self: &Rc<Self>) {
        // Also where nobody may read by short circuit any more.
        let Some(shared) = self.store.shared() else { return };
        let submissions = shared.submissions();
        let hold = |words: &SubmissionWords| match SubmissionBytes::of(words).submission(words)?.change {
            Change::Write(written, bytes) => handlers::hold_left(self, &written, &bytes),
            _ => None,
        };
        // That life may have ended between the change and the note of it.
        let last = self.tables.borrow().last_submission;
        let mut leftovers = submissions.leftovers();
        if let Some(done) = leftovers.iter().position(|left| last == Some((left.queue as u32, left.number))) {
            submissions.leftover_taken(&leftovers.remove(done));
            self.submissions.found_made.set(1);
        }
        let leftovers: Vec<_> = leftovers.into_iter().map(|leftover| (leftover, hold(&leftover.words))).collect();
        for (leftover, held) in leftovers {
            self.do_submitted(&leftover, Submitter::Earlier(held));
            submissions.leftover_taken(&leftover);
        }
        submissions.reset();
        self.reactor.add_gate(Rc::new(SubmissionGate {
            core: Rc::downgrade(self),
            submissions: submissions.clone(),
            writes_allowed: Cell::new(false),
        }));
    }

    fn take_up(self: &Rc<Self>, submissions: &SubmissionQueues) {
        while let Some(submitted) = submissions.next() {
            // In two steps, since where an inode is has to be fetched before it can be.
            if let Some(later) = submissions.ahead(submitted.queue, 2) {
                self.prefetch_tables(&later);
            }
            if let Some(next) = submissions.ahead(submitted.queue, 1) {
                self.prefetch_submitted_file(&next);
            }
            let submitter = Submitter::SubmissionQueue(submissions, submitted.queue);
            let intent_locks = self.do_submitted(&submitted, submitter);
            submissions.taken(submitted.queue, intent_locks);
        }
    }

    /// Has the memory fetched that a submission will change, and that tells where its file is.
    fn prefetch_tables(&self, words: &SubmissionWords) {
        let bytes = SubmissionBytes::of(words);
        let Some(submission) = bytes.submission(words) else { return };
        let tables = self.tables.borrow();
        if submission.change.bytes().is_none() {
            let hash = dentry_hash(submission.parent, submission.name);
            if let Some(publisher) = &tables.publisher {
                publisher.prefetch_name(submission.parent, submission.name, hash);
            }
            tables.names.prefetch(submission.parent, cursor_of_hash(hash));
        }
        if let Some(publisher) = &tables.publisher {
            publisher.prefetch_inode(submission.file);
        }
        self.store.prefetch(submission.file.0);
    }

    /// The same of its file's inode.
    fn prefetch_submitted_file(&self, words: &SubmissionWords) {
        if let Some(file) = SubmissionBytes::file_of(words) {
            self.tables.borrow().inodes.prefetch(file);
        }
    }

    /// Does what was submitted. Returns the locks for it.
    fn do_submitted(self: &Rc<Self>, submitted: &Submitted, mut submitter: Submitter<'_>) -> [usize; 2] {
        self.submissions.taken.set(self.submissions.taken.get() + 1);
        if let Some(backing) = &self.backing {
            backing.note_access(Operation::Write, self.reactor.now());
        }
        if !self.leases.kept_entries.is_idle() {
            self.leases.kept_entries.note_change(0, self.reactor.now());
        }
        let words = &submitted.words;
        let bytes = SubmissionBytes::of(words);
        let Some(submission) = bytes.submission(words) else {
            self.submissions.failed.set(self.submissions.failed.get() + 1);
            return [0; 2];
        };
        let job = match &submitter {
            Submitter::SubmissionQueue(_, queue) => {
                self.submissions.clients.borrow().get(queue).map_or(0, |client| client.job)
            }
            // Of a client of an earlier life, whose job nobody knows.
            Submitter::Earlier(_) => 0,
        };
        // Goes with the change that is submitted, which may journal something else first.
        let taken = Record::SubmissionTaken { queue: submitted.queue as u32, number: submitted.number };
        let (operation, bytes, result) = self.clock.at_submitted_time(submission.time, || match submission.change {
            Change::Unlink => (Operation::Unlink, 0, handlers::unlink_submitted(self, &submission, taken)),
            Change::Create(made) => {
                let is_its_own = match submitter {
                    Submitter::SubmissionQueue(submissions, queue) => {
                        self.takes_number(submissions, queue, &submission, &made)
                    }
                    Submitter::Earlier(_) => true,
                };
                let result = match is_its_own {
                    true => handlers::create_submitted(self, &submission, &made, taken),
                    false => {
                        let words = "the file's number or owner is not its client's";
                        Err(Failure::with_text(Status::NotPermitted, words))
                    }
                };
                (Operation::Open, 0, result)
            }
            Change::Write(written, bytes) => {
                let source = self.source_of(&mut submitter);
                let result = handlers::write_submitted(self, submission.file, (&written, &bytes), source, taken);
                (handlers::submitted_operation(&written), u64::from(bytes.size), result)
            }
        });
        let who = Asker { operation, job };
        let object = match operation.object() {
            Some(OperationObject::Directory) => submission.parent,
            _ => submission.file,
        };
        self.statistics.arrived(who);
        self.statistics.started(who, EarlyWaits::default(), 0);
        let bytes_in = if result.is_ok() { bytes } else { 0 };
        let failed = result.is_err();
        self.statistics.finished(who, RequestEnd { failed, bytes_in, object: Some(object), ..RequestEnd::default() });
        if !self.statistics.sampling.get() {
            crate::process::statistics::report::start_sampling(self);
        }
        if let Err(failure) = result {
            self.submissions.failed.set(self.submissions.failed.get() + 1);
            let words = "a change that a client of this machine had made could not be done";
            let text = String::from_utf8_lossy(&failure.text).into_owned();
            log::event(Level::Error, "submission-failed", words, &[("status", &failure.status), ("why", &text)]);
        }
        submission.intent_locks()
    }

    /// Where the bytes of a submission are.
    fn source_of(&self, submitter: &mut Submitter<'_>) -> SubmittedSource {
        match submitter {
            Submitter::SubmissionQueue(_, queue) => {
                let connection = self.submissions.clients.borrow().get(queue).map_or(0, |client| client.connection);
                SubmittedSource::Registered(connection)
            }
            Submitter::Earlier(held) => SubmittedSource::Left(held.take()),
        }
    }

    /// Takes the number of a file that a client has made from those that it was given. False when it is none of them,
    /// or the client makes it for another user.
    fn takes_number(
        &self,
        submissions: &SubmissionQueues,
        queue: usize,
        submission: &Submission<'_>,
        made: &Made,
    ) -> bool {
        let (numbers, number) = (submissions.numbers(queue), submission.file.sequence());
        let is_its_own = self.submissions.clients.borrow().get(&queue).is_some_and(|client| client.uid == made.uid);
        if !is_its_own || !numbers.contains(&number) {
            return false;
        }
        submissions.use_number(queue, number);
        true
    }

    /// The client of a connection may submit.
    /// `job`: the tag of the job that its submissions count to.
    pub fn queue_opened(&self, queue: usize, uid: u32, connection: u64, job: u32) {
        self.submissions.clients.borrow_mut().insert(queue, QueueClient { uid, connection, job });
    }

    /// Somebody who may submit has made a file in a directory: the next ones need not be asked for.
    pub fn invite_submissions(self: &Rc<Self>, queue: usize, directory: FileId) {
        let Some(shared) = self.shared() else { return };
        {
            let tables = self.tables.borrow();
            if self.lacks_listing(&tables, directory) {
                // What is not here may be behind: nobody knows by himself that a name is not there.
                return;
            }
            if let Some(publisher) = &tables.publisher {
                publisher.publish_directory(directory);
                self.note_shown(directory, directory);
            }
        }
        if shared.submissions().numbers(queue).is_empty()
            && self.check_file_numbers().is_ok()
            && let Ok(numbers) = self.next_numbers(NUMBER_COUNT)
        {
            shared.submissions().set_numbers(queue, numbers);
        }
    }

    /// Whether whatever may be submitted from now on would be done at once.
    fn may_submit(&self, submissions: &SubmissionQueues) -> bool {
        // Of a file that goes all servers may have to be told.
        let backing = if self.backing.is_some() { DIFFERENCE_SIZE_MAX } else { 0 };
        let one = RECORD_SIZE_MAX + backing + 8 * u64::from(self.cluster.server_count());
        // Once more as much may be submitted while that is taken up.
        let most = 2 * submissions.queue_count() as u64 * SLOT_COUNT * one + RESERVE;
        self.submissions.is_watched.get()
            && !self.life.is_stopping()
            // Names that are delegated to other servers are recalled first.
            && self.leases.delegations.is_empty()
            // Who keeps entries has to be told of changes first.
            && !self.leases.kept_entries.may_be_held()
            && !self.is_journal_low()
            && self.store.journal_room() > most
    }

    /// Whether the same is so of writes: there is room for all that may be submitted while as much is taken up, and
    /// twice as much where they have not been allowed so far, so that chunks go on getting more than they need at a
    /// time.
    fn may_submit_writes(&self, submissions: &SubmissionQueues, is_allowed: bool) -> bool {
        let queues = submissions.queue_count() as u64;
        let pages = 2 * queues * WRITE_PAGES_MAX;
        self.store.keep_pages(pages);
        let one = WRITE_RECORD_SIZE_MAX + 8 * u64::from(self.cluster.server_count());
        self.store.has_ready_pages(if is_allowed { pages } else { 2 * pages })
            && self.store.journal_room() > 2 * queues * SLOT_COUNT * one + RESERVE
    }

    /// Somebody changes names, and may submit such changes for a while.
    pub fn watch_submissions(self: &Rc<Self>) {
        if self.submissions.is_watched.replace(true) {
            return;
        }
        let core = self.clone();
        self.reactor.spawn(Class::Background, async move {
            let (mut seen, mut looks) = (core.submissions.taken.get(), 0);
            while looks < LOOKS_MAX && !core.life.is_stopping() {
                core.reactor.sleep(LOOK_NS).await;
                looks = if core.submissions.taken.get() == seen { looks + 1 } else { 0 };
                seen = core.submissions.taken.get();
            }
            core.submissions.is_watched.set(false);
        });
    }
}
