//! Submissions: clients that submit, others that look, and a server with its steps.

use crate::{found, race};
use loom::cell::UnsafeCell;
use shm::mapping::Mapped;
use shm::submission::{NO_INTENT_LOCK, SLOT_COUNT, SubmissionArea, SubmissionConsumer, SubmissionWords};
use shm::sync::{AtomicU64, Ordering};
use std::rc::Rc;

/// A lock, and the file that comes to it.
const FILE: usize = 1;
const NAME: [usize; 2] = [FILE, NO_INTENT_LOCK];
const NO_LOCKS: [usize; 2] = [NO_INTENT_LOCK; 2];
/// The clients, with the queues of these numbers.
const OWNERS: [u64; 2] = [7, 8];

/// A server with two clients that may submit.
fn scene() -> (Mapped<SubmissionArea>, SubmissionConsumer) {
    let area = Mapped::<SubmissionArea>::alone();
    let server = SubmissionConsumer::new(area.clone());
    server.reset();
    (0..2).for_each(|queue| server.open_queue(queue, OWNERS[queue]));
    server.allow(true);
    (area, server)
}

/// A submission that is no write; which one, its first word says.
fn words(word: u64) -> SubmissionWords {
    [word, 0]
}

/// Submits something that locks, if `stands` says that what it rests on does.
fn submit(area: &SubmissionArea, queue: usize, locks: [usize; 2], word: u64, stands: impl FnOnce() -> bool) -> bool {
    let Some(number) = area.next_number(queue) else { return false };
    if area.waiting_before(queue, number) >= SLOT_COUNT {
        return false;
    }
    let Some(beginning) = area.begin(OWNERS[queue], (queue, number), locks, &words(word), |_| false) else {
        return false;
    };
    let is_submitted = area.may_go_on(&beginning) && stands() && area.commit(&beginning);
    if !is_submitted {
        area.abandon(&beginning);
    }
    is_submitted
}

/// Submits a write to the file, if `stands` says that what it rests on does.
fn write(area: &SubmissionArea, queue: usize, word: u64, stands: impl FnOnce() -> bool) -> bool {
    let Some(number) = area.next_number(queue) else { return false };
    let Some(beginning) = area.begin(OWNERS[queue], (queue, number), NO_LOCKS, &words(word), |_| false) else {
        return false;
    };
    let may = area.may_go_on(&beginning) && area.number_write(&beginning, FILE);
    let is_submitted = may && stands() && area.commit(&beginning);
    if !is_submitted {
        area.abandon(&beginning);
    }
    is_submitted
}

/// Takes up what the server has seen; the first words, and `done` before each counts as taken up.
fn take_up(server: &SubmissionConsumer, locks: [usize; 2], done: impl Fn()) -> Vec<u64> {
    let mut taken = Vec::new();
    while let Some((queue, number)) = server.head(true) {
        taken.push(server.submission(queue, number)[0]);
        done();
        server.taken(queue, locks);
    }
    taken
}

/// Something that a submission rests on: its client reads it before it commits, and the server changes it once it has
/// taken the submission up, for which it needs to know that it is read no more.
#[derive(Clone, Default)]
struct Ground(Rc<UnsafeCell<()>>);

impl Ground {
    fn is_read(&self) -> bool {
        self.0.with(|_| ());
        true
    }

    fn changes_after(&self, taken: &[u64]) {
        if !taken.is_empty() {
            self.0.with_mut(|_| ());
        }
    }
}

/// Of a submission and a step one comes first, and the other one sees it; what it says arrives whole.
pub fn commit_or_step() {
    let (area, server) = scene();
    let (cell, ground) = (Rc::new(AtomicU64::new(1)), Ground::default());
    let (look, read) = (cell.clone(), ground.clone());
    let client = move || {
        let mut seen = 0;
        let is_submitted = submit(&area, 0, NO_LOCKS, 5, || {
            seen = look.load(Ordering::Relaxed);
            read.is_read()
        });
        (is_submitted, seen)
    };
    let step = move || {
        server.forbid();
        let taken = take_up(&server, NO_LOCKS, || ());
        ground.changes_after(&taken);
        cell.store(2, Ordering::Relaxed);
        server.allow(true);
        taken
    };
    let ((is_submitted, seen), taken) = race(client, step);
    let expected: &[u64] = if is_submitted && seen == 1 { &[5] } else { &[] };
    found!(taken == expected, "submitted: {is_submitted}, with {seen}; taken: {taken:?}");
}

/// A server that looks, and takes up what it finds.
fn look(server: SubmissionConsumer, ground: Ground) -> impl FnOnce() -> Vec<u64> {
    move || {
        server.look();
        let taken = take_up(&server, NO_LOCKS, || ());
        ground.changes_after(&taken);
        taken
    }
}

/// What was submitted arrives whole, and what it rests on was read before.
pub fn commit_or_look() {
    let (area, server) = scene();
    let ground = Ground::default();
    let read = ground.clone();
    let (_, taken) = race(move || submit(&area, 0, NO_LOCKS, 5, || read.is_read()), look(server, ground));
    found!([5].starts_with(&taken), "{taken:?}");
}

/// The same where its client is about to submit more.
pub fn look_while_about_to() {
    let (area, server) = scene();
    let ground = Ground::default();
    let read = ground.clone();
    let client = move || {
        submit(&area, 0, NO_LOCKS, 5, || read.is_read());
        submit(&area, 0, NO_LOCKS, 6, || true);
    };
    let ((), taken) = race(client, look(server, ground));
    found!([5, 6].starts_with(&taken), "{taken:?}");
}

/// A slot is used again when the server has read it.
pub fn slots_again() {
    let (area, server) = scene();
    (0..SLOT_COUNT).for_each(|word| found!(submit(&area, 0, NO_LOCKS, word, || true), "there is room"));
    let (_, taken) = race(move || submit(&area, 0, NO_LOCKS, 9, || true), look(server, Ground::default()));
    found!(taken == [0, 1], "{taken:?}");
}

/// Takes up what client 0 submits, while `looks` is told what that changes; 1 before, 2 afterwards.
fn while_taken_up(locks: [usize; 2], looks: impl FnOnce(&SubmissionArea, &AtomicU64) + 'static) {
    let (area, server) = scene();
    found!(submit(&area, 0, locks, 5, || true), "it is submitted");
    let cell = Rc::new(AtomicU64::new(1));
    let changed = cell.clone();
    let server = move || {
        server.look();
        take_up(&server, locks, || changed.store(2, Ordering::Relaxed));
    };
    race(server, move || looks(&area, &cell));
}

/// Who finds a submission taken up sees what became of it.
pub fn taken_is_seen() {
    while_taken_up(NO_LOCKS, |area, cell| {
        found!(area.is_waiting(0, 0) || cell.load(Ordering::Relaxed) == 2, "it is not there");
    });
}

/// Who finds something unlocked sees what became of it.
pub fn unlocked_is_seen() {
    while_taken_up(NAME, |area, cell| {
        found!(area.is_locked(FILE) || cell.load(Ordering::Relaxed) == 2, "it is not there");
    });
}

/// The same of who locks it next.
pub fn unlocked_is_seen_by_the_next() {
    while_taken_up(NAME, |area, cell| {
        submit(area, 1, NAME, 6, || {
            found!(cell.load(Ordering::Relaxed) == 2, "it is not there");
            true
        });
    });
}

/// The same of who writes to it.
pub fn unlocked_is_seen_by_writes() {
    while_taken_up(NAME, |area, cell| {
        write(area, 1, 6, || {
            found!(cell.load(Ordering::Relaxed) == 2, "it is not there");
            true
        });
    });
}

/// A queue begins anew when another client has it.
pub fn queues_of_others() {
    let (area, server) = scene();
    let number = area.next_number(0).expect("it has submitted nothing");
    let begun = area.begin(OWNERS[0], (0, number), NO_LOCKS, &words(5), |_| false);
    found!(begun.is_some(), "it begins, and ends there");
    let client = move || {
        if area.queue_of(9).is_some() {
            let number = area.next_number(0);
            found!(number.is_some(), "the one before is about to submit");
        }
    };
    race(move || (server.close_queue(0), server.open_queue(0, 9)), client);
}

/// Of who removes a file's name and who writes to it at least one sees the other one.
pub fn write_or_removal() {
    let (area, _server) = scene();
    let removed = area.clone();
    let removal = move || submit(&removed, 0, NAME, 5, || !removed.is_written(FILE));
    let (is_removed, is_written) = race(removal, move || write(&area, 1, 6, || true));
    found!(!is_removed || !is_written, "both");
}

/// Writes are taken up in their order: of two, one after the other, never the second one alone.
pub fn order_of_writes() {
    let (area, server) = scene();
    let clients = move || write(&area, 0, 1, || true) && write(&area, 1, 2, || true);
    let (_, taken) = race(clients, look(server, Ground::default()));
    found!([1, 2].starts_with(&taken), "{taken:?}");
}

/// Who finds that nothing is written to a file any more sees what was written.
pub fn written_is_seen() {
    let (area, server) = scene();
    let cell = Rc::new(AtomicU64::new(1));
    found!(write(&area, 0, 5, || true), "it is submitted");
    let changed = cell.clone();
    let step = move || {
        server.forbid();
        take_up(&server, NO_LOCKS, || changed.store(2, Ordering::Relaxed));
        server.allow(true);
    };
    let reader = move || {
        found!(area.is_written(FILE) || cell.load(Ordering::Relaxed) == 2, "it is not there");
    };
    race(step, reader);
}

/// The end of new numbers never comes with the start of those before.
pub fn numbers() {
    let (area, server) = scene();
    server.set_numbers(0, 10..11);
    let ((), numbers) = race(move || server.set_numbers(0, 20..22), move || area.numbers_of(0));
    found!([10..11, 20..22, 20..11].contains(&numbers), "{numbers:?}");
}
